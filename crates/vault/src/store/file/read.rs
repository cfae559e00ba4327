//! Reading ranges of an open content file.

use std::time::Duration;

use adit_core::Result;
use adit_core::media::HostFile;
use adit_core::types::Timestamp;

use super::{CHUNK, CLEAR, RUN_CHUNKS, SEALED, VaultFile};

/// How often, a millisecond apart, a chunk that does not authenticate is read again without a change before it counts as
/// damaged, in a file that someone wrote a moment ago: another client may be in the middle of it.
const READ_AGAIN: u32 = 25;
/// Reads in all, however often it changes.
const READS_MAX: u32 = 1000;
/// How long ago that moment may be.
const WRITTEN_JUST_NOW_SECS: i64 = 2;

impl VaultFile {
    pub(super) fn read_locked(&self, file: &dyn HostFile, offset: u64, buf: &mut [u8]) -> Result<usize> {
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
    pub(super) fn read_run(&self, file: &dyn HostFile, first: u64, at: u64, out: &mut [u8]) -> Result<usize> {
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
}
