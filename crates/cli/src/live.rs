//! The mounts that live, as verbs meet them: in their place, or detached and ending.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use adit_core::process;
use adit_mount::MountError;
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::holders::{self, Holder};
use adit_mount::mountpoint::{self, MountEntry};
use adit_mount::sightings::{self, Sighting};
use serde_json::Value;

use crate::commands::mount::{answered, mount_failure};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};

/// Most holders that a message names.
const NAMED_MAX: usize = 5;
/// Most symbolic links on one way, as in the kernel.
const LINKS_MAX: usize = 40;

/// Fails if `path` leads into a mount of this user whose process says nothing: whoever looked there would wait without an end;
/// or into a mount whose process is gone. Of a mount that has a process nothing is asked. It takes two seconds to tell.
///
/// # Errors
/// That failure, with what to do.
pub fn expect_answers(path: &Path) -> Result<()> {
    let Some(entry) = on_the_way(path, &mountpoint::ours(), &mountpoint::find) else { return Ok(()) };
    let registry = Registry::of_this_user();
    let Some(mount) = registry.list().into_iter().find(|mount| mount.device == entry.device) else {
        return match mountpoint::find_dead(&entry.mountpoint) {
            Some(dead) => Err(mount_failure(&MountError::Stale(dead.mountpoint))),
            None => Ok(()),
        };
    };
    match registry.ping(&mount) {
        Err(silent @ ControlError::Silent { .. }) => Err(answered(&silent)),
        _ => Ok(()),
    }
}

/// Why something of this machine could not be reached because a mount's process is gone, in the words that say what to do; none
/// if there is no such mount. `path` is what could not be reached, where that is known.
pub fn dead_mount(path: Option<&Path>) -> Option<MountError> {
    let ours = mountpoint::ours();
    let on_the_way = path.and_then(|path| on_the_way(path, &ours, &mountpoint::find));
    let others = ours.iter().filter(|entry| Some(&entry.device) != on_the_way.as_ref().map(|found| &found.device));
    let mut dead = on_the_way.iter().chain(others).filter_map(|entry| mountpoint::find_dead(&entry.mountpoint));
    dead.next().map(|entry| MountError::Stale(entry.mountpoint))
}

/// The first of the mounts `ours` that `path` leads into. Links are followed up to there. `topmost` tells what is mounted at a
/// place, whoever did that.
fn on_the_way(path: &Path, ours: &[MountEntry], topmost: &dyn Fn(&Path) -> Option<MountEntry>) -> Option<MountEntry> {
    if ours.is_empty() {
        return None;
    }
    let (mut at, mut links) = (PathBuf::new(), 0);
    let mut left = parts(&std::path::absolute(path).ok()?);
    while let Some(part) = left.pop() {
        match Path::new(&part).components().next()? {
            Component::ParentDir => drop(at.pop()),
            // The root takes the place of all before it.
            _ => at.push(&part),
        }
        if let Some(entry) = ours.iter().rev().find(|entry| entry.mountpoint == at) {
            // Something else may be mounted over it.
            return topmost(&at).filter(|topmost| topmost.device == entry.device);
        }
        if let Ok(target) = fs::read_link(&at) {
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            at.pop();
            left.extend(parts(&target));
        }
    }
    None
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().filter(|part| *part != Component::CurDir).map(|part| part.as_os_str().to_owned()).collect()
}

/// The device and inode number of what is at `path`, if something is.
pub fn file_id(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The mounts of this user whose source is at `path`, or that are overlays with it as their upper: those in their place
/// first, those of verbs last. A volume's file is the same under all its names, and another one in its place is another volume.
pub fn of_source(path: &Path) -> Vec<MountInfo> {
    let id = file_id(path);
    let mut mounts = Registry::of_this_user().list();
    mounts.retain(|mount| match (id, mount.file_id) {
        (Some(id), Some(mounted)) => id == mounted,
        // What lies below an overlay is only read by it.
        _ => mount.file_path() == path,
    });
    mounts.sort_by_key(|mount| (mount.hidden, !mount.is_attached()));
    mounts
}

/// An overlay of this user with a snapshot of the volume at `path` below.
pub fn overlay_on(path: &Path) -> Option<MountInfo> {
    let id = file_id(path);
    let mut mounts = Registry::of_this_user().list().into_iter();
    let is_same = |source: &Path| source == path || (id.is_some() && file_id(source) == id);
    mounts.find(|mount| mount.upper.is_some() && is_same(&mount.source_path()))
}

/// Fails if a mount of this user has promised that nobody else changes the vault in `dir`, or if that is to be promised
/// (`exclusive`) while there is a mount.
pub fn respect_mounts(dir: &Path, exclusive: bool) -> Result<()> {
    for mount in of_source(dir) {
        let status = Registry::of_this_user().call_entry(&mount, "status", &Value::Null);
        let promised = status.as_ref().is_ok_and(|status| status["exclusive"] == true);
        if exclusive || promised {
            let how = if promised { "mounted exclusively" } else { "mounted already" };
            return Err(in_the_way(dir, &mount, how, &format!("work in {}, or", mount.mountpoint)));
        }
    }
    Ok(())
}

/// The source at `path` cannot be used because it is `how`; `instead` begins the hint for a mount that is in its place.
pub fn in_the_way(path: &Path, mount: &MountInfo, how: &str, instead: &str) -> Failure {
    let (source, mountpoint) = (path.display(), &mount.mountpoint);
    if mount.hidden {
        // Nobody is told of its place. An overlay reads a snapshot through it, or another command works in it.
        return match overlay_on(path).filter(MountInfo::is_attached) {
            Some(overlay) => Failure::new(Code::Busy, format!("{source}: an overlay reads a snapshot of it"))
                .hint(format!("unmount that first: adit umount {}", overlay.mountpoint)),
            None => Failure::new(Code::Busy, format!("{source}: another command works in it")).passing(),
        };
    }
    if mount.is_attached() {
        let hint = format!("{instead} unmount it first: adit umount {mountpoint}");
        return Failure::new(Code::Busy, format!("{source}: {how} on {mountpoint}")).hint(hint.trim_start());
    }
    ending(&source.to_string(), mount)
}

/// The mount is not in its place any more, but it has not ended: it is mounted elsewhere; or it was detached and is still ending, which passes unless
/// somebody holds it.
pub fn ending(subject: &str, mount: &MountInfo) -> Failure {
    let (mountpoint, kill) = (&mount.mountpoint, mount.process().kill_line(None));
    let elsewhere = sightings::of(&mount.device).seen;
    if !elsewhere.is_empty() {
        let what = format!("{subject}: not on {mountpoint} here, but still mounted {}", show_places(&elsewhere));
        // Whoever starts a process in a namespace of its own may let go of the copies in a moment.
        return Failure::new(Code::Busy, what)
            .hint(format!("unmount it there, or end its process, which writes everything back: {kill}"))
            .passing();
    }
    let written = if mount.kind == "vault" { "is not encrypted" } else { "stays in that folder" };
    let what = format!(
        "{subject}: the mount on {mountpoint} was detached and is still ending; {mountpoint} is an ordinary folder now, and \
         what is written there {written}"
    );
    let holders = holders_of(&mount.device);
    let failure = Failure::new(Code::Busy, what)
        .hint(format!("{}; or end it within seconds, with everything written back: {kill}", who_holds(&holders)));
    if holders.is_empty() { failure.passing() } else { failure }
}

/// The other processes that have something open on the mount with this device. This one only looks at it, and is gone in a moment.
pub fn holders_of(device: &str) -> Vec<Holder> {
    let mut holders = holders::of(device);
    holders.retain(|holder| Some(holder.pid) != process::number_in_proc());
    holders
}

/// Whether the file that a mount's process has open is not where it was any more: it was moved, or removed. For that process itself: others may be in
/// a chroot, or in another mount namespace.
pub fn is_file_missing(mount: &MountInfo) -> bool {
    let path = mount.file_path();
    mount.file_id.is_some_and(|mounted| match path.metadata() {
        Ok(meta) => (meta.dev(), meta.ino()) != mounted,
        Err(e) => matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    })
}

/// What is to be closed, for a hint.
pub fn who_holds(holders: &[Holder]) -> String {
    let mut named: Vec<String> = holders.iter().take(NAMED_MAX).map(show).collect();
    match holders.len() {
        0 => {
            return "close what has files open there: processes of other users or of containers, which root can find"
                .to_owned();
        }
        count if count > NAMED_MAX => named.push(format!("{} more", count - NAMED_MAX)),
        _ => {}
    }
    format!("close what has files open there: {}", named.join(", "))
}

/// `on /b, on /mnt in the mount namespace of process 123 (sleep)`
pub fn show_places(seen: &[Sighting]) -> String {
    let show = |sighting: &Sighting| {
        let place = crate::output::printable(sighting.place.as_os_str().as_bytes()).to_string();
        match &sighting.process {
            None => format!("on {place}"),
            Some(process) => format!("on {place} in the mount namespace of {}", show(process)),
        }
    };
    let mut named: Vec<String> = seen.iter().take(NAMED_MAX).map(show).collect();
    if seen.len() > NAMED_MAX {
        named.push(format!("and in {} more places", seen.len() - NAMED_MAX));
    }
    named.join(", ")
}

/// `process 123 (vim)`
pub fn show(holder: &Holder) -> String {
    let (pid, name) = (holder.pid, crate::output::printable(holder.name.as_bytes()));
    match process::proc_is_ours() {
        true => format!("process {pid} ({name})"),
        false => format!("a process ({name}; {pid} in /proc, which is of another pid namespace)"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_mount_on_the_way_is_found_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, real.join(name)).unwrap();
        fs::create_dir_all(real.join("d/mnt")).unwrap();
        link("d", "in");
        link("../in/mnt/x", "d/far");
        link("circle", "circle");
        // One that is surely there; where it is said to be is what counts.
        let root = mountpoint::find(Path::new("/")).unwrap();
        let at = |place: &str| MountEntry { mountpoint: real.join(place), ..root.clone() };
        let found = |path: &str, place: &str| {
            let ours = [at(place)];
            let passed = Cell::new(false);
            let topmost = |path: &Path| {
                passed.set(path == real.join(place));
                Some(ours[0].clone())
            };
            on_the_way(&real.join(path), &ours, &topmost).is_some() && passed.get()
        };
        for path in ["d/mnt", "d/mnt/deep/er", "in/mnt", "d/far", "d/../in/mnt/x", "d/far/../y"] {
            assert!(found(path, "d/mnt"), "{path}");
        }
        for path in ["d", "in", "d/mnt2", "d/none", "circle", "../mnt"] {
            assert!(!found(path, "d/mnt"), "{path}");
        }
        assert!(on_the_way(&real.join("d/mnt"), &[at("d/mnt")], &|_| None).is_none(), "something else is over it");
    }

    #[test]
    fn many_holders_are_not_all_named() {
        let holder = |pid| Holder { pid, name: "vim".to_owned() };
        assert!(who_holds(&[]).contains("other users"));
        assert!(who_holds(&[holder(7)]).ends_with(": process 7 (vim)"));
        let many: Vec<Holder> = (1..=8).map(holder).collect();
        assert!(who_holds(&many).ends_with("process 5 (vim), 3 more"));
    }
}
