//! What will be read next of a file, by what was read.
//!
//! A reader that goes on where it was is a stream: what follows is fetched ahead of it, a window that doubles while the reader goes
//! on, up to a limit. Several streams may go through a file at once. A reader that leaps by the same distance each time has its
//! next leaps fetched. Whoever does neither, reads at random, and nothing is fetched for it.
//!
//! Only numbers: nothing is fetched here.

use std::ops::Range;

/// Streams that are told apart in a file.
const STREAMS: usize = 4;
/// Requests of a stream come in another order than they were made, by so much, once it is sure that it is one.
const SLACK_BYTES: u64 = 1 << 20;
/// Reads in a row that make a stream sure.
const SURE_HITS: u32 = 3;
/// A read of so many bytes tells that somebody means to read more: the kernel asks for so much only then.
const LARGE_READ_BYTES: u64 = 64 << 10;
/// Equal leaps that make a pattern.
const EQUAL_LEAPS: u32 = 2;
/// Most leaps that are fetched ahead.
const LEAPS_MAX: u64 = 16;

/// How far ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The unit of fetching in bytes.
    pub block: u64,
    /// Longest window in bytes. None is fetched ahead with 0.
    pub window_max: u64,
}

/// A reader that goes on where it was.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// When it last went on; 0 for none.
    used: u64,
    start: u64,
    /// Where it goes on.
    next: u64,
    hits: u32,
    window: u64,
    /// Fetched ahead up to here.
    ahead: u64,
}

/// Leaps of a reader.
#[derive(Clone, Copy, Default)]
struct Leaps {
    /// Where the last one ended, and how long it was; none of length 0.
    last: u64,
    distance: i64,
    equal: u32,
    /// How much is read at each.
    len: u64,
    /// How many of those to come are fetched ahead.
    ahead: u64,
}

/// The readers of a file.
#[derive(Clone, Default)]
pub(super) struct Streams {
    clock: u64,
    streams: [Stream; STREAMS],
    leaps: Leaps,
}

impl Streams {
    /// Notes a read of `len` bytes of a file of `size`, and tells what to fetch ahead because of it, in that order.
    pub fn note(&mut self, offset: u64, len: u64, size: u64, limits: Limits) -> Vec<Range<u64>> {
        let end = offset.saturating_add(len).min(size);
        if limits.window_max == 0 || offset >= end {
            return Vec::new();
        }
        self.clock += 1;
        let known = self.streams.iter().position(|stream| stream.goes_on_at(offset));
        let Some(at) = known else { return self.leap(offset, end, size) };
        let stream = &mut self.streams[at];
        stream.used = self.clock;
        stream.hits = stream.hits.saturating_add(1);
        stream.next = stream.next.max(end);
        let is_part_of_leap = self.leaps.equal >= EQUAL_LEAPS && stream.start == self.leaps.last;
        if stream.start == self.leaps.last {
            self.leaps.len = self.leaps.len.max(stream.next - stream.start);
        }
        if is_part_of_leap || stream.hits < 2 && len < LARGE_READ_BYTES {
            return Vec::new();
        }
        stream.extend(size, limits).into_iter().collect()
    }

    /// A read that continues nothing.
    fn leap(&mut self, offset: u64, end: u64, size: u64) -> Vec<Range<u64>> {
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used).expect("there are some");
        *oldest = Stream { used: self.clock, start: offset, next: end, ..Stream::default() };
        let leaps = &mut self.leaps;
        // No file is longer than what an `i64` holds.
        let distance = offset.cast_signed().wrapping_sub(leaps.last.cast_signed());
        if leaps.len > 0 && distance == leaps.distance && distance != 0 {
            leaps.equal = leaps.equal.saturating_add(1);
            leaps.len = leaps.len.max(end - offset);
            leaps.ahead = leaps.ahead.saturating_sub(1);
        } else {
            let distance = if leaps.len > 0 { distance } else { 0 };
            *leaps = Leaps { distance, len: end - offset, ..Leaps::default() };
        }
        leaps.last = offset;
        if leaps.equal < EQUAL_LEAPS {
            return Vec::new();
        }
        let wanted = LEAPS_MAX.min(1 << (leaps.equal - EQUAL_LEAPS + 1).min(8));
        let first = leaps.ahead + 1;
        leaps.ahead = leaps.ahead.max(wanted);
        (first..=wanted)
            .filter_map(|count| {
                let start = distance.checked_mul(count.cast_signed())?.checked_add(offset.cast_signed())?;
                let start = u64::try_from(start).ok().filter(|start| *start < size)?;
                Some(start..start.saturating_add(leaps.len).min(size))
            })
            .collect()
    }
}

impl Stream {
    fn goes_on_at(&self, offset: u64) -> bool {
        let slack = if self.hits >= SURE_HITS { SLACK_BYTES.min(self.window) } else { 0 };
        self.used > 0 && offset.abs_diff(self.next) <= slack
    }

    /// Moves the window, if the reader has come far enough into it.
    fn extend(&mut self, size: u64, limits: Limits) -> Option<Range<u64>> {
        let Limits { block, window_max } = limits;
        // What the reader fetches itself ends with a block.
        let from = self.ahead.max(self.next.checked_next_multiple_of(block).unwrap_or(size).min(size));
        if self.window > 0 && from - self.next > self.window / 2 {
            return None;
        }
        self.window = (self.window * 2).max(2 * block).min(window_max);
        let to = self.next.saturating_add(self.window).checked_next_multiple_of(block).unwrap_or(size).min(size);
        self.ahead = from.max(to);
        (from < to).then_some(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_testkit::Rng;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;
    const LIMITS: Limits = Limits { block: MIB, window_max: 16 * MIB };
    const SIZE: u64 = 300 * MIB;

    fn bytes(ranges: &[Range<u64>]) -> u64 {
        ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Each block once, in order, a window ahead, and nothing behind the end.
    #[test]
    fn a_sequential_reader_has_each_block_fetched_once() {
        for step in [4 * KIB, 128 * KIB, MIB, 3 * MIB] {
            let mut streams = Streams::default();
            let (mut at, mut ahead, mut ranges) = (0, 0, 0);
            while at < SIZE {
                for range in streams.note(at, step, SIZE, LIMITS) {
                    assert!(range.start >= ahead && range.start < range.end && range.end <= SIZE);
                    assert!(range.end <= at + step + LIMITS.window_max + MIB);
                    assert!(ahead == 0 || range.start <= ahead.max((at + step).next_multiple_of(MIB)), "no gap");
                    (ahead, ranges) = (range.end, ranges + 1);
                }
                assert!(at < 20 * MIB || ahead > at + step || ahead == SIZE, "the reader has not overtaken it");
                at += step;
            }
            assert_eq!(ahead, SIZE);
            assert!(ranges < 60, "{ranges} steps of the window for reads of {step}");
        }
    }

    #[test]
    fn one_read_and_a_small_one_after_it_fetch_nothing() {
        for first in [0, 17 * MIB + 5] {
            let mut streams = Streams::default();
            assert_eq!(streams.note(first, 4 * KIB, SIZE, LIMITS), []);
            assert_eq!(streams.note(first + 4 * KIB, 4 * KIB, SIZE, LIMITS), []);
            assert_ne!(streams.note(first + 8 * KIB, 4 * KIB, SIZE, LIMITS), []);
        }
    }

    #[test]
    fn a_random_reader_has_next_to_nothing_fetched() {
        let (mut streams, mut rng) = (Streams::default(), Rng::new(3));
        let fetched: u64 = (0..5000).map(|_| bytes(&streams.note(rng.below(SIZE), 4 * KIB, SIZE, LIMITS))).sum();
        assert!(fetched <= 4 * MIB, "{fetched}");
    }

    /// Random reads beside a stream end neither it nor its window.
    #[test]
    fn a_stream_goes_on_beside_random_reads() {
        let (mut streams, mut rng) = (Streams::default(), Rng::new(5));
        let mut ahead = 0;
        for at in (0..SIZE).step_by(128 << 10) {
            for range in streams.note(at, 128 * KIB, SIZE, LIMITS) {
                ahead = ahead.max(range.end);
            }
            streams.note(rng.below(SIZE), 4 * KIB, SIZE, LIMITS);
        }
        assert_eq!(ahead, SIZE);
    }

    #[test]
    fn readers_of_several_places_each_have_a_window() {
        let mut streams = Streams::default();
        let starts = [0, 100 * MIB, 200 * MIB];
        let mut ahead = [0; 3];
        for step in 0..100 {
            for (n, start) in starts.iter().enumerate() {
                for range in streams.note(start + step * 128 * KIB, 128 * KIB, SIZE, LIMITS) {
                    ahead[n] = range.end;
                }
            }
        }
        for (start, ahead) in starts.iter().zip(ahead) {
            assert!(ahead >= start + 20 * MIB, "{ahead}");
        }
    }

    /// The kernel asks for several pieces at once, and they come as they like.
    #[test]
    fn pieces_may_come_in_another_order() {
        let mut streams = Streams::default();
        let mut pieces: Vec<u64> = (0..SIZE).step_by(128 << 10).collect();
        let mut rng = Rng::new(7);
        for group in pieces[8..].chunks_mut(4) {
            for last in (1..group.len()).rev() {
                group.swap(last, rng.below(last as u64 + 1) as usize);
            }
        }
        let (mut fetched, mut ahead) = (0, 0);
        for at in pieces {
            for range in streams.note(at, 128 * KIB, SIZE, LIMITS) {
                fetched += range.end - range.start;
                ahead = ahead.max(range.end);
            }
        }
        assert!(ahead == SIZE && fetched <= SIZE + SIZE / 20, "{fetched}");
    }

    #[test]
    fn equal_leaps_are_fetched_ahead_in_both_directions() {
        for distance in [10 * MIB.cast_signed(), -10 * MIB.cast_signed()] {
            let mut streams = Streams::default();
            let mut at = if distance > 0 { 0 } else { SIZE - 5 * KIB };
            let (mut ahead, mut hits, mut reads) = (Vec::new(), 0, 0);
            while let Some(next) = at.checked_add_signed(distance).filter(|next| *next < SIZE) {
                hits += u64::from(ahead.contains(&(at..at + 4 * KIB)));
                reads += 1;
                for range in streams.note(at, 4 * KIB, SIZE, LIMITS) {
                    assert!(!ahead.contains(&range), "once");
                    ahead.push(range);
                }
                at = next;
            }
            assert!(hits >= reads - 4, "{hits} of {reads}");
        }
    }

    /// A reader that takes several requests at each place.
    #[test]
    fn leaps_to_longer_places_are_fetched_as_far_as_they_are_read() {
        let mut streams = Streams::default();
        let mut fetched = Vec::new();
        for start in (0..SIZE).step_by(20 << 20) {
            for at in [start, start + MIB] {
                fetched.extend(streams.note(at, MIB, SIZE, LIMITS));
            }
        }
        let last = fetched.last().unwrap();
        assert_eq!(last.end - last.start, 2 * MIB);
        assert!(fetched.contains(&(200 * MIB..202 * MIB)), "{fetched:?}");
    }

    proptest! {
        #[test]
        fn what_is_fetched_lies_in_the_file(
            reads in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..200),
            size in any::<u64>().prop_map(|size| size >> 1),
            block in (9_u32..27).prop_map(|bits| 1_u64 << bits),
            window_max in any::<u64>().prop_map(|max| max >> 20),
            small in any::<bool>(),
        ) {
            let mut streams = Streams::default();
            for (offset, len) in reads {
                let (offset, len) = if small { (offset % 4096 * 1000, len % 5000) } else { (offset, len) };
                for range in streams.note(offset, len, size, Limits { block, window_max }) {
                    prop_assert!(range.start < range.end && range.end <= size);
                }
            }
        }
    }
}
