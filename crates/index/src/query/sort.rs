//! Hits in the order that was asked for.

use adit_core::error::Result;

use super::find::Order;
use super::paths::Paths;
use super::view::Facts;
use crate::layout::Section;
use crate::segment::{NodeId, Segment};

/// More hits than one of so many nodes are sorted by path through the places of all nodes in that order; fewer, by their paths.
const SHARE: usize = 32;

/// The first `limit` of these nodes, which are in the order of their numbers.
pub(super) fn sorted(
    segment: &Segment,
    nodes: Vec<u32>,
    order: Order,
    reverse: bool,
    limit: usize,
) -> Result<Vec<u32>> {
    let all = 0..segment.len();
    match order {
        Order::Size => {
            let facts = Facts::sizes(segment, &all)?;
            let size = |node| if facts.is_dir(node) { 0 } else { facts.size(node) };
            Ok(by_key(nodes.into_iter().map(|node| (size(node), node)).collect(), reverse, limit))
        }
        Order::Time => {
            let times = super::view::slice(segment, Section::Times, 0, segment.len())?;
            let facts = Facts { times, ..Facts::default() };
            Ok(by_key(nodes.into_iter().map(|node| (facts.mtime_ns(node), node)).collect(), reverse, limit))
        }
        Order::Name => {
            let names = nodes.into_iter().map(|node| Ok((segment.name(NodeId(node))?, node)));
            Ok(by_key(names.collect::<Result<_>>()?, reverse, limit))
        }
        Order::Path if nodes.len() > segment.len() as usize / SHARE => {
            let places = places(segment)?;
            Ok(by_key(nodes.into_iter().map(|node| (places[node as usize], node)).collect(), reverse, limit))
        }
        Order::Path => by_path(segment, nodes, reverse, limit),
    }
}

/// Only the first ones are sorted, if not all are asked for.
fn by_key<K: Ord>(mut all: Vec<(K, u32)>, reverse: bool, limit: usize) -> Vec<u32> {
    let compare = |a: &(K, u32), b: &(K, u32)| {
        let order = a.0.cmp(&b.0);
        (if reverse { order.reverse() } else { order }).then(a.1.cmp(&b.1))
    };
    if limit == 0 {
        return Vec::new();
    }
    if limit < all.len() {
        all.select_nth_unstable_by(limit - 1, compare);
        all.truncate(limit);
    }
    all.sort_unstable_by(compare);
    all.into_iter().map(|(_, node)| node).collect()
}

/// By the paths themselves, with zero bytes in place of the slashes: no byte of a name is before that.
fn by_path(segment: &Segment, nodes: Vec<u32>, reverse: bool, limit: usize) -> Result<Vec<u32>> {
    let mut paths = Paths::new(segment);
    let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(nodes.len()));
    for node in &nodes {
        let path = paths.of(NodeId(*node))?;
        bytes.extend(path.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }));
        ends.push(bytes.len());
    }
    let starts = [0].into_iter().chain(ends.iter().copied());
    let all = starts.zip(&ends).zip(nodes).map(|((start, end), node)| (&bytes[start..*end], node));
    Ok(by_key(all.collect(), reverse, limit))
}

/// Of each node, how many are before it in the order of paths.
fn places(segment: &Segment) -> Result<Vec<u32>> {
    let facts = Facts::sizes(segment, &(0..segment.len()))?;
    let damaged = |dir: u32| segment.damaged(dir, "its children are not where they should be");
    // First how many are in each and below, itself included; children are behind their directory.
    let mut below = vec![1_u32; segment.len() as usize];
    for dir in (0..segment.len()).rev().filter(|node| facts.is_dir(*node)) {
        let children = facts.children(segment, dir)?;
        for child in children {
            let more = below[child as usize];
            let sum = below[dir as usize].checked_add(more).filter(|sum| *sum <= segment.len());
            below[dir as usize] = sum.ok_or_else(|| damaged(dir))?;
        }
    }
    let mut places = below;
    let mut starts_known = 1;
    places[0] = 0;
    for dir in (0..segment.len()).filter(|node| facts.is_dir(*node)) {
        let children = facts.children(segment, dir)?;
        if children.is_empty() {
            continue;
        }
        if children.start != starts_known {
            return Err(damaged(dir));
        }
        starts_known = children.end;
        let mut place = places[dir as usize].saturating_add(1);
        for child in children {
            let own = std::mem::replace(&mut places[child as usize], place);
            place = place.saturating_add(own);
        }
    }
    Ok(places)
}
