//! Who answered what, why, and how long it took: [`Explained`], for people.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::router::{Route, Secs, Work};

/// What became of the jobs of one kind of work.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Explained {
    /// The last decision, with what was predicted.
    pub route: Route,
    /// How many jobs there were.
    pub jobs: u64,
    /// How many of them a device has done.
    pub jobs_of_devices: u64,
    /// How long the last one took that has ended, without what was done with its answer; of a search by the processor where there is no
    /// device, with that.
    pub took: Option<Duration>,
    /// Why the last device that failed did.
    pub failed: Option<String>,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.route)?;
        if let Some(took) = self.took {
            writeln!(f, "  it took {}", Secs(took.as_secs_f64()))?;
        }
        if self.jobs > 1 {
            writeln!(f, "  the last of {} such jobs; {} were done by a device", self.jobs, self.jobs_of_devices)?;
        }
        match &self.failed {
            Some(why) => writeln!(f, "  the processor answered in its place: {why}"),
            None => Ok(()),
        }
    }
}

/// The last decision about each kind of work, and what came of it.
#[derive(Default)]
pub(super) struct Log(Mutex<BTreeMap<Work, Explained>>);

impl Log {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<Work, Explained>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn chosen(&self, route: Route) {
        self.with(|all| match all.get_mut(&route.job.work) {
            Some(known) => {
                known.jobs += 1;
                known.route = route;
            }
            None => {
                let work = route.job.work;
                all.insert(work, Explained { route, jobs: 1, jobs_of_devices: 0, took: None, failed: None });
            }
        });
    }

    pub fn ended(&self, work: Work, engine: usize, took: Duration) {
        self.with(|all| {
            if let Some(known) = all.get_mut(&work) {
                known.took = Some(took);
                known.jobs_of_devices += u64::from(engine > 0);
            }
        });
    }

    pub fn failed(&self, work: Work, why: String) {
        self.with(|all| {
            if let Some(known) = all.get_mut(&work) {
                known.failed = Some(why);
            }
        });
    }

    pub fn of(&self, work: Work) -> Option<Explained> {
        self.with(|all| all.get(&work).cloned())
    }

    pub fn all(&self) -> Vec<Explained> {
        self.with(|all| all.values().cloned().collect())
    }
}
