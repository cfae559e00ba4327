//! The content of a manifest's files, brought into a content-addressed store.
//!
//! An object is stored under the hash of the bytes that are stored, never of bytes that were read at another time: these are hashed on
//! their way from the file to the store, and the last of them are not handed over if the hash is another one. So an object that would be
//! wrong is never there, for one is there when all of it came. What the store has already, with the right length, is not sent again; so
//! an upload that was interrupted goes on where it was. Who doubts what is there has it compared with its hash as well.

mod piece;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::{Content, ObjectInfo, Objects, PutOptions, Stored, Withheld};
use adit_core::path::{Last, Tree, show};
use adit_core::store::StoreFile;
use adit_core::types::{Access, Kind};

use self::piece::Piece;
use crate::cas::{DataKeys, REQUEST_LEN_BYTES};
use crate::crew::Crew;
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{self, Body, ContentHash, Hasher, MTIME_TOLERANCE_MICROS, Manifest};
use crate::snapshot::{Filter, reading};
use crate::turns::Turns;

/// Objects above this length are sent in parts, several at a time, in bytes.
const LARGE_MIN_BYTES: u64 = 8 << 20;
/// How many of these are on their way at a time: each has six parts in memory.
const LARGE_AT_ONCE: u32 = 3;

/// Where objects go, and how.
pub struct UploadOptions<'a> {
    /// The store.
    pub objects: &'a dyn Objects,
    /// Under which keys.
    pub keys: &'a DataKeys,
    /// Of which files.
    pub filter: &'a Filter,
    /// Threads that read, hash and store, at least one.
    pub threads: usize,
    /// What the store has already is fetched and compared with its hash; what is wrong is replaced.
    pub verify: bool,
}

/// What happens on the way.
pub enum UploadEvent<'a> {
    /// An object is in the store.
    Object {
        /// Its hash.
        hash: ContentHash,
        /// Its length.
        len_bytes: u64,
        /// Whether it was there already.
        present: bool,
    },
    /// A file could not be read, or is not what the manifest says.
    Failed {
        /// Its path in the tree, without a leading slash.
        path: &'a [u8],
        /// Why; it names the file.
        error: &'a FsError,
    },
    /// An object is in the store, and what it has could not be compared.
    Unverified {
        /// The path of a file that needs it, without a leading slash.
        path: &'a [u8],
        /// Its hash.
        hash: ContentHash,
        /// Why; it names the object.
        error: &'a FsError,
    },
    /// So many bytes were read up to now, of objects that are not in the store yet as well.
    Read(u64),
}

/// What became of an upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uploaded {
    /// Objects that were stored, and their bytes.
    pub stored: (u64, u64),
    /// Objects that were there, and their bytes.
    pub present: (u64, u64),
    /// Of those that were stored: how many took the place of something else, and their bytes.
    pub replaced: (u64, u64),
    /// Files that could not be read, or are not what the manifest says, and objects that could not be compared. With one of them the store does
    /// not have all of it, as far as is known.
    pub failed: u64,
}

/// Stores the content of all files of `manifest` that are wanted, which are found in the directory `root` of `tree`.
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
    let (is_over, read, large) = (AtomicBool::new(false), AtomicU64::new(0), Turns::new(LARGE_AT_ONCE));
    let shared = Shared { options, is_over: &is_over, read: &read, large: &large };
    std::thread::scope(|scope| {
        // Those at work end at the next piece, however this ends.
        let _end = End(&is_over);
        let shared = &shared;
        let crew = Crew::start(scope, "store", (options.threads, 2), || move |job: Job| job.done(shared));
        let (unread, uploaded, read) = (Vec::new(), Uploaded::default(), shared.read);
        let mut all = All { crew, unread, uploaded, read, tell };
        let mut known = HashSet::new();
        let mut failed = HashSet::new();
        // Once more as long as a file was not what it should be, whose content others may have.
        loop {
            for (path, body) in manifest.entries() {
                let Body::File(file) = body else { continue };
                let listing = path.to_listing();
                if !options.filter.wants(&listing) {
                    continue;
                }
                let place: Arc<[u8]> = [root, b"/", &listing[..]].concat().into();
                all.file(tree, &place, file, &mut known, &mut failed)?;
            }
            while all.crew.is_at_work() {
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

/// What all threads have in common.
struct Shared<'a> {
    options: &'a UploadOptions<'a>,
    /// Nothing more is wanted.
    is_over: &'a AtomicBool,
    /// Bytes that were read.
    read: &'a AtomicU64,
    /// Who sends something large takes one.
    large: &'a Turns,
}

/// Ends the work of all threads when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An object to be stored: a range of a file.
struct Job {
    path: Arc<[u8]>,
    /// It need not be readable if the store has the object.
    file: std::result::Result<Arc<dyn StoreFile>, Arc<FsError>>,
    offset: u64,
    len: u64,
    hash: ContentHash,
    /// Whether the file has another time than in the manifest, and so perhaps other content.
    is_suspect: bool,
}

/// What became of a [`Job`].
enum Done {
    /// The hash and the length; and whether something else was there.
    Stored(ContentHash, u64, bool),
    Present(ContentHash, u64),
    /// The file is to blame.
    Unreadable(Arc<[u8]>, ContentHash, FsError),
    /// The object is there, and the store does not hand it out to be compared.
    Unverified(Arc<[u8]>, ContentHash, FsError),
    /// The store is.
    Refused(FsError),
}

struct All<'t> {
    crew: Crew<Job, Done>,
    /// Files that were not what they should be, with what was looked for in them.
    unread: Vec<(Arc<[u8]>, ContentHash)>,
    uploaded: Uploaded,
    read: &'t AtomicU64,
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
        let mut is_suspect = false;
        let found = tree.resolve(path, Last::Follow).and_then(|node| match node.kind() {
            Kind::File if node.attr().size == file.size_bytes => {
                let found_micros = node.attr().mtime.as_nanos().div_euclid(1000);
                is_suspect = found_micros.abs_diff(file.mtime_micros.into()) > MTIME_TOLERANCE_MICROS.into();
                Ok(tree.store().open(node.ino(), Access::Read).map_err(Arc::new))
            }
            Kind::File => Err(changed()),
            _ => Err(FsError::new(ErrorKind::InvalidInput).because("it is no file; make the manifest again")),
        });
        let opened = match found {
            Ok(opened) => opened,
            Err(e) => {
                failed.insert(path.clone());
                return self.fail(path, &reading(e, bare(path)));
            }
        };
        let one = if hashes.len() == 1 { file.size_bytes } else { CHUNK_LEN_BYTES };
        for (at, hash) in (0..).zip(hashes) {
            if !known.insert(*hash) {
                continue;
            }
            let offset = at * one;
            let len = one.min(file.size_bytes - offset);
            let mut job = Job { path: path.clone(), file: opened.clone(), offset, len, hash: *hash, is_suspect };
            // Waits while all have enough to do; what they have done meanwhile is taken in first.
            while let Err(back) = self.crew.hand(job) {
                job = back;
                self.wait()?;
            }
            while let Some(done) = self.crew.poll() {
                self.take(done)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        match self.crew.wait()? {
            Some(done) => self.take(done),
            None => self.tell_read(),
        }
    }

    fn tell_read(&mut self) -> Result<()> {
        let read = self.read.load(Ordering::Relaxed);
        self.tell(UploadEvent::Read(read))
    }

    fn take(&mut self, done: Done) -> Result<()> {
        let add = |count: &mut (u64, u64), len| *count = (count.0 + 1, count.1 + len);
        let (hash, len_bytes, present) = match done {
            Done::Stored(hash, len, replaced) => {
                add(&mut self.uploaded.stored, len);
                if replaced {
                    add(&mut self.uploaded.replaced, len);
                }
                (hash, len, false)
            }
            Done::Present(hash, len) => {
                add(&mut self.uploaded.present, len);
                (hash, len, true)
            }
            Done::Unreadable(path, hash, e) => {
                // Another file may have it.
                self.unread.push((path.clone(), hash));
                return self.fail(&path, &e);
            }
            Done::Unverified(path, hash, e) => {
                self.uploaded.failed += 1;
                return self.tell(UploadEvent::Unverified { path: bare(&path), hash, error: &e });
            }
            Done::Refused(e) => return Err(e),
        };
        self.tell(UploadEvent::Object { hash, len_bytes, present })?;
        self.tell_read()
    }

    fn fail(&mut self, path: &[u8], error: &FsError) -> Result<()> {
        self.uploaded.failed += 1;
        self.tell(UploadEvent::Failed { path: bare(path), error })
    }

    fn tell(&mut self, event: UploadEvent<'_>) -> Result<()> {
        match (self.tell)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ErrorKind::Interrupted.into()),
        }
    }
}

/// A path in the tree without the slash that it begins with.
fn bare(path: &[u8]) -> &[u8] {
    path.strip_prefix(b"/").unwrap_or(path)
}

fn changed() -> FsError {
    FsError::new(ErrorKind::Stale)
        .because("it is not what the manifest says; make the manifest again, with --rehash if that changes nothing")
}

impl Job {
    fn done(&self, shared: &Shared<'_>) -> Done {
        // Whoever waits for it is not to wait for ever.
        catch_unwind(AssertUnwindSafe(|| self.run(shared))).unwrap_or_else(|_| {
            Done::Refused(
                FsError::new(ErrorKind::Io).on("store", show(bare(&self.path))).because("a thread broke down"),
            )
        })
    }

    fn run(&self, shared: &Shared<'_>) -> Done {
        let UploadOptions { objects, keys, verify, .. } = *shared.options;
        let key = keys.key(&self.hash);
        let turn = || (self.len > LARGE_MIN_BYTES).then(|| shared.large.take());
        // One of another length cannot be right, and is replaced.
        let (is_there, is_right) = match objects.head(&key) {
            Ok(info) if info.len == self.len && verify => {
                let _turn = turn();
                match self.is_sound(shared, &key, &info) {
                    Ok(is_sound) => (true, is_sound),
                    // It is there, and nobody can say what it is.
                    Err(e) if Withheld::is_behind(&e) => return Done::Unverified(self.path.clone(), self.hash, e),
                    Err(e) => return Done::Refused(e),
                }
            }
            Ok(info) => (true, info.len == self.len),
            // Who may not list is not told that it is missing. What is refused altogether is refused when it is stored.
            Err(e) if e.is_not_found() || Withheld::is_behind(&e) => (false, false),
            Err(e) => return Done::Refused(e),
        };
        if is_right {
            return Done::Present(self.hash, self.len);
        }
        if self.len == 0 && self.hash != ContentHash::of(b"") {
            return Done::Unreadable(self.path.clone(), self.hash, reading(changed(), bare(&self.path)));
        }
        let _turn = turn();
        let file = match &self.file {
            Ok(file) => file,
            Err(e) => {
                let e = FsError::new(e.kind()).because(e.clone());
                return Done::Unreadable(self.path.clone(), self.hash, e.on("read", show(bare(&self.path))));
            }
        };
        let piece = Piece::new(&**file, self.offset, self.len, self.hash, (shared.is_over, shared.read));
        let stored = match self.is_suspect && self.len > LARGE_MIN_BYTES {
            // Much would be sent for nothing.
            true => piece.check(),
            false => Ok(()),
        };
        let mut is_replaced = is_there;
        let put = |if_absent| objects.put(&key, Content::Source(&piece), &PutOptions { if_absent, metadata: &[] });
        let stored = match stored.and_then(|()| put(!is_there)) {
            // Nobody can tell. What may be in its place has the same content, or should have.
            Err(e) if !is_there && Withheld::is_behind(&e) => put(false),
            // What came meanwhile, and cannot be right.
            Ok(Stored::AlreadyThere { len }) if len != self.len => {
                is_replaced = true;
                put(false)
            }
            stored => stored,
        };
        match (stored, piece.failure()) {
            (Ok(Stored::New(_)), _) => Done::Stored(self.hash, self.len, is_replaced),
            (Ok(Stored::AlreadyThere { .. }), _) => Done::Present(self.hash, self.len),
            (Err(_), Some(e)) if e.kind() == ErrorKind::Interrupted => Done::Refused(e),
            (Err(_), Some(e)) => Done::Unreadable(self.path.clone(), self.hash, reading(e, bare(&self.path))),
            (Err(e), None) => Done::Refused(e),
        }
    }

    /// Whether the object that is there has the right content. One that is replaced meanwhile is not known to have it.
    fn is_sound(&self, shared: &Shared<'_>, key: &str, info: &ObjectInfo) -> Result<bool> {
        let (mut hasher, mut at) = (Hasher::default(), 0);
        let mut buffer = vec![0; self.len.min(REQUEST_LEN_BYTES) as usize];
        while at < self.len {
            if shared.is_over.load(Ordering::Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            let wanted = (self.len - at).min(REQUEST_LEN_BYTES) as usize;
            let piece = &mut buffer[..wanted];
            match shared.options.objects.read_at(key, at, piece, info.tag.as_ref()) {
                Ok(fetched) if fetched.count == wanted => hasher.update(piece),
                Ok(_) => return Ok(false),
                Err(e) if e.is_not_found() || e.kind() == ErrorKind::Stale => return Ok(false),
                Err(e) => return Err(e),
            }
            at += wanted as u64;
        }
        Ok(hasher.finish() == self.hash)
    }
}

#[cfg(test)]
mod tests;
