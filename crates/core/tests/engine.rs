//! What the engine promises beyond what a store does: counts, caches, buffers, failures, notices.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use adit_core::ErrorKind;
use adit_core::engine::{Engine, EngineOptions, Entry, Fh, Lookup, Notifier, Opened, SinkFlow};
use adit_core::store::{DirEntry, Store};
use adit_core::types::*;
use adit_testkit::Rng;
use adit_testkit::model::Limits;
use support::{FaultyStore, name, new_node, options};

const LONG: Duration = Duration::from_secs(600);
const ROOT: Ino = Ino::ROOT;
const UNIT: usize = 4096;

fn engine_with(limits: Limits, options: EngineOptions) -> (FaultyStore, Arc<Engine>) {
    let store = FaultyStore::new(limits);
    (store.clone(), Engine::new(Arc::new(store), options))
}

/// A shared store with units of 4 KiB, cached for long.
fn engine() -> (FaultyStore, Arc<Engine>) {
    let limits = Limits { unit_len_bytes: UNIT as u32, shared: true, ..Limits::default() };
    engine_with(limits, options(LONG, 64 << 20))
}

fn create(e: &Engine, n: &str) -> (Ino, Fh) {
    let (entry, opened) = e.create(ROOT, name(n), &new_node(), Access::Write).unwrap();
    (entry.attr.ino, opened.fh)
}

fn read_all(e: &Engine, fh: Fh) -> Vec<u8> {
    let mut buf = vec![0; 1 << 20];
    let n = e.read(fh, 0, &mut buf).unwrap();
    buf.truncate(n);
    buf
}

fn stored(store: &FaultyStore, ino: Ino) -> Vec<u8> {
    let mut buf = vec![0; 1 << 20];
    let n = store.inner.open(ino, Access::Read).unwrap().read_at(0, &mut buf).unwrap();
    buf.truncate(n);
    buf
}

fn absent(e: &Engine, n: &str) -> bool {
    matches!(e.lookup_or_absent(ROOT, name(n)), Ok(Lookup::Absent { .. }))
}

fn kind<T>(r: adit_core::Result<T>) -> ErrorKind {
    r.err().expect("an error").kind()
}

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
fn buffered_writes_show_at_once_and_are_stored_at_flush() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let reader = e.open(ino, Access::Read, false).unwrap();
    assert!(reader.no_flush);
    let before = Timestamp::now();
    e.write(fh, 10, b"xyz").unwrap();
    assert_eq!(store.faults.writes.load(Relaxed), 0);
    let attr = e.getattr(ino, None).unwrap().0;
    assert!(attr.size == 13 && attr.mtime >= before);
    assert_eq!(e.lookup(ROOT, name("f")).unwrap().attr.size, 13);
    assert_eq!(read_all(&e, reader.fh), b"\0\0\0\0\0\0\0\0\0\0xyz");
    assert_eq!(e.stats().dirty_bytes, UNIT as u64);
    e.flush(fh).unwrap();
    assert_eq!((stored(&store, ino).len(), e.stats().dirty_bytes), (13, 0));
    assert_eq!(e.getattr(ino, None).unwrap().0, store.inner.getattr(ino).unwrap());
    assert_eq!(kind(e.write(reader.fh, 0, b"no")), ErrorKind::NotPermitted);
    assert_eq!(kind(e.write(fh, i64::MAX as u64, b"no")), ErrorKind::FileTooLarge);
}

#[test]
fn set_times_outlive_buffered_writes() {
    let (_store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, b"data").unwrap();
    let at = Timestamp { secs: 1000, nanos: 5 };
    let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    assert_eq!(e.setattr(ino, &set, Some(fh)).unwrap().0.mtime, at);
    e.release(fh).unwrap();
    let attr = e.getattr(ino, None).unwrap().0;
    assert_eq!((attr.mtime, attr.size), (at, 4));
}

#[test]
fn large_writes_go_through_and_small_ones_in_runs() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let big = vec![7; 10 * UNIT];
    e.write(fh, 100, &big).unwrap();
    assert_eq!(store.faults.writes.load(Relaxed), 1);
    assert_eq!(e.stats().dirty_bytes, 2 * UNIT as u64, "head and tail wait for their neighbours");
    let (ino2, fh2) = create(&e, "g");
    for i in 0..1024 {
        e.write(fh2, i * 1024, &[i as u8; 1024]).unwrap();
    }
    assert_eq!(store.faults.writes.load(Relaxed), 2, "1 MiB in one call");
    assert_eq!(stored(&store, ino2).len(), 1 << 20);
    e.fsync(fh, true).unwrap();
    assert_eq!(stored(&store, ino)[100..], big);
}

#[test]
fn small_writes_all_over_a_file_take_their_own_memory() {
    const LARGE: usize = 8 * UNIT;
    let limits = Limits { unit_len_bytes: LARGE as u32, shared: true, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 64 << 20));
    let (ino, fh) = create(&e, "f");
    let mut content = vec![7; 16 * LARGE];
    e.write(fh, 0, &content).unwrap();
    e.flush(fh).unwrap();
    let (reads, writes) = (store.faults.reads.load(Relaxed), store.faults.writes.load(Relaxed));
    for unit in 0..16 {
        for block in [6, 1] {
            let at = unit * LARGE + block * UNIT;
            e.write(fh, at as u64, &[block as u8; UNIT]).unwrap();
            content[at..at + UNIT].fill(block as u8);
        }
    }
    assert_eq!(e.stats().dirty_bytes, 32 * UNIT as u64);
    assert_eq!(store.faults.reads.load(Relaxed), reads, "what lies between them is not needed");
    assert_eq!(read_all(&e, fh), content);
    e.flush(fh).unwrap();
    assert_eq!(store.faults.writes.load(Relaxed), writes + 1, "all in one call");
    assert_eq!((stored(&store, ino), e.stats().dirty_bytes), (content, 0));
}

#[test]
fn what_makes_room_is_what_is_nearly_whole() {
    const LARGE: usize = 8 * UNIT;
    let limits = Limits { unit_len_bytes: LARGE as u32, shared: true, ..Limits::default() };
    // 48 blocks may be dirty.
    let (store, e) = engine_with(limits, options(LONG, 1 << 20));
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, &vec![0xff; 64 * LARGE]).unwrap();
    for unit in 0..16 {
        // A whole unit, though not in order, or a block of it.
        let blocks: &[usize] = if unit % 4 == 1 { &[0, 2, 4, 6, 1, 3, 5, 7] } else { &[3] };
        for block in blocks {
            e.write(fh, (unit * LARGE + block * UNIT) as u64, &[unit as u8; UNIT]).unwrap();
        }
    }
    assert_eq!(e.stats().dirty_bytes, 44 * UNIT as u64);
    for unit in 16..22 {
        e.write(fh, (unit * LARGE) as u64, &[unit as u8; UNIT]).unwrap();
    }
    let stored = stored(&store, ino);
    let is_stored = |unit: usize| stored[unit * LARGE + 3 * UNIT] == unit as u8;
    assert!((0..16).filter(|u| u % 4 == 1).filter(|&u| is_stored(u)).count() >= 2, "whole units went");
    assert!((0..16).filter(|u| u % 4 != 1).all(|u| !is_stored(u)), "and no others");
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
fn a_failed_flush_keeps_the_data_and_every_handle_hears_of_it() {
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    e.write(first, 0, b"precious").unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    assert_eq!(kind(e.flush(first)), ErrorKind::NoSpace);
    assert_eq!(kind(e.fsync(first, false)), ErrorKind::NoSpace);
    assert_eq!(read_all(&e, second), b"precious");
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(kind(e.flush(second)), ErrorKind::NoSpace, "it had not heard of the failure yet");
    assert_eq!(stored(&store, ino), b"precious", "but the data was saved");
    e.flush(second).unwrap();
    e.flush(first).unwrap();
    let third = e.open(ino, Access::Write, false).unwrap().fh;
    e.flush(third).unwrap();
    store.faults.syncs_fail.store(true, Relaxed);
    assert_eq!(kind(e.fsync(third, true)), ErrorKind::Io);
    store.faults.syncs_fail.store(false, Relaxed);
    e.fsync(third, true).unwrap();
    assert_eq!(kind(e.fsync(first, true)), ErrorKind::Io);
}

#[test]
fn names_that_are_spelt_in_several_ways_are_cached_only_where_they_hold() {
    let (store, e) = engine();
    let lookups = || store.faults.lookups.load(Relaxed);
    // Whether it is cached that there is nothing, and then that there is something.
    for (text, absence, presence) in [("e", true, true), ("\u{e9}", false, true), ("e\u{301}", false, false)] {
        let before = lookups();
        for _ in 0..3 {
            let Ok(Lookup::Absent { ttl }) = e.lookup_or_absent(ROOT, name(text)) else { panic!("{text:?} is there") };
            assert_eq!(!ttl.is_zero(), absence, "{text:?}");
        }
        assert_eq!(lookups() - before, if absence { 1 } else { 3 }, "{text:?}");
        let made = e.mkdir(ROOT, name(text), &new_node()).unwrap();
        assert_eq!(!made.entry_ttl.is_zero(), presence, "{text:?}");
        let before = lookups();
        for _ in 0..3 {
            assert_eq!(!e.lookup(ROOT, name(text)).unwrap().entry_ttl.is_zero(), presence, "{text:?}");
        }
        assert_eq!(lookups() - before, if presence { 0 } else { 3 }, "{text:?}");
        e.rmdir(ROOT, name(text)).unwrap();
        let Ok(Lookup::Absent { ttl }) = e.lookup_or_absent(ROOT, name(text)) else { panic!("{text:?} is there") };
        assert_eq!(!ttl.is_zero(), absence, "{text:?}");
    }
}

#[test]
fn a_failure_that_lasts_is_heard_of_once() {
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    for bytes in [b"one", b"two"] {
        e.write(first, 0, bytes).unwrap();
        store.faults.writes_fail.store(true, Relaxed);
        assert_eq!(kind(e.fsync(first, false)), ErrorKind::NoSpace);
        // Others try again and again.
        for _ in 0..3 {
            assert_eq!(kind(e.flush(second)), ErrorKind::NoSpace);
        }
        store.faults.writes_fail.store(false, Relaxed);
        e.flush(second).unwrap();
        assert_eq!(stored(&store, ino), bytes);
        e.flush(first).unwrap();
    }
    // After a success it is another failure.
    e.write(first, 0, b"end").unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    assert_eq!(kind(e.flush(second)), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(kind(e.flush(first)), ErrorKind::NoSpace);
}

#[test]
fn everyone_sees_a_write_that_was_accepted_before_it_was_stored() {
    const LEN: usize = 8 * UNIT;
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let mut early = 0;
    e.write_behind(fh, 0, &[1; LEN], &mut || early += 1).unwrap();
    assert_eq!(early, 0, "it continues nothing");
    let gate = store.faults.write_gate.lock().unwrap();
    std::thread::scope(|threads| {
        let (accepted, told) = channel();
        let engine = &e;
        threads
            .spawn(move || engine.write_behind(fh, LEN as u64, &[2; LEN], &mut || accepted.send(()).unwrap()).unwrap());
        told.recv().expect("accepted while the store is busy");
        assert_eq!(store.inner.getattr(ino).unwrap().size, LEN as u64);
        let size = threads.spawn(|| e.getattr(ino, None).unwrap().0.size);
        let looked_up = threads.spawn(|| e.lookup(ROOT, name("f")).unwrap().attr.size);
        let content = threads.spawn(|| read_all(&e, fh));
        let closed = threads.spawn(|| {
            e.flush(fh).unwrap();
            stored(&store, ino).len()
        });
        // Whoever does not wait for the write has answered by now.
        std::thread::sleep(Duration::from_millis(20));
        drop(gate);
        assert_eq!(size.join().unwrap(), 2 * LEN as u64);
        assert_eq!(looked_up.join().unwrap(), 2 * LEN as u64);
        assert_eq!(content.join().unwrap(), [[1; LEN], [2; LEN]].concat());
        assert_eq!(closed.join().unwrap(), 2 * LEN);
    });
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn an_accepted_write_that_fails_is_kept_and_told() {
    const LEN: usize = 8 * UNIT;
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    let mut early = 0;
    e.write_behind(first, 0, &[1; LEN], &mut || early += 1).unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    e.write_behind(first, LEN as u64, &[2; LEN], &mut || early += 1).unwrap();
    assert_eq!(early, 1);
    assert_eq!(e.stats().dirty_bytes, LEN as u64);
    assert_eq!(e.getattr(ino, None).unwrap().0.size, 2 * LEN as u64);
    let next = e.write_behind(first, 2 * LEN as u64, &[3; LEN], &mut || early += 1);
    assert_eq!((kind(next), early), (ErrorKind::NoSpace, 1), "the writer hears of the next failure at once");
    assert_eq!(kind(e.flush(first)), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(kind(e.release(second)), ErrorKind::NoSpace, "it had not heard of the failure yet");
    e.release(first).unwrap();
    assert_eq!(stored(&store, ino), [[1; LEN], [2; LEN]].concat());
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn a_run_of_small_writes_that_was_accepted_and_fails_is_kept_and_told() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    store.faults.writes_fail.store(true, Relaxed);
    let (mut early, mut at) = (0, 0);
    let mut write = |at: u64| e.write_behind(fh, at, &[7; UNIT], &mut || early += 1);
    let refused = loop {
        match write(at) {
            Ok(_) => at += UNIT as u64,
            Err(error) => break error.kind(),
        }
        assert!(at < 4 << 20);
    };
    assert_eq!((refused, early, at), (ErrorKind::NoSpace, 1, 1 << 20));
    assert_eq!(kind(e.flush(fh)), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    e.flush(fh).unwrap();
    assert!(stored(&store, ino).iter().all(|&b| b == 7));
    assert!(store.inner.getattr(ino).unwrap().size >= at);
}

#[test]
fn what_cannot_be_stored_goes_with_the_last_handle() {
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    e.write(first, 0, b"lost").unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    assert_eq!(kind(e.release(first)), ErrorKind::NoSpace);
    assert_eq!(e.stats().dirty_bytes, UNIT as u64, "another handle is open: there is another try");
    assert_eq!(kind(e.release(second)), ErrorKind::NoSpace);
    assert_eq!(e.stats().dirty_bytes, 0);
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(e.getattr(ino, None).unwrap().0.size, 0);
    let again = e.open(ino, Access::Write, false).unwrap().fh;
    e.write(again, 0, b"new").unwrap();
    e.release(again).unwrap();
    assert_eq!(stored(&store, ino), b"new");
}

#[test]
fn dirty_data_is_bounded_and_a_full_store_refuses_the_writer() {
    let limits = Limits { unit_len_bytes: UNIT as u32, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 256 << 10));
    let files: Vec<_> = (0..4).map(|i| create(&e, &format!("f{i}"))).collect();
    for i in 0..400_u64 {
        // Every other unit, so that no run arises.
        e.write(files[i as usize % 4].1, i / 4 * 2 * UNIT as u64, &[1; 100]).unwrap();
        assert!(e.stats().dirty_bytes <= 128 << 10);
    }
    store.faults.writes_fail.store(true, Relaxed);
    let refused = (0..400_u64).map(|i| e.write(files[0].1, i * 2 * UNIT as u64, &[2; 100])).find(|r| r.is_err());
    assert_eq!(kind(refused.expect("the limit is met")), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    files.iter().for_each(|f| drop(e.release(f.1)));
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn many_files_with_a_block_each_stay_within_the_share() {
    const FILES: u64 = 300;
    let limits = Limits { unit_len_bytes: UNIT as u32, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 1 << 20));
    // Three sixteenths of the budget: 48 blocks.
    let share = (1 << 20) / 16 * 3;
    let fill = |thread: u64| {
        let files: Vec<_> = (0..FILES).map(|i| create(&e, &format!("{thread}-{i}"))).collect();
        for at in [10, 5000, 20] {
            for &(ino, fh) in &files {
                e.write(fh, at, &[ino.0 as u8; 7]).unwrap();
                let held = e.stats().dirty_bytes;
                assert!(held <= share, "{held} of {share} bytes");
            }
        }
        files
    };
    let files: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|thread| s.spawn(move || fill(thread))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    for (ino, fh) in files {
        e.release(fh).unwrap();
        let mut expected = vec![0; 5007];
        [10, 20, 5000].iter().for_each(|&at| expected[at..at + 7].fill(ino.0 as u8));
        assert_eq!(stored(&store, ino), expected);
    }
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn a_writer_that_finds_the_share_taken_hears_of_its_own_failure_only() {
    let limits = Limits { unit_len_bytes: UNIT as u32, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 1 << 20));
    let (full, full_fh) = create(&e, "full");
    store.faults.writes_fail.store(true, Relaxed);
    (0..48).for_each(|i| assert_eq!(e.write(full_fh, i * 2 * UNIT as u64, b"x").unwrap(), 1));
    let (ino, fh) = create(&e, "next");
    assert_eq!(kind(e.write(fh, 0, b"refused")), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    e.write(fh, 0, b"taken").unwrap();
    e.release(fh).unwrap();
    // Whether its write-back was tried while it could not work, nobody knows; its data is kept all the same.
    drop(e.release(full_fh));
    assert_eq!((stored(&store, ino), stored(&store, full).len()), (b"taken".to_vec(), 94 * UNIT + 1));
}

#[test]
fn old_data_is_written_back_by_itself() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, b"old").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while stored(&store, ino) != b"old" {
        assert!(Instant::now() < deadline, "nothing was written back");
        std::thread::yield_now();
    }
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

/// Random calls on the content of one file through two handles, against a vector of bytes.
#[test]
fn content_agrees_with_a_byte_vector() {
    for seed in adit_testkit::seeds(30) {
        let mut rng = Rng::new(seed);
        let memory = if rng.percent(50) { 64 << 20 } else { 64 << 10 };
        let limits = Limits { unit_len_bytes: 512, shared: rng.percent(50), ..Limits::default() };
        let (store, e) = engine_with(limits, options(LONG, memory));
        let (ino, first) = create(&e, "f");
        let handles = [first, e.open(ino, Access::Write, false).unwrap().fh];
        let mut model: Vec<u8> = Vec::new();
        for step in 0..400 {
            let fh = *rng.pick(&handles);
            let offset = rng.below(12 * 512);
            let len = if rng.percent(70) { 1 + rng.below(700) } else { 1 + rng.below(8 * 512) };
            let end = (offset + len) as usize;
            match rng.below(12) {
                0..=4 => {
                    let mut data = vec![0; len as usize];
                    rng.fill(&mut data);
                    assert_eq!(e.write(fh, offset, &data).unwrap(), data.len());
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].copy_from_slice(&data);
                }
                5 => {
                    let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                    assert_eq!(e.setattr(ino, &set, None).unwrap().0.size, offset);
                    model.resize(offset as usize, 0);
                }
                6 => {
                    e.allocate(fh, offset, len, AllocateMode::PunchHole).unwrap();
                    let (a, b) = (model.len().min(offset as usize), model.len().min(end));
                    model[a..b].fill(0);
                }
                7 => {
                    e.allocate(fh, offset, len, AllocateMode::Extend).unwrap();
                    model.resize(model.len().max(end), 0);
                }
                8 => {
                    let from = rng.below(model.len() as u64 + 1);
                    let want = len.min(model.len() as u64 - from);
                    let to = rng.below(9000);
                    if from < to + len && to < from + len {
                        assert_eq!(kind(e.copy_range(handles[0], from, fh, to, len)), ErrorKind::InvalidInput);
                        continue;
                    }
                    assert_eq!(e.copy_range(handles[0], from, fh, to, want).unwrap(), want, "seed {seed}");
                    if want > 0 {
                        let bytes = model[from as usize..(from + want) as usize].to_vec();
                        model.resize(model.len().max((to + want) as usize), 0);
                        model[to as usize..(to + want) as usize].copy_from_slice(&bytes);
                    }
                }
                9 => e.flush(fh).unwrap(),
                _ => {}
            }
            let mut buf = vec![0xaa; len as usize];
            let n = e.read(*rng.pick(&handles), offset, &mut buf).unwrap();
            let (a, b) = (model.len().min(offset as usize), model.len().min(end));
            assert!(buf[..n] == model[a..b], "seed {seed}, step {step}: read of {len} at {offset}");
            assert_eq!(e.getattr(ino, None).unwrap().0.size, model.len() as u64, "seed {seed}, step {step}");
        }
        handles.iter().for_each(|&fh| e.release(fh).unwrap());
        assert!(stored(&store, ino) == model, "seed {seed}: what was stored differs");
        assert_eq!(e.stats().dirty_bytes, 0);
    }
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
