//! Where the manifest of a commit goes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use adit_core::FsError;
use adit_core::media::{Content, Objects, PutOptions, check_user_metadata};
use adit_core::types::Timestamp;
use adit_manifest::format::{ContentHash, Manifest};
use adit_manifest::layout::{AssetRoot, MANIFESTS_FOLDER, Metadata, OutputPlace, named_key, output_key};
use adit_mount::control::MountInfo;

use super::told::{Encoded, Told};
use crate::args::manifest_commit::ManifestCommitArgs;
use crate::commands::mount::volume::commit::About;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};

/// Where those go in the folder of manifests that nobody names a place for, and whose parent does not lie in the store.
const COMMITS: &str = "commits";
/// Keys of a listing that are got at once.
const PAGE: usize = 1000;

/// A place in the store.
enum InStore {
    /// This key.
    Key(String),
    /// In the folder (farm, queue, job, step, perhaps task) that the official tools look through for outputs: each time another one in it.
    Output { folder: String, session_action: String, root: AssetRoot },
}

/// Where a manifest goes.
pub struct Places {
    file: Option<PathBuf>,
    in_store: Option<InStore>,
    metadata: Metadata,
    /// The root of the store.
    root: String,
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
        let in_store = match (&args.task_output, &args.session_action) {
            (Some(folder), Some(action)) => Some(InStore::Output {
                folder: folder.trim_matches('/').to_owned(),
                session_action: action.clone(),
                root: asset_root,
            }),
            _ if args.output.is_some() && args.manifest_prefix.is_none() && args.manifest_name.is_none() => None,
            _ => {
                let prefix = args.manifest_prefix.clone().unwrap_or_else(|| match &mounted {
                    // Beside it.
                    Some(key) => key.rsplit_once('/').map_or_else(String::new, |(folder, _)| folder.to_owned()),
                    None => format!("{COMMITS}/{}", about.hash),
                });
                let name = args.manifest_name.clone().unwrap_or_else(|| output_name(&asset_root));
                Some(InStore::Key(named_key(&prefix, &name).map_err(unusable)?))
            }
        };
        let key = in_store.as_ref().map(|place| place.key(0)).transpose()?;
        if key.is_some() && key == mounted.map(|key| format!("{MANIFESTS_FOLDER}/{key}")) {
            let what = format!("{}: it is the manifest that is mounted", key.unwrap_or_default());
            return Err(Failure::usage(what).hint("name another place with --manifest-prefix or --manifest-name"));
        }
        Ok(Places { file: args.output.clone(), in_store, metadata, root })
    }

    /// Whether a manifest lies in one of them, as far as that can be told.
    pub fn have_one(&self, objects: &dyn Objects) -> bool {
        let is_file = |file: &PathBuf| file.as_os_str() != super::super::STANDARD_STREAM && file.exists();
        let in_store = || self.in_store.as_ref().and_then(|place| place.latest(objects));
        self.file.as_ref().is_some_and(is_file) || in_store().is_some_and(|key| objects.head(&key).is_ok())
    }

    /// Writes `manifest` to all of them, where it is not there already. Its data is in the store.
    ///
    /// # Errors
    /// Those of the store and of the host.
    pub fn write(&self, manifest: &Manifest, encoded: &Encoded, objects: &dyn Objects, told: &mut Told) -> Result<()> {
        if let Some(place) = &self.in_store {
            let key = match place.latest(objects).filter(|key| is_there(objects, key, encoded)) {
                Some(key) => {
                    told.is_at(&self.url(&key), false);
                    None
                }
                None => Some(place.key(now())?),
            };
            if let Some(key) = key {
                let options = PutOptions { if_absent: false, metadata: &pairs(&self.metadata) };
                objects.put(&key, Content::Bytes(&encoded.text), &options).map_err(|e| {
                    let failure = Failure::fs(self.url(&key), &e);
                    match failure.code() {
                        Code::Network => failure.hint("all of its data is there: start the commit again"),
                        _ => failure,
                    }
                })?;
                told.is_at(&self.url(&key), true);
            }
        }
        if let Some(file) = &self.file {
            let is_stream = file.as_os_str() == super::super::STANDARD_STREAM;
            let same = !is_stream && std::fs::read(file).is_ok_and(|found| found == encoded.text);
            if !same {
                super::super::write(manifest, encoded.format, file)?;
            }
            if is_stream {
                told.is_on_output();
            } else {
                told.is_at(&file.display().to_string(), !same);
            }
        }
        Ok(())
    }

    /// The places, for people; the time of now stands for that of the writing.
    ///
    /// # Errors
    /// None: what no key can be was refused before.
    pub fn show(&self) -> Result<Vec<String>> {
        let in_store = self.in_store.as_ref().map(|place| place.key(now())).transpose()?.map(|key| self.url(&key));
        Ok(in_store.into_iter().chain(self.file.as_ref().map(|file| file.display().to_string())).collect())
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
        let (folder, session_action, root) = match self {
            InStore::Key(key) => return Ok(key.clone()),
            InStore::Output { folder, session_action, root } => (folder, session_action, root),
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
        let place = OutputPlace { farm, queue, job, step, task, action: (micros, session_action) };
        output_key(&place, root).map_err(Failure::usage)
    }

    /// The key of the manifest that is there now, if one is. Who may not list has none.
    fn latest(&self, objects: &dyn Objects) -> Option<String> {
        let (folder, session_action, root) = match self {
            InStore::Key(key) => return Some(key.clone()),
            InStore::Output { folder, session_action, root } => (folder, session_action, root),
        };
        let (prefix, end) =
            (format!("{MANIFESTS_FOLDER}/{folder}/"), format!("_{session_action}/{}", output_name(root)));
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
