//! The state of a mount that stands still while it is committed, and what the process of the mount told of it.

use std::io::BufRead;
use std::sync::Arc;

use adit_core::overlay::{FileVersion, Fresh};
use adit_core::path::{Last, Tree};
use adit_core::store::Store;
use adit_core::types::{Ino, Kind, Timestamp};
use adit_manifest::commit::Touched;
use adit_mount::control::MountInfo;
use serde_json::Value;

use crate::commands::mount::volume::commit as process;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::mounted::Private;
use crate::open::{Purpose, remark};

/// A state of a mount, shown for as long as this lives.
pub struct Frozen {
    private: Private,
    info: MountInfo,
    /// Where it may differ from the manifest.
    pub touched: Touched,
}

impl Frozen {
    /// The state of now.
    ///
    /// # Errors
    /// What the process of the mount says.
    pub fn of(mount: &MountInfo) -> Result<Frozen> {
        let began = Timestamp::now();
        let private = Private::by(|dir, lock| process::begin(mount, dir, lock))?;
        let info = private.info()?;
        let count = process::touched(&info)?;
        let touched = touched(private.told()?, count, began)?;
        Ok(Frozen { private, info, touched })
    }

    /// It as a store, which is to be dropped first. What is wrong below is no failing disk there.
    ///
    /// # Errors
    /// As of [`Private::watched`].
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        Ok(self.private.watched(Purpose::Read)?)
    }

    /// The changes that the process told, one by one.
    ///
    /// # Errors
    /// The host's; each may be one.
    pub fn changes(&self) -> Result<impl Iterator<Item = Result<Value>>> {
        self.private.told().map(changes)
    }

    /// Tells the process which files are being brought to the store.
    ///
    /// # Errors
    /// What it says.
    pub fn uploading<'p>(&self, tree: &Tree<'_>, files: impl IntoIterator<Item = &'p Vec<u8>>) -> Result<()> {
        process::uploading(&self.info, &versions(tree, files))
    }

    /// Tells it that these files could not be. It is only for who asks how they fare.
    pub fn give_up(&self, tree: &Tree<'_>, files: &[Vec<u8>]) {
        let told = process::failed(&self.info, &versions(tree, files)).and_then(|()| process::end(&self.info, false));
        if let Err(failure) = told {
            tracing::info!("{}", failure.text());
        }
    }

    /// Tells it that all of them are there, with the manifest: likewise. If it cannot note that, a line says so: the commit is done all the same.
    pub fn is_committed(&self) {
        if let Err(failure) = process::end(&self.info, true) {
            remark(&format!(
                "{}\n  all is committed, but it is not noted: `adit status` may tell it as modified",
                failure.text()
            ));
        }
    }
}

/// The versions of the files that are in a manifest of `tree`, as far as they are files there.
fn versions<'p>(tree: &Tree<'_>, files: impl IntoIterator<Item = &'p Vec<u8>>) -> Vec<FileVersion> {
    let found = files.into_iter().filter_map(|path| tree.resolve(path, Last::Keep).ok());
    found.filter(|node| node.kind() == Kind::File).map(|node| FileVersion::of(node.attr())).collect()
}

/// The changes that the process told, one on each line.
fn changes(told: impl BufRead) -> impl Iterator<Item = Result<Value>> {
    told.lines().map(|line| {
        let line = line.map_err(|e| Failure::io("what the process of the mount told", &e))?;
        serde_json::from_str(&line).map_err(|_| broken())
    })
}

/// What it told is not what it should.
fn broken() -> Failure {
    Failure::new(Code::Failure, "the process of the mount answers in a way that is not known")
        .hint("it may be of another version of adit: unmount it, and mount it again")
}

/// What the process told of where its tree may differ: a change on each of `count` lines.
fn touched(told: impl BufRead, count: u64, began: Timestamp) -> Result<Touched> {
    let mut touched = Touched { began, ..Touched::default() };
    let mut read = 0;
    for change in changes(told) {
        let change = change?;
        read += 1;
        // What lies in it is told by itself, and of itself a manifest has nothing.
        if change["kind"] == "directory" && change["change"] == "attributes" {
            continue;
        }
        for field in ["path", "from"] {
            let Some(path) = name(&change, field) else { continue };
            touched.paths.push(path.strip_prefix(b"/").unwrap_or(&path).to_vec());
        }
        let fresh = &change["fresh"];
        if fresh.is_null() {
            continue;
        }
        let (ino, len) = fresh["ino"].as_u64().zip(fresh["len"].as_u64()).ok_or_else(broken)?;
        let mut ranges = Vec::new();
        for range in fresh["ranges"].as_array().ok_or_else(broken)? {
            ranges.push(range[0].as_u64().zip(range[1].as_u64()).map(|(start, end)| start..end).ok_or_else(broken)?);
        }
        touched.copies.push(Fresh { ino: Ino(ino), len, ranges });
    }
    if read == count { Ok(touched) } else { Err(broken()) }
}

/// A name of an object of JSON, as [`add_name`](crate::output::add_name) put it there.
pub fn name(object: &Value, field: &str) -> Option<Vec<u8>> {
    let Some(raw) = object[format!("{field}_raw")].as_array() else {
        return object[field].as_str().map(|text| text.as_bytes().to_vec());
    };
    raw.iter().map(|byte| byte.as_u64()?.try_into().ok()).collect()
}
