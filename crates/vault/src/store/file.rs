//! An open content file: reads and writes of cleartext ranges, chunk by chunk.
//!
//! One [`VaultFile`] serves all who have the inode open. Reads run side by side; a write or cut has the file alone,
//! because a chunk that is being rewritten does not authenticate. No length is remembered: another client may change
//! the file underneath, so each call takes it from the host.

mod length;
mod read;
mod write;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_core::media::HostFile;
use adit_core::store::StoreFile;
use adit_core::types::{Access, AllocateMode, Attr, Ino, Timestamp};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::{Mutex, RwLock};
use zeroize::Zeroize;

use self::write::{Gap, is_outrun};
use super::Shared;
use crate::format::content::{CHUNK_CLEAR_BYTES, MAX_HEADER_BYTES};
use crate::format::{FileCipher, HeaderBytes, Layout};
use crate::journal::{FileId, Op};

const CHUNK: u64 = CHUNK_CLEAR_BYTES as u64;
/// Chunks in one host read or write: 1 MiB of cleartext.
const RUN_CHUNKS: u64 = 32;
/// Zeros that one step of an extension writes. Between steps others get the journal's gate, and the file: an extension can
/// be as long as the disk is large. Whole chunks.
const EXTEND_STEP_LEN_BYTES: u64 = 16 << 20;
/// How often a run is sealed anew because another client changed the file between its reading and its writing.
const SEAL_AGAIN: u32 = 100;
/// How often a write that failed in the middle of an existing chunk is tried again.
const WRITE_AGAIN: u32 = 3;
/// How often a sync goes after what was written meanwhile, before it keeps writers waiting.
const SYNCS_MAX: u32 = 4;

thread_local! {
    /// Ciphertext of reads. Kept per thread: a read allocates nothing.
    static SEALED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Cleartext of one chunk that is wanted in part.
    static CLEAR: RefCell<ClearChunk> = const { RefCell::new(ClearChunk(Vec::new())) };
}

/// Cleartext that is wiped when its thread ends.
struct ClearChunk(Vec<u8>);

impl Drop for ClearChunk {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

pub(crate) struct Handle {
    pub file: Arc<dyn HostFile>,
    pub writable: bool,
    /// How the host's file was when it was known to begin with our header.
    pub seen: Option<Version>,
}

/// What differs after any change of a file's content, to the host's clock.
pub(crate) type Version = (Timestamp, u64);

/// The version that these attributes of the host are of.
pub(crate) fn version(host: &Attr) -> Version {
    (host.ctime, host.size)
}

/// An open content file of a vault.
pub(crate) struct VaultFile {
    shared: Arc<Shared>,
    ino: Ino,
    /// The number that the host's file has at its place.
    host_ino: AtomicU64,
    header: HeaderOrBytes,
    cipher: FileCipher,
    io: RwLock<Handle>,
    /// Ciphertext appended since the host was last asked to write back.
    appended: AtomicU64,
    /// Counts changes of content, under the lock of `io`.
    changes: AtomicU64,
    /// Held while the medium makes the file durable: the host tells a failure to one of those who ask at once.
    sync_turn: Mutex<()>,
}

/// The sealed header, as it was made or read.
pub(crate) enum HeaderOrBytes {
    Made(HeaderBytes),
    Read(Box<[u8]>),
}

impl HeaderOrBytes {
    fn bytes(&self) -> &[u8] {
        match self {
            HeaderOrBytes::Made(h) => h,
            HeaderOrBytes::Read(b) => b,
        }
    }
}

impl VaultFile {
    pub fn new(
        shared: Arc<Shared>,
        ino: Ino,
        host_ino: u64,
        header: HeaderOrBytes,
        cipher: FileCipher,
        io: Handle,
    ) -> Self {
        VaultFile {
            shared,
            ino,
            host_ino: AtomicU64::new(host_ino),
            header,
            cipher,
            io: RwLock::new(io),
            appended: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            sync_turn: Mutex::new(()),
        }
    }

    /// The host's file.
    pub fn host(&self) -> Arc<dyn HostFile> {
        self.io.read().file.clone()
    }

    /// Whether the host's file is still at its place, and still begins with the header that this was opened with. An error
    /// of the host is news for whoever opens it anew.
    pub fn is_current(&self) -> bool {
        // A file that has no name here any more has no other place to be found at.
        let is_there = |path: String| self.shared.root.stat(Path::new(&path)).is_ok_and(|a| a.ino.0 == self.host_ino());
        self.has_header(&*self.host()).unwrap_or(false) && self.shared.object_path(self.ino).is_none_or(is_there)
    }

    fn host_ino(&self) -> u64 {
        self.host_ino.load(Ordering::Relaxed)
    }

    /// The host knows it by another number now. The caller holds `naming` alone.
    pub fn renumbered(&self, host_ino: u64) {
        self.host_ino.store(host_ino, Ordering::Relaxed);
    }

    fn has_header(&self, file: &dyn HostFile) -> std::io::Result<bool> {
        let mut now = [0; MAX_HEADER_BYTES];
        let header = self.header.bytes();
        let Some(now) = now.get_mut(..header.len()) else { return Ok(false) };
        Ok(file.read_at(0, now)? == header.len() && now == header)
    }

    /// The nonce that its header begins with.
    pub fn header_nonce(&self) -> &[u8] {
        &self.header.bytes()[..self.layout().nonce_len as usize]
    }

    /// Makes it writable by reopening the host's file with `open`.
    pub fn ensure_writable(&self, open: impl FnOnce() -> Result<Arc<dyn HostFile>>) -> Result<()> {
        if self.io.read().writable {
            return Ok(());
        }
        let file = open()?;
        if file.stat()?.ino.0 != self.host_ino() {
            return Err(ErrorKind::Stale.into());
        }
        *self.io.write() = Handle { file, writable: true, seen: None };
        Ok(())
    }

    /// Whether both are the same file of the host, with the same header.
    pub fn is_same(&self, other: &VaultFile) -> bool {
        self.host_ino() == other.host_ino() && self.header.bytes() == other.header.bytes()
    }

    fn layout(&self) -> Layout {
        self.cipher.layout()
    }

    fn corrupt(&self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> FsError {
        FsError::new(ErrorKind::Corrupt).on("read", self.subject()).because(why)
    }

    fn failed(&self, op: &'static str, e: impl Into<FsError>) -> FsError {
        e.into().on(op, self.subject())
    }

    fn subject(&self) -> String {
        self.shared.object_path(self.ino).unwrap_or_else(|| format!("an unlinked file ({:?})", self.ino))
    }

    /// The length, before a change. Another client may have written another header since this file was opened (`cp` and
    /// the official library do that), and what is encrypted under ours could then be read by nobody: `Stale`.
    ///
    /// The header is read only if the host says that the file changed since it was looked at last. So the first write after
    /// an opening costs nothing for it, and each later one, which finds our own change, a read of 68 bytes.
    fn len_to_change(&self, io: &mut Handle) -> Result<u64> {
        let host = io.file.stat().map_err(|e| self.failed("stat", e))?;
        let now = version(&host);
        if io.seen != Some(now) {
            if !self.has_header(&*io.file).map_err(|e| self.failed("read", e))? {
                let why = "another client has written the file anew since it was opened";
                return Err(self.failed("write", FsError::new(ErrorKind::Stale).because(why)));
            }
            io.seen = Some(now);
        }
        self.layout().cleartext_size(host.size).map_err(|e| self.corrupt(e))
    }

    fn len_of(&self, file: &dyn HostFile) -> Result<u64> {
        let size = file.stat().map_err(|e| self.failed("stat", e))?.size;
        self.layout().cleartext_size(size).map_err(|e| self.corrupt(e))
    }

    fn with_id<R>(&self, f: impl FnOnce(&FileId<'_>) -> R) -> R {
        let path = || self.shared.object_path(self.ino);
        let nonce_len = self.layout().nonce_len as usize;
        f(&FileId { host_ino: self.host_ino(), header: self.header.bytes(), nonce_len, path: &path })
    }

    /// Counts a change of the file, whose lock the caller holds; returns the count.
    fn changed(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a change that is part of `gap`, unless someone else has changed the file since: then it is nobody's.
    fn changed_in(&self, gap: &mut Option<Gap>) -> u64 {
        let changes = self.changed();
        *gap = gap.filter(|gap| gap.changes + 1 == changes).map(|gap| Gap { changes, ..gap });
        changes
    }
}

fn too_large(e: crate::format::FormatError) -> FsError {
    FsError::new(ErrorKind::FileTooLarge).because(e)
}

impl StoreFile for VaultFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let io = self.io.read();
        self.read_locked(&*io.file, offset, buf)
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        let mut gap = None;
        self.write_all(pieces, &mut gap).inspect_err(|e| {
            if let Some(gap) = gap.filter(|_| !is_outrun(e)) {
                self.close_gap(gap);
            }
        })
    }

    fn set_len(&self, to: u64) -> Result<()> {
        if to > self.layout().max_cleartext_size() {
            return Err(self.failed("truncate", ErrorKind::FileTooLarge));
        }
        self.resize(to, true, &mut None)
    }

    fn len(&self) -> Result<u64> {
        let io = self.io.read();
        self.len_of(&*io.file)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        if self.shared.journal.is_none() {
            return Ok(());
        }
        // Neither with the journal's gate nor with the file's lock: the medium can take seconds, and whoever waits for them
        // would have all others wait behind. What was written meanwhile is little, and takes little time to sync: only a file
        // that is changed on and on is synced once more with both held.
        let mut changes = self.sync_now(data_only)?;
        for _ in 1..SYNCS_MAX {
            if changes == self.changes.load(Ordering::Relaxed) {
                break;
            }
            changes = self.sync_now(data_only)?;
        }
        self.shared.sync_names(self.ino)?;
        self.shared.unsynced.lock().fresh.remove(&self.ino);
        let op = self.shared.begin()?;
        self.settle(&op, Some(changes), data_only)
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        let now = self.len()?;
        match mode {
            AllocateMode::Extend if end > now => self.set_len(end),
            AllocateMode::Extend => Ok(()),
            AllocateMode::KeepSize if end <= now => Ok(()),
            // The format has neither holes nor room behind the end.
            AllocateMode::KeepSize | AllocateMode::PunchHole => Err(self.failed("allocate", ErrorKind::NotSupported)),
            AllocateMode::Zero { keep_size } => {
                if end > now && !keep_size {
                    self.set_len(end)?;
                }
                self.zero(offset, end.min(now))
            }
        }
    }
}

impl VaultFile {
    /// Makes the host's file durable as it is; returns how many changes that takes in.
    fn sync_now(&self, data_only: bool) -> Result<u64> {
        let (file, changes) = {
            let io = self.io.read();
            (io.file.clone(), self.changes.load(Ordering::Relaxed))
        };
        self.sync_host(&*file, data_only)?;
        Ok(changes)
    }

    /// Makes the host's file durable, one caller after the other: a failure is one for those who waited, too.
    fn sync_host(&self, file: &dyn HostFile, data_only: bool) -> Result<()> {
        let _turn = self.sync_turn.lock();
        if let Some(journal) = &self.shared.journal {
            journal.check_sound()?;
        }
        file.sync(data_only).or_else(|e| match (self.shared.object_path(self.ino), e.kind()) {
            // Nothing of a file without a name has to be durable, and hosts differ in what they say of it.
            (None, std::io::ErrorKind::NotFound) => Ok(()),
            (Some(path), kind) if kind != std::io::ErrorKind::NotFound => Err(self.shared.sync_failed(e, &path)),
            _ => Err(self.failed("sync", e)),
        })
    }

    /// Tells the journal that the content is durable, after making it so, unless the medium has it as it was `changes`
    /// changes after its opening, and that is how it is. The names are durable, or recovery finds the file without them.
    pub fn settle(&self, op: &Op<'_>, changes: Option<u64>, data_only: bool) -> Result<()> {
        let io = self.io.read();
        if changes != Some(self.changes.load(Ordering::Relaxed)) {
            self.sync_host(&*io.file, data_only)?;
        }
        if !self.has_header(&*io.file).unwrap_or(false) {
            return Ok(()); // another client has written it anew: what it is now, the journal knows nothing of
        }
        let len = self.len_of(&*io.file)?;
        self.with_id(|id| op.settled(id, len))
    }
}

/// Opens the content file at `host`: its header is read and checked.
pub(crate) fn open_content(shared: &Shared, path: &str, host: &dyn HostFile) -> Result<(Box<[u8]>, FileCipher)> {
    let mut header = vec![0; shared.layout.header_len as usize];
    let got = host.read_at(0, &mut header).map_err(|e| FsError::from(e).on("open", path))?;
    let corrupt = |why: String| FsError::new(ErrorKind::Corrupt).on("open", path).because(why);
    if got < header.len() {
        return Err(corrupt(format!("{got} bytes are too few for a header")));
    }
    let cipher = shared.content.open_file(&header).map_err(|e| corrupt(e.to_string()))?;
    Ok((header.into_boxed_slice(), cipher))
}

/// The access that the host must grant.
pub(crate) fn writable(access: Access) -> bool {
    access == Access::Write
}
