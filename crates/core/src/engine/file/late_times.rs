//! Times of a file that a kernel keeps, where they are not obeyed: [`LengthTimes`] that come late, and [`MissedTimes`] of a write that
//! came to nothing.
//!
//! **Late.**
//! A kernel that keeps the times of files sends them with a change of length, T1, and sets its own to them only when that was answered. If
//! it writes an inode back meanwhile, for a write before, it sends the times of that write, T0, takes the inode for clean, and never
//! sends T1 again (Linux 6.18, `fuse_flush_times` beside `fuse_do_setattr`). So who comes with T0 after T1 is not obeyed.
//!
//! What a user sets is not touched: it comes without a handle, and the kernel writes an inode back before it sends it. As nothing is
//! written back twice at once, there is at most one such T0 for each T1; so a clock that was set back costs the times of one write at most.
//!
//! **Missed.** Before a part of a page is written, the kernel notes the time of the write, and then reads the page. If it cannot have that,
//! the write fails, and the time stays noted: it is sent at the next chance, also while the page is being read, though nothing was
//! written. So times that come after no change are kept back: they are set when a change comes (a write that was on its way may be answered
//! after its times), and else when the file is closed, unless somebody failed to read it or to write to it.

use crate::types::{SetAttr, SetTime, Timestamp};

/// The times that the latest change of an open file's length brought along.
#[derive(Default)]
pub(super) struct LengthTimes(Option<Times>);

struct Times {
    ctime: Timestamp,
    /// What came late while the store was asked for the length.
    late: Option<SetAttr>,
}

impl LengthTimes {
    /// Whether `set` are times of an earlier moment, and nothing else. That is said once.
    pub(super) fn are_newer_than(&mut self, set: &SetAttr) -> bool {
        let Some(times) = &mut self.0 else { return false };
        let late = match *set {
            SetAttr { mtime: Some(SetTime::At(_)), ctime: Some(ctime), .. } => ctime < times.ctime && only_written(set),
            _ => false,
        };
        let is_first = times.late.is_none();
        if late && is_first {
            times.late = Some(*set);
        }
        late && is_first
    }

    /// Notes the times of `set`, if it has a length: the store is asked for it next.
    pub(super) fn begin(&mut self, set: &SetAttr) {
        if let SetAttr { size: Some(_), ctime: Some(ctime), .. } = *set {
            self.0 = Some(Times { ctime, late: None });
        }
    }

    /// The store refused `set`: its times count no more. What was not obeyed because of them, if anything.
    pub(super) fn failed(&mut self, set: &SetAttr) -> Option<SetAttr> {
        let is_of_set = self.0.as_ref().is_some_and(|times| set.size.is_some() && set.ctime == Some(times.ctime));
        if is_of_set { self.0.take()?.late } else { None }
    }
}

/// What is known of the changes that times come of.
#[derive(Clone, Copy, Default)]
pub(super) struct MissedTimes {
    /// Whether the content changed since times were obeyed.
    has_changed: bool,
    /// Whether a read or a write failed since the content changed.
    has_failed: bool,
    /// Times that were kept back.
    kept_back: Option<SetAttr>,
}

impl MissedTimes {
    /// Somebody could not read it, or not write to it.
    pub(super) fn failed(&mut self) {
        self.has_failed = true;
    }

    /// Its content changed. Returns the times that were kept back, which are to be set now.
    pub(super) fn changed(&mut self) -> Option<SetAttr> {
        (self.has_changed, self.has_failed) = (true, false);
        self.kept_back.take()
    }

    /// The store refused times that were to be set: with the next change, then.
    pub(super) fn not_set(&mut self, times: SetAttr) {
        self.kept_back = self.kept_back.or(Some(times));
    }

    /// Whether `set` are times that the kernel noted (`is_noted`: they may be, for they came through a handle), and nothing else, and no change
    /// was before them. If not they are obeyed: a length and times are newer than what was kept back, and what comes later is of what happens
    /// from now on; of permissions and the like it is the ctime that is.
    pub(super) fn keep_back(&mut self, set: &SetAttr, is_noted: bool) -> bool {
        if set.size.is_none() && set.mtime.is_none() {
            if let Some(kept) = &mut self.kept_back {
                kept.ctime = kept.ctime.max(set.ctime.or_else(|| Some(Timestamp::now())));
            }
            return false;
        }
        let are_times =
            matches!(*set, SetAttr { mtime: Some(SetTime::At(_)), ctime: Some(_), .. }) && only_written(set);
        let are_missed = is_noted && are_times && !self.has_changed;
        self.has_changed = false;
        self.kept_back = are_missed.then_some(*set);
        are_missed
    }

    /// The store refused what was to be obeyed, and what is known is as it was `before`, but for what happened meanwhile.
    pub(super) fn refused(&mut self, before: MissedTimes) {
        if !self.has_changed {
            *self = MissedTimes { has_failed: self.has_failed, ..before };
        }
    }

    /// Nobody has it open any more: the times that are left, if they are of no write that failed.
    pub(super) fn left(&mut self) -> Option<SetAttr> {
        self.kept_back.take().filter(|_| !self.has_failed)
    }
}

/// Whether nothing is set but what a write changes.
fn only_written(set: &SetAttr) -> bool {
    SetAttr { mtime: None, ctime: None, ..*set }.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, ..Timestamp::default() }
    }

    fn times(secs: i64) -> SetAttr {
        SetAttr { mtime: Some(SetTime::At(at(secs))), ctime: Some(at(secs)), ..SetAttr::default() }
    }

    fn length(secs: i64) -> SetAttr {
        SetAttr { size: Some(1), ..times(secs) }
    }

    #[test]
    fn only_earlier_times_alone_come_late_and_only_once() {
        let mut known = LengthTimes::default();
        assert!(!known.are_newer_than(&times(1)), "nothing is known");
        known.begin(&length(5));
        let others = [
            times(5),
            times(6),
            length(4),
            SetAttr { perm: Some(0o600), ..times(4) },
            SetAttr { atime: Some(SetTime::At(at(1))), ..times(4) },
            SetAttr { mtime: None, ..times(4) },
            SetAttr { ctime: None, ..times(4) },
        ];
        assert!(others.iter().all(|set| !known.are_newer_than(set)));
        assert!(known.are_newer_than(&times(4)));
        assert!(!known.are_newer_than(&times(4)), "the kernel writes back one after the other");
        known.begin(&times(9));
        assert!(!known.are_newer_than(&times(8)), "no length, nothing noted");
        known.begin(&length(7));
        assert!(known.are_newer_than(&times(6)));
    }

    #[test]
    fn times_without_a_change_are_kept_back_until_one_comes() {
        let mut missed = MissedTimes::default();
        let others = [
            length(2),
            SetAttr { perm: Some(0o600), ..times(2) },
            SetAttr { mtime: Some(SetTime::Now), ..times(2) },
            SetAttr { ctime: None, ..times(2) },
        ];
        assert!(others.iter().all(|set| !missed.keep_back(set, true)));
        assert_eq!(missed.changed(), None);
        assert!(!missed.keep_back(&times(3), true), "of that change");
        assert!(missed.keep_back(&times(4), true), "of none");
        assert_eq!(missed.changed(), Some(times(4)), "a write that was on its way");
        assert_eq!(missed.changed(), None);
        assert!(!missed.keep_back(&times(5), true));
        // A read on the way to a write, and its times before and after it failed.
        assert!(missed.keep_back(&times(6), true));
        missed.failed();
        assert!(missed.keep_back(&times(7), true));
        assert_eq!(missed.left(), None, "nothing was written");
        assert!(missed.keep_back(&times(8), true));
        assert_eq!(missed.changed(), Some(times(8)), "but if something is, that has its time");
        assert!(!missed.keep_back(&times(9), true));
        assert!(missed.keep_back(&times(10), true));
        assert_eq!(missed.left(), Some(times(10)), "nothing failed");
    }

    /// What a user sets, or a program without privilege makes go, is neither undone by what was kept back nor in its way.
    #[test]
    fn what_others_set_is_newer_than_what_was_kept_back() {
        let keeping = || {
            let mut missed = MissedTimes::default();
            assert!(missed.keep_back(&times(1), true));
            missed
        };
        for set in [times(0), length(9), SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }] {
            let mut missed = keeping();
            assert!(!missed.keep_back(&set, false));
            assert_eq!(missed.changed(), None, "{set:?}");
        }
        let perm = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let mut missed = keeping();
        assert!(!missed.keep_back(&SetAttr { ctime: Some(at(5)), ..perm }, false));
        assert_eq!(missed.changed(), Some(SetAttr { ctime: Some(at(5)), ..times(1) }));
        assert!(!missed.keep_back(&perm, true));
        assert!(!missed.keep_back(&times(6), true), "of the change before it");
        let mut missed = keeping();
        assert!(!missed.keep_back(&perm, true));
        let set = missed.changed().expect("as it was");
        assert!(set.mtime == times(1).mtime && set.ctime > Some(at(1_000_000_000)));
        missed.not_set(set);
        assert_eq!(missed.changed(), Some(set));
    }

    #[test]
    fn a_length_that_was_refused_is_no_end_of_what_changed_before_it() {
        let mut missed = MissedTimes::default();
        let refuse = |missed: &mut MissedTimes| {
            let before = *missed;
            assert!(!missed.keep_back(&length(2), true));
            missed.refused(before);
        };
        assert_eq!(missed.changed(), None);
        refuse(&mut missed);
        assert!(!missed.keep_back(&times(1), true), "of the change before");
        assert!(missed.keep_back(&times(3), true));
        refuse(&mut missed);
        assert_eq!(missed.left(), Some(times(3)), "nothing took their place");
        let before = missed;
        assert!(!missed.keep_back(&length(4), true));
        assert_eq!(missed.changed(), None, "meanwhile");
        missed.refused(before);
        assert!(!missed.keep_back(&times(5), true));
    }

    #[test]
    fn times_of_a_length_that_was_refused_are_not_in_the_way() {
        let mut known = LengthTimes::default();
        known.begin(&length(5));
        assert!(known.are_newer_than(&times(4)));
        assert_eq!(known.failed(&length(6)), None, "another one");
        assert_eq!(known.failed(&length(5)), Some(times(4)));
        assert!(!known.are_newer_than(&times(4)));
    }
}
