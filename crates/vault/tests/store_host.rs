//! What the store makes on the host: which names, whose objects they are, and how long others wait for it.

#[path = "support/vault.rs"]
mod vault;

use std::io;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use adit_core::media::HostFile;
use adit_core::store::{NewNode, Store, StoreFile};
use adit_core::types::{Access, Attr, Caller, Ino, RenameFlags, SetAttr, StatFs};
use adit_core::{ErrorKind, Result};
use adit_media::HostDirectory;
use adit_testkit::Through;
use adit_testkit::crash::{CrashWorld, Mode};
use adit_testkit::faults::{CallClass, Fault, Faults};
use adit_vault::check::{Options, ProblemKind, check, repair};
use adit_vault::format::names::{DirId, NameCipher, shorten};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, VaultStore, unlock};

use vault::{PASSWORD, THRESHOLDS, Vault, files_below, find, list, name, new, open_with, read};

/// 255 bytes, of which normalising makes 510.
const LENGTHENED: &str = "\u{958}";

#[test]
fn a_name_that_normalising_makes_too_long_is_refused_when_it_is_made() {
    for threshold in THRESHOLDS {
        let vault = Vault::create(CipherCombo::SivGcm, threshold);
        let store = vault.open();
        let long = LENGTHENED.repeat(85);
        assert_eq!(long.len(), 255);
        let long = name(&long);
        let caller = new(0).caller;
        store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
        let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap();
        for (parent, made) in [Ino::ROOT, dir.ino].iter().flat_map(|&dir| {
            [
                (dir, store.create(dir, long, &new(0o644)).map(drop)),
                (dir, store.mkdir(dir, long, &new(0o755)).map(drop)),
                (dir, store.symlink(dir, long, b"target", caller).map(drop)),
                (dir, store.rename(Ino::ROOT, name("f"), dir, long, RenameFlags::empty())),
                (dir, store.rename(Ino::ROOT, name("f"), dir, long, RenameFlags::NOREPLACE)),
            ]
        }) {
            assert_eq!(made.unwrap_err().kind(), ErrorKind::NameTooLong, "in {parent:?}");
        }
        // What is not there is not found, however long its name.
        let moved = store.rename(Ino::ROOT, long, Ino::ROOT, name("g"), RenameFlags::empty());
        assert_eq!(moved.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(store.lookup(Ino::ROOT, long).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(list(&store, Ino::ROOT).unwrap().len(), 2);
        store.rmdir(Ino::ROOT, name("d")).unwrap();

        // The longest that is allowed is shown, and can be removed.
        let longest = LENGTHENED.repeat(42);
        let made = store.mkdir(Ino::ROOT, name(&longest), &new(0o755)).unwrap();
        let shown = list(&store, Ino::ROOT).unwrap();
        assert_eq!(shown.iter().map(|(n, ..)| n.len()).max(), Some(252));
        assert!(shown.iter().any(|(.., ino)| *ino == made.ino));
        store.rmdir(Ino::ROOT, name(&longest)).unwrap();
    }
}

#[test]
fn a_name_that_another_client_made_too_long_is_told_by_check() {
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let store = vault.open();
    store.create(Ino::ROOT, name("a name that is stored under its hash"), &new(0o644)).unwrap();
    drop(store);
    let keys = unlock(&*vault.root(), PASSWORD).unwrap();
    let long = "\u{e4}".repeat(140);
    let names = NameCipher::new(&keys.masterkey);
    let full = names.encrypt_name(&long, &DirId::root()).unwrap();
    let content = vault.path.join(names.dir_hash_path(&DirId::root()));
    let entries = std::fs::read_dir(&content).unwrap().map(|e| e.unwrap().path());
    let folder = entries.into_iter().find(|p| p.extension().is_some_and(|e| e == "c9s")).unwrap();
    std::fs::write(folder.join("name.c9s"), &full).unwrap();
    std::fs::rename(&folder, content.join(shorten(&full))).unwrap();

    assert!(list(&vault.open(), Ino::ROOT).unwrap().is_empty());
    let report = check(&*vault.root(), &keys, Options::default(), &mut |_| {}).unwrap();
    let [problem] = &report.problems[..] else { panic!("{report:?}") };
    assert_eq!(problem.kind, ProblemKind::TooLongName);
    assert!(problem.detail.contains("280 bytes") && problem.detail.contains("255"), "{}", problem.detail);
    repair(&*vault.root(), &keys, Options::default(), &mut |_| {}).unwrap();
    let store = vault.open();
    let lost = find(&store, "/lost+found").unwrap();
    assert_eq!(list(&store, lost.ino).unwrap().len(), 1, "a repair makes it visible");
}

/// What the host does not give is not damage.
#[test]
fn a_name_that_the_host_does_not_read_is_left_out_for_that() {
    let vault = Vault::create(CipherCombo::SivGcm, 40);
    let faults = Faults::new();
    let root = faults.wrap(HostDirectory::open(&vault.path).unwrap());
    let store = vault.open_on(Arc::new(root), Some(vault.state())).unwrap();
    store.create(Ino::ROOT, name("a name that is stored under its hash"), &new(0o644)).unwrap();
    store.create(Ino::ROOT, name("short"), &new(0o644)).unwrap();
    let listed = || list(&store, Ino::ROOT).unwrap().len();
    assert_eq!((listed(), store.left_out(Ino::ROOT).len()), (2, 0));
    faults.arm(Fault::IO, &[CallClass::Open], 0, u64::MAX);
    assert_eq!(listed(), 1);
    let kinds: Vec<_> = store.left_out(Ino::ROOT).iter().map(|e| e.kind()).collect();
    assert_eq!(kinds, [ErrorKind::Io]);
    faults.disarm();
    assert_eq!((listed(), store.left_out(Ino::ROOT).len()), (2, 0));
}

/// A user whom this process may act for: root for anyone, others for themselves.
fn user(uid: u32) -> Caller {
    let own = adit_testkit::own_caller();
    if own.uid == 0 { Caller { uid, gid: uid } } else { own }
}

/// All that is below `dir`, and it.
fn all_below(dir: &Path, found: &mut Vec<PathBuf>) {
    found.push(dir.to_owned());
    if dir.symlink_metadata().unwrap().is_dir() {
        std::fs::read_dir(dir).unwrap().for_each(|e| all_below(&e.unwrap().path(), found));
    }
}

/// Asserts that everything of the vault is `owner`'s.
fn assert_owned(vault: &Vault, owner: Caller, after: &str) {
    let mut found = Vec::new();
    all_below(&vault.path, &mut found);
    for path in found {
        let meta = path.symlink_metadata().unwrap();
        let shown = path.strip_prefix(&vault.path).unwrap().display();
        assert_eq!((meta.uid(), meta.gid()), (owner.uid, owner.gid), "{shown} after {after}");
    }
}

/// A vault of this user.
fn vault_of(owner: Caller) -> Vault {
    let vault = Vault::create(CipherCombo::SivGcm, 60);
    let mut all = Vec::new();
    all_below(&vault.path, &mut all);
    all.iter().for_each(|path| lchown(path, Some(owner.uid), Some(owner.gid)).unwrap());
    vault
}

#[test]
fn everything_of_an_entry_is_its_makers_also_on_a_mount_by_root() {
    let owner = user(1000);
    let vault = vault_of(owner);
    let store = vault.open();
    let new = |perm| NewNode { perm, umask: 0, caller: owner };
    let long = |n: u32| format!("a name that is stored under its hash, number {n}");
    let move_to = |from: &str, to: &str| {
        store.rename(Ino::ROOT, name(from), Ino::ROOT, name(to), RenameFlags::empty()).unwrap();
        assert_owned(&vault, owner, &format!("{from} was moved to {to}"));
    };
    for (n, short) in [(1, "file"), (2, "dir"), (3, "link")] {
        for entry in [short, &long(n)] {
            match short {
                "file" => store.create(Ino::ROOT, name(entry), &new(0o600)).map(drop).unwrap(),
                "dir" => store.mkdir(Ino::ROOT, name(entry), &new(0o500)).map(drop).unwrap(),
                _ => store.symlink(Ino::ROOT, name(entry), b"target", owner).map(drop).unwrap(),
            }
            assert_owned(&vault, owner, entry);
        }
        move_to(&long(n), &long(n + 10));
        move_to(short, &long(n + 20));
        move_to(&long(n + 20), &format!("{short} again"));
    }
}

#[test]
fn what_no_entry_owns_is_the_vaults_owners() {
    let (owner, other) = (user(1000), user(2000));
    let vault = vault_of(owner);
    let store = vault.open();
    let new = NewNode { perm: 0o755, umask: 0, caller: other };
    for n in 0..8 {
        store.mkdir(Ino::ROOT, name(&format!("dir {n}")), &new).unwrap();
    }
    for prefix in std::fs::read_dir(vault.path.join("d")).unwrap() {
        let prefix = prefix.unwrap();
        assert_eq!(prefix.metadata().unwrap().uid(), owner.uid);
    }
    let content = store.path_of(find(&store, "/dir 3").unwrap().ino).unwrap();
    let content = vault.path.join(content);
    assert_eq!(content.metadata().unwrap().uid(), other.uid);
    assert_eq!(content.join("dirid.c9r").metadata().unwrap().uid(), other.uid);
}

#[test]
fn what_a_repair_makes_is_the_vaults_owners() {
    let owner = user(1000);
    let vault = vault_of(owner);
    let store = vault.open();
    let new = NewNode { perm: 0o755, umask: 0, caller: owner };
    let dirs = ["gone", "no id"].map(|n| store.mkdir(Ino::ROOT, name(n), &new).unwrap().ino);
    let [gone, no_id] = dirs.map(|ino| vault.path.join(store.path_of(ino).unwrap()));
    drop(store);
    std::fs::remove_dir_all(gone).unwrap();
    std::fs::remove_file(no_id.join("dirid.c9r")).unwrap();
    let keys = unlock(&*vault.root(), PASSWORD).unwrap();
    repair(&*vault.root(), &keys, Options::default(), &mut |_| {}).unwrap();
    assert!(no_id.join("dirid.c9r").exists());
    assert!(find(&vault.open(), "/lost+found").is_ok());
    assert_owned(&vault, owner, "a repair");
}

/// What a host with a disk of any size is asked to do. What is written to a file beyond its first bytes takes a moment and is
/// not kept; it fails when the test has seen enough.
#[derive(Default)]
struct Disk {
    /// Bytes written behind [`KEPT_LEN_BYTES`].
    written: AtomicU64,
    /// Fails all that is written there from now on.
    full: AtomicBool,
    begun: (Mutex<bool>, Condvar),
}

const KEPT_LEN_BYTES: u64 = 1 << 20;
/// By then all others have got through, or never will.
const WRITTEN_MAX_BYTES: u64 = 3 << 30;

struct EndlessFile {
    inner: Box<dyn HostFile>,
    disk: Arc<Disk>,
    /// The length that it is said to have, if that is beyond what is kept.
    len: AtomicU64,
}

impl EndlessFile {
    fn wrap(inner: Box<dyn HostFile>, disk: &Arc<Disk>) -> Box<dyn HostFile> {
        Box::new(EndlessFile { inner, disk: disk.clone(), len: AtomicU64::new(0) })
    }
}

impl HostFile for EndlessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset < KEPT_LEN_BYTES {
            return self.inner.write_at(offset, bytes);
        }
        *self.disk.begun.0.lock().unwrap() = true;
        self.disk.begun.1.notify_all();
        std::thread::sleep(Duration::from_millis(1)); // a slow disk; nothing waits for it to have passed
        let written = self.disk.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if written > WRITTEN_MAX_BYTES || self.disk.full.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.len.fetch_max(offset + bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.len.store(if len > KEPT_LEN_BYTES { len } else { 0 }, Ordering::Relaxed);
        self.inner.set_len(len.min(KEPT_LEN_BYTES))
    }

    fn stat(&self) -> io::Result<Attr> {
        let attr = self.inner.stat()?;
        Ok(Attr { size: attr.size.max(self.len.load(Ordering::Relaxed)), ..attr })
    }

    fn set_attr(&self, set: &SetAttr) -> io::Result<()> {
        self.inner.set_attr(set)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.inner.sync(data_only)
    }
}

/// A store on a host with a disk of any size.
fn endless() -> (VaultStore, Arc<Disk>) {
    let world = CrashWorld::new(Mode::Kill);
    let scrypt = ScryptParams { cost: 1 << 2, block_size: 8 };
    let options = CreateOptions { cipher_combo: CipherCombo::SivGcm, shortening_threshold: 220, scrypt };
    adit_vault::create(&world.dir("vault"), PASSWORD, &options).unwrap();
    let keys = unlock(&world.dir("vault"), PASSWORD).unwrap();
    let disk = Arc::new(Disk::default());
    let on_disk = disk.clone();
    let root = Through::files(world.dir("vault"), move |file| EndlessFile::wrap(file, &on_disk))
        .with_space(|space| StatFs { blocks_free: 1 << 40, ..space });
    (open_with(&keys, Arc::new(root), Some(Arc::new(world.dir("state")))).unwrap(), disk)
}

#[test]
fn an_extension_is_given_up_when_the_mount_ends() {
    let (store, disk) = endless();
    let (attr, file) = store.create(Ino::ROOT, name("endless"), &new(0o644)).unwrap();
    let content = vec![7; 100_000];
    file.write_at(&[(0, &content)]).unwrap();
    std::thread::scope(|scope| {
        let extending = scope.spawn(|| file.set_len(1 << 40));
        let mut begun = disk.begun.0.lock().unwrap();
        while !*begun {
            begun = disk.begun.1.wait(begun).unwrap();
        }
        drop(begun);
        store.wind_up();
        assert_eq!(extending.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
    });
    assert_eq!(read(&store, attr.ino).unwrap(), content);
}

/// Extends a file without end by `extend`, while others make files and make all durable.
fn others_go_on_during(extend: impl Fn(&dyn StoreFile) -> Result<()> + Sync) {
    let (store, disk) = endless();
    let (attr, file) = store.create(Ino::ROOT, name("endless"), &new(0o644)).unwrap();
    let content = vec![7; 100_000];
    file.write_at(&[(0, &content)]).unwrap();
    let made_durable = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let extending = scope.spawn(|| extend(&*file));
        let mut begun = disk.begun.0.lock().unwrap();
        while !*begun {
            begun = disk.begun.1.wait(begun).unwrap();
        }
        drop(begun);
        let checkpoints = scope.spawn(|| {
            while !disk.full.load(Ordering::Relaxed) {
                store.sync_all().unwrap();
                made_durable.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Files are made before, while and after a checkpoint waits for its turn.
        for n in 0.. {
            store.create(Ino::ROOT, name(&format!("file {n}")), &new(0o644)).unwrap();
            if made_durable.load(Ordering::Relaxed) >= 3 {
                break;
            }
        }
        let written = disk.written.load(Ordering::Relaxed);
        disk.full.store(true, Ordering::Relaxed);
        assert!(written < WRITTEN_MAX_BYTES, "the others waited for all of the extension");
        checkpoints.join().unwrap();
        assert_eq!(extending.join().unwrap().unwrap_err().kind(), ErrorKind::NoSpace);
    });
    assert_eq!(file.len().unwrap(), content.len() as u64, "the old length is restored, steps back as it may be");
    assert_eq!(read(&store, attr.ino).unwrap(), content);
}

#[test]
fn others_go_on_while_a_file_is_extended() {
    others_go_on_during(|file| file.set_len(1 << 40));
}

#[test]
fn others_go_on_while_a_gap_is_filled() {
    others_go_on_during(|file| file.write_at(&[(1 << 40, b"end")]));
}

#[test]
fn a_long_gap_and_what_is_on_both_sides_of_it_are_written() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = vault.open();
    let (attr, file) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
    let far = 40 << 20;
    file.write_at(&[(3, b"start"), (far, b"far"), (far + 100_000, b"farther")]).unwrap();
    file.set_len(far + (20 << 20)).unwrap();
    let mut wanted = vec![0; far as usize + (20 << 20)];
    wanted[3..8].copy_from_slice(b"start");
    wanted[far as usize..far as usize + 3].copy_from_slice(b"far");
    wanted[far as usize + 100_000..far as usize + 100_007].copy_from_slice(b"farther");
    assert!(read(&store, attr.ino).unwrap() == wanted);
    drop((file, store));
    let store = vault.open();
    assert!(read(&store, find(&store, "/f").unwrap().ino).unwrap() == wanted);
}

/// The content directory of a directory that is made as `name` in the root.
fn make_dir(vault: &Vault, store: &VaultStore, dir: &str) -> PathBuf {
    let id_files = || {
        let mut all = Vec::new();
        files_below(&vault.path.join("d"), &mut all);
        all.retain(|path| path.ends_with("dirid.c9r"));
        all
    };
    let before = id_files();
    store.mkdir(Ino::ROOT, name(dir), &new(0o700)).unwrap();
    let made = id_files().into_iter().find(|path| !before.contains(path)).unwrap();
    made.parent().unwrap().to_owned()
}

#[test]
fn a_directory_is_not_removed_with_what_lies_in_it_under_a_temporary_name() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = vault.open();
    store.mkdir(Ino::ROOT, name("other"), &new(0o700)).unwrap();
    // What plans move, or gave up: a file, and objects that are folders on the host.
    for part in [None, Some("contents.c9r"), Some("symlink.c9r"), Some("dir.c9r"), Some("name.c9s")] {
        let content = make_dir(&vault, &store, "dir");
        let at = content.join(".adit-0123456789abcdef0123456789abcdef.tmp");
        let file = part.map_or(at.clone(), |part| at.join(part));
        if part.is_some() {
            std::fs::create_dir(&at).unwrap();
        }
        std::fs::write(&file, "a user's").unwrap();
        let removed = store.rmdir(Ino::ROOT, name("dir")).unwrap_err();
        assert_eq!(removed.kind(), ErrorKind::NotEmpty, "{part:?}");
        assert!(removed.to_string().contains("check --repair"), "{removed}");
        let replaced = store.rename(Ino::ROOT, name("other"), Ino::ROOT, name("dir"), RenameFlags::empty());
        assert_eq!(replaced.unwrap_err().kind(), ErrorKind::NotEmpty, "{part:?}");
        assert_eq!(std::fs::read(&file).unwrap(), b"a user's", "{part:?}");
        // Nothing is in an empty folder or file, and nothing was promised of what the medium had not published.
        std::fs::remove_file(&file).unwrap();
        if part.is_none() {
            std::fs::write(&at, "").unwrap();
        }
        std::fs::write(content.join(".adit-0123abcd.tmp"), "a part").unwrap();
        store.rmdir(Ino::ROOT, name("dir")).unwrap();
        assert!(!content.exists(), "{part:?}");
    }
}

#[test]
fn what_could_not_be_cleared_away_does_not_keep_its_directory() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let faults = Faults::new();
    let root = faults.wrap(HostDirectory::open(&vault.path).unwrap());
    let store = vault.open_on(Arc::new(root), Some(vault.state())).unwrap();
    let dir = store.mkdir(Ino::ROOT, name("dir"), &new(0o700)).unwrap();
    store.symlink(dir.ino, name("link"), b"target", new(0).caller).unwrap();
    faults.arm(Fault::IO, &[CallClass::Remove], 0, u64::MAX);
    store.unlink(dir.ino, name("link")).unwrap();
    faults.disarm();
    assert!(!faults.fired().is_empty());
    store.rmdir(Ino::ROOT, name("dir")).unwrap();
}

/// What happens, once, after the next reading behind a header.
type Then = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// A file with which something happens between a reading of its content and what follows it.
struct BetweenFile {
    inner: Box<dyn HostFile>,
    then: Arc<Then>,
}

impl HostFile for BetweenFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read_at(offset, buf);
        let then = if offset > 0 { self.then.lock().unwrap().take() } else { None };
        // In a thread of its own, as it is another process's.
        then.into_iter().for_each(|then| std::thread::spawn(then).join().unwrap());
        read
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn stat(&self) -> io::Result<Attr> {
        self.inner.stat()
    }

    fn set_attr(&self, set: &SetAttr) -> io::Result<()> {
        self.inner.set_attr(set)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.inner.sync(data_only)
    }
}

/// Two mounts change the last chunk of a file: here one does what another one has changed the length for, after that was
/// read. What there is at the end is whole.
#[test]
fn a_length_that_another_mount_changed_meanwhile_leaves_whole_chunks() {
    type Change = &'static (dyn Fn(&dyn StoreFile) -> Result<()> + Sync);
    let (a, b) = (|n| vec![b'a'; n], |n| vec![b'b'; n]);
    let cases: [(&str, usize, Change, Change, Vec<u8>); 7] = [
        (
            "overwritten and made longer",
            100,
            &|f| f.write_at(&[(0, b"HERE")]),
            &|f| f.write_at(&[(100, &[b'b'; 100])]),
            { [b"HERE".to_vec(), a(96), b(100)].concat() },
        ),
        (
            "overwritten and made two chunks longer",
            40_000,
            &|f| f.write_at(&[(39_000, b"HERE")]),
            &|f| f.write_at(&[(40_000, &[b'b'; 60_000])]),
            [a(39_000), b"HERE".to_vec(), a(996), b(60_000)].concat(),
        ),
        ("overwritten and cut before it", 40_000, &|f| f.write_at(&[(33_000, b"HERE")]), &|f| f.set_len(10), {
            [a(10), vec![0; 32_990], b"HERE".to_vec()].concat()
        }),
        ("both appended", 100, &|f| f.write_at(&[(100, b"HERE")]), &|f| f.write_at(&[(100, &[b'b'; 100])]), {
            [a(100), b"HERE".to_vec(), b(96)].concat()
        }),
        ("both extended", 100, &|f| f.set_len(300), &|f| f.write_at(&[(100, &[b'b'; 900])]), [a(100), b(200)].concat()),
        ("both cut, the other one deeper", 40_000, &|f| f.set_len(33_000), &|f| f.set_len(10), {
            [a(10), vec![0; 32_990]].concat()
        }),
        ("cut and made longer", 100, &|f| f.set_len(50), &|f| f.write_at(&[(100, &[b'b'; 100])]), a(50)),
    ];
    for (what, len, ours, theirs, wanted) in cases {
        let vault = Vault::create(CipherCombo::SivGcm, 220);
        let then = Arc::new(Then::default());
        let on_file = then.clone();
        let wrap = move |inner| Box::new(BetweenFile { inner, then: on_file.clone() }) as Box<dyn HostFile>;
        let root = Through::files(HostDirectory::open(&vault.path).unwrap(), wrap);
        let store = vault.open_on(Arc::new(root), Some(vault.state())).unwrap();
        let (attr, file) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
        file.write_at(&[(0, &a(len))]).unwrap();
        let state = tempfile::tempdir().unwrap();
        let state_dir = Arc::new(HostDirectory::open(state.path()).unwrap());
        let other = vault.open_on(vault.root(), Some(state_dir)).unwrap();
        let others = other.open(find(&other, "/f").unwrap().ino, Access::Write).unwrap();
        *then.lock().unwrap() = Some(Box::new(move || theirs(&*others).unwrap()));
        ours(&*file).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(then.lock().unwrap().is_none(), "{what}: nothing was read");
        let read = read(&store, attr.ino).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(read == wanted, "{what}: {} bytes of {}", read.len(), wanted.len());
    }
}
