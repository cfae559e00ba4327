//! What is free, taken and given back.

use super::batches::no_block_twice;
use super::*;
use adit_testkit::{Rng, seeds};
use std::collections::BTreeMap;

fn geometry() -> Geometry {
    Geometry { segments: 12, blocks: 32, log_segments: 2, kept_back: 1 }
}

#[test]
fn one_run_where_there_is_room_and_near_the_hint() {
    let mut space = Space::new(geometry(), 12);
    assert_eq!(space.reserve(20, None, false).unwrap(), [Run { start: 32, count: 20 }]);
    assert_eq!(space.reserve(20, None, false).unwrap(), [Run { start: 64, count: 20 }]);
    assert_eq!(space.reserve(4, Some(52), false).unwrap(), [Run { start: 52, count: 4 }]);
    assert_eq!(space.reserve(70, Some(84), false).unwrap(), [Run { start: 84, count: 70 }]);
}

#[test]
fn the_last_segments_are_kept_back_and_nothing_is_taken_in_vain() {
    let mut space = Space::new(geometry(), 12);
    let all = (12 - 1 - 2 - 1) * 32;
    assert!(space.reserve(all + 1, None, false).is_none());
    let (free, kept) = space.blocks(0);
    assert_eq!((free, kept), (u64::from(all) + 32, 32));
    let runs = space.reserve(all, None, false).unwrap();
    assert_eq!((space.blocks(0).0, space.reserve(1, None, false)), (32, None));
    space.release(&runs);
    assert_eq!(space.blocks(0).0, free);
    assert_eq!(space.take_empty().len(), 8);
}

#[test]
fn what_takes_away_gets_half_of_what_is_kept_back() {
    let mut space = Space::new(Geometry { kept_back: 3, ..geometry() }, 12);
    let all = (12 - 1 - 2 - 3) * 32;
    assert!(space.reserve(all, None, false).is_some());
    assert_eq!(space.reserve(1, None, false), None);
    assert_eq!(space.reserve(33, None, true), None);
    assert!(space.reserve(32, None, true).is_some());
    assert_eq!(space.reserve(1, None, true), None);
}

#[test]
fn a_lost_length_of_the_file_contradicts_nothing_that_was_freed_since() {
    let run = |start, count| Run { start, count };
    // Of twelve segments only two are left.
    let mut space = Space::new(geometry(), 2);
    space.replay(&[run(40, 2), run(100, 4), run(62, 4)], &[], 1).unwrap();
    assert!(space.check_replayed().is_err(), "what is allocated must be there");
    assert!(space.replay(&[run(100, 1)], &[], 2).is_err(), "twice");
    assert!(space.replay(&[], &[run(104, 1)], 2).is_err(), "never allocated");
    assert!(space.replay(&[], &[run(104, u32::MAX)], 2).is_err(), "never allocated");
    assert!(space.replay(&[], &[run(40, 1), run(40, 1)], 2).is_err(), "freed twice");
    space.replay(&[run(106, 1)], &[run(100, 4), run(62, 4)], 2).unwrap();
    space.replay(&[], &[run(106, 1), run(40, 1)], 3).unwrap();
    space.check_replayed().unwrap();
    assert_eq!(space.allocated(), [run(41, 1)]);
    let other = space.reserve(40, None, false).unwrap();
    assert!(other.iter().all(|r| !r.blocks().contains(&40)), "{other:?}");
    space.settle(3);
    assert_eq!(space.reserve(1, Some(40), false).unwrap(), [run(40, 1)]);
}

#[test]
fn segments_of_the_store_lie_together_whatever_is_bound_between() {
    let big = Geometry { segments: 1 << 20, blocks: 32, log_segments: 2, kept_back: 4 };
    let mut space = Space::new(big, 12);
    let mut store = Vec::new();
    for n in 0..30_000 {
        store.push(space.bind_kv());
        // Data, and what a log takes and gives back.
        space.reserve(32 * (1 + n % 3), None, false).unwrap();
        if n % 10 == 0 {
            let log = space.bind(false);
            space.unbind(log, false);
        }
    }
    let runs = crate::container::runs_of(store.into_iter());
    assert!(runs.len() < 500, "{}", runs.len());
}

#[test]
fn what_is_kept_together_is_taken_before_the_capacity_is_passed() {
    let big = Geometry { segments: 200, blocks: 32, log_segments: 2, kept_back: 0 };
    let mut space = Space::new(big, 12);
    (0..65).for_each(|_| assert!(space.bind_kv() < 200));
    while space.reserve(1, None, false).is_some() {}
    assert_eq!(space.blocks(0).0, 0);
    assert!(space.segments.len() <= 200, "{}", space.segments.len());
}

#[test]
fn random_use_agrees_with_sets_and_no_block_has_two_owners() {
    for seed in seeds(30) {
        let mut rng = Rng::new(seed);
        let apart = rng.percent(50);
        let new = || if apart { Space::with_folder(geometry(), 12, 12) } else { Space::new(geometry(), 12) };
        let mut space = new();
        let mut reserved: Vec<Run> = Vec::new();
        let mut allocated: Vec<Run> = Vec::new();
        let mut pending: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
        let mut bound: Vec<u32> = Vec::new();
        for seq in 1..300 {
            match rng.below(7) {
                0 | 1 => {
                    let hint = rng.percent(50).then(|| rng.below(12 * 32));
                    reserved.extend(space.reserve(1 + rng.below(50) as u32, hint, false).unwrap_or_default());
                }
                2 if !reserved.is_empty() => {
                    let run = reserved.swap_remove(rng.below(reserved.len() as u64) as usize);
                    assert!(space.admits(&[run], &[]) && !space.admits(&[run, run], &[]));
                    space.apply(std::iter::once(run), &[], seq);
                    allocated.push(run);
                }
                3 if !reserved.is_empty() => {
                    space.release(&[reserved.swap_remove(rng.below(reserved.len() as u64) as usize)]);
                }
                4 if !allocated.is_empty() => {
                    let run = allocated.swap_remove(rng.below(allocated.len() as u64) as usize);
                    assert!(space.admits(&[], &[run]) && !space.admits(&[run], &[]));
                    space.apply(std::iter::empty(), &[run], seq);
                    pending.entry(seq).or_default().push(run);
                }
                5 => {
                    let durable = rng.below(seq);
                    space.settle(durable);
                    pending.retain(|seq, _| *seq > durable);
                }
                _ if rng.percent(30) => match bound.pop() {
                    Some(segment) => space.unbind(segment, true),
                    None if rng.percent(50) => bound.push(space.bind_kv()),
                    None => bound.push(space.bind(true)),
                },
                _ => {}
            }
            let taken: Vec<Run> =
                reserved.iter().chain(&allocated).chain(pending.values().flatten()).copied().collect();
            assert!(no_block_twice(&taken), "ADIT_TEST_SEED={seed}");
            let shared = taken.iter().any(|run| bound.contains(&((run.start / 32) as u32)));
            assert!(apart || !shared, "ADIT_TEST_SEED={seed}");
            assert!((1..bound.len()).all(|at| !bound[..at].contains(&bound[at])), "ADIT_TEST_SEED={seed}");
            let blocks: u64 = allocated.iter().map(|run| u64::from(run.count)).sum();
            let counted: u64 = space.allocated().iter().map(|run| u64::from(run.count)).sum();
            assert_eq!(counted, blocks, "ADIT_TEST_SEED={seed}");
        }
        // What a checkpoint stores is what is there.
        let mut other = new();
        for (segment, bitmap) in space.take_dirty() {
            if let Some(bitmap) = bitmap {
                other.load(segment, &bitmap).unwrap();
            }
        }
        assert_eq!(other.allocated(), space.allocated(), "ADIT_TEST_SEED={seed}");
        assert!(space.take_dirty().is_empty());
    }
}
