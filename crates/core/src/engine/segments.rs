//! An array that grows without moving: readers need no lock, and no `unsafe`, while a writer appends.
//!
//! Element `i` lives in a part of power-of-two length; parts are allocated on demand and never moved or freed before
//! the whole. That is why the memory of a table stays at its high-water mark.

use std::sync::OnceLock;

/// Elements of the first part, and of the smallest later ones times [`STEPS`].
const BASE_LOG2: u32 = 6;
const BASE: usize = 1 << BASE_LOG2;
/// Parts for each doubling: the last one is all that may lie idle, so more of them waste less and cost more headers.
const STEPS_LOG2: u32 = 3;
const STEPS: usize = 1 << STEPS_LOG2;
const DOUBLINGS: usize = 19;
const PARTS: usize = 1 + DOUBLINGS * STEPS;

/// Elements that a [`Segmented`] can hold.
pub(crate) const CAPACITY_MAX: usize = BASE << DOUBLINGS;

pub(crate) struct Segmented<T> {
    /// In place, not behind a pointer: one dependent load less on each hit.
    parts: [OnceLock<Box<[T]>>; PARTS],
}

/// The part of element `i`, and its place there.
#[inline]
fn locate(i: usize) -> (usize, usize) {
    if i < BASE {
        return (0, i);
    }
    let log2 = usize::BITS - 1 - i.leading_zeros();
    let shift = log2 - STEPS_LOG2;
    let step = (i >> shift) & (STEPS - 1);
    (1 + (log2 - BASE_LOG2) as usize * STEPS + step, i & ((1 << shift) - 1))
}

/// Elements of a part.
fn part_len(part: usize) -> usize {
    if part == 0 { BASE } else { (BASE / STEPS) << ((part - 1) / STEPS) }
}

impl<T: Default> Segmented<T> {
    pub(crate) fn new() -> Self {
        Segmented { parts: [const { OnceLock::new() }; PARTS] }
    }

    /// The element, if its part was allocated.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&T> {
        let (part, offset) = locate(i);
        self.parts.get(part)?.get()?.get(offset)
    }

    /// Allocates the part of `i`, if it is not there. Returns the elements added. `i` is below [`CAPACITY_MAX`].
    pub(crate) fn ensure(&self, i: usize) -> usize {
        let (part, _) = locate(i);
        let len = part_len(part);
        let mut added = 0;
        self.parts[part].get_or_init(|| {
            added = len;
            (0..len).map(|_| T::default()).collect()
        });
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_place() {
        let s: Segmented<std::sync::atomic::AtomicU32> = Segmented::new();
        assert!(s.get(0).is_none());
        for i in 0..5000 {
            s.ensure(i);
            s.get(i).unwrap().store(i as u32, std::sync::atomic::Ordering::Relaxed);
        }
        for i in 0..5000 {
            assert_eq!(s.get(i).unwrap().load(std::sync::atomic::Ordering::Relaxed), i as u32);
        }
        assert!(s.get(CAPACITY_MAX).is_none());
    }
}
