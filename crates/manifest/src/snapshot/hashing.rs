//! Threads that read files and hash them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::Scope;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::store::StoreFile;
use parking_lot::Mutex;

use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{ContentHash, Hasher};
use crate::hash_cache::Layout;

/// How much is read at once. Chunks are whole multiples of it.
const READ_LEN_BYTES: usize = 1 << 20;

/// A file to be hashed.
pub(super) struct Job {
    pub id: u64,
    pub file: Arc<dyn StoreFile>,
    pub layout: Layout,
    /// The length that it had.
    pub len_bytes: u64,
}

/// What became of a [`Job`].
pub(super) struct Hashed {
    pub id: u64,
    /// None if it has another length now.
    pub hashes: Result<Option<Vec<ContentHash>>>,
}

/// The threads. They end with the value.
pub(super) struct Hashers {
    jobs: SyncSender<Job>,
    done: Receiver<Hashed>,
}

impl Hashers {
    pub fn start<'scope>(scope: &'scope Scope<'scope, '_>, threads: usize) -> Self {
        let (jobs, taken) = sync_channel(4 * threads);
        let (sent, done) = channel();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..threads {
            let (taken, sent) = (taken.clone(), sent.clone());
            scope.spawn(move || work(&taken, &sent));
        }
        Hashers { jobs, done }
    }

    /// Hands over a job, or gives it back where there are enough waiting.
    pub fn offer(&self, job: Job) -> std::result::Result<(), Job> {
        match self.jobs.try_send(job) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => Err(job),
        }
    }

    /// What is done, if something is.
    pub fn poll(&self) -> Option<Hashed> {
        self.done.try_recv().ok()
    }

    /// Waits for something to be done.
    ///
    /// # Errors
    /// `Io` if nobody is at work any more: they panicked.
    pub fn wait(&self) -> Result<Hashed> {
        self.done.recv().map_err(|_| FsError::new(ErrorKind::Io).because("the threads that hash have ended"))
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, done: &Sender<Hashed>) {
    let mut buffer = vec![0; READ_LEN_BYTES];
    loop {
        // One at a time waits here, with the lock; the others wait for it.
        let Ok(job) = jobs.lock().recv() else { return };
        let hashes = hash(&*job.file, job.layout, job.len_bytes, &mut buffer);
        if done.send(Hashed { id: job.id, hashes }).is_err() {
            return;
        }
    }
}

fn hash(file: &dyn StoreFile, layout: Layout, len_bytes: u64, buffer: &mut [u8]) -> Result<Option<Vec<ContentHash>>> {
    let mut hashes = Vec::new();
    let mut hasher = Hasher::default();
    let mut offset = 0;
    loop {
        let read = file.read_at(offset, buffer)?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
        if layout == Layout::Chunks && offset > 0 && offset.is_multiple_of(CHUNK_LEN_BYTES) {
            hashes.push(std::mem::take(&mut hasher).finish());
        }
        hasher.update(piece);
        offset += read as u64;
        if offset > len_bytes {
            return Ok(None);
        }
        // A short read that is not the last would shift the chunks.
        if read < buffer.len() && offset < len_bytes {
            return Ok(None);
        }
    }
    hashes.push(hasher.finish());
    Ok((offset == len_bytes).then_some(hashes))
}
