//! One accountant for the engine's memory: who holds how much, and how much a cache may still take.
//!
//! [`Budget`] counts bytes by [`Part`]. Caches ask [`Budget::allowance`] before they grow, and shrink when their part
//! exceeds it: what the inode table and dirty data take, they give up. Nothing here frees memory itself; the invariant
//! that a part stays within its allowance is kept by its owner, on each insertion.
//!
//! Several engines of one process share a whole ([`Budget::part_of`]): each counts its own, and what the others hold is not
//! there for it. One that comes late finds an eighth of each cache's share at least, and the others make room at their next
//! insertion.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Who holds memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Known inodes and their attributes. Not a cache: the kernel decides how many there are.
    Inodes,
    /// Positive and negative directory entries.
    Dentries,
    /// Directory listings in the cache (those of open directories alone are not counted).
    Listings,
    /// Decrypted units of content, clean.
    Units,
    /// Buffered writes.
    Dirty,
    /// What an engine's front end takes, for as long as it lives: buffers of threads.
    Fixed,
}

const PARTS: usize = 6;
/// The part of a cache's share that an engine has whatever others hold.
const FLOOR: u64 = 8;

/// The budget and what is used of it, in bytes.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: u64,
    used_bytes: [AtomicU64; PARTS],
    /// What it is a part of.
    whole: Option<Arc<Budget>>,
}

impl Drop for Budget {
    /// Whatever was counted here is gone with its owner.
    fn drop(&mut self) {
        let Some(whole) = &self.whole else { return };
        for (all, used) in whole.used_bytes.iter().zip(&self.used_bytes) {
            all.fetch_sub(used.load(Relaxed), Relaxed);
        }
    }
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Budget { limit_bytes, used_bytes: Default::default(), whole: None }
    }

    /// The account of one of several engines that share `whole`, which is none's own. `fixed_bytes` are taken until it is
    /// dropped.
    pub fn part_of(whole: &Arc<Budget>, fixed_bytes: u64) -> Self {
        let mut part = Budget::new(whole.limit_bytes);
        part.whole = Some(whole.clone());
        part.add(Part::Fixed, fixed_bytes);
        part
    }

    /// The whole of it.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Counts `bytes` more for `part`.
    pub fn add(&self, part: Part, bytes: u64) {
        self.used_bytes[part as usize].fetch_add(bytes, Relaxed);
        if let Some(whole) = &self.whole {
            whole.add(part, bytes);
        }
    }

    /// Counts `bytes` more for `part` if they fit into its allowance; false, and nothing is counted, if they do not.
    pub fn take(&self, part: Part, bytes: u64) -> bool {
        let allowance = self.allowance_bytes(part);
        let more = |used: u64| used.checked_add(bytes).filter(|&all| all <= allowance);
        let taken = self.used_bytes[part as usize].fetch_update(Relaxed, Relaxed, more).is_ok();
        if let Some(whole) = self.whole.as_ref().filter(|_| taken) {
            whole.add(part, bytes);
        }
        taken
    }

    /// Counts `bytes` less for `part`.
    pub fn sub(&self, part: Part, bytes: u64) {
        let before = self.used_bytes[part as usize].fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "{part:?} gave back more than it took");
        if let Some(whole) = &self.whole {
            whole.sub(part, bytes);
        }
    }

    /// What `part` uses now.
    pub fn used_bytes(&self, part: Part) -> u64 {
        self.used_bytes[part as usize].load(Relaxed)
    }

    /// What all parts use now.
    pub fn used_in_all_bytes(&self) -> u64 {
        self.used_bytes.iter().map(|u| u.load(Relaxed)).sum()
    }

    /// What all who share the whole use now.
    pub fn used_by_all_bytes(&self) -> u64 {
        self.whole.as_deref().unwrap_or(self).used_in_all_bytes()
    }

    /// What is left of `share` of `part` beside those who share the whole.
    pub fn left_of_bytes(&self, part: Part, share: u64) -> u64 {
        let Some(whole) = &self.whole else { return share };
        let elsewhere = whole.used_bytes(part).saturating_sub(self.used_bytes(part));
        share.saturating_sub(elsewhere).max(share / FLOOR)
    }

    /// How much `part` may hold now: its own share, and not more than the others leave.
    pub fn allowance_bytes(&self, part: Part) -> u64 {
        let share = match part {
            Part::Inodes | Part::Fixed => self.limit_bytes,
            Part::Dentries => self.limit_bytes / 32,
            Part::Listings => self.limit_bytes / 16,
            Part::Units => self.limit_bytes / 4,
            // More merges few more writes, and leaves less for the caches.
            Part::Dirty => self.limit_bytes / 16 * 3,
        };
        let share = self.left_of_bytes(part, share);
        // Dirty data is bounded by its writers and needs its share even where the inode table has outgrown the budget.
        if part == Part::Dirty {
            return share;
        }
        let others = self.used_by_all_bytes().saturating_sub(self.used_bytes(part));
        share.min(self.limit_bytes.saturating_sub(others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_inodes_take_the_caches_give_up() {
        let b = Budget::new(1024);
        assert_eq!(b.allowance_bytes(Part::Units), 256);
        b.add(Part::Inodes, 900);
        b.add(Part::Units, 50);
        assert_eq!(b.allowance_bytes(Part::Units), 124);
        b.sub(Part::Inodes, 900);
        assert_eq!(b.allowance_bytes(Part::Units), 256);
        assert_eq!(b.used_in_all_bytes(), 50);
    }

    #[test]
    fn those_who_share_a_whole_stay_within_it_together() {
        let whole = Arc::new(Budget::new(1024));
        let (one, other) = (Budget::part_of(&whole, 0), Budget::part_of(&whole, 100));
        one.add(Part::Units, 200);
        assert_eq!((one.allowance_bytes(Part::Units), other.allowance_bytes(Part::Units)), (256, 56));
        one.add(Part::Units, 56);
        assert_eq!(other.allowance_bytes(Part::Units), 32, "an eighth, though the other has all");
        assert!(other.take(Part::Units, 32) && !other.take(Part::Units, 1));
        assert_eq!(one.allowance_bytes(Part::Units), 224, "which it gives back");
        // What is used up is used up for all.
        one.add(Part::Inodes, 600);
        assert_eq!(whole.used_in_all_bytes(), 988);
        assert_eq!(other.allowance_bytes(Part::Listings), 36);
        drop(one);
        assert_eq!((whole.used_in_all_bytes(), other.allowance_bytes(Part::Units)), (132, 256));
        drop(other);
        assert_eq!(whole.used_in_all_bytes(), 0);
    }
}
