//! Which objects of a manifest a store has already.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;

use adit_core::error::{ErrorKind, Result};
use adit_core::media::{Objects, Withheld};

use crate::cas::DataKeys;
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{Body, Content, ContentHash, Manifest};

/// What a store has of a manifest's content: objects, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Looked {
    /// What is there, with the right length.
    pub present: (u64, u64),
    /// What is not.
    pub missing: (u64, u64),
}

/// Asks a store for each object of the files of `manifest`, by `threads` at a time. It changes nothing there. `tell` hears of each.
///
/// # Errors
/// The first of the store; `Interrupted` if `tell` breaks.
pub fn look(
    manifest: &Manifest,
    objects: &dyn Objects,
    keys: &DataKeys,
    threads: usize,
    tell: &mut dyn FnMut(&Looked) -> ControlFlow<()>,
) -> Result<Looked> {
    let wanted: Vec<(ContentHash, u64)> = wanted(manifest).into_iter().collect();
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (sent, done) = channel();
        for _ in 0..threads.clamp(1, wanted.len().max(1)) {
            let (sent, wanted, next, is_over) = (sent.clone(), &wanted, &next, &is_over);
            scope.spawn(move || {
                while let Some((hash, len)) = wanted.get(next.fetch_add(1, Relaxed)).filter(|_| !is_over.load(Relaxed))
                {
                    let found = match objects.head(&keys.key(hash)) {
                        Ok(info) => Ok(info.len == *len),
                        // What cannot be told to be there is stored.
                        Err(e) if e.is_not_found() || Withheld::is_behind(&e) => Ok(false),
                        Err(e) => Err(e),
                    };
                    if sent.send((found, *len)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sent);
        let mut looked = Looked::default();
        for (found, len) in done {
            let end = |e| {
                is_over.store(true, Relaxed);
                e
            };
            let count = if found.map_err(end)? { &mut looked.present } else { &mut looked.missing };
            *count = (count.0 + 1, count.1 + len);
            if tell(&looked).is_break() {
                return Err(end(ErrorKind::Interrupted.into()));
            }
        }
        Ok(looked)
    })
}

/// Each object of a manifest once, with its length.
fn wanted(manifest: &Manifest) -> BTreeMap<ContentHash, u64> {
    let mut wanted = BTreeMap::new();
    for (_, body) in manifest.entries() {
        let Body::File(file) = body else { continue };
        let one = match file.content {
            Content::Whole(_) => file.size_bytes,
            Content::Chunks(_) => CHUNK_LEN_BYTES,
        };
        for (number, hash) in (0..).zip(file.content.hashes()) {
            wanted.insert(*hash, one.min(file.size_bytes - number * one));
        }
    }
    wanted
}
