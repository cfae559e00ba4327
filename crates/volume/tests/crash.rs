//! Crashes at every call of the file: after reopening, the table is what a prefix of the batches made of it, at least up to
//! the last sync (power cut) or the last acknowledged batch (kill), and all blocks hold what was written to them.

use std::sync::Arc;
use std::time::Duration;

use adit_testkit::crash::{
    CrashPlan, CrashPoint, CrashWorld, Mode, Pattern, SyncCall, SyncKind, crash_everywhere, patterns,
};
use adit_testkit::{Rng, seeds};
use adit_volume::format::container::{Durability, Superblock};
use adit_volume::table::BLOCK_LEN_BYTES;
use adit_volume::{Batch, Extents, Options, Run, Table};

mod support;
use support::*;

const MODES: [Mode; 3] = [Mode::Kill, Mode::Journalled, Mode::Adversarial];

/// Each mode with each place for blocks.
fn settings() -> impl Iterator<Item = (Mode, Data)> {
    MODES.into_iter().flat_map(|mode| [(mode, Data::Inline), (mode, Data::Folder)])
}

/// A world with a closed volume that holds something.
fn world(mode: Mode, data: Data, rng: &mut Rng) -> (CrashWorld, State) {
    let world = CrashWorld::new(mode);
    let base = create_in(&world, data, options()).unwrap();
    let told = run_script(&base, State::default(), 15, rng);
    base.close().unwrap();
    world.settle();
    (world, told.states.last().unwrap().clone())
}

/// What is left of a world after a crash: which state it is in, counted from the first one.
fn reopened(world: &CrashWorld, told: &Told, least: usize) -> Result<usize, String> {
    let base = open_in(world, options()).map_err(|e| format!("cannot be opened: {e}"))?;
    let damaged = base.damaged_pages();
    if !damaged.is_empty() {
        return Err(format!("pages {damaged:?} seem damaged"));
    }
    let state = state_of(&base).map_err(|e| format!("cannot be read: {e}"))?;
    let place = told.place(&state, least).ok_or_else(|| {
        let any = told.place(&state, 0);
        format!("it is the state after {any:?} of {} batches, at least {least} were due", told.states.len() - 1)
    })?;
    // It goes on from there.
    let mut rng = Rng::new(5);
    let more = run_script(&base, state, 6, &mut rng);
    base.close().map_err(|e| format!("cannot be closed: {e}"))?;
    let base = open_in(world, options()).map_err(|e| format!("cannot be opened again: {e}"))?;
    let state = state_of(&base).map_err(|e| e.to_string())?;
    (Some(&state) == more.states.last()).then_some(place).ok_or_else(|| "what came after is not there".into())
}

/// Opens the volume, runs a script, and closes it, in whatever state the world is then.
fn work(world: &CrashWorld, start: &State, seed: u64, steps: usize) -> Told {
    work_with(world, options(), start, seed, steps)
}

fn work_with(world: &CrashWorld, options: Options, start: &State, seed: u64, steps: usize) -> Told {
    let nothing = Told { states: vec![start.clone()], acknowledged: 0, synced: 0 };
    let Ok(base) = open_in(world, options) else { return nothing };
    let mut told = run_script(&base, start.clone(), steps, &mut Rng::new(seed));
    if base.close().is_ok() {
        told.synced = told.acknowledged;
    }
    told
}

fn least(mode: Mode, told: &Told) -> usize {
    if mode == Mode::Kill { told.acknowledged } else { told.synced }
}

#[test]
fn a_prefix_is_left_of_every_crash() {
    for seed in seeds(1) {
        for (mode, data) in settings() {
            let mut rng = Rng::new(seed);
            let (base, start) = world(mode, data, &mut rng);
            let plan = CrashPlan { points_max: 30, randoms: 3 };
            let run = |world: &CrashWorld| work(world, &start, seed, 40);
            crash_everywhere(&base, &plan, &mut rng, run, |told, point, left| {
                if let Err(e) = reopened(&left, told, least(mode, told)) {
                    panic!("{mode:?}, {data:?}, {point:?}: {e}. ADIT_TEST_SEED={seed}");
                }
            });
        }
    }
}

/// Many seeds with a crash each: thousands in the long run.
#[test]
fn a_prefix_is_left_with_many_seeds() {
    for seed in seeds(300) {
        let mut rng = Rng::new(seed);
        let (mode, data) = (*rng.pick(&MODES), *rng.pick(&[Data::Inline, Data::Folder]));
        let (base, start) = world(mode, data, &mut rng);
        let point = 1 + rng.below(150);
        let left = base.fork();
        left.stop_after(point);
        let told = work(&left, &start, seed, 40);
        let pattern = *rng.pick(&patterns(&left, 3));
        if let Err(e) = reopened(&left.crash(pattern, &mut rng), &told, least(mode, &told)) {
            panic!("{mode:?}, {data:?}, {pattern:?} after {point} calls: {e}. ADIT_TEST_SEED={seed}");
        }
    }
}

/// With the thread, which makes its calls when it likes, so that no two runs are the same.
#[test]
fn a_prefix_is_left_with_checkpoints_in_the_background() {
    for seed in seeds(1) {
        for (mode, data) in settings() {
            let mut rng = Rng::new(seed);
            let (base, start) = world(mode, data, &mut rng);
            let plan = CrashPlan { points_max: 25, randoms: 3 };
            let sync_interval = Duration::from_micros(100 + 400 * rng.below(10));
            let options = Options { background: true, sync_interval, ..options() };
            let run = |world: &CrashWorld| work_with(world, options, &start, seed, 60);
            crash_everywhere(&base, &plan, &mut rng, run, |told, point, left| {
                if let Err(e) = reopened(&left, told, least(mode, told)) {
                    panic!("{mode:?}, {data:?}, {point:?}: {e}. ADIT_TEST_SEED={seed}");
                }
            });
        }
    }
}

/// Each batch is safe when its call returns.
#[test]
fn with_durability_sync_a_power_cut_loses_nothing() {
    for (seed, data) in seeds(1).flat_map(|seed| [(seed, Data::Inline), (seed, Data::Folder)]) {
        let mut rng = Rng::new(seed);
        let (base, start) = world(Mode::Adversarial, data, &mut rng);
        let plan = CrashPlan { points_max: 25, randoms: 2 };
        let options = Options { durability: Some(Durability::Sync), ..options() };
        let run = |world: &CrashWorld| work_with(world, options, &start, seed, 30);
        crash_everywhere(&base, &plan, &mut rng, run, |told, point, left| {
            if let Err(e) = reopened(&left, told, told.acknowledged) {
                panic!("{data:?}, {point:?}: {e}. ADIT_TEST_SEED={seed}");
            }
        });
    }
}

#[test]
fn a_crash_of_the_recovery_takes_nothing_more() {
    for seed in seeds(1) {
        for (mode, data) in settings() {
            let mut rng = Rng::new(seed);
            let (base, start) = world(mode, data, &mut rng);
            let plan = CrashPlan { points_max: 3, randoms: 1 };
            let mut again = Rng::new(seed ^ 1);
            let run = |world: &CrashWorld| work(world, &start, seed, 30);
            crash_everywhere(&base, &plan, &mut rng, run, |told, first, left| {
                let plan = CrashPlan { points_max: 6, randoms: 1 };
                let open = |world: &CrashWorld| {
                    drop(open_in(world, options()));
                };
                crash_everywhere(&left, &plan, &mut again, open, |(), second: CrashPoint, left| {
                    if let Err(e) = reopened(&left, told, least(mode, told)) {
                        panic!("{mode:?}, {data:?}, {first:?}, then {second:?}: {e}. ADIT_TEST_SEED={seed}");
                    }
                });
            });
        }
    }
}

#[test]
fn a_volume_whose_making_was_cut_short_is_empty_or_none() {
    for seed in seeds(2) {
        for (mode, data) in settings() {
            let mut rng = Rng::new(seed);
            let fresh = CrashWorld::new(mode);
            drop(file(&fresh));
            fresh.settle();
            let make = |world: &CrashWorld| create_in(world, data, options()).is_ok();
            let plan = CrashPlan { points_max: 100, randoms: 3 };
            crash_everywhere(&fresh, &plan, &mut rng, make, |made, point, left| match open_in(&left, options()) {
                Ok(base) => assert_eq!(state_of(&base).unwrap(), State::default()),
                Err(e) => assert!(!*made, "{mode:?}, {data:?}, {point:?}: {e}. ADIT_TEST_SEED={seed}"),
            });
        }
    }
}

/// A kill while one slot is written, or damage to one, then a power cut while the next opening writes the other.
#[test]
fn the_first_flip_of_an_opening_leaves_one_superblock() {
    for seed in seeds(1) {
        let mut rng = Rng::new(seed);
        let (world, start) = world(Mode::Journalled, Data::Inline, &mut rng);
        // Of many sectors, so that it can be torn.
        for offset in [0, 64 << 10] {
            let mut bytes = vec![0; 64 << 10];
            file(&world).read_at(offset, &mut bytes).unwrap();
            let mut superblock = Superblock::decode(&bytes).unwrap();
            superblock.kv_head.resize(3000, 7);
            file(&world).write_at(offset, &superblock.encode().unwrap()).unwrap();
        }
        world.settle();
        let open = |world: &CrashWorld| drop(open_in(world, options()));
        for stop in 0.. {
            let first = world.fork();
            first.stop_after(stop);
            open(&first);
            // The page cache outlives the process.
            let plan = CrashPlan { points_max: 6, randoms: 4 };
            crash_everywhere(&first.fork(), &plan, &mut rng, open, |(), point, left| {
                let base = open_in(&left, options());
                let base = base.unwrap_or_else(|e| panic!("{stop}, {point:?}: {e}. ADIT_TEST_SEED={seed}"));
                assert_eq!(state_of(&base).unwrap(), start, "{stop}, {point:?}, ADIT_TEST_SEED={seed}");
            });
            if !first.is_dead() {
                break;
            }
        }
        // The newer slot is damaged, and the volume opens from the copy of it.
        for offset in [0, 64 << 10] {
            let damaged = world.fork();
            file(&damaged).write_at(offset + 700, &[1]).unwrap();
            damaged.settle();
            let plan = CrashPlan { points_max: 20, randoms: 4 };
            crash_everywhere(&damaged, &plan, &mut rng, open, |(), point, left| {
                let base = open_in(&left, options());
                let base = base.unwrap_or_else(|e| panic!("{offset}, {point:?}: {e}. ADIT_TEST_SEED={seed}"));
                assert_eq!(state_of(&base).unwrap(), start, "{offset}, {point:?}, ADIT_TEST_SEED={seed}");
            });
        }
    }
}

/// The host's cache shows what a failed sync lost, and the next sync does not write it.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_written_again() {
    let world = CrashWorld::new(Mode::Journalled);
    create_in(&world, Data::Inline, options()).unwrap().close().unwrap();
    world.settle();
    let base = open_in(&world, options()).unwrap();
    let block = vec![7; BLOCK_LEN_BYTES];
    let run = base.reserve(1, None, false).unwrap()[0];
    base.write(run.start, &block).unwrap();
    base.apply(Batch { allocated: vec![(run, vec![crc32c::crc32c(&block)])], ..Batch::default() }).unwrap();
    world.fail_sync_after(0);
    base.sync().unwrap_err();
    drop(base);
    let base = open_in(&world, options()).unwrap();
    let state = state_of(&base).unwrap();
    base.sync().unwrap();
    let left = world.crash(Pattern::None, &mut Rng::new(1));
    let base = open_in(&left, options()).unwrap();
    assert_eq!(state_of(&base).unwrap(), state);
}

/// As the opening moves the log into the store, of which the log knows no more than what reached the disk.
#[test]
fn a_log_that_a_failed_sync_left_in_the_cache_is_written_again() {
    let world = CrashWorld::new(Mode::Journalled);
    create_in(&world, Data::Inline, options()).unwrap().close().unwrap();
    world.settle();
    let base = open_in(&world, options()).unwrap();
    for n in 0..5 {
        base.apply(Batch { writes: vec![(vec![b'a' + n], Some(vec![n; 100]))], ..Batch::default() }).unwrap();
    }
    world.fail_sync_after(0);
    base.sync().unwrap_err();
    drop(base);
    let open = |world: &CrashWorld| drop(open_in(world, options()));
    let plan = CrashPlan { points_max: 100, randoms: 3 };
    crash_everywhere(&world, &plan, &mut Rng::new(1), open, |(), point, left| {
        let base = open_in(&left, options()).unwrap_or_else(|e| panic!("{point:?}: {e}"));
        let found = scan_all(&base).unwrap().len();
        assert!(found <= 5, "{point:?}: {found} keys");
    });
}

/// Also the record that names the next segment, where the last batch before it was synced.
#[test]
fn a_log_of_two_segments_that_a_failed_sync_left_in_the_cache_is_written_again() {
    let options = Options { log_bytes_max: Some(1 << 20), ..options() };
    let world = CrashWorld::new(Mode::Journalled);
    create_in(&world, Data::Inline, options).unwrap().close().unwrap();
    world.settle();
    let base = open_in(&world, options).unwrap();
    let put = |n: u8| base.apply(Batch { writes: vec![(vec![n], Some(vec![n; 3000]))], ..Batch::default() });
    // As many records of 3056 bytes as a segment of 128 KiB holds.
    for n in 1..=42 {
        put(n).unwrap();
    }
    base.sync().unwrap();
    for n in 43..=45 {
        put(n).unwrap();
    }
    world.fail_sync_after(0);
    base.sync().unwrap_err();
    drop(base);
    let open = |world: &CrashWorld| drop(open_in(world, options));
    let plan = CrashPlan { points_max: 40, randoms: 2 };
    crash_everywhere(&world, &plan, &mut Rng::new(1), open, |(), point, left| {
        let base = open_in(&left, options).unwrap_or_else(|e| panic!("{point:?}: {e}"));
        let found = scan_all(&base).unwrap().len();
        assert!((42..=45).contains(&found), "{point:?}: {found} keys");
    });
}

/// Each of them is in several segments of the log.
#[test]
fn a_batch_in_parts_is_there_as_a_whole_or_not_at_all() {
    let options = Options { log_bytes_max: Some(1 << 20), ..options() };
    let batch =
        |n: u8| Batch { writes: (0..3).map(|k| (vec![k], Some(vec![n; 60_000]))).collect(), ..Batch::default() };
    let small = |n: u8| Batch { writes: vec![(b"small".to_vec(), Some(vec![n]))], ..Batch::default() };
    for mode in MODES {
        let world = CrashWorld::new(mode);
        create_in(&world, Data::Inline, options).unwrap().close().unwrap();
        world.settle();
        let run = |world: &CrashWorld| {
            let (mut told, mut synced) = (0, 0);
            let Ok(base) = open_in(world, options) else { return (told, synced) };
            for n in 1..=2 {
                if base.apply(batch(n)).and_then(|_| base.apply(small(n))).is_err() {
                    break;
                }
                told = n;
                if n == 1 && base.sync().is_ok() {
                    synced = n;
                }
            }
            (told, synced)
        };
        let plan = CrashPlan { points_max: 16, randoms: 1 };
        crash_everywhere(&world, &plan, &mut Rng::new(1), run, |&(told, synced), point, left| {
            let least = if mode == Mode::Kill { told } else { synced };
            let base = open_in(&left, options).unwrap_or_else(|e| panic!("{mode:?} {point:?}: {e}"));
            let found = scan_all(&base).unwrap();
            let first = found.get(&vec![0]).map_or(0, |value| value[0]);
            assert!(first >= least, "{mode:?} {point:?}: {first} of {least}");
            for key in 0..3 {
                let expected = (first > 0).then(|| vec![first; 60_000]);
                assert_eq!(found.get(&vec![key]), expected.as_ref(), "{mode:?} {point:?}");
            }
            let small = found.get(&b"small"[..]).map_or(0, |value| value[0]);
            assert!(small == first || small + 1 == first, "{mode:?} {point:?}: {small} with {first}");
            base.apply(batch(9)).unwrap();
        });
    }
}

/// What was written to a new part of the file, and freed again, before any sync.
#[test]
fn a_power_cut_may_take_the_length_of_the_file() {
    let world = CrashWorld::new(Mode::Journalled);
    let base = create_in(&world, Data::Inline, options()).unwrap();
    base.close().unwrap();
    world.settle();
    let base = open_in(&world, options()).unwrap();
    let block = vec![7; BLOCK_LEN_BYTES];
    let runs = base.reserve(2, None, false).unwrap();
    let sums = |run: &Run| vec![crc32c::crc32c(&block); run.count as usize];
    runs.iter().for_each(|run| base.write(run.start, &block.repeat(run.count as usize)).unwrap());
    let allocated = runs.iter().map(|run| (*run, sums(run))).collect();
    base.apply(Batch { allocated, ..Batch::default() }).unwrap();
    base.apply(Batch { freed: runs, writes: vec![(b"a".to_vec(), Some(vec![1]))], ..Batch::default() }).unwrap();
    let left = world.crash(Pattern::AllButLengths, &mut Rng::new(1));
    assert!(file(&left).len().unwrap() < file(&world).len().unwrap());
    for read_only in [true, false] {
        let base = open_in(&left, Options { read_only, ..options() }).unwrap();
        let state = state_of(&base).unwrap();
        assert_eq!((state.map.len(), state.blocks.len()), (1, 0));
    }
}

#[test]
fn what_one_handle_has_open_another_does_not_get() {
    let world = CrashWorld::new(Mode::Kill);
    let base = create_in(&world, Data::Inline, options()).unwrap();
    let refused = open_in(&world, options()).err().unwrap();
    assert_eq!(refused.kind(), adit_core::ErrorKind::Busy);
    drop(base);
    assert!(open_in(&world, options()).is_ok());
}

/// Syncs by what they are for.
mod sieve {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use adit_core::media::BlockFile;

    /// What a sync is for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Purpose {
        /// A superblock that was written before it.
        Superblock,
        /// What a superblock that is written after it relies on.
        Pages,
        /// Whoever asked for it.
        User,
    }

    /// A file that leaves out the syncs of one purpose.
    pub struct Sieve {
        pub file: Arc<dyn BlockFile>,
        pub left_out: Purpose,
        pub slot_written: AtomicBool,
        /// Set while the user syncs.
        pub user: Arc<AtomicBool>,
    }

    impl BlockFile for Sieve {
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
            self.file.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.slot_written.store(offset == 0 || offset == 64 << 10, Ordering::Relaxed);
            self.file.write_at(offset, bytes)
        }

        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.file.set_len(len)
        }

        fn sync(&self) -> io::Result<()> {
            let purpose = match (self.user.load(Ordering::Relaxed), self.slot_written.load(Ordering::Relaxed)) {
                (true, _) => Purpose::User,
                (_, true) => Purpose::Superblock,
                _ => Purpose::Pages,
            };
            if purpose == self.left_out { Ok(()) } else { self.file.sync() }
        }

        fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
            self.file.punch(offset, len)
        }

        fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
            self.file.allocate(offset, len)
        }

        fn try_lock(&self) -> io::Result<bool> {
            self.file.try_lock()
        }
    }
}

/// As [`work`], on a file that leaves out some syncs.
fn work_without(world: &CrashWorld, start: &State, seed: u64, left_out: sieve::Purpose) -> Told {
    let user = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sieve = sieve::Sieve { file: file(world), left_out, slot_written: Default::default(), user: user.clone() };
    let mut told = Told { states: vec![start.clone()], acknowledged: 0, synced: 0 };
    let Ok(base) = open_file(Arc::new(sieve), world, options()) else { return told };
    let mut rng = Rng::new(seed);
    for step in 0..40 {
        let done = match step % 8 {
            3 => {
                user.store(true, std::sync::atomic::Ordering::Relaxed);
                let done = base.sync();
                user.store(false, std::sync::atomic::Ordering::Relaxed);
                done.map(|()| told.synced = told.acknowledged)
            }
            7 => base.checkpoint().map(|()| told.synced = told.acknowledged),
            _ => random_batch(&base, told.states.last().unwrap(), &mut rng).and_then(|(mut batch, mut after)| {
                if step % 8 == 1 {
                    // The store outgrows the file: the length is to be durable before a superblock says so.
                    for n in 0..8 {
                        let (key, value) = (format!("much {step} {n}").into_bytes(), vec![step as u8; 8000]);
                        after.map.insert(key.clone(), value.clone());
                        batch.writes.push((key, Some(value)));
                    }
                }
                told.states.push(after);
                base.apply(batch)?;
                told.acknowledged += 1;
                Ok(())
            }),
        };
        if done.is_err() {
            break;
        }
    }
    told
}

#[test]
fn each_kind_of_sync_is_needed() {
    use sieve::Purpose::{Pages, Superblock, User};
    for left_out in [User, Pages, Superblock] {
        let missed = (1..=12).any(|seed| {
            let mut rng = Rng::new(seed);
            let (base, start) = world(Mode::Journalled, Data::Inline, &mut rng);
            let plan = CrashPlan { points_max: 60, randoms: 3 };
            let mut missed = false;
            let run = |world: &CrashWorld| work_without(world, &start, seed, left_out);
            crash_everywhere(&base, &plan, &mut rng, run, |told, _, left| {
                missed = missed || reopened(&left, told, told.synced).is_err();
            });
            missed
        });
        assert!(missed, "nothing fails without the syncs of {left_out:?}");
    }
}

/// Without the syncs of the blocks themselves, of the directory that an object is in, or of the folder.
#[test]
fn each_sync_of_the_folder_is_needed() {
    type Kind = fn(&SyncCall) -> bool;
    let kinds: [(&str, Kind); 3] = [
        ("an object", |sync| sync.kind == SyncKind::FileData && !sync.path.ends_with("label")),
        ("a directory", |sync| sync.kind == SyncKind::Dir && sync.path.ends_with("000000")),
        ("the folder", |sync| sync.kind == SyncKind::Dir && sync.path.ends_with("v")),
    ];
    for (left_out, omit) in kinds {
        let missed = (1..=12).any(|seed| {
            let fresh = CrashWorld::new(Mode::Adversarial);
            create_in(&fresh, Data::Folder, options()).unwrap().close().unwrap();
            fresh.settle();
            let plan = CrashPlan { points_max: 60, randoms: 3 };
            let mut missed = false;
            let run = |world: &CrashWorld| {
                world.omit_syncs(move |sync| &*sync.root == "data" && omit(sync));
                work(world, &State::default(), seed, 40)
            };
            crash_everywhere(&fresh, &plan, &mut Rng::new(seed), run, |told, _, left| {
                missed = missed || reopened(&left, told, told.synced).is_err();
            });
            missed
        });
        assert!(missed, "nothing fails without the syncs of {left_out}");
    }
}
