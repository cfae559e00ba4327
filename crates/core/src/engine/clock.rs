//! Time for expiry: cheap to read, coarse, monotonic.
//!
//! A [`Tick`] is 16 ms since the engine's start, in 32 bits: 2.1 years, after which nothing counts as fresh any more.
//! Coarse on purpose: the precise clock costs more than a whole cache hit.

use std::time::Duration;

/// Milliseconds in a tick.
const TICK_MS: u64 = 16;

/// A moment, in ticks since the start of its clock.
pub(crate) type Tick = u32;

/// Expires never.
pub(crate) const NEVER: Tick = u32::MAX;

#[derive(Debug)]
pub(crate) struct Clock {
    start_ms: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        // One tick has passed at once, so that tick 0 can mean "expired".
        Clock { start_ms: monotonic_ms().saturating_sub(TICK_MS) }
    }

    /// The current tick, at least 1.
    #[inline]
    pub(crate) fn now(&self) -> Tick {
        let ticks = monotonic_ms().saturating_sub(self.start_ms) / TICK_MS;
        ticks.clamp(1, u64::from(NEVER) - 1) as Tick
    }

    /// When something expires that lives for `ttl` from now. Rounded down: never later than promised.
    pub(crate) fn expiry(&self, now: Tick, ttl: Duration) -> Tick {
        let ticks = ttl.as_millis() / u128::from(TICK_MS);
        u128::from(now).saturating_add(ticks).min(u128::from(NEVER) - 1) as Tick
    }
}

/// What is left between `now` and `expiry`; `full` where it never expires.
pub(crate) fn remaining(now: Tick, expiry: Tick, full: Duration) -> Duration {
    if expiry == NEVER {
        return full;
    }
    Duration::from_millis(u64::from(expiry.saturating_sub(now)) * TICK_MS).min(full)
}

#[cfg(target_os = "linux")]
#[inline]
fn monotonic_ms() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    (t.tv_sec as u64).wrapping_mul(1000).wrapping_add(t.tv_nsec as u64 / 1_000_000)
}

#[cfg(not(target_os = "linux"))]
fn monotonic_ms() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + TICK_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_rounded_down_and_saturates() {
        let c = Clock::new();
        assert!(c.now() >= 1);
        assert_eq!(c.expiry(10, Duration::from_millis(15)), 10);
        assert_eq!(c.expiry(10, Duration::from_secs(1)), 72);
        assert_eq!(c.expiry(10, Duration::MAX), NEVER - 1);
        assert_eq!(remaining(70, 72, Duration::from_secs(1)), Duration::from_millis(32));
        assert_eq!(remaining(80, 72, Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(remaining(80, NEVER, Duration::from_secs(7)), Duration::from_secs(7));
    }
}
