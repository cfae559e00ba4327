//! The columns of a segment as slices, for whoever asks of many nodes at once: [`Columns`].
//!
//! Here blocks are compared with their checksums before the first answer, by all threads there are, and not looked at
//! again. What a block *says* is still looked at each time: a segment may be made with right checksums and wrong numbers.

use std::ops::Range;
use std::thread;

use adit_core::error::{FsError, Result};
use adit_core::types::Kind;

use super::{Column, NodeId, Segment, slot};
use crate::ContentHash;
use crate::cores::cores_up_to;
use crate::layout::{self, BLOCK_LEN_BYTES, GROUP_LEN, Mode, NAME_IS_LONG, Section};

/// So many blocks are worth a thread of their own.
const BLOCKS_A_THREAD: usize = 32;

/// Sections 1 to 8, all bytes of them compared with their checksums. Costs nothing to copy.
///
/// The accessors take any number and never panic: `None` is a node that is not there, or one that is damaged. Which of the
/// two, [`Columns::damaged`] puts in words. Bytes that cannot be read any more are zeros: whoever makes an answer of them calls
/// [`Segment::expect_whole`] before it is given.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    segment: &'a Segment,
    parents: &'a [[u8; 4]],
    name_lengths: &'a [u8],
    name_positions: &'a [[u8; 8]],
    modes: &'a [[u8; 2]],
    sizes: &'a [[u8; 8]],
    times: &'a [[u8; 8]],
    names: &'a [u8],
    hashes: &'a [ContentHash],
}

impl std::fmt::Debug for Columns<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Columns").field("segment", self.segment).finish_non_exhaustive()
    }
}

impl<'a> Columns<'a> {
    /// How many nodes there are, the root among them.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> u32 {
        self.segment.len()
    }

    /// The segment that these are of.
    pub fn segment(&self) -> &'a Segment {
        self.segment
    }

    /// All names in the order of their nodes, a zero byte after each; that of the root is empty.
    #[inline]
    pub fn names(&self) -> &'a [u8] {
        self.names
    }

    /// Little-endian numbers of the nodes' directories.
    #[inline]
    pub fn parents(&self) -> &'a [[u8; 4]] {
        self.parents
    }

    /// Lengths of names; [`NAME_IS_LONG`] where they are that or more.
    #[inline]
    pub fn name_lengths(&self) -> &'a [u8] {
        self.name_lengths
    }

    /// Where the name of every [`GROUP_LEN`]-th node begins in [`Columns::names`], little-endian.
    #[inline]
    pub fn name_positions(&self) -> &'a [[u8; 8]] {
        self.name_positions
    }

    /// Kinds and permissions, little-endian [`Mode`]s.
    #[inline]
    pub fn modes(&self) -> &'a [[u8; 2]] {
        self.modes
    }

    /// Sizes in bytes, and of directories their children ([`layout::unpack_children`]), little-endian.
    #[inline]
    pub fn sizes(&self) -> &'a [[u8; 8]] {
        self.sizes
    }

    /// Nanoseconds since 1970, little-endian.
    #[inline]
    pub fn times(&self) -> &'a [[u8; 8]] {
        self.times
    }

    /// Hashes of content; zeros where [`Mode::has_hash`] says no. Empty if the segment has none.
    #[inline]
    pub fn hashes(&self) -> &'a [ContentHash] {
        self.hashes
    }

    /// The directory that a node is in, of a lower number; the root is in itself.
    #[inline]
    pub fn parent(&self, node: u32) -> Option<u32> {
        let parent = u32::from_le_bytes(*self.parents.get(node as usize)?);
        (parent < node || (parent, node) == (0, 0)).then_some(parent)
    }

    /// Kind and permissions.
    #[inline]
    pub fn mode(&self, node: u32) -> Option<Mode> {
        Some(Mode(u16::from_le_bytes(*self.modes.get(node as usize)?)))
    }

    /// Size in bytes; 0 for a directory.
    #[inline]
    pub fn size(&self, node: u32) -> Option<u64> {
        let size = u64::from_le_bytes(*self.sizes.get(node as usize)?);
        Some(if self.mode(node)?.kind() == Kind::Directory { 0 } else { size })
    }

    /// When its content changed last, in nanoseconds since 1970.
    #[inline]
    pub fn mtime_ns(&self, node: u32) -> Option<i64> {
        Some(i64::from_le_bytes(*self.times.get(node as usize)?))
    }

    /// The hash of its content, if it has one.
    #[inline]
    pub fn hash(&self, node: u32) -> Option<ContentHash> {
        if self.mode(node)?.has_hash() { self.hashes.get(node as usize).copied() } else { None }
    }

    /// The numbers of a directory's children: behind it, and in order of their names. `None` also for what is no directory.
    #[inline]
    pub fn children(&self, dir: u32) -> Option<Range<u32>> {
        if self.mode(dir)?.kind() != Kind::Directory {
            return None;
        }
        let (first, count) = layout::unpack_children(u64::from_le_bytes(*self.sizes.get(dir as usize)?));
        let end = first.checked_add(count).filter(|end| *end <= self.len())?;
        (count == 0 || first > dir).then_some(first..end)
    }

    /// Where a node's name lies in [`Columns::names`], without the zero byte after it.
    #[inline]
    pub fn name_range(&self, node: u32) -> Option<Range<usize>> {
        let start = self.name_start(node)?;
        let len = self.name_len_at(*self.name_lengths.get(node as usize)?, start)?;
        let end = start.checked_add(len)?;
        (*self.names.get(end)? == 0).then_some(start..end)
    }

    /// Where a node's name begins. Whether it lies in the names nobody has looked.
    #[inline]
    pub(crate) fn name_start(&self, node: u32) -> Option<usize> {
        let group = (node / GROUP_LEN) as usize;
        let first = usize::try_from(u64::from_le_bytes(*self.name_positions.get(group)?)).ok()?;
        let before = (node % GROUP_LEN) as usize;
        let lens = self.name_lengths.get(group * GROUP_LEN as usize..)?;
        if let Some(lens) = lens.first_chunk::<16>()
            && let Some(sum) = sum_of_short(lens, before)
        {
            return first.checked_add(sum + before);
        }
        // The last names, or a long one among them.
        let mut at = first;
        for len in lens.get(..before)? {
            at = at.checked_add(self.name_len_at(*len, at)? + 1)?;
        }
        Some(at)
    }

    /// The names of the nodes from `node` on, in order. An item is `None`, and the last one, where something is wrong.
    pub fn names_from(&self, node: u32) -> impl Iterator<Item = Option<&'a [u8]>> + use<'a> {
        let columns = *self;
        let mut at = columns.name_start(node);
        let mut lens = columns.name_lengths.get(node as usize..).unwrap_or_default().iter();
        std::iter::from_fn(move || {
            let len = lens.next()?;
            let name = at.and_then(|at| {
                let len = columns.name_len_at(*len, at)?;
                let name = columns.names.get(at..at.checked_add(len + 1)?)?;
                name.split_last().filter(|(end, _)| **end == 0).map(|(_, name)| name)
            });
            match (name, at) {
                (Some(name), Some(start)) => at = Some(start + name.len() + 1),
                _ => lens = [].iter(),
            }
            Some(name)
        })
    }

    /// The length of the name at a place, of which the column says `len`.
    #[inline]
    fn name_len_at(&self, len: u8, at: usize) -> Option<usize> {
        if len != NAME_IS_LONG {
            return Some(len.into());
        }
        self.names.get(at..)?.iter().position(|byte| *byte == 0)
    }

    /// The name of a node; that of the root is empty. Nobody has looked whether it is a valid one: it may be `..`, or
    /// have a slash, in a segment that was made to deceive. [`Segment::name`] looks.
    #[inline]
    pub fn name(&self, node: u32) -> Option<&'a [u8]> {
        self.names.get(self.name_range(node)?)
    }

    /// The node whose name, or the zero byte after it, is at this place of [`Columns::names`].
    pub fn node_at(&self, place: usize) -> Option<u32> {
        if place >= self.names.len() {
            return None;
        }
        let groups = self.name_positions.partition_point(|at| u64::from_le_bytes(*at) <= place as u64);
        let mut node = groups.checked_sub(1)? * GROUP_LEN as usize;
        let mut at = usize::try_from(u64::from_le_bytes(self.name_positions[groups - 1])).ok()?;
        let last = (node + GROUP_LEN as usize).min(self.name_lengths.len());
        while node < last {
            at = at.checked_add(self.name_len_at(self.name_lengths[node], at)? + 1)?;
            if place < at {
                return u32::try_from(node).ok();
            }
            node += 1;
        }
        None
    }

    /// The path of a node below the root, put behind what is in `out`. `None` leaves `out` in any state.
    pub fn path_into(&self, node: u32, out: &mut Vec<u8>) -> Option<()> {
        if node == 0 {
            return Some(());
        }
        let parent = self.parent(node)?;
        let start = out.len();
        // Backwards, then turned round as a whole: every name is touched once more, and nothing is allocated.
        let (mut at, mut above) = (node, parent);
        loop {
            let name = self.name(at)?;
            if out.len() - start + name.len() > layout::PATH_LEN_MAX_BYTES {
                return None;
            }
            out.extend(name.iter().rev());
            if above == 0 {
                break;
            }
            out.push(b'/');
            (at, above) = (above, self.parent(above)?);
        }
        out[start..].reverse();
        Some(())
    }

    /// What to say where an accessor said `None` of a node that has to be there.
    #[cold]
    pub fn damaged(&self, node: u32) -> FsError {
        // The accessors of the segment know more words for it.
        let id = NodeId(node);
        let asked = self.segment.node(id).and_then(|_| self.segment.name(id)).map(|_| ());
        match asked {
            Err(e) => e,
            Ok(()) => self.segment.damaged(node, "what it says cannot be"),
        }
    }
}

/// The sum of the first `count` of these lengths, at most 15. `None` if there is a [`NAME_IS_LONG`] among the 16.
#[inline]
fn sum_of_short(lens: &[u8; 16], count: usize) -> Option<usize> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const WIDE: u64 = 0x00ff_00ff_00ff_00ff;
    let all = u128::from_le_bytes(*lens);
    let words = [all as u64, (all >> 64) as u64];
    // A byte of ones is a zero byte of the complement.
    if words.iter().any(|word| (!*word).wrapping_sub(EACH) & *word & (EACH << 7) != 0) {
        return None;
    }
    let kept = all & ((1_u128 << (8 * count)) - 1);
    let wide = |word: u64| (word & WIDE) + (word >> 8 & WIDE);
    let sums = wide(kept as u64) + wide((kept >> 64) as u64);
    // Four sums of four bytes each, at most 1020: their sum is in the highest sixteen bits.
    Some((sums.wrapping_mul(0x0001_0001_0001_0001) >> 48) as usize)
}

impl Segment {
    /// The columns as slices. Compares every block of them that was not looked at yet with its checksum, which reads the file
    /// once; later calls cost a look at a bit for each 64 KiB.
    ///
    /// # Errors
    /// `Corrupt` with a [`crate::Damage`] as the cause; what the host says where it cannot be read.
    pub fn columns(&self) -> Result<Columns<'_>> {
        use Section::{Hashes, Modes, NameLengths, NamePositions, Names, Parents, Sizes, Times};
        self.check_sections(&[Parents, NameLengths, NamePositions, Modes, Sizes, Times, Names, Hashes])?;
        Ok(self.columns_unchecked())
    }

    /// The columns of a segment whose blocks were compared with their checksums before, or just written.
    pub(crate) fn columns_unchecked(&self) -> Columns<'_> {
        use Section::{Hashes, Modes, NameLengths, NamePositions, Names, Parents, Sizes, Times};
        Columns {
            segment: self,
            parents: self.section(Parents).as_chunks().0,
            name_lengths: self.section(NameLengths),
            name_positions: self.section(NamePositions).as_chunks().0,
            modes: self.section(Modes).as_chunks().0,
            sizes: self.section(Sizes).as_chunks().0,
            times: self.section(Times).as_chunks().0,
            names: self.section(Names),
            hashes: self.section(Hashes).as_chunks().0,
        }
    }

    /// Bytes of a section, compared with their checksums if nobody did before: for who needs a part of a column only.
    ///
    /// # Errors
    /// `Corrupt` also where the section is missing, or has fewer bytes.
    pub fn section_bytes(&self, section: Section, at: u64, len: usize) -> Result<&[u8]> {
        self.bytes(section, at, len)
    }

    /// Compares all blocks of some sections with their checksums, those that were not looked at before.
    pub(crate) fn check_sections(&self, sections: &[Section]) -> Result<()> {
        let mut left: Vec<(Section, Column, u64)> = Vec::new();
        for section in sections {
            let Some(column) = self.columns[slot(*section)] else { continue };
            let blocks = 0..column.len.div_ceil(BLOCK_LEN_BYTES);
            left.extend(blocks.filter(|block| !self.is_checked(column, *block)).map(|block| (*section, column, block)));
        }
        let threads = cores_up_to(left.len().div_ceil(BLOCKS_A_THREAD));
        let check = |part: &[(Section, Column, u64)]| {
            let mut part = part.iter();
            part.try_for_each(|(section, column, block)| self.check_block(section.words(), *column, *block))
        };
        let each = left.len().div_ceil(threads).max(1);
        let found = thread::scope(|scope| {
            let mut parts = left.chunks(each);
            let own = parts.next().unwrap_or_default();
            let others: Vec<_> = parts.map(|part| scope.spawn(move || check(part))).collect();
            let mut found = vec![check(own)];
            found.extend(others.into_iter().map(|thread| thread.join().expect("it does not panic")));
            found
        });
        found.into_iter().collect::<std::result::Result<(), _>>().map_err(|fault| fault.of(&self.path))
    }

    /// All of a section, without a look at its checksums; empty if there is none.
    #[inline]
    pub(crate) fn section(&self, section: Section) -> &[u8] {
        let Some(column) = self.columns[slot(section)] else { return &[] };
        // The header was checked: the section lies in the file, which is mapped.
        let start = column.offset as usize;
        self.map.bytes().get(start..start + column.len as usize).unwrap_or_default()
    }
}
