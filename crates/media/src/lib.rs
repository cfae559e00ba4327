//! Where the bytes of a store live: implementations of the seam [`adit_core::media`] on the host.
//!
//! [`HostDirectory`] is a folder of the host. Nothing here knows a store's format, and nothing above knows a file
//! descriptor.

mod host_dir;

pub use host_dir::HostDirectory;
