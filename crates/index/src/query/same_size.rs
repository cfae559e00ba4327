//! Files that have the size of another one: [`same_size`].
//!
//! Only these can be equal, so only these need reading where nothing is known of content. Sizes are looked at in parts, of which each takes
//! little memory however many files there are.

use adit_core::error::Result;
use hashbrown::HashMap;

use super::dupes::Columns;
use crate::layout::Section;
use crate::segment::{NodeId, Segment};

/// Sizes that are told apart at once: what a map of them takes is some 30 MiB.
const SIZES_AT_ONCE: u32 = 1 << 20;

/// The regular files of `min_size` bytes at least that have the size of another such file, as a set of nodes: a bit for each.
#[derive(Debug)]
pub struct SameSize {
    bits: Vec<u64>,
}

impl SameSize {
    /// Whether a node is one of them.
    pub fn contains(&self, node: NodeId) -> bool {
        self.bits.get(node.0 as usize / 64).is_some_and(|word| word >> (node.0 % 64) & 1 != 0)
    }
}

/// The files of `segment` that have the size of another one; those smaller than `min_size` bytes are left out.
///
/// # Errors
/// `Corrupt` where something is wrong.
pub fn same_size(segment: &Segment, min_size: u64) -> Result<SameSize> {
    in_parts(segment, min_size, SIZES_AT_ONCE)
}

fn in_parts(segment: &Segment, min_size: u64, at_once: u32) -> Result<SameSize> {
    segment.check_sections(&[Section::Modes, Section::Sizes])?;
    let columns = Columns::new(segment)?;
    let files = || (0..segment.len()).filter(|node| columns.is_file(*node, min_size));
    let parts = (files().count() as u64).div_ceil(u64::from(at_once)).max(1);
    let mut found = SameSize { bits: vec![0; segment.len().div_ceil(64) as usize] };
    // Of each size the first file that has it, until a second one has.
    let mut firsts: HashMap<u64, Option<u32>> = HashMap::new();
    for part in 0..parts {
        firsts.clear();
        for node in files() {
            let size = columns.size(node);
            if part_of(size, parts) != part {
                continue;
            }
            let Some(first) = firsts.get_mut(&size) else {
                firsts.insert(size, Some(node));
                continue;
            };
            for node in first.take().into_iter().chain([node]) {
                found.bits[node as usize / 64] |= 1 << (node % 64);
            }
        }
    }
    segment.expect_whole()?;
    Ok(found)
}

/// Sizes are mixed: most files are small.
fn part_of(size: u64, parts: u64) -> u64 {
    let mixed = (size ^ size >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * u128::from(parts)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use adit_core::types::Kind;
    use adit_testkit::{Rng, seeds};

    use super::*;
    use crate::{Builder, Entry};

    #[test]
    fn files_of_one_size_are_found_in_any_number_of_parts() {
        for seed in seeds(20) {
            println!("seed {seed}");
            let mut rng = Rng::new(seed);
            let dir = tempfile::tempdir().unwrap();
            let mut builder = Builder::new(dir.path(), 4 << 20);
            for n in 0..rng.below(300) {
                let kind = *rng.pick(&[Kind::File, Kind::File, Kind::File, Kind::Directory, Kind::Fifo]);
                let (small, large) = (rng.below(300), u64::MAX - rng.below(3));
                let size = *rng.pick(&[0, 1, 7, small, large]);
                let path = format!("d{}/{n}", rng.below(4));
                let size = if kind == Kind::Directory { 0 } else { size };
                let hash = rng.below(2).eq(&0).then_some([1; 16]).filter(|_| kind == Kind::File);
                let entry = Entry {
                    path: path.as_bytes(),
                    kind,
                    perm: 0o644,
                    size,
                    mtime_ns: 0,
                    hash,
                    stamp: None,
                    extra: b"",
                };
                builder.add(&entry).unwrap();
            }
            let out = dir.path().join("index");
            builder.finish(&out, &mut |_| ControlFlow::Continue(())).unwrap();
            let segment = Segment::open(&out).unwrap();
            for min_size in [0, 1, 50] {
                let mut by_size: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
                for node in 0..segment.len() {
                    let facts = segment.node(NodeId(node)).unwrap();
                    if facts.kind == Kind::File && facts.size >= min_size {
                        by_size.entry(facts.size).or_default().push(node);
                    }
                }
                let mut expected: Vec<u32> = by_size.into_values().filter(|of| of.len() > 1).flatten().collect();
                expected.sort_unstable();
                for at_once in [1, 10, SIZES_AT_ONCE] {
                    let found = in_parts(&segment, min_size, at_once).unwrap();
                    let told: Vec<u32> = (0..segment.len() + 70).filter(|node| found.contains(NodeId(*node))).collect();
                    assert_eq!(told, expected, "of {min_size} bytes and more, {at_once} at once");
                }
            }
        }
    }
}
