//! Who wants to know what changes: an index of the mount, say.
//!
//! A report names what *may* have changed, and nothing of how it is now: whoever listens asks the engine again, then or later.
//! So a report may come twice, for a change that failed, or for one that somebody else took back meanwhile, and a race that is
//! lost heals with the next question. What is promised: **every change that went through this engine, or that it noticed, is
//! reported after the store made it, and before the call that made it returns.** (A write that is answered early, see
//! [`Engine::write_behind`], is reported before its answer where it starts a file's buffered writes, else after.)
//!
//! Renames are held between [`Observer::rename_begins`] and [`Observer::rename_ended`], so that a listener can have a moment
//! without any: then a directory that is at no name any more is gone, and not on its way.
//!
//! Without a listener a report costs a load and a branch.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::{Engine, Listing};
use crate::memory::Part;
use crate::types::{Attr, FileName, Ino};

/// Listens to the changes of an [`Engine`]. Called from the threads that make them.
///
/// Calls may come with a file's lock held: they must return soon, and must not call the engine, but for
/// [`Engine::keep_known`].
pub trait Observer: Send + Sync {
    /// What `name` in the directory `dir` leads to may be something else now, or nothing, and so may `dir`'s attributes.
    fn entry(&self, dir: Ino, name: FileName<'_>);

    /// Both names may lead elsewhere: what was at one is at the other, perhaps. One report, so that nobody sees half of it.
    fn entries(&self, one: (Ino, FileName<'_>), other: (Ino, FileName<'_>));

    /// Attributes of this inode may have changed: size, times, permissions.
    fn inode(&self, ino: Ino);

    /// The store, which others may change, was asked what `name` in `dir` leads to, and this is what it said. Nothing need have changed:
    /// whoever knows otherwise has news.
    fn seen(&self, dir: Ino, name: FileName<'_>, found: Option<&Attr>) {
        let _ = (dir, name, found);
    }

    /// Likewise, all that is in `dir`.
    fn listed(&self, dir: Ino, listing: &Arc<Listing>) {
        let _ = (dir, listing);
    }

    /// A rename is about to be made. Called without locks; may wait for a moment.
    fn rename_begins(&self);

    /// That rename has been made, or failed, and was reported.
    fn rename_ended(&self);

    /// The engine is about to be shut down: it is not to be asked any more.
    fn ends(&self);
}

/// A rename between its begin and its end, also by a panic.
pub(super) struct Renaming<'a>(Option<&'a dyn Observer>);

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.0 {
            observer.rename_ended();
        }
    }
}

impl Engine {
    /// Has `observer` hear of every change from here on, for as long as the engine lives. False if somebody else does already.
    pub fn observe(&self, observer: Box<dyn Observer>) -> bool {
        self.observer.set(observer).is_ok()
    }

    /// Takes a reference to `ino`, if it is known: to be given back by [`Engine::forget`]. Takes no lock that a store call is
    /// made under.
    pub fn keep_known(&self, ino: Ino) -> bool {
        self.inodes.add_ref_if_known(ino)
    }

    /// What an index of this engine takes now of its memory, in bytes: the caches make room for it.
    pub fn count_index(&self, bytes: u64) {
        let before = self.index_bytes.swap(bytes, SeqCst);
        match bytes.checked_sub(before) {
            Some(more) => self.budget.add(Part::Fixed, more),
            None => self.budget.sub(Part::Fixed, before - bytes),
        }
    }

    #[inline]
    pub(super) fn report_entry(&self, dir: Ino, name: FileName<'_>) {
        if let Some(observer) = self.observer.get() {
            observer.entry(dir, name);
        }
    }

    /// What the store said; news only where others may change it.
    #[inline]
    pub(super) fn report_seen(&self, dir: Ino, name: FileName<'_>, found: Option<&Attr>) {
        if let Some(observer) = self.observer.get().filter(|_| self.caps.shared) {
            observer.seen(dir, name, found);
        }
    }

    pub(super) fn report_listed(&self, dir: Ino, listing: &Arc<Listing>) {
        if let Some(observer) = self.observer.get().filter(|_| self.caps.shared) {
            observer.listed(dir, listing);
        }
    }

    #[inline]
    pub(super) fn report_inode(&self, ino: Ino) {
        if let Some(observer) = self.observer.get() {
            observer.inode(ino);
        }
    }

    #[inline]
    pub(super) fn report_rename(&self, one: (Ino, FileName<'_>), other: (Ino, FileName<'_>)) {
        if let Some(observer) = self.observer.get() {
            observer.entries(one, other);
        }
    }

    /// To be held while the store renames, until it is reported.
    #[inline]
    pub(super) fn renaming(&self) -> Renaming<'_> {
        let observer = self.observer.get().map(|observer| &**observer);
        if let Some(observer) = observer {
            observer.rename_begins();
        }
        Renaming(observer)
    }

    /// Attributes of `ino` changed by a call of ours: what is cached of them is void.
    pub(super) fn inode_changed(&self, ino: Ino) {
        self.inodes.changed(ino);
        self.report_inode(ino);
    }
}
