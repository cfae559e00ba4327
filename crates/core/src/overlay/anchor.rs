//! Where things lie in the lower, however deep: a path in pieces.
//!
//! A value has no room for a path of any length. So an origin tells the names from an *anchor*: a directory of the lower of
//! which the upper notes once, under its number, where it lies, which again is told from an anchor above it. What lies near
//! the root has none. Anchors are files of the index that are never seen, and stay: nothing counts what is told from them.

use std::sync::Arc;

use hashbrown::HashSet;

use super::changes::Names;
use super::layer::Layer;
use super::node::Node;
use super::record::{Own, Way};
use super::{OWN, Purpose, Shared, name_of, numbers};
use crate::error::{ErrorKind, FsError, Result};
use crate::types::{Ino, XattrSet};

/// The name of an anchor in the index. Copies have shorter ones.
fn anchor_name(dir: Ino) -> String {
    format!("a{:016x}", dir.0)
}

/// What the upper with this `index` notes of a directory of the lower.
fn anchor(upper: &Arc<Layer>, index: Ino, dir: Ino) -> Result<Option<Way>> {
    let Some((_, held)) = upper.find(index, name_of(anchor_name(dir).as_bytes())?)? else { return Ok(None) };
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
    while let Some(dir) = next {
        let damaged = |why| {
            let subject = format!("the path in the layer below of inode {}", dir.0);
            FsError::new(ErrorKind::Corrupt).on("read", subject).because(why)
        };
        if !met.insert(dir) {
            return Err(damaged("the upper layer tells it from itself"));
        }
        let way = anchor(upper, index, dir)?.ok_or_else(|| damaged("the upper layer does not have it any more"))?;
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

    /// Where the object that `node` stands for lies in the lower, and the anchors that this takes, from the top.
    fn way_to(&self, node: &Node) -> Result<(Way, Vec<(Ino, Way)>)> {
        let (upper, steps) = node.nearest_copy().ok_or(ErrorKind::Stale)?;
        let mut way = self.origin(upper)?.ok_or(ErrorKind::Stale)?.way;
        let mut anchors = Vec::new();
        for step in steps {
            if !way.has_room(&step.name) {
                let dir = numbers::in_lower(step.dir).unwrap_or(step.dir);
                anchors.push((dir, std::mem::replace(&mut way, Way { anchor: Some(dir), names: Vec::new() })));
            }
            way.names.push(step.name);
        }
        Ok((way, anchors))
    }

    /// Where the object that `node` stands for lies in the lower, to be noted in the upper.
    pub fn note_way(&self, node: &Node, purpose: Purpose) -> Result<Way> {
        let (way, anchors) = self.way_to(node)?;
        anchors.iter().try_for_each(|(dir, way)| self.note_anchor(*dir, way, purpose))?;
        Ok(way)
    }

    /// Notes where a directory of the lower lies, in a transaction that changes nothing that is shown.
    fn note_anchor(&self, dir: Ino, way: &Way, purpose: Purpose) -> Result<()> {
        let _noting = self.noting_anchors.lock();
        let (index, name) = (self.layout.index.ino, anchor_name(dir));
        let (name, value) = (name_of(name.as_bytes())?, way.encode());
        let set = |tx: &mut dyn crate::transaction::Transaction, file| {
            tx.set_xattr(file, Own::Anchor.name(), &value, XattrSet::Either)
        };
        if let Some((_, held)) = self.upper.find(index, name)? {
            if self.own_xattr(held.ino, Own::Anchor)?.is_some_and(|noted| noted == value) {
                return Ok(());
            }
            return self.transact_for(purpose, &mut |tx| set(tx, held.ino));
        }
        let learning = self.upper.learning();
        let mut made = None;
        self.transact_for(purpose, &mut |tx| {
            let file = tx.create(index, name, &OWN)?.ino;
            made = Some(file);
            set(tx, file)
        })?;
        drop(made.map(|file| self.upper.hold(&learning, file)));
        Ok(())
    }

    /// Whether `way` leads to what the lower has as `name` in the directory that `dir` stands for.
    pub fn leads_to(&self, way: &Way, dir: &Node, name: &[u8]) -> Result<bool> {
        let mut above = way.clone();
        if above.names.pop().is_none_or(|last| last != name) {
            return Ok(false);
        }
        if above.names.is_empty() {
            let anchor = above.anchor.unwrap_or(Ino::ROOT);
            return Ok(anchor == numbers::in_lower(dir.ino).unwrap_or(dir.ino));
        }
        let (parent, _) = self.way_to(dir)?;
        Ok(above == parent || self.path_below(&above)? == self.lower_path(dir)?)
    }
}
