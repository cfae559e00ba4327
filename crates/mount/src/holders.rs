//! Which processes keep a mount alive: by an open file, a working directory, a mapped file.
//!
//! A mount that was detached has no path any more, so it is found by its device, which is the same for every path and
//! mount namespace. Nothing is asked of the filesystem itself, which may hang. Only processes that this one may look into
//! are seen: a user's own, or all for root.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

/// A process with something open on a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name, as the kernel knows it (comm); empty if it has just ended.
    pub name: String,
}

/// The processes that have something open on the filesystem with this device (`major:minor`, see
/// [`crate::mountpoint::MountEntry::device`]), by number.
pub fn of(device: &str) -> Vec<Holder> {
    let Some(wanted) = parse(device) else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut holders: Vec<Holder> = pids
        .filter(|pid| holds(&Path::new("/proc").join(pid.to_string()), wanted))
        .map(|pid| Holder { pid, name: name_of(pid) })
        .collect();
    holders.sort_by_key(|holder| holder.pid);
    holders
}

/// `major:minor` in decimal digits, as `mountinfo` has it.
fn parse(device: &str) -> Option<(u32, u32)> {
    let (major, minor) = device.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

pub(crate) fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

fn holds(process: &Path, wanted: (u32, u32)) -> bool {
    let links = ["cwd", "root", "exe"].map(|link| process.join(link));
    let files = fs::read_dir(process.join("fd")).into_iter().flatten();
    let files = files.filter_map(|entry| Some(entry.ok()?.path()));
    links.into_iter().chain(files).any(|link| device_of(&link) == Some(wanted)) || maps(process, wanted)
}

/// The device of what a link of `/proc` leads to, from what the kernel knows anyway.
fn device_of(link: &PathBuf) -> Option<(u32, u32)> {
    let found = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// Whether a file of the device is mapped, which needs no descriptor. Lines of `maps` are (proc(5)): range, permissions,
/// offset, `major:minor` in hexadecimal digits, inode, path.
fn maps(process: &Path, (major, minor): (u32, u32)) -> bool {
    let wanted = format!("{major:02x}:{minor:02x}");
    // Bytes: a path may be anything.
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    maps.split(|&b| b == b'\n').any(|line| {
        let device = line.split(|&b| b == b' ').filter(|field| !field.is_empty()).nth(3);
        device == Some(wanted.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_open_file_makes_its_process_a_holder() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("f")).unwrap();
        let dev = file.metadata().unwrap().dev();
        let device = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        let own = std::process::id();
        let found = of(&device);
        assert!(found.iter().any(|holder| holder.pid == own && !holder.name.is_empty()), "{found:?}");
        assert_eq!(of("no device"), []);
        assert_eq!(of("4294967295:1"), []);
    }
}
