//! The bodies of requests and answers: what is seen of their progress, and when one has stopped.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use http_body::{Frame, SizeHint};
use opendal_core::{Buffer, Result};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
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

/// What becomes of a request whose body is read while it goes.
pub enum Wish<T> {
    /// It wants another piece.
    Piece,
    /// It is over.
    Ended(T),
}

/// Pieces of a body that are asked for before they are read.
const ASKED_AHEAD: u64 = 2;

/// The body of a request that asks for its pieces, so that no more than three of them are in memory: one that is handed on, and two.
pub struct Asked<T> {
    left: u64,
    /// What is left of the piece that is handed on.
    piece: Bytes,
    wishes: mpsc::Sender<Wish<T>>,
    pieces: UnboundedReceiver<Bytes>,
    has_begun: bool,
    progress: Arc<Progress>,
}

impl<T> Asked<T> {
    /// A body of `len` bytes, which is not zero. Who gets its wishes sends the pieces in order; if they end too early, the request fails.
    pub fn new(len: u64, wishes: mpsc::Sender<Wish<T>>) -> (Asked<T>, UnboundedSender<Bytes>) {
        let (sender, pieces) = tokio::sync::mpsc::unbounded_channel();
        let (piece, has_begun, progress) = (Bytes::new(), false, Progress::start());
        (Asked { left: len, piece, wishes, pieces, has_begun, progress }, sender)
    }

    /// Its progress.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    fn ask(&self, pieces: u64) {
        for _ in 0..pieces {
            // Who is gone sends no more, which is seen then.
            let _ = self.wishes.send(Wish::Piece);
        }
    }
}

impl<T: Send + 'static> http_body::Body for Asked<T> {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, std::io::Error>>> {
        self.progress.note();
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.ask(ASKED_AHEAD);
        }
        if self.piece.is_empty() {
            self.piece = match self.pieces.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(piece)) if !piece.is_empty() && piece.len() as u64 <= self.left => piece,
                Poll::Ready(_) => {
                    return Poll::Ready(Some(Err(std::io::Error::other("what was to be sent cannot be read"))));
                }
            };
            self.ask(1);
        }
        // As of any other body: on a slow line, a whole piece takes longer than silence may last.
        let len = self.piece.len().min(PIECE_LEN_BYTES);
        self.left -= len as u64;
        Poll::Ready(Some(Ok(Frame::data(self.piece.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
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
    /// What there is one of for each request that may be at work; none if it is a part of another one.
    pub _permit: Option<OwnedSemaphorePermit>,
}

impl Stream for Counted {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http_body::Body as _;

    use super::*;

    /// What is handed on is what is noticed of the progress.
    #[test]
    fn a_body_that_is_asked_for_goes_in_small_pieces() {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
        let (wishes, wished) = mpsc::channel::<Wish<()>>();
        let (mut body, pieces) = Asked::new(bytes.len() as u64, wishes);
        let (mut sent, mut got) = (bytes.chunks(300_000), Vec::new());
        let mut cx = Context::from_waker(Waker::noop());
        while !body.is_end_stream() {
            match Pin::new(&mut body).poll_frame(&mut cx) {
                Poll::Ready(frame) => {
                    let frame = frame.unwrap().unwrap().into_data().unwrap();
                    assert!((1..=PIECE_LEN_BYTES).contains(&frame.len()), "{} bytes", frame.len());
                    got.extend_from_slice(&frame);
                    assert_eq!(body.size_hint().exact(), Some((bytes.len() - got.len()) as u64));
                }
                Poll::Pending => {
                    let wishes = wished.try_iter().count();
                    assert!((1..=2).contains(&wishes), "{wishes} pieces are wanted");
                    for piece in sent.by_ref().take(wishes) {
                        pieces.send(Bytes::copy_from_slice(piece)).unwrap();
                    }
                }
            }
        }
        assert!(got == bytes);
        drop(pieces);
        assert!(matches!(Pin::new(&mut body).poll_frame(&mut cx), Poll::Ready(None)));
    }

    #[test]
    fn a_body_that_ends_too_early_or_too_late_fails() {
        for piece in [&b""[..], b"0123"] {
            let (wishes, _wished) = mpsc::channel::<Wish<()>>();
            let (mut body, pieces) = Asked::new(3, wishes);
            pieces.send(Bytes::from_static(piece)).unwrap();
            drop(pieces);
            let frame = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(frame, Poll::Ready(Some(Err(_)))));
        }
    }
}
