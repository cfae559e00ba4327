//! Threads that are there for as long as there is work: [`Pool`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A job in pieces that threads take one after the other.
pub(super) trait Work: Send + Sync {
    /// How many pieces there are.
    fn pieces(&self) -> usize;

    /// Does a piece, each once. Does not panic.
    fn run(&self, piece: usize);
}

/// A job, and the first piece that nobody has taken.
struct Waiting {
    work: Arc<dyn Work>,
    next: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    threads: usize,
}

/// Does jobs, a piece of each in turn. A thread ends when nothing waits: nobody sits idle.
pub(super) struct Pool {
    state: Mutex<State>,
    threads_max: usize,
}

impl Pool {
    /// With so many threads at most.
    pub fn new(threads_max: usize) -> Pool {
        Pool { state: Mutex::default(), threads_max: threads_max.max(1) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a job done. False if the host has no thread for it: then nobody does it.
    pub fn begin(self: &Arc<Self>, work: Arc<dyn Work>) -> bool {
        let pieces = work.pieces();
        let mut state = self.state();
        let more = pieces.min(self.threads_max - state.threads.min(self.threads_max));
        state.waiting.push_back(Waiting { work: work.clone(), next: 0 });
        for _ in 0..more {
            let pool = self.clone();
            match thread::Builder::new().name("adit-index-ask".into()).spawn(move || pool.work()) {
                Ok(_) => state.threads += 1,
                Err(_) => break,
            }
        }
        if state.threads == 0 {
            state.waiting.retain(|waiting| !is(waiting, &work));
        }
        state.threads > 0
    }

    /// Nobody wants this job any more: what was not begun of it is not done.
    pub fn forget(&self, work: &Arc<dyn Work>) {
        self.state().waiting.retain(|waiting| !is(waiting, work));
    }

    /// What a thread does.
    fn work(&self) {
        while let Some((work, piece)) = self.take() {
            work.run(piece);
        }
    }

    /// A piece of the job that waits longest, which then waits behind the others. `None`: this thread is done.
    fn take(&self) -> Option<(Arc<dyn Work>, usize)> {
        let mut state = self.state();
        let Some(mut waiting) = state.waiting.pop_front() else {
            state.threads -= 1;
            return None;
        };
        let taken = (waiting.work.clone(), waiting.next);
        waiting.next += 1;
        if waiting.next < waiting.work.pieces() {
            state.waiting.push_back(waiting);
        }
        Some(taken)
    }
}

fn is(waiting: &Waiting, work: &Arc<dyn Work>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(&waiting.work), Arc::as_ptr(work))
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Counts its pieces, each of which waits until it may.
    struct Counted {
        pieces: usize,
        done: AtomicUsize,
        open: (Mutex<bool>, Condvar),
    }

    impl Counted {
        fn new(pieces: usize, open: bool) -> Arc<Counted> {
            Arc::new(Counted { pieces, done: AtomicUsize::new(0), open: (Mutex::new(open), Condvar::new()) })
        }

        fn open(&self) {
            *self.open.0.lock().unwrap() = true;
            self.open.1.notify_all();
        }
    }

    impl Work for Counted {
        fn pieces(&self) -> usize {
            self.pieces
        }

        fn run(&self, _: usize) {
            let open = self.open.0.lock().unwrap();
            drop(self.open.1.wait_while(open, |open| !*open).unwrap());
            self.done.fetch_add(1, Relaxed);
        }
    }

    fn until(what: impl Fn() -> bool) {
        while !what() {
            thread::yield_now();
        }
    }

    #[test]
    fn every_piece_is_done_once_and_no_thread_stays() {
        let pool = Arc::new(Pool::new(3));
        let jobs: Vec<_> = [1, 7, 100, 1].into_iter().map(|pieces| Counted::new(pieces, true)).collect();
        for job in &jobs {
            assert!(pool.begin(job.clone()));
        }
        until(|| pool.state().threads == 0);
        assert_eq!(jobs.iter().map(|job| job.done.load(Relaxed)).collect::<Vec<_>>(), [1, 7, 100, 1]);
        assert!(jobs.iter().all(|job| Arc::strong_count(job) == 1));
        assert!(pool.begin(jobs[0].clone()), "and there are others when there is work again");
        until(|| jobs[0].done.load(Relaxed) == 2);
    }

    #[test]
    fn what_is_forgotten_is_not_begun_and_does_not_stop_the_others() {
        let pool = Arc::new(Pool::new(1));
        let (first, second, third) = (Counted::new(50, false), Counted::new(50, true), Counted::new(5, true));
        for job in [&first, &second, &third] {
            assert!(pool.begin(job.clone()));
        }
        for forgotten in [&first, &second] {
            pool.forget(&(forgotten.clone() as Arc<dyn Work>));
        }
        first.open();
        until(|| pool.state().threads == 0);
        let done = [&first, &second, &third].map(|job| job.done.load(Relaxed));
        // The one thread was in a piece of the first, and may have had one of the second before.
        assert!(done[0] <= 1 && done[1] <= 1, "{done:?}");
        assert_eq!(done[2], 5);
    }
}
