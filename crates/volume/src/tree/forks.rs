//! Versions that nobody sees because everybody below hides them.
//!
//! What a nameless id wrote is seen by the several ids that descend from it (a *fork*), until each line below it has a version of
//! its own. Whether that is so is in the lists of any one of them: a key that all hide, this one touched. So after something was
//! deleted, the list of one line below each fork that it concerns is gone through, in batches that may be interrupted anywhere.
//! What is hidden later, by writes, goes with the next deletion near it, opening, or collection of all.

use std::collections::HashSet;

use adit_core::{ErrorKind, Result};

use super::Tree;
use super::collect::KEYS_AT_ONCE;
use super::draft::Draft;
use super::topology::Topology;
use crate::format::keys::{self, Id, Key};
use crate::format::records::{self, State};

/// An id and the nameless ones right below it, as far as there is one line, and what is below that.
struct Line {
    ids: HashSet<Id>,
    /// Whether somebody looks at its end.
    has_viewer: bool,
    below: Vec<Line>,
}

impl Line {
    /// `None` if it is going.
    fn new(topology: &Topology, id: Id) -> Result<Option<Line>> {
        let (mut ids, mut at) = (HashSet::new(), id);
        loop {
            let node = topology.node(at)?;
            if node.is_going() {
                return Ok(None);
            }
            ids.insert(at);
            let has_viewer = matches!(node.record.state, State::Live | State::Frozen);
            match node.children.as_slice() {
                &[child] if !has_viewer => at = child,
                _ if has_viewer => return Ok(Some(Line { ids, has_viewer, below: Vec::new() })),
                children => {
                    let below = children.iter().filter_map(|&child| Line::new(topology, child).transpose());
                    return Ok(Some(Line { ids, has_viewer, below: below.collect::<Result<_>>()? }));
                }
            }
        }
    }

    /// Whether nobody below sees what is above, of a key of which there are these versions.
    fn hides(&self, versions: &[(Id, Vec<u8>)]) -> bool {
        versions.iter().any(|(id, _)| self.ids.contains(id))
            || (!self.has_viewer && self.below.iter().all(|line| line.hides(versions)))
    }

    /// The ids from here down to one of those who look.
    fn way_to_a_viewer(&self, way: &mut Vec<Id>) {
        way.extend(&self.ids);
        if let Some(line) = self.below.last() {
            line.way_to_a_viewer(way);
        }
    }
}

fn is_fork(topology: &Topology, id: Id) -> bool {
    topology.node(id).is_ok_and(|node| node.record.state == State::Nameless && node.children.len() > 1)
}

impl Tree {
    /// Has all forks looked through.
    pub fn note_forks(&self) {
        let _nothing_is_dropped = self.collecting.lock();
        let topology = self.topology.read();
        let forks = topology.nodes().map(|(id, _)| id).filter(|&id| is_fork(&topology, id));
        self.forks.lock().extend(forks.map(|id| (id, Vec::new())));
    }

    /// Has the forks looked through that a change of `id` concerns: those at or above it, up to an id that has a name.
    pub(super) fn note_forks_above(&self, topology: &Topology, id: Id) {
        let mut at = id;
        while let Ok(node) = topology.node(at)
            && matches!(node.record.state, State::Nameless | State::Merging)
        {
            if is_fork(topology, at) {
                self.forks.lock().insert(at, Vec::new());
            }
            at = node.record.parent;
        }
    }

    /// One batch of what everybody hides; whether there may be more.
    pub(super) fn drop_hidden(&self) -> Result<bool> {
        let topology = self.topology.read();
        let Some((fork, done)) = self.forks.lock().first_key_value().map(|(id, done)| (*id, done.clone())) else {
            return Ok(false);
        };
        let result = self.drop_hidden_of(&topology, fork, &done);
        match &result {
            Ok(Some(done)) => drop(self.forks.lock().insert(fork, done.clone())),
            Err(e) if e.kind() != ErrorKind::Corrupt => {}
            _ => drop(self.forks.lock().remove(&fork)),
        }
        result.map(|_| true)
    }

    /// One batch of what those below a fork hide, behind what is done. Returns how far it came, unless that is all.
    fn drop_hidden_of(&self, topology: &Topology, fork: Id, done: &[u8]) -> Result<Option<Vec<u8>>> {
        if !is_fork(topology, fork) {
            return Ok(None);
        }
        let upper: HashSet<Id> = topology.chain_of(fork).ids().iter().copied().collect();
        let children = topology.node(fork)?.children.iter();
        let below: Vec<Line> =
            children.filter_map(|&child| Line::new(topology, child).transpose()).collect::<Result<_>>()?;
        let mut writers = Vec::new();
        if let Some(line) = below.last() {
            line.way_to_a_viewer(&mut writers);
        }
        writers.sort_unstable();
        let _numbers = self.numbers.lock();
        let mut draft = Draft::new(self);
        draft.uses_reserve = true;
        let from = if done.is_empty() { Vec::new() } else { [done, &[0]].concat() };
        let (mut count, mut last) = (0, None);
        for writer in writers {
            for key in self.touched(writer, &from)? {
                count += 1;
                last = Some(keys::touched(writer, key.as_bytes()));
                let versions = draft.versions(&key)?;
                if versions.iter().any(|(id, _)| upper.contains(id)) && below.iter().all(|line| line.hides(&versions)) {
                    drop_hidden_versions(&mut draft, topology, &key, versions, |id| upper.contains(&id))?;
                }
                if draft.is_full() {
                    break;
                }
            }
            if count >= KEYS_AT_ONCE || draft.is_full() {
                break;
            }
        }
        draft.apply()?;
        Ok(last)
    }
}

/// Drops the versions of a key that are hidden, and the tombstones that hide nothing then.
fn drop_hidden_versions(
    draft: &mut Draft<'_>,
    topology: &Topology,
    key: &Key,
    versions: Vec<(Id, Vec<u8>)>,
    is_hidden: impl Fn(Id) -> bool,
) -> Result<()> {
    let (mut gone, seen): (Vec<_>, Vec<_>) = versions.into_iter().partition(|(id, _)| is_hidden(*id));
    let mut kept: Vec<(Id, bool)> = Vec::new();
    // Those above come first.
    for (id, value) in seen.into_iter().rev() {
        let is_tombstone = records::is_tombstone(&value);
        let beyond = kept.iter().rev().find(|(above, _)| topology.sees(id, *above));
        if is_tombstone && beyond.is_none_or(|(_, is_tombstone)| *is_tombstone) {
            gone.push((id, value));
        } else {
            kept.push((id, is_tombstone));
        }
    }
    draft.drop_versions(key, &gone)
}
