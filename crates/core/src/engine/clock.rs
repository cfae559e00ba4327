//! Time for expiry: cheap to read, coarse, monotonic.
//!
//! A [`Tick`] is 2^24 ns (17 ms) since the engine's start, in 32 bits: 2.3 years, after which nothing counts as fresh any more.
//! Coarse on purpose: the precise clock costs more than a whole cache hit. Even the coarse one costs as much as the rest
//! of a hit, so while there are many of them a thread publishes the time, which makes reading it a load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Nanoseconds in a tick, as a power of two: no division in a hit.
const TICK_NS_LOG2: u32 = 24;
const TICK_NS: u64 = 1 << TICK_NS_LOG2;

/// A moment, in ticks since the start of its clock.
pub(crate) type Tick = u32;

/// Expires never.
pub(crate) const NEVER: Tick = u32::MAX;

/// Readings of the clock for hits, after which it is worth a thread that publishes the time.
const READS_MAX: u32 = 512;
/// How often that thread publishes: well within a tick.
const PUBLISH_EVERY: Duration = Duration::from_millis(8);
/// After so many times it ends its watch, until the next [`READS_MAX`]: nothing wakes up in an idle process.
const ROUNDS: u32 = 32;

#[derive(Debug)]
pub(crate) struct Clock(Arc<Face>);

#[derive(Debug)]
struct Face {
    start_ns: u64,
    /// The tick after the current one, or 0 while nobody publishes it.
    published: AtomicU32,
    reads: AtomicU32,
    watch: Mutex<Watch>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Watch {
    started: bool,
    wanted: bool,
    stopped: bool,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Clock(Arc::new(Face {
            // One tick has passed at once, so that tick 0 can mean "expired".
            start_ns: monotonic_ns().saturating_sub(TICK_NS),
            published: AtomicU32::new(0),
            reads: AtomicU32::new(0),
            watch: Mutex::default(),
            wake: Condvar::new(),
        }))
    }

    /// The current tick, at least 1.
    #[inline]
    pub(crate) fn now(&self) -> Tick {
        self.0.now()
    }

    /// The tick to hold against expiries: the current one or the next, so it may come as late as a published one does
    /// without anything being served for too long. Costs a load while there are many hits.
    #[inline]
    pub(crate) fn now_for_hit(&self) -> Tick {
        match self.0.published.load(Relaxed) {
            0 => self.read_for_hit(),
            tick => tick,
        }
    }

    #[cold]
    fn read_for_hit(&self) -> Tick {
        // Not a read-modify-write: lost counts do no harm.
        let reads = self.0.reads.load(Relaxed).wrapping_add(1);
        self.0.reads.store(reads, Relaxed);
        if reads == READS_MAX {
            self.start_watch();
        }
        self.now()
    }

    fn start_watch(&self) {
        let mut watch = self.0.watch.lock();
        watch.wanted = true;
        if !watch.started {
            watch.started = true;
            let face = self.0.clone();
            let spawned = std::thread::Builder::new().name("adit-clock".into()).spawn(move || face.publish());
            if let Err(error) = spawned {
                tracing::warn!(%error, "no thread for the clock: hits read it themselves");
            }
        }
        self.0.wake.notify_one();
    }

    /// When something expires that lives for `ttl` from now. Rounded down: never later than promised.
    pub(crate) fn expiry(&self, now: Tick, ttl: Duration) -> Tick {
        let ticks = ttl.as_nanos() >> TICK_NS_LOG2;
        u128::from(now).saturating_add(ticks).min(u128::from(NEVER) - 1) as Tick
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.watch.lock().stopped = true;
        self.0.wake.notify_one();
    }
}

impl Face {
    #[inline]
    fn now(&self) -> Tick {
        let ticks = monotonic_ns().saturating_sub(self.start_ns) >> TICK_NS_LOG2;
        ticks.clamp(1, u64::from(NEVER) - 1) as Tick
    }

    /// The thread's work: a watch whenever one is wanted, until the clock goes.
    fn publish(&self) {
        let mut watch = self.watch.lock();
        while !watch.stopped {
            if !watch.wanted {
                self.wake.wait(&mut watch);
                continue;
            }
            for _ in 0..ROUNDS {
                self.published.store((self.now() + 1).min(NEVER - 1), Relaxed);
                self.wake.wait_for(&mut watch, PUBLISH_EVERY);
                if watch.stopped {
                    return;
                }
            }
            watch.wanted = false;
            self.published.store(0, Relaxed);
            self.reads.store(0, Relaxed);
        }
    }
}

/// What is left between `now` and `expiry`, which was made from `full`; all of that where it never expires.
#[inline]
pub(crate) fn remaining(now: Tick, expiry: Tick, full: Duration) -> Duration {
    if expiry == NEVER {
        return full;
    }
    // `now` can be older than the time at which another thread made this expiry.
    Duration::from_nanos(u64::from(expiry.saturating_sub(now)) << TICK_NS_LOG2).min(full)
}

#[cfg(target_os = "linux")]
#[inline]
fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

#[cfg(not(target_os = "linux"))]
fn monotonic_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_time_is_never_behind_and_ends() {
        let c = Clock::new();
        let before = c.now();
        assert!((before..=c.now() + 1).contains(&c.now_for_hit()));
        while c.0.published.load(Relaxed) == 0 {
            c.now_for_hit();
        }
        assert!(c.now_for_hit() > before);
        while c.0.published.load(Relaxed) != 0 {
            std::thread::yield_now();
        }
        assert!(c.now_for_hit() > before);
    }

    #[test]
    fn expiry_is_rounded_down_and_saturates() {
        let c = Clock::new();
        assert!(c.now() >= 1);
        assert_eq!(c.expiry(10, Duration::from_millis(15)), 10);
        assert_eq!(c.expiry(10, Duration::from_secs(1)), 69);
        assert_eq!(c.expiry(10, Duration::MAX), NEVER - 1);
        assert_eq!(remaining(70, 72, Duration::from_secs(1)), Duration::from_nanos(2 << 24));
        assert_eq!(remaining(80, 72, Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(remaining(10, 72, Duration::from_secs(1)), Duration::from_secs(1), "made after it was now");
        assert_eq!(remaining(80, NEVER, Duration::from_secs(7)), Duration::from_secs(7));
    }
}
