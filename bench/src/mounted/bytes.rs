//! Content and order of the accesses: the same in every turn, and not compressible.

/// A small generator (xorshift64*); its quality is enough for content that no layer can shrink.
pub struct Stream(u64);

impl Stream {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Stream {
        Stream(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len).collect()
    }

    /// The numbers below `count`, shuffled.
    pub fn permutation(&mut self, count: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..count).collect();
        for at in (1..numbers.len()).rev() {
            let other = (self.next() % (at as u64 + 1)) as usize;
            numbers.swap(at, other);
        }
        numbers
    }
}
