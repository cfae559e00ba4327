//! Randomness from a seed, and how many seeds a run takes.

use std::time::{SystemTime, UNIX_EPOCH};

use proptest::test_runner::{Config, RngSeed};

/// The splitmix64 generator: 64 bits of state, the same sequence everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`, which are not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Fills `buf`.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }
}

/// `default` times the factor in the environment variable `ADIT_TEST_SCALE` (a decimal number; 1 if unset), at least 1.
pub fn scaled(default: usize) -> usize {
    let scale = std::env::var("ADIT_TEST_SCALE").ok().and_then(|s| s.parse::<f64>().ok()).unwrap_or(1.0);
    ((default as f64 * scale) as usize).max(1)
}

/// The seeds of a run: the one in `ADIT_TEST_SEED` alone if that is set, else [`scaled`] `count` consecutive ones that
/// differ from run to run. A failing test prints its seed.
///
/// Under `CI` they are always the same: there a failure has to be one of the change at hand, and what a new seed finds in
/// what was there before would keep an innocent change out. New seeds are tried by whoever runs the suites elsewhere; one
/// that finds something becomes a test of its own.
pub fn seeds(count: usize) -> impl Iterator<Item = u64> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let given = variable("ADIT_TEST_SEED").and_then(|s| s.parse::<u64>().ok());
    let (first, count) = match given {
        Some(seed) => (seed, 1),
        None if variable("CI").is_some() => (1, scaled(count) as u64),
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
            (now.wrapping_mul(1_000_003) & 0xffff_ffff, scaled(count) as u64)
        }
    };
    first..first + count
}

/// How proptest runs: `cases` [`scaled`], with the first of [`seeds`], which a failing test prints. Nothing is written beside the
/// sources: a case that finds something becomes a test of its own.
pub fn proptest_config(cases: usize) -> Config {
    let seed = seeds(1).next().unwrap_or_default();
    println!("seed {seed}");
    let cases = scaled(cases).try_into().unwrap_or(u32::MAX);
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_is_fixed() {
        let mut rng = Rng::new(0);
        assert_eq!([rng.next_u64(), rng.next_u64()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut buf = [0; 11];
        Rng::new(0).fill(&mut buf);
        assert_eq!(buf[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
        assert_eq!(buf[8..], 0x6e78_9e6a_a1b9_65f4_u64.to_le_bytes()[..3]);
    }
}
