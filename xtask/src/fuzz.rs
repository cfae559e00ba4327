//! The fuzz targets: a short run of each, where a nightly toolchain is at hand.
//!
//! The corpora are replayed on stable by the `corpus` stage, with or without a nightly.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::stage::{Outcome, Run};
use crate::{process, tools, workplace};

/// How long all targets together are fuzzed, times the scale: a new target takes its time from the others, and none from CI.
const SECONDS_OF_ALL: u32 = 180;
/// The time limit of one target, its build included.
const TARGET_LIMIT: Duration = Duration::from_secs(1800);

/// Fuzzes every target for a while; without a nightly this says so and stands back.
pub fn run(run: &Run) -> Result<Outcome> {
    let targets = targets(&workplace::root().join("fuzz/fuzz_targets"))?;
    if !has_nightly() {
        // Not `NotRun`: fuzzing is asked for only where a nightly is at hand.
        println!(
            "no nightly toolchain (rustup toolchain install nightly): {} targets are not fuzzed; \
             their corpora were replayed on stable by the stage `corpus`",
            targets.len()
        );
        return Ok(Outcome::Passed);
    }
    let program = tools::CARGO_FUZZ.ensure()?;
    let finds = tempfile::tempdir()?;
    let seconds = seconds_of_each(targets.len(), run.scale);
    for target in &targets {
        fuzz(&program, target, finds.path(), seconds)?;
    }
    Ok(Outcome::Passed)
}

fn seconds_of_each(targets: usize, scale: u32) -> u32 {
    (SECONDS_OF_ALL * scale / u32::try_from(targets).unwrap_or(u32::MAX).max(1)).max(1)
}

fn fuzz(program: &Path, target: &str, finds: &Path, seconds: u32) -> Result<()> {
    // New inputs go to the first folder, so the committed corpus stays as it is.
    let new = finds.join(target);
    fs::create_dir(&new)?;
    let mut command = Command::new(program);
    command.args(["fuzz", "run", target]).arg(new).arg(format!("fuzz/corpus/{target}"));
    command.args(["--", &format!("-max_total_time={seconds}"), "-timeout=10", "-verbosity=0"]);
    command.args(["-print_final_stats=1"]);
    // cargo started us through the stable toolchain and says so in the environment.
    command.current_dir(workplace::root()).env("RUSTUP_TOOLCHAIN", "nightly").env_remove("CARGO");
    process::run(&mut command, TARGET_LIMIT + Duration::from_secs(seconds.into()))
        .with_context(|| format!("fuzz target {target}; the input lies under fuzz/artifacts/{target}"))
}

/// The targets' names, sorted.
fn targets(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    if names.is_empty() {
        bail!("there is no fuzz target in {}", dir.display());
    }
    names.sort();
    Ok(names)
}

fn has_nightly() -> bool {
    Command::new("rustc")
        .arg("--version")
        .env("RUSTUP_TOOLCHAIN", "nightly")
        .env("RUSTUP_AUTO_INSTALL", "0")
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success() && String::from_utf8_lossy(&output.stdout).contains("nightly"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_divided_among_the_targets() {
        assert_eq!(seconds_of_each(9, 1), 20);
        assert_eq!(seconds_of_each(14, 10), 128);
        assert_eq!(seconds_of_each(1000, 1), 1, "none is left out");
    }
}
