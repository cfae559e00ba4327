//! An array that grows without moving: readers need no lock, and no `unsafe`, while a writer appends.
//!
//! Element `i` lives in a part of power-of-two length; parts are allocated on demand and never moved or freed before
//! the whole. That is why the memory of a table stays at its high-water mark.

use std::sync::OnceLock;

const BASE_LOG2: u32 = 4;
const BASE: usize = 1 << BASE_LOG2;
const PARTS: usize = 24;

/// Elements that a [`Segmented`] can hold.
#[cfg(test)]
pub(crate) const CAPACITY_MAX: usize = BASE << (PARTS - 1);

pub(crate) struct Segmented<T> {
    parts: [OnceLock<Box<[T]>>; PARTS],
}

#[inline]
fn locate(i: usize) -> (usize, usize) {
    if i < BASE {
        return (0, i);
    }
    let part = (usize::BITS - (i >> BASE_LOG2).leading_zeros()) as usize;
    (part, i - (BASE << (part - 1)))
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

    /// Allocates the part of `i`, if it is not there. Returns the elements added.
    pub(crate) fn ensure(&self, i: usize) -> usize {
        let (part, _) = locate(i);
        let len = if part == 0 { BASE } else { BASE << (part - 1) };
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
