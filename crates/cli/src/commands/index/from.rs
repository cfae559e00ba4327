//! What an index is made from: a source, opened to be walked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_core::path::{Last, Tree};
use adit_core::types::Kind;
use adit_index::Segment;
use adit_index::scan::{self, Event, Origin, ScanOptions, Sink, SourceKind, StoreRoot};
use adit_index::sealed::SealKey;
use adit_manifest::store::{Identity, each_entry};
use adit_volume::snapshots_dir::SNAPSHOTS_NAME;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use crate::args::low::{GlobalArgs, SourceArgs};
use crate::args::volume::DataArgs;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::open::{self, Opened, Purpose};
use crate::source::Source;
use crate::volume_work::{Asked, Named};
use crate::{open::index as open_index, state_dir};

/// A source that is open.
pub struct From {
    /// What is known of it, for the index.
    pub kind: SourceKind,
    /// Where it is, absolute; or its URL.
    pub place: PathBuf,
    /// What tells that it is as it was; zeros if nothing does.
    pub state: [u8; 16],
    /// The key by which its index is encrypted, if it is.
    pub key: Option<SealKey>,
    /// What to advise about damage in it.
    pub advice: Advice,
    path: Vec<u8>,
    inner: Inner,
}

enum Inner {
    Folder(PathBuf),
    Store(Opened),
    Manifest(Box<Segment>),
}

/// What of a source is wanted.
pub struct Wanted<'a> {
    /// The source, and how it is opened.
    pub source: &'a SourceArgs,
    /// The folder in it.
    pub path: &'a [u8],
    /// The snapshot of it.
    pub snapshot: Option<&'a str>,
}

impl From {
    /// Opens it, to be read.
    ///
    /// # Errors
    /// Those of the kind of source; `NotSupported` for a snapshot of what has none.
    pub fn open(wanted: &Wanted<'_>, global: &GlobalArgs) -> Result<From> {
        let args = wanted.source;
        let source = Source::recognise(&args.source)?;
        open::no_data(&source, args.data.data.as_deref())?;
        open::no_cas(&source, &args.cas)?;
        if wanted.snapshot.is_some() && !matches!(source, Source::Volume(_)) {
            let what = format!("{}: a {} has no snapshots", source.path().display(), source.kind());
            return Err(Failure::new(Code::NotSupported, what).hint("leave out --snapshot"));
        }
        let path = wanted.path.to_vec();
        let from = |kind, place, inner, advice| From { kind, place, state: [0; 16], key: None, advice, path, inner };
        match source {
            Source::Vault(dir) => {
                let (password, keys) = open::vault::password(&dir, &args.password.origin())?;
                drop(password);
                let state = state_dir::locate(global.state_dir.as_deref());
                let opened = open::vault::unlocked(&dir, &keys, state, Purpose::Read, false)?.into();
                let advice = Advice::about_disks(&[&dir]);
                let key = Some(open_index::seal_key(&keys));
                Ok(From { key, ..from(SourceKind::Vault, dir, Inner::Store(opened), advice) })
            }
            Source::Volume(file) => {
                // First: one process has it open once.
                let state = wanted.snapshot.map(|name| snapshot_state(&file, &args.data, name)).transpose()?;
                let (place, opened) = open::source(args, global, Purpose::Read)?;
                let advice = opened.advice.clone();
                let from = from(SourceKind::Volume, place, Inner::Store(opened), advice);
                let (Some(name), Some(state)) = (wanted.snapshot, state) else { return Ok(from) };
                let path = [b"/", SNAPSHOTS_NAME.as_bytes(), b"/", name.as_bytes(), b"/", wanted.path].concat();
                Ok(From { state, path, ..from })
            }
            Source::Manifest(file) => {
                open::no_password(&Source::Manifest(file.clone()), &args.password.origin())?;
                let cas = open::manifest::settled(&args.cas, &file)?;
                let segment = open::manifest::index(&file, &cas, global.quiet)?;
                let identity = Identity::of(&segment).map_err(|e| Failure::fs(segment.file_path().display(), &e))?;
                let inner = Inner::Manifest(Box::new(segment));
                let from = from(SourceKind::Manifest, file, inner, Advice::default());
                Ok(From { state: identity.hash.0, ..from })
            }
            Source::Dir(dir) => {
                open::no_password(&Source::Dir(dir.clone()), &args.password.origin())?;
                let names: Vec<&[u8]> =
                    wanted.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
                if names.contains(&&b".."[..]) {
                    return Err(Failure::usage("--path leads out of the folder"));
                }
                let root = dir.join(OsStr::from_bytes(&names.join(&b'/')));
                let advice = Advice::about_disks(&[&dir]);
                Ok(from(SourceKind::Folder, dir, Inner::Folder(root), advice))
            }
        }
    }

    /// Whether nothing can have changed since an index of it was made.
    pub fn is_as(&self, origin: &Origin) -> bool {
        self.state != [0; 16] && (self.kind, self.state) == (origin.kind, origin.state)
    }

    /// How many entries there are, if all of it is walked and that is known before.
    pub fn entries(&self) -> Option<u64> {
        let Inner::Manifest(segment) = &self.inner else { return None };
        let is_whole = self.path.iter().all(|byte| *byte == b'/');
        let totals = Identity::of(segment).ok().filter(|_| is_whole)?.totals;
        Some(totals.files + totals.directories + totals.symlinks)
    }

    /// Permission bits and time of directories that are there because of what is in them: those of a manifest.
    pub fn implied(&self) -> Option<(u16, i64)> {
        let Inner::Manifest(segment) = &self.inner else { return None };
        Some((0o755, Identity::of(segment).map_or(0, |identity| identity.newest_mtime_ns)))
    }

    /// Walks it. `output` is left out, if that lies in it.
    ///
    /// # Errors
    /// What `sink` says; of the root alone, that it is not there.
    pub fn walk(&self, output: &Path, options: &ScanOptions<'_>, sink: &mut Sink<'_>) -> adit_core::Result<()> {
        match &self.inner {
            Inner::Folder(root) => scan::folder(root, Some(output), options, sink),
            Inner::Store(opened) => {
                let tree = Tree::new(&*opened.store);
                let root = tree.resolve(&self.path, Last::Follow)?;
                if root.kind() != Kind::Directory {
                    return Err(adit_core::ErrorKind::NotDirectory.into());
                }
                scan::store(&StoreRoot { store: &*opened.store, root: *root.attr() }, options, sink)
            }
            Inner::Manifest(segment) => each_entry(segment, &self.path, &mut |entry| {
                let change = options.before.map_or(scan::Change::Added, |before| before.change_at(entry));
                match sink(Event::Entry(*entry, change))? {
                    std::ops::ControlFlow::Continue(()) => Ok(()),
                    std::ops::ControlFlow::Break(()) => Err(adit_core::ErrorKind::Interrupted.into()),
                }
            }),
        }
    }
}

/// What tells a snapshot from any other that had, or will have, its name.
fn snapshot_state(file: &Path, data: &DataArgs, name: &str) -> Result<[u8; 16]> {
    let listed = Named::find(file.as_os_str(), data)?.ask(&Asked::List)?;
    let is_it = |entry: &&Value| entry["branch"] == false && entry["name"] == name;
    let found = listed.as_array().and_then(|list| list.iter().find(is_it)).ok_or_else(|| {
        let hint = format!("`adit snapshot list {}` lists them", file.display());
        Failure::new(Code::Failure, format!("{}: there is no snapshot {name}", file.display())).hint(hint)
    })?;
    let told = ["id", "name", "created", "created_nanos", "origin"].map(|field| found[field].to_string());
    Ok(xxh3_128(told.join("\0").as_bytes()).to_be_bytes())
}
