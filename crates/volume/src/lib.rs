//! The volume: a transactional POSIX filesystem inside one file.
//!
//! From the bottom up: `container` divides the file into segments and keeps who owns which; `kv` is an ordered
//! key-value store inside it; [`table`] makes of both, and of a log, one crash-safe ordered table and a place for extents.
//! What a filesystem means is above that seam: [`tree`] has the operations, [`store`] shows a branch or snapshot to the engine,
//! [`transaction`] joins several calls, and [`fs`] is all of it by path, for programs that embed a volume:
//!
//! ```
//! use std::sync::Arc;
//!
//! use adit_core::types::{Access, Caller};
//! use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
//! use adit_volume::{Fs, FsOptions, Volume};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data.adit");
//! let new = CreateOptions {
//!     capacity_bytes: None,
//!     durability: Durability::Fsync,
//!     owner: Caller { uid: 0, gid: 0 },
//!     perm: 0o755,
//! };
//! let volume = Arc::new(Volume::create(&path, &new, &OpenOptions::new(Access::Write))?);
//! let fs = Fs::live(&volume, FsOptions::default())?;
//!
//! fs.mkdir_all("/notes/2026", 0o755)?;
//! fs.write("/notes/2026/first", b"hello")?;
//! fs.create_snapshot("monday")?;
//!
//! // Both of it, or nothing.
//! fs.transact(|t| {
//!     t.write_file("/notes/2026/second", b"more")?;
//!     t.remove("/notes/2026/first")
//! })?;
//! assert!(!fs.exists("/notes/2026/first")?);
//!
//! let monday = fs.open_snapshot("monday")?;
//! assert_eq!(monday.read("/notes/2026/first")?, b"hello");
//! fs.restore("monday", "/notes/2026/first")?;
//! assert_eq!(fs.read("/notes/2026/first")?, b"hello");
//!
//! drop((fs, monday));
//! // From here on a copy of the file is a backup.
//! volume.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All bytes go through [`adit_core::media::BlockFile`] and, where files' blocks lie in a folder, [`adit_core::media::ExtentObjects`], so that power cuts can be injected at every call. The bits are in
//! `docs/formats/volume.md`.

pub mod check;
mod container;
mod data_folder;
pub mod format;
pub mod fs;
mod kv;
pub mod snapshots_dir;
pub mod store;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transaction;
pub mod tree;
pub mod volume;

pub use fs::{Fs, FsOptions};
pub use snapshots_dir::SnapshotsDir;
pub use store::VolumeStore;
pub use table::{Base, Batch, Bytes, CapacityUsed, Extents, NewVolume, Options, Run, Seq, Sink, Space, Table};
pub use tree::{Source, Tree};
pub use volume::Volume;
