//! Changing content within one batch: which blocks are written, where they come to lie, and which windows change by that.
//!
//! [`Node`](super::content::Node) prepares an [`Edit`] before it takes the numbers, so that nobody else waits for its reads and writes. In
//! a transaction the numbers are held all the time, and content is what the transaction has made of it so far: see
//! [`Change::write`] and [`Change::set_len`]. [`Blocks`] is what both read through.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use adit_core::types::SetAttr;
use adit_core::{ErrorKind, FsError, Result};

use super::change::Change;
use super::content::{Times, first_behind, some_windows};
use super::draft::decode_window;
use super::read::{BLOCK, WINDOW, file, window_in, window_of};
use super::view::View;
use super::{FILE_LEN_MAX_BYTES, Tree};
use crate::format::keys::{self, Id, Key};
use crate::format::records::{Block, INLINE_LEN_MAX_BYTES, Inode, Orphan, Window};
use crate::table::{BLOCK_LEN_BYTES, Run};

/// Windows that a transaction takes away itself when it cuts a file. Where there are more, all of them go after it.
const CUT_AT_ONCE: usize = 16;

/// Content as it is read to be changed.
pub(super) trait Blocks {
    /// What finds blocks and verifies them.
    fn view(&self) -> &View<'_>;

    /// A window of an inode's content; `None` for a hole.
    fn window_at(&self, ino: u64, index: u64) -> Result<Option<Window>>;

    /// One block of content, zeros where there is none.
    fn load_block(&self, ino: u64, inode: &Inode, block: u64) -> Result<[u8; BLOCK_LEN_BYTES]> {
        let mut bytes = [0; BLOCK_LEN_BYTES];
        let offset = block * BLOCK;
        if offset >= inode.size {
            return Ok(bytes);
        }
        if !inode.in_windows {
            // Inline content is shorter than a block.
            bytes[..inode.inline.len().min(BLOCK_LEN_BYTES)].copy_from_slice(&inode.inline);
            return Ok(bytes);
        }
        let (index, at) = window_of(block);
        if let Some(block) = self.window_at(ino, index)?.and_then(|window| window.get(at)) {
            self.view().read_blocks(ino, offset, &[block], &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Whether there is a block, or a hole.
    fn has_block(&self, ino: u64, inode: &Inode, block: u64) -> Result<bool> {
        let (index, at) = window_of(block);
        Ok(inode.in_windows && self.window_at(ino, index)?.is_some_and(|window| window.get(at).is_some()))
    }
}

impl Blocks for View<'_> {
    fn view(&self) -> &View<'_> {
        self
    }

    fn window_at(&self, ino: u64, index: u64) -> Result<Option<Window>> {
        Ok(self.window(ino, index)?.1)
    }
}

impl Blocks for Change<'_, '_> {
    fn view(&self) -> &View<'_> {
        self.view
    }

    fn window_at(&self, ino: u64, index: u64) -> Result<Option<Window>> {
        let key = Key::window(ino, index);
        self.find(&key)?.value.map(|value| decode_window(&key, &value)).transpose()
    }
}

/// Changes to the blocks of a file: new ones by number, and ranges that become holes in windows that exist.
#[derive(Default)]
pub(super) struct Edit<'b> {
    pub puts: Vec<(u64, &'b [u8])>,
    pub removed: Range<u64>,
    pub windows: Vec<u64>,
    /// Whether it only takes away, but for blocks in the place of others: then it may use what is kept back.
    pub takes_away: bool,
}

/// Pieces of content as blocks: those that are written whole, and those of which the rest was read.
pub(super) struct Pieces<'b> {
    wholes: Vec<(u64, &'b [u8])>,
    edges: BTreeMap<u64, Box<[u8; BLOCK_LEN_BYTES]>>,
}

impl<'b> Pieces<'b> {
    /// `pieces` are ascending and apart. What was inline becomes a block as well.
    pub fn new(content: &impl Blocks, ino: u64, inode: &Inode, pieces: &[(u64, &'b [u8])]) -> Result<Self> {
        let (mut wholes, mut edges) = (Vec::new(), BTreeMap::new());
        if !inode.in_windows && inode.size > 0 {
            edges.insert(0, Box::new(content.load_block(ino, inode, 0)?));
        }
        for &(mut at, mut bytes) in pieces {
            while !bytes.is_empty() {
                let (block, from) = (at / BLOCK, (at % BLOCK) as usize);
                let whole = if from == 0 { bytes.len() - bytes.len() % BLOCK_LEN_BYTES } else { 0 };
                let taken = if whole > 0 { whole } else { bytes.len().min(BLOCK_LEN_BYTES - from) };
                let (part, rest) = bytes.split_at(taken);
                if whole > 0 {
                    // What was inline is overwritten whole.
                    edges.remove(&block);
                    wholes.push((block, part));
                } else {
                    let edge = match edges.entry(block) {
                        std::collections::btree_map::Entry::Occupied(edge) => edge.into_mut(),
                        std::collections::btree_map::Entry::Vacant(slot) => {
                            slot.insert(Box::new(content.load_block(ino, inode, block)?))
                        }
                    };
                    edge[from..from + taken].copy_from_slice(part);
                }
                (at, bytes) = (at + taken as u64, rest);
            }
        }
        Ok(Pieces { wholes, edges })
    }

    /// All of them, ascending.
    pub fn edit(&self) -> Edit<'_> {
        let mut puts = self.wholes.clone();
        puts.extend(self.edges.iter().map(|(block, bytes)| (*block, &bytes[..])));
        puts.sort_unstable_by_key(|(block, _)| *block);
        Edit { puts, ..Edit::default() }
    }
}

/// What becomes of content when its length is set.
pub(super) struct NewLen {
    /// Whether it is in the inode's record then.
    pub inline: bool,
    edge: Option<(u64, Box<[u8; BLOCK_LEN_BYTES]>)>,
    removed: Range<u64>,
}

impl NewLen {
    /// Of a file that is not cut any more, or gets no longer.
    pub fn new(content: &impl Blocks, ino: u64, inode: &Inode, len: u64) -> Result<Self> {
        let inline = !inode.in_windows && len <= INLINE_LEN_MAX_BYTES as u64;
        let (mut edge, mut removed) = (None, 0..0);
        if !inline && !inode.in_windows && inode.size > 0 {
            edge = Some((0, Box::new(content.load_block(ino, inode, 0)?)));
        } else if inode.in_windows && len < inode.size {
            let (block, from) = (len / BLOCK, (len % BLOCK) as usize);
            if from > 0 && content.has_block(ino, inode, block)? {
                let mut bytes = Box::new(content.load_block(ino, inode, block)?);
                bytes[from..].fill(0);
                edge = Some((block, bytes));
            }
            removed = len.div_ceil(BLOCK)..u64::MAX;
        }
        Ok(NewLen { inline, edge, removed })
    }

    /// So far without the windows in which something goes.
    pub fn edit(&self) -> Edit<'_> {
        let puts = self.edge.iter().map(|(block, bytes)| (*block, &bytes[..])).collect();
        Edit { puts, removed: self.removed.clone(), windows: Vec::new(), takes_away: !self.removed.is_empty() }
    }
}

/// Blocks that are reserved and written, and belong to nobody yet. They go back unless they are kept.
pub(crate) struct Placed<'t> {
    tree: &'t Tree,
    runs: Vec<Run>,
    /// Of all blocks of `runs`, in order.
    sums: Vec<u32>,
    /// Where each of them is in the file, by window.
    windows: BTreeMap<u64, Vec<(usize, Block)>>,
}

impl<'t> Placed<'t> {
    /// Reserves blocks for what the edit puts, and writes it.
    pub(super) fn write(tree: &'t Tree, id: Id, edit: &Edit<'_>) -> Result<Self> {
        let count: usize = edit.puts.iter().map(|(_, bytes)| bytes.len() / BLOCK_LEN_BYTES).sum();
        let mut placed = Placed { tree, runs: Vec::new(), sums: Vec::new(), windows: BTreeMap::new() };
        if count > 0 {
            let hint = tree.hint.load(Relaxed);
            placed.runs = tree.extents.reserve(count as u32, Some(hint), edit.takes_away)?;
            placed.write_all(id, &edit.puts)?;
            if let Some(last) = placed.runs.last() {
                tree.hint.store(last.end(), Relaxed);
            }
        }
        Ok(placed)
    }

    /// Writes `puts` to the runs one behind the other.
    fn write_all(&mut self, id: Id, puts: &[(u64, &[u8])]) -> Result<()> {
        let mut runs = self.runs.iter().copied();
        let mut room = Run { start: 0, count: 0 };
        for &(mut block, mut bytes) in puts {
            while !bytes.is_empty() {
                if room.count == 0 {
                    // As many were reserved as there are blocks to write.
                    room = runs.next().ok_or(ErrorKind::NoSpace)?;
                    continue;
                }
                let count = (bytes.len() / BLOCK_LEN_BYTES).min(room.count as usize);
                let (part, rest) = bytes.split_at(count * BLOCK_LEN_BYTES);
                self.tree.extents.write(room.start, part)?;
                for (i, bytes) in part.chunks_exact(BLOCK_LEN_BYTES).enumerate() {
                    let sum = crc32c::crc32c(bytes);
                    let (index, at) = window_of(block + i as u64);
                    let to = Block { at: room.start + i as u64, birth: id, sum };
                    self.windows.entry(index).or_default().push((at, to));
                    self.sums.push(sum);
                }
                room = Run { start: room.start + count as u64, count: room.count - count as u32 };
                (block, bytes) = (block + count as u64, rest);
            }
        }
        Ok(())
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// A batch took them.
    pub(crate) fn keep(mut self) {
        self.runs.clear();
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            self.tree.extents.release(&self.runs);
        }
    }
}

impl<'t> Change<'_, 't> {
    /// Makes the blocks, and all else of the edit, the file's. Where that gets too long, it leaves out windows of which nothing
    /// stays and to which nothing is written; the number of the first of these.
    pub(super) fn put_blocks(&mut self, ino: u64, edit: &Edit<'_>, placed: &Placed<'_>) -> Result<Option<u64>> {
        let others = edit.windows.iter().copied().filter(|index| !placed.windows.contains_key(index));
        let windows: Vec<u64> = placed.windows.keys().copied().chain(others).collect();
        let (mut delta, mut left) = (0_i64, None);
        for index in windows {
            let can_wait = !placed.windows.contains_key(&index) && edit.removed.start <= index * WINDOW;
            if can_wait && self.draft.is_full() {
                left = Some(index);
                break;
            }
            let key = Key::window(ino, index);
            let found = self.find(&key)?;
            let old = match found.value {
                Some(value) => decode_window(&key, &value)?,
                None => Window::default(),
            };
            let mut new = old.clone();
            for at in 0..WINDOW {
                if edit.removed.contains(&(index * WINDOW + at)) {
                    new.set(at as usize, None);
                }
            }
            for &(at, block) in placed.windows.get(&index).into_iter().flatten() {
                new.set(at, Some(block));
            }
            delta += new.count() as i64 - old.count() as i64;
            self.put_window(&key, found.owner, &old, &new)?;
        }
        let mut sums = placed.sums.iter().copied();
        for run in &placed.runs {
            self.allocate(*run, sums.by_ref().take(run.count as usize).collect());
        }
        let inode = self.edit(ino)?;
        inode.blocks = inode.blocks.saturating_add_signed(delta);
        Ok(left)
    }

    /// Writes pieces that end within what an inode's record holds.
    pub(super) fn write_inline(&mut self, ino: u64, pieces: &[(u64, &[u8])], end: u64, times: Times) -> Result<()> {
        let now = self.now;
        let inode = self.edit(ino)?;
        inode.inline.resize(inode.inline.len().max(end as usize), 0);
        for (at, bytes) in pieces {
            // At most the end, which is small.
            inode.inline[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
        }
        inode.size = inode.inline.len() as u64;
        inode.note_write(now, times);
        Ok(())
    }

    /// Notes that content up to `end` was written to blocks.
    pub(super) fn note_written(&mut self, ino: u64, end: u64, times: Times) -> Result<()> {
        let now = self.now;
        let inode = self.edit(ino)?;
        (inode.in_windows, inode.inline) = (true, Vec::new());
        inode.size = inode.size.max(end);
        inode.note_write(now, times);
        Ok(())
    }

    /// Notes a new length, and what else is in `set`; with `rest`, windows behind it are still to go.
    pub(super) fn note_len(
        &mut self,
        ino: u64,
        len: u64,
        (inline, rest): (bool, bool),
        set: &SetAttr,
        times: Times,
    ) -> Result<()> {
        let now = self.now;
        let inode = self.edit(ino)?;
        let was_cut = inode.is_cut;
        if inline {
            inode.inline.resize(len as usize, 0);
        } else if len == 0 && !rest {
            (inode.in_windows, inode.inline) = (false, Vec::new());
        } else {
            (inode.in_windows, inode.inline) = (true, Vec::new());
        }
        (inode.size, inode.is_cut) = (len, rest);
        inode.note_write(now, times);
        let kept = Some(inode.ctime).filter(|_| times == Times::Kept);
        self.set_attr(ino, &SetAttr { ctime: set.ctime.or(kept), ..*set })?;
        if !rest && !was_cut {
            return Ok(());
        }
        let key = Key::orphan(ino);
        let owner = self.find(&key)?.owner;
        let removed = self.inode(ino)?.nlink == 0;
        if rest || removed {
            self.put(&key, owner, Orphan { removed }.encode());
            return Ok(());
        }
        self.delete(&key, owner)
    }

    /// Writes content as a part of a longer operation. The blocks are to be kept once it is applied.
    pub(crate) fn write(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> Result<Option<Placed<'t>>> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_LEN_MAX_BYTES);
        let end = end.ok_or(ErrorKind::FileTooLarge)?;
        file(self.inode(ino)?)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let inode = self.drained(ino, end)?;
        if !inode.in_windows && end <= INLINE_LEN_MAX_BYTES as u64 {
            return self.write_inline(ino, &[(offset, bytes)], end, Times::Now).map(|()| None);
        }
        let pieces = Pieces::new(self, ino, &inode, &[(offset, bytes)])?;
        let edit = pieces.edit();
        let placed = Placed::write(self.view.tree, self.view.id, &edit)?;
        self.put_blocks(ino, &edit, &placed)?;
        self.note_written(ino, end, Times::Now)?;
        Ok(Some(placed))
    }

    /// Sets the length as a part of a longer operation, and what else is in `set`. The blocks are to be kept once it is
    /// applied; if the inode is cut then, it is to be drained.
    pub(crate) fn set_len(&mut self, ino: u64, len: u64, set: &SetAttr) -> Result<Placed<'t>> {
        let mut inode = self.inode(ino)?.clone();
        file(&inode)?;
        if len > FILE_LEN_MAX_BYTES {
            return Err(ErrorKind::FileTooLarge.into());
        }
        if len > inode.size {
            inode = self.drained(ino, len)?;
        }
        let new = NewLen::new(self, ino, &inode, len)?;
        let mut edit = new.edit();
        let mut rest = inode.is_cut;
        if !edit.removed.is_empty() {
            (edit.windows, rest) = self.some_windows(ino, edit.removed.start / WINDOW..u64::MAX, CUT_AT_ONCE)?;
            if rest {
                // The one that keeps something. The others are left to who drains it.
                let from = edit.removed.start.div_ceil(WINDOW);
                edit.windows.retain(|&index| index < from);
            }
        }
        let placed = Placed::write(self.view.tree, self.view.id, &edit)?;
        let left = self.put_blocks(ino, &edit, &placed)?;
        self.note_len(ino, len, (new.inline, rest || left.is_some()), set, Times::Now)?;
        Ok(placed)
    }

    /// The record of a file whose content is about to change up to `end`. What a cut left over in front of that, where it
    /// would show, goes before, in this batch; what is left behind it shows no more than before, and stays for who drains it.
    fn drained(&mut self, ino: u64, end: u64) -> Result<Inode> {
        let inode = self.inode(ino)?.clone();
        let (mut first, behind) = (first_behind(inode.size), first_behind(end));
        if !inode.is_cut || behind <= first {
            return Ok(inode);
        }
        let (mut dropped, mut more) = (0, true);
        while more {
            let windows;
            (windows, more) = self.some_windows(ino, first..behind, CUT_AT_ONCE)?;
            for &index in &windows {
                dropped += self.drop_window(ino, index)?;
                self.check_len()?;
            }
            first = windows.last().map_or(first, |last| last + 1);
        }
        // Also one that went in this batch counts here, which costs nothing but a look.
        let (left, is_left) = self.some_windows(ino, behind..u64::MAX, 0)?;
        let inode = self.edit(ino)?;
        inode.blocks = inode.blocks.saturating_sub(dropped);
        inode.is_cut = is_left || !left.is_empty();
        if !inode.is_cut && inode.nlink > 0 {
            let key = Key::orphan(ino);
            let owner = self.find(&key)?.owner;
            self.delete(&key, owner)?;
        }
        Ok(self.inode(ino)?.clone())
    }

    /// Numbers of windows in `range`, ascending: `count` of those that were there before, what this operation wrote up to the
    /// last of them, and whether there are more. Some may be gone by now.
    fn some_windows(&self, ino: u64, range: Range<u64>, count: usize) -> Result<(Vec<u64>, bool)> {
        let (mut windows, more) = some_windows(self.view, ino, range.clone(), count)?;
        let (_, end) = keys::range_of(keys::space::WINDOW, ino);
        let last = windows.last().copied().filter(|_| more).unwrap_or(u64::MAX);
        for key in self.draft.written(Key::window(ino, range.start).as_bytes(), &end) {
            let (logical, _) = keys::split(key).ok_or_else(|| super::view::corrupt_key(key, "it is no key"))?;
            windows.extend(Some(window_in(logical)?).filter(|index| *index <= last && *index < range.end));
        }
        windows.sort_unstable();
        windows.dedup();
        Ok((windows, more))
    }

    /// Refuses what no volume could apply as one, before it takes much memory.
    pub(crate) fn check_len(&self) -> Result<()> {
        if self.len_bytes() > self.view.tree.table.batch_len_max_bytes() {
            return Err(too_long());
        }
        Ok(())
    }
}

/// The error of what cannot be applied as one.
pub(crate) fn too_long() -> FsError {
    let why = "it changes more than the volume takes at once: do it in several";
    FsError::new(ErrorKind::InvalidInput).on("apply", "a transaction").because(why)
}
