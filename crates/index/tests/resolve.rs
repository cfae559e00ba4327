//! Paths to nodes: alone, in batches, with tables and without, all say what a map of paths says; whatever the path looks like,
//! and whoever made hashes equal on purpose.

mod support;

use std::fs;
use std::ops::ControlFlow;

use adit_core::error::ErrorKind;
use adit_core::types::Kind;
use adit_index::fuzzing::{opened, resealed};
use adit_index::layout::tables::path_hash;
use adit_index::layout::{Header, Section};
use adit_index::query::{Pattern, Query};
use adit_index::resolve::{find_batch, resolve_batch};
use adit_index::{Damage, Miss, MissKind, NodeId, Question, Resolver, ResolverOptions, Segment};
use adit_testkit::{Rng, scaled, seeds};
use support::paths::{expected, question, same_hash};
use support::{Item, Place, items, model};

/// All ways to ask.
fn resolvers(segment: &Segment) -> Vec<Resolver<'_>> {
    let made = ResolverOptions::default().make_tables(true).threads(1);
    let ways = [ResolverOptions::default(), made, made.walk(true)];
    ways.map(|options| Resolver::with(segment, options).unwrap()).into()
}

/// As long as a line may be. Who hashed each directory on the way would be at it for hours.
#[test]
fn a_miss_on_a_path_that_is_far_too_long_is_told_at_once() {
    let place = Place::new();
    let deep = vec!["a"; 300].join("/");
    let segment = place.segment_with_tables(&[Item::file(format!("{deep}/file").as_bytes())]);
    let path = "a/".repeat(500_000) + "a";
    for resolver in resolvers(&segment) {
        let miss = resolver.resolve(NodeId::ROOT, path.as_bytes()).unwrap().unwrap_err();
        assert_eq!((miss.at, miss.why), (600, MissKind::NotFound));
        assert_eq!(resolver.resolve(NodeId::ROOT, deep.as_bytes()).unwrap(), Ok(miss.reached));
    }
}

#[test]
fn every_way_to_ask_says_what_the_model_says() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 1, 5, 40, 400, 2000][rng.below(6) as usize];
        let items = items(&mut rng, count);
        let model = model(&items, 0o755, 0);
        let place = Place::new();
        let segment = if rng.below(4) == 0 { place.segment(&items) } else { place.segment_with_tables(&items) };
        let keys: Vec<_> = model.keys().collect();
        let dirs: Vec<_> = model.iter().filter(|(_, item)| item.kind == Kind::Directory).map(|(key, _)| key).collect();
        let id =
            |names: &[Vec<u8>]| names.iter().fold(NodeId::ROOT, |at, name| segment.lookup(at, name).unwrap().unwrap());
        let asked: Vec<(NodeId, Vec<u8>, Result<NodeId, Miss>)> = (0..300)
            .map(|_| {
                let start = dirs[rng.below(dirs.len() as u64) as usize];
                let start = if rng.below(2) == 0 { &Vec::new() } else { start };
                let path = question(&mut rng, &keys);
                let answer = match expected(&model, start, &path) {
                    Ok(names) => Ok(id(&names)),
                    Err((names, at, why)) => Err(Miss { reached: id(&names), at, why }),
                };
                (id(start), path, answer)
            })
            .collect();
        let questions: Vec<Question<'_>> =
            asked.iter().map(|(start, path, _)| Question { start: *start, path }).collect();
        // Few of them are walked while nobody has looked at the segment, all are looked up.
        let answers: Vec<_> = asked.iter().map(|(_, _, answer)| *answer).collect();
        for count in [0, 1, 20, 300] {
            assert_eq!(resolve_batch(&segment, &questions[..count]).unwrap(), answers[..count]);
            let found: Vec<_> = answers[..count].iter().map(|answer| answer.ok()).collect();
            assert_eq!(find_batch(&segment, &questions[..count]).unwrap(), found);
        }
        for resolver in resolvers(&segment) {
            let found = resolver.find_batch(&questions).unwrap();
            let resolved = resolver.resolve_batch(&questions).unwrap();
            for (((start, path, answer), found), resolved) in asked.iter().zip(found).zip(resolved) {
                let shown = path.escape_ascii();
                assert_eq!(resolver.walk(*start, path).unwrap(), *answer, "walked by {resolver:?} {start:?} {shown}");
                assert_eq!(resolved, *answer, "in a batch of {resolver:?} {start:?} {shown}");
                assert_eq!(resolver.resolve(*start, path).unwrap(), *answer, "{resolver:?} {start:?} {shown}");
                assert_eq!(resolver.find(*start, path).unwrap(), answer.ok(), "{resolver:?} {start:?} {shown}");
                assert_eq!(found, answer.ok(), "in a batch of {resolver:?} {start:?} {shown}");
            }
        }
    }
}

/// One path needs what is on its way: the program that asks for it does not read all of a large index first.
#[test]
fn few_paths_need_only_what_is_on_their_way() {
    let items: Vec<Item> = (0..60_000).map(|n| Item::file(format!("d{}/file {n}", n % 700).as_bytes())).collect();
    let place = Place::new();
    let segment = place.segment_with_tables(&items);
    let path = b"d17/file 17";
    let expected = Resolver::new(&segment).unwrap().resolve(NodeId::ROOT, path).unwrap();
    let mut bytes = fs::read(place.out()).unwrap();
    let times = *Header::decode(&bytes[..4096]).unwrap().section(Section::Times).unwrap();
    bytes[(times.offset + times.len / 2) as usize] ^= 1;
    let harmed = opened(&bytes).unwrap();
    let one = [Question::from(&path[..])];
    assert_eq!(resolve_batch(&harmed, &one).unwrap(), [expected]);
    assert_eq!(find_batch(&harmed, &one).unwrap(), [expected.ok()]);
    let many = vec![one[0]; 1000];
    assert_eq!(resolve_batch(&harmed, &many).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(find_batch(&harmed, &many).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_large_batch_is_split_among_threads_and_answered_in_order() {
    let items: Vec<Item> = (0..20_000).map(|n| Item::file(format!("d{}/s{}/{n}", n % 7, n % 311).as_bytes())).collect();
    let place = Place::new();
    place.segment_with_tables(&items);
    // In memory: what happens to the file afterwards is of no account.
    let segment = Segment::load(&place.out()).unwrap();
    fs::File::options().write(true).open(place.out()).unwrap().set_len(0).unwrap();
    let (len, resolver) = (segment.len(), Resolver::new(&segment).unwrap());
    assert_eq!(len as usize, 20_000 + 7 + 7 * 311 + 1);
    let missing = b"d1/s1/none".to_vec();
    let paths: Vec<&[u8]> =
        items.iter().enumerate().map(|(n, item)| if n % 5 == 3 { &missing[..] } else { &item.path }).collect();
    let questions: Vec<Question<'_>> = paths.iter().map(|path| Question::from(*path)).collect();
    let answers = resolver.find_batch(&questions).unwrap();
    for (path, answer) in paths.iter().zip(&answers) {
        assert_eq!(answer.map(|id| segment.path(id).unwrap()).as_deref(), (*path != missing).then_some(*path));
    }
    let resolved = resolver.resolve_batch(&questions).unwrap();
    let dir = resolver.find(NodeId::ROOT, b"d1/s1").unwrap().unwrap();
    let miss = Miss { reached: dir, at: 6, why: MissKind::NotFound };
    assert!(resolved.iter().zip(&answers).all(|(resolved, answer)| *resolved == answer.ok_or(miss)));
    assert_eq!(resolver.find_batch(&[]).unwrap(), []);
}

#[test]
fn equal_hashes_made_on_purpose_are_told_apart() {
    assert_eq!(path_hash(&same_hash(1)), path_hash(&same_hash(7_654_321)));
    for count in [2, 8, 9, 64, 65, 3000] {
        let mut items: Vec<Item> = (0..count).map(|n| Item::file(&same_hash(2 * n))).collect();
        // Others, that have to make room.
        items.extend((0..300).map(|n| Item::file(format!("dir/{n}").as_bytes())));
        let place = Place::new();
        let segment = place.segment_with_tables(&items);
        segment.verify(&mut |_| ControlFlow::Continue(())).unwrap();
        for resolver in resolvers(&segment) {
            for n in 0..count {
                let (there, not) = (same_hash(2 * n), same_hash(2 * n + 1));
                let questions = [Question::from(&there[..]), Question::from(&not[..])];
                let answers = resolver.find_batch(&questions).unwrap();
                assert_eq!(answers[0].map(|id| segment.path(id).unwrap()), Some(there.clone()));
                assert_eq!(answers[1], None);
                assert_eq!(resolver.find(NodeId::ROOT, &there).unwrap(), answers[0]);
                let miss = Miss { reached: NodeId::ROOT, at: 0, why: MissKind::NotFound };
                assert_eq!(resolver.resolve_batch(&questions).unwrap(), [Ok(answers[0].unwrap()), Err(miss)]);
                assert_eq!(resolver.find(NodeId::ROOT, &not).unwrap(), None);
            }
            for item in &items[count as usize..] {
                let found = resolver.find(NodeId::ROOT, &item.path).unwrap().unwrap();
                assert_eq!(segment.path(found).unwrap(), item.path);
            }
        }
    }
}

#[test]
fn a_start_that_is_none_is_refused() {
    let place = Place::new();
    let segment = place.segment_with_tables(&[Item::file(b"dir/file")]);
    for resolver in resolvers(&segment) {
        let file = resolver.find(NodeId::ROOT, b"dir/file").unwrap().unwrap();
        for path in [&b"x"[..], b"", b".", b"x/../y"] {
            assert_eq!(resolver.find(file, path).unwrap_err().kind(), ErrorKind::NotDirectory);
            assert_eq!(resolver.resolve(NodeId(99), path).unwrap_err().kind(), ErrorKind::InvalidInput);
            let batch = [Question { start: NodeId(99), path }];
            assert_eq!(resolver.find_batch(&batch).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(resolver.find(NodeId(99), b"/dir").unwrap(), resolver.find(NodeId::ROOT, b"dir").unwrap());
    }
}

#[test]
fn tables_take_at_most_16_bytes_a_node_and_do_not_depend_on_memory() {
    let deep: Vec<Item> = (0..400).map(|n| Item::file(vec![format!("{n:03}"); 60].join("/").as_bytes())).collect();
    let wide: Vec<Item> =
        (0..scaled(60_000)).map(|n| Item::file(format!("a directory/{}/{}/{n}", n % 9, n % 1777).as_bytes())).collect();
    for items in [deep, wide] {
        let place = Place::new();
        let segment = place.segment_with_tables(&items);
        let tables: u64 = segment.sections().filter(|(section, _)| section.is_table()).map(|(_, len)| len).sum();
        assert!(tables <= 16 * u64::from(segment.len()), "{tables} bytes for {} nodes", segment.len());
        segment.verify(&mut |_| ControlFlow::Continue(())).unwrap();
        let bytes = fs::read(place.out()).unwrap();
        let mut builder = adit_index::Builder::new(place.dir.path(), 1 << 30);
        builder.set_tables(true);
        items.iter().rev().for_each(|item| builder.add(&item.entry()).unwrap());
        builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(fs::read(place.out()).unwrap() == bytes, "with more memory: other bytes");
        assert_eq!(place.left(), [""; 0]);
    }
}

#[test]
fn a_table_that_does_not_fit_the_nodes_is_found_and_does_no_harm() {
    let items: Vec<Item> = (0..500).map(|n| Item::file(format!("d{}/file {n}", n % 7).as_bytes())).collect();
    let place = Place::new();
    place.segment_with_tables(&items);
    let sound = fs::read(place.out()).unwrap();
    let header = Header::decode(&sound[..4096]).unwrap();
    let mut rng = Rng::new(seeds(1).next().unwrap());
    for section in Section::TABLES {
        let entry = *header.section(section).unwrap();
        for _ in 0..200 {
            let mut bytes = sound.clone();
            let at = (entry.offset + rng.below(entry.len)) as usize;
            bytes[at] ^= 1 << rng.below(8);
            let segment = opened(&bytes).unwrap();
            assert!(Resolver::new(&segment).is_err() || !Section::PATH_TABLES.contains(&section));
            let segment = opened(&resealed(&bytes).unwrap()).unwrap();
            let e = segment.verify(&mut |_| ControlFlow::Continue(())).unwrap_err();
            let found = e.cause().and_then(|cause| cause.downcast_ref::<Damage>()).unwrap().clone();
            assert_eq!(found, Damage::Table { section: section.words() });
            // Answers may be wrong, of what somebody made to be: nothing worse.
            let resolver = Resolver::new(&segment).unwrap();
            let questions: Vec<_> = items.iter().map(|item| Question::from(&item.path[..])).collect();
            let _ = resolver.find_batch(&questions).unwrap();
            let found = Query::new().pattern(Pattern::substring(b"file 17").unwrap()).collect(&segment).unwrap();
            assert!(found.len() <= 11 && (found.len() == 11 || section == Section::NameSignatures));
        }
    }
}
