//! The folder of the host that the blocks of a volume's files lie in, and how its file names it.
//!
//! `volume init FILE --data DIR` makes `DIR/UUID`, so that many volumes can share a folder. The file names DIR by its path from
//! the folder that the file lies in, if it is in there as well, so that both can be moved together; else from the root.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::types::Access;
use adit_core::{ErrorKind, FsError, Result};
use adit_media::{ExtentFolder, HostDirectory};

use crate::table::Folder;

/// Where the folder is that a volume's `file` calls `stored`.
pub(crate) fn place(file: &Path, stored: &[u8]) -> PathBuf {
    parent_of(file).join(OsStr::from_bytes(stored))
}

/// What a volume's `file` is to call `dir`. Both are there.
///
/// # Errors
/// What the host says.
pub(crate) fn name_for(file: &Path, dir: &Path) -> Result<Vec<u8>> {
    let real = |path: &Path| path.canonicalize().map_err(|e| FsError::from(e).on("open", path.display().to_string()));
    let (parent, dir) = (real(parent_of(file))?, real(dir)?);
    let stored = match dir.strip_prefix(&parent) {
        Ok(below) if below.as_os_str().is_empty() => Path::new("."),
        Ok(below) => below,
        Err(_) => &dir,
    };
    Ok(stored.as_os_str().as_bytes().to_vec())
}

/// Makes `dir`, unless it is there. Durable with the next sync of what it lies in.
pub(crate) fn ensure(dir: &Path) -> Result<()> {
    match std::fs::create_dir(dir) {
        Ok(()) => sync_parent(dir).map_err(failed("sync", dir)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(failed("create", dir)(e)),
    }
}

/// Makes the part of `dir` that is the volume's, whose `file` is there: who may read that, may read its blocks.
pub(crate) fn create(file: &Path, dir: &Path, uuid: [u8; 16], label: &[u8]) -> Result<Folder> {
    let meta = file.metadata().map_err(failed("open", file))?;
    let perm = (meta.permissions().mode() & 0o666) as u16;
    let host = HostDirectory::open(dir).map_err(failed("open", dir))?;
    let (name, path) = (part(uuid), dir.join(part(uuid)));
    let objects = ExtentFolder::create(Arc::new(host), &name, perm, label).map_err(failed("create", &path))?;
    Ok(Folder { objects: Arc::new(objects), name: path.display().to_string() })
}

/// Removes what [`create`] made, while nothing is in it.
pub(crate) fn discard(folder: &Path) {
    // It was ours and holds nothing; that it cannot be removed changes nothing about the failure.
    let _ = std::fs::remove_file(folder.join("label"));
    let _ = std::fs::remove_dir(folder);
}

/// Opens the part of `dir` that is the volume's.
///
/// # Errors
/// `NotFound`, saying so, if `dir` is not there or nothing in it is this volume's.
pub(crate) fn open(dir: &Path, uuid: [u8; 16], access: Access) -> Result<Folder> {
    let missing = |path: &Path, why: &'static str| {
        FsError::new(ErrorKind::NotFound).on("open the data folder", path.display().to_string()).because(why)
    };
    let host = HostDirectory::open(dir).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => missing(dir, "the folder that holds the volume's data is not there"),
        _ => failed("open the data folder", dir)(e),
    })?;
    let path = dir.join(part(uuid));
    let objects = ExtentFolder::open(Arc::new(host), &part(uuid), access).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => missing(&path, "this folder holds no data of the volume"),
        _ => failed("open the data folder", &path)(e),
    })?;
    Ok(Folder { objects: Arc::new(objects), name: path.display().to_string() })
}

/// The name of a volume's part of a folder.
pub(crate) fn part(uuid: [u8; 16]) -> String {
    uuid.iter().fold(String::with_capacity(32), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Makes the name of something new durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    Ok(adit_core::host::sync_entries(adit_core::host::open_folder(parent_of(path))?)?)
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

fn failed(op: &'static str, path: &Path) -> impl Fn(io::Error) -> FsError {
    move |e| FsError::from(e).on(op, path.display().to_string())
}
