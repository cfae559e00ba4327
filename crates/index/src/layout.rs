//! What lies in a segment's file, as pure functions between bytes and values: no I/O, no panic on any input.
//!
//! [`Header`] says where everything is; [`Section`] names what there is; [`Mode`] is how kind and permissions of a node are
//! packed. `docs/formats/index.md` has the bytes. Integers are little-endian.

use adit_core::types::Kind;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Damage;

pub mod signatures;
pub mod tables;
#[cfg(test)]
mod tests;

/// The first bytes of the file.
pub const MAGIC: [u8; 8] = *b"ADITIDX1";
/// The version of the format that this code writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Longest header, in bytes.
pub const HEADER_LEN_MAX_BYTES: usize = 4096;
/// What a checksum covers, in bytes. The last block of a section may be shorter.
pub const BLOCK_LEN_BYTES: u64 = 64 << 10;
/// Every section begins at a multiple of this, in bytes: a line of the processor's caches.
pub const ALIGN_BYTES: u64 = 64;
/// So many nodes share one position in the arena of names.
pub const GROUP_LEN: u32 = 16;
/// Most nodes of a segment.
pub const NODES_MAX: u32 = u32::MAX - 1;
/// Most bytes of the source's identity.
pub const IDENTITY_LEN_MAX_BYTES: usize = 1024;
/// Most sections.
pub const SECTIONS_MAX: usize = 64;
/// Longest path below the root, in bytes, and so longest name.
pub const PATH_LEN_MAX_BYTES: usize = u16::MAX as usize;
/// Most names of a path.
pub const DEPTH_MAX: usize = 4096;
/// Most extra bytes of a node.
pub const EXTRA_LEN_MAX_BYTES: usize = 64 << 20;
/// In the lengths of names: this many bytes or more, up to the zero byte that ends the name.
pub const NAME_IS_LONG: u8 = u8::MAX;
/// Bytes of the index of extra bytes that one node takes.
pub const EXTRA_ENTRY_LEN_BYTES: u64 = 16;
/// In a section's flags: who does not know the section must not read the segment.
pub const FLAG_REQUIRED: u32 = 1;

/// Bytes of a header without sections and identity, and without its checksum.
const FIXED_LEN: usize = 48;
/// Bytes of a section in the header.
const SECTION_LEN: usize = 32;
const CHECK_LEN: usize = 8;

/// What a section holds. The numbers are those of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Section {
    /// Number of each node's directory, u32; that of the root is its own.
    Parents = 1,
    /// Length of each node's name, u8; [`NAME_IS_LONG`] and more are that.
    NameLengths = 2,
    /// Where the name of every [`GROUP_LEN`]-th node begins in the arena, u64.
    NamePositions = 3,
    /// Kind and permissions of each node, [`Mode`].
    Modes = 4,
    /// Size of each node in bytes, u64; of a directory its children, [`pack_children`].
    Sizes = 5,
    /// Time of each node's last change of content in nanoseconds since 1970, i64.
    Times = 6,
    /// All names in the order of their nodes, each with a zero byte after it.
    Names = 7,
    /// Hash of each node's content, 16 bytes; zeros where [`Mode::has_hash`] says no.
    Hashes = 8,
    /// Which nodes have extra bytes: node u32, length u32, position u64, in the order of the nodes.
    ExtraEntries = 9,
    /// The extra bytes.
    Extra = 10,
    /// Nodes by the hash of their path, in buckets: [`tables::Bucket`].
    Buckets = 11,
    /// Which directories have their whole path in a stretch of its own, a bit for each node: [`tables::Rank`].
    DirectoryRanks = 12,
    /// Where the paths of these directories begin, and after the last one where it ends, u64, in the order of the nodes.
    DirectoryPositions = 13,
    /// The paths of these directories, without anything between.
    DirectoryPaths = 14,
    /// Which runs of bytes the names of some nodes have: [`signatures`].
    NameSignatures = 15,
    /// Of each node which file in which state its hash is of, 8 bytes; zeros where that is not known.
    Stamps = 16,
}

impl Section {
    /// All that this version knows, by number.
    pub const ALL: [Section; 16] = [
        Section::Parents,
        Section::NameLengths,
        Section::NamePositions,
        Section::Modes,
        Section::Sizes,
        Section::Times,
        Section::Names,
        Section::Hashes,
        Section::ExtraEntries,
        Section::Extra,
        Section::Buckets,
        Section::DirectoryRanks,
        Section::DirectoryPositions,
        Section::DirectoryPaths,
        Section::NameSignatures,
        Section::Stamps,
    ];

    /// The tables: what a segment may lack, as all of it follows from the other sections.
    pub const TABLES: [Section; 5] = [
        Section::Buckets,
        Section::DirectoryRanks,
        Section::DirectoryPositions,
        Section::DirectoryPaths,
        Section::NameSignatures,
    ];

    /// What the tables are made of.
    pub const OF_TABLES: [Section; 6] = [
        Section::Parents,
        Section::NameLengths,
        Section::NamePositions,
        Section::Modes,
        Section::Sizes,
        Section::Names,
    ];

    /// The tables by which whole paths are found. Some of them is as good as none.
    pub const PATH_TABLES: [Section; 4] =
        [Section::Buckets, Section::DirectoryRanks, Section::DirectoryPositions, Section::DirectoryPaths];

    /// The section of this number, if this version knows it.
    pub fn from_kind(kind: u32) -> Option<Section> {
        Self::ALL.into_iter().find(|section| *section as u32 == kind)
    }

    /// What it holds, in words.
    pub fn words(self) -> &'static str {
        match self {
            Section::Parents => "the parents",
            Section::NameLengths => "the lengths of names",
            Section::NamePositions => "the positions of names",
            Section::Modes => "the modes",
            Section::Sizes => "the sizes",
            Section::Times => "the times",
            Section::Names => "the names",
            Section::Hashes => "the hashes",
            Section::ExtraEntries => "the index of extra bytes",
            Section::Extra => "the extra bytes",
            Section::Buckets => "the table of paths",
            Section::DirectoryRanks => "the ranks of directories",
            Section::DirectoryPositions => "the positions of directories' paths",
            Section::DirectoryPaths => "the paths of directories",
            Section::NameSignatures => "the signatures of names",
            Section::Stamps => "the stamps of hashes",
        }
    }

    /// Its length in bytes for so many nodes, where that is given by it.
    pub fn len_for(self, nodes: u32) -> Option<u64> {
        let count = nodes;
        let nodes = u64::from(nodes);
        match self {
            Section::Buckets => Some(tables::buckets_len(count)),
            Section::DirectoryRanks => Some(tables::ranks_len(count)),
            Section::NameSignatures => Some(signatures::signatures_len(count)),
            Section::Parents => Some(4 * nodes),
            Section::NameLengths => Some(nodes),
            Section::NamePositions => Some(8 * nodes.div_ceil(u64::from(GROUP_LEN))),
            Section::Modes => Some(2 * nodes),
            Section::Sizes | Section::Times | Section::Stamps => Some(8 * nodes),
            Section::Hashes => Some(16 * nodes),
            Section::Names | Section::ExtraEntries | Section::Extra => None,
            Section::DirectoryPositions | Section::DirectoryPaths => None,
        }
    }

    /// Whether it follows from other sections, so that a reader may ignore it.
    pub fn is_table(self) -> bool {
        Self::TABLES.contains(&self)
    }

    /// Whether who does not know it must not read the segment. Without stamps the hashes are as right: an update reads their files again.
    pub fn is_required(self) -> bool {
        !self.is_table() && self != Section::Stamps
    }

    /// Whether a segment may lack it.
    fn is_optional(self) -> bool {
        matches!(self, Section::Hashes | Section::ExtraEntries | Section::Extra) || !self.is_required()
    }
}

/// What the section of number `kind` holds, in words.
pub fn words_of(kind: u32) -> &'static str {
    Section::from_kind(kind).map_or("a section of another version", Section::words)
}

/// A section as the header names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionEntry {
    /// Which one: a number of [`Section`], or one of a later version.
    pub kind: u32,
    /// [`FLAG_REQUIRED`] or not.
    pub flags: u32,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// XXH3-64 of the checksums of its blocks.
    pub check: u64,
}

impl SectionEntry {
    /// How many blocks it has.
    pub fn blocks(&self) -> u64 {
        self.len.div_ceil(BLOCK_LEN_BYTES)
    }
}

/// The header: how many nodes there are, where everything is, and what the segment is of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Number of nodes, at least 1.
    pub nodes: u32,
    /// Length of the file in bytes.
    pub file_len: u64,
    /// Where the checksums of the blocks begin: u64 each, by section in the order of the header, up to the end of the file.
    pub sums_offset: u64,
    /// The sections in the order in which they lie in the file.
    pub sections: Vec<SectionEntry>,
    /// What the segment was made of, as the store that made it says.
    pub identity: Vec<u8>,
}

/// Reads integers off the front of bytes; `None` once they are used up.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

/// Bytes of a header with so many sections and so long an identity.
pub fn header_len(sections: usize, identity_len: usize) -> usize {
    FIXED_LEN + sections * SECTION_LEN + identity_len.next_multiple_of(8) + CHECK_LEN
}

impl Header {
    /// As bytes, with the checksum.
    ///
    /// # Panics
    /// If there are more than [`SECTIONS_MAX`] sections, or more than [`IDENTITY_LEN_MAX_BYTES`] bytes of identity.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.sections.len() <= SECTIONS_MAX && self.identity.len() <= IDENTITY_LEN_MAX_BYTES);
        let len = header_len(self.sections.len(), self.identity.len());
        let mut out = Vec::with_capacity(len);
        out.extend(MAGIC);
        out.extend(FORMAT_VERSION.to_le_bytes());
        out.extend(0_u32.to_le_bytes());
        out.extend((len as u32).to_le_bytes());
        out.extend(self.nodes.to_le_bytes());
        out.extend(self.file_len.to_le_bytes());
        out.extend(self.sums_offset.to_le_bytes());
        out.extend((self.sections.len() as u32).to_le_bytes());
        out.extend((self.identity.len() as u32).to_le_bytes());
        for section in &self.sections {
            out.extend(section.kind.to_le_bytes());
            out.extend(section.flags.to_le_bytes());
            out.extend(section.offset.to_le_bytes());
            out.extend(section.len.to_le_bytes());
            out.extend(section.check.to_le_bytes());
        }
        out.extend(&self.identity);
        out.resize(len - CHECK_LEN, 0);
        out.extend(xxh3_64(&out).to_le_bytes());
        out
    }

    /// Reads the header at the front of `bytes`, which are the file's first [`HEADER_LEN_MAX_BYTES`], or all that it has.
    ///
    /// # Errors
    /// What is wrong with it. A header that is returned names sections that lie one behind the other in `file_len` bytes, each
    /// as long as the number of nodes wants it, and all that a reader needs.
    pub fn decode(bytes: &[u8]) -> Result<Header, Damage> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Damage::NotASegment);
        }
        let mut fields = Reader(&bytes[MAGIC.len()..]);
        let (Some(version), Some(features), Some(len)) = (fields.u32(), fields.u32(), fields.u32()) else {
            return Err(Damage::HeaderChecksum);
        };
        // The length and the checksum are where they are in all versions.
        let body = usize::try_from(len).ok().and_then(|len| len.checked_sub(CHECK_LEN));
        let sealed = body.and_then(|len| bytes.split_at_checked(len)).filter(|(body, rest)| {
            body.len() <= HEADER_LEN_MAX_BYTES && rest.first_chunk() == Some(&xxh3_64(body).to_le_bytes())
        });
        let Some((body, _)) = sealed else { return Err(Damage::HeaderChecksum) };
        if version != FORMAT_VERSION {
            return Err(Damage::LaterVersion(version));
        }
        if features != 0 {
            return Err(Damage::UnknownFeatures(features));
        }
        let header = Self::fields(body).ok_or(Damage::Header("its length does not fit what it names"))?;
        header.check()?;
        Ok(header)
    }

    /// The fields, without a look at what they say. `None` if the length does not fit.
    pub(crate) fn fields(body: &[u8]) -> Option<Header> {
        let mut fields = Reader(body.get(20..)?);
        let mut header =
            Header { nodes: fields.u32()?, file_len: fields.u64()?, sums_offset: fields.u64()?, ..Header::default() };
        let (sections, identity) = (fields.u32()? as usize, fields.u32()? as usize);
        if sections > SECTIONS_MAX || identity > IDENTITY_LEN_MAX_BYTES {
            return None;
        }
        for _ in 0..sections {
            header.sections.push(SectionEntry {
                kind: fields.u32()?,
                flags: fields.u32()?,
                offset: fields.u64()?,
                len: fields.u64()?,
                check: fields.u64()?,
            });
        }
        header.identity = fields.take(identity)?.to_vec();
        let padding = fields.take(identity.next_multiple_of(8) - identity)?;
        (fields.0.is_empty() && padding.iter().all(|byte| *byte == 0)).then_some(header)
    }

    /// Whether what it says can be.
    fn check(&self) -> Result<(), Damage> {
        if self.nodes == 0 || self.nodes > NODES_MAX {
            return Err(Damage::Header("the number of nodes"));
        }
        let mut end = header_len(self.sections.len(), self.identity.len()) as u64;
        let mut blocks = 0_u64;
        for (at, entry) in self.sections.iter().enumerate() {
            if !entry.offset.is_multiple_of(ALIGN_BYTES) || entry.offset < end || entry.offset - end >= ALIGN_BYTES {
                return Err(Damage::Header("where a section begins"));
            }
            end = entry.offset.checked_add(entry.len).ok_or(Damage::Header("the length of a section"))?;
            blocks += entry.blocks();
            if self.sections[..at].iter().any(|other| other.kind == entry.kind) {
                return Err(Damage::Header("a section is there twice"));
            }
            match Section::from_kind(entry.kind) {
                Some(section) if section.len_for(self.nodes).is_some_and(|len| len != entry.len) => {
                    return Err(Damage::Header("the length of a section"));
                }
                Some(Section::ExtraEntries) if !entry.len.is_multiple_of(EXTRA_ENTRY_LEN_BYTES) => {
                    return Err(Damage::Header("the length of a section"));
                }
                None if entry.flags & FLAG_REQUIRED != 0 => return Err(Damage::UnknownSection(entry.kind)),
                _ => {}
            }
        }
        let lacks = |section: &Section| !section.is_optional() && self.section(*section).is_none();
        if Section::ALL.iter().any(lacks) {
            return Err(Damage::Header("a section is missing"));
        }
        if self.section(Section::ExtraEntries).is_some() != self.section(Section::Extra).is_some() {
            return Err(Damage::Header("extra bytes without their index, or the other way round"));
        }
        if !self.sums_offset.is_multiple_of(ALIGN_BYTES)
            || self.sums_offset < end
            || self.sums_offset - end >= ALIGN_BYTES
        {
            return Err(Damage::Header("where the checksums begin"));
        }
        // There are at most 2^6 sections of 2^48 blocks.
        if self.sums_offset.checked_add(8 * blocks) != Some(self.file_len) {
            return Err(Damage::Header("the length of the file"));
        }
        Ok(())
    }

    /// A section that it names.
    pub fn section(&self, section: Section) -> Option<&SectionEntry> {
        self.sections.iter().find(|entry| entry.kind == section as u32)
    }
}

/// The checksum of a block.
pub fn block_sum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The checksum of a section: that of the checksums of its blocks, as they lie in the file.
pub fn section_check(sums: &[u64]) -> u64 {
    let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// Kind and permissions of a node in two bytes. Every value is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(pub u16);

impl Mode {
    const PERM: u16 = 0o7777;
    const KIND_SHIFT: u32 = 12;
    const KIND: u16 = 7;
    const IMPLIED: u16 = 7;
    const HASH: u16 = 1 << 15;

    /// Of an entry. `perm` are permission bits (`& 0o7777`).
    pub fn new(kind: Kind, perm: u16, has_hash: bool) -> Mode {
        let number = match kind {
            Kind::File => 0,
            Kind::Directory => 1,
            Kind::Symlink => 2,
            Kind::BlockDevice => 3,
            Kind::CharDevice => 4,
            Kind::Fifo => 5,
            Kind::Socket => 6,
        };
        Mode(perm & Self::PERM | number << Self::KIND_SHIFT | if has_hash { Self::HASH } else { 0 })
    }

    /// Of a directory that no entry named.
    pub fn implied(perm: u16) -> Mode {
        Mode(perm & Self::PERM | Self::IMPLIED << Self::KIND_SHIFT)
    }

    /// What the node is.
    pub fn kind(self) -> Kind {
        match self.0 >> Self::KIND_SHIFT & Self::KIND {
            0 => Kind::File,
            2 => Kind::Symlink,
            3 => Kind::BlockDevice,
            4 => Kind::CharDevice,
            5 => Kind::Fifo,
            6 => Kind::Socket,
            _ => Kind::Directory,
        }
    }

    /// Whether it is a directory that no entry named.
    pub fn is_implied(self) -> bool {
        self.0 >> Self::KIND_SHIFT & Self::KIND == Self::IMPLIED
    }

    /// Its permission bits.
    pub fn perm(self) -> u16 {
        self.0 & Self::PERM
    }

    /// Whether the node has a hash.
    pub fn has_hash(self) -> bool {
        self.0 & Self::HASH != 0
    }
}

/// The children of a directory, as they stand in its size: the number of the first, and how many there are.
pub fn pack_children(first: u32, count: u32) -> u64 {
    u64::from(first) | u64::from(count) << 32
}

/// What [`pack_children`] packed: the number of the first child, and how many there are.
pub fn unpack_children(size: u64) -> (u32, u32) {
    (size as u32, (size >> 32) as u32)
}

/// Whether bytes are the name of a directory entry: not empty, not `.` or `..`, without slash and NUL, not too long.
pub fn is_name(bytes: &[u8]) -> bool {
    !matches!(bytes, b"" | b"." | b"..")
        && bytes.len() <= PATH_LEN_MAX_BYTES
        && !bytes.iter().any(|byte| matches!(byte, 0 | b'/'))
}
