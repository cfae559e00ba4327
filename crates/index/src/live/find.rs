//! Finding in a live index: the base is searched as any segment, and what differs from it is tested one by one.
//!
//! What a hit of the base is worth depends on what moved. A name stays a name wherever its directory went; a path that goes through a
//! directory that moved is another one now, so these are tested anew, each with the path that it has. What is below a directory that is
//! gone is left out.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;
use hashbrown::HashMap;

use super::base::Facts;
use super::changes::LiveId;
use super::view::View;
use crate::query::{Candidate, Order, Pattern, Query, Target};
use crate::segment::NodeId;

/// So many entries are looked at between two questions whether it is to end.
const STOP_STEP: u32 = 1 << 10;

/// What is searched for in a [`View`]: a [`Query`], which says what an entry is, and where, how many and in which order.
#[derive(Clone, Debug)]
pub struct Search {
    query: Query,
    /// Looked at from where the search begins: what is above may match.
    excludes: Vec<Pattern>,
    /// Whether a path tells, and not only the last name.
    is_of_paths: bool,
    below: LiveId,
    depth: RangeInclusive<u32>,
    limit: u64,
    order: Option<(Order, bool)>,
    stop: Arc<AtomicBool>,
}

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct LiveHit<'a> {
    /// Which entry.
    pub id: LiveId,
    /// Its path below the root, without a slash in front.
    pub path: &'a [u8],
    /// What is known of it.
    pub facts: &'a Facts,
}

type Sink<'s> = dyn FnMut(LiveHit<'_>) -> ControlFlow<()> + 's;

impl Search {
    /// A search for what `query` says of an entry: patterns, kinds, sizes, times. Where it begins, how deep it goes, its limit and its order
    /// are said here instead.
    pub fn new(query: Query) -> Search {
        Search {
            query,
            excludes: Vec::new(),
            is_of_paths: false,
            below: LiveId::ROOT,
            depth: 1..=u32::MAX,
            limit: u64::MAX,
            order: None,
            stop: Arc::default(),
        }
    }

    /// Only what this pattern matches; of several, all have to match.
    #[must_use]
    pub fn pattern(mut self, pattern: Pattern) -> Search {
        self.is_of_paths |= pattern.target() == Target::Path;
        self.query = self.query.pattern(pattern);
        self
    }

    /// Nothing that this pattern matches, nor what is below it. Directories above the beginning of the search are not looked at.
    #[must_use]
    pub fn exclude(mut self, pattern: Pattern) -> Search {
        // A directory above may be excluded.
        self.is_of_paths = true;
        self.excludes.push(pattern);
        self
    }

    /// Only what is below this directory.
    #[must_use]
    pub fn below(mut self, dir: LiveId) -> Search {
        self.below = dir;
        self
    }

    /// Only what is so many names below the directory that the search begins in: 1 is what is in it.
    #[must_use]
    pub fn depth(mut self, names: RangeInclusive<u32>) -> Search {
        self.depth = (*names.start()).max(1)..=*names.end();
        self
    }

    /// So many hits at most: the first ones of the order that was asked for.
    #[must_use]
    pub fn limit(mut self, hits: u64) -> Search {
        self.limit = hits;
        self
    }

    /// Sorted, which nothing comes out of before all was found. Else hits of the base come first, by level of the tree, and then by path what
    /// is not as there.
    #[must_use]
    pub fn sort(mut self, order: Order, reverse: bool) -> Search {
        self.order = Some((order, reverse));
        self
    }

    /// Ends with `Interrupted` soon after this is true.
    #[must_use]
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Search {
        self.query = self.query.stop_when(stop.clone());
        self.stop = stop;
        self
    }

    /// Gives what is found in `view` to `sink`; [`ControlFlow::Break`] ends it. How many were given.
    ///
    /// # Errors
    /// `NotDirectory` if it is to begin in none, `Corrupt` if the base is damaged, `Interrupted` as [`Search::stop_when`] says. What was given
    /// before is right.
    pub fn run(&self, view: &View, sink: &mut Sink<'_>) -> Result<u64> {
        if view.kind(self.below)? != Kind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        let Some((order, reverse)) = self.order else {
            let mut given = 0;
            self.each(view, &mut |hit| {
                if given == self.limit {
                    return ControlFlow::Break(());
                }
                given += 1;
                let flow = sink(hit);
                if given == self.limit { ControlFlow::Break(()) } else { flow }
            })?;
            return Ok(given);
        };
        let mut hits = Vec::new();
        self.each(view, &mut |hit| {
            let path: Box<[u8]> =
                if order == Order::Path || order == Order::Name { hit.path.into() } else { Box::default() };
            hits.push((hit.id, *hit.facts, path));
            ControlFlow::Continue(())
        })?;
        hits.sort_by(|(one_id, one, one_path), (other_id, other, other_path)| {
            let compared = match order {
                Order::Path => one_path.split(|b| *b == b'/').cmp(other_path.split(|b| *b == b'/')),
                Order::Name => last_name(one_path).cmp(last_name(other_path)),
                Order::Size => one.size.cmp(&other.size),
                Order::Time => one.mtime_ns.cmp(&other.mtime_ns),
            };
            let compared = if reverse { compared.reverse() } else { compared };
            compared.then(one_id.cmp(other_id))
        });
        let mut given = 0;
        for (id, facts, _) in hits.into_iter().take(usize::try_from(self.limit).unwrap_or(usize::MAX)) {
            given += 1;
            if sink(LiveHit { id, path: &view.path(id)?, facts: &facts }).is_break() {
                break;
            }
        }
        Ok(given)
    }

    /// How many there are, [`Search::limit`] at most.
    ///
    /// # Errors
    /// As [`Search::run`].
    pub fn count(&self, view: &View) -> Result<u64> {
        Search { order: None, ..self.clone() }.run(view, &mut |_| ControlFlow::Continue(()))
    }

    fn is_everywhere(&self) -> bool {
        self.below == LiveId::ROOT && self.depth == (1..=u32::MAX)
    }

    fn each(&self, view: &View, sink: &mut Sink<'_>) -> Result<()> {
        if self.limit == 0 {
            return Ok(());
        }
        let moved = !view.changes.directories_stay();
        let are_other_times = !view.base.has_own_times() && self.query.looks_at_times();
        if moved && !self.is_everywhere() || are_other_times {
            return self.each_below(view, self.below, self.depth.clone(), sink);
        }
        if self.each_of_base(view, moved, sink)?.is_break() {
            return Ok(());
        }
        self.each_other(view, moved, sink)
    }

    /// What is in the base, and there as it is now.
    fn each_of_base(&self, view: &View, moved: bool, sink: &mut Sink<'_>) -> Result<ControlFlow<()>> {
        if self.below.0 >= view.base.len() {
            return Ok(ControlFlow::Continue(()));
        }
        let query = self.excludes.iter().cloned().fold(self.query.clone(), Query::exclude);
        let query = query.below(NodeId(self.below.0)).depth(self.depth.clone());
        let (mut flow, mut failed) = (ControlFlow::Continue(()), None);
        let mut ways = Ways { view, known: HashMap::new() };
        let mut path = Vec::new();
        query.run(view.base.segment(), &mut |hit| {
            let node = hit.node.0;
            if !view.changes.is_in_place(node) || view.changes.has_other_attrs(node) {
                return ControlFlow::Continue(());
            }
            let mut give = || -> Result<ControlFlow<()>> {
                if moved
                    && !matches!((ways.above(LiveId(node))?, self.is_of_paths), (Way::Stays, _) | (Way::Moved, false))
                {
                    return Ok(ControlFlow::Continue(()));
                }
                view.path_into(LiveId(node), &mut path)?;
                Ok(sink(LiveHit { id: LiveId(node), path: &path, facts: &view.base.facts(node)? }))
            };
            flow = give().unwrap_or_else(|e| {
                failed = Some(e);
                ControlFlow::Break(())
            });
            flow
        })?;
        failed.map_or(Ok(flow), Err)
    }

    /// What is not in the base, or otherwise there.
    fn each_other(&self, view: &View, moved: bool, sink: &mut Sink<'_>) -> Result<()> {
        let base = &view.base;
        let from = view.path(self.below)?.len();
        let mut ways = Ways { view, known: HashMap::new() };
        let mut others = Vec::new();
        for id in view.changes.at_new_names().chain(view.changes.with_other_attrs()) {
            if !view.changes.is_attached(base, id)? {
                continue;
            }
            // What is below a directory that moved is looked at there, if paths tell.
            let is_seen_there = moved && self.is_of_paths && ways.above(id)? == Way::Moved;
            if !is_seen_there {
                others.push((view.path(id)?, id));
            }
        }
        others.sort_unstable();
        // One that moved and has other attributes came twice.
        others.dedup();
        for (at, (path, id)) in others.iter().enumerate() {
            self.check_stop(at as u32)?;
            let facts = view.facts(*id)?;
            if *id != LiveId::ROOT && self.is_within(view, *id)? && self.accepts(path, &facts, from) {
                let hit = LiveHit { id: *id, path, facts: &facts };
                if sink(hit).is_break() {
                    return Ok(());
                }
            }
            let is_moved_dir = moved && self.is_of_paths && id.0 < base.len() && !view.changes.is_in_place(id.0);
            if is_moved_dir && facts.kind == Kind::Directory {
                let mut is_over = false;
                self.each_below(view, *id, 1..=u32::MAX, &mut |hit| {
                    let flow = sink(hit);
                    is_over = flow.is_break();
                    flow
                })?;
                if is_over {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Looks at each entry below a directory.
    fn each_below(&self, view: &View, top: LiveId, depth: RangeInclusive<u32>, sink: &mut Sink<'_>) -> Result<()> {
        let names = |path: &[u8]| {
            if path.is_empty() { 0 } else { 1 + path.iter().filter(|byte| **byte == b'/').count() as u32 }
        };
        let above = names(&view.path(top)?);
        let from = view.path(self.below)?.len();
        let (mut seen, mut is_over) = (0_u32, false);
        let walked = view.walk(top, &mut |id, path, facts| {
            self.check_stop(seen)?;
            seen = seen.wrapping_add(1);
            let below = names(path) - above;
            if id != top && depth.contains(&below) && self.accepts(path, facts, from) {
                is_over = sink(LiveHit { id, path, facts }).is_break();
            }
            if is_over {
                // Ends the walk, and is no error.
                return Err(ErrorKind::Interrupted.into());
            }
            Ok(if below >= *depth.end() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        if is_over { Ok(()) } else { walked }
    }

    /// Whether an entry is what is searched for; the path of where the search begins has `from` bytes.
    fn accepts(&self, path: &[u8], facts: &Facts, from: usize) -> bool {
        let (kind, size, mtime_ns) = (facts.kind, facts.size, facts.mtime_ns);
        let is_excluded = || {
            let ends = (from + 1..=path.len()).filter(|end| *end == path.len() || path[*end] == b'/');
            ends.into_iter().any(|end| self.excludes.iter().any(|exclude| exclude.is_path_match(&path[..end])))
        };
        self.query.accepts(&Candidate { path, kind, size, mtime_ns }) && (self.excludes.is_empty() || !is_excluded())
    }

    /// Whether an entry is where the search looks. Asked only while no directory of the base moved.
    fn is_within(&self, view: &View, id: LiveId) -> Result<bool> {
        if self.is_everywhere() {
            return Ok(true);
        }
        let (mut at, mut names) = (id, 0);
        while at != self.below {
            if at == LiveId::ROOT {
                return Ok(false);
            }
            at = view.parent(at)?;
            names += 1;
        }
        Ok(self.depth.contains(&names))
    }

    fn check_stop(&self, seen: u32) -> Result<()> {
        match seen.is_multiple_of(STOP_STEP) && self.stop.load(Relaxed) {
            true => Err(FsError::new(ErrorKind::Interrupted)),
            false => Ok(()),
        }
    }
}

/// The way from the root to an entry, without its own name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As the base says, or by directories that are new.
    Stays,
    /// By a directory of the base that moved.
    Moved,
    /// There is none.
    Gone,
}

/// The ways to directories, as far as they were asked for.
struct Ways<'a> {
    view: &'a View,
    known: HashMap<LiveId, Way>,
}

impl Ways<'_> {
    /// The way to an entry that is at a name.
    fn above(&mut self, id: LiveId) -> Result<Way> {
        let (base, changes) = (&*self.view.base, &*self.view.changes);
        let (mut unknown, mut at) = (Vec::new(), changes.parent(base, id)?);
        let mut way = loop {
            let Some(dir) = at else { break Way::Gone };
            if dir == LiveId::ROOT {
                break Way::Stays;
            }
            if let Some(way) = self.known.get(&dir) {
                break *way;
            }
            unknown.push(dir);
            at = changes.parent(base, dir)?;
        };
        for dir in unknown.into_iter().rev() {
            if way == Way::Stays && dir.0 < base.len() && !changes.is_in_place(dir.0) {
                way = Way::Moved;
            }
            self.known.insert(dir, way);
        }
        Ok(way)
    }
}

fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}
