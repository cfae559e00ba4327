//! Stop after every call, lose what the crash model says may be lost, open again: every byte is right. Nothing is promised of what
//! is still there after a power cut; after a kill it is what was there.

use adit_core::error::Result;
use adit_manifest::cache::{Cache, CacheOptions, ObjectId};
use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::{Rng, seeds};

use crate::support::*;

struct Trial {
    source: Source,
    ids: Vec<ObjectId>,
    seed: u64,
    options: CacheOptions,
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut rng = Rng::new(seed);
        let source = Source::new();
        let ids = [600, 4500, 10_000, 2048].into_iter().enumerate().map(|(n, len)| source.add(len, n as u64)).collect();
        let limit_bytes = *rng.pick(&[u64::MAX, u64::MAX, 12_000]);
        Trial { source, ids, seed, options: CacheOptions { limit_bytes, strict: rng.percent(30), ..options() } }
    }

    /// Reads here and there, as far as the world lives. Even in a dead one each read goes well.
    fn work(&self, world: &CrashWorld) {
        let Ok(cache) = self.open(world) else { return };
        let mut rng = Rng::new(self.seed);
        for _ in 0..25 {
            let id = *rng.pick(&self.ids);
            let (content, offset) = (self.source.content(id), rng.below(id.len));
            let len = *rng.pick(&[100, 1000, 20_000]);
            let found = read(&cache.object(id), offset, len, &self.source).unwrap();
            let from = offset as usize;
            assert!(found == content[from..(from + len).min(content.len())], "seed {}", self.seed);
            if rng.percent(20) {
                // Another process, as far as the folder can tell.
                drop(self.open(world).map(|other| other.object(id).prefetch(0..id.len, &self.source)));
            }
        }
    }

    fn open(&self, world: &CrashWorld) -> Result<Cache> {
        Cache::open(std::sync::Arc::new(world.dir("cache")), self.options.clone())
    }

    fn read_everything(&self, world: &CrashWorld) -> Cache {
        let cache = self.open(world).unwrap();
        for id in &self.ids {
            read_all(&cache, *id, 3000, &self.source);
            read_all(&cache, *id, 700, &self.source);
        }
        assert_eq!((cache.stats().quarantined, cache.stats().folder_errors), (0, 0), "seed {}", self.seed);
        cache
    }
}

fn crash_test(mode: Mode, count: usize) {
    let plan = CrashPlan { points_max: 40, randoms: 2 };
    for seed in seeds(count) {
        let trial = Trial::new(seed);
        let base = CrashWorld::new(mode);
        let mut rng = Rng::new(seed);
        // What is there is not all from one process.
        trial.work(&base);
        base.settle();
        let again = Trial { seed: seed + 1, ..Trial::new(seed) };
        crash_everywhere(
            &base,
            &plan,
            &mut rng,
            |world| again.work(world),
            |(), point, left| {
                let cache = again.read_everything(&left);
                if mode == Mode::Kill {
                    assert_eq!(cache.stats().damaged, 0, "seed {seed}, {point:?}: a kill damages nothing");
                }
                drop(cache);
                // Once more during what follows.
                left.stop_after(Rng::new(seed ^ point.calls).below(30));
                again.work(&left);
                let left = left.crash(point.pattern, &mut Rng::new(seed));
                drop(again.read_everything(&left));
            },
        );
    }
}

#[test]
fn after_a_kill_every_byte_is_right() {
    crash_test(Mode::Kill, 6);
}

#[test]
fn after_a_power_cut_under_a_journalling_host_every_byte_is_right() {
    crash_test(Mode::Journalled, 6);
}

#[test]
fn after_a_power_cut_under_the_worst_host_every_byte_is_right() {
    crash_test(Mode::Adversarial, 6);
}

/// What a process has fetched and said to be there is not fetched again after its kill.
#[test]
fn a_kill_loses_no_block() {
    let world = CrashWorld::new(Mode::Kill);
    let source = Source::new();
    let (large, small) = (source.add(10_000, 1), source.add(500, 2));
    let cache = open(world.dir("cache"), options());
    read_all(&cache, small, 500, &source);
    read(&cache.object(large), 3000, 2000, &source).unwrap();
    assert_eq!(source.fetched_bytes(), 500 + 3 * 1024);
    world.stop_after(0);
    assert!(read(&cache.object(large), 8000, 1, &source).is_ok());
    let left = world.crash(adit_testkit::crash::Pattern::Random, &mut Rng::new(1));
    source.fetched();
    let cache = open(left.dir("cache"), options());
    read_all(&cache, small, 500, &source);
    read(&cache.object(large), 3000, 2000, &source).unwrap();
    assert_eq!(source.fetched(), []);
}

/// A read syncs nothing.
#[test]
fn no_read_waits_for_a_sync() {
    let world = CrashWorld::new(Mode::Adversarial);
    let source = Source::new();
    let id = source.add(10_000, 1);
    let cache = open(world.dir("cache"), options());
    read_all(&cache, id, 3000, &source);
    assert_eq!(world.syncs(), 0);
}
