//! Questions in bulk over one segment, answered by the processor or by a device, whichever is faster: [`Session`].
//!
//! The answers are the same whoever gives them. A device is opened, and the segment brought to it, when the [`Router`] first chooses it;
//! when it fails, the processor answers, and a lost device is not asked again. A batch is a [`Pending`]: what a device does begins at once,
//! what the processor does when the answer is polled or waited for, on that thread and those it shares the work with.

mod measure;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use adit_core::error::Result as FsResult;

use crate::gpu::{Adapter, Device, DeviceOptions, GpuError, Pending, Resident, adapters};
use crate::resolve::{Miss, Question, Resolver};
use crate::router::{Choice, Engine, Job, Route, Router, RouterOptions, Work};
use crate::segment::{NodeId, Segment};

/// How a session works.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Who answers, and when that changes.
    pub router: RouterOptions,
    /// How devices are used.
    pub device: DeviceOptions,
    /// Only devices whose name contains this, in any case. All by default.
    pub only: Option<String>,
    /// The file in which measurements are kept. None: they are forgotten.
    pub state: Option<PathBuf>,
}

/// What is known of a device, from its driver's offer to a segment that lies there.
enum Place {
    Offered(Adapter),
    Open(Device),
    There(Resident),
    Gone,
}

/// A segment, and who may answer questions over it. Any number of threads may ask at once.
pub struct Session {
    segment: Arc<Segment>,
    router: Router,
    options: SessionOptions,
    /// Of engine 1 and those behind.
    places: Vec<Mutex<Place>>,
    /// The last decision of each kind of work.
    routes: Mutex<HashMap<Work, Route>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("segment", &self.segment).field("router", &self.router).finish_non_exhaustive()
    }
}

impl Session {
    /// Over a segment. Asks drivers which devices there are, unless only the processor is to answer; opens none of them.
    pub fn new(segment: Arc<Segment>, options: SessionOptions) -> Session {
        let wanted = options.only.as_ref().map(|only| only.to_lowercase());
        let fits = |adapter: &Adapter| {
            wanted.as_ref().is_none_or(|wanted| adapter.facts().name.to_lowercase().contains(wanted))
        };
        let found = if options.router.choice == Choice::Cpu { Vec::new() } else { adapters() };
        let found: Vec<Adapter> = found.into_iter().filter(fits).collect();
        let mut engines = vec![processor()];
        engines.extend(found.iter().map(|adapter| Engine {
            name: adapter.facts().name.clone(),
            id: adapter.facts().id.clone(),
            software: adapter.facts().software,
        }));
        let router = Router::new(engines, options.router);
        if let Some(state) = &options.state {
            router.load(state);
        }
        let places = found.into_iter().map(|adapter| Mutex::new(Place::Offered(adapter))).collect();
        Session { segment, router, options, places, routes: Mutex::default() }
    }

    /// What is asked.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Who answers what, and what was measured.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The devices that are open: those that were asked already, and did not fail.
    pub fn devices(&self) -> Vec<Device> {
        let opened = |place: &Mutex<Place>| match &*place.lock().unwrap_or_else(PoisonError::into_inner) {
            Place::Open(device) => Some(device.clone()),
            Place::There(resident) => Some(resident.device().clone()),
            Place::Offered(_) | Place::Gone => None,
        };
        self.places.iter().filter_map(opened).collect()
    }

    /// The last decision about such work, with what was predicted: its text is for people.
    pub fn explain(&self, work: Work) -> Option<Route> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).get(&work).cloned()
    }

    /// Keeps what was measured, if there is a file for it.
    ///
    /// # Errors
    /// What the host says.
    pub fn save(&self) -> std::io::Result<()> {
        self.options.state.as_ref().map_or(Ok(()), |state| self.router.save(state))
    }

    /// As [`Resolver::find_batch`].
    pub fn find<'q>(&'q self, questions: &'q [Question<'q>]) -> Pending<'q, Vec<Option<NodeId>>> {
        let job = Job { work: Work::Resolve, amount: questions.len() as u64 };
        let by_processor = move || Resolver::new(&self.segment)?.find_batch(questions);
        self.ask(job, by_processor, |resident| resident.find(questions))
    }

    /// As [`Resolver::resolve`] of each: a miss is told precisely.
    pub fn resolve<'q>(&'q self, questions: &'q [Question<'q>]) -> Pending<'q, Vec<Result<NodeId, Miss>>> {
        let job = Job { work: Work::Resolve, amount: questions.len() as u64 };
        let by_processor = move || {
            let resolver = Resolver::new(&self.segment)?;
            questions.iter().map(|question| resolver.resolve(question.start, question.path)).collect()
        };
        self.ask(job, by_processor, |resident| resident.resolve(questions))
    }

    /// Has an engine do a job, and the processor if that one fails.
    fn ask<'q, T: Send + 'q>(
        &'q self,
        job: Job,
        by_processor: impl FnOnce() -> FsResult<T> + Send + 'q,
        by_device: impl FnOnce(&Resident) -> Pending<'q, T>,
    ) -> Pending<'q, T> {
        let engine = match self.choose(job) {
            Ok(engine) => engine,
            Err(e) => return Pending::ready(Err(e)),
        };
        let by_processor = move || -> Result<T, GpuError> {
            let begun = Instant::now();
            let answer = by_processor()?;
            self.router.learn(0, job, begun.elapsed());
            Ok(answer)
        };
        if engine == 0 {
            return Pending::from_future(async move { by_processor() });
        }
        let resident = match self.resident(engine) {
            Ok(resident) => resident,
            Err(GpuError::Segment(e)) => return Pending::ready(Err(e.into())),
            Err(_) => return Pending::from_future(async move { by_processor() }),
        };
        let begun = Instant::now();
        let flying = by_device(&resident);
        Pending::from_future(async move {
            match flying.await {
                Ok(answer) => {
                    self.router.learn(engine, job, begun.elapsed());
                    Ok(answer)
                }
                Err(e) if e.is_of_the_device() => {
                    self.failed(engine, &e);
                    by_processor()
                }
                Err(e) => Err(e),
            }
        })
    }

    /// Who does a job. An error where a device was asked for, and there is none.
    fn choose(&self, job: Job) -> Result<usize, GpuError> {
        if self.options.router.choice == Choice::Gpu && self.places.is_empty() {
            let wanted = self.options.only.clone().unwrap_or_else(|| "any".into());
            return Err(GpuError::NoAdapter { wanted });
        }
        let route = self.router.route(job, |engine| self.missing(engine));
        let engine = route.engine;
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).insert(job.work, route);
        Ok(engine)
    }

    fn place(&self, engine: usize) -> std::sync::MutexGuard<'_, Place> {
        self.places[engine - 1].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes would have to be brought to an engine first. One that is just being given the segment has none of it yet: nobody
    /// waits for that to learn it.
    fn missing(&self, engine: usize) -> u64 {
        let Some(place) = engine.checked_sub(1).map(|at| self.places[at].try_lock()) else { return 0 };
        match place.as_deref() {
            Ok(Place::There(_)) => 0,
            _ => Resident::len_of(&self.segment),
        }
    }

    /// The segment on a device: brought there, if it is not.
    fn resident(&self, engine: usize) -> Result<Resident, GpuError> {
        let mut place = self.place(engine);
        let brought = self.bring(engine, &mut place);
        if let Err(e) = &brought {
            *place = Place::Gone;
            self.router.give_up(engine, e.to_string());
        }
        brought
    }

    fn bring(&self, engine: usize, place: &mut Place) -> Result<Resident, GpuError> {
        let device = match place {
            Place::There(resident) => return Ok(resident.clone()),
            Place::Open(device) => device.clone(),
            Place::Offered(adapter) => adapter.open(&self.options.device)?,
            Place::Gone => {
                let (adapter, why) = (self.router.engines()[engine].name.clone(), self.router.given_up(engine));
                return Err(GpuError::Lost { adapter, why: why.unwrap_or_default() });
            }
        };
        *place = Place::Open(device.clone());
        let resident = Resident::new(&device, self.segment.clone())?;
        let job = Job { work: Work::Upload, amount: resident.len_bytes() };
        self.router.learn(engine, job, resident.upload_time());
        *place = Place::There(resident.clone());
        Ok(resident)
    }

    /// A job of a device came to nothing.
    fn failed(&self, engine: usize, e: &GpuError) {
        if e.is_lost() {
            *self.place(engine) = Place::Gone;
            self.router.give_up(engine, e.to_string());
        }
    }
}

/// The processor, as one engine: with other many threads it is another one.
fn processor() -> Engine {
    let threads = crate::cores::cores();
    Engine { name: format!("the processor ({threads} threads)"), id: format!("cpu:{threads}"), software: false }
}
