//! What a live index says that it takes is what it takes: a mount's memory is shared out by that.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::types::Kind;
use adit_index::live::{Change, Facts, Lies, LiveIndex, Making};
use adit_testkit::{PeakAllocator, peak_bytes};

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

fn file(key: u64) -> Facts {
    Facts { key, kind: Kind::File, perm: 0o644, size: 0, mtime_ns: 0, is_original: false }
}

/// One test, for the allocator counts what all threads do.
#[test]
fn differences_take_what_is_said_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let making = Making { lies: Lies::OnDisk(dir.path().to_owned()), memory_bytes: 4 << 20 };
    let mut builder = making.builder().unwrap();
    builder.add(&Facts::directory(1).entry(b"")).unwrap();
    let base = Arc::new(making.finish(builder, &mut |_| ControlFlow::Continue(())).unwrap());
    for (count, name_len) in [(20_000_u64, 7), (150_000, 7), (60_000, 200)] {
        let mut said = 0;
        let taken = peak_bytes(|| {
            let mut index = LiveIndex::new(base.clone());
            for n in 0..count / 1000 {
                let made = |n: u64| Change::Entry {
                    dir: 1,
                    name: format!("{n:0name_len$}").into_bytes().into(),
                    found: Some(file(2 + n)),
                };
                let batch: Vec<Change> = (n * 1000..(n + 1) * 1000).map(made).collect();
                index.apply(&batch).unwrap();
            }
            said = index.changes_bytes() as i64;
        });
        println!("{count} names of {name_len} bytes: {taken} bytes, {} each; said {said}", taken / count as i64);
        assert!(said >= taken / 10 * 9, "{count} names of {name_len} bytes: {taken} bytes, and {said} are said");
    }
}
