//! What has to be forgotten when a path is set back: also what nobody touched, because only a folder above it was moved.

#[path = "support/between.rs"]
mod forgotten;
#[path = "support/tree.rs"]
mod support;

use adit_core::store::Store;
use adit_core::types::{Access, Ino, RenameFlags, SetAttr, Timestamp};
use adit_volume::VolumeStore;
use adit_volume::tree::{Between, Differing, MAIN};

use forgotten::Seen;
use support::{World, name, new};

fn dir(store: &VolumeStore, parent: Ino, called: &str) -> Ino {
    store.mkdir(parent, name(called), &new(0o755)).unwrap().ino
}

fn file(store: &VolumeStore, parent: Ino, called: &str) -> Ino {
    let (attr, file) = store.create(parent, name(called), &new(0o644)).unwrap();
    file.write_at(&[(0, b"x")]).unwrap();
    attr.ino
}

fn rename(store: &VolumeStore, from: (Ino, &str), to: (Ino, &str)) {
    store.rename(from.0, name(from.1), to.0, name(to.1), RenameFlags::empty()).unwrap();
}

/// Sets a path back, and tells what was to be forgotten.
fn set_back(world: &World, store: &VolumeStore, path: &[&[u8]]) -> Between {
    let before = Seen::of(store);
    let told = world.tree.between(MAIN, "s", path).unwrap();
    store.restore_path("s", path, Default::default()).unwrap();
    assert_eq!(before.untold(&Seen::of(store), &told), [""; 0]);
    assert_eq!(world.tree.verify().unwrap().problems, [""; 0]);
    told
}

#[test]
fn what_a_folder_brought_with_it_goes_with_it() {
    let world = World::new();
    let store = world.main();
    let (to, from) = (dir(&store, Ino::ROOT, "dir"), dir(&store, Ino::ROOT, "E"));
    let deep = dir(&store, from, "deep");
    let (f, g) = (file(&store, deep, "f"), file(&store, to, "g"));
    world.tree.snapshot(MAIN, "s").unwrap();
    rename(&store, (Ino::ROOT, "E"), (to, "E"));
    let told = set_back(&world, &store, &[b"dir"]);
    assert_eq!(told.inodes.get(&f.0), Some(&true), "nobody may know it");
    assert!(told.files.contains(&(deep.0, b"f".to_vec())));
    assert_eq!(told.inodes.get(&g.0), None, "it does not differ");
}

#[test]
fn what_left_with_a_folder_gets_further_names_and_may_be_known() {
    let world = World::new();
    let store = world.main();
    let top = dir(&store, Ino::ROOT, "dir");
    let deep = dir(&store, dir(&store, top, "E"), "deep");
    let f = file(&store, deep, "f");
    store.symlink(deep, name("l"), b"f", new(0).caller).unwrap();
    world.tree.snapshot(MAIN, "s").unwrap();
    rename(&store, (top, "E"), (Ino::ROOT, "E"));
    let told = set_back(&world, &store, &[b"dir"]);
    assert_eq!(store.getattr(f).unwrap().nlink, 2);
    assert_eq!(told.inodes.get(&f.0), Some(&false));
    assert!(told.files.contains(&(deep.0, b"f".to_vec())));
}

#[test]
fn what_moved_within_the_path_is_the_same() {
    let world = World::new();
    let store = world.main();
    let top = dir(&store, Ino::ROOT, "dir");
    let (a, b) = (dir(&store, top, "a"), dir(&store, top, "b"));
    let moved = dir(&store, a, "E");
    let f = file(&store, moved, "f");
    world.tree.snapshot(MAIN, "s").unwrap();
    rename(&store, (a, "E"), (b, "E"));
    let told = set_back(&world, &store, &[b"dir"]);
    assert_eq!(told.inodes.get(&f.0), None);
    assert!(!told.entries.contains(&(moved.0, b"f".to_vec())));
}

#[test]
fn a_path_leads_elsewhere_when_a_folder_above_it_is_another() {
    let world = World::new();
    let store = world.main();
    let (old, other) = (dir(&store, Ino::ROOT, "a"), dir(&store, Ino::ROOT, "other"));
    let (then, now) = (file(&store, dir(&store, old, "b"), "f"), file(&store, dir(&store, other, "b"), "f"));
    let (then_file, now_file) = (file(&store, old, "file"), file(&store, other, "file"));
    world.tree.snapshot(MAIN, "s").unwrap();
    rename(&store, (Ino::ROOT, "a"), (Ino::ROOT, "moved"));
    rename(&store, (Ino::ROOT, "other"), (Ino::ROOT, "a"));
    let told = set_back(&world, &store, &[b"a", b"b"]);
    assert_eq!((told.inodes.get(&now.0), told.inodes.get(&then.0)), (Some(&true), Some(&false)));
    let told = set_back(&world, &store, &[b"a", b"file"]);
    assert_eq!((told.inodes.get(&now_file.0), told.inodes.get(&then_file.0)), (Some(&true), Some(&false)));
}

#[test]
fn a_file_with_a_name_outside_loses_one_or_gets_one() {
    let world = World::new();
    let store = world.main();
    let (top, out) = (dir(&store, Ino::ROOT, "dir"), dir(&store, Ino::ROOT, "E"));
    let f = file(&store, out, "f");
    store.link(f, Ino::ROOT, name("g")).unwrap();
    let h = file(&store, dir(&store, top, "D"), "h");
    store.link(h, top, name("i")).unwrap();
    world.tree.snapshot(MAIN, "s").unwrap();
    rename(&store, (Ino::ROOT, "E"), (top, "E"));
    rename(&store, (top, "D"), (Ino::ROOT, "D"));
    set_back(&world, &store, &[b"dir"]);
    assert_eq!(store.getattr(f).unwrap().nlink, 1);
    assert_eq!(store.getattr(h).unwrap().nlink, 3);
    let open = store.open(f, Access::Read).unwrap();
    assert_eq!(open.read_at(0, &mut [0; 4]).unwrap(), 1);
}

#[test]
fn a_file_that_nobody_changed_is_not_changed_by_losing_and_getting_back_a_name() {
    let world = World::new();
    let store = world.main();
    let top = dir(&store, Ino::ROOT, "dir");
    let inner = dir(&store, top, "inner");
    // With a name elsewhere; with all its names here; the same, and changed since.
    let (out, within, other) = (file(&store, inner, "out"), file(&store, inner, "a"), file(&store, inner, "c"));
    store.link(out, Ino::ROOT, name("out")).unwrap();
    store.link(out, top, name("out")).unwrap();
    store.link(within, top, name("b")).unwrap();
    store.link(other, Ino::ROOT, name("d")).unwrap();
    world.tree.snapshot(MAIN, "s").unwrap();
    store.setattr(other, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    // The clock need not have ticked since it was made.
    let later = Some(Timestamp { secs: 4_000_000_000, nanos: 1 });
    store.setattr(other, &SetAttr { perm: Some(0o644), ctime: later, ..SetAttr::default() }).unwrap();
    let before = [out, within, other].map(|ino| store.getattr(ino).unwrap());
    file(&store, top, "new");
    let told = set_back(&world, &store, &[b"dir"]);
    assert_eq!([out, within, other].map(|ino| store.getattr(ino).unwrap()), before);
    // Of the last one only the time of change is another than in the snapshot. It does not go back.
    assert_eq!([out, within, other].map(|ino| told.inodes.get(&ino.0)), [None; 3]);
}

/// Deeper than any path that Linux takes: what lies there is neither left out of a comparison nor of what has to be forgotten.
#[test]
fn what_lies_below_thousands_of_directories_is_told() {
    const LEVELS: usize = 4_200;
    let world = World::new();
    let store = world.main();
    let top = dir(&store, Ino::ROOT, "d");
    let deepest = (1..LEVELS).fold(top, |at, _| dir(&store, at, "d"));
    let (kept, gone) = (file(&store, deepest, "leaf"), file(&store, deepest, "gone"));
    world.tree.snapshot(MAIN, "s").unwrap();
    store.open(kept, Access::Write).unwrap().write_at(&[(0, b"new content")]).unwrap();
    store.unlink(deepest, name("gone")).unwrap();
    let added = file(&store, deepest, "added");

    let above = "/d".repeat(LEVELS);
    let told = world.tree.diff("s", MAIN).unwrap().into_iter();
    let told: Vec<_> = told.map(|one| (String::from_utf8(one.path).unwrap(), one.what)).collect();
    let named = [("added", Differing::Added), ("gone", Differing::Removed), ("leaf", Differing::Changed)];
    assert!(told == named.map(|(name, what)| (format!("{above}/{name}"), what)), "{} are told", told.len());

    let told = set_back(&world, &store, &[b"d"]);
    assert_eq!([kept, gone, added].map(|ino| told.inodes.get(&ino.0)), [Some(&true); 3]);
    assert!(!told.entries.contains(&(Ino::ROOT.0, b"d".to_vec())), "the name leads where it led");
    assert_eq!(store.getattr(kept).unwrap().size, 1);
    assert_eq!(store.path_of(gone), Some(format!("{above}/gone")));
}
