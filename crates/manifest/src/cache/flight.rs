//! Blocks of an object that somebody in this process is fetching, and how others wait for them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::fault::{Failure, ObjectFault};

/// Blocks that are being fetched.
pub(super) struct Flight {
    blocks: Range<u64>,
    /// Whether nobody has asked for them yet.
    is_ahead: bool,
    progress: Mutex<Progress>,
    moved: Condvar,
}

struct Progress {
    /// The first block that is not in the folder yet.
    done_to: u64,
    /// Bytes that came so far.
    bytes: u64,
    ended: Option<Result<(), Failure>>,
}

/// What a wait ended with.
pub(super) enum Landed {
    /// The block is there, or the fetch has ended: look again.
    Look,
    /// The fetch failed, and another one would too.
    Failed(Failure),
    /// Nothing came for so long.
    Late(ObjectFault),
}

impl Flight {
    pub fn new(blocks: Range<u64>, is_ahead: bool) -> Arc<Flight> {
        let progress = Progress { done_to: blocks.start, bytes: 0, ended: None };
        Arc::new(Flight { blocks, is_ahead, progress: Mutex::new(progress), moved: Condvar::new() })
    }

    /// Whether it is about any of these blocks.
    pub fn meets(&self, blocks: &Range<u64>) -> bool {
        self.blocks.start < blocks.end && blocks.start < self.blocks.end
    }

    /// Notes that bytes came.
    pub fn came(&self, bytes: u64) {
        self.progress.lock().bytes += bytes;
    }

    /// Notes that all blocks before `block` are in the folder.
    pub fn kept(&self, block: u64) {
        self.progress.lock().done_to = block;
        self.moved.notify_all();
    }

    /// Notes the end.
    pub fn end(&self, result: Result<(), Failure>) {
        self.progress.lock().ended.get_or_insert(result);
        self.moved.notify_all();
    }

    /// Waits for a block. Who gives bytes, however slowly, is waited for; who gives none for `patience` is not.
    ///
    /// Who fetched ahead, or was told to end, failed for nobody but itself: its error is not the waiting reader's.
    pub fn wait(&self, block: u64, patience: Duration) -> Landed {
        let mut progress = self.progress.lock();
        loop {
            let bytes = progress.bytes;
            let deadline = Instant::now() + patience;
            loop {
                if let Some(result) = &progress.ended {
                    return match result {
                        // What it got before it failed is there.
                        Err(failure) if progress.done_to <= block && !self.is_ahead && !failure.is_interrupted() => {
                            Landed::Failed(failure.clone())
                        }
                        _ => Landed::Look,
                    };
                }
                if self.blocks.start <= block && block < progress.done_to {
                    return Landed::Look;
                }
                if self.moved.wait_until(&mut progress, deadline).timed_out() {
                    break;
                }
            }
            if progress.bytes == bytes && progress.ended.is_none() {
                return Landed::Late(ObjectFault::Waited { waited: patience });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_core::error::{ErrorKind, FsError};

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_with_the_block_or_the_fetch() {
        let flight = Flight::new(2..5, false);
        assert!(matches!(flight.wait(2, SOON), Landed::Late(_)));
        flight.kept(3);
        assert!(matches!(flight.wait(2, LONG), Landed::Look));
        assert!(matches!(flight.wait(3, SOON), Landed::Late(_)));
        flight.end(Err(Failure::of(&FsError::new(ErrorKind::Network))));
        assert!(matches!(flight.wait(2, LONG), Landed::Look));
        assert!(matches!(flight.wait(3, LONG), Landed::Failed(_)));
        let flight = Flight::new(0..1, false);
        flight.end(Ok(()));
        assert!(matches!(flight.wait(0, LONG), Landed::Look));
    }

    #[test]
    fn a_failure_of_nobody_elses_concern_is_not_passed_on() {
        for (is_ahead, kind) in [(true, ErrorKind::Network), (false, ErrorKind::Interrupted)] {
            let flight = Flight::new(0..1, is_ahead);
            flight.end(Err(Failure::of(&FsError::new(kind))));
            assert!(matches!(flight.wait(0, LONG), Landed::Look));
        }
    }

    #[test]
    fn who_gives_bytes_is_waited_for() {
        let flight = Flight::new(0..1, false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| flight.wait(0, Duration::from_millis(500)));
            for _ in 0..120 {
                std::thread::sleep(Duration::from_millis(5));
                flight.came(1);
            }
            flight.kept(1);
            assert!(matches!(waiter.join().unwrap(), Landed::Look));
        });
    }

    #[test]
    fn flights_know_what_they_meet() {
        let flight = Flight::new(2..5, false);
        let meets: Vec<bool> = (0..7).map(|block| flight.meets(&(block..block + 1))).collect();
        assert_eq!(meets, [false, false, true, true, true, false, false]);
        assert!(flight.meets(&(0..10)) && !flight.meets(&(5..9)));
    }
}
