//! The machine that figures come from, and the work folder on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::report::Report;

/// Where to measure: the folder asked for, else cargo's target directory, which lies on a disk as a rule.
pub fn work_dir(asked: Option<&Path>) -> Result<PathBuf> {
    let dir = match asked {
        Some(dir) => dir.to_path_buf(),
        None => {
            let exe = std::env::current_exe().context("cannot find this program's own path")?;
            exe.ancestors()
                .nth(2)
                .context("this program does not lie in a target directory; name a --dir")?
                .to_path_buf()
        }
    };
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))
}

/// Writes machine, revision and command to the report's head.
pub fn describe(report: &mut Report, dir: &Path) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    report.fact("CPU", format!("{}, {cores} cores", cpu_model()));
    report.fact("memory", memory());
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    report.fact("kernel", read("/proc/sys/kernel/osrelease").trim().into());
    report.fact("file system under all sides", file_system(dir)?);
    report.fact("adit", revision());
    let profile = if cfg!(debug_assertions) { "debug: NOT to be quoted" } else { "release" };
    report.fact("profile", profile.into());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    report.fact("command", format!("cargo xtask bench {}", arguments.join(" ")));
    Ok(())
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let name = field("model name").unwrap_or_else(|| "unknown".into());
    match (field("cpu family"), field("model\t")) {
        // Virtual machines often hide the name.
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    }
}

fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or_else(|| "unknown".into(), |kib| format!("{} GiB", kib >> 20))
}

/// Type and options of the mount that holds `dir`.
fn file_system(dir: &Path) -> Result<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    let holder = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            dir.starts_with(point).then_some((point, kind, options))
        })
        .max_by_key(|(point, ..)| point.len());
    Ok(holder.map_or_else(|| "unknown".into(), |(_, kind, options)| format!("{kind} ({options})")))
}

fn revision() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return format!("version {}", env!("CARGO_PKG_VERSION"));
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => format!("commit {commit}"),
        _ => format!("commit {commit} with uncommitted changes"),
    }
}
