//! Extended attributes: passed on to the store. The kernel keeps no cache of them but of ACLs, and none is kept here.
//!
//! A change moves ctime, and an ACL the permission bits: the cached attributes go with it.

use super::Engine;
use crate::error::{ErrorKind, FsError, Result};
use crate::types::{Ino, XATTR_VALUE_LEN_MAX_BYTES, XattrName, XattrSet};

impl Engine {
    /// The value of an extended attribute; `NoAttribute` if there is none of that name.
    pub fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.counters.op(|o| &o.xattrs);
        self.check_xattr(name)?;
        self.store.xattr(ino, name)
    }

    /// The names of all extended attributes, each followed by a NUL byte.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.counters.op(|o| &o.xattrs);
        self.store.xattr_names(ino)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        if value.len() > XATTR_VALUE_LEN_MAX_BYTES {
            return Err(ErrorKind::OutOfRange.into());
        }
        self.change_xattr(ino, name, || self.store.set_xattr(ino, name, value, set))
    }

    /// Removes an extended attribute; `NoAttribute` if there is none of that name. An ACL that is not there is removed already, as on
    /// every filesystem of the kernel: the permission bits are one.
    pub fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let is_acl = matches!(name, XattrName::ACL_ACCESS | XattrName::ACL_DEFAULT);
        self.change_xattr(ino, name, || match self.store.remove_xattr(ino, name) {
            Err(e) if is_acl && e.kind() == ErrorKind::NoAttribute => Ok(()),
            removed => removed,
        })
    }

    fn change_xattr(&self, ino: Ino, name: XattrName<'_>, change: impl FnOnce() -> Result<()>) -> Result<()> {
        self.counters.op(|o| &o.xattrs);
        self.check_writable("setxattr")?;
        self.check_xattr(name)?;
        let changed = change();
        if name == XattrName::CAPABILITY
            && let Some(file) = self.open.get(ino)
        {
            file.capability.changed();
        }
        self.inode_changed(ino);
        changed
    }

    /// Names without a namespace that means something here are refused, as Linux does. Who may use which of them is for
    /// the front end to know (the kernel does).
    fn check_xattr(&self, name: XattrName<'_>) -> Result<()> {
        let served = match name {
            XattrName::ACL_ACCESS | XattrName::ACL_DEFAULT => self.caps.acls,
            _ => [&b"user."[..], b"trusted.", b"security."].iter().any(|space| {
                // The namespace alone is no name.
                name.as_bytes().strip_prefix(*space).is_some_and(|rest| !rest.is_empty())
            }),
        };
        if served { Ok(()) } else { Err(FsError::new(ErrorKind::NotSupported).on("xattr", name.display())) }
    }
}
