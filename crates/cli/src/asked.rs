//! Asking the index of a mount: [`Asked`] sends a [`Question`] to the mount's process and hands the pieces of the answer on.

use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use adit_mount::control::{ControlError, MountInfo, Registry};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::mount::answered;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::question::{INDEX_VERB, Piece, Question, Waiting};

/// Between two lines about an index that is being made, when standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// A mount that is asked.
pub struct Asked {
    mount: MountInfo,
    quiet: bool,
}

impl Asked {
    /// The mount at `mountpoint`; none if that is not one.
    ///
    /// # Errors
    /// What the registry says otherwise: its process is gone.
    pub fn of(mountpoint: &Path, quiet: bool) -> Result<Option<Asked>> {
        if !mountpoint.is_dir() {
            return Ok(None);
        }
        match Registry::of_this_user().find(mountpoint) {
            Ok(mount) => Ok(Some(Asked { mount, quiet })),
            Err(ControlError::NotAMount(_)) => Ok(None),
            Err(e) => Err(answered(&e)),
        }
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        Path::new(&self.mount.mountpoint)
    }

    /// The kind of what is mounted, as `adit mounts` has it.
    pub fn kind(&self) -> &str {
        &self.mount.kind
    }

    /// Asks, and hands each piece of the answer to `each`, but those that say that it takes time, which are shown. Returns what comes last.
    ///
    /// # Errors
    /// Those of the process of the mount, and of `each`, which ends it.
    pub fn ask(&self, question: &Question, each: &mut dyn FnMut(Piece) -> Result<()>) -> Result<Value> {
        let args = serde_json::to_value(question).map_err(|e| Failure::new(Code::Failure, e))?;
        let registry = Registry::of_this_user();
        let mut shown = Shown::new(self.quiet);
        let mut failed = None;
        let end = || ControlError::Silent { mountpoint: self.mountpoint().to_owned(), pid: self.mount.pid };
        let mut take = |piece: Value| {
            let taken = match Piece::deserialize(&piece) {
                Ok(Piece::Waiting(waiting)) => {
                    shown.tell(&waiting);
                    Ok(())
                }
                Ok(piece) => {
                    shown.end();
                    each(piece)
                }
                // Of a later version.
                Err(_) => Ok(()),
            };
            let taken = if interrupt::came() { Err(Failure::new(Code::Failure, "interrupted")) } else { taken };
            taken.map_err(|failure| {
                failed = Some(failure);
                end()
            })
        };
        let mut waiting = || registry.ping(&self.mount);
        let answer = registry.call_streaming(&self.mount, INDEX_VERB, &args, &mut take, &mut waiting);
        shown.end();
        match (failed, answer) {
            (Some(failure), _) => Err(failure),
            (None, Ok(value)) => Ok(value),
            (None, Err(ControlError::Answered { kind, message })) => {
                Err(Failure::new(Code::of_word(&kind), format!("{}: {message}", self.mount.mountpoint)))
            }
            (None, Err(e)) => Err(answered(&e)),
        }
    }
}

/// How far the making of an index is.
struct Shown {
    bar: Option<ProgressBar>,
    lines: bool,
    last_line: Instant,
}

impl Shown {
    fn new(quiet: bool) -> Shown {
        let is_terminal = stderr().is_terminal();
        let bar = (is_terminal && !quiet).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(indicatif::ProgressStyle::default_spinner());
            bar
        });
        Shown { bar, lines: !is_terminal && !quiet, last_line: Instant::now() }
    }

    fn tell(&mut self, waiting: &Waiting) {
        let text = match (waiting.done, waiting.total) {
            (0, 0) => waiting.doing.clone(),
            (done, 0) => format!("{}: {done} entries", waiting.doing),
            (done, total) => format!("{}: {done} of {total}", waiting.doing),
        };
        if let Some(bar) = &self.bar {
            bar.set_message(text);
            bar.tick();
        } else if self.lines && self.last_line.elapsed() >= LINE_INTERVAL {
            eprintln!("adit: the index of the mount: {text}");
            self.last_line = Instant::now();
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
