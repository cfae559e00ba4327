//! Threads that read files and hash them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;

use adit_core::error::{ErrorKind, Result};
use adit_core::store::StoreFile;

use crate::crew::Crew;
use crate::format::{ContentHash, Hasher};
use crate::hash_cache::Layout;

/// How much is read at once.
const READ_LEN_BYTES: usize = 1 << 20;
/// Jobs that wait for each thread.
const JOBS_AHEAD: usize = 4;

/// A file to be hashed.
pub(super) struct Job {
    pub id: u64,
    pub file: Arc<dyn StoreFile>,
    pub layout: Layout,
    /// The length that it had.
    pub len_bytes: u64,
    /// Those of its hashes that need not be read for, in the order of the layout; empty: none.
    pub known: Vec<Option<ContentHash>>,
}

/// What became of a [`Job`].
pub(super) struct Hashed {
    pub id: u64,
    /// None if it has another length now.
    pub hashes: Result<Option<Vec<ContentHash>>>,
    /// Whether its times tell of what is written after it was read.
    pub times_tell: bool,
    /// How much was read.
    pub read_bytes: u64,
}

/// What all of them have read, and whether they are to go on.
#[derive(Default)]
pub(super) struct Reading {
    bytes: AtomicU64,
    is_over: AtomicBool,
}

/// Ends all reading when it is dropped.
pub(super) struct End(pub Arc<Reading>);

impl Reading {
    /// Bytes that were read, of files that are not done as well.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// The threads that hash.
pub(super) type Hashers = Crew<Job, Hashed>;

/// Starts them.
pub(super) fn start<'scope>(scope: &'scope Scope<'scope, '_>, threads: usize, reading: &Arc<Reading>) -> Hashers {
    Crew::start(scope, "hash", (threads, JOBS_AHEAD), || {
        let (mut buffer, reading) = (vec![0; READ_LEN_BYTES], reading.clone());
        move |job: Job| {
            let mut read_bytes = 0;
            let (times_tell, hashes) = match job.file.times_tell() {
                Ok(times_tell) => (times_tell, hash(&job, &mut buffer, &mut read_bytes, &reading)),
                Err(e) => (false, Err(e)),
            };
            Hashed { id: job.id, hashes, times_tell, read_bytes }
        }
    })
}

fn hash(job: &Job, buffer: &mut [u8], read_bytes: &mut u64, reading: &Reading) -> Result<Option<Vec<ContentHash>>> {
    let mut hashes = Vec::new();
    for (number, object) in job.layout.objects(job.len_bytes).enumerate() {
        if let Some(Some(known)) = job.known.get(number) {
            hashes.push(*known);
            continue;
        }
        let mut hasher = Hasher::default();
        let mut at = object.start;
        while at < object.end {
            if reading.is_over.load(Ordering::Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            let wanted = (object.end - at).min(buffer.len() as u64) as usize;
            let read = job.file.read_at(at, buffer.get_mut(..wanted).unwrap_or_default())?;
            // Short: it ends before.
            let Some(piece) = buffer.get(..read).filter(|piece| piece.len() == wanted) else { return Ok(None) };
            hasher.update(piece);
            *read_bytes += read as u64;
            reading.bytes.fetch_add(read as u64, Ordering::Relaxed);
            at += read as u64;
        }
        hashes.push(hasher.finish());
    }
    // Whether it goes on.
    let behind = job.file.read_at(job.len_bytes, buffer.get_mut(..1).unwrap_or_default())?;
    Ok((behind == 0).then_some(hashes))
}
