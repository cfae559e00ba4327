//! Random operation sequences, run on a [`Store`] or through a mounted path and compared with the model step by step.
//!
//! [`generate`] makes a sequence from a seed; [`check_store`] and [`check_path`] run one; [`fuzz_store`] and
//! [`fuzz_path`] do both for many seeds, shrink what fails, and panic with the seed and the shortest sequence. An
//! [`Op`] names things by path, so that a sequence keeps its sense when others are taken out of it.
//!
//! What is compared: each outcome (errors by errno), and at the end the whole [`Snapshot`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use adit_core::store::Store;
use adit_core::types::{AllocateMode, Kind, RenameFlags, Timestamp, XattrSet};

use crate::model::{Limits, MemoryStore};
use crate::rng::{Rng, seeds};

mod generate;
mod on_path;
mod on_store;
mod shrink;
#[cfg(test)]
mod tests;

pub use generate::generate;
pub use on_path::PathSubject;
pub use on_store::StoreSubject;

/// A path from the root, by components; empty for the root.
pub type Place = Vec<Vec<u8>>;

/// A file by its path, or one that [`Op::Open`] opened before.
#[derive(Clone, PartialEq, Eq)]
pub enum Target {
    /// Opened for this operation alone.
    At(Place),
    /// The file in this slot; the operation is skipped where none is.
    Slot(u8),
}

/// One operation. No operation follows a symbolic link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Creates a regular file with these permissions.
    Create(Shown, u16),
    /// Creates a directory with these permissions.
    Mkdir(Shown, u16),
    /// Creates a FIFO or a socket with these permissions.
    Mknod(Shown, Kind, u16),
    /// Creates a symbolic link to a target that does not exist.
    Symlink(Shown, Vec<u8>),
    /// Gives the first a further name, the second.
    Link(Shown, Shown),
    /// Removes a name.
    Unlink(Shown),
    /// Removes a directory.
    Rmdir(Shown),
    /// Renames.
    Rename(Shown, Shown, RenameFlags),
    /// Writes pieces (offset, length; ascending, apart) of [`pattern`] bytes of the seed.
    Write(Target, Vec<(u64, usize)>, u64),
    /// Reads (offset, length).
    Read(Target, u64, usize),
    /// Reads all that `SEEK_DATA` and `SEEK_HOLE` find to be data, the rest being zeros.
    ReadSparse(Target),
    /// Sets the length; through the inode, not the handle, if the flag is set.
    Truncate(Target, u64, bool),
    /// `fallocate(2)` of (offset, length).
    Allocate(Target, u64, u64, AllocateMode),
    /// `fsync(2)`, or `fdatasync(2)` if the flag is set.
    Sync(Target, bool),
    /// Opens a file into a slot, which is closed before.
    Open(u8, Shown),
    /// Closes a slot.
    Close(u8),
    /// Lists a directory.
    List(Shown),
    /// Attributes.
    Stat(Shown),
    /// The target of a link.
    ReadLink(Shown),
    /// Sets permissions.
    Chmod(Shown, u16),
    /// Sets both times, and reads them back.
    SetTimes(Shown, Timestamp, Timestamp),
    /// Sets an extended attribute (name, length of the value, seed) of a file or directory.
    SetXattr(Shown, Vec<u8>, (usize, u64), XattrSet),
    /// An extended attribute of a file or directory.
    GetXattr(Shown, Vec<u8>),
    /// Removes an extended attribute of a file or directory.
    RemoveXattr(Shown, Vec<u8>),
    /// The names of the extended attributes in `user.` of a file or directory.
    ListXattrs(Shown),
    /// Makes a directory's entries durable.
    SyncDir(Shown),
    /// Makes everything durable.
    SyncAll,
}

/// A [`Place`] that prints as a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Shown(pub Place);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|name| shown_name(name)).collect();
        write!(f, "/{}", parts.join("/"))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::At(place) => Shown(place.clone()).fmt(f),
            Target::Slot(slot) => write!(f, "slot {slot}"),
        }
    }
}

/// A name for messages; a long one is cut and its length said.
fn shown_name(name: &[u8]) -> String {
    if name.len() <= 24 {
        return name.escape_ascii().to_string();
    }
    format!("{}…({} bytes)", name[..8].escape_ascii(), name.len())
}

/// What an operation gave.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// Nothing to act on: an empty slot.
    Skipped,
    /// An error, by errno.
    Failed(i32),
    /// Bytes that were read: content, or a link's target.
    Bytes(Vec<u8>),
    /// Sorted names with their kinds.
    Names(Vec<(Vec<u8>, Kind)>),
    /// Attributes.
    Seen(Seen),
    /// Access and modification time.
    Times(Timestamp, Timestamp),
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Skipped => f.write_str("skipped"),
            Outcome::Failed(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
            Outcome::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Outcome::Names(names) => {
                f.debug_list().entries(names.iter().map(|(n, k)| format!("{} {}", k.as_str(), shown_name(n)))).finish()
            }
            Outcome::Seen(seen) => seen.fmt(f),
            Outcome::Times(atime, mtime) => write!(f, "atime {atime:?} mtime {mtime:?}"),
        }
    }
}

/// The attributes that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// What it is.
    pub kind: Kind,
    /// Permissions; 0 for symbolic links, whose permissions mean nothing.
    pub perm: u16,
    /// Length in bytes; 0 for directories, which count differently everywhere.
    pub size: u64,
    /// Number of names; 0 for directories.
    pub nlink: u32,
    /// Owner and group.
    pub owner: (u32, u32),
}

/// What lies at a path.
#[derive(Clone, PartialEq, Eq)]
pub struct Found {
    /// Its attributes.
    pub seen: Seen,
    /// A file's content or a link's target.
    pub content: Vec<u8>,
    /// Extended attributes in `user.`; of files and directories only.
    pub xattrs: Xattrs,
}

/// Extended attributes with their values.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A whole tree, by path.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Snapshot(pub BTreeMap<Shown, Found>);

impl Snapshot {
    /// How `got` differs from this, in one line; `None` if it does not.
    pub fn difference(&self, got: &Snapshot) -> Option<String> {
        for (place, expected) in &self.0 {
            let Some(got) = got.0.get(place) else {
                return Some(format!("{place:?} is missing"));
            };
            if expected.seen != got.seen {
                return Some(format!("{place:?} is {:?}, expected {:?}", got.seen, expected.seen));
            }
            if let Some(at) = first_difference(&expected.content, &got.content) {
                return Some(format!("{place:?} differs from byte {at} on"));
            }
            if expected.xattrs != got.xattrs {
                let names = |xattrs: &Xattrs| xattrs.keys().map(|name| shown_name(name)).collect::<Vec<_>>();
                let (expected, got) = (names(&expected.xattrs), names(&got.xattrs));
                return Some(format!("{place:?} has the attributes {got:?}, expected {expected:?}, or other values"));
            }
        }
        let extra = got.0.keys().find(|place| !self.0.contains_key(place));
        extra.map(|place| format!("{place:?} should not be there"))
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    let at = a.iter().zip(b).position(|(x, y)| x != y);
    at.or_else(|| (a.len() != b.len()).then(|| a.len().min(b.len())))
}

/// What runs operations: a store, or a mounted path.
pub trait Subject {
    /// Runs one operation.
    fn run(&mut self, op: &Op) -> Outcome;

    /// The whole tree as it is now; an error says what could not be read.
    fn snapshot(&mut self) -> Result<Snapshot, String>;
}

/// The bytes that a write of `seed` puts at `offset`: no two units alike, and none zero.
pub fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (Rng::new(seed ^ (at >> 3)).next_u64() >> (at & 7)) as u8 | 1).collect()
}

/// Extended attributes are set and read on these kinds only: `user.` is refused elsewhere.
fn takes_xattrs(kind: Kind) -> bool {
    matches!(kind, Kind::File | Kind::Directory)
}

/// The names in `user.` of a list in which each ends with a NUL byte, sorted.
fn user_names(list: &[u8]) -> Vec<Vec<u8>> {
    let names = list.split(|&byte| byte == 0).filter(|name| name.starts_with(b"user."));
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    names
}

/// Where a subject and the model part.
#[derive(Debug)]
pub struct Mismatch {
    /// Index of the operation; the number of operations for the final tree.
    pub step: usize,
    /// What differs.
    pub what: String,
}

/// Whether the outcomes agree as far as the seam promises.
fn agree(op: &Op, limits: &Limits, expected: &Outcome, got: &Outcome) -> bool {
    if expected == got {
        return true;
    }
    if !matches!((expected, got), (Outcome::Failed(_), Outcome::Failed(_))) {
        return false;
    }
    // Which of two reasons comes first is not promised: a name that cannot be stored is also not there, and a link
    // that cannot be made may also be in the way.
    let unfit =
        |name: &Vec<u8>| name.len() > limits.name_len_max || (!limits.any_bytes && std::str::from_utf8(name).is_err());
    let places: &[&Shown] = match op {
        Op::Link(..) if !limits.hard_links => return true,
        Op::Mknod(..) if !limits.special_nodes => return true,
        Op::SetXattr(..) | Op::GetXattr(..) | Op::RemoveXattr(..) | Op::ListXattrs(_) if !limits.xattrs => return true,
        Op::SetXattr(p, ..) | Op::GetXattr(p, _) | Op::RemoveXattr(p, _) | Op::ListXattrs(p) | Op::Mknod(p, ..) => &[p],
        Op::Create(p, _) | Op::Mkdir(p, _) | Op::Symlink(p, _) | Op::Chmod(p, _) | Op::SetTimes(p, ..) => &[p],
        Op::Unlink(p) | Op::Rmdir(p) | Op::List(p) | Op::Stat(p) | Op::ReadLink(p) | Op::SyncDir(p) => &[p],
        Op::Open(_, p) => &[p],
        Op::Rename(a, b, _) | Op::Link(a, b) => &[a, b],
        Op::Write(t, ..)
        | Op::Read(t, ..)
        | Op::Truncate(t, ..)
        | Op::Allocate(t, ..)
        | Op::Sync(t, _)
        | Op::ReadSparse(t) => match t {
            Target::At(place) => return place.iter().any(unfit),
            Target::Slot(_) => &[],
        },
        Op::Close(_) | Op::SyncAll => &[],
    };
    places.iter().any(|place| place.0.iter().any(unfit))
}

/// Runs `ops` on `subject` and on the model, until they differ.
pub fn check(subject: &mut dyn Subject, ops: &[Op], limits: &Limits) -> Result<(), Mismatch> {
    let store = MemoryStore::new(*limits);
    let mut model = StoreSubject::new(&store);
    for (step, op) in ops.iter().enumerate() {
        let (expected, got) = (model.run(op), subject.run(op));
        if agree(op, limits, &expected, &got) {
            continue;
        }
        let mut what = format!("{op:?}: got {got:?}, expected {expected:?}");
        if let (Outcome::Bytes(a), Outcome::Bytes(b)) = (&expected, &got)
            && let Some(at) = first_difference(a, b)
        {
            what += &format!(", different from byte {at} on");
        }
        return Err(Mismatch { step, what });
    }
    let expected = model.snapshot().map_err(|what| Mismatch { step: ops.len(), what: format!("model: {what}") })?;
    let what = match subject.snapshot() {
        Ok(got) => expected.difference(&got),
        Err(what) => Some(what),
    };
    what.map_or(Ok(()), |what| Err(Mismatch { step: ops.len(), what }))
}

/// Runs `ops` on an empty store.
pub fn check_store(store: &dyn Store, ops: &[Op], limits: &Limits) -> Result<(), Mismatch> {
    check(&mut StoreSubject::new(store), ops, limits)
}

/// Runs `ops` in the empty directory `dir` of a mounted filesystem, through system calls.
pub fn check_path(dir: &Path, ops: &[Op], limits: &Limits) -> Result<(), Mismatch> {
    let mut subject = PathSubject::new(dir).map_err(|e| Mismatch { step: 0, what: format!("open {dir:?}: {e}") })?;
    check(&mut subject, ops, limits)
}

/// The tree that `ops` lead to.
pub fn expected(ops: &[Op], limits: &Limits) -> Snapshot {
    let store = MemoryStore::new(*limits);
    let mut model = StoreSubject::new(&store);
    for op in ops {
        model.run(op);
    }
    model.snapshot().expect("the model reads what it holds")
}

/// How much [`fuzz_store`] and [`fuzz_path`] do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Sequences, to be [`scaled`](crate::scaled).
    pub seeds: usize,
    /// Operations of each.
    pub ops: usize,
    /// What the subject can hold.
    pub limits: Limits,
}

/// Runs random sequences on fresh stores from `make`, whose first value is dropped after the store.
///
/// # Panics
/// With the seed and a shortest sequence, if a store and the model differ.
pub fn fuzz_store<G, S: Store>(plan: &Plan, mut make: impl FnMut() -> (G, S)) {
    fuzz(plan, |ops| {
        let (guard, store) = make();
        let result = check_store(&store, ops, &plan.limits);
        drop(store);
        drop(guard);
        result
    });
}

/// Runs random sequences in new directories below `mountpoint`, and removes each when it agrees.
///
/// # Panics
/// As [`fuzz_store`], and if `mountpoint` takes no directory.
pub fn fuzz_path(plan: &Plan, mountpoint: &Path) {
    let mut run = 0;
    fuzz(plan, |ops| {
        run += 1;
        let dir = mountpoint.join(format!("run-{run}"));
        std::fs::create_dir(&dir).expect("the mount takes a directory");
        let result = check_path(&dir, ops, &plan.limits);
        std::fs::remove_dir_all(&dir).expect("the run's directory can be removed");
        result
    });
}

/// Runs random sequences through `check`, which may leave out what its subject cannot do, and add to it.
///
/// # Panics
/// As [`fuzz_store`].
pub fn fuzz(plan: &Plan, mut check: impl FnMut(&[Op]) -> Result<(), Mismatch>) {
    for seed in seeds(plan.seeds) {
        let ops = generate(seed, plan.ops, &plan.limits);
        let Err(first) = check(&ops) else { continue };
        let (ops, mismatch) = shrink::shrink(ops, first, &mut check);
        let list: Vec<String> = ops.iter().enumerate().map(|(i, op)| format!("  {i:3} {op:?}")).collect();
        panic!(
            "ADIT_TEST_SEED={seed}: step {} of {}: {}\n{}",
            mismatch.step,
            ops.len(),
            mismatch.what,
            list.join("\n")
        );
    }
}
