//! `diff`, `dupes`, `du` and `top` against a map of paths.

mod query_support;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use adit_core::error::ErrorKind;
use adit_core::types::Kind;
use adit_index::query::{Change, Content, Diff, Dupes, Group, Usage, du, top};
use adit_index::{NodeId, Segment};
use adit_testkit::{Rng, scaled, seeds};
use query_support::{altered, node};
use support::{Item, Model, Place, items, model};

fn path(segment: &Segment, node: NodeId) -> Vec<u8> {
    segment.path(node).unwrap()
}

fn usage(model: &Model, dir: &[Vec<u8>]) -> Usage {
    let mut usage = Usage::default();
    for (_, item) in model.iter().filter(|(names, _)| names.len() > dir.len() && names.starts_with(dir)) {
        match item.kind {
            Kind::File => usage.files += 1,
            Kind::Directory => usage.directories += 1,
            _ => usage.others += 1,
        }
        if item.kind != Kind::Directory {
            usage.bytes = usage.bytes.saturating_add(item.size);
        }
    }
    usage
}

#[test]
fn du_and_top_say_what_the_model_adds_up() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 1, 5, 40, 400, 2000][rng.below(6) as usize];
        let items = items(&mut rng, count);
        let place = Place::new();
        let segment = place.segment(&items);
        let model = model(&items, 0o755, 0);
        let dirs: Vec<&Vec<Vec<u8>>> =
            model.iter().filter(|(_, item)| item.kind == Kind::Directory).map(|(names, _)| names).collect();
        for _ in 0..5 {
            let dir = *rng.pick(&dirs);
            let said = du(&segment, node(&segment, dir)).unwrap();
            assert_eq!(said.total, usage(&model, dir));
            let children: Vec<_> =
                model.iter().filter(|(names, _)| names.len() == dir.len() + 1 && names.starts_with(dir)).collect();
            assert_eq!(said.children.len(), children.len());
            for ((child, said), (names, item)) in said.children.iter().zip(children) {
                assert_eq!(path(&segment, *child), names.join(&b'/'));
                let mut expected = usage(&model, names);
                match item.kind {
                    Kind::File => expected.files += 1,
                    Kind::Directory => expected.directories += 1,
                    _ => expected.others += 1,
                }
                expected.bytes = expected.bytes.saturating_add(item.size);
                assert_eq!(*said, expected);
            }
            compare_top(&segment, &model, dir, rng.below(20) as usize);
        }
    }
}

fn compare_top(segment: &Segment, model: &Model, dir: &[Vec<u8>], count: usize) {
    let said = top(segment, node(segment, dir), count).unwrap();
    let below = || model.iter().filter(|(names, _)| names.len() > dir.len() && names.starts_with(dir));
    let mut files: Vec<(NodeId, u64)> = below()
        .filter(|(_, item)| item.kind == Kind::File)
        .map(|(names, item)| (node(segment, names), item.size))
        .collect();
    files.sort_by_key(|(node, size)| (std::cmp::Reverse(*size), *node));
    files.truncate(count);
    assert_eq!(said.files, files);
    let mut directories: Vec<(NodeId, Usage)> = below()
        .filter(|(_, item)| item.kind == Kind::Directory)
        .map(|(names, _)| (node(segment, names), usage(model, names)))
        .collect();
    directories.sort_by_key(|(node, usage)| (std::cmp::Reverse(usage.bytes), *node));
    directories.truncate(count);
    assert_eq!(said.directories, directories);
}

#[test]
fn du_of_a_file_is_its_size() {
    let place = Place::new();
    let segment = place.segment(&[Item::file(b"a/b")]);
    let file = node(&segment, &[b"a".to_vec(), b"b".to_vec()]);
    let said = du(&segment, file).unwrap();
    assert_eq!(said.total, Usage { files: 1, bytes: 7, ..Usage::default() });
    assert_eq!(said.children, []);
    assert_eq!(top(&segment, file, 1).unwrap_err().kind(), ErrorKind::NotDirectory);
    assert_eq!(du(&segment, NodeId(99)).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn dupes_are_files_of_one_size_and_hash() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 5, 40, 400, 2000][rng.below(5) as usize];
        let mut items = items(&mut rng, count);
        for item in items.iter_mut().filter(|item| item.kind != Kind::Directory) {
            item.size = rng.below(4);
            // Hashes that begin alike, so that the rest has to be compared.
            item.hash = item.hash.map(|hash| {
                let mut all = [9; 16];
                all[rng.below(2) as usize * 15] = hash[0] % 4;
                all
            });
        }
        let place = Place::new();
        let segment = place.segment(&items);
        let model = model(&items, 0o755, 0);
        let dirs: Vec<_> = model.iter().filter(|(_, item)| item.kind == Kind::Directory).collect();
        let dir = if rng.percent(50) { rng.pick(&dirs).0.clone() } else { Vec::new() };
        let min = rng.below(4);
        let files = model.iter().filter(|(names, item)| {
            names.starts_with(&dir) && names.len() > dir.len() && item.kind == Kind::File && item.size >= min
        });
        let mut groups: BTreeMap<(u64, [u8; 16]), Vec<NodeId>> = BTreeMap::new();
        let (mut unhashed, mut hashed) = (0, 0);
        for (names, item) in files {
            match item.hash {
                Some(hash) => groups.entry((item.size, hash)).or_default().push(node(&segment, names)),
                None => unhashed += 1,
            }
            hashed += u64::from(item.hash.is_some());
        }
        let mut expected: Vec<Group> = Vec::new();
        for ((size, hash), mut nodes) in groups.into_iter().filter(|(_, nodes)| nodes.len() > 1) {
            nodes.sort_unstable();
            expected.push(Group { size, hash, nodes });
        }
        expected.sort_by_key(|group| (std::cmp::Reverse((group.wasted_bytes(), group.size)), group.nodes.clone()));
        for threads in [1, 3] {
            let mut said = Vec::new();
            let dupes = Dupes::new().min_size(min).below(node(&segment, &dir)).threads(threads);
            let summary = dupes.run(&segment, &mut |group| {
                said.push(group.clone());
                ControlFlow::Continue(())
            });
            let summary = summary.unwrap();
            assert_eq!(said, expected);
            assert_eq!((summary.hashed, summary.unhashed, summary.groups), (hashed, unhashed, expected.len() as u64));
            assert_eq!(summary.duplicates, expected.iter().map(|group| group.nodes.len() as u64).sum::<u64>());
            assert_eq!(summary.wasted_bytes, expected.iter().map(Group::wasted_bytes).sum::<u64>());
        }
    }
}

fn is_changed(content: Content, perm: bool, old: &Item, new: &Item) -> bool {
    let kind = old.kind != new.kind;
    let size = old.kind == Kind::Directory || old.size == new.size;
    let both = match old.kind {
        _ if old.hash.is_some() && new.hash.is_some() => Some(old.hash == new.hash),
        Kind::Symlink if !old.extra.is_empty() && !new.extra.is_empty() => Some(old.extra == new.extra),
        _ => None,
    };
    let same = match (content, both) {
        _ if old.kind == Kind::Directory => true,
        (Content::Best, Some(same)) => same && size,
        (Content::Size, _) => size,
        _ => size && old.mtime_ns == new.mtime_ns,
    };
    kind || !same || perm && old.perm != new.perm
}

#[test]
fn diff_tells_what_two_models_have_different() {
    for seed in seeds(100) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let count = [0, 1, 5, 40, 400, 1500][rng.below(6) as usize];
        let old = items(&mut rng, count);
        let new = altered(&mut rng, &old);
        let (place_a, place_b) = (Place::new(), Place::new());
        let (a, b) = (place_a.segment(&old), place_b.segment(&new));
        let (old, new) = (model(&old, 0o755, 0), model(&new, 0o755, 0));
        for content in [Content::Best, Content::SizeAndTime, Content::Size] {
            let perm = rng.percent(50);
            let diff = Diff::new().content(content).perm(perm);
            compare_plain(&diff.clone().renames(false), (&a, &old), (&b, &new), &|old, new| {
                is_changed(content, perm, old, new)
            });
            compare_renames(&diff, (&a, &old), (&b, &new));
        }
    }
}

/// Of two trees of which one keeps times less exactly.
#[test]
fn times_are_compared_as_exactly_as_is_said() {
    let tree = |times: &[i64]| -> (Place, Segment) {
        let place = Place::new();
        let item = |(at, time): (usize, &i64)| Item { mtime_ns: *time, ..Item::file(format!("f{at}").as_bytes()) };
        let items: Vec<Item> = times.iter().enumerate().map(item).collect();
        let segment = place.segment(&items);
        (place, segment)
    };
    let ((_one, a), (_other, b)) =
        (tree(&[5_000, 5_999, -1, 0, i64::MIN]), tree(&[5_999, 6_000, -1_000, -1, i64::MIN]));
    let changed = |step| {
        let diff = Diff::new().content(Content::SizeAndTime).time_step_ns(step);
        let name = |change: Change| match change {
            Change::Changed { after, .. } => b.name(after).unwrap().to_vec(),
            change => panic!("{change:?}"),
        };
        changes(&diff, &a, &b).into_iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(changed(1), [b"f0", b"f1", b"f2", b"f3"]);
    assert_eq!(changed(0), changed(1));
    assert_eq!(changed(1000), [b"f1", b"f3"]);
}

fn changes(diff: &Diff, a: &Segment, b: &Segment) -> Vec<Change> {
    let mut changes = Vec::new();
    let summary = diff.run(a, b, &mut |change| {
        changes.push(change);
        ControlFlow::Continue(())
    });
    let summary = summary.unwrap();
    let told = summary.added + summary.removed + summary.changed + summary.renamed;
    assert_eq!(told, changes.len() as u64);
    changes
}

fn compare_plain(
    diff: &Diff,
    (a, old): (&Segment, &Model),
    (b, new): (&Segment, &Model),
    is_changed: &dyn Fn(&Item, &Item) -> bool,
) {
    let all: BTreeSet<&Vec<Vec<u8>>> = old.keys().chain(new.keys()).filter(|names| !names.is_empty()).collect();
    let expected = all.into_iter().filter_map(|names| match (old.get(names), new.get(names)) {
        (Some(_), None) => Some((names.join(&b'/'), 'r')),
        (None, Some(_)) => Some((names.join(&b'/'), 'a')),
        (Some(old), Some(new)) => is_changed(old, new).then(|| (names.join(&b'/'), 'c')),
        (None, None) => None,
    });
    let said = changes(diff, a, b).into_iter().map(|change| match change {
        Change::Added(node) => (path(b, node), 'a'),
        Change::Removed(node) => (path(a, node), 'r'),
        Change::Changed { before, after, .. } => {
            assert_eq!(path(a, before), path(b, after));
            (path(a, before), 'c')
        }
        Change::Renamed { .. } => panic!("nobody asked for it"),
    });
    assert!(said.eq(expected));
}

/// What is a rename was removed and added otherwise, is of one content, and of each content there are as many as there can be.
fn compare_renames(diff: &Diff, (a, old): (&Segment, &Model), (b, new): (&Segment, &Model)) {
    let plain = changes(&diff.clone().renames(false), a, b);
    let said = changes(diff, a, b);
    let mut apart = Vec::new();
    let mut renamed = BTreeMap::<_, usize>::new();
    for change in &said {
        match change {
            Change::Renamed { before, after, what } => {
                apart.extend([Change::Removed(*before), Change::Added(*after)]);
                let content = (a.node(*before).unwrap().size, a.hash(*before).unwrap().unwrap());
                assert_eq!(content, (b.node(*after).unwrap().size, b.hash(*after).unwrap().unwrap()));
                assert!(content.0 > 0 && !what.kind && !what.hash && !what.size);
                *renamed.entry(content).or_default() += 1;
            }
            change => apart.push(*change),
        }
    }
    let key = |change: &Change| format!("{change:?}");
    apart.sort_by_key(key);
    let mut sorted = plain.clone();
    sorted.sort_by_key(key);
    assert_eq!(apart, sorted);
    let mut possible = BTreeMap::<_, (usize, usize)>::new();
    for change in &plain {
        let (segment, node, is_new) = match change {
            Change::Added(node) => (b, *node, true),
            Change::Removed(node) => (a, *node, false),
            _ => continue,
        };
        let facts = segment.node(node).unwrap();
        if let (Some(hash), Kind::File, 1..) = (segment.hash(node).unwrap(), facts.kind, facts.size) {
            let both = possible.entry((facts.size, hash)).or_default();
            *(if is_new { &mut both.1 } else { &mut both.0 }) += 1;
        }
    }
    for (content, (old, new)) in possible {
        assert_eq!(renamed.get(&content).copied().unwrap_or(0), old.min(new));
    }
    assert_eq!(old.contains_key(&Vec::new()), new.contains_key(&Vec::new()));
}

#[test]
fn a_rename_prefers_the_same_last_name() {
    let file = |path: &str, hash: u8| Item { hash: Some([hash; 16]), ..Item::file(path.as_bytes()) };
    let (place_a, place_b) = (Place::new(), Place::new());
    let a = place_a.segment(&[file("a/x", 1), file("a/y", 1), file("a/z", 1), file("one", 2), file("empty", 3)]);
    let b = place_b.segment(&[file("b/k", 1), file("b/x", 1), file("b/z", 1), file("two", 2), file("b/l", 1)]);
    let renames = changes(&Diff::new(), &a, &b).into_iter().filter_map(|change| match change {
        Change::Renamed { before, after, .. } => Some((path(&a, before), path(&b, after))),
        _ => None,
    });
    let renames: Vec<(String, String)> =
        renames.map(|(old, new)| (String::from_utf8(old).unwrap(), String::from_utf8(new).unwrap())).collect();
    let expected = [("a/y", "b/k"), ("a/x", "b/x"), ("a/z", "b/z"), ("one", "two")];
    assert!(renames.iter().map(|(old, new)| (&old[..], &new[..])).eq(expected), "{renames:?}");
    let mut told = 0;
    let summary = Diff::new().run(&a, &b, &mut |_| {
        told += 1;
        ControlFlow::Break(())
    });
    assert_eq!((summary.unwrap().added, told), (0, 1));
}

/// Levels of many nodes and directories of many children, in both trees.
#[test]
fn wide_trees_are_compared_too() {
    let count = scaled(60_000);
    let all: Vec<Item> = (0..count).map(|n| Item::file(format!("{}/{n}", n % 300).as_bytes())).collect();
    let half: Vec<Item> = all.iter().enumerate().filter(|(n, _)| n % 2 == 0).map(|(_, item)| item.clone()).collect();
    let (place_a, place_b) = (Place::new(), Place::new());
    let (a, b) = (place_a.segment(&all), place_b.segment(&half));
    let summary = Diff::new().run(&a, &b, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(summary.removed + summary.same, u64::from(a.len()) - 1);
    assert_eq!(summary.same, u64::from(b.len()) - 1);
    let summary = Diff::new().run(&b, &a, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((summary.added, summary.removed), (u64::from(a.len() - b.len()), 0));
    assert_eq!(du(&a, NodeId::ROOT).unwrap().total.bytes, 7 * count as u64);
}
