//! Where log lines go: standard error in the foreground, a bounded file in the background.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_mount::daemon::BoundedLog;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::args::low::GlobalArgs;
use crate::failure::{Failure, Result};
use crate::terminal::{InertLines, inert};

/// What goes to a file, unless something else was asked for.
const BACKGROUND_LEVEL: &str = "info";

/// Warnings and errors that were logged, shown or not.
static WARNINGS: AtomicU64 = AtomicU64::new(0);

/// Whether the work is about manifests, in which another command looks for damage than in vaults and volumes.
static ABOUT_MANIFESTS: AtomicBool = AtomicBool::new(false);

/// Counts warnings, because a verb shows them only when asked.
struct Count;

impl<S: tracing::Subscriber> Layer<S> for Count {
    fn on_event(&self, _: &tracing::Event<'_>, _: Context<'_, S>) {
        WARNINGS.fetch_add(1, Ordering::Relaxed);
    }
}

/// For verbs without a mount: what they have to say, they say themselves; log lines only on request. Call one of these
/// once.
pub fn of_verb(global: &GlobalArgs) -> Result<()> {
    to_stderr(global, "off", None)
}

/// For a mount in the foreground: warnings go to standard error, and to `file` what a mount in the background would log. A file that
/// cannot be written is told, and left out.
pub fn of_foreground(global: &GlobalArgs, file: Option<&Path>) -> Result<()> {
    let opened = file.and_then(|path| match BoundedLog::open_for_all(path) {
        Ok(log) => Some(log),
        Err(e) => {
            eprintln!("adit: no log: {}", Failure::io(path.display(), &e).text());
            None
        }
    });
    to_stderr(global, "warn", opened)
}

fn to_stderr(global: &GlobalArgs, default: &str, file: Option<BoundedLog>) -> Result<()> {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let to_stderr = move || InertLines::new(io::stderr(), colours);
    let lines = tracing_subscriber::fmt::layer().with_writer(to_stderr).with_ansi(colours);
    let of_file = file.map(in_file);
    let of_file =
        of_file.map(|lines| filter(global, BACKGROUND_LEVEL).map(|filter| lines.with_filter(filter))).transpose()?;
    tracing_subscriber::registry()
        .with(lines.with_filter(filter(global, default)?))
        .with(of_file)
        .with(Count.with_filter(LevelFilter::WARN))
        .init();
    Ok(())
}

/// Says at the end of a verb that something was warned of, if nobody has seen it.
pub fn tell_unseen(global: &GlobalArgs) {
    let count = warnings();
    let shown = global.quiet || global.verbose > 0 || global.log.is_some() || variable().is_some();
    if count == 0 || shown {
        return;
    }
    let what = if count == 1 { "1 warning".to_owned() } else { format!("{count} warnings") };
    let looks = match ABOUT_MANIFESTS.load(Ordering::Relaxed) {
        true => "`adit manifest verify` looks",
        false => "`adit vault check` or `adit volume check` looks",
    };
    eprintln!("adit: {what}: -v shows them, and {looks} for damage");
}

/// From here on the work is about a manifest.
pub fn about_manifests() {
    ABOUT_MANIFESTS.store(true, Ordering::Relaxed);
}

/// Logs to a file that is bounded in size and that only this user can read, unless it is for all.
pub fn to_file(global: &GlobalArgs, path: &Path, for_all: bool) -> Result<()> {
    let filter = filter(global, BACKGROUND_LEVEL)?;
    let log = if for_all { BoundedLog::open_for_all(path) } else { BoundedLog::open(path) };
    let log = log.map_err(|e| Failure::io(path.display(), &e))?;
    tracing_subscriber::registry()
        .with(in_file(log).with_filter(filter))
        .with(Count.with_filter(LevelFilter::WARN))
        .init();
    Ok(())
}

/// Lines of a log file.
fn in_file<S: tracing::Subscriber + for<'a> LookupSpan<'a>>(log: BoundedLog) -> impl Layer<S> {
    tracing_subscriber::fmt::layer().with_writer(Mutex::new(InertLines::new(log, false))).with_ansi(false)
}

/// Notes in the log that was named why there is no mount, or no more: whoever reads only that is to know.
pub fn note_failure(path: &Path, failure: &Failure) {
    // Where that is impossible, it is on standard error as well.
    let noted = BoundedLog::open_for_all(path).and_then(|mut log| writeln!(log, "adit: {}", inert(&failure.text())));
    if let Err(e) = noted {
        tracing::debug!(error = %e, "the failure is not in the log");
    }
}

/// How many warnings and errors were logged, shown or not.
pub fn warnings() -> u64 {
    WARNINGS.load(Ordering::Relaxed)
}

fn filter(global: &GlobalArgs, default: &str) -> Result<EnvFilter> {
    let variable = variable();
    let text = match (global.log.as_ref().or(variable.as_ref()), global.verbose) {
        (Some(text), _) => text.as_str(),
        (None, 0) => default,
        (None, 1) => "info",
        (None, _) => "debug",
    };
    EnvFilter::try_new(text).map_err(|e| Failure::usage(format!("--log {text}: {e}")))
}

/// The level that the environment asks for.
fn variable() -> Option<String> {
    std::env::var("ADIT_LOG").ok().filter(|text| !text.is_empty())
}
