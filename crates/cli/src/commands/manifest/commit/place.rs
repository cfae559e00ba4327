//! Where the manifest of a commit goes.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::media::{Content, Objects, PutOptions, Stored, check_user_metadata};
use adit_core::types::Timestamp;
use adit_core::{ErrorKind, FsError};
use adit_index::Segment;
use adit_manifest::cas::ObjectDocument;
use adit_manifest::format::{ContentHash, Format, Manifest};
use adit_manifest::layout::{AssetRoot, MANIFESTS_FOLDER, Metadata, OutputPlace, action_folder, is_output, output_key};
use adit_manifest::store::Identity;
use adit_mount::control::MountInfo;

use super::told::{Encoded, Told};
use crate::args::manifest_commit::ManifestCommitArgs;
use crate::commands::manifest::upload::key_at;
use crate::commands::mount::volume::commit::About;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};

/// Where those go in the folder of manifests that nobody names a place for, and whose parent does not lie in the store.
const COMMITS: &str = "commits";
/// What stands in their names for a session action: this, and which upper was committed.
const OF_UPPER: &str = "upper-";
/// Keys of a listing that are got at once.
const PAGE: usize = 1000;

/// How often another time is tried for the folder of a manifest.
const TRIES: u32 = 3;

/// A place in the store.
enum InStore {
    /// This key.
    Key(String),
    /// Each time another folder in this one, with the time in its name: nobody else's manifest has that place.
    InFolder { folder: Folder, action: String, root: AssetRoot },
}

/// A folder of folders.
enum Folder {
    /// Farm, queue, job, step, perhaps task: the official tools look through it for outputs.
    OfOutputs(String),
    /// Any other one below that of manifests.
    Named(String),
}

/// Where a manifest goes.
pub struct Places {
    file: Option<PathBuf>,
    in_store: Option<InStore>,
    metadata: Metadata,
    /// The root of the store.
    root: String,
    /// Whether another manifest may be replaced.
    replace: bool,
}

impl Places {
    /// What was asked for, checked.
    ///
    /// # Errors
    /// Usage, for what no key or label can be, and for the mounted manifest itself.
    pub fn of(args: &ManifestCommitArgs, mount: &MountInfo, about: &About, url: &OsStr) -> Result<Places> {
        let mountpoint = mount.mountpoint_raw.as_deref().unwrap_or(mount.mountpoint.as_bytes());
        let path = args.asset_root.as_deref().map_or(mountpoint, OsStrExt::as_bytes);
        let asset_root = AssetRoot::new(path, args.file_system_location_name.as_deref());
        let metadata = asset_root.metadata();
        let unusable = |e: FsError| Failure::usage(e);
        check_user_metadata(&pairs(&metadata)).map_err(unusable)?;
        let root = url.to_string_lossy().trim_end_matches('/').to_owned();
        let mounted = mounted_key(about, &root);
        // Beside it; but not among the outputs of a task, which are what that left.
        let beside = mounted.as_deref().filter(|key| !is_output(key)).map(|key| match key.rsplit_once('/') {
            Some((folder, _)) => folder.to_owned(),
            None => String::new(),
        });
        let default_prefix = || beside.clone().unwrap_or_else(|| format!("{COMMITS}/{}", about.hash));
        let is_named = args.manifest_prefix.is_some() || args.manifest_name.is_some();
        let in_store = match (&args.task_output, &args.session_action) {
            (Some(folder), Some(action)) => {
                let folder = Folder::OfOutputs(folder.trim_matches('/').to_owned());
                Some(InStore::InFolder { folder, action: action.clone(), root: asset_root })
            }
            _ if is_named => {
                let prefix = args.manifest_prefix.clone().unwrap_or_else(default_prefix);
                let name = args.manifest_name.clone().unwrap_or_else(|| output_name(&asset_root));
                Some(InStore::Key(key_at(&prefix, &name)?))
            }
            _ if args.output.is_some() => None,
            _ => {
                let (folder, action) = (Folder::Named(default_prefix()), format!("{OF_UPPER}{}", about.upper_id));
                Some(InStore::InFolder { folder, action, root: asset_root })
            }
        };
        if args.replace && !matches!(in_store, Some(InStore::Key(_))) {
            return Err(Failure::usage("--replace is about a place that is named, and none is")
                .hint("leave it out: without --manifest-prefix and --manifest-name nothing is in the way"));
        }
        let key = in_store.as_ref().map(|place| place.key(0)).transpose()?;
        if key.is_some() && key == mounted.map(|key| format!("{MANIFESTS_FOLDER}/{key}")) {
            return Err(is_mounted(&key.unwrap_or_default()));
        }
        Ok(Places { file: args.output.clone(), in_store, metadata, root, replace: args.replace })
    }

    /// Refuses the place of a task's outputs for a manifest of 2025, which whoever looks for outputs there cannot read: the manifest behind `segment`
    /// is mounted, and what is written has its version.
    ///
    /// # Errors
    /// Usage, for that.
    pub fn refuse_unread(&self, segment: &Segment) -> Result<()> {
        let Some(InStore::InFolder { folder: Folder::OfOutputs(_), .. }) = &self.in_store else { return Ok(()) };
        let mounted = Identity::of(segment).map_err(|e| Failure::fs(segment.file_path().display(), &e))?;
        if mounted.header.format == Format::V2023 {
            return Ok(());
        }
        let what =
            "--task-output: the mounted manifest is of v2025, and the official download of outputs reads v2023 only";
        Err(Failure::usage(what).hint(
            "leave out --task-output and --session-action: the diff goes to a place of its own; for outputs mount a manifest of \
             v2023 (adit manifest snapshot --format v2023)",
        ))
    }

    /// Refuses a place where the mounted manifest lies, whatever way led there: the manifest behind `segment`.
    ///
    /// # Errors
    /// Usage, for that; those of the store, if it cannot be asked.
    pub fn refuse_mounted(&self, objects: &Arc<dyn Objects>, segment: &Segment) -> Result<()> {
        let Some(InStore::Key(key)) = &self.in_store else { return Ok(()) };
        let failed = |e: FsError| Failure::fs(self.url(key), &e);
        let mounted = Identity::of(segment).map_err(failed)?;
        match ObjectDocument::open(objects.clone(), key) {
            Ok(found) if found.info().len == mounted.len_bytes => {
                match found.hash().map_err(|e| Failure::io(self.url(key), &e))? == mounted.hash {
                    true => Err(is_mounted(key)),
                    false => Ok(()),
                }
            }
            Ok(_) => Ok(()),
            // Not everybody who may write may read.
            Err(e) if e.is_not_found() || e.kind() == ErrorKind::PermissionDenied => Ok(()),
            Err(e) => Err(failed(e)),
        }
    }

    /// Those of them in which something lies already, as far as that can be told.
    pub fn taken(&self, objects: &dyn Objects) -> Vec<String> {
        let is_file = |file: &&PathBuf| !is_stream(file) && file.exists();
        let file = self.file.as_ref().filter(is_file).map(|file| file.display().to_string());
        let key = self.in_store.as_ref().and_then(|place| place.latest(objects));
        let in_store = key.filter(|key| objects.head(key).is_ok()).map(|key| self.url(&key));
        in_store.into_iter().chain(file).collect()
    }

    /// The manifests that lie in them, as far as they can be read.
    pub fn earlier(&self, objects: &Arc<dyn Objects>) -> Vec<Manifest> {
        let in_store = self.in_store.as_ref().and_then(|place| place.latest(&**objects));
        let in_store = in_store.and_then(|key| ObjectDocument::open(objects.clone(), &key).ok());
        let file = self.file.as_ref().and_then(|file| File::open(file).ok());
        let read = [in_store.map(|document| Manifest::read(&document)), file.map(|file| Manifest::read(&file))];
        // What is no manifest tells nothing that is not so.
        read.into_iter().flatten().filter_map(|read| Some(read.ok()?.0)).collect()
    }

    /// Writes `manifest` to all of them, where it is not there already. Its data is in the store.
    ///
    /// # Errors
    /// Those of the store and of the host.
    pub fn write(&self, manifest: &Manifest, encoded: &Encoded, objects: &dyn Objects, told: &mut Told) -> Result<()> {
        if let Some(place) = &self.in_store {
            let (key, written) = self.store(place, encoded, objects)?;
            told.is_at(&self.url(&key), written);
        }
        if let Some(file) = &self.file {
            let same = !is_stream(file) && has_it(file, encoded);
            if !same {
                super::super::write(manifest, encoded.format, file)?;
            }
            if is_stream(file) {
                told.is_on_output();
            } else {
                told.is_at(&file.display().to_string(), !same);
            }
        }
        Ok(())
    }

    /// Stores it at a place, unless it is there: under which key, and whether that was done now.
    fn store(&self, place: &InStore, encoded: &Encoded, objects: &dyn Objects) -> Result<(String, bool)> {
        if let Some(key) = place.latest(objects).filter(|key| is_there(objects, key, encoded)) {
            return Ok((key, false));
        }
        let options = PutOptions { if_absent: !self.replace, metadata: &pairs(&self.metadata) };
        for _ in 0..TRIES {
            let key = place.key(now())?;
            let stored = objects.put(&key, Content::Bytes(&encoded.text), &options).map_err(|e| {
                let failure = Failure::fs(self.url(&key), &e);
                match failure.code() {
                    Code::Network => failure.hint("all of its data is there: start the commit again"),
                    _ => failure,
                }
            })?;
            match (stored, place) {
                (Stored::New(_), _) => return Ok((key, true)),
                // It was stored, and the answer lost.
                (Stored::AlreadyThere { .. }, _) if is_there(objects, &key, encoded) => return Ok((key, true)),
                (Stored::AlreadyThere { .. }, InStore::Key(_)) => break,
                // At the same moment somebody else did this.
                (Stored::AlreadyThere { .. }, InStore::InFolder { .. }) => {}
            }
        }
        let what = format!(
            "{}: another manifest is there, and stays; all data of this one is stored",
            self.url(&place.key(now())?)
        );
        Err(Failure::new(Code::Failure, what)
            .hint("name another place with --manifest-prefix or --manifest-name, or say --replace"))
    }

    /// The places, and whether a commit would write to each: where the same manifest lies already it would not. The time of now stands for that of the writing.
    ///
    /// # Errors
    /// None: what no key can be was refused before.
    pub fn show(&self, encoded: &Encoded, objects: &dyn Objects) -> Result<Vec<(String, bool)>> {
        let mut shown = Vec::new();
        if let Some(place) = &self.in_store {
            let there = place.latest(objects).filter(|key| is_there(objects, key, encoded));
            let is_new = there.is_none();
            let key = there.map_or_else(|| place.key(now()), Ok)?;
            shown.push((self.url(&key), is_new));
        }
        if let Some(file) = &self.file {
            shown.push(match is_stream(file) {
                true => ("standard output".to_owned(), true),
                false => (file.display().to_string(), !has_it(file, encoded)),
            });
        }
        Ok(shown)
    }

    fn url(&self, key: &str) -> String {
        format!("{}/{key}", self.root)
    }
}

impl InStore {
    /// Its key, if it is written so many microseconds after 1970.
    ///
    /// # Errors
    /// Usage, for ids that cannot be in a key.
    fn key(&self, micros: i64) -> Result<String> {
        let (folder, action, root) = match self {
            InStore::Key(key) => return Ok(key.clone()),
            InStore::InFolder { folder, action, root } => (folder, action, root),
        };
        let folder = match folder {
            Folder::OfOutputs(folder) => folder,
            Folder::Named(prefix) => {
                let folder = format!("{prefix}/{}", action_folder(micros, action));
                return key_at(&folder, &output_name(root));
            }
        };
        let parts: Vec<&str> = folder.split('/').collect();
        let (farm, queue, job, step, task) = match parts[..] {
            [farm, queue, job, step] => (farm, queue, job, step, None),
            [farm, queue, job, step, task] => (farm, queue, job, step, Some(task)),
            _ => {
                let what = format!("--task-output {folder}: FARM/QUEUE/JOB/STEP/TASK, or without TASK, are expected");
                return Err(Failure::usage(what));
            }
        };
        let place = OutputPlace { farm, queue, job, step, task, action: (micros, action) };
        output_key(&place, root).map_err(Failure::usage)
    }

    /// The key of the manifest that is there now, if one is. Who may not list has none.
    fn latest(&self, objects: &dyn Objects) -> Option<String> {
        let (folder, action, root) = match self {
            InStore::Key(key) => return Some(key.clone()),
            InStore::InFolder { folder: Folder::OfOutputs(folder) | Folder::Named(folder), action, root } => {
                (folder, action, root)
            }
        };
        let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let (prefix, end) = (format!("{MANIFESTS_FOLDER}/{folder}"), format!("_{action}/{}", output_name(root)));
        let (mut latest, mut after) = (None, None);
        loop {
            let page = objects.list(&prefix, after.as_deref(), PAGE).ok()?;
            let last = page.objects.last().map(|object| object.key.clone());
            let found = page.objects.into_iter().map(|object| object.key).rfind(|key| key.ends_with(&end));
            latest = found.or(latest);
            if !page.more || last.is_none() {
                return latest;
            }
            after = last;
        }
    }
}

/// Whether standard output is meant.
fn is_stream(file: &Path) -> bool {
    file.as_os_str() == super::super::STANDARD_STREAM
}

/// Whether a file of the host is this manifest.
fn has_it(file: &Path, encoded: &Encoded) -> bool {
    std::fs::read(file).is_ok_and(|found| found == encoded.text)
}

fn is_mounted(key: &str) -> Failure {
    Failure::usage(format!("{key}: it is the manifest that is mounted"))
        .hint("name another place with --manifest-prefix or --manifest-name")
}

/// The name of an output's manifest.
fn output_name(root: &AssetRoot) -> String {
    format!("{}_output", root.hash())
}

fn pairs(metadata: &Metadata) -> Vec<(&str, &str)> {
    metadata.iter().map(|(name, value)| (&name[..], &value[..])).collect()
}

/// The key of the mounted manifest below `Manifests/`, if it lies in the store with this root.
fn mounted_key(about: &About, root: &str) -> Option<String> {
    let place = about.manifest();
    let place = std::str::from_utf8(place.as_os_str().as_bytes()).ok()?;
    Some(place.strip_prefix(root)?.strip_prefix(&format!("/{MANIFESTS_FOLDER}/"))?.to_owned())
}

/// Whether the object at `key` is this manifest. One that cannot be looked at is taken for another one.
fn is_there(objects: &dyn Objects, key: &str, encoded: &Encoded) -> bool {
    let Ok(info) = objects.head(key) else { return false };
    if info.len != encoded.text.len() as u64 {
        return false;
    }
    let mut found = vec![0; encoded.text.len()];
    objects
        .read_at(key, 0, &mut found, info.tag.as_ref())
        .is_ok_and(|fetched| fetched.count == found.len() && ContentHash::of(&found) == encoded.written.hash)
}

/// Now, in microseconds since 1970.
fn now() -> i64 {
    i64::try_from(Timestamp::now().as_nanos() / 1000).unwrap_or(i64::MAX)
}
