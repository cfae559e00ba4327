//! The immutable part of a live index: a segment, and which node a store's number leads to.

use std::sync::Arc;

use adit_core::error::Result;
use adit_core::types::{Attr, Ino, Kind};

use crate::segment::{NodeId, Segment};
use crate::{ContentHash, Entry};

/// What is known of an entry, besides its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The store's number for it. Entries with the same one are names of one file.
    pub key: u64,
    /// What it is.
    pub kind: Kind,
    /// Permission bits (`mode & 0o7777`).
    pub perm: u16,
    /// Size in bytes; 0 of a directory.
    pub size: u64,
    /// When its content changed last, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Whether its content is what [`Contents::original`] tells.
    pub is_original: bool,
}

/// What a store knows of the content of its files without reading it: that of a manifest below an overlay.
pub trait Contents: Send + Sync {
    /// Whether the file with this number, which is known, has the content that [`Contents::original`] tells. Asked again whenever something of
    /// it changed.
    fn is_original(&self, ino: Ino) -> bool;

    /// The hash of what the file with this number held at first, where that is known. Always the same.
    ///
    /// # Errors
    /// `Corrupt` if what tells it is damaged.
    fn original(&self, ino: Ino) -> Result<Option<ContentHash>>;
}

impl Facts {
    /// A directory of which no more is known.
    pub fn directory(key: u64) -> Facts {
        Facts { key, kind: Kind::Directory, perm: 0o755, size: 0, mtime_ns: 0, is_original: false }
    }

    /// As the entry of a segment that is to be the base of a live index, at `path`.
    pub fn entry<'a>(&self, path: &'a [u8]) -> Entry<'a> {
        Entry {
            path,
            kind: self.kind,
            perm: self.perm,
            size: self.size,
            mtime_ns: self.mtime_ns,
            hash: Some(stored(self.key, self.is_original)),
            stamp: None,
            extra: b"",
        }
    }
}

impl From<&Attr> for Facts {
    fn from(attr: &Attr) -> Facts {
        let size = if attr.kind == Kind::Directory { 0 } else { attr.size };
        let mtime_ns = i64::try_from(attr.mtime.as_nanos()).unwrap_or(i64::MAX);
        Facts { key: attr.ino.0, kind: attr.kind, perm: attr.perm, size, mtime_ns, is_original: false }
    }
}

/// Where the store's number of a node is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    /// In the column of hashes, as [`Facts::entry`] puts it there.
    Stored,
    /// It is the node's number and [`Ino::ROOT`]: the namespace of a manifest is the segment itself. Hashes are those of content then.
    OfNodes {
        /// What the store tells as the time of every directory, in nanoseconds since 1970.
        directories_mtime_ns: i64,
    },
}

/// A tree as it was at some time. Never changes.
pub struct Base {
    segment: Arc<Segment>,
    keys: Keys,
    /// All nodes in the order of their keys' buckets, and where each bucket ends. Both empty where keys are not stored.
    nodes: Box<[u32]>,
    ends: Box<[u32]>,
    /// Who knows the content of files that are as they were.
    contents: Option<Arc<dyn Contents>>,
}

/// So many nodes a bucket has, on average.
const BUCKET_LEN: u32 = 4;

impl Base {
    /// The tree in `segment`, whose nodes have `keys`. Looks at each of them, twice; takes 5 bytes of memory for each.
    ///
    /// # Errors
    /// `Corrupt` if the segment is damaged; `InvalidInput` if a node has no key.
    pub fn new(segment: Arc<Segment>, keys: Keys) -> Result<Base> {
        let (mut nodes, mut ends) = (Box::default(), Box::default());
        if keys == Keys::Stored {
            (nodes, ends) = by_key(&segment)?;
        }
        Ok(Base { segment, keys, nodes, ends, contents: None })
    }

    /// With somebody who knows the content of files that are [as they were](Facts::is_original).
    #[must_use]
    pub fn with_contents(self, contents: Option<Arc<dyn Contents>>) -> Base {
        Base { contents, ..self }
    }

    /// The segment.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Memory that it takes beside the segment's file, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (size_of_val(&*self.nodes) + size_of_val(&*self.ends)) as u64
    }

    pub(super) fn len(&self) -> u32 {
        self.segment.len()
    }

    pub(super) fn key(&self, node: u32) -> Result<u64> {
        match self.keys {
            Keys::Stored => stored_key(&self.segment, NodeId(node)).map(|(key, _)| key),
            Keys::OfNodes { .. } => Ok(u64::from(node) + Ino::ROOT.0),
        }
    }

    /// Calls `each` with the nodes of this key until it says that this is enough.
    pub(super) fn of_key(&self, key: u64, each: &mut dyn FnMut(u32) -> Result<bool>) -> Result<()> {
        if self.keys != Keys::Stored {
            let node = key.checked_sub(Ino::ROOT.0).and_then(|node| u32::try_from(node).ok());
            if let Some(node) = node.filter(|node| *node < self.len()) {
                each(node)?;
            }
            return Ok(());
        }
        let bucket = bucket_of(key, self.ends.len());
        let start = bucket.checked_sub(1).map_or(0, |before| self.ends[before]);
        for &node in &self.nodes[start as usize..self.ends[bucket] as usize] {
            if self.key(node)? == key && each(node)? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn facts(&self, node: u32) -> Result<Facts> {
        let found = self.segment.node(NodeId(node))?;
        let (kind, perm, size) = (found.kind, found.perm, found.size);
        let mtime_ns = match self.keys {
            Keys::OfNodes { directories_mtime_ns } if kind == Kind::Directory => directories_mtime_ns,
            _ => found.mtime_ns,
        };
        let (key, is_original) = match self.keys {
            Keys::Stored => stored_key(&self.segment, NodeId(node))?,
            Keys::OfNodes { .. } => (self.key(node)?, false),
        };
        Ok(Facts { key, kind, perm, size, mtime_ns, is_original })
    }

    /// The hash of a file's content that is in its own columns: a namespace's.
    pub(super) fn hash(&self, node: u32) -> Result<Option<ContentHash>> {
        let node = NodeId(node);
        match self.keys != Keys::Stored && self.segment.kind(node)? == Kind::File {
            true => self.segment.hash(node),
            false => Ok(None),
        }
    }

    /// The hash of a file's content that is as it was.
    pub(super) fn original(&self, facts: &Facts) -> Result<Option<ContentHash>> {
        match &self.contents {
            Some(contents) if facts.is_original => contents.original(Ino(facts.key)),
            _ => Ok(None),
        }
    }

    /// Who knows that.
    pub(super) fn contents(&self) -> Option<Arc<dyn Contents>> {
        self.contents.clone()
    }

    /// Whether its columns have the times that [`Base::facts`] tells.
    pub(super) fn has_own_times(&self) -> bool {
        self.keys == Keys::Stored
    }
}

/// Keys are mixed, because stores number what they make one after the other, or by places on a disk.
fn bucket_of(key: u64, buckets: usize) -> usize {
    let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * buckets as u128) >> 64) as usize
}

/// All nodes by bucket, and where each bucket ends.
type Buckets = (Box<[u32]>, Box<[u32]>);

/// Sorts the nodes into buckets by counting. Names of one file lie in one bucket, however many they are.
fn by_key(segment: &Segment) -> Result<Buckets> {
    let count = segment.len();
    let buckets = count.div_ceil(BUCKET_LEN).max(1) as usize;
    let mut ends = vec![0_u32; buckets];
    for node in 0..count {
        ends[bucket_of(stored_key(segment, NodeId(node))?.0, buckets)] += 1;
    }
    let mut begin = 0;
    for end in &mut ends {
        // Where the bucket begins, until its nodes are put in.
        begin += std::mem::replace(end, begin);
    }
    let mut nodes = vec![0_u32; count as usize];
    for node in 0..count {
        let place = &mut ends[bucket_of(stored_key(segment, NodeId(node))?.0, buckets)];
        nodes[*place as usize] = node;
        *place += 1;
    }
    Ok((nodes.into(), ends.into()))
}

/// Set in the column of hashes, above the key, where the content is as it was.
const ORIGINAL: u128 = 1 << 64;

fn stored(key: u64, is_original: bool) -> ContentHash {
    (u128::from(key) | if is_original { ORIGINAL } else { 0 }).to_le_bytes()
}

/// The key of a node, and whether its content is as it was.
fn stored_key(segment: &Segment, node: NodeId) -> Result<(u64, bool)> {
    let hash = segment.hash(node)?.ok_or_else(|| {
        let why = "an entry of this index has no number of its store; it cannot be the base of a live one";
        adit_core::error::FsError::new(adit_core::error::ErrorKind::InvalidInput).because(why)
    })?;
    let stored = u128::from_le_bytes(hash);
    Ok((stored as u64, stored & ORIGINAL != 0))
}
