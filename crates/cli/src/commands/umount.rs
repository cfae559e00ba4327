//! `umount`: asks the mount's process to unmount, and waits until everything is written back and it has ended.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::{MountError, mountpoint, sightings};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::{Value, json};

use super::confirm;
use super::mount::{answered, mount_failure};
use crate::args::low::{GlobalArgs, UmountArgs};
use crate::args::units::show_size;
use crate::exit_code::{Code, NOT_A_MOUNT};
use crate::failure::{Failure, Failures, Result};
use crate::live;

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
        if let Some(other) = live.as_ref().and_then(|live| other_mount(&registry, live)) {
            let what = format!("{}: its process also serves the mount on {}", path.display(), other.mountpoint);
            return Err(
                Failure::new(Code::Busy, what).hint("unmount that first, or unmount this one without --no-flush")
            );
        }
        let question = format!("End {} without writing back what is still in memory?", path.display());
        confirm(&question, args.yes)?;
        return end_at_once(path, live.as_ref());
    }
    let Some(live) = live else { return of_no_entry(&registry, path, args, global.quiet) };
    // Taken before the request, while the number surely means that process.
    let process = open_process(live.pid);
    if let Err(silent @ ControlError::Silent { .. }) = registry.ping(&live) {
        return if args.lazy { detach_silent(path, &live, global.quiet) } else { Err(answered(&silent)) };
    }
    if live::is_file_missing(&live) {
        // Nobody but its process knows the file under another name, and that is about to end.
        eprintln!(
            "adit: {}: {} is not there any more: if it was moved, all is in it where it is now; if it was removed, what was changed here is lost",
            path.display(),
            live.file_path().display()
        );
    }
    let mut told = global.quiet;
    let mut waiting = || still_waiting(&registry, &live, &mut told);
    match registry.call_patiently(&live, "umount", &json!({"lazy": args.lazy}), &mut waiting) {
        Ok(answer) if answer["held"] == true => {
            if !global.quiet {
                tell_where(&path.display().to_string(), &live);
            }
            return Ok(());
        }
        // It has other mounts of the same volume.
        Ok(answer) if answer["goes_on"] == true => return Ok(()),
        Ok(_) => {}
        Err(ControlError::Answered { kind, .. }) if kind == NOT_A_MOUNT && !live.is_attached() => {
            return Err(live::ending(&path.display().to_string(), &live));
        }
        Err(ControlError::Io { .. } | ControlError::NotAMount(_)) => {
            // It ended before it answered, or it does not answer at all; then the kernel may still let go of it.
            let ended = process.as_ref().is_some_and(|process| ended_within(process, KILL_TIMEOUT).unwrap_or(false));
            match adit_mount::umount(path, args.lazy) {
                Err(MountError::NotAMount(_)) if ended || !is_mounted(path) => {}
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

/// A mount that is in no registry of this user under this path: a dead one, one of another user that this one (root) may end, or a further place of
/// one of this user's.
fn of_no_entry(registry: &Registry, path: &Path, args: &UmountArgs, quiet: bool) -> Result<()> {
    let entry = mountpoint::resolve(path).ok().and_then(|path| mountpoint::find(&path));
    let served = entry.and_then(|entry| registry.list().into_iter().find(|mount| mount.device == entry.device));
    let process = served.as_ref().and_then(|served| open_process(served.pid));
    adit_mount::umount(path, args.lazy).map_err(|e| mount_failure(&e))?;
    let (Some(served), false) = (served, args.lazy) else { return Ok(()) };
    match process {
        _ if !sightings::of(&served.device).seen.is_empty() => {
            if !quiet {
                tell_where(&path.display().to_string(), &served);
            }
            Ok(())
        }
        Some(process) if other_mount(registry, &served).is_none() => wait_for_end(&process, served.pid, quiet),
        _ => Ok(()),
    }
}

/// It was unmounted and everything is written, but its process goes on for where it is still mounted.
fn tell_where(subject: &str, live: &MountInfo) {
    let view = sightings::of(&live.device);
    let pid = live.pid;
    let places = match (view.seen.as_slice(), view.is_whole) {
        ([], true) => "held by a mount namespace without processes, or by a copy without a place".to_owned(),
        ([], false) => "mounted in a mount namespace that root can find".to_owned(),
        (seen, _) => format!("mounted {}", live::show_places(seen)),
    };
    eprintln!(
        "adit: {subject}: unmounted, and everything is written; it is still {places}. Process {pid} goes on for that: unmount it there, or end it (kill {pid})"
    );
}

/// Takes a mount out of the tree whose process says nothing, and says what is left.
fn detach_silent(path: &Path, live: &MountInfo, quiet: bool) -> Result<()> {
    match adit_mount::umount(path, true) {
        Err(MountError::NotAMount(_)) if !live.is_attached() => {
            return Err(live::ending(&path.display().to_string(), live));
        }
        other => other.map_err(|e| mount_failure(&e))?,
    }
    if !quiet {
        let pid = live.pid;
        eprintln!(
            "adit: {}: detached; but process {pid} does not answer, and what it has not written back is still in its memory: let it go on (kill -CONT {pid}), or end it (kill -KILL {pid})",
            path.display()
        );
    }
    Ok(())
}

/// The mount's process has not answered yet: says once what it does, and fails if it does nothing any more.
fn still_waiting(registry: &Registry, live: &MountInfo, told: &mut bool) -> Result<(), ControlError> {
    if let Err(silent @ ControlError::Silent { .. }) = registry.ping(live) {
        return Err(silent);
    }
    if !std::mem::replace(told, true) {
        let (mountpoint, pid) = (&live.mountpoint, live.pid);
        let status = registry.call_entry(live, "status", &Value::Null).unwrap_or_default();
        let what = match status["dirty_bytes"].as_u64() {
            Some(bytes) if bytes > 0 => format!("{} of it are still in memory", show_size(bytes)),
            _ => "the disk has not taken all of it yet".to_owned(),
        };
        eprintln!(
            "adit: {mountpoint}: writing back: {what}; process {pid} goes on if this is interrupted. `adit umount --lazy` detaches it now and lets that go on"
        );
    }
    Ok(())
}

/// The live mount of this user at `path`.
fn find(registry: &Registry, path: &Path) -> Result<Option<MountInfo>> {
    mountpoint::resolve(path).map_err(|e| Failure::new(Code::NotAMount, Failure::io(path.display(), &e).text()))?;
    match registry.find(path) {
        Ok(mount) => Ok(Some(mount)),
        Err(ControlError::NotAMount(_) | ControlError::Dead(_)) => Ok(None),
        Err(e) => Err(answered(&e)),
    }
}

/// Another mount by the same process.
fn other_mount(registry: &Registry, live: &MountInfo) -> Option<MountInfo> {
    registry.list().into_iter().find(|other| other.pid == live.pid && other != live)
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
    match adit_mount::umount(path, true) {
        // It was detached before; with its process it is gone.
        Err(MountError::NotAMount(_)) if live.is_some() => Ok(()),
        other => other.map_err(|e| mount_failure(&e)),
    }
}
