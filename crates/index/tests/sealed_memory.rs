//! An encrypted index is made in the memory that the builder was given, and of the segment in it some 16 bytes and the name of each node. With a scale of
//! 50 there are ten million.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

use adit_index::layout::Section;
use adit_index::sealed::{self, SealKey};
use adit_index::{Builder, NodeId};
use adit_testkit::{PeakAllocator, peak_bytes, scaled};
use support::{Item, Place};
use zeroize::Zeroizing;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// What the builder may take, in bytes.
const LIMIT: i64 = 4 << 20;

fn key() -> SealKey {
    SealKey::new(Zeroizing::new([7; 32]))
}

fn stamp(n: usize) -> [u8; 8] {
    (n as u64 + 1).to_le_bytes()
}

/// What the files in memory of this process hold now, in bytes. A place where nothing was written takes nothing.
fn in_memory() -> u64 {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_memory = |to: &std::path::Path| to.to_string_lossy().starts_with("/memfd:");
    let held = files.filter(|file| fs::read_link(file.path()).is_ok_and(|to| is_memory(&to)));
    // One may be open twice.
    let each: BTreeMap<u64, u64> =
        held.filter_map(|file| fs::metadata(file.path()).ok()).map(|meta| (meta.ino(), meta.blocks())).collect();
    each.values().map(|blocks| blocks * 512).sum()
}

/// One test, for the allocator counts what all threads do.
#[test]
fn an_encrypted_index_is_made_in_little_memory() {
    let (place, count) = (Place::new(), scaled(200_000));
    let mut held = 0;
    let peak = peak_bytes(|| {
        let mut builder = Builder::new(place.dir.path(), LIMIT as u64);
        builder.seal_scratch().unwrap();
        builder.set_tables(true);
        for n in 0..count {
            let (shot, version) = (n / 5000, n / 200 % 25);
            let path = format!("shots/shot {shot:04}/version {version:03}/frame.{n:08}.exr");
            let mut item = Item::file(path.as_bytes());
            (item.hash, item.stamp) = (Some([n as u8; 16]), Some(stamp(n)));
            builder.add(&item.entry()).unwrap();
        }
        let mut report = |_| {
            held = held.max(in_memory());
            ControlFlow::Continue(())
        };
        builder.finish_sealed(&key(), &place.out(), &mut report, &mut || Ok(())).unwrap();
    });
    let segment = sealed::open(&place.out(), &key(), &mut |_| ControlFlow::Continue(())).unwrap();
    let len_of = |section| segment.sections().find(|(of, _)| *of == section).map_or(0, |(_, len)| len);
    let (nodes, names) = (u64::from(segment.len()), len_of(Section::Names));
    println!(
        "{nodes} nodes: {peak} bytes of the heap, {held} of files in memory, of which names {names}; the index has {}",
        segment.file_len()
    );
    // The signatures of a stripe of names are made in memory.
    let stripe = (len_of(Section::NameSignatures) as i64).min(10 << 20);
    assert!(peak <= LIMIT + stripe + (5 << 19), "{peak}");
    assert!(held > names && held <= 16 * nodes + names + (1 << 17), "{held}");
    // A stamp takes eight bytes of a file, and nothing beside them.
    assert_eq!((len_of(Section::Stamps), len_of(Section::Extra)), (8 * nodes, 0));
    let last = segment.len() - 1;
    assert_eq!(segment.stamp(NodeId(last)).unwrap(), Some(stamp(count - 1)));
}
