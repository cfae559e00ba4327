//! A tree of any size as one immutable file that is mapped, not read, and that answers questions about millions of paths at once.
//!
//! # Where to begin
//!
//! An index is made once, by a [`Builder`] that takes entries in any order and sorts them outside of memory if need be. What gives
//! it the entries of a folder, or of any store, is [`scan`]. Then [`Index`] opens the file and answers:
//!
//! ```
//! # fn main() -> adit_core::Result<()> {
//! use std::ops::ControlFlow;
//!
//! use adit_index::query::{Order, Pattern, Query};
//! use adit_index::scan::{self, Event, ScanOptions};
//! use adit_index::{Builder, Index};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let (folder, scratch, file) = (dir.path().join("work"), dir.path(), dir.path().join("work.idx"));
//! # std::fs::create_dir_all(folder.join("src")).unwrap();
//! # std::fs::write(folder.join("README.md"), "read me").unwrap();
//! # std::fs::write(folder.join("src/lib.rs"), "pub fn f() {}").unwrap();
//! // The index of a folder, in at most 64 MiB of memory; the content of files is not read.
//! let mut builder = Builder::new(scratch, 64 << 20);
//! builder.set_tables(true);
//! let options = ScanOptions { hash: false, one_file_system: false, threads: 2, before: None };
//! scan::folder(&folder, Some(&file), &options, &mut |event| {
//!     match event {
//!         Event::Entry(entry, _) => builder.add(&entry)?,
//!         Event::Failed(error) => return Err(error),
//!         _ => {}
//!     }
//!     Ok(ControlFlow::Continue(()))
//! })?;
//! builder.finish(&file, &mut |_| ControlFlow::Continue(()))?;
//!
//! // Which paths exist, and what they are.
//! let index = Index::open(&file)?;
//! let node = index.resolve("src/../README.md")?.expect("it is there");
//! assert_eq!((index.path(node)?, index.node(node)?.size), (b"README.md".to_vec(), 7));
//!
//! // What matches: the largest first.
//! let query = Query::new().pattern(Pattern::substring(b"R")?).sort(Order::Size, true).limit(10);
//! index.find(&query, &mut |found| {
//!     println!("{}", String::from_utf8_lossy(found.path));
//!     ControlFlow::Continue(())
//! })?;
//!
//! // Many paths, while this thread does something else: a future for any executor, or to be waited for.
//! let answers = index.resolve_async(["src", "src/main.rs"].into_iter().collect());
//! let answers = answers.wait()?;
//! assert!(answers[0].is_ok());
//! assert_eq!(answers[1].unwrap_err().at, "src/".len());
//! # Ok(())
//! # }
//! ```
//!
//! | what for | where |
//! |---|---|
//! | from paths to entries, one or many | [`Index::resolve`], [`Index::resolve_batch`], [`Index::resolve_async`]; [`Resolver`] |
//! | what matches a pattern, a size, a time, a kind | [`query::Query`], with [`Index::find`] and [`Index::count`] |
//! | equal content, differences, sums | [`query::Dupes`], [`query::Diff`], [`Index::du`], [`Index::top`] |
//! | any of these in bulk, by a graphics processor where that is faster (feature `gpu`) | `Index::session` |
//! | how it is opened: memory, threads, checks, the key of an encrypted one | [`IndexOptions`] |
//! | an index that follows what changes in a store | [`live`] |
//!
//! # What is below
//!
//! [`Segment`] is the open file: [`Segment::lookup`], [`Segment::children`], [`Segment::node`], [`Segment::path`]. [`layout`] has the bytes as
//! pure functions; `docs/formats/index.md` says what they mean, and `docs/decisions/0016-index-segment.md` why they are so.
//!
//! The invariant: every byte that an answer rests on was compared with its checksum, and every number in it was checked
//! against the bounds of what it points into. A damaged or hostile file ends with an error that names it, never with an
//! absence, a panic or a walk without end.
//!
//! Tables are sections that follow from the others: without them everything is as right, and slower.

mod api;
pub mod build;
mod cores;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(feature = "gpu")]
pub mod gpu;
mod guard;
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
mod wait;

pub use api::{Answers, Batch, Found, Index, IndexOptions, PathCacheStats, Search};
pub use build::{Builder, Built, Entry};
pub use error::{Damage, Refusal};
pub use progress::{Progress, Report, Stage};
pub use resolve::{Miss, MissKind, Question, Resolver, ResolverOptions};
pub use segment::{Child, Children, Columns, Node, NodeId, Segment};
pub use wait::block_on;

/// A hash of what a node holds. Of which kind, the store knows that made the segment.
pub type ContentHash = [u8; 16];

/// Which file, in which state, a hash is of, as the store says that made the segment; zeros are none. Whoever would take the hash over without reading
/// the file compares it.
pub type Stamp = [u8; 8];
