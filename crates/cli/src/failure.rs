//! The one error of the program: an exit code, a message that names its subject, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use adit_core::{ErrorKind, FsError};
use adit_mount::MountError;

use crate::commands::mount::mount_failure;
use crate::exit_code::Code;
use crate::live;
use crate::space::Room;

/// Result of commands.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command failed, ready to be printed as `adit: SUBJECT: MESSAGE` and an indented hint.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    message: String,
    hint: Option<String>,
    /// Everything was said already; only the code is left.
    said: bool,
    /// Standard output is gone: end like a program that SIGPIPE kills.
    pipe: bool,
    /// Whether what is in the way goes by itself, where that is known.
    passes: Option<bool>,
}

impl Failure {
    /// A failure with its message, which names the subject.
    pub fn new(code: Code, message: impl fmt::Display) -> Failure {
        Failure { code, message: message.to_string(), hint: None, said: false, pipe: false, passes: None }
    }

    /// The command line makes no sense.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(Code::Usage, message)
    }

    /// Everything was printed already.
    pub fn said(code: Code) -> Failure {
        Failure { said: true, ..Failure::new(code, "") }
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Failure {
        self.hint = Some(hint.to_string());
        self
    }

    /// Says that what is in the way goes by itself: who can wait tries again (see [`crate::open::turn`]).
    #[must_use]
    pub fn passing(mut self) -> Failure {
        self.passes = Some(true);
        self
    }

    /// Says that it must not be tried again by itself, unless it is known that it passes.
    #[must_use]
    pub fn lasting(mut self) -> Failure {
        self.passes.get_or_insert(false);
        self
    }

    /// Whether what is in the way goes by itself, where that is known.
    pub fn passes(&self) -> Option<bool> {
        self.passes
    }

    /// Puts the subject in front.
    #[must_use]
    pub fn on(mut self, subject: impl fmt::Display) -> Failure {
        if !self.said {
            self.message = format!("{subject}: {}", self.message);
        }
        self
    }

    /// An error of the engine or a store about `subject`, which stands in front unless the error names one itself.
    pub fn fs(subject: impl fmt::Display, error: &FsError) -> Failure {
        let subject = subject.to_string();
        let about = error.subject().unwrap_or(&subject);
        if let Some(dead) = io_cause(error).and_then(|cause| dead_mount(about, cause)) {
            return dead;
        }
        let message = match error.kind() {
            // Nothing else about it could help.
            ErrorKind::WrongPassword => format!("{subject}: wrong password"),
            _ if error.subject() == Some(subject.as_str()) => error.to_string(),
            _ => format!("{subject}: {error}"),
        };
        let kind = kind_of(error);
        let failure = Failure::new(Code::of(kind), message);
        match hint_for(kind) {
            // An error made it so, and says what to do.
            Some(_) if kind == ErrorKind::ReadOnly && error.cause().is_some() => failure,
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// An error of the operating system about `subject`.
    pub fn io(subject: impl fmt::Display, error: &io::Error) -> Failure {
        let subject = subject.to_string();
        if let Some(dead) = dead_mount(&subject, error) {
            return dead;
        }
        let kind = adit_core::error::kind_of_io(error);
        let failure = Failure::new(Code::of(kind), format!("{subject}: {}", plain(error)));
        match hint_for(kind) {
            Some(hint) if kind.is_refusal() => failure.hint(hint),
            _ => failure,
        }
    }

    /// An error of writing to standard output.
    pub fn output(error: &io::Error) -> Failure {
        let mut failure = Failure::io("standard output", error);
        failure.pipe = error.kind() == io::ErrorKind::BrokenPipe;
        failure
    }

    /// The exit code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message alone.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The message and the hint, without the program's name; for a daemon's parent.
    pub fn text(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}\n  {hint}", self.message),
            None => self.message.clone(),
        }
    }

    /// Prints it to standard error. Does not return if the reader of standard output has gone.
    pub fn print(&self) {
        if self.pipe {
            crate::process::die_of_sigpipe();
        }
        if !self.said {
            eprintln!("adit: {}", self.text());
        }
    }
}

/// Failures of a command that goes on after each: printed as they come; the worst makes the exit code.
#[derive(Default)]
pub struct Failures(Option<Code>);

impl Failures {
    /// Prints a failure, and keeps its code.
    pub fn add(&mut self, failure: &Failure) {
        failure.print();
        self.0 = Some(self.0.map_or(failure.code(), |worst| worst.worse(failure.code())));
    }

    /// Fails if anything did.
    pub fn result(self) -> Result<()> {
        self.0.map_or(Ok(()), |code| Err(Failure::said(code)))
    }
}

/// The kind of an error; where there was no space for something that it comes from, that: it is what can be done something about.
fn kind_of(error: &FsError) -> ErrorKind {
    let is_full = |kind: &ErrorKind| kind.is_refusal();
    let below = |error: &FsError| {
        let cause = error.cause()?;
        let io = cause.downcast_ref().map(adit_core::error::kind_of_io);
        io.or_else(|| Some(kind_of(cause.downcast_ref()?)))
    };
    match error.kind() {
        kind @ (ErrorKind::Io | ErrorKind::ReadOnly) => below(error).filter(is_full).unwrap_or(kind),
        kind => kind,
    }
}

/// What the operating system said, if an error comes from that.
fn io_cause(error: &FsError) -> Option<&io::Error> {
    let cause = error.cause()?;
    cause.downcast_ref().or_else(|| io_cause(cause.downcast_ref()?))
}

/// What `error`, of the operating system about `subject`, is to the user if a mount of this program is in the way whose process is
/// gone. That is told wherever something of this machine is opened, also below what was named.
fn dead_mount(subject: &str, error: &io::Error) -> Option<Failure> {
    if !matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::ConnectionAborted) {
        return None;
    }
    let dead = live::dead_mount(Some(Path::new(subject)))?;
    let failure = mount_failure(&dead);
    let is_named = matches!(&dead, MountError::Stale(mountpoint) if Path::new(subject) == mountpoint);
    Some(if is_named { failure } else { failure.on(subject) })
}

/// The message of an error of the operating system, without Rust's "(os error N)".
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

/// What to advise about errors that a source may have met: damage in it, and where it has no space left.
#[derive(Clone, Debug, Default)]
pub struct Advice {
    /// The file of the volume, if it is one: another check than a vault's finds damage in that.
    volume: Option<PathBuf>,
    /// Whether it is a manifest, or a store of one.
    manifest: bool,
    /// Where it may want space, if that is known.
    room: Option<Room>,
}

impl Advice {
    /// About a manifest and the store of its content.
    pub fn about_manifests() -> Advice {
        Advice { manifest: true, ..Advice::default() }
    }

    /// About the volume in `file`.
    pub fn about_volume(file: &Path) -> Advice {
        Advice { volume: Some(file.to_owned()), room: Some(Room::Volume(file.to_owned())), ..Advice::default() }
    }

    /// About something that lies on these disks.
    pub fn about_disks(places: &[&Path]) -> Advice {
        let places = places.iter().map(|place| (*place).to_owned()).collect();
        Advice { room: Some(Room::Disks(places)), ..Advice::default() }
    }

    /// Likewise where the source is only read, and what wants space is a copy at `dest`.
    pub fn copying_to(&self, dest: &Path) -> Advice {
        Advice { room: Advice::about_disks(&[dest]).room, ..self.clone() }
    }

    /// As [`Failure::fs`], of an error that the source may have met.
    pub fn failure(&self, subject: impl fmt::Display, error: &FsError) -> Failure {
        let failure = Failure::fs(subject, error);
        match (&self.volume, &self.room) {
            (Some(file), _) if error.kind() == ErrorKind::Corrupt => failure.hint(volume_is_damaged(file)),
            _ if self.manifest && error.kind() == ErrorKind::Corrupt => failure.hint(CONTENT_IS_WRONG),
            // A quota says nothing of how full a disk is.
            (_, Some(room)) if kind_of(error) == ErrorKind::NoSpace => failure.hint(room.advice(error)),
            _ => failure,
        }
    }
}

/// What to do about wrong content of a manifest's files.
pub const CONTENT_IS_WRONG: &str = "`adit manifest verify MANIFEST --cas URL` lists every object that is wrong there; where the files are \
                                    still there, `adit manifest upload … --verify` stores it again";

/// What to do about damage in the volume in `file`.
pub fn volume_is_damaged(file: &Path) -> String {
    format!("`adit volume check {}` lists what is damaged; restore it from a backup if you can", file.display())
}

/// What to do about a kind of error, where that is the same everywhere.
fn hint_for(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::WrongPassword => {
            "check the keyboard layout and caps lock, and that it is the password of this vault"
        }
        ErrorKind::Corrupt => {
            "`adit vault check`, `adit volume check` or `adit manifest verify` lists everything that is damaged; restore it from a backup if you can"
        }
        ErrorKind::Busy => "close what uses it, or see who does with `fuser -vm PATH`",
        ErrorKind::NoSpace => "free some space there, and try again",
        ErrorKind::QuotaExceeded => {
            "the quota of its owner is used up there: remove something that counts for it, or have it raised (`quota` tells it)"
        }
        ErrorKind::FileTooLarge => {
            "no file may be that long there: by the filesystem that it lies on (FAT32: 4 GiB), or by a limit of who runs this (`ulimit -f`)"
        }
        ErrorKind::ReadOnly => "it is opened read-only, or lies on a read-only filesystem",
        _ => return None,
    })
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::new(Code::of(adit_core::error::kind_of_io(&error)), plain(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_subject_and_says_what_to_do() {
        let failure = Failure::fs("/v", &FsError::new(ErrorKind::WrongPassword));
        assert_eq!(failure.code(), Code::WrongPassword);
        assert!(failure.text().starts_with("/v: wrong password\n  check"));
        let failure = Failure::io("/x", &io::Error::from_raw_os_error(2));
        assert_eq!(failure.text(), "/x: no such file or directory");
        assert_eq!(failure.on("mount").text(), "mount: /x: no such file or directory");
    }

    #[test]
    fn what_is_full_is_told_whatever_failed_for_it() {
        let no_space = || io::Error::from_raw_os_error(libc::ENOSPC);
        let wrapped = FsError::new(ErrorKind::Io).on("read", "/x").because(no_space());
        let twice = FsError::new(ErrorKind::ReadOnly).because(FsError::new(ErrorKind::NoSpace));
        let bare = FsError::from(no_space());
        let failures =
            [&wrapped, &twice, &bare].map(|error| Advice::about_disks(&[Path::new("/tmp")]).failure("/x", error));
        for failure in failures.into_iter().chain([Failure::io("/x", &no_space())]) {
            assert_eq!(failure.code(), Code::NoSpace, "{}", failure.text());
            assert!(failure.text().contains("and try again"), "{}", failure.text());
        }
        // Of a volume: its own capacity, or what its host gives.
        let volume = Advice::about_volume(Path::new("/tmp/none"));
        let own = || FsError::new(ErrorKind::NoSpace).because(adit_volume::CapacityUsed::new("used up"));
        for error in [own(), FsError::new(ErrorKind::ReadOnly).because(own())] {
            assert!(volume.failure("/x", &error).text().contains("adit volume resize /tmp/none"));
        }
        let text = volume.failure("/x", &bare).text();
        assert!(text.contains("the disk with /tmp/none is full") && !text.contains("resize"), "{text}");
        // A limit of the host's is no lack of space.
        for (number, code, told) in
            [(libc::EDQUOT, Code::NoSpace, "the quota of its owner"), (libc::EFBIG, Code::Failure, "ulimit -f")]
        {
            let below = FsError::new(ErrorKind::Io).because(io::Error::from_raw_os_error(number));
            for error in [below, FsError::from(io::Error::from_raw_os_error(number))] {
                let failure = Advice::about_volume(Path::new("/tmp/none")).failure("/x", &error);
                assert!(failure.text().contains(told) && !failure.text().contains("resize"), "{}", failure.text());
                assert_eq!(failure.code(), code, "{}", failure.text());
            }
        }
        let damaged = FsError::new(ErrorKind::Corrupt).because(no_space());
        assert_eq!(Failure::fs("/x", &damaged).code(), Code::Corrupt);
        let ended = FsError::new(ErrorKind::ReadOnly).because("write failed; reopen it to go on");
        assert_eq!(Failure::fs("/x", &ended).text(), "/x: read-only: write failed; reopen it to go on");
        assert!(Failure::fs("/x", &FsError::new(ErrorKind::ReadOnly)).text().contains("read-only filesystem"));
    }
}
