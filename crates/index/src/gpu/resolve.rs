//! Many paths to nodes, on a device. What [`Resolver`] says of each, in their order.
//!
//! A batch is divided so that no buffer is too long, and several parts are under way at once. Clean paths of up to 240 bytes are found
//! by the table of the segment, if it has one; all others name by name. The processor answers for what no device is
//! sent: a path over [`PATH_SENT_MAX_BYTES`], and one with a wrong place to start, which is an error.

use std::sync::{Arc, Mutex, PoisonError};

use super::GpuError;
use super::job::{Job, Part};
use super::pending::{Landing, Pending, windowed};
use super::resident::Resident;
use super::shader::Kernel;
use crate::resolve::{Miss, MissKind, Question, Resolver};
use crate::segment::NodeId;

/// A longer path is for the processor: a device is made for many, not for long ones.
pub const PATH_SENT_MAX_BYTES: usize = 1 << 20;
/// So many bytes of paths go to a device at once, or one path.
const PART_LEN_BYTES: u64 = 64 << 20;

/// In the parameters: each question has a directory to start from.
const FLAG_STARTS: u32 = 1;
/// In the parameters: why a path leads nowhere is told.
const FLAG_MISSES: u32 = 2;
/// What the kernel says where only nodes are asked for.
const NONE: u32 = u32::MAX;
const ASK: u32 = u32::MAX - 1;

/// The secret of XXH3's specification, in little-endian words.
const SECRET: [u32; 48] = [
    0x396c_feb8,
    0xbe4b_a423,
    0x2c81_017c,
    0x1cad_21f7,
    0xe96d_d4de,
    0xdb97_9083,
    0xa4a4_4072,
    0x1f67_b3b7,
    0x4ee6_79cb,
    0x78e5_c0cc,
    0x7dd0_5a82,
    0x2172_ffcc,
    0x7446_08b8,
    0x8e24_43f7,
    0xe690_35e0,
    0x4c26_3a81,
    0xbb52_283c,
    0xcb00_c391,
    0x8b65_d088,
    0xa32e_531b,
    0x9748_6471,
    0x4ef9_0da2,
    0x46ef_1938,
    0xd8ac_dea9,
    0x3f76_faa8,
    0x3f34_9ce3,
    0xc7bb_dcf9,
    0x1d4f_0bc7,
    0x4be0_518a,
    0x3159_b4cd,
    0xc97e_9fc8,
    0x6473_78d9,
    0x83ac_c5ea,
    0xc3eb_d334,
    0xffa0_81c5,
    0xeb63_13fa,
    0x51dd_0d17,
    0x49da_f0b7,
    0x2655_16d3,
    0x9e68_d429,
    0x58be_162b,
    0xfca1_477d,
    0xd1b8_f88f,
    0xce31_d07a,
    0x8f3a_cb45,
    0x2804_1695,
    0xcafb_d7af,
    0x7e40_4bbb,
];

/// What a device says of a path. `Err` is a miss.
type Found = Result<NodeId, Miss>;

impl Resident {
    /// As [`Resolver::find_batch`].
    pub fn find<'q>(&self, questions: &'q [Question<'q>]) -> Pending<'q, Vec<Option<NodeId>>> {
        self.batch(
            questions,
            0,
            |resolver, question| resolver.find(question.start, question.path),
            |words| match words[0] {
                NONE => Some(None),
                ASK => None,
                node => Some(Some(NodeId(node))),
            },
        )
    }

    /// As [`Resolver::resolve`] of each.
    pub fn resolve<'q>(&self, questions: &'q [Question<'q>]) -> Pending<'q, Vec<Found>> {
        self.batch(questions, FLAG_MISSES, |resolver, question| resolver.resolve(question.start, question.path), answer)
    }

    /// Asks the device, and the processor for what it leaves open (`decode` says `None`).
    fn batch<'q, T: Send + 'q>(
        &self,
        questions: &'q [Question<'q>],
        flags: u32,
        ask: fn(&Resolver<'_>, &Question<'_>) -> adit_core::error::Result<T>,
        decode: fn(&[u32]) -> Option<T>,
    ) -> Pending<'q, Vec<T>> {
        let parts = divide(questions, self.0.device.options().batch_paths.max(1) as usize);
        let width = self.0.device.options().batches_in_flight;
        let words_each = if flags & FLAG_MISSES != 0 { 3 } else { 1 };
        let all = Arc::new(Mutex::new(Vec::with_capacity(questions.len())));
        let (own, count) = (self.clone(), parts.len());
        let (sums, shared) = (all.clone(), self.clone());
        let parts_of = parts.clone();
        let start = move |part: usize| match own.submit_paths(parts[part], flags, words_each) {
            Ok(landing) => Pending::after(landing, Pending::ready),
            Err(e) => Pending::ready(Err(e)),
        };
        let take = move |part: usize, words: Vec<u32>| {
            let mut all = sums.lock().unwrap_or_else(PoisonError::into_inner);
            let questions = parts_of[part];
            all.extend(words.chunks_exact(words_each).take(questions.len()).map(decode));
        };
        let flying = windowed(count, width, start, take);
        Pending::from_future(async move {
            flying.await?;
            let answers = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
            complete(&shared, questions, answers, ask)
        })
    }

    /// Sends paths to the device, to be looked up there as often as [`SentPaths::find`] says: for who asks the same paths of more than
    /// one state of things, and to measure what a device takes without the way to it.
    ///
    /// # Errors
    /// [`GpuError::Unfit`] if they are more than go at once, or one of them is for the processor.
    pub fn send_paths(&self, questions: &[Question<'_>]) -> Result<SentPaths, GpuError> {
        let parts = divide(questions, questions.len().max(1));
        if parts.len() > 1 {
            return Err(GpuError::Unfit { what: "parts of paths", needs: parts.len() as u64, limit: 1 });
        }
        if let Some(long) = questions.iter().find(|question| is_for_processor(question)) {
            let (needs, limit) = (long.path.len() as u64, PATH_SENT_MAX_BYTES as u64);
            return Err(GpuError::Unfit { what: "bytes of a path", needs, limit });
        }
        let mut job = Job::new(&self.0.device)?;
        let asked = Asked::send(&mut job, questions, 0)?;
        job.bring_up()?;
        Ok(SentPaths { resident: self.clone(), asked: Mutex::new(asked), count: questions.len() })
    }

    fn submit_paths(
        &self,
        questions: &[Question<'_>],
        flags: u32,
        words_each: usize,
    ) -> Result<Arc<Landing>, GpuError> {
        let mut job = Job::new(&self.0.device)?;
        let asked = Asked::send(&mut job, questions, flags)?;
        let len = 4 * (questions.len() * words_each) as u64;
        let answers = job.room("answers of a part", len)?;
        asked.look_up(&mut job, self, &answers, questions.len())?;
        job.submit(answers, len, asked.0.into())
    }
}

/// Paths that lie on a device, beside the segment that they are asked of.
pub struct SentPaths {
    resident: Resident,
    asked: Mutex<Asked>,
    count: usize,
}

impl std::fmt::Debug for SentPaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentPaths")
            .field("resident", &self.resident)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl SentPaths {
    /// Looks all of them up `times` times, and tells what the last time came to: the node of each, or none. Blocks until it is there.
    ///
    /// # Errors
    /// As every job; [`GpuError::Unfit`] if one of them cannot be looked up on a device.
    pub fn find(&self, times: u32) -> Result<Vec<Option<NodeId>>, GpuError> {
        let held = &self.resident.0;
        let mut job = Job::new(&held.device)?;
        let len = 4 * self.count as u64;
        let answers = job.room("answers of a part", len)?;
        let landing = {
            let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..times.max(1) {
                asked.look_up(&mut job, &self.resident, &answers, self.count)?;
            }
            job.submit(answers, len, Vec::new())?
        };
        let words = Pending::after(landing, Pending::ready).wait()?;
        let answer = |word: &u32| match *word {
            NONE => Ok(None),
            ASK => Err(GpuError::Unfit { what: "directories to start from", needs: 1, limit: 0 }),
            node => Ok(Some(NodeId(node))),
        };
        words[..self.count].iter().map(answer).collect()
    }
}

/// The paths of a part as the kernel sees them: parameters, bounds, places to start, bytes.
struct Asked([Part; 4]);

impl Asked {
    fn send(job: &mut Job, questions: &[Question<'_>], mut flags: u32) -> Result<Asked, GpuError> {
        let (mut bounds, mut starts, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = 0u32;
        bounds.extend(end.to_le_bytes());
        for question in questions {
            let path = if is_for_processor(question) { &[] } else { question.path };
            // A part has no more bytes than 32 bits count.
            end += path.len() as u32;
            bounds.extend(end.to_le_bytes());
            pieces.push(path);
            // What is not sent starts where nothing is, so the device leaves it open.
            let start = if is_for_processor(question) { u32::MAX } else { question.start.0 };
            starts.extend(start.to_le_bytes());
            flags |= if start == 0 { 0 } else { FLAG_STARTS };
        }
        if flags & FLAG_STARTS == 0 {
            starts.truncate(4);
        }
        let mut numbers = vec![questions.len() as u32, flags, 0, 0];
        numbers.extend(SECRET);
        Ok(Asked([
            job.numbers(&numbers)?,
            job.send("paths of a part", &[&bounds])?,
            job.send("directories to start from", &[&starts])?,
            job.send("bytes of a part", &pieces)?,
        ]))
    }

    fn look_up(&self, job: &mut Job, resident: &Resident, answers: &Part, count: usize) -> Result<(), GpuError> {
        let held = &resident.0;
        let [numbers, bounds, starts, paths] = &self.0;
        let kernel = Kernel::Resolve(held.tree.division);
        job.run(kernel, &[&held.tree.group], &[numbers, bounds, starts, paths, answers], count as u64)
    }
}

fn is_for_processor(question: &Question<'_>) -> bool {
    question.path.len() > PATH_SENT_MAX_BYTES
}

/// Parts of so many paths at most, and of no more bytes than go at once.
fn divide<'q>(questions: &'q [Question<'q>], paths_max: usize) -> Arc<[&'q [Question<'q>]]> {
    let mut parts = Vec::new();
    let mut first = 0;
    let mut len = 0u64;
    for (at, question) in questions.iter().enumerate() {
        let own = if is_for_processor(question) { 0 } else { question.path.len() as u64 };
        if at - first == paths_max || len + own > PART_LEN_BYTES {
            parts.push(&questions[first..at]);
            (first, len) = (at, 0);
        }
        len += own;
    }
    if first < questions.len() {
        parts.push(&questions[first..]);
    }
    parts.into()
}

/// What three words of the kernel say.
fn answer(words: &[u32]) -> Option<Found> {
    let (node, at) = (NodeId(words[1]), words[2] as usize);
    let why = match words[0] {
        0 => return Some(Ok(node)),
        1 => MissKind::NotFound,
        2 => MissKind::NotDirectory,
        3 => MissKind::Link,
        _ => return None,
    };
    Some(Err(Miss { reached: node, at, why }))
}

/// Has the processor answer what is open.
fn complete<T>(
    resident: &Resident,
    questions: &[Question<'_>],
    answers: Vec<Option<T>>,
    ask: fn(&Resolver<'_>, &Question<'_>) -> adit_core::error::Result<T>,
) -> Result<Vec<T>, GpuError> {
    if answers.len() != questions.len() {
        let (needs, limit) = (questions.len() as u64, answers.len() as u64);
        return Err(GpuError::Unfit { what: "answers that came back", needs, limit });
    }
    let mut resolver = None;
    let mut all = Vec::with_capacity(answers.len());
    for (answer, question) in answers.into_iter().zip(questions) {
        all.push(match answer {
            Some(answer) => answer,
            None => {
                let resolver = match &mut resolver {
                    Some(resolver) => resolver,
                    none => none.insert(Resolver::new(&resident.0.segment)?),
                };
                ask(resolver, question)?
            }
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many paths are in each part.
    fn parts(questions: &[Question<'_>], paths_max: usize) -> Vec<usize> {
        divide(questions, paths_max).iter().map(|part| part.len()).collect()
    }

    #[test]
    fn a_batch_is_divided_at_its_paths_and_at_its_bytes() {
        let long = vec![b'a'; PATH_SENT_MAX_BYTES + 1];
        let longest = Question::from(&long[1..]);
        let fit = (PART_LEN_BYTES / PATH_SENT_MAX_BYTES as u64) as usize;
        assert!(parts(&[], 10).is_empty());
        assert_eq!(parts(&[Question::from(&b"a"[..]); 25], 10), [10, 10, 5]);
        // As many bytes as go at once, and one byte more.
        let mut questions = vec![longest; fit];
        assert_eq!(parts(&questions, usize::MAX), [fit]);
        questions.push(Question::from(&b"a"[..]));
        assert_eq!(parts(&questions, usize::MAX), [fit, 1]);
        questions.extend(vec![longest; fit]);
        assert_eq!(parts(&questions, usize::MAX), [fit, fit, 1]);
        // The bytes of what the processor answers go nowhere, and an empty path has none.
        let mut questions = vec![Question::from(&long[..]); 3 * fit];
        questions.extend(vec![Question::from(&b""[..]); 100]);
        assert_eq!(parts(&questions, usize::MAX), [3 * fit + 100]);
        // Nothing is left out, and all of it stays in its order.
        let paths = [&b"a"[..], &long[1..], &long, b""].map(Question::from);
        for paths_max in 1..5 {
            let all: Vec<usize> =
                divide(&paths, paths_max).concat().iter().map(|question| question.path.len()).collect();
            assert_eq!(all, [1, PATH_SENT_MAX_BYTES, PATH_SENT_MAX_BYTES + 1, 0]);
        }
    }
}
