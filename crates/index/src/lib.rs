//! The index segment: a tree of any size as one immutable file that is mapped, not read.
//!
//! [`Builder`] takes entries in any order, sorts them outside of memory if need be, and publishes the file whole.
//! [`Segment`] maps it and answers: [`Segment::lookup`], [`Segment::children`], [`Segment::node`], [`Segment::path`].
//! [`Resolver`] finds nodes by whole paths, one or many at once.
//! [`layout`] has the bytes as pure functions; `docs/formats/index.md` says what they mean, and
//! `docs/decisions/0016-index-segment.md` why they are so.
//!
//! The invariant: every byte that an answer rests on was compared with its checksum, and every number in it was checked
//! against the bounds of what it points into. A damaged or hostile file ends with an error that names it, never with an
//! absence, a panic or a walk without end.
//!
//! Tables are sections that follow from the others: without them everything is as right, and slower.
//!
//! [`query`] has the questions about many nodes at once: what matches a pattern, what is there twice, what is different.

pub mod build;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod layout;
pub mod live;
mod map;
mod progress;
pub mod publish;
pub mod query;
pub mod resolve;
#[cfg(feature = "gpu")]
pub mod router;
pub mod scan;
#[cfg(feature = "sealed")]
pub mod sealed;
pub mod segment;
#[cfg(feature = "gpu")]
pub mod session;

pub use build::{Builder, Built, Entry};
pub use error::{Damage, Refusal};
pub use progress::{Progress, Report, Stage};
pub use resolve::{Miss, MissKind, Question, Resolver, ResolverOptions};
pub use segment::{Child, Children, Columns, Node, NodeId, Segment};

/// A hash of what a node holds. Of which kind, the store knows that made the segment.
pub type ContentHash = [u8; 16];
