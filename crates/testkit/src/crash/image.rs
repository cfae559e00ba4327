//! What a crash leaves of a disk.

use std::collections::{BTreeMap, BTreeSet};

use super::disk::{Call, Disk};
use super::file::{Content, SECTOR_LEN, Seq};
use super::names::{Entries, NameOp, Tie};
use super::{Mode, Pattern};
use crate::rng::Rng;
use crate::tree::{Body, NodeId, Tree};

/// Decides for each unsynced change whether it is on disk.
enum Choice<'a> {
    /// By number and whether it is the first sector of a write.
    Fixed { keep: Box<dyn Fn(Seq, bool) -> bool>, only_last: bool },
    /// By chance, the newest in so many of 100 cases.
    Random(&'a mut Rng, u64),
}

impl<'a> Choice<'a> {
    fn new(pattern: Pattern, disk: &Disk, pending: &BTreeSet<Seq>, rng: &'a mut Rng) -> Self {
        let nth = |n: usize| pending.iter().nth(n % pending.len().max(1)).copied();
        let (left_out, last) = match pattern {
            Pattern::AllButOne(n) => (nth(n), None),
            _ => (None, pending.last().copied()),
        };
        let keep: Box<dyn Fn(Seq, bool) -> bool> = match pattern {
            Pattern::None => Box::new(|_, _| false),
            Pattern::All => Box::new(|_, _| true),
            Pattern::AllButOne(_) => Box::new(move |seq, _| Some(seq) != left_out),
            Pattern::AllButLengths => {
                let lengths = disk.lengths();
                Box::new(move |seq, _| !lengths.contains(&seq))
            }
            Pattern::OnlyLast => Box::new(move |seq, _| Some(seq) == last),
            Pattern::HeadersOnly => Box::new(|_, head| head),
            Pattern::Random => {
                let newest = *rng.pick(&[10, 50, 90]);
                return Choice::Random(rng, newest);
            }
        };
        Choice::Fixed { keep, only_last: pattern == Pattern::OnlyLast }
    }

    /// Which of `versions` (number, first sector of a write; oldest first) is on disk; `None` for the durable one.
    fn version(&mut self, versions: &[(Seq, bool)]) -> Option<usize> {
        match self {
            Choice::Fixed { keep, .. } => versions.iter().rposition(|&(seq, head)| keep(seq, head)),
            Choice::Random(rng, newest) => up_to(versions.len(), *newest, rng).checked_sub(1),
        }
    }

    /// Whether a namespace operation, or a part of one, is on disk.
    fn keeps(&mut self, seq: Seq) -> bool {
        match self {
            Choice::Fixed { keep, .. } => keep(seq, true),
            Choice::Random(rng, newest) => rng.percent((*newest).clamp(20, 80)),
        }
    }
}

/// `count` in so many of 100 cases, else any number up to it.
fn up_to(count: usize, percent: u64, rng: &mut Rng) -> usize {
    if rng.percent(percent) { count } else { rng.below(count as u64 + 1) as usize }
}

/// A copy of `disk` on which the calls in flight have happened, unsynced. What they sync is not safe yet.
pub(super) fn with_in_flight(disk: &Disk, in_flight: Vec<&Call>) -> Disk {
    let mut disk = disk.clone();
    for call in in_flight {
        if !matches!(call, Call::SyncFile { .. } | Call::SyncDir { .. } | Call::SyncAll { .. }) {
            // One that would have failed leaves nothing.
            let _ = disk.apply(call);
        }
    }
    disk
}

/// The disk after a crash, all of it durable.
pub(super) fn survivors(disk: &Disk, in_flight: Vec<&Call>, pattern: Pattern, rng: &mut Rng) -> Disk {
    if disk.mode == Mode::Kill {
        return after_kill(disk, in_flight, pattern, rng);
    }
    let mut disk = with_in_flight(disk, in_flight);
    disk.power_cuts += 1;
    let pending = disk.pending();
    let mut choice = Choice::new(pattern, &disk, &pending, rng);
    for node in disk.tree.nodes.values_mut() {
        if let Body::File(content) = &mut node.body {
            *content = content_left(content, &mut choice);
        }
    }
    for (id, old) in std::mem::take(&mut disk.old_attrs) {
        // Not numbered: with the newest change of all, or by chance.
        if !choice.keeps(pending.last().copied().unwrap_or(0)) {
            disk.tree.node_mut(id).attr = old;
        }
    }
    let entries = match disk.mode {
        Mode::Journalled => prefix_left(&disk, &mut choice),
        _ => entries_left(&disk, &mut choice),
    };
    rebuild(disk, &entries)
}

fn after_kill(disk: &Disk, in_flight: Vec<&Call>, pattern: Pattern, rng: &mut Rng) -> Disk {
    let mut disk = disk.clone();
    for call in in_flight {
        let happened = match pattern {
            Pattern::None => continue,
            Pattern::All => call.clone(),
            _ => match call {
                Call::Write { id, offset, bytes } => {
                    let len = rng.below(bytes.len() as u64 + 1) as usize;
                    Call::Write { id: *id, offset: *offset, bytes: bytes[..len].to_vec() }
                }
                _ if rng.percent(50) => continue,
                other => other.clone(),
            },
        };
        // One that would have failed leaves nothing.
        let _ = disk.apply(&happened);
    }
    disk.old_attrs.clear();
    let live = disk.entries();
    rebuild(disk, &live)
}

fn content_left(content: &Content, choice: &mut Choice<'_>) -> Content {
    let lens: Vec<(Seq, bool)> = content.lens.iter().map(|&(seq, _)| (seq, true)).collect();
    let len = choice.version(&lens).map_or(content.durable_len, |i| content.lens[i].1);
    let mut bytes = content.durable.clone();
    bytes.resize(bytes.len().max(len.next_multiple_of(SECTOR_LEN)), 0);
    for (&sector, versions) in &content.sectors {
        let numbers: Vec<(Seq, bool)> = versions.iter().map(|v| (v.seq, v.head)).collect();
        let start = sector * SECTOR_LEN;
        if let Some(i) = choice.version(&numbers)
            && let Some(place) = bytes.get_mut(start..start + SECTOR_LEN)
        {
            place.copy_from_slice(&versions[i].bytes);
        }
    }
    bytes.truncate(len);
    Content::settled(bytes)
}

/// Journalled: of each root's operations, the first so many.
fn prefix_left(disk: &Disk, choice: &mut Choice<'_>) -> Entries {
    let mut entries = disk.durable.clone();
    for &root in disk.roots.values() {
        let log: Vec<&NameOp> = disk.log.iter().filter(|op| op.root == root).collect();
        let count = match choice {
            Choice::Random(rng, newest) => up_to(log.len(), *newest, rng),
            // The last of all cannot be there without those before it.
            Choice::Fixed { keep, only_last: true } if log.last().is_some_and(|op| keep(op.seq, true)) => log.len(),
            Choice::Fixed { keep, .. } => log.iter().take_while(|op| keep(op.seq, true)).count(),
        };
        for change in log[..count].iter().flat_map(|op| &op.changes) {
            change.apply(&mut entries);
        }
    }
    entries
}

/// Adversarial: each operation, and each half of a file's move, on its own.
fn entries_left(disk: &Disk, choice: &mut Choice<'_>) -> Entries {
    let mut kept: Vec<Vec<bool>> = Vec::new();
    for op in &disk.log {
        kept.push(match op.tie {
            Tie::Whole | Tie::DirectoryMove => {
                let keep = choice.keeps(op.seq) || op.changes.iter().any(|c| c.settled);
                vec![keep; op.changes.len()]
            }
            Tie::FileMove => {
                let mut keep: Vec<bool> = op.changes.iter().map(|c| choice.keeps(op.seq) || c.settled).collect();
                if keep.len() == 2 && keep[1] {
                    keep[0] = true;
                }
                keep
            }
        });
    }
    let moves = |i: &usize| disk.log[*i].tie == Tie::DirectoryMove;
    let last_move = (0..disk.log.len()).filter(moves).rfind(|&i| kept[i].contains(&true));
    for i in (0..last_move.unwrap_or(0)).filter(moves) {
        kept[i].fill(true);
    }
    let mut entries = disk.durable.clone();
    for (op, kept) in disk.log.iter().zip(&kept) {
        for (change, _) in op.changes.iter().zip(kept).filter(|(_, kept)| **kept) {
            change.apply(&mut entries);
        }
    }
    entries
}

/// A disk with the nodes of `disk` that `entries` lead to, all durable.
fn rebuild(mut disk: Disk, entries: &Entries) -> Disk {
    let mut reached: BTreeMap<NodeId, u32> = disk.roots.values().map(|&id| (id, 1)).collect();
    let mut parents: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    let mut left = Entries::new();
    let mut todo: Vec<NodeId> = disk.roots.values().copied().collect();
    while let Some(dir) = todo.pop() {
        let mut mine = entries.get(&dir).cloned().unwrap_or_default();
        mine.retain(|_, id| {
            let count = reached.entry(*id).or_insert(0);
            if disk.tree.is_directory(*id) {
                if *count > 0 {
                    return false; // The rules above make no second name of a directory; a disk check would drop one.
                }
                parents.insert(*id, dir);
                todo.push(*id);
            }
            *count += 1;
            true
        });
        left.insert(dir, mine);
    }
    disk.tree.nodes.retain(|id, _| reached.contains_key(id));
    disk.home.retain(|id, _| reached.contains_key(id));
    for (id, node) in &mut disk.tree.nodes {
        node.attr.nlink = reached[id];
        match &mut node.body {
            Body::File(content) => content.settle(),
            Body::Directory { entries, parent } => {
                *entries = left.remove(id).unwrap_or_default();
                *parent = parents.get(id).copied();
            }
            _ => {}
        }
    }
    disk.log.clear();
    disk.old_attrs.clear();
    disk.durable = live_entries(&disk.tree);
    disk
}

fn live_entries(tree: &Tree<Content>) -> Entries {
    tree.nodes.keys().filter_map(|&id| Some((id, tree.entries(id).ok()?.clone()))).collect()
}
