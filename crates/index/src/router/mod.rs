//! Which engine answers a job: [`Router`]. It knows what the processor and each device took for jobs before, predicts what the next one
//! will take, and can say why it chose.
//!
//! Nothing here runs a job or reads a clock: who does ([`crate::session::Session`]) tells what it took. So all of it is tested with
//! made-up engines. Rules, in this order:
//!
//! 1. What was asked for ([`Choice`]) is what is taken, if there is such an engine.
//! 2. A device that is lost, is a program on the processor, or was never measured, is not taken.
//! 3. A small job ([`RouterOptions::least`]) is the processor's.
//! 4. The shortest prediction wins, but the engine that had such jobs before stays until another one is clearly faster.
//! 5. A segment is brought to a device when that has paid off: when what was lost by not having it there is as much as it costs.
//! 6. Now and then an engine that has not been seen for long is tried again, within a share of the time of such jobs.

mod fit;
mod secs;
mod state;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fit::{Fit, class_of};
pub use secs::{Cost, Secs};
use serde::{Deserialize, Serialize};
pub use state::{KnownDevices, known_devices};

/// What a job does. Each has an amount of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Work {
    /// Finds paths; the amount is how many.
    Resolve,
    /// A pattern of fixed bytes over names; the amount is their bytes.
    Substring,
    /// Any other pattern over names that has bytes to look for; the amount is the bytes of the names.
    Names,
    /// A pattern over names that has none; the amount is the bytes of the names.
    States,
    /// A pattern over paths; the amount is the bytes of the names.
    Paths,
    /// Equal files; the amount is how many nodes there are.
    Twins,
    /// Equal paths of two trees; the amount is how many nodes they have.
    Pairs,
    /// Brings a segment to a device; the amount is its bytes.
    Upload,
    /// Finds and opens a device, and makes it ready for its first job; the amount is 1.
    Open,
}

impl Work {
    /// All that a question can be.
    pub const QUESTIONS: [Work; 7] =
        [Work::Resolve, Work::Substring, Work::Names, Work::States, Work::Paths, Work::Twins, Work::Pairs];
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Work::Resolve => "paths to find",
            Work::Substring => "bytes of names to search for fixed bytes",
            Work::Names => "bytes of names to match",
            Work::States => "bytes of names to match one by one",
            Work::Paths => "bytes of names to match as paths",
            Work::Twins => "nodes to find equal files among",
            Work::Pairs => "nodes to pair by path",
            Work::Upload => "bytes to bring up",
            Work::Open => "device to open",
        })
    }
}

/// A job, as far as its cost goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Job {
    /// What it does.
    pub work: Work,
    /// How much of it.
    pub amount: u64,
}

/// Who is to answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Choice {
    /// The processor.
    Cpu,
    /// A device, also where it is slower. A program that plays one only where [`RouterOptions::software`] says so.
    Gpu,
    /// Whoever is faster.
    #[default]
    Auto,
}

/// An engine, as the router knows it. Number 0 is the processor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Engine {
    /// For people.
    pub name: String,
    /// What measurements are kept under: another driver is another engine.
    pub id: String,
    /// A program on the processor that plays a device.
    pub software: bool,
}

impl Engine {
    /// The processor of this machine: with other many threads it is another engine.
    pub fn processor() -> Engine {
        let threads = crate::cores::cores();
        Engine { name: format!("the processor ({threads} threads)"), id: format!("cpu:{threads}"), software: false }
    }
}

/// How a router decides. The defaults were chosen with made-up engines; `tests` in the module has them.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct RouterOptions {
    /// Who is to answer.
    pub choice: Choice,
    /// Another engine is clearly faster if it takes so much less, as a share of what the one takes that had such jobs before.
    pub hysteresis: f64,
    /// The share of the time of jobs of a kind and class that may go into looking again at engines that were not faster.
    pub explore_share: f64,
    /// After so many jobs of a kind and class without it, an engine is looked at again.
    pub explore_after: u32,
    /// A smaller amount is the processor's without a question: no device answers in less than some ten microseconds.
    pub least: u64,
    /// Whether [`Choice::Gpu`] may take a program that plays a device, if there is no other: for tests. [`Choice::Auto`] never does.
    pub software: bool,
}

impl Default for RouterOptions {
    fn default() -> Self {
        RouterOptions {
            choice: Choice::Auto,
            hysteresis: 0.05,
            explore_share: 0.02,
            explore_after: 32,
            least: 64,
            software: false,
        }
    }
}

/// Why an engine was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// It was asked for.
    Asked,
    /// There is no other one that could be taken.
    Only,
    /// The job is too small for any other one.
    Small,
    /// It is predicted to be the fastest.
    Fastest,
    /// It had such jobs before, and no other one is clearly faster.
    Stays,
    /// Another one would be faster, but the segment is not there, and has not paid off yet.
    NotThere,
    /// It has not been looked at for long.
    LookedAt,
    /// No device has a way to do such a job.
    NoWay,
    /// The job may end before all of it is done, and a device does all of it.
    EndsEarly,
    /// The signatures of names leave little to be looked at, and a device looks at all of it.
    LeftOut,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Asked => "it was asked for",
            Reason::Only => "no other engine can be taken",
            Reason::Small => "the job is too small for a device",
            Reason::Fastest => "it is predicted to be the fastest",
            Reason::Stays => "it had such jobs before, and no other engine is clearly faster",
            Reason::NotThere => "the index is not on the faster device, and bringing it there has not paid off yet",
            Reason::LookedAt => "it was not measured for long, and is looked at again",
            Reason::NoWay => "no device has a way to do this",
            Reason::EndsEarly => "it may end before all was looked at",
            Reason::LeftOut => "few names may have what is looked for, and a device looks at all",
        })
    }
}

/// What has to be done before an engine can begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ahead {
    /// It has to be found and opened.
    pub open: bool,
    /// So many bytes have to be brought there.
    pub bytes: u64,
}

/// What was predicted of one engine.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// Its name.
    pub name: String,
    /// Seconds for the job; none if it was never measured.
    pub secs: Option<f64>,
    /// What any such job takes, and what each unit takes, in seconds.
    pub line: Option<(f64, f64)>,
    /// Seconds to open it and bring the segment there first; 0 if it is there.
    pub upload_secs: f64,
    /// Why it is not taken whatever it would take.
    pub unusable: Option<String>,
}

/// Who answers a job, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    /// The number of the engine; 0 is the processor.
    pub engine: usize,
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: Reason,
    /// What was asked.
    pub job: Job,
    /// What was known.
    pub predictions: Vec<Prediction>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}: by {}, because {}", self.job.amount, self.job.work, self.name, self.reason)?;
        for prediction in &self.predictions {
            write!(f, "  {}: ", prediction.name)?;
            let Some(secs) = prediction.secs.filter(|_| prediction.unusable.is_none()) else {
                match &prediction.unusable {
                    Some(why) => writeln!(f, "not taken, {why}")?,
                    None => writeln!(f, "not measured yet")?,
                }
                continue;
            };
            write!(f, "{} predicted", Secs(secs))?;
            if let Some((job, each)) = prediction.line {
                write!(f, " ({})", Cost { job, each })?;
            }
            if prediction.upload_secs > 0.0 {
                write!(f, ", after {} to bring the index there", Secs(prediction.upload_secs))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Chooses engines for jobs, and learns from what they took. Any number of threads may ask at once.
#[derive(Debug)]
pub struct Router {
    options: RouterOptions,
    engines: Vec<Engine>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    fits: HashMap<(usize, Work), Fit>,
    /// Why an engine is out.
    unusable: HashMap<usize, String>,
    /// Who had the last job of a kind and class.
    last: HashMap<(Work, u8), usize>,
    /// How many jobs of a kind and class came since an engine had one.
    unseen: HashMap<(usize, Work, u8), u32>,
    /// Seconds lost so far because the segment is not on a device.
    missed: HashMap<usize, f64>,
    /// Of jobs of a kind and class: seconds that they took, and that went into looking at slower engines.
    spent: HashMap<(Work, u8), (f64, f64)>,
}

impl Router {
    /// Of the processor, which is the first engine, and devices. Nothing is known of any of them.
    ///
    /// # Panics
    /// If there is no engine at all.
    pub fn new(engines: Vec<Engine>, options: RouterOptions) -> Router {
        assert!(!engines.is_empty(), "the processor is always there");
        Router { options, engines, known: Mutex::default() }
    }

    /// The engines, the processor first.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// How it decides.
    pub fn options(&self) -> &RouterOptions {
        &self.options
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who answers a job. `ahead` says of each engine what would have to be done first.
    pub fn route(&self, job: Job, ahead: impl Fn(usize) -> Ahead) -> Route {
        // Before the lock: who answers may wait for somebody who learns something.
        let ahead: Vec<Ahead> = (0..self.engines.len()).map(ahead).collect();
        let mut known = self.known();
        let predictions = self.predictions(&known, job, &ahead);
        let (engine, reason) = self.choose(&mut known, job, &predictions);
        for other in 0..self.engines.len() {
            let unseen = known.unseen.entry((other, job.work, class_of(job.amount))).or_default();
            *unseen = if other == engine { 0 } else { unseen.saturating_add(1) };
        }
        Route { engine, name: self.engines[engine].name.clone(), reason, job, predictions }
    }

    /// A job that is the processor's for a reason of its own, which nobody chooses for.
    pub fn route_to_processor(&self, job: Job, reason: Reason, ahead: impl Fn(usize) -> Ahead) -> Route {
        let ahead: Vec<Ahead> = (0..self.engines.len()).map(ahead).collect();
        let predictions = self.predictions(&self.known(), job, &ahead);
        Route { engine: 0, name: self.engines[0].name.clone(), reason, job, predictions }
    }

    fn predictions(&self, known: &Known, job: Job, ahead: &[Ahead]) -> Vec<Prediction> {
        ahead.iter().enumerate().map(|(engine, ahead)| self.predict(known, engine, job, *ahead)).collect()
    }

    fn predict(&self, known: &Known, engine: usize, job: Job, ahead: Ahead) -> Prediction {
        let fit = |work, amount| known.fits.get(&(engine, work)).and_then(|fit| fit.predict(amount)).unwrap_or(0.0);
        let upload_secs = if ahead.bytes > 0 { fit(Work::Upload, ahead.bytes) } else { 0.0 };
        let open_secs = if ahead.open { fit(Work::Open, 1) } else { 0.0 };
        let mut unusable = known.unusable.get(&engine).cloned();
        if self.is_only_played(engine) {
            unusable.get_or_insert_with(|| "it is a program on the processor".to_owned());
        }
        let own = known.fits.get(&(engine, job.work));
        Prediction {
            name: self.engines[engine].name.clone(),
            secs: own.and_then(|fit| fit.predict(job.amount)),
            line: own.and_then(Fit::line),
            upload_secs: upload_secs + open_secs,
            unusable,
        }
    }

    /// Whether an engine is a program that plays a device, and nobody asked for such a one.
    fn is_only_played(&self, engine: usize) -> bool {
        self.engines[engine].software && !(self.options.choice == Choice::Gpu && self.options.software)
    }

    /// Whether there is a device that could be taken for some job.
    pub fn has_devices(&self) -> bool {
        self.options.choice != Choice::Cpu && (1..self.engines.len()).any(|engine| self.is_usable(engine))
    }

    /// Whether an engine could be taken: it was not given up, and is no program that nobody asked for.
    pub fn is_usable(&self, engine: usize) -> bool {
        self.given_up(engine).is_none() && !self.is_only_played(engine)
    }

    fn choose(&self, known: &mut Known, job: Job, predictions: &[Prediction]) -> (usize, Reason) {
        if self.options.choice == Choice::Cpu {
            return (0, Reason::Asked);
        }
        let usable = |engine: &usize| predictions[*engine].unusable.is_none();
        let devices: Vec<usize> = (1..predictions.len()).filter(usable).collect();
        if self.options.choice == Choice::Gpu {
            // A real one before a program; of several the one that is predicted to be the fastest, else the first.
            let cost = |engine: usize| predictions[engine].secs.unwrap_or(f64::MAX) + predictions[engine].upload_secs;
            let order = |a: &&usize, b: &&usize| {
                let software = |engine: usize| self.engines[engine].software;
                software(**a).cmp(&software(**b)).then(cost(**a).total_cmp(&cost(**b)))
            };
            return devices.iter().min_by(order).map_or((0, Reason::Only), |engine| (*engine, Reason::Asked));
        }
        let secs = |engine: usize| predictions[engine].secs.unwrap_or(f64::MAX);
        let measured: Vec<usize> = devices.into_iter().filter(|engine| predictions[*engine].secs.is_some()).collect();
        if measured.is_empty() || predictions[0].secs.is_none() {
            return (0, Reason::Only);
        }
        if job.amount < self.options.least {
            return (0, Reason::Small);
        }
        let there = |engine: &usize| *engine == 0 || predictions[*engine].upload_secs == 0.0;
        let candidates: Vec<usize> = std::iter::once(0).chain(measured).collect();
        let fastest =
            |of: &mut dyn Iterator<Item = usize>| of.min_by(|a, b| secs(*a).total_cmp(&secs(*b))).unwrap_or(0);
        let best_there = fastest(&mut candidates.iter().copied().filter(there));
        let best = fastest(&mut candidates.iter().copied());
        if best != best_there && !there(&best) {
            let gain = secs(best_there) - secs(best);
            let missed = known.missed.entry(best).or_default();
            *missed += gain.max(0.0);
            if *missed >= predictions[best].upload_secs {
                *missed = 0.0;
                known.last.insert((job.work, class_of(job.amount)), best);
                return (best, Reason::Fastest);
            }
            return (best_there, Reason::NotThere);
        }
        let ready: Vec<usize> = candidates.iter().copied().filter(there).collect();
        if let Some(engine) = self.look_again(known, job, &ready, best_there, &secs) {
            return (engine, Reason::LookedAt);
        }
        let before = known.last.entry((job.work, class_of(job.amount))).or_insert(best_there);
        if *before != best_there
            && ready.contains(before)
            && secs(best_there) > secs(*before) * (1.0 - self.options.hysteresis)
        {
            return (*before, Reason::Stays);
        }
        *before = best_there;
        (best_there, Reason::Fastest)
    }

    /// An engine that was not seen for long, if there is time left for that.
    fn look_again(
        &self,
        known: &mut Known,
        job: Job,
        ready: &[usize],
        best: usize,
        secs: &dyn Fn(usize) -> f64,
    ) -> Option<usize> {
        let class = class_of(job.amount);
        let unseen = |engine: usize| known.unseen.get(&(engine, job.work, class)).copied().unwrap_or(0);
        let waits = |engine: &usize| *engine != best && unseen(*engine) >= self.options.explore_after;
        let engine = ready.iter().copied().filter(waits).max_by_key(|engine| unseen(*engine))?;
        let extra = (secs(engine) - secs(best)).max(0.0);
        let (spent, explored) = known.spent.entry((job.work, class)).or_default();
        if *explored + extra > self.options.explore_share * *spent {
            return None;
        }
        *explored += extra;
        Some(engine)
    }

    /// A job took so long on an engine.
    pub fn learn(&self, engine: usize, job: Job, took: Duration) {
        let mut known = self.known();
        known.spent.entry((job.work, class_of(job.amount))).or_default().0 += took.as_secs_f64();
        known.fits.entry((engine, job.work)).or_default().observe(job.amount, took.as_secs_f64());
    }

    /// Forgets what all jobs took, so that it is measured again.
    pub fn forget(&self) {
        let mut known = self.known();
        let unusable = std::mem::take(&mut known.unusable);
        *known = Known { unusable, ..Known::default() };
    }

    /// An engine is of no use any more. The processor never is.
    pub fn give_up(&self, engine: usize, why: String) {
        if engine > 0 {
            self.known().unusable.insert(engine, why);
        }
    }

    /// Whether an engine was given up, and why.
    pub fn given_up(&self, engine: usize) -> Option<String> {
        self.known().unusable.get(&engine).cloned()
    }

    /// Whether something was measured of such work on an engine.
    pub fn is_measured(&self, engine: usize, work: Work) -> bool {
        self.known().fits.get(&(engine, work)).is_some_and(|fit| !fit.is_empty())
    }

    /// What any job of a kind takes on an engine, and what each unit takes, in seconds; for people.
    pub fn line(&self, engine: usize, work: Work) -> Option<(f64, f64)> {
        self.known().fits.get(&(engine, work))?.line()
    }
}

#[cfg(test)]
mod tests;
