//! Questions in bulk over one segment, answered by the processor or by a device, whichever is faster: [`Session`].
//!
//! The answers are the same whoever gives them. A device is opened, and the segment brought to it, when the [`Router`] first chooses it;
//! when it fails, the processor answers, and a lost device is not asked again. A batch of paths is a [`Pending`]: what a device does begins
//! at once, what the processor does when the answer is polled or waited for, on that thread and those it shares the work with.

mod explain;
mod measure;
mod options;
mod place;
mod search;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use adit_core::error::Result as FsResult;

use crate::gpu::{Adapter, Ending, GpuError, Pending, Resident, adapters};
use crate::resolve::{self, Miss, Question};
use crate::router::{Choice, Engine, Job, Reason, Router, Work, known_devices};
use crate::segment::{NodeId, Segment};
use place::Place;

pub use explain::Explained;
pub use measure::MEASURABLE_NODES_MIN;
pub use options::SessionOptions;

/// A segment, and who may answer questions over it. Any number of threads may ask at once.
pub struct Session {
    segment: Arc<Segment>,
    router: Router,
    options: SessionOptions,
    /// Of engine 1 and those behind.
    places: Vec<Mutex<Place>>,
    /// What was decided, and what came of it.
    log: explain::Log,
    /// What devices have done once: before that a kernel has to be translated, which says nothing of later jobs.
    warm: Mutex<HashSet<(usize, Work)>>,
    /// Those that were opened, also those that were lost since.
    opened: Mutex<Vec<Ending>>,
    /// When drivers were asked for all devices that there are, in seconds since 1970.
    asked_secs: Option<u64>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("segment", &self.segment).field("router", &self.router).finish_non_exhaustive()
    }
}

impl Session {
    /// Over a segment. Asks drivers which devices there are, if [`SessionOptions::ask_drivers`] says so; opens none of them.
    pub fn new(segment: Arc<Segment>, options: SessionOptions) -> Session {
        let (found, asked_secs) = devices(&options);
        let engines =
            std::iter::once(Engine::processor()).chain(found.iter().map(|(engine, _)| engine.clone())).collect();
        let router = Router::new(engines, options.router);
        if let Some(state) = &options.state {
            router.load(state);
        }
        let places = found.into_iter().map(|(_, place)| Mutex::new(place)).collect();
        let (log, warm, opened) = (explain::Log::default(), Mutex::default(), Mutex::default());
        Session { segment, router, options, places, log, warm, opened, asked_secs }
    }

    /// What is asked.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Who answers what, and what was measured.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The last decision about such work, with what was predicted and what came of it: its text is for people.
    pub fn explain(&self, work: Work) -> Option<Explained> {
        self.log.of(work)
    }

    /// As [`Session::explain`], of all work that there was.
    pub fn explain_all(&self) -> Vec<Explained> {
        self.log.all()
    }

    /// Keeps what was measured, if there is a file for it.
    ///
    /// # Errors
    /// What the host says.
    pub fn save(&self) -> std::io::Result<()> {
        self.options.state.as_ref().map_or(Ok(()), |state| self.router.save(state, self.asked_secs))
    }

    /// As [`resolve::find_batch`].
    pub fn find<'q>(&'q self, questions: &'q [Question<'q>]) -> Pending<'q, Vec<Option<NodeId>>> {
        let job = Job { work: Work::Resolve, amount: questions.len() as u64 };
        let by_processor = move || resolve::find_batch(&self.segment, questions);
        self.ask(job, by_processor, |resident| resident.find(questions))
    }

    /// As [`resolve::resolve_batch`]: a miss is told precisely.
    pub fn resolve<'q>(&'q self, questions: &'q [Question<'q>]) -> Pending<'q, Vec<Result<NodeId, Miss>>> {
        let job = Job { work: Work::Resolve, amount: questions.len() as u64 };
        let by_processor = move || resolve::resolve_batch(&self.segment, questions);
        self.ask(job, by_processor, |resident| resident.resolve(questions))
    }

    /// Has an engine do a job, and the processor if that one fails.
    fn ask<'q, T: Send + 'q>(
        &'q self,
        job: Job,
        by_processor: impl FnOnce() -> FsResult<T> + Send + 'q,
        by_device: impl FnOnce(&Resident) -> Pending<'q, T>,
    ) -> Pending<'q, T> {
        let engine = match self.choose(job, None, None) {
            Ok(engine) => engine,
            Err(e) => return Pending::ready(Err(e)),
        };
        let by_processor = move || -> Result<T, GpuError> {
            let begun = Instant::now();
            let answer = by_processor()?;
            self.learn(0, job, begun.elapsed());
            Ok(answer)
        };
        if engine == 0 {
            return Pending::from_future(async move { by_processor() });
        }
        let resident = match self.residents(engine, None) {
            Ok(there) => there.own,
            Err(e) if e.is_of_the_device() => {
                self.failed(engine, job.work, &e);
                return Pending::from_future(async move { by_processor() });
            }
            Err(e) => return Pending::ready(Err(e)),
        };
        let begun = Instant::now();
        let flying = by_device(&resident);
        Pending::from_future(async move {
            match flying.await {
                Ok(answer) => {
                    self.learn(engine, job, begun.elapsed());
                    Ok(answer)
                }
                Err(e) if e.is_of_the_device() => {
                    self.failed(engine, job.work, &e);
                    by_processor()
                }
                Err(e) => Err(e),
            }
        })
    }

    /// Who does a job; if it is `unfit` for devices, the processor. An error where a device was asked for, and there is none.
    fn choose(&self, job: Job, unfit: Option<Reason>, other: Option<&Arc<Segment>>) -> Result<usize, GpuError> {
        self.check()?;
        let ahead = |engine| self.ahead(engine, job.work, other);
        let route = match unfit {
            Some(reason) => self.router.route_to_processor(job, reason, ahead),
            None => self.router.route(job, ahead),
        };
        let engine = route.engine;
        self.log.chosen(route);
        Ok(engine)
    }

    /// Whether there is a device, if one was asked for. One that was lost since is no error: the processor answers.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`], and [`GpuError::OnlySoftware`] where none was asked for that is a program.
    pub fn check(&self) -> Result<(), GpuError> {
        let devices = &self.router.engines()[1..];
        match devices.first() {
            _ if self.options.router.choice != Choice::Gpu => Ok(()),
            None => Err(GpuError::NoAdapter { wanted: self.options.only.clone().unwrap_or_else(|| "any".into()) }),
            Some(first) if !self.options.router.software && devices.iter().all(|device| device.software) => {
                Err(GpuError::OnlySoftware { adapter: first.name.clone() })
            }
            Some(_) => Ok(()),
        }
    }

    /// A job has ended. What a device takes for its first job of a kind is not what it takes for others.
    fn learn(&self, engine: usize, job: Job, took: Duration) {
        self.log.ended(job.work, engine, took);
        if engine == 0 || !self.warm.lock().unwrap_or_else(PoisonError::into_inner).insert((engine, job.work)) {
            self.router.learn(engine, job, took);
        }
    }
}

/// The devices that a session may ask, and when drivers were asked for all that there are.
fn devices(options: &SessionOptions) -> (Vec<(Engine, Place)>, Option<u64>) {
    let wanted = options.only.as_ref().map(|only| only.to_lowercase());
    let fits = |engine: &Engine| wanted.as_ref().is_none_or(|wanted| engine.name.to_lowercase().contains(wanted));
    if options.router.choice == Choice::Cpu {
        return (Vec::new(), None);
    }
    if !options.ask_drivers {
        let known = options.state.as_deref().and_then(known_devices);
        let devices = known.into_iter().flat_map(|known| known.devices).filter(fits);
        return (devices.map(|engine| (engine, Place::Known)).collect(), None);
    }
    let found = adapters().into_iter().map(|adapter| (engine_of(&adapter), Place::Offered(adapter)));
    let found = found.filter(|(engine, _)| fits(engine)).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (found, wanted.is_none().then_some(now))
}

fn engine_of(adapter: &Adapter) -> Engine {
    let facts = adapter.facts();
    Engine { name: facts.name.clone(), id: facts.id.clone(), software: facts.software }
}
