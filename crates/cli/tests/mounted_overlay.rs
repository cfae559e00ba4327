//! Overlays: a folder or a snapshot below, a volume that takes what is changed.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ran, Start, eventually, facts, make_tree, pattern};
use mounts::Points;
use serde_json::Value;

/// A folder `lower` with a tree in it, and folders to mount on.
struct World(Points);

impl Deref for World {
    type Target = Points;

    fn deref(&self) -> &Points {
        &self.0
    }
}

impl World {
    /// `None` where mounts are impossible; under CI that is a failure.
    fn new() -> Option<World> {
        let points = Points::new(&["mnt", "mnt2", "mnt3"])?;
        let bench = &points.bench;
        make_tree(&bench.path("lower"));
        fs::create_dir_all(bench.path("lower/src/deep/er")).unwrap();
        fs::write(bench.path("lower/src/main.c"), "int main;\n").unwrap();
        fs::write(bench.path("lower/src/deep/er/leaf"), "leaf").unwrap();
        fs::write(bench.path("lower/big"), pattern(3 << 20)).unwrap();
        Some(World(points))
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.bench.run(args)
    }

    fn mount(&self) -> Ran {
        self.run(&["mount", "lower", "mnt", "--upper", "up"])
    }

    fn at(&self, path: &str) -> PathBuf {
        self.bench.path("mnt").join(path)
    }

    /// What `adit diff` tells, a line for each.
    fn diff(&self) -> Vec<String> {
        let found = self.run(&["diff", "mnt", "--json"]).expect(0).json();
        let line = |change: &Value| {
            let text = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", text("change"), text("path"), text("from")).trim_end().to_owned()
        };
        found.as_array().unwrap().iter().map(line).collect()
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// As an editor saves: a new file takes the place of the old one.
fn save(path: &Path, content: &str) {
    let draft = path.with_extension("tmp");
    let mut file = File::create(&draft).unwrap();
    file.write_all(content.as_bytes()).unwrap();
    file.sync_all().unwrap();
    fs::rename(draft, path).unwrap();
}

fn git(dir: &Path, args: &[&str]) -> String {
    let told = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"];
    let out = Command::new("git").args(told).args(args).current_dir(dir).env("HOME", dir).start_and_read().unwrap();
    assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Works in the tree as people and programs do.
fn work(root: &Path) {
    // In place, by a new file, by appending.
    OpenOptions::new().write(true).open(root.join("big")).unwrap().write_all_at(b"changed", 1 << 20).unwrap();
    save(&root.join("src/main.c"), "int main(void) { return 0; }\n");
    OpenOptions::new().append(true).open(root.join("src/deep/er/leaf")).unwrap().write_all(b" and more").unwrap();
    fs::set_permissions(root.join("src"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir_all(root.join("new/below")).unwrap();
    fs::write(root.join("new/below/file"), "new").unwrap();
    fs::rename(root.join("src/deep"), root.join("moved")).unwrap();
    fs::hard_link(root.join("src/main.c"), root.join("linked.c")).unwrap();
    fs::create_dir(root.join("gone")).unwrap();
    fs::write(root.join("gone/f"), "f").unwrap();
    fs::remove_dir_all(root.join("gone")).unwrap();
}

#[test]
fn what_lies_below_stays_as_it_is_and_the_changes_are_found_again() {
    let Some(w) = World::new() else { return };
    let lower = w.bench.path("lower");
    let (before, plain) = (facts(&lower), w.bench.path("plain"));
    assert!(Command::new("cp").arg("-a").args([&lower, &plain]).start_and_wait().unwrap().success());
    w.mount().expect(0).says("up: volume created");
    assert_eq!(facts(&w.bench.path("mnt")), before, "as it is below");
    work(&w.bench.path("mnt"));
    work(&plain);
    fs::remove_dir_all(w.at("new")).unwrap();
    fs::remove_dir_all(plain.join("new")).unwrap();
    // Times of folders are those of the changes; names, modes and contents are to agree.
    let timeless = |root: &Path| -> Vec<(String, String)> {
        let strip = |fact: String| {
            let parts: Vec<&str> = fact.split(' ').collect();
            (parts[..parts.len() - 2].join(" "), parts[parts.len() - 1].to_owned())
        };
        facts(root).into_iter().map(strip).collect()
    };
    let (expected, found) = (timeless(&plain), timeless(&w.bench.path("mnt")));
    assert_eq!(found, expected);
    let told = w.diff();
    for line in ["changed /big", "renamed /moved /src/deep", "attributes /src"] {
        assert!(told.iter().any(|told| told == line), "{line}: {told:?}");
    }
    assert!(!told.iter().any(|line| line.contains("/gone") || line.contains("/new")), "{told:?}");
    w.run(&["umount", "mnt"]).expect(0);
    assert_eq!(facts(&lower), before, "untouched");
    let again = w.mount().expect(0);
    assert_eq!(again.stderr, "", "nothing is made anew");
    assert_eq!(timeless(&w.bench.path("mnt")), expected);
    assert_eq!(w.diff(), told);
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&["volume", "check", "up"]).expect(0);
    assert_eq!(facts(&lower), before);
}

#[test]
fn a_repository_is_worked_in() {
    let Some(w) = World::new() else { return };
    let before = facts(&w.bench.path("lower"));
    w.mount().expect(0);
    let at = w.bench.path("mnt");
    git(&at, &["init", "-q"]);
    git(&at, &["add", "src"]);
    git(&at, &["commit", "-qm", "first"]);
    save(&w.at("src/main.c"), "int other;\n");
    git(&at, &["commit", "-qam", "second"]);
    git(&at, &["checkout", "-q", "-b", "side", "HEAD~1"]);
    assert_eq!(read(&w.at("src/main.c")), "int main;\n");
    git(&at, &["gc", "-q"]);
    w.run(&["umount", "mnt"]).expect(0);
    w.mount().expect(0);
    git(&at, &["fsck", "--strict"]);
    assert_eq!(git(&at, &["log", "--format=%s", "main"]), "second\nfirst\n");
    w.run(&["umount", "mnt"]).expect(0);
    assert_eq!(facts(&w.bench.path("lower")), before);
}

#[test]
fn a_kill_loses_nothing_that_was_closed() {
    let Some(w) = World::new() else { return };
    let before = facts(&w.bench.path("lower"));
    w.mount().expect(0);
    work(&w.bench.path("mnt"));
    let expected = facts(&w.bench.path("mnt"));
    w.kill();
    w.mount().expect(0);
    assert_eq!(facts(&w.bench.path("mnt")), expected);
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&["volume", "check", "up"]).expect(0);
    assert_eq!(facts(&w.bench.path("lower")), before);
}

#[test]
fn a_snapshot_is_made_writable_beside_the_volume_or_without_it() {
    let Some(w) = World::new() else { return };
    w.run(&["volume", "init", "box"]).expect(0);
    w.run(&["put", "box", "lower", "/"]).expect(0);
    w.run(&["snapshot", "create", "box", "s"]).expect(0);
    w.run(&["put", "box", "lower/big", "/later"]).expect(0);
    w.run(&["mount", "box", "mnt", "--upper", "up"]).expect(2).says("--snapshot");
    w.run(&["mount", "box", "mnt", "--snapshot", "s", "--upper", "box"]).expect(2).says("own snapshot");
    w.run(&["mount", "box", "mnt", "--snapshot", "none", "--upper", "up"]).expect(1).says("no snapshot none");
    let overlay = ["mount", "box", "mnt", "--snapshot", "s", "--upper", "up"];
    w.run(&overlay).expect(0);
    let below = facts(&w.bench.path("lower"));
    assert_eq!(facts(&w.at("lower")), below);
    save(&w.at("lower/src/main.c"), "first\n");
    // Whoever has it below keeps it from being changed.
    w.run(&["mount", "box", "mnt2"]).expect(7).says("overlay on");
    w.run(&["umount", "mnt"]).expect(0);
    // Mounted first, both go on.
    w.run(&["mount", "box", "mnt2"]).expect(0);
    w.run(&overlay).expect(0);
    assert_eq!(read(&w.at("lower/src/main.c")), "first\n");
    assert!(!w.at("later").exists() && w.bench.path("mnt2/later").exists());
    save(&w.at("lower/src/main.c"), "second\n");
    fs::write(w.bench.path("mnt2/lower/src/main.c"), "of the volume\n").unwrap();
    assert_eq!(read(&w.at("lower/src/main.c")), "second\n");
    assert_eq!(w.bench.mounts().len(), 2, "what reads the snapshot for it is not listed");
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&["umount", "mnt2"]).expect(0);
    eventually("nobody has the volume", || w.run(&["volume", "check", "box"]).code == Some(0));
    w.run(&["get", "box", "/lower/src/main.c", "got"]).expect(0);
    assert_eq!(read(&w.bench.path("got")), "of the volume\n");
    w.run(&overlay).expect(0);
    assert_eq!(read(&w.at("lower/src/main.c")), "second\n");
    w.run(&["umount", "mnt"]).expect(0);
}

#[test]
fn writable_finds_its_changes_again() {
    let Some(w) = World::new() else { return };
    let line = ["mount", "lower", "mnt", "--writable", "--cache-dir", "cache"];
    w.run(&line).expect(0).says("volume created");
    fs::write(w.at("new"), "kept").unwrap();
    w.run(&["mount", "lower", "mnt2", "--writable", "--cache-dir", "cache"]).expect(7).says("mounted on");
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&line).expect(0);
    assert_eq!(read(&w.at("new")), "kept");
    w.run(&["umount", "mnt"]).expect(0);
    // By mount(8)'s words, too.
    w.run(&["mount", "lower", "mnt", "-o", "writable,cache_dir=cache"]).expect(0);
    assert_eq!(read(&w.at("new")), "kept");
    w.run(&["umount", "mnt"]).expect(0);
    let uppers = fs::read_dir(w.bench.path("cache/overlays")).unwrap().count();
    assert_eq!(uppers, 1);
    assert_eq!(fs::metadata(w.bench.path("cache/overlays")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn what_was_changed_is_mounted_to_be_read() {
    let Some(w) = World::new() else { return };
    w.mount().expect(0);
    work(&w.bench.path("mnt"));
    let changed = facts(&w.bench.path("mnt"));
    w.run(&["umount", "mnt"]).expect(0);
    let upper = fs::read(w.bench.path("up")).unwrap();
    for how in [&["--read-only"][..], &["-o", "ro"]] {
        w.run(&[&["mount", "lower", "mnt", "--upper", "up"], how].concat()).expect(0);
        assert_eq!(facts(&w.bench.path("mnt")), changed);
        assert_eq!(fs::write(w.at("x"), "x").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        w.run(&["umount", "mnt"]).expect(0);
    }
    assert!(fs::read(w.bench.path("up")).unwrap() == upper, "nothing of it has changed");
    w.mount().expect(0);
    fs::write(w.at("x"), "x").unwrap();
    w.run(&["umount", "mnt"]).expect(0);
}

#[test]
fn an_upper_belongs_to_one_lower() {
    let Some(w) = World::new() else { return };
    fs::create_dir(w.bench.path("other")).unwrap();
    w.mount().expect(0);
    w.run(&["umount", "mnt"]).expect(0);
    w.run(&["mount", "other", "mnt", "--upper", "up"]).expect(1).says("lower").says("other");
    w.run(&["volume", "init", "full"]).expect(0);
    w.run(&["mkdir", "full", "/a"]).expect(0);
    w.run(&["mount", "other", "mnt", "--upper", "full"]).expect(1).says("empty volume");
    w.run(&["mount", "lower", "mnt", "--upper", "lower/up"]).expect(2).says("must not change");
    w.run(&["mount", "lower", "mnt", "--upper", "none", "--read-only"]).expect(1).says("there is no such upper");
    w.run(&["mount", "lower", "mnt", "--upper", "up", "--writable"]).expect(2);
    w.run(&["mount", "lower", "mnt", "-o", "upper=up,writable"]).expect(2);
    assert!(!w.bench.path("lower/up").exists());
    // Nothing is made where it is refused, or not wanted.
    let within = ["mount", "lower", "mnt", "--writable", "--cache-dir", "lower/new/cache"];
    w.run(&within).expect(2).says("must not change");
    assert!(!w.bench.path("lower/new").exists());
    w.run(&["mount", "lower", "mnt", "--writable", "--cache-dir", "new/cache", "--fake"]).expect(0);
    assert!(!w.bench.path("new").exists());
}

/// The next try would take it for changes of before.
#[test]
fn an_upper_that_was_made_for_a_mount_that_failed_goes() {
    let Some(w) = World::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return common::left_out("only root has a namespace of mounts");
    }
    for args in [&["--writable", "--cache-dir", "new"][..], &["--upper", "up"]] {
        // Where the device is none, the mount fails when everything else is there.
        let mut command = w.bench.command_of("unshare");
        command.args(["-m", "sh", "-euc", "mount --bind /dev/null /dev/fuse && exec \"$0\" \"$@\""]);
        command.arg(env!("CARGO_BIN_EXE_adit")).args(["mount", "lower", "mnt"]).args(args);
        common::run(command, b"").expect(1).says("volume created").says("removed again").says("mount failed");
        let left = fs::read_dir(w.bench.path("new/overlays")).map_or(0, Iterator::count);
        assert_eq!((left, w.bench.path("up").exists()), (0, false));
    }
    // One that was there before stays.
    w.run(&["volume", "init", "up"]).expect(0);
    let mut command = w.bench.command_of("unshare");
    command.args(["-m", "sh", "-euc", "mount --bind /dev/null /dev/fuse && exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_adit")).args(["mount", "lower", "mnt", "--upper", "up"]);
    common::run(command, b"").expect(1);
    assert!(w.bench.path("up").exists());
}

#[test]
fn verbs_know_an_overlay() {
    let Some(w) = World::new() else { return };
    w.mount().expect(0);
    let (upper, lower) = (w.bench.str("up"), w.bench.str("lower"));
    let mounts = w.bench.mounts();
    assert_eq!((mounts[0]["kind"].as_str(), mounts[0]["source"].as_str()), (Some("overlay"), Some(lower.as_str())));
    assert_eq!(mounts[0]["upper"].as_str(), Some(upper.as_str()));
    let status = w.run(&["status", "mnt", "--json"]).expect(0).json();
    assert_eq!((status["kind"].as_str(), status["upper"].as_str()), (Some("overlay"), Some(upper.as_str())));
    assert!(w.run(&["stats", "mnt", "--json"]).expect(0).json()["store"].is_object());
    assert!(w.run(&["mounts"]).expect(0).text().contains("changes go to"));
    // A snapshot of what was changed so far, and back to it.
    save(&w.at("src/main.c"), "one\n");
    w.run(&["snapshot", "create", "mnt", "s"]).expect(0);
    save(&w.at("src/main.c"), "two\n");
    fs::write(w.at("more"), "more").unwrap();
    w.run(&["snapshot", "restore", "mnt", "s", "/src", "--yes"]).expect(10).says("leave out the path");
    assert_eq!(read(&w.at("src/main.c")), "two\n");
    w.run(&["snapshot", "restore", "mnt", "s", "--yes"]).expect(0);
    assert_eq!(read(&w.at("src/main.c")), "one\n");
    assert!(!w.at("more").exists());
    assert_eq!(w.diff(), ["changed /src/main.c"]);
    assert!(w.run(&["diff", "mnt"]).expect(0).text().contains("changed  /src/main.c"));
    assert!(w.run(&["snapshot", "list", "up"]).expect(0).text().starts_with("s "));
    w.run(&["ls", "up"]).expect(7);
    w.run(&["umount", "mnt"]).expect(0);
    // What is no overlay.
    w.run(&["mount", "lower", "mnt", "--read-only"]).expect(0);
    w.run(&["diff", "mnt"]).expect(10).says("no overlay");
    assert!(fs::write(w.at("x"), "x").is_err());
    assert_eq!(facts(&w.bench.path("mnt")), facts(&w.bench.path("lower")));
    assert_eq!(w.bench.mounts()[0]["kind"], "dir");
    w.run(&["umount", "mnt"]).expect(0);
}

#[test]
fn what_went_below_is_named_and_the_rest_is_listed() {
    let Some(w) = World::new() else { return };
    w.mount().expect(0);
    OpenOptions::new().append(true).open(w.at("src/deep/er/leaf")).unwrap().write_all(b" and more").unwrap();
    fs::write(w.at("src/new"), "new").unwrap();
    fs::remove_file(w.at("big")).unwrap();
    w.run(&["umount", "mnt"]).expect(0);
    fs::rename(w.bench.path("lower/src/deep"), w.bench.path("elsewhere")).unwrap();
    w.mount().expect(0);
    let ran = w.run(&["diff", "mnt"]).expect(1).says("2 paths could not be compared").says("put back");
    let told = ran.text();
    assert!(told.contains("removed  /big\n") && told.contains("added    /src/new\n"), "{told}");
    assert!(told.contains("unknown  /src/deep/: ") && told.contains("/src/deep/er"), "{told}");
    let found = w.run(&["diff", "mnt", "--json"]).expect(1).json();
    let unknown: Vec<_> = found.as_array().unwrap().iter().filter(|told| told["change"] == "unknown").collect();
    let paths: Vec<_> = unknown.iter().map(|told| told["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/src/deep", "/src/deep/er"]);
    // Of so short a file nothing is below any more.
    assert!(told.contains("added    /src/deep/er/leaf\n"), "{told}");
    assert!(unknown.iter().all(|told| told["error"].as_str().unwrap().contains("put it back")));
    w.run(&["umount", "mnt"]).expect(0);
    fs::rename(w.bench.path("elsewhere"), w.bench.path("lower/src/deep")).unwrap();
    w.mount().expect(0);
    assert_eq!(w.diff(), ["removed /big", "changed /src/deep/er/leaf", "added /src/new"]);
    w.run(&["umount", "mnt"]).expect(0);
}

/// Links beside each other, and in a folder that moved.
#[test]
fn every_name_of_a_file_that_changed_is_listed() {
    let Some(w) = World::new() else { return };
    for link in ["src/link.c", "src/deep/link.c", "link.c"] {
        fs::hard_link(w.bench.path("lower/src/main.c"), w.bench.path("lower").join(link)).unwrap();
    }
    w.mount().expect(0);
    OpenOptions::new().append(true).open(w.at("link.c")).unwrap().write_all(b"more").unwrap();
    fs::rename(w.at("src/deep"), w.at("moved")).unwrap();
    let told = w.diff();
    let expected = [
        "changed /link.c",
        "renamed /moved /src/deep",
        "changed /moved/link.c",
        "changed /src/link.c",
        "changed /src/main.c",
    ];
    assert_eq!(told, expected);
    w.run(&["umount", "mnt"]).expect(0);
}

#[test]
fn an_overlay_below_an_overlay_is_refused_before_anything_is_made() {
    let Some(w) = World::new() else { return };
    w.mount().expect(0);
    for below in ["mnt", "mnt/src", "mnt/new"] {
        fs::create_dir_all(w.bench.path("mnt/new")).unwrap();
        let ran = w.run(&["mount", below, "mnt2", "--upper", "up2"]).expect(10);
        ran.says("cannot lie below another").says(&w.bench.str("lower"));
        assert!(!w.bench.path("up2").exists());
    }
    // To look at it is no overlay.
    w.run(&["mount", "mnt/src", "mnt2", "--read-only"]).expect(0);
    assert_eq!(read(&w.bench.path("mnt2/main.c")), "int main;\n");
    w.run(&["umount", "mnt2"]).expect(0);
    w.run(&["umount", "mnt"]).expect(0);
}

/// Through the kernel: what it has to ask for fails at once.
#[test]
fn a_file_that_changes_below_while_it_is_open_is_an_error_at_once() {
    let Some(w) = World::new() else { return };
    w.mount().expect(0);
    let file = OpenOptions::new().read(true).write(true).open(w.at("big")).unwrap();
    let mut buf = [0; 4096];
    file.read_exact_at(&mut buf, 0).unwrap();
    let expected = buf;
    fs::write(w.bench.path("lower/big"), vec![9; 1 << 20]).unwrap();
    let stale = |e: std::io::Error| assert_eq!(e.raw_os_error(), Some(libc::ESTALE));
    stale(file.read_exact_at(&mut buf, 2 << 20).unwrap_err());
    stale(file.write_at(b"part of a page", (2 << 20) + 100).unwrap_err());
    stale(OpenOptions::new().write(true).open(w.at("big")).map(drop).unwrap_err());
    // What the kernel read before is what was there.
    if file.read_exact_at(&mut buf, 0).is_ok() {
        assert!(buf == expected);
    }
    drop(file);
    let log = fs::read_to_string(w.bench.path("state/adit/log")).unwrap();
    let told = log.lines().filter(|line| line.contains("/big: changed while it was in use")).count();
    assert_eq!(told, 1, "{log}");
    assert!(log.contains("it had 3145728 bytes, and has 1048576"), "{log}");
    w.run(&["umount", "mnt"]).expect(0);
}

/// Of what was copied up in part, and of what was not, it is told in the log: once for each.
#[test]
fn a_file_that_went_below_is_told_in_the_log() {
    let Some(w) = World::new() else { return };
    fs::write(w.bench.path("lower/other"), [1; 9000]).unwrap();
    w.mount().expect(0);
    OpenOptions::new().write(true).open(w.at("big")).unwrap().write_at(b"changed", 0).unwrap();
    w.run(&["umount", "mnt"]).expect(0);
    w.mount().expect(0);
    let stale = |path: &str| {
        let told = File::open(w.at(path)).and_then(|file| file.read_exact_at(&mut [0; 1], 5000));
        assert_eq!(told.unwrap_err().raw_os_error(), Some(libc::ESTALE), "{path}");
    };
    // Known, and not open.
    fs::metadata(w.at("other")).unwrap();
    fs::metadata(w.at("big")).unwrap();
    for name in ["big", "other"] {
        fs::remove_file(w.bench.path("lower").join(name)).unwrap();
        for _ in 0..3 {
            stale(name);
        }
    }
    let log = fs::read_to_string(w.bench.path("state/adit/log")).unwrap();
    for name in ["/big: ", "/other: "] {
        let told: Vec<&str> = log.lines().filter(|line| line.contains(name)).collect();
        assert!(told.len() == 1 && told[0].contains("it is not there any more"), "{name}: {log}");
    }
    w.run(&["umount", "mnt"]).expect(0);
}

/// As JavaScript and cpio keep numbers: in a double, and in 32 bits.
#[test]
fn numbers_are_small_and_no_two_files_share_one() {
    let Some(world) = World::new() else { return };
    for n in 0..40 {
        fs::write(world.bench.path(&format!("lower/low{n}")), format!("low {n}")).unwrap();
        fs::hard_link(world.bench.path(&format!("lower/low{n}")), world.bench.path(&format!("lower/other{n}")))
            .unwrap();
    }
    world.mount().expect(0);
    for n in 0..40 {
        fs::write(world.at(&format!("new{n}")), "new").unwrap();
    }
    fs::write(world.at("low3"), "changed").unwrap();
    let numbers = || -> Vec<(String, u64)> {
        let entries = fs::read_dir(world.at("")).unwrap().map(Result::unwrap);
        let mut numbers: Vec<_> = entries
            .map(|entry| {
                let number = entry.metadata().unwrap().ino();
                assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), number, "the listing agrees");
                (entry.file_name().into_string().unwrap(), number)
            })
            .collect();
        numbers.sort_unstable();
        numbers
    };
    let seen = numbers();
    let number = |name: String| seen.iter().find(|(other, _)| *other == name).unwrap().1;
    for n in 0..40 {
        assert_eq!(number(format!("low{n}")), number(format!("other{n}")), "one file with two names");
    }
    let mut few: Vec<u32> =
        seen.iter().filter(|(name, _)| !name.starts_with("other")).map(|(_, ino)| *ino as u32).collect();
    let count = few.len();
    few.sort_unstable();
    few.dedup();
    assert_eq!(few.len(), count, "{seen:?}");
    assert!(seen.iter().all(|(_, ino)| *ino < 1 << 53), "{seen:?}");
    // Git keeps these bits, and reads everything again where they are others.
    for n in 0..40 {
        let below = fs::metadata(world.bench.path(&format!("lower/low{n}"))).unwrap().ino();
        assert_eq!(number(format!("low{n}")) as u32, below as u32);
    }
    world.run(&["umount", "mnt"]).expect(0);
    world.mount().expect(0);
    assert_eq!(numbers(), seen, "the next mount");
    world.run(&["umount", "mnt"]).expect(0);
}

/// What it takes is told to `du`, `cp` and `tar -S`.
#[test]
fn a_sparse_file_of_the_lower_stays_one_when_it_is_changed() {
    let Some(world) = World::new() else { return };
    for name in ["a", "b", "c"] {
        let file = File::create(world.bench.path(&format!("lower/{name}"))).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(b"end", 1 << 30).unwrap();
    }
    let below = fs::metadata(world.bench.path("lower/a")).unwrap().blocks();
    let full = fs::metadata(world.bench.path("lower/big")).unwrap().blocks().min((3 << 20) / 512);
    world.mount().expect(0);
    let blocks = |name: &str| fs::metadata(world.at(name)).unwrap().blocks();
    OpenOptions::new().write(true).open(world.at("a")).unwrap().write_all_at(b"x", 1_000_000).unwrap();
    fs::set_permissions(world.at("b"), fs::Permissions::from_mode(0o600)).unwrap();
    OpenOptions::new().write(true).open(world.at("c")).unwrap().set_len((1 << 30) + 4).unwrap();
    OpenOptions::new().write(true).open(world.at("big")).unwrap().write_all_at(b"x", 1_000_000).unwrap();
    for round in ["at once", "at the next mount"] {
        for name in ["a", "b", "c"] {
            assert!((1..below + 1000).contains(&blocks(name)), "{round}: {name}: {}", blocks(name));
        }
        assert!((full..full + 1000).contains(&blocks("big")), "{round}: what is full below: {}", blocks("big"));
        world.run(&["umount", "mnt"]).expect(0);
        if round == "at once" {
            world.mount().expect(0);
        }
    }
}

/// What is gone below is no absence, and can be removed; it does not show again if it comes back.
#[test]
fn what_the_lower_lost_is_stale_and_can_be_removed_for_good() {
    let Some(world) = World::new() else { return };
    let low = |name: &str| world.bench.path("lower").join(name);
    for dir in ["kept", "moved", "aside"] {
        fs::create_dir(low(dir)).unwrap();
        fs::write(low(dir).join("f"), dir).unwrap();
    }
    for file in ["file", "renamed"] {
        fs::write(low(file), file).unwrap();
    }
    world.mount().expect(0);
    fs::write(world.at("kept/new"), "new").unwrap();
    fs::write(world.at("aside/new"), "new").unwrap();
    fs::rename(world.at("moved"), world.at("elsewhere")).unwrap();
    for file in ["file", "renamed"] {
        fs::set_permissions(world.at(file), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let away = |from: &str, to: &str| {
        for name in ["kept", "moved", "aside", "file", "renamed"] {
            fs::rename(world.bench.path(from).join(name), world.bench.path(to).join(name)).unwrap();
        }
    };
    fs::create_dir(world.bench.path("away")).unwrap();
    away("lower", "away");
    world.run(&["umount", "mnt"]).expect(0);
    world.mount().expect(0);
    let stale = |what: std::io::Result<()>| assert_eq!(what.unwrap_err().raw_os_error(), Some(116), "ESTALE");
    let listed = |name: &str| -> std::io::Result<Vec<_>> {
        fs::read_dir(world.at(name))?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    };
    for dir in ["kept", "elsewhere", "aside"] {
        stale(listed(dir).map(drop));
        stale(fs::metadata(world.at(dir).join("f")).map(drop));
    }
    fs::remove_file(world.at("kept/new")).unwrap();
    fs::remove_dir(world.at("kept")).unwrap();
    fs::remove_dir(world.at("elsewhere")).unwrap();
    // A directory that has something is not empty.
    assert_eq!(fs::remove_dir(world.at("aside")).unwrap_err().kind(), std::io::ErrorKind::DirectoryNotEmpty);
    fs::rename(world.at("aside/new"), world.at("aside.new")).unwrap();
    fs::create_dir(world.at("vacant")).unwrap();
    fs::rename(world.at("vacant"), world.at("aside")).unwrap();
    fs::remove_file(world.at("file")).unwrap();
    fs::rename(world.at("renamed"), world.at("other")).unwrap();
    world.run(&["umount", "mnt"]).expect(0);

    away("away", "lower");
    world.mount().expect(0);
    for gone in ["kept", "elsewhere", "moved", "file", "renamed"] {
        assert!(!world.at(gone).exists(), "{gone} is back");
    }
    assert!(listed("aside").unwrap().is_empty());
    assert!(world.at("other").exists());
    world.run(&["umount", "mnt"]).expect(0);
}

/// The same without an unmount in between, as `rm -rf` does it.
#[test]
fn what_goes_away_below_while_it_is_mounted_can_be_removed() {
    let Some(world) = World::new() else { return };
    let low = |name: &str| world.bench.path("lower").join(name);
    for dir in ["one", "two"] {
        fs::create_dir(low(dir)).unwrap();
        fs::write(low(dir).join("f"), dir).unwrap();
    }
    world.mount().expect(0);
    fs::rename(world.at("one"), world.at("renamed")).unwrap();
    fs::write(world.at("two/new"), "new").unwrap();
    assert_eq!(fs::read(world.at("renamed/f")).unwrap(), b"one");
    for dir in ["one", "two"] {
        fs::remove_dir_all(low(dir)).unwrap();
    }
    for dir in ["renamed", "two"] {
        let path = world.at(dir);
        let said = Command::new("rm").arg("-rf").arg(&path).output().unwrap();
        assert!(!said.status.success() || !path.exists(), "rm says that it is gone: {dir}");
        // Without its listing it takes further steps.
        if path.join("new").exists() {
            fs::remove_file(path.join("new")).unwrap();
        }
        if path.exists() {
            fs::remove_dir(&path).unwrap();
        }
    }
    world.run(&["umount", "mnt"]).expect(0);
    world.mount().expect(0);
    assert!(!world.at("renamed").exists() && !world.at("two").exists());
    world.run(&["umount", "mnt"]).expect(0);
}

/// As `rm -rf` does it, which ends at a listing that fails, and `rmdir` after that.
#[test]
fn a_tree_that_changed_below_is_removed_and_stays_away() {
    type Change = fn(&Path);
    fn nothing(_: &Path) {}
    fn gone(dir: &Path) {
        fs::remove_dir_all(dir.join("d")).unwrap();
    }
    let cases: [(&str, Change, Change, &str); 9] = [
        ("gone", nothing, gone, "d"),
        ("with-something", |at| fs::write(at.join("d/n"), "n").unwrap(), gone, "d"),
        ("with-something-deeper", |at| fs::write(at.join("d/sub/n"), "n").unwrap(), gone, "d"),
        ("a-part", nothing, |at| fs::remove_dir_all(at.join("d/sub")).unwrap(), "d"),
        (
            "a-part-with-something",
            |at| fs::write(at.join("d/sub/n"), "n").unwrap(),
            |at| fs::remove_dir_all(at.join("d/sub")).unwrap(),
            "d",
        ),
        (
            "a-file-now",
            nothing,
            |at| {
                gone(at);
                fs::write(at.join("d"), "file").unwrap();
            },
            "d",
        ),
        (
            "another-folder-now",
            nothing,
            |at| {
                gone(at);
                fs::create_dir(at.join("d")).unwrap();
                fs::write(at.join("d/strange"), "strange").unwrap();
            },
            "d",
        ),
        (
            "moved-into-a-new-one",
            |at| {
                fs::create_dir(at.join("in")).unwrap();
                fs::rename(at.join("d"), at.join("in/d")).unwrap();
            },
            gone,
            "in",
        ),
        ("moved-into-an-old-one", |at| fs::rename(at.join("d"), at.join("e/d")).unwrap(), gone, "e"),
    ];
    let Some(world) = World::new() else { return };
    let low = |case: &str| world.bench.path("lower").join(case);
    for (case, ..) in &cases {
        fs::create_dir_all(low(case).join("d/sub")).unwrap();
        fs::create_dir(low(case).join("e")).unwrap();
        for file in ["d/f", "d/sub/g"] {
            fs::write(low(case).join(file), file).unwrap();
        }
    }
    world.mount().expect(0);
    // The kernel knows all of it.
    assert!(Command::new("ls").arg("-lR").arg(world.at("")).output().unwrap().status.success());
    for (case, above, ..) in &cases {
        above(&world.at(case));
    }
    for (case, _, below, _) in &cases {
        below(&low(case));
    }
    let listed = |case: &str| -> Vec<_> {
        fs::read_dir(world.at(case)).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    for (case, _, _, name) in &cases {
        let path = world.at(case).join(name);
        Command::new("rm").arg("-rf").arg(&path).output().unwrap();
        if listed(case).iter().any(|entry| entry == name) {
            fs::remove_dir(&path).unwrap_or_else(|e| panic!("{case}: {e}"));
        }
        assert!(!listed(case).iter().any(|entry| entry == name), "{case}");
    }
    world.run(&["umount", "mnt"]).expect(0);
    for (case, ..) in &cases {
        // It comes back.
        drop(fs::create_dir_all(low(case).join("d/sub")));
    }
    world.mount().expect(0);
    for (case, _, _, name) in &cases {
        let left: Vec<_> = listed(case).into_iter().filter(|entry| entry == name || entry == "d").collect();
        assert!(left.is_empty(), "{case}: {left:?} is back");
    }
    world.run(&["umount", "mnt"]).expect(0);
}

/// While nothing is mounted, something else comes to the path of what was changed, and its number to another path.
#[test]
fn what_has_the_number_of_something_that_was_changed_is_another_thing() {
    let Some(world) = World::new() else { return };
    let low = |name: &str| world.bench.path("lower").join(name);
    fs::create_dir(low("dir")).unwrap();
    for file in ["dir/f", "first", "later"] {
        fs::write(low(file), file).unwrap();
    }
    world.mount().expect(0);
    let append = |name: &str, text: &str| {
        OpenOptions::new().append(true).open(world.at(name)).unwrap().write_all(text.as_bytes()).unwrap();
    };
    ["first", "later"].into_iter().for_each(|file| append(file, " changed"));
    fs::write(world.at("dir/x"), "x").unwrap();
    world.run(&["umount", "mnt"]).expect(0);
    for name in ["first", "later", "dir"] {
        fs::rename(low(name), low(&format!("{name}.new"))).unwrap();
    }
    fs::create_dir(low("dir")).unwrap();
    for file in ["dir/g", "first", "later"] {
        fs::write(low(file), "saved anew").unwrap();
    }
    world.mount().expect(0);
    // The one is met before the other, and after it.
    assert_eq!([read(&world.at("first")), read(&world.at("first.new"))], ["first changed", "first"]);
    assert_eq!([read(&world.at("later.new")), read(&world.at("later"))], ["later", "later changed"]);
    assert_eq!([read(&world.at("dir/x")), read(&world.at("dir.new/f"))], ["x", "dir/f"]);
    assert_eq!(fs::read_dir(world.at("dir.new")).unwrap().count(), 1);
    ["first.new", "later.new", "dir.new/f"].into_iter().for_each(|file| append(file, " too"));
    let expect = || {
        let shown =
            ["first", "first.new", "later", "later.new", "dir/x", "dir.new/f"].map(|path| read(&world.at(path)));
        assert_eq!(shown, ["first changed", "first too", "later changed", "later too", "x", "dir/f too"]);
    };
    expect();
    world.run(&["umount", "mnt"]).expect(0);
    world.mount().expect(0);
    expect();
    world.run(&["umount", "mnt"]).expect(0);
}
