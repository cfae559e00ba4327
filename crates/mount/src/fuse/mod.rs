//! [`Front`]: each request of the kernel decoded, given to the engine, and answered exactly once.
//!
//! No request gets past [`Requests::ask`]. Reply objects stay outside of it, so that they are consumed once whatever happens
//! inside.
//!
//! What the kernel does for us, and so is not here: permission checks by mode and ACL (`default_permissions`), the sticky
//! bit, file locks, `.` and `..` on lookup; and for stores without extended attributes clearing set-id bits ([`set_id`]).
//!
//! Missing in the transport, fuser 0.18: O_TMPFILE (its request is answered ENOSYS, and the kernel says EOPNOTSUPP), birth
//! times, SYNCFS.

mod announced;
mod calls;
mod convert;
mod init;
mod listing;
mod open;
mod pages;
mod passthrough;
mod requests;
mod seek;
mod set_id;
mod shortage;
mod unopened;
mod waiters;
mod xattrs;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use adit_core::FsError;
use adit_core::engine::{Engine, Entry, Fh};
use adit_core::store::{FileCall, NewNode};
use adit_core::types::{Attr, Caller, FileName, Ino, SetAttr};
use fuser::{
    Errno, FileAttr, FileHandle, Generation, INodeNo, Notifier, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyWrite, Request, WriteFlags,
};

use self::init::Agreed;
pub(crate) use self::pages::Begin;
use self::passthrough::Passthrough;
use self::requests::Requests;
use self::set_id::Changer;
use self::unopened::{Handle, Unopened};
use self::waiters::Waiters;
use crate::activity::Activity;
use crate::announcements::Announcements;
use crate::control::Doorplate;
use crate::nodes::Nodes;
use crate::options::MountOptions;
use crate::request::Kind as Asked;

/// Largest read and write of one request, in bytes. 16 MiB gained nothing over it.
const TRANSFER_LEN_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way on its own account (whatever fills or empties its pages, asynchronous direct I/O). Far more than
/// [wait](waiters::WAITERS_MAX) for a network at a time: it holds back all others when there are so many, those for content that is here as well.
/// What waits for its turn takes no buffer yet, but for what is written over a part of a block.
const BACKGROUND_MAX: u16 = 512;
/// What requests that wait for a network may take: as much as this part of the engine's memory, beside it.
const WAITERS_SHARE: u64 = 2;

thread_local! {
    /// What a worker decrypts into for a read reply. It is zeroed once, when it grows.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The kernel's requests on one mount, served from several threads at once.
pub(crate) struct Front {
    requests: Arc<Requests>,
    agreed: Agreed,
    /// `st_blksize`: the store's unit, because stdio writes in such pieces, and each is a request.
    block_len: u32,
    /// Where content may come over a network.
    waiters: Waiters,
    /// What the kernel reads by itself.
    passthrough: Passthrough,
    /// Whether it must not open files by itself.
    counts_opens: bool,
    /// Where it opens files by itself, what is open here instead.
    unopened: Option<Unopened>,
    /// How its process is reached.
    doorplate: Doorplate,
}

/// An entry as the kernel is given it: [`attr`](NodeReply::attr) has the number under which it is to know the inode.
struct NodeReply {
    attr: FileAttr,
    generation: Generation,
    attr_ttl: Duration,
    entry_ttl: Duration,
}

impl NodeReply {
    /// Where the transport takes one time for both: the shorter is true for both.
    fn ttl(&self) -> Duration {
        self.attr_ttl.min(self.entry_ttl)
    }

    fn answer(self, reply: ReplyEntry) {
        reply.entry_with_ttls(&self.attr_ttl, &self.entry_ttl, &self.attr, self.generation);
    }
}

impl Front {
    /// `options`: whether the kernel may read and open files by itself.
    pub(crate) fn new(engine: Arc<Engine>, activity: Arc<Activity>, options: &MountOptions) -> Self {
        let block_len = engine.store().capabilities().unit_len_bytes.clamp(4 << 10, 128 << 10);
        let requests = Arc::new(Requests::new(engine, activity));
        let agreed = Agreed::default();
        let passthrough = Passthrough::new(options.passthrough);
        let waiters = Waiters::new(requests.engine.options().memory_bytes / WAITERS_SHARE);
        let (counts_opens, unopened, doorplate) = (options.counts_opens, None, Doorplate::default());
        Front { requests, agreed, block_len, waiters, passthrough, counts_opens, unopened, doorplate }
    }

    /// Where the mount tells the door to its process.
    pub(crate) fn doorplate(&self) -> Doorplate {
        self.doorplate.clone()
    }

    /// Where the session puts the way to the kernel, once it has one.
    pub(crate) fn kernel(&self) -> Arc<OnceLock<Notifier>> {
        self.requests.pages.kernel().clone()
    }

    /// The place for what has the kernel begin to write its pages.
    pub(crate) fn begin(&self) -> Arc<OnceLock<Begin>> {
        self.requests.pages.begin().clone()
    }

    /// Under which numbers the kernel knows inodes.
    pub(crate) fn nodes(&self) -> Arc<Nodes> {
        self.requests.nodes.clone()
    }

    /// What is announced to watchers.
    pub(crate) fn announcements(&self) -> Arc<Announcements> {
        self.requests.announcements.clone()
    }

    /// Runs one request. See [`Requests`].
    fn ask<T>(
        &self,
        asked: Asked,
        node: INodeNo,
        call: impl FnOnce(&Engine, INodeNo) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        self.requests.ask(asked, node, call)
    }

    fn may_wait(&self, fh: Fh, call: FileCall) -> bool {
        self.requests.engine.may_wait(fh, call)
    }

    /// What the kernel means by `fh` in a request that only reads.
    fn handle(&self, ino: INodeNo, fh: FileHandle) -> Result<Handle, Errno> {
        unopened::handle(self.unopened.as_ref(), &self.requests, ino, fh)
    }

    /// Runs `job`, about `ino`, where it is in nobody's way, if it may wait.
    fn run(&self, may_wait: bool, ino: INodeNo, job: impl FnOnce() + Send + 'static) {
        if may_wait { self.waiters.run(ino.0, 0, job) } else { job() }
    }

    /// Where ACLs were agreed on, the umask is left to the store. Else the kernel has applied it already; doing so again
    /// changes nothing.
    fn new_node(&self, req: &Request, mode: u32, umask: u32) -> NewNode {
        let (perm, umask) = ((mode & 0o7777) as u16, (umask & 0o777) as u16);
        let new = NewNode { perm, umask, caller: caller_of(req) };
        if self.agreed.acls { new } else { NewNode { perm: new.masked_perm(), umask: 0, ..new } }
    }

    /// Where the kernel keeps the times, it sends them along with a length that is another one. A length that a file has already
    /// must not change them.
    fn without_needless_size(agreed: Agreed, engine: &Engine, ino: Ino, set: SetAttr) -> Result<SetAttr, FsError> {
        let needless = agreed.times && set.mtime.is_none() && set.ctime.is_none();
        match set.size {
            Some(size) if needless && engine.getattr(ino, None)?.0.size == size => Ok(SetAttr { size: None, ..set }),
            _ => Ok(set),
        }
    }

    fn attr(&self, attr: &Attr) -> FileAttr {
        convert::file_attr(attr, self.block_len)
    }

    /// What the kernel is given of an entry. Called while the request for it is in progress: see [`crate::nodes`].
    fn given(&self, entry: &Entry) -> NodeReply {
        let mut attr = self.attr(&entry.attr);
        let mut attr_ttl = self.requests.kept(&entry.attr, entry.attr_ttl);
        let node = self.requests.nodes.number(entry.attr.ino);
        if node != attr.ino {
            // The transport sends one number as both. The inode's own comes with its attributes, for which the kernel asks at once.
            (attr.ino, attr_ttl) = (node, Duration::ZERO);
        }
        NodeReply { attr, generation: Generation(entry.generation), attr_ttl, entry_ttl: entry.entry_ttl }
    }

    /// As [`Front::ask`], for an entry.
    fn ask_entry(
        &self,
        asked: Asked,
        node: INodeNo,
        call: impl FnOnce(&Engine, INodeNo) -> Result<Entry, FsError>,
    ) -> Result<NodeReply, Errno> {
        self.ask(asked, node, |engine, ino| call(engine, ino).map(|entry| self.given(&entry)))
    }

    fn answer_entry(&self, result: Result<NodeReply, Errno>, reply: ReplyEntry) {
        match result {
            Ok(given) => given.answer(reply),
            Err(e) => reply.error(e),
        }
    }
}

fn answer_attr(requests: &Requests, result: Result<(Attr, Duration), Errno>, block_len: u32, reply: ReplyAttr) {
    match result {
        Ok((attr, ttl)) => reply.attr(&requests.kept(&attr, ttl), &convert::file_attr(&attr, block_len)),
        Err(e) => reply.error(e),
    }
}

/// Reads, and answers. It is a function of its own because it may run on a thread of its own.
fn answer_read(requests: &Requests, ino: INodeNo, handle: &Handle, offset: u64, into: &mut [u8], reply: ReplyData) {
    match requests.ask(Asked::Read, ino, |engine, _| engine.read(handle.fh, offset, &mut *into)) {
        // What lies behind `len` is of an earlier read.
        Ok(len) => reply.data(&into[..len.min(into.len())]),
        Err(e) => reply.error(e),
    }
}

/// Likewise.
#[allow(clippy::too_many_arguments, reason = "those of the request")]
fn answer_write(
    requests: &Requests,
    agreed: Agreed,
    by: Changer,
    ino: INodeNo,
    fh: FileHandle,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    reply: ReplyWrite,
) {
    let mut reply = Some(reply);
    let mut accept = || {
        if let Some(reply) = reply.take() {
            reply.written(data.len() as u32);
        }
    };
    let result = requests.ask(Asked::Write, ino, |engine, ino| {
        Front::before_write(agreed, engine, fh_of(fh), flags, by)?;
        let written = match agreed.times {
            true => engine.write_keeping_times(fh_of(fh), offset, data),
            false => engine.write_behind(fh_of(fh), offset, data, &mut accept),
        };
        if requests.shortage.wrote(engine, Ino(ino.0), &written, flags.contains(WriteFlags::FUSE_WRITE_CACHE)) {
            let open = engine.open_for_writing().into_iter();
            requests.pages.forget_attributes(open.map(|ino| requests.nodes.number(ino)).collect());
        }
        written
    });
    match (result, reply) {
        (Ok(len), Some(reply)) => reply.written(len.min(data.len()) as u32),
        (Err(e), Some(reply)) => reply.error(e),
        // The engine answered, and keeps what it could not write.
        (_, None) => {}
    }
}

fn name_of(name: &OsStr) -> Result<FileName<'_>, FsError> {
    Ok(FileName::new(name.as_bytes())?)
}

fn caller_of(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

fn fh_of(fh: FileHandle) -> Fh {
    Fh(fh.0)
}

fn answer_empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}
