//! Names: where they lie, and how one is found.
//!
//! The arena has the names in the order of the nodes, each with a zero byte after it. [`Section::NamePositions`] says where
//! that of every 16th node begins; the others are reached by the lengths before them, at most fifteen, which are one line of
//! the processor's cache and one or two of the arena. So a name is found by halving the groups that begin in the directory,
//! then going through one.

use std::cmp::Ordering;

use adit_core::error::Result;
use adit_core::types::Kind;

use super::{NodeId, Segment};
use crate::layout::{GROUP_LEN, NAME_IS_LONG, PATH_LEN_MAX_BYTES, Section, is_name};

/// A child in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child<'a> {
    /// Its number.
    pub id: NodeId,
    /// Its name: a valid one, at most [`PATH_LEN_MAX_BYTES`] long.
    pub name: &'a [u8],
    /// What it is.
    pub kind: Kind,
}

/// The children of a directory in the order of their names' bytes. Ends after an error.
pub struct Children<'a> {
    names: Option<Names<'a>>,
    end: u32,
}

impl<'a> Iterator for Children<'a> {
    type Item = Result<Child<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let names = self.names.as_mut().filter(|names| names.node < self.end)?;
        let id = NodeId(names.node);
        let child = names.step_valid().and_then(|name| Ok(Child { id, name, kind: names.segment.kind(id)? }));
        if child.is_err() {
            self.names = None;
        }
        Some(child)
    }
}

/// A place in the arena that goes from name to name.
pub(super) struct Names<'a> {
    segment: &'a Segment,
    /// The node whose name is the next one.
    pub node: u32,
    /// Where that name begins.
    pub at: u64,
}

impl<'a> Names<'a> {
    /// At the name of `node`, which there is.
    pub fn at(segment: &'a Segment, node: u32) -> Result<Self> {
        let first = node - node % GROUP_LEN;
        let lens = segment.bytes(Section::NameLengths, first.into(), (node - first) as usize)?;
        let mut names = Names { segment, node: first, at: segment.group_at(first / GROUP_LEN)? };
        for len in lens {
            let len = names.len_of(*len)?;
            names.pass(len);
        }
        Ok(names)
    }

    /// The next name. That it is a valid one nobody has looked at.
    pub fn step(&mut self) -> Result<&'a [u8]> {
        let [len] = self.segment.array(Section::NameLengths, self.node.into())?;
        if self.node.is_multiple_of(GROUP_LEN) && self.segment.group_at(self.node / GROUP_LEN)? != self.at {
            return Err(self.segment.damaged(self.node, "its name is not where the one before ends"));
        }
        let len = self.len_of(len)?;
        let name = self.segment.bytes(Section::Names, self.at, len + 1)?;
        let (name, end) = name.split_at(len);
        if end != [0] {
            return Err(self.segment.damaged(self.node, "its name does not end where it should"));
        }
        self.pass(len);
        Ok(name)
    }

    /// The next name, which is a valid one.
    pub fn step_valid(&mut self) -> Result<&'a [u8]> {
        let node = self.node;
        let name = self.step()?;
        let valid = if node == 0 { name.is_empty() } else { is_name(name) };
        if valid { Ok(name) } else { Err(self.segment.damaged(node, "its name is not a name")) }
    }

    fn pass(&mut self, len: usize) {
        self.node += 1;
        // A name lies in the arena, or was not looked for: the end of what is here is no more than 2^17 ahead of its end.
        self.at = self.at.saturating_add(len as u64 + 1);
    }

    /// The length of the name at this place, of which its column says `len`.
    fn len_of(&self, len: u8) -> Result<usize> {
        if len != NAME_IS_LONG {
            return Ok(len.into());
        }
        let room = self.segment.section_len(Section::Names).saturating_sub(self.at).min(PATH_LEN_MAX_BYTES as u64 + 1)
            as usize;
        let bytes = self.segment.bytes(Section::Names, self.at, room)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        end.filter(|len| *len >= usize::from(NAME_IS_LONG))
            .ok_or_else(|| self.segment.damaged(self.node, "its long name does not end where it should"))
    }
}

impl Segment {
    /// The name of a node; that of the root is empty. A valid name: without slash and NUL, not `.` or `..`.
    pub fn name(&self, id: NodeId) -> Result<&[u8]> {
        self.check_id(id)?;
        Names::at(self, id.0)?.step_valid()
    }

    /// The child of this name in a directory, if there is one. Every byte of the name was compared.
    ///
    /// # Errors
    /// `NotDirectory` if `parent` is none, `InvalidInput` if there is no such node, `Corrupt` where something is wrong.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Option<NodeId>> {
        let found = self.search(parent, name)?;
        self.expect_whole()?;
        Ok(found)
    }

    fn search(&self, parent: NodeId, name: &[u8]) -> Result<Option<NodeId>> {
        let range = self.child_range(parent)?;
        // The groups that begin in the range; those before `low` begin with this name or one before it.
        let first = range.start.div_ceil(GROUP_LEN);
        let (mut low, mut high) = (first, range.end.div_ceil(GROUP_LEN).max(first));
        while low < high {
            let middle = low + (high - low) / 2;
            let node = middle * GROUP_LEN;
            match Names::at(self, node)?.step()?.cmp(name) {
                Ordering::Equal => return Ok(Some(NodeId(node))),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        let start = if low == first { range.start } else { (low - 1) * GROUP_LEN };
        let end = (u64::from(low) * u64::from(GROUP_LEN)).min(range.end.into()) as u32;
        if start >= end {
            return Ok(None);
        }
        let mut names = Names::at(self, start)?;
        while names.node < end {
            let node = names.node;
            match names.step()?.cmp(name) {
                Ordering::Equal => return Ok(Some(NodeId(node))),
                Ordering::Less => {}
                Ordering::Greater => break,
            }
        }
        Ok(None)
    }

    /// The children of a directory in the order of their names' bytes, without the first `from`.
    ///
    /// # Errors
    /// `NotDirectory` if `dir` is none; an item is `Corrupt` where something is wrong, and the last one then.
    pub fn children(&self, dir: NodeId, from: u32) -> Result<Children<'_>> {
        let range = self.child_range(dir)?;
        let start = range.start.saturating_add(from);
        let names = if start < range.end { Some(Names::at(self, start)?) } else { None };
        Ok(Children { names, end: range.end })
    }

    /// Where the first name of a group begins.
    fn group_at(&self, group: u32) -> Result<u64> {
        self.array(Section::NamePositions, group.into()).map(u64::from_le_bytes)
    }
}
