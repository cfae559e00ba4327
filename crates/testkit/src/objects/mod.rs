//! Object stores for tests: one in memory, one that fails when told to, and the suite that every implementation of
//! [`Objects`](adit_core::media::Objects) passes.
//!
//! * [`MemoryObjects`]: the store that is obviously right.
//! * [`ObjectFaults`] and [`FaultyObjects`]: any store, with chosen calls that fail, lie or take their time, and counters.
//! * [`check_objects`]: what an object store promises, as one function.

mod faulty;
mod memory;
mod suite;

pub use faulty::{FaultyObjects, ObjectCall, ObjectFault, ObjectFaults, ObjectStats};
pub use memory::MemoryObjects;
pub use suite::check_objects;
