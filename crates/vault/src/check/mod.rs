//! Checking a vault for damage, and repairing what can be repaired, without a mount.
//!
//! [`check`] walks the directories from the root, then the content directories that the walk did not reach, and gives
//! a [`Report`]. [`repair`] checks, mends, and checks again until nothing more can be done; it gives a
//! [`RepairReport`].
//!
//! Invariants. Nothing is ever deleted or overwritten: what has no place is moved, to the vault's own directory
//! `/lost+found` where it can be read there, else to the folder `adit-lost+found` beside `d`, under the path that it
//! had. Each step is one rename or one publication, so that a crash between two leaves something that the next repair
//! goes on with. Whatever the host refuses to read is reported as that ([`ProblemKind::HostError`]) and never taken
//! for absent: while anything is unread, no content directory is called an orphan that could be moved.
//!
//! A directory whose content is gone is made again empty, because nothing works in it otherwise. That it was not empty
//! must not be forgotten: before it is made, a note about it is put into `/lost+found` ([`lost`]), and every later check
//! tells of it ([`Report::lost`]) until a person removes the note.
//!
//! Memory: about 150 bytes for each directory of the vault and the listing of one directory; nothing for a file. The
//! directories wait in a queue, so no depth of nesting exhausts the stack. Files of other programs are listed as
//! notes and left alone. The kinds are those of `fixtures/README.md`.

mod conflicts;
mod content;
mod entry;
mod lost;
mod moves;
pub(crate) mod name;
mod repair;
mod walk;

use std::fmt;

use adit_core::Result;
use adit_core::media::HostDir;

use crate::format::DirId;
use crate::vault::Unlocked;

pub use conflicts::{Conflict, Resolution, keep};
pub use lost::Lost;
pub use repair::{Repair, RepairReport, repair};

/// Most problems that a report holds; the rest is counted.
pub const PROBLEMS_MAX: usize = 100_000;
/// Most notes that a report holds; the rest is counted.
pub const NOTES_MAX: usize = 10_000;

/// What is checked.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether every chunk of every file is read and authenticated, not its header and length alone.
    pub contents: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { contents: true }
    }
}

/// How far a check has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Files seen.
    pub files: u64,
    /// Directories seen.
    pub directories: u64,
    /// Symbolic links seen.
    pub symlinks: u64,
    /// Ciphertext bytes of files that were read or, without [`Options::contents`], looked at.
    pub bytes: u64,
}

/// The kind of a problem. [`ProblemKind::as_str`] is its name in `--json` output, which never changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum ProblemKind {
    /// A file, or a link's target, is shorter than a header, or its header does not authenticate.
    UnreadableHeader,
    /// Chunks do not authenticate, or the last one is cut off.
    UnreadableChunk,
    /// A link's target is authentic, but nothing that a link can hold.
    BadLink,
    /// A content directory lacks its `dirid.c9r`.
    MissingDirId,
    /// A `dirid.c9r` does not authenticate, or holds the id of another directory.
    BadDirId,
    /// A `dir.c9r` names a content directory that does not exist; or the root's does not.
    MissingContentDir,
    /// No `dir.c9r` leads to this content directory.
    OrphanedContentDir,
    /// Two directories have one id; also a directory that holds itself.
    DuplicateDirId,
    /// A `dir.c9r` is empty, too long, or no id.
    BadDirFile,
    /// An encrypted name does not authenticate in its directory.
    UnauthenticName,
    /// An authentic name that no file can have: `..`, a slash, a zero byte, not UTF-8.
    InvalidName,
    /// An authentic name of more than 255 bytes: no mount shows it, and no kernel would. The official clients can open it.
    TooLongName,
    /// An authentic name that was not normalised before its encryption: official clients show, but cannot open it.
    NotNfcName,
    /// Two entries of one directory have the same name once it is normalised.
    DuplicateName,
    /// A name beyond the vault's threshold that is not stored under its hash.
    NotShortenedName,
    /// A name within the vault's threshold that is stored under its hash.
    NeedlesslyShortenedName,
    /// A shortened name's `name.c9s` is missing, damaged, or another one's; or the folder holds nothing else.
    BrokenLongName,
    /// A folder that is two of file, directory and link at once.
    AmbiguousEntry,
    /// Something under an encrypted name that is neither file, directory nor link.
    UnknownEntry,
    /// A temporary that an interrupted operation left.
    InterruptedOperation,
    /// The host refused: permissions, input/output errors.
    HostError,
}

impl ProblemKind {
    /// The name in `--json` output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        use ProblemKind::*;
        match self {
            UnreadableHeader => "unreadable-header",
            UnreadableChunk => "unreadable-chunk",
            BadLink => "bad-link",
            MissingDirId => "missing-dirid",
            BadDirId => "bad-dirid",
            MissingContentDir => "missing-content-dir",
            OrphanedContentDir => "orphaned-content-dir",
            DuplicateDirId => "duplicate-dir-id",
            BadDirFile => "bad-dir-file",
            UnauthenticName => "unauthentic-name",
            InvalidName => "invalid-name",
            TooLongName => "too-long-name",
            NotNfcName => "not-nfc-name",
            DuplicateName => "duplicate-name",
            NotShortenedName => "not-shortened-name",
            NeedlesslyShortenedName => "needlessly-shortened-name",
            BrokenLongName => "broken-long-name",
            AmbiguousEntry => "ambiguous-entry",
            UnknownEntry => "unknown-entry",
            InterruptedOperation => "interrupted-operation",
            HostError => "host-error",
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// What.
    pub kind: ProblemKind,
    /// Cleartext path, from `/`, if [`Problem::name_known`]. Else that of the last folder on the way whose name is known,
    /// ending in `/`: it is in there. None where no folder is known.
    pub path: Option<String>,
    /// Whether every name of its cleartext path is known.
    pub name_known: bool,
    /// Path of the host's file or folder, relative to the vault.
    pub ciphertext_path: String,
    /// A sentence for people.
    pub detail: String,
    /// Whether [`repair`] would try to mend it.
    pub repairable: bool,
    pub(super) fix: Option<Fix>,
}

/// Where something is in cleartext, as far as names are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// As [`Problem::path`].
    path: Option<String>,
    name_known: bool,
}

impl Place {
    /// Somewhere in a folder, under a name that is not known.
    fn within(folder: &str) -> Self {
        Place { path: Some(format!("{}/", folder.trim_end_matches('/'))), name_known: false }
    }

    /// The whole path.
    fn known(&self) -> Option<&str> {
        self.path.as_deref().filter(|_| self.name_known)
    }
}

/// Of a whole path.
impl From<Option<String>> for Place {
    fn from(path: Option<String>) -> Self {
        Place { name_known: path.is_some(), path }
    }
}

/// Something that is no problem but worth knowing: a file of another program, a conflict copy. It is left alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Of a second version: the cleartext path of the entry that it is a version of.
    pub path: Option<String>,
    /// Path of the host's file or folder, relative to the vault.
    pub ciphertext_path: String,
    /// A sentence for people.
    pub detail: String,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// In the order of the walk: the vault's directories from the root on, then what is reachable from none.
    pub problems: Vec<Problem>,
    /// Problems beyond [`PROBLEMS_MAX`].
    pub problems_omitted: u64,
    /// Directories whose content an earlier repair found gone: the notes about them that lie in `/lost+found`.
    pub lost: Vec<Lost>,
    /// Files that are not the vault's, and the like.
    pub notes: Vec<Note>,
    /// Notes beyond [`NOTES_MAX`].
    pub notes_omitted: u64,
    /// Second versions of entries, as sync programs make them, at most [`NOTES_MAX`].
    pub conflicts: Vec<Conflict>,
    /// Files seen.
    pub files: u64,
    /// Directories seen, the root included.
    pub directories: u64,
    /// Symbolic links seen.
    pub symlinks: u64,
    /// Ciphertext bytes of the files.
    pub bytes: u64,
}

impl Report {
    /// Whether nothing is wrong with what is there; [`Report::lost`] tells of what is not.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.problems_omitted == 0
    }
}

/// How a problem is mended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fix {
    /// Leave a note in `/lost+found`, and make the empty content directory of this id.
    MakeContentDir(DirId),
    /// Publish `dirid.c9r` in the content directory of this id; what is there under that name goes aside.
    WriteDirId(DirId),
    /// Move to the folder beside `d`.
    Aside,
    /// Give the folder the `name.c9s` that its hash proves.
    WriteName { full: String },
    /// Give the folder the `dir.c9r` that a content directory proves.
    WriteDirFile(DirId),
    /// Store the entry under its name, in `dir` if it is free there, else in `/lost+found`.
    Rename { dir: DirId, name: String },
    /// Move to `/lost+found` under a made-up name, if what it holds is authentic.
    Adopt,
    /// Leave the folder the part that the store shows, and move the other parts out of it.
    Split { name: Option<String> },
    /// Enter the content directory of this id in `/lost+found`.
    LinkOrphan(DirId),
    /// Adopt each entry of a content directory whose id is not known, then move it aside.
    EmptyOrphan,
}

/// Checks the vault in `root`. It may be in use: what changes meanwhile can show as a problem that is none.
///
/// # Errors
/// Only if there is not enough to begin with (the ciphers cannot be made); whatever is wrong with the vault, and
/// whatever the host refuses to read, is in the report.
pub fn check(
    root: &dyn HostDir,
    keys: &Unlocked,
    options: Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    walk::Walk::new(root, keys, options, progress)?.run()
}
