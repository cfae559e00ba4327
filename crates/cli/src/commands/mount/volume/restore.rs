//! Setting back a branch that is mounted, in its place: the mount stays, whatever is set back.
//!
//! Requests are held off for the moment. What differs is found, by inode and name; what is in the way is looked for; the branch is set
//! back, and what the engine keeps of it is dropped. Then requests go on, and the kernel is told what to forget: never before that, because
//! telling it may wait for one of these requests (`docs/decisions/0035-restore-in-place.md`).
//!
//! The kernel takes everything about folders and links from us when it is told to forget what it knows, but size and times of regular
//! files are its own for as long as it knows them. So those that differ get another number there ([`SessionHandle::renew`]): whoever
//! watches one, or holds it by an `O_PATH` descriptor, has what was. One that differs and is open is in the way, and so is a filesystem that
//! is mounted on something that would go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_core::engine::{Engine, Lookup};
use adit_core::overlay::Overlay;
use adit_core::process::ProcessNumber;
use adit_core::types::{FileName, Ino};
use adit_core::{ErrorKind, FsError};
use adit_mount::session::Former;
use adit_mount::sightings::Inside;
use adit_mount::{Announced, Became, SessionHandle, mountpoint};
use adit_volume::VolumeStore;
use adit_volume::tree::{Between, Mtimes, Restored};
use serde_json::Value;

use super::{Process, branch_of, detached, overlay};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::volume_work::Asked;
use crate::{live, open, output, volume_work};

/// How long what is in the way is waited for: the kernel tells late that a file was closed, and requests may take a while.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked.
const STEP: Duration = Duration::from_millis(5);
/// Most paths that a message names.
const NAMED_MAX: usize = 5;

/// The mount of the branch.
struct Mounted {
    session: SessionHandle,
    engine: Arc<Engine>,
    /// The branch.
    store: VolumeStore,
    /// What it is the upper of, if that is what is mounted.
    overlay: Option<Overlay>,
}

/// Names from the root of an overlay's lower.
type LowerPaths = BTreeSet<Vec<Vec<u8>>>;

/// What to set back.
pub(super) struct Goal<'a> {
    pub branch: &'a str,
    pub snapshot: &'a str,
    /// Names from the root; none for everything.
    pub path: Vec<&'a [u8]>,
    pub mtimes: Mtimes,
}

/// How a try went.
enum Tried {
    /// These are open, and would change.
    Open(Vec<Ino>),
    Done(Outcome),
}

/// What was done, and what the kernel has to forget for it.
struct Outcome {
    between: Between,
    former: Former,
    done: std::result::Result<Restored, FsError>,
}

impl Process {
    /// Does what was asked: to set a branch back to a snapshot, all of it or what is at a path.
    pub(super) fn restore(&self, asked: &Asked, goal: &Goal<'_>) -> Result<Value> {
        let branch = goal.branch;
        volume_work::refuse_part_of_upper(&self.volume, branch, &goal.path).map_err(|e| self.failed(&e))?;
        let Some(mounted) = self.mounted(branch) else { return self.perform(asked) };
        // What was written before the command is undone by it, and so must not come after it.
        self.flush(branch).map_err(|e| self.failed(&e))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is_last = Instant::now() >= deadline;
            // Before requests are held off: a process that begins another program may wait for one, and what `/proc` tells of it until then.
            let inside = mounted.session.mounted_inside().seen;
            match mounted.session.apart(|| self.set_back(&mounted, goal, &inside)).transpose()? {
                Some(Tried::Done(changed)) => {
                    let unheard = mounted.tell(&changed);
                    let done = changed.done.map_err(|e| self.failed(&e))?;
                    let mut told = volume_work::restored_json(&done);
                    told["unannounced"] = unheard.into();
                    return Ok(told);
                }
                Some(Tried::Open(open)) if is_last => {
                    let detached = detached(&self.file, ProcessNumber::own(), branch);
                    return Err(detached.unwrap_or_else(|| self.in_use(branch, &mounted, &open)));
                }
                Some(Tried::Open(open)) => mounted.await_close(&open, deadline),
                None if is_last => return Err(self.under_way(branch, &mounted)),
                None => std::thread::sleep(STEP),
            }
        }
    }

    /// A branch cannot be set back: `open` would change.
    fn in_use(&self, branch: &str, mounted: &Mounted, open: &[Ino]) -> Failure {
        let at = mounted.session.mountpoint();
        let (file, mnt) = (self.file.display(), at.display());
        let mut open: Vec<String> = open.iter().filter_map(|&ino| mounted.engine.store().path_of(ino)).collect();
        open.sort();
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

    fn under_way(&self, branch: &str, mounted: &Mounted) -> Failure {
        let (file, mnt) = (self.file.display(), mounted.session.mountpoint().display());
        let what = format!("{file}: branch {branch} cannot be set back: requests on {mnt} are under way for long");
        Failure::new(Code::Busy, what).hint("nothing was changed; try again")
    }

    /// Something cannot be done: `inside` is mounted on what would go.
    pub(super) fn covered(&self, cannot: &str, inside: &Inside) -> Failure {
        let path = output::printable(inside.path.as_os_str().as_encoded_bytes());
        let by = match &inside.seen.process {
            Some(holder) => format!(", as {} sees it", live::show(holder)),
            None => String::new(),
        };
        let what = format!(
            "{}: {cannot}: /{path} would change, and something ({}) is mounted there{by}",
            self.file.display(),
            output::printable(inside.fs_type.as_bytes())
        );
        Failure::new(Code::Busy, what).hint(format!("unmount {} first", inside.seen.place.display()))
    }

    fn mounted(&self, branch: &str) -> Option<Mounted> {
        let sessions = self.sessions.lock();
        let live = sessions.live.values().find(|live| branch_of(&live.wish.part) == Some(branch))?;
        let (session, engine) = (live.session.clone(), live.engine.upgrade()?);
        Some(Mounted { session, engine, store: live.branch.clone()?, overlay: live.overlay.clone() })
    }

    /// Sets it back, unless something is in the way. Runs while no request is served, and waits for nobody who may wait for one.
    fn set_back(&self, mounted: &Mounted, goal: &Goal<'_>, inside: &[Inside]) -> Result<Tried> {
        let fail = |e: FsError| self.failed(&e);
        let mut surfaced = LowerPaths::new();
        let mut between = self.volume.tree().between(goal.branch, goal.snapshot, &goal.path).map_err(fail)?;
        if let Some(overlay) = &mounted.overlay {
            let then = self.volume.snapshot(goal.snapshot).map_err(fail)?;
            let lower = self.lower.as_ref().ok_or_else(|| Failure::usage("not the process of an overlay"))?;
            overlay::refuse_another(&then, lower).map_err(fail)?;
            (between, surfaced) = shown(overlay, then, &between).map_err(fail)?;
        }
        let mut renewed: Vec<Ino> = mounted.renewed(&between).collect();
        let open = mounted.open(&between, &renewed);
        if !open.is_empty() {
            return Ok(Tried::Open(open));
        }
        if let Some(inside) = inside.iter().find(|inside| mounted.leads_through(&inside.path, &between)) {
            return Err(self.covered(&format!("branch {} cannot be set back", goal.branch), inside));
        }
        let known = mounted.overlay.is_some().then(|| mounted.engine.all_known());
        let done = self.volume.restore_in(&mounted.store, goal.snapshot, &goal.path, goal.mtimes);
        // Also if it failed: it may be done and not yet durable.
        if let (Some(overlay), Some(known)) = (&mounted.overlay, known) {
            match self.shift(mounted, overlay, &known) {
                Ok(lost) => {
                    renewed.extend(lost.into_iter().filter(|ino| between.inodes.get(&ino.0) != Some(&true)));
                    overlay.stamp(surfaced, &goal.mtimes.of_change());
                }
                Err(e) => {
                    // Nothing that is shown fits any more.
                    mounted.session.end();
                    return Err(fail(e));
                }
            }
        }
        let former = mounted.session.renew(renewed);
        mounted.drop_cached(&between);
        Ok(Tried::Done(Outcome { between, former, done }))
    }

    /// Has an overlay show the upper that was set back. What of `known` is not known any more.
    fn shift(&self, mounted: &Mounted, overlay: &Overlay, known: &[Ino]) -> std::result::Result<Vec<Ino>, FsError> {
        let lower = self.lower.as_ref().ok_or(ErrorKind::InvalidInput)?;
        overlay::settle_again(&mounted.store, lower)?;
        let lost = overlay.shift(&lower.identity, known)?;
        mounted.engine.all_changed_below();
        Ok(lost)
    }

    pub(super) fn failed(&self, error: &FsError) -> Failure {
        open::volume::failure(&self.file, error)
    }
}

impl Mounted {
    /// What differs, is known to the kernel, and would stay what it was there.
    fn renewed<'b>(&'b self, between: &'b Between) -> impl Iterator<Item = Ino> + 'b {
        let kernels = between.inodes.iter().filter(|(_, is_kernels)| **is_kernels);
        kernels.map(|(&ino, _)| Ino(ino)).filter(|&ino| self.engine.is_known(ino))
    }

    /// What is open and would change: of `renewed`, and, of an overlay, whatever would not be found where it is.
    fn open(&self, between: &Between, renewed: &[Ino]) -> Vec<Ino> {
        let mut open: BTreeSet<Ino> = renewed.iter().copied().filter(|&ino| self.engine.is_open(ino)).collect();
        if let Some(overlay) = &self.overlay {
            let leads_elsewhere = |ino: &Ino| {
                let way = overlay.way_to(*ino);
                way.is_none_or(|way| way.into_iter().any(|(dir, name)| between.entries.contains(&(dir.0, name))))
            };
            open.extend(self.engine.all_open().into_iter().filter(leads_elsewhere));
        }
        open.into_iter().collect()
    }

    /// Waits until none of these is open any more.
    fn await_close(&self, open: &[Ino], deadline: Instant) {
        while open.iter().any(|&ino| self.engine.is_open(ino)) && Instant::now() < deadline {
            std::thread::sleep(STEP);
        }
    }

    /// Whether a path leads over a name that the kernel is to forget.
    fn leads_through(&self, path: &std::path::Path, between: &Between) -> bool {
        let mut at = Ino::ROOT;
        let mut held = Vec::new();
        let found = path.components().any(|part| {
            let bytes = part.as_os_str().as_encoded_bytes();
            let entry = (at.0, bytes.to_vec());
            if between.entries.contains(&entry) || between.files.contains(&entry) {
                return true;
            }
            if let Ok(name) = FileName::new(bytes)
                && let Ok(Lookup::Found(found)) = self.engine.lookup_or_absent(at, name)
            {
                at = found.attr.ino;
                held.push(at);
            }
            false
        });
        held.into_iter().for_each(|ino| self.engine.forget(ino, 1));
        found
    }

    /// What the engine has of all that differs is void.
    fn drop_cached(&self, between: &Between) {
        for (dir, name) in self.names(between) {
            self.engine.entry_changed_below(dir, name);
        }
        between.inodes.keys().for_each(|&ino| self.engine.inode_changed_below(Ino(ino)));
    }

    /// Tells watchers and the kernel. Not while requests are held off. Returns of how many directories some changes could not be announced.
    fn tell(&self, changed: &Outcome) -> usize {
        let announced = self.announced(&changed.between);
        let mut unheard = 0;
        for (dir, changes) in &announced {
            if let Err(e) = self.session.announce(dir, changes) {
                tracing::debug!("changes are not announced: {e}");
                unheard += 1;
            }
        }
        self.tell_kernel(changed);
        announced.iter().for_each(|(dir, changes)| self.session.announce_content(dir, changes));
        unheard
    }

    /// The names that lead elsewhere, or to something else, by their directories: those that the kernel knows, as a watched one is. What is in
    /// one that is gone went with it.
    fn announced<'b>(&'b self, between: &'b Between) -> Vec<(Vec<Vec<u8>>, Vec<Announced<'b>>)> {
        let mut by_dir: BTreeMap<Ino, Vec<Announced<'b>>> = BTreeMap::new();
        for (dir, name) in self.names(between) {
            let became = match self.engine.lookup_or_absent(dir, name) {
                Ok(Lookup::Found(found)) => {
                    self.engine.forget(found.attr.ino, 1);
                    let leads_elsewhere = between.entries.contains(&(dir.0, name.as_bytes().to_vec()));
                    if leads_elsewhere { Became::Another(found.attr.kind) } else { Became::Different }
                }
                Ok(Lookup::Absent { .. }) => Became::Nothing,
                Err(_) => continue,
            };
            by_dir.entry(dir).or_default().push(Announced { name, became });
        }
        let in_order = |(dir, mut changes): (Ino, Vec<Announced<'b>>)| {
            // Of a file that left a name, that may be told twice.
            changes.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
            changes.dedup_by(|a, b| a.name.as_bytes() == b.name.as_bytes());
            Some((self.names_to(dir)?, changes))
        };
        by_dir.into_iter().filter_map(in_order).collect()
    }

    fn names_to(&self, dir: Ino) -> Option<Vec<Vec<u8>>> {
        match &self.overlay {
            Some(overlay) => Some(overlay.way_to(dir)?.into_iter().map(|(_, name)| name).collect()),
            None => self.store.names_to(dir),
        }
    }

    /// The kernel's attributes and pages of all that differs are void, likewise.
    fn tell_kernel(&self, changed: &Outcome) {
        self.session.forget_former(&changed.former);
        for (dir, name) in self.names(&changed.between) {
            self.session.forget_entry(dir, name);
        }
        for &ino in changed.between.inodes.keys().filter(|&&ino| self.engine.is_known(Ino(ino))) {
            self.session.forget_inode(Ino(ino));
        }
    }

    /// The names that lead elsewhere, or to something else, in directories that somebody knows.
    fn names<'b>(&'b self, between: &'b Between) -> impl Iterator<Item = (Ino, FileName<'b>)> {
        let names: [&BTreeSet<(u64, Vec<u8>)>; 2] = [&between.entries, &between.files];
        let known = names.into_iter().flatten().filter(|(dir, _)| self.engine.is_known(Ino(*dir)));
        known.filter_map(|(dir, name)| Some((Ino(*dir), FileName::new(name).ok()?)))
    }
}

/// What differs between an overlay and what it would be on the state `then` of its upper, of which `between` tells how that differs; and of
/// that what is the lower's alone then.
fn shown(
    overlay: &Overlay,
    then: VolumeStore,
    between: &Between,
) -> std::result::Result<(Between, LowerPaths), FsError> {
    let names = between.entries.iter().chain(&between.files).map(|(dir, name)| (Ino(*dir), name.as_slice()));
    let told = overlay.told_of(Arc::new(then), names, between.inodes.keys().map(|&ino| Ino(ino)))?;
    let names = |names: BTreeSet<(Ino, Vec<u8>)>| names.into_iter().map(|(dir, name)| (dir.0, name)).collect();
    let inodes = told.inodes.into_iter().map(|(ino, is_kernels)| (ino.0, is_kernels)).collect();
    Ok((Between { entries: names(told.elsewhere), files: names(told.same), inodes }, told.surfaced))
}
