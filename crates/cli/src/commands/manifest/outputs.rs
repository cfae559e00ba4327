//! What the tasks of a job left in a store: their manifests, found in the official layout.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use adit_core::media::Objects;
use adit_core::{FsError, Result as FsResult};
use adit_manifest::cas::ObjectDocument;
use adit_manifest::format::Manifest;
use adit_manifest::layout::{AssetRoot, MANIFESTS_FOLDER, is_output, latest_outputs};

use super::super::bytes;
use crate::args::manifest::StoreArgs;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open;
use crate::source::is_url;

/// Keys that are asked for at a time: as many as S3 gives.
const PAGE_LEN: usize = 1000;

/// Manifests of outputs as one.
pub(super) struct Outputs {
    /// The store that they lie in: what --cas would name.
    pub cas: OsString,
    /// The root that their paths are below, where that was noted.
    pub root: Option<AssetRoot>,
    /// How many there are.
    pub count: usize,
    /// All of them; of two with one path that which was stored last wins.
    pub manifest: Manifest,
}

/// Whether this names a folder of outputs, and not a manifest.
pub(super) fn is_folder(name: &OsStr) -> bool {
    bytes(name).ends_with(b"/")
}

/// Finds the outputs below the folder that `name` is, of a job, a step or a task; of several roots, those of `asset_root`.
///
/// # Errors
/// Usage, if it is in no folder of manifests, or has several roots; that there are none; those of the store.
pub(super) fn find(name: &OsStr, asset_root: Option<&OsStr>, args: &StoreArgs) -> Result<Outputs> {
    let (cas, prefix) = place_of(name)?;
    let failed = |e: FsError| open::manifest::failure(Path::new(name), &e);
    let objects = open::manifest::objects(&cas, args)?;
    let keys = latest_outputs(list(&*objects, &prefix).map_err(failed)?);
    if keys.is_empty() {
        return Err(Failure::new(Code::Failure, format!("{}: no outputs are there", name.display()))
            .hint("outputs of a job are in …/Manifests/FARM/QUEUE/JOB/, if any of its tasks has ended"));
    }
    let mut by_root: BTreeMap<Option<AssetRoot>, Vec<(String, ObjectDocument)>> = BTreeMap::new();
    for key in keys {
        let document = ObjectDocument::open(objects.clone(), &key).map_err(failed)?;
        let root = AssetRoot::from_metadata(&document.info().metadata).map_err(failed)?;
        by_root.entry(root).or_default().push((key, document));
    }
    let (root, mut documents) = choose(name, by_root, asset_root)?;
    // As the official packages do; of what the store has from the same second the later action wins.
    documents.sort_by_key(|(_, document)| document.info().modified);
    let mut manifests = Vec::new();
    for (key, document) in &documents {
        let file = Path::new(&cas).join(key);
        let (manifest, _) = Manifest::read(document).map_err(|e| open::manifest::failure(&file, &e))?;
        manifests.push(manifest);
    }
    let manifest = Manifest::merge(&manifests).map_err(failed)?;
    Ok(Outputs { cas, root, count: manifests.len(), manifest })
}

/// The store and the prefix of keys in it.
fn place_of(name: &OsStr) -> Result<(OsString, String)> {
    let absolute;
    let name = if is_url(Path::new(name)) {
        bytes(name)
    } else {
        absolute = std::path::absolute(name).map_err(|e| Failure::io(name.display(), &e))?;
        absolute.as_os_str().as_bytes()
    };
    let folder = format!("/{MANIFESTS_FOLDER}/");
    // A path that ends in a slash may have lost it.
    let text = [name.strip_suffix(b"/").unwrap_or(name), b"/"].concat();
    let at = text.windows(folder.len()).rposition(|part| part == folder.as_bytes());
    let split = at.and_then(|at| Some((&text[..at], std::str::from_utf8(&text[at + 1..]).ok()?)));
    let Some((root, prefix)) = split else {
        let what = format!("{}: in no folder {MANIFESTS_FOLDER} of a store", OsStr::from_bytes(name).display());
        return Err(Failure::usage(what)
            .hint("write it as s3://BUCKET/PREFIX/Manifests/FARM/QUEUE/JOB/, or so below davs://HOST/PATH"));
    };
    Ok((OsString::from_vec(root.to_vec()), prefix.to_owned()))
}

/// The keys of all manifests of outputs below `prefix`.
fn list(objects: &dyn Objects, prefix: &str) -> FsResult<Vec<String>> {
    let mut keys = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = objects.list(prefix, after.as_deref(), PAGE_LEN)?;
        after = page.objects.last().map(|object| object.key.clone());
        keys.extend(page.objects.into_iter().map(|object| object.key).filter(|key| is_output(key)));
        if !page.more || after.is_none() {
            return Ok(keys);
        }
    }
}

type OfRoot<T> = (Option<AssetRoot>, Vec<T>);

fn choose<T>(
    name: &OsStr,
    mut by_root: BTreeMap<Option<AssetRoot>, Vec<T>>,
    wanted: Option<&OsStr>,
) -> Result<OfRoot<T>> {
    let shown: Vec<String> = by_root.keys().map(|root| show(root.as_ref())).collect();
    if let Some(wanted) = wanted {
        let is_it = |root: &AssetRoot| root.path() == wanted.as_bytes();
        by_root.retain(|root, _| root.as_ref().is_some_and(is_it));
    }
    if by_root.len() > 1 {
        let what = format!("{}: outputs of several roots: {}", name.display(), shown.join(", "));
        return Err(Failure::usage(what).hint("download one after the other, with --asset-root PATH"));
    }
    by_root.pop_first().ok_or_else(|| {
        let what =
            format!("{}: no outputs of that root are there; there are those of {}", name.display(), shown.join(", "));
        Failure::new(Code::Failure, what)
    })
}

/// A root for people.
pub(super) fn show(root: Option<&AssetRoot>) -> String {
    let Some(root) = root else { return "an unknown root".to_owned() };
    let path = crate::output::printable(root.path());
    match root.location() {
        Some(location) => format!("{path} ({})", crate::output::printable(location.as_bytes())),
        None => path,
    }
}
