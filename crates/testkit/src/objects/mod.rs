//! Object stores for tests: one in memory, one that fails when told to, servers of S3 and WebDAV on loopback, and the
//! suite that every implementation of [`Objects`](adit_core::media::Objects) passes.
//!
//! * [`MemoryObjects`]: the store that is obviously right.
//! * [`ObjectFaults`] and [`FaultyObjects`]: any store, with chosen calls that fail, lie or take their time, and counters.
//! * [`FaultyS3`] and [`FaultyWebDav`]: what a client of a network protocol talks to, with the faults that only a network has.
//! * [`LoopbackService`]: any other service that speaks HTTP, as a function from requests to answers.
//! * [`DistantServer`]: a proxy that makes a server on the loopback as slow to answer as one that is far away.
//! * [`check_objects`]: what an object store promises, as one function.

mod distance;
mod faulty;
mod http;
mod memory;
mod s3;
mod server;
mod service;
mod suite;
mod webdav;

pub use distance::{DistantServer, Traffic};
pub use faulty::{FaultyObjects, ObjectCall, ObjectFault, ObjectFaults, ObjectStats};
pub use http::{Request as HttpRequest, Response as HttpResponse};
pub use memory::MemoryObjects;
pub use s3::{Checksums, Conditions, FaultyS3};
pub use server::{FaultyServer, HttpFault, RequestLog};
pub use service::LoopbackService;
pub use suite::check_objects;
pub use webdav::{FaultyWebDav, WebDavHabits};

/// How long a test waits for requests. What never comes fails the test, and does not hold up all others behind it.
const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(60);
