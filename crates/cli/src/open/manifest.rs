//! Opening a manifest: its index, which is built once, the cache of what is fetched of its objects, and the store they come from.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use adit_core::media::{Objects, Withheld};
use adit_core::path::this_process;
use adit_core::{ErrorKind, FsError};
use adit_index::{NodeId, Segment};
use adit_manifest::cache::{Cache, CacheOptions, Fetch, ObjectId, Watch};
use adit_manifest::cas::{DataKeys, ObjectDocument, ObjectSource};
use adit_manifest::format::{Body, ContentHash, FormatError, Manifest};
use adit_manifest::store::{Building, Identity, ManifestStore, Segments, SegmentsOptions, StoreOptions};
use adit_media::KeptFolder;
use adit_media::objects::{FolderObjects, Notice, ObjectsOptions, Owner, open_objects_for};
use parking_lot::Mutex;
use serde_json::Value;

use crate::args::low::GlobalArgs;
use crate::args::manifest::{CasArgs, StoreArgs, TransferArgs};
use crate::args::mount_options::MEMORY_DEFAULT_BYTES;
use crate::args::units::show_size;
use crate::commands::mount::overlay::place::cache_dir;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::interrupt;
use crate::logging;
use crate::progress::Progress;
use crate::source::{expect_no_secret, is_url};

/// Indexes of manifests, in the cache directory.
const INDEXES_DIR: &str = "indexes";
/// What was fetched, in the cache directory.
const OBJECTS_DIR: &str = "objects";
/// What is being stored in parts, in the cache directory.
const UPLOADS_DIR: &str = "uploads";
/// The objects of a store, in its root.
const DATA_DIR: &str = "Data";
/// What stands between the root of a store and a manifest in it.
const MANIFESTS: &str = "/Manifests/";
/// Among so many nodes one with an object is looked for, to ask the store for it.
const FIRST_NODES: u32 = 10_000;
/// Most bytes of one object's parts that are on their way at a time: they are in memory.
const PARTS_LEN_MAX_BYTES: u64 = 2 << 30;
/// Objects of which a store is asked whether it has them, to tell whether it is the right one.
const ASKED_MAX: usize = 3;
/// The same where the store does not say of those whether they are there.
const WITHHELD_ASKED_MAX: usize = 32;
/// How often a store is asked by who can do without its answer.
const HURRIED_TRIES: u32 = 3;
/// Parts of the process's memory: for checksums of objects that the cache has no room for, and for bytes of long fetches that came out of
/// order.
const SUMS_SHARE: u64 = 16;
const PARTS_SHARE: u64 = 8;
/// There is a thread that fetches ahead for each so many bytes of memory. It takes some 1 MiB of them.
const AHEAD_THREAD_LEN_BYTES: u64 = 16 << 20;
const AHEAD_THREADS_MIN: usize = 2;
const AHEAD_THREADS_MAX: usize = 16;
/// Most that is made free for an index, which has some 100 bytes for an entry, in bytes.
const INDEX_ROOM_BYTES: u64 = 1 << 30;
/// How often as long as for an answer is waited for a call with all its tries.
const TRIES_DEADLINE: u32 = 3;

/// `args` without anything that is relative to a folder, and with the store that a URL of the manifest tells.
///
/// # Errors
/// Usage, if the manifest's URL cannot be one; the host's.
pub fn settled(args: &CasArgs, manifest: &Path) -> Result<CasArgs> {
    if is_url(manifest) {
        place_of(manifest)?;
    }
    args.cas.as_deref().map_or(Ok(()), |cas| not_empty(cas).and_then(|()| expect_no_secret(cas)))?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e));
    let cas = match &args.cas {
        Some(cas) if is_url(Path::new(cas)) => Some(cas.clone()),
        Some(cas) => Some(absolute(Path::new(cas))?.into()),
        None => root_of(manifest).map(OsString::from),
    };
    let given = args.cache_dir.as_deref().map(absolute).transpose()?;
    let own = given.as_deref().map(|given| cache_dir(Some(given))).transpose()?;
    if let (Some(given), Some(own)) = (&given, &own)
        && given != own
    {
        super::remark(&format!("{}: another user's; the cache directory is {}", given.display(), own.display()));
    }
    let mut store = args.store.clone();
    store.webdav_password_file = store.webdav_password_file.as_deref().map(absolute).transpose()?;
    Ok(CasArgs { cas, cache_dir: own, store, ..args.clone() })
}

fn not_empty(cas: &OsStr) -> Result<()> {
    match cas.is_empty() {
        true => Err(Failure::usage("--cas is empty")
            .hint("name s3://BUCKET/PREFIX, davs://HOST/PATH or a folder, the one above Data/")),
        false => Ok(()),
    }
}

/// The root of the store in which a manifest with this URL lies, in the official layout.
pub fn root_of(manifest: &Path) -> Option<&str> {
    let url = manifest.to_str().filter(|_| is_url(manifest))?;
    url.find(MANIFESTS).map(|at| &url[..at])
}

/// The tree of the manifest in `file`. Its index is built if there is none, with progress unless `quiet`. `args` are
/// [settled](settled).
///
/// # Errors
/// Those of the manifest, which is checked whole when its index is built; of the cache directory; of the store, as far as they show before it is
/// asked for anything.
pub fn store(file: &Path, args: &CasArgs, quiet: bool) -> Result<ManifestStore> {
    logging::about_manifests();
    watched_store(file, args, quiet, MEMORY_DEFAULT_BYTES, None)
}

/// The same for a process that takes at most `memory_bytes`, with somebody who is told of objects whose content turned out to be wrong.
///
/// # Errors
/// As [`store`].
pub fn watched_store(
    file: &Path,
    args: &CasArgs,
    quiet: bool,
    memory_bytes: u64,
    watch: Option<Arc<dyn Watch>>,
) -> Result<ManifestStore> {
    let fetch: Arc<dyn Fetch> = match args.cas.as_deref() {
        None => Arc::new(Nowhere),
        // It may come back, and what is in the cache can be read until then.
        Some(cas) if !is_url(Path::new(cas)) && !Path::new(cas).is_dir() => Arc::new(Absent::new(Path::new(cas))),
        Some(cas) => {
            let (objects, parts) = (objects(cas, &args.store)?, memory_bytes / PARTS_SHARE);
            Arc::new(ObjectSource::within(objects, DataKeys::default(), parts))
        }
    };
    let segment = index(file, args, quiet)?;
    let dir = objects_dir(args)?;
    // Whoever deletes the cache beneath a mount has a new one made.
    let host = KeptFolder::open(&dir).map_err(|e| of_cache_dir(Failure::io(dir.display(), &e)))?;
    let defaults = CacheOptions::default();
    let options = CacheOptions {
        limit_bytes: args.cache_size.unwrap_or(u64::MAX),
        block_len: args.cache_block.unwrap_or(defaults.block_len),
        strict: args.strict,
        verify_first_bytes: args.verify_first.unwrap_or(defaults.verify_first_bytes),
        memory_bytes: memory_bytes / SUMS_SHARE,
        watch,
        // Whoever fetches gives up first, and says why.
        patience: defaults.patience.max(deadline(&args.store).saturating_mul(2)),
        ..defaults
    };
    let cache = Cache::open(Arc::new(host), options).map_err(|e| of_cache_dir(Failure::fs(dir.display(), &e)))?;
    let owner = this_process();
    let threads = usize::try_from(memory_bytes / AHEAD_THREAD_LEN_BYTES).unwrap_or(AHEAD_THREADS_MAX);
    let read_ahead_threads = threads.clamp(AHEAD_THREADS_MIN, AHEAD_THREADS_MAX);
    let options = StoreOptions { read_ahead_threads, ..StoreOptions::owned_by(owner.uid, owner.gid) };
    ManifestStore::new(segment, Arc::new(cache), fetch, options).map_err(|e| Failure::fs(file.display(), &e))
}

/// Asks the store whether it answers at all, so that a mount of one that does not is refused. Whether it has the objects is seen when they
/// are read. Of one that cannot be reached only a remark is made if there is something to be read without it: content in the cache, or what was
/// changed on a mount before (`has_changes`). Each read of anything else asks it again.
///
/// # Errors
/// `Network`, `PermissionDenied` and the like; that the bucket or the folder is not there. Of what is no store only a remark is made.
pub fn expect_answers(file: &Path, args: &CasArgs, store: &ManifestStore, has_changes: bool) -> Result<()> {
    let Some(cas) = args.cas.as_deref() else { return Ok(()) };
    let (place, nodes) = (Path::new(cas), (0..store.segment().len().min(FIRST_NODES)).map(NodeId));
    let mut hashes = nodes.filter_map(|id| store.segment().hash(id).ok().flatten()).map(ContentHash).peekable();
    // Nothing is missed where there should be nothing.
    let has_content = hashes.peek().is_some();
    let can_do_without = has_changes || store.has_cached(FIRST_NODES);
    let (is_another, failure) = if is_url(place) {
        match asked(cas, (&args.store, can_do_without), hashes, lies_in(file, cas)) {
            Ok(Answer::NoStore) if has_content => (true, no_object(cas)),
            Ok(_) => return Ok(()),
            Err(failure) => (false, failure),
        }
    } else {
        match hashes.next().map_or(Ok(()), |_| expect_data(cas)) {
            Ok(()) => return Ok(()),
            Err(failure) => (place.is_dir(), failure),
        }
    };
    let is_away = if is_url(place) { failure.code() == Code::Network } else { !is_another };
    let is_mounted = is_another || (is_away && can_do_without);
    if !is_mounted {
        return Err(failure);
    }
    let goes_on = "it is mounted all the same: what is in the cache can be read, and for the rest it is asked again";
    super::remark(&format!("{}\n  {goes_on}", failure.text()));
    Ok(())
}

/// What is where a store should be.
enum Answer {
    /// One, as far as it shows.
    Store,
    /// Nothing like it: another bucket or prefix was meant.
    NoStore,
}

/// The answer of a server to a caller that asks for one of these objects, and for any. `knows_store` says that something else was read there; a caller that
/// can do without an answer does not wait for long.
fn asked(
    cas: &OsStr,
    (args, can_do_without): (&StoreArgs, bool),
    hashes: impl Iterator<Item = ContentHash>,
    knows_store: bool,
) -> Result<Answer> {
    let failed = |e: FsError| Failure::fs(cas.display(), &e);
    let objects = if can_do_without { hurried(cas, args)? } else { objects(cas, args)? };
    match seen(&*objects, hashes, 1).map_err(failed)? {
        Seen::One => return Ok(Answer::Store),
        Seen::Withheld(e) => return if knows_store { Ok(Answer::Store) } else { Err(failed(e)) },
        Seen::Nothing => {}
    }
    // The object is missing, or all of them, or the bucket. Not everybody who may read may list.
    match objects.list(&format!("{DATA_DIR}/"), None, 1) {
        Ok(page) if page.objects.is_empty() => Ok(Answer::NoStore),
        Err(e) if e.kind() != ErrorKind::PermissionDenied => Err(failed(e)),
        _ => Ok(Answer::Store),
    }
}

/// What a store shows of objects that it should have.
enum Seen {
    One,
    Nothing,
    /// It does not say whether any of them is there.
    Withheld(FsError),
}

/// Looks for one of the objects with these hashes: for so many of those that are told to be missing, and for more where the store does not tell.
fn seen(
    objects: &dyn Objects,
    hashes: impl Iterator<Item = ContentHash>,
    missing_max: usize,
) -> adit_core::Result<Seen> {
    let (keys, mut withheld, mut missing) = (DataKeys::default(), None, 0);
    for hash in hashes.take(WITHHELD_ASKED_MAX) {
        let key = keys.key(&hash);
        match objects.head(&key) {
            Ok(_) => return Ok(Seen::One),
            Err(e) if e.is_not_found() => {
                missing += 1;
                if missing == missing_max {
                    break;
                }
            }
            Err(e) if Withheld::is_behind(&e) => {
                // An answer to HEAD does not tell credentials that are wrong from an object that is.
                if withheld.is_none()
                    && let Err(e) = objects.read_at(&key, 0, &mut [0], None)
                    && !Withheld::is_behind(&e)
                {
                    return Err(e);
                }
                // It is where an older program has put it.
                if objects.head(&keys.bare_key(&hash)).is_ok() {
                    return Ok(Seen::One);
                }
                withheld.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(withheld.map_or(Seen::Nothing, Seen::Withheld))
}

/// Whether the manifest with this name lies in the store at `cas`, so that who has read it may read there.
pub fn lies_in(manifest: &Path, cas: &OsStr) -> bool {
    let trimmed = cas.to_str().map(|cas| cas.trim_end_matches('/'));
    root_of(manifest).is_some_and(|root| Some(root.trim_end_matches('/')) == trimmed)
}

/// Refuses a folder of this machine that is no store, from which something is to be read: another one was meant, and each read of it would fail.
///
/// # Errors
/// That it has no folder of data.
pub fn expect_data(cas: &OsStr) -> Result<()> {
    let place = Path::new(cas);
    if is_url(place) || place.join(DATA_DIR).is_dir() {
        return Ok(());
    }
    let what = match place.is_dir() {
        true => format!("{}: not a store: it has no folder {DATA_DIR}", cas.display()),
        false => format!("{}: there is no such folder", cas.display()),
    };
    Err(Failure::new(Code::Failure, what).hint("--cas names the folder above Data/"))
}

/// Asks whether a store has anything like the content of `manifest`, from which all of it is to be read: of another bucket or prefix, or with
/// other credentials, each object would be told to be missing. `knows_store` is for who has read something else there.
///
/// # Errors
/// That it is none; those of the store.
pub fn expect_content(cas: &OsStr, args: &StoreArgs, manifest: &Manifest, knows_store: bool) -> Result<()> {
    let files = || {
        manifest.entries().filter_map(|(_, body)| match body {
            Body::File(file) => file.content.hashes().first().copied(),
            _ => None,
        })
    };
    if files().next().is_none() {
        return Ok(());
    }
    if !is_url(Path::new(cas)) {
        return expect_data(cas);
    }
    let failed = |e: FsError| Failure::fs(cas.display(), &e);
    let objects = objects(cas, args)?;
    // From all over it: what is beside each other came together, and may be missing together.
    let step = (files().count() / WITHHELD_ASKED_MAX).max(1);
    let refused = match seen(&*objects, files().step_by(step), ASKED_MAX).map_err(failed)? {
        Seen::One => return Ok(()),
        Seen::Withheld(_) if knows_store => return Ok(()),
        Seen::Withheld(e) => Some(e),
        Seen::Nothing => None,
    };
    match objects.list(&format!("{DATA_DIR}/"), None, 1) {
        Ok(page) if page.objects.is_empty() => Err(no_object(cas)),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => refused.map_or(Ok(()), |e| Err(failed(e))),
        Err(e) => Err(failed(e)),
        Ok(_) => Ok(()),
    }
}

/// The objects of a store that is read without any manifest: as a listing tells them.
///
/// # Errors
/// That it is none; those of the store.
pub fn listed_objects(cas: &OsStr, args: &StoreArgs) -> Result<Arc<dyn Objects>> {
    expect_data(cas)?;
    let objects = objects(cas, args)?;
    match objects.list(&format!("{DATA_DIR}/"), None, 1) {
        Ok(page) if page.objects.is_empty() => Err(no_object(cas)),
        Ok(_) => Ok(objects),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(Failure::fs(cas.display(), &e)
            .hint("without a manifest a store is listed, and these credentials may not do that: name a manifest, or use others")),
        Err(e) => Err(Failure::fs(cas.display(), &e)),
    }
}

fn no_object(cas: &OsStr) -> Failure {
    let what = format!("{}: not a store: there is no object below {DATA_DIR}/ in it", cas.display());
    Failure::new(Code::Failure, what)
        .hint("--cas names what is above Data/: s3://BUCKET/PREFIX, davs://HOST/PATH, or a folder of this machine")
}

/// Asks whether a store answers that is written to much later.
///
/// # Errors
/// `Network` and the like; that the bucket or the folder is not there.
pub fn expect_store(cas: &OsStr, args: &StoreArgs) -> Result<()> {
    match objects(cas, args)?.list("", None, 1) {
        // Not everybody who may write may list.
        Err(e) if e.kind() != ErrorKind::PermissionDenied => Err(Failure::fs(cas.display(), &e)),
        _ => Ok(()),
    }
}

/// Builds the index of the manifest in `file`, if there is none, and leaves no threads behind: a process that forks later can have
/// none.
///
/// It returns the hash of the manifest.
///
/// # Errors
/// As [`store`].
pub fn index_apart(file: &Path, args: &CasArgs, global: &GlobalArgs) -> Result<String> {
    if !is_url(file) {
        let segment = index(file, args, global.quiet)?;
        return Ok(Identity::of(&segment).map_err(|e| Failure::fs(file.display(), &e))?.hash.to_string());
    }
    // What speaks to a server has threads.
    let program = std::env::current_exe().map_err(|e| Failure::io("adit", &e))?;
    let mut command = Command::new(program);
    command.args(["manifest", "index"]).arg(file).args(arguments(args)?);
    command.args(global.quiet.then_some("--quiet"));
    command.args(std::iter::repeat_n("-v", global.verbose.into()));
    let ran = command.arg("--json").stderr(Stdio::inherit()).output().map_err(|e| Failure::io("adit", &e))?;
    let told: Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
    match (ran.status.code(), told["xxh128"].as_str()) {
        (Some(0), Some(hash)) => Ok(hash.to_owned()),
        (Some(code @ 1..=255), _) => Err(Failure::said(Code::from_number(code as u8))),
        _ => Err(Failure::new(Code::Failure, format!("{}: its index was not built: {}", file.display(), ran.status))),
    }
}

/// What `args` were on the command line of `manifest index`.
fn arguments(args: &CasArgs) -> Result<Vec<OsString>> {
    let CasArgs { cas: _, cache_dir, cache_size: _, cache_block: _, strict: _, verify_first: _, store } = args;
    let StoreArgs {
        endpoint_url,
        region,
        profile,
        path_style,
        no_sign_request,
        request_payer,
        webdav_user,
        webdav_password_file,
        connect_timeout,
        request_timeout,
        store_timeout,
        transfer,
    } = store;
    // It only reads.
    let TransferArgs { requests, part_size: _, parts: _ } = transfer;
    let mut all: Vec<OsString> = Vec::new();
    let mut pair = |name: &str, value: Option<OsString>| all.extend(value.into_iter().flat_map(|v| [name.into(), v]));
    let duration = |duration: &Option<Duration>| duration.map(|d| format!("{}ms", d.as_millis()).into());
    pair("--cache-dir", cache_dir.clone().map(PathBuf::into_os_string));
    pair("--endpoint-url", endpoint_url.clone().map(OsString::from));
    pair("--region", region.clone().map(OsString::from));
    pair("--profile", profile.clone().map(OsString::from));
    pair("--webdav-user", webdav_user.clone().map(OsString::from));
    pair("--webdav-password-file", webdav_password_file.clone().map(PathBuf::into_os_string));
    pair("--connect-timeout", duration(connect_timeout));
    pair("--request-timeout", duration(request_timeout));
    pair("--store-timeout", duration(store_timeout));
    pair("--requests", requests.map(|count| count.to_string().into()));
    all.extend(path_style.then(|| "--path-style".into()));
    all.extend(no_sign_request.then(|| "--no-sign-request".into()));
    all.extend(request_payer.then(|| "--request-payer".into()));
    Ok(all)
}

/// The index of the manifest in `file`, or at that URL.
///
/// # Errors
/// As [`store`].
pub fn index(file: &Path, args: &CasArgs, quiet: bool) -> Result<Segment> {
    match built_index(file, args, quiet) {
        // It lies on the same disk as what was fetched, which can be fetched again.
        Err(failure) if failure.code() == Code::NoSpace && make_room(args, INDEX_ROOM_BYTES) => {
            built_index(file, args, quiet)
        }
        result => result,
    }
}

/// Removes objects from the cache until so many bytes of its disk are free, as far as there are such. Whether there were.
fn make_room(args: &CasArgs, bytes: u64) -> bool {
    let Some(host) = objects_place(args).ok().and_then(|dir| KeptFolder::open(&dir).ok()) else { return false };
    // A process that forks later can have no threads.
    let limit_bytes = args.cache_size.unwrap_or(u64::MAX);
    let options = CacheOptions { limit_bytes, workers: 0, ..CacheOptions::default() };
    // To open it can have made room already.
    Cache::open(Arc::new(host), options).is_ok_and(|cache| cache.make_room_for(bytes) || cache.stats().evictions > 0)
}

fn built_index(file: &Path, args: &CasArgs, quiet: bool) -> Result<Segment> {
    let dir = made(&cache_dir(args.cache_dir.as_deref())?)?.join(INDEXES_DIR);
    let opened = Segments::open(&dir, SegmentsOptions::default());
    let segments = opened.map_err(|e| {
        let failure = of_cache_dir(Failure::fs(dir.display(), &e));
        if e.kind() == ErrorKind::PermissionDenied { of_another(&dir, failure) } else { failure }
    })?;
    let mut progress = Progress::new("manifest", quiet);
    let mut is_told = false;
    let mut report = |building| {
        match building {
            Building::Read { done_bytes, total_bytes } => progress.read_of(done_bytes, total_bytes),
            Building::Elsewhere if !std::mem::replace(&mut is_told, true) && !quiet => {
                eprintln!("adit: {}: another process builds its index", file.display());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    };
    let segment = if is_url(file) {
        let (mut objects, name) = manifest_in_store(file, &args.store)?;
        let place = [objects.describe().as_bytes(), b"\0", name.as_bytes()].concat();
        if segments.last_at(&place).is_some() {
            objects = hurried(OsStr::new(place_of(file)?.0), &args.store)?;
        }
        match ObjectDocument::open(objects, name).map(|document| kept_in(&dir, document)) {
            Ok(document) => match document.origin() {
                Some(origin) => {
                    let segment = segments.of_origin(&origin, &document, &mut report);
                    segment.inspect(|_| segments.note_last(&place, &origin))
                }
                None => segments.build_own(&document, &mut report),
            },
            Err(e) => match segments.last_at(&place).filter(|_| Code::of(e.kind()) == Code::Network) {
                Some(segment) => {
                    let goes_on = "it is taken for what it was when it was looked at last";
                    super::remark(&format!("{}\n  {goes_on}", failure(file, &e).text()));
                    Ok(segment)
                }
                None => Err(e),
            },
        }
    } else {
        let opened = File::open(file).map_err(|e| Failure::io(file.display(), &e))?;
        segments.of_file(&opened, &mut report)
    };
    progress.finish()?;
    segment.map_err(|e| failure(file, &e))
}

/// It is read more than once, and fetched once, if the folder has room for it.
fn kept_in(dir: &Path, document: ObjectDocument) -> ObjectDocument {
    match tempfile::tempfile_in(dir) {
        Ok(file) => document.keeping_in(file),
        Err(_) => document,
    }
}

/// An index that `write` puts into a new file of this path in the cache directory. It is there for this process alone.
///
/// # Errors
/// Those of the cache directory; what `write` says.
pub fn index_of_copy(args: &CasArgs, write: impl FnOnce(&Path) -> Result<()>) -> Result<Segment> {
    let dir = made(&cache_dir(args.cache_dir.as_deref())?)?.join(INDEXES_DIR);
    let failed = |e: FsError| of_cache_dir(Failure::fs(dir.display(), &e));
    let segments = Segments::open(&dir, SegmentsOptions::default()).map_err(failed)?;
    let mut refused = None;
    let copied = segments.of_copy(|to| {
        write(to).map_err(|failure| {
            refused = Some(failure);
            FsError::new(ErrorKind::Io)
        })
    });
    copied.map_err(|e| refused.unwrap_or_else(|| failed(e)))
}

/// What an error of the manifest in `file` is to the user.
pub fn failure(file: &Path, e: &FsError) -> Failure {
    match FormatError::of(e) {
        Some(why) => Failure::new(Code::of(e.kind()), format!("{}: {why}", file.display()))
            .hint("get it again from where it was made; a manifest that breaks a rule is not read in part"),
        None => Advice::about_manifests().failure(file.display(), e),
    }
}

/// The folder and the name in the URL of a manifest.
fn place_of(url: &Path) -> Result<(&str, &str)> {
    expect_no_secret(url.as_os_str())?;
    let parts = url.to_str().and_then(|text| text.rsplit_once('/'));
    parts.filter(|(root, name)| !root.ends_with('/') && !name.is_empty()).ok_or_else(|| {
        Failure::usage(format!("{}: names a store, and no manifest in it", url.display()))
            .hint("write it as s3://BUCKET/PREFIX/Manifests/… or davs://HOST/PATH/Manifests/…")
    })
}

/// The manifest at a URL.
///
/// # Errors
/// Usage, if the URL cannot be that of a manifest; those of the store.
pub fn document(url: &Path, args: &StoreArgs) -> Result<ObjectDocument> {
    let (objects, name) = manifest_in_store(url, args)?;
    ObjectDocument::open(objects, name).map_err(|e| failure(url, &e))
}

/// The store, and the key in it, of the manifest at a URL. Nothing is asked for yet.
fn manifest_in_store<'u>(url: &'u Path, args: &StoreArgs) -> Result<(Arc<dyn Objects>, &'u str)> {
    let (root, name) = place_of(url)?;
    Ok((objects(OsStr::new(root), args)?, name))
}

/// The object store that `url` names.
///
/// # Errors
/// Usage, if it makes no sense; of a folder, that it is not there. A server is not asked for anything yet.
pub fn objects(url: &OsStr, args: &StoreArgs) -> Result<Arc<dyn Objects>> {
    objects_with(url, args, ObjectsOptions::default().tries_max, None)
}

/// The same, to store much: what is stored in parts is noted in the cache directory, which may be `given`, so that the next run goes on with it.
///
/// # Errors
/// As [`objects`].
pub fn objects_to_fill(url: &OsStr, args: &StoreArgs, given: Option<&Path>) -> Result<Arc<dyn Objects>> {
    // Without one each begins anew.
    let uploads = cache_dir(given).ok().map(|dir| dir.join(UPLOADS_DIR));
    objects_with(url, args, ObjectsOptions::default().tries_max, uploads.as_deref())
}

/// The same, for who waits for an answer and can do without.
fn hurried(url: &OsStr, args: &StoreArgs) -> Result<Arc<dyn Objects>> {
    objects_with(url, args, HURRIED_TRIES, None)
}

fn objects_with(url: &OsStr, args: &StoreArgs, tries_max: u32, uploads: Option<&Path>) -> Result<Arc<dyn Objects>> {
    not_empty(url)?;
    expect_no_secret(url)?;
    let failed = |e: FsError| {
        let failure = Failure::fs(url.display(), &e);
        if e.kind() == ErrorKind::InvalidInput { Failure::usage(failure.message()) } else { failure }
    };
    // A path need not be text.
    if !is_url(Path::new(url)) {
        return Ok(Arc::new(FolderObjects::open(Path::new(url)).map_err(failed)?));
    }
    let text = url.to_str().ok_or_else(|| Failure::usage(format!("{}: not a URL, which is text", url.display())))?;
    let times = [args.connect_timeout, args.request_timeout, args.store_timeout];
    for (name, given) in ["connect-timeout", "request-timeout", "store-timeout"].into_iter().zip(times) {
        if given.is_some_and(|time| time.is_zero()) {
            return Err(
                Failure::usage(format!("--{name}: nothing answers within no time")).hint("leave it out, or say 20s")
            );
        }
    }
    let defaults = ObjectsOptions::default();
    let options = ObjectsOptions {
        endpoint: args.endpoint_url.clone(),
        region: args.region.clone(),
        profile: args.profile.clone(),
        path_style: args.path_style.then_some(true),
        anonymous: args.no_sign_request,
        request_payer: args.request_payer,
        webdav_user: args.webdav_user.clone(),
        webdav_password_file: args.webdav_password_file.clone(),
        connect_timeout: args.connect_timeout.unwrap_or(defaults.connect_timeout),
        answer_timeout: answer_timeout(args),
        deadline: deadline(args),
        tries_max,
        requests_at_once_max: args.transfer.requests.map_or(defaults.requests_at_once_max, usize::from),
        part_len_bytes: args.transfer.part_size.map_or(defaults.part_len_bytes, |bytes| bytes as usize),
        parts_at_once_max: args.transfer.parts.map_or(defaults.parts_at_once_max, usize::from),
        ..defaults
    };
    let in_memory = (options.part_len_bytes as u64).saturating_mul(options.parts_at_once_max as u64);
    if in_memory > PARTS_LEN_MAX_BYTES {
        let what =
            format!("--part-size and --parts: {} of one object would be in memory at a time", show_size(in_memory));
        return Err(Failure::usage(what)
            .hint(format!("{} are the most: make one of them smaller", show_size(PARTS_LEN_MAX_BYTES))));
    }
    let notice = Notice(super::remark);
    let owner = Owner { cancel: interrupt::calls().clone(), uploads: uploads.map(Path::to_owned), notice };
    open_objects_for(text, &options, &owner).map_err(failed)
}

/// Longest time without an answer.
fn answer_timeout(args: &StoreArgs) -> Duration {
    args.request_timeout.unwrap_or(ObjectsOptions::default().answer_timeout)
}

/// Longest time of a call with all its tries.
fn deadline(args: &StoreArgs) -> Duration {
    args.store_timeout.unwrap_or_else(|| answer_timeout(args).saturating_mul(TRIES_DEADLINE))
}

/// The folder of what was fetched, which is made if it is not there.
///
/// # Errors
/// Usage, if nothing says where it is; the host's.
pub fn objects_dir(args: &CasArgs) -> Result<PathBuf> {
    made(&objects_place(args)?)
}

/// The same, which need not be there.
///
/// # Errors
/// Usage, if nothing says where it is; the host's.
pub fn objects_place(args: &CasArgs) -> Result<PathBuf> {
    Ok(cache_dir(args.cache_dir.as_deref())?.join(OBJECTS_DIR))
}

/// The folder `dir`, made for this user alone if it is not there.
fn made(dir: &Path) -> Result<PathBuf> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map(|()| dir.to_owned()).map_err(|e| {
        let failure = of_cache_dir(Failure::io(dir.display(), &e));
        if e.kind() == io::ErrorKind::PermissionDenied { of_another(dir, failure) } else { failure }
    })
}

/// A failure to make something in a cache directory that is another user's.
fn of_another(dir: &Path, failure: Failure) -> Failure {
    let there = dir.ancestors().find_map(|above| Some((above, above.symlink_metadata().ok()?)));
    match there.filter(|(_, meta)| meta.uid() != rustix::process::geteuid().as_raw()) {
        Some((above, meta)) => failure.hint(format!(
            "{} belongs to the user with the number {}: name another one with --cache-dir, or have all users write to it (chmod 1777), \
             where each gets a part for itself",
            above.display(),
            meta.uid()
        )),
        None => failure,
    }
}

/// A failure of the cache directory, which can be another one; but for a full disk, which needs room.
fn of_cache_dir(failure: Failure) -> Failure {
    match failure.code() {
        Code::NoSpace => failure,
        _ => failure.on("the cache directory").hint("name another one with --cache-dir"),
    }
}

/// A folder that is not there: what is in the cache can be read, and whoever wants more looks again.
struct Absent {
    folder: PathBuf,
    found: Mutex<Option<Arc<ObjectSource>>>,
}

impl Absent {
    fn new(folder: &Path) -> Absent {
        Absent { folder: folder.to_owned(), found: Mutex::default() }
    }

    fn found(&self) -> adit_core::Result<Arc<ObjectSource>> {
        let mut found = self.found.lock();
        if let Some(source) = &*found {
            return Ok(source.clone());
        }
        // It is the content that is missing, and no file.
        let failed = |e: FsError| FsError::new(ErrorKind::Io).on("read objects", self.folder.display()).because(e);
        let objects = FolderObjects::open(&self.folder).map_err(failed)?;
        Ok(found.insert(Arc::new(ObjectSource::new(Arc::new(objects), DataKeys::default()))).clone())
    }
}

impl Fetch for Absent {
    fn fetch(
        &self,
        id: &ObjectId,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> adit_core::Result<()>,
    ) -> adit_core::Result<()> {
        self.found()?.fetch(id, range, sink)
    }
}

/// There is no store: what is in the cache can be read.
struct Nowhere;

impl Fetch for Nowhere {
    fn fetch(
        &self,
        id: &ObjectId,
        _: Range<u64>,
        _: &mut dyn FnMut(&[u8]) -> adit_core::Result<()>,
    ) -> adit_core::Result<()> {
        Err(FsError::new(ErrorKind::Io).on("read object", id).because("no store was named; say --cas URL"))
    }
}
