//! Content and attributes of an overlay: which layer a byte comes from, and what is never seen again.

mod overlay;

use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::overlay::{Changed, Overlay};
use adit_core::store::Store;
use adit_core::types::{Access, AllocateMode, Ino, SetAttr, SetTime, Timestamp, XattrName, XattrSet};
use adit_testkit::ops::pattern;
use adit_testkit::{Rng, seeds};
use adit_volume::tree::MAIN;
use adit_volume::{Source, VolumeStore};
use overlay::volume::{World, name};
use overlay::{Pair, Words, identity, memory, over};

const LONG: usize = 5 << 20;

fn long() -> Pair {
    Pair::new(|lower| {
        lower.put("long", &pattern(1, 0, LONG));
        lower.put("small", b"small");
    })
}

/// Blocks that the upper has of a file, told by its own `seek_data`.
fn blocks_above(pair: &Pair, path: &str) -> usize {
    let upper = pair.upper.main();
    let file = upper.file(&format!("tree/{path}"));
    let (mut at, mut blocks) = (0, 0);
    while let Ok(data) = file.seek_data(at) {
        at = file.seek_hole(data).unwrap();
        blocks += (at - data).div_ceil(4096);
    }
    blocks as usize
}

#[test]
fn a_byte_costs_a_block() {
    let pair = long();
    let mut expected = pattern(1, 0, LONG);
    {
        let overlay = pair.open();
        let file = overlay.file("long");
        for at in [0, 3_000_000, LONG - 1] {
            file.write_at(&[(at as u64, b"\0")]).unwrap();
            expected[at] = 0;
        }
        assert!(overlay.content("long") == expected);
        assert_eq!(overlay.stat("long").size, LONG as u64);
    }
    assert_eq!(blocks_above(&pair, "long"), 3);
    let overlay = pair.open();
    assert!(overlay.content("long") == expected);
    // Attributes cost none.
    overlay.setattr(overlay.at("small"), &SetAttr { perm: Some(0o640), ..SetAttr::default() }).unwrap();
    assert_eq!((overlay.content("small"), overlay.stat("small").perm), (b"small".to_vec(), 0o640));
}

#[test]
fn what_was_cut_off_never_comes_back() {
    for cut in [0, 1, 4095, 4096, 4097, 9000, LONG as u64 - 1] {
        let pair = long();
        let mut expected = pattern(1, 0, LONG);
        expected[cut as usize..].fill(0);
        let overlay = pair.open();
        let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(overlay.setattr(overlay.at("long"), &set(cut)).unwrap().size, cut);
        assert_eq!(overlay.setattr(overlay.at("long"), &set(LONG as u64)).unwrap().size, LONG as u64);
        assert!(overlay.content("long") == expected, "cut at {cut}");
        drop(overlay);
        assert!(pair.open().content("long") == expected, "cut at {cut}, opened anew");
    }
}

/// Whoever knows something of the lower's bytes need not read them again, but for those that are told.
#[test]
fn what_is_not_told_as_fresh_is_the_lowers() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let pair = long();
        let lower = pattern(1, 0, LONG);
        let mut overlay = pair.open();
        assert_eq!(overlay.fresh(b"/long").unwrap(), None, "it was not copied up");
        for step in 0..12 {
            let when = format!("ADIT_TEST_SEED={seed}, step {step}");
            let (at, len) = (rng.below(LONG as u64), 1 + rng.below(20_000));
            match rng.below(7) {
                0 => drop(
                    overlay.setattr(overlay.at("long"), &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap(),
                ),
                1 => overlay.file("long").set_len(at).unwrap(),
                2 => overlay.file("long").set_len(overlay.stat("long").size.max(at) + len).unwrap(),
                3 => overlay.file("long").allocate(at, len, AllocateMode::PunchHole).unwrap(),
                4 => overlay.file("long").allocate(at, len, AllocateMode::Zero { keep_size: true }).unwrap(),
                5 => {
                    drop(overlay);
                    overlay = pair.open();
                }
                _ => overlay.file("long").write_at(&[(at, &vec![7; len as usize])]).unwrap(),
            }
            let content = overlay.content("long");
            let is_lowers = overlay.has_lower_content(overlay.at("long")).unwrap();
            assert!(!is_lowers || content == lower, "{when}");
            let Some(fresh) = overlay.fresh(b"long").unwrap() else { continue };
            assert_eq!((fresh.len, fresh.ino), (content.len() as u64, overlay.at("long")), "{when}");
            assert_eq!(is_lowers, fresh.len == LONG as u64 && fresh.ranges.is_empty(), "{when}");
            let mut end = 0;
            for range in fresh.ranges.iter().cloned().chain(std::iter::once(fresh.len..fresh.len)) {
                assert!(end <= range.start && range.start <= range.end && range.end <= fresh.len, "{when}: {range:?}");
                let kept = end as usize..range.start as usize;
                let same = kept.is_empty() || lower.get(kept.clone()) == content.get(kept.clone());
                assert!(same, "{when}: {kept:?}");
                end = range.end;
            }
        }
        overlay.setattr(overlay.at("small"), &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        assert_eq!(overlay.fresh(b"small").unwrap().unwrap().ranges, [], "attributes are no content");
        overlay.file("small").write_at(&[(0, b"S")]).unwrap();
        assert_eq!(overlay.fresh(b"small").unwrap().unwrap().ranges.first(), Some(&(0..5)));
        assert_eq!(overlay.fresh(b"none").unwrap(), None);
    }
}

/// Names and attributes are no content; a new file and one that was cut are not the lower's.
#[test]
fn a_file_has_the_lowers_content_until_that_changes() {
    let pair = Pair::new(|lower| {
        lower.put("long", &pattern(1, 0, LONG));
        lower.put("small", b"small");
        lower.put("empty", b"");
    });
    let overlay = pair.open();
    let is_lowers = |overlay: &Overlay, path: &str| overlay.has_lower_content(overlay.at(path)).unwrap();
    for path in ["long", "small", "empty"] {
        assert!(is_lowers(&overlay, path), "{path}: nobody touched it");
        overlay.setattr(overlay.at(path), &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        assert!(is_lowers(&overlay, path), "{path}: its permissions");
    }
    overlay.put("new", b"small");
    assert!(!is_lowers(&overlay, "new"));
    overlay.file("empty").write_at(&[(0, b"1")]).unwrap();
    overlay.file("small").write_at(&[(0, b"s")]).unwrap();
    overlay.file("long").set_len(LONG as u64 - 1).unwrap();
    drop(overlay);
    let overlay = pair.open();
    for path in ["long", "small", "empty"] {
        assert!(!is_lowers(&overlay, path), "{path}: its content");
    }
    assert!(!overlay.has_lower_content(Ino::ROOT).unwrap());
}

#[test]
fn who_has_a_file_open_sees_what_is_written_after_it_was_copied_up() {
    let pair = long();
    let overlay = pair.open();
    let reader = overlay.open(overlay.at("long"), Access::Read).unwrap();
    let mut buf = [0; 3];
    reader.read_at(100, &mut buf).unwrap();
    overlay.file("long").write_at(&[(100, b"new")]).unwrap();
    reader.read_at(100, &mut buf).unwrap();
    assert_eq!(&buf, b"new");
    overlay.setattr(overlay.at("long"), &SetAttr { size: Some(10), ..SetAttr::default() }).unwrap();
    assert_eq!((reader.len().unwrap(), reader.read_at(0, &mut [0; 20]).unwrap()), (10, 10));
}

#[test]
fn a_file_without_a_name_works_on() {
    let pair = long();
    let overlay = pair.open();
    let ino = overlay.at("long");
    let file = overlay.file("long");
    overlay.rm("long");
    let mut buf = [0; 4];
    file.read_at(4096, &mut buf).unwrap();
    assert_eq!(buf[..], pattern(1, 4096, 4));
    assert_eq!(overlay.getattr(ino).unwrap().nlink, 0);
    file.write_at(&[(4097, b"XY")]).unwrap();
    file.read_at(4096, &mut buf).unwrap();
    assert_eq!((buf[0], &buf[1..3]), (pattern(1, 4096, 1)[0], &b"XY"[..]));
    assert!(overlay.link(ino, Ino::ROOT, name("again")).unwrap_err().is_not_found());
    assert_eq!(overlay.names(""), ["small"]);
    // The same of what was renamed over, and set by number alone.
    let small = overlay.at("small");
    overlay.put("over", b"over");
    overlay.mv("over", "small").unwrap();
    let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    assert_eq!((overlay.setattr(small, &set).unwrap().perm, overlay.content("small")), (0o700, b"over".to_vec()));
    drop(file);
    overlay.forget(ino);
    overlay.forget(small);
    drop(overlay);
    assert_eq!(pair.upper.tree.verify().unwrap().problems, [""; 0]);
    assert_eq!(pair.open().names(""), ["small"]);
}

#[test]
fn zeros_are_noted_as_long_as_there_is_room_and_then_written() {
    let pair = long();
    let mut expected = pattern(1, 0, LONG);
    {
        let overlay = pair.open();
        let file = overlay.file("long");
        for i in 0..400 {
            let (at, len) = (i * 12288 + 100, 8192);
            let mode = if i % 2 == 0 { AllocateMode::PunchHole } else { AllocateMode::Zero { keep_size: true } };
            file.allocate(at as u64, len as u64, mode).unwrap();
            expected[at..at + len].fill(0);
        }
        assert!(overlay.content("long") == expected);
        // A write into zeros, and zeros over what was written.
        file.write_at(&[(4200, b"again")]).unwrap();
        expected[4200..4205].copy_from_slice(b"again");
        file.write_at(&[(3_000_000, &[5; 10000])]).unwrap();
        expected[3_000_000..3_010_000].fill(5);
        file.allocate(2_990_000, 50_000, AllocateMode::PunchHole).unwrap();
        expected[2_990_000..3_040_000].fill(0);
        assert!(overlay.content("long") == expected);
    }
    let overlay = pair.open();
    assert!(overlay.content("long") == expected);
    let file = overlay.file("long");
    file.allocate(0, LONG as u64 + 5, AllocateMode::Zero { keep_size: false }).unwrap();
    assert!(overlay.content("long") == vec![0; LONG + 5]);
    assert_eq!(file.seek_data(0).unwrap_err().kind(), ErrorKind::NoData, "and nothing of it takes space");
}

#[test]
fn what_was_punched_takes_no_space() {
    let pair = long();
    let blocks = |overlay: &Overlay| overlay.stat("long").blocks as usize;
    let full = {
        let overlay = pair.open();
        let full = blocks(&overlay);
        overlay.file("long").allocate(0, LONG as u64 / 2, AllocateMode::PunchHole).unwrap();
        assert_eq!(blocks(&overlay), full - LONG / 2 / 512);
        full
    };
    let overlay = pair.open();
    assert_eq!(blocks(&overlay), full - LONG / 2 / 512, "opened anew");
    overlay.file("long").allocate(0, LONG as u64, AllocateMode::PunchHole).unwrap();
    assert_eq!(blocks(&overlay), 0);
}

/// The kernel keeps the times of what it writes to, and sets them itself.
#[test]
fn what_keeps_times_keeps_them_in_all_that_a_hole_may_need() {
    let pair = long();
    let overlay = pair.open();
    let (ino, file) = (overlay.at("long"), overlay.file("long"));
    file.write_at(&[(100_000, &[7; 3 << 20])]).unwrap();
    let past = Timestamp { secs: 5, nanos: 6 };
    let at = Some(SetTime::At(past));
    let set = SetAttr { atime: at, mtime: at, ctime: Some(past), ..SetAttr::default() };
    let times = |overlay: &Overlay| {
        let attr = overlay.getattr(ino).unwrap();
        (attr.mtime, attr.ctime)
    };
    let modes =
        [AllocateMode::PunchHole, AllocateMode::Zero { keep_size: true }, AllocateMode::Zero { keep_size: false }];
    // Within a block, over several that are below and above, of more than one transaction takes, to the end.
    let ranges = [(10, 20), (50_000, 90_000), (110_000, 3 << 20), (LONG as u64 - 5000, 5000)];
    for (mode, (offset, len)) in modes.into_iter().flat_map(|mode| ranges.map(|range| (mode, range))) {
        overlay.setattr(ino, &set).unwrap();
        file.allocate_keeping_times(offset, len, mode).unwrap();
        assert_eq!(times(&overlay), (past, past), "{mode:?} at {offset}");
        file.allocate(offset, len, mode).unwrap();
        assert!(times(&overlay).0 > past && times(&overlay).1 > past, "{mode:?} at {offset}");
    }
    // Where there is no room for a note any more, zeros are written.
    overlay.setattr(ino, &set).unwrap();
    for i in 0..300 {
        file.allocate_keeping_times(4_000_000 + i * 8192 % 900_000, 4096, AllocateMode::PunchHole).unwrap();
        file.allocate_keeping_times(i * 12288 + 100, 8192, AllocateMode::PunchHole).unwrap();
    }
    assert_eq!(times(&overlay), (past, past));
}

#[test]
fn holes_of_the_lower_are_holes() {
    let pair = Pair::new(|lower| {
        let ino = lower.put("f", b"");
        let file = lower.open(ino, Access::Write).unwrap();
        file.write_at(&[(40960, b"data"), (1 << 20, b"end")]).unwrap();
    });
    let overlay = pair.open();
    let file = overlay.file("f");
    for _ in 0..2 {
        assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(0).unwrap()), (40960, 0));
        assert_eq!((file.seek_hole(40960).unwrap(), file.seek_data(45056).unwrap()), (45056, 1 << 20));
        // The same once it is copied up.
        overlay.setattr(overlay.at("f"), &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    }
    file.write_at(&[(8192, b"x")]).unwrap();
    assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(8192).unwrap()), (8192, 12288));
    file.allocate(40960, 4096, AllocateMode::PunchHole).unwrap();
    assert_eq!(file.seek_data(12288).unwrap(), 1 << 20);
    assert_eq!(file.seek_hole(1 << 20).unwrap(), (1 << 20) + 3);
}

#[test]
fn attributes_go_up_and_our_own_are_nobodys() {
    let user = XattrName::new(b"user.mine").unwrap();
    let own = XattrName::new(b"trusted.adit.overlay.origin").unwrap();
    // user::rw-, user:9:rw-, group::r--, mask::rw-, other::---
    let entries = [(1u16, 6u16, u32::MAX), (2, 6, 9), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
    let bytes = entries
        .iter()
        .flat_map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    let acl: Vec<u8> = [2, 0, 0, 0].into_iter().chain(bytes).collect();
    let pair = Pair::new(|lower| {
        let ino = lower.put("f", b"f");
        lower.set_xattr(ino, user, b"value", XattrSet::Either).unwrap();
        lower.set_xattr(ino, XattrName::ACL_ACCESS, &acl, XattrSet::Either).unwrap();
        lower.set_xattr(ino, own, b"of an overlay below", XattrSet::Either).unwrap();
        // What is made in it would get this; what is copied up into it must not.
        let dir = lower.dir("d");
        lower.set_xattr(dir, XattrName::ACL_DEFAULT, &acl, XattrSet::Either).unwrap();
        lower.setattr(dir, &SetAttr { perm: Some(0o2755), gid: Some(55), ..SetAttr::default() }).unwrap();
        let (plain, _) = lower.create(Ino::ROOT, name("plain"), &overlay::volume::new(0o604)).unwrap();
        lower.rename(Ino::ROOT, name("plain"), dir, name("plain"), Default::default()).unwrap();
        lower.forget(plain.ino);
    });
    let overlay = pair.open();
    let looks = |overlay: &Overlay| {
        let ino = overlay.at("f");
        let names = overlay.xattr_names(ino).unwrap();
        (
            names,
            overlay.xattr(ino, user).unwrap(),
            overlay.xattr(ino, XattrName::ACL_ACCESS).unwrap(),
            overlay.stat("f").perm,
        )
    };
    let before = looks(&overlay);
    let f = overlay.at("f");
    assert_eq!(overlay.set_xattr(f, own, b"", XattrSet::Either).unwrap_err().kind(), ErrorKind::NotPermitted);
    assert_eq!(overlay.remove_xattr(f, own).unwrap_err().kind(), ErrorKind::NotPermitted);
    assert_eq!(overlay.xattr(f, own).unwrap_err().kind(), ErrorKind::NoAttribute);
    overlay.file("f").write_at(&[(0, b"F")]).unwrap();
    assert_eq!(looks(&overlay), before);
    overlay.file("d/plain").write_at(&[(0, b"F")]).unwrap();
    let plain = overlay.stat("d/plain");
    let made_by = adit_testkit::own_caller();
    assert_eq!((plain.perm, plain.gid), (0o604, made_by.gid));
    assert_eq!(overlay.xattr_names(plain.ino).unwrap(), b"");
    let (made, _) = overlay.create(overlay.at("d"), name("made"), &overlay::volume::new(0o666)).unwrap();
    assert_eq!((made.perm, made.gid), (0o660, 55));
    overlay.remove_xattr(f, user).unwrap();
    drop(overlay);
    let mut told = Vec::new();
    let overlay = pair.open();
    assert_eq!(overlay.xattr(overlay.at("f"), user).unwrap_err().kind(), ErrorKind::NoAttribute);
    overlay.changes(&mut |change| told.push((change.path, change.what))).unwrap();
    assert!(told.contains(&(b"/f".to_vec(), Changed::Content)));
}

#[test]
fn a_lower_that_changed_is_stale_and_never_mixed_in() {
    let lower = memory();
    lower.dir("d");
    lower.put("d/f", &[1; 20000]);
    lower.put("d/g", &[1; 20000]);
    let (shown, upper): (Arc<dyn Store>, _) = (Arc::new(lower.clone()), World::new());
    {
        let overlay = over(&shown, &upper);
        overlay.file("d/f").write_at(&[(0, b"x")]).unwrap();
        overlay.file("d/g").set_len(0).unwrap();
    }
    lower.file("d/f").write_at(&[(10000, b"changed")]).unwrap();
    lower.file("d/g").write_at(&[(10000, b"changed")]).unwrap();
    {
        let overlay = over(&shown, &upper);
        let e = overlay.open(overlay.at("d/f"), Access::Read).err().unwrap();
        assert_eq!((e.kind(), e.subject()), (ErrorKind::Stale, Some("/d/f")));
        // Nothing of this one is the lower's; and what is not needed can go.
        assert_eq!(overlay.content("d/g"), b"");
        overlay.rm("d/f");
        assert_eq!(overlay.names("d"), ["g"]);
        overlay.mv("d", "moved").unwrap();
    }
    lower.mv("d", "elsewhere").unwrap();
    let overlay = Overlay::open(shown, Arc::new(upper.main()), &identity("the lower")).unwrap();
    assert!(overlay.find("moved/f").unwrap_err().is_not_found(), "it was removed above");
    let e = overlay.lookup(overlay.at("moved"), name("other")).unwrap_err();
    assert_eq!((e.kind(), e.subject()), (ErrorKind::Stale, Some("/d")));
    let mut sink = |_: adit_core::store::DirEntry<'_>| std::ops::ControlFlow::Continue(());
    assert_eq!(overlay.read_dir(overlay.at("moved"), 0, &mut sink).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(overlay.rmdir(Ino::ROOT, name("moved")).unwrap_err().kind(), ErrorKind::NotEmpty, "g is above");
    // What is gone below can be removed all the same.
    overlay.rm("moved/g");
    overlay.rmdir(Ino::ROOT, name("moved")).unwrap();
    assert!(overlay.find("moved").unwrap_err().is_not_found());
}

#[test]
fn an_upper_that_is_read_only_is_read() {
    let pair = long();
    {
        let overlay = pair.open();
        overlay.put("new", b"above");
        overlay.file("long").write_at(&[(5, b"x")]).unwrap();
    }
    let id = pair.upper.tree.snapshot(MAIN, "kept").unwrap();
    let upper = VolumeStore::open(&pair.upper.tree, Source::Snapshot(id)).unwrap();
    let overlay = Overlay::open(pair.lower.clone(), Arc::new(upper), &identity("the lower")).unwrap();
    let read = |path: &str| {
        let file = overlay.open(overlay.at(path), Access::Read).unwrap();
        let mut buf = [0; 6];
        let len = file.read_at(0, &mut buf).unwrap();
        buf[..len].to_vec()
    };
    assert_eq!(read("new"), b"above");
    assert_eq!(read("long")[5], b'x');
    let ino = overlay.at("new");
    let e = overlay.open(ino, Access::Write).and_then(|file| file.write_at(&[(0, b"y")])).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
}
