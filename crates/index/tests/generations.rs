//! A tree that changes, and its index that is made again and put in place of the one before, while others ask: whoever opened an index has the
//! tree of that moment, whole, for as long as it is open. All of the library against a map of paths.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use adit_core::types::Kind;
use adit_index::query::{Change, Diff, Dupes, Pattern, Query};
use adit_index::{Batch, Index, NodeId};
use adit_testkit::{Rng, scaled, seeds};
use support::paths::{expected, question};
use support::{Item, Model, Place, items, model, name, names};

/// Adds, removes, moves or rewrites something.
fn change(rng: &mut Rng, tree: &mut BTreeMap<Vec<u8>, Item>) {
    let all: Vec<Vec<u8>> = tree.keys().filter(|path| !path.is_empty()).cloned().collect();
    if all.is_empty() || rng.percent(30) {
        let dirs: Vec<&Vec<u8>> = all.iter().filter(|path| tree[*path].kind == Kind::Directory).collect();
        let dir = if dirs.is_empty() { Vec::new() } else { rng.pick(&dirs).to_vec() };
        let path = join(&dir, &name(rng));
        let mut item = if rng.percent(30) { Item::dir(&path) } else { Item::file(&path) };
        item.hash = (item.kind == Kind::File).then(|| [rng.below(9) as u8; 16]);
        if !is_taken(tree, &path) {
            tree.insert(path, item);
        }
        return;
    }
    let victim = rng.pick(&all).clone();
    match rng.below(3) {
        0 => drop(taken_out(tree, &victim)),
        1 => {
            let item = tree.get_mut(&victim).unwrap();
            (item.mtime_ns, item.size) = (rng.next_u64() as i64, rng.below(4));
            item.hash = (item.kind == Kind::File).then(|| [rng.below(9) as u8; 16]);
        }
        _ => {
            let moved = taken_out(tree, &victim);
            let dirs: Vec<&Vec<u8>> =
                all.iter().filter(|path| tree.get(*path).is_some_and(|item| item.kind == Kind::Directory)).collect();
            let dir = if dirs.is_empty() { Vec::new() } else { rng.pick(&dirs).to_vec() };
            let mut to = join(&dir, &name(rng));
            if is_taken(tree, &to) {
                to = victim.clone();
            }
            for (path, item) in moved {
                let path = [&to[..], &path[victim.len()..]].concat();
                tree.insert(path.clone(), Item { path, ..item });
            }
        }
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Whether there is something at a path, or below it.
fn is_taken(tree: &BTreeMap<Vec<u8>, Item>, path: &[u8]) -> bool {
    tree.keys().any(|other| is_below(other, path))
}

/// Takes an entry out, and all that is below it.
fn taken_out(tree: &mut BTreeMap<Vec<u8>, Item>, victim: &[u8]) -> BTreeMap<Vec<u8>, Item> {
    let (out, rest) = std::mem::take(tree).into_iter().partition(|(path, _)| is_below(path, victim));
    *tree = rest;
    out
}

/// Makes the index of a tree, which says which generation it is of.
fn build(place: &Place, tree: &BTreeMap<Vec<u8>, Item>, generation: u32, tables: bool) {
    let mut builder = place.builder();
    builder.set_identity(&generation.to_le_bytes()).unwrap();
    builder.set_tables(tables);
    tree.values().for_each(|item| builder.add(&item.entry()).unwrap());
    builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
}

fn generation(index: &Index) -> usize {
    u32::from_le_bytes(index.segment().identity().try_into().unwrap()) as usize
}

/// Asks an index everything, and compares it with the tree of its generation.
fn compare(rng: &mut Rng, index: &Index, model: &Model) {
    let keys: Vec<&Vec<Vec<u8>>> = model.keys().collect();
    let path_of = |node: NodeId| index.path(node).unwrap();
    let asked: Vec<Vec<u8>> = (0..40).map(|_| question(rng, &keys)).collect();
    let batch: Batch = asked.iter().collect();
    let (flying, looked_up) = (index.resolve_async(batch.clone()), index.lookup_batch(&batch).unwrap());
    for (path, found) in asked.iter().zip(&looked_up) {
        let answer = index.resolve(path).unwrap();
        match expected(model, &[], path) {
            Ok(names) => assert_eq!(path_of(answer.unwrap()), model[&names].path, "{}", path.escape_ascii()),
            Err((names, at, why)) => {
                let miss = answer.unwrap_err();
                assert_eq!((path_of(miss.reached), miss.at, miss.why), (model[&names].path.clone(), at, why));
            }
        }
        assert_eq!(answer.ok(), *found);
    }
    let text = name(rng);
    let has = |item: &&Item| {
        let last = names(&item.path).last().copied().unwrap_or_default();
        !item.path.is_empty() && memchr::memmem::find(last, &text).is_some()
    };
    let found: BTreeSet<Vec<u8>> = {
        let query = Query::new().pattern(Pattern::substring(&text).unwrap());
        let found = index.paths(&query).unwrap();
        assert_eq!(index.count(&query).unwrap(), found.len() as u64);
        found.into_iter().collect()
    };
    assert_eq!(found, model.values().filter(has).map(|item| item.path.clone()).collect(), "{}", text.escape_ascii());
    let mut groups = BTreeMap::<(u64, [u8; 16]), BTreeSet<Vec<u8>>>::new();
    for item in model.values().filter(|item| item.kind == Kind::File && item.size > 0) {
        let Some(hash) = item.hash else { continue };
        groups.entry((item.size, hash)).or_default().insert(item.path.clone());
    }
    groups.retain(|_, files| files.len() > 1);
    let mut told = BTreeMap::new();
    let dupes = index.dupes(&Dupes::new(), &mut |group| {
        let files: BTreeSet<Vec<u8>> = group.nodes.iter().map(|node| path_of(*node)).collect();
        assert!(told.insert((group.size, group.hash), files).is_none());
        ControlFlow::Continue(())
    });
    assert_eq!((dupes.unwrap().groups, told), (groups.len() as u64, groups));
    let total = index.du(NodeId::ROOT).unwrap().total;
    assert_eq!(total.files + total.directories + total.others, model.len() as u64 - 1);
    assert!(flying.wait().unwrap().into_iter().map(Result::ok).eq(looked_up));
}

/// What two trees have different, told without renames and with them.
fn compare_both(before: &Index, old: &Model, after: &Index, new: &Model) {
    for renames in [false, true] {
        let mut sets = (BTreeSet::new(), BTreeSet::new());
        let diff = before.diff(after, &Diff::new().renames(renames), &mut |change| {
            match change {
                Change::Added(node) => drop(sets.1.insert(after.path(node).unwrap())),
                Change::Removed(node) => drop(sets.0.insert(before.path(node).unwrap())),
                Change::Renamed { before: from, after: to, .. } => {
                    sets.0.insert(before.path(from).unwrap());
                    sets.1.insert(after.path(to).unwrap());
                }
                Change::Changed { .. } => {}
            }
            ControlFlow::Continue(())
        });
        diff.unwrap();
        let only = |a: &Model, b: &Model| -> BTreeSet<Vec<u8>> {
            a.iter().filter(|(names, _)| !b.contains_key(*names)).map(|(_, item)| item.path.clone()).collect()
        };
        assert_eq!(sets, (only(old, new), only(new, old)), "renames: {renames}");
    }
}

#[test]
fn readers_have_the_tree_of_the_moment_while_it_changes() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let place = Place::new();
        let mut tree: BTreeMap<Vec<u8>, Item> =
            items(&mut rng, 200).into_iter().map(|item| (item.path.clone(), item)).collect();
        let as_model =
            |tree: &BTreeMap<Vec<u8>, Item>| Arc::new(model(&tree.values().cloned().collect::<Vec<_>>(), 0o755, 0));
        let models = RwLock::new(vec![as_model(&tree)]);
        build(&place, &tree, 0, true);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (place, models, is_over) = (&place, &models, &is_over);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed ^ (thread + 1) << 32);
                    let mut held: Vec<Index> = Vec::new();
                    while !is_over.load(Relaxed) {
                        let options = Index::options().cache_size(rng.below(3) << 10).large_pages(rng.percent(20));
                        held.push(options.open(&place.out()).unwrap());
                        let index = rng.pick(&held).clone();
                        let model = models.read().unwrap()[generation(&index)].clone();
                        compare(&mut rng, &index, &model);
                        if held.len() > 8 {
                            held.remove(0);
                        }
                    }
                });
            }
            let mut before = Index::open(&place.out()).unwrap();
            for step in 1..=scaled(25) {
                (0..1 + rng.below(12)).for_each(|_| change(&mut rng, &mut tree));
                models.write().unwrap().push(as_model(&tree));
                build(&place, &tree, step as u32, rng.percent(70));
                let after = Index::open(&place.out()).unwrap();
                assert_eq!(generation(&after), step);
                let (old, new) = {
                    let models = models.read().unwrap();
                    (models[step - 1].clone(), models[step].clone())
                };
                compare_both(&before, &old, &after, &new);
                compare(&mut rng, &after, &new);
                before = after;
            }
            is_over.store(true, Relaxed);
        });
    }
}
