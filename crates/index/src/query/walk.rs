//! The search through paths: down the tree, with the state that the pattern is in at the end of each directory's path.
//!
//! So each name is read once, however many there are below it, and a directory is left out as soon as nothing below it can be found. Level
//! by level, because so the names lie.

use std::ops::{ControlFlow, Range};

use adit_core::error::{ErrorKind, FsError, Result};
use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;

use super::filter::Filter;
use super::find::Query;
use super::levels::check_directory;
use super::ordered::ordered;
use super::view::{Facts, View};
use crate::layout::DEPTH_MAX;
use crate::segment::{NodeId, Segment};

/// So many nodes a thread looks at at once, about; and no more than so many directories.
const PIECE: u32 = 1 << 13;
/// Nodes that nobody asks for: more of them than this are not passed, a piece ends before them.
const GAP: u32 = 1 << 10;

type Table = dense::DFA<Vec<u32>>;

/// What is known of a pattern at the end of a path.
#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// A match was seen, so it is in every path that goes on from here.
    Matched,
    At(StateID),
}

/// The children of a directory, and the state behind its path and a slash.
struct Dir {
    children: Range<u32>,
    state: State,
}

/// Steps through the table. `None` where nothing can match any more.
fn step(table: &Table, state: State, bytes: &[u8]) -> Option<State> {
    let State::At(mut at) = state else { return Some(state) };
    for byte in bytes {
        at = table.next_state(at, *byte);
        if table.is_special_state(at) {
            if table.is_match_state(at) {
                return Some(State::Matched);
            }
            if table.is_dead_state(at) {
                return None;
            }
        }
    }
    Some(State::At(at))
}

/// Whether a path that ends here is matched.
fn is_match(table: &Table, state: State) -> bool {
    match state {
        State::Matched => true,
        State::At(at) => table.is_match_state(table.next_eoi_state(at)),
    }
}

/// What is found in a piece, and the directories whose children come next.
#[derive(Default)]
struct Found {
    hits: Vec<u32>,
    dirs: Vec<Dir>,
}

/// As [`super::scan::run`], for the pattern of this number, which is compared with paths, and its table.
pub(super) fn run(
    query: &Query,
    segment: &Segment,
    (pattern, table): (usize, &Table),
    sink: &mut dyn FnMut(Vec<u32>) -> ControlFlow<()>,
) -> Result<()> {
    check_directory(segment, query.start)?;
    let Some(state) = beginning(query, segment, table)? else { return Ok(()) };
    let mut dirs = Vec::from([Dir { children: segment.child_range(query.start)?, state }]);
    let mut level_end = query.start.0 + 1;
    let mut depth = 0;
    loop {
        dirs.retain(|dir| !dir.children.is_empty());
        depth += 1;
        if dirs.is_empty() || depth >= query.depths.end {
            return Ok(());
        }
        check_level(segment, &dirs, &mut level_end, depth)?;
        let (pieces, nodes) = divide(dirs);
        let (mut next, mut failed, mut over) = (Vec::new(), Ok(()), false);
        let is_wanted = depth >= query.depths.start;
        ordered(
            query.threads_for(nodes),
            pieces.len(),
            || Filter::new(query, segment, Some(pattern)),
            |filter, piece| Walker { query, segment, table, is_wanted }.look(filter, &pieces[piece]),
            &mut |found: Result<Found>| match found {
                Ok(found) => {
                    next.extend(found.dirs);
                    let flow = sink(found.hits);
                    over |= flow.is_break();
                    flow
                }
                Err(e) => {
                    failed = Err(e);
                    ControlFlow::Break(())
                }
            },
        );
        failed?;
        if over {
            return Ok(());
        }
        dirs = next;
    }
}

/// The state behind the path of the directory that the search begins in.
fn beginning(query: &Query, segment: &Segment, table: &Table) -> Result<Option<State>> {
    let start = table.start_state(&start::Config::new().anchored(Anchored::No)).map_err(|e| {
        // The table was made for this.
        FsError::new(ErrorKind::InvalidInput).because(e.to_string())
    })?;
    let mut path = segment.path(query.start)?;
    if query.start != NodeId::ROOT {
        path.push(b'/');
    }
    Ok(step(table, State::At(start), &path))
}

/// That the directories' children are behind the level before, and behind each other, so that every walk ends.
fn check_level(segment: &Segment, dirs: &[Dir], level_end: &mut u32, depth: u32) -> Result<()> {
    for dir in dirs {
        if dir.children.start < *level_end {
            return Err(segment.damaged(dir.children.start, "it is in two directories"));
        }
        *level_end = dir.children.end;
    }
    if depth as usize > DEPTH_MAX {
        return Err(segment.damaged(*level_end - 1, "it is too deep in the tree"));
    }
    Ok(())
}

/// The directories in pieces of about as many nodes, none with a large gap in it; large directories are divided.
fn divide(dirs: Vec<Dir>) -> (Vec<Vec<Dir>>, u32) {
    let (mut pieces, mut nodes) = (Vec::<Vec<Dir>>::new(), 0_u32);
    let (mut room, mut last) = (0, 0);
    for Dir { mut children, state } in dirs {
        // They are behind each other: the sum is below the number of nodes.
        nodes += children.end - children.start;
        while !children.is_empty() {
            if room == 0 || children.start - last > GAP {
                pieces.push(Vec::new());
                room = PIECE;
            }
            let end = children.end.min(children.start.saturating_add(room));
            room -= end - children.start;
            last = end;
            let piece = pieces.last_mut().expect("one was pushed");
            piece.push(Dir { children: children.start..end, state });
            children.start = end;
        }
    }
    (pieces, nodes)
}

/// A look at the nodes of one level.
struct Walker<'a> {
    query: &'a Query,
    segment: &'a Segment,
    table: &'a Table,
    /// Whether the level is among those that are asked for.
    is_wanted: bool,
}

impl Walker<'_> {
    fn look(&self, filter: &mut Filter<'_>, dirs: &[Dir]) -> Result<Found> {
        self.query.check_stop()?;
        let mut found = Found::default();
        let (Some(first), Some(last)) = (dirs.first(), dirs.last()) else { return Ok(found) };
        let nodes = first.children.start..last.children.end;
        let view = View::new(self.segment, &nodes)?;
        let asked = filter.facts(&nodes)?;
        let own = Facts::sizes(self.segment, &nodes)?;
        let mut cursor = view.cursor();
        for dir in dirs {
            for node in dir.children.clone() {
                cursor.go_to(node)?;
                let name = cursor.name()?;
                let Some(state) = step(self.table, dir.state, name) else { continue };
                let is_hit = self.is_wanted && is_match(self.table, state) && filter.has_facts(&asked, node);
                if is_hit && filter.has_name(node, name)? {
                    found.hits.push(node);
                }
                if own.is_dir(node)
                    && let Some(state) = step(self.table, state, b"/")
                {
                    found.dirs.push(Dir { children: own.children(self.segment, node)?, state });
                }
            }
        }
        Ok(found)
    }
}
