//! Searches and comparisons: a device tells which nodes match, which files are equal, or which nodes have the same path; what else was
//! asked of them the processor looks at. Without a device the processor does all of it.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Session;
use crate::gpu::{Against, GpuError, Table};
use crate::layout::Section;
use crate::query::{Change, Diff, DiffSummary, Dupes, DupesSummary, Group, Hit, Joined, Known, Pattern, Query, Target};
use crate::router::{Choice, Job, Reason, Work};
use crate::segment::{NodeId, Segment};

use super::place::There;

/// What is done of a search beforehand, and how long that took.
type Found<T> = Option<(T, Duration)>;

/// A search as a job: among which nodes, and why it would be for no device.
pub(super) type Search = (Job, Range<u32>, Option<Reason>);

/// If less than one node in so many is left to be looked at, the processor does that: a device looks at all of them.
const LEFT_OUT: u64 = 8;

/// The time of a job without that of who gets the answer.
struct Lap {
    begun: Instant,
    away: Duration,
    broke: bool,
}

impl Lap {
    fn begin() -> Lap {
        Lap { begun: Instant::now(), away: Duration::ZERO, broke: false }
    }

    fn hand<T>(&mut self, sink: &mut dyn FnMut(T) -> ControlFlow<()>, answer: T) -> ControlFlow<()> {
        let left = Instant::now();
        let flow = sink(answer);
        self.away += left.elapsed();
        self.broke |= flow.is_break();
        flow
    }

    /// With what a device did before.
    fn end(&self, before: Duration) -> Duration {
        before + self.begun.elapsed().saturating_sub(self.away)
    }
}

/// The kind of work that a pattern is.
pub(super) fn work_of(pattern: &Pattern) -> Work {
    match pattern.target() {
        Target::Path => Work::Paths,
        Target::Name if pattern.literal().is_some() => Work::Substring,
        Target::Name if pattern.has_landmarks() => Work::Names,
        Target::Name => Work::States,
    }
}

impl Session {
    /// As [`Query::run`].
    ///
    /// # Errors
    /// As [`Query::run`], as [`GpuError::Segment`]; where a device was asked for and there is none, that.
    pub fn search(&self, query: &Query, sink: &mut dyn FnMut(Hit) -> ControlFlow<()>) -> Result<u64, GpuError> {
        let (job, told, unfit) = self.job_of(query)?;
        let engine = self.choose(job, unfit, None)?;
        let found = self.matches(engine, job, query, told)?;
        if !self.router.has_devices() {
            // Nothing is to be learned: no hit is timed by itself.
            let begun = Instant::now();
            let given = query.run(&self.segment, sink)?;
            self.log.ended(job.work, 0, begun.elapsed());
            return Ok(given);
        }
        let mut lap = Lap::begin();
        let mut hand = |hit| lap.hand(sink, hit);
        let given = match &found {
            Some(((pattern, nodes), _)) => {
                query.run_known(&self.segment, Known { pattern: *pattern, nodes }, &mut hand)?
            }
            None => query.run(&self.segment, &mut hand)?,
        };
        if !lap.broke && !query.may_end_early() {
            self.did(engine, job, &found, lap, unfit);
        }
        Ok(given)
    }

    /// As [`Query::count`].
    ///
    /// # Errors
    /// As [`Session::search`].
    pub fn count(&self, query: &Query) -> Result<u64, GpuError> {
        let (job, told, unfit) = self.job_of(query)?;
        let engine = self.choose(job, unfit, None)?;
        self.count_by(engine, (job, told, unfit), query)
    }

    /// As [`Session::count`], by an engine that was chosen already.
    pub(super) fn count_by(&self, engine: usize, (job, told, unfit): Search, query: &Query) -> Result<u64, GpuError> {
        let found = self.matches(engine, job, query, told)?;
        let lap = Lap::begin();
        let count = match &found {
            Some(((pattern, nodes), _)) => query.count_known(&self.segment, Known { pattern: *pattern, nodes })?,
            None => query.count(&self.segment)?,
        };
        if !query.may_end_early() {
            self.did(engine, job, &found, lap, unfit);
        }
        Ok(count)
    }

    /// As [`Dupes::run`].
    ///
    /// # Errors
    /// As [`Session::search`].
    pub fn dupes(
        &self,
        dupes: &Dupes,
        sink: &mut dyn FnMut(&Group) -> ControlFlow<()>,
    ) -> Result<DupesSummary, GpuError> {
        let job = Job { work: Work::Twins, amount: self.segment.len().into() };
        let unfit = (!self.has_hashes()).then_some(Reason::NoWay);
        let engine = self.choose(job, unfit, None)?;
        self.dupes_by(engine, job, dupes, sink)
    }

    /// Whether there are hashes of content in the segment.
    pub(super) fn has_hashes(&self) -> bool {
        self.segment.sections().any(|(section, _)| section == Section::Hashes)
    }

    /// As [`Session::dupes`], by an engine that was chosen already.
    pub(super) fn dupes_by(
        &self,
        engine: usize,
        job: Job,
        dupes: &Dupes,
        sink: &mut dyn FnMut(&Group) -> ControlFlow<()>,
    ) -> Result<DupesSummary, GpuError> {
        let found = self.by_device(engine, job, None, |there| there.own.twins(dupes.smallest()).wait())?;
        let mut lap = Lap::begin();
        let mut hand = |group: &Group| {
            let left = Instant::now();
            let flow = sink(group);
            lap.away += left.elapsed();
            flow
        };
        // All groups are known before the first one is given.
        let summary = match &found {
            Some((nodes, _)) => dupes.run_known(&self.segment, nodes, &mut hand)?,
            None => dupes.run(&self.segment, &mut hand)?,
        };
        self.did(engine, job, &found, lap, None);
        Ok(summary)
    }

    /// As [`Diff::run`], from the session's segment to another one.
    ///
    /// # Errors
    /// As [`Session::search`].
    pub fn diff(
        &self,
        diff: &Diff,
        after: &Arc<Segment>,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary, GpuError> {
        let job = Job { work: Work::Pairs, amount: u64::from(self.segment.len()) + u64::from(after.len()) };
        let engine = self.choose(job, None, Some(after))?;
        self.diff_by(engine, job, diff, after, sink)
    }

    /// As [`Session::diff`], by an engine that was chosen already.
    pub(super) fn diff_by(
        &self,
        engine: usize,
        job: Job,
        diff: &Diff,
        after: &Arc<Segment>,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary, GpuError> {
        let found = self.by_device(engine, job, Some(after), |there| {
            let pairs = there.own.pairs(there.has(after).unwrap_or(&there.own)).wait()?;
            let firsts = (0..pairs.len()).map(|node| pairs.first(NodeId(node)));
            Ok(Joined::new(self.segment.len(), firsts))
        })?;
        let mut lap = Lap::begin();
        let mut hand = |change| lap.hand(sink, change);
        let summary = match &found {
            Some((joined, _)) => diff.run_known(&self.segment, after, joined, &mut hand)?,
            None => diff.run(&self.segment, after, &mut hand)?,
        };
        if !lap.broke {
            self.did(engine, job, &found, lap, None);
        }
        Ok(summary)
    }

    /// A search as a job: among which nodes, and why it would be for no device.
    pub(super) fn job_of(&self, query: &Query) -> Result<Search, GpuError> {
        let told = query.stretch(&self.segment)?;
        let names = self.segment.section(Section::Names).len() as u128;
        let part = names * told.len() as u128 / u128::from(self.segment.len().max(1));
        let amount = u64::try_from(part).unwrap_or(u64::MAX);
        let leader = query.leader();
        let job = Job { work: leader.map_or(Work::States, |(_, pattern)| work_of(pattern)), amount };
        let has_table = || leader.is_some_and(|(_, pattern)| pattern.table().is_some());
        let unfit = if !self.router.has_devices() {
            // Who says so otherwise has made a table for nobody.
            None
        } else if query.may_end_early() && self.options.router.choice == Choice::Auto {
            Some(Reason::EndsEarly)
        } else if self.options.router.choice != Choice::Gpu
            && query.nodes_left(&self.segment)? < told.len() as u64 / LEFT_OUT
        {
            Some(Reason::LeftOut)
        } else {
            (!has_table()).then_some(Reason::NoWay)
        };
        Ok((job, told, unfit))
    }

    /// The number of the pattern that a device has looked for, and the nodes that it has found.
    fn matches(
        &self,
        engine: usize,
        job: Job,
        query: &Query,
        told: Range<u32>,
    ) -> Result<Found<(usize, Vec<NodeId>)>, GpuError> {
        let Some((number, pattern)) = query.leader() else { return Ok(None) };
        let Some(automaton) = (if engine > 0 { pattern.table() } else { None }) else { return Ok(None) };
        self.by_device(engine, job, None, |there| {
            let against = match pattern.target() {
                Target::Name => Against::Names,
                Target::Path => Against::Paths,
            };
            let table = Arc::new(Table::new(automaton)?);
            Ok((number, there.own.search(&table, against, told).wait()?))
        })
    }

    /// What a device comes to, and how long it took; `None` if the processor is to answer.
    fn by_device<T>(
        &self,
        engine: usize,
        job: Job,
        other: Option<&Arc<Segment>>,
        work: impl FnOnce(&There) -> Result<T, GpuError>,
    ) -> Result<Found<T>, GpuError> {
        if engine == 0 {
            return Ok(None);
        }
        let begun = self.residents(engine, other).map(|there| (there, Instant::now()));
        let done = begun.and_then(|(there, begun)| Ok((work(&there)?, begun.elapsed())));
        match done {
            Ok(done) => Ok(Some(done)),
            Err(e) if e.is_of_the_device() => {
                self.failed(engine, job.work, &e);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// A job has ended that a device began, or did not.
    fn did<T>(&self, engine: usize, job: Job, found: &Found<T>, lap: Lap, unfit: Option<Reason>) {
        match found {
            Some((_, before)) => self.learn(engine, job, lap.end(*before)),
            // That tells nothing of a search that leaves nothing out.
            None if unfit == Some(Reason::LeftOut) => self.log.ended(job.work, 0, lap.end(Duration::ZERO)),
            None => self.learn(0, job, lap.end(Duration::ZERO)),
        }
    }
}
