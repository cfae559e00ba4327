//! What the store makes on the host: which names, whose objects they are, and how long others wait for it.

#[path = "support/vault.rs"]
mod vault;

use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

use adit_core::ErrorKind;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Caller, Ino, RenameFlags};
use adit_vault::check::{Options, ProblemKind, check, repair};
use adit_vault::format::CipherCombo;
use adit_vault::format::names::{DirId, NameCipher, shorten};
use adit_vault::unlock;

use vault::{PASSWORD, THRESHOLDS, Vault, find, list, name, new};

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
    let new = |perm| NewNode { perm, caller: owner };
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
    let new = NewNode { perm: 0o755, caller: other };
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
    let new = NewNode { perm: 0o755, caller: owner };
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
