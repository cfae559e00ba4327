//! The places where a filesystem is mounted, in whatever mount namespace: copies of a mount, and what is mounted inside of it.
//!
//! A mount is one place of many: a bind mount shows it again, and each namespace that was made meanwhile (`unshare -m`, a container, a service
//! with private mounts) has a copy of its own, which goes its own way. The kernel lists none of that for a filesystem, so the tables of all
//! processes are read. Mounts have one number in the whole machine, by which each counts once, however many processes share a table. Nothing is asked of
//! the filesystem itself, which may hang.
//!
//! A namespace is seen by a process that lives in it. One that no process lives in any more (somebody holds a descriptor of it) is not seen, nor
//! one whose processes are hidden from this user ([`View::is_whole`]).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::holders::{Holder, name_of};
use crate::mountpoint::{MountEntry, read_table_of};

/// A place where a filesystem is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sighting {
    /// Its path, as its namespace names it.
    pub place: PathBuf,
    /// The folder of the filesystem that is mounted there, from its root: `/` is all of it.
    pub root: PathBuf,
    /// A process of the other namespace that has it there. `None` if this process sees it itself.
    pub process: Option<Holder>,
    /// The number of that namespace, as `/proc/PID/ns/mnt` has it, where this user may know it.
    pub namespace: Option<u64>,
}

/// Another filesystem that is mounted on a folder or file of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inside {
    /// The path of what it covers, from the root of the filesystem around it and without a slash in front; empty is that root itself.
    pub path: PathBuf,
    /// Its type, such as `tmpfs`.
    pub fs_type: String,
    /// The place where it is seen; [`Sighting::root`] is of the filesystem that is mounted there.
    pub seen: Sighting,
}

/// All that was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View<T> {
    /// In this process's own namespace first, then by the numbers of processes.
    pub seen: Vec<T>,
    /// True if the tables of all processes could be read. If not, only root can tell the rest.
    pub is_whole: bool,
}

/// The places where the filesystem with this device (`major:minor`, see [`MountEntry::device`]) is mounted, each once.
pub fn of(device: &str) -> View<Sighting> {
    look(&mut |table, sight| {
        table.iter().filter(|entry| entry.device == device).filter_map(|entry| sight.of(entry)).collect()
    })
}

/// As [`of`], in this process's own mount namespace alone.
pub fn here(device: &str) -> Vec<Sighting> {
    let mut sight = Sight { pid: None, met: HashSet::new() };
    let table = read_table_of(Path::new("/proc/self")).unwrap_or_default();
    table.iter().filter(|entry| entry.device == device).filter_map(|entry| sight.of(entry)).collect()
}

/// The filesystems that are mounted inside of the one with this device.
pub fn inside(device: &str) -> View<Inside> {
    look(&mut |table, sight| {
        let around = |entry: &MountEntry| table.iter().find(|other| other.id == entry.parent && other.device == device);
        let found = table.iter().filter_map(|entry| Some((entry, around(entry)?)));
        found
            .filter_map(|(entry, around)| {
                let below = entry.mountpoint.strip_prefix(&around.mountpoint).ok()?;
                let path = around.root.join(below).strip_prefix("/").ok()?.to_owned();
                Some(Inside { path, fs_type: entry.fs_type.clone(), seen: sight.of(entry)? })
            })
            .collect()
    })
}

/// The process of a table, and the mounts that were met in others.
struct Sight {
    pid: Option<u32>,
    met: HashSet<u64>,
}

impl Sight {
    /// The sighting of a mount; `None` if it was met before.
    fn of(&mut self, entry: &MountEntry) -> Option<Sighting> {
        self.met.insert(entry.id).then(|| Sighting {
            place: entry.mountpoint.clone(),
            root: entry.root.clone(),
            process: self.pid.map(|pid| Holder { pid, name: name_of(pid) }),
            namespace: namespace_of(&self.pid.map_or("self".to_owned(), |pid| pid.to_string())),
        })
    }
}

/// Has `pick` look at each table of mounts once.
fn look<T>(pick: &mut dyn FnMut(&[MountEntry], &mut Sight) -> Vec<T>) -> View<T> {
    let mut sight = Sight { pid: None, met: HashSet::new() };
    let mut seen = Vec::new();
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    // The first process is every user's to see, unless processes are hidden.
    let mut is_whole = pids.first() == Some(&1);
    let own = ["self".to_owned()].into_iter();
    for process in own.chain(pids.iter().map(u32::to_string)) {
        match read_table_of(&Path::new("/proc").join(&process)) {
            Ok(table) => {
                sight.pid = process.parse().ok();
                seen.extend(pick(&table, &mut sight));
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => is_whole = false,
            // It has just ended.
            Err(_) => {}
        }
    }
    View { seen, is_whole }
}

/// Asked only of a process that has something new: it waits for one that is in execve(2), which may wait for a mount.
fn namespace_of(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/mnt")).ok().map(|meta| meta.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountpoint;

    #[test]
    fn the_root_is_seen_once_and_by_this_process() {
        let root = mountpoint::find(Path::new("/")).unwrap();
        let view = of(&root.device);
        let own: Vec<&Sighting> = view.seen.iter().filter(|sighting| sighting.process.is_none()).collect();
        assert!(own.iter().any(|sighting| sighting.place == Path::new("/")), "{view:?}");
        let at_root = own.iter().filter(|sighting| sighting.place == Path::new("/")).count();
        let in_table = mountpoint::read_table_of(Path::new("/proc/self")).unwrap().into_iter();
        let in_table = in_table.filter(|entry| entry.device == root.device && entry.mountpoint == Path::new("/"));
        assert_eq!(at_root, in_table.count());
        assert_eq!(of("no device").seen, []);
    }

    #[test]
    fn what_is_mounted_on_the_root_is_inside_of_it() {
        let root = mountpoint::find(Path::new("/")).unwrap();
        let proc = mountpoint::find(Path::new("/proc")).unwrap();
        if proc.parent != root.id {
            return;
        }
        let found = inside(&root.device).seen;
        let found = found.iter().find(|inside| inside.seen.place == Path::new("/proc")).unwrap();
        assert_eq!((found.fs_type.as_str(), found.seen.process.as_ref()), ("proc", None));
        assert!(found.path.ends_with("proc"), "{found:?}");
    }
}
