//! A search that goes on meanwhile: [`Search`].

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use adit_core::error::Result;

use super::Index;
use super::answers::Failure;
use super::pool::Work;
use crate::query::Query;
use crate::wait::block_on;

/// What is asked.
type Ask<T> = fn(&Index, &Query) -> Result<T>;

enum Landed<T> {
    /// Not there yet, and who is told when it is.
    Awaited(Option<Waker>),
    There(std::result::Result<T, Failure>),
    Taken,
}

/// A search, and what came of it. It is one piece of work: it divides itself among threads.
struct Job<T> {
    index: Index,
    query: Query,
    ask: Ask<T>,
    given_up: Arc<AtomicBool>,
    landed: Mutex<Landed<T>>,
}

impl<T: Send> Job<T> {
    fn landed(&self) -> MutexGuard<'_, Landed<T>> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send> Work for Job<T> {
    fn pieces(&self) -> usize {
        1
    }

    fn run(&self, _: usize) {
        let answered = catch_unwind(AssertUnwindSafe(|| (self.ask)(&self.index, &self.query)));
        let answer = match answered {
            Ok(answer) => answer.map_err(Failure::Error),
            Err(panic) => Err(Failure::Panic(panic)),
        };
        let before = std::mem::replace(&mut *self.landed(), Landed::There(answer));
        if let Landed::Awaited(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// What a search finds, or how many that is: a future for any executor, or for [`Search::wait`].
///
/// Work on it has begun when it is made, and goes on whether somebody asks or not. To drop it ends the search soon, as [`Query::stop_when`] does.
#[must_use = "to drop it gives the search up"]
pub struct Search<T: Send + 'static> {
    job: Arc<Job<T>>,
    /// Whether threads of the index are at work; else it is done by whoever asks.
    is_there: bool,
}

impl<T: Send> std::fmt::Debug for Search<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Search").finish_non_exhaustive()
    }
}

impl<T: Send> Search<T> {
    pub(super) fn begin(index: &Index, query: &Query, ask: Ask<T>) -> Search<T> {
        let given_up = Arc::new(AtomicBool::new(false));
        // What the query was told to stop for stops it all the same.
        let query = query.clone().stop_when(given_up.clone());
        let landed = Mutex::new(Landed::Awaited(None));
        let job = Arc::new(Job { index: index.clone(), query, ask, given_up, landed });
        let is_there = index.pool().begin(job.clone());
        Search { job, is_there }
    }

    /// Blocks until it is there.
    ///
    /// # Errors
    /// As the question.
    pub fn wait(self) -> Result<T> {
        block_on(self)
    }
}

// Nothing in it is pinned in place.
impl<T: Send> Unpin for Search<T> {}

impl<T: Send> Future for Search<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.is_there && matches!(*self.job.landed(), Landed::Awaited(_)) {
            self.job.run(0);
        }
        let mut landed = self.job.landed();
        match std::mem::replace(&mut *landed, Landed::Taken) {
            Landed::Awaited(_) => {
                *landed = Landed::Awaited(Some(cx.waker().clone()));
                Poll::Pending
            }
            Landed::There(answer) => {
                drop(landed);
                Poll::Ready(answer.map_err(Failure::into_error))
            }
            Landed::Taken => panic!("what a search found is asked for after it was given"),
        }
    }
}

impl<T: Send + 'static> Drop for Search<T> {
    fn drop(&mut self) {
        if self.is_there {
            self.job.given_up.store(true, Relaxed);
            let work: Arc<dyn Work> = self.job.clone();
            self.job.index.pool().forget(&work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::{Builder, NodeId};

    /// Searches that have begun, and those of them that have ended.
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static ENDED: AtomicUsize = AtomicUsize::new(0);

    /// As a search that looks at ever more nodes.
    fn for_ever(_: &Index, query: &Query) -> Result<()> {
        BEGUN.fetch_add(1, Relaxed);
        let stopped = loop {
            match query.check_stop() {
                Ok(()) => std::thread::yield_now(),
                stopped => break stopped,
            }
        };
        ENDED.fetch_add(1, Relaxed);
        stopped
    }

    fn until(what: impl Fn() -> bool) {
        while !what() {
            std::thread::yield_now();
        }
    }

    fn index(dir: &std::path::Path) -> Index {
        let file = dir.join("i");
        Builder::new(dir, 0).finish(&file, &mut |_| ControlFlow::Continue(())).unwrap();
        Index::options().threads(2).open(&file).unwrap()
    }

    #[test]
    fn a_search_that_is_dropped_ends_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let index = index(dir.path());
        // Two run; the others wait for them, and are never begun.
        let flying: Vec<_> = (0..6).map(|_| Search::begin(&index, &Query::new(), for_ever)).collect();
        until(|| BEGUN.load(Relaxed) == 2);
        flying.into_iter().rev().for_each(drop);
        until(|| ENDED.load(Relaxed) == 2);
        assert_eq!(BEGUN.load(Relaxed), 2);
        // The query's own flag ends it as well.
        let own = Arc::new(AtomicBool::new(false));
        let stopped = Search::begin(&index, &Query::new().stop_when(own.clone()), for_ever);
        own.store(true, Relaxed);
        assert_eq!(stopped.wait().unwrap_err().kind(), adit_core::ErrorKind::Interrupted);
    }

    #[test]
    fn a_panic_is_that_of_who_asks() {
        let dir = tempfile::tempdir().unwrap();
        let index = index(dir.path());
        let search = Search::<NodeId>::begin(&index, &Query::new(), |_, _| panic!("it has to be seen"));
        let panic = catch_unwind(AssertUnwindSafe(|| search.wait())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"it has to be seen"));
        assert_eq!(index.count_async(&Query::new()).wait().unwrap(), 0, "and others are answered");
    }
}
