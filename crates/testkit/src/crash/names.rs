//! The log of namespace operations that are not durable yet.

use std::collections::BTreeMap;

use super::Mode;
use super::file::Seq;
use crate::tree::NodeId;

/// The entries of each directory.
pub(super) type Entries = BTreeMap<NodeId, BTreeMap<Vec<u8>, NodeId>>;

/// An entry that got a new value.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub dir: NodeId,
    pub name: Vec<u8>,
    pub value: Option<NodeId>,
    /// Whether it must be on disk, although its directory was not synced since.
    pub settled: bool,
}

impl Change {
    pub fn new(dir: NodeId, name: &[u8], value: Option<NodeId>) -> Self {
        Change { dir, name: name.to_vec(), value, settled: false }
    }

    pub fn apply(&self, entries: &mut Entries) {
        let entries = entries.entry(self.dir).or_default();
        match self.value {
            Some(id) => entries.insert(self.name.clone(), id),
            None => entries.remove(&self.name),
        };
    }
}

/// What ties the changes of an operation together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tie {
    /// All or none.
    Whole,
    /// As `Whole`, and not before an earlier one of these.
    DirectoryMove,
    /// A file moves: the first change gives it its new name, the second takes the old one, and never alone.
    FileMove,
}

#[derive(Clone, Debug)]
pub(super) struct NameOp {
    pub seq: Seq,
    pub root: NodeId,
    pub changes: Vec<Change>,
    pub tie: Tie,
}

impl NameOp {
    /// Makes the change of `dir` settled, and those that it cannot be without. Returns whether there is one.
    fn settle(&mut self, dir: NodeId) -> bool {
        let Some(at) = self.changes.iter().position(|c| c.dir == dir) else { return false };
        match self.tie {
            Tie::Whole | Tie::DirectoryMove => self.changes.iter_mut().for_each(|c| c.settled = true),
            // A lone change is what is left of a pair.
            Tie::FileMove => self.changes[..=at].iter_mut().for_each(|c| c.settled = true),
        }
        true
    }
}

/// The directory `dir` of `root`, whose entries are `live` now, is synced.
pub(super) fn sync_dir(
    mode: Mode,
    log: &mut Vec<NameOp>,
    durable: &mut Entries,
    live: &Entries,
    root: NodeId,
    home: &BTreeMap<NodeId, NodeId>,
    dir: NodeId,
) {
    if mode == Mode::Journalled {
        log.retain(|op| op.root != root);
        for (dir, entries) in live.iter().filter(|(dir, _)| home.get(dir) == Some(&root)) {
            durable.insert(*dir, entries.clone());
        }
        return;
    }
    let mut last_move = None;
    for (i, op) in log.iter_mut().enumerate() {
        if op.settle(dir) && op.tie == Tie::DirectoryMove {
            last_move = Some(i);
        }
    }
    for op in log.iter_mut().take(last_move.unwrap_or(0)).filter(|op| op.tie == Tie::DirectoryMove) {
        op.changes.iter_mut().for_each(|c| c.settled = true);
    }
    for op in log.iter_mut() {
        op.changes.retain(|c| c.dir != dir);
    }
    log.retain(|op| !op.changes.is_empty());
    durable.insert(dir, live.get(&dir).cloned().unwrap_or_default());
}
