//! Making names: new objects, and further names of those that there are.

use std::sync::Arc;

use super::find::Above;
use super::node::{Identity, Node, State};
use super::record::{Own, encode_links};
use super::{Purpose, Shared, numbers, too_large};
use crate::error::{ErrorKind, Result};
use crate::store::{Created, NewNode};
use crate::transaction::Transaction;
use crate::types::{Access, Attr, FileName, Ino, Kind, XattrSet};

/// Makes an object under a name of a directory of the upper.
pub(super) type Maker<'m> = dyn FnMut(&mut dyn Transaction, Ino) -> Result<Attr> + 'm;

impl Shared {
    /// What is said of a name that exists already, before anything is copied up for a new one.
    fn expect_vacant(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<()> {
        if dir.upper().is_some() {
            return Ok(());
        }
        let _names = self.names.read();
        self.vacant(dir, name).map(drop)
    }

    /// Whether a whiteout is in the way of a new name. `Exists` for one that is taken, `NotFound` in a directory that was
    /// removed. Hold the names.
    pub fn vacant(&self, dir: &Node, name: FileName<'_>) -> Result<bool> {
        if !dir.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        let whiteout = match self.above(dir, name)? {
            Above::Entry(..) => return Err(ErrorKind::Exists.into()),
            Above::Whiteout => true,
            Above::Nothing if self.beneath(dir, name)?.is_some() => return Err(ErrorKind::Exists.into()),
            Above::Nothing => false,
        };
        if dir.state().removed { Err(ErrorKind::NotFound.into()) } else { Ok(whiteout) }
    }

    /// Makes an object under a name that is free.
    pub fn make(&self, dir: &Arc<Node>, name: FileName<'_>, make: &mut Maker<'_>) -> Result<(Arc<Node>, Attr)> {
        self.expect_vacant(dir, name)?;
        self.ensure_directory(dir)?;
        let _names = self.names.write();
        let whiteout = self.vacant(dir, name)?;
        self.make_over(dir, name, whiteout, make)
    }

    fn make_over(
        &self,
        dir: &Arc<Node>,
        name: FileName<'_>,
        whiteout: bool,
        make: &mut Maker<'_>,
    ) -> Result<(Arc<Node>, Attr)> {
        let parent = dir.upper().ok_or(ErrorKind::Stale)?;
        let learning = self.upper.learning();
        let mut made = None;
        self.transact(&mut |tx| {
            if whiteout {
                tx.unlink(parent, name)?;
            }
            made = Some(make(tx, parent)?);
            Ok(())
        })?;
        let attr = made.ok_or(ErrorKind::Stale)?;
        let held = self.upper.hold(&learning, attr.ino);
        self.made(dir, name, &attr, held)
    }

    /// The node of what was made just now.
    fn made(&self, dir: &Arc<Node>, name: FileName<'_>, attr: &Attr, held: super::Held) -> Result<(Arc<Node>, Attr)> {
        let ino = numbers::of_upper(attr.ino).ok_or_else(|| too_large(attr.ino, "the upper layer"))?;
        let identity = Identity { ino, kind: attr.kind, linked: false, from_lower: false };
        let node = self.table.get_or_make(identity, Some(held), None, State::default()).ok_or(ErrorKind::Stale)?;
        node.found_at(dir, name.as_bytes());
        self.table.learn(&node);
        let attr = self.shown(&node, *attr);
        Ok((node, attr))
    }

    pub fn create(self: &Arc<Self>, dir: &Arc<Node>, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        self.expect_vacant(dir, name)?;
        self.ensure_directory(dir)?;
        let names = self.names.write();
        let whiteout = self.vacant(dir, name)?;
        let parent = dir.upper().ok_or(ErrorKind::Stale)?;
        if whiteout {
            let (node, attr) = self.make_over(dir, name, true, &mut |tx, parent| tx.create(parent, name, new))?;
            drop(names);
            let file = self.open(&node, Access::Write)?;
            return Ok(Created { attr, file, parent: None });
        }
        let learning = self.upper.learning();
        let created = self.upper.store.create_in(parent, name, new)?;
        let held = self.upper.hold(&learning, created.attr.ino);
        let (node, attr) = self.made(dir, name, &created.attr, held)?;
        let file = self.opened_new(&node, created.file);
        Ok(Created { attr, file, parent: created.parent.map(|attr| self.shown(dir, attr)) })
    }

    /// Gives `node` a further name.
    pub fn link(&self, node: &Arc<Node>, dir: &Arc<Node>, name: FileName<'_>) -> Result<Attr> {
        self.expect_vacant(dir, name)?;
        self.ensure_directory(dir)?;
        if node.is_directory() {
            let _names = self.names.read();
            return self.vacant(dir, name).and_then(|_| Err(ErrorKind::NotPermitted.into()));
        }
        let plan = if node.upper().is_none() {
            let plan = self.plan(node, Purpose::Change)?;
            self.ensure_place(node, &plan)?;
            Some(plan)
        } else {
            None
        };
        let _names = self.names.write();
        let whiteout = self.vacant(dir, name)?;
        let plan = plan.filter(|_| node.upper().is_none());
        if self.getattr(node)?.nlink == 0 {
            return Err(ErrorKind::NotFound.into());
        }
        let parent = dir.upper().ok_or(ErrorKind::Stale)?;
        let links = match &plan {
            Some(plan) if node.linked => Some(plan.attr().nlink),
            Some(_) => None,
            None => node.state().links,
        };
        let links = links.map(|links| links.checked_add(1).ok_or(ErrorKind::TooManyLinks)).transpose()?;
        let learning = self.upper.learning();
        let (mut upper, mut attr) = (node.upper(), None);
        self.transact(&mut |tx| {
            if whiteout {
                tx.unlink(parent, name)?;
            }
            if let Some(plan) = &plan {
                upper = Some(self.copy(tx, node, plan)?);
            }
            let upper = upper.ok_or(ErrorKind::Stale)?;
            attr = Some(tx.link(upper, parent, name)?);
            match links {
                Some(links) => tx.set_xattr(upper, Own::Links.name(), &encode_links(links), XattrSet::Replace),
                None => Ok(()),
            }
        })?;
        if let (Some(plan), Some(upper)) = (&plan, upper) {
            self.copied(node, &learning, upper, plan);
        }
        node.state().links = links;
        node.found_at(dir, name.as_bytes());
        let attr = attr.ok_or(ErrorKind::Stale)?;
        Ok(self.shown(node, attr))
    }
}

/// What a kind of node that can be made with `mknod` must not be.
pub(super) fn check_node_kind(kind: Kind) -> Result<()> {
    if matches!(kind, Kind::Directory | Kind::Symlink) { Err(ErrorKind::InvalidInput.into()) } else { Ok(()) }
}
