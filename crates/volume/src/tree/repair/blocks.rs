//! Blocks that a repair takes back, gives back, and dates back.

use adit_core::Result;

use super::{Done, done};
use crate::format::keys::Key;
use crate::format::records::{Block, Window};
use crate::table::{Allocation, BLOCK_LEN_BYTES, Batch, Run};
use crate::tree::Tree;
use crate::tree::change::Change;
use crate::tree::verify::births::too_young;
use crate::tree::verify::blocks::each_window;

impl Tree {
    /// Reserves all blocks that are free, and that something refers to: before anything is changed, for to change it takes space,
    /// and that may be theirs. [`Tree::mend`] makes them the tree's again; [`Tree::release_referred`] comes after it.
    ///
    /// # Errors
    /// `ReadOnly`, and failures of the medium.
    pub fn reserve_referred(&self, allocation: &dyn Allocation) -> Result<()> {
        // What was freed and is not durable yet does not count as free.
        self.table.sync()?;
        let mut reserved = Ok(());
        each_window(self, &mut |_, blocks| {
            for block in blocks {
                if reserved.is_ok() {
                    reserved = allocation.reserve_at(*block).map(drop);
                }
            }
        })?;
        reserved
    }

    /// Releases what [`Tree::reserve_referred`] reserved and nobody took.
    ///
    /// # Errors
    /// Failures of the medium. What is still reserved then is so until the volume is closed.
    pub fn release_referred(&self, allocation: &dyn Allocation) -> Result<()> {
        // What was freed and is not durable yet is not to be released.
        self.table.sync()?;
        each_window(self, &mut |_, blocks| {
            for &start in blocks.iter().filter(|block| allocation.is_reserved(**block)) {
                self.extents.release(&[Run { start, count: 1 }]);
            }
        })
    }

    /// Makes reserved blocks that something refers to the tree's again: as they are, for what they hold is compared with its
    /// checksums when it is read.
    pub(super) fn take_back(&self, allocation: &dyn Allocation, run: Run) -> Result<Done> {
        /// Blocks that one batch takes: in the log they take a third of the smallest segment, if each lies by itself.
        const BLOCKS_AT_ONCE: usize = 2048;
        let (mut taken, mut count) = (Vec::new(), 0);
        let mut block_bytes = vec![0; BLOCK_LEN_BYTES];
        for block in run.blocks().filter(|block| allocation.is_reserved(*block)) {
            let run = Run { start: block, count: 1 };
            match self.extents.read(block, &mut block_bytes) {
                Ok(()) => taken.push((run, vec![crc32c::crc32c(&block_bytes)])),
                // It is not there at all.
                Err(_) => self.extents.release(&[run]),
            }
            if taken.len() == BLOCKS_AT_ONCE {
                count += self.take(std::mem::take(&mut taken))?;
            }
        }
        count += self.take(taken)?;
        if count == 0 { Ok(None) } else { done(format!("{count} of them are its own again")) }
    }

    /// Makes reserved blocks the tree's. How many they were.
    fn take(&self, allocated: Vec<(Run, Vec<u32>)>) -> Result<usize> {
        let count = allocated.len();
        if count > 0 {
            self.table.apply(Batch { allocated, uses_reserve: true, ..Batch::default() })?;
        }
        Ok(count)
    }

    /// Gives back blocks that belong to nobody. How many, also if an error ends it: `ReadOnly`, or a failure of the medium.
    pub fn free_lost(&self, lost: &[Run]) -> (u64, Result<()>) {
        /// Runs that one batch frees: in the log they take a quarter of the smallest segment.
        const RUNS_AT_ONCE: usize = 2048;
        let mut freed = 0;
        for some in lost.chunks(RUNS_AT_ONCE) {
            if let Err(e) = self.table.apply(Batch { freed: some.to_vec(), uses_reserve: true, ..Batch::default() }) {
                return (freed, Err(e));
            }
            freed += some.iter().map(|run| u64::from(run.count)).sum::<u64>();
        }
        (freed, Ok(()))
    }
}

impl Change<'_, '_> {
    /// Has the branch's version of a window say that blocks are as old as they are at least. If a snapshot shows that version
    /// as well, the branch gets one of its own.
    pub(super) fn mend_births(&mut self, ino: u64, index: u64) -> Result<Done> {
        let key = Key::window(ino, index);
        let Some(owner) = self.find(&key)?.owner else { return Ok(None) };
        let versions = self.draft.versions(&key)?;
        let early = too_young(&self.view.topology, &versions, owner);
        let value = versions.into_iter().find(|(id, _)| *id == owner).map(|(_, value)| value);
        let Some(mut window) = value.and_then(|value| Window::decode(&value).ok()).filter(|_| !early.is_empty()) else {
            return Ok(None);
        };
        for (at, birth) in &early {
            if let Some(block) = window.get(*at) {
                window.set(*at, Some(Block { birth: *birth, ..block }));
            }
        }
        self.put(&key, Some(owner), window.encode());
        done("they are as old as what has them")
    }
}
