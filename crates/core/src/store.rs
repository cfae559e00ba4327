//! The seam between the engine and a kind of store: what a filesystem means, by inode number.
//!
//! A store is synchronous and is called from many threads at once. It keeps no dirty data: when a call returns, what it
//! wrote survives the death of the process, and what [`StoreFile::sync`] returned for survives a power cut. Buffering,
//! read-ahead, handles and lookup counts are the engine's ([`crate::engine`]).
//!
//! **References.** Each [`Attr`] that `lookup`, `create`, `mkdir`, `mknod`, `symlink` or `link` returns makes its inode
//! *known*: the store must answer for that number, also after its name is gone through the store (an object that was found is opened, looked
//! at and changed as before), until the engine calls [`Store::forget`]. Known is a state, not a count: the engine counts. A call to `forget` that races
//! with a new `lookup` of the same inode is resolved by the engine, which never runs the two at once for one inode.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::error::{ErrorKind, FsError, Result};
use crate::types::{
    Access, AllocateMode, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, StatFs, XattrName, XattrSet,
};

/// What a store can do, asked once at mount.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Its kind, as `adit mounts` prints it: `vault`, `volume`, `manifest`, `dir`.
    pub kind: &'static str,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// The size in bytes in which content is best read and written (a vault's chunk). Writes that cover whole,
    /// aligned units need no read. A power of two.
    pub unit_len_bytes: u32,
    /// Whether small writes are worth collecting into units before the store sees them.
    pub buffer_writes: bool,
    /// Whether a directory entry's cookie stays valid while the directory changes, so that a listing can go on from
    /// it. Otherwise the engine keeps a listing per open directory, and `start` is always 0.
    pub stable_cookies: bool,
    /// Whether someone else may change the store underneath, so that caches must expire.
    pub shared: bool,
    /// Whether it keeps extended attributes. Where it does not, a front end can say so once and for all, which spares
    /// the kernel's question for `security.capability` before writes.
    pub xattrs: bool,
    /// Whether it keeps POSIX ACLs, as the attributes [`XattrName::ACL_ACCESS`] and [`XattrName::ACL_DEFAULT`], by the
    /// rules of [`crate::acl`]: they and the permission bits always agree, and what is made in a directory gets the
    /// directory's default one. The kernel enforces them. Needs `xattrs`.
    pub acls: bool,
    /// Whether a rename can leave a whiteout ([`RenameFlags::WHITEOUT`]).
    pub whiteouts: bool,
    /// Whether the kernel had better buffer writes itself, and own sizes and times of what it writes to: right for a
    /// store that only this mount changes (`shared` is false) and that takes whole pages well.
    pub kernel_writeback: bool,
    /// Whether content may come over a network, so that calls on files may take as long as that: a front end serves nothing else on
    /// the thread of such a call ([`StoreFile::may_wait`]), and the engine holds no lock meanwhile, unless it buffers writes: such a store
    /// keeps calls on the same bytes apart itself.
    pub remote: bool,
    /// Whether files may be had as files of the host: see [`StoreFile::host_file`].
    pub host_files: bool,
    /// Whether the content of a file is never another one, and each byte that is read of it right: what a kernel has read once stays right for as
    /// long as it is mounted, so that it need not ask when it opens a file.
    pub fixed_content: bool,
    /// Whether to find a name costs I/O, of a host or a network, each time: the engine then keeps where paths lead, and looks up what a
    /// listing named before anybody asks for it, as far as that was measured to help.
    pub slow_names: bool,
    /// Whether its inode numbers are made up: whenever it is opened anew another object may have one, so none proves anything of
    /// what was there before.
    pub made_up_numbers: bool,
}

impl Capabilities {
    /// A store of this `kind` that can do nothing optional, in units of 4 KiB.
    pub const fn plain(kind: &'static str) -> Self {
        Capabilities {
            kind,
            read_only: false,
            unit_len_bytes: 4096,
            buffer_writes: false,
            stable_cookies: false,
            shared: false,
            xattrs: false,
            acls: false,
            whiteouts: false,
            kernel_writeback: false,
            remote: false,
            host_files: false,
            fixed_content: false,
            slow_names: false,
            made_up_numbers: false,
        }
    }
}

/// One entry of a directory listing. `.` and `..` are not among them.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Where a listing goes on after this entry; never 0.
    pub cookie: u64,
    /// Inode number, as `readdir` shows it. Not a reference: the inode is not known by it.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: FileName<'a>,
}

/// What [`Store::create_in`] made.
pub struct Created {
    /// Attributes of the new file.
    pub attr: Attr,
    /// The file, open.
    pub file: Arc<dyn StoreFile>,
    /// Attributes of its directory, read after the file was there.
    pub parent: Option<Attr>,
}

/// The new object of `mknod`, `create` or `mkdir`.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Permission bits.
    pub perm: u16,
    /// Permission bits to leave out, unless the directory has a default ACL. 0 where they have been left out already:
    /// always, but for stores with [`Capabilities::acls`].
    pub umask: u16,
    /// Owner of the new object.
    pub caller: Caller,
}

impl NewNode {
    /// Permission bits without those of the umask.
    pub fn masked_perm(&self) -> u16 {
        self.perm & !self.umask
    }

    /// With what a directory with the set-group-id bit gives to what is made in it: its group, and the bit itself to
    /// directories.
    #[must_use]
    pub fn in_directory(mut self, parent: &Attr, kind: Kind) -> Self {
        const SET_GID: u16 = 0o2000;
        if parent.perm & SET_GID != 0 {
            self.caller.gid = parent.gid;
            if kind == Kind::Directory {
                self.perm |= SET_GID;
            }
        }
        self
    }
}

/// How a name in a directory relates to others for the same entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spelling {
    /// No other name leads to the same entry.
    Only,
    /// Entries are stored under names spelt so, and other spellings lead to them as well: its absence ends when one is
    /// made by another spelling.
    Stored,
    /// Leads to what is stored under another spelling, and may change by that.
    Other,
}

/// A call on an open file that is about to be made; see [`StoreFile::may_wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileCall {
    /// A read of so many bytes.
    Read {
        /// From here on.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Likewise by [`StoreFile::read_verified_at`].
    ReadVerified {
        /// From here on.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Likewise by [`StoreFile::read_to_keep_at`].
    ReadToKeep {
        /// From here on.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// A write of so many bytes.
    Write {
        /// From here on.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// The length is set.
    SetLen {
        /// To so many bytes.
        len: u64,
    },
    /// `fallocate(2)`.
    Allocate {
        /// From here on.
        offset: u64,
        /// In bytes.
        len: u64,
        /// What becomes of the range.
        mode: AllocateMode,
    },
}

/// A stretch of a file that was read before anybody knew whether it is right, and what it was; see [`StoreFile::read_to_keep_at`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Unproved {
    /// Its first byte in the file.
    pub offset: u64,
    /// In bytes; not 0.
    pub len: u64,
    /// A checksum of it, of the store's own kind, by which the store knows it again after a restart.
    pub sum: u64,
}

/// What is known of a stretch that was [unproved](Unproved).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// Still nothing.
    Open,
    /// Something of what it belongs to was found wrong, perhaps elsewhere: whoever hands it out had better have it proved first.
    Suspect,
    /// It was right.
    Right,
    /// It was wrong.
    Wrong,
}

/// A filesystem, by inode number. See the module's notes on references and durability.
pub trait Store: Send + Sync {
    /// What it can do; constant.
    fn capabilities(&self) -> Capabilities;

    /// How `name` is spelt, where the store takes several names for one. What was found is cached unless it is
    /// [`Spelling::Other`], an absence only if it is [`Spelling::Only`].
    fn spelling(&self, name: FileName<'_>) -> Spelling {
        let _ = name;
        Spelling::Only
    }

    /// The entry `name` of the directory `parent`; makes it known.
    ///
    /// `NotFound` only if it is truly absent: an entry that cannot be read is `Corrupt` or `Io`.
    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr>;

    /// As [`Store::lookup`] for each of `entries`, which a listing of `parent` gave a moment ago; answers in their order.
    ///
    /// A store may go by their inode numbers, and read many at once. An entry that is gone is `NotFound`.
    fn lookup_listed(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        entries.iter().map(|entry| self.lookup(parent, entry.name)).collect()
    }

    /// The engine holds no more reference to `ino` (never the root).
    fn forget(&self, ino: Ino);

    /// The attributes of a known inode.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes of a known inode and returns the new ones.
    ///
    /// All of `set` is checked before any is applied; `size` comes first.
    fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Hands the entries of `dir` after the cookie `start` (0: from the first) to `sink` until it breaks.
    ///
    /// One unreadable entry does not hide the others: it is logged and left out, or shown with what is known of it.
    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()>;

    /// Why entries were left out of the latest whole listing of `dir`, one error for each.
    ///
    /// Whoever lists asks after each listing: the engine ends it with an error, once all that could be read was handed out.
    fn left_out(&self, _dir: Ino) -> Vec<FsError> {
        Vec::new()
    }

    /// Creates and opens a regular file; `Exists` if the name is taken.
    fn create(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)>;

    /// As [`Store::create`]; third, the attributes that `parent` has after it, where the store knows them without a
    /// question: the kernel asks for them before it makes the next one.
    fn create_in(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Created> {
        self.create(parent, name, new).map(|(attr, file)| Created { attr, file, parent: None })
    }

    /// Creates a directory.
    fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr>;

    /// Creates a symbolic link to `target` (1 to 4095 bytes, no NUL).
    fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr>;

    /// Creates a device node, FIFO or socket. `NotPermitted` where the store has no place for one.
    fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        let _ = (parent, kind, rdev, new);
        Err(FsError::new(ErrorKind::NotPermitted).on("mknod", name.display()))
    }

    /// Gives the known inode `ino` a further name. `NotPermitted` where the store has no place for hard links.
    fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let _ = (ino, parent);
        Err(FsError::new(ErrorKind::NotPermitted).on("link", name.display()))
    }

    /// The target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Removes a name that is not a directory. Open files of it stay usable.
    fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()>;

    /// Renames, replaces or exchanges, as one whole, with the rules of `rename(2)` and `renameat2(2)`.
    fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// Opens a known regular file.
    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>>;

    /// The value of an extended attribute of a known inode; `NoAttribute` if it has none of that name.
    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let _ = ino;
        Err(FsError::new(ErrorKind::NotSupported).on("getxattr", name.display()))
    }

    /// The names of all extended attributes of a known inode, each followed by a NUL byte, as `listxattr(2)` has them.
    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        let _ = ino;
        Err(FsError::new(ErrorKind::NotSupported).on("listxattr", ""))
    }

    /// Sets an extended attribute of a known inode, and its ctime. `NoSpace` for a value that it has no room for.
    ///
    /// An ACL sets the permission bits, too, in the same step; see [`Capabilities::acls`].
    fn set_xattr(&self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        let _ = (ino, value, set);
        Err(FsError::new(ErrorKind::NotSupported).on("setxattr", name.display()))
    }

    /// Removes an extended attribute of a known inode; `NoAttribute` if it has none of that name.
    fn remove_xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let _ = ino;
        Err(FsError::new(ErrorKind::NotSupported).on("removexattr", name.display()))
    }

    /// Makes the entries of a directory durable.
    fn sync_dir(&self, dir: Ino) -> Result<()>;

    /// Makes everything durable.
    fn sync_all(&self) -> Result<()>;

    /// Size and use, whatever its host has room for.
    fn statfs(&self) -> Result<StatFs>;

    /// How many bytes it has room for, about, where it and what it lies on both have to have it. `u64::MAX` where that is not known.
    fn room_bytes(&self) -> Result<u64> {
        Ok(self.statfs()?.room_bytes())
    }

    /// The path of a known inode for messages, from the root, lossy, without secrets. `None` when it has none any more.
    fn path_of(&self, ino: Ino) -> Option<String> {
        let _ = ino;
        None
    }

    /// The directory and the name by which a known file was found last. `None` for directories, and where nobody knows.
    ///
    /// The engine asks for it where the front end knows more inodes than there is memory for, to have it drop some.
    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let _ = ino;
        None
    }

    /// The mount is about to end, by force: what would take long gives up with `Interrupted`, and takes back what it did.
    fn wind_up(&self) {}

    /// Counters for `adit stats`: name and value.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// An open file of a store. It stays usable after unlink and rename of the file and of its parents.
///
/// Calls on one file may come from many threads. The engine never overlaps a write or length change with another call
/// on the same bytes; a store guards its own state.
pub trait StoreFile: Send + Sync {
    /// Reads at `offset` into `buf` (cleartext); short only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all `pieces` (offset, bytes; ascending, not overlapping), extending the file as needed; a gap before a
    /// piece reads as zeros. On an error some of them may be written; old content stays readable.
    ///
    /// When it returns, a `kill -9` of this process loses nothing of it.
    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()>;

    /// As [`StoreFile::write_at`], for a front end whose kernel keeps the times of files: they stay what they are until it sets them
    /// by [`Store::setattr`]. Called only of stores with [`Capabilities::kernel_writeback`].
    fn write_keeping_times(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.write_at(pieces)
    }

    /// As [`StoreFile::read_at`], for bytes that are to be kept: none of them turns out to be wrong later. Where the store only knows when
    /// it has more than these, it gets that first.
    fn read_verified_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    /// As [`StoreFile::read_at`], for bytes of which some may be kept. Where it would take much to know that they are right, the stretches
    /// that they lie in are told instead: whoever keeps them has them [proved](StoreFile::prove) before they are relied on. Of what is
    /// not told, all is right.
    fn read_to_keep_at(&self, offset: u64, buf: &mut [u8], unproved: &mut Vec<Unproved>) -> Result<usize> {
        let _ = unproved;
        self.read_verified_at(offset, buf)
    }

    /// Whether a stretch that [`StoreFile::read_to_keep_at`] told, maybe in another process, was right when it was read. With `now`, whatever
    /// that takes is fetched first, and it is [`Proof::Right`] or [`Proof::Wrong`]; else no network is waited for.
    ///
    /// # Errors
    /// As of [`StoreFile::read_verified_at`], with `now`.
    fn prove(&self, what: &Unproved, now: bool) -> Result<Proof> {
        let _ = (what, now);
        Ok(Proof::Right)
    }

    /// Whether a call may wait for a network. It waits for nothing itself, and may be wrong by the time of the call.
    /// Asked only of stores that are [`Capabilities::remote`].
    fn may_wait(&self, call: FileCall) -> bool {
        let _ = call;
        true
    }

    /// Whether what others were given of the file before it was opened so is no good for it: it may turn out to be wrong, and comes back
    /// with what is written here. A front end then drops what it keeps of the file, and reads again.
    fn voids_pages(&self) -> bool {
        false
    }

    /// Whether whatever is written from now on gives the file other times than it has, which no other file of its number has, so that who has read it can tell by them that it is
    /// still the same. Where programs may write without asking the store, what they have written is looked to first. It may take as long as
    /// writing that.
    ///
    /// # Errors
    /// The medium failed.
    fn times_tell(&self) -> Result<bool> {
        Ok(true)
    }

    /// All of the content as an open file of the host, from which a front end may have the kernel read by itself, without asking again for
    /// as long as somebody has this file open. `None` if there is no such file now, or it may change or turn out to be wrong.
    ///
    /// It waits for no network. Asked only of stores with [`Capabilities::host_files`], where nothing can be changed.
    fn host_file(&self) -> Option<OwnedFd> {
        None
    }

    /// Sets the length; a longer one reads as zeros.
    fn set_len(&self, len: u64) -> Result<()>;

    /// The length in bytes, as the medium has it now.
    fn len(&self) -> Result<u64>;

    /// Whether it is empty now.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Tells what closing it would tell of what was written (`close(2)`), for whoever puts a new file in the place of another one.
    ///
    /// Nothing in a store of our own, where what `write_at` returned for is stored. One that passes writes on to a host which takes them
    /// before it has stored them hears of a failure here.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Makes content and length durable, and, unless `data_only`, attributes and the names that lead here.
    fn sync(&self, data_only: bool) -> Result<()>;

    /// `fallocate(2)`. A mode that the store cannot serve is `NotSupported`.
    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()>;

    /// As [`StoreFile::allocate`]; times as in [`StoreFile::write_keeping_times`].
    fn allocate_keeping_times(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        self.allocate(offset, len, mode)
    }

    /// The first offset at or after `offset` that holds data (`SEEK_DATA`); `NoData` past the end.
    fn seek_data(&self, offset: u64) -> Result<u64> {
        if offset < self.len()? { Ok(offset) } else { Err(ErrorKind::NoData.into()) }
    }

    /// The first offset at or after `offset` in a hole (`SEEK_HOLE`); the end of the file counts as one.
    fn seek_hole(&self, offset: u64) -> Result<u64> {
        let len = self.len()?;
        if offset < len { Ok(len) } else { Err(ErrorKind::NoData.into()) }
    }
}
