//! Runs stages in order, times them, and prints the table and the closing line.
//!
//! A stage passes, fails, or says why it did not run. The last is counted and printed as skipped, and under `CI=true`
//! it is a failure: there are no silent skips.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::workplace;

/// What every stage may ask about the run.
pub struct Run {
    /// The full counts of `--long`.
    pub long: bool,
    /// What seeds and counts are multiplied by (`ADIT_TEST_SCALE`).
    pub scale: u32,
}

/// How a stage ended, failures aside.
pub enum Outcome {
    /// It ran and found nothing wrong.
    Passed,
    /// It could not run here, for this reason.
    NotRun(String),
}

/// One step of `cargo xtask test`.
pub struct Stage {
    /// The name that `--only` takes.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// What it does.
    pub body: fn(&Run) -> Result<Outcome>,
}

enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

struct Row {
    name: &'static str,
    verdict: Verdict,
    took: Duration,
}

/// Runs `stages` in order, up to the first red one unless `keep_going`, and prints what came of it.
pub fn run_all(stages: &[&Stage], run: &Run, keep_going: bool) -> ExitCode {
    let mut rows = Vec::new();
    for stage in stages {
        println!("\n=== {}: {}", stage.name, stage.about);
        let started = Instant::now();
        let verdict = match (stage.body)(run) {
            Ok(Outcome::Passed) => Verdict::Passed,
            Ok(Outcome::NotRun(why)) if workplace::in_ci() => {
                Verdict::Failed(format!("could not run, and CI=true: {why}"))
            }
            Ok(Outcome::NotRun(why)) => Verdict::Skipped(why),
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        match &verdict {
            Verdict::Passed => {}
            Verdict::Skipped(why) => println!("not run: {why}"),
            Verdict::Failed(why) => println!("stage {} failed: {why}", stage.name),
        }
        let failed = matches!(verdict, Verdict::Failed(_));
        rows.push(Row { name: stage.name, verdict, took: started.elapsed() });
        if failed && !keep_going {
            break;
        }
    }
    println!("\n{}", summary(&rows, stages.len()));
    let red = rows.iter().any(|row| matches!(row.verdict, Verdict::Failed(_)));
    if red { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The table of stages and times; its last line is `N passed, N failed`, then what did not run, if anything.
fn summary(rows: &[Row], planned: usize) -> String {
    let mut text = format!("{:<12} {:>9}  result\n", "stage", "time");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut total = Duration::ZERO;
    for row in rows {
        let result = match &row.verdict {
            Verdict::Passed => {
                passed += 1;
                "passed".to_owned()
            }
            Verdict::Failed(_) => {
                failed += 1;
                "FAILED".to_owned()
            }
            Verdict::Skipped(why) => {
                skipped += 1;
                format!("not run: {why}")
            }
        };
        total += row.took;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<12} {:>7.1} s  {result}", row.name, row.took.as_secs_f64());
    }
    let _ = writeln!(text, "{:<12} {:>7.1} s", "total", total.as_secs_f64());
    let _ = write!(text, "{passed} passed, {failed} failed");
    if skipped > 0 {
        let _ = write!(text, ", {skipped} skipped");
    }
    if rows.len() < planned {
        let _ = write!(text, ", {} not started", planned - rows.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, verdict: Verdict) -> Row {
        Row { name, verdict, took: Duration::from_millis(1500) }
    }

    #[test]
    fn the_closing_line_is_plain_when_everything_ran() {
        let text = summary(&[row("fmt", Verdict::Passed), row("unit", Verdict::Failed("x".into()))], 2);
        assert!(text.ends_with("\n1 passed, 1 failed"), "{text}");
        assert!(text.contains("fmt              1.5 s  passed\n"), "{text}");
    }

    #[test]
    fn what_did_not_run_is_counted_aloud() {
        let text = summary(&[row("fio", Verdict::Skipped("not root".into()))], 3);
        assert!(text.contains("not run: not root"), "{text}");
        assert!(text.ends_with("\n0 passed, 0 failed, 1 skipped, 2 not started"), "{text}");
    }
}
