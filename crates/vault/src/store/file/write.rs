//! Writing pieces into an open content file: chunks are sealed anew, told to the journal, and then written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use adit_core::media::HostFile;
use adit_core::store::StoreFile;
use adit_core::{ErrorKind, FsError, Result};

use super::{CHUNK, CLEAR, EXTEND_STEP_LEN_BYTES, RUN_CHUNKS, SEAL_AGAIN, SEALED, VaultFile, WRITE_AGAIN, too_large};
use crate::journal::{Op, RUN_HEADROOM_BYTES, RunToken};

/// Ciphertext that may wait for one sync of the journal.
const BATCH_LEN_BYTES: usize = 4 << 20;
/// New ciphertext after which the host is asked to start writing it to the disk, so that a later `fsync` finds little left.
const WRITEBACK_LEN_BYTES: u64 = 8 << 20;

/// Ciphertext of consecutive chunks on its way to the vault.
pub(super) struct Run {
    pub(super) buf: Vec<u8>,
    pub(super) used: usize,
    pub(super) offset: u64,
    pub(super) first: u64,
    pub(super) count: u64,
    /// Whether it replaces chunks that exist.
    pub(super) overwrites: bool,
    /// Whether the file is cut behind it at once.
    pub(super) cuts: bool,
}

/// Another client has changed the file's length since a run was sealed, and what it would make of the file is not whole.
#[derive(Debug)]
struct Outrun;

impl std::fmt::Display for Outrun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another client goes on changing the file's length")
    }
}

impl std::error::Error for Outrun {}

/// An error that says so.
pub(super) fn outrun() -> std::io::Error {
    std::io::Error::other(Outrun)
}

/// Whether [`Outrun`] is the reason.
pub(super) fn is_outrun(e: &FsError) -> bool {
    let host = e.cause().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    host.and_then(std::io::Error::get_ref).is_some_and(|inner| inner.is::<Outrun>())
}

/// Runs that share one sync of the journal.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) runs: Vec<Run>,
    pub(super) bytes: usize,
    pub(super) token: RunToken,
}

/// Other mounts of this machine do not change the file while this lives: reading a chunk, sealing it anew and writing it are
/// one step for them. Clients that know no locks may still come between, and a mount whose disk keeps it at that for more
/// than a second.
pub(super) struct HeldFromOthers(Arc<dyn HostFile>);

impl HeldFromOthers {
    pub(super) fn new(file: &Arc<dyn HostFile>) -> HeldFromOthers {
        file.hold_others();
        HeldFromOthers(file.clone())
    }
}

impl Drop for HeldFromOthers {
    fn drop(&mut self) {
        self.0.admit_others();
    }
}

/// A place far behind the end of a file, and the pieces from there on.
type Far<'p, 'd> = (u64, &'p [(u64, &'d [u8])]);

/// Zeros that a write far behind the end has put before its data.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    /// The length before.
    pub(super) from: u64,
    /// Of the file, after our latest change.
    pub(super) changes: u64,
}

impl VaultFile {
    pub(super) fn write_all(&self, mut pieces: &[(u64, &[u8])], gap: &mut Option<Gap>) -> Result<()> {
        // Pieces that leave gaps between them are taken for such that leave one before them.
        let mut ends = pieces.iter().map(|&(at, data)| (at, at.saturating_add(data.len() as u64)));
        let first = ends.next().unwrap_or_default();
        let gaps = ends.try_fold(first.1, |end, (at, next)| (at <= end).then_some(next)).is_none();
        if gaps || (first.0 > 0 && first.0 > self.len()?) {
            self.wait_for_space();
        }
        while let Some((at, later)) = self.write_near(pieces, gap)? {
            self.resize(at, false, gap)?;
            pieces = later;
        }
        Ok(())
    }

    /// Writes the pieces up to the first one that begins more than a step behind the file's end; returns where that is.
    fn write_near<'p, 'd>(&self, pieces: &'p [(u64, &'d [u8])], gap: &mut Option<Gap>) -> Result<Option<Far<'p, 'd>>> {
        let op = self.shared.begin()?;
        let mut io = self.io.write();
        let _held = HeldFromOthers::new(&io.file);
        let before = self.len_to_change(&mut io)?;
        let file = &*io.file;
        for &(at, data) in pieces {
            at.checked_add(data.len() as u64)
                .filter(|&end| end <= self.layout().max_cleartext_size())
                .ok_or_else(|| self.failed("write", ErrorKind::FileTooLarge))?;
        }
        let changes = self.changed_in(gap);
        self.with_id(|id| op.declare(id, before))?;
        let mut len = before;
        for _ in 0..SEAL_AGAIN {
            match self.write_pieces(&op, file, (len, changes), pieces, gap) {
                // What was written of it is written again.
                Err(e) if is_outrun(&e) => (len, *gap) = (self.len_of(file)?, None),
                other => return other,
            }
        }
        self.write_pieces(&op, file, (len, changes), pieces, gap)
    }

    /// Writes pieces into a file of `len` bytes. See [`VaultFile::write_near`].
    fn write_pieces<'p, 'd>(
        &self,
        op: &Op<'_>,
        file: &dyn HostFile,
        (mut len, changes): (u64, u64),
        mut pieces: &'p [(u64, &'d [u8])],
        gap: &mut Option<Gap>,
    ) -> Result<Option<Far<'p, 'd>>> {
        let mut batch = Batch::default();
        while !pieces.is_empty() {
            // Those that leave no gap before them go together.
            let mut end = len;
            let reach = pieces.iter().take_while(|&&(at, data)| {
                let joins = at <= end && !data.is_empty();
                end = if joins { end.max(at + data.len() as u64) } else { end };
                joins || data.is_empty()
            });
            let (now, later) = pieces.split_at(reach.count());
            if let Err(e) = self.add_pieces(op, file, &mut batch, len, now) {
                // What the caller is told did not happen must not happen later, by recovery.
                batch.runs.iter().filter(|run| run.overwrites).for_each(|run| self.cancel(op, run));
                return Err(e);
            }
            (len, pieces) = (end, later);
            if let Some(&(at, _)) = later.first() {
                self.write_batch(op, file, &mut batch)?;
                // For all of the gap and what comes behind it.
                let end = later.iter().map(|(at, data)| at + data.len() as u64).max().unwrap_or(at);
                self.check_space(end - len)?;
                gap.get_or_insert(Gap { from: len, changes });
                if at - len > EXTEND_STEP_LEN_BYTES {
                    return Ok(Some((at, later)));
                }
                self.extend(op, file, len, at)?;
                len = at;
            }
        }
        self.write_batch(op, file, &mut batch)?;
        Ok(None)
    }

    /// Encrypts pieces into runs of `batch`. They ascend, none begins behind the end that those before it leave, and `len`
    /// is the length before all of them. Pieces in one chunk change it together.
    pub(super) fn add_pieces(
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
        Ok(Run { buf, used, offset, first, count, overwrites, cuts: false })
    }

    /// Records the run in the journal. Chunks of it that are new have no old nonce and need no record of their own, but
    /// cost nothing extra in it.
    pub(super) fn record_run(
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
    pub(super) fn old_chunk(
        &self,
        file: &dyn HostFile,
        chunk: u64,
        old_len: usize,
        clear: &mut [u8],
    ) -> Result<Option<Vec<u8>>> {
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
                _ if self.len_of(file)?.saturating_sub(chunk * CHUNK).min(CHUNK) != old_len as u64 => {
                    Err(self.failed("write", outrun()))
                }
                // Never overwrite what cannot be read: the rest of the chunk would be lost.
                _ => Err(self.corrupt(format!("chunk {chunk} does not authenticate"))),
            }
        })
    }

    /// Waits for the journal, then writes the runs into the vault.
    pub(super) fn write_batch(&self, op: &Op<'_>, file: &dyn HostFile, batch: &mut Batch) -> Result<()> {
        let Batch { runs, token, .. } = std::mem::take(batch);
        op.secure(token)?;
        let mut runs = runs.into_iter();
        while let Some(run) = runs.next() {
            let bytes = &run.buf[RUN_HEADROOM_BYTES..run.used];
            let written = match self.end_for(file, &run, bytes.len() as u64) {
                Ok(end) if run.overwrites => self.overwrite(op, file, &run, bytes, end),
                Ok(_) => self.append(op, file, run.offset, bytes),
                Err(e) => {
                    if run.overwrites {
                        self.cancel(op, &run);
                    }
                    Err(e)
                }
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

    /// The end of the host's file, for a run of `len` bytes that fits it. [`Outrun`] if another client has changed the length
    /// since: behind the new end it would leave a hole, and a short chunk in front of longer content is no chunk.
    fn end_for(&self, file: &dyn HostFile, run: &Run, len: u64) -> std::io::Result<u64> {
        let end = file.stat()?.size;
        let ends_short = !len.is_multiple_of(self.layout().chunk_cipher().into()) && !run.cuts;
        if end < run.offset || (ends_short && end > run.offset + len) {
            return Err(outrun());
        }
        Ok(end)
    }

    /// Takes a run that was not made out of the journal.
    fn cancel(&self, op: &Op<'_>, run: &Run) {
        if self.with_id(|id| op.cancel(id, run.first, run.count)).is_err() {
            op.keep(&format!("{}: a write that failed is still in the journal", self.subject()));
        }
    }

    /// Counts `len` bytes of ciphertext that end at `end`, and now and then starts their way to the disk.
    pub(super) fn start_writeback(&self, file: &dyn HostFile, end: u64, len: u64) {
        let waiting = self.appended.fetch_add(len, Ordering::Relaxed) + len;
        if waiting >= WRITEBACK_LEN_BYTES {
            self.appended.store(0, Ordering::Relaxed);
            file.start_writeback(end.saturating_sub(waiting), waiting.min(end));
        }
    }

    /// Writes behind the file's end `at`; a failure leaves the end where it was.
    pub(super) fn append(&self, op: &Op<'_>, file: &dyn HostFile, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        file.write_at(at, bytes).inspect_err(|_| {
            if file.set_len(at).is_err() {
                op.keep(&format!("{}: a chunk could not be cut away", self.subject()));
            }
        })
    }

    /// Writes over chunks that exist. What grows the file is written first: that fails on a full disk, and can be cut
    /// away again.
    fn overwrite(&self, op: &Op<'_>, file: &dyn HostFile, run: &Run, bytes: &[u8], end: u64) -> std::io::Result<()> {
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
}
