//! Listings of directories, plain and with attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use adit_core::engine::{Engine, Entry, SinkFlow};
use adit_core::store::DirEntry;
use adit_core::types::{Ino, Kind};
use adit_core::{ErrorKind, FsError};
use fuser::{FileHandle, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use super::{Front, convert, fh_of};
use crate::request::Kind as Asked;

/// The inode number that a listing shows for `..` of a directory whose parent is not at hand (as libfuse does).
const UNKNOWN_INO: u64 = 0xffff_ffff;

/// A directory of the kernel's: its inode, and its handle where there are any.
type Directory = (INodeNo, FileHandle);

impl Front {
    fn read_dir(
        &self,
        engine: &Engine,
        (ino, fh): Directory,
        start: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> SinkFlow,
    ) -> Result<(), FsError> {
        match engine.lists_by_inode() {
            true => engine.list(Ino(ino.0), start, sink),
            false => engine.read_dir(fh_of(fh), start, sink),
        }
    }

    fn read_dir_plus(
        &self,
        engine: &Engine,
        (ino, fh): Directory,
        start: u64,
        sink: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> SinkFlow,
    ) -> Result<(), FsError> {
        match engine.lists_by_inode() {
            true => engine.list_plus(Ino(ino.0), start, sink),
            false => engine.read_dir_plus(fh_of(fh), start, sink),
        }
    }

    pub(super) fn list(&self, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut taken = 0u32;
        let listed = self.ask(Asked::Readdir, ino, |engine, ino| {
            for (dot, dot_ino, at) in dots(ino).into_iter().filter(|(_, _, at)| *at > offset) {
                if reply.add(dot_ino, at, fuser::FileType::Directory, dot) {
                    return Ok(());
                }
                taken += 1;
            }
            let mut overflow = Ok(());
            self.read_dir(engine, (ino, fh), offset.saturating_sub(convert::DOTS), &mut |entry| {
                let Some(at) = convert::offset_of_cookie(entry.cookie) else {
                    overflow = Err(cookie_too_large());
                    return SinkFlow::Full;
                };
                let name = OsStr::from_bytes(entry.name.as_bytes());
                if reply.add(INodeNo(entry.ino.0), at, convert::file_type(entry.kind), name) {
                    return SinkFlow::Full;
                }
                taken += 1;
                SinkFlow::More
            })?;
            overflow
        });
        match listed {
            // What was taken is delivered; the next request meets the error again.
            Err(e) if taken == 0 => reply.error(e),
            _ => reply.ok(),
        }
    }

    /// As [`Front::list`]; each entry that is taken counts as a lookup.
    pub(super) fn list_with_attributes(
        &self,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut taken = 0u32;
        let listed = self.ask(Asked::Readdirplus, ino, |engine, ino| {
            for (dot, dot_ino, at) in dots(ino).into_iter().filter(|(_, _, at)| *at > offset) {
                // The kernel counts no lookup for these two, whatever their node id.
                let attr = convert::no_inode(Kind::Directory, Ino(dot_ino.0));
                if reply.add(dot_ino, at, dot, &Duration::ZERO, &attr, Generation(0)) {
                    return Ok(());
                }
                taken += 1;
            }
            let mut overflow = Ok(());
            self.read_dir_plus(engine, (ino, fh), offset.saturating_sub(convert::DOTS), &mut |entry, found| {
                let Some(at) = convert::offset_of_cookie(entry.cookie) else {
                    overflow = Err(cookie_too_large());
                    return SinkFlow::Full;
                };
                // Without attributes nothing must be linked or counted. Node id 0 says so, but fuser sends it as the
                // entry's inode number, too, and readdir(3) skips entries with number 0. The root's id names the entry,
                // and the kernel refuses to link it and forgets the root once, which the engine ignores.
                let (attr, ttl, generation) = match found.map(|entry| self.given(entry)) {
                    Some(given) => (given.attr, given.ttl(), given.generation),
                    None => (convert::no_inode(entry.kind, Ino::ROOT), Duration::ZERO, Generation(0)),
                };
                let name = OsStr::from_bytes(entry.name.as_bytes());
                if reply.add(attr.ino, at, name, &ttl, &attr, generation) {
                    return SinkFlow::Full;
                }
                taken += 1;
                SinkFlow::More
            })?;
            overflow
        });
        match listed {
            // The engine counted a lookup for each entry that was taken, so they must reach the kernel.
            Err(e) if taken == 0 => reply.error(e),
            _ => reply.ok(),
        }
    }
}

/// `.` and `..` of the directory `ino` with their inode numbers and the offsets behind them.
fn dots(ino: INodeNo) -> [(&'static OsStr, INodeNo, u64); 2] {
    let above = if ino.0 == Ino::ROOT.0 { ino } else { INodeNo(UNKNOWN_INO) };
    [(OsStr::new("."), ino, 1), (OsStr::new(".."), above, 2)]
}

fn cookie_too_large() -> FsError {
    FsError::new(ErrorKind::Io).because("a directory cookie of the store exceeds the kernel's offsets")
}
