//! The index of an engine follows it: what was done before a question is in its answer, whatever goes on beside it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use adit_core::engine::{Engine, EngineOptions, Fh, SinkFlow};
use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, FileName, Ino, Kind, RenameFlags, SetAttr};
use adit_index::live::{Facts, Found, Kept, KeptOptions, Lies, LiveId, Making, View};
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::{Asked, Hooked, Rng, seeds};
use parking_lot::{Condvar, Mutex};

struct Place {
    engine: Arc<Engine>,
    store: MemoryStore,
    dir: tempfile::TempDir,
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn new_node() -> NewNode {
    NewNode { perm: 0o755, umask: 0, caller: adit_testkit::own_caller() }
}

impl Place {
    fn new(limits: Limits) -> Place {
        Place::with(limits, Duration::from_secs(60))
    }

    fn with(limits: Limits, ttl: Duration) -> Place {
        Place::hooked(limits, ttl, |_| {})
    }

    /// With somebody who hears what the engine asks the store for, and may have it wait.
    fn hooked(limits: Limits, ttl: Duration, hook: impl Fn(Asked<'_>) + Send + Sync + 'static) -> Place {
        let options = EngineOptions { attr_ttl: ttl, entry_ttl: ttl, negative_ttl: ttl, ..EngineOptions::default() };
        let store = MemoryStore::new(limits);
        let engine = Engine::new(Arc::new(Hooked::new(store.clone(), hook)), options);
        Place { engine, store, dir: tempfile::tempdir().unwrap() }
    }

    fn kept(&self, changes_bytes: u64) -> Kept {
        let scratch_dir = self.dir.path().to_owned();
        let making = Making { lies: Lies::OnDisk(scratch_dir), memory_bytes: 4 << 20 };
        Kept::start(&self.engine, KeptOptions { changes_bytes, ..KeptOptions::new(making) }).unwrap()
    }

    fn mkdir(&self, dir: Ino, text: &str) -> Ino {
        self.engine.mkdir(dir, name(text), &new_node()).unwrap().attr.ino
    }

    fn file(&self, dir: Ino, text: &str, len: usize) -> Ino {
        let (entry, opened) = self.engine.create(dir, name(text), &new_node(), Access::Write).unwrap();
        if len > 0 {
            self.engine.write(opened.fh, 0, &vec![7; len]).unwrap();
        }
        self.engine.flush(opened.fh).unwrap();
        self.engine.release(opened.fh).unwrap();
        entry.attr.ino
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) {
        self.engine.rename(from.0, name(from.1), to.0, name(to.1), flags).unwrap();
    }

    /// What is there, by asking the engine for each directory.
    fn paths(&self) -> BTreeMap<Vec<u8>, Facts> {
        let (root, _) = self.engine.getattr(Ino::ROOT, None).unwrap();
        let mut found = BTreeMap::from([(Vec::new(), Facts::from(&root))]);
        self.paths_in(Ino::ROOT, b"", &mut found);
        found
    }

    fn paths_in(&self, dir: Ino, path: &[u8], found: &mut BTreeMap<Vec<u8>, Facts>) {
        let fh: Fh = self.engine.opendir(dir).unwrap();
        let mut below = Vec::new();
        self.engine
            .read_dir_plus(fh, 0, &mut |entry, known| {
                let known = known.unwrap();
                let name = entry.name.as_bytes();
                let path = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
                found.insert(path.clone(), Facts::from(&known.attr));
                below.push((known.attr.ino, known.attr.kind, path));
                SinkFlow::More
            })
            .unwrap();
        self.engine.releasedir(fh).unwrap();
        for (ino, kind, path) in below {
            if kind == Kind::Directory {
                self.paths_in(ino, &path, found);
            }
            self.engine.forget(ino, 1);
        }
    }
}

fn view(kept: &Kept) -> View {
    kept.view(&mut |_| ControlFlow::Continue(())).unwrap()
}

fn shown(view: &View) -> BTreeMap<Vec<u8>, Facts> {
    let mut found = BTreeMap::new();
    view.walk(LiveId::ROOT, &mut |_, path, facts| {
        assert!(found.insert(path.to_vec(), *facts).is_none());
        Ok(ControlFlow::Continue(()))
    })
    .unwrap();
    found
}

fn find(view: &View, path: &str) -> Option<Facts> {
    match view.resolve(LiveId::ROOT, path.as_bytes()).unwrap() {
        Found::Entry(id) => Some(view.facts(id).unwrap()),
        _ => None,
    }
}

#[test]
fn a_change_is_in_the_next_answer() {
    let place = Place::new(Limits { buffer_writes: true, ..Limits::default() });
    let (a, b) = (place.mkdir(Ino::ROOT, "a"), place.mkdir(Ino::ROOT, "b"));
    for n in 0..3000 {
        place.file(a, &format!("{n}"), 0);
    }
    let kept = place.kept(32 << 20);
    assert!(find(&view(&kept), "a/777").is_some());

    let f = place.file(b, "new", 10);
    assert_eq!(find(&view(&kept), "b/new").unwrap().size, 10);
    place.engine.setattr(f, &SetAttr { size: Some(5), perm: Some(0o600), ..SetAttr::default() }, None).unwrap();
    let facts = find(&view(&kept), "b/new").unwrap();
    assert_eq!((facts.size, facts.perm), (5, 0o600));
    // What is written and not yet stored counts.
    let opened = place.engine.open(f, Access::Write, false).unwrap();
    place.engine.write(opened.fh, 5, b"abc").unwrap();
    place.engine.write(opened.fh, 8, b"de").unwrap();
    assert_eq!(find(&view(&kept), "b/new").unwrap().size, 10);
    place.engine.release(opened.fh).unwrap();
    assert_eq!(find(&view(&kept), "b/new").unwrap(), Facts::from(&place.engine.getattr(f, None).unwrap().0));

    place.engine.link(f, a, name("hard")).unwrap();
    place.engine.symlink(b, name("soft"), b"../a", adit_testkit::own_caller()).unwrap();
    drop(view(&kept));
    let before = kept.state();
    place.rename((Ino::ROOT, "a"), (b, "moved"), RenameFlags::empty());
    let seen = view(&kept);
    assert!(find(&seen, "a").is_none() && find(&seen, "b/moved/2999").is_some());
    assert!(kept.state().changed <= before.changed + 4, "the entries of a directory that moved are not touched");
    assert_eq!(seen.of_key(f.0).unwrap().len(), 2);
    place.mkdir(Ino::ROOT, "other");
    place.rename((Ino::ROOT, "other"), (b, "moved"), RenameFlags::EXCHANGE);
    let seen = view(&kept);
    assert!(find(&seen, "other/2999").is_some() && find(&seen, "b/moved/2999").is_none());
    place.engine.unlink(b, name("new")).unwrap();
    assert!(find(&view(&kept), "b/new").is_none());
    assert_eq!(shown(&view(&kept)), place.paths());
    assert_eq!(kept.state().walks, 1, "it was never walked again");
    kept.stop();
}

#[test]
fn it_agrees_with_the_store_after_random_changes() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let (buffer_writes, stable_cookies, slow_names) = (seed % 2 == 0, seed % 3 == 0, seed % 5 < 2);
        let limits = Limits { buffer_writes, stable_cookies, slow_names, ..Limits::default() };
        let place = Place::new(limits);
        let mut dirs = vec![Ino::ROOT];
        // So small that a new base is made all the time.
        let kept = place.kept([2_000, 32 << 20][(seed % 2) as usize]);
        for step in 0..400 {
            let (dir, other) = (*rng.pick(&dirs), *rng.pick(&dirs));
            let (one, two) = (format!("n{}", rng.below(12)), format!("n{}", rng.below(12)));
            match rng.below(10) {
                0..3 => {
                    if let Ok((entry, opened)) = place.engine.create(dir, name(&one), &new_node(), Access::Write) {
                        let _ = place.engine.write(opened.fh, rng.below(100), b"some bytes");
                        place.engine.release(opened.fh).unwrap();
                        place.engine.forget(entry.attr.ino, 1);
                    }
                }
                3 | 4 => dirs.extend(place.engine.mkdir(dir, name(&one), &new_node()).map(|entry| entry.attr.ino)),
                5 | 6 => {
                    let flags = *rng.pick(&[RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::NOREPLACE]);
                    let _ = place.engine.rename(dir, name(&one), other, name(&two), flags);
                }
                7 => drop(place.engine.unlink(dir, name(&one))),
                8 => drop(place.engine.rmdir(dir, name(&one))),
                _ => {
                    if let Ok(entry) = place.engine.lookup(dir, name(&one)) {
                        let perm = Some(rng.below(0o1000) as u16);
                        let _ = place.engine.setattr(entry.attr.ino, &SetAttr { perm, ..SetAttr::default() }, None);
                        place.engine.forget(entry.attr.ino, 1);
                    }
                }
            }
            if step % 20 == 0 {
                assert_eq!(shown(&view(&kept)), place.paths());
            }
        }
        assert_eq!(shown(&view(&kept)), place.paths());
        if seed % 2 == 0 {
            let began = std::time::Instant::now();
            for n in 0.. {
                if kept.state().folds > 0 {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(60), "no new base is made");
                let ino = place.file(Ino::ROOT, &format!("more {n}"), 0);
                place.engine.forget(ino, 1);
                drop(view(&kept));
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(shown(&view(&kept)), place.paths());
        }
        drop(kept);
        // Nothing stays known for its sake.
        dirs.iter().skip(1).for_each(|dir| place.engine.forget(*dir, 1));
        place.engine.shutdown().unwrap();
        assert_eq!((place.engine.known_inodes(), place.store.stray_forgets()), (1, 0));
    }
}

#[test]
fn readers_see_a_directory_at_one_name_while_it_moves() {
    let place = Arc::new(Place::new(Limits::default()));
    let (a, b) = (place.mkdir(Ino::ROOT, "a"), place.mkdir(Ino::ROOT, "b"));
    let moving = place.mkdir(a, "moving");
    for n in 0..500 {
        place.file(moving, &format!("{n}"), 0);
    }
    let kept = Arc::new(place.kept(32 << 20));
    drop(view(&kept));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..2000 {
                let (from, to) = if n % 2 == 0 { (a, b) } else { (b, a) };
                place.rename((from, "moving"), (to, "moving"), RenameFlags::empty());
            }
            is_over.store(true, Relaxed);
        });
        scope.spawn(|| {
            for n in 0.. {
                if is_over.load(Relaxed) {
                    break;
                }
                place.file(moving, &format!("more {n}"), 0);
                let seen = view(&kept);
                let is_at = |dir: &str| find(&seen, &format!("{dir}/moving/more {n}")).is_some();
                assert!(is_at("a") != is_at("b"));
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let seen = view(&kept);
                    let at = ["a", "b"].map(|dir| find(&seen, &format!("{dir}/moving/499")).is_some());
                    assert!(at[0] != at[1], "seen at {at:?}");
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
        }
    });
    assert_eq!(shown(&view(&kept)), place.paths());
    assert_eq!(kept.state().walks, 1);
}

#[test]
fn whoever_waits_can_give_up_and_the_end_of_the_mount_ends_it() {
    let place = Place::new(Limits::default());
    place.file(Ino::ROOT, "f", 0);
    let kept = place.kept(32 << 20);
    drop(view(&kept));
    let making = Making { lies: Lies::OnDisk("/".into()), memory_bytes: 0 };
    assert!(Kept::start(&place.engine, KeptOptions::new(making)).is_err(), "there is one already");
    kept.walk_again();
    assert!(find(&view(&kept), "f").is_some());
    assert_eq!(kept.state().walks, 2);
    place.engine.shutdown().unwrap();
    let e = kept.view(&mut |_| ControlFlow::Continue(())).map(drop).unwrap_err();
    assert_eq!(e.kind(), adit_core::ErrorKind::Interrupted);
    kept.stop();
}

#[test]
fn what_others_changed_shows_after_another_walk() {
    let place = Place::with(Limits { shared: true, ..Limits::default() }, Duration::ZERO);
    let kept = place.kept(32 << 20);
    drop(view(&kept));
    // Past the engine.
    place.store.mkdir(Ino::ROOT, name("other"), &new_node()).unwrap();
    assert!(find(&view(&kept), "other").is_none());
    kept.walk_again();
    assert!(find(&view(&kept), "other").is_some());
    assert_eq!(kept.state().walks, 2);
}

#[test]
fn what_others_changed_shows_once_somebody_looked_there() {
    let place = Place::with(Limits { shared: true, ..Limits::default() }, Duration::ZERO);
    let dir = place.mkdir(Ino::ROOT, "dir");
    let old = place.file(dir, "old", 3);
    place.file(dir, "stays", 0);
    let kept = place.kept(32 << 20);
    assert!(find(&view(&kept), "dir/old").is_some());
    // Past the engine.
    let store = &place.store;
    let other = store.mkdir(dir, name("other"), &new_node()).unwrap().ino;
    store.create(other, name("below"), &new_node()).unwrap();
    store.rename(dir, name("old"), Ino::ROOT, name("moved"), RenameFlags::empty()).unwrap();
    assert!(find(&view(&kept), "dir/other").is_none(), "nobody looked");
    // Names alone are listed: what is new, with all that is in it, and what is gone.
    let fh = place.engine.opendir(dir).unwrap();
    place.engine.read_dir(fh, 0, &mut |_| SinkFlow::More).unwrap();
    place.engine.releasedir(fh).unwrap();
    let seen = view(&kept);
    assert!(find(&seen, "dir/other/below").is_some() && find(&seen, "dir/old").is_none());
    assert!(find(&seen, "moved").is_none(), "nobody looked there");
    drop(seen);
    // One name is asked for.
    assert_eq!(place.engine.lookup(Ino::ROOT, name("moved")).unwrap().attr.ino, old);
    assert_eq!(find(&view(&kept), "moved").unwrap().size, 3);
    store.open(old, Access::Write).unwrap().write_at(&[(0, &[1; 9])]).unwrap();
    place.engine.lookup(Ino::ROOT, name("moved")).unwrap();
    assert_eq!(find(&view(&kept), "moved").unwrap().size, 9);
    store.unlink(Ino::ROOT, name("moved")).unwrap();
    assert!(place.engine.lookup(Ino::ROOT, name("moved")).is_err());
    assert!(find(&view(&kept), "moved").is_none());
    assert_eq!(kept.state().walks, 1, "it was never walked again");
    // What was seen, and is known, is not asked for again.
    let batches = kept.state().generation;
    assert_eq!(place.paths(), shown(&view(&kept)));
    drop(view(&kept));
    assert_eq!(kept.state().generation, batches);
    kept.stop();
}

/// Which directories a walk has listed, and whether it may go on.
#[derive(Default)]
struct Walk {
    listed: Vec<Ino>,
    goes_on: bool,
}

#[test]
fn what_others_changed_during_the_first_walk_shows_once_somebody_looked_there() {
    let patience = Duration::from_secs(60);
    for lists in [false, true] {
        let walk = Arc::new((Mutex::new(Walk::default()), Condvar::new()));
        let of_store = walk.clone();
        let place = Place::hooked(Limits { shared: true, ..Limits::default() }, Duration::ZERO, move |call| {
            let is_walk = std::thread::current().name() == Some("adit-index");
            let Asked::Listing(dir) = call else { return };
            if !is_walk || dir == Ino::ROOT {
                return;
            }
            let mut walk = of_store.0.lock();
            walk.listed.push(dir);
            of_store.1.notify_all();
            // One of the two is in the index by then, and the other one is not.
            while walk.listed.len() == 2 && !walk.goes_on {
                assert!(!of_store.1.wait_for(&mut walk, patience).timed_out(), "nobody lets the walk go on");
            }
        });
        let dirs = ["a", "b"].map(|dir| (dir, place.mkdir(Ino::ROOT, dir)));
        for (_, dir) in dirs {
            ["gone", "from", "stays"].iter().for_each(|file| _ = place.file(dir, file, 0));
        }
        let kept = place.kept(32 << 20);
        let walked = {
            let mut held = walk.0.lock();
            while held.listed.len() < 2 {
                assert!(!walk.1.wait_for(&mut held, patience).timed_out(), "nothing is walked");
            }
            held.listed[0]
        };
        // Past the engine.
        let store = &place.store;
        store.create(walked, name("other"), &new_node()).unwrap();
        store.unlink(walked, name("gone")).unwrap();
        store.rename(walked, name("from"), walked, name("to"), RenameFlags::empty()).unwrap();
        let new = store.mkdir(walked, name("new"), &new_node()).unwrap().ino;
        store.create(new, name("below"), &new_node()).unwrap();
        if lists {
            let fh = place.engine.opendir(walked).unwrap();
            place.engine.read_dir(fh, 0, &mut |_| SinkFlow::More).unwrap();
            place.engine.releasedir(fh).unwrap();
        } else {
            for asked in ["other", "gone", "from", "to", "new"] {
                _ = place.engine.lookup(walked, name(asked));
            }
        }
        walk.0.lock().goes_on = true;
        walk.1.notify_all();
        let seen = view(&kept);
        let (path, _) = dirs.into_iter().find(|(_, dir)| *dir == walked).unwrap();
        let is_there = |below: &str| find(&seen, &format!("{path}/{below}")).is_some();
        assert_eq!(["stays", "other", "to", "new/below"].map(is_there), [true; 4], "listed: {lists}");
        assert_eq!(["gone", "from"].map(is_there), [false; 2], "listed: {lists}");
        assert_eq!(kept.state().walks, 1);
        kept.stop();
    }
}

#[test]
fn an_index_that_would_take_too_much_memory_is_refused_in_words() {
    let place = Place::new(Limits::default());
    (0..1000).for_each(|n| _ = place.file(Ino::ROOT, &format!("{n}"), 0));
    let making = Making { lies: Lies::OnDisk(place.dir.path().to_owned()), memory_bytes: 4 << 20 };
    let kept = Kept::start(&place.engine, KeptOptions { base_bytes: 100, ..KeptOptions::new(making) }).unwrap();
    let e = kept.view(&mut |_| ControlFlow::Continue(())).map(drop).unwrap_err();
    assert!(e.kind() == adit_core::ErrorKind::Exhausted && e.to_string().contains("--memory"), "{e}");
    assert!(!kept.state().is_ready);
}
