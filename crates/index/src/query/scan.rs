//! The search through the names where they lie, and through the columns where no name is asked for.

use std::iter;
use std::ops::{ControlFlow, Range};

use adit_core::error::Result;
use memchr::memmem::Finder;
use regex_automata::{Input, meta};

use super::filter::Filter;
use super::find::{Query, Strategy};
use super::ordered::ordered;
use super::pattern::{Pattern, Target};
use super::signatures;
use super::view::{Cursor, Facts, View};
use crate::segment::Segment;

/// So many nodes a thread looks at at once; of the first ones fewer, so that something comes out soon.
const PIECE: u32 = 1 << 14;
const FIRST_PIECE: u32 = 1 << 11;
/// Likewise of ranges that lie apart.
const GATHERED: usize = 64;
const FIRST_GATHERED: usize = 4;
/// Such a range takes about as long as so many nodes of a long one: what it lies in may have to be compared with a checksum.
const NODES_APART: u32 = 1 << 9;

/// How names are found.
enum Way<'a> {
    Literal(&'a Finder<'static>),
    Regex(&'a meta::Regex),
    /// None is looked for: the filter decides.
    Each,
}

/// Which of the patterns is searched for, and how. A literal before anything else.
fn way(query: &Query) -> (Option<usize>, Way<'_>) {
    if query.strategy == Strategy::Each {
        return (None, Way::Each);
    }
    if let Some((at, finder)) = literal(query) {
        return (Some(at), Way::Literal(finder));
    }
    let regex = names(query).find_map(|(at, pattern)| Some((at, pattern.arena()?)));
    regex.map_or((None, Way::Each), |(at, regex)| (Some(at), Way::Regex(regex)))
}

/// The patterns that are compared with names, with their numbers.
pub(super) fn names(query: &Query) -> impl Iterator<Item = (usize, &Pattern)> {
    query.patterns.iter().enumerate().filter(|(_, pattern)| pattern.target() == Target::Name)
}

/// The longest of them that is nothing but bytes that occur somewhere.
pub(super) fn literal(query: &Query) -> Option<(usize, &Finder<'static>)> {
    let literals = names(query).filter_map(|(at, pattern)| Some((at, pattern.finder()?)));
    literals.max_by_key(|(_, finder)| finder.needle().len())
}

/// The ranges, divided into pieces of one range each.
fn pieces(ranges: &[Range<u32>]) -> Vec<Vec<Range<u32>>> {
    let mut len = FIRST_PIECE;
    let mut pieces = Vec::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            // At borders of groups, so that no two threads look at the same names.
            let end = at.saturating_add(len).checked_next_multiple_of(FIRST_PIECE).unwrap_or(u32::MAX).min(range.end);
            pieces.push(iter::once(at..end).collect());
            at = end;
            len = (len * 2).min(PIECE);
        }
    }
    pieces
}

/// Short ranges that lie apart, some to a piece.
fn gathered(ranges: &[Range<u32>]) -> Vec<Vec<Range<u32>>> {
    let mut len = FIRST_GATHERED;
    let mut pieces = Vec::new();
    let mut rest = ranges;
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(len.min(rest.len()));
        pieces.push(piece.to_vec());
        rest = others;
        len = (len * 2).min(GATHERED);
    }
    pieces
}

/// Gives `sink` the nodes of these ranges that are found, some at once, in order.
pub(super) fn run(
    query: &Query,
    segment: &Segment,
    ranges: &[Range<u32>],
    sink: &mut dyn FnMut(Vec<u32>) -> ControlFlow<()>,
) -> Result<()> {
    let (threads, pieces) = match signatures::narrowed(query, segment, ranges)? {
        Some(left) => (query.threads_for((left.len() as u32).saturating_mul(NODES_APART)), gathered(&left)),
        None => (query.threads_for(ranges.iter().map(|range| range.end - range.start).sum()), pieces(ranges)),
    };
    let mut failed = Ok(());
    ordered(
        threads,
        pieces.len(),
        || Scanner::new(query, segment),
        |scanner, piece| scanner.scan_each(&pieces[piece]),
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

/// What a thread searches with.
struct Scanner<'a> {
    query: &'a Query,
    segment: &'a Segment,
    way: Way<'a>,
    filter: Filter<'a>,
    cache: Option<meta::Cache>,
}

impl<'a> Scanner<'a> {
    fn new(query: &'a Query, segment: &'a Segment) -> Self {
        let (pattern, way) = way(query);
        let cache = if let Way::Regex(regex) = way { Some(regex.create_cache()) } else { None };
        Scanner { query, segment, way, filter: Filter::new(query, segment, pattern), cache }
    }

    fn scan_each(&mut self, ranges: &[Range<u32>]) -> Result<Vec<u32>> {
        let mut hits = Vec::new();
        for nodes in ranges {
            self.query.check_stop()?;
            self.scan(nodes.clone(), &mut hits)?;
        }
        Ok(hits)
    }

    fn scan(&mut self, nodes: Range<u32>, hits: &mut Vec<u32>) -> Result<()> {
        let facts = self.filter.facts(&nodes)?;
        if let (Way::Each, false) = (&self.way, self.filter.needs_names()) {
            hits.extend(nodes.filter(|node| self.filter.has_facts(&facts, *node)));
            return Ok(());
        }
        let view = View::new(self.segment, &nodes)?;
        match self.way {
            Way::Literal(finder) => {
                let find = |names: &[u8], at| finder.find(&names[at..]).map(|found| at + found);
                from_find_to_find(&mut self.filter, &view, &facts, &nodes, find, hits)?;
            }
            Way::Regex(regex) => {
                let cache = self.cache.as_mut().expect("there is one for the regex");
                // The end of the first match is enough: no match has a zero byte in it, so it is within one name.
                let find = |names: &[u8], at| {
                    let input = Input::new(names).range(at..).earliest(true);
                    regex.search_half_with(cache, &input).map(|found| found.offset())
                };
                from_find_to_find(&mut self.filter, &view, &facts, &nodes, find, hits)?;
            }
            Way::Each => each(&mut self.filter, &view, &facts, nodes, hits)?,
        }
        Ok(())
    }
}

/// Goes from find to find through the names. `find` tells a place in the next name that is one, or at its end.
fn from_find_to_find(
    filter: &mut Filter<'_>,
    view: &View<'_>,
    facts: &Facts<'_>,
    nodes: &Range<u32>,
    mut find: impl FnMut(&[u8], usize) -> Option<usize>,
    hits: &mut Vec<u32>,
) -> Result<()> {
    let mut cursor = view.cursor();
    cursor.go_to(nodes.start)?;
    let stop = end_of(&cursor, view, nodes)?;
    let names = &view.names[..stop];
    let mut at = cursor.at;
    while at < names.len()
        && let Some(found) = find(names, at)
        // Behind the last name there is nothing, though an empty match may be.
        && found < names.len()
    {
        cursor.seek(found)?;
        let end = cursor.end()?;
        if cursor.node >= nodes.end {
            break;
        }
        let node = cursor.node;
        if filter.has_facts(facts, node) && filter.has_name(node, &names[cursor.at..end])? {
            hits.push(node);
        }
        at = end + 1;
    }
    Ok(())
}

/// Where the names of these nodes end in the view.
fn end_of(start: &Cursor<'_, '_>, view: &View<'_>, nodes: &Range<u32>) -> Result<usize> {
    let mut end = start.clone();
    end.go_to(nodes.end)?;
    // What a hostile segment says may be anything.
    Ok(end.at.min(view.names.len()).max(start.at))
}

/// Looks at one node after the other: those that rise, of the view.
pub(super) fn each(
    filter: &mut Filter<'_>,
    view: &View<'_>,
    facts: &Facts<'_>,
    nodes: impl Iterator<Item = u32>,
    hits: &mut Vec<u32>,
) -> Result<()> {
    let mut cursor = view.cursor();
    for node in nodes {
        if filter.has_facts(facts, node) {
            cursor.go_to(node)?;
            if filter.has_name(node, cursor.name()?)? {
                hits.push(node);
            }
        }
    }
    Ok(())
}
