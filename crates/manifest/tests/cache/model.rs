//! Random reads of known bytes, over openings, limits, block lengths and kinds of reading.

use std::sync::Arc;

use adit_core::media::HostDir;
use adit_manifest::cache::{Cache, CacheOptions, ObjectId};
use adit_testkit::crash::{CrashWorld, Mode};
use adit_testkit::{Rng, scaled, seeds};

use crate::support::*;

fn lengths(rng: &mut Rng) -> Vec<usize> {
    let around = |rng: &mut Rng, len: u64| (len + rng.below(3)).saturating_sub(1) as usize;
    vec![
        0,
        1,
        around(rng, u64::from(BLOCK)),
        around(rng, 4 * u64::from(BLOCK)),
        around(rng, 65 * u64::from(BLOCK)),
        rng.below(40_000) as usize,
    ]
}

fn run(seed: u64, host: impl Fn() -> Arc<dyn HostDir>) {
    let mut rng = Rng::new(seed);
    let mut source = Source::new();
    source.piece = *rng.pick(&[0, 1, 100, 1024, 3000]);
    let ids: Vec<ObjectId> =
        lengths(&mut rng).into_iter().enumerate().map(|(n, len)| source.add(len, n as u64)).collect();
    for _ in 0..4 {
        let options = CacheOptions {
            limit_bytes: *rng.pick(&[0, 3000, 30_000, 100_000, u64::MAX, u64::MAX]),
            block_len: *rng.pick(&[512, 1024, 1024, 1024, 4096]),
            strict: rng.percent(30),
            workers: *rng.pick(&[0, 0, 2]),
            ..options()
        };
        let cache = Cache::open(host(), options).unwrap();
        for _ in 0..scaled(60) {
            let id = *rng.pick(&ids);
            let (object, content) = (cache.object(id), source.content(id));
            let offset = rng.below(id.len + 2);
            let len = *rng.pick(&[1, 100, 1024, 5000, 100_000]);
            match rng.below(10) {
                0 => object.prefetch(offset..offset + len as u64, &source).unwrap(),
                1 => {
                    for missing in object.missing(offset..offset + len as u64) {
                        assert!(missing.start < missing.end && missing.end <= id.len);
                    }
                }
                2 => {
                    let state = object.state();
                    assert!(state.len == id.len && state.present <= id.len);
                    assert!(!state.verified || state.present == id.len);
                }
                3 => drop(object.verified_file()),
                _ => {
                    let from = (offset as usize).min(content.len());
                    let expected = &content[from..(from + len).min(content.len())];
                    let found = read(&object, offset, len, &source).unwrap();
                    assert!(found == expected, "seed {seed}: wrong bytes of {id:?} at {offset}");
                }
            }
        }
        assert_eq!(cache.stats().quarantined, 0);
        assert_eq!((cache.stats().damaged, cache.stats().folder_errors), (0, 0), "seed {seed}");
    }
}

#[test]
fn reads_give_the_objects_bytes_in_memory() {
    for seed in seeds(60) {
        let world = CrashWorld::new(Mode::Kill);
        run(seed, || Arc::new(world.dir("cache")));
    }
}

#[test]
fn reads_give_the_objects_bytes_in_a_folder() {
    for seed in seeds(10) {
        let dir = folder();
        run(seed, || Arc::new(host(&dir)));
    }
}
