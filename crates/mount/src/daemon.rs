//! Going to the background: the command returns when the mount is usable, or with the reason why it is not.
//!
//! [`daemonize`] forks before any thread exists. The child says through a pipe how it went ([`Readiness`]); the parent waits
//! for that word. Only then does the child give up the terminal, its folder, and the parent's session and process group, so
//! relative paths and messages work until the mount stands. Secrets read before the fork stay in memory; the child's
//! environment is the parent's.
//!
//! The process group matters for a mount that systemd makes because somebody came to its place (`x-systemd.automount`): whoever goes there waits
//! for the mount, but for the group that makes it. A child that had left it would wait for itself.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};

/// A log file longer than this, in bytes, is moved aside (one generation is kept).
pub const LOG_LEN_MAX_BYTES: u64 = 1 << 20;
/// Longest report that the parent reads, in bytes.
const REPORT_LEN_MAX: u64 = 64 << 10;

/// Which of the two processes goes on here.
#[derive(Debug)]
pub enum Side {
    /// The one that was started: the child's word, or its death. It should exit with it now.
    Parent(Result<(), StartFailure>),
    /// The one in the background. It must call [`Readiness::ready`] or [`Readiness::failed`].
    Child(Readiness),
}

/// Why the background process did not come up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct StartFailure {
    /// The exit code that the failure calls for.
    pub exit_code: u8,
    /// The reason.
    pub message: String,
}

/// The child's one word to its parent.
#[derive(Debug)]
pub struct Readiness {
    pipe: File,
}

/// Forks; see [`Side`].
///
/// # Errors
/// `InvalidInput` if this process has threads, of which the child would have none; else what the system says.
pub fn daemonize() -> io::Result<Side> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "threads run already; it is too late to fork"));
    }
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: this process has one thread, so no lock is held by a thread that the child lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(read);
            Ok(Side::Child(Readiness { pipe: write.into() }))
        }
        child => {
            drop(write);
            Ok(Side::Parent(await_word(read, child)))
        }
    }
}

/// Reads the child's report, or learns how it died without one.
fn await_word(pipe: OwnedFd, child: i32) -> Result<(), StartFailure> {
    let mut report = Vec::new();
    let read = File::from(pipe).take(REPORT_LEN_MAX).read_to_end(&mut report);
    match read.map(|_| serde_json::from_slice::<Result<(), StartFailure>>(&report)) {
        Ok(Ok(word)) => word,
        Ok(Err(_)) | Err(_) => Err(StartFailure { exit_code: 1, message: how_it_died(child) }),
    }
}

fn how_it_died(child: i32) -> String {
    let status = Pid::from_raw(child).and_then(|pid| rustix::process::waitpid(Some(pid), WaitOptions::empty()).ok()?);
    let how = match status.map(|(_, status)| status) {
        Some(status) => describe(status),
        None => "in an unknown way".into(),
    };
    format!("the background process ended {how} before the mount was usable")
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("with exit code {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => "in an unknown way".into(),
    }
}

impl Readiness {
    /// The mount is usable: leaves the terminal, the parent's session and the current folder, and lets the parent return.
    ///
    /// From here on standard input, output and error are `/dev/null`; log to a file ([`BoundedLog`]).
    pub fn ready(self) -> io::Result<()> {
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        std::env::set_current_dir("/")?;
        rustix::process::setsid()?;
        self.say(&Ok(()))
    }

    /// The mount failed; the parent exits with this code and message. The child should end now.
    pub fn failed(self, failure: StartFailure) -> io::Result<()> {
        self.say(&Err(failure))
    }

    fn say(mut self, word: &Result<(), StartFailure>) -> io::Result<()> {
        self.pipe.write_all(&serde_json::to_vec(word)?)
    }
}

/// Where a background mount logs: `$XDG_STATE_HOME/adit/log`, else `~/.local/state/adit/log`. `None` without a home.
pub fn log_path() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("adit/log"))
}

/// A log file of bounded size, shared by the mounts of a user: whole lines are appended, and when it has grown past
/// [`LOG_LEN_MAX_BYTES`] it becomes `log.1`.
#[derive(Debug)]
pub struct BoundedLog {
    path: PathBuf,
    file: File,
    len_max: u64,
    /// Of new files.
    mode: u32,
}

impl BoundedLog {
    /// Opens or creates the log, readable by this user alone, with its folders.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, LOG_LEN_MAX_BYTES, 0o600)
    }

    /// The same, readable by everybody who can get at it.
    pub fn open_for_all(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, LOG_LEN_MAX_BYTES, 0o644)
    }

    fn with_limit(path: &Path, len_max: u64, mode: u32) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        Ok(BoundedLog { path: path.into(), file: open_append(path, mode)?, len_max, mode })
    }

    /// Moves a full log aside. Another mount may have done so already; then its new file is taken up.
    fn rotate(&mut self) -> io::Result<()> {
        let at_path = std::fs::metadata(&self.path).map(|m| m.len()).unwrap_or(0);
        if at_path > self.len_max {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            std::fs::rename(&self.path, aside)?;
        }
        self.file = open_append(&self.path, self.mode)?;
        Ok(())
    }
}

fn open_append(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(mode).open(path)
}

impl Write for BoundedLog {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.file.metadata()?.len() > self.len_max {
            self.rotate()?;
        }
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_survives_the_pipe() {
        for word in [Ok(()), Err(StartFailure { exit_code: 3, message: "wrong \"password\"\n".into() })] {
            let (read, write) = rustix::pipe::pipe().unwrap();
            Readiness { pipe: write.into() }.say(&word).unwrap();
            assert_eq!(await_word(read, 0), word);
        }
    }

    #[test]
    fn a_child_that_dies_silently_is_a_failure() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        drop(write);
        let failure = await_word(read, 0).unwrap_err();
        assert_eq!(failure.exit_code, 1);
        assert!(failure.message.contains("before the mount was usable"), "{failure}");
    }

    #[test]
    fn a_process_with_threads_does_not_fork() {
        // The test harness has threads, always.
        assert_eq!(daemonize().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_log_is_bounded_and_keeps_one_generation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/adit/log");
        let mut log = BoundedLog::with_limit(&path, 100, 0o600).unwrap();
        let mut other = BoundedLog::with_limit(&path, 100, 0o600).unwrap();
        for n in 0..40 {
            writeln!(log, "line {n:04}").unwrap();
            writeln!(other, "other {n:03}").unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() <= 120);
        assert!(std::fs::metadata(path.with_extension("1")).unwrap().len() <= 120);
        assert!(std::fs::read_to_string(&path).unwrap().contains("other 039"));
    }
}
