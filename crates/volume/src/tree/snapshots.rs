//! Snapshots and branches as a whole: made, deleted, listed, and a branch set back to a snapshot.
//!
//! Each is one batch of one or two keys, whatever the tree holds; a restore has others before it, with the times of what differs. What it
//! makes superfluous is dropped later, by
//! [`Tree::collect`], in batches that may be interrupted anywhere.

use adit_core::types::{FileName, Timestamp};
use adit_core::{ErrorKind, FsError, Result};
use hashbrown::HashMap;

use super::stamps::{Mtimes, Stamps};
use super::topology::{Node, Topology};
use super::{Gone, MAIN, Source, Tree};
use crate::format::keys::{self, Id};
use crate::format::records::{Snapshot, State};
use crate::table::Batch;

/// A snapshot or a branch, as lists show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its number.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
    /// Whether it is a branch.
    pub is_branch: bool,
    /// The snapshot that it is nearest to, if one has a name.
    pub origin: Option<String>,
}

/// Refuses what could not be a folder's name.
fn check_name(name: &str) -> Result<()> {
    FileName::new(name.as_bytes()).map(drop).map_err(|e| FsError::from(e).on("name", name))
}

fn missing(what: &str, name: &str) -> FsError {
    FsError::new(ErrorKind::NotFound).on("find", format!("{what} {name}"))
}

impl Topology {
    fn of_state(&self, state: State, what: &str, name: &str) -> Result<(Id, Snapshot)> {
        match self.named(name) {
            Some((id, record)) if record.state == state => Ok((id, record.clone())),
            _ => Err(missing(what, name)),
        }
    }

    fn vacant(&self, name: &str) -> Result<()> {
        check_name(name)?;
        match self.named(name) {
            Some(_) => Err(FsError::new(ErrorKind::Exists).on("make", name)),
            None => Ok(()),
        }
    }

    fn next_id(&self) -> Result<Id> {
        self.last_id().checked_add(1).ok_or_else(|| ErrorKind::Exhausted.into())
    }
}

impl Tree {
    /// Writes records of ids in one batch.
    pub(super) fn write_snapshots(&self, records: &[(Id, Option<&Snapshot>)]) -> Result<()> {
        let writes = records.iter().map(|(id, record)| (keys::snapshot(*id), record.map(Snapshot::encode))).collect();
        self.table.apply(Batch { writes, uses_reserve: true, ..Batch::default() }).map(drop)
    }

    /// Makes a snapshot of a branch as it is between two operations. `Exists`, `NotFound`.
    pub fn snapshot(&self, branch: &str, name: &str) -> Result<Id> {
        let mut topology = self.topology.write();
        topology.vacant(name)?;
        let (live, record) = topology.of_state(State::Live, "branch", branch)?;
        let next = topology.next_id()?;
        let now = Timestamp::now();
        let frozen = Snapshot { state: State::Frozen, name: name.to_owned(), created: now, ..record.clone() };
        let record = Snapshot { parent: live, ..record };
        self.write_snapshots(&[(live, Some(&frozen)), (next, Some(&record))])?;
        topology.freeze(live, frozen, next, record);
        Ok(live)
    }

    /// Makes a branch that begins as a snapshot. `Exists`, `NotFound`.
    pub fn branch(&self, snapshot: &str, name: &str) -> Result<Id> {
        let mut topology = self.topology.write();
        topology.vacant(name)?;
        let (parent, _) = topology.of_state(State::Frozen, "snapshot", snapshot)?;
        let next = topology.next_id()?;
        let record =
            Snapshot { state: State::Live, parent, created: Timestamp::now(), name: name.to_owned(), done: Vec::new() };
        self.write_snapshots(&[(next, Some(&record))])?;
        topology.insert(next, record);
        Ok(next)
    }

    /// Deletes a snapshot. `Busy` while it is mounted. Its space comes back by [`Tree::collect`].
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        let mut topology = self.topology.write();
        let (id, record) = topology.of_state(State::Frozen, "snapshot", name)?;
        if self.is_held(&Source::Snapshot(id)) {
            return Err(FsError::new(ErrorKind::Busy).on("delete", format!("snapshot {name}")));
        }
        let state = match topology.node(id)?.children.as_slice() {
            [] => State::Dropping,
            &[child] if !topology.node(child)?.is_going() => State::Merging,
            _ => State::Nameless,
        };
        let record = Snapshot { state, done: Vec::new(), ..record };
        self.write_snapshots(&[(id, Some(&record))])?;
        topology.replace(id, record);
        self.note_forks_above(&topology, id);
        Ok(())
    }

    /// Deletes a branch. `Busy` while it is mounted, `NotPermitted` for [`MAIN`].
    pub fn delete_branch(&self, name: &str) -> Result<()> {
        let mut topology = self.topology.write();
        let (id, record) = topology.of_state(State::Live, "branch", name)?;
        if name == MAIN {
            let why = "every volume has this branch";
            return Err(FsError::new(ErrorKind::NotPermitted).on("delete", format!("branch {name}")).because(why));
        }
        if self.is_held(&Source::Branch(name.to_owned())) {
            return Err(FsError::new(ErrorKind::Busy).on("delete", format!("branch {name}")));
        }
        self.drop_staging_below(&mut topology, id)?;
        let record = Snapshot { state: State::Dropping, ..record };
        self.write_snapshots(&[(id, Some(&record))])?;
        topology.replace(id, record);
        Ok(())
    }

    /// Sets a branch back to a snapshot, whole and at once. What was written since is dropped by [`Tree::collect`]. Tells
    /// which inodes have no name there, if somebody has the branch mounted and so may use them.
    ///
    /// Who has the branch mounted has to forget what it cached.
    pub fn restore(&self, branch: &str, snapshot: &str, mtimes: Mtimes) -> Result<Vec<Gone>> {
        {
            let _alone = self.collecting.lock();
            let mut topology = self.topology.write();
            let (parent, _) = topology.of_state(State::Frozen, "snapshot", snapshot)?;
            let (live, record) = topology.of_state(State::Live, "branch", branch)?;
            self.drop_staging_below(&mut topology, live)?;
            let next = topology.next_id()?;
            let staging = Snapshot { state: State::Staging, parent, ..record.clone() };
            self.write_snapshots(&[(next, Some(&staging))])?;
            topology.insert(next, staging.clone());
            let [was, then, new] = self.views_alone(&topology, [live, parent, next]);
            let stamped = Stamps::between(was, &then, mtimes).and_then(|stamps| stamps.write(&new));
            drop((then, new));
            let switched = stamped.and_then(|()| {
                let old = Snapshot { state: State::Dropping, ..record };
                let new = Snapshot { state: State::Live, ..staging };
                self.write_snapshots(&[(live, Some(&old)), (next, Some(&new))])?;
                topology.replace(live, old);
                topology.replace(next, new);
                Ok(())
            });
            if switched.is_err()
                && let Err(e) = self.drop_staging_in(&mut topology, next)
            {
                tracing::warn!("what the restore made is dropped later: {e}");
            }
            switched?;
        }
        let branch = Source::Branch(branch.to_owned());
        match self.reap_all_unused(&branch) {
            Ok(true) => Ok(Vec::new()),
            Ok(false) => {
                let removed = self.orphans(&branch)?.into_iter().filter(|(_, orphan)| orphan.removed);
                Ok(removed.map(|(ino, _)| Gone(ino)).collect())
            }
            Err(e) => {
                tracing::warn!(
                    "the branch is restored, and what its removed files take comes back when it is next opened: {e}"
                );
                Ok(Vec::new())
            }
        }
    }

    /// The snapshot of that name.
    pub fn find_snapshot(&self, name: &str) -> Result<Id> {
        self.topology.read().of_state(State::Frozen, "snapshot", name).map(|(id, _)| id)
    }

    /// All snapshots and branches, the oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let topology = self.topology.read();
        // The snapshot that each id is or is nearest to. Those above come first.
        let mut nearest: HashMap<Id, &str> = HashMap::new();
        let mut shown = Vec::new();
        for (id, Node { record, .. }) in topology.nodes() {
            let origin = nearest.get(&record.parent).copied();
            let is_snapshot = record.state == State::Frozen;
            nearest.extend(if is_snapshot { Some(record.name.as_str()) } else { origin }.map(|name| (id, name)));
            if is_snapshot || record.state == State::Live {
                let (name, created) = (record.name.clone(), record.created);
                shown.push(SnapshotInfo { id, name, created, is_branch: !is_snapshot, origin: origin.map(Into::into) });
            }
        }
        shown
    }

    /// Numbers and names of snapshots behind the number `id`, the oldest first, at most `most`.
    pub(crate) fn snapshots_after(&self, id: Id, most: usize) -> Vec<(Id, String)> {
        let topology = self.topology.read();
        let frozen = topology.nodes_after(id).filter(|(_, node)| node.record.state == State::Frozen);
        frozen.take(most).map(|(id, node)| (id, node.record.name.clone())).collect()
    }
}
