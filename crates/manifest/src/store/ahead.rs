//! Threads that fetch what will be read.
//!
//! They begin when there is something to do, and end when there was nothing for a while. What they cannot do nobody misses: the
//! reader gets it itself, and hears of errors then. Files take turns, so that no reader of one waits for what is fetched ahead of
//! another.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::cache::{CachedObject, Fetch};

/// Jobs that wait, of all files together. Each file that has any may have its share of them, and one in any case.
const JOBS_MAX: usize = 1024;
/// How long a thread waits for something to do.
const IDLE: Duration = Duration::from_secs(10);

/// A range to fetch.
pub(super) struct Job {
    object: Arc<CachedObject>,
    range: Range<u64>,
    /// [`CachedObject::drops`] when it was asked for.
    drops: u64,
}

impl Job {
    pub fn new(object: Arc<CachedObject>, range: Range<u64>) -> Job {
        let drops = object.drops();
        Job { object, range, drops }
    }

    /// Whether its readers may have come past it, though it is not there: they had it before all of the object was dropped. Who needs it
    /// still, fetches it for itself.
    fn is_stale(&self) -> bool {
        self.object.drops() != self.drops
    }
}

/// What waits for an open file.
struct Waiting {
    file: u64,
    jobs: VecDeque<Job>,
}

#[derive(Default)]
struct Jobs {
    /// Of each file that has any, in the order of their turns.
    files: VecDeque<Waiting>,
    /// All of theirs.
    count: usize,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

struct Shared {
    jobs: Mutex<Jobs>,
    ready: Condvar,
    threads_max: usize,
    fetch: Arc<dyn Fetch>,
}

/// The threads of a store. They are not waited for: a fetch may take its time.
pub(super) struct Ahead {
    shared: Arc<Shared>,
    files: AtomicU64,
}

impl Ahead {
    pub fn new(fetch: Arc<dyn Fetch>, threads_max: usize) -> Self {
        let shared = Shared { jobs: Mutex::default(), ready: Condvar::new(), threads_max, fetch };
        Ahead { shared: Arc::new(shared), files: AtomicU64::new(0) }
    }

    /// A number for a file that was opened.
    pub fn file(&self) -> u64 {
        self.files.fetch_add(1, Ordering::Relaxed)
    }

    /// Leaves something to do for a file. False if it has too much to be done already.
    #[must_use]
    pub fn submit(&self, file: u64, job: Job) -> bool {
        let shared = &self.shared;
        let mut jobs = shared.jobs.lock();
        if jobs.is_closed || shared.threads_max == 0 {
            // Nobody will do it.
            return true;
        }
        let files = jobs.files.len();
        match jobs.files.iter_mut().find(|waiting| waiting.file == file) {
            Some(waiting) if waiting.jobs.len() >= (JOBS_MAX / files).max(1) => return false,
            Some(waiting) => waiting.jobs.push_back(job),
            None => jobs.files.push_back(Waiting { file, jobs: VecDeque::from([job]) }),
        }
        jobs.count += 1;
        if jobs.idle >= jobs.count || jobs.threads >= shared.threads_max {
            shared.ready.notify_one();
            return true;
        }
        jobs.threads += 1;
        drop(jobs);
        let worker = shared.clone();
        let started = std::thread::Builder::new().name("adit-ahead".to_owned()).spawn(move || worker.work());
        if started.is_err() {
            // Those that there are do it.
            shared.jobs.lock().threads -= 1;
            shared.ready.notify_one();
        }
        true
    }

    /// Forgets what waits for a file that was closed.
    pub fn forget(&self, file: u64) {
        let waiting = {
            let jobs = &mut *self.shared.jobs.lock();
            let at = jobs.files.iter().position(|waiting| waiting.file == file);
            let waiting = at.and_then(|at| jobs.files.remove(at));
            jobs.count -= waiting.as_ref().map_or(0, |waiting| waiting.jobs.len());
            waiting
        };
        // Perhaps closes files.
        drop(waiting);
    }

    /// Ends the threads after what they are at, and forgets what waits.
    pub fn close(&self) {
        let waiting = {
            let mut jobs = self.shared.jobs.lock();
            jobs.is_closed = true;
            jobs.count = 0;
            std::mem::take(&mut jobs.files)
        };
        self.shared.ready.notify_all();
        // Perhaps closes files.
        drop(waiting);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.close();
    }
}

impl Jobs {
    /// The next job of the file whose turn it is.
    fn pop(&mut self) -> Option<Job> {
        let mut waiting = self.files.pop_front()?;
        let job = waiting.jobs.pop_front();
        self.count -= usize::from(job.is_some());
        if !waiting.jobs.is_empty() {
            self.files.push_back(waiting);
        }
        job
    }
}

impl Shared {
    /// The next job; without one for a while, the thread is to end, and is counted no more.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.pop() {
                return Some(job);
            }
            let mut is_idle = false;
            if !jobs.is_closed {
                jobs.idle += 1;
                is_idle = self.ready.wait_for(&mut jobs, IDLE).timed_out() && jobs.count == 0;
                jobs.idle -= 1;
            }
            if jobs.is_closed || is_idle {
                jobs.threads -= 1;
                return None;
            }
        }
    }

    fn work(&self) {
        let _end = OnPanic(self);
        while let Some(job) = self.next() {
            if job.is_stale() {
                continue;
            }
            if let Err(e) = job.object.prefetch(job.range, &*self.fetch) {
                tracing::debug!(error = %e, "what will be read could not be fetched ahead");
            }
        }
    }
}

/// Counts a thread no more that panicked.
struct OnPanic<'a>(&'a Shared);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.jobs.lock().threads -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use adit_core::error::Result;
    use adit_media::HostDirectory;

    use super::*;
    use crate::cache::{Cache, CacheOptions, ObjectId};
    use crate::format::ContentHash;

    const BLOCK: u64 = 4096;

    /// Tells what is fetched, in that order; each fetch waits until it may go on.
    struct Stepwise {
        begun: Sender<Range<u64>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Fetch for Stepwise {
        fn fetch(&self, _: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
            self.begun.send(range.clone()).unwrap();
            // None, when the test is over.
            let _ = self.go_on.lock().recv();
            sink(&vec![0; (range.end - range.start) as usize])
        }
    }

    struct World {
        ahead: Ahead,
        object: Arc<CachedObject>,
        begun: Receiver<Range<u64>>,
        go_on: Sender<()>,
        _cache: (Cache, tempfile::TempDir),
    }

    impl World {
        fn new() -> World {
            let dir = tempfile::tempdir().unwrap();
            let host = HostDirectory::open(dir.path()).unwrap();
            let options = CacheOptions { block_len: BLOCK as u32, workers: 0, ..CacheOptions::default() };
            let cache = Cache::open(Arc::new(host), options).unwrap();
            let object = cache.object(ObjectId { hash: ContentHash([1; 16]), len: 1 << 30 });
            let ((begun, told), (go_on, wait)) = (channel(), channel());
            let ahead = Ahead::new(Arc::new(Stepwise { begun, go_on: Mutex::new(wait) }), 1);
            World { ahead, object, begun: told, go_on, _cache: (cache, dir) }
        }

        fn submit(&self, file: u64, block: u64) -> bool {
            let range = block * BLOCK..(block + 1) * BLOCK;
            self.ahead.submit(file, Job::new(self.object.clone(), range))
        }

        /// The next block that is fetched.
        fn next(&self) -> u64 {
            self.begun.recv_timeout(Duration::from_secs(60)).expect("something is fetched").start / BLOCK
        }
    }

    #[test]
    fn files_take_turns() {
        let world = World::new();
        let [first, second] = [world.ahead.file(), world.ahead.file()];
        assert!((0..10).all(|block| world.submit(first, block)));
        assert_eq!(world.next(), 0);
        assert!(world.submit(second, 100) && world.submit(second, 101));
        let order: Vec<u64> = (0..6)
            .map(|_| {
                world.go_on.send(()).unwrap();
                world.next()
            })
            .collect();
        assert_eq!(order, [1, 100, 2, 101, 3, 4]);
    }

    #[test]
    fn each_file_has_its_share_and_is_told_when_it_is_used_up() {
        let world = World::new();
        let files: Vec<u64> = (0..3).map(|_| world.ahead.file()).collect();
        assert!(world.submit(files[0], 0));
        assert_eq!(world.next(), 0);
        let taken = |file: u64| {
            let first = 10_000 * (file + 1);
            (first..first + 2 * JOBS_MAX as u64).take_while(|block| world.submit(file, *block)).count()
        };
        assert_eq!(taken(files[0]), JOBS_MAX);
        // Of a file that is closed nothing waits any more.
        world.ahead.forget(files[0]);
        assert_eq!(world.ahead.shared.jobs.lock().count, 0);
        assert_eq!([taken(files[1]), taken(files[2])], [JOBS_MAX, JOBS_MAX / 2]);
        assert_eq!(taken(files[1]), 0);
        // And what was fetched makes room.
        world.go_on.send(()).unwrap();
        world.next();
        world.go_on.send(()).unwrap();
        world.next();
        assert!(world.submit(files[2], 90_000) && !world.submit(files[2], 90_001));
        world.ahead.close();
        assert_eq!(world.ahead.shared.jobs.lock().count, 0);
        assert!(world.submit(files[1], 90_002));
        assert_eq!(world.ahead.shared.jobs.lock().count, 0);
    }
}
