//! What an earlier index says of the same tree.

use adit_core::error::Result;
use adit_core::types::Kind;

use super::listing::Known;
use crate::build::Entry;
use crate::segment::{NodeId, Segment};
use crate::{ContentHash, Stamp};

/// How long before an index was begun a file has to be as it is, in nanoseconds: clocks of hosts go in steps, on FAT of two seconds.
const SETTLED_NS: i64 = 3_000_000_000;

/// An earlier index of the same tree.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    segment: &'a Segment,
    /// Changes before this time are in it.
    settled_ns: i64,
    /// Whether it is of the place that is walked now.
    is_of_this: bool,
}

/// What became of an entry since it was indexed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It was not there.
    Added,
    /// Its kind, size, time, permissions, hash or target is another. Of a directory only the first and its permissions count.
    Changed,
    /// It is as it was.
    Same,
}

impl<'a> Before<'a> {
    /// The index `segment`, whose making was begun at `begun_ns` (since 1970).
    pub fn new(segment: &'a Segment, begun_ns: i64) -> Before<'a> {
        Before { segment, settled_ns: begun_ns.saturating_sub(SETTLED_NS), is_of_this: true }
    }

    /// Of another place than the one that is walked: it says what is new, and no hash.
    pub fn of_another_place(self) -> Before<'a> {
        Before { is_of_this: false, ..self }
    }

    /// The entry `name` of the directory `dir`. One that cannot be read is none: it is told as new, and read again.
    pub(super) fn child(&self, dir: Option<NodeId>, name: &[u8]) -> Option<NodeId> {
        self.segment.lookup(dir?, name).ok()?
    }

    /// The hash of a file, if it is the same one and as it was: of this size, time and stamp, and its inode was not changed since it was
    /// indexed. Without the stamp, a file that came to the path with a directory around it would be taken for the one that was there.
    pub(super) fn hash(&self, node: Option<NodeId>, known: &Known) -> Option<ContentHash> {
        let node = self.segment.node(node.filter(|_| self.is_of_this)?).ok()?;
        let same = node.kind == Kind::File && (node.size, node.mtime_ns) == (known.size, known.mtime_ns);
        let settled = known.ctime_ns < self.settled_ns && known.mtime_ns < self.settled_ns;
        if !same || !settled || !self.is_of(node.id, known.stamp()).ok()? {
            return None;
        }
        self.segment.hash(node.id).ok()?
    }

    /// Whether the hash of a file is of the one with this stamp. What was made before stamps had a place of their own has them as extra bytes.
    fn is_of(&self, node: NodeId, stamp: Stamp) -> Result<bool> {
        Ok(match self.segment.stamp(node)? {
            Some(of) => of == stamp,
            None => self.segment.extra(node)? == stamp,
        })
    }

    /// What became of what is at the path of `entry`.
    pub fn change_at(&self, entry: &Entry<'_>) -> Change {
        let mut names = entry.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        self.change(names.try_fold(NodeId::ROOT, |dir, name| self.child(Some(dir), name)), entry)
    }

    /// How many entries there were, without directories that none of them named.
    pub fn entries(&self) -> u64 {
        let all = (0..self.segment.len()).map(NodeId);
        all.filter(|id| self.segment.node(*id).is_ok_and(|node| !node.implied)).count() as u64
    }

    /// What became of the node that `entry` is now.
    pub(super) fn change(&self, node: Option<NodeId>, entry: &Entry<'_>) -> Change {
        let was = node.and_then(|id| self.segment.node(id).ok()).filter(|was| !was.implied);
        let Some(was) = was else { return Change::Added };
        let mut same = was.kind == entry.kind && was.perm == entry.perm;
        if entry.kind != Kind::Directory {
            let said = (self.segment.hash(was.id).ok().flatten(), self.segment.extra(was.id).unwrap_or_default());
            // What was not hashed both times is not compared by its hash.
            let hash = said.0.is_none() || entry.hash.is_none() || said.0 == entry.hash;
            // The extra bytes of a file said which one it is, and not what is in it.
            let target = entry.kind == Kind::File || said.1 == entry.extra;
            same &= hash && target && (was.size, was.mtime_ns) == (entry.size, entry.mtime_ns);
        }
        if same { Change::Same } else { Change::Changed }
    }
}
