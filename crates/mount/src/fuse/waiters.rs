//! Threads for requests that may wait for a network, so that those that serve everything else never do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most threads of one mount. What comes while all of them wait has to wait for one of them: content alone.
pub(crate) const WAITERS_MAX: usize = 64;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(5);
/// Enough for a read through an overlay and a store.
const STACK_LEN_BYTES: usize = 512 << 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

/// Threads that are made when they are needed.
#[derive(Default)]
pub(super) struct Waiters(Arc<Shared>);

impl Waiters {
    /// Runs `job` on a thread of its own, or at once if there can be none.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= WAITERS_MAX {
            self.0.more.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = self.0.clone();
        let spawned = std::thread::Builder::new().name("adit-wait".into()).stack_size(STACK_LEN_BYTES);
        if let Err(e) = spawned.spawn(move || shared.work()) {
            tracing::warn!(error = %e, "no thread for a request that may wait");
            let mut state = self.0.state.lock();
            state.threads -= 1;
            let job = state.jobs.pop_back();
            drop(state);
            job.into_iter().for_each(|job| job());
        }
    }
}

/// Counts a thread out, also if a job panics.
struct Thread<'a>(&'a Shared);

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
    }
}

impl Shared {
    fn work(&self) {
        // Dropped after the lock.
        let _thread = Thread(self);
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.more.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn each_job_that_waits_has_a_thread_until_there_are_too_many() {
        let waiters = Waiters::default();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (sent, at_work) = channel();
        for n in 0..WAITERS_MAX + 3 {
            let (gate, sent) = (gate.clone(), sent.clone());
            waiters.run(move || {
                sent.send(n).unwrap();
                let mut open = gate.0.lock();
                while !*open {
                    gate.1.wait(&mut open);
                }
            });
        }
        let begun: Vec<usize> = (0..WAITERS_MAX).map(|_| at_work.recv().unwrap()).collect();
        assert_eq!(begun.len(), WAITERS_MAX);
        assert!(at_work.try_recv().is_err(), "the others wait for a thread");
        *gate.0.lock() = true;
        gate.1.notify_all();
        (0..3).for_each(|_| assert!(at_work.recv().unwrap() < WAITERS_MAX + 3));
        // The threads are used again.
        let (done, told) = channel();
        waiters.run(move || done.send(()).unwrap());
        told.recv().unwrap();
        assert!(waiters.0.state.lock().threads <= WAITERS_MAX);
    }
}
