//! Threads for requests that may wait for a network, so that those that serve everything else never do.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most threads of one mount. What comes while all of them wait has to wait for one of them: content alone.
pub(crate) const WAITERS_MAX: usize = 64;
/// Most of them that wait for one file, and most of their memory, so that some are left for the others if its content does not come.
const FILE_MAX: usize = WAITERS_MAX / 4 * 3;
const FILE_SHARE: (u64, u64) = (3, 4);
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(5);
/// Enough for a read through an overlay and a store.
const STACK_LEN_BYTES: usize = 512 << 10;
/// What a job takes beside its own buffer, in bytes: of an object of one block, and of what comes over the network, there is some of all sizes.
const ASIDE_LEN_BYTES: u64 = 512 << 10;

struct Job {
    /// The number of the file that it is about.
    file: u64,
    /// Bytes that it takes while it runs.
    bytes: u64,
    run: Box<dyn FnOnce() + Send>,
}

/// What runs.
#[derive(Clone, Copy, Default)]
struct Load {
    jobs: usize,
    bytes: u64,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// What runs.
    taken: Load,
    /// The same of each file, if anything does.
    of_files: HashMap<u64, Load>,
}

struct Shared {
    state: Mutex<State>,
    more: Condvar,
    limit_bytes: u64,
}

/// Threads that are made when they are needed.
pub(super) struct Waiters(Arc<Shared>);

impl Waiters {
    /// None yet. What runs takes at most `limit_bytes` together, or is one.
    pub(super) fn new(limit_bytes: u64) -> Waiters {
        Waiters(Arc::new(Shared { state: Mutex::default(), more: Condvar::new(), limit_bytes }))
    }

    /// Runs `job`, which is about the file with this number and has a buffer of so many bytes, on a thread of its own, or at once if there can
    /// be none.
    pub(super) fn run(&self, file: u64, bytes: u64, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.jobs.push_back(Job { file, bytes: bytes + ASIDE_LEN_BYTES, run: Box::new(job) });
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
            job.into_iter().for_each(|job| (job.run)());
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

/// Counts what a job takes no more, also if it panics.
struct Taken<'a> {
    shared: &'a Shared,
    file: u64,
    bytes: u64,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.give_back(self.file, self.bytes);
        if !state.jobs.is_empty() {
            // There may be room for more than one.
            self.shared.more.notify_all();
        }
    }
}

impl Load {
    /// Whether so many more bytes are within `limit_bytes`. One job always is.
    fn has_room(&self, bytes: u64, limit_bytes: u64) -> bool {
        self.jobs == 0 || self.bytes.saturating_add(bytes) <= limit_bytes
    }
}

impl State {
    /// The next job, if there is room for it: the first whose file has not its share already.
    fn next(&mut self, limit_bytes: u64) -> Option<Job> {
        let share_bytes = limit_bytes / FILE_SHARE.1 * FILE_SHARE.0;
        let at = self.jobs.iter().position(|job| {
            let load = self.of_files.get(&job.file).copied().unwrap_or_default();
            load.jobs < FILE_MAX && load.has_room(job.bytes, share_bytes)
        })?;
        if !self.taken.has_room(self.jobs[at].bytes, limit_bytes) {
            return None;
        }
        let job = self.jobs.remove(at)?;
        for load in [&mut self.taken, self.of_files.entry(job.file).or_default()] {
            load.jobs += 1;
            load.bytes += job.bytes;
        }
        Some(job)
    }

    /// A job is done that [`State::next`] gave.
    fn give_back(&mut self, file: u64, bytes: u64) {
        let of_file = self.of_files.get_mut(&file);
        for load in [Some(&mut self.taken), of_file].into_iter().flatten() {
            load.jobs -= 1;
            load.bytes -= bytes;
        }
        if self.of_files.get(&file).is_some_and(|load| load.jobs == 0) {
            self.of_files.remove(&file);
        }
    }
}

impl Shared {
    fn work(&self) {
        // Dropped after the lock.
        let _thread = Thread(self);
        let mut state = self.state.lock();
        loop {
            if let Some(Job { file, bytes, run }) = state.next(self.limit_bytes) {
                drop(state);
                let taken = Taken { shared: self, file, bytes };
                run();
                drop(taken);
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
        let waiters = Waiters::new(u64::MAX);
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (sent, at_work) = channel();
        for n in 0..WAITERS_MAX + 3 {
            let (gate, sent) = (gate.clone(), sent.clone());
            waiters.run(n as u64, 1, move || {
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
        waiters.run(0, 1, move || done.send(()).unwrap());
        told.recv().unwrap();
        assert!(waiters.0.state.lock().threads <= WAITERS_MAX);
    }

    #[test]
    fn one_file_leaves_threads_and_memory_to_the_others() {
        // As many as there may be of one file: by their number, and by what they take.
        for (len, limit_bytes, most) in [(1, u64::MAX, FILE_MAX), (ASIDE_LEN_BYTES, 16 * ASIDE_LEN_BYTES, 6)] {
            let waiters = Waiters::new(limit_bytes);
            let gate = Arc::new((Mutex::new(false), Condvar::new()));
            let (sent, at_work) = channel();
            for _ in 0..2 * WAITERS_MAX {
                let (gate, sent) = (gate.clone(), sent.clone());
                waiters.run(1, len, move || {
                    sent.send(1).unwrap();
                    let mut open = gate.0.lock();
                    while !*open {
                        gate.1.wait(&mut open);
                    }
                });
            }
            (0..most).for_each(|_| assert_eq!(at_work.recv().unwrap(), 1));
            // It comes before all that wait for the first one, and so does the next.
            for file in 2..5 {
                let sent = sent.clone();
                waiters.run(file, len, move || sent.send(file).unwrap());
                assert_eq!(at_work.recv().unwrap(), file);
            }
            *gate.0.lock() = true;
            gate.1.notify_all();
            (most..2 * WAITERS_MAX).for_each(|_| assert_eq!(at_work.recv().unwrap(), 1));
            drop(sent);
            assert!(at_work.recv().is_err(), "all have ended");
        }
    }

    #[test]
    fn what_runs_takes_no_more_than_it_may() {
        const LEN: u64 = 1 << 20;
        let waiters = Waiters::new(4 * (LEN + ASIDE_LEN_BYTES));
        let (sent, at_work) = channel();
        let gates: Vec<_> = (0..10)
            .map(|n| {
                let (gate, wait) = channel::<()>();
                let sent = sent.clone();
                // The last is more than all of it, and goes alone.
                waiters.run(n as u64, if n == 9 { 100 * LEN } else { LEN }, move || {
                    sent.send(n).unwrap();
                    wait.recv().unwrap();
                });
                gate
            })
            .collect();
        let mut begun: Vec<usize> = (0..4).map(|_| at_work.recv().unwrap()).collect();
        for n in 0..10 {
            assert!(at_work.try_recv().is_err(), "those behind wait");
            let ended = begun[n];
            gates[ended].send(()).unwrap();
            match n {
                // One ends, one begins.
                0..5 => begun.push(at_work.recv().unwrap()),
                8 => begun.push(at_work.recv().unwrap()),
                _ => {}
            }
        }
        begun.sort_unstable();
        assert_eq!(begun, (0..10).collect::<Vec<_>>());
    }
}
