//! The mounts of a volume: one process has its file, and every mount of it is a session of that process.
//!
//! `adit mount` finds the process in the registry and asks it for a further mount ([`Wish`]), or becomes that process
//! ([`Process`]), which lives until its last mount ends. Two that begin at once are told apart by the lock on the file: the
//! later one looks into the registry again.

mod restore;
pub mod verb;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adit_core::engine::{Engine, EngineOptions};
use adit_core::memory::Budget;
use adit_core::overlay::Overlay;
use adit_core::store::Store;
use adit_core::types::{Access, FileName};
use adit_core::{ErrorKind, FsError};
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::daemon::Readiness;
use adit_mount::{MountError, MountOptions, SessionHandle, Signals, Until, mountpoint};
use adit_volume::snapshots_dir::{Retired, SNAPSHOTS_INO, SNAPSHOTS_NAME};
use adit_volume::tree::MAIN;
use adit_volume::volume::{Durability, OpenOptions};
use adit_volume::{SnapshotsDir, Volume, VolumeStore};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::overlay::{self, Lower};
use super::serve::{self, About, Served};
use super::{Plan, answered, mount_failure, start};
use crate::args::low::GlobalArgs;
use crate::args::mount_options::{Part, Timeouts};
use crate::exit_code::{Code, ENDING};
use crate::failure::{Failure, Result};
use crate::open::turn::{self, Seen};
use crate::process::Inherited;
use crate::volume_work::{self, Asked};
use crate::{live, open};

/// The request for a further mount.
const MOUNT_VERB: &str = "mount";
/// The request for something else that a volume can do.
pub const VOLUME_VERB: &str = "volume";
/// The request for what the upper of an overlay holds.
pub const DIFF_VERB: &str = "diff";

/// The number of the mount that a process begins with.
const FIRST: u64 = 1;

/// How long names and attributes are believed: only the mount itself changes what it shows.
const TTL: Duration = Duration::from_secs(3600);
/// How long the store of a mount that ended may be in use by requests that were under way.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// A mount, as one process asks another for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Wish {
    /// Absolute; bytes, as paths are.
    mountpoint: Vec<u8>,
    part: Part,
    options: MountOptions,
    timeouts: Timeouts,
    memory_bytes: u64,
    idle: Option<Duration>,
    /// Whether the process puts the main branch on the lower that it has open.
    #[serde(default)]
    overlay: bool,
    /// The lock of the verb that wants it for itself alone: the mount ends when that is free.
    #[serde(default)]
    lock: Option<Vec<u8>>,
}

impl Wish {
    fn of(plan: &Plan) -> Wish {
        let request = &plan.request;
        Wish {
            mountpoint: plan.mountpoint.as_os_str().as_bytes().to_vec(),
            part: request.part.clone(),
            options: request.options.clone(),
            timeouts: request.timeouts,
            memory_bytes: request.memory_bytes,
            idle: request.idle,
            overlay: false,
            lock: None,
        }
    }

    fn engine_options(&self, options: &MountOptions) -> EngineOptions {
        let memory_bytes = self.memory_bytes - volume_memory(self.memory_bytes);
        serve::engine_options(&self.timeouts, memory_bytes, options, Some(TTL))
    }

    fn mountpoint(&self) -> PathBuf {
        OsString::from_vec(self.mountpoint.clone()).into()
    }
}

/// The branch that a part of a volume is; `None` for a snapshot.
fn branch_of(part: &Part) -> Option<&str> {
    match part {
        Part::Live => Some(MAIN),
        Part::Branch(name) => Some(name),
        Part::Snapshot(_) => None,
    }
}

/// Mounts what `plan` names of a volume.
pub(super) fn mount(plan: Plan, global: &GlobalArgs, inherited: Inherited) -> Result<()> {
    open::no_password(&plan.source, &plan.request.password)?;
    if plan.request.fake {
        return Ok(());
    }
    let file = plan.source.path().to_owned();
    // By the process that has it, if there is one: this needs no process of its own then.
    let joined = turn::take(&file, |seen| match &seen.process {
        Some(process) => join(process, &plan).map(|()| true),
        None => Ok(false),
    })?;
    if joined {
        return Ok(());
    }
    start(plan, global, inherited, |plan, readiness| {
        let access = access(&plan, &file);
        // Somebody may be faster.
        let volume = turn::take(&file, |seen| match &seen.process {
            Some(process) => join(process, &plan).map(|()| None),
            None => open_file(&plan, &file, access).map(Some),
        })?;
        if let Some(volume) = volume {
            return Process::run(&plan, file, volume, None, readiness);
        }
        match readiness.and_then(Option::take) {
            Some(waiting) => waiting.ready().map_err(|e| Failure::io("daemon", &e)),
            None => Ok(()),
        }
    })
}

/// Mounts the volume in `upper` on top of what `lower` opens, which it does in the process of the mount.
pub(super) fn mount_overlay(
    plan: Plan,
    global: &GlobalArgs,
    inherited: Inherited,
    upper: PathBuf,
    lower: impl FnOnce(&Plan) -> Result<Lower>,
) -> Result<()> {
    start(plan, global, inherited, |plan, readiness| {
        let lower = lower(&plan)?;
        let access = access(&plan, &upper);
        let volume = turn::take(&upper, |_| open_file(&plan, &upper, access))?;
        overlay::settle(&upper, &volume, &lower, &plan.request)?;
        Process::run(&plan, upper, volume, Some(lower), readiness)
    })
}

fn access(plan: &Plan, file: &Path) -> Access {
    open::volume::access_for_mount(file, plan.request.options.read_only && plan.request.part == Part::Live)
}

fn open_file(plan: &Plan, file: &Path, access: Access) -> Result<Volume> {
    let request = &plan.request;
    let options = OpenOptions {
        durability: request.durability,
        memory_bytes: volume_memory(request.memory_bytes),
        ..OpenOptions::new(access)
    };
    // What an overlay's mount is told is where the data of the volume below is.
    let data = request.data.as_deref().filter(|_| plan.source.path() == file);
    open::volume::opened(file, data, &options)
}

/// How much of the memory of a mount is the volume's; its engine has the rest.
fn volume_memory(memory_bytes: u64) -> u64 {
    memory_bytes / 4
}

/// A mount of the process of this user that has the volume in `file` open.
pub fn process_of(file: &Path) -> Option<MountInfo> {
    Seen::of(file).process
}

/// Has the process of `mount` make the mount that `plan` asks for.
fn join(mount: &MountInfo, plan: &Plan) -> Result<()> {
    let file = plan.source.path().display();
    if plan.request.foreground {
        let what = format!("{file}: process {} has it open, and a further mount is made by that process", mount.pid);
        return Err(Failure::new(Code::Busy, what).hint("leave out --foreground"));
    }
    if plan.request.durability.is_some() {
        let what = format!("{file}: mounted on {} already, whose durability is that of every mount", mount.mountpoint);
        return Err(Failure::new(Code::Busy, what).hint("leave out --durability, or unmount it first"));
    }
    if let Some(failure) = volume_work::other_data(plan.source.path(), plan.request.data.as_deref())? {
        return Err(failure);
    }
    ask(mount, &Wish::of(plan))?;
    // Made in that process's view of the machine, which may be another one.
    if mountpoint::find(&plan.mountpoint).is_some_and(|entry| entry.fs_type == mountpoint::FS_TYPE) {
        return Ok(());
    }
    let what = format!("{}: mounted where process {} sees it, which you do not", plan.mountpoint.display(), mount.pid);
    Err(Failure::new(Code::Failure, what).hint("it runs in another mount namespace: unmount and mount it there"))
}

/// Has the process of `mount` make a further mount.
fn ask(mount: &MountInfo, wish: &Wish) -> Result<()> {
    let args = serde_json::to_value(wish).map_err(|e| Failure::new(Code::Failure, e))?;
    let registry = Registry::of_this_user();
    let mut waiting = || registry.ping(mount);
    match registry.call_patiently(mount, MOUNT_VERB, &args, &mut waiting) {
        Ok(_) => Ok(()),
        // It went before it was asked.
        Err(e @ ControlError::NotAMount(_)) => Err(answered(&e).passing()),
        Err(e) => {
            let failure = answered(&e);
            let of = |branch| detached(Path::new(mount.upper.as_ref().unwrap_or(&mount.source)), mount.pid, branch);
            let ending = branch_of(&wish.part).filter(|_| failure.code() == Code::Busy).and_then(of);
            Err(ending.unwrap_or(failure))
        }
    }
}

/// What to say if a branch of the volume in `file` is in use by a mount of process `pid` that is not in its place any more:
/// nobody is told to work there.
fn detached(file: &Path, pid: u32, branch: &str) -> Option<Failure> {
    let mounts = live::of_source(file).into_iter().filter(|mount| mount.pid == pid && !mount.hidden);
    let mut of_branch = mounts.filter(|mount| mount.upper.is_some() || mount.branch.as_deref() == Some(branch));
    let found = of_branch.find(|mount| !mount.is_attached())?;
    Some(live::in_the_way(file, &found, "mounted", ""))
}

/// A session of the process.
struct Live {
    wish: Wish,
    session: SessionHandle,
    engine: Weak<Engine>,
    /// Of a branch.
    snapshots: Option<SnapshotsDir>,
    overlay: Option<Overlay>,
}

/// What a session shows.
struct Shown {
    store: Arc<dyn Store>,
    snapshots: Option<SnapshotsDir>,
    overlay: Option<Overlay>,
}

impl Live {
    /// A snapshot came or went.
    fn tell(&self, name: FileName<'_>) {
        if self.snapshots.is_none() {
            return;
        }
        if let Some(engine) = self.engine.upgrade() {
            engine.entry_changed_below(SNAPSHOTS_INO, name);
        }
        self.session.forget_entry(SNAPSHOTS_INO, name);
    }
}

#[derive(Default)]
struct Sessions {
    next: u64,
    live: BTreeMap<u64, Live>,
    /// Threads of sessions, and mounts that are being made.
    running: usize,
    /// Of these, mounts that are being made, for the first time or again.
    making: usize,
    /// Nothing more is mounted: the process is to end.
    over: bool,
    /// What one of them failed with at its end.
    failed: Option<Failure>,
}

/// The process that has a volume open.
pub struct Process {
    file: PathBuf,
    volume: Volume,
    /// When what every mount of it changes is safe from a power cut.
    durability: Durability,
    /// What the volume is the upper of.
    lower: Option<Lower>,
    log: Option<PathBuf>,
    /// Of all engines, as the first mount was given it.
    memory: Arc<Budget>,
    sessions: Mutex<Sessions>,
    changed: Condvar,
}

/// The place of one session in its process.
pub struct Place {
    process: Weak<Process>,
    id: u64,
}

impl Place {
    /// Answers a request that is about the whole volume.
    pub fn call(&self, verb: &str, args: &Value) -> Option<Result<Value, ControlError>> {
        if ![MOUNT_VERB, VOLUME_VERB, DIFF_VERB].contains(&verb) {
            return None;
        }
        let Some(process) = self.process.upgrade() else {
            let message = "the process is ending".to_owned();
            return Some(Err(ControlError::Answered { kind: ENDING.to_owned(), message }));
        };
        let told = |failure: Failure| {
            let kind = if failure.passes() == Some(true) { ENDING.to_owned() } else { failure.code().word() };
            ControlError::Answered { kind, message: failure.text() }
        };
        Some(match verb {
            MOUNT_VERB => process.join(args).map(|()| Value::Null).map_err(told),
            DIFF_VERB => process.diff(self.id).map_err(told),
            _ => process.work(args).map_err(told),
        })
    }

    /// Waits until the session's store is given back; whether other sessions go on. If not, nothing is mounted any more: whoever
    /// asked waits for the end of the process, which another mount would put off.
    pub fn left(&self) -> bool {
        let Some(process) = self.process.upgrade() else { return false };
        process.await_release(self.id);
        let mut sessions = process.sessions.lock();
        let goes_on = sessions.making > 0 || sessions.live.keys().any(|&id| id != self.id);
        sessions.over |= !goes_on;
        goes_on
    }
}

impl Process {
    /// Serves the first mount, and all that join, until the last one has ended.
    fn run(
        plan: &Plan,
        file: PathBuf,
        volume: Volume,
        lower: Option<Lower>,
        readiness: Option<&mut Option<Readiness>>,
    ) -> Result<()> {
        let signals = Signals::install().map_err(|e| Failure::io("signals", &e))?;
        let log = plan.log().filter(|_| !plan.request.foreground);
        let wish = Wish { overlay: lower.is_some(), ..Wish::of(plan) };
        let memory = Arc::new(Budget::new(wish.engine_options(&wish.options).memory_bytes));
        let (sessions, changed) = (Mutex::default(), Condvar::new());
        let durability = plan.request.durability.unwrap_or(volume.info().durability);
        let process = Process { file, volume, durability, lower, log, memory, sessions, changed };
        let process = Arc::new(process);
        process.mount(&wish)?;
        process.obey(signals).map_err(|e| Failure::io("signals", &e))?;
        if let Some(waiting) = readiness.and_then(Option::take) {
            waiting.ready().map_err(|e| Failure::io("daemon", &e))?;
        }
        let failed = {
            let mut sessions = process.sessions.lock();
            while sessions.running > 0 {
                process.changed.wait(&mut sessions);
            }
            sessions.over = true;
            sessions.failed.take()
        };
        let closed = process.volume.close().map_err(|e| open::volume::failure(&process.file, &e));
        tracing::info!("{} is closed", process.file.display());
        match failed {
            Some(failure) => Err(failure),
            None => closed,
        }
    }

    /// Ends every session at a signal, as each does by itself: a second one does not wait, a third one kills.
    fn obey(self: &Arc<Process>, mut signals: Signals) -> std::io::Result<()> {
        let process = Arc::downgrade(self);
        std::thread::Builder::new().name("adit-signals".into()).spawn(move || {
            while signals.wait().is_ok() {
                let Some(process) = process.upgrade() else { return };
                let mut sessions = process.sessions.lock();
                sessions.over = true;
                sessions.live.values().for_each(|live| live.session.end());
            }
        })?;
        Ok(())
    }

    /// A request of another process for a further mount.
    fn join(self: &Arc<Process>, args: &Value) -> Result<()> {
        let wish = Wish::deserialize(args).map_err(|e| Failure::usage(format!("not a mount: {e}")))?;
        self.mount(&wish)
    }

    /// Makes a mount, with a thread that waits for its end.
    fn mount(self: &Arc<Process>, wish: &Wish) -> Result<()> {
        let id = {
            let mut sessions = self.sessions.lock();
            if sessions.over {
                let what = format!("{}: the process that has it open is ending", self.file.display());
                return Err(Failure::new(Code::Busy, what).hint("try again").passing());
            }
            sessions.running += 1;
            sessions.making += 1;
            sessions.next += 1;
            sessions.next
        };
        let begun = self.begin(id, wish);
        let mut sessions = self.sessions.lock();
        sessions.making -= 1;
        if begun.is_err() {
            sessions.running -= 1;
            self.changed.notify_all();
        }
        begun
    }

    fn begin(self: &Arc<Process>, id: u64, wish: &Wish) -> Result<()> {
        let mut options = wish.options.clone();
        let Shown { store, snapshots, overlay } = self.shown(wish)?;
        options.read_only |= self.volume.is_read_only() || branch_of(&wish.part).is_none();
        let mut engine = wish.engine_options(&options);
        // The threads of the first mount are left out of the whole already.
        let threads_bytes = if id == FIRST { 0 } else { serve::threads_bytes(&options) };
        engine.shared_memory = Some((self.memory.clone(), threads_bytes));
        // What the kernel holds is on no disk: with `sync`, each write comes here before it is acknowledged.
        engine.kernel_writeback = !options.read_only && self.durability != Durability::Sync;
        let file = self.file.display().to_string();
        let (source, part, upper) = match self.lower.as_ref().filter(|_| wish.overlay) {
            Some(lower) => (lower.source.clone(), lower.snapshot.clone().map(Part::Snapshot), Some(file)),
            None => (file, Some(wish.part.clone()), None),
        };
        let about = About {
            source,
            exclusive: true,
            why_read_only: None,
            log: self.log.clone(),
            began: Instant::now(),
            part,
            upper,
            hidden: wish.lock.is_some(),
        };
        let place = Place { process: Arc::downgrade(self), id };
        let served = serve::serve(store, &wish.mountpoint(), &options, engine, about, Some(place))?;
        let live = Live { wish: wish.clone(), session: served.handle(), engine: served.engine(), snapshots, overlay };
        if let Some(lock) = &wish.lock {
            verb::end_with(OsString::from_vec(lock.clone()).into(), served.handle())
                .map_err(|e| Failure::io("mount", &e))?;
        }
        self.sessions.lock().live.insert(id, live);
        let (process, idle) = (self.clone(), wish.idle);
        let waiting = std::thread::Builder::new().name("adit-mount".into());
        let spawned = waiting.spawn(move || process.wait(id, served, idle));
        spawned.map(drop).map_err(|e| {
            // The session went with the closure, and is detached.
            self.sessions.lock().live.remove(&id);
            Failure::io("mount", &e)
        })
    }

    /// What the session of `wish` shows.
    fn shown(&self, wish: &Wish) -> Result<Shown> {
        let store = self.store(wish)?;
        if wish.overlay {
            let lower = self.lower.as_ref().ok_or_else(|| Failure::usage("not the process of an overlay"))?;
            let opened = overlay::settle_again(&store, lower)
                .and_then(|()| Overlay::open(lower.store.clone(), Arc::new(store), &lower.identity));
            let overlay = opened.map_err(|e| open::volume::failure(&self.file, &e))?;
            return Ok(Shown { store: Arc::new(overlay.clone()), snapshots: None, overlay: Some(overlay) });
        }
        if branch_of(&wish.part).is_none() {
            return Ok(Shown { store: Arc::new(store), snapshots: None, overlay: None });
        }
        let dir = SnapshotsDir::new(store);
        Ok(Shown { store: Arc::new(dir.clone()), snapshots: Some(dir), overlay: None })
    }

    /// What the upper of a session holds.
    fn diff(&self, id: u64) -> Result<Value> {
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

    /// What `wish` wants to see.
    fn store(&self, wish: &Wish) -> Result<VolumeStore> {
        let fail = |e: FsError| open::volume::failure(&self.file, &e);
        let Some(branch) = branch_of(&wish.part) else {
            let Part::Snapshot(name) = &wish.part else { return Err(fail(ErrorKind::InvalidInput.into())) };
            return self.volume.snapshot(name).map_err(fail);
        };
        if self.volume.is_read_only() && !wish.options.read_only {
            let what =
                format!("{}: a mount with --read-only has it open, so nothing can be changed", self.file.display());
            let hint = "end that mount (`adit mounts` lists it), or say --read-only";
            // The first mount of a process on a read-only medium is not refused: it says why it is read-only.
            if self.sessions.lock().live.values().next().is_some() {
                return Err(Failure::new(Code::Busy, what).hint(hint));
            }
        }
        let store = self.volume.branch(branch).map_err(|e| match self.mountpoint_of(branch) {
            Some(at) if e.kind() == ErrorKind::Busy => {
                Failure::new(Code::Busy, format!("{}: branch {branch} is mounted on {at}", self.file.display()))
                    .hint(format!("work in {at}, or mount a snapshot or another branch of it"))
            }
            _ => fail(e),
        })?;
        // A verb that wants to change something has asked before.
        if !(wish.overlay || wish.options.read_only || self.volume.is_read_only() || wish.lock.is_some()) {
            open::volume::refuse_upper(&self.file, &self.volume, branch)?;
        }
        Ok(store)
    }

    /// Waits until the store of a session that has ended is given back; false if that takes too long.
    fn await_release(&self, id: u64) -> bool {
        let mut sessions = self.sessions.lock();
        let deadline = Instant::now() + RELEASE_PATIENCE;
        while sessions.live.contains_key(&id) {
            if self.changed.wait_until(&mut sessions, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    fn mountpoint_of(&self, branch: &str) -> Option<String> {
        let sessions = self.sessions.lock();
        let live = sessions.live.values().find(|live| branch_of(&live.wish.part) == Some(branch))?;
        Some(live.session.mountpoint().display().to_string())
    }

    /// A session's thread.
    fn wait(self: Arc<Process>, id: u64, served: Served, idle: Option<Duration>) {
        let ended = served.wait(Until { signals: None, idle }, || {
            self.sessions.lock().live.remove(&id);
            self.changed.notify_all();
        });
        let mut sessions = self.sessions.lock();
        if let Err(failure) = ended {
            tracing::error!("{}", failure.text());
            sessions.failed.get_or_insert(failure);
        }
        sessions.running -= 1;
        drop(sessions);
        self.changed.notify_all();
    }

    /// A request of another process for something else.
    fn work(self: &Arc<Process>, args: &Value) -> Result<Value> {
        let asked = Asked::deserialize(args).map_err(|e| Failure::usage(format!("not a request: {e}")))?;
        match &asked {
            Asked::Restore { branch, name, path } => self.restore(&asked, branch, name, path),
            Asked::Snapshot { name, .. } => self.perform(&asked).inspect(|_| self.tell(name)),
            Asked::DeleteSnapshot { name } => {
                // Out of use first, on every mount.
                let _retired = self.retire(name)?;
                self.perform(&asked).inspect(|_| self.tell(name))
            }
            Asked::Diff { old, new } if self.lower.is_some() => self.differences(old, new),
            _ => self.perform(&asked),
        }
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
            if let Some(overlay) = sessions.live.values().find_map(|live| live.overlay.clone()) {
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

    /// Does `what` while `branch` is not mounted; if it was, it is mounted again after that.
    ///
    /// A new mount knows nothing of what was there before.
    fn apart(self: &Arc<Process>, branch: &str, what: impl FnOnce() -> Result<Value>) -> Result<Value> {
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

    /// Lets go of a snapshot wherever `.snapshots` shows it, for as long as the answer lives.
    fn retire(&self, name: &str) -> Result<Vec<Retired>> {
        let shown: Vec<_> = {
            let sessions = self.sessions.lock();
            let live = sessions.live.values();
            live.filter_map(|live| Some((live.snapshots.clone()?, live.session.mountpoint().display().to_string())))
                .collect()
        };
        let retire = |(dir, at): (SnapshotsDir, String)| {
            dir.retire(name).map_err(|e| {
                let failure = Failure::fs(self.file.display(), &e);
                failure.hint(format!("close what has files open in {at}/{SNAPSHOTS_NAME}/{name}"))
            })
        };
        shown.into_iter().map(retire).collect()
    }

    /// A snapshot came or went: what the mounts know of its name is void.
    fn tell(&self, name: &str) {
        let Ok(name) = FileName::new(name.as_bytes()) else { return };
        let sessions = self.sessions.lock();
        sessions.live.values().for_each(|live| live.tell(name));
    }

    fn still_in_use(&self, branch: &str) -> Failure {
        let what = format!("{}: branch {branch} is unmounted, but requests are still under way", self.file.display());
        Failure::new(Code::Busy, what).hint("try again")
    }

    fn perform(&self, asked: &Asked) -> Result<Value> {
        let mut flush = |branch: &str| self.flush(branch);
        volume_work::perform(&self.volume, asked, &mut flush).map_err(|e| {
            let failure = open::volume::failure(&self.file, &e);
            let at = asked.branch().and_then(|branch| self.mountpoint_of(branch));
            match at {
                Some(at) if e.kind() == ErrorKind::Busy => failure.hint(format!("unmount it first: adit umount {at}")),
                None if e.kind() == ErrorKind::Busy => failure.hint("unmount it first; `adit mounts` lists where"),
                _ => failure,
            }
        })
    }

    /// Has the kernel hand over what it holds of the mount of `branch`, if there is one.
    fn flush(&self, branch: &str) -> Result<(), FsError> {
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
