//! Changes of content: what a write needs of the lower is completed first, and what is cut off is never the lower's again.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::doubts::Doubts;
use super::super::map::Class;
use super::super::proof::put_doubts;
use super::super::record::{Extent, Own};
use super::super::{BLOCK, Shared};
use super::{Work, blocks_of, times_of};
use crate::error::{ErrorKind, Result};
use crate::store::StoreFile;
use crate::types::{Attr, Ino, SetAttr, XattrSet};

/// A way to write to a file of the upper: as a program does, or as the kernel.
pub type WriteBy = fn(&dyn StoreFile, &[(u64, &[u8])]) -> Result<()>;

impl Shared {
    /// Makes the copy of a file whose content is about to change. Small ones are copied whole. What is still the lower's
    /// then. Hold the writer.
    pub fn writable(&self, work: &Work<'_>) -> Result<Option<Extent>> {
        if work.node.upper().is_none() {
            self.change(work.node, &mut |_, _| Ok(()))?;
        }
        let Some(extent) = self.extent(work)? else { return Ok(None) };
        if extent.valid > BLOCK {
            return Ok(Some(extent));
        }
        let mut bytes = vec![0; extent.valid as usize];
        self.fetch(work, &extent, 0, &mut bytes)?;
        let upper = work.node.upper().ok_or(ErrorKind::Stale)?;
        self.transact(&mut |tx| {
            let attr = tx.getattr(upper)?;
            tx.write(upper, 0, &bytes)?;
            tx.setattr(upper, &times_of(&attr))?;
            tx.remove_xattr(upper, Own::Content.name())
        })?;
        self.set_extent(work, None);
        Ok(None)
    }

    /// Writes by `write`, one of the ways in which the upper's file can be written.
    pub fn write(&self, work: &Work<'_>, pieces: &[(u64, &[u8])], write: WriteBy) -> Result<()> {
        let end = |&(at, bytes): &(u64, &[u8])| at.checked_add(bytes.len() as u64);
        if pieces.iter().any(|piece| end(piece).is_none_or(|end| i64::try_from(end).is_err())) {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let _writer = work.content.writer.lock();
        let extent = self.writable(work)?;
        let upper = self.upper_file(work)?;
        let blocks_of = |(at, bytes): &(u64, &[u8])| blocks_of(*at, bytes.len());
        let Some(extent) = extent else {
            let written: Vec<Range<u64>> = pieces.iter().map(blocks_of).collect();
            self.note_doubts(work, &written)?;
            return write(&**upper, pieces);
        };
        // Whole blocks need nothing of the lower, but the rest of the file would be lost to whoever writes them.
        self.check_shared(work.node)?;
        let mut edges = BTreeMap::new();
        let mut whole: Vec<(u64, &[u8])> = Vec::new();
        let len = upper.len()?;
        for &(at, bytes) in pieces {
            // Of several pieces, another one may need what the block has.
            let covers_to = (pieces.len() == 1).then(|| len.max(extent.valid));
            self.split(work, &extent, len, covers_to, (at, bytes), &mut whole, &mut edges)?;
        }
        whole.extend(edges.iter().map(|(block, (bytes, used))| (block * BLOCK, &bytes[..*used])));
        whole.sort_unstable_by_key(|(at, _)| *at);
        let written: Vec<Range<u64>> = whole.iter().map(blocks_of).collect();
        self.note_doubts(work, &written)?;
        work.content.begin();
        let done = write(&**upper, &whole);
        work.content.end(done.is_ok().then_some(&written));
        done
    }

    /// Sorts a piece that is to be written into what goes as it is, and what is to be completed from the lower: blocks, and
    /// how much of each is written. Behind `covers_to` there is nothing that has to be kept.
    #[allow(clippy::too_many_arguments, reason = "each of another kind")]
    fn split<'p>(
        &self,
        work: &Work<'_>,
        extent: &Extent,
        len: u64,
        covers_to: Option<u64>,
        (mut at, mut bytes): (u64, &'p [u8]),
        whole: &mut Vec<(u64, &'p [u8])>,
        edges: &mut BTreeMap<u64, (Vec<u8>, usize)>,
    ) -> Result<()> {
        while !bytes.is_empty() {
            let (block, from) = (at / BLOCK, (at % BLOCK) as usize);
            let blocks = bytes.len() / BLOCK as usize;
            let partly = from > 0 || blocks == 0;
            let taken = if partly { bytes.len().min(BLOCK as usize - from) } else { blocks * BLOCK as usize };
            let (part, rest) = bytes.split_at(taken);
            // If all is written that the block has, nothing of it is needed: so it is with the last one of a file.
            let covers = from == 0 && covers_to.is_some_and(|end| at + taken as u64 >= end);
            if partly && !covers && self.class(work, extent, block)? == Class::Lower {
                let (edge, used) = match edges.entry(block) {
                    std::collections::btree_map::Entry::Occupied(edge) => edge.into_mut(),
                    std::collections::btree_map::Entry::Vacant(slot) => {
                        let mut edge = vec![0; BLOCK as usize];
                        self.fetch_edge(work, extent, block, &mut edge)?;
                        slot.insert((edge, len.saturating_sub(block * BLOCK).min(BLOCK) as usize))
                    }
                };
                edge[from..from + taken].copy_from_slice(part);
                *used = (*used).max(from + taken);
            } else {
                whole.push((at, part));
            }
            (at, bytes) = (at + taken as u64, rest);
        }
        Ok(())
    }

    /// Sets the length, and with it what else is in `set`.
    pub fn set_len(&self, work: &Work<'_>, len: u64, set: &SetAttr) -> Result<Attr> {
        if i64::try_from(len).is_err() {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let _writer = work.content.writer.lock();
        if work.node.upper().is_none() {
            self.change(work.node, &mut |_, _| Ok(()))?;
        }
        let set = SetAttr { size: Some(len), ..*set };
        let upper = work.node.upper().ok_or(ErrorKind::Stale)?;
        let Some(extent) = self.extent(work)? else {
            let attr = self.upper.store.setattr(upper, &set)?;
            self.free_of_doubt(work, &(len.div_ceil(BLOCK)..u64::MAX))?;
            return Ok(self.shown(work.node, attr));
        };
        let attr = self.cut(work, upper, &extent, &set, len)?;
        Ok(self.shown(work.node, attr))
    }

    /// Sets the length of a file of which something is the lower's: what is cut off is never the lower's again.
    fn cut(&self, work: &Work<'_>, upper: Ino, extent: &Extent, set: &SetAttr, len: u64) -> Result<Attr> {
        let valid = extent.valid.min(len);
        if valid > 0 {
            self.check_shared(work.node)?;
        }
        let mut bytes = Vec::new();
        if (1..=BLOCK).contains(&valid) && self.class(work, extent, 0)? == Class::Lower {
            // Nothing of so short a file is the lower's any more. It costs no more than a change of that block.
            bytes.resize(valid as usize, 0);
            self.fetch_edge(work, extent, 0, &mut bytes)?;
            self.note_doubts(work, std::slice::from_ref(&(0..1)))?;
        }
        let mut attr = None;
        let before = self.doubts(work)?;
        let mut doubts = Doubts::clone(&before);
        doubts.truncate(valid.div_ceil(BLOCK));
        if valid <= BLOCK {
            self.transact(&mut |tx| {
                if !bytes.is_empty() {
                    tx.write(upper, 0, &bytes)?;
                }
                put_doubts(tx, upper, &before, &doubts)?;
                attr = Some(tx.setattr(upper, set)?);
                tx.remove_xattr(upper, Own::Content.name())
            })?;
            self.set_extent(work, None);
        } else {
            let mut left = Extent { valid, zeros: extent.zeros.clone() };
            left.zeros.truncate(valid.div_ceil(BLOCK));
            self.transact(&mut |tx| {
                put_doubts(tx, upper, &before, &doubts)?;
                attr = Some(tx.setattr(upper, set)?);
                match left == *extent {
                    true => Ok(()),
                    false => tx.set_xattr(upper, Own::Content.name(), &left.encode(), XattrSet::Replace),
                }
            })?;
            self.set_extent(work, Some(left));
        }
        work.content.served.lock().truncate(valid.div_ceil(BLOCK));
        self.set_doubts(work, doubts);
        attr.ok_or_else(|| ErrorKind::Stale.into())
    }
}
