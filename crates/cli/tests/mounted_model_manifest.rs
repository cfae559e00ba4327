//! Random operations through a writable mount of a manifest, compared with the naive model, by system calls: the first half of each
//! sequence makes a folder of which the manifest is, the other half changes what is shown of it.
//!
//! `ADIT_TEST_SEED` runs one seed; `ADIT_TEST_SCALE` multiplies their number.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use adit_testkit::Rng;
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::ops::{Op, PathSubject, Snapshot, StoreSubject, Subject, generate};
use adit_testkit::{scaled, seeds};
use common::pattern;
use mounts::Points;

/// Sequences, and operations of each.
const SEEDS: usize = 12;
const OPS: usize = 300;
/// Longer than a block of the cache, and the longest that it becomes.
const MAPPED_LEN: usize = (1 << 20) + 4096 + 77;
const LEN_MAX: usize = MAPPED_LEN + 100_000;

/// Everything that a volume holds, but what only root may do.
fn limits() -> Limits {
    Limits { unit_len_bytes: 4096, buffer_writes: false, reserves: false, stable_cookies: true, ..Limits::default() }
}

/// What of an operation a manifest can hold; none if it holds nothing of it.
fn for_manifest(op: &Op) -> Option<Op> {
    Some(match op {
        Op::Create(place, perm) => Op::Create(place.clone(), if perm & 0o100 == 0 { 0o644 } else { 0o755 }),
        Op::Mkdir(place, _) => Op::Mkdir(place.clone(), 0o755),
        Op::Symlink(place, _) => Op::Symlink(place.clone(), b"no-such-target".to_vec()),
        Op::Rename(..) | Op::Unlink(_) | Op::Rmdir(_) | Op::Write(..) | Op::Truncate(..) | Op::SetTimes(..) => {
            op.clone()
        }
        _ => return None,
    })
}

/// One sequence: the model of what it leads to, and what is left to be done.
struct Run {
    seed: u64,
    model: MemoryStore,
    rest: Vec<Op>,
    dir: String,
}

impl Run {
    /// Makes the folder of the first half below `work`.
    fn prepare(seed: u64, work: &Path) -> Run {
        let ops = generate(seed, OPS, &limits());
        let (first, rest) = ops.split_at(OPS / 2);
        let (model, dir) = (MemoryStore::new(limits()), format!("run-{seed}"));
        fs::create_dir(work.join(&dir)).unwrap();
        let (mut expected, mut host) = (StoreSubject::new(&model), PathSubject::new(&work.join(&dir)).unwrap());
        for op in first.iter().filter_map(for_manifest) {
            let told = (expected.run(&op), host.run(&op));
            assert_eq!(told.0, told.1, "ADIT_TEST_SEED={seed}: on the host itself: {op:?}");
        }
        drop((expected, host));
        Run { seed, model, rest: rest.to_vec(), dir }
    }

    /// Does the rest below `mnt`, and compares each outcome and the tree. The final tree.
    fn go_on(&self, mnt: &Path) -> Snapshot {
        let (mut expected, mut shown) =
            (StoreSubject::new(&self.model), PathSubject::new(&mnt.join(&self.dir)).unwrap());
        self.compare(&mut expected, &mut shown, "before");
        for (step, op) in self.rest.iter().enumerate() {
            let told = (expected.run(op), shown.run(op));
            assert_eq!(told.0, told.1, "ADIT_TEST_SEED={}: step {step} after the manifest: {op:?}", self.seed);
        }
        self.compare(&mut expected, &mut shown, "after")
    }

    fn compare(&self, expected: &mut StoreSubject<'_>, shown: &mut PathSubject, when: &str) -> Snapshot {
        let (expected, shown) = (expected.snapshot().unwrap(), shown.snapshot().unwrap());
        if let Some(what) = expected.difference(&shown) {
            panic!("ADIT_TEST_SEED={}: {when}: {what}", self.seed);
        }
        expected
    }
}

fn mount(points: &Points) {
    let line = ["mount", "job", "mnt", "--cas", "store", "--cache-dir", "cache", "--writable"];
    points.bench.run(line).expect(0);
}

fn manifest_of_work(points: &Points) {
    fs::create_dir_all(points.bench.path("store")).unwrap();
    let place = ["--format", "v2025", "--cas", "store", "--cache-dir", "hashes"];
    points.bench.run([&["manifest", "snapshot", "work", "-o", "job"], &place[..]].concat()).expect(0);
}

#[test]
fn random_operations_on_a_writable_manifest_are_those_of_the_model() {
    let Some(points) = Points::new(&["mnt"]) else { return };
    let (work, mnt) = (points.bench.path("work"), points.bench.path("mnt"));
    fs::create_dir(&work).unwrap();
    let runs: Vec<Run> = seeds(SEEDS).map(|seed| Run::prepare(seed, &work)).collect();
    manifest_of_work(&points);
    mount(&points);
    let left: Vec<Snapshot> = runs.iter().map(|run| run.go_on(&mnt)).collect();
    points.bench.run(["umount", "mnt"]).expect(0);
    // It is all there again, and the volume below is sound.
    mount(&points);
    for (run, expected) in runs.iter().zip(&left) {
        let found = PathSubject::new(&mnt.join(&run.dir)).unwrap().snapshot().unwrap();
        assert_eq!(expected.difference(&found), None, "ADIT_TEST_SEED={}: mounted again", run.seed);
    }
    points.bench.run(["umount", "mnt"]).expect(0);
    let upper = fs::read_dir(points.bench.path("cache/overlays")).unwrap().next().unwrap().unwrap().path();
    points.bench.run(["volume", "check", upper.to_str().unwrap()]).expect(0);
}

/// A mapping of a file, for as long as this lives.
struct Mapped {
    at: *mut u8,
    len: usize,
}

impl Mapped {
    fn new(file: &File, len: usize) -> Mapped {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else knows of it.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }.unwrap();
        Mapped { at: at.cast(), len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as this, is as long as the file, which nobody makes shorter meanwhile, and only this knows it.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and is not used any more.
        unsafe { rustix::mm::munmap(self.at.cast(), self.len) }.unwrap();
    }
}

/// As fsx does, but on files whose content is remote at first: reads, writes, both through a mapping, and lengths.
#[test]
fn remote_content_is_read_written_mapped_and_cut_in_turns() {
    let Some(points) = Points::new(&["mnt"]) else { return };
    let work = points.bench.path("work");
    fs::create_dir(&work).unwrap();
    let seeds: Vec<u64> = (0..scaled(4) as u64).collect();
    let content = |seed: u64| -> Vec<u8> { pattern(MAPPED_LEN + seed as usize)[seed as usize..].to_vec() };
    for &seed in &seeds {
        fs::write(work.join(format!("f{seed}")), content(seed)).unwrap();
    }
    manifest_of_work(&points);
    mount(&points);
    let at = |seed: u64| -> PathBuf { points.bench.path("mnt").join(format!("f{seed}")) };
    let mut left = Vec::new();
    for &seed in &seeds {
        let (mut rng, mut expected) = (Rng::new(seed), content(seed));
        let file = File::options().read(true).write(true).open(at(seed)).unwrap();
        for step in 0..150 {
            let len = expected.len();
            let from = rng.below(len as u64 + 1) as usize;
            let some = (rng.below(70_000) as usize).min(LEN_MAX - from);
            let within = from..len.min(from + some);
            let byte = rng.below(256) as u8;
            match rng.below(6) {
                0 if len > 0 => {
                    Mapped::new(&file, len).bytes()[within.clone()].fill(byte);
                    expected[within].fill(byte);
                }
                1 if len > 0 => {
                    let same = Mapped::new(&file, len).bytes()[within.clone()] == expected[within];
                    assert!(same, "seed {seed}, step {step}: mapped");
                }
                2 => {
                    file.write_all_at(&vec![byte; some], from as u64).unwrap();
                    expected.resize(len.max(from + some), 0);
                    expected[from..from + some].fill(byte);
                }
                3 => {
                    // Mostly near the end, or little would be left soon.
                    let new = if rng.percent(80) { (len + 30_000).saturating_sub(some) } else { from + some };
                    let new = new.min(LEN_MAX);
                    file.set_len(new as u64).unwrap();
                    expected.resize(new, 0);
                }
                4 => file.sync_data().unwrap(),
                _ => {
                    let mut found = vec![0; within.len()];
                    file.read_exact_at(&mut found, from as u64).unwrap();
                    assert!(found == expected[within], "seed {seed}, step {step}: read");
                }
            }
        }
        left.push(expected);
    }
    for (&seed, expected) in seeds.iter().zip(&left) {
        assert!(fs::read(at(seed)).unwrap() == *expected, "seed {seed}");
    }
    points.bench.run(["umount", "mnt"]).expect(0);
    mount(&points);
    for (&seed, expected) in seeds.iter().zip(&left) {
        assert!(fs::read(at(seed)).unwrap() == *expected, "seed {seed}: mounted again");
    }
    points.bench.run(["umount", "mnt"]).expect(0);
}
