//! POSIX access control lists (`acl(5)`) as extended attributes: what a store that keeps them must do with them.
//!
//! The kernel checks access by them; it leaves three things to the store, which do it in one step with the change
//! itself: an access ACL sets the permission bits ([`access`]), new permission bits change the access ACL ([`chmod`]),
//! and what is made in a directory gets the directory's default ACL ([`inherit`]). Pure; the rules are those of Linux's
//! `posix_acl.c`, the bytes those of `linux/posix_acl_xattr.h`.

use crate::error::{ErrorKind, Result};
use crate::store::NewNode;
use crate::types::Kind;

/// Version of the attributes' bytes.
const VERSION: u32 = 2;
const HEADER_LEN_BYTES: usize = 4;
const ENTRY_LEN_BYTES: usize = 8;

/// Whom an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    Mask,
    Other,
}

const TAGS: [(u16, Tag); 6] = [
    (0x01, Tag::Owner),
    (0x02, Tag::User),
    (0x04, Tag::OwningGroup),
    (0x08, Tag::Group),
    (0x10, Tag::Mask),
    (0x20, Tag::Other),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    /// Read 4, write 2, execute 1.
    perm: u16,
    id: u32,
}

/// A valid list: its entries ascend by tag, and the three that every list has are there.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Acl(Vec<Entry>);

/// What an access ACL comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The permission bits that go with it.
    pub perm: u16,
    /// The list to keep; `None` where the permission bits say all of it.
    pub acl: Option<Vec<u8>>,
}

/// What something that is made in a directory with a default ACL gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    /// Its permission bits and its access ACL.
    pub access: Access,
    /// Its own default ACL: directories pass it on.
    pub default: Option<Vec<u8>>,
}

/// The outcome of setting the access ACL `value` on something with the bits `perm`.
///
/// # Errors
/// `InvalidInput` for bytes that are no list; `NotSupported` for another version of them.
pub fn access(value: &[u8], perm: u16) -> Result<Access> {
    let Some(acl) = Acl::decode(value)? else { return Ok(Access { perm, acl: None }) };
    Ok(Access { perm: perm & !0o777 | acl.bits(), acl: acl.says_more_than_bits().then(|| acl.encode()) })
}

/// The outcome of setting the default ACL `value` on something of this kind; `None` where the list is empty.
///
/// # Errors
/// As [`access`]; `PermissionDenied` for what is no directory.
pub fn default(value: &[u8], kind: Kind) -> Result<Option<Vec<u8>>> {
    match Acl::decode(value)? {
        Some(_) if kind != Kind::Directory => Err(ErrorKind::PermissionDenied.into()),
        acl => Ok(acl.map(|acl| acl.encode())),
    }
}

/// The access ACL `value` after the permission bits became `perm`.
///
/// # Errors
/// As [`access`].
pub fn chmod(value: &[u8], perm: u16) -> Result<Vec<u8>> {
    let Some(mut acl) = Acl::decode(value)? else { return Ok(value.to_vec()) };
    let group = acl.group_class();
    for entry in &mut acl.0 {
        match entry.tag {
            Tag::Owner => entry.perm = perm >> 6 & 7,
            Tag::Other => entry.perm = perm & 7,
            tag if tag == group => entry.perm = perm >> 3 & 7,
            _ => {}
        }
    }
    Ok(acl.encode())
}

/// What `new`, which becomes something of this kind, gets in a directory whose default ACL is `default`. The umask counts
/// only where there is none.
///
/// # Errors
/// As [`access`].
pub fn inherit(default: Option<&[u8]>, kind: Kind, new: &NewNode) -> Result<Inherited> {
    let plain = |perm| Inherited { access: Access { perm, acl: None }, default: None };
    if kind == Kind::Symlink {
        return Ok(plain(new.perm));
    }
    let Some(value) = default else { return Ok(plain(new.masked_perm())) };
    let Some(mut acl) = Acl::decode(value)? else { return Ok(plain(new.masked_perm())) };
    let perm = new.perm;
    let group = acl.group_class();
    for entry in &mut acl.0 {
        match entry.tag {
            Tag::Owner => entry.perm &= perm >> 6,
            Tag::Other => entry.perm &= perm,
            tag if tag == group => entry.perm &= perm >> 3,
            _ => {}
        }
    }
    let access = Access { perm: perm & !0o777 | acl.bits(), acl: acl.says_more_than_bits().then(|| acl.encode()) };
    Ok(Inherited { access, default: (kind == Kind::Directory).then(|| value.to_vec()) })
}

impl Acl {
    /// `None` for a list without entries, which means that there is to be none.
    fn decode(value: &[u8]) -> Result<Option<Acl>> {
        let (version, entries) = value.split_first_chunk::<HEADER_LEN_BYTES>().ok_or(ErrorKind::InvalidInput)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(ErrorKind::NotSupported.into());
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_LEN_BYTES>();
        if !rest.is_empty() {
            return Err(ErrorKind::InvalidInput.into());
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl(entries.iter().map(Entry::decode).collect::<Result<_>>()?);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(ErrorKind::InvalidInput.into()) }
    }

    fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        self.0.iter().for_each(|entry| value.extend(entry.encode()));
        value
    }

    /// In order; owner, owning group and others once each; a mask once where users or groups are named, else at most once.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(Tag::User) + count(Tag::Group) > 0;
        self.0.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::OwningGroup, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && (usize::from(named)..=1).contains(&count(Tag::Mask))
    }

    /// The entry that the permission bits of the group show: the mask, if there is one.
    fn group_class(&self) -> Tag {
        if self.0.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
    }

    /// The nine permission bits that go with it.
    fn bits(&self) -> u16 {
        let of = |tag| self.0.iter().find(|entry| entry.tag == tag).map_or(0, |entry| entry.perm);
        of(Tag::Owner) << 6 | of(self.group_class()) << 3 | of(Tag::Other)
    }

    fn says_more_than_bits(&self) -> bool {
        self.0.iter().any(|entry| matches!(entry.tag, Tag::User | Tag::Group | Tag::Mask))
    }
}

impl Entry {
    fn decode(bytes: &[u8; ENTRY_LEN_BYTES]) -> Result<Entry> {
        let [t0, t1, p0, p1, id @ ..] = *bytes;
        let (tag, perm) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([p0, p1]));
        let tag = TAGS.into_iter().find(|(number, _)| *number == tag).map(|(_, tag)| tag);
        match tag {
            Some(tag) if perm <= 7 => Ok(Entry { tag, perm, id: u32::from_le_bytes(id) }),
            _ => Err(ErrorKind::InvalidInput.into()),
        }
    }

    fn encode(&self) -> [u8; ENTRY_LEN_BYTES] {
        let number = TAGS.into_iter().find(|(_, tag)| *tag == self.tag).map_or(0, |(number, _)| number);
        let ([t0, t1], [p0, p1], [a, b, c, d]) = (number.to_le_bytes(), self.perm.to_le_bytes(), self.id.to_le_bytes());
        [t0, t1, p0, p1, a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Caller;

    const NOBODY: u32 = u32::MAX;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// user::rwx, user:1000:rw, group::r, mask::rw, other::---
    fn rich() -> Vec<u8> {
        value(&[(1, 7, NOBODY), (2, 6, 1000), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)])
    }

    #[test]
    fn a_list_sets_the_bits_and_bits_change_the_list() {
        assert_eq!(access(&rich(), 0o4644).unwrap(), Access { perm: 0o4760, acl: Some(rich()) });
        let plain = value(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)]);
        assert_eq!(access(&plain, 0o777).unwrap(), Access { perm: 0o640, acl: None }, "the bits say all of it");
        assert_eq!(access(&value(&[]), 0o751).unwrap(), Access { perm: 0o751, acl: None });
        let changed = value(&[(1, 6, NOBODY), (2, 6, 1000), (4, 4, NOBODY), (16, 4, NOBODY), (32, 1, NOBODY)]);
        assert_eq!(chmod(&rich(), 0o641).unwrap(), changed, "the mask follows the group's bits");
        assert_eq!(chmod(&plain, 0o777).unwrap(), value(&[(1, 7, NOBODY), (4, 7, NOBODY), (32, 7, NOBODY)]));
    }

    #[test]
    fn a_default_list_limits_what_is_asked_for() {
        let new = |perm| NewNode { perm, umask: 0o077, caller: Caller { uid: 5, gid: 6 } };
        let made = inherit(Some(&rich()), Kind::File, &new(0o666)).unwrap();
        let list = value(&[(1, 6, NOBODY), (2, 6, 1000), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)]);
        assert_eq!(made, Inherited { access: Access { perm: 0o660, acl: Some(list) }, default: None });
        assert_eq!(inherit(Some(&rich()), Kind::Directory, &new(0o777)).unwrap().default, Some(rich()));
        let link = inherit(Some(&rich()), Kind::Symlink, &new(0o777)).unwrap();
        assert_eq!(link, Inherited { access: Access { perm: 0o777, acl: None }, default: None });
        let plain = value(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 0, NOBODY)]);
        let made = inherit(Some(&plain), Kind::File, &new(0o2666)).unwrap();
        assert_eq!(made.access, Access { perm: 0o2640, acl: None });
        let made = inherit(None, Kind::File, &new(0o2666)).unwrap();
        assert_eq!(made.access, Access { perm: 0o2600, acl: None }, "without a list the umask counts");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let kind = |value: &[u8]| access(value, 0).unwrap_err().kind();
        for bad in [
            vec![],
            vec![2, 0, 0],
            [&rich()[..], &[0]].concat(),
            value(&[(1, 7, 0)]),
            value(&[(4, 7, 0), (1, 7, 0), (32, 7, 0)]),
            value(&[(1, 8, 0), (4, 7, 0), (32, 7, 0)]),
            value(&[(3, 7, 0), (4, 7, 0), (32, 7, 0)]),
            value(&[(1, 7, 0), (2, 7, 5), (4, 7, 0), (32, 7, 0)]),
            value(&[(1, 7, 0), (1, 7, 0), (4, 7, 0), (32, 7, 0)]),
        ] {
            assert_eq!(kind(&bad), ErrorKind::InvalidInput, "{bad:?}");
        }
        assert_eq!(kind(&[1, 0, 0, 0]), ErrorKind::NotSupported);
        assert_eq!(default(&rich(), Kind::File).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(default(&rich(), Kind::Directory).unwrap(), Some(rich()));
        assert_eq!(default(&value(&[]), Kind::File).unwrap(), None);
    }
}
