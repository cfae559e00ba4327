//! Mounts as processes of their own: signals, death, stale mountpoints, and going to the background.
//!
//! Without the test harness, whose threads would forbid the fork: the binary is both the tests and the process under
//! test, which it is when its first argument names a role.

mod common;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;

use adit_core::engine::{Engine, EngineOptions};
use adit_mount::daemon::{self, Side, StartFailure};
use adit_mount::{Applied, MountError, MountOptions, Session, Signals, Until, is_stale, mountpoint};
use common::{MemStore, Watchdog, await_that, fuse_usable, is_root, refuse_under_ci, remove_folder, take_off};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const DEVICE: &str = "/dev/fuse";

const TESTS: [(&str, fn()); 7] = [
    ("a signal unmounts, and the exit code is 0", a_signal_unmounts),
    ("an unmount from outside ends the process with 0", an_unmount_from_outside),
    ("a busy mount is detached on a signal, a second one ends it", a_busy_mount_and_two_signals),
    ("a killed process leaves a stale mount that umount clears", a_stale_mount),
    ("the background mount returns when it is usable", a_background_mount),
    ("a background mount that fails says why", a_background_failure),
    ("a user without privilege mounts through fusermount3", without_privilege),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "serve", mountpoint] => serve(Path::new(mountpoint), ""),
        [_, "serve", mountpoint, "-o", options] => serve(Path::new(mountpoint), options),
        [_, "background", mountpoint, how] => background(Path::new(mountpoint), how),
        [_, "--list", ..] => ExitCode::SUCCESS,
        _ => run_tests(),
    }
}

fn run_tests() -> ExitCode {
    for (name, test) in TESTS {
        if fuse_usable(name) {
            test();
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

// ---- the process under test

/// Mounts, says `ready`, serves until a signal or an unmount, and says how it ended and what the store then held.
///
/// By hand, `process serve MOUNTPOINT -o allow_other` is a mount for other suites.
fn serve(mountpoint: &Path, keys: &str) -> ExitCode {
    let mut options = MountOptions::default();
    for key in keys.split(',') {
        assert_ne!(options.apply(key), Applied::Unknown, "{key}");
    }
    let signals = Signals::install().expect("signals");
    let store = Arc::new(MemStore::new());
    let engine = Engine::new(store.clone(), EngineOptions::default());
    let session = match Session::mount(engine, mountpoint, &options) {
        Ok(session) => session,
        Err(e) => {
            println!("failed: {e}");
            return ExitCode::from(1);
        }
    };
    println!("ready");
    let ended = session.wait(Until { signals: Some(signals), idle: None });
    let ended = ended.map(|ended| format!("{ended:?}")).unwrap_or_else(|e| format!("failed: {e}"));
    println!("{ended} f={} syncs={}", String::from_utf8_lossy(&store.content("f")), store.syncs());
    ExitCode::SUCCESS
}

/// The shape of `adit mount` in the background.
fn background(mountpoint: &Path, how: &str) -> ExitCode {
    let ready = match daemon::daemonize().expect("forks") {
        Side::Parent(Ok(())) => return ExitCode::SUCCESS,
        Side::Parent(Err(failure)) => {
            println!("{failure}");
            return ExitCode::from(failure.exit_code);
        }
        Side::Child(ready) => ready,
    };
    match how {
        "die" => std::process::abort(),
        "group" => {
            use rustix::process::{getpgid, getpgrp, getppid};
            let is_same = getpgid(getppid()).expect("it waits") == getpgrp();
            let message = if is_same { "in the group of its caller" } else { "in a group of its own" };
            ready.failed(StartFailure { exit_code: 3, message: message.into() }).expect("reports");
            return ExitCode::from(3);
        }
        "fail" => {
            let failure = StartFailure { exit_code: 3, message: "wrong password".into() };
            ready.failed(failure).expect("reports");
            return ExitCode::from(3);
        }
        _ => {}
    }
    let signals = Signals::install().expect("signals");
    let engine = Engine::new(Arc::new(MemStore::new()), EngineOptions::default());
    let session = Session::mount(engine, mountpoint, &MountOptions::default()).expect("mounts");
    ready.ready().expect("reports");
    session.wait(Until { signals: Some(signals), idle: None }).expect("ends");
    ExitCode::SUCCESS
}

// ---- the tests

/// A serving process and its mountpoint; ends both when dropped.
struct Served {
    child: Child,
    out: BufReader<ChildStdout>,
    folder: Option<TempDir>,
    mountpoint: PathBuf,
    _watchdog: Watchdog,
}

impl Served {
    fn new() -> Served {
        let folder = tempfile::tempdir().expect("folder");
        let exe = std::env::current_exe().expect("own path");
        Served::start(Command::new(exe), folder)
    }

    fn start(mut command: Command, folder: TempDir) -> Served {
        let mountpoint = folder.path().canonicalize().expect("folder");
        let watchdog = Watchdog::start(&mountpoint);
        let mut child = command.arg("serve").arg(&mountpoint).stdout(Stdio::piped()).spawn().expect("starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut served = Served { child, out, folder: Some(folder), mountpoint, _watchdog: watchdog };
        assert_eq!(served.line(), "ready");
        served
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("reads");
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("pid");
        kill_process(pid, signal).expect("signal");
    }

    fn file(&self) -> PathBuf {
        self.mountpoint.join("f")
    }

    /// Its last words and its exit code.
    fn ended(&mut self) -> (String, Option<i32>) {
        let words = self.line();
        (words, self.child.wait().expect("ends").code())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        take_off(&self.mountpoint);
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(folder) = self.folder.take() {
            remove_folder(folder);
        }
    }
}

fn a_signal_unmounts() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut served = Served::new();
        fs::write(served.file(), b"content").expect("write");
        served.signal(signal);
        assert_eq!(served.ended(), ("Unmounted f=content syncs=1".into(), Some(0)), "{signal:?}");
        assert!(mountpoint::find(&served.mountpoint).is_none());
        assert!(!is_stale(&served.mountpoint));
    }
}

fn an_unmount_from_outside() {
    let mut served = Served::new();
    fs::write(served.file(), b"content").expect("write");
    // RELEASE follows close in its own time.
    await_that("umount", || match adit_mount::umount(&served.mountpoint, false) {
        Ok(()) => true,
        Err(MountError::Busy(_)) => false,
        Err(e) => panic!("{e}"),
    });
    assert_eq!(served.ended(), ("Unmounted f=content syncs=1".into(), Some(0)));
}

fn a_busy_mount_and_two_signals() {
    // One signal, and the last user leaves.
    let mut served = Served::new();
    let mut file = File::create(served.file()).expect("create");
    file.write_all(b"before").expect("write");
    served.signal(Signal::INT);
    await_that("detach", || mountpoint::find(&served.mountpoint).is_none());
    file.write_all(b" after").expect("open files go on");
    drop(file);
    assert_eq!(served.ended(), ("Unmounted f=before after syncs=1".into(), Some(0)));

    // Two signals, and the last user does not leave; what was acknowledged is flushed.
    let mut served = Served::new();
    let mut file = File::create(served.file()).expect("create");
    file.write_all(b"before").expect("write");
    served.signal(Signal::INT);
    await_that("detach", || mountpoint::find(&served.mountpoint).is_none());
    file.write_all(b" after").expect("open files go on");
    served.signal(Signal::INT);
    assert_eq!(served.ended(), ("Forced f=before after syncs=1".into(), Some(0)));
    let error = file.write_all(b" lost?").expect_err("the server is gone");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "not acknowledged, so not lost");
}

fn a_stale_mount() {
    let mut served = Served::new();
    served.child.kill().expect("kill -9");
    served.child.wait().expect("dies");
    await_that("stale", || is_stale(&served.mountpoint));
    let engine = Engine::new(Arc::new(MemStore::new()), EngineOptions::default());
    let in_the_way = Session::mount(engine, &served.mountpoint, &MountOptions::default());
    assert!(matches!(in_the_way, Err(MountError::Stale(_))), "{in_the_way:?}");
    adit_mount::umount(&served.mountpoint, false).expect("cleared");
    assert!(!is_stale(&served.mountpoint));
    assert!(matches!(adit_mount::umount(&served.mountpoint, false), Err(MountError::NotAMount(_))));
}

fn background_command(mountpoint: &Path, how: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.arg("background").arg(mountpoint).arg(how);
    command
}

fn a_background_mount() {
    let folder = tempfile::tempdir().expect("folder");
    let mountpoint = folder.path().canonicalize().expect("folder");
    let watchdog = Watchdog::start(&mountpoint);
    // `output` also waits for the end of the pipes: the background process must let go of them.
    let output = background_command(&mountpoint, "serve").output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    // Usable at once, no waiting.
    fs::write(mountpoint.join("f"), b"content").expect("usable");
    assert_eq!(fs::read(mountpoint.join("f")).expect("usable"), b"content");
    await_that("umount", || adit_mount::umount(&mountpoint, false).is_ok());
    drop(watchdog);
    remove_folder(folder);
}

fn a_background_failure() {
    let folder = tempfile::tempdir().expect("folder");
    let output = background_command(folder.path(), "fail").output().expect("runs");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "wrong password\n");
    // Whoever makes a mount on demand (autofs) waits for nobody of its own process group.
    let output = background_command(folder.path(), "group").output().expect("runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "in the group of its caller\n");
    let output = background_command(folder.path(), "die").output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("by signal 6 before the mount was usable"), "{said}");
    assert!(mountpoint::find(folder.path()).is_none());
}

/// `/dev/fuse` open to all users, as udev makes it; bare containers leave it to root. Undone when dropped.
struct DeviceForAll(Option<u32>);

impl DeviceForAll {
    fn new() -> DeviceForAll {
        let mode = fs::metadata(DEVICE).expect("checked").permissions().mode();
        let narrow = mode & 0o006 != 0o006;
        if narrow {
            fs::set_permissions(DEVICE, Permissions::from_mode(0o666)).expect("root may");
        }
        DeviceForAll(narrow.then_some(mode))
    }
}

impl Drop for DeviceForAll {
    fn drop(&mut self) {
        if let Some(mode) = self.0 {
            let _ = fs::set_permissions(DEVICE, Permissions::from_mode(mode));
        }
    }
}

/// As nobody, from a copy of this binary where that user can reach it.
fn without_privilege() {
    const NOBODY: u32 = 65534;
    const NAME: &str = "mount without privilege";
    if !is_root() {
        // Then all the tests above ran without privilege.
        return;
    }
    if !Path::new("/usr/bin/fusermount3").exists() {
        return refuse_under_ci(NAME, "fusermount3 is not installed");
    }
    let _device = DeviceForAll::new();
    let tools = tempfile::tempdir().expect("folder");
    let exe = tools.path().join("process");
    fs::copy(std::env::current_exe().expect("own path"), &exe).expect("copies");
    fs::set_permissions(tools.path(), Permissions::from_mode(0o755)).expect("chmod");
    let folder = tempfile::tempdir().expect("folder");
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let mut command = Command::new(&exe);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut served = Served::start(command, folder);
    let entry = mountpoint::find(&served.mountpoint).expect("mounted");
    assert_eq!(entry.fs_type, mountpoint::FS_TYPE);
    // Not even root gets in without allow_other.
    let refused = fs::metadata(&served.mountpoint).expect_err("private");
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    let touched = Command::new("/bin/sh")
        .args(["-c", "printf content > \"$0\""])
        .arg(served.file())
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .status()
        .expect("runs");
    assert!(touched.success());
    served.signal(Signal::TERM);
    assert_eq!(served.ended(), ("Unmounted f=content syncs=1".into(), Some(0)));
}
