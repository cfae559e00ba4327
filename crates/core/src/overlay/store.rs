//! The overlay as a [`Store`].

use std::ops::ControlFlow;
use std::sync::Arc;

use super::content::Work;
use super::create::check_node_kind;
use super::{KIND, Overlay, Shared};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::{Capabilities, Created, DirEntry, NewNode, Store, StoreFile};
use crate::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, XattrName, XattrSet};

impl Overlay {
    /// Runs one call; what it left unused is forgotten after it.
    fn run<R>(&self, call: impl FnOnce(&Arc<Shared>) -> Result<R>) -> Result<R> {
        let shared = self.shared();
        let result = call(&shared);
        shared.settle();
        result
    }
}

impl Store for Overlay {
    fn capabilities(&self) -> Capabilities {
        let shared = self.shared();
        let (upper, lower) = (shared.upper.store.capabilities(), shared.lower.store.capabilities());
        Capabilities {
            read_only: upper.read_only,
            unit_len_bytes: upper.unit_len_bytes,
            stable_cookies: true,
            xattrs: true,
            acls: upper.acls && (lower.acls || !lower.xattrs),
            whiteouts: upper.whiteouts,
            kernel_writeback: upper.kernel_writeback,
            remote: lower.remote || upper.remote,
            ..Capabilities::plain(KIND)
        }
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.run(|shared| {
            let dir = shared.node(parent)?;
            let _names = shared.names.read();
            let entry = shared.entry(&dir, name)?;
            shared.table.learn(&entry.node);
            Ok(entry.attr)
        })
    }

    fn forget(&self, ino: Ino) {
        let shared = self.shared();
        shared.table.forget(ino);
        shared.settle();
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let shared = self.shared();
        shared.node(ino).and_then(|node| shared.getattr(&node))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.run(|shared| {
            let node = shared.node(ino)?;
            let Some(len) = set.size else { return shared.setattr(&node, set) };
            match node.kind {
                Kind::File => {}
                Kind::Directory => return Err(ErrorKind::IsDirectory.into()),
                _ => return Err(ErrorKind::InvalidInput.into()),
            }
            let content = shared.content(&node);
            shared.set_len(&Work { node: &node, content: &content }, len, set)
        })
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        self.run(|shared| shared.read_dir(&*shared.directory(dir)?, start, sink))
    }

    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        let shared = self.shared();
        shared.directory(dir).map_or_else(|_| Vec::new(), |dir| shared.left_out(&dir))
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.create_in(parent, name, new).map(|created| (created.attr, created.file))
    }

    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        self.run(|shared| shared.create(&shared.directory(parent)?, name, new))
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.run(|shared| {
            let made = shared.make(&shared.directory(parent)?, name, &mut |tx, dir| tx.mkdir(dir, name, new))?;
            Ok(made.1)
        })
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.run(|shared| {
            let dir = shared.directory(parent)?;
            let made = shared.make(&dir, name, &mut |tx, dir| tx.symlink(dir, name, target, caller))?;
            Ok(made.1)
        })
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        check_node_kind(kind)?;
        self.run(|shared| {
            let dir = shared.directory(parent)?;
            let made = shared.make(&dir, name, &mut |tx, dir| tx.mknod(dir, name, kind, rdev, new))?;
            Ok(made.1)
        })
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.run(|shared| {
            let node = shared.node(ino)?;
            let attr = shared.link(&node, &shared.directory(parent)?, name)?;
            shared.table.learn(&node);
            Ok(attr)
        })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let shared = self.shared();
        shared.node(ino).and_then(|node| shared.readlink(&node))
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.run(|shared| shared.unlink(&shared.directory(parent)?, name))
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.run(|shared| shared.rmdir(&shared.directory(parent)?, name))
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.run(|shared| {
            let (from, to) = (shared.node(parent)?, shared.node(new_parent)?);
            shared.rename((&from, name), (&to, new_name), flags)
        })
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        self.run(|shared| shared.open(&shared.node(ino)?, access))
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let shared = self.shared();
        shared.node(ino).and_then(|node| shared.xattr(&node, name))
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        let shared = self.shared();
        shared.node(ino).and_then(|node| shared.xattr_names(&node))
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.run(|shared| shared.set_xattr(&shared.node(ino)?, name, value, set))
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.run(|shared| shared.remove_xattr(&shared.node(ino)?, name))
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        let shared = self.shared();
        match shared.directory(dir)?.upper() {
            Some(upper) => shared.upper.store.sync_dir(upper),
            // What leads here may be the upper's.
            None => shared.upper.store.sync_all(),
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.shared().upper.store.sync_all()
    }

    /// Of the upper: that is what can be used up.
    fn statfs(&self) -> Result<StatFs> {
        self.shared().upper.store.statfs()
    }

    fn room_bytes(&self) -> Result<u64> {
        self.shared().upper.store.room_bytes()
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        let shared = self.shared();
        shared.node(ino).ok().and_then(|node| shared.path_of(&node))
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let node = self.shared().node(ino).ok()?;
        if node.is_directory() {
            return None;
        }
        node.place().map(|place| (place.dir.ino, place.name.into_vec()))
    }

    fn wind_up(&self) {
        let shared = self.shared();
        shared.upper.store.wind_up();
        shared.lower.store.wind_up();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.shared().counters()
    }
}
