//! The known inodes of a mounted vault: where each one lies.
//!
//! An inode number is the host's own for the object that carries the attributes (the content file, the content
//! directory, the sealed link target), so it survives a remount. A number that the host gives out again while its old
//! bearer is still known gets an alias: the kernel would take the new object for the old one, and under `-o exclusive`
//! keep the old one's length for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use adit_core::types::{Ino, Kind};
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use super::file::VaultFile;
use crate::format::names::DirContext;
use crate::format::{DirHash, DirId, NameCipher};

const SHARDS: usize = 64;
/// Aliases start here; hosts number upwards from small values.
const ALIAS_FIRST: u64 = 0x7ff0_0000_0000_0000;

/// A known directory.
pub(crate) struct DirNode {
    pub ino: Ino,
    pub id: DirId,
    pub hash: DirHash,
    pub context: DirContext,
}

impl DirNode {
    pub fn new(ino: Ino, id: DirId, names: &NameCipher) -> Arc<Self> {
        let (hash, context) = (names.dir_hash(&id), names.dir_context(&id));
        Arc::new(DirNode { ino, id, hash, context })
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

struct Node {
    what: What,
    /// None once it lost its name through us, and for the root.
    place: Option<Place>,
}

impl Node {
    fn is_at(&self, dir: &DirId, name: &str) -> bool {
        self.place.as_ref().is_some_and(|p| *p.name == *name && p.parent.id == *dir)
    }
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

/// The table. Locks are held for moments only and never while the host is called.
pub(crate) struct Nodes {
    shards: Box<[RwLock<HashMap<Ino, Node>>]>,
    aliases: Mutex<Aliases>,
    alias_count: AtomicUsize,
}

#[derive(Default)]
struct Aliases {
    by_host: HashMap<u64, Ino>,
    given: u64,
}

impl Nodes {
    pub fn new() -> Self {
        Nodes {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            aliases: Mutex::default(),
            alias_count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &RwLock<HashMap<Ino, Node>> {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }

    /// The number that the host's inode goes by here.
    pub fn ino_of_host(&self, host_ino: u64) -> Ino {
        if self.alias_count.load(Ordering::Acquire) > 0
            && let Some(&ino) = self.aliases.lock().by_host.get(&host_ino)
        {
            return ino;
        }
        // The root is always 1; a host's own inode 1 (not on ext4, xfs or btrfs) becomes an alias of a fixed number.
        if host_ino == Ino::ROOT.0 { Ino(ALIAS_FIRST - 1) } else { Ino(host_ino) }
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
            let mut shard = self.shard(ino).write();
            match shard.get_mut(&ino) {
                Some(node) if node.place.is_none() => {
                    drop(shard);
                    self.alias(host_ino, ino);
                }
                Some(node) if seen == Seen::Made && !node.is_at(&place.parent.id, &place.name) => {
                    node.place = None;
                }
                Some(node) => {
                    let same = match (&node.what, id) {
                        (What::Directory(dir), Some(id)) => dir.id == *id,
                        (what, None) => what.kind() == kind,
                        _ => false,
                    };
                    if !same {
                        node.what = make(ino);
                    }
                    if !node.is_at(&place.parent.id, &place.name) {
                        node.place = Some(place);
                    }
                    return ino;
                }
                None => {
                    shard.insert(ino, Node { what: make(ino), place: Some(place) });
                    return ino;
                }
            }
        }
    }

    fn alias(&self, host_ino: u64, taken: Ino) {
        let mut aliases = self.aliases.lock();
        if aliases.by_host.get(&host_ino).is_none_or(|&ino| ino == taken) {
            let ino = Ino(ALIAS_FIRST + aliases.given);
            aliases.given += 1;
            aliases.by_host.insert(host_ino, ino);
            self.alias_count.store(aliases.by_host.len(), Ordering::Release);
        }
    }

    pub fn get(&self, ino: Ino) -> Option<Known> {
        let shard = self.shard(ino).read();
        shard.get(&ino).map(|n| Known { what: n.what.clone(), place: n.place.clone() })
    }

    pub fn place(&self, ino: Ino) -> Option<Place> {
        self.shard(ino).read().get(&ino).and_then(|n| n.place.clone())
    }

    /// The directory `ino`, if it is a known one that still has its name. The root is not among the nodes.
    pub fn directory(&self, ino: Ino) -> Option<(Arc<DirNode>, bool)> {
        match self.shard(ino).read().get(&ino) {
            Some(Node { what: What::Directory(dir), place }) => Some((dir.clone(), place.is_some())),
            _ => None,
        }
    }

    /// The file object shared by all who have `ino` open; `file` becomes it if there is none.
    pub fn share_file(&self, ino: Ino, file: Arc<VaultFile>) -> Arc<VaultFile> {
        match self.shard(ino).write().get_mut(&ino) {
            Some(Node { what: What::File(weak), .. }) => match weak.upgrade() {
                Some(other) => other,
                None => {
                    *weak = Arc::downgrade(&file);
                    file
                }
            },
            _ => file,
        }
    }

    /// The object has another place now, if it is known.
    pub fn moved(&self, ino: Ino, place: Place) {
        if let Some(node) = self.shard(ino).write().get_mut(&ino) {
            node.place = Some(place);
        }
    }

    /// The object lost its name `name` in `dir` through us, if it is known there.
    pub fn unlinked(&self, ino: Ino, dir: &DirId, name: &str) {
        if let Some(node) = self.shard(ino).write().get_mut(&ino).filter(|node| node.is_at(dir, name)) {
            node.place = None;
        }
    }

    pub fn forget(&self, ino: Ino) {
        self.shard(ino).write().remove(&ino);
        if ino.0 >= ALIAS_FIRST && self.alias_count.load(Ordering::Acquire) > 0 {
            let mut aliases = self.aliases.lock();
            aliases.by_host.retain(|_, &mut alias| alias != ino);
            self.alias_count.store(aliases.by_host.len(), Ordering::Release);
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
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
