//! Directories: listed, walked, and removed with all that is in them.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::store::Store;
use adit_core::types::{Attr, FileName, Ino, Kind};
use adit_core::{ErrorKind, Result};

use super::{Fs, Last, Shared, named};

/// Entries that are read at once.
const AT_ONCE: usize = 128;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: OsString,
    /// Its inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
}

/// The entries of a directory, in no order; what stays there while this goes on comes once, whatever changes meanwhile.
pub struct ReadDir {
    shared: Arc<Shared>,
    dir: Ino,
    /// Read and not handed out yet, the next one last.
    read: Vec<DirEntry>,
    cookie: u64,
    ended: bool,
}

/// What a walk shows.
#[derive(Clone, Debug)]
pub struct Visited {
    /// Where it is: the path that the walk began with, and the names below it.
    pub path: PathBuf,
    /// Its attributes.
    pub attr: Attr,
    /// How far below the start it is, which has 0.
    pub depth: usize,
}

/// How a walk goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkStep {
    /// On, and into this directory.
    Into,
    /// On, but not into this directory.
    Past,
    /// It ends here.
    Stop,
}

impl ReadDir {
    fn fill(&mut self) -> Result<()> {
        let (read, cookie) = (&mut self.read, &mut self.cookie);
        let start = *cookie;
        self.shared.store.read_dir(self.dir, start, &mut |entry| {
            let name = OsString::from_vec(entry.name.as_bytes().to_vec());
            read.push(DirEntry { name, ino: entry.ino, kind: entry.kind });
            *cookie = entry.cookie;
            if read.len() < AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        self.ended = self.read.len() < AT_ONCE;
        self.read.reverse();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.read.is_empty()
            && !self.ended
            && let Err(e) = self.fill()
        {
            self.ended = true;
            return Some(Err(e));
        }
        self.read.pop().map(Ok)
    }
}

/// A directory that a walk is in.
struct Level {
    path: PathBuf,
    ino: u64,
    /// Its entries that are still to come, the next one last.
    todo: Vec<DirEntry>,
}

impl Fs {
    /// The entries of a directory, without `.` and `..`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let dir = Ino(self.directory(path).map_err(named("list", path))?);
        Ok(ReadDir { shared: self.shared.clone(), dir, read: Vec::new(), cookie: 0, ended: false })
    }

    /// Shows what is at `path` and everything below it, in order of name, each directory before what is in it. Symbolic links are
    /// shown, not followed, but for `path` itself. What goes meanwhile is left out. An error of `visit` ends the walk.
    pub fn walk(&self, path: impl AsRef<Path>, mut visit: impl FnMut(&Visited) -> Result<WalkStep>) -> Result<()> {
        let path = path.as_ref();
        let (ino, _) = self.find(path, Last::Follow).map_err(named("walk", path))?;
        let attr = self.attr(ino).map_err(named("walk", path))?;
        let mut levels: Vec<Level> = Vec::new();
        let mut next = Some(Visited { path: path.to_owned(), attr, depth: 0 });
        loop {
            if let Some(visited) = next.take() {
                match visit(&visited)? {
                    WalkStep::Stop => return Ok(()),
                    WalkStep::Into if visited.attr.kind == Kind::Directory => levels.push(self.level(visited)?),
                    _ => {}
                }
            }
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Ok(()) };
            let Some(entry) = level.todo.pop() else {
                levels.pop();
                continue;
            };
            // Looked up anew: it may have been replaced.
            let Some((ino, _)) = self.entry(level.ino, entry.name.as_bytes())? else { continue };
            let path = level.path.join(&entry.name);
            match self.attr(ino) {
                Ok(attr) => next = Some(Visited { path, attr, depth }),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(named("walk", &path)(e)),
            }
        }
    }

    fn level(&self, visited: Visited) -> Result<Level> {
        let Visited { path, attr, .. } = visited;
        let mut todo = self.list(attr.ino).map_err(named("walk", &path))?;
        todo.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        Ok(Level { path, ino: attr.ino.0, todo })
    }

    fn list(&self, dir: Ino) -> Result<Vec<DirEntry>> {
        ReadDir { shared: self.shared.clone(), dir, read: Vec::new(), cookie: 0, ended: false }.collect()
    }

    /// Removes what is at `path` with everything in it; symbolic links are removed, not followed. What is absent is no error.
    pub fn remove_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let spot = match self.spot(path, Last::Keep) {
            Err(e) if e.is_not_found() => return Ok(()),
            spot => spot.map_err(named("remove", path))?,
        };
        let Some((ino, kind)) = spot.found else { return Ok(()) };
        if spot.name.is_empty() {
            // Says that it has no name.
            return self.remove(path);
        }
        let remove = || {
            if kind == Kind::Directory {
                self.empty(ino)?;
            }
            self.remove_if_there(spot.dir, OsStr::from_bytes(&spot.name), kind)
        };
        remove().map_err(named("remove", path))
    }

    /// Removes all that is in a directory.
    fn empty(&self, dir: u64) -> Result<()> {
        // The directories on the way, each with its place, the innermost one last.
        let mut levels = vec![(dir, None)];
        while let Some((dir, place)) = levels.pop() {
            let entries = match self.list(Ino(dir)) {
                Err(e) if e.kind() == ErrorKind::Stale => continue,
                entries => entries?,
            };
            let (folders, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| e.kind == Kind::Directory);
            for entry in others {
                self.remove_if_there(dir, &entry.name, entry.kind)?;
            }
            if !folders.is_empty() {
                // Once more when these are gone.
                levels.push((dir, place));
                levels.extend(folders.into_iter().map(|folder| (folder.ino.0, Some((dir, folder.name)))));
            } else if let Some((above, name)) = place {
                self.remove_if_there(above, &name, Kind::Directory)?;
            }
        }
        Ok(())
    }

    fn remove_if_there(&self, dir: u64, name: &OsStr, kind: Kind) -> Result<()> {
        match self.remove_in(Ino(dir), FileName::new(name.as_bytes())?, kind) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Stale) => Ok(()),
            done => done,
        }
    }
}
