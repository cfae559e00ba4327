//! The processor alone: what a build without the feature `gpu` has.

use std::ops::ControlFlow;

use adit_index::NodeId;
use adit_index::query::{Change, Diff, DiffSummary, Dupes, DupesSummary, Group, Hit, Query};
use adit_index::resolve::{Miss, Question, resolve_batch};
use serde_json::{Value, json};

use super::wanted;
use crate::args::index_ask::{Device, DeviceArgs};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::index::IndexFile;

/// What this build is told to say.
const NONE: &str = "this build of adit has no devices";

fn none() -> Failure {
    Failure::new(Code::NotSupported, NONE).hint("build it with the feature gpu, which is on by default")
}

/// Asks the processor.
pub struct Answerer;

impl Answerer {
    /// # Errors
    /// `NotSupported` if a device was asked for.
    pub fn new(_: &IndexFile, args: &DeviceArgs) -> Result<Answerer> {
        if let Device::Gpu(_) = wanted(args)? {
            return Err(none());
        }
        if args.explain {
            eprintln!("the processor answers: {NONE}");
        }
        Ok(Answerer)
    }

    /// Whether large batches are better than small ones.
    pub fn likes_large_batches(&self) -> bool {
        false
    }

    /// As [`resolve_batch`].
    pub fn resolve(
        &self,
        index: &IndexFile,
        questions: &[Question<'_>],
    ) -> Result<Vec<std::result::Result<NodeId, Miss>>> {
        resolve_batch(&index.segment, questions).map_err(|e| index.failure(&e))
    }

    /// As [`Query::run`].
    pub fn search(
        &self,
        index: &IndexFile,
        query: &Query,
        sink: &mut dyn FnMut(Hit) -> ControlFlow<()>,
    ) -> Result<u64> {
        query.run(&index.segment, sink).map_err(|e| index.failure(&e))
    }

    /// As [`Query::count`].
    pub fn count(&self, index: &IndexFile, query: &Query) -> Result<u64> {
        query.count(&index.segment).map_err(|e| index.failure(&e))
    }

    /// As [`Dupes::run`].
    pub fn dupes(
        &self,
        index: &IndexFile,
        dupes: &Dupes,
        sink: &mut dyn FnMut(&Group) -> ControlFlow<()>,
    ) -> Result<DupesSummary> {
        dupes.run(&index.segment, sink).map_err(|e| index.failure(&e))
    }

    /// As [`Diff::run`].
    pub fn diff(
        &self,
        before: &IndexFile,
        after: &IndexFile,
        diff: &Diff,
        sink: &mut dyn FnMut(Change) -> ControlFlow<()>,
    ) -> Result<DiffSummary> {
        diff.run(&before.segment, &after.segment, sink).map_err(|e| before.failure(&e))
    }

    /// Says who answered, if that was asked.
    pub fn finish(self, _: &IndexFile) {}
}

/// What `index measure` says.
pub fn measure(_: &IndexFile, _: &DeviceArgs, _: bool) -> Result<Found> {
    Err(none())
}

/// There is no driver.
pub fn is_driver_at_work() -> bool {
    false
}

/// No devices.
pub struct Found;

impl Found {
    /// What there is.
    pub fn ask() -> Found {
        Found
    }

    /// In a line.
    pub fn summary(&self) -> String {
        format!("{NONE}: the processor answers all questions")
    }

    /// More lines.
    pub fn lines(&self) -> Vec<String> {
        Vec::new()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({ "built_in": false, "devices": [] })
    }
}
