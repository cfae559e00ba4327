//! Files that failed while the rest went on: people hear of each, or of some of many, and programs of all.

use adit_core::FsError;
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::output::{Output, add_name};

/// What `--json` tells of files that failed.
#[derive(Default)]
pub(super) struct Failed {
    /// Whether somebody wants the list: of many it takes memory.
    is_kept: bool,
    list: Vec<Value>,
}

impl Failed {
    /// Keeps them if `json` was asked for.
    pub fn new(json: bool) -> Failed {
        Failed { is_kept: json, list: Vec::new() }
    }

    /// The entry at `path`, without a leading slash, failed; if that is not known, it is what the error names.
    pub fn add(&mut self, path: &[u8], error: &FsError) {
        if self.is_kept {
            let mut object = json!({"error": error.to_string()});
            match (path, error.subject()) {
                (b"", Some(subject)) => object["path"] = subject.into(),
                _ => add_name(&mut object, "path", &[b"/", path].concat()),
            }
            self.list.push(object);
        }
    }

    /// Whether something is to be told.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The list, for `failures`.
    pub fn into_json(self) -> Value {
        self.list.into()
    }
}

/// Ends a command that failed: what it did, with the list of failures, goes to who asked for JSON.
pub(super) fn ended(told: &Value, failure: Failure, json: bool) -> Failure {
    let print = || -> Result<()> {
        let mut out = Output::new();
        out.json(told)?;
        out.finish()
    };
    match json.then(print) {
        Some(Err(unprinted)) => unprinted,
        _ => failure,
    }
}
