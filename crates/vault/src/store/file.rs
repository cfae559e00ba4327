//! An open content file: reads and writes of cleartext ranges, chunk by chunk.
//!
//! One [`VaultFile`] serves all who have the inode open. Reads run side by side; a write or cut has the file alone,
//! because a chunk that is being rewritten does not authenticate. No length is remembered: another client may change
//! the file underneath, so each call takes it from the host.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_core::media::HostFile;
use adit_core::store::StoreFile;
use adit_core::types::{Access, AllocateMode, Ino, Timestamp};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::RwLock;
use zeroize::Zeroize;

use super::Shared;
use crate::format::content::{CHUNK_CLEAR_BYTES, MAX_HEADER_BYTES};
use crate::format::{FileCipher, HeaderBytes, Layout};
use crate::journal::{FileId, Op, RUN_HEADROOM_BYTES, RunToken};

const CHUNK: u64 = CHUNK_CLEAR_BYTES as u64;
/// Chunks in one host read or write: 1 MiB of cleartext.
const RUN_CHUNKS: u64 = 32;
/// Ciphertext that may wait for one sync of the journal.
const BATCH_LEN_BYTES: usize = 4 << 20;
/// New ciphertext after which the host is asked to start writing it to the disk, so that a later `fsync` finds little left.
const WRITEBACK_LEN_BYTES: u64 = 8 << 20;
/// Zeros that one step of an extension writes. Between steps others get the journal's gate, and the file: an extension can
/// be as long as the disk is large. Whole chunks.
const EXTEND_STEP_LEN_BYTES: u64 = 16 << 20;
/// How often, a millisecond apart, a chunk that does not authenticate is read again without a change before it counts as
/// damaged, in a file that someone wrote a moment ago: another client may be in the middle of it.
const READ_AGAIN: u32 = 25;
/// Reads in all, however often it changes.
const READS_MAX: u32 = 1000;
/// How long ago that moment may be.
const WRITTEN_JUST_NOW_SECS: i64 = 2;
/// How often a write that failed in the middle of an existing chunk is tried again.
const WRITE_AGAIN: u32 = 3;

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
}

/// An open content file of a vault.
pub(crate) struct VaultFile {
    shared: Arc<Shared>,
    ino: Ino,
    host_ino: u64,
    header: HeaderOrBytes,
    cipher: FileCipher,
    io: RwLock<Handle>,
    /// Ciphertext appended since the host was last asked to write back.
    appended: AtomicU64,
    /// Counts changes of content, under the lock of `io`.
    changes: AtomicU64,
}

/// An extension between two of its steps.
struct Extension {
    /// The length before all of it.
    from: u64,
    /// The length that it has come to.
    reached: u64,
    /// Of the file, then.
    changes: u64,
    /// Whether nobody else has changed the file since it began.
    alone: bool,
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

/// Ciphertext of consecutive chunks on its way to the vault.
struct Run {
    buf: Vec<u8>,
    used: usize,
    offset: u64,
    first: u64,
    count: u64,
    /// Whether it replaces chunks that exist.
    overwrites: bool,
}

/// Runs that share one sync of the journal.
#[derive(Default)]
struct Batch {
    runs: Vec<Run>,
    bytes: usize,
    token: RunToken,
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
            host_ino,
            header,
            cipher,
            io: RwLock::new(io),
            appended: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        }
    }

    /// The host's file.
    pub fn host(&self) -> Arc<dyn HostFile> {
        self.io.read().file.clone()
    }

    /// Whether the host's file still begins with the header that this was opened with. An error of the host is news for
    /// whoever opens it anew.
    pub fn is_current(&self) -> bool {
        let mut now = [0; MAX_HEADER_BYTES];
        let header = self.header.bytes();
        let file = self.host();
        now.get_mut(..header.len())
            .is_some_and(|now| file.read_at(0, now).is_ok_and(|n| n == header.len()) && now == header)
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
        if file.stat()?.ino.0 != self.host_ino {
            return Err(ErrorKind::Stale.into());
        }
        *self.io.write() = Handle { file, writable: true };
        Ok(())
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

    fn len_of(&self, file: &dyn HostFile) -> Result<u64> {
        let size = file.stat().map_err(|e| self.failed("stat", e))?.size;
        self.layout().cleartext_size(size).map_err(|e| self.corrupt(e))
    }

    fn with_id<R>(&self, f: impl FnOnce(&FileId<'_>) -> R) -> R {
        let path = || self.shared.object_path(self.ino);
        let nonce_len = self.layout().nonce_len as usize;
        f(&FileId { host_ino: self.host_ino, header: self.header.bytes(), nonce_len, path: &path })
    }

    // ---- reading

    fn read_locked(&self, file: &dyn HostFile, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let first = at / CHUNK;
            let run_end = (first + RUN_CHUNKS) * CHUNK;
            let want = ((run_end - at) as usize).min(buf.len() - done);
            let got = self.read_run(file, first, at, &mut buf[done..done + want])?;
            done += got;
            if got < want {
                break;
            }
        }
        Ok(done)
    }

    /// Reads within the run of chunks that begins with `first`.
    fn read_run(&self, file: &dyn HostFile, first: u64, at: u64, out: &mut [u8]) -> Result<usize> {
        let layout = self.layout();
        let host_offset = layout.chunk_offset(first).map_err(|e| self.corrupt(e))?;
        let full = layout.chunk_cipher() as usize;
        let chunks = (at + out.len() as u64).div_ceil(CHUNK) - first;
        let want = chunks as usize * full;
        SEALED.with_borrow_mut(|sealed| {
            if sealed.len() < want {
                sealed.resize(want, 0);
            }
            let got = file.read_at(host_offset, &mut sealed[..want]).map_err(|e| self.failed("read", e))?;
            if got == 0 {
                // The end; unless so much is gone that it is no vault file any more.
                return self.len_of(file).map(|_| 0);
            }
            let mut done = 0;
            for (n, piece) in sealed[..got].chunks(full).enumerate() {
                let chunk = first + n as u64;
                let skip = (at + done as u64 - chunk * CHUNK) as usize;
                let copied = self.open_chunk(file, chunk, piece, skip, &mut out[done..])?;
                done += copied;
                if piece.len() < full {
                    break;
                }
            }
            Ok(done)
        })
    }

    /// Decrypts `sealed` and puts its bytes from `skip` on into `out`; returns how many.
    fn open_chunk(&self, file: &dyn HostFile, chunk: u64, sealed: &[u8], skip: usize, out: &mut [u8]) -> Result<usize> {
        let overhead = self.layout().overhead() as usize;
        let clear_len = match sealed.len().checked_sub(overhead) {
            Some(n) if n > 0 => n,
            _ => return self.reread_chunk(file, chunk, sealed, skip, out),
        };
        let result = if skip == 0 && out.len() >= clear_len {
            self.cipher.decrypt_chunk(chunk, sealed, out)
        } else {
            CLEAR.with_borrow_mut(|clear| {
                let clear = &mut clear.0;
                clear.resize(CHUNK as usize, 0);
                self.cipher.decrypt_chunk(chunk, sealed, clear).map(|len| {
                    let part = clear.get(skip..len).unwrap_or_default();
                    let n = part.len().min(out.len());
                    out[..n].copy_from_slice(&part[..n]);
                    n
                })
            })
        };
        match result {
            Ok(n) => Ok(n),
            Err(_) => self.reread_chunk(file, chunk, sealed, skip, out),
        }
    }

    /// A chunk did not authenticate. If another client is writing it, it will be whole in a moment.
    fn reread_chunk(
        &self,
        file: &dyn HostFile,
        chunk: u64,
        before: &[u8],
        skip: usize,
        out: &mut [u8],
    ) -> Result<usize> {
        let layout = self.layout();
        let offset = layout.chunk_offset(chunk).map_err(|e| self.corrupt(e))?;
        let modified = file.stat().map_err(|e| self.failed("read", e))?.mtime;
        let in_motion = (Timestamp::now().secs - modified.secs).abs() <= WRITTEN_JUST_NOW_SECS;
        let (mut patience, mut reads) = (if in_motion { READ_AGAIN } else { 1 }, 0);
        let mut before = before.to_vec();
        let mut clear = zeroize::Zeroizing::new(vec![0; CHUNK as usize]);
        while patience > 0 && reads < READS_MAX {
            reads += 1;
            let mut sealed = vec![0; layout.chunk_cipher() as usize];
            let got = file.read_at(offset, &mut sealed).map_err(|e| self.failed("read", e))?;
            sealed.truncate(got);
            if sealed.is_empty() {
                return Ok(0);
            }
            if let Ok(len) = self.cipher.decrypt_chunk(chunk, &sealed, &mut clear)
                && len > 0
            {
                let part = clear[..len].get(skip..).unwrap_or_default();
                let n = part.len().min(out.len());
                out[..n].copy_from_slice(&part[..n]);
                return Ok(n);
            }
            patience = if sealed == before { patience - 1 } else { READ_AGAIN };
            before = sealed;
            if patience > 0 && in_motion {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Err(self.corrupt(format!("chunk {chunk} does not authenticate")))
    }

    // ---- writing

    /// Brings the length to `to`: a longer file is cut if it may be, a shorter one gets zeros, step by step. What others do
    /// with the file between two steps counts: a cut of theirs came after this, and what they wrote stays.
    ///
    /// On failure the length is what it was, unless someone else has changed the file meanwhile, or the journal takes no
    /// more changes.
    fn resize(&self, to: u64, may_cut: bool) -> Result<()> {
        let mut begun: Option<Extension> = None;
        loop {
            // Both are taken anew for each step, and in this order: with the file's lock held, waiting for the gate could
            // be waiting for someone who waits for the file.
            let op = self.shared.begin()?;
            let io = self.io.write();
            let file = &*io.file;
            let len = self.len_of(file)?;
            let (from, alone) = match begun {
                None if to <= len && may_cut => {
                    self.changed();
                    return self.cut(&op, file, to);
                }
                None => (len, true),
                Some(e) if len < e.reached => return Ok(()),
                Some(e) => (e.from, e.alone && e.changes == self.changes.load(Ordering::Relaxed)),
            };
            if to <= len {
                return Ok(());
            }
            // Steps end where chunks do: the next one has no chunk to write again.
            let reached = to.min((len - len % CHUNK).saturating_add(EXTEND_STEP_LEN_BYTES));
            // All of the space is asked for at once: no step that can be foreseen to fail is made.
            let step = self
                .check_space(to - len)
                .and_then(|()| self.with_id(|id| op.declare(id, len)))
                .and_then(|()| self.extend(&op, file, len, reached));
            if let Err(e) = step {
                if alone && from < len {
                    self.cut_back(&op, file, from);
                }
                return Err(e);
            }
            begun = Some(Extension { from, reached, changes: self.changed(), alone });
        }
    }

    /// Counts a change of the file, whose lock the caller holds; returns the count.
    fn changed(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn check_space(&self, len: u64) -> Result<()> {
        let free = self.shared.root.statfs().map(|s| s.blocks_free * u64::from(s.block_size));
        match free {
            Ok(free) if len > free => Err(self.failed("extend", ErrorKind::NoSpace)),
            _ => Ok(()),
        }
    }

    /// Cuts away what a failed extension left.
    fn cut_back(&self, op: &Op<'_>, file: &dyn HostFile, len: u64) {
        if let Err(again) = self.cut(op, file, len) {
            tracing::error!("a file that could not grow keeps what it grew by: {again}");
        }
    }

    /// Zeros from `len` to `to`, in one step. On failure the length is what it was.
    fn extend(&self, op: &Op<'_>, file: &dyn HostFile, len: u64, to: u64) -> Result<()> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        let mut now = len;
        while now < to {
            let n = (to - now).min(ZEROS.len() as u64 - now % CHUNK);
            let mut batch = Batch::default();
            let done = self
                .add_pieces(op, file, &mut batch, now, &[(now, &ZEROS[..n as usize])])
                .and_then(|()| self.write_batch(op, file, &mut batch));
            if let Err(e) = done {
                self.cut_back(op, file, len);
                return Err(e);
            }
            now += n;
        }
        Ok(())
    }

    /// Encrypts pieces into runs of `batch`. They ascend, none begins behind the end that those before it leave, and `len`
    /// is the length before all of them. Pieces in one chunk change it together.
    fn add_pieces(
        &self,
        op: &Op<'_>,
        file: &dyn HostFile,
        batch: &mut Batch,
        mut len: u64,
        pieces: &[(u64, &[u8])],
    ) -> Result<()> {
        let mut rest = pieces.iter().copied().filter(|(_, data)| !data.is_empty());
        let (mut next, mut parts) = (rest.next(), Vec::new());
        while let Some((at, _)) = next {
            let first = at / CHUNK;
            // Chunks of the batch are not in the vault yet: one that is wanted again must be.
            if batch.runs.last().is_some_and(|r| first < r.first + r.count) || batch.bytes >= BATCH_LEN_BYTES {
                self.write_batch(op, file, batch)?;
            }
            let stop = (first + RUN_CHUNKS) * CHUNK;
            let mut end = at;
            parts.clear();
            // A run goes on as long as no chunk is left out.
            while let Some((at, data)) = next.filter(|&(at, _)| at < stop && at / CHUNK <= end.div_ceil(CHUNK)) {
                let (now, later) = data.split_at(((stop - at) as usize).min(data.len()));
                parts.push((at, now));
                end = at + now.len() as u64;
                next = if later.is_empty() { rest.next() } else { Some((stop, later)) };
            }
            let run = self.seal_run(op, file, batch, len, first, &parts)?;
            batch.bytes += run.used;
            batch.runs.push(run);
            len = len.max(end);
        }
        Ok(())
    }

    /// Encrypts `parts` into one run of consecutive chunks from `first`, each of which they touch, and records it in the
    /// journal if it replaces chunks.
    fn seal_run(
        &self,
        op: &Op<'_>,
        file: &dyn HostFile,
        batch: &mut Batch,
        len: u64,
        first: u64,
        parts: &[(u64, &[u8])],
    ) -> Result<Run> {
        let layout = self.layout();
        let end = parts.last().map_or(0, |(at, data)| at + data.len() as u64);
        let count = end.div_ceil(CHUNK) - first;
        let room = RUN_HEADROOM_BYTES + count as usize * layout.chunk_cipher() as usize;
        let mut buf = self.shared.buffers.take(room);
        let (mut used, mut replaced, mut parts) = (RUN_HEADROOM_BYTES, Vec::new(), parts);
        for chunk in first..first + count {
            let start = chunk * CHUNK;
            let passed = parts.iter().take_while(|(at, data)| at + data.len() as u64 <= start).count();
            parts = &parts[passed..];
            let here = parts.iter().take_while(|(at, _)| *at < start + CHUNK).map(|&(at, data)| {
                let (a, b) = (at.max(start), (at + data.len() as u64).min(start + CHUNK));
                ((a - start) as usize, &data[(a - at) as usize..(b - at) as usize])
            });
            let old_len = len.saturating_sub(start).min(CHUNK) as usize;
            let new_len = here.clone().last().map_or(old_len, |(a, part)| old_len.max(a + part.len()));
            let out = &mut buf[used..];
            let n = match here.clone().next() {
                Some((0, part)) if part.len() == new_len => {
                    if old_len > 0 {
                        replaced.push(self.old_nonce(file, chunk)?);
                    }
                    self.cipher.encrypt_chunk(chunk, part, out)
                }
                _ => CLEAR.with_borrow_mut(|clear| {
                    let clear = &mut clear.0;
                    clear.resize(CHUNK as usize, 0);
                    let nonce = self.old_chunk(file, chunk, old_len, clear)?;
                    clear[old_len..].fill(0);
                    replaced.extend(nonce);
                    here.for_each(|(a, part)| clear[a..a + part.len()].copy_from_slice(part));
                    Ok::<_, FsError>(self.cipher.encrypt_chunk(chunk, &clear[..new_len], out))
                })?,
            };
            used += n.map_err(|e| self.failed("write", FsError::new(ErrorKind::Io).because(e)))?;
        }
        let offset = layout.chunk_offset(first).map_err(|e| self.failed("write", too_large(e)))?;
        let overwrites = !replaced.is_empty();
        if overwrites {
            let token = self.record_run(op, len, (&mut buf, used), first, replaced)?;
            batch.token = batch.token.and(token);
        }
        Ok(Run { buf, used, offset, first, count, overwrites })
    }

    /// Records the run in the journal. Chunks of it that are new have no old nonce and need no record of their own, but
    /// cost nothing extra in it.
    fn record_run(
        &self,
        op: &Op<'_>,
        len: u64,
        (buf, used): (&mut Vec<u8>, usize),
        first: u64,
        replaced: Vec<Vec<u8>>,
    ) -> Result<RunToken> {
        let layout = self.layout();
        let full = layout.chunk_cipher() as usize;
        let recorded = replaced.len();
        let mut lens: Vec<(u32, Vec<u8>)> = Vec::with_capacity(recorded);
        let mut at = RUN_HEADROOM_BYTES;
        for nonce in replaced {
            let n = (used - at).min(full);
            lens.push((n as u32, nonce));
            at += n;
        }
        // Only the replaced chunks at the run's start are recorded: those behind extend the file.
        if at == used {
            return self.with_id(|id| op.write_run(id, len, (buf, used), first, &lens));
        }
        let mut copy = buf[..at].to_vec();
        self.with_id(|id| op.write_run(id, len, (&mut copy, at), first, &lens))
    }

    fn old_nonce(&self, file: &dyn HostFile, chunk: u64) -> Result<Vec<u8>> {
        let offset = self.layout().chunk_offset(chunk).map_err(|e| self.corrupt(e))?;
        let mut nonce = vec![0; self.layout().nonce_len as usize];
        let got = file.read_at(offset, &mut nonce).map_err(|e| self.failed("read", e))?;
        nonce.truncate(got);
        Ok(nonce)
    }

    /// Decrypts the first `old_len` bytes of a chunk that is to be changed in part. None if there is no chunk.
    fn old_chunk(&self, file: &dyn HostFile, chunk: u64, old_len: usize, clear: &mut [u8]) -> Result<Option<Vec<u8>>> {
        if old_len == 0 {
            return Ok(None);
        }
        let layout = self.layout();
        let offset = layout.chunk_offset(chunk).map_err(|e| self.corrupt(e))?;
        SEALED.with_borrow_mut(|sealed| {
            let want = old_len + layout.overhead() as usize;
            if sealed.len() < want {
                sealed.resize(want, 0);
            }
            let got = file.read_at(offset, &mut sealed[..want]).map_err(|e| self.failed("read", e))?;
            let sealed = &sealed[..got];
            match self.cipher.decrypt_chunk(chunk, sealed, clear) {
                Ok(n) if n == old_len => Ok(Some(sealed[..layout.nonce_len as usize].to_vec())),
                // Never overwrite what cannot be read: the rest of the chunk would be lost.
                _ => Err(self.corrupt(format!("chunk {chunk} does not authenticate"))),
            }
        })
    }

    /// Waits for the journal, then writes the runs into the vault.
    fn write_batch(&self, op: &Op<'_>, file: &dyn HostFile, batch: &mut Batch) -> Result<()> {
        let Batch { runs, token, .. } = std::mem::take(batch);
        op.secure(token)?;
        let mut runs = runs.into_iter();
        while let Some(run) = runs.next() {
            let bytes = &run.buf[RUN_HEADROOM_BYTES..run.used];
            let written = if run.overwrites {
                self.overwrite(op, file, &run, bytes)
            } else {
                self.append(op, file, run.offset, bytes)
            };
            if let Err(e) = written {
                // What the caller is told did not happen must not happen later, by recovery.
                runs.filter(|r| r.overwrites).for_each(|r| self.cancel(op, &r));
                return Err(self.failed("write", e));
            }
            self.start_writeback(file, run.offset + bytes.len() as u64, bytes.len() as u64);
            self.shared.buffers.give(run.buf);
        }
        Ok(())
    }

    /// Takes a run that was not made out of the journal.
    fn cancel(&self, op: &Op<'_>, run: &Run) {
        if self.with_id(|id| op.cancel(id, run.first, run.count)).is_err() {
            op.keep(&format!("{}: a write that failed is still in the journal", self.subject()));
        }
    }

    /// Counts `len` bytes of ciphertext that end at `end`, and now and then starts their way to the disk.
    fn start_writeback(&self, file: &dyn HostFile, end: u64, len: u64) {
        let waiting = self.appended.fetch_add(len, Ordering::Relaxed) + len;
        if waiting >= WRITEBACK_LEN_BYTES {
            self.appended.store(0, Ordering::Relaxed);
            file.start_writeback(end.saturating_sub(waiting), waiting.min(end));
        }
    }

    /// Writes behind the file's end `at`; a failure leaves the end where it was.
    fn append(&self, op: &Op<'_>, file: &dyn HostFile, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        file.write_at(at, bytes).inspect_err(|_| {
            if file.set_len(at).is_err() {
                op.keep(&format!("{}: a chunk could not be cut away", self.subject()));
            }
        })
    }

    /// Writes over chunks that exist. What grows the file is written first: that fails on a full disk, and can be cut
    /// away again.
    fn overwrite(&self, op: &Op<'_>, file: &dyn HostFile, run: &Run, bytes: &[u8]) -> std::io::Result<()> {
        let end = file.stat()?.size;
        let inside = end.saturating_sub(run.offset).min(bytes.len() as u64) as usize;
        if inside < bytes.len() {
            self.append(op, file, end, &bytes[inside..]).inspect_err(|_| self.cancel(op, run))?;
        }
        let bytes = &bytes[..inside];
        let mut result = file.write_at(run.offset, bytes);
        // A chunk may be torn now. Its new content is in the journal, but better in the vault.
        for _ in 0..WRITE_AGAIN {
            if result.is_ok() {
                break;
            }
            result = file.write_at(run.offset, bytes);
        }
        result.inspect_err(|_| self.after_failed_overwrite(op, file, run, end))
    }

    /// Chunks could not be overwritten. Either they are as they were, or only the journal can mend them.
    fn after_failed_overwrite(&self, op: &Op<'_>, file: &dyn HostFile, run: &Run, end: u64) {
        let full = self.layout().chunk_cipher() as usize;
        let whole = |sealed: &[u8], chunk: u64| {
            let mut clear = zeroize::Zeroizing::new(vec![0; CHUNK as usize]);
            self.cipher.decrypt_chunk(chunk, sealed, &mut clear).is_ok()
        };
        let mut sealed = vec![0; end.saturating_sub(run.offset).min(run.count * full as u64) as usize];
        let untouched = file.set_len(end).is_ok()
            && file.read_at(run.offset, &mut sealed).is_ok_and(|n| n == sealed.len())
            && sealed.chunks(full).zip(run.first..).all(|(piece, chunk)| whole(piece, chunk));
        if !untouched || self.with_id(|id| op.cancel(id, run.first, run.count)).is_err() {
            op.keep(&format!("{}: a chunk could not be written whole", self.subject()));
        }
    }

    /// Cuts the file to `to`, below its length.
    fn cut(&self, op: &Op<'_>, file: &dyn HostFile, to: u64) -> Result<()> {
        let layout = self.layout();
        let host_len = layout.ciphertext_size(to).map_err(|e| self.failed("truncate", too_large(e)))?;
        let len = self.len_of(file)?;
        if to > len {
            return Ok(());
        }
        self.with_id(|id| op.cutting(id, len, to))?;
        let (chunk, rest) = (to / CHUNK, (to % CHUNK) as usize);
        if rest > 0 && to < len {
            let old_len = (len - chunk * CHUNK).min(CHUNK) as usize;
            let mut buf = self.shared.buffers.take(RUN_HEADROOM_BYTES + layout.chunk_cipher() as usize);
            let (used, nonce) = CLEAR.with_borrow_mut(|clear| {
                let clear = &mut clear.0;
                clear.resize(CHUNK as usize, 0);
                let nonce = self.old_chunk(file, chunk, old_len, clear)?;
                let n = self
                    .cipher
                    .encrypt_chunk(chunk, &clear[..rest], &mut buf[RUN_HEADROOM_BYTES..])
                    .map_err(|e| self.failed("truncate", FsError::new(ErrorKind::Io).because(e)))?;
                Ok::<_, FsError>((RUN_HEADROOM_BYTES + n, nonce.unwrap_or_default()))
            })?;
            let token = self.record_run(op, len, (&mut buf, used), chunk, vec![nonce])?;
            let offset = layout.chunk_offset(chunk).map_err(|e| self.corrupt(e))?;
            let run = Run { buf, used, offset, first: chunk, count: 1, overwrites: true };
            self.write_batch(op, file, &mut Batch { runs: vec![run], bytes: used, token })?;
        }
        let mut result = file.set_len(host_len);
        for _ in 0..WRITE_AGAIN {
            if result.is_ok() || rest == 0 {
                break;
            }
            result = file.set_len(host_len);
        }
        result.map_err(|e| {
            if rest > 0 && to < len {
                op.keep(&format!("{}: it could not be cut behind its last chunk", self.subject()));
            }
            self.failed("truncate", e)
        })
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
        let mut pieces = pieces;
        while let Some((at, later)) = self.write_near(pieces)? {
            self.resize(at, false)?;
            pieces = later;
        }
        Ok(())
    }

    fn set_len(&self, to: u64) -> Result<()> {
        if to > self.layout().max_cleartext_size() {
            return Err(self.failed("truncate", ErrorKind::FileTooLarge));
        }
        self.resize(to, true)
    }

    fn len(&self) -> Result<u64> {
        let io = self.io.read();
        self.len_of(&*io.file)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        if self.shared.journal.is_none() {
            return Ok(());
        }
        let op = self.shared.begin()?;
        let io = self.io.read();
        io.file.sync(data_only).map_err(|e| {
            op.keep(&format!("{}: a sync failed", self.subject()));
            self.failed("sync", e)
        })?;
        self.shared.sync_names(self.ino)?;
        self.shared.unsynced.lock().fresh.remove(&self.ino);
        let len = self.len_of(&*io.file)?;
        self.with_id(|id| op.settled(id, len))
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

/// A place far behind the end of a file, and the pieces from there on.
type Far<'p, 'd> = (u64, &'p [(u64, &'d [u8])]);

impl VaultFile {
    /// Writes the pieces up to the first one that begins more than a step behind the file's end; returns where that is.
    fn write_near<'p, 'd>(&self, mut pieces: &'p [(u64, &'d [u8])]) -> Result<Option<Far<'p, 'd>>> {
        let op = self.shared.begin()?;
        let io = self.io.write();
        let file = &*io.file;
        let before = self.len_of(file)?;
        for &(at, data) in pieces {
            at.checked_add(data.len() as u64)
                .filter(|&end| end <= self.layout().max_cleartext_size())
                .ok_or_else(|| self.failed("write", ErrorKind::FileTooLarge))?;
        }
        self.changed();
        self.with_id(|id| op.declare(id, before))?;
        let (mut len, mut batch) = (before, Batch::default());
        while !pieces.is_empty() {
            // Those that leave no gap before them go together.
            let mut end = len;
            let reach = pieces.iter().take_while(|&&(at, data)| {
                let joins = at <= end && !data.is_empty();
                end = if joins { end.max(at + data.len() as u64) } else { end };
                joins || data.is_empty()
            });
            let (now, later) = pieces.split_at(reach.count());
            self.add_pieces(&op, file, &mut batch, len, now)?;
            (len, pieces) = (end, later);
            if let Some(&(at, _)) = later.first() {
                self.write_batch(&op, file, &mut batch)?;
                if at - len > EXTEND_STEP_LEN_BYTES {
                    return Ok(Some((at, later)));
                }
                self.check_space(at - len)?;
                self.extend(&op, file, len, at)?;
                len = at;
            }
        }
        self.write_batch(&op, file, &mut batch)?;
        Ok(None)
    }

    fn zero(&self, from: u64, to: u64) -> Result<()> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        let mut at = from;
        while at < to {
            let n = (to - at).min(ZEROS.len() as u64);
            self.write_at(&[(at, &ZEROS[..n as usize])])?;
            at += n;
        }
        Ok(())
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
