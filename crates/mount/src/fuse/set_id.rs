//! Set-id bits and file capabilities, which go when content or owner change.
//!
//! A store without extended attributes leaves it to the kernel, which sends the new mode. One that has them would be
//! asked for `security.capability` before each write (7.5 µs instead of 4.7 for 4 KiB, and no gain from write-back), unless
//! `HANDLE_KILLPRIV_V2` moves the clearing here. fuser 0.18 shows the kernel's flag for it on writes, but not on setattr,
//! and there is none for fallocate and copy_file_range: there a caller other than root counts as one without
//! `CAP_FSETID`. So root without that capability keeps the bits of what it truncates; nobody else keeps more than on a
//! local filesystem. A change of owner or group clears them for everyone, as Linux does.
//!
//! The kernel takes no notice of what is cleared here, and would execute the file with the bits that it knows. So it never keeps
//! attributes that have some ([`kept`]): it asks for them whenever it looks at the file.

use std::time::Duration;

use adit_core::FsError;
use adit_core::engine::{Engine, Fh};
use adit_core::process::proc_is_ours;
use adit_core::types::{Attr, Caller, Ino, SetAttr};
use fuser::{Request, WriteFlags};

use super::Front;
use super::init::Agreed;

/// How long the kernel may keep attributes that hold for `ttl`.
pub(super) fn kept(attr: &Attr, ttl: Duration) -> Duration {
    if attr.has_set_id() { Duration::ZERO } else { ttl }
}

/// Who changes a file.
#[derive(Clone, Copy)]
pub(super) struct Changer {
    uid: u32,
    gid: u32,
    /// None where that is not known any more.
    pid: Option<u32>,
}

impl From<&Request> for Changer {
    fn from(req: &Request) -> Changer {
        Changer { uid: req.uid(), gid: req.gid(), pid: Some(req.pid()) }
    }
}

impl From<Caller> for Changer {
    fn from(caller: Caller) -> Changer {
        Changer { uid: caller.uid, gid: caller.gid, pid: None }
    }
}

impl Changer {
    /// Whether it is in the group of the file. Other groups than its first are looked up; where that cannot be, it counts as not.
    pub(super) fn is_in_group(self, attr: &Attr) -> bool {
        let others = || {
            let pid = self.pid.filter(|_| proc_is_ours())?;
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
            Some(groups.split_ascii_whitespace().any(|gid| gid.parse() == Ok(attr.gid)))
        };
        self.gid == attr.gid || others().unwrap_or(false)
    }

    /// The permission bits of a file that it changed.
    pub(super) fn perm_left(self, attr: &Attr) -> u16 {
        if attr.has_set_id() { attr.perm_without_set_id(self.uid == 0 || self.is_in_group(attr)) } else { attr.perm }
    }
}

impl Front {
    /// Before a write through the handle. Pages that the kernel writes back were written by a program earlier, and lost both then.
    pub(super) fn before_write(
        agreed: Agreed,
        engine: &Engine,
        fh: Fh,
        flags: WriteFlags,
        by: Changer,
    ) -> Result<(), FsError> {
        if !agreed.set_id || flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return Ok(());
        }
        engine.drop_capability(fh)?;
        match flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            true => engine.drop_set_id(fh, |attr| by.is_in_group(attr)),
            false => Ok(()),
        }
    }

    /// Before content is changed through the handle in another way.
    pub(super) fn before_change(agreed: Agreed, engine: &Engine, fh: Fh, by: Changer) -> Result<(), FsError> {
        if !agreed.set_id {
            return Ok(());
        }
        engine.drop_capability(fh)?;
        match by.uid {
            0 => Ok(()),
            _ => engine.drop_set_id(fh, |attr| by.is_in_group(attr)),
        }
    }

    /// What is changed with `set`, set-id bits included.
    pub(super) fn with_set_id(
        agreed: Agreed,
        engine: &Engine,
        by: Changer,
        ino: Ino,
        set: SetAttr,
    ) -> Result<SetAttr, FsError> {
        let owner = set.uid.is_some() || set.gid.is_some();
        let content = set.size.is_some() && by.uid != 0;
        if !agreed.set_id || set.perm.is_some() || !(owner || content) {
            return Ok(set);
        }
        let (attr, _) = engine.getattr(ino, None)?;
        let kept = by.perm_left(&attr);
        Ok(SetAttr { perm: (kept != attr.perm).then_some(kept), ..set })
    }
}
