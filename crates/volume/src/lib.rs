//! The volume: a transactional POSIX filesystem inside one file.
//!
//! From the bottom up: `container` divides the file into segments and keeps who owns which; `kv` is an ordered
//! key-value store inside it; [`table`] makes of both, and of a log, one crash-safe ordered table and a place for extents.
//! What a filesystem means is above that seam: [`tree`] has the operations, [`store`] shows a branch or snapshot to the engine.
//!
//! All bytes go through [`adit_core::media::BlockFile`] and, where files' blocks lie in a folder, [`adit_core::media::ExtentObjects`], so that power cuts can be injected at every call. The bits are in
//! `docs/formats/volume.md`.

pub mod check;
mod container;
mod data_folder;
pub mod format;
mod kv;
pub mod snapshots_dir;
pub mod store;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transaction;
pub mod tree;
pub mod volume;

pub use snapshots_dir::SnapshotsDir;
pub use store::VolumeStore;
pub use table::{Base, Batch, Bytes, Extents, NewVolume, Options, Run, Seq, Sink, Space, Table};
pub use tree::{Source, Tree};
pub use volume::Volume;
