//! A store whose answers cost nothing: a root with any number of files, and one directory of fifty.
//!
//! The engine answers from its caches in what is measured on it, so this store stands for every other.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, Timestamp};
use adit_core::{ErrorKind, Result};

/// The directory of fifty.
pub const LISTED: Ino = Ino(2);
/// How many entries it has.
pub const LISTED_LEN: u64 = 50;
const FIRST: u64 = 3;

/// See the module's notes.
pub struct TableStore;

/// The number of the file with this index.
pub fn ino(index: usize) -> Ino {
    Ino(FIRST + index as u64)
}

/// The name of the file with this index.
pub fn name(index: usize) -> String {
    format!("document {index:07}.txt")
}

fn attr(ino: Ino) -> Attr {
    let is_dir = ino.0 < FIRST;
    Attr {
        ino,
        size: 4096,
        blocks: 8,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        kind: if is_dir { Kind::Directory } else { Kind::File },
        perm: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
    }
}

fn refused<T>() -> Result<T> {
    Err(ErrorKind::ReadOnly.into())
}

impl Store for TableStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: true, unit_len_bytes: 32 << 10, shared: true, ..Capabilities::plain("table") }
    }

    fn lookup(&self, _parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let number = std::str::from_utf8(name.as_bytes())
            .ok()
            .and_then(|name| name.strip_prefix("document ")?.strip_suffix(".txt")?.parse().ok());
        match number {
            Some(index) => Ok(attr(ino(index))),
            None if name.as_bytes() == b"listed" => Ok(attr(LISTED)),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn forget(&self, _ino: Ino) {}

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(attr(ino))
    }

    fn setattr(&self, _ino: Ino, _set: &SetAttr) -> Result<Attr> {
        refused()
    }

    fn read_dir(&self, _dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        for index in start..LISTED_LEN {
            let name = name(index as usize);
            let entry = DirEntry {
                cookie: index + 1,
                ino: ino(index as usize),
                kind: Kind::File,
                name: FileName::new(name.as_bytes())?,
            };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, _parent: Ino, _name: FileName<'_>, _new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        refused()
    }

    fn mkdir(&self, _parent: Ino, _name: FileName<'_>, _new: &NewNode) -> Result<Attr> {
        refused()
    }

    fn symlink(&self, _parent: Ino, _name: FileName<'_>, _target: &[u8], _caller: Caller) -> Result<Attr> {
        refused()
    }

    fn readlink(&self, _ino: Ino) -> Result<Vec<u8>> {
        refused()
    }

    fn unlink(&self, _parent: Ino, _name: FileName<'_>) -> Result<()> {
        refused()
    }

    fn rmdir(&self, _parent: Ino, _name: FileName<'_>) -> Result<()> {
        refused()
    }

    fn rename(
        &self,
        _parent: Ino,
        _name: FileName<'_>,
        _new_parent: Ino,
        _new_name: FileName<'_>,
        _flags: RenameFlags,
    ) -> Result<()> {
        refused()
    }

    fn open(&self, _ino: Ino, _access: Access) -> Result<Arc<dyn StoreFile>> {
        refused()
    }

    fn sync_dir(&self, _dir: Ino) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}
