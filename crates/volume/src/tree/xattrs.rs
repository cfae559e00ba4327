//! Extended attributes.

use std::ops::ControlFlow;

use adit_core::types::{XATTR_VALUE_LEN_MAX_BYTES, XattrName, XattrSet};
use adit_core::{ErrorKind, Result, acl};

use super::change::Change;
use super::view::{View, corrupt_inode, corrupt_key};
use crate::format::keys::{self, Id, Key, Parts};
use crate::format::records;

/// Attributes that one batch removes at most.
const DROPPED_AT_ONCE: usize = 1024;

/// Most bytes of names of one inode, each with a NUL (`XATTR_LIST_MAX`).
const NAMES_LEN_MAX_BYTES: usize = 65536;

impl View<'_> {
    /// The value of an attribute; `NoAttribute` if there is none.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        let none = || ErrorKind::NoAttribute.into();
        if !self.inode(ino)?.has_xattrs {
            return Err(none());
        }
        let value = self.find(&Key::xattr(ino, name))?.value.ok_or_else(none)?;
        records::decode_xattr(&value).map(<[u8]>::to_vec).map_err(|why| corrupt_inode(ino, why))
    }

    /// The names of all attributes, sorted.
    pub fn xattr_names(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        if !self.inode(ino)?.has_xattrs {
            return Ok(names);
        }
        let (start, end) = keys::range_of(keys::space::XATTR, ino);
        self.scan(&start, &end, &mut |key, _| {
            if let Some(Parts::Xattr(_, name)) = Key::from_logical(key).as_ref().and_then(Key::parts) {
                names.push(name.to_vec());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        // Shorter ones come first in the table.
        names.sort_unstable();
        Ok(names)
    }
}

impl Change<'_, '_> {
    /// The value of an attribute.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(value) = self.find(&Key::xattr(ino, name))?.value else { return Ok(None) };
        records::decode_xattr(&value).map(|v| Some(v.to_vec())).map_err(|why| corrupt_inode(ino, why))
    }

    /// Sets an attribute as `setxattr(2)` does; ACLs and permission bits go together.
    pub fn set_xattr(&mut self, ino: u64, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        let now = self.now;
        let inode = self.inode(ino)?;
        let (kind, perm) = (inode.kind, inode.perm);
        if value.len() > XATTR_VALUE_LEN_MAX_BYTES {
            return Err(ErrorKind::NoSpace.into());
        }
        let (perm, value) = match name {
            XattrName::ACL_ACCESS => {
                let access = acl::access(value, perm)?;
                (access.perm, access.acl)
            }
            XattrName::ACL_DEFAULT => (perm, acl::default(value, kind)?),
            _ => (perm, Some(value.to_vec())),
        };
        let found = self.find(&Key::xattr(ino, name.as_bytes()))?;
        match (set, found.value.is_some()) {
            (XattrSet::Replace, false) => return Err(ErrorKind::NoAttribute.into()),
            (XattrSet::Create, true) => return Err(ErrorKind::Exists.into()),
            _ => {}
        }
        match value {
            Some(value) => self.put_xattr(ino, name.as_bytes(), &value)?,
            None => self.delete(&Key::xattr(ino, name.as_bytes()), found.owner)?,
        }
        let inode = self.edit(ino)?;
        (inode.perm, inode.ctime) = (perm, now);
        Ok(())
    }

    /// Sets an attribute as it is.
    pub fn put_xattr(&mut self, ino: u64, name: &[u8], value: &[u8]) -> Result<()> {
        let key = Key::xattr(ino, name);
        let found = self.find(&key)?;
        if found.value.is_none() && self.inode(ino)?.has_xattrs {
            let len: usize = self.xattr_names(ino)?.iter().map(|(n, _)| n.len() + 1).sum();
            if len + name.len() >= NAMES_LEN_MAX_BYTES {
                return Err(ErrorKind::NoSpace.into());
            }
        }
        self.put(&key, found.owner, records::encode_xattr(value));
        self.edit(ino)?.has_xattrs = true;
        Ok(())
    }

    /// Removes an attribute; `NoAttribute` if there is none.
    pub fn remove_xattr(&mut self, ino: u64, name: XattrName<'_>) -> Result<()> {
        let now = self.now;
        self.inode(ino)?;
        let key = Key::xattr(ino, name.as_bytes());
        let found = self.find(&key)?;
        if found.value.is_none() {
            return Err(ErrorKind::NoAttribute.into());
        }
        self.draft.uses_reserve = true;
        self.delete(&key, found.owner)?;
        self.edit(ino)?.ctime = now;
        Ok(())
    }

    /// Removes attributes, of which this operation wrote none, as long as the batch takes them. Whether there are more.
    pub fn drop_xattrs(&mut self, ino: u64) -> Result<bool> {
        if !self.inode(ino)?.has_xattrs {
            return Ok(false);
        }
        let (start, end) = keys::range_of(keys::space::XATTR, ino);
        let mut names = Vec::new();
        self.view.scan(&start, &end, &mut |key, _| {
            names.extend(Key::from_logical(key));
            let more = names.len() < DROPPED_AT_ONCE;
            Ok(if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        let all = names.len() < DROPPED_AT_ONCE;
        for key in names {
            if self.draft.is_full() {
                return Ok(true);
            }
            let owner = self.find(&key)?.owner;
            self.delete(&key, owner)?;
        }
        Ok(!all)
    }

    /// The names of all attributes, and who wrote each.
    fn xattr_names(&self, ino: u64) -> Result<Vec<(Vec<u8>, Id)>> {
        let (start, end) = keys::range_of(keys::space::XATTR, ino);
        let seen = self.seen(&start, &end)?.into_iter().filter(|(_, _, value)| value.is_some());
        let name = |key: Vec<u8>| match Key::from_logical(&key).as_ref().and_then(Key::parts) {
            Some(Parts::Xattr(_, name)) => Ok(name.to_vec()),
            _ => Err(corrupt_key(&key, "it is no attribute's")),
        };
        seen.map(|(key, owner, _)| Ok((name(key)?, owner))).collect()
    }
}
