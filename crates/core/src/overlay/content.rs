//! The content of a file, of which each block of 4 KiB is in the one layer or the other.
//!
//! A block is the upper's if that has data in it; else zeros where the extent says so; else the lower's as far as its
//! content is valid. Whoever changes a file holds its writer; readers hold nothing, and find what was there before the change
//! or after it. A block that is written in part is completed from the lower first. A file of at most one block is copied
//! whole at its first change, and after that nothing of it is the lower's.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::doubts::Doubts;
use super::map::{Bits, Class, Map, WINDOW, get_bit, set_bits};
use super::node::Node;
use super::proof::{Trust, put_doubts};
use super::record::{Extent, Own};
use super::{BLOCK, Shared};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::{FileCall, StoreFile};
use crate::types::{Access, AllocateMode, Attr, Ino, SetAttr, SetTime, XattrSet};

/// A way to write to a file of the upper: as a program does, or as the kernel.
pub type WriteBy = fn(&dyn StoreFile, &[(u64, &[u8])]) -> Result<()>;

/// What is known of where a file's content is.
enum Loaded {
    NotYet,
    /// All of it in the upper.
    Upper,
    Both(Map),
}

/// What all who have a file open share.
pub(super) struct Content {
    /// Held by who changes it.
    pub writer: Mutex<()>,
    /// Who has it open to write. As long as there is one, all that is read of the lower is verified, or noted: the kernel reads the pages
    /// of which a program changes a part, whoever asked for them, and hands them back whole.
    pub writers: AtomicU64,
    /// What was noted so.
    pub served: Mutex<Doubts>,
    /// What the upper has of it; `None` before somebody asks.
    pub doubts: RwLock<Option<Arc<Doubts>>>,
    lower: OnceLock<Arc<dyn StoreFile>>,
    upper: OnceLock<Arc<dyn StoreFile>>,
    loaded: RwLock<Loaded>,
}

impl Content {
    fn new() -> Content {
        Content {
            writer: Mutex::new(()),
            writers: AtomicU64::new(0),
            served: Mutex::default(),
            doubts: RwLock::default(),
            lower: OnceLock::new(),
            upper: OnceLock::new(),
            loaded: RwLock::new(Loaded::NotYet),
        }
    }

    /// Of a file that was made in the upper just now.
    pub fn of_new(file: Arc<dyn StoreFile>) -> Content {
        let content = Content::new();
        drop(content.upper.set(file));
        *content.loaded.write() = Loaded::Upper;
        content
    }

    fn begin(&self) {
        if let Loaded::Both(map) = &mut *self.loaded.write() {
            map.begin();
        }
    }

    fn end(&self, written: Option<&[Range<u64>]>) {
        if let Loaded::Both(map) = &mut *self.loaded.write() {
            map.end(written);
        }
    }
}

/// What is being done to content whose place is known.
pub(super) struct Work<'w> {
    pub node: &'w Arc<Node>,
    pub content: &'w Content,
}

/// The blocks that have something of these bytes.
pub(super) fn blocks_of(offset: u64, len: usize) -> Range<u64> {
    offset / BLOCK..(offset + len as u64).div_ceil(BLOCK)
}

/// All times of a file, to be set again.
pub(super) fn times_of(attr: &Attr) -> SetAttr {
    let (atime, mtime) = (Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)));
    SetAttr { atime, mtime, ctime: Some(attr.ctime), ..SetAttr::default() }
}

impl Shared {
    /// What those who use the content of `node` share.
    pub fn content(&self, node: &Node) -> Arc<Content> {
        let mut slot = node.content.lock();
        slot.upgrade().unwrap_or_else(|| {
            let content = Arc::new(Content::new());
            *slot = Arc::downgrade(&content);
            content
        })
    }

    /// The file in the lower; that it is still the same is checked when it is opened first.
    pub fn lower_file<'c>(&self, work: &Work<'c>) -> Result<&'c Arc<dyn StoreFile>> {
        if let Some(file) = work.content.lower.get() {
            return Ok(file);
        }
        let below = self.below(work.node)?;
        let opened = self.lower.store.open(below.held.ino, Access::Read);
        let file = opened.map_err(|e| self.of_below(work.node, e))?;
        self.check_below(work.node)?;
        Ok(work.content.lower.get_or_init(|| file))
    }

    pub fn upper_file<'c>(&self, work: &Work<'c>) -> Result<&'c Arc<dyn StoreFile>> {
        if let Some(file) = work.content.upper.get() {
            return Ok(file);
        }
        let upper = work.node.upper().ok_or(ErrorKind::Stale)?;
        // Once for all who have it open; of an upper that is read-only nobody can write.
        let access = if self.upper.store.capabilities().read_only { Access::Read } else { Access::Write };
        let file = self.upper.store.open(upper, access)?;
        Ok(work.content.upper.get_or_init(|| file))
    }

    /// How much of the content of a file that has a copy is the lower's; `None` if nothing is.
    pub fn extent(&self, work: &Work<'_>) -> Result<Option<Extent>> {
        match &*work.content.loaded.read() {
            Loaded::Upper => return Ok(None),
            Loaded::Both(map) => return Ok(Some(map.extent.clone())),
            Loaded::NotYet => {}
        }
        let upper = work.node.upper().ok_or(ErrorKind::Stale)?;
        // Held meanwhile: who changes the record notes it here afterwards.
        let mut loaded = work.content.loaded.write();
        if let Loaded::NotYet = &*loaded {
            let subject = || format!("inode {} of the upper layer", upper.0);
            *loaded = match self.own_xattr(upper, Own::Content)? {
                None => Loaded::Upper,
                Some(value) => Loaded::Both(Map::new(Extent::decode(&value, &subject())?)),
            };
        }
        match &*loaded {
            Loaded::Both(map) => Ok(Some(map.extent.clone())),
            _ => Ok(None),
        }
    }

    /// Notes that a transaction changed the extent, and maybe blocks.
    pub fn set_extent(&self, work: &Work<'_>, extent: Option<Extent>) {
        work.node.state().valid = extent.as_ref().map_or(0, |extent| extent.valid);
        let mut loaded = work.content.loaded.write();
        match (&mut *loaded, extent) {
            (Loaded::Both(map), Some(extent)) => {
                map.extent = extent;
                map.end(None);
            }
            (loaded, Some(extent)) => *loaded = Loaded::Both(Map::new(extent)),
            (loaded, None) => *loaded = Loaded::Upper,
        }
    }

    /// In which blocks of a window the upper has data.
    fn window(&self, work: &Work<'_>, index: u64) -> Result<Bits> {
        let epoch = match &*work.content.loaded.read() {
            Loaded::Both(map) => match map.window(index) {
                Some(bits) => return Ok(bits),
                None => map.epoch(),
            },
            _ => 0,
        };
        let upper = self.upper_file(work)?;
        let (mut at, end) = (index * WINDOW * BLOCK, (index + 1) * WINDOW * BLOCK);
        let mut bits = Bits::default();
        while at < end {
            let data = match upper.seek_data(at) {
                Ok(data) => data.max(at),
                Err(e) if e.kind() == ErrorKind::NoData => break,
                Err(e) => return Err(e),
            };
            if data >= end {
                break;
            }
            let hole = match upper.seek_hole(data) {
                Ok(hole) => hole.min(end),
                // It was cut meanwhile.
                Err(e) if e.kind() == ErrorKind::NoData => break,
                Err(e) => return Err(e),
            };
            set_bits(&mut bits, index, &(data / BLOCK..hole.div_ceil(BLOCK)));
            at = hole.max(data + 1);
        }
        if let Loaded::Both(map) = &mut *work.content.loaded.write() {
            map.learn(epoch, index, bits);
        }
        Ok(bits)
    }

    /// Where a block is.
    pub fn class(&self, work: &Work<'_>, extent: &Extent, block: u64) -> Result<Class> {
        let asked = extent.valid > BLOCK && block < extent.valid.div_ceil(BLOCK);
        let in_upper = asked && get_bit(&self.window(work, block / WINDOW)?, block % WINDOW);
        Ok(Map::class(extent, block, in_upper))
    }

    /// Where the bytes of a range are, in pieces as long as can be.
    fn pieces(&self, work: &Work<'_>, extent: &Extent, range: Range<u64>) -> Result<Vec<(Class, Range<u64>)>> {
        let mut pieces: Vec<(Class, Range<u64>)> = Vec::new();
        let mut add = |class, range: Range<u64>| match pieces.last_mut() {
            Some((last, before)) if *last == class => before.end = range.end,
            _ => pieces.push((class, range)),
        };
        let (mut at, mut window) = (range.start, None);
        while at < range.end {
            let block = at / BLOCK;
            if block >= extent.valid.div_ceil(BLOCK) {
                add(Class::Upper, at..range.end);
                break;
            }
            let bits = match window {
                Some((index, bits)) if index == block / WINDOW => bits,
                _ if extent.valid <= BLOCK => Bits::default(),
                _ => self.window(work, block / WINDOW)?,
            };
            window = Some((block / WINDOW, bits));
            let end = ((block + 1) * BLOCK).min(range.end);
            add(Map::class(extent, block, get_bit(&bits, block % WINDOW)), at..end);
            at = end;
        }
        Ok(pieces)
    }

    fn read_lower(&self, work: &Work<'_>, offset: u64, buf: &mut [u8], trust: Trust) -> Result<usize> {
        match trust {
            Trust::None => self.lower_file(work)?.read_at(offset, buf),
            Trust::Noted => self.read_noted(work, offset, buf),
            Trust::Verified => self.lower_file(work)?.read_verified_at(offset, buf),
        }
    }

    /// Reads what is the lower's: verified, zeros behind what is valid of it. To be written to the upper, where nothing tells any more
    /// what is the lower's.
    pub fn fetch(&self, work: &Work<'_>, extent: &Extent, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.fetch_by(work, extent, offset, buf, Trust::Verified)
    }

    /// The same of a block that is to be written in part, noted.
    pub fn fetch_edge(&self, work: &Work<'_>, extent: &Extent, block: u64, buf: &mut [u8]) -> Result<()> {
        self.fetch_by(work, extent, block * BLOCK, buf, Trust::Noted)
    }

    fn fetch_by(&self, work: &Work<'_>, extent: &Extent, offset: u64, buf: &mut [u8], trust: Trust) -> Result<()> {
        let valid = extent.valid.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (from_lower, behind) = buf.split_at_mut(valid);
        behind.fill(0);
        if from_lower.is_empty() {
            return Ok(());
        }
        let len = self.read_lower(work, offset, from_lower, trust)?;
        if self.lower_changes || len < from_lower.len() {
            // After it was read: what came was there before.
            self.check_below(work.node)?;
        }
        if len < from_lower.len() {
            let path = self.path_of(work.node).unwrap_or_default();
            return Err(FsError::new(ErrorKind::Stale)
                .on("read", path)
                .because("the file below is shorter than it was"));
        }
        self.counters.blocks_fetched.fetch_add(len.div_ceil(BLOCK as usize) as u64, Relaxed);
        Ok(())
    }

    /// What is to be known of what is read of the lower, where nobody says: whether somebody writes to the file, or it is asked of all.
    pub fn trust(&self, work: &Work<'_>) -> Trust {
        match self.reads_verified {
            true => Trust::Verified,
            false if work.content.writers.load(SeqCst) > 0 => Trust::Noted,
            false => Trust::None,
        }
    }

    /// Reads.
    pub fn read(&self, work: &Work<'_>, offset: u64, buf: &mut [u8], trust: Trust) -> Result<usize> {
        if work.node.upper().is_none() {
            let len = self.read_lower(work, offset, buf, trust)?;
            self.check_shared(work.node)?;
            return Ok(len);
        }
        let len = self.read_layers(work, offset, buf, trust)?;
        // After it was read: what is doubtful was noted before it was written.
        self.check_doubts(work, offset..offset + len as u64, trust == Trust::Verified)?;
        Ok(len)
    }

    fn read_layers(&self, work: &Work<'_>, offset: u64, buf: &mut [u8], trust: Trust) -> Result<usize> {
        let upper = self.upper_file(work)?;
        let Some(extent) = self.extent(work)?.filter(|extent| offset < extent.valid.next_multiple_of(BLOCK)) else {
            return upper.read_at(offset, buf);
        };
        let len = upper.len()?.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        for (class, range) in self.pieces(work, &extent, offset..offset + len as u64)? {
            let part = &mut buf[(range.start - offset) as usize..(range.end - offset) as usize];
            match class {
                Class::Zero => part.fill(0),
                Class::Lower => self.fetch_by(work, &extent, range.start, part, trust)?,
                Class::Upper => {
                    let read = upper.read_at(range.start, part)?;
                    // Cut meanwhile.
                    part[read..].fill(0);
                }
            }
        }
        Ok(len)
    }

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
        let mut attr = None;
        let before = self.doubts(work)?;
        let mut doubts = Doubts::clone(&before);
        doubts.truncate(valid.div_ceil(BLOCK));
        if valid <= BLOCK {
            let mut bytes = Vec::new();
            if self.class(work, extent, 0)? == Class::Lower {
                bytes.resize(valid as usize, 0);
                self.fetch(work, extent, 0, &mut bytes)?;
            }
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
        let of_block = |block: u64| of_block_by(block, &verified);
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
            FileCall::Write { .. } | FileCall::Allocate { .. } if is_small => of_block(0),
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
                    of_block(0)
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
