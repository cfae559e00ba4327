//! `manifest verify`: the objects of a store, or of the cache, compared with their hashes.
//!
//! All of a large store may be missing: each problem is kept in a few bytes, and described when it is printed.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_manifest::cache::{CheckOptions, Finding, ObjectId, check_folder};
use adit_manifest::cas::{DataKeys, ObjectSource, Verified, verify as compare};
use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{Body, File, Manifest};
use adit_media::HostDirectory;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::read_manifest;
use crate::args::low::GlobalArgs;
use crate::args::manifest::ManifestVerifyArgs;
use crate::args::units::show_size;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::interrupt;
use crate::open::manifest;
use crate::output::{Output, add_name, counted, printable};
use crate::progress::Progress;

/// Objects that are fetched at a time.
const THREADS: usize = 8;

/// Stands for the object's name in a [detail](Problems::Store).
const NAME_PLACE: &str = "\0";

/// What is wrong.
enum Problems {
    /// With objects that a manifest needs, by what they are, and what: texts that many share, without the object's name.
    Store { manifest: Manifest, details: HashMap<ObjectId, Arc<str>> },
    /// With what is in the cache.
    Cache(Vec<Finding>),
}

/// What was compared.
#[derive(Serialize)]
struct Report {
    objects: u64,
    bytes: u64,
    problems: Problems,
}

/// `adit manifest verify`
pub(super) fn verify(args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<()> {
    let report = match (&args.manifest, &args.content.cas) {
        (Some(name), Some(cas)) => {
            let manifest = read_manifest(name, &args.content.store)?.manifest;
            let knows_store = manifest::lies_in(Path::new(name), cas);
            of_store(manifest, knows_store, args, global)?
        }
        (None, None) => of_cache(args, global)?,
        (Some(_), None) => {
            return Err(Failure::usage("where the content of the manifest's files lies is not known")
                .hint("name the store with --cas; without a manifest the cache directory is verified"));
        }
        (None, Some(_)) => {
            return Err(Failure::usage("a store is verified for a manifest: name it")
                .hint("without --cas the cache directory is verified"));
        }
    };
    let mut out = Output::new();
    let count = report.problems.each().count();
    if args.json {
        out.json(&report)?;
    } else {
        for problem in report.problems.each() {
            let text = |key: &str| problem[key].as_str().unwrap_or_default();
            let place = if text("path").is_empty() { text("object") } else { text("path") };
            out.line(format_args!("{}: {}: {}", text("kind"), printable(place.as_bytes()), text("detail")))?;
        }
        let found = match count {
            0 => "no problems".to_owned(),
            count => counted(count as u64, "problem"),
        };
        out.line(format_args!("{} ({}): {found}", counted(report.objects, "object"), show_size(report.bytes)))?;
    }
    out.finish()?;
    if count == 0 { Ok(()) } else { Err(Failure::said(Code::ProblemsFound)) }
}

impl Problems {
    /// Each of them, described: of a store by the files that need it, in their order.
    fn each(&self) -> Box<dyn Iterator<Item = Value> + '_> {
        let (manifest, details) = match self {
            Problems::Cache(findings) => return Box::new(findings.iter().map(of_finding)),
            Problems::Store { manifest, details } => (manifest, details),
        };
        // Most often there are none.
        let entries = manifest.entries().take(if details.is_empty() { 0 } else { usize::MAX });
        Box::new(entries.flat_map(move |(path, body)| {
            objects_of(body).filter_map(move |id| {
                let (name, detail) = (id.to_string(), details.get(&id)?);
                let mut problem =
                    json!({"kind": "object", "object": name, "detail": detail.replace(NAME_PLACE, &name)});
                add_name(&mut problem, "path", &[b"/", &path.to_listing()[..]].concat());
                Some(problem)
            })
        }))
    }
}

impl Serialize for Problems {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(self.each())
    }
}

/// The objects that an entry needs.
fn objects_of<'a>(body: &'a Body<'_>) -> impl Iterator<Item = ObjectId> + 'a {
    let objects = |file: &'a File<'_>| {
        let hashes = file.content.hashes();
        let one = if hashes.len() == 1 { file.size_bytes } else { CHUNK_LEN_BYTES };
        (0..).zip(hashes).map(move |(at, hash)| ObjectId { hash: *hash, len: one.min(file.size_bytes - at * one) })
    };
    let file = match body {
        Body::File(file) => Some(file),
        _ => None,
    };
    file.into_iter().flat_map(objects)
}

fn of_store(manifest: Manifest, knows_store: bool, args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<Report> {
    let cas = args.content.cas.as_deref().unwrap_or_default();
    manifest::expect_content(cas, &args.content.store, &manifest, knows_store)?;
    let source = ObjectSource::new(manifest::objects(cas, &args.content.store)?, DataKeys::default());
    // Each once.
    let mut ids: Vec<ObjectId> = manifest.entries().flat_map(|(_, body)| objects_of(body)).collect();
    ids.sort_unstable();
    ids.dedup();
    interrupt::watch_telling("not everything was compared");
    let total = ids.iter().fold(0u64, |bytes, id| bytes.saturating_add(id.len));
    let mut progress = Progress::new("verify", global.quiet).of_bytes(total);
    let (mut count, mut bytes, mut details) = (0, 0, HashMap::new());
    let mut texts: HashSet<Arc<str>> = HashSet::new();
    let outcome = compare(&source, &ids, THREADS, &mut |verified| {
        let (Verified::Sound(id) | Verified::Damaged(id, _)) = verified;
        count += 1;
        bytes += id.len;
        if let Verified::Damaged(id, e) = verified {
            let text: Arc<str> = e.to_string().replace(&id.to_string(), NAME_PLACE).into();
            let text = texts.get(&text).cloned().unwrap_or(text);
            texts.insert(text.clone());
            details.insert(*id, text);
        }
        progress.reached(count, bytes);
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish()?;
    interrupt::obey();
    outcome.map_err(|e| Advice::about_manifests().failure(cas.display(), &e))?;
    Ok(Report { objects: count, bytes, problems: Problems::Store { manifest, details } })
}

fn of_cache(args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<Report> {
    let dir = manifest::objects_place(&manifest::settled(&args.content.with(&args.cache), Path::new(""))?)?;
    let host = HostDirectory::open(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let mut progress = Progress::new("verify", global.quiet);
    let options = CheckOptions { remove: args.repair };
    let report = check_folder(&host, options, &mut |now| progress.reached(now.objects, now.bytes));
    progress.finish()?;
    let report = report.map_err(|e| Failure::fs(dir.display(), &e))?;
    Ok(Report { objects: report.objects, bytes: report.bytes, problems: Problems::Cache(report.findings) })
}

fn of_finding(finding: &Finding) -> Value {
    let removed = if finding.removed { "; it was removed, and is fetched again when it is read" } else { "" };
    let detail = format!("{}{removed}", finding.problem);
    json!({"kind": "cached", "object": finding.object.to_string(), "detail": detail, "removed": finding.removed})
}
