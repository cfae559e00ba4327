//! `check` and `repair` on the frozen fixtures, sound and broken, and on vaults with random damage.

#[path = "support/oracle.rs"]
mod oracle;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use adit_core::media::{HostDir, NewFile};
use adit_core::types::{Access, Kind};
use adit_media::HostDirectory;
use adit_testkit::crash::{CrashPlan, CrashWorld, Mode, crash_everywhere};
use adit_testkit::faults::{CallClass, Fault, Faults};
use adit_testkit::{Rng, seeds};
use adit_vault::check::{Options, ProblemKind, RepairReport, Report, check, keep, repair};
use adit_vault::format::content::object;
use adit_vault::format::names::{self, DirId};
use adit_vault::format::{ContentCipher, NameCipher};
use adit_vault::{Unlocked, unlock};
use oracle::{copy_tree, fixtures};
use serde_json::Value;

/// A vault to work on.
struct Copy {
    temp: tempfile::TempDir,
    root: HostDirectory,
    keys: Unlocked,
}

impl Copy {
    fn of(vault: &Path, password: &str) -> Copy {
        let temp = tempfile::tempdir().unwrap();
        copy_tree(vault, temp.path());
        let root = HostDirectory::open(temp.path()).unwrap();
        let keys = unlock(&root, password).unwrap();
        Copy { temp, root, keys }
    }

    fn sound(name: &str) -> Copy {
        let text = fs::read_to_string(fixtures().join("vault/PASSWORDS.json")).unwrap();
        let passwords: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
        let copy = Copy::of(&fixtures().join("vault").join(name).join("vault"), &passwords[name]);
        copy.restore_empty_directories();
        copy
    }

    fn broken(name: &str) -> Copy {
        let case = fixtures().join("vault-broken").join(name);
        let what: Value = serde_json::from_str(&fs::read_to_string(case.join("what.json")).unwrap()).unwrap();
        Copy::of(&case.join("vault"), what["password"].as_str().unwrap())
    }

    fn path(&self) -> &Path {
        self.temp.path()
    }

    fn check(&self) -> Report {
        check(&self.root, &self.keys, Options::default(), &mut |_| {}).unwrap()
    }

    fn repair(&self) -> RepairReport {
        repair(&self.root, &self.keys, Options::default(), &mut |_| {}).unwrap()
    }

    /// Git keeps no empty directories; every one of a sound vault has its id file, so none may be lost.
    fn restore_empty_directories(&self) {
        for path in files(self.path()).keys().filter(|p| p.ends_with("/dir.c9r")) {
            let id = DirId::parse(&fs::read(self.path().join(path)).unwrap()).unwrap();
            let content = NameCipher::new(&self.keys.masterkey).dir_hash_path(&id);
            assert!(self.path().join(&content).exists(), "{path}: {content} is not in the fixture");
        }
    }
}

/// Relative paths of all files below `root`, with their contents.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut queue = vec![PathBuf::new()];
    while let Some(dir) = queue.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                queue.push(path);
            } else {
                found.insert(path.to_str().unwrap().to_owned(), fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// Asserts that every file's content is still somewhere, as often as before.
fn assert_nothing_lost(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>, what: &str) {
    let mut there: HashMap<&[u8], usize> = HashMap::new();
    for content in after.values() {
        *there.entry(content).or_default() += 1;
    }
    for (path, content) in before {
        let count = there.entry(content).or_default();
        assert!(*count > 0, "{what}: the content of {path} has gone");
        *count -= 1;
    }
}

fn broken_cases() -> Vec<String> {
    let mut cases: Vec<_> = fs::read_dir(fixtures().join("vault-broken"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("config-") && !name.starts_with("masterkey-"))
        .collect();
    cases.sort();
    assert!(cases.len() > 40);
    cases
}

fn what(name: &str) -> Value {
    let case = fixtures().join("vault-broken").join(name);
    serde_json::from_str(&fs::read_to_string(case.join("what.json")).unwrap()).unwrap()
}

/// What `check` is to find besides the finding on record.
fn also(name: &str) -> &'static [&'static str] {
    match name {
        // What was behind the entry is an orphan now.
        "dir-id-duplicate" | "dir-id-empty" | "dir-id-binary" | "dir-id-huge" => &["orphaned-content-dir"],
        _ => &[],
    }
}

#[test]
fn sound_vaults_have_no_problems() {
    for name in ["gcm-220", "ctrmac-220", "gcm-shortened", "ctrmac-shortened", "gcm-empty", "gcm-hs384", "gcm-hs512"] {
        let copy = Copy::sound(name);
        let report = copy.check();
        assert!(report.is_clean() && report.notes.is_empty(), "{name}: {report:#?}");
        let lines = fs::read_to_string(fixtures().join("vault").join(name).join("expected.jsonl")).unwrap();
        let expected = oracle::parse_lines(&lines);
        let count = |kind: &str| expected.iter().filter(|e| e.kind == kind).count() as u64;
        assert_eq!(report.files, count("file"), "{name}");
        assert_eq!(report.directories, count("dir") + 1, "{name}");
        assert_eq!(report.symlinks, count("symlink"), "{name}");
        let before = files(copy.path());
        let repaired = copy.repair();
        assert!(repaired.done.is_empty() && repaired.failed.is_empty());
        assert_eq!(files(copy.path()), before, "{name}: a sound vault is not touched");
    }
}

#[test]
fn each_damage_is_found_where_it_is() {
    for name in broken_cases() {
        let (report, what) = (Copy::broken(&name).check(), what(&name));
        let mut kinds: Vec<_> = report.problems.iter().map(|p| p.kind.as_str()).collect();
        kinds.dedup();
        let Some(kind) = what["finding"].as_str() else {
            assert!(report.is_clean(), "{name}: {report:#?}");
            assert_eq!(report.notes.is_empty(), name == "contents-swapped", "{name}: {report:#?}");
            continue;
        };
        let mut expected = vec![kind];
        expected.extend(also(&name));
        assert_eq!(kinds, expected, "{name}: {report:#?}");
        let at = what["ciphertext"].as_str().unwrap();
        let found = report.problems.iter().find(|p| p.kind.as_str() == kind && p.ciphertext_path == at);
        let found = found.unwrap_or_else(|| panic!("{name}: nothing at {at}: {report:#?}"));
        if let (Some(expected), Some(path)) = (what["cleartext"].as_str(), &found.path) {
            let folder = &expected[..=expected.rfind('/').unwrap()];
            assert_eq!(path, if found.name_known { expected } else { folder }, "{name}");
        }
        // A name that nothing proves cannot be told; all else can.
        let nameless = ["broken-long-name", "ambiguous-entry"].contains(&kind);
        assert!(found.name_known || nameless || what["cleartext"].is_null(), "{name}: {found:?}");
        let in_a_directory = ["broken-long-name", "unauthentic-name", "invalid-name"].contains(&kind);
        assert!(found.path.is_some() || !in_a_directory, "{name}: {found:?}");
    }
}

#[test]
fn repair_mends_what_can_be_mended_and_loses_nothing() {
    for name in broken_cases() {
        let copy = Copy::broken(&name);
        let before = files(copy.path());
        let repaired = copy.repair();
        assert_nothing_lost(&before, &files(copy.path()), &name);
        assert!(repaired.failed.is_empty(), "{name}: {:#?}", repaired.failed);
        let again = copy.check();
        let kinds = |r: &Report| r.problems.iter().map(|p| p.kind).collect::<Vec<_>>();
        assert_eq!(kinds(&again), kinds(&repaired.after), "{name}");
        let left = [ProblemKind::UnreadableHeader, ProblemKind::UnreadableChunk];
        let recorded = what(&name)["finding"].as_str().map(str::to_owned);
        let unmendable = left.iter().any(|kind| Some(kind.as_str()) == recorded.as_deref());
        if unmendable {
            assert_eq!(kinds(&again).len(), 1, "{name}: {again:#?}");
            assert_eq!(files(copy.path()), before, "{name}: bad contents are not touched");
        } else {
            assert!(again.is_clean(), "{name}: {:#?}\n{again:#?}", repaired.done);
        }
        let settled = files(copy.path());
        assert!(copy.repair().done.is_empty(), "{name}: a second repair does nothing");
        assert_eq!(files(copy.path()), settled, "{name}");
    }
}

/// The cleartext names that lie in a directory below the root.
fn names_in(copy: &Copy, path: &[&str]) -> Vec<String> {
    let names = NameCipher::new(&copy.keys.masterkey);
    let (mut id, threshold) = (DirId::root(), copy.keys.config.shortening_threshold);
    for name in path {
        let full = names.encrypt_name(name, &id).unwrap();
        let stored = if names::is_long(&full, threshold) { names::shorten(&full) } else { full };
        let file = copy.path().join(names.dir_hash_path(&id)).join(stored).join("dir.c9r");
        id = DirId::parse(&fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))).unwrap();
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(copy.path().join(names.dir_hash_path(&id))).unwrap() {
        let entry = entry.unwrap();
        let mut stored = entry.file_name().into_string().unwrap();
        if stored.ends_with(".c9s") {
            stored = fs::read_to_string(entry.path().join("name.c9s")).unwrap();
        }
        found.extend(names.decrypt_name(&stored, &id));
    }
    found.sort();
    found
}

#[test]
fn an_orphan_is_found_again_with_its_names() {
    let copy = Copy::broken("orphan");
    assert!(!names_in(&copy, &[]).contains(&"dir".to_owned()));
    let repaired = copy.repair();
    assert_eq!(repaired.done.len(), 1, "{repaired:#?}");
    let told = |report: &Report| report.notes.iter().any(|n| n.detail.starts_with("/lost+found holds 1 entry"));
    assert!(!told(&repaired.before) && told(&repaired.after), "{repaired:#?}");
    let found = names_in(&copy, &["lost+found"]);
    assert_eq!(found.len(), 1);
    assert_eq!(names_in(&copy, &["lost+found", &found[0]]), ["inside.txt"]);
}

/// The entry of a directory has lost the id, and so the directory has lost its entry: the name is kept, or told where it
/// could be another's.
#[test]
fn an_orphan_keeps_the_name_that_its_entry_had() {
    for entries in [&["dir"][..], &["dir", "other"]] {
        let copy = Copy::broken("orphan");
        let (root, names, _) = inside(&copy);
        for name in entries {
            let folder = root.join(names.encrypt_name(name, &DirId::root()).unwrap());
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("dir.c9r"), [0xff]).unwrap();
        }
        let repaired = copy.repair();
        assert!(repaired.after.is_clean() && repaired.done.len() == 1 + entries.len(), "{repaired:#?}");
        let found = names_in(&copy, &["lost+found"]);
        assert_eq!(names_in(&copy, &["lost+found", &found[0]]), ["inside.txt"]);
        let told = &repaired.done.last().unwrap().action;
        if entries.len() == 1 {
            assert_eq!(found, ["dir"]);
            assert!(told.contains("it is most likely /dir,"), "{told}");
        } else {
            assert_eq!(found[0].len(), 36, "the id is its name: {found:?}");
            assert!(told.contains("one of these,") && told.contains("/dir") && told.contains("/other"), "{told}");
        }
    }
}

#[test]
fn an_orphan_without_id_gives_up_its_contents_under_made_up_names() {
    let copy = Copy::broken("orphan-no-dirid");
    copy.repair();
    let found = names_in(&copy, &["lost+found"]);
    assert!(found.len() == 1 && found[0].starts_with("file-"), "{found:?}");
}

#[test]
fn names_that_can_be_proven_are_restored() {
    for (case, dir, name) in [
        ("long-trailing-bytes", &[][..], "long"),
        ("name-unpadded", &[], "dir"),
        ("name-nfd", &["dir"], "caf\u{e9}"),
        ("name-not-shortened", &["dir"], "xxxx"),
    ] {
        let copy = Copy::broken(case);
        copy.repair();
        let found = names_in(&copy, dir);
        assert!(found.iter().any(|n| n.starts_with(name)), "{case}: {found:?}");
        assert!(!names_in(&copy, &[]).contains(&"lost+found".to_owned()), "{case}");
    }
}

#[test]
fn kinds_keep_their_names() {
    use ProblemKind::*;
    for (kind, name) in [
        (UnreadableHeader, "unreadable-header"),
        (BadLink, "bad-link"),
        (DuplicateName, "duplicate-name"),
        (NeedlesslyShortenedName, "needlessly-shortened-name"),
        (InterruptedOperation, "interrupted-operation"),
        (HostError, "host-error"),
    ] {
        assert_eq!(kind.to_string(), name);
    }
}

#[test]
fn a_dir_file_with_bytes_behind_the_id_is_restored() {
    let copy = Copy::broken("orphan");
    let (at, id) = files(copy.path()).into_iter().find(|(path, _)| path.ends_with("/dir.c9r")).unwrap();
    fs::write(copy.path().join(&at), [&id[..], &[b'\n'; 100]].concat()).unwrap();
    let report = copy.check();
    assert_eq!(report.problems[0].kind, ProblemKind::BadDirFile, "{report:#?}");
    assert_eq!(report.problems.len(), 2, "its content directory is no orphan: {report:#?}");
    assert!(copy.repair().after.is_clean());
    assert_eq!(fs::read(copy.path().join(&at)).unwrap(), id);
}

#[test]
fn a_longer_id_than_others_accept_is_told_and_left() {
    let copy = Copy::sound("gcm-empty");
    let (root, names, content) = inside(&copy);
    let id = DirId::parse(&[b'x'; 100]).unwrap();
    let folder = root.join(names.encrypt_name("d", &DirId::root()).unwrap());
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("dir.c9r"), id.as_str()).unwrap();
    let dir = copy.path().join(names.dir_hash_path(&id));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("dirid.c9r"), object::encode_dir_id(&content, &id).unwrap()).unwrap();
    let report = copy.repair().after;
    assert_eq!(report.problems.len(), 1, "{report:#?}");
    assert!(report.problems[0].kind == ProblemKind::BadDirFile && !report.problems[0].repairable);
    assert_eq!(report.directories, 2);
}

/// The content directory of the root, and ciphers.
fn inside(copy: &Copy) -> (PathBuf, NameCipher, ContentCipher) {
    let names = NameCipher::new(&copy.keys.masterkey);
    let content = ContentCipher::new(&copy.keys.masterkey, copy.keys.config.cipher_combo).unwrap();
    (copy.path().join(names.dir_hash_path(&DirId::root())), names, content)
}

#[test]
fn leftovers_of_interrupted_operations_are_moved_aside() {
    let copy = Copy::sound("gcm-empty");
    let (root, ..) = inside(&copy);
    fs::write(root.join(".adit-1.tmp"), "x").unwrap();
    fs::create_dir(root.join(".adit-2.tmp")).unwrap();
    fs::write(root.join(".adit-2.tmp/contents.c9r"), "y").unwrap();
    fs::write(copy.path().join(".adit-3.tmp"), "z").unwrap();
    let report = copy.check();
    assert_eq!(report.problems.len(), 3, "{report:#?}");
    assert!(report.problems.iter().all(|p| p.kind == ProblemKind::InterruptedOperation && p.repairable));
    let before = files(copy.path());
    let repaired = copy.repair();
    assert!(repaired.after.is_clean());
    assert_eq!(repaired.after.notes.len(), 1, "it tells of adit-lost+found");
    assert_nothing_lost(&before, &files(copy.path()), "leftovers");
    fs::write(root.join(".adit-1.tmp"), "another").unwrap();
    assert!(copy.repair().after.is_clean(), "a name that is taken there is no obstacle");
    assert_nothing_lost(&before, &files(copy.path()), "leftovers");
}

#[test]
fn two_names_that_normalise_alike_are_told_apart() {
    let copy = Copy::broken("name-nfd");
    let (_, names, content) = inside(&copy);
    let nfd = copy.path().join(what("name-nfd")["ciphertext"].as_str().unwrap());
    let folder = nfd.parent().unwrap();
    let id = object::decode_dir_id(&content, &fs::read(folder.join("dirid.c9r")).unwrap()).unwrap();
    let nfc = names.encrypt_name("caf\u{e9}", &id).unwrap();
    fs::write(folder.join(&nfc), object::encode(&content, b"nfc").unwrap()).unwrap();
    let report = copy.check();
    assert_eq!(report.problems.len(), 1, "{report:#?}");
    assert_eq!(report.problems[0].kind, ProblemKind::DuplicateName);
    assert!(copy.repair().after.is_clean());
    assert_eq!(names_in(&copy, &["lost+found"]), ["caf\u{e9}"]);
    assert!(folder.join(nfc).exists());
}

#[test]
fn conflict_copies_are_noted() {
    let copy = Copy::sound("gcm-empty");
    let (root, names, content) = inside(&copy);
    let good = names.encrypt_name("a name", &DirId::root()).unwrap();
    fs::write(root.join(&good), object::encode(&content, b"1").unwrap()).unwrap();
    assert!(copy.check().is_clean());
    fs::write(root.join(good.replace(".c9r", " (1).c9r")), object::encode(&content, b"2").unwrap()).unwrap();
    let report = copy.check();
    assert!(report.is_clean() && report.notes.len() == 1, "{report:#?}");
    let note = &report.notes[0];
    assert_eq!(note.path.as_deref(), Some("/a name"), "{note:?}");
    assert!(note.detail.contains("second version of /a name,"), "{note:?}");
    assert!(note.detail.contains("mounts show it as /a name (1), where"), "{note:?}");
    // Without the original, the name is free.
    fs::rename(root.join(&good), copy.path().join("kept")).unwrap();
    let told = &copy.check().notes[0];
    assert!(told.detail.contains("mounts show it as /a name, where"), "{told:?}");
}

/// Names that sync programs make of encrypted ones; see `version::tests` for more of them.
const SUFFIXES: [&str; 6] = [
    " (host's conflicted copy 2026-11-25)",
    ".sync-conflict-20261125-120000-ABCDEFG",
    "-LAPTOP7",
    "_DiskStation_Nov-25-120000-2026_Conflict",
    "_conflict-20261125-120000",
    "-bak",
];

#[test]
fn second_versions_are_no_damage_whatever_their_names_are_made_of() {
    let copy = Copy::sound("gcm-empty");
    let folder = add_directory(&copy, "d");
    let (_, names, content) = inside(&copy);
    // Of each length of padding, and with a letter of base64 at the end.
    let clear: Vec<String> = (1..40).map(|n| "n".repeat(n)).collect();
    for n in &clear {
        let full = names.encrypt_name(n, &folder.id).unwrap();
        for version in std::iter::once("").chain(SUFFIXES) {
            let at = folder.path.join(full.replace(".c9r", &format!("{version}.c9r")));
            fs::write(at, object::encode(&content, b"text").unwrap()).unwrap();
        }
        // What a Mac keeps of it.
        fs::write(folder.path.join(format!("._{full}")), b"\0\x05\x16\x07").unwrap();
    }
    fs::write(folder.path.join("dirid.sync-conflict-20261125-120000-ABCDEFG.c9r"), b"x").unwrap();
    let report = copy.check();
    assert!(report.is_clean(), "{:#?}", &report.problems[..4]);
    assert_eq!(report.conflicts.len(), clear.len() * SUFFIXES.len());
    assert_eq!(report.notes.len(), report.conflicts.len() + clear.len() + 1);
    for conflict in &report.conflicts {
        let (path, shown) = (conflict.path.as_ref().unwrap(), conflict.shown.as_ref().unwrap());
        assert!(SUFFIXES.iter().any(|suffix| *shown == format!("{path}{suffix}")), "{conflict:?}");
    }
    // Nothing is there to be mended.
    assert!(copy.repair().done.is_empty());
}

/// Two devices changed a file with a long name, a link, and made a folder: the second version lies in the folder of the entry.
#[test]
fn second_versions_of_parts_are_told_and_one_is_kept() {
    let (l, text) = ("L".repeat(200), |bytes: &[u8]| bytes.to_vec());
    for kept in [false, true] {
        let copy = Copy::sound("gcm-empty");
        let (root, names, content) = inside(&copy);
        let folder = add_directory(&copy, "folder");
        let theirs = DirId::generate();
        let inner = copy.path().join(names.dir_hash_path(&theirs));
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("dirid.c9r"), object::encode_dir_id(&content, &theirs).unwrap()).unwrap();
        let below = names.encrypt_name("theirs", &theirs).unwrap();
        fs::write(inner.join(&below), object::encode(&content, b"2").unwrap()).unwrap();
        let entry = root.join(names.encrypt_name("folder", &DirId::root()).unwrap());
        fs::write(entry.join("dir (conflict).c9r"), theirs.as_str()).unwrap();
        let long = folder.path.join(add_long_file(&copy, &folder, &l));
        fs::write(long.join("contents (conflict).c9r"), object::encode(&content, b"other").unwrap()).unwrap();
        fs::copy(long.join("name.c9s"), long.join("name (conflict).c9s")).unwrap();
        let link = root.join(names.encrypt_name("link", &DirId::root()).unwrap());
        fs::create_dir(&link).unwrap();
        fs::write(link.join("symlink.c9r"), object::encode(&content, b"one").unwrap()).unwrap();
        fs::write(link.join("symlink (conflict).c9r"), object::encode(&content, b"two").unwrap()).unwrap();

        let report = copy.check();
        assert!(report.is_clean(), "{report:#?}");
        assert_eq!((report.notes.len(), report.conflicts.len(), report.files), (4, 4, 2), "{report:#?}");
        let told = |path: &str| report.notes.iter().filter(|n| n.path.as_deref() == Some(path)).count();
        let long_path = format!("/folder/{l}");
        assert_eq!([told("/folder"), told(&long_path), told("/link")], [1, 2, 1]);
        let absent = keep(&copy.root, &copy.keys, &report.conflicts, "/other").unwrap_err();
        assert!(absent.is_not_found());
        for path in ["/link", &*long_path, "/folder"] {
            let now = copy.check().conflicts;
            let second = now.iter().find(|c| c.path.as_deref() == Some(path) && c.shown.is_some()).unwrap();
            let path = if kept { second.shown.as_deref().unwrap() } else { path };
            let done = keep(&copy.root, &copy.keys, &now, path).unwrap();
            assert!(!done.is_empty());
        }
        let after = copy.check();
        assert!(after.is_clean() && after.conflicts.is_empty(), "{after:#?}");
        let lost = names_in(&copy, &["lost+found"]);
        assert_eq!(lost.len(), 3, "{lost:?}");
        let read = |path: PathBuf| object::decode(&content, &fs::read(path).unwrap()).unwrap().to_vec();
        let (one, two) = (text(b"one"), text(b"two"));
        assert_eq!(read(link.join("symlink.c9r")), if kept { two } else { one });
        let names_there = names_in(&copy, &["folder"]);
        match kept {
            true => assert_eq!(names_there, ["theirs"]),
            false => assert_eq!((names_there, read(long.join("contents.c9r"))), (vec![l.clone()], text(b"text"))),
        }
    }
}

#[test]
fn a_conflict_copy_of_a_long_name_tells_its_original() {
    let copy = Copy::sound("gcm-empty");
    let folder = add_directory(&copy, "d1");
    let long = add_long_file(&copy, &folder, &"n".repeat(200));
    let copied = folder.path.join(long.replace(".c9s", " (1).c9s"));
    copy_tree(&folder.path.join(&long), &copied);
    let report = copy.check();
    assert!(report.is_clean() && report.notes.len() == 1, "{report:#?}");
    assert_eq!(report.notes[0].path.as_deref(), Some(&*format!("/d1/{}", "n".repeat(200))), "{report:#?}");
    let shown = format!("mounts show it as /d1/{} (1), where", "n".repeat(200));
    assert!(report.notes[0].detail.contains(&shown), "{report:#?}");
}

/// A directory in the root.
struct Folder {
    id: DirId,
    path: PathBuf,
}

fn add_directory(copy: &Copy, name: &str) -> Folder {
    let (root, names, content) = inside(copy);
    let id = DirId::generate();
    let entry = root.join(names.encrypt_name(name, &DirId::root()).unwrap());
    fs::create_dir(&entry).unwrap();
    fs::write(entry.join("dir.c9r"), id.as_str()).unwrap();
    let path = copy.path().join(names.dir_hash_path(&id));
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("dirid.c9r"), object::encode_dir_id(&content, &id).unwrap()).unwrap();
    Folder { id, path }
}

/// Adds a file with a shortened name; returns the name of its folder.
fn add_long_file(copy: &Copy, folder: &Folder, name: &str) -> String {
    let (_, names, content) = inside(copy);
    let full = names.encrypt_name(name, &folder.id).unwrap();
    let stored = names::shorten(&full);
    fs::create_dir(folder.path.join(&stored)).unwrap();
    fs::write(folder.path.join(&stored).join("name.c9s"), full).unwrap();
    fs::write(folder.path.join(&stored).join("contents.c9r"), object::encode(&content, b"text").unwrap()).unwrap();
    stored
}

/// Names that are lost: the folder is told, in the problem, by the repair, and later by the name in lost+found.
#[test]
fn what_has_lost_its_name_tells_its_folder() {
    let copy = Copy::sound("gcm-empty");
    let folder = add_directory(&copy, "d4");
    let long = add_long_file(&copy, &folder, &"n".repeat(200));
    fs::remove_file(folder.path.join(&long).join("name.c9s")).unwrap();
    let (_, names, content) = inside(&copy);
    let short = names.encrypt_name("of the root", &DirId::root()).unwrap();
    fs::write(folder.path.join(&short), object::encode(&content, b"short").unwrap()).unwrap();
    let report = copy.check();
    let mut kinds: Vec<_> = report.problems.iter().map(|p| p.kind).collect();
    kinds.sort();
    assert_eq!(kinds, [ProblemKind::UnauthenticName, ProblemKind::BrokenLongName], "{report:#?}");
    assert!(report.problems.iter().all(|p| p.path.as_deref() == Some("/d4/") && !p.name_known), "{report:#?}");
    let repaired = copy.repair();
    assert!(repaired.after.is_clean() && repaired.done.len() == 2, "{repaired:#?}");
    assert!(repaired.done.iter().all(|r| r.path.as_deref() == Some("/d4/") && !r.name_known), "{repaired:#?}");
    let found = names_in(&copy, &["lost+found"]);
    assert_eq!(found.len(), 2);
    for name in &found {
        assert!(name.starts_with("file-") && name.ends_with(" (from d4)"), "{found:?}");
        assert!(repaired.done.iter().any(|r| r.action.contains(name)), "{name}: {repaired:#?}");
    }
}

/// Damage below a directory whose name is lost is told with the last folder whose name is not.
#[test]
fn what_is_below_a_lost_name_tells_the_last_known_folder() {
    let copy = Copy::sound("gcm-empty");
    let folder = add_directory(&copy, "d4");
    let (_, names, content) = inside(&copy);
    let inner = DirId::generate();
    let entry = folder.path.join(names.encrypt_name("of the root", &DirId::root()).unwrap());
    fs::create_dir(&entry).unwrap();
    fs::write(entry.join("dir.c9r"), inner.as_str()).unwrap();
    let path = copy.path().join(names.dir_hash_path(&inner));
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("dirid.c9r"), object::encode_dir_id(&content, &inner).unwrap()).unwrap();
    fs::write(path.join(names.encrypt_name("bad", &inner).unwrap()), "short").unwrap();
    let report = copy.check();
    let bad = report.problems.iter().find(|p| p.kind == ProblemKind::UnreadableHeader).unwrap();
    assert_eq!((bad.path.as_deref(), bad.name_known), (Some("/d4/"), false), "{report:#?}");
}

#[test]
fn only_what_holds_something_is_announced() {
    let copy = Copy::sound("gcm-empty");
    let folder = add_directory(&copy, "d4");
    fs::create_dir(folder.path.join(names::shorten("nothing.c9r"))).unwrap();
    let repaired = copy.repair();
    assert_eq!(repaired.done.len(), 1, "{repaired:#?}");
    assert!(repaired.after.notes.is_empty(), "an empty folder is nothing to look through: {repaired:#?}");
    let aside = copy.path().join("adit-lost+found");
    assert!(aside.is_dir());
    fs::write(aside.join("1/file"), "").unwrap();
    assert_eq!(copy.check().notes[0].ciphertext_path, "adit-lost+found");
}

#[test]
fn a_shortened_name_within_the_threshold_is_restored() {
    let copy = Copy::sound("gcm-empty");
    let (root, names, content) = inside(&copy);
    let full = names.encrypt_name("short", &DirId::root()).unwrap();
    let folder = root.join(names::shorten(&full));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("name.c9s"), &full).unwrap();
    fs::write(folder.join("contents.c9r"), object::encode(&content, b"text").unwrap()).unwrap();
    let report = copy.check();
    assert_eq!(report.problems[0].kind, ProblemKind::NeedlesslyShortenedName, "{report:#?}");
    assert_eq!(report.problems[0].path.as_deref(), Some("/short"));
    assert!(copy.repair().after.is_clean());
    assert!(root.join(&full).is_file());
}

#[test]
fn a_vault_without_its_root_keeps_every_directory() {
    let copy = Copy::broken("orphan");
    let (root, names, _) = inside(&copy);
    let before = files(copy.path());
    fs::rename(&root, copy.path().join("kept")).unwrap();
    let report = copy.check();
    assert_eq!(report.problems[0].kind, ProblemKind::MissingContentDir);
    assert_eq!(report.problems[0].path.as_deref(), Some("/"));
    assert!(report.problems[1..].iter().all(|p| p.kind == ProblemKind::OrphanedContentDir));
    let repaired = copy.repair();
    assert!(repaired.after.is_clean(), "{repaired:#?}");
    // The directories, and the note that the root has lost what it held.
    assert_eq!(names_in(&copy, &["lost+found"]).len(), report.problems.len() - 1 + 1);
    assert_eq!(repaired.after.lost.len(), 1, "{repaired:#?}");
    assert_eq!(repaired.after.lost[0].path.as_deref(), Some("/"));
    assert_nothing_lost(&before, &files(copy.path()), "no root");
    assert!(root.exists() && names.dir_hash_path(&DirId::root()).starts_with("d/"));
}

#[test]
fn lost_content_is_not_forgotten_by_a_repair() {
    let copy = Copy::broken("content-dir-missing");
    let found = copy.check();
    let lost = found.problems.iter().find(|p| p.kind == ProblemKind::MissingContentDir).expect("the fixture's damage");
    let path = lost.path.clone().expect("its path is known");
    assert!(found.lost.is_empty(), "nothing was repaired yet");
    let repaired = copy.repair();
    assert!(repaired.after.is_clean(), "{repaired:#?}");
    assert_eq!(repaired.after.lost.len(), 1);
    // Every later check tells of it, and a second repair adds nothing.
    for report in [copy.check(), copy.repair().after, copy.check()] {
        assert!(report.is_clean());
        assert_eq!(report.lost, repaired.after.lost);
        assert_eq!(report.lost[0].path.as_deref(), Some(path.as_str()));
    }
    // The note is a file like any other: an entry of the vault that can be read and removed.
    let names = names_in(&copy, &["lost+found"]);
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(copy.check().lost[0].note, format!("/lost+found/{}", names[0]));
    let line = format!("{path}\n");
    let readable = |bytes: Vec<u8>| bytes.windows(line.len()).any(|w| w == line.as_bytes());
    assert!(!files(copy.path()).into_values().any(readable), "its text is encrypted");
    assert!(copy.check().notes.is_empty(), "the note itself is not something saved");
    let content = repaired.done.iter().find(|r| r.kind == ProblemKind::MissingContentDir).unwrap();
    assert!(content.action.contains(&names[0]), "{content:?}");
}

#[test]
fn orphans_below_orphans_are_one_orphan() {
    let copy = Copy::sound("gcm-shortened");
    let (root, ..) = inside(&copy);
    let directories = copy.check().directories;
    // All top-level directories lose their entries.
    let mut lost = 0;
    for entry in fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        if path.join("dir.c9r").exists() {
            fs::rename(&path, copy.path().join(format!("kept-{lost}"))).unwrap();
            lost += 1;
        }
    }
    let report = copy.check();
    assert_eq!(report.problems.len(), lost, "{report:#?}");
    assert_eq!(report.directories, directories);
    let repaired = copy.repair();
    assert!(repaired.after.is_clean(), "{repaired:#?}");
    assert_eq!(repaired.after.directories, directories + 1);
    assert_eq!(names_in(&copy, &["lost+found"]).len(), lost);
}

#[test]
fn what_the_host_does_not_read_is_not_taken_for_absent() {
    let copy = Copy::sound("ctrmac-shortened");
    let before = files(copy.path());
    let faults = Faults::new();
    let dir = faults.wrap(HostDirectory::open(copy.path()).unwrap());
    let calls_before = faults.calls();
    check(&dir, &copy.keys, Options::default(), &mut |_| {}).unwrap();
    let calls = faults.calls() - calls_before;
    let classes = [CallClass::Open, CallClass::Read, CallClass::List, CallClass::Stat];
    for skip in 0..calls {
        faults.arm(Fault::IO, &classes, skip, 1);
        let report = check(&dir, &copy.keys, Options::default(), &mut |_| {}).unwrap();
        faults.disarm();
        let fired = faults.fired();
        assert!(report.problems.iter().all(|p| !p.repairable), "call {skip} {fired:?}: {report:#?}");
        // A directory whose attributes are not told, but whose entries are, is as good as any.
        let needless = fired.iter().all(|call| call.starts_with("Stat d/"));
        assert!(needless || !report.is_clean(), "call {skip} {fired:?}");
        faults.arm(Fault::IO, &classes, skip, 1);
        repair(&dir, &copy.keys, Options::default(), &mut |_| {}).unwrap();
        faults.disarm();
        assert_eq!(files(copy.path()), before, "call {skip} {fired:?}");
    }
}

/// Does one random damage to the vault's files; nothing outside `d`. Returns a line about it.
fn damage(root: &Path, rng: &mut Rng) -> String {
    let all: Vec<String> = files(root).into_keys().filter(|p| p.starts_with("d/")).collect();
    let Some(path) = (!all.is_empty()).then(|| rng.pick(&all).clone()) else { return "nothing is left".to_owned() };
    let at = root.join(&path);
    let folder = at.parent().unwrap().to_owned();
    let other = root.join(rng.pick(&all));
    match rng.below(9) {
        0 => fs::remove_file(&at).unwrap(),
        1 => fs::remove_dir_all(&folder).unwrap(),
        2 => {
            let mut bytes = fs::read(&at).unwrap();
            if let Some(byte) = (!bytes.is_empty()).then(|| rng.below(bytes.len() as u64) as usize) {
                bytes[byte] ^= 1 << rng.below(8);
            }
            fs::write(&at, bytes).unwrap();
        }
        3 => {
            let bytes = fs::read(&at).unwrap();
            fs::write(&at, &bytes[..rng.below(bytes.len() as u64 + 1) as usize]).unwrap();
        }
        4 => fs::write(&at, fs::read(other).unwrap()).unwrap(),
        5 => drop(fs::rename(&at, other.parent().unwrap().join(at.file_name().unwrap()))),
        6 => drop(fs::rename(&folder, other.parent().unwrap().join(folder.file_name().unwrap()))),
        7 => {
            let mut name = at.file_name().unwrap().to_str().unwrap().to_owned();
            let n = rng.below(name.len() as u64) as usize;
            name.replace_range(n..=n, "A");
            drop(fs::rename(&at, folder.join(name)));
        }
        _ => drop(fs::create_dir(folder.join(format!("{:028}=.c9s", rng.below(1000))))),
    }
    path
}

#[test]
fn random_damage_is_survived_and_nothing_is_deleted() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let name = *rng.pick(&["gcm-shortened", "ctrmac-shortened"]);
        let copy = Copy::sound(name);
        let times = 1 + rng.below(12);
        let story: Vec<_> = (0..times).map(|_| damage(copy.path(), &mut rng)).collect();
        let told = format!("ADIT_TEST_SEED={seed} {name} {story:?}");
        let before = files(copy.path());
        let repaired = copy.repair();
        assert_nothing_lost(&before, &files(copy.path()), &told);
        let left = copy.check();
        let mended = |p: &&adit_vault::check::Problem| p.repairable;
        let hopeless: Vec<_> = left.problems.iter().filter(mended).collect();
        let failed: Vec<_> = repaired.failed.iter().map(|r| &r.ciphertext_path).collect();
        assert!(
            hopeless.iter().all(|p| failed.contains(&&p.ciphertext_path)),
            "{told}\n{hopeless:#?}\n{:#?}\n{:#?}",
            repaired.done,
            repaired.failed
        );
        let settled = files(copy.path());
        copy.repair();
        assert_eq!(files(copy.path()), settled, "{told}: a second repair has nothing to do");
    }
}

#[test]
fn a_repair_that_stops_anywhere_can_be_repeated() {
    for name in [
        "dir-id-duplicate",
        "long-wrong-name",
        "orphan-no-dirid",
        "name-not-shortened",
        "long-ambiguous",
        "long-name-huge",
        "content-dir-missing",
    ] {
        let whole = Copy::broken(name);
        let before = files(whole.path());
        for skip in 0.. {
            let copy = Copy::broken(name);
            let faults = Faults::new();
            let dir = faults.wrap(HostDirectory::open(copy.path()).unwrap());
            let classes = CallClass::CHANGING;
            faults.arm(Fault::IO, &classes, skip, u64::MAX);
            let _ = repair(&dir, &copy.keys, Options::default(), &mut |_| {});
            let done = faults.fired().is_empty();
            faults.disarm();
            assert_nothing_lost(&before, &files(copy.path()), name);
            let repaired = copy.repair();
            assert!(repaired.after.is_clean(), "{name}, stopped after {skip}: {repaired:#?}");
            let noted = usize::from(name == "content-dir-missing");
            assert_eq!(repaired.after.lost.len(), noted, "{name}, stopped after {skip}: {repaired:#?}");
            assert_nothing_lost(&before, &files(copy.path()), name);
            if done {
                break;
            }
        }
    }
}

/// Puts a folder's files into a root in memory.
fn fill(root: &dyn HostDir, from: &BTreeMap<String, Vec<u8>>) {
    for (path, content) in from {
        for (at, _) in path.match_indices('/') {
            let _ = root.make_dir(Path::new(&path[..at]), 0o700, None);
        }
        let new = NewFile { content, perm: 0o600, owner: None, durable: true };
        root.publish(Path::new(path), &new).unwrap();
    }
}

/// As [`files`], through the seam.
fn files_in(root: &dyn HostDir) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut queue) = (BTreeMap::new(), vec![String::new()]);
    while let Some(dir) = queue.pop() {
        let mut names = Vec::new();
        root.list(Path::new(&dir), &mut |e| names.push(String::from_utf8(e.name.to_vec()).unwrap())).unwrap();
        for name in names {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let attr = root.stat(Path::new(&path)).unwrap();
            if attr.kind == Kind::Directory {
                queue.push(path);
                continue;
            }
            let mut bytes = vec![0; attr.size as usize];
            let got = root.open(Path::new(&path), Access::Read).unwrap().read_at(0, &mut bytes).unwrap();
            bytes.truncate(got);
            found.insert(path, bytes);
        }
    }
    found
}

#[test]
fn a_power_cut_during_repair_loses_nothing() {
    let plan = CrashPlan { points_max: 12, randoms: 1 };
    for seed in seeds(1) {
        let mut rng = Rng::new(seed);
        for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
            for name in [
                "dir-id-duplicate",
                "long-wrong-name",
                "orphan-no-dirid",
                "name-not-shortened",
                "long-trailing-bytes",
                "content-dir-missing",
            ] {
                let copy = Copy::broken(name);
                let before = files(copy.path());
                let base = CrashWorld::new(mode);
                fill(&base.dir("vault"), &before);
                base.settle();
                let work = |world: &CrashWorld| {
                    let _ = repair(&world.dir("vault"), &copy.keys, Options::default(), &mut |_| {});
                };
                crash_everywhere(&base, &plan, &mut rng, work, |(), point, world| {
                    let told = format!("ADIT_TEST_SEED={seed} {name} {mode:?} {point:?}");
                    let vault = world.dir("vault");
                    assert_nothing_lost(&before, &files_in(&vault), &told);
                    let repaired = repair(&vault, &copy.keys, Options::default(), &mut |_| {}).unwrap();
                    assert_nothing_lost(&before, &files_in(&vault), &told);
                    assert!(repaired.after.is_clean(), "{told}: {repaired:#?}");
                    let noted = usize::from(name == "content-dir-missing");
                    assert_eq!(repaired.after.lost.len(), noted, "{told}: {repaired:#?}");
                });
            }
        }
    }
}

#[test]
fn a_deep_chain_needs_no_stack() {
    let copy = Copy::sound("gcm-empty");
    let (_, names, content) = inside(&copy);
    let mut parent = DirId::root();
    for _ in 0..3000 {
        let id = DirId::generate();
        let folder = copy.path().join(names.dir_hash_path(&parent)).join(names.encrypt_name("d", &parent).unwrap());
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("dir.c9r"), id.as_str()).unwrap();
        let dir = copy.path().join(names.dir_hash_path(&id));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("dirid.c9r"), object::encode_dir_id(&content, &id).unwrap()).unwrap();
        parent = id;
    }
    let report = copy.check();
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!(report.directories, 3001);
}
