//! Making the base of a live index: a segment that nobody else sees, and that goes with the process.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_core::error::{ErrorKind, FsError, Result};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::io::Errno;

use super::base::{Base, Facts, Keys};
use super::view::View;
use crate::build::Builder;
use crate::progress::Report;
use crate::segment::Segment;

/// Where the base of a live index lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lies {
    /// In a file without a name in this folder, as the scratch files of its making, none of which has one.
    OnDisk(PathBuf),
    /// In memory, with the scratch files of its making, and nothing of it reaches a disk: the names of what is encrypted where it is stored.
    InMemory,
}

/// How a base is made.
#[derive(Clone, Debug)]
pub struct Making {
    /// Where the base lies.
    pub lies: Lies,
    /// Memory while it is made, in bytes.
    pub memory_bytes: u64,
}

impl Making {
    /// What takes the entries of a base: [`Facts::entry`] makes them.
    ///
    /// # Errors
    /// `NotSupported` for one in memory where the host has no file system in memory for scratch files.
    pub fn builder(&self) -> Result<Builder> {
        let scratch_dir = match &self.lies {
            Lies::OnDisk(dir) => dir.clone(),
            Lies::InMemory => memory_dir()?,
        };
        Ok(Builder::new(&scratch_dir, self.memory_bytes))
    }

    /// The base of what `builder` was given.
    ///
    /// # Errors
    /// As [`Making::segment`].
    pub fn finish(&self, builder: Builder, report: &mut Report<'_>) -> Result<Base> {
        Base::new(Arc::new(self.segment(builder, report)?), Keys::Stored)
    }

    /// What `builder` was given, as a segment that nobody else sees.
    ///
    /// # Errors
    /// Those of [`Builder::finish_into`] and of the host.
    pub fn segment(&self, builder: Builder, report: &mut Report<'_>) -> Result<Segment> {
        let (file, shown) = match &self.lies {
            Lies::OnDisk(dir) => (unnamed(dir), dir.clone()),
            Lies::InMemory => (in_memory(), PathBuf::from("memory")),
        };
        let file = file.map_err(|e| FsError::from(e).on("make a file in", shown.display()))?;
        let shown = shown.join("the index of the mount");
        builder.finish_into(&file, &shown, report)?;
        Segment::from_file(file, &shown)
    }

    /// A base of what `view` shows, which differs from it in nothing. An entry whose path is too long for a segment is left out, with
    /// what is below.
    ///
    /// # Errors
    /// As [`Making::finish`]; `Interrupted` if `report` says so.
    pub fn fold(&self, view: &View, report: &mut Report<'_>) -> Result<Base> {
        let mut builder = self.builder()?;
        view.walk(super::LiveId::ROOT, &mut |_, path, facts| {
            if builder.len().is_multiple_of(FOLD_STEP) {
                let progress = crate::Progress { stage: crate::Stage::Sort, done: builder.len(), total: 0 };
                if report(progress).is_break() {
                    return Err(FsError::new(ErrorKind::Interrupted).on("make", "the index of the mount"));
                }
            }
            add(&mut builder, path, facts)
        })?;
        Ok(self.finish(builder, report)?.with_contents(view.base().contents()))
    }
}

/// So many entries are taken between two questions whether it is to go on.
const FOLD_STEP: u64 = 1 << 12;

/// Gives an entry to a builder. `Break` if it is left out because its path is too long, or too deep.
pub(super) fn add(builder: &mut Builder, path: &[u8], facts: &Facts) -> Result<ControlFlow<()>> {
    match builder.add(&facts.entry(path)) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(e) if e.kind() == ErrorKind::NameTooLong => {
            // Not its name: logs outlive the mount.
            tracing::warn!("an entry is left out of the index of the mount: its path is too long");
            Ok(ControlFlow::Break(()))
        }
        Err(e) => Err(e),
    }
}

/// A folder of files that are never on a disk.
fn memory_dir() -> Result<PathBuf> {
    let dir = Path::new("/dev/shm");
    match rustix::fs::statfs(dir) {
        Ok(stat) if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(stat.f_type as u64)) => Ok(dir.to_owned()),
        _ => {
            let why = "no file system in memory is there, and names of a vault are not written to a disk in clear";
            Err(FsError::new(ErrorKind::NotSupported).on("index, with the help of", dir.display()).because(why))
        }
    }
}

/// `linux/magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// A new file in `folder` that has no name, or none any more.
fn unnamed(folder: &Path) -> io::Result<File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, folder, flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => return Ok(file.into()),
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::ISDIR | Errno::NOSYS) => {}
        Err(e) => return Err(e.into()),
    }
    loop {
        let name = format!(".adit-live-{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = folder.join(name);
        match File::options().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}

fn in_memory() -> io::Result<File> {
    Ok(memfd_create("adit-index", MemfdFlags::CLOEXEC)?.into())
}
