//! The cache of objects, from outside: whatever happens to its folder or its source, readers get right bytes or a clear error.

// Lists of ranges that were fetched, of which there may be one.
#![allow(clippy::single_range_in_vec_init)]

#[path = "cache/crash.rs"]
mod crash;
#[path = "cache/damage.rs"]
mod damage;
#[path = "cache/faults.rs"]
mod faults;
#[path = "cache/flights.rs"]
mod flights;
#[path = "cache/keep.rs"]
mod keep;
#[path = "cache/keys.rs"]
mod keys;
#[path = "cache/limits.rs"]
mod limits;
#[path = "cache/model.rs"]
mod model;
#[path = "cache/processes.rs"]
mod processes;
#[path = "cache/support.rs"]
mod support;
#[path = "cache/verified.rs"]
mod verified;
