//! Measuring when nobody waits for it: a process of its own, begun when a command has answered.
//!
//! Drivers are large, and some of them crash: neither is to be felt by a command that did not ask for a device.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use adit_index::router::known_devices;
use adit_index::session::Session;

use super::routed::state;
use crate::open::index::IndexFile;

/// A smaller index is answered before a driver is loaded: no device is looked for.
const NODES_MIN: u32 = 1 << 18;
/// After so long, drivers are asked again which devices there are.
const ASK_AGAIN: Duration = Duration::from_secs(30 * 86_400);
/// It is not tried more often, whatever became of it.
const TRY_AGAIN: Duration = Duration::from_secs(3600);
/// The file in the cache directory whose time says when it was tried.
const TRIED_NAME: &str = "devices.tried";

/// Begins to measure what is not known, if this index can tell it. A vault's cannot: that takes its password; nor what a mount was asked for,
/// which goes with the command.
pub fn measure_if_unknown(session: &Session, index: &IndexFile) {
    if index.segment.len() < NODES_MIN || index.is_sealed || index.path.is_dir() {
        return;
    }
    let Some(state) = state() else { return };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let router = session.router();
    let is_fresh = known_devices(&state).is_some_and(|known| now < Duration::from_secs(known.asked_secs) + ASK_AGAIN);
    let is_given_up = (1..router.engines().len()).any(|engine| router.given_up(engine).is_some());
    if is_fresh && !is_given_up && !session.needs_measuring() {
        return;
    }
    // What goes wrong here is of no account to who asked something else.
    if let Err(e) = begin(&state, &index.path) {
        tracing::debug!("devices are not measured: {e}");
    }
}

fn begin(state: &Path, index: &Path) -> io::Result<()> {
    let tried = state.with_file_name(TRIED_NAME);
    let age = tried.metadata().and_then(|meta| meta.modified()).map(|at| at.elapsed().unwrap_or_default());
    if age.is_ok_and(|age| age < TRY_AGAIN) {
        return Ok(());
    }
    make_folder(state)?;
    File::create(&tried)?;
    let mut process = Command::new(std::env::current_exe()?);
    process.args(["--quiet", "index", "measure", "--background"]).arg(std::path::absolute(index)?);
    // It holds nothing of the caller: no pipe that somebody reads to its end, no folder that is to be unmounted, no terminal.
    process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").process_group(0);
    process.spawn().map(drop)
}

/// Makes the folder that a file is to lie in, for this user alone.
pub fn make_folder(file: &Path) -> io::Result<()> {
    let dir = file.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}
