//! Whether what files hold is what was written: each block has its checksum.

use std::collections::HashSet;
use std::ops::ControlFlow;

use adit_core::Result;

use super::{Named, Problem, ProblemKind, Progress, Report, push};
use crate::format::keys::{self, Id, Key, Parts, space};
use crate::format::records::{self, Block, WINDOW_LEN_BLOCKS, Window};
use crate::table::BLOCK_LEN_BYTES;
use crate::tree::Tree;

/// Versions of windows that are read at once.
const WINDOWS_AT_ONCE: usize = 256;
/// Most snapshots and branches that a text names.
const PARTS_NAMED_MAX: usize = 5;

/// A version of a window, with the inode and its number.
type Found = (u64, u64, Id, Window);

/// Reads each block that a file refers to, once.
pub(super) fn check(tree: &Tree, report: &mut Report, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let parts = Named::of(tree);
    // A block belongs to one window only, of which several versions may have it; with its sum, for one of them may be wrong.
    let (mut read, mut told) = (HashSet::new(), HashSet::new());
    let (mut block, mut windows, mut last) = (vec![0; BLOCK_LEN_BYTES], 0, (0, 0));
    let mut start = vec![space::WINDOW];
    loop {
        let (batch, next) = some_windows(tree, &start)?;
        for (ino, index, id, window) in batch {
            windows += 1;
            if (ino, index) != last {
                read.clear();
            }
            if ino != last.0 {
                told.clear();
            }
            last = (ino, index);
            for (at, place) in window.iter() {
                if !read.insert((place.at, place.sum)) {
                    continue;
                }
                let why = match tree.extents.read(place.at, &mut block) {
                    Ok(()) if crc32c::crc32c(&block) == place.sum => {
                        report.bytes += BLOCK_LEN_BYTES as u64;
                        continue;
                    }
                    Ok(()) => format!("block {} does not have its checksum", place.at),
                    Err(e) => format!("block {} cannot be read: {e}", place.at),
                };
                // One for each file is enough to know that it is damaged.
                if told.insert(id) {
                    push(&mut report.problems, damaged(&parts, ino, index, (at, place), &why));
                }
            }
            progress(Progress { windows, bytes: report.bytes });
        }
        match next {
            Some(next) => start = next,
            None => return Ok(()),
        }
    }
}

/// Versions of windows from the key `start` on, and where to go on. Damaged ones are the tree's to tell.
fn some_windows(tree: &Tree, start: &[u8]) -> Result<(Vec<Found>, Option<Vec<u8>>)> {
    let (mut found, mut next) = (Vec::new(), None);
    tree.table.scan(start, &[space::WINDOW + 1], &mut |bytes, value| {
        if found.len() == WINDOWS_AT_ONCE {
            next = Some(bytes.to_vec());
            return ControlFlow::Break(());
        }
        let key = keys::split(bytes).and_then(|(logical, id)| Some((Key::from_logical(logical)?, id)));
        if let Some((key, id)) = key
            && let Some(Parts::Window(ino, index)) = key.parts()
            && !records::is_tombstone(value)
            && let Ok(window) = Window::decode(value)
        {
            found.push((ino, index, id, window));
        }
        ControlFlow::Continue(())
    })?;
    Ok((found, next))
}

/// What is wrong with a block of a file, named by a path that the file has in a snapshot or branch with that block; and who has
/// it as well.
fn damaged(parts: &Named<'_>, ino: u64, window: u64, block: (usize, Block), why: &str) -> Problem {
    let first = u128::from(window) * WINDOW_LEN_BLOCKS as u128;
    let offset = (first + block.0 as u128) * BLOCK_LEN_BYTES as u128;
    let mut detail = format!("inode {ino}, from byte {offset} on: {why}");
    let mut having = parts.with_block(ino, window, block);
    let Some(info) = having.next() else {
        // No longer anybody's, or of what is damaged otherwise, too.
        let (path, part) = parts.path_of(ino).unzip();
        return Problem::new(ProblemKind::DamagedContent, detail).at(path, part);
    };
    let also_in: Vec<String> = having.map(|info| info.name.clone()).collect();
    let names = parts.tree.view(&Named::source(info)).and_then(|view| view.inode(ino)).map_or(1, |inode| inode.nlink);
    if names > 1 {
        let more = if names == 2 { "1 name more".to_owned() } else { format!("{} names more", names - 1) };
        detail.push_str(&format!("; it has {more}"));
    }
    if !also_in.is_empty() {
        let named = also_in.iter().take(PARTS_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let rest = if also_in.len() > PARTS_NAMED_MAX { ", …" } else { "" };
        detail.push_str(&format!("; {} more have the same: {named}{rest}", also_in.len()));
    }
    let problem = Problem::new(ProblemKind::DamagedContent, detail);
    // Where it has lost its name there, it is known by one that it has elsewhere.
    let path = parts.path_in(info, ino).or_else(|| parts.path_of(ino).map(|(path, _)| path));
    Problem { also_in, ..problem.at(path, Some(info.name.clone())) }
}
