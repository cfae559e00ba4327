//! The content of a file, of which each block of 4 KiB is in the one layer or the other.
//!
//! A block is the upper's if that has data in it; else zeros where the extent says so; else the lower's as far as its
//! content is valid. Whoever changes a file holds its writer; readers hold nothing, and find what was there before the change
//! or after it. A block that is written in part is completed from the lower first. A file of at most one block is copied
//! whole at its first change, and after that nothing of it is the lower's.

mod change;
mod waits;

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::doubts::Doubts;
use super::map::{Bits, Class, Map, WINDOW, get_bit, set_bits};
use super::node::Node;
use super::proof::Trust;
use super::record::{Extent, Own};
use super::{BLOCK, Shared};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::StoreFile;
use crate::types::{Access, Attr, SetAttr, SetTime};

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
        work.node.state().below_len = extent.as_ref().map_or(0, Extent::len);
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

    /// The same of a block that is to be written in part, or of what is left of the first one, noted.
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
}
