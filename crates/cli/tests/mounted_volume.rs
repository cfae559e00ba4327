//! Mounted volumes: one process for all mounts of one file, what a snapshot holds, what a kill costs.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use common::{Bench, Ran, eventually, facts, make_tree, pattern};
use mounts::{force_off, is_running};
use serde_json::Value;

/// No test takes longer, unless a mount hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(180);
/// Folders to mount on.
const POINTS: [&str; 3] = ["mnt", "mnt2", "mnt3"];

/// A volume `box` with folders to mount it on. Dropping it kills whatever serves there and detaches it.
struct Boxed {
    bench: Bench,
    done: Option<Sender<()>>,
}

impl Boxed {
    /// `None` where mounts are impossible; under CI that is a failure.
    fn new() -> Option<Boxed> {
        if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "/dev/fuse: {e}");
            eprintln!("left out: /dev/fuse: {e}");
            return None;
        }
        let bench = Bench::bare();
        bench.run(["volume", "init", &bench.str("box"), "--capacity", "1G"]).expect(0);
        let (done, ended) = channel::<()>();
        let points: Vec<PathBuf> = POINTS.iter().map(|name| bench.path(name)).collect();
        points.iter().for_each(|point| fs::create_dir(point).unwrap());
        std::thread::spawn(move || {
            if ended.recv_timeout(TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("watchdog: it hangs");
                points.iter().for_each(|point| force_off(point));
            }
        });
        Some(Boxed { bench, done: Some(done) })
    }

    fn mount(&self, point: &str, more: &[&str]) -> Ran {
        self.bench.run(["mount", &self.bench.str("box"), &self.bench.str(point)].iter().chain(more))
    }

    fn umount(&self, point: &str) {
        self.bench.run(["umount", point]).expect(0);
    }

    fn at(&self, path: &str) -> PathBuf {
        self.bench.path(path)
    }

    /// `of("snapshot create", "mnt", &["s"])` is `adit snapshot create MNT s`.
    fn of(&self, verbs: &str, x: &str, args: &[&str]) -> Ran {
        let mut line: Vec<String> = verbs.split(' ').map(str::to_owned).collect();
        line.push(self.bench.str(x));
        line.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.bench.run(line)
    }

    /// The one process of all mounts.
    fn pid(&self) -> i32 {
        let mounts = self.bench.mounts();
        let pids: Vec<i64> = mounts.iter().map(|mount| mount["pid"].as_i64().unwrap()).collect();
        assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
        pids[0] as i32
    }

    fn kill(&self) {
        let pid = self.pid();
        // SAFETY: a plain system call; the process is one that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        eventually("the server is gone", || !is_running(pid));
        POINTS.iter().for_each(|point| force_off(&self.bench.path(point)));
    }

    fn expect_sound(&self) {
        self.of("volume check", "box", &[]).expect(0);
    }
}

impl Drop for Boxed {
    fn drop(&mut self) {
        POINTS.iter().for_each(|point| force_off(&self.bench.path(point)));
        drop(self.done.take());
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn what_is_written_is_there_after_the_next_mount() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    make_tree(&b.at("tree"));
    let copied = std::process::Command::new("cp").arg("-a").arg(b.at("tree")).arg(b.at("mnt")).status().unwrap();
    assert!(copied.success());
    let f = b.at("mnt/f");
    fs::write(&f, "text").unwrap();
    fs::hard_link(&f, b.at("mnt/g")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, b.at("mnt/fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::set_permissions(&f, fs::Permissions::from_mode(0o4711)).unwrap();
    rustix::fs::setxattr(&f, "user.x", b"1", rustix::fs::XattrFlags::CREATE).unwrap();
    // A hole of a terabyte costs nothing.
    File::create(b.at("mnt/hole")).unwrap().write_all_at(b"x", 1 << 40).unwrap();
    let mounts = b.bench.mounts();
    assert_eq!((&mounts[0]["kind"], &mounts[0]["branch"]), (&Value::from("volume"), &Value::from("main")));
    assert_eq!(mounts[0]["read_only"], false);
    b.umount("mnt");
    b.mount("mnt", &[]).expect(0);
    assert_eq!(facts(&b.at("tree")), facts(&b.at("mnt/tree")));
    let meta = fs::metadata(b.at("mnt/g")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o7777, read(&f).as_str()), (2, 0o4711, "text"));
    assert_eq!(meta.ino(), fs::metadata(&f).unwrap().ino());
    let hole = fs::metadata(b.at("mnt/hole")).unwrap();
    assert_eq!((hole.len(), hole.blocks()), ((1 << 40) + 1, 8));
    assert!(fs::metadata(b.at("box")).unwrap().blocks() * 512 < 64 << 20);
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(&f, "user.x", &mut value[..]).unwrap(), 1);
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn one_process_has_the_file() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "text").unwrap();
    let mnt = b.at("mnt").canonicalize().unwrap().display().to_string();
    // The same branch a second time. Verbs on the file go through the process (tests/mounted_verbs.rs).
    b.mount("mnt2", &[]).expect(7).says(&mnt);
    b.mount("mnt2", &["--foreground", "--snapshot", "s"]).expect(7).says("--foreground");
    b.of("volume check", "box", &[]).expect(7).says(&mnt);
    // A process that has no mount is kept out by the lock.
    let other = Bench::bare();
    other.run(["ls", &b.bench.str("box")]).expect(7).says("another process");
    b.of("volume info", "box", &[]).expect(0);
    b.umount("mnt");
    b.bench.run(["cat", &b.bench.str("box"), "/f"]).expect(0);
}

#[test]
fn further_mounts_join_the_process() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "one").unwrap();
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    b.of("clone create", "mnt", &["s", "branch"]).expect(0);
    fs::write(b.at("mnt/f"), "two").unwrap();
    b.mount("mnt2", &["--snapshot", "s"]).expect(0);
    b.mount("mnt3", &["--branch", "branch", "--memory", "64M"]).expect(0);
    let pid = b.pid();
    fs::write(b.at("mnt3/f"), "three").unwrap();
    let contents = || ["mnt/f", "mnt2/f", "mnt3/f"].map(|path| read(&b.at(path)));
    assert_eq!(contents(), ["two", "one", "three"]);
    assert_eq!(fs::write(b.at("mnt2/f"), "no").unwrap_err().raw_os_error(), Some(libc::EROFS));
    let parts = b.bench.mounts();
    assert_eq!(parts.iter().filter(|m| m["snapshot"] == "s" && m["read_only"] == true).count(), 1);
    assert_eq!(parts.iter().filter(|m| m["branch"] == "branch").count(), 1);

    // They share one budget of memory, whatever a further one asks for.
    let stats = POINTS.map(|point| b.of("stats", point, &["--json"]).expect(0).json());
    let sum: u64 = stats.iter().map(|stats| stats["used_bytes"].as_u64().unwrap()).sum();
    let all = stats.iter().map(|stats| (&stats["budget_bytes"], stats["used_by_all_bytes"].as_u64().unwrap()));
    assert!(all.into_iter().all(|(budget, used)| *budget == stats[0]["budget_bytes"] && used == sum), "{stats:?}");

    // What is mounted is not deleted.
    b.of("snapshot delete", "box", &["s", "-y"]).expect(7);
    b.of("clone delete", "box", &["branch", "-y"]).expect(7).says("mnt3");
    b.of("snapshot create", "mnt2", &["t"]).expect(2).says("--branch");

    // They end one by one, and the process with the last.
    b.umount("mnt");
    assert_eq!(b.pid(), pid);
    assert_eq!((read(&b.at("mnt2/f")), read(&b.at("mnt3/f"))), ("one".to_owned(), "three".to_owned()));
    b.mount("mnt", &[]).expect(0);
    assert_eq!((b.pid(), read(&b.at("mnt/f"))), (pid, "two".to_owned()));
    b.umount("mnt3");
    b.umount("mnt");
    b.of("clone delete", "mnt2", &["branch", "-y"]).expect(0);
    b.umount("mnt2");
    b.expect_sound();
    b.bench.run(["cat", &b.bench.str("box"), "/f"]).expect(0);
}

#[test]
fn mounts_that_begin_at_once_find_each_other() {
    let Some(b) = Boxed::new() else { return };
    b.of("snapshot create", "box", &["s"]).expect(0);
    b.of("clone create", "box", &["s", "x"]).expect(0);
    let parts: [&[&str]; 3] = [&[], &["--snapshot", "s"], &["--branch", "x"]];
    let begun: Vec<Child> = POINTS
        .iter()
        .zip(parts)
        .map(|(point, part)| {
            let mut command = b.bench.command();
            command.arg("mount").arg(b.at("box")).arg(b.at(point)).args(part);
            command.spawn().unwrap()
        })
        .collect();
    for mut child in begun {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(b.bench.mounts().len(), 3);
    let pid = b.pid();
    // A signal ends all of them.
    // SAFETY: a plain system call; the process is one that this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    eventually("all are unmounted", || POINTS.iter().all(|p| mounts::mount_line(&b.at(p)).is_none()));
    eventually("the file is free", || b.of("volume check", "box", &[]).code == Some(0));
}

#[test]
fn a_snapshot_holds_every_write_that_returned() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    // Neither synced nor closed: most of it is in the kernel only.
    let content = pattern(24 << 20);
    let mut open = Vec::new();
    for n in 0..4 {
        let mut file = File::create(b.at(&format!("mnt/{n}"))).unwrap();
        file.write_all(&content).unwrap();
        open.push(file);
    }
    let made = b.of("snapshot create", "mnt", &["s", "--json"]).expect(0).json();
    assert!(made["flush_secs"].as_f64().unwrap() > 0.0);
    for file in &open {
        file.write_all_at(b"later", 1 << 20).unwrap();
        file.set_len(2 << 20).unwrap();
    }
    b.mount("mnt2", &["--snapshot", "s"]).expect(0);
    for n in 0..4 {
        assert!(fs::read(b.at(&format!("mnt2/{n}"))).unwrap() == content, "{n}");
    }
    drop(open);
    let found = b.of("snapshot diff", "mnt", &["s", "--json"]).expect(0).json();
    assert_eq!(found.as_array().unwrap().len(), 4);
    // What was open goes on as if nothing had happened.
    let changed = fs::read(b.at("mnt/0")).unwrap();
    assert!(changed.len() == 2 << 20 && changed[1 << 20..].starts_with(b"later"));
    b.umount("mnt");
    b.umount("mnt2");
    b.expect_sound();
}

fn shell(line: &str, dir: &Path) -> String {
    let ran = std::process::Command::new("sh").args(["-ec", line]).current_dir(dir).output().unwrap();
    assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn snapshots_show_in_a_hidden_folder() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    make_tree(&b.at("mnt/tree"));
    fs::write(b.at("mnt/f"), "one").unwrap();
    let hidden = b.at("mnt/.snapshots");
    // What the kernel is told before there is any must not stay.
    assert!(!hidden.join("s").exists());
    assert_eq!(shell("ls -a .snapshots", &b.at("mnt")), ".\n..\n");
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    fs::write(b.at("mnt/f"), "two").unwrap();
    assert_eq!(shell("ls -A; ls -A .snapshots; cat .snapshots/s/f", &b.at("mnt")), "f\ntree\ns\none");

    // As the tree was, to every program: a copy, a comparison, no number and no device shared.
    shell(
        "D='diff -r --no-dereference'; $D tree .snapshots/s/tree; cp -a .snapshots/s/tree ../copy; $D tree ../copy",
        &b.at("mnt"),
    );
    assert_eq!(facts(&b.at("mnt/tree")), facts(&hidden.join("s/tree")));
    let numbers = shell("find . .snapshots/s -printf '%D %i\\n' | sort", &b.at("mnt"));
    let numbers: Vec<&str> = numbers.lines().collect();
    let devices: std::collections::BTreeSet<_> = numbers.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(devices.len(), 1);
    assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]), "{numbers:?}");
    let ino = fs::metadata(hidden.join("s/f")).unwrap().ino();
    let found = shell(&format!("find . .snapshots -inum {ino}"), &b.at("mnt"));
    assert_eq!(found, ".snapshots/s/f\n");

    // Nothing of it changes.
    assert_eq!(errno(fs::write(hidden.join("s/f"), "no")), Some(libc::EROFS));
    assert_eq!(errno(fs::write(hidden.join("x"), "no")), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(hidden.join("s/f"))), Some(libc::EROFS));
    assert_eq!(errno(fs::create_dir(&hidden)), Some(libc::EEXIST));
    assert_eq!(errno(fs::remove_dir(&hidden)), Some(libc::EPERM));
    assert_eq!(errno(fs::rename(hidden.join("s/f"), b.at("mnt/g"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::hard_link(hidden.join("s/f"), b.at("mnt/g"))), Some(libc::EXDEV));

    // They outlive a mount, and show in every branch; a mount of one shows none.
    b.of("clone create", "mnt", &["s", "branch"]).expect(0);
    b.umount("mnt");
    b.mount("mnt", &[]).expect(0);
    b.mount("mnt2", &["--branch", "branch"]).expect(0);
    b.mount("mnt3", &["--snapshot", "s"]).expect(0);
    assert_eq!((read(&hidden.join("s/f")), read(&b.at("mnt2/.snapshots/s/f"))), ("one".to_owned(), "one".to_owned()));
    assert!(!b.at("mnt3/.snapshots").exists());
    POINTS.iter().for_each(|point| b.umount(point));
    b.expect_sound();
}

#[test]
fn snapshots_come_and_go_in_the_hidden_folder() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let hidden = b.at("mnt/.snapshots");
    let mut file = File::create(b.at("mnt/f")).unwrap();
    for n in 0..5 {
        // Not synced, and not closed: only the kernel has it.
        file.write_all(format!("{n}\n").as_bytes()).unwrap();
        let name = format!("s{n}");
        assert!(!hidden.join(&name).exists());
        b.of("snapshot create", "mnt", &[&name]).expect(0);
        assert_eq!(read(&hidden.join(&name).join("f")).lines().count(), n + 1);
        assert_eq!(shell("ls .snapshots | wc -l", &b.at("mnt")).trim(), (n + 1).to_string());
    }
    // One that is looked at goes; one of which a file is open stays.
    let open = File::open(hidden.join("s1/f")).unwrap();
    b.of("snapshot delete", "mnt", &["s1", "-y"]).expect(7).says(".snapshots/s1");
    let folder = File::open(hidden.join("s0")).unwrap();
    b.of("snapshot delete", "mnt", &["s0", "-y"]).expect(0);
    assert!(!hidden.join("s0").exists());
    let in_it = rustix::fs::openat(&folder, "f", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    assert_eq!(in_it.err(), Some(rustix::io::Errno::STALE));
    drop(open);
    b.of("snapshot delete", "mnt", &["s1", "-y"]).expect(0);
    assert_eq!(shell("ls .snapshots", &b.at("mnt")), "s2\ns3\ns4\n");
    // The name of one that is gone is free.
    b.of("snapshot create", "mnt", &["s0"]).expect(0);
    assert_eq!(read(&hidden.join("s0/f")).lines().count(), 5);
    drop((file, folder));
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn a_mounted_branch_is_set_back() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::create_dir(b.at("mnt/d")).unwrap();
    fs::write(b.at("mnt/d/f"), "old, and longer").unwrap();
    fs::write(b.at("mnt/g"), "old").unwrap();
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    let pid = b.pid();
    let inos = || ["mnt/d/f", "mnt/g"].map(|path| fs::metadata(b.at(path)).unwrap().ino());
    let before = inos();
    fs::write(b.at("mnt/d/f"), "new").unwrap();
    fs::write(b.at("mnt/g"), "new").unwrap();
    fs::write(b.at("mnt/d/h"), "added").unwrap();
    let open = File::open(b.at("mnt/g")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "-y"]).expect(7).says("busy");
    assert_eq!(read(&b.at("mnt/g")), "new");
    drop(open);
    b.of("snapshot restore", "mnt", &["s", "/d", "-y"]).expect(0);
    assert_eq!((read(&b.at("mnt/d/f")).as_str(), read(&b.at("mnt/g")).as_str()), ("old, and longer", "new"));
    assert!(!b.at("mnt/d/h").exists());
    b.of("snapshot restore", "box", &["s", "-y"]).expect(0);
    assert_eq!((read(&b.at("mnt/g")), inos()), ("old".to_owned(), before));
    assert_eq!(b.pid(), pid);
    b.umount("mnt");
    b.expect_sound();
}

/// What tells one mount from the next in the same place.
fn mount_id(point: &Path) -> String {
    mounts::mount_line(point).expect("mounted").split(' ').next().unwrap().to_owned()
}

#[test]
fn a_mounted_branch_is_set_back_in_its_place() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    make_tree(&mnt.join("tree"));
    shell(
        "mkdir d d/sub gone; echo same > d/same; echo log > log; echo short > d/cut; echo long > d/grown; echo r > d/removed
         echo l > link1; ln link1 d/link2; ln -s same d/symlink; echo a > d/from; echo p > d/perm; echo m > gone/in",
        &mnt,
    );
    let before = facts(&mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    shell(
        "ls -lR . >/dev/null; printf s > d/cut; seq 20000 >> d/grown; rm d/removed; ls d/removed 2>/dev/null || true; rm -r gone
         echo more >> link1; ln -sf other d/symlink; mv d/from to; chmod 600 d/perm; mkdir new; echo n > new/n; ls -lR . >/dev/null
         ls gone 2>/dev/null || true; cat d/* link1 to >/dev/null 2>&1 || true; mv d/sub moved; rm -r tree/deep",
        &mnt,
    );
    // In use, and the same before and after: to read, to write, to stand in.
    let same = File::open(mnt.join("d/same")).unwrap();
    let log = OpenOptions::new().append(true).open(mnt.join("log")).unwrap();
    let folder = File::open(mnt.join("d")).unwrap();
    let mut stands = std::process::Command::new("sh");
    let mut stands = stands.args(["-c", "read line; ls | wc -l; cat grown"]).current_dir(mnt.join("d"));
    stands = stands.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut stands = stands.spawn().unwrap();
    let id = mount_id(&mnt);

    // What is open and would change keeps it from being set back.
    let open = File::open(mnt.join("d/grown")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "-y"]).expect(7).says("busy");
    assert_eq!(read(&mnt.join("new/n")), "n\n");
    drop(open);
    b.of("snapshot restore", "mnt", &["s", "-y"]).expect(0);
    assert_eq!(mount_id(&mnt), id);
    assert_eq!(facts(&mnt), before);
    assert_eq!((read(&mnt.join("d/grown")).as_str(), fs::metadata(mnt.join("d/grown")).unwrap().len()), ("long\n", 5));
    assert_eq!(fs::metadata(mnt.join("link1")).unwrap().nlink(), 2);
    assert!(!mnt.join("new").exists() && !mnt.join("to").exists() && !mnt.join("moved").exists());
    assert_eq!(shell("ls -A d | wc -l", &mnt).trim(), "9");

    let mut text = [0; 5];
    same.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"same\n");
    (&log).write_all(b"more\n").unwrap();
    assert_eq!(read(&mnt.join("log")), "log\nmore\n");
    let removed = rustix::fs::openat(&folder, "removed", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    removed.expect("it is there again");
    stands.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let said = stands.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "9\nlong\n");
    drop((same, log, folder));
    b.umount("mnt");
    b.expect_sound();
    b.mount("mnt", &[]).expect(0);
    fs::write(mnt.join("log"), "log\n").unwrap();
    let times = |facts: Vec<String>| facts.into_iter().filter(|fact| !fact.starts_with("log ")).collect::<Vec<_>>();
    assert_eq!(times(facts(&mnt)), times(before));
    b.umount("mnt");
}

#[test]
fn a_mounted_branch_is_set_back_again_and_again() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    let id = mount_id(&mnt);
    let mut rng = adit_testkit::Rng::new(0x5e7_bac4);
    let mut made = 0;
    for step in 0..400 {
        // Whether each works is not the point.
        let pick = |rng: &mut adit_testkit::Rng| {
            mnt.join(["a", "b", "a/c", "b/c", "a/d", "b/d/e", "b/d"][rng.below(7) as usize])
        };
        let (one, other) = (pick(&mut rng), pick(&mut rng));
        let _ = match rng.below(12) {
            0 => fs::create_dir(&one),
            1 | 2 => fs::write(&one, pattern(rng.below(9000) as usize)),
            3 => fs::remove_file(&one),
            4 => fs::remove_dir_all(&one),
            5 => fs::rename(&one, &other),
            6 => fs::hard_link(&one, &other),
            7 => std::os::unix::fs::symlink("c", &one),
            8 => OpenOptions::new().append(true).open(&one).and_then(|mut file| file.write_all(b"more")),
            9 => OpenOptions::new().write(true).open(&one).and_then(|file| file.set_len(rng.below(5000))),
            10 => fs::set_permissions(&one, fs::Permissions::from_mode(0o700 + rng.below(8) as u32)),
            _ => fs::metadata(&one).map(drop),
        };
        if step % 10 == 4 {
            b.of("snapshot create", "mnt", &[&format!("s{made}")]).expect(0);
            made += 1;
        }
        if step % 10 == 9 {
            facts(&mnt);
            let name = format!("s{}", rng.below(made));
            let held = facts(&mnt.join(".snapshots").join(&name));
            b.of("snapshot restore", "mnt", &[&name, "-y"]).expect(0);
            assert_eq!(facts(&mnt), held, "step {step}, {name}");
            assert_eq!(mount_id(&mnt), id, "step {step}");
        }
    }
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn what_a_folder_brought_into_a_path_is_set_back_with_it() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    shell("mkdir E dir; echo x > E/f", &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    shell("mv E dir/E; ls -lR . >/dev/null", &mnt);
    let mut open = OpenOptions::new().append(true).open(mnt.join("dir/E/f")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "/dir", "-y"]).expect(7).says("busy");
    open.write_all(b"more\n").unwrap();
    drop(open);
    assert_eq!(read(&mnt.join("dir/E/f")), "x\nmore\n");
    let stands = File::open(mnt.join("dir/E")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "/dir", "-y"]).expect(0);
    assert_eq!(errno(fs::metadata(mnt.join("dir/E"))), Some(libc::ENOENT));
    let gone = rustix::fs::openat(&stands, "f", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    assert_eq!(gone.err(), Some(rustix::io::Errno::NOENT), "also for who stands in it");
    assert_eq!(shell("ls -A dir | wc -l", &mnt).trim(), "0");
    drop(stands);
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn what_left_a_path_with_a_folder_shows_its_further_names() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    shell("mkdir -p dir/E; echo x > dir/E/f; echo y > dir/E/g", &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    shell("mv dir/E E; ls -lR . >/dev/null", &mnt);
    let at = |path: &str| fs::metadata(mnt.join(path)).unwrap();
    let changed = |path: &str| (at(path).ctime(), at(path).ctime_nsec());
    let before = changed("E/g");
    // It stays what it was, and so it may stay open.
    let mut open = OpenOptions::new().append(true).open(mnt.join("E/f")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "/dir", "-y"]).expect(0);
    assert_eq!((at("E/f").nlink(), open.metadata().unwrap().nlink(), at("dir/E/f").nlink()), (2, 2, 2));
    assert_eq!((at("E/g").nlink(), at("dir").nlink(), at("E").nlink()), (2, 3, 2));
    assert!(changed("E/g") > before);
    open.write_all(b"more\n").unwrap();
    drop(open);
    assert_eq!((read(&mnt.join("E/f")).as_str(), read(&mnt.join("dir/E/f")).as_str()), ("x\nmore\n", "x\nmore\n"));
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn a_kill_loses_nothing_that_was_closed() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    for round in 0..3 {
        let dir = b.at(&format!("mnt/{round}"));
        fs::create_dir(&dir).unwrap();
        for n in 0..50 {
            fs::write(dir.join(n.to_string()), pattern(1 + n * 700)).unwrap();
        }
        fs::rename(dir.join("0"), dir.join("renamed")).unwrap();
        let unfinished = File::create(dir.join("unfinished")).unwrap();
        b.kill();
        drop(unfinished);
        b.mount("mnt", &[]).expect(0);
        for n in 1..50 {
            assert!(fs::read(dir.join(n.to_string())).unwrap() == pattern(1 + n * 700), "{round} {n}");
        }
        assert_eq!(fs::read(dir.join("renamed")).unwrap(), pattern(1));
        assert!(!dir.join("0").exists());
    }
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn a_mount_to_read_leaves_the_file_as_it_is() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::write(b.at("mnt/f"), "text").unwrap();
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    b.umount("mnt");
    let before = fs::read(b.at("box")).unwrap();
    b.mount("mnt", &["--read-only"]).expect(0);
    assert_eq!(read(&b.at("mnt/f")), "text");
    assert_eq!(fs::write(b.at("mnt/g"), "no").unwrap_err().raw_os_error(), Some(libc::EROFS));
    b.mount("mnt2", &["--snapshot", "s"]).expect(0);
    b.umount("mnt");
    b.mount("mnt", &[]).expect(7).says("--read-only");
    b.umount("mnt2");
    assert!(before == fs::read(b.at("box")).unwrap());
    b.mount("mnt", &[]).expect(0);
    b.umount("mnt");
}

#[test]
fn a_full_volume_can_be_emptied_through_its_mount() {
    let Some(b) = Boxed::new() else { return };
    fs::remove_file(b.at("box")).unwrap();
    b.bench.run(["volume", "init", &b.bench.str("box"), "--capacity", "32M"]).expect(0);
    b.mount("mnt", &[]).expect(0);
    let full = (0..32).find_map(|n| {
        let mut file = File::create(b.at(&format!("mnt/{n}"))).ok()?;
        let written = file.write_all(&pattern(2 << 20)).and_then(|()| file.sync_all());
        written.err()
    });
    assert_eq!(full.expect("it gets full").raw_os_error(), Some(libc::ENOSPC));
    let space = rustix::fs::statvfs(b.at("mnt")).unwrap();
    assert!(space.f_bavail * space.f_frsize < 4 << 20, "{} blocks", space.f_bavail);
    for n in 0..4 {
        fs::remove_file(b.at(&format!("mnt/{n}"))).unwrap();
    }
    fs::write(b.at("mnt/again"), pattern(2 << 20)).unwrap();
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn a_volume_is_resized() {
    let Some(b) = Boxed::new() else { return };
    let capacity = |x: &str| b.of("volume info", x, &["--json"]).expect(0).json()["capacity_bytes"].as_u64().unwrap();
    let total = || {
        let space = rustix::fs::statvfs(b.at("mnt")).unwrap();
        space.f_blocks * space.f_frsize
    };
    b.mount("mnt", &[]).expect(0);
    let before = total();
    fs::write(b.at("mnt/f"), pattern(96 << 20)).unwrap();
    b.of("volume resize", "mnt", &["2G"]).expect(0);
    assert_eq!(capacity("box"), 2 << 30);
    assert!(total() > before + (900 << 20), "{}", total());
    // Not below what it holds, and nothing has changed then.
    b.of("volume resize", "mnt", &["64M"]).expect(8).says("volume gc");
    b.of("volume resize", "mnt", &["1"]).expect(1);
    assert_eq!(capacity("box"), 2 << 30);
    b.of("volume resize", "mnt", &["256M"]).expect(0);
    assert!(total() <= 256 << 20, "{}", total());
    assert_eq!(fs::read(b.at("mnt/f")).unwrap(), pattern(96 << 20));
    b.umount("mnt");
    b.expect_sound();
    b.of("volume resize", "box", &["512M"]).expect(0);
    assert_eq!(capacity("box"), 512 << 20);
    b.expect_sound();
}
