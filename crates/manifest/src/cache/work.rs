//! What nobody waits for: threads that verify objects and make room, and now and then let go of what others removed.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Inner;
use super::object::CachedObject;
use super::scan::Goal;

/// Jobs that wait at most. What finds no place is asked for again at the next use.
const JOBS_MAX: usize = 4096;
/// How often is looked for what others removed, and told what was added.
const TICK: Duration = Duration::from_secs(2);

/// Something to do.
pub(super) enum Job {
    /// Verify an object that is all there.
    Settle(Arc<CachedObject>),
    /// Look whether the folder is within its limit.
    MakeRoom,
}

/// Jobs that wait for a thread.
pub(super) struct Queue {
    workers: usize,
    jobs: Mutex<Jobs>,
    ready: Condvar,
}

struct Jobs {
    waiting: VecDeque<Job>,
    is_closed: bool,
    next_tick: Instant,
}

enum Next {
    Job(Job),
    Tick,
    End,
}

impl Queue {
    pub fn new(workers: usize) -> Self {
        let jobs = Jobs { waiting: VecDeque::new(), is_closed: false, next_tick: Instant::now() + TICK };
        Queue { workers, jobs: Mutex::new(jobs), ready: Condvar::new() }
    }

    /// Whether there are no threads, so that everything is done at once.
    pub fn is_inline(&self) -> bool {
        self.workers == 0
    }

    /// Leaves a job for a thread. False if there is no place for it, or nobody to do it.
    pub fn submit(&self, job: Job) -> bool {
        let mut jobs = self.jobs.lock();
        if jobs.is_closed || self.is_inline() || jobs.waiting.len() >= JOBS_MAX {
            return false;
        }
        jobs.waiting.push_back(job);
        self.ready.notify_one();
        true
    }

    /// Ends the threads, and forgets what waits.
    pub fn close(&self) {
        let waiting = {
            let mut jobs = self.jobs.lock();
            jobs.is_closed = true;
            std::mem::take(&mut jobs.waiting)
        };
        self.ready.notify_all();
        // Perhaps closes files.
        drop(waiting);
    }

    fn next(&self) -> Next {
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.is_closed {
                return Next::End;
            }
            if let Some(job) = jobs.waiting.pop_front() {
                return Next::Job(job);
            }
            let now = Instant::now();
            if now >= jobs.next_tick {
                jobs.next_tick = now + TICK;
                return Next::Tick;
            }
            let tick = jobs.next_tick;
            self.ready.wait_until(&mut jobs, tick);
        }
    }
}

/// Starts a thread.
pub(super) fn start(inner: Arc<Inner>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("adit-cache".to_owned()).spawn(move || {
        loop {
            match inner.queue.next() {
                Next::Job(Job::Settle(object)) => object.settle(),
                Next::Job(Job::MakeRoom) => {
                    inner.space.is_scheduled.store(false, Ordering::Release);
                    inner.make_room(Goal::Limit);
                }
                Next::Tick => inner.tick(),
                Next::End => return,
            }
        }
    })
}

impl Inner {
    /// Lets go of what others removed, so that its space becomes free, tells what was added, and makes room if the disk has too little.
    pub(super) fn tick(&self) {
        for object in self.all_live() {
            object.let_go(true);
        }
        self.tell_usage();
        // Whoever else fills the disk does not say so.
        if self.look_at_disk() {
            self.make_room(Goal::Limit);
        }
    }
}
