//! Test kit of every store: a reference model, random operations, injected faults, and power cuts.
//!
//! * [`crash`]: media in memory that lose power at any call.
//! * [`faults`]: media that fail at chosen calls.
//! * [`Hooked`]: a store that passes everything on, and tells a test first.
//! * [`MappedByte`]: a byte of a file that is written without a system call.
//! * [`model`]: [`model::MemoryStore`], the filesystem that is obviously right.
//! * [`peak_bytes`]: the most memory that a piece of work has at once.
//! * [`objects`]: object stores in memory and on loopback that fail when told to, and the suite for all of them.
//! * [`ops`]: random operations, run on a store or through a mount, and compared with the model.
//! * [`replay_corpora`]: inputs of the fuzzers, without them.
//! * [`Through`]: a medium that passes everything on, but for what a test does to its files.

mod corpora;
pub mod crash;
pub mod faults;
mod hooked;
mod mapped;
mod memory;
pub mod model;
pub mod objects;
pub mod ops;
mod rng;
mod through;
mod tree;

use adit_core::types::Caller;

pub use corpora::{Target, replay_corpora};
pub use hooked::{Asked, Hooked};
pub use mapped::MappedByte;
pub use memory::{PeakAllocator, peak_bytes};
pub use rng::{Rng, proptest_config, scaled, seeds};
pub use through::Through;

/// This process's own user and group.
pub fn own_caller() -> Caller {
    Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}
