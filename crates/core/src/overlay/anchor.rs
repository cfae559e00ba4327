//! Where things lie in the lower, however deep: a path in pieces.
//!
//! A value has no room for a path of any length. So an origin tells the names from an *anchor*, which notes once, for all that lies in a
//! directory of the lower, where that one lies; which again is told from an anchor above it. What lies near the root has none.
//! Anchors are files of the index that are never seen. They are about paths alone, never change, and stay: nothing counts what is told
//! from them.

use std::sync::Arc;

use hashbrown::HashSet;

use super::changes::Names;
use super::layer::Layer;
use super::node::{Node, Place};
use super::record::{AnchorId, Own, Way};
use super::{OWN, Purpose, Shared, name_of};
use crate::error::{ErrorKind, FsError, Result};
use crate::transaction::Transaction;
use crate::types::{Ino, XattrSet};

impl AnchorId {
    /// The one under which a way is noted, unless that notes another one: then the next that is free.
    fn of(value: &[u8]) -> AnchorId {
        // FNV-1a.
        let hash = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        AnchorId(value.iter().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    fn next(self) -> AnchorId {
        AnchorId(self.0.wrapping_add(1))
    }

    /// Its name in the index. No copy has such a one.
    fn name(self) -> String {
        format!("a{:016x}", self.0)
    }
}

/// What the upper with this `index` notes under an anchor.
fn anchor(upper: &Arc<Layer>, index: Ino, id: AnchorId) -> Result<Option<Way>> {
    let Some((_, held)) = upper.find(index, name_of(id.name().as_bytes())?)? else { return Ok(None) };
    let value = upper.store.xattr(held.ino, Own::Anchor.name())?;
    Way::decode(&value, &format!("inode {} of the upper layer", held.ino.0)).map(Some)
}

/// The path in the lower of what is at the end of `way`.
///
/// # Errors
/// `Corrupt` for an anchor that is missing or lies below itself.
pub(super) fn path(upper: &Arc<Layer>, index: Ino, way: &Way) -> Result<Names> {
    let (mut names, mut next) = (vec![way.names.clone()], way.anchor);
    let mut met = HashSet::new();
    while let Some(id) = next {
        let damaged = |why| {
            let subject = format!("the path in the layer below that the upper layer notes as '{}'", id.name());
            FsError::new(ErrorKind::Corrupt).on("read", subject).because(why)
        };
        if !met.insert(id) {
            return Err(damaged("it is told from itself"));
        }
        let way = anchor(upper, index, id)?.ok_or_else(|| damaged("it is missing"))?;
        names.push(way.names);
        next = way.anchor;
    }
    Ok(names.into_iter().rev().flatten().collect())
}

impl Shared {
    /// As [`path`], by this upper.
    pub fn path_below(&self, way: &Way) -> Result<Names> {
        path(&self.upper, self.layout.index.ino, way)
    }

    /// Where the object that `node` stands for lies in the lower: from the nearest copy, with as many names as that takes.
    pub fn way_of(&self, node: &Node) -> Result<Way> {
        let (upper, names) = node.nearest_copy().ok_or(ErrorKind::Stale)?;
        let mut way = self.origin(upper)?.ok_or(ErrorKind::Stale)?.way;
        way.names.extend(names);
        Ok(way)
    }

    /// Where what was found at `place` lies in the lower, to be noted in the upper.
    pub fn note_way(&self, place: &Place, purpose: Purpose) -> Result<Way> {
        let Way { anchor, names } = self.way_of(&place.dir)?;
        let mut way = Way { anchor, names: Vec::new() };
        for name in names.into_iter().chain([place.name.to_vec()]) {
            if !way.has_room(&name) {
                way = Way { anchor: Some(self.note_anchor(&way, purpose)?), names: Vec::new() };
            }
            way.names.push(name);
        }
        Ok(way)
    }

    /// Notes where a directory of the lower lies, in a transaction that changes nothing that is shown.
    fn note_anchor(&self, way: &Way, purpose: Purpose) -> Result<AnchorId> {
        let _noting = self.noting_anchors.lock();
        let (index, value) = (self.layout.index.ino, way.encode());
        let mut id = AnchorId::of(&value);
        while let Some(noted) = anchor(&self.upper, index, id)? {
            if noted == *way {
                return Ok(id);
            }
            id = id.next();
        }
        let learning = self.upper.learning();
        let mut made = None;
        self.transact_for(purpose, &mut |tx: &mut dyn Transaction| {
            let file = tx.create(index, name_of(id.name().as_bytes())?, &OWN)?.ino;
            made = Some(file);
            tx.set_xattr(file, Own::Anchor.name(), &value, XattrSet::Create)
        })?;
        drop(made.map(|file| self.upper.hold(&learning, file)));
        Ok(id)
    }

    /// The names that lead from the directory at the end of `dir` to what is at the end of `way`; `None` if that does not lie in it.
    pub fn names_from(&self, dir: &Way, way: &Way) -> Result<Option<Names>> {
        if dir.anchor == way.anchor {
            return Ok(way.names.strip_prefix(&*dir.names).map(<[_]>::to_vec));
        }
        if let Some(id) = way.anchor
            && anchor(&self.upper, self.layout.index.ino, id)?.is_some_and(|noted| noted == *dir)
        {
            return Ok(Some(way.names.clone()));
        }
        Ok(self.path_below(way)?.strip_prefix(&*self.path_below(dir)?).map(<[_]>::to_vec))
    }

    /// Whether `way` leads to what the lower has as `name` in the directory that `dir` stands for.
    pub fn leads_to(&self, way: &Way, dir: &Node, name: &[u8]) -> Result<bool> {
        if way.names.last().is_none_or(|last| last != name) {
            return Ok(false);
        }
        Ok(self.names_from(&self.way_of(dir)?, way)?.is_some_and(|names| names == [name]))
    }
}
