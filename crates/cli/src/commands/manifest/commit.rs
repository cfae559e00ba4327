//! `manifest commit`: what was changed on a writable mount of a manifest goes to the store, with a manifest of it.
//!
//! The process of the mount shows a state of it that stands still ([`mount::volume::commit`](crate::commands::mount::volume::commit));
//! this process reads, hashes and stores, so that an end of it is the end of the work. The manifest is written last.

mod hashing;
mod lost;
mod place;
mod state;
mod told;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_core::FsError;
use adit_core::media::Objects;
use adit_core::path::Tree;
use adit_index::Segment;
use adit_manifest::cas::DataKeys;
use adit_manifest::commit::{Changed, Looked, TryEvent, as_it_was, look, try_lacking, whole};
use adit_manifest::format::{Body, ContentHash, EntryPath, FormatError, Manifest, Rule};
use adit_manifest::snapshot::{Filter, Names};
use adit_manifest::store::{Identity, ListedNames};
use adit_mount::control::{MountInfo, Registry};

use self::hashing::{Scanned, hash};
use self::lost::Lost;
use self::place::Places;
use self::state::{Frozen, name};
use self::told::{Encoded, Told};
use super::failed::Failed;
use super::upload;
use crate::args::low::GlobalArgs;
use crate::args::manifest::CasArgs;
use crate::args::manifest_commit::ManifestCommitArgs;
use crate::commands::mount::answered;
use crate::commands::mount::volume::commit::{self as process, About};
use crate::commands::transfer;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::progress::Progress;
use crate::{interrupt, open};

/// What a signal leaves.
const INTERRUPTED: &str = "what is stored stays, and the next commit goes on from there";
/// What it is called where single files fail.
const VERB: &str = "commit";
/// Requests to the store that only ask, at a time.
const THREADS: usize = 16;

/// `adit manifest commit`
pub(super) fn commit(args: &ManifestCommitArgs, global: &GlobalArgs) -> Result<()> {
    let target = Target::of(args, global)?;
    interrupt::watch_telling(INTERRUPTED);
    commit_of(&target, args, global).map_err(|failure| unless_it_died(failure, &target.mount, &args.mountpoint))
}

fn commit_of(target: &Target, args: &ManifestCommitArgs, global: &GlobalArgs) -> Result<()> {
    let frozen = Frozen::of(&target.mount)?;
    let store = frozen.store()?;
    let tree = Tree::new(&*store);
    let (changed, mut told, unlisted) = target.look(&frozen, &tree, args, global)?;
    let differing = files_of(&changed.manifest);
    // All that was looked at: the content of files that are not listed is the parent's.
    let all = || differing.iter().map(|(path, _)| path).chain(&unlisted);
    let nothing = |told: Told| {
        if !args.dry_run {
            frozen.uploading(&tree, all())?;
            frozen.is_committed();
        }
        told.nothing(args, global)
    };
    let Some(manifest) = target.to_write(changed.manifest, &mut told, args)? else { return nothing(told) };
    if args.full {
        told.is_whole(&manifest);
    }
    if args.dry_run {
        let looked = in_store(&manifest, &*target.objects, &target.url, global)?;
        let (failed, tried) = target.try_lacking(&manifest, &looked, &tree, args, global)?;
        told.would_go(&manifest, &looked, failed, &target.places, &*target.objects)?;
        return told.print(args, global).and(tried);
    }
    let Some(encoded) = told.encode(&manifest)? else { return nothing(told) };
    frozen.uploading(&tree, all())?;
    let mut there = HashSet::new();
    match target.bring(&tree, (&manifest, &encoded), &mut there, &mut told, (args.json, global)) {
        Ok(()) => {
            frozen.is_committed();
            told.print(args, global)
        }
        Err(failure) => {
            let is_lacking =
                |(_, hashes): &&(Vec<u8>, Vec<ContentHash>)| hashes.iter().any(|hash| !there.contains(hash));
            let lacking: Vec<Vec<u8>> = differing.iter().filter(is_lacking).map(|(path, _)| path.clone()).collect();
            frozen.give_up(&tree, &lacking);
            Err(told.failed(failure, args))
        }
    }
}

/// What is committed, and where it goes: known before anything is hashed.
struct Target {
    mount: MountInfo,
    about: About,
    /// The store, and how it is reached.
    cas: CasArgs,
    url: OsString,
    objects: Arc<dyn Objects>,
    places: Places,
    /// The index of the manifest that is mounted.
    parent: Segment,
}

impl Target {
    fn of(args: &ManifestCommitArgs, global: &GlobalArgs) -> Result<Target> {
        if let Some(output) = &args.output {
            super::only_one_on_output(output, args.json)?;
        }
        let mount = mounted(&args.mountpoint)?;
        let about = process::about(&mount).map_err(|failure| unless_it_died(failure, &mount, &args.mountpoint))?;
        if let Some(output) = &args.output {
            // What is mounted is what the commit is told against.
            super::check_manifest_output(output, &[about.manifest().as_os_str()])?;
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
        let parent = parent(&mount, &about, &own, global)?;
        if let Some(output) = &args.output {
            refuse_parent(output, &parent)?;
        }
        places.refuse_unread(&parent)?;
        places.refuse_mounted(&objects, &parent)?;
        Ok(Target { mount, about, cas, url, objects, places, parent })
    }

    /// How a state differs from the mounted manifest; with the files that were changed, and have nothing new that is listed.
    fn look(
        &self,
        frozen: &Frozen,
        tree: &Tree<'_>,
        args: &ManifestCommitArgs,
        global: &GlobalArgs,
    ) -> Result<(Changed, Told, Vec<Vec<u8>>)> {
        let mut unread = Vec::new();
        let hashed = hash(&self.parent, tree, frozen, &self.about, &mut unread, args, global)
            .and_then(|(changed, scanned)| scanned.whole(args).map(|scanned| (changed, scanned)));
        let (changed, scanned) = hashed.inspect_err(|_| frozen.give_up(tree, &unread))?;
        let mut lost = Lost::beside(&changed);
        let (names, mut unlisted) = (ListedNames::new(&self.parent), Vec::new());
        for change in frozen.changes()? {
            let change = change?;
            lost.count(&change, &changed, &names, tree);
            if change["kind"] == "file"
                && change["change"] != "removed"
                && let Some(path) = name(&change, "path")
                && let bare = path.strip_prefix(b"/").unwrap_or(&path)
                && names.path(bare).is_ok_and(|entry| changed.manifest.get(&entry).is_none())
            {
                unlisted.push(bare.to_vec());
            }
        }
        let told = Told::of(&changed.manifest, &self.parent, scanned, lost, args)?;
        Ok((changed, told, unlisted))
    }

    /// The manifest that is to be written of `changed`; none if nothing is.
    fn to_write(&self, changed: Manifest, told: &mut Told, args: &ManifestCommitArgs) -> Result<Option<Manifest>> {
        let damaged = |e: FsError| open::manifest::failure(&self.about.manifest(), &e);
        if args.full {
            return whole(&self.parent, &changed).map(Some).map_err(damaged);
        }
        let cannot_be_told = told.cannot_be_told(&changed);
        if !told.is_nothing() && !cannot_be_told {
            return Ok(Some(changed));
        }
        // One of an earlier commit in this place says what is not so any more.
        let taken = self.places.taken(&*self.objects);
        if taken.is_empty() {
            return Ok((!told.is_nothing()).then_some(changed));
        }
        if !cannot_be_told {
            return Ok(Some(changed));
        }
        let same = as_it_was(&self.parent, &changed, &self.places.earlier(&self.objects)).map_err(damaged)?;
        told.tells_instead(&same, &taken)?;
        Ok(Some(same))
    }

    /// Which files a commit would fail to read, of those that need not be read to know their hashes; and whether there are such, which is said already.
    /// Where the content goes to another store than it came from, that one has it, and is not asked for all of it.
    fn try_lacking(
        &self,
        manifest: &Manifest,
        looked: &Looked,
        tree: &Tree<'_>,
        args: &ManifestCommitArgs,
        global: &GlobalArgs,
    ) -> Result<(Failed, Result<()>)> {
        let mut failed = Failed::new(args.json);
        if !self.about.cas().cas.is_some_and(|own| is_same_store(&own, &self.url)) {
            return Ok((failed, Ok(())));
        }
        let mut progress = Progress::new(VERB, global.quiet).advising(&Advice::about_manifests()).folding();
        let mut count = 0;
        let tried = try_lacking(manifest, &self.parent, tree, &looked.lacking, &mut |event| {
            match event {
                TryEvent::File => {
                    count += 1;
                    progress.reached(count, 0);
                }
                TryEvent::Failed { path, error } => {
                    failed.add(path, error);
                    progress.failed_with(error);
                }
            }
            if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let finished = progress.finish();
        interrupt::obey();
        tried.map_err(|e| open::manifest::failure(&self.about.manifest(), &e))?;
        Ok((failed, finished))
    }

    /// Brings the content of a manifest to the store, and then writes it. Hashes of what is there are in `there`.
    fn bring(
        &self,
        tree: &Tree<'_>,
        (manifest, encoded): (&Manifest, &Encoded),
        there: &mut HashSet<ContentHash>,
        told: &mut Told,
        (json, global): (bool, &GlobalArgs),
    ) -> Result<()> {
        let (store, filter, advice) = (&self.cas.store, &Filter::default(), &Advice::about_manifests());
        let (cas, cache_dir) = (&*self.url, self.cas.cache_dir.as_deref());
        let bringing = upload::Bringing {
            tree,
            root: b"",
            cas,
            store,
            filter,
            cache_dir,
            verify: false,
            advice,
            json,
            verb: VERB,
        };
        let brought = bringing.bring(manifest, there, global)?;
        told.brought(&brought.uploaded, brought.failed);
        brought.finished?;
        self.places.write(manifest, encoded, &*self.objects, told)
    }
}

/// Refuses to replace what may be the only copy of the manifest behind `segment`, wherever it was mounted from: without it a diff says nothing.
fn refuse_parent(output: &Path, segment: &Segment) -> Result<()> {
    let mounted = Identity::of(segment).map_err(|e| Failure::fs(segment.file_path().display(), &e))?;
    // To open a pipe is to wait for who reads it.
    let may_be = output.as_os_str() != transfer::STANDARD_STREAM
        && fs::metadata(output).is_ok_and(|meta| meta.is_file() && meta.len() == mounted.len_bytes);
    if !may_be {
        return Ok(());
    }
    let found = File::open(output).and_then(ContentHash::of_stream);
    if found.map_err(|e| Failure::io(output.display(), &e))? != mounted.hash {
        return Ok(());
    }
    let what = format!("{}: it is the manifest that is mounted, and would be replaced", output.display());
    Err(Failure::usage(what).hint("later commits are told against it, and so is a diff: name another file with -o"))
}

/// Whether two names are of one store, as far as they tell.
fn is_same_store(one: &OsStr, other: &OsStr) -> bool {
    let trimmed = |name: &OsStr| name.to_str().map(|name| name.trim_end_matches('/').to_owned());
    let place = |name: &OsStr| fs::canonicalize(name).ok();
    one == other
        || trimmed(one).is_some_and(|one| trimmed(other) == Some(one))
        || place(one).is_some_and(|one| place(other) == Some(one))
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

/// What became of a commit that failed: if the process of the mount has ended meanwhile, that is why.
fn unless_it_died(failure: Failure, mount: &MountInfo, mountpoint: &Path) -> Failure {
    if Registry::of_this_user().find(mountpoint).is_ok_and(|now| now.process() == mount.process()) {
        return failure;
    }
    let at = mountpoint.display();
    Failure::new(Code::Failure, format!("{at}: the process of the mount ended while its changes were committed")).hint(
        format!(
            "nothing is lost: `adit umount {at}`, mount it and commit again; what is stored already is not sent again"
        ),
    )
}

/// The index of the manifest that is mounted: of its file, or, where that has gone, was changed, or cannot be read, what the process of the
/// mount has of it. What was changed is brought home whatever became of the file.
fn parent(mount: &MountInfo, about: &About, cas: &CasArgs, global: &GlobalArgs) -> Result<Segment> {
    let file = about.manifest();
    let is_mounted = |segment: &Segment| Identity::of(segment).is_ok_and(|found| found.hash.to_string() == about.hash);
    let why = match open::manifest::index(&file, cas, global.quiet) {
        Ok(segment) if is_mounted(&segment) => return Ok(segment),
        Ok(_) => format!("{}: it is not the manifest that is mounted any more", file.display()),
        Err(failure) => failure.message().to_owned(),
    };
    match open::manifest::index_of_copy(cas, |to| process::index(mount, to)) {
        Ok(segment) if is_mounted(&segment) => {
            open::remark(&format!("{why}; the commit is told against what the mount has of it"));
            Ok(segment)
        }
        // A process of an earlier version does not know how, and a damaged index helps nobody.
        _ => {
            let what = format!("{why}; the hash of the one that is mounted is {}", about.hash);
            Err(Failure::new(Code::Failure, what).hint("put that one back; the commit is told against it"))
        }
    }
}

/// What the store has of `manifest` already.
fn in_store(manifest: &Manifest, objects: &dyn Objects, url: &OsStr, global: &GlobalArgs) -> Result<Looked> {
    let mut progress = Progress::new(VERB, global.quiet);
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
fn has_no_entries(e: &FsError) -> bool {
    FormatError::of(e).is_some_and(|e| e.rule == Rule::NoEntries)
}
