//! `adit manifest commit`: what was changed on a writable mount of a manifest goes to the store, with a manifest of it.

#[path = "common/commits.rs"]
mod commits;
mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/mounts.rs"]
mod mounts;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use adit_testkit::{Rng, scaled, seeds};
use commits::{LARGE_LEN, World};
use common::{eventually, pattern};
use serde_json::Value;

/// What an object of version 2025 holds at most.
const CHUNK_LEN: u64 = 256 << 20;

#[test]
fn a_commit_is_the_diff_that_a_snapshot_of_the_mount_is() {
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    w.commit(&[]).expect(0).says("nothing was changed");
    assert!(w.manifests().is_empty());
    w.change();
    symlink("../moved/x", w.at("other/up")).unwrap();
    fs::remove_file(w.at("link")).unwrap();
    fs::remove_dir(w.at("empty")).unwrap();
    // What would go is told, and nothing goes.
    let before = w.files("store");
    let told = w.told(&["--dry-run"]);
    assert_eq!((told["dry_run"].as_bool(), &told["kind"]), (Some(true), &"diff".into()));
    assert!(told["would_upload"]["missing"].as_u64() > Some(0), "{told}");
    assert_eq!(w.files("store"), before);
    let missing = told["would_upload"]["missing"].clone();
    let told = w.told(&["-o", "changes"]);
    assert_eq!(told["uploaded"]["stored"], missing);
    assert_eq!(w.snapshots().as_array().map(Vec::len), Some(0), "{}", w.snapshots());
    // The same as who looks at the whole tree finds.
    w.run(&["manifest", "snapshot", "mnt", "-o", "expected", "--parent", "job", "--cache-dir", "hashes"]).expect(0);
    let (changes, expected) = (w.read("changes"), w.read("expected"));
    assert_eq!(String::from_utf8_lossy(&changes), String::from_utf8_lossy(&expected));
    let full = w.told(&["-o", "whole", "--full"]);
    let now = ["manifest", "snapshot", "mnt", "-o", "now", "--format", "v2025", "--cache-dir", "hashes", "--json"];
    let now = w.run(&now).expect(0).json();
    // What changed, and what is written.
    for (count, of_all) in
        [("files", "files"), ("bytes", "size"), ("directories", "directories"), ("symlinks", "symlinks")]
    {
        assert_eq!((&full[count], &full["whole"][count]), (&told[count], &now[of_all]), "{count}");
    }
    assert_eq!(String::from_utf8_lossy(&w.read("whole")), String::from_utf8_lossy(&w.read("now")));
    // And all of it is in the store.
    w.run(&["manifest", "merge", "job", "changes", "-o", "merged"]).expect(0);
    assert_eq!(w.read("merged"), w.read("now"));
    w.run(&["manifest", "verify", "merged", "--cas", "store"]).expect(0);
    // The mount goes on as it was; who reads the result sees the same.
    assert_eq!(fs::read(w.at("a")).unwrap(), b"edited");
    let large = fs::read(w.at("large")).unwrap();
    w.umount();
    w.run(&["mount", "merged", "mnt", "--cas", "store", "--cache-dir", "other"]).expect(0);
    assert!(fs::read(w.at("large")).unwrap() == large);
    assert_eq!(fs::read(w.at("moved/x")).unwrap(), b"dir/x");
    w.umount();
}

#[test]
fn a_manifest_lies_where_it_was_asked_for_and_only_once() {
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    fs::write(w.at("a"), "edited").unwrap();
    let hash = |text: &str| format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
    let root = w.at("").to_str().unwrap().trim_end_matches('/').to_owned();
    let parent = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&w.read("job")));
    // Nobody named a place: each commit has one of its own, with its time and the id of the upper.
    let printed = w.commit(&[]).expect(0).says("1 file").says("1 object stored");
    let [key] = &w.manifests()[..] else { panic!("{:?}", w.manifests()) };
    let rest = key.strip_prefix(&format!("Manifests/commits/{parent}/")).unwrap();
    let (folder, name) = rest.split_once('/').unwrap();
    assert_eq!((&folder[26..34], folder.len(), name), ("Z_upper-", 34 + 32, &*format!("{}_output", hash(&root))));
    assert_eq!(printed.text(), format!("{}/{key}\n", w.bench.str("store")));
    // Once more, with nothing changed since.
    let before = w.files("store");
    let again = w.commit(&[]).expect(0).says("nothing is written");
    assert_eq!(again.text(), printed.text());
    assert_eq!(w.files("store"), before);
    assert_eq!(w.told(&[])["manifests"][0]["written"], false);
    // Further changes are told with the first: the parent is the manifest that is mounted.
    fs::remove_file(w.at("b")).unwrap();
    let told = w.told(&["--manifest-prefix", "P/edits", "--manifest-name", "n", "-o", "file"]);
    assert_eq!((&told["files"], &told["deletions"], told["parent"].as_str()), (&1.into(), &1.into(), Some(&*parent)));
    assert_eq!(w.read("store/Manifests/P/edits/n"), w.read("file"));
    for (line, why) in [
        (&["--task-output", "f/q/j/s/t"][..], "--session-action"),
        (&["--task-output", "f/q/j", "--session-action", "a"], "FARM/QUEUE"),
        (&["--manifest-prefix", "../x"], ".."),
        (&["--file-system-location-name", "é"], "location"),
        (&["-o", "no/file"], "no/file"),
    ] {
        let ran = w.commit(line);
        assert_ne!(ran.code, Some(0), "{line:?}");
        ran.says(why);
    }
    w.umount();
    w.commit(&[]).expect(6);
    w.run(&["mount", "job", "mnt", "--cas", "store", "--cache-dir", "cache"]).expect(0);
    w.commit(&[]).expect(10).says("--writable");
    w.umount();
}

/// Whoever looks for the outputs of a task reads v2023 there, and would take another manifest for one of those.
#[test]
fn outputs_of_a_task_are_of_2023() {
    let task = ["--task-output", "farm-1/queue-1/job-1/step-1/task-1", "--session-action", "sessionaction-1-0"];
    let labels = ["--asset-root", "/projects/é", "--file-system-location-name", "Share"];
    let line = [&task[..], &labels].concat();
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    fs::write(w.at("a"), "edited").unwrap();
    let before = w.files("store");
    for more in [&[][..], &["--full"], &["--dry-run"]] {
        w.commit(&[&line[..], more].concat()).expect(2).says("v2023 only").says("leave out --task-output");
    }
    assert_eq!(w.files("store"), before, "nothing was brought there");
    w.umount();

    let Some(w) = World::new("v2023") else { return };
    w.mount();
    fs::write(w.at("a"), "edited").unwrap();
    let told = w.told(&line);
    let place = told["manifests"][0]["place"].as_str().unwrap().to_owned();
    let rest = place.strip_prefix(&w.bench.str("store/Manifests/farm-1/queue-1/job-1/step-1/task-1/")).unwrap();
    let (folder, name) = rest.split_once('/').unwrap();
    assert_eq!((folder.len(), &folder[26..]), (45, "Z_sessionaction-1-0"), "{folder}");
    assert_eq!(name, format!("{:032x}_output", xxhash_rust::xxh3::xxh3_128("Share/projects/é".as_bytes())));
    assert_eq!(w.told(&line)["manifests"][0]["written"], false);
    w.umount();
}

/// Whatever its bytes are, a manifest is named by its canonical form, as who reads and writes it again has it.
#[test]
fn a_commit_names_the_canonical_form_of_what_was_mounted() {
    let Some(w) = World::new("v2025") else { return };
    let canonical = w.read("job");
    let text: Value = serde_json::from_slice(&canonical).unwrap();
    fs::write(w.path("job"), serde_json::to_vec_pretty(&text).unwrap()).unwrap();
    w.mount();
    w.change();
    let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&canonical));
    assert_eq!(w.told(&["-o", "changes"])["parent"], hash);
    let changes: Value = serde_json::from_slice(&w.read("changes")).unwrap();
    assert_eq!(changes["parentManifestHash"], hash);
    w.umount();
    fs::write(w.path("again"), &canonical).unwrap();
    for parent in ["again", "job"] {
        w.run(&["manifest", "merge", parent, "changes", "-o", &format!("on-{parent}")]).expect(0);
    }
    assert_eq!(w.read("on-again"), w.read("on-job"));
}

/// The process of the mount has all of the manifest: what was changed comes home, whatever became of the file.
#[test]
fn a_commit_does_not_need_the_file_of_the_manifest() {
    for format in ["v2023", "v2025"] {
        let Some(w) = World::new(format) else { return };
        let job = w.read("job");
        w.mount();
        w.change();
        w.commit(&["-o", "expected"]).expect(0);
        fs::rename(w.path("job"), w.path("elsewhere")).unwrap();
        w.commit(&["-o", "moved"]).expect(0).says("job: ").says("what the mount has of it");
        assert_eq!(w.read("moved"), w.read("expected"));
        // Another manifest, and what is none, in its place. The indexes in the cache directory have gone as well.
        fs::remove_dir_all(w.path("cache/indexes")).unwrap();
        for other in [&job[..job.len() - 1], &w.read("expected")] {
            fs::write(w.path("job"), other).unwrap();
            w.commit(&["-o", "replaced"]).expect(0).says("what the mount has of it");
            assert_eq!(w.read("replaced"), w.read("expected"));
        }
        let left: Vec<_> = w.files("cache/indexes").into_keys().collect();
        assert!(left.iter().all(|path| path.extension().is_some_and(|extension| extension != "own")), "{left:?}");
        // With the file in its place again it says nothing.
        fs::write(w.path("job"), &job).unwrap();
        let ran = w.commit(&["-o", "back"]).expect(0);
        assert!(!ran.stderr.contains("has of it"));
        assert_eq!(w.read("back"), w.read("expected"));
        w.umount();
    }
}

/// Names that no host has are shown by other bytes. A commit writes the names, and not those bytes; and what such a file holds is known, though
/// nobody can open it.
#[test]
fn names_without_bytes_on_a_host_stay_what_they_are() {
    let Some(w) = World::new("v2023") else { return };
    let hash = |text: &str| format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
    // The second one is what a host's name of the bytes by which the first one is shown is in a manifest.
    let names = [r"d/\ud800x", r"other/\udced\udca0\udc80y", "plain/z"];
    let mut entries = Vec::new();
    for name in names {
        fs::write(w.path("store/Data").join(format!("{}.xxh128", hash(name))), name).unwrap();
        let (len, hash) = (name.len(), hash(name));
        entries.push(format!(r#"{{"hash":"{hash}","mtime":1700000000000000,"path":"{name}","size":{len}}}"#));
    }
    let all: usize = names.iter().map(|name| name.len()).sum();
    let paths = entries.join(",");
    let manifest =
        format!(r#"{{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[{paths}],"totalSize":{all}}}"#);
    fs::write(w.path("job"), manifest).unwrap();
    w.mount();
    let shown = |name: &[u8]| w.at("").join(OsStr::from_bytes(name));
    assert!(shown(b"d/\xed\xa0\x80x").symlink_metadata().is_ok());
    let paths = |file: &str| -> Vec<String> {
        let text = String::from_utf8(w.read(file)).unwrap();
        let paths = text.split(r#""path":""#).skip(1);
        paths.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    // Below a folder that was moved.
    fs::rename(w.at("d"), w.at("e")).unwrap();
    fs::rename(w.at("other"), w.at("f")).unwrap();
    w.commit(&["-o", "moved"]).expect(0);
    assert_eq!(paths("moved"), [r"e/\ud800x", r"f/\udced\udca0\udc80y"]);
    w.commit(&["-o", "all", "--full"]).expect(0);
    assert_eq!(paths("all"), [r"e/\ud800x", r"f/\udced\udca0\udc80y", "plain/z"]);
    // Its name alone, and to one that a host has: its content is in the store.
    fs::rename(shown(b"e/\xed\xa0\x80x"), shown(b"e/\xed\xa0\x80n")).unwrap();
    w.commit(&["-o", "named"]).expect(0);
    assert_eq!(paths("named"), [r"e/\ud800n", r"f/\udced\udca0\udc80y"]);
    fs::rename(shown(b"e/\xed\xa0\x80n"), w.at("plain/n")).unwrap();
    let told = w.told(&["-o", "plain"]);
    assert_eq!(paths("plain"), [r"f/\udced\udca0\udc80y", "plain/n"]);
    assert_eq!((&told["uploaded"]["stored"], told["hashed_bytes"].as_u64()), (&0.into(), Some(0)), "{told}");
    // To another store it cannot go, for nobody can read it: that is told.
    fs::create_dir_all(w.path("elsewhere/Data")).unwrap();
    w.commit(&["-o", "there", "--cas", "elsewhere"]).expect(1).says("plain/n");
    assert!(!w.path("there").exists());
    w.umount();
    // Of the source itself, without a mount.
    let line = ["manifest", "snapshot", "manifest:job", "-o", "again", "--cas", "store", "--cache-dir", "cache"];
    w.run(&[&line[..], &["--include", "other/**"]].concat()).expect(0);
    assert_eq!(paths("again"), [r"other/\udced\udca0\udc80y"]);
}

/// A change that was committed and taken back: the manifest in the same place does not go on telling of it. The whole tree is written if
/// that is asked for, whatever has changed.
#[test]
fn what_was_taken_back_is_in_no_manifest_any_more() {
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    fs::write(w.at("oops"), "oops").unwrap();
    let place = ["-o", &w.bench.str("changes")];
    let dry = w.told(&[&place[..], &["--dry-run"]].concat());
    assert_eq!((&dry["manifests"][0]["written"], &dry["manifests"][0]["would_write"]), (&false.into(), &true.into()));
    w.commit(&place).expect(0).says("1 file");
    // What a commit would write is what is there.
    w.commit(&[&place[..], &["--dry-run"]].concat()).expect(0).says("nothing would be written");
    let dry = w.told(&[&place[..], &["--dry-run"]].concat());
    assert_eq!((&dry["manifests"][0]["written"], &dry["manifests"][0]["would_write"]), (&false.into(), &false.into()));
    let written = fs::metadata(w.bench.path("changes")).unwrap().modified().unwrap();
    w.commit(&place).expect(0).says("nothing is written");
    assert_eq!(fs::metadata(w.bench.path("changes")).unwrap().modified().unwrap(), written);
    fs::remove_file(w.at("oops")).unwrap();
    w.commit(&["--dry-run"]).expect(0).says("nothing was changed");
    w.commit(&place).expect(0).says("nothing is changed");
    assert!(!String::from_utf8(w.read("changes")).unwrap().contains("oops"));
    w.run(&["manifest", "merge", "job", "changes", "-o", "same"]).expect(0);
    let whole = ["--full", "-o", &w.bench.str("whole")];
    w.commit(&whole).expect(0).says("nothing is changed");
    w.umount();
    let same = |other: &str| w.run(&["manifest", "diff", "job", other, "--json"]).expect(0).json();
    assert_eq!(same("same"), same("job"));
    assert_eq!(same("whole"), same("job"));
}

/// Likewise of 2023, which has no manifest of nothing: in the place of what was taken back lies what it was before.
#[test]
fn of_2023_what_was_taken_back_is_told_as_it_was() {
    let Some(w) = World::new("v2023") else { return };
    w.mount();
    let same = |other: &str| {
        w.run(&["manifest", "merge", "job", other, "-o", "same"]).expect(0);
        assert_eq!(w.read("same"), w.read("job"), "{other}");
    };
    let last = || w.manifests().pop().unwrap();
    let take_back = |name: &str| {
        fs::write(w.at(name), name).unwrap();
        let was = w.bench.path("work").join(name).metadata().unwrap().modified().unwrap();
        File::options().write(true).open(w.at(name)).unwrap().set_modified(was).unwrap();
    };
    // One that was changed, and a new one.
    fs::write(w.at("a"), "edited").unwrap();
    fs::write(w.at("oops"), "oops").unwrap();
    w.commit(&[]).expect(0).says("2 files");
    take_back("a");
    fs::remove_file(w.at("oops")).unwrap();
    let dry = w.told(&["--dry-run"]);
    assert_eq!((&dry["restated"], w.manifests().len()), (&1.into(), 1));
    w.commit(&[]).expect(0).says("nothing is changed").says("1 file as it was");
    assert_eq!(w.manifests().len(), 2);
    same(&format!("store/{}", last()));
    let text = String::from_utf8(w.read(&format!("store/{}", last()))).unwrap();
    assert!(text.contains(r#""path":"a""#) && !text.contains("oops") && !text.contains(r#""path":"b""#), "{text}");
    w.commit(&[]).expect(0).says("nothing is written");
    assert_eq!(w.manifests().len(), 2);
    // A new one alone, and in a file that is named; and what is deleted is not told as what it was.
    let place = ["-o", &w.bench.str("changes")];
    fs::write(w.at("oops"), "oops").unwrap();
    fs::write(w.at("a"), "edited").unwrap();
    w.commit(&place).expect(0).says("2 files");
    fs::remove_file(w.at("oops")).unwrap();
    fs::remove_file(w.at("a")).unwrap();
    w.commit(&place).expect(0).says("1 in all").says("1 file as it was");
    let text = String::from_utf8(w.read("changes")).unwrap();
    assert!(!text.contains("oops") && !text.contains(r#""path":"a""#), "{text}");
    same("changes");
    // Nothing is left that could be told.
    for entry in fs::read_dir(w.at("")).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { fs::remove_dir_all(entry).unwrap() } else { fs::remove_file(entry).unwrap() }
    }
    w.commit(&place).expect(10).says("empty tree").says("changes");
    w.umount();
}

/// What a commit reads of the manifest is stored again under a new hash: bytes that are wrong must not get a right one.
#[test]
fn what_a_commit_reads_of_the_manifest_is_verified() {
    let Some(w) = World::new("v2025") else { return };
    let objects = w.files("store/Data");
    let (object, _) = objects.iter().find(|(_, len)| **len == LARGE_LEN as u64).expect("the large file's object");
    let right = fs::read(object).unwrap();
    let mut wrong = right.clone();
    wrong[LARGE_LEN / 2] ^= 1;
    fs::write(object, &wrong).unwrap();
    w.mount();
    // A whole block: nothing of the object is needed for it.
    File::options().write(true).open(w.at("large")).unwrap().write_all_at(&[b'n'; 4096], 0).unwrap();
    fs::write(w.at("a"), "edited").unwrap();
    let told = w.commit(&["--json"]).expect(4).says("large").says("adit manifest verify").json();
    assert_eq!(
        (&told["failures"][0]["path"], &told["manifests"]),
        (&"/large".into(), &serde_json::json!([])),
        "{told}"
    );
    assert!(told["failures"][0]["error"].as_str().unwrap().contains("corrupt data"), "{told}");
    assert_eq!([w.state("large"), w.state("a")], ["error", "modified"], "only what failed");
    assert_eq!((w.manifests().len(), w.files("store/Data").len()), (0, objects.len()));
    // So it is to whoever else reads it there, in a folder of the mount too.
    let snapshot = ["manifest", "snapshot", "mnt", "-o", "new", "--cache-dir", "hashes"];
    w.run(&snapshot).expect(4).says("large");
    fs::create_dir(w.bench.path("another")).unwrap();
    w.run(&["manifest", "upload", "job", "--root", "mnt", "--cas", "another"]).expect(4).says("large");
    fs::rename(w.at("large"), w.at("dir/large")).unwrap();
    w.run(&["get", "mnt/dir", "/large", "got"]).expect(4).says("/large");
    assert!(!w.bench.path("new").exists() && !w.bench.path("got").exists());
    fs::rename(w.at("dir/large"), w.at("large")).unwrap();
    // When the store is mended, and the other mount's pause is over, it goes on.
    fs::write(object, &right).unwrap();
    w.umount();
    w.mount();
    let told = w.told(&[]);
    assert_eq!((&told["files"], &told["failures"]), (&2.into(), &serde_json::json!([])));
    assert_eq!([w.state("large"), w.state("a")], ["uploaded"; 2]);
    w.umount();
}

/// Through the kernel it is an error of input and output like any other.
#[test]
fn a_commit_says_what_is_missing_in_the_store() {
    let Some(w) = World::new("v2025") else { return };
    let objects = w.files("store/Data");
    let (object, _) = objects.iter().find(|(_, len)| **len == LARGE_LEN as u64).expect("the large file's object");
    let content = fs::read(object).unwrap();
    fs::remove_file(object).unwrap();
    w.mount();
    fs::set_permissions(w.at("large"), PermissionsExt::from_mode(0o755)).unwrap();
    // Neither need be read for its hash, and both have to be for the store.
    let (name, len) = ("gone/deep/y", "gone/deep/y".len());
    fs::rename(w.at(name), w.at("renamed")).unwrap();
    fs::remove_file(w.object_of(len)).unwrap();
    for dry in [&["--dry-run"][..], &[]] {
        let said = w.commit(dry).expect(1).says("commit: read /large").says("it is not in the store");
        assert!(said.stderr.contains("commit: read /renamed"), "all are told: {}", said.stderr);
        assert!(!said.stderr.contains("ino "), "{}", said.stderr);
        assert_eq!(said.stderr.contains("it was a dry run"), !dry.is_empty(), "{}", said.stderr);
    }
    let told = w.commit(&["--dry-run", "--json"]).expect(1).json();
    let failed = |number: usize| told["failures"][number]["path"].as_str();
    assert_eq!([failed(0), failed(1), failed(2)], [Some("/large"), Some("/renamed"), None]);
    // Where it goes elsewhere, the store that is mounted is not asked for all of it.
    fs::create_dir(w.bench.path("elsewhere")).unwrap();
    w.commit(&["--dry-run", "--cas", "elsewhere"]).expect(0).says("2 objects would be stored");
    assert!(w.manifests().is_empty());
    fs::write(object, &content).unwrap();
    fs::write(w.path("work/gone/deep/y"), name).unwrap();
    w.run(&["manifest", "upload", "job", "--root", "work", "--cas", "store"]).expect(0).says("1 object stored");
    w.umount();
    w.mount();
    assert_eq!(w.told(&[])["files"], 2);
    w.umount();
}

/// The kernel notes the time of a write before it has the page that is written to.
#[test]
fn a_write_that_fails_leaves_the_file_as_it_was() {
    let Some(w) = World::new("v2025") else { return };
    let objects = w.files("store/Data");
    let (object, _) = objects.iter().find(|(_, len)| **len == LARGE_LEN as u64).expect("the large file's object");
    let content = fs::read(object).unwrap();
    fs::remove_file(object).unwrap();
    w.mount();
    let modified = || fs::metadata(w.at("large")).unwrap().modified().unwrap();
    let was = modified();
    let open = || File::options().read(true).write(true).open(w.at("large")).unwrap();
    for _ in 0..3 {
        let file = open();
        assert_eq!(file.write_at(b"x", 100).unwrap_err().raw_os_error(), Some(libc::EIO));
        drop(file);
        assert_eq!(open().write_at(b"x", LARGE_LEN as u64 - 1).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    let differing = || w.run(&["diff", "mnt", "--json"]).expect(0).json();
    assert_eq!(differing(), serde_json::json!([]));
    assert_eq!(w.status("large"), "error");
    // And nothing is in the way of what else was changed.
    fs::write(w.at("new"), "new").unwrap();
    assert_eq!(w.told(&[])["files"], 1);
    w.umount();
    w.mount();
    assert_eq!(modified(), was);
    // A write that comes about has its time, whatever failed before.
    assert!(open().write_at(b"x", 100).is_err());
    fs::write(object, &content).unwrap();
    // Until then it is not asked for again.
    let file = open();
    eventually("the object is there again", || file.write_at(b"x", 100).is_ok());
    drop(file);
    assert_eq!(differing()[0]["path"], "/large");
    assert!(modified() > was);
    w.umount();
    w.mount();
    assert!(modified() > was);
    let mut now = content;
    now[100] = b'x';
    assert!(fs::read(w.at("large")).unwrap() == now);
    w.umount();
}

#[test]
fn of_2023_what_was_added_or_changed_is_an_output_and_deletions_are_said() {
    let Some(w) = World::new("v2023") else { return };
    w.mount();
    w.change();
    symlink("moved/x", w.at("followed")).unwrap();
    let said = w.commit(&["-o", "output"]).expect(0).says("cannot tell deletions");
    assert!(said.stderr.contains("deletions: 5 in all"), "{}", said.stderr);
    // Merged over the parent, it is the tree with what was deleted.
    w.run(&["manifest", "snapshot", "mnt", "-o", "now", "--cache-dir", "hashes"]).expect(0);
    w.told(&["-o", "whole", "--full"]);
    assert_eq!(String::from_utf8_lossy(&w.read("whole")), String::from_utf8_lossy(&w.read("now")));
    w.run(&["manifest", "verify", "whole", "--cas", "store"]).expect(0);
    let output: Value = serde_json::from_slice(&w.read("output")).unwrap();
    let paths: Vec<&str> = output["paths"].as_array().unwrap().iter().map(|p| p["path"].as_str().unwrap()).collect();
    // Not `b`, of which only the exec bit changed, nor `gone/x`, if its time were the same.
    for path in ["a", "c", "large", "moved/x", "moved/new", "swap", "tool/é \u{1f600}", "second name", "followed"] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    assert!(!paths.contains(&"b"), "{paths:?}");
    w.umount();
    // Nothing but deletions is nothing to write.
    w.run(&["volume", "uppers", "list", "--cache-dir", "cache"]).expect(0);
    fs::remove_dir_all(w.bench.path("cache/overlays")).unwrap();
    w.mount();
    fs::remove_file(w.at("a")).unwrap();
    w.commit(&["-o", "none"]).expect(0).says("1 in all").says("nothing is written");
    assert!(!w.bench.path("none").exists());
    w.umount();
}

/// Whatever is done to a tree, in several mounts: what is committed is what a look at all of it finds.
#[test]
fn random_changes_are_committed_as_a_snapshot_finds_them() {
    for seed in seeds(2) {
        let mut rng = Rng::new(seed);
        let Some(w) = World::new("v2025") else { return };
        let dirs = ["", "dir", "dir/deep", "gone", "other", "empty", "swap", "d1", "d1/d2"];
        let names = ["a", "b", "x", "y", "large", "tool", "deep", "dir", "d1", "d2", "swap", "link"];
        for round in 0..4 {
            w.mount();
            for _ in 0..scaled(60) {
                let mut path = || w.at(&format!("{}/{}", rng.pick(&dirs), rng.pick(&names)));
                let (one, other) = (path(), path());
                // Whether it can be done is the tree's to say.
                let _ = match rng.below(14) {
                    0 | 1 => fs::write(&one, pattern(rng.below(9000) as usize)),
                    2 => File::options().write(true).open(&one).and_then(|file| file.set_len(rng.below(1 << 20))),
                    3 => File::options()
                        .write(true)
                        .open(&one)
                        .and_then(|file| file.write_all_at(b"!", rng.below(1 << 20))),
                    4 | 5 => fs::rename(&one, &other),
                    6 => fs::remove_file(&one),
                    7 => fs::create_dir(&one),
                    8 => fs::remove_dir(&one),
                    9 if rng.below(3) == 0 => fs::remove_dir_all(&one),
                    10 => fs::hard_link(&one, &other),
                    11 => symlink("../other/file", &one),
                    12 => fs::set_permissions(&one, PermissionsExt::from_mode(0o744)),
                    _ => fs::copy(&one, &other).map(drop),
                };
            }
            let when = format!("ADIT_TEST_SEED={seed}, round {round}");
            w.commit(&["-o", "changes", "-q"]).expect(0);
            let parent = ["--parent", "job", "--cache-dir", "hashes", "-q"];
            w.run(&[&["manifest", "snapshot", "mnt", "-o", "expected"], &parent[..]].concat()).expect(0);
            let text = |name: &str| String::from_utf8_lossy(&w.read(name)).into_owned();
            assert_eq!(text("changes"), text("expected"), "{when}");
            w.run(&["manifest", "merge", "job", "changes", "-o", "merged", "-q"]).expect(0);
            w.run(&["manifest", "verify", "merged", "--cas", "store"]).expect(0);
            w.umount();
        }
    }
}

#[test]
fn each_file_tells_what_has_become_of_it() {
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    let state = |name: &str| w.status(name);
    assert_eq!(state("large"), "remote");
    fs::read(w.at("a")).unwrap();
    assert_eq!(state("a"), "cached");
    fs::write(w.at("a"), "edited").unwrap();
    fs::write(w.at("new"), "new").unwrap();
    fs::set_permissions(w.at("b"), PermissionsExt::from_mode(0o755)).unwrap();
    let other = |value: &[u8]| {
        rustix::fs::setxattr(w.at("other/file"), c"user.of", value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    other(b"ours");
    assert_eq!([state("a"), state("/new"), state("b"), state("other/file")], ["modified"; 4]);
    w.commit(&["--dry-run"]).expect(0);
    assert_eq!(state("a"), "modified");
    // A store that cannot be written.
    let kept = w.bench.path("kept");
    fs::rename(w.bench.path("store/Data"), &kept).unwrap();
    fs::write(w.bench.path("store/Data"), "in the way").unwrap();
    assert_ne!(w.commit(&["-o", "changes"]).code, Some(0));
    assert_eq!([state("a"), state("new")], ["error"; 2]);
    fs::remove_file(w.bench.path("store/Data")).unwrap();
    fs::rename(&kept, w.bench.path("store/Data")).unwrap();
    w.commit(&["-o", "changes"]).expect(0);
    // Of what has no place in the manifest, the content is in the store, and nothing more is to be committed.
    assert_eq!([state("a"), state("new"), state("b"), state("other/file")], ["uploaded"; 4]);
    // At the next mount as well, also after a kill, wherever they are moved to, until they are changed.
    w.kill();
    w.mount();
    assert_eq!([state("a"), state("new"), state("b"), state("other/file")], ["uploaded"; 4]);
    w.umount();
    w.mount();
    fs::rename(w.at("new"), w.at("moved")).unwrap();
    assert_eq!([state("a"), state("b"), state("large")], ["uploaded", "uploaded", "remote"]);
    File::options().append(true).open(w.at("a")).unwrap().write_all_at(b"!", 0).unwrap();
    assert_eq!(state("a"), "modified");
    assert_eq!(
        rustix::fs::setxattr(w.at("b"), c"user.adit.state", b"cached", rustix::fs::XattrFlags::empty()).unwrap_err(),
        rustix::io::Errno::PERM
    );
    // All of them, and none of what has no state.
    let all = w.run(&["status", "mnt", "/"]).expect(0).text();
    assert!(all.contains("modified   /a\n") && all.contains("  /dir/deep/y\n") && !all.contains("link"), "{all}");
    w.run(&["status", "mnt", "none"]).expect(1).says("none");
    w.run(&["status", "mnt", "link"]).expect(1).says("a symbolic link, which has no state");
    w.umount();
}

/// There is nothing to write of it, and nothing more to commit.
#[test]
fn what_alone_has_no_place_in_a_manifest_is_committed_as_well() {
    let Some(w) = World::new("v2023") else { return };
    w.mount();
    rustix::fs::setxattr(w.at("a"), c"user.of", b"ours", rustix::fs::XattrFlags::empty()).unwrap();
    w.commit(&["--dry-run"]).expect(0).says("nothing is written");
    assert_eq!(w.status("a"), "modified");
    w.commit(&[]).expect(0).says("nothing is written");
    assert_eq!(w.status("a"), "uploaded");
    // What is dead can be told from a mount of the manifest alone.
    w.kill_and_leave();
    let told = w.bench.mounts();
    assert_eq!((told.len(), &told[0]["kind"], &told[0]["state"]), (1, &"overlay".into(), &"dead".into()));
    w.commit(&[]).expect(1).says("a dead mount");
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&["mount", "job", "mnt", "--cas", "store", "--cache-dir", "cache"]).expect(0);
    w.kill_and_leave();
    assert_eq!(w.bench.mounts()[0]["kind"], "manifest");
    w.run(&["umount", "mnt"]).expect(0);
}

/// A name that no host has cannot be opened, and so its state cannot be told; the others are told all the same.
#[test]
fn what_has_no_state_hides_no_other_file() {
    let Some(w) = World::new("v2023") else { return };
    let mut entries = Vec::new();
    for name in ["a", r"d/\ud800x", "z"] {
        let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(name.as_bytes()));
        fs::write(w.path("store/Data").join(format!("{hash}.xxh128")), name).unwrap();
        entries.push(format!(r#"{{"hash":"{hash}","mtime":1700000000000000,"path":"{name}","size":{}}}"#, name.len()));
    }
    let (paths, size) = (entries.join(","), 2 + r"d/\ud800x".len());
    let manifest =
        format!(r#"{{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[{paths}],"totalSize":{size}}}"#);
    fs::write(w.path("job"), manifest).unwrap();
    w.mount();
    fs::write(w.at("d/new"), "new").unwrap();
    let ran = w.run(&["status", "mnt", "/"]).expect(1);
    assert_eq!(ran.text(), "remote     /a\nmodified   /d/new\nremote     /z\n");
    assert_eq!(ran.stderr.lines().filter(|line| line.starts_with("adit: ")).count(), 1, "{}", ran.stderr);
    let told = w.run(&["status", "mnt", "/", "none", "--json"]).expect(1).json();
    let states: Vec<_> = told.as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["remote", "modified", "unknown", "remote", "unknown"]);
    assert_eq!((told[2]["path_raw"].as_array().map(Vec::len), told[4]["path"].as_str()), (Some(7), Some("/none")));
    assert!(told[0]["error"].is_null() && told[2]["error"].is_string() && told[4]["error"].is_string(), "{told}");
    w.umount();
}

/// Of a file in chunks, only those are read that were written to: the others could not be.
#[test]
fn chunks_that_nobody_wrote_to_keep_their_hashes() {
    let Some(w) = World::new("v2025") else { return };
    let tail = b"tail of it";
    let hash = |bytes: &[u8]| format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes));
    let fake = "00112233445566778899aabbccddeeff";
    File::create(w.bench.path(&format!("store/Data/{fake}.xxh128"))).unwrap().set_len(CHUNK_LEN).unwrap();
    fs::write(w.bench.path(&format!("store/Data/{}.xxh128", hash(tail))), tail).unwrap();
    let size = CHUNK_LEN + tail.len() as u64;
    let text = format!(
        r#"{{"dirs":[],"files":[{{"chunkhashes":["{fake}","{}"],"mtime":1,"path":"huge","size":{size}}}],"hashAlg":"xxh128","specificationVersion":"relative-manifest-snapshot-beta-2025-12","totalSize":{size}}}"#,
        hash(tail)
    );
    fs::write(w.bench.path("job"), text).unwrap();
    w.mount();
    let huge = File::options().read(true).write(true).open(w.at("huge")).unwrap();
    huge.write_all_at(b"TAIL", CHUNK_LEN).unwrap();
    drop(huge);
    let told = w.told(&["-o", "changes"]);
    assert_eq!((&told["hashed_bytes"], &told["uploaded"]["stored"]), (&10.into(), &1.into()), "{told}");
    let changes: Value = serde_json::from_slice(&w.read("changes")).unwrap();
    assert_eq!(changes["files"][0]["chunkhashes"], serde_json::json!([fake, hash(b"TAIL of it")]));
    let fetched = w.run(&["stats", "mnt", "--json"]).expect(0).json()["store"]["fetched_bytes"].as_u64().unwrap();
    assert!(fetched < 1 << 20, "{fetched}");
    w.umount();
}

#[test]
fn who_writes_meanwhile_changes_the_next_commit() {
    let Some(w) = World::new("v2025") else { return };
    w.mount();
    let end = SystemTime::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0u64;
            while SystemTime::now() < end {
                // Two files that are always changed together.
                let file = File::create(w.at("pair")).unwrap();
                file.write_all_at(&number.to_le_bytes(), 0).unwrap();
                file.write_all_at(&number.to_le_bytes(), 1 << 16).unwrap();
                drop(file);
                fs::rename(w.at("pair"), w.at("whole")).unwrap();
                number += 1;
            }
        });
        while SystemTime::now() < end {
            w.commit(&["-o", "changes"]).expect(0);
            if w.bench.path("changes").exists() {
                w.run(&["manifest", "merge", "job", "changes", "-o", "merged"]).expect(0);
                w.run(&["manifest", "verify", "merged", "--cas", "store"]).expect(0);
            }
        }
    });
    assert_eq!(w.snapshots().as_array().map(Vec::len), Some(0));
    w.umount();
}
