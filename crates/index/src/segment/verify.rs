//! All of a segment looked at: each block, and whether what they say fits together.

use std::ops::ControlFlow;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;

use super::names::Names;
use super::{Column, NodeId, Segment, slot};
use crate::build::tables;
use crate::error::{Damage, Fault};
use crate::layout::{self, BLOCK_LEN_BYTES, DEPTH_MAX, Section};
use crate::progress::{Progress, Report, Stage};

/// So many blocks or nodes are looked at between two reports.
const STEP: u32 = 1 << 14;

/// What comes next if all fits together.
struct Expected {
    /// The first node that no directory has had among its children.
    child: u32,
    /// The directory whose children are being looked at, and where they end.
    dir: u32,
    dir_end: u32,
    /// Where the level of the tree ends that is being looked at, and how many are above it.
    level_end: u32,
    depth: usize,
    /// The next of the extra bytes.
    extra: u64,
    extra_at: u64,
}

impl Segment {
    /// Looks at all of it: each byte is right, every name is a name, the children of each directory are in order, each
    /// node is in the directory that says so. Takes about as long as reading the file. `progress` is told now and then, and can end
    /// it (`Interrupted`).
    ///
    /// # Errors
    /// `Corrupt`, with the first [`Damage`] that was found as the cause.
    pub fn verify(&self, progress: &mut Report<'_>) -> Result<()> {
        self.verify_blocks(progress)?;
        let mut expected = Expected { child: 1, dir: 0, dir_end: 1, level_end: 1, depth: 0, extra: 0, extra_at: 0 };
        let mut names = Names::at(self, 0)?;
        let mut before: &[u8] = &[];
        for node in 0..self.len() {
            if node.is_multiple_of(STEP) {
                let done = Progress { stage: Stage::Verify, done: node.into(), total: self.len().into() };
                self.report(progress, done)?;
            }
            let name = names.step_valid()?;
            let is_first = self.verify_place(node, &mut expected)?;
            if !is_first && before >= name {
                return Err(self.damaged(node, "its name is not behind the one before"));
            }
            before = name;
            self.verify_facts(node, &mut expected)?;
        }
        if names.at != self.section_len(Section::Names) {
            return Err(self.damaged(self.len() - 1, "its name is the last, and the names go on"));
        }
        if (expected.extra, expected.extra_at) != (self.extra_entries(), self.section_len(Section::Extra)) {
            return Err(self.damaged(self.len() - 1, "it is the last, and the extra bytes go on"));
        }
        self.verify_tables(progress)
    }

    /// The tables are what is made of the nodes, which were found to be right. Takes 16 bytes of memory for each node.
    fn verify_tables(&self, progress: &mut Report<'_>) -> Result<()> {
        let columns = self.columns()?;
        let present = |section: &Section| self.columns[slot(*section)].is_some();
        let total = Section::TABLES.iter().filter(|section| present(section)).count() as u64;
        for (number, section) in Section::TABLES.into_iter().filter(present).enumerate() {
            let done = Progress { stage: Stage::Tables, done: number as u64, total };
            self.report(progress, done)?;
            let mut rest = self.section(section);
            let mut same = true;
            tables::make_in_memory(section, &columns, &mut |bytes| {
                same &= rest.split_off(..bytes.len()) == Some(bytes);
            })?;
            if !same || !rest.is_empty() {
                return Err(self.fault(Damage::Table { section: section.words() }));
            }
        }
        Ok(())
    }

    /// Every block of every section, also of those that this version does not know, and what lies between them.
    fn verify_blocks(&self, progress: &mut Report<'_>) -> Result<()> {
        let mut first_block = 0;
        let mut end = layout::header_len(self.header.sections.len(), self.header.identity.len()) as u64;
        for entry in &self.header.sections {
            self.verify_gap(end, entry.offset)?;
            end = entry.offset + entry.len;
            let column = Column { offset: entry.offset, len: entry.len, first_block };
            for block in 0..entry.blocks() {
                if block.is_multiple_of(64) {
                    let at = entry.offset + block * BLOCK_LEN_BYTES;
                    let done = Progress { stage: Stage::Read, done: at, total: self.file_len() };
                    self.report(progress, done)?;
                }
                self.check_block(layout::words_of(entry.kind), column, block).map_err(|fault| fault.of(&self.path))?;
            }
            first_block += entry.blocks();
        }
        self.verify_gap(end, self.header.sums_offset)
    }

    /// Between two sections there are zeros.
    fn verify_gap(&self, from: u64, to: u64) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let mut gap = vec![0; (to - from) as usize];
        self.file.read_exact_at(&mut gap, from).map_err(|e| Fault::from(e).of(&self.path))?;
        if gap.iter().any(|byte| *byte != 0) {
            return Err(self.fault(Damage::Header("there is something between two sections")));
        }
        Ok(())
    }

    /// Whether a node is where its directory says. True if it is the first child there.
    fn verify_place(&self, node: u32, expected: &mut Expected) -> Result<bool> {
        if node == expected.level_end {
            expected.level_end = expected.child;
            expected.depth += 1;
            if expected.depth > DEPTH_MAX {
                return Err(self.damaged(node, "it is too deep in the tree"));
            }
        }
        let parent = self.parent(NodeId(node))?.0;
        if node == 0 {
            return Ok(true);
        }
        let mut is_first = false;
        if node == expected.dir_end {
            is_first = true;
            let range = self.child_range(NodeId(parent))?;
            if range.start != node || range.is_empty() {
                return Err(self.damaged(node, "its directory does not know it"));
            }
            (expected.dir, expected.dir_end) = (parent, range.end);
        }
        if parent != expected.dir {
            return Err(self.damaged(node, "it is among the children of another directory"));
        }
        Ok(is_first)
    }

    /// Whether what a node says of itself can be.
    fn verify_facts(&self, node: u32, expected: &mut Expected) -> Result<()> {
        let id = NodeId(node);
        let kind = self.kind(id)?;
        if kind == Kind::Directory {
            let range = self.child_range(id)?;
            if range.start != expected.child {
                return Err(self.damaged(node, "its children are not where they should be"));
            }
            expected.child = range.end;
        } else if node == 0 {
            return Err(self.damaged(node, "the root is no directory"));
        }
        if self.hash(id)?.is_none() && self.section_len(Section::Hashes) > 0 {
            let zeros: [u8; 16] = self.array(Section::Hashes, node.into())?;
            if zeros != [0; 16] {
                return Err(self.damaged(node, "it has no hash, and yet there is one"));
            }
        }
        if self.stamp(id)?.is_some() && self.hash(id)?.is_none() {
            return Err(self.damaged(node, "it has no hash, and yet it is said of which file"));
        }
        if expected.extra < self.extra_entries() {
            let (of, at, len) = self.extra_entry(expected.extra)?;
            if of < node || of == node && (at != expected.extra_at || len == 0) {
                return Err(self.damaged(node, "its extra bytes are not where they should be"));
            }
            if of == node {
                expected.extra += 1;
                expected.extra_at += u64::from(len);
            }
        }
        Ok(())
    }

    fn report(&self, progress: &mut Report<'_>, done: Progress) -> Result<()> {
        match progress(done) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(FsError::new(ErrorKind::Interrupted).on("check index", self.path.display())),
        }
    }
}
