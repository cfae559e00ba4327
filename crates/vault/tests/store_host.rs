//! What the store makes on the host: which names, whose objects they are, and how long others wait for it.

#[path = "support/vault.rs"]
mod vault;

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Ino, RenameFlags};
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
