//! What a walk of a store keeps does not grow with what one directory has, where listings can go on from a place.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use adit_core::error::{ErrorKind, Result};
use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, Timestamp};
use adit_index::scan::{self, Event, ScanOptions, StoreRoot};
use adit_testkit::{PeakAllocator, peak_bytes};

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

const ENTRIES: u64 = 300_000;
/// As long as those of entry number 7, which is `entry number 00000007`.
const NAME_LEN: i64 = 21;

/// One directory, of which nothing is in memory: what is in it has the inode numbers from 2 on.
struct Wide {
    kind: Kind,
    caps: Capabilities,
    /// Inodes that are known.
    known: AtomicI64,
}

impl Wide {
    fn new(kind: Kind, stable_cookies: bool, shared: bool) -> Wide {
        let caps = Capabilities { stable_cookies, shared, ..Capabilities::plain("wide") };
        Wide { kind, caps, known: AtomicI64::new(0) }
    }

    fn attr(&self, ino: Ino) -> Attr {
        let kind = if ino == Ino::ROOT { Kind::Directory } else { self.kind };
        let time = Timestamp { secs: 1, nanos: 0 };
        Attr {
            ino,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    }
}

fn refused<T>() -> Result<T> {
    Err(ErrorKind::ReadOnly.into())
}

impl Store for Wide {
    fn capabilities(&self) -> Capabilities {
        self.caps
    }

    fn lookup(&self, _: Ino, _: FileName<'_>) -> Result<Attr> {
        refused()
    }

    fn forget(&self, _: Ino) {
        self.known.fetch_sub(1, Relaxed);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.attr(ino))
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        assert!(start == 0 || self.caps.stable_cookies);
        let last = if dir == Ino::ROOT { ENTRIES } else { 0 };
        for number in start + 1..=last {
            let name = format!("entry number {number:08}");
            let name = FileName::new(name.as_bytes()).unwrap();
            // The root is number 1.
            if sink(DirEntry { cookie: number, ino: Ino(number + 1), kind: self.kind, name }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn lookup_listed(&self, _: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        self.known.fetch_add(entries.len() as i64, Relaxed);
        entries.iter().map(|entry| Ok(self.attr(entry.ino))).collect()
    }

    fn setattr(&self, _: Ino, _: &SetAttr) -> Result<Attr> {
        refused()
    }

    fn create(&self, _: Ino, _: FileName<'_>, _: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        refused()
    }

    fn mkdir(&self, _: Ino, _: FileName<'_>, _: &NewNode) -> Result<Attr> {
        refused()
    }

    fn symlink(&self, _: Ino, _: FileName<'_>, _: &[u8], _: Caller) -> Result<Attr> {
        refused()
    }

    fn readlink(&self, _: Ino) -> Result<Vec<u8>> {
        refused()
    }

    fn unlink(&self, _: Ino, _: FileName<'_>) -> Result<()> {
        refused()
    }

    fn rmdir(&self, _: Ino, _: FileName<'_>) -> Result<()> {
        refused()
    }

    fn rename(&self, _: Ino, _: FileName<'_>, _: Ino, _: FileName<'_>, _: RenameFlags) -> Result<()> {
        refused()
    }

    fn open(&self, _: Ino, _: Access) -> Result<Arc<dyn StoreFile>> {
        refused()
    }

    fn sync_dir(&self, _: Ino) -> Result<()> {
        refused()
    }

    fn sync_all(&self) -> Result<()> {
        refused()
    }

    fn statfs(&self) -> Result<StatFs> {
        refused()
    }
}

/// The most memory that a walk takes at once, in bytes.
fn peak(store: &Wide) -> i64 {
    let options = ScanOptions { hash: false, one_file_system: false, threads: 1, before: None };
    let root = StoreRoot { store, root: store.attr(Ino::ROOT) };
    let mut entries = 0;
    let peak = peak_bytes(|| {
        scan::store(&root, &options, &mut |event| {
            let Event::Entry(entry, _) = event else { panic!("nothing else is there") };
            entries += u64::from(!entry.path.is_empty());
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    });
    assert_eq!((entries, store.known.load(Relaxed)), (ENTRIES, 0), "all of it, once, and nothing stays known");
    println!("{:?}, stable {}, shared {}: {peak} bytes", store.kind, store.caps.stable_cookies, store.caps.shared);
    peak
}

/// One test, for the allocator counts what all threads do.
#[test]
fn a_wide_directory_takes_no_more_than_is_said_of_it() {
    // In pages. Of directories it is noted which were seen, for one that is in itself would have no end.
    assert!(peak(&Wide::new(Kind::File, true, false)) < 3 << 20);
    assert!(peak(&Wide::new(Kind::Directory, true, false)) < (3 << 20) + 64 * ENTRIES as i64);
    // As a whole: the name of each, and 32 bytes. A list that grows is there twice for a moment, and may be half empty then.
    for (stable, shared) in [(false, false), (true, true)] {
        let peak = peak(&Wide::new(Kind::File, stable, shared));
        assert!(peak < (3 << 20) + 3 * (NAME_LEN + 32) * ENTRIES as i64, "{peak}");
    }
    // Each directory waits with its path and attributes, and is in use until it was listed.
    let peak = peak(&Wide::new(Kind::Directory, false, false));
    assert!(peak < (3 << 20) + 600 * ENTRIES as i64, "{peak}");
}
