//! A source as a manifest: its files hashed, or known from before.

use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::host::filesystem;
use adit_core::path::{Tree, show, transfer};
use adit_core::store::Store;
use adit_manifest::format::{Format, Manifest};
use adit_manifest::hash_cache::HashCache;
use adit_manifest::snapshot::{Event, Filter, Known, Names, Options, snapshot as take};
use adit_manifest::store::ListedNames;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::failed::{Failed, ended};
use super::folder_of;
use super::sizing::Sizing;
use crate::args::low::{GlobalArgs, SourceArgs};
use crate::args::manifest::ScanArgs;
use crate::commands::mount::overlay::place::cache_dir;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::{self, Opened};
use crate::output::add_name;
use crate::progress::Progress;
use crate::source::Source;

/// The cache of hashes, in the cache directory.
const HASHES_FILE: &str = "hashes.redb";

/// What a source gave.
pub(super) struct Scanned {
    pub manifest: Manifest,
    pub known_files: u64,
    pub hashed_bytes: u64,
    pub left_out: Vec<Value>,
    /// Of v2023: empty folders, of which it keeps nothing, and links, which it has followed.
    pub not_kept: (u64, u64),
    /// What could not be read.
    failed: Failed,
    /// Said already, if something could not be: then the manifest is not whole.
    finished: Result<()>,
}

impl Scanned {
    /// Fails if something could not be read; who asked for JSON hears what.
    pub fn whole(self, json: bool) -> Result<Scanned> {
        let Err(failure) = self.finished else { return Ok(self) };
        let mut told = json!({
            "known_files": self.known_files,
            "hashed_bytes": self.hashed_bytes,
            "left_out": self.left_out,
        });
        told["failures"] = self.failed.into_json();
        Err(ended(&told, failure, json))
    }
}

/// Makes a manifest of what `source` names, which is `opened`, and lies in `place`. The files and folders in `own` are the command's, and left
/// out.
///
/// # Errors
/// Usage, of a pattern; those of the source. If something in it could not be read, see [`Scanned::whole`].
pub(super) fn scan(
    source: &SourceArgs,
    (place, opened): &(PathBuf, Opened),
    path: &[u8],
    format: Format,
    (args, own): (&ScanArgs, &[&Path]),
    (json, global): (bool, &GlobalArgs),
) -> Result<Scanned> {
    let filter =
        Filter::new(&args.include, &args.exclude).map_err(|e| Failure::usage(format!("not a pattern: {e}")))?;
    let is_dir = matches!(Source::recognise(&source.source)?, Source::Dir(_));
    let inside = |own: &&Path| is_dir.then(|| below(place, path, own)).flatten();
    let filter = filter.apart_from(own.iter().filter_map(inside).collect());
    let tree = Tree::new(&*opened.store);
    // Inode numbers and ctime are those of the host only there.
    let name = if is_dir && !args.rehash { scope_of(place) } else { None };
    let cache = if name.is_some() { hashes(source.cas.cache_dir.as_deref())? } else { None };
    let scope = cache.as_ref().zip(name.as_deref()).map(|(cache, name)| cache.scope(name));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let known = scope.as_ref().map(|scope| scope as &dyn Known);
    let listed = opened.segment().map(ListedNames::new);
    let names = listed.as_ref().map(|names| names as &dyn Names);
    let options = Options { format, filter: &filter, threads, known, names };
    interrupt::watch_telling(match cache {
        Some(_) => "what was hashed and stored so far stays, and the same command goes on from there",
        None => "what was stored stays",
    });
    let mut progress = Progress::new("manifest", global.quiet).advising(&opened.advice).folding();
    let another = || if is_dir { open::dir(place, true).ok().map(|store| store as Arc<dyn Store>) } else { None };
    let mut sizing = Sizing::of(&another, vec![path.to_vec()], filter.clone());
    let (mut known_files, mut hashed_bytes, mut left_out, mut failed) = (0, 0, Vec::new(), Failed::new(json));
    let scanned = take(&tree, path, &options, &mut |event| {
        sizing.look(&mut progress);
        match event {
            Event::File { path, len_bytes, known, read_bytes } => {
                known_files += u64::from(known);
                progress.passed(len_bytes.saturating_sub(read_bytes));
                progress.entry(&show(&path.to_listing()));
            }
            Event::Bytes(count) => {
                hashed_bytes += count;
                return progress.event(transfer::Event::Bytes(count));
            }
            Event::LeftOut { path, why } => {
                let mut object = json!({ "why": why });
                add_name(&mut object, "path", &[b"/", path].concat());
                left_out.push(object);
                return progress.event(transfer::Event::LeftOut { path: &show(path), why });
            }
            Event::Failed { path, error } => {
                failed.add(path, error);
                progress.failed_with(error);
            }
        }
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(sizing);
    let finished = progress.finish();
    let scanned = scanned.map_err(|e| opened.failure(place.display(), &e))?;
    debug_assert_eq!(scanned.failed == 0, finished.is_ok(), "each was told, and ends the display with a failure");
    let has_patterns = !args.include.is_empty() || !args.exclude.is_empty();
    if has_patterns && scanned.manifest.entries().next().is_none() && !global.quiet {
        say_that_nothing_fits(place);
    }
    let not_kept = (scanned.empty_folders, scanned.followed);
    Ok(Scanned { manifest: scanned.manifest, known_files, hashed_bytes, left_out, not_kept, failed, finished })
}

/// Says that patterns leave nothing of what lies in `place`.
pub(super) fn say_that_nothing_fits(place: &Path) {
    eprintln!(
        "adit: {}: nothing in it fits --include and --exclude\n  `*` stays within a name: '**/*.txt' is of files in all folders",
        place.display()
    );
}

/// Where `own` lies below the root, if it does.
fn below(place: &Path, root: &[u8], own: &Path) -> Option<Vec<u8>> {
    // It may not be there yet.
    let own = folder_of(own).canonicalize().ok()?.join(own.file_name()?);
    let root = OsStr::from_bytes(root.strip_prefix(b"/").unwrap_or(root));
    let top = place.join(root).canonicalize().ok()?;
    own.strip_prefix(top).ok().map(|path| path.as_os_str().as_bytes().to_vec())
}

/// The name by which the cache of hashes knows a folder of this machine; none where files are not known to keep their identity
/// ([`filesystem`]).
pub(super) fn scope_of(place: &Path) -> Option<Vec<u8>> {
    let dir = rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let filesystem = filesystem(dir).ok()??;
    Some([b"dir\0", &filesystem[..], place.as_os_str().as_bytes()].concat())
}

/// The cache of hashes; none while another process has it, or if it cannot be had: then everything is read.
pub(super) fn hashes(given: Option<&Path>) -> Result<Option<HashCache>> {
    let dir = cache_dir(given)?;
    if let Err(e) = fs::create_dir_all(&dir) {
        tracing::warn!(dir = %dir.display(), error = %e, "no cache of hashes: everything is read");
        return Ok(None);
    }
    match HashCache::open(&dir.join(HASHES_FILE)) {
        Ok(Some(cache)) => Ok(Some(cache)),
        Ok(None) => {
            tracing::info!("another process has the cache of hashes: everything is read");
            Ok(None)
        }
        Err(e) => {
            tracing::warn!(error = %e, "no cache of hashes: everything is read");
            Ok(None)
        }
    }
}
