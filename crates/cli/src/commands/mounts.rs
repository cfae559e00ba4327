//! `mounts`, `stats`, `status`: what is mounted, and how it fares.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use adit_core::process::ProcessNumber;
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::holders::Holder;
use adit_mount::mountpoint::{self, MountEntry};
use adit_mount::sightings::{self, Sighting};
use serde::Serialize;
use serde_json::{Value, json};

use super::mount::{answered, how_to_go_on};
use crate::args::low::{JsonArgs, StatsArgs, StatusArgs};
use crate::failure::Result;
use crate::output::{self, Output, printable};
use crate::source::{self, Source};
use crate::{live, open};

/// Between two prints of `stats --watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A mount as `adit mounts --json` prints it. Fields are only ever added.
#[derive(Serialize)]
struct MountJson {
    /// What is mounted; bytes that are not UTF-8 are replaced.
    source: String,
    /// All bytes of it, if there are such; see [`output::raw`].
    #[serde(skip_serializing_if = "Option::is_none")]
    source_raw: Option<Vec<u8>>,
    /// `vault`, `volume`, `dir` or `overlay`.
    kind: String,
    /// The snapshot that is mounted, if it is one.
    snapshot: Option<String>,
    /// The branch that is mounted, of a volume.
    branch: Option<String>,
    /// The volume that takes the changes, of an overlay.
    upper: Option<String>,
    /// As of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    upper_raw: Option<Vec<u8>>,
    /// Where; bytes that are not UTF-8 are replaced.
    mountpoint: String,
    /// All bytes of it, if there are such; see [`output::raw`].
    #[serde(skip_serializing_if = "Option::is_none")]
    mountpoint_raw: Option<Vec<u8>>,
    /// The process that serves it; null if that is dead, or lives in another pid namespace.
    pid: Option<u32>,
    /// Whether it refuses changes; null if nobody is left to tell.
    read_only: Option<bool>,
    /// Why it does, where nobody asked for that: the medium, or an error since.
    read_only_because: Option<String>,
    /// When it was mounted, in UTC (ISO 8601); null if nobody is left to tell.
    started: Option<String>,
    state: State,
    /// The places where it is mounted, if those are elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    seen: Vec<Place>,
    /// Whether its process answers requests; null if that is dead.
    answers: Option<bool>,
    /// Whether the file of its volume, or of its upper volume, was moved or removed meanwhile.
    file_missing: bool,
    #[serde(skip)]
    process: Option<ProcessNumber>,
    #[serde(skip)]
    started_secs: u64,
    #[serde(skip)]
    places: Vec<Sighting>,
}

/// A place where a filesystem is mounted, as `adit mounts --json` prints it.
#[derive(Serialize)]
struct Place {
    /// Where; bytes that are not UTF-8 are replaced.
    mountpoint: String,
    /// A process of the other mount namespace that has it there; null if this namespace has it.
    pid: Option<u32>,
    /// The name of that process.
    name: Option<String>,
    /// The number of its namespace, where this user may know it.
    namespace: Option<u64>,
}

impl Place {
    fn of(sighting: &Sighting) -> Place {
        let process = sighting.process.as_ref();
        Place {
            mountpoint: sighting.place.to_string_lossy().into_owned(),
            pid: process.map(|process| process.pid),
            name: process.map(|process| process.name.clone()),
            namespace: sighting.namespace,
        }
    }
}

/// How a mount fares.
#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum State {
    /// In its place.
    Mounted,
    /// Not in its place, but mounted at another one, or in another mount namespace.
    Elsewhere,
    /// Taken out of the tree, with files still open.
    Detached,
    /// Its process is gone, and its mountpoint in the way.
    Dead,
}

/// Mounts in the kernel's table that are none of the `live` ones and have no process any more.
pub fn dead_mounts(live: &[MountInfo]) -> Vec<MountEntry> {
    let is_live = |entry: &MountEntry| live.iter().any(|mount| mount.device == entry.device);
    let table = mountpoint::ours().into_iter();
    table.filter(|entry| !is_live(entry) && mountpoint::is_stale(&entry.mountpoint)).collect()
}

/// Those of the `live` mounts whose process does not answer. All are asked at once, so that several that hang take no
/// longer than one.
pub fn silent_mounts(live: &[MountInfo]) -> Vec<MountInfo> {
    let registry = Registry::of_this_user();
    let is_silent = |mount: &MountInfo| matches!(registry.ping(mount), Err(ControlError::Silent { .. }));
    std::thread::scope(|scope| {
        let asked: Vec<_> = live.iter().map(|mount| (mount, scope.spawn(move || is_silent(mount)))).collect();
        let silent = asked.into_iter().filter_map(|(mount, asked)| asked.join().unwrap_or(false).then_some(mount));
        silent.cloned().collect()
    })
}

/// What was mounted where nobody is left to tell: what can be changed though it lies on a manifest, was an overlay. One that could not (of a snapshot of
/// its upper, for one) is told as what it lay on.
fn kind_of_dead(entry: &MountEntry) -> &'static str {
    match Source::recognise(&entry.source).map_or("vault", |source| source.kind()) {
        "manifest" if !entry.read_only => "overlay",
        kind => kind,
    }
}

/// The living mounts of this user, oldest first, then the dead ones.
fn every_mount() -> Vec<MountJson> {
    open::mounted::sweep();
    let mut live = Registry::of_this_user().list_all();
    live.retain(|mount| !mount.hidden);
    let silent = silent_mounts(&live);
    let dead: Vec<MountJson> = dead_mounts(&live)
        .into_iter()
        .map(|entry| MountJson {
            source: source::without_prefix(&entry.source).to_string_lossy().into_owned(),
            source_raw: output::raw(source::without_prefix(&entry.source).as_bytes()),
            kind: kind_of_dead(&entry).to_owned(),
            snapshot: None,
            branch: None,
            upper: None,
            upper_raw: None,
            mountpoint: entry.mountpoint.to_string_lossy().into_owned(),
            mountpoint_raw: output::raw(entry.mountpoint.as_os_str().as_bytes()),
            process: None,
            pid: None,
            read_only: None,
            read_only_because: None,
            started: None,
            state: State::Dead,
            seen: Vec::new(),
            places: Vec::new(),
            answers: None,
            file_missing: false,
            started_secs: 0,
        })
        .collect();
    // What has come about since it was mounted, the process alone knows.
    let registry = Registry::of_this_user();
    let status = |mount: &MountInfo| match silent.contains(mount) {
        true => Value::Null,
        false => registry.call_entry(mount, "status", &Value::Null).unwrap_or_default(),
    };
    live.into_iter()
        .map(|mount| (status(&mount), mount))
        .map(|(status, mount)| {
            let places = (!mount.is_attached()).then(|| sightings::of(&mount.device).seen);
            (status, mount, places)
        })
        .map(|(status, mount, places)| MountJson {
            state: match places.as_deref() {
                None => State::Mounted,
                Some([]) => State::Detached,
                Some(_) => State::Elsewhere,
            },
            seen: places.iter().flatten().map(Place::of).collect(),
            places: places.unwrap_or_default(),
            answers: Some(!silent.contains(&mount)),
            file_missing: status["file_missing"] == true,
            process: Some(mount.process()),
            pid: mount.process().here(),
            source: mount.source,
            source_raw: mount.source_raw,
            kind: mount.kind,
            snapshot: mount.snapshot,
            branch: mount.branch,
            upper: mount.upper,
            upper_raw: mount.upper_raw,
            mountpoint: mount.mountpoint,
            mountpoint_raw: mount.mountpoint_raw,

            read_only: Some(mount.read_only || status["read_only"] == true),
            read_only_because: status["read_only_because"].as_str().map(str::to_owned),
            started: Some(output::iso_text(mount.started)),
            started_secs: mount.started,
        })
        .chain(dead)
        .collect()
}

/// `adit mounts`
pub fn mounts(args: &JsonArgs) -> Result<()> {
    let mounts = every_mount();
    let mut out = Output::new();
    if args.json {
        out.json(&mounts)?;
        return out.finish();
    }
    for mount in mounts {
        let (source, mountpoint) = (printable(mount.source.as_bytes()), printable(mount.mountpoint.as_bytes()));
        let kind = match (&mount.snapshot, &mount.branch) {
            (Some(name), _) => format!("{}, snapshot {}", mount.kind, printable(name.as_bytes())),
            (None, Some(name)) => format!("{}, branch {}", mount.kind, printable(name.as_bytes())),
            (None, None) => mount.kind.clone(),
        };
        let kind = match &mount.upper {
            Some(upper) => format!("{kind}, changes go to {}", printable(upper.as_bytes())),
            None => kind,
        };
        let process = mount.process.map_or_else(String::new, |process| process.to_string());
        let how = if mount.read_only == Some(true) { "read-only" } else { "read-write" };
        let since = output::since_text(mount.started_secs);
        match mount.state {
            State::Mounted => {
                out.line(format_args!("{source} on {mountpoint} ({kind}, {how}, {process}, since {since})"))?;
            }
            State::Elsewhere => out.line(format_args!(
                "{source} was on {mountpoint} ({kind}, {how}, {process}, since {since}; still mounted {})",
                live::show_places(&mount.places)
            ))?,
            State::Detached => out.line(format_args!(
                "{source} was on {mountpoint} ({kind}, {how}, {process}, since {since}; detached: it ends when its last \
                 file is closed)"
            ))?,
            State::Dead => {
                let what_to_do = mountpoint::how_to_clear(mount.mountpoint.as_ref());
                let what_to_do = printable(what_to_do.as_bytes());
                out.line(format_args!("{source} on {mountpoint} ({kind}, DEAD: {what_to_do})"))?;
            }
        }
        if mount.file_missing {
            let file = mount.upper.as_ref().unwrap_or(&mount.source);
            let file = printable(file.as_bytes());
            out.line(format_args!(
                "  {file} was moved or removed, and is not there any more: if it was removed, what it holds is gone when this is \
                 unmounted: copy what you need out of {mountpoint} before"
            ))?;
        }
        if let Some(because) = &mount.read_only_because {
            out.line(format_args!("  read-only: {}", printable(because.as_bytes())))?;
        }
        if mount.answers == Some(false) {
            let what_to_do = how_to_go_on(mount.mountpoint.as_ref(), mount.process);
            let what_to_do = printable(what_to_do.as_bytes());
            out.line(format_args!("  {process} does not answer: {what_to_do}"))?;
        }
    }
    out.finish()
}

/// `adit stats`
pub fn stats(args: &StatsArgs) -> Result<()> {
    let registry = Registry::of_this_user();
    let mut out = Output::new();
    loop {
        let stats = registry.call(&args.mountpoint, "stats", &Value::Null).map_err(|e| answered(&e))?;
        match (args.json, args.watch) {
            (true, true) => out.line(&stats)?,
            (true, false) => out.json(&stats)?,
            (false, _) => output::human(&mut out, &stats, 0)?,
        }
        out.flush()?;
        if !args.watch {
            return Ok(());
        }
        if !args.json {
            out.line("")?;
        }
        std::thread::sleep(WATCH_INTERVAL);
    }
}

/// `adit status`
pub fn status(args: &StatusArgs) -> Result<()> {
    if !args.paths.is_empty() {
        return super::state::states(args);
    }
    let registry = Registry::of_this_user();
    let mount = registry.find_around(&args.mountpoint).map_err(|e| answered(&e))?;
    let mut status = registry.call_entry(&mount, "status", &Value::Null).map_err(|e| answered(&e))?;
    let raw = [("source", &mount.source_raw), ("upper", &mount.upper_raw), ("mountpoint", &mount.mountpoint_raw)];
    for (field, raw) in raw {
        if let Some(raw) = raw {
            status[format!("{field}_raw")] = raw.as_slice().into();
        }
    }
    status["pid"] = mount.process().here().into();
    let places = match status["state"] == "detached" {
        true => sightings::of(&mount.device).seen,
        false => sightings::here(&mount.device).into_iter().filter(|seen| seen.place != mount.place()).collect(),
    };
    if !places.is_empty() {
        if status["state"] == "detached" {
            status["state"] = "elsewhere".into();
        }
        status["seen"] = match args.json {
            true => json!(places.iter().map(Place::of).collect::<Vec<_>>()),
            false => live::show_places(&places).into(),
        };
    }
    if status["state"] == "detached" {
        // Whose open files keep it; this process may look into more than that of the mount, and has more time.
        let holders = live::holders_of(&mount.device);
        status["held_by"] = match args.json {
            true => holders.iter().map(|Holder { pid, name }| json!({"pid": pid, "name": name})).collect(),
            false => holders.iter().map(live::show).collect::<Vec<_>>().join(", ").into(),
        };
    }
    let mut out = Output::new();
    if args.json {
        out.json(&status)?;
    } else {
        if let Some(started) = status["started"].as_str() {
            status["started"] = output::iso_for_people(started).into();
        }
        let errors = status.as_object_mut().and_then(|status| status.remove("errors")).unwrap_or_default();
        output::human(&mut out, &status, 0)?;
        for error in errors.as_array().into_iter().flatten() {
            let text = |key: &str| error[key].as_str().unwrap_or_default();
            let often = if error["count"] == 1 { String::new() } else { format!(" ({} times)", error["count"]) };
            out.line(format_args!("error{often}: {}: {}", text("op"), output::printable(text("error").as_bytes())))?;
        }
    }
    out.finish()
}
