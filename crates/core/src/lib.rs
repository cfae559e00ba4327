//! The engine above every store: types, errors, and the two seams, [`store::Store`] above formats and [`media`] below.
//!
//! Front ends call [`engine`]; stores implement [`store::Store`]; `adit-media` implements [`media::HostDir`].

pub mod acl;
pub mod cgroup;
pub mod engine;
pub mod error;
mod file_clock;
pub mod host;
pub mod media;
pub mod memory;
pub mod numbers;
pub mod overlay;
pub mod path;
pub mod paths;
pub mod process;
pub mod store;
pub mod transaction;
pub mod types;

pub use error::{ErrorKind, FsError, Result};
