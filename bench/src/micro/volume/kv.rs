//! The choice of the key-value store: the volume's tree over each of them, by a program of its own (`bench/rivals/kv`, which
//! says how they are compared).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::report::{ADIT, Aim, Report, Row, Unit};
use crate::{RunArgs, rivals};

/// Its own base, and stores below a table in memory.
const STORES: [&str; 4] = [ADIT, "redb", "fjall", "lmdb"];

const fn row(name: &'static str, unit: Unit) -> Row {
    Row { name, unit, aim: Aim::None }
}

/// Names as the program prints them, with their rows.
static ROWS: [(&str, Row); 8] = [
    ("create", row("creates, until all is in the store and durable", Unit::PerSec)),
    ("create-cpu", row("CPU time of a create, all threads", Unit::Micros)),
    ("size", row("space on the disk for a file", Unit::Bytes)),
    ("open", row("opening", Unit::Millis)),
    ("lookup", row("stat by directory and name, random", Unit::PerSec)),
    ("list", row("entries listed", Unit::PerSec)),
    ("unlink", row("unlinks of a tenth, random, until durable", Unit::PerSec)),
    ("memory", row("peak memory, VmHWM (LMDB's map included)", Unit::Mib)),
];

/// 0.1 and 1 million files.
pub fn run(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    measure(args, dir, report, "micro-kv: 0.1 M files", args.scaled(100_000))?;
    measure(args, dir, report, "micro-kv: 1 M files", args.scaled(1_000_000))
}

/// 10 million files.
pub fn run_large(args: &RunArgs, dir: &Path, report: &mut Report) -> Result<()> {
    measure(args, dir, report, "micro-kv: 10 M files", args.scaled(10_000_000))
}

fn measure(args: &RunArgs, dir: &Path, report: &mut Report, title: &str, files: u64) -> Result<()> {
    let rounds = args.rounds();
    report.group(
        title,
        &format!(
            "{files} empty files, 100 a directory, made by the volume's tree over each store; 256 MiB for pages. `{ADIT}` is the volume's own base, \
             the only one that is safe from a kill at each create; the others get 16 MiB of changes at once, durably. Rounds: {rounds}."
        ),
    );
    let program = rivals::kv()?;
    for round in 1..=rounds {
        for store in STORES {
            let started = Instant::now();
            let work = tempfile::Builder::new().prefix("adit-bench-").tempdir_in(dir)?;
            let output = Command::new(&program).arg(store).arg(work.path()).arg(files.to_string()).output()?;
            ensure!(output.status.success(), "{store}: {}", String::from_utf8_lossy(&output.stderr).trim());
            let figures: BTreeMap<String, f64> =
                serde_json::from_slice(&output.stdout).context("the program printed no object of numbers")?;
            for (name, row) in &ROWS {
                report.add(title, row, store, *figures.get(*name).with_context(|| format!("{store}: no {name}"))?);
            }
            eprintln!("{title} {round}/{rounds} {store}: {:.1} s", started.elapsed().as_secs_f64());
        }
    }
    Ok(())
}
