//! Threads that fetch what will be read.
//!
//! They begin when there is something to do, and end when there was nothing for a while. What they cannot do nobody misses: the
//! reader gets it itself, and hears of errors then.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::cache::{CachedObject, Fetch};

/// Jobs that wait at most: what finds no place is not fetched ahead.
const JOBS_MAX: usize = 256;
/// How long a thread waits for something to do.
const IDLE: Duration = Duration::from_secs(10);

/// A range to fetch.
pub(super) struct Job {
    pub object: Arc<CachedObject>,
    pub range: Range<u64>,
    /// Set when nobody will read it any more.
    pub is_dropped: Arc<AtomicBool>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
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
pub(super) struct Ahead(Arc<Shared>);

impl Ahead {
    pub fn new(fetch: Arc<dyn Fetch>, threads_max: usize) -> Self {
        Ahead(Arc::new(Shared { jobs: Mutex::default(), ready: Condvar::new(), threads_max, fetch }))
    }

    /// Leaves something to do.
    pub fn submit(&self, job: Job) {
        let shared = &self.0;
        let mut jobs = shared.jobs.lock();
        if jobs.is_closed || shared.threads_max == 0 || jobs.waiting.len() >= JOBS_MAX {
            return;
        }
        jobs.waiting.push_back(job);
        if jobs.idle >= jobs.waiting.len() || jobs.threads >= shared.threads_max {
            shared.ready.notify_one();
            return;
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
    }

    /// Ends the threads after what they are at, and forgets what waits.
    pub fn close(&self) {
        let waiting = {
            let mut jobs = self.0.jobs.lock();
            jobs.is_closed = true;
            std::mem::take(&mut jobs.waiting)
        };
        self.0.ready.notify_all();
        // Perhaps closes files.
        drop(waiting);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// The next job; without one for a while, the thread is to end, and is counted no more.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            let mut is_idle = false;
            if !jobs.is_closed {
                jobs.idle += 1;
                is_idle = self.ready.wait_for(&mut jobs, IDLE).timed_out() && jobs.waiting.is_empty();
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
            if job.is_dropped.load(Ordering::Relaxed) {
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
