//! Which objects of a manifest a store has already, and whether the others can be brought.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::{Objects, Withheld};
use adit_core::overlay::Overlay;
use adit_core::path::{Last, Tree};
use adit_core::types::Access;
use adit_index::Segment;

use crate::cas::DataKeys;
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{Body, Content, ContentHash, File, Manifest};
use crate::snapshot::reading;
use crate::store::Lower;

/// What a store has of a manifest's content: objects, and their bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Looked {
    /// What is there, with the right length.
    pub present: (u64, u64),
    /// What is not.
    pub missing: (u64, u64),
    /// Its hashes.
    pub lacking: HashSet<ContentHash>,
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
                while let Some(object) = wanted.get(next.fetch_add(1, Relaxed)).filter(|_| !is_over.load(Relaxed)) {
                    let (hash, len) = object;
                    let found = match objects.head(&keys.key(hash)) {
                        Ok(info) => Ok(info.len == *len),
                        // What cannot be told to be there is stored.
                        Err(e) if e.is_not_found() || Withheld::is_behind(&e) => Ok(false),
                        Err(e) => Err(e),
                    };
                    if sent.send((found, *object)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sent);
        let mut looked = Looked::default();
        for (found, (hash, len)) in done {
            let end = |e| {
                is_over.store(true, Relaxed);
                e
            };
            let is_there = found.map_err(end)?;
            let count = if is_there { &mut looked.present } else { &mut looked.missing };
            *count = (count.0 + 1, count.1 + len);
            if !is_there {
                looked.lacking.insert(hash);
            }
            if tell(&looked).is_break() {
                return Err(end(ErrorKind::Interrupted.into()));
            }
        }
        Ok(looked)
    })
}

/// What happens while that is [tried](try_lacking).
pub enum TryEvent<'a> {
    /// A file comes next.
    File,
    /// It cannot be read.
    Failed {
        /// Its path in the tree, without a leading slash.
        path: &'a [u8],
        /// Why; it names the file.
        error: &'a FsError,
    },
}

/// Tries to read what is to be brought of `manifest` and was not read to learn its hash, because that is known from the manifest behind
/// `segment`: of each object that is `lacking` in the store a byte. `tree` has the files. What cannot be read is told, and the rest goes on.
///
/// This is for a store that is that of the lower as well: it has none of these objects then, and only what the cache has can be read.
///
/// # Errors
/// `Corrupt` for a damaged segment; `Interrupted` if `tell` breaks.
pub fn try_lacking(
    manifest: &Manifest,
    segment: &Segment,
    tree: &Tree<'_>,
    lacking: &HashSet<ContentHash>,
    tell: &mut dyn FnMut(TryEvent<'_>) -> ControlFlow<()>,
) -> Result<()> {
    for (path, body) in manifest.entries() {
        let Body::File(file) = body else { continue };
        if !file.content.hashes().iter().any(|hash| lacking.contains(hash)) {
            continue;
        }
        if tell(TryEvent::File).is_break() {
            return Err(ErrorKind::Interrupted.into());
        }
        let listing = path.to_listing();
        let failed = match try_file(&listing, file, segment, tree, lacking) {
            Ok(()) => continue,
            Err(Tried::Segment(e)) => return Err(e),
            Err(Tried::File(e)) => reading(e, &listing),
        };
        if tell(TryEvent::Failed { path: &listing, error: &failed }).is_break() {
            return Err(ErrorKind::Interrupted.into());
        }
    }
    Ok(())
}

/// What failed.
enum Tried {
    Segment(FsError),
    File(FsError),
}

fn try_file(
    path: &[u8],
    file: &File<'_>,
    segment: &Segment,
    tree: &Tree<'_>,
    lacking: &HashSet<ContentHash>,
) -> std::result::Result<(), Tried> {
    // Its number is good for as long as it is held.
    let node = tree.resolve(path, Last::Keep).map_err(Tried::File)?;
    let Some(lower) = Overlay::lower_ino(node.ino()) else { return Ok(()) };
    let Some(lower) = Lower::of_ino(segment, lower).map_err(Tried::Segment)? else { return Ok(()) };
    let one = object_len(file);
    let mut opened = None;
    for (number, hash) in (0..).zip(file.content.hashes()) {
        if !lacking.contains(hash) || !lower.content.hashes().contains(hash) {
            continue;
        }
        let opened = match &mut opened {
            Some(opened) => opened,
            None => opened.insert(tree.store().open(node.ino(), Access::Read).map_err(Tried::File)?),
        };
        opened.read_at(number * one, &mut [0]).map_err(Tried::File)?;
    }
    Ok(())
}

/// The length of all objects of a file but the last.
fn object_len(file: &File<'_>) -> u64 {
    match file.content {
        Content::Whole(_) => file.size_bytes,
        Content::Chunks(_) => CHUNK_LEN_BYTES,
    }
}

/// Each object of a manifest once, with its length.
fn wanted(manifest: &Manifest) -> BTreeMap<ContentHash, u64> {
    let mut wanted = BTreeMap::new();
    for (_, body) in manifest.entries() {
        let Body::File(file) = body else { continue };
        let one = object_len(file);
        for (number, hash) in (0..).zip(file.content.hashes()) {
            wanted.insert(*hash, one.min(file.size_bytes - number * one));
        }
    }
    wanted
}
