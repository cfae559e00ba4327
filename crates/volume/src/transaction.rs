//! Several operations of a [`VolumeStore`] as one: one [`Change`], applied as one batch.
//!
//! **Locks.** A transaction holds what its view holds, then [`Tree::transactions`](crate::tree::Tree) for itself, then the numbers, for as
//! long as it lasts. Whoever changes content in an ordinary call reads it before taking the numbers, under an inode's writer;
//! a transaction that waited for such a writer would wait for one that waits for the numbers. So it never takes a writer:
//! these hold `transactions`, shared, from the first read to the batch, and while a transaction has it there is none. (A call
//! of many batches gives it back between them, where nothing that was read is kept.) Whoever reads content holds an inode's
//! content lock, shared, and asks for no lock of this list with it in hand, so a transaction may wait for that with the
//! numbers held: it takes those of all inodes whose blocks change, for the moment in which it is applied.
//!
//! **What fails.** A failed call is taken back by itself ([`Change::attempt`]). What was written for the transaction lies in reserved
//! blocks, which go back unless it is applied. Inodes become known, and are dropped, once it is.

use std::collections::{BTreeMap, BTreeSet};

use adit_core::store::NewNode;
use adit_core::transaction::{Transaction, Transactional};
use adit_core::types::{Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};
use adit_core::{ErrorKind, Result};

use crate::format::records::Inode;
use crate::store::{Opened, VolumeStore, link_of, new_inode, node_of, whiteout};
use crate::tree::edit::{Placed, too_long};
use crate::tree::{Change, Gone, NewInode};

/// Most bytes of one write.
pub const WRITE_LEN_MAX_BYTES: usize = 1 << 20;

impl Transactional for VolumeStore {
    fn transact(&self, work: &mut dyn FnMut(&mut dyn Transaction) -> Result<()>) -> Result<()> {
        self.run(|running| work(running))
    }

    fn transaction_len_max_bytes(&self) -> u64 {
        self.tree().table.batch_len_max_bytes() as u64
    }
}

impl VolumeStore {
    /// As [`Transactional::transact`], with what only this store has.
    pub(crate) fn run<R>(&self, work: impl FnOnce(&mut Running<'_, '_, '_>) -> Result<R>) -> Result<R> {
        self.check_writable()?;
        // Dropped after the view: the end of a use may want one of its own.
        let mut in_use = BTreeMap::new();
        let (result, gone) = {
            let view = self.0.view()?;
            let (result, applied) = {
                let _alone = view.tree.transactions.write();
                let mut numbers = view.tree.numbers.lock();
                let mut running = Running::new(self, Change::new(&view, &mut numbers)?, &mut in_use);
                let result = work(&mut running)?;
                (result, running.apply()?)
            };
            for ino in applied.cut {
                if let Err(e) = view.tree.drain(&view, ino) {
                    tracing::warn!("what was cut from inode {ino} is given back later: {e}");
                }
            }
            (result, applied.gone)
        };
        for gone in gone {
            self.0.settle(Some(gone));
        }
        Ok(result)
    }
}

/// What is left to do after a transaction.
struct Applied {
    gone: Vec<Gone>,
    cut: BTreeSet<u64>,
}

/// A transaction that is going on.
pub(crate) struct Running<'s, 'c, 't> {
    store: &'s VolumeStore,
    change: Change<'c, 't>,
    /// Inodes that were found and made.
    known: BTreeSet<u64>,
    gone: Vec<Gone>,
    /// Inodes that were made shorter.
    cut: BTreeSet<u64>,
    placed: Vec<Placed<'t>>,
    /// Inodes whose blocks change.
    in_use: &'s mut BTreeMap<u64, Opened>,
    /// Names and attributes that went, less those that came.
    balance: i64,
    /// Whether something went.
    removed: bool,
    /// Whether blocks came.
    grown: bool,
}

impl<'s, 'c, 't> Running<'s, 'c, 't> {
    fn new(store: &'s VolumeStore, change: Change<'c, 't>, in_use: &'s mut BTreeMap<u64, Opened>) -> Self {
        let (known, cut) = (BTreeSet::new(), BTreeSet::new());
        let (gone, placed) = (Vec::new(), Vec::new());
        Running { store, change, known, gone, cut, placed, in_use, balance: 0, removed: false, grown: false }
    }

    /// What a name leads to.
    pub fn find(&mut self, dir: Ino, name: FileName<'_>) -> Result<(u64, Kind)> {
        self.change.entry(dir.0, name)
    }

    /// The record of an inode.
    pub fn inode(&self, ino: u64) -> Result<Inode> {
        self.change.peek(ino)
    }

    /// An inode that was made is not to be known when the transaction ends.
    pub fn unknow(&mut self, ino: Ino) {
        self.known.remove(&ino.0);
    }

    /// Runs one call, of which nothing is left if it fails.
    fn call<R>(&mut self, work: impl FnOnce(&mut Change<'c, 't>) -> Result<R>) -> Result<R> {
        self.change.attempt(|change| {
            let result = work(change)?;
            change.check_len()?;
            Ok(result)
        })
    }

    /// As [`Running::call`], for what makes an inode.
    fn make(&mut self, parent: Ino, name: FileName<'_>, new: &NewInode<'_>) -> Result<Attr> {
        let attr = self.call(|change| {
            let ino = change.create(parent.0, name, new)?;
            Ok(change.inode(ino)?.attr(ino))
        })?;
        self.known.insert(attr.ino.0);
        self.balance -= 1;
        Ok(attr)
    }

    /// Notes what lost its last name, after a name went.
    fn removed(&mut self, gone: Option<Gone>) {
        self.gone.extend(gone);
        self.balance += 1;
        self.removed = true;
    }

    /// Notes that blocks of an inode change.
    fn uses(&mut self, ino: Ino) {
        let store = self.store;
        self.in_use.entry(ino.0).or_insert_with(|| store.opened(ino.0));
    }

    /// Applies it, while nobody reads the content of what changes.
    fn apply(self) -> Result<Applied> {
        let Running { store, mut change, known, gone, cut, placed, in_use, balance, removed, grown } = self;
        // What takes away more than it adds may use what is kept back, as it may by itself.
        change.draft.uses_reserve = removed && balance >= 0 && !grown;
        let passing = change.draft.take_passing();
        let readers: Vec<_> = in_use.values().map(|opened| opened.node().exclude_readers()).collect();
        let tree = change.view.tree;
        change.commit().map_err(|e| if e.kind() == ErrorKind::InvalidInput { too_long() } else { e })?;
        drop(readers);
        placed.into_iter().for_each(Placed::keep);
        if !passing.is_empty() {
            tree.extents.release(&passing);
        }
        // With the numbers still held: nobody removes one of them before it is known.
        known.into_iter().for_each(|ino| store.0.learn(ino));
        Ok(Applied { gone, cut })
    }
}

impl Transaction for Running<'_, '_, '_> {
    fn takes_away(&mut self) {
        self.change.draft.takes_away = true;
    }

    fn lookup(&mut self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let (ino, _) = self.change.entry(parent.0, name)?;
        let inode = match self.change.peek(ino) {
            Ok(inode) if inode.nlink > 0 => inode,
            Ok(_) => return Err(ErrorKind::NotFound.into()),
            Err(e) if e.kind() == ErrorKind::Stale => return Err(ErrorKind::NotFound.into()),
            Err(e) => return Err(e),
        };
        self.known.insert(ino);
        Ok(inode.attr(ino))
    }

    fn getattr(&mut self, ino: Ino) -> Result<Attr> {
        self.change.peek(ino.0).map(|inode| inode.attr(ino.0))
    }

    fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let Some(len) = set.size else {
            return self.call(|change| {
                change.set_attr(ino.0, set)?;
                Ok(change.inode(ino.0)?.attr(ino.0))
            });
        };
        self.uses(ino);
        let (placed, before, attr) = self.call(|change| {
            let before = change.inode(ino.0)?.size;
            let placed = change.set_len(ino.0, len, set)?;
            Ok((placed, before, change.inode(ino.0)?.attr(ino.0)))
        })?;
        self.removed |= len < before;
        self.cut.insert(ino.0);
        self.placed.extend(Some(placed).filter(|placed| !placed.is_empty()));
        Ok(attr)
    }

    fn create(&mut self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.make(parent, name, &new_inode(Kind::File, new))
    }

    fn mkdir(&mut self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.make(parent, name, &new_inode(Kind::Directory, new))
    }

    fn symlink(&mut self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.make(parent, name, &link_of(target, caller)?)
    }

    fn mknod(&mut self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.make(parent, name, &node_of(kind, rdev, new)?)
    }

    fn link(&mut self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let attr = self.call(|change| {
            change.link(ino.0, parent.0, name)?;
            Ok(change.inode(ino.0)?.attr(ino.0))
        })?;
        self.known.insert(ino.0);
        self.balance -= 1;
        Ok(attr)
    }

    fn unlink(&mut self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let gone = self.call(|change| change.unlink(parent.0, name))?;
        self.removed(gone);
        Ok(())
    }

    fn rmdir(&mut self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let gone = self.call(|change| change.rmdir(parent.0, name))?;
        self.removed(gone);
        Ok(())
    }

    fn rename(
        &mut self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let white = flags.contains(RenameFlags::WHITEOUT).then(whiteout);
        let (from, to) = ((parent.0, name), (new_parent.0, new_name));
        let gone = self.call(|change| change.rename(from, to, flags, white.as_ref()))?;
        self.gone.extend(gone);
        // It needs room as it does by itself.
        self.balance -= 1;
        Ok(())
    }

    fn xattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let has_xattrs = self.change.peek(ino.0)?.has_xattrs;
        let value = if has_xattrs { self.change.xattr(ino.0, name.as_bytes())? } else { None };
        value.ok_or_else(|| ErrorKind::NoAttribute.into())
    }

    fn set_xattr(&mut self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.call(|change| change.set_xattr(ino.0, name, value, set))?;
        self.balance -= 1;
        Ok(())
    }

    fn remove_xattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.call(|change| change.remove_xattr(ino.0, name))?;
        self.removed(None);
        Ok(())
    }

    fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len() > WRITE_LEN_MAX_BYTES {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.uses(ino);
        let (placed, is_cut) =
            self.call(|change| Ok((change.write(ino.0, offset, bytes)?, change.inode(ino.0)?.is_cut)))?;
        self.cut.extend(Some(ino.0).filter(|_| is_cut));
        self.grown |= placed.is_some();
        self.placed.extend(placed);
        // Content takes room, also where it is inline.
        self.balance -= 1;
        Ok(())
    }
}
