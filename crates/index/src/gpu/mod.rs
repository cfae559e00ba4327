//! Bulk questions on a graphics processor: what a [`Device`] is, a segment in its memory ([`Resident`]), and the jobs over it.
//!
//! Every answer is the same as the processor's, in the same order; `tests/gpu.rs` compares them. Nothing here decides whether a
//! device is used: that is [`crate::router`]. The CPU holds the truth: a device has a copy of a segment that never changes.
//!
//! Jobs are given to the device when they are asked for, and answered by a [`Pending`]. Whatever goes wrong with a device is a
//! [`GpuError`], after which the processor can answer.

mod device;
mod error;
mod job;
mod join;
mod pending;
mod pool;
mod resident;
mod resolve;
mod scan;
mod shader;
mod table;

pub use crate::wait::block_on;
pub use device::{Adapter, AdapterFacts, Device, DeviceOptions, Ending, SHARD_LEN_MAX_BYTES, adapters};
pub use error::GpuError;
pub use job::jobs_submitted;
pub use join::Pairs;
pub use pending::Pending;
pub use resident::Resident;
pub use resolve::{PATH_SENT_MAX_BYTES, SentPaths};
pub use scan::Against;
pub use table::Table;
