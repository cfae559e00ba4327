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
use adit_core::types::{Attr, Ino, SetAttr};
use fuser::WriteFlags;

use super::Front;
use super::init::Agreed;

/// How long the kernel may keep attributes that hold for `ttl`.
pub(super) fn kept(attr: &Attr, ttl: Duration) -> Duration {
    if attr.perm_without_set_id() == attr.perm { ttl } else { Duration::ZERO }
}

impl Front {
    /// Before a write through the handle. Pages that the kernel writes back were written by a program earlier, and lost both then.
    pub(super) fn before_write(agreed: Agreed, engine: &Engine, fh: Fh, flags: WriteFlags) -> Result<(), FsError> {
        if !agreed.set_id || flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return Ok(());
        }
        engine.drop_capability(fh)?;
        match flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            true => engine.drop_set_id(fh),
            false => Ok(()),
        }
    }

    /// Before user `uid` changes content through the handle in another way.
    pub(super) fn before_change(agreed: Agreed, engine: &Engine, fh: Fh, uid: u32) -> Result<(), FsError> {
        if !agreed.set_id {
            return Ok(());
        }
        engine.drop_capability(fh)?;
        match uid {
            0 => Ok(()),
            _ => engine.drop_set_id(fh),
        }
    }

    /// What user `uid` changes with `set`, set-id bits included.
    pub(super) fn with_set_id(
        agreed: Agreed,
        engine: &Engine,
        uid: u32,
        ino: Ino,
        set: SetAttr,
    ) -> Result<SetAttr, FsError> {
        let owner = set.uid.is_some() || set.gid.is_some();
        let content = set.size.is_some() && uid != 0;
        if !agreed.set_id || set.perm.is_some() || !(owner || content) {
            return Ok(set);
        }
        let (attr, _) = engine.getattr(ino, None)?;
        let kept = attr.perm_without_set_id();
        Ok(SetAttr { perm: (kept != attr.perm).then_some(kept), ..set })
    }
}
