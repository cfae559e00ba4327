//! Changes of files whose content was not compared yet: a few bytes cost a block of the cache, and what turns out to be wrong later is an
//! error and never content.

mod overlay;

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};

use adit_core::ErrorKind;
use adit_core::overlay::{Overlay, STATE_XATTR};
use adit_core::store::{Store, StoreFile};
use adit_core::types::{Access, AllocateMode, FileName, Ino, XattrName};
use adit_index::Segment;
use adit_manifest::cache::{Cache, CacheOptions, Fetch, ObjectId};
use adit_manifest::format::{
    Body, Content, ContentHash, Dialect, Entry, EntryPath, File, Format, Header, Manifest, PathStyle,
};
use adit_manifest::store::{BuildPlace, ManifestStore, StoreOptions, build_segment};
use adit_media::HostDirectory;
use adit_volume::VolumeStore;
use overlay::identity;
use overlay::volume::World;

/// Block of the overlay, and of the cache.
const BLOCK: u64 = 4096;
const CACHED: u64 = 4 * BLOCK;
const LEN: u64 = 600 * CACHED + 5;

/// One object, some bytes of which are wrong.
#[derive(Default)]
struct Object {
    content: Vec<u8>,
    wrong: Mutex<Vec<usize>>,
    fetched: Mutex<u64>,
}

impl Fetch for Object {
    fn fetch(
        &self,
        _: &ObjectId,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> adit_core::Result<()>,
    ) -> adit_core::Result<()> {
        let mut bytes = self.content[range.start as usize..range.end as usize].to_vec();
        let wrong = self.wrong.lock().unwrap().clone();
        for at in wrong.into_iter().filter(|at| range.contains(&(*at as u64))) {
            bytes[at - range.start as usize] ^= 1;
        }
        *self.fetched.lock().unwrap() += range.end - range.start;
        sink(&bytes)
    }
}

struct Bench {
    dir: tempfile::TempDir,
    object: Arc<Object>,
    upper: World,
}

impl Bench {
    fn new() -> Bench {
        let content = (0..LEN).map(|at| (at / 3) as u8).collect();
        let (dir, object) = (tempfile::tempdir().unwrap(), Arc::new(Object { content, ..Object::default() }));
        let mut manifest = Manifest::new(Header::snapshot(Format::V2025(Dialect::G)));
        let content = Content::Whole(ContentHash::of(&object.content));
        let file = File { size_bytes: LEN, mtime_micros: 1, runnable: false, content };
        let path = EntryPath::parse(b"f", PathStyle::Relative).unwrap().into_owned();
        manifest.insert(Entry { path, body: Body::File(file) }).unwrap();
        let mut text = Vec::new();
        manifest.encode(manifest.header().format, &mut text).unwrap();
        let out = dir.path().join("segment");
        let place = BuildPlace { out: &out, scratch_dir: dir.path(), memory_limit_bytes: 0 };
        build_segment(&text[..], place, &mut |_| ControlFlow::Continue(())).unwrap();
        std::fs::create_dir(dir.path().join("cache")).unwrap();
        Bench { dir, object, upper: World::new() }
    }

    fn lower(&self) -> Arc<dyn Store> {
        let host = HostDirectory::open(&self.dir.path().join("cache")).unwrap();
        let retry_after = std::time::Duration::ZERO;
        let options = CacheOptions {
            block_len: CACHED as u32,
            workers: 0,
            verify_first_bytes: 0,
            retry_after,
            ..CacheOptions::default()
        };
        let cache = Cache::open(Arc::new(host), options).unwrap();
        let options = StoreOptions { read_ahead_bytes: 0, ..StoreOptions::owned_by(0, 0) };
        let segment = Segment::open(&self.dir.path().join("segment")).unwrap();
        Arc::new(ManifestStore::new(segment, Arc::new(cache), self.object.clone(), options).unwrap())
    }

    fn open(&self) -> Opened {
        let upper = Arc::new(self.upper.main());
        Opened::new(Overlay::open(self.lower(), upper.clone(), &identity("the lower")).unwrap(), upper)
    }

    /// As whoever keeps what it reads.
    fn open_verified(&self) -> Opened {
        let upper = Arc::new(self.upper.main());
        Opened::new(Overlay::open_verified(self.lower(), upper.clone(), &identity("the lower")).unwrap(), upper)
    }

    /// Bytes that were fetched since the last call.
    fn fetched(&self) -> u64 {
        std::mem::take(&mut *self.object.fetched.lock().unwrap())
    }

    fn turn(&self, wrong: &[usize]) {
        *self.object.wrong.lock().unwrap() = wrong.to_vec();
    }
}

struct Opened {
    overlay: Overlay,
    upper: Arc<VolumeStore>,
    ino: Ino,
    file: Arc<dyn StoreFile>,
}

impl Opened {
    fn new(overlay: Overlay, upper: Arc<VolumeStore>) -> Opened {
        let ino = overlay.lookup(Ino::ROOT, FileName::new(b"f").unwrap()).unwrap().ino;
        let file = overlay.open(ino, Access::Write).unwrap();
        Opened { overlay, upper, ino, file }
    }

    fn read(&self, at: u64, len: u64) -> adit_core::Result<Vec<u8>> {
        let mut bytes = vec![0xee; len as usize];
        let read = self.file.read_at(at, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_at(&[(at, bytes)]).unwrap();
    }

    /// Whether something is noted in the upper.
    fn is_noted(&self) -> bool {
        let name = |name| FileName::new(name).unwrap();
        let tree = self.upper.lookup(Ino::ROOT, name(b"tree")).unwrap().ino;
        let file = self.upper.lookup(tree, name(b"f")).unwrap().ino;
        let noted = self.upper.xattr(file, XattrName::new(b"trusted.adit.overlay.unproved").unwrap()).is_ok();
        [file, tree].into_iter().for_each(|ino| self.upper.forget(ino));
        noted
    }

    fn state(&self) -> String {
        let value = self.overlay.xattr(self.ino, XattrName::new(STATE_XATTR.as_bytes()).unwrap()).unwrap();
        String::from_utf8(value).unwrap()
    }
}

#[test]
fn a_byte_of_a_long_file_costs_a_block_and_is_proved_by_who_needs_it() {
    let bench = Bench::new();
    let mut expected = bench.object.content.clone();
    let (at, other) = (50 * CACHED + 77, 90 * CACHED + BLOCK);
    {
        let opened = bench.open();
        opened.write(at, b"hello");
        assert_eq!(bench.fetched(), CACHED);
        // The kernel reads a page, and hands it back whole.
        let mut page = opened.read(other, BLOCK).unwrap();
        page[..5].copy_from_slice(b"again");
        opened.write(other, &page);
        assert_eq!(bench.fetched(), CACHED);
        assert!(opened.is_noted());
        assert_eq!(opened.state(), "modified");
    }
    for at in [at, other] {
        expected[at as usize..at as usize + 5].copy_from_slice(if at == other { b"again" } else { b"hello" });
    }
    {
        let opened = bench.open();
        assert!(opened.read(at - 77, CACHED).unwrap() == expected[at as usize - 77..][..CACHED as usize]);
        assert!(opened.read(other, 10).unwrap() == expected[other as usize..][..10]);
        assert_eq!(bench.fetched(), 0);
    }
    {
        let opened = bench.open_verified();
        let mut buf = [0; 10];
        opened.file.read_at(at, &mut buf).unwrap();
        assert!(buf == expected[at as usize..][..10]);
        assert_eq!(bench.fetched(), LEN - 2 * CACHED, "what is not there yet");
        assert!(opened.is_noted(), "the other one");
        assert!(opened.read(0, LEN).unwrap() == expected);
        assert!(!opened.is_noted());
    }
    assert!(bench.open().read(0, LEN).unwrap() == expected);
}

#[test]
fn what_was_wrong_when_it_was_copied_up_is_an_error_once_that_is_known() {
    let bench = Bench::new();
    let at = 50 * CACHED;
    bench.turn(&[at as usize + 9]);
    {
        let opened = bench.open();
        opened.write(at, b"hello");
        opened.write(at + 10 * CACHED + 1, b"there");
        opened.write(at + BLOCK, &[7; BLOCK as usize]);
        let kept = opened.read(at, BLOCK).unwrap();
        assert_ne!(kept[9], bench.object.content[at as usize + 9], "nobody can know yet");
        // Who has come to the end has heard of it, if all is there.
        assert_eq!(opened.read(0, LEN).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(opened.state(), "error");
    }
    bench.turn(&[]);
    {
        let opened = bench.open_verified();
        let e = opened.read(at, 10).unwrap_err();
        assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains("/f"), "{e}");
    }
    {
        // By now the right one is there: everybody knows.
        let opened = bench.open();
        assert_eq!(opened.read(at, 10).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(opened.state(), "error");
        // What was written whole was never doubtful, and what was right is no more.
        assert_eq!(opened.read(at + BLOCK, BLOCK).unwrap(), [7; BLOCK as usize]);
        let there = opened.read(at + 10 * CACHED, 6).unwrap();
        assert!(there[1..] == *b"there" && there[0] == bench.object.content[(at + 10 * CACHED) as usize]);
        // It is written anew, from its beginning.
        opened.file.set_len(0).unwrap();
        opened.write(0, b"new");
        assert_eq!((opened.state().as_str(), opened.is_noted()), ("modified", false));
    }
    let opened = bench.open_verified();
    assert_eq!(opened.read(0, 10).unwrap(), b"new");
}

/// Somebody reads, the object is found wrong, and then what was read is written.
#[test]
fn what_is_known_to_be_wrong_is_not_written_back() {
    let bench = Bench::new();
    bench.turn(&[9]);
    let opened = bench.open();
    let page = opened.read(0, BLOCK).unwrap();
    assert_eq!(opened.read(CACHED, LEN).unwrap_err().kind(), ErrorKind::Corrupt, "it came to its end");
    bench.turn(&[]);
    let e = opened.file.write_at(&[(0, &page)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    drop(opened);
    // Whoever opens it again has other pages.
    let opened = bench.open();
    opened.write(0, &opened.read(0, BLOCK).unwrap());
    assert!(opened.read(0, LEN).unwrap() == bench.object.content);
}

#[test]
fn what_is_cut_off_or_zeroed_is_no_more_doubtful() {
    let bench = Bench::new();
    let opened = bench.open();
    let at = 50 * CACHED;
    opened.write(at + 1, b"x");
    opened.file.allocate(at, BLOCK, AllocateMode::PunchHole).unwrap();
    assert!(!opened.is_noted());
    // Both edges of what is zeroed.
    opened.file.allocate(at + 5 * BLOCK + 1, 3 * BLOCK, AllocateMode::PunchHole).unwrap();
    assert!(opened.is_noted());
    opened.file.set_len(at).unwrap();
    assert!(!opened.is_noted());
    opened.write(BLOCK + 1, b"x");
    assert!(opened.is_noted());
    // Of what is left of the first block no more is noted than of any other.
    opened.file.set_len(10).unwrap();
    assert!(opened.is_noted());
    assert_eq!(opened.read(0, 20).unwrap(), bench.object.content[..10]);
    opened.file.set_len(0).unwrap();
    assert!(!opened.is_noted());
}

/// A file that is cut to less than a block, of which nothing is the lower's then: it costs a block, not the object.
#[test]
fn what_is_left_of_a_long_file_costs_a_block_and_is_proved_by_who_needs_it() {
    for len in [1, 100, BLOCK] {
        let bench = Bench::new();
        let left = bench.object.content[..len as usize].to_vec();
        let opened = bench.open();
        opened.file.set_len(len).unwrap();
        assert_eq!((bench.fetched(), opened.is_noted(), opened.state().as_str()), (CACHED, true, "modified"), "{len}");
        drop(opened);
        // After it was opened anew, and made longer, too.
        let opened = bench.open();
        opened.file.set_len(len + 5).unwrap();
        assert_eq!(opened.read(0, BLOCK + 9).unwrap(), [&left[..], &[0; 5]].concat());
        assert_eq!(bench.fetched(), 0);
        drop(opened);
        let opened = bench.open_verified();
        assert_eq!(opened.read(0, len).unwrap(), left);
        assert_eq!((bench.fetched(), opened.is_noted()), (LEN - CACHED, false));
    }
    // If it was wrong, that is an error once it is known.
    let bench = Bench::new();
    bench.turn(&[9]);
    bench.open().file.set_len(100).unwrap();
    bench.turn(&[]);
    assert_eq!(bench.open_verified().read(0, 100).unwrap_err().kind(), ErrorKind::Corrupt);
    let opened = bench.open();
    assert_eq!((opened.state().as_str(), opened.read(0, 5).unwrap_err().kind()), ("error", ErrorKind::Corrupt));
    opened.file.set_len(0).unwrap();
    assert_eq!((opened.state().as_str(), opened.is_noted()), ("modified", false));
    // A block further nothing of the lower is needed.
    let bench = Bench::new();
    bench.open().file.set_len(BLOCK + 1).unwrap();
    assert_eq!(bench.fetched(), 0);
}

/// More than there is room for is compared there and then.
#[test]
fn many_changes_are_compared_at_last() {
    let bench = Bench::new();
    let opened = bench.open();
    let mut expected = bench.object.content.clone();
    for n in 0..600 {
        let at = (n * 7 % 600) * CACHED + 5;
        opened.write(at, b"y");
        expected[at as usize] = b'y';
    }
    assert!(bench.fetched() <= LEN, "nothing twice");
    assert!(opened.read(0, LEN).unwrap() == expected);
    drop(opened);
    assert!(bench.open_verified().read(0, LEN).unwrap() == expected);
}
