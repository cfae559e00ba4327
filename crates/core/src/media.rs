//! Where bytes live: the seam below the stores. `adit-media` implements it on the host; the test kit implements it in
//! memory, where faults, torn writes and power cuts are injected once for every store.
//!
//! Paths are relative to the medium's root, made of plain components (no `.`, no `..`, no leading `/`); the empty path is
//! the root itself. Symbolic links are never followed. Errors are [`std::io::Error`] as the host gives them; stores add the subject.
//! [`Objects`] alone has errors of the engine, for what goes wrong with an object store is not what goes wrong with a host.

mod objects;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::types::{Access, Attr, Caller, Kind, RenameFlags, SetAttr, StatFs};

pub use objects::{
    Content, ContentSource, Fetched, FileContent, ListedObject, OBJECT_KEY_LEN_MAX_BYTES, ObjectInfo, ObjectPage,
    ObjectSink, Objects, PutOptions, Stored, Tag, USER_METADATA_LEN_MAX_BYTES, Withheld, check_object_key,
    check_object_prefix, check_user_metadata,
};

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
    /// Owner, where the process may choose one and it is not the process's own. In a directory whose set-group-ID bit is
    /// set, the host's own rule for the group goes before.
    pub owner: Option<Caller>,
    /// Whether the content is durable before the name appears.
    pub durable: bool,
}

/// What [`HostDir::publish_known`] made.
pub struct Published {
    /// The file, open.
    pub file: Box<dyn HostFile>,
    /// Its attributes.
    pub attr: Attr,
    /// Those of the directory that it lies in, with it, if the host tells them by the way.
    pub dir: Option<Attr>,
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

/// A regular file of the host that is held, so that it can be used when it has no name any more. It takes its space until this is
/// dropped, which waits for nothing: freeing is most of the work of a removal (50 of 53 µs for a file of 4 KiB on ext4 with `discard`),
/// and is done elsewhere.
pub trait HeldFile: Send + Sync {
    /// Attributes; see [`HostDir::stat`].
    fn stat(&self) -> io::Result<Attr>;

    /// Changes attributes, `size` excepted.
    fn set_attr(&self, set: &SetAttr) -> io::Result<()>;

    /// Opens it.
    fn open(&self, access: Access) -> io::Result<Box<dyn HostFile>>;
}

/// A directory of the host with all that is below it.
pub trait HostDir: Send + Sync {
    /// Opens an existing regular file. Anything else at `path` is an error (`EISDIR`, `ELOOP`, `EINVAL`).
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>>;

    /// Creates `path` with its whole content in one step: no one ever sees it empty or partly written, and a `kill -9`
    /// leaves the whole file or none under that name. `AlreadyExists` if the name is taken.
    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>>;

    /// As [`HostDir::publish`], for who wants to know what came of it.
    fn publish_known(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Published> {
        let file = self.publish(path, new)?;
        let attr = file.stat()?;
        Ok(Published { file, attr, dir: None })
    }

    /// Attributes, of a symbolic link itself. `Attr::ino` is the host's inode number, `Attr::size` the host's length.
    fn stat(&self, path: &Path) -> io::Result<Attr>;

    /// Changes attributes of a file or directory.
    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()>;

    /// Hands every entry but `.` and `..` to `sink`.
    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()>;

    /// Creates a directory.
    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()>;

    /// Creates a symbolic link with this target. `AlreadyExists` if the name is taken; `Unsupported` where there are none.
    fn make_link(&self, path: &Path, target: &[u8]) -> io::Result<()> {
        let _ = (path, target);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The target of a symbolic link. `InvalidInput` for anything else.
    fn read_link(&self, path: &Path) -> io::Result<Vec<u8>> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file (`Kind::File`, also any other kind that is not a directory) or an empty directory
    /// (`Kind::Directory`).
    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()>;

    /// Holds the file at `path`, which is about to lose its name. Whatever needs space, and [`HostDir::statfs`], waits for what was held
    /// and dropped before, so that nobody finds less room. `None` where the host keeps the name of a file that is in use, where no more
    /// files can be held, and where there is no such file.
    fn hold(&self, path: &Path) -> Option<Box<dyn HeldFile>> {
        let _ = path;
        None
    }

    /// `renameat2(2)`. Where the host knows no flags, `NOREPLACE` is done in two steps that destroy nothing of other
    /// clients either, a kill between which can leave a file under both names, or an empty directory under the new one; it
    /// is `Unsupported` for files where there are no hard links, and `EXCHANGE` always.
    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()>;

    /// Makes things durable.
    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()>;

    /// Size and use.
    fn statfs(&self) -> io::Result<StatFs>;

    /// Tries in `folder` whether files can be made, renamed, opened again, changed in their midst and cut, as a store does that
    /// changes them; what it makes it removes. An error says what the host lacks; a lack of rights or of room is none. A medium
    /// that can do all of it tries nothing.
    fn trial(&self, folder: &Path) -> io::Result<()> {
        let _ = folder;
        Ok(())
    }

    /// The permission bits that the process keeps from what it makes for nobody in particular. A medium that knows of none keeps
    /// it for the owner alone.
    fn umask(&self) -> u16 {
        0o077
    }

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

    /// Makes other processes that call this on the same file wait until [`HostFile::admit_others`]. Best effort: a medium
    /// without locks has none, and a holder that keeps others waiting for a second is not waited for any longer.
    fn hold_others(&self) {}

    /// Ends [`HostFile::hold_others`].
    fn admit_others(&self) {}

    /// Makes the range read as zeros and gives its space back; the length stays. `Unsupported` where the host cannot.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes the file until it is dropped: for this handle alone, or against those that want it alone. False if another handle
    /// is in the way, of this process or of another. A host without locks says true.
    fn try_lock(&self, alone: bool) -> io::Result<bool> {
        let _ = alone;
        Ok(true)
    }

    /// Takes a range of the file for this handle alone, which must be open to write, until it is given back with
    /// [`HostFile::unlock_range`] or the handle is dropped. False if another handle has any of it, of this process or of another.
    /// What this handle has already it gets again. A host without locks says true.
    fn try_lock_range(&self, offset: u64, len: u64) -> io::Result<bool> {
        let _ = (offset, len);
        Ok(true)
    }

    /// Ends [`HostFile::try_lock_range`] for a range.
    fn unlock_range(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// The host's descriptor of this file, once more, for what takes one: to be read only, with the access that it was opened
    /// with. `Unsupported` where there is none.
    fn descriptor(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// One file of the host that a store lies in as a whole. All of a volume's bytes go through this.
///
/// All methods may be called from any thread at any time; writes to ranges that do not overlap are independent.
#[allow(clippy::len_without_is_empty)]
pub trait BlockFile: Send + Sync {
    /// Reads at `offset`; short only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`, extending the file as needed. On an error any part may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Sets the length; a longer one reads as zeros and takes no space.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes content and length durable. After an error nothing is known about what was written since the last success,
    /// and another call says nothing either.
    fn sync(&self) -> io::Result<()>;

    /// Makes the range read as zeros and gives its space back; the length stays. `Unsupported` where the host cannot.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the host keep space for the range, so that a write to it does not fail for want of some. What is there stays, also
    /// the length. On an error a part may be kept. `Unsupported` where the host cannot.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Starts to write the range back to the disk without waiting. A hint.
    fn start_writeback(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// How many bytes the host has room for besides what is there; `u64::MAX` where it does not say.
    fn host_room_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Takes the file for this handle alone until it is dropped; false if another handle has it, of this process or of
    /// another. A host without locks says true.
    fn try_lock(&self) -> io::Result<bool>;
}

/// Objects with numbers for names, in which a store keeps blocks outside of its own file: files of a folder now, of an object
/// store later. An object is as long as the last byte that was written to it, at most as long as the store's segments.
///
/// All methods may be called from any thread at any time; writes to ranges that do not overlap are independent. The store
/// neither reads nor writes an object that it removes at that moment.
pub trait ExtentObjects: Send + Sync {
    /// Reads from an object at `offset`; short only at its end. `NotFound` if there is none of that number.
    fn read_at(&self, object: u32, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`, and makes the object if it is new. On an error any part may be written.
    fn write_at(&self, object: u32, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all durable that was written before, with the names of new objects. After an error nothing is known about what
    /// was written since the last success, and every later call fails.
    fn sync(&self) -> io::Result<()>;

    /// Gives the space of a range back; what is read there then is undefined. `Unsupported` where that cannot be.
    fn punch(&self, object: u32, offset: u64, len: u64) -> io::Result<()>;

    /// Removes an object, if it is there. A power cut may bring it back.
    fn remove(&self, object: u32) -> io::Result<()>;

    /// How many bytes the host has room for besides what is there; `u64::MAX` where it does not say.
    fn host_room_bytes(&self) -> u64 {
        u64::MAX
    }

    /// The number of each object that there is, in any order.
    fn list(&self) -> io::Result<Vec<u32>>;

    /// What [`write_label`](ExtentObjects::write_label) left, at most 1024 bytes: who these objects belong to.
    fn label(&self) -> io::Result<Vec<u8>>;

    /// Writes to the label at `offset`, durably. A crash may leave any part of these bytes.
    fn write_label(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Takes all of it until this is dropped: for this handle alone, or against those that want it alone. False if another
    /// handle is in the way.
    fn try_lock(&self, alone: bool) -> io::Result<bool>;
}
