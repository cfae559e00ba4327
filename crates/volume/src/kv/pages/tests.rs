//! Commits that find no space on the host.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::media::BlockFile;
use adit_testkit::crash::{CrashWorld, Mode};
use parking_lot::Mutex;

use super::*;
use crate::format::container::{DataLocation, Durability};

const SEGMENT_LEN: u64 = 128 << 10;

/// A file on a host that can be full.
struct Host {
    file: Box<dyn BlockFile>,
    full: AtomicBool,
    /// Offsets and lengths.
    punched: Mutex<Vec<(u64, u64)>>,
}

impl Host {
    fn if_free(&self) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl BlockFile for Host {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.if_free()?;
        self.file.write_at(offset, bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.if_free()?;
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.punched.lock().push((offset, len));
        self.file.punch(offset, len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

/// An empty space of a new volume, of which the log has the second segment.
fn fresh() -> (Arc<Host>, Arc<Container>, Pages) {
    let file = CrashWorld::new(Mode::Kill).dir("host").block_file(Path::new("volume")).unwrap();
    let host = Arc::new(Host { file: Box::new(file), full: AtomicBool::new(false), punched: Mutex::default() });
    let superblock = Superblock {
        features: 0,
        generation: 1,
        epoch: 0,
        uuid: [1; 16],
        secret: [2; 16],
        segment_len: SEGMENT_LEN as u32,
        capacity: 4 << 20,
        durability: Durability::Fsync,
        data: DataLocation::Inline,
        data_path: Vec::new(),
        log_segment: 1,
        log_seq: 1,
        kv_len: 0,
        kv_segments: Vec::new(),
        kv_head: Vec::new(),
    };
    Container::init(&*host, "volume", &superblock).unwrap();
    let container = Arc::new(Container::open(host.clone(), None, "volume", false, 4).unwrap());
    container.space().claim(1, false).unwrap();
    let pages = Pages::open(container.clone()).unwrap();
    pages.go_live();
    pages.set_len(40 * PAGE);
    (host, container, pages)
}

fn page(fill: u8) -> [u8; PAGE_LEN] {
    [fill; PAGE_LEN]
}

/// redb may write a page early, and go on if that failed.
#[test]
fn no_superblock_names_a_segment_that_the_file_had_no_room_for() {
    let (host, container, pages) = fresh();
    host.full.store(true, Ordering::Relaxed);
    assert_eq!(pages.write(35 * PAGE, &page(1)).unwrap_err().kind(), io::ErrorKind::StorageFull);
    host.full.store(false, Ordering::Relaxed);
    pages.write(0, &page(2)).unwrap();
    pages.sync().unwrap();
    let named = container.superblock().kv_segments;
    assert!(named.iter().all(|run| u64::from(run.start + run.count) * SEGMENT_LEN <= host.len().unwrap()), "{named:?}");
}

#[test]
fn the_space_of_a_commit_that_found_too_little_is_given_back() {
    let (host, container, pages) = fresh();
    pages.write(0, &page(9)).unwrap();
    pages.write(PAGE, &page(1)).unwrap();
    pages.sync().unwrap();
    let segment = container.segment_offset(container.superblock().kv_segments[0].start);
    for n in [2, 3, 5] {
        pages.write(n * PAGE, &page(n as u8)).unwrap();
    }
    host.full.store(true, Ordering::Relaxed);
    pages.write(6 * PAGE, &page(6)).unwrap_err();
    pages.go_back();
    // The first block of a segment is that of the checksums, and the first page is not in the file.
    assert_eq!(*host.punched.lock(), [(segment + 3 * PAGE, 2 * PAGE), (segment + 6 * PAGE, 2 * PAGE)]);
    let read = |n: u64| {
        let mut found = page(255);
        pages.read(n * PAGE, &mut found).unwrap();
        found
    };
    assert!(read(1) == page(1) && read(2) == page(0));
}
