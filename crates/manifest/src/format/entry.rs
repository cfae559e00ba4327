//! What a manifest says, whatever its version: a header, and entries.

use std::borrow::Cow;

use super::hash::ContentHash;
use super::limits::{CHUNK_LEN_BYTES, CHUNKS_PER_FILE_MAX};
use super::path::{EntryPath, LinkTarget};
use super::rule::{FormatError, Rule};

/// The two ways in which manifests of 2025 are spelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// `manifestVersion`, `name`, `delete`. Read only.
    L,
    /// `specificationVersion`, `path`, `deleted`.
    G,
}

/// A version of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// 2023-03-03: files only, each with one hash.
    V2023,
    /// The beta of December 2025: directories, symbolic links, chunks, the exec bit, deletions.
    V2025(Dialect),
}

impl Format {
    /// What is read, for messages.
    pub(crate) const READ: &str = "manifestVersion \"2023-03-03\" and \"2025-12-04-beta\", and specificationVersion \
         \"{relative,absolute}-manifest-{snapshot,diff}-beta-2025-12\"";
}

/// What paths begin at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathStyle {
    /// At a root that is named elsewhere.
    Relative,
    /// At the host's root.
    Absolute,
}

/// What a manifest is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A whole tree.
    Snapshot,
    /// What changed since another manifest.
    Diff {
        /// xxh128 of that one's bytes.
        parent: ContentHash,
    },
}

impl Kind {
    /// The parent of a diff.
    #[must_use]
    pub fn parent(&self) -> Option<ContentHash> {
        match self {
            Kind::Snapshot => None,
            Kind::Diff { parent } => Some(*parent),
        }
    }
}

/// What holds for a whole manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version that it was read from.
    pub format: Format,
    /// What its paths begin at.
    pub style: PathStyle,
    /// What it is about.
    pub kind: Kind,
}

impl Header {
    /// Of a whole tree with relative paths.
    #[must_use]
    pub fn snapshot(format: Format) -> Self {
        Header { format, style: PathStyle::Relative, kind: Kind::Snapshot }
    }

    /// Whether it is one of a diff.
    #[must_use]
    pub fn is_diff(&self) -> bool {
        matches!(self.kind, Kind::Diff { .. })
    }
}

/// One entry. As a manifest is read, it borrows from the reader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Where it lies.
    pub path: EntryPath<'a>,
    /// What it is.
    pub body: Body<'a>,
}

/// What lies at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// A directory. Only some are listed: a path implies the directories on its way.
    Directory,
    /// A regular file.
    File(File<'a>),
    /// A symbolic link to this target.
    Symlink(LinkTarget<'a>),
    /// In a diff: nothing any more.
    Deleted(Removed),
}

/// What a diff removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removed {
    /// A file or a symbolic link.
    File,
    /// A directory with all that is in it.
    Directory,
}

/// A regular file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File<'a> {
    /// Its length in bytes, at most [`FILE_SIZE_MAX_BYTES`](super::limits::FILE_SIZE_MAX_BYTES).
    pub size_bytes: u64,
    /// When it was modified, in microseconds since 1970.
    pub mtime_micros: i64,
    /// Whether it may be executed.
    pub runnable: bool,
    /// What is in it.
    pub content: Content<'a>,
}

/// The content of a file, by hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// One object.
    Whole(ContentHash),
    /// An object for each [`CHUNK_LEN_BYTES`], at least two. Made by [`Content::chunks`].
    Chunks(Cow<'a, [ContentHash]>),
}

impl<'a> Content<'a> {
    /// Chunks of a file of `size_bytes`.
    ///
    /// # Errors
    /// [`Rule::ChunkCount`] if their number is not that of the size, or they are too many.
    pub fn chunks(hashes: Cow<'a, [ContentHash]>, size_bytes: u64) -> Result<Self, FormatError> {
        let expected = size_bytes.div_ceil(CHUNK_LEN_BYTES);
        let refuse = |detail: String| Err(FormatError::new(Rule::ChunkCount, detail));
        if hashes.len() > CHUNKS_PER_FILE_MAX {
            return refuse(format!("has more than {CHUNKS_PER_FILE_MAX} chunks"));
        }
        if expected < 2 {
            return refuse(format!("has chunks, with a size of {size_bytes}: no more than one chunk's"));
        }
        if hashes.len() as u64 != expected {
            return refuse(format!("has {} chunks, and {expected} by its size of {size_bytes}", hashes.len()));
        }
        Ok(Content::Chunks(hashes))
    }

    /// The hashes, in order.
    #[must_use]
    pub fn hashes(&self) -> &[ContentHash] {
        match self {
            Content::Whole(hash) => std::slice::from_ref(hash),
            Content::Chunks(hashes) => hashes,
        }
    }

    /// With hashes of its own.
    #[must_use]
    pub fn into_owned(self) -> Content<'static> {
        match self {
            Content::Whole(hash) => Content::Whole(hash),
            Content::Chunks(hashes) => Content::Chunks(Cow::Owned(hashes.into_owned())),
        }
    }
}

impl Body<'_> {
    /// Bytes that count for `totalSize`.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        match self {
            Body::File(file) => file.size_bytes,
            _ => 0,
        }
    }

    /// With bytes of its own.
    #[must_use]
    pub fn into_owned(self) -> Body<'static> {
        match self {
            Body::Directory => Body::Directory,
            Body::File(file) => Body::File(File {
                size_bytes: file.size_bytes,
                mtime_micros: file.mtime_micros,
                runnable: file.runnable,
                content: file.content.into_owned(),
            }),
            Body::Symlink(target) => Body::Symlink(target.into_owned()),
            Body::Deleted(removed) => Body::Deleted(removed),
        }
    }
}

impl Entry<'_> {
    /// With bytes of its own.
    #[must_use]
    pub fn into_owned(self) -> Entry<'static> {
        Entry { path: self.path.into_owned(), body: self.body.into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fit_the_size() {
        let hash = ContentHash([7; 16]);
        let of = |count: usize, size_bytes| Content::chunks(vec![hash; count].into(), size_bytes).is_ok();
        assert!(of(2, CHUNK_LEN_BYTES + 1) && of(2, 2 * CHUNK_LEN_BYTES) && of(3, 2 * CHUNK_LEN_BYTES + 1));
        assert!(!of(1, CHUNK_LEN_BYTES) && !of(1, 1) && !of(0, 0) && !of(1, CHUNK_LEN_BYTES + 1));
        assert!(!of(3, 2 * CHUNK_LEN_BYTES) && !of(2, u64::MAX));
        let most = CHUNKS_PER_FILE_MAX;
        assert!(of(most, most as u64 * CHUNK_LEN_BYTES) && !of(most + 1, (most as u64 + 1) * CHUNK_LEN_BYTES));
    }
}
