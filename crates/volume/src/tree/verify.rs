//! Whether a tree is what its rules say: for whoever checks a volume. Reads everything, several times.
//!
//! Four kinds of pass: over all keys ([`keys`], with [`births`]), over the windows ([`blocks`]), over what each snapshot and
//! branch shows in the order of inodes ([`shown`]), and up from each directory to the root ([`reach`]). What has to be joined and
//! is not in one order is joined in as many passes as the memory given for it asks for, so that memory does not grow with the
//! tree. (Beside it there are the findings, of which some thousands are kept, and the versions of one key.)

#[cfg(any(test, feature = "testing"))]
use std::collections::BTreeSet;
use std::collections::HashSet;

use adit_core::Result;

pub use self::fault::{Fault, Finding};
use super::Tree;
use super::topology::{FIRST_ID, Topology};
use super::view::{Lines, View};
use crate::format::keys::Id;
use crate::format::records::State;
use crate::table::{Allocation, Run};

pub(super) mod births;
pub(super) mod blocks;
mod fault;
mod keys;
mod reach;
mod shown;
mod stream;

/// Memory of a check for what it joins, unless told otherwise, in bytes.
pub const MEMORY_DEFAULT_BYTES: usize = 64 << 20;

/// Most findings that one check keeps of what a repair mends, and of the others.
const MENDABLE_MAX: usize = 16 << 10;
const OTHERS_MAX: usize = 1000;

/// What was found.
#[derive(Debug, Default)]
pub struct Checked {
    /// What is wrong. Of what a repair mends there may be more if there are thousands of them.
    pub findings: Vec<Finding>,
    /// How many more there are.
    pub omitted: u64,
    /// Inodes, each version counted.
    pub inodes: u64,
    /// Blocks that windows refer to.
    pub blocks: u64,
    /// Blocks that belong to the tree, and to nobody in it; not all if there are very many.
    pub lost: Vec<Run>,
    /// How many they are.
    pub lost_blocks: u64,
    /// Whether something is noted as to be dropped.
    pub has_orphans: bool,
    /// How often entries were gone through, and windows.
    pub passes: Passes,
    mendable: usize,
    others: usize,
    hides_something: bool,
}

/// How often a check went through what it had to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passes {
    /// Entries, of all snapshots and branches.
    pub entries: u64,
    /// Windows, of all of them at once.
    pub windows: u64,
}

impl Checked {
    fn add(&mut self, part: Option<(Id, bool)>, fault: Fault) {
        let (part, is_frozen) = part.map_or((None, false), |(id, is_frozen)| (Some(id), is_frozen));
        self.hides_something |= !is_frozen && fault.hides_something();
        let finding = Finding { part, is_frozen, fault };
        let (kept, max) = match finding.is_mendable() {
            true => (&mut self.mendable, MENDABLE_MAX),
            false => (&mut self.others, OTHERS_MAX),
        };
        if *kept < max {
            *kept += 1;
            self.findings.push(finding);
        } else {
            self.omitted += 1;
        }
    }

    /// Whether all of the tree was seen, so that what nobody seems to have belongs to nobody.
    pub fn is_whole(&self) -> bool {
        !self.hides_something
    }
}

impl Finding {
    /// Whether a repair mends it.
    pub fn is_mendable(&self) -> bool {
        !self.is_frozen && self.fault.is_mendable()
    }
}

/// What was found, for tests.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// All blocks that some version of some window refers to.
    pub blocks: BTreeSet<u64>,
}

impl Tree {
    /// Checks versions, touched lists, blocks, and what each snapshot and branch shows, with about `memory_bytes` of memory
    /// for what has to be joined. Nobody changes the tree meanwhile; collecting, which goes on behind everybody's back, waits.
    ///
    /// # Errors
    /// What keeps it from going on, such as a page that cannot be read.
    pub fn check(&self, allocation: &dyn Allocation, memory_bytes: usize) -> Result<Checked> {
        let _nothing_is_dropped = self.collecting.lock();
        self.check_still(allocation, memory_bytes)
    }

    /// As [`Tree::check`], for whoever keeps collecting from going on.
    fn check_still(&self, allocation: &dyn Allocation, memory_bytes: usize) -> Result<Checked> {
        let mut checked = Checked::default();
        let ids = Ids::of(&self.topology.read());
        keys::check(self, &ids, &mut checked)?;
        blocks::check(self, allocation, memory_bytes, &mut checked)?;
        for &(id, is_frozen) in &ids.shown {
            let view = View { tree: self, topology: Lines::Shared(self.topology.read()), id, chain: None, cache: None };
            let part = (id, is_frozen);
            let odd = shown::check(&view, part, memory_bytes, &mut checked)?;
            reach::check(&view, part, &odd, memory_bytes, &mut checked)?;
        }
        Ok(checked)
    }

    /// Checks all but which blocks are free, for tests: it takes memory for each block.
    #[cfg(any(test, feature = "testing"))]
    pub fn verify(&self) -> Result<Report> {
        let _nothing_is_dropped = self.collecting.lock();
        let referred = blocks::Referred(blocks::all(self)?);
        let checked = self.check_still(&referred, MEMORY_DEFAULT_BYTES)?;
        let part = |finding: &Finding| finding.part.map_or(String::new(), |id| format!("id {id}: "));
        let problems = checked.findings.iter().map(|finding| format!("{}{}", part(finding), finding.fault)).collect();
        Ok(Report { problems, blocks: referred.0 })
    }
}

/// What has to be known of the ids.
struct Ids {
    /// Snapshots and branches, and whether nothing is changed in it.
    shown: Vec<(Id, bool)>,
    /// Those that a snapshot or branch is, or descends from.
    needed: HashSet<Id>,
    /// Those that end with a fork: what such a chain wrote stays until one of its descendants is left, also where each of them
    /// hides it.
    forked: HashSet<Id>,
    /// Those that need no list of what they wrote.
    topmost: HashSet<Id>,
    /// Whether there is nothing to be dropped.
    collected: bool,
}

impl Ids {
    fn of(topology: &Topology) -> Ids {
        let state = |state: State| move |id: &Id| topology.node(*id).is_ok_and(|node| node.record.state == state);
        let all: Vec<Id> = topology.nodes().map(|(id, _)| id).collect();
        let frozen = all.iter().filter(|id| state(State::Frozen)(id)).map(|id| (*id, true));
        let mut shown: Vec<(Id, bool)> = frozen.collect();
        shown.extend(all.iter().filter(|id| state(State::Live)(id)).map(|id| (*id, false)));
        shown.sort_unstable();
        let mut needed = HashSet::new();
        for &(id, _) in &shown {
            // The rest of the way was gone before where one of it is known.
            let mut at = id;
            while at != 0 && needed.insert(at) {
                at = topology.node(at).map_or(0, |node| node.record.parent);
            }
        }
        let to_go = [State::Merging, State::Dropping, State::Staging];
        Ids {
            shown,
            needed,
            forked: all.iter().copied().filter(|id| ends_in_fork(topology, *id)).collect(),
            topmost: topmost(topology),
            collected: !all.iter().any(|id| to_go.iter().any(|going| state(*going)(id))),
        }
    }
}

/// The chain that begins with the first id.
fn topmost(topology: &Topology) -> HashSet<Id> {
    let (mut ids, mut at) = (HashSet::from([FIRST_ID]), FIRST_ID);
    while let Ok(node) = topology.node(at)
        && matches!(node.record.state, State::Nameless | State::Merging)
        && let [child] = node.children.as_slice()
    {
        ids.insert(*child);
        at = *child;
    }
    ids
}

fn ends_in_fork(topology: &Topology, id: Id) -> bool {
    let end = topology.chain_end_below(id).unwrap_or(id);
    let forks = |id: Id| topology.node(id).is_ok_and(|n| n.record.state == State::Nameless && n.children.len() > 1);
    forks(id) || (forks(end) && topology.chain_of(end).contains(id))
}
