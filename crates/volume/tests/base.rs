//! The base as those above it see it: reads, space, damage, full disks, threads.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use adit_core::ErrorKind;
use adit_core::media::BlockFile;
use adit_core::types::Access;
use adit_media::HostBlockFile;
use adit_testkit::crash::{CrashWorld, Mode};
use adit_testkit::{Rng, seeds};
use adit_volume::format::container::{FEATURE_LONG, SegmentRun, Superblock};
use adit_volume::format::log::{Draft, Seed};
use adit_volume::table::{BLOCK_LEN_BYTES, OWN_PREFIX, VALUE_LEN_MAX_BYTES};
use adit_volume::{Base, Batch, Extents, NewVolume, Options, Run, Table};

mod support;
use support::*;

fn put(base: &Base, key: &str, value: &[u8]) {
    base.apply(Batch { writes: vec![(key.into(), Some(value.to_vec()))], ..Batch::default() }).unwrap();
}

fn get(base: &Base, key: &str) -> Option<Vec<u8>> {
    base.get(key.as_bytes()).unwrap().map(|v| v.to_vec())
}

/// Writes `count` blocks of `byte` and makes them part of the tree.
fn allocate(base: &Base, count: u32, byte: u8) -> adit_core::Result<Vec<Run>> {
    let runs = base.reserve(count, None, false)?;
    let block = vec![byte; BLOCK_LEN_BYTES];
    let sum = crc32c::crc32c(&block);
    let mut batch = Batch::default();
    for run in &runs {
        base.write(run.start, &block.repeat(run.count as usize))?;
        batch.allocated.push((*run, vec![sum; run.count as usize]));
    }
    match base.apply(batch) {
        Ok(_) => Ok(runs),
        Err(e) => {
            base.release(&runs);
            Err(e)
        }
    }
}

fn fresh() -> (CrashWorld, Base) {
    let world = CrashWorld::new(Mode::Kill);
    let base = Base::create(file(&world), "volume", &small(), options()).unwrap();
    (world, base)
}

#[test]
fn reads_see_what_was_applied_wherever_it_lies_now() {
    for seed in seeds(5) {
        let mut rng = Rng::new(seed);
        let (world, mut base) = fresh();
        let mut state = State::default();
        for round in 0..6 {
            let told = run_script(&base, state, 30, &mut rng);
            assert_eq!(told.acknowledged + 1, told.states.len(), "ADIT_TEST_SEED={seed}");
            state = told.states.last().unwrap().clone();
            assert_eq!(state_of(&base).unwrap(), state, "ADIT_TEST_SEED={seed}");
            let keys: Vec<Vec<u8>> = (0..31).map(|n| format!("key {n:02}").into_bytes()).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for (key, value) in keys.iter().zip(base.get_many(&keys).unwrap()) {
                let expected = state.map.get(*key).map(Vec::as_slice);
                assert_eq!((value.as_deref(), base.get(key).unwrap().as_deref()), (expected, expected));
            }
            let used: u64 = base.allocated().iter().map(|run| u64::from(run.count)).sum();
            assert_eq!(used, state.blocks.len() as u64);
            match round % 3 {
                0 => base.close().unwrap(),
                1 => drop(base),
                _ => base.abandon(),
            }
            base = Base::open(file(&world), "volume", options()).unwrap();
            assert_eq!(state_of(&base).unwrap(), state, "ADIT_TEST_SEED={seed}");
        }
    }
}

#[test]
fn a_scan_goes_through_more_than_one_stretch_and_stops_when_told() {
    let (_world, base) = fresh();
    let mut expected = Vec::new();
    for n in 0..2000 {
        let key = format!("k{n:05}");
        put(&base, &key, &[1]);
        expected.push(key.into_bytes());
    }
    assert_eq!(scan_all(&base).unwrap().into_keys().collect::<Vec<_>>(), expected);
    let mut seen = 0;
    base.scan(b"k00100", b"k01900", &mut |key, _| {
        assert!(base.get(key).unwrap().is_some(), "the sink may ask");
        seen += 1;
        if seen == 700 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(seen, 700);
    base.scan(b"b", b"a", &mut |_, _| panic!("nothing is there")).unwrap();
}

fn features(world: &CrashWorld) -> u32 {
    let mut bytes = vec![0; 64 << 10];
    let slots = [0, 64 << 10].map(|at| {
        let len = file(world).read_at(at, &mut bytes).unwrap();
        Superblock::decode(&bytes[..len]).unwrap()
    });
    slots.into_iter().max_by_key(|slot| slot.generation).unwrap().features
}

/// Segments are 128 KiB here, so such a batch lies in two or three.
#[test]
fn a_batch_that_is_longer_than_a_segment_is_whole_wherever_it_lies() {
    let (world, base) = fresh();
    put(&base, "short", &[1; 8192]);
    assert_eq!(features(&world), 0, "earlier versions read this");
    let value = |n: u8| vec![n; VALUE_LEN_MAX_BYTES];
    let batch = |first: u8| Batch {
        writes: (first..first + 3).map(|n| (vec![n], Some(value(n)))).collect(),
        ..Batch::default()
    };
    let check = |base: &Base, numbers: std::ops::Range<u8>| {
        for n in numbers {
            assert_eq!(base.get(&[n]).unwrap().as_deref(), Some(&value(n)[..]), "{n}");
        }
    };
    base.apply(batch(1)).unwrap();
    assert_eq!(features(&world), FEATURE_LONG);
    put(&base, "between", b"");
    base.apply(batch(4)).unwrap();
    check(&base, 1..7);
    base.abandon();
    let base = Base::open(file(&world), "volume", options()).unwrap();
    check(&base, 1..7);
    base.checkpoint().unwrap();
    check(&base, 1..7);
    assert_eq!(base.damaged_pages(), [0; 0]);
    base.close().unwrap();
    let base = Base::open(file(&world), "volume", options()).unwrap();
    check(&base, 1..7);
    // What is too much for any volume of this size changes nothing.
    let much = Batch { writes: (0..5).map(|n| (vec![n], Some(value(0)))).collect(), ..Batch::default() };
    assert_eq!(base.apply(much).unwrap_err().kind(), ErrorKind::InvalidInput);
    check(&base, 1..7);
}

#[test]
fn what_breaks_the_rules_changes_nothing() {
    let (_world, base) = fresh();
    let runs = allocate(&base, 2, 1).unwrap();
    let reserved = base.reserve(1, None, false).unwrap()[0];
    let refused = |batch: Batch| {
        let e = base.apply(batch).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    };
    let write = |key: Vec<u8>, value: Vec<u8>| Batch { writes: vec![(key, Some(value))], ..Batch::default() };
    refused(write(vec![], vec![]));
    refused(write(vec![1; 513], vec![]));
    refused(write(vec![1], vec![0; VALUE_LEN_MAX_BYTES + 1]));
    refused(write(vec![OWN_PREFIX], vec![]));
    refused(Batch { freed: vec![reserved], ..Batch::default() });
    refused(Batch { freed: vec![runs[0], runs[0]], ..Batch::default() });
    refused(Batch { allocated: vec![(runs[0], vec![0; 2])], ..Batch::default() });
    refused(Batch { allocated: vec![(reserved, vec![])], ..Batch::default() });
    refused(Batch { freed: vec![Run { start: u64::MAX, count: 5 }], ..Batch::default() });
    refused(Batch { writes: vec![(vec![1], Some(vec![0; 8000])); 40], ..Batch::default() });
    let block = [0; BLOCK_LEN_BYTES];
    for wrong in [0, runs[0].start, reserved.end(), u64::MAX / 8192, u64::MAX] {
        assert_eq!(base.write(wrong, &block).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert!(base.read(u64::MAX / 2, &mut [0; BLOCK_LEN_BYTES]).is_err());
    assert_eq!(scan_all(&base).unwrap().len(), 0);
}

#[test]
fn a_full_volume_refuses_and_deleting_makes_room() {
    let (world, base) = fresh();
    let mut runs = Vec::new();
    let full = loop {
        match allocate(&base, 8, 3) {
            Ok(more) => runs.extend(more),
            Err(e) => break e,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    let space = base.space();
    assert!(space.free >= space.reserved && space.free < space.reserved + 32, "{space:?}");
    let used: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
    assert!(used * 2 > space.total, "{used} of {}", space.total);
    // Metadata has a little room more, then it is refused as well, unless it makes room.
    let mut n = 0;
    let refused = loop {
        n += 1;
        let batch = Batch { writes: vec![(format!("{n}").into(), Some(vec![9; 8000]))], ..Batch::default() };
        match base.apply(batch) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let freed: Vec<Run> = runs.drain(..runs.len() / 2).collect();
    base.apply(Batch { freed, uses_reserve: true, ..Batch::default() }).unwrap();
    let more = allocate(&base, 8, 4).unwrap();
    put(&base, "again", b"room");
    runs.extend(more);
    base.close().unwrap();
    let base = Base::open(file(&world), "volume", options()).unwrap();
    runs.sort();
    let counted: u64 = base.allocated().iter().map(|run| u64::from(run.count)).sum();
    assert_eq!(counted, runs.iter().map(|run| u64::from(run.count)).sum::<u64>());
    assert_eq!(get(&base, "again").as_deref(), Some(&b"room"[..]));
}

#[test]
fn blocks_come_back_only_after_a_sync() {
    let (_world, base) = fresh();
    let runs = allocate(&base, 4, 1).unwrap();
    base.sync().unwrap();
    base.apply(Batch { freed: runs.clone(), ..Batch::default() }).unwrap();
    let taken = base.reserve(4, Some(runs[0].start), false).unwrap();
    assert!(taken.iter().all(|run| run.start >= runs[0].end()), "{taken:?}");
    base.sync().unwrap();
    assert_eq!(base.reserve(4, Some(runs[0].start), false).unwrap(), runs);
}

/// Numbers of errors of the system.
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;
const EFBIG: i32 = 27;

/// A file with a switch.
struct Switched {
    file: Arc<dyn BlockFile>,
    full: AtomicBool,
    /// How it says that.
    number: AtomicI32,
    sync_fails: AtomicBool,
    /// The next read fails.
    read_fails: AtomicBool,
    /// Writes of this length find no room.
    write_len_max: AtomicUsize,
    /// It cannot become longer.
    len_is_fixed: AtomicBool,
    /// What is written finds no space for its end, which is zeros; and nothing that is there can be written again.
    lacks_space_for_zeros: AtomicBool,
    writes: AtomicU64,
}

impl Switched {
    fn new(file: Arc<dyn BlockFile>) -> Arc<Switched> {
        let (full, sync_fails) = (AtomicBool::new(false), AtomicBool::new(false));
        let write_len_max = AtomicUsize::new(usize::MAX);
        let (read_fails, len_is_fixed) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Switched {
            file,
            full,
            number: ENOSPC.into(),
            sync_fails,
            read_fails,
            write_len_max,
            len_is_fixed,
            lacks_space_for_zeros: AtomicBool::new(false),
            writes: 0.into(),
        })
    }
}

impl BlockFile for Switched {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if self.read_fails.swap(false, Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        if self.full.load(Ordering::Relaxed) || bytes.len() >= self.write_len_max.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(self.number.load(Ordering::Relaxed)));
        }
        if self.lacks_space_for_zeros.load(Ordering::Relaxed) {
            let mut there = [0; 8];
            self.file.read_at(offset, &mut there)?;
            if there == [0; 8] {
                self.file.write_at(offset, bytes)?;
            }
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_at(offset, bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.len_is_fixed.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        if self.sync_fails.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.file.sync()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

/// A host that does not keep space in advance.
#[test]
fn a_host_that_finds_no_space_ends_what_needs_some_and_no_more() {
    let said = [
        (ENOSPC, ErrorKind::NoSpace, "disk"),
        (EDQUOT, ErrorKind::QuotaExceeded, "quota"),
        (EFBIG, ErrorKind::FileTooLarge, "longer"),
    ];
    for (during_checkpoint, (number, kind, word)) in said.into_iter().flat_map(|said| [(false, said), (true, said)]) {
        let world = CrashWorld::new(Mode::Kill);
        let file_of = Switched::new(file(&world));
        file_of.number.store(number, Ordering::Relaxed);
        let base = Base::create(file_of.clone(), "the.volume", &small(), options()).unwrap();
        for n in 0..50 {
            put(&base, &format!("stored {n}"), &[n; 500]);
        }
        base.checkpoint().unwrap();
        put(&base, "logged", b"1");
        let more = |key: &str| base.apply(Batch { writes: vec![(key.into(), Some(vec![]))], ..Batch::default() });
        file_of.full.store(true, Ordering::Relaxed);
        let e = if during_checkpoint { base.checkpoint().unwrap_err() } else { more("x").unwrap_err() };
        assert!(e.to_string().contains("the.volume") && e.to_string().contains(word), "{e}");
        assert_eq!(e.kind(), kind, "{e}");
        assert_eq!(more("y").unwrap_err().kind(), kind);
        base.sync().unwrap();
        let map = scan_all(&base).unwrap();
        assert_eq!(
            (map.len(), get(&base, "logged").as_deref(), get(&base, "stored 7")),
            (51, Some(&b"1"[..]), Some(vec![7; 500]))
        );
        file_of.full.store(false, Ordering::Relaxed);
        base.checkpoint().unwrap();
        put(&base, "later", b"2");
        let map = scan_all(&base).unwrap();
        assert_eq!(map.len(), 52);
        base.abandon();
        drop(file_of);
        let base = Base::open(file(&world), "volume", options()).unwrap();
        assert_eq!(scan_all(&base).unwrap(), map);
    }
}

/// Each of which opens the store anew, a few times.
#[test]
fn readers_go_on_while_checkpoints_find_no_space() {
    let world = CrashWorld::new(Mode::Kill);
    let file_of = Switched::new(file(&world));
    let base = Base::create(file_of.clone(), "volume", &small(), options()).unwrap();
    (0..50).for_each(|n| put(&base, &format!("stored {n}"), &[n; 500]));
    base.checkpoint().unwrap();
    put(&base, "logged", b"1");
    file_of.full.store(true, Ordering::Relaxed);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert_eq!(get(&base, "stored 7"), Some(vec![7; 500]));
                    let both = base.get_many(&[b"stored 30", b"logged"]).unwrap();
                    assert!(both.iter().all(Option::is_some));
                    assert_eq!(scan_all(&base).unwrap().len(), 51);
                }
            });
        }
        for _ in 0..100 {
            let result = base.checkpoint().map_err(|e| e.kind());
            ended.store(result != Err(ErrorKind::NoSpace), Ordering::Relaxed);
            assert_eq!(result, Err(ErrorKind::NoSpace));
        }
        ended.store(true, Ordering::Relaxed);
    });
    base.abandon();
}

/// Where checkpoints find no space, not each delete tries one.
#[test]
fn deletes_do_not_wait_for_checkpoints_in_vain() {
    let world = CrashWorld::new(Mode::Kill);
    let file_of = Switched::new(file(&world));
    let options = Options { log_bytes_max: Some(32 << 10), ..options() };
    let base = Base::create(file_of.clone(), "volume", &small(), options).unwrap();
    // Pages find none, records do.
    file_of.write_len_max.store(BLOCK_LEN_BYTES, Ordering::Relaxed);
    let delete = |n: u32| {
        let writes = vec![(format!("none {n}").into_bytes(), None)];
        base.apply(Batch { writes, uses_reserve: true, ..Batch::default() }).map(drop)
    };
    let start = std::time::Instant::now();
    let before = file_of.writes.load(Ordering::Relaxed);
    let deleted = (0..10_000).take_while(|n| delete(*n).is_ok()).count() as u64;
    let others = file_of.writes.load(Ordering::Relaxed) - before - deleted;
    assert!((600..5000).contains(&deleted), "{deleted} until the log is too long");
    let pauses = start.elapsed().as_millis() as u64 / 100;
    assert!(others <= 20 * (pauses + 3), "{others} other writes for {deleted} deletes in {pauses} pauses");
    base.abandon();
}

/// Else what comes after it would make it count, though it was refused.
#[test]
fn a_refused_record_that_cannot_be_made_none_ends_writing() {
    let world = CrashWorld::new(Mode::Kill);
    let file_of = Switched::new(file(&world));
    let base = Base::create(file_of.clone(), "volume", &small(), options()).unwrap();
    put(&base, "kept", b"1");
    let add = |key: &str| base.apply(Batch { writes: vec![(key.into(), Some(vec![0; 100]))], ..Batch::default() });
    file_of.lacks_space_for_zeros.store(true, Ordering::Relaxed);
    assert_eq!(add("unknown").unwrap_err().kind(), ErrorKind::Io);
    file_of.lacks_space_for_zeros.store(false, Ordering::Relaxed);
    assert_eq!(add("later").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!((get(&base, "kept"), get(&base, "unknown")), (Some(b"1".to_vec()), None));
    drop((base, file_of));
    let base = Base::open(file(&world), "volume", options()).unwrap();
    assert_eq!((get(&base, "kept"), get(&base, "later")), (Some(b"1".to_vec()), None));
}

#[test]
fn a_read_that_fails_once_does_not_end_writing() {
    let (world, base) = fresh();
    for n in 0..200 {
        put(&base, &format!("key {n:03}"), &[n as u8; 500]);
    }
    base.close().unwrap();
    let file_of = Switched::new(file(&world));
    let base = Base::open(file_of.clone(), "volume", options()).unwrap();
    put(&base, "key 100", b"new");
    file_of.read_fails.store(true, Ordering::Relaxed);
    base.checkpoint().unwrap();
    assert!(!file_of.read_fails.load(Ordering::Relaxed), "nothing was read");
    put(&base, "key 101", b"newer");
    base.checkpoint().unwrap();
    let value = |key| get(&base, key).unwrap();
    assert_eq!(
        (value("key 100"), value("key 101"), value("key 102")),
        (b"new".into(), b"newer".into(), vec![102; 500])
    );
    assert!(base.damaged_pages().is_empty());
}

#[test]
fn without_room_for_a_spare_segment_of_the_log_writing_goes_on() {
    let world = CrashWorld::new(Mode::Kill);
    let file_of = Switched::new(file(&world));
    let options = Options { background: true, log_bytes_max: Some(1 << 20), ..options() };
    let base = Base::create(file_of.clone(), "volume", &small(), options).unwrap();
    file_of.write_len_max.store(128 << 10, Ordering::Relaxed);
    for n in 0..1000 {
        put(&base, "key", &[n as u8; 500]);
    }
    base.close().unwrap();
}

#[test]
fn a_file_that_cannot_grow_costs_only_what_needs_more_of_it() {
    let world = CrashWorld::new(Mode::Kill);
    let file_of = Switched::new(file(&world));
    // A spare is asked for when half of the first segment of the log is full, and the next one is not needed before its end.
    let options = Options { background: true, log_bytes_max: Some(1 << 20), ..options() };
    let base = Base::create(file_of.clone(), "volume", &small(), options).unwrap();
    file_of.len_is_fixed.store(true, Ordering::Relaxed);
    for n in 0..180 {
        put(&base, "key", &[n as u8; 500]);
    }
    let e = base.reserve(1, None, false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    put(&base, "after", b"1");
    file_of.len_is_fixed.store(false, Ordering::Relaxed);
    allocate(&base, 4, 1).unwrap();
    base.close().unwrap();
}

/// What a commit bound that could not be made part of the file, no superblock may name later.
#[test]
fn a_store_that_cannot_grow_for_a_while_can_be_opened() {
    for seed in seeds(5) {
        let rng = &mut Rng::new(seed);
        let world = CrashWorld::new(Mode::Kill);
        let file_of = Switched::new(file(&world));
        let base = Base::create(file_of.clone(), "volume", &small(), options()).unwrap();
        let mut map = BTreeMap::new();
        let mut refused = 0;
        for n in 0..400_u32 {
            file_of.len_is_fixed.store(rng.percent(30), Ordering::Relaxed);
            let (key, value) = (format!("key {n}").into_bytes(), vec![n as u8; rng.below(5000) as usize]);
            let batch = Batch { writes: vec![(key.clone(), Some(value.clone()))], ..Batch::default() };
            let result = base.apply(batch).map(drop).inspect(|()| drop(map.insert(key, value)));
            for result in [result, if rng.percent(10) { base.checkpoint() } else { Ok(()) }] {
                if let Err(e) = result {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}, ADIT_TEST_SEED={seed}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "ADIT_TEST_SEED={seed}");
        base.abandon();
        drop(file_of);
        let base = Base::open(file(&world), "volume", options()).unwrap();
        assert!(scan_all(&base).unwrap() == map, "ADIT_TEST_SEED={seed}");
    }
}

#[test]
fn a_store_in_too_many_pieces_refuses_and_deleting_works() {
    let options = Options { kv_runs_max: Some(262), ..options() };
    let world = CrashWorld::new(Mode::Kill);
    let base = Base::create(
        file(&world),
        "volume",
        &NewVolume { segment_len: Some(128 << 10), ..NewVolume::new(64 << 20) },
        options,
    );
    let base = base.unwrap();
    let mut n = 0;
    let refused = loop {
        n += 1;
        let batch = Batch { writes: vec![(format!("{n}").into(), Some(vec![n as u8; 8000]))], ..Batch::default() };
        match base.apply(batch) {
            // Data between the segments of the store, so that these are many runs.
            Ok(_) => drop(allocate(&base, 32, 1).unwrap()),
            Err(e) => break e,
        }
        assert!(n < 5000, "it never ends");
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(refused.to_string().contains("too many pieces"), "{refused}");
    let writes = (1..n).map(|n| (format!("{n}").into(), None)).collect();
    base.apply(Batch { writes, uses_reserve: true, ..Batch::default() }).unwrap();
    base.gc().unwrap();
    put(&base, "again", b"room");
    base.close().unwrap();
}

#[test]
fn a_slot_that_cannot_be_read_leaves_the_other() {
    let (world, base) = fresh();
    put(&base, "a", b"1");
    base.close().unwrap();
    let file_of = Switched::new(file(&world));
    file_of.read_fails.store(true, Ordering::Relaxed);
    let base = Base::open(file_of.clone(), "volume", options()).unwrap();
    assert!(!file_of.read_fails.load(Ordering::Relaxed));
    assert_eq!(get(&base, "a").as_deref(), Some(&b"1"[..]));
}

#[test]
fn after_a_failed_sync_nothing_is_written_and_nothing_is_tried_again() {
    let world = CrashWorld::new(Mode::Kill);
    let file_of = Switched::new(file(&world));
    let base = Base::create(file_of.clone(), "volume", &small(), options()).unwrap();
    put(&base, "a", b"1");
    file_of.sync_fails.store(true, Ordering::Relaxed);
    assert_eq!(base.sync().unwrap_err().kind(), ErrorKind::Io);
    file_of.sync_fails.store(false, Ordering::Relaxed);
    let e = base.sync().unwrap_err();
    assert!(e.to_string().contains("reopen"), "{e}");
    assert_eq!(base.apply(Batch::default()).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(get(&base, "a").as_deref(), Some(&b"1"[..]));
}

/// The bytes of a closed volume that holds something, and what that is.
fn closed_volume(seed: u64) -> (Vec<u8>, State) {
    let (world, base) = fresh();
    let told = run_script(&base, State::default(), 60, &mut Rng::new(seed));
    base.close().unwrap();
    let file = file(&world);
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    (bytes, told.states.last().unwrap().clone())
}

fn world_of(bytes: &[u8]) -> CrashWorld {
    let world = CrashWorld::new(Mode::Kill);
    file(&world).write_at(0, bytes).unwrap();
    world.settle();
    world
}

#[test]
fn a_flipped_bit_of_metadata_is_found_and_never_returned() {
    for seed in seeds(3) {
        let (mut bytes, state) = closed_volume(seed);
        let mut rng = Rng::new(seed);
        let blocks: Vec<u64> = state.blocks.keys().copied().collect();
        let (mut found, mut harmless) = (0, 0);
        // Where something is, and not only zeros that nobody reads.
        let places: Vec<usize> = (0..bytes.len() / 64)
            .map(|at| at * 64 + rng.below(64) as usize)
            .filter(|at| bytes[at / 64 * 64..][..64].iter().any(|b| *b != 0))
            .filter(|at| !blocks.contains(&((at / BLOCK_LEN_BYTES) as u64)))
            .collect();
        for _ in 0..150 {
            let at = *rng.pick(&places);
            let bit = 1 << rng.below(8);
            bytes[at] ^= bit;
            let outcome = Base::open(file(&world_of(&bytes)), "volume", options()).and_then(|base| {
                let map = scan_all(&base)?;
                for (key, value) in &state.map {
                    assert_eq!(base.get(key)?.as_deref(), Some(value.as_slice()));
                }
                Ok(map)
            });
            match outcome {
                Ok(map) => {
                    assert_eq!(map, state.map, "byte {at}, ADIT_TEST_SEED={seed}");
                    harmless += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}, byte {at}, ADIT_TEST_SEED={seed}");
                    found += 1;
                }
            }
            bytes[at] ^= bit;
        }
        assert!(found > 0, "{found} found, {harmless} harmless");
    }
}

#[test]
fn a_damaged_page_costs_its_own_keys_only() {
    let (world, base) = fresh();
    for n in 0..400 {
        put(&base, &format!("key {n:03}"), &[n as u8; 200]);
    }
    base.close().unwrap();
    let file_of = file(&world);
    let mut bytes = vec![0; file_of.len().unwrap() as usize];
    file_of.read_at(0, &mut bytes).unwrap();
    // In the middle of a value, in all pages that hold it or did once.
    for (at, _) in bytes.windows(200).enumerate().filter(|(_, w)| *w == [100; 200]) {
        file_of.write_at(at as u64 + 50, &[101]).unwrap();
    }
    drop(file_of);
    let base = Base::open(file(&world), "volume", options()).unwrap();
    assert_eq!(base.get(b"key 100").unwrap_err().kind(), ErrorKind::Corrupt);
    let intact = (0..400).filter(|n| base.get(format!("key {n:03}").as_bytes()).is_ok_and(|v| v.is_some())).count();
    assert!(intact > 300, "{intact}");
    assert!(!base.damaged_pages().is_empty());
    assert_eq!(scan_all(&base).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn lost_checksums_are_damage_and_no_zeros() {
    let (bytes, state) = closed_volume(1);
    let mut found = 0;
    let superblock = Superblock::decode(&bytes).unwrap();
    for run in superblock.kv_segments.iter().filter(|run| run.start > 0) {
        for segment in run.start..run.start + run.count {
            let mut bytes = bytes.clone();
            let at = segment as usize * (128 << 10);
            bytes[at..at + BLOCK_LEN_BYTES].fill(0);
            match Base::open(file(&world_of(&bytes)), "volume", options()) {
                // A segment that nothing of the durable state leads to may lose what it likes.
                Ok(base) if base.damaged_pages().is_empty() => {
                    assert_eq!(scan_all(&base).unwrap(), state.map, "segment {segment}");
                    put(&base, "after", b"1");
                    base.gc().unwrap();
                    assert_eq!(scan_all(&base).unwrap().len(), state.map.len() + 1, "segment {segment}");
                }
                Ok(base) => {
                    found += 1;
                    assert!(scan_all(&base).is_ok_and(|map| map == state.map) || scan_all(&base).is_err());
                }
                Err(e) => {
                    found += 1;
                    assert!(e.to_string().contains("is damaged"), "segment {segment}: {e}");
                }
            }
        }
    }
    assert!(found > 0);
}

#[test]
fn damage_in_the_log_before_what_was_synced_is_no_end_of_it() {
    let (world, base) = fresh();
    put(&base, "first", &[7; 100]);
    put(&base, "second", &[8; 100]);
    base.sync().unwrap();
    put(&base, "third", &[9; 100]);
    base.abandon();
    let file_of = file(&world);
    let mut bytes = vec![0; file_of.len().unwrap() as usize];
    file_of.read_at(0, &mut bytes).unwrap();
    let at = bytes.windows(100).rposition(|w| w == [7; 100]).unwrap();
    file_of.write_at(at as u64, &[6]).unwrap();
    drop(file_of);
    let e = Base::open(file(&world), "volume", options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.to_string().contains("record 1 of the log"), "{e}");
}

/// Superblocks that somebody made up, their checksums right: whatever they say, it is an error or a volume.
#[test]
fn no_superblock_makes_it_panic() {
    for seed in seeds(8) {
        let (mut bytes, _) = closed_volume(seed % 3);
        for (offset, end) in [(0, 64 << 10), (64 << 10, 128 << 10)] {
            let slot = &mut bytes[offset..end];
            let len = u32::from_le_bytes(*slot[16..].first_chunk().unwrap()) as usize;
            // The same in both.
            let mut rng = Rng::new(seed);
            for _ in 0..1 + rng.below(3) {
                let at = if rng.percent(70) { 20 + rng.below(108) } else { 128 + rng.below(len as u64 - 132) } as usize;
                slot[at] = if rng.percent(50) { rng.next_u64() as u8 } else { slot[at] ^ 1 };
            }
            let sum = crc32c::crc32c(&slot[..len - 4]);
            slot[len - 4..len].copy_from_slice(&sum.to_le_bytes());
        }
        println!("ADIT_TEST_SEED={seed}"); // shown if it panics
        let base = Base::open(file(&world_of(&bytes)), "volume", options());
        if let Ok(base) = base {
            let _ = (state_of(&base), base.checkpoint(), base.gc());
        }
    }
}

/// `bytes` with a changed superblock in both slots.
fn with_superblock(bytes: &[u8], change: impl Fn(&mut Superblock)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for offset in [0, 64 << 10] {
        let mut superblock = Superblock::decode(&bytes[offset..]).unwrap();
        change(&mut superblock);
        let slot = superblock.encode().unwrap();
        bytes[offset..offset + slot.len()].copy_from_slice(&slot);
    }
    bytes
}

#[test]
fn what_a_superblock_names_lies_within_the_file() {
    let (bytes, _) = closed_volume(1);
    let segments = (bytes.len() / (128 << 10)) as u32;
    let corrupt = |what: &str, change: &dyn Fn(&mut Superblock)| {
        let world = world_of(&with_superblock(&bytes, change));
        let e = Base::open(file(&world), "volume", options()).err().unwrap_or_else(|| panic!("{what}"));
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
        assert_eq!(file(&world).len().unwrap(), bytes.len() as u64, "{what}");
    };
    corrupt("log", &|s| s.log_segment = segments);
    corrupt("log, far off", &|s| s.log_segment = u32::MAX);
    corrupt("length of the store", &|s| s.kv_len = 1 << 40);
    corrupt("its segments", &|s| s.kv_segments.push(SegmentRun { start: segments, count: 1 }));
    corrupt("a hole", &|s| s.kv_segments.push(SegmentRun { start: 0, count: u32::MAX }));
    // A capacity names nothing.
    let world = world_of(&with_superblock(&bytes, |s| s.capacity = 128 << 40));
    let base = Base::open(file(&world), "volume", options()).unwrap();
    put(&base, "a", b"1");
    base.close().unwrap();
    assert!(file(&world).len().unwrap() < 2 * bytes.len() as u64);
}

#[test]
fn made_up_numbers_of_batches_and_blocks_are_damage() {
    let (bytes, _) = closed_volume(1);
    let refused = |bytes: &[u8]| {
        let e = Base::open(file(&world_of(bytes)), "volume", options()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    };
    refused(&with_superblock(&bytes, |s| s.log_seq = u64::MAX));
    refused(&with_superblock(&bytes, |s| s.log_seq = 1 << 62));
    let superblock = Superblock::decode(&bytes).unwrap();
    let freed = vec![Run { start: 32, count: u32::MAX }; 1000];
    let record = Draft::new(&Batch { freed, ..Batch::default() }).seal(Seed::of(&superblock), superblock.log_seq, 0);
    let mut bytes = bytes.clone();
    let at = superblock.log_segment as usize * (128 << 10);
    bytes[at..at + record.len()].copy_from_slice(&record);
    refused(&bytes);
}

#[test]
fn no_memory_and_no_log_still_take_a_batch() {
    for (log_bytes_max, memory_bytes_max) in [(Some(0), None), (None, Some(0))] {
        let options = Options { log_bytes_max, memory_bytes_max, ..options() };
        let base = Base::create(file(&CrashWorld::new(Mode::Kill)), "volume", &small(), options).unwrap();
        put(&base, "a", b"1");
        put(&base, "b", b"2");
        base.close().unwrap();
    }
}

#[test]
fn a_capacity_can_change_as_long_as_all_fits() {
    let (world, base) = fresh();
    while allocate(&base, 8, 3).is_ok() {}
    let before = base.space();
    base.set_capacity(16 << 20).unwrap();
    assert_eq!(base.space().total, 2 * before.total);
    allocate(&base, 500, 4).unwrap();
    for (capacity, kind) in
        [(4 << 20, ErrorKind::NoSpace), (1 << 20, ErrorKind::InvalidInput), (u64::MAX, ErrorKind::InvalidInput)]
    {
        assert_eq!(base.set_capacity(capacity).unwrap_err().kind(), kind, "{capacity}");
    }
    base.abandon();
    let base = Base::open(file(&world), "volume", options()).unwrap();
    assert_eq!((base.info().capacity, base.space().total), (16 << 20, 2 * before.total));
}

#[test]
fn what_is_no_volume_is_said_to_be_none() {
    let e = Base::open(file(&world_of(b"PK\x03\x04")), "x.zip", options()).err().unwrap();
    assert_eq!(
        (e.kind(), e.to_string().as_str()),
        (ErrorKind::InvalidInput, "open x.zip: invalid argument: not a volume")
    );
    let world = world_of(b"something");
    let e = Base::create(file(&world), "notes.txt", &small(), options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Exists);
    let empty = CrashWorld::new(Mode::Kill);
    let e = Base::create(file(&empty), "volume", &NewVolume::new(1 << 20), options()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
}

#[test]
fn reading_only_writes_nothing_and_shows_the_log() {
    let (world, base) = fresh();
    put(&base, "stored", b"1");
    base.checkpoint().unwrap();
    put(&base, "logged", b"2");
    base.abandon();
    let calls = world.calls();
    let base = Base::open(file(&world), "volume", Options { read_only: true, ..options() }).unwrap();
    assert_eq!((get(&base, "stored"), get(&base, "logged")), (Some(b"1".to_vec()), Some(b"2".to_vec())));
    assert_eq!(base.apply(Batch::default()).unwrap_err().kind(), ErrorKind::ReadOnly);
    base.sync().unwrap();
    base.close().unwrap();
    assert_eq!(world.calls(), calls);
}

#[test]
fn gc_gives_space_back_to_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let new = NewVolume::new(64 << 20);
    let base = Base::create(Arc::new(HostBlockFile::create(&path).unwrap()), "v", &new, Options::default()).unwrap();
    let empty = base.space();
    let runs = allocate(&base, 4000, 5).unwrap();
    let mut keys = Vec::new();
    for n in 0..2000 {
        put(&base, &format!("key {n}"), &[1; 500]);
        keys.push((format!("key {n}").into_bytes(), None));
    }
    base.checkpoint().unwrap();
    let taken = |path: &Path| std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
    let before = taken(&path);
    assert!(before > 16 << 20);
    base.apply(Batch { freed: runs, writes: keys, ..Batch::default() }).unwrap();
    base.gc().unwrap();
    assert!(base.space().free * 10 > empty.free * 9, "{empty:?}, now {:?}", base.space());
    put(&base, "after", b"gc");
    base.close().unwrap();
    assert!(taken(&path) < 12 << 20, "{before} before, {} after", taken(&path));
    let file = HostBlockFile::open(&path, Access::Write).unwrap();
    let base = Base::open(Arc::new(file), "v", Options::default()).unwrap();
    assert_eq!(scan_all(&base).unwrap(), BTreeMap::from([(b"after".to_vec(), b"gc".to_vec())]));
}

#[test]
fn threads_lose_nothing_of_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let options = Options { log_bytes_max: Some(256 << 10), memory_bytes_max: Some(128 << 10), ..Options::default() };
    let base = Base::create(Arc::new(HostBlockFile::create(&path).unwrap()), "v", &NewVolume::new(64 << 20), options);
    let base = base.unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let base = &base;
        let writers: Vec<_> = (0..4)
            .map(|t| {
                scope.spawn(move || {
                    for n in 0..1500 {
                        put(base, &format!("{t} {n:04}"), &[t; 200]);
                        if n % 300 == 0 {
                            base.sync().unwrap();
                            allocate(base, 3, t).unwrap();
                        }
                        assert_eq!(get(base, &format!("{t} {:04}", n / 2)), Some(vec![t; 200]));
                    }
                })
            })
            .collect();
        let done = &done;
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let mut last = Vec::new();
                base.scan(b"1", b"2", &mut |key, value| {
                    assert!(key > last.as_slice() && value == [1; 200]);
                    last = key.to_vec();
                    ControlFlow::Continue(())
                })
                .unwrap();
                base.gc().unwrap();
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    let map = scan_all(&base).unwrap();
    assert_eq!(map.len(), 6000);
    let used: u64 = base.allocated().iter().map(|run| u64::from(run.count)).sum();
    assert_eq!(used, 4 * 5 * 3);
    base.abandon();
    let file = HostBlockFile::open(&path, Access::Write).unwrap();
    let base = Base::open(Arc::new(file), "v", Options::default()).unwrap();
    assert_eq!(scan_all(&base).unwrap(), map);
}
