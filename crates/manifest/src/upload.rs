//! The content of a manifest's files, brought into a content-addressed store.
//!
//! An object is stored under the hash of the bytes that are stored, never of bytes that were read at another time: what is
//! longer than [`IN_MEMORY_MAX_BYTES`] is copied to a scratch file, and goes from there. What the store has already, with the right length, is not
//! sent again; so an upload that was interrupted goes on where it was.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::{Content, FileContent, Objects, PutOptions, Stored};
use adit_core::path::{Last, Tree, show};
use adit_core::store::StoreFile;
use adit_core::types::{Access, Kind};
use parking_lot::Mutex;

use crate::cas::DataKeys;
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{self, Body, ContentHash, Hasher, Manifest};

/// Objects up to this length are held in memory by the thread that stores them, in bytes.
pub const IN_MEMORY_MAX_BYTES: u64 = 8 << 20;
/// How much is read at once.
const READ_LEN_BYTES: usize = 1 << 20;

/// Where objects go, and how.
pub struct UploadOptions<'a> {
    /// The store.
    pub objects: &'a dyn Objects,
    /// Under which keys.
    pub keys: &'a DataKeys,
    /// Threads that read, hash and store, at least one.
    pub threads: usize,
    /// Makes an empty scratch file without a name on this machine.
    pub scratch: &'a (dyn Fn() -> io::Result<File> + Sync),
}

/// What happens on the way.
pub enum UploadEvent<'a> {
    /// An object is in the store.
    Object {
        /// Its length.
        len_bytes: u64,
        /// Whether it was there already.
        present: bool,
    },
    /// A file could not be read, or is not what the manifest says.
    Failed(&'a FsError),
}

/// What became of an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uploaded {
    /// Objects that were stored, and their bytes.
    pub stored: (u64, u64),
    /// Objects that were there, and their bytes.
    pub present: (u64, u64),
    /// Files that could not be read, or are not what the manifest says. With one of them the store does not have all of it.
    pub failed: u64,
}

/// Stores the content of all files of `manifest`, which are found in the directory `root` of `tree`.
///
/// # Errors
/// The first of the store: what comes after it would meet the same. `Interrupted` if `tell` breaks. What is wrong with a file is told, and the rest
/// goes on.
pub fn upload(
    tree: &Tree<'_>,
    root: &[u8],
    manifest: &Manifest,
    options: &UploadOptions<'_>,
    tell: &mut dyn FnMut(UploadEvent<'_>) -> ControlFlow<()>,
) -> Result<Uploaded> {
    std::thread::scope(|scope| {
        let threads = options.threads.max(1);
        let (jobs, taken) = sync_channel(2 * threads);
        let (sent, done) = channel();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..threads {
            let (taken, sent) = (taken.clone(), sent.clone());
            scope.spawn(move || work(options, &taken, &sent));
        }
        // Theirs are the only ones, so that it shows if they have ended.
        drop(sent);
        let mut all = All { jobs, done, waiting: 0, unread: Vec::new(), uploaded: Uploaded::default(), tell };
        let mut known = HashSet::new();
        let mut failed = HashSet::new();
        // Once more as long as a file was not what it should be, whose content others may have.
        loop {
            for (path, body) in manifest.entries() {
                let Body::File(file) = body else { continue };
                let listing = path.to_listing();
                let place: Arc<[u8]> = [root, b"/", &listing[..]].concat().into();
                all.file(tree, &place, file, &mut known, &mut failed)?;
            }
            while all.waiting > 0 {
                all.wait()?;
            }
            if all.unread.is_empty() {
                return Ok(all.uploaded);
            }
            for (path, hash) in all.unread.drain(..) {
                failed.insert(path);
                known.remove(&hash);
            }
        }
    })
}

/// An object to be stored: a range of a file.
struct Job {
    path: Arc<[u8]>,
    file: Arc<dyn StoreFile>,
    offset: u64,
    len: u64,
    hash: ContentHash,
}

/// What became of a [`Job`].
enum Done {
    Stored(u64),
    Present(u64),
    /// The file is to blame.
    Unreadable(Arc<[u8]>, ContentHash, FsError),
    /// The store is.
    Refused(FsError),
}

struct All<'t> {
    jobs: SyncSender<Job>,
    done: Receiver<Done>,
    waiting: usize,
    /// Files that were not what they should be, with what was looked for in them.
    unread: Vec<(Arc<[u8]>, ContentHash)>,
    uploaded: Uploaded,
    tell: &'t mut dyn FnMut(UploadEvent<'_>) -> ControlFlow<()>,
}

impl All<'_> {
    /// Hands over the objects of a file that are not `known`.
    fn file(
        &mut self,
        tree: &Tree<'_>,
        path: &Arc<[u8]>,
        file: &format::File<'_>,
        known: &mut HashSet<ContentHash>,
        failed: &mut HashSet<Arc<[u8]>>,
    ) -> Result<()> {
        let hashes = file.content.hashes();
        if hashes.iter().all(|hash| known.contains(hash)) || failed.contains(path) {
            return Ok(());
        }
        let opened = tree.resolve(path, Last::Follow).and_then(|node| match node.kind() {
            Kind::File if node.attr().size == file.size_bytes => tree.store().open(node.ino(), Access::Read),
            Kind::File => Err(changed()),
            _ => Err(FsError::new(ErrorKind::InvalidInput).because("it is no file; make the manifest again")),
        });
        let opened = match opened {
            Ok(opened) => opened,
            Err(e) => {
                failed.insert(path.clone());
                return self.fail(&e.on("read", show(path)));
            }
        };
        let one = if hashes.len() == 1 { file.size_bytes } else { CHUNK_LEN_BYTES };
        for (at, hash) in (0..).zip(hashes) {
            if !known.insert(*hash) {
                continue;
            }
            let offset = at * one;
            let len = one.min(file.size_bytes - offset);
            let mut job = Job { path: path.clone(), file: opened.clone(), offset, len, hash: *hash };
            // Waits while all have enough to do; what they have done meanwhile is taken in first.
            loop {
                match self.jobs.try_send(job) {
                    Ok(()) => break,
                    Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) => job = back,
                }
                self.wait()?;
            }
            self.waiting += 1;
            while let Ok(done) = self.done.try_recv() {
                self.take(done)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let done = self.done.recv();
        self.take(done.map_err(|_| FsError::new(ErrorKind::Io).because("the threads that store have ended"))?)
    }

    fn take(&mut self, done: Done) -> Result<()> {
        self.waiting -= 1;
        let (count, len_bytes, present) = match done {
            Done::Stored(len) => (&mut self.uploaded.stored, len, false),
            Done::Present(len) => (&mut self.uploaded.present, len, true),
            Done::Unreadable(path, hash, e) => {
                // Another file may have it.
                self.unread.push((path, hash));
                return self.fail(&e);
            }
            Done::Refused(e) => return Err(e),
        };
        *count = (count.0 + 1, count.1 + len_bytes);
        self.tell(UploadEvent::Object { len_bytes, present })
    }

    fn fail(&mut self, e: &FsError) -> Result<()> {
        self.uploaded.failed += 1;
        self.tell(UploadEvent::Failed(e))
    }

    fn tell(&mut self, event: UploadEvent<'_>) -> Result<()> {
        match (self.tell)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ErrorKind::Interrupted.into()),
        }
    }
}

fn changed() -> FsError {
    FsError::new(ErrorKind::Stale).because("it is not what the manifest says; make the manifest again")
}

fn work(options: &UploadOptions<'_>, jobs: &Mutex<Receiver<Job>>, done: &Sender<Done>) {
    let mut buffer = Vec::new();
    loop {
        // One at a time waits here, with the lock; the others wait for it.
        let Ok(job) = jobs.lock().recv() else { return };
        if done.send(job.run(options, &mut buffer)).is_err() {
            return;
        }
    }
}

impl Job {
    fn run(&self, options: &UploadOptions<'_>, buffer: &mut Vec<u8>) -> Done {
        let key = options.keys.key(&self.hash);
        // One of another length cannot be right, and is replaced.
        let if_absent = match options.objects.head(&key) {
            Ok(info) if info.len == self.len => return Done::Present(self.len),
            Ok(_) => false,
            Err(e) if e.is_not_found() => true,
            Err(e) => return Done::Refused(e),
        };
        let unreadable = |e: FsError| Done::Unreadable(self.path.clone(), self.hash, e.on("read", show(&self.path)));
        let scratch;
        let content = if self.len <= IN_MEMORY_MAX_BYTES {
            match self.read(buffer) {
                Ok(()) => Content::Bytes(buffer),
                Err(e) => return unreadable(e),
            }
        } else {
            scratch = match self.copy(options, buffer) {
                Ok(copied) => copied,
                Err(done) => return done,
            };
            Content::Source(&scratch)
        };
        match options.objects.put(&key, content, &PutOptions { if_absent, metadata: &[] }) {
            Ok(Stored::New(_)) => Done::Stored(self.len),
            Ok(Stored::AlreadyThere) => Done::Present(self.len),
            Err(e) => Done::Refused(e),
        }
    }

    /// Fills `buffer` with the object, which has the right hash then.
    fn read(&self, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.resize(self.len as usize, 0);
        self.read_at(self.offset, buffer)?;
        if ContentHash::of(buffer) == self.hash { Ok(()) } else { Err(changed()) }
    }

    /// Copies the object to a scratch file.
    fn copy(&self, options: &UploadOptions<'_>, buffer: &mut Vec<u8>) -> Result<FileContent, Done> {
        let unreadable = |e: FsError| Done::Unreadable(self.path.clone(), self.hash, e.on("read", show(&self.path)));
        let on_scratch = |e: io::Error| Done::Refused(FsError::from(e).on("copy to a scratch file", show(&self.path)));
        let file = (options.scratch)().map_err(on_scratch)?;
        let mut hasher = Hasher::default();
        let mut copied = 0;
        while copied < self.len {
            buffer.resize((self.len - copied).min(READ_LEN_BYTES as u64) as usize, 0);
            self.read_at(self.offset + copied, buffer).map_err(unreadable)?;
            hasher.update(buffer);
            file.write_all_at(buffer, copied).map_err(on_scratch)?;
            copied += buffer.len() as u64;
        }
        if hasher.finish() != self.hash {
            return Err(unreadable(changed()));
        }
        FileContent::new(file).map_err(on_scratch)
    }

    fn read_at(&self, mut offset: u64, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            let read = self.file.read_at(offset, into)?;
            if read == 0 {
                return Err(changed());
            }
            offset += read as u64;
            into = into.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
