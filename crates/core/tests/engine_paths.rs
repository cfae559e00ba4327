//! Whole paths through the engine agree with a walk of the store by names, whatever moves and goes, and ask it no more than they have to.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use adit_core::ErrorKind;
use adit_core::engine::{Engine, Lookup};
use adit_core::store::Store;
use adit_core::types::*;
use adit_testkit::Rng;
use adit_testkit::model::Limits;
use support::engines::{LONG, ROOT, engine_with};
use support::{FaultyStore, name, new_node, options};

fn slow(shared: bool) -> Limits {
    Limits { slow_names: true, shared, ..Limits::default() }
}

/// The inode at a path, or why there is none.
fn resolved(e: &Engine, path: &str) -> Result<Option<Ino>, ErrorKind> {
    match e.resolve(path.as_bytes()) {
        Ok(Lookup::Found(entry)) => {
            e.forget(entry.attr.ino, 1);
            Ok(Some(entry.attr.ino))
        }
        Ok(Lookup::Absent { .. }) => Ok(None),
        Err(error) => Err(error.kind()),
    }
}

/// The same from the store itself, name by name. What that makes known is forgotten again.
fn walked(store: &FaultyStore, e: &Engine, path: &str) -> Result<Option<Ino>, ErrorKind> {
    let (mut at, mut kind, mut seen) = (ROOT, Kind::Directory, Vec::new());
    let mut walk = || {
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if kind != Kind::Directory {
                return Err(ErrorKind::NotDirectory);
            }
            match store.inner.lookup(at, name(part)) {
                Ok(attr) => (at, kind) = (attr.ino, attr.kind),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error.kind()),
            }
            seen.push(at);
        }
        Ok(Some(at))
    };
    let found = walk();
    seen.into_iter().filter(|ino| !e.is_known(*ino)).for_each(|ino| store.inner.forget(ino));
    found
}

/// Makes the directories of a path.
fn make(e: &Engine, path: &str) {
    let mut at = ROOT;
    for part in path.split('/') {
        let found = match e.lookup_or_absent(at, name(part)).unwrap() {
            Lookup::Found(found) => found,
            Lookup::Absent { .. } => e.mkdir(at, name(part), &new_node()).unwrap(),
        };
        e.forget(at, u64::from(at != ROOT));
        at = found.attr.ino;
    }
    e.forget(at, 1);
}

#[test]
fn a_path_that_was_asked_for_costs_the_store_nothing_and_absences_neither() {
    let (store, e) = engine_with(slow(true), options(LONG, 64 << 20));
    make(&e, "a/b/c/d");
    let asked = |path: &str| {
        let before = store.faults.lookups.load(Relaxed) + store.faults.getattrs.load(Relaxed);
        let found = resolved(&e, path);
        (found, store.faults.lookups.load(Relaxed) + store.faults.getattrs.load(Relaxed) - before)
    };
    let found = asked("a/b/c/d").0.unwrap();
    assert!(found.is_some());
    // Nobody has a reference to any of them.
    assert_eq!(asked("a/b/c/d"), (Ok(found), 1), "the last one is held by nobody");
    assert_eq!(asked("/a//b/c/none").0, Ok(None));
    assert_eq!(asked("/a//b/c/none"), (Ok(None), 0));
    assert_eq!(asked("a/none/c/none").0, Ok(None));
    assert_eq!(asked("a/none/c/none"), (Ok(None), 0));
    assert_eq!(asked("").0, Ok(Some(ROOT)));
    assert_eq!(asked("///"), (Ok(Some(ROOT)), 0));
    let stats = e.stats().paths.unwrap();
    assert!(stats.directories.hits >= 2 && stats.worth.is_on, "{stats:?}");
    for path in ["a/../b", "a/./b", ".."] {
        assert_eq!(resolved(&e, path), Err(ErrorKind::InvalidInput), "{path}");
    }
    assert_eq!(resolved(&e, &"n".repeat(300)), Err(ErrorKind::NameTooLong));
    e.shutdown().unwrap();
    // The store's own creations above made some known as well.
    assert_eq!((e.known_inodes(), store.inner.stray_forgets()), (1, 0));
}

#[test]
fn random_changes_never_leave_a_path_that_is_wrong() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    for seed in 0..60 {
        let (store, e) = engine_with(slow(seed % 2 == 0), options(LONG, 64 << 20));
        let mut rng = Rng::new(seed);
        let path = |rng: &mut Rng| {
            let names: Vec<&str> = (0..1 + rng.below(4)).map(|_| NAMES[rng.below(4) as usize]).collect();
            names.join("/")
        };
        let mut known = Vec::new();
        for step in 0..600 {
            let (one, other) = (path(&mut rng), path(&mut rng));
            // Directory and name of each, if there is such a directory.
            let mut place = |path: &str| {
                let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
                match e.resolve(dir.as_bytes()) {
                    Ok(Lookup::Found(dir)) => {
                        known.push(dir.attr.ino);
                        Some((dir.attr.ino, last.to_owned()))
                    }
                    _ => None,
                }
            };
            let (from, to) = (place(&one), place(&other));
            if let (Some((dir, n)), Some((new_dir, m))) = (&from, &to) {
                let flags = if rng.below(3) == 0 { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                match rng.below(6) {
                    0 | 1 => drop(e.mkdir(*dir, name(n), &new_node()).map(|made| known.push(made.attr.ino))),
                    2 => drop(e.mknod(*dir, name(n), Kind::File, 0, &new_node()).map(|made| known.push(made.attr.ino))),
                    3 => drop(e.rmdir(*dir, name(n))),
                    4 => drop(e.unlink(*dir, name(n))),
                    _ => drop(e.rename(*dir, name(n), *new_dir, name(m), flags)),
                }
            }
            if rng.below(4) == 0 {
                known.drain(..).for_each(|ino| e.forget(ino, u64::from(ino != ROOT)));
            }
            for path in [&one, &other, &path(&mut rng)] {
                assert_eq!(resolved(&e, path), walked(&store, &e, path), "seed {seed}, step {step}: {path}");
            }
        }
        known.drain(..).for_each(|ino| e.forget(ino, u64::from(ino != ROOT)));
        e.shutdown().unwrap();
        assert_eq!(
            (e.known_inodes(), store.inner.known_count(), store.inner.stray_forgets()),
            (1, 0, 0),
            "seed {seed}"
        );
        assert_eq!(store.faults.overlaps.load(Relaxed), 0);
    }
}

#[test]
fn readers_beside_a_writer_see_each_rename_once_it_returned() {
    let (_, e) = engine_with(slow(true), options(LONG, 64 << 20));
    make(&e, "one/deep/dir");
    make(&e, "two");
    let inner = resolved(&e, "one/deep/dir").unwrap().unwrap();
    // Even while nothing moves; which of the two it is in, is its half's last bit.
    let (turn, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (e, turn, is_over) = (e.clone(), turn.clone(), is_over.clone());
            scope.spawn(move || {
                let mut checked = 0_u64;
                while !is_over.load(SeqCst) || checked < 100 {
                    let before = turn.load(SeqCst);
                    let found = [resolved(&e, "one/deep/dir"), resolved(&e, "two/deep/dir")];
                    if before % 2 == 0 && turn.load(SeqCst) == before {
                        let (here, there) = (Ok(Some(inner)), Ok(None));
                        let expected = if before / 2 % 2 == 0 { [here, there] } else { [there, here] };
                        assert_eq!(found, expected, "turn {before}");
                        checked += 1;
                    }
                }
            });
        }
        let [one, two] = ["one", "two"].map(|dir| e.lookup(ROOT, name(dir)).unwrap().attr.ino);
        for n in 0..3000 {
            let (from, to) = if n % 2 == 0 { (one, two) } else { (two, one) };
            turn.fetch_add(1, SeqCst);
            e.rename(from, name("deep"), to, name("deep"), RenameFlags::empty()).unwrap();
            turn.fetch_add(1, SeqCst);
            std::thread::yield_now();
        }
        is_over.store(true, SeqCst);
    });
}

#[test]
fn what_others_change_shows_when_the_names_expire() {
    let ttl = Duration::from_millis(200);
    let (store, e) = engine_with(slow(true), options(ttl, 64 << 20));
    make(&e, "a/b/c");
    assert!(resolved(&e, "a/b/c/d").unwrap().is_none());
    let a = store.inner.lookup(ROOT, name("a")).unwrap().ino;
    store.inner.rename(a, name("b"), a, name("other"), RenameFlags::empty()).unwrap();
    let patience = std::time::Instant::now() + Duration::from_secs(60);
    while resolved(&e, "a/b/c").unwrap().is_some() {
        assert!(std::time::Instant::now() < patience, "it is believed for longer than was said");
        std::thread::yield_now();
    }
    // Told, it shows at once.
    let (store, e) = engine_with(slow(true), options(LONG, 64 << 20));
    make(&e, "a/b/c");
    assert!(resolved(&e, "a/b/c/d").unwrap().is_none());
    let a = store.inner.lookup(ROOT, name("a")).unwrap().ino;
    store.inner.rename(a, name("b"), a, name("other"), RenameFlags::empty()).unwrap();
    e.entry_changed_below(a, name("b"));
    assert_eq!(resolved(&e, "a/b/c"), Ok(None));
}

#[test]
fn paths_that_nobody_asks_for_again_switch_it_off_and_few_directories_are_held() {
    let (_, e) = engine_with(slow(false), options(LONG, 64 << 20));
    for n in 0..600 {
        make(&e, &format!("d{n}/in"));
        e.resolve(format!("d{n}/in").as_bytes())
            .map(|found| match found {
                Lookup::Found(found) => e.forget(found.attr.ino, 1),
                Lookup::Absent { .. } => panic!("it is there"),
            })
            .unwrap();
        assert!(e.known_inodes() <= 1 + 256 + 2, "{n}: {}", e.known_inodes());
    }
    let stats = e.stats().paths.unwrap();
    assert_eq!((stats.worth.is_on, stats.worth.rate_percent, stats.worth.switched_off), (false, Some(0), 1));
    assert!(stats.directories.bytes <= stats.directories.max_bytes);
    assert_eq!(stats.directories.hits, 0);
    // Off, it answers all the same.
    assert!(resolved(&e, "d7/in").unwrap().is_some());
    assert_eq!(e.stats().paths.unwrap().directories, stats.directories);
}

#[test]
fn a_directory_that_is_gone_is_not_held() {
    let (store, e) = engine_with(slow(false), options(LONG, 64 << 20));
    for path in ["a", "b", "c", "d"] {
        make(&e, path);
        // Holds it.
        assert_eq!(resolved(&e, &format!("{path}/none")), Ok(None));
    }
    assert_eq!(e.known_inodes(), 5);
    let none = RenameFlags::empty();
    e.rename(ROOT, name("a"), ROOT, name("b"), none).unwrap();
    assert_eq!((e.known_inodes(), store.inner.known_count()), (4, 3), "what was replaced");
    e.rename(ROOT, name("b"), ROOT, name("c"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(e.known_inodes(), 4, "both are there");
    make(&e, "c/full");
    e.rename(ROOT, name("d"), ROOT, name("c"), none).unwrap_err();
    assert_eq!(resolved(&e, "c/full/none"), Ok(None));
    e.rmdir(ROOT, name("d")).unwrap();
    assert_eq!(e.known_inodes(), 4, "b, c and c/full");
    e.shutdown().unwrap();
    assert_eq!((e.known_inodes(), store.inner.stray_forgets()), (1, 0));
}

#[test]
fn a_store_with_fast_names_has_no_table_and_the_same_answers() {
    let (_, e) = engine_with(Limits::default(), options(LONG, 64 << 20));
    make(&e, "a/b");
    assert!(resolved(&e, "a/b").unwrap().is_some());
    assert_eq!(resolved(&e, "a/c"), Ok(None));
    assert!(e.stats().paths.is_none() && e.stats().ahead.is_none());
}
