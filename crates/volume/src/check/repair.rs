//! Rounds of checking and mending, until nothing is left that can be mended.

use adit_core::{ErrorKind, Result};

use super::{Named, Problem, Report, lost_blocks, push};
use crate::table::Allocation;
use crate::tree::Tree;
use crate::tree::verify::{Checked, Fault, Finding};

/// Checks of a repair: each mends some thousands of faults, and those that the ones before hid.
const ROUNDS_MAX: usize = 1000;

/// Mends until nothing more can be mended. What the last check found.
///
/// # Errors
/// What keeps it from going on. What `report` says is repaired is so, and durable unless it says otherwise.
pub(super) fn repair(
    tree: &Tree,
    allocation: &dyn Allocation,
    memory_bytes: usize,
    report: &mut Report,
) -> Result<Checked> {
    let durable = report.repaired.len();
    let mut repair = Repair { tree, allocation, memory_bytes, report, durable, has_reserved: false, refused: None };
    let checked = repair.run();
    // Nobody uses the volume before it is closed, so it does no harm if that fails.
    if repair.has_reserved
        && let Err(e) = tree.release_referred(allocation)
    {
        tracing::warn!("blocks that could not be taken back stay reserved: {e}");
    }
    if checked.is_err() && tree.table.sync().is_err() {
        let durable = repair.durable;
        for problem in repair.report.repaired.iter_mut().skip(durable) {
            problem.detail.push_str("; whether a power cut would undo that is not known");
        }
    }
    checked
}

struct Repair<'r> {
    tree: &'r Tree,
    allocation: &'r dyn Allocation,
    memory_bytes: usize,
    report: &'r mut Report,
    /// How many of what is repaired are known to be durable.
    durable: usize,
    /// Whether blocks were reserved that the tree refers to.
    has_reserved: bool,
    /// The last that there was no space for, of one round.
    refused: Option<Problem>,
}

impl Repair<'_> {
    fn run(&mut self) -> Result<Checked> {
        let tree = self.tree;
        let mut is_cleared = false;
        for _ in 0..ROUNDS_MAX {
            let checked = tree.check(self.allocation, self.memory_bytes)?;
            if self.mend_all(&checked)? {
                self.sync()?;
                continue;
            }
            if let Some(problem) = self.refused.take() {
                push(&mut self.report.problems, problem);
                return Ok(checked);
            }
            if !checked.is_whole() {
                return Ok(checked);
            }
            // Only now: what was noted by mistake as to be dropped is not any more.
            if !is_cleared && (checked.has_orphans || !tree.is_collected()) {
                is_cleared = true;
                tree.reap_unused()?;
                match tree.collect() {
                    Err(e) if e.kind() == ErrorKind::Corrupt => {
                        tracing::warn!("what was deleted still takes space: {e}");
                    }
                    collected => collected?,
                }
                continue;
            }
            if checked.lost.is_empty() {
                return Ok(checked);
            }
            let (freed, result) = tree.free_lost(&checked.lost);
            if freed > 0 {
                push(&mut self.report.repaired, Problem { is_repairable: true, ..lost_blocks(freed) });
            }
            result?;
            self.sync()?;
        }
        tree.check(self.allocation, self.memory_bytes)
    }

    /// Makes what was repaired durable.
    fn sync(&mut self) -> Result<()> {
        self.tree.table.sync()?;
        self.durable = self.report.repaired.len();
        Ok(())
    }

    /// Mends what one check found; whether anything was.
    fn mend_all(&mut self, checked: &Checked) -> Result<bool> {
        self.refused = None;
        let parts = Named::of(self.tree);
        // Before anything is changed, and also if there are too many faults for this check to tell of free blocks.
        if !checked.is_whole() && !self.has_reserved {
            self.has_reserved = true;
            self.tree.reserve_referred(self.allocation)?;
        }
        // Blocks first: then a repair that breaks off has lost none of them.
        let is_first = |finding: &&Finding| matches!(finding.fault, Fault::FreeBlocks { .. });
        let findings = &checked.findings;
        let (first, others) = (findings.iter().filter(is_first), findings.iter().filter(|f| !is_first(f)));
        let (mut mended, mut last_unseen) = (false, None);
        for finding in first.chain(others).filter(|finding| finding.is_mendable()) {
            if let Fault::Unseen { key, .. } = &finding.fault {
                // What goes with this may be another file's, or be needed by what cannot be read. And one version of a key at a
                // time: without it, another one may be seen.
                if !checked.is_whole() || last_unseen == Some(key) {
                    continue;
                }
                last_unseen = Some(key);
            }
            let problem = parts.problem(finding);
            match self.tree.mend(self.allocation, finding) {
                Ok(Some(done)) => {
                    mended = true;
                    let detail = format!("{}: {done}", problem.detail);
                    push(&mut self.report.repaired, Problem { detail, ..problem });
                }
                Ok(None) => {}
                // The others may need less, and what was done is told.
                Err(e) if e.kind().is_refusal() => {
                    let detail = format!("{}: not mended: {e}", problem.detail);
                    self.refused = Some(Problem { detail, is_repairable: false, ..problem });
                }
                Err(e) => return Err(e),
            }
        }
        Ok(mended)
    }
}
