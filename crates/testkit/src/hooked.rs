//! A store that passes everything on, and tells a test first which name or listing it is asked for, or what it is to set.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::error::{FsError, Result};
use adit_core::store::{Capabilities, Created, DirEntry, NewNode, Spelling, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, XattrName, XattrSet};

/// What the store is about to be asked.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// A name in a directory, by itself or with others of a listing.
    Name(Ino, FileName<'a>),
    /// What is in a directory.
    Listing(Ino),
    /// To set attributes.
    Set(Ino, &'a SetAttr),
}

/// A [`Store`] that calls `hook` before it asks `inner`; what the hook waits for, the caller waits for.
pub struct Hooked<S, H> {
    inner: S,
    hook: H,
}

impl<S: Store, H: Fn(Asked<'_>) + Send + Sync> Hooked<S, H> {
    /// See there.
    pub fn new(inner: S, hook: H) -> Self {
        Hooked { inner, hook }
    }
}

impl<S: Store, H: Fn(Asked<'_>) + Send + Sync> Store for Hooked<S, H> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn spelling(&self, name: FileName<'_>) -> Spelling {
        self.inner.spelling(name)
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        (self.hook)(Asked::Name(parent, name));
        self.inner.lookup(parent, name)
    }

    fn lookup_listed(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        entries.iter().for_each(|entry| (self.hook)(Asked::Name(parent, entry.name)));
        self.inner.lookup_listed(parent, entries)
    }

    fn forget(&self, ino: Ino) {
        self.inner.forget(ino);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.inner.getattr(ino)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        (self.hook)(Asked::Set(ino, set));
        self.inner.setattr(ino, set)
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        (self.hook)(Asked::Listing(dir));
        self.inner.read_dir(dir, start, sink)
    }

    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        self.inner.left_out(dir)
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.inner.create(parent, name, new)
    }

    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        self.inner.create_in(parent, name, new)
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.inner.mkdir(parent, name, new)
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.inner.symlink(parent, name, target, caller)
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.inner.mknod(parent, name, kind, rdev, new)
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.inner.link(ino, parent, name)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(ino)
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.inner.unlink(parent, name)
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.inner.rmdir(parent, name)
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.inner.rename(parent, name, new_parent, new_name, flags)
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        self.inner.open(ino, access)
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.inner.xattr(ino, name)
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.xattr_names(ino)
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.inner.set_xattr(ino, name, value, set)
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.inner.remove_xattr(ino, name)
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn sync_all(&self) -> Result<()> {
        self.inner.sync_all()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.inner.statfs()
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.inner.path_of(ino)
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        self.inner.name_of(ino)
    }

    fn wind_up(&self) {
        self.inner.wind_up();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }
}
