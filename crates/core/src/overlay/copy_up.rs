//! Copying an object of the lower up: its attributes, not its content.
//!
//! All that is to be read from the lower is read first, into a [`Plan`]; the transaction only writes. The copy is made in the
//! index, where nothing is inherited from a directory, and renamed to where it belongs within the same transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::layer::Learning;
use super::node::Node;
use super::record::{self, Extent, Fingerprint, Origin, Own};
use super::{OWN, Purpose, Shared, name_of};
use crate::error::{ErrorKind, Result};
use crate::store::{NewNode, Store};
use crate::transaction::Transaction;
use crate::types::{Attr, Ino, Kind, RenameFlags, SetAttr, SetTime, XattrName, XattrSet};

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
}

fn times_of(attr: &Attr) -> SetAttr {
    let (atime, mtime) = (Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)));
    SetAttr { atime, mtime, ..SetAttr::default() }
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
        let way = self.note_way(node, purpose)?;
        let origin = Origin { print: Fingerprint::of(&looks.attr), opaque: false, way }.encode();
        Ok(Plan { looks, origin })
    }

    /// Copies `node` up, under the name at which it was found; one of several names into the index; without a name if it
    /// has none. Hold the names alone; the directory has its copy.
    pub fn copy(&self, tx: &mut dyn Transaction, node: &Node, plan: &Plan) -> Result<Ino> {
        let (index, copy) = (self.layout.index.ino, name_of(COPY)?);
        let upper = plan.looks.make(tx, index)?;
        tx.set_xattr(upper, Own::Origin.name(), &plan.origin, XattrSet::Create)?;
        let (removed, place) = {
            let state = node.state();
            (state.removed, state.place.clone())
        };
        if node.linked {
            tx.set_xattr(upper, Own::Links.name(), &record::encode_links(plan.attr().nlink), XattrSet::Create)?;
            let name = Self::index_name(node.ino);
            tx.rename(index, copy, index, name_of(name.as_bytes())?, RenameFlags::NOREPLACE)?;
        } else if removed && node.is_directory() {
            tx.rmdir(index, copy)?;
        } else if removed {
            tx.unlink(index, copy)?;
        } else {
            let place = place.ok_or(ErrorKind::Stale)?;
            let dir = place.dir.upper().ok_or(ErrorKind::Stale)?;
            unseen(tx, dir, |tx| tx.rename(index, copy, dir, name_of(&place.name)?, RenameFlags::NOREPLACE))?;
        }
        Ok(upper)
    }

    /// Notes that a transaction with [`Shared::copy`] was applied.
    pub fn copied(&self, node: &Node, learning: &Learning<'_>, upper: Ino, plan: &Plan) {
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
        node.set_upper(self.upper.hold(learning, upper));
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
            self.ensure_place(node)?;
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
    pub fn ensure_place(&self, node: &Node) -> Result<()> {
        let dir = {
            let state = node.state();
            if node.linked || state.removed {
                return Ok(());
            }
            state.place.as_ref().map(|place| place.dir.clone())
        };
        dir.map_or(Ok(()), |dir| self.ensure_directory(&dir))
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
