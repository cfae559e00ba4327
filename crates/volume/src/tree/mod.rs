//! What a filesystem means, over the seam of [`crate::table`]: inodes, names, content, snapshots and branches.
//!
//! A [`Tree`] is all of it; a [`View`] is what one snapshot or branch sees; a [`change::Change`] is one operation, applied as
//! one batch. Locks, in this order: the topology (shared by every view, alone for what changes which id a branch has), an
//! inode's writer, the transactions (shared by who changes content, alone for a transaction), an inode's content
//! ([`content::Node`]), the numbers (whoever holds them is the only one to change the tree).

mod between;
mod change;
mod collect;
pub mod content;
mod diff;
mod draft;
pub(crate) mod edit;
mod forks;
mod names;
mod namespace;
mod read;
mod repair;
mod restore;
mod snapshots;
mod stamps;
mod topology;
pub mod verify;
mod view;
mod xattrs;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use adit_core::types::{Caller, Kind, Timestamp};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Mutex, RwLock};

pub use between::Between;
pub(crate) use change::Change;
pub use diff::{Difference, Differing};
pub use namespace::{Gone, NewInode};
pub use restore::Restored;
pub use snapshots::SnapshotInfo;
pub use stamps::Mtimes;
pub use topology::FIRST_ID;
use topology::Topology;
use view::Lines;
pub use view::View;
pub(crate) use view::cookie_in;

use crate::format::keys::{self, Id, Key, NameHash};
use crate::format::records::{self, Inode, Snapshot, State};
use crate::table::{Extents, Table};

/// The branch that every volume has.
pub const MAIN: &str = "main";

/// The number of every root directory.
pub const ROOT_INO: u64 = 1;

/// Inode numbers that are taken from the volume's counter at once. A crash loses at most so many.
const INOS_AT_ONCE: u64 = 4096;

/// The counter of inodes is not greater in any volume that was in use for less than a million years.
const INOS_MAX: u64 = 1 << 62;

/// Whether an inode may have this number: behind each that is in use there is room for the next ones.
fn is_ino(number: u64) -> bool {
    (ROOT_INO..INOS_MAX - INOS_AT_ONCE).contains(&number)
}

/// Longest file, in bytes.
pub const FILE_LEN_MAX_BYTES: u64 = i64::MAX as u64;

/// Windows of the longest file.
const WINDOWS_MAX: u64 =
    FILE_LEN_MAX_BYTES.div_ceil((crate::table::BLOCK_LEN_BYTES * records::WINDOW_LEN_BLOCKS) as u64);

/// Most names of one inode, and most directories in one.
pub const NAMES_MAX: u32 = 1 << 30;

/// Names of the volume's counters.
mod meta {
    /// The first inode number that was never used.
    pub const NEXT_INO: &str = "next-ino";
    /// The version of keys and records.
    pub const FORMAT: &str = "tree-format";
}

/// The version of keys and records.
const FORMAT: u64 = 1;

/// What is counted in memory and saved in strides.
pub(crate) struct Numbers {
    next: u64,
    limit: u64,
}

/// What is mounted: what the tree is asked through.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// A branch, to read and write.
    Branch(String),
    /// A snapshot, to read.
    Snapshot(Id),
}

/// See the module's notes.
pub struct Tree {
    pub(crate) table: Arc<dyn Table>,
    pub(crate) extents: Arc<dyn Extents>,
    pub(crate) hash: NameHash,
    pub(crate) topology: RwLock<Topology>,
    /// Who changes content reads it before it takes the numbers. Shared, so that no transaction comes between.
    pub(crate) transactions: RwLock<()>,
    pub(crate) numbers: Mutex<Numbers>,
    uses: Mutex<BTreeMap<Source, usize>>,
    /// Held by who drops what nobody sees.
    collecting: Mutex<()>,
    /// Ids that cannot be collected, for a record is damaged. They are left alone until the volume is opened again.
    damaged: Mutex<BTreeSet<Id>>,
    /// Forks whose versions may be hidden from everybody, and how far each was looked through: a key of its lists.
    forks: Mutex<BTreeMap<Id, Vec<u8>>>,
    /// Behind the blocks that were reserved last.
    hint: AtomicU64,
}

impl Tree {
    /// Makes an empty tree in an empty table: a root directory, and the branch [`MAIN`].
    pub fn format(table: &dyn Table, owner: Caller, perm: u16) -> Result<()> {
        let now = Timestamp::now();
        let root = Inode::new(Kind::Directory, perm, owner, now);
        let main = Snapshot { state: State::Live, parent: 0, created: now, name: MAIN.to_owned(), done: Vec::new() };
        let writes = vec![
            (keys::meta(meta::FORMAT), Some(records::encode_meta(FORMAT))),
            (keys::meta(meta::NEXT_INO), Some(records::encode_meta(ROOT_INO + 1))),
            (keys::snapshot(FIRST_ID), Some(main.encode())),
            (Key::inode(ROOT_INO).at(FIRST_ID), Some(root.encode())),
        ];
        table.apply(crate::table::Batch { writes, ..Default::default() }).map(drop)
    }

    /// Opens the tree in a table. What a crash left of branches that were being built is dropped.
    pub fn open(table: Arc<dyn Table>, extents: Arc<dyn Extents>, hash: NameHash) -> Result<Tree> {
        let counter = |name: &str| -> Result<u64> {
            let corrupt = || FsError::new(ErrorKind::Corrupt).on("open", format!("counter {name}"));
            let value = table.get(&keys::meta(name))?.ok_or_else(|| corrupt().because("it is missing"))?;
            records::decode_meta(&value).map_err(|why| corrupt().because(why))
        };
        let format = counter(meta::FORMAT)?;
        if format != FORMAT {
            let why = format!("format {format} of the tree, and this program knows {FORMAT}");
            return Err(FsError::new(ErrorKind::NotSupported).on("open", "volume").because(why));
        }
        let next = counter(meta::NEXT_INO)?;
        if !(ROOT_INO + 1..=INOS_MAX).contains(&next) {
            return Err(FsError::new(ErrorKind::Corrupt).on("open", "counter of inodes").because("it cannot be right"));
        }
        let topology = Topology::build(load_snapshots(&*table)?)?;
        let numbers = Mutex::new(Numbers { next, limit: next });
        let tree = Tree {
            table,
            extents,
            hash,
            topology: RwLock::new(topology),
            transactions: RwLock::default(),
            numbers,
            uses: Mutex::default(),
            collecting: Mutex::default(),
            damaged: Mutex::default(),
            forks: Mutex::default(),
            hint: AtomicU64::new(0),
        };
        tree.drop_staging()?;
        tree.note_forks();
        Ok(tree)
    }

    /// The first inode number that was never used.
    pub(crate) fn next_ino(&self) -> u64 {
        self.numbers.lock().next
    }

    /// What `source` sees. Hold it for one call, and only one at a time in a thread.
    pub fn view(&self, source: &Source) -> Result<View<'_>> {
        let topology = self.topology.read();
        let (id, chain) = match source {
            Source::Branch(name) => match topology.named(name) {
                Some((id, record)) if record.state == State::Live => (id, topology.live_chain(id).cloned()),
                _ => return Err(FsError::new(ErrorKind::NotFound).on("open", format!("branch {name}"))),
            },
            Source::Snapshot(id) => match topology.node(*id) {
                Ok(node) if node.record.state == State::Frozen => (*id, None),
                _ => return Err(FsError::new(ErrorKind::Stale).on("open", format!("snapshot {id}"))),
            },
        };
        Ok(View { tree: self, topology: Lines::Shared(topology), id, chain, cache: None })
    }

    /// Runs one operation on what `view` sees.
    pub(crate) fn change<'t, R>(
        &'t self,
        view: &View<'t>,
        work: impl FnOnce(&mut Change<'_, 't>) -> Result<R>,
    ) -> Result<R> {
        let mut numbers = self.numbers.lock();
        let mut change = Change::new(view, &mut numbers)?;
        let result = work(&mut change)?;
        change.commit()?;
        Ok(result)
    }

    /// Notes that `source` is in use, until the guard is dropped: it is not deleted meanwhile. `Busy` for a branch that is in
    /// use already.
    pub fn hold(self: &Arc<Self>, source: Source) -> Result<Hold> {
        self.begin_use(&source)?;
        Ok(Hold { tree: self.clone(), source })
    }

    fn begin_use(&self, source: &Source) -> Result<()> {
        // Held until it is noted: who deletes asks with the topology for itself.
        let _view = self.view(source)?;
        let mut uses = self.uses.lock();
        let count = uses.entry(source.clone()).or_insert(0);
        if *count > 0 && matches!(source, Source::Branch(_)) {
            return Err(FsError::new(ErrorKind::Busy).on("open", format!("{source:?}")));
        }
        *count += 1;
        Ok(())
    }

    /// Notes uses of ids as snapshots, for who holds the topology: of a branch's it counts from its next snapshot on.
    fn note_compared(&self, ids: &[Id]) {
        let mut uses = self.uses.lock();
        ids.iter().for_each(|&id| *uses.entry(Source::Snapshot(id)).or_insert(0) += 1);
    }

    fn end_use(&self, source: &Source) {
        let mut uses = self.uses.lock();
        match uses.get_mut(source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(uses.remove(source)),
        }
    }

    /// [`Tree::reap_all`] unless the branch is in use. `false`: it is. Nobody begins to use it meanwhile.
    fn reap_all_unused(&self, branch: &Source) -> Result<bool> {
        match self.begin_use(branch) {
            Err(e) if e.kind() == ErrorKind::Busy => return Ok(false),
            begun => begun?,
        }
        let done = self.reap_all(branch);
        self.end_use(branch);
        done.map(|()| true)
    }

    fn is_held(&self, source: &Source) -> bool {
        self.uses.lock().contains_key(source)
    }
}

/// A use of a snapshot or branch. See [`Tree::hold`].
pub struct Hold {
    tree: Arc<Tree>,
    source: Source,
}

impl Hold {
    /// The tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// What is in use.
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.tree.end_use(&self.source);
    }
}

/// The records of all ids, ascending.
fn load_snapshots(table: &dyn Table) -> Result<Vec<(Id, Snapshot)>> {
    let (mut found, mut failed) = (Vec::new(), None);
    table.scan(&[keys::space::SNAPSHOT], &[keys::space::SNAPSHOT + 1], &mut |key, value| {
        match (keys::parse_snapshot(key), Snapshot::decode(value)) {
            (Some(id), Ok(record)) => found.push((id, record)),
            (_, Err(why)) => {
                failed = Some(FsError::from(ErrorKind::Corrupt).on("open", "snapshots").because(why));
            }
            (None, _) => failed = Some(view::corrupt_key(key, "it is no snapshot's")),
        }
        if failed.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    failed.map_or(Ok(found), Err)
}
