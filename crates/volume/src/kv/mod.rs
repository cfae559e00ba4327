//! The ordered key-value store that holds what checkpoints wrote: the seam, and redb behind it.
//!
//! The seam asks for nothing that a remote transactional store could not do: views, gets of many keys, scans, and one commit
//! of many changes. There is no open write transaction and no cursor that lives between calls.

use std::sync::Arc;

use adit_core::Result;

use crate::table::{Bytes, Sink};

mod look;
pub(crate) mod pages;
mod redb;
pub(crate) mod sums;

pub(crate) use self::redb::Redb;

/// A key with its new value, or without one if it is removed.
pub(crate) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// An ordered key-value store.
pub(crate) trait Kv: Send + Sync {
    /// What the last commit left. Views are cheap to share, and should not outlive the next one for long.
    fn view(&self) -> Result<Arc<dyn View>>;

    /// Applies all changes as one, durably. One commit at a time.
    fn commit(&self, changes: &mut dyn Iterator<Item = Change<'_>>) -> Result<()>;

    /// After a failure: makes new views possible again. Commits too, unless writing ended.
    fn revive(&self) -> Result<()>;

    /// Moves what is stored together, and gives back the space behind it, durably. A view in somebody's hands keeps it from that:
    /// then it returns `false`, and nothing happened.
    fn compact(&self) -> Result<bool>;

    /// Bytes of entries that commits took out, less those that they put in, since it was packed or opened: it holds about so much
    /// space, at least, without need.
    fn slack(&self) -> u64;

    /// Whether it was packed since it was opened; else it may hold more without need than [`Kv::slack`] knows.
    fn was_packed(&self) -> bool;
}

/// The store as of one commit.
pub(crate) trait View: Send + Sync {
    /// The values of `keys`, in their order.
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>>;

    /// Hands out what is from `start` (inclusive) to `end` (exclusive), ascending, until `sink` breaks.
    fn scan(&self, start: &[u8], end: &[u8], sink: &mut Sink<'_>) -> Result<()>;
}
