//! Many paths at once: what each of them needs next is fetched into the processor's caches while others are worked on.
//!
//! One lookup is a chain of four or five reads, each of an address that the one before gave, and each a miss of all caches once an
//! index is large. So a batch goes through in groups, and a group in steps: each step asks for what the next one reads, for
//! all of the group. A wait is then one for a whole group.

use adit_core::error::Result;

use super::path::is_plain;
use super::table::{First, Table, is_name_at, split};
use super::{Miss, MissKind, Resolver};
use crate::layout::GROUP_LEN;
use crate::layout::tables::{RANK_NODES, path_hash};
use crate::segment::NodeId;

/// Paths of a group: what is on its way at once. More than a processor has outstanding reads, and few enough to stay in its
/// nearest cache.
const GROUP: usize = 64;
/// So many paths are found before what is missing of them is explained.
const STEP: usize = 8 * GROUP;
/// So many paths are worth a thread of their own.
const PATHS_A_THREAD: usize = 1 << 12;

/// Answers some questions, by the thread that calls it.
type Part<'a, T> = dyn Fn(&[Question<'_>], &mut [T]) -> Result<()> + Sync + 'a;

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

/// A path of a group that may be there.
#[derive(Clone, Copy, Default)]
struct Lane<'q> {
    /// Which question it is of the group.
    question: usize,
    /// The directory that is asked for, and the name in it.
    dir: &'q [u8],
    name: &'q [u8],
    /// That of the first slot with its tag.
    node: u32,
    /// Its directory.
    parent: u32,
    /// Where its name begins among all names.
    name_at: usize,
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
        self.by_threads(questions, answers, &|asked, answered| self.find_part(asked, answered))
    }

    /// Resolves many paths, of any number, by all threads that there are. What [`Resolver::resolve`] says of each, in their order.
    ///
    /// # Errors
    /// As [`Resolver::resolve`], the first one.
    pub fn resolve_batch(&self, questions: &[Question<'_>]) -> Result<Vec<std::result::Result<NodeId, Miss>>> {
        let nowhere = Err(Miss { reached: NodeId::ROOT, at: 0, why: MissKind::NotFound });
        let mut answers = vec![nowhere; questions.len()];
        self.by_threads(questions, &mut answers, &|asked, answered| self.resolve_part(asked, answered))?;
        Ok(answers)
    }

    fn by_threads<T: Send>(&self, questions: &[Question<'_>], answers: &mut [T], part: &Part<'_, T>) -> Result<()> {
        match self.threads.min(questions.len() / PATHS_A_THREAD) {
            0 | 1 => part(questions, answers)?,
            threads => Self::in_parts(threads, questions, answers, part)?,
        }
        self.columns.segment().expect_whole()
    }

    fn in_parts<T: Send>(
        threads: usize,
        questions: &[Question<'_>],
        answers: &mut [T],
        part: &Part<'_, T>,
    ) -> Result<()> {
        let each = questions.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let mut parts = questions.chunks(each).zip(answers.chunks_mut(each));
            let own = parts.next();
            let others: Vec<_> = parts.map(|(asked, answered)| scope.spawn(move || part(asked, answered))).collect();
            let found = own.map_or(Ok(()), |(asked, answered)| part(asked, answered));
            others.into_iter().fold(found, |found, thread| found.and(thread.join().expect("it does not panic")))
        })
    }

    /// By this thread.
    fn resolve_part(
        &self,
        questions: &[Question<'_>],
        answers: &mut [std::result::Result<NodeId, Miss>],
    ) -> Result<()> {
        let mut found = [None; STEP];
        for (questions, answers) in questions.chunks(STEP).zip(answers.chunks_mut(STEP)) {
            let found = &mut found[..questions.len()];
            self.find_part(questions, found)?;
            for ((question, answer), found) in questions.iter().zip(answers).zip(found) {
                *answer = match found {
                    Some(node) => Ok(*node),
                    None => self.explain(question.start, question.path)?,
                };
            }
        }
        Ok(())
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
        // The hashes, and the buckets.
        let mut hashes = [0; GROUP];
        for (hash, question) in hashes.iter_mut().zip(questions) {
            *hash = path_hash(as_it_stands(question).unwrap_or_default());
            prefetch(table.buckets(), table.home(*hash) as usize);
        }
        // The slots, and what the columns say of their nodes.
        let columns = &self.columns;
        let mut lanes = [Lane::default(); GROUP];
        let mut used = 0;
        for (number, ((question, hash), answer)) in questions.iter().zip(hashes).zip(&mut *answers).enumerate() {
            let Some(path) = as_it_stands(question) else {
                *answer = self.look_closer(question.start, question.path)?;
                continue;
            };
            *answer = None;
            match table.first(hash) {
                First::Node(node) => {
                    prefetch(columns.parents(), node as usize);
                    prefetch(columns.name_positions(), (node / GROUP_LEN) as usize);
                    prefetch(columns.name_lengths(), (node - node % GROUP_LEN) as usize);
                    let (dir, name) = split(path);
                    lanes[used] = Lane { question: number, node, dir, name, ..Lane::default() };
                    used += 1;
                }
                First::Nothing if !path.is_empty() && is_plain(path) => {}
                _ => *answer = self.look_closer(question.start, question.path)?,
            }
        }
        let lanes = &mut lanes[..used];
        // The names, and the directories.
        for lane in &mut *lanes {
            lane.parent = columns.parent(lane.node).unwrap_or_default();
            lane.name_at = columns.name_start(lane.node).unwrap_or_default();
            prefetch_all(columns.names(), lane.name_at, lane.name.len());
            prefetch(table.ranks(), (lane.parent / RANK_NODES) as usize);
        }
        // The directories' paths.
        let mut places = [usize::MAX; GROUP];
        for (place, lane) in places.iter_mut().zip(&*lanes) {
            match table.stored(lane.parent) {
                Some(stored) => {
                    *place = stored;
                    prefetch(table.positions(), stored);
                }
                None => {
                    prefetch(columns.parents(), lane.parent as usize);
                    prefetch(columns.name_positions(), (lane.parent / GROUP_LEN) as usize);
                    prefetch(columns.name_lengths(), (lane.parent - lane.parent % GROUP_LEN) as usize);
                }
            }
        }
        for (place, lane) in places.iter().zip(&*lanes) {
            if let Some(position) = table.positions().get(*place) {
                prefetch_all(table.paths(), u64::from_le_bytes(*position) as usize, lane.dir.len());
            } else if let Some(at) = columns.name_start(lane.parent) {
                prefetch(columns.names(), at);
            }
        }
        // All bytes.
        for lane in lanes {
            let question = &questions[lane.question];
            let is_it = is_name_at(columns, lane.node, lane.name_at, lane.name)
                && columns.parent(lane.node) == Some(lane.parent)
                && table.is_dir_path(columns, lane.parent, lane.dir);
            answers[lane.question] =
                if is_it { Some(NodeId(lane.node)) } else { self.find(question.start, question.path)? };
        }
        Ok(())
    }
}

/// The path below the root that a question names, if it is one of these and need not be made clean.
#[inline]
fn as_it_stands<'q>(question: &Question<'q>) -> Option<&'q [u8]> {
    match question.path.split_first() {
        Some((b'/', rest)) => Some(rest),
        _ if question.start == NodeId::ROOT => Some(question.path),
        _ => None,
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
    #[cfg(target_arch = "aarch64")]
    if let Some(at) = slice.get(place) {
        // SAFETY: it changes nothing, and does not fail whatever the address; that one is of a reference.
        unsafe {
            let at = std::ptr::from_ref(at);
            std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
        };
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (slice, place);
}

/// The same for so many bytes from a place on, of which the first and the last line are asked for.
#[inline(always)]
fn prefetch_all(bytes: &[u8], place: usize, len: usize) {
    prefetch(bytes, place);
    prefetch(bytes, place.wrapping_add(len.saturating_sub(1)));
}
