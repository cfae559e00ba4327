//! Random trees: a segment says what a map of paths says, whatever the order of the entries and however little memory there is.

mod support;

use std::fs;
use std::ops::ControlFlow;

use adit_core::ErrorKind;
use adit_index::layout::{DEPTH_MAX, PATH_LEN_MAX_BYTES, Section};
use adit_index::{Builder, NodeId, Segment, Stage};
use adit_testkit::{Rng, scaled, seeds};
use support::{Item, Place, compare, items, model, shuffled};

#[test]
fn a_segment_says_what_the_model_says() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 1, 5, 40, 400, 2000][rng.below(6) as usize];
        let items = items(&mut rng, count);
        let place = Place::new();
        let mut builder = place.builder();
        builder.set_implied(0o711, -5);
        builder.set_identity(&seed.to_le_bytes()).unwrap();
        items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
        assert_eq!(builder.len(), items.len() as u64);
        let built = builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
        let segment = Segment::open(&place.out()).unwrap();
        let model = model(&items, 0o711, -5);
        compare(&segment, &model);
        assert_eq!(segment.identity(), seed.to_le_bytes());
        assert_eq!((built.nodes, built.file_len), (segment.len(), segment.file_len()));
        assert_eq!(built.implied as usize, model.values().filter(|item| item.implied).count());
        assert_eq!(place.left(), [""; 0]);
    }
}

/// Runs of 1 MiB: of so many that they are merged in two steps, and levels that do not fit in memory.
#[test]
fn what_does_not_fit_in_memory_is_the_same() {
    for seed in seeds(1) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let tail = "t".repeat(900);
        let mut items: Vec<Item> = (0..scaled(24_000))
            .map(|n| {
                let (a, b) = (rng.below(7), rng.below(300));
                let mut item = Item::file(format!("common/{a}/dir {b}/{n} {tail}").as_bytes());
                item.size = rng.next_u64();
                item.extra = if n % 50 == 0 { vec![n as u8; 1 + n % 90_000] } else { Vec::new() };
                item.hash = (n % 3 == 0).then_some([n as u8; 16]);
                item
            })
            .collect();
        items.push(Item::dir(b"common/empty"));
        let place = Place::new();
        let segment = place.segment(&items);
        compare(&segment, &model(&items, 0o755, 0));

        let bytes = fs::read(place.out()).unwrap();
        let items = shuffled(&mut rng, items);
        let mut builder = Builder::new(place.dir.path(), 1 << 30);
        builder.set_identity(b"a test").unwrap();
        items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
        builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(fs::read(place.out()).unwrap() == bytes, "another order, all in memory: other bytes");
        assert_eq!(place.left(), [""; 0]);
    }
}

#[test]
fn a_tree_may_be_deep_or_a_path_long() {
    let place = Place::new();
    let long = vec![b'x'; PATH_LEN_MAX_BYTES];
    let both = [&vec![b'y'; 4000][..], b"/", &[b'z'; 255], b"/", &[b'z'; 254], b"/", &[b'z'; 256]].concat();
    let items = [Item::file(&long), Item::file(&both), Item::file(vec!["d"; 300].join("/").as_bytes())];
    compare(&place.segment(&items), &model(&items, 0o755, 0));

    let deep = vec!["d"; DEPTH_MAX].join("/").into_bytes();
    let segment = place.segment(&[Item::file(&deep)]);
    segment.verify(&mut |_| ControlFlow::Continue(())).unwrap();
    let mut at = NodeId::ROOT;
    for depth in 1..=DEPTH_MAX as u32 {
        at = segment.lookup(at, b"d").unwrap().unwrap();
        assert_eq!(at, NodeId(depth));
    }
    assert!(segment.path(at).unwrap() == deep);
}

#[test]
fn a_large_directory_is_listed_from_anywhere() {
    let place = Place::new();
    let count = 5000_u32;
    let items: Vec<Item> = (0..count).map(|n| Item::file(format!("{n:05}").as_bytes())).collect();
    let segment = place.segment(&items);
    for from in 0..=count {
        let mut children = segment.children(NodeId::ROOT, from).unwrap();
        let next = children.next().map(|child| child.unwrap().name.to_vec());
        assert_eq!(next, (from < count).then(|| format!("{from:05}").into_bytes()));
    }
}

#[test]
fn an_empty_tree_is_a_root() {
    let place = Place::new();
    let segment = place.segment(&[]);
    compare(&segment, &model(&[], 0o755, 0));
    assert_eq!(segment.path(NodeId::ROOT).unwrap(), b"");
}

/// Aims of the format: 24 bytes a node beside names, hashes and extra bytes.
#[test]
fn a_node_takes_less_than_24_bytes() {
    let place = Place::new();
    let items: Vec<Item> = (0..16_000).map(|n| Item::file(format!("{}/{n}", n / 100).as_bytes())).collect();
    let segment = place.segment(&items);
    let beside = |section| matches!(section, Section::Names | Section::Hashes | Section::ExtraEntries | Section::Extra);
    let bytes: u64 = segment.sections().filter(|(section, _)| !beside(*section)).map(|(_, len)| len).sum();
    assert!(bytes <= 24 * u64::from(segment.len()), "{bytes} bytes for {} nodes", segment.len());
}

#[test]
fn progress_is_told_from_the_beginning_to_the_end() {
    let place = Place::new();
    let mut builder = place.builder();
    (0..40_000).for_each(|n| builder.add(&Item::file(format!("{n}").as_bytes()).entry()).unwrap());
    let mut stages = Vec::new();
    let mut told = 0;
    builder
        .finish(&place.out(), &mut |progress| {
            assert!(progress.done <= progress.total);
            told += 1;
            if stages.last() != Some(&progress.stage) {
                stages.push(progress.stage);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(stages, [Stage::Sort, Stage::Write]);
    assert!(told >= 6, "{told}");
}

/// So many that threads divide the work: the same bytes in order and not, from memory and from runs; and what is in them is right.
#[test]
fn many_entries_are_the_same_by_all_threads() {
    for seed in seeds(1) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let items: Vec<Item> = (0..scaled(150_000))
            .map(|n| {
                let mut item = Item::file(format!("d{}/sub {}/file {n}", rng.below(40), rng.below(90)).as_bytes());
                item.size = rng.next_u64();
                item.hash = (n % 2 == 0).then(|| [rng.below(256) as u8; 16]);
                item.extra = if n % 1000 == 0 { vec![n as u8; 70_000] } else { Vec::new() };
                item
            })
            .collect();
        let place = Place::new();
        let build = |items: &[Item], limit| {
            let mut builder = Builder::new(place.dir.path(), limit);
            builder.set_tables(true);
            items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
            builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
            fs::read(place.out()).unwrap()
        };
        let bytes = build(&items, 1 << 30);
        let segment = Segment::open(&place.out()).unwrap();
        segment.verify(&mut |_| ControlFlow::Continue(())).unwrap();
        compare(&segment, &model(&items, 0o755, 0));
        let mixed = shuffled(&mut rng, items);
        for limit in [1 << 30, 16 << 20, 2 << 20] {
            assert!(build(&mixed, limit) == bytes, "{limit} bytes of memory: another file");
        }
        assert_eq!(place.left(), [""; 0]);
    }
}

/// Wherever it is ended, all threads end, and nothing is left.
#[test]
fn a_build_that_is_ended_leaves_nothing() {
    let place = Place::new();
    let mut after = 0;
    loop {
        let mut builder = Builder::new(place.dir.path(), 2 << 20);
        builder.set_tables(true);
        (0..140_000).for_each(|n| builder.add(&Item::file(format!("{}/{n}", n % 7).as_bytes()).entry()).unwrap());
        let mut told = Vec::new();
        let finished = builder.finish(&place.out(), &mut |progress| {
            assert!(progress.done <= progress.total, "{progress:?}");
            told.push(progress);
            if told.len() > after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(place.left(), [""; 0]);
        match finished {
            Ok(_) => {
                let stages: Vec<Stage> = told.iter().map(|progress| progress.stage).collect();
                assert!(stages.is_sorted_by_key(|stage| {
                    [Stage::Sort, Stage::Write, Stage::Tables].iter().position(|one| one == stage)
                }));
                assert!(stages.contains(&Stage::Tables), "{stages:?}");
                return;
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Interrupted, "after {after}"),
        }
        assert!(!place.out().exists());
        after += 4;
    }
}
