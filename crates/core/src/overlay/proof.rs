//! Bytes of the lower that were copied up, or may be, before anybody knew whether they are right.
//!
//! Of a lower that only knows when it has more than what is read ([`StoreFile::read_to_keep_at`](crate::store::StoreFile)), a change of a
//! part of a block, and the pages that the kernel reads and hands back whole, take bytes along that may turn out to be wrong. What of a
//! file was handed out so is [`served`](super::content::Content::served); what of it is written goes into the upper's attribute before it
//! is written. Whoever reads such a block later asks the lower what became of it: what was right is forgotten, what was wrong is an
//! error, and who must have right bytes has it proved first.
//!
//! Invariant: a block of the upper that may hold such bytes is in the attribute, from before it is written until it is proved, cut off
//! or zeroed.

use std::ops::Range;
use std::sync::Arc;

use super::content::{Work, times_of};
use super::doubts::Doubts;
use super::record::Own;
use super::{BLOCK, Shared};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::{FileCall, Proof, Unproved};
use crate::transaction::Transaction;
use crate::types::{Ino, XattrSet};

/// Stretches that are remembered of an open file; what is read beyond them is verified at once. 16 GiB of blocks of 1 MiB, in 2 MiB.
const SERVED_MAX: usize = 16 << 10;

/// How far what is read of the lower is to be known to be right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// Nobody keeps it.
    None,
    /// It may be kept, and is to be known again.
    Noted,
    /// It is to be right.
    Verified,
}

fn blocks_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)
}

/// Writes the attribute, if it is to change. What does not fit is not written: see [`Shared::note_doubts`].
pub(super) fn put_doubts(tx: &mut dyn Transaction, upper: Ino, before: &Doubts, after: &Doubts) -> Result<()> {
    match (before == after, after.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => tx.remove_xattr(upper, Own::Unproved.name()),
        (false, false) => {
            let value = after.encode().ok_or(ErrorKind::NoSpace)?;
            let set = if before.is_empty() { XattrSet::Create } else { XattrSet::Replace };
            tx.set_xattr(upper, Own::Unproved.name(), &value, set)
        }
    }
}

impl Shared {
    /// What is in the upper of a file and not proved yet.
    pub fn doubts(&self, work: &Work<'_>) -> Result<Arc<Doubts>> {
        if let Some(doubts) = &*work.content.doubts.read() {
            return Ok(doubts.clone());
        }
        // Only a lower that comes from afar tells any.
        let Some(upper) = work.node.upper().filter(|_| work.node.from_lower && self.tells_states()) else {
            return Ok(Arc::default());
        };
        // Held meanwhile, as of the extent.
        let slot = &mut *work.content.doubts.write();
        if slot.is_none() {
            let value = self.own_xattr(upper, Own::Unproved)?;
            let subject = || format!("inode {} of the upper layer", upper.0);
            *slot = Some(match value {
                Some(value) => Arc::new(Doubts::decode(&value, &subject())?),
                None => Arc::default(),
            });
        }
        Ok(slot.clone().unwrap_or_default())
    }

    /// Notes that a transaction changed the attribute.
    pub fn set_doubts(&self, work: &Work<'_>, doubts: Doubts) {
        *work.content.doubts.write() = Some(Arc::new(doubts));
    }

    /// Reads of the lower what may be kept by whoever gets it, and notes what of it is not proved.
    pub fn read_noted(&self, work: &Work<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let lower = self.lower_file(work)?;
        if work.content.served.lock().len() >= SERVED_MAX {
            return lower.read_verified_at(offset, buf);
        }
        let mut unproved = Vec::new();
        let len = lower.read_to_keep_at(offset, buf, &mut unproved)?;
        let blocks = blocks_of(&(offset..offset + len as u64));
        let mut served = work.content.served.lock();
        unproved.into_iter().for_each(|what| served.add(what, blocks.clone()));
        Ok(len)
    }

    /// What became of a stretch; `must` have it known now.
    fn proof(&self, work: &Work<'_>, what: &Unproved, must: bool) -> Result<Proof> {
        let lower = self.lower_file(work)?;
        match lower.prove(what, false)? {
            Proof::Suspect => lower.prove(what, true),
            Proof::Open if must => lower.prove(what, true),
            proof => Ok(proof),
        }
    }

    fn wrong(&self, work: &Work<'_>) -> FsError {
        let path = self.path_of(work.node).unwrap_or_else(|| format!("inode {}", work.node.ino.0));
        FsError::new(ErrorKind::Corrupt).on("read", path).because(
            "a part of it was changed before the layer below was found to be wrong there, and both are in one block now: write the \
             file anew, from its beginning",
        )
    }

    /// Looks what became of doubts, and tells which are over.
    ///
    /// # Errors
    /// `Corrupt`, naming the file, if one of them was right to have.
    fn proved(&self, work: &Work<'_>, doubts: &Doubts, must: bool) -> Result<Vec<Unproved>> {
        let mut right = Vec::new();
        for (what, _) in doubts.iter() {
            match self.proof(work, what, must)? {
                Proof::Right => right.push(*what),
                Proof::Wrong => return Err(self.wrong(work)),
                Proof::Open | Proof::Suspect => {}
            }
        }
        Ok(right)
    }

    /// Whether what was just read at `bytes` may be handed out, of a file that has its copy. Who `must` have right bytes waits until they are
    /// proved. Who comes to the end of the file hears of all that was found wrong, as of the lower itself.
    ///
    /// # Errors
    /// `Corrupt`, naming the file.
    pub fn check_doubts(&self, work: &Work<'_>, bytes: Range<u64>, must: bool) -> Result<()> {
        let doubts = self.doubts(work)?;
        if doubts.is_empty() {
            return Ok(());
        }
        let mut right = self.proved(work, &doubts.within(&blocks_of(&bytes)), must)?;
        if bytes.end >= self.upper_file(work)?.len()? {
            right.extend(self.proved(work, &doubts, false)?);
        }
        // Not worth waiting for whoever changes the file.
        if let Some(_writer) = work.content.writer.try_lock().filter(|_| !right.is_empty()) {
            self.settle_doubts(work, &right)?;
        }
        Ok(())
    }

    /// Forgets what was proved. Hold the writer.
    fn settle_doubts(&self, work: &Work<'_>, right: &[Unproved]) -> Result<()> {
        {
            let mut served = work.content.served.lock();
            right.iter().for_each(|what| served.settle(what));
        }
        let before = self.doubts(work)?;
        let mut after = Doubts::clone(&before);
        right.iter().for_each(|what| after.settle(what));
        self.replace_doubts(work, &before, after)
    }

    /// Writes the attribute by a transaction of its own, which changes nothing that is shown. Hold the writer.
    fn replace_doubts(&self, work: &Work<'_>, before: &Doubts, after: Doubts) -> Result<()> {
        let upper = work.node.upper().ok_or(ErrorKind::Stale)?;
        if *before != after && !self.upper.store.capabilities().read_only {
            self.transact(&mut |tx| {
                let attr = tx.getattr(upper)?;
                put_doubts(tx, upper, before, &after)?;
                tx.setattr(upper, &times_of(&attr)).map(drop)
            })?;
        }
        self.set_doubts(work, after);
        Ok(())
    }

    /// Notes, before `written` blocks are, what is not proved of that which they may hold. Hold the writer; the file has its copy.
    ///
    /// # Errors
    /// `Corrupt` if something of it is known to be wrong; the upper's.
    pub fn note_doubts(&self, work: &Work<'_>, written: &[Range<u64>]) -> Result<()> {
        let mut new = Doubts::default();
        {
            let served = work.content.served.lock();
            if served.is_empty() {
                return Ok(());
            }
            written.iter().for_each(|blocks| new.add_all(&served.within(blocks)));
        }
        let before = self.doubts(work)?;
        if before.holds(&new) {
            return Ok(());
        }
        let right = self.proved(work, &new, false)?;
        right.iter().for_each(|what| new.settle(what));
        let mut after = Doubts::clone(&before);
        after.add_all(&new);
        right.iter().for_each(|what| after.settle(what));
        if after.encode().is_none() {
            // More than there is room for: once and for all.
            let all = self.proved(work, &after, true)?;
            all.iter().for_each(|what| after.settle(what));
        }
        {
            let mut served = work.content.served.lock();
            right.iter().for_each(|what| served.settle(what));
        }
        self.replace_doubts(work, &before, after)
    }

    /// Notes that these blocks hold nothing of the lower any more. Hold the writer.
    pub fn free_of_doubt(&self, work: &Work<'_>, blocks: &Range<u64>) -> Result<()> {
        work.content.served.lock().remove(blocks);
        let before = self.doubts(work)?;
        let mut after = Doubts::clone(&before);
        after.remove(blocks);
        if before.is_empty() { Ok(()) } else { self.replace_doubts(work, &before, after) }
    }

    /// Whether a read of these bytes may wait because of what is doubtful in them; of right ones, if it `must` be known.
    pub fn doubts_may_wait(&self, work: &Work<'_>, bytes: Range<u64>, must: bool) -> Result<bool> {
        let doubts = self.doubts(work)?;
        if doubts.is_empty() {
            return Ok(false);
        }
        let (lower, must) = (self.lower_file(work)?, must || self.reads_verified);
        Ok(doubts.within(&blocks_of(&bytes)).iter().any(|(&Unproved { offset, len, .. }, _)| {
            lower.may_wait(if must { FileCall::ReadVerified { offset, len } } else { FileCall::Read { offset, len } })
        }))
    }

    /// Whether something of a file is known to be wrong, or is suspected. Waits for no network.
    pub fn is_doubtful(&self, work: &Work<'_>) -> Result<bool> {
        for (what, _) in self.doubts(work)?.iter() {
            if matches!(self.lower_file(work)?.prove(what, false)?, Proof::Wrong | Proof::Suspect) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
