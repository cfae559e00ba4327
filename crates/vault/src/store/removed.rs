//! Directories that were removed, or replaced, while somebody may have them open: empty, without a name, and with attributes of
//! their own until they are forgotten.

use adit_core::types::{Attr, Ino, SetAttr, SetTime, Timestamp};
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Their attributes. Its lock is a leaf.
#[derive(Default)]
pub(super) struct Removed(Mutex<HashMap<Ino, Attr>>);

impl Removed {
    /// The directory that had these attributes is gone, through us.
    pub fn add(&self, attr: Attr) {
        self.0.lock().insert(attr.ino, Attr { nlink: 0, ctime: Timestamp::now(), ..attr });
    }

    /// Nobody knows `ino` any more.
    pub fn forget(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }

    /// The attributes of `ino`, if it is one of them.
    pub fn get(&self, ino: Ino) -> Option<Attr> {
        self.0.lock().get(&ino).copied()
    }

    /// Changes the attributes of `ino`; false if it is none of them.
    pub fn set_attr(&self, ino: Ino, set: &SetAttr) -> bool {
        let mut removed = self.0.lock();
        let Some(attr) = removed.get_mut(&ino) else { return false };
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
