//! An index that is encrypted at rest: a [segment](crate::segment) in a file that only who has the key can read.
//!
//! [`seal`] writes a finished segment as such a file, [`open`] decrypts one into memory and opens it from there; [`format`] has the bytes as
//! pure functions. The invariant: nothing of a segment is on the disk in clear, and no byte is handed out that is not what the holder
//! of the key has written at this place of this file.
//!
//! Memory: as much as the segment has bytes, for as long as it is open. It is a file without a name in memory (`memfd`), sealed against
//! changes, which the system may swap out as any other memory.

pub mod format;
mod stream;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use adit_core::error::{ErrorKind, FsError, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::error::Fault;
use crate::layout::{self, Section, SectionEntry};
use crate::progress::{Progress, Report, Stage};
use crate::publish::{MayReplace, NewFile};
use crate::segment::Segment;
pub use format::{Damage, SealKey};
use format::{FileKey, HEADER_LEN_BYTES, Header, MAGIC, SEALED_BLOCK_LEN_BYTES};
pub(crate) use stream::{Stream, StreamKey};

/// So many blocks are read or written between two reports.
const STEP: u64 = 64;

/// Whether the file begins as an encrypted index does.
///
/// # Errors
/// What the host says.
pub fn is_sealed(path: &Path) -> io::Result<bool> {
    let (mut magic, file) = ([0; MAGIC.len()], open_file(path)?);
    // What is no file, a pipe for one, has no bytes at a place.
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(magic == MAGIC),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK).open(path)
}

/// An empty file in memory, for a segment that is to be [sealed](seal).
///
/// # Errors
/// What the host says.
pub fn memory_file() -> Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    memfd_create(c"adit-index", flags)
        .map(File::from)
        .map_err(|e| FsError::from(io::Error::from(e)).on("make", "a file in memory"))
}

/// Encrypts the finished segment in `clear` into a new file at `out`, in place of what is there; its folder exists. The file is durable
/// and whole, or not there. `report` is told of the progress, and can end it (`Interrupted`).
///
/// # Errors
/// What the host says.
pub fn seal(clear: &File, key: &SealKey, out: &Path, report: &mut Report<'_>) -> Result<()> {
    seal_if(clear, key, out, report, &mut || Ok(()))
}

/// As [`seal`], if `may` says so in the end, when all of it is written.
///
/// # Errors
/// As [`seal`], and what `may` says.
pub fn seal_if(
    clear: &File,
    key: &SealKey,
    out: &Path,
    report: &mut Report<'_>,
    may: &mut MayReplace<'_>,
) -> Result<()> {
    let failed = |e: io::Error| FsError::from(e).on("write index", out.display());
    let clear_len = clear.metadata().map_err(failed)?.len();
    seal_from(&|bytes, at| clear.read_exact_at(bytes, at), clear_len, key, out, report, may)
}

/// Reads all of the bytes at a place of a segment.
pub(crate) type ReadAt<'a> = dyn Fn(&mut [u8], u64) -> io::Result<()> + 'a;

/// As [`seal_if`], of a segment of `clear_len` bytes that lies anywhere.
pub(crate) fn seal_from(
    clear: &ReadAt<'_>,
    clear_len: u64,
    key: &SealKey,
    out: &Path,
    report: &mut Report<'_>,
    may: &mut MayReplace<'_>,
) -> Result<()> {
    let failed = |e: io::Error| FsError::from(e).on("write index", out.display());
    let file = NewFile::create(out).map_err(failed)?;
    let (header, key) = Header::new(key, clear_len)?;
    file.file().write_all_at(&header.encode(), 0).map_err(failed)?;
    let mut block = vec![0; SEALED_BLOCK_LEN_BYTES];
    for number in 0..header.blocks() {
        step(number, &header, Stage::Encrypt, out, report)?;
        let (at, len) = header.clear_range(number);
        block.resize(len, 0);
        clear(&mut block, at).map_err(failed)?;
        key.seal_block(&header, number, &mut block)?;
        file.file().write_all_at(&block, header.sealed_at(number)).map_err(failed)?;
    }
    file.publish_if(may, &failed)
}

/// Opens the encrypted index at `path`: all of it is decrypted, and compared with what was written.
///
/// # Errors
/// `WrongPassword` if it was written with another key; `Corrupt` or `NotSupported` with a [`Damage`] as the cause, or what
/// [`Segment::from_file`] says; what the host says.
pub fn open(path: &Path, key: &SealKey, report: &mut Report<'_>) -> Result<Segment> {
    let file = open_file(path).map_err(|e| FsError::from(e).on("read index", path.display()))?;
    let clear = unseal(&file, path, key, report)?;
    Segment::from_file(clear, path)
}

/// As [`open`], without the tables, for who asks only for entries: it takes a fifth less memory. All of the file is compared with what was written
/// all the same.
///
/// # Errors
/// As [`open`].
pub fn open_without_tables(path: &Path, key: &SealKey, report: &mut Report<'_>) -> Result<Segment> {
    let file = open_file(path).map_err(|e| FsError::from(e).on("read index", path.display()))?;
    let clear = unseal_some(&file, path, key, &mut tables_of, report)?;
    Ok(Segment::from_file(clear, path)?.without_tables())
}

/// Where the tables of a segment lie that begins with these bytes: they are behind each other. Nowhere if it is none.
fn tables_of(front: &[u8]) -> Range<u64> {
    let Ok(header) = layout::Header::decode(front) else { return 0..0 };
    let tables = Section::TABLES.iter().filter_map(|section| header.section(*section));
    let is_other = |entry: &&SectionEntry| !Section::from_kind(entry.kind).is_some_and(Section::is_table);
    let Some(start) = tables.map(|entry| entry.offset).min() else { return 0..0 };
    let end = header.sections.iter().filter(is_other).map(|entry| entry.offset).filter(|at| *at > start).min();
    start..end.unwrap_or(header.sums_offset)
}

/// The cleartext of the encrypted index in `file`, as a file in memory that nobody can change any more. Errors name `path`.
///
/// # Errors
/// As [`open`].
pub fn unseal(file: &File, path: &Path, key: &SealKey, report: &mut Report<'_>) -> Result<File> {
    unseal_some(file, path, key, &mut |_| 0..0, report)
}

/// As [`unseal`], with zeros for those blocks that are all within what `unwanted` says, of the first block: they take no memory.
fn unseal_some(
    file: &File,
    path: &Path,
    key: &SealKey,
    unwanted: &mut dyn FnMut(&[u8]) -> Range<u64>,
    report: &mut Report<'_>,
) -> Result<File> {
    let fault = |fault: Fault| fault.of(path);
    let (header, key) = header_of(file, key).map_err(fault)?;
    let clear = memory_file()?;
    let mut block = Vec::with_capacity(SEALED_BLOCK_LEN_BYTES);
    let mut left_out = 0..0;
    for number in 0..header.blocks() {
        step(number, &header, Stage::Decrypt, path, report)?;
        let (at, len) = header.clear_range(number);
        block.resize(len + format::TAG_LEN_BYTES, 0);
        file.read_exact_at(&mut block, header.sealed_at(number)).map_err(|e| fault(e.into()))?;
        key.open_block(&header, number, &mut block).map_err(|damage| fault(damage.into()))?;
        if number == 0 {
            left_out = unwanted(&block);
        } else if left_out.start <= at && at + len as u64 <= left_out.end {
            continue;
        }
        clear.write_all_at(&block, at).map_err(|e| fault(e.into()))?;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&clear, seals).map_err(|e| fault(io::Error::from(e).into()))?;
    Ok(clear)
}

fn header_of(file: &File, key: &SealKey) -> Result<(Header, FileKey), Fault> {
    let meta = file.metadata()?;
    let mut front = vec![0; HEADER_LEN_BYTES.min(usize::try_from(meta.len()).unwrap_or(usize::MAX))];
    if meta.is_file() {
        file.read_exact_at(&mut front, 0)?;
    }
    let header = Header::decode(&front)?;
    if header.file_len() != meta.len() {
        return Err(Damage::Length { expected: header.file_len(), found: meta.len() }.into());
    }
    let other = || FsError::new(ErrorKind::WrongPassword).because(OtherKey);
    let key = header.key(key)?.ok_or_else(other)?;
    Ok((header, key))
}

fn step(number: u64, header: &Header, stage: Stage, path: &Path, report: &mut Report<'_>) -> Result<()> {
    let progress = Progress { stage, done: header.clear_range(number).0, total: header.clear_len };
    if number.is_multiple_of(STEP) && report(progress) == ControlFlow::Break(()) {
        return Err(FsError::new(ErrorKind::Interrupted).on("index", path.display()));
    }
    Ok(())
}

/// It was encrypted with another key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherKey;

impl fmt::Display for OtherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is the index of another vault")
    }
}

impl std::error::Error for OtherKey {}
