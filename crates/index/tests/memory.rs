//! A builder takes as much memory as it was given, and about 1 MiB for buffers, however many entries there are.

mod support;

use std::ops::ControlFlow;

use adit_index::{Builder, Segment};
use adit_testkit::{PeakAllocator, peak_bytes};
use support::{Item, Place};

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// The most memory that building and asking takes at once, in bytes.
fn peak(entries: u32, limit: u64) -> i64 {
    let place = Place::new();
    peak_bytes(|| build(&place, entries, limit))
}

fn build(place: &Place, entries: u32, limit: u64) {
    let mut builder = Builder::new(place.dir.path(), limit);
    for n in 0..entries {
        // Neither in order, nor in levels of one size.
        let mixed = n.wrapping_mul(2_654_435_761);
        let mut item = Item::file(format!("a folder/{}/{}/{mixed:010}", mixed % 100, mixed % 7).as_bytes());
        item.hash = Some([n as u8; 16]);
        if n % 100 == 0 {
            item.extra = vec![1; 200];
        }
        builder.add(&item.entry()).unwrap();
    }
    builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
    let segment = Segment::open(&place.out()).unwrap();
    segment.verify(&mut |_| ControlFlow::Continue(())).unwrap();
}

/// One test, for the allocator counts what all threads do.
#[test]
fn memory_does_not_grow_with_the_number_of_entries() {
    const LIMIT: i64 = 4 << 20;
    for entries in [30_000, 200_000] {
        let peak = peak(entries, LIMIT as u64);
        println!("{entries} entries: {peak} bytes");
        assert!(peak <= LIMIT + (3 << 19), "{entries} entries: {peak} bytes");
    }
    // Nothing is taken that is not needed.
    let few = peak(10, 1 << 30);
    assert!(few < 2 << 20, "{few}");
}
