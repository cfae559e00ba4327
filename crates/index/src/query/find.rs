//! The question: [`Query`].

use std::ops::{ControlFlow, Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;

use super::known::{self, Known};
use super::pattern::{Pattern, Target, ends_with_folded, last_name};
use super::{levels, scan, signatures, sort, walk};
use crate::cores::cores_up_to;
use crate::segment::{NodeId, Segment};

/// Most threads that are taken if nobody says how many.
const THREADS_MAX: usize = 16;
/// Fewer nodes are not worth a second thread.
const NODES_A_THREAD: u32 = 1 << 15;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Hit {
    /// Which node. [`super::Paths`] tells its path, [`Segment::node`] the rest.
    pub node: NodeId,
}

/// By what hits are sorted. Those that are equal are in the order of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// By path, name by name: a directory is followed by what is in it.
    Path,
    /// By the bytes of the last name.
    Name,
    /// By size, the smallest first. A directory's is 0.
    Size,
    /// By the time of the last change of content, the oldest first.
    Time,
}

/// Which way a search takes. They all find the same.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Strategy {
    #[default]
    Best,
    /// Names or paths one by one.
    Each,
    /// As [`Strategy::Best`], without the table of states where paths are walked.
    NoTable,
}

/// A search for nodes: patterns, and what else they have to be. Without any of it, everything below the root is found; the directory that
/// the search begins in is not.
#[derive(Clone, Debug)]
pub struct Query {
    pub(super) patterns: Vec<Pattern>,
    pub(super) excludes: Vec<Pattern>,
    /// A bit for each kind.
    pub(super) kinds: u8,
    pub(super) extensions: Vec<Vec<u8>>,
    pub(super) sizes: Option<RangeInclusive<u64>>,
    pub(super) times: Option<RangeInclusive<i64>>,
    pub(super) start: NodeId,
    pub(super) depths: Range<u32>,
    pub(super) strategy: Strategy,
    limit: u64,
    order: Option<(Order, bool)>,
    threads: usize,
    stop: Vec<Arc<AtomicBool>>,
}

/// Something that is in no segment, for [`Query::accepts`].
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its path below the root, without a slash in front.
    pub path: &'a [u8],
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// When its content changed last, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Default for Query {
    fn default() -> Self {
        Self::new()
    }
}

pub(super) fn kind_bit(kind: Kind) -> u8 {
    1 << match kind {
        Kind::File => 0,
        Kind::Directory => 1,
        Kind::Symlink => 2,
        Kind::BlockDevice => 3,
        Kind::CharDevice => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
    }
}

pub(super) const ALL_KINDS: u8 = u8::MAX;

impl Query {
    /// A search that finds everything.
    pub fn new() -> Query {
        Query {
            patterns: Vec::new(),
            excludes: Vec::new(),
            kinds: ALL_KINDS,
            extensions: Vec::new(),
            sizes: None,
            times: None,
            start: NodeId::ROOT,
            depths: 1..u32::MAX,
            strategy: Strategy::Best,
            limit: u64::MAX,
            order: None,
            threads: 0,
            stop: Vec::new(),
        }
    }

    /// Only what this pattern matches. Of several, all have to match.
    #[must_use]
    pub fn pattern(mut self, pattern: Pattern) -> Query {
        self.patterns.push(pattern);
        self
    }

    /// Nothing that this pattern matches, nor what is below it. Of several, each excludes.
    #[must_use]
    pub fn exclude(mut self, pattern: Pattern) -> Query {
        self.excludes.push(pattern);
        self
    }

    /// Only nodes of these kinds.
    #[must_use]
    pub fn kinds(mut self, kinds: &[Kind]) -> Query {
        self.kinds = kinds.iter().fold(0, |bits, kind| bits | kind_bit(*kind));
        self
    }

    /// Only names that end with a dot and these bytes, and have something before; large letters are small ones. A dot
    /// in front may be given or not. Of several, one has to be there.
    #[must_use]
    pub fn extension(mut self, extension: &[u8]) -> Query {
        let mut bytes = vec![b'.'];
        bytes.extend(extension.strip_prefix(b".").unwrap_or(extension));
        self.extensions.push(bytes);
        self
    }

    /// Only what has a size within these bounds, in bytes. Directories have none.
    #[must_use]
    pub fn size(mut self, bytes: RangeInclusive<u64>) -> Query {
        self.sizes = Some(bytes);
        self
    }

    /// Only what changed within these bounds, in nanoseconds since 1970.
    #[must_use]
    pub fn mtime_ns(mut self, times: RangeInclusive<i64>) -> Query {
        self.times = Some(times);
        self
    }

    /// Only what is below this directory. Patterns are compared with paths below the root all the same.
    #[must_use]
    pub fn below(mut self, dir: NodeId) -> Query {
        self.start = dir;
        self
    }

    /// Only what is so many names below the directory that the search begins in: 1 is what is in it.
    #[must_use]
    pub fn depth(mut self, names: RangeInclusive<u32>) -> Query {
        self.depths = (*names.start()).max(1)..names.end().saturating_add(1);
        self
    }

    /// So many hits at most: the first ones of the order that was asked for.
    #[must_use]
    pub fn limit(mut self, hits: u64) -> Query {
        self.limit = hits;
        self
    }

    /// Sorted, which nothing comes out of before all was found. Else hits come by level of the tree, on each level by path, at once.
    #[must_use]
    pub fn sort(mut self, order: Order, reverse: bool) -> Query {
        self.order = Some((order, reverse));
        self
    }

    /// On so many threads, the caller's among them; 0 for as many as there are cores, up to 16. The hits are the same.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Query {
        self.threads = threads;
        self
    }

    /// On so many threads, if nobody said how many.
    pub(crate) fn threads_or(mut self, threads: usize) -> Query {
        if self.threads == 0 {
            self.threads = threads;
        }
        self
    }

    /// Ends with `Interrupted` soon after this is true: for who has gone away before anything was found. Of several, any of them.
    #[must_use]
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Query {
        self.stop.push(stop);
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn strategy(mut self, strategy: Strategy) -> Query {
        self.strategy = strategy;
        self
    }

    /// Gives what is found to `sink`, on the caller's thread. [`ControlFlow::Break`] ends the search. How many were given.
    ///
    /// # Errors
    /// `NotDirectory` if it is to begin in none, `Corrupt` with a [`crate::Damage`] where something is wrong, `Interrupted` as
    /// [`Query::stop_when`] says. What was given before is right.
    pub fn run(&self, segment: &Segment, sink: &mut dyn FnMut(Hit) -> ControlFlow<()>) -> Result<u64> {
        self.give(segment, None, sink)
    }

    /// As [`Query::run`], where it is known already which nodes [`Query::leader`] matches.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn run_known(
        &self,
        segment: &Segment,
        known: Known<'_>,
        sink: &mut dyn FnMut(Hit) -> ControlFlow<()>,
    ) -> Result<u64> {
        self.give(segment, Some(known), sink)
    }

    fn give(
        &self,
        segment: &Segment,
        known: Option<Known<'_>>,
        sink: &mut dyn FnMut(Hit) -> ControlFlow<()>,
    ) -> Result<u64> {
        let mut given = 0;
        let mut give = |node: u32| {
            if given == self.limit {
                return ControlFlow::Break(());
            }
            given += 1;
            let flow = sink(Hit { node: NodeId(node) });
            if given == self.limit { ControlFlow::Break(()) } else { flow }
        };
        match self.order {
            _ if self.limit == 0 => levels::check_directory(segment, self.start)?,
            None => self.each(segment, known, &mut |hits| hits.into_iter().try_for_each(&mut give))?,
            Some((order, reverse)) => {
                let mut nodes = Vec::new();
                self.each(segment, known, &mut |hits| {
                    nodes.extend(hits);
                    ControlFlow::Continue(())
                })?;
                let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
                let _ = sort::sorted(segment, nodes, order, reverse, limit)?.into_iter().try_for_each(give);
            }
        }
        segment.expect_whole()?;
        Ok(given)
    }

    /// How many there are, [`Query::limit`] at most.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn count(&self, segment: &Segment) -> Result<u64> {
        self.add_up(segment, None)
    }

    /// As [`Query::count`], where it is known already which nodes [`Query::leader`] matches.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn count_known(&self, segment: &Segment, known: Known<'_>) -> Result<u64> {
        self.add_up(segment, Some(known))
    }

    fn add_up(&self, segment: &Segment, known: Option<Known<'_>>) -> Result<u64> {
        let mut count = 0_u64;
        self.each(segment, known, &mut |hits| {
            count += hits.len() as u64;
            if count >= self.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        segment.expect_whole()?;
        Ok(count.min(self.limit))
    }

    /// All that are found.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn collect(&self, segment: &Segment) -> Result<Vec<NodeId>> {
        let mut nodes = Vec::new();
        self.run(segment, &mut |hit| {
            nodes.push(hit.node);
            ControlFlow::Continue(())
        })?;
        Ok(nodes)
    }

    /// Whether something that is in no segment would be found. Where the search begins, how deep it goes, how many hits it gives and how it
    /// sorts them, is not looked at.
    pub fn accepts(&self, candidate: &Candidate<'_>) -> bool {
        let Candidate { path, kind, size, mtime_ns } = *candidate;
        self.accepts_facts(kind, size, mtime_ns)
            && self.accepts_extension(last_name(path))
            && self.patterns.iter().all(|pattern| pattern.is_path_match(path))
            && !self.excludes.iter().any(|exclude| {
                let ends = memchr::memchr_iter(b'/', path).chain([path.len()]);
                ends.into_iter().any(|end| exclude.is_path_match(&path[..end]))
            })
    }

    /// Whether it asks for times.
    pub(crate) fn looks_at_times(&self) -> bool {
        self.times.is_some()
    }

    pub(super) fn accepts_facts(&self, kind: Kind, size: u64, mtime_ns: i64) -> bool {
        let has_size = |sizes: &RangeInclusive<u64>| kind != Kind::Directory && sizes.contains(&size);
        self.kinds & kind_bit(kind) != 0
            && self.sizes.as_ref().is_none_or(has_size)
            && self.times.as_ref().is_none_or(|times| times.contains(&mtime_ns))
    }

    pub(super) fn accepts_extension(&self, name: &[u8]) -> bool {
        self.extensions.is_empty() || self.extensions.iter().any(|extension| ends_with_folded(name, extension))
    }

    /// The pattern that the search begins with, and its number: what it does not match need not be looked at. `None` if there is no
    /// pattern.
    pub fn leader(&self) -> Option<(usize, &Pattern)> {
        let of_names = scan::literal(self).map(|(at, _)| at).or_else(|| scan::names(self).map(|(at, _)| at).next());
        let at = if of_names.is_none() && !self.patterns.is_empty() { Some(0) } else { of_names };
        at.map(|at| (at, &self.patterns[at]))
    }

    /// Nodes among which all are that can be found: those below the directory that it begins in, and some beside them.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn stretch(&self, segment: &Segment) -> Result<Range<u32>> {
        let levels = self.levels(segment)?;
        Ok(levels.first().map_or(0, |level| level.start)..levels.last().map_or(0, |level| level.end))
    }

    /// How many nodes' names have to be looked at: fewer than there are where their signatures ([`crate::layout::signatures`]) tell
    /// of the others that they have not what is asked for.
    ///
    /// # Errors
    /// As [`Query::run`].
    pub fn nodes_left(&self, segment: &Segment) -> Result<u64> {
        let levels = self.levels(segment)?;
        let left = signatures::narrowed(self, segment, &levels)?.unwrap_or(levels);
        Ok(left.iter().map(|range| range.len() as u64).sum())
    }

    /// Whether it may end before all nodes were looked at.
    pub fn may_end_early(&self) -> bool {
        self.order.is_none() && self.limit < u64::MAX
    }

    /// The nodes that are asked for, of each level.
    #[allow(clippy::single_range_in_vec_init)] // It is one range that is meant.
    fn levels(&self, segment: &Segment) -> Result<Vec<Range<u32>>> {
        let all = self.start == NodeId::ROOT && self.depths == (1..u32::MAX);
        if all { Ok(vec![1..segment.len()]) } else { levels::below(segment, self.start, &self.depths) }
    }

    /// Finds nodes and gives them to `sink`, some at once, in their order.
    fn each(
        &self,
        segment: &Segment,
        known: Option<Known<'_>>,
        sink: &mut dyn FnMut(Vec<u32>) -> ControlFlow<()>,
    ) -> Result<()> {
        if let Some(known) = known {
            return known::run(self, segment, &self.levels(segment)?, known, sink);
        }
        // A pattern of names is searched for where they lie; one of paths alone, on the way down.
        let of_names = self.patterns.iter().any(|pattern| pattern.target() == Target::Name);
        let of_paths = self.patterns.iter().position(|pattern| pattern.target() == Target::Path);
        if let (false, Some(pattern), Strategy::Best) = (of_names, of_paths, self.strategy)
            && let Some(table) = self.patterns[pattern].table()
        {
            return walk::run(self, segment, (pattern, table), sink);
        }
        scan::run(self, segment, &self.levels(segment)?, sink)
    }

    /// How many threads so many nodes are worth.
    pub(super) fn threads_for(&self, nodes: u32) -> usize {
        match self.threads {
            0 => cores_up_to((nodes.div_ceil(NODES_A_THREAD) as usize).min(THREADS_MAX)),
            threads => threads,
        }
    }

    /// `Interrupted` if it was said to stop.
    pub(crate) fn check_stop(&self) -> Result<()> {
        match self.stop.iter().any(|stop| stop.load(Relaxed)) {
            true => Err(FsError::new(ErrorKind::Interrupted)),
            false => Ok(()),
        }
    }
}
