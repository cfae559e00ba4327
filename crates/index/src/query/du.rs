//! What is below a directory, added up: [`du`]; and the largest files and directories: [`top`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use adit_core::error::Result;
use adit_core::types::Kind;

use super::levels;
use super::view::Facts;
use crate::layout::Section;
use crate::segment::{NodeId, Segment};

/// Some nodes, added up. Sums end at the largest number there is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Usage {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Links, devices, pipes and sockets.
    pub others: u64,
    /// Sizes of all that are no directories, in bytes. A file of several names counts for each of them: an index does not know.
    pub bytes: u64,
}

impl Usage {
    fn add(&mut self, other: &Usage) {
        self.files += other.files;
        self.directories += other.directories;
        self.others += other.others;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// One node by itself.
    fn of(facts: &Facts<'_>, node: u32) -> Usage {
        let kind = facts.kind(node);
        let is = |one: bool| u64::from(one);
        let others = !matches!(kind, Kind::File | Kind::Directory);
        let bytes = if kind == Kind::Directory { 0 } else { facts.size(node) };
        Usage { files: is(kind == Kind::File), directories: is(kind == Kind::Directory), others: is(others), bytes }
    }
}

/// The answer of [`du`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Du {
    /// All that is below the directory, itself not counted; of anything else, itself.
    pub total: Usage,
    /// Of each child what is below it, and itself, in the order of names.
    pub children: Vec<(NodeId, Usage)>,
}

/// Adds up what is below `dir`, and below each of its children. One pass over what is there: it is one range of nodes on each level of the tree,
/// and a part of that belongs to each child.
///
/// # Errors
/// `InvalidInput` if there is no such node; `Corrupt` where something is wrong.
pub fn du(segment: &Segment, dir: NodeId) -> Result<Du> {
    let own = Facts::sizes(segment, &node_range(segment, dir)?)?;
    if !own.is_dir(dir.0) {
        return Ok(Du { total: Usage::of(&own, dir.0), children: Vec::new() });
    }
    segment.check_sections(&[Section::Modes, Section::Sizes])?;
    let children = segment.child_range(dir)?;
    let mut sums = vec![Usage::default(); children.len()];
    // What is on this level, and of which child.
    let mut level: Vec<(Range<u32>, usize)> =
        children.clone().enumerate().map(|(of, node)| (node..node + 1, of)).collect();
    while let Some((last, _)) = level.last() {
        let mut end = last.end;
        let mut next: Vec<(Range<u32>, usize)> = Vec::new();
        for (nodes, of) in level {
            let facts = Facts::sizes(segment, &nodes)?;
            for node in nodes {
                sums[of].add(&Usage::of(&facts, node));
                if !facts.is_dir(node) {
                    continue;
                }
                let below = facts.children(segment, node)?;
                if below.is_empty() {
                    continue;
                }
                if below.start < end {
                    return Err(segment.damaged(node, "its children are not behind its level"));
                }
                end = below.end;
                match next.last_mut() {
                    Some((range, before)) if *before == of && range.end == below.start => range.end = below.end,
                    _ => next.push((below, of)),
                }
            }
        }
        level = next;
    }
    segment.expect_whole()?;
    let mut total = Usage::default();
    sums.iter().for_each(|sum| total.add(sum));
    Ok(Du { total, children: children.map(NodeId).zip(sums).collect() })
}

/// A node as a range, which there is.
fn node_range(segment: &Segment, node: NodeId) -> Result<Range<u32>> {
    // Asks whether there is one.
    segment.kind(node)?;
    Ok(node.0..node.0 + 1)
}

/// The answer of [`top`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Top {
    /// Regular files with their sizes in bytes, the largest first; of equal ones that with the lower number.
    pub files: Vec<(NodeId, u64)>,
    /// Directories with what is below each of them (itself not counted), those of most bytes first.
    pub directories: Vec<(NodeId, Usage)>,
}

/// The `count` largest regular files below `dir`, and as many directories. Takes memory for the directories of two levels of
/// the tree, and for the answer.
///
/// # Errors
/// `NotDirectory` if `dir` is none; `Corrupt` where something is wrong.
pub fn top(segment: &Segment, dir: NodeId, count: usize) -> Result<Top> {
    segment.check_sections(&[Section::Modes, Section::Sizes])?;
    let levels = levels::below(segment, dir, &(1..u32::MAX))?;
    let (mut files, mut directories) = (Largest::new(count), Largest::new(count));
    // What is below the directories of the level below, in their order.
    let mut below: Vec<Usage> = Vec::new();
    let mut under = segment.len()..segment.len();
    for level in levels.into_iter().rev() {
        let facts = Facts::sizes(segment, &level)?;
        let under_facts = Facts::sizes(segment, &under)?;
        let mut here = Vec::new();
        let mut taken = below.iter();
        let mut expected = under.start;
        for node in level.clone() {
            if facts.kind(node) == Kind::File {
                files.add(facts.size(node), node, ());
            }
            if !facts.is_dir(node) {
                continue;
            }
            let children = facts.children(segment, node)?;
            if !children.is_empty() && (children.start != expected || children.end > under.end) {
                return Err(segment.damaged(node, "its children are not where they should be"));
            }
            expected += children.end - children.start;
            let mut sum = Usage::default();
            for child in children {
                sum.add(&Usage::of(&under_facts, child));
                if under_facts.is_dir(child) {
                    // Each directory of the level is a child of one, in the same order.
                    sum.add(taken.next().unwrap_or(&Usage::default()));
                }
            }
            directories.add(sum.bytes, node, sum);
            here.push(sum);
        }
        (below, under) = (here, level);
    }
    segment.expect_whole()?;
    let files = files.sorted().into_iter().map(|(bytes, node, ())| (NodeId(node), bytes)).collect();
    let directories = directories.sorted().into_iter().map(|(_, node, sum)| (NodeId(node), sum)).collect();
    Ok(Top { files, directories })
}

/// The largest of many, of equal ones the first.
struct Largest<T> {
    count: usize,
    /// The smallest on top.
    heap: BinaryHeap<Reverse<Ranked<T>>>,
}

/// By size, and then by number: what has a lower one is more.
struct Ranked<T> {
    rank: (u64, Reverse<u32>),
    what: T,
}

impl<T> PartialEq for Ranked<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl<T> Eq for Ranked<T> {}

impl<T> PartialOrd for Ranked<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Ranked<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

impl<T> Largest<T> {
    fn new(count: usize) -> Self {
        Largest { count, heap: BinaryHeap::new() }
    }

    fn add(&mut self, size: u64, node: u32, what: T) {
        let rank = (size, Reverse(node));
        if self.heap.len() < self.count {
            self.heap.push(Reverse(Ranked { rank, what }));
        } else if let Some(mut least) = self.heap.peek_mut()
            && least.0.rank < rank
        {
            *least = Reverse(Ranked { rank, what });
        }
    }

    fn sorted(self) -> Vec<(u64, u32, T)> {
        let all = self.heap.into_sorted_vec();
        all.into_iter().map(|Reverse(Ranked { rank: (size, Reverse(node)), what })| (size, node, what)).collect()
    }
}
