//! `manifest download`: the files of a manifest, brought from a store into a folder of this machine.

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use adit_core::path::{show, transfer};
use adit_core::{ErrorKind, FsError};
use adit_manifest::cas::{DataKeys, ObjectSource};
use adit_manifest::download::{
    Conflict, DownloadEvent, DownloadOptions, Downloaded, Outcome, download as bring, wanted_bytes,
};
use adit_manifest::format::Manifest;
use adit_manifest::layout::AssetRoot;
use adit_manifest::snapshot::Filter;
use adit_media::HostDirectory;
use serde_json::{Value, json};

use super::scan::{hashes, scope_of};
use super::{Read, outputs, put_together, read_manifest};
use crate::args::low::GlobalArgs;
use crate::args::manifest::{ConflictArg, ManifestDownloadArgs};
use crate::args::units::show_size;
use crate::exit_code::Code;
use crate::failure::{Advice, CONTENT_IS_WRONG, Failure, Result};
use crate::interrupt;
use crate::live;
use crate::open;
use crate::output::{Output, add_name, counted, printable};
use crate::process;
use crate::progress::{Progress, reason};
use crate::source::is_url;

/// Threads that fetch: most of their time they wait for the store.
const THREADS: usize = 24;

/// What is to be downloaded.
struct Wanted {
    manifest: Manifest,
    cas: OsString,
    /// Of outputs: their root, and how many manifests they were.
    outputs: Option<(Option<AssetRoot>, usize)>,
}

/// `adit manifest download`
pub(super) fn download(args: &ManifestDownloadArgs, global: &GlobalArgs) -> Result<()> {
    let filter =
        Filter::new(&args.include, &args.exclude).map_err(|e| Failure::usage(format!("not a pattern: {e}")))?;
    let dest = Path::new(&args.dest);
    live::expect_answers(dest)?;
    let wanted = wanted(args)?;
    let objects = open::manifest::objects(&wanted.cas, &args.content.store)?;
    // Manifests of outputs were found in it, unless another one was named.
    let knows_store = args.manifests.iter().any(|name| open::manifest::lies_in(Path::new(name), &wanted.cas));
    open::manifest::expect_content(&wanted.cas, &args.content.store, &wanted.manifest, knows_store)?;
    let place = destination(dest, args.dry_run)?;
    if let (Some((root, count)), false) = (&wanted.outputs, global.quiet) {
        eprintln!(
            "adit: download: outputs of {}, from {}",
            outputs::show(root.as_ref()),
            counted(*count as u64, "manifest")
        );
    }
    let host = place.as_deref().map(HostDirectory::open).transpose().map_err(|e| Failure::io(dest.display(), &e))?;
    let name = place.as_deref().filter(|_| !args.rehash).and_then(scope_of);
    let cache = if name.is_some() { hashes(args.cache.cache_dir.as_deref())? } else { None };
    let scope = cache.as_ref().zip(name.as_deref()).map(|(cache, name)| cache.scope(name));
    let source = ObjectSource::new(objects, DataKeys::default());
    let options = DownloadOptions {
        source: &source,
        host: host.as_ref().map(|host| host as _),
        conflict: args.conflict.into(),
        filter: &filter,
        threads: THREADS,
        known: scope.as_ref(),
        umask: process::umask() as u16,
        dry_run: args.dry_run,
    };
    interrupt::watch_telling("the files that are complete stay, and the same command goes on from there");
    let advice = Advice::about_disks(&[dest]);
    let mut log = Log::new(args, wanted_bytes(&wanted.manifest, &filter), &advice, global);
    let downloaded = bring(&wanted.manifest, &options, &mut |event| log.event(event));
    let finished = log.progress.finish();
    interrupt::obey();
    let downloaded = downloaded.map_err(|e| {
        let failure = advice.failure(wanted.cas.display(), &e);
        match failure.code() {
            Code::Network => failure.hint("what has come so far is not fetched again when it is started again"),
            _ => failure,
        }
    })?;
    tell(args, &wanted, &downloaded, (log.entries, log.failures), global)?;
    finished
}

/// The manifests that were named, as one, and where their content lies.
fn wanted(args: &ManifestDownloadArgs) -> Result<Wanted> {
    let named = args.content.cas.clone();
    if let Some(folder) = args.manifests.iter().find(|name| outputs::is_folder(name)) {
        if args.manifests.len() > 1 {
            return Err(Failure::usage(format!("{}: outputs are downloaded by themselves", folder.display())));
        }
        let found = outputs::find(folder, args.asset_root.as_deref(), &args.content.store)?;
        let outputs = Some((found.root, found.count));
        return Ok(Wanted { manifest: found.manifest, cas: named.unwrap_or(found.cas), outputs });
    }
    if args.asset_root.is_some() {
        return Err(Failure::usage("--asset-root is for outputs: name their folder, with a slash at its end"));
    }
    let of_url = |name: &OsString| open::manifest::root_of(Path::new(name)).map(OsString::from);
    let cas = named.or_else(|| args.manifests.iter().find_map(of_url)).ok_or_else(|| {
        Failure::usage("where the content of the manifest's files lies is not known").hint("name the store with --cas")
    })?;
    let read_all: Vec<Read> = args.manifests.iter().map(|name| read(name, args)).collect::<Result<_>>()?;
    Ok(Wanted { manifest: put_together(&args.manifests, &read_all)?, cas, outputs: None })
}

fn read(name: &OsStr, args: &ManifestDownloadArgs) -> Result<Read> {
    read_manifest(name, &args.content.store).map_err(|failure| {
        match is_url(Path::new(name)) || Path::new(name).is_dir() {
            true if failure.code() != Code::Network => {
                failure.hint("a folder of outputs is named with a slash at its end")
            }
            _ => failure,
        }
    })
}

/// The folder, which is made if it is not there; absolute and without links. None if it is not there in a dry run.
fn destination(dest: &Path, dry_run: bool) -> Result<Option<PathBuf>> {
    let failed = |e: io::Error| Failure::io(dest.display(), &e);
    if !dry_run {
        match std::fs::create_dir(dest) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(failed(e).hint("the folder above it must be there: make it first"));
            }
            Err(e) => return Err(failed(e)),
        }
    }
    let place = match dest.canonicalize() {
        Ok(place) => place,
        Err(e) if dry_run && e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    match place.is_dir() {
        true => Ok(Some(place)),
        false => Err(Failure::new(Code::Failure, format!("{}: not a folder", dest.display()))),
    }
}

/// Hears of a download, and shows it.
struct Log {
    progress: Progress,
    advice: Advice,
    dry_run: bool,
    /// Files that are through, and their bytes that need not come.
    count: u64,
    at_once: u64,
    /// What was said of damage.
    is_advised: bool,
    /// What a dry run would do, and copies beside what is there.
    entries: Vec<Value>,
    /// What is told of each failure, for programs: people see some of many.
    keeps_failures: bool,
    failures: Vec<Value>,
}

impl Log {
    fn new(args: &ManifestDownloadArgs, total: u64, advice: &Advice, global: &GlobalArgs) -> Log {
        let progress = Progress::new("download", global.quiet).of_bytes(total).advising(advice).folding();
        let (count, at_once, is_advised) = (0, 0, false);
        let (entries, failures) = (Vec::new(), Vec::new());
        let (advice, dry_run, keeps_failures) = (advice.clone(), args.dry_run, args.json);
        Log { progress, advice, dry_run, count, at_once, is_advised, entries, keeps_failures, failures }
    }

    fn event(&mut self, event: DownloadEvent<'_>) -> ControlFlow<()> {
        match event {
            DownloadEvent::Entry { host, len_bytes, outcome, .. } => self.entry(host, len_bytes, outcome),
            DownloadEvent::Untimed { host } => {
                let what = "its time is before 1677 or after 2262, and that of the file is now";
                let _ = self.progress.event(transfer::Event::Altered { path: &show(host), what });
            }
            DownloadEvent::Failed { path, len_bytes, error } => {
                self.count += 1;
                self.at_once += len_bytes;
                self.failed(&path.to_listing(), error);
            }
            DownloadEvent::Fetched(bytes) => self.progress.reached_of(self.count, bytes + self.at_once, self.at_once),
        }
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn entry(&mut self, host: &[u8], len_bytes: u64, outcome: &Outcome) {
        self.count += 1;
        let (action, copy) = match outcome {
            Outcome::New => ("new", None),
            Outcome::Replaced => ("replace", None),
            Outcome::Copied(copy) => ("copy", Some(copy)),
            Outcome::Present(copy) => ("present", copy.as_ref()),
            Outcome::Skipped => ("skip", None),
        };
        if matches!(outcome, Outcome::Present(_) | Outcome::Skipped) {
            self.at_once += len_bytes;
        }
        if let (Outcome::Copied(copy), false) = (outcome, self.dry_run) {
            let what = format!("something else is there; it came as {}", show(copy));
            // It goes on whatever this says: a signal is looked for below.
            let _ = self.progress.event(transfer::Event::Altered { path: &show(host), what: &what });
        }
        if self.dry_run || matches!(outcome, Outcome::Copied(_)) {
            let mut entry = json!({"action": action, "size": len_bytes});
            add_name(&mut entry, "path", &[b"/", host].concat());
            if let Some(copy) = copy {
                add_name(&mut entry, "copy", &[b"/", &copy[..]].concat());
            }
            self.entries.push(entry);
        }
    }

    fn failed(&mut self, path: &[u8], error: &FsError) {
        let mut failure = self.advice.failure("download", error);
        if error.kind() == ErrorKind::Corrupt {
            // What is wrong lies in the store. Once is enough.
            let said = std::mem::replace(&mut self.is_advised, true);
            failure = Failure::new(Code::Corrupt, failure.message());
            if !said {
                failure = failure.hint(CONTENT_IS_WRONG);
            }
        }
        if self.keeps_failures {
            let mut told = json!({"error": error.to_string(), "why": failure.message()});
            add_name(&mut told, "path", &[b"/", path].concat());
            self.failures.push(told);
        }
        self.progress.failed_as(&reason(error), &failure);
    }
}

/// Says what became of it.
fn tell(
    args: &ManifestDownloadArgs,
    wanted: &Wanted,
    downloaded: &Downloaded,
    (entries, failures): (Vec<Value>, Vec<Value>),
    global: &GlobalArgs,
) -> Result<()> {
    let Downloaded { written, written_bytes, present, skipped, directories, directories_present, failed, swept } =
        *downloaded;
    let deletions = wanted.manifest.deletions().count();
    let mut out = Output::new();
    if args.json {
        let mut told = json!({
            "written": written,
            "written_bytes": written_bytes,
            "present": present,
            "skipped": skipped,
            "directories": directories,
            "directories_present": directories_present,
            "failed": failed,
            "swept": swept,
            "deletions": deletions,
            "dry_run": args.dry_run,
            "entries": entries,
            "failures": failures,
        });
        if let Some((root, count)) = &wanted.outputs {
            told["manifests"] = (*count).into();
            if let Some(root) = root {
                add_name(&mut told, "asset_root", root.path());
                told["file_system_location_name"] = root.location().into();
            }
        }
        out.json(&told)?;
        return out.finish();
    }
    if args.dry_run {
        for entry in &entries {
            let text = |key: &str| printable(entry[key].as_str().unwrap_or_default().as_bytes());
            match entry["copy"].is_string() {
                true => out.line(format_args!("{:8} {} as {}", text("action"), text("path"), text("copy")))?,
                false => out.line(format_args!("{:8} {}", text("action"), text("path")))?,
            }
        }
    }
    out.finish()?;
    if global.quiet {
        return Ok(());
    }
    let verb = if args.dry_run { "would be written" } else { "written" };
    let mut said =
        format!("{} {verb} ({}), {present} there already", counted(written, "file"), show_size(written_bytes));
    if directories + directories_present > 0 {
        let verb = if args.dry_run { "would be made" } else { "made" };
        let made = counted(directories, "folder");
        said += &format!(", {made} {verb}, {directories_present} there already");
    }
    if skipped > 0 {
        said += &format!(", {skipped} skipped");
    }
    if failed > 0 {
        said += &format!(", {failed} failed");
    }
    eprintln!("adit: download: {said}");
    if swept > 0 {
        eprintln!("adit: download: removed what a download that was killed had not finished ({swept})");
    }
    if deletions > 0 {
        let what = counted(deletions as u64, "deletion");
        eprintln!("adit: download: {what} of the manifest not applied: nothing in the folder is removed");
    }
    Ok(())
}

impl From<ConflictArg> for Conflict {
    fn from(arg: ConflictArg) -> Conflict {
        match arg {
            ConflictArg::Skip => Conflict::Skip,
            ConflictArg::Overwrite => Conflict::Overwrite,
            ConflictArg::Copy => Conflict::Copy,
        }
    }
}
