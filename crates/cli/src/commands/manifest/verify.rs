//! `manifest verify`: the objects of a store, or of the cache, compared with their hashes.
//!
//! All of a large store may be missing: each problem is kept in a few bytes, and described when it is printed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_core::FsError;
use adit_manifest::cache::{CheckOptions, Finding, ObjectId, check_folder};
use adit_manifest::cas::{Checked, DataKeys, ObjectSource, Verified, check, verify as compare};
use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{Body, ContentHash, File, Manifest};
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

/// Keys that are no hashes and are told by name; of others there is their number.
const UNKNOWN_TOLD_MAX: usize = 20;

/// Stands for the object's name in a [detail](Problems::Store).
const NAME_PLACE: &str = "\0";

/// What is wrong.
enum Problems {
    /// With objects that a manifest needs, by what they are, and what: texts that many share, without the object's name.
    Store { manifest: Manifest, details: HashMap<ObjectId, Arc<str>> },
    /// With what lies in a store.
    Listed(Vec<Damaged>),
    /// With what is in the cache.
    Cache(Vec<Finding>),
}

/// An object of a store that is not what its key says.
struct Damaged {
    hash: ContentHash,
    /// Whether its key has no suffix.
    is_bare: bool,
    /// As those of [`Problems::Store`].
    detail: Arc<str>,
}

/// What was compared.
#[derive(Serialize)]
struct Report {
    objects: u64,
    bytes: u64,
    problems: Problems,
    #[serde(flatten)]
    unknown: Option<Unknown>,
}

/// Objects of a store whose keys are no hashes: nobody knows what should be in them.
#[derive(Serialize, Default)]
struct Unknown {
    unknown: u64,
    /// The first of them.
    unknown_keys: Vec<String>,
}

/// The same text once, however many have it.
#[derive(Default)]
struct Details(HashSet<Arc<str>>);

impl Details {
    /// What `error` says of the object called `name`.
    fn of(&mut self, error: &FsError, name: &str) -> Arc<str> {
        let text: Arc<str> = error.to_string().replace(name, NAME_PLACE).into();
        let text = self.0.get(&text).cloned().unwrap_or(text);
        self.0.insert(text.clone());
        text
    }
}

/// `adit manifest verify`
pub(super) fn verify(args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<()> {
    // A manifest that is named by its URL has its content in that store.
    let of_url = || args.manifest.as_deref().and_then(|name| manifest::root_of(Path::new(name))).map(OsStr::new);
    let report = match (&args.manifest, args.content.cas.as_deref().or_else(of_url)) {
        (Some(_), _) if args.repair => {
            return Err(Failure::usage(
                "--repair removes what is damaged in the cache directory, and a manifest means its store",
            ));
        }
        (Some(name), Some(cas)) => {
            let manifest = read_manifest(name, &args.content.store)?.manifest;
            let knows_store = manifest::lies_in(Path::new(name), cas);
            of_store(cas, manifest, knows_store, args, global)?
        }
        (None, None) => of_cache(args, global)?,
        (Some(_), None) => {
            return Err(Failure::usage("where the content of the manifest's files lies is not known")
                .hint("name the store with --cas; without a manifest the cache directory is verified"));
        }
        (None, Some(cas)) => of_whole_store(cas, args, global)?,
    };
    let mut out = Output::new();
    let count = report.problems.each().count();
    if args.json {
        out.json(&report)?;
    } else {
        for problem in report.problems.each() {
            let text = |key: &str| problem[key].as_str().unwrap_or_default();
            let place = ["path", "key"].map(text).into_iter().find(|place| !place.is_empty()).unwrap_or(text("object"));
            out.line(format_args!("{}: {}: {}", text("kind"), printable(place.as_bytes()), text("detail")))?;
        }
        if let Some(Unknown { unknown, unknown_keys }) = &report.unknown {
            for key in unknown_keys {
                out.line(format_args!("unknown: {}: its name is no hash", printable(key.as_bytes())))?;
            }
            let more = unknown - unknown_keys.len() as u64;
            if more > 0 {
                out.line(format_args!("unknown: and {more} more"))?;
            }
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
            Problems::Listed(damaged) => return Box::new(damaged.iter().map(of_damaged)),
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

fn of_store(
    cas: &OsStr,
    manifest: Manifest,
    knows_store: bool,
    args: &ManifestVerifyArgs,
    global: &GlobalArgs,
) -> Result<Report> {
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
    let mut texts = Details::default();
    let outcome = compare(&source, &ids, THREADS, &mut |verified| {
        let (Verified::Sound(id) | Verified::Damaged(id, _)) = verified;
        count += 1;
        bytes += id.len;
        if let Verified::Damaged(id, e) = verified {
            details.insert(*id, texts.of(e, &id.to_string()));
        }
        progress.reached(count, bytes);
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish()?;
    interrupt::obey();
    outcome.map_err(|e| Advice::about_manifests().failure(cas.display(), &e))?;
    Ok(Report { objects: count, bytes, problems: Problems::Store { manifest, details }, unknown: None })
}

/// Everything that a store has, whoever needs it.
fn of_whole_store(cas: &OsStr, args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<Report> {
    let objects = manifest::listed_objects(cas, &args.content.store)?;
    interrupt::watch_telling("not everything was compared");
    let keys = DataKeys::default();
    let mut progress = Progress::new("verify", global.quiet);
    let (mut count, mut bytes, mut damaged, mut unknown) = (0, 0, Vec::new(), Unknown::default());
    let mut texts = Details::default();
    let outcome = check(&*objects, &keys, THREADS, &mut |told| {
        match told {
            Checked::Total { bytes, .. } => progress.learn_total(bytes),
            Checked::Read(more) => bytes += more,
            Checked::Sound => count += 1,
            Checked::Gone => {}
            Checked::Damaged { key, hash, error } => {
                count += 1;
                let is_bare = key == keys.bare_key(&hash);
                damaged.push(Damaged { hash, is_bare, detail: texts.of(error, &hash.to_string()) });
            }
            Checked::Foreign(key) => {
                unknown.unknown += 1;
                if unknown.unknown_keys.len() < UNKNOWN_TOLD_MAX {
                    unknown.unknown_keys.push(key.to_owned());
                }
            }
        }
        progress.reached(count, bytes);
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish()?;
    interrupt::obey();
    outcome.map_err(|e| Advice::about_manifests().failure(cas.display(), &e))?;
    // They came as they were compared.
    damaged.sort_unstable_by_key(|one| (one.hash, one.is_bare));
    unknown.unknown_keys.sort_unstable();
    Ok(Report { objects: count, bytes, problems: Problems::Listed(damaged), unknown: Some(unknown) })
}

fn of_damaged(Damaged { hash, is_bare, detail }: &Damaged) -> Value {
    let (keys, name) = (DataKeys::default(), hash.to_string());
    let key = if *is_bare { keys.bare_key(hash) } else { keys.key(hash) };
    let detail = detail.replace(NAME_PLACE, &name);
    json!({"kind": "object", "object": name, "key": key, "detail": detail})
}

fn of_cache(args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<Report> {
    let dir = manifest::objects_place(&manifest::settled(&args.content.with(&args.cache), Path::new(""))?)?;
    let host = HostDirectory::open(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let mut progress = Progress::new("verify", global.quiet);
    let options = CheckOptions { remove: args.repair };
    let report = check_folder(&host, options, &mut |now| progress.reached(now.objects, now.bytes));
    progress.finish()?;
    let report = report.map_err(|e| Failure::fs(dir.display(), &e))?;
    Ok(Report {
        objects: report.objects,
        bytes: report.bytes,
        problems: Problems::Cache(report.findings),
        unknown: None,
    })
}

fn of_finding(finding: &Finding) -> Value {
    let removed = if finding.removed { "; it was removed, and is fetched again when it is read" } else { "" };
    let detail = format!("{}{removed}", finding.problem);
    json!({"kind": "cached", "object": finding.object.to_string(), "detail": detail, "removed": finding.removed})
}
