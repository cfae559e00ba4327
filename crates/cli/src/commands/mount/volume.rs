//! The mounts of a volume: one process has its file, and every mount of it is a session of that process.
//!
//! `adit mount` finds the process in the registry and asks it for a further mount ([`Wish`]), or becomes that process
//! ([`Process`]), which lives until its last mount ends. Two that begin at once are told apart by the lock on the file: the
//! later one looks into the registry again.

pub mod commit;
mod restore;
pub mod verb;
mod work;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use adit_core::engine::{Engine, EngineOptions};
use adit_core::memory::Budget;
use adit_core::overlay::Overlay;
use adit_core::process::ProcessNumber;
use adit_core::store::Store;
use adit_core::types::Access;
use adit_core::{ErrorKind, FsError};
use adit_manifest::store::ManifestStore;
use adit_media::RoomyFile;
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::daemon::Readiness;
use adit_mount::{MountOptions, SessionHandle, Signals, Until, mountpoint};
use adit_volume::tree::MAIN;
use adit_volume::volume::{Durability, OpenOptions};
use adit_volume::{SnapshotsDir, Volume, VolumeStore};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::overlay::{self, Lower};
use super::serve::{self, About, Served};
use super::wrong::Watching;
use super::{Plan, answered, start, tell_ready};
use crate::args::low::GlobalArgs;
use crate::args::mount_options::{Part, Timeouts};
use crate::exit_code::{Code, ENDING};
use crate::failure::{Failure, Result};
use crate::open::turn::{self, Seen};
use crate::process::Inherited;
use crate::{live, open, volume_work};

/// The request for a further mount.
const MOUNT_VERB: &str = "mount";
/// The request for something else that a volume can do.
pub const VOLUME_VERB: &str = "volume";
/// The request for what the upper of an overlay holds.
pub const DIFF_VERB: &str = "diff";

/// The filesystem type of a place that is mounted at its first access.
const AUTOMOUNT: &str = "autofs";

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

    /// `is_remote`: over a manifest, whose content is fetched within the memory of this process.
    fn engine_options(&self, options: &MountOptions, is_remote: bool) -> EngineOptions {
        let fetching = if is_remote { remote_memory(self.memory_bytes) } else { 0 };
        let memory_bytes = self.memory_bytes - volume_memory(self.memory_bytes) - fetching;
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
            None => open_file(&plan, &file, access, None).map(Some),
        })?;
        if let Some(volume) = volume {
            return Process::run(&plan, file, volume, None, (readiness, None));
        }
        tell_ready(readiness)
    })
}

/// Mounts the volume in `upper` on top of what `lower` opens, which it does in the process of the mount; it makes the volume if that is
/// not there.
pub(super) fn mount_overlay(
    plan: Plan,
    global: &GlobalArgs,
    inherited: Inherited,
    upper: PathBuf,
    lower: impl FnOnce(&Plan) -> Result<(Lower, bool)>,
) -> Result<()> {
    start(plan, global, inherited, |plan, readiness| {
        let (lower, is_new) = lower(&plan)?;
        let access = access(&plan, &upper);
        let volume = turn::take(&upper, |_| open_file(&plan, &upper, access, lower.room_beside(&upper)))?;
        // From here on it is this process's alone.
        let unused = is_new.then(|| UpperDraft(Some(upper.clone())));
        overlay::settle(&upper, &volume, &lower, &plan.request)?;
        Process::run(&plan, upper, volume, Some(lower), (readiness, unused))
    })
}

/// An upper that was made for a mount that is not there yet. It goes with this, or the next try would take it for changes.
struct UpperDraft(Option<PathBuf>);

impl UpperDraft {
    /// The mount is there.
    fn stays(mut self) {
        self.0 = None;
    }
}

impl Drop for UpperDraft {
    fn drop(&mut self) {
        let Some(file) = &self.0 else { return };
        match std::fs::remove_file(file) {
            Ok(()) => open::remark(&format!("{}: removed again: the mount has failed", file.display())),
            Err(e) => tracing::warn!(error = %e, "{}: made for a mount that has failed, and left", file.display()),
        }
    }
}

fn access(plan: &Plan, file: &Path) -> Access {
    open::volume::access_for_mount(file, plan.request.options.read_only && plan.request.part == Part::Live)
}

/// Opens the volume of a mount. Where its disk is full, `beside` lets go of what it has fetched.
fn open_file(plan: &Plan, file: &Path, access: Access, beside: Option<ManifestStore>) -> Result<Volume> {
    let request = &plan.request;
    let options = OpenOptions {
        durability: request.durability,
        memory_bytes: volume_memory(request.memory_bytes),
        ..OpenOptions::new(access)
    };
    // What an overlay's mount is told is where the data of the volume below is.
    let data = request.data.as_deref().filter(|_| plan.source.path() == file);
    open::volume::opened_through(file, data, &options, &|file| match beside.clone() {
        Some(store) => {
            let of = store.clone();
            Arc::new(RoomyFile::new(file, move |bytes| store.make_room_for(bytes), move || of.evictable_bytes()))
        }
        None => Arc::new(file),
    })
}

/// How much of the memory of a mount is the volume's; its engine has the rest.
fn volume_memory(memory_bytes: u64) -> u64 {
    memory_bytes / 4
}

/// What of it is for content of a manifest that is on its way, and for who waits for it.
fn remote_memory(memory_bytes: u64) -> u64 {
    memory_bytes / 8 * 3
}

/// A mount of the process of this user that has the volume in `file` open.
pub fn process_of(file: &Path) -> Option<MountInfo> {
    Seen::of(file).process
}

/// Has the process of `mount` make the mount that `plan` asks for.
fn join(mount: &MountInfo, plan: &Plan) -> Result<()> {
    let file = plan.source.path().display();
    if mountpoint::find(&plan.mountpoint).is_some_and(|entry| entry.fs_type == AUTOMOUNT) {
        // The automounter holds off all processes but those of the group that it started.
        let what = format!("{file}: {} has it open, and cannot make a mount on demand", mount.process());
        return Err(Failure::new(Code::Busy, what)
            .hint(format!("leave out x-systemd.automount for {}", plan.mountpoint.display())));
    }
    if plan.request.foreground {
        let what = format!("{file}: {} has it open, and a further mount is made by that process", mount.process());
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
    let what = format!("{}: mounted where {} sees it, which you do not", plan.mountpoint.display(), mount.process());
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
            let of = |branch| detached(&mount.file_path(), mount.process(), branch);
            let ending = branch_of(&wish.part).filter(|_| failure.code() == Code::Busy).and_then(of);
            Err(ending.unwrap_or(failure))
        }
    }
}

/// The failure where a branch of the volume in `file` is in use by a mount of `process` that is not in its place any more:
/// nobody is told to work there.
fn detached(file: &Path, process: ProcessNumber, branch: &str) -> Option<Failure> {
    let mounts = live::of_source(file).into_iter().filter(|mount| mount.process() == process && !mount.hidden);
    let mut of_branch = mounts.filter(|mount| mount.upper.is_some() || mount.branch.as_deref() == Some(branch));
    let found = of_branch.find(|mount| !mount.is_attached())?;
    Some(live::in_the_way(file, &found, "mounted", ""))
}

/// A session of the process.
struct Live {
    wish: Wish,
    session: SessionHandle,
    engine: Weak<Engine>,
    /// The branch that is mounted, or that is the upper of the overlay; `None` for a snapshot.
    branch: Option<VolumeStore>,
    /// Of a branch.
    snapshots: Option<SnapshotsDir>,
    overlay: Option<Overlay>,
    /// Of an overlay on a manifest.
    _watching: Option<Watching>,
}

/// What a session shows.
struct Shown {
    store: Arc<dyn Store>,
    branch: Option<VolumeStore>,
    snapshots: Option<SnapshotsDir>,
    overlay: Option<Overlay>,
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
    /// Which file that was when it was opened; see [`MountInfo::file_id`].
    file_id: Option<(u64, u64)>,
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
    /// Held while a commit begins: what it made is in use after that.
    freezing: Mutex<()>,
}

/// The place of one session in its process.
pub struct Place {
    process: Weak<Process>,
    id: u64,
}

impl Place {
    /// Answers a request that is about the whole volume.
    pub fn call(&self, verb: &str, args: &Value) -> Option<Result<Value, ControlError>> {
        if ![MOUNT_VERB, VOLUME_VERB, DIFF_VERB, commit::VERB].contains(&verb) {
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
            commit::VERB => process.commit(self.id, args).map_err(told),
            _ => process.work(args).map_err(told),
        })
    }

    /// See [`MountInfo::file_id`].
    pub fn file_id(&self) -> Option<(u64, u64)> {
        self.process.upgrade()?.file_id
    }

    /// Why nothing can be changed any more, if an error of the volume's file ended that.
    pub fn failure(&self) -> Option<String> {
        self.process.upgrade()?.volume.failure().map(str::to_owned)
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
        (readiness, unused): (Option<&mut Option<Readiness>>, Option<UpperDraft>),
    ) -> Result<()> {
        let signals = Signals::install().map_err(|e| Failure::io("signals", &e))?;
        let log = plan.shown_log();
        let wish = Wish { overlay: lower.is_some(), ..Wish::of(plan) };
        let is_remote = lower.as_ref().is_some_and(|lower| lower.manifest().is_some());
        let memory = Arc::new(Budget::new(wish.engine_options(&wish.options, is_remote).memory_bytes));
        let (sessions, changed, freezing) = (Mutex::default(), Condvar::new(), Mutex::default());
        let durability = plan.request.durability.unwrap_or(volume.info().durability);
        let file_id = live::file_id(&file);
        let process = Process { file, file_id, volume, durability, lower, log, memory, sessions, changed, freezing };
        let process = Arc::new(process);
        process.sweep_commits();
        process.mount(&wish)?;
        unused.into_iter().for_each(UpperDraft::stays);
        process.obey(signals).map_err(|e| Failure::io("signals", &e))?;
        tell_ready(readiness)?;
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
        let Shown { store, branch, snapshots, overlay } = self.shown(wish)?;
        options.read_only |= self.volume.is_read_only() || branch_of(&wish.part).is_none();
        let is_remote = self.lower.as_ref().is_some_and(|lower| lower.manifest().is_some());
        let mut engine = wish.engine_options(&options, is_remote);
        // The threads of the first mount are left out of the whole already.
        let threads_bytes = if id == FIRST { 0 } else { serve::threads_bytes(&options) };
        engine.shared_memory = Some((self.memory.clone(), threads_bytes));
        // What the kernel holds is on no disk: with `sync`, each write comes here before it is acknowledged.
        engine.kernel_writeback = !options.read_only && self.durability != Durability::Sync;
        let file = self.file.clone();
        let lower = self.lower.as_ref().filter(|_| wish.overlay);
        let (source, part, upper) = match lower {
            Some(lower) => (lower.source.clone(), lower.snapshot.clone().map(Part::Snapshot), Some(file)),
            None => (file.display().to_string(), Some(wish.part.clone()), None),
        };
        let about = About {
            source,
            exclusive: true,
            why_read_only: None,
            log: self.log.clone(),
            began: Instant::now(),
            part,
            upper,
            content: lower.and_then(Lower::manifest).map(|(_, cas)| cas.clone()),
            hidden: wish.lock.is_some(),
            namespace: None,
            contents: lower.zip(overlay.as_ref()).and_then(|(lower, overlay)| lower.contents(overlay)),
        };
        let place = Place { process: Arc::downgrade(self), id };
        let served = serve::serve(store, &wish.mountpoint(), &options, engine, about, Some(place))?;
        let (session, engine) = (served.handle(), served.engine());
        let _watching = lower.and_then(|lower| lower.watch(session.clone(), engine.clone()));
        let live = Live { wish: wish.clone(), session, engine, branch, snapshots, overlay, _watching };
        if let Some(lock) = &wish.lock {
            verb::end_with(OsString::from_vec(lock.clone()).into(), served.handle())
                .map_err(|e| Failure::io("mount", &e))?;
        }
        self.sessions.lock().live.insert(id, live);
        let (process, wish) = (self.clone(), wish.clone());
        let waiting = std::thread::Builder::new().name("adit-mount".into());
        let spawned = waiting.spawn(move || process.wait(id, served, &wish));
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
            if branch_of(&wish.part).is_none() {
                return self.shown_frozen(store, lower);
            }
            let branch = Some(store.clone());
            let opened = overlay::settle_again(&store, lower)
                .and_then(|()| Overlay::open(lower.store.clone(), Arc::new(store), &lower.identity));
            let overlay = opened.map_err(|e| open::volume::failure(&self.file, &e))?;
            return Ok(Shown { store: Arc::new(overlay.clone()), branch, snapshots: None, overlay: Some(overlay) });
        }
        if branch_of(&wish.part).is_none() {
            return Ok(Shown { store: Arc::new(store), branch: None, snapshots: None, overlay: None });
        }
        let (branch, dir) = (Some(store.clone()), SnapshotsDir::new(store));
        Ok(Shown { store: Arc::new(dir.clone()), branch, snapshots: Some(dir), overlay: None })
    }

    /// What `wish` wants to see.
    fn store(&self, wish: &Wish) -> Result<VolumeStore> {
        let fail = |e: FsError| open::volume::failure(&self.file, &e);
        // A verb that wants to change something has asked before.
        let by_itself = wish.overlay || wish.options.read_only || wish.lock.is_some();
        let Some(branch) = branch_of(&wish.part) else {
            let Part::Snapshot(name) = &wish.part else { return Err(fail(ErrorKind::InvalidInput.into())) };
            if !by_itself {
                open::volume::refuse_snapshot_of_upper(&self.file, &self.volume, name)?;
            }
            return self.volume.snapshot(name).map_err(fail);
        };
        // Whatever else is in the way: it would be refused without that.
        if !by_itself {
            self.refuse_upper(branch)?;
        }
        if self.volume.is_read_only() && !wish.options.read_only {
            let what =
                format!("{}: a mount with --read-only has it open, so nothing can be changed", self.file.display());
            let hint = "end that mount (`adit mounts` lists it), or say --read-only";
            // The first mount of a process on a read-only medium is not refused: it says why it is read-only.
            if self.sessions.lock().live.values().next().is_some() {
                return Err(Failure::new(Code::Busy, what).hint(hint));
            }
        }
        self.volume.branch(branch).map_err(|e| match self.mountpoint_of(branch) {
            Some(at) if e.kind() == ErrorKind::Busy => {
                Failure::new(Code::Busy, format!("{}: branch {branch} is mounted on {at}", self.file.display()))
                    .hint(format!("work in {at}, or mount a snapshot or another branch of it"))
            }
            _ => fail(e),
        })
    }

    /// Refuses to change a branch by itself that is the upper layer of an overlay.
    fn refuse_upper(&self, branch: &str) -> Result<()> {
        // A medium that cannot be written has it read only, and says so.
        if self.volume.is_read_only() && self.sessions.lock().live.is_empty() {
            return Ok(());
        }
        let lower = open::volume::upper_of(&self.volume, branch).map_err(|e| open::volume::failure(&self.file, &e))?;
        let Some(lower) = lower else { return Ok(()) };
        let sessions = self.sessions.lock();
        let overlay = sessions.live.values().find(|live| live.overlay.is_some());
        let at = overlay.map(|live| live.session.mountpoint().display().to_string());
        Err(open::volume::is_upper(&self.file, &lower.text, at.as_deref()))
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
    fn wait(self: Arc<Process>, id: u64, served: Served, wish: &Wish) {
        let ended = served.wait(Until { signals: None, idle: wish.idle }, || {
            self.sessions.lock().live.remove(&id);
            self.changed.notify_all();
        });
        self.end_commit(id, wish);
        let mut sessions = self.sessions.lock();
        if let Err(failure) = ended {
            tracing::error!("{}", failure.text());
            sessions.failed.get_or_insert(failure);
        }
        sessions.running -= 1;
        drop(sessions);
        self.changed.notify_all();
    }
}
