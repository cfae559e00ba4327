//! Names of an overlay: what hides what, and what keeps its number.

mod overlay;

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::overlay::{Change, Changed, Overlay};
use adit_core::store::Store;
use adit_core::types::{FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, Timestamp, XattrName, XattrSet};
use adit_volume::tree::MAIN;
use adit_volume::{Source, VolumeStore};
use overlay::volume::{Failing, World, name, new};
use overlay::{Pair, Words, identity, over};

/// `/d/a`, `/d/e/deep`, `/f`.
fn some() -> Pair {
    Pair::new(|lower| {
        lower.dir("d");
        lower.put("d/a", b"a");
        lower.dir("d/e");
        lower.put("d/e/deep", b"deep");
        lower.put("f", b"f");
    })
}

/// What [`Overlay::changes`] tells, a line each.
fn told(overlay: &Overlay) -> Vec<String> {
    let mut told = Vec::new();
    let shown = |Change { path, kind, what }| {
        let what = match what {
            Changed::Renamed(from) => format!("from {}", from.escape_ascii()),
            what => format!("{what:?}"),
        };
        format!("{} {} {what}", path.escape_ascii(), kind.as_str())
    };
    let unknown = overlay.changes(&mut |change| told.push(shown(change))).unwrap();
    assert!(unknown.is_empty(), "{unknown:?}");
    told
}

/// What the upper itself has below a path of its own.
fn upper_names(pair: &Pair, path: &str) -> Vec<String> {
    pair.upper.main().names(path)
}

#[test]
fn a_renamed_directory_of_the_lower_moves_alone() {
    let pair = some();
    let before = {
        let overlay = pair.open();
        let before = (overlay.at("d"), overlay.at("d/e"), overlay.at("d/e/deep"));
        overlay.mv("d", "moved").unwrap();
        assert_eq!(overlay.names("moved"), ["a", "e"]);
        assert_eq!(overlay.content("moved/e/deep"), b"deep");
        assert!(overlay.find("d").unwrap_err().is_not_found());
        assert_eq!(overlay.names(""), ["f", "moved"]);
        before
    };
    assert_eq!(upper_names(&pair, "tree"), ["d", "moved"], "a whiteout and the directory");
    assert_eq!(upper_names(&pair, "tree/moved"), [""; 0], "nothing below it was touched");
    // Moved again, and into another one that moved, and changed inside.
    let overlay = pair.open();
    assert_eq!((overlay.at("moved"), overlay.at("moved/e"), overlay.at("moved/e/deep")), before);
    overlay.mv("moved/e", "e").unwrap();
    overlay.mv("moved", "e/again").unwrap();
    overlay.file("e/deep").write_at(&[(0, b"D")]).unwrap();
    drop(overlay);
    let overlay = pair.open();
    assert_eq!((overlay.at("e/again"), overlay.at("e"), overlay.at("e/deep")), before);
    assert_eq!((overlay.content("e/deep"), overlay.content("e/again/a")), (b"Deep".to_vec(), b"a".to_vec()));
    assert_eq!(overlay.names("e"), ["again", "deep"]);
    // The old name can be used again, and shows nothing of before.
    overlay.dir("d");
    assert_eq!(overlay.names("d"), [""; 0]);
    let into_itself = overlay.mv("e", "e/again/x").unwrap_err();
    assert_eq!(into_itself.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_directory_made_in_the_place_of_another_shows_nothing_of_it() {
    let pair = some();
    {
        let overlay = pair.open();
        overlay.rm("d/a");
        overlay.rm("d/e/deep");
        overlay.rmdir(overlay.at("d"), name("e")).unwrap();
        overlay.rmdir(Ino::ROOT, name("d")).unwrap();
        overlay.dir("d");
        assert_eq!(overlay.names("d"), [""; 0]);
        overlay.put("d/a", b"new");
    }
    let overlay = pair.open();
    assert_eq!((overlay.names("d"), overlay.content("d/a")), (vec!["a".to_owned()], b"new".to_vec()));
}

/// As on any other filesystem: whoever has it open goes on.
#[test]
fn a_directory_of_the_lower_is_changed_after_it_was_removed() {
    let pair = Pair::new(|lower| {
        lower.dir("d");
        lower.dir("replaced");
    });
    {
        let overlay = pair.open();
        let both = [overlay.at("d"), overlay.at("replaced")];
        overlay.rmdir(Ino::ROOT, name("d")).unwrap();
        overlay.dir("other");
        overlay.mv("other", "replaced").unwrap();
        for ino in both {
            let past = Timestamp { secs: 5, nanos: 6 };
            let set = SetAttr { perm: Some(0o711), uid: Some(7), mtime: Some(SetTime::At(past)), ..SetAttr::default() };
            let attr = overlay.setattr(ino, &set).unwrap();
            assert_eq!((attr.ino, attr.perm, attr.uid, attr.mtime, attr.nlink), (ino, 0o711, 7, past, 0));
            let xattr = XattrName::new(b"user.a").unwrap();
            overlay.set_xattr(ino, xattr, b"1", XattrSet::Create).unwrap();
            assert_eq!(overlay.xattr(ino, xattr).unwrap(), b"1");
            let mut entries = 0;
            overlay.read_dir(ino, 0, &mut |_| (entries += 1, ControlFlow::Continue(())).1).unwrap();
            assert_eq!(entries, 0);
            assert!(overlay.mkdir(ino, name("f"), &new(0o644)).unwrap_err().is_not_found());
            overlay.forget(ino);
        }
    }
    assert_eq!(pair.open().names(""), ["replaced"]);
    assert_eq!(pair.upper.tree.verify().unwrap().problems, [""; 0]);
}

#[test]
fn a_whiteout_is_nowhere_to_be_seen_and_a_device_is() {
    let pair = some();
    {
        let overlay = pair.open();
        overlay.rm("f");
        overlay.rm("d/a");
        let attr = overlay.mknod(Ino::ROOT, name("f"), Kind::CharDevice, 0, &new(0o600)).unwrap();
        assert_eq!((attr.kind, attr.rdev, attr.nlink), (Kind::CharDevice, 0, 1));
        let dir = overlay.at("d");
        overlay.rename(dir, name("e"), dir, name("x"), RenameFlags::WHITEOUT).unwrap();
    }
    let overlay = pair.open();
    assert_eq!(overlay.stat("f").kind, Kind::CharDevice);
    assert_eq!(overlay.names("d"), ["e", "x"]);
    assert_eq!((overlay.stat("d/e").kind, overlay.stat("d/x").kind), (Kind::CharDevice, Kind::Directory));
    // Removed, it does not bring back what it hid.
    overlay.rm("f");
    overlay.rm("d/e");
    assert_eq!((overlay.names(""), overlay.names("d")), (vec!["d".to_owned()], vec!["x".to_owned()]));
}

#[test]
fn all_names_of_a_file_of_the_lower_show_its_copy() {
    let pair = Pair::new(|lower| {
        lower.dir("d");
        let ino = lower.put("one", b"1234");
        lower.link(ino, lower.at("d"), name("two")).unwrap();
        lower.link(ino, Ino::ROOT, name("three")).unwrap();
    });
    let ino = {
        let overlay = pair.open();
        overlay.file("one").write_at(&[(0, b"X")]).unwrap();
        assert_eq!((overlay.content("d/two"), overlay.stat("three").nlink), (b"X234".to_vec(), 3));
        overlay.rm("one");
        assert_eq!(overlay.stat("d/two").nlink, 2);
        overlay.at("d/two")
    };
    let overlay = pair.open();
    assert_eq!((overlay.at("d/two"), overlay.at("three")), (ino, ino));
    assert_eq!(overlay.content("three"), b"X234");
    overlay.mv("d/two", "d/moved").unwrap();
    assert_eq!(overlay.link(ino, Ino::ROOT, name("four")).unwrap().nlink, 3);
    overlay.rm("three");
    overlay.file("four").write_at(&[(3, b"Y")]).unwrap();
    assert_eq!((overlay.content("d/moved"), overlay.stat("d/moved").nlink), (b"X23Y".to_vec(), 2));
    overlay.mv("four", "d/moved").unwrap();
    assert_eq!(overlay.stat("four").nlink, 2, "a rename between names does nothing");
    overlay.rm("four");
    overlay.rm("d/moved");
    drop(overlay);
    assert_eq!(pair.upper.main().names("index"), [""; 0], "the copy goes with the last name");
}

#[test]
fn copying_up_changes_no_time_of_a_directory() {
    let pair = some();
    let overlay = pair.open();
    let old = SetTime::At(Timestamp { secs: 5, nanos: 6 });
    let before = (overlay.stat("d").mtime, overlay.stat("d/e").mtime, overlay.stat("").mtime);
    let set = SetAttr { perm: Some(0o600), mtime: Some(old), ..SetAttr::default() };
    overlay.setattr(overlay.at("d/e/deep"), &set).unwrap();
    assert_eq!((overlay.stat("d").mtime, overlay.stat("d/e").mtime, overlay.stat("").mtime), before);
    assert_eq!(overlay.stat("d/e/deep").mtime, Timestamp { secs: 5, nanos: 6 });
    assert_eq!(overlay.content("d/e/deep"), b"deep");
}

/// Entries that come and go beside a listing that is read three at a time.
#[test]
fn a_listing_goes_on_beside_changes() {
    let pair = Pair::new(|lower| {
        for i in 0..40 {
            lower.put(&format!("l{i}"), b"");
        }
    });
    let overlay = pair.open();
    for i in 0..40 {
        overlay.put(&format!("u{i}"), b"");
    }
    let (mut seen, mut start, mut step) = (Vec::new(), 0, 0);
    loop {
        let mut taken = 0;
        let listed = overlay.read_dir(Ino::ROOT, start, &mut |entry| {
            seen.push((entry.name.display().into_owned(), entry.ino));
            (start, taken) = (entry.cookie, taken + 1);
            if taken < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        listed.unwrap();
        if taken == 0 {
            break;
        }
        // New names, copies of old ones, names of the lower that are removed and made again.
        overlay.put(&format!("new{step}"), b"");
        overlay.file(&format!("l{}", step % 40)).write_at(&[(0, b"x")]).unwrap();
        if step % 3 == 0 {
            let path = format!("l{}", (step + 20) % 40);
            overlay.rm(&path);
            overlay.put(&path, b"again");
        }
        step += 1;
    }
    let mut names: Vec<&String> = seen.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|two| two[0] != two[1]), "a name comes once");
    for i in 0..40 {
        let (lower, upper) = (format!("l{i}"), format!("u{i}"));
        assert!(names.contains(&&lower) && names.contains(&&upper), "{i} is missing");
    }
    overlay::numbers_of(&overlay).unwrap();
}

/// More whiteouts than go in one transaction, and a volume that fails after each of them.
#[test]
fn a_directory_full_of_whiteouts_goes_whole_or_stays_empty() {
    const FILES: usize = 300;
    let below = Pair::new(|lower| {
        lower.dir("d");
        for i in 0..FILES {
            lower.put(&format!("d/{i}"), b"");
        }
    });
    let mut batches = 0;
    loop {
        let pair = Pair { lower: below.lower.clone(), upper: World::new() };
        {
            let overlay = pair.open();
            (0..FILES).for_each(|i| overlay.rm(&format!("d/{i}")));
        }
        let failing = Failing::new(pair.upper.base.clone(), usize::MAX);
        let tree = failing.tree();
        let store = VolumeStore::open(&tree, Source::Branch(MAIN.to_owned())).unwrap();
        let overlay = Overlay::open(pair.lower.clone(), Arc::new(store), &identity("the lower")).unwrap();
        failing.set_left(batches);
        let removed = overlay.rmdir(Ino::ROOT, name("d"));
        let there = overlay.find("d").is_ok();
        assert_eq!(removed.is_ok(), !there);
        if there {
            assert_eq!(overlay.names("d"), [""; 0]);
        }
        drop((overlay, tree, failing));
        let upper = pair.upper.reopen();
        let overlay = over(&pair.lower, &upper);
        assert_eq!(overlay.find("d").is_ok(), there);
        if !there {
            assert!(batches > 4, "it took several transactions");
            return;
        }
        assert_eq!(overlay.names("d"), [""; 0], "what was removed stays so");
        assert_eq!(told(&overlay).iter().filter(|line| line.ends_with("file Removed")).count(), FILES);
        overlay.put("d/7", b"new");
        assert!(told(&overlay).contains(&"/d/7 file Content".to_owned()));
        assert_eq!(told(&overlay).len(), FILES);
        overlay.rm("d/7");
        overlay.rmdir(Ino::ROOT, name("d")).unwrap();
        batches += 1;
    }
}

#[test]
fn what_is_not_its_upper_is_refused() {
    let pair = some();
    let world = World::new();
    assert!(Overlay::is_new(&world.main()).unwrap());
    drop(pair.open());
    assert!(!Overlay::is_new(&pair.upper.main()).unwrap());
    let open =
        |upper: VolumeStore, id: &str| Overlay::open(pair.lower.clone(), Arc::new(upper), &identity(id)).err().unwrap();
    let e = open(pair.upper.main(), "another one");
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("the lower") && e.to_string().contains("another one"), "{e}");
    world.main().put("mine", b"");
    let e = open(world.main(), "the lower");
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("mine"), "{e}");
}

/// Its numbers leave no room for those of another one.
#[test]
fn an_overlay_is_no_lower_and_that_is_said_at_once() {
    let pair = some();
    let below: Arc<dyn Store> = Arc::new(pair.open());
    let upper = World::new();
    let e = Overlay::open(below, Arc::new(upper.main()), &identity("an overlay")).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NotSupported);
    assert!(e.to_string().contains("an overlay itself"), "{e}");
    assert!(Overlay::is_new(&upper.main()).unwrap(), "nothing is begun");
}

#[test]
fn upper_and_lower_may_be_one_volume() {
    let world = World::new();
    world.tree.snapshot(MAIN, "empty").unwrap();
    world.tree.branch("empty", "upper").unwrap();
    world.main().dir("d");
    world.main().put("d/f", &[7; 20000]);
    let id = world.tree.snapshot(MAIN, "lower").unwrap();
    let lower: Arc<dyn Store> = Arc::new(VolumeStore::open(&world.tree, Source::Snapshot(id)).unwrap());
    let overlay = Overlay::open(lower, Arc::new(world.branch("upper")), &identity("the lower")).unwrap();
    overlay.mv("d", "e").unwrap();
    overlay.file("e/f").write_at(&[(5000, b"x")]).unwrap();
    let mut expected = vec![7; 20000];
    expected[5000] = b'x';
    assert_eq!(overlay.content("e/f"), expected);
}

#[test]
fn changes_are_told_by_path() {
    let pair = Pair::new(|lower| {
        for path in ["d", "d/e", "gone", "same"] {
            lower.dir(path);
        }
        for path in ["d/a", "d/b", "d/e/deep", "f", "g", "same/x"] {
            lower.put(path, &[1; 9000]);
        }
        let ino = lower.put("linked", b"l");
        lower.link(ino, lower.at("d"), name("linked")).unwrap();
    });
    {
        let overlay = pair.open();
        overlay.mv("d/e", "moved").unwrap();
        overlay.file("moved/deep").write_at(&[(0, b"x")]).unwrap();
        overlay.setattr(overlay.at("f"), &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        overlay.rm("g");
        overlay.put("g", b"other");
        overlay.rmdir(Ino::ROOT, name("gone")).unwrap();
        overlay.put("same/new", b"");
        overlay.mv("d/a", "d/z").unwrap();
        overlay.rm("d/b");
        overlay.dir("d/b");
        overlay.file("d/linked").set_len(0).unwrap();
        overlay.setattr(overlay.at("same"), &SetAttr { uid: Some(77), ..SetAttr::default() }).unwrap();
    }
    assert_eq!(
        told(&pair.open()),
        [
            "/d/b directory Added",
            "/d/b file Removed",
            "/d/linked file Content",
            "/d/z file from /d/a",
            "/f file Attributes",
            "/g file Content",
            "/gone directory Removed",
            "/linked file Content",
            "/moved directory from /d/e",
            "/moved/deep file Content",
            "/same directory Attributes",
            "/same/new file Added",
        ]
    );
}

#[test]
fn a_path_is_told_for_messages() {
    let pair = some();
    let overlay = pair.open();
    let deep = overlay.at("d/e/deep");
    assert_eq!(overlay.path_of(deep).as_deref(), Some("/d/e/deep"));
    overlay.mv("d", "moved").unwrap();
    assert_eq!(overlay.path_of(deep).as_deref(), Some("/moved/e/deep"));
    assert_eq!(overlay.name_of(deep), Some((overlay.at("moved/e"), b"deep".to_vec())));
    overlay.rm("moved/e/deep");
    assert_eq!((overlay.path_of(deep), overlay.getattr(deep).unwrap().nlink), (None, 0));
    let too_deep = FileName::new(b"x").unwrap();
    assert!(overlay.lookup(overlay.at("moved/e"), too_deep).unwrap_err().is_not_found());
}

#[test]
fn changes_of_files_with_several_names_are_told_under_those_that_are_left() {
    let pair = Pair::new(|lower| {
        for path in ["d", "gone"] {
            lower.dir(path);
        }
        for path in ["a", "b", "c", "gone/e", "d/f"] {
            let ino = lower.put(path, &[1; 9000]);
            let second = format!("{path}2");
            let (dir, last) = lower.place(&second);
            lower.link(ino, dir, last).unwrap();
        }
        lower.link(lower.at("gone/e"), Ino::ROOT, name("e3")).unwrap();
    });
    let overlay = pair.open();
    // The name under which it was found first is noted; that is taken away.
    for path in ["a", "b", "c", "gone/e", "d/f"] {
        overlay.file(path).write_at(&[(0, b"x")]).unwrap();
    }
    overlay.rm("a");
    overlay.mv("b", "z").unwrap();
    overlay.rm("c");
    overlay.put("c", b"another file");
    overlay.rm("gone/e");
    overlay.rm("gone/e2");
    overlay.rmdir(Ino::ROOT, name("gone")).unwrap();
    overlay.mv("d", "moved").unwrap();
    // A name that was taken away and given back is no change.
    overlay.rm("moved/f2");
    overlay.link(overlay.at("moved/f"), overlay.at("moved"), name("f2")).unwrap();
    assert_eq!(
        told(&overlay),
        [
            "/a file Removed",
            "/a2 file Content",
            "/b file Removed",
            "/b2 file Content",
            "/c file Content",
            "/c2 file Content",
            "/e3 file Content",
            "/gone directory Removed",
            "/moved directory from /d",
            "/moved/f file Content",
            "/moved/f2 file Content",
            "/z file Added",
        ]
        .map(str::to_owned)
        .as_slice()
    );
}

/// Where the names lie does not matter: beside each other, above, below, in a directory that moved twice, or nowhere.
#[test]
fn a_change_is_told_under_every_name_that_the_lower_has() {
    let pair = Pair::new(|lower| {
        for path in ["a", "a/deep", "b", "b/deep", "gone"] {
            lower.dir(path);
        }
        let ino = lower.put("a/one", &[1; 9000]);
        for path in ["two", "a/three", "a/deep/four", "b/deep/five", "gone/six"] {
            let (dir, last) = lower.place(path);
            lower.link(ino, dir, last).unwrap();
        }
        // Attributes alone, of a file whose other name goes.
        let other = lower.put("b/other", &[1; 9000]);
        lower.link(other, Ino::ROOT, name("other")).unwrap();
    });
    let overlay = pair.open();
    overlay.mv("b", "a/b").unwrap();
    overlay.mv("a", "c").unwrap();
    overlay.file("c/b/deep/five").write_at(&[(0, b"x")]).unwrap();
    overlay.setattr(overlay.at("other"), &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    overlay.rm("other");
    overlay.rm("gone/six");
    overlay.rmdir(Ino::ROOT, name("gone")).unwrap();
    assert_eq!(
        told(&overlay),
        [
            "/c directory from /a",
            "/c/b directory from /b",
            "/c/b/deep/five file Content",
            "/c/b/other file Attributes",
            "/c/deep/four file Content",
            "/c/one file Content",
            "/c/three file Content",
            "/gone directory Removed",
            "/other file Removed",
            "/two file Content",
        ]
    );
}

#[test]
fn what_the_lower_lost_is_named_and_the_rest_is_told() {
    let lower = overlay::memory();
    for path in ["d", "d/e", "kept", "same"] {
        lower.dir(path);
    }
    for path in ["d/a", "d/whole", "kept/b", "kept/c", "kept/small", "f"] {
        lower.put(path, &[1; 9000]);
    }
    let (shown, upper): (Arc<dyn Store>, _) = (Arc::new(lower.clone()), World::new());
    {
        let overlay = over(&shown, &upper);
        overlay.file("d/a").write_at(&[(0, b"x")]).unwrap();
        overlay.file("d/whole").set_len(0).unwrap();
        overlay.put("d/new", b"new");
        overlay.rm("kept/b");
        overlay.file("kept/c").write_at(&[(0, b"x")]).unwrap();
        overlay.file("kept/small").set_len(0).unwrap();
        overlay.file("f").write_at(&[(0, b"x")]).unwrap();
        overlay.mv("d/e", "moved").unwrap();
    }
    lower.mv("d", "elsewhere").unwrap();
    lower.file("kept/c").write_at(&[(0, b"others")]).unwrap();
    lower.file("kept/small").write_at(&[(0, b"others")]).unwrap();
    let overlay = over(&shown, &upper);
    let mut found = Vec::new();
    let unknown = overlay.changes(&mut |change| found.push((change.path, change.what))).unwrap();
    let expected = [
        ("/d/new", Changed::Added),
        ("/d/whole", Changed::Added),
        ("/f", Changed::Content),
        ("/kept/b", Changed::Removed),
        ("/kept/small", Changed::Content),
    ];
    assert_eq!(found, expected.map(|(path, what)| (path.as_bytes().to_vec(), what)));
    let unknown: Vec<_> =
        unknown.iter().map(|one| (one.path.escape_ascii().to_string(), one.kind, &one.error)).collect();
    let paths: Vec<_> = unknown.iter().map(|(path, kind, e)| (&path[..], *kind, e.subject().unwrap())).collect();
    let expected = [
        ("/d", Kind::Directory, "/d"),
        ("/d/a", Kind::File, "/d/a"),
        ("/kept/c", Kind::File, "/kept/c"),
        ("/moved", Kind::Directory, "/d/e"),
    ];
    assert_eq!(paths, expected);
    assert!(unknown.iter().all(|(_, _, e)| e.kind() == ErrorKind::Stale && e.to_string().contains("put it back")));
    // Put back, all is told.
    lower.mv("elsewhere", "d").unwrap();
    let mut found = Vec::new();
    let unknown = overlay.changes(&mut |change| found.push(change.path)).unwrap();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    assert!(found.contains(&b"/d/a".to_vec()) && found.contains(&b"/moved".to_vec()));
}

#[test]
fn a_further_name_is_told_as_new_and_one_that_is_left_as_renamed() {
    let pair = some();
    let overlay = pair.open();
    let dir = overlay.at("d");
    overlay.put("d/new", b"x");
    overlay.link(overlay.at("d/e/deep"), dir, name("deep2")).unwrap();
    assert_eq!(told(&overlay), ["/d/deep2 file Added", "/d/new file Added"]);
    overlay.link(overlay.at("d/e/deep"), dir, name("deep3")).unwrap();
    overlay.rm("d/e/deep");
    assert_eq!(told(&overlay), ["/d/deep2 file from /d/e/deep", "/d/deep3 file Added", "/d/new file Added"]);
}
