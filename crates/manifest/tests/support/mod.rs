//! What the tests with the official packages share.

pub mod folders;
pub mod manifests;
pub mod official;
