//! Real mounts of a vault or volume of their own, which are gone when the test is, and cannot hang it.

#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use adit_testkit::scaled;

#[allow(unused_imports, reason = "as above")]
pub use super::common::is_root;
use super::common::{Bench, Killed, PASSWORD, Ran, Start, eventually, left_out, run};

/// No test takes longer, unless a mount hangs; times the scale.
const TEST_TIMEOUT: Duration = Duration::from_secs(180);

/// A bench with folders to mount on. Dropping it kills whatever serves there and detaches it.
pub struct Points {
    pub bench: Bench,
    points: Vec<PathBuf>,
    done: Option<Sender<()>>,
}

impl Points {
    /// `None` where mounts are impossible; under CI that is a failure.
    pub fn new(names: &[&str]) -> Option<Points> {
        if let Err(e) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            left_out(&format!("/dev/fuse: {e}"));
            return None;
        }
        let bench = Bench::bare();
        let points: Vec<PathBuf> = names.iter().map(|name| bench.path(name)).collect();
        points.iter().for_each(|point| fs::create_dir(point).unwrap());
        let (done, ended) = channel::<()>();
        let watched = points.clone();
        std::thread::spawn(move || {
            if ended.recv_timeout(TEST_TIMEOUT * scaled(1) as u32) == Err(RecvTimeoutError::Timeout) {
                // The test is stuck in a call on a mount; without its server the call fails, and so does the test.
                eprintln!("watchdog: {watched:?} hang");
                watched.iter().for_each(|point| force_off(point));
            }
        });
        Some(Points { bench, points, done: Some(done) })
    }

    /// The one process that serves all mounts.
    pub fn pid(&self) -> i32 {
        let mounts = self.bench.mounts();
        let pids: Vec<i64> = mounts.iter().map(|mount| mount["pid"].as_i64().expect("a number")).collect();
        assert!(!pids.is_empty() && pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
        pids[0] as i32
    }

    /// Kills the server without warning and takes the dead mounts away.
    pub fn kill(&self) {
        self.kill_and_leave();
        self.points.iter().for_each(|point| force_off(point));
    }

    /// Kills the server without warning; the dead mounts stay.
    pub fn kill_and_leave(&self) {
        let pid = self.pid();
        // SAFETY: a plain system call; the process is one that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        eventually("the server is gone", || !is_running(pid));
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        self.points.iter().for_each(|point| force_off(point));
        drop(self.done.take());
    }
}

/// A vault or volume with a folder to mount it on.
pub struct Mounts {
    points: Points,
    is_volume: bool,
}

impl Deref for Mounts {
    type Target = Points;

    fn deref(&self) -> &Points {
        &self.points
    }
}

impl Mounts {
    /// `None` where mounts are impossible; under CI that is a failure.
    pub fn new() -> Option<Mounts> {
        Self::with(&[])
    }

    /// With these further options of `adit vault init`.
    pub fn with(init: &[&str]) -> Option<Mounts> {
        let mounts = Mounts { points: Points::new(&["mnt"])?, is_volume: false };
        let bench = &mounts.bench;
        let line = ["vault", "init", bench.vault_str(), "--password-file", bench.password_str()];
        bench.run(line.iter().chain(init)).expect(0);
        Some(mounts)
    }

    /// A volume, with these options of `adit volume init`.
    pub fn volume(init: &[&str]) -> Option<Mounts> {
        let mounts = Mounts { points: Points::new(&["mnt"])?, is_volume: true };
        mounts.bench.run(["volume", "init", &mounts.volume_str()].iter().chain(init)).expect(0);
        Some(mounts)
    }

    fn volume_str(&self) -> String {
        self.bench.str("box")
    }

    pub fn mnt(&self) -> PathBuf {
        self.bench.path("mnt")
    }

    /// A path below the mountpoint.
    pub fn at(&self, path: &str) -> PathBuf {
        self.mnt().join(path)
    }

    pub fn mount(&self, more: &[&str]) -> Ran {
        let (mnt, volume) = (self.bench.str("mnt"), self.volume_str());
        let mut line = if self.is_volume {
            vec!["mount", &volume, &mnt]
        } else {
            vec!["mount", self.bench.vault_str(), &mnt, "--password-file", self.bench.password_str()]
        };
        line.extend_from_slice(more);
        self.bench.run(line)
    }

    pub fn umount(&self) {
        self.umount_with(&[]).expect(0);
    }

    pub fn umount_with(&self, more: &[&str]) -> Ran {
        self.bench.run(["umount", "mnt"].iter().chain(more))
    }

    pub fn remount(&self, more: &[&str]) {
        self.umount();
        self.mount(more).expect(0);
    }

    /// `adit vault check` or `adit volume check` finds nothing.
    pub fn expect_sound(&self) {
        if self.is_volume {
            self.bench.run(["volume", "check", &self.volume_str()]).expect(0);
            return;
        }
        self.bench
            .run(["vault", "check", self.bench.vault_str(), "--password-file", self.bench.password_str()])
            .expect(0);
    }

    pub fn stats(&self) -> serde_json::Value {
        self.bench.run(["stats", "mnt", "--json"]).expect(0).json()
    }
}

/// Whether any thread of the process is there that is not a zombie: as long as one is, the process holds its locks.
pub fn is_running(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        fs::read_to_string(thread.path().join("stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    })
}

/// A value of `/proc/PID/status`, in bytes.
pub fn status(pid: i32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).expect("the kernel tells");
    1024 * line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap()
}

fn table() -> String {
    // Another test may have mounted on a name that is no text.
    String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned()
}

/// The line of `/proc/self/mountinfo` of what is mounted on `path`.
pub fn mount_line(path: &Path) -> Option<String> {
    let path = path.to_str().unwrap();
    table().lines().find(|line| line.split(' ').nth(4) == Some(path)).map(str::to_owned)
}

/// Aborts the connection of whatever is mounted there, so that nothing hangs on it, and detaches it.
pub fn force_off(mountpoint: &Path) {
    let path = mountpoint.to_str().unwrap().to_owned();
    while let Some(line) = mount_line(mountpoint) {
        let minor = line.split(' ').nth(2).and_then(|device| device.split(':').nth(1)).unwrap_or("");
        let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        let root = Command::new("umount").args(["-l", &path]).start_and_wait().is_ok_and(|status| status.success());
        if !root && !Command::new("fusermount3").args(["-u", "-z", &path]).start_and_wait().is_ok_and(|s| s.success()) {
            return;
        }
    }
}

/// For a shell in a mount namespace of its own: lets go of the copies of mounts of other tests, which would live as long as it does, but for those
/// whose line in the table has `$KEEP`.
pub const LET_GO_OF_COPIES: &str = r#"
    grep ' - fuse.adit ' /proc/self/mountinfo | grep -vF "${KEEP:- - none }" | cut -d ' ' -f 5 | tac | while read -r at; do
        umount -l "$(printf %b "$at")" 2>/dev/null || true
    done
"#;

/// A process in a mount namespace of its own, with a copy of what is mounted at a place.
pub struct Copied(Killed);

impl Copied {
    pub fn of(mountpoint: &Path) -> Copied {
        let script = format!("{LET_GO_OF_COPIES}\nexec sleep 600");
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-euc", &script]).env("KEEP", mountpoint);
        let copied = Copied(Killed(command.start().unwrap()));
        let comm = format!("/proc/{}/comm", copied.pid());
        eventually("it has let go of others", || fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == "sleep"));
        copied
    }

    pub fn pid(&self) -> u32 {
        self.0.0.id()
    }
}

/// Detaches what is mounted there when it is dropped.
pub struct Off(pub PathBuf);

impl Drop for Off {
    fn drop(&mut self) {
        force_off(&self.0);
    }
}

/// The user of [`OrdinaryUser`].
pub const NOBODY: u32 = 65_534;

/// A folder of a user without privilege, with the program, a password file and a folder `mnt`.
pub struct OrdinaryUser {
    home: tempfile::TempDir,
}

impl OrdinaryUser {
    /// `None` where this process cannot become another user, or where mounts are impossible.
    pub fn new() -> Option<OrdinaryUser> {
        let _mounts_work = Mounts::new()?;
        if !is_root("becoming another user") {
            return None;
        }
        let user = OrdinaryUser { home: tempfile::tempdir().unwrap() };
        fs::copy(env!("CARGO_BIN_EXE_adit"), user.path("adit")).unwrap();
        fs::write(user.path("password"), PASSWORD).unwrap();
        fs::create_dir(user.path("mnt")).unwrap();
        for name in ["", "password", "mnt"] {
            std::os::unix::fs::chown(user.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Some(user)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// `script` as that user, in a mount namespace of its own with a device that this user may open, whatever the
    /// machine's rights are; after `prepare`, which root runs there.
    pub fn command(&self, prepare: &str, script: &str) -> Command {
        let as_root = format!(
            "{LET_GO_OF_COPIES}
            test -e fuse || mknod fuse c 10 229
            chmod 666 fuse && mount --bind fuse /dev/fuse
            {prepare}
            exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -euc \"$0\""
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-euc", &as_root, script]).current_dir(self.home.path());
        command.env("HOME", self.home.path()).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME");
        command
    }

    pub fn run(&self, script: &str) -> Ran {
        run(self.command("", script), b"")
    }
}

/// A host disk of a few MiB, mounted below the test's folder.
pub struct SmallDisk(pub PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).start_and_wait();
    }
}

impl SmallDisk {
    pub fn mount(at: PathBuf, size: &str) -> SmallDisk {
        fs::create_dir(&at).unwrap();
        let disk = SmallDisk(at);
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&disk.0).start_and_wait().unwrap();
        assert!(mounted.success());
        disk
    }
}
