//! The FUSE front end: the only crate that knows the kernel protocol and its transport.
//!
//! ```text
//! kernel ── /dev/fuse ── fuser ── fuse::Front ── adit_core::engine::Engine
//!                                    │ errno        one table, errors that need a line are logged
//!                        session ────┘              attach, serve, signals, idle, last flush
//! other commands ── control                         which mounts live; stats, status, umount
//! adit mount ── daemon                              background process that reports how it went
//! ```
//!
//! Main types: [`Session`] (a live mount), [`MountOptions`], [`control::Registry`]. Nothing here is about a kind of store.

mod activity;
mod announcements;
mod caller;
pub mod control;
pub mod daemon;
mod damage;
pub mod descriptors;
pub mod errno;
mod fuse;
pub mod holders;
pub mod mountpoint;
mod nodes;
pub mod options;
mod process;
mod request;
pub mod session;
pub mod sightings;
pub mod signals;

pub use announcements::{Announced, Became};
pub use mountpoint::{MountError, is_stale, umount};
pub use options::{Applied, MountOptions};
pub use process::Process;
pub use session::{Ended, Session, SessionHandle, Until};
pub use signals::Signals;
