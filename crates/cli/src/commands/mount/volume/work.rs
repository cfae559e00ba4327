//! What a volume's process is asked for besides mounts: snapshots, comparisons, what an overlay's upper holds.

use std::path::Path;
use std::sync::Arc;

use adit_core::overlay::Overlay;
use adit_core::types::FileName;
use adit_core::{ErrorKind, FsError};
use adit_mount::SessionHandle;
use adit_volume::snapshots_dir::{Retired, SNAPSHOTS_INO, SNAPSHOTS_NAME};
use adit_volume::tree::MAIN;
use adit_volume::{SnapshotsDir, VolumeStore};
use serde::Deserialize;
use serde_json::Value;

use super::restore::Goal;
use super::{Process, branch_of, overlay};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::process;
use crate::volume_work;
use crate::volume_work::Asked;

impl Process {
    /// A request of another process for something else.
    pub(super) fn work(self: &Arc<Process>, args: &Value) -> Result<Value> {
        let asked = Asked::deserialize(args).map_err(|e| Failure::usage(format!("not a request: {e}")))?;
        if !asked.only_reads() {
            self.expect_writable()?;
        }
        let done = match &asked {
            Asked::Restore { branch, name, path, touch } => {
                let path = path.iter().map(Vec::as_slice).collect();
                let goal = Goal { branch, snapshot: name, path, mtimes: volume_work::mtimes(*touch) };
                self.restore(&asked, &goal)
            }
            Asked::Snapshot { name, .. } => self.perform(&asked).inspect(|_| self.tell(name)),
            Asked::DeleteSnapshot { name } => {
                // Out of use first, on every mount.
                let _retired = self.retire(name)?;
                self.perform(&asked).inspect(|_| self.tell(name))
            }
            Asked::Diff { old, new } if self.lower.is_some() => self.differences(old, new),
            _ => self.perform(&asked),
        };
        // These take memory for all that differs, or goes.
        if matches!(asked, Asked::Restore { .. } | Asked::Diff { .. } | Asked::DeleteSnapshot { .. } | Asked::Gc) {
            process::hand_back_small_pieces();
        }
        done
    }

    /// How the overlay that is mounted differs between two states of its upper: names of snapshots, or of branches.
    fn differences(&self, old: &str, new: &str) -> Result<Value> {
        let fail = |e: FsError| self.failed(&e);
        for branch in [old, new] {
            self.flush(branch).map_err(fail)?;
        }
        let upper: Vec<_> =
            self.volume.diff(old, new).map_err(fail)?.iter().map(volume_work::change_of_upper).collect();
        let told = match (self.overlay_of(old)?, self.overlay_of(new)?) {
            (Some(old), Some(new)) => new.differences(&old, &upper).map_err(fail)?,
            // One of them is from before there was an overlay in it: what lies below, as it is.
            (None, Some(new)) => {
                let mut told = Vec::new();
                let unknown = new.changes(&mut |change| told.push(change)).map_err(fail)?;
                if let Some(one) = unknown.into_iter().next() {
                    return Err(fail(one.error));
                }
                told
            }
            (_, None) if old == new => Vec::new(),
            (_, None) => {
                let what = format!("{}: {new} is from before there was an overlay", self.file.display());
                return Err(Failure::new(Code::NotSupported, what).hint("name the older one first"));
            }
        };
        Ok(told.iter().map(volume_work::shown_change_json).collect())
    }

    /// The overlay as a snapshot or branch of the upper has it; `None` if that was empty.
    fn overlay_of(&self, name: &str) -> Result<Option<Overlay>> {
        let fail = |e: FsError| self.failed(&e);
        if name == MAIN {
            let sessions = self.sessions.lock();
            // Not one of a snapshot, which a commit has shown.
            let mut live = sessions.live.values().filter(|live| branch_of(&live.wish.part) == Some(MAIN));
            if let Some(overlay) = live.find_map(|live| live.overlay.clone()) {
                return Ok(Some(overlay));
            }
        }
        let Some(lower) = &self.lower else { return Ok(None) };
        let store = match self.volume.snapshot(name) {
            Err(e) if e.is_not_found() => self.volume.branch(name),
            store => store,
        };
        let store = match (store, self.mounted_store(name)) {
            (Err(e), Some(store)) if e.kind() == ErrorKind::Busy => store,
            (store, _) => store.map_err(fail)?,
        };
        if Overlay::is_new(&store).map_err(fail)? {
            return Ok(None);
        }
        let identity = overlay::identity_for(&store, lower).map_err(fail)?;
        Overlay::open(lower.another()?, Arc::new(store), &identity).map(Some).map_err(fail)
    }

    /// The store of a branch that is mounted as what it is. One of an upper is mounted to be read only, so that nothing is open there
    /// without a name, and it does no harm that two tell the store what to forget.
    fn mounted_store(&self, branch: &str) -> Option<VolumeStore> {
        let sessions = self.sessions.lock();
        let mut live = sessions.live.values().filter(|live| live.overlay.is_none());
        let found = live.find(|live| branch_of(&live.wish.part) == Some(branch))?;
        found.snapshots.as_ref().map(|snapshots| snapshots.live().clone())
    }

    /// What the upper of a session holds.
    pub(super) fn diff(&self, id: u64) -> Result<Value> {
        let fail = |e: FsError| Failure::fs(self.file.display(), &e);
        self.flush(MAIN).map_err(fail)?;
        let overlay = self.sessions.lock().live.get(&id).and_then(|live| live.overlay.clone());
        let overlay = overlay.ok_or_else(|| Failure::new(Code::NotSupported, "not an overlay"))?;
        let mut found = Vec::new();
        let unknown =
            overlay.changes(&mut |change| found.push((change.path.clone(), volume_work::change_json(&change))));
        found.extend(unknown.map_err(fail)?.iter().map(|one| (one.path.clone(), volume_work::unknown_json(one))));
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found.into_iter().map(|(_, told)| told).collect())
    }

    /// Lets go of a snapshot wherever `.snapshots` shows it, for as long as the answer lives. Fails if something is mounted inside of it there.
    fn retire(&self, name: &str) -> Result<Vec<Retired>> {
        let shown: Vec<_> = {
            let sessions = self.sessions.lock();
            let live = sessions.live.values();
            live.filter_map(|live| Some((live.snapshots.clone()?, live.session.clone()))).collect()
        };
        let place = Path::new(SNAPSHOTS_NAME).join(name);
        let retire = |(dir, session): (SnapshotsDir, SessionHandle)| {
            let inside = session.mounted_inside().seen;
            if let Some(inside) = inside.iter().find(|inside| inside.path.starts_with(&place)) {
                return Err(self.covered(&format!("snapshot {name} cannot be deleted"), inside));
            }
            dir.retire(name).map_err(|e| {
                let failure = Failure::fs(self.file.display(), &e);
                let at = session.mountpoint().display();
                failure.hint(format!("close what has files open in {at}/{SNAPSHOTS_NAME}/{name}"))
            })
        };
        shown.into_iter().map(retire).collect()
    }

    /// A snapshot came or went: what the mounts know of its name is void.
    fn tell(&self, name: &str) {
        let Ok(name) = FileName::new(name.as_bytes()) else { return };
        // Told with nothing locked: the kernel may wait for a request meanwhile, and that for a restore.
        let told: Vec<_> = {
            let sessions = self.sessions.lock();
            let showing = sessions.live.values().filter(|live| live.snapshots.is_some());
            showing.map(|live| (live.session.clone(), live.engine.clone())).collect()
        };
        for (session, engine) in told {
            if let Some(engine) = engine.upgrade() {
                engine.entry_changed_below(SNAPSHOTS_INO, name);
            }
            session.forget_entry(SNAPSHOTS_INO, name);
        }
    }

    pub(super) fn perform(&self, asked: &Asked) -> Result<Value> {
        let mut flush = |branch: &str| self.flush(branch);
        volume_work::perform(&self.volume, asked, &mut flush).map_err(|e| {
            let failure = asked.failure(&self.file, &e);
            let at = asked.branch().and_then(|branch| self.mountpoint_of(branch));
            match at {
                Some(at) if e.kind() == ErrorKind::Busy => failure.hint(format!("unmount it first: adit umount {at}")),
                None if e.kind() == ErrorKind::Busy => failure.hint("unmount it first; `adit mounts` lists where"),
                _ if e.kind() == ErrorKind::ReadOnly && self.volume.is_read_only() => self.opened_to_read(),
                _ => failure,
            }
        })
    }

    /// Fails if every mount of a branch was made read-only meanwhile (`mount -o remount,ro`): who did that wants nothing of the volume to change.
    fn expect_writable(&self) -> Result<()> {
        let shown: Vec<SessionHandle> = {
            let sessions = self.sessions.lock();
            let live = sessions.live.values();
            let writable = live.filter(|live| {
                live.wish.lock.is_none() && !live.wish.options.read_only && branch_of(&live.wish.part).is_some()
            });
            writable.map(|live| live.session.clone()).collect()
        };
        // Of a volume that was opened to be read, others tell.
        let is_so = !self.volume.is_read_only() && shown.iter().all(SessionHandle::is_read_only);
        let Some(first) = shown.first().filter(|_| is_so) else { return Ok(()) };
        let at = first.mountpoint().display();
        let what =
            format!("{}: nothing of it can be changed while it is mounted read-only on {at}", self.file.display());
        Err(Failure::new(Code::Failure, what).hint(format!("mount -o remount,rw {at}")))
    }

    /// Nothing of the volume can be changed, because this process has opened it to be read.
    fn opened_to_read(&self) -> Failure {
        let sessions = self.sessions.lock();
        let at = sessions.live.values().find(|live| live.wish.lock.is_none());
        let at = at.map(|live| live.session.mountpoint().display().to_string());
        let what = format!("{}: nothing of it can be changed", self.file.display());
        match at {
            Some(at) => Failure::new(Code::Failure, format!("{what} while it is mounted read-only on {at}"))
                .hint(format!("unmount it first: adit umount {at}; or mount it without --read-only")),
            None => Failure::new(Code::Failure, format!("{what}: it is open to be read")),
        }
    }

    /// Has the kernel hand over what it holds of the mount of `branch`, if there is one.
    pub(super) fn flush(&self, branch: &str) -> Result<(), FsError> {
        let found = {
            let sessions = self.sessions.lock();
            let live = sessions.live.values().find(|live| branch_of(&live.wish.part) == Some(branch));
            live.map(|live| (live.session.clone(), live.engine.clone()))
        };
        let Some((session, engine)) = found else { return Ok(()) };
        let Some(engine) = engine.upgrade() else { return Ok(()) };
        let written = engine.open_for_writing();
        drop(engine);
        session.flush_kernel(&written).map_err(|e| FsError::from(e).on("flush", session.mountpoint().display()))
    }
}
