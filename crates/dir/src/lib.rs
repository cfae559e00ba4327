//! A folder of the host as a store: the kind `dir`.
//!
//! [`DirStore`] reads and writes what is below the folder through the host's own calls, and keeps nothing that another
//! program could change: it is the lower of an overlay, what `adit mount --read-only` shows of a folder, and how verbs
//! reach a source that is mounted.
//!
//! **Nothing escapes.** Each step of a path is one component, opened in the directory above it by `openat2(2)` with
//! `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_XDEV`: no link is followed, and what another filesystem was
//! mounted on is `CrossDevice`. Where the kernel (or a sandbox) does not know that call, links are still not followed.
//!
//! **Inodes.** A number is the host's; only that of the folder itself changes places with 1. For a known inode the
//! directory and the name are remembered under which it was found, all of them if it has several, and no descriptor is
//! held: what a name leads to is compared with the number each time, and is `Stale` if it is another. What was made, moved
//! or removed here is never stale. What has no name any more is reached while it is open.

mod directories;
mod file;
mod folder;
mod known;
mod store;

pub use store::{DirStore, Identity};
