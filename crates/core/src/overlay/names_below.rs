//! All names that files have in the lower.
//!
//! Nothing leads from a file to its names. Directories are listed until all are found: first those in which a name is known and
//! what lies in them, then the others, without a look at anything but directories.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use hashbrown::HashSet;

use super::changes::{Names, is_gone};
use super::layer::{Held, Layer};
use super::name_of;
use crate::error::{ErrorKind, FsError, Result};
use crate::types::{Ino, Kind};

/// A file whose names are wanted.
#[derive(Clone)]
pub(super) struct Linked {
    /// How many it has, there or elsewhere.
    pub count: u32,
    /// One of them.
    pub near: Names,
}

/// A directory that could not be listed.
pub(super) struct Failed {
    pub path: Names,
    pub error: FsError,
}

/// Names, by number.
pub(super) type Found = BTreeMap<Ino, BTreeSet<Names>>;

/// A directory to be listed: it, or where it lies, and its path.
struct Todo {
    dir: Arc<Held>,
    name: Option<Vec<u8>>,
    path: Names,
}

/// Finds the names of `wanted`. What could not be listed is told only if names are missing.
///
/// # Errors
/// `InvalidInput` for a name that is none.
pub(super) fn names_below(lower: &Arc<Layer>, wanted: &BTreeMap<Ino, Linked>) -> Result<(Found, Vec<Failed>)> {
    let (mut found, mut failed, mut seen) = (Found::new(), Vec::new(), HashSet::new());
    let is_missing = |found: &Found| {
        wanted.iter().any(|(ino, linked)| found.get(ino).map_or(0, BTreeSet::len) < linked.count as usize)
    };
    let root = Arc::new(lower.root());
    let mut todo = vec![Todo { dir: root.clone(), name: None, path: Names::new() }];
    for linked in wanted.values() {
        todo.extend(above(lower, &root, &linked.near)?);
    }
    while is_missing(&found)
        && let Some(Todo { dir, name, path }) = todo.pop()
    {
        let listed = match name {
            None => Ok(dir),
            Some(name) => lower.lookup(dir.ino, name_of(&name)?).map(|(_, held)| Arc::new(held)),
        };
        let listed = listed.and_then(|dir| {
            if !seen.insert(dir.ino) {
                return Ok(());
            }
            lower.store.read_dir(dir.ino, 0, &mut |entry| {
                let path = || path.iter().cloned().chain([entry.name.as_bytes().to_vec()]).collect();
                if entry.kind == Kind::Directory {
                    todo.push(Todo { dir: dir.clone(), name: Some(entry.name.as_bytes().to_vec()), path: path() });
                } else if wanted.contains_key(&entry.ino) {
                    found.entry(entry.ino).or_default().insert(path());
                }
                ControlFlow::Continue(())
            })
        });
        match listed {
            // Another filesystem has no names of these; and what went has none any more.
            Err(e) if is_gone(&e) || e.kind() == ErrorKind::CrossDevice => {}
            Err(error) => failed.push(Failed { path, error }),
            Ok(()) => {}
        }
    }
    if !is_missing(&found) {
        failed.clear();
    }
    Ok((found, failed))
}

/// The directory in which the name at `path` lies, if it is there.
fn above(lower: &Arc<Layer>, root: &Arc<Held>, path: &Names) -> Result<Option<Todo>> {
    let Some((_, path)) = path.split_last() else { return Ok(None) };
    let mut dir = root.clone();
    for name in path {
        match lower.lookup(dir.ino, name_of(name)?) {
            Ok((_, held)) => dir = Arc::new(held),
            // It is met again on the way from the root.
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(Todo { dir, name: None, path: path.to_vec() }))
}
