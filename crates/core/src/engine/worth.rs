//! Whether something that is done in case it helps does help often enough: a rate, and a switch.
//!
//! [`Worth`] counts outcomes in windows. A window whose rate is below the least one switches it off; after a number of turns that
//! were let pass it is tried for a short window, and stays on if that is good enough. Turns are counted and no time is, so that
//! what nobody uses is not tried either.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

/// Outcomes of a window: enough that a rate near the least one is not chance, few enough that what turned useless ends soon.
pub(super) const WINDOW: u32 = 256;
/// Outcomes of a window in which something that was off is tried.
pub(super) const TRIAL: u32 = 32;
/// Turns that are let pass before a trial: with these numbers, what never helps costs a sixteenth of what it did or less.
pub(super) const PAUSE: u32 = 512;

/// A switch, and the rate that it goes by. A leaf: no other lock is taken below it.
pub(super) struct Worth {
    least_percent: u32,
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of the window under way.
    good: u32,
    settled: u32,
    len: u32,
    /// Of the last whole window.
    rate_percent: Option<u32>,
    /// Turns that passed while it is off.
    passed: u32,
    switched_off: u64,
}

/// How something fares that a [`Worth`] decides about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorthStats {
    /// Whether it is done now.
    pub is_on: bool,
    /// Of the last whole window, in percent.
    pub rate_percent: Option<u32>,
    /// The rate below which it is switched off, in percent.
    pub least_percent: u32,
    /// How often it was switched off.
    pub switched_off: u64,
}

impl Worth {
    /// On, until a window has a rate below `least_percent`.
    pub(super) fn new(least_percent: u32) -> Self {
        let state = State { len: WINDOW, ..State::default() };
        Worth { least_percent, on: AtomicBool::new(true), state: Mutex::new(state) }
    }

    /// Whether it is to be done, where it could be. While it is off, this is a turn that passes.
    pub(super) fn turn(&self) -> bool {
        if self.on.load(Relaxed) {
            return true;
        }
        let mut state = self.state.lock();
        state.passed += 1;
        if state.passed < PAUSE {
            return false;
        }
        (state.good, state.settled, state.len, state.passed) = (0, 0, TRIAL, 0);
        self.on.store(true, Relaxed);
        true
    }

    /// Whether it is on; no turn.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// It was of use, or it was not.
    pub(super) fn settle(&self, good: bool) {
        let mut state = self.state.lock();
        if !self.on.load(Relaxed) {
            // What was under way when it was switched off says nothing of the next trial.
            return;
        }
        state.good += u32::from(good);
        state.settled += 1;
        if state.settled < state.len {
            return;
        }
        let rate = state.good * 100 / state.settled;
        (state.good, state.settled, state.len, state.rate_percent) = (0, 0, WINDOW, Some(rate));
        if rate < self.least_percent {
            state.switched_off += 1;
            self.on.store(false, Relaxed);
        }
    }

    pub(super) fn stats(&self) -> WorthStats {
        let state = self.state.lock();
        WorthStats {
            is_on: self.on.load(Relaxed),
            rate_percent: state.rate_percent,
            least_percent: self.least_percent,
            switched_off: state.switched_off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_off_below_the_rate_and_tried_again_after_a_pause() {
        let worth = Worth::new(50);
        (0..WINDOW).for_each(|n| worth.settle(n % 2 == 0));
        assert!(worth.turn(), "exactly the least rate is enough");
        (0..WINDOW).for_each(|n| worth.settle(n % 4 == 0));
        let stats = worth.stats();
        assert_eq!((stats.is_on, stats.rate_percent, stats.switched_off), (false, Some(25), 1));
        // Late outcomes change nothing.
        worth.settle(true);
        let passed = (0..PAUSE).take_while(|_| !worth.turn()).count();
        assert_eq!(passed as u32, PAUSE - 1);
        (0..TRIAL).for_each(|_| worth.settle(false));
        assert!(!worth.is_on(), "the trial was short");
        assert_eq!(worth.stats().switched_off, 2);
        while !worth.turn() {}
        (0..TRIAL).for_each(|_| worth.settle(true));
        (0..WINDOW - 1).for_each(|_| worth.settle(false));
        assert!(worth.is_on(), "a good trial is followed by a whole window");
        worth.settle(false);
        assert!(!worth.is_on());
    }
}
