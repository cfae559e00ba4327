//! A live index shows what a naive tree shows, whatever happens to it: names made, removed, moved, exchanged, replaced.

mod toy;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::types::Kind;
use adit_index::live::{Applied, Base, Change, Facts, Found, Lies, LiveId, LiveIndex, Making, View};
use adit_testkit::{Rng, seeds};
use toy::{Toy, directory, file};

fn making(dir: &tempfile::TempDir) -> Making {
    Making { lies: Lies::OnDisk(dir.path().to_owned()), memory_bytes: 4 << 20 }
}

/// The base of a toy as it is now.
fn base_of(dir: &tempfile::TempDir, toy: &Toy) -> Arc<Base> {
    let making = making(dir);
    let mut builder = making.builder().unwrap();
    toy.paths().iter().for_each(|(path, facts)| builder.add(&facts.entry(path)).unwrap());
    Arc::new(making.finish(builder, &mut |_| ControlFlow::Continue(())).unwrap())
}

fn shown(view: &View) -> BTreeMap<Vec<u8>, Facts> {
    let mut found = BTreeMap::new();
    view.walk(LiveId::ROOT, &mut |id, path, facts| {
        assert_eq!(view.path(id).unwrap(), path);
        assert_eq!(view.facts(id).unwrap(), *facts);
        assert!(found.insert(path.to_vec(), *facts).is_none(), "{path:?} is shown twice");
        Ok(ControlFlow::Continue(()))
    })
    .unwrap();
    found
}

/// Applies what was noted of `toy`, as it is now, and what that asks for.
fn catch_up(index: &mut LiveIndex, toy: &Toy, noted: &[(u64, Vec<u8>)], attrs: &[u64]) {
    let mut batch: Vec<Change> = noted
        .iter()
        .map(|(dir, name)| Change::Entry { dir: *dir, name: name[..].into(), found: toy.lookup(*dir, name) })
        .collect();
    batch.extend(attrs.iter().filter_map(|key| toy.facts(*key)).map(Change::Attrs));
    let Applied { mut unlisted, lost } = index.apply(&batch).unwrap();
    assert!(!lost);
    while let Some(dir) = unlisted.pop() {
        let entries = toy.list(dir).into_iter().map(|(name, facts)| (name.into(), facts)).collect();
        unlisted.extend(index.apply(&[Change::Listing { dir, entries }]).unwrap().unlisted);
    }
}

fn compare(view: &View, toy: &Toy) {
    let paths = toy.paths();
    assert_eq!(shown(view), paths);
    assert_eq!(view.entries().unwrap(), paths.len() as u64);
    for (path, facts) in &paths {
        let Found::Entry(id) = view.resolve(LiveId::ROOT, path).unwrap() else { panic!("{path:?} is not found") };
        assert!(view.of_key(facts.key).unwrap().contains(&id));
        if facts.kind == Kind::Directory {
            assert_eq!(view.dir_of_key(facts.key).unwrap(), Some(id));
        }
    }
}

/// Seeds that found something: attributes of what is put back only after a directory above it has moved.
const FOUND: [u64; 1] = [4_138_208_999];

#[test]
fn it_shows_what_a_naive_tree_shows() {
    for seed in FOUND.into_iter().chain(seeds(120)) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let ops = *rng.pick(&[0, 3, 60]);
        let mut toy = Toy::random(&mut rng, ops);
        let mut index = LiveIndex::new(base_of(&dir, &toy));
        compare(&index.view(), &toy);
        let mut older: Vec<(View, BTreeMap<Vec<u8>, Facts>)> = Vec::new();
        for _ in 0..40 {
            let (mut noted, mut attrs) = (Vec::new(), Vec::new());
            for _ in 0..=rng.below(8) {
                toy.change(&mut rng, &mut noted, &mut attrs);
            }
            if rng.below(3) == 0 {
                // Reports come in any order, and more than once.
                let half = noted.len() / 2;
                noted.rotate_left(half);
                noted.extend(noted.first().cloned());
            }
            catch_up(&mut index, &toy, &noted, &attrs);
            compare(&index.view(), &toy);
            match rng.below(12) {
                0 => older.push((index.view(), toy.paths())),
                1 => {
                    let base = making(&dir).fold(&index.view(), &mut |_| ControlFlow::Continue(())).unwrap();
                    index = LiveIndex::new(Arc::new(base));
                    compare(&index.view(), &toy);
                    assert!(index.view().is_base());
                }
                _ => {}
            }
        }
        for (view, paths) in &older {
            assert_eq!(shown(view), *paths, "a view changed");
        }
    }
}

#[test]
fn a_directory_that_moved_costs_no_more_than_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::default();
    let (a, b) = (toy.make(1, b"a", directory), toy.make(1, b"b", directory));
    let large = toy.make(a, b"large", directory);
    for n in 0..20_000 {
        toy.make(large, format!("{n}").as_bytes(), file);
    }
    let mut index = LiveIndex::new(base_of(&dir, &toy));
    for round in 0..6_u64 {
        let (from, to) = if round % 2 == 0 { (a, b) } else { (b, a) };
        let mut noted = Vec::new();
        toy.rename((from, b"large"), (to, b"large"), false, &mut noted);
        catch_up(&mut index, &toy, &noted, &[]);
        assert!(index.changed() <= 1, "{} entries are different", index.changed());
        let there = [if round % 2 == 0 { &b"b"[..] } else { b"a" }, b"/large/777"].concat();
        assert!(matches!(index.view().resolve(LiveId::ROOT, &there).unwrap(), Found::Entry(_)));
    }
    assert!(index.view().is_base(), "back where it was");
    compare(&index.view(), &toy);
}

#[test]
fn what_was_removed_is_not_remembered_entry_by_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::default();
    let top = toy.make(1, b"top", directory);
    for n in 0..50 {
        let inner = toy.make(top, format!("{n}").as_bytes(), directory);
        (0..50).for_each(|n| _ = toy.make(inner, format!("{n}").as_bytes(), file));
    }
    let mut index = LiveIndex::new(base_of(&dir, &toy));
    // As `rm -r` does it.
    let mut noted = Vec::new();
    toy.remove_all(1, b"top", &mut noted);
    for noted in noted.chunks(100) {
        catch_up(&mut index, &toy, noted, &[]);
    }
    compare(&index.view(), &toy);
    assert_eq!(index.changed(), 1);
}

/// What it was last known to be is its own, and not that of where it came from.
#[test]
fn a_directory_that_moved_out_of_one_that_is_removed_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::default();
    let from = toy.make(1, b"from", directory);
    let moved = toy.make(from, b"moved", directory);
    toy.make(moved, b"below", file);
    let mut index = LiveIndex::new(base_of(&dir, &toy));
    let mut noted = Vec::new();
    toy.rename((from, b"moved"), (1, b"here"), false, &mut noted);
    catch_up(&mut index, &toy, &noted, &[]);
    toy.set_time(moved, 77);
    catch_up(&mut index, &toy, &[], &[moved]);
    noted.clear();
    toy.remove(1, b"from", &mut noted);
    catch_up(&mut index, &toy, &noted, &[]);
    compare(&index.view(), &toy);
}

#[test]
fn a_miss_says_where_the_way_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut toy = Toy::default();
    let a = toy.make(1, b"a", directory);
    toy.make(a, b"f", file);
    let view = LiveIndex::new(base_of(&dir, &toy)).view();
    let Found::Entry(at) = view.resolve(LiveId::ROOT, b"a").unwrap() else { panic!() };
    let Found::Entry(f) = view.resolve(at, b"f").unwrap() else { panic!() };
    assert_eq!(view.resolve(at, b"/a/./../a//f").unwrap(), Found::Entry(f));
    assert_eq!(view.resolve(at, b"../../..").unwrap(), Found::Entry(LiveId::ROOT));
    assert_eq!(view.resolve(LiveId::ROOT, b"a/x/y").unwrap(), Found::Missing { deepest: at, component: 1 });
    assert_eq!(view.resolve(LiveId::ROOT, b"a/f/y").unwrap(), Found::NotDirectory { at: f, component: 1 });
    assert_eq!(view.resolve(LiveId::ROOT, b"a/f/").unwrap(), Found::NotDirectory { at: f, component: 1 });
    assert_eq!(view.resolve(LiveId::ROOT, b"a/f/..").unwrap(), Found::NotDirectory { at: f, component: 1 });
}
