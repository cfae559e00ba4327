//! The store on the frozen fixtures: what the official library wrote is read as it read it, and damaged vaults show
//! all that is sound in them, and `Corrupt` for the rest.

#[path = "support/oracle.rs"]
mod oracle;
#[path = "support/vault.rs"]
mod vault;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::Ino;
use adit_media::HostDirectory;
use serde_json::Value;

use oracle::{Entry, copy_tree, fixtures, parse_lines};
use vault::{Seen, Tree, Vault, find, list, name, tree};

fn expected(entries: &[Entry]) -> Tree {
    let seen = |e: &Entry| match e.kind.as_str() {
        "dir" => Seen::Directory,
        "file" => Seen::File { size: e.size.unwrap(), sha256: e.sha256.clone().unwrap_or_default() },
        "symlink" => Seen::Symlink(e.target.clone().unwrap()),
        other => panic!("{}: {other}", e.path),
    };
    entries.iter().filter(|e| e.error.is_none()).map(|e| (e.path.clone(), seen(e))).collect()
}

/// A copy of the fixture at `path`. Git keeps no empty directories, so content directories may be missing in it.
fn copy_of(path: &Path) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    copy_tree(path, temp.path());
    temp
}

#[test]
fn every_sound_fixture_reads_as_the_official_library_read_it() {
    let passwords: BTreeMap<String, String> =
        serde_json::from_str(&fs::read_to_string(fixtures().join("vault/PASSWORDS.json")).unwrap()).unwrap();
    assert!(passwords.len() >= 7);
    for (fixture, password) in passwords {
        let from = fixtures().join("vault").join(&fixture);
        let vault = Vault::adopt(copy_of(&from), &password);
        let before = snapshot(&vault.path);
        let store = vault.open_read_only();
        let wanted = expected(&parse_lines(&fs::read_to_string(from.join("expected.jsonl")).unwrap()));
        assert_eq!(tree(&store), wanted, "{fixture}");
        let refused = store.mkdir(Ino::ROOT, name("new"), &vault::new(0o700)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        drop(store);
        assert_eq!(tree(&vault.open()), wanted, "{fixture}, writable");
        assert_eq!(snapshot(&vault.path), before, "{fixture}: reading changes nothing");
    }
}

fn snapshot(dir: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = Vec::new();
    vault::files_below(dir, &mut files);
    files.into_iter().map(|f| (f.clone(), fs::read(f).unwrap())).collect()
}

/// Damages of the files in the vault's root: it does not open.
#[test]
fn vaults_with_a_broken_root_get_their_named_error() {
    let mut seen = 0;
    for (case, what) in broken() {
        let (wanted, hint) = match what["finding"].as_str() {
            Some("hub-vault") => (ErrorKind::NotSupported, "Hub"),
            Some("old-format") => (ErrorKind::NotSupported, "7"),
            Some("new-format") => (ErrorKind::NotSupported, "9"),
            Some("bad-masterkey" | "bad-config") => (ErrorKind::Corrupt, ""),
            _ => continue,
        };
        let temp = copy_of(&fixtures().join("vault-broken").join(&case));
        let root = HostDirectory::open(&temp.path().join("vault")).unwrap();
        let error = adit_vault::unlock(&root, what["password"].as_str().unwrap()).map(drop).unwrap_err();
        // A key file of format 8 without its configuration is no old vault.
        let wanted = if case == "config-missing" { ErrorKind::Corrupt } else { wanted };
        let hint = if case == "config-missing" { "backup" } else { hint };
        // A key id that leaves the vault and an unknown cipher may be called either: no vault that we can open.
        let named = error.kind() == wanted || (wanted == ErrorKind::Corrupt && error.kind() == ErrorKind::NotSupported);
        assert!(named && error.to_string().contains(hint), "{case}: {error:?}");
        seen += 1;
    }
    assert!(seen >= 10, "{seen}");
}

fn broken() -> Vec<(String, Value)> {
    let mut cases = Vec::new();
    for case in fs::read_dir(fixtures().join("vault-broken")).unwrap() {
        let case = case.unwrap();
        let what = serde_json::from_slice(&fs::read(case.path().join("what.json")).unwrap()).unwrap();
        cases.push((case.file_name().into_string().unwrap(), what));
    }
    cases.sort_by(|a: &(String, Value), b| a.0.cmp(&b.0));
    cases
}

/// What of the damage is in the tree: `Corrupt` at its path, the entry left out, or the entry as it is.
enum Shows {
    Corrupt,
    LeftOut,
    Sound,
}

fn shows(finding: Option<&str>, case: &str) -> Shows {
    match (finding, case) {
        // The official library shows both names of one directory, and so do we.
        (_, "dir-id-duplicate") => Shows::Sound,
        (
            Some(
                "unreadable-header" | "unreadable-chunk" | "missing-content-dir" | "bad-dir-file" | "duplicate-dir-id",
            ),
            _,
        ) => Shows::Corrupt,
        (Some("unauthentic-name" | "invalid-name" | "not-shortened-name"), _) => Shows::LeftOut,
        (_, "long-no-contents" | "folder-without-kind") => Shows::Corrupt,
        // Without a sound name.c9s no name is known.
        (Some("broken-long-name"), _) => Shows::LeftOut,
        _ => Shows::Sound,
    }
}

/// What is sound in a damaged vault is read as the official library reads it; the damage shows as `Corrupt`, never as
/// other bytes, and a damaged file does not hide its directory.
#[test]
fn damaged_vaults_show_all_that_is_sound() {
    let mut seen = 0;
    for (case, what) in broken() {
        let temp = copy_of(&fixtures().join("vault-broken").join(&case));
        let root = HostDirectory::open(&temp.path().join("vault")).unwrap();
        let password = what["password"].as_str().unwrap();
        if adit_vault::unlock(&root, password).is_err() {
            continue;
        }
        let vault = Vault::adopt(temp, password);
        let store = vault.open_read_only();
        let got = tree(&store);
        let damage = what["cleartext"].as_str();
        for (path, seen) in &got {
            for part in path.split('/') {
                assert!(part != ".." && part != "." && !part.contains('\0'), "{case}: {path}");
            }
            if let Seen::Unreadable(kind) = seen {
                assert_eq!((*kind, Some(&**path)), (ErrorKind::Corrupt, damage), "{case}");
            }
        }
        match (damage, shows(what["finding"].as_str(), &case)) {
            (Some(path), Shows::Corrupt) => {
                assert_eq!(got.get(path), Some(&Seen::Unreadable(ErrorKind::Corrupt)), "{case}: {path}");
            }
            (Some(path), Shows::LeftOut) => assert_eq!(got.get(path), None, "{case}: {path}"),
            (Some(path), Shows::Sound) => {
                assert!(!matches!(got.get(path), Some(Seen::Unreadable(_))), "{case}: {path}");
            }
            (None, _) => {}
        }
        // The official library's view, where it has one, without what is damaged and what lies below it.
        if let Value::Array(official) = &what["official"]["dump"] {
            let official: Vec<Entry> = official.iter().map(|e| serde_json::from_value(e.clone()).unwrap()).collect();
            let outside = |path: &str| {
                damage.is_none_or(|d| path != d && !path.starts_with(&format!("{d}/")))
                    && path.split('/').all(|p| p != "." && p != ".." && !p.contains('\0'))
            };
            for (path, seen) in expected(&official) {
                if outside(&path) {
                    assert_eq!(got.get(&path), Some(&seen), "{case}: {path}");
                }
            }
        }
        seen += 1;
    }
    assert!(seen >= 40, "{seen}");
}

/// A directory that holds itself (or, in the second case, is below two) ends every walk, and every operation on it.
#[test]
fn a_directory_that_holds_itself_ends_every_walk() {
    let what: Value =
        serde_json::from_slice(&fs::read(fixtures().join("vault-broken/dir-id-loop/what.json")).unwrap()).unwrap();
    let vault = Vault::adopt(copy_of(&fixtures().join("vault-broken/dir-id-loop")), what["password"].as_str().unwrap());
    let store = vault.open();
    let dir = find(&store, "/dir").unwrap();
    vault::assert_corrupt(store.lookup(dir.ino, name("again")), "/dir/again");
    store.sync_dir(dir.ino).unwrap();
    let inner = store.mkdir(dir.ino, name("inner"), &vault::new(0o700)).unwrap();
    store.sync_dir(inner.ino).unwrap();
    let flags = adit_core::types::RenameFlags::empty();
    store.rename(dir.ino, name("inner"), Ino::ROOT, name("inner"), flags).unwrap();
    store.rename(Ino::ROOT, name("inner"), dir.ino, name("inner"), flags).unwrap();
    let refused = store.rename(Ino::ROOT, name("dir"), inner.ino, name("x"), flags).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(list(&store, dir.ino).unwrap().iter().any(|(n, ..)| n == "again"), "it is still listed");
}
