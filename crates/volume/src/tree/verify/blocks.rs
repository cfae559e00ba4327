//! The blocks that windows refer to: each belongs to one window, and none of them is free; and which belong to nobody.

use std::collections::BTreeMap;
#[cfg(any(test, feature = "testing"))]
use std::collections::BTreeSet;

use adit_core::Result;

use super::stream::{Group, groups, is_tombstone};
use super::{Checked, Fault};
use crate::format::keys::{Key, Parts, space};
use crate::format::records::Window;
use crate::table::{Allocation, Run};
use crate::tree::Tree;

/// Blocks whose owners are looked for, and runs of lost ones, that are kept at most.
const WANTED_MAX: usize = 64 << 10;
const LOST_MAX: usize = 64 << 10;

/// Owners of one block that are told.
const OWNERS_MAX: usize = 8;

/// A bit for each of some consecutive blocks.
struct Bits {
    words: Vec<u64>,
    first: u64,
    end: u64,
}

impl Bits {
    fn new(first: u64, end: u64) -> Bits {
        Bits { words: vec![0; (end - first).div_ceil(64) as usize], first, end }
    }

    /// Sets the bit of a block; whether it was set.
    fn set(&mut self, block: u64) -> bool {
        let at = block - self.first;
        let Some(word) = self.words.get_mut((at / 64) as usize) else { return false };
        let bit = 1 << (at % 64);
        std::mem::replace(word, *word | bit) & bit != 0
    }

    /// The first block from `from` on whose bit is set as `set` says, or the end.
    fn next(&self, from: u64, set: bool) -> u64 {
        let mut at = from - self.first;
        while at < self.end - self.first {
            let Some(word) = self.words.get((at / 64) as usize) else { break };
            let rest = (if set { *word } else { !*word }) >> (at % 64);
            if rest != 0 {
                return (self.first + at + u64::from(rest.trailing_zeros())).min(self.end);
            }
            at = (at / 64 + 1) * 64;
        }
        self.end
    }

    /// The stretches within `from..to` whose bits are set as `set` says.
    fn stretches(&self, from: u64, to: u64, set: bool) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let start = self.next(at, set);
            if start >= to {
                return None;
            }
            at = self.next(start, !set).min(to);
            Some((start, at))
        })
    }
}

/// The blocks that the versions of a window refer to, ascending. A damaged version's are not known.
fn blocks_of(group: &Group) -> Vec<u64> {
    let windows = group.versions.iter().filter(|(_, value)| !is_tombstone(value));
    let windows = windows.filter_map(|(_, value)| Window::decode(value).ok());
    let mut blocks: Vec<u64> = Vec::new();
    for window in windows {
        blocks.extend(window.iter().map(|(_, block)| block.at));
        // Most versions share most of their blocks.
        blocks.sort_unstable();
        blocks.dedup();
    }
    blocks
}

/// Hands out all windows, each with the blocks that its versions refer to.
pub(in crate::tree) fn each_window(tree: &Tree, each: &mut dyn FnMut(&Key, &[u64])) -> Result<()> {
    groups(&*tree.table, space::WINDOW, &mut |_| (), &mut |group| {
        each(&group.key, &blocks_of(group));
        Ok(())
    })
}

/// What is known of blocks that something is wrong with.
#[derive(Default)]
struct Wanted {
    /// Free ones, and shared ones, with the windows that refer to them.
    free: BTreeMap<u64, Vec<Key>>,
    shared: BTreeMap<u64, Vec<Key>>,
}

impl Wanted {
    fn want(blocks: &mut BTreeMap<u64, Vec<Key>>, block: u64, omitted: &mut u64) {
        if blocks.len() < WANTED_MAX {
            blocks.insert(block, Vec::new());
        } else {
            *omitted += 1;
        }
    }
}

/// Compares what windows refer to with each other, and with what is not free.
pub(super) fn check(
    tree: &Tree,
    allocation: &dyn Allocation,
    memory_bytes: usize,
    checked: &mut Checked,
) -> Result<()> {
    let at_once = (memory_bytes as u64).max(8) * 8;
    let end = allocation.end();
    let mut wanted = Wanted::default();
    let mut first = 0;
    loop {
        let mut bits = Bits::new(first, first.saturating_add(at_once).min(end));
        each_window(tree, &mut |_, blocks| {
            for &block in blocks {
                let is_beyond = block >= end && first == 0;
                if is_beyond || (bits.first..bits.end).contains(&block) {
                    checked.blocks += 1;
                }
                if is_beyond {
                    Wanted::want(&mut wanted.free, block, &mut checked.omitted);
                } else if (bits.first..bits.end).contains(&block) && bits.set(block) {
                    checked.blocks -= 1;
                    Wanted::want(&mut wanted.shared, block, &mut checked.omitted);
                }
            }
        })?;
        checked.passes.windows += 1;
        compare(&bits, allocation, &mut wanted, checked);
        first = bits.end;
        if first >= end {
            break;
        }
    }
    tell(tree, wanted, checked)
}

/// Compares one stretch of blocks.
fn compare(bits: &Bits, allocation: &dyn Allocation, wanted: &mut Wanted, checked: &mut Checked) {
    let mut at = bits.first;
    loop {
        let next = allocation.allocated_from(at).filter(|run| run.start < bits.end);
        let (start, end) = next.map_or((bits.end, bits.end), |run| (run.start.max(at), run.end().min(bits.end)));
        for (from, to) in bits.stretches(at, start, true) {
            (from..to).for_each(|block| Wanted::want(&mut wanted.free, block, &mut checked.omitted));
        }
        for (from, to) in bits.stretches(start, end, false) {
            note_lost(from, to, checked);
        }
        at = end;
        if next.is_none() || at >= bits.end {
            return;
        }
    }
}

fn note_lost(mut from: u64, to: u64, checked: &mut Checked) {
    checked.lost_blocks += to - from;
    if let Some(last) = checked.lost.last_mut()
        && last.end() == from
    {
        let more = (to - from).min(u64::from(u32::MAX - last.count));
        last.count += more as u32;
        from += more;
    }
    while from < to && checked.lost.len() < LOST_MAX {
        let count = (to - from).min(u64::from(u32::MAX)) as u32;
        checked.lost.push(Run { start: from, count });
        from += u64::from(count);
    }
}

/// Finds whose they are.
fn tell(tree: &Tree, mut wanted: Wanted, checked: &mut Checked) -> Result<()> {
    if wanted.free.is_empty() && wanted.shared.is_empty() {
        return Ok(());
    }
    each_window(tree, &mut |key, blocks| {
        for block in blocks {
            for owners in [wanted.free.get_mut(block), wanted.shared.get_mut(block)].into_iter().flatten() {
                if owners.len() < OWNERS_MAX {
                    owners.push(key.clone());
                }
            }
        }
    })?;
    for (block, keys) in wanted.shared {
        checked.add(None, Fault::SharedBlock { block, keys });
    }
    let mut runs: Vec<(Run, u64, u64)> = Vec::new();
    for (block, keys) in wanted.free {
        let Some(Parts::Window(ino, window)) = keys.first().and_then(Key::parts) else { continue };
        match runs.last_mut() {
            Some((run, i, w)) if run.end() == block && (*i, *w) == (ino, window) => run.count += 1,
            _ => runs.push((Run { start: block, count: 1 }, ino, window)),
        }
    }
    for (run, ino, window) in runs {
        checked.add(None, Fault::FreeBlocks { run, ino, window });
    }
    Ok(())
}

/// All blocks that windows refer to.
#[cfg(any(test, feature = "testing"))]
pub(super) fn all(tree: &Tree) -> Result<BTreeSet<u64>> {
    let mut all = BTreeSet::new();
    each_window(tree, &mut |_, blocks| all.extend(blocks))?;
    Ok(all)
}

/// As if just these belonged to the tree.
#[cfg(any(test, feature = "testing"))]
pub(super) struct Referred(pub BTreeSet<u64>);

#[cfg(any(test, feature = "testing"))]
impl Allocation for Referred {
    fn end(&self) -> u64 {
        self.0.last().map_or(0, |last| last.saturating_add(1))
    }

    fn allocated_from(&self, block: u64) -> Option<Run> {
        self.0.range(block..).next().map(|&start| Run { start, count: 1 })
    }

    fn reserve_at(&self, _: u64) -> Result<bool> {
        Ok(false)
    }

    fn is_reserved(&self, _: u64) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(end: u64, referred: &[u64], allocated: &[u64]) -> (Vec<u64>, Vec<Run>, u64) {
        let mut bits = Bits::new(0, end);
        referred.iter().for_each(|block| assert!(!bits.set(*block)));
        let (mut wanted, mut checked) = (Wanted::default(), Checked::default());
        compare(&bits, &Referred(allocated.iter().copied().collect()), &mut wanted, &mut checked);
        (wanted.free.into_keys().collect(), checked.lost, checked.lost_blocks)
    }

    #[test]
    fn blocks_are_compared_both_ways() {
        let run = |start, count| Run { start, count };
        assert_eq!(
            compared(100, &[11, 20, 30, 31, 99], &[10, 11, 12, 13, 20]),
            (vec![30, 31, 99], vec![run(10, 1), run(12, 2)], 3)
        );
        assert_eq!(compared(14, &[0, 13], &[0, 13]), (vec![], vec![], 0));
        assert_eq!(compared(130, &[63, 64, 128], &[63, 64, 127, 129]), (vec![128], vec![run(127, 1), run(129, 1)], 2));
    }

    #[test]
    fn bits_agree_with_a_set() {
        let mut bits = Bits::new(1000, 1130);
        for block in [1000, 1063, 1064, 1129] {
            assert!(!bits.set(block));
            assert!(bits.set(block));
        }
        assert_eq!(bits.stretches(1000, 1130, true).collect::<Vec<_>>(), [(1000, 1001), (1063, 1065), (1129, 1130)]);
        assert_eq!(bits.stretches(1001, 1100, false).collect::<Vec<_>>(), [(1001, 1063), (1065, 1100)]);
    }
}
