//! What a repair leaves as it is and tells, and where it puts what has no place.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/plant.rs"]
mod plant;
#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeMap;

use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind};
use adit_volume::format::keys::{self, Key};
use adit_volume::format::records::{self, Entry, Window};
use adit_volume::table::BLOCK_LEN_BYTES;
use adit_volume::tree::MAIN;
use adit_volume::{Batch, Extents, Table};

use faults::{MEMORY, ROOT, assert_sound, planter, world};
use plant::{Planter, checked, lines, sample, shown};
use support::{World, hash, name};

#[test]
fn in_a_snapshot_nothing_is_changed_and_its_branches_are_mended() {
    let world = World::new();
    let inodes = sample(&world.main());
    world.tree.snapshot(MAIN, "s").unwrap();
    world.tree.branch("s", "b").unwrap();
    let before = shown(&world.main());
    // What all three see.
    let planter = Planter { table: &*world.base, hash: hash(64), ids: vec![1] };
    planter.edit(inodes["/a"], |inode| inode.nlink = 9);
    planter.unlink(inodes["/d"], "f");
    let frozen = |world: &World| {
        let state = world.base.state();
        let of_snapshot = |key: &&Vec<u8>| keys::split(key).is_some_and(|(_, id)| id == 1);
        state.map.iter().filter(|(key, _)| of_snapshot(key)).map(|(k, v)| (k.clone(), v.to_vec())).collect::<Vec<_>>()
    };
    let held = frozen(&world);
    let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    for part in ["s", "main", "b"] {
        let here: Vec<_> = found.problems.iter().filter(|p| p.part.as_deref() == Some(part)).collect();
        assert!(here.len() >= 3, "{part}: {:?}", lines(&found.problems));
        assert!(here.iter().all(|p| p.is_repairable == (part != "s")), "{:?}", lines(&found.problems));
    }
    for _ in 0..2 {
        let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
        assert!(!mended.problems.is_empty());
        for problem in &mended.problems {
            assert_eq!(problem.part.as_deref(), Some("s"), "{:?}", lines(&mended.problems));
            assert!(problem.detail.contains("delete it, or make a branch of it"), "{}", problem.detail);
            assert!(!problem.is_repairable);
        }
    }
    assert_eq!(frozen(&world), held);
    for branch in [MAIN, "b"] {
        let mut after = shown(&world.branch(branch));
        let f = after.remove(&format!("/lost+found/#{}", inodes["/d/f"])).unwrap();
        after.remove("/lost+found").unwrap();
        after.insert("/d/f".to_owned(), f);
        assert_eq!(after, before, "{branch}");
    }
    // As the advice says: a branch of it can be repaired, and without it nothing is wrong.
    world.tree.branch("s", "rescue").unwrap();
    world.tree.delete_snapshot("s").unwrap();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert_sound(&world, "without the snapshot");
    assert_eq!(shown(&world.branch("rescue")).len(), before.len() + 1);
}

#[test]
fn what_no_repair_can_mend_is_told_and_left_alone() {
    let (world, inodes) = world();
    let planter = planter(&world);
    let cut = |key: Key| {
        let (id, value) = planter.found(&key).unwrap();
        planter.apply(vec![(key.at(id), Some(value[..value.len() - 1].to_vec()))]);
    };
    cut(Key::inode(inodes["/d/f"]));
    cut(Key::window(inodes["/big"], 0));
    planter.apply(vec![(b"I?".to_vec(), Some(b"x".to_vec()))]);
    let foreign = Key::inode(inodes["/with"]);
    planter.apply(vec![(foreign.at(900), Some(planter.found(&foreign).unwrap().1))]);
    // Shorter than what it holds.
    planter.edit(inodes["/d/e/deep/h"], |inode| inode.size = 5);
    // One block at two places.
    let (id, value) = planter.found(&Key::window(inodes["/with"], 0)).unwrap();
    planter.apply(vec![(Key::window(inodes["/with"], 7).at(id), Some(value))]);
    let world = world.reopen();
    let before = world.base.state().map;
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    let told = lines(&mended.problems);
    for words in [
        "damaged-record: - in -: inode",
        "damaged-record: /big in main",
        "damaged-record: - in -: I? is no key",
        "tree: /with in main: inode",
        "has a version of id 900, which does not exist",
        "tree: /d/e/deep/h in main",
        "shared-blocks: /with in main",
    ] {
        assert!(told.iter().any(|line| line.contains(words)), "{words}: {told:#?}");
    }
    let after = world.base.state().map;
    for (key, value) in &before {
        let is_about = |ino: u64| key.get(1..9) == Some(&ino.to_be_bytes());
        if !is_about(inodes["/with"]) && key[0] != keys::space::TOUCHED {
            assert_eq!(after.get(key), Some(value), "{}", key.escape_ascii());
        }
    }
    // What can be read of it is what it was.
    let store = world.main();
    let attr = store.lookup(Ino::ROOT, name("a")).unwrap();
    let mut bytes = [0; 5];
    store.open(attr.ino, Access::Read).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"alpha");
}

#[test]
fn a_directory_whose_record_says_another_kind_keeps_its_entries() {
    for path in ["/", "/d", "/d/e"] {
        let (world, inodes) = world();
        let before = shown(&world.main());
        let ino = inodes.get(path).copied().unwrap_or(ROOT);
        let (id, value) = planter(&world).found(&Key::inode(ino)).unwrap();
        planter(&world).edit(ino, |inode| inode.kind = Kind::Fifo);
        let map = world.base.state().map;
        for repair in [false, true] {
            let report = checked(&world.tree, &*world.base, repair, MEMORY).unwrap();
            let told = lines(&report.problems);
            assert!(told.iter().any(|line| line.contains("which is no directory")), "{path}: {told:#?}");
            assert!(report.problems.iter().all(|problem| !problem.is_repairable), "{path}: {told:#?}");
            assert_eq!(lines(&report.repaired), [""; 0], "{path}");
        }
        assert!(world.base.state().map == map, "{path}");
        planter(&world).apply(vec![(Key::inode(ino).at(id), Some(value))]);
        assert_sound(&world, path);
        assert_eq!(shown(&world.main()), before, "{path}");
    }
}

#[test]
fn keys_and_records_that_cannot_be_keep_everything_where_it_is() {
    const BEYOND: u64 = 1 << 62;
    type Plant = fn(&Planter<'_>, &BTreeMap<&'static str, u64>);
    let plants: [(&str, Plant); 9] = [
        ("Zzz is no key", |p, _| p.apply(vec![(b"Zzz".to_vec(), Some(b"x".to_vec()))])),
        ("Gzz is no key", |p, _| p.apply(vec![(b"Gzz".to_vec(), Some(b"x".to_vec()))])),
        ("!zz is no key", |p, _| p.apply(vec![(b"!zz".to_vec(), Some(b"x".to_vec()))])),
        ("Mnew is no key", |p, _| p.apply(vec![(keys::meta("new"), Some(records::encode_meta(3)))])),
        ("I@", |p, ino| {
            let record = p.inode(ino["/d/e"]).encode();
            p.put(&Key::inode(BEYOND), record);
        }),
        ("is no key", |p, _| p.put(&Key::entry(0, 256), Entry { ino: 1, kind: Kind::File, name: b"n" }.encode())),
        ("is no key", |p, ino| p.put(&Key::window(ino["/with"], 1 << 43), Window::default().encode())),
        ("inode number", |p, ino| {
            p.link(ino["/d"], "beyond", BEYOND, Kind::Directory);
            p.edit(ino["/d"], |inode| inode.size += 1);
        }),
        ("not an inode", |p, ino| p.put(&Key::inode(ino["/d/f"]), vec![0, 7])),
    ];
    for (words, plant) in plants {
        let (world, inodes) = world();
        plant(&planter(&world), &inodes);
        // Neither what nobody sees nor what nobody has is dropped.
        planter(&world).put(&Key::xattr(inodes["/a"], b"user.none"), records::TOMBSTONE.to_vec());
        let lost = world.base.reserve(1, Some(5000), false).unwrap();
        let bytes = vec![7; BLOCK_LEN_BYTES];
        world.base.write(lost[0].start, &bytes).unwrap();
        let allocated = vec![(lost[0], vec![crc32c::crc32c(&bytes)])];
        world.base.apply(Batch { allocated, ..Batch::default() }).unwrap();
        let before = world.base.state();
        let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
        let told = lines(&mended.problems);
        assert!(told.iter().any(|line| line.starts_with("damaged-record") && line.contains(words)), "{told:#?}");
        assert!(told.iter().any(|line| line.contains("belong to nobody")), "{words}: {told:#?}");
        assert_eq!(lines(&mended.repaired), [""; 0], "{words}");
        let after = world.base.state();
        assert!(after.map == before.map && after.allocated == before.allocated, "{words}");
    }
}

#[test]
fn the_name_in_lost_and_found_is_a_free_one() {
    let (world, inodes) = world();
    let store = world.main();
    let root = Ino::ROOT;
    let perm = support::new(0o755);
    store.create(root, name("lost+found"), &perm).unwrap();
    let dir = store.mkdir(root, name("lost+found.1"), &perm).unwrap().ino;
    let taken = format!("#{}", inodes["/d/f"]);
    store.create(dir, name(&taken), &perm).unwrap();
    drop(store);
    planter(&world).unlink(inodes["/d"], "f");
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    let path = format!("/lost+found.1/{taken}.1");
    assert!(
        lines(&mended.repaired).iter().any(|line| line.ends_with(&format!("moved to {path}"))),
        "{:?}",
        lines(&mended.repaired)
    );
    assert_eq!(shown(&world.main())[&path].1, inodes["/d/f"]);
}
