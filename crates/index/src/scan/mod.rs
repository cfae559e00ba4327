//! From a tree to the entries of an index: [`folder`] walks a folder of this machine, [`store`] any [`Store`].
//!
//! Directories are read whole, or in pages where that comes to the same, with the attributes of what is in them. What was indexed [before](Before) gives the hashes of files that are
//! the same and as they were, and says what is new. To that end a hash has a stamp, by which its file is known again. Nothing that could not be read is taken for absent: it is told ([`Event::Failed`]), and the
//! directory that it is in is marked ([`UNREADABLE`]), so that an answer about what is below can say that it is not known.
//!
//! [`Origin`] is what an index says of where it comes from.

mod before;
mod content;
mod host;
mod listing;
mod origin;
mod unfinished;
mod walk;
mod work;

use std::ops::ControlFlow;

use adit_core::error::{FsError, Result};
use adit_core::store::Store;

pub use before::{Before, Change};
pub use host::folder;
pub use origin::{Origin, SourceKind};
pub use walk::store;

use crate::build::Entry;

/// What the extra bytes of a directory begin with of which not everything could be read; the rest says why, as text. Extra bytes
/// of other directories are empty, those of a symbolic link are its target.
pub const UNREADABLE: &[u8] = b"unreadable: ";

/// How a tree is walked.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions<'a> {
    /// Whether the content of files is read, for its hash (XXH3-128, as in manifests).
    pub hash: bool,
    /// Whether a directory on another filesystem than the folder is left empty. Stores have one only.
    pub one_file_system: bool,
    /// Threads beside that of the caller. 1 at least. A [`Store`] is listed by one thread, and read by so many.
    pub threads: usize,
    /// What was known before.
    pub before: Option<Before<'a>>,
}

/// What a walk tells, in any order, but a directory before what is in it is not promised.
pub enum Event<'a> {
    /// An entry, and what became of it since it was indexed before.
    Entry(Entry<'a>, Change),
    /// So many bytes of content were read.
    Bytes(u64),
    /// Something could not be read, or has a path that no index can hold.
    Failed(FsError),
    /// The content of a file could not be read: its entry is there, without a hash.
    Unread(FsError),
    /// A file was changed again and again while it was read: its entry has no hash.
    Unsettled(&'a [u8]),
}

/// Who is told. `Break` ends the walk with `Interrupted`.
pub type Sink<'a> = dyn FnMut(Event<'_>) -> Result<ControlFlow<()>> + 'a;

/// A directory of a store. One that is not [`shared`](adit_core::store::Capabilities::shared), and whose cookies stay valid, is not to be changed by this
/// process while it is walked: what is renamed then may be told under both of its names, or under none.
pub struct StoreRoot<'a> {
    /// The store.
    pub store: &'a dyn Store,
    /// The directory that is to be the root of the index, known to the store for as long as the walk takes.
    pub root: adit_core::types::Attr,
}
