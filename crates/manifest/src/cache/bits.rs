//! A bit for each block of an object.

use std::sync::atomic::{AtomicU64, Ordering};

/// So many bits, all clear at first. A bit that is seen set was set after what it stands for.
pub(super) struct Bits {
    words: Box<[AtomicU64]>,
    len: u64,
}

impl Bits {
    /// `len` is at most [`BLOCKS_MAX`](super::map::BLOCKS_MAX).
    pub fn new(len: u64) -> Self {
        Bits { words: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), len }
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        self.words.get((at / 64) as usize)
    }

    pub fn get(&self, at: u64) -> bool {
        self.word(at).is_some_and(|word| word.load(Ordering::Acquire) >> (at % 64) & 1 == 1)
    }

    pub fn set(&self, at: u64) {
        if let Some(word) = self.word(at) {
            word.fetch_or(1 << (at % 64), Ordering::AcqRel);
        }
    }

    pub fn clear(&self, at: u64) {
        if let Some(word) = self.word(at) {
            word.fetch_and(!(1 << (at % 64)), Ordering::AcqRel);
        }
    }

    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    pub fn all(&self) -> bool {
        self.count() == self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_and_cleared() {
        let bits = Bits::new(130);
        for at in [0, 63, 64, 129] {
            assert!(!bits.get(at));
            bits.set(at);
            assert!(bits.get(at));
        }
        bits.clear(64);
        assert_eq!((bits.count(), bits.get(64), bits.all()), (3, false, false));
        (0..130).for_each(|at| bits.set(at));
        assert!(bits.all() && !bits.get(1 << 40));
        assert!(Bits::new(0).all());
    }
}
