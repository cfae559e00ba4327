//! Benchmarks of adit: each prints both sides of a ratio, measured in the same run.
//!
//! `adit-bench vault` measures the vault store, `adit-bench volume` the volume, `adit-bench manifest` manifests, `adit-bench index` the [`index`]. [`mounted`] runs one script on mounts of adit and of its rivals; [`micro`]
//! calls the crates directly. The rivals are known in this crate alone ([`sides`], [`rivals`]).

mod aims;
mod index;
mod machine;
mod micro;
mod mounted;
mod null_server;
mod remote;
mod report;
mod rivals;
mod served;
mod sides;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

use report::Report;

/// Counts for [`micro`]; elsewhere it costs one relaxed load an allocation.
#[global_allocator]
static ALLOCATOR: micro::counting::Counting = micro::counting::Counting;

/// Benchmarks of adit beside its rivals
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The vault store
    Vault(RunArgs),
    /// The volume
    Volume(RunArgs),
    /// Manifests
    Manifest(RunArgs),
    /// The index of paths
    Index(RunArgs),
    /// Serves small constant files; started by the benchmark itself
    #[command(hide = true)]
    NullServer {
        /// Where to mount
        mountpoint: PathBuf,
        /// What to behave like
        #[arg(value_enum)]
        like: Subject,
    },
}

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Calls into the crates, in this process
    Micro,
    /// The same script on mounts of adit and of its rivals
    Macro,
    /// Both
    All,
}

/// Which store is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Subject {
    /// Encrypted vaults, beside gocryptfs and the official stack.
    #[default]
    Vault,
    /// A filesystem in one file, beside the host's own.
    Volume,
    /// Content in S3, beside curl and other mounts of it.
    Manifest,
    /// Questions over many paths, beside a map of them, plocate, fd and ripgrep.
    Index,
}

/// What `vault`, `volume`, `manifest` and `index` take.
#[derive(Args)]
pub struct RunArgs {
    /// Said by the subcommand.
    #[arg(skip)]
    subject: Subject,
    /// What to measure
    #[arg(value_enum, default_value = "all")]
    part: Part,
    /// Sizes and counts of an eighth, and three rounds: to see that it runs, not to quote
    #[arg(long)]
    quick: bool,
    /// Rounds; each figure is the median of so many (more where a row says so)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Run these groups of rows only (see --list)
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    rows: Vec<String>,
    /// Measure these sides only (see --list)
    #[arg(long, value_name = "SIDE", value_delimiter = ',')]
    sides: Vec<String>,
    /// A folder on the disk to measure on; what is made there is removed again [default: cargo's target directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The adit program [default: built from this checkout in the profile of the benchmark]
    #[arg(long, value_name = "PROGRAM")]
    adit: Option<PathBuf>,
    /// Write all samples here as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// List groups and sides, and leave
    #[arg(long)]
    list: bool,
}

impl RunArgs {
    /// Whether the group of rows is asked for; some are only if they are named.
    fn wants(&self, group: &str, on_request: bool) -> bool {
        (self.rows.is_empty() && !on_request) || self.rows.iter().any(|row| row == group)
    }

    /// Rounds to run.
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 3 } else { 5 })
    }

    /// A size or count at the scale of this run.
    fn scaled(&self, full: u64) -> u64 {
        if self.quick { full.div_ceil(8) } else { full }
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().what {
        What::Vault(args) => run(&args),
        What::Volume(args) => run(&RunArgs { subject: Subject::Volume, ..args }),
        What::Manifest(args) => run(&RunArgs { subject: Subject::Manifest, ..args }),
        What::Index(args) => run(&RunArgs { subject: Subject::Index, ..args }),
        What::NullServer { mountpoint, like } => null_server::serve(&mountpoint, like).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("adit-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The groups of both kinds that are run only if they are asked for by name.
fn on_request(subject: Subject) -> Vec<&'static str> {
    micro::on_request(subject).into_iter().chain(mounted::on_request(subject)).collect()
}

/// Measures a store; false if a side failed in a row.
fn run(args: &RunArgs) -> Result<bool> {
    let (micro_groups, macro_groups) = (micro::groups(args.subject), mounted::group_names(args.subject));
    if args.list {
        println!("micro groups: {}", micro_groups.join(", "));
        println!("macro groups: {}", macro_groups.join(", "));
        println!("by name only: {}", on_request(args.subject).join(", "));
        println!("sides:        {}", sides::names(args.subject).join(", "));
        return Ok(true);
    }
    let unknown =
        args.rows.iter().find(|row| !micro_groups.contains(&row.as_str()) && !macro_groups.contains(&row.as_str()));
    if let Some(unknown) = unknown {
        anyhow::bail!("there is no group {unknown}; --list names them");
    }
    let mut report = Report::default();
    let dir = machine::work_dir(args.dir.as_deref())?;
    machine::describe(&mut report, &dir)?;
    if args.part != Part::Macro {
        micro::run(args, &dir, &mut report)?;
    }
    if args.part != Part::Micro {
        mounted::run(args, &dir, &mut report)?;
    }
    println!("{}", report.to_markdown());
    if let Some(path) = &args.json {
        report.write_json(path)?;
    }
    Ok(report.failures().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_very_long_runs_only_by_its_name() {
        let wants = |arguments: &[&str], group, on_request| {
            let typed = ["adit-bench", "volume"].iter().chain(arguments);
            match Cli::try_parse_from(typed).unwrap().what {
                What::Volume(args) => args.wants(group, on_request),
                _ => unreachable!("volume was typed"),
            }
        };
        assert!(wants(&[], "random", false));
        assert!(!wants(&[], "micro-kv", true));
        assert!(wants(&["--rows", "random,micro-kv"], "micro-kv", true));
        assert!(!wants(&["--rows", "micro-kv"], "random", false));
    }

    #[test]
    fn names_of_groups_are_unique() {
        for subject in [Subject::Vault, Subject::Volume, Subject::Manifest, Subject::Index] {
            let mut names: Vec<&str> = micro::groups(subject);
            names.extend(mounted::group_names(subject));
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{subject:?}");
        }
    }
}
