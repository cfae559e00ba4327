//! Dropping what nobody sees any more, in batches of bounded size, each of which leaves a tree that is right.
//!
//! *Dropping* an id that nobody descends from: all that it touched goes. *Merging* a nameless id with the chain below it: of
//! each key that this chain touched, the version above is hidden and goes; and a tombstone that hides nothing any more.
//! Both cost what changed. At last goes what is hidden by all who descend from a [fork](super::forks).

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use adit_core::{ErrorKind, Result};

use super::draft::Draft;
use super::topology::{FIRST_ID, Node, Topology};
use super::view::corrupt_key;
use super::{Source, Tree};
use crate::format::keys::{self, Id, Key};
use crate::format::records::{self, Snapshot, State};

/// Touched keys that one batch takes up at most.
pub(super) const KEYS_AT_ONCE: usize = 256;

impl Tree {
    /// Whether there is anything to collect.
    pub fn is_collected(&self) -> bool {
        next_work(&self.topology.read(), &self.damaged.lock()).is_none()
    }

    /// Does one batch of what is to be dropped; whether there may be more. After `Corrupt` the next call goes on elsewhere.
    pub fn collect_some(&self) -> Result<bool> {
        let _alone = self.collecting.lock();
        let work = next_work(&self.topology.read(), &self.damaged.lock());
        let Some((id, state)) = work else { return self.drop_hidden() };
        let done = match state {
            State::Merging => self.merge_some(id).and_then(|more| if more { Ok(()) } else { self.end_merge(id) }),
            _ => self.drop_some(id).and_then(|more| if more { Ok(()) } else { self.end_drop(id) }),
        };
        if done.as_ref().is_err_and(|e| e.kind() == ErrorKind::Corrupt) {
            self.damaged.lock().insert(id);
        }
        done.map(|()| true)
    }

    /// Does all of it that is not damaged.
    pub fn collect(&self) -> Result<()> {
        let mut damage = None;
        loop {
            match self.collect_some() {
                Ok(true) => {}
                Ok(false) => return damage.map_or(Ok(()), Err),
                Err(e) if e.kind() == ErrorKind::Corrupt => damage = damage.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
    }

    /// Drops what a crash left of branches that were being built: before anybody writes, for it may share blocks with a
    /// live branch, which takes them for its own.
    pub(super) fn drop_staging(&self) -> Result<()> {
        let staging = |node: &super::topology::Node| node.record.state == State::Staging;
        let ids: Vec<Id> = self.topology.read().nodes().filter(|(_, node)| staging(node)).map(|(id, _)| id).collect();
        for id in ids {
            match self.drop_staging_in(&mut self.topology.write(), id) {
                // Nothing is written to what is opened to read; nor does anybody see it there.
                Err(e) if e.kind() == ErrorKind::ReadOnly => return Ok(()),
                // The branch above it is written so that it keeps its blocks. Collecting tells of it.
                Err(e) if e.kind() == ErrorKind::Corrupt => tracing::warn!("what a restore left stays: {e}"),
                done => done?,
            }
        }
        Ok(())
    }

    /// Drops a branch that was being built.
    pub(super) fn drop_staging_in(&self, topology: &mut Topology, id: Id) -> Result<()> {
        while self.drop_batch(id)? {}
        self.end_drop_in(topology, id)
    }

    /// Drops what restores that failed left below the id of a branch, which is about to go itself.
    pub(super) fn drop_staging_below(&self, topology: &mut Topology, id: Id) -> Result<()> {
        for child in topology.node(id)?.children.clone() {
            if topology.node(child)?.record.state == State::Staging {
                self.drop_staging_in(topology, child)?;
            }
        }
        if topology.node(id)?.children.is_empty() { Ok(()) } else { Err(ErrorKind::Busy.into()) }
    }

    /// Touched keys from `from` (a key of the table) to the end of `id`, at most as many as one batch takes.
    pub(super) fn touched(&self, id: Id, from: &[u8]) -> Result<Vec<Key>> {
        let (mut keys, mut bad) = (Vec::new(), None);
        let start = keys::touched_start(id).max(from.to_vec());
        let end = keys::touched_end(id);
        if start >= end {
            return Ok(keys);
        }
        self.table.scan(&start, &end, &mut |bytes, _| {
            match keys::parse_touched(bytes).and_then(|(_, logical)| Key::from_logical(logical)) {
                Some(key) => keys.push(key),
                None => bad = Some(corrupt_key(bytes, "it is no touched key")),
            }
            if bad.is_none() && keys.len() < KEYS_AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        bad.map_or(Ok(keys), Err)
    }

    /// One batch of dropping `id`; whether there is more.
    fn drop_some(&self, id: Id) -> Result<bool> {
        let _topology = self.topology.read();
        self.drop_batch(id)
    }

    /// As [`Tree::drop_some`], for whoever holds the topology.
    pub(super) fn drop_batch(&self, id: Id) -> Result<bool> {
        let _numbers = self.numbers.lock();
        let touched = self.touched(id, &[])?;
        if touched.is_empty() {
            return Ok(false);
        }
        let mut draft = Draft::new(self);
        draft.uses_reserve = true;
        for key in &touched {
            match self.table.get(&key.at(id))? {
                Some(value) => draft.drop_versions(key, &[(id, value.to_vec())])?,
                None => draft.set(keys::touched(id, key.as_bytes()), None),
            }
            if draft.is_full() {
                break;
            }
        }
        draft.apply()?;
        Ok(true)
    }

    fn end_drop(&self, id: Id) -> Result<()> {
        self.end_drop_in(&mut self.topology.write(), id)
    }

    /// As [`Tree::end_drop`], for whoever holds the topology.
    pub(super) fn end_drop_in(&self, topology: &mut Topology, id: Id) -> Result<()> {
        let Ok(node) = topology.node(id) else {
            return Ok(()); // Somebody else did that.
        };
        let parent = node.record.parent;
        let above = topology.node(parent)?;
        let record = &above.record;
        let left: Vec<Id> = above.children.iter().copied().filter(|&child| child != id).collect();
        let state = match (record.state, left.as_slice()) {
            (State::Nameless | State::Merging, []) => State::Dropping,
            (State::Nameless, &[child]) if !topology.node(child)?.is_going() => State::Merging,
            (state, _) => state,
        };
        let record = Snapshot { state, ..record.clone() };
        let changed = topology.node(parent)?.record != record;
        self.write_snapshots(&[(id, None), (parent, Some(&record))])?;
        topology.remove(id);
        if changed {
            topology.replace(parent, record);
        }
        self.note_forks_above(topology, parent);
        Ok(())
    }

    /// One batch of merging `id` with the chain below; whether there is more.
    fn merge_some(&self, id: Id) -> Result<bool> {
        let mut topology = self.topology.upgradable_read();
        let numbers = self.numbers.lock();
        let record = topology.node(id)?.record.clone();
        let above = topology.chain_of(id);
        let Some(end) = topology.chain_end_below(id) else { return Ok(false) };
        let mut below = topology.path(end, id);
        below.reverse();
        let merged: BTreeSet<Id> = above.ids().iter().chain(&below).copied().collect();
        let from = [&record.done[..], &[0]].concat();
        let from = if record.done.is_empty() { Vec::new() } else { from };
        let (mut draft, mut count, mut last) = (Draft::new(self), 0, None);
        draft.uses_reserve = true;
        for &writer in &below {
            if count >= KEYS_AT_ONCE || draft.is_full() {
                break;
            }
            for key in self.touched(writer, &from)? {
                count += 1;
                last = Some(keys::touched(writer, key.as_bytes()));
                merge_key(&mut draft, &topology, &key, (writer, id), (&merged, above.topmost))?;
                if draft.is_full() {
                    break;
                }
            }
        }
        let Some(last) = last else { return Ok(false) };
        let record = Snapshot { done: last, ..record };
        draft.set(keys::snapshot(id), Some(record.encode()));
        draft.apply()?;
        drop(numbers);
        topology.with_upgraded(|topology| topology.replace(id, record));
        Ok(true)
    }

    fn end_merge(&self, id: Id) -> Result<()> {
        let mut topology = self.topology.write();
        let record = &topology.node(id)?.record;
        if record.state != State::Merging {
            return Ok(());
        }
        let record = Snapshot { state: State::Nameless, done: Vec::new(), ..record.clone() };
        self.write_snapshots(&[(id, Some(&record))])?;
        topology.replace(id, record);
        let end = topology.chain_end_below(id).unwrap_or(id);
        self.note_forks_above(&topology, end);
        Ok(())
    }

    /// Drops what is left of what was removed in all branches that nobody has open.
    pub fn reap_unused(&self) -> Result<()> {
        for info in self.snapshots().into_iter().filter(|info| info.is_branch) {
            let source = Source::Branch(info.name);
            self.reap_all_unused(&source)?;
        }
        Ok(())
    }
}

/// An id with something to drop.
fn next_work(topology: &Topology, damaged: &BTreeSet<Id>) -> Option<(Id, State)> {
    let to_do = |node: &Node| node.record.state == State::Merging || (node.is_going() && node.children.is_empty());
    let mut works = topology.nodes().filter(|(id, node)| to_do(node) && !damaged.contains(id));
    works.next().map(|(id, node)| (id, node.record.state))
}

/// Of a key that `writer` touched: drops all that is hidden within `merged`, and a tombstone that hides nothing beyond.
fn merge_key(
    draft: &mut Draft<'_>,
    topology: &Topology,
    key: &Key,
    (writer, id): (Id, Id),
    (merged, topmost): (&BTreeSet<Id>, bool),
) -> Result<()> {
    let versions = draft.versions(key)?;
    let (mut inside, outside): (Vec<_>, Vec<_>) = versions.into_iter().partition(|(id, _)| merged.contains(id));
    let touched = keys::touched(writer, key.as_bytes());
    if topmost || inside.iter().all(|(id, _)| *id != writer) {
        // What is topmost needs no list; nor does what is not there.
        draft.set(touched, None);
    }
    if inside.is_empty() {
        return Ok(());
    }
    let nearest = inside.remove(0);
    draft.drop_versions(key, &inside)?;
    let hides = |(w, value): &(Id, Vec<u8>)| topology.sees(id, *w).then(|| !records::is_tombstone(value));
    let beyond = outside.iter().find_map(hides).unwrap_or(false);
    if records::is_tombstone(&nearest.1) && !beyond {
        draft.drop_versions(key, &[nearest])?;
    } else if topmost && nearest.0 != FIRST_ID {
        draft.set(keys::touched(nearest.0, key.as_bytes()), None);
    }
    Ok(())
}
