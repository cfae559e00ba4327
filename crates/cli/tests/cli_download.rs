//! `adit manifest download`, and `adit manifest upload --manifest-prefix`, with a store in a folder.

mod common;
#[path = "common/peak.rs"]
mod peak;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use common::{Bench, Ran, Start, eventually, facts, is_root, pattern};
use peak::Peak;
use serde_json::Value;

/// A folder `work`, its manifest `m`, and the folder `store` with its content.
fn bench() -> Bench {
    let bench = Bench::bare();
    fs::create_dir_all(bench.path("work/sub/empty")).unwrap();
    fs::create_dir(bench.path("store")).unwrap();
    for (name, content) in [("a", &b"one"[..]), ("sub/b", b"two"), ("sub/tool", b"#!/bin/sh\n")] {
        fs::write(bench.path("work").join(name), content).unwrap();
    }
    fs::write(bench.path("work/large"), pattern(3 << 20)).unwrap();
    fs::set_permissions(bench.path("work/sub/tool"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("sub/b", bench.path("work/link")).unwrap();
    snapshot(&bench, "work", "m", &["--format", "v2025"]);
    bench
}

fn snapshot(bench: &Bench, work: &str, manifest: &str, more: &[&str]) {
    let cache = bench.str("cache");
    let line = ["manifest", "snapshot", work, "-o", manifest, "--cas", "store", "--cache-dir", &cache];
    bench.run([&line[..], more].concat()).expect(0);
}

fn download(bench: &Bench, args: &[&str]) -> Ran {
    let cache = bench.str("cache");
    bench.run([&["manifest", "download"], args, &["--cache-dir", &cache]].concat())
}

/// What copies keep, but for the folders, whose times a manifest does not have, and links, which have none there.
fn files(root: &Path) -> Vec<String> {
    let is_file = |fact: &String| fact.split(' ').rev().nth(2).is_some_and(|mode| mode.starts_with("100"));
    facts(root).into_iter().filter(is_file).collect()
}

fn micros_only(root: &Path) {
    for path in ["a", "sub/b", "sub/tool", "large"] {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        fs::File::options().write(true).open(root.join(path)).unwrap().set_modified(at).unwrap();
    }
}

/// Files that are not complete, anywhere below.
fn drafts(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            todo.extend(is_dir.then(|| entry.path()));
            found.extend(
                entry.file_name().to_str().is_some_and(|name| name.ends_with(".download")).then(|| entry.path()),
            );
        }
    }
    found
}

#[test]
fn a_folder_comes_back_as_it_was_and_the_second_time_nothing_comes() {
    let bench = bench();
    micros_only(&bench.path("work"));
    snapshot(&bench, "work", "m", &["--format", "v2025"]);
    let told = download(&bench, &["m", "dest", "--cas", "store", "--json"]).expect(0).json();
    assert_eq!((&told["written"], &told["present"], &told["directories"]), (&5.into(), &0.into(), &2.into()));
    assert_eq!(files(&bench.path("dest")), files(&bench.path("work")));
    assert_eq!(fs::read_link(bench.path("dest/link")).unwrap(), Path::new("sub/b"));
    assert!(bench.path("dest/sub/empty").is_dir());
    let again = download(&bench, &["m", "dest", "--cas", "store"]).expect(0);
    again.says("0 files written (0 B), 5 there already, 0 folders made, 2 there already");
    let told = download(&bench, &["m", "dest", "--cas", "store", "--json"]).expect(0).json();
    assert_eq!(
        (&told["present"], &told["directories"], &told["directories_present"]),
        (&5.into(), &0.into(), &2.into())
    );
    // What somebody changed is left, and comes beside it.
    fs::write(bench.path("dest/a"), "mine").unwrap();
    download(&bench, &["m", "dest", "--cas", "store", "--dry-run"]).expect(0).says("1 file would be written");
    assert!(!bench.path("dest/a (1)").exists());
    download(&bench, &["m", "dest", "--cas", "store"]).expect(0).says("a (1)");
    assert_eq!(
        (fs::read(bench.path("dest/a")).unwrap(), fs::read(bench.path("dest/a (1)")).unwrap()),
        (b"mine".into(), b"one".into())
    );
    download(&bench, &["m", "dest", "--cas", "store", "--conflict", "skip"]).expect(0).says("skipped");
    assert_eq!(fs::read(bench.path("dest/a")).unwrap(), b"mine");
    download(&bench, &["m", "dest", "--cas", "store", "--conflict", "overwrite"]).expect(0);
    assert_eq!(fs::read(bench.path("dest/a")).unwrap(), b"one");
}

#[test]
fn parts_of_it_and_several_over_each_other() {
    let bench = bench();
    download(&bench, &["m", "part", "--cas", "store", "--include", "sub", "--exclude", "**/tool"]).expect(0);
    assert!(
        bench.path("part/sub/b").exists() && !bench.path("part/sub/tool").exists() && !bench.path("part/a").exists()
    );
    fs::write(bench.path("work/a"), "changed").unwrap();
    fs::remove_file(bench.path("work/sub/b")).unwrap();
    fs::remove_file(bench.path("work/link")).unwrap();
    snapshot(&bench, "work", "changes", &["--parent", "m"]);
    // What the diff deletes does not come; what is there stays.
    download(&bench, &["m", "changes", "both", "--cas", "store"]).expect(0);
    assert_eq!(fs::read(bench.path("both/a")).unwrap(), b"changed");
    assert!(!bench.path("both/sub/b").exists() && bench.path("both/sub/tool").exists());
    download(&bench, &["changes", "part", "--cas", "store"]).expect(0).says("nothing in the folder is removed");
    assert_eq!(
        (fs::read(bench.path("part/a")).unwrap(), fs::read(bench.path("part/sub/b")).unwrap()),
        (b"changed".into(), b"two".into())
    );
    download(&bench, &["changes", "m", "wrong", "--cas", "store"]).expect(2).says("the oldest first");
    snapshot(&bench, "work", "later", &["--format", "v2025"]);
    download(&bench, &["later", "changes", "wrong", "--cas", "store"]).expect(2).says("a diff of another manifest");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let bench = bench();
    download(&bench, &["m", "dest"]).expect(2).says("--cas");
    download(&bench, &["m", "dest", "--cas", "none"]).expect(1).says("none");
    download(&bench, &["m", "no/dest", "--cas", "store"]).expect(1).says("make it first");
    download(&bench, &["m", "work/a", "--cas", "store"]).expect(1).says("not a folder");
    download(&bench, &["m", "dest", "--cas", "store", "--exclude", "a[b"]).expect(2).says("a[b");
    download(&bench, &["m", "dest", "--cas", "store", "--asset-root", "/x"]).expect(2).says("--asset-root");
    download(&bench, &["work/", "dest", "--cas", "store"]).expect(2).says("Manifests");
    download(&bench, &["m", "new", "--cas", "store", "--dry-run"]).expect(0).says("5 files would be written");
    assert!(!bench.path("new").exists() && !bench.path("dest").exists());
}

#[test]
fn wrong_and_missing_content_is_told_with_its_file_and_the_others_come() {
    let bench = bench();
    let object =
        |content: &[u8]| bench.path(&format!("store/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(content)));
    let large = object(&pattern(3 << 20));
    let mut bytes = fs::read(&large).unwrap();
    bytes[1 << 20] ^= 1;
    fs::write(&large, &bytes).unwrap();
    let name = large.file_stem().unwrap().to_str().unwrap().to_owned();
    let ran = download(&bench, &["m", "dest", "--cas", "store"]).expect(4);
    ran.says("/large").says(&name).says("adit manifest verify");
    assert!(
        !bench.path("dest/large").exists()
            && bench.path("dest/sub/tool").exists()
            && drafts(&bench.path("dest")).is_empty()
    );
    fs::write(&large, pattern(3 << 20)).unwrap();
    fs::remove_file(object(b"one")).unwrap();
    fs::remove_file(bench.path("dest/a")).unwrap();
    download(&bench, &["m", "dest", "--cas", "store"]).expect(1).says("/a").says("not in the store");
    assert!(fs::read(bench.path("dest/large")).unwrap() == pattern(3 << 20) && !bench.path("dest/a").exists());
}

/// What is wrong in the store is stored again from the files; a length alone would not show it.
#[test]
fn wrong_content_in_the_store_is_replaced_by_an_upload_that_verifies() {
    let bench = bench();
    let object = bench.path(&format!("store/Data/{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(b"one")));
    fs::write(&object, "0ne").unwrap();
    let upload = ["manifest", "upload", "m", "--root", "work", "--cas", "store"];
    bench.run(upload).expect(0).says("0 objects stored");
    assert_eq!(fs::read(&object).unwrap(), b"0ne");
    let ran = bench.run(upload.iter().chain(&["--verify"])).expect(0);
    ran.says("1 object stored (3 B), 1 of them in the place of wrong ones, 3 there already");
    assert_eq!(fs::read(&object).unwrap(), b"one");
    bench.run(["manifest", "verify", "m", "--cas", "store"]).expect(0);
    // What has to be sent and is not there any more is told by its path.
    fs::remove_file(&object).unwrap();
    fs::write(bench.path("work/a"), "two").unwrap();
    bench
        .run(upload)
        .expect(1)
        .says("upload: read /a: ")
        .says("0 objects stored (0 B), 3 there already, 1 file failed");
    let quiet = bench.run(upload.iter().chain(&["--quiet"])).expect(1).says("upload: read /a: ");
    assert!(!quiet.stderr.contains("there already"), "{}", quiet.stderr);
    let told = bench.run(upload.iter().chain(&["--json"])).expect(1).json();
    let [failed] = &told["failures"].as_array().unwrap()[..] else { panic!("{told}") };
    assert_eq!((&failed["path"], &told["stored"], &told["present"]), (&"/a".into(), &0.into(), &3.into()));
    assert!(failed["error"].as_str().unwrap().contains("not what the manifest says"), "{told}");
}

/// A time that no file has: the copy has that of now, and a line tells it.
#[test]
fn times_beyond_what_files_have_are_told_and_not_set() {
    let bench = bench();
    let hash = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(b"one"));
    let entry = |path: &str, mtime: i64| format!(r#"{{"hash":"{hash}","mtime":{mtime},"path":"{path}","size":3}}"#);
    let text = format!(
        r#"{{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[{},{}],"totalSize":6}}"#,
        entry("far", 99_999_999_999_999_999),
        entry("near", 1_700_000_000_123_456)
    );
    fs::write(bench.path("m"), text).unwrap();
    let began = SystemTime::now() - Duration::from_secs(5);
    let check = |dest: &str, ran: Ran| {
        let ran = ran.expect(0).says("/far: its time is before 1677 or after 2262");
        assert!(!ran.stderr.contains("/near"), "{}", ran.stderr);
        let time = |name: &str| fs::metadata(bench.path(dest).join(name)).unwrap().modified().unwrap();
        assert!((began..SystemTime::now() + Duration::from_secs(5)).contains(&time("far")), "{:?}", time("far"));
        assert_eq!(time("near"), SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456));
    };
    check("down", download(&bench, &["m", "down", "--cas", "store"]));
    let cache = bench.str("cache");
    check("got", bench.run(["get", "m", "/", "got", "--cas", "store", "--cache-dir", &cache]));
    // It is there, whatever its time.
    download(&bench, &["m", "down", "--cas", "store", "--conflict", "overwrite"]).expect(0).says("2 there already");
}

/// A manifest `m` of some large files, and the child that downloads it, which has begun.
fn begun(bench: &Bench) -> std::process::Child {
    fs::create_dir(bench.path("work")).unwrap();
    fs::create_dir(bench.path("store")).unwrap();
    for n in 0..8 {
        let mut content = pattern(32 << 20);
        content[0] = n;
        fs::write(bench.path(&format!("work/f{n}")), content).unwrap();
    }
    snapshot(bench, "work", "m", &[]);
    let mut command = bench.command();
    command.args(["manifest", "download", "m", "dest", "--cas", "store", "--cache-dir", "cache"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).start().unwrap();
    eventually("it is at work", || !drafts(&bench.path("dest")).is_empty());
    child
}

fn expect_whole(bench: &Bench) {
    for n in 0..8 {
        let mut content = pattern(32 << 20);
        content[0] = n;
        assert!(fs::read(bench.path(&format!("dest/f{n}"))).unwrap() == content, "f{n}");
    }
    assert!(drafts(&bench.path("dest")).is_empty());
}

/// Whatever is under a name is whole.
fn expect_no_half_file(bench: &Bench) {
    for entry in fs::read_dir(bench.path("dest")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if let Some(n) = name.strip_prefix('f') {
            let mut content = pattern(32 << 20);
            content[0] = n.parse().unwrap();
            assert!(fs::read(entry.path()).unwrap() == content, "{name}");
        }
    }
}

#[test]
fn a_killed_download_leaves_no_half_file_and_the_next_one_finishes_it() {
    let bench = Bench::bare();
    let mut child = begun(&bench);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!drafts(&bench.path("dest")).is_empty(), "it was killed in the middle");
    expect_no_half_file(&bench);
    download(&bench, &["m", "dest", "--cas", "store"]).expect(0).says("had not finished");
    expect_whole(&bench);
}

#[test]
fn a_signal_ends_a_download_and_nothing_unfinished_stays() {
    let bench = Bench::bare();
    let mut child = begun(&bench);
    // SAFETY: a system call with two numbers; the process is ours and not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGINT));
    assert!(drafts(&bench.path("dest")).is_empty());
    expect_no_half_file(&bench);
    download(&bench, &["m", "dest", "--cas", "store"]).expect(0);
    expect_whole(&bench);
}

/// What is large is neither sent nor fetched as a whole: the process stays small.
#[test]
fn memory_does_not_grow_with_the_size_of_files() {
    const LEN_BYTES: u64 = 400 << 20;
    const MEMORY_MAX_BYTES: u64 = 160 << 20;
    let bench = Bench::bare();
    fs::create_dir(bench.path("work")).unwrap();
    fs::create_dir(bench.path("store")).unwrap();
    for n in 0..2 {
        let file = fs::File::create(bench.path(&format!("work/f{n}"))).unwrap();
        file.set_len(LEN_BYTES + n).unwrap();
    }
    for line in [
        &["manifest", "snapshot", "work", "-o", "m", "--cas", "store", "--cache-dir", "cache"][..],
        &["manifest", "download", "m", "dest", "--cas", "store", "--cache-dir", "cache"],
        &["manifest", "download", "m", "dest", "--cas", "store", "--cache-dir", "cache", "--rehash"],
    ] {
        let peak = Peak::of(bench.command().args(line).stdout(Stdio::null()).stderr(Stdio::null()), 0);
        assert!(peak.all < MEMORY_MAX_BYTES, "{line:?} took {peak:?}");
    }
    assert_eq!(fs::metadata(bench.path("dest/f1")).unwrap().len(), LEN_BYTES + 1);
}

#[test]
fn a_signal_ends_an_upload_in_the_middle_of_a_file() {
    let bench = Bench::bare();
    fs::create_dir(bench.path("work")).unwrap();
    let dir = attributed();
    let store = dir.path().to_str().unwrap();
    for n in 0..16 {
        let mut content = pattern(32 << 20);
        content[0] = n;
        fs::write(bench.path(&format!("work/f{n}")), content).unwrap();
    }
    bench.run(["manifest", "snapshot", "work", "-o", "m", "--cache-dir", "cache"]).expect(0);
    let line = ["manifest", "upload", "m", "--root", "work", "--cas", store, "--manifest-prefix", "p"];
    let mut child = bench.command().args(line).stdout(Stdio::null()).stderr(Stdio::null()).start().unwrap();
    let objects = || fs::read_dir(dir.path().join("Data")).into_iter().flatten().flatten();
    eventually("an object is there", || objects().next().is_some());
    // SAFETY: a system call with two numbers; the process is ours and not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    for object in objects() {
        let hash = format!("{:032x}.xxh128", xxhash_rust::xxh3::xxh3_128(&fs::read(object.path()).unwrap()));
        assert_eq!(object.file_name().to_str(), Some(&*hash));
    }
    assert!(objects().count() < 16 && !dir.path().join("Manifests").exists());
    bench.run(line).expect(0);
    assert_eq!((objects().count(), dir.path().join("Manifests/p/m").exists()), (16, true));
}

/// A filesystem that is unmounted on drop.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).start_and_wait();
    }
}

#[test]
fn a_full_disk_is_8_with_advice() {
    if !is_root("a small filesystem") {
        return;
    }
    let bench = bench();
    fs::create_dir(bench.path("dest")).unwrap();
    let dest = bench.path("dest");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&dest).start_and_wait();
    assert!(mounted.unwrap().success());
    let _small = Small(dest.clone());
    download(&bench, &["m", "dest", "--cas", "store"]).expect(8).says("is full: make room there");
    assert!(drafts(&dest).is_empty() && !dest.join("large").exists());
}

/// A folder for a store that has extended attributes: where /tmp may have none.
fn attributed() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_manifest_is_stored_after_its_content_and_outputs_are_found() {
    let bench = bench();
    let dir = attributed();
    let store = dir.path().to_str().unwrap();
    let root_hash = |root: &Path| format!("{:032x}", xxhash_rust::xxh3::xxh3_128(root.to_str().unwrap().as_bytes()));
    // What two tasks left, one of them twice.
    for (task, second, content) in [("task-a", 1, "old"), ("task-b", 2, "b"), ("task-a", 3, "new")] {
        let root = bench.path(&format!("out-{task}"));
        fs::create_dir_all(root.join("frames")).unwrap();
        fs::write(root.join(format!("frames/{task}.exr")), content).unwrap();
        fs::write(root.join("frames/both"), content).unwrap();
        let name = format!("{}_output", root_hash(&bench.path("projects")));
        let work = format!("out-{task}");
        let cache = bench.str("cache");
        bench.run(["manifest", "snapshot", &work, "-o", &name, "--cache-dir", &cache]).expect(0);
        let prefix = format!("farm/queue/job/step/{task}/2026-11-22T18:00:0{second}.000000Z_action-{second}");
        let upload = ["manifest", "upload", &name, "--root", &work, "--cas", store, "--manifest-prefix", &prefix];
        let told = bench.run([&upload[..], &["--json"]].concat()).expect(0).json();
        let key = format!("Manifests/{prefix}/{name}");
        assert_eq!(told["manifest_key"], Value::from(key.clone()));
        assert_eq!(fs::read(dir.path().join(key)).unwrap(), fs::read(bench.path(&name)).unwrap());
        fs::remove_dir_all(root).unwrap();
    }
    let of = |below: &str| format!("{store}/Manifests/farm/queue/{below}");
    // Each task has a root of its own here.
    download(&bench, &[&of("job/"), "all"]).expect(2).says("several roots").says("out-task-b").says("--asset-root");
    assert!(!bench.path("all").exists());
    let root = bench.path("out-task-a");
    let told =
        download(&bench, &[&of("job/"), "all", "--asset-root", root.to_str().unwrap(), "--json"]).expect(0).json();
    assert_eq!((&told["manifests"], &told["written"]), (&1.into(), &2.into()));
    assert_eq!(told["asset_root"], Value::from(root.to_str().unwrap()));
    assert_eq!(fs::read(bench.path("all/frames/task-a.exr")).unwrap(), b"new");
    download(&bench, &[&of("job/step/task-b/"), "one"]).expect(0).says("out-task-b");
    assert_eq!(fs::read(bench.path("one/frames/both")).unwrap(), b"b");
    download(&bench, &[&of("none/"), "none"]).expect(1).says("no outputs");
    download(&bench, &[&of("job"), "none", "--cas", store]).expect(10).says("a slash at its end");
    // A part of a key that cannot be one.
    bench.run(["manifest", "upload", "m", "--root", "work", "--cas", store, "--manifest-prefix", "../x"]).expect(2);
    // If a file is not what the manifest says, it is not stored.
    fs::write(bench.path("work/a"), "changed").unwrap();
    let refused = ["manifest", "upload", "m", "--root", "work", "--cas", store, "--manifest-prefix", "p"];
    bench.run(refused).expect(1).says("/a");
    assert!(!dir.path().join("Manifests/p").exists());
}

/// Names that the official packages look for, and their order: that in which the store got the manifests.
#[test]
fn outputs_of_any_name_are_merged_in_the_order_in_which_they_were_stored() {
    let bench = bench();
    let dir = attributed();
    let store = dir.path().to_str().unwrap();
    let cache = bench.str("cache");
    let outputs = [
        ("task-1", "2025-06-01T00:00:09.000000Z_sessionaction-1-1", "0123_output", 100),
        ("task-2", "2025-06-01T00:00:05.000000Z_sessionaction-1-2", "output-0123-2025-06-01T00-00-05.manifest", 300),
        ("task-3", "2025-06-01T00:00:07.000000Z_sessionaction-1-3", "my_outputs.json", 200),
        // An earlier one of the same task does not count, whenever it was stored.
        ("task-3", "2025-06-01T00:00:01.000000Z_sessionaction-1-0", "0123_output", 900),
    ];
    for (task, action, name, stored) in outputs {
        fs::create_dir_all(bench.path("out")).unwrap();
        fs::write(bench.path("out/both"), task).unwrap();
        fs::write(bench.path("out").join(format!("{task}-{action}")), action).unwrap();
        bench.run(["manifest", "snapshot", "out", "-o", name, "--cache-dir", &cache]).expect(0);
        let prefix = format!("farm-1/queue-1/job-1/step-1/{task}/{action}");
        let upload = ["manifest", "upload", name, "--root", "out", "--cas", store, "--manifest-prefix", &prefix];
        bench.run(upload).expect(0);
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_750_000_000 + stored);
        let object = dir.path().join(format!("Manifests/{prefix}/{name}"));
        fs::File::options().write(true).open(object).unwrap().set_modified(time).unwrap();
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
    let job = format!("{store}/Manifests/farm-1/queue-1/job-1/");
    let told = download(&bench, &[&job, "all", "--json"]).expect(0).json();
    assert_eq!(told["manifests"], 3);
    assert_eq!(fs::read(bench.path("all/both")).unwrap(), b"task-2", "it was stored last");
    let names: Vec<_> = outputs[..3].iter().map(|(task, action, ..)| format!("{task}-{action}")).collect();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut found: Vec<_> = fs::read_dir(bench.path("all")).unwrap().map(name).collect();
    found.sort();
    assert_eq!(found, [&["both".to_owned()], &names[..]].concat());
}

#[test]
fn files_get_the_permissions_of_any_new_file() {
    let bench = bench();
    download(&bench, &["m", "dest", "--cas", "store"]).expect(0);
    fs::write(bench.path("plain"), "").unwrap();
    fs::create_dir(bench.path("folder")).unwrap();
    let mode = |path: &str| fs::metadata(bench.path(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("dest/a"), mode("dest/sub")), (mode("plain"), mode("folder")));
    assert_eq!(mode("dest/sub/tool"), mode("plain") | (mode("folder") & 0o111));
}
