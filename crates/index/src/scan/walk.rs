//! Any store, walked by one thread; with hashes, others read the content of files meanwhile.
//!
//! An inode that was looked up is known to the store until it is forgotten; here that is counted, because a file with several names may be
//! looked at by one of them while it is still read by another.
//!
//! A directory of a store whose listings can go on from a place, and that nobody else changes, is taken in pages, each with all that is below it: so
//! memory does not grow with what one directory has. Any other store's is listed whole, because what is renamed between two pages would be told under
//! both of its names, or under none.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::store::{DirEntry, Store, StoreFile};
use adit_core::types::{Access, Attr, FileName, Ino, Kind};

use super::listing::{Batch, Known, join, nanos, unreadable};
use super::unfinished::fall_out_of_step;
use super::{Change, ScanOptions, Sink, StoreRoot, content};
use crate::ContentHash;
use crate::segment::NodeId;

/// So many entries are looked up at once.
const LOOKUPS: usize = 256;
/// Files that wait to be read, for each thread.
const WAITING: usize = 8;
/// How often a file is read that changes meanwhile.
const TRIES: u32 = 3;
/// How often a directory is listed again in which something was gone each time that it was looked up.
const GONE_TRIES: u32 = 32;
/// So many entries of a directory are listed at once, where a listing can go on from a place.
const PAGE: usize = 4096;

/// Walks what is below a directory of a store.
///
/// # Errors
/// `Interrupted`; what `sink` says. All else is told.
pub fn store(root: &StoreRoot<'_>, options: &ScanOptions<'_>, sink: &mut Sink<'_>) -> Result<()> {
    let (jobs, taken) = sync_channel::<Job>(options.threads.max(1) * WAITING);
    let (sender, read) = channel::<Read>();
    let taken = Mutex::new(taken);
    std::thread::scope(|scope| {
        for _ in 0..if options.hash { options.threads.max(1) } else { 0 } {
            let (taken, sender) = (&taken, sender.clone());
            scope.spawn(move || read_files(taken, &sender));
        }
        drop(sender);
        let mut walker = Walker {
            store: root.store,
            options,
            sink,
            batch: Batch::default(),
            references: HashMap::new(),
            jobs: Some(jobs),
            read,
            waiting: 0,
        };
        let walked = walker.walk(root.root);
        // However it ends: nobody waits for more, and nothing stays known.
        walker.jobs = None;
        walker.end(walked)
    })
}

/// A directory that is still to be listed, or the rest of one.
struct Dir {
    path: Vec<u8>,
    attr: Attr,
    node: Option<NodeId>,
    /// Behind which cookie the listing goes on; 0 of one that was not begun.
    from: u64,
    /// Why not all of it could be read so far.
    why: Vec<u8>,
}

/// A file that is to be read.
struct Job {
    file: Arc<dyn StoreFile>,
    path: Vec<u8>,
    attr: Attr,
    node: Option<NodeId>,
}

fn is_in(attr: &Attr, dirs: &[Dir]) -> bool {
    dirs.iter().any(|dir| dir.attr.ino == attr.ino)
}

/// What a thread that reads tells.
enum Read {
    Bytes(u64),
    Done(Job, Result<Option<Made>>),
}

/// A hash that was made.
struct Made {
    hash: ContentHash,
    /// See [`Known::times_tell`].
    times_tell: bool,
}

struct Walker<'a> {
    store: &'a dyn Store,
    options: &'a ScanOptions<'a>,
    sink: &'a mut Sink<'a>,
    batch: Batch,
    /// How often each inode is in use here.
    references: HashMap<Ino, u32>,
    jobs: Option<SyncSender<Job>>,
    read: Receiver<Read>,
    /// Files that were handed over and are not done.
    waiting: usize,
}

impl Walker<'_> {
    fn walk(&mut self, root: Attr) -> Result<()> {
        let node = self.options.before.map(|_| NodeId::ROOT);
        let mut stack = vec![Dir { path: Vec::new(), attr: root, node, from: 0, why: Vec::new() }];
        let mut seen = HashSet::new();
        while let Some(mut dir) = stack.pop() {
            let first = stack.len();
            let listed = if dir.from > 0 || seen.insert(dir.attr.ino) {
                self.page(&mut dir, &mut stack)
            } else {
                let why = "it is the same directory as another one";
                let error = FsError::new(ErrorKind::Corrupt).on("list", shown(&dir.path)).because(why);
                self.mark(&dir, error).map(|()| None)
            };
            match listed {
                // What is below this page comes before the next one.
                Ok(Some(from)) => stack.insert(first, Dir { from, ..dir }),
                Ok(None) => self.forget(dir.attr.ino),
                Err(e) => {
                    self.forget(dir.attr.ino);
                    stack.drain(..).for_each(|dir| self.forget(dir.attr.ino));
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Lists a directory from its place on, as much as is listed at once. Behind which cookie there may be more; if there is no more, it is passed on,
    /// for now it is known whether all of it could be read. What was listed and is gone was removed, or has another name: that another listing tells.
    fn page(&mut self, dir: &mut Dir, stack: &mut Vec<Dir>) -> Result<Option<u64>> {
        let caps = self.store.capabilities();
        let count_max = if caps.stable_cookies && !caps.shared { PAGE } else { usize::MAX };
        let mut why = std::mem::take(&mut dir.why);
        let mut found = HashSet::new();
        let first = stack.len();
        let mut next = None;
        for tries in 0.. {
            let (listing, errors) = self.list(dir, count_max);
            next = listing.next(count_max);
            for error in if tries == 0 { errors } else { Vec::new() } {
                why = self.fail(error, "list", &dir.path)?;
            }
            fall_out_of_step(tries);
            let mut gone = HashSet::new();
            for start in (0..listing.ends.len()).step_by(LOOKUPS) {
                let mut entries = listing.entries(start..listing.ends.len().min(start + LOOKUPS));
                entries.retain(|entry| !found.contains(entry.name.as_bytes()));
                let again = (tries > 0).then_some(first);
                self.look_up(dir, &entries, (stack, again), &mut gone, &mut why)?;
            }
            if gone.is_empty() {
                break;
            }
            if tries == GONE_TRIES {
                let because = "names in it were gone each time that they were looked up, and it was listed often";
                let error = FsError::new(ErrorKind::Stale).on("list", shown(&dir.path)).because(because);
                why = self.fail(error, "list", &dir.path)?;
                break;
            }
            let names = listing.entries(0..listing.ends.len()).into_iter().map(|entry| entry.name.as_bytes().to_vec());
            found.extend(names.filter(|name| !gone.contains(name)));
        }
        if next.is_some() {
            dir.why = why;
            return Ok(next);
        }
        self.add(&dir.path, dir.node, known(&dir.attr), None, &why).map(|()| None)
    }

    /// So many entries of a directory from its place on, and why others were left out, which the last listing of it tells.
    fn list(&self, dir: &Dir, count_max: usize) -> (Listing, Vec<FsError>) {
        let mut listing = Listing::default();
        let listed = self.store.read_dir(dir.attr.ino, dir.from, &mut |entry| {
            listing.push(&entry);
            if listing.ends.len() < count_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let mut errors: Vec<FsError> = listed.err().into_iter().collect();
        // One that has failed is not asked for the rest.
        listing.is_whole |= !errors.is_empty();
        if listing.next(count_max).is_none() {
            errors.extend(self.store.left_out(dir.attr.ino));
        }
        (listing, errors)
    }

    /// Looks up entries of a directory. What of it is a directory goes on the stack; if this is not the first listing, unless it is there already,
    /// from `again` on, under another name.
    fn look_up(
        &mut self,
        dir: &Dir,
        entries: &[DirEntry<'_>],
        (stack, again): (&mut Vec<Dir>, Option<usize>),
        gone: &mut HashSet<Vec<u8>>,
        why: &mut Vec<u8>,
    ) -> Result<()> {
        let found = self.store.lookup_listed(dir.attr.ino, entries);
        // All of them are known from here on, whatever happens to one.
        found.iter().flatten().for_each(|attr| *self.references.entry(attr.ino).or_default() += 1);
        let mut outcome = Ok(());
        for (entry, found) in entries.iter().zip(found) {
            let path = join(&dir.path, entry.name.as_bytes());
            let one = match (&outcome, found) {
                (Ok(()), Ok(attr)) if again.is_some_and(|first| is_in(&attr, &stack[first..])) => {
                    self.forget(attr.ino);
                    Ok(())
                }
                (Ok(()), Ok(attr)) => self.entry(dir, path, entry.name, attr, stack, why),
                (Err(_), Ok(attr)) => {
                    self.forget(attr.ino);
                    Ok(())
                }
                (_, Err(e)) if e.is_not_found() => {
                    gone.insert(entry.name.as_bytes().to_vec());
                    Ok(())
                }
                (Ok(()), Err(e)) => self.fail(e, "look at", &path).map(|mark| *why = mark),
                (Err(_), Err(_)) => Ok(()),
            };
            outcome = outcome.and(one);
        }
        outcome
    }

    /// An entry of a directory, whose reference this takes over.
    fn entry(
        &mut self,
        dir: &Dir,
        path: Vec<u8>,
        name: FileName<'_>,
        attr: Attr,
        stack: &mut Vec<Dir>,
        why: &mut Vec<u8>,
    ) -> Result<()> {
        let node = self.options.before.and_then(|before| before.child(dir.node, name.as_bytes()));
        let told = match attr.kind {
            Kind::Directory => {
                stack.push(Dir { path, attr, node, from: 0, why: Vec::new() });
                return Ok(());
            }
            Kind::Symlink => match self.store.readlink(attr.ino) {
                Ok(target) => self.add(&path, node, known(&attr), None, &target),
                Err(e) => self.fail(e, "read link", &path).and_then(|mark| {
                    *why = mark;
                    self.add(&path, node, known(&attr), None, b"")
                }),
            },
            Kind::File if self.options.hash => return self.file(path, node, attr),
            _ => self.add(&path, node, known(&attr), None, b""),
        };
        self.forget(attr.ino);
        told
    }

    /// A file whose hash is wanted.
    fn file(&mut self, path: Vec<u8>, node: Option<NodeId>, attr: Attr) -> Result<()> {
        if let Some(hash) = self.options.before.and_then(|before| before.hash(node, &known(&attr))) {
            let added = self.add(&path, node, known(&attr), Some(hash), b"");
            self.forget(attr.ino);
            return added;
        }
        match self.store.open(attr.ino, Access::Read) {
            Ok(file) => self.hand_over(Job { file, path, attr, node }),
            Err(e) => {
                let added = self.unread(e, &path).and_then(|()| self.add(&path, node, known(&attr), None, b""));
                self.forget(attr.ino);
                added
            }
        }
    }

    fn hand_over(&mut self, job: Job) -> Result<()> {
        // With room for as many as the threads take: it never waits for them while they wait for it.
        while self.waiting >= self.options.threads.max(1) * WAITING {
            self.take(true)?;
        }
        self.take(false)?;
        let ino = job.attr.ino;
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            self.forget(ino);
            return Err(ErrorKind::Interrupted.into());
        }
        self.waiting += 1;
        Ok(())
    }

    /// Takes what the threads have read; waits for something if `wait`.
    fn take(&mut self, wait: bool) -> Result<()> {
        let mut wait = wait && self.waiting > 0;
        loop {
            let next = match wait {
                true => self.read.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.read.try_recv(),
            };
            wait = false;
            match next {
                Err(_) => return Ok(()),
                Ok(Read::Bytes(count)) => {
                    self.batch.read_bytes += count;
                    self.pass_on_if_full()?;
                }
                Ok(Read::Done(job, hash)) => {
                    self.waiting -= 1;
                    let told = self.read_file(&job, hash);
                    self.forget(job.attr.ino);
                    told?;
                }
            }
        }
    }

    fn read_file(&mut self, job: &Job, hash: Result<Option<Made>>) -> Result<()> {
        // What it is when it was read, which may be later than when it was listed.
        let attr = self.store.getattr(job.attr.ino).unwrap_or(job.attr);
        match hash {
            Ok(Some(Made { hash, times_tell })) if is_as_it_was(&attr, &job.attr) => {
                self.add(&job.path, job.node, Known { times_tell, ..known(&attr) }, Some(hash), b"")
            }
            Ok(_) => {
                self.batch.unsettled(&job.path);
                self.add(&job.path, job.node, known(&attr), None, b"")
            }
            Err(e) => {
                self.unread(e, &job.path)?;
                self.add(&job.path, job.node, known(&attr), None, b"")
            }
        }
    }

    /// Waits for what was handed over, and passes the rest on, unless it is ended already.
    fn end(&mut self, walked: Result<()>) -> Result<()> {
        let mut outcome = walked;
        while self.waiting > 0 {
            match self.read.recv() {
                Ok(Read::Bytes(count)) => self.batch.read_bytes += count,
                Ok(Read::Done(job, hash)) => {
                    self.waiting -= 1;
                    if outcome.is_ok() {
                        outcome = self.read_file(&job, hash);
                    }
                    self.forget(job.attr.ino);
                }
                Err(_) => break,
            }
        }
        outcome.and_then(|()| self.pass_on())
    }

    fn mark(&mut self, dir: &Dir, error: FsError) -> Result<()> {
        let why = self.fail(error, "list", &dir.path)?;
        self.add(&dir.path, dir.node, known(&dir.attr), None, &why)
    }

    /// Tells an error of what lies at `path`. The error as the mark of its directory.
    fn fail(&mut self, error: FsError, op: &'static str, path: &[u8]) -> Result<Vec<u8>> {
        let error = named(error, op, path);
        let mark = unreadable(&error);
        self.batch.fail(error);
        self.pass_on()?;
        Ok(mark)
    }

    /// Tells why the content of the file at `path` could not be read.
    fn unread(&mut self, error: FsError, path: &[u8]) -> Result<()> {
        self.batch.unread(named(error, "read", path));
        self.pass_on()
    }

    fn add(
        &mut self,
        path: &[u8],
        node: Option<NodeId>,
        known: Known,
        hash: Option<ContentHash>,
        extra: &[u8],
    ) -> Result<()> {
        let before = self.options.before;
        self.batch.add(path, known, hash, extra, &|entry| before.map_or(Change::Added, |b| b.change(node, entry)));
        self.pass_on_if_full()
    }

    fn pass_on_if_full(&mut self) -> Result<()> {
        if self.batch.is_full() { self.pass_on() } else { Ok(()) }
    }

    fn pass_on(&mut self) -> Result<()> {
        match std::mem::take(&mut self.batch).tell(self.sink)? {
            true => Ok(()),
            false => Err(ErrorKind::Interrupted.into()),
        }
    }

    /// One use of an inode has ended. The root is nobody's to forget here.
    fn forget(&mut self, ino: Ino) {
        let Some(count) = self.references.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            self.references.remove(&ino);
            self.store.forget(ino);
        }
    }
}

/// What was listed, kept while its entries are looked up.
#[derive(Default)]
struct Listing {
    /// Whether nothing comes behind it, however much it has.
    is_whole: bool,
    names: Vec<u8>,
    /// Where each name ends, and what was said with it.
    ends: Vec<(usize, u64, Ino, Kind)>,
}

impl Listing {
    fn push(&mut self, entry: &DirEntry<'_>) {
        self.names.extend(entry.name.as_bytes());
        self.ends.push((self.names.len(), entry.cookie, entry.ino, entry.kind));
    }

    /// Behind which cookie there may be more, if it has as many as were wanted.
    fn next(&self, count_max: usize) -> Option<u64> {
        let is_full = !self.is_whole && self.ends.len() >= count_max;
        self.ends.last().filter(|_| is_full).map(|(_, cookie, ..)| *cookie)
    }

    fn entries(&self, range: std::ops::Range<usize>) -> Vec<DirEntry<'_>> {
        let entry = |at: usize| {
            let start = at.checked_sub(1).map_or(0, |before| self.ends[before].0);
            let (end, cookie, ino, kind) = self.ends[at];
            // It was a name when it was listed.
            FileName::new(&self.names[start..end]).ok().map(|name| DirEntry { cookie, ino, kind, name })
        };
        range.filter_map(entry).collect()
    }
}

fn read_files(jobs: &Mutex<Receiver<Job>>, out: &std::sync::mpsc::Sender<Read>) {
    let mut buffer = Vec::new();
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let hash = hash(&job, &mut buffer, out);
        if out.send(Read::Done(job, hash)).is_err() {
            return;
        }
    }
}

/// The hash of a file; `None` if it is not as long as was said.
fn hash(job: &Job, buffer: &mut Vec<u8>, out: &std::sync::mpsc::Sender<Read>) -> Result<Option<Made>> {
    let times_tell = job.file.times_tell()?;
    content::settle(nanos(job.attr.ctime));
    for _ in 0..TRIES {
        let mut read = |offset, piece: &mut [u8]| job.file.read_verified_at(offset, piece);
        let hashed = content::hash(buffer, &mut read, &mut |count| out.send(Read::Bytes(count)).is_ok())?;
        if let Some((hash, len)) = hashed
            && len == job.attr.size
        {
            return Ok(Some(Made { hash, times_tell }));
        }
    }
    Ok(None)
}

/// Whether nothing has changed in a file between two looks at it.
fn is_as_it_was(now: &Attr, was: &Attr) -> bool {
    (now.size, now.mtime, now.ctime) == (was.size, was.mtime, was.ctime)
}

fn known(attr: &Attr) -> Known {
    let Attr { kind, size, ino, nlink, .. } = *attr;
    let (mtime_ns, ctime_ns) = (nanos(attr.mtime), nanos(attr.ctime));
    Known {
        kind,
        perm: attr.perm & 0o7777,
        size,
        mtime_ns,
        ctime_ns,
        device: 0,
        ino: ino.0,
        names: nlink,
        times_tell: true,
    }
}

fn named(error: FsError, op: &'static str, path: &[u8]) -> FsError {
    if error.subject().is_some() { error } else { error.on(op, shown(path)) }
}

/// A path for messages.
fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}
