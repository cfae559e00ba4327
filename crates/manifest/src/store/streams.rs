//! What will be read next of a file, by what was read.
//!
//! A reader that goes on where it was is a stream: what follows is fetched ahead of it, a window of twice what it has read, up to a
//! limit, which moves on in small steps: the requests of one step are under way while those of the others come. Several streams may go through a file at once. A reader that leaps by the same distance each time has its
//! next leaps fetched. Whoever does neither, reads at random, and nothing is fetched for it.
//!
//! What a program reads at once at some place, the kernel asks for in several requests, which look like a stream. So one that
//! begins in the middle of a file has to be longer than what is read so, and than the place before it.
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
/// What is often read by one call, and comes in pieces.
const CALL_LEN_BYTES: u64 = 1 << 20;
/// The longest place of a reader that leaps; one that went on for longer was a stream.
const PLACE_MAX_BYTES: u64 = 4 << 20;
/// Steps in which a window moves. With two, a far store and a fast reader wait for each other in turn.
const STEPS: u64 = 4;
/// Its requests begin and end at multiples of such a part of it.
const UNITS: u64 = 16;
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
    /// Whether it has a large read.
    is_large: bool,
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
    /// How much was read at a place before the reader leapt to another one.
    place_len: u64,
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
        let Some(at) = known else { return self.leap(offset, end, size, limits) };
        let stream = &mut self.streams[at];
        stream.used = self.clock;
        stream.hits = stream.hits.saturating_add(1);
        stream.is_large |= len >= LARGE_READ_BYTES;
        stream.next = stream.next.max(end);
        let mut place_len = self.place_len;
        if self.leaps.is_at(stream) {
            if self.leaps.equal >= EQUAL_LEAPS {
                place_len = self.leaps.len;
            }
            self.leaps.len = self.leaps.len.max(stream.len().min(limits.window_max));
        }
        if stream.len() <= place_len || !stream.is_sure() {
            return Vec::new();
        }
        stream.extend(size, limits).into_iter().collect()
    }

    /// Takes back what could not be asked for: of `ranges`, which are what is left of what [`Streams::note`] told, all from `from`
    /// on. It will be told again.
    pub fn take_back(&mut self, ranges: &[Range<u64>], from: u64) {
        let Some(last) = ranges.last() else { return };
        match self.streams.iter_mut().find(|stream| stream.ahead == last.end) {
            Some(stream) => stream.ahead = from.min(last.end),
            None => self.leaps.ahead = self.leaps.ahead.saturating_sub(ranges.len() as u64),
        }
    }

    /// A read that continues nothing.
    fn leap(&mut self, offset: u64, end: u64, size: u64, limits: Limits) -> Vec<Range<u64>> {
        if let Some(place) = self.streams.iter().find(|stream| self.leaps.is_at(stream))
            && place.len() <= PLACE_MAX_BYTES
        {
            self.place_len = place.len().max(self.place_len / 2);
        }
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used).expect("there are some");
        let is_large = end - offset >= LARGE_READ_BYTES;
        *oldest = Stream { used: self.clock, start: offset, next: end, is_large, ..Stream::default() };
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
        // Each takes whole blocks, and one more where it crosses a boundary.
        let fetched_len = leaps.len.div_ceil(limits.block).saturating_add(1).saturating_mul(limits.block);
        let room = limits.window_max / fetched_len;
        let wanted = LEAPS_MAX.min(1 << (leaps.equal - EQUAL_LEAPS + 1).min(8)).min(room);
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

impl Leaps {
    /// Whether the stream is at the place of the last leap.
    fn is_at(&self, stream: &Stream) -> bool {
        self.len > 0 && stream.used > 0 && stream.start == self.last
    }
}

impl Stream {
    fn len(&self) -> u64 {
        self.next - self.start
    }

    /// Whether it is no part of what was read by one call.
    fn is_sure(&self) -> bool {
        match self.is_large {
            true => self.start == 0 || self.len() > CALL_LEN_BYTES,
            false => self.hits >= 2,
        }
    }

    fn goes_on_at(&self, offset: u64) -> bool {
        let slack = if self.hits >= SURE_HITS { SLACK_BYTES.min(self.window) } else { 0 };
        self.used > 0 && offset.abs_diff(self.next) <= slack
    }

    /// Moves the window, if the reader has come far enough into it.
    fn extend(&mut self, size: u64, limits: Limits) -> Option<Range<u64>> {
        let Limits { block, window_max } = limits;
        // What the reader fetches itself ends with a block.
        let from = self.ahead.max(self.next.checked_next_multiple_of(block).unwrap_or(size).min(size));
        // What one call reads somewhere in the middle says nothing of what comes after it.
        let read = if self.start == 0 { self.len() } else { self.len().saturating_sub(CALL_LEN_BYTES) };
        self.window = read.saturating_mul(2).max(2 * block).min(window_max);
        if from - self.next > self.window - (self.window / STEPS).max(block).min(self.window) {
            return None;
        }
        // A step ends where its requests do, so that none of them is short.
        let unit = (self.window / UNITS / block * block).max(block);
        let end = self.next.saturating_add(self.window);
        let to = if end < size { end / unit * unit } else { size };
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
            let steps_max = SIZE / (LIMITS.window_max / STEPS) + 16;
            assert!(ranges <= steps_max, "{ranges} steps of the window for reads of {step}");
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

    /// A program's read of a megabyte or four somewhere, which comes in pieces. What was read at once before is known.
    #[test]
    fn random_reads_that_come_in_pieces_have_next_to_nothing_fetched() {
        for (call_len, fetched_max) in [(256 * KIB, 0), (MIB, 0), (4 * MIB, 8 * MIB)] {
            for piece in [64 * KIB, 128 * KIB] {
                let (mut streams, mut rng) = (Streams::default(), Rng::new(call_len));
                let mut fetched = 0;
                for _ in 0..500 {
                    let start = 1 + rng.below(SIZE - call_len);
                    for at in (start..start + call_len).step_by(piece as usize) {
                        fetched += bytes(&streams.note(at, piece, SIZE, LIMITS));
                    }
                }
                assert!(fetched <= fetched_max, "{fetched} for 500 reads of {call_len}");
            }
        }
    }

    /// A reader that has leapt some times, and then stays.
    #[test]
    fn who_leaps_and_then_goes_on_is_a_stream() {
        for step in [4 * KIB, 128 * KIB, MIB] {
            let mut streams = Streams::default();
            for leap in 0..3 {
                streams.note(leap * 10 * MIB, step, SIZE, LIMITS);
            }
            let mut ahead = 0;
            for at in (30 * MIB..SIZE).step_by(step as usize) {
                for range in streams.note(at, step, SIZE, LIMITS) {
                    ahead = ahead.max(range.end);
                }
                assert!(at < 35 * MIB || ahead > at + step || ahead == SIZE, "{at} of reads of {step}");
            }
            assert_eq!(ahead, SIZE);
        }
    }

    /// Leaps are fetched within the same limits as what follows on a reader.
    #[test]
    fn leaps_keep_within_the_window() {
        for len in [4 * KIB, 2 * MIB, 20 * MIB] {
            let limits = Limits { block: MIB, window_max: 24 * MIB };
            let mut streams = Streams::default();
            let mut asked = Vec::new();
            for start in (0..SIZE).step_by(30 << 20) {
                for at in (start..start + len).step_by(MIB as usize) {
                    asked.extend(streams.note(at, len.min(MIB), SIZE, limits));
                }
                let leaps = asked.iter().filter(|range| range.start.is_multiple_of(30 << 20) && range.start > start);
                let waiting: u64 = leaps.map(|range| (range.end - range.start).next_multiple_of(MIB)).sum();
                assert!(waiting <= limits.window_max, "{waiting} for reads of {len}");
            }
            assert!(asked.contains(&(270 * MIB..270 * MIB + len)), "{asked:?}");
        }
    }

    /// What found no place is told once more, and the rest not again.
    #[test]
    fn what_could_not_be_asked_for_is_told_again() {
        let (mut streams, mut rng) = (Streams::default(), Rng::new(9));
        let mut asked = 0;
        for at in (0..SIZE).step_by(128 << 10) {
            let ranges = streams.note(at, 128 * KIB, SIZE, LIMITS);
            let Some(range) = ranges.first() else { continue };
            assert!(range.start >= asked, "once");
            let taken = rng.below((range.end - range.start) / MIB + 1) * MIB;
            assert!(at < 20 * MIB || range.start <= asked.max((at + MIB).next_multiple_of(MIB)), "no gap");
            asked = range.start + taken;
            if asked < range.end {
                streams.take_back(&ranges, asked);
            }
        }
        assert_eq!(asked, SIZE);
        let mut streams = Streams::default();
        for at in [0, 10, 20] {
            assert_eq!(streams.note(at * MIB, 4 * KIB, SIZE, LIMITS), []);
        }
        let at = |place: u64| place * MIB..place * MIB + 4 * KIB;
        let ranges = streams.note(30 * MIB, 4 * KIB, SIZE, LIMITS);
        assert_eq!(ranges, [at(40), at(50)]);
        streams.take_back(&ranges[1..], ranges[1].start);
        assert_eq!(streams.note(40 * MIB, 4 * KIB, SIZE, LIMITS), [at(50), at(60), at(70), at(80)]);
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
                let mut blocks = 0;
                let ranges = streams.note(offset, len, size, Limits { block, window_max });
                for range in &ranges {
                    prop_assert!(range.start < range.end && range.end <= size);
                    blocks += (range.end - 1) / block - range.start / block + 1;
                }
                // A window ends with a block.
                prop_assert!(blocks.saturating_sub(1).saturating_mul(block) <= window_max, "{ranges:?}");
            }
        }
    }
}
