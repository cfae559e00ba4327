//! A store in memory: small, correct enough for the front end's tests, and with faults on demand.
//!
//! Names that begin with `panic` make `lookup` panic, and names that begin with `corrupt` make it fail; likewise `read`
//! of files so named after they were made known under another name. It keeps account of known inodes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, StatFs, Timestamp,
};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Mutex, MutexGuard};

pub struct MemStore {
    shared: bool,
    tree: Arc<Mutex<Tree>>,
}

struct Tree {
    nodes: HashMap<u64, Node>,
    known: HashSet<u64>,
    next: u64,
    syncs: u64,
    sync_fails: bool,
}

struct Node {
    attr: Attr,
    content: Content,
}

enum Content {
    File(Vec<u8>, Weak<()>),
    Dir(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
}

struct MemFile {
    ino: u64,
    tree: Arc<Mutex<Tree>>,
    _open: Arc<()>,
}

fn error<T>(kind: ErrorKind) -> Result<T> {
    Err(kind.into())
}

impl Tree {
    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino.0).ok_or(ErrorKind::Stale.into())
    }

    fn dir(&mut self, ino: Ino) -> Result<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.node(ino)?.content {
            Content::Dir(entries) => Ok(entries),
            _ => error(ErrorKind::NotDirectory),
        }
    }

    fn child(&mut self, parent: Ino, name: FileName<'_>) -> Result<u64> {
        self.dir(parent)?.get(name.as_bytes()).copied().ok_or(ErrorKind::NotFound.into())
    }

    fn add(&mut self, parent: Ino, name: FileName<'_>, new: &NewNode, kind: Kind, content: Content) -> Result<Attr> {
        if self.dir(parent)?.contains_key(name.as_bytes()) {
            return error(ErrorKind::Exists);
        }
        let ino = self.next;
        self.next += 1;
        let size = if let Content::Link(target) = &content { target.len() as u64 } else { 0 };
        let attr = Attr { size, perm: new.perm, uid: new.caller.uid, gid: new.caller.gid, ..attr_of(ino, kind) };
        self.nodes.insert(ino, Node { attr, content });
        self.dir(parent)?.insert(name.as_bytes().to_vec(), ino);
        self.touch(parent)?;
        self.known.insert(ino);
        Ok(attr)
    }

    fn touch(&mut self, ino: Ino) -> Result<()> {
        let attr = &mut self.node(ino)?.attr;
        (attr.mtime, attr.ctime) = (Timestamp::now(), Timestamp::now());
        Ok(())
    }

    fn remove(&mut self, parent: Ino, name: FileName<'_>, dir: bool) -> Result<()> {
        let ino = self.child(parent, name)?;
        match (&self.node(Ino(ino))?.content, dir) {
            (Content::Dir(entries), true) if !entries.is_empty() => return error(ErrorKind::NotEmpty),
            (Content::Dir(_), false) => return error(ErrorKind::IsDirectory),
            (Content::File(..) | Content::Link(_), true) => return error(ErrorKind::NotDirectory),
            _ => {}
        }
        self.dir(parent)?.remove(name.as_bytes());
        self.touch(parent)?;
        self.node(Ino(ino))?.attr.nlink = 0;
        self.collect(ino);
        Ok(())
    }

    /// Drops a node without a name once it is neither known nor open.
    fn collect(&mut self, ino: u64) {
        let open = |c: &Content| matches!(c, Content::File(_, open) if open.strong_count() > 0);
        let gone = self.nodes.get(&ino).is_some_and(|n| n.attr.nlink == 0 && !open(&n.content));
        if gone && !self.known.contains(&ino) {
            self.nodes.remove(&ino);
        }
    }
}

fn me() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn attr_of(ino: u64, kind: Kind) -> Attr {
    let now = Timestamp::now();
    let nlink = if kind == Kind::Directory { 2 } else { 1 };
    Attr {
        ino: Ino(ino),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        kind,
        perm: 0o755,
        nlink,
        uid: me().uid,
        gid: me().gid,
        rdev: 0,
    }
}

impl MemStore {
    pub fn new() -> MemStore {
        let root = Node { attr: attr_of(Ino::ROOT.0, Kind::Directory), content: Content::Dir(BTreeMap::new()) };
        let tree =
            Tree { nodes: HashMap::from([(1, root)]), known: HashSet::new(), next: 2, syncs: 0, sync_fails: false };
        MemStore { shared: false, tree: Arc::new(Mutex::new(tree)) }
    }

    /// Says that others may change it, so that caches expire.
    pub fn shared(mut self) -> MemStore {
        self.shared = true;
        self
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock()
    }

    /// `dirs` folders `d…` of `files` empty files `f…` each, made behind the engine's back.
    pub fn fill(&self, dirs: usize, files: usize) {
        let new = NewNode { perm: 0o755, umask: 0, caller: me() };
        let mut tree = self.tree();
        for d in 0..dirs {
            let name = format!("d{d:04}");
            let name = FileName::new(name.as_bytes()).expect("name");
            let dir = tree.add(Ino::ROOT, name, &new, Kind::Directory, Content::Dir(BTreeMap::new())).expect("new");
            for f in 0..files {
                let name = format!("f{f:05}");
                let name = FileName::new(name.as_bytes()).expect("name");
                tree.add(dir.ino, name, &new, Kind::File, Content::File(Vec::new(), Weak::new())).expect("new");
            }
        }
        tree.known.clear();
    }

    /// A file in the root, made behind the engine's back.
    pub fn plant(&self, name: &str, content: &[u8]) {
        let caller = me();
        let mut tree = self.tree();
        let name = FileName::new(name.as_bytes()).expect("name");
        let content_len = content.len() as u64;
        let content = Content::File(content.to_vec(), Weak::new());
        let attr =
            tree.add(Ino::ROOT, name, &NewNode { perm: 0o644, umask: 0, caller }, Kind::File, content).expect("new");
        tree.nodes.get_mut(&attr.ino.0).expect("just made").attr.size = content_len;
        tree.known.remove(&attr.ino.0);
    }

    /// Makes the last flush fail.
    pub fn fail_syncs(&self) {
        self.tree().sync_fails = true;
    }

    /// Other content for a file in the root, set behind the engine's back.
    pub fn replace(&self, name: &str, content: &[u8]) {
        let mut tree = self.tree();
        let ino = Ino(tree.child(Ino::ROOT, FileName::new(name.as_bytes()).expect("name")).expect("exists"));
        let node = tree.node(ino).expect("exists");
        if let Content::File(bytes, _) = &mut node.content {
            *bytes = content.to_vec();
        }
        node.attr.size = content.len() as u64;
        tree.touch(ino).expect("exists");
    }

    /// Inodes that the engine has not given back.
    pub fn known(&self) -> usize {
        self.tree().known.len()
    }

    /// How often everything was made durable.
    pub fn syncs(&self) -> u64 {
        self.tree().syncs
    }

    /// The content of a file in the root, as the store holds it now; empty if there is none.
    pub fn content(&self, name: &str) -> Vec<u8> {
        let mut tree = self.tree();
        let Ok(ino) = tree.child(Ino::ROOT, FileName::new(name.as_bytes()).expect("name")) else { return Vec::new() };
        match &tree.node(Ino(ino)).expect("exists").content {
            Content::File(bytes, _) => bytes.clone(),
            _ => panic!("{name} is not a file"),
        }
    }
}

impl Store for MemStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            unit_len_bytes: 32 << 10,
            buffer_writes: true,
            shared: self.shared,
            ..Capabilities::plain("memory")
        }
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        assert!(!name.as_bytes().starts_with(b"panic"), "asked for {name:?}");
        let mut tree = self.tree();
        let ino = tree.child(parent, name)?;
        if name.as_bytes().starts_with(b"corrupt") {
            return Err(FsError::new(ErrorKind::Corrupt).on("lookup", name.display()));
        }
        tree.known.insert(ino);
        Ok(tree.node(Ino(ino))?.attr)
    }

    fn forget(&self, ino: Ino) {
        let mut tree = self.tree();
        assert!(tree.known.remove(&ino.0), "forgot {ino:?}, which was not known");
        tree.collect(ino.0);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.tree().node(ino)?.attr)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut tree = self.tree();
        let node = tree.node(ino)?;
        if let Some(size) = set.size {
            match &mut node.content {
                Content::File(bytes, _) => bytes.resize(size as usize, 0),
                _ => return error(ErrorKind::InvalidInput),
            }
            (node.attr.size, node.attr.mtime) = (size, Timestamp::now());
        }
        let time = |t| if let SetTime::At(t) = t { t } else { Timestamp::now() };
        let attr = &mut node.attr;
        attr.perm = set.perm.unwrap_or(attr.perm);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = Timestamp::now();
        Ok(*attr)
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let entries: Vec<(Vec<u8>, u64, Kind)> = {
            let mut tree = self.tree();
            let names: Vec<(Vec<u8>, u64)> = tree.dir(dir)?.iter().map(|(n, i)| (n.clone(), *i)).collect();
            names
                .into_iter()
                .map(|(name, ino)| Ok((name, ino, tree.node(Ino(ino))?.attr.kind)))
                .collect::<Result<_>>()?
        };
        for (at, (name, ino, kind)) in entries.iter().enumerate().skip(start as usize) {
            let entry = DirEntry { cookie: at as u64 + 1, ino: Ino(*ino), kind: *kind, name: FileName::new(name)? };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        let attr = self.tree().add(parent, name, new, Kind::File, Content::File(Vec::new(), Weak::new()))?;
        Ok((attr, self.open(attr.ino, Access::Write)?))
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.tree().add(parent, name, new, Kind::Directory, Content::Dir(BTreeMap::new()))
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        let new = NewNode { perm: 0o777, umask: 0, caller };
        self.tree().add(parent, name, &new, Kind::Symlink, Content::Link(target.to_vec()))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.tree().node(ino)?.content {
            Content::Link(target) => Ok(target.clone()),
            _ => error(ErrorKind::InvalidInput),
        }
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.tree().remove(parent, name, false)
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.tree().remove(parent, name, true)
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let mut tree = self.tree();
        let moved = tree.child(parent, name)?;
        let target = tree.child(new_parent, new_name);
        if flags.contains(RenameFlags::EXCHANGE) {
            let target = target?;
            tree.dir(parent)?.insert(name.as_bytes().to_vec(), target);
        } else {
            match target {
                Ok(_) if flags.contains(RenameFlags::NOREPLACE) => return error(ErrorKind::Exists),
                Ok(same) if same == moved => return Ok(()),
                Ok(target) => {
                    let dir = matches!(tree.node(Ino(target))?.content, Content::Dir(_));
                    tree.remove(new_parent, new_name, dir)?;
                }
                Err(_) => {}
            }
            tree.dir(parent)?.remove(name.as_bytes());
        }
        tree.dir(new_parent)?.insert(new_name.as_bytes().to_vec(), moved);
        tree.touch(parent)?;
        tree.touch(new_parent)
    }

    fn open(&self, ino: Ino, _access: Access) -> Result<Arc<dyn StoreFile>> {
        let mut tree = self.tree();
        match &mut tree.node(ino)?.content {
            Content::File(_, open) => {
                let held = open.upgrade().unwrap_or_default();
                *open = Arc::downgrade(&held);
                Ok(Arc::new(MemFile { ino: ino.0, tree: self.tree.clone(), _open: held }))
            }
            _ => error(ErrorKind::InvalidInput),
        }
    }

    fn sync_dir(&self, _dir: Ino) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        let mut tree = self.tree();
        tree.syncs += 1;
        if tree.sync_fails { error(ErrorKind::NoSpace) } else { Ok(()) }
    }

    fn statfs(&self) -> Result<StatFs> {
        let files = self.tree().nodes.len() as u64;
        Ok(StatFs {
            block_size: 4096,
            blocks: 1 << 20,
            blocks_free: 1 << 19,
            blocks_available: 1 << 19,
            files,
            files_free: 0,
            name_len_max: 255,
        })
    }
}

impl MemFile {
    fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T> {
        let mut tree = self.tree.lock();
        let node = tree.node(Ino(self.ino))?;
        match &mut node.content {
            Content::File(bytes, _) => {
                let done = work(bytes);
                node.attr.size = bytes.len() as u64;
                Ok(done)
            }
            _ => error(ErrorKind::InvalidInput),
        }
    }

    /// A change of content. It has another time than the one before, be it of the same length: a kernel tells by that.
    fn change(&self, work: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.with(work)?;
        self.tree.lock().touch(Ino(self.ino))
    }
}

impl StoreFile for MemFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.with(|bytes| {
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            len
        })?;
        assert!(!buf[..read].starts_with(b"PANIC"), "asked to read a file that says so");
        if buf[..read].starts_with(b"CORRUPT") {
            return Err(FsError::new(ErrorKind::Corrupt).on("read", "/the/path"));
        }
        Ok(read)
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.change(|bytes| {
            for (offset, piece) in pieces {
                let (start, end) = (*offset as usize, *offset as usize + piece.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(piece);
            }
        })
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.change(|bytes| bytes.resize(len as usize, 0))
    }

    fn len(&self) -> Result<u64> {
        self.with(|bytes| bytes.len() as u64)
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        match mode {
            AllocateMode::Extend => self.change(|bytes| bytes.resize(bytes.len().max((offset + len) as usize), 0)),
            AllocateMode::KeepSize => Ok(()),
            _ => error(ErrorKind::NotSupported),
        }
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        // The node itself is collected with the next forget or unlink: `_open` still counts here.
        let mut tree = self.tree.lock();
        let named = tree.nodes.get(&self.ino).is_some_and(|n| n.attr.nlink > 0);
        let last = Arc::strong_count(&self._open) == 1;
        if !named && last && !tree.known.contains(&self.ino) {
            tree.nodes.remove(&self.ino);
        }
    }
}
