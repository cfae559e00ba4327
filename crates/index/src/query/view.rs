//! A stretch of nodes as slices of their columns, and a place in it: [`View`], [`Cursor`].
//!
//! Only the blocks of the stretch are compared with their checksums, by the thread that asks. So the first answer need not wait for the
//! rest of the segment, and the comparing is spread over all threads.

use std::ops::Range;

use adit_core::error::Result;
use adit_core::types::Kind;

use crate::layout::{GROUP_LEN, Mode, NAME_IS_LONG, PATH_LEN_MAX_BYTES, Section, unpack_children};
use crate::segment::Segment;

/// Nodes from `first` to `end`, which are borders of groups, with their names.
pub(super) struct View<'a> {
    pub segment: &'a Segment,
    first: u32,
    end: u32,
    /// Where `names` begins in the arena.
    base: u64,
    /// The names, and what is behind the last one up to the end of its group.
    pub names: &'a [u8],
    lens: &'a [u8],
    positions: &'a [[u8; 8]],
}

impl<'a> View<'a> {
    /// Of these nodes, which there are.
    pub fn new(segment: &'a Segment, nodes: &Range<u32>) -> Result<View<'a>> {
        let first = nodes.start - nodes.start % GROUP_LEN;
        let end = nodes.end.checked_next_multiple_of(GROUP_LEN).unwrap_or(u32::MAX).min(segment.len());
        let groups = end.div_ceil(GROUP_LEN) - first / GROUP_LEN;
        let positions = slice::<8>(segment, Section::NamePositions, first / GROUP_LEN, groups)?;
        let lens = segment.section_bytes(Section::NameLengths, first.into(), (end - first) as usize)?;
        let base = positions.first().map_or(0, |at| u64::from_le_bytes(*at));
        let behind = if end < segment.len() {
            let at = segment.section_bytes(Section::NamePositions, u64::from(end / GROUP_LEN) * 8, 8)?;
            u64::from_le_bytes(at.try_into().expect("as many bytes as were asked for"))
        } else {
            segment.section(Section::Names).len() as u64
        };
        // That it fits in memory is looked at where the bytes are taken.
        let len = behind.checked_sub(base).and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or_else(|| segment.damaged(first, "its name is behind that of a later node"))?;
        let names = segment.section_bytes(Section::Names, base, len)?;
        Ok(View { segment, first, end, base, names, lens, positions })
    }

    /// At the name of the first node of the stretch.
    pub fn cursor(&self) -> Cursor<'_, 'a> {
        Cursor { view: self, node: self.first, at: 0 }
    }

    /// Where the first name of a group of the arena begins, from the beginning of `names`.
    fn group_at(&self, group: usize) -> Option<usize> {
        let at = u64::from_le_bytes(*self.positions.get(group)?);
        at.checked_sub(self.base).and_then(|at| usize::try_from(at).ok()).filter(|at| *at <= self.names.len())
    }
}

/// The name of a node in a [`View`].
#[derive(Clone)]
pub(super) struct Cursor<'v, 'a> {
    view: &'v View<'a>,
    /// The node.
    pub node: u32,
    /// Where its name begins in the view's names.
    pub at: usize,
}

impl<'a> Cursor<'_, 'a> {
    /// Where the name ends: at its zero byte.
    #[inline]
    pub fn end(&self) -> Result<usize> {
        let view = self.view;
        let len = view.lens.get((self.node - view.first) as usize).copied().unwrap_or(NAME_IS_LONG);
        let end = if len == NAME_IS_LONG { self.long_end()? } else { self.at + usize::from(len) };
        if view.names.get(end) == Some(&0) { Ok(end) } else { Err(self.damaged()) }
    }

    #[cold]
    fn long_end(&self) -> Result<usize> {
        let rest = self.view.names.get(self.at..).unwrap_or_default();
        let rest = &rest[..rest.len().min(PATH_LEN_MAX_BYTES + 1)];
        memchr::memchr(0, rest).map(|len| self.at + len).ok_or_else(|| self.damaged())
    }

    #[cold]
    fn damaged(&self) -> adit_core::error::FsError {
        self.view.segment.damaged(self.node, "its name does not end where it should")
    }

    /// The name.
    #[inline]
    pub fn name(&self) -> Result<&'a [u8]> {
        Ok(&self.view.names[self.at..self.end()?])
    }

    /// Goes to the next node. The one behind the last of the view has no name.
    #[inline]
    pub fn step(&mut self) -> Result<()> {
        self.at = self.end()? + 1;
        self.node += 1;
        Ok(())
    }

    /// Goes to a node of the view that is not before this one; or behind its last one.
    pub fn go_to(&mut self, node: u32) -> Result<()> {
        debug_assert!(self.node <= node && node <= self.view.end, "a view is read forwards");
        let first = self.view.first;
        if node / GROUP_LEN > self.node / GROUP_LEN && node < self.view.end {
            self.enter((node - first) / GROUP_LEN)?;
        }
        while self.node < node {
            self.step()?;
        }
        Ok(())
    }

    /// Goes to the node whose name, or the zero byte behind it, is at a place that is not before this name.
    pub fn seek(&mut self, place: usize) -> Result<()> {
        let view = self.view;
        let group = ((self.node - view.first) / GROUP_LEN) as usize;
        let is_behind = |group: usize| view.group_at(group).is_none_or(|at| at > place);
        if !is_behind(group + 1) {
            // In steps that double, and then between the last two of them: what is near is found soon.
            let mut step = 1;
            while !is_behind(group + 2 * step) {
                step *= 2;
            }
            let (low, high) = (group + step, (group + 2 * step).min(view.positions.len()));
            let ahead = view.positions[low..high]
                .partition_point(|at| u64::from_le_bytes(*at).saturating_sub(view.base) <= place as u64);
            self.enter((low + ahead.max(1) - 1) as u32)?;
        }
        loop {
            let end = self.end()?;
            if place <= end {
                return Ok(());
            }
            self.at = end + 1;
            self.node += 1;
        }
    }

    /// Goes to the first node of a group of the view.
    fn enter(&mut self, group: u32) -> Result<()> {
        self.node = self.view.first + group * GROUP_LEN;
        self.at = self.view.group_at(group as usize).ok_or_else(|| self.damaged())?;
        Ok(())
    }
}

/// Some elements of a column.
pub(super) fn slice<const N: usize>(segment: &Segment, section: Section, first: u32, count: u32) -> Result<&[[u8; N]]> {
    let bytes = segment.section_bytes(section, u64::from(first) * N as u64, count as usize * N)?;
    Ok(bytes.as_chunks().0)
}

/// Facts of a stretch of nodes: slices that begin with the same node. Those that nobody needs are empty.
#[derive(Clone, Copy, Default)]
pub(super) struct Facts<'a> {
    pub first: u32,
    pub modes: &'a [[u8; 2]],
    pub sizes: &'a [[u8; 8]],
    pub times: &'a [[u8; 8]],
}

impl<'a> Facts<'a> {
    /// Kinds, sizes and children of these nodes, which there are.
    pub fn sizes(segment: &'a Segment, nodes: &Range<u32>) -> Result<Facts<'a>> {
        let (first, count) = (nodes.start, nodes.end - nodes.start);
        let modes = slice(segment, Section::Modes, first, count)?;
        Ok(Facts { first, modes, sizes: slice(segment, Section::Sizes, first, count)?, times: &[] })
    }

    #[inline]
    pub fn kind(&self, node: u32) -> Kind {
        Mode(u16::from_le_bytes(self.modes[(node - self.first) as usize])).kind()
    }

    #[inline]
    pub fn is_dir(&self, node: u32) -> bool {
        self.kind(node) == Kind::Directory
    }

    /// Of what is no directory.
    #[inline]
    pub fn size(&self, node: u32) -> u64 {
        u64::from_le_bytes(self.sizes[(node - self.first) as usize])
    }

    #[inline]
    pub fn mtime_ns(&self, node: u32) -> i64 {
        i64::from_le_bytes(self.times[(node - self.first) as usize])
    }

    /// The children of a directory. They are behind it, and there; whether they are where they should be, the caller looks.
    #[inline]
    pub fn children(&self, segment: &Segment, dir: u32) -> Result<Range<u32>> {
        let (first, count) = unpack_children(self.size(dir));
        match first.checked_add(count) {
            Some(end) if end <= segment.len() && (count == 0 || first > dir) => Ok(first..end),
            _ => Err(segment.damaged(dir, "its children are not behind it")),
        }
    }
}
