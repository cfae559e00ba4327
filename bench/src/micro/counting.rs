//! An allocator that counts while it is asked to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ENABLED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counted.
pub struct Counting;

/// What happened meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Allocations and reallocations.
    pub calls: u64,
    /// Bytes allocated less bytes freed, as asked for.
    pub live: i64,
}

/// Runs `work` and counts the allocations of all threads meanwhile. One call at a time.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Counts) {
    CALLS.store(0, Relaxed);
    LIVE.store(0, Relaxed);
    ENABLED.store(true, Relaxed);
    let done = work();
    ENABLED.store(false, Relaxed);
    let counts = Counts { calls: CALLS.load(Relaxed), live: LIVE.load(Relaxed) };
    (done, counts)
}

fn note(calls: u64, bytes: i64) {
    if ENABLED.load(Relaxed) {
        CALLS.fetch_add(calls, Relaxed);
        LIVE.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the arguments unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(1, new_size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, new_size) }
    }
}
