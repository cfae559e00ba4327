//! `manifest commit`: what was changed on a writable mount of a manifest goes to the store, with a manifest of it.
//!
//! The process of the mount shows a state of it that stands still ([`mount::volume::commit`](crate::commands::mount::volume::commit));
//! this process reads, hashes and stores, so that an end of it is the end of the work. The manifest is written last.

mod lost;
mod place;
mod told;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::Path;

use adit_core::media::Objects;
use adit_core::overlay::{FileVersion, Fresh};
use adit_core::path::{Last, Tree, show, transfer};
use adit_core::types::{Ino, Kind, Timestamp};
use adit_index::Segment;
use adit_manifest::cas::DataKeys;
use adit_manifest::commit::{Changed, ChangedOptions, Looked, Touched, changed, look, whole};
use adit_manifest::format::{Body, ContentHash, EntryPath, FormatError, Manifest, Rule};
use adit_manifest::snapshot::Event;
use adit_manifest::store::Identity;
use adit_mount::control::{MountInfo, Registry};
use serde_json::{Value, json};

use self::lost::Lost;
use self::place::Places;
use self::told::Told;
use super::{scan, upload};
use crate::args::low::GlobalArgs;
use crate::args::manifest::CasArgs;
use crate::args::manifest_commit::ManifestCommitArgs;
use crate::commands::mount::answered;
use crate::commands::mount::volume::commit::{self as process, About};
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::open::mounted::Private;
use crate::output::add_name;
use crate::progress::Progress;
use crate::{interrupt, open};

/// Requests to the store that only ask, at a time.
const THREADS: usize = 16;

/// `adit manifest commit`
pub(super) fn commit(args: &ManifestCommitArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(output) = &args.output {
        super::only_one_on_output(output, args.json)?;
    }
    let mount = mounted(&args.mountpoint)?;
    let about = process::about(&mount)?;
    if let Some(output) = &args.output {
        // What is mounted is what the commit is told against.
        super::check_output(output, &[about.manifest().as_os_str()])?;
    }
    let own = about.cas();
    let given = CasArgs { cas: args.cas.clone(), store: args.store.clone(), ..CasArgs::default() };
    let cas = open::manifest::settled(&given.or(own.clone()), &about.manifest())?;
    let Some(url) = cas.cas.clone() else {
        return Err(Failure::usage("where the content is to go is not known").hint("name the store with --cas"));
    };
    // Where it was asked for, it is looked at first: nobody hashes for an hour to hear of a typing error.
    let places = Places::of(args, &mount, &about, &url)?;
    let objects = open::manifest::objects(&url, &cas.store)?;
    open::manifest::expect_store(&url, &cas.store)?;
    let segment = parent(&about, &own, global)?;
    places.refuse_mounted(&objects, &segment)?;
    interrupt::watch();
    let began = Timestamp::now();
    let frozen = Private::by(|dir, lock| process::begin(&mount, dir, lock))?;
    let info = frozen.info()?;
    let count = process::touched(&info)?;
    let touched = touched(frozen.told()?, count, began)?;
    let store = frozen.store()?;
    let tree = Tree::new(&*store);
    let mut unread = Vec::new();
    let hashed = hash(&segment, &tree, &touched, &about, &mut unread, args, global);
    let (changed, scanned) = hashed.inspect_err(|_| give_up(&info, &tree, &unread))?;
    let mut lost = Lost::beside(&changed);
    changes(frozen.told()?).try_for_each(|change| change.map(|change| lost.count(&change, &changed, &tree)))?;
    let mut told = Told::of(&changed.manifest, &segment, scanned, lost, args)?;
    // One of an earlier commit in this place says what is not so any more.
    if told.is_nothing() && !args.full && !places.have_one(&*objects) {
        return told.nothing(args, global);
    }
    let differing = files_of(&changed.manifest);
    let manifest = match args.full {
        true => whole(&segment, &changed.manifest).map_err(|e| open::manifest::failure(&about.manifest(), &e))?,
        false => changed.manifest,
    };
    if args.dry_run {
        let looked = in_store(&manifest, &*objects, &url, global)?;
        told.would_go(&manifest, &looked, &places)?;
        return told.print(args, global);
    }
    let Some(encoded) = told.encode(&manifest)? else { return told.nothing(args, global) };
    process::uploading(&info, &versions(&tree, differing.iter().map(|(path, _)| path)))?;
    let (mut there, advice) = (HashSet::new(), Advice::about_manifests());
    let store = &cas.store;
    let bringing = upload::Bringing { tree: &tree, root: b"", cas: &url, store, verify: false, advice: &advice };
    let done = bringing.bring(&manifest, &mut there, global).and_then(|sent| {
        told.uploaded(&sent);
        places.write(&manifest, &encoded, &*objects, &mut told)
    });
    if done.is_err() {
        let is_lacking = |(_, hashes): &&(Vec<u8>, Vec<ContentHash>)| hashes.iter().any(|hash| !there.contains(hash));
        let lacking: Vec<Vec<u8>> = differing.iter().filter(is_lacking).map(|(path, _)| path.clone()).collect();
        give_up(&info, &tree, &lacking);
    } else if let Err(failure) = process::end(&info, true) {
        // It is only for who asks how files fare.
        tracing::info!("{}", failure.text());
    }
    done.and_then(|()| told.print(args, global))
}

/// Tells the process that these files could not be brought to the store. It is only for who asks how they fare.
fn give_up(info: &MountInfo, tree: &Tree<'_>, files: &[Vec<u8>]) {
    let told = process::failed(info, &versions(tree, files)).and_then(|()| process::end(info, false));
    if let Err(failure) = told {
        tracing::info!("{}", failure.text());
    }
}

/// The versions of the files that are in a manifest of `tree`, as far as they are files there.
fn versions<'p>(tree: &Tree<'_>, files: impl IntoIterator<Item = &'p Vec<u8>>) -> Vec<FileVersion> {
    let found = files.into_iter().filter_map(|path| tree.resolve(path, Last::Keep).ok());
    found.filter(|node| node.kind() == Kind::File).map(|node| FileVersion::of(node.attr())).collect()
}

/// The files in a manifest, with the objects that they are made of.
fn files_of(manifest: &Manifest) -> Vec<(Vec<u8>, Vec<ContentHash>)> {
    let file = |(path, body): (&EntryPath<'_>, &Body<'_>)| match body {
        Body::File(file) => Some((path.to_listing().into_owned(), file.content.hashes().to_vec())),
        _ => None,
    };
    manifest.entries().filter_map(file).collect()
}

/// The writable mount at `path`.
fn mounted(path: &Path) -> Result<MountInfo> {
    let mount = Registry::of_this_user().find(path).map_err(|e| answered(&e))?;
    if mount.kind == "overlay" {
        return Ok(mount);
    }
    let failure = Failure::new(
        Code::NotSupported,
        format!("{}: a mount of a {}, where nothing can be committed", path.display(), mount.kind),
    );
    Err(match mount.kind.as_str() {
        "manifest" => failure.hint("it cannot be changed; mount it with --writable"),
        _ => failure.hint("`adit manifest snapshot SOURCE -o FILE --cas URL` makes a manifest of any source"),
    })
}

/// The index of the manifest that is mounted.
fn parent(about: &About, cas: &CasArgs, global: &GlobalArgs) -> Result<Segment> {
    let file = about.manifest();
    let segment = open::manifest::index(&file, cas, global.quiet)?;
    let identity = Identity::of(&segment).map_err(|e| open::manifest::failure(&file, &e))?;
    if identity.hash.to_string() == about.hash {
        return Ok(segment);
    }
    let what =
        format!("{}: it is not the manifest that is mounted any more, whose hash is {}", file.display(), about.hash);
    Err(Failure::new(Code::Failure, what).hint("put that one back; the commit is told against it"))
}

/// The changes that the process told, one on each line.
fn changes(told: impl BufRead) -> impl Iterator<Item = Result<Value>> {
    told.lines().map(|line| {
        let line = line.map_err(|e| Failure::io("what the process of the mount told", &e))?;
        serde_json::from_str(&line).map_err(|_| broken())
    })
}

/// What it told is not what it should.
fn broken() -> Failure {
    Failure::new(Code::Failure, "the process of the mount answers in a way that is not known")
        .hint("it may be of another version of adit: unmount it, and mount it again")
}

/// What the process told of where its tree may differ: a change on each of `count` lines.
fn touched(told: impl BufRead, count: u64, began: Timestamp) -> Result<Touched> {
    let mut touched = Touched { began, ..Touched::default() };
    let mut read = 0;
    for change in changes(told) {
        let change = change?;
        read += 1;
        // What lies in it is told by itself, and of itself a manifest has nothing.
        if change["kind"] == "directory" && change["change"] == "attributes" {
            continue;
        }
        for field in ["path", "from"] {
            let Some(path) = name(&change, field) else { continue };
            touched.paths.push(path.strip_prefix(b"/").unwrap_or(&path).to_vec());
        }
        let fresh = &change["fresh"];
        if fresh.is_null() {
            continue;
        }
        let (ino, len) = fresh["ino"].as_u64().zip(fresh["len"].as_u64()).ok_or_else(broken)?;
        let mut ranges = Vec::new();
        for range in fresh["ranges"].as_array().ok_or_else(broken)? {
            ranges.push(range[0].as_u64().zip(range[1].as_u64()).map(|(start, end)| start..end).ok_or_else(broken)?);
        }
        touched.copies.push(Fresh { ino: Ino(ino), len, ranges });
    }
    if read == count { Ok(touched) } else { Err(broken()) }
}

/// A name of an object of JSON, as [`add_name`] put it there.
fn name(object: &Value, field: &str) -> Option<Vec<u8>> {
    let Some(raw) = object[format!("{field}_raw")].as_array() else {
        return object[field].as_str().map(|text| text.as_bytes().to_vec());
    };
    raw.iter().map(|byte| byte.as_u64()?.try_into().ok()).collect()
}

/// What was learnt while the tree was hashed.
#[derive(Default)]
pub(super) struct Scanned {
    known_files: u64,
    hashed_bytes: u64,
    left_out: Vec<Value>,
}

/// Hashes what changed. The paths of what could not be read are in `unread`.
fn hash(
    segment: &Segment,
    tree: &Tree<'_>,
    touched: &Touched,
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
    let mut progress = Progress::new("commit", global.quiet).advising(&Advice::about_manifests()).folding();
    let mut scanned = Scanned::default();
    let found = changed(segment, tree, touched, &options, &mut |event| {
        match event {
            Event::File { path, known, .. } => {
                scanned.known_files += u64::from(known);
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
                progress.failed_with(error);
            }
        }
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let finished = progress.finish();
    interrupt::obey();
    let found = found.map_err(|e| Advice::about_manifests().failure(args.mountpoint.display(), &e))?;
    finished?;
    debug_assert_eq!(found.failed, 0, "each was told, and ends the display with a failure");
    Ok((found, scanned))
}

/// What the store has of `manifest` already.
fn in_store(manifest: &Manifest, objects: &dyn Objects, url: &OsStr, global: &GlobalArgs) -> Result<Looked> {
    let mut progress = Progress::new("commit", global.quiet);
    let looked = look(manifest, objects, &DataKeys::default(), THREADS, &mut |looked| {
        progress.reached(looked.present.0 + looked.missing.0, looked.present.1 + looked.missing.1);
        if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let finished = progress.finish();
    interrupt::obey();
    let looked = looked.map_err(|e| Failure::fs(url.display(), &e))?;
    finished.map(|()| looked)
}

/// Whether a manifest of 2023 could not be written because no file would be in it.
fn has_no_entries(e: &adit_core::FsError) -> bool {
    FormatError::of(e).is_some_and(|e| e.rule == Rule::NoEntries)
}
