//! The check of a whole volume: pages, tree, ownership of blocks, content; and what of it can be repaired.
//!
//! Everything is compared with something else that was written: pages and blocks with their checksums, the tree with its own
//! rules ([`Tree::verify`]), the blocks that it refers to with those that are not free. A repair gives back blocks that belong
//! to nobody, and nothing else. The volume must not be in use.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;

use adit_core::{ErrorKind, Result};

use crate::format::keys::{self, Id, Key, Parts, space};
use crate::format::records::{self, WINDOW_LEN_BLOCKS, Window};
use crate::table::{BLOCK_LEN_BYTES, Batch, Extents, Run, Table};
use crate::tree::{Source, Tree};
use crate::volume::Volume;

/// Most problems that are told one by one.
const PROBLEMS_MAX: usize = 1000;
/// Versions of windows that are read at once.
const WINDOWS_AT_ONCE: usize = 256;

/// How thoroughly to look.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether to read what files hold.
    pub contents: bool,
    /// Whether to repair what can be.
    pub repair: bool,
}

/// Kinds of problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemKind {
    /// A page of the metadata does not have its checksum.
    DamagedPage,
    /// The tree breaks a rule.
    Tree,
    /// A block of a file does not have its checksum, or cannot be read.
    DamagedContent,
    /// Blocks that are not free belong to nobody.
    LostBlocks,
    /// Blocks that a file refers to are free.
    FreeBlocks,
    /// There is more than can be told.
    More,
}

impl ProblemKind {
    /// The word in `--json` output.
    pub fn as_str(self) -> &'static str {
        match self {
            ProblemKind::DamagedPage => "damaged-page",
            ProblemKind::Tree => "tree",
            ProblemKind::DamagedContent => "damaged-content",
            ProblemKind::LostBlocks => "lost-blocks",
            ProblemKind::FreeBlocks => "free-blocks",
            ProblemKind::More => "more",
        }
    }

    /// Whether a repair mends it.
    pub fn is_repairable(self) -> bool {
        self == ProblemKind::LostBlocks
    }
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What it is.
    pub kind: ProblemKind,
    /// Where, if it is about one path.
    pub path: Option<String>,
    /// The snapshot or branch in which it has that path.
    pub part: Option<String>,
    /// More, in words.
    pub detail: String,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, after the repair.
    pub problems: Vec<Problem>,
    /// What was repaired.
    pub repaired: Vec<Problem>,
    /// Inodes, each version counted.
    pub inodes: u64,
    /// Blocks that files refer to.
    pub blocks: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
}

impl Report {
    fn add(&mut self, kind: ProblemKind, detail: impl std::fmt::Display) {
        self.push(Problem { kind, path: None, part: None, detail: detail.to_string() });
    }

    fn push(&mut self, problem: Problem) {
        match self.problems.len() {
            PROBLEMS_MAX => self.problems.push(Problem {
                kind: ProblemKind::More,
                path: None,
                part: None,
                detail: format!("there are more than {PROBLEMS_MAX} problems; the others are not told"),
            }),
            count if count < PROBLEMS_MAX => self.problems.push(problem),
            _ => {}
        }
    }
}

/// How far a check is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Windows of files that were looked at.
    pub windows: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
}

/// Checks `volume`, which is not in use.
///
/// # Errors
/// What keeps the check from going on; damage is in the report.
pub fn check(volume: &Volume, options: Options, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
    let (base, tree) = (volume.base(), volume.tree());
    let mut report = Report::default();
    for page in base.damaged_pages() {
        report.add(ProblemKind::DamagedPage, format!("page {page} of the metadata does not have its checksum"));
    }
    if options.repair && report.problems.is_empty() {
        tree.reap_unused()?;
        tree.collect()?;
    }
    let verified = match tree.verify() {
        Ok(verified) => verified,
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            report.add(ProblemKind::Tree, format!("it cannot be read as a whole: {e}"));
            return Ok(report);
        }
        Err(e) => return Err(e),
    };
    for problem in verified.problems {
        report.add(ProblemKind::Tree, problem);
    }
    report.inodes = count_inodes(tree)?;
    report.blocks = verified.blocks.len() as u64;
    let sound = report.problems.is_empty();
    let (lost, free) = compare(&base.allocated(), &verified.blocks);
    if free > 0 {
        report.add(ProblemKind::FreeBlocks, format!("{free} blocks that files refer to are free"));
    }
    if !lost.is_empty() {
        let count: u64 = lost.iter().map(|run| u64::from(run.count)).sum();
        report.add(ProblemKind::LostBlocks, format!("{count} blocks are not free and belong to nobody"));
        // Only where the tree is whole: what belongs to nobody may else belong to what could not be read.
        if options.repair && sound && free == 0 {
            base.apply(Batch { freed: lost, uses_reserve: true, ..Batch::default() })?;
            base.sync()?;
            report.repaired.extend(report.problems.pop());
        }
    }
    if options.contents {
        contents(volume, &mut report, progress)?;
    }
    Ok(report)
}

fn count_inodes(tree: &Tree) -> Result<u64> {
    let mut count = 0;
    tree.table.scan(&[space::INODE], &[space::INODE + 1], &mut |_, value| {
        count += u64::from(!records::is_tombstone(value));
        ControlFlow::Continue(())
    })?;
    Ok(count)
}

/// Which of the `allocated` blocks nobody refers to, and how many of the `referred` ones are not allocated.
fn compare(allocated: &[Run], referred: &BTreeSet<u64>) -> (Vec<Run>, u64) {
    let (mut lost, mut owned): (Vec<Run>, u64) = (Vec::new(), 0);
    for block in allocated.iter().flat_map(Run::blocks) {
        if referred.contains(&block) {
            owned += 1;
            continue;
        }
        match lost.last_mut() {
            Some(run) if run.end() == block && run.count < u32::MAX => run.count += 1,
            _ => lost.push(Run { start: block, count: 1 }),
        }
    }
    (lost, (referred.len() as u64).saturating_sub(owned))
}

/// A version of a window, with the inode and its number.
type Found = (u64, u64, Id, Window);

/// Reads each block that a file refers to, once.
fn contents(volume: &Volume, report: &mut Report, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let (base, tree) = (volume.base(), volume.tree());
    let (mut read, mut told) = (HashSet::new(), HashSet::new());
    let (mut block, mut windows) = (vec![0; BLOCK_LEN_BYTES], 0);
    let mut start = vec![space::WINDOW];
    loop {
        let (batch, next) = some_windows(tree, &start)?;
        for (ino, index, id, window) in batch {
            windows += 1;
            for (at, place) in window.iter() {
                if !read.insert(place.at) {
                    continue;
                }
                let why = match base.read(place.at, &mut block) {
                    Ok(()) if crc32c::crc32c(&block) == place.sum => {
                        report.bytes += BLOCK_LEN_BYTES as u64;
                        continue;
                    }
                    Ok(()) => format!("block {} does not have its checksum", place.at),
                    Err(e) => format!("block {} cannot be read: {e}", place.at),
                };
                // One for each file is enough to know that it is damaged.
                if told.insert((ino, id)) {
                    let offset = (index * WINDOW_LEN_BLOCKS as u64 + at as u64) * BLOCK_LEN_BYTES as u64;
                    report.push(damaged(tree, ino, offset, &why));
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

/// What is wrong at `offset` of a file, named by a path that it has in a snapshot or branch.
fn damaged(tree: &Tree, ino: u64, offset: u64, why: &str) -> Problem {
    let path_in = |source: &Source| tree.view(source).and_then(|view| view.path_of(ino)).ok().flatten();
    let named = tree.snapshots().into_iter().find_map(|info| {
        let source = if info.is_branch { Source::Branch(info.name.clone()) } else { Source::Snapshot(info.id) };
        Some((path_in(&source)?, info.name))
    });
    let (path, part) = named.unzip();
    let detail = format!("inode {ino}, from byte {offset} on: {why}");
    Problem { kind: ProblemKind::DamagedContent, path, part, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_compared_both_ways() {
        let runs = [Run { start: 10, count: 4 }, Run { start: 20, count: 1 }];
        let (lost, free) = compare(&runs, &BTreeSet::from([11, 20, 30, 31]));
        assert_eq!(lost, [Run { start: 10, count: 1 }, Run { start: 12, count: 2 }]);
        assert_eq!(free, 2);
        assert_eq!(compare(&runs, &(10..14).chain([20]).collect()), (Vec::new(), 0));
    }
}
