//! [`Shortage`]: `ENOSPC` from `write(2)`, though the kernel buffers what is written.
//!
//! The kernel takes a write into its pages and asks nobody whether there is room. Before that it looks whether the attributes that it
//! has of the file still hold, and asks for them through the handle if they do not: what the answer fails with, the write fails with. So where
//! room is scarce, attributes of what is open for writing hold only for as long as writing a half of that room takes at least, all files
//! together, and not at all in the end. A question through a handle for writing is answered when the kernel has begun to write its pages
//! ([`super::pages`]), in the end when it has written them, and with an error if the store had no room for some of them.
//!
//! The store tells the room; how much the kernel holds at a time is limited
//! ([`tune_backing_device`](crate::mountpoint::tune_backing_device)), so that what is scarce is known before it is used up.
//! [Decision 34](../../../docs/decisions/0034-shortage-of-space.md).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use adit_core::engine::Engine;
use adit_core::types::{Attr, Ino, Kind};
use adit_core::{ErrorKind, FsError};
use parking_lot::Mutex;

/// Room that is scarce, in bytes: more than the kernel holds of one mount.
const SCARCE_BYTES: u64 = 256 << 20;
/// A share of it that is too small for a time: each write is asked for.
const SHARE_MIN_BYTES: u64 = 4 << 20;
/// Most that programs write into the kernel's pages, in bytes a second.
const WRITTEN_PER_SECOND: u64 = 4 << 30;
/// How long the store is believed about its room, unless a good part of that is used up before.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a file whose pages were refused takes nothing more, from when somebody heard of it.
const REFUSES_FOR: Duration = Duration::from_millis(100);

/// See the module's notes.
pub(super) struct Shortage {
    /// The kernel buffers writes.
    applies: bool,
    /// Handles that are open for writing.
    writers: AtomicU64,
    /// Bytes that came since the last look.
    spent: AtomicU64,
    is_scarce: AtomicBool,
    look: Mutex<Option<Look>>,
    /// Files of which the store refused pages, for want of room.
    refused: Mutex<HashMap<u64, Refusal>>,
}

/// An answer of the store.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    room_bytes: u64,
}

struct Refusal {
    kind: ErrorKind,
    told: Option<Instant>,
}

impl Shortage {
    /// `applies`: the kernel buffers writes.
    pub(super) fn new(applies: bool) -> Shortage {
        Shortage {
            applies,
            writers: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            is_scarce: AtomicBool::new(false),
            look: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// A handle for writing was opened. True if room is scarce: the kernel is to forget the file's attributes then.
    pub(super) fn opened(&self, engine: &Engine) -> bool {
        if !self.applies {
            return false;
        }
        self.writers.fetch_add(1, Relaxed);
        self.holds_for(engine).is_some()
    }

    /// A handle of `ino` for writing was closed.
    pub(super) fn closed(&self, engine: &Engine, ino: Ino) {
        if !self.applies {
            return;
        }
        let _ = self.writers.fetch_update(Relaxed, Relaxed, |writers| writers.checked_sub(1));
        let mut refused = self.refused.lock();
        if refused.contains_key(&ino.0) && !engine.is_open_for_writing(ino) {
            refused.remove(&ino.0);
        }
    }

    /// How long the kernel may keep attributes that hold for `ttl`.
    pub(super) fn kept(&self, engine: &Engine, attr: &Attr, ttl: Duration) -> Duration {
        let is_written = || engine.is_open_for_writing(attr.ino);
        match self.applies && attr.kind == Kind::File && self.writers.load(Relaxed) > 0 && is_written() {
            true => self.holds_for(engine).map_or(ttl, |time| ttl.min(time)),
            false => ttl,
        }
    }

    /// A write to `ino` ended so; of pages of the kernel's where `is_cached`. True when room has become scarce: the kernel
    /// is to forget the attributes of everything that is open for writing.
    pub(super) fn wrote(&self, engine: &Engine, ino: Ino, done: &Result<usize, FsError>, is_cached: bool) -> bool {
        if !self.applies {
            return false;
        }
        match done {
            Ok(len) => drop(self.spent.fetch_add(*len as u64, Relaxed)),
            Err(e) if is_cached && matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::QuotaExceeded) => {
                self.refused.lock().insert(ino.0, Refusal { kind: e.kind(), told: None });
            }
            Err(_) => {}
        }
        let is_scarce = self.holds_for(engine).is_some();
        is_scarce && !self.is_scarce.swap(is_scarce, Relaxed)
    }

    /// The end of a write to `ino`, now that the kernel has written what it had.
    pub(super) fn check(&self, ino: Ino) -> Result<(), FsError> {
        let mut refused = self.refused.lock();
        let Some(refusal) = refused.get_mut(&ino.0) else { return Ok(()) };
        let now = Instant::now();
        // Something may have been freed meanwhile: one more write is let through, and tells.
        if now.duration_since(*refusal.told.get_or_insert(now)) > REFUSES_FOR {
            refused.remove(&ino.0);
            return Ok(());
        }
        Err(refusal.kind.into())
    }

    /// How long attributes of what is open for writing hold; `None` while there is room enough. Then an answer through a handle for
    /// writing waits until the kernel begins to write its pages, or, if that is no time, until it has written them.
    pub(super) fn holds_for(&self, engine: &Engine) -> Option<Duration> {
        if !self.applies {
            return None;
        }
        let room_bytes = self.room_bytes(engine);
        if room_bytes >= SCARCE_BYTES {
            self.is_scarce.store(false, Relaxed);
            return None;
        }
        let share = room_bytes / 2 / self.writers.load(Relaxed).max(1);
        match share {
            0..SHARE_MIN_BYTES => Some(Duration::ZERO),
            _ => Some(Duration::from_micros(share * 1_000_000 / WRITTEN_PER_SECOND)),
        }
    }

    fn room_bytes(&self, engine: &Engine) -> u64 {
        let mut look = self.look.lock();
        let (now, spent) = (Instant::now(), self.spent.load(Relaxed));
        if let Some(last) = *look
            && now.duration_since(last.at) < LOOK_EVERY
            && spent <= last.room_bytes / 16
        {
            return last.room_bytes - spent;
        }
        self.spent.store(0, Relaxed);
        // A store that cannot tell is not known to be short of anything.
        let room_bytes = engine.store().room_bytes().unwrap_or(u64::MAX);
        *look = Some(Look { at: now, room_bytes });
        room_bytes
    }
}
