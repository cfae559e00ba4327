//! Directories that paths led through without a mount: the next path asks for its last name alone, and never gets a wrong answer.

mod support;

use std::sync::atomic::Ordering::Relaxed;

use adit_core::ErrorKind;
use adit_core::path::{Last, Tree};
use adit_core::types::*;
use adit_testkit::Rng;
use adit_testkit::model::Limits;
use support::{FaultyStore, new_node};

fn slow() -> FaultyStore {
    FaultyStore::new(Limits { slow_names: true, shared: true, ..Limits::default() })
}

/// Inode and path, or why there is none.
fn resolved(tree: &Tree<'_>, path: &str, last: Last) -> Result<(Ino, Vec<u8>), ErrorKind> {
    tree.resolve(path.as_bytes(), last).map(|node| (node.ino(), node.path().to_vec())).map_err(|e| e.kind())
}

#[test]
fn a_second_path_through_a_directory_asks_for_its_last_name() {
    let store = slow();
    {
        let tree = Tree::new(&store);
        tree.mkdir_all(b"a/b/c/d", &new_node()).unwrap();
        tree.mkdir_all(b"a/b/c/e", &new_node()).unwrap();
    }
    assert_eq!(store.inner.known_count(), 0, "nothing outlives the tree");
    let tree = Tree::new(&store);
    let cost = |path: &str| {
        let before = store.faults.lookups.load(Relaxed);
        assert!(resolved(&tree, path, Last::Follow).is_ok(), "{path}");
        store.faults.lookups.load(Relaxed) - before
    };
    assert_eq!([cost("a/b/c/d"), cost("a/b/c/e"), cost("/a//b/c/d/"), cost("a/b/c")], [4, 1, 1, 1]);
    assert_eq!(cost("a/b/../b/c/d"), 5, "it is walked");
    tree.rename(b"a/b", b"a/x", RenameFlags::empty()).unwrap();
    assert_eq!(resolved(&tree, "a/b/c/d", Last::Follow), Err(ErrorKind::NotFound));
    assert_eq!([cost("a/x/c/d"), cost("a/x/c/e")], [4, 1]);
    drop(tree);
    assert_eq!((store.inner.known_count(), store.inner.stray_forgets()), (0, 0));
}

#[test]
fn no_more_than_so_many_are_kept() {
    let store = slow();
    let tree = Tree::new(&store);
    for n in 0..1000 {
        drop(tree.mkdir_all(format!("d{n}/in").as_bytes(), &new_node()).unwrap());
        assert!(tree.known_inodes() <= 256, "{n}: {}", tree.known_inodes());
    }
    drop(tree);
    assert_eq!((store.inner.known_count(), store.inner.stray_forgets()), (0, 0));
}

#[test]
fn random_changes_never_leave_a_way_that_is_wrong() {
    for seed in 0..40 {
        // The same in a store where nothing is kept.
        let (store, model) = (slow(), FaultyStore::new(Limits::default()));
        let (tree, naive) = (Tree::new(&store), Tree::new(&model));
        let mut rng = Rng::new(seed);
        let link = FileName::new(b"link").unwrap();
        for store in [&store, &model] {
            let link = adit_core::store::Store::symlink(store, Ino::ROOT, link, b"a/b", new_node().caller).unwrap();
            adit_core::store::Store::forget(store, link.ino);
        }
        let path = |rng: &mut Rng| {
            let names = (0..1 + rng.below(4)).map(|_| *rng.pick(&["a", "b", "c", "a", "b", "..", ".", "link"]));
            let names = names.collect::<Vec<_>>().join("/");
            if rng.below(4) == 0 { format!("{names}/") } else { names }
        };
        for step in 0..500 {
            let (one, other, which) = (path(&mut rng), path(&mut rng), rng.below(5));
            for tree in [&tree, &naive] {
                let (one, other) = (one.as_bytes(), other.as_bytes());
                match which {
                    0 | 1 => drop(tree.mkdir(one, &new_node())),
                    2 => drop(tree.remove(one)),
                    3 => drop(tree.rename(one, other, RenameFlags::empty())),
                    _ => drop(tree.rename(one, other, RenameFlags::EXCHANGE)),
                }
            }
            for path in [one, other, path(&mut rng)] {
                let last = if rng.below(2) == 0 { Last::Follow } else { Last::Keep };
                let expected = resolved(&naive, &path, last);
                assert_eq!(resolved(&tree, &path, last), expected, "seed {seed}, step {step}: {path} {last:?}");
            }
        }
        assert_eq!(naive.known_inodes(), 0);
        drop(tree);
        assert_eq!((store.inner.known_count(), store.inner.stray_forgets()), (0, 0), "seed {seed}");
    }
}
