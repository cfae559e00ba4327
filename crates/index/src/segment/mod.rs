//! A segment that is open: [`Segment`] maps the file, checks what an answer needs when it is first needed, and answers.
//!
//! Nothing is decoded at the opening but the header, and nothing is kept but the checksums (8 bytes for each 64 KiB of the
//! file) and a bit for each of them. A block is compared with its checksum once, at its first use. It is read for that
//! with `pread`, so that a bad disk or a file that was cut is an error; only then the mapping is touched. What happens to the
//! file after that is noticed where the mapping is read, and an error from then on ([`Segment::expect_whole`]).
//!
//! Every call may be made from any number of threads at once, and takes no lock.

mod columns;
mod names;
mod verify;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;

use crate::error::{Damage, Fault};
use crate::layout::{
    self, BLOCK_LEN_BYTES, DEPTH_MAX, HEADER_LEN_MAX_BYTES, Header, Mode, PATH_LEN_MAX_BYTES, Section,
};
use crate::map::Map;
use crate::{ContentHash, Stamp};

pub use columns::Columns;
pub use names::{Child, Children};

/// The number of a node in its segment. Directories have lower numbers than what is in them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root of every segment.
    pub const ROOT: NodeId = NodeId(0);
}

/// What a segment says of a node, without name, hash and extra bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// The directory that it is in; the root is in itself.
    pub parent: NodeId,
    /// What it is.
    pub kind: Kind,
    /// Whether it is a directory that no entry named, and is there because of what is in it.
    pub implied: bool,
    /// Permission bits (`mode & 0o7777`).
    pub perm: u16,
    /// Size in bytes, as the entry said; 0 for a directory.
    pub size: u64,
    /// When the content changed last, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// A stretch of the file that holds one section.
#[derive(Clone, Copy)]
struct Column {
    offset: u64,
    len: u64,
    /// The number of its first block among those of all sections.
    first_block: u64,
}

/// Bytes that are copied at a time.
const COPY_LEN: usize = 1 << 20;

/// An open segment.
///
/// The file must not be written to while it is open: whoever publishes another one puts it under the same name by
/// a rename, as [`crate::Builder`] does. A page that cannot be read any more after it was checked, because somebody cut the file or its disk has
/// failed, is [`Damage::Lost`] from then on, whatever is asked.
pub struct Segment {
    path: PathBuf,
    file: File,
    map: Map,
    header: Header,
    columns: [Option<Column>; Section::ALL.len()],
    /// Of each block of each section, in the order of the file.
    sums: Box<[u64]>,
    /// A bit for each block that was found to be right.
    checked: Box<[AtomicU64]>,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("path", &self.path).field("nodes", &self.header.nodes).finish_non_exhaustive()
    }
}

impl Segment {
    /// Opens the segment in the file at `path`. Reads the header and the checksums; takes as long for ten million nodes as
    /// for ten, but for 100 KiB of checksums.
    ///
    /// # Errors
    /// `Corrupt` or `NotSupported` with a [`Damage`] as the cause; what the host says where it cannot be opened.
    pub fn open(path: &Path) -> Result<Segment> {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
            .map_err(|e| Fault::from(e).of(path))?;
        Self::from_file(file, path)
    }

    /// As [`Segment::open`], of a file that is open for reading. Errors name `path`.
    pub fn from_file(file: File, path: &Path) -> Result<Segment> {
        Self::opened(file, path).map_err(|fault| fault.of(path))
    }

    /// As [`Segment::open`], with all of the file in memory of this process: lookups all over a large index then wait less,
    /// because the memory comes in large pages, and nothing that happens to the file is felt any more. Takes the file's length.
    pub fn load(path: &Path) -> Result<Segment> {
        Self::open(path)?.into_memory()
    }

    /// Without its tables, as if it had been made so: nobody asks for them any more. A full check looks at them, and finds that they are not there.
    #[cfg(feature = "sealed")]
    pub(crate) fn without_tables(mut self) -> Segment {
        Section::TABLES.iter().for_each(|section| self.columns[slot(*section)] = None);
        self
    }

    /// As it is after [`Segment::load`].
    pub(crate) fn into_memory(mut self) -> Result<Segment> {
        let copy = Map::copy(&self.file, self.map.bytes().len());
        self.map = copy.map_err(|e| Fault::from(e).of(&self.path))?;
        Ok(self)
    }

    fn opened(file: File, path: &Path) -> Result<Segment, Fault> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(Damage::NotASegment.into());
        }
        let found = meta.len();
        let mut front = vec![0; HEADER_LEN_MAX_BYTES.min(usize::try_from(found).unwrap_or(usize::MAX))];
        file.read_exact_at(&mut front, 0)?;
        let header = Header::decode(&front)?;
        if header.file_len != found {
            return Err(Damage::Length { expected: header.file_len, found }.into());
        }
        let sums = read_sums(&file, &header)?;
        Ok(Self::mapped(file, path, header, sums)?)
    }

    /// A segment whose columns were just written, to make tables of them. Nothing of it is compared with checksums.
    pub(crate) fn unfinished(file: &File, header: Header) -> io::Result<Segment> {
        let len = header.sections.iter().map(|entry| entry.offset + entry.len).max().unwrap_or_default();
        let header = Header { file_len: len, ..header };
        Self::mapped(file.try_clone()?, Path::new("the index that is being written"), header, Box::default())
    }

    fn mapped(file: File, path: &Path, header: Header, sums: Box<[u64]>) -> io::Result<Segment> {
        let mut columns = [None; Section::ALL.len()];
        let mut first_block = 0;
        for entry in &header.sections {
            if let Some(section) = Section::from_kind(entry.kind) {
                columns[slot(section)] = Some(Column { offset: entry.offset, len: entry.len, first_block });
            }
            first_block += entry.blocks();
        }
        let len = in_memory(header.file_len)?;
        // SAFETY: adit writes no file that has the name of a segment: it publishes finished ones by rename. That others do not write
        // to the file is what the documentation asks for, as everyone who maps files does.
        let map = unsafe { Map::new(&file, len) }?;
        let checked = (0..sums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Segment { path: path.to_owned(), file, map, header, columns, sums, checked })
    }

    /// How many nodes there are, the root among them.
    // There is always a root: none is empty.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.header.nodes
    }

    /// What the segment was made of, as the store said that made it: a key for whatever is cached of it.
    pub fn identity(&self) -> &[u8] {
        &self.header.identity
    }

    /// Length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.header.file_len
    }

    /// Writes a copy of the file, which need not have a name any more.
    pub fn write_to(&self, out: &mut impl io::Write) -> io::Result<()> {
        let (mut at, mut piece) = (0, vec![0; COPY_LEN]);
        while at < self.header.file_len {
            let len = (self.header.file_len - at).min(COPY_LEN as u64) as usize;
            self.file.read_exact_at(&mut piece[..len], at)?;
            out.write_all(&piece[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    /// The sections that this version knows, with their lengths in bytes.
    pub fn sections(&self) -> impl Iterator<Item = (Section, u64)> {
        let known = self.header.sections.iter().filter_map(|entry| Some((Section::from_kind(entry.kind)?, entry.len)));
        known.filter(|(section, _)| self.columns[slot(*section)].is_some())
    }

    /// What is known of a node. `InvalidInput` if there is none of this number.
    pub fn node(&self, id: NodeId) -> Result<Node> {
        let mode = self.mode(id)?;
        let size = match mode.kind() {
            Kind::Directory => 0,
            _ => self.size(id)?,
        };
        let mtime_ns = self.number(Section::Times, id, i64::from_le_bytes)?;
        Ok(Node {
            id,
            parent: self.parent(id)?,
            kind: mode.kind(),
            implied: mode.is_implied(),
            perm: mode.perm(),
            size,
            mtime_ns,
        })
    }

    /// What a node is. `InvalidInput` if there is none of this number.
    pub fn kind(&self, id: NodeId) -> Result<Kind> {
        Ok(self.mode(id)?.kind())
    }

    /// The directory that a node is in: a lower number, but for the root, which is in itself.
    pub fn parent(&self, id: NodeId) -> Result<NodeId> {
        let parent = self.number(Section::Parents, id, u32::from_le_bytes)?;
        if parent < id.0 || (parent, id) == (0, NodeId::ROOT) {
            return Ok(NodeId(parent));
        }
        Err(self.damaged(id.0, "it is not behind its directory"))
    }

    /// The hash of a node's content, if it has one.
    pub fn hash(&self, id: NodeId) -> Result<Option<ContentHash>> {
        if !self.mode(id)?.has_hash() {
            return Ok(None);
        }
        if self.columns[slot(Section::Hashes)].is_none() {
            return Err(self.damaged(id.0, "it has a hash, and the index has none"));
        }
        self.number(Section::Hashes, id, |hash: ContentHash| hash).map(Some)
    }

    /// Which file the hash of a node is of, if that is known.
    pub fn stamp(&self, id: NodeId) -> Result<Option<Stamp>> {
        self.check_id(id)?;
        if self.columns[slot(Section::Stamps)].is_none() {
            return Ok(None);
        }
        Ok(Some(self.number(Section::Stamps, id, |stamp: Stamp| stamp)?).filter(|stamp| *stamp != [0; 8]))
    }

    /// The bytes that the store gave with a node; none if it gave none.
    pub fn extra(&self, id: NodeId) -> Result<&[u8]> {
        self.check_id(id)?;
        let (mut low, mut high) = (0, self.extra_entries());
        while low < high {
            let middle = low + (high - low) / 2;
            let (node, at, len) = self.extra_entry(middle)?;
            match node.cmp(&id.0) {
                std::cmp::Ordering::Equal => return self.bytes(Section::Extra, at, len as usize),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(&[])
    }

    /// The numbers of a directory's children, which are in the order of their names. `NotDirectory` for what is none.
    pub fn child_range(&self, dir: NodeId) -> Result<Range<u32>> {
        if self.kind(dir)? != Kind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        let (first, count) = layout::unpack_children(self.size(dir)?);
        let end = first.checked_add(count).filter(|end| *end <= self.len());
        match end {
            // That they are behind it makes every walk downwards end.
            Some(end) if count == 0 || first > dir.0 => Ok(first..end),
            _ => Err(self.damaged(dir.0, "its children are not behind it")),
        }
    }

    /// The path of a node below the root, without a slash in front; that of the root is empty.
    pub fn path(&self, id: NodeId) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let (mut at, mut len) = (id, 0);
        while at != NodeId::ROOT {
            let name = self.name(at)?;
            len += name.len() + usize::from(!names.is_empty());
            names.push(name);
            if names.len() > DEPTH_MAX || len > PATH_LEN_MAX_BYTES {
                return Err(self.damaged(id.0, "its path is too long"));
            }
            at = self.parent(at)?;
        }
        self.check_id(id)?;
        names.reverse();
        Ok(names.join(&b'/'))
    }

    /// Where the file is.
    pub fn file_path(&self) -> &Path {
        &self.path
    }

    fn mode(&self, id: NodeId) -> Result<Mode> {
        self.number(Section::Modes, id, u16::from_le_bytes).map(Mode)
    }

    /// The field that is the size of a file, and of a directory its children.
    fn size(&self, id: NodeId) -> Result<u64> {
        self.number(Section::Sizes, id, u64::from_le_bytes)
    }

    fn extra_entries(&self) -> u64 {
        self.section_len(Section::ExtraEntries) / layout::EXTRA_ENTRY_LEN_BYTES
    }

    /// Length of a section in bytes, 0 if there is none.
    fn section_len(&self, section: Section) -> u64 {
        self.columns[slot(section)].map_or(0, |column| column.len)
    }

    /// Node, position and length of the extra bytes number `at`.
    fn extra_entry(&self, at: u64) -> Result<(u32, u64, u32)> {
        let entry: [u8; 16] = self.array(Section::ExtraEntries, at)?;
        let entry = u128::from_le_bytes(entry);
        Ok((entry as u32, (entry >> 64) as u64, (entry >> 32) as u32))
    }

    fn check_id(&self, id: NodeId) -> Result<()> {
        if id.0 < self.len() { Ok(()) } else { Err(no_such_node(id)) }
    }

    /// What a column says of a node, as `decode` makes of the bytes.
    #[inline]
    fn number<const N: usize, T>(&self, section: Section, id: NodeId, decode: fn([u8; N]) -> T) -> Result<T> {
        self.check_id(id)?;
        self.array(section, u64::from(id.0)).map(decode)
    }

    /// Element number `at` of a section.
    #[inline]
    fn array<const N: usize>(&self, section: Section, at: u64) -> Result<[u8; N]> {
        let bytes = self.mapped_bytes(section, at.saturating_mul(N as u64), N)?;
        let array = bytes.try_into().expect("as many bytes as were asked for");
        self.expect_whole()?;
        Ok(array)
    }

    /// Bytes of a section, all of them checked, and in memory.
    #[inline]
    fn bytes(&self, section: Section, at: u64, len: usize) -> Result<&[u8]> {
        let bytes = self.mapped_bytes(section, at, len)?;
        self.map.touch(bytes);
        self.expect_whole()?;
        Ok(bytes)
    }

    /// Fails if a part of the file could not be read from its mapping so far: what was read of it may be zeros. Called after reading, before an
    /// answer that rests on that is given.
    #[inline]
    pub(crate) fn expect_whole(&self) -> Result<()> {
        if self.map.is_lost() { Err(self.fault(Damage::Lost)) } else { Ok(()) }
    }

    /// Bytes of a section, all of them checked once. Whoever reads them calls [`Segment::expect_whole`] afterwards.
    #[inline]
    fn mapped_bytes(&self, section: Section, at: u64, len: usize) -> Result<&[u8]> {
        let outside = || self.fault(Damage::Outside { section: section.words(), at });
        let column = self.columns[slot(section)].ok_or_else(outside)?;
        let end = at.checked_add(len as u64).filter(|end| *end <= column.len).ok_or_else(outside)?;
        if len == 0 {
            return Ok(&[]);
        }
        for block in at / BLOCK_LEN_BYTES..=(end - 1) / BLOCK_LEN_BYTES {
            if !self.is_checked(column, block) {
                self.check_block(section.words(), column, block).map_err(|fault| fault.of(&self.path))?;
            }
        }
        // The column lies in the file, all of which is mapped.
        let start = (column.offset + at) as usize;
        self.map.bytes().get(start..start + len).ok_or_else(outside)
    }

    /// How many blocks nobody has compared with their checksums yet.
    pub(crate) fn unchecked_blocks(&self) -> u64 {
        let checked: u64 = self.checked.iter().map(|bits| u64::from(bits.load(Relaxed).count_ones())).sum();
        self.sums.len() as u64 - checked
    }

    /// Whether a block was compared with its checksum, and was right.
    #[inline]
    fn is_checked(&self, column: Column, block: u64) -> bool {
        let number = column.first_block + block;
        self.checked[(number / 64) as usize].load(Relaxed) & 1 << (number % 64) != 0
    }

    /// Compares a block with its checksum, and notes that it is right.
    #[cold]
    fn check_block(&self, words: &'static str, column: Column, block: u64) -> Result<(), Fault> {
        let at = block * BLOCK_LEN_BYTES;
        let len = BLOCK_LEN_BYTES.min(column.len - at) as usize;
        let start = (column.offset + at) as usize;
        let sum = match self.map.bytes().get(start..start + len) {
            Some(bytes) if self.map.is_copy() => layout::block_sum(bytes),
            _ => {
                let mut bytes = vec![0; len];
                self.file.read_exact_at(&mut bytes, column.offset + at)?;
                layout::block_sum(&bytes)
            }
        };
        let number = column.first_block + block;
        if sum != self.sums[number as usize] {
            return Err(Damage::Block { section: words, block }.into());
        }
        self.checked[(number / 64) as usize].fetch_or(1 << (number % 64), Relaxed);
        Ok(())
    }

    #[cold]
    pub(crate) fn damaged(&self, node: u32, what: &'static str) -> FsError {
        self.fault(Damage::Node { node, what })
    }

    #[cold]
    fn fault(&self, damage: Damage) -> FsError {
        Fault::from(damage).of(&self.path)
    }
}

fn slot(section: Section) -> usize {
    section as usize - 1
}

#[cold]
fn no_such_node(id: NodeId) -> FsError {
    FsError::new(ErrorKind::InvalidInput).because(format!("the index has no node {}", id.0))
}

/// A length that an address space has room for.
fn in_memory(len: u64) -> io::Result<usize> {
    usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// The checksums of all blocks, compared with those of the sections.
fn read_sums(file: &File, header: &Header) -> Result<Box<[u64]>, Fault> {
    let mut bytes = vec![0; in_memory(header.file_len - header.sums_offset)?];
    file.read_exact_at(&mut bytes, header.sums_offset)?;
    let sums: Box<[u64]> = bytes.as_chunks().0.iter().map(|sum| u64::from_le_bytes(*sum)).collect();
    let mut rest = &sums[..];
    for entry in &header.sections {
        // The header was checked: there are as many.
        let (own, others) = rest.split_at(entry.blocks() as usize);
        if layout::section_check(own) != entry.check {
            return Err(Damage::Checksums { section: layout::words_of(entry.kind) }.into());
        }
        rest = others;
    }
    Ok(sums)
}
