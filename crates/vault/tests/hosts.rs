//! Vaults on hosts that are unlike ext4: those that hide removed files that are open, move no folders, number by the path, sync
//! no file without a name, or give an ordinary user directories that he may not read.

#[path = "support/vault.rs"]
mod vault;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use adit_core::media::{HostDir, HostEntry, HostFile, NewFile, SyncTarget};
use adit_core::store::{Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, Ino, Kind, RenameFlags, SetAttr, StatFs};
use adit_media::HostDirectory;
use adit_vault::format::CipherCombo;
use adit_vault::{VaultStore, check};

use vault::{Vault, find, list, name, new, read};

/// Stored under its hash, at the threshold of these vaults.
const LONG: &str = "a name that is so long that it is stored under its hash";
const OTHER_LONG: &str = "another name that is so long that it is stored under its hash";

#[derive(Clone, Copy, Default)]
struct Habits {
    /// Removed files that are open get another name in their folder, and go when they are closed.
    hides: bool,
    /// Folders that are there from the beginning are not renamed.
    keeps_folders: bool,
    /// The number of a file is one of its path; an open file has the one of the path at which it was opened.
    numbers_paths: bool,
    /// A file without a name is not found by a sync.
    syncs_names_only: bool,
}

/// What is open, by the number of the file: how often, and where it lies hidden.
type Open = Arc<Mutex<HashMap<u64, (usize, Option<PathBuf>)>>>;

/// A folder of this machine with such habits.
struct Host {
    inner: Arc<HostDirectory>,
    habits: Habits,
    open: Open,
    kept: HashSet<PathBuf>,
}

struct OpenFile {
    inner: Box<dyn HostFile>,
    root: Arc<HostDirectory>,
    habits: Habits,
    open: Open,
    ino: u64,
    path: PathBuf,
}

fn number(path: &Path) -> u64 {
    path.to_str().unwrap().bytes().fold(7, |n: u64, byte| n.wrapping_mul(1_000_003) ^ u64::from(byte)) >> 12
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl Host {
    fn new(path: &Path, habits: Habits) -> Host {
        let mut kept = HashSet::new();
        let mut waiting = vec![path.to_owned()];
        while let Some(dir) = waiting.pop() {
            for entry in std::fs::read_dir(&dir).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    kept.insert(entry.path().strip_prefix(path).unwrap().to_owned());
                    waiting.push(entry.path());
                }
            }
        }
        Host { inner: Arc::new(HostDirectory::open(path).unwrap()), habits, open: Open::default(), kept }
    }

    fn file(&self, path: &Path, inner: Box<dyn HostFile>) -> io::Result<Box<dyn HostFile>> {
        let ino = inner.stat()?.ino.0;
        self.open.lock().unwrap().entry(ino).or_default().0 += 1;
        let (root, open, path) = (self.inner.clone(), self.open.clone(), path.to_owned());
        Ok(Box::new(OpenFile { inner, root, habits: self.habits, open, ino, path }))
    }

    fn attr(&self, path: &Path, attr: Attr) -> Attr {
        let by_path = self.habits.numbers_paths && attr.kind == Kind::File;
        Attr { ino: if by_path { Ino(number(path)) } else { attr.ino }, ..attr }
    }
}

impl HostDir for Host {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        self.file(path, self.inner.open(path, access)?)
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        self.file(path, self.inner.publish(path, new)?)
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        self.inner.stat(path).map(|attr| self.attr(path, attr))
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.inner.set_attr(path, set)
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        self.inner.list(path, &mut |e| {
            let at = path.join(std::str::from_utf8(e.name).unwrap());
            let by_path = self.habits.numbers_paths && e.kind == Some(Kind::File);
            sink(HostEntry { ino: if by_path { number(&at) } else { e.ino }, ..e });
        })
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        self.inner.make_dir(path, perm, owner)
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        if self.habits.hides && kind == Kind::File {
            let ino = self.inner.stat(path)?.ino.0;
            if let Some((_, hidden)) = self.open.lock().unwrap().get_mut(&ino) {
                let to = path.with_file_name(format!(".fuse_hidden{ino:016x}"));
                self.inner.rename(path, &to, RenameFlags::empty())?;
                *hidden = Some(to);
                return Ok(());
            }
        }
        self.inner.remove(path, kind)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        if self.habits.keeps_folders && self.kept.contains(from) {
            return Err(errno(libc::EXDEV));
        }
        if self.habits.hides {
            // What lies hidden in a folder moves with it.
            for (_, hidden) in self.open.lock().unwrap().values_mut() {
                if let Some(rest) = hidden.as_ref().and_then(|at| at.strip_prefix(from).ok()) {
                    *hidden = Some(to.join(rest));
                }
            }
        }
        self.inner.rename(from, to, flags)
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        self.inner.sync(target)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.inner.statfs()
    }
}

impl HostFile for OpenFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Attr> {
        let attr = self.inner.stat()?;
        Ok(if self.habits.numbers_paths { Attr { ino: Ino(number(&self.path)), ..attr } } else { attr })
    }

    fn set_attr(&self, set: &SetAttr) -> io::Result<()> {
        self.inner.set_attr(set)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        if self.habits.syncs_names_only && self.inner.stat()?.nlink == 0 {
            return Err(errno(libc::ENOENT));
        }
        self.inner.sync(data_only)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap();
        let Some((count, hidden)) = open.get_mut(&self.ino) else { return };
        *count -= 1;
        if *count == 0 {
            if let Some(hidden) = hidden.take() {
                self.root.remove(&hidden, Kind::File).unwrap();
            }
            open.remove(&self.ino);
        }
    }
}

fn open(vault: &Vault, habits: Habits) -> VaultStore {
    vault.open_on(Arc::new(Host::new(&vault.path, habits)), Some(vault.state())).unwrap()
}

fn create(store: &VaultStore, dir: Ino, file: &str, content: &[u8]) -> Arc<dyn StoreFile> {
    let (_, made) = store.create(dir, name(file), &new(0o644)).unwrap();
    made.write_at(&[(0, content)]).unwrap();
    made
}

fn rename(store: &VaultStore, from: &str, to: &str) -> adit_core::Result<()> {
    store.rename(Ino::ROOT, name(from), Ino::ROOT, name(to), RenameFlags::empty())
}

fn names(store: &VaultStore) -> Vec<String> {
    list(store, Ino::ROOT).unwrap().into_iter().map(|(name, ..)| name).collect()
}

/// Names below the vault's folder that are no vault's.
fn strange_names(vault: &Vault) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![vault.path.clone()]);
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            if entry.file_name().to_str().unwrap().starts_with('.') {
                found.push(entry.path());
            }
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    found
}

fn assert_sound(vault: &Vault) {
    let keys = adit_vault::unlock(&*vault.root(), vault::PASSWORD).unwrap();
    let report = check::check(&*vault.root(), &keys, check::Options::default(), &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let strange = strange_names(vault);
    assert!(strange.is_empty(), "{strange:?}");
}

/// Whether nothing is there that is no vault's.
fn is_clean(vault: &Vault) -> bool {
    strange_names(vault).is_empty()
}

#[test]
fn what_a_host_hides_until_it_is_closed_is_gone_then() {
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let hides = Habits { hides: true, ..Habits::default() };
    let store = open(&vault, hides);
    for file in ["s", LONG] {
        let removed = create(&store, Ino::ROOT, file, b"removed");
        store.unlink(Ino::ROOT, name(file)).unwrap();
        let replaced = create(&store, Ino::ROOT, file, b"replaced");
        create(&store, Ino::ROOT, "n", b"newer");
        rename(&store, "n", file).unwrap();
        assert_eq!(read(&store, find(&store, &format!("/{file}")).unwrap().ino).unwrap(), b"newer");
        let mut content = [0; 8];
        assert_eq!((removed.read_at(0, &mut content).unwrap(), &content[..7]), (7, &b"removed"[..]));
        assert_eq!((replaced.read_at(0, &mut content).unwrap(), &content), (8, b"replaced"));
        assert!(!is_clean(&vault), "the host keeps them");
        drop((removed, replaced));
    }
    drop(store);
    assert_sound(&vault);
    let store = open(&vault, hides);
    assert_eq!(names(&store).len(), 2);
}

#[test]
fn a_directory_in_which_a_removed_file_is_open_is_removed() {
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let store = open(&vault, Habits { hides: true, ..Habits::default() });
    let mut open = Vec::new();
    for file in ["s", LONG] {
        let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap();
        open.push(create(&store, dir.ino, file, b"removed"));
        store.unlink(dir.ino, name(file)).unwrap();
        if file == "s" {
            store.rmdir(Ino::ROOT, name("d")).unwrap();
        } else {
            // That folder is the host's to remove.
            assert!(store.rmdir(Ino::ROOT, name("d")).is_err());
            open.clear();
            store.rmdir(Ino::ROOT, name("d")).unwrap();
        }
        assert_eq!(names(&store), [""; 0]);
    }
    drop(store);
    assert_sound(&vault);
}

#[test]
fn what_is_open_beyond_the_end_of_a_store_is_removed_by_the_next() {
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let host: Arc<dyn HostDir> = Arc::new(Host::new(&vault.path, Habits { hides: true, ..Habits::default() }));
    let store = vault.open_on(host.clone(), Some(vault.state())).unwrap();
    drop(create(&store, Ino::ROOT, LONG, b"removed"));
    // Another process's, for one.
    let folder = store.path_of(find(&store, &format!("/{LONG}")).unwrap().ino).unwrap();
    let theirs = host.open(Path::new(&folder), Access::Read).unwrap();
    store.unlink(Ino::ROOT, name(LONG)).unwrap();
    drop(store);
    assert!(!is_clean(&vault));
    drop(theirs);
    drop(vault.open());
    assert_sound(&vault);
    assert_eq!(std::fs::read_dir(&vault.state_path).unwrap().count(), 0, "it is told once");
}

#[test]
fn folders_that_the_host_does_not_move_are_made_anew() {
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let store = vault.open();
    for dir in ["dir", "empty", "replaced", "removed"] {
        store.mkdir(Ino::ROOT, name(dir), &new(0o755)).unwrap();
    }
    let inside = find(&store, "/dir").unwrap();
    create(&store, inside.ino, "in", b"inside");
    let caller = new(0).caller;
    store.symlink(Ino::ROOT, name("link"), b"target", caller).unwrap();
    store.symlink(Ino::ROOT, name("gone"), b"another", caller).unwrap();
    create(&store, Ino::ROOT, LONG, b"long");
    create(&store, Ino::ROOT, OTHER_LONG, b"other");
    create(&store, Ino::ROOT, "short", b"short");
    drop(store);

    let store = open(&vault, Habits { keeps_folders: true, ..Habits::default() });
    store.rename(Ino::ROOT, name("link"), Ino::ROOT, name("gone"), RenameFlags::EXCHANGE).unwrap();
    rename(&store, "link", "link2").unwrap();
    rename(&store, LONG, &LONG.to_uppercase()).unwrap();
    rename(&store, OTHER_LONG, "now short").unwrap();
    rename(&store, "dir", "dir2").unwrap();
    rename(&store, "empty", "replaced").unwrap();
    store.rename(Ino::ROOT, name("dir2"), Ino::ROOT, name("short"), RenameFlags::EXCHANGE).unwrap();
    store.unlink(Ino::ROOT, name("gone")).unwrap();
    store.rmdir(Ino::ROOT, name("removed")).unwrap();
    let long = LONG.to_uppercase();
    assert_eq!(names(&store), [long.as_str(), "dir2", "link2", "now short", "replaced", "short"]);
    let content = |path: &str| read(&store, find(&store, path).unwrap().ino).unwrap();
    assert_eq!(content(&format!("/{long}")), b"long");
    assert_eq!(content("/now short"), b"other");
    assert_eq!(content("/dir2"), b"short");
    assert_eq!(content("/short/in"), b"inside");
    assert_eq!(store.readlink(find(&store, "/link2").unwrap().ino).unwrap(), b"another");
    drop(store);
    assert_sound(&vault);
}

#[test]
fn a_file_that_its_host_numbers_anew_is_the_same() {
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let store = open(&vault, Habits { numbers_paths: true, ..Habits::default() });
    let file = create(&store, Ino::ROOT, "a", b"one");
    let ino = find(&store, "/a").unwrap().ino;
    for to in ["b", LONG, "c", "d"] {
        let from = names(&store).remove(0);
        rename(&store, &from, to).unwrap();
        assert_eq!(find(&store, &format!("/{to}")).unwrap().ino, ino, "{to}");
        file.write_at(&[(0, to.as_bytes())]).unwrap();
        let again = store.open(ino, Access::Write).unwrap();
        again.write_at(&[(100, b"!")]).unwrap();
        assert_eq!(file.len().unwrap(), 101, "{to}");
        assert_eq!(&read(&store, ino).unwrap()[..to.len()], to.as_bytes());
    }
    // The number that one has left is the next one's.
    create(&store, Ino::ROOT, "a", b"two");
    rename(&store, "a", "d").unwrap();
    assert_eq!(read(&store, find(&store, "/d").unwrap().ino).unwrap(), b"two");
    drop((file, store));
    assert_sound(&vault);
}

#[test]
fn a_file_without_a_name_that_the_host_does_not_sync_is_no_failure_of_the_disk() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = open(&vault, Habits { syncs_names_only: true, ..Habits::default() });
    let file = create(&store, Ino::ROOT, "a", b"hello");
    store.unlink(Ino::ROOT, name("a")).unwrap();
    file.write_at(&[(5, b"more")]).unwrap();
    file.sync(false).unwrap();
    create(&store, Ino::ROOT, "other", b"x").sync(false).unwrap();
    store.sync_all().unwrap();
}

/// Runs `work` as a user who owns the vault and has no privilege.
fn as_ordinary_user(vault: &Vault, work: impl FnOnce() + Send) {
    const USER: u32 = 65_534;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let mut all = vec![vault.path.parent().unwrap().to_owned()];
        while let Some(path) = all.pop() {
            std::os::unix::fs::lchown(&path, Some(USER), Some(USER)).unwrap();
            if path.is_dir() {
                all.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            }
        }
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            if is_root {
                // SAFETY: takes numbers; the bare call changes this thread alone, which ends with the test.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresgid, USER, USER, USER) }, 0);
                // SAFETY: likewise.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, USER, USER, USER) }, 0);
            }
            work();
        });
        worker.join().unwrap();
    });
}

#[test]
fn permission_is_no_state_of_the_disk() {
    for perm in [0o300, 0o100, 0o000] {
        let vault = Vault::create(CipherCombo::SivGcm, 40);
        as_ordinary_user(&vault, || {
            let store = vault.open();
            let dir = store.mkdir(Ino::ROOT, name("box"), &new(0o700)).unwrap();
            let file = create(&store, dir.ino, "a", b"hello");
            create(&store, dir.ino, LONG, b"long");
            let content = vault.path.join(store.path_of(dir.ino).unwrap());
            let set = |perm| store.setattr(dir.ino, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
            set(perm);
            let moved = store.rename(dir.ino, name("a"), dir.ino, name("b"), RenameFlags::empty());
            assert_eq!(moved.is_ok(), perm == 0o300, "{perm:o}");
            file.write_at(&[(5, b" more")]).unwrap();
            let _ = (file.sync(false), store.sync_dir(dir.ino));
            // Whatever that said, all else goes on.
            create(&store, Ino::ROOT, "other", b"x").sync(false).unwrap();
            store.sync_all().unwrap();
            file.write_at(&[(0, b"HELLO")]).unwrap();
            drop(file);
            // It dies here: nobody closes its journal.
            std::mem::forget(store);
            let mode = || std::fs::metadata(&content).unwrap().mode() & 0o777;
            assert_eq!(mode(), u32::from(perm));

            let store = vault.open();
            assert_eq!(mode(), u32::from(perm), "recovery sets it back");
            create(&store, Ino::ROOT, "later", b"x");
            std::fs::set_permissions(&content, std::fs::Permissions::from_mode(0o700)).unwrap();
            let name = if perm == 0o300 { "/box/b" } else { "/box/a" };
            assert_eq!(read(&store, find(&store, name).unwrap().ino).unwrap(), b"HELLO more");
        });
        assert_sound(&vault);
    }
}
