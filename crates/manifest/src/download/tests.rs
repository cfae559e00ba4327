mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use adit_core::media::{Content as Stored, Objects, PutOptions};
use adit_core::types::Access;
use adit_media::HostDirectory;
use adit_testkit::faults::{CallClass, Fault as HostFault, Faults, each_fault};
use adit_testkit::objects::{ObjectCall, ObjectFault};

use self::support::{Folding, MIB, MTIME, World, content, file, key, micros};
use super::*;
use crate::cache::ObjectId;
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{Content, Dialect, Hasher, Header, Kind as ManifestKind, Removed};
use crate::hash_cache::HashCache;

#[test]
fn all_of_a_manifest_comes_and_nothing_comes_twice() {
    let mut world = World::new();
    let sizes = [0, 1, MIB - 1, MIB, MIB + 1, 20 * MIB + 5];
    for size in sizes {
        world.add(&format!("deep/er/len-{size}"), &content(size, size as u64));
    }
    let tool = b"#!/bin/sh\n";
    world.memory.put(&key(tool), Stored::Bytes(tool), &PutOptions::default()).unwrap();
    world.insert(b"tool", file(tool.len() as u64, Content::Whole(ContentHash::of(tool)), true));
    world.insert(b"empty/dir", Body::Directory);
    world.link("deep/link", "../tool");
    let all: usize = sizes.iter().sum::<usize>() + tool.len();
    let expected = Downloaded { written: 8, written_bytes: all as u64, directories: 1, ..Downloaded::default() };
    assert_eq!(world.well(), expected);
    for size in sizes {
        let path = world.at(&format!("deep/er/len-{size}"));
        assert!(fs::read(&path).unwrap() == content(size, size as u64), "{size}");
        assert_eq!((micros(&path), fs::metadata(&path).unwrap().mode() & 0o7777), (MTIME, 0o644), "{size}");
    }
    assert_eq!(fs::metadata(world.at("tool")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(world.at("empty/dir")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_link(world.at("deep/link")).unwrap(), Path::new("../tool"));
    // Each byte once, and what is large, of six objects with something in them, by several requests.
    let stats = world.faults.stats();
    assert!(stats.bytes_read == all as u64 && stats.reads > 6, "{stats:?}");
    world.faults.reset_stats();
    let paths = world.paths();
    for conflict in [Conflict::Copy, Conflict::Overwrite] {
        world.conflict = conflict;
        assert_eq!(world.well(), Downloaded { present: 8, directories_present: 1, ..Downloaded::default() });
    }
    world.conflict = Conflict::Skip;
    let expected = Downloaded { present: 1, directories_present: 1, skipped: 7, ..Downloaded::default() };
    assert_eq!(world.well(), expected);
    assert_eq!((world.faults.stats().reads, world.paths()), (0, paths));
}

/// A folder that is made for what lies in it was not there before, whichever of the two the manifest has first.
#[test]
fn folders_are_counted_as_made_once_and_as_there_from_then_on() {
    let mut world = World::new();
    world.insert(b"d", Body::Directory);
    world.add("d/e/x", b"data");
    world.insert(b"d/e", Body::Directory);
    world.insert(b"d-e", Body::Directory);
    let first = Downloaded { written: 1, written_bytes: 4, directories: 3, ..Downloaded::default() };
    assert_eq!(world.well(), first);
    assert_eq!(world.well(), Downloaded { present: 1, directories_present: 3, ..Downloaded::default() });
    // What it does not list is of nobody's count.
    fs::remove_dir(world.at("d-e")).unwrap();
    fs::create_dir(world.at("mine")).unwrap();
    assert_eq!(
        world.well(),
        Downloaded { present: 1, directories: 1, directories_present: 2, ..Downloaded::default() }
    );
}

#[test]
fn what_else_is_there_is_left_replaced_or_stays_beside_the_copy() {
    let world_of = |conflict| {
        let mut world = World::new();
        world.conflict = conflict;
        for path in ["d/a.txt", "same", "b", "l"] {
            world.add(path, b"new");
        }
        world.link("x/link", "../b");
        fs::create_dir_all(world.at("d")).unwrap();
        fs::create_dir(world.at("x")).unwrap();
        fs::write(world.at("d/a.txt"), "old").unwrap();
        fs::write(world.at("same"), "new").unwrap();
        fs::write(world.at("b"), "other length").unwrap();
        fs::write(world.at("target"), "kept").unwrap();
        symlink("target", world.at("l")).unwrap();
        symlink("elsewhere", world.at("x/link")).unwrap();
        world
    };
    let world = world_of(Conflict::Skip);
    assert_eq!(world.well(), Downloaded { skipped: 5, ..Downloaded::default() });
    assert_eq!(
        (world.text("d/a.txt"), world.text("b"), world.faults.stats().reads),
        ("old".into(), "other length".into(), 0)
    );

    let world = world_of(Conflict::Overwrite);
    assert_eq!(world.well(), Downloaded { written: 4, written_bytes: 9, present: 1, ..Downloaded::default() });
    for path in ["d/a.txt", "b", "l", "same"] {
        assert_eq!((world.text(path), micros(&world.at(path))), ("new".into(), MTIME), "{path}");
    }
    assert!(!world.at("l").is_symlink() && world.text("target") == "kept", "the link is replaced, not followed");
    assert_eq!(fs::read_link(world.at("x/link")).unwrap(), Path::new("../b"));

    let world = world_of(Conflict::Copy);
    assert_eq!(world.well(), Downloaded { written: 4, written_bytes: 9, present: 1, ..Downloaded::default() });
    assert_eq!((world.text("d/a.txt"), world.text("d/a (1).txt")), ("old".into(), "new".into()));
    assert_eq!(
        (world.text("b (1)"), world.text("l (1)"), world.text("target")),
        ("new".into(), "new".into(), "kept".into())
    );
    assert_eq!(fs::read_link(world.at("x/link (1)")).unwrap(), Path::new("../b"));
    // A file that is there as it should be stays as it is, also its time.
    assert_ne!(micros(&world.at("same")), MTIME);
    // Once more: the copies are found, and no further ones made.
    let paths = world.paths();
    world.faults.reset_stats();
    assert_eq!(world.well(), Downloaded { present: 5, ..Downloaded::default() });
    assert_eq!((world.faults.stats().reads, world.paths()), (0, paths));
    // A copy that is something else is passed over.
    fs::write(world.at("b (1)"), "yet another").unwrap();
    assert_eq!(world.well().written, 1);
    assert_eq!((world.text("b (1)"), world.text("b (2)")), ("yet another".into(), "new".into()));
}

/// Of two names that are one on the host the first stays, whatever is done with what is there, and the second is told.
#[test]
fn names_that_are_one_on_the_host_are_told_and_the_first_stays() {
    for (conflict, again) in [(Conflict::Overwrite, false), (Conflict::Overwrite, true), (Conflict::Skip, false)] {
        let mut world = World::new();
        world.conflict = conflict;
        for (path, content) in [("A", "one"), ("D/x", "in D"), ("other", "other")] {
            world.add(path, content.as_bytes());
        }
        let host = Folding(HostDirectory::open(world.dir.path()).unwrap());
        if again {
            assert_eq!(world.run_on(&host).0.unwrap().written, 3);
        }
        for (path, content) in [("a", "two"), ("d/y", "in d")] {
            world.add(path, content.as_bytes());
        }
        world.link("OTHER", "a");
        let (downloaded, told) = world.run_on(&host);
        let downloaded = downloaded.unwrap();
        assert_eq!((downloaded.failed, told.failed.len()), (3, 3), "{told:?}");
        let same = |path: &str| told.failed.iter().filter(|text| text.contains(path)).count();
        let pairs = [["/A of the manifest", "/a of the manifest"], ["/OTHER of", "/other of"], ["/D of", "/d of"]];
        for pair in pairs {
            assert_eq!(pair.map(same).iter().sum::<usize>(), 1, "{told:?}");
        }
        let first = world.text("a");
        assert!(first == "one" || first == "two", "{first}");
        assert!(world.at("d/x").exists() != world.at("d/y").exists());
    }
    // Beside what is there, both are there.
    let mut world = World::new();
    world.add("A", b"one");
    world.add("a", b"two");
    let host = Folding(HostDirectory::open(world.dir.path()).unwrap());
    assert_eq!(world.run_on(&host).0.unwrap().written, 2);
    let mut both = [world.text("a"), world.text("a (1)")];
    both.sort();
    assert_eq!(both, ["one", "two"]);
}

/// Further names of one file of the host are names of their own.
#[test]
fn hard_links_in_the_folder_are_no_names_of_one_entry() {
    let mut world = World::new();
    world.conflict = Conflict::Overwrite;
    world.add("a", b"one");
    world.add("b", b"two");
    fs::write(world.at("a"), "old").unwrap();
    fs::hard_link(world.at("a"), world.at("b")).unwrap();
    assert_eq!(world.well().written, 2);
    assert_eq!((world.text("a"), world.text("b")), ("one".into(), "two".into()));
}

/// What the manifest has under the name of a copy comes there, and nothing else.
#[test]
fn a_copy_takes_no_name_of_the_manifest() {
    let mut world = World::new();
    world.conflict = Conflict::Copy;
    fs::write(world.at("a.txt"), "old").unwrap();
    world.add("a.txt", b"first");
    world.add("a (1).txt", b"second");
    assert_eq!(world.well().written, 2);
    let found = ["a.txt", "a (1).txt", "a (2).txt"].map(|path| world.text(path));
    assert_eq!(found, ["old", "second", "first"].map(String::from));
}

#[test]
fn wrong_content_has_no_name_and_others_come() {
    for len in [10, 3 * MIB] {
        let mut world = World::new();
        for (at, path) in ["a", "b", "c"].iter().enumerate() {
            world.add(path, &content(len, at as u64));
        }
        world.memory.rot(&key(&content(len, 1)), |bytes| bytes[len / 2] ^= 1);
        let (downloaded, told) = world.run();
        assert_eq!((downloaded.as_ref().unwrap().written, downloaded.unwrap().failed), (2, 1));
        let [failed] = &told.failed[..] else { panic!("{told:?}") };
        assert!(failed.contains("/b:") && failed.contains(&ContentHash::of(&content(len, 1)).to_string()), "{failed}");
        assert!(failed.contains("corrupt") && failed.contains("upload the object again"), "{failed}");
        assert_eq!(world.paths(), ["a", "c"]);
        // When the store is right again, only that is fetched.
        world.memory.put(&key(&content(len, 1)), Stored::Bytes(&content(len, 1)), &PutOptions::default()).unwrap();
        world.faults.reset_stats();
        assert_eq!((world.well().written, world.faults.stats().bytes_read), (1, len as u64));
        assert!(fs::read(world.at("b")).unwrap() == content(len, 1));
    }
}

#[test]
fn objects_that_are_missing_or_cut_are_told_and_others_come() {
    let mut world = World::new();
    for (at, path) in ["cut", "good", "missing"].iter().enumerate() {
        world.add(path, &content(100, at as u64));
    }
    world.memory.rot(&key(&content(100, 0)), |bytes| bytes.truncate(50));
    world.memory.delete(&key(&content(100, 2))).unwrap();
    let (downloaded, mut told) = world.run();
    assert_eq!(downloaded.unwrap(), Downloaded { written: 1, written_bytes: 100, failed: 2, ..Downloaded::default() });
    told.failed.sort();
    assert!(told.failed[0].contains("/cut:") && told.failed[0].contains("50 bytes"), "{told:?}");
    assert!(told.failed[1].contains("/missing:") && told.failed[1].contains("not in the store"), "{told:?}");
    assert_eq!(world.paths(), ["good"]);
}

#[test]
fn a_bit_that_flips_once_is_fetched_again() {
    let mut world = World::new();
    world.add("a", &content(5 * MIB, 1));
    world.faults.add(ObjectFault::FlipBit, &[ObjectCall::Read], "", 2, 1);
    assert_eq!(world.well().written, 1);
    assert!(fs::read(world.at("a")).unwrap() == content(5 * MIB, 1));
}

#[test]
fn a_store_that_fails_ends_it_and_the_next_goes_on() {
    for fault in [ObjectFault::UNAVAILABLE, ObjectFault::TIMED_OUT] {
        let mut world = World::new();
        for at in 0..20 {
            world.add(&format!("f{at:02}"), &content(100 + at, at as u64));
        }
        world.faults.add(fault, &[ObjectCall::Read], "", 9, u64::MAX);
        let ObjectFault::Fail(kind) = fault else { unreachable!() };
        assert_eq!(world.run().0.unwrap_err().kind(), kind);
        world.faults.clear();
        let there = world.paths();
        assert!(!there.is_empty() && there.len() <= 9 && there.iter().all(|path| path.len() == 3), "{there:?}");
        world.faults.reset_stats();
        assert_eq!(world.well().present, there.len() as u64);
        assert_eq!(world.faults.stats().reads, 20 - there.len() as u64);
    }
    // Who may read nothing hears of it once; one object that is refused is one file's error.
    let mut world = World::new();
    (0..5).for_each(|at| world.add(&format!("f{at}"), &content(100, at)));
    world.faults.always(ObjectFault::FORBIDDEN, &[ObjectCall::Read]);
    assert_eq!(world.run().0.unwrap_err().kind(), ErrorKind::PermissionDenied);
    world.faults.clear();
    world.filter = Filter::new(&["f0"], &[]).unwrap();
    world.well();
    world.filter = Filter::default();
}

/// Nothing is written, made or removed outside of the folder, and nothing is taken for a folder that is none.
#[test]
fn links_and_other_things_in_the_folder_lead_nowhere() {
    for conflict in [Conflict::Skip, Conflict::Overwrite, Conflict::Copy] {
        let mut world = World::new();
        world.conflict = conflict;
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("x"), "outside").unwrap();
        fs::create_dir(outside.path().join("sub")).unwrap();
        for path in ["good", "link/new", "link/sub/new", "link/x", "file/x"] {
            world.add(path, b"data");
        }
        world.insert(b"link/made", Body::Directory);
        world.link("link/l", "x");
        symlink(outside.path(), world.at("link")).unwrap();
        fs::write(world.at("file"), "a file").unwrap();
        let before = fs::read_dir(outside.path()).unwrap().count();
        let (downloaded, told) = world.run();
        assert_eq!((downloaded.unwrap().written, told.failed.len()), (1, 6), "{told:?}");
        assert!(told.failed.iter().all(|e| e.contains("in the place of a folder")), "{told:?}");
        assert_eq!(fs::read_to_string(outside.path().join("x")).unwrap(), "outside");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), before);
        assert_eq!(fs::read_dir(outside.path().join("sub")).unwrap().count(), 0);
        assert_eq!(
            (world.text("file"), world.paths()),
            ("a file".into(), vec!["file".into(), "good".into(), "link".into()])
        );
    }
}

#[test]
fn a_folder_or_device_in_the_place_of_a_file_stays() {
    let mut world = World::new();
    world.add("dir", b"data");
    world.add("fifo", b"data");
    fs::create_dir_all(world.at("dir/in")).unwrap();
    let fifo = std::ffi::CString::new(world.at("fifo").to_str().unwrap()).unwrap();
    // SAFETY: a system call with a text that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    world.conflict = Conflict::Overwrite;
    let (downloaded, told) = world.run();
    assert_eq!(
        (downloaded.unwrap().failed, world.paths()),
        (2, vec!["dir".into(), "dir/in".into(), "fifo".into()]),
        "{told:?}"
    );
    world.conflict = Conflict::Copy;
    assert_eq!(world.well().written, 2);
    assert_eq!((world.text("dir (1)"), world.text("fifo (1)")), ("data".into(), "data".into()));
}

#[test]
fn names_that_a_host_cannot_have_are_told_and_others_come() {
    let mut world = World::new();
    let hash = ContentHash::of(b"data");
    world.add("日本/😀", b"data");
    for path in [&b"lone\xed\xa0\x80"[..], b"d\xed\xb1\xbf/x", b"caf\xed\xb3\xa9", b"\xed\xb3\x83\xed\xb2\xa9"] {
        world.insert(path, file(4, Content::Whole(hash), false));
    }
    world.add("é", b"data");
    let (downloaded, told) = world.run();
    assert_eq!((downloaded.unwrap().written, told.failed.len()), (3, 3), "{told:?}");
    assert_eq!(told.failed.iter().filter(|e| e.contains("no bytes")).count(), 2, "{told:?}");
    assert!(told.failed.iter().any(|e| e.contains("the same name")), "{told:?}");
    assert_eq!(fs::read(world.dir.path().join(OsStr::from_bytes(b"caf\xe9"))).unwrap(), b"data");
    assert_eq!((world.text("日本/😀"), world.text("é")), ("data".into(), "data".into()));
}

#[test]
fn an_end_leaves_nothing_unfinished_and_the_next_goes_on() {
    let mut world = World::new();
    for at in 0..20 {
        world.add(&format!("d{at}/f"), &content(3 * MIB, at));
    }
    let (host, source, mut entries) = (HostDirectory::open(world.dir.path()).unwrap(), world.source(), 0);
    let ended = download(&world.manifest, &world.options(&source, &host), &mut |event| {
        entries += u64::from(matches!(event, DownloadEvent::Entry { .. }));
        if entries < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
    let there = world.paths();
    assert!(there.iter().all(|path| !path.contains(".download")), "{there:?}");
    let files = there.iter().filter(|path| path.contains('/')).count() as u64;
    assert!((5..20).contains(&files), "{there:?}");
    let again = world.well();
    assert_eq!((again.present, again.written), (files, 20 - files));
    for at in 0..20 {
        assert!(fs::read(world.at(&format!("d{at}/f"))).unwrap() == content(3 * MIB, at));
    }
}

/// As after a kill: the lock of what is unfinished is free. What somebody is at work on stays.
#[test]
fn what_a_killed_download_left_is_removed_by_the_next() {
    let mut world = World::new();
    world.add("d/a", b"data");
    world.add("b", b"data");
    fs::create_dir(world.at("d")).unwrap();
    let host = HostDirectory::open(world.dir.path()).unwrap();
    for left in [".adit-1-abc-0.download", "d/.adit-1-abc-1.download"] {
        fs::write(world.at(left), "half").unwrap();
    }
    let others = ["d/.adit-1-abc-0.part", "d/mine.download", "d/.adit-x-y-z.download"];
    others.iter().for_each(|path| fs::write(world.at(path), "kept").unwrap());
    let alive = draft::Draft::file(&host, Path::new("d/c")).unwrap();
    symlink("x", world.at("d/.adit-1-abc-2.download")).unwrap();
    // One that a manifest has, by whatever accident, is a file like any other.
    world.add(".adit-2-abc-0.download", b"wanted");
    fs::write(world.at(".adit-2-abc-0.download"), "wanted").unwrap();
    let expected = Downloaded { written: 2, written_bytes: 8, present: 1, swept: 2, ..Downloaded::default() };
    assert_eq!(world.well(), expected);
    let paths = world.paths();
    assert!(others.iter().all(|path| paths.iter().any(|there| there == path)), "{paths:?}");
    let temporary: Vec<_> =
        paths.iter().filter(|path| path.contains("/.adit-") && path.ends_with(".download")).collect();
    assert_eq!(temporary.len(), 3, "the live one, a link of a moment ago, and a name that is none of ours: {paths:?}");
    drop(alive);
    assert_eq!(world.paths().len(), paths.len() - 1);
}

#[test]
fn a_host_that_fails_at_any_call_leaves_nothing_wrong() {
    for fault in [HostFault::NO_SPACE, HostFault::IO] {
        let mut world = World::new();
        world.conflict = Conflict::Overwrite;
        for path in ["a", "d/b", "d/c"] {
            world.add(path, path.as_bytes());
        }
        world.add("large", &content(2 * MIB, 7));
        world.link("l", "a");
        fs::write(world.at("a"), "old").unwrap();
        let no_space = fault == HostFault::NO_SPACE;
        let classes = if no_space { &CallClass::GROWING[..] } else { &CallClass::ALL };
        each_fault(fault, classes, 1, |round| {
            for path in ["a", "d", "large", "l"] {
                let _ = fs::remove_file(world.at(path));
                let _ = fs::remove_dir_all(world.at(path));
            }
            fs::write(world.at("a"), "old").unwrap();
            let host = round.faults.wrap(HostDirectory::open(world.dir.path()).unwrap());
            round.arm();
            let (downloaded, told) = world.run_on(&host);
            let fired = round.faults.fired();
            round.faults.disarm();
            match downloaded {
                Ok(_) => assert!(!no_space || fired.is_empty(), "{fired:?}"),
                Err(e) => assert!(no_space && e.kind() == ErrorKind::NoSpace, "{e}: {fired:?}"),
            }
            for (path, expected) in
                [("a", &b"a"[..]), ("d/b", b"d/b"), ("d/c", b"d/c"), ("large", &content(2 * MIB, 7))]
            {
                match fs::read(world.at(path)) {
                    Ok(found) => assert!(found == expected || (path == "a" && found == b"old"), "{path}: {fired:?}"),
                    Err(_) => assert!(!fired.is_empty() && path != "a", "{path}: {told:?}"),
                }
            }
            // All is well when the host is; what could not be removed is removed then.
            world.well();
            assert!(world.paths().iter().all(|path| !path.contains(".download")), "{:?}: {fired:?}", world.paths());
            assert_eq!(world.text("a"), "a");
        });
    }
}

#[test]
fn only_what_is_wanted_comes_and_a_diff_removes_nothing() {
    let mut world = World::new();
    world.manifest = Manifest::new(Header {
        kind: ManifestKind::Diff { parent: ContentHash([1; 16]) },
        ..Header::snapshot(Format::V2025(Dialect::G))
    });
    for path in ["a/x.txt", "a/y.bin", "b/x.txt", "c/d/x.txt"] {
        world.add(path, path.as_bytes());
    }
    world.insert(b"gone", Body::Deleted(Removed::File));
    fs::write(world.at("gone"), "stays").unwrap();
    world.filter = Filter::new(&["a", "c"], &["**/*.bin", "c/d"]).unwrap();
    assert_eq!(wanted_bytes(&world.manifest, &world.filter), 7);
    assert_eq!(world.well().written, 1);
    assert_eq!(world.paths(), ["a", "a/x.txt", "gone"]);
}

#[test]
fn a_dry_run_tells_what_would_be_and_does_nothing() {
    let mut world = World::new();
    for path in ["new/x", "there", "other"] {
        world.add(path, b"data");
    }
    world.link("link", "there");
    world.insert(b"new/dir", Body::Directory);
    fs::write(world.at("there"), "data").unwrap();
    fs::write(world.at("other"), "else").unwrap();
    world.dry_run = true;
    let (downloaded, told) = world.run();
    let expected = Downloaded { written: 3, written_bytes: 8, present: 1, directories: 1, ..Downloaded::default() };
    assert_eq!(downloaded.unwrap(), expected);
    let expected = [
        ("link", Outcome::New),
        ("new/dir", Outcome::New),
        ("new/x", Outcome::New),
        ("other", Outcome::Copied(b"other (1)".to_vec())),
        ("there", Outcome::Present(None)),
    ];
    assert_eq!(told.entries, expected.map(|(path, outcome)| (path.to_owned(), outcome)));
    assert_eq!((world.paths(), world.faults.stats().reads), (vec!["other".into(), "there".into()], 0));
    // Where the folder is not there either, all of it is new.
    let source = world.source();
    let host = HostDirectory::open(world.dir.path()).unwrap();
    let options = DownloadOptions { host: None, ..world.options(&source, &host) };
    assert_eq!(world.run_with(&options).0.unwrap().written, 4);
}

#[test]
fn times_and_exec_bits_of_what_is_there_are_mended_where_it_may_be_overwritten() {
    let mut world = World::new();
    world.add("plain", b"one");
    world.memory.put(&key(b"two"), Stored::Bytes(b"two"), &PutOptions::default()).unwrap();
    world.insert(b"tool", file(3, Content::Whole(ContentHash::of(b"two")), true));
    fs::write(world.at("plain"), "one").unwrap();
    fs::write(world.at("tool"), "two").unwrap();
    fs::set_permissions(world.at("plain"), PermissionsExt::from_mode(0o750)).unwrap();
    fs::set_permissions(world.at("tool"), PermissionsExt::from_mode(0o640)).unwrap();
    world.well();
    assert_eq!(fs::metadata(world.at("tool")).unwrap().mode() & 0o777, 0o640);
    world.conflict = Conflict::Overwrite;
    assert_eq!(world.well().present, 2);
    let modes = ["plain", "tool"].map(|path| fs::metadata(world.at(path)).unwrap().mode() & 0o777);
    assert_eq!((modes, micros(&world.at("plain"))), ([0o640, 0o751], MTIME));
}

#[test]
fn what_was_hashed_before_is_not_read_again() {
    let mut world = World::new();
    world.add("a", &content(MIB, 1));
    world.well();
    let file = world.dir.path().with_extension("hashes");
    let cache = HashCache::open(&file).unwrap().unwrap();
    let run = |may_read: bool| {
        let scope = cache.scope(b"place");
        scope.pretend_later(Duration::from_secs(60));
        let faults = Faults::new();
        if !may_read {
            faults.arm(HostFault::IO, &[CallClass::Read], 0, u64::MAX);
        }
        let host = faults.wrap(HostDirectory::open(world.dir.path()).unwrap());
        let source = world.source();
        let options = DownloadOptions { known: Some(&scope), ..world.options(&source, &host) };
        let (downloaded, told) = world.run_with(&options);
        assert_eq!((downloaded.unwrap().present, told.failed.len()), (1, 0));
    };
    run(true);
    run(false);
    fs::remove_file(file).unwrap();
}

/// Objects of zeros, however long.
struct Zeros;

impl Fetch for Zeros {
    fn fetch(
        &self,
        _: &ObjectId,
        range: std::ops::Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let zeros = vec![0; MIB];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(MIB as u64) as usize;
            sink(&zeros[..len])?;
            at += len as u64;
        }
        Ok(())
    }
}

#[test]
fn files_in_chunks_come_whole() {
    let mut world = World::new();
    let size = CHUNK_LEN_BYTES + 5;
    let mut hasher = Hasher::default();
    (0..CHUNK_LEN_BYTES / MIB as u64).for_each(|_| hasher.update(&vec![0; MIB]));
    let hashes = vec![hasher.finish(), ContentHash::of(&[0; 5])];
    world.insert(b"f", file(size, Content::chunks(hashes.clone().into(), size).unwrap(), false));
    let host = HostDirectory::open(world.dir.path()).unwrap();
    let (downloaded, told) = world.run_with(&world.options(&Zeros, &host));
    assert_eq!(
        (downloaded.unwrap().written_bytes, fs::metadata(world.at("f")).unwrap().len()),
        (size, size),
        "{told:?}"
    );
    // It is compared by its chunks.
    let (downloaded, _) = world.run_with(&world.options(&Zeros, &host));
    assert_eq!(downloaded.unwrap().present, 1);
    host.open(Path::new("f"), Access::Write).unwrap().write_at(CHUNK_LEN_BYTES + 1, b"x").unwrap();
    let (downloaded, told) = world.run_with(&world.options(&Zeros, &host));
    assert_eq!((downloaded.unwrap().written, &told.entries[0].1), (1, &Outcome::Copied(b"f (1)".to_vec())));
}
