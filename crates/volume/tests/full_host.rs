//! A host whose disk is full: what finds no space says so, nothing else ends, and deleting makes room, also after an opening.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use adit_core::media::BlockFile;
use adit_core::{ErrorKind, Result};
use adit_testkit::crash::{CrashWorld, Mode};
use adit_testkit::{Rng, seeds};
use adit_volume::table::BLOCK_LEN_BYTES;
use adit_volume::{Base, Batch, Extents, NewVolume, Options, Run, Table};
use parking_lot::Mutex;

mod support;
use support::*;

const BLOCK: u64 = BLOCK_LEN_BYTES as u64;
const EPERM: i32 = 1;
const SEGMENT_LEN: u64 = 128 << 10;
const BLOCKS_PER_SEGMENT: u64 = SEGMENT_LEN / BLOCK;

/// A disk that has so many blocks, and one file.
#[derive(Default)]
struct Disk {
    room: u64,
    taken: BTreeSet<u64>,
    /// What was written of it: where, and whether that was a segment of zeros.
    writes: Vec<(u64, bool)>,
    /// Blocks that it was made to keep.
    kept: u64,
    /// Whether nobody may change the file for now (`chattr +i`).
    is_immutable: bool,
}

impl Disk {
    fn permit(&self) -> io::Result<()> {
        if self.is_immutable { Err(io::Error::from_raw_os_error(EPERM)) } else { Ok(()) }
    }

    /// Takes blocks until there are no more. Returns how many of the bytes from `offset` on have a place.
    fn take(&mut self, offset: u64, len: u64) -> u64 {
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            if !self.taken.contains(&block) {
                if self.taken.len() as u64 >= self.room {
                    return (block * BLOCK).saturating_sub(offset);
                }
                self.taken.insert(block);
            }
        }
        len
    }
}

/// The file on that disk.
struct SmallHost {
    file: Arc<dyn BlockFile>,
    disk: Arc<Mutex<Disk>>,
    keeps: Keeps,
}

/// What a host keeps in advance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    Space,
    /// That, but it wants free space also for what has some; and it takes nothing back.
    SpaceTwice,
}

impl BlockFile for SmallHost {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.permit()?;
        let is_zeros = bytes.len() as u64 == SEGMENT_LEN && bytes.iter().all(|b| *b == 0);
        disk.writes.push((offset, is_zeros));
        let placed = disk.take(offset, bytes.len() as u64) as usize;
        drop(disk);
        self.file.write_at(offset, &bytes[..placed])?;
        if placed < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.lock().permit()?;
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.lock().permit()?;
        if self.keeps == Keeps::SpaceTwice {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let inside = offset.div_ceil(BLOCK)..(offset + len) / BLOCK;
        self.disk.lock().taken.retain(|block| !inside.contains(block));
        self.file.punch(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.lock().permit()?;
        if self.keeps == Keeps::Nothing {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut disk = self.disk.lock();
        let free = disk.room.saturating_sub(disk.taken.len() as u64);
        if self.keeps == Keeps::SpaceTwice && free < len.div_ceil(BLOCK) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let before = disk.taken.len();
        let placed = disk.take(offset, len);
        disk.kept += (disk.taken.len() - before) as u64;
        if placed < len { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

/// What is in the base, and how it was put there.
struct Content {
    state: State,
    runs: Vec<Run>,
    next: u32,
}

struct World {
    world: CrashWorld,
    disk: Arc<Mutex<Disk>>,
    keeps: Keeps,
}

impl World {
    fn new(keeps: Keeps) -> World {
        let disk = Disk { room: u64::MAX, ..Disk::default() };
        World { world: CrashWorld::new(Mode::Kill), disk: Arc::new(Mutex::new(disk)), keeps }
    }

    fn file(&self) -> Arc<dyn BlockFile> {
        Arc::new(SmallHost { file: file(&self.world), disk: self.disk.clone(), keeps: self.keeps })
    }

    fn open(&self, what: &str) -> Base {
        Base::open(self.file(), "volume", self::options()).unwrap_or_else(|e| panic!("{what}: {e}"))
    }

    /// Who only reads needs no space.
    fn assert_readable(&self, content: &Content, what: &str) {
        let options = Options { read_only: true, ..self::options() };
        let base = Base::open(self.file(), "volume", options).unwrap_or_else(|e| panic!("{what}: to read: {e}"));
        assert!(state_of(&base).unwrap() == content.state, "{what}: it is what was applied");
    }

    /// Leaves so many blocks free.
    fn leave(&self, blocks: u64) {
        let mut disk = self.disk.lock();
        disk.room = disk.taken.len() as u64 + blocks;
    }
}

fn options() -> Options {
    Options { log_bytes_max: Some(64 << 10), ..support::options() }
}

/// A volume that is far from full when its host is.
fn large() -> NewVolume {
    NewVolume { segment_len: Some(SEGMENT_LEN as u32), ..NewVolume::new(256 << 20) }
}

/// Adds a name, or a file of some blocks.
fn add(base: &Base, content: &mut Content, rng: &mut Rng) -> Result<()> {
    content.next += 1;
    let n = content.next;
    let key = format!("key {:05}", (n * 7919) % 50_000).into_bytes();
    let value = vec![n as u8; 20 + rng.next_u64() as usize % 1000];
    let mut batch = Batch { writes: vec![(key.clone(), Some(value.clone()))], ..Batch::default() };
    let count = (rng.next_u64() % 6) as u32;
    let runs = if count > 0 { base.reserve(count, None, false)? } else { Vec::new() };
    let block = vec![n as u8; BLOCK_LEN_BYTES];
    let sum = crc32c::crc32c(&block);
    let written = runs.iter().try_for_each(|run| base.write(run.start, &block.repeat(run.count as usize)));
    let applied = written.and_then(|()| {
        batch.allocated = runs.iter().map(|run| (*run, vec![sum; run.count as usize])).collect();
        base.apply(batch)
    });
    if let Err(e) = applied {
        base.release(&runs);
        return Err(e);
    }
    content.state.map.insert(key, value);
    content.state.blocks.extend(runs.iter().flat_map(Run::blocks).map(|block| (block, sum)));
    content.runs.extend(runs);
    Ok(())
}

/// Adds until there is no space, a few times. Returns how often there was none.
fn fill(base: &Base, content: &mut Content, rng: &mut Rng, what: &str) {
    let mut refused = 0;
    for _ in 0..3000 {
        match add(base, content, rng) {
            Ok(()) => {}
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{what}: {e}");
                refused += 1;
                if refused == 4 {
                    return;
                }
            }
        }
    }
    panic!("{what}: it never gets full");
}

/// Takes away one half, one after the other.
fn remove(base: &Base, content: &mut Content, what: &str) {
    let keys: Vec<Vec<u8>> = content.state.map.keys().step_by(2).take(100).cloned().collect();
    let mut runs = content.runs.split_off(content.runs.len() / 2).into_iter();
    for key in keys {
        let freed: Vec<Run> = runs.by_ref().take(1).collect();
        freed.iter().flat_map(Run::blocks).for_each(|block| {
            content.state.blocks.remove(&block);
        });
        content.state.map.remove(&key);
        let batch = Batch { writes: vec![(key, None)], freed, uses_reserve: true, ..Batch::default() };
        base.apply(batch).unwrap_or_else(|e| panic!("{what}: a delete: {e}"));
    }
    content.runs.extend(runs);
}

fn assert_is(base: &Base, content: &Content, what: &str) {
    assert!(state_of(base).unwrap() == content.state, "{what}: it is what was applied");
    assert!(base.damaged_pages().is_empty(), "{what}");
    let allocated: u64 = base.allocated().iter().map(|run| u64::from(run.count)).sum();
    let space = base.space();
    assert_eq!(allocated, content.state.blocks.len() as u64, "{what}");
    // Whole segments are the store's and the log's.
    assert_eq!((space.total - allocated - space.free) % BLOCKS_PER_SEGMENT, 0, "{what}");
}

#[test]
fn a_full_host_refuses_what_adds_and_deleting_makes_room() {
    for seed in seeds(1) {
        for (step, blocks) in (0..240).step_by(5).chain((240..1500).step_by(90)).enumerate() {
            let what = format!("{blocks} blocks left, ADIT_TEST_SEED={seed}");
            let rng = &mut Rng::new(seed + blocks);
            let host = World::new(Keeps::Space);
            let base = Base::create(host.file(), "volume", &large(), options()).unwrap();
            let mut content = nothing();
            (0..60).for_each(|_| add(&base, &mut content, rng).unwrap());
            host.leave(blocks);
            fill(&base, &mut content, rng, &what);
            assert_is(&base, &content, &what);
            remove(&base, &mut content, &what);
            add(&base, &mut content, rng).unwrap_or_else(|e| panic!("{what}: after deletes: {e}"));
            fill(&base, &mut content, rng, &what);
            // The host's last space is somebody else's.
            host.leave(0);
            match step % 3 {
                0 => base.close().unwrap_or_else(|e| panic!("{what}: closing: {e}")),
                1 => drop(base),
                _ => base.abandon(),
            }
            host.leave(0);
            host.assert_readable(&content, &what);
            let base = host.open(&what);
            assert_is(&base, &content, &what);
            remove(&base, &mut content, &what);
            add(&base, &mut content, rng).unwrap_or_else(|e| panic!("{what}: after deletes when opened: {e}"));
            base.close().unwrap_or_else(|e| panic!("{what}: closing: {e}"));
            let base = host.open(&what);
            assert_is(&base, &content, &what);
        }
    }
}

/// Where deletes and an opening may find no space: whatever is refused has changed nothing.
#[test]
fn a_full_host_that_keeps_nothing_in_advance_loses_nothing() {
    let mut refused = 0;
    // Of a record in the last, only zeros find no space.
    for seed in seeds(1).chain([1_368_703_674]) {
        for (step, blocks) in (0..200).step_by(4).enumerate() {
            let what = format!("{blocks} blocks left, ADIT_TEST_SEED={seed}");
            let rng = &mut Rng::new(seed + blocks);
            let host = World::new(Keeps::Nothing);
            let base = Base::create(host.file(), "volume", &large(), options()).unwrap();
            let mut content = nothing();
            (0..60).for_each(|_| add(&base, &mut content, rng).unwrap());
            host.leave(blocks);
            fill(&base, &mut content, rng, &what);
            assert_is(&base, &content, &what);
            match step % 2 {
                0 => base.close().unwrap_or_else(|e| panic!("{what}: closing: {e}")),
                _ => base.abandon(),
            }
            host.leave(0);
            host.assert_readable(&content, &what);
            match Base::open(host.file(), "volume", options()) {
                Ok(base) => assert_is(&base, &content, &what),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{what}: {e}");
                    assert!(e.to_string().contains("the disk that it lies on is full"), "{what}: {e}");
                    host.assert_readable(&content, &what);
                    refused += 1;
                }
            }
            host.leave(1000);
            let base = host.open(&what);
            assert_is(&base, &content, &what);
            remove(&base, &mut content, &what);
            base.close().unwrap_or_else(|e| panic!("{what}: closing: {e}"));
            assert_is(&host.open(&what), &content, &what);
        }
    }
    assert!(refused > 0, "no opening lacked space");
}

/// That nobody may change its file for a while is no state of the disk: whatever is refused meanwhile has changed nothing, and then it goes on.
#[test]
fn a_host_that_permits_no_change_for_a_while_ends_nothing() {
    for (keeps, added) in [(Keeps::Nothing, 3), (Keeps::Space, 3), (Keeps::Nothing, 90), (Keeps::Space, 90)] {
        let rng = &mut Rng::new(1);
        let host = World::new(keeps);
        let base = Base::create(host.file(), "volume", &large(), options()).unwrap();
        let mut content = nothing();
        (0..added).for_each(|_| add(&base, &mut content, rng).unwrap());
        host.disk.lock().is_immutable = true;
        for _ in 0..20 {
            let refused = add(&base, &mut content, rng).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotPermitted, "{refused}");
        }
        let refused = base.checkpoint().unwrap_err();
        assert!(refused.kind() == ErrorKind::NotPermitted && refused.to_string().contains("chattr"), "{refused}");
        assert_is(&base, &content, "meanwhile");
        host.disk.lock().is_immutable = false;
        base.checkpoint().unwrap();
        add(&base, &mut content, rng).unwrap();
        assert_is(&base, &content, "later");
        // Nor does it matter when it is closed.
        host.disk.lock().is_immutable = true;
        base.close().unwrap();
        host.assert_readable(&content, "closed");
        host.disk.lock().is_immutable = false;
        assert_is(&host.open("again"), &content, "again");
    }
}

fn nothing() -> Content {
    Content { state: State::default(), runs: Vec::new(), next: 0 }
}

/// What a closed volume keeps for deletes is found, though the host gives no more for the same range.
#[test]
fn a_host_that_wants_space_twice_takes_deletes() {
    let rng = &mut Rng::new(1);
    let host = World::new(Keeps::SpaceTwice);
    let base = Base::create(host.file(), "volume", &large(), options()).unwrap();
    let mut content = nothing();
    (0..60).for_each(|_| add(&base, &mut content, rng).unwrap());
    base.close().unwrap();
    host.leave(0);
    let base = host.open("full");
    remove(&base, &mut content, "full");
    assert_is(&base, &content, "full");
    base.close().unwrap();
    host.assert_readable(&content, "closed");
    host.leave(1000);
    assert_is(&host.open("again"), &content, "again");
}

/// What only changes leaves the ballast to what gives space back.
#[test]
fn times_that_are_set_leave_space_for_deletes() {
    for end in [0, 1] {
        let rng = &mut Rng::new(1);
        let host = World::new(Keeps::Space);
        let mut base = Base::create(host.file(), "volume", &large(), options()).unwrap();
        let mut content = nothing();
        (0..60).for_each(|_| add(&base, &mut content, rng).unwrap());
        host.leave(100);
        fill(&base, &mut content, rng, "filled");
        host.leave(0);
        if end > 0 {
            base.close().unwrap();
            host.leave(0);
            base = host.open("closed when full");
        }
        let refused = (0..10_000_u32).find_map(|n| {
            let key = format!("key {:05}", n % 50_000).into_bytes();
            let value = n.to_le_bytes().repeat(30);
            let batch =
                Batch { writes: vec![(key.clone(), Some(value.clone()))], takes_away: true, ..Batch::default() };
            let result = base.apply(batch);
            if result.is_ok() {
                content.state.map.insert(key, value);
            }
            result.err()
        });
        assert_eq!(refused.expect("it never ends").kind(), ErrorKind::NoSpace);
        if let Err(e) = base.checkpoint() {
            assert_eq!(e.kind(), ErrorKind::NoSpace);
        }
        // What is free by now is somebody else's.
        host.leave(0);
        remove(&base, &mut content, &format!("after times, {end}"));
        assert_is(&base, &content, "after times");
    }
}

#[test]
fn the_log_goes_on_in_segments_that_were_written() {
    let host = World::new(Keeps::Space);
    let options = Options { background: true, log_bytes_max: Some(4 << 20), ..options() };
    let base = Base::create(host.file(), "volume", &large(), options).unwrap();
    let put = |n: u32| {
        let writes = vec![(b"key".to_vec(), Some(n.to_le_bytes().repeat(250)))];
        base.apply(Batch { writes, ..Batch::default() }).unwrap();
    };
    // More than half of a segment.
    (0..80).for_each(put);
    let start = std::time::Instant::now();
    let (at, written) = loop {
        let disk = host.disk.lock();
        if let Some(at) = disk.writes.iter().position(|(_, is_zeros)| *is_zeros) {
            break (at, disk.writes[at].0);
        }
        drop(disk);
        assert!(start.elapsed().as_secs() < 60, "none is written");
        std::thread::yield_now();
    };
    for n in 0.. {
        put(n);
        if host.disk.lock().writes[at + 1..].iter().any(|(offset, _)| *offset == written) {
            break;
        }
        assert!(start.elapsed().as_secs() < 60, "the log does not go on in it");
    }
}

/// A host that is not full keeps what the log needs from one checkpoint to the next.
#[test]
fn what_is_kept_is_not_given_back_at_each_checkpoint() {
    let host = World::new(Keeps::Space);
    let options = Options { log_bytes_max: Some(64 << 20), memory_bytes_max: Some(64 << 20), ..options() };
    let base = Base::create(host.file(), "volume", &large(), options).unwrap();
    let kept = [0; 4].map(|_: u32| {
        for n in 0..1200_u32 {
            let writes = vec![(format!("key {n}").into_bytes(), Some(vec![1; 4000]))];
            base.apply(Batch { writes, ..Batch::default() }).unwrap();
        }
        base.checkpoint().unwrap();
        std::mem::take(&mut host.disk.lock().kept)
    });
    assert!(kept[3] < kept[0] / 4, "blocks that the host was made to keep, each time: {kept:?}");
}
