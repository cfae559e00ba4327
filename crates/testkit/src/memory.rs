//! The most memory that is in use at once, for tests that hold it against a limit.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, which notes the most that was in use at once. A test makes it its `#[global_allocator]`, and asks
/// [`peak_bytes`].
pub struct PeakAllocator;

/// Runs `work`, and returns the most that all threads had allocated meanwhile, over what they had before: in bytes as asked for.
///
/// It is right for one call at a time, in a process whose allocator is [`PeakAllocator`].
pub fn peak_bytes(work: impl FnOnce()) -> i64 {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

fn note(bytes: i64) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call goes to the system's allocator with the arguments unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for PeakAllocator {
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
