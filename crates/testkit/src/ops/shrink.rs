//! Shrinking: the shortest sequence that still shows some difference.
//!
//! Operations are taken out in ever smaller parts. Renames, links and directories hold their successors, which name
//! what they made, so one of these is taken out together with what it did to later paths.

use std::time::{Duration, Instant};

use adit_core::types::RenameFlags;

use super::{Mismatch, Op, Place, Shown, Target};

/// How long one sequence may take.
const TIME_MAX: Duration = Duration::from_secs(30);

type Check<'a> = &'a mut dyn FnMut(&[Op]) -> Result<(), Mismatch>;

/// Makes `ops` shorter as long as some difference stays, for half a minute at most.
pub(super) fn shrink(ops: Vec<Op>, mismatch: Mismatch, check: Check<'_>) -> (Vec<Op>, Mismatch) {
    let mut found = Found { ops, mismatch, deadline: Instant::now() + TIME_MAX };
    found.ops.truncate(found.mismatch.step + 1);
    loop {
        let before = found.ops.len();
        found.leave_out_parts(check);
        found.leave_out_detours(check);
        if found.ops.len() == before || found.is_late() {
            return (found.ops, found.mismatch);
        }
    }
}

struct Found {
    ops: Vec<Op>,
    mismatch: Mismatch,
    deadline: Instant,
}

impl Found {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Takes `fewer` if it shows a difference as well.
    fn try_these(&mut self, mut fewer: Vec<Op>, check: Check<'_>) -> bool {
        let Err(mismatch) = check(&fewer) else { return false };
        fewer.truncate(mismatch.step + 1);
        (self.ops, self.mismatch) = (fewer, mismatch);
        true
    }

    fn leave_out_parts(&mut self, check: Check<'_>) {
        let mut part = self.ops.len().div_ceil(2);
        while part > 0 {
            let mut at = 0;
            let before = self.ops.len();
            while at < self.ops.len() && !self.is_late() {
                let mut fewer = self.ops.clone();
                fewer.drain(at..(at + part).min(self.ops.len()));
                if !self.try_these(fewer, check) {
                    at += part;
                }
            }
            if self.ops.len() == before || part > 1 {
                part /= 2;
            }
        }
    }

    /// Leaves a rename or link out and goes on with the old name; leaves a directory out and goes on in the one above.
    fn leave_out_detours(&mut self, check: Check<'_>) {
        let mut at = 0;
        while at < self.ops.len() && !self.is_late() {
            let (gone, instead, both_ways) = match &self.ops[at] {
                Op::Rename(from, to, flags) => (to.0.clone(), from.0.clone(), flags.contains(RenameFlags::EXCHANGE)),
                Op::Link(from, to) => (to.0.clone(), from.0.clone(), false),
                Op::Mkdir(dir, _) if !dir.0.is_empty() => (dir.0.clone(), dir.0[..dir.0.len() - 1].to_vec(), false),
                _ => {
                    at += 1;
                    continue;
                }
            };
            let mut fewer = self.ops.clone();
            fewer.remove(at);
            for op in &mut fewer[at..] {
                for place in op.places_mut() {
                    let _ = redirect(place, &gone, &instead) || both_ways && redirect(place, &instead, &gone);
                }
            }
            if !self.try_these(fewer, check) {
                at += 1;
            }
        }
    }
}

/// A place at or below `gone` becomes the same one at or below `instead`. False if it is elsewhere.
fn redirect(place: &mut Place, gone: &Place, instead: &Place) -> bool {
    let Some(rest) = place.strip_prefix(&gone[..]) else { return false };
    *place = [instead, rest].concat();
    true
}

impl Op {
    /// Every path that it names.
    fn places_mut(&mut self) -> Vec<&mut Place> {
        fn target(target: &mut Target) -> Vec<&mut Place> {
            match target {
                Target::At(place) => vec![place],
                Target::Slot(_) => Vec::new(),
            }
        }
        match self {
            Op::Create(Shown(p), _) | Op::Mkdir(Shown(p), _) | Op::Symlink(Shown(p), _) => vec![p],
            Op::Chmod(Shown(p), _) | Op::SetTimes(Shown(p), ..) | Op::Open(_, Shown(p)) => vec![p],
            Op::Unlink(Shown(p)) | Op::Rmdir(Shown(p)) | Op::List(Shown(p)) => vec![p],
            Op::Stat(Shown(p)) | Op::ReadLink(Shown(p)) | Op::SyncDir(Shown(p)) => vec![p],
            Op::Mknod(Shown(p), ..) | Op::SetXattr(Shown(p), ..) | Op::GetXattr(Shown(p), _) => vec![p],
            Op::RemoveXattr(Shown(p), _) | Op::ListXattrs(Shown(p)) => vec![p],
            Op::Rename(Shown(a), Shown(b), _) | Op::Link(Shown(a), Shown(b)) => vec![a, b],
            Op::Write(t, ..) | Op::Read(t, ..) | Op::Truncate(t, ..) | Op::ReadSparse(t) => target(t),
            Op::Allocate(t, ..) | Op::Sync(t, _) => target(t),
            Op::Close(_) | Op::SyncAll => Vec::new(),
        }
    }
}
