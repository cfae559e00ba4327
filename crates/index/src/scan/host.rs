//! A folder of this machine, walked by several threads with the host's own calls.
//!
//! Each directory is opened by its name in the one above, and never through a link; what is in it is looked at through the open directory. So
//! nothing leads out of the folder, whatever is renamed meanwhile. Directories that are still to be read wait on a stack, which keeps few open.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::host::filesystem;
use adit_core::types::Kind;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat, fstat, openat, readlinkat, statat};
use rustix::io::{Errno, retry_on_intr};

use super::content;
use super::listing::{Batch, Known, join, unreadable};
use super::unfinished::{Next, Seen, Unfinished, dir_key, fall_out_of_step};
use super::work::{Dir, Group, Parent, Siblings, Task, Work};
use super::{ScanOptions, Sink};
use crate::ContentHash;
use crate::publish;
use crate::segment::NodeId;

/// Directories down to this depth stay open while others wait in them.
const HELD_DEPTH: usize = 32;
/// Below, one in so many does: the others are opened again from that one, name by name.
const HELD_STEP: usize = 64;
/// So many directories that another listing has found are kept open until they are listed.
const HELD_AGAIN: usize = 16;
/// What one call of the host lists at most, in bytes.
const LISTING_LEN_BYTES: usize = 64 << 10;
/// How often a file is read that changes meanwhile.
const TRIES: u32 = 3;
/// Batches that wait for the thread that takes them.
const WAITING_BATCHES: usize = 16;

/// Walks the folder `root`. `output`, if it lies in the folder, is left out, and what is written to become it.
///
/// # Errors
/// `Interrupted`; what `sink` says; what the host says of `root` itself. All else is told.
pub fn folder(root: &Path, output: Option<&Path>, options: &ScanOptions<'_>, sink: &mut Sink<'_>) -> Result<()> {
    let failed = |e: Errno| at_host(e, "list", root, b"");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = retry_on_intr(|| openat(CWD, root, flags, Mode::empty())).map_err(failed)?;
    let stat = fstat(&fd).map_err(failed)?;
    let known = known(&stat).ok_or(ErrorKind::NotDirectory)?;
    let node = options.before.map(|_| NodeId::ROOT);
    // It is in itself, and is passed on as what is in it: so it is never at an end here.
    let unfinished = Unfinished::new(known, node);
    let parent = Arc::new(Parent { anchor: Arc::new(fd), rest: Vec::new(), path: Vec::new(), depth: 0, unfinished });
    let walk = Walk { root, output, options, device: stat.st_dev, work: Work::new(options.threads) };
    walk.work.push(Siblings::of_root(parent, node));
    let (sender, receiver) = sync_channel::<Batch>(WAITING_BATCHES);
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            let (walk, sender) = (&walk, sender.clone());
            scope.spawn(move || Walker::new(walk, sender).run());
        }
        drop(sender);
        let told = receiver.iter().try_for_each(|batch| match batch.tell(sink) {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(FsError::new(ErrorKind::Interrupted).on("walk", root.display())),
            Err(e) => ControlFlow::Break(e),
        });
        // Whoever waits to pass something on hears that nobody takes it any more.
        walk.work.stop();
        drop(receiver);
        told.break_value().map_or(Ok(()), Err)
    })
}

/// What all threads of a walk share.
struct Walk<'a> {
    root: &'a Path,
    output: Option<&'a Path>,
    options: &'a ScanOptions<'a>,
    device: u64,
    work: Work,
}

/// One thread.
struct Walker<'a> {
    walk: &'a Walk<'a>,
    batch: Batch,
    sender: SyncSender<Batch>,
    listing: Box<[MaybeUninit<u8>]>,
    buffer: Vec<u8>,
    /// A device, and whether its files keep their identity.
    device: Option<(u64, bool)>,
}

/// A directory that is being listed.
struct Listed<'a> {
    fd: Arc<OwnedFd>,
    path: &'a [u8],
    node: Option<NodeId>,
    siblings: Siblings,
    group: Group,
    /// What was found before, if it is listed again, and what is found now.
    seen: Seen,
    tries: u32,
    /// How many directories that were found now are kept open.
    held: usize,
}

/// What came of reading a file.
enum Hashed {
    /// The hash, if it stayed as it is for as long as it was read.
    Read(Known, Option<ContentHash>),
    /// There is no file of this name any more.
    Gone,
    /// The walk has ended.
    Stopped,
}

impl Listed<'_> {
    fn unfinished(&self) -> &Unfinished {
        &self.group.dir().unfinished
    }
}

impl<'a> Walker<'a> {
    fn new(walk: &'a Walk<'a>, sender: SyncSender<Batch>) -> Self {
        let listing = Box::new_uninit_slice(LISTING_LEN_BYTES);
        Walker { walk, batch: Batch::default(), sender, listing, buffer: Vec::new(), device: None }
    }

    fn run(mut self) {
        while let Some(task) = self.walk.work.next() {
            match task {
                Task::Directory(dir) => self.directory(dir),
                Task::Files(group) => self.files(group),
            }
            self.walk.work.done();
        }
        self.pass_on();
    }

    fn pass_on(&mut self) {
        if !self.batch.is_empty() && self.sender.send(std::mem::take(&mut self.batch)).is_err() {
            self.walk.work.stop();
        }
    }

    fn add(&mut self, path: &[u8], node: Option<NodeId>, known: Known, extra: &[u8]) {
        self.add_hashed(path, node, known, None, extra);
    }

    fn add_hashed(&mut self, path: &[u8], node: Option<NodeId>, known: Known, hash: Option<ContentHash>, extra: &[u8]) {
        let before = self.walk.options.before;
        self.batch
            .add(path, known, hash, extra, &|entry| before.map_or(super::Change::Added, |b| b.change(node, entry)));
        if self.batch.is_full() {
            self.pass_on();
        }
    }

    /// Tells an error of what lies at `path`. The error as the mark of its directory.
    fn fail(&mut self, e: Errno, op: &'static str, path: &[u8]) -> Vec<u8> {
        self.failed(at_host(e, op, self.walk.root, path))
    }

    fn failed(&mut self, error: FsError) -> Vec<u8> {
        let mark = unreadable(&error);
        self.batch.fail(error);
        self.pass_on();
        mark
    }

    /// Lists a directory.
    fn directory(&mut self, mut dir: Dir) {
        let path = if dir.name.is_empty() { Vec::new() } else { join(&dir.parent.path, &dir.name) };
        let fd = dir.fd.take().map_or_else(|| open_dir(&dir.parent, &dir.name), Ok);
        match fd.and_then(|fd| Ok((fstat(&fd)?, fd))) {
            Ok((stat, fd)) => self.opened(&dir, path, &stat, Arc::new(fd)),
            Err(e) if is_gone(e) && !dir.name.is_empty() => dir.parent.unfinished.gone_dir(&dir.name, dir.key),
            Err(e) => self.closed(&dir, &path, e),
        }
        self.leave(&dir.parent);
    }

    /// A directory that cannot be opened: what can be seen of it from outside is told.
    fn closed(&mut self, dir: &Dir, path: &[u8], e: Errno) {
        match look_at(&dir.parent, &dir.name).map(|stat| known(&stat)) {
            Ok(Some(known)) => {
                let why = self.fail(e, "list", path);
                self.add(path, dir.node, known, &why);
            }
            Err(e) if is_gone(e) && !dir.name.is_empty() => dir.parent.unfinished.gone_dir(&dir.name, dir.key),
            Ok(None) | Err(_) => dir.parent.unfinished.mark(self.fail(e, "list", path)),
        }
    }

    /// What is open is what is told, also if another directory was there when this name was listed.
    fn opened(&mut self, dir: &Dir, path: Vec<u8>, stat: &Stat, fd: Arc<OwnedFd>) {
        // It was opened as a directory.
        let Some(known) = known(stat) else { return };
        if self.walk.options.one_file_system && stat.st_dev != self.walk.device {
            return self.add(&path, dir.node, known, b"");
        }
        let (anchor, rest) = match dir.parent.depth < HELD_DEPTH || dir.parent.depth.is_multiple_of(HELD_STEP) {
            true => (fd.clone(), Vec::new()),
            false => (dir.parent.anchor.clone(), join(&dir.parent.rest, &dir.name)),
        };
        let (depth, unfinished) = (dir.parent.depth + 1, Unfinished::new(known, dir.node));
        let own = Arc::new(Parent { anchor, rest, path, depth, unfinished });
        self.list_from(&own, fd, 0);
        self.leave(&own);
    }

    /// Something in a directory is done. If nothing is left, it is listed again, or passed on.
    fn leave(&mut self, own: &Arc<Parent>) {
        while let Some(next) = own.unfinished.leave() {
            match next {
                Next::Again(tries) => match open_dir(own, b"") {
                    Ok(fd) => self.list_from(own, Arc::new(fd), tries),
                    // It was removed itself, with all that was in it. One that has to be found by its name may have another one.
                    Err(Errno::NOENT) if own.rest.is_empty() && is_removed(&own.anchor) => {}
                    Err(e) => {
                        let why = self.fail(e, "list", &own.path);
                        own.unfinished.mark(why);
                    }
                },
                Next::Doubt => {
                    let at = self.walk.root.join(std::ffi::OsStr::from_bytes(&own.path));
                    let why = "names in it were gone each time that they were opened, and it was listed often";
                    let error = FsError::new(ErrorKind::Stale).on("list", at.display()).because(why);
                    own.unfinished.mark(self.failed(error));
                }
                Next::End(why) => return self.add(&own.path, own.unfinished.node, own.unfinished.known, &why),
            }
        }
    }

    /// Lists a directory from its beginning.
    fn list_from(&mut self, own: &Arc<Parent>, fd: Arc<OwnedFd>, tries: u32) {
        let mut listed = Listed {
            path: &own.path,
            node: own.unfinished.node,
            siblings: Siblings::new(own.clone()),
            group: Group::new(fd.clone(), own.clone()),
            fd,
            seen: own.unfinished.take_seen(),
            tries,
            held: 0,
        };
        if let Err(e) = self.list(&mut listed) {
            let why = self.fail(e, "list", &own.path);
            own.unfinished.mark(why);
        }
        let Listed { siblings, group, seen, .. } = listed;
        own.unfinished.put_seen(seen);
        self.walk.work.push(siblings);
        self.hand_over(group);
    }

    fn list(&mut self, dir: &mut Listed<'_>) -> Result<(), Errno> {
        let here = fstat(&dir.fd)?;
        let place = (here.st_dev, here.st_ino);
        // The index itself, if it is to lie here.
        let output = self.walk.output.filter(|output| publish::is_in(output, place)).and_then(Path::file_name);
        let is_output =
            |name: &[u8]| output.is_some_and(|output| output.as_bytes() == name || publish::is_temporary(name));
        let mut buffer = std::mem::take(&mut self.listing);
        let fd = dir.fd.clone();
        let mut entries = RawDir::new(&*fd, &mut buffer);
        let (mut listed, mut steps) = (Ok(()), 0);
        loop {
            steps += usize::from(entries.is_buffer_empty());
            let Some(entry) = entries.next() else { break };
            let entry = match entry {
                Err(Errno::INTR) => continue,
                // It was removed, and so it is empty.
                Err(Errno::NOENT) if is_removed(&dir.fd) => break,
                Err(e) => {
                    listed = Err(e);
                    break;
                }
                Ok(entry) => entry,
            };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && !is_output(name) {
                self.entry(dir, name, entry.file_type());
            }
            if self.walk.work.is_stopped() {
                break;
            }
        }
        self.listing = buffer;
        // One step is the host's, and the last finds nothing more. Between several, what is renamed can go from what is still to come to what was
        // listed; that shows in the time of the directory, unless that was changed just before.
        if steps > 2 && listed.is_ok() {
            let then = fstat(&dir.fd)?;
            if changed_ns(&then) != changed_ns(&here) || content::is_fresh(changed_ns(&then)) {
                dir.unfinished().changed();
            }
        }
        listed
    }

    /// An entry of a directory.
    fn entry(&mut self, dir: &mut Listed<'_>, name: &[u8], listed_as: FileType) {
        if dir.tries > 0 {
            if dir.seen.has_name(name) {
                return;
            }
            fall_out_of_step(dir.tries);
            if self.hold(dir, name, listed_as) {
                return;
            }
        }
        let path = join(dir.path, name);
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let (stat, known) = match retry_on_intr(|| statat(&*dir.fd, name, flags)).map(|stat| (stat, known(&stat))) {
            Ok((stat, Some(known))) => (stat, known),
            Err(Errno::NOENT) => return dir.unfinished().gone(name, None),
            Ok((_, None)) => return dir.unfinished().mark(self.fail(Errno::NOTSUP, "index", &path)),
            Err(e) => return dir.unfinished().mark(self.fail(e, "look at", &path)),
        };
        if dir.tries > 0 && dir.seen.has_inode(&known) {
            return;
        }
        let options = self.walk.options;
        let node = options.before.and_then(|before| before.child(dir.node, name));
        match known.kind {
            Kind::Directory if options.one_file_system && stat.st_dev != self.walk.device => {
                self.add(&path, node, known, b"");
            }
            Kind::Directory => dir.siblings.push(name, dir_key(&known), node),
            Kind::Symlink => match readlinkat(&*dir.fd, name, Vec::new()) {
                Ok(target) => self.add(&path, node, known, target.as_bytes()),
                // What is no link any more was put in the place of one.
                Err(Errno::NOENT | Errno::INVAL) => return dir.unfinished().gone(name, None),
                Err(e) => {
                    dir.unfinished().mark(self.fail(e, "read link", &path));
                    self.add(&path, node, known, b"");
                }
            },
            Kind::File if options.hash => {
                let before = options.before.filter(|_| self.keeps_identity(&dir.fd, known.device));
                match before.and_then(|before| before.hash(node, &known)) {
                    Some(hash) => self.add_hashed(&path, node, known, Some(hash), b""),
                    None => self.queue_file(dir, name, known, node),
                }
            }
            _ => self.add(&path, node, known, b""),
        }
        dir.seen.add(name, &known);
    }

    /// Whether what was known of a file in `dir`, on `device`, tells it from others: not on filesystems that make numbers and times up.
    fn keeps_identity(&mut self, dir: &OwnedFd, device: u64) -> bool {
        let keeps = |dir| {
            // What is mounted over a file is not the directory's.
            fstat(dir).is_ok_and(|stat| stat.st_dev == device) && filesystem(dir).is_ok_and(|name| name.is_some())
        };
        let found = self.device.filter(|found| found.0 == device).unwrap_or_else(|| (device, keeps(dir)));
        self.device = Some(found);
        found.1
    }

    /// Opens a directory that another listing has found: at once, because it may have another name again in a moment. False if that is not done.
    fn hold(&mut self, dir: &mut Listed<'_>, name: &[u8], listed_as: FileType) -> bool {
        if dir.held == HELD_AGAIN || !matches!(listed_as, FileType::Directory | FileType::Unknown) {
            return false;
        }
        let Ok(fd) = open_in(&dir.fd, name) else { return false };
        let Some((stat, known)) = fstat(&fd).ok().and_then(|stat| Some((stat, known(&stat)?))) else { return false };
        if self.walk.options.one_file_system && stat.st_dev != self.walk.device {
            return false;
        }
        if !dir.seen.has_inode(&known) {
            let node = self.walk.options.before.and_then(|before| before.child(dir.node, name));
            self.walk.work.push(Siblings::one(dir.group.dir().clone(), name, dir_key(&known), node, fd));
            dir.seen.add(name, &known);
            dir.held += 1;
        }
        true
    }

    /// A file whose content is to be read, by whoever has time.
    fn queue_file(&mut self, dir: &mut Listed<'_>, name: &[u8], known: Known, node: Option<NodeId>) {
        dir.group.push(name, known, node);
        if dir.group.is_full() {
            let next = dir.group.next();
            let full = std::mem::replace(&mut dir.group, next);
            self.hand_over(full);
        }
    }

    fn hand_over(&mut self, group: Group) {
        if group.is_empty() {
            return;
        }
        group.dir().unfinished.enter(1);
        // Where many wait already, this thread has nothing better to do.
        if let Some(group) = self.walk.work.offer(group) {
            self.files(group);
        }
    }

    fn files(&mut self, group: Group) {
        for (name, known, node) in group.files() {
            if self.walk.work.is_stopped() {
                return;
            }
            let path = join(&group.dir().path, name);
            match self.hash(group.fd(), name) {
                Ok(Hashed::Read(known, Some(hash))) => self.add_hashed(&path, node, known, Some(hash), b""),
                Ok(Hashed::Read(known, None)) => {
                    self.batch.unsettled(&path);
                    self.add(&path, node, known, b"");
                }
                Ok(Hashed::Gone) => group.dir().unfinished.gone(name, Some(&known)),
                Ok(Hashed::Stopped) => return,
                Err(e) => {
                    self.batch.unread(e.on("read", self.walk.root.join(std::ffi::OsStr::from_bytes(&path)).display()));
                    self.add(&path, node, known, b"");
                }
            }
        }
        self.leave(group.dir());
    }

    /// What is known of a file, and its hash.
    fn hash(&mut self, dir: &OwnedFd, name: &[u8]) -> Result<Hashed> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: File = match retry_on_intr(|| openat(dir, name, flags, Mode::empty())) {
            Ok(fd) => fd.into(),
            // Something else that cannot be opened so has its name: a link, a socket.
            Err(e) if is_gone(e) || e == Errno::NXIO => return Ok(Hashed::Gone),
            Err(e) => return Err(io::Error::from(e).into()),
        };
        let times_tell = adit_core::host::times_tell(&file).map_err(io::Error::from)?;
        let mut was = fstat(&file).map_err(io::Error::from)?;
        if known(&was).is_none_or(|known| known.kind != Kind::File) {
            return Ok(Hashed::Gone);
        }
        for _ in 0..TRIES {
            content::settle(changed_ns(&was));
            let mut buffer = std::mem::take(&mut self.buffer);
            let mut read = |offset, piece: &mut [u8]| Ok(file.read_at(piece, offset)?);
            let hashed = content::hash(&mut buffer, &mut read, &mut |count| {
                self.batch.read_bytes += count;
                if self.batch.is_full() {
                    self.pass_on();
                }
                !self.walk.work.is_stopped()
            });
            self.buffer = buffer;
            let Some((hash, len)) = hashed? else { return Ok(Hashed::Stopped) };
            let now = fstat(&file).map_err(io::Error::from)?;
            let known = known(&now).filter(|known| known.kind == Kind::File).ok_or(ErrorKind::Stale)?;
            let settled = (was.st_size, modified_ns(&was), changed_ns(&was))
                == (now.st_size, modified_ns(&now), changed_ns(&now));
            if settled && len == known.size {
                return Ok(Hashed::Read(Known { times_tell, ..known }, Some(hash)));
            }
            was = now;
        }
        Ok(known(&was).map_or(Hashed::Gone, |known| Hashed::Read(known, None)))
    }
}

/// Opens the directory `name` of another one, or with an empty name that one anew.
fn open_dir(parent: &Parent, name: &[u8]) -> Result<OwnedFd, Errno> {
    let mut at: Option<OwnedFd> = None;
    for name in parent.rest.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = Some(open_in(at.as_ref().unwrap_or(&parent.anchor), name)?);
    }
    match at {
        Some(own) if name.is_empty() => Ok(own),
        at => open_in(at.as_ref().unwrap_or(&parent.anchor), if name.is_empty() { b"." } else { name }),
    }
}

/// What is known of the directory `name` of another one, or with an empty name of that one, without opening it.
fn look_at(parent: &Parent, name: &[u8]) -> Result<Stat, Errno> {
    let way = if parent.rest.is_empty() { None } else { Some(open_dir(parent, b"")?) };
    let dir = way.as_ref().unwrap_or(&parent.anchor);
    match name.is_empty() {
        true => fstat(dir),
        false => retry_on_intr(|| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)),
    }
}

/// Opens a directory, which is none that a link leads to.
fn open_in(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| openat(dir, name, flags, Mode::empty()))
}

/// Whether an open directory was removed.
fn is_removed(dir: &OwnedFd) -> bool {
    fstat(dir).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Whether nothing has the name any more, or something else that cannot be opened so: no directory, a link.
fn is_gone(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// `None` for what is of no kind that there is.
fn known(stat: &Stat) -> Option<Known> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => return None,
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let (mtime_ns, ctime_ns) = (modified_ns(stat), changed_ns(stat));
    let names = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
    Some(Known {
        kind,
        perm: (stat.st_mode & 0o7777) as u16,
        size,
        mtime_ns,
        ctime_ns,
        device: stat.st_dev,
        ino: stat.st_ino,
        names,
        times_tell: true,
    })
}

fn modified_ns(stat: &Stat) -> i64 {
    nanos(stat.st_mtime, stat.st_mtime_nsec as i64)
}

fn changed_ns(stat: &Stat) -> i64 {
    nanos(stat.st_ctime, stat.st_ctime_nsec as i64)
}

fn nanos(secs: i64, nanos: i64) -> i64 {
    secs.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cold]
fn at_host(e: Errno, op: &'static str, root: &Path, path: &[u8]) -> FsError {
    let at = root.join(std::ffi::OsStr::from_bytes(path));
    FsError::from(io::Error::from(e)).on(op, at.display())
}
