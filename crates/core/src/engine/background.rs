//! The engine's own threads: one tells the front end what to drop, one writes old buffered data back.
//!
//! Neither holds the engine alive: the notifier's thread ends with its channel, the flusher's when it finds the engine
//! gone or is told to stop.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::clock::Tick;
use super::inodes::Hand;
use super::{Engine, Notifier};
use crate::types::{FileName, Ino};

/// Buffered data older than this is written back.
const DIRTY_AGE_MAX: Duration = Duration::from_secs(1);
/// Names that the front end is asked to drop before it is looked again how many are left.
const THIN_OUT_STEP: usize = 256;
/// How long the front end is left alone after it was asked for all that it knows and kept too much of it.
const CROWDED_AGAIN: Duration = Duration::from_secs(1);
/// How often the flusher looks while there is something buffered.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the thread that talks to the front end is told.
enum Notice {
    /// Pages of this range and attributes of this inode are void.
    Void { ino: Ino, offset: i64, len: i64 },
    /// What this name leads to is to be asked again.
    Entry { parent: Ino, name: Box<[u8]> },
    /// The front end is to forget this inode's name, and with it the inode, unless it is in use.
    Forget(Ino),
    /// More inodes are known than there is room for.
    Crowded,
}

/// Sends invalidations to the thread that delivers them.
#[derive(Default)]
pub(crate) struct Notices {
    channel: Mutex<Option<Sender<Notice>>>,
    /// Set while the thread has been told of a crowd and is not through with it.
    crowded: AtomicBool,
}

impl Notices {
    pub(crate) fn start(&self, notifier: Box<dyn Notifier>, engine: Weak<Engine>) {
        let (sender, receiver) = channel::<Notice>();
        let spawned = std::thread::Builder::new().name("adit-notify".into()).spawn(move || {
            let (mut hand, mut not_before) = (Hand::default(), Instant::now());
            while let Ok(notice) = receiver.recv() {
                match notice {
                    Notice::Void { ino, offset, len } => notifier.inval_inode(ino, offset, len),
                    Notice::Entry { parent, name } => {
                        if let Ok(name) = FileName::new(&name) {
                            notifier.inval_entry(parent, name);
                        }
                    }
                    Notice::Forget(ino) => {
                        let Some(engine) = engine.upgrade() else { return };
                        engine.forget_name(&*notifier, ino);
                    }
                    Notice::Crowded => {
                        let Some(engine) = engine.upgrade() else { return };
                        if Instant::now() >= not_before && !engine.thin_out(&*notifier, &mut hand) {
                            not_before = Instant::now() + CROWDED_AGAIN;
                        }
                        engine.notices.crowded.store(false, SeqCst);
                    }
                }
            }
        });
        match spawned {
            Ok(_) => *self.channel.lock() = Some(sender),
            Err(error) => {
                tracing::error!(%error, "no thread for invalidations: foreign changes show late")
            }
        }
    }

    /// Pages and attributes of `ino` are void.
    pub(crate) fn inval_inode(&self, ino: Ino) {
        self.send(Notice::Void { ino, offset: 0, len: 0 });
    }

    /// Those pages of `ino` are void that hold `len` bytes at `offset`, and its attributes.
    pub(crate) fn inval_range(&self, ino: Ino, offset: u64, len: usize) {
        if let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) {
            self.send(Notice::Void { ino, offset, len });
        }
    }

    /// The front end is to look the entry up anew. Not one of a directory: whoever works in it would see it as deleted.
    pub(crate) fn inval_entry(&self, parent: Ino, name: FileName<'_>) {
        self.send(Notice::Entry { parent, name: name.as_bytes().into() });
    }

    /// The front end is to look `ino` up anew once nobody uses it.
    pub(crate) fn forget(&self, ino: Ino) {
        self.send(Notice::Forget(ino));
    }

    fn send(&self, notice: Notice) {
        if let Some(channel) = &*self.channel.lock() {
            // The thread ends only with the channel, or by a panic of the notifier: then there is no one to tell.
            let _ = channel.send(notice);
        }
    }

    /// More inodes are known than there is room for. Costs next to nothing where that was said already.
    pub(crate) fn crowded(&self) {
        if !self.crowded.swap(true, SeqCst)
            && let Some(channel) = &*self.channel.lock()
        {
            let _ = channel.send(Notice::Crowded);
        }
    }

    pub(crate) fn stop(&self) {
        self.channel.lock().take();
    }
}

#[derive(Default)]
struct FlusherState {
    dirty: bool,
    crowded: bool,
    stopped: bool,
}

/// Wakes and stops the flusher's thread.
#[derive(Default)]
pub(crate) struct Flusher {
    state: Mutex<FlusherState>,
    changed: Condvar,
}

impl Flusher {
    /// There is something buffered.
    pub(crate) fn wake(&self) {
        let mut state = self.state.lock();
        if !state.dirty {
            state.dirty = true;
            self.changed.notify_one();
        }
    }

    /// A writer found no room, and has nothing to write out itself: what is buffered goes to the store now.
    pub(crate) fn crowded(&self) {
        let mut state = self.state.lock();
        if !state.crowded {
            (state.dirty, state.crowded) = (true, true);
            self.changed.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits until there is something to do, and then a little unless there is no room. How old is old now; `None` when
    /// stopped.
    fn wait(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        while !state.dirty && !state.stopped {
            self.changed.wait(&mut state);
        }
        if !state.stopped && !state.crowded {
            self.changed.wait_for(&mut state, LOOK_EVERY);
        }
        let age_max = if state.crowded { Duration::ZERO } else { DIRTY_AGE_MAX };
        (state.dirty, state.crowded) = (false, false);
        (!state.stopped).then_some(age_max)
    }
}

/// Starts the thread that writes back what is older than a second, or everything where there is no room for more.
pub(crate) fn start_flusher(engine: &Arc<Engine>) {
    let (flusher, engine) = (engine.flusher.clone(), Arc::downgrade(engine));
    let spawned = std::thread::Builder::new().name("adit-flush".into()).spawn(move || {
        while let Some(age_max) = flusher.wait() {
            let Some(engine) = engine.upgrade() else {
                return;
            };
            // A panic of a store ends one round, not the thread.
            let round = std::panic::AssertUnwindSafe(|| engine.flush_old(age_max));
            let again = std::panic::catch_unwind(round).unwrap_or(true);
            if again {
                flusher.wake();
            }
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for write-back: buffered data waits for close or fsync");
    }
}

impl Engine {
    /// Has the front end forget a name of `ino`.
    fn forget_name(&self, notifier: &dyn Notifier, ino: Ino) {
        if let Some((parent, name)) = self.store.name_of(ino)
            && let Ok(name) = FileName::new(&name)
        {
            notifier.inval_entry(parent, name);
        }
    }

    /// Has the front end drop names of files that are not in use, until a quarter of the room is free again or every
    /// name was tried once; false in that case. What it drops it forgets, and only that frees memory here.
    ///
    /// Directories stay: a process that works in one would see it as deleted. Runs on the notifier's thread, with no
    /// lock held while the front end is told.
    fn thin_out(&self, notifier: &dyn Notifier, hand: &mut Hand) -> bool {
        let goal = self.inodes_max() / 4 * 3;
        let mut left = self.inodes.len();
        while left > 0 && self.inodes.weight() > goal {
            let batch = self.inodes.sweep(hand, THIN_OUT_STEP.min(left));
            if batch.is_empty() {
                return false;
            }
            left = left.saturating_sub(batch.len());
            let mut parents = BTreeSet::new();
            for ino in batch {
                if let Some((parent, name)) = self.store.name_of(ino)
                    && let Ok(name) = FileName::new(&name)
                {
                    notifier.inval_entry(parent, name);
                    parents.insert(parent);
                }
            }
            if self.lists_by_inode() {
                // Its listings, too: by a kept one each name that was dropped costs a lookup, by a new one next to nothing.
                parents.into_iter().for_each(|parent| notifier.inval_inode(parent, 0, 0));
            }
        }
        self.inodes.weight() <= goal
    }

    /// Writes back what is old; true if something is buffered still. Failures are kept for the handles.
    fn flush_old(&self, age_max: Duration) -> bool {
        let age_ticks = self.clock.expiry(0, age_max);
        let now = self.clock.now();
        let born_max: Tick = now.saturating_sub(age_ticks);
        let dirty = self.open.dirty();
        for &ino in &dirty {
            let old = self.open.get(ino).and_then(|f| f.oldest(now)).is_some_and(|born| born <= born_max);
            if old && let Err(error) = self.flush_inode(ino, born_max) {
                tracing::debug!(ino = ino.0, %error, "write-back failed");
            }
        }
        !dirty.is_empty()
    }
}
