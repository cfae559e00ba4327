//! `mounts`, `stats`, `status`: what is mounted, and how it fares.

use std::time::Duration;

use adit_mount::control::{MountInfo, Registry};
use adit_mount::mountpoint::{self, MountEntry};
use serde::Serialize;
use serde_json::Value;

use super::mount::answered;
use crate::args::low::{JsonArgs, StatsArgs, StatusArgs};
use crate::failure::Result;
use crate::output::{self, Output, printable};

/// Between two prints of `stats --watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A mount as `adit mounts --json` prints it. Fields are only ever added.
#[derive(Serialize)]
struct MountJson {
    /// What is mounted.
    source: String,
    /// `vault`.
    kind: String,
    /// Where.
    mountpoint: String,
    /// The process that serves it; null if that is dead.
    pid: Option<u32>,
    /// Whether it refuses changes; null if nobody is left to tell.
    read_only: Option<bool>,
    /// When it was mounted, in UTC (ISO 8601); null if nobody is left to tell.
    started: Option<String>,
    state: State,
    #[serde(skip)]
    started_secs: u64,
}

/// How a mount fares.
#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum State {
    /// In its place.
    Mounted,
    /// Taken out of the tree, with files still open; or in another mount namespace.
    Detached,
    /// Its process is gone, and its mountpoint in the way.
    Dead,
}

/// The living mounts of this user, oldest first, then the dead ones.
fn every_mount() -> Vec<MountJson> {
    let table = mountpoint::ours();
    let at = |entry: &MountEntry| entry.mountpoint.to_string_lossy().into_owned();
    let live = Registry::of_this_user().list();
    let dead: Vec<MountJson> = table
        .iter()
        .filter(|entry| {
            live.iter().all(|mount| mount.mountpoint != at(entry)) && mountpoint::is_stale(&entry.mountpoint)
        })
        .map(|entry| MountJson {
            source: entry.source.to_string_lossy().into_owned(),
            kind: "vault".to_owned(),
            mountpoint: at(entry),
            pid: None,
            read_only: None,
            started: None,
            state: State::Dead,
            started_secs: 0,
        })
        .collect();
    let in_place = |mount: &MountInfo| table.iter().any(|entry| at(entry) == mount.mountpoint);
    live.into_iter()
        .map(|mount| MountJson {
            state: if in_place(&mount) { State::Mounted } else { State::Detached },
            source: mount.source,
            kind: mount.kind,
            mountpoint: mount.mountpoint,
            pid: Some(mount.pid),
            read_only: Some(mount.read_only),
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
        let (kind, pid) = (&mount.kind, mount.pid.unwrap_or(0));
        let how = if mount.read_only == Some(true) { "read-only" } else { "read-write" };
        let since = output::since_text(mount.started_secs);
        match mount.state {
            State::Mounted => {
                out.line(format_args!("{source} on {mountpoint} ({kind}, {how}, process {pid}, since {since})"))?;
            }
            State::Detached => out.line(format_args!(
                "{source} was on {mountpoint} ({kind}, {how}, process {pid}, since {since}; detached: it ends when its last \
                 file is closed)"
            ))?,
            State::Dead => out.line(format_args!(
                "{source} on {mountpoint} ({kind}, DEAD: its process is gone; clear it with: adit umount {mountpoint})"
            ))?,
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
    let mut status =
        Registry::of_this_user().call(&args.mountpoint, "status", &Value::Null).map_err(|e| answered(&e))?;
    let mut out = Output::new();
    if args.json {
        out.json(&status)?;
    } else {
        if let Some(started) = status["started"].as_str() {
            status["started"] = output::iso_for_people(started).into();
        }
        output::human(&mut out, &status, 0)?;
    }
    out.finish()
}
