//! What only some stores have: several names of an inode, extended attributes, ACLs, stable cookies, set-id bits.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use adit_core::ErrorKind;
use adit_core::engine::{Engine, SinkFlow};
use adit_core::store::Store;
use adit_core::types::*;
use adit_testkit::model::Limits;
use support::{FaultyStore, name, new_node, options};

const TTL: Duration = Duration::from_secs(3600);

fn engine(limits: Limits) -> (FaultyStore, Arc<Engine>) {
    let store = FaultyStore::new(limits);
    let engine = Engine::new(Arc::new(store.clone()), options(TTL, 64 << 20));
    (store, engine)
}

fn xattr(name: &str) -> XattrName<'_> {
    XattrName::new(name.as_bytes()).unwrap()
}

#[test]
fn all_names_of_an_inode_show_the_same() {
    let (_, e) = engine(Limits::default());
    let (entry, opened) = e.create(Ino::ROOT, name("a"), &new_node(), Access::Write).unwrap();
    let dir = e.mkdir(Ino::ROOT, name("d"), &new_node()).unwrap().attr.ino;
    let ino = entry.attr.ino;
    // Buffered, not yet with the store: the new name shows it.
    e.write(opened.fh, 0, b"content").unwrap();
    let linked = e.link(ino, dir, name("b")).unwrap();
    assert_eq!((linked.attr.ino, linked.attr.nlink, linked.attr.size), (ino, 2, 7));
    assert_eq!(e.lookup(Ino::ROOT, name("a")).unwrap().attr.nlink, 2);
    e.flush(opened.fh).unwrap();
    e.unlink(Ino::ROOT, name("a")).unwrap();
    let left = e.lookup(dir, name("b")).unwrap().attr;
    assert_eq!((left.ino, left.nlink, left.size), (ino, 1, 7));
    // The last name goes; what is open stays.
    e.unlink(dir, name("b")).unwrap();
    assert_eq!(e.getattr(ino, Some(opened.fh)).unwrap().0.nlink, 0);
    assert_eq!(e.link(ino, dir, name("c")).unwrap_err().kind(), ErrorKind::NotFound);
    let mut buf = [0; 9];
    assert_eq!(e.read(opened.fh, 0, &mut buf).unwrap(), 7);
    e.release(opened.fh).unwrap();
}

/// A kept bit would have a program run as its owner after somebody else has overwritten it.
#[test]
fn set_id_bits_are_not_kept_where_others_change_the_store() {
    for shared in [true, false] {
        let (store, e) = engine(Limits { shared, ..Limits::default() });
        let (entry, opened) = e.create(Ino::ROOT, name("program"), &new_node(), Access::Write).unwrap();
        e.release(opened.fh).unwrap();
        let ino = entry.attr.ino;
        let to = |perm| SetAttr { perm: Some(perm), ..SetAttr::default() };
        for perm in [0o4755, 0o2755, 0o755] {
            e.setattr(ino, &to(perm), None).unwrap();
            e.getattr(ino, None).unwrap();
            store.inner.setattr(ino, &to(0o711)).unwrap();
            let asks_anew = shared && perm != 0o755;
            let shown = if asks_anew { 0o711 } else { perm };
            assert_eq!(e.getattr(ino, None).unwrap().0.perm, shown, "{perm:o}, shared: {shared}");
            assert_eq!(e.lookup(Ino::ROOT, name("program")).unwrap().attr.perm, shown);
        }
    }
}

#[test]
fn a_rename_over_one_of_two_names_shows_at_the_other() {
    let (_, e) = engine(Limits { whiteouts: true, ..Limits::default() });
    for file in ["a", "x"] {
        let (_, opened) = e.create(Ino::ROOT, name(file), &new_node(), Access::Write).unwrap();
        e.release(opened.fh).unwrap();
    }
    let ino = e.lookup(Ino::ROOT, name("a")).unwrap().attr.ino;
    e.link(ino, Ino::ROOT, name("b")).unwrap();
    e.rename(Ino::ROOT, name("x"), Ino::ROOT, name("a"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!(e.lookup(Ino::ROOT, name("b")).unwrap().attr.nlink, 1);
    let whiteout = e.lookup(Ino::ROOT, name("x")).unwrap().attr;
    assert_eq!((whiteout.kind, whiteout.rdev), (Kind::CharDevice, 0));
    let flags = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    let refused = e.rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), flags);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn flags_of_a_rename_that_a_store_does_not_have_are_refused() {
    let (_, e) = engine(Limits::default());
    e.mkdir(Ino::ROOT, name("d"), &new_node()).unwrap();
    let refused = e.rename(Ino::ROOT, name("d"), Ino::ROOT, name("e"), RenameFlags::WHITEOUT);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(e.lookup(Ino::ROOT, name("d")).is_ok());
}

#[test]
fn extended_attributes_change_what_is_cached_of_an_inode() {
    let (_, e) = engine(Limits::default());
    let ino = e.mkdir(Ino::ROOT, name("d"), &new_node()).unwrap().attr.ino;
    let before = e.getattr(ino, None).unwrap().0;
    let kind = |r: adit_core::Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(e.set_xattr(ino, xattr("user.a"), b"v", XattrSet::Replace)), ErrorKind::NoAttribute);
    e.set_xattr(ino, xattr("user.a"), b"v", XattrSet::Create).unwrap();
    assert_eq!(kind(e.set_xattr(ino, xattr("user.a"), b"w", XattrSet::Create)), ErrorKind::Exists);
    assert_eq!(e.xattr(ino, xattr("user.a")).unwrap(), b"v");
    assert_eq!(e.xattr_names(ino).unwrap(), b"user.a\0");
    assert!(e.getattr(ino, None).unwrap().0.ctime > before.ctime);
    // user::r-x, group::--x, other::---
    let entries = [(1u16, 5u16), (4, 1), (32, 0)];
    let bytes = entries.iter().flat_map(|(tag, perm)| [tag.to_le_bytes(), perm.to_le_bytes(), [255; 2], [255; 2]]);
    let acl: Vec<u8> = [2, 0, 0, 0].into_iter().chain(bytes.flatten()).collect();
    e.set_xattr(ino, XattrName::ACL_ACCESS, &acl, XattrSet::Either).unwrap();
    assert_eq!(e.getattr(ino, None).unwrap().0.perm, 0o510);
    e.remove_xattr(ino, xattr("user.a")).unwrap();
    assert_eq!(kind(e.remove_xattr(ino, xattr("user.a"))), ErrorKind::NoAttribute);
    for refused in ["system.other", "os2.name", "user.", "plain"] {
        assert_eq!(kind(e.set_xattr(ino, xattr(refused), b"", XattrSet::Either)), ErrorKind::NotSupported, "{refused}");
    }
    assert_eq!(kind(e.set_xattr(ino, xattr("user.b"), &[0; 65537], XattrSet::Either)), ErrorKind::OutOfRange);
}

#[test]
fn set_id_bits_are_dropped_once_and_looked_for_again_after_a_change() {
    let (store, e) = engine(Limits::default());
    let new = adit_core::store::NewNode { perm: 0o6755, ..new_node() };
    let (entry, opened) = e.create(Ino::ROOT, name("f"), &new, Access::Write).unwrap();
    let perm = || e.getattr(entry.attr.ino, None).unwrap().0.perm;
    e.drop_set_id(opened.fh, |_| true).unwrap();
    assert_eq!(perm(), 0o755);
    e.drop_set_id(opened.fh, |_| true).unwrap();
    // Each write makes the cached attributes void, and none of them is a question.
    let asked = store.faults.getattrs.load(Relaxed);
    for at in 0..10 {
        e.write(opened.fh, at, b"x").unwrap();
        e.drop_set_id(opened.fh, |_| true).unwrap();
    }
    assert_eq!(store.faults.getattrs.load(Relaxed), asked);
    // A mark for locking is looked at for each who changes the file.
    let set = SetAttr { perm: Some(0o2644), ..SetAttr::default() };
    e.setattr(entry.attr.ino, &set, None).unwrap();
    for (keeps_mark, expected) in [(true, 0o2644), (false, 0o644)] {
        e.drop_set_id(opened.fh, |_| keeps_mark).unwrap();
        assert_eq!(perm(), expected);
    }
    let set = SetAttr { perm: Some(0o4711), ..SetAttr::default() };
    e.setattr(entry.attr.ino, &set, None).unwrap();
    e.drop_set_id(opened.fh, |_| true).unwrap();
    assert_eq!(perm(), 0o711);
    e.release(opened.fh).unwrap();
}

#[test]
fn a_file_capability_goes_with_a_change_and_is_asked_for_again_when_one_was_set() {
    let (_store, e) = engine(Limits::default());
    let (entry, opened) = e.create(Ino::ROOT, name("f"), &new_node(), Access::Write).unwrap();
    for _ in 0..2 {
        e.drop_capability(opened.fh).unwrap();
        e.set_xattr(entry.attr.ino, XattrName::CAPABILITY, b"rights", XattrSet::Create).unwrap();
        e.drop_capability(opened.fh).unwrap();
        let left = e.xattr(entry.attr.ino, XattrName::CAPABILITY).unwrap_err();
        assert_eq!(left.kind(), ErrorKind::NoAttribute);
    }
    e.release(opened.fh).unwrap();
}

/// All names of the root with attributes, asked for in parts of `part`; after each part `meanwhile` runs.
fn names_in_parts(e: &Engine, part: usize, mut meanwhile: impl FnMut(usize)) -> Vec<Vec<u8>> {
    let fh = e.opendir(Ino::ROOT).unwrap();
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let before = names.len();
        let mut taken = Vec::new();
        e.read_dir_plus(fh, at, &mut |entry, found| {
            if names.len() == before + part {
                return SinkFlow::Full;
            }
            names.push(entry.name.as_bytes().to_vec());
            at = entry.cookie;
            taken.extend(found.map(|found| found.attr.ino));
            SinkFlow::More
        })
        .unwrap();
        taken.into_iter().for_each(|ino| e.forget(ino, 1));
        if names.len() == before {
            e.releasedir(fh).unwrap();
            return names;
        }
        meanwhile(names.len());
    }
}

#[test]
fn a_long_directory_with_stable_cookies_is_never_held_whole() {
    const FILES: usize = 500;
    let limits = Limits { stable_cookies: true, ..Limits::default() };
    let (store, e) = engine(limits);
    let make = |name: &str| {
        let (entry, opened) = e.create(Ino::ROOT, support::name(name), &new_node(), Access::Write).unwrap();
        e.release(opened.fh).unwrap();
        e.forget(entry.attr.ino, 1);
    };
    (0..FILES).for_each(|i| make(&format!("f{i}")));
    let mut changes = 0;
    let names = names_in_parts(&e, 50, |_| {
        // Something comes and something goes meanwhile, before and after the place where the listing is.
        make(&format!("new{changes}"));
        e.unlink(Ino::ROOT, support::name(&format!("new{changes}"))).unwrap();
        make(&format!("stays{changes}"));
        changes += 1;
    });
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "no name twice");
    for i in 0..FILES {
        assert!(unique.contains(&format!("f{i}").into_bytes()), "f{i} was there all the time");
    }
    // 50 entries and what was read ahead of them, for each part.
    let per_part = store.faults.listed.load(Relaxed) / (changes + 1);
    assert!(per_part <= 50 + 2 * 32, "{per_part} entries for a part of 50");
    assert!(store.faults.batches.load(Relaxed) <= 3 * (changes + 1), "looked up together");
    assert_eq!(e.stats().listings.entries, 0, "no listing is kept");
    assert_eq!((e.known_inodes(), store.inner.known_count()), (1, 0), "and no reference");
}
