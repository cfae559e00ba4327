//! What a copy keeps of an original besides content, mode and time: further names, and extended attributes.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{XattrFlags, fgetxattr, fgetxattr_query, flistxattr, flistxattr_query, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::Told;
use super::names::Names;
use crate::host;
use crate::path::Node;
use crate::types::{Ino, XATTR_VALUE_LEN_MAX_BYTES, XattrName};

/// What several copies into one tree have in common: of a file with several names, the one that was copied first, and what the
/// names that were given led to.
#[derive(Default)]
pub struct Kept<'t> {
    /// By device and number on the host.
    pub(super) links: HashMap<(u64, u64), Linked<'t>>,
    pub(super) told: Told,
    /// What was copied itself, and not with a folder around it.
    pub(super) names: Names<Ino>,
}

/// A file of which more names are to come.
pub(super) struct Linked<'t> {
    pub(super) copy: Node<'t>,
    /// So many.
    pub(super) left: u32,
}

/// Whether an attribute means the same for the copy: those of users and of root, ACLs, and, where the copy has the owner of
/// its original, the rights that a program has. The rest is the host's own.
pub(super) fn is_kept(name: &[u8], same_owner: bool) -> bool {
    name.starts_with(b"user.")
        || (name.starts_with(b"trusted.") && rustix::process::geteuid().is_root())
        || is_acl(name)
        || (same_owner && name == CAPABILITY)
}

/// The attribute with the rights that a program has whoever runs it.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Whether it is an ACL.
pub(super) fn is_acl(name: &[u8]) -> bool {
    [XattrName::ACL_ACCESS, XattrName::ACL_DEFAULT].iter().any(|acl| acl.as_bytes() == name)
}

/// The names in a list in which each is followed by a NUL byte.
pub(super) fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == 0).filter(|name| !name.is_empty())
}

/// The names of the attributes of a file of the host; none where the host has no such thing.
pub(super) fn names_of(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let read = grown(|| flistxattr_query(fd), |list| flistxattr(fd, list));
    match read.map_err(|e| host::attribute_error(fd, e)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Vec::new()),
        other => Ok(other?),
    }
}

/// The value of an attribute of a file of the host; `None` if it is gone.
pub(super) fn value_of(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    match grown(|| fgetxattr_query(fd, name), |value| fgetxattr(fd, name, value)) {
        Err(Errno::NODATA) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// Sets an attribute of a file of the host.
pub(super) fn set_value(fd: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(fsetxattr(fd, name, value, XattrFlags::empty()).map_err(|e| host::attribute_error(fd, e))?)
}

/// The ACLs among the attributes of a copy that its original, which has those of `list`, lacks. The copy has them from its
/// directory, and they would give rights that nobody gave.
pub(super) fn inherited<'c>(copy: &'c [u8], list: &[u8]) -> impl Iterator<Item = &'c [u8]> {
    names(copy).filter(|&name| is_acl(name) && names(list).all(|kept| kept != name))
}

/// Removes an attribute of a file of the host; one that is gone is removed.
pub(super) fn remove(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match fremovexattr(fd, name) {
        Err(Errno::NODATA) => Ok(()),
        other => Ok(other?),
    }
}

/// Asks for the length and then for the bytes, again if there are more by then.
fn grown(
    len: impl Fn() -> Result<usize, Errno>,
    read: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    loop {
        let len = len()?.min(XATTR_VALUE_LEN_MAX_BYTES);
        let mut bytes = vec![0; len];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        match read(&mut bytes) {
            Ok(read) => {
                bytes.truncate(read);
                return Ok(bytes);
            }
            Err(Errno::RANGE) if len < XATTR_VALUE_LEN_MAX_BYTES => {}
            Err(e) => return Err(e),
        }
    }
}
