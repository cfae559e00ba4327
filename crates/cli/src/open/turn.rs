//! Whose turn it is with a volume: one process has its file, and whoever comes then waits here, and nowhere else.
//!
//! The file itself is the lock. A command has it until it ends, and that is waited for, as are mounts that begin or end. A
//! process that goes on to have something mounted is not waited for: it is asked. So whoever wants to work in a volume is told
//! which process has it mounted, asks that or opens the file, and says of a failure whether it passes ([`crate::failure::Failure::passes`]).
//!
//! The lock is asked for again and again, because the host's own wait for it has no end. Whose turn comes next is chance.

use std::path::Path;
use std::time::{Duration, Instant};

use adit_mount::control::{ControlError, MountInfo, Registry};

use super::remark;
use crate::commands::mount::answered;
use crate::exit_code::Code;
use crate::failure::Result;
use crate::live;

/// How long to wait for others, and how often to look.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(10);
/// Who waits for longer is told what for.
const WORTH_TELLING: Duration = Duration::from_secs(2);

/// What was seen of a volume's mounts.
pub struct Seen {
    /// Those of this user.
    pub mounts: Vec<MountInfo>,
    /// One of them, by the process that has the file open.
    pub process: Option<MountInfo>,
    /// One whose process says nothing.
    silent: Option<ControlError>,
}

impl Seen {
    /// Looks for the mounts of the volume in `file`.
    pub fn of(file: &Path) -> Seen {
        let mounts = live::of_source(file);
        let registry = Registry::of_this_user();
        let mut silent = None;
        let answers = |mount: &&MountInfo| match registry.ping(mount) {
            Ok(()) => true,
            Err(e) => {
                silent = Some(e).filter(|e| matches!(e, ControlError::Silent { .. })).or(silent.take());
                false
            }
        };
        let process = mounts.iter().find(answers).cloned();
        Seen { mounts, process, silent }
    }

    /// Fails if a mount has a process that says nothing, and none that does.
    ///
    /// # Errors
    /// That, with what to do.
    pub fn expect_answers(&self) -> Result<()> {
        match (&self.process, &self.silent) {
            (None, Some(silent)) => Err(answered(silent)),
            _ => Ok(()),
        }
    }

    /// Whether mounts came or went since.
    pub fn has_changed(&self, file: &Path) -> bool {
        live::of_source(file) != self.mounts
    }
}

/// Has `attempt` work in the volume in `file`, again as long as it fails with something that passes, or is busy with mounts
/// that came or went meanwhile. It must have done nothing when it fails so.
///
/// # Errors
/// Its last failure.
pub fn take<T>(file: &Path, mut attempt: impl FnMut(&Seen) -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let mut is_told = false;
    loop {
        let seen = Seen::of(file);
        let failure = match attempt(&seen) {
            Err(failure) => failure,
            done => return done,
        };
        let may_pass = || failure.code() == Code::Busy && seen.has_changed(file);
        let passes = failure.passes().unwrap_or_else(may_pass);
        if !passes || began.elapsed() >= PATIENCE {
            return Err(failure);
        }
        if !is_told && began.elapsed() >= WORTH_TELLING {
            remark(&format!("{}: another process has it open; waiting for that", file.display()));
            is_told = true;
        }
        tracing::debug!("{}", failure.text());
        std::thread::sleep(STEP);
    }
}
