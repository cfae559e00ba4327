//! The index of a mount: [`Kept`] walks the tree of an engine once, and follows its changes.
//!
//! One thread, `adit-index`, asks and writes. Reports of the engine only note what may have changed ([`Pending`]). That is asked for
//! soon, or at once when somebody wants to know something: [`Kept::view`] is answered when all that had been reported before the
//! question was asked for. Names are asked for while no rename is under way, so a directory that is at no name then is gone. That
//! lasts for milliseconds; everything else goes on meanwhile.
//!
//! When the differences from the base take too much memory, another thread makes a new base of them, and what comes meanwhile is
//! applied to that as well. Locks: the queue's, then the tree's; neither while the engine is asked.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::{Builder as Thread, JoinHandle};
use std::time::{Duration, Instant};

use adit_core::engine::{Engine, Listing, Observer};
use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{Attr, FileName, Ino};
use hashbrown::HashSet;
use parking_lot::{Condvar, Mutex};

use super::base::{Base, Contents, Facts};
use super::keeper::ENOUGH;
use super::make::{Lies, Making};
use super::noticed::{self, Noticed};
use super::queue::Pending;
use super::source::{Unread, over};
use super::view::View;
use super::{Change, LiveIndex};
use crate::progress::Progress;
use crate::segment::Segment;

/// How long a question to the store that is under way is waited for at the end.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// So often an answer is tried while changes are more than can be followed.
const ANSWERS_MAX: usize = 3;
/// How often those who wait for an answer are told how far it is.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// How an index is kept.
#[derive(Clone)]
pub struct KeptOptions {
    /// Where and how its base is made.
    pub making: Making,
    /// Memory that the differences from the base take before there is a new one, in bytes. Default 32 MiB.
    pub changes_bytes: u64,
    /// Most memory that the base takes, in bytes: its table of numbers, and all of it where it lies in memory. Default: none.
    pub base_bytes: u64,
    /// Directories that are shown as empty.
    pub closed: Vec<Ino>,
    /// The segment that the store answers from, where it does: it is the base, and nothing is walked. Default: none.
    pub namespace: Option<Namespace>,
    /// Who knows the content of files that nobody changed. Default: nobody.
    pub contents: Option<Arc<dyn Contents>>,
}

/// The segment that is all of a store's namespace, which never changes: the inode number of a node is the node's, from [`Ino::ROOT`] on.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// The segment, mapped.
    pub segment: Arc<Segment>,
    /// What the store tells as the time of every directory, in nanoseconds since 1970.
    pub directories_mtime_ns: i64,
}

impl KeptOptions {
    /// The defaults.
    pub fn new(making: Making) -> KeptOptions {
        KeptOptions {
            making,
            changes_bytes: 32 << 20,
            base_bytes: u64::MAX,
            closed: Vec::new(),
            namespace: None,
            contents: None,
        }
    }
}

/// How far an answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// The tree is walked: so many entries so far.
    Walking(u64),
    /// The walk is made into an index.
    Making(Progress),
    /// Changes are asked for.
    Settling,
}

/// What [`Kept::state`] tells.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// Whether a question is answered without a walk.
    pub is_ready: bool,
    /// Entries that there are, the root among them.
    pub entries: u64,
    /// Entries that the base has.
    pub base_entries: u32,
    /// Length of the base in bytes.
    pub base_len: u64,
    /// Entries that differ from it, about.
    pub changed: usize,
    /// Memory of it all, in bytes, with the base where that lies in memory.
    pub memory_bytes: u64,
    /// Batches of changes applied so far.
    pub generation: u64,
    /// Whether the base is the segment that the store answers from.
    pub is_mapped: bool,
    /// Walks of the whole tree so far.
    pub walks: u64,
    /// Bases made of an older one and its differences.
    pub folds: u64,
    /// What could not be read at the last walk, and since.
    pub unread: Arc<Unread>,
}

/// The index of an engine's tree. Dropping it ends its thread.
pub struct Kept {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

pub(super) struct Shared {
    pub engine: Weak<Engine>,
    pub options: KeptOptions,
    pub closed: HashSet<u64>,
    pub queue: Mutex<Queue>,
    /// Wakes the thread.
    pub work: Condvar,
    /// Wakes those who wait for answers, and renames.
    pub done: Condvar,
    pub tree: Mutex<Tree>,
    pub entries: AtomicU64,
    pub is_over: AtomicBool,
}

#[derive(Default)]
pub(super) struct Queue {
    pub pending: Pending,
    /// What others were told is in directories.
    pub noticed: Noticed,
    /// Since when something is pending.
    pub since: Option<Instant>,
    /// Questions so far, and which of them may be answered.
    pub asked: u64,
    pub settled: u64,
    /// Why the latest that could not be answered was not: its number and the error.
    pub failed: Option<(u64, ErrorKind, String)>,
    /// Renames under way, and whether new ones wait.
    pub renames: usize,
    pub no_renames: bool,
    /// A new base was made.
    pub folded: Option<(u64, Result<Base>)>,
    pub waiting: Option<Waiting>,
    /// The thread asks nothing any more.
    pub has_ended: bool,
}

#[derive(Default)]
pub(super) struct Tree {
    pub live: Option<LiveIndex>,
    pub state: State,
    /// The number of the base that is being made, and what was applied since the view that it is made of.
    pub log: Option<(u64, Vec<Vec<Change>>)>,
    /// What the differences took that the base is made of: it is there as long as that, besides those that are applied to.
    pub folded_bytes: u64,
    /// Bases begun so far.
    pub begun: u64,
}

/// The reports of the engine.
struct Ear(Arc<Shared>);

impl Kept {
    /// Begins to keep an index of the tree that `engine` shows: walks it, in a thread of its own, and follows its changes.
    ///
    /// # Errors
    /// `Busy` if there is somebody who listens to this engine already; the host's if there is no thread.
    pub fn start(engine: &Arc<Engine>, options: KeptOptions) -> Result<Kept> {
        let closed = options.closed.iter().map(|ino| ino.0).collect();
        let shared = Arc::new(Shared {
            engine: Arc::downgrade(engine),
            options,
            closed,
            queue: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            tree: Mutex::default(),
            entries: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        {
            let mut queue = shared.queue.lock();
            queue.pending.everything = true;
            // As if somebody had asked: it is walked at once.
            queue.asked = 1;
        }
        if !engine.observe(Box::new(Ear(shared.clone()))) {
            return Err(FsError::new(ErrorKind::Busy).on("index", "the mount").because("it is being indexed already"));
        }
        let keeper = shared.clone();
        let thread = Thread::new().name("adit-index".into()).spawn(move || keeper.run())?;
        Ok(Kept { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The tree with every change whose call had returned when this was called. `waiting` is told how far it is, every 100 ms;
    /// [`ControlFlow::Break`] ends it with `Interrupted`.
    ///
    /// # Errors
    /// Why there is no index, in words; `Interrupted` also when the mount ends. The next question tries again.
    pub fn view(&self, waiting: &mut dyn FnMut(Waiting) -> ControlFlow<()>) -> Result<View> {
        for _ in 0..ANSWERS_MAX {
            self.wait(waiting)?;
            // Else it was given up in this moment.
            let tree = self.shared.tree.lock();
            if let Some(live) = &tree.live {
                return Ok(live.view().with_unread(tree.state.unread.clone()));
            }
        }
        let why = "there are more changes than it can follow; ask again when there are fewer";
        Err(FsError::new(ErrorKind::Busy).on("index", "the mount").because(why))
    }

    /// Waits until a question of now may be answered.
    fn wait(&self, waiting: &mut dyn FnMut(Waiting) -> ControlFlow<()>) -> Result<()> {
        let shared = &*self.shared;
        let mut queue = shared.queue.lock();
        queue.asked += 1;
        let ticket = queue.asked;
        shared.work.notify_one();
        while queue.settled < ticket {
            if shared.is_over.load(Relaxed) {
                return Err(over());
            }
            if !shared.done.wait_for(&mut queue, TELL_EVERY).timed_out() {
                continue;
            }
            let entries = shared.entries.load(Relaxed);
            let how_far = queue.waiting.unwrap_or(Waiting::Walking(entries));
            drop(queue);
            if waiting(how_far).is_break() {
                return Err(FsError::new(ErrorKind::Interrupted).on("index", "the mount"));
            }
            queue = shared.queue.lock();
        }
        if let Some((number, kind, why)) = &queue.failed
            && *number >= ticket
        {
            return Err(FsError::new(*kind).on("index", "the mount").because(why.clone()));
        }
        Ok(())
    }

    /// What there is to say of it.
    pub fn state(&self) -> State {
        let tree = self.shared.tree.lock();
        let mut state = tree.state.clone();
        let mut view = None;
        if let Some(live) = &tree.live {
            let base = &*view.insert(live.view());
            let base = base.base();
            state.is_ready = true;
            state.is_mapped = self.shared.options.namespace.is_some();
            (state.base_entries, state.base_len) = (base.segment().len(), base.segment().file_len());
            (state.changed, state.generation) = (live.changed(), live.generation());
            state.memory_bytes = live.memory_bytes() + self.shared.in_memory(base);
        }
        drop(tree);
        // They are counted while others go on. A base that is damaged says how many it has.
        state.entries = view.map_or(0, |view| view.entries().unwrap_or(state.base_entries.into()));
        state
    }

    /// Has the whole tree walked again before the next answer: for changes that nobody reported.
    pub fn walk_again(&self) {
        self.shared.queue.lock().pending.give_up();
        self.shared.work.notify_one();
    }

    /// Ends it: nothing is asked of the engine any more when this returns, unless a question to it takes longer than seconds.
    pub fn stop(&self) {
        self.shared.end();
        let Some(thread) = self.thread.lock().take() else { return };
        let patience = Instant::now() + STOP_PATIENCE;
        let mut queue = self.shared.queue.lock();
        while !queue.has_ended && !thread.is_finished() {
            if self.shared.done.wait_until(&mut queue, patience).timed_out() {
                tracing::warn!("the index of the mount still waits for the store");
                return;
            }
        }
        drop(queue);
        // It panicked, and that is in the log.
        let _ = thread.join();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Observer for Ear {
    fn entry(&self, dir: Ino, name: FileName<'_>) {
        self.0.report(|queue, shared| shared.note(queue, dir, name));
    }

    fn entries(&self, one: (Ino, FileName<'_>), other: (Ino, FileName<'_>)) {
        self.0.report(|queue, shared| {
            shared.note(queue, one.0, one.1);
            shared.note(queue, other.0, other.1);
        });
    }

    fn inode(&self, ino: Ino) {
        self.0.report(|queue, _| queue.pending.inode(ino.0));
    }

    fn seen(&self, dir: Ino, name: FileName<'_>, found: Option<&Attr>) {
        if noticed::is_own() || self.0.closed.contains(&dir.0) {
            return;
        }
        let found = found.map(Facts::from);
        // Whoever holds the tree may be changing it: then it is asked for once more than it need be.
        let is_news = self.0.tree.try_lock().is_none_or(|tree| {
            let is_news = |live: &LiveIndex| live.is_news(dir.0, name.as_bytes(), found.as_ref());
            // While a tree is walked for the first time nobody knows what the walk has passed already. Where none is, nothing is noted.
            tree.live.as_ref().is_none_or(|live| is_news(live).unwrap_or(false))
        });
        if is_news {
            self.entry(dir, name);
        }
    }

    fn listed(&self, dir: Ino, listing: &Arc<Listing>) {
        if noticed::is_own() || self.0.closed.contains(&dir.0) {
            return;
        }
        self.0.report(|queue, shared| {
            // Nothing is compared with it before all is walked again.
            if !queue.pending.everything && !queue.noticed.put(dir.0, listing) {
                let keep = || shared.engine.upgrade().is_some_and(|engine| engine.keep_known(dir));
                queue.pending.all_in(dir.0, keep);
            }
        });
    }

    fn rename_begins(&self) {
        let mut queue = self.0.queue.lock();
        while queue.no_renames && !self.0.is_over.load(Relaxed) {
            self.0.done.wait_for(&mut queue, TELL_EVERY);
        }
        queue.renames += 1;
    }

    fn rename_ended(&self) {
        let mut queue = self.0.queue.lock();
        queue.renames -= 1;
        if queue.no_renames && queue.renames == 0 {
            self.0.done.notify_all();
        }
    }

    fn ends(&self) {
        self.0.end();
    }
}

/// What a change takes in the log, about, in bytes, with its share of the batch; the name is the index's.
const LOGGED_LEN: u64 = 100;

impl Tree {
    /// Memory that the making of a new base keeps, in bytes, without its builder.
    pub(super) fn folding_bytes(&self) -> u64 {
        let Some((_, log)) = &self.log else { return 0 };
        let of = |change: &Change| match change {
            Change::Listing { entries, .. } => entries.len() as u64,
            _ => 1,
        };
        self.folded_bytes + log.iter().flatten().map(of).sum::<u64>() * LOGGED_LEN
    }
}

impl Shared {
    fn report(&self, note: impl FnOnce(&mut Queue, &Shared)) {
        if self.is_over.load(Relaxed) {
            return;
        }
        let mut queue = self.queue.lock();
        note(&mut queue, self);
        let wakes = queue.since.is_none() || queue.pending.len() == ENOUGH;
        queue.since.get_or_insert_with(Instant::now);
        drop(queue);
        if wakes {
            self.work.notify_one();
        }
    }

    pub(super) fn note(&self, queue: &mut Queue, dir: Ino, name: FileName<'_>) {
        let keep = || self.engine.upgrade().is_some_and(|engine| engine.keep_known(dir));
        queue.pending.name(dir.0, name.as_bytes(), keep);
    }

    /// Directories are not kept known any longer.
    pub(super) fn forget(&self, dirs: &[u64]) {
        if dirs.is_empty() {
            return;
        }
        if let Some(engine) = self.engine.upgrade() {
            dirs.iter().for_each(|dir| engine.forget(Ino(*dir), 1));
        }
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Relaxed);
        // With the lock, so that nobody looks before and waits after.
        let _queue = self.queue.lock();
        self.work.notify_all();
        self.done.notify_all();
    }

    /// What it takes of the engine's memory, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let tree = self.tree.lock();
        let of_base = |live: &LiveIndex| self.in_memory(live.view().base());
        tree.live.as_ref().map_or(0, |live| live.memory_bytes() + of_base(live)) + tree.folding_bytes()
    }

    /// What of a base lies in memory besides its table, in bytes.
    pub(super) fn in_memory(&self, base: &Base) -> u64 {
        match self.options.making.lies {
            Lies::InMemory => base.segment().file_len(),
            Lies::OnDisk(_) => 0,
        }
    }
}
