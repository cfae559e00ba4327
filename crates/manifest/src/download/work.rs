//! What the threads of a download do: look whether a file is there, and fetch it if not.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::error::{ErrorKind, FsError};
use adit_core::media::{HostDir, HostFile, Withheld};
use adit_core::path::show;
use adit_core::types::{Access, Attr, Kind, SetAttr, SetTime, Timestamp};

use super::claims::Claims;
use super::draft::Draft;
use super::place::{Target, bytes, settle};
use super::{Conflict, Done, Fault, Outcome, on_host};
use crate::cache::{Fetch, ObjectFault, ObjectId};
use crate::format::limits::CHUNK_LEN_BYTES;
use crate::format::{Content, ContentHash, EntryPath, File, Hasher, MTIME_TOLERANCE_MICROS, Manifest};
use crate::turns::Turns;

/// How much of a file that is there is read at once.
const READ_LEN_BYTES: usize = 1 << 20;
/// Objects up to this length take one request.
const SMALL_MAX_BYTES: u64 = 1 << 20;
/// How often an object is fetched that comes with other content than its hash says.
const TRIES: u32 = 2;

/// What all threads have in common.
pub(super) struct Shared<'a> {
    pub manifest: &'a Manifest,
    pub source: &'a dyn Fetch,
    pub host: Option<&'a dyn HostDir>,
    pub conflict: Conflict,
    pub umask: u16,
    /// Whether the manifest tells which files may be executed.
    pub keeps_exec: bool,
    pub dry_run: bool,
    /// Bytes that came.
    pub fetched: &'a AtomicU64,
    /// Nothing more is wanted.
    pub is_over: &'a AtomicBool,
    /// Who fetches something large takes one.
    pub large: &'a Turns,
    /// Which entry has what is on the host.
    pub claims: &'a Claims,
}

/// A file to be there.
pub(super) struct Job {
    pub path: EntryPath<'static>,
    pub host: Vec<u8>,
    pub file: File<'static>,
    /// What is in its place.
    pub there: Option<Attr>,
    /// Its hashes, if they are known from before.
    pub known: Option<Vec<ContentHash>>,
}

/// What was read of a file that was there.
type Hashed = (Attr, Timestamp, Vec<ContentHash>);

impl Job {
    /// Does it.
    pub fn done(self, shared: &Shared<'_>) -> Done {
        let mut hashed = None;
        let ran = catch_unwind(AssertUnwindSafe(|| self.run(shared, &mut hashed)));
        // Whoever waits for it is not to wait for ever.
        let outcome = ran.unwrap_or_else(|_| {
            Err(Fault::All(FsError::new(ErrorKind::Io).on("fetch", &self.path).because("a thread broke down")))
        });
        let Job { path, host, file, .. } = self;
        Done { path, host, len_bytes: file.size_bytes, outcome, hashed }
    }

    fn run(&self, shared: &Shared<'_>, hashed: &mut Option<Hashed>) -> Result<Outcome, Fault> {
        let Some(host) = shared.host else { return Ok(Outcome::New) };
        let (mut there, mut known) = (self.there, self.known.as_deref());
        let mut draft = None;
        loop {
            shared.go_on().map_err(Fault::All)?;
            let target = match &there {
                None => Target::free(&self.host),
                Some(attr) => match self.settle(shared, host, attr, known, hashed)? {
                    Ok(target) => target,
                    Err(outcome) => return Ok(outcome),
                },
            };
            if shared.dry_run {
                return Ok(target.outcome);
            }
            let draft = match &mut draft {
                Some(draft) => draft,
                none => none.insert(self.fetch(shared, host)?),
            };
            match shared.place(host, &target, || draft.place(&target.path, target.replace))? {
                Ok(()) => return Ok(target.outcome),
                // Somebody made something there in between.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !target.replace => {}
                Err(e) => return Err(Fault::of_host(&self.host, e)),
            }
            known = None;
            there = match host.stat(&on_host(&self.host)) {
                Ok(attr) => Some(attr),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(Fault::of_host(&self.host, e)),
            };
        }
    }

    /// Where the file goes, if it is not what is there.
    fn settle(
        &self,
        shared: &Shared<'_>,
        host: &dyn HostDir,
        there: &Attr,
        known: Option<&[ContentHash]>,
        hashed: &mut Option<Hashed>,
    ) -> Result<Result<Target, Outcome>, Fault> {
        let path = on_host(&self.host);
        shared.found(host, there, &self.host)?;
        // What is skipped need not be read: whatever it is, it stays.
        if shared.conflict == Conflict::Skip {
            return Ok(Err(Outcome::Skipped));
        }
        if there.kind == Kind::File && there.size == self.file.size_bytes {
            let found = match known {
                Some(known) => Some(known),
                None => {
                    *hashed = self.hash(shared, host, &path)?;
                    hashed.as_ref().map(|(_, _, hashes)| &hashes[..])
                }
            };
            if found == Some(self.file.content.hashes()) {
                if shared.conflict == Conflict::Overwrite && !shared.dry_run {
                    self.mend(shared, host, there).map_err(|e| Fault::of_host(&self.host, e))?;
                }
                return Ok(Err(Outcome::Present(None)));
            }
        }
        settle(shared, &self.host, there, &|at, attr| {
            let may_be = attr.kind == Kind::File && attr.size == self.file.size_bytes;
            let read = if may_be { self.hash(shared, host, at)? } else { None };
            Ok(read.is_some_and(|(_, _, hashes)| hashes == self.file.content.hashes()))
        })
    }

    /// Reads what is there; none if it changes meanwhile, or cannot be read: then it is not known to be the file.
    fn hash(&self, shared: &Shared<'_>, host: &dyn HostDir, path: &Path) -> Result<Option<Hashed>, Fault> {
        let began = Timestamp::now();
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied => Ok(None),
            _ => Err(Fault::of_host(bytes(path), e)),
        };
        let (file, before) = match host.open(path, Access::Read).and_then(|file| file.stat().map(|attr| (file, attr))) {
            Ok(opened) => opened,
            Err(e) => return failed(e),
        };
        let one = match &self.file.content {
            Content::Whole(_) => u64::MAX,
            Content::Chunks(_) => CHUNK_LEN_BYTES,
        };
        let (mut hashes, mut hasher, mut buffer) = (Vec::new(), Hasher::default(), vec![0; READ_LEN_BYTES]);
        let mut offset = 0;
        loop {
            shared.go_on().map_err(Fault::All)?;
            let read = match file.read_at(offset, &mut buffer) {
                Ok(read) => read,
                Err(e) => return failed(e),
            };
            let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
            if offset > 0 && offset.is_multiple_of(one) {
                hashes.push(std::mem::take(&mut hasher).finish());
            }
            hasher.update(piece);
            offset += read as u64;
            if offset > self.file.size_bytes || (read < buffer.len() && offset < self.file.size_bytes) {
                return Ok(None);
            }
        }
        hashes.push(hasher.finish());
        let after = match file.stat() {
            Ok(attr) => attr,
            Err(e) => return failed(e),
        };
        let same = |a: &Attr| (a.ino, a.size, a.mtime, a.ctime, a.kind);
        Ok((same(&before) == same(&after) && offset == after.size).then_some((before, began, hashes)))
    }

    /// Gives a file that is there its time, and its exec bit where the manifest tells it.
    fn mend(&self, shared: &Shared<'_>, host: &dyn HostDir, there: &Attr) -> io::Result<()> {
        let mut set = SetAttr::default();
        let found_micros = there.mtime.as_nanos().div_euclid(1000);
        if found_micros.abs_diff(self.file.mtime_micros.into()) > MTIME_TOLERANCE_MICROS.into() {
            set.mtime = time_of(self.file.mtime_micros).map(SetTime::At);
        }
        if shared.keeps_exec && self.file.runnable != (there.perm & 0o111 != 0) {
            let exec = 0o111 & !shared.umask;
            set.perm = Some(if self.file.runnable { there.perm | exec } else { there.perm & !0o111 });
        }
        if set.is_empty() { Ok(()) } else { host.set_attr(&on_host(&self.host), &set) }
    }

    /// The file under a temporary name, complete, with its attributes.
    fn fetch<'d>(&self, shared: &Shared<'_>, host: &'d dyn HostDir) -> Result<Draft<'d>, Fault> {
        let on_host_failed = |e: io::Error| Fault::of_host(&self.host, e);
        let draft = Draft::file(host, &on_host(&self.host)).map_err(on_host_failed)?;
        let file = draft.open().map_err(on_host_failed)?;
        let hashes = self.file.content.hashes();
        let one = if hashes.len() == 1 { self.file.size_bytes } else { CHUNK_LEN_BYTES };
        for (at, hash) in (0..).zip(hashes) {
            let offset = at * one;
            let id = ObjectId { hash: *hash, len: one.min(self.file.size_bytes - offset) };
            self.object(shared, &id, file, offset)?;
        }
        let perm = (if self.file.runnable { 0o777 } else { 0o666 }) & !shared.umask;
        let mtime = time_of(self.file.mtime_micros).map(SetTime::At);
        file.set_attr(&SetAttr { perm: Some(perm), mtime, ..SetAttr::default() }).map_err(on_host_failed)?;
        Ok(draft)
    }

    /// Fetches an object to `offset` of a file, and compares it with its hash.
    fn object(&self, shared: &Shared<'_>, id: &ObjectId, file: &dyn HostFile, offset: u64) -> Result<(), Fault> {
        if id.len == 0 && id.hash == ContentHash::of(b"") {
            return Ok(());
        }
        let _turn = (id.len > SMALL_MAX_BYTES).then(|| shared.large.take());
        let mut found = id.hash;
        for _ in 0..TRIES {
            let (mut hasher, mut at, mut unwritten) = (Hasher::default(), offset, None);
            let fetched = shared.source.fetch(id, 0..id.len, &mut |piece| {
                shared.go_on()?;
                hasher.update(piece);
                shared.fetched.fetch_add(piece.len() as u64, Ordering::Relaxed);
                if let Err(e) = file.write_at(at, piece) {
                    unwritten = Some(e);
                    return Err(ErrorKind::Io.into());
                }
                at += piece.len() as u64;
                Ok(())
            });
            if let Some(e) = unwritten {
                return Err(Fault::of_host(&self.host, e));
            }
            fetched.map_err(|e| self.blame(shared, e))?;
            found = hasher.finish();
            if found == id.hash {
                return Ok(());
            }
            tracing::warn!(object = %id, "an object came with other content than its hash says");
        }
        let wrong = FsError::new(ErrorKind::Corrupt).on("read object", id).because(ObjectFault::Mismatch { found });
        Err(self.blame(shared, wrong))
    }

    /// What an error of the store means.
    fn blame(&self, shared: &Shared<'_>, e: FsError) -> Fault {
        use ErrorKind::*;
        let is_final = match e.kind() {
            Network | TimedOut | Interrupted | Exhausted | TooManyFiles => true,
            // Who may not list is not told that an object is missing; but who may read nothing is refused for all.
            PermissionDenied if Withheld::is_behind(&e) => false,
            PermissionDenied => shared.fetched.load(Ordering::Relaxed) == 0,
            _ => false,
        };
        match is_final {
            true => Fault::All(e),
            false => Fault::Entry(FsError::new(e.kind()).on("fetch", show(&self.host)).because(e)),
        }
    }
}

impl Shared<'_> {
    /// Whether the manifest has an entry at this path of the host.
    pub fn has(&self, path: &[u8]) -> bool {
        EntryPath::from_host(path).is_ok_and(|path| self.manifest.get(&path).is_some())
    }

    /// What was found at `path` is for it, and for no other path of the manifest; or comes beside it.
    pub fn found(&self, host: &dyn HostDir, attr: &Attr, path: &[u8]) -> Result<(), Fault> {
        if self.conflict == Conflict::Copy && attr.kind != Kind::Directory {
            return Ok(());
        }
        self.claims.found(host, self.manifest, attr.ino, path).map_err(Fault::Entry)
    }

    /// Has `place` put something where `target` says; see [`Claims::place`].
    pub fn place(
        &self,
        host: &dyn HostDir,
        target: &Target,
        place: impl FnOnce() -> io::Result<()>,
    ) -> Result<io::Result<()>, Fault> {
        self.claims.place(host, self.manifest, bytes(&target.path), target.replace, place).map_err(Fault::Entry)
    }

    fn go_on(&self) -> Result<(), FsError> {
        if self.is_over.load(Ordering::Relaxed) { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
    }
}

/// A time of the manifest; none for one [beyond what files have](Timestamp::is_plausible).
pub(super) fn time_of(micros: i64) -> Option<Timestamp> {
    let time = Timestamp { secs: micros.div_euclid(1_000_000), nanos: micros.rem_euclid(1_000_000) as u32 * 1000 };
    Some(time).filter(|time| time.is_plausible())
}
