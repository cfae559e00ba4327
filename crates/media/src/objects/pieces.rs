//! The bytes of an answer on their way from the threads of the network to the thread that waits for them.
//!
//! They are handed over as they came, and are not collected: whoever is slow holds back the connection, and no more than
//! [`AHEAD_MAX_BYTES`] wait for it.

use std::sync::{Arc, mpsc};

use adit_core::Result;
use adit_core::media::{ObjectInfo, ObjectSink};
use bytes::Bytes;
use tokio::sync::Semaphore;

use super::calls::Outcome;
use super::transport::Trouble;

/// Bytes of a range that wait for their reader at most, but for a piece that is longer by itself.
const AHEAD_MAX_BYTES: usize = 512 << 10;

enum Piece {
    Object(ObjectInfo),
    Bytes(Bytes),
    End(Outcome<ObjectInfo>),
}

/// The end that sends.
pub struct Pieces {
    sender: mpsc::Sender<Piece>,
    room: Arc<Semaphore>,
    told: std::sync::OnceLock<()>,
}

/// The end that waits. When it is gone, nothing is sent any more.
pub struct Arrived {
    receiver: mpsc::Receiver<Piece>,
    room: Arc<Semaphore>,
    has_ended: bool,
}

/// Both ends.
pub fn channel() -> (Pieces, Arrived) {
    let (sender, receiver) = mpsc::channel();
    let room = Arc::new(Semaphore::new(AHEAD_MAX_BYTES));
    (
        Pieces { sender, room: room.clone(), told: std::sync::OnceLock::new() },
        Arrived { receiver, room, has_ended: false },
    )
}

/// What a piece takes of the room.
fn taken(len: usize) -> usize {
    len.min(AHEAD_MAX_BYTES)
}

impl Pieces {
    /// Hands over bytes of `object` when there is room. False if nobody takes them.
    pub async fn hand_over(&self, object: &ObjectInfo, bytes: Bytes) -> bool {
        // At most what a `u32` holds.
        let Ok(permit) = self.room.acquire_many(taken(bytes.len()) as u32).await else { return false };
        permit.forget();
        if self.told.set(()).is_ok() && self.sender.send(Piece::Object(object.clone())).is_err() {
            return false;
        }
        self.sender.send(Piece::Bytes(bytes)).is_ok()
    }

    /// Tells how it ended; nothing comes after that.
    pub fn end(&self, ended: Outcome<ObjectInfo>) {
        // A caller that is gone need not know.
        let _ = self.sender.send(Piece::End(ended));
    }
}

impl Arrived {
    /// Hands on all that comes, and tells how it ended; `None` if that never was told.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn hand_on(self, sink: &mut ObjectSink<'_>) -> Result<Option<Outcome<ObjectInfo>>> {
        let mut of = ObjectInfo::default();
        while let Ok(piece) = self.receiver.recv() {
            match piece {
                Piece::Object(object) => of = object,
                Piece::Bytes(bytes) => {
                    sink(&of, &bytes)?;
                    self.room.add_permits(taken(bytes.len()));
                }
                Piece::End(ended) => return Ok(Some(ended)),
            }
        }
        Ok(None)
    }
}

impl Arrived {
    /// The next piece, for who takes them one by one; none at the end.
    pub fn next_piece(&mut self) -> Option<Outcome<Bytes>> {
        while !self.has_ended {
            match self.receiver.recv() {
                Ok(Piece::Object(_)) => {}
                Ok(Piece::Bytes(bytes)) => {
                    self.room.add_permits(taken(bytes.len()));
                    return Some(Ok(bytes));
                }
                Ok(Piece::End(ended)) => {
                    self.has_ended = true;
                    return ended.err().map(Err);
                }
                Err(_) => {
                    self.has_ended = true;
                    let what = "the request ended without a result".to_owned();
                    return Some(Err(Trouble::Broken(what).into_error()));
                }
            }
        }
        None
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use adit_core::{ErrorKind, FsError};

    use super::super::runtime::Threads;
    use super::*;

    const PIECE: usize = 100 << 10;

    async fn sent(pieces: Pieces, count: usize) {
        let object = ObjectInfo { len: 7, ..ObjectInfo::default() };
        for n in 0..count {
            if !pieces.hand_over(&object, vec![n as u8; PIECE].into()).await {
                return;
            }
        }
        pieces.end(Ok(object));
    }

    #[test]
    fn pieces_come_in_order_with_their_object() {
        let threads = Threads::start().unwrap();
        let (pieces, arrived) = channel();
        threads.spawn(sent(pieces, 50));
        let mut came = 0_usize;
        let ended = arrived.hand_on(&mut |object, bytes| {
            assert_eq!((object.len, bytes.len(), bytes[0]), (7, PIECE, came as u8));
            came += 1;
            Ok(())
        });
        assert!(ended.unwrap().unwrap().unwrap().len == 7 && came == 50);
    }

    #[test]
    fn a_slow_reader_has_little_waiting_for_it_and_one_that_ends_nothing() {
        let threads = Threads::start().unwrap();
        let (pieces, arrived) = channel();
        let room = arrived.room.clone();
        let (done, is_done) = mpsc::channel();
        let sending = sent(pieces, 1000);
        threads.spawn(async move {
            sending.await;
            done.send(()).unwrap();
        });
        let mut came = 0;
        let e = arrived.hand_on(&mut |_, _| {
            came += 1;
            // What was sent and not taken fits into the room.
            assert!(room.available_permits() <= AHEAD_MAX_BYTES);
            if came == 3 { Err(FsError::new(ErrorKind::NoSpace)) } else { Ok(()) }
        });
        assert_eq!(e.unwrap_err().kind(), ErrorKind::NoSpace);
        is_done.recv().unwrap();
        assert!(room.is_closed());
    }

    /// Longer than the room.
    #[test]
    fn a_long_piece_goes_alone() {
        let threads = Threads::start().unwrap();
        let (pieces, arrived) = channel();
        threads.spawn(async move {
            for _ in 0..3 {
                assert!(pieces.hand_over(&ObjectInfo::default(), vec![0; 3 * AHEAD_MAX_BYTES].into()).await);
            }
            pieces.end(Ok(ObjectInfo::default()));
        });
        let mut bytes = 0;
        let mut count = |_: &ObjectInfo, piece: &[u8]| {
            bytes += piece.len();
            Ok(())
        };
        arrived.hand_on(&mut count).unwrap().unwrap().unwrap();
        assert_eq!(bytes, 9 * AHEAD_MAX_BYTES);
    }
}
