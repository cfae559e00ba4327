//! A graphics processor beside the processor, and the router beside the better of the two.
//!
//! Only where there is one: a program that plays a device says nothing of speed, so its rows would be worse than none.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adit_index::gpu::{Adapter, AdapterFacts, adapters};
use adit_index::query::{Diff, Dupes, Pattern, Query};
use adit_index::resolve::Question;
use adit_index::router::Choice;
use adit_index::session::{Session, SessionOptions};
use adit_index::{NodeId, Resolver, Segment};
use anyhow::{Result, ensure};

use super::tree::{Texts, Tree};
use crate::RunArgs;
use crate::report::{ADIT, Aim, Report, Row, Unit};

/// The processor, with all its threads.
const PROCESSOR: &str = "processor";
/// Of processor and device, in each job, the one that took less.
const BETTER: &str = "the better of the two";
/// Batches whose way to the device and back counts.
const BATCHES: [(&str, usize); 7] = [
    ("end to end, batches of 64", 1 << 6),
    ("end to end, batches of 256", 1 << 8),
    ("end to end, batches of 1024", 1 << 10),
    ("end to end, batches of 4096", 1 << 12),
    ("end to end, batches of 16384", 1 << 14),
    ("end to end, batches of 262144", 1 << 18),
    ("end to end, batches of 1048576", 1 << 20),
];
/// So often a batch that lies on the device is looked up for one sample.
const RUNS: u32 = 64;
/// Searches, and what matches none of the names, so that all of them are read.
const SEARCHES: [(&str, bool, &str); 3] = [
    ("substring over all names", true, "\u{1}\u{2}"),
    ("regular expression over all names", false, r"^[a-m]+[n-z]?[^a-z]{3}[^0-9]{2}[a-m]$"),
    ("regular expression over all paths", false, r"[a-m]/[^0-9]{9}[a-m]$"),
];

/// The graphics processor that is measured, if there is one; else why there is none.
pub fn found() -> Result<Adapter, String> {
    let mut all = adapters();
    match all.iter().position(|adapter| !adapter.facts().software) {
        Some(at) => Ok(all.swap_remove(at)),
        None => Err(match all.first() {
            Some(adapter) => format!("none, only {}, a program that plays one", adapter.facts().name),
            None => "none: no driver offers one".into(),
        }),
    }
}

/// Says in the report which one it is.
pub fn describe(report: &mut Report) -> Result<Adapter, String> {
    match found() {
        Ok(adapter) => {
            let AdapterFacts { name, backend, driver, .. } = adapter.facts();
            report.fact("graphics processor", format!("{name}, {backend}, {driver}"));
            Ok(adapter)
        }
        Err(why) => {
            let command = "cargo xtask bench index --rows device-1m,device-10m";
            report.fact("graphics processor", format!("{why}; its rows are left out. Where one is: `{command}`"));
            Err(why)
        }
    }
}

pub fn run(
    args: &RunArgs,
    adapter: &Adapter,
    tree: &Tree,
    segment: &Segment,
    about: &str,
    size: &str,
    report: &mut Report,
) -> Result<()> {
    let group = format!("device-{size}");
    let about = format!(
        "{about} The index lies on the device; kernels are compiled, buffers made. `adit` has the device answer, but in the last row, where the \
         router chooses; the processor takes all its threads. By the clock. Half of the paths are hits, in no order. `on the device`: the paths \
         lie there, too, and are looked up {RUNS} times."
    );
    report.group(&group, &about);
    let bench = Bench::new(args, adapter, tree, segment)?;
    bench.resolve(report, &group)?;
    bench.searches(report, &group, size)?;
    bench.joins(report, &group)?;
    bench.router(report, &group)
}

struct Bench<'a> {
    args: &'a RunArgs,
    by_device: Session,
    by_processor: Session,
    segment: Arc<Segment>,
    asked: Texts,
    options: SessionOptions,
}

/// What a job takes, and what it comes to.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let started = Instant::now();
    let done = work()?;
    Ok((started.elapsed(), done))
}

impl<'a> Bench<'a> {
    fn new(args: &'a RunArgs, adapter: &Adapter, tree: &Tree, segment: &Segment) -> Result<Bench<'a>> {
        let segment = Arc::new(Segment::open(segment.file_path())?);
        let facts = adapter.facts();
        let options = SessionOptions::default().only(&facts.name).software(facts.software);
        let by = |choice| Session::new(segment.clone(), options.clone().choice(choice));
        let (hits, misses) = (tree.questions(1 << 19, false), tree.questions(1 << 19, true));
        let mut asked = Texts::default();
        for (hit, miss) in hits.iter().zip(misses.iter()) {
            asked.push(hit);
            asked.push(miss);
        }
        let (by_device, by_processor) = (by(Choice::Gpu), by(Choice::Cpu));
        Ok(Bench { args, by_device, by_processor, segment, asked, options })
    }

    fn questions(&self) -> Vec<Question<'_>> {
        self.asked.iter().map(Question::from).collect()
    }

    fn resolve(&self, report: &mut Report, group: &str) -> Result<()> {
        let questions = self.questions();
        let expected = Resolver::new(&self.segment)?.find_batch(&questions)?;
        let mut crossover = None;
        for (name, len) in BATCHES {
            let aim = if len == 1 << 20 { Aim::Bound(100e6) } else { Aim::None };
            let row = Row { name, unit: Unit::PerSec, aim };
            let (part, expected) = (&questions[..len], &expected[..len]);
            // The first is not counted: it compiles kernels and makes buffers.
            let find = |session: &Session| -> Result<f64> {
                let (took, found) = timed(|| Ok(session.find(part).wait()?))?;
                ensure!(found == expected, "an engine has found something else");
                Ok(took.as_secs_f64())
            };
            find(&self.by_device)?;
            let mut best = [f64::MAX; 2];
            for _ in 0..self.args.rounds() {
                for (at, (side, session)) in
                    [(ADIT, &self.by_device), (PROCESSOR, &self.by_processor)].into_iter().enumerate()
                {
                    let secs = find(session)?;
                    best[at] = best[at].min(secs);
                    report.add(group, &row, side, len as f64 / secs);
                }
            }
            if crossover.is_none() && best[0] < best[1] {
                crossover = Some(len);
            }
        }
        let crossover = match crossover {
            Some(len) => format!("from batches of {len} paths on"),
            None => "in no batch that was measured".into(),
        };
        report.fact("resolving pays on the graphics processor", format!("{crossover} ({group})"));
        self.on_the_device(report, group, &questions, &expected)
    }

    fn on_the_device(
        &self,
        report: &mut Report,
        group: &str,
        questions: &[Question<'_>],
        expected: &[Option<NodeId>],
    ) -> Result<()> {
        let row = Row { name: "on the device", unit: Unit::PerSec, aim: Aim::Bound(500e6) };
        let resident = self.by_device.resident()?;
        let sent = resident.send_paths(questions)?;
        ensure!(sent.find(1)? == expected, "a device has found something else");
        for _ in 0..self.args.rounds() {
            let (took, _) = timed(|| Ok(sent.find(RUNS)?))?;
            report.add(group, &row, ADIT, questions.len() as f64 * f64::from(RUNS) / took.as_secs_f64());
        }
        Ok(())
    }

    fn searches(&self, report: &mut Report, group: &str, size: &str) -> Result<()> {
        for (name, fixed, text) in SEARCHES {
            let pattern = if fixed { Pattern::substring(text.as_bytes())? } else { Pattern::regex(text)? };
            // 50 ms for a hundred million.
            let aim = if size == "10m" && name.ends_with("names") { Aim::Bound(5.0) } else { Aim::None };
            let query = Query::new().pattern(pattern);
            self.both(report, group, &Row { name, unit: Unit::Millis, aim }, &|session| Ok(session.count(&query)?))?;
        }
        Ok(())
    }

    fn joins(&self, report: &mut Report, group: &str) -> Result<()> {
        let row = Row { name: "equal files", unit: Unit::Millis, aim: Aim::None };
        let dupes =
            |session: &Session| Ok(session.dupes(&Dupes::new(), &mut |_| ControlFlow::Continue(()))?.duplicates);
        self.both(report, group, &row, &dupes)?;
        let row = Row { name: "differences from an equal tree", unit: Unit::Millis, aim: Aim::None };
        let after = Arc::new(Segment::open(self.segment.file_path())?);
        let diff = |session: &Session| {
            let diff = Diff::new().renames(false);
            Ok(session.diff(&diff, &after, &mut |_| ControlFlow::Continue(()))?.same)
        };
        self.both(report, group, &row, &diff)
    }

    /// A question to both sides by turns, which have to say the same.
    fn both(&self, report: &mut Report, group: &str, row: &Row, ask: &dyn Fn(&Session) -> Result<u64>) -> Result<()> {
        ensure!(ask(&self.by_device)? == ask(&self.by_processor)?, "{}: not the same answers", row.name);
        for _ in 0..self.args.rounds() {
            for (side, session) in [(ADIT, &self.by_device), (PROCESSOR, &self.by_processor)] {
                let (took, _) = timed(|| ask(session))?;
                report.add(group, row, side, took.as_secs_f64() * 1e3);
            }
        }
        Ok(())
    }

    /// Batches of all sizes, each by the router and by both engines.
    fn router(&self, report: &mut Report, group: &str) -> Result<()> {
        let row = Row { name: "batches of all sizes, by the router", unit: Unit::Millis, aim: Aim::Side(BETTER, 0.9) };
        let questions = self.questions();
        let routed = Session::new(self.segment.clone(), self.options.clone());
        routed.measure()?;
        for _ in 0..self.args.rounds() {
            let (mut by_router, mut better) = (Duration::ZERO, Duration::ZERO);
            for (_, len) in BATCHES {
                // As many paths of each size, so that none outweighs the others.
                for part in questions[..1 << 20].chunks(len).take(64) {
                    let find = |session: &Session| timed(|| Ok(session.find(part).wait()?)).map(|(took, _)| took);
                    by_router += find(&routed)?;
                    better += find(&self.by_device)?.min(find(&self.by_processor)?);
                }
            }
            report.add(group, &row, ADIT, by_router.as_secs_f64() * 1e3);
            report.add(group, &row, BETTER, better.as_secs_f64() * 1e3);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, What};

    /// What it measures on a program says nothing; that it runs, and that answers are the same, does.
    #[test]
    fn rows_of_a_device_can_be_measured() {
        let Some(adapter) = adapters().into_iter().next() else {
            eprintln!("not run: no driver offers a device");
            return;
        };
        let What::Index(args) = Cli::try_parse_from(["adit-bench", "index", "--rounds", "1"]).unwrap().what else {
            unreachable!("index was typed");
        };
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(500);
        let segment = tree.index(&dir.path().join("index"), 1 << 30, |_| Some(false)).unwrap();
        let mut report = Report::default();
        report.group("device-1m", "");
        let bench = Bench::new(&args, &adapter, &tree, &segment).unwrap();
        let (asked, resolver) = (bench.questions(), Resolver::new(&segment).unwrap());
        let (asked, expected) = (&asked[..5000], resolver.find_batch(&asked[..5000]).unwrap());
        bench.on_the_device(&mut report, "device-1m", asked, &expected).unwrap();
        bench.searches(&mut report, "device-1m", "1m").unwrap();
        bench.joins(&mut report, "device-1m").unwrap();
        let text = report.to_markdown();
        for row in ["on the device", "substring over all names", "equal files", "differences from an equal tree"] {
            assert!(text.contains(row), "{row} is not in {text}");
        }
    }
}
