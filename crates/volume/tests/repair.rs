//! What a check finds and a repair mends: each fault is written into a tree below all that keeps its rules; the check names it,
//! the repair mends it, and everything else is as it was.

#[path = "support/plant.rs"]
mod plant;
#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeMap;

use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind};
use adit_volume::format::keys::{self, Key};
use adit_volume::format::records::{self, Entry, Orphan, Place, Window};
use adit_volume::table::{BLOCK_LEN_BYTES, Run};
use adit_volume::tree::MAIN;
use adit_volume::{Batch, Extents, Table};

use plant::{Planter, checked, lines, sample, shown};
use support::{Failing, World, hash, name};

const MEMORY: usize = 64 << 20;

/// Paths and what lies there.
type Shown = BTreeMap<String, (Kind, u64, String)>;

/// A fault, and what there is to say about it.
struct Case {
    name: &'static str,
    /// Words of what the check says first: its kind, and a part of the rest.
    found: (&'static str, &'static str),
    plant: fn(&Planter<'_>, &BTreeMap<&'static str, u64>),
    /// Paths that are not there afterwards, and where what was there lies then.
    moved: &'static [(&'static str, &'static str)],
}

const ROOT: u64 = 1;

const CASES: &[Case] = &[
    Case {
        name: "a file counts too many links",
        found: ("link-count", "counts 7 links and has 2"),
        plant: |p, ino| p.edit(ino["/a"], |inode| inode.nlink = 7),
        moved: &[],
    },
    Case {
        name: "a file with names counts no links",
        found: ("link-count", "counts 0 links and has 1"),
        plant: |p, ino| p.edit(ino["/d/f"], |inode| inode.nlink = 0),
        moved: &[],
    },
    Case {
        name: "a directory counts too few links",
        found: ("link-count", "counts 1 links and has 3"),
        plant: |p, ino| p.edit(ino["/d"], |inode| inode.nlink = 1),
        moved: &[],
    },
    Case {
        name: "an entry leads to an inode that is not there",
        found: ("dangling-entry", "leads to inode 99999"),
        plant: |p, ino| {
            p.link(ino["/d"], "ghost", 99_999, Kind::File);
        },
        moved: &[],
    },
    Case {
        name: "an inode with its content inline is gone, with two names",
        found: ("dangling-entry", "which is not there"),
        plant: |p, ino| p.remove(&Key::inode(ino["/a"])),
        moved: &[("/a", ""), ("/d/a2", "")],
    },
    Case {
        name: "an entry says that a file is a directory",
        found: ("entry-kind", "is a file"),
        plant: |p, ino| {
            p.link(ino["/d"], "f", ino["/d/f"], Kind::Directory);
        },
        moved: &[],
    },
    Case {
        name: "an entry says that a directory is a file",
        found: ("entry-kind", "is a directory"),
        plant: |p, ino| {
            p.link(ino["/d"], "e", ino["/d/e"], Kind::File);
        },
        moved: &[],
    },
    Case {
        name: "a file has lost its only entry",
        found: ("unreachable", "has no name"),
        plant: |p, ino| p.unlink(ino["/d"], "f"),
        moved: &[("/d/f", "#")],
    },
    Case {
        name: "a file has lost one of its entries",
        found: ("link-count", "counts 2 links and has 1"),
        plant: |p, _| p.unlink(ROOT, "a"),
        moved: &[("/a", "")],
    },
    Case {
        name: "a directory with much below it has lost its entry",
        found: ("unreachable", "directory"),
        plant: |p, _| p.unlink(ROOT, "d"),
        moved: &[("/d", "#")],
    },
    Case {
        name: "a directory has two parents",
        found: ("several-parents", "this name and another one"),
        plant: |p, ino| {
            p.link(ino["/empty"], "too", ino["/d/e"], Kind::Directory);
        },
        moved: &[],
    },
    Case {
        name: "the root has a name",
        found: ("several-parents", "leads to the root"),
        plant: |p, ino| {
            p.link(ino["/empty"], "up", ROOT, Kind::Directory);
        },
        moved: &[],
    },
    Case {
        name: "directories hold each other",
        found: ("directory-loop", "holds itself"),
        plant: |p, ino| {
            p.unlink(ino["/d"], "e");
            let place = p.link(ino["/d/e/deep"], "round", ino["/d/e"], Kind::Directory);
            p.edit(ino["/d/e"], |inode| inode.place = place);
        },
        moved: &[("/d/e", "#")],
    },
    Case {
        name: "a directory says that it is somewhere else",
        found: ("names", "does not know where it is"),
        plant: |p, ino| p.edit(ino["/d/e"], |inode| inode.place = Place { dir: ino["/empty"], cookie: 0x100 }),
        moved: &[],
    },
    Case {
        name: "a directory says that it is in itself",
        found: ("names", "does not know where it is"),
        plant: |p, ino| p.edit(ino["/d/e"], |inode| inode.place.dir = ino["/d/e"]),
        moved: &[],
    },
    Case {
        name: "a file does not know its further name",
        found: ("names", "does not know its name"),
        plant: |p, ino| {
            let place = p.place(ino["/d"], "a2");
            p.remove(&Key::name(ino["/a"], place.dir, place.cookie));
        },
        moved: &[],
    },
    Case {
        name: "a file knows a name that it has not",
        found: ("names", "is said to have a further name"),
        plant: |p, ino| p.put(&Key::name(ino["/a"], ino["/empty"], 0x500), records::NAME.to_vec()),
        moved: &[],
    },
    Case {
        name: "an entry is not where its name is looked for",
        found: ("misplaced-entry", "not found by its name"),
        plant: |p, ino| {
            p.unlink(ino["/d"], "f");
            let place = Place { dir: ino["/d"], cookie: 0x1234_5600 };
            p.put(&p.key_of(place), Entry { ino: ino["/d/f"], kind: Kind::File, name: b"f" }.encode());
            p.edit(ino["/d/f"], |inode| inode.place = place);
        },
        moved: &[],
    },
    Case {
        name: "two entries have one name",
        found: ("misplaced-entry", "not found by its name"),
        plant: |p, ino| {
            p.unlink(ino["/d"], "f");
            let place = p.place(ino["/d"], "e");
            let place = Place { cookie: place.cookie + 1, ..place };
            p.put(&p.key_of(place), Entry { ino: ino["/d/f"], kind: Kind::File, name: b"e" }.encode());
            p.edit(ino["/d/f"], |inode| inode.place = place);
        },
        moved: &[("/d/f", "#")],
    },
    Case {
        name: "a file that is linked has lost its only entry, and is noted as removed",
        found: ("unreachable", "has no name"),
        plant: |p, ino| {
            p.unlink(ino["/d"], "f");
            p.put(&Key::orphan(ino["/d/f"]), Orphan { removed: true }.encode());
        },
        moved: &[("/d/f", "#")],
    },
    Case {
        name: "the record of a directory is gone",
        found: ("unreachable", "is not there, and has entries"),
        plant: |p, ino| p.remove(&Key::inode(ino["/d/e"])),
        moved: &[("/d/e", "again")],
    },
    Case {
        name: "record and entry of a directory are gone",
        found: ("unreachable", "is not there, and has entries"),
        plant: |p, ino| {
            p.remove(&Key::inode(ino["/d/e"]));
            p.unlink(ino["/d"], "e");
        },
        moved: &[("/d/e", "#again")],
    },
    Case {
        name: "the record of a file with content is gone",
        found: ("unreachable", "is not there, and has content"),
        plant: |p, ino| p.remove(&Key::inode(ino["/with"])),
        moved: &[("/with", "again")],
    },
    Case {
        name: "record and entry of a file with content are gone",
        found: ("unreachable", "is not there, and has content"),
        plant: |p, ino| {
            p.remove(&Key::inode(ino["/with"]));
            p.unlink(ROOT, "with");
        },
        moved: &[("/with", "#again")],
    },
    Case {
        name: "an older record of the root is seen",
        found: ("accounting", "counts 0 entries and has 7"),
        plant: |p, _| p.remove(&Key::inode(ROOT)),
        moved: &[],
    },
    Case {
        name: "a directory counts too many entries",
        found: ("accounting", "counts 40 entries and has 3"),
        plant: |p, ino| p.edit(ino["/d"], |inode| inode.size = 40),
        moved: &[],
    },
    Case {
        name: "a full directory says that it is empty",
        found: ("accounting", "counts 0 entries and has 3"),
        plant: |p, ino| p.edit(ino["/d"], |inode| inode.size = 0),
        moved: &[],
    },
    Case {
        name: "a file counts too few blocks",
        found: ("accounting", "counts 1 blocks and has 3"),
        plant: |p, ino| p.edit(ino["/with"], |inode| inode.blocks = 1),
        moved: &[],
    },
    Case {
        name: "a file with names is noted as removed",
        found: ("orphans", "noted as removed"),
        plant: |p, ino| p.put(&Key::orphan(ino["/big"]), Orphan { removed: true }.encode()),
        moved: &[],
    },
    Case {
        name: "what is not there is noted as removed",
        found: ("orphans", "noted as removed"),
        plant: |p, _| p.put(&Key::orphan(88_888), Orphan { removed: true }.encode()),
        moved: &[],
    },
    Case {
        name: "attributes that the inode does not tell of",
        found: ("attributes", "does not say so"),
        plant: |p, ino| p.edit(ino["/with"], |inode| inode.has_xattrs = false),
        moved: &[],
    },
    Case {
        name: "attributes of what is not there",
        found: ("attributes", "is not there, and has attributes"),
        plant: |p, _| p.put(&Key::xattr(88_888, b"user.k"), records::encode_xattr(b"v")),
        moved: &[],
    },
    Case {
        name: "something was written and is not listed",
        found: ("touched-index", "does not say so"),
        plant: |p, ino| p.apply(vec![(keys::touched(p.ids[0], Key::inode(ino["/a"]).as_bytes()), None)]),
        moved: &[],
    },
    Case {
        name: "something is listed that was not written",
        found: ("touched-index", "which was not"),
        plant: |p, _| {
            let note = keys::touched(p.ids[0], Key::inode(77_777).as_bytes());
            p.apply(vec![(note, Some(records::TOUCHED.to_vec()))]);
        },
        moved: &[],
    },
    Case {
        name: "a list with something that is no key",
        found: ("touched-index", "which was not"),
        plant: |p, _| {
            let note = [&keys::touched_start(p.ids[0])[..], b"?"].concat();
            p.apply(vec![(note, Some(records::TOUCHED.to_vec()))]);
        },
        moved: &[],
    },
    Case {
        name: "a tombstone that hides nothing",
        found: ("touched-index", "nobody sees"),
        plant: |p, _| p.put(&Key::inode(66_666), records::TOMBSTONE.to_vec()),
        moved: &[],
    },
    Case {
        name: "inode numbers would be given out again",
        found: ("accounting", "would be given out again"),
        plant: |p, _| p.apply(vec![(keys::meta("next-ino"), Some(records::encode_meta(3)))]),
        moved: &[],
    },
];

/// A world with a snapshot of nothing, below which `main` and the branch `other` have a tree each.
fn world() -> (World, BTreeMap<&'static str, u64>) {
    let world = World::new();
    world.tree.snapshot(MAIN, "before").unwrap();
    world.tree.branch("before", "other").unwrap();
    sample(&world.branch("other"));
    let inodes = sample(&world.main());
    (world, inodes)
}

fn planter(world: &World) -> Planter<'_> {
    Planter { table: &*world.base, hash: hash(64), ids: vec![2, 1] }
}

/// What is left is what was there, but for what was to move.
fn compare(case: &Case, before: &Shown, after: &Shown) {
    let mut expected = before.clone();
    let mut lost = Vec::new();
    for (path, to) in case.moved {
        let ino = before[*path].1;
        let below: Vec<String> =
            expected.keys().filter(|at| *at == path || at.starts_with(&format!("{path}/"))).cloned().collect();
        for at in below {
            let what = expected.remove(&at).unwrap();
            let is_top = at == *path;
            let to_path = if to.starts_with('#') { format!("/lost+found/#{ino}{}", &at[path.len()..]) } else { at };
            // What is made again has permissions of its own.
            if to.ends_with("again") && is_top {
                lost.push((to_path, what.0, what.1));
            } else if !to.is_empty() {
                expected.insert(to_path, what);
            }
        }
    }
    let mut after = after.clone();
    for (path, kind, ino) in lost {
        let (now, number, _) = after.remove(&path).unwrap_or_else(|| panic!("{}: {path} is missing", case.name));
        assert_eq!((now, number), (kind, ino), "{}: {path}", case.name);
    }
    if case.moved.iter().any(|(_, to)| to.starts_with('#')) {
        let made = after.remove("/lost+found").unwrap_or_else(|| panic!("{}: no lost+found", case.name));
        assert!(made.2.starts_with("700 "), "{}: {}", case.name, made.2);
    }
    // A name that is gone is one link less.
    let links = |shown: &mut Shown| {
        for (_, _, what) in
            shown.values_mut().filter(|(_, ino, _)| case.moved.iter().any(|(p, _)| before[*p].1 == *ino))
        {
            *what = what.replacen(" 2 links", " 1 links", 1);
        }
    };
    links(&mut expected);
    links(&mut after);
    assert_eq!(after, expected, "{}", case.name);
}

/// It is sound, space adds up, and a further repair does nothing.
fn assert_sound(world: &World, what: &str) {
    let report = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    assert_eq!(lines(&report.problems), [""; 0], "{what}");
    let again = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!((lines(&again.problems), lines(&again.repaired)), (vec![], vec![]), "{what}");
    let state = world.base.state();
    assert_eq!(world.tree.verify().unwrap().blocks, state.allocated, "{what}");
    assert_eq!(state.reserved.len(), 0, "{what}");
    let space = world.base.space();
    assert_eq!(space.free, space.total - state.allocated.len() as u64, "{what}");
}

#[test]
fn each_fault_is_found_named_and_mended_and_all_else_stays() {
    for case in CASES {
        let (world, inodes) = world();
        let (before, other) = (shown(&world.main()), shown(&world.branch("other")));
        (case.plant)(&planter(&world), &inodes);
        let world = world.reopen();
        let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
        let told = lines(&found.problems);
        let (kind, words) = case.found;
        let is_it = |line: &&String| line.starts_with(kind) && line.contains(words);
        assert!(told.iter().any(|line| is_it(&line)), "{}: {told:?}", case.name);
        assert!(found.problems.iter().all(|problem| problem.is_repairable), "{}: {told:?}", case.name);
        let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
        assert_eq!(lines(&mended.problems), [""; 0], "{}", case.name);
        assert!(
            lines(&mended.repaired).iter().any(|line| is_it(&line)),
            "{}: {:?}",
            case.name,
            lines(&mended.repaired)
        );
        assert_sound(&world, case.name);
        let world = world.reopen();
        compare(case, &before, &shown(&world.main()));
        assert_eq!(shown(&world.branch("other")), other, "{}", case.name);
    }
}

#[test]
fn a_root_whose_record_is_gone_is_made_again() {
    let world = World::new();
    sample(&world.main());
    let before = shown(&world.main());
    Planter { table: &*world.base, hash: hash(64), ids: vec![1] }.remove(&Key::inode(ROOT));
    let world = world.reopen();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert!(lines(&mended.repaired)[0].contains("made again as the root"), "{:?}", lines(&mended.repaired));
    assert_sound(&world, "root");
    assert_eq!(shown(&world.main()), before);
}

#[test]
fn a_repair_that_breaks_off_anywhere_is_gone_on_with() {
    for case in CASES {
        let (world, inodes) = world();
        let before = shown(&world.main());
        (case.plant)(&planter(&world), &inodes);
        let start = world.base.state();
        for batches in 0.. {
            assert!(batches < 100, "{}: it ends", case.name);
            world.base.restore(start.clone());
            let failing = Failing::new(world.base.clone(), batches);
            let whole = checked(&failing.tree(), &*world.base, true, MEMORY).is_ok();
            let again = World {
                base: world.base.clone(),
                tree: Failing::new(world.base.clone(), usize::MAX).tree(),
                hash_bits: 64,
            };
            let mended = checked(&again.tree, &*again.base, true, MEMORY).unwrap();
            let what = format!("{}, after {batches} batches", case.name);
            assert_eq!(lines(&mended.problems), [""; 0], "{what}");
            assert_sound(&again, &what);
            compare(case, &before, &shown(&again.main()));
            if whole {
                break;
            }
        }
    }
}

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
fn blocks_that_are_free_and_a_files_are_the_files_again() {
    let (world, inodes) = world();
    let before = shown(&world.main());
    let window = planter(&world).found(&Key::window(inodes["/big"], 0)).unwrap().1;
    let blocks: Vec<u64> = Window::decode(&window).unwrap().iter().map(|(_, block)| block.at).collect();
    let freed: Vec<Run> = blocks.iter().step_by(3).map(|&start| Run { start, count: 1 }).collect();
    world.base.apply(Batch { freed: freed.clone(), ..Batch::default() }).unwrap();
    // They are not overwritten, though they could be by now.
    let mut state = world.base.state();
    state.freed.clear();
    world.base.restore(state);
    let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    assert!(lines(&found.problems)[0].starts_with("free-blocks: /big in main"), "{:?}", lines(&found.problems));
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert_sound(&world, "free blocks");
    assert_eq!(shown(&world.main()), before);
    // One that was given to somebody else, and overwritten, is damage.
    world.base.apply(Batch { freed: vec![freed[0]], ..Batch::default() }).unwrap();
    let mut state = world.base.state();
    state.freed.clear();
    world.base.restore(state);
    let runs = world.base.reserve(1, Some(freed[0].start), false).unwrap();
    assert_eq!(runs, [freed[0]]);
    let bytes = vec![9; BLOCK_LEN_BYTES];
    world.base.write(runs[0].start, &bytes).unwrap();
    world.base.apply(Batch { allocated: vec![(runs[0], vec![crc32c::crc32c(&bytes)])], ..Batch::default() }).unwrap();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(mended.repaired.len(), 0);
    assert!(lines(&mended.problems)[0].starts_with("damaged-content: /big in main"), "{:?}", lines(&mended.problems));
}

#[test]
fn lost_blocks_are_given_back_but_not_while_a_record_is_damaged() {
    let (world, inodes) = world();
    let before = shown(&world.main());
    let free = world.base.space().free;
    let runs = world.base.reserve(5, Some(5000), false).unwrap();
    let bytes = vec![7; BLOCK_LEN_BYTES];
    let runs: Vec<(Run, Vec<u32>)> = runs
        .into_iter()
        .map(|run| {
            run.blocks().for_each(|block| world.base.write(block, &bytes).unwrap());
            (run, vec![crc32c::crc32c(&bytes); run.count as usize])
        })
        .collect();
    world.base.apply(Batch { allocated: runs, ..Batch::default() }).unwrap();
    let damaged = {
        let planter = planter(&world);
        let key = Key::window(inodes["/with"], 0);
        let (id, value) = planter.found(&key).unwrap();
        planter.apply(vec![(key.at(id), Some(value[..value.len() - 1].to_vec()))]);
        (key.at(id), value)
    };
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    let told = lines(&mended.problems);
    assert_eq!(mended.repaired.len(), 0, "{:?}", lines(&mended.repaired));
    assert!(told.iter().any(|line| line.starts_with("damaged-record: /with in main")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("blocks are not free and belong to nobody")), "{told:?}");
    world.base.apply(Batch { writes: vec![(damaged.0, Some(damaged.1))], ..Batch::default() }).unwrap();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    assert_eq!(lines(&mended.repaired), ["lost-blocks: - in -: 5 blocks are not free and belong to nobody"]);
    assert_sound(&world, "lost blocks");
    assert_eq!((world.base.space().free, shown(&world.main())), (free, before));
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
fn versions_that_disagree_about_the_sum_of_a_block_are_both_compared() {
    let (world, inodes) = world();
    let key = Key::window(inodes["/big"], 0);
    let (_, value) = planter(&world).found(&key).unwrap();
    let mut window = Window::decode(&value).unwrap();
    let block = window.get(0).unwrap();
    window.set(0, Some(records::Block { sum: !block.sum, ..block }));
    planter(&world).apply(vec![(key.at(1), Some(window.encode()))]);
    let found = checked(&world.tree, &*world.base, false, MEMORY).unwrap();
    let told = lines(&found.problems);
    assert!(told.iter().any(|line| line.starts_with("damaged-content: /big")), "{told:#?}");
}

#[test]
fn removed_files_that_are_not_dropped_yet_are_no_fault_and_go_with_a_repair() {
    let (world, inodes) = world();
    let store = world.main();
    let open = store.open(Ino(inodes["/d/f"]), Access::Write).unwrap();
    store.unlink(Ino(inodes["/d"]), name("f")).unwrap();
    // As after a kill.
    let killed = World { base: std::sync::Arc::new(world.base.reopen()), tree: world.tree.clone(), hash_bits: 64 };
    let killed = killed.reopen();
    drop((open, store));
    let free = killed.base.space().free;
    let mended = checked(&killed.tree, &*killed.base, true, MEMORY).unwrap();
    assert_eq!((lines(&mended.problems), lines(&mended.repaired)), (vec![], vec![]));
    assert_eq!(killed.base.space().free, free + 2);
    assert_sound(&killed, "removed files");
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
