//! Where the layers of an overlay lie: a folder that was moved is bound to its upper again, and uppers in the cache directory are
//! listed and deleted.

mod common;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Ran, Start, facts};
use manifests::Job;
use mounts::{Points, is_root};
use serde_json::Value;

struct World(Points);

impl World {
    /// A folder `lower` with something in it. `None` where mounts are impossible; under CI that is a failure.
    fn new() -> Option<World> {
        let points = Points::new(&["mnt", "mnt2"])?;
        let bench = &points.bench;
        fs::create_dir_all(bench.path("lower/d")).unwrap();
        for path in ["lower/d/a", "lower/f", "lower/g"] {
            fs::write(bench.path(path), [1; 9000]).unwrap();
        }
        Some(World(points))
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.0.bench.run(args)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.bench.path(path)
    }

    fn umount(&self) {
        self.run(&["umount", "mnt"]).expect(0);
    }

    /// An overlay on `lower` with changes in `up`.
    fn change(&self) {
        self.run(&["mount", "lower", "mnt", "--upper", "up"]).expect(0);
        fs::write(self.path("mnt/new"), "new").unwrap();
        fs::write(self.path("mnt/f"), "changed").unwrap();
        fs::rename(self.path("mnt/d"), self.path("mnt/moved")).unwrap();
        fs::remove_file(self.path("mnt/g")).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// What `volume uppers list` tells.
    fn uppers(&self) -> Vec<Value> {
        let listed = self.run(&["volume", "uppers", "list", "--cache-dir", "cache", "--json"]).expect(0).json();
        listed.as_array().unwrap().clone()
    }
}

#[test]
fn a_folder_that_was_moved_is_bound_again() {
    let Some(w) = World::new() else { return };
    w.change();
    w.run(&["snapshot", "create", "mnt", "s"]).expect(0);
    fs::write(w.path("mnt/later"), "later").unwrap();
    let shown = facts(&w.path("mnt"));
    w.umount();
    w.rename("lower", "place");
    let (old, new) = (w.0.bench.str("lower"), w.0.bench.str("place"));
    let line = ["mount", "place", "mnt", "--upper", "up"];
    w.run(&line).expect(1).says(&old).says(&new).says("--rebind");
    let rebind = [&line[..], &["--rebind"]].concat();
    w.run(&rebind).expect(0).says(&format!("bound to {new} now")).says("is as it was");
    assert_eq!(facts(&w.path("mnt")), shown);
    // Of a snapshot from before it is the same folder.
    let told = w.run(&["snapshot", "diff", "mnt", "s", "--json"]).expect(0).json();
    assert_eq!((told.as_array().unwrap().len(), told[0]["path"].as_str()), (1, Some("/later")));
    // And what is set back to that is bound all the same.
    w.run(&["snapshot", "restore", "mnt", "s", "--yes"]).expect(0);
    assert!(!w.path("mnt/later").exists());
    w.umount();
    assert_eq!(w.run(&line).expect(0).stderr, "");
    w.umount();
    // By mount(8)'s words, and not needed: nothing is said.
    assert_eq!(w.run(&["mount", "place", "mnt", "-o", "upper=up,rebind"]).expect(0).stderr, "");
    w.umount();
    w.run(&["mount", "place", "mnt", "--writable", "--cache-dir", "cache", "--rebind"]).expect(2).says("--upper");
    w.run(&["volume", "check", "up"]).expect(0);
}

#[test]
fn an_upper_in_the_cache_directory_is_found_again_after_it_was_bound_to_another_place() {
    let Some(w) = World::new() else { return };
    let writable = |lower: &str| w.run(&["mount", lower, "mnt", "--writable", "--cache-dir", "cache"]).expect(0);
    writable("lower").says("volume created");
    fs::write(w.path("mnt/f"), "changed").unwrap();
    w.umount();
    let upper = w.uppers()[0]["path"].as_str().unwrap().to_owned();
    let rebind = |lower: &str| {
        w.run(&["mount", lower, "mnt", "--upper", &upper, "--rebind", "--cache-dir", "cache"])
            .expect(0)
            .says("bound to")
    };
    let expect_found = |lower: &str| {
        assert_eq!(writable(lower).stderr, "");
        assert_eq!(fs::read_to_string(w.path("mnt/f")).unwrap(), "changed");
        w.umount();
    };
    for (from, to) in [("lower", "place"), ("place", "third"), ("third", "lower")] {
        w.rename(from, to);
        assert!(!rebind(to).stderr.contains("another one"));
        w.umount();
        expect_found(to);
        assert_eq!(w.uppers().len(), 1);
    }
    // Who did not know of --rebind has made another one, and is told that it is in the way.
    w.rename("lower", "place");
    writable("place").says("volume created");
    w.umount();
    let other = w.uppers().into_iter().map(|one| one["path"].as_str().unwrap().to_owned()).find(|path| *path != upper);
    let other = other.expect("a second one");
    rebind("place").says("has made another one").says(&format!("uppers delete {other}"));
    w.umount();
    w.run(&["volume", "uppers", "delete", &other, "--cache-dir", "cache", "--yes"]).expect(0);
    expect_found("place");
}

#[test]
fn a_snapshot_that_changes_lie_on_is_not_deleted() {
    let Some(w) = World::new() else { return };
    w.run(&["volume", "init", "box"]).expect(0);
    w.run(&["put", "box", "lower", "/"]).expect(0);
    for name in ["s", "t"] {
        w.run(&["snapshot", "create", "box", name]).expect(0);
    }
    let mount = |more: &[&str]| w.run(&[&["mount", "box", "mnt", "--snapshot", "s"], more].concat()).expect(0);
    let delete = |of: &str, name: &str| w.run(&["snapshot", "delete", of, name, "-y"]);
    let (up, cache) = (["--upper", "up"], ["--writable", "--cache-dir", "cache"]);
    for upper in [&up[..], &cache] {
        mount(upper);
        fs::write(w.path("mnt/new"), "new").unwrap();
        w.umount();
    }
    let uppers = [w.0.bench.str("up"), w.uppers()[0]["path"].as_str().unwrap().to_owned()];
    let refused = |of: &str| {
        let ran = delete(of, "s").expect(7).says("which are of no use without it");
        uppers.iter().fold(ran, |ran, upper| ran.says(upper)).says("--snapshot s --upper ").says("rm ");
    };
    refused("box");
    // Likewise while it is mounted; what nothing lies on goes as always, and what is not there is not found.
    w.run(&["mount", "box", "mnt2"]).expect(0);
    refused("mnt2");
    delete("mnt2", "t").expect(0);
    delete("mnt2", "none").expect(1);
    w.run(&["umount", "mnt2"]).expect(0);
    // The changes are there as before.
    for upper in [&up[..], &cache] {
        assert_eq!(mount(upper).stderr, "");
        assert_eq!(fs::read_to_string(w.path("mnt/new")).unwrap(), "new");
        w.umount();
    }
    // One that cannot be read may hold changes all the same. One that is gone, or another volume in its place, has none.
    let kept = fs::read(w.path("up")).unwrap();
    // Its first bytes say what it is, and nothing else is left.
    fs::write(w.path("up"), [&kept[..8], &vec![0xff; kept.len() - 8]].concat()).unwrap();
    fs::remove_file(&uppers[1]).unwrap();
    delete("box", "s").expect(7).says(&uppers[0]);
    fs::write(w.path("up"), &kept).unwrap();
    delete("box", "s").expect(7).says(&uppers[0]);
    fs::remove_file(w.path("up")).unwrap();
    w.run(&["volume", "init", "up"]).expect(0);
    delete("box", "s").expect(0);
    assert_eq!(w.run(&["snapshot", "list", "box"]).expect(0).text(), "");
}

#[test]
fn another_folder_is_not_bound() {
    let Some(w) = World::new() else { return };
    w.change();
    w.umount();
    assert!(Command::new("cp").arg("-a").args([w.path("lower"), w.path("copy")]).status().unwrap().success());
    fs::create_dir(w.path("empty")).unwrap();
    for other in ["copy", "empty"] {
        let refused = w.run(&["mount", other, "mnt", "--upper", "up", "--rebind"]).expect(1);
        refused.says("is not the folder that it belongs to").says("/d, /f").says("a copy is another folder");
    }
    // Nothing was changed.
    w.run(&["mount", "lower", "mnt", "--upper", "up"]).expect(0);
    w.umount();
    // The same one, of which something changed meanwhile: that is said.
    w.rename("lower", "place");
    fs::write(w.path("place/f"), "others").unwrap();
    w.run(&["mount", "place", "mnt", "--upper", "up", "--rebind"]).expect(0).says("these are not").says("/f");
    assert_eq!(fs::read(w.path("mnt/moved/a")).unwrap(), [1; 9000]);
    w.umount();
    // Snapshots are known wherever they are.
    w.run(&["volume", "init", "box"]).expect(0);
    w.run(&["snapshot", "create", "box", "s"]).expect(0);
    w.run(&["mount", "box", "mnt", "--snapshot", "s", "--upper", "up2", "--rebind"])
        .expect(2)
        .says("leave out --rebind");
    w.run(&["mount", "box", "mnt", "--snapshot", "s", "--upper", "up", "--rebind"]).expect(2);
    w.run(&["mount", "box", "mnt", "--snapshot", "s", "--upper", "up"]).expect(1).says("that it belongs to");
}

/// What was added and removed says little of what lies below.
#[test]
fn a_folder_of_which_nothing_shows_that_it_was_moved_is_not_bound() {
    let Some(w) = World::new() else { return };
    w.run(&["mount", "lower", "mnt", "--upper", "up"]).expect(0);
    fs::remove_file(w.path("mnt/g")).unwrap();
    fs::write(w.path("mnt/new"), "x").unwrap();
    // This copies a directory, of which nothing but its number is compared.
    fs::write(w.path("mnt/d/new"), "x").unwrap();
    w.umount();
    w.run(&["mount", "lower", "mnt", "--upper", "up2"]).expect(0);
    fs::remove_file(w.path("mnt/g")).unwrap();
    w.umount();
    fs::create_dir(w.path("other")).unwrap();
    fs::write(w.path("other/g"), "another").unwrap();
    let rebind = |lower: &str, upper: &str| w.run(&["mount", lower, "mnt", "--upper", upper, "--rebind"]);
    rebind("other", "up2").expect(1).says("nothing shows that").says("mount --bind");
    // Neither while the old place is empty, nor if its number is the one that is known, and what was removed is not there.
    w.rename("lower", "place");
    rebind("other", "up2").expect(1).says("nothing shows that");
    w.rename("place/g", "g");
    rebind("place", "up2").expect(1).says("what was removed of that is not there: /g");
    w.rename("g", "place/g");
    // A folder that came to the old place may be the one, and this a mount of something else.
    fs::create_dir(w.path("lower")).unwrap();
    rebind("place", "up2").expect(1).says("nothing shows that");
    fs::remove_dir(w.path("lower")).unwrap();
    for upper in ["up", "up2"] {
        rebind("place", upper).expect(0).says("bound to");
        assert!(w.path("mnt/f").exists() && !w.path("mnt/g").exists());
        w.umount();
    }
    assert_eq!(fs::read(w.path("place/g")).unwrap(), [1; 9000]);
}

/// A filesystem of its own, mounted below the test's folder.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).start_and_wait();
    }
}

impl Disk {
    fn new(at: PathBuf) -> Disk {
        fs::create_dir(&at).unwrap();
        let disk = Disk(at);
        let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&disk.0).start_and_wait().unwrap();
        assert!(mounted.success());
        fs::create_dir(disk.0.join("d")).unwrap();
        fs::write(disk.0.join("g"), "g").unwrap();
        disk
    }

    fn numbers(&self) -> [u64; 2] {
        ["", "d"].map(|path| fs::metadata(self.0.join(path)).unwrap().ino())
    }
}

/// The roots of filesystems of a kind have one number, and so have directories that were made first there.
#[test]
fn another_filesystem_with_the_same_numbers_is_not_bound() {
    let Some(w) = World::new() else { return };
    if !is_root("further filesystems") {
        return;
    }
    let (one, two) = (Disk::new(w.path("one")), Disk::new(w.path("two")));
    assert_eq!(one.numbers(), two.numbers());
    w.run(&["mount", "one", "mnt", "--upper", "up"]).expect(0);
    fs::remove_file(w.path("mnt/g")).unwrap();
    fs::write(w.path("mnt/d/new"), "x").unwrap();
    w.umount();
    let refused = || w.run(&["mount", "two", "mnt", "--upper", "up", "--rebind"]).expect(1).says("nothing shows that");
    refused();
    drop(one);
    refused();
    fs::remove_dir(w.path("one")).unwrap();
    refused();
}

#[test]
fn uppers_in_the_cache_directory_are_listed_and_deleted() {
    let Some(w) = World::new() else { return };
    assert_eq!(w.uppers(), [Value::Null; 0]);
    fs::create_dir(w.path("other")).unwrap();
    let mount = |lower: &str| w.run(&["mount", lower, "mnt", "--writable", "--cache-dir", "cache"]).expect(0);
    mount("other");
    w.umount();
    mount("lower");
    fs::write(w.path("mnt/new"), vec![7; 1 << 20]).unwrap();
    let of = |lower: &str| {
        let lower = w.0.bench.str(lower);
        w.uppers().into_iter().find(|upper| upper["lower"] == lower.as_str()).expect("it is listed")
    };
    assert_eq!(w.uppers().len(), 2);
    let (mounted, other) = (of("lower"), of("other"));
    assert_eq!(mounted["mountpoint"], w.0.bench.str("mnt").as_str());
    assert_eq!(
        (&other["mountpoint"], &other["error"], &other["lower_missing"]),
        (&Value::Null, &Value::Null, &false.into())
    );
    let file = mounted["path"].as_str().unwrap().to_owned();
    assert!(other["last_used"].as_str().unwrap().ends_with('Z'), "{other}");
    w.run(&["volume", "uppers", "delete", &file, "--cache-dir", "cache", "--yes"]).expect(7).says("mounted on");
    w.umount();
    let taken = of("lower")["allocated_bytes"].as_u64().unwrap();
    assert!(taken > 1 << 20 && taken == fs::metadata(&file).unwrap().blocks() * 512, "{taken}");
    // One whose folder went, or moved: it is listed so, and bound by what is listed.
    w.rename("lower", "place");
    assert_eq!(of("lower")["lower_missing"], true);
    let text = w.run(&["volume", "uppers", "list", "--cache-dir", "cache"]).expect(0).text();
    assert!(text.contains("lower, which is not there\n") && text.contains("used "), "{text}");
    w.run(&["mount", "place", "mnt", "--upper", &file, "--rebind"]).expect(0);
    assert_eq!(fs::metadata(w.path("mnt/new")).unwrap().len(), 1 << 20);
    w.umount();
    // Nothing else is deleted, and nothing without a yes.
    let delete = |named: &str, more: &[&str]| {
        w.run(&[&["volume", "uppers", "delete", named, "--cache-dir", "cache"], more].concat())
    };
    delete(&file, &[]).expect(2).says("--yes");
    w.run(&["volume", "init", "box"]).expect(0);
    delete(&w.0.bench.str("box"), &["--yes"]).expect(2).says("none of the volumes");
    fs::write(w.path("cache/overlays/mine.adit"), "mine").unwrap();
    delete("mine.adit", &["--yes"]).expect(2);
    assert_eq!(w.uppers().len(), 2);
    let name = PathBuf::from(&file).file_name().unwrap().to_str().unwrap().to_owned();
    delete(&name, &["--yes"]).expect(0).says("deleted");
    assert!(!PathBuf::from(&file).exists());
    // One that is damaged is listed, with what is wrong, and can go.
    let other = other["path"].as_str().unwrap();
    fs::write(other, "no volume").unwrap();
    let listed = w.uppers();
    assert!(listed.len() == 1 && listed[0]["error"].is_string(), "{listed:?}");
    delete(other, &["--yes"]).expect(0);
    assert_eq!(w.uppers(), [Value::Null; 0]);
}

/// What was unmounted a moment ago may still be ending, and has the upper: a mount waits for it.
#[test]
fn an_overlay_waits_for_the_mount_before_it_to_end() {
    let Some(w) = World::new() else { return };
    if !is_root("umount2(2)") {
        return;
    }
    w.change();
    let (pid, mnt) = (w.0.pid(), w.path("mnt"));
    let signal = |signal| {
        // SAFETY: a plain system call; the process is one that this test started.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    };
    // It cannot end before it is let go on.
    signal(libc::SIGSTOP);
    let place = std::ffi::CString::new(mnt.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a plain system call on a string that lives. What the kernel has not written yet it waits for.
    let unmounted = std::thread::spawn(move || unsafe { libc::umount2(place.as_ptr(), 0) });
    common::eventually("it is not in its place", || mounts::mount_line(&mnt).is_none());
    let mut command = w.0.bench.command();
    command.args(["mount", "lower", "mnt", "--upper", "up"]).stderr(Stdio::piped());
    let mut again = command.start().unwrap();
    let mut said = BufReader::new(again.stderr.take().unwrap()).lines().map(Result::unwrap);
    let waits = said.by_ref().any(|line| line.contains("waiting for that"));
    signal(libc::SIGCONT);
    assert_eq!(unmounted.join().unwrap(), 0);
    let rest: Vec<String> = said.collect();
    assert!(waits && again.wait().unwrap().success(), "{rest:?}");
    assert_eq!(fs::read_to_string(w.path("mnt/new")).unwrap(), "new");
    w.umount();
}

/// A filesystem behind FUSE numbers as it likes each time that it is mounted. Here it is a manifest with one file more, so that all numbers are
/// those of the neighbours; what was changed stays with its path, and no two files are one.
#[test]
fn changes_of_a_host_that_makes_numbers_up_stay_with_their_files() {
    const NAMES: [&str; 4] = ["b", "c", "moved", "sub/y"];
    let Some(job) = Job::new(&["mnt", "mnt2"]) else { return };
    let content = |name: &str| name.as_bytes().repeat(9000);
    for name in ["b", "c", "d", "sub/x", "sub/y"] {
        job.write(name, &content(name));
    }
    job.snapshot("one", "v2025");
    job.write("a", &content("a"));
    job.snapshot("two", "v2025");
    let host = |manifest: &str, source: &str| {
        let source = format!("fsname={source}");
        let mount = ["mount", manifest, "mnt", "--cas", "store", "--cache-dir", "cache", "-o", &source];
        job.run(&mount).expect(0);
    };
    let overlay = || job.run(&["mount", "mnt", "mnt2", "--upper", "up"]);
    let umount = || {
        for mountpoint in ["mnt2", "mnt"] {
            job.run(&["umount", mountpoint]).expect(0);
        }
    };
    let at = |name: &str| job.path("mnt2").join(name);
    let number = |name: &str| fs::metadata(at(name)).unwrap().ino();

    host("one", "user@host:/srv");
    overlay().expect(0);
    let file = fs::File::options().write(true).open(at("c")).unwrap();
    file.write_all_at(b"changed", 0).unwrap();
    drop(file);
    fs::rename(at("d"), at("moved")).unwrap();
    fs::remove_file(at("sub/x")).unwrap();
    fs::write(at("new"), "new").unwrap();
    let numbers = NAMES.map(number);
    umount();

    host("two", "user@host:/srv");
    overlay().expect(0);
    assert_eq!(NAMES.map(number), numbers, "they are those of the paths");
    let all: std::collections::HashSet<u64> = ["a", "b", "c", "moved", "new", "sub", "sub/y"].map(number).into();
    assert_eq!(all.len(), 7, "no two files are one");
    let changed = [b"changed", &content("c")[7..]].concat();
    let read = |name: &str| fs::read(at(name)).unwrap();
    assert!(read("c") == changed && read("moved") == content("d") && read("new") == b"new");
    assert!(["a", "b", "sub/y"].into_iter().all(|name| read(name) == content(name)));
    assert!(!at("d").exists() && !at("sub/x").exists());
    umount();

    // Another host in the same place is another folder.
    host("one", "user@other:/srv");
    overlay().expect(1).says("it holds changes of").says("another filesystem is mounted there");
    job.run(&["mount", "mnt", "mnt2", "--read-only"]).expect(0);
    assert!(read("b") == content("b"));
    umount();
}
