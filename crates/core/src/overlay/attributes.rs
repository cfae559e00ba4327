//! Attributes, plain and extended.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Shared;
use super::node::Node;
use crate::error::{ErrorKind, FsError, Result};
use crate::types::{Attr, Ino, SetAttr, XattrName, XattrSet};

impl Shared {
    pub fn getattr(&self, node: &Node) -> Result<Attr> {
        let attr = match (node.upper(), node.below()) {
            (Some(upper), _) => self.upper.store.getattr(upper)?,
            (None, Some(below)) => self.lower.store.getattr(below.held.ino).map_err(|e| self.of_below(node, e))?,
            (None, None) => return Err(ErrorKind::Stale.into()),
        };
        Ok(self.shown(node, attr))
    }

    /// `size` excepted, which is content's.
    pub fn setattr(&self, node: &Arc<Node>, set: &SetAttr) -> Result<Attr> {
        if let Some(upper) = node.upper() {
            return Ok(self.shown(node, self.upper.store.setattr(upper, set)?));
        }
        let mut attr = None;
        self.change(node, &mut |tx, upper| {
            attr = Some(tx.setattr(upper, set)?);
            Ok(())
        })?;
        attr.map(|attr| self.shown(node, attr)).ok_or_else(|| ErrorKind::Stale.into())
    }

    pub fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        match (node.upper(), node.below()) {
            (Some(upper), _) => self.upper.store.readlink(upper),
            (None, Some(below)) => self.lower.store.readlink(below.held.ino).map_err(|e| self.of_below(node, e)),
            (None, None) => Err(ErrorKind::Stale.into()),
        }
    }

    pub fn xattr(&self, node: &Arc<Node>, name: XattrName<'_>) -> Result<Vec<u8>> {
        if Self::is_private(name) {
            return Err(ErrorKind::NoAttribute.into());
        }
        if let Some(state) = self.state_of(node, name)? {
            return Ok(state.to_vec());
        }
        match (node.upper(), node.below()) {
            (Some(upper), _) => self.upper.store.xattr(upper, name),
            (None, Some(_)) if !self.lower_xattrs => Err(ErrorKind::NoAttribute.into()),
            (None, Some(below)) => self.lower.store.xattr(below.held.ino, name),
            (None, None) => Err(ErrorKind::Stale.into()),
        }
    }

    pub fn xattr_names(&self, node: &Node) -> Result<Vec<u8>> {
        let names = match (node.upper(), node.below()) {
            (Some(upper), _) => self.upper.store.xattr_names(upper)?,
            (None, Some(_)) if !self.lower_xattrs => Vec::new(),
            (None, Some(below)) => self.lower.store.xattr_names(below.held.ino)?,
            (None, None) => return Err(ErrorKind::Stale.into()),
        };
        let shown = names.split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(super::record::PRIVATE));
        Ok(shown.flatten().copied().collect())
    }

    pub fn set_xattr(&self, node: &Arc<Node>, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        refuse_private("setxattr", name)?;
        self.refuse_state("setxattr", name)?;
        match node.upper() {
            Some(upper) => self.upper.store.set_xattr(upper, name, value, set),
            None => self.change(node, &mut |tx, upper| tx.set_xattr(upper, name, value, set)),
        }
    }

    pub fn remove_xattr(&self, node: &Arc<Node>, name: XattrName<'_>) -> Result<()> {
        refuse_private("removexattr", name)?;
        self.refuse_state("removexattr", name)?;
        match node.upper() {
            Some(upper) => self.upper.store.remove_xattr(upper, name),
            // What is not there is said before anything is copied.
            None => self.xattr(node, name).and_then(|_| self.change(node, &mut |tx, up| tx.remove_xattr(up, name))),
        }
    }

    /// The path of a node for messages.
    pub fn path_of(&self, node: &Arc<Node>) -> Option<String> {
        if node.state().removed {
            return None;
        }
        let mut names = Vec::new();
        let mut at = node.clone();
        while at.ino != Ino::ROOT {
            let place = at.place()?;
            names.push(place.name.to_vec());
            at = place.dir;
        }
        names.reverse();
        Some(super::record::shown(&names))
    }

    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = vec![
            ("overlay.inodes", self.table.len() as u64),
            ("overlay.copied_up", self.counters.copied_up.load(Relaxed)),
            ("overlay.blocks_fetched", self.counters.blocks_fetched.load(Relaxed)),
        ];
        counters.extend(self.upper.store.counters());
        counters.extend(self.lower.store.counters());
        counters
    }
}

fn refuse_private(op: &'static str, name: XattrName<'_>) -> Result<()> {
    if !Shared::is_private(name) {
        return Ok(());
    }
    let why = "names that begin with 'trusted.adit.' are the overlay's own";
    Err(FsError::new(ErrorKind::NotPermitted).on(op, name.display()).because(why))
}
