//! Calls into the crates, in this process: caches of the engine, codecs of the format, memory, unlocking.
//!
//! A sample is a run of at least [`SAMPLE_MIN`]; a figure is the median of [`SAMPLES`] of them. Times are CPU time of the
//! thread, because nothing here waits: a busy machine then spoils them less. Only release builds count.

mod ahead;
pub mod counting;
mod engine;
mod format;
mod memory;
mod table_store;
mod unlock;
mod volume;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::index;
use crate::report::Report;
use crate::{RunArgs, Subject};

/// Groups of rows, for `--rows`. The engine is the same for every store.
const VAULT_GROUPS: [&str; 5] = ["micro-engine", "micro-format", "micro-memory", "micro-unlock", ahead::GROUP];

/// Groups of rows of a store, for `--rows`.
pub fn groups(subject: Subject) -> Vec<&'static str> {
    match subject {
        Subject::Vault => VAULT_GROUPS.to_vec(),
        Subject::Manifest => Vec::new(),
        Subject::Index => index::GROUPS.to_vec(),
        Subject::Volume => volume::GROUPS.iter().map(|(name, ..)| *name).collect(),
    }
}

/// Those that are run only if they are asked for.
pub fn on_request(subject: Subject) -> Vec<&'static str> {
    match subject {
        Subject::Vault | Subject::Manifest | Subject::Index => Vec::new(),
        Subject::Volume => volume::GROUPS.iter().filter(|(_, slow, _)| *slow).map(|(name, ..)| *name).collect(),
    }
}

/// Samples of a figure.
const SAMPLES: usize = 21;
/// How long one sample takes at least.
const SAMPLE_MIN: Duration = Duration::from_millis(10);

/// Measures everything asked for.
pub fn run(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    match args.subject {
        Subject::Vault => run_vault(args, dir, report),
        Subject::Manifest => Ok(()),
        Subject::Index => index::run(args, dir, report),
        Subject::Volume => {
            let wanted = volume::GROUPS.iter().filter(|(name, on_request, _)| args.wants(name, *on_request));
            for (_, _, measure) in wanted {
                measure(args, dir, report)?;
            }
            Ok(())
        }
    }
}

fn run_vault(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    let wants = |group: &str| args.wants(group, false);
    if wants(VAULT_GROUPS[0]) {
        engine::run(args, report)?;
    }
    if wants(VAULT_GROUPS[1]) {
        format::run(report)?;
    }
    if wants(VAULT_GROUPS[2]) {
        memory::run(dir, report)?;
    }
    if wants(VAULT_GROUPS[3]) {
        unlock::run(dir, report)?;
    }
    if wants(VAULT_GROUPS[4]) {
        ahead::run(args, report)?;
    }
    Ok(())
}

/// Nanoseconds of one of the `count` operations of `pass`, for each sample.
fn samples(count: usize, mut pass: impl FnMut()) -> Vec<f64> {
    pass();
    (0..SAMPLES).map(|_| one_sample(count, &mut pass)).collect()
}

fn one_sample(count: usize, pass: &mut impl FnMut()) -> f64 {
    let started = cpu_time();
    let mut passes = 0u32;
    loop {
        pass();
        passes += 1;
        let took = cpu_time().saturating_sub(started);
        if took >= SAMPLE_MIN {
            return took.as_secs_f64() * 1e9 / (f64::from(passes) * count as f64);
        }
    }
}

/// CPU time of this thread.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel counts up from zero and keeps nanoseconds below a second.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Fisher and Yates with a small congruential generator.
fn shuffle(indexes: &mut [usize]) {
    let mut state = 1u64;
    for at in (1..indexes.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        indexes.swap(at, (state >> 33) as usize % (at + 1));
    }
}
