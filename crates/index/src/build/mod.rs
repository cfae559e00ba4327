//! Making a segment: [`Builder`] takes entries in any order and writes the file in bounded memory.
//!
//! Entries are collected in memory (`run`); when that is full they are sorted and written as a run, while others are collected. At the
//! end all runs are merged into the order of the tree, where implied directories and refusals show (`tree`). Nodes are put on their level of
//! the tree (`levels`), and the levels are written one behind the other as columns (`output`). So an entry is written to
//! scratch files twice, and once more for each time that its run is merged with 15 others before the end.
//!
//! Sorting is divided among all threads, columns and tables among two, and the hashes of paths and the signatures of names among all; runs are
//! merged and the tree is made by one.
//!
//! The file does not depend on the order of the entries: the same entries give the same bytes.

mod heap;
mod levels;
mod output;
mod record;
mod run;
mod scratch;
mod signatures;
pub(crate) mod tables;
mod tree;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;

use crate::error::Refusal;
use crate::layout::{EXTRA_LEN_MAX_BYTES, IDENTITY_LEN_MAX_BYTES, Mode};
use crate::progress::{Progress, Report, Stage};
use crate::publish::{MayReplace, NewFile};
#[cfg(feature = "sealed")]
use crate::sealed::{self, SealKey};
use crate::{ContentHash, Stamp};
use heap::Heap;
use levels::Levels;
use output::{Target, WriteError};
use record::Facts;
use run::{Run, RunFile, RunWriter, Spilling};
use scratch::Place;
use tables::How;
use tree::{PushError, Totals, Tree};

/// Least memory that a builder takes, in bytes, whatever it was given.
pub const MEMORY_MIN_BYTES: usize = 2 << 20;
/// So many runs are merged at once.
const FAN_IN: usize = 16;
/// So many entries are merged or put into the tree between two reports.
const STEP: u64 = 1 << 14;
/// What is read of a run at once, in bytes: not less than this, and not more.
const READ_LEN_MIN: usize = 16 << 10;
const READ_LEN_MAX: usize = 1 << 20;

/// What a builder takes.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Names with one slash between, relative to the root; the empty path is the root. Any bytes but NUL; no `.` and no `..`.
    pub path: &'a [u8],
    /// What it is.
    pub kind: Kind,
    /// Permission bits (`mode & 0o7777`).
    pub perm: u16,
    /// Size in bytes. Not kept of a directory.
    pub size: u64,
    /// When its content changed last, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// A hash of its content.
    pub hash: Option<ContentHash>,
    /// Which file the hash is of. Kept with a hash only.
    pub stamp: Option<Stamp>,
    /// Any bytes that go with it, at most [`EXTRA_LEN_MAX_BYTES`].
    pub extra: &'a [u8],
}

/// What [`Builder::finish`] made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Built {
    /// Number of nodes, the root and implied directories included.
    pub nodes: u32,
    /// How many of them are directories.
    pub directories: u32,
    /// How many of these no entry named.
    pub implied: u32,
    /// Length of the file in bytes.
    pub file_len: u64,
}

/// Collects entries and writes a segment.
///
/// Memory: the limit, and about 1 MiB for buffers of fixed length; with [tables](Builder::set_tables) up to 10 MiB more, and some for each thread. Disk: in the scratch folder, what the entries take, twice, with the
/// paths' common beginnings left out; none of it has a name, so it goes with the builder however that ends. The segment
/// itself is written beside its place; a host without `O_TMPFILE` shows it there as `.adit-index-*.tmp`, which a kill may leave, and the next one that is published there removes.
pub struct Builder {
    place: Place,
    limit: usize,
    identity: Vec<u8>,
    tables: bool,
    implied: Facts,
    /// Half of the memory at first; a quarter once another one is sorted and written meanwhile.
    run: Run,
    spilling: Option<Spilling>,
    /// Runs by how often what is in them was merged: up to [`FAN_IN`] of each.
    runs: Vec<Vec<RunFile>>,
    heap: Option<Heap>,
    entries: u64,
    /// The key of the entry at hand.
    key: Vec<u8>,
    /// Whether a scratch file failed, so that entries are lost.
    failed: bool,
}

impl Builder {
    /// A builder whose scratch files lie in `scratch_dir`, which exists, and that takes up to `memory_limit_bytes` of
    /// memory, but [`MEMORY_MIN_BYTES`] at least. Nothing is allocated before it is needed.
    pub fn new(scratch_dir: &Path, memory_limit_bytes: u64) -> Builder {
        let limit = usize::try_from(memory_limit_bytes).unwrap_or(usize::MAX).max(MEMORY_MIN_BYTES);
        let mut builder = Builder {
            place: Place::new(scratch_dir),
            limit,
            identity: Vec::new(),
            tables: false,
            implied: Facts::NOTHING,
            run: Run::new(limit / 2),
            spilling: None,
            runs: Vec::new(),
            heap: None,
            entries: 0,
            key: Vec::new(),
            failed: false,
        };
        builder.set_implied(0o755, 0);
        builder
    }

    /// What the segment is made of, for [`crate::Segment::identity`]: at most [`IDENTITY_LEN_MAX_BYTES`], else `InvalidInput`.
    pub fn set_identity(&mut self, identity: &[u8]) -> Result<()> {
        if identity.len() > IDENTITY_LEN_MAX_BYTES {
            let why = format!("the identity of an index has at most {IDENTITY_LEN_MAX_BYTES} bytes");
            return Err(FsError::new(ErrorKind::InvalidInput).because(why));
        }
        self.identity = identity.to_owned();
        Ok(())
    }

    /// Whether the segment gets the tables with which [`crate::Resolver`] finds whole paths fast, up to 15 bytes a node, and the
    /// signatures with which a [`crate::query::Query`] leaves names out, 2.5 bytes; no otherwise.
    pub fn set_tables(&mut self, tables: bool) {
        self.tables = tables;
    }

    /// Permission bits and time, in nanoseconds since 1970, of directories that no entry names; 0755 and 0 otherwise.
    pub fn set_implied(&mut self, perm: u16, mtime_ns: i64) {
        self.implied.mode = Mode::implied(perm);
        self.implied.mtime_ns = mtime_ns;
    }

    /// Encrypts the scratch files, by a key that only this process has. Called before any entry is added.
    ///
    /// # Errors
    /// `Io`, if the host has no random bytes.
    #[cfg(feature = "sealed")]
    pub fn seal_scratch(&mut self) -> Result<()> {
        debug_assert!(self.is_empty(), "what was written before is in clear");
        self.place.seal()
    }

    /// How many entries were taken.
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// Whether no entry was taken.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Takes an entry. What is above it need not be one, nor come first.
    ///
    /// # Errors
    /// The entry alone, with a [`Refusal`] as the cause, which leaves the builder as it was; or a scratch file failed, which ends it.
    pub fn add(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.check_usable()?;
        tree::key_of(entry.path, &mut self.key).map_err(|refusal| refusal.of(entry.path))?;
        let is_dir = entry.kind == Kind::Directory;
        if self.key.is_empty() && !is_dir {
            return Err(Refusal::Root.of(entry.path));
        }
        if entry.extra.len() > EXTRA_LEN_MAX_BYTES {
            return Err(Refusal::ExtraTooLong.of(entry.path));
        }
        let added = self.keep(entry, is_dir);
        self.failed |= added.is_err();
        added.map_err(|e| self.scratch_error(e))?;
        self.entries += 1;
        Ok(())
    }

    fn keep(&mut self, entry: &Entry<'_>, is_dir: bool) -> io::Result<()> {
        let mut extra = None;
        if !entry.extra.is_empty() {
            let heap = match &mut self.heap {
                Some(heap) => heap,
                empty => empty.insert(Heap::new(self.place.file()?)),
            };
            extra = Some(heap.push(entry.extra)?);
        }
        let facts = Facts {
            size: if is_dir { 0 } else { entry.size },
            mtime_ns: entry.mtime_ns,
            mode: Mode::new(entry.kind, entry.perm, entry.hash.is_some()),
            hash: entry.hash.unwrap_or_default(),
            stamp: entry.stamp.filter(|_| entry.hash.is_some()).unwrap_or_default(),
            extra,
        };
        if !self.run.push(&self.key, &facts) {
            self.spill()?;
            assert!(self.run.push(&self.key, &facts), "an empty run takes an entry");
        }
        Ok(())
    }

    /// Has what is in memory written as a run, when that before it is written.
    fn spill(&mut self) -> io::Result<()> {
        self.take_spilled()?;
        let full = std::mem::replace(&mut self.run, Run::new(self.limit / 4));
        self.spilling = Some(full.spill(self.place.file()?));
        Ok(())
    }

    /// Takes the run that was being written to the others, and merges as many as there may be of one kind.
    fn take_spilled(&mut self) -> io::Result<()> {
        let Some(spilling) = self.spilling.take() else { return Ok(()) };
        let mut run = spilling.end()?;
        for tier in 0.. {
            if tier == self.runs.len() {
                self.runs.push(Vec::new());
            }
            self.runs[tier].push(run);
            if self.runs[tier].len() < FAN_IN {
                break;
            }
            let runs = std::mem::take(&mut self.runs[tier]);
            run = self.merge_into_one(runs, &mut || Ok::<_, io::Error>(()))?;
        }
        Ok(())
    }

    /// `tick` is called for each entry, and may end it.
    fn merge_into_one<E: From<io::Error>>(
        &self,
        runs: Vec<RunFile>,
        tick: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<RunFile, E> {
        let mut out = RunWriter::new(self.place.file()?);
        run::merge(runs, self.read_len(), &mut |key, facts| -> Result<(), E> {
            tick()?;
            Ok(out.put(key, facts)?)
        })?;
        Ok(out.end()?)
    }

    /// What is read of each run at once while runs are merged.
    fn read_len(&self) -> usize {
        (self.limit / 4 / FAN_IN).clamp(READ_LEN_MIN, READ_LEN_MAX)
    }

    /// Makes the segment at `out`, in place of what is there; its folder exists. It is durable and whole, or not there.
    /// `report` is told of the progress, and can end it (`Interrupted`).
    ///
    /// # Errors
    /// `Exists` or `NotDirectory` with a [`Refusal`] as the cause, and the entry's path as the subject, for entries that cannot be
    /// in one tree; what the host says where a file fails. Nothing is left of the work then.
    pub fn finish(self, out: &Path, report: &mut Report<'_>) -> Result<Built> {
        let file = NewFile::create(out).map_err(|e| write_error(e, out))?;
        let built = self.finish_into(file.file(), out, report)?;
        file.publish().map_err(|e| write_error(e, out))?;
        Ok(built)
    }

    /// As [`Builder::finish`], if `may` says so in the end, when all of it is written.
    ///
    /// # Errors
    /// As [`Builder::finish`], and what `may` says.
    pub fn finish_if(self, out: &Path, report: &mut Report<'_>, may: &mut MayReplace<'_>) -> Result<Built> {
        let file = NewFile::create(out).map_err(|e| write_error(e, out))?;
        let built = self.finish_into(file.file(), out, report)?;
        file.publish_if(may, &|e| write_error(e, out))?;
        Ok(built)
    }

    /// As [`Builder::finish`], into an empty file that is open for reading and writing, and stays the caller's to publish. Errors name `out`.
    pub fn finish_into(self, file: &File, out: &Path, report: &mut Report<'_>) -> Result<Built> {
        self.write(Target::File(file), out, report)
    }

    /// As [`Builder::finish_if`], encrypted with `key`. All scratch files from here on are encrypted as well, the segment being one of them: it is never
    /// on the disk in clear, and of it only what tables are made of is in memory: some 16 bytes and the name of each node.
    ///
    /// # Errors
    /// As [`Builder::finish_if`].
    #[cfg(feature = "sealed")]
    pub fn finish_sealed(
        mut self,
        key: &SealKey,
        out: &Path,
        report: &mut Report<'_>,
        may: &mut MayReplace<'_>,
    ) -> Result<Built> {
        self.check_usable()?;
        self.place.seal()?;
        let clear = self.place.file().map_err(|e| self.scratch_error(e))?;
        let built = self.write(Target::Scratch(&clear), out, report)?;
        sealed::seal_from(&|bytes, at| clear.read_exact_at(bytes, at), built.file_len, key, out, report, may)?;
        Ok(built)
    }

    fn write(mut self, target: Target<'_>, out: &Path, report: &mut Report<'_>) -> Result<Built> {
        self.check_usable()?;
        let tree = self.sort(out, report)?;
        let scratch = || self.place.file();
        let how = How { scratch: &scratch, memory_limit_bytes: self.limit / 2 };
        let tables = self.tables.then_some(how);
        let file_len =
            output::write(target, &tree, self.heap.as_ref(), &self.identity, tables, report).map_err(|e| match e {
                WriteError::Interrupted => interrupted(out),
                WriteError::Io(e) => write_error(e, out),
                WriteError::Index(e) => e,
            })?;
        let Totals { nodes, directories, implied, .. } = tree.1;
        Ok(Built { nodes, directories, implied, file_len })
    }

    /// All entries as the levels of a tree. Gives the memory of the entries back.
    fn sort(&mut self, out: &Path, report: &mut Report<'_>) -> Result<(Levels, Totals)> {
        let levels = Levels::new(self.place.clone(), self.limit / 8);
        let mut tree = Tree::new(levels, self.implied);
        let (mut done, total) = (0_u64, self.entries);
        let is_in_memory = self.runs.is_empty() && self.spilling.is_none();
        let runs = if is_in_memory { Ok(Vec::new()) } else { self.few_runs(out, report) };
        let mut sink = |key: &[u8], facts: &Facts| -> Result<(), PushError> {
            if done.is_multiple_of(STEP)
                && report(Progress { stage: Stage::Sort, done, total }) == ControlFlow::Break(())
            {
                return Err(interrupted(out).into());
            }
            done += 1;
            tree.push(key, facts)
        };
        let sorted = if is_in_memory {
            self.run.sort();
            self.run.each(&mut sink)
        } else {
            runs.and_then(|runs| run::merge(runs, self.read_len(), &mut sink))
        };
        self.run.clear();
        let flushed = self.heap.as_mut().map_or(Ok(()), Heap::flush);
        sorted.and_then(|()| Ok(flushed?)).and_then(|()| tree.end()).map_err(|e| match e {
            PushError::Refused(e) => e,
            PushError::Io(e) => self.scratch_error(e),
        })
    }

    /// All runs, merged until they are few enough to be merged at once.
    fn few_runs(&mut self, out: &Path, report: &mut Report<'_>) -> Result<Vec<RunFile>, PushError> {
        let mut last = Vec::new();
        last.extend(self.spilling.take().map(Spilling::end).transpose()?);
        if !self.run.is_empty() {
            self.spill()?;
            last.extend(self.spilling.take().map(Spilling::end).transpose()?);
        }
        // The shortest first.
        let mut runs: Vec<RunFile> =
            last.into_iter().chain(std::mem::take(&mut self.runs).into_iter().flatten()).collect();
        let (mut done, total) = (0_u64, to_merge(runs.iter().map(RunFile::len).collect()));
        let mut tick = || {
            if done.is_multiple_of(STEP) && report(Progress { stage: Stage::Merge, done, total }).is_break() {
                return Err(PushError::from(interrupted(out)));
            }
            done += 1;
            Ok(())
        };
        while let Some(some) = next_to_merge(runs.len()) {
            let some = runs.drain(..some).collect();
            runs.push(self.merge_into_one(some, &mut tick)?);
        }
        Ok(runs)
    }

    fn check_usable(&self) -> Result<()> {
        if self.failed {
            let why = "a scratch file of this index could not be written before; start again";
            return Err(FsError::new(ErrorKind::Io).on("write", self.place.folder().display()).because(why));
        }
        Ok(())
    }

    fn scratch_error(&self, e: io::Error) -> FsError {
        FsError::from(e).on("write scratch files in", self.place.folder().display())
    }
}

/// Of so many runs, how many are merged next, so that few enough are left in the end.
fn next_to_merge(runs: usize) -> Option<usize> {
    (runs > FAN_IN).then(|| FAN_IN.min(runs - FAN_IN + 1))
}

/// How many entries runs of these lengths have written once more, until they are few enough.
fn to_merge(mut runs: Vec<u64>) -> u64 {
    let mut total = 0;
    while let Some(some) = next_to_merge(runs.len()) {
        let merged: u64 = runs.drain(..some).sum();
        runs.push(merged);
        total += merged;
    }
    total
}

fn write_error(e: io::Error, out: &Path) -> FsError {
    FsError::from(e).on("write index", out.display())
}

fn interrupted(out: &Path) -> FsError {
    FsError::new(ErrorKind::Interrupted).on("write index", out.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More runs than are merged at once, when all entries are there.
    #[test]
    fn merges_before_the_last_are_told_and_can_be_ended() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("segment");
        let built = |ended: bool| {
            let mut builder = Builder::new(folder.path(), 0);
            for n in 0..2 * FAN_IN + FAN_IN - 1 {
                let (path, kind) = (format!("{n}"), Kind::File);
                let entry = Entry {
                    path: path.as_bytes(),
                    kind,
                    perm: 0,
                    size: 0,
                    mtime_ns: 0,
                    hash: None,
                    stamp: None,
                    extra: b"",
                };
                builder.add(&entry).unwrap();
                builder.spill().unwrap();
            }
            let mut told = Vec::new();
            let built = builder.finish(&out, &mut |progress| {
                told.push(progress);
                if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            (built, told)
        };
        let (ended, told) = built(true);
        assert_eq!((ended.unwrap_err().kind(), told.len()), (ErrorKind::Interrupted, 1));
        let (built, told) = built(false);
        // Two of the fifteen that have one entry each become one.
        assert_eq!(told[0], Progress { stage: Stage::Merge, done: 0, total: 2 });
        assert_eq!(built.unwrap().nodes as usize, 3 * FAN_IN);
        assert_eq!(to_merge(vec![1; FAN_IN]), 0);
        // Sixteen of 33, and then three of the eighteen that are left.
        assert_eq!(to_merge([vec![3], vec![1; 2 * FAN_IN]].concat()), (3 + 15) + 3);
    }
}
