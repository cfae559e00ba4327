//! What is equal: files of one segment with the same size and hash, and nodes of two segments with the same path.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::GpuError;
use super::job::Job;
use super::pending::{Landing, Pending};
use super::resident::Resident;
use super::shader::Kernel;
use crate::layout::Section;
use crate::segment::NodeId;

/// Most parts that files are divided into when a table of all of them is too long for a buffer: by 8 bits of a hash.
const PARTS_MAX: u64 = 256;
/// The bytes between the parameters of two runs: what every device allows.
const NUMBERS_STRIDE: usize = 256;
/// No node of the first segment has this path.
const NONE: u32 = u32::MAX;

/// For each node of a segment, the node of another one that has the same path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pairs(Vec<u32>);

impl Pairs {
    /// The node of the first segment with the path of this one of the second, if there is one.
    pub fn first(&self, second: NodeId) -> Option<NodeId> {
        self.0.get(second.0 as usize).filter(|first| **first != NONE).map(|first| NodeId(*first))
    }

    /// How many nodes the second segment has.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }
}

impl Resident {
    /// The files of at least `size_min` bytes that have a hash, and share size and hash with another one, in their order. Each was
    /// compared with an equal one, all of size and hash.
    pub fn twins(&self, size_min: u64) -> Pending<'static, Vec<NodeId>> {
        let (own, nodes) = (self.clone(), self.0.segment.len());
        match self.submit_twins(size_min) {
            Ok(landing) => Pending::after(landing, move |words| {
                // The segment stays until the device is done with it.
                drop(own);
                Pending::ready(words.and_then(|words| marked(&words, nodes)))
            }),
            Err(e) => Pending::ready(Err(e)),
        }
    }

    fn submit_twins(&self, size_min: u64) -> Result<Arc<Landing>, GpuError> {
        let held = &self.0;
        let nodes = held.segment.len();
        let has_hashes = held.segment.sections().any(|(section, _)| section == Section::Hashes);
        let content = self.content()?;
        let mut job = Job::new(&held.device)?;
        let marks_len = 4 * (1 + u64::from(nodes.div_ceil(32)));
        let marks = job.zeros("marks of files", marks_len)?;
        // Half of the slots stay empty, more where files have no hash.
        let limit = held.device.options().shard_len_max_bytes / 4;
        let wanted = (2 * u64::from(nodes)).next_power_of_two();
        let parts = wanted.div_ceil(limit);
        if parts > PARTS_MAX {
            return Err(GpuError::Unfit { what: "parts of a table", needs: parts, limit: PARTS_MAX });
        }
        let slots = wanted / parts;
        let table = job.room("a table of files", 4 * slots)?;
        // Whoever makes files cannot know where they come to lie in the table.
        let seed = RandomState::new().hash_one(nodes) as u32;
        let mut keep = Vec::new();
        for part in (0..parts as u32).take_while(|_| has_hashes) {
            job.zero(&table, 4 * slots);
            let (low, high) = (size_min as u32, (size_min >> 32) as u32);
            let numbers = [nodes, low, high, slots as u32 - 1, parts as u32 - 1, part, seed, 0];
            let numbers = job.numbers(&numbers)?;
            let kernel = Kernel::Twins(content.division);
            job.run(kernel, &[&content.group], &[&numbers, &table, &marks], nodes.into())?;
            keep.push(numbers);
        }
        keep.push(table);
        job.submit(marks, marks_len, keep)
    }

    /// For each node of `second`, the node of this segment that has the same path. Both lie on the same device.
    ///
    /// # Panics
    /// If they do not.
    pub fn pairs(&self, second: &Resident) -> Pending<'static, Pairs> {
        assert!(Arc::ptr_eq(&self.0.device.0, &second.0.device.0), "both segments are on one device");
        let both = (self.clone(), second.clone());
        match self.submit_pairs(second) {
            Ok(landing) => Pending::after(landing, move |words| {
                let count = both.1.0.segment.len() as usize;
                Pending::ready(words.map(|mut words| {
                    words.truncate(count);
                    Pairs(words)
                }))
            }),
            Err(e) => Pending::ready(Err(e)),
        }
    }

    fn submit_pairs(&self, second: &Resident) -> Result<Arc<Landing>, GpuError> {
        let (a, b) = (&self.0, &second.0);
        let mut job = Job::new(&a.device)?;
        let len = 4 * u64::from(b.segment.len());
        let pairs = job.room("pairs of nodes", len)?;
        let mut numbers = Vec::new();
        let mut runs = Vec::new();
        for level in &b.levels {
            runs.push((level.len() as u64, numbers.len() as u32));
            numbers.extend([level.start, level.end, 0, 0].iter().flat_map(|number| number.to_le_bytes()));
            numbers.resize(numbers.len().next_multiple_of(NUMBERS_STRIDE), 0);
        }
        let numbers = job.send("parameters", &[&numbers])?;
        let pipeline = a.device.pipeline(Kernel::Pairs(a.tree.division, b.tree.division));
        let own = job.bind(&pipeline, [numbers.binding_of(16), pairs.binding()].into_iter());
        job.run_bound(&pipeline, &[&a.tree.group, &b.tree.group], &own, &runs, true)?;
        job.submit(pairs, len, vec![numbers])
    }
}

/// The nodes whose bit is set.
fn marked(words: &[u32], nodes: u32) -> Result<Vec<NodeId>, GpuError> {
    let Some((full, bits)) = words.split_first() else { return Ok(Vec::new()) };
    if *full != 0 {
        // It has twice as many slots as there are files, unless the parts are not at all alike.
        return Err(GpuError::Unfit { what: "files in a part of a table", needs: nodes.into(), limit: nodes.into() });
    }
    let mut found = Vec::new();
    for (word, bits) in bits.iter().enumerate() {
        let mut left = *bits;
        while left != 0 {
            found.push(NodeId(word as u32 * 32 + left.trailing_zeros()));
            left &= left - 1;
        }
    }
    Ok(found)
}
