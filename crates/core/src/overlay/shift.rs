//! An overlay whose upper becomes another state of itself, as a whole, while it is in use.
//!
//! What is shared is made anew, as if the overlay was opened on that state. What is known by a number is looked for where it was: found under
//! the same number, it is known again, whatever it holds now. Files that were open are to be opened again: those from before
//! belong to what was shared before.
//!
//! Whoever does that has nobody call the overlay meanwhile, and finds out before what differs: [`Overlay::told_of`] translates what is known of
//! the upper.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::changes::{Names, is_gone};
use super::layer::{Held, Layer};
use super::node::Node;
use super::record::{Origin, Own, shown};
use super::{LowerIdentity, Overlay, Shared, anchor, format, name_of, names, numbers};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::Store;
use crate::types::{FileName, Ino, Kind, SetAttr};

/// How two states of an overlay differ, in the numbers and names that it shows.
#[derive(Default, Debug)]
pub struct Told {
    /// Directories in use, and names in them that lead elsewhere, or from or to nowhere.
    pub elsewhere: BTreeSet<(Ino, Vec<u8>)>,
    /// Names in them that lead to what they led to, in the other layer.
    pub same: BTreeSet<(Ino, Vec<u8>)>,
    /// What differs; and whether as something else than a directory that still shows what it showed of the lower.
    pub inodes: BTreeMap<Ino, bool>,
    /// What differs and is the lower's alone again: its names from the root there.
    pub surfaced: BTreeSet<Names>,
}

/// As what an inode of an upper is shown.
#[derive(Clone, Copy)]
struct Shown {
    ino: Ino,
    kind: Kind,
    /// It is a directory that shows nothing of the lower, though it stands for one there.
    opaque: bool,
}

/// A state of the upper.
struct State<'s> {
    upper: &'s Arc<Layer>,
    whiteout: Option<Held>,
    index: Option<Held>,
}

impl<'s> State<'s> {
    fn of(upper: &'s Arc<Layer>) -> Result<State<'s>> {
        let part = |name: &[u8]| Ok::<_, FsError>(upper.find(Ino::ROOT, name_of(name)?)?.map(|(_, held)| held));
        Ok(State { upper, whiteout: part(names::WHITEOUT)?, index: part(names::INDEX)? })
    }

    /// As what an inode is shown. `None` where it is not there, or is the overlay's own.
    fn shown(&self, shared: &Shared, inode: Ino) -> Result<Option<Shown>> {
        if inode == Ino::ROOT {
            return Ok(None);
        }
        let kind = match self.upper.store.getattr(inode) {
            Ok(attr) => attr.kind,
            Err(e) if e.kind() == ErrorKind::Stale => return Ok(None),
            Err(e) => return Err(e),
        };
        Ok(match self.origin(inode)? {
            None => numbers::of_upper(inode).map(|ino| Shown { ino, kind, opaque: false }),
            Some(origin) => {
                let found = || self.path(&origin).and_then(|path| shared.at_path_below(&path));
                let ino = shared.number_of_copy(inode, &origin, found)?;
                Some(Shown { ino, kind, opaque: origin.opaque })
            }
        })
    }

    fn origin(&self, inode: Ino) -> Result<Option<Origin>> {
        match self.upper.store.xattr(inode, Own::Origin.name()) {
            Ok(value) => Origin::decode(&value, &format!("inode {} of the upper layer", inode.0)).map(Some),
            Err(e) if matches!(e.kind(), ErrorKind::NoAttribute | ErrorKind::Stale) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Where an origin's object lies in the lower, as this state notes it.
    fn path(&self, origin: &Origin) -> Result<Names> {
        let index = self.index.as_ref().ok_or(ErrorKind::Corrupt)?;
        anchor::path(self.upper, index.ino, &origin.way)
    }

    fn origin_path(&self, inode: Ino) -> Result<Option<Names>> {
        self.origin(inode)?.map(|origin| self.path(&origin)).transpose()
    }

    /// Where a copy's original is, if the copy was changed since it was made.
    fn changed_origin(&self, inode: Ino) -> Result<Option<Names>> {
        let Some(origin) = self.origin(inode)? else { return Ok(None) };
        let is_changed = self.upper.store.getattr(inode)?.ctime != origin.print.ctime;
        if is_changed { self.path(&origin).map(Some) } else { Ok(None) }
    }

    /// Whether a directory of the upper has a whiteout of that name.
    fn has_whiteout(&self, dir: Ino, name: &[u8]) -> Result<bool> {
        let entry = match self.upper.find(dir, name_of(name)?) {
            Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::NotDirectory) => None,
            entry => entry?,
        };
        Ok(entry.is_some_and(|(_, held)| self.whiteout.as_ref().is_some_and(|whiteout| whiteout.ino == held.ino)))
    }

    /// What `name` leads to in a directory that has a copy or not, and stands for `dir`.
    fn target(
        &self,
        shared: &Shared,
        copy: Option<Ino>,
        dir: &Node,
        name: FileName<'_>,
    ) -> Result<Option<(Ino, Kind)>> {
        let entry = copy.map(|copy| self.upper.find(copy, name)).transpose()?.flatten();
        match entry {
            Some((_, held)) if self.whiteout.as_ref().is_some_and(|whiteout| whiteout.ino == held.ino) => Ok(None),
            Some((_, held)) => Ok(self.shown(shared, held.ino)?.map(|shown| (shown.ino, shown.kind))),
            None => match shared.beneath(dir, name) {
                Ok(below) => below.map(|(attr, _)| Ok((shared.number_of_lower(attr.ino)?, attr.kind))).transpose(),
                Err(e) if is_gone(&e) => Ok(None),
                Err(e) => Err(e),
            },
        }
    }
}

impl Overlay {
    /// Translates how the upper differs from `then`, another state of it: directories and names, and inodes. What is in a directory that is
    /// not in use is left out.
    ///
    /// # Errors
    /// `Corrupt`; what the layers say.
    pub fn told_of<'n>(
        &self,
        then: Arc<dyn Store>,
        entries: impl Iterator<Item = (Ino, &'n [u8])>,
        inodes: impl Iterator<Item = Ino>,
    ) -> Result<Told> {
        let (shared, then) = (self.shared(), Layer::new(then));
        let told = shared.told_of([State::of(&shared.upper)?, State::of(&then)?], entries, inodes);
        shared.settle();
        told
    }

    /// The names that lead to `ino` where it was found last, each with its directory; the root's first. `None` of what is not known, or has
    /// no name any more.
    pub fn way_to(&self, ino: Ino) -> Option<Vec<(Ino, Vec<u8>)>> {
        let mut at = self.shared().node(ino).ok()?;
        let mut way = Vec::new();
        while at.ino != Ino::ROOT {
            let place = at.place().filter(|_| !at.state().removed)?;
            way.push((place.dir.ino, place.name.into_vec()));
            at = place.dir;
        }
        way.reverse();
        Some(way)
    }

    /// Shows what the upper is from now on. Of `known`, the numbers that are in use, those are returned that are not known any more:
    /// nothing with that number is where it was.
    ///
    /// # Errors
    /// As of [`Overlay::open`]; then it shows what it showed, which may not fit the upper any more.
    pub fn shift(&self, identity: &LowerIdentity, known: &[Ino]) -> Result<Vec<Ino>> {
        let old = self.shared();
        let alone = old.names.write();
        if Self::is_new(&*old.joined)? {
            format(&*old.lower.store, &*old.joined, identity)?;
        }
        let layers = (old.lower.clone(), old.upper.clone());
        let new = Shared {
            counters: old.counters.clone(),
            work: old.work.clone(),
            noting: old.noting.clone(),
            ..Shared::begin(layers, old.joined.clone(), identity, old.reads_verified)?
        };
        let (mut met, mut lost) = (HashMap::new(), Vec::new());
        for &ino in known.iter().filter(|&&ino| ino != Ino::ROOT) {
            match old.table.get(ino).and_then(|node| new.find_again(node, &mut met)) {
                Some(node) => new.table.learn(&node),
                None => lost.push(ino),
            }
        }
        *self.0.write() = Arc::new(new);
        drop((alone, met));
        old.settle();
        Ok(lost)
    }
}

impl Overlay {
    /// Gives what is the lower's alone, at these paths there, the time of change `times` has: it is copied up for that. What is not found where it
    /// is in the lower, or cannot be copied, is left as it is.
    pub fn stamp(&self, paths: impl IntoIterator<Item = Names>, times: &SetAttr) {
        let shared = self.shared();
        for path in paths {
            if let Err(e) = shared.stamp(&path, times) {
                tracing::warn!("{}: its time of change stays that of the layer below: {e}", shown(&path));
            }
        }
        shared.settle();
    }
}

impl Shared {
    fn stamp(&self, path: &Names, times: &SetAttr) -> Result<()> {
        let mut node = self.root.clone();
        for name in path {
            let found = {
                let _names = self.names.read();
                self.find(&node, name_of(name)?)?
            };
            match found {
                Some(entry) => node = entry.node,
                None => return Ok(()),
            }
        }
        if node.upper().is_some() {
            return Ok(());
        }
        self.change(&node, &mut |tx, upper| tx.setattr(upper, times).map(drop))
    }

    fn told_of<'n>(
        &self,
        states: [State<'_>; 2],
        entries: impl Iterator<Item = (Ino, &'n [u8])>,
        inodes: impl Iterator<Item = Ino>,
    ) -> Result<Told> {
        let mut told = Told::default();
        for (copy, name) in entries {
            let [now, then] = [states[0].shown(self, copy)?, states[1].shown(self, copy)?];
            if let (true, Some(mut path)) = (states[0].has_whiteout(copy, name)?, states[0].origin_path(copy)?) {
                path.push(name.to_vec());
                told.surfaced.insert(path);
            }
            let number = now.or(then).map(|shown| shown.ino);
            let Some(dir) = number.and_then(|number| self.node(number).ok()).filter(|dir| dir.is_directory()) else {
                continue;
            };
            let target =
                |state: &State<'_>, shown: Option<Shown>| state.target(self, shown.map(|_| copy), &dir, name_of(name)?);
            let [before, after] = [target(&states[0], now)?, target(&states[1], then)?];
            let entry = (dir.ino, name.to_vec());
            match before {
                Some((_, Kind::Directory)) if before == after => {}
                _ if before == after => drop(told.same.insert(entry)),
                _ => drop(told.elsewhere.insert(entry)),
            }
        }
        for inode in inodes {
            let shown = [states[0].shown(self, inode)?, states[1].shown(self, inode)?];
            let opaque = shown.map(|shown| shown.is_some_and(|shown| shown.opaque));
            if let [Some(_), None] = shown {
                told.surfaced.extend(states[0].changed_origin(inode)?);
            }
            for shown in shown.into_iter().flatten() {
                let stays = shown.kind == Kind::Directory && opaque[0] == opaque[1];
                *told.inodes.entry(shown.ino).or_insert(false) |= !stays;
            }
        }
        Ok(told)
    }

    /// What is where `node`, of what was shared before, was, if that is the same thing. `met`: what was looked for so far.
    fn find_again(&self, node: Arc<Node>, met: &mut HashMap<Ino, Option<Arc<Node>>>) -> Option<Arc<Node>> {
        let (mut at, mut way) = (node, Vec::new());
        let mut found = loop {
            if at.ino == Ino::ROOT {
                break Some(self.root.clone());
            }
            if let Some(before) = met.get(&at.ino) {
                break before.clone();
            }
            let place = at.place().filter(|_| !at.state().removed);
            let Some(place) = place else {
                met.insert(at.ino, None);
                break None;
            };
            way.push((at.ino, at.kind, place.name));
            at = place.dir;
        };
        for (ino, kind, name) in way.into_iter().rev() {
            found = found.and_then(|dir| self.same_at(&dir, &name, (ino, kind)).unwrap_or_else(told));
            met.insert(ino, found.clone());
        }
        found
    }

    fn same_at(&self, dir: &Arc<Node>, name: &[u8], (ino, kind): (Ino, Kind)) -> Result<Option<Arc<Node>>> {
        let entry = self.find(dir, name_of(name)?)?;
        Ok(entry.map(|entry| entry.node).filter(|node| node.ino == ino && node.kind == kind))
    }
}

/// What cannot be looked at is not known; whoever asks for it is told why.
fn told(error: FsError) -> Option<Arc<Node>> {
    tracing::warn!("what was known there is looked up again: {error}");
    None
}
