//! Which calls on content may wait for the lower, where that comes over a network.

use std::ops::Range;

use super::super::map::Class;
use super::super::proof::Trust;
use super::super::record::Extent;
use super::super::{BLOCK, Shared};
use super::Work;
use crate::error::Result;
use crate::store::FileCall;
use crate::types::AllocateMode;

impl Shared {
    /// See [`StoreFile::may_wait`].
    pub fn may_wait(&self, work: &Work<'_>, call: FileCall) -> Result<bool> {
        if !self.lower.store.capabilities().remote {
            return Ok(self.upper.store.capabilities().remote);
        }
        let extent = match work.node.upper() {
            Some(_) => self.extent(work)?,
            None => Some(Extent { valid: self.lower_file(work)?.len()?, ..Extent::default() }),
        };
        // Whoever changes it may be waiting.
        let is_read =
            matches!(call, FileCall::Read { .. } | FileCall::ReadVerified { .. } | FileCall::ReadToKeep { .. });
        if !is_read && work.content.writer.is_locked() {
            return Ok(true);
        }
        if let FileCall::Read { offset, len }
        | FileCall::ReadVerified { offset, len }
        | FileCall::ReadToKeep { offset, len } = call
            && self.doubts_may_wait(
                work,
                offset..offset.saturating_add(len),
                matches!(call, FileCall::ReadVerified { .. }),
            )?
        {
            return Ok(true);
        }
        let Some(extent) = extent else { return Ok(false) };
        let to_keep = |range: Range<u64>| FileCall::ReadToKeep { offset: range.start, len: range.end - range.start };
        let verified = |range: Range<u64>| FileCall::ReadVerified { offset: range.start, len: range.end - range.start };
        // What is copied up of a block: by itself, or because it is changed in part.
        let of_block_by = |block: u64, read: &dyn Fn(Range<u64>) -> FileCall| {
            let bytes = block * BLOCK..((block + 1) * BLOCK).min(extent.valid);
            match !bytes.is_empty() && self.is_lower(work, &extent, block)? {
                true => Ok(self.lower_file(work)?.may_wait(read(bytes))),
                false => Ok(false),
            }
        };
        let of_edges = |range: Range<u64>| -> Result<bool> {
            let edges = [range.start, range.end].into_iter().filter(|at| at % BLOCK != 0);
            edges.map(|at| of_block_by(at / BLOCK, &to_keep)).try_fold(false, |any, one| Ok(any | one?))
        };
        let is_small = extent.valid <= BLOCK;
        match call {
            FileCall::Read { offset, len }
            | FileCall::ReadVerified { offset, len }
            | FileCall::ReadToKeep { offset, len } => {
                let read = |range: Range<u64>| match (call, self.trust(work)) {
                    (FileCall::ReadVerified { .. }, _) | (_, Trust::Verified) => verified(range),
                    (FileCall::ReadToKeep { .. }, _) | (_, Trust::Noted) => to_keep(range),
                    _ => FileCall::Read { offset: range.start, len: range.end - range.start },
                };
                let range = offset..offset.saturating_add(len).min(extent.valid);
                if range.is_empty() {
                    return Ok(false);
                }
                let pieces = match work.node.upper() {
                    Some(_) => self.pieces(work, &extent, range)?,
                    None => vec![(Class::Lower, range)],
                };
                let lower = self.lower_file(work)?;
                let mut of_lower = pieces.into_iter().filter(|(class, _)| *class == Class::Lower);
                Ok(of_lower.any(|(_, range)| lower.may_wait(read(range))))
            }
            // Copied whole.
            FileCall::Write { .. } | FileCall::Allocate { .. } if is_small => of_block_by(0, &verified),
            FileCall::Write { offset, len } => {
                let end = offset.saturating_add(len);
                let file_end = match work.node.upper() {
                    Some(_) => self.upper_file(work)?.len()?.max(extent.valid),
                    None => extent.valid,
                };
                // What is behind the end of the file need not be kept; see `split`.
                let end = if end >= file_end { end.next_multiple_of(BLOCK) } else { end };
                of_edges(offset..end)
            }
            FileCall::SetLen { len: 0 } => Ok(false),
            FileCall::SetLen { len } => {
                if is_small || len <= BLOCK {
                    of_block_by(0, &to_keep)
                } else {
                    Ok(false)
                }
            }
            FileCall::Allocate { mode: AllocateMode::Extend | AllocateMode::KeepSize, .. } => Ok(false),
            FileCall::Allocate { offset, len, .. } => of_edges(offset..offset.saturating_add(len)),
        }
    }

    /// Whether a block is the lower's, also of a file without a copy.
    fn is_lower(&self, work: &Work<'_>, extent: &Extent, block: u64) -> Result<bool> {
        Ok(work.node.upper().is_none() || self.class(work, extent, block)? == Class::Lower)
    }

    /// See [`StoreFile::voids_pages`], of one that is open to write.
    pub fn voids_pages(&self, work: &Work<'_>) -> Result<bool> {
        Ok(self.lower.store.capabilities().remote && (work.node.upper().is_none() || self.extent(work)?.is_some()))
    }
}
