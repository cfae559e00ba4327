//! What engines take, measured over the segment at hand, once for each driver.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::Session;
use crate::gpu::GpuError;
use crate::query::{Diff, Dupes, Pattern, Query};
use crate::resolve::{Question, Resolver};
use crate::router::{Choice, Job, Work};
use crate::segment::NodeId;

/// Batches that are measured: the smallest tells what any job takes.
const BATCHES: [usize; 3] = [1 << 8, 1 << 12, 1 << 16];
/// A smaller segment fits the processor's caches: what is measured over it says nothing of others.
pub const MEASURABLE_NODES_MIN: u32 = 1 << 14;
/// An amount of bytes or nodes so small that what any job takes is all that it takes.
const SMALL: u64 = 1 << 8;
/// A pattern for each kind of search. Names that are matched by one would be a chance.
const PATTERNS: [(Work, &str); 4] = [
    (Work::Substring, "\u{1}\u{2}"),
    (Work::Names, "\u{1}[a-z]+\u{2}"),
    (Work::States, r"[a-m][n-z][^a-z]{2}[^0-9]{2}[a-m]$"),
    (Work::Paths, r"/[a-m][n-z][^a-z/]{2}[^0-9/]{2}[a-m]$"),
];

impl Session {
    /// Whether something of an engine that could be taken is not known, and this segment could tell it.
    pub fn needs_measuring(&self) -> bool {
        self.segment.len() >= MEASURABLE_NODES_MIN && !self.unmeasured().is_empty()
    }

    /// Engines, and work of which nothing is known; of programs that play a device only if they are asked for.
    fn unmeasured(&self) -> Vec<(usize, Work)> {
        let router = self.router();
        let forced = router.options().choice == Choice::Gpu && router.options().software;
        let real = |engine: &usize| !router.engines()[*engine].software || forced;
        let devices: Vec<usize> = (1..router.engines().len()).filter(real).collect();
        if devices.is_empty() {
            return Vec::new();
        }
        let has_hashes = self.has_hashes();
        let works = Work::QUESTIONS.into_iter().filter(|work| has_hashes || *work != Work::Twins);
        let engines = std::iter::once(0).chain(devices);
        let all = engines.flat_map(|engine| works.clone().map(move |work| (engine, work)));
        all.filter(|(engine, work)| !router.is_measured(*engine, *work)).collect()
    }

    /// Measures what was not measured before, and waits for it. A device that fails is given up. Over a segment of fewer than
    /// [`MEASURABLE_NODES_MIN`] nodes that is of little use.
    ///
    /// # Errors
    /// [`GpuError::Segment`] where the segment is damaged.
    pub fn measure(&self) -> Result<(), GpuError> {
        let all = self.unmeasured();
        let paths = if all.is_empty() { Vec::new() } else { self.sample(BATCHES[BATCHES.len() - 1])? };
        let questions: Vec<Question<'_>> = paths.iter().map(|path| path.as_slice().into()).collect();
        for engine in 0..self.router.engines().len() {
            let works: Vec<Work> = all.iter().filter(|(of, _)| *of == engine).map(|(_, work)| *work).collect();
            if works.is_empty() {
                continue;
            }
            match self.measure_engine(engine, &works, &questions) {
                Err(e) if e.is_of_the_device() => self.failed(engine, Work::Resolve, &e),
                other => other?,
            }
        }
        Ok(())
    }

    /// Paths from all over the segment; one in four is not there.
    fn sample(&self, count: usize) -> Result<Vec<Vec<u8>>, GpuError> {
        let nodes = u64::from(self.segment.len());
        let node = |at: u64| NodeId((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % nodes) as u32);
        (0..count as u64)
            .map(|at| -> Result<Vec<u8>, GpuError> {
                let mut path = self.segment.path(node(at))?;
                if at % 4 == 3 {
                    path.extend(b"?");
                }
                Ok(path)
            })
            .collect()
    }

    fn measure_engine(&self, engine: usize, works: &[Work], questions: &[Question<'_>]) -> Result<(), GpuError> {
        let any = if engine == 0 { None } else { Some(self.measure_first(engine, questions)?) };
        for work in works {
            if let Some(any) = any.filter(|_| *work != Work::Resolve) {
                self.router.learn(engine, Job { work: *work, amount: SMALL }, any);
            }
            match work {
                Work::Resolve => self.measure_batches(engine, questions)?,
                Work::Twins => self.measure_twins(engine)?,
                Work::Pairs => self.measure_pairs(engine)?,
                _ => self.measure_search(engine, *work)?,
            }
        }
        Ok(())
    }

    fn find_by(&self, engine: usize, questions: &[Question<'_>]) -> Result<Duration, GpuError> {
        if engine == 0 {
            let resolver = Resolver::new(&self.segment)?;
            let begun = Instant::now();
            resolver.find_batch(questions)?;
            return Ok(begun.elapsed());
        }
        let there = self.residents(engine, None)?;
        let begun = Instant::now();
        there.own.find(questions).wait()?;
        Ok(begun.elapsed())
    }

    /// Learns what a program pays before the first job on a device, beside bringing the segment there. What any job takes.
    fn measure_first(&self, engine: usize, questions: &[Question<'_>]) -> Result<Duration, GpuError> {
        let few = &questions[..BATCHES[0].min(questions.len())];
        let is_open = !self.ahead(engine, Work::Resolve, None).open;
        let begun = Instant::now();
        let there = self.residents(engine, None)?;
        self.find_by(engine, few)?;
        let opened = begun.elapsed().saturating_sub(there.own.upload_time());
        let warm = self.find_by(engine, few)?;
        if !is_open {
            let job = Job { work: Work::Open, amount: 1 };
            self.router.learn(engine, job, opened.saturating_sub(warm));
        }
        Ok(warm)
    }

    /// Each size once to warm up, and once to measure.
    fn measure_batches(&self, engine: usize, questions: &[Question<'_>]) -> Result<(), GpuError> {
        for len in BATCHES {
            let part = &questions[..len.min(questions.len())];
            self.find_by(engine, part)?;
            let job = Job { work: Work::Resolve, amount: part.len() as u64 };
            self.router.learn(engine, job, self.find_by(engine, part)?);
        }
        Ok(())
    }

    fn measure_search(&self, engine: usize, work: Work) -> Result<(), GpuError> {
        let Some(pattern) = pattern_of(work).transpose()? else { return Ok(()) };
        let query = Query::new().pattern(pattern);
        let search = self.job_of(&query)?;
        for _ in 0..2 {
            self.count_by(engine, search.clone(), &query)?;
        }
        Ok(())
    }

    fn measure_twins(&self, engine: usize) -> Result<(), GpuError> {
        let job = Job { work: Work::Twins, amount: self.segment.len().into() };
        for _ in 0..2 {
            self.dupes_by(engine, job, &Dupes::new(), &mut |_| ControlFlow::Break(()))?;
        }
        Ok(())
    }

    /// A segment beside itself.
    fn measure_pairs(&self, engine: usize) -> Result<(), GpuError> {
        let job = Job { work: Work::Pairs, amount: 2 * u64::from(self.segment.len()) };
        let diff = Diff::new().renames(false);
        for _ in 0..2 {
            self.diff_by(engine, job, &diff, &self.segment, &mut |_| ControlFlow::Continue(()))?;
        }
        Ok(())
    }
}

fn pattern_of(work: Work) -> Option<adit_core::error::Result<Pattern>> {
    let (_, text) = PATTERNS.iter().find(|(of, _)| *of == work)?;
    Some(if work == Work::Substring { Pattern::substring(text.as_bytes()) } else { Pattern::regex(text) })
}

#[cfg(test)]
mod tests {
    use super::super::search::work_of;
    use super::*;

    #[test]
    fn each_pattern_is_the_work_that_it_measures() {
        for (work, _) in PATTERNS {
            let pattern = pattern_of(work).unwrap().unwrap();
            assert_eq!(work_of(&pattern), work);
            assert!(pattern.table().is_some(), "a device can look for it");
            assert!(pattern.signature_bits().is_empty(), "nothing is left out");
        }
    }
}
