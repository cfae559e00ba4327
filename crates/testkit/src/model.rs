//! The reference filesystem: plain maps and byte vectors, obviously right, and slow.
//!
//! [`MemoryStore`] is a whole [`Store`], so it is both the oracle that other stores are compared with (what a store
//! cannot hold is said in [`Limits`], and then the oracle refuses it too) and the store of the engine's own tests. It
//! is strict: an inode that the caller does not hold a reference to is `Stale`, even if it exists.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, Timestamp, XattrName,
    XattrSet,
};
use adit_core::{ErrorKind, Result, acl};
use parking_lot::Mutex;

use crate::tree::{self, Body, NodeId, Tree};

/// A block of this many zeros, in its place, is a hole. Whether it was ever written plays no part, as POSIX allows.
const HOLE_LEN_BYTES: usize = 4096;
/// Longest file of the memory store, in bytes.
pub const FILE_LEN_MAX_BYTES: u64 = 1 << 30;

/// What the modelled store can hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Hard links; else `NotPermitted`.
    pub hard_links: bool,
    /// Device nodes, FIFOs and sockets; else `NotPermitted`.
    pub special_nodes: bool,
    /// `AllocateMode::PunchHole` and `Zero`; else `NotSupported`.
    pub holes: bool,
    /// `AllocateMode::Extend` and `KeepSize`; else `NotSupported`.
    pub reserves: bool,
    /// Names that are not UTF-8; else `IllegalName`.
    pub any_bytes: bool,
    /// Longest name in bytes; else `NameTooLong`.
    pub name_len_max: usize,
    /// The unit that the store reports and that random operations aim at.
    pub unit_len_bytes: u32,
    /// Whether small writes are to be collected above (see [`Capabilities`]).
    pub buffer_writes: bool,
    /// Whether caches above must expire (see [`Capabilities`]).
    pub shared: bool,
    /// Extended attributes; else `NotSupported`.
    pub xattrs: bool,
    /// POSIX ACLs; else they are as any other extended attribute.
    pub acls: bool,
    /// Renames that leave a whiteout; else `InvalidInput`. Through a mount only root may.
    pub whiteouts: bool,
    /// Whether a listing goes on from any cookie (see [`Capabilities`]).
    pub stable_cookies: bool,
    /// Whether names are to be kept and looked up ahead above (see [`Capabilities`]).
    pub slow_names: bool,
}

impl Default for Limits {
    /// Everything that POSIX has and any user may do, in units of 32 KiB.
    fn default() -> Self {
        Limits {
            hard_links: true,
            special_nodes: true,
            holes: true,
            reserves: true,
            any_bytes: true,
            name_len_max: 255,
            unit_len_bytes: 32 << 10,
            buffer_writes: true,
            shared: false,
            xattrs: true,
            acls: true,
            whiteouts: false,
            stable_cookies: false,
            slow_names: false,
        }
    }
}

#[derive(Default)]
struct Uses {
    known: BTreeSet<NodeId>,
    open: BTreeMap<NodeId, usize>,
}

struct State {
    tree: Tree<Vec<u8>>,
    uses: Uses,
}

impl State {
    /// Drops a node that nothing refers to any more.
    fn reap(&mut self, id: NodeId) {
        let used = self.uses.known.contains(&id) || self.uses.open.contains_key(&id);
        if !used && self.tree.node(id).is_ok_and(|n| n.attr.nlink == 0) {
            self.tree.nodes.remove(&id);
        }
    }

    /// `ino`, if the caller holds a reference.
    fn known(&self, ino: Ino) -> Result<NodeId> {
        if ino == Ino::ROOT || self.uses.known.contains(&ino.0) { Ok(ino.0) } else { Err(ErrorKind::Stale.into()) }
    }

    fn attr(&self, id: NodeId) -> Result<Attr> {
        Ok(self.tree.attr(id, |f| f.len() as u64)?)
    }

    fn learn(&mut self, id: NodeId) -> Result<Attr> {
        if id != Ino::ROOT.0 {
            self.uses.known.insert(id);
        }
        self.attr(id)
    }

    fn content(&mut self, id: NodeId) -> Result<&mut Vec<u8>> {
        self.tree.node(id)?;
        match &mut self.tree.node_mut(id).body {
            Body::File(content) => Ok(content),
            Body::Directory { .. } => Err(ErrorKind::IsDirectory.into()),
            _ => Err(ErrorKind::InvalidInput.into()),
        }
    }

    fn touch(&mut self, id: NodeId) {
        let attr = &mut self.tree.node_mut(id).attr;
        attr.mtime = Timestamp::now();
        attr.ctime = attr.mtime;
    }

    fn open(&mut self, id: NodeId) {
        *self.uses.open.entry(id).or_insert(0) += 1;
    }
}

/// See the module's notes. Cheap to clone: clones share one filesystem.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    limits: Limits,
    stray_forgets: Arc<AtomicU64>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new(Limits::default())
    }
}

impl MemoryStore {
    /// An empty filesystem whose root belongs to this process's user.
    pub fn new(limits: Limits) -> Self {
        let mut tree = Tree::new();
        let root = tree.add_root(0o755, crate::own_caller());
        debug_assert_eq!(root, Ino::ROOT.0);
        let state = Arc::new(Mutex::new(State { tree, uses: Uses::default() }));
        MemoryStore { state, limits, stray_forgets: Arc::default() }
    }

    /// Inodes that the caller holds a reference to, the root not counted.
    pub fn known_count(&self) -> usize {
        self.state.lock().uses.known.len()
    }

    /// Files that are open, each once.
    pub fn open_count(&self) -> usize {
        self.state.lock().uses.open.len()
    }

    /// Nodes that exist, with and without a name, the root counted.
    pub fn node_count(&self) -> usize {
        self.state.lock().tree.nodes.len()
    }

    /// Calls of `forget` for an inode that was not known: a fault of the caller.
    pub fn stray_forgets(&self) -> u64 {
        self.stray_forgets.load(Ordering::Relaxed)
    }

    fn check_name(&self, name: FileName<'_>) -> Result<()> {
        if name.as_bytes().len() > self.limits.name_len_max {
            return Err(ErrorKind::NameTooLong.into());
        }
        if !self.limits.any_bytes && std::str::from_utf8(name.as_bytes()).is_err() {
            return Err(ErrorKind::IllegalName.into());
        }
        Ok(())
    }

    fn insert(
        &self,
        parent: Ino,
        name: FileName<'_>,
        kind: Kind,
        new: &NewNode,
        (rdev, body): (u32, Body<Vec<u8>>),
    ) -> Result<Attr> {
        self.check_name(name)?;
        let mut state = self.state.lock();
        let parent = state.known(parent)?;
        let new = new.in_directory(&state.tree.node(parent)?.attr, kind);
        let default = state.tree.node(parent)?.xattrs.get(XattrName::ACL_DEFAULT.as_bytes()).cloned();
        let inherited = acl::inherit(default.as_deref().filter(|_| self.limits.acls), kind, &new)?;
        let attr = Attr { rdev, ..tree::fresh(kind, inherited.access.perm, new.caller) };
        let id = state.tree.insert(parent, name.as_bytes(), attr, body)?;
        let xattrs = &mut state.tree.node_mut(id).xattrs;
        for (name, value) in
            [(XattrName::ACL_ACCESS, inherited.access.acl), (XattrName::ACL_DEFAULT, inherited.default)]
        {
            if let Some(value) = value {
                xattrs.insert(name.as_bytes().to_vec(), value);
            }
        }
        state.learn(id)
    }

    /// Applies what ACLs ask for: the permission bits that go with the value, and what to keep of it.
    fn acl_of(&self, name: XattrName<'_>, value: &[u8], attr: &Attr) -> Result<(u16, Option<Vec<u8>>)> {
        match name {
            XattrName::ACL_ACCESS if self.limits.acls => {
                let access = acl::access(value, attr.perm)?;
                Ok((access.perm, access.acl))
            }
            XattrName::ACL_DEFAULT if self.limits.acls => Ok((attr.perm, acl::default(value, attr.kind)?)),
            _ => Ok((attr.perm, Some(value.to_vec()))),
        }
    }

    /// The cookie of the entry with this number and name: its number, or where cookies are stable a hash of its name, of
    /// which two that agree are not to be expected.
    fn cookie(&self, number: usize, name: &[u8]) -> u64 {
        if !self.limits.stable_cookies {
            return number as u64 + 1;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(name);
        hasher.finish() >> 2 | 1
    }

    fn check_xattrs(&self) -> Result<()> {
        if self.limits.xattrs { Ok(()) } else { Err(ErrorKind::NotSupported.into()) }
    }

    fn handle(&self, id: NodeId) -> Arc<dyn StoreFile> {
        Arc::new(MemoryFile { state: self.state.clone(), id, limits: self.limits })
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            unit_len_bytes: self.limits.unit_len_bytes,
            buffer_writes: self.limits.buffer_writes,
            shared: self.limits.shared,
            stable_cookies: self.limits.stable_cookies,
            slow_names: self.limits.slow_names,
            xattrs: self.limits.xattrs,
            acls: self.limits.acls,
            whiteouts: self.limits.whiteouts,
            ..Capabilities::plain("memory")
        }
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let mut state = self.state.lock();
        let parent = state.known(parent)?;
        let id = state.tree.lookup(parent, name.as_bytes())?;
        state.learn(id)
    }

    fn forget(&self, ino: Ino) {
        let mut state = self.state.lock();
        if !state.uses.known.remove(&ino.0) {
            self.stray_forgets.fetch_add(1, Ordering::Relaxed);
        }
        state.reap(ino.0);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let state = self.state.lock();
        state.attr(state.known(ino)?)
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let mut state = self.state.lock();
        let id = state.known(ino)?;
        if let Some(size) = set.size {
            set_len(&mut state, id, size)?;
        }
        let node = state.tree.node_mut(id);
        tree::apply(&mut node.attr, set);
        if let Some(acl) = node.xattrs.get_mut(XattrName::ACL_ACCESS.as_bytes())
            && self.limits.acls
            && let Some(perm) = set.perm
        {
            *acl = acl::chmod(acl, perm)?;
        }
        state.attr(id)
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        // Copied out, so that the sink may call the store.
        let mut entries: Vec<(u64, Vec<u8>, NodeId, Kind)> = {
            let state = self.state.lock();
            let entries = state.tree.entries(state.known(dir)?)?.iter().enumerate();
            let kind = |id| state.tree.nodes[id].attr.kind;
            entries.map(|(i, (name, id))| (self.cookie(i, name), name.clone(), *id, kind(id))).collect()
        };
        entries.sort_unstable_by_key(|(cookie, ..)| *cookie);
        for (cookie, name, id, kind) in entries.iter().filter(|(cookie, ..)| *cookie > start) {
            let entry = DirEntry { cookie: *cookie, ino: Ino(*id), kind: *kind, name: FileName::new(name)? };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        let attr = self.insert(parent, name, Kind::File, new, (0, Body::File(Vec::new())))?;
        self.state.lock().open(attr.ino.0);
        Ok((attr, self.handle(attr.ino.0)))
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.insert(parent, name, Kind::Directory, new, (0, tree::empty_directory()))
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        if target.is_empty() || target.len() > 4095 || target.contains(&0) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let new = NewNode { perm: 0o777, umask: 0, caller };
        self.insert(parent, name, Kind::Symlink, &new, (0, Body::Symlink(target.to_vec())))
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        let body = match kind {
            Kind::File => Body::File(Vec::new()),
            Kind::Directory | Kind::Symlink => return Err(ErrorKind::InvalidInput.into()),
            _ if !self.limits.special_nodes => return Err(ErrorKind::NotPermitted.into()),
            _ => Body::Special,
        };
        self.insert(parent, name, kind, new, (rdev, body))
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        if !self.limits.hard_links {
            return Err(ErrorKind::NotPermitted.into());
        }
        self.check_name(name)?;
        let mut state = self.state.lock();
        let (id, parent) = (state.known(ino)?, state.known(parent)?);
        state.tree.link(id, parent, name.as_bytes())?;
        state.learn(id)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let state = self.state.lock();
        match &state.tree.node(state.known(ino)?)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(ErrorKind::InvalidInput.into()),
        }
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let mut state = self.state.lock();
        let parent = state.known(parent)?;
        let id = state.tree.unlink(parent, name.as_bytes())?;
        state.reap(id);
        Ok(())
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let mut state = self.state.lock();
        let parent = state.known(parent)?;
        let id = state.tree.rmdir(parent, name.as_bytes())?;
        state.reap(id);
        Ok(())
    }

    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let (parent, new_parent) = (state.known(parent)?, state.known(new_parent)?);
        if flags.contains(RenameFlags::WHITEOUT) && !self.limits.whiteouts {
            return Err(ErrorKind::InvalidInput.into());
        }
        let replaced = state.tree.lookup(new_parent, new_name.as_bytes()).ok();
        self.check_name(new_name)?;
        state.tree.rename(parent, name.as_bytes(), new_parent, new_name.as_bytes(), flags)?;
        if let Some(id) = replaced {
            state.reap(id);
        }
        Ok(())
    }

    fn open(&self, ino: Ino, _access: Access) -> Result<Arc<dyn StoreFile>> {
        let mut state = self.state.lock();
        let id = state.known(ino)?;
        state.content(id)?;
        state.open(id);
        Ok(self.handle(id))
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.check_xattrs()?;
        let state = self.state.lock();
        let node = state.tree.node(state.known(ino)?)?;
        Ok(node.xattrs.get(name.as_bytes()).ok_or(ErrorKind::NoAttribute)?.clone())
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let node = state.tree.node(state.known(ino)?)?;
        Ok(node.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect())
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.check_xattrs()?;
        let mut state = self.state.lock();
        let id = state.known(ino)?;
        let (perm, value) = self.acl_of(name, value, &state.attr(id)?)?;
        let node = state.tree.node_mut(id);
        match (set, node.xattrs.contains_key(name.as_bytes())) {
            (XattrSet::Create, true) => return Err(ErrorKind::Exists.into()),
            (XattrSet::Replace, false) => return Err(ErrorKind::NoAttribute.into()),
            _ => {}
        }
        match value {
            Some(value) => node.xattrs.insert(name.as_bytes().to_vec(), value),
            None => node.xattrs.remove(name.as_bytes()),
        };
        (node.attr.perm, node.attr.ctime) = (perm, Timestamp::now());
        Ok(())
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.check_xattrs()?;
        let mut state = self.state.lock();
        let id = state.known(ino)?;
        let node = state.tree.node_mut(id);
        node.xattrs.remove(name.as_bytes()).ok_or(ErrorKind::NoAttribute)?;
        node.attr.ctime = Timestamp::now();
        Ok(())
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        let state = self.state.lock();
        state.tree.entries(state.known(dir)?)?;
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        let nodes = self.node_count() as u64;
        Ok(StatFs {
            block_size: 4096,
            blocks: 1 << 30,
            blocks_free: 1 << 29,
            blocks_available: 1 << 29,
            files: 1 << 30,
            files_free: (1 << 30) - nodes,
            name_len_max: self.limits.name_len_max as u32,
        })
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("memory.nodes", self.node_count() as u64),
            ("memory.known", self.known_count() as u64),
            ("memory.open", self.open_count() as u64),
        ]
    }
}

fn set_len(state: &mut State, id: NodeId, len: u64) -> Result<()> {
    let content = state.content(id)?;
    if len > FILE_LEN_MAX_BYTES {
        return Err(ErrorKind::FileTooLarge.into());
    }
    content.resize(len as usize, 0);
    state.touch(id);
    Ok(())
}

/// An open file of a [`MemoryStore`].
struct MemoryFile {
    state: Arc<Mutex<State>>,
    id: NodeId,
    limits: Limits,
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let count = state.uses.open.get_mut(&self.id).expect("counted at open");
        *count -= 1;
        if *count == 0 {
            state.uses.open.remove(&self.id);
        }
        state.reap(self.id);
    }
}

/// The end of a range, if a file may reach so far.
fn end_of(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_LEN_MAX_BYTES => Ok(end),
        _ => Err(ErrorKind::FileTooLarge.into()),
    }
}

impl StoreFile for MemoryFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut state = self.state.lock();
        let content = state.content(self.id)?;
        let from = content.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let len = buf.len().min(content.len() - from);
        buf[..len].copy_from_slice(&content[from..from + len]);
        Ok(len)
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let mut state = self.state.lock();
        for &(offset, bytes) in pieces {
            let end = end_of(offset, bytes.len() as u64)? as usize;
            let content = state.content(self.id)?;
            if !bytes.is_empty() {
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(bytes);
            }
        }
        state.touch(self.id);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        set_len(&mut self.state.lock(), self.id, len)
    }

    fn len(&self) -> Result<u64> {
        Ok(self.state.lock().content(self.id)?.len() as u64)
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        let mut state = self.state.lock();
        next_block(state.content(self.id)?, offset, true).ok_or_else(|| ErrorKind::NoData.into())
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        let mut state = self.state.lock();
        let content = state.content(self.id)?;
        let len = content.len() as u64;
        let hole = next_block(content, offset, false);
        if offset < len { Ok(hole.unwrap_or(len)) } else { Err(ErrorKind::NoData.into()) }
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let end = end_of(offset, len)?;
        let mut state = self.state.lock();
        let content = state.content(self.id)?;
        let zeros = matches!(mode, AllocateMode::PunchHole | AllocateMode::Zero { .. });
        if !(if zeros { self.limits.holes } else { self.limits.reserves }) {
            return Err(ErrorKind::NotSupported.into());
        }
        if zeros {
            let (from, to) = (content.len().min(offset as usize), content.len().min(end as usize));
            content[from..to].fill(0);
        }
        if matches!(mode, AllocateMode::Extend | AllocateMode::Zero { keep_size: false }) {
            content.resize(content.len().max(end as usize), 0);
        }
        state.touch(self.id);
        Ok(())
    }
}

/// The first offset at or after `offset` whose block holds data, or does not; the end of the file, a hole, if there is
/// none. `None` where `offset` is not before the end.
fn next_block(content: &[u8], offset: u64, data: bool) -> Option<u64> {
    let offset = usize::try_from(offset).ok().filter(|&offset| offset < content.len())?;
    let first = offset / HOLE_LEN_BYTES;
    let blocks = content.chunks(HOLE_LEN_BYTES).enumerate().skip(first);
    let found = blocks.filter(|(_, block)| block.iter().any(|&b| b != 0) == data).map(|(at, _)| at * HOLE_LEN_BYTES);
    found.map(|at| at.max(offset) as u64).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(s: &str) -> FileName<'_> {
        FileName::new(s.as_bytes()).unwrap()
    }

    fn new_node() -> NewNode {
        NewNode { perm: 0o644, umask: 0, caller: crate::own_caller() }
    }

    #[test]
    fn unlinked_files_live_as_long_as_they_are_used() {
        let store = MemoryStore::default();
        let (attr, file) = store.create(Ino::ROOT, name("f"), &new_node()).unwrap();
        file.write_at(&[(2, b"ab")]).unwrap();
        store.unlink(Ino::ROOT, name("f")).unwrap();
        assert_eq!(store.getattr(attr.ino).unwrap().nlink, 0);
        store.forget(attr.ino);
        assert_eq!(store.getattr(attr.ino).unwrap_err().kind(), ErrorKind::Stale);
        let mut buf = [1; 9];
        assert_eq!((file.read_at(0, &mut buf).unwrap(), &buf[..4]), (4, &b"\0\0ab"[..]));
        assert_eq!((store.node_count(), store.open_count(), store.known_count()), (2, 1, 0));
        drop(file);
        assert_eq!((store.node_count(), store.open_count(), store.stray_forgets()), (1, 0, 0));
        store.forget(attr.ino);
        assert_eq!(store.stray_forgets(), 1);
    }

    #[test]
    fn names_share_an_inode_until_the_last_goes() {
        let store = MemoryStore::default();
        let (attr, _file) = store.create(Ino::ROOT, name("a"), &new_node()).unwrap();
        assert_eq!(store.link(attr.ino, Ino::ROOT, name("b")).unwrap().nlink, 2);
        store.rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), RenameFlags::empty()).unwrap();
        assert_eq!(store.lookup(Ino::ROOT, name("a")).unwrap().ino, attr.ino, "a rename between names does nothing");
        store.unlink(Ino::ROOT, name("a")).unwrap();
        assert_eq!(store.lookup(Ino::ROOT, name("b")).unwrap().nlink, 1);
    }

    #[test]
    fn holes_are_blocks_of_zeros() {
        let store = MemoryStore::default();
        let (_, file) = store.create(Ino::ROOT, name("f"), &new_node()).unwrap();
        file.write_at(&[(5000, b"x"), (20000, b"y")]).unwrap();
        assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(0).unwrap()), (4096, 0));
        assert_eq!((file.seek_data(5001).unwrap(), file.seek_hole(5001).unwrap()), (5001, 8192));
        assert_eq!((file.seek_data(8192).unwrap(), file.seek_hole(16384).unwrap()), (16384, 20001));
        assert_eq!(file.seek_data(20001).unwrap_err().kind(), ErrorKind::NoData);
        file.set_len(40000).unwrap();
        assert_eq!(file.seek_data(24576).unwrap_err().kind(), ErrorKind::NoData, "nothing but a hole follows");
    }

    #[test]
    fn a_directory_passes_on_its_group_and_its_default_acl() {
        let store = MemoryStore::default();
        let dir = store.mkdir(Ino::ROOT, name("d"), &new_node()).unwrap();
        let gid = dir.gid + 7;
        let set = SetAttr { perm: Some(0o2755), gid: Some(gid), ..SetAttr::default() };
        store.setattr(dir.ino, &set).unwrap();
        let (file, _) = store.create(dir.ino, name("f"), &new_node()).unwrap();
        assert_eq!((file.gid, file.perm), (gid, 0o644));
        let below = store.mkdir(dir.ino, name("e"), &new_node()).unwrap();
        assert_eq!((below.gid, below.perm), (gid, 0o2644));
        // user::rwx, user:9:rwx, group::r-x, mask::rwx, other::---
        let entries = [(1u16, 7u16, u32::MAX), (2, 7, 9), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        let bytes = entries
            .iter()
            .flat_map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
        let acl: Vec<u8> = [2, 0, 0, 0].into_iter().chain(bytes).collect();
        store.set_xattr(dir.ino, XattrName::ACL_DEFAULT, &acl, XattrSet::Either).unwrap();
        let new = NewNode { perm: 0o666, umask: 0o077, ..new_node() };
        let (file, _) = store.create(dir.ino, name("g"), &new).unwrap();
        assert_eq!(file.perm, 0o660, "the default ACL takes the umask's place");
        assert!(store.xattr(file.ino, XattrName::ACL_ACCESS).is_ok());
        let (file, _) = store.create(Ino::ROOT, name("g"), &new).unwrap();
        assert_eq!(file.perm, 0o600);
    }

    #[test]
    fn removed_directories_take_nothing() {
        let store = MemoryStore::default();
        let dir = store.mkdir(Ino::ROOT, name("d"), &new_node()).unwrap();
        assert_eq!(store.getattr(Ino::ROOT).unwrap().nlink, 3);
        store.rmdir(Ino::ROOT, name("d")).unwrap();
        assert!(store.create(dir.ino, name("f"), &new_node()).err().unwrap().is_not_found());
        store.read_dir(dir.ino, 0, &mut |_| unreachable!()).unwrap();
    }

    #[test]
    fn what_the_modelled_store_lacks_is_refused() {
        let limits = Limits {
            hard_links: false,
            special_nodes: false,
            holes: false,
            any_bytes: false,
            xattrs: false,
            name_len_max: 3,
            ..Limits::default()
        };
        let store = MemoryStore::new(limits);
        let kind = |r: Result<()>| r.unwrap_err().kind();
        let (attr, file) = store.create(Ino::ROOT, name("abc"), &new_node()).unwrap();
        assert_eq!(kind(store.link(attr.ino, Ino::ROOT, name("b")).map(drop)), ErrorKind::NotPermitted);
        assert_eq!(
            kind(store.mknod(Ino::ROOT, name("p"), Kind::Fifo, 0, &new_node()).map(drop)),
            ErrorKind::NotPermitted
        );
        assert_eq!(kind(file.allocate(0, 1, AllocateMode::PunchHole)), ErrorKind::NotSupported);
        assert_eq!(kind(store.mkdir(Ino::ROOT, name("abcd"), &new_node()).map(drop)), ErrorKind::NameTooLong);
        let user = XattrName::new(b"user.a").unwrap();
        assert_eq!(kind(store.set_xattr(attr.ino, user, b"", XattrSet::Either)), ErrorKind::NotSupported);
        let whiteout = store.rename(Ino::ROOT, name("abc"), Ino::ROOT, name("b"), RenameFlags::WHITEOUT);
        assert_eq!(kind(whiteout), ErrorKind::InvalidInput);
        let bytes = FileName::new(&[0xff]).unwrap();
        assert_eq!(kind(store.mkdir(Ino::ROOT, bytes, &new_node()).map(drop)), ErrorKind::IllegalName);
    }
}
