//! Looking up what a listing named before anybody asks for it, where a lookup takes long.
//!
//! Whoever lists a directory mostly wants the attributes of what is in it, one after the other, and waits for each. Where a name costs I/O
//! ([`Capabilities::slow_names`](crate::store::Capabilities::slow_names)), and lookups were measured to take long, a few threads look up the
//! entries that come next. What they find is in the engine's caches like anything else, exact and expiring like it: all that is
//! added is a pin, so that the inode stays known until it is used ([`Held`]).
//!
//! It begins with a few entries and goes further the more of them are used ([`AHEAD_FIRST`]). It ends when the directory changes, and is
//! switched off where too little is used ([`Worth`]).
//!
//! Locks: that of [`State`], then that of a job's [`Progress`]; leaves both, no pin is taken and no store called below them.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::clock::NEVER;
use super::held::Held;
use super::listing::Listing;
use super::worth::{Worth, WorthStats};
use super::{Engine, Lookup};
use crate::error::ErrorKind;
use crate::store::Capabilities;
use crate::types::{FileName, Ino};

/// Entries of a listing that are looked up before any of them was used. Each one that is used adds two.
pub(super) const AHEAD_FIRST: usize = 16;
/// Threads. Each waits for the store nearly all the time; a host or a server has more than one request under way gladly, and many are a load.
const WORKERS_MAX: usize = 4;
/// Listings that wait for a thread; the oldest is given up for one more.
const JOBS_MAX: usize = 64;
/// A listing with fewer entries is through before a thread is awake.
const LISTING_LEN_MIN: usize = 4;
/// How long something unused is held at most; where others may change the store, not longer than it is believed.
const HOLD_MAX: Duration = Duration::from_secs(10);
/// A thread without work looks at what it holds so often, and ends when that is nothing.
const IDLE: Duration = Duration::from_secs(1);
/// How long a question to the store that is under way is waited for at the end.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Of a hundred entries that were looked up ahead so many have to be used. Below, more of the I/O is thrown away than is of use, and
/// what others wait for comes later by it.
const USED_PERCENT_MIN: u32 = 50;
/// The known inodes, of all that there is memory for, that may be held: one of so many.
const INODES_SHARE: usize = 8;

/// The listing of a directory whose entries are looked up ahead.
pub(crate) struct Job {
    dir: Ino,
    listing: Arc<Listing>,
    progress: Mutex<Progress>,
    /// An entry that was under way is there.
    arrived: Condvar,
}

#[derive(Default)]
struct Progress {
    /// The first entry that nobody has looked up.
    next: usize,
    /// Where to stop for now.
    limit: usize,
    used: usize,
    running: Vec<usize>,
    is_queued: bool,
    is_over: bool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Job>>,
    /// What the threads are at.
    running: Vec<(Arc<Job>, usize)>,
    held: Held<Arc<Job>>,
    workers: usize,
    is_over: bool,
}

/// What a thread is to do.
enum Task {
    LookUp(Arc<Job>, usize),
    /// Give back what nobody used.
    Tidy,
}

/// See the module's notes.
pub(super) struct Ahead {
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
    held_len: AtomicUsize,
    worth: Worth,
    /// Entries of one listing that may be ahead of their use.
    depth: usize,
    /// Lookups that take less on average are not worth it, in nanoseconds.
    least_ns: u64,
    /// What a lookup takes lately, in nanoseconds.
    lookup_ns: AtomicU64,
    fetched: AtomicU64,
    used: AtomicU64,
    unused: AtomicU64,
}

/// How looking ahead fares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AheadStats {
    /// Entries looked up before anybody asked for them.
    pub fetched: u64,
    /// Of these, those that somebody asked for while they were held.
    pub used: u64,
    /// Those that nobody asked for.
    pub unused: u64,
    /// Those that are held now.
    pub held: u64,
    /// What a lookup by the store takes lately, in nanoseconds.
    pub lookup_ns: u64,
    /// What a lookup has to take on average for it, in nanoseconds.
    pub least_ns: u64,
    /// Whether it is on, and the rate that this goes by: of what was looked up, what was used.
    pub worth: WorthStats,
}

impl Ahead {
    /// For an engine with these options; `None` where nothing is to be gained.
    pub(super) fn new(caps: &Capabilities, options: &super::EngineOptions) -> Option<Arc<Ahead>> {
        let is_cached = options.attr_ttl.min(options.entry_ttl) > Duration::from_millis(100);
        // With stable cookies there is no listing to go through, but the store's own way of looking up many.
        if !caps.slow_names || caps.stable_cookies || !is_cached || options.ahead_max == 0 {
            return None;
        }
        Some(Arc::new(Ahead {
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            held_len: AtomicUsize::new(0),
            worth: Worth::new(USED_PERCENT_MIN),
            depth: options.ahead_max,
            least_ns: options.ahead_from.as_nanos() as u64,
            lookup_ns: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            used: AtomicU64::new(0),
            unused: AtomicU64::new(0),
        }))
    }

    /// A lookup by the store took so long.
    pub(super) fn took(&self, time: Duration) {
        /// One lookup is an eighth of the average.
        const SHARE: u64 = 8;
        let before = self.lookup_ns.load(Relaxed);
        let now = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Two at once may lose one.
        self.lookup_ns.store(before - before / SHARE + now / SHARE, Relaxed);
    }

    fn takes_long(&self) -> bool {
        self.lookup_ns.load(Relaxed) >= self.least_ns
    }

    /// Puts a job with something to do into the queue; it is in there once.
    fn queue(self: &Arc<Self>, engine: &Weak<Engine>, job: &Arc<Job>) {
        let mut state = self.state.lock();
        {
            let mut progress = job.progress.lock();
            if state.is_over || progress.is_queued || !progress.has_more(&job.listing) {
                return;
            }
            progress.is_queued = true;
        }
        state.queue.push_back(job.clone());
        if state.queue.len() > JOBS_MAX
            && let Some(oldest) = state.queue.pop_front()
        {
            oldest.progress.lock().is_queued = false;
        }
        self.work.notify_all();
        while state.workers < WORKERS_MAX {
            let (ahead, engine) = (self.clone(), engine.clone());
            let spawned = std::thread::Builder::new().name("adit-ahead".into()).spawn(move || ahead.run(&engine));
            if let Err(e) = spawned {
                tracing::debug!(error = %e, "no thread to look ahead");
                if state.workers == 0 {
                    // Nobody would come to them: their readers may queue them again.
                    state.queue.drain(..).for_each(|job| job.progress.lock().is_queued = false);
                }
                return;
            }
            state.workers += 1;
        }
    }

    /// The work of a thread.
    fn run(&self, engine: &Weak<Engine>) {
        while let Some(task) = self.task() {
            // A panic of a store ends one lookup, not the thread.
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let engine = engine.upgrade()?;
                match &task {
                    Task::LookUp(job, at) => engine.look_up_ahead(self, job, *at),
                    Task::Tidy => engine.tidy_ahead(self),
                }
                Some(())
            }));
            if let Task::LookUp(job, at) = &task {
                self.state.lock().running.retain(|(other, running)| !(Arc::ptr_eq(other, job) && running == at));
                job.has_come(*at);
            }
            if let Ok(None) = done {
                self.leave(&mut self.state.lock());
                return;
            }
        }
    }

    /// A thread ends. Below the lock under which it found nothing to do: whoever queues something counts on those that are there.
    fn leave(&self, state: &mut State) {
        state.workers -= 1;
        self.ended.notify_all();
    }

    /// What to do next; `None` when that is nothing for long, or it is over: then the thread has left.
    fn task(&self) -> Option<Task> {
        let mut state = self.state.lock();
        loop {
            if state.is_over {
                self.leave(&mut state);
                return None;
            }
            while let Some(job) = state.queue.pop_front() {
                let mut progress = job.progress.lock();
                if !progress.has_more(&job.listing) {
                    progress.is_queued = false;
                    continue;
                }
                let at = progress.next;
                progress.next += 1;
                progress.running.push(at);
                drop(progress);
                state.running.push((job.clone(), at));
                // Listings take turns.
                state.queue.push_back(job.clone());
                return Some(Task::LookUp(job, at));
            }
            let timed_out = self.work.wait_for(&mut state, IDLE).timed_out();
            if timed_out && state.queue.is_empty() {
                if state.held.len() > 0 {
                    return Some(Task::Tidy);
                }
                self.leave(&mut state);
                return None;
            }
        }
    }

    pub(super) fn stats(&self) -> AheadStats {
        AheadStats {
            fetched: self.fetched.load(Relaxed),
            used: self.used.load(Relaxed),
            unused: self.unused.load(Relaxed),
            held: self.held_len.load(Relaxed) as u64,
            lookup_ns: self.lookup_ns.load(Relaxed),
            least_ns: self.least_ns,
            worth: self.worth.stats(),
        }
    }

    /// Nothing is begun any more.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.queue.clear();
        self.work.notify_all();
    }
}

impl Progress {
    fn has_more(&self, listing: &Listing) -> bool {
        !self.is_over && self.next < self.limit.min(listing.len())
    }
}

impl Job {
    fn has_come(&self, at: usize) {
        self.progress.lock().running.retain(|running| *running != at);
        self.arrived.notify_all();
    }

    fn cancel(&self) {
        self.progress.lock().is_over = true;
    }

    fn is_named(&self, at: usize, name: FileName<'_>) -> bool {
        self.listing.entries_from(at).next().is_some_and(|entry| entry.name == name)
    }
}

impl Engine {
    /// Somebody lists `dir` from the beginning, and gets `listing`.
    pub(super) fn list_ahead(&self, dir: Ino, listing: &Arc<Listing>) -> Option<Arc<Job>> {
        let ahead = self.ahead.as_ref()?;
        if listing.len() < LISTING_LEN_MIN || !ahead.worth.turn() {
            return None;
        }
        let progress = Progress { limit: AHEAD_FIRST.min(ahead.depth), ..Progress::default() };
        let (listing, progress) = (listing.clone(), Mutex::new(progress));
        let job = Arc::new(Job { dir, listing, progress, arrived: Condvar::new() });
        if ahead.takes_long() {
            ahead.queue(&self.this, &job);
        }
        Some(job)
    }

    /// Somebody is about to look up the entry `at` of a listing: not twice at once, and what comes after it is next.
    pub(super) fn look_up_listed(&self, job: &Arc<Job>, at: usize) {
        let Some(ahead) = &self.ahead else { return };
        let mut progress = job.progress.lock();
        while progress.running.contains(&at) {
            job.arrived.wait(&mut progress);
        }
        progress.next = progress.next.max(at + 1);
        progress.limit = progress.limit.max(at + 1 + AHEAD_FIRST.min(ahead.depth));
        let is_due = !progress.is_queued && progress.has_more(&job.listing);
        drop(progress);
        if is_due && ahead.takes_long() && ahead.worth.is_on() {
            ahead.queue(&self.this, job);
        }
    }

    /// Waits for a name that a thread is looking up; false if none is at it.
    pub(super) fn await_ahead(&self, dir: Ino, name: FileName<'_>) -> bool {
        let Some(ahead) = &self.ahead else { return false };
        let state = ahead.state.lock();
        let Some((job, at)) = state.running.iter().find(|(job, at)| job.dir == dir && job.is_named(*at, name)).cloned()
        else {
            return false;
        };
        drop(state);
        let mut progress = job.progress.lock();
        while progress.running.contains(&at) {
            job.arrived.wait(&mut progress);
        }
        true
    }

    /// A thread looks up the entry `at`.
    fn look_up_ahead(&self, ahead: &Ahead, job: &Arc<Job>, at: usize) {
        let Some(entry) = job.listing.entries_from(at).next() else { return };
        if self.dentries.since(job.dir) != job.listing.since || !ahead.worth.is_on() {
            job.cancel();
            return;
        }
        if self.is_fresh(job.dir, entry.name, entry.ino) {
            return;
        }
        let ino = match self.lookup_store(job.dir, entry.name) {
            Ok(Lookup::Found(found)) => found.attr.ino,
            // Nobody knows the directory any more.
            Err(e) if e.kind() == ErrorKind::Stale => return job.cancel(),
            // Whoever asks for it meets the error.
            _ => return,
        };
        if self.inodes.pin(ino).is_ok() {
            self.hold_ahead(ahead, job, ino);
        }
        self.drop_ref(ino);
    }

    /// Whether an entry is in the caches.
    fn is_fresh(&self, dir: Ino, name: FileName<'_>, ino: Ino) -> bool {
        let now = self.clock.now();
        let known = self.dentries.get(dir, name).filter(|dentry| dentry.expiry > now);
        let ino = known.and_then(|dentry| dentry.child).unwrap_or(ino);
        self.inodes.attr(ino, now).is_some()
    }

    /// Holds an inode with a pin on it.
    fn hold_ahead(&self, ahead: &Ahead, job: &Arc<Job>, ino: Ino) {
        let now = self.clock.now();
        let until = match self.expiry(now, self.options.attr_ttl.min(self.options.entry_ttl)) {
            NEVER => self.clock.expiry(now, HOLD_MAX),
            until => until.min(self.clock.expiry(now, HOLD_MAX)),
        };
        let max = (2 * ahead.depth).min(self.inodes_max() / INODES_SHARE);
        let (mut gone, mut is_held) = (Vec::new(), false);
        {
            let mut state = ahead.state.lock();
            if !state.is_over {
                is_held = state.held.put(ino, job.clone(), until);
                gone.extend(std::iter::from_fn(|| state.held.pop(now, max)).map(|(ino, _)| ino));
            }
            ahead.held_len.store(state.held.len(), Relaxed);
        }
        match is_held {
            true => drop(ahead.fetched.fetch_add(1, Relaxed)),
            // One pin is enough.
            false => self.unpin(ino),
        }
        self.give_up(ahead, &gone);
    }

    /// An inode was found in the caches by somebody who asked for it, and who holds it now.
    #[inline]
    pub(super) fn asked_for(&self, ino: Ino) {
        if let Some(ahead) = &self.ahead
            && ahead.held_len.load(Relaxed) > 0
        {
            self.asked_for_held(ahead, ino);
        }
    }

    #[inline(never)]
    fn asked_for_held(&self, ahead: &Arc<Ahead>, ino: Ino) {
        let job = {
            let mut state = ahead.state.lock();
            let Some(job) = state.held.take(ino) else { return };
            ahead.held_len.store(state.held.len(), Relaxed);
            job
        };
        ahead.used.fetch_add(1, Relaxed);
        ahead.worth.settle(true);
        self.unpin(ino);
        let is_due = {
            let mut progress = job.progress.lock();
            progress.used += 1;
            let further = AHEAD_FIRST + 2 * progress.used;
            progress.limit = progress.limit.max(further.min(progress.used + ahead.depth));
            !progress.is_queued && progress.has_more(&job.listing)
        };
        if is_due && ahead.worth.is_on() {
            ahead.queue(&self.this, &job);
        }
    }

    fn tidy_ahead(&self, ahead: &Ahead) {
        let now = self.clock.now();
        let gone: Vec<Ino> = {
            let mut state = ahead.state.lock();
            let gone = std::iter::from_fn(|| state.held.pop(now, usize::MAX)).map(|(ino, _)| ino).collect();
            ahead.held_len.store(state.held.len(), Relaxed);
            gone
        };
        self.give_up(ahead, &gone);
    }

    /// Nobody asked for these.
    fn give_up(&self, ahead: &Ahead, gone: &[Ino]) {
        for &ino in gone {
            ahead.unused.fetch_add(1, Relaxed);
            ahead.worth.settle(false);
            self.unpin(ino);
        }
    }

    /// Looks nothing up any more, and holds nothing.
    pub(super) fn end_ahead(&self) {
        let Some(ahead) = &self.ahead else { return };
        ahead.end();
        let mut state = ahead.state.lock();
        let patience = Instant::now() + STOP_PATIENCE;
        while state.workers > 0 {
            if ahead.ended.wait_until(&mut state, patience).timed_out() {
                tracing::warn!("a lookup ahead still waits for the store");
                break;
            }
        }
        let gone: Vec<Ino> = std::iter::from_fn(|| state.held.pop(NEVER, 0)).map(|(ino, _)| ino).collect();
        ahead.held_len.store(0, Relaxed);
        drop(state);
        gone.into_iter().for_each(|ino| self.unpin(ino));
    }
}
