//! A disk that is full or fails, at every call in turn: the error reaches the caller, at the latest at `sync`; old
//! content stays readable, nothing is dropped in silence, and later operations work. So also in `sync_all`, while a store
//! closes, and while the next one recovers what a dead one left.
//!
//! Once the journal cannot vouch for the vault any more (a sync failed, or a change could neither be finished nor taken
//! back), the store takes no more changes, and opening it again recovers everything.

#[path = "support/vault.rs"]
mod vault;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind, RenameFlags, SetAttr};
use adit_core::{ErrorKind, Result};
use adit_testkit::crash::{CrashWorld, Mode, Pattern};
use adit_testkit::faults::{CallClass, Fault, Faults, each_fault};
use adit_testkit::{Rng, scaled, seeds};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, Unlocked, VaultStore};

use vault::{PASSWORD, find, list, name, new, open_with, parent_of, read};

/// Longer than what is kept unshortened at the threshold of these tests.
const LONG: &str = "/long name of a file, longer than 26 bytes";
const LONG_DIR: &str = "/long name of a directory, longer than 26 bytes";

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn write(store: &VaultStore, path: &str, offset: u64, bytes: &[u8]) -> Result<()> {
    let (dir, last) = place(store, path)?;
    let file = match store.lookup(dir, last) {
        Ok(attr) => store.open(attr.ino, Access::Write)?,
        Err(e) if e.is_not_found() => store.create(dir, last, &new(0o640))?.1,
        Err(e) => return Err(e),
    };
    file.write_at(&[(offset, bytes)])?;
    file.sync(false)
}

fn resize(store: &VaultStore, path: &str, len: u64) -> Result<()> {
    let file = store.open(find(store, path)?.ino, Access::Write)?;
    file.set_len(len)?;
    file.sync(false)
}

fn place<'p>(store: &VaultStore, path: &'p str) -> Result<(Ino, adit_core::types::FileName<'p>)> {
    let (parent, last) = path.rsplit_once('/').unwrap();
    Ok((find(store, parent)?.ino, name(last)))
}

fn mkdir(store: &VaultStore, path: &str) -> Result<()> {
    let (dir, last) = place(store, path)?;
    let made = store.mkdir(dir, last, &new(0o750))?;
    store.sync_dir(made.ino)
}

fn rename(store: &VaultStore, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
    let (a, a_name) = place(store, from)?;
    let (b, b_name) = place(store, to)?;
    store.rename(a, a_name, b, b_name, flags)?;
    store.sync_dir(b)
}

/// What is at each path: kind, permissions, and content or target.
type State = BTreeMap<String, (Kind, u16, Vec<u8>)>;

fn state_of(store: &VaultStore) -> State {
    fn walk(store: &VaultStore, dir: Ino, at: &str, state: &mut State) {
        for (entry, kind, _) in list(store, dir).unwrap_or_else(|e| panic!("list {at}: {e}")) {
            let path = format!("{at}/{entry}");
            let attr = store.lookup(dir, name(&entry)).unwrap_or_else(|e| panic!("look up {path}: {e:?}"));
            let content = match kind {
                Kind::File => read(store, attr.ino).unwrap_or_else(|e| panic!("read {path}: {e}")),
                Kind::Symlink => store.readlink(attr.ino).unwrap_or_else(|e| panic!("read link {path}: {e}")),
                _ => Vec::new(),
            };
            state.insert(path.clone(), (kind, attr.perm, content));
            if kind == Kind::Directory {
                walk(store, attr.ino, &path, state);
            }
        }
    }
    let mut state = State::new();
    walk(store, Ino::ROOT, "", &mut state);
    state
}

type Work = Box<dyn Fn(&VaultStore) -> Result<()>>;

fn work(f: impl Fn(&VaultStore) -> Result<()> + 'static) -> Work {
    Box::new(f)
}

/// All that changes a vault, each with the syncs that a careful program adds.
fn works() -> Vec<(String, Work)> {
    let mut works: Vec<(String, Work)> = Vec::new();
    let mut add = |what: &str, f: Work| works.push((what.to_owned(), f));
    for path in ["/new", "/new, with a name longer than 26 bytes", "/dir/new"] {
        add(&format!("create {path}"), work(move |s| write(s, path, 0, &bytes_of(7, 50_000))));
        add(&format!("mkdir {path}"), work(move |s| mkdir(s, path)));
        add(
            &format!("symlink {path}"),
            work(move |s| {
                let (dir, last) = place(s, path)?;
                s.symlink(dir, last, b"target", new(0).caller)?;
                s.sync_dir(dir)
            }),
        );
    }
    for path in ["/f", LONG] {
        add(&format!("overwrite a part of {path}"), work(move |s| write(s, path, 30_000, &bytes_of(8, 20_000))));
        add(&format!("overwrite all of {path}"), work(move |s| write(s, path, 0, &bytes_of(8, 70_000))));
        add(&format!("append to {path}"), work(move |s| write(s, path, 70_000, &bytes_of(8, 90_000))));
        add(&format!("write behind the end of {path}"), work(move |s| write(s, path, 150_000, b"end")));
        add(&format!("cut {path}"), work(move |s| resize(s, path, 33_000)));
        add(&format!("cut {path} at a border"), work(move |s| resize(s, path, 32_768)));
        add(&format!("empty {path}"), work(move |s| resize(s, path, 0)));
        add(&format!("grow {path}"), work(move |s| resize(s, path, 200_000)));
    }
    for path in ["/f", LONG, "/link"] {
        add(
            &format!("unlink {path}"),
            work(move |s| {
                let (dir, last) = place(s, path)?;
                s.unlink(dir, last)?;
                s.sync_dir(dir)
            }),
        );
    }
    add("rmdir", work(|s| s.rmdir(Ino::ROOT, name("empty")).and_then(|()| s.sync_dir(Ino::ROOT))));
    for (from, to) in [
        ("/f", "/g"),
        ("/f", "/dir/g"),
        ("/f", "/dir/f"),
        ("/f", "/long target, longer than 26 bytes ..."),
        ("/f", LONG),
        (LONG, "/f"),
        (LONG, "/g"),
        (LONG, "/another long name, more than 26 bytes"),
        ("/link", "/f"),
        ("/f", "/link"),
        ("/dir", "/empty"),
        ("/dir", "/other"),
        ("/dir", "/another long name, more than 26 bytes"),
        (LONG_DIR, "/empty"),
        (LONG_DIR, "/other"),
        ("/link", LONG),
    ] {
        add(&format!("rename {from} {to}"), work(move |s| rename(s, from, to, RenameFlags::empty())));
    }
    for (a, b) in [("/f", "/dir/f"), ("/f", LONG), (LONG, LONG_DIR), ("/dir", "/link"), (LONG_DIR, "/empty")] {
        add(&format!("exchange {a} {b}"), work(move |s| rename(s, a, b, RenameFlags::EXCHANGE)));
    }
    add(
        "chmod",
        work(|s| {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            s.setattr(find(s, "/f")?.ino, &set).map(drop)
        }),
    );
    works
}

struct Base {
    world: CrashWorld,
    keys: Unlocked,
    before: State,
}

impl Base {
    fn new(cipher_combo: CipherCombo) -> Base {
        let world = CrashWorld::new(Mode::Kill);
        let scrypt = ScryptParams { cost: 1 << 10, block_size: 8 };
        let root = world.dir("vault");
        adit_vault::create(&root, PASSWORD, &CreateOptions { cipher_combo, shortening_threshold: 60, scrypt }).unwrap();
        let keys = adit_vault::unlock(&root, PASSWORD).unwrap();
        let store = open_with(&keys, Arc::new(root), Some(Arc::new(world.dir("state")))).unwrap();
        for path in ["/dir", "/empty", LONG_DIR] {
            mkdir(&store, path).unwrap();
        }
        for (n, path) in ["/f", "/dir/f", LONG].into_iter().enumerate() {
            write(&store, path, 0, &bytes_of(n as u64, 70_000)).unwrap();
        }
        write(&store, &format!("{LONG_DIR}/inside"), 0, b"inside").unwrap();
        store.symlink(Ino::ROOT, name("link"), b"f", new(0).caller).unwrap();
        let before = state_of(&store);
        drop(store);
        Base { world, keys, before }
    }

    fn open(&self, world: &CrashWorld, on_vault: &Faults, on_state: &Faults) -> Result<VaultStore> {
        let (root, state) = (on_vault.wrap(world.dir("vault")), on_state.wrap(world.dir("state")));
        open_with(&self.keys, Arc::new(root), Some(Arc::new(state)))
    }

    /// What `work` does where nothing fails.
    fn after(&self, work: &Work) -> State {
        let store = self.open(&self.world.fork(), &Faults::new(), &Faults::new()).unwrap();
        work(&store).unwrap();
        state_of(&store)
    }

    /// One file may be on the way from old to new, byte by byte; of everything else there is the one or the other
    /// state, the same of both for all that a rename touches.
    ///
    /// `resize_undone`: a change of length that failed was taken back, for only one call failed.
    fn assert_between(&self, after: &State, got: &State, resize_undone: bool) {
        if got == &self.before || got == after {
            return;
        }
        let paths = self.before.keys().chain(after.keys()).chain(got.keys());
        for path in paths {
            let (old, new, now) = (self.before.get(path), after.get(path), got.get(path));
            if now == old && old == new {
                continue;
            }
            let (Some((Kind::File, _, new)), Some((Kind::File, _, now))) = (new, now) else {
                panic!("{path} is {}, neither as before nor as wanted", shown(now));
            };
            let empty = Vec::new();
            let existed = old.is_some();
            let old = old.map_or(&empty, |(_, _, bytes)| bytes);
            assert!(now.len() <= old.len().max(new.len()), "{path}: {} bytes", now.len());
            assert!(now.len() >= old.len().min(new.len()), "{path}: {} bytes", now.len());
            if resize_undone && existed {
                assert!([old.len(), new.len()].contains(&now.len()), "{path}: {} bytes, a length between", now.len());
            }
            let torn = (0..now.len()).find(|&i| {
                let old = old.get(i).copied().unwrap_or(0);
                now[i] != old && Some(&now[i]) != new.get(i)
            });
            assert_eq!(torn, None, "{path}: a byte that is neither old nor new");
        }
    }
}

fn shown(now: Option<&(Kind, u16, Vec<u8>)>) -> String {
    now.map_or("missing".to_owned(), |(kind, perm, bytes)| {
        format!("a {} {perm:o} of {} bytes", kind.as_str(), bytes.len())
    })
}

/// One fault at one place. `times`: how many calls in a row fail.
struct Round<'a> {
    base: &'a Base,
    work: &'a Work,
    after: &'a State,
    on_state: bool,
    times: u64,
    /// The work does nothing but make a file longer, by zeros and what comes behind them.
    grows: bool,
}

impl Round<'_> {
    fn run(&self, faults: &Faults, arm: &dyn Fn()) {
        let world = self.base.world.fork();
        let none = Faults::new();
        let (on_vault, on_state) = if self.on_state { (&none, faults) } else { (faults, &none) };
        let store = self.base.open(&world, on_vault, on_state).unwrap();
        arm();
        let result = (self.work)(&store);
        faults.disarm();
        let fired = faults.fired();
        if let Err(e) = &result {
            assert!(matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Io), "{e:?}");
            assert!(!fired.is_empty(), "an error without a fault: {e:?}");
        }
        let ok = result.is_ok();
        let later = write(&store, "/later", 0, b"later");
        let refuses = match &later {
            Ok(()) => false,
            Err(e) if e.to_string().contains("unmount") => true,
            Err(e) => panic!("later operations work: {e}"),
        };
        let sync_failed = fired.iter().any(|f| f.starts_with("Sync"));
        let expected = sync_failed || self.times > 1;
        assert!(!refuses || expected, "one fault that was no sync does not stop the store");
        // A change that can neither go on nor back is visible until the next mount ends it; all else is whole.
        // A length can be taken back only where the journal can be trusted.
        let undone = self.grows && !expected;
        if !refuses {
            self.check(&store, ok, true, undone);
        }
        drop(store);
        let store = self.base.open(&world, &none, &none).unwrap_or_else(|e| panic!("open again: {e}"));
        self.check(&store, ok, !refuses, undone);
        write(&store, "/later", 0, b"still").unwrap();
    }

    fn check(&self, store: &VaultStore, ok: bool, later: bool, undone: bool) {
        let mut got = state_of(store);
        let found = got.remove("/later");
        assert!(!later || found.is_some(), "what was written later is there");
        if ok {
            for path in self.after.keys().chain(got.keys()) {
                let (now, wanted) = (got.get(path), self.after.get(path));
                assert!(now == wanted, "{path} is {}, not {}, after a success", shown(now), shown(wanted));
            }
        } else {
            got.remove("/lost+found");
            self.base.assert_between(self.after, &got, undone);
        }
    }
}

fn everywhere(combo: CipherCombo, on_state: bool, times: u64) {
    let base = Base::new(combo);
    let mut count = 0;
    let mut failures = Vec::new();
    for (what, work) in works() {
        let after = base.after(&work);
        let grows = what.starts_with("grow ") || what.starts_with("write behind the end ");
        let round = Round { base: &base, work: &work, after: &after, on_state, times, grows };
        for fault in [Fault::NO_SPACE, Fault::IO, Fault::HALF] {
            let classes: &[CallClass] = match fault {
                Fault::IO => &CallClass::ALL,
                Fault::NO_SPACE => &CallClass::GROWING,
                _ => &[CallClass::Write],
            };
            count += each_fault(fault, classes, times, |armed| {
                let ran = catch_unwind(AssertUnwindSafe(|| round.run(&armed.faults, &|| armed.arm())));
                if let Err(panic) = ran {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "?".to_owned());
                    failures.push(format!("{what}, fault {} {:?}: {text}", armed.skip, armed.faults.fired()));
                }
            });
        }
    }
    assert!(failures.is_empty(), "{} of {count} rounds failed:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 100, "{count} faults");
}

#[test]
fn one_fault_of_the_vault() {
    everywhere(CipherCombo::SivGcm, false, 1);
}

#[test]
fn one_fault_of_the_journal() {
    everywhere(CipherCombo::SivCtrmac, true, 1);
}

#[test]
fn a_vault_that_fails_for_a_while() {
    everywhere(CipherCombo::SivCtrmac, false, 1000);
}

#[test]
fn a_journal_that_fails_for_a_while() {
    everywhere(CipherCombo::SivGcm, true, 1000);
}

/// What cannot be read for a moment is neither absent nor damaged.
#[test]
fn a_read_error_is_neither_absence_nor_damage() {
    let base = Base::new(CipherCombo::SivGcm);
    let paths: Vec<(String, Kind)> = base.before.iter().map(|(p, (kind, ..))| (p.clone(), *kind)).collect();
    for fault in [Fault::IO, Fault::Errno(libc::EMFILE), Fault::Errno(libc::EACCES)] {
        let classes = [CallClass::Open, CallClass::Stat, CallClass::List, CallClass::Read];
        let count = each_fault(fault, &classes, 1, |armed| {
            let store = base.open(&base.world.fork(), &armed.faults, &Faults::new()).unwrap();
            armed.arm();
            for (path, kind) in &paths {
                let looked = find(&store, path).and_then(|attr| match kind {
                    Kind::File => read(&store, attr.ino).map(|bytes| assert!(bytes == base.before[path].2)),
                    Kind::Symlink => store.readlink(attr.ino).map(drop),
                    _ => list(&store, attr.ino).map(drop),
                });
                if let Err(e) = looked {
                    let plain =
                        matches!(e.kind(), ErrorKind::Io | ErrorKind::TooManyFiles | ErrorKind::PermissionDenied);
                    assert!(plain, "{path} with {:?}: {e:?}", armed.faults.fired());
                }
            }
            armed.faults.disarm();
            let (dir, last) = parent_of(&store, "/nothing");
            assert!(store.lookup(dir, last).unwrap_err().is_not_found());
            assert_eq!(state_of(&store), base.before);
        });
        assert!(count > 20, "{count}");
    }
}

/// Some of everything, with no sync: durable files are changed, objects come, move and go.
fn unsynced(store: &VaultStore) -> Result<()> {
    let file = store.open(find(store, "/f")?.ino, Access::Write)?;
    file.write_at(&[(30_000, &bytes_of(8, 20_000))])?;
    let file = store.open(find(store, LONG)?.ino, Access::Write)?;
    file.write_at(&[(60_000, &bytes_of(9, 40_000))])?;
    let made = store.mkdir(Ino::ROOT, name("made"), &new(0o700))?.ino;
    let (_, file) = store.create(made, name("new"), &new(0o600))?;
    file.write_at(&[(0, &bytes_of(10, 50_000))])?;
    store.symlink(made, name("to"), b"target", new(0).caller)?;
    rename_only(store, "/dir/f", "/a long name, longer than 26 bytes ...")?;
    store.unlink(Ino::ROOT, name("link"))?;
    store.rmdir(Ino::ROOT, name("empty"))
}

fn rename_only(store: &VaultStore, from: &str, to: &str) -> Result<()> {
    let ((a, a_name), (b, b_name)) = (place(store, from)?, place(store, to)?);
    store.rename(a, a_name, b, b_name, RenameFlags::empty())
}

/// Segments of journals that are there.
fn journals(world: &CrashWorld) -> usize {
    let mut count = 0;
    adit_core::media::HostDir::list(&world.dir("state"), std::path::Path::new(""), &mut |_| count += 1).unwrap();
    count
}

/// The faults of the tests below, each with the calls that it comes at.
const ANY_CALL: [(Fault, &[CallClass]); 3] =
    [(Fault::IO, &CallClass::ALL), (Fault::NO_SPACE, &CallClass::GROWING), (Fault::HALF, &[CallClass::Write])];

/// Runs `test` with one fault, and with a fault that stays, at each call in turn, of the vault and of the journal.
fn at_every_call(mut test: impl FnMut(&Faults, &dyn Fn(), bool)) -> u64 {
    let mut count = 0;
    for (fault, classes) in ANY_CALL {
        for (on_state, times) in [(false, 1), (false, 1000), (true, 1), (true, 1000)] {
            count += each_fault(fault, classes, times, |armed| test(&armed.faults, &|| armed.arm(), on_state));
        }
    }
    count
}

/// A fault in `sync_all`, or while the store closes: all stays readable, the caller of `sync_all` learns of it, what it
/// vouches for is there after a power cut, and the next opening has everything.
#[test]
fn faults_in_a_checkpoint_and_at_the_end() {
    let base = Base::new(CipherCombo::SivGcm);
    let after = base.after(&work(unsynced));
    for closing in [false, true] {
        let count = at_every_call(|faults, arm, on_state| {
            let world = base.world.fork();
            world.set_mode(Mode::Adversarial);
            let none = Faults::new();
            let (on_vault, on_state) = if on_state { (&none, faults) } else { (faults, &none) };
            let store = base.open(&world, on_vault, on_state).unwrap();
            unsynced(&store).unwrap();
            arm();
            if closing {
                drop(store);
                faults.disarm();
                let failed_sync = faults.fired().iter().any(|f| f.starts_with("Sync All"));
                assert!(!failed_sync || journals(&world) > 0, "the journal stays: {:?}", faults.fired());
            } else {
                let synced = store.sync_all();
                faults.disarm();
                let fired = faults.fired();
                let failed_sync = fired.iter().any(|f| f.starts_with("Sync"));
                assert!(synced.is_err() || !failed_sync, "a failed sync is told: {fired:?}");
                if let Err(e) = &synced {
                    assert!(matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Io) && !fired.is_empty(), "{e:?}");
                }
                assert_eq!(state_of(&store), after, "what is open stays readable: {fired:?}");
                let left = world.crash(Pattern::None, &mut Rng::new(1));
                let store = base.open(&left, &none, &none).unwrap_or_else(|e| panic!("after a power cut: {e}"));
                let cut = state_of(&store);
                assert!(synced.is_err() || cut == after, "{fired:?}");
                assert!(base.before[&format!("{LONG_DIR}/inside")] == cut[&format!("{LONG_DIR}/inside")]);
            }
            let store = base.open(&world, &none, &none).unwrap_or_else(|e| panic!("open again: {e}"));
            assert_eq!(state_of(&store), after, "{:?}", faults.fired());
            write(&store, "/later", 0, b"later").unwrap();
        });
        assert!(count > 12, "{count} faults");
    }
}

/// Faults while what a dead process left is recovered: the error reaches the caller, the vault can be read without
/// recovery, and the next opening has what one without faults would have had.
#[test]
fn faults_in_recovery() {
    let base = Base::new(CipherCombo::SivCtrmac);
    let none = Faults::new();
    let seed = seeds(1).next().unwrap();
    println!("ADIT_TEST_SEED={seed}"); // shown if it fails
    let mut rng = Rng::new(seed);
    let calls = {
        let world = base.world.fork();
        let store = base.open(&world, &none, &none).unwrap();
        let before = world.calls();
        unsynced(&store).unwrap();
        before..world.calls()
    };
    for (round, mode) in [Mode::Kill, Mode::Adversarial].into_iter().cycle().take(scaled(4)).enumerate() {
        // Two die anywhere in the work, two at its end.
        let stop = if round % 4 < 2 { rng.below(calls.end - calls.start) } else { u64::MAX };
        let world = base.world.fork();
        world.set_mode(mode);
        let store = base.open(&world, &none, &none).unwrap();
        if stop != u64::MAX {
            world.stop_after(stop);
        }
        let _ = unsynced(&store);
        let left = world.crash(Pattern::Random, &mut rng);
        std::mem::forget(store); // dead
        let whole = state_of(&base.open(&left.fork(), &none, &none).unwrap());
        let count = at_every_call(|faults, arm, on_state| {
            let world = left.fork();
            let (on_vault, on_state) = if on_state { (&none, faults) } else { (faults, &none) };
            arm();
            let opened = base.open(&world, on_vault, on_state);
            faults.disarm();
            let fired = faults.fired();
            match opened {
                Ok(store) => assert_eq!(state_of(&store), whole, "{mode:?} after {stop}: {fired:?}"),
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Io) && !fired.is_empty(), "{e:?}");
                    let store = open_with(&base.keys, Arc::new(world.dir("vault")), None).unwrap();
                    let inside = find(&store, &format!("{LONG_DIR}/inside")).and_then(|a| read(&store, a.ino));
                    assert_eq!(inside.unwrap(), b"inside", "{fired:?}");
                }
            }
            let store = base.open(&world, &none, &none).unwrap_or_else(|e| panic!("open again: {e}"));
            assert_eq!(state_of(&store), whole, "{mode:?} after {stop}: {fired:?}");
            drop(store);
            assert_eq!(journals(&world), 0);
        });
        assert!(count > 20, "{count} faults");
    }
}
