//! Where manifests lie in a store, under which names, and what is noted beside them: as the official packages have it.
//!
//! [`AssetRoot`] is the folder that the paths of a manifest are below; its hash is in the manifest's name, itself in the object's
//! metadata. Keys are relative to the root of the store, which has `Data/` as well. Nothing here reads or writes.

use std::collections::BTreeMap;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::check_object_key;
use serde::de::DeserializeSeed;

use crate::format::{ContentHash, Text, push_string, wtf8};

/// The folder of manifests below the root of a store.
pub const MANIFESTS_FOLDER: &str = "Manifests";
/// What the name of a manifest of inputs ends with.
const INPUT_SUFFIX: &str = "_input";
/// What the name of a manifest of outputs ends with.
const OUTPUT_SUFFIX: &str = "_output";
/// The parts that the official packages look for in a key: the folder of a step, that of a task, and the name of a manifest of outputs.
const STEP: &str = "step-";
const TASK: &str = "task-";
const OUTPUT: &str = "output";

/// The metadata of a manifest's object: its root, as text or, where that is more than ASCII, as JSON.
const ASSET_ROOT: &str = "asset-root";
/// Its root as JSON, where that is more than ASCII.
const ASSET_ROOT_JSON: &str = "asset-root-json";
/// The file system that the root is on, where one was named.
const LOCATION: &str = "file-system-location-name";

/// User metadata of an object: names and values.
pub type Metadata = Vec<(String, String)>;

/// The folder that the paths of a manifest are below, on the machine where its files lie.
#[derive(Clone, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct AssetRoot {
    path: Vec<u8>,
    location: Option<String>,
}

impl AssetRoot {
    /// The folder at `path`, the host's bytes; on the file system `location`, if it has a name.
    #[must_use]
    pub fn new(path: &[u8], location: Option<&str>) -> Self {
        AssetRoot { path: path.to_vec(), location: location.map(str::to_owned) }
    }

    /// Its path, the host's bytes.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The name of the file system that it is on, if that has one.
    #[must_use]
    pub fn location(&self) -> Option<&str> {
        self.location.as_deref()
    }

    /// What the names of its manifests of outputs begin with: the hash of the location's name and the path.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        ContentHash::of(&[self.location.as_deref().unwrap_or_default().as_bytes(), &self.path].concat())
    }

    /// What is noted at the object of a manifest.
    ///
    /// A path that is more than ASCII is JSON in both fields; so is one that a store would not give back as it is: with control
    /// characters, or with white space at its ends.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        let plain = self.path.iter().all(|byte| (b' '..=b'~').contains(byte)) && self.path.trim_ascii() == self.path;
        let mut metadata = Vec::new();
        match String::from_utf8(self.path.clone()) {
            Ok(path) if plain => metadata.push((ASSET_ROOT.to_owned(), path)),
            _ => {
                let mut json = Vec::new();
                push_string(&mut json, &wtf8::from_host(&self.path));
                // It is ASCII.
                let json = String::from_utf8_lossy(&json).into_owned();
                metadata.push((ASSET_ROOT.to_owned(), json.clone()));
                metadata.push((ASSET_ROOT_JSON.to_owned(), json));
            }
        }
        metadata.extend(self.location.iter().map(|location| (LOCATION.to_owned(), location.clone())));
        metadata
    }

    /// The root that the metadata of a manifest's object tell, if they do.
    ///
    /// # Errors
    /// `Corrupt` for JSON that is none.
    pub fn from_metadata(metadata: &[(String, String)]) -> Result<Option<Self>> {
        let value = |name: &str| metadata.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let path = match (value(ASSET_ROOT_JSON), value(ASSET_ROOT)) {
            (Some(json), _) => {
                let mut text = Vec::new();
                let mut parser = serde_json::Deserializer::from_str(json);
                Text(&mut text).deserialize(&mut parser).and_then(|()| parser.end()).map_err(|e| {
                    FsError::new(ErrorKind::Corrupt).on("read the metadata", ASSET_ROOT_JSON).because(e)
                })?;
                wtf8::to_listing(&text).into_owned()
            }
            (None, Some(path)) => path.as_bytes().to_vec(),
            (None, None) => return Ok(None),
        };
        Ok(Some(AssetRoot { path, location: value(LOCATION).map(str::to_owned) }))
    }
}

/// Whose outputs a manifest has, and when they were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputPlace<'a> {
    /// The farm's id.
    pub farm: &'a str,
    /// The queue's.
    pub queue: &'a str,
    /// The job's.
    pub job: &'a str,
    /// The step's.
    pub step: &'a str,
    /// The task's; none for outputs of a step as a whole.
    pub task: Option<&'a str>,
    /// What made them, in microseconds since 1970, and which session action.
    pub action: (i64, &'a str),
}

/// The key of a manifest of outputs.
///
/// # Errors
/// `InvalidInput` if an id cannot be a part of a key.
pub fn output_key(place: &OutputPlace<'_>, root: &AssetRoot) -> Result<String> {
    let OutputPlace { farm, queue, job, step, task, action: (micros, action) } = *place;
    // It is only a part of a component.
    component(action)?;
    let folder = action_folder(micros, action);
    let parts = [Some(farm), Some(queue), Some(job), Some(step), task, Some(&folder)];
    key(parts.into_iter().flatten(), &format!("{}{OUTPUT_SUFFIX}", root.hash()))
}

/// The key of a manifest of inputs; `id` is any that no other one has, 32 hexadecimal digits in the official tools.
///
/// # Errors
/// `InvalidInput` if an id cannot be a part of a key.
pub fn input_key(farm: &str, queue: &str, id: &str, root: &AssetRoot) -> Result<String> {
    // The name of the file system counts in the names of outputs only.
    key([farm, queue, "Inputs", id], &format!("{}{INPUT_SUFFIX}", ContentHash::of(&root.path)))
}

/// The key of the manifest `name` in the folder `prefix`, which may be empty and have several components, with slashes around
/// them that mean nothing.
///
/// # Errors
/// `InvalidInput` for what cannot be a key.
pub fn named_key(prefix: &str, name: &str) -> Result<String> {
    let prefix = prefix.trim_matches('/');
    key((!prefix.is_empty()).then(|| prefix.split('/')).into_iter().flatten(), name)
}

/// The folder of what a session action made: `2026-11-22T18:00:01.000000Z_ACTION`. In the order of these names the last one is the
/// latest.
#[must_use]
pub fn action_folder(micros: i64, action: &str) -> String {
    const DAY_SECS: i64 = 86_400;
    let (secs, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (year, month, day) = date(secs.div_euclid(DAY_SECS));
    let of_day = secs.rem_euclid(DAY_SECS);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z_{action}")
}

/// True if this is the key of a manifest of outputs: by its end, or as the official packages look for them, `step-.*/.*/.*output.*`. One that
/// is stored by hand has any name (`output-HASH-TIME.manifest`).
#[must_use]
pub fn is_output(key: &str) -> bool {
    let below_step = || key.split_once(STEP)?.1.splitn(3, '/').nth(2);
    key.ends_with(OUTPUT_SUFFIX) || below_step().is_some_and(|name| name.contains(OUTPUT))
}

/// The folder of the task that a key is in, and the name of the folder of its session action; none for outputs of a step as a whole. The
/// official packages take the first component with this in it for that of the task.
fn task_of(key: &str) -> Option<(&str, &str)> {
    let mut end = 0;
    let is_task = |part: &str| {
        end += part.len() + 1;
        part.contains(TASK)
    };
    key.split('/').any(is_task).then_some(())?;
    let (action, _) = key.get(end..)?.split_once('/')?;
    Some((&key[..end], action))
}

/// Of the keys in a part of a store those of the manifests that count: of each task all that its last session action left, and of a step
/// as a whole, whose actions have a part of its tasks each, all. They are in the order of the names of the actions' folders.
#[must_use]
pub fn latest_outputs(keys: impl IntoIterator<Item = String>) -> Vec<String> {
    let keys: Vec<String> = keys.into_iter().filter(|key| is_output(key)).collect();
    let mut latest: BTreeMap<&str, &str> = BTreeMap::new();
    for (task, action) in keys.iter().filter_map(|key| task_of(key)) {
        let last = latest.entry(task).or_default();
        *last = action.max(last);
    }
    let counts = |key: &&String| task_of(key).is_none_or(|(task, action)| latest.get(task) == Some(&action));
    let mut outputs: Vec<&String> = keys.iter().filter(counts).collect();
    let action =
        |key: &str| task_of(key).map_or_else(|| key.rsplit('/').nth(1), |(_, action)| Some(action)).map(str::to_owned);
    outputs.sort_by_cached_key(|key| (action(key), key.to_owned()));
    outputs.into_iter().cloned().collect()
}

fn key<'p>(parts: impl IntoIterator<Item = &'p str>, name: &str) -> Result<String> {
    let mut key = MANIFESTS_FOLDER.to_owned();
    let mut push = |part: &str| {
        key.push('/');
        key.push_str(part);
        component(part)
    };
    parts.into_iter().try_for_each(&mut push)?;
    push(name)?;
    check_object_key(&key).map(|()| key)
}

fn component(part: &str) -> Result<()> {
    match part {
        "" | "." | ".." => {}
        part if part.contains('/') => {}
        _ => return Ok(()),
    }
    Err(FsError::new(ErrorKind::InvalidInput)
        .on("name a manifest in a store", part.escape_debug())
        .because("a part of its key is empty, `.`, `..`, or has a `/`"))
}

/// Year, month and day of a day since 1970, in the Gregorian calendar (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn date(day: i64) -> (i64, i64, i64) {
    const ERA_DAYS: i64 = 146_097;
    // From the first of March of the year 0 on.
    let from_march = day + 719_468;
    let (era, of_era) = (from_march.div_euclid(ERA_DAYS), from_march.rem_euclid(ERA_DAYS));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA_DAYS - 1)) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(path: &str) -> AssetRoot {
        AssetRoot::new(path.as_bytes(), None)
    }

    #[test]
    fn keys_are_those_of_the_official_package() {
        let root = root("/projects/plain");
        let hash = ContentHash::of(b"/projects/plain");
        let place = OutputPlace {
            farm: "farm-1",
            queue: "queue-1",
            job: "job-1",
            step: "step-1",
            task: Some("task-1"),
            action: (1_795_370_401_000_042, "sessionaction-1-0"),
        };
        let folder = "2026-11-22T18:00:01.000042Z_sessionaction-1-0";
        assert_eq!(
            output_key(&place, &root).unwrap(),
            format!("Manifests/farm-1/queue-1/job-1/step-1/task-1/{folder}/{hash}_output")
        );
        assert_eq!(
            output_key(&OutputPlace { task: None, ..place }, &root).unwrap(),
            format!("Manifests/farm-1/queue-1/job-1/step-1/{folder}/{hash}_output")
        );
        assert_eq!(
            input_key("farm-1", "queue-1", "0123", &root).unwrap(),
            format!("Manifests/farm-1/queue-1/Inputs/0123/{hash}_input")
        );
        assert_eq!(named_key("/a/b/", "name.manifest").unwrap(), "Manifests/a/b/name.manifest");
        assert_eq!(named_key("", "name").unwrap(), "Manifests/name");
        for (prefix, name) in [("a/../b", "x"), ("a//b", "x"), ("a", ""), ("a", "x/y"), (".", "x"), ("a", "..")] {
            assert_eq!(named_key(prefix, name).unwrap_err().kind(), ErrorKind::InvalidInput, "{prefix} {name}");
        }
        for bad in [OutputPlace { job: "a/b", ..place }, OutputPlace { action: (0, "../x"), ..place }] {
            assert_eq!(output_key(&bad, &root).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
        // The name of the file system counts for the hash.
        let on_disk = AssetRoot::new(b"/p", Some("shared"));
        assert_eq!(on_disk.hash(), ContentHash::of(b"shared/p"));
    }

    #[test]
    fn roots_come_back_from_the_metadata() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(root("/a b").metadata(), [pair("asset-root", "/a b")]);
        let json = r#""/projects/\u00fc \ud83d\ude00""#;
        assert_eq!(root("/projects/ü 😀").metadata(), [pair("asset-root", json), pair("asset-root-json", json)]);
        for path in [&b"/a"[..], "/ü/日本/😀".as_bytes(), b"/\xff/x", b"/a\n", b" /a ", b"/\"\\", b""] {
            for location in [None, Some("disk one")] {
                let root = AssetRoot::new(path, location);
                let metadata = root.metadata();
                let pairs: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                adit_core::media::check_user_metadata(&pairs).unwrap();
                assert_eq!(AssetRoot::from_metadata(&metadata).unwrap(), Some(root));
            }
        }
        assert_eq!(AssetRoot::from_metadata(&[]).unwrap(), None);
        for bad in ["/x", "\"a", "[]", "\"a\" b"] {
            assert!(AssetRoot::from_metadata(&[pair("asset-root-json", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_each_task_the_last_action_counts_and_the_order_is_that_of_time() {
        let at = |task: &str, second: u32| {
            format!("Manifests/f/q/j/s/{task}2026-11-22T18:00:{second:02}.000000Z_action-{second}/x_output")
        };
        let keys = [
            at("task-a/", 1),
            at("task-b/", 2),
            at("task-a/", 3),
            at("", 0),
            at("", 2),
            at("task-c/", 1),
            at("task-a/", 3).replace("/x_", "/y_"),
            "Manifests/f/q/Inputs/1/x_input".to_owned(),
            "Manifests/f/q/j/s/task-a/2099/notes.txt".to_owned(),
        ];
        let expected = [
            at("", 0),
            at("task-c/", 1),
            at("", 2),
            at("task-b/", 2),
            at("task-a/", 3),
            at("task-a/", 3).replace("/x_", "/y_"),
        ];
        assert_eq!(latest_outputs(keys), expected);
    }

    #[test]
    fn outputs_are_those_that_the_official_packages_find() {
        let in_job = |rest: &str| format!("Manifests/farm-1/queue-1/job-1/{rest}");
        for (rest, is) in [
            ("step-1/task-1/A/0123_output", true),
            ("step-1/task-1/A/output-0123-2025-06-01T00-00-00.manifest", true),
            ("step-1/task-1/A/my_outputs.json", true),
            ("step-1/A/output", true),
            ("step-1/output/x", false),
            ("step-1/task-1/A/0123_input", false),
            ("step-1/output", false),
            ("other/A/B/output.manifest", false),
            ("other/A/0123_output", true),
        ] {
            assert_eq!(is_output(&in_job(rest)), is, "{rest}");
        }
        assert!(!is_output("Manifests/farm-1/queue-1/Inputs/0123/0123_input"));
        // Names of either kind, and folders below that of the action: the last action counts.
        let keys = [
            "step-1/task-1/A/x_output",
            "step-1/task-1/B/output-x.manifest",
            "step-1/task-1/B/deep/output",
            "step-1/C/output-y",
        ];
        let expected = [in_job(keys[2]), in_job(keys[1]), in_job(keys[3])];
        assert_eq!(latest_outputs(keys.map(in_job)), expected);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00.000000Z_a"),
            (-1, "1969-12-31T23:59:59.999999Z_a"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z_a"),
            (1_709_210_096_000_789, "2024-02-29T12:34:56.000789Z_a"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z_a"),
        ] {
            assert_eq!(action_folder(micros, "a"), expected);
        }
    }
}
