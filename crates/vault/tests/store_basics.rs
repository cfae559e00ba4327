//! The store on a real folder: what was written is there after a remount, in every shape that a name can have.

use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use adit_core::media::HostDir;
use adit_core::store::{NewNode, Spelling, Store, StoreFile};
use adit_core::types::{Access, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, Timestamp};
use adit_core::{ErrorKind, Result};
use adit_media::HostDirectory;
use adit_testkit::faults::{CallClass, Fault, Faults};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, OpenOptions, Unlocked, VaultStore};

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn new(perm: u16) -> NewNode {
    // SAFETY: these two calls cannot fail and touch no memory of ours.
    let caller = unsafe { Caller { uid: libc::geteuid(), gid: libc::getegid() } };
    NewNode { perm, umask: 0, caller }
}

struct Folder {
    temp: tempfile::TempDir,
    root: Arc<dyn HostDir>,
    state: Arc<dyn HostDir>,
    keys: Unlocked,
}

impl Folder {
    fn new(cipher_combo: CipherCombo, shortening_threshold: u32) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let at = |sub: &str| -> Arc<dyn HostDir> {
            let path = temp.path().join(sub);
            std::fs::create_dir(&path).unwrap();
            Arc::new(HostDirectory::open(&path).unwrap())
        };
        let (root, state) = (at("vault"), at("state"));
        let scrypt = ScryptParams { cost: 1024, block_size: 8 };
        let options = CreateOptions { cipher_combo, shortening_threshold, scrypt };
        adit_vault::create(&*root, "password", &options).unwrap();
        assert_eq!(adit_vault::unlock(&*root, "wrong").map(drop).unwrap_err().kind(), ErrorKind::WrongPassword);
        let keys = adit_vault::unlock(&*root, "password").unwrap();
        Folder { temp, root, state, keys }
    }

    /// The host's path of an object.
    fn path_of(&self, store: &VaultStore, ino: Ino) -> std::path::PathBuf {
        self.temp.path().join("vault").join(store.path_of(ino).unwrap())
    }

    fn open(&self) -> VaultStore {
        self.open_with(Some(self.state.clone()))
    }

    fn open_read_only(&self) -> VaultStore {
        self.open_with(None)
    }

    fn open_with(&self, state: Option<Arc<dyn HostDir>>) -> VaultStore {
        let options = OpenOptions {
            root: self.root.clone(),
            state,
            abandoned: Vec::new(),
            masterkey: &self.keys.masterkey,
            config: &self.keys.config,
            background: false,
        };
        VaultStore::open(options).unwrap().0
    }
}

fn names_in(store: &VaultStore, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    store
        .read_dir(dir, 0, &mut |e| {
            names.push(format!("{} {}", e.kind.as_str(), e.name.display()));
            ControlFlow::Continue(())
        })
        .unwrap();
    names.sort();
    names
}

fn read_all(store: &VaultStore, ino: Ino) -> Vec<u8> {
    let file = store.open(ino, Access::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize + 10];
    let n = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

fn both(test: impl Fn(&Folder)) {
    for combo in [CipherCombo::SivGcm, CipherCombo::SivCtrmac] {
        for threshold in [220, 40] {
            test(&Folder::new(combo, threshold));
        }
    }
}

#[test]
fn a_creation_tells_what_became_of_its_directory() {
    both(|folder| {
        let store = folder.open();
        for dir in [Ino::ROOT, store.mkdir(Ino::ROOT, name("d"), &new(0o750)).unwrap().ino] {
            let made = store.create_in(dir, name("f"), &new(0o640)).unwrap();
            assert_eq!(made.attr, store.getattr(made.attr.ino).unwrap());
            // Under a long name it lies in a folder of its own, and its directory was not at hand.
            let told = made.parent.unwrap_or_else(|| store.getattr(dir).unwrap());
            assert_eq!(told, store.getattr(dir).unwrap());
        }
    });
}

#[test]
fn a_new_tree_costs_one_sync_of_the_journal() {
    let folder = Folder::new(CipherCombo::SivGcm, 220);
    let store = folder.open();
    let syncs = || store.counters().iter().find(|(name, _)| *name == "journal_syncs").unwrap().1;
    let before = syncs();
    for n in 0..3 {
        let mut dir = Ino::ROOT;
        for depth in 0..3 {
            dir = store.mkdir(dir, name(&format!("{n} {depth}")), &new(0o755)).unwrap().ino;
            store.create(dir, name("file"), &new(0o644)).unwrap();
        }
    }
    assert_eq!(syncs(), before + 1);
    // In the next epoch the directories are none of it.
    store.sync_all().unwrap();
    let before = syncs();
    store.create(Ino::ROOT, name("file"), &new(0o644)).unwrap();
    let dir = store.lookup(Ino::ROOT, name("0 0")).unwrap().ino;
    store.create(dir, name("later"), &new(0o644)).unwrap();
    assert_eq!(syncs(), before + 2);
}

#[test]
fn what_was_written_is_there_after_a_remount() {
    both(|folder| {
        let long = "long name ".repeat(25);
        let store = folder.open();
        let dir = store.mkdir(Ino::ROOT, name("directory"), &new(0o755)).unwrap();
        let deep = store.mkdir(dir.ino, name(&long), &new(0o700)).unwrap();
        let mut content = Vec::new();
        for (n, len) in [0usize, 1, 32767, 32768, 32769, 65536, 200_000].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
            let (attr, file) = store.create(deep.ino, name(&format!("file {n}")), &new(0o640)).unwrap();
            assert_eq!(attr.perm, 0o640);
            file.write_at(&[(0, &bytes)]).unwrap();
            file.sync(false).unwrap();
            content.push(bytes);
        }
        let (_, file) = store.create(dir.ino, name(&format!("{long}2")), &new(0o600)).unwrap();
        file.write_at(&[(100_000, b"end")]).unwrap();
        file.write_at(&[(5, b"start"), (40_000, b"middle")]).unwrap();
        let link = store.symlink(dir.ino, name("link"), b"../somewhere", new(0).caller).unwrap();
        assert_eq!((link.kind, link.size), (Kind::Symlink, 12));
        drop((file, store));
        assert_eq!(count(&*folder.state), 0, "a clean end leaves no journal");

        let store = folder.open();
        let dir = store.lookup(Ino::ROOT, name("directory")).unwrap();
        let deep = store.lookup(dir.ino, name(&long)).unwrap();
        for (n, bytes) in content.iter().enumerate() {
            let attr = store.lookup(deep.ino, name(&format!("file {n}"))).unwrap();
            assert_eq!(attr.size, bytes.len() as u64);
            assert_eq!(&read_all(&store, attr.ino), bytes);
        }
        let sparse = store.lookup(dir.ino, name(&format!("{long}2"))).unwrap();
        let mut expected = vec![0; 100_003];
        expected[100_000..].copy_from_slice(b"end");
        expected[5..10].copy_from_slice(b"start");
        expected[40_000..40_006].copy_from_slice(b"middle");
        assert_eq!(read_all(&store, sparse.ino), expected);
        let link = store.lookup(dir.ino, name("link")).unwrap();
        assert_eq!(store.readlink(link.ino).unwrap(), b"../somewhere");
        assert_eq!(names_in(&store, Ino::ROOT), ["directory directory"]);
        assert_eq!(names_in(&store, dir.ino).len(), 3);
    });
}

fn count(dir: &dyn HostDir) -> usize {
    let mut n = 0;
    dir.list(Path::new(""), &mut |_| n += 1).unwrap();
    n
}

#[test]
fn every_shape_can_be_renamed_to_every_other_name() {
    both(|folder| {
        let store = folder.open();
        let long = |n: u32| format!("{n}{}", "x".repeat(180));
        let short = |n: u32| format!("{n}");
        for (round, (from, to)) in
            [(short(1), short(2)), (short(3), long(4)), (long(5), short(6)), (long(7), long(8))].into_iter().enumerate()
        {
            for shape in 0..3 {
                for target in 0..3 {
                    let dir = store.mkdir(Ino::ROOT, name(&format!("{round}-{shape}-{target}")), &new(0o755)).unwrap();
                    let make = |name: FileName<'_>, shape: u32, text: &[u8]| match shape {
                        0 => {
                            let (attr, file) = store.create(dir.ino, name, &new(0o600)).unwrap();
                            file.write_at(&[(0, text)]).unwrap();
                            attr
                        }
                        1 => store.symlink(dir.ino, name, text, new(0).caller).unwrap(),
                        _ => store.mkdir(dir.ino, name, &new(0o700)).unwrap(),
                    };
                    let source = make(name(&from), shape, b"source");
                    let _ = make(name(&to), target, b"target");
                    let keep = RenameFlags::NOREPLACE;
                    let refused = store.rename(dir.ino, name(&from), dir.ino, name(&to), keep).unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::Exists);
                    store.rename(dir.ino, name(&from), dir.ino, name(&to), RenameFlags::EXCHANGE).unwrap();
                    assert_eq!(store.lookup(dir.ino, name(&to)).unwrap().ino, source.ino);
                    store.rename(dir.ino, name(&to), dir.ino, name(&from), RenameFlags::EXCHANGE).unwrap();
                    let done = store.rename(dir.ino, name(&from), dir.ino, name(&to), RenameFlags::empty());
                    match (shape == 2, target == 2) {
                        (true, false) => assert_eq!(done.unwrap_err().kind(), ErrorKind::NotDirectory),
                        (false, true) => assert_eq!(done.unwrap_err().kind(), ErrorKind::IsDirectory),
                        _ => {
                            done.unwrap();
                            let now = store.lookup(dir.ino, name(&to)).unwrap();
                            assert_eq!((now.ino, now.kind), (source.ino, source.kind));
                            assert_eq!(store.getattr(source.ino).unwrap().ino, source.ino);
                            assert!(store.lookup(dir.ino, name(&from)).unwrap_err().is_not_found());
                            match shape {
                                0 => assert_eq!(read_all(&store, now.ino), b"source"),
                                1 => assert_eq!(store.readlink(now.ino).unwrap(), b"source"),
                                _ => assert!(names_in(&store, now.ino).is_empty()),
                            }
                            assert_eq!(names_in(&store, dir.ino).len(), 1);
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn open_files_survive_unlink_rename_and_rename_of_the_parent() {
    both(|folder| {
        let store = folder.open();
        let dir = store.mkdir(Ino::ROOT, name("a"), &new(0o755)).unwrap();
        let (attr, file) = store.create(dir.ino, name("f"), &new(0o600)).unwrap();
        file.write_at(&[(0, b"one")]).unwrap();
        store.rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), RenameFlags::empty()).unwrap();
        file.write_at(&[(3, b"two")]).unwrap();
        store.rename(dir.ino, name("f"), Ino::ROOT, name("g"), RenameFlags::empty()).unwrap();
        file.write_at(&[(6, b"three")]).unwrap();
        assert_eq!(read_all(&store, attr.ino), b"onetwothree");
        store.rmdir(Ino::ROOT, name("b")).unwrap();
        store.unlink(Ino::ROOT, name("g")).unwrap();
        file.write_at(&[(11, b"four")]).unwrap();
        file.set_len(5).unwrap();
        let set = SetAttr { perm: Some(0o444), ..SetAttr::default() };
        let after = store.setattr(attr.ino, &set).unwrap();
        assert_eq!((after.nlink, after.size, after.perm), (0, 5, 0o444));
        let mut buf = [0; 10];
        assert_eq!(file.read_at(0, &mut buf).unwrap(), 5);
        assert_eq!(&buf[..5], b"onetw");
        assert!(names_in(&store, Ino::ROOT).is_empty());
    });
}

#[test]
fn a_directory_with_entries_stays() {
    both(|folder| {
        let store = folder.open();
        let dir = store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap();
        store.create(dir.ino, name("f"), &new(0o600)).unwrap();
        assert_eq!(store.rmdir(Ino::ROOT, name("d")).unwrap_err().kind(), ErrorKind::NotEmpty);
        let below = store.mkdir(dir.ino, name("below"), &new(0o755)).unwrap();
        let inside = store.rename(Ino::ROOT, name("d"), below.ino, name("d"), RenameFlags::empty()).unwrap_err();
        assert_eq!(inside.kind(), ErrorKind::InvalidInput);
        store.unlink(dir.ino, name("f")).unwrap();
        store.rmdir(dir.ino, name("below")).unwrap();
        store.rmdir(Ino::ROOT, name("d")).unwrap();
        assert!(names_in(&store, Ino::ROOT).is_empty());
    });
}

#[test]
fn a_read_only_store_lets_go_of_files_as_well() {
    let folder = Folder::new(CipherCombo::SivGcm, 220);
    let mut numbers = Vec::new();
    for n in ["f", "g"] {
        let store = folder.open();
        let (attr, _) = store.create(Ino::ROOT, name(n), &new(0o644)).unwrap();
        numbers.push(std::fs::metadata(folder.path_of(&store, attr.ino)).unwrap().ino());
    }
    let is_open = |number: u64| {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        fds.flatten().any(|fd| std::fs::metadata(fd.path()).is_ok_and(|m| m.is_file() && m.ino() == number))
    };
    let store = folder.open_read_only();
    let [f, g] = ["f", "g"].map(|n| store.lookup(Ino::ROOT, name(n)).unwrap().ino);
    drop(store.open(f, Access::Read).unwrap());
    assert!(is_open(numbers[0]), "a moment after its last use");
    // Fewer openings than make room by their number.
    let gone = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(store.open(g, Access::Read).unwrap());
        !is_open(numbers[0])
    });
    assert!(gone, "it is kept for good");
}

#[test]
fn only_names_of_one_form_stay_absent_until_they_are_made() {
    let store = Folder::new(CipherCombo::SivGcm, 220).open();
    let cases = [
        (Spelling::Only, ["plain", "\u{df}\u{4e2d}", "\u{438}"]),
        (Spelling::Stored, ["caf\u{e9}", "\u{ac00}", "\u{439}"]),
        (Spelling::Other, ["cafe\u{301}", "\u{1100}\u{1161}", "\u{212b}"]),
    ];
    for (spelling, names) in cases {
        for text in names {
            assert_eq!(store.spelling(name(text)), spelling, "{text:?}");
        }
    }
}

#[test]
fn names_in_both_normal_forms_are_one_name() {
    both(|folder| {
        let store = folder.open();
        let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
        let (attr, _) = store.create(Ino::ROOT, name(decomposed), &new(0o600)).unwrap();
        assert_eq!(store.lookup(Ino::ROOT, name(composed)).unwrap().ino, attr.ino);
        assert_eq!(store.lookup(Ino::ROOT, name(decomposed)).unwrap().ino, attr.ino);
        let again = store.create(Ino::ROOT, name(decomposed), &new(0o600)).map(drop).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists);
        assert_eq!(names_in(&store, Ino::ROOT), [format!("file {composed}")]);
        let illegal = store.create(Ino::ROOT, FileName::new(b"\xff").unwrap(), &new(0o600)).map(drop).unwrap_err();
        assert_eq!(illegal.kind(), ErrorKind::IllegalName);
    });
}

#[test]
fn pieces_of_one_chunk_change_it_together() {
    both(|folder| {
        let store = folder.open();
        let (attr, file) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
        let mut content: Vec<u8> = (0..200_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        file.write_at(&[(0, &content)]).unwrap();
        // Several in a chunk, one over a border, whole chunks, and the end grown by pieces that touch and one that does not.
        let marks = [b'a', b'b', b'c', b'd', b'e', b'f', b'g', b'h', b'i'].map(|b| vec![b; 70_000]);
        let places = [
            (10, 5),
            (4096, 4096),
            (12_288, 4096),
            (32_700, 200),
            (65_536, 65_536),
            (150_000, 1),
            (199_990, 20),
            (200_010, 30_000),
            (300_000, 9),
        ];
        let pieces: Vec<(u64, &[u8])> = places.iter().zip(&marks).map(|(&(at, n), m)| (at as u64, &m[..n])).collect();
        file.write_at(&pieces).unwrap();
        content.resize(300_009, 0);
        for (at, piece) in &pieces {
            content[*at as usize..*at as usize + piece.len()].copy_from_slice(piece);
        }
        assert_eq!(read_all(&store, attr.ino), content);
        drop((file, store));
        let store = folder.open();
        let ino = store.lookup(Ino::ROOT, name("f")).unwrap().ino;
        assert_eq!(read_all(&store, ino), content);
    });
}

#[test]
fn a_file_that_was_put_in_anothers_place_is_read_with_its_own_header() {
    both(|folder| {
        let store = folder.open();
        let mut paths = Vec::new();
        for (n, content) in [("first", b"the first content"), ("other", b"what another put!")] {
            let (attr, file) = store.create(Ino::ROOT, name(n), &new(0o644)).unwrap();
            file.write_at(&[(0, content)]).unwrap();
            paths.push((attr.ino, folder.path_of(&store, attr.ino)));
        }
        assert_eq!(read_all(&store, paths[0].0), b"the first content");
        // Another client writes into the same host file, as `cp` and some sync tools do.
        std::fs::write(&paths[0].1, std::fs::read(&paths[1].1).unwrap()).unwrap();
        assert_eq!(read_all(&store, paths[0].0), b"what another put!");
        let writer = store.open(paths[0].0, Access::Write).unwrap();
        writer.write_at(&[(0, b"WHAT")]).unwrap();
        drop((writer, store));
        let store = folder.open();
        let ino = store.lookup(Ino::ROOT, name("first")).unwrap().ino;
        assert_eq!(read_all(&store, ino), b"WHAT another put!");
    });
}

#[test]
fn a_kept_file_that_another_client_replaced_takes_nothing() {
    both(|folder| {
        let store = folder.open();
        let make = |n: &str, content: &[u8]| {
            let (attr, file) = store.create(Ino::ROOT, name(n), &new(0o644)).unwrap();
            file.write_at(&[(0, content)]).unwrap();
            (attr.ino, folder.path_of(&store, attr.ino))
        };
        // What a sync program does with a new version of a file.
        let replace = |path: &std::path::Path, by: &std::path::Path| {
            let copy = path.with_extension("new");
            std::fs::copy(by, &copy).unwrap();
            std::fs::rename(&copy, path).unwrap();
        };
        let read_anew = |n: &str| {
            let store = folder.open_read_only();
            let attr = store.lookup(Ino::ROOT, name(n)).unwrap();
            (read_all(&store, attr.ino), attr.perm)
        };
        let (_, other) = make("other", b"of another client");

        let (ino, path) = make("written", b"the old content");
        replace(&path, &other);
        store.open(ino, Access::Write).unwrap().write_at(&[(0, b"HERE")]).unwrap();
        assert_eq!(read_anew("written").0, b"HEREnother client");

        let (ino, path) = make("cut", b"the old content");
        replace(&path, &other);
        assert_eq!(store.setattr(ino, &SetAttr { size: Some(2), ..SetAttr::default() }).unwrap().size, 2);
        assert_eq!(read_anew("cut").0, b"of");

        let (ino, path) = make("changed", b"the old content");
        replace(&path, &other);
        store.setattr(ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        assert_eq!(read_anew("changed"), (b"of another client".to_vec(), 0o600));

        let (ino, path) = make("looked at", b"the old content");
        replace(&path, &other);
        assert_eq!(store.getattr(ino).unwrap().size, 17);
    });
}

#[test]
fn what_another_client_gave_a_new_header_is_not_written_under_the_old_one() {
    both(|folder| {
        let store = folder.open();
        let chunk = vec![b'x'; 32 << 10];
        let make = |n: &str, content: &[u8]| {
            let (attr, file) = store.create(Ino::ROOT, name(n), &new(0o644)).unwrap();
            file.write_at(&[(0, content)]).unwrap();
            (attr.ino, folder.path_of(&store, attr.ino), file)
        };
        let read_anew = |n: &str| {
            let store = folder.open_read_only();
            let ino = store.lookup(Ino::ROOT, name(n)).unwrap().ino;
            read_all(&store, ino)
        };
        let theirs = vec![b'o'; 40_000];
        let (_, other, _) = make("other", &theirs);
        let rewrite = |path: &std::path::Path| std::fs::write(path, std::fs::read(&other).unwrap()).unwrap();

        // Someone looks at the file all the while.
        let (ino, path, viewer) = make("opened later", b"old");
        rewrite(&path);
        store.open(ino, Access::Write).unwrap().write_at(&[(0, &chunk)]).unwrap();
        assert!(read_anew("opened later") == [&chunk[..], &theirs[chunk.len()..]].concat());
        drop(viewer);

        for (n, change) in [
            ("whole chunk", &(|f: &dyn StoreFile| f.write_at(&[(0, &chunk)])) as &dyn Fn(&dyn StoreFile) -> Result<()>),
            ("at the end", &|f| f.write_at(&[(40_000, b"more")])),
            ("behind the end", &|f| f.write_at(&[(70_000, b"more")])),
            ("longer", &|f| f.set_len(100_000)),
            ("shorter", &|f| f.set_len(33_000)),
            ("at a border", &|f| f.set_len(32 << 10)),
        ] {
            let (_, path, file) = make(n, b"old");
            rewrite(&path);
            assert_eq!(change(&*file).unwrap_err().kind(), ErrorKind::Stale, "{n}");
            file.sync(false).unwrap();
            assert!(read_anew(n) == theirs, "{n}");
        }
    });
}

#[test]
fn a_removed_file_is_open_until_it_is_forgotten() {
    both(|folder| {
        let store = folder.open();
        let (attr, file) = store.create(Ino::ROOT, name("f"), &new(0o644)).unwrap();
        let number = std::fs::metadata(folder.path_of(&store, attr.ino)).unwrap().ino();
        drop(file);
        // Other tests of this process may get the number when it is free.
        let is_ours = |fd: &Path| std::fs::read_link(fd).is_ok_and(|to| to.starts_with(folder.temp.path()));
        let is_open = || {
            let mut fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| fd.path());
            fds.any(|fd| is_ours(&fd) && std::fs::metadata(&fd).is_ok_and(|m| m.is_file() && m.ino() == number))
        };
        assert!(is_open(), "a moment after its last use");
        store.unlink(Ino::ROOT, name("f")).unwrap();
        assert!(is_open(), "for who found it");
        store.forget(attr.ino);
        // Waits for what is being freed.
        store.statfs().unwrap();
        assert!(!is_open());
    });
}

/// The answer to a lookup is good for as long as it is known, whatever becomes of the name: who opens it later is not told that there is
/// no such file, for there is one.
#[test]
fn what_a_lookup_found_goes_on_without_its_name() {
    both(|folder| {
        let store = folder.open();
        let long = |n: &str| format!("{n} {}", "long name ".repeat(20));
        let gone = |ino| {
            let attr = store.getattr(ino).unwrap();
            assert_eq!((attr.ino, attr.nlink), (ino, 0));
            attr
        };
        let make = |n: &str, content: &[u8]| {
            let (attr, file) = store.create(Ino::ROOT, name(n), &new(0o640)).unwrap();
            file.write_at(&[(0, content)]).unwrap();
            attr.ino
        };
        let replace = |n: &str, with: &str| {
            store.rename(Ino::ROOT, name(with), Ino::ROOT, name(n), RenameFlags::empty()).unwrap();
        };
        for (n, other) in [("f".to_owned(), "g".to_owned()), (long("f"), long("g")), ("h".to_owned(), long("h"))] {
            for replaced in [true, false] {
                let ino = make(&n, b"the old content");
                match replaced {
                    true => {
                        make(&other, b"another");
                        replace(&n, &other);
                    }
                    false => store.unlink(Ino::ROOT, name(&n)).unwrap(),
                }
                assert_eq!(gone(ino).size, 15);
                let set = SetAttr { perm: Some(0o600), size: Some(7), ..SetAttr::default() };
                assert_eq!(store.setattr(ino, &set).map(|attr| (attr.perm, attr.size)).unwrap(), (0o600, 7));
                assert_eq!(read_all(&store, ino), b"the old");
                store.open(ino, Access::Write).unwrap().write_at(&[(7, b" one")]).unwrap();
                assert_eq!((read_all(&store, ino), gone(ino).size), (b"the old one".to_vec(), 11));
                let now = store.lookup(Ino::ROOT, name(&n));
                assert!(now.as_ref().ok().is_none_or(|attr| attr.ino != ino) && now.is_ok() == replaced);
                if let Ok(attr) = now {
                    assert_eq!(read_all(&store, attr.ino), b"another");
                    store.unlink(Ino::ROOT, name(&n)).unwrap();
                }
                store.forget(ino);
                assert_eq!(store.open(ino, Access::Read).map(drop).unwrap_err().kind(), ErrorKind::Stale);
            }
        }
        let caller = new(0).caller;
        for n in ["link".to_owned(), long("link")] {
            let old = store.symlink(Ino::ROOT, name(&n), b"old", caller).unwrap().ino;
            store.symlink(Ino::ROOT, name("new"), b"new", caller).unwrap();
            replace(&n, "new");
            assert_eq!((store.readlink(old).unwrap(), gone(old).kind), (b"old".to_vec(), Kind::Symlink));
            let new = store.lookup(Ino::ROOT, name(&n)).unwrap().ino;
            store.unlink(Ino::ROOT, name(&n)).unwrap();
            let times = SetAttr { mtime: Some(SetTime::At(Timestamp::default())), ..SetAttr::default() };
            assert_eq!(store.setattr(new, &times).unwrap().mtime, Timestamp::default());
            assert_eq!((store.readlink(new).unwrap(), gone(new).mtime), (b"new".to_vec(), Timestamp::default()));
            assert_eq!(store.open(new, Access::Read).map(drop).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        let exchanged = [make("a", b"a"), make("b", b"b")];
        store.rename(Ino::ROOT, name("a"), Ino::ROOT, name("b"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(exchanged.map(|ino| read_all(&store, ino)), [b"a", b"b"]);
    });
}

/// A file that nobody uses any more is closed before a call fails for want of descriptors, whatever the call is.
#[test]
fn a_kept_file_gives_its_descriptor_to_whoever_needs_one() {
    let folder = Folder::new(CipherCombo::SivGcm, 220);
    let faults = Faults::default();
    let host = HostDirectory::open(&folder.temp.path().join("vault")).unwrap();
    let folder = Folder { root: Arc::new(faults.wrap(host)), ..folder };
    let store = folder.open();
    store.mkdir(Ino::ROOT, name("d"), &new(0o755)).unwrap();
    let calls: [(CallClass, &dyn Fn() -> adit_core::Result<()>); 5] = [
        (CallClass::Publish, &|| store.create(Ino::ROOT, name("made"), &new(0o644)).map(drop)),
        (CallClass::MakeDir, &|| store.mkdir(Ino::ROOT, name("made too"), &new(0o755)).map(drop)),
        (CallClass::List, &|| store.read_dir(Ino::ROOT, 0, &mut |_| ControlFlow::Continue(()))),
        (CallClass::Open, &|| store.lookup(Ino::ROOT, name("d")).map(drop)),
        (CallClass::Rename, &|| store.rename(Ino::ROOT, name("d"), Ino::ROOT, name("e"), RenameFlags::empty())),
    ];
    for (class, call) in calls {
        drop(store.create(Ino::ROOT, name(&format!("kept for {class:?}")), &new(0o644)).unwrap());
        faults.arm(Fault::Errno(libc::EMFILE), &[class], 0, 1);
        call().unwrap_or_else(|e| panic!("{class:?}: {e}"));
        assert_eq!(faults.fired().len(), 1, "{class:?}");
        faults.disarm();
    }
}

/// A kernel that keeps times itself sends them with what it writes back: what it showed is shown after it has forgotten the file, and after
/// the next mount, until somebody changes the file on the host.
#[test]
fn change_times_that_a_kernel_showed_are_shown_again() {
    both(|folder| {
        let store = folder.open();
        let long = "long name ".repeat(20);
        let at = |secs| Timestamp { secs, nanos: 7 };
        let sent = |secs| SetAttr { mtime: Some(SetTime::At(at(secs))), ctime: Some(at(secs)), ..SetAttr::default() };
        for (n, secs) in [("f", 1_700_000_000), (&*long, 1_700_000_001), ("host", 1_700_000_002)] {
            let (attr, file) = store.create(Ino::ROOT, name(n), &new(0o644)).unwrap();
            file.write_at(&[(0, b"content")]).unwrap();
            assert_eq!(store.setattr(attr.ino, &sent(secs - 5)).unwrap().ctime, at(secs - 5));
            assert_eq!(store.setattr(attr.ino, &sent(secs)).unwrap().ctime, at(secs));
            assert_eq!(store.getattr(attr.ino).unwrap().ctime, at(secs));
        }
        let ino = store.lookup(Ino::ROOT, name("host")).unwrap().ino;
        let path = folder.path_of(&store, ino);
        drop(store);
        // Another client.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for _ in 0..2 {
            let store = folder.open();
            let ctime = |n: &str| store.lookup(Ino::ROOT, name(n)).unwrap().ctime;
            assert_eq!((ctime("f"), ctime(&long)), (at(1_700_000_000), at(1_700_000_001)));
            assert!(ctime("host").secs > 1_750_000_000, "what the host says");
        }
        let store = folder.open();
        let ino = store.lookup(Ino::ROOT, name("f")).unwrap().ino;
        let chmod = SetAttr { perm: Some(0o640), ..SetAttr::default() };
        assert!(store.setattr(ino, &chmod).unwrap().ctime.secs > 1_750_000_000);
    });
}

/// Modes, owners, times and link counts are the host's own, so every client sees the same.
#[test]
fn attributes_are_those_of_the_ciphertext_objects() {
    both(|folder| {
        let store = folder.open();
        let long = "long name ".repeat(20);
        let time = Timestamp { secs: 1_234_567_890, nanos: 123_456_789 };
        let times = SetAttr { mtime: Some(SetTime::At(time)), atime: Some(SetTime::At(time)), ..SetAttr::default() };
        // Only root may give files away.
        let owner = if new(0).caller.uid == 0 { (Some(12_345), Some(54_321)) } else { (None, None) };
        for entry in ["f", &long] {
            let (attr, _) = store.create(Ino::ROOT, name(entry), &new(0o600)).unwrap();
            let set = SetAttr { perm: Some(0o2751), uid: owner.0, gid: owner.1, ..times };
            let attr = store.setattr(attr.ino, &set).unwrap();
            let host = std::fs::metadata(folder.path_of(&store, attr.ino)).unwrap();
            assert_eq!((attr.perm, attr.mtime, attr.atime, attr.nlink), (0o2751, time, time, 1), "{entry}");
            assert_eq!((host.mode() & 0o7777, host.uid(), host.gid()), (0o2751, attr.uid, attr.gid), "{entry}");
            assert_eq!((host.mtime(), host.mtime_nsec()), (1_234_567_890, 123_456_789), "{entry}");
            assert!(owner.0.is_none_or(|uid| attr.uid == uid) && owner.1.is_none_or(|gid| attr.gid == gid), "{entry}");
        }
        for entry in ["d", &format!("{long}d")] {
            let dir = store.mkdir(Ino::ROOT, name(entry), &new(0o750)).unwrap();
            store.mkdir(dir.ino, name("below"), &new(0o750)).unwrap();
            let dir = store.setattr(dir.ino, &times).unwrap();
            let host = std::fs::metadata(folder.path_of(&store, dir.ino)).unwrap();
            assert_eq!((dir.perm, dir.mtime), (0o750, time), "{entry}");
            assert_eq!((host.mode() & 0o7777, host.mtime()), (0o750, 1_234_567_890), "{entry}");
            assert_eq!(u64::from(dir.nlink), host.nlink(), "{entry}");
        }
    });
}
