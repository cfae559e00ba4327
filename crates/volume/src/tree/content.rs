//! Changing content: always to new blocks, which become the file's with the batch that says so.
//!
//! Bytes behind the end of a file are zeros in its last block; windows behind the end do not exist, but where a cut took
//! several batches: the inode's record says so from the first of them to the last, and whoever writes in between (because the
//! cut failed, or in a snapshot's branch) drops the rest first. Content of at most [`INLINE_LEN_MAX_BYTES`] that was never longer is
//! in the inode's record.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::Relaxed;

use adit_core::types::{AllocateMode, SetAttr};
use adit_core::{ErrorKind, Result};
use parking_lot::{Mutex, RwLock};

use super::change::Change;
use super::read::{BLOCK, WINDOW, file, window_in, window_of};
use super::view::View;
use super::{FILE_LEN_MAX_BYTES, Source, Tree};
use crate::format::keys::{self, Key, Parts};
use crate::format::records::{Block, INLINE_LEN_MAX_BYTES, Inode, Orphan, Window};
use crate::table::{BLOCK_LEN_BYTES, Run};

/// Windows that one batch takes away at most.
const WINDOWS_AT_ONCE: usize = 512;

/// Bytes that one batch writes at most.
const WRITE_AT_ONCE_BYTES: usize = 8 << 20;

/// What one batch adds to the log at most, reckoned for the worst case: each block lies by itself, and replaces one that does.
const WRITE_LOG_LEN_MAX_BYTES: u64 = 112 << 10;
const BLOCK_LOG_LEN_BYTES: u64 = 16 + 12;
const WINDOW_LOG_LEN_BYTES: u64 = 4700;

/// The locks of an inode whose content is in use. All who use it share one.
#[derive(Debug, Default)]
pub struct Node {
    /// Held while its content is changed.
    writer: Mutex<()>,
    /// Held shared while blocks of it are read, alone for the moment in which they change: so nobody reads a block that
    /// somebody else got meanwhile.
    content: RwLock<()>,
}

/// Changes to the blocks of a file: new ones by number, and ranges that become holes in windows that exist.
#[derive(Default)]
struct Edit<'b> {
    puts: Vec<(u64, &'b [u8])>,
    removed: Range<u64>,
    windows: Vec<u64>,
    /// Whether it only takes away, but for blocks in the place of others: then it may use what is kept back.
    takes_away: bool,
}

/// Reserved blocks; those that no batch took go back.
struct Reserved<'t> {
    tree: &'t Tree,
    runs: Vec<Run>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            self.tree.extents.release(&self.runs);
        }
    }
}

impl Node {
    /// Reads; see [`View::read`].
    pub fn read(&self, view: &View<'_>, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _content = self.content.read();
        view.read(ino, offset, buf)
    }

    /// Writes all `pieces` (ascending, apart). Of more than 8 MiB a crash or an error can leave the first part only.
    pub fn write(&self, view: &View<'_>, ino: u64, pieces: &[(u64, &[u8])]) -> Result<()> {
        let end = |&(at, bytes): &(u64, &[u8])| at.checked_add(bytes.len() as u64);
        if pieces.iter().any(|piece| end(piece).is_none_or(|end| end > FILE_LEN_MAX_BYTES)) {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let _writer = self.writer.lock();
        let mut group: Vec<(u64, &[u8])> = Vec::new();
        let (mut group_len, mut log_len, mut last) = (0, 0, None);
        for &(mut at, mut bytes) in pieces {
            while !bytes.is_empty() {
                let room = WRITE_AT_ONCE_BYTES - (at % BLOCK) as usize;
                let (part, rest) = bytes.split_at(bytes.len().min(room));
                let (from, to) = (at / BLOCK, (at + part.len() as u64 - 1) / BLOCK);
                let windows = to / WINDOW + 1 - from / WINDOW - u64::from(last == Some(from / WINDOW));
                let part_log_len = (to + 1 - from) * BLOCK_LOG_LEN_BYTES + windows * WINDOW_LOG_LEN_BYTES;
                if group_len + part.len() > WRITE_AT_ONCE_BYTES || log_len + part_log_len > WRITE_LOG_LEN_MAX_BYTES {
                    self.write_group(view, ino, &group)?;
                    (group_len, log_len, group) = (0, WINDOW_LOG_LEN_BYTES, Vec::new());
                }
                group.push((at, part));
                (log_len, last) = (log_len + part_log_len, Some(to / WINDOW));
                (group_len, at, bytes) = (group_len + part.len(), at + part.len() as u64, rest);
            }
        }
        if group.is_empty() { Ok(()) } else { self.write_group(view, ino, &group) }
    }

    fn write_group(&self, view: &View<'_>, ino: u64, pieces: &[(u64, &[u8])]) -> Result<()> {
        let inode = view.tree.drained(view, ino)?;
        file(&inode)?;
        let end = pieces.last().map_or(0, |(at, bytes)| at + bytes.len() as u64);
        if !inode.in_windows && end <= INLINE_LEN_MAX_BYTES as u64 {
            return view.tree.change(view, |change| {
                let now = change.now;
                let inode = change.edit(ino)?;
                inode.inline.resize(inode.inline.len().max(end as usize), 0);
                for (at, bytes) in pieces {
                    // At most the end, which is small.
                    inode.inline[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
                }
                inode.size = inode.inline.len() as u64;
                (inode.mtime, inode.ctime) = (now, now);
                Ok(())
            });
        }
        let mut edges: BTreeMap<u64, Box<[u8; BLOCK_LEN_BYTES]>> = BTreeMap::new();
        let mut wholes: Vec<(u64, &[u8])> = Vec::new();
        if !inode.in_windows && inode.size > 0 {
            edges.insert(0, Box::new(view.load_block(ino, &inode, 0)?));
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
                            slot.insert(Box::new(view.load_block(ino, &inode, block)?))
                        }
                    };
                    edge[from..from + taken].copy_from_slice(part);
                }
                (at, bytes) = (at + taken as u64, rest);
            }
        }
        let mut puts = wholes;
        puts.extend(edges.iter().map(|(block, bytes)| (*block, &bytes[..])));
        puts.sort_unstable_by_key(|(block, _)| *block);
        let edit = Edit { puts, ..Edit::default() };
        let all = self.apply(view, ino, edit, |change, _| {
            let now = change.now;
            let inode = change.edit(ino)?;
            (inode.in_windows, inode.inline) = (true, Vec::new());
            inode.size = inode.size.max(end);
            (inode.mtime, inode.ctime) = (now, now);
            Ok(())
        });
        all.map(drop)
    }

    /// Writes new blocks, then makes them and all else of the edit the file's in one batch. Where that gets too long, it leaves
    /// out windows that nothing is written to; the first of these is what `finish` and the caller get.
    fn apply<'t>(
        &self,
        view: &View<'t>,
        ino: u64,
        edit: Edit<'_>,
        finish: impl FnOnce(&mut Change<'_, 't>, Option<u64>) -> Result<()>,
    ) -> Result<Option<u64>> {
        let tree = view.tree;
        let count: usize = edit.puts.iter().map(|(_, bytes)| bytes.len() / BLOCK_LEN_BYTES).sum();
        let mut reserved = Reserved { tree, runs: Vec::new() };
        let mut placed: BTreeMap<u64, Vec<(usize, Block)>> = BTreeMap::new();
        let mut sums = Vec::new();
        if count > 0 {
            let hint = tree.hint.load(Relaxed);
            reserved.runs = tree.extents.reserve(count as u32, Some(hint), edit.takes_away)?;
            sums = place(view, &edit.puts, &reserved.runs, &mut placed)?;
            if let Some(last) = reserved.runs.last() {
                tree.hint.store(last.end(), Relaxed);
            }
        }
        let others = edit.windows.iter().copied().filter(|index| !placed.contains_key(index));
        let windows: Vec<u64> = placed.keys().copied().chain(others).collect();
        let _content = self.content.write();
        let left = tree.change(view, |change| {
            change.draft.uses_reserve = count == 0 || edit.takes_away;
            let (mut delta, mut left) = (0_i64, None);
            for index in windows {
                if change.draft.is_full() && !placed.contains_key(&index) {
                    left = Some(index);
                    break;
                }
                let found = change.find(&Key::window(ino, index))?;
                let key = Key::window(ino, index);
                let old = match found.value {
                    Some(value) => super::draft::decode_window(&key, &value)?,
                    None => Window::default(),
                };
                let mut new = old.clone();
                for at in 0..WINDOW {
                    if edit.removed.contains(&(index * WINDOW + at)) {
                        new.set(at as usize, None);
                    }
                }
                for &(at, block) in placed.get(&index).into_iter().flatten() {
                    new.set(at, Some(block));
                }
                delta += new.count() as i64 - old.count() as i64;
                change.put_window(&key, found.owner, &old, &new)?;
            }
            let mut sums = sums.iter().copied();
            for run in &reserved.runs {
                change.allocate(*run, sums.by_ref().take(run.count as usize).collect());
            }
            let inode = change.edit(ino)?;
            inode.blocks = inode.blocks.saturating_add_signed(delta);
            finish(change, left)?;
            Ok(left)
        })?;
        reserved.runs.clear();
        Ok(left)
    }

    /// Sets the length, and with it what else is in `set`. A longer file reads as zeros.
    pub fn set_len(&self, view: &View<'_>, ino: u64, len: u64, set: &SetAttr) -> Result<()> {
        let _writer = self.writer.lock();
        self.set_len_locked(view, ino, len, set, false)
    }

    fn set_len_locked(&self, view: &View<'_>, ino: u64, len: u64, set: &SetAttr, only_longer: bool) -> Result<()> {
        let inode = view.tree.drained(view, ino)?;
        file(&inode)?;
        if len > FILE_LEN_MAX_BYTES {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let len = if only_longer { len.max(inode.size) } else { len };
        let inline = !inode.in_windows && len <= INLINE_LEN_MAX_BYTES as u64;
        let mut edge;
        let mut edit = Edit::default();
        if !inline && !inode.in_windows && inode.size > 0 {
            edge = view.load_block(ino, &inode, 0)?;
            edit.puts.push((0, &edge));
        } else if inode.in_windows && len < inode.size {
            let (block, from) = (len / BLOCK, (len % BLOCK) as usize);
            if from > 0 && view.has_block(ino, &inode, block)? {
                edge = view.load_block(ino, &inode, block)?;
                edge[from..].fill(0);
                edit.puts.push((block, &edge));
            }
            edit.removed = len.div_ceil(BLOCK)..u64::MAX;
            edit.takes_away = true;
        }
        let mut rest = false;
        if !edit.removed.is_empty() {
            (edit.windows, rest) = some_windows(view, ino, edit.removed.start / WINDOW, u64::MAX)?;
        }
        // The first window that keeps nothing.
        let from = edit.removed.start.div_ceil(WINDOW);
        if rest {
            edit.windows.retain(|&index| index < from);
        }
        let left = self.apply(view, ino, edit, |change, left| {
            let (now, rest) = (change.now, rest || left.is_some());
            let inode = change.edit(ino)?;
            if inline {
                inode.inline.resize(len as usize, 0);
            } else if len == 0 && !rest {
                (inode.in_windows, inode.inline) = (false, Vec::new());
            } else {
                (inode.in_windows, inode.inline) = (true, Vec::new());
            }
            (inode.size, inode.is_cut) = (len, rest);
            inode.mtime = now;
            change.set_attr(ino, set)?;
            if rest {
                let key = Key::orphan(ino);
                let found = change.find(&key)?;
                let removed = change.inode(ino)?.nlink == 0;
                change.put(&key, found.owner, Orphan { removed }.encode());
            }
            Ok(())
        })?;
        if rest || left.is_some() { view.tree.drain(view, ino) } else { Ok(()) }
    }

    /// `fallocate(2)`. Space is not set aside: blocks are always new ones. It is checked that there is as much.
    pub fn allocate(&self, view: &View<'_>, ino: u64, range: Range<u64>, mode: AllocateMode) -> Result<()> {
        let _writer = self.writer.lock();
        let inode = view.tree.drained(view, ino)?;
        file(&inode)?;
        if range.end > FILE_LEN_MAX_BYTES {
            return Err(ErrorKind::FileTooLarge.into());
        }
        if matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
            let space = view.tree.extents.space();
            let needed = (range.end.saturating_sub(range.start)).div_ceil(BLOCK);
            if needed.saturating_sub(inode.blocks) > space.free.saturating_sub(space.reserved) {
                return Err(ErrorKind::NoSpace.into());
            }
        }
        match mode {
            AllocateMode::Extend => self.set_len_locked(view, ino, range.end, &SetAttr::default(), true),
            AllocateMode::KeepSize => view.tree.change(view, |change| {
                let now = change.now;
                let inode = change.edit(ino)?;
                (inode.mtime, inode.ctime) = (now, now);
                Ok(())
            }),
            AllocateMode::PunchHole | AllocateMode::Zero { keep_size: true } => {
                self.zero(view, ino, &inode, range, inode.size)
            }
            AllocateMode::Zero { keep_size: false } => {
                let len = inode.size.max(range.end);
                self.zero(view, ino, &inode, range, len)
            }
        }
    }

    /// Makes zeros of a range, holes where whole blocks are in it, and the file `len` long, which is not shorter.
    fn zero(&self, view: &View<'_>, ino: u64, inode: &Inode, range: Range<u64>, len: u64) -> Result<()> {
        let range = range.start..range.end.min(inode.size);
        if !inode.in_windows {
            return self.zero_inline(view, ino, inode, range, len);
        }
        // What is behind the end is zero already: the last block goes whole.
        let end = if range.end == inode.size { range.end.next_multiple_of(BLOCK) } else { range.end };
        let whole = range.start.div_ceil(BLOCK)..end / BLOCK;
        let mut edges: BTreeMap<u64, [u8; BLOCK_LEN_BYTES]> = BTreeMap::new();
        for block in [range.start / BLOCK, end / BLOCK] {
            let start = block * BLOCK;
            let (from, to) = (range.start.max(start) - start, end.min(start + BLOCK).saturating_sub(start));
            let partly = from < to && !whole.contains(&block);
            if partly && !edges.contains_key(&block) && view.has_block(ino, inode, block)? {
                let mut bytes = view.load_block(ino, inode, block)?;
                bytes[from as usize..to as usize].fill(0);
                edges.insert(block, bytes);
            }
        }
        let mut puts: Vec<(u64, &[u8])> = edges.iter().map(|(block, bytes)| (*block, &bytes[..])).collect();
        let mut first = whole.start / WINDOW;
        loop {
            let puts = std::mem::take(&mut puts);
            let mut edit = Edit { puts, removed: whole.clone(), windows: Vec::new(), takes_away: true };
            let mut more = false;
            if !whole.is_empty() {
                (edit.windows, more) = some_windows(view, ino, first, whole.end.div_ceil(WINDOW))?;
                first = edit.windows.last().map_or(first, |last| last + 1);
            }
            let left = self.apply(view, ino, edit, |change, left| {
                let now = change.now;
                let inode = change.edit(ino)?;
                inode.size = if more || left.is_some() { inode.size } else { len };
                (inode.mtime, inode.ctime) = (now, now);
                Ok(())
            })?;
            if !more && left.is_none() {
                return Ok(());
            }
            first = left.unwrap_or(first);
        }
    }

    fn zero_inline(&self, view: &View<'_>, ino: u64, inode: &Inode, range: Range<u64>, len: u64) -> Result<()> {
        let mut content = inode.inline.clone();
        let end = content.len().min(range.end as usize);
        content[end.min(usize::try_from(range.start).unwrap_or(end))..end].fill(0);
        let (mut edge, mut edit) = ([0; BLOCK_LEN_BYTES], Edit::default());
        let inline = len <= INLINE_LEN_MAX_BYTES as u64;
        if inline {
            content.resize(len as usize, 0);
        } else if !content.is_empty() {
            edge[..content.len()].copy_from_slice(&content);
            edit.puts.push((0, &edge));
        }
        let all = self.apply(view, ino, edit, |change, _| {
            let now = change.now;
            let inode = change.edit(ino)?;
            (inode.in_windows, inode.inline) = if inline { (false, content) } else { (true, Vec::new()) };
            inode.size = len;
            (inode.mtime, inode.ctime) = (now, now);
            Ok(())
        });
        all.map(drop)
    }
}

/// Writes `puts` to `runs` one behind the other; where each block came to lie, by window, and all checksums in order.
fn place(
    view: &View<'_>,
    puts: &[(u64, &[u8])],
    runs: &[Run],
    placed: &mut BTreeMap<u64, Vec<(usize, Block)>>,
) -> Result<Vec<u32>> {
    let mut sums = Vec::new();
    let mut runs = runs.iter().copied();
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
            view.tree.extents.write(room.start, part)?;
            for (i, bytes) in part.chunks_exact(BLOCK_LEN_BYTES).enumerate() {
                let sum = crc32c::crc32c(bytes);
                let (index, at) = window_of(block + i as u64);
                let to = Block { at: room.start + i as u64, birth: view.id, sum };
                placed.entry(index).or_default().push((at, to));
                sums.push(sum);
            }
            room = Run { start: room.start + count as u64, count: room.count - count as u32 };
            (block, bytes) = (block + count as u64, rest);
        }
    }
    Ok(sums)
}

/// The number of the first window behind the end of a file of that length.
pub(super) fn first_behind(len: u64) -> u64 {
    len.div_ceil(BLOCK * WINDOW)
}

/// The numbers of windows that exist from `first` to `end`, as many as one batch takes, and whether there are more.
fn some_windows(view: &View<'_>, ino: u64, first: u64, end: u64) -> Result<(Vec<u64>, bool)> {
    let (mut indexes, mut more) = (Vec::new(), false);
    let (_, last) = keys::range_of(keys::space::WINDOW, ino);
    view.scan(Key::window(ino, first).as_bytes(), &last, &mut |key, _| {
        let index = window_in(key)?;
        more = index < end && indexes.len() == WINDOWS_AT_ONCE;
        if more || index >= end {
            return Ok(ControlFlow::Break(()));
        }
        indexes.push(index);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((indexes, more))
}

impl Tree {
    /// The record of an inode whose content is about to change; what an earlier cut left over is dropped before.
    fn drained(&self, view: &View<'_>, ino: u64) -> Result<Inode> {
        let inode = view.inode(ino)?;
        if !inode.is_cut {
            return Ok(inode);
        }
        self.drain(view, ino)?;
        view.inode(ino)
    }

    /// Drops the windows behind the end of an inode that was cut. Each batch looks at what the inode is then, so that others
    /// may do the same, and write.
    fn drain(&self, view: &View<'_>, ino: u64) -> Result<()> {
        while self.drain_some(view, ino)? {}
        Ok(())
    }

    /// One batch of it; whether there is more.
    fn drain_some(&self, view: &View<'_>, ino: u64) -> Result<bool> {
        self.change(view, |change| {
            let key = Key::orphan(ino);
            let found = change.find(&key)?;
            change.draft.uses_reserve = true;
            let inode = change.inode(ino)?;
            if !inode.is_cut {
                let removed = inode.nlink == 0;
                return if removed { Ok(false) } else { change.delete(&key, found.owner).map(|()| false) };
            }
            let first = first_behind(inode.size);
            let (windows, mut more) = some_windows(view, ino, first, u64::MAX)?;
            let mut dropped = 0;
            for &index in &windows {
                if change.draft.is_full() {
                    more = true;
                    break;
                }
                dropped += change.drop_window(ino, index)?;
            }
            let inode = change.edit(ino)?;
            inode.blocks = inode.blocks.saturating_sub(dropped);
            inode.is_cut = more;
            if !more && inode.nlink > 0 && found.value.is_some() {
                change.delete(&key, found.owner)?;
            }
            Ok(more)
        })
    }

    /// Drops all of an inode that lost its last name and that nobody uses, in batches.
    pub fn reap(&self, source: &Source, ino: u64) -> Result<()> {
        while self.reap_some(&self.view(source)?, ino)? {}
        Ok(())
    }

    fn reap_some(&self, view: &View<'_>, ino: u64) -> Result<bool> {
        self.change(view, |change| {
            let key = Key::orphan(ino);
            let found = change.find(&key)?;
            let Some(value) = found.value else { return Ok(false) };
            let orphan = Orphan::decode(&value).map_err(|why| super::view::corrupt_inode(ino, why))?;
            if !orphan.removed || change.inode(ino)?.nlink > 0 && change.inode(ino)?.place.dir != 0 {
                return Ok(false);
            }
            change.draft.uses_reserve = true;
            let (windows, more) = some_windows(view, ino, 0, u64::MAX)?;
            let mut dropped = 0;
            for &index in windows.iter() {
                if change.draft.is_full() {
                    break;
                }
                dropped += change.drop_window(ino, index)?;
            }
            if more || change.draft.is_full() || change.drop_xattrs(ino)? {
                // What is left says how much it is.
                let inode = change.edit(ino)?;
                inode.blocks = inode.blocks.saturating_sub(dropped);
                return Ok(true);
            }
            change.delete(&key, found.owner)?;
            change.delete_inode(ino)?;
            Ok(false)
        })
    }

    /// Inodes of which something is to be dropped, and what. A damaged record is left alone.
    pub(super) fn orphans(&self, source: &Source) -> Result<Vec<(u64, Orphan)>> {
        let mut orphans = Vec::new();
        let (start, end) = ([keys::space::ORPHAN], [keys::space::ORPHAN + 1]);
        self.view(source)?.scan(&start, &end, &mut |key, value| {
            match (Key::from_logical(key).as_ref().and_then(Key::parts), Orphan::decode(value)) {
                (Some(Parts::Orphan(ino)), Ok(orphan)) => orphans.push((ino, orphan)),
                _ => tracing::warn!("key {} is no orphan's, or damaged", key.escape_ascii()),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(orphans)
    }

    /// Drops what was removed while it was in use, in a branch that nobody uses yet. What is damaged stays, for a check.
    pub fn reap_all(&self, source: &Source) -> Result<()> {
        for (ino, orphan) in self.orphans(source)? {
            let done = match orphan.removed {
                true => self.reap(source, ino),
                false => self.view(source).and_then(|view| self.drain(&view, ino)),
            };
            match done {
                Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::ReadOnly) => {
                    return Err(e);
                }
                Err(e) => tracing::warn!("what is left of inode {ino} cannot be dropped: {e}"),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

impl Change<'_, '_> {
    /// Makes a hole of a window; how many blocks it had.
    pub fn drop_window(&mut self, ino: u64, index: u64) -> Result<u64> {
        let key = Key::window(ino, index);
        let found = self.find(&key)?;
        let Some(value) = found.value else { return Ok(0) };
        let Ok(old) = Window::decode(&value) else {
            self.delete(&key, found.owner)?;
            return Ok(0);
        };
        self.put_window(&key, found.owner, &old, &Window::default())?;
        Ok(old.count())
    }
}
