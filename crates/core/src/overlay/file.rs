//! An open file of an overlay.
//!
//! It follows its inode: what was opened before the file was copied up sees what is written after.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::content::{Content, Work, blocks_of, times_of};
use super::map::Class;
use super::node::Node;
use super::proof::Trust;
use super::record::{Extent, Own};
use super::{BLOCK, Shared};
use crate::error::{ErrorKind, Result};
use crate::store::{FileCall, StoreFile};
use crate::transaction::Transaction;
use crate::types::{Access, AllocateMode, Ino, Kind, SetAttr, XattrSet};

/// Ranges of zeros that are noted of a file; what comes then is written.
const ZEROS_MAX: usize = 256;

/// Zeros that one transaction writes, in bytes.
const ZEROS_AT_ONCE: usize = 1 << 20;

/// What becomes of the times of a file that is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Times {
    /// They are those of the change.
    Now,
    /// They stay: the kernel keeps them, and sets them itself.
    Kept,
}

impl Times {
    /// Hands it to a file of the upper.
    fn allocate(self, file: &dyn StoreFile, range: &Range<u64>, mode: AllocateMode) -> Result<()> {
        let len = range.end - range.start;
        match self {
            Times::Now => file.allocate(range.start, len, mode),
            Times::Kept => file.allocate_keeping_times(range.start, len, mode),
        }
    }
}

/// See the module's notes.
struct OverlayFile {
    shared: Arc<Shared>,
    /// `None` when it is being closed.
    open: Option<(Arc<Node>, Arc<Content>)>,
    access: Access,
}

impl Drop for OverlayFile {
    fn drop(&mut self) {
        if let Some((node, content)) = self.open.take() {
            if self.access == Access::Write {
                content.writers.fetch_sub(1, SeqCst);
            }
            // The layers' files go before their inodes are forgotten.
            drop(content);
            drop(node);
        }
        self.shared.settle();
    }
}

impl Shared {
    pub fn open(self: &Arc<Self>, node: &Arc<Node>, access: Access) -> Result<Arc<dyn StoreFile>> {
        match node.kind {
            Kind::File => {}
            Kind::Directory => return Err(ErrorKind::IsDirectory.into()),
            _ => return Err(ErrorKind::InvalidInput.into()),
        }
        let content = self.content(node);
        let work = Work { node, content: &content };
        // What is needed from below is there, and what it was.
        if node.upper().is_none() || self.extent(&work)?.is_some() {
            self.lower_file(&work)?;
            self.check_shared(node)?;
        }
        Ok(self.file(node, content, access))
    }

    /// A file that was made in the upper just now, and is open there.
    pub fn opened_new(self: &Arc<Self>, node: &Arc<Node>, file: Arc<dyn StoreFile>) -> Arc<dyn StoreFile> {
        let content = Arc::new(Content::of_new(file));
        *node.content.lock() = Arc::downgrade(&content);
        self.file(node, content, Access::Write)
    }

    fn file(self: &Arc<Self>, node: &Arc<Node>, content: Arc<Content>, access: Access) -> Arc<dyn StoreFile> {
        if access == Access::Write {
            content.writers.fetch_add(1, SeqCst);
        }
        Arc::new(OverlayFile { shared: self.clone(), open: Some((node.clone(), content)), access })
    }

    fn allocate(&self, work: &Work<'_>, range: Range<u64>, mode: AllocateMode, times: Times) -> Result<()> {
        let _writer = work.content.writer.lock();
        let extent = self.writable(work)?;
        let upper = self.upper_file(work)?;
        let at_once = |file: &dyn StoreFile| times.allocate(file, &range, mode);
        let Some(extent) = extent else { return at_once(&**upper) };
        self.check_shared(work.node)?;
        let len = upper.len()?;
        let new_len = match mode {
            AllocateMode::Extend | AllocateMode::KeepSize => return at_once(&**upper),
            AllocateMode::PunchHole | AllocateMode::Zero { keep_size: true } => len,
            AllocateMode::Zero { keep_size: false } => len.max(range.end),
        };
        let zeroed = range.start..range.end.min(len);
        if zeroed.start >= zeroed.end.min(extent.valid.next_multiple_of(BLOCK)) {
            return at_once(&**upper);
        }
        self.zero(work, &extent, zeroed, (len, new_len), times)
    }

    /// Makes zeros of a range within a file of which something is the lower's. Long ranges of what was written above take
    /// several transactions, of which each leaves zeros or what was there.
    fn zero(
        &self,
        work: &Work<'_>,
        extent: &Extent,
        range: Range<u64>,
        (len, new_len): (u64, u64),
        times: Times,
    ) -> Result<()> {
        let upper = work.node.upper().ok_or(ErrorKind::Stale)?;
        // What is behind the end is zeros already: the last block goes whole.
        let end = if range.end == len { range.end.next_multiple_of(BLOCK) } else { range.end };
        let whole = range.start.div_ceil(BLOCK)..end / BLOCK;
        let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
        let edges = [range.start / BLOCK, end / BLOCK];
        for (i, block) in edges.into_iter().enumerate() {
            let part = range.start.max(block * BLOCK)..end.min((block + 1) * BLOCK);
            if part.is_empty() || whole.contains(&block) || i == 1 && edges[0] == block {
                continue;
            }
            match self.class(work, extent, block)? {
                Class::Zero => {}
                Class::Upper => writes.push((part.start, vec![0; (part.end - part.start) as usize])),
                Class::Lower => {
                    let mut bytes = vec![0; (len - block * BLOCK).min(BLOCK) as usize];
                    self.fetch_edge(work, extent, block, &mut bytes)?;
                    let from = (part.start - block * BLOCK) as usize;
                    let to = bytes.len().min((part.end - block * BLOCK) as usize);
                    bytes[from..to].fill(0);
                    writes.push((block * BLOCK, bytes));
                }
            }
        }
        let mut left = extent.clone();
        left.zeros.insert(whole.start..whole.end.min(extent.valid.div_ceil(BLOCK)).max(whole.start));
        let noted = left.zeros.len() <= ZEROS_MAX;
        if !noted {
            left = extent.clone();
        }
        let written: Vec<Range<u64>> = writes.iter().map(|(at, bytes)| blocks_of(*at, bytes.len())).collect();
        self.note_doubts(work, &written)?;
        self.zeros_to_write(work, extent, (&whole, len), !noted, &mut writes)?;
        self.write_zeros(work, upper, writes, times, |tx| {
            if left != *extent {
                tx.set_xattr(upper, Own::Content.name(), &left.encode(), XattrSet::Replace)?;
            }
            // The time of the change, too.
            tx.setattr(upper, &SetAttr { size: Some(new_len), ..SetAttr::default() }).map(drop)
        })?;
        self.set_extent(work, Some(left));
        if noted && !whole.is_empty() {
            // Zeros either way: it gives the space back.
            let bytes = whole.start * BLOCK..whole.end * BLOCK;
            times.allocate(&**self.upper_file(work)?, &bytes, AllocateMode::PunchHole)?;
            self.set_extent(work, self.extent(work)?);
        }
        self.free_of_doubt(work, &whole)
    }

    /// Adds the blocks of `whole` that have to be written as zeros: those with data above, and, if `all`, those that are the
    /// lower's.
    fn zeros_to_write(
        &self,
        work: &Work<'_>,
        extent: &Extent,
        (whole, len): (&Range<u64>, u64),
        all: bool,
        writes: &mut Vec<(u64, Vec<u8>)>,
    ) -> Result<()> {
        let upper = self.upper_file(work)?;
        let mut add = |from: u64, to: u64| {
            let mut at = from;
            while at < to {
                let part = (to - at).min(ZEROS_AT_ONCE as u64);
                writes.push((at, vec![0; part as usize]));
                at += part;
            }
        };
        let end = (whole.end * BLOCK).min(len);
        let mut at = whole.start * BLOCK;
        while at < end {
            let data = match upper.seek_data(at) {
                Ok(data) => data.min(end),
                Err(e) if e.kind() == ErrorKind::NoData => end,
                Err(e) => return Err(e),
            };
            if all {
                let lower = at..data.min(extent.valid.next_multiple_of(BLOCK).max(at));
                let lower = lower.start..lower.end.min(len).max(lower.start);
                add(lower.start, lower.end);
            }
            if data >= end {
                break;
            }
            let hole = upper.seek_hole(data)?.min(end);
            add(data, hole);
            at = hole.max(data + 1);
        }
        Ok(())
    }

    /// Writes, the last of it in one transaction with `last`.
    fn write_zeros(
        &self,
        work: &Work<'_>,
        upper: Ino,
        mut writes: Vec<(u64, Vec<u8>)>,
        times: Times,
        last: impl Fn(&mut dyn Transaction) -> Result<()>,
    ) -> Result<()> {
        loop {
            let mut len = 0;
            let count = writes.iter().take_while(|(_, bytes)| {
                len += bytes.len();
                len <= ZEROS_AT_ONCE
            });
            let count = count.count().max(1).min(writes.len());
            let more = writes.split_off(count);
            let done = more.is_empty();
            self.transact(&mut |tx| {
                let before = tx.getattr(upper)?;
                writes.iter().try_for_each(|(at, bytes)| tx.write(upper, *at, bytes))?;
                if done {
                    last(tx)?;
                }
                if times == Times::Kept { tx.setattr(upper, &times_of(&before)).map(drop) } else { Ok(()) }
            })?;
            if done {
                return Ok(());
            }
            let extent = self.extent(work)?;
            self.set_extent(work, extent);
            writes = more;
        }
    }

    fn seek_data(&self, work: &Work<'_>, offset: u64) -> Result<u64> {
        if work.node.upper().is_none() {
            return self.lower_file(work)?.seek_data(offset);
        }
        let upper = self.upper_file(work)?;
        let Some(extent) = self.extent(work)? else { return upper.seek_data(offset) };
        let none = |found: Result<u64>| match found {
            Err(e) if e.kind() == ErrorKind::NoData => Ok(u64::MAX),
            found => found,
        };
        let len = upper.len()?;
        let mut at = offset;
        loop {
            if at >= len {
                return Err(ErrorKind::NoData.into());
            }
            // Of a small file nothing is above, whatever that says.
            let above = if extent.valid > BLOCK { none(upper.seek_data(at))? } else { u64::MAX };
            let below = if at < extent.valid { none(self.lower_file(work)?.seek_data(at))? } else { u64::MAX };
            let next = above.min(if below < extent.valid { below } else { u64::MAX }).max(at);
            match extent.zeros.containing(next / BLOCK) {
                _ if next >= len => return Err(ErrorKind::NoData.into()),
                _ if next == above => return Ok(next),
                Some(zeros) => at = above.min(zeros.end * BLOCK),
                None => return Ok(next),
            }
        }
    }

    fn seek_hole(&self, work: &Work<'_>, offset: u64) -> Result<u64> {
        if work.node.upper().is_none() {
            return self.lower_file(work)?.seek_hole(offset);
        }
        let upper = self.upper_file(work)?;
        let Some(extent) = self.extent(work)? else { return upper.seek_hole(offset) };
        let len = upper.len()?;
        if offset >= len {
            return Err(ErrorKind::NoData.into());
        }
        let mut at = offset;
        while at < len {
            let block = at / BLOCK;
            match self.class(work, &extent, block)? {
                Class::Zero => return Ok(at),
                Class::Upper => {
                    let hole = upper.seek_hole(at)?;
                    if hole == at && block >= extent.valid.div_ceil(BLOCK) {
                        return Ok(at);
                    }
                    at = hole.max(at + 1);
                    if block >= extent.valid.div_ceil(BLOCK) {
                        break;
                    }
                }
                Class::Lower if at >= extent.valid => return Ok(at),
                Class::Lower => {
                    // To the end of the block: the next one may be elsewhere.
                    let end = ((block + 1) * BLOCK).min(extent.valid);
                    let hole = self.lower_file(work)?.seek_hole(at)?;
                    if hole < end {
                        return Ok(hole);
                    }
                    at = end;
                }
            }
        }
        Ok(at.min(len))
    }
}

impl OverlayFile {
    fn with<R>(&self, act: impl FnOnce(&Arc<Shared>, &Work<'_>) -> Result<R>) -> Result<R> {
        let (node, content) = self.open.as_ref().ok_or(ErrorKind::Stale)?;
        act(&self.shared, &Work { node, content })
    }
}

impl StoreFile for OverlayFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(|shared, work| shared.read(work, offset, buf, shared.trust(work)))
    }

    fn read_verified_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.with(|shared, work| shared.read(work, offset, buf, Trust::Verified))
    }

    fn may_wait(&self, call: FileCall) -> bool {
        // What fails now is told by the call itself.
        self.with(|shared, work| shared.may_wait(work, call)).unwrap_or(true)
    }

    fn voids_pages(&self) -> bool {
        // If that cannot be told, they are no good.
        self.access == Access::Write && self.with(|shared, work| shared.voids_pages(work)).unwrap_or(true)
    }

    fn write_at(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.with(|shared, work| shared.write(work, pieces, |file, pieces| file.write_at(pieces)))
    }

    fn write_keeping_times(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.with(|shared, work| shared.write(work, pieces, |file, pieces| file.write_keeping_times(pieces)))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.with(|shared, work| shared.set_len(work, len, &SetAttr::default()).map(drop))
    }

    fn len(&self) -> Result<u64> {
        self.with(|shared, work| match work.node.upper() {
            Some(_) => shared.upper_file(work)?.len(),
            None => shared.lower_file(work)?.len(),
        })
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.with(|shared, work| match work.node.upper() {
            Some(_) => shared.upper_file(work)?.sync(data_only),
            None if data_only => Ok(()),
            // The names that lead here may be the upper's.
            None => shared.upper.store.sync_all(),
        })
    }

    fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok()).ok_or(ErrorKind::FileTooLarge)?;
        self.with(|shared, work| shared.allocate(work, offset..end, mode, Times::Now))
    }

    fn allocate_keeping_times(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok()).ok_or(ErrorKind::FileTooLarge)?;
        self.with(|shared, work| shared.allocate(work, offset..end, mode, Times::Kept))
    }

    fn seek_data(&self, offset: u64) -> Result<u64> {
        self.with(|shared, work| shared.seek_data(work, offset))
    }

    fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.with(|shared, work| shared.seek_hole(work, offset))
    }
}
