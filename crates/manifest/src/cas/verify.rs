//! The objects of a store compared with their hashes, all of them.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::Withheld;

use super::ObjectSource;
use crate::cache::{Fetch, ObjectFault, ObjectId};
use crate::format::Hasher;

/// What became of an object.
pub enum Verified<'a> {
    /// It is there, and has its hash.
    Sound(&'a ObjectId),
    /// It is missing, has another length, or other content; or it is missing or not allowed, and the store does not say which.
    Damaged(&'a ObjectId, &'a FsError),
}

/// Fetches each of `objects`, and compares it with its hash, with `threads` at a time.
///
/// # Errors
/// The first of the store itself: one that cannot be reached says nothing of its objects. `Interrupted` if `tell` breaks.
pub fn verify(
    source: &ObjectSource,
    objects: &[ObjectId],
    threads: usize,
    tell: &mut dyn FnMut(Verified<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // What is wrong with them is not gathered faster than it is told.
        let (sent, done) = sync_channel(threads.max(1));
        for _ in 0..threads.max(1) {
            let (sent, next) = (sent.clone(), &next);
            scope.spawn(move || work(source, objects, next, &sent));
        }
        drop(sent);
        let mut outcome = Ok(());
        for (id, verified) in done {
            let flow = match &verified {
                Ok(()) => tell(Verified::Sound(id)),
                Err(e) if is_damage(e) => tell(Verified::Damaged(id, e)),
                Err(_) => ControlFlow::Break(()),
            };
            if flow.is_break() {
                // Nobody takes another one.
                next.store(objects.len(), Ordering::Relaxed);
                outcome =
                    Err(verified.err().filter(|e| !is_damage(e)).unwrap_or_else(|| ErrorKind::Interrupted.into()));
                break;
            }
        }
        outcome
    })
}

/// Whether an error is about the object, and not the store.
pub(super) fn is_damage(e: &FsError) -> bool {
    e.kind() == ErrorKind::Corrupt || e.cause().is_some_and(|cause| cause.is::<ObjectFault>()) || Withheld::is_behind(e)
}

fn work<'o>(
    source: &ObjectSource,
    objects: &'o [ObjectId],
    next: &AtomicUsize,
    done: &SyncSender<(&'o ObjectId, Result<()>)>,
) {
    while let Some(id) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
        let mut hasher = Hasher::default();
        let fetched = source.fetch(id, 0..id.len, &mut |bytes| {
            hasher.update(bytes);
            Ok(())
        });
        let verified = fetched.and_then(|()| {
            let found = hasher.finish();
            let differs = || FsError::new(ErrorKind::Corrupt).on("verify object", id);
            if found == id.hash { Ok(()) } else { Err(differs().because(ObjectFault::Mismatch { found })) }
        });
        if done.send((id, verified)).is_err() {
            return;
        }
    }
}
