//! What a `put` that was killed leaves in a source: entries under temporary names. The next `put` of this user into that source
//! removes them ([`sweep`]); no other command does, for who names one means it.
//!
//! While it is at work, a `put` has a note in the state directory ([`Drafts`]): in which source, what its names begin with, and in
//! which folders it makes them. The note's lock is held by the `put`, so a note whose lock is free is of one that was killed,
//! whatever the machine did since, and nothing is guessed by age or by the number of a process. Only what has exactly such
//! a name, in such a folder, is removed. Folders are noted by inode numbers, for the names in a vault are to be nowhere else.
//!
//! A note costs a write for each folder, and is not synced: after a power cut something can stay. Without a state directory
//! there is none.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_core::path::transfer::{draft_prefix, is_draft};
use adit_core::path::{Node, Tree};
use adit_core::types::{Ino, Kind};
use adit_core::{ErrorKind, FsError};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::open::mounted::hold;
use crate::state_dir;

/// The folder of the notes, in the state directory.
const FOLDER: &str = "puts";

/// The first line of a note.
#[derive(Serialize, Deserialize)]
struct Head {
    /// The source's path.
    source: Vec<u8>,
    /// What the temporary names begin with.
    prefix: String,
}

/// The note of this process about its `put`.
pub struct Drafts {
    path: PathBuf,
    /// Locked.
    file: File,
    folders: HashSet<Ino>,
}

impl Drafts {
    /// Begins a note about a `put` into `source`; none if that cannot be had.
    pub fn begin(state: Result<PathBuf>, source: &Path) -> Option<Drafts> {
        let begun = state.and_then(|state| Drafts::begin_in(&state.join(FOLDER), source));
        begun.inspect_err(|failure| tracing::debug!("no note of temporary names: {}", failure.text())).ok()
    }

    fn begin_in(dir: &Path, source: &Path) -> Result<Drafts> {
        state_dir::create(dir)?;
        let path = dir.join(draft_prefix().trim_matches(['.', '-']));
        let failed = |e| Failure::io(path.display(), &e);
        let mut file = hold(&path).map_err(failed)?;
        let head = Head { source: source.as_os_str().as_bytes().to_vec(), prefix: draft_prefix().to_owned() };
        line(&mut file, &head).map_err(failed)?;
        Ok(Drafts { path, file, folders: HashSet::new() })
    }

    /// Entries are about to be made in the folder at `path`.
    pub fn folder(&mut self, tree: &Tree<'_>, path: &[u8]) {
        let noted = numbers(tree, path).map_err(io::Error::other).and_then(|numbers| {
            match numbers.last().is_none_or(|&last| self.folders.insert(last)) {
                true => line(&mut self.file, &numbers.iter().map(|ino| ino.0).collect::<Vec<u64>>()),
                false => Ok(()),
            }
        });
        if let Err(e) = noted {
            tracing::debug!("no note of temporary names: {e}");
        }
    }

    /// The `put` has come to its end. If it failed, something may be left, and the note is for who comes next.
    pub fn end(self, is_done: bool) {
        if is_done {
            remove(&self.path);
        }
    }
}

/// Appends a line of JSON.
fn line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    file.write_all(&text)
}

fn remove(note: &Path) {
    if let Err(e) = fs::remove_file(note) {
        tracing::debug!("{}: {e}", note.display());
    }
}

/// The inode numbers on the way to the folder at `path`, which has no links in it. None for the root.
fn numbers(tree: &Tree<'_>, path: &[u8]) -> Result<Vec<Ino>, FsError> {
    let (mut at, mut numbers) = (tree.root()?, Vec::new());
    for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
        at = tree.child(&at, name)?;
        numbers.push(at.ino());
    }
    Ok(numbers)
}

/// Removes what killed ones have left in `source`, whose store `tree` is; how much that was.
pub fn sweep(state: Result<PathBuf>, source: &Path, tree: &Tree<'_>) -> u64 {
    let Ok(state) = state else { return 0 };
    let notes = fs::read_dir(state.join(FOLDER)).into_iter().flatten().flatten();
    let mut removed = 0;
    for note in notes.map(|entry| entry.path()) {
        let Ok(mut file) = File::open(&note) else { continue };
        // Held by a `put` that is at work.
        if file.try_lock().is_err() {
            continue;
        }
        // Somebody else took it away meanwhile, and what has its name now is another one's.
        if file.metadata().is_ok_and(|meta| meta.nlink() == 0) {
            continue;
        }
        let mut text = Vec::new();
        if file.read_to_end(&mut text).is_err() {
            continue;
        }
        // What was cut off in the middle of a line is not noted, and nothing was made for it.
        let mut lines = text.split_inclusive(|&b| b == b'\n').filter(|line| line.ends_with(b"\n"));
        let Some(head) = lines.next().and_then(|line| serde_json::from_slice::<Head>(line).ok()) else {
            remove(&note);
            continue;
        };
        if head.source != source.as_os_str().as_bytes() {
            continue;
        }
        let cleared = lines.filter_map(|line| serde_json::from_slice::<Vec<u64>>(line).ok()).try_for_each(|numbers| {
            removed += clear(tree, &numbers, &head.prefix)?;
            Ok::<_, FsError>(())
        });
        match cleared {
            Ok(()) => remove(&note),
            // The next one tries again.
            Err(e) => tracing::debug!("temporary names stay: {e}"),
        }
    }
    removed
}

/// Removes the drafts with this prefix from the folder to which these numbers lead, if it is still there; how many.
fn clear(tree: &Tree<'_>, numbers: &[u64], prefix: &str) -> Result<u64, FsError> {
    let mut at = tree.root()?;
    for &number in numbers {
        let Some(next) = below(tree, &at, Ino(number))? else { return Ok(0) };
        at = next;
    }
    let mut removed = 0;
    for entry in tree.list(&at)? {
        if entry.kind != Kind::Directory && is_draft(&entry.name, prefix) {
            match tree.remove_in(&at, &entry.name, entry.kind) {
                Err(e) if !e.is_not_found() => return Err(e),
                done => removed += u64::from(done.is_ok()),
            }
        }
    }
    Ok(removed)
}

/// The folder in `dir` with this number.
fn below<'t>(tree: &'t Tree<'t>, dir: &Node<'_>, number: Ino) -> Result<Option<Node<'t>>, FsError> {
    for entry in tree.list(dir)?.into_iter().filter(|entry| entry.kind == Kind::Directory) {
        match tree.child(dir, &entry.name) {
            Ok(node) if node.ino() == number => return Ok(Some(node)),
            // One that is damaged is another one, or cannot be worked in.
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}
