//! Extended attributes, ACLs among them.
//!
//! The kernel checks who may use which namespace, and enforces ACLs where that was agreed ([`super::init`]). What is left:
//! names in `trusted.` are for root to see, and an ACL that is set by someone outside the file's group clears its
//! set-group-id bit. (The kernel's flag for that comes with SETXATTR_EXT, which fuser 0.18 cannot parse.)

use adit_core::engine::Engine;
use adit_core::types::{Ino, SetAttr, XattrName, XattrSet};
use adit_core::{ErrorKind, FsError};
use fuser::{Errno, ReplyXattr, Request};

use super::Front;
use super::set_id::Changer;

impl Front {
    /// Whether the store has any. Without, ENOSYS is said once; the kernel then answers EOPNOTSUPP itself.
    pub(super) fn has_xattrs(&self) -> bool {
        self.requests.engine.store().capabilities().xattrs
    }

    pub(super) fn list_xattrs(&self, engine: &Engine, req: &Request, ino: Ino) -> Result<Vec<u8>, FsError> {
        // None are an empty list: programs copy what is listed, and take an error for one.
        let names = if self.has_xattrs() { engine.xattr_names(ino)? } else { Vec::new() };
        let acls = [XattrName::ACL_ACCESS, XattrName::ACL_DEFAULT].map(XattrName::as_bytes);
        let hidden = |name: &[u8]| {
            let is_acl = acls.iter().any(|acl| name.strip_suffix(b"\0") == Some(acl));
            req.uid() != 0 && name.starts_with(b"trusted.") || !self.agreed.acls && is_acl
        };
        Ok(names.split_inclusive(|&byte| byte == 0).filter(|name| !hidden(name)).flatten().copied().collect())
    }

    pub(super) fn set_xattr(
        &self,
        engine: &Engine,
        req: &Request,
        ino: Ino,
        name: XattrName<'_>,
        (value, flags): (&[u8], i32),
    ) -> Result<(), FsError> {
        let set = match flags {
            0 => XattrSet::Either,
            libc::XATTR_CREATE => XattrSet::Create,
            libc::XATTR_REPLACE => XattrSet::Replace,
            _ => return Err(ErrorKind::InvalidInput.into()),
        };
        self.check_acl(name)?;
        engine.set_xattr(ino, name, value, set)?;
        if name == XattrName::ACL_ACCESS && req.uid() != 0 {
            let (attr, _) = engine.getattr(ino, None)?;
            if attr.perm & SET_GID != 0 && !Changer::from(req).is_in_group(&attr) {
                let perm = Some(attr.perm & !SET_GID);
                engine.setattr(ino, &SetAttr { perm, ..SetAttr::default() }, None)?;
            }
        }
        Ok(())
    }

    /// What to say of an attribute that is not there. `ls -l` asks each file for its label, unless it hears that there are
    /// none on this filesystem; on a machine without SELinux that is so, but for those that were copied from elsewhere.
    pub(super) fn without_labels(&self, name: XattrName<'_>, error: FsError) -> FsError {
        let is_label = name.as_bytes() == SELINUX_LABEL && !self.agreed.labels;
        if is_label && error.kind() == ErrorKind::NoAttribute { ErrorKind::NotSupported.into() } else { error }
    }

    /// ACLs that nobody enforces are refused: they would promise what does not hold.
    pub(super) fn check_acl(&self, name: XattrName<'_>) -> Result<(), FsError> {
        let is_acl = name == XattrName::ACL_ACCESS || name == XattrName::ACL_DEFAULT;
        if is_acl && !self.agreed.acls { Err(ErrorKind::NotSupported.into()) } else { Ok(()) }
    }
}

const SET_GID: u16 = 0o2000;
/// The attribute in which SELinux keeps an inode's label.
const SELINUX_LABEL: &[u8] = b"security.selinux";

/// Answers with `bytes`, or with their length where `size`, the room for them, is 0.
pub(super) fn answer(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(e) => reply.error(e),
    }
}
