//! What a reader wants: a buffer, and which bytes of the object belong in it.

use std::ops::Range;

/// A reader's buffer.
pub(super) struct Want<'a> {
    start: u64,
    buf: &'a mut [u8],
}

impl<'a> Want<'a> {
    pub fn new(start: u64, buf: &'a mut [u8]) -> Self {
        Want { start, buf }
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn end(&self) -> u64 {
        self.start + self.buf.len() as u64
    }

    /// The places of the bytes of `range`, as far as they are wanted.
    pub fn part(&mut self, range: Range<u64>) -> &mut [u8] {
        let (start, end) = (self.start, self.end());
        let place = |at: u64| (at.clamp(start, end) - start) as usize;
        let range = place(range.start)..place(range.end).max(place(range.start));
        &mut self.buf[range]
    }

    /// Takes what is wanted of `bytes`, which are the object's from `at` on.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let skip = usize::try_from(self.start.saturating_sub(at)).unwrap_or(usize::MAX);
        let Some(bytes) = bytes.get(skip..) else { return };
        let at = at + skip as u64;
        let part = self.part(at..at + bytes.len() as u64);
        part.copy_from_slice(&bytes[..part.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_taken() {
        let object: Vec<u8> = (0..100).collect();
        for (start, len) in [(0, 100), (10, 20), (99, 1), (50, 0)] {
            for piece in [1, 7, 33, 100] {
                let mut buf = vec![255; len];
                let mut want = Want::new(start as u64, &mut buf);
                for (n, bytes) in object.chunks(piece).enumerate() {
                    want.put((n * piece) as u64, bytes);
                }
                assert_eq!(buf, object[start..start + len]);
            }
        }
    }

    #[test]
    fn a_part_is_cut_at_both_ends() {
        let mut buf = [0; 10];
        let mut want = Want::new(100, &mut buf);
        assert_eq!(want.part(0..1000).len(), 10);
        assert_eq!(want.part(0..100).len(), 0);
        assert_eq!(want.part(105..107).len(), 2);
        assert_eq!(want.part(110..u64::MAX).len(), 0);
        assert_eq!((want.start(), want.end()), (100, 110));
    }
}
