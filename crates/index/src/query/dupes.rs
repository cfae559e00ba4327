//! Files of equal content: [`Dupes`].
//!
//! Equal are files of one size with one hash. Candidates are taken by a part of their hash, so many at once that sorting them takes little
//! memory, and each thread takes another part.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use adit_core::error::Result;
use adit_core::types::Kind;

use super::find::Query;
use super::known::within;
use super::levels;
use super::ordered::ordered;
use super::view::slice;
use crate::ContentHash;
use crate::layout::{Mode, Section};
use crate::segment::{NodeId, Segment};

/// Memory for candidates while they are sorted, in bytes, if their hashes are spread evenly as those of hashes are.
const SORT_LEN_BYTES: u64 = 64 << 20;
/// What a candidate takes of it.
const CANDIDATE_LEN_BYTES: u64 = size_of::<Candidate>() as u64;
/// In no more parts than this.
const PARTS_MAX: u64 = 1 << 10;

/// A search for files of equal content.
#[derive(Clone, Debug)]
pub struct Dupes {
    min_size: u64,
    query: Query,
}

/// Files of equal content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Size of each, in bytes.
    pub size: u64,
    /// The hash of their content.
    pub hash: ContentHash,
    /// The files, two at least, in the order of their numbers.
    pub nodes: Vec<NodeId>,
}

impl Group {
    /// What all but one take, in bytes.
    pub fn wasted_bytes(&self) -> u64 {
        self.size.saturating_mul(self.nodes.len() as u64 - 1)
    }
}

/// What was looked at. Files that are smaller than was asked for are in none of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DupesSummary {
    /// Regular files with a hash.
    pub hashed: u64,
    /// Regular files without a hash, of which nothing is known.
    pub unhashed: u64,
    /// Their sizes, in bytes.
    pub unhashed_bytes: u64,
    /// Groups of equal files.
    pub groups: u64,
    /// Files in them.
    pub duplicates: u64,
    /// What could be saved: of each group all but one, in bytes.
    pub wasted_bytes: u64,
}

impl Default for Dupes {
    fn default() -> Self {
        Self::new()
    }
}

/// The first bytes of a hash as a number, and the node.
type Candidate = (u64, u32);

/// Groups: the nodes of all, one behind the other, and of each how many they are.
#[derive(Default)]
struct Groups {
    nodes: Vec<u32>,
    lens: Vec<(u32, u64)>,
}

impl Dupes {
    /// Of all files below the root that are not empty.
    pub fn new() -> Dupes {
        Dupes { min_size: 1, query: Query::new() }
    }

    /// Only files of so many bytes at least.
    #[must_use]
    pub fn min_size(mut self, bytes: u64) -> Dupes {
        self.min_size = bytes;
        self
    }

    /// Only files below this directory.
    #[must_use]
    pub fn below(mut self, dir: NodeId) -> Dupes {
        self.query = self.query.below(dir);
        self
    }

    /// As [`Query::threads`].
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Dupes {
        self.query = self.query.threads(threads);
        self
    }

    /// As [`Query::stop_when`].
    #[must_use]
    pub fn stop_when(mut self, stop: Arc<AtomicBool>) -> Dupes {
        self.query = self.query.stop_when(stop);
        self
    }

    /// Gives each group to `sink`: those first that waste most, of equal ones those of larger files, then those with the lowest number.
    /// [`ControlFlow::Break`] ends it; the summary is of all.
    ///
    /// # Errors
    /// `NotDirectory` if it is to begin in none; `Corrupt` where something is wrong; `Interrupted` as [`Query::stop_when`] says.
    pub fn run(&self, segment: &Segment, sink: &mut dyn FnMut(&Group) -> ControlFlow<()>) -> Result<DupesSummary> {
        self.give(segment, None, sink)
    }

    /// As [`Dupes::run`], where it is known already which files have their like in the index: `nodes`, in order. More may be among them.
    ///
    /// # Errors
    /// As [`Dupes::run`].
    pub fn run_known(
        &self,
        segment: &Segment,
        nodes: &[NodeId],
        sink: &mut dyn FnMut(&Group) -> ControlFlow<()>,
    ) -> Result<DupesSummary> {
        self.give(segment, Some(nodes), sink)
    }

    /// Files of fewer bytes are left out.
    pub fn smallest(&self) -> u64 {
        self.min_size
    }

    fn give(
        &self,
        segment: &Segment,
        known: Option<&[NodeId]>,
        sink: &mut dyn FnMut(&Group) -> ControlFlow<()>,
    ) -> Result<DupesSummary> {
        segment.check_sections(&[Section::Modes, Section::Sizes, Section::Hashes])?;
        let levels = levels::below(segment, self.query.start, &(1..u32::MAX))?;
        let columns = Columns::new(segment)?;
        let mut summary = self.count(&columns, &levels)?;
        let threads = self.query.threads_for(summary.hashed as u32).max(1);
        let at_once = SORT_LEN_BYTES / CANDIDATE_LEN_BYTES / threads as u64;
        let candidates = known.map_or(summary.hashed, |known| known.len() as u64);
        let parts = candidates.div_ceil(at_once).max(threads as u64).next_power_of_two().min(PARTS_MAX);
        let mut all = Groups::default();
        let mut failed = Ok(());
        ordered(
            threads,
            parts as usize,
            || (),
            |(), part| self.part(&columns, &levels, known, (part as u64, parts)),
            &mut |groups: Result<Groups>| match groups {
                Ok(mut groups) => {
                    all.nodes.append(&mut groups.nodes);
                    all.lens.append(&mut groups.lens);
                    ControlFlow::Continue(())
                }
                Err(e) => {
                    failed = Err(e);
                    ControlFlow::Break(())
                }
            },
        );
        failed?;
        give_out(&columns, &all, &mut summary, sink);
        segment.expect_whole()?;
        Ok(summary)
    }

    fn count(&self, columns: &Columns<'_>, levels: &[Range<u32>]) -> Result<DupesSummary> {
        let mut summary = DupesSummary::default();
        for level in levels {
            self.query.check_stop()?;
            for node in level.clone().filter(|node| columns.is_file(*node, self.min_size)) {
                if columns.hash(node).is_some() {
                    summary.hashed += 1;
                } else {
                    summary.unhashed += 1;
                    summary.unhashed_bytes = summary.unhashed_bytes.saturating_add(columns.size(node));
                }
            }
        }
        Ok(summary)
    }

    /// The groups of those files whose hash begins with the bits of `part`; if some files are `known`, of those.
    fn part(
        &self,
        columns: &Columns<'_>,
        levels: &[Range<u32>],
        known: Option<&[NodeId]>,
        (part, parts): (u64, u64),
    ) -> Result<Groups> {
        let shift = 64 - parts.ilog2();
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut look = |node: u32| {
            let Some(hash) = columns.hash(node) else { return };
            let begin = u64::from_be_bytes(*hash.first_chunk().expect("a hash has sixteen bytes"));
            if begin.checked_shr(shift).unwrap_or(0) == part && columns.is_file(node, self.min_size) {
                candidates.push((begin, node));
            }
        };
        for level in levels {
            self.query.check_stop()?;
            match known {
                Some(known) => within(known, level).iter().for_each(|node| look(node.0)),
                None => level.clone().for_each(&mut look),
            }
        }
        candidates.sort_unstable();
        let mut groups = Groups::default();
        for alike in candidates.chunk_by_mut(|a, b| a.0 == b.0).filter(|alike| alike.len() > 1) {
            alike.sort_unstable_by_key(|(_, node)| (columns.size(*node), columns.hash(*node), *node));
            let is_equal = |a: &Candidate, b: &Candidate| {
                columns.size(a.1) == columns.size(b.1) && columns.hash(a.1) == columns.hash(b.1)
            };
            for equal in alike.chunk_by(is_equal).filter(|equal| equal.len() > 1) {
                groups.nodes.extend(equal.iter().map(|(_, node)| node));
                groups.lens.push((equal.len() as u32, columns.size(equal[0].1)));
            }
        }
        Ok(groups)
    }
}

/// Gives out groups in order.
fn give_out(
    columns: &Columns<'_>,
    all: &Groups,
    summary: &mut DupesSummary,
    sink: &mut dyn FnMut(&Group) -> ControlFlow<()>,
) {
    let mut order = Vec::with_capacity(all.lens.len());
    let mut at = 0;
    for (len, size) in &all.lens {
        let nodes = &all.nodes[at..at + *len as usize];
        at += nodes.len();
        let wasted = size.saturating_mul(u64::from(*len) - 1);
        summary.groups += 1;
        summary.duplicates += u64::from(*len);
        summary.wasted_bytes = summary.wasted_bytes.saturating_add(wasted);
        order.push((std::cmp::Reverse((wasted, *size)), nodes));
    }
    order.sort_unstable();
    for (_, nodes) in order {
        let group = Group {
            size: columns.size(nodes[0]),
            hash: columns.hash(nodes[0]).copied().unwrap_or_default(),
            nodes: nodes.iter().copied().map(NodeId).collect(),
        };
        if sink(&group).is_break() {
            return;
        }
    }
}

/// What is asked of each node.
pub(super) struct Columns<'a> {
    modes: &'a [[u8; 2]],
    sizes: &'a [[u8; 8]],
    hashes: &'a [ContentHash],
}

impl<'a> Columns<'a> {
    /// `Corrupt` if there is a node with a hash, and no hashes.
    pub(super) fn new(segment: &'a Segment) -> Result<Self> {
        let nodes = segment.len();
        let modes = slice(segment, Section::Modes, 0, nodes)?;
        let sizes = slice(segment, Section::Sizes, 0, nodes)?;
        if segment.sections().any(|(section, _)| section == Section::Hashes) {
            return Ok(Columns { modes, sizes, hashes: slice(segment, Section::Hashes, 0, nodes)? });
        }
        let columns = Columns { modes, sizes, hashes: &[] };
        match (0..nodes).find(|node| columns.mode(*node).has_hash()) {
            Some(node) => Err(segment.damaged(node, "it has a hash, and the index has none")),
            None => Ok(columns),
        }
    }

    fn mode(&self, node: u32) -> Mode {
        Mode(u16::from_le_bytes(self.modes[node as usize]))
    }

    pub(super) fn size(&self, node: u32) -> u64 {
        u64::from_le_bytes(self.sizes[node as usize])
    }

    pub(super) fn is_file(&self, node: u32, min_size: u64) -> bool {
        self.mode(node).kind() == Kind::File && self.size(node) >= min_size
    }

    fn hash(&self, node: u32) -> Option<&ContentHash> {
        if self.mode(node).has_hash() { self.hashes.get(node as usize) } else { None }
    }
}
