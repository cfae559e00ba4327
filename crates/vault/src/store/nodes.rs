//! The known inodes of a mounted vault: where each one lies.
//!
//! An inode number is the host's own for the object that carries the attributes (the content file, the content
//! directory, the sealed link target), so it survives a remount. A number that the host gives out again while its old
//! bearer is still known gets an alias: the kernel would take the new object for the old one, and under `-o exclusive`
//! keep the old one's length for it.
//!
//! The kernel decides how many inodes are known, so a node is small: neighbouring numbers share one packed allocation
//! ([`Group`]), a node names its directory by a number ([`Parents`]), and what only directories and opened files have
//! lies in tables of their own.

mod group;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use adit_core::numbers::Numbering;
use adit_core::types::{Ino, Kind};
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use self::group::{Group, Node, group_of};
use super::file::VaultFile;
use crate::format::names::DirContext;
use crate::format::{DirHash, DirId, NameCipher};

const SHARDS: usize = 16;
/// The numbers of aliases, between what [`Numbering::own`] gives. They are counted down, so that also their low 32 bits are others than
/// those of the host's small numbers.
const ALIASES: std::ops::Range<u64> = 1 << 50..(1 << 50) + (1 << 32);

/// A known directory.
pub(crate) struct DirNode {
    pub ino: Ino,
    pub id: DirId,
    pub hash: DirHash,
    pub context: DirContext,
    /// Whether it was looked through for second versions since it is known.
    surveyed: AtomicBool,
}

impl DirNode {
    pub fn new(ino: Ino, id: DirId, names: &NameCipher) -> Arc<Self> {
        let (hash, context) = (names.dir_hash(&id), names.dir_context(&id));
        Arc::new(DirNode { ino, id, hash, context, surveyed: AtomicBool::new(false) })
    }

    pub fn is_surveyed(&self) -> bool {
        self.surveyed.load(Ordering::Acquire)
    }

    pub fn set_surveyed(&self) {
        self.surveyed.store(true, Ordering::Release);
    }
}

/// What an inode is, with what only that kind has.
#[derive(Clone)]
pub(crate) enum What {
    File(Weak<VaultFile>),
    Directory(Arc<DirNode>),
    Symlink,
}

impl What {
    pub fn kind(&self) -> Kind {
        match self {
            What::File(_) => Kind::File,
            What::Directory(_) => Kind::Directory,
            What::Symlink => Kind::Symlink,
        }
    }
}

/// Where an object lies: in which directory, under which cleartext name (as it was encrypted).
#[derive(Clone)]
pub(crate) struct Place {
    pub parent: Arc<DirNode>,
    pub name: Box<str>,
}

/// How an object came to be seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was there.
    Found,
    /// It was made just now. Whatever else is known by its number is gone, though a removal that still runs in another
    /// thread may not have said so yet.
    Made,
}

/// A snapshot of what is known of an inode.
pub(crate) struct Known {
    pub what: What,
    pub place: Option<Place>,
}

/// The table. Locks are held for moments only and never while the host is called; a shard's before the parents'.
pub(crate) struct Nodes {
    shards: Box<[RwLock<Shard>]>,
    parents: RwLock<Parents>,
    aliases: Mutex<Aliases>,
    numbering: Numbering,
    alias_count: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    groups: HashMap<u64, Group>,
    len: usize,
    /// The directories among the nodes.
    dirs: HashMap<Ino, Arc<DirNode>>,
    /// Files that were opened since they are known.
    files: HashMap<Ino, Weak<VaultFile>>,
}

/// Directories that nodes lie in, by a number as short as possible.
#[derive(Default)]
struct Parents {
    slots: Vec<Parent>,
    free: Vec<u32>,
    /// By the address of the directory, which is its own as long as it is held here.
    by_address: HashMap<usize, u32>,
}

struct Parent {
    dir: Option<Arc<DirNode>>,
    /// Nodes that lie in it.
    nodes: usize,
}

impl Parents {
    /// The number of `dir`, for one more node.
    fn hold(&mut self, dir: &Arc<DirNode>) -> u32 {
        let address = Arc::as_ptr(dir).addr();
        let number = *self.by_address.entry(address).or_insert_with(|| {
            let parent = Parent { dir: Some(dir.clone()), nodes: 0 };
            let number = self.free.pop().unwrap_or(self.slots.len() as u32);
            match self.slots.get_mut(number as usize) {
                Some(slot) => *slot = parent,
                None => self.slots.push(parent),
            }
            number
        });
        if let Some(parent) = self.slots.get_mut(number as usize) {
            parent.nodes += 1;
        }
        number
    }

    fn get(&self, number: u32) -> Option<&Arc<DirNode>> {
        self.slots.get(number as usize)?.dir.as_ref()
    }

    /// A node less. With the last one the number becomes free.
    fn release(&mut self, number: u32) {
        let Some(parent) = self.slots.get_mut(number as usize) else { return };
        parent.nodes -= 1;
        if parent.nodes == 0
            && let Some(dir) = parent.dir.take()
        {
            self.by_address.remove(&Arc::as_ptr(&dir).addr());
            self.free.push(number);
        }
    }
}

impl Shard {
    fn node(&self, ino: Ino) -> Option<Node<'_>> {
        self.groups.get(&group_of(ino))?.get(ino)
    }

    /// Makes the node of `ino` this one. What it was before has been released.
    fn set(&mut self, ino: Ino, node: Node<'_>) {
        if self.groups.entry(group_of(ino)).or_default().set(ino, node) {
            self.len += 1;
        }
    }

    fn remove(&mut self, ino: Ino) {
        let key = group_of(ino);
        if let Some(group) = self.groups.get_mut(&key)
            && group.remove(ino)
        {
            self.len -= 1;
            if group.is_empty() {
                self.groups.remove(&key);
            }
        }
        self.dirs.remove(&ino);
        self.files.remove(&ino);
    }

    fn what(&self, ino: Ino, kind: Kind) -> What {
        match (kind, self.dirs.get(&ino)) {
            (Kind::Directory, Some(dir)) => What::Directory(dir.clone()),
            (Kind::Symlink, _) => What::Symlink,
            _ => What::File(self.files.get(&ino).cloned().unwrap_or_default()),
        }
    }

    /// Keeps what only a directory or an opened file has.
    fn keep(&mut self, ino: Ino, what: &What) {
        self.dirs.remove(&ino);
        self.files.remove(&ino);
        match what {
            What::Directory(dir) => drop(self.dirs.insert(ino, dir.clone())),
            What::File(file) if file.strong_count() > 0 => drop(self.files.insert(ino, file.clone())),
            What::File(_) | What::Symlink => {}
        }
    }
}

/// Numbers of the host that go by another one here.
#[derive(Default)]
struct Aliases {
    by_host: HashMap<u64, Ino>,
    by_ino: HashMap<Ino, u64>,
    given: u64,
}

impl Aliases {
    fn set(&mut self, host_ino: u64, ino: Ino) {
        self.forget(ino);
        if let Some(other) = self.by_host.insert(host_ino, ino) {
            self.by_ino.remove(&other);
        }
        self.by_ino.insert(ino, host_ino);
    }

    fn forget(&mut self, ino: Ino) {
        if let Some(host_ino) = self.by_ino.remove(&ino) {
            self.by_host.remove(&host_ino);
        }
    }
}

impl Nodes {
    pub fn new() -> Self {
        Nodes {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            parents: RwLock::default(),
            aliases: Mutex::default(),
            numbering: Numbering::new(0),
            alias_count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &RwLock<Shard> {
        &self.shards[(group_of(ino).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }

    /// The number that the host's inode goes by here.
    pub fn ino_of_host(&self, host_ino: u64) -> Ino {
        if self.alias_count.load(Ordering::Acquire) > 0
            && let Some(&ino) = self.aliases.lock().by_host.get(&host_ino)
        {
            return ino;
        }
        // The root is always 1; a host's own inode 1 (not on ext4, xfs or btrfs) becomes an alias of a fixed number.
        if host_ino == Ino::ROOT.0 { Ino(ALIASES.end - 1) } else { self.numbering.own(host_ino) }
    }

    /// Makes the object known at its place and returns its number. `make` builds what it is, given that number, unless
    /// the same object is known already.
    pub fn observe(
        &self,
        host_ino: u64,
        place: Place,
        seen: Seen,
        kind: Kind,
        id: Option<&DirId>,
        make: impl Fn(Ino) -> What,
    ) -> Ino {
        loop {
            let ino = self.ino_of_host(host_ino);
            if self.goes_by_another(ino, host_ino) {
                self.alias(host_ino, ino);
                continue;
            }
            let mut shard = self.shard(ino).write();
            let (old, moved) = match shard.node(ino) {
                Some(Node { place: None, .. }) => {
                    drop(shard);
                    self.alias(host_ino, ino);
                    continue;
                }
                Some(node) => {
                    let moved = !self.is_at(&node, &place.parent.id, &place.name);
                    (Some((node.kind, node.place.map(|(parent, _)| parent))), moved)
                }
                None => (None, true),
            };
            if moved && old.is_some() && seen == Seen::Made {
                self.set_place(&mut shard, ino, None);
                continue;
            }
            let same = match (old, id) {
                (Some((Kind::Directory, _)), Some(id)) => shard.dirs.get(&ino).is_some_and(|dir| dir.id == *id),
                (Some((old, _)), None) => old == kind,
                _ => false,
            };
            if !same {
                shard.keep(ino, &make(ino));
            }
            if moved {
                let parent = self.parents.write().hold(&place.parent);
                shard.set(ino, Node { kind, place: Some((parent, &place.name)) });
                if let Some((_, Some(parent))) = old {
                    self.parents.write().release(parent);
                }
            } else if !same {
                self.change_kind(&mut shard, ino, kind);
            }
            return ino;
        }
    }

    /// What lies at the place of `ino` is another kind of object now.
    fn change_kind(&self, shard: &mut Shard, ino: Ino, kind: Kind) {
        let place = shard.node(ino).and_then(|n| n.place).map(|(parent, name)| (parent, Box::<str>::from(name)));
        shard.set(ino, Node { kind, place: place.as_ref().map(|(parent, name)| (*parent, &**name)) });
    }

    fn alias(&self, host_ino: u64, taken: Ino) {
        let mut aliases = self.aliases.lock();
        if aliases.by_host.get(&host_ino).is_none_or(|&ino| ino == taken) {
            aliases.given += 1;
            let ino = Ino(ALIASES.end - 1 - aliases.given);
            aliases.set(host_ino, ino);
            self.alias_count.store(aliases.by_host.len(), Ordering::Release);
        }
    }

    /// Whether the host knows `ino` by another number than this, which it had before.
    fn goes_by_another(&self, ino: Ino, host_ino: u64) -> bool {
        self.alias_count.load(Ordering::Acquire) > 0
            && self.aliases.lock().by_ino.get(&ino).is_some_and(|&now| now != host_ino)
    }

    /// The host knows `ino` by the number `host_ino` from now on.
    pub fn renumbered(&self, host_ino: u64, ino: Ino) {
        let mut aliases = self.aliases.lock();
        aliases.set(host_ino, ino);
        self.alias_count.store(aliases.by_host.len(), Ordering::Release);
    }

    fn is_at(&self, node: &Node<'_>, dir: &DirId, name: &str) -> bool {
        node.place.is_some_and(|(parent, at)| {
            at == name && self.parents.read().get(parent).is_some_and(|parent| parent.id == *dir)
        })
    }

    fn place_of(&self, node: &Node<'_>) -> Option<Place> {
        let (parent, name) = node.place?;
        Some(Place { parent: self.parents.read().get(parent)?.clone(), name: name.into() })
    }

    pub fn get(&self, ino: Ino) -> Option<Known> {
        let shard = self.shard(ino).read();
        let node = shard.node(ino)?;
        Some(Known { what: shard.what(ino, node.kind), place: self.place_of(&node) })
    }

    pub fn place(&self, ino: Ino) -> Option<Place> {
        let shard = self.shard(ino).read();
        self.place_of(&shard.node(ino)?)
    }

    /// Whether `ino` lies in the directory with this id; None if it is not known, or has no name.
    pub fn lies_in(&self, ino: Ino, dir: &DirId) -> Option<bool> {
        let shard = self.shard(ino).read();
        let (parent, _) = shard.node(ino)?.place?;
        Some(self.parents.read().get(parent)?.id == *dir)
    }

    /// The directory `ino`, if it is a known one that still has its name. The root is not among the nodes.
    pub fn directory(&self, ino: Ino) -> Option<(Arc<DirNode>, bool)> {
        let shard = self.shard(ino).read();
        let dir = shard.dirs.get(&ino)?;
        Some((dir.clone(), shard.node(ino)?.place.is_some()))
    }

    /// The file object shared by all who have `ino` open; `file` becomes it if there is none, or one of another content
    /// that another client has replaced.
    pub fn share_file(&self, ino: Ino, file: Arc<VaultFile>) -> Arc<VaultFile> {
        let other; // outlives the lock: dropping it may close a file
        let mut shard = self.shard(ino).write();
        if shard.node(ino).is_none_or(|node| node.kind != Kind::File) {
            return file;
        }
        other = shard.files.get(&ino).and_then(Weak::upgrade);
        if let Some(other) = other.as_ref().filter(|other| other.is_same(&file)) {
            return other.clone();
        }
        if shard.files.len() == shard.files.capacity() {
            // Before the table grows: most of them were closed long ago.
            shard.files.retain(|_, file| file.strong_count() > 0);
        }
        shard.files.insert(ino, Arc::downgrade(&file));
        file
    }

    /// The object has another place now, if it is known.
    pub fn moved(&self, ino: Ino, place: Place) {
        self.set_place(&mut self.shard(ino).write(), ino, Some(&place));
    }

    /// The object lost its name `name` in `dir` through us, if it is known there.
    pub fn unlinked(&self, ino: Ino, dir: &DirId, name: &str) {
        let mut shard = self.shard(ino).write();
        if shard.node(ino).is_some_and(|node| self.is_at(&node, dir, name)) {
            self.set_place(&mut shard, ino, None);
        }
    }

    fn set_place(&self, shard: &mut Shard, ino: Ino, place: Option<&Place>) {
        let Some((kind, old)) = shard.node(ino).map(|n| (n.kind, n.place.map(|(parent, _)| parent))) else { return };
        let mut parents = self.parents.write();
        let place = place.map(|place| (parents.hold(&place.parent), &*place.name));
        shard.set(ino, Node { kind, place });
        if let Some(old) = old {
            parents.release(old);
        }
    }

    pub fn forget(&self, ino: Ino) {
        let mut shard = self.shard(ino).write();
        let parent = shard.node(ino).and_then(|node| node.place).map(|(parent, _)| parent);
        shard.remove(ino);
        if let Some(parent) = parent {
            self.parents.write().release(parent);
        }
        drop(shard);
        if self.alias_count.load(Ordering::Acquire) > 0 {
            let mut aliases = self.aliases.lock();
            aliases.forget(ino);
            self.alias_count.store(aliases.by_host.len(), Ordering::Release);
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Masterkey;

    fn directory(names: &NameCipher, ino: u64) -> Arc<DirNode> {
        DirNode::new(Ino(ino), DirId::generate(), names)
    }

    fn see(nodes: &Nodes, dir: &Arc<DirNode>, name: &str, seen: Seen) -> Ino {
        let place = Place { parent: dir.clone(), name: name.into() };
        nodes.observe(7, place, seen, Kind::File, None, |_| What::File(Weak::new()))
    }

    #[test]
    fn a_number_that_comes_back_before_its_removal_returned_is_another_inode() {
        let names = NameCipher::new(&Masterkey::generate().unwrap());
        let (nodes, dir) = (Nodes::new(), directory(&names, 2));
        let old = see(&nodes, &dir, "old", Seen::Found);
        // Thread one has removed it from the host, which gives the number to what thread two makes at that moment.
        let new = see(&nodes, &dir, "new", Seen::Made);
        assert_ne!(new, old);
        nodes.unlinked(old, &dir.id, "old");
        assert!(nodes.place(old).is_none());
        assert_eq!(*nodes.place(new).unwrap().name, *"new");
        assert_eq!(see(&nodes, &dir, "new", Seen::Found), new, "until it is forgotten");
        nodes.forget(old);
        assert_eq!(see(&nodes, &dir, "new", Seen::Found), new);
    }

    #[test]
    fn a_removal_takes_no_name_but_its_own() {
        let names = NameCipher::new(&Masterkey::generate().unwrap());
        let (nodes, dir) = (Nodes::new(), directory(&names, 2));
        let old = see(&nodes, &dir, "old", Seen::Found);
        // The new bearer of the number is found before its maker tells of it.
        assert_eq!(see(&nodes, &dir, "new", Seen::Found), old);
        assert_eq!(see(&nodes, &dir, "new", Seen::Made), old, "it was this one");
        nodes.unlinked(old, &dir.id, "old");
        assert_eq!(*nodes.place(old).unwrap().name, *"new");
    }

    #[test]
    fn what_another_client_renamed_keeps_its_number() {
        let names = NameCipher::new(&Masterkey::generate().unwrap());
        let (nodes, dir, other) = (Nodes::new(), directory(&names, 2), directory(&names, 3));
        let ino = see(&nodes, &dir, "here", Seen::Found);
        assert_eq!(see(&nodes, &other, "there", Seen::Found), ino);
        assert_eq!(nodes.place(ino).unwrap().parent.id, other.id);
    }
}
