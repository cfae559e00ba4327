//! Many paths at once: what each of them needs next is fetched into the processor's caches while others are worked on.
//!
//! One lookup is a chain of four or five reads, each of an address that the one before gave, and each a miss of all caches once an
//! index is large. So a batch goes through in groups, and a group in steps: each step asks for what the next one reads, for
//! all of the group. A wait is then one for a whole group.

use adit_core::error::Result;

use super::Resolver;
use super::path::is_plain;
use super::table::{Table, is_name_at, split};
use crate::layout::GROUP_LEN;
use crate::layout::tables::{Bucket, path_hash, tag};
use crate::segment::NodeId;

/// Paths of a group: what is on its way at once. More than a processor has outstanding reads, and few enough to stay in its
/// nearest cache.
const GROUP: usize = 32;
/// So many paths are worth a thread of their own.
const PATHS_A_THREAD: usize = 1 << 12;

/// One path of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question<'q> {
    /// Where a path begins that does not begin with a slash.
    pub start: NodeId,
    /// As for [`Resolver::resolve`].
    pub path: &'q [u8],
}

impl<'q> From<&'q [u8]> for Question<'q> {
    fn from(path: &'q [u8]) -> Self {
        Question { start: NodeId::ROOT, path }
    }
}

/// A path of a group on its way.
#[derive(Clone, Copy)]
struct Lane<'q> {
    path: &'q [u8],
    hash: u64,
    /// That of the first slot with its tag.
    node: u32,
    step: Step,
    name_at: usize,
    parent: u32,
    place: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// On its way.
    Way,
    /// It is not there.
    Missing,
    /// It has to be looked for as a single one.
    Slow,
}

impl Resolver<'_> {
    /// Finds many paths, of any number, by all threads that there are. What [`Resolver::find`] says of each, in their order.
    ///
    /// # Errors
    /// As [`Resolver::find`], the first one.
    pub fn find_batch(&self, questions: &[Question<'_>]) -> Result<Vec<Option<NodeId>>> {
        let mut answers = vec![None; questions.len()];
        self.find_into(questions, &mut answers)?;
        Ok(answers)
    }

    /// As [`Resolver::find_batch`], without an allocation.
    ///
    /// # Panics
    /// If there is not an answer for each question.
    pub fn find_into(&self, questions: &[Question<'_>], answers: &mut [Option<NodeId>]) -> Result<()> {
        assert_eq!(questions.len(), answers.len(), "each question has a place for its answer");
        let threads = self.threads.min(questions.len() / PATHS_A_THREAD).max(1);
        if threads == 1 {
            return self.find_part(questions, answers);
        }
        let each = questions.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let mut parts = questions.chunks(each).zip(answers.chunks_mut(each));
            let own = parts.next();
            let others: Vec<_> =
                parts.map(|(asked, answered)| scope.spawn(move || self.find_part(asked, answered))).collect();
            let found = own.map_or(Ok(()), |(asked, answered)| self.find_part(asked, answered));
            others.into_iter().fold(found, |found, thread| found.and(thread.join().expect("it does not panic")))
        })
    }

    /// By this thread.
    fn find_part(&self, questions: &[Question<'_>], answers: &mut [Option<NodeId>]) -> Result<()> {
        let Some(table) = &self.table else {
            for (question, answer) in questions.iter().zip(answers) {
                *answer = self.find(question.start, question.path)?;
            }
            return Ok(());
        };
        for (questions, answers) in questions.chunks(GROUP).zip(answers.chunks_mut(GROUP)) {
            self.find_group(table, questions, answers)?;
        }
        Ok(())
    }

    fn find_group(&self, table: &Table<'_>, questions: &[Question<'_>], answers: &mut [Option<NodeId>]) -> Result<()> {
        let columns = &self.columns;
        let idle = Lane { path: &[], hash: 0, node: 0, step: Step::Slow, name_at: 0, parent: 0, place: 0 };
        let mut lanes = [idle; GROUP];
        let lanes = &mut lanes[..questions.len()];
        // The hash, and its bucket.
        for (lane, question) in lanes.iter_mut().zip(questions) {
            let path = match question.path.split_first() {
                Some((b'/', rest)) => rest,
                _ if question.start == NodeId::ROOT => question.path,
                _ => continue,
            };
            let hash = path_hash(path);
            prefetch(table.buckets(), table.home(hash) as usize);
            (lane.path, lane.hash, lane.step) = (path, hash, Step::Way);
        }
        // The slot, and what the columns say of its node.
        for lane in lanes.iter_mut().filter(|lane| lane.step == Step::Way) {
            let Some(bytes) = table.buckets().get(table.home(lane.hash) as usize) else { continue };
            let bucket = Bucket(bytes);
            let matches = bucket.matches(tag(lane.hash));
            if matches == 0 {
                let sure = !bucket.is_full() && !lane.path.is_empty() && is_plain(lane.path);
                lane.step = if sure { Step::Missing } else { Step::Slow };
                continue;
            }
            lane.node = bucket.node(matches.trailing_zeros());
            prefetch(columns.parents(), lane.node as usize);
            prefetch(columns.name_positions(), (lane.node / GROUP_LEN) as usize);
            prefetch(columns.name_lengths(), (lane.node - lane.node % GROUP_LEN) as usize);
        }
        // Its name, and its directory.
        for lane in lanes.iter_mut().filter(|lane| lane.step == Step::Way) {
            match (columns.parent(lane.node), columns.name_start(lane.node)) {
                (Some(parent), Some(at)) => (lane.parent, lane.name_at) = (parent, at),
                _ => lane.step = Step::Slow,
            }
            prefetch(columns.names(), lane.name_at);
            prefetch(table.ranks(), (lane.parent / crate::layout::tables::RANK_NODES) as usize);
        }
        // The place of the directory's path, and that path.
        for lane in lanes.iter_mut().filter(|lane| lane.step == Step::Way) {
            match table.stored(lane.parent) {
                Some(place) => {
                    lane.place = place;
                    prefetch(table.positions(), place);
                }
                None => {
                    lane.place = usize::MAX;
                    prefetch(columns.parents(), lane.parent as usize);
                    prefetch(columns.name_positions(), (lane.parent / GROUP_LEN) as usize);
                    prefetch(columns.name_lengths(), (lane.parent - lane.parent % GROUP_LEN) as usize);
                }
            }
        }
        for lane in lanes.iter_mut().filter(|lane| lane.step == Step::Way) {
            if let Some(position) = table.positions().get(lane.place) {
                prefetch(table.paths(), u64::from_le_bytes(*position) as usize);
            } else if let Some(at) = columns.name_start(lane.parent) {
                prefetch(columns.names(), at);
            }
        }
        // All bytes.
        for ((lane, question), answer) in lanes.iter().zip(questions).zip(answers) {
            *answer = match lane.step {
                Step::Missing => None,
                Step::Way => {
                    let (dir, name) = split(lane.path);
                    if is_name_at(columns, lane.node, lane.name_at, name)
                        && table.is_dir_path(columns, lane.parent, dir)
                    {
                        Some(NodeId(lane.node))
                    } else {
                        self.find(question.start, question.path)?
                    }
                }
                // Not in the first slot with its tag, or not where a path is as it stands.
                Step::Slow => self.find(question.start, question.path)?,
            }
        }
        Ok(())
    }
}

/// Asks the processor for what is at a place of a slice, without a wait. A place that is not there is nothing.
#[inline(always)]
fn prefetch<T>(slice: &[T], place: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(at) = slice.get(place) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it changes nothing, and does not fail whatever the address; that one is of a reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, place);
}
