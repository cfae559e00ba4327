//! `umount`: asks the mount's process to unmount, and waits until everything is written back and it has ended.

use std::path::Path;
use std::time::Duration;

use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::{MountError, Process, mountpoint, sightings};
use serde_json::{Value, json};

use super::confirm;
use super::mount::serve::FLUSH_VERB;
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
        return end_at_once(&registry, path, live.as_ref());
    }
    let Some(live) = live else { return of_no_entry(&registry, path, args, global.quiet) };
    // Taken before the request, while the kernel can tell who it is.
    let process = match registry.process_of(&live) {
        // An exchange through the mount keeps it busy.
        Err(ControlError::OutOfSight(_)) => return of_no_entry(&registry, path, args, global.quiet),
        process => process.ok(),
    };
    if let Err(silent @ ControlError::Silent { .. }) = registry.ping(&live) {
        return if args.lazy { detach_silent(path, &live, global.quiet) } else { Err(answered(&silent)) };
    }
    let status = registry.call_entry(&live, "status", &Value::Null).unwrap_or_default();
    if status["file_missing"] == true {
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
            let ended = process.as_ref().is_some_and(|process| process.has_ended_within(KILL_TIMEOUT).unwrap_or(false));
            match adit_mount::umount(path, args.lazy) {
                Err(MountError::NotAMount(_)) if ended || !is_mounted(path) => {}
                other => other.map_err(|e| mount_failure(&e))?,
            }
        }
        Err(e) => return Err(answered(&e)),
    }
    match process {
        // A lazy unmount ends when the last file is closed; that is not waited for.
        Some(process) if !args.lazy => wait_for_end(&process, global.quiet),
        _ => Ok(()),
    }
}

/// A mount that is in no registry of this user under this path: a dead one, one of another user that this one (root) may end, or a further place of
/// one of this user's.
fn of_no_entry(registry: &Registry, path: &Path, args: &UmountArgs, quiet: bool) -> Result<()> {
    let served = registry.find_around(path).ok();
    let found = served.as_ref().map(|served| registry.process_of(served));
    let out_of_sight = matches!(found, Some(Err(ControlError::OutOfSight(_))));
    let process = found.and_then(Result::ok);
    if let Some(served) = served.as_ref().filter(|_| !args.lazy && !args.no_flush) {
        // The kernel writes what it holds by itself only when the last place goes.
        let mut told = quiet;
        let mut waiting = || still_waiting(registry, served, &mut told);
        match registry.call_patiently(served, FLUSH_VERB, &Value::Null, &mut waiting) {
            // It has just ended.
            Ok(_) | Err(ControlError::Io { .. } | ControlError::NotAMount(_)) => {}
            Err(e) => return Err(answered(&e)),
        }
    }
    adit_mount::umount(path, args.lazy).map_err(|e| mount_failure(&e))?;
    let (Some(served), false) = (served, args.lazy) else { return Ok(()) };
    match process {
        _ if !sightings::of(&served.device).seen.is_empty() => {
            if !quiet {
                tell_where(&path.display().to_string(), &served);
            }
            Ok(())
        }
        _ if out_of_sight && !quiet => {
            eprintln!(
                "adit: {}: everything is written; its process is in another network namespace, and its end is not waited for",
                path.display()
            );
            Ok(())
        }
        Some(process) if other_mount(registry, &served).is_none() => wait_for_end(&process, quiet),
        _ => Ok(()),
    }
}

/// It was unmounted and everything is written, but its process goes on for where it is still mounted.
fn tell_where(subject: &str, live: &MountInfo) {
    let view = sightings::of(&live.device);
    let places = match (view.seen.as_slice(), view.is_whole) {
        ([], true) => "held by a mount namespace without processes, or by a copy without a place".to_owned(),
        ([], false) => "mounted in a mount namespace that root can find".to_owned(),
        (seen, _) => format!("mounted {}", live::show_places(seen)),
    };
    eprintln!(
        "adit: {subject}: unmounted, and everything is written; it is still {places}, and {} goes on for that: unmount it there, or end it ({})",
        live.process(),
        live.process().kill_line(None)
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
        let process = live.process();
        eprintln!(
            "adit: {}: detached; but {process} does not answer, and what it has not written back is still in its memory: let it go on ({}), or end it ({})",
            path.display(),
            process.kill_line(Some("CONT")),
            process.kill_line(Some("KILL"))
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
        let (mountpoint, process) = (&live.mountpoint, live.process());
        let status = registry.call_entry(live, "status", &Value::Null).unwrap_or_default();
        let what = match status["dirty_bytes"].as_u64() {
            Some(bytes) if bytes > 0 => format!("{} of it are still in memory", show_size(bytes)),
            _ => "the disk has not taken all of it yet".to_owned(),
        };
        eprintln!(
            "adit: {mountpoint}: writing back: {what}; {process} goes on if this is interrupted. `adit umount --lazy` detaches it now and lets that go on"
        );
    }
    Ok(())
}

/// The live mount of this user that was made at `path`: its process takes it away there. From a further place of it, and from one that only this
/// process sees, it is taken away here.
fn find(registry: &Registry, path: &Path) -> Result<Option<MountInfo>> {
    let place =
        mountpoint::resolve(path).map_err(|e| Failure::new(Code::NotAMount, Failure::io(path.display(), &e).text()))?;
    match registry.find_around(path) {
        Ok(mount) => Ok(Some(mount).filter(|mount| mount.place() == place && mount.is_itself_in_place())),
        Err(ControlError::NotAMount(_) | ControlError::Dead(_)) => Ok(None),
        Err(e) => Err(answered(&e)),
    }
}

/// Another mount by the same process.
fn other_mount(registry: &Registry, live: &MountInfo) -> Option<MountInfo> {
    registry.list().into_iter().find(|other| other.process() == live.process() && other != live)
}

fn is_mounted(path: &Path) -> bool {
    mountpoint::resolve(path)
        .is_ok_and(|path| mountpoint::find(&path).is_some_and(|m| m.fs_type == mountpoint::FS_TYPE))
}

/// Waits until the process has ended; says so on standard error if that takes long.
fn wait_for_end(process: &Process, quiet: bool) -> Result<()> {
    let has_ended = || process.has_ended_within(PATIENCE).map_err(|e| Failure::io("umount", &e));
    if has_ended()? {
        return Ok(());
    }
    if !quiet {
        eprintln!("adit: writing back; {process} goes on if this is interrupted");
    }
    while !has_ended()? {}
    Ok(())
}

/// Kills the process and clears the mountpoint. What was acknowledged by close() or fsync() is in the journal.
fn end_at_once(registry: &Registry, path: &Path, live: Option<&MountInfo>) -> Result<()> {
    if let Some(live) = live {
        let process = registry.process_of(live).map_err(|e| answered(&e))?;
        process.kill().map_err(|e| {
            let what = format!("{}: {} cannot be ended from here", path.display(), live.process());
            let told = if e.kind() == std::io::ErrorKind::InvalidInput { what } else { format!("{what}: {e}") };
            let hint = format!("end it where it runs: {}", live.process().kill_line(Some("KILL")));
            Failure::new(Code::Failure, told).hint(hint)
        })?;
        if !process.has_ended_within(KILL_TIMEOUT).map_err(|e| Failure::io("umount", &e))? {
            return Err(Failure::new(Code::Busy, format!("{}: its process does not end", path.display())));
        }
    }
    match adit_mount::umount(path, true) {
        // It was detached before; with its process it is gone.
        Err(MountError::NotAMount(_)) if live.is_some() => Ok(()),
        other => other.map_err(|e| mount_failure(&e)),
    }
}
