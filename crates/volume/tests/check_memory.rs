//! The check of a tree takes as much memory as it was given, however many files there are.

#[path = "support/tree.rs"]
mod support;

use adit_core::store::Store;
use adit_core::types::Ino;
use adit_testkit::{PeakAllocator, peak_bytes};

use support::{World, name, new};

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// A world with so many directories of ten files each.
fn filled(directories: usize) -> World {
    let world = World::new();
    let store = world.main();
    for n in 0..directories {
        let dir = store.mkdir(Ino::ROOT, name(&format!("directory {n}")), &new(0o755)).unwrap().ino;
        for n in 0..10 {
            store.create(dir, name(&format!("file {n}")), &new(0o644)).unwrap();
        }
    }
    drop(store);
    world
}

/// The most memory that a check takes at once, in bytes, and how often it went through the entries.
fn peak(world: &World, memory_bytes: usize) -> (i64, u64) {
    let mut passes = 0;
    let peak = peak_bytes(|| {
        let checked = world.tree.check(&*world.base, memory_bytes).unwrap();
        assert_eq!((checked.findings.len(), checked.omitted), (0, 0));
        passes = checked.passes.entries;
    });
    (peak, passes)
}

/// One test, for the allocator counts what all threads do.
#[test]
fn memory_does_not_grow_with_the_number_of_files() {
    const MEMORY: usize = 128 << 10;
    let (small, large) = (filled(100), filled(3000));
    let (of_small, of_large) = (peak(&small, MEMORY), peak(&large, MEMORY));
    assert!(of_small.1 == 1 && of_large.1 > 4, "{of_small:?} {of_large:?}");
    // What is read at once of each space comes to it: the same for both.
    let most = (MEMORY + (1 << 20)) as i64;
    assert!(of_small.0 <= most && of_large.0 <= most, "{of_small:?} {of_large:?}");
    // With more memory it takes more, and one pass.
    let ample = peak(&large, 64 << 20);
    assert!(ample.1 == 1 && ample.0 > of_large.0, "{ample:?} {of_large:?}");
}
