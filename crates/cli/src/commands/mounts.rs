//! `mounts`, `stats`, `status`: what is mounted, and how it fares.

use std::time::Duration;

use adit_mount::control::Registry;
use serde_json::Value;

use super::mount::answered;
use crate::args::low::{JsonArgs, StatsArgs, StatusArgs};
use crate::failure::Result;
use crate::output::{self, Output, printable};

/// Between two prints of `stats --watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// `adit mounts`
pub fn mounts(args: &JsonArgs) -> Result<()> {
    let mounts = Registry::of_this_user().list();
    let mut out = Output::new();
    if args.json {
        out.json(&mounts)?;
        return out.finish();
    }
    for mount in mounts {
        let how = if mount.read_only { "ro" } else { "rw" };
        let (source, mountpoint) = (printable(mount.source.as_bytes()), printable(mount.mountpoint.as_bytes()));
        out.line(format_args!("{source} on {mountpoint} ({}, {how}, pid {})", mount.kind, mount.pid))?;
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
    let status = Registry::of_this_user().call(&args.mountpoint, "status", &Value::Null).map_err(|e| answered(&e))?;
    let mut out = Output::new();
    if args.json {
        out.json(&status)?;
    } else {
        output::human(&mut out, &status, 0)?;
    }
    out.finish()
}
