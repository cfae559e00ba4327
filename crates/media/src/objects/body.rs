//! The bodies of requests and answers: what is seen of their progress, and when one has stopped.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Frame, SizeHint};
use opendal_core::{Buffer, Result};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

use super::transport::{Trouble, innermost};

/// Bytes of a request's body that are handed on at a time: what is noticed of its progress.
const PIECE_LEN_BYTES: usize = 64 << 10;

/// When something was sent last.
pub struct Progress {
    since: Instant,
    last_ms: AtomicU64,
}

impl Progress {
    /// From now on.
    pub fn start() -> Arc<Progress> {
        Arc::new(Progress { since: Instant::now(), last_ms: AtomicU64::new(0) })
    }

    fn note(&self) {
        let elapsed = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(elapsed, Ordering::Relaxed);
    }

    /// The last moment at which something was handed on.
    pub fn last(&self) -> Instant {
        self.since + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }
}

/// The body of a request, in pieces small enough to see that they go.
pub struct Outgoing {
    rest: Buffer,
    piece: Bytes,
    progress: Arc<Progress>,
}

impl Outgoing {
    /// All of `body`, with each piece noted in `progress`.
    pub fn new(body: Buffer, progress: Arc<Progress>) -> Outgoing {
        Outgoing { rest: body, piece: Bytes::new(), progress }
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        self.progress.note();
        if self.piece.is_empty() {
            match self.rest.next() {
                Some(piece) => self.piece = piece,
                None => return Poll::Ready(None),
            }
        }
        let len = self.piece.len().min(PIECE_LEN_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.piece.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.piece.len() + self.rest.len()) as u64)
    }
}

type Pieces = Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send + Sync + Unpin>;

/// The body of an answer, which may not stop for long.
pub struct Incoming {
    stream: Pieces,
    /// Bytes that it may still have.
    left: u64,
    idle: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    /// What `answer` still has: at most `len_max` bytes, with at most `idle` between two pieces.
    pub fn new(answer: reqwest::Response, len_max: u64, idle: Duration) -> Incoming {
        Incoming { stream: Box::new(answer.bytes_stream()), left: len_max, idle, timer: None }
    }
}

impl Stream for Incoming {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(piece) = Pin::new(&mut self.stream).poll_next(cx) {
            self.timer = None;
            let piece = match piece {
                None => return Poll::Ready(None),
                Some(Err(e)) => return Poll::Ready(Some(Err(Trouble::Broken(innermost(&e)).into_error()))),
                Some(Ok(piece)) => piece,
            };
            return Poll::Ready(Some(match self.left.checked_sub(piece.len() as u64) {
                Some(left) => {
                    self.left = left;
                    Ok(Buffer::from(piece))
                }
                None => Err(Trouble::Contradiction("the answer is far too long".to_owned()).into_error()),
            }));
        }
        let idle = self.idle;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(idle)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(Trouble::TimedOut("the answer stopped half-way").into_error()))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// A body that is there already.
pub struct Whole(pub Option<Buffer>);

impl Stream for Whole {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.take().filter(|whole| !whole.is_empty()).map(Ok))
    }
}

/// A body whose request counts as one until this is dropped.
pub struct Counted {
    /// The body.
    pub stream: Box<dyn Stream<Item = Result<Buffer>> + Send + Sync + Unpin>,
    /// What there is one of for each request that may be at work.
    pub _permit: OwnedSemaphorePermit,
}

impl Stream for Counted {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(cx)
    }
}
