//! A branch or a snapshot as a [`Store`].
//!
//! What the engine knows and has open is kept here: an inode that loses its last name is dropped when nobody has it any
//! more. (After a crash its record as an orphan tells; see [`Tree::reap_all`].) No call of a stranger is made with a
//! [`View`] in hand.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use adit_core::store::{Capabilities, Created, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, NAME_LEN_MAX_BYTES, RenameFlags, SetAttr, StatFs,
    Timestamp, XattrName, XattrSet,
};
use adit_core::{ErrorKind, FsError, Result};
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use crate::format::keys::{Key, range_of, space};
use crate::format::records::{Entry, Inode, TARGET_LEN_MAX_BYTES};
use crate::fs::cache::InodeCache;
use crate::table::BLOCK_LEN_BYTES;
use crate::tree::content::{Node, Times};
use crate::tree::{Change, Gone, Hold, Mtimes, NewInode, Restored, Source, Tree, View};

/// Entries that are read of a directory before they are handed out.
const LIST_AT_ONCE: usize = 128;

/// Shards of what is in use.
const SHARDS: usize = 16;

/// What a volume says of free inodes: their numbers do not run out.
const INODES: u64 = 1 << 40;

#[derive(Default)]
struct Uses {
    known: HashSet<u64>,
    open: HashMap<u64, (Arc<Node>, usize)>,
    /// Those of both that have no name any more.
    orphans: HashSet<u64>,
}

pub(crate) struct Inner {
    hold: Hold,
    writable: bool,
    /// What a library keeps of the branch, if one uses it.
    cache: OnceLock<InodeCache>,
    uses: [Mutex<Uses>; SHARDS],
    /// Directories with an entry that cannot be read, and why.
    left_out: Mutex<BTreeMap<u64, String>>,
}

/// See the module's notes. Cheap to clone: clones share one use of the branch.
#[derive(Clone)]
pub struct VolumeStore(pub(crate) Arc<Inner>);

/// A use of an inode's locks. While one lives, the inode is not dropped.
pub(crate) struct Opened {
    inner: Arc<Inner>,
    ino: u64,
    node: Arc<Node>,
}

impl Opened {
    /// The locks.
    pub fn node(&self) -> &Node {
        &self.node
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut uses = self.inner.uses(self.ino).lock();
        let Some((_, count)) = uses.open.get_mut(&self.ino) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        uses.open.remove(&self.ino);
        let drop_it = !uses.known.contains(&self.ino) && uses.orphans.remove(&self.ino);
        drop(uses);
        if drop_it {
            self.inner.reap(self.ino);
        }
    }
}

impl Inner {
    fn tree(&self) -> &Tree {
        self.hold.tree()
    }

    pub fn view(&self) -> Result<View<'_>> {
        self.tree().view(self.hold.source()).map(|view| View { cache: Some(&self.cache), ..view })
    }

    fn uses(&self, ino: u64) -> &Mutex<Uses> {
        &self.uses[ino as usize % SHARDS]
    }

    /// Runs one operation as one batch.
    fn change<R>(&self, work: impl for<'c, 't> FnOnce(&mut Change<'c, 't>) -> Result<R>) -> Result<R> {
        let view = self.view()?;
        self.tree().change(&view, work)
    }

    /// Whether an inode has no name, and nobody has it open.
    fn is_leaving(&self, ino: u64) -> bool {
        let uses = self.uses(ino).lock();
        uses.orphans.contains(&ino) && !uses.open.contains_key(&ino)
    }

    pub fn learn(&self, ino: u64) {
        if self.writable {
            self.uses(ino).lock().known.insert(ino);
        }
    }

    fn forget(&self, ino: u64) {
        let mut uses = self.uses(ino).lock();
        uses.known.remove(&ino);
        let drop_it = !uses.open.contains_key(&ino) && uses.orphans.remove(&ino);
        drop(uses);
        if drop_it {
            self.reap(ino);
        }
    }

    /// Drops what lost its last name, or has who uses it last do that.
    pub fn settle(&self, gone: Option<Gone>) {
        let Some(Gone(ino)) = gone else { return };
        let mut uses = self.uses(ino).lock();
        if uses.known.contains(&ino) || uses.open.contains_key(&ino) {
            uses.orphans.insert(ino);
            return;
        }
        drop(uses);
        self.reap(ino);
    }

    /// A failure costs space until the next mount, and nothing else.
    fn reap(&self, ino: u64) {
        if let Err(e) = self.tree().reap(self.hold.source(), ino) {
            tracing::warn!("what inode {ino} took is given back at the next mount: {e}");
        }
    }
}

/// A new inode of a kind that needs no more than that.
pub(crate) fn new_inode<'a>(kind: Kind, node: &NewNode) -> NewInode<'a> {
    NewInode { kind, node: *node, rdev: 0, target: &[] }
}

/// A new symbolic link.
pub(crate) fn link_of(target: &[u8], caller: Caller) -> Result<NewInode<'_>> {
    if target.is_empty() || target.len() > TARGET_LEN_MAX_BYTES || target.contains(&0) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let node = NewNode { perm: 0o777, umask: 0, caller };
    Ok(NewInode { target, ..new_inode(Kind::Symlink, &node) })
}

/// What `mknod` makes.
pub(crate) fn node_of<'a>(kind: Kind, rdev: u32, new: &NewNode) -> Result<NewInode<'a>> {
    if matches!(kind, Kind::Directory | Kind::Symlink) {
        return Err(ErrorKind::InvalidInput.into());
    }
    Ok(NewInode { rdev, ..new_inode(kind, new) })
}

/// What a rename leaves under the old name if it is asked to.
pub(crate) fn whiteout<'a>() -> NewInode<'a> {
    let root = NewNode { perm: 0, umask: 0, caller: Caller { uid: 0, gid: 0 } };
    new_inode(Kind::CharDevice, &root)
}

impl VolumeStore {
    /// Opens a branch to read and write, or a snapshot to read. What a crash left of removed files is dropped first.
    ///
    /// # Errors
    /// `NotFound`, `Stale` if there is none such; `Busy` for a branch that is open already.
    pub fn open(tree: &Arc<Tree>, source: Source) -> Result<Self> {
        let writable = matches!(source, Source::Branch(_));
        let hold = tree.hold(source)?;
        if writable {
            tree.reap_all(hold.source())?;
        }
        Ok(Self::with(hold, writable))
    }

    /// Opens a branch or a snapshot to read: for a volume that cannot be changed.
    ///
    /// # Errors
    /// As [`VolumeStore::open`].
    pub fn open_to_read(tree: &Arc<Tree>, source: Source) -> Result<Self> {
        Ok(Self::with(tree.hold(source)?, false))
    }

    fn with(hold: Hold, writable: bool) -> Self {
        VolumeStore(Arc::new(Inner {
            hold,
            writable,
            cache: OnceLock::new(),
            uses: Default::default(),
            left_out: Mutex::default(),
        }))
    }

    /// Has changes of the branch forgotten in `cache` from now on, unless it has one.
    pub(crate) fn set_cache(&self, cache: InodeCache) {
        // While nothing is being changed.
        let _numbers = self.tree().numbers.lock();
        let _ = self.0.cache.set(cache);
    }

    /// The cache, if it has one.
    pub(crate) fn cache(&self) -> Option<&InodeCache> {
        self.0.cache.get()
    }

    /// The name of the branch; `ReadOnly` of a snapshot.
    pub(crate) fn branch_name(&self) -> Result<&str> {
        match self.0.hold.source() {
            Source::Branch(name) => Ok(name),
            Source::Snapshot(_) => Err(ErrorKind::ReadOnly.into()),
        }
    }

    fn clear_cache(&self) {
        if let Some(cache) = self.cache() {
            cache.clear();
        }
    }

    /// The tree that it belongs to.
    pub fn tree(&self) -> &Arc<Tree> {
        self.0.hold.tree()
    }

    /// The names that lead from the root to a directory; `None` if none do.
    pub fn names_to(&self, dir: Ino) -> Option<Vec<Vec<u8>>> {
        let path = self.0.view().ok()?.path_bytes_of(dir.0).ok()??;
        Some(path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Sets the branch back to a snapshot; see [`Tree::restore`]. Open files that are in the snapshot, with a name or not, stay
    /// usable; the others are `Stale`.
    ///
    /// Whoever caches what the store says has to forget it.
    pub fn restore(&self, snapshot: &str, mtimes: Mtimes) -> Result<()> {
        let Source::Branch(branch) = self.0.hold.source() else { return Err(ErrorKind::ReadOnly.into()) };
        let gone = self.tree().restore(branch, snapshot, mtimes);
        self.clear_cache();
        gone?.into_iter().for_each(|gone| self.0.settle(Some(gone)));
        Ok(())
    }

    /// Sets one path back to what it is in a snapshot; see [`Tree::restore_path`]. Files that go by this and are open stay
    /// usable, also those that are not in the snapshot.
    ///
    /// Whoever caches what the store says has to forget it.
    pub fn restore_path(&self, snapshot: &str, path: &[&[u8]], mtimes: Mtimes) -> Result<Restored> {
        let Source::Branch(branch) = self.0.hold.source() else { return Err(ErrorKind::ReadOnly.into()) };
        let restored = self.tree().restore_path(branch, snapshot, path, mtimes);
        self.clear_cache();
        let restored = restored?;
        restored.gone.iter().for_each(|gone| self.0.settle(Some(*gone)));
        Ok(restored)
    }

    /// A further handle on an inode's locks.
    pub(crate) fn opened(&self, ino: u64) -> Opened {
        let mut uses = self.0.uses(ino).lock();
        let (node, count) = uses.open.entry(ino).or_default();
        *count += 1;
        Opened { inner: self.0.clone(), ino, node: node.clone() }
    }

    /// Writes at the end of an open file, wherever that is then; where what was written ends. See [`Node::append`].
    pub(crate) fn append(&self, ino: Ino, bytes: &[u8]) -> Result<u64> {
        let file = VolumeFile { opened: self.opened(ino.0) };
        file.with(|node, view, ino| node.append(view, ino, bytes)).map_err(file.named("write"))
    }

    /// What a lookup says of an inode, which is learned if it is there. A failure changes nothing for who knows it already.
    fn found(&self, ino: u64, inode: Result<Inode>) -> Result<Attr> {
        match inode {
            Ok(inode) if inode.nlink > 0 => {
                self.0.learn(ino);
                Ok(inode.attr(ino))
            }
            Ok(_) => Err(ErrorKind::NotFound.into()),
            Err(e) if e.kind() == ErrorKind::Stale => Err(ErrorKind::NotFound.into()),
            Err(e) => Err(e),
        }
    }

    fn add(&self, parent: Ino, name: FileName<'_>, new: &NewInode<'_>) -> Result<(Attr, Attr)> {
        let mut made = None;
        let attrs = self.0.change(|change| {
            let ino = change.create(parent.0, name, new)?;
            // Before anybody else can find it, and unlink and forget it.
            self.0.learn(ino);
            made = Some(ino);
            Ok((change.inode(ino)?.attr(ino), change.inode(parent.0)?.attr(parent.0)))
        });
        if let (Err(_), Some(ino)) = (&attrs, made) {
            self.0.uses(ino).lock().known.remove(&ino);
        }
        attrs
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.0.writable { Ok(()) } else { Err(ErrorKind::ReadOnly.into()) }
    }
}

impl Store for VolumeStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: !self.0.writable,
            unit_len_bytes: BLOCK_LEN_BYTES as u32,
            stable_cookies: true,
            xattrs: true,
            acls: true,
            whiteouts: true,
            kernel_writeback: self.0.writable,
            ..Capabilities::plain("volume")
        }
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        // Dropped after the view: its end may want one of its own.
        let _opened;
        let view = self.0.view()?;
        let Some((_, ino, _)) = view.entry(parent.0, name.as_bytes())? else {
            let dir = view.inode(parent.0)?.kind == Kind::Directory;
            return Err(if dir { ErrorKind::NotFound } else { ErrorKind::NotDirectory }.into());
        };
        // In use first: from here on nobody drops it.
        _opened = self.opened(ino);
        self.found(ino, view.inode(ino))
    }

    fn lookup_listed(&self, _parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        let inos: Vec<u64> = entries.iter().map(|entry| entry.ino.0).collect();
        // In use first, as in a lookup.
        let _opened: Vec<Opened> = inos.iter().map(|&ino| self.opened(ino)).collect();
        let inodes = match self.0.view() {
            Ok(view) => view.inodes(&inos),
            Err(e) => inos.iter().map(|_| Err(FsError::new(e.kind()))).collect(),
        };
        inodes.into_iter().zip(inos).map(|(inode, ino)| self.found(ino, inode)).collect()
    }

    fn forget(&self, ino: Ino) {
        if self.0.writable {
            self.0.forget(ino.0);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.0.view()?.inode(ino.0).map(|inode| inode.attr(ino.0))
    }

    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.check_writable()?;
        if let Some(len) = set.size {
            let opened = self.opened(ino.0);
            let view = self.0.view()?;
            opened.node.set_len(&view, ino.0, len, set)?;
            let attr = view.inode(ino.0).map(|inode| inode.attr(ino.0));
            // Before the use of the inode ends, which may want a view of its own.
            drop(view);
            return attr;
        }
        let times = SetAttr { atime: set.atime, mtime: set.mtime, ctime: set.ctime, ..SetAttr::default() };
        if *set == times && self.0.is_leaving(ino.0) {
            // The kernel writes times back when it drops an inode, also of one that was removed: with the next call it is gone.
            let mut inode = self.0.view()?.inode(ino.0)?;
            inode.apply(set, Timestamp::of_tick());
            return Ok(inode.attr(ino.0));
        }
        self.0.change(|change| {
            // The kernel does not try a second time to have times stored. But they give no space back.
            change.draft.takes_away = *set == times;
            change.set_attr(ino.0, set)?;
            Ok(change.inode(ino.0)?.attr(ino.0))
        })
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let mut start = start;
        loop {
            let mut entries: Vec<(u64, u64, Kind, Vec<u8>)> = Vec::with_capacity(LIST_AT_ONCE);
            {
                let view = self.0.view()?;
                if view.inode(dir.0)?.kind != Kind::Directory {
                    return Err(ErrorKind::NotDirectory.into());
                }
                let (_, end) = range_of(space::ENTRY, dir.0);
                let from = Key::entry(dir.0, start.saturating_add(1));
                view.scan(from.as_bytes(), &end, &mut |key, value| {
                    let cookie = crate::tree::cookie_in(key)?;
                    match Entry::decode(value) {
                        Ok(entry) => entries.push((cookie, entry.ino, entry.kind, entry.name.to_vec())),
                        // One that cannot be read does not hide the others; it is told after them.
                        Err(why) => drop(self.0.left_out.lock().insert(dir.0, why.to_string())),
                    }
                    let more = entries.len() < LIST_AT_ONCE;
                    Ok(if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
                })?;
            }
            for (cookie, ino, kind, name) in &entries {
                let entry = DirEntry { cookie: *cookie, ino: Ino(*ino), kind: *kind, name: FileName::new(name)? };
                if sink(entry).is_break() {
                    return Ok(());
                }
                start = *cookie;
            }
            if entries.len() < LIST_AT_ONCE {
                return Ok(());
            }
        }
    }

    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        let error =
            |why: &String| FsError::new(ErrorKind::Corrupt).on("list", format!("inode {}", dir.0)).because(why.clone());
        self.0.left_out.lock().get(&dir.0).map(error).into_iter().collect()
    }

    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        self.create_in(parent, name, new).map(|created| (created.attr, created.file))
    }

    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        let (attr, dir) = self.add(parent, name, &new_inode(Kind::File, new))?;
        let file = Arc::new(VolumeFile { opened: self.opened(attr.ino.0) });
        Ok(Created { attr, file, parent: Some(dir) })
    }

    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.add(parent, name, &new_inode(Kind::Directory, new)).map(|(attr, _)| attr)
    }

    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.add(parent, name, &link_of(target, caller)?).map(|(attr, _)| attr)
    }

    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.add(parent, name, &node_of(kind, rdev, new)?).map(|(attr, _)| attr)
    }

    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let attr = self.0.change(|change| {
            change.link(ino.0, parent.0, name)?;
            Ok(change.inode(ino.0)?.attr(ino.0))
        })?;
        self.0.learn(ino.0);
        Ok(attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.0.view()?.inode(ino.0)?;
        if inode.kind == Kind::Symlink { Ok(inode.inline) } else { Err(ErrorKind::InvalidInput.into()) }
    }

    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let gone = self.0.change(|change| change.unlink(parent.0, name))?;
        self.0.settle(gone);
        Ok(())
    }

    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let gone = self.0.change(|change| change.rmdir(parent.0, name))?;
        self.0.settle(gone);
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
        let white = flags.contains(RenameFlags::WHITEOUT).then(whiteout);
        let (from, to) = ((parent.0, name), (new_parent.0, new_name));
        let gone = self.0.change(|change| change.rename(from, to, flags, white.as_ref()))?;
        self.0.settle(gone);
        Ok(())
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        if access == Access::Write {
            self.check_writable()?;
        }
        let opened = self.opened(ino.0);
        let kind = self.0.view()?.inode(ino.0)?.kind;
        match kind {
            Kind::File => Ok(Arc::new(VolumeFile { opened })),
            Kind::Directory => Err(ErrorKind::IsDirectory.into()),
            _ => Err(ErrorKind::InvalidInput.into()),
        }
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.0.view()?.xattr(ino.0, name.as_bytes())
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        let names = self.0.view()?.xattr_names(ino.0)?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.0.change(|change| change.set_xattr(ino.0, name, value, set))
    }

    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.0.change(|change| change.remove_xattr(ino.0, name))
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        if self.0.view()?.inode(dir.0)?.kind != Kind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        self.sync_all()
    }

    fn sync_all(&self) -> Result<()> {
        if self.0.writable { self.tree().table.sync() } else { Ok(()) }
    }

    fn statfs(&self) -> Result<StatFs> {
        let space = self.tree().extents.space();
        Ok(StatFs {
            block_size: BLOCK_LEN_BYTES as u32,
            blocks: space.total,
            blocks_free: space.free,
            blocks_available: space.free.saturating_sub(space.reserved),
            files: INODES,
            files_free: INODES,
            name_len_max: NAME_LEN_MAX_BYTES as u32,
        })
    }

    fn room_bytes(&self) -> Result<u64> {
        let extents = &self.tree().extents;
        let space = extents.space();
        let own = space.free.saturating_sub(space.reserved).saturating_mul(BLOCK_LEN_BYTES as u64);
        Ok(own.min(extents.host_room_bytes()))
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.0.view().ok()?.path_of(ino.0).ok()?
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let view = self.0.view().ok()?;
        let inode = view.inode(ino.0).ok()?;
        if inode.kind == Kind::Directory {
            return None;
        }
        let name = view.name_at(inode.place).ok()??;
        Some((Ino(inode.place.dir), name))
    }
}

/// An open file of a [`VolumeStore`].
struct VolumeFile {
    opened: Opened,
}

impl VolumeFile {
    fn with<R>(&self, work: impl FnOnce(&Node, &View<'_>, u64) -> Result<R>) -> Result<R> {
        work(&self.opened.node, &self.opened.inner.view()?, self.opened.ino)
    }

    fn named(&self, op: &'static str) -> impl Fn(FsError) -> FsError + '_ {
        move |e| match e.kind() {
            ErrorKind::Corrupt | ErrorKind::Io => e.on(op, format!("inode {}", self.opened.ino)),
            _ => e,
        }
    }
}

impl StoreFile for VolumeFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(|node, view, ino| node.read(view, ino, offset, buf)).map_err(self.named("read"))
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.with(|node, view, ino| node.write(view, ino, pieces, Times::Now)).map_err(self.named("write"))
    }

    fn write_keeping_times(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.with(|node, view, ino| node.write(view, ino, pieces, Times::Kept)).map_err(self.named("write"))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.with(|node, view, ino| node.set_len(view, ino, len, &SetAttr::default()))
    }

    fn len(&self) -> Result<u64> {
        self.with(|_, view, ino| Ok(view.inode(ino)?.size))
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        if self.opened.inner.writable { self.opened.inner.tree().table.sync() } else { Ok(()) }
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        self.with(|node, view, ino| node.allocate(view, ino, offset..end, mode, Times::Now))
    }

    fn allocate_keeping_times(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        self.with(|node, view, ino| node.allocate(view, ino, offset..end, mode, Times::Kept))
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.with(|_, view, ino| view.seek_data(ino, offset))
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.with(|_, view, ino| view.seek_hole(ino, offset))
    }
}
