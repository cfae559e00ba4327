//! The processor and devices, whoever is faster: [`Answerer`].
//!
//! Left to choose, a command asks no driver: it knows the devices that the file of measurements names, and loads a driver only for a job
//! that is predicted to be faster with all that comes before it.

use std::ops::ControlFlow;
use std::path::PathBuf;

use adit_index::NodeId;
use adit_index::gpu::GpuError;
use adit_index::query::{Change, Diff, DiffSummary, Dupes, DupesSummary, Group, Hit, Query};
use adit_index::resolve::{Miss, Question};
use adit_index::router::Choice;
use adit_index::session::{MEASURABLE_NODES_MIN, Session, SessionOptions};

use super::tell::Found;
use super::{background, wanted};
use crate::args::index_ask::{Device, DeviceArgs};
use crate::commands::mount::overlay::place::cache_dir;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::index::IndexFile;

/// The file of measurements in the cache directory.
const STATE_NAME: &str = "devices.json";

/// Where measurements are kept; nowhere if there is no place for a cache.
pub fn state() -> Option<PathBuf> {
    cache_dir(None).ok().map(|dir| dir.join(STATE_NAME))
}

/// Asks whoever is to answer.
pub struct Answerer {
    /// Until it is dropped.
    session: Option<Session>,
    explain: bool,
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // Also where a command fails: no driver may be at work when the program ends.
        if let Some(session) = self.session.take() {
            session.close();
        }
    }
}

fn options(device: &Device) -> SessionOptions {
    let mut options = SessionOptions::default();
    options.state = state();
    match device {
        Device::Cpu => options.choice(Choice::Cpu),
        Device::Auto => options.ask_drivers(false),
        Device::Gpu(None) => options.choice(Choice::Gpu),
        // Who names a device means it, whatever it is.
        Device::Gpu(Some(name)) => options.choice(Choice::Gpu).software(true).only(name),
    }
}

/// What an error is to the user.
fn failure(index: &IndexFile, error: GpuError) -> Failure {
    match error {
        GpuError::Segment(e) => index.failure(&e),
        GpuError::NoAdapter { wanted } => {
            let what = match &wanted[..] {
                "any" => "no driver offers a graphics processor".to_owned(),
                wanted => format!("no driver offers a device whose name has {wanted:?} in it"),
            };
            Failure::new(Code::NotSupported, what).hint("`adit doctor` lists devices; --device cpu needs none")
        }
        e @ GpuError::OnlySoftware { .. } => Failure::new(Code::NotSupported, e)
            .hint("--device cpu is faster; --device gpu:NAME takes such a program all the same, to try it"),
        e => Failure::new(Code::Failure, format!("{}: {e}", index.path.display())),
    }
}

impl Answerer {
    /// For questions to an index.
    ///
    /// # Errors
    /// `NotSupported` if a device was asked for, and there is none.
    pub fn new(index: &IndexFile, args: &DeviceArgs) -> Result<Answerer> {
        let session = Session::new(index.segment.clone(), options(&wanted(args)?));
        session.check().map_err(|e| failure(index, e))?;
        Ok(Answerer { session: Some(session), explain: args.explain })
    }

    fn session(&self) -> &Session {
        self.session.as_ref().expect("it is there until it is dropped")
    }

    /// Whether large batches are better than small ones.
    pub fn likes_large_batches(&self) -> bool {
        self.session().router().has_devices()
    }

    /// As [`adit_index::Resolver::resolve_batch`].
    pub fn resolve(
        &self,
        index: &IndexFile,
        questions: &[Question<'_>],
    ) -> Result<Vec<std::result::Result<NodeId, Miss>>> {
        self.session().resolve(questions).wait().map_err(|e| failure(index, e))
    }

    /// As [`Query::run`].
    pub fn search(
        &self,
        index: &IndexFile,
        query: &Query,
        sink: &mut dyn FnMut(Hit) -> ControlFlow<()>,
    ) -> Result<u64> {
        self.session().search(query, sink).map_err(|e| failure(index, e))
    }

    /// As [`Query::count`].
    pub fn count(&self, index: &IndexFile, query: &Query) -> Result<u64> {
        self.session().count(query).map_err(|e| failure(index, e))
    }

    /// As [`Dupes::run`].
    pub fn dupes(
        &self,
        index: &IndexFile,
        dupes: &Dupes,
        sink: &mut dyn FnMut(&Group) -> ControlFlow<()>,
    ) -> Result<DupesSummary> {
        self.session().dupes(dupes, sink).map_err(|e| failure(index, e))
    }

    /// As [`Diff::run`].
    pub fn diff(
        &self,
        before: &IndexFile,
        after: &IndexFile,
        diff: &Diff,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary> {
        self.session().diff(diff, &after.segment, sink).map_err(|e| failure(before, e))
    }

    /// Says who answered and why, if that was asked; keeps what was learned, and has measured what is not known. Call it when all was
    /// answered: nothing of it can fail a command.
    pub fn finish(self, index: &IndexFile) {
        let session = self.session();
        let router = session.router();
        if self.explain {
            session.explain_all().iter().for_each(|explained| eprint!("{explained}"));
            if router.engines().len() == 1 && router.options().choice == Choice::Auto {
                eprintln!("  {}", Found::known_words());
            }
        }
        if router.has_devices() {
            let _ = session.save();
        }
        if router.options().choice == Choice::Auto {
            background::measure_if_unknown(session, index);
        }
    }
}

/// Asks drivers for devices, measures those of which something is not known, or all if it is to be done `again`, and keeps that.
///
/// # Errors
/// Usage, if the index is too small for it; what is wrong with it; what the host says of the file.
pub fn measure(index: &IndexFile, args: &DeviceArgs, again: bool) -> Result<Found> {
    if index.segment.len() < MEASURABLE_NODES_MIN {
        let what = format!("{}: {} paths are too few to measure with", index.path.display(), index.segment.len());
        let hint = format!("what is so small is always fast: name an index of {MEASURABLE_NODES_MIN} paths or more");
        return Err(Failure::usage(what).hint(hint));
    }
    let device = wanted(args)?;
    // To measure the processor alone says nothing.
    let options = options(&device).ask_drivers(true);
    let options = if device == Device::Cpu { options.choice(Choice::Auto) } else { options };
    let state = options.state.clone();
    let session = Session::new(index.segment.clone(), options);
    session.check().map_err(|e| failure(index, e))?;
    if again {
        session.router().forget();
    }
    let save = || match &state {
        Some(state) => {
            background::make_folder(state).and_then(|()| session.save()).map_err(|e| Failure::io(state.display(), &e))
        }
        None => Ok(()),
    };
    // First which devices there are: nobody has to ask again if one of them does not let itself be measured.
    save()?;
    let measured = session.measure().map_err(|e| failure(index, e)).and_then(|()| save());
    let found = Found::of(&session);
    session.close();
    measured.map(|()| found)
}
