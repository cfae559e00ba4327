//! One accountant for the engine's memory: who holds how much, and how much a cache may still take.
//!
//! [`Budget`] counts bytes by [`Part`]. Caches ask [`Budget::allowance`] before they grow, and shrink when their part
//! exceeds it: what the inode table and dirty data take, they give up. Nothing here frees memory itself; the invariant
//! that a part stays within its allowance is kept by its owner, on each insertion.

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
}

const PARTS: usize = 5;

/// The budget and what is used of it, in bytes.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: u64,
    used_bytes: [AtomicU64; PARTS],
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        Budget { limit_bytes, used_bytes: Default::default() }
    }

    /// The whole of it.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Counts `bytes` more for `part`.
    pub fn add(&self, part: Part, bytes: u64) {
        self.used_bytes[part as usize].fetch_add(bytes, Relaxed);
    }

    /// Counts `bytes` more for `part` if they fit into its allowance; false, and nothing is counted, if they do not.
    pub fn take(&self, part: Part, bytes: u64) -> bool {
        let allowance = self.allowance_bytes(part);
        let more = |used: u64| used.checked_add(bytes).filter(|&all| all <= allowance);
        self.used_bytes[part as usize].fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Counts `bytes` less for `part`.
    pub fn sub(&self, part: Part, bytes: u64) {
        let before = self.used_bytes[part as usize].fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes, "{part:?} gave back more than it took");
    }

    /// What `part` uses now.
    pub fn used_bytes(&self, part: Part) -> u64 {
        self.used_bytes[part as usize].load(Relaxed)
    }

    /// What all parts use now.
    pub fn used_in_all_bytes(&self) -> u64 {
        self.used_bytes.iter().map(|u| u.load(Relaxed)).sum()
    }

    /// How much `part` may hold now: its own share, and not more than the others leave.
    pub fn allowance_bytes(&self, part: Part) -> u64 {
        let share = match part {
            Part::Inodes => self.limit_bytes,
            Part::Dentries => self.limit_bytes / 32,
            Part::Listings => self.limit_bytes / 16,
            Part::Units => self.limit_bytes / 4,
            // More merges few more writes, and leaves less for the caches.
            Part::Dirty => self.limit_bytes / 16 * 3,
        };
        // Dirty data is bounded by its writers and needs its share even where the inode table has outgrown the budget.
        if part == Part::Dirty {
            return share;
        }
        let others = self.used_in_all_bytes() - self.used_bytes(part).min(self.used_in_all_bytes());
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
}
