//! Where the bytes of a store live: implementations of the seam [`adit_core::media`] on the host.
//!
//! [`HostDirectory`] is a folder of the host, [`KeptFolder`] one that is made again when it was removed, [`HostBlockFile`] a single file, [`RoomyFile`] one for which room is made where its disk is full, [`ExtentFolder`] objects with numbers in a folder of any
//! medium. With the feature `objects`, `open_objects` gives an object store of the network, or one in a folder. Nothing here knows a store's format, and nothing above knows a file descriptor.

mod block_file;
mod extent_folder;
pub mod host;
mod host_dir;
mod kept_folder;
#[cfg(feature = "objects")]
pub mod objects;
mod roomy_file;

pub use block_file::HostBlockFile;
pub use extent_folder::ExtentFolder;
pub use host_dir::HostDirectory;
pub use kept_folder::KeptFolder;
#[cfg(feature = "objects")]
pub use objects::{FolderObjects, ObjectsOptions, open_objects};
pub use roomy_file::RoomyFile;
