//! Answers that come later: [`Answers`].

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use adit_core::error::{FsError, Result};

use super::pool::Work;
use super::{Batch, Index};
use crate::resolve::{Question, Resolver};
use crate::wait::block_on;

/// What is asked of each part of a batch.
pub(super) type Ask<T> = fn(&Resolver<'_>, &[Question<'_>]) -> Result<Vec<T>>;

/// Why there are no answers.
pub(super) enum Failure {
    Error(FsError),
    Panic(Box<dyn Any + Send>),
}

impl Failure {
    /// The error. A panic goes on in who asks.
    pub fn into_error(self) -> FsError {
        match self {
            Failure::Error(e) => e,
            Failure::Panic(panic) => resume_unwind(panic),
        }
    }
}

struct Landed<T> {
    /// Of each piece.
    answers: Vec<Vec<T>>,
    /// Pieces that are not done.
    left: usize,
    /// That of the first piece that has failed.
    failure: Option<(usize, Failure)>,
    waker: Option<Waker>,
}

/// A batch, and what came of it.
struct Job<T> {
    index: Index,
    batch: Batch,
    ask: Ask<T>,
    given_up: AtomicBool,
    landed: Mutex<Landed<T>>,
}

impl<T: Send> Job<T> {
    fn landed(&self) -> MutexGuard<'_, Landed<T>> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, piece: usize) -> Result<Vec<T>> {
        if self.given_up.load(Relaxed) {
            return Ok(Vec::new());
        }
        let size = self.index.batch_size();
        let resolver = self.index.resolver()?.on_one_thread();
        (self.ask)(&resolver, &self.batch.part(piece * size, size))
    }

    /// All answers, in the order of the questions; or the first failure.
    fn take(landed: &mut Landed<T>) -> Result<Vec<T>> {
        match landed.failure.take() {
            Some((_, failure)) => Err(failure.into_error()),
            None => match std::mem::take(&mut landed.answers) {
                all if all.len() == 1 => Ok(all.into_iter().flatten().collect()),
                all => {
                    let mut answers = Vec::with_capacity(all.iter().map(Vec::len).sum());
                    all.into_iter().for_each(|mut piece| answers.append(&mut piece));
                    Ok(answers)
                }
            },
        }
    }
}

impl<T: Send> Work for Job<T> {
    fn pieces(&self) -> usize {
        self.batch.len().div_ceil(self.index.batch_size())
    }

    fn run(&self, piece: usize) {
        let answered = catch_unwind(AssertUnwindSafe(|| self.answer(piece)));
        let mut landed = self.landed();
        let failure = match answered {
            Ok(Ok(answers)) => {
                landed.answers[piece] = answers;
                None
            }
            Ok(Err(e)) => Some(Failure::Error(e)),
            Err(panic) => Some(Failure::Panic(panic)),
        };
        if let Some(failure) = failure
            && landed.failure.as_ref().is_none_or(|(before, _)| piece < *before)
        {
            landed.failure = Some((piece, failure));
        }
        landed.left -= 1;
        if landed.left == 0
            && let Some(waker) = landed.waker.take()
        {
            drop(landed);
            waker.wake();
        }
    }
}

enum State<T> {
    /// Nobody is at work: it is done by whoever asks.
    Here(Arc<Job<T>>),
    /// Threads of the index are.
    There(Arc<Job<T>>),
    Taken,
}

/// The answers to a batch, in the order of its paths: a future for any executor, or for [`Answers::wait`].
///
/// Work on it has begun when it is made, and goes on whether somebody asks or not; any number may be under way at once. To drop it gives the batch up:
/// its memory is freed, and a thread that is at it ends the piece that it is in, some thousand paths at most.
#[must_use = "to drop it gives the batch up"]
pub struct Answers<T: Send + 'static> {
    state: State<T>,
}

impl<T: Send> std::fmt::Debug for Answers<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

impl<T: Send> Answers<T> {
    /// Begins a batch: by threads of the index if it is worth one, else when somebody asks.
    pub(super) fn begin(index: &Index, batch: Batch, ask: Ask<T>) -> Answers<T> {
        let is_small = batch.len() <= index.batch_size().min(SMALL);
        let pieces = batch.len().div_ceil(index.batch_size());
        let landed =
            Landed { answers: (0..pieces).map(|_| Vec::new()).collect(), left: pieces, failure: None, waker: None };
        let given_up = AtomicBool::new(false);
        let job = Arc::new(Job { index: index.clone(), batch, ask, given_up, landed: Mutex::new(landed) });
        // What an index does before its first answer takes long, however few paths there are.
        let here = pieces == 0 || is_small && index.is_prepared();
        let state = match here || !index.pool().begin(job.clone()) {
            true => State::Here(job),
            false => State::There(job),
        };
        Answers { state }
    }

    /// Blocks until they are there.
    ///
    /// # Errors
    /// As the question.
    pub fn wait(self) -> Result<Vec<T>> {
        block_on(self)
    }
}

/// So few paths take less time than to wake a thread.
const SMALL: usize = 1 << 8;

// Nothing in it is pinned in place.
impl<T: Send> Unpin for Answers<T> {}

impl<T: Send> Future for Answers<T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answers = match &self.state {
            State::Here(job) => {
                (0..job.pieces()).for_each(|piece| job.run(piece));
                Job::take(&mut job.landed())
            }
            State::There(job) => {
                let mut landed = job.landed();
                if landed.left > 0 {
                    landed.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Job::take(&mut landed)
            }
            State::Taken => panic!("answers are asked for after they were given"),
        };
        self.state = State::Taken;
        Poll::Ready(answers)
    }
}

impl<T: Send + 'static> Drop for Answers<T> {
    fn drop(&mut self) {
        if let State::There(job) = &self.state {
            job.given_up.store(true, Relaxed);
            let work: Arc<dyn Work> = job.clone();
            job.index.pool().forget(&work);
        }
    }
}
