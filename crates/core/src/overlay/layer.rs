//! One of the two stores of an overlay, and which of its inodes are in use.
//!
//! What a store returns is *known* until it is forgotten, and a store is never asked to forget an inode beside a call that
//! could make the same one known. So whoever makes inodes known holds the layer's [`Learning`], shared; and what nobody
//! holds any more is forgotten later, alone, by [`Layer::settle`]. Dropping a [`Held`] only notes it, and can be done
//! anywhere.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::record::Fingerprint;
use crate::error::Result;
use crate::store::Store;
use crate::types::{Attr, FileName, Ino};

/// Unused inodes above which [`Layer::settle`] waits for its turn.
const IDLE_MAX: usize = 1024;

#[derive(Default)]
struct Uses {
    counts: HashMap<Ino, u32>,
    /// Known to the store, and held by nobody.
    idle: HashSet<Ino>,
}

/// See the module's notes.
pub(super) struct Layer {
    pub store: Arc<dyn Store>,
    made_up_numbers: bool,
    gate: RwLock<()>,
    uses: Mutex<Uses>,
}

/// While it lives, nothing of the layer is forgotten.
pub(super) struct Learning<'l>(#[allow(dead_code, reason = "held, not used")] RwLockReadGuard<'l, ()>);

/// A use of an inode of a layer.
pub(super) struct Held {
    layer: Arc<Layer>,
    pub ino: Ino,
}

impl Layer {
    pub fn new(store: Arc<dyn Store>) -> Arc<Layer> {
        let made_up_numbers = store.capabilities().made_up_numbers;
        Arc::new(Layer { store, made_up_numbers, gate: RwLock::default(), uses: Mutex::default() })
    }

    /// The fingerprint of what was found where that of `print` was noted. Where numbers are made up the path stands for them: it has the
    /// noted one.
    fn print_at(&self, print: &Fingerprint, found: &Attr) -> Fingerprint {
        let now = Fingerprint::of(found);
        if self.made_up_numbers { Fingerprint { ino: print.ino, ..now } } else { now }
    }

    /// Whether what was found where `print` was noted is the object of that, unchanged.
    pub fn is_same(&self, print: &Fingerprint, found: &Attr) -> bool {
        print.matches(&self.print_at(print, found))
    }

    /// In which way it is not.
    pub fn difference(&self, print: &Fingerprint, found: &Attr) -> String {
        print.difference(&self.print_at(print, found))
    }

    /// Take it before any call of the store that makes inodes known, or locks of its own that `forget` may want.
    pub fn learning(&self) -> Learning<'_> {
        // One thread may hold several.
        Learning(self.gate.read_recursive())
    }

    /// Holds an inode that the store made known since `_since`.
    pub fn hold(self: &Arc<Self>, _since: &Learning<'_>, ino: Ino) -> Held {
        if ino != Ino::ROOT {
            let mut uses = self.uses.lock();
            *uses.counts.entry(ino).or_insert(0) += 1;
            uses.idle.remove(&ino);
        }
        Held { layer: self.clone(), ino }
    }

    /// The root, which is always known.
    pub fn root(self: &Arc<Self>) -> Held {
        Held { layer: self.clone(), ino: Ino::ROOT }
    }

    pub fn lookup(self: &Arc<Self>, parent: Ino, name: FileName<'_>) -> Result<(Attr, Held)> {
        let learning = self.learning();
        let attr = self.store.lookup(parent, name)?;
        Ok((attr, self.hold(&learning, attr.ino)))
    }

    /// As [`Layer::lookup`], with absence as `None`.
    pub fn find(self: &Arc<Self>, parent: Ino, name: FileName<'_>) -> Result<Option<(Attr, Held)>> {
        match self.lookup(parent, name) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Forgets what nobody holds. Call it with nothing locked.
    pub fn settle(&self) {
        let waiting = self.uses.lock().idle.len();
        if waiting == 0 {
            return;
        }
        let alone = if waiting > IDLE_MAX { Some(self.gate.write()) } else { self.gate.try_write() };
        let Some(_alone) = alone else { return };
        let idle = std::mem::take(&mut self.uses.lock().idle);
        idle.into_iter().for_each(|ino| self.store.forget(ino));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.ino == Ino::ROOT {
            return;
        }
        let mut uses = self.layer.uses.lock();
        let Some(count) = uses.counts.get_mut(&self.ino) else { return };
        *count -= 1;
        if *count == 0 {
            uses.counts.remove(&self.ino);
            uses.idle.insert(self.ino);
        }
    }
}
