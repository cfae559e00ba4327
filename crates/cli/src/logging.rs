//! Where log lines go: standard error in the foreground, a bounded file in the background.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Mutex;

use adit_mount::daemon::BoundedLog;
use tracing_subscriber::EnvFilter;

use crate::args::low::GlobalArgs;
use crate::failure::{Failure, Result};

/// Logs to standard error. Call one of these once.
pub fn to_stderr(global: &GlobalArgs) -> Result<()> {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter(global, "warn")?)
        .with_writer(io::stderr)
        .with_ansi(colours)
        .init();
    Ok(())
}

/// Logs to a file that is bounded in size and that only this user can read.
pub fn to_file(global: &GlobalArgs, path: &Path) -> Result<()> {
    let filter = filter(global, "info")?;
    let log = BoundedLog::open(path).map_err(|e| Failure::io(path.display(), &e))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(Mutex::new(log)).with_ansi(false).init();
    Ok(())
}

fn filter(global: &GlobalArgs, default: &str) -> Result<EnvFilter> {
    let variable = std::env::var("ADIT_LOG").ok().filter(|text| !text.is_empty());
    let text = match (global.log.as_ref().or(variable.as_ref()), global.verbose) {
        (Some(text), _) => text.as_str(),
        (None, 0) => default,
        (None, 1) => "info",
        (None, _) => "debug",
    };
    EnvFilter::try_new(text).map_err(|e| Failure::usage(format!("--log {text}: {e}")))
}
