//! Asking the index of a mount, named by its mountpoint or a folder in it: [`Asked`] sends a [`Question`] to the mount's process and hands the pieces of the answer on.

use std::ffi::OsStr;
use std::io::{IsTerminal, stderr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_mount::mountpoint;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::mount::answered;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::live;
use crate::question::{INDEX_VERB, Piece, Question, Waiting};
use crate::source::manifest_if_one;

/// Between two lines about an index that is being made, when standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// A mount that is asked.
pub struct Asked {
    mount: MountInfo,
    /// The folder in it that was named, from its root; empty for all of it.
    folder: PathBuf,
    quiet: bool,
}

/// The part of a mount that is mounted at a place, from its root: empty is all of it.
fn part_at(place: &Path) -> PathBuf {
    let entry = mountpoint::resolve(place).ok().and_then(|place| mountpoint::find(&place));
    entry.and_then(|entry| Some(entry.root.strip_prefix("/").ok()?.to_owned())).unwrap_or_default()
}

/// A path from the root without the slashes in front.
fn without_slashes(path: &[u8]) -> &[u8] {
    &path[path.iter().take_while(|byte| **byte == b'/').count()..]
}

impl Asked {
    /// The mount at `mountpoint`; none if that is not one.
    ///
    /// # Errors
    /// What the registry says otherwise: its process is gone, or says nothing.
    pub fn of(mountpoint: &Path, quiet: bool) -> Result<Option<Asked>> {
        // Whoever looks there would wait for it.
        live::expect_answers(mountpoint)?;
        if !mountpoint.is_dir() {
            return Ok(None);
        }
        match Registry::of_this_user().find_around(mountpoint) {
            Ok(mount) => Ok(Some(Asked { mount, folder: part_at(mountpoint), quiet })),
            Err(ControlError::NotAMount(_)) => Ok(None),
            Err(e) => Err(answered(&e)),
        }
    }

    /// As [`Asked::of`], also of a mount that `folder` lies in: then [`Asked::path_of_mount`] begins there.
    ///
    /// # Errors
    /// As [`Asked::of`].
    pub fn around(folder: &Path, quiet: bool) -> Result<Option<Asked>> {
        if let Some(asked) = Asked::of(folder, quiet)? {
            return Ok(Some(asked));
        }
        let Some((mountpoint, inside)) = split_at_mountpoint(folder) else { return Ok(None) };
        Ok(Asked::of(&mountpoint, quiet)?.map(|asked| Asked { folder: asked.folder.join(inside), ..asked }))
    }

    /// What is at `path` in the folder that was named, as a path of the mount, from its root.
    pub fn path_of_mount(&self, path: &OsStr) -> Vec<u8> {
        match self.folder.as_os_str().as_bytes() {
            b"" => without_slashes(path.as_bytes()).to_vec(),
            folder => match path.as_bytes() {
                b"" => folder.to_vec(),
                path => [folder, b"/", without_slashes(path)].concat(),
            },
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

    /// Whether it is a manifest, or lies on one: its times are of microseconds then, at most.
    pub fn is_of_manifest(&self) -> bool {
        let source = self.mount.source_raw.as_deref().unwrap_or(self.mount.source.as_bytes());
        let lies_on_one = || manifest_if_one(OsStr::from_bytes(source)).is_ok_and(|manifest| manifest.is_some());
        match self.kind() {
            "manifest" => true,
            "overlay" => lies_on_one(),
            _ => false,
        }
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
        let end = || self.mount.silent();
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

/// The root of the filesystem that `folder` lies in and is not, and where in it that is.
fn split_at_mountpoint(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let folder = folder.canonicalize().ok()?;
    let device = |path: &Path| path.metadata().ok().map(|meta| meta.dev());
    let own = device(&folder).filter(|_| folder.is_dir())?;
    let root = folder.ancestors().take_while(|above| device(above) == Some(own)).last()?;
    let inside = folder.strip_prefix(root).ok().filter(|inside| !inside.as_os_str().is_empty())?;
    Some((root.to_owned(), inside.to_owned()))
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
