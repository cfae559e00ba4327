//! Reading content: which blocks, where they lie, and whether they are what was written.

use std::ops::ControlFlow;

use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError, Result};

use super::FILE_LEN_MAX_BYTES;
use super::view::{View, corrupt_inode, corrupt_key};
use crate::format::keys::{self, Key, Parts};
use crate::format::records::{Block, Inode, WINDOW_LEN_BLOCKS, Window, WindowPart};
use crate::table::BLOCK_LEN_BYTES;

pub(super) const BLOCK: u64 = BLOCK_LEN_BYTES as u64;
pub(super) const WINDOW: u64 = WINDOW_LEN_BLOCKS as u64;

/// A block of a file as window and place in it.
pub(super) fn window_of(block: u64) -> (u64, usize) {
    (block / WINDOW, (block % WINDOW) as usize)
}

/// The number of the window in its logical key: small enough that its blocks have numbers.
pub(super) fn window_in(key: &[u8]) -> Result<u64> {
    match Key::from_logical(key).as_ref().and_then(Key::parts) {
        Some(Parts::Window(_, index)) if index <= FILE_LEN_MAX_BYTES / (BLOCK * WINDOW) => Ok(index),
        _ => Err(corrupt_key(key, "it is no window's")),
    }
}

/// Checks that an inode has content.
pub(super) fn file(inode: &Inode) -> Result<()> {
    match inode.kind {
        Kind::File => Ok(()),
        Kind::Directory => Err(ErrorKind::IsDirectory.into()),
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}

impl View<'_> {
    /// Reads content of `ino` at `offset`; short only at its end. Whoever writes the inode is kept out by the caller.
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode(ino)?;
        file(&inode)?;
        let len = inode.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        if !inode.in_windows {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            if let Some(content) = inode.inline.get(from..).and_then(|rest| rest.get(..len)) {
                buf.copy_from_slice(content);
            }
            return Ok(len);
        }
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (index, _) = window_of(at / BLOCK);
            let in_window = ((index + 1) * WINDOW * BLOCK - at).min((len - done) as u64) as usize;
            let part = &mut buf[done..done + in_window];
            let found = self.find(&Key::window(ino, index))?.value;
            match found {
                None => part.fill(0),
                Some(value) => {
                    // Only of these: a window of a file that is written at random has 256 checksums, and as many places.
                    let (_, first) = window_of(at / BLOCK);
                    let blocks = first..first + ((at % BLOCK) + in_window as u64).div_ceil(BLOCK) as usize;
                    let window = WindowPart::decode(&value, blocks).map_err(|why| corrupt_inode(ino, why))?;
                    self.read_window(ino, &window, at, part)?;
                }
            }
            done += in_window;
        }
        Ok(len)
    }

    /// Reads a part of one window.
    fn read_window(&self, ino: u64, window: &WindowPart, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (_, first) = window_of(at / BLOCK);
            let left = buf.len() - done;
            let Some(block) = window.get(first) else {
                let hole = (BLOCK - at % BLOCK).min(left as u64) as usize;
                buf[done..done + hole].fill(0);
                done += hole;
                continue;
            };
            if !at.is_multiple_of(BLOCK) || left < BLOCK_LEN_BYTES {
                let (from, mut whole) = ((at % BLOCK) as usize, [0; BLOCK_LEN_BYTES]);
                self.read_blocks(ino, at - at % BLOCK, &[block], &mut whole)?;
                let part = (BLOCK_LEN_BYTES - from).min(left);
                buf[done..done + part].copy_from_slice(&whole[from..from + part]);
                done += part;
                continue;
            }
            let follows = |i: &usize| window.get(first + i).filter(|b| block.at.checked_add(*i as u64) == Some(b.at));
            let run: Vec<Block> = (0..left / BLOCK_LEN_BYTES).map_while(|i| follows(&i)).collect();
            let bytes = run.len() * BLOCK_LEN_BYTES;
            self.read_blocks(ino, at, &run, &mut buf[done..done + bytes])?;
            done += bytes;
        }
        Ok(())
    }

    /// Reads blocks that lie one behind the other, and verifies each.
    pub(super) fn read_blocks(&self, ino: u64, offset: u64, blocks: &[Block], buf: &mut [u8]) -> Result<()> {
        let Some(first) = blocks.first() else { return Ok(()) };
        let named = |e: FsError| e.on("read", self.name_for_messages(ino));
        self.tree.extents.read(first.at, buf).map_err(named)?;
        for (i, (block, bytes)) in blocks.iter().zip(buf.chunks_exact(BLOCK_LEN_BYTES)).enumerate() {
            if crc32c::crc32c(bytes) != block.sum {
                let at = offset + (i * BLOCK_LEN_BYTES) as u64;
                let why = format!("the 4 KiB at offset {at} are not what was written (block {})", block.at);
                return Err(FsError::new(ErrorKind::Corrupt).on("read", self.name_for_messages(ino)).because(why));
            }
        }
        Ok(())
    }

    fn name_for_messages(&self, ino: u64) -> String {
        self.path_of(ino).ok().flatten().unwrap_or_else(|| format!("inode {ino}"))
    }

    /// Hands out the windows of `ino` from number `first` on.
    pub(super) fn windows(
        &self,
        ino: u64,
        first: u64,
        sink: &mut dyn FnMut(u64, &Window) -> ControlFlow<()>,
    ) -> Result<()> {
        let (_, end) = keys::range_of(keys::space::WINDOW, ino);
        self.scan(Key::window(ino, first).as_bytes(), &end, &mut |key, value| match Key::from_logical(key)
            .as_ref()
            .and_then(Key::parts)
        {
            Some(Parts::Window(..)) => {
                let index = window_in(key)?;
                let window = Window::decode(value).map_err(|why| corrupt_inode(ino, why))?;
                Ok(sink(index, &window))
            }
            _ => Err(corrupt_key(key, "it is no window's")),
        })
    }

    /// `SEEK_DATA`.
    pub fn seek_data(&self, ino: u64, offset: u64) -> Result<u64> {
        let inode = self.inode(ino)?;
        if offset >= inode.size {
            return Err(ErrorKind::NoData.into());
        }
        if !inode.in_windows {
            return Ok(offset);
        }
        let from = offset / BLOCK;
        let mut hit = None;
        self.windows(ino, from / WINDOW, &mut |index, window| {
            let blocks = window.iter().map(|(at, _)| index * WINDOW + at as u64);
            hit = blocks.into_iter().find(|&block| block >= from);
            if hit.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let at = hit.map(|block| offset.max(block * BLOCK)).filter(|&at| at < inode.size);
        at.ok_or_else(|| ErrorKind::NoData.into())
    }

    /// `SEEK_HOLE`.
    pub fn seek_hole(&self, ino: u64, offset: u64) -> Result<u64> {
        let inode = self.inode(ino)?;
        if offset >= inode.size {
            return Err(ErrorKind::NoData.into());
        }
        if !inode.in_windows {
            return Ok(inode.size);
        }
        // The first block that was not found yet.
        let mut next = offset / BLOCK;
        self.windows(ino, next / WINDOW, &mut |index, window| {
            while next / WINDOW == index && window.get((next % WINDOW) as usize).is_some() {
                next += 1;
            }
            if next == (index + 1) * WINDOW { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(offset.max(next * BLOCK).min(inode.size))
    }
}
