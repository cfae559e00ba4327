//! A store in memory that is strict about references: it answers only for inodes that are known.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::error::{ErrorKind, FsError, Result};
use crate::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use crate::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, StatFs, Timestamp,
};

enum Body {
    Dir(BTreeMap<Vec<u8>, u64>),
    File(Vec<u8>),
    Link(Vec<u8>),
}

struct Object {
    body: Body,
    perm: u16,
    mtime: Timestamp,
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<u64, Object>,
    known: BTreeSet<u64>,
    next: u64,
    /// Names whose lookup and writes fail as corrupt.
    broken: BTreeSet<Vec<u8>>,
    /// Bytes that may still be written.
    room: Option<usize>,
}

#[derive(Clone)]
pub(crate) struct MemStore(Arc<Mutex<Inner>>);

impl MemStore {
    pub(crate) fn new() -> Self {
        let mut inner = Inner { next: 2, ..Inner::default() };
        inner.objects.insert(1, object(Body::Dir(BTreeMap::new()), 0o755));
        inner.known.insert(1);
        MemStore(Arc::new(Mutex::new(inner)))
    }

    pub(super) fn break_name(&self, name: &[u8]) {
        self.0.lock().broken.insert(name.to_vec());
    }

    /// Enters the directory `ino` in `dir` as well.
    pub(super) fn enter_again(&self, ino: Ino, dir: Ino, name: &[u8]) {
        if let Some(Object { body: Body::Dir(entries), .. }) = self.0.lock().objects.get_mut(&dir.0) {
            entries.insert(name.to_vec(), ino.0);
        }
    }

    pub(super) fn limit(&self, bytes: usize) {
        self.0.lock().room = Some(bytes);
    }

    /// Inodes known besides the root.
    pub(super) fn known(&self) -> usize {
        self.0.lock().known.len() - 1
    }
}

fn object(body: Body, perm: u16) -> Object {
    Object { body, perm, mtime: Timestamp { secs: 1, nanos: 0 } }
}

impl Inner {
    fn attr(&self, ino: u64) -> Attr {
        let object = &self.objects[&ino];
        let (kind, size) = match &object.body {
            Body::Dir(_) => (Kind::Directory, 0),
            Body::File(bytes) => (Kind::File, bytes.len()),
            Body::Link(target) => (Kind::Symlink, target.len()),
        };
        let time = object.mtime;
        Attr {
            ino: Ino(ino),
            size: size as u64,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            kind,
            perm: object.perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    }

    fn entries(&mut self, dir: Ino) -> Result<&mut BTreeMap<Vec<u8>, u64>> {
        assert!(self.known.contains(&dir.0), "{dir:?} is not known");
        match &mut self.objects.get_mut(&dir.0).expect("known").body {
            Body::Dir(entries) => Ok(entries),
            _ => Err(ErrorKind::NotDirectory.into()),
        }
    }

    fn add(&mut self, parent: Ino, name: FileName<'_>, new: Object) -> Result<Attr> {
        if self.entries(parent)?.contains_key(name.as_bytes()) {
            return Err(ErrorKind::Exists.into());
        }
        let ino = self.next;
        self.next += 1;
        self.entries(parent)?.insert(name.as_bytes().to_vec(), ino);
        self.objects.insert(ino, new);
        self.known.insert(ino);
        Ok(self.attr(ino))
    }
}

impl MemStore {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl Store for MemStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain("memory")
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let mut inner = self.inner();
        let ino = *inner.entries(parent)?.get(name.as_bytes()).ok_or(ErrorKind::NotFound)?;
        if inner.broken.contains(name.as_bytes()) {
            return Err(ErrorKind::Corrupt.into());
        }
        inner.known.insert(ino);
        Ok(inner.attr(ino))
    }

    fn forget(&self, ino: Ino) {
        assert!(ino != Ino::ROOT && self.inner().known.remove(&ino.0), "{ino:?} was not known");
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inner = self.inner();
        assert!(inner.known.contains(&ino.0));
        Ok(inner.attr(ino.0))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut inner = self.inner();
        assert!(inner.known.contains(&ino.0));
        let object = inner.objects.get_mut(&ino.0).ok_or(ErrorKind::Stale)?;
        object.perm = set.perm.unwrap_or(object.perm);
        if let Some(SetTime::At(time)) = set.mtime {
            object.mtime = time;
        }
        Ok(inner.attr(ino.0))
    }

    fn read_dir(&self, dir: Ino, _: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let mut inner = self.inner();
        // Descending, so that sorting is seen to be done by the caller.
        let entries: Vec<_> = inner.entries(dir)?.clone().into_iter().rev().collect();
        for (at, (name, ino)) in entries.iter().enumerate() {
            let kind = inner.attr(*ino).kind;
            let name = FileName::new(name)?;
            if sink(DirEntry { cookie: at as u64 + 1, ino: Ino(*ino), kind, name }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        let attr = self.inner().add(parent, name, object(Body::File(Vec::new()), new.perm))?;
        Ok((attr, Arc::new(MemFile(self.clone(), attr.ino.0))))
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.inner().add(parent, name, object(Body::Dir(BTreeMap::new()), new.perm))
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], _: Caller) -> Result<Attr> {
        self.inner().add(parent, name, object(Body::Link(target.to_vec()), 0o777))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.inner().objects[&ino.0].body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(ErrorKind::InvalidInput.into()),
        }
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.inner().entries(parent)?.remove(name.as_bytes()).map(drop).ok_or(ErrorKind::NotFound.into())
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let mut inner = self.inner();
        let ino = *inner.entries(parent)?.get(name.as_bytes()).ok_or(ErrorKind::NotFound)?;
        match &inner.objects[&ino].body {
            Body::Dir(entries) if entries.is_empty() => {}
            _ => return Err(ErrorKind::NotEmpty.into()),
        }
        inner.entries(parent)?.remove(name.as_bytes());
        Ok(())
    }

    fn rename(&self, dir: Ino, name: FileName<'_>, to: Ino, new: FileName<'_>, flags: RenameFlags) -> Result<()> {
        let mut inner = self.inner();
        let ino = *inner.entries(dir)?.get(name.as_bytes()).ok_or(ErrorKind::NotFound)?;
        if let Some(old) = inner.entries(to)?.get(new.as_bytes()).copied() {
            if flags.contains(RenameFlags::NOREPLACE) {
                return Err(ErrorKind::Exists.into());
            }
            if inner.attr(old).kind == Kind::Directory && inner.attr(ino).kind != Kind::Directory {
                return Err(ErrorKind::IsDirectory.into());
            }
        }
        inner.entries(dir)?.remove(name.as_bytes());
        inner.entries(to)?.insert(new.as_bytes().to_vec(), ino);
        Ok(())
    }

    fn open(&self, ino: Ino, _: Access) -> Result<Arc<dyn StoreFile>> {
        assert!(self.inner().known.contains(&ino.0));
        Ok(Arc::new(MemFile(self.clone(), ino.0)))
    }

    fn sync_dir(&self, _: Ino) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs::default())
    }
}

struct MemFile(MemStore, u64);

impl MemFile {
    fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        match &mut self.0.inner().objects.get_mut(&self.1).expect("objects are never dropped").body {
            Body::File(bytes) => work(bytes),
            _ => panic!("not a file"),
        }
    }
}

impl StoreFile for MemFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.with(|bytes| {
            let rest = bytes.get(offset as usize..).unwrap_or(&[]);
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            len
        }))
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        for (offset, piece) in pieces {
            if let Some(room) = &mut self.0.inner().room {
                *room = room.checked_sub(piece.len()).ok_or(FsError::new(ErrorKind::NoSpace))?;
            }
            self.with(|bytes| {
                let end = *offset as usize + piece.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset as usize..end].copy_from_slice(piece);
            });
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.with(|bytes| bytes.resize(len as usize, 0));
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.with(|bytes| bytes.len() as u64))
    }

    fn sync(&self, _: bool) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: u64, _: u64, _: AllocateMode) -> Result<()> {
        Err(ErrorKind::NotSupported.into())
    }
}
