//! What the engine promises beyond what a store does: counts, caches, notices.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use adit_core::ErrorKind;
use adit_core::engine::{Engine, EngineOptions, Entry, Lookup, Notifier, Opened, SinkFlow};
use adit_core::store::{DirEntry, Store};
use adit_core::types::*;
use adit_testkit::Rng;
use adit_testkit::model::Limits;
use support::engines::{LONG, ROOT, UNIT, absent, create, engine, engine_with, kind, read_all};
use support::{name, new_node, options};

#[test]
fn a_hundred_thousand_entries_come_and_go() {
    let (store, e) = engine();
    for i in 0..100_000 {
        store.inner.create(ROOT, name(&format!("f{i}")), &new_node()).unwrap();
    }
    let (fh, mut at, mut taken) = (e.opendir(ROOT).unwrap(), 0, Vec::new());
    loop {
        let before = taken.len();
        e.read_dir_plus(fh, at, &mut |d: DirEntry<'_>, entry: Option<&Entry>| {
            if taken.len() - before == 1000 {
                return SinkFlow::Full;
            }
            at = d.cookie;
            taken.push(entry.expect("attributes").attr.ino);
            SinkFlow::More
        })
        .unwrap();
        if taken.len() == before {
            break;
        }
    }
    assert_eq!((taken.len(), e.known_inodes()), (100_000, 100_001));
    assert!(taken.iter().all(|&ino| e.lookup_count(ino) == 1));
    e.releasedir(fh).unwrap();
    taken.iter().for_each(|&ino| e.forget(ino, 1));
    // The store's own creations above made them known as well; the engine forgets them once each.
    assert_eq!((e.known_inodes(), store.inner.known_count(), store.inner.stray_forgets()), (1, 0, 0));
}

#[test]
fn an_absence_dies_with_whatever_makes_the_name() {
    let (store, e) = engine();
    let (file, fh) = create(&e, "file");
    type Maker<'a> = &'a dyn Fn(FileName<'_>);
    let makers: [(&str, Maker<'_>); 6] = [
        ("create", &|n| assert!(e.create(ROOT, n, &new_node(), Access::Write).is_ok())),
        ("mkdir", &|n| assert!(e.mkdir(ROOT, n, &new_node()).is_ok())),
        ("symlink", &|n| assert!(e.symlink(ROOT, n, b"t", new_node().caller).is_ok())),
        ("mknod", &|n| assert!(e.mknod(ROOT, n, Kind::Fifo, 0, &new_node()).is_ok())),
        ("link", &|n| assert!(e.link(file, ROOT, n).is_ok())),
        ("rename", &|n| e.rename(ROOT, name("file"), ROOT, n, RenameFlags::empty()).unwrap()),
    ];
    for (what, make) in makers {
        assert!(absent(&e, what));
        let asked = store.faults.lookups.load(Relaxed);
        assert!(absent(&e, what));
        assert_eq!(store.faults.lookups.load(Relaxed), asked, "{what}: the absence is cached");
        make(name(what));
        assert!(!absent(&e, what), "{what}");
    }
    assert!(absent(&e, "file"), "the source of a rename is gone");
    e.unlink(ROOT, name("create")).unwrap();
    assert!(absent(&e, "create"));
    e.release(fh).unwrap();
}

#[test]
fn errors_other_than_absence_are_not_cached() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.release(fh).unwrap();
    e.forget(ino, 1);
    let attr = store.inner.lookup(ROOT, name("f")).unwrap();
    store.faults.getattr_fails_of.store(attr.ino.0, Relaxed);
    assert_eq!(kind(e.lookup(ROOT, name("f"))), ErrorKind::Corrupt);
    assert_eq!(kind(e.lookup(ROOT, name("f"))), ErrorKind::Corrupt);
    store.faults.getattr_fails_of.store(0, Relaxed);
    assert_eq!(e.lookup(ROOT, name("f")).unwrap().attr.ino, attr.ino);
}

#[test]
fn hits_ask_no_store_and_promise_only_what_is_left() {
    let (store, e) = engine();
    let dir = e.mkdir(ROOT, name("d"), &new_node()).unwrap();
    let asked = store.faults.lookups.load(Relaxed) + store.faults.getattrs.load(Relaxed);
    let hit = e.lookup(ROOT, name("d")).unwrap();
    assert_eq!(hit.attr, dir.attr);
    assert!(hit.attr_ttl <= LONG && hit.entry_ttl <= LONG);
    e.getattr(hit.attr.ino, None).unwrap();
    assert_eq!(store.faults.lookups.load(Relaxed) + store.faults.getattrs.load(Relaxed), asked);
    assert_eq!(e.lookup_count(hit.attr.ino), 2);
    // Its own changes show at once, however long the cache lives.
    let before = e.getattr(ROOT, None).unwrap().0;
    e.mkdir(ROOT, name("d2"), &new_node()).unwrap();
    let after = e.getattr(ROOT, None).unwrap().0;
    assert_eq!(after.nlink, before.nlink + 1);
    let (file, fh) = create(&e, "f");
    e.link(file, ROOT, name("g")).unwrap();
    e.unlink(ROOT, name("f")).unwrap();
    assert_eq!(e.getattr(file, None).unwrap().0.nlink, 1);
    e.unlink(ROOT, name("g")).unwrap();
    assert_eq!(e.getattr(file, None).unwrap().0.nlink, 0);
    e.release(fh).unwrap();
}

#[test]
fn an_open_file_outlives_its_last_reference() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, b"abc").unwrap();
    e.unlink(ROOT, name("f")).unwrap();
    e.forget(ino, 1);
    assert_eq!((e.known_inodes(), store.inner.known_count()), (2, 1));
    assert_eq!(read_all(&e, fh), b"abc");
    assert_eq!(e.getattr(ino, Some(fh)).unwrap().0.size, 3);
    e.release(fh).unwrap();
    assert_eq!((e.known_inodes(), store.inner.known_count(), store.inner.node_count()), (1, 0, 1));
    assert_eq!(kind(e.read(fh, 0, &mut [0])), ErrorKind::Stale);
}

#[test]
fn a_small_file_is_given_whole_to_its_first_reader_alone() {
    let (_store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let given = |opened: &Opened, max: usize| {
        let mut got = Vec::new();
        let mut buf = vec![0; max];
        let took = e.give_whole(opened.fh, &mut buf, |content| {
            got = content.to_vec();
            true
        });
        took.then_some(got)
    };
    e.write(fh, 0, b"small").unwrap();
    let beside_a_writer = e.open(ino, Access::Read, false).unwrap();
    assert_eq!(given(&beside_a_writer, 100), None, "it may be changed meanwhile");
    e.release(beside_a_writer.fh).unwrap();
    e.release(fh).unwrap();
    let again = e.open(ino, Access::Read, false).unwrap();
    assert!(!again.unread, "the kernel may hold pages of it already");
    e.release(again.fh).unwrap();
    // The kernel forgets it, and looks it up again.
    e.forget(ino, 1);
    let ino = e.lookup(ROOT, name("f")).unwrap().attr.ino;
    let writer = e.open(ino, Access::Write, false).unwrap();
    assert!(!writer.unread);
    e.release(writer.fh).unwrap();
    e.forget(ino, 1);
    let ino = e.lookup(ROOT, name("f")).unwrap().attr.ino;
    let first = e.open(ino, Access::Read, false).unwrap();
    assert!(first.unread);
    assert_eq!(given(&first, 4), None, "it does not fit");
    assert_eq!(given(&first, 5).as_deref(), Some(&b"small"[..]));
    let second = e.open(ino, Access::Read, false).unwrap();
    assert_eq!(given(&first, 100), None, "another may read it meanwhile");
    assert!(second.keep_cache && !second.unread);
}

#[test]
fn names_that_are_spelt_in_several_ways_are_cached_only_where_they_hold() {
    // Also of a store that nobody else changes.
    for shared in [true, false] {
        spelt_in_several_ways(shared);
    }
}

fn spelt_in_several_ways(shared: bool) {
    let limits = Limits { unit_len_bytes: UNIT as u32, shared, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 64 << 20));
    let lookups = || store.faults.lookups.load(Relaxed);
    // Whether it is cached that there is nothing, and then that there is something; the kernel keeps neither where another
    // spelling can change it.
    for (text, absence, presence) in [("e", true, true), ("\u{e9}", false, true), ("e\u{301}", false, false)] {
        let kernel_keeps = text == "e";
        let before = lookups();
        for _ in 0..3 {
            let Ok(Lookup::Absent { ttl }) = e.lookup_or_absent(ROOT, name(text)) else { panic!("{text:?} is there") };
            assert_eq!(!ttl.is_zero(), absence, "{text:?}");
        }
        assert_eq!(lookups() - before, if absence { 1 } else { 3 }, "{text:?}");
        let made = e.mkdir(ROOT, name(text), &new_node()).unwrap();
        assert_eq!(!made.entry_ttl.is_zero(), kernel_keeps, "{text:?}");
        let before = lookups();
        for _ in 0..3 {
            assert_eq!(!e.lookup(ROOT, name(text)).unwrap().entry_ttl.is_zero(), kernel_keeps, "{text:?}");
        }
        assert_eq!(lookups() - before, if presence { 0 } else { 3 }, "{text:?}");
        e.rmdir(ROOT, name(text)).unwrap();
        let Ok(Lookup::Absent { ttl }) = e.lookup_or_absent(ROOT, name(text)) else { panic!("{text:?} is there") };
        assert_eq!(!ttl.is_zero(), absence, "{text:?}");
    }
    // A change by another spelling ends what is cached of the stored one.
    e.mkdir(ROOT, name("\u{e9}"), &new_node()).unwrap();
    e.lookup(ROOT, name("\u{e9}")).unwrap();
    let _not_there_in_this_store = e.rmdir(ROOT, name("e\u{301}"));
    let between = lookups();
    e.lookup(ROOT, name("\u{e9}")).unwrap();
    assert_eq!(lookups() - between, 1);
}

#[test]
fn a_unit_is_loaded_once_and_dropped_by_own_writes() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, &[1; 8 * UNIT]).unwrap();
    e.release(fh).unwrap();
    let fh = e.open(ino, Access::Write, false).unwrap().fh;
    std::thread::scope(|s| {
        for t in 0..8 {
            let e = &e;
            s.spawn(move || {
                let mut buf = [0; 64];
                for i in 0..50 {
                    assert_eq!(e.read(fh, UNIT as u64 + (t * 50 + i) * 8, &mut buf).unwrap(), 64);
                    assert_eq!(buf, [1; 64]);
                }
            });
        }
    });
    assert_eq!(store.faults.reads.load(Relaxed), 1);
    let mut buf = [0; 64];
    e.write(fh, UNIT as u64 + 32, &[2; 64]).unwrap();
    e.read(fh, UNIT as u64, &mut buf).unwrap();
    assert_eq!((buf[31], buf[32]), (1, 2));
    e.flush(fh).unwrap();
    e.read(fh, UNIT as u64, &mut buf).unwrap();
    assert_eq!((buf[31], buf[32]), (1, 2), "after the flush, too");
    assert!(e.stats().units.entries >= 1);
    e.unlink(ROOT, name("f")).unwrap();
    e.release(fh).unwrap();
    e.forget(ino, 1);
    assert_eq!(e.stats().units.bytes, 0);
}

struct Told(Sender<Ino>);

impl Notifier for Told {
    fn inval_inode(&self, ino: Ino, _: i64, _: i64) {
        self.0.send(ino).unwrap();
    }
    fn inval_entry(&self, _: Ino, _: FileName<'_>) {}
}

#[test]
fn pages_are_kept_until_someone_else_changes_the_file() {
    let limits = Limits { unit_len_bytes: UNIT as u32, shared: true, ..Limits::default() };
    let (store, e) = engine_with(limits, options(Duration::ZERO, 64 << 20));
    let (sender, told) = channel();
    e.set_notifier(Box::new(Told(sender)));
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, &[1; 2 * UNIT]).unwrap();
    assert!(e.open(ino, Access::Read, false).unwrap().keep_cache, "the writes are ours, still buffered");
    e.flush(fh).unwrap();
    let reader = e.open(ino, Access::Read, false).unwrap();
    assert!(reader.keep_cache, "and flushed");
    e.setattr(ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }, None).unwrap();
    assert!(e.open(ino, Access::Read, false).unwrap().keep_cache, "a change of mode is ours, too");
    let mut buf = [0; 8];
    e.read(reader.fh, 0, &mut buf).unwrap();
    assert_eq!(buf, [1; 8]);
    assert!(told.try_recv().is_err());

    store.inner.open(ino, Access::Write).unwrap().write_at(&[(0, &[9; 3 * UNIT])]).unwrap();
    assert_eq!(e.getattr(ino, None).unwrap().0.size, 3 * UNIT as u64);
    assert_eq!(told.recv_timeout(Duration::from_secs(30)).unwrap(), ino);
    e.read(reader.fh, 0, &mut buf).unwrap();
    assert_eq!(buf, [9; 8], "the cached unit is void as well");
    assert!(!e.open(ino, Access::Read, false).unwrap().keep_cache, "the kernel may not have listened yet");
    assert!(e.open(ino, Access::Read, false).unwrap().keep_cache);
    store.inner.open(ino, Access::Write).unwrap().set_len(1).unwrap();
    assert!(!e.open(ino, Access::Read, false).unwrap().keep_cache, "noticed by the opening itself");
}

#[test]
fn a_listing_is_a_snapshot_until_it_is_rewound() {
    let (store, e) = engine();
    for i in 0..10 {
        e.mkdir(ROOT, name(&format!("d{i}")), &new_node()).unwrap();
    }
    let fh = e.opendir(ROOT).unwrap();
    let list = |from: u64, max: usize| {
        let (mut names, mut at) = (Vec::new(), from);
        e.read_dir(fh, from, &mut |d| {
            if names.len() == max {
                return SinkFlow::Full;
            }
            names.push(d.name.display().into_owned());
            at = d.cookie;
            SinkFlow::More
        })
        .unwrap();
        (names, at)
    };
    let (mut seen, at) = list(0, 4);
    e.rmdir(ROOT, name(&seen[0])).unwrap();
    e.mkdir(ROOT, name("new"), &new_node()).unwrap();
    seen.extend(list(at, 99).0);
    seen.sort();
    assert_eq!(seen, (0..10).map(|i| format!("d{i}")).collect::<Vec<_>>());
    let (rewound, _) = list(0, 99);
    assert!(rewound.len() == 10 && rewound.contains(&"new".into()));
    let asked = store.faults.listings.load(Relaxed);
    assert_eq!(list(0, 99).0, rewound);
    assert!(Arc::ptr_eq(&e.listing(ROOT).unwrap(), &e.listing(ROOT).unwrap()));
    assert_eq!(store.faults.listings.load(Relaxed), asked, "nothing changed: the snapshot is shared");
    // A vanished entry is left out where attributes are wanted.
    let mut plus = Vec::new();
    list(0, 1);
    e.rmdir(ROOT, name("new")).unwrap();
    e.read_dir_plus(fh, 1, &mut |d, entry| {
        assert!(entry.is_some());
        plus.push(d.name.display().into_owned());
        SinkFlow::More
    })
    .unwrap();
    assert!(!plus.contains(&"new".into()) && plus.len() >= 8);
}

#[test]
fn one_bad_file_does_not_hide_its_directory() {
    let (store, e) = engine();
    for n in ["a", "b", "c"] {
        store.inner.create(ROOT, name(n), &new_node()).unwrap();
    }
    let bad = store.inner.lookup(ROOT, name("b")).unwrap().ino;
    store.faults.getattr_fails_of.store(bad.0, Relaxed);
    let fh = e.opendir(ROOT).unwrap();
    let mut seen = Vec::new();
    e.read_dir_plus(fh, 0, &mut |d, entry| {
        seen.push((d.name.display().into_owned(), entry.is_some()));
        SinkFlow::More
    })
    .unwrap();
    seen.sort();
    assert_eq!(seen, [("a".into(), true), ("b".into(), false), ("c".into(), true)]);
}

#[test]
fn nothing_changes_on_a_read_only_mount() {
    let options = EngineOptions { read_only: true, ..EngineOptions::default() };
    let (store, e) = engine_with(Limits::default(), options);
    let (attr, _file) = store.inner.create(ROOT, name("f"), &new_node()).unwrap();
    e.lookup(ROOT, name("f")).unwrap();
    assert_eq!(kind(e.create(ROOT, name("g"), &new_node(), Access::Write)), ErrorKind::ReadOnly);
    assert_eq!(kind(e.open(attr.ino, Access::Write, false)), ErrorKind::ReadOnly);
    assert_eq!(kind(e.open(attr.ino, Access::Read, true)), ErrorKind::ReadOnly);
    assert_eq!(kind(e.unlink(ROOT, name("f"))), ErrorKind::ReadOnly);
    let set = SetAttr { perm: Some(0), ..SetAttr::default() };
    assert_eq!(kind(e.setattr(attr.ino, &set, None)), ErrorKind::ReadOnly);
    e.open(attr.ino, Access::Read, false).unwrap();
    e.shutdown().unwrap();
}

/// Threads make, find, list, write, remove and forget the same names. The store is strict: it knows what is referenced.
#[test]
fn references_are_exact_under_contention() {
    let (store, e) = engine();
    std::thread::scope(|s| {
        for t in 0..6_u64 {
            let e = &e;
            s.spawn(move || {
                let mut rng = Rng::new(t);
                for _ in 0..3000 {
                    let n = format!("n{}", rng.below(12));
                    contend(e, &mut rng, &n);
                }
            });
        }
    });
    e.shutdown().unwrap();
    assert_eq!((e.known_inodes(), store.inner.known_count(), store.inner.open_count()), (1, 0, 0));
    assert_eq!((store.inner.stray_forgets(), store.faults.overlaps.load(Relaxed)), (0, 0));
    assert_eq!(e.stats().dirty_bytes, 0);
}

fn contend(e: &Engine, rng: &mut Rng, n: &str) {
    match rng.below(6) {
        0 => {
            if let Ok((entry, opened)) = e.create(ROOT, name(n), &new_node(), Access::Write) {
                e.write(opened.fh, 0, n.as_bytes()).unwrap();
                e.release(opened.fh).unwrap();
                e.forget(entry.attr.ino, 1);
            }
        }
        1 => drop(e.unlink(ROOT, name(n))),
        2 => {
            let fh = e.opendir(ROOT).unwrap();
            let mut taken = Vec::new();
            e.read_dir_plus(fh, 0, &mut |_, entry| {
                if taken.len() == 5 {
                    return SinkFlow::Full;
                }
                taken.extend(entry.map(|e| e.attr.ino));
                SinkFlow::More
            })
            .unwrap();
            e.releasedir(fh).unwrap();
            taken.into_iter().for_each(|ino| e.forget(ino, 1));
        }
        3 => drop(e.rename(ROOT, name(n), ROOT, name("n3"), RenameFlags::empty())),
        _ => {
            if let Ok(entry) = e.lookup(ROOT, name(n)) {
                let ino = entry.attr.ino;
                assert!(e.is_known(ino));
                e.getattr(ino, None).expect("a referenced inode has attributes");
                if let Ok(opened) = e.open(ino, Access::Read, false) {
                    read_all(e, opened.fh);
                    e.release(opened.fh).unwrap();
                }
                e.forget(ino, 1);
            }
        }
    }
}

#[test]
fn a_directory_that_a_file_was_made_in_is_known_as_it_is_then() {
    let (store, e) = engine();
    e.getattr(ROOT, None).unwrap();
    create(&e, "f");
    let asked = store.faults.getattrs.load(Relaxed);
    let after = e.getattr(ROOT, None).unwrap().0;
    assert_eq!(store.faults.getattrs.load(Relaxed), asked, "the creation told them");
    assert_eq!(after, store.inner.getattr(ROOT).unwrap());
    // What one that fails leaves is not known.
    assert_eq!(kind(e.create(ROOT, name("f"), &new_node(), Access::Write)), ErrorKind::Exists);
    e.getattr(ROOT, None).unwrap();
    assert_eq!(store.faults.getattrs.load(Relaxed), asked + 1);
}
