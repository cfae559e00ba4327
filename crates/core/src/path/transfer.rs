//! Copies trees between a store and the host: [`copy_out`] (`adit get`) and [`copy_in`] (`adit put`).
//!
//! Modes and modification times are kept. Owners are kept by root's [`copy_in`], where the store has owners; else that they are not is told
//! once. A set-id bit stays where the copy belongs to the same user or
//! group all the same; elsewhere it would give rights to whoever copies, so it goes, and that is told
//! ([`Event::Altered`]). Holes stay holes. Names of one file stay names of one file, and extended attributes and ACLs are kept,
//! where the target has such things; where it does not, that is told once ([`Event::Lost`]). Symbolic links are copied as links. On the host every step is relative to an open directory and follows no link, so nothing is read or
//! written outside of what the caller named, whatever changes meanwhile. A file appears under its name only when it is
//! complete, in place of what was there; directories are merged. What the same copy made is never replaced: where two names are one
//! in the target, the first stays, and the second fails.
//!
//! One entry that fails does not end the copy: it is reported, counted, and the rest goes on. What would fail for every
//! further entry (no space, read-only) ends it.

mod host;
mod inward;
mod kept;
mod names;
mod outward;
mod pieces;

use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use super::{Node, about, show};
use crate::error::{ErrorKind, FsError, Result};
use crate::types::{Ino, Kind, Timestamp};

pub use host::{HostPlace, draft_prefix, is_draft, open_dir};
pub use inward::{copy_in, copy_stream_in};
pub use kept::Kept;
pub use outward::copy_out;

/// How many bytes one read or write moves.
pub const COPY_LEN_BYTES: usize = 1 << 20;

/// All mode bits.
const PERM_ALL: u32 = 0o7777;
/// Acts as the owner.
const SET_UID: u32 = 0o4000;
/// Acts as the group; on a directory, hands the group on.
const SET_GID: u32 = 0o2000;

/// How to copy.
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    /// Whether existing files and links are replaced; otherwise they fail with `Exists`.
    pub replace: bool,
    /// A directory or file of the host (device, inode number) that [`copy_in`] leaves out: the store's own.
    pub leave_out: Option<(u64, u64)>,
}

impl Default for CopyOptions {
    fn default() -> Self {
        CopyOptions { replace: true, leave_out: None }
    }
}

/// What a copy did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copied {
    /// Files written.
    pub files: u64,
    /// Directories created or merged.
    pub directories: u64,
    /// Symbolic links written.
    pub symlinks: u64,
    /// Bytes of content written.
    pub bytes: u64,
    /// Entries that failed, each reported as an [`Event::Failed`].
    pub failed: u64,
    /// Entries that are neither file, directory nor link, each reported as an [`Event::LeftOut`].
    pub left_out: u64,
}

/// What a copy tells its caller. Paths are the store's, as [`show`] writes them.
#[derive(Debug)]
pub enum Event<'a> {
    /// An entry begins.
    Begin {
        /// Its path in the store.
        path: &'a str,
        /// What it is.
        kind: Kind,
    },
    /// Entries are made in a folder of the store, whose names end as they should when they are complete. Who is killed leaves
    /// one behind, with a name by which [`is_draft`] knows it.
    Drafts {
        /// Its path, as [`super::Node::path`].
        folder: &'a [u8],
    },
    /// So many more bytes are written.
    Bytes(u64),
    /// An entry failed.
    Failed(&'a FsError),
    /// An entry was left out.
    LeftOut {
        /// Its path in the store.
        path: &'a str,
        /// Why, in a few words.
        why: &'a str,
    },
    /// An entry was copied, but the copy differs in its attributes.
    Altered {
        /// Its path in the store.
        path: &'a str,
        /// In what, in a few words.
        what: &'a str,
    },
    /// The target has no place for something; told at the first entry that has it.
    Lost {
        /// What that does to this entry and to others, in a few words.
        what: &'a str,
    },
}

/// What a target can lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lack {
    Links,
    Xattrs,
    Acls,
    /// The copies are those of who makes them.
    Owners,
}

/// What was told of what the target lacks.
#[derive(Clone, Copy, Default)]
struct Told {
    lacks: [bool; 4],
    /// An attribute of the host's own was left out.
    foreign: bool,
}

/// Whose something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    uid: u32,
    gid: u32,
}

/// The mode bits that a copy gets: those of the original, without the set-id bits that meant another owner.
fn perm_kept(mode: u32, original: Owner, copy: Owner) -> u32 {
    let foreign = |differs: bool, bit: u32| if differs { bit } else { 0 };
    let dropped = foreign(original.uid != copy.uid, SET_UID) | foreign(original.gid != copy.gid, SET_GID);
    mode & PERM_ALL & !dropped
}

/// Hears about the progress of a copy, and may end it ([`ErrorKind::Interrupted`]).
pub type Progress<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Where [`copy_out`] writes.
#[derive(Debug)]
pub enum Outward {
    /// As this entry, which may exist.
    As(HostPlace),
    /// The entries of the start, a directory, go directly into this one, whose own attributes stay.
    Into(OwnedFd),
}

/// Which side of a copy failed: messages name what the user can look at.
enum Fault {
    /// The store, or the copy itself.
    Store(FsError),
    /// The host, with its own path as the subject.
    Host(FsError),
}

impl From<FsError> for Fault {
    fn from(e: FsError) -> Fault {
        Fault::Store(e)
    }
}

impl Fault {
    /// An error of the host, met by `op` on `subject`.
    fn host(op: &'static str, subject: impl fmt::Display, e: impl Into<FsError>) -> Fault {
        Fault::Host(e.into().on(op, subject))
    }

    /// The error to report about the entry at `path` in the store.
    fn about(self, path: &[u8]) -> FsError {
        match self {
            Fault::Store(e) => about("copy", path, e),
            Fault::Host(e) => e,
        }
    }
}

/// Counts, and passes on.
struct Log<'p, 'f> {
    progress: &'p mut Progress<'f>,
    copied: Copied,
    told: Told,
    /// The folder of the store that [`Event::Drafts`] told of last.
    drafts_in: Option<Ino>,
}

impl<'p, 'f> Log<'p, 'f> {
    fn new(progress: &'p mut Progress<'f>) -> Self {
        Log { progress, copied: Copied::default(), told: Told::default(), drafts_in: None }
    }

    fn tell(&mut self, event: Event<'_>) -> Result<()> {
        match (self.progress)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ErrorKind::Interrupted.into()),
        }
    }

    fn begin(&mut self, path: &[u8], kind: Kind) -> Result<()> {
        self.tell(Event::Begin { path: &show(path), kind })
    }

    /// An entry is to be made in `folder`, under a temporary name.
    fn draft(&mut self, folder: &Node<'_>) -> Result<()> {
        match self.drafts_in.replace(folder.ino()) == Some(folder.ino()) {
            true => Ok(()),
            false => self.tell(Event::Drafts { folder: folder.path() }),
        }
    }

    fn bytes(&mut self, len: usize) -> Result<()> {
        self.copied.bytes += len as u64;
        self.tell(Event::Bytes(len as u64))
    }

    fn done(&mut self, kind: Kind) {
        match kind {
            Kind::Directory => self.copied.directories += 1,
            Kind::Symlink => self.copied.symlinks += 1,
            _ => self.copied.files += 1,
        }
    }

    /// Tells of the set-id bits that `kept` lacks of `mode`.
    fn perm(&mut self, path: &[u8], mode: u32, kept: u32) -> Result<()> {
        let what = match mode & !kept & (SET_UID | SET_GID) {
            0 => return Ok(()),
            SET_UID => "without its set-user-id bit, for its copy has another owner",
            SET_GID => "without its set-group-id bit, for its copy has another group",
            _ => "without its set-id bits, for its copy has another owner and group",
        };
        self.tell(Event::Altered { path: &show(path), what })
    }

    /// Tells that a copy has the time of now if that of the original [is none](Timestamp::is_plausible).
    fn time(&mut self, path: &[u8], mtime: Timestamp) -> Result<()> {
        if mtime.is_plausible() {
            return Ok(());
        }
        let what = "its time is before 1677 or after 2262, and that of the copy is now";
        self.tell(Event::Altered { path: &show(path), what })
    }

    fn left_out(&mut self, path: &[u8], why: &str) -> Result<()> {
        self.copied.left_out += 1;
        self.tell(Event::LeftOut { path: &show(path), why })
    }

    /// The target lacks something that the original has.
    fn lost(&mut self, lack: Lack) -> Result<()> {
        let Some(told) = self.told.lacks.get_mut(lack as usize) else { return Ok(()) };
        if std::mem::replace(told, true) {
            return Ok(());
        }
        let what = match lack {
            Lack::Links => "hard links cannot be made there: each name of a file with several is a copy of its own",
            Lack::Xattrs => "extended attributes cannot be kept there: the copies have none",
            Lack::Acls => "ACLs cannot be kept there: the copies have none",
            Lack::Owners if rustix::process::geteuid().is_root() => {
                "owners cannot be kept there: the copies belong to root"
            }
            Lack::Owners => "owners are left out: the copies belong to who makes them; run by root, put keeps them",
        };
        self.tell(Event::Lost { what })
    }

    /// The copy lacks the rights of a program that the original has.
    fn capability(&mut self, path: &[u8]) -> Result<()> {
        let what = "without its file capabilities, for its copy has another owner";
        self.tell(Event::Altered { path: &show(path), what })
    }

    /// The original has an extended attribute that means something on its own host alone.
    fn foreign(&mut self, name: &[u8]) -> Result<()> {
        if std::mem::replace(&mut self.told.foreign, true) {
            return Ok(());
        }
        let name = String::from_utf8_lossy(name);
        let what =
            format!("the extended attribute {name} is left out, as all that only the host of the original understands");
        self.tell(Event::Lost { what: &what })
    }

    /// The copy lacks an extended attribute that the target did not take.
    fn xattr(&mut self, path: &[u8], name: &[u8], error: &FsError) -> Result<()> {
        let what = format!("without its extended attribute {}: {error}", String::from_utf8_lossy(name));
        self.tell(Event::Altered { path: &show(path), what: &what })
    }

    /// Reports a failed entry; returns the error if it would meet every other entry as well.
    fn failed(&mut self, error: FsError) -> Result<()> {
        use ErrorKind::*;
        if matches!(error.kind(), NoSpace | QuotaExceeded | ReadOnly | Network | Interrupted | Exhausted | TooManyFiles)
        {
            return Err(error);
        }
        self.copied.failed += 1;
        self.tell(Event::Failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_id_bit_stays_with_the_owner_that_it_means() {
        let owner = |uid, gid| Owner { uid, gid };
        let kept = |copy| perm_kept(0o107_755, owner(1, 2), copy);
        assert_eq!(kept(owner(1, 2)), 0o7755);
        assert_eq!(kept(owner(1, 3)), 0o5755);
        assert_eq!(kept(owner(0, 2)), 0o3755);
        assert_eq!(kept(owner(0, 0)), 0o1755);
    }
}
