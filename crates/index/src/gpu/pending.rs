//! Answers that are not there yet: [`Pending`], a future that can also be waited for without any executor.
//!
//! A batch that is given to a device lands when the thread that watches the device has seen it end; what is still to be done
//! with the words that came back (putting them in order, a second run) is done by whoever asks for the answer.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::GpuError;
use crate::wait::block_on;

/// What a job came to, in words of 32 bits.
pub(super) type Words = Result<Vec<u32>, GpuError>;

/// Where the words of one job arrive.
#[derive(Default)]
pub(super) struct Landing(Mutex<Landed>);

#[derive(Default)]
struct Landed {
    words: Option<Words>,
    waker: Option<Waker>,
}

impl Landing {
    /// Puts down what came. Only the first counts: a device that is lost may tell of a job twice.
    pub fn land(&self, words: Words) {
        let mut landed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if landed.words.is_none() {
            landed.words = Some(words);
        }
        if let Some(waker) = landed.waker.take() {
            drop(landed);
            waker.wake();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Words> {
        let mut landed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match landed.words.take() {
            Some(words) => Poll::Ready(words),
            None => {
                landed.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

type Then<'a, T> = Box<dyn FnOnce(Words) -> Pending<'a, T> + Send + 'a>;

enum State<'a, T> {
    Ready(Result<T, GpuError>),
    Flying(Arc<Landing>, Then<'a, T>),
    Inner(Pin<Box<dyn Future<Output = Result<T, GpuError>> + Send + 'a>>),
    Taken,
}

/// An answer that comes later. Several may be under way at once; each goes on only while somebody asks for it.
///
/// [`Pending::wait`] blocks the thread; as a future it may be polled by any executor. To drop it gives the answer up.
#[must_use = "nothing is known before it is waited for"]
pub struct Pending<'a, T> {
    state: State<'a, T>,
}

impl<T> std::fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

impl<'a, T> Pending<'a, T> {
    /// One that is there.
    pub fn ready(result: Result<T, GpuError>) -> Self {
        Pending { state: State::Ready(result) }
    }

    /// What another future comes to.
    pub fn from_future(future: impl Future<Output = Result<T, GpuError>> + Send + 'a) -> Self {
        Pending { state: State::Inner(Box::pin(future)) }
    }

    /// When the words have landed, `then` makes an answer of them, or another job.
    pub(super) fn after(landing: Arc<Landing>, then: impl FnOnce(Words) -> Pending<'a, T> + Send + 'a) -> Self {
        Pending { state: State::Flying(landing, Box::new(then)) }
    }

    /// Blocks until it is there.
    ///
    /// # Errors
    /// As the job that it is of.
    pub fn wait(self) -> Result<T, GpuError> {
        block_on(self)
    }
}

// Nothing in it is pinned in place.
impl<T> Unpin for Pending<'_, T> {}

impl<T> Future for Pending<'_, T> {
    type Output = Result<T, GpuError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match std::mem::replace(&mut self.state, State::Taken) {
                State::Ready(result) => return Poll::Ready(result),
                State::Flying(landing, then) => match landing.poll(cx) {
                    Poll::Ready(words) => self.state = then(words).state,
                    Poll::Pending => {
                        self.state = State::Flying(landing, then);
                        return Poll::Pending;
                    }
                },
                State::Inner(mut future) => match future.as_mut().poll(cx) {
                    Poll::Ready(result) => return Poll::Ready(result),
                    Poll::Pending => {
                        self.state = State::Inner(future);
                        return Poll::Pending;
                    }
                },
                State::Taken => panic!("an answer is polled after it was given"),
            }
        }
    }
}

/// Runs `parts` jobs in their order, at most `width` of them under way at once, and gives each answer to `take` in that order.
/// The first ones are begun at once.
pub(super) fn windowed<'a, T: Send + 'a>(
    parts: usize,
    width: usize,
    mut start: impl FnMut(usize) -> Pending<'a, T> + Send + 'a,
    mut take: impl FnMut(usize, T) + Send + 'a,
) -> impl Future<Output = Result<(), GpuError>> + Send + 'a {
    let mut begun = parts.min(width.max(1));
    let mut flying: VecDeque<_> = (0..begun).map(&mut start).collect();
    async move {
        let mut done = 0;
        while let Some(first) = flying.pop_front() {
            take(done, first.await?);
            done += 1;
            if begun < parts {
                flying.push_back(start(begun));
                begun += 1;
            }
        }
        Ok(())
    }
}
