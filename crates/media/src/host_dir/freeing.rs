//! Removed files whose space is not free yet.
//!
//! A host frees the space of a file when its last name and its last user are gone, in the call that takes the last of them
//! away. Whoever removes a file through [`Freeing::hold`] is still a user of it afterwards, so that the removal returns
//! before that, and the drop of what it got frees. Invariant: nobody finds less room for it. What fails for want of space
//! waits for those that are held, and is tried again; a look at the room that there is waits first.
//!
//! Not every host lets go of a name whose file has a user: NFS gives it another one until then, in the same directory, which
//! could not be removed meanwhile. So files are held only on filesystems that are known to do so.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use adit_core::media::Remains;
use rustix::io::Errno;

#[cfg(test)]
mod tests;

/// Files that are held at most: each takes a thread when it is freed, and a long one takes it for long.
const HELD_MAX: usize = 2;
/// How long anybody waits for them. They are held for the time of an answer; freeing gigabytes can take longer.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// The magic numbers of statfs(2) of filesystems on which a name goes although its file has a user: ext2 to ext4, XFS,
/// btrfs, F2FS, tmpfs, bcachefs.
const NAMES_GO: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0xca45_1a4e];

/// How many files are held.
pub(super) struct Freeing {
    /// How many may be.
    max: usize,
    held: AtomicUsize,
    /// How many were freed so far.
    ended: AtomicUsize,
    /// How many wait.
    waiting: AtomicUsize,
    /// Guards nothing: it orders the last look at `held` before the wait.
    lock: Mutex<()>,
    freed: Condvar,
}

/// A removed file. The order of the fields is the order of what happens: it is freed, and then it counts no more.
struct Held {
    _file: OwnedFd,
    _place: Place,
}

/// A place among those that are held.
struct Place(Arc<Freeing>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        self.0.held.fetch_sub(1, Ordering::SeqCst);
        // Who came to wait before that is seen here; who comes later sees that.
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            let _lock = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.freed.notify_all();
        }
    }
}

impl Freeing {
    /// For the filesystem of `root`.
    #[allow(clippy::unnecessary_cast)] // The field's type differs between architectures.
    pub fn new(root: &OwnedFd) -> Self {
        let names_go = rustix::fs::fstatfs(root).is_ok_and(|fs| NAMES_GO.contains(&(fs.f_type as u64 & 0xffff_ffff)));
        Freeing::holding(if names_go { HELD_MAX } else { 0 })
    }

    /// For one where at most `max` may be held.
    pub fn holding(max: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        let (lock, freed) = (Mutex::new(()), Condvar::new());
        Freeing { max, held: zero(), ended: zero(), waiting: zero(), lock, freed }
    }

    /// Holds what `open` opens, if there is room for one more. Its holder must drop it before waiting for space.
    pub fn hold(self: &Arc<Self>, open: impl FnOnce() -> Option<OwnedFd>) -> Remains {
        let more = |held: usize| (held < self.max).then_some(held + 1);
        if self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_err() {
            return Remains::default();
        }
        let place = Place(self.clone());
        open().map(|file| Remains::new(Held { _file: file, _place: place })).unwrap_or_default()
    }

    /// Waits until what is held is freed.
    pub fn settle(&self) {
        let is_held = || self.held.load(Ordering::SeqCst) > 0;
        if is_held() {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.freed.wait_timeout_while(lock, SETTLE_MAX, |()| is_held()));
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Runs `call`, and once more if it found no space while there were files to free.
    pub fn with_space<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let ended = self.ended.load(Ordering::SeqCst);
        match call() {
            Err(e) if is_full(&e) => {
                self.settle();
                if self.ended.load(Ordering::SeqCst) == ended { Err(e) } else { call() }
            }
            other => other,
        }
    }
}

fn is_full(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOSPC | Errno::DQUOT))
}
