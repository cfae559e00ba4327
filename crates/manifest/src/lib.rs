//! Manifests of job attachments, and the trees of content-addressed objects that they describe.
//!
//! - [`cache`]: the folder of this machine in which objects of a store are kept, shared by all mounts.
//! - [`cas`]: data objects of a store by the hash of their content, for the cache.
//! - [`commit`]: what was changed on top of a manifest, as a manifest of its own.
//! - [`download`]: the files of a manifest, brought from a store into a folder of the host.
//! - [`format`]: the codecs of manifests, version 2023-03-03 and both dialects of the version of 2025; no I/O beyond
//!   [`Read`](std::io::Read) and [`Write`](std::io::Write).
//! - [`layout`]: where manifests lie in a store, under which names.
//! - [`snapshot`]: from a tree of any store to its manifest; [`hash_cache`]: what was hashed before.
//! - [`store`]: a manifest as a read-only store, by an index segment that is built once.
//! - [`upload`]: the content of a manifest's files, brought into a store.

pub mod cache;
pub mod cas;
pub mod commit;
mod crew;
pub mod download;
pub mod format;
pub mod hash_cache;
pub mod layout;
pub mod snapshot;
pub mod store;
mod turns;
pub mod upload;
