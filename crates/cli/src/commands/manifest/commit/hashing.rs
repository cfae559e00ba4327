//! The changed files of a commit, hashed.

use std::ops::ControlFlow;

use adit_core::path::{Tree, show, transfer};
use adit_index::Segment;
use adit_manifest::commit::{Changed, ChangedOptions, changed, topmost};
use adit_manifest::snapshot::{Event, Filter};
use serde_json::{Value, json};

use super::state::Frozen;
use crate::args::low::GlobalArgs;
use crate::args::manifest_commit::ManifestCommitArgs;
use crate::commands::manifest::failed::{Failed, ended};
use crate::commands::manifest::scan;
use crate::commands::manifest::sizing::Sizing;
use crate::commands::mount::volume::commit::About;
use crate::failure::{Advice, Failure, Result};
use crate::interrupt;
use crate::output::add_name;
use crate::progress::Progress;

/// What was learnt while the tree was hashed.
#[derive(Default)]
pub struct Scanned {
    pub known_files: u64,
    pub hashed_bytes: u64,
    pub left_out: Vec<Value>,
    failed: Failed,
    /// What became of it: said already, if something could not be read.
    finished: Option<Failure>,
}

impl Scanned {
    /// Fails if something could not be read; who asked for JSON hears what.
    ///
    /// # Errors
    /// Said already.
    pub fn whole(mut self, args: &ManifestCommitArgs) -> Result<Scanned> {
        let Some(failure) = self.finished.take() else { return Ok(self) };
        let mut told = json!({
            "mountpoint": args.mountpoint.display().to_string(),
            "known_files": self.known_files,
            "hashed_bytes": self.hashed_bytes,
            "left_out": self.left_out,
            "manifests": [],
        });
        told["failures"] = self.failed.into_json();
        Err(ended(&told, failure, args.json))
    }
}

/// Hashes what changed. The paths of what could not be read are in `unread`; see [`Scanned::whole`].
///
/// # Errors
/// Those of the tree as a whole, and of the parent's index.
pub fn hash(
    segment: &Segment,
    tree: &Tree<'_>,
    frozen: &Frozen,
    about: &About,
    unread: &mut Vec<Vec<u8>>,
    args: &ManifestCommitArgs,
    global: &GlobalArgs,
) -> Result<(Changed, Scanned)> {
    let cache = if args.rehash { None } else { scan::hashes(about.cas().cache_dir.as_deref())? };
    let upper = about.upper();
    let place = [b"overlay\0", upper.as_os_str().as_encoded_bytes(), b"\0", about.hash.as_bytes()].concat();
    let scope = cache.as_ref().map(|cache| cache.scope(&place));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = ChangedOptions { threads, cache: scope.as_ref() };
    let mut progress = Progress::new(super::VERB, global.quiet).advising(&Advice::about_manifests()).folding();
    let mut scanned = Scanned { failed: Failed::new(args.json), ..Scanned::default() };
    let (another, touched) = (|| frozen.store().ok(), &frozen.touched);
    let mut sizing = Sizing::of(&another, topmost(&touched.paths), Filter::default());
    let found = changed(segment, tree, touched, &options, &mut |event| {
        sizing.look(&mut progress);
        match event {
            Event::File { path, len_bytes, known, read_bytes } => {
                scanned.known_files += u64::from(known);
                progress.passed(len_bytes.saturating_sub(read_bytes));
                progress.entry(&show(&path.to_listing()));
            }
            Event::Bytes(count) => {
                scanned.hashed_bytes += count;
                return progress.event(transfer::Event::Bytes(count));
            }
            Event::LeftOut { path, why } => {
                let mut object = json!({ "why": why });
                add_name(&mut object, "path", &[b"/", path].concat());
                scanned.left_out.push(object);
                return progress.event(transfer::Event::LeftOut { path: &show(path), why });
            }
            Event::Failed { path, error } => {
                unread.push(path.to_vec());
                scanned.failed.add(path, error);
                progress.failed_with(error);
            }
        }
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(sizing);
    let finished = progress.finish();
    interrupt::obey();
    let found = found.map_err(|e| Advice::about_manifests().failure(args.mountpoint.display(), &e))?;
    scanned.finished = finished.err();
    debug_assert_eq!(
        found.failed == 0,
        scanned.finished.is_none(),
        "each was told, and ends the display with a failure"
    );
    Ok((found, scanned))
}
