//! What somebody has found out before the processor goes on: which nodes a pattern matches ([`Known`]), and which nodes of two trees
//! have the same path ([`Joined`]). A device tells that; all else that was asked is looked at here, so an answer is the same
//! whoever began it.

use std::cmp::Ordering;
use std::ops::{ControlFlow, Range};

use adit_core::error::Result;

use super::filter::Filter;
use super::find::Query;
use super::ordered::ordered;
use super::scan::each;
use super::view::View;
use crate::segment::{NodeId, Segment};

/// So many nodes a thread looks at at once.
const PIECE: usize = 1 << 14;
/// No node of the other tree.
const NONE: u32 = u32::MAX;

/// All nodes of a stretch that one pattern of a [`Query`] matches.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The number of the pattern: that of [`Query::leader`].
    pub pattern: usize,
    /// The nodes, in order, each once. Those of [`Query::stretch`] have to be there; others may.
    pub nodes: &'a [NodeId],
}

/// As [`super::scan::run`], with the nodes that match a pattern already known.
pub(super) fn run(
    query: &Query,
    segment: &Segment,
    levels: &[Range<u32>],
    known: Known<'_>,
    sink: &mut dyn FnMut(Vec<u32>) -> ControlFlow<()>,
) -> Result<()> {
    let within = levels.iter().map(|level| within(known.nodes, level));
    let pieces: Vec<&[NodeId]> = within.flat_map(|nodes| nodes.chunks(PIECE)).collect();
    let mut failed = Ok(());
    ordered(
        query.threads_for(known.nodes.len() as u32),
        pieces.len(),
        || Filter::new(query, segment, Some(known.pattern)),
        |filter, piece| look(query, segment, filter, pieces[piece]),
        &mut |hits: Result<Vec<u32>>| match hits {
            Ok(hits) => sink(hits),
            Err(e) => {
                failed = Err(e);
                ControlFlow::Break(())
            }
        },
    );
    failed
}

/// Those of some nodes that are in a range.
pub(super) fn within<'n>(nodes: &'n [NodeId], range: &Range<u32>) -> &'n [NodeId] {
    let first = nodes.partition_point(|node| node.0 < range.start);
    let end = nodes.partition_point(|node| node.0 < range.end);
    &nodes[first..end.max(first)]
}

fn look(query: &Query, segment: &Segment, filter: &mut Filter<'_>, nodes: &[NodeId]) -> Result<Vec<u32>> {
    query.check_stop()?;
    let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else { return Ok(Vec::new()) };
    let stretch = first.0..last.0 + 1;
    let facts = filter.facts(&stretch)?;
    let numbers = nodes.iter().map(|node| node.0);
    if !filter.needs_names() {
        return Ok(numbers.filter(|node| filter.has_facts(&facts, *node)).collect());
    }
    let view = View::new(segment, &stretch)?;
    let mut hits = Vec::new();
    each(filter, &view, &facts, numbers, &mut hits)?;
    Ok(hits)
}

/// Which nodes of two trees have the same path, told both ways.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Of each node of the second tree, that of the first one.
    first: Vec<u32>,
    /// A bit for each node of the first tree: whether it has one.
    has_second: Vec<u64>,
}

impl Joined {
    /// Of the nodes of the second tree, each with the node of the first tree that has its path, if there is one.
    pub fn new(first_len: u32, pairs: impl Iterator<Item = Option<NodeId>>) -> Joined {
        let mut has_second = vec![0; first_len.div_ceil(64) as usize];
        let first = pairs.map(|first| {
            let first = first.map_or(NONE, |first| first.0);
            if let Some(bits) = has_second.get_mut(first as usize / 64) {
                *bits |= 1_u64 << (first % 64);
            }
            first
        });
        let first = first.collect();
        Joined { first, has_second }
    }

    /// How the names of two nodes compare, the first that nobody has looked at yet of two directories with one path; `None` if their names
    /// have to say it. Names rise in both directories: a node that has its like in the other one, further on, is the later one.
    #[inline]
    pub(super) fn order(&self, old: u32, new: u32) -> Option<Ordering> {
        let first = self.first.get(new as usize).copied().unwrap_or(NONE);
        let has_second = self.has_second.get(old as usize / 64).is_some_and(|bits| bits >> (old % 64) & 1 == 1);
        match (first != NONE, has_second) {
            (true, _) if first == old => Some(Ordering::Equal),
            (true, false) => Some(Ordering::Less),
            (false, true) => Some(Ordering::Greater),
            _ => None,
        }
    }
}
