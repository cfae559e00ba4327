//! Patterns over all names, or all paths, of a segment on a device.
//!
//! Hits come as a list with a counter. If there were more than there was room for, the counter says how many, and the search
//! runs again with as much; if no buffer is so long, in halves. So what is told is exact, and in the order of the nodes.

use std::ops::Range;
use std::sync::Arc;

use super::GpuError;
use super::job::Job;
use super::pending::{Landing, Pending};
use super::resident::Resident;
use super::shader::Kernel;
use super::table::Table;
use crate::layout::GROUP_LEN;
use crate::segment::NodeId;

/// The bytes between the parameters of two runs: what every device allows.
const NUMBERS_STRIDE: usize = 256;

/// What a pattern is matched against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Against {
    /// Each node's name alone; that of the root is empty.
    Names,
    /// Each node's path below the root, without a slash in front; that of the root is empty.
    Paths,
}

/// A search: what for, in what, and which nodes are told.
#[derive(Clone)]
struct Search {
    resident: Resident,
    table: Arc<Table>,
    against: Against,
    told: Range<u32>,
}

impl Resident {
    /// The nodes whose name or path matches, in their order; of those in `told` only.
    pub fn search(&self, table: &Arc<Table>, against: Against, told: Range<u32>) -> Pending<'static, Vec<NodeId>> {
        let told = told.start..told.end.min(self.0.segment.len());
        let search = Search { resident: self.clone(), table: table.clone(), against, told };
        let room = self.0.device.options().hits;
        search.begin(room)
    }
}

impl Search {
    fn begin(self, room: u32) -> Pending<'static, Vec<NodeId>> {
        if self.told.is_empty() {
            return Pending::ready(Ok(Vec::new()));
        }
        let room = room.clamp(1, self.told.len() as u32);
        match self.submit(room) {
            Ok(landing) => Pending::after(landing, move |words| match words {
                Ok(words) => self.end(words, room),
                Err(e) => Pending::ready(Err(e)),
            }),
            Err(e) => Pending::ready(Err(e)),
        }
    }

    fn end(self, mut words: Vec<u32>, room: u32) -> Pending<'static, Vec<NodeId>> {
        let count = words[0];
        if count > room {
            return self.again(count);
        }
        words.truncate(count as usize + 1);
        let mut nodes: Vec<NodeId> = words[1..].iter().map(|node| NodeId(*node)).collect();
        nodes.sort_unstable();
        Pending::ready(Ok(nodes))
    }

    /// With room for as many hits as there are.
    fn again(self, count: u32) -> Pending<'static, Vec<NodeId>> {
        let limit = (self.resident.0.device.options().shard_len_max_bytes / 4 - 1) as u32;
        if count <= limit {
            return self.begin(count);
        }
        let middle = self.told.start + self.told.len() as u32 / 2;
        let low = Search { told: self.told.start..middle, ..self.clone() };
        let high = Search { told: middle..self.told.end, ..self };
        Pending::from_future(async move {
            let mut nodes = low.begin(limit).await?;
            nodes.extend(high.begin(limit).await?);
            Ok(nodes)
        })
    }

    fn submit(&self, room: u32) -> Result<Arc<Landing>, GpuError> {
        let held = &self.resident.0;
        let mut job = Job::new(&held.device)?;
        let table: Vec<u8> = self.table.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let table = job.send("transitions of a pattern", &[&table])?;
        let hits_len = 4 * (u64::from(room) + 1);
        let hits = job.room("hits", hits_len)?;
        job.zero(&hits, 4);
        let tree = &held.tree;
        match self.against {
            Against::Names => {
                let numbers = job.numbers(&self.numbers(&self.told, room))?;
                let kernel = Kernel::ScanNames(tree.division);
                job.run(kernel, &[&tree.group], &[&numbers, &table, &hits], groups(&self.told))?;
                job.submit(hits, hits_len, vec![table, numbers])
            }
            Against::Paths => {
                let mut numbers = Vec::new();
                let mut runs = Vec::new();
                // Nothing below the last node that is told matters, and nothing of the levels behind.
                for level in held.levels.iter().take_while(|level| level.start < self.told.end) {
                    runs.push((groups(level), numbers.len() as u32));
                    let of_level = self.numbers(level, room);
                    numbers.extend(of_level.iter().flat_map(|number| number.to_le_bytes()));
                    numbers.resize(numbers.len().next_multiple_of(NUMBERS_STRIDE), 0);
                }
                let numbers = job.send("parameters", &[&numbers])?;
                let states = job.room("states of directories", 4 * u64::from(held.segment.len()))?;
                let pipeline = held.device.pipeline(Kernel::ScanPaths(tree.division));
                let bindings = [numbers.binding_of(NUMBERS_LEN), table.binding(), hits.binding(), states.binding()];
                let own = job.bind(&pipeline, bindings.into_iter());
                job.run_bound(&pipeline, &[&tree.group], &own, &runs, true)?;
                job.submit(hits, hits_len, vec![table, numbers, states])
            }
        }
    }

    /// `Search` of the kernels.
    fn numbers(&self, nodes: &Range<u32>, room: u32) -> [u32; NUMBERS_LEN as usize / 4] {
        let Table { start, accept, end_class, slash_class, .. } = *self.table;
        let told = &self.told;
        [nodes.start, nodes.end, told.start, told.end, start, accept, end_class, slash_class, room, 0, 0, 0]
    }
}

/// Length of `Search` in bytes.
const NUMBERS_LEN: u64 = 48;

/// Over how many groups of names these nodes are spread.
fn groups(nodes: &Range<u32>) -> u64 {
    u64::from((nodes.end - 1) / GROUP_LEN - nodes.start / GROUP_LEN) + 1
}
