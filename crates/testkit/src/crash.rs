//! Media in memory that lose power, or whose process is killed, at any call.
//!
//! A [`CrashWorld`] holds several roots (a vault's folder and the journal's, say) on one timeline. [`CrashDir`] is a
//! root as a [`HostDir`](adit_core::media::HostDir), and [`CrashBlockFile`] a file in it as a
//! [`BlockFile`](adit_core::media::BlockFile). A test lets a store work, stops the world after some number of
//! calls, and opens what [`CrashWorld::crash`] says is left. [`crash_everywhere`] does so for every number, or for some.
//!
//! **Files.** The durable image, plus every version of each 512-byte sector since the last completed sync. At a power
//! cut each sector takes any of them, and the length likewise, on its own. A failed sync leaves the versions in doubt
//! until the sector is written again, and the next sync succeeds. Punching is an unsynced write of zeros. Shrinking
//! zeroes the rest of the last 4 KiB page as an unsynced write of its own.
//!
//! **Names.** [`Mode::Journalled`]: the namespace operations of each root persist as a prefix. [`Mode::Adversarial`]:
//! each persists on its own until the sync of that directory; a rename within one directory, an exchange and the move
//! of a directory as a whole; the move of a file as old, new or both. Moves of directories between directories keep
//! their order, since out of order they make loops. Syncing a file never makes its name durable.
//!
//! **Kill.** [`Mode::Kill`]: what was completed stays; of the call in flight in each thread, a write leaves a prefix,
//! and any other has happened or not.
//!
//! Not modelled: link counts other than by names, access times, symbolic links (the seam cannot make them).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::{Condvar, Mutex};

use crate::rng::{Rng, scaled};
use crate::tree::NodeId;

mod dir;
mod disk;
mod file;
mod image;
mod names;
#[cfg(test)]
mod tests;

pub use dir::{CrashBlockFile, CrashDir};
use disk::{Call, Disk, Reply};

/// What a crash does to what was not synced. See the module's notes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The process dies, the machine goes on.
    Kill,
    /// Power is cut; the filesystem journals its namespace.
    Journalled,
    /// Power is cut; every directory entry is on its own.
    Adversarial,
}

/// Which of the unsynced changes a crash leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// None of them.
    None,
    /// All of them.
    All,
    /// All but the one of this index, in the order of their making; see [`CrashWorld::pending`].
    AllButOne(usize),
    /// All but the lengths of files, which stay as they were.
    AllButLengths,
    /// Only the last.
    OnlyLast,
    /// Names, lengths, and of each write the first sector.
    HeadersOnly,
    /// Each on its own, by chance.
    Random,
}

/// A kind of sync call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum SyncKind {
    /// `HostFile::sync(true)`.
    FileData,
    /// `HostFile::sync(false)`.
    File,
    /// `HostDir::sync` of a directory.
    Dir,
    /// `HostDir::sync` of everything.
    All,
    /// The durability of `HostDir::publish`.
    Publish,
}

/// A sync call, for [`CrashWorld::omit_syncs`].
#[derive(Clone, Debug)]
pub struct SyncCall {
    /// Its kind.
    pub kind: SyncKind,
    /// The root's name.
    pub root: Arc<str>,
    /// The file or directory in that root, by the path under which it was opened.
    pub path: PathBuf,
    /// How many sync calls the world saw before it.
    pub nth: u64,
}

/// Most patterns of [`Pattern::AllButOne`] at one point.
const ALL_BUT_ONE_MAX: usize = 24;

type Omission = Box<dyn Fn(&SyncCall) -> bool + Send>;

struct State {
    disk: Disk,
    calls: u64,
    syncs: u64,
    stop_at: Option<u64>,
    dead: bool,
    /// Threads that met the dead world, each with the call that it was in.
    in_flight: Vec<(ThreadId, Option<Call>)>,
    omit: Option<Omission>,
    hold: Option<Omission>,
    fail_sync_at: Option<u64>,
    trace: Option<Vec<String>>,
    /// Who has a file for itself, and how many handles there were.
    locks: BTreeMap<NodeId, u64>,
    handles: u64,
}

/// Several roots on one timeline. Clones share it; [`fork`](CrashWorld::fork) copies it.
#[derive(Clone)]
pub struct CrashWorld {
    state: Arc<Mutex<State>>,
    released: Arc<Condvar>,
}

fn dead() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl CrashWorld {
    /// A world without roots.
    pub fn new(mode: Mode) -> Self {
        CrashWorld::over(Disk::new(mode))
    }

    fn over(disk: Disk) -> Self {
        let state = State {
            disk,
            calls: 0,
            syncs: 0,
            stop_at: None,
            dead: false,
            in_flight: Vec::new(),
            omit: None,
            hold: None,
            fail_sync_at: None,
            trace: None,
            locks: BTreeMap::new(),
            handles: 0,
        };
        CrashWorld { state: Arc::new(Mutex::new(state)), released: Arc::default() }
    }

    /// The root `name`, which is made, durable and empty, if it is new.
    pub fn dir(&self, name: &str) -> CrashDir {
        let id = self.state.lock().disk.root(name);
        CrashDir::new(self.clone(), Arc::from(name), id)
    }

    /// A copy with all that is pending. Counters and switches start anew, and open handles stay with the original.
    pub fn fork(&self) -> CrashWorld {
        CrashWorld::over(self.state.lock().disk.clone())
    }

    /// Makes all of it durable, without a call: the end of a test's preparations.
    pub fn settle(&self) {
        self.state.lock().disk.settle();
    }

    /// Changes what later crashes do.
    pub fn set_mode(&self, mode: Mode) {
        self.state.lock().disk.mode = mode;
    }

    /// What crashes do.
    pub fn mode(&self) -> Mode {
        self.state.lock().disk.mode
    }

    /// Lets `calls` more calls that change or sync something complete; whatever comes then fails with `EIO`, reads
    /// too, as if the process were dead.
    pub fn stop_after(&self, calls: u64) {
        let mut state = self.state.lock();
        state.stop_at = Some(state.calls + calls);
    }

    /// Whether a call met the stop.
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Power cuts that this world, or what it was left of, has been through.
    fn power_cuts(&self) -> u64 {
        self.state.lock().disk.power_cuts
    }

    /// Calls so far that changed or synced something, failed ones counted.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Sync calls so far, durable publishings counted.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Unsynced changes, the calls in flight counted: how many [`Pattern::AllButOne`] there are.
    pub fn pending(&self) -> usize {
        let state = self.state.lock();
        image::with_in_flight(&state.disk, calls_in_flight(&state)).pending().len()
    }

    /// Whether a file's length changed without a sync.
    fn has_new_lengths(&self) -> bool {
        let state = self.state.lock();
        !image::with_in_flight(&state.disk, calls_in_flight(&state)).lengths().is_empty()
    }

    /// Leaves out the sync calls for which `omit` says so: they return success and do nothing.
    pub fn omit_syncs(&self, omit: impl Fn(&SyncCall) -> bool + Send + 'static) {
        self.state.lock().omit = Some(Box::new(omit));
    }

    /// Makes the sync calls for which `hold` says so wait, as on a slow disk, until [`release`](CrashWorld::release).
    /// Meanwhile they have not happened, and are no calls in flight.
    pub fn hold_syncs(&self, hold: impl Fn(&SyncCall) -> bool + Send + 'static) {
        self.state.lock().hold = Some(Box::new(hold));
    }

    /// Lets the sync calls go on that wait, and holds no more of them.
    pub fn release(&self) {
        self.state.lock().hold = None;
        self.released.notify_all();
    }

    /// Makes the sync call that `after` others precede from now on fail with `EIO`.
    pub fn fail_sync_after(&self, after: u64) {
        let mut state = self.state.lock();
        state.fail_sync_at = Some(state.syncs + after);
    }

    /// Starts to note each call as a line.
    pub fn start_trace(&self) {
        self.state.lock().trace = Some(Vec::new());
    }

    /// The lines noted so far.
    pub fn trace(&self) -> Vec<String> {
        self.state.lock().trace.clone().unwrap_or_default()
    }

    /// What is left after a crash now: a world of its own, all of it durable. This one stays as it is, so that one
    /// point can be tried with many patterns.
    pub fn crash(&self, pattern: Pattern, rng: &mut Rng) -> CrashWorld {
        let state = self.state.lock();
        CrashWorld::over(image::survivors(&state.disk, calls_in_flight(&state), pattern, rng))
    }

    /// Runs a call that changes or syncs something.
    fn call(&self, call: Call, sync: Option<SyncCall>) -> io::Result<Reply> {
        let mut state = self.state.lock();
        if let Some(sync) = &sync
            && state.hold.as_ref().is_some_and(|hold| hold(sync))
        {
            self.released.wait_while(&mut state, |state| state.hold.is_some());
        }
        let state = &mut *state;
        state.dead |= state.stop_at.is_some_and(|at| state.calls >= at);
        if state.dead {
            state.meet_death(Some(call));
            return Err(dead());
        }
        state.calls += 1;
        if let Some(trace) = &mut state.trace {
            trace.push(format!("{:4} {call:?}", state.calls));
        }
        let Some(mut sync) = sync else { return state.disk.apply(&call) };
        sync.nth = state.syncs;
        state.syncs += 1;
        if state.omit.as_ref().is_some_and(|omit| omit(&sync)) {
            return match call {
                Call::Publish { .. } => state.disk.apply(&call.without_sync()),
                _ => Ok(Reply::Done),
            };
        }
        if state.fail_sync_at == Some(sync.nth) {
            state.disk.fail_sync(&call);
            return Err(dead());
        }
        state.disk.apply(&call)
    }

    /// A number that no other handle of this world has.
    fn new_handle(&self) -> u64 {
        let mut state = self.state.lock();
        state.handles += 1;
        state.handles
    }

    /// Whether `handle` has the file `id` for itself now.
    fn lock(&self, id: NodeId, handle: u64) -> bool {
        *self.state.lock().locks.entry(id).or_insert(handle) == handle
    }

    fn unlock(&self, id: NodeId, handle: u64) {
        let mut state = self.state.lock();
        if state.locks.get(&id) == Some(&handle) {
            state.locks.remove(&id);
        }
    }

    /// Runs something that changes nothing.
    fn look<T>(&self, look: impl FnOnce(&Disk) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        if state.dead {
            state.meet_death(None);
            return Err(dead());
        }
        look(&state.disk)
    }
}

impl State {
    /// Notes the first call of this thread after the end: that one was in flight. What follows it never happened.
    fn meet_death(&mut self, call: Option<Call>) {
        let thread = std::thread::current().id();
        if !self.in_flight.iter().any(|(t, _)| *t == thread) {
            self.in_flight.push((thread, call));
        }
    }
}

fn calls_in_flight(state: &State) -> Vec<&Call> {
    state.in_flight.iter().filter_map(|(_, call)| call.as_ref()).collect()
}

/// How much [`crash_everywhere`] tries.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// Most points of the timeline, [`scaled`]; if there are more, some of them by chance, the first and the last always.
    pub points_max: usize,
    /// Random patterns at each point, besides the fixed ones.
    pub randoms: usize,
}

/// Where and how a crash came.
#[derive(Clone, Copy, Debug)]
pub struct CrashPoint {
    /// Calls that completed.
    pub calls: u64,
    /// What was left.
    pub pattern: Pattern,
    /// Whether the work was through.
    pub finished: bool,
}

/// Runs `work` on copies of `base` that stop after 0, 1, 2, … calls, until it gets through, or after some of these numbers
/// where there are more than `plan` allows. Hands what each pattern leaves to `check`, with what `work` returned (what it
/// was promised, say) and the point for messages.
///
/// `work` must take errors as they come: the world is dead. To crash again during recovery, call this in `check`.
pub fn crash_everywhere<T>(
    base: &CrashWorld,
    plan: &CrashPlan,
    rng: &mut Rng,
    mut work: impl FnMut(&CrashWorld) -> T,
    mut check: impl FnMut(&T, CrashPoint, CrashWorld),
) {
    let whole = base.fork();
    work(&whole);
    let calls = whole.calls();
    for stop in points(calls, scaled(plan.points_max), rng) {
        let world = base.fork();
        world.stop_after(stop);
        let promised = work(&world);
        let finished = !world.is_dead();
        for pattern in patterns(&world, plan.randoms) {
            let point = CrashPoint { calls: stop, pattern, finished };
            check(&promised, point, world.crash(pattern, rng));
        }
    }
}

fn points(calls: u64, points_max: usize, rng: &mut Rng) -> BTreeSet<u64> {
    if calls < points_max as u64 {
        return (0..=calls).collect();
    }
    let mut points = BTreeSet::from([0, calls]);
    while points.len() < points_max.max(2) {
        points.insert(rng.below(calls));
    }
    points
}

/// The patterns worth trying on `world`, the fixed ones first.
pub fn patterns(world: &CrashWorld, randoms: usize) -> Vec<Pattern> {
    let pending = world.pending();
    let mut patterns = vec![Pattern::None];
    if pending > 0 {
        patterns.push(Pattern::All);
        if world.mode() != Mode::Kill {
            patterns.extend([Pattern::OnlyLast, Pattern::HeadersOnly]);
            patterns.extend(world.has_new_lengths().then_some(Pattern::AllButLengths));
            let step = pending.div_ceil(ALL_BUT_ONE_MAX);
            patterns.extend((0..pending).step_by(step).map(Pattern::AllButOne));
        }
        patterns.extend(std::iter::repeat_n(Pattern::Random, randoms));
    }
    patterns
}
