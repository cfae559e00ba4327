//! `manifest upload`, and the same for `manifest snapshot --cas`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_core::media::{Content, PutOptions};
use adit_core::path::{Tree, show};
use adit_manifest::cas::DataKeys;
use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{Body, ContentHash, Manifest, Source as _};
use adit_manifest::layout::{AssetRoot, named_key};
use adit_manifest::snapshot::Filter;
use adit_manifest::upload::{UploadEvent, UploadOptions, Uploaded, upload as store_content};
use serde_json::{Value, json};

use super::failed::{Failed, ended};
use super::scan::say_that_nothing_fits;
use super::{Read, read_manifest};
use crate::args::low::{GlobalArgs, SourceArgs};
use crate::args::manifest::{CasArgs, ManifestUploadArgs, StoreArgs};
use crate::args::units::show_size;
use crate::args::volume::DataArgs;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::interrupt;
use crate::open::{self, Purpose};
use crate::output::{Output, counted};
use crate::progress::{Progress, reason};
use crate::source::{Source, is_url};

/// Threads that read, hash and store: most of their time they wait for the store.
const THREADS: usize = 16;

/// `adit manifest upload`
pub(super) fn upload(args: &ManifestUploadArgs, global: &GlobalArgs) -> Result<()> {
    let Some(cas) = &args.content.cas else {
        return Err(Failure::usage("where the content is to go is not known").hint("name the store with --cas"));
    };
    let filter =
        Filter::new(&args.include, &args.exclude).map_err(|e| Failure::usage(format!("not a pattern: {e}")))?;
    let key = args.manifest_prefix.as_deref().map(|prefix| manifest_key(prefix, &args.manifest)).transpose()?;
    let read = read_manifest(&args.manifest, &args.content.store)?;
    let has_patterns = !args.include.is_empty() || !args.exclude.is_empty();
    if has_patterns && !global.quiet && !read.manifest.entries().any(|(path, _)| filter.wants(&path.to_listing())) {
        say_that_nothing_fits(Path::new(&args.manifest));
    }
    open::manifest::expect_store(cas, &args.content.store)?;
    let root = SourceArgs {
        source: args.root.clone(),
        password: args.password.clone(),
        data: DataArgs::default(),
        cas: CasArgs { cache_dir: args.cache_dir.clone(), ..CasArgs::default() },
    };
    let (place, opened) = open::source(&root, global, Purpose::Read)?;
    interrupt::watch_telling("what is stored stays, and the same command goes on from there");
    let tree = Tree::new(&*opened.store);
    let (store, advice) = (&args.content.store, &opened.advice);
    let (filter, cache_dir, verify, json) = (&filter, args.cache_dir.as_deref(), args.verify, args.json);
    let verb = "upload";
    let bringing = Bringing { tree: &tree, root: b"/", cas, store, filter, cache_dir, verify, advice, json, verb };
    let Brought { uploaded, failed, finished } = bringing.bring(&read.manifest, &mut HashSet::new(), global)?;
    let mut told = describe(&uploaded);
    told["failures"] = failed.into_json();
    told["failed"] = uploaded.failed.into();
    if finished.is_err() && !args.json && !global.quiet {
        eprintln!("adit: upload: {}, {} failed", words(&uploaded), counted(uploaded.failed, "file"));
    }
    finished.map_err(|failure| ended(&told, failure, args.json))?;
    if let Some(key) = &key {
        store_manifest(args, &read, key, &asset_root(&args.root, &place)?, cas)?;
        told["manifest_key"] = key.as_str().into();
    }
    if args.json {
        let mut out = Output::new();
        out.json(&told)?;
        return out.finish();
    }
    if !global.quiet {
        eprintln!("adit: upload: {}", words(&uploaded));
        if let Some(key) = &key {
            eprintln!("adit: upload: the manifest is {}/{key}", cas.display().to_string().trim_end_matches('/'));
        }
    }
    Ok(())
}

/// The key of a manifest in the folder `prefix` of manifests.
fn manifest_key(prefix: &str, manifest: &OsStr) -> Result<String> {
    let name = Path::new(crate::source::without_prefix(manifest)).file_name().and_then(OsStr::to_str);
    let name = name.ok_or_else(|| Failure::usage(format!("{}: its file name is no text", manifest.display())))?;
    key_at(prefix, name)
}

/// The key of the manifest `name` in the folder `prefix`.
pub(super) fn key_at(prefix: &str, name: &str) -> Result<String> {
    named_key(prefix, name).map_err(|e| {
        let why = e.cause().map_or_else(|| e.to_string(), ToString::to_string);
        Failure::usage(format!("Manifests/{prefix}/{name}: cannot be the key of a manifest: {why}"))
            .hint("--manifest-prefix is one or more names, as in farm-1/queue-1/edits")
    })
}

/// The folder that the paths of the manifest are below: as it was named, for that is how others know it.
fn asset_root(named: &OsStr, place: &Path) -> Result<AssetRoot> {
    if !matches!(Source::recognise(named)?, Source::Dir(_)) {
        return Ok(AssetRoot::new(place.as_os_str().as_bytes(), None));
    }
    let named = Path::new(crate::source::without_prefix(named));
    let absolute = std::path::absolute(named).map_err(|e| Failure::io(named.display(), &e))?;
    // Without `.` and slashes that mean nothing.
    let absolute: PathBuf = absolute.components().collect();
    Ok(AssetRoot::new(absolute.as_os_str().as_bytes(), None))
}

/// Stores the manifest itself, as it is, with its root. All of its content is there.
fn store_manifest(args: &ManifestUploadArgs, read: &Read, key: &str, root: &AssetRoot, cas: &OsStr) -> Result<()> {
    let file = Path::new(crate::source::without_prefix(&args.manifest));
    let text = if is_url(file) {
        let document = open::manifest::document(file, &args.content.store)?;
        let mut text = Vec::new();
        let all = document.open().and_then(|mut stream| stream.read_to_end(&mut text));
        all.map(|_| text)
    } else {
        std::fs::read(file)
    };
    let text = text.map_err(|e| Failure::io(file.display(), &e))?;
    if ContentHash::of(&text) != read.hash {
        let what = format!("{}: it changed meanwhile; it was not stored", file.display());
        return Err(Failure::new(Code::Failure, what).hint("start the upload again"));
    }
    let metadata = root.metadata();
    let metadata: Vec<(&str, &str)> = metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let objects = open::manifest::objects(cas, &args.content.store)?;
    let stored = objects.put(key, Content::Bytes(&text), &PutOptions { if_absent: false, metadata: &metadata });
    stored.map(|_| ()).map_err(|e| Failure::fs(cas.display(), &e))
}

/// A store that content is to go to, and where that is read.
pub(super) struct Bringing<'a> {
    pub tree: &'a Tree<'a>,
    /// The folder in `tree` that the paths of the manifest are below.
    pub root: &'a [u8],
    pub cas: &'a OsStr,
    pub store: &'a StoreArgs,
    /// What of the manifest is wanted.
    pub filter: &'a Filter,
    /// Where it is noted what goes in parts; none: where everything is kept.
    pub cache_dir: Option<&'a Path>,
    /// What the store has already is compared with its hash.
    pub verify: bool,
    /// About the tree.
    pub advice: &'a Advice,
    /// Whether programs are to be told which files failed.
    pub json: bool,
    /// The command that does it, for people.
    pub verb: &'static str,
}

/// What became of that.
pub(super) struct Brought {
    pub uploaded: Uploaded,
    /// Files that could not be read, or are not what the manifest says.
    pub failed: Failed,
    /// Said already, if there are such.
    pub finished: Result<()>,
}

impl Bringing<'_> {
    /// Brings the content of `manifest` into the store. Hashes of what is there then are in `there`, also if not all of it is.
    ///
    /// # Errors
    /// Those of the store. What is wrong with a file, is in what is returned.
    pub fn bring(&self, manifest: &Manifest, there: &mut HashSet<ContentHash>, global: &GlobalArgs) -> Result<Brought> {
        let objects = open::manifest::objects_to_fill(self.cas, self.store, self.cache_dir)?;
        let keys = DataKeys::default();
        let (filter, verify) = (self.filter, self.verify);
        let options = UploadOptions { objects: &*objects, keys: &keys, filter, threads: THREADS, verify };
        let total = all_bytes(manifest, filter);
        let mut progress = Progress::new(self.verb, global.quiet).of_bytes(total).advising(self.advice).folding();
        let (mut count, mut at_once, mut failed) = (0, 0, Failed::new(self.json));
        let mut so_far = Uploaded::default();
        let root = self.root.strip_suffix(b"/").unwrap_or(self.root);
        let uploaded = store_content(self.tree, root, manifest, &options, &mut |event| {
            match event {
                UploadEvent::Object { hash, len_bytes, present } => {
                    there.insert(hash);
                    count += 1;
                    at_once += if present { len_bytes } else { 0 };
                    let sum = if present { &mut so_far.present } else { &mut so_far.stored };
                    *sum = (sum.0 + 1, sum.1 + len_bytes);
                }
                UploadEvent::Failed { path, error } => {
                    failed.add(path, error);
                    progress.failed_with(error);
                }
                UploadEvent::Unverified { path, hash, error } => {
                    there.insert(hash);
                    failed.add(path, error);
                    let failure = Failure::new(Code::ProblemsFound, format!("{}: {error}", show(path)));
                    progress.failed_as(&reason(error), &failure);
                }
                UploadEvent::Read(bytes) => progress.reached_of(count, bytes + at_once, at_once),
            }
            if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let finished = progress.finish();
        interrupt::obey();
        let uploaded = uploaded.map_err(|e| {
            if count > 0 && !self.json && !global.quiet {
                eprintln!("adit: {}: {}, and then it ended", self.verb, words(&so_far));
            }
            let failure = Advice::about_manifests().failure(self.cas.display(), &e);
            match failure.code() {
                Code::Network => failure.hint("what was stored so far is not sent again when it is started again"),
                _ => failure,
            }
        })?;
        // What was gone on with is complete; other parts nobody would ever use, and they cost.
        if let Err(e) = objects.give_up_left() {
            tracing::info!("{e}");
        }
        Ok(Brought { uploaded, failed, finished })
    }
}

/// Bytes of all objects that the files of a manifest need that are wanted, each once.
fn all_bytes(manifest: &Manifest, filter: &Filter) -> u64 {
    let mut known = HashSet::new();
    let mut bytes: u64 = 0;
    for (path, body) in manifest.entries() {
        let Body::File(file) = body else { continue };
        if !filter.wants(&path.to_listing()) {
            continue;
        }
        let hashes = file.content.hashes();
        let one = if hashes.len() == 1 { file.size_bytes } else { CHUNK_LEN_BYTES };
        for (at, hash) in (0..).zip(hashes) {
            if known.insert(*hash) {
                bytes = bytes.saturating_add(one.min(file.size_bytes - at * one));
            }
        }
    }
    bytes
}

/// What was stored, for programs.
pub(super) fn describe(uploaded: &Uploaded) -> Value {
    json!({
        "stored": uploaded.stored.0,
        "stored_bytes": uploaded.stored.1,
        "present": uploaded.present.0,
        "present_bytes": uploaded.present.1,
        "replaced": uploaded.replaced.0,
        "replaced_bytes": uploaded.replaced.1,
    })
}

/// The same for people.
pub(super) fn words(uploaded: &Uploaded) -> String {
    let (stored, present) = (uploaded.stored, uploaded.present);
    let mut text = format!("{} stored ({})", counted(stored.0, "object"), show_size(stored.1));
    if uploaded.replaced.0 > 0 {
        text += &format!(", {} of them in the place of wrong ones", uploaded.replaced.0);
    }
    text + &format!(", {} there already", present.0)
}
