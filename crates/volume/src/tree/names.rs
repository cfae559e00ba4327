//! From an inode back to its names.

use std::ops::ControlFlow;

use adit_core::types::Kind;
use adit_core::{ErrorKind, Result};

use super::ROOT_INO;
use super::view::{View, corrupt_inode};
use crate::format::keys::{self, Key, Parts};
use crate::format::records::{Entry, Malformed, Place};

/// A directory that is one of those above itself, which only damage makes.
pub(super) const HOLDS_ITSELF: Malformed = Malformed("a directory that holds itself");

/// Finds out whether a way upwards never ends, by comparing each directory with one that it passed before.
#[derive(Default)]
pub(super) struct Ascent {
    steps: u64,
    mark: u64,
}

impl Ascent {
    /// The way leads to `dir` now. `Corrupt` if it has been there.
    pub fn pass(&mut self, dir: u64) -> Result<()> {
        if self.steps > 0 && dir == self.mark {
            return Err(corrupt_inode(dir, HOLDS_ITSELF));
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.mark = dir;
        }
        Ok(())
    }
}

impl View<'_> {
    /// All names of an inode, the first one first.
    pub fn places(&self, ino: u64) -> Result<Vec<Place>> {
        let inode = self.inode(ino)?;
        let mut places = Vec::new();
        if inode.place == Place::default() {
            return Ok(places);
        }
        places.push(inode.place);
        if inode.kind != Kind::Directory && inode.nlink > 1 {
            let (start, end) = keys::range_of(keys::space::NAME, ino);
            self.scan(&start, &end, &mut |key, _| {
                if let Some(Parts::Name(_, dir, cookie)) = Key::from_logical(key).as_ref().and_then(Key::parts) {
                    places.push(Place { dir, cookie });
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(places)
    }

    /// The name at a place.
    pub fn name_at(&self, place: Place) -> Result<Option<Vec<u8>>> {
        match self.find(&Key::entry(place.dir, place.cookie))?.value {
            None => Ok(None),
            Some(value) => {
                let entry = Entry::decode(&value).map_err(|why| corrupt_inode(place.dir, why))?;
                Ok(Some(entry.name.to_vec()))
            }
        }
    }

    /// The path to a place from the root, with a leading slash, however deep that is. `None` where something on the way has no name.
    ///
    /// # Errors
    /// `Corrupt` where directories hold each other.
    pub fn path_to(&self, place: Place) -> Result<Option<Vec<u8>>> {
        self.path_from(ROOT_INO, place)
    }

    /// The path of a directory from another one above it, with a leading slash. `None` if it is not below it, or has no name.
    pub fn path_below(&self, above: u64, dir: u64) -> Result<Option<Vec<u8>>> {
        if dir == above {
            return Ok(Some(b"/".to_vec()));
        }
        match self.inode(dir) {
            Ok(inode) if inode.place != Place::default() => self.path_from(above, inode.place),
            Ok(_) => Ok(None),
            Err(e) if e.kind() == ErrorKind::Stale => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn path_from(&self, above: u64, place: Place) -> Result<Option<Vec<u8>>> {
        let (mut names, mut at, mut ascent) = (Vec::new(), place, Ascent::default());
        loop {
            ascent.pass(at.dir)?;
            let Some(name) = self.name_at(at)? else { return Ok(None) };
            names.push(name);
            if at.dir == above {
                let mut path = Vec::new();
                for name in names.iter().rev() {
                    path.push(b'/');
                    path.extend_from_slice(name);
                }
                return Ok(Some(path));
            }
            at = match self.inode(at.dir) {
                // It goes while we look.
                Err(e) if e.kind() == ErrorKind::Stale => return Ok(None),
                inode => inode?.place,
            };
            if at == Place::default() {
                return Ok(None);
            }
        }
    }

    /// A path of an inode, for messages.
    pub fn path_of(&self, ino: u64) -> Result<Option<String>> {
        Ok(self.path_bytes_of(ino)?.map(|path| String::from_utf8_lossy(&path).into_owned()))
    }

    /// A path of an inode, with a leading slash.
    pub fn path_bytes_of(&self, ino: u64) -> Result<Option<Vec<u8>>> {
        if ino == ROOT_INO {
            return Ok(Some(b"/".to_vec()));
        }
        let place = self.inode(ino)?.place;
        if place == Place::default() {
            return Ok(None);
        }
        self.path_to(place)
    }
}
