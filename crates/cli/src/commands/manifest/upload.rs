//! `manifest upload`, and the same for `manifest snapshot --cas`.

use std::ffi::OsStr;
use std::ops::ControlFlow;

use adit_core::path::Tree;
use adit_manifest::cas::DataKeys;
use adit_manifest::format::Manifest;
use adit_manifest::upload::{UploadEvent, UploadOptions, Uploaded, upload as store_content};
use serde_json::{Value, json};

use super::read_manifest;
use crate::args::low::{GlobalArgs, SourceArgs};
use crate::args::manifest::{CasArgs, ManifestUploadArgs};
use crate::args::units::show_size;
use crate::args::volume::DataArgs;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::interrupt;
use crate::open::{self, Purpose};
use crate::output::Output;
use crate::progress::Progress;

/// Threads that read, hash and store: most of their time they wait for the store.
const THREADS: usize = 16;

/// `adit manifest upload`
pub(super) fn upload(args: &ManifestUploadArgs, global: &GlobalArgs) -> Result<()> {
    let Some(cas) = &args.cas.cas else {
        return Err(Failure::usage("where the content is to go is not known").hint("name the store with --cas"));
    };
    let read = read_manifest(&args.manifest, &args.cas.store)?;
    let root = SourceArgs {
        source: args.root.clone(),
        password: args.password.clone(),
        data: DataArgs::default(),
        cas: CasArgs::default(),
    };
    let (_, opened) = open::source(&root, global, Purpose::Read)?;
    interrupt::watch();
    let tree = Tree::new(&*opened.store);
    let uploaded = to_store(&tree, b"/", &read.manifest, cas, &args.cas, &opened.advice, global)?;
    let told = describe(&uploaded);
    if args.json {
        let mut out = Output::new();
        out.json(&told)?;
        return out.finish();
    }
    if !global.quiet {
        eprintln!("adit: upload: {}", words(&uploaded));
    }
    Ok(())
}

/// Brings the content of `manifest`, whose files lie below `root` of `tree`, into the store `cas`.
///
/// # Errors
/// Those of the store; said already, if a file could not be read or is not what the manifest says.
pub(super) fn to_store(
    tree: &Tree<'_>,
    root: &[u8],
    manifest: &Manifest,
    cas: &OsStr,
    args: &CasArgs,
    advice: &Advice,
    global: &GlobalArgs,
) -> Result<Uploaded> {
    let objects = open::manifest::objects(cas, &args.store)?;
    let keys = DataKeys::default();
    let dir = open::manifest::objects_dir(args)?;
    let scratch = || tempfile::tempfile_in(&dir);
    let options = UploadOptions { objects: &*objects, keys: &keys, threads: THREADS, scratch: &scratch };
    let mut progress = Progress::new("upload", global.quiet).advising(advice);
    let (mut count, mut bytes) = (0, 0);
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let uploaded = store_content(tree, root, manifest, &options, &mut |event| {
        match event {
            UploadEvent::Object { len_bytes, .. } => {
                count += 1;
                bytes += len_bytes;
                progress.reached(count, bytes);
            }
            UploadEvent::Failed(e) => progress.failed_with(e),
        }
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let finished = progress.finish();
    interrupt::obey();
    let uploaded = uploaded.map_err(|e| {
        let failure = Failure::fs(cas.display(), &e);
        match failure.code() {
            Code::Network => failure.hint("what was stored so far is not sent again when it is started again"),
            _ => failure,
        }
    })?;
    finished?;
    Ok(uploaded)
}

/// What was stored, for programs.
pub(super) fn describe(uploaded: &Uploaded) -> Value {
    json!({
        "stored": uploaded.stored.0,
        "stored_bytes": uploaded.stored.1,
        "present": uploaded.present.0,
        "present_bytes": uploaded.present.1,
    })
}

/// The same for people.
pub(super) fn words(uploaded: &Uploaded) -> String {
    let (stored, present) = (uploaded.stored, uploaded.present);
    format!("{} objects stored ({}), {} were there", stored.0, show_size(stored.1), present.0)
}
