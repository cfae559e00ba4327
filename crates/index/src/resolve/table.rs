//! One clean path in the table of hashes.

use std::borrow::Cow;

use adit_core::error::Result;

use crate::build::tables::make_in_memory;
use crate::layout::tables::{
    BUCKET_LEN_BYTES, Bucket, PROBE_MAX, RANK_LEN_BYTES, RANK_NODES, Rank, home, home_buckets, path_hash, tag,
};
use crate::layout::{NAME_IS_LONG, Section};
use crate::segment::{Columns, Segment};

/// The bytes of [`Section::PATH_TABLES`]: the segment's, or made here.
pub(super) struct Table<'a> {
    sections: [Cow<'a, [u8]>; 4],
    homes: u32,
}

/// What a table knows of a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum First {
    /// A node that may have the path. It may be the number of none, where the slot is empty.
    Node(u32),
    /// No node has the hash.
    Nothing,
    /// Too many paths share these buckets.
    Unknown,
}

/// What a table knows of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// It is that of this node. Every byte was compared.
    Node(u32),
    /// It is that of none.
    Nothing,
    /// Too many paths share these buckets.
    Unknown,
}

impl<'a> Table<'a> {
    /// The tables of a segment, if it has all of them.
    pub fn of(segment: &'a Segment) -> Result<Option<Table<'a>>> {
        let has = |section: &Section| segment.sections().any(|(other, _)| other == *section);
        if !Section::PATH_TABLES.iter().all(has) {
            return Ok(None);
        }
        segment.check_sections(&Section::PATH_TABLES)?;
        Ok(Some(Self::unchecked(segment)))
    }

    /// The tables of a segment that has them, whose blocks were compared with their checksums before.
    pub fn unchecked(segment: &'a Segment) -> Table<'a> {
        let sections = Section::PATH_TABLES.map(|section| Cow::Borrowed(segment.section(section)));
        Table { sections, homes: home_buckets(segment.len()) }
    }

    /// The same tables for as long as these are there.
    pub fn lent(&self) -> Table<'_> {
        Table { sections: self.sections.each_ref().map(|bytes| Cow::Borrowed(&**bytes)), homes: self.homes }
    }

    /// Tables in memory.
    pub fn made(columns: &Columns<'_>) -> Result<Table<'static>> {
        let mut sections = Section::PATH_TABLES.map(|_| Cow::Borrowed(&[][..]));
        for (section, bytes) in Section::PATH_TABLES.into_iter().zip(&mut sections) {
            let mut made = Vec::new();
            make_in_memory(section, columns, &mut |more| made.extend(more))?;
            *bytes = Cow::Owned(made);
        }
        Ok(Table { sections, homes: home_buckets(columns.len()) })
    }

    #[inline]
    pub fn buckets(&self) -> &[[u8; BUCKET_LEN_BYTES]] {
        self.sections[0].as_chunks().0
    }

    #[inline]
    pub fn ranks(&self) -> &[[u8; RANK_LEN_BYTES]] {
        self.sections[1].as_chunks().0
    }

    #[inline]
    pub fn positions(&self) -> &[[u8; 8]] {
        self.sections[2].as_chunks().0
    }

    #[inline]
    pub fn paths(&self) -> &[u8] {
        &self.sections[3]
    }

    /// Which bucket is that of a hash.
    #[inline]
    pub fn home(&self, hash: u64) -> u32 {
        home(hash, self.homes)
    }

    /// The first slot with the tag of a hash, in the buckets where it may be.
    #[inline]
    pub fn first(&self, hash: u64) -> First {
        let tag = tag(hash);
        for bytes in self.probes(hash) {
            let bucket = Bucket(bytes);
            let matches = bucket.matches(tag);
            if matches != 0 {
                return First::Node(bucket.node(matches.trailing_zeros()));
            }
            if !bucket.is_full() {
                return First::Nothing;
            }
        }
        First::Unknown
    }

    /// The buckets in which a hash may be.
    #[inline]
    fn probes(&self, hash: u64) -> impl Iterator<Item = &[u8; BUCKET_LEN_BYTES]> {
        self.buckets().get(self.home(hash) as usize..).unwrap_or_default().iter().take(PROBE_MAX)
    }

    /// A path below the root, as it stands. The empty one is nobody's.
    #[inline]
    pub fn find(&self, columns: &Columns<'_>, path: &[u8]) -> Found {
        let hash = path_hash(path);
        let tag = tag(hash);
        for bytes in self.probes(hash) {
            let bucket = Bucket(bytes);
            let mut matches = bucket.matches(tag);
            while matches != 0 {
                let node = bucket.node(matches.trailing_zeros());
                if self.is_path(columns, node, path) {
                    return Found::Node(node);
                }
                matches &= matches - 1;
            }
            if !bucket.is_full() {
                return Found::Nothing;
            }
        }
        Found::Unknown
    }

    /// Whether this is the path of a node. A number of no node has none.
    #[inline]
    pub fn is_path(&self, columns: &Columns<'_>, node: u32, path: &[u8]) -> bool {
        let (dir, name) = split(path);
        is_name(columns, node, name)
            && columns.parent(node).is_some_and(|parent| self.is_dir_path(columns, parent, dir))
    }

    /// Whether this is the path of a directory: compared with the one that is stored, or name by name up to one that is.
    #[inline]
    pub fn is_dir_path(&self, columns: &Columns<'_>, mut dir: u32, mut path: &[u8]) -> bool {
        loop {
            if dir == 0 || path.is_empty() {
                return dir == 0 && path.is_empty();
            }
            if let Some(stored) = self.stored_path(dir) {
                return stored == path;
            }
            let (above, name) = split(path);
            match columns.parent(dir) {
                Some(parent) if is_name(columns, dir, name) => (dir, path) = (parent, above),
                _ => return false,
            }
        }
    }

    /// The place of a directory's path among those that are stored.
    #[inline]
    pub fn stored(&self, dir: u32) -> Option<usize> {
        let rank = Rank::decode(self.ranks().get((dir / RANK_NODES) as usize)?);
        rank.of(dir).map(|place| place as usize)
    }

    #[inline]
    fn stored_path(&self, dir: u32) -> Option<&[u8]> {
        let place = self.stored(dir)?;
        let position = |place: usize| usize::try_from(u64::from_le_bytes(*self.positions().get(place)?)).ok();
        self.paths().get(position(place)?..position(place + 1)?)
    }
}

/// The directory of a path, and its last name.
#[inline]
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memrchr(b'/', path) {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// Whether a node has this name.
#[inline]
fn is_name(columns: &Columns<'_>, node: u32, name: &[u8]) -> bool {
    columns.name_start(node).is_some_and(|at| is_name_at(columns, node, at, name))
}

/// Whether a node, whose name begins here among all names, has this one.
#[inline]
pub(super) fn is_name_at(columns: &Columns<'_>, node: u32, at: usize, name: &[u8]) -> bool {
    // The length tells a name from the beginning of a longer one, and from two with a zero byte between.
    match columns.name_lengths().get(node as usize) {
        Some(&NAME_IS_LONG) => columns.name(node) == Some(name),
        Some(&len) if usize::from(len) == name.len() => {
            at.checked_add(name.len()).and_then(|end| columns.names().get(at..end)) == Some(name)
        }
        _ => false,
    }
}
