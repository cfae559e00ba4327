//! Changing content: always to new blocks, which become the file's with the batch that says so.
//!
//! Bytes behind the end of a file are zeros in its last block; windows behind the end do not exist, but where a cut took
//! several batches: the inode's record says so from the first of them to the last, and whoever writes in between (because the
//! cut failed, or in a snapshot's branch) drops the rest first, a transaction only what would show. Content of at
//! most [`INLINE_LEN_MAX_BYTES`] that was never longer is in the inode's record.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use adit_core::types::{AllocateMode, SetAttr, Timestamp};
use adit_core::{ErrorKind, Result};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::change::Change;
use super::edit::{Blocks, Edit, NewLen, Pieces, Placed};
use super::read::{BLOCK, WINDOW, file, window_in};
use super::view::View;
use super::{FILE_LEN_MAX_BYTES, Source, Tree};
use crate::format::keys::{self, Key, Parts};
use crate::format::records::{INLINE_LEN_MAX_BYTES, Inode, Orphan, Window};
use crate::table::BLOCK_LEN_BYTES;

/// Windows that one batch takes away at most.
const WINDOWS_AT_ONCE: usize = 512;

/// Bytes that one batch writes at most.
const WRITE_AT_ONCE_BYTES: usize = 8 << 20;

/// What one batch adds to the log at most, reckoned for the worst case: each block lies by itself, and replaces one that does.
const WRITE_LOG_LEN_MAX_BYTES: u64 = 112 << 10;
const BLOCK_LOG_LEN_BYTES: u64 = 16 + 12;
const WINDOW_LOG_LEN_BYTES: u64 = 4700;

/// What a write does to the times of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// It is a change at this moment.
    Now,
    /// They stay: whoever writes keeps them, and sets them.
    Kept,
}

impl Inode {
    /// Notes that content was written.
    pub(super) fn note_write(&mut self, now: Timestamp, times: Times) {
        if times == Times::Now {
            (self.mtime, self.ctime) = (now, now);
        }
    }
}

/// The locks of an inode whose content is in use. All who use it share one.
#[derive(Debug, Default)]
pub struct Node {
    /// Held while its content is changed.
    writer: Mutex<()>,
    /// Held shared while blocks of it are read, alone for the moment in which they change: so nobody reads a block that
    /// somebody else got meanwhile.
    content: RwLock<()>,
}

impl Node {
    /// Reads; see [`View::read`].
    pub fn read(&self, view: &View<'_>, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _content = self.content.read();
        view.read(ino, offset, buf)
    }

    /// Writes all `pieces` (ascending, apart). Of more than 8 MiB a crash or an error can leave the first part only.
    pub fn write(&self, view: &View<'_>, ino: u64, pieces: &[(u64, &[u8])], times: Times) -> Result<()> {
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
                    self.write_group(view, ino, &group, times)?;
                    (group_len, log_len, group) = (0, WINDOW_LOG_LEN_BYTES, Vec::new());
                }
                group.push((at, part));
                (log_len, last) = (log_len + part_log_len, Some(to / WINDOW));
                (group_len, at, bytes) = (group_len + part.len(), at + part.len() as u64, rest);
            }
        }
        if group.is_empty() { Ok(()) } else { self.write_group(view, ino, &group, times) }
    }

    /// Writes all of `bytes` at the end, wherever that is then; where they end. Nothing of what others write is overwritten. Of
    /// more than 8 MiB a crash or an error can leave the first part only, and what a transaction writes can come in between.
    pub fn append(&self, view: &View<'_>, ino: u64, mut bytes: &[u8]) -> Result<u64> {
        let _writer = self.writer.lock();
        loop {
            let (_joined, inode) = view.tree.begin(view, ino)?;
            let at = inode.size;
            if at.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_LEN_MAX_BYTES) {
                return Err(ErrorKind::FileTooLarge.into());
            }
            let room = WRITE_AT_ONCE_BYTES - (at % BLOCK) as usize;
            let (part, rest) = bytes.split_at(bytes.len().min(room));
            if !part.is_empty() {
                self.write_joined(view, ino, &inode, &[(at, part)], Times::Now)?;
            }
            if rest.is_empty() {
                return Ok(at + part.len() as u64);
            }
            bytes = rest;
        }
    }

    fn write_group(&self, view: &View<'_>, ino: u64, pieces: &[(u64, &[u8])], times: Times) -> Result<()> {
        let (_joined, inode) = view.tree.begin(view, ino)?;
        self.write_joined(view, ino, &inode, pieces, times)
    }

    /// Writes pieces in one batch. The caller keeps transactions out since it read `inode`.
    fn write_joined(
        &self,
        view: &View<'_>,
        ino: u64,
        inode: &Inode,
        pieces: &[(u64, &[u8])],
        times: Times,
    ) -> Result<()> {
        let end = pieces.last().map_or(0, |(at, bytes)| at + bytes.len() as u64);
        if !inode.in_windows && end <= INLINE_LEN_MAX_BYTES as u64 {
            return view.tree.change(view, |change| change.write_inline(ino, pieces, end, times));
        }
        let pieces = Pieces::new(view, ino, inode, pieces)?;
        self.apply(view, ino, &pieces.edit(), |change, _| change.note_written(ino, end, times)).map(drop)
    }

    /// Writes new blocks, then makes them and all else of the edit the file's in one batch. Where that gets too long, it leaves
    /// out windows that nothing is written to; the first of these is what `finish` and the caller get.
    fn apply<'t>(
        &self,
        view: &View<'t>,
        ino: u64,
        edit: &Edit<'_>,
        finish: impl FnOnce(&mut Change<'_, 't>, Option<u64>) -> Result<()>,
    ) -> Result<Option<u64>> {
        let placed = Placed::write(view.tree, view.id, edit)?;
        let _content = self.content.write();
        let left = view.tree.change(view, |change| {
            // What only takes away may use what is kept back.
            change.draft.uses_reserve = placed.is_empty() || edit.takes_away;
            let left = change.put_blocks(ino, edit, &placed)?;
            finish(change, left)?;
            Ok(left)
        })?;
        placed.keep();
        Ok(left)
    }

    /// Keeps readers of the content out, for who changes it without [`Node`]'s other locks.
    pub(crate) fn exclude_readers(&self) -> RwLockWriteGuard<'_, ()> {
        self.content.write()
    }

    /// Sets the length, and with it what else is in `set`. A longer file reads as zeros.
    pub fn set_len(&self, view: &View<'_>, ino: u64, len: u64, set: &SetAttr) -> Result<()> {
        let _writer = self.writer.lock();
        let (joined, inode) = view.tree.begin(view, ino)?;
        if len > FILE_LEN_MAX_BYTES {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let new = NewLen::new(view, ino, &inode, len)?;
        let mut edit = new.edit();
        let mut rest = false;
        if !edit.removed.is_empty() {
            (edit.windows, rest) = some_windows(view, ino, edit.removed.start / WINDOW..u64::MAX, WINDOWS_AT_ONCE)?;
        }
        // The first window that keeps nothing.
        let from = edit.removed.start.div_ceil(WINDOW);
        if rest {
            edit.windows.retain(|&index| index < from);
        }
        let left = self.apply(view, ino, &edit, |change, left| {
            change.note_len(ino, len, (new.inline, rest || left.is_some()), set, Times::Now)
        })?;
        drop(joined);
        if rest || left.is_some() { view.tree.drain(view, ino) } else { Ok(()) }
    }

    /// `fallocate(2)`, but for space that is set aside: written blocks are always new ones.
    pub fn allocate(
        &self,
        view: &View<'_>,
        ino: u64,
        range: Range<u64>,
        mode: AllocateMode,
        times: Times,
    ) -> Result<()> {
        let _writer = self.writer.lock();
        let (_joined, inode) = view.tree.begin(view, ino)?;
        if range.end > FILE_LEN_MAX_BYTES {
            return Err(ErrorKind::FileTooLarge.into());
        }
        match mode {
            // A write takes new blocks, also where the file has some: none can be kept for it.
            AllocateMode::Extend | AllocateMode::KeepSize => Err(ErrorKind::NotSupported.into()),
            AllocateMode::PunchHole | AllocateMode::Zero { keep_size: true } => {
                self.zero(view, ino, &inode, range, inode.size, times)
            }
            AllocateMode::Zero { keep_size: false } => {
                let len = inode.size.max(range.end);
                self.zero(view, ino, &inode, range, len, times)
            }
        }
    }

    /// Makes zeros of a range, holes where whole blocks are in it, and the file `len` long, which is not shorter.
    fn zero(&self, view: &View<'_>, ino: u64, inode: &Inode, range: Range<u64>, len: u64, times: Times) -> Result<()> {
        let range = range.start..range.end.min(inode.size);
        if !inode.in_windows {
            return self.zero_inline(view, ino, inode, range, len, times);
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
                (edit.windows, more) = some_windows(view, ino, first..whole.end.div_ceil(WINDOW), WINDOWS_AT_ONCE)?;
                first = edit.windows.last().map_or(first, |last| last + 1);
            }
            let left = self.apply(view, ino, &edit, |change, left| {
                let now = change.now;
                let inode = change.edit(ino)?;
                inode.size = if more || left.is_some() { inode.size } else { len };
                inode.note_write(now, times);
                Ok(())
            })?;
            if !more && left.is_none() {
                return Ok(());
            }
            first = left.unwrap_or(first);
        }
    }

    fn zero_inline(
        &self,
        view: &View<'_>,
        ino: u64,
        inode: &Inode,
        range: Range<u64>,
        len: u64,
        times: Times,
    ) -> Result<()> {
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
        let all = self.apply(view, ino, &edit, |change, _| {
            let now = change.now;
            let inode = change.edit(ino)?;
            (inode.in_windows, inode.inline) = if inline { (false, content) } else { (true, Vec::new()) };
            inode.size = len;
            inode.note_write(now, times);
            Ok(())
        });
        all.map(drop)
    }
}

/// The number of the first window behind the end of a file of that length.
pub(super) fn first_behind(len: u64) -> u64 {
    len.div_ceil(BLOCK * WINDOW)
}

/// The numbers of windows that exist in `range`, ascending, at most `count`, and whether there are more.
pub(super) fn some_windows(view: &View<'_>, ino: u64, range: Range<u64>, count: usize) -> Result<(Vec<u64>, bool)> {
    let (mut indexes, mut more) = (Vec::new(), false);
    let (_, last) = keys::range_of(keys::space::WINDOW, ino);
    view.scan(Key::window(ino, range.start).as_bytes(), &last, &mut |key, _| {
        let index = window_in(key)?;
        more = index < range.end && indexes.len() == count;
        if more || index >= range.end {
            return Ok(ControlFlow::Break(()));
        }
        indexes.push(index);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((indexes, more))
}

impl Tree {
    /// The record of a file whose content is about to change; what an earlier cut left over is dropped before. No transaction
    /// changes it as long as the guard lives.
    fn begin<'t>(&'t self, view: &View<'_>, ino: u64) -> Result<(RwLockReadGuard<'t, ()>, Inode)> {
        loop {
            let joined = self.transactions.read();
            let inode = view.inode(ino)?;
            file(&inode)?;
            if !inode.is_cut {
                return Ok((joined, inode));
            }
            drop(joined);
            self.drain(view, ino)?;
        }
    }

    /// Drops the windows behind the end of an inode that was cut. Each batch looks at what the inode is then, so that others
    /// may do the same, and write.
    pub(crate) fn drain(&self, view: &View<'_>, ino: u64) -> Result<()> {
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
            let (windows, mut more) = some_windows(view, ino, first..u64::MAX, WINDOWS_AT_ONCE)?;
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
            let (windows, more) = some_windows(view, ino, 0..u64::MAX, WINDOWS_AT_ONCE)?;
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
                Err(e) if e.kind().is_refusal() || matches!(e.kind(), ErrorKind::Io | ErrorKind::ReadOnly) => {
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
