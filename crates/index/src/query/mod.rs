//! Questions about many nodes at once: [`Query`] finds, [`Dupes`] and [`Diff`] compare, [`du()`] and [`top()`] add up.
//!
//! Names are searched where they lie, in one stretch of the file: by their bytes, or by an automaton that takes the zero byte behind each for
//! its end. Paths are searched on the way down the tree. What is asked of a node is looked up in the columns. All of it is
//! divided among threads, and comes out in one order. `docs/decisions/0025-queries.md` says why.
//!
//! The invariant: every hit was compared byte by byte, whatever found it. A node is in an answer once, or not at all.

pub mod pattern;

mod diff;
mod du;
mod dupes;
mod filter;
mod find;
mod known;
pub(crate) mod levels;
mod ordered;
mod paths;
mod renames;
mod same_size;
mod scan;
mod signatures;
mod sort;
mod view;
mod walk;

pub use diff::{Change, Content, Diff, DiffSummary, What};
pub use du::{Du, Top, Usage, du, top};
pub use dupes::{Dupes, DupesSummary, Group};
#[doc(hidden)]
pub use find::Strategy;
pub use find::{Candidate, Hit, Order, Query};
pub use known::{Joined, Known};
pub use paths::Paths;
pub use pattern::{BadPattern, Matcher, Pattern, PatternBuilder, Syntax, Target};
pub use same_size::{SameSize, same_size};
