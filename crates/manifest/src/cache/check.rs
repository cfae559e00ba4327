//! A look at every object in a folder: `manifest verify --cache-dir`.

use std::fmt;
use std::io;

use adit_core::error::{FsError, Result};
use adit_core::media::HostDir;
use adit_core::types::Access;

use super::generation::{Generation, Opened, remove_file};
use super::id::{Name, ObjectId, SHARDS};
use super::scan::{objects_of, shards_of};
use super::whole::hash_of;
use crate::format::ContentHash;

/// Findings that a report lists; all are counted.
const FINDINGS_MAX: usize = 1000;

/// What to do with what is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckOptions {
    /// Removes each object that something is wrong with, so that it is fetched again when it is needed.
    pub remove: bool,
}

/// How far the check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckProgress {
    /// Objects that were looked at.
    pub objects: u64,
    /// Their bytes that were read.
    pub bytes: u64,
    /// Parts of the folder that are done, of 256 that are about as large as each other.
    pub parts: u32,
}

/// What is wrong with an object in the folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// Its map or its data is not what this program writes.
    Foreign,
    /// These blocks are not what was written.
    Blocks(Vec<u64>),
    /// It has this hash and not its own; `None` if it has another length, too.
    Content(Option<ContentHash>),
    /// The host could not read it.
    Unreadable(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Foreign => f.write_str("its files do not belong together"),
            Problem::Blocks(blocks) => match blocks.first() {
                Some(only) if blocks.len() == 1 => write!(f, "block {only} is damaged"),
                Some(first) => write!(f, "{} damaged blocks, the first is {first}", blocks.len()),
                None => f.write_str("damaged blocks"),
            },
            Problem::Content(Some(found)) => write!(f, "its content has the xxh128 {found}"),
            Problem::Content(None) => f.write_str("its file has another length"),
            Problem::Unreadable(why) => write!(f, "it cannot be read: {why}"),
        }
    }
}

/// Something wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// With this object.
    pub object: ObjectId,
    /// What it is.
    pub problem: Problem,
    /// Whether it was removed.
    pub removed: bool,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Objects in the folder.
    pub objects: u64,
    /// Those of which all is there, and right.
    pub complete: u64,
    /// Bytes that were compared.
    pub bytes: u64,
    /// How many objects something is wrong with.
    pub damaged: u64,
    /// The first thousand of these.
    pub findings: Vec<Finding>,
    /// Entries among the objects that are none, which nobody reads.
    pub foreign: u64,
}

/// Compares every object in the folder with its checksums, and with its hash if all of it is there. Other processes may use the
/// folder meanwhile. Without [`CheckOptions::remove`] nothing is changed.
///
/// An error is one of listing the folder; what is wrong with an object is in the report.
pub fn check_folder(
    host: &dyn HostDir,
    options: CheckOptions,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let on_folder = |e| FsError::from(e).on("list", "the cache folder");
    for shard in shards_of(host).map_err(on_folder)? {
        let (objects, foreign) = objects_of(host, shard).map_err(on_folder)?;
        report.foreign += foreign.len() as u64;
        for files in objects {
            check_object(host, &files, options, &mut report);
            progress(CheckProgress { objects: report.objects, bytes: report.bytes, parts: shard });
        }
    }
    progress(CheckProgress { objects: report.objects, bytes: report.bytes, parts: SHARDS });
    Ok(report)
}

fn check_object(host: &dyn HostDir, files: &[Name], options: CheckOptions, report: &mut CheckReport) {
    for name in files {
        let id = name.id();
        let checked = match name {
            Name::Map(_) => check_blocks(host, id, report),
            Name::Whole(_) => check_whole(host, id, report),
            // With its map, or of an object that is being made or removed.
            Name::Data(..) => continue,
        };
        report.objects += 1;
        let problem = match checked {
            Ok(None) => continue,
            Ok(Some(problem)) => problem,
            // Removed meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => Problem::Unreadable(e.to_string()),
        };
        let mut removed = false;
        if options.remove {
            let of_map = matches!(name, Name::Map(_));
            let its = |other: &&Name| *other == name || of_map && matches!(other, Name::Data(..));
            removed = files.iter().filter(its).all(|name| remove_file(host, name).is_ok());
        }
        report.damaged += 1;
        if report.findings.len() < FINDINGS_MAX {
            report.findings.push(Finding { object: id, problem, removed });
        }
    }
}

fn check_blocks(host: &dyn HostDir, id: ObjectId, report: &mut CheckReport) -> io::Result<Option<Problem>> {
    let generation = match Generation::look(host, id, Access::Read)? {
        Opened::There(generation) => generation,
        Opened::Absent => return Err(io::ErrorKind::NotFound.into()),
        // Or removed since it was opened: then its name is gone.
        Opened::Foreign => return host.stat(&Name::Map(id).path()).map(|_| Some(Problem::Foreign)),
    };
    let audit = generation.audit()?;
    report.bytes += audit.bytes;
    if !audit.bad.is_empty() {
        return Ok(Some(Problem::Blocks(audit.bad)));
    }
    match audit.hash.map(|hash| ContentHash(hash.to_be_bytes())) {
        Some(found) if found != id.hash => Ok(Some(Problem::Content(Some(found)))),
        found => {
            report.complete += u64::from(found.is_some());
            Ok(None)
        }
    }
}

fn check_whole(host: &dyn HostDir, id: ObjectId, report: &mut CheckReport) -> io::Result<Option<Problem>> {
    let file = host.open(&Name::Whole(id).path(), Access::Read)?;
    let found = hash_of(&*file, id.len, &mut |_, bytes| report.bytes += bytes.len() as u64)?;
    if found == Some(id.hash) {
        report.complete += 1;
        return Ok(None);
    }
    Ok(Some(Problem::Content(found)))
}
