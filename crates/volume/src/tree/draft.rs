//! A batch that is being made: writes over the table, readable before they are applied.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use adit_core::Result;

use super::Tree;
use super::view::{corrupt_inode, corrupt_key};
use crate::format::keys::{self, Id, Key, Parts};
use crate::format::records::{self, Block, Window};
use crate::table::{Batch, Run};

/// A batch of several steps ends once it has so many bytes in the log. One step adds a value at most: with it, a batch is shorter than
/// every volume takes, [`BATCH_LEN_LEAST_BYTES`](crate::table::BATCH_LEN_LEAST_BYTES), and one of small values shorter than the smallest
/// segment of a log, 128 KiB.
pub(super) const FULL_LEN_BYTES: usize = 64 << 10;

/// See the module's notes.
pub(crate) struct Draft<'t> {
    pub tree: &'t Tree,
    writes: BTreeMap<Vec<u8>, Write>,
    pub allocated: Vec<(Run, Vec<u32>)>,
    freed: BTreeSet<u64>,
    /// Bytes of `writes`, and runs in `freed`.
    writes_len: usize,
    freed_runs: usize,
    /// See [`Batch::uses_reserve`].
    pub uses_reserve: bool,
    /// See [`Batch::takes_away`]. Nothing of it is taken back.
    pub takes_away: bool,
    /// How it was when the part began that may be taken back.
    undo: Option<Undo>,
}

/// What a batch makes of a key: a value, or its removal.
type Write = Option<Vec<u8>>;

/// What of a [`Draft`] changed since a moment.
struct Undo {
    /// What keys had before, one entry for each change.
    writes: Vec<(Vec<u8>, Option<Write>)>,
    freed: Vec<u64>,
    allocated: usize,
    writes_len: usize,
    freed_runs: usize,
    uses_reserve: bool,
}

impl<'t> Draft<'t> {
    pub fn new(tree: &'t Tree) -> Self {
        Draft {
            tree,
            writes: BTreeMap::new(),
            allocated: Vec::new(),
            freed: BTreeSet::new(),
            writes_len: 0,
            freed_runs: 0,
            uses_reserve: false,
            takes_away: false,
            undo: None,
        }
    }

    /// Begins a part that may be taken back as a whole.
    pub fn begin(&mut self) {
        self.undo = Some(Undo {
            writes: Vec::new(),
            freed: Vec::new(),
            allocated: self.allocated.len(),
            writes_len: self.writes_len,
            freed_runs: self.freed_runs,
            uses_reserve: self.uses_reserve,
        });
    }

    /// Ends the part, which stays or is taken back.
    pub fn end(&mut self, stays: bool) {
        let Some(undo) = self.undo.take().filter(|_| !stays) else { return };
        for (key, before) in undo.writes.into_iter().rev() {
            match before {
                Some(value) => self.writes.insert(key, value),
                None => self.writes.remove(&key),
            };
        }
        for block in undo.freed {
            self.freed.remove(&block);
        }
        self.allocated.truncate(undo.allocated);
        (self.writes_len, self.freed_runs) = (undo.writes_len, undo.freed_runs);
        self.uses_reserve = undo.uses_reserve;
    }

    /// About how long it is in the log, in bytes.
    pub fn len_bytes(&self) -> usize {
        let allocated: usize = self.allocated.iter().map(|(_, sums)| 16 + 4 * sums.len()).sum();
        self.writes_len + allocated + 12 * self.freed_runs
    }

    /// Whether what is left to do belongs into another batch.
    pub fn is_full(&self) -> bool {
        self.len_bytes() >= FULL_LEN_BYTES
    }

    fn free_block(&mut self, block: u64) {
        if self.freed.insert(block) {
            if let Some(undo) = &mut self.undo {
                undo.freed.push(block);
            }
            let joined = [block.checked_sub(1), block.checked_add(1)].into_iter().flatten();
            self.freed_runs = self.freed_runs + 1 - joined.filter(|next| self.freed.contains(next)).count();
        }
    }

    /// Sets or removes a key of the table.
    pub fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let len = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let (key_len, new_len) = (6 + key.len(), len(&value));
        let name = self.undo.is_some().then(|| key.clone());
        let old = self.writes.insert(key, value);
        match &old {
            Some(old) => self.writes_len = self.writes_len + new_len - len(old),
            None => self.writes_len += key_len + new_len,
        }
        if let (Some(undo), Some(name)) = (&mut self.undo, name) {
            undo.writes.push((name, old));
        }
    }

    /// The keys from `start` to `end` that were written or removed so far.
    pub fn written(&self, start: &[u8], end: &[u8]) -> impl Iterator<Item = &[u8]> {
        let bounds = (std::ops::Bound::Included(start), std::ops::Bound::Excluded(end));
        self.writes.range::<[u8], _>(bounds).map(|(key, _)| key.as_slice())
    }

    /// Whether nothing of the range was written yet.
    pub fn is_untouched(&self, start: &[u8], end: &[u8]) -> bool {
        self.written(start, end).next().is_none()
    }

    /// What the table will hold from `start` to `end`. For short ranges.
    pub fn range(&self, start: &[u8], end: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut all = BTreeMap::new();
        self.tree.table.scan(start, end, &mut |key, value| {
            all.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })?;
        let bounds = (std::ops::Bound::Included(start), std::ops::Bound::Excluded(end));
        for (key, value) in self.writes.range::<[u8], _>(bounds) {
            match value {
                Some(value) => all.insert(key.clone(), value.clone()),
                None => all.remove(key),
            };
        }
        Ok(all)
    }

    /// All versions of a key, the greatest id first, whoever sees them.
    pub fn versions(&self, key: &Key) -> Result<Vec<(Id, Vec<u8>)>> {
        let all = self.range(&key.at(Id::MAX), &key.end())?;
        let id = |bytes: &[u8]| keys::split(bytes).map(|(_, id)| id).ok_or_else(|| corrupt_key(bytes, "it is no key"));
        all.into_iter().map(|(bytes, value)| Ok((id(&bytes)?, value))).collect()
    }

    /// Frees those of `blocks` that no version of the window `key` refers to any more, and that are born under another id
    /// than `exclusive`; those born under it are freed in any case: only their own key's version at it had them.
    pub fn free(&mut self, key: &Key, blocks: &[Block], exclusive: Option<Id>) -> Result<()> {
        let own = |block: &Block| exclusive == Some(block.birth);
        blocks.iter().filter(|b| own(b)).for_each(|b| self.free_block(b.at));
        if blocks.iter().all(own) {
            return Ok(());
        }
        let mut kept = BTreeSet::new();
        for (_, value) in self.versions(key)? {
            if records::is_tombstone(&value) {
                continue;
            }
            match Window::decode(&value) {
                Ok(window) => kept.extend(window.iter().map(|(_, block)| block.at)),
                Err(why) => {
                    // Nobody knows which of them it has.
                    tracing::warn!("blocks of {key:?} stay in use, for one of its versions is {why}");
                    return Ok(());
                }
            }
        }
        blocks.iter().filter(|b| !own(b) && !kept.contains(&b.at)).for_each(|b| self.free_block(b.at));
        Ok(())
    }

    /// Drops versions of a key, what says that it was touched under their ids, and the blocks that nothing else has.
    pub fn drop_versions(&mut self, key: &Key, versions: &[(Id, Vec<u8>)]) -> Result<()> {
        let mut blocks = Vec::new();
        for (id, value) in versions {
            if matches!(key.parts(), Some(Parts::Window(..))) && !records::is_tombstone(value) {
                blocks.extend(blocks_of(key, value));
            }
            self.set(key.at(*id), None);
            if *id != super::topology::FIRST_ID {
                self.set(keys::touched(*id, key.as_bytes()), None);
            }
        }
        if blocks.is_empty() { Ok(()) } else { self.free(key, &blocks, None) }
    }

    /// Takes out the blocks that are allocated and freed by this batch: they never become the tree's. They are the caller's
    /// to release once it is applied.
    pub fn take_passing(&mut self) -> Vec<Run> {
        let mut passing = Vec::new();
        if self.freed.is_empty() {
            return passing;
        }
        let mut allocated: Vec<(Run, Vec<u32>)> = Vec::new();
        for (run, sums) in std::mem::take(&mut self.allocated) {
            // Whether the last of `allocated` is a part of this run.
            let mut open = false;
            for (block, sum) in run.blocks().zip(sums) {
                if self.freed.remove(&block) {
                    passing.push(Run { start: block, count: 1 });
                    open = false;
                    continue;
                }
                match allocated.last_mut().filter(|_| open) {
                    Some((last, sums)) => {
                        last.count += 1;
                        sums.push(sum);
                    }
                    None => allocated.push((Run { start: block, count: 1 }, vec![sum])),
                }
                open = true;
            }
        }
        self.allocated = allocated;
        passing
    }

    /// Applies it.
    pub fn apply(self) -> Result<()> {
        if self.writes.is_empty() && self.allocated.is_empty() && self.freed.is_empty() {
            return Ok(());
        }
        let mut freed: Vec<Run> = Vec::new();
        for block in self.freed {
            match freed.last_mut() {
                Some(run) if run.end() == block && run.count < u32::MAX => run.count += 1,
                _ => freed.push(Run { start: block, count: 1 }),
            }
        }
        let batch = Batch {
            writes: self.writes.into_iter().collect(),
            allocated: self.allocated,
            freed,
            uses_reserve: self.uses_reserve,
            takes_away: self.takes_away,
        };
        self.tree.table.apply(batch).map(drop)
    }
}

/// The blocks of a window that goes. Those of a damaged one stay in use: nobody knows which they are.
pub(crate) fn blocks_of(key: &Key, value: &[u8]) -> Vec<Block> {
    match Window::decode(value) {
        Ok(window) => window.iter().map(|(_, block)| block).collect(),
        Err(why) => {
            tracing::warn!("blocks of {key:?} stay in use, for what is dropped is {why}");
            Vec::new()
        }
    }
}

/// The window in the value of a window's key.
pub(crate) fn decode_window(key: &Key, value: &[u8]) -> Result<Window> {
    let ino = match key.parts() {
        Some(Parts::Window(ino, _)) => ino,
        _ => 0,
    };
    Window::decode(value).map_err(|why| corrupt_inode(ino, why))
}
