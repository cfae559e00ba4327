//! The tree of ids: which snapshot or branch descends from which, and so what each of them sees.
//!
//! A version that id `w` wrote is seen by `v` if `w` is `v` or above it; of several the nearest counts. Ids grow downwards: a
//! child's id is greater than its parent's, so the nearest is the greatest.
//!
//! A [`Chain`] is an id with the nameless ids right above it that have no other child: whoever sees one of these sees all
//! of them, so together they are one. Of each key a chain has one version at most, but for what is still to be merged. The
//! chain that begins with the first id is the *topmost*: there is nothing above it that could be hidden, and nothing that
//! could be dropped but with the whole volume, so nobody needs to know what it touched.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use adit_core::{ErrorKind, FsError, Result};
use hashbrown::HashMap;

use crate::format::keys::Id;
use crate::format::records::{Snapshot, State};

/// The id that everything descends from.
pub const FIRST_ID: Id = 1;

/// A snapshot or branch in memory.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its record.
    pub record: Snapshot,
    /// Ids whose parent it is.
    pub children: Vec<Id>,
    depth: u32,
    /// An id above it, chosen so that any id above is few jumps away; itself for the first.
    jump: Id,
}

/// See the module's notes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// Ascending; the last one is the id whose chain it is.
    ids: Vec<Id>,
    /// Whether it begins with the first id.
    pub topmost: bool,
    /// Whether nothing of it is to be merged: one version of each key at most.
    pub settled: bool,
}

impl Chain {
    /// Whether `id` is one of it.
    pub fn contains(&self, id: Id) -> bool {
        self.ids.last() == Some(&id) || self.ids.binary_search(&id).is_ok()
    }

    /// Its ids, ascending.
    pub fn ids(&self) -> &[Id] {
        &self.ids
    }
}

/// All ids.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    nodes: BTreeMap<Id, Node>,
    /// Snapshots and branches.
    names: HashMap<String, Id>,
    chains: HashMap<Id, Arc<Chain>>,
}

impl Node {
    /// Whether all that it wrote is to be dropped.
    pub fn is_going(&self) -> bool {
        matches!(self.record.state, State::Dropping | State::Staging)
    }
}

fn corrupt(id: Id, what: &str) -> FsError {
    FsError::new(ErrorKind::Corrupt).on("open", format!("snapshot {id}")).because(what.to_owned())
}

impl Topology {
    /// From the records of all ids, ascending.
    pub fn build(records: impl IntoIterator<Item = (Id, Snapshot)>) -> Result<Topology> {
        let mut topology = Topology::default();
        for (id, record) in records {
            let parent_known = topology.nodes.contains_key(&record.parent);
            if (id == FIRST_ID) != (record.parent == 0) || (record.parent != 0 && !parent_known) {
                return Err(corrupt(id, "its parent is not there"));
            }
            if matches!(record.state, State::Live | State::Frozen) && topology.names.contains_key(&record.name) {
                return Err(corrupt(id, "its name is taken"));
            }
            topology.add(id, record);
        }
        if !topology.nodes.contains_key(&FIRST_ID) {
            return Err(corrupt(FIRST_ID, "it is missing"));
        }
        topology.check_children()?;
        topology.update_chains();
        Ok(topology)
    }

    /// Refuses what nobody makes: to drop or to merge such ids would take away what others see.
    fn check_children(&self) -> Result<()> {
        let is_staging = |id: &Id| self.nodes.get(id).is_some_and(|node| node.record.state == State::Staging);
        for (&id, node) in &self.nodes {
            let sound = match node.record.state {
                State::Live => node.children.iter().all(is_staging),
                State::Merging => node.children.len() == 1,
                State::Dropping | State::Staging => node.children.is_empty(),
                State::Frozen | State::Nameless => true,
            };
            if !sound {
                return Err(corrupt(id, "its state does not fit what descends from it"));
            }
        }
        Ok(())
    }

    fn add(&mut self, id: Id, record: Snapshot) {
        let (depth, jump) = match self.nodes.get_mut(&record.parent) {
            None => (0, id),
            Some(parent) => {
                parent.children.push(id);
                let (depth, of_parent) = (parent.depth + 1, parent.jump);
                // Skew-binary jumps: as long as the two before it together, if these are alike.
                let near = &self.nodes[&of_parent];
                let far = &self.nodes[&near.jump];
                let alike = depth - 1 - near.depth == near.depth - far.depth;
                (depth, if alike { near.jump } else { record.parent })
            }
        };
        if matches!(record.state, State::Live | State::Frozen) {
            self.names.insert(record.name.clone(), id);
        }
        self.nodes.insert(id, Node { record, children: Vec::new(), depth, jump });
    }

    /// Whether there is but one id.
    pub fn is_single(&self) -> bool {
        self.nodes.len() == 1
    }

    /// The greatest id.
    pub fn last_id(&self) -> Id {
        self.nodes.last_key_value().map_or(0, |(&id, _)| id)
    }

    /// The node of an id.
    pub fn node(&self, id: Id) -> Result<&Node> {
        self.nodes.get(&id).ok_or_else(|| corrupt(id, "it is missing"))
    }

    /// All of them, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = (Id, &Node)> {
        self.nodes.iter().map(|(&id, node)| (id, node))
    }

    /// Those behind `id`, ascending.
    pub fn nodes_after(&self, id: Id) -> impl Iterator<Item = (Id, &Node)> {
        self.nodes.range((Bound::Excluded(id), Bound::Unbounded)).map(|(&id, node)| (id, node))
    }

    /// The snapshot or branch of that name.
    pub fn named(&self, name: &str) -> Option<(Id, &Snapshot)> {
        let id = *self.names.get(name)?;
        self.nodes.get(&id).map(|node| (id, &node.record))
    }

    /// The id of the snapshot or branch of that name.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn id_of(&self, name: &str) -> Result<Id> {
        let missing = || FsError::new(ErrorKind::NotFound).on("find", format!("snapshot or branch {name}"));
        self.named(name).map(|(id, _)| id).ok_or_else(missing)
    }

    /// The ids on the way from one to the other: where they differ, the key was touched by one of these.
    pub fn way(&self, ids: [Id; 2]) -> Vec<Id> {
        let common = self.common(ids[0], ids[1]).unwrap_or(0);
        ids.iter().flat_map(|&id| self.path(id, common)).collect()
    }

    /// The nearest id that is `v` or above it and not greater than `limit`.
    pub fn at_or_above(&self, v: Id, limit: Id) -> Option<Id> {
        let mut at = v;
        while at > limit {
            let node = self.nodes.get(&at)?;
            let next = if node.jump >= limit && node.jump < at { node.jump } else { node.record.parent };
            if next == 0 {
                return None;
            }
            at = next;
        }
        Some(at)
    }

    /// Whether `v` sees what `w` wrote and nobody wrote again in between.
    pub fn sees(&self, v: Id, w: Id) -> bool {
        v == w || (w < v && self.at_or_above(v, w) == Some(w))
    }

    /// The nearest id above both, or one of them.
    pub fn common(&self, a: Id, b: Id) -> Option<Id> {
        let (mut a, mut b) = (a, b);
        while a != b {
            // The greater one is not above the other.
            let greater = if a > b { &mut a } else { &mut b };
            *greater = self.nodes.get(greater)?.record.parent;
        }
        (a != 0).then_some(a)
    }

    /// The ids from `v` up to but without `above`.
    pub fn path(&self, v: Id, above: Id) -> Vec<Id> {
        let mut ids = Vec::new();
        let mut at = v;
        while at != above && at != 0 {
            ids.push(at);
            at = self.nodes.get(&at).map_or(0, |node| node.record.parent);
        }
        ids
    }

    /// The chain that ends with `end`.
    pub fn chain_of(&self, end: Id) -> Chain {
        let (mut ids, mut settled, mut at) = (vec![end], true, end);
        let topmost = loop {
            let parent = self.nodes.get(&at).map_or(0, |node| node.record.parent);
            let Some(node) = self.nodes.get(&parent) else { break true };
            let merging = node.record.state == State::Merging;
            if !(merging || node.record.state == State::Nameless) || node.children.len() != 1 {
                break false;
            }
            settled &= !merging;
            ids.push(parent);
            at = parent;
        };
        ids.reverse();
        Chain { ids, topmost, settled }
    }

    /// Of a nameless id with one child: the last id of the chain that begins with this child.
    pub fn chain_end_below(&self, id: Id) -> Option<Id> {
        let mut at = *self.nodes.get(&id)?.children.first()?;
        loop {
            let node = self.nodes.get(&at)?;
            match (node.record.state, node.children.as_slice()) {
                (State::Nameless | State::Merging, [child]) => at = *child,
                _ => return Some(at),
            }
        }
    }

    /// The chain of a branch's live id.
    pub fn live_chain(&self, id: Id) -> Option<&Arc<Chain>> {
        self.chains.get(&id)
    }

    /// Computes the chains of all that are written to anew.
    pub fn update_chains(&mut self) {
        let written = |node: &Node| matches!(node.record.state, State::Live | State::Staging);
        let ids: Vec<Id> = self.nodes().filter(|(_, node)| written(node)).map(|(id, _)| id).collect();
        self.chains = ids.into_iter().map(|id| (id, Arc::new(self.chain_of(id)))).collect();
    }

    /// Freezes the live id `live` as a snapshot of that name, with a child `next` that is the branch now. In a time that
    /// does not depend on how many ids there are.
    pub fn freeze(&mut self, live: Id, frozen: Snapshot, next: Id, branch: Snapshot) {
        self.chains.remove(&live);
        self.names.insert(frozen.name.clone(), live);
        if let Some(node) = self.nodes.get_mut(&live) {
            node.record = frozen;
        }
        self.add(next, branch);
        self.chains.insert(next, Arc::new(self.chain_of(next)));
    }

    /// Adds a child.
    pub fn insert(&mut self, id: Id, record: Snapshot) {
        self.add(id, record);
        self.update_chains();
    }

    /// Gives an id another record with the same parent.
    pub fn replace(&mut self, id: Id, record: Snapshot) {
        if let Some(node) = self.nodes.get_mut(&id) {
            if self.names.get(&node.record.name) == Some(&id) {
                self.names.remove(&node.record.name);
            }
            if matches!(record.state, State::Live | State::Frozen) {
                self.names.insert(record.name.clone(), id);
            }
            node.record = record;
            self.update_chains();
        }
    }

    /// Takes an id away that has no child.
    pub fn remove(&mut self, id: Id) {
        let Some(node) = self.nodes.remove(&id) else { return };
        debug_assert!(node.children.is_empty(), "only leaves go");
        if self.names.get(&node.record.name) == Some(&id) {
            self.names.remove(&node.record.name);
        }
        if let Some(parent) = self.nodes.get_mut(&node.record.parent) {
            parent.children.retain(|&child| child != id);
        }
        self.update_chains();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_core::types::Timestamp;
    use adit_testkit::Rng;

    fn record(parent: Id, state: State) -> Snapshot {
        Snapshot { state, parent, created: Timestamp::default(), name: String::new(), done: Vec::new() }
    }

    fn nameless(parents: &[Id]) -> Topology {
        let records = parents.iter().zip(1..).map(|(&parent, id)| (id, record(parent, State::Nameless)));
        Topology::build(records).unwrap()
    }

    #[test]
    fn jumps_find_what_steps_find() {
        let mut rng = Rng::new(3);
        let mut parents = vec![0];
        for id in 2..400_u64 {
            parents.push(if rng.percent(80) { id - 1 } else { 1 + rng.below(id - 1) } as Id);
        }
        let topology = nameless(&parents);
        for _ in 0..20_000 {
            let (v, w) = (1 + rng.below(399) as Id, 1 + rng.below(399) as Id);
            let above = topology.path(v, 0);
            assert_eq!(topology.sees(v, w), above.contains(&w), "{v} {w}");
            assert_eq!(topology.at_or_above(v, w), above.iter().copied().find(|&id| id <= w), "{v} {w}");
            let common = topology.path(w, 0).into_iter().find(|id| above.contains(id));
            assert_eq!(topology.common(v, w), common, "{v} {w}");
        }
    }

    #[test]
    fn a_long_line_takes_few_jumps() {
        let topology = nameless(&(0..100_000).collect::<Vec<_>>());
        // Ten thousand of these step by step would be felt.
        for at in (1..100_000).step_by(10) {
            assert!(topology.sees(100_000, at));
        }
    }

    #[test]
    fn chains_end_at_names_and_forks() {
        // 1 (nameless) - 2 (frozen) - 3 (nameless) - 4 (live), and 5 (live) below 1.
        let mut topology = Topology::build([
            (1, record(0, State::Nameless)),
            (2, Snapshot { name: "s".into(), ..record(1, State::Frozen) }),
            (3, record(2, State::Merging)),
            (4, Snapshot { name: "main".into(), ..record(3, State::Live) }),
            (5, Snapshot { name: "b".into(), ..record(1, State::Live) }),
        ])
        .unwrap();
        assert_eq!(topology.chain_of(4), Chain { ids: vec![3, 4], topmost: false, settled: false });
        assert_eq!(topology.chain_of(2), Chain { ids: vec![2], topmost: false, settled: true });
        topology.remove(5);
        assert_eq!(topology.chain_of(2), Chain { ids: vec![1, 2], topmost: true, settled: true });
        assert_eq!(topology.chain_end_below(1), Some(2));
        assert_eq!(topology.named("b"), None);
    }

    #[test]
    fn ids_without_parents_are_damage() {
        let damaged = |records: Vec<(Id, Snapshot)>| Topology::build(records).unwrap_err().kind();
        assert_eq!(damaged(vec![]), ErrorKind::Corrupt);
        assert_eq!(damaged(vec![(2, record(1, State::Live))]), ErrorKind::Corrupt);
        assert_eq!(damaged(vec![(1, record(0, State::Live)), (3, record(2, State::Live))]), ErrorKind::Corrupt);
        assert_eq!(damaged(vec![(1, record(7, State::Live))]), ErrorKind::Corrupt);
    }
}
