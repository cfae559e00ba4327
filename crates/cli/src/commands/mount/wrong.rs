//! Objects with other content than their hash says: what the kernel was given of them has to go.
//!
//! The cache finds it out ([`Watch`]), in a thread that may be serving the kernel, which must not be told anything from there. So [`Wrong`]
//! hands the object to a thread of its own, for as long as somebody holds the [`Watching`].

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};

use adit_core::engine::Engine;
use adit_core::types::Ino;
use adit_manifest::cache::{ObjectId, Watch};
use adit_mount::SessionHandle;
use parking_lot::Mutex;

#[derive(Default)]
struct State {
    /// Counts those who watched.
    turns: u64,
    /// To each who watches now: the mounts of a process share what is below them.
    senders: BTreeMap<u64, Sender<ObjectId>>,
    /// Found before anybody watched, for the first one.
    early: Vec<ObjectId>,
}

/// More are not noted. A mount serves for milliseconds before it is watched.
const EARLY_MAX: usize = 4096;

/// Hears of objects that are wrong.
#[derive(Default)]
pub struct Wrong(Mutex<State>);

/// Whoever watches, until it is dropped. It ends the thread, which holds the store that holds the [`Wrong`].
pub struct Watching {
    wrong: Arc<Wrong>,
    turn: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.wrong.0.lock().senders.remove(&self.turn);
    }
}

impl Wrong {
    /// From now on the kernel and the engine drop what they keep of the `files` of an object, and of those that were found before.
    pub fn watch(
        self: &Arc<Wrong>,
        files: impl Fn(&ObjectId) -> adit_core::Result<Vec<Ino>> + Send + 'static,
        session: SessionHandle,
        engine: Weak<Engine>,
    ) -> Watching {
        let (sender, wrong) = channel();
        let spawned = std::thread::Builder::new().name("adit-wrong".into()).spawn(move || {
            for object in wrong {
                let files = files(&object).unwrap_or_else(|e| {
                    tracing::warn!(error = %e, "the files of an object that is wrong are not known");
                    Vec::new()
                });
                for ino in files {
                    if let Some(engine) = engine.upgrade() {
                        engine.inode_changed_below(ino);
                    }
                    session.forget_inode(ino);
                }
            }
        });
        if let Err(e) = spawned {
            tracing::warn!(error = %e, "what was read of objects that are wrong stays in the kernel's cache");
        }
        let mut state = self.0.lock();
        state.turns += 1;
        let turn = state.turns;
        for object in std::mem::take(&mut state.early) {
            // The thread waits for it.
            let _ = sender.send(object);
        }
        state.senders.insert(turn, sender);
        Watching { wrong: self.clone(), turn }
    }
}

impl Watch for Wrong {
    fn quarantined(&self, object: &ObjectId) {
        let mut state = self.0.lock();
        if state.turns == 0 && state.early.len() < EARLY_MAX {
            state.early.push(*object);
        }
        for sender in state.senders.values() {
            // Its thread ends only with this.
            let _ = sender.send(*object);
        }
    }
}
