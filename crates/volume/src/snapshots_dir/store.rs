//! The calls of a [`SnapshotsDir`]: each goes to the branch, to a snapshot, or to the directory itself.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::store::{Capabilities, Created, DirEntry, NewNode, Spelling, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, XattrName, XattrSet};
use adit_core::{ErrorKind, FsError, Result};

use super::file::{SnapshotFile, Using};
use super::{At, SNAPSHOTS_NAME, SnapshotsDir, is_hidden};

impl Store for SnapshotsDir {
    fn capabilities(&self) -> Capabilities {
        self.0.live.capabilities()
    }

    /// That `.snapshots` is absent is never to be kept: when an entry of that name goes, the directory shows in its place.
    fn spelling(&self, name: FileName<'_>) -> Spelling {
        match name.as_bytes() == SNAPSHOTS_NAME.as_bytes() {
            true => Spelling::Stored,
            false => self.0.live.spelling(name),
        }
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        match self.at(parent) {
            At::Live if is_hidden(parent, name) && self.0.numbers.is_some() => match self.0.live.lookup(parent, name) {
                Err(e) if e.is_not_found() => self.dir_attr(),
                found => found,
            },
            At::Live => self.0.live.lookup(parent, name),
            At::Dir => self.find(name),
            At::Snapshot(number) => self.learnt(number, self.snapshot(number)?.lookup(self.own(parent), name)?),
        }
    }

    fn lookup_listed(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        let each = |answer: Result<Attr>, number| answer.and_then(|attr| self.learnt(number, attr));
        match self.at(parent) {
            At::Live => self.0.live.lookup_listed(parent, entries),
            At::Dir => entries.iter().map(|entry| self.find(entry.name)).collect(),
            At::Snapshot(number) => match self.snapshot(number) {
                Ok(store) => {
                    let entries: Vec<_> = entries.iter().map(|e| DirEntry { ino: self.own(e.ino), ..*e }).collect();
                    let answers = store.lookup_listed(self.own(parent), &entries).into_iter();
                    answers.map(|answer| each(answer, number)).collect()
                }
                Err(e) => entries.iter().map(|_| Err(FsError::new(e.kind()))).collect(),
            },
        }
    }

    fn forget(&self, ino: Ino) {
        match self.at(ino) {
            At::Live => self.0.live.forget(ino),
            At::Dir => {}
            At::Snapshot(number) => {
                let mut slots = self.0.slots.lock();
                if let Some(slot) = slots.by_number.get_mut(&number) {
                    slot.known.remove(&self.own(ino).0);
                }
                slots.tidy(number);
                drop(slots);
                self.0.closed.notify_all();
            }
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        match self.at(ino) {
            At::Live => self.0.live.getattr(ino),
            At::Dir => self.dir_attr(),
            At::Snapshot(number) => self.snapshot(number)?.getattr(self.own(ino)).map(|attr| Attr { ino, ..attr }),
        }
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.check_live("setattr", ino)?;
        self.0.live.setattr(ino, set)
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        match self.at(dir) {
            At::Live => self.0.live.read_dir(dir, start, sink),
            At::Dir => self.list(start, sink),
            At::Snapshot(number) => self.snapshot(number)?.read_dir(self.own(dir), start, &mut |entry| {
                sink(DirEntry { ino: self.mapped(number, entry.ino), ..entry })
            }),
        }
    }

    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        match self.at(dir) {
            At::Live => self.0.live.left_out(dir),
            At::Dir => Vec::new(),
            At::Snapshot(number) => {
                self.snapshot(number).map_or_else(|_| Vec::new(), |store| store.left_out(self.own(dir)))
            }
        }
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.check_new("create", parent, name)?;
        self.0.live.create(parent, name, new)
    }

    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        self.check_new("create", parent, name)?;
        self.0.live.create_in(parent, name, new)
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.check_new("mkdir", parent, name)?;
        self.0.live.mkdir(parent, name, new)
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.check_new("symlink", parent, name)?;
        self.0.live.symlink(parent, name, target, caller)
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.check_new("mknod", parent, name)?;
        self.0.live.mknod(parent, name, kind, rdev, new)
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        if matches!(self.at(parent), At::Live) && !matches!(self.at(ino), At::Live) {
            return Err(FsError::new(ErrorKind::CrossDevice).on("link", name.display()));
        }
        self.check_new("link", parent, name)?;
        self.0.live.link(ino, parent, name)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.at(ino) {
            At::Live => self.0.live.readlink(ino),
            At::Dir => Err(ErrorKind::InvalidInput.into()),
            At::Snapshot(number) => self.snapshot(number)?.readlink(self.own(ino)),
        }
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.check_old("unlink", parent, name)?;
        self.0.live.unlink(parent, name)
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.check_old("rmdir", parent, name)?;
        self.0.live.rmdir(parent, name)
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        if matches!(self.at(parent), At::Live) != matches!(self.at(new_parent), At::Live) {
            return Err(FsError::new(ErrorKind::CrossDevice).on("rename", name.display()));
        }
        self.check_old("rename", parent, name)?;
        self.check_old("rename", new_parent, new_name)?;
        self.0.live.rename(parent, name, new_parent, new_name, flags)
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        let number = match self.at(ino) {
            At::Live => return self.0.live.open(ino, access),
            At::Dir => return Err(ErrorKind::IsDirectory.into()),
            At::Snapshot(number) => number,
        };
        // Counted first: whoever deletes the snapshot waits for what is counted.
        let store = {
            let mut slots = self.0.slots.lock();
            let slot = slots.known(number)?;
            slot.open += 1;
            slot.store.clone()
        };
        let using = Using { dir: self.clone(), number };
        let file = store.ok_or(ErrorKind::Stale)?.open(self.own(ino), access)?;
        Ok(Arc::new(SnapshotFile { file, _using: using }))
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        match self.at(ino) {
            At::Live => self.0.live.xattr(ino, name),
            At::Dir => Err(ErrorKind::NoAttribute.into()),
            At::Snapshot(number) => self.snapshot(number)?.xattr(self.own(ino), name),
        }
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.at(ino) {
            At::Live => self.0.live.xattr_names(ino),
            At::Dir => Ok(Vec::new()),
            At::Snapshot(number) => self.snapshot(number)?.xattr_names(self.own(ino)),
        }
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.check_live("setxattr", ino)?;
        self.0.live.set_xattr(ino, name, value, set)
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.check_live("removexattr", ino)?;
        self.0.live.remove_xattr(ino, name)
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        match self.at(dir) {
            At::Live => self.0.live.sync_dir(dir),
            At::Dir | At::Snapshot(_) => Ok(()),
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.0.live.sync_all()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.0.live.statfs()
    }

    fn room_bytes(&self) -> Result<u64> {
        self.0.live.room_bytes()
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        match self.at(ino) {
            At::Live => self.0.live.path_of(ino),
            At::Dir => Some(format!("/{SNAPSHOTS_NAME}")),
            At::Snapshot(number) => {
                let (store, name) = {
                    let mut slots = self.0.slots.lock();
                    let slot = slots.known(number).ok()?;
                    (slot.store.clone()?, slot.name.clone())
                };
                let path = store.path_of(self.own(ino))?;
                Some(format!("/{SNAPSHOTS_NAME}/{name}{}", path.trim_end_matches('/')))
            }
        }
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        match self.at(ino) {
            At::Live => self.0.live.name_of(ino),
            At::Dir => None,
            At::Snapshot(number) => {
                let (dir, name) = self.snapshot(number).ok()?.name_of(self.own(ino))?;
                Some((self.mapped(number, dir), name))
            }
        }
    }

    fn wind_up(&self) {
        self.0.live.wind_up();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.live.counters()
    }
}
