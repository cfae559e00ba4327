//! A disk that is full or fails behind a real mount, at each of its calls in turn, as system calls see it: the error comes at
//! the latest from `fsync` or `close`, what was there stays readable, and later calls work; if a sync failed, after the next
//! mount.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use adit_core::engine::EngineOptions;
use adit_mount::Until;
use adit_testkit::Rng;
use adit_testkit::crash::{CrashWorld, Mode as CrashMode};
use adit_testkit::faults::{CallClass, Fault, Faults, each_fault};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, OpenOptions, Unlocked, VaultStore};
use common::{Mounted, fuse_usable};
use rustix::fs::{Mode, OFlags};

const PASSWORD: &str = "faults";
/// Longer than what is kept unshortened here.
const LONG: &str = "a name that is longer than 26 bytes";

/// Content by path; `None` for a directory.
type State = BTreeMap<String, Option<Vec<u8>>>;

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn state_of(root: &Path) -> State {
    fn walk(root: &Path, at: &str, state: &mut State) {
        for entry in fs::read_dir(root.join(at)).unwrap_or_else(|e| panic!("list {at:?}: {e}")) {
            let entry = entry.unwrap_or_else(|e| panic!("list {at:?}: {e}"));
            let path = format!("{at}{}", entry.file_name().display());
            if entry.file_type().expect("type").is_dir() {
                state.insert(path.clone(), None);
                walk(root, &format!("{path}/"), state);
            } else {
                let content = fs::read(entry.path()).unwrap_or_else(|e| panic!("read {path}: {e}"));
                state.insert(path, Some(content));
            }
        }
    }
    let mut state = State::new();
    walk(root, "", &mut state);
    state
}

/// `close(2)`, with what it returns.
fn close(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is given up here, once.
    if unsafe { libc::close(fd.into_raw_fd()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Opens, does it, perhaps syncs, and closes; the first error, wherever it came. Nothing is tried after one but `close`.
fn on_file(path: &Path, sync: bool, work: impl FnOnce(&OwnedFd) -> io::Result<()>) -> io::Result<()> {
    let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::from_raw_mode(0o640))?;
    let done = work(&fd).and_then(|()| if sync { Ok(rustix::fs::fsync(&fd)?) } else { Ok(()) });
    let closed = close(fd);
    done.and(closed)
}

fn write_in_steps(fd: &OwnedFd, offset: u64, bytes: &[u8], step: usize) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let piece = &bytes[done..bytes.len().min(done + step)];
        done += rustix::io::pwrite(fd.as_fd(), piece, offset + done as u64)?;
    }
    Ok(())
}

fn sync_dir(path: &Path) -> io::Result<()> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fsync(fd)?)
}

type Run = Box<dyn Fn(&Path) -> io::Result<()>>;

struct Work {
    what: &'static str,
    /// The one file whose content it changes; nothing where it changes names.
    content_of: Option<&'static str>,
    run: Run,
}

/// What programs do, each with the calls that a careful one checks.
fn works() -> Vec<Work> {
    let mut works = Vec::new();
    let mut add = |what, content_of, run: Run| works.push(Work { what, content_of, run });
    for sync in [true, false] {
        let write = move |name: &'static str, at: u64, len: usize, step: usize| -> Run {
            let bytes = bytes_of(9, len);
            Box::new(move |root| on_file(&root.join(name), sync, |fd| write_in_steps(fd, at, &bytes, step)))
        };
        add("overwrite a part", Some("f"), write("f", 30_000, 20_000, 4096));
        add("append", Some("f"), write("f", 70_000, 50_000, 4096));
        add("write a new file", Some(LONG), write(LONG, 0, 50_000, 50_000));
        add("write much, in sequence", Some("f"), write("f", 0, 1 << 20, 256 << 10));
    }
    for (what, len) in [("cut", 33_000), ("grow", 200_000)] {
        add(
            what,
            Some("f"),
            Box::new(move |root| on_file(&root.join("f"), true, |fd| Ok(rustix::fs::ftruncate(fd, len)?))),
        );
    }
    add("mkdir", None, Box::new(|root| fs::create_dir(root.join("new")).and_then(|()| sync_dir(root))));
    add("rename", None, Box::new(|root| fs::rename(root.join("f"), root.join("g")).and_then(|()| sync_dir(root))));
    add(
        "replace",
        None,
        Box::new(|root| fs::rename(root.join("f"), root.join("dir/f")).and_then(|()| sync_dir(&root.join("dir")))),
    );
    add("unlink", None, Box::new(|root| fs::remove_file(root.join("f")).and_then(|()| sync_dir(root))));
    add("rmdir", None, Box::new(|root| fs::remove_dir(root.join("empty")).and_then(|()| sync_dir(root))));
    works
}

struct Base {
    world: CrashWorld,
    keys: Unlocked,
    before: State,
    /// Whether the kernel keeps what is written and hands it over in its own time.
    write_back: bool,
}

impl Base {
    fn new(cipher_combo: CipherCombo, write_back: bool) -> Base {
        let world = CrashWorld::new(CrashMode::Kill);
        let scrypt = ScryptParams { cost: 1 << 10, block_size: 8 };
        let root = world.dir("vault");
        let options = CreateOptions { cipher_combo, shortening_threshold: 60, scrypt };
        adit_vault::create(&root, PASSWORD, &options).expect("created");
        let keys = adit_vault::unlock(&root, PASSWORD).expect("unlocked");
        let mut base = Base { world, keys, before: State::new(), write_back };
        let mounted = base.mount(&base.world, &Faults::new(), &Faults::new());
        for dir in ["dir", "empty"] {
            fs::create_dir(mounted.path(dir)).expect("mkdir");
        }
        for (seed, file) in ["f", "dir/f"].into_iter().enumerate() {
            fs::write(mounted.path(file), bytes_of(seed as u64, 70_000)).expect("write");
        }
        base.before = state_of(mounted.root());
        mounted.end();
        base
    }

    fn mount(&self, world: &CrashWorld, on_vault: &Faults, on_state: &Faults) -> Mounted<VaultStore> {
        let (masterkey, config) = (&self.keys.masterkey, &self.keys.config);
        let root = Arc::new(on_vault.wrap(world.dir("vault")));
        let state: Arc<dyn adit_core::media::HostDir> = Arc::new(on_state.wrap(world.dir("state")));
        let options =
            OpenOptions { root, state: Some(state), abandoned: Vec::new(), masterkey, config, background: false };
        let (store, _) = VaultStore::open(options).expect("opened");
        let engine = EngineOptions { kernel_writeback: self.write_back, ..EngineOptions::default() };
        Mounted::with(store, engine, Until::default())
    }

    /// What `work` does where nothing fails.
    fn after(&self, work: &Work) -> State {
        let mounted = self.mount(&self.world.fork(), &Faults::new(), &Faults::new());
        (work.run)(mounted.root()).expect("no fault");
        let after = state_of(mounted.root());
        mounted.end();
        after
    }
}

/// After a failure the one file may be on its way, byte by byte; everything else is as it was before or as it was to be.
fn assert_between(before: &State, after: &State, now: &State, content_of: Option<&str>, context: &str) {
    let Some(file) = content_of else {
        let names = || now.keys().collect::<Vec<_>>();
        return assert!(now == before || now == after, "{context}: {:?}", names());
    };
    let others =
        |state: &State| state.iter().filter(|(path, _)| *path != file).map(|(p, c)| (p.clone(), c.clone())).collect();
    let (old_others, now_others): (State, State) = (others(before), others(now));
    assert!(old_others == now_others, "{context}: another file changed");
    let content = |state: &State| state.get(file).cloned().flatten();
    let (old, new, now) = (content(before), content(after).expect("made"), content(now));
    let Some(now) = now else {
        return assert!(old.is_none(), "{context}: {file} is gone");
    };
    let old = old.unwrap_or_default();
    assert!(now.len() >= old.len().min(new.len()), "{context}: {file} has {} bytes", now.len());
    assert!(now.len() <= old.len().max(new.len()), "{context}: {file} has {} bytes", now.len());
    let torn = (0..now.len()).find(|&i| now[i] != old.get(i).copied().unwrap_or(0) && Some(&now[i]) != new.get(i));
    assert_eq!(torn, None, "{context}: a byte of {file} that is neither old nor new");
}

/// With kernel write-back the kernel alone knows the length. Where a cut was made and its answer failed, it goes on with the
/// old one until the next mount, and reads zeros behind the new one: takes them away.
fn without_what_the_kernel_makes_up(now: &mut State, after: &State, file: Option<&str>) {
    let Some(file) = file else { return };
    if let (Some(Some(now)), Some(Some(after))) = (now.get_mut(file), after.get(file))
        && now.get(after.len()..).is_some_and(|behind| behind.iter().all(|&byte| byte == 0))
    {
        now.truncate(after.len());
    }
}

/// One fault, or one that lasts, while `work` is done. Returns whether the caller heard of it.
fn round(
    base: &Base,
    work: &Work,
    after: &State,
    faults: &Faults,
    arm: &dyn Fn(),
    on_state: bool,
    lasts: bool,
) -> bool {
    let (world, none) = (base.world.fork(), Faults::new());
    let (on_vault, on_journal) = if on_state { (&none, faults) } else { (faults, &none) };
    let mut mounted = base.mount(&world, on_vault, on_journal);
    arm();
    let result = (work.run)(mounted.root());
    faults.disarm();
    let fired = faults.fired();
    let context = format!("{}, {fired:?}, {result:?}", work.what);
    if let Err(e) = &result {
        assert!(matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EIO)), "{context}");
        assert!(!fired.is_empty(), "{context}: an error without a fault");
    }
    let check = |root: &Path, later: &[u8], same_mount: bool| {
        let mut now = state_of(root);
        if base.write_back && same_mount && result.is_err() {
            without_what_the_kernel_makes_up(&mut now, after, work.content_of);
        }
        let found = now.remove("later");
        assert!(found.is_none_or(|content| content.as_deref() == Some(later)), "{context}: what came later");
        now.remove("lost+found");
        match &result {
            Ok(()) => assert!(now == *after, "{context}: not done, and nobody was told"),
            Err(_) => assert_between(&base.before, after, &now, work.content_of, &context),
        }
    };
    let later = |root: &Path, bytes: &[u8]| on_file(&root.join("later"), true, |fd| write_in_steps(fd, 0, bytes, 4096));
    match later(mounted.root(), b"later") {
        Ok(()) => check(mounted.root(), b"later", true),
        // A change that can neither go on nor back is ended by the next mount; until then only reading is sure.
        Err(e) => {
            let may_refuse = lasts || fired.iter().any(|f| f.starts_with("Sync"));
            assert!(may_refuse, "{context}: later calls work, but: {e}");
            fs::read(mounted.path("dir/f")).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
    }
    mounted.unmount();
    // What the last flush says was said before.
    let _ = mounted.outcome();
    drop(mounted);
    let mounted = base.mount(&world, &none, &none);
    check(mounted.root(), b"later", false);
    later(mounted.root(), b"still").unwrap_or_else(|e| panic!("{context}: after the next mount: {e}"));
    mounted.end();
    result.is_err()
}

fn everywhere(base: &Base, on_state: bool, lasts: bool) {
    let (mut count, mut told) = (0, 0);
    for work in works() {
        let after = base.after(&work);
        for fault in [Fault::NO_SPACE, Fault::IO, Fault::HALF] {
            let classes: &[CallClass] = match fault {
                Fault::IO if lasts => &CallClass::CHANGING,
                Fault::IO => &CallClass::ALL,
                Fault::NO_SPACE => &CallClass::GROWING,
                _ => &[CallClass::Write],
            };
            let times = if lasts { 1000 } else { 1 };
            count += each_fault(fault, classes, times, |armed| {
                let arm = || armed.arm();
                told += u64::from(round(base, &work, &after, &armed.faults, &arm, on_state, lasts));
            });
        }
    }
    println!("{count} faults, {told} told");
    assert!(count > 40 && told > count / 2, "{count} faults, {told} told");
}

/// The vault that the rounds begin with; none where FUSE cannot be used.
fn base(combo: CipherCombo, write_back: bool) -> Option<Base> {
    fuse_usable("faults behind a mount").then(|| Base::new(combo, write_back))
}

#[test]
fn one_fault_of_the_vault_behind_a_mount() {
    let Some(base) = base(CipherCombo::SivGcm, false) else { return };
    everywhere(&base, false, false);
}

#[test]
fn one_fault_of_the_vault_behind_a_mount_with_kernel_write_back() {
    let Some(base) = base(CipherCombo::SivCtrmac, true) else { return };
    everywhere(&base, false, false);
}

#[test]
fn one_fault_of_the_journal_behind_a_mount() {
    let Some(base) = base(CipherCombo::SivCtrmac, false) else { return };
    everywhere(&base, true, false);
}

#[test]
fn a_vault_that_fails_for_a_while_behind_a_mount() {
    let Some(base) = base(CipherCombo::SivCtrmac, false) else { return };
    everywhere(&base, false, true);
}
