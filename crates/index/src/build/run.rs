//! Sorting: entries are collected in memory, sorted by all threads, written as a run when memory is used up, and runs are merged.
//!
//! The key of an entry is its path with a zero byte for each slash. No name has one, so the order of the keys' bytes is that of
//! the tree: a directory, then all that is in it, by names.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io::{self, BufReader, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::record::{FACTS_LEN_MAX, Facts, array};
use super::scratch::ScratchFile;
use crate::cores::cores_up_to;

const CHUNK_BITS: u32 = 17;
/// Records lie in pieces of this length, so that nothing moves when there are more.
const CHUNK_LEN: usize = 1 << CHUNK_BITS;
/// What a record takes beside its own bytes: its place in the index, which doubles as it grows, and what sorting takes.
const RECORD_OVERHEAD: usize = 16;
/// So many entries are worth a thread of their own while they are sorted.
const ENTRIES_A_THREAD: usize = 1 << 14;
/// What is written to a run at once, in bytes.
const WRITE_LEN: usize = 256 << 10;

// A record fits in a piece.
const _: () = assert!(2 + u16::MAX as usize + FACTS_LEN_MAX <= CHUNK_LEN);

/// Who takes entries in order.
pub(crate) type Sink<'a, E> = dyn FnMut(&[u8], &Facts) -> Result<(), E> + 'a;

/// Entries in memory.
pub(crate) struct Run {
    chunks: Vec<Vec<u8>>,
    /// Where each record begins: the number of its piece, and the place in it.
    starts: Vec<u32>,
    limit: usize,
}

impl Run {
    /// Takes at most `limit` bytes of memory, and always one entry.
    pub fn new(limit: usize) -> Run {
        Run { chunks: Vec::new(), starts: Vec::new(), limit }
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Takes an entry, whose key has a length of 16 bits; false if it is full.
    pub fn push(&mut self, key: &[u8], facts: &Facts) -> bool {
        let len = 2 + key.len() + FACTS_LEN_MAX;
        if self.chunks.last().is_none_or(|chunk| chunk.len() + len > CHUNK_LEN) {
            let used = (self.chunks.len() + 1) * CHUNK_LEN + (self.starts.len() + 1) * RECORD_OVERHEAD;
            if !self.is_empty() && (used > self.limit || self.chunks.len() == 1 << (32 - CHUNK_BITS)) {
                return false;
            }
            self.chunks.push(Vec::with_capacity(CHUNK_LEN));
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        self.starts.push((number << CHUNK_BITS | chunk.len()) as u32);
        chunk.extend((key.len() as u16).to_le_bytes());
        chunk.extend(key);
        facts.write(chunk);
        true
    }

    fn split(&self, start: u32) -> (&[u8], &[u8]) {
        let chunk = &self.chunks[(start >> CHUNK_BITS) as usize];
        let record = &chunk[start as usize & (CHUNK_LEN - 1)..];
        let (len, rest) = record.split_first_chunk().expect("a record begins here");
        rest.split_at(u16::from_le_bytes(*len).into())
    }

    /// Puts the entries in order.
    pub fn sort(&mut self) {
        let mut starts = std::mem::take(&mut self.starts);
        let by_key = |a: &u32, b: &u32| self.split(*a).0.cmp(self.split(*b).0);
        let threads = cores_up_to(starts.len() / ENTRIES_A_THREAD);
        if threads > 1 {
            let each = starts.len().div_ceil(threads);
            thread::scope(|scope| {
                for part in starts.chunks_mut(each) {
                    // If the host has no more threads, it is done below.
                    let _ = thread::Builder::new().spawn_scoped(scope, move || part.sort_by(by_key));
                }
            });
        }
        // Stable: it takes what is in order already as it is, which a manifest nearly is, and merges the parts.
        starts.sort_by(by_key);
        self.starts = starts;
    }

    fn write(mut self, file: ScratchFile) -> io::Result<RunFile> {
        self.sort();
        let mut out = RunWriter::new(file);
        self.each(&mut |key, facts| out.put(key, facts))?;
        out.end()
    }

    /// Puts the entries in order and writes them: in a thread of its own, unless the host has no more.
    pub fn spill(self, file: ScratchFile) -> Spilling {
        let handed = Arc::new(Mutex::new(Some((self, file))));
        let there = handed.clone();
        let take =
            |handed: &Mutex<Option<(Run, ScratchFile)>>| handed.lock().unwrap_or_else(PoisonError::into_inner).take();
        // One of both takes it.
        let nothing = || Err(io::Error::other("a run was handed to nobody"));
        let write = move || take(&there).map_or_else(nothing, |(run, file)| run.write(file));
        match thread::Builder::new().name("adit-sort".to_owned()).spawn(write) {
            Ok(thread) => Spilling(Some(Written::Later(thread))),
            Err(_) => Spilling(Some(Written::Now(Box::new(
                take(&handed).map_or_else(nothing, |(run, file)| run.write(file)),
            )))),
        }
    }

    /// Hands over all entries.
    pub fn each<E: From<io::Error>>(&self, sink: &mut Sink<'_, E>) -> Result<(), E> {
        for start in &self.starts {
            let (key, mut rest) = self.split(*start);
            sink(key, &Facts::read(&mut rest)?)?;
        }
        Ok(())
    }

    /// Gives all memory back.
    pub fn clear(&mut self) {
        *self = Run::new(self.limit);
    }
}

/// Entries in order in a file.
pub(crate) struct RunFile {
    file: ScratchFile,
    entries: u64,
}

impl RunFile {
    /// How many entries it has.
    pub fn len(&self) -> u64 {
        self.entries
    }
}

/// A [`RunFile`] that is being written. No thread is left behind when it is dropped.
pub(crate) struct Spilling(Option<Written>);

enum Written {
    Later(JoinHandle<io::Result<RunFile>>),
    Now(Box<io::Result<RunFile>>),
}

impl Spilling {
    /// Waits until it is written.
    pub fn end(mut self) -> io::Result<RunFile> {
        match self.0.take().expect("it is waited for once") {
            Written::Later(thread) => {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that sorts broke down")))
            }
            Written::Now(written) => *written,
        }
    }
}

impl Drop for Spilling {
    fn drop(&mut self) {
        if let Some(Written::Later(thread)) = self.0.take() {
            // What it wrote is nobody's any more.
            let _ = thread.join();
        }
    }
}

/// Writes a [`RunFile`]. What a key has in common with the one before is left out.
pub(crate) struct RunWriter {
    out: BufWriter<ScratchFile>,
    before: Vec<u8>,
    facts: Vec<u8>,
    entries: u64,
}

impl RunWriter {
    pub fn new(file: ScratchFile) -> RunWriter {
        RunWriter { out: BufWriter::with_capacity(WRITE_LEN, file), before: Vec::new(), facts: Vec::new(), entries: 0 }
    }

    /// Appends an entry whose key is not before the last one's.
    pub fn put(&mut self, key: &[u8], facts: &Facts) -> io::Result<()> {
        let shared = shared_len(&self.before, key);
        let rest = &key[shared..];
        self.out.write_all(&(shared as u16).to_le_bytes())?;
        self.out.write_all(&(rest.len() as u16).to_le_bytes())?;
        self.out.write_all(rest)?;
        self.facts.clear();
        facts.write(&mut self.facts);
        self.out.write_all(&self.facts)?;
        self.before.truncate(shared);
        self.before.extend(rest);
        self.entries += 1;
        Ok(())
    }

    pub fn end(self) -> io::Result<RunFile> {
        let mut file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind();
        Ok(RunFile { file, entries: self.entries })
    }
}

/// How many bytes two keys have in common at the front.
pub(crate) fn shared_len(a: &[u8], b: &[u8]) -> usize {
    let (words_a, words_b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let words = words_a.iter().zip(words_b).take_while(|(a, b)| a == b).count() * 8;
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// A [`RunFile`] that is read, at an entry of it. The order is that of a heap: the lowest key is the greatest.
struct Head {
    input: BufReader<ScratchFile>,
    left: u64,
    key: Vec<u8>,
    facts: Facts,
}

impl Head {
    /// At the first entry; `None` if there is none.
    fn new(run: RunFile, buffer_len: usize) -> io::Result<Option<Head>> {
        let input = BufReader::with_capacity(buffer_len, run.file);
        let mut head = Head { input, left: run.entries, key: Vec::new(), facts: Facts::NOTHING };
        Ok(head.advance()?.then_some(head))
    }

    /// Goes to the next entry; false if there is none.
    fn advance(&mut self) -> io::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        let shared = usize::from(u16::from_le_bytes(array(&mut self.input)?));
        let rest = usize::from(u16::from_le_bytes(array(&mut self.input)?));
        if shared > self.key.len() || shared + rest > usize::from(u16::MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a scratch file is not what was written to it"));
        }
        self.key.resize(shared + rest, 0);
        io::Read::read_exact(&mut self.input, &mut self.key[shared..])?;
        self.facts = Facts::read(&mut self.input)?;
        Ok(true)
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Head {}

/// Hands over the entries of all runs, in order. Reads `buffer_len` bytes of each at once; each goes when it is used up.
pub(crate) fn merge<E: From<io::Error>>(
    runs: Vec<RunFile>,
    buffer_len: usize,
    sink: &mut Sink<'_, E>,
) -> Result<(), E> {
    let mut heads = BinaryHeap::with_capacity(runs.len());
    for run in runs {
        heads.extend(Head::new(run, buffer_len)?);
    }
    while let Some(mut head) = heads.peek_mut() {
        sink(&head.key, &head.facts)?;
        if !head.advance()? {
            PeekMut::pop(head);
        }
    }
    Ok(())
}
