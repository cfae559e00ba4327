//! Setting back a branch that is mounted: in its place where the kernel can follow, else by a new mount.
//!
//! What differs is known beforehand, by inode and name. The kernel takes everything about folders and links from us when it is
//! told to forget what it knows, but size and times of regular files are its own for as long as it knows them. So it is asked
//! to forget those that differ first; then requests are held off, and if it knows none of them any more (none is open), the
//! branch is set back, and it is told what else to forget. Files that do not differ stay open, also those that are written, and
//! whoever stands in a folder that stays, stays there.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::FsError;
use adit_core::engine::Engine;
use adit_core::store::Store;
use adit_core::types::{FileName, Ino};
use adit_mount::{MountError, SessionHandle, mountpoint};
use adit_volume::VolumeStore;
use adit_volume::tree::{Between, Restored};
use serde_json::Value;

use super::{Process, branch_of, detached};
use crate::commands::mount::mount_failure;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::volume_work::Asked;
use crate::{live, open, output, volume_work};

/// How long the kernel may take to forget what it was told to forget, and to close what is being closed.
const FORGET_PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked.
const FORGET_STEP: Duration = Duration::from_millis(2);
/// How often it is tried again if somebody looked at what was just forgotten.
const ROUNDS: usize = 5;
/// Most paths that a message names.
const NAMED_MAX: usize = 5;

/// The mount of the branch.
struct Mounted {
    session: SessionHandle,
    engine: Arc<Engine>,
    store: VolumeStore,
}

/// What to set back.
struct Goal<'a> {
    branch: &'a str,
    snapshot: &'a str,
    path: Vec<&'a [u8]>,
}

impl Process {
    /// Does what was asked: to set `branch` back to the snapshot `name`, all of it or what is at `path`.
    pub(super) fn restore(
        self: &Arc<Process>,
        asked: &Asked,
        branch: &str,
        name: &str,
        path: &[Vec<u8>],
    ) -> Result<Value> {
        volume_work::refuse_part_of_upper(&self.volume, branch, path).map_err(|e| self.failed(&e))?;
        let goal = Goal { branch, snapshot: name, path: path.iter().map(Vec::as_slice).collect() };
        let mut open = Vec::new();
        if let Some(mounted) = self.mounted(branch) {
            // What was written before the command is undone by it, and so must not come after it.
            self.flush(branch).map_err(|e| self.failed(&e))?;
            for _ in 0..ROUNDS {
                let between = self.between(&goal)?;
                if !mounted.forget_files(&between) {
                    open = mounted.known_files(&between);
                    break;
                }
                let tried = mounted.session.apart(|| self.set_back(&mounted, &goal));
                if let Some(changed) = tried.transpose()?.flatten() {
                    mounted.forget_all(&changed.between);
                    return changed.done.map(|done| volume_work::restored_json(&done)).map_err(|e| self.failed(&e));
                }
            }
        }
        self.apart(branch, &open, || self.perform(asked))
    }

    /// Does `what` while `branch` is not mounted; if it was, it is mounted again after that.
    ///
    /// A new mount knows nothing of what was there before. `open` are paths of files that are in the way, as far as they are known.
    fn apart(
        self: &Arc<Process>,
        branch: &str,
        open: &[String],
        what: impl FnOnce() -> Result<Value>,
    ) -> Result<Value> {
        let found = {
            let mut sessions = self.sessions.lock();
            let live = sessions.live.iter().find(|(_, live)| branch_of(&live.wish.part) == Some(branch));
            let found = live.map(|(&id, live)| (id, live.session.clone(), live.wish.clone()));
            // The process goes on meanwhile, also if this is its only mount.
            sessions.running += usize::from(found.is_some());
            sessions.making += usize::from(found.is_some());
            found
        };
        let Some((id, session, wish)) = found else { return what() };
        let unmounted = session.unmount(false).map_err(|e| match e {
            MountError::NotAMount(_) => {
                detached(&self.file, std::process::id(), branch).unwrap_or_else(|| mount_failure(&e))
            }
            MountError::Busy(at) => self.in_use(branch, &at, open),
            e => mount_failure(&e),
        });
        let done = unmounted.and_then(|()| {
            let released = self.await_release(id);
            let done = if released { what() } else { Err(self.still_in_use(branch)) };
            let again = self.mount(&wish).map_err(|e| e.on("it is unmounted now, and could not be mounted again"));
            done.and_then(|value| again.map(|()| value))
        });
        let mut sessions = self.sessions.lock();
        sessions.making -= 1;
        sessions.running -= 1;
        drop(sessions);
        self.changed.notify_all();
        done
    }

    /// A branch that is mounted at `at` cannot be set back: `open` would change, or it is not known what is in the way.
    fn in_use(&self, branch: &str, at: &Path, open: &[String]) -> Failure {
        let (file, mnt) = (self.file.display(), at.display());
        let mut paths: Vec<String> =
            open.iter().take(NAMED_MAX).map(|path| output::printable(path.as_bytes())).collect();
        if open.len() > NAMED_MAX {
            paths.push(format!("{} more", open.len() - NAMED_MAX));
        }
        let what = match open.len() {
            0 => format!("something on {mnt} is in use"),
            1 => format!("{} would change, and is open on {mnt}", paths.concat()),
            _ => format!("{} would change, and are open on {mnt}", paths.join(", ")),
        };
        let holders = mountpoint::find(at).map_or_else(Vec::new, |entry| live::holders_of(&entry.device));
        Failure::new(Code::Busy, format!("{file}: branch {branch} cannot be set back: {what}"))
            .hint(live::who_holds(&holders))
    }

    fn still_in_use(&self, branch: &str) -> Failure {
        let what = format!("{}: branch {branch} is unmounted, but requests are still under way", self.file.display());
        Failure::new(Code::Busy, what).hint("try again")
    }

    fn mounted(&self, branch: &str) -> Option<Mounted> {
        let sessions = self.sessions.lock();
        let live = sessions.live.values().find(|live| branch_of(&live.wish.part) == Some(branch))?;
        let store = live.snapshots.as_ref()?.live().clone();
        Some(Mounted { session: live.session.clone(), engine: live.engine.upgrade()?, store })
    }

    fn between(&self, goal: &Goal<'_>) -> Result<Between> {
        self.volume.tree().between(goal.branch, goal.snapshot, &goal.path).map_err(|e| self.failed(&e))
    }

    /// Sets it back, unless the kernel knows a file that differs. Runs while no request is served.
    fn set_back(&self, mounted: &Mounted, goal: &Goal<'_>) -> Result<Option<Changed>> {
        let between = self.between(goal)?;
        if mounted.knows_files_of(&between) {
            return Ok(None);
        }
        let done = self.volume.restore_in(&mounted.store, goal.snapshot, &goal.path);
        // Also if it failed: it may be done and not yet durable.
        mounted.drop_cached(&between);
        Ok(Some(Changed { between, done }))
    }

    pub(super) fn failed(&self, error: &FsError) -> Failure {
        open::volume::failure(&self.file, error)
    }
}

/// What was tried, and how it went.
struct Changed {
    between: Between,
    done: std::result::Result<Restored, FsError>,
}

impl Mounted {
    /// Has the kernel forget the files that differ; whether it did.
    fn forget_files(&self, between: &Between) -> bool {
        for (dir, name) in self.names(&between.files) {
            self.session.forget_entry(dir, name);
        }
        // It tells later that it has forgotten something, and that something is closed.
        let deadline = Instant::now() + FORGET_PATIENCE;
        while self.knows_files_of(between) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(FORGET_STEP);
        }
        true
    }

    fn knows_files_of(&self, between: &Between) -> bool {
        self.known(between).next().is_some()
    }

    /// The files that differ and that the kernel knows.
    fn known(&self, between: &Between) -> impl Iterator<Item = Ino> {
        let kernels = between.inodes.iter().filter(|(_, is_kernels)| **is_kernels);
        kernels.map(|(&ino, _)| Ino(ino)).filter(|&ino| self.engine.is_known(ino))
    }

    /// Their paths, in order.
    fn known_files(&self, between: &Between) -> Vec<String> {
        let mut paths: Vec<String> = self.known(between).filter_map(|ino| self.store.path_of(ino)).collect();
        paths.sort();
        paths
    }

    /// What the engine has of all that differs is void.
    fn drop_cached(&self, between: &Between) {
        for (dir, name) in self.names(&between.entries).chain(self.names(&between.files)) {
            self.engine.entry_changed_below(dir, name);
        }
        between.inodes.keys().for_each(|&ino| self.engine.inode_changed_below(Ino(ino)));
    }

    /// Likewise what the kernel has.
    fn forget_all(&self, between: &Between) {
        for (dir, name) in self.names(&between.entries).chain(self.names(&between.files)) {
            self.session.forget_entry(dir, name);
        }
        for &ino in between.inodes.keys().filter(|&&ino| self.engine.is_known(Ino(ino))) {
            self.session.forget_inode(Ino(ino));
        }
    }

    /// Those in directories that somebody knows.
    fn names<'b>(
        &'b self,
        names: &'b std::collections::BTreeSet<(u64, Vec<u8>)>,
    ) -> impl Iterator<Item = (Ino, FileName<'b>)> {
        let known = names.iter().filter(|(dir, _)| self.engine.is_known(Ino(*dir)));
        known.filter_map(|(dir, name)| Some((Ino(*dir), FileName::new(name).ok()?)))
    }
}
