//! What goes on in a mount: requests begun and done, handles open. It answers "is it idle?" and "has all ended?".

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::damage::Damage;
use crate::errno::ErrorLog;
use crate::request::{Counts, Kind};

/// Counters that every request touches; a few additions, no clock.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    begun: AtomicU64,
    done: AtomicU64,
    handles: AtomicU64,
    /// Opened so far with the content left to the kernel.
    passed: AtomicU64,
    closed: AtomicBool,
    /// Requests wait at the gate until it is opened again.
    held: AtomicBool,
    gate: Mutex<()>,
    opened: Condvar,
    kinds: Counts,
    /// What requests met that is damaged.
    pub(crate) damage: Damage,
    /// The errors that errnos hide.
    pub(crate) errors: ErrorLog,
}

/// Holds requests off until it is dropped.
pub(crate) struct Hold<'a>(&'a Activity);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let _gate = self.0.gate.lock();
        self.0.held.store(false, Ordering::SeqCst);
        self.0.opened.notify_all();
    }
}

/// A request in progress, counted until it is dropped, also by a panic.
pub(crate) struct InProgress<'a>(&'a Activity);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.done.fetch_add(1, Ordering::SeqCst);
    }
}

impl Activity {
    /// Begins a request, once nobody holds them off; `None` once the mount is closed, so that nothing is accepted after the
    /// last flush.
    pub(crate) fn begin(&self) -> Option<InProgress<'_>> {
        loop {
            // The order (count, then look) pairs with `close` and `hold` (set, then count): one of the two sees the other.
            self.begun.fetch_add(1, Ordering::SeqCst);
            let request = InProgress(self);
            if self.closed.load(Ordering::SeqCst) {
                return None;
            }
            if !self.held.load(Ordering::SeqCst) {
                return Some(request);
            }
            drop(request);
            let mut gate = self.gate.lock();
            while self.held.load(Ordering::SeqCst) {
                self.opened.wait(&mut gate);
            }
        }
    }

    /// Holds new requests off, once those in progress have ended; `None` if that takes longer than `patience`, or somebody
    /// holds them off already.
    pub(crate) fn hold(&self, patience: Duration) -> Option<Hold<'_>> {
        if self.held.swap(true, Ordering::SeqCst) {
            return None;
        }
        let hold = Hold(self);
        self.drain(patience).then_some(hold)
    }

    /// A request of this kind came.
    pub(crate) fn count(&self, kind: Kind) {
        self.kinds.count(kind);
    }

    /// How many requests of each kind came: name and count.
    pub(crate) fn kinds(&self) -> Vec<(&'static str, u64)> {
        self.kinds.asked()
    }

    /// A file or directory handle was given out.
    pub(crate) fn opened(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// The content of a handle was left to the kernel.
    pub(crate) fn passed(&self) {
        self.passed.fetch_add(1, Ordering::Relaxed);
    }

    /// How many handles that was done with so far.
    pub(crate) fn passed_opens(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// A handle was given back.
    pub(crate) fn released(&self) {
        self.handles.fetch_sub(1, Ordering::Relaxed);
    }

    /// Open handles.
    pub(crate) fn handles(&self) -> u64 {
        self.handles.load(Ordering::Relaxed)
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Refuses requests from here on and waits, at most `patience`, for those in progress. True if none is left.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        self.drain(patience)
    }

    /// Waits, at most `patience`, for the requests in progress. True if none is left.
    fn drain(&self, patience: Duration) -> bool {
        const STEP: Duration = Duration::from_millis(2);
        let deadline = Instant::now() + patience;
        while self.in_progress() > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(STEP);
        }
        true
    }

    fn in_progress(&self) -> u64 {
        let done = self.done.load(Ordering::SeqCst);
        self.begun.load(Ordering::SeqCst).saturating_sub(done)
    }

    /// Whether nothing is open and nothing in progress now.
    fn quiet(&self) -> bool {
        self.handles() == 0 && self.in_progress() == 0
    }
}

/// Watches an [`Activity`] for a time without any request.
#[derive(Debug)]
pub(crate) struct IdleWatch {
    limit: Duration,
    since: Instant,
    requests: u64,
}

impl IdleWatch {
    pub(crate) fn new(limit: Duration) -> Self {
        IdleWatch { limit, since: Instant::now(), requests: 0 }
    }

    /// Looks again; true if nothing was asked and nothing was open for the whole limit.
    pub(crate) fn expired(&mut self, activity: &Activity, now: Instant) -> bool {
        let requests = activity.requests();
        if requests != self.requests || !activity.quiet() {
            self.requests = requests;
            self.since = now;
            return false;
        }
        now.saturating_duration_since(self.since) >= self.limit
    }

    /// Starts to count again, after an attempt that found the mount busy.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// When to look next.
    pub(crate) fn pause(&self) -> Duration {
        (self.limit / 8).clamp(Duration::from_millis(5), Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_mount_accepts_nothing_and_waits_for_what_runs() {
        let activity = Activity::default();
        let running = activity.begin().expect("open");
        assert!(!activity.close(Duration::ZERO));
        assert!(activity.begin().is_none());
        drop(running);
        assert!(activity.close(Duration::ZERO));
    }

    #[test]
    fn requests_that_are_held_off_go_on_later() {
        let activity = Activity::default();
        let running = activity.begin().expect("open");
        assert!(activity.hold(Duration::ZERO).is_none(), "one is in progress");
        drop(running);
        let hold = activity.hold(Duration::ZERO).expect("nothing is in progress");
        assert!(activity.hold(Duration::ZERO).is_none(), "held already");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| activity.begin().is_some());
            while activity.requests() < 2 {
                std::thread::yield_now();
            }
            assert!(!waiting.is_finished());
            drop(hold);
            assert!(waiting.join().expect("no panic"));
        });
    }

    #[test]
    fn only_a_mount_without_requests_and_handles_is_idle() {
        let activity = Activity::default();
        let limit = Duration::from_secs(60);
        let mut watch = IdleWatch::new(limit);
        let start = Instant::now();
        activity.opened();
        assert!(!watch.expired(&activity, start + limit * 2), "a handle is open");
        activity.released();
        drop(activity.begin());
        assert!(!watch.expired(&activity, start + limit * 4), "there was a request");
        assert!(!watch.expired(&activity, start + limit * 4 + limit / 2));
        assert!(watch.expired(&activity, start + limit * 5));
        watch.restart(start + limit * 5);
        assert!(!watch.expired(&activity, start + limit * 5));
    }
}
