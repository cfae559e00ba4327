//! The index: paths to nodes beside a map of path strings, searches beside plocate, fd and ripgrep, building, differences; and all of it on a
//! graphics processor, where there is one.
//!
//! In this process a sample is the processor's time of one thread, so a busy machine spoils it less; programs are timed by the
//! clock, from their start to their end. Sides take turns.

mod build;
mod device;
mod find;
mod options;
mod resolve;
mod tree;

use std::path::Path;

use anyhow::Result;

use crate::RunArgs;
use crate::report::Report;
use tree::Tree;

/// Sizes of the trees in files, and how their groups end.
const SIZES: [(&str, usize); 3] = [("10k", 10_000), ("1m", 1_000_000), ("10m", 10_000_000)];

/// Groups of rows, for `--rows`.
pub const GROUPS: [&str; 13] = [
    "resolve-10k",
    "resolve-1m",
    "resolve-10m",
    "options-1m",
    "find-10k",
    "find-1m",
    "find-10m",
    "build-10k",
    "build-1m",
    "build-10m",
    "diff-1m",
    "device-1m",
    "device-10m",
];

/// Measures what is asked for.
pub fn run(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    let work = tempfile::Builder::new().prefix("adit-bench-index-").tempdir_in(dir)?;
    let of_devices = GROUPS.iter().filter(|group| group.starts_with("device-"));
    let wanted: Vec<_> = of_devices.filter(|group| args.wants(group, false)).collect();
    let adapter = if wanted.is_empty() { None } else { device::describe(report).ok() };
    if adapter.is_none() && !args.rows.is_empty() && !wanted.is_empty() {
        report.failed("rows of a graphics processor were asked for, and there is none".into());
    }
    for (size, files) in SIZES {
        let wants = |what: &str| {
            let group = format!("{what}-{size}");
            GROUPS.contains(&&group[..]) && args.wants(&group, false) && (what != "device" || adapter.is_some())
        };
        if !["resolve", "options", "find", "build", "diff", "device"].iter().any(|what| wants(what)) {
            continue;
        }
        let tree = Tree::new(args.scaled(files as u64) as usize);
        let about =
            format!("{} files, paths of {} bytes on average.", tree.paths.len(), tree.paths.bytes() / tree.paths.len());
        if wants("build") {
            build::run(args, &tree, &about, size, work.path(), report)?;
        }
        if !["resolve", "options", "find", "diff", "device"].iter().any(|what| wants(what)) {
            continue;
        }
        let segment = tree.index(&work.path().join("index"), 1 << 30, |_| Some(false))?;
        if wants("resolve") {
            resolve::run(args, &tree, &segment, &about, size, report)?;
        }
        if wants("options") {
            options::run(args, &tree, &segment, &about, size, report)?;
        }
        if wants("find") {
            find::run(args, &tree, &segment, &about, size, work.path(), report)?;
        }
        if wants("diff") {
            build::diff(args, &tree, &segment, &about, work.path(), report)?;
        }
        if let Some(adapter) = adapter.as_ref().filter(|_| wants("device")) {
            device::run(args, adapter, &tree, &segment, &about, size, report)?;
        }
    }
    Ok(())
}
