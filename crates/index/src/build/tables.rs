//! The tables, out of the columns: of whole paths, what is found by its hash, and the paths of directories; and the signatures of names.
//!
//! All that is here follows from the columns, so the same columns give the same bytes: a full check makes them again and
//! compares. Hashes are made by all threads, each for a range of nodes; sorted in memory and, when that is used up, in runs in
//! scratch files; and merged into buckets from the first to the last.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, BufReader, BufWriter, Write};
use std::ops::Range;
use std::thread;

use adit_core::error::{ErrorKind, FsError};
use adit_core::types::Kind;

use super::output::WriteError;
use super::record::array;
use super::scratch::ScratchFile;
use super::signatures;
use crate::cores::cores_up_to;
use crate::layout::Section;
use crate::layout::tables::{
    self, BUCKET_SLOTS, Bucket, EMPTY, PROBE_MAX, RANK_NODES, Rank, bucket_count, home_buckets, is_path_stored,
    path_hash,
};
use crate::segment::Columns;

/// So many nodes are worth a thread of their own.
const NODES_A_THREAD: u32 = 1 << 15;
/// Most threads.
const THREADS_MAX: u32 = 64;
/// Least number of hashes that are sorted at once.
const RUN_MIN: usize = 1 << 14;
/// What is written to a run, and read of it, at once, in bytes: most, and least where there are many runs.
const BUFFER_LEN: usize = 256 << 10;
const BUFFER_LEN_MIN: usize = 4 << 10;

/// Takes the bytes of a section in order.
pub(crate) type Sink<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

/// With what tables are made.
#[derive(Clone, Copy)]
pub(crate) struct How<'a> {
    /// Makes a scratch file.
    pub scratch: &'a (dyn Fn() -> io::Result<ScratchFile> + Sync),
    /// Most memory that is taken, about; scratch files are used beyond it.
    pub memory_limit_bytes: usize,
}

/// Hands the bytes of a table to `sink`.
pub(crate) fn make(
    section: Section,
    columns: &Columns<'_>,
    how: &How<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), WriteError> {
    match section {
        Section::Buckets => {
            let records = Merged::new(sorted(columns, how)?, how.memory_limit_bytes).map_err(scratch_error)?;
            fill(columns.len(), records, sink)
        }
        Section::DirectoryRanks => ranks(columns, sink),
        Section::DirectoryPositions => positions(columns, sink),
        Section::DirectoryPaths => paths(columns, sink),
        Section::NameSignatures => signatures::make(columns, sink),
        _ => Ok(()),
    }
}

/// Hands the bytes of a table to `sink`. Takes 16 bytes of memory a node, and no scratch file.
pub(crate) fn make_in_memory(
    section: Section,
    columns: &Columns<'_>,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<(), FsError> {
    let none = || Err(io::ErrorKind::Unsupported.into());
    let how = How { scratch: &none, memory_limit_bytes: usize::MAX };
    let made = make(section, columns, &how, &mut |bytes| {
        sink(bytes);
        Ok(())
    });
    made.map_err(|e| match e {
        WriteError::Index(e) => e,
        WriteError::Io(e) => e.into(),
        WriteError::Interrupted => ErrorKind::Interrupted.into(),
    })
}

fn scratch_error(e: io::Error) -> FsError {
    FsError::from(e).on("write", "scratch files")
}

/// A path's hash, and its node in the lowest 32 bits: sorted by both.
type Record = u128;

fn record(hash: u64, node: u32) -> Record {
    u128::from(hash) << 64 | u128::from(node)
}

/// Records in order.
enum Run {
    Memory(std::vec::IntoIter<Record>),
    Scratch(Box<BufReader<ScratchFile>>, u64),
}

impl Run {
    fn next(&mut self) -> io::Result<Option<Record>> {
        match self {
            Run::Memory(records) => Ok(records.next()),
            Run::Scratch(_, 0) => Ok(None),
            Run::Scratch(input, left) => {
                *left -= 1;
                array(input).map(|bytes| Some(Record::from_le_bytes(bytes)))
            }
        }
    }
}

/// Records in order that nobody reads yet: when all of them are there, it is known what reading one may take.
enum Sorted {
    Memory(Vec<Record>),
    Scratch(Box<ScratchFile>, u64),
}

impl Sorted {
    fn write(records: &[Record], file: ScratchFile) -> io::Result<Sorted> {
        let mut out = BufWriter::with_capacity(BUFFER_LEN, file);
        records.iter().try_for_each(|record| out.write_all(&record.to_le_bytes()))?;
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind();
        Ok(Sorted::Scratch(Box::new(file), records.len() as u64))
    }

    /// To be read in pieces of this length.
    fn open(self, buffer_len: usize) -> Run {
        match self {
            Sorted::Memory(records) => Run::Memory(records.into_iter()),
            Sorted::Scratch(file, left) => Run::Scratch(Box::new(BufReader::with_capacity(buffer_len, *file)), left),
        }
    }
}

/// The hashes of all paths, in runs.
fn sorted(columns: &Columns<'_>, how: &How<'_>) -> Result<Vec<Sorted>, FsError> {
    let threads = cores_up_to((columns.len() / NODES_A_THREAD).min(THREADS_MAX) as usize) as u32;
    let run_len = (how.memory_limit_bytes / size_of::<Record>() / threads as usize).max(RUN_MIN);
    let each = columns.len().div_ceil(threads).max(1);
    let part = |number: u32| {
        let start = number.saturating_mul(each).max(1);
        start..number.saturating_add(1).saturating_mul(each).min(columns.len())
    };
    let found = thread::scope(|scope| {
        let one = |number| move || sorted_part(columns, part(number), how, run_len);
        let others: Vec<_> = (1..threads).map(|number| scope.spawn(one(number))).collect();
        let mut found = vec![one(0)()];
        found.extend(others.into_iter().map(|thread| thread.join().expect("it does not panic")));
        found
    });
    let runs: Result<Vec<_>, _> = found.into_iter().collect();
    Ok(runs?.into_iter().flatten().collect())
}

/// The hashes of some nodes' paths. Neighbours are in the same directory, whose path is made once for them.
fn sorted_part(
    columns: &Columns<'_>,
    nodes: Range<u32>,
    how: &How<'_>,
    run_len: usize,
) -> Result<Vec<Sorted>, FsError> {
    let mut runs = Vec::new();
    let mut records: Vec<Record> = Vec::with_capacity(run_len.min(nodes.len()));
    let (mut path, mut dir, mut dir_len) = (Vec::new(), None, 0);
    for (node, name) in nodes.clone().zip(columns.names_from(nodes.start)) {
        let (Some(name), Some(parent)) = (name, columns.parent(node)) else { return Err(columns.damaged(node)) };
        if dir != Some(parent) {
            path.clear();
            columns.path_into(parent, &mut path).ok_or_else(|| columns.damaged(parent))?;
            path.extend((parent != 0).then_some(b'/'));
            (dir, dir_len) = (Some(parent), path.len());
        }
        path.truncate(dir_len);
        path.extend(name);
        if records.len() == run_len {
            records.sort_unstable();
            runs.push((how.scratch)().and_then(|file| Sorted::write(&records, file)).map_err(scratch_error)?);
            records.clear();
        }
        records.push(record(path_hash(&path), node));
    }
    records.sort_unstable();
    runs.push(Sorted::Memory(records));
    Ok(runs)
}

/// All runs, in order.
struct Merged {
    runs: Vec<Run>,
    heads: BinaryHeap<Reverse<(Record, usize)>>,
}

impl Merged {
    fn new(runs: Vec<Sorted>, memory_limit_bytes: usize) -> io::Result<Merged> {
        let buffer_len = (memory_limit_bytes / runs.len().max(1)).clamp(BUFFER_LEN_MIN, BUFFER_LEN);
        let mut runs: Vec<Run> = runs.into_iter().map(|run| run.open(buffer_len)).collect();
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (number, run) in runs.iter_mut().enumerate() {
            heads.extend(run.next()?.map(|record| Reverse((record, number))));
        }
        Ok(Merged { runs, heads })
    }

    fn peek(&self) -> Option<(u64, u32)> {
        self.heads.peek().map(|Reverse((record, _))| ((record >> 64) as u64, *record as u32))
    }

    fn advance(&mut self) -> io::Result<()> {
        if let Some(mut head) = self.heads.peek_mut() {
            let number = head.0.1;
            match self.runs[number].next()? {
                Some(record) => head.0.0 = record,
                None => drop(std::collections::binary_heap::PeekMut::pop(head)),
            }
        }
        Ok(())
    }
}

/// A path for which its own bucket had no room.
struct Carried {
    home: u32,
    tag: u32,
    node: u32,
}

/// The buckets, from the first to the last.
///
/// Who is carried goes first, in order; so all buckets from a path's own to the one that it is in are full, and who finds room in
/// one need not look further. Who is not placed in [`PROBE_MAX`] buckets is left out: these are all full then, which sends a
/// lookup on a walk. That happens to paths of the same hash, which somebody made on purpose.
fn fill(count: u32, mut records: Merged, sink: &mut Sink<'_>) -> Result<(), WriteError> {
    const CARRIED_MAX: usize = (PROBE_MAX - 1) * BUCKET_SLOTS;
    let homes = home_buckets(count);
    let mut carried: VecDeque<Carried> = VecDeque::new();
    for number in 0..bucket_count(count) {
        let (mut tags, mut nodes) = ([0; BUCKET_SLOTS], [EMPTY; BUCKET_SLOTS]);
        let mut used = 0;
        let mut put = |tag, node| {
            (tags[used], nodes[used]) = (tag, node);
            used += 1;
            used == BUCKET_SLOTS
        };
        let mut full = false;
        while let Some(path) = carried.front()
            && !full
        {
            full = put(path.tag, path.node);
            carried.pop_front();
        }
        // More than so many of one bucket have no room in those behind it, whoever else is carried.
        let mut own = 0;
        while let Some((hash, node)) = records.peek()
            && tables::home(hash, homes) == number
        {
            let tag = tables::tag(hash);
            if !full {
                full = put(tag, node);
            } else if own < CARRIED_MAX {
                carried.push_back(Carried { home: number, tag, node });
                own += 1;
            }
            records.advance().map_err(scratch_error)?;
        }
        while carried.front().is_some_and(|path| path.home + (PROBE_MAX as u32 - 1) <= number) {
            carried.pop_front();
        }
        sink(&Bucket::encode(&tags, &nodes))?;
    }
    Ok(())
}

/// Which directories have a path of their own.
fn ranks(columns: &Columns<'_>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
    let mut before = 0;
    for first in (0..columns.len()).step_by(RANK_NODES as usize) {
        let mut rank = Rank { bits: 0, before };
        for node in first..first.saturating_add(RANK_NODES).min(columns.len()) {
            rank.bits |= u64::from(stored_len(columns, node)?.is_some()) << (node - first);
        }
        before += rank.bits.count_ones();
        sink(&rank.encode())?;
    }
    Ok(())
}

/// Where their paths begin and end.
fn positions(columns: &Columns<'_>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
    let mut at = 0_u64;
    sink(&at.to_le_bytes())?;
    for node in 0..columns.len() {
        if let Some(len) = stored_len(columns, node)? {
            at += len as u64;
            sink(&at.to_le_bytes())?;
        }
    }
    Ok(())
}

/// Their paths.
fn paths(columns: &Columns<'_>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
    let mut path = Vec::new();
    for node in 0..columns.len() {
        if stored_len(columns, node)?.is_some() {
            path.clear();
            columns.path_into(node, &mut path).ok_or_else(|| columns.damaged(node))?;
            sink(&path)?;
        }
    }
    Ok(())
}

/// The length of a node's path, if that has a place of its own.
fn stored_len(columns: &Columns<'_>, node: u32) -> Result<Option<usize>, FsError> {
    let mode = columns.mode(node).ok_or_else(|| columns.damaged(node))?;
    if mode.kind() != Kind::Directory {
        return Ok(None);
    }
    let children = columns.children(node).ok_or_else(|| columns.damaged(node))?.len() as u32;
    // The shortest path of all is not stored: most directories need no further look.
    if !is_path_stored(1, children) {
        return Ok(None);
    }
    let (mut len, mut at) = (0, node);
    while at != 0 {
        let name = columns.name_range(at).ok_or_else(|| columns.damaged(at))?;
        len += name.len() + usize::from(len > 0);
        at = columns.parent(at).ok_or_else(|| columns.damaged(at))?;
    }
    Ok(is_path_stored(len, children).then_some(len))
}
