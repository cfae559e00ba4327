//! Second versions that sync programs keep in a vault, and files of other programs: the store shows the ones, and lets go of the others.

#[path = "support/oracle.rs"]
mod oracle;
#[path = "support/vault.rs"]
mod vault;

use std::fs;
use std::path::{Path, PathBuf};

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind, RenameFlags};
use adit_vault::VaultStore;
use adit_vault::format::CipherCombo;

use oracle::copy_tree;
use vault::{Vault, find, list, name, new, read};

/// What sync programs put behind the name of an encrypted file.
const SUFFIXES: [&str; 7] = [
    " (host's conflicted copy 2026-11-25)",
    ".sync-conflict-20261125-120000-ABCDEFG",
    "-LAPTOP7",
    "_DiskStation_Nov-25-120000-2026_Conflict",
    "_conflict-20261125-120000",
    "-bak",
    "20261125",
];

fn put(store: &VaultStore, path: &str, content: &[u8]) {
    let (parent, entry) = vault::parent_of(store, path);
    let (_, file) = store.create(parent, entry, &new(0o644)).unwrap();
    file.write_at(&[(0, content)]).unwrap();
}

/// The content folder of the directory at `path`.
fn content_dir(vault: &Vault, store: &VaultStore, path: &str) -> PathBuf {
    let ino = if path == "/" { Ino::ROOT } else { find(store, path).unwrap().ino };
    vault.path.join(store.path_of(ino).unwrap())
}

/// The entries in a content folder.
fn stored(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|n| n != "dirid.c9r").collect();
    names.sort();
    names
}

fn names_in(store: &VaultStore, dir: Ino) -> Vec<String> {
    let mut names: Vec<String> = list(store, dir).unwrap().into_iter().map(|(name, ..)| name).collect();
    names.sort();
    names
}

/// Copies an entry as a sync program does that has found another version of it.
fn keep_second(at: &Path, suffix: &str) -> PathBuf {
    let text = at.to_str().unwrap();
    let (stem, ending) = text.split_at(text.len() - 4);
    let second = PathBuf::from(format!("{stem}{suffix}{ending}"));
    match at.is_dir() {
        true => {
            fs::create_dir(&second).unwrap();
            copy_tree(at, &second);
        }
        false => drop(fs::copy(at, &second).unwrap()),
    }
    second
}

#[test]
fn second_versions_are_shown_beside_the_first() {
    let (long, long_too) = (format!("{}.txt", "L".repeat(196)), "k".repeat(60));
    for suffix in SUFFIXES {
        let vault = Vault::create(CipherCombo::SivGcm, 220);
        let store = vault.open();
        let dir = store.mkdir(Ino::ROOT, name("D"), &new(0o755)).unwrap().ino;
        for file in ["a", "notes.txt", &long, &long_too] {
            put(&store, &format!("/D/{file}"), file.as_bytes());
        }
        let folder = content_dir(&vault, &store, "/D");
        let shown = |file: &str| match file.strip_suffix(".txt") {
            Some(base) => format!("{base}{suffix}.txt"),
            None => format!("{file}{suffix}"),
        };
        let mut expected: Vec<String> = ["a", "notes.txt", &long, &long_too].iter().map(|n| n.to_string()).collect();
        expected.extend(["a", "notes.txt", &long, &long_too].map(shown));
        expected.sort();
        drop(store);
        for at in stored(&folder) {
            keep_second(&folder.join(at), suffix);
        }
        // By name alone, before anybody lists the folder; without a journal as well.
        for store in [vault.open_read_only(), vault.open()] {
            assert_eq!(find(&store, &format!("/D/{}", shown("notes.txt"))).unwrap().size, 9, "{suffix}");
            let dir = find(&store, "/D").unwrap().ino;
            assert_eq!(names_in(&store, dir), expected, "{suffix}");
            assert!(store.left_out(dir).is_empty(), "{suffix}");
            for file in &expected {
                let attr = find(&store, &format!("/D/{file}")).unwrap();
                let text = read(&store, attr.ino).unwrap();
                let first = [&*long, "notes.txt", &long_too, "a"].into_iter().find(|n| n.as_bytes() == text).unwrap();
                assert!(*file == first || *file == shown(first), "{file}");
            }
        }
        let store = vault.open();
        let dir_now = find(&store, "/D").unwrap().ino;
        assert_eq!(dir_now, dir);
        let taken = store.create(dir, name(&shown("a")), &new(0o644)).map(drop).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Exists);
        let ino = find(&store, &format!("/D/{}", shown("a"))).unwrap().ino;
        store.open(ino, Access::Write).unwrap().write_at(&[(0, b"b")]).unwrap();
        assert_eq!(read(&store, find(&store, "/D/a").unwrap().ino).unwrap(), b"a", "the first one is another file");
        // Renamed they are entries like any other; the long one is stored under its hash then.
        for (file, to) in [("a", "b"), (&*long, &*format!("{long}2")), ("notes.txt", &*"n".repeat(200))] {
            store.rename(dir, name(&shown(file)), dir, name(to), RenameFlags::empty()).unwrap();
            assert_eq!(find(&store, &format!("/D/{}", shown(file))).unwrap_err().kind(), ErrorKind::NotFound);
            assert!(find(&store, &format!("/D/{to}")).is_ok());
        }
        store.unlink(dir, name(&shown(&long_too))).unwrap();
        // The name is free now, for an entry of its own.
        store.create(dir, name(&shown(&long_too)), &new(0o644)).unwrap();
        assert_eq!(stored(&folder).iter().filter(|n| n.contains(suffix)).count(), 0, "{:?}", stored(&folder));
        assert_eq!(names_in(&store, dir).len(), 8);
        drop(store);
        let report = vault.check();
        assert!(report.is_clean() && report.conflicts.is_empty(), "{report:#?}");
    }
}

#[test]
fn second_versions_of_folders_and_links_are_shown_unless_they_are_the_same() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = vault.open();
    store.mkdir(Ino::ROOT, name("folder"), &new(0o755)).unwrap();
    put(&store, "/folder/mine", b"mine");
    store.symlink(Ino::ROOT, name("link"), b"one", new(0).caller).unwrap();
    let root = content_dir(&vault, &store, "/");
    let [before_a, before_b] = [&stored(&root)[0], &stored(&root)[1]].map(|n| root.join(n));
    let seconds = [keep_second(&before_a, " (1)"), keep_second(&before_b, " (1)")];
    assert_eq!(names_in(&store, Ino::ROOT), ["folder", "link"], "twice the same is once");
    assert!(store.left_out(Ino::ROOT).is_empty());
    // What another device made under these names.
    store.mkdir(Ino::ROOT, name("other"), &new(0o755)).unwrap();
    put(&store, "/other/theirs", b"theirs");
    store.symlink(Ino::ROOT, name("second"), b"two", new(0).caller).unwrap();
    for entry in stored(&root).iter().map(|n| root.join(n)) {
        if entry == before_a || entry == before_b || seconds.contains(&entry) {
            continue;
        }
        let part = if entry.join("dir.c9r").exists() { "dir.c9r" } else { "symlink.c9r" };
        let second = seconds.iter().find(|second| second.join(part).exists()).unwrap();
        fs::rename(entry.join(part), second.join(part)).unwrap();
        fs::remove_dir(entry).unwrap();
    }
    drop(store);
    let report = vault.check();
    assert!(report.is_clean() && report.conflicts.len() == 2 && report.files == 2, "{report:#?}");
    let store = vault.open();
    assert_eq!(names_in(&store, Ino::ROOT), ["folder", "folder (1)", "link", "link (1)"]);
    assert_eq!(read(&store, find(&store, "/folder (1)/theirs").unwrap().ino).unwrap(), b"theirs");
    assert_eq!(store.readlink(find(&store, "/link (1)").unwrap().ino).unwrap(), b"two");
    store.unlink(find(&store, "/folder (1)").unwrap().ino, name("theirs")).unwrap();
    store.rmdir(Ino::ROOT, name("folder (1)")).unwrap();
    store.unlink(Ino::ROOT, name("link (1)")).unwrap();
    assert_eq!(names_in(&store, Ino::ROOT), ["folder", "link"]);
    drop(store);
    assert!(vault.check().is_clean());
}

#[test]
fn a_second_version_without_a_first_one_has_its_name() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = vault.open();
    put(&store, "/a.txt", b"text");
    let root = content_dir(&vault, &store, "/");
    let first = root.join(&stored(&root)[0]);
    let copies = [" (2)", " (1)"].map(|suffix| keep_second(&first, suffix));
    fs::remove_file(&first).unwrap();
    for store in [vault.open_read_only(), vault.open()] {
        assert_eq!(read(&store, find(&store, "/a.txt").unwrap().ino).unwrap(), b"text");
        assert_eq!(names_in(&store, Ino::ROOT), ["a (2).txt", "a.txt"]);
    }
    // Who has looked before finds what came since when the folder is listed.
    assert_eq!(names_in(&store, Ino::ROOT), ["a (2).txt", "a.txt"]);
    // Cryptomator's own client renames them in passing.
    fs::rename(&copies[1], &first).unwrap();
    assert_eq!(read(&store, find(&store, "/a.txt").unwrap().ino).unwrap(), b"text");
    assert_eq!(find(&store, "/a (2).txt").unwrap().kind, Kind::File);
    fs::remove_file(&copies[0]).unwrap();
    assert_eq!(find(&store, "/a (2).txt").unwrap_err().kind(), ErrorKind::NotFound);
    put(&store, "/a (2).txt", b"new");
    assert_eq!(names_in(&store, Ino::ROOT), ["a (2).txt", "a.txt"]);
    assert!(stored(&root).iter().all(|n| !n.contains('(')));
}

#[test]
fn what_other_programs_left_goes_with_its_directory_and_what_may_be_a_version_stays() {
    for foreign in
        [".DS_Store", "Thumbs.db", "@eaDir/f", "@eaDir/sub/f", ".syncthing.X.c9r.tmp", "X.c9r.partial", "x.c9r"]
    {
        for replaced in [false, true] {
            let vault = Vault::create(CipherCombo::SivGcm, 220);
            let store = vault.open();
            store.mkdir(Ino::ROOT, name("D"), &new(0o755)).unwrap();
            store.mkdir(Ino::ROOT, name("E"), &new(0o755)).unwrap();
            let at = content_dir(&vault, &store, "/D").join(foreign);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(&at, "x").unwrap();
            std::os::unix::fs::symlink("/etc", at.with_file_name("link")).unwrap();
            match replaced {
                true => store.rename(Ino::ROOT, name("E"), Ino::ROOT, name("D"), RenameFlags::empty()).unwrap(),
                false => store.rmdir(Ino::ROOT, name("D")).unwrap(),
            }
            assert!(!at.exists(), "{foreign}");
            drop(store);
            assert!(vault.check().is_clean() && Path::new("/etc").exists(), "{foreign}");
        }
    }
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = vault.open();
    let dir = store.mkdir(Ino::ROOT, name("D"), &new(0o755)).unwrap().ino;
    put(&store, "/D/a", b"a");
    let folder = content_dir(&vault, &store, "/D");
    let entry = folder.join(&stored(&folder)[0]);
    let sealed = entry.file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(folder.join(".DS_Store"), "x").unwrap();
    for version in [format!("{sealed}.orig"), format!(".{sealed}.Xy12"), sealed.replace(".c9r", " (1).c9r")] {
        fs::copy(&entry, folder.join(&version)).unwrap();
        let held = store.unlink(dir, name("a"));
        let error = store.rmdir(Ino::ROOT, name("D")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotEmpty, "{version}");
        assert!(error.to_string().contains(&version), "{error}");
        assert!(folder.join(".DS_Store").exists() && folder.join(&version).exists(), "nothing is lost by the attempt");
        held.unwrap();
        fs::rename(folder.join(&version), &entry).unwrap();
    }
    store.unlink(dir, name("a")).unwrap();
    store.rmdir(Ino::ROOT, name("D")).unwrap();
}
