//! [`Front`]: each request of the kernel decoded, given to the engine, and answered exactly once.
//!
//! No request gets past [`Front::ask`]: it counts the request, catches a panic (which would end fuser's worker, and after
//! the last of them the mount), logs what an errno hides, and turns the error into one. Reply objects stay outside, so
//! that they are consumed once whatever happens inside.
//!
//! What the kernel does for us, and so is not here: permission checks (`default_permissions`), the umask, file locks,
//! `.` and `..` on lookup, and clearing set-id bits on write, truncate and chown. `HANDLE_KILLPRIV` would move the last
//! to the store, which writes as a privileged process and would not clear them; without it the kernel sends the new mode.

mod convert;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use adit_core::engine::{Engine, Entry, Fh, Lookup, Opened, SinkFlow};
use adit_core::store::NewNode;
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr};
use adit_core::{ErrorKind, FsError};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenAccMode, OpenFlags, PollEvents, PollFlags,
    PollNotifier, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use crate::activity::Activity;
use crate::errno::{ErrorLog, errno_of};

/// Largest read and write of one request, in bytes. 16 MiB gained nothing over it.
const TRANSFER_LEN_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way on its own account (read-ahead, asynchronous direct I/O).
const BACKGROUND_MAX: u16 = 64;
/// Most bytes that one copy_file_range request copies: it cannot be interrupted, and its caller asks again for the rest.
const COPY_LEN_MAX: u64 = 64 << 20;
/// Files up to this length are given to the kernel whole when they are opened, in bytes.
const GIVEN_LEN_MAX: usize = 32 << 10;
/// The inode number that a listing shows for `..` of a directory whose parent is not at hand (as libfuse does).
const UNKNOWN_INO: u64 = 0xffff_ffff;

thread_local! {
    /// What a worker decrypts into for a read reply. It is zeroed once, when it grows.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The kernel's requests on one mount, served from several threads at once.
pub(crate) struct Front {
    engine: Arc<Engine>,
    activity: Arc<Activity>,
    errors: ErrorLog,
    /// `st_blksize`: the store's unit, because stdio writes in such pieces, and each is a request.
    block_len: u32,
    /// For content that is given before it is asked for.
    kernel: Arc<OnceLock<Notifier>>,
}

impl Front {
    pub(crate) fn new(engine: Arc<Engine>, activity: Arc<Activity>) -> Self {
        let block_len = engine.store().capabilities().unit_len_bytes.clamp(4 << 10, 128 << 10);
        Front { engine, activity, errors: ErrorLog::default(), block_len, kernel: Arc::default() }
    }

    /// Where the session puts the way to the kernel, once it has one.
    pub(crate) fn kernel(&self) -> Arc<OnceLock<Notifier>> {
        self.kernel.clone()
    }

    /// Puts the content of a small file into the kernel's cache before its open is answered, so that the first read needs
    /// no request. True when it is there.
    ///
    /// Notifications from a thread that serves requests are dangerous: this one waits for the pages' locks. They are free,
    /// because nobody else has the file open ([`Engine::give_whole`]), and a request for a page of it would need a handle.
    fn give_whole(&self, ino: INodeNo, opened: &Opened, flags: OpenFlags) -> bool {
        if !opened.unread || flags.0 & libc::O_DIRECT != 0 || self.engine.options().kernel_writeback {
            return false;
        }
        let Some(kernel) = self.kernel.get() else { return false };
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < GIVEN_LEN_MAX {
                buffer.resize(GIVEN_LEN_MAX, 0);
            }
            let into = &mut buffer[..GIVEN_LEN_MAX];
            let given = self.ask("open", ino, |engine| {
                Ok(engine.give_whole(opened.fh, into, |content| kernel.store(ino, 0, content).is_ok()))
            });
            given.unwrap_or(false)
        })
    }

    /// Runs one request. See the module's notes.
    fn ask<T>(
        &self,
        op: &'static str,
        ino: INodeNo,
        call: impl FnOnce(&Engine) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        let Some(_request) = self.activity.begin() else {
            return Err(Errno::ENOTCONN);
        };
        match catch_unwind(AssertUnwindSafe(|| call(&self.engine))) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                self.errors.note(op, &error, || self.engine.store().path_of(Ino(ino.0)));
                Err(Errno::from_i32(errno_of(error.kind())))
            }
            Err(panic) => {
                tracing::error!(op, ino = ino.0, "panic: {}", panic_text(&*panic));
                Err(Errno::EIO)
            }
        }
    }

    /// Runs what is no request of a user, or comes after its answer: it is not counted, and nobody hears how it ends.
    fn quietly(&self, op: &'static str, ino: Ino, call: impl FnOnce(&Engine)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(&self.engine))) {
            tracing::error!(op, ino = ino.0, "panic: {}", panic_text(&*panic));
        }
    }

    fn attr(&self, attr: &Attr) -> fuser::FileAttr {
        convert::file_attr(attr, self.block_len)
    }

    fn answer_entry(&self, result: Result<Entry, Errno>, reply: ReplyEntry) {
        match result {
            Ok(entry) => reply.entry_with_ttls(
                &entry.attr_ttl,
                &entry.entry_ttl,
                &self.attr(&entry.attr),
                Generation(entry.generation),
            ),
            Err(e) => reply.error(e),
        }
    }

    fn answer_attr(&self, result: Result<(Attr, Duration), Errno>, reply: ReplyAttr) {
        match result {
            Ok((attr, ttl)) => reply.attr(&ttl, &self.attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    /// Creates and opens. If the name came into being since the kernel looked, and the caller did not insist on making
    /// it (O_EXCL), the file that is there is opened, as `open(2)` promises.
    fn create_or_open(
        &self,
        engine: &Engine,
        parent: Ino,
        name: FileName<'_>,
        new: &NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), FsError> {
        match engine.create(parent, name, new, access_of(flags)) {
            Err(e) if e.kind() == ErrorKind::Exists && flags.0 & libc::O_EXCL == 0 => {}
            other => return other,
        }
        let entry = engine.lookup(parent, name)?;
        let ino = entry.attr.ino;
        let opened = match entry.attr.kind {
            Kind::File => self.open_and_truncate(engine, ino, flags, new.caller),
            // ESTALE makes the kernel walk the path again and find the directory or link.
            _ => Err(ErrorKind::Stale.into()),
        };
        match opened {
            Ok(opened) => Ok((entry, opened)),
            Err(e) => {
                engine.forget(ino, 1);
                Err(e)
            }
        }
    }

    /// Opens what a create found, with the truncation that the kernel leaves out because it believes the file to be new.
    /// Truncation clears set-id bits unless the caller is root.
    fn open_and_truncate(
        &self,
        engine: &Engine,
        ino: Ino,
        flags: OpenFlags,
        caller: Caller,
    ) -> Result<Opened, FsError> {
        let truncate = flags.0 & libc::O_TRUNC != 0;
        if truncate && caller.uid != 0 {
            let (attr, _) = engine.getattr(ino, None)?;
            let kept = without_set_id(attr.perm);
            if kept != attr.perm {
                engine.setattr(ino, &SetAttr { perm: Some(kept), ..SetAttr::default() }, None)?;
            }
        }
        engine.open(ino, access_of(flags), truncate)
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

/// Permission bits after a write by someone without privilege: no set-user-id; set-group-id only where it means locking.
fn without_set_id(perm: u16) -> u16 {
    const SET_GID_EXEC: u16 = 0o2010;
    let perm = perm & !0o4000;
    if perm & SET_GID_EXEC == SET_GID_EXEC { perm & !0o2000 } else { perm }
}

fn access_of(flags: OpenFlags) -> Access {
    match flags.acc_mode() {
        OpenAccMode::O_RDONLY => Access::Read,
        OpenAccMode::O_WRONLY | OpenAccMode::O_RDWR => Access::Write,
    }
}

fn name_of(name: &OsStr) -> Result<FileName<'_>, FsError> {
    Ok(FileName::new(name.as_bytes())?)
}

fn caller_of(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

/// The kernel has applied the umask already; doing so again changes nothing.
fn new_node(req: &Request, mode: u32, umask: u32) -> NewNode {
    NewNode { perm: (mode & !umask & 0o7777) as u16, umask: 0, caller: caller_of(req) }
}

fn fh_of(fh: FileHandle) -> Fh {
    Fh(fh.0)
}

/// Parallel direct writes are always fine: the engine orders writes to the same bytes itself.
fn fopen_flags(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_NOFLUSH, opened.no_flush);
    flags
}

fn answer_empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

/// Which capabilities to ask for: a list of the wanted, never all that the kernel offers (SETXATTR_EXT makes fuser 0.18
/// panic, OVER_IO_URING leaves it without queues, HANDLE_KILLPRIV_V2 has flags that it drops).
///
/// ATOMIC_O_TRUNC would save a request, but it truncates before the kernel has looked whether the file is being executed
/// (ETXTBSY): pjdfstest's `open::etxtbsy` killed the program.
fn capabilities(shared: bool, kernel_writeback: bool) -> InitFlags {
    let mut wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO;
    if shared && !kernel_writeback {
        // Someone else may change the store. The kernel then compares size and time at each revalidation, also for reads
        // of an open file, and drops its pages in the same step. Explicit invalidation would leave a moment in which a
        // grown file reads as zeros, and open files that are never looked at again.
        wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
    } else {
        wanted |= InitFlags::FUSE_EXPLICIT_INVAL_DATA | InitFlags::FUSE_CACHE_SYMLINKS;
    }
    if kernel_writeback {
        wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
    }
    wanted
}

impl Filesystem for Front {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let shared = self.engine.store().capabilities().shared;
        let wanted = capabilities(shared, self.engine.options().kernel_writeback);
        let unsupported = |_| io::Error::from(io::ErrorKind::Unsupported);
        config.add_capabilities(wanted & config.capabilities()).map_err(unsupported)?;
        config.set_max_write(TRANSFER_LEN_MAX).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.ask("lookup", parent, |engine| engine.lookup_or_absent(Ino(parent.0), name_of(name)?)) {
            Ok(Lookup::Found(entry)) => self.answer_entry(Ok(entry), reply),
            Ok(Lookup::Absent { ttl }) if ttl.is_zero() => reply.error(Errno::ENOENT),
            Ok(Lookup::Absent { ttl }) => {
                let absent = convert::no_inode(Kind::File, Ino(0));
                reply.entry_with_ttls(&Duration::ZERO, &ttl, &absent, Generation(0));
            }
            Err(e) => reply.error(e),
        }
    }

    // The kernel forgets when it needs memory: not a request of a user, so it does not count as activity.
    // fuser splits BATCH_FORGET into these (its type for a batch is private).
    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.quietly("forget", Ino(ino.0), |engine| engine.forget(Ino(ino.0), nlookup));
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let result = self.ask("getattr", ino, |engine| engine.getattr(Ino(ino.0), fh.map(fh_of)));
        self.answer_attr(result, reply);
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            perm: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
        };
        let result = self.ask("setattr", ino, |engine| {
            let done = match set.is_empty() {
                // A change of ctime alone (kernel write-back sends it): the store sets ctime itself.
                true => engine.getattr(Ino(ino.0), fh.map(fh_of)),
                false => engine.setattr(Ino(ino.0), &set, fh.map(fh_of)),
            };
            match done {
                // Kernel write-back stores the times of a file also after its last name went. It ignores the answer,
                // but would report an error of it at the next syncfs.
                Err(e)
                    if e.kind() == ErrorKind::Stale
                        && engine.options().kernel_writeback
                        && convert::only_times(&set) =>
                {
                    Ok((convert::removed_file(Ino(ino.0)), Duration::ZERO))
                }
                done => done,
            }
        });
        self.answer_attr(result, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.ask("readlink", ino, |engine| engine.readlink(Ino(ino.0))) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let new = new_node(req, mode, umask);
        let result = self.ask("mknod", parent, |engine| {
            let name = name_of(name)?;
            match convert::kind_of_mode(mode) {
                Some(Kind::File) => {
                    let (entry, opened) = engine.create(Ino(parent.0), name, &new, Access::Write)?;
                    // The file exists; that closing it failed is for the next user of it to hear.
                    let _ = engine.release(opened.fh);
                    Ok(entry)
                }
                Some(kind) => engine.mknod(Ino(parent.0), name, kind, rdev, &new),
                None => Err(ErrorKind::InvalidInput.into()),
            }
        });
        self.answer_entry(result, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let new = new_node(req, mode, umask);
        let result = self.ask("mkdir", parent, |engine| engine.mkdir(Ino(parent.0), name_of(name)?, &new));
        self.answer_entry(result, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.ask("unlink", parent, |engine| engine.unlink(Ino(parent.0), name_of(name)?)) {
            Ok(remains) => {
                reply.ok();
                // Most of the work, and nobody waits for it.
                self.quietly("unlink", Ino(parent.0), |_| drop(remains));
            }
            Err(e) => reply.error(e),
        }
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(self.ask("rmdir", parent, |engine| engine.rmdir(Ino(parent.0), name_of(name)?)), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let result = self.ask("symlink", parent, |engine| {
            engine.symlink(Ino(parent.0), name_of(link_name)?, target, caller_of(req))
        });
        self.answer_entry(result, reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let result = self.ask("rename", parent, |engine| {
            let flags = RenameFlags::from_bits(flags.bits()).ok_or(ErrorKind::InvalidInput)?;
            engine.rename(Ino(parent.0), name_of(name)?, Ino(newparent.0), name_of(newname)?, flags)
        });
        answer_empty(result, reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let result = self.ask("link", ino, |engine| engine.link(Ino(ino.0), Ino(newparent.0), name_of(newname)?));
        self.answer_entry(result, reply);
    }

    // The kernel keeps O_TRUNC to itself and sends a setattr.
    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.ask("open", ino, |engine| engine.open(Ino(ino.0), access_of(flags), false)) {
            Ok(mut opened) => {
                self.activity.opened();
                opened.keep_cache |= self.give_whole(ino, &opened, flags);
                reply.opened(FileHandle(opened.fh.0), fopen_flags(&opened));
            }
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = new_node(req, mode, umask);
        let result = self.ask("create", parent, |engine| {
            self.create_or_open(engine, Ino(parent.0), name_of(name)?, &new, OpenFlags(flags))
        });
        match result {
            Ok((entry, opened)) => {
                self.activity.opened();
                // fuser takes one time for both; the shorter is true for both.
                let ttl = entry.attr_ttl.min(entry.entry_ttl);
                let fh = FileHandle(opened.fh.0);
                let generation = Generation(entry.generation);
                reply.created(&ttl, &self.attr(&entry.attr), generation, fh, fopen_flags(&opened));
            }
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = size.min(TRANSFER_LEN_MAX) as usize;
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let into = &mut buffer[..size];
            match self.ask("read", ino, |engine| engine.read(fh_of(fh), offset, into)) {
                // What lies behind `len` is of an earlier read.
                Ok(len) => reply.data(&buffer[..len.min(size)]),
                Err(e) => reply.error(e),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut reply = Some(reply);
        let mut accept = || {
            if let Some(reply) = reply.take() {
                reply.written(data.len() as u32);
            }
        };
        let result = self.ask("write", ino, |engine| engine.write_behind(fh_of(fh), offset, data, &mut accept));
        match (result, reply) {
            (Ok(len), Some(reply)) => reply.written(len.min(data.len()) as u32),
            (Err(e), Some(reply)) => reply.error(e),
            // The engine answered, and keeps what it could not write.
            (_, None) => {}
        }
    }

    fn flush(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        answer_empty(self.ask("flush", ino, |engine| engine.flush(fh_of(fh))), reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.ask("release", ino, |engine| engine.release(fh_of(fh)));
        self.activity.released();
        answer_empty(result, reply);
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        answer_empty(self.ask("fsync", ino, |engine| engine.fsync(fh_of(fh), datasync)), reply);
    }

    // FOPEN_CACHE_DIR is left out: the kernel's own listing saves 20 ns an entry, but it bypasses READDIRPLUS, so that
    // `ls -l` after the entries' timeout costs a lookup each.
    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.ask("opendir", ino, |engine| engine.opendir(Ino(ino.0))) {
            Ok(fh) => {
                self.activity.opened();
                reply.opened(FileHandle(fh.0), FopenFlags::empty());
            }
            Err(e) => reply.error(e),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut taken = 0u32;
        let listed = self.ask("readdir", ino, |engine| {
            for (dot, dot_ino, at) in dots(ino).into_iter().filter(|(_, _, at)| *at > offset) {
                if reply.add(dot_ino, at, fuser::FileType::Directory, dot) {
                    return Ok(());
                }
                taken += 1;
            }
            let mut overflow = Ok(());
            engine.read_dir(fh_of(fh), offset.saturating_sub(convert::DOTS), &mut |entry| {
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

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let mut taken = 0u32;
        let listed = self.ask("readdirplus", ino, |engine| {
            for (dot, dot_ino, at) in dots(ino).into_iter().filter(|(_, _, at)| *at > offset) {
                // The kernel counts no lookup for these two, whatever their node id.
                let attr = convert::no_inode(Kind::Directory, Ino(dot_ino.0));
                if reply.add(dot_ino, at, dot, &Duration::ZERO, &attr, Generation(0)) {
                    return Ok(());
                }
                taken += 1;
            }
            let mut overflow = Ok(());
            engine.read_dir_plus(fh_of(fh), offset.saturating_sub(convert::DOTS), &mut |entry, found| {
                let Some(at) = convert::offset_of_cookie(entry.cookie) else {
                    overflow = Err(cookie_too_large());
                    return SinkFlow::Full;
                };
                // Without attributes nothing must be linked or counted. Node id 0 says so, but fuser sends it as the
                // entry's inode number, too, and readdir(3) skips entries with number 0. The root's id names the entry,
                // and the kernel refuses to link it and forgets the root once, which the engine ignores.
                let (attr, ttl, generation) = match found {
                    Some(e) => (self.attr(&e.attr), e.attr_ttl.min(e.entry_ttl), e.generation),
                    None => (convert::no_inode(entry.kind, Ino::ROOT), Duration::ZERO, 0),
                };
                let name = OsStr::from_bytes(entry.name.as_bytes());
                if reply.add(attr.ino, at, name, &ttl, &attr, Generation(generation)) {
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

    fn releasedir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let result = self.ask("releasedir", ino, |engine| engine.releasedir(fh_of(fh)));
        self.activity.released();
        answer_empty(result, reply);
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer_empty(self.ask("fsyncdir", ino, |engine| engine.fsyncdir(fh_of(fh))), reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.ask("statfs", ino, Engine::statfs) {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_available,
                s.files,
                s.files_free,
                s.block_size,
                s.name_len_max,
                s.block_size,
            ),
            Err(e) => reply.error(e),
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let result = self.ask("fallocate", ino, |engine| {
            let mode = convert::allocate_mode(mode).ok_or(ErrorKind::NotSupported)?;
            engine.allocate(fh_of(fh), offset, length, mode)
        });
        answer_empty(result, reply);
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let found = self.ask("lseek", ino, |engine| {
            let data = match whence {
                libc::SEEK_DATA => true,
                libc::SEEK_HOLE => false,
                _ => return Err(ErrorKind::InvalidInput.into()),
            };
            let offset = u64::try_from(offset).map_err(|_| ErrorKind::NoData)?;
            let found = engine.seek(fh_of(fh), offset, data)?;
            i64::try_from(found).map_err(|_| ErrorKind::FileTooLarge.into())
        });
        match found {
            Ok(offset) => reply.offset(offset),
            Err(e) => reply.error(e),
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let result = self.ask("copy_file_range", ino_in, |engine| {
            if !flags.is_empty() {
                return Err(ErrorKind::InvalidInput.into());
            }
            engine.copy_range(fh_of(fh_in), offset_in, fh_of(fh_out), offset_out, len.min(COPY_LEN_MAX))
        });
        match result {
            Ok(len) => reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
            Err(e) => reply.error(e),
        }
    }

    // Stores have no extended attributes yet. ENOSYS is said once; the kernel then answers EOPNOTSUPP itself, which also
    // spares a getxattr of security.capability with every write.
    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    // Never asked with `default_permissions`; ENOSYS means "as the mode bits say".
    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    // ENOSYS once: the kernel then says "always ready", which is true of files.
    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_capabilities_are_never_asked_for() {
        for (shared, writeback) in [(false, false), (false, true), (true, false), (true, true)] {
            let asked = capabilities(shared, writeback);
            let never = InitFlags::FUSE_SETXATTR_EXT
                | InitFlags::FUSE_OVER_IO_URING
                | InitFlags::FUSE_ATOMIC_O_TRUNC
                | InitFlags::FUSE_HANDLE_KILLPRIV
                | InitFlags::FUSE_HANDLE_KILLPRIV_V2
                | InitFlags::FUSE_EXPORT_SUPPORT
                | InitFlags::FUSE_POSIX_ACL
                | InitFlags::FUSE_DONT_MASK
                | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
            assert!((asked & never).is_empty());
            assert_eq!(asked.contains(InitFlags::FUSE_WRITEBACK_CACHE), writeback);
            let auto = asked.contains(InitFlags::FUSE_AUTO_INVAL_DATA);
            assert_ne!(auto, asked.contains(InitFlags::FUSE_EXPLICIT_INVAL_DATA));
        }
    }

    #[test]
    fn set_id_bits_go_with_a_truncation() {
        assert_eq!(without_set_id(0o6755), 0o755);
        assert_eq!(without_set_id(0o4644), 0o644);
        assert_eq!(without_set_id(0o2745), 0o2745, "without group execution it is a lock mark, not a set-id bit");
        assert_eq!(without_set_id(0o2755), 0o755);
    }
}
