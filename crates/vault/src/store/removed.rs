//! Objects that lost their name through us while they are known: whoever found one by its name, or has it open, goes on with it until it is
//! forgotten.
//!
//! A directory is empty then, and has attributes of its own, as a link has, whose target is kept; a file is [held](HeldFile) on the host.

use std::io;
use std::sync::Arc;

use adit_core::media::{HeldFile, HostFile};
use adit_core::types::{Access, Attr, Ino, SetAttr, SetTime, Timestamp};
use hashbrown::HashMap;
use parking_lot::Mutex;

/// What is left of an object.
pub(super) enum Remains {
    Directory(Attr),
    Symlink(Attr, Vec<u8>),
    File(Arc<dyn HeldFile>),
}

/// The objects. Its lock is a leaf, and no file is let go of under it.
#[derive(Default)]
pub(super) struct RemovedObjects(Mutex<HashMap<Ino, Remains>>);

impl RemovedObjects {
    /// The object `ino` loses its name; so much of it goes on.
    pub fn add(&self, ino: Ino, remains: Remains) {
        let now = Timestamp::now();
        let gone = |attr| Attr { nlink: 0, ctime: now, ..attr };
        let remains = match remains {
            Remains::Directory(attr) => Remains::Directory(gone(attr)),
            Remains::Symlink(attr, target) => Remains::Symlink(gone(attr), target),
            file => file,
        };
        let former = self.0.lock().insert(ino, remains);
        drop(former);
    }

    /// Nobody knows `ino` any more, or it has its name still.
    pub fn forget(&self, ino: Ino) {
        let gone = self.0.lock().remove(&ino);
        drop(gone);
    }

    /// Whether `ino` is one of them.
    pub fn contains(&self, ino: Ino) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// The attributes of `ino`, if it is a directory or link among them.
    pub fn attr(&self, ino: Ino) -> Option<Attr> {
        match self.0.lock().get(&ino)? {
            Remains::Directory(attr) | Remains::Symlink(attr, _) => Some(*attr),
            Remains::File(_) => None,
        }
    }

    /// Where the link `ino` leads, if it is one of them.
    pub fn target(&self, ino: Ino) -> Option<Vec<u8>> {
        match self.0.lock().get(&ino)? {
            Remains::Symlink(_, target) => Some(target.clone()),
            _ => None,
        }
    }

    /// The file `ino`, if it is one of them.
    pub fn file(&self, ino: Ino) -> Option<Arc<dyn HeldFile>> {
        match self.0.lock().get(&ino)? {
            Remains::File(file) => Some(file.clone()),
            _ => None,
        }
    }

    /// Opens the file `ino`, if it is one of them, also where its mode forbids that to its owner: whether the caller may, the kernel has
    /// checked.
    pub fn open(&self, ino: Ino, access: Access) -> Option<io::Result<Box<dyn HostFile>>> {
        let file = self.file(ino)?;
        let with_perm = |perm| file.set_attr(&SetAttr { perm: Some(perm), ..SetAttr::default() });
        Some(match file.open(access) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => file.stat().and_then(|host| {
                with_perm(host.perm | 0o600)?;
                let opened = file.open(access);
                with_perm(host.perm)?;
                opened
            }),
            other => other,
        })
    }

    /// Changes the attributes of `ino`; false if it is no directory or link among them.
    pub fn set_attr(&self, ino: Ino, set: &SetAttr) -> bool {
        let mut removed = self.0.lock();
        let (attr, set) = match removed.get_mut(&ino) {
            Some(Remains::Directory(attr)) => (attr, *set),
            // A link has no mode of its own.
            Some(Remains::Symlink(attr, _)) => (attr, SetAttr { perm: None, ..*set }),
            _ => return false,
        };
        let now = Timestamp::now();
        let time = |set: Option<SetTime>, old| match set {
            None => old,
            Some(SetTime::At(time)) => time,
            Some(SetTime::Now) => now,
        };
        *attr = Attr {
            perm: set.perm.unwrap_or(attr.perm),
            uid: set.uid.unwrap_or(attr.uid),
            gid: set.gid.unwrap_or(attr.gid),
            atime: time(set.atime, attr.atime),
            mtime: time(set.mtime, attr.mtime),
            ctime: now,
            ..*attr
        };
        true
    }
}
