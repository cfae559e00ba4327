//! Removed files whose space is not free yet.
//!
//! A host frees the space of a file when its last name and its last user are gone, in the call that takes the last of them away. A file
//! that is [held](Freeing::hold) has a user: whoever found it by its name can go on with it, and its removal returns before it is freed.
//! Whoever lets go of it does not wait either: a thread frees one after the other. Invariant: nobody finds less room for it. What fails
//! for want of space waits for those that are being freed, and a moment for those that were held just now, and is tried again; a look at
//! the room that there is waits first. What is held for long has a user outside, and its space is taken, as everywhere.
//!
//! Not every host lets go of a name whose file has a user: NFS gives it another one until then, in the same directory, which
//! could not be removed meanwhile. So files are held only on filesystems that are known to do so.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

#[cfg(test)]
mod tests;

/// Files that are held or being freed at most: one more is freed in its removal, which keeps those who remove from running ahead.
const HELD_MAX: usize = 256;
/// The part of this process's descriptors that they may take.
const DESCRIPTORS_SHARE: u64 = 8;
/// How long anybody waits for what is being freed: gigabytes can take longer.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// How long anybody waits, after something was held, for its holder to let go: a kernel forgets what it removed at once.
const LET_GO_MAX: Duration = Duration::from_millis(50);

/// The magic numbers of statfs(2) of filesystems on which a name goes although its file has a user: ext2 to ext4, XFS,
/// btrfs, F2FS, tmpfs, bcachefs.
const NAMES_GO: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0xca45_1a4e];

/// How many files are held, and the thread that frees them.
pub(super) struct Freeing {
    /// How many may be held or on their way to be free.
    max: usize,
    /// How many are held or on their way.
    held: AtomicUsize,
    /// Of these, those on their way.
    let_go: AtomicUsize,
    /// How many were freed so far.
    ended: AtomicUsize,
    /// How many wait.
    waiting: AtomicUsize,
    /// Guards nothing: it orders the last look at the counts before the wait.
    lock: Mutex<()>,
    freed: Condvar,
    start: Instant,
    /// When a file was held last, in milliseconds since `start`.
    held_last_ms: AtomicU64,
    /// To the thread; `None` where there can be none.
    thread: OnceLock<Option<Sender<Orphan>>>,
}

/// A file that is held.
pub(super) struct Held(Option<Orphan>);

/// A file that nobody uses any more. The order of the fields is the order of what happens: it is freed, and then it counts no more.
struct Orphan {
    file: OwnedFd,
    place: Place,
}

/// A place among those that are held.
struct Place(Arc<Freeing>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        self.0.let_go.fetch_sub(1, Ordering::SeqCst);
        self.0.held.fetch_sub(1, Ordering::SeqCst);
        // Who came to wait before that is seen here; who comes later sees that.
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            let _lock = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.freed.notify_all();
        }
    }
}

impl Held {
    fn unused(&self) -> &Orphan {
        self.0.as_ref().expect("it is taken out when this is dropped")
    }

    /// The file, opened as a place only.
    pub fn file(&self) -> &OwnedFd {
        &self.unused().file
    }

    pub fn freeing(&self) -> &Arc<Freeing> {
        &self.unused().place.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(unused) = self.0.take() else { return };
        let freeing = unused.place.0.clone();
        freeing.let_go.fetch_add(1, Ordering::SeqCst);
        match freeing.thread.get_or_init(start_thread) {
            // A thread that ended took it along, and it is freed here.
            Some(thread) => drop(thread.send(unused)),
            None => drop(unused),
        }
    }
}

/// The thread that frees. It ends with its [`Freeing`].
fn start_thread() -> Option<Sender<Orphan>> {
    let (sender, unused) = channel::<Orphan>();
    let thread = std::thread::Builder::new().name("adit-freeing".into());
    thread.spawn(move || unused.into_iter().for_each(drop)).ok().map(|_| sender)
}

impl Freeing {
    /// For the filesystem of `root`.
    #[allow(clippy::unnecessary_cast)] // The field's type differs between architectures.
    pub fn new(root: &OwnedFd) -> Self {
        let names_go = rustix::fs::fstatfs(root).is_ok_and(|fs| NAMES_GO.contains(&(fs.f_type as u64 & 0xffff_ffff)));
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max = usize::try_from(descriptors / DESCRIPTORS_SHARE).unwrap_or(HELD_MAX).min(HELD_MAX);
        Freeing::holding(if names_go { max } else { 0 })
    }

    /// For one where at most `max` may be held.
    pub fn holding(max: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Freeing {
            max,
            held: zero(),
            let_go: zero(),
            ended: zero(),
            waiting: zero(),
            lock: Mutex::new(()),
            freed: Condvar::new(),
            start: Instant::now(),
            held_last_ms: AtomicU64::new(0),
            thread: OnceLock::new(),
        }
    }

    /// Holds what `open` opens, if there is room for one more.
    pub fn hold(self: &Arc<Self>, open: impl FnOnce() -> Option<OwnedFd>) -> Option<Held> {
        let more = |held: usize| (held < self.max).then_some(held + 1);
        self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        let Some(file) = open() else {
            self.held.fetch_sub(1, Ordering::SeqCst);
            return None;
        };
        self.held_last_ms.store(self.now_ms(), Ordering::SeqCst);
        Some(Held(Some(Orphan { file, place: Place(self.clone()) })))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether a file was held just now whose holder has not let go of it.
    fn awaits_holders(&self) -> bool {
        let held_for = self.now_ms().saturating_sub(self.held_last_ms.load(Ordering::SeqCst));
        let is_held = self.held.load(Ordering::SeqCst) > self.let_go.load(Ordering::SeqCst);
        is_held && u128::from(held_for) < LET_GO_MAX.as_millis()
    }

    /// Waits until what was held just now is let go of, and what was let go of is freed. What comes meanwhile is not waited for.
    pub fn settle(&self) {
        self.wait_while(LET_GO_MAX, || self.awaits_holders());
        let ended = self.ended.load(Ordering::SeqCst);
        let on_their_way = self.let_go.load(Ordering::SeqCst);
        self.wait_while(SETTLE_MAX, || self.ended.load(Ordering::SeqCst).wrapping_sub(ended) < on_their_way);
    }

    fn wait_while(&self, max: Duration, condition: impl Fn() -> bool) {
        if condition() {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.freed.wait_timeout_while(lock, max, |()| condition()));
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
