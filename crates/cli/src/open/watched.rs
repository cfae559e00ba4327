//! A mount as the store of a verb, which tells damage from other errors.
//!
//! Over a mount damage is an error of input and output, as a failing disk is. The process of the mount knows better: where a
//! call fails so, it is asked what a request about that inode met since the verb began. Then the error is `Corrupt`, or says what is
//! missing or out of reach, as it would without the mount. Likewise it tells why nothing can be changed any more.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, XattrName, XattrSet,
};
use adit_core::{ErrorKind, FsError, Result};
use adit_dir::DirStore;
use adit_mount::control::{MountInfo, Registry};
use serde_json::Value;

use crate::commands::mount::serve::{DAMAGE_VERB, Damaged};

/// See the module's notes. Of a mount it is all, or a folder in it.
pub struct Watched(Arc<Mount>);

struct Mount {
    store: Arc<DirStore>,
    info: MountInfo,
    /// How many requests had met damage when the verb began.
    since: u64,
}

impl Watched {
    /// The mount `info`, whose folder `store` is. One whose process does not know the question is watched in vain.
    pub fn new(store: Arc<DirStore>, info: &MountInfo) -> Watched {
        let mut mount = Mount { store, info: info.clone(), since: u64::MAX };
        if let Some(count) = mount.ask(&[])["count"].as_u64() {
            mount.since = count;
        }
        Watched(Arc::new(mount))
    }
}

impl Mount {
    /// What its process says of these inodes; null if it does not answer.
    fn ask(&self, inodes: &[Ino]) -> Value {
        // The store has a number of its own for its root, which may be any directory of the mount.
        let root = self.store.identity().ino.unwrap_or(Ino::ROOT.0);
        let inodes = inodes.iter().map(|&ino| if ino == Ino::ROOT { root } else { ino.0 }).collect();
        let asked = Damaged { since: self.since, inodes };
        let args = serde_json::to_value(asked).unwrap_or_default();
        let answer = Registry::of_this_user().call_entry(&self.info, DAMAGE_VERB, &args);
        answer.inspect_err(|e| tracing::debug!("{e}")).unwrap_or_default()
    }

    /// Says what it is if a call about `inodes` failed because something is damaged, missing in a store, or out of reach.
    fn told<T>(&self, op: &'static str, inodes: &[Ino], result: Result<T>) -> Result<T> {
        result.map_err(|e| {
            let path = || inodes.first().and_then(|&ino| self.store.path_of(ino)).unwrap_or_default();
            let subject = |e: &FsError| e.subject().map_or_else(path, str::to_owned);
            match e.kind() {
                ErrorKind::Io => {}
                // An error of the medium may have made it so, and that alone helps whoever meets this.
                ErrorKind::ReadOnly => {
                    let status = Registry::of_this_user().call_entry(&self.info, "status", &Value::Null);
                    let status = status.inspect_err(|e| tracing::debug!("{e}")).unwrap_or_default();
                    let Some(why) = status["read_only_because"].as_str() else { return e };
                    return FsError::new(ErrorKind::ReadOnly).on(op, subject(&e)).because(why);
                }
                _ => return e,
            }
            // To reach a file its name is looked up in its directory.
            let above = inodes.iter().filter_map(|&ino| self.store.name_of(ino).map(|(dir, _)| dir));
            let asked: Vec<Ino> = inodes.iter().copied().chain(above).collect();
            let answer = self.ask(&asked);
            let Some(what) = answer["what"].as_str() else { return e };
            let kind = answer["kind"].as_str().and_then(ErrorKind::from_word).unwrap_or(ErrorKind::Corrupt);
            let told = FsError::new(kind).because(what);
            // The store knows no path of what is open and was not looked up by a name; who asked for it does.
            let has_path = inodes.first().is_some_and(|&ino| self.store.path_of(ino).is_some());
            if has_path { told.on(op, subject(&e)) } else { told }
        })
    }
}

impl Store for Watched {
    fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities()
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.0.told("look up", &[parent], self.0.store.lookup(parent, name))
    }

    fn forget(&self, ino: Ino) {
        self.0.store.forget(ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.0.told("stat", &[ino], self.0.store.getattr(ino))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.0.told("change", &[ino], self.0.store.setattr(ino, set))
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        self.0.told("list", &[dir], self.0.store.read_dir(dir, start, sink))
    }

    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        self.0.store.left_out(dir)
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        let (attr, file) = self.0.told("create", &[parent], self.0.store.create(parent, name, new))?;
        Ok((attr, self.file(attr.ino, file)))
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.0.told("make a directory", &[parent], self.0.store.mkdir(parent, name, new))
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.0.told("make a link", &[parent], self.0.store.symlink(parent, name, target, caller))
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.0.told("make a node", &[parent], self.0.store.mknod(parent, name, kind, rdev, new))
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.0.told("link", &[parent, ino], self.0.store.link(ino, parent, name))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.told("read", &[ino], self.0.store.readlink(ino))
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.0.told("remove", &[parent], self.0.store.unlink(parent, name))
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.0.told("remove", &[parent], self.0.store.rmdir(parent, name))
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let renamed = self.0.store.rename(parent, name, new_parent, new_name, flags);
        self.0.told("rename", &[parent, new_parent], renamed)
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        self.0.told("open", &[ino], self.0.store.open(ino, access)).map(|file| self.file(ino, file))
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.0.told("read an attribute", &[ino], self.0.store.xattr(ino, name))
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.told("read the attributes", &[ino], self.0.store.xattr_names(ino))
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.0.told("set an attribute", &[ino], self.0.store.set_xattr(ino, name, value, set))
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.0.told("remove an attribute", &[ino], self.0.store.remove_xattr(ino, name))
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        self.0.told("sync", &[dir], self.0.store.sync_dir(dir))
    }

    fn sync_all(&self) -> Result<()> {
        self.0.told("sync", &[Ino::ROOT], self.0.store.sync_all())
    }

    fn statfs(&self) -> Result<StatFs> {
        self.0.told("ask for the space of", &[Ino::ROOT], self.0.store.statfs())
    }

    fn room_bytes(&self) -> Result<u64> {
        self.0.store.room_bytes()
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.0.store.path_of(ino)
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        self.0.store.name_of(ino)
    }
}

impl Watched {
    fn file(&self, ino: Ino, file: Arc<dyn StoreFile>) -> Arc<dyn StoreFile> {
        Arc::new(WatchedFile { mount: self.0.clone(), ino, file })
    }
}

/// An open file of the mount.
struct WatchedFile {
    mount: Arc<Mount>,
    ino: Ino,
    file: Arc<dyn StoreFile>,
}

impl StoreFile for WatchedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.mount.told("read", &[self.ino], self.file.read_at(offset, buf))
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.mount.told("write", &[self.ino], self.file.write_at(pieces))
    }

    fn times_tell(&self) -> Result<bool> {
        self.mount.told("write back", &[self.ino], self.file.times_tell())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.mount.told("truncate", &[self.ino], self.file.set_len(len))
    }

    fn len(&self) -> Result<u64> {
        self.mount.told("stat", &[self.ino], self.file.len())
    }

    fn flush(&self) -> Result<()> {
        self.mount.told("write", &[self.ino], self.file.flush())
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.mount.told("sync", &[self.ino], self.file.sync(data_only))
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.mount.told("allocate", &[self.ino], self.file.allocate(offset, len, mode))
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.mount.told("seek", &[self.ino], self.file.seek_data(offset))
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.mount.told("seek", &[self.ino], self.file.seek_hole(offset))
    }
}
