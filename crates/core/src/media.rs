//! Where bytes live: the seam below the stores. `adit-media` implements it on the host; the test kit implements it in
//! memory, where faults, torn writes and power cuts are injected once for every store.
//!
//! Paths are relative to the medium's root, made of plain components (no `.`, no `..`, no leading `/`); the empty path is
//! the root itself. Symbolic links are never followed. Errors are [`std::io::Error`] as the host gives them; stores add the subject.

use std::io;
use std::path::Path;

use crate::types::{Access, Attr, Caller, Kind, RenameFlags, SetAttr, StatFs};

/// What to make durable with [`HostDir::sync`].
#[derive(Clone, Copy, Debug)]
pub enum SyncTarget<'a> {
    /// The entries of this directory.
    Dir(&'a Path),
    /// Everything on the medium (`syncfs(2)`).
    All,
}

/// What a new file of [`HostDir::publish`] is made of.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// The content that it has from the first moment on.
    pub content: &'a [u8],
    /// Permission bits; the process's umask does not apply.
    pub perm: u16,
    /// Owner, where the process may choose one and it is not the process's own.
    pub owner: Option<Caller>,
    /// Whether the content is durable before the name appears.
    pub durable: bool,
}

/// One entry of [`HostDir::list`].
#[derive(Clone, Copy, Debug)]
pub struct HostEntry<'a> {
    /// Its name, bytes.
    pub name: &'a [u8],
    /// The host's inode number.
    pub ino: u64,
    /// What it is, if the directory says so.
    pub kind: Option<Kind>,
}

/// A directory of the host with all that is below it.
pub trait HostDir: Send + Sync {
    /// Opens an existing regular file. Anything else at `path` is an error (`EISDIR`, `ELOOP`, `EINVAL`).
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>>;

    /// Creates `path` with its whole content in one step: no one ever sees it empty or partly written, and a `kill -9`
    /// leaves the whole file or none under that name. `AlreadyExists` if the name is taken.
    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>>;

    /// Attributes, of a symbolic link itself. `Attr::ino` is the host's inode number, `Attr::size` the host's length.
    fn stat(&self, path: &Path) -> io::Result<Attr>;

    /// Changes attributes of a file or directory.
    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()>;

    /// Hands every entry but `.` and `..` to `sink`.
    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()>;

    /// Creates a directory.
    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()>;

    /// Removes a file (`Kind::File`, also any other kind that is not a directory) or an empty directory
    /// (`Kind::Directory`).
    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()>;

    /// `renameat2(2)`. Where the host knows no flags, `NOREPLACE` is done in two steps that destroy nothing of other
    /// clients either, a kill between which can leave a file under both names, or an empty directory under the new one; it
    /// is `Unsupported` for files where there are no hard links, and `EXCHANGE` always.
    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()>;

    /// Makes things durable.
    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()>;

    /// Size and use.
    fn statfs(&self) -> io::Result<StatFs>;

    /// What changes whenever unsynced writes to this medium may have been lost: for a host, with its boot and with each
    /// mount of the filesystem. None: unknown.
    fn incarnation(&self) -> Option<[u8; 16]> {
        None
    }
}

/// An open file of the host. Usable after unlink and rename.
pub trait HostFile: Send + Sync {
    /// Reads at `offset`; short only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`, extending the file as needed. On an error a prefix may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Sets the length; a longer one reads as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Attributes; see [`HostDir::stat`].
    fn stat(&self) -> io::Result<Attr>;

    /// Changes attributes, `size` excepted.
    fn set_attr(&self, set: &SetAttr) -> io::Result<()>;

    /// Makes content and length durable, and all attributes unless `data_only`.
    fn sync(&self, data_only: bool) -> io::Result<()>;

    /// Starts to write the range back to the disk without waiting. A hint.
    fn start_writeback(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
}
