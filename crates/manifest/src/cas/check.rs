//! All objects of a store compared with the hashes in their keys, whoever needs them: no manifest is asked.
//!
//! [`check`] lists the folder of data objects twice: once for the sizes alone, which tells early how much there is, and once for those who
//! compare, page by page. So nothing is held of a store however large it is; a page more per thousand objects is what that costs.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::{ListedObject, ObjectInfo, Objects};

use super::verify::is_damage;
use super::{DataKeys, REQUEST_LEN_BYTES, SUFFIX};
use crate::cache::ObjectFault;
use crate::format::{ContentHash, Hasher};

/// Objects that are listed at a time.
const PAGE_MAX: usize = 1000;
/// How often an object is read from the start because it was replaced meanwhile.
const REPLACED_MAX: u32 = 3;

/// What is told of a store.
pub enum Checked<'a> {
    /// All of it, as far as it is known: this comes once, when the sizes are.
    Total {
        /// Objects, also those whose names are no hashes.
        objects: u64,
        /// Bytes of those that are compared.
        bytes: u64,
    },
    /// So many bytes more were compared.
    Read(u64),
    /// The object has the hash in its key.
    Sound,
    /// It has other content, or cannot be read though it is listed.
    Damaged {
        /// Where it lies.
        key: &'a str,
        /// What it should have.
        hash: ContentHash,
        /// What is wrong.
        error: &'a FsError,
    },
    /// The key is that of no hash: nothing is known of what should be in it.
    Foreign(&'a str),
    /// It was removed meanwhile.
    Gone,
}

/// What the threads tell.
enum Told {
    Total { objects: u64, bytes: u64 },
    Read(u64),
    Compared(ListedObject, ContentHash, Result<()>),
    Foreign(ListedObject),
    Failed(FsError),
}

/// Fetches each object of the folder of `keys`, and compares it with the hash in its key, with `threads` at a time.
///
/// # Errors
/// The first of the store itself: one that cannot be reached or listed says nothing of its objects. `Interrupted` if `tell` breaks.
pub fn check(
    objects: &dyn Objects,
    keys: &DataKeys,
    threads: usize,
    tell: &mut dyn FnMut(Checked<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sent, told) = sync_channel(threads.max(1));
        // Those who compare have the only ends of it: the last of them to go ends the listing.
        let (listed, queue) = sync_channel(PAGE_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let ended = &ended;
        for _ in 0..threads.max(1) {
            let (sent, queue) = (sent.clone(), queue.clone());
            scope.spawn(move || compare_listed(objects, keys, &queue, &sent, ended));
        }
        drop(queue);
        let (failed, sizes) = (sent.clone(), sent);
        scope.spawn(move || {
            let all = each_page(objects, keys, ended, &mut |object| listed.send(object).is_ok());
            // Who has gone does not listen.
            let _ = all.map_err(|e| failed.send(Told::Failed(e)));
        });
        scope.spawn(move || measure(objects, keys, &sizes, ended));
        let outcome = hand_on(&told, tell);
        ended.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Tells what the threads find, until all of them are done.
fn hand_on(told: &Receiver<Told>, tell: &mut dyn FnMut(Checked<'_>) -> ControlFlow<()>) -> Result<()> {
    while let Ok(told) = told.recv() {
        let flow = match told {
            Told::Total { objects, bytes } => tell(Checked::Total { objects, bytes }),
            Told::Read(bytes) => tell(Checked::Read(bytes)),
            Told::Foreign(object) => tell(Checked::Foreign(&object.key)),
            Told::Compared(_, _, Ok(())) => tell(Checked::Sound),
            Told::Compared(_, _, Err(e)) if e.is_not_found() => tell(Checked::Gone),
            Told::Compared(object, hash, Err(error)) if is_damage(&error) => {
                tell(Checked::Damaged { key: &object.key, hash, error: &error })
            }
            Told::Compared(_, _, Err(e)) | Told::Failed(e) => return Err(e),
        };
        if flow.is_break() {
            return Err(ErrorKind::Interrupted.into());
        }
    }
    Ok(())
}

/// Hands on all objects of the folder in the order of their keys, until `take` wants no more.
fn each_page(
    objects: &dyn Objects,
    keys: &DataKeys,
    ended: &AtomicBool,
    take: &mut dyn FnMut(ListedObject) -> bool,
) -> Result<()> {
    let mut after: Option<String> = None;
    loop {
        let page = objects.list(&keys.folder, after.as_deref(), PAGE_MAX)?;
        let Some(last) = page.objects.last().map(|object| object.key.clone()) else { return Ok(()) };
        for object in page.objects {
            if ended.load(Ordering::Relaxed) || !take(object) {
                return Ok(());
            }
        }
        if !page.more {
            return Ok(());
        }
        after = Some(last);
    }
}

/// Tells how much there is.
fn measure(objects: &dyn Objects, keys: &DataKeys, sent: &SyncSender<Told>, ended: &AtomicBool) {
    let (mut count, mut bytes) = (0u64, 0u64);
    let all = each_page(objects, keys, ended, &mut |object| {
        count += 1;
        bytes = bytes.saturating_add(keys.hash(&object.key).map_or(0, |_| object.len));
        true
    });
    // Who has gone does not listen.
    let _ = sent.send(all.map_or_else(Told::Failed, |()| Told::Total { objects: count, bytes }));
}

fn compare_listed(
    objects: &dyn Objects,
    keys: &DataKeys,
    queue: &Mutex<Receiver<ListedObject>>,
    sent: &SyncSender<Told>,
    ended: &AtomicBool,
) {
    loop {
        // Apart, so that it is not held while the object is read.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(object) = next else { return };
        let told = match keys.hash(&object.key) {
            None => Told::Foreign(object),
            Some(hash) => {
                let mut read = |bytes| !ended.load(Ordering::Relaxed) && sent.send(Told::Read(bytes)).is_ok();
                let compared = compare(objects, &object, hash, &mut read);
                Told::Compared(object, hash, compared)
            }
        };
        if ended.load(Ordering::Relaxed) || sent.send(told).is_err() {
            return;
        }
    }
}

/// An object that is replaced meanwhile is read from the start: who mends a store beside us makes no damage.
fn compare(
    objects: &dyn Objects,
    listed: &ListedObject,
    hash: ContentHash,
    read: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    let mut replaced = 0;
    loop {
        match content_hash(objects, listed, read) {
            Err(e) if e.kind() == ErrorKind::Stale && replaced < REPLACED_MAX => replaced += 1,
            Ok(found) if found == hash => return Ok(()),
            Ok(found) => {
                let differs = FsError::new(ErrorKind::Corrupt).on("verify object", &listed.key);
                return Err(differs.because(ObjectFault::Mismatch { found }));
            }
            Err(e) => return Err(e),
        }
    }
}

/// The hash of what lies under the key, all of it of one object.
fn content_hash(
    objects: &dyn Objects,
    listed: &ListedObject,
    read: &mut dyn FnMut(u64) -> bool,
) -> Result<ContentHash> {
    let mut hasher = Hasher::default();
    let (mut at, mut first) = (0, None::<ObjectInfo>);
    loop {
        let (len, tag) = first.as_ref().map_or((listed.len, None), |object| (object.len, object.tag.as_ref()));
        // Also an empty one is asked for: it may be gone.
        let wanted = len.saturating_sub(at).clamp(1, REQUEST_LEN_BYTES);
        let fetched = objects.read_through(&listed.key, at, wanted, tag, &mut |_, bytes| {
            hasher.update(bytes);
            if read(bytes.len() as u64) { Ok(()) } else { Err(ErrorKind::Interrupted.into()) }
        })?;
        at += fetched.count as u64;
        let len = first.get_or_insert(fetched.object).len;
        if at >= len {
            return Ok(hasher.finish());
        }
        if fetched.count == 0 {
            let short = FsError::new(ErrorKind::Corrupt).on("read object", &listed.key);
            return Err(short.because(ObjectFault::Short { got: at, expected: len, len }));
        }
    }
}

impl DataKeys {
    /// The hash of the content that lies under a key; none for what was not stored as such.
    fn hash(&self, key: &str) -> Option<ContentHash> {
        let name = key.strip_prefix(&*self.folder)?;
        ContentHash::parse(name.strip_suffix(SUFFIX).unwrap_or(name).as_bytes())
    }
}

#[cfg(test)]
mod tests;
