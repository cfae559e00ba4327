//! Verbs without a mountpoint on a volume that is mounted: they go through the process that has it.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Stdio;

use common::{Killed, Ran, Start, eventually, facts, make_tree};
use mounts::{Points, force_off, is_running};

/// A volume `box` and folders to mount on. Dropping it kills whatever serves there and detaches it.
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
        let points = Points::new(&["mnt", "snap"])?;
        points.bench.run(["volume", "init", "box", "--capacity", "1G"]).expect(0);
        Some(World(points))
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.bench.run(args)
    }

    /// The names in the runtime directory of mounts for one verb.
    fn private(&self) -> Vec<PathBuf> {
        let run = fs::read_dir(self.bench.path("run/adit")).into_iter().flatten().flatten();
        let paths = run.map(|entry| entry.path());
        paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("private-")).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.private().iter().for_each(|path| force_off(path));
    }
}

/// Runs the same verbs on the volume, and returns all that they said, without the folder that the bench is in.
fn session(world: &World) -> Vec<String> {
    make_tree(&world.bench.path("tree"));
    fs::write(world.bench.path("one"), "one\n").unwrap();
    let mut said = Vec::new();
    let mut say = |ran: Ran| {
        let text = format!("{:?} {} {}", ran.code, String::from_utf8_lossy(&ran.stdout), ran.stderr);
        said.push(text.replace(world.bench.path("").to_str().unwrap(), "DIR/"));
    };
    for line in [
        &["put", "box", "tree", "one", "/"][..],
        &["put", "box", "one", "/none/one"],
        &["put", "box", "one", "/one", "-n"],
        &["mkdir", "box", "/a"],
        &["mkdir", "box", "/a", "/b", "/c/d"],
        &["mkdir", "box", "-p", "/c/d"],
        &["mv", "box", "/one", "/a/two"],
        &["mv", "box", "/none", "/a/three"],
        &["mv", "box", "/a", "/a/b"],
        &["ls", "box", "-R"],
        &["tree", "box"],
        &["cat", "box", "/a/two", "/none", "/a"],
        &["ls", "box", "/none"],
        &["rm", "box", "/a", "-y"],
        &["rm", "box", "/b", "/none", "-ry"],
        &["rm", "box", "/a", "-ry"],
        &["get", "box", "/tree", "out"],
        &["get", "box", "/none", "out"],
        &["ls", "box"],
        // Snapshots show in a folder that is not listed.
        &["ls", "box", "/.snapshots"],
        &["cat", "box", "/.snapshots/s/kept"],
        &["ls", "box", "/.snapshots/none"],
        &["get", "box", "/.snapshots/s", "as-it-was"],
    ] {
        say(world.run(line));
    }
    // Why it is refused the kernel does not hand on.
    let mut refused = Vec::new();
    for line in [
        &["mkdir", "box", "/.snapshots"][..],
        &["mkdir", "box", "/.snapshots/x"],
        &["put", "box", "one", "/.snapshots/s/kept"],
        &["mv", "box", "/tree", "/.snapshots"],
        &["rm", "box", "/.snapshots", "-ry"],
        &["rm", "box", "/.snapshots/s/kept", "-y"],
    ] {
        refused.push(format!("{line:?} {:?}", world.run(line).code));
    }
    say(world.run(&["cat", "box", "/.snapshots/s/kept"]));
    say(world.bench.run_with(["put", "box", "-", "/stream"], b"stream"));
    say(world.run(&["cat", "box", "/stream"]));
    said.extend(refused);
    let listed = world.run(&["ls", "box", "-R", "--json"]).expect(0).json();
    for entry in listed.as_array().unwrap() {
        let kept = ["path", "kind", "size", "mode"].map(|key| entry[key].to_string());
        said.push(kept.join(" "));
    }
    said
}

#[test]
fn verbs_say_and_do_the_same_whether_it_is_mounted_or_not() {
    let (Some(closed), Some(mounted), Some(beside)) = (World::new(), World::new(), World::new()) else { return };
    for world in [&closed, &mounted, &beside] {
        world.bench.run_with(["put", "box", "-", "/kept"], b"kept").expect(0);
        world.run(&["snapshot", "create", "box", "s"]).expect(0);
        world.run(&["rm", "box", "/kept", "-y"]).expect(0);
    }
    mounted.run(&["mount", "box", "mnt"]).expect(0);
    beside.run(&["mount", "box", "snap", "--snapshot", "s"]).expect(0);
    let expected = session(&closed);
    for (world, how) in [(&mounted, "its main branch is mounted"), (&beside, "a snapshot is mounted")] {
        let got = session(world);
        for (expected, got) in expected.iter().zip(&got) {
            assert_eq!(expected, got, "{how}");
        }
        assert_eq!(expected.len(), got.len());
    }
    assert_eq!(fs::read_to_string(mounted.bench.path("mnt/stream")).unwrap(), "stream");
    assert!(expected.iter().any(|said| said == "Some(0) kept "), "{expected:?}");
    assert_eq!(fs::read_dir(beside.bench.path("snap")).unwrap().count(), 1, "the snapshot is as it was");
    assert_eq!(beside.private(), [] as [PathBuf; 0], "what a verb mounts goes with it");
    for world in [&mounted, &beside] {
        assert_eq!(world.bench.mounts().len(), 1);
        world.run(&["umount", if world.bench.path("mnt/stream").exists() { "mnt" } else { "snap" }]).expect(0);
        world.run(&["cat", "box", "/stream"]).expect(0).says("");
        world.run(&["volume", "check", "box"]).expect(0);
    }
}

#[test]
fn what_a_verb_put_outlives_a_kill_of_the_mount() {
    let Some(w) = World::new() else { return };
    w.run(&["mount", "box", "mnt"]).expect(0);
    w.bench.run_with(["put", "box", "-", "/f"], b"kept").expect(0);
    w.kill();
    assert_eq!(w.run(&["cat", "box", "/f"]).expect(0).text(), "kept");
}

#[test]
fn a_folder_is_mounted_to_be_read() {
    let Some(w) = World::new() else { return };
    make_tree(&w.bench.path("tree"));
    w.run(&["mount", "tree", "mnt", "--read-only"]).expect(0);
    assert_eq!(facts(&w.bench.path("mnt")), facts(&w.bench.path("tree")));
    assert_eq!(w.bench.mounts()[0]["kind"], "dir");
    assert!(fs::write(w.bench.path("mnt/x"), "x").is_err());
    // What others change shows.
    fs::write(w.bench.path("tree/new"), "new").unwrap();
    eventually("the new file shows", || w.bench.path("mnt/new").exists());
    w.run(&["umount", "mnt"]).expect(0);
}

/// Also verbs whose own source is sound, but not what they copy from or to.
#[test]
fn a_process_that_says_nothing_is_waited_for_by_no_verb() {
    let Some(w) = World::new() else { return };
    w.run(&["mount", "box", "mnt"]).expect(0);
    fs::create_dir_all(w.bench.path("mnt/d")).unwrap();
    fs::create_dir(w.bench.path("folder")).unwrap();
    fs::write(w.bench.path("folder/f"), "f").unwrap();
    std::os::unix::fs::symlink("mnt/d", w.bench.path("link")).unwrap();
    let pid = w.pid();
    // SAFETY: a plain system call; the process is one that this test started, and is not reaped by another.
    let signal = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    signal(libc::SIGSTOP);
    for line in [
        &["snapshot", "list", "mnt"][..],
        &["volume", "info", "mnt"],
        &["ls", "mnt"],
        &["ls", "link/none"],
        &["ls", "box"],
        &["snapshot", "list", "box"],
        &["get", "folder", "/f", "mnt/d"],
        &["put", "folder", "link/x", "/"],
        &["mount", "folder", "mnt/d", "--read-only"],
        &["mount", "mnt/d", "snap", "--upper", "up"],
    ] {
        let ran = w.run(line);
        assert_eq!(ran.code, Some(1), "{line:?}: {}", ran.stderr);
        ran.says(&format!("process {pid} does not answer")).says(&format!("kill -CONT {pid}"));
    }
    signal(libc::SIGCONT);
    w.run(&["ls", "mnt"]).expect(0);
    w.run(&["umount", "mnt"]).expect(0);
}

#[test]
fn a_mount_to_read_refuses_changes() {
    let Some(w) = World::new() else { return };
    w.run(&["mount", "box", "mnt", "--read-only"]).expect(0);
    w.run(&["ls", "box"]).expect(0);
    w.run(&["mkdir", "box", "/a"]).expect(7).says("mounted read-only on");
}

#[test]
fn verbs_at_once_share_what_is_there() {
    let Some(w) = World::new() else { return };
    w.bench.run_with(["put", "box", "-", "/f"], b"text").expect(0);
    w.run(&["snapshot", "create", "box", "s"]).expect(0);
    w.run(&["mount", "box", "snap", "--snapshot", "s"]).expect(0);
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..6).map(|_| scope.spawn(|| w.run(&["cat", "box", "/f"]))).collect();
        for job in jobs {
            assert_eq!(job.join().unwrap().expect(0).text(), "text");
        }
    });
    eventually("all are gone", || w.private().is_empty());
}

#[test]
fn a_verb_that_is_killed_leaves_nothing() {
    let Some(w) = World::new() else { return };
    w.run(&["snapshot", "create", "box", "s"]).expect(0);
    w.run(&["mount", "box", "snap", "--snapshot", "s"]).expect(0);
    for signal in [libc::SIGKILL, libc::SIGINT] {
        let mut child =
            Killed(w.bench.command().args(["put", "box", "-", "/f"]).stdin(Stdio::piped()).start().unwrap());
        let mut stdin = child.0.stdin.take().unwrap();
        stdin.write_all(b"part").unwrap();
        eventually("it is at work", || w.private().iter().any(|path| path.is_dir()) && is_mounted(&w));
        assert_eq!(w.bench.mounts().len(), 1, "what a verb mounts is not listed");
        // SAFETY: a plain system call; the process is a child of this test.
        assert_eq!(unsafe { libc::kill(child.0.id() as i32, signal) }, 0);
        child.0.wait().unwrap();
        eventually("it is taken away", || w.private().is_empty());
        drop(stdin);
        // The branch is free again.
        eventually("the branch can be mounted", || {
            w.run(&["mount", "box", "mnt"]).code == Some(0) && w.run(&["umount", "mnt"]).code == Some(0)
        });
    }
    // Both killed: whoever looks next clears it.
    let mut child = Killed(w.bench.command().args(["put", "box", "-", "/f"]).stdin(Stdio::piped()).start().unwrap());
    let _stdin = child.0.stdin.take().unwrap();
    eventually("it is at work", || is_mounted(&w));
    let pid = w.pid();
    // SAFETY: plain system calls; the processes are ones that this test started.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::kill(child.0.id() as i32, libc::SIGKILL);
    }
    child.0.wait().unwrap();
    eventually("the server is gone", || !is_running(pid));
    force_off(&w.bench.path("snap"));
    assert_eq!(w.bench.mounts().len(), 0);
    assert_eq!(w.private(), [] as [PathBuf; 0]);
    w.run(&["ls", "box"]).expect(0);
}

/// Whether a mount for one verb is there.
fn is_mounted(w: &World) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    w.private().iter().any(|path| table.contains(path.to_str().unwrap()))
}

/// The kernel takes what is written to a mounted volume before the volume has it: a copy for which there is no space takes nobody's
/// place, and leaves nothing behind.
#[test]
fn a_copy_that_finds_no_space_replaces_nothing() {
    let Some(points) = Points::new(&["mnt"]) else { return };
    points.bench.run(["volume", "init", "box", "--capacity", "32M"]).expect(0);
    points.bench.run(["mount", "box", "mnt"]).expect(0);
    let [big, tree] = ["big", "tree"].map(|name| points.bench.path(name));
    fs::write(&big, common::pattern(48 << 20)).unwrap();
    fs::create_dir(&tree).unwrap();
    fs::copy(&big, tree.join("in-folder")).unwrap();
    fs::write(points.bench.path("mnt/keep"), "keep").unwrap();
    for source in ["box", "mnt"] {
        let run = |args: &[&str]| points.bench.run([&[args[0], source], &args[1..]].concat());
        run(&["put", "big", "/keep"]).expect(8);
        run(&["put", "big", "/new"]).expect(8);
        run(&["put", "tree", "/"]).expect(8);
        points.bench.run_with(["put", source, "-", "/streamed"], &fs::read(&big).unwrap()).expect(8);
        assert_eq!(fs::read_to_string(points.bench.path("mnt/keep")).unwrap(), "keep", "{source}");
        let left: Vec<_> =
            fs::read_dir(points.bench.path("mnt")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name == "new" || name == "streamed"), "{source}: {left:?}");
        assert!(!points.bench.path("mnt/tree/in-folder").exists(), "{source}");
    }
    points.bench.run(["umount", "mnt"]).expect(0);
    assert_eq!(points.bench.run(["cat", "box", "/keep"]).expect(0).text(), "keep");
    points.bench.run(["volume", "check", "box"]).expect(0);
}
