//! A bit for each block of a segment.

/// So many bits, all clear at first. Positions beyond them are a bug of the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bitmap {
    words: Box<[u64]>,
    len: u32,
}

impl Bitmap {
    pub fn new(len: u32) -> Bitmap {
        Bitmap { words: vec![0; len.div_ceil(64) as usize].into(), len }
    }

    /// From the bytes that [`Bitmap::to_bytes`] made, or `None` if they are not for `len` bits.
    pub fn from_bytes(len: u32, bytes: &[u8]) -> Option<Bitmap> {
        if bytes.len() != len.div_ceil(64) as usize * 8 {
            return None;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let bitmap = Bitmap { words: words.iter().map(|w| u64::from_le_bytes(*w)).collect(), len };
        let beyond = bitmap.words.last().map_or(0, |last| if len.is_multiple_of(64) { 0 } else { last >> (len % 64) });
        (beyond == 0).then_some(bitmap)
    }

    /// Its words, little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    pub fn get(&self, at: u32) -> bool {
        self.words[(at / 64) as usize] >> (at % 64) & 1 == 1
    }

    pub fn set(&mut self, at: u32) {
        self.words[(at / 64) as usize] |= 1 << (at % 64);
    }

    pub fn clear(&mut self, at: u32) {
        self.words[(at / 64) as usize] &= !(1 << (at % 64));
    }

    #[cfg(test)]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|w| w.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// The first position from `from` on whose bit is `set`, or the length.
    fn next(&self, from: u32, set: bool) -> u32 {
        let mut at = from;
        while at < self.len {
            let word = self.words[(at / 64) as usize];
            let rest = (if set { word } else { !word }) >> (at % 64);
            if rest != 0 {
                return (at + rest.trailing_zeros()).min(self.len);
            }
            at = (at / 64 + 1) * 64;
        }
        self.len
    }

    /// The stretches of set bits, as (start, count).
    pub fn set_runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.runs(true)
    }

    /// The stretches of clear bits, as (start, count).
    pub fn clear_runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.runs(false)
    }

    /// The first stretch of set bits from `at` on, as (start, count).
    pub fn set_run_from(&self, at: u32) -> Option<(u32, u32)> {
        self.run_from(at, true)
    }

    fn run_from(&self, at: u32, set: bool) -> Option<(u32, u32)> {
        let start = self.next(at, set);
        (start < self.len).then(|| (start, self.next(start, !set) - start))
    }

    fn runs(&self, set: bool) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (start, count) = self.run_from(at, set)?;
            at = start + count;
            Some((start, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_testkit::{Rng, seeds};

    #[test]
    fn agrees_with_a_vector_of_bools() {
        for seed in seeds(50) {
            let mut rng = Rng::new(seed);
            let len = 1 + rng.below(300) as u32;
            let (mut bits, mut model) = (Bitmap::new(len), vec![false; len as usize]);
            for _ in 0..rng.below(400) {
                let at = rng.below(u64::from(len)) as u32;
                let set = rng.percent(60);
                model[at as usize] = set;
                if set { bits.set(at) } else { bits.clear(at) }
            }
            assert!((0..len).all(|at| bits.get(at) == model[at as usize]));
            assert_eq!(bits.count() as usize, model.iter().filter(|b| **b).count());
            let mut from_runs = vec![false; len as usize];
            for (start, count) in bits.set_runs() {
                from_runs[start as usize..(start + count) as usize].fill(true);
            }
            assert_eq!(from_runs, model, "ADIT_TEST_SEED={seed}");
            let clear: u32 = bits.clear_runs().map(|(_, count)| count).sum();
            assert_eq!(clear + bits.count(), len);
            assert_eq!(Bitmap::from_bytes(len, &bits.to_bytes()), Some(bits));
        }
        assert_eq!(Bitmap::from_bytes(3, &[8, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
