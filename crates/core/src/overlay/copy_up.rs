//! Copying an object of the lower up: its attributes, not its content.
//!
//! All that is to be read from the lower is read first, into a [`Plan`]; the transaction only writes. The copy is made in the
//! index, where nothing is inherited from a directory, and renamed to where it belongs within the same transaction: the place at which
//! it was found. A copy of what has several names in the lower is in the index as well, where the other names find it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::content::times_of;
use super::layer::Learning;
use super::node::{Node, Place};
use super::record::{self, Extent, Fingerprint, Origin, Own};
use super::{OWN, Purpose, Shared, name_of};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::{NewNode, Store};
use crate::transaction::{Transaction, Transactional};
use crate::types::{Attr, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};

/// What a copy is called until it is where it belongs.
const COPY: &[u8] = b"copy";

/// All of an object but its content and its names.
pub(super) struct Looks {
    pub attr: Attr,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    target: Vec<u8>,
}

/// See the module's notes.
pub(super) struct Plan {
    looks: Looks,
    origin: Vec<u8>,
    /// Where it was found, and is copied to.
    place: Place,
    index_name: String,
}

impl Looks {
    /// Reads them.
    pub fn of(store: &dyn Store, ino: Ino) -> Result<Looks> {
        let attr = store.getattr(ino)?;
        let target = if attr.kind == Kind::Symlink { store.readlink(ino)? } else { Vec::new() };
        let mut xattrs = Vec::new();
        if store.capabilities().xattrs {
            let names = store.xattr_names(ino)?;
            for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
                let name = XattrName::new(name)?;
                if !Shared::is_private(name) {
                    xattrs.push((name.as_bytes().to_vec(), store.xattr(ino, name)?));
                }
            }
        }
        Ok(Looks { attr, xattrs, target })
    }

    /// A copy with its attributes is one transaction of the upper, or a crash would leave half of it: refuses more than one takes.
    pub fn check_len(&self, upper: &dyn Transactional) -> Result<()> {
        /// What a transaction with a copy has besides, in bytes: the records of the overlay, names, inodes.
        const REST_BYTES: u64 = 64 << 10;
        let len: u64 = self.xattrs.iter().map(|(name, value)| 64 + (name.len() + value.len()) as u64).sum();
        let most = upper.transaction_len_max_bytes().saturating_sub(REST_BYTES);
        if len <= most {
            return Ok(());
        }
        let why = format!(
            "its extended attributes take {len} bytes, and the upper volume takes {most} at once: remove some in the layer \
             below, or use an upper of a larger capacity"
        );
        Err(FsError::new(ErrorKind::NoSpace).because(why))
    }

    /// Gives them to an inode that has none of its own. What the upper does not take is an error.
    pub fn apply(&self, tx: &mut dyn Transaction, upper: Ino) -> Result<()> {
        for (name, value) in &self.xattrs {
            let name = XattrName::new(name)?;
            tx.set_xattr(upper, name, value, XattrSet::Create)
                .map_err(|e| e.on("copy up the attribute", name.display()))?;
        }
        let perm = (self.attr.kind != Kind::Symlink).then_some(self.attr.perm);
        let owner = SetAttr { perm, uid: Some(self.attr.uid), gid: Some(self.attr.gid), ..times_of(&self.attr) };
        tx.setattr(upper, &owner).map(drop)
    }

    /// Extended attributes, in an order that does not depend on the store.
    pub fn sorted_xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut xattrs = self.xattrs.clone();
        xattrs.sort_unstable();
        xattrs
    }

    fn make(&self, tx: &mut dyn Transaction, index: Ino) -> Result<Ino> {
        let name = name_of(COPY)?;
        let attr = match self.attr.kind {
            Kind::File => tx.create(index, name, &OWN)?,
            Kind::Directory => tx.mkdir(index, name, &OWN)?,
            Kind::Symlink => tx.symlink(index, name, &self.target, OWN.caller)?,
            kind => tx.mknod(index, name, kind, self.attr.rdev, &NewNode { perm: self.attr.perm, ..OWN })?,
        };
        if self.attr.kind == Kind::File && self.attr.size > 0 {
            tx.setattr(attr.ino, &SetAttr { size: Some(self.attr.size), ..SetAttr::default() })?;
            let extent = Extent { valid: self.attr.size, ..Extent::default() };
            tx.set_xattr(attr.ino, Own::Content.name(), &extent.encode(), XattrSet::Create)?;
        }
        self.apply(tx, attr.ino)?;
        Ok(attr.ino)
    }
}

impl Plan {
    /// The attributes of what is copied.
    pub fn attr(&self) -> &Attr {
        &self.looks.attr
    }

    /// The making of the copy changed its time of change, and nothing that is shown.
    fn give_times(&self, tx: &mut dyn Transaction, upper: Ino) -> Result<Ino> {
        tx.setattr(upper, &times_of(self.attr()))?;
        Ok(upper)
    }

    /// The name that the copy has in the index, if it has one.
    pub fn index_name(&self) -> &str {
        &self.index_name
    }
}

/// Runs `work`, which adds or removes names of `dir` that nobody sees, and gives `dir` its times back.
pub(super) fn unseen(
    tx: &mut dyn Transaction,
    dir: Ino,
    work: impl FnOnce(&mut dyn Transaction) -> Result<()>,
) -> Result<()> {
    let before = tx.getattr(dir)?;
    work(tx)?;
    tx.setattr(dir, &times_of(&before)).map(drop)
}

impl Shared {
    /// Reads what a copy of `node` needs, and notes the anchors of its way.
    ///
    /// # Errors
    /// `Stale` if the lower changed; what the layers say.
    pub fn plan(&self, node: &Node, purpose: Purpose) -> Result<Plan> {
        let looks = Looks::of(&*self.lower.store, self.below(node)?.held.ino).map_err(|e| self.of_below(node, e))?;
        self.check_below(node)?;
        looks.check_len(&*self.joined).map_err(|e| e.on("copy up", format!("inode {}", node.ino.0)))?;
        let place = node.place().ok_or(ErrorKind::Stale)?;
        let way = self.note_way(&place, purpose)?;
        let print = Fingerprint::of(&looks.attr);
        let origin = Origin { print, opaque: false, way }.encode();
        Ok(Plan { looks, origin, place, index_name: record::index_name(&print) })
    }

    /// Copies `node` up, under the name at which it was found; without a name if it has none any more. Hold the names alone; the directory
    /// has its copy.
    pub fn copy(&self, tx: &mut dyn Transaction, node: &Node, plan: &Plan) -> Result<Ino> {
        if node.state().removed {
            return self.copy_nameless(tx, node, plan);
        }
        let dir = plan.place.dir.upper().ok_or(ErrorKind::Stale)?;
        let upper = self.make_copy(tx, node, plan)?;
        let (index, copy, name) = (self.layout.index.ino, name_of(COPY)?, name_of(&plan.place.name)?);
        unseen(tx, dir, |tx| tx.rename(index, copy, dir, name, RenameFlags::NOREPLACE))?;
        plan.give_times(tx, upper)
    }

    /// As [`Shared::copy`], of what loses the name at which it was found.
    pub fn copy_nameless(&self, tx: &mut dyn Transaction, node: &Node, plan: &Plan) -> Result<Ino> {
        let upper = self.make_copy(tx, node, plan)?;
        let (index, copy) = (self.layout.index.ino, name_of(COPY)?);
        if node.is_directory() {
            tx.rmdir(index, copy)?
        } else {
            tx.unlink(index, copy)?
        }
        plan.give_times(tx, upper)
    }

    fn make_copy(&self, tx: &mut dyn Transaction, node: &Node, plan: &Plan) -> Result<Ino> {
        let index = self.layout.index.ino;
        let upper = plan.looks.make(tx, index)?;
        tx.set_xattr(upper, Own::Origin.name(), &plan.origin, XattrSet::Create)?;
        if node.linked {
            tx.set_xattr(upper, Own::Links.name(), &record::encode_links(plan.attr().nlink), XattrSet::Create)?;
            tx.link(upper, index, name_of(plan.index_name.as_bytes())?)?;
        }
        Ok(upper)
    }

    /// Notes that a transaction with [`Shared::copy`] was applied.
    pub fn copied(&self, node: &Arc<Node>, learning: &Learning<'_>, upper: Ino, plan: &Plan) {
        {
            let mut state = node.state();
            if node.linked {
                state.links.get_or_insert(plan.attr().nlink);
            }
            if node.kind == Kind::File {
                state.below_len = plan.attr().size;
                state.blocks = Some(plan.attr().blocks);
            }
        }
        self.table.copied(node, self.upper.hold(learning, upper));
        self.counters.copied_up.fetch_add(1, Relaxed);
    }

    /// Runs `work` on the upper inode of `node` as one transaction, with the copy if there is none yet. Hold nothing.
    pub fn change(
        &self,
        node: &Arc<Node>,
        work: &mut dyn FnMut(&mut dyn Transaction, Ino) -> Result<()>,
    ) -> Result<()> {
        if node.upper().is_none() {
            let plan = self.plan(node, Purpose::Change)?;
            self.ensure_place(node, &plan)?;
            let _names = self.names.write();
            if node.upper().is_none() {
                let learning = self.upper.learning();
                let mut made = None;
                self.transact(&mut |tx| {
                    let upper = self.copy(tx, node, &plan)?;
                    made = Some(upper);
                    work(tx, upper)
                })?;
                self.copied(node, &learning, made.ok_or(ErrorKind::Stale)?, &plan);
                return Ok(());
            }
        }
        let upper = node.upper().ok_or(ErrorKind::Stale)?;
        self.transact(&mut |tx| work(tx, upper))
    }

    /// Copies up the directory in which a copy of `node` would be made. Hold nothing.
    pub fn ensure_place(&self, node: &Node, plan: &Plan) -> Result<()> {
        if node.state().removed { Ok(()) } else { self.ensure_directory(&plan.place.dir) }
    }

    /// Copies up a directory and those above it, each in a transaction that changes nothing that is shown. Hold nothing.
    ///
    /// # Errors
    /// `NotFound` for one that was removed.
    pub fn ensure_directory(&self, dir: &Arc<Node>) -> Result<()> {
        self.ensure_directory_of(dir, Purpose::Change)
    }

    /// As [`Shared::ensure_directory`], for something that is to be removed from it.
    pub fn ensure_directory_for_removal(&self, dir: &Arc<Node>) -> Result<()> {
        self.ensure_directory_of(dir, Purpose::Removal)
    }

    fn ensure_directory_of(&self, dir: &Arc<Node>, purpose: Purpose) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = dir.clone();
        while at.upper().is_none() {
            let place = at.place().ok_or(ErrorKind::Stale)?;
            missing.push(at);
            at = place.dir;
        }
        for node in missing.into_iter().rev() {
            let plan = self.plan(&node, purpose)?;
            let _names = self.names.write();
            if node.upper().is_some() {
                continue;
            }
            if node.state().removed {
                return Err(ErrorKind::NotFound.into());
            }
            let learning = self.upper.learning();
            let mut made = None;
            self.transact_for(purpose, &mut |tx| {
                made = Some(self.copy(tx, &node, &plan)?);
                Ok(())
            })?;
            self.copied(&node, &learning, made.ok_or(ErrorKind::Stale)?, &plan);
        }
        Ok(())
    }
}
