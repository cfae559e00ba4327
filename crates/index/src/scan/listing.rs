//! What walks pass on: entries in batches, and directories that are still to be read.

use std::ops::Range;

use adit_core::error::FsError;
use adit_core::types::{Kind, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use super::{Change, Event, Sink, UNREADABLE};
use crate::build::Entry;
use crate::{ContentHash, Stamp};

/// So many entries are passed on at once.
pub(super) const BATCH_ENTRIES: usize = 1024;

/// What is known of an entry but its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub kind: Kind,
    pub perm: u16,
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// Of the host. A store is one.
    pub device: u64,
    pub ino: u64,
    /// How many names it has.
    pub names: u32,
    /// Whether its times tell of what is written after it was read. If not, a hash of it is not believed later.
    pub times_tell: bool,
}

impl Known {
    /// What tells a file from any other that is, or was, at its path, and from what it was before it was changed: the XXH3-64 of its inode
    /// number and its ctime. It is kept with a hash, so that the hash is believed of that file alone.
    pub fn stamp(&self) -> Stamp {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&self.ino.to_le_bytes());
        both[8..].copy_from_slice(&self.ctime_ns.to_le_bytes());
        xxh3_64(&both).to_le_bytes()
    }
}

/// Nanoseconds since 1970; the years 1678 to 2262 fit, a time beyond is the end of that span.
pub(super) fn nanos(time: Timestamp) -> i64 {
    time.as_nanos().clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

struct Record {
    path: Range<usize>,
    extra: Range<usize>,
    known: Known,
    hash: Option<ContentHash>,
    change: Change,
}

/// What a thread passes on to the one that asked for the walk.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    records: Vec<Record>,
    failures: Vec<FsError>,
    unread: Vec<FsError>,
    unsettled: Vec<Range<usize>>,
    pub read_bytes: u64,
}

impl Batch {
    /// Whether it is worth being passed on.
    pub fn is_full(&self) -> bool {
        self.records.len() >= BATCH_ENTRIES || self.read_bytes >= 8 << 20 || self.has_failed()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.read_bytes == 0 && !self.has_failed()
    }

    fn has_failed(&self) -> bool {
        !self.failures.is_empty() || !self.unread.is_empty()
    }

    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend(bytes);
        start..self.bytes.len()
    }

    /// Adds an entry. `change` is asked with it.
    pub fn add(
        &mut self,
        path: &[u8],
        known: Known,
        hash: Option<ContentHash>,
        extra: &[u8],
        change: &dyn Fn(&Entry<'_>) -> Change,
    ) {
        let change = change(&entry(path, &known, hash, extra));
        let (path, extra) = (self.keep(path), self.keep(extra));
        self.records.push(Record { path, extra, known, hash, change });
    }

    pub fn fail(&mut self, error: FsError) {
        self.failures.push(error);
    }

    /// The content of a file could not be read.
    pub fn unread(&mut self, error: FsError) {
        self.unread.push(error);
    }

    pub fn unsettled(&mut self, path: &[u8]) {
        let path = self.keep(path);
        self.unsettled.push(path);
    }

    /// Tells all of it. False if the walk is to end.
    pub fn tell(self, sink: &mut Sink<'_>) -> adit_core::error::Result<bool> {
        let unread = self.unread.into_iter().map(Event::Unread);
        let mut events = self.failures.into_iter().map(Event::Failed).chain(unread);
        let goes_on = |told: std::ops::ControlFlow<()>| told.is_continue();
        for event in events.by_ref() {
            if !goes_on(sink(event)?) {
                return Ok(false);
            }
        }
        if self.read_bytes > 0 && !goes_on(sink(Event::Bytes(self.read_bytes))?) {
            return Ok(false);
        }
        for path in self.unsettled {
            if !goes_on(sink(Event::Unsettled(&self.bytes[path]))?) {
                return Ok(false);
            }
        }
        for record in self.records {
            let (path, extra) = (&self.bytes[record.path], &self.bytes[record.extra]);
            if !goes_on(sink(Event::Entry(entry(path, &record.known, record.hash, extra), record.change))?) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn entry<'a>(path: &'a [u8], known: &Known, hash: Option<ContentHash>, extra: &'a [u8]) -> Entry<'a> {
    let Known { kind, perm, size, mtime_ns, .. } = *known;
    let stamp = hash.filter(|_| kind == Kind::File && known.times_tell).map(|_| known.stamp());
    Entry { path, kind, perm, size, mtime_ns, hash, stamp, extra }
}

/// `dir` and a name in it.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend(dir);
    if !dir.is_empty() {
        path.push(b'/');
    }
    path.extend(name);
    path
}

/// The extra bytes of a directory of which not everything could be read.
pub(super) fn unreadable(why: &FsError) -> Vec<u8> {
    let mut text = why.to_string();
    text.truncate(text.floor_char_boundary(500));
    [UNREADABLE, text.as_bytes()].concat()
}
