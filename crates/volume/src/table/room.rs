//! Space: what the volume has left, what its host has left, and what the host is made to keep in advance.
//!
//! A host without space refuses what adds something. What takes away needs a record of the log, and later a checkpoint: *ballast*
//! is kept for these, in segments that wait to be used for the log. A checkpoint that finds no space gives the host the ballast,
//! and all that is free, and tries once more.
//!
//! What was removed leaves room *inside* of the key-value store, which is for new metadata, and for everything once the store was
//! packed: that is done in the background where it takes no time to speak of, and else for who finds no room.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adit_core::{ErrorKind, FsError, Result};
use parking_lot::MutexGuard;

use super::base::Shared;
use super::log::{Log, Segment};
use super::recovery::LogPart;
use super::{BLOCK_LEN_BYTES, Batch};
use crate::kv::Kv;

/// What the host is made to keep at least for deletes, in bytes, while the volume is open.
const BALLAST_MIN_BYTES: u64 = 128 << 10;

/// What it is made to keep for records of deletes after the volume was closed, in bytes.
const KEPT_CLOSED_BYTES: usize = 64 << 10;

/// What it is made to keep at most for pages that a checkpoint copies, in bytes.
const COPIED_MAX_BYTES: u64 = 32 << 20;

/// Runs of segments of the key-value store that are kept back for deletes, gc and the like.
const KV_RUNS_KEPT_BACK: u64 = 256;

/// Of the store's space, the part that is to be without need before it is packed for who finds no room.
const SLACK_PART_WANTED: u64 = 32;

/// As [`SLACK_PART_WANTED`], in the background.
const SLACK_PART_UNASKED: u64 = 4;

/// Least space of the store that is packed for, in segments.
const SLACK_MIN_SEGMENTS: u64 = 4;

/// What the store may hold at most, in bytes, to be packed in the background: others wait meanwhile.
const PACKED_UNASKED_MAX_BYTES: u64 = 64 << 20;

/// Keys that are removed in memory before a checkpoint is made for them, with the next sync.
const REMOVED_KEYS_MANY: usize = 1 << 10;

/// How long what found the host full is not tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// How much of the ballast a batch may use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    None,
    /// A little, so that most stays for what gives space back.
    Part,
    All,
}

impl Share {
    pub(super) fn of(batch: &Batch) -> Share {
        match (batch.uses_reserve, batch.takes_away) {
            (true, _) => Share::All,
            (false, true) => Share::Part,
            (false, false) => Share::None,
        }
    }

    /// How far the log and memory may grow where checkpoints find no space, in per cent of what a checkpoint is made at.
    pub(super) fn percent_max(self) -> u64 {
        match self {
            Share::None => 100,
            Share::Part => 150,
            Share::All => 200,
        }
    }
}

/// When the host was found full.
#[derive(Default)]
pub(super) struct FoundFull {
    /// What adds something was refused then, and nothing was freed since.
    refused: Option<Instant>,
    /// Deletes make no checkpoint before.
    rests_until: Option<Instant>,
}

/// Why a volume has no space of its own: the cause of a `NoSpace` in which its host has no part.
#[derive(Debug)]
pub struct CapacityUsed(String);

impl CapacityUsed {
    /// With what to say of it.
    pub fn new(why: impl Into<String>) -> CapacityUsed {
        CapacityUsed(why.into())
    }
}

impl fmt::Display for CapacityUsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CapacityUsed {}

/// What it says where nothing more is known.
pub(super) const CAPACITY_USED: &str = "the capacity is used up";

pub(super) fn is_no_space<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(|e| e.kind().is_refusal())
}

impl Shared {
    /// Segments that what is in memory may need in the store, roughly.
    fn pending_segments(&self) -> u32 {
        let tables = self.tables.read();
        let bytes = tables.active.bytes() + tables.frozen.as_ref().map_or(0, |frozen| frozen.bytes());
        (2 * bytes as u64 / u64::from(self.container.segment_len())).min(u32::MAX.into()) as u32
    }

    /// What there is too little of for more than deletes and the like; if `takes_away`, for more than these may use that add
    /// something.
    ///
    /// Of what is kept back, content of files leaves all. A fourth is for metadata: where content took the rest, and was removed
    /// here and there, no segment may be free. Another one is for what takes away, and for metadata that goes where some was
    /// removed.
    fn shortage(&self, takes_away: bool) -> Option<&'static str> {
        let pending = self.pending_segments();
        // A commit that cannot say where its segments are would be none. Each may be a run, with a hole before it.
        let runs_kept = KV_RUNS_KEPT_BACK / if takes_away { 2 } else { 1 };
        let runs = self.container.kv_runs() as u64 + 2 * u64::from(pending) + runs_kept;
        if runs > self.kv_runs_max {
            return Some("the metadata lies in too many pieces; `adit volume gc` packs it");
        }
        let slack = self.kv.slack() / u64::from(self.container.segment_len());
        let space = self.container.space();
        let kept_back = space.geometry().kept_back;
        let least = kept_back.div_ceil(2);
        let inside = u32::try_from(slack).unwrap_or(u32::MAX);
        let kept = if takes_away { least } else { (kept_back - kept_back / 4).saturating_sub(inside).max(least) };
        (space.available() < kept.saturating_add(pending)).then_some(CAPACITY_USED)
    }

    /// `NoSpace` if only what is kept back is left.
    pub(super) fn check_room(&self, batch: &Batch) -> Result<()> {
        let shortage = || self.shortage(batch.takes_away);
        if batch.uses_reserve || shortage().is_none() {
            return Ok(());
        }
        self.find_room(|| shortage().is_none().then_some(()))?;
        shortage().map_or(Ok(()), |why| Err(self.no_space("apply", why)))
    }

    /// What `attempt` finds, which found no room: after a checkpoint, and then after the store was packed.
    pub(super) fn find_room<T>(&self, attempt: impl Fn() -> Option<T>) -> Result<Option<T>> {
        self.checkpoint()?;
        self.container.sync_up_to(self.container.appended())?;
        if let Some(found) = attempt() {
            return Ok(Some(found));
        }
        if self.kv.was_packed() && !self.has_slack(SLACK_PART_WANTED) {
            return Ok(None);
        }
        self.is_over(self.pack_patiently());
        Ok(attempt())
    }

    /// Whether packing is not to be tried again. A failure takes nothing away: what was there is there.
    fn is_over(&self, packed: Result<bool>) -> bool {
        packed.unwrap_or_else(|e| {
            tracing::warn!(file = self.container.name(), "what was removed leaves room that is not given back: {e}");
            true
        })
    }

    /// Whether so much of the store's space is there without need.
    fn has_slack(&self, part: u64) -> bool {
        let segment_len = u64::from(self.container.segment_len());
        let stored = u64::from(self.container.space().fixed()) * segment_len;
        self.kv.slack() >= (stored / part).max(SLACK_MIN_SEGMENTS * segment_len)
    }

    /// Bytes that packing the store would give back, if there are enough for that to be done for who needs them.
    pub(super) fn slack(&self) -> u64 {
        if self.has_slack(SLACK_PART_WANTED) { self.kv.slack() } else { 0 }
    }

    /// Whether so much was removed since the last checkpoint that room inside of the store is worth one: where there is little of
    /// it, anything.
    pub(super) fn has_removed_much(&self) -> bool {
        let removed = self.tables.read().active.removed();
        let space = self.container.space();
        let is_short = space.available() < 2 * space.geometry().kept_back;
        removed >= if is_short { 1 } else { REMOVED_KEYS_MANY }
    }

    /// Packs the store where most of it is there without need, so that this is soon done.
    pub(super) fn pack_slack(&self) {
        let stored = u64::from(self.container.space().fixed()) * u64::from(self.container.segment_len());
        let is_short_work = stored.saturating_sub(self.kv.slack()) <= PACKED_UNASKED_MAX_BYTES;
        let may = !self.host_is_full() && !self.container.has_failed();
        if may && is_short_work && self.has_slack(SLACK_PART_UNASKED) && !self.is_over(self.pack()) {
            // Soon again.
            self.note_unsynced();
        }
    }

    /// The volume has no space of its own, whatever its host has.
    pub(super) fn no_space(&self, op: &'static str, why: &'static str) -> FsError {
        FsError::new(ErrorKind::NoSpace).on(op, self.container.name()).because(CapacityUsed::new(why))
    }

    /// Makes sure of space on the host for a record, and of the ballast, which it may lack, and the record may use, by its `share`:
    /// if there is none, after a checkpoint, and then with what is free given back.
    pub(super) fn prepare<'a>(
        &'a self,
        mut log: MutexGuard<'a, Log>,
        record_len: usize,
        share: Share,
    ) -> Result<MutexGuard<'a, Log>> {
        const ATTEMPTS_MAX: usize = 3;
        let mut borrows = None;
        for attempt in 1..=ATTEMPTS_MAX {
            let kept = log.keep_ballast(&self.container, self.ballast());
            let is_refused = match &kept {
                Err(e) if !e.kind().is_refusal() => true,
                Err(_) => match share {
                    Share::None => true,
                    Share::Part => !*borrows.get_or_insert_with(|| log.borrow(record_len)),
                    Share::All => false,
                },
                Ok(()) => false,
            };
            let result = match kept {
                Err(e) if is_refused => Err(e),
                // What was removed so far may give room for a checkpoint, and that for the record.
                _ if share != Share::None && (attempt > 1 || self.host_is_full()) => {
                    log.prepare_with_ballast(&self.container, record_len)
                }
                _ => log.prepare(&self.container, record_len),
            };
            if !is_no_space(&result) {
                return result.map(|()| log);
            }
            if attempt == ATTEMPTS_MAX {
                if share != Share::None && !is_refused && log.fits(&self.container, record_len) {
                    // Some hosts want space twice for what has some already: then the write finds it.
                    return Ok(log);
                }
                self.found_full.lock().refused = Some(Instant::now());
                return result.map(|()| log);
            }
            if share != Share::All && self.refused_lately() {
                return result.map(|()| log);
            }
            drop(log);
            let roomier = match attempt {
                1 => self.checkpoint(),
                _ if share != Share::None => self.make_room(),
                _ => self.give_free_blocks(),
            };
            if share == Share::None || !is_no_space(&roomier) {
                roomier?;
            }
            log = self.writer.lock();
        }
        unreachable!("the last attempt returns")
    }

    /// How much the host is to keep for checkpoints and deletes, in bytes: for pages of the store about twice what is in memory, as
    /// in `pending_segments`, and copies of those that it changes; and the beginning of a segment of the log. It lies in what the
    /// volume keeps back.
    pub(super) fn ballast(&self) -> u64 {
        let tables = self.tables.read();
        let all = [Some(&tables.active), tables.frozen.as_deref()];
        let (bytes, keys) = all
            .into_iter()
            .flatten()
            .fold((0, 0), |(bytes, keys), table| (bytes + table.bytes() as u64, keys + table.len() as u64));
        drop(tables);
        let space = self.container.space();
        let [stored, most] = [space.fixed(), space.geometry().kept_back]
            .map(|segments| u64::from(segments) * u64::from(self.container.segment_len()));
        let copied = (keys * BLOCK_LEN_BYTES as u64).min(stored).min(COPIED_MAX_BYTES);
        (2 * bytes + copied).min(most) + BALLAST_MIN_BYTES
    }

    /// Whether the log or memory holds so many per cent of what a checkpoint is made at.
    pub(super) fn is_full(&self, log: &Log, percent: u64) -> bool {
        let is_reached = |bytes: u64, most: u64| bytes >= most.saturating_mul(percent) / 100;
        is_reached(log.bytes(), self.log_bytes_max)
            || is_reached(self.tables.read().active.bytes() as u64, self.memory_bytes_max as u64)
    }

    /// A last checkpoint. Without space for it, the log is durable.
    pub(super) fn end(&self) -> Result<()> {
        match self.checkpoint() {
            Ok(()) => {
                self.pack_slack();
                self.shrink_log();
                Ok(())
            }
            Err(e) if e.kind().is_refusal() => self.container.sync(),
            result => result,
        }
    }

    /// Gives back what the log holds in advance. Syncs that follow write more of the host's metadata until there is some again.
    pub(super) fn shrink_log(&self) {
        self.shrink_log_to(KEPT_CLOSED_BYTES);
    }

    /// As [`Shared::shrink_log`], with space for so many bytes of records left, if the host has it.
    fn shrink_log_to(&self, kept_bytes: usize) {
        // Held, so that nobody appends to what is punched.
        let mut log = self.writer.lock();
        self.drop_segments(log.drop_spares());
        log.trim(&self.container, kept_bytes);
    }

    pub(super) fn drop_segments(&self, segments: Vec<Segment>) {
        for segment in segments {
            self.container.punch_segment(segment.number);
            self.container.space().unbind(segment.number, false);
        }
    }

    /// Gives a host that is full what an opening finds free. `old_log` is durable, or becomes so.
    pub(super) fn give_what_is_free(&self, old_log: &[LogPart]) -> Result<()> {
        if let Some(last) = old_log.last() {
            self.container.punch_tail(last.segment, last.len.next_multiple_of(BLOCK_LEN_BYTES) as u64);
        }
        let space = self.container.space();
        // Held, so that nobody takes what is punched.
        space.free_segments().into_iter().for_each(|segment| self.container.punch_segment(segment));
        drop(space);
        self.give_free_blocks()
    }

    /// Gives the host the space of all free blocks, also of those that were freed since the last checkpoint: once that is
    /// durable, no opening looks at them again.
    pub(super) fn give_free_blocks(&self) -> Result<()> {
        self.container.sync_up_to(self.container.appended())?;
        let durable = self.container.durable();
        let mut space = self.container.space();
        space.settle(durable);
        space.free_runs().into_iter().for_each(|run| self.container.punch_blocks(run));
        space.note_given();
        Ok(())
    }

    /// Gives a host that is full what is kept in advance, and what is free.
    pub(super) fn make_room(&self) -> Result<()> {
        self.shrink_log_to(0);
        self.give_free_blocks()
    }

    /// Whether the last checkpoint found no space on the host.
    pub(super) fn host_is_full(&self) -> bool {
        self.host_full.load(Ordering::Acquire)
    }

    /// As [`Shared::checkpoint`], if the last one found no space on the host: but not at once again, unless something was freed.
    pub(super) fn retry_checkpoint(&self) -> Result<()> {
        if !self.host_is_full() {
            return Ok(());
        }
        if self.refused_lately() { Err(self.container.refused("apply")) } else { self.checkpoint() }
    }

    /// Whether the host had no space for what adds something, a moment ago, and nothing was freed since.
    fn refused_lately(&self) -> bool {
        self.found_full.lock().refused.is_some_and(|refused| refused.elapsed() < PAUSE)
    }

    /// Whether a checkpoint found no space a moment ago. What deletes give back is for the next one, a little later: else each of
    /// them would wait for one.
    pub(super) fn rests(&self) -> bool {
        self.found_full.lock().rests_until.is_some_and(|until| Instant::now() < until)
    }

    /// A checkpoint that began at `start` ended, and found no space if `is_full`.
    pub(super) fn note_checkpoint(&self, start: Instant, is_full: bool) {
        self.host_full.store(is_full, Ordering::Release);
        let now = Instant::now();
        // A slow one rests longer, so that most of the time is for what waits.
        let rests_until = now + PAUSE.max(4 * (now - start));
        *self.found_full.lock() =
            FoundFull { refused: is_full.then_some(now), rests_until: is_full.then_some(rests_until) };
    }

    /// Something was freed: what adds may find space now.
    pub(super) fn note_freed(&self) {
        self.freed.store(true, Ordering::Release);
        self.found_full.lock().refused = None;
    }
}
