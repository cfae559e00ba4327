//! [`LengthTimes`]: why times that arrive late do not undo later ones.
//!
//! A kernel that keeps the times of files sends them with a change of length, T1, and sets its own to them only when that was answered. If
//! it writes an inode back meanwhile, for a write before, it sends the times of that write, T0, takes the inode for clean, and never
//! sends T1 again (Linux 6.18, `fuse_flush_times` beside `fuse_do_setattr`). So who comes with T0 after T1 is not obeyed.
//!
//! What a user sets is not touched: it comes without a handle, and the kernel writes an inode back before it sends it. As nothing is
//! written back twice at once, there is at most one such T0 for each T1; so a clock that was set back costs the times of one write at most.

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
    fn times_of_a_length_that_was_refused_are_not_in_the_way() {
        let mut known = LengthTimes::default();
        known.begin(&length(5));
        assert!(known.are_newer_than(&times(4)));
        assert_eq!(known.failed(&length(6)), None, "another one");
        assert_eq!(known.failed(&length(5)), Some(times(4)));
        assert!(!known.are_newer_than(&times(4)));
    }
}
