//! `umount`: asks the mount's process to unmount, and waits until everything is written back and it has ended.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::mountpoint;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::json;

use super::confirm;
use super::mount::{answered, mount_failure};
use crate::args::low::{GlobalArgs, UmountArgs};
use crate::exit_code::Code;
use crate::failure::{Failure, Failures, Result};

/// How long a process may take to write everything back after its mount is gone, before a word is said about it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a killed process may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// `adit umount`
pub fn umount(args: &UmountArgs, global: &GlobalArgs) -> Result<()> {
    if let [only] = args.mountpoints.as_slice() {
        return one(only, args, global);
    }
    let mut failures = Failures::default();
    for path in &args.mountpoints {
        if let Err(failure) = one(path, args, global) {
            failures.add(&failure);
        }
    }
    failures.result()
}

fn one(path: &Path, args: &UmountArgs, global: &GlobalArgs) -> Result<()> {
    let registry = Registry::of_this_user();
    let live = find(&registry, path)?;
    if args.no_flush {
        let question = format!("End {} without writing back what is still in memory?", path.display());
        confirm(&question, args.yes)?;
        return end_at_once(path, live.as_ref());
    }
    let Some(live) = live else {
        // A dead mount, or one of another user that this one (root) may end.
        return adit_mount::umount(path, args.lazy).map_err(|e| mount_failure(&e));
    };
    // Taken before the request, while the number surely means that process.
    let process = open_process(live.pid);
    match registry.call(path, "umount", &json!({"lazy": args.lazy})) {
        Ok(_) => {}
        Err(ControlError::Io { .. } | ControlError::NotAMount(_)) => {
            // It ended before it answered, or it does not answer at all; then the kernel may still let go of it.
            let ended = process.as_ref().is_some_and(|process| ended_within(process, KILL_TIMEOUT).unwrap_or(false));
            match adit_mount::umount(path, args.lazy) {
                Err(adit_mount::MountError::NotAMount(_)) if ended || !is_mounted(path) => {}
                other => other.map_err(|e| mount_failure(&e))?,
            }
        }
        Err(e) => return Err(answered(&e)),
    }
    match process {
        // A lazy unmount ends when the last file is closed; that is not waited for.
        Some(process) if !args.lazy => wait_for_end(&process, live.pid, global.quiet),
        _ => Ok(()),
    }
}

/// The live mount of this user at `path`.
fn find(registry: &Registry, path: &Path) -> Result<Option<MountInfo>> {
    let resolved = mountpoint::resolve(path).map_err(|e| {
        let failure = Failure::io(path.display(), &e);
        Failure::new(Code::NotAMount, failure.text())
    })?;
    let wanted = resolved.to_string_lossy();
    Ok(registry.list().into_iter().rev().find(|mount| mount.mountpoint == wanted))
}

fn is_mounted(path: &Path) -> bool {
    mountpoint::resolve(path)
        .is_ok_and(|path| mountpoint::find(&path).is_some_and(|m| m.fs_type == mountpoint::FS_TYPE))
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until the process has ended; says so on standard error if that takes long.
fn wait_for_end(process: &OwnedFd, pid: u32, quiet: bool) -> Result<()> {
    if ended_within(process, PATIENCE)? {
        return Ok(());
    }
    if !quiet {
        eprintln!("adit: writing back; process {pid} goes on if this is interrupted");
    }
    while !ended_within(process, PATIENCE)? {}
    Ok(())
}

/// Whether the process ended before the time was up.
fn ended_within(process: &OwnedFd, time: Duration) -> Result<bool> {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Failure::io("umount", &e.into())),
        }
    }
}

/// Kills the process and clears the mountpoint. What was acknowledged by close() or fsync() is in the journal.
fn end_at_once(path: &Path, live: Option<&MountInfo>) -> Result<()> {
    if let Some(process) = live.and_then(|live| open_process(live.pid)) {
        rustix::process::pidfd_send_signal(&process, Signal::KILL).map_err(|e| Failure::io("umount", &e.into()))?;
        if !ended_within(&process, KILL_TIMEOUT)? {
            return Err(Failure::new(Code::Busy, format!("{}: its process does not end", path.display())));
        }
    }
    adit_mount::umount(path, true).map_err(|e| mount_failure(&e))
}
