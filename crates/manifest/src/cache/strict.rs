//! Reads that return no byte before the whole object was compared with its hash.

use std::sync::Arc;

use adit_core::error::Result;

use super::Fetch;
use super::fill::Step;
use super::generation::{Generation, Trust};
use super::object::{CachedObject, Stop};
use super::want::Want;

/// How often a read begins anew because of damage, wrong content or eviction, before it trusts the folder no more.
const ROUNDS_MAX: u32 = 6;

impl CachedObject {
    pub(super) fn read_strict(&self, want: &mut Want<'_>, fetch: &dyn Fetch) -> Result<()> {
        let rounds = if self.inner.space.fits(self.id().len) { ROUNDS_MAX } else { 0 };
        for _ in 0..rounds {
            self.check_failed()?;
            let Some(generation) = self.generation(true) else { break };
            if generation.trust() == Trust::None {
                if !self.complete(&generation, fetch)? {
                    break;
                }
                // What is wrong with it is told by the next round.
                self.verify(&generation);
                continue;
            }
            match self.copy_present(&generation, want.start(), want).1 {
                Stop::End => return Ok(()),
                Stop::Absent(block) | Stop::Bad(block) => self.damaged(&generation, block),
                Stop::Failed(e) => {
                    self.inner.note("read", &self.id(), &e);
                    break;
                }
            }
        }
        self.check_failed()?;
        self.verified_through(want, fetch)
    }

    /// Gets all blocks that are absent. False if they cannot be kept.
    fn complete(&self, generation: &Arc<Generation>, fetch: &dyn Fetch) -> Result<bool> {
        let blocks = generation.blocks();
        let mut block = 0;
        while block < blocks {
            if generation.is_known(block) {
                block += 1;
                continue;
            }
            match self.fill(generation, block..blocks, None, true, fetch)? {
                Step::To(to) if to < self.id().len => block = generation.block_of(to),
                Step::To(_) => block = blocks,
                Step::Again if generation.is_gone() => return Ok(true),
                // Somebody else was faster, or gave up.
                Step::Again => {}
                Step::NoRoom | Step::Busy => return Ok(false),
            }
        }
        Ok(true)
    }
}
