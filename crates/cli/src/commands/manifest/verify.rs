//! `manifest verify`: the objects of a store, or of the cache, compared with their hashes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use adit_manifest::cache::{CheckOptions, ObjectId, check_folder};
use adit_manifest::cas::{DataKeys, ObjectSource, Verified, verify as compare};
use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{Body, Manifest};
use adit_media::HostDirectory;
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

/// `adit manifest verify`
pub(super) fn verify(args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<()> {
    let (objects, bytes, problems) = match (&args.manifest, &args.content.cas) {
        (Some(name), Some(_)) => of_store(&read_manifest(name, &args.content.store)?.manifest, args, global)?,
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
    if args.json {
        out.json(&json!({"objects": objects, "bytes": bytes, "problems": problems}))?;
    } else {
        for problem in &problems {
            let text = |key: &str| problem[key].as_str().unwrap_or_default();
            let place = if text("path").is_empty() { text("object") } else { text("path") };
            out.line(format_args!("{}: {}: {}", text("kind"), printable(place.as_bytes()), text("detail")))?;
        }
        let found = match problems.len() {
            0 => "no problems".to_owned(),
            count => counted(count as u64, "problem"),
        };
        out.line(format_args!("{} ({}): {found}", counted(objects, "object"), show_size(bytes)))?;
    }
    out.finish()?;
    if problems.is_empty() { Ok(()) } else { Err(Failure::said(Code::ProblemsFound)) }
}

/// Objects and bytes that were compared, and what is wrong.
type Found = (u64, u64, Vec<Value>);

fn of_store(manifest: &Manifest, args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<Found> {
    let cas = args.content.cas.as_deref().unwrap_or_default();
    manifest::expect_content(cas, &args.content.store, manifest)?;
    let source = ObjectSource::new(manifest::objects(cas, &args.content.store)?, DataKeys::default());
    // Each once, with the files that need it.
    let mut needed: BTreeMap<([u8; 16], u64), Vec<Vec<u8>>> = BTreeMap::new();
    for (path, body) in manifest.entries() {
        let Body::File(file) = body else { continue };
        let hashes = file.content.hashes();
        let one = if hashes.len() == 1 { file.size_bytes } else { CHUNK_LEN_BYTES };
        for (at, hash) in (0..).zip(hashes) {
            let len = one.min(file.size_bytes - at * one);
            needed.entry((hash.0, len)).or_default().push([b"/", &path.to_listing()[..]].concat());
        }
    }
    let ids: Vec<ObjectId> = needed
        .keys()
        .map(|(hash, len)| ObjectId { hash: adit_manifest::format::ContentHash(*hash), len: *len })
        .collect();
    interrupt::watch();
    let mut progress = Progress::new("verify", global.quiet);
    let (mut count, mut bytes, mut problems) = (0, 0, Vec::new());
    let outcome = compare(&source, &ids, THREADS, &mut |verified| {
        let (Verified::Sound(id) | Verified::Damaged(id, _)) = verified;
        count += 1;
        bytes += id.len;
        if let Verified::Damaged(id, e) = verified {
            let paths = needed.get(&(id.hash.0, id.len)).map_or(&[][..], |paths| &paths[..]);
            problems.extend(paths.iter().map(|path| {
                let mut problem = json!({"kind": "object", "object": id.to_string(), "detail": e.to_string()});
                add_name(&mut problem, "path", path);
                problem
            }));
        }
        progress.reached(count, bytes);
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    progress.finish()?;
    interrupt::obey();
    outcome.map_err(|e| Advice::about_manifests().failure(cas.display(), &e))?;
    problems.sort_by(|a, b| a["path"].as_str().cmp(&b["path"].as_str()));
    Ok((count, bytes, problems))
}

fn of_cache(args: &ManifestVerifyArgs, global: &GlobalArgs) -> Result<Found> {
    let dir = manifest::objects_place(&manifest::settled(&args.content.with(&args.cache), Path::new(""))?)?;
    let host = HostDirectory::open(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let mut progress = Progress::new("verify", global.quiet);
    let options = CheckOptions { remove: args.repair };
    let report = check_folder(&host, options, &mut |now| progress.reached(now.objects, now.bytes));
    progress.finish()?;
    let report = report.map_err(|e| Failure::fs(dir.display(), &e))?;
    let problems = report.findings.iter().map(|finding| {
        let removed = if finding.removed { "; it was removed, and is fetched again when it is read" } else { "" };
        let detail = format!("{}{removed}", finding.problem);
        json!({"kind": "cached", "object": finding.object.to_string(), "detail": detail, "removed": finding.removed})
    });
    Ok((report.objects, report.bytes, problems.collect()))
}
