//! Making an open content file longer or shorter.

use std::sync::atomic::Ordering;

use adit_core::media::HostFile;
use adit_core::store::StoreFile;
use adit_core::{ErrorKind, FsError, Result};

use super::write::{Batch, Gap, HeldFromOthers, Run, is_outrun, outrun};
use super::{CHUNK, CLEAR, EXTEND_STEP_LEN_BYTES, SEAL_AGAIN, VaultFile, WRITE_AGAIN, too_large};
use crate::journal::{Op, RUN_HEADROOM_BYTES};

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

impl VaultFile {
    /// Brings the length to `to`: a longer file is cut if it may be, a shorter one gets zeros, step by step. What others do
    /// with the file between two steps counts: a cut of theirs came after this, and what they wrote stays.
    ///
    /// On failure the length is what it was, unless someone else has changed the file meanwhile, or the journal takes no
    /// more changes.
    ///
    /// `gap` is the one that the extension is part of, if it is.
    pub(super) fn resize(&self, to: u64, may_cut: bool, gap: &mut Option<Gap>) -> Result<()> {
        let (mut begun, mut again): (Option<Extension>, _) = (None, SEAL_AGAIN);
        if to > self.len()? {
            self.wait_for_space();
        }
        loop {
            // Both are taken anew for each step, and in this order: with the file's lock held, waiting for the gate could
            // be waiting for someone who waits for the file.
            let op = self.shared.begin()?;
            let mut io = self.io.write();
            let _held = HeldFromOthers::new(&io.file);
            let len = self.len_to_change(&mut io)?;
            let file = &*io.file;
            let (from, alone) = match begun {
                None if to <= len && may_cut => {
                    self.changed();
                    match self.cut(&op, file, to) {
                        Err(e) if is_outrun(&e) && again > 0 => again -= 1,
                        other => return other,
                    }
                    continue;
                }
                None => (len, true),
                Some(ref e) if len < e.reached => return Ok(()),
                Some(ref e) => (e.from, e.alone && e.changes == self.changes.load(Ordering::Relaxed)),
            };
            if to <= len {
                return Ok(());
            }
            // Steps end where chunks do: the next one has no chunk to write again.
            let reached = to.min((len - len % CHUNK).saturating_add(EXTEND_STEP_LEN_BYTES));
            // All of the space is asked for at once: no step that can be foreseen to fail is made.
            let step = self
                .check_going_on()
                .and_then(|()| self.check_space(to - len))
                .and_then(|()| self.with_id(|id| op.declare(id, len)))
                .and_then(|()| self.extend(&op, file, len, reached));
            match step {
                Ok(()) => {}
                Err(e) if is_outrun(&e) && again > 0 => {
                    (*gap, again) = (None, again - 1);
                    continue;
                }
                Err(e) => {
                    if alone && from < len && !is_outrun(&e) {
                        self.cut_back(&op, file, from);
                    }
                    return Err(e);
                }
            }
            begun = Some(Extension { from, reached, changes: self.changed_in(gap), alone });
        }
    }

    /// Fails if the mount is about to end.
    fn check_going_on(&self) -> Result<()> {
        match self.shared.winding_up.load(Ordering::Relaxed) {
            true => Err(self.failed("extend", ErrorKind::Interrupted)),
            false => Ok(()),
        }
    }

    /// Waits for what was removed before to be freed, which the host does before it tells how much is free: with a lock held,
    /// others would wait as well.
    pub(super) fn wait_for_space(&self) {
        let _ = self.shared.root.statfs();
    }

    /// Fails if there is no room for `len` more bytes.
    pub(super) fn check_space(&self, len: u64) -> Result<()> {
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
    pub(super) fn extend(&self, op: &Op<'_>, file: &dyn HostFile, len: u64, to: u64) -> Result<()> {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        let mut now = len;
        while now < to {
            let n = (to - now).min(ZEROS.len() as u64 - now % CHUNK);
            let mut batch = Batch::default();
            let done = self
                .add_pieces(op, file, &mut batch, now, &[(now, &ZEROS[..n as usize])])
                .and_then(|()| self.write_batch(op, file, &mut batch));
            if let Err(e) = done {
                if !is_outrun(&e) {
                    self.cut_back(op, file, len);
                }
                return Err(e);
            }
            now += n;
        }
        Ok(())
    }

    /// Cuts the file to `to`, below its length.
    fn cut(&self, op: &Op<'_>, file: &dyn HostFile, to: u64) -> Result<()> {
        let layout = self.layout();
        let host_len = layout.ciphertext_size(to).map_err(|e| self.failed("truncate", too_large(e)))?;
        let len = self.len_of(file)?;
        if to > len {
            return Err(self.failed("truncate", outrun())); // another client was faster: now it is to be made longer
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
            let run = Run { buf, used, offset, first: chunk, count: 1, overwrites: true, cuts: true };
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

    /// What was to come behind a gap could not be written: the length is what it was again, unless someone else has changed
    /// the file meanwhile.
    pub(super) fn close_gap(&self, gap: Gap) {
        let Ok(op) = self.shared.begin() else { return };
        let mut io = self.io.write();
        let _held = HeldFromOthers::new(&io.file);
        let is_longer = self.len_to_change(&mut io).is_ok_and(|len| len > gap.from);
        if is_longer && self.changes.load(Ordering::Relaxed) == gap.changes {
            self.changed();
            self.cut_back(&op, &*io.file, gap.from);
        }
    }

    pub(super) fn zero(&self, from: u64, to: u64) -> Result<()> {
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
