//! Many threads at once on one vault: nothing panics, nothing waits for ever, nothing reads torn, and the tree that is
//! left is sound. Two stores at once on one vault, as two mounts have it, likewise.

#[path = "support/vault.rs"]
mod vault;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind, RenameFlags};
use adit_core::{ErrorKind, FsError};
use adit_testkit::{Rng, scaled};
use adit_vault::VaultStore;
use adit_vault::format::CipherCombo;

use vault::{CHUNK, COMBOS, Seen, Vault, list, name, new, read, tree};

/// Threads that never meet are a failure after this long; on a slow machine the work takes a few seconds.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs `work` and ends the process if it does not come back: a deadlock would hold the test run up for ever.
fn watched<T: Send>(what: &str, work: impl FnOnce() -> T + Send) -> T {
    let (done, waited) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waited.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what}: no end after {LIMIT:?}: a deadlock");
                std::process::abort();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// What may come out where others work on the same names.
fn expected(e: &FsError) -> bool {
    use ErrorKind::*;
    matches!(e.kind(), NotFound | Exists | NotEmpty | NotDirectory | IsDirectory | InvalidInput | Stale)
}

const NAMES: [&str; 6] = [
    "a",
    "b",
    "c",
    "é",
    "a name that is long at a threshold of forty",
    "another name that is long at a threshold of forty",
];
const DIRS: [&str; 3] = ["one", "two", "a directory whose name is long at a threshold of forty"];

/// One random operation among the shared directories.
fn step(store: &VaultStore, rng: &mut Rng) -> Result<(), FsError> {
    let dir = store.lookup(Ino::ROOT, name(rng.pick::<&str>(&DIRS)))?.ino;
    let entry = name(rng.pick::<&str>(&NAMES));
    match rng.below(12) {
        0..3 => {
            let (_, file) = store.create(dir, entry, &new(0o644))?;
            file.write_at(&[(0, &vec![7; rng.below(100_000) as usize])])?;
            if rng.percent(10) { file.sync(false) } else { Ok(()) }
        }
        3 => store.mkdir(dir, entry, &new(0o755)).map(drop),
        4 => store.symlink(dir, entry, b"target", new(0).caller).map(drop),
        5 => store.unlink(dir, entry),
        6 => store.rmdir(dir, entry),
        7..9 => {
            let to = store.lookup(Ino::ROOT, name(rng.pick::<&str>(&DIRS)))?.ino;
            let flags = *rng.pick(&[RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE]);
            store.rename(dir, entry, to, name(rng.pick::<&str>(&NAMES)), flags)
        }
        9 => {
            let attr = store.lookup(dir, entry)?;
            match attr.kind {
                Kind::File => {
                    let file = store.open(attr.ino, Access::Write)?;
                    let offset = rng.below(150_000);
                    file.write_at(&[(offset, &vec![7; 1 + rng.below(70_000) as usize])])?;
                    file.set_len(rng.below(100_000))
                }
                Kind::Symlink => store.readlink(attr.ino).map(drop),
                _ => list(store, attr.ino).map(drop),
            }
        }
        10 => {
            let attr = store.lookup(dir, entry)?;
            if attr.kind == Kind::File {
                let file = store.open(attr.ino, Access::Read)?;
                let mut buf = vec![0; 200_000];
                let n = file.read_at(0, &mut buf)?;
                assert!(buf[..n].iter().all(|&b| b == 7 || b == 0), "foreign bytes");
            }
            store.getattr(attr.ino).map(drop)
        }
        _ => match rng.below(10) {
            0 => store.sync_all(),
            1 => store.sync_dir(dir),
            _ => list(store, dir).map(drop),
        },
    }
}

fn hammer(store: &VaultStore, threads: u64, steps: usize, seed: u64) {
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let mut rng = Rng::new(seed ^ (thread << 40));
                for n in 0..steps {
                    match step(store, &mut rng) {
                        Ok(()) => {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(e) if expected(&e) => {}
                        Err(e) => panic!("ADIT_TEST_SEED={seed}: thread {thread}, step {n}: {e:?}"),
                    }
                }
            });
        }
    });
    assert!(done.into_inner() > threads * steps as u64 / 10, "most steps do something");
}

/// Sound: all that is listed can be read, `check` of the kinds that reading tells.
fn assert_sound(vault: &Vault, seed: u64) {
    for (path, seen) in tree(&vault.open_read_only()) {
        assert!(!matches!(seen, Seen::Unreadable(_)), "ADIT_TEST_SEED={seed}: {path}: {seen:?}");
    }
    let mut files = Vec::new();
    vault::files_below(&vault.path, &mut files);
    let left: Vec<_> = files.iter().filter(|f| f.to_str().unwrap().contains(".adit-")).collect();
    assert!(left.is_empty(), "ADIT_TEST_SEED={seed}: temporaries are left: {left:?}");
}

#[test]
fn eight_threads_on_one_store() {
    for seed in adit_testkit::seeds(2) {
        for (combo, threshold) in [(CipherCombo::SivGcm, 220), (CipherCombo::SivCtrmac, 40)] {
            let vault = Vault::create(combo, threshold);
            let store = vault.open();
            for dir in DIRS {
                store.mkdir(Ino::ROOT, name(dir), &new(0o755)).unwrap();
            }
            watched("eight threads", || hammer(&store, 8, 300, seed));
            let before = tree(&store);
            drop(store);
            assert_sound(&vault, seed);
            assert_eq!(tree(&vault.open()), before, "ADIT_TEST_SEED={seed}: the same after a remount");
        }
    }
}

/// The host gives numbers out again at once, perhaps while the removal that freed one has not returned. What is known by
/// a number must not change under whoever knows it: the kernel would take the new file for the old one.
#[test]
fn numbers_that_come_back_are_other_inodes() {
    use parking_lot::Mutex;
    use std::collections::HashSet;
    let seed = adit_testkit::seeds(1).next().expect("one seed");
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let store = vault.open();
    let known: Mutex<HashSet<Ino>> = Mutex::default();
    let forget = |ino: Ino| {
        known.lock().remove(&ino);
        store.forget(ino);
    };
    watched("makers and removers", || {
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (store, known, forget) = (&store, &known, &forget);
                scope.spawn(move || {
                    let dir = store.mkdir(Ino::ROOT, name(&format!("dir {thread}")), &new(0o755)).unwrap().ino;
                    let mut rng = Rng::new(seed ^ (thread << 40));
                    let mut removed = Vec::new();
                    for n in 0..scaled(400) {
                        let long = if rng.percent(30) { " with a name that is stored under its hash" } else { "" };
                        let entry = format!("file {n}{long}");
                        let (attr, file) = store.create(dir, name(&entry), &new(0o644)).unwrap();
                        assert!(known.lock().insert(attr.ino), "ADIT_TEST_SEED={seed}: {:?} is two files", attr.ino);
                        drop(file);
                        if rng.percent(50) {
                            std::thread::yield_now();
                        }
                        let seen = store.getattr(attr.ino);
                        let seen =
                            seen.unwrap_or_else(|e| panic!("ADIT_TEST_SEED={seed}: {entry} is there, but {e:?}"));
                        assert_eq!((seen.ino, seen.size), (attr.ino, 0));
                        store.unlink(dir, name(&entry)).unwrap();
                        removed.push(attr.ino);
                        if rng.percent(30) {
                            removed.drain(..).for_each(forget);
                        }
                    }
                });
            }
        });
    });
}

/// Whoever looks while names are replaced and exchanged finds one of the files, whole; never none.
#[test]
fn names_that_are_replaced_or_exchanged_are_always_there() {
    let long = "a name that is long at a threshold of forty";
    for (first, second) in [("a", "b"), ("a", long), (long, "another name that is long at a threshold of forty")] {
        let vault = Vault::create(CipherCombo::SivGcm, 40);
        let store = vault.open();
        let make = |entry: &str, byte: u8| {
            let (_, file) = store.create(Ino::ROOT, name(entry), &new(0o644)).unwrap();
            file.write_at(&[(0, &[byte; 100])]).unwrap();
        };
        make(first, b'1');
        make(second, b'2');
        let done = AtomicBool::new(false);
        watched("renames beside lookups", || {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            for entry in [first, second] {
                                let attr = store.lookup(Ino::ROOT, name(entry));
                                let attr = attr.unwrap_or_else(|e| panic!("{entry}: {e:?}"));
                                match read(&store, attr.ino) {
                                    Ok(bytes) => {
                                        let whole = bytes.len() == 100 && bytes.windows(2).all(|w| w[0] == w[1]);
                                        assert!(whole, "{entry}: {bytes:?}");
                                    }
                                    // It was replaced since; the kernel looks the name up again.
                                    Err(e) => assert_eq!(e.kind(), ErrorKind::Stale, "{entry}: {e:?}"),
                                }
                            }
                        }
                    });
                }
                for n in 0..scaled(60) {
                    let exchange = RenameFlags::EXCHANGE;
                    store.rename(Ino::ROOT, name(first), Ino::ROOT, name(second), exchange).unwrap();
                    make("new", b'0' + (n % 10) as u8);
                    let over = if n % 2 == 0 { first } else { second };
                    store.rename(Ino::ROOT, name("new"), Ino::ROOT, name(over), RenameFlags::empty()).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
        });
    }
}

/// Whoever looks while links and files come and go under one name finds one of them, whole, or none: never a folder that is damaged.
#[test]
fn names_that_come_and_go_are_there_or_not() {
    for entry in ["short", "a name that is long at a threshold of forty"] {
        let vault = Vault::create(CipherCombo::SivGcm, 40);
        let store = vault.open();
        let done = AtomicBool::new(false);
        watched("links beside lookups", || {
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            match store.lookup(Ino::ROOT, name(entry)) {
                                Ok(attr) => assert!(matches!(attr.kind, Kind::File | Kind::Symlink)),
                                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{entry}: {e:?}"),
                            }
                        }
                    });
                }
                for _ in 0..scaled(150) {
                    store.symlink(Ino::ROOT, name(entry), b"target", vault::new(0o777).caller).unwrap();
                    store.unlink(Ino::ROOT, name(entry)).unwrap();
                    drop(store.create(Ino::ROOT, name(entry), &new(0o644)).unwrap());
                    store.unlink(Ino::ROOT, name(entry)).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
        });
    }
}

/// Two mounts of one vault. They do not know of each other's locks, so one may meet a state on the way of the other: an
/// entry that has just gone or is not whole yet. It is told so and nothing is lost.
#[test]
fn two_stores_on_one_vault() {
    for seed in adit_testkit::seeds(2) {
        let vault = Vault::create(CipherCombo::SivGcm, 220);
        let first = vault.open();
        let state = tempfile::tempdir().unwrap();
        let on_state = std::sync::Arc::new(adit_media::HostDirectory::open(state.path()).unwrap());
        let second = vault.open_on(vault.root(), Some(on_state)).unwrap();
        // Each works in directories of its own, and reads those of the other.
        let mine = first.mkdir(Ino::ROOT, name("first"), &new(0o755)).unwrap();
        let theirs = second.mkdir(Ino::ROOT, name("second"), &new(0o755)).unwrap();
        let rounds = scaled(60);
        watched("two stores", || {
            std::thread::scope(|scope| {
                for (store, own, other) in [(&first, mine.ino, "second"), (&second, theirs.ino, "first")] {
                    scope.spawn(move || {
                        for n in 0..rounds {
                            let entry = format!("file {n}");
                            let (_, file) = store.create(own, name(&entry), &new(0o644)).unwrap();
                            file.write_at(&[(0, &vec![n as u8; 50_000])]).unwrap();
                            if n % 3 == 0 {
                                let to = format!("moved {n}");
                                store.rename(own, name(&entry), own, name(&to), RenameFlags::empty()).unwrap();
                            }
                            let dir = store.lookup(Ino::ROOT, name(other)).unwrap();
                            for (entry, kind, _) in list(store, dir.ino).unwrap() {
                                assert_eq!(kind, Kind::File);
                                // It may be growing: what is there of it is read.
                                let mut buf = vec![0; 60_000];
                                let opened =
                                    store.lookup(dir.ino, name(&entry)).and_then(|a| store.open(a.ino, Access::Read));
                                match opened.and_then(|file| file.read_at(0, &mut buf)) {
                                    Ok(len) => assert!(buf[..len].windows(2).all(|w| w[0] == w[1]), "{entry} is torn"),
                                    Err(e) => assert!(expected(&e), "ADIT_TEST_SEED={seed}: {entry}: {e:?}"),
                                }
                            }
                        }
                    });
                }
            });
        });
        let both = tree(&first);
        assert_eq!(both, tree(&second));
        assert_eq!(both.len(), 2 + 2 * rounds);
        drop((first, second));
        assert_sound(&vault, seed);
    }
}

/// Each chunk is written as a whole with one byte value, by two threads; four read all the time. What is read is one of
/// the values, never a mixture within a chunk, and never `Corrupt`.
#[test]
fn two_writers_and_four_readers_on_one_file() {
    const CHUNKS: usize = 4;
    for combo in COMBOS {
        let vault = Vault::create(combo, 220);
        let store = vault.open();
        let (attr, file) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
        file.write_at(&[(0, &vec![1; CHUNKS * CHUNK])]).unwrap();
        file.sync(false).unwrap();
        let (end, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        watched("writers and readers", || {
            std::thread::scope(|scope| {
                let readers: Vec<_> = (0..4)
                    .map(|_| {
                        let (store, end, reads) = (&store, &end, &reads);
                        scope.spawn(move || {
                            let mut buf = vec![0; CHUNKS * CHUNK];
                            while !end.load(Ordering::Relaxed) {
                                let file = store.open(attr.ino, Access::Read).unwrap();
                                assert_eq!(file.read_at(0, &mut buf).unwrap(), buf.len());
                                for chunk in buf.chunks(CHUNK) {
                                    assert!(chunk.iter().all(|b| b == &chunk[0]), "a torn chunk");
                                }
                                reads.fetch_add(1, Ordering::Relaxed);
                            }
                        })
                    })
                    .collect();
                let writers: Vec<_> = (0..2u8)
                    .map(|writer| {
                        let store = &store;
                        scope.spawn(move || {
                            let file = store.open(attr.ino, Access::Write).unwrap();
                            let mut rng = Rng::new(writer.into());
                            for n in 0..scaled(150) {
                                let at = rng.below(CHUNKS as u64);
                                let chunk = vec![writer * 100 + (n % 100) as u8; CHUNK];
                                file.write_at(&[(at * CHUNK as u64, &chunk)]).unwrap();
                            }
                        })
                    })
                    .collect();
                let wrote: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
                // Whatever became of the writers, the readers end.
                end.store(true, Ordering::Relaxed);
                wrote.into_iter().chain(readers.into_iter().map(|r| r.join())).for_each(|r| r.unwrap());
            });
        });
        assert!(reads.into_inner() > 4, "they did run side by side");
        let last = read(&store, attr.ino).unwrap();
        drop((file, store));
        let store = vault.open();
        assert!(read(&store, store.lookup(Ino::ROOT, name("f")).unwrap().ino).unwrap() == last);
    }
}
