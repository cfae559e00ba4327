//! Arrays that grow without moving: readers need no lock, and no `unsafe`, while a writer appends.
//!
//! Elements live in parts that are allocated on demand and never moved or freed before the whole. That is why the
//! memory of a table stays at its high-water mark. [`Doubling`] is for arrays whose length is a power of two, [`Pool`]
//! for elements that are reached only by a reference which the pool gave out.

use std::sync::OnceLock;

const BASE_LOG2: u32 = 6;
const BASE: usize = 1 << BASE_LOG2;
const DOUBLINGS: usize = 19;

/// Elements that a [`Doubling`] can hold.
const DOUBLING_LEN_MAX: usize = BASE << DOUBLINGS;

/// An array of `BASE` elements, or twice, four times, ... as many.
pub(crate) struct Doubling<T> {
    /// The first `BASE` elements, and then each doubling. In place, not behind a pointer: one load less in each hit.
    parts: [OnceLock<Box<[T]>>; DOUBLINGS + 1],
}

impl<T: Default> Doubling<T> {
    pub(crate) fn new() -> Self {
        Doubling { parts: [const { OnceLock::new() }; DOUBLINGS + 1] }
    }

    #[inline]
    fn part_of(i: usize) -> usize {
        ((i | (BASE - 1)).ilog2() - (BASE_LOG2 - 1)) as usize
    }

    /// The element, if its part was allocated.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&T> {
        let part = self.parts.get(Self::part_of(i))?.get()?;
        // Each part starts at its own length, the first one at 0.
        part.get(i & (part.len() - 1))
    }

    /// Allocates the part of `i`, if it is not there. Returns the elements added; none beyond what it can hold.
    pub(crate) fn ensure(&self, i: usize) -> usize {
        debug_assert!(i < DOUBLING_LEN_MAX);
        let part = Self::part_of(i);
        let len = BASE << part.saturating_sub(1);
        self.parts.get(part).map_or(0, |slot| allocate(slot, len))
    }
}

/// Parts of a [`Pool`] for each doubling: the last one is all that may lie idle, so more of them waste less and cost
/// more headers.
const STEPS: usize = 8;
/// As many as eight bits can say, so that no bound needs to be checked; not all of them are used.
const PARTS: usize = 256;
const OFFSET_BITS: u32 = 24;

/// Where an element of a [`Pool`] lives: its part in the high eight bits. Computed once, when the element is made, so
/// that a hit need not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place(pub(crate) u32);

/// Elements in the order in which they were first used.
pub(crate) struct Pool<T> {
    parts: [OnceLock<Box<[T]>>; PARTS],
}

impl<T: Default> Pool<T> {
    pub(crate) fn new() -> Self {
        Pool { parts: [const { OnceLock::new() }; PARTS] }
    }

    /// Elements of a part.
    fn part_len(part: usize) -> usize {
        if part == 0 { BASE } else { (BASE / STEPS) << ((part - 1) / STEPS) }
    }

    /// The element, if its part was allocated.
    #[inline]
    pub(crate) fn get(&self, place: Place) -> Option<&T> {
        let offset = place.0 & ((1 << OFFSET_BITS) - 1);
        self.parts[(place.0 >> OFFSET_BITS) as u8 as usize].get()?.get(offset as usize)
    }

    /// Part and offset of the element after `last`.
    fn after(last: Option<Place>) -> (usize, usize) {
        match last {
            None => (0, 0),
            Some(Place(last)) => {
                let (part, offset) = ((last >> OFFSET_BITS) as usize, (last & ((1 << OFFSET_BITS) - 1)) as usize + 1);
                if offset < Self::part_len(part) { (part, offset) } else { (part + 1, 0) }
            }
        }
    }

    /// The element after `last` and its place; `None` where no more parts are allocated.
    pub(crate) fn following(&self, last: Option<Place>) -> Option<(Place, &T)> {
        let (part, offset) = Self::after(last);
        let element = self.parts.get(part)?.get()?.get(offset)?;
        Some((Place((part as u32) << OFFSET_BITS | offset as u32), element))
    }

    /// The place after `last`, allocated, and how many elements that added; `None` when the pool is full.
    pub(crate) fn next(&self, last: Option<Place>) -> Option<(Place, usize)> {
        let (part, offset) = Self::after(last);
        if part > DOUBLINGS * STEPS {
            return None;
        }
        let added = allocate(&self.parts[part], Self::part_len(part));
        Some((Place((part as u32) << OFFSET_BITS | offset as u32), added))
    }
}

/// Fills a part, if it is not there. Returns the elements added.
fn allocate<T: Default>(part: &OnceLock<Box<[T]>>, len: usize) -> usize {
    let mut added = 0;
    part.get_or_init(|| {
        added = len;
        (0..len).map(|_| T::default()).collect()
    });
    added
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn every_index_has_its_own_place() {
        let s: Doubling<AtomicU32> = Doubling::new();
        assert!(s.get(0).is_none());
        let added: usize = (0..4096).map(|i| s.ensure(i)).sum();
        assert_eq!(added, 4096);
        for i in 0..4096 {
            s.get(i).unwrap().store(i as u32, Relaxed);
        }
        for i in 0..4096 {
            assert_eq!(s.get(i).unwrap().load(Relaxed), i as u32);
        }
        assert!(s.get(4096).is_none());
        assert!(s.get(DOUBLING_LEN_MAX).is_none());
    }

    #[test]
    fn every_place_of_a_pool_is_its_own_and_few_lie_idle() {
        let pool: Pool<AtomicU32> = Pool::new();
        let (mut last, mut allocated) = (None, 0);
        let mut places = Vec::new();
        for i in 0..5000 {
            let (place, added) = pool.next(last).unwrap();
            pool.get(place).unwrap().store(i, Relaxed);
            allocated += added;
            assert!(allocated <= (i as usize * 9 / 8).max(BASE) + 1, "{i}: {allocated}");
            places.push(place);
            last = Some(place);
        }
        for (i, place) in places.iter().enumerate() {
            assert_eq!(pool.get(*place).unwrap().load(Relaxed), i as u32);
        }
        assert!(pool.get(Place(u32::MAX)).is_none());
    }
}
