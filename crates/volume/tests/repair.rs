//! What a check finds and a repair mends: each fault is written into a tree below all that keeps its rules; the check names it,
//! the repair mends it, and everything else is as it was.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/plant.rs"]
mod plant;
#[path = "support/tree.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind};
use adit_volume::check::{self, Options, Report};
use adit_volume::format::keys::{self, Key};
use adit_volume::format::records::{self, Entry, Orphan, Place};
use adit_volume::tree::FILE_LEN_MAX_BYTES;

use faults::{MEMORY, ROOT, assert_sound, planter, world};
use plant::{Planter, checked, lines, sample, shown};
use support::{Failing, World, hash, name, new};

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
        name: "blocks were written under an id that was never given out",
        found: ("block-birth", "has 3 blocks from byte 0 on that seem younger than they are"),
        plant: |p, ino| p.bear(ino["/with"], 0, 900),
        moved: &[],
    },
    Case {
        name: "blocks were written in a branch that came later",
        found: ("block-birth", "has 1 blocks from byte 3145728 on that seem younger than they are"),
        plant: |p, ino| p.bear(ino["/big"], 3, 3),
        moved: &[],
    },
    Case {
        name: "inode numbers would be given out again",
        found: ("accounting", "would be given out again"),
        plant: |p, _| p.apply(vec![(keys::meta("next-ino"), Some(records::encode_meta(3)))]),
        moved: &[],
    },
];

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
fn a_file_that_is_made_again_is_not_longer_than_any_may_be() {
    let (world, _) = world();
    let store = world.main();
    let (attr, file) = store.create(Ino::ROOT, name("long"), &new(0o644)).unwrap();
    file.write_at(&[(FILE_LEN_MAX_BYTES - 5, b"hello")]).unwrap();
    drop((file, store));
    // Its last block is a byte shorter than a block, which only the record knew.
    planter(&world).remove(&Key::inode(attr.ino.0));
    let world = world.reopen();
    let mended = checked(&world.tree, &*world.base, true, MEMORY).unwrap();
    assert_eq!(lines(&mended.problems), [""; 0]);
    let done = format!("made again under its name, {FILE_LEN_MAX_BYTES} bytes long");
    assert!(lines(&mended.repaired).iter().any(|line| line.contains(&done)), "{:?}", lines(&mended.repaired));
    assert_sound(&world, "a long file");
    let store = world.main();
    let attr = store.lookup(Ino::ROOT, name("long")).unwrap();
    assert_eq!(attr.size, FILE_LEN_MAX_BYTES);
    let mut bytes = [0; 10];
    let read = store.open(attr.ino, Access::Read).unwrap().read_at(FILE_LEN_MAX_BYTES - 10, &mut bytes).unwrap();
    assert_eq!((read, &bytes), (10, b"\0\0\0\0\0hello"));
}

#[test]
fn a_repair_that_an_error_ends_tells_what_it_did() {
    let (world, ino) = world();
    let planter = planter(&world);
    planter.edit(ino["/a"], |inode| inode.nlink = 7);
    planter.edit(ino["/d/f"], |inode| inode.nlink = 9);
    planter.edit(ino["/with"], |inode| inode.blocks = 1);
    let start = world.base.state();
    let all = lines(&checked(&world.tree, &*world.base, false, MEMORY).unwrap().problems);
    assert_eq!(all.len(), 3);
    for (batches, fail_syncs) in [(0, false), (1, false), (2, false), (2, true)] {
        world.base.restore(start.clone());
        let failing = Failing::new(world.base.clone(), batches);
        failing.fail_syncs.store(fail_syncs, Relaxed);
        let mut report = Report::default();
        let options = Options { contents: true, repair: true };
        let ended = check::check_tree(&failing.tree(), &*world.base, options, MEMORY, &mut report, &mut |_| ());
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Io);
        let done = lines(&report.repaired);
        assert_eq!(done.len(), batches, "{done:?}");
        assert!(done.iter().all(|line| line.contains("is not known") == fail_syncs), "{done:?}");
        // Just these are not there any more.
        let left = lines(&checked(&world.tree, &*world.base, false, MEMORY).unwrap().problems);
        let is_done = |problem: &&String| done.iter().any(|line| line.starts_with(problem.as_str()));
        let (told, others): (Vec<_>, Vec<_>) = all.iter().partition(is_done);
        assert_eq!((told.len(), left.iter().collect::<Vec<_>>()), (batches, others));
    }
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
