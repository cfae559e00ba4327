//! What can be wrong with a segment, and why an entry is refused: facts, which travel as the cause of an [`FsError`].

use std::fmt;
use std::io;
use std::path::Path;

use adit_core::error::{ErrorKind, FsError};

use crate::layout::{DEPTH_MAX, EXTRA_LEN_MAX_BYTES, NODES_MAX, PATH_LEN_MAX_BYTES};

/// What is wrong with a segment's file. The cure is the same for all: it is made again from its source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// It does not begin as a segment does.
    NotASegment,
    /// It is of a format that this program does not know.
    LaterVersion(u32),
    /// It has features that a reader must know, and this one does not.
    UnknownFeatures(u32),
    /// It has a section that a reader must know, and this one does not.
    UnknownSection(u32),
    /// The header does not match its checksum.
    HeaderChecksum,
    /// The header matches its checksum, and contradicts itself.
    Header(&'static str),
    /// The file is not as long as it says.
    Length {
        /// As the header says, in bytes.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// The checksums of a section do not match the one of them all.
    Checksums {
        /// What the section holds.
        section: &'static str,
    },
    /// A block does not match its checksum.
    Block {
        /// What the section holds.
        section: &'static str,
        /// Number of the block in its section.
        block: u64,
    },
    /// A number points out of a section.
    Outside {
        /// What the section holds.
        section: &'static str,
        /// Where it points, in bytes from the section's beginning.
        at: u64,
    },
    /// What a node says cannot be.
    Node {
        /// Its number.
        node: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A table does not say what the nodes say.
    Table {
        /// What the section holds.
        section: &'static str,
    },
    /// A part of it that was right could not be read any more.
    Lost,
}

impl Damage {
    /// The kind of error that it is: damage, or something newer.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Damage::LaterVersion(_) | Damage::UnknownFeatures(_) | Damage::UnknownSection(_) => ErrorKind::NotSupported,
            _ => ErrorKind::Corrupt,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::NotASegment => f.write_str("it does not begin as an index does")?,
            Damage::LaterVersion(version) => write!(f, "it is of format {version}, which is newer")?,
            Damage::UnknownFeatures(bits) => write!(f, "it has features that are newer ({bits:#x})")?,
            Damage::UnknownSection(kind) => write!(f, "it has a section that is newer ({kind})")?,
            Damage::HeaderChecksum => f.write_str("its header does not match its checksum")?,
            Damage::Header(what) => write!(f, "its header cannot be right: {what}")?,
            Damage::Length { expected, found } => write!(f, "it has {found} bytes and should have {expected}")?,
            Damage::Checksums { section } => write!(f, "the checksums of {section} do not match their own")?,
            Damage::Block { section, block } => write!(f, "block {block} of {section} does not match its checksum")?,
            Damage::Outside { section, at } => write!(f, "a number points out of {section}, to {at}")?,
            Damage::Node { node, what } => write!(f, "node {node}: {what}")?,
            Damage::Lost => {
                f.write_str("a part of it cannot be read any more: the file was cut, or its disk has failed")?
            }
            Damage::Table { section } => write!(f, "{section}: not what the nodes say")?,
        }
        match self.kind() {
            ErrorKind::NotSupported => f.write_str("; use a newer adit, or build the index again"),
            _ => f.write_str("; build the index again"),
        }
    }
}

impl std::error::Error for Damage {}

/// Why an index cannot be read, before it is said which: it is damaged, the host failed, or the key is another one.
#[derive(Debug)]
pub(crate) struct Fault(FsError);

impl From<Damage> for Fault {
    fn from(damage: Damage) -> Self {
        Fault(FsError::new(damage.kind()).because(damage))
    }
}

#[cfg(feature = "sealed")]
impl From<crate::sealed::Damage> for Fault {
    fn from(damage: crate::sealed::Damage) -> Self {
        Fault(FsError::new(damage.kind()).because(damage))
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        Fault(e.into())
    }
}

impl From<FsError> for Fault {
    fn from(e: FsError) -> Self {
        Fault(e)
    }
}

impl Fault {
    /// As the error of the index in `path`.
    #[cold]
    pub fn of(self, path: &Path) -> FsError {
        self.0.on("read index", path.display())
    }
}

/// Why an entry is not taken into a segment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The path was given before.
    #[error("there is another entry with this path")]
    Twice,
    /// Something above it is not a directory.
    #[error("{} is not a directory in the same tree", String::from_utf8_lossy(.file))]
    BelowFile {
        /// The path of what is above it.
        file: Vec<u8>,
    },
    /// The path is not a relative path of plain names.
    #[error("{0}")]
    Path(&'static str),
    /// The path is too long.
    #[error("the path is longer than {PATH_LEN_MAX_BYTES} bytes")]
    TooLong,
    /// The path has too many names.
    #[error("the path has more than {DEPTH_MAX} names")]
    TooDeep,
    /// The root is not a directory.
    #[error("the root has to be a directory")]
    Root,
    /// The bytes that go with it are too many.
    #[error("its extra bytes are more than {EXTRA_LEN_MAX_BYTES}")]
    ExtraTooLong,
    /// The segment is full.
    #[error("an index holds {NODES_MAX} nodes at most, implied directories included")]
    Full,
}

impl Refusal {
    /// As the error of the entry with this path.
    #[cold]
    pub(crate) fn of(self, path: &[u8]) -> FsError {
        let kind = match self {
            Refusal::Twice => ErrorKind::Exists,
            Refusal::BelowFile { .. } | Refusal::Root => ErrorKind::NotDirectory,
            Refusal::Path(_) => ErrorKind::InvalidInput,
            Refusal::TooLong | Refusal::TooDeep => ErrorKind::NameTooLong,
            Refusal::ExtraTooLong | Refusal::Full => ErrorKind::OutOfRange,
        };
        let shown = if path.is_empty() { "/".into() } else { String::from_utf8_lossy(path) };
        FsError::new(kind).on("index", shown).because(self)
    }
}
