//! Content files that stay open for a moment after they were opened.
//!
//! Programs open the same small files again and again: compilers headers, shells scripts, git its objects. A file that
//! is kept costs its next opening neither a walk of the host's path nor a header to decrypt. Nothing is taken on trust:
//! whoever finds a file here asks the host whether it is still at its place, with the same header
//! ([`VaultFile::is_current`]).
//!
//! It is a moment only, because the host cannot free what another client removes while it is open.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::types::Ino;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::file::VaultFile;

/// How long after its last opening.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// How many at most.
const FILES_MAX: usize = 1024;
/// The part of this process's descriptors that they may take.
const DESCRIPTORS_SHARE: u64 = 4;

struct KeptFile {
    file: Arc<VaultFile>,
    /// Tells its latest place in the queue from older ones.
    stamp: u64,
}

#[derive(Default)]
struct Files {
    by_ino: HashMap<Ino, KeptFile>,
    /// In order of opening; an inode that was opened again is in it more than once.
    queue: VecDeque<(Instant, Ino, u64)>,
    stamps: u64,
}

/// The files kept open. Its lock is a leaf, and no file is closed under it.
pub(crate) struct Kept {
    files: Mutex<Files>,
    max: usize,
}

impl Files {
    /// Whether the time of the first of the queue is over.
    fn is_over(&self, now: Instant) -> bool {
        self.queue.front().is_some_and(|(opened, ..)| now.duration_since(*opened) >= KEPT_FOR)
    }

    /// Takes the first of the queue out; None in it if it is kept by a later entry.
    fn pop(&mut self) -> Option<Option<Arc<VaultFile>>> {
        let (_, ino, stamp) = self.queue.pop_front()?;
        let is_latest = self.by_ino.get(&ino).is_some_and(|k| k.stamp == stamp);
        Some(is_latest.then(|| self.by_ino.remove(&ino).map(|k| k.file)).flatten())
    }
}

impl Kept {
    pub fn new() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max = usize::try_from(descriptors / DESCRIPTORS_SHARE).unwrap_or(FILES_MAX).min(FILES_MAX);
        Kept { files: Mutex::default(), max }
    }

    /// Keeps a file that was opened now.
    pub fn keep(&self, ino: Ino, file: &Arc<VaultFile>) {
        let mut gone = Vec::new();
        let mut files = self.files.lock();
        files.stamps += 1;
        let (stamp, now) = (files.stamps, Instant::now());
        files.queue.push_back((now, ino, stamp));
        gone.extend(files.by_ino.insert(ino, KeptFile { file: file.clone(), stamp }).map(|k| k.file));
        // Where a store has no thread that looks, whoever opens the next file does.
        while files.by_ino.len() > self.max || files.queue.len() > 4 * self.max || files.is_over(now) {
            match files.pop() {
                Some(file) => gone.extend(file),
                None => break,
            }
        }
        drop(files);
    }

    /// Lets go of one that loses its name, or is forgotten.
    pub fn remove(&self, ino: Ino) {
        let gone = self.files.lock().by_ino.remove(&ino);
        drop(gone);
    }

    /// Lets go of those whose time is over.
    pub fn expire(&self) {
        let now = Instant::now();
        let mut gone = Vec::new();
        let mut files = self.files.lock();
        while files.is_over(now) {
            gone.extend(files.pop().flatten());
        }
        drop(files);
    }

    /// Lets go of all; returns how many there were.
    pub fn clear(&self) -> usize {
        let files = std::mem::take(&mut *self.files.lock());
        files.by_ino.len()
    }
}
