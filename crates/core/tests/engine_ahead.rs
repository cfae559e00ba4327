//! Entries that are looked up before anybody asks for them: never twice, never wrong, never too many, and not where nobody asks.

mod support;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use adit_core::engine::{AheadStats, Engine, EngineOptions, Entry, SinkFlow};
use adit_core::store::{DirEntry, Store};
use adit_core::types::*;
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::{Asked, Hooked};
use parking_lot::{Condvar, Mutex};
use support::engines::{LONG, ROOT, engine_with};
use support::{FaultyStore, name, new_node, options};

const SLOW: fn() -> Limits = || Limits { slow_names: true, shared: true, ..Limits::default() };

/// However short a lookup is, it is worth another thread.
fn eager(ahead_max: usize) -> EngineOptions {
    EngineOptions { ahead_from: Duration::ZERO, ahead_max, ..options(LONG, 64 << 20) }
}

fn ahead(e: &Engine) -> AheadStats {
    e.stats().ahead.expect("a store with slow names")
}

/// Waits for what other threads do; a test that waits in vain fails.
fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::yield_now();
    }
}

/// Makes a directory with `count` files, of which nothing is known.
fn dir_with(store: &FaultyStore, e: &Engine, dir: &str, count: usize) -> Ino {
    let made = store.inner.mkdir(ROOT, name(dir), &new_node()).unwrap().ino;
    for n in 0..count {
        let (attr, _) = store.inner.create(made, name(&format!("f{n:04}")), &new_node()).unwrap();
        store.inner.forget(attr.ino);
    }
    store.inner.forget(made);
    e.lookup(ROOT, name(dir)).unwrap().attr.ino
}

/// Lists with attributes, as far as the end; what came, with references.
fn list_plus(e: &Engine, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
    let fh = e.opendir(dir).unwrap();
    let mut found = Vec::new();
    e.read_dir_plus(fh, 0, &mut |entry: DirEntry<'_>, with: Option<&Entry>| {
        found.push((entry.name.as_bytes().to_vec(), with.expect("attributes").attr.ino));
        SinkFlow::More
    })
    .unwrap();
    e.releasedir(fh).unwrap();
    found
}

/// Lists names alone.
fn list(e: &Engine, dir: Ino) -> usize {
    let fh = e.opendir(dir).unwrap();
    let mut count = 0;
    e.read_dir(fh, 0, &mut |_| {
        count += 1;
        SinkFlow::More
    })
    .unwrap();
    e.releasedir(fh).unwrap();
    count
}

#[test]
fn a_listing_with_attributes_asks_for_each_entry_once() {
    let (store, e) = engine_with(SLOW(), eager(64));
    for round in 0..20 {
        let dir = dir_with(&store, &e, &format!("d{round}"), 300);
        let before = store.faults.lookups.load(Relaxed);
        let found = list_plus(&e, dir);
        assert_eq!(found.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), 300);
        assert_eq!(store.faults.lookups.load(Relaxed) - before, 300, "one for each, by whichever thread");
        found.iter().for_each(|(_, ino)| e.forget(*ino, 1));
        e.forget(dir, 1);
    }
    let stats = ahead(&e);
    assert_eq!((stats.unused, stats.held), (0, 0), "all that was fetched was used: {stats:?}");
    assert_eq!((stats.fetched, stats.worth.switched_off), (stats.used, 0));
    e.shutdown().unwrap();
    assert_eq!((e.known_inodes(), store.inner.known_count(), store.inner.stray_forgets()), (1, 0, 0));
}

#[test]
fn a_listing_waits_for_several_entries_at_once() {
    let inner = MemoryStore::new(SLOW());
    let dir = inner.mkdir(ROOT, name("d"), &new_node()).unwrap().ino;
    (0..40).for_each(|n| drop(inner.create(dir, name(&format!("f{n}")), &new_node()).unwrap()));
    // Lookups wait until two are under way at once, the first time.
    let (asked, changed) = (Mutex::new((0, false)), Condvar::new());
    let store = Hooked::new(inner, move |call| {
        let Asked::Name(_, name) = call else { return };
        if name.as_bytes() == b"d" {
            return;
        }
        let mut asked = asked.lock();
        asked.0 += 1;
        asked.1 |= asked.0 == 2;
        changed.notify_all();
        let patience = Instant::now() + Duration::from_secs(60);
        while !asked.1 {
            assert!(!changed.wait_until(&mut asked, patience).timed_out(), "one lookup after the other");
        }
        asked.0 -= 1;
    });
    let e = Engine::new(Arc::new(store), eager(64));
    let dir = e.lookup(ROOT, name("d")).unwrap().attr.ino;
    assert_eq!(list_plus(&e, dir).len(), 40);
    assert!(ahead(&e).used > 0);
}

#[test]
fn names_that_nobody_asks_for_switch_it_off_and_the_held_are_bounded() {
    let (store, e) = engine_with(SLOW(), eager(16));
    let dirs: Vec<Ino> = (0..60).map(|n| dir_with(&store, &e, &format!("d{n}"), 40)).collect();
    let mut turns = 0;
    for &dir in &dirs {
        let before = ahead(&e);
        if !before.worth.is_on {
            break;
        }
        assert_eq!(list(&e, dir), 40);
        turns += 1;
        wait_for("the first entries are looked up", || {
            let now = ahead(&e);
            assert!(now.held <= 32, "{now:?}");
            now.fetched == before.fetched + 16 || !now.worth.is_on
        });
    }
    let off = ahead(&e);
    assert_eq!((off.worth.is_on, off.worth.switched_off, off.worth.rate_percent), (false, 1, Some(0)));
    assert!(turns < dirs.len(), "within a window: {off:?}");
    // What was under way ends; then a listing costs one question to the store.
    wait_for("it ends", || store.faults.lookups.load(Relaxed) >= off.fetched);
    let (before, listed) = (ahead(&e).fetched, store.faults.listings.load(Relaxed));
    for &dir in &dirs[turns..] {
        assert_eq!(list(&e, dir), 40);
    }
    assert_eq!(ahead(&e).fetched, before);
    assert_eq!(store.faults.listings.load(Relaxed) - listed, (dirs.len() - turns) as u64);
    // It comes back for a trial, however long nobody listed anything.
    let mut listings = 0;
    while !ahead(&e).worth.is_on {
        list(&e, dirs[0]);
        listings += 1;
        assert!(listings < 2000);
    }
    e.shutdown().unwrap();
    dirs.iter().for_each(|dir| e.forget(*dir, 1));
    assert_eq!((e.known_inodes(), store.inner.known_count(), store.inner.stray_forgets()), (1, 0, 0));
}

/// Waits until a thread of this process sleeps: here, for what another one is asking.
fn await_sleep(thread: i32) {
    let state = || std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    wait_for("it waits for nothing", || state().rsplit(')').next().unwrap().trim_start().starts_with('S'));
}

#[test]
fn a_name_that_is_being_looked_up_ahead_is_not_asked_for_twice() {
    let inner = MemoryStore::new(SLOW());
    let dir = inner.mkdir(ROOT, name("d"), &new_node()).unwrap().ino;
    (0..8).for_each(|n| drop(inner.create(dir, name(&format!("f{n}")), &new_node()).unwrap()));
    // Nothing of the directory comes back before it may; which names were asked for.
    let gate = Arc::new((Mutex::new((Vec::new(), false)), Condvar::new()));
    let of_store = gate.clone();
    let store = Hooked::new(inner, move |call| {
        let Asked::Name(dir, name) = call else { return };
        if dir == ROOT {
            return;
        }
        let mut asked = of_store.0.lock();
        asked.0.push(name.as_bytes().to_vec());
        let patience = Instant::now() + Duration::from_secs(60);
        while !asked.1 {
            assert!(!of_store.1.wait_until(&mut asked, patience).timed_out(), "the gate stays shut");
        }
    });
    let e = Engine::new(Arc::new(store), eager(64));
    let dir = e.lookup(ROOT, name("d")).unwrap().attr.ino;
    assert_eq!(list(&e, dir), 8);
    wait_for("a lookup is under way", || !gate.0.lock().0.is_empty());
    let first = gate.0.lock().0[0].clone();
    let found = std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let (e, first) = (&e, &first);
        let asks = scope.spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            e.lookup(dir, FileName::new(first).unwrap()).unwrap()
        });
        await_sleep(told.recv().unwrap());
        gate.0.lock().1 = true;
        gate.1.notify_all();
        asks.join().unwrap()
    });
    assert_eq!(gate.0.lock().0.iter().filter(|name| **name == first).count(), 1, "the store is asked once");
    assert_eq!(ahead(&e).used, 1, "and that was of use");
    [found.attr.ino, dir].into_iter().for_each(|ino| e.forget(ino, 1));
    e.shutdown().unwrap();
    assert_eq!(e.known_inodes(), 1);
}

#[test]
fn it_goes_further_the_more_is_used() {
    let (store, e) = engine_with(SLOW(), eager(4096));
    let dir = dir_with(&store, &e, "d", 2000);
    assert_eq!(list(&e, dir), 2000);
    wait_for("the first few", || ahead(&e).fetched == 16);
    let (mut names, mut known): (Vec<Vec<u8>>, Vec<Ino>) = Default::default();
    store
        .inner
        .read_dir(dir, 0, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    for (n, entry) in names.iter().enumerate() {
        // Somebody who asks faster than the threads do asks for some himself.
        wait_for("the next ones", || ahead(&e).fetched as usize >= (n + 8).min(names.len() - 8));
        // As a kernel it is forgotten much later: each forget voids some of what is known of others.
        known.push(e.lookup(dir, FileName::new(entry).unwrap()).unwrap().attr.ino);
        assert!(ahead(&e).held <= 4096);
    }
    // A thread that was not scheduled for a while comes too late with its one.
    let stats = ahead(&e);
    assert!(stats.used >= 1900, "{stats:?}");
    known.into_iter().for_each(|ino| e.forget(ino, 1));
}

#[test]
fn what_changes_meanwhile_shows() {
    let (store, e) = engine_with(SLOW(), eager(64));
    let dir = dir_with(&store, &e, "d", 100);
    assert_eq!(list(&e, dir), 100);
    wait_for("the first few", || ahead(&e).fetched == 16);
    e.unlink(dir, name("f0000")).unwrap();
    e.rename(dir, name("f0001"), dir, name("moved"), RenameFlags::empty()).unwrap();
    let two = e.lookup(dir, name("f0002")).unwrap().attr.ino;
    e.setattr(two, &SetAttr { perm: Some(0o600), ..SetAttr::default() }, None).unwrap();
    assert!(e.lookup(dir, name("f0000")).is_err() && e.lookup(dir, name("f0001")).is_err());
    assert_eq!(e.lookup(dir, name("f0002")).unwrap().attr.perm, 0o600);
    let moved = e.lookup(dir, name("moved")).unwrap().attr.ino;
    [two, two, moved].into_iter().for_each(|ino| e.forget(ino, 1));
    e.forget(dir, 1);
    e.shutdown().unwrap();
    assert_eq!((e.known_inodes(), store.inner.known_count(), store.inner.stray_forgets()), (1, 0, 0));
}

#[test]
fn lookups_that_take_no_time_are_not_made_ahead() {
    let never = EngineOptions { ahead_from: Duration::from_secs(10), ..eager(64) };
    for (limits, options) in [(SLOW(), never), (Limits::default(), eager(64)), (SLOW(), eager(0))] {
        let (store, e) = engine_with(limits, options);
        let dir = dir_with(&store, &e, "d", 100);
        let before = store.faults.lookups.load(Relaxed);
        assert_eq!(list(&e, dir), 100);
        assert_eq!(list_plus(&e, dir).len(), 100);
        assert_eq!(store.faults.lookups.load(Relaxed) - before, 100);
        assert_eq!(e.stats().ahead.map_or(0, |ahead| ahead.fetched), 0);
    }
}
