//! A builder takes as much memory as it was given, and about 1 MiB for buffers, however many entries there are.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use adit_index::{Builder, Segment};
use support::{Item, Place};

static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, with the most that was in use at once.
struct Counting;

fn note(bytes: i64) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call goes to the system's allocator with the arguments unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that building and asking takes at once, in bytes.
fn peak(entries: u32, limit: u64) -> i64 {
    let place = Place::new();
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
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
    PEAK.load(Relaxed) - before
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
