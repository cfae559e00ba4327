//! The requests of the kernel, one by one.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use adit_core::ErrorKind;
use adit_core::engine::Lookup;
use adit_core::store::FileCall;
use adit_core::types::{Access, Ino, Kind, RenameFlags, SetAttr, XattrName};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::init::Wishes;
use super::open::{access_of, fopen_flags};
use super::seek::Seek;
use super::set_id::Changer;
use super::unopened::Unopened;
use super::{
    Front, READ_BUFFER, TRANSFER_LEN_MAX, answer_attr, answer_empty, answer_read, answer_write, caller_of, convert,
    fh_of, init, name_of, passthrough, xattrs,
};
use crate::announcements::Step;
use crate::nodes::Nodes;
use crate::request::Kind as Asked;

/// Most bytes that one copy_file_range request copies: it cannot be interrupted, and its caller asks again for the rest.
const COPY_LEN_MAX: u64 = 64 << 20;

impl Filesystem for Front {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let engine = &self.requests.engine;
        let store = engine.store().capabilities();
        let kernel_writeback = engine.options().kernel_writeback;
        let unopened = engine.is_read_only() && !self.counts_opens;
        let passthrough = self.passthrough.is_wanted() && engine.is_read_only();
        self.agreed = init::agree(&store, Wishes { kernel_writeback, passthrough, unopened }, config)?;
        self.passthrough.agreed(self.agreed.passthrough);
        self.unopened = self.agreed.unopened.then(Unopened::new);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(reply) = self.lookup_announced(req, reply) else { return };
        let found = self.ask(Asked::Lookup, parent, |engine, parent| {
            Ok(match engine.lookup_or_absent(Ino(parent.0), name_of(name)?)? {
                Lookup::Found(entry) => Ok(self.given(&entry)),
                Lookup::Absent { ttl } => Err(ttl),
            })
        });
        match found {
            Ok(Ok(given)) => given.answer(reply),
            Ok(Err(ttl)) if ttl.is_zero() => reply.error(Errno::ENOENT),
            Ok(Err(ttl)) => {
                let absent = convert::no_inode(Kind::File, Ino(0));
                reply.entry_with_ttls(&Duration::ZERO, &ttl, &absent, Generation(0));
            }
            Err(e) => reply.error(e),
        }
    }

    // The kernel forgets when it needs memory: not a request of a user, so it does not count as activity.
    // fuser splits BATCH_FORGET into these (its type for a batch is private).
    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.requests.activity.count(Asked::Forget);
        let ino = self.requests.nodes.former_inode(ino);
        if let Some(unopened) = &self.unopened {
            unopened.forget(ino);
        }
        self.requests.quietly(Asked::Forget, ino, |engine| {
            engine.forget(ino, nlookup);
            self.requests.nodes.forgotten(ino, || engine.lookup_count(ino) > 0);
        });
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let (requests, block_len, fh) = (self.requests.clone(), self.block_len, fh.map(fh_of));
        let writer = fh.filter(|fh| requests.engine.may_write(*fh));
        let scarce = writer.and_then(|_| requests.shortage.holds_for(&requests.engine));
        let answer = move || {
            let result = requests.ask(Asked::Getattr, ino, |engine, ino| {
                if scarce.is_some() {
                    requests.shortage.check(Ino(ino.0))?;
                }
                engine.getattr(Ino(ino.0), fh)
            });
            answer_attr(&requests, result, block_len, reply);
        };
        // It is most likely about to write.
        let pages = &self.requests.pages;
        match scarce {
            None => answer(),
            Some(time) if time.is_zero() => pages.after_writing(ino, answer),
            Some(_) => pages.after_beginning_to_write(ino, answer),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
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
            // Sent only by a kernel that keeps it, with kernel write-back.
            ctime: ctime.map(convert::timestamp),
        };
        let (set, announced) = (self.set_announced(req, set), self.inode_announced(req, ino));
        let (requests, agreed, block_len, by) =
            (self.requests.clone(), self.agreed, self.block_len, Changer::from(req));
        self.run(requests.engine.setattr_may_wait(Ino(ino.0), &set), ino, move || {
            let result = requests.ask(Asked::Setattr, ino, |engine, ino| {
                let done = match set.is_empty() {
                    _ if let Some(known) = announced => engine.getattr(known, None),
                    _ if Nodes::is_former(Ino(ino.0)) => Err(ErrorKind::Stale.into()),
                    true => engine.getattr(Ino(ino.0), fh.map(fh_of)),
                    false => {
                        let set = Front::with_set_id(agreed, engine, by, Ino(ino.0), set)?;
                        let set = Front::without_needless_size(agreed, engine, Ino(ino.0), set)?;
                        engine.setattr(Ino(ino.0), &set, fh.map(fh_of))
                    }
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
            answer_attr(&requests, result, block_len, reply);
        });
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.ask(Asked::Readlink, ino, |engine, ino| engine.readlink(Ino(ino.0))) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        if self.step(req) == Some(Step::Making) {
            return self.making_announced(parent, name, reply);
        }
        let new = self.new_node(req, mode, umask);
        let result = self.ask_entry(Asked::Mknod, parent, |engine, parent| {
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
        if self.step(req) == Some(Step::Making) {
            return self.making_announced(parent, name, reply);
        }
        let new = self.new_node(req, mode, umask);
        let result =
            self.ask_entry(Asked::Mkdir, parent, |engine, parent| engine.mkdir(Ino(parent.0), name_of(name)?, &new));
        self.answer_entry(result, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if self.step(req) == Some(Step::Removal) {
            return self.removal_announced(parent, name, reply);
        }
        answer_empty(
            self.ask(Asked::Unlink, parent, |engine, parent| engine.unlink(Ino(parent.0), name_of(name)?)),
            reply,
        );
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if self.step(req) == Some(Step::Removal) {
            return self.removal_announced(parent, name, reply);
        }
        answer_empty(
            self.ask(Asked::Rmdir, parent, |engine, parent| engine.rmdir(Ino(parent.0), name_of(name)?)),
            reply,
        );
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        if self.step(req) == Some(Step::Making) {
            return self.making_announced(parent, link_name, reply);
        }
        let target = target.as_os_str().as_bytes();
        let result = self.ask_entry(Asked::Symlink, parent, |engine, parent| {
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
        let result = self.ask(Asked::Rename, parent, |engine, parent| {
            let flags = RenameFlags::from_bits(flags.bits()).ok_or(ErrorKind::InvalidInput)?;
            let newparent = self.requests.second(newparent)?;
            engine.rename(Ino(parent.0), name_of(name)?, newparent, name_of(newname)?, flags)
        });
        answer_empty(result, reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let result = self.ask_entry(Asked::Link, ino, |engine, ino| {
            engine.link(Ino(ino.0), self.requests.second(newparent)?, name_of(newname)?)
        });
        self.answer_entry(result, reply);
    }

    // The kernel keeps O_TRUNC to itself and sends a setattr.
    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.unopened.is_some() {
            self.requests.activity.count(Asked::Open);
            return reply.error(Errno::ENOSYS);
        }
        let opened = self.ask(Asked::Open, ino, |engine, ino| {
            let opened = engine.open(Ino(ino.0), access_of(flags), false)?;
            Ok((opened, self.passthrough.open(engine, Ino(ino.0), opened.fh, flags, &reply)))
        });
        match opened {
            Ok((opened, Some(host_file))) => {
                self.requests.activity.opened();
                self.requests.activity.passed();
                let flags = passthrough::fopen_flags(&opened, flags);
                reply.opened_passthrough(FileHandle(opened.fh.0), flags, &host_file);
            }
            Ok((mut opened, None)) => {
                self.requests.activity.opened();
                opened.keep_cache |= self.give_whole(ino, &opened, flags);
                self.note_writer(ino, flags);
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
        let new = self.new_node(req, mode, umask);
        let result = self.ask(Asked::Create, parent, |engine, parent| {
            let (entry, opened) = self.create_or_open(engine, Ino(parent.0), name_of(name)?, &new, OpenFlags(flags))?;
            Ok((self.given(&entry), opened))
        });
        match result {
            Ok((given, opened)) => {
                self.requests.activity.opened();
                self.note_writer(given.attr.ino, OpenFlags(flags));
                let fh = FileHandle(opened.fh.0);
                reply.created(&given.ttl(), &given.attr, given.generation, fh, fopen_flags(&opened));
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
        let size = size.min(TRANSFER_LEN_MAX);
        let handle = match self.handle(ino, fh) {
            Ok(handle) => handle,
            Err(e) => return reply.error(e),
        };
        if self.may_wait(handle.fh, FileCall::Read { offset, len: size.into() }) {
            let requests = self.requests.clone();
            // What is read into goes with the request: these threads are many.
            return self.waiters.run(ino.0, size.into(), move || {
                answer_read(&requests, ino, &handle, offset, &mut vec![0; size as usize], reply)
            });
        }
        let size = size as usize;
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            answer_read(&self.requests, ino, &handle, offset, &mut buffer[..size], reply);
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.may_wait(fh_of(fh), FileCall::Write { offset, len: data.len() as u64 }) {
            let (requests, agreed, data) = (self.requests.clone(), self.agreed, data.to_vec());
            let by = Changer::from(req);
            return self.waiters.run(ino.0, data.len() as u64, move || {
                answer_write(&requests, agreed, by, ino, fh, offset, &data, write_flags, reply)
            });
        }
        answer_write(&self.requests, self.agreed, req.into(), ino, fh, offset, data, write_flags, reply);
    }

    // There may be nothing to do, but the answer says that somebody has taken what the kernel held, be it only through a mapping:
    // on a connection that is gone it drops its pages in silence, and only a request at the close makes the close fail. Where
    // nothing can be written: ENOSYS, once, and it asks no more.
    fn flush(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        if self.requests.engine.is_read_only() {
            return reply.error(Errno::ENOSYS);
        }
        answer_empty(self.ask(Asked::Flush, ino, |engine, _| engine.flush(fh_of(fh))), reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.ask(Asked::Release, ino, |engine, _| engine.release(fh_of(fh)));
        if access_of(flags) == Access::Write {
            self.requests.shortage.closed(&self.requests.engine, self.requests.nodes.former_inode(ino));
        }
        self.passthrough.release(Ino(ino.0));
        self.requests.activity.released();
        answer_empty(result, reply);
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let synced = self
            .handle(ino, fh)
            .and_then(|handle| self.ask(Asked::Fsync, ino, |engine, _| engine.fsync(handle.fh, datasync)));
        answer_empty(synced, reply);
    }

    // ENOSYS, once: the kernel opens directories itself, and keeps their listings until it changes them. Where entries
    // expire that is left out (FOPEN_CACHE_DIR): a listing of the kernel's bypasses READDIRPLUS, so that `ls -l` after the
    // entries' timeout would cost a lookup each.
    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.requests.engine.lists_by_inode() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(Asked::Opendir, ino, |engine, ino| engine.opendir(Ino(ino.0))) {
            Ok(fh) => {
                self.requests.activity.opened();
                reply.opened(FileHandle(fh.0), FopenFlags::empty());
            }
            Err(e) => reply.error(e),
        }
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.list(ino, fh, offset, reply);
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        self.list_with_attributes(ino, fh, offset, reply);
    }

    fn releasedir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        let result = self.ask(Asked::Releasedir, ino, |engine, _| engine.releasedir(fh_of(fh)));
        self.requests.activity.released();
        answer_empty(result, reply);
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let synced = self.ask(Asked::Fsyncdir, ino, |engine, ino| match engine.lists_by_inode() {
            true => engine.sync_dir(Ino(ino.0)),
            false => engine.fsyncdir(fh_of(fh)),
        });
        answer_empty(synced, reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.ask(Asked::Statfs, ino, |engine, _| engine.statfs()) {
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
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (requests, agreed, by) = (self.requests.clone(), self.agreed, Changer::from(req));
        let mode = convert::allocate_mode(mode);
        let call = mode.map(|mode| FileCall::Allocate { offset, len: length, mode });
        self.run(call.is_some_and(|call| self.may_wait(fh_of(fh), call)), ino, move || {
            let result = requests.ask(Asked::Fallocate, ino, |engine, _| {
                let mode = mode.ok_or(ErrorKind::NotSupported)?;
                Front::before_change(agreed, engine, fh_of(fh), by)?;
                match agreed.times {
                    true => engine.allocate_keeping_times(fh_of(fh), offset, length, mode),
                    false => engine.allocate(fh_of(fh), offset, length, mode),
                }
            });
            answer_empty(result, reply);
        });
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.handle(ino, fh) {
            Ok(handle) => self.seek(Seek { ino, handle, offset, whence }, reply),
            Err(e) => reply.error(e),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
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
        let (requests, agreed, by, len) =
            (self.requests.clone(), self.agreed, Changer::from(req), len.min(COPY_LEN_MAX));
        let may_wait = self.may_wait(fh_of(fh_in), FileCall::ReadVerified { offset: offset_in, len })
            || self.may_wait(fh_of(fh_out), FileCall::Write { offset: offset_out, len });
        self.run(may_wait, ino_in, move || {
            let result = requests.ask(Asked::CopyFileRange, ino_in, |engine, _| {
                if !flags.is_empty() {
                    return Err(ErrorKind::InvalidInput.into());
                }
                Front::before_change(agreed, engine, fh_of(fh_out), by)?;
                let (from, to) = (fh_of(fh_in), fh_of(fh_out));
                // The kernel may have sent its time of the copy already, and sends none that it takes to be the same.
                match agreed.times {
                    true => engine.copy_range_keeping_times(from, offset_in, to, offset_out, len),
                    false => engine.copy_range(from, offset_in, to, offset_out, len),
                }
            });
            match result {
                Ok(len) => reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
                Err(e) => reply.error(e),
            }
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.has_xattrs() {
            return reply.error(Errno::ENOSYS);
        }
        let value = self.ask(Asked::Getxattr, ino, |engine, ino| {
            let name = XattrName::new(name.as_bytes())?;
            self.check_acl(name)?;
            engine.xattr(Ino(ino.0), name).map_err(|e| self.without_labels(name, e))
        });
        xattrs::answer(value, size, reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if !self.has_xattrs() {
            return reply.error(Errno::ENOSYS);
        }
        let set = self.ask(Asked::Setxattr, ino, |engine, ino| {
            let name = XattrName::new(name.as_bytes())?;
            self.set_xattr(engine, req, Ino(ino.0), name, (value, flags))
        });
        answer_empty(set, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        xattrs::answer(
            self.ask(Asked::Listxattr, ino, |engine, ino| self.list_xattrs(engine, req, Ino(ino.0))),
            size,
            reply,
        );
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !self.has_xattrs() {
            return reply.error(Errno::ENOSYS);
        }
        let removed = self.ask(Asked::Removexattr, ino, |engine, ino| {
            let name = XattrName::new(name.as_bytes())?;
            self.check_acl(name)?;
            engine.remove_xattr(Ino(ino.0), name)
        });
        answer_empty(removed, reply);
    }

    // Never asked with `default_permissions`; ENOSYS means "as the mode bits say".
    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _req: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    // Whoever wants to reach this process. See [`Doorplate`](crate::control::Doorplate).
    fn ioctl(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.doorplate.answer(cmd, in_data, req.uid()) {
            Ok(door) => reply.ioctl(0, &door),
            Err(e) => reply.error(Errno::from_i32(e.raw_os_error())),
        }
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
