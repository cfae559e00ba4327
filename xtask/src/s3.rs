//! S3 servers: their programs are brought into the cache, and started for the tests or for a command of the developer's.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use adit_servers::{Kind, S3Server};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::{deadline, golang, workplace};

/// The bucket that is there from the start.
const BUCKET: &str = "adit-tests";

/// What `cargo xtask s3` takes.
#[derive(Args)]
pub struct S3Args {
    /// Which server
    #[arg(long, value_enum, default_value_t = Choice::Versitygw)]
    server: Choice,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Choice {
    Versitygw,
    Moto,
}

impl From<Choice> for Kind {
    fn from(choice: Choice) -> Kind {
        match choice {
            Choice::Versitygw => Kind::Versitygw,
            Choice::Moto => Kind::Moto,
        }
    }
}

/// Runs a command beside a server, which ends with it.
pub fn run(args: &S3Args) -> Result<ExitCode> {
    let servers = Servers::of(&[args.server.into()])?;
    for server in &servers.0 {
        eprintln!("{} listens at {}", server.server.kind().name(), server.server.endpoint());
    }
    let (program, arguments) = args.command.split_first().context("a command to run")?;
    let mut command = Command::new(program);
    command.args(arguments).envs(servers.variables());
    let status = command.status().with_context(|| format!("cannot start {}", program.display()))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Servers, for tests. They end when this is dropped.
pub struct Servers(Vec<Scratch>);

impl Servers {
    /// Starts one of each kind.
    pub fn start() -> Result<Servers> {
        Servers::of(&Kind::ALL)
    }

    fn of(kinds: &[Kind]) -> Result<Servers> {
        kinds.iter().map(|kind| Scratch::start(*kind)).collect::<Result<_>>().map(Servers)
    }

    /// What reaches the first one, what starts more of any kind, and the buckets of all: `ADIT_S3_URLS`, each
    /// `s3://BUCKET/PREFIX@ENDPOINT`, separated by spaces. The keys are those of the first one.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        // Of several values for one name the last counts.
        let mut variables: Vec<(&str, OsString)> = self.0.iter().rev().flat_map(Scratch::variables).collect();
        let urls: Vec<String> =
            self.0.iter().map(|server| format!("s3://{BUCKET}/objects@{}", server.server.endpoint())).collect();
        variables.push(("ADIT_S3_URLS", urls.join(" ").into()));
        variables
    }
}

/// A server with an empty bucket in a folder of its own; both are gone when this is dropped.
struct Scratch {
    server: S3Server,
    program: OsString,
    // After the server, which writes to it.
    _dir: TempDir,
}

impl Scratch {
    /// Brings the program into the cache if it is missing, and starts it.
    fn start(kind: Kind) -> Result<Scratch> {
        let program = match kind {
            Kind::Versitygw => golang::VERSITYGW.ensure()?,
            Kind::Moto => deadline::ensure()?.moto,
        };
        // Beside what is built rather than in /tmp, which may have no extended attributes.
        let dir =
            TempDir::with_prefix_in("s3-", workplace::target_dir()?).context("cannot make the server's folder")?;
        let server = S3Server::start(kind, &program, dir.path())
            .with_context(|| format!("cannot start {}", program.display()))?;
        server.create_bucket(BUCKET).with_context(|| format!("cannot make a bucket in {}", kind.name()))?;
        Ok(Scratch { server, program: program.into_os_string(), _dir: dir })
    }

    /// What a program needs to reach it, and to start another one of its kind.
    fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables: Vec<(&str, OsString)> =
            self.server.variables().into_iter().map(|(name, value)| (name, value.into())).collect();
        let kind = self.server.kind();
        variables.push(("ADIT_S3_BUCKET", BUCKET.into()));
        variables.push((adit_servers::ENV_KIND, kind.name().into()));
        variables.push((kind.variable(), self.program.clone()));
        variables
    }
}
