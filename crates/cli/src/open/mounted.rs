//! Verbs on a volume that a process of this user has open go through that process: over a mount of its main branch.
//!
//! Where that is mounted, it is worked in at its mountpoint. Where only snapshots or other branches are, the process makes a
//! private mount for the time of the verb, in the runtime directory, hidden from `adit mounts`. The verb holds a lock for
//! it; the process waits for that lock, and takes the mount away when the verb ends, however it ends. What is left when
//! both are killed is cleared by whoever looks next ([`sweep`]).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_dir::DirStore;
use adit_mount::control::{MountInfo, Registry};
use adit_mount::mountpoint;
use adit_volume::tree::MAIN;
use serde_json::{Value, json};

use super::watched::Watched;
use super::{Purpose, remark, turn, volume};
use crate::args::mount_options::Part;
use crate::commands::mount::answered;
use crate::commands::mount::volume::verb;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::{live, volume_work};

/// The names of private mounts, and of their locks.
const PREFIX: &str = "private-";
const LOCK: &str = "lock";

/// A volume that is open here, or a mount of it to work through.
pub enum Reached {
    /// Open here.
    Closed(adit_volume::Volume),
    /// Mounted; the private mount, if one was made, is to be dropped after the store.
    Mounted(Arc<Watched>, Option<Private>),
}

/// Reaches the volume in `file`, here or through the process that has it open. `data` says where its data folder is now, if
/// that was moved.
///
/// # Errors
/// As [`volume::open_with_data`]; `Busy` if it is mounted in a way that does not allow for `purpose`.
pub fn reach(file: &Path, data: Option<&Path>, purpose: Purpose) -> Result<Reached> {
    turn::take(file, |seen| {
        let Some(process) = &seen.process else {
            // Its mountpoint would be named as a place to work in.
            seen.expect_answers()?;
            return volume::open_with_data(file, data, purpose).map(Reached::Closed);
        };
        if let Some(failure) = volume_work::other_data(file, data)? {
            return Err(failure);
        }
        through(file, process, purpose).map_err(|failure| {
            // Without a mount of the branch, it is busy with another verb's private mount, which is being made or taken away:
            // only the branch tells of it as yet, or its place, while it is still listed. The upper of an overlay has the branch
            // as well.
            let is_mounted = |mount: &MountInfo| mount.upper.is_some() || mount.branch.as_deref() == Some(MAIN);
            let is_private = !seen.mounts.iter().any(|mount| !mount.hidden && is_mounted(mount));
            match (failure.code() == Code::Busy && is_private) || seen.has_changed(file) {
                true => failure.passing(),
                false => failure,
            }
        })
    })
}

/// The mount of the main branch by the process of `process`.
fn main_of<'m>(mounts: &'m [MountInfo], process: &MountInfo) -> Option<&'m MountInfo> {
    mounts.iter().find(|mount| {
        mount.process() == process.process()
            && mount.kind == "volume"
            && mount.branch.as_deref() == Some(MAIN)
            && mount.is_attached()
    })
}

/// Reaches the main branch through the process of `process`.
fn through(file: &Path, process: &MountInfo, purpose: Purpose) -> Result<Reached> {
    let mounts = live::of_source(file);
    let main = main_of(&mounts, process);
    // A mount to be worked in is none of an overlay's upper. What is only read may be.
    if purpose == Purpose::Write && main.is_none_or(|main| main.hidden || main.read_only) {
        volume_work::refuse_upper(file)?;
    }
    let Some(main) = main else {
        let private = Private::mount(file, process, Part::Live)?;
        return Ok(Reached::Mounted(private.watched(purpose)?, Some(private)));
    };
    if main.read_only && purpose != Purpose::Read {
        return Err(live::in_the_way(file, main, "mounted read-only", ""));
    }
    Ok(Reached::Mounted(watched(Path::new(&main.mountpoint), &main.device, main, purpose)?, None))
}

/// The mount `info` at `dir`, which says of errors whether they are damage.
fn watched(dir: &Path, device: &str, info: &MountInfo, purpose: Purpose) -> Result<Arc<Watched>> {
    Ok(Arc::new(Watched::new(at(dir, device, purpose)?, info)))
}

/// A snapshot of the volume in `file`, through the process of `process`, for as long as what is returned second lives: it is to
/// be dropped after the store.
pub fn snapshot(file: &Path, process: &MountInfo, name: &str) -> Result<(Arc<DirStore>, Private)> {
    let private = Private::mount(file, process, Part::Snapshot(name.to_owned()))?;
    Ok((private.store()?, private))
}

/// The mount at `dir`, as long as it is the one of this `device`: never the folder below it.
fn at(dir: &Path, device: &str, purpose: Purpose) -> Result<Arc<DirStore>> {
    let opened = DirStore::open_mount(dir, purpose == Purpose::Read);
    let store = opened.map(Arc::new).map_err(|e| Failure::fs(dir.display(), &e))?;
    if super::device_of(&store) != device {
        let what = format!("{}: unmounted in this moment", dir.display());
        return Err(Failure::new(Code::Busy, what).hint("try again"));
    }
    Ok(store)
}

/// A mount for one verb; dropping it takes it away.
pub struct Private {
    dir: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Private {
    /// Has the process of `process` mount a part of the volume in `file`.
    fn mount(file: &Path, process: &MountInfo, part: Part) -> Result<Private> {
        Private::by(|dir, lock| verb::mount(process, file, part, dir, lock))
    }

    /// Has somebody mount on a folder (first argument), for as long as a lock (second) is held, which this does.
    ///
    /// # Errors
    /// The host's, and what `mount` says.
    pub fn by(mount: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<Private> {
        sweep();
        let base = Registry::of_this_user().private_directory().map_err(|e| answered(&e))?;
        // No number of a process: another one has the same in another pid namespace.
        let name = format!("{PREFIX}{:016x}", RandomState::new().hash_one(file!()));
        let (dir, lock) = (base.join(&name), base.join(name).with_extension(LOCK));
        let failed = |path: &Path, e| Failure::io(path.display(), &e);
        let held = hold(&lock).map_err(|e| failed(&lock, e))?;
        // From here on dropping it removes what there is.
        let private = Private { dir, lock, _held: held };
        DirBuilder::new().mode(0o700).create(&private.dir).map_err(|e| failed(&private.dir, e))?;
        mount(&private.dir, &private.lock)?;
        Ok(private)
    }

    /// The mount, to be asked for something.
    ///
    /// # Errors
    /// What the registry says.
    pub fn info(&self) -> Result<MountInfo> {
        Registry::of_this_user().find(&self.dir).map_err(|e| answered(&e))
    }

    /// What the process that mounted it wrote into its lock for whoever holds that.
    ///
    /// # Errors
    /// The host's.
    pub fn told(&self) -> Result<BufReader<File>> {
        File::open(&self.lock).map(BufReader::new).map_err(|e| Failure::io(self.lock.display(), &e))
    }

    /// A store of what is mounted, which tells damage from other errors.
    ///
    /// # Errors
    /// The host's; what the registry says.
    pub fn watched(&self, purpose: Purpose) -> Result<Arc<Watched>> {
        watched(&self.dir, &self.device()?, &self.info()?, purpose)
    }

    /// A store of what is mounted, to read.
    pub fn store(&self) -> Result<Arc<DirStore>> {
        at(&self.dir, &self.device()?, Purpose::Read)
    }

    /// The device of what is mounted.
    fn device(&self) -> Result<String> {
        match mountpoint::find(&self.dir).filter(|entry| entry.fs_type == mountpoint::FS_TYPE) {
            Some(entry) => Ok(entry.device),
            None => {
                let what = format!("{}: mounted where this process does not see it", self.dir.display());
                Err(Failure::new(Code::Busy, what).hint("the volume's process runs in another mount namespace"))
            }
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if mountpoint::find(&self.dir).is_some() {
            let registry = Registry::of_this_user();
            // Lazily only where another verb is at work in it: what comes after this one is to find the branch free.
            let ended = registry.call(&self.dir, "umount", &Value::Null).or_else(|e| {
                tracing::debug!("{e}");
                registry.call(&self.dir, "umount", &json!({"lazy": true}))
            });
            if ended.is_err()
                && let Err(e) = mountpoint::umount(&self.dir, true)
            {
                remark(&format!("{}: {e}", self.dir.display()));
            }
        }
        remove(&self.dir, &self.lock);
    }
}

/// Makes the file at `lock`, and holds its lock. Whoever removes such a file has its lock meanwhile.
pub fn hold(lock: &Path) -> io::Result<File> {
    loop {
        let held = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(lock)?;
        held.lock()?;
        // Before it was locked it looked as if it had been left, and another verb's [`sweep`] may have removed it.
        if held.metadata()?.nlink() > 0 {
            return Ok(held);
        }
    }
}

/// What was left by verbs and processes that were killed goes.
pub fn sweep() {
    for directory in Registry::of_this_user().directories() {
        sweep_in(directory);
    }
}

fn sweep_in(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for lock in entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == LOCK)) {
        let is_ours = lock.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
        let Ok(file) = File::open(&lock) else { continue };
        // Held by the verb, and then by the process that takes the mount away.
        if !is_ours || file.try_lock().is_err() {
            continue;
        }
        // Somebody else took it away meanwhile, and what has its name now is another verb's.
        if file.metadata().is_ok_and(|meta| meta.nlink() == 0) {
            continue;
        }
        clear(&lock);
    }
}

/// Takes away what the lock `lock`, which the caller holds, was for.
pub fn clear(lock: &Path) {
    let dir = lock.with_extension("");
    if mountpoint::find(&dir).is_some()
        && let Err(e) = mountpoint::umount(&dir, true)
    {
        tracing::warn!("{}: {e}", dir.display());
        return;
    }
    remove(&dir, lock);
}

fn remove(dir: &Path, lock: &Path) {
    // Whoever comes first removes them: the verb, or the process. The folder is empty, or still covered.
    let _ = fs::remove_dir(dir);
    let _ = fs::remove_file(lock);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_lock_that_is_held_is_there_whoever_sweeps() {
        let base = tempfile::tempdir().unwrap();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        sweep_in(base.path());
                    }
                });
            }
            let lost = (0..2000).find(|i| {
                let path = base.path().join(format!("{PREFIX}{i}.{LOCK}"));
                let held = hold(&path).unwrap();
                let is_there = fs::metadata(&path).is_ok_and(|m| m.ino() == held.metadata().unwrap().ino());
                let _ = fs::remove_file(&path);
                !is_there
            });
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(lost, None, "the number of the lock that was removed");
        });
    }
}
