//! What the records of all segments tell together.
//!
//! Segments of one slot tell one story, one after the other. Slots tell of mounts that were there at the same time: what
//! one says of all that came before it (that it is durable, that it is cut) holds for its own slot only, and which of two
//! mounts wrote a chunk last is told by the versions that they replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use adit_core::media::HostFile;
use adit_core::types::Access;
use adit_core::{ErrorKind, FsError, Result};
use aws_lc_rs::hmac;

use super::super::record::{self, Data, FRAME_LEN_BYTES, Record, SegmentId, Step};
use super::super::{VERSION, VaultId, session_nonce};
use super::Leftover;
use crate::format::content::CHUNK_CLEAR_BYTES;

/// What the ciphertext of a full chunk has at least.
const FULL_CHUNK_LEN_BYTES: u32 = CHUNK_CLEAR_BYTES + 28;
/// Most header nonces that a damaged segment can make us compute.
const NONCES_MAX: u64 = 1 << 22;

/// What became of a version of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is to be in the vault: index of its segment, and where in that it lies.
    Recorded(usize, Data),
    /// It was in the vault, durably.
    Settled,
    /// Its operation failed.
    Cancelled,
}

/// A version of a chunk that a mount wrote.
struct Version {
    nonce: Vec<u8>,
    /// Nonce of the version that it replaced.
    old: Vec<u8>,
    fate: Fate,
}

impl Version {
    fn is_recorded(&self) -> bool {
        matches!(self.fate, Fate::Recorded(..))
    }
}

/// The newest version of a chunk that one mount wrote.
pub struct Tip {
    pub nonce: Vec<u8>,
    /// Index of its segment, and where in that it lies.
    pub at: (usize, Data),
    /// Nonce of the version that it was written over.
    old: Vec<u8>,
    /// Nonces of all that it replaces.
    before: Vec<Vec<u8>>,
    /// Another mount cut the file to below it, before it or after.
    pub cut_elsewhere: bool,
}

impl Tip {
    /// Whether the version with this nonce is to give way to it.
    pub fn replaces(&self, nonce: &[u8]) -> bool {
        self.before.iter().any(|before| before == nonce)
    }

    /// Whether `found` is what it was written over, but for the first few bytes, which are its own: its nonce up to some
    /// byte, and from there on the old one.
    pub fn has_begun(&self, found: &[u8]) -> bool {
        let (new, old) = (&self.nonce, &self.old);
        let Some(found) = found.get(..new.len()).filter(|_| old.len() == new.len()) else { return false };
        // Where several bytes can be the border, because the two are alike there, this is the last of them.
        let own = found.iter().zip(new).take_while(|(a, b)| a == b).count();
        found[own..] == old[own..]
    }
}

/// What all slots tell of one chunk.
pub struct ChunkState {
    /// One for each mount that wrote the chunk last; several only if they did at the same time. Never empty.
    pub tips: Vec<Tip>,
    /// Nonces of versions that were durable and that no later one of their mount replaced.
    pub settled: Vec<Vec<u8>>,
}

impl ChunkState {
    /// Puts together what the mounts wrote of a chunk, each of them in the order of its writes. Among mounts there is no
    /// order but that a version names the one that it replaced: one that another mount replaced is no longer of use.
    /// `cut_beside` tells of a slot whether another one cut the chunk away.
    fn merge(slots: &[Vec<Version>], cut_beside: impl Fn(usize) -> bool) -> Option<ChunkState> {
        let (mut tips, mut settled) = (Vec::new(), Vec::new());
        for (slot, versions) in slots.iter().enumerate() {
            let Some(last) = versions.iter().rfind(|v| v.fate != Fate::Cancelled) else { continue };
            let Fate::Recorded(segment, data) = last.fate else {
                settled.push(last.nonce.clone());
                continue;
            };
            let mut others = slots.iter().enumerate().filter(|&(n, _)| n != slot).flat_map(|(_, versions)| versions);
            if others.any(|v| v.fate != Fate::Cancelled && v.old == last.nonce) {
                continue;
            }
            let unsettled = versions.iter().filter(|v| v.fate != Fate::Settled);
            let before = unsettled.flat_map(|v| [v.old.clone(), v.nonce.clone()]).collect();
            let cut_elsewhere = cut_beside(slot);
            let (nonce, old) = (last.nonce.clone(), last.old.clone());
            tips.push(Tip { nonce, at: (segment, data), old, before, cut_elsewhere });
        }
        (!tips.is_empty()).then_some(ChunkState { tips, settled })
    }

    /// The version to hand out where none has a place.
    pub fn newest(&self) -> &Tip {
        self.tips.last().expect("never empty")
    }
}

/// What one slot tells of a file.
struct SlotFile {
    paths: Vec<String>,
    header: Vec<u8>,
    floor: u64,
    chunks: BTreeMap<u64, Vec<Version>>,
    unlinked: bool,
    /// It was durable once, its length included.
    settled: bool,
    /// Number of the first chunk that was ever cut away whole.
    cut: Option<u64>,
}

/// What all slots tell of a file.
pub struct FileState {
    /// Those of one slot oldest first.
    pub paths: Vec<String>,
    pub header: Vec<u8>,
    pub floor: u64,
    pub chunks: BTreeMap<u64, ChunkState>,
    pub unlinked: bool,
}

impl FileState {
    /// Puts together what the slots tell of one file.
    fn merge(mut slots: Vec<SlotFile>) -> FileState {
        let mut state = FileState {
            paths: Vec::new(),
            header: Vec::new(),
            floor: u64::MAX,
            chunks: BTreeMap::new(),
            unlinked: false,
        };
        for file in &mut slots {
            state.paths.append(&mut file.paths);
            state.header.clone_from(&file.header);
            state.floor = state.floor.min(file.floor);
            state.unlinked |= file.unlinked;
        }
        let numbers: BTreeSet<u64> = slots.iter().flat_map(|file| file.chunks.keys().copied()).collect();
        let cuts: Vec<_> = slots.iter().map(|file| file.cut).collect();
        for chunk in numbers {
            let versions: Vec<_> =
                slots.iter_mut().map(|file| file.chunks.remove(&chunk).unwrap_or_default()).collect();
            let is_cut = |cut: &Option<u64>| cut.is_some_and(|cut| cut <= chunk);
            let cut_beside = |slot| cuts.iter().enumerate().any(|(n, cut)| n != slot && is_cut(cut));
            if let Some(merged) = ChunkState::merge(&versions, cut_beside) {
                state.chunks.insert(chunk, merged);
            }
        }
        state
    }
}

#[derive(Default)]
pub struct Story {
    /// By header nonce. Empty before [`Story::told`].
    pub files: HashMap<Vec<u8>, FileState>,
    pub intents: Vec<String>,
    pub plans: BTreeMap<(usize, u64), (Vec<Step>, u32)>,
    /// Header nonces that may be in use, and the slot and segment that gave them out.
    pub session: HashMap<Vec<u8>, (usize, usize)>,
    pub seeds: Vec<hmac::Key>,
    /// The files of each slot, by header nonce.
    slots: Vec<HashMap<Vec<u8>, SlotFile>>,
    /// Incarnation of the vault in each epoch, and when that began.
    epochs: Vec<(Option<[u8; 16]>, i64)>,
    segments: Vec<Arc<dyn HostFile>>,
    /// Where each segment's last good frame ends.
    ends: Vec<u64>,
    /// Of each segment, if it tells anything.
    ids: Vec<Option<SegmentId>>,
    /// Those that an earlier recovery was through with, of which nothing is taken in.
    done: HashSet<SegmentId>,
    /// Those that records of any segment say are done.
    recovered: HashSet<SegmentId>,
}

/// A segment that is being read.
pub struct Segment {
    slot: usize,
    index: usize,
    id: VaultId,
    nonce_len: usize,
    seed: Option<hmac::Key>,
    /// An earlier recovery was through with it.
    done: bool,
    /// Header nonces of the files by their numbers.
    numbers: HashMap<u32, Vec<u8>>,
}

impl Segment {
    pub fn new((slot, index): (usize, usize), id: VaultId, nonce_len: usize) -> Self {
        Segment { slot, index, id, nonce_len, seed: None, done: false, numbers: HashMap::new() }
    }
}

fn segment_id(seed: &hmac::Key) -> SegmentId {
    let mut id = SegmentId::default();
    id.copy_from_slice(&hmac::sign(seed, b"recovered").as_ref()[..16]);
    id
}

impl Story {
    /// Reads all segments, and says how many of them tell anything. One that an earlier recovery was through with does not.
    pub fn of(leftovers: &[Leftover], id: VaultId, nonce_len: usize) -> Result<(Story, usize)> {
        let mut story = Story::default();
        loop {
            let mut known = 0;
            for left in leftovers {
                known += usize::from(story.read(left, id, nonce_len)?);
            }
            if story.recovered == story.done {
                story.told();
                return Ok((story, known));
            }
            // What is done may be told by a later one. That is so only where recovery was cut off while it removed them.
            story = Story { done: story.recovered, ..Story::default() };
        }
    }

    /// Reads one segment. False if it tells nothing: not even its first record became durable, or it is done.
    fn read(&mut self, left: &Leftover, id: VaultId, nonce_len: usize) -> Result<bool> {
        let broken = |e: std::io::Error| FsError::from(e).on("read", left.name.display());
        let file: Arc<dyn HostFile> = Arc::from(left.state.open(&left.name, Access::Write).map_err(broken)?);
        let mut segment = Segment::new((left.slot, self.segments.len()), id, nonce_len);
        self.segments.push(file.clone());
        let (mut at, mut buf) = (0u64, Vec::new());
        loop {
            buf.resize(FRAME_LEN_BYTES, 0);
            if file.read_at(at, &mut buf).map_err(broken)? < FRAME_LEN_BYTES {
                break;
            }
            let len = u32::from_le_bytes([buf[0], buf[1], buf[2], buf[3]]) as usize;
            buf.resize(FRAME_LEN_BYTES + len.min(32 << 20), 0);
            let got = file.read_at(at, &mut buf).map_err(broken)?;
            let Some(payload) = record::frame_payload(&buf[..got], at) else { break };
            let payload_at = at + FRAME_LEN_BYTES as u64;
            let Some(record) = record::decode(payload, payload_at) else { break };
            if !self.take(&mut segment, record, &buf[..got], at) {
                return Err(FsError::new(ErrorKind::Corrupt).on("read", left.name.display()).because(
                    "this journal belongs to another vault or a newer version of adit; move it away if it is not needed",
                ));
            }
            at += (FRAME_LEN_BYTES + len) as u64;
        }
        self.ends.push(at);
        self.ids.push(segment.seed.as_ref().map(segment_id));
        let seed = segment.seed.filter(|_| !segment.done);
        let known = seed.is_some();
        self.seeds.extend(seed);
        Ok(known)
    }

    /// When the first of those epochs began (seconds since 1970) whose unsynced writes may be lost in part, now that the
    /// vault's incarnation is `now`. None: there is none, its processes were killed at most.
    pub fn lost_since(&self, now: Option<[u8; 16]>) -> Option<i64> {
        let lost = self.epochs.iter().filter(|(then, _)| then.is_none() || *then != now);
        lost.map(|&(_, began)| began).min()
    }

    /// Takes in one record, which lies in `frame` at `at`. False if the segment is none of this vault's.
    pub fn take(&mut self, segment: &mut Segment, record: Record, frame: &[u8], at: u64) -> bool {
        let index = segment.index;
        match record {
            Record::Begin { version, vault, seed, incarnation, began_secs } => {
                if !(1..=VERSION).contains(&version) || vault != segment.id {
                    return false;
                }
                let seed = hmac::Key::new(hmac::HMAC_SHA256, &seed);
                segment.done = self.done.contains(&segment_id(&seed));
                segment.seed = Some(seed);
                if !segment.done {
                    self.epochs.push((incarnation, began_secs));
                }
            }
            Record::Recovered { segments } => self.recovered.extend(segments),
            _ if segment.done => {}
            Record::Reserve { up_to } => {
                if let Some(seed) = &segment.seed {
                    let nonce = |n| (session_nonce(seed, n, segment.nonce_len), (segment.slot, index));
                    self.session.extend((0..up_to.min(NONCES_MAX)).map(nonce));
                }
            }
            Record::Plan { id, steps } => {
                self.plans.insert((index, id), (steps, 0));
            }
            Record::Progress { id, done } => {
                if let Some(plan) = self.plans.get_mut(&(index, id)) {
                    plan.1 = done;
                }
            }
            Record::Intent { dir } => self.intents.push(dir),
            Record::Gone { nonce } => {
                if let Some(state) = self.slots.get_mut(segment.slot).and_then(|files| files.get_mut(&nonce)) {
                    state.unlinked = true;
                }
            }
            other => self.file_record(other, segment, frame, at),
        }
        true
    }

    /// Notes in the segment, durably, that steps of a plan are made: should recovery be cut off, the next one goes on
    /// from there. A step can be told from its effect only as long as no later one is made.
    pub fn progress(&mut self, (segment, id): (usize, u64), done: u32) -> Result<()> {
        self.append(segment, &Record::Progress { id, done })
    }

    /// Notes, durably, that recovery is to search the content directory `dir`: what tells so now is about to change.
    pub fn intent(&mut self, dir: &str) -> Result<()> {
        if self.intents.iter().any(|known| known == dir) {
            return Ok(());
        }
        // Nothing is taken in of one that is done.
        let tells = |id: &Option<SegmentId>| id.is_some_and(|id| !self.done.contains(&id));
        let Some(segment) = self.ids.iter().rposition(tells) else { return Ok(()) };
        self.append(segment, &Record::Intent { dir: dir.to_owned() })?;
        self.intents.push(dir.to_owned());
        Ok(())
    }

    /// Notes, durably, that all that the segments tell is in the vault, durably, and returns the index of the one that says
    /// so, which is to be removed last. They cannot be removed in one step, and a part of them would tell another story: a
    /// version of a chunk that only a removed one explains would seem to be another client's. None if one alone tells
    /// anything: then the order of their removal does not matter.
    pub fn recovered(&mut self) -> Result<Option<usize>> {
        let segments: Vec<_> = self.ids.iter().flatten().copied().collect();
        let Some(last) = self.ids.iter().rposition(Option::is_some).filter(|_| segments.len() > 1) else {
            return Ok(None);
        };
        self.append(last, &Record::Recovered { segments })?;
        Ok(Some(last))
    }

    fn append(&mut self, segment: usize, record: &Record) -> Result<()> {
        let mut frame = record::Frame::default();
        frame.clear();
        frame.put(record);
        let (file, at) = (&self.segments[segment], self.ends[segment]);
        let bytes = frame.seal(at);
        file.write_at(at, bytes)
            .and_then(|()| file.sync(true))
            .map_err(|e| FsError::from(e).on("write", "the vault's journal"))?;
        self.ends[segment] += bytes.len() as u64;
        Ok(())
    }

    fn file_record(&mut self, record: Record, segment: &mut Segment, frame: &[u8], frame_at: u64) {
        let Segment { slot, index: segment, numbers, nonce_len, .. } = segment;
        let (slot, segment, nonce_len) = (*slot, *segment, *nonce_len);
        let number = match &record {
            Record::Declare { file, header, .. } => {
                let Some(nonce) = header.get(..nonce_len) else { return };
                numbers.insert(*file, nonce.to_vec());
                *file
            }
            Record::Path { file, .. }
            | Record::Unlinked { file }
            | Record::Floor { file, .. }
            | Record::Settled { file, .. }
            | Record::Cancel { file, .. }
            | Record::Run { file, .. } => *file,
            _ => return,
        };
        let Some(nonce) = numbers.get(&number) else { return };
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, HashMap::new);
        }
        let files = &mut self.slots[slot];
        if let Record::Declare { floor, path, header, .. } = record {
            let state = files.entry(nonce.clone()).or_insert_with(|| SlotFile {
                paths: Vec::new(),
                header,
                // Made in an earlier epoch that is not retired: nothing of it is sure to be durable.
                floor: if self.session.get(nonce).is_some_and(|&made| made != (slot, segment)) { 0 } else { floor },
                chunks: BTreeMap::new(),
                unlinked: false,
                settled: false,
                cut: None,
            });
            state.floor = state.floor.min(floor);
            state.unlinked = false;
            state.paths.push(path);
            return;
        }
        let Some(state) = files.get_mut(nonce) else { return };
        match record {
            Record::Path { path, .. } => state.paths.push(path),
            Record::Unlinked { .. } => state.unlinked = true,
            Record::Floor { floor, .. } => {
                state.floor = state.floor.min(floor);
                let kept = floor.div_ceil(u64::from(CHUNK_CLEAR_BYTES));
                state.cut = Some(state.cut.map_or(kept, |cut| cut.min(kept)));
                state.chunks.retain(|&chunk, _| chunk < kept);
            }
            Record::Settled { len, .. } => {
                (state.floor, state.settled) = (len, true);
                for version in state.chunks.values_mut().flatten().filter(|v| v.is_recorded()) {
                    version.fate = Fate::Settled;
                }
            }
            Record::Cancel { first, count, .. } => {
                let cancelled = first..first.saturating_add(count.into());
                for (_, versions) in state.chunks.range_mut(cancelled) {
                    if let Some(version) = versions.iter_mut().rfind(|v| v.is_recorded()) {
                        version.fate = Fate::Cancelled;
                    }
                }
            }
            Record::Run { first, chunk_lens, old_nonces, data, .. } => {
                // A chunk that is not full is the file's last: what was behind it is gone, whoever cut it away.
                if let Some(&len) = chunk_lens.last()
                    && len < FULL_CHUNK_LEN_BYTES
                    && let Some(last) = first.checked_add(chunk_lens.len() as u64 - 1)
                {
                    state.chunks.retain(|&chunk, _| chunk <= last);
                }
                let mut offset = data.offset;
                for (n, (len, old)) in chunk_lens.into_iter().zip(old_nonces).enumerate() {
                    let in_frame = (offset - frame_at) as usize;
                    let Some(new) = frame.get(in_frame..in_frame + nonce_len) else { return };
                    let Some(number) = first.checked_add(n as u64) else { return };
                    let fate = Fate::Recorded(segment, Data { offset, len });
                    state.chunks.entry(number).or_default().push(Version { nonce: new.to_vec(), old, fate });
                    offset += u64::from(len);
                }
            }
            _ => {}
        }
    }

    /// Puts together what the slots tell of each file, once all segments are read.
    pub fn told(&mut self) {
        let mut files: HashMap<_, Vec<SlotFile>> = HashMap::new();
        for (slot, told) in std::mem::take(&mut self.slots).into_iter().enumerate() {
            for (nonce, mut file) in told {
                // Made by another mount whose epoch is not retired.
                if !file.settled && self.session.get(&nonce).is_some_and(|made| made.0 != slot) {
                    file.floor = 0;
                }
                files.entry(nonce).or_default().push(file);
            }
        }
        self.files = files.into_iter().map(|(nonce, slots)| (nonce, FileState::merge(slots))).collect();
    }

    pub fn data(&self, (segment, data): (usize, Data)) -> Result<Vec<u8>> {
        let mut bytes = vec![0; data.len as usize];
        let got = self.segments[segment].read_at(data.offset, &mut bytes)?;
        if got < bytes.len() {
            return Err(FsError::new(ErrorKind::Corrupt).on("read", "the vault's journal"));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip(nonce: &[u8], old: &[u8]) -> Tip {
        let at = (0, Data { offset: 0, len: 100 });
        Tip { nonce: nonce.to_vec(), at, old: old.to_vec(), before: Vec::new(), cut_elsewhere: true }
    }

    /// What a kill leaves of a chunk that was being rewritten, when it comes within the nonce.
    #[test]
    fn a_rewriting_has_begun_where_its_nonce_goes_over_into_the_old_one() {
        let (new, old) = ([1u8; 12], [2u8; 12]);
        let tip = tip(&new, &old);
        for own in 0..=new.len() {
            let found = [&new[..own], &old[own..], &[9; 50]].concat();
            assert!(tip.has_begun(&found), "{own} bytes of its own");
        }
        let refused: [(&str, Vec<u8>); 6] = [
            ("another's", vec![3; 62]),
            ("another's from some byte on", [&new[..5], &[3; 57][..]].concat()),
            ("another's at the end", [&new[..5], &old[5..11], &[3; 51]].concat()),
            ("the old one first", [&old[..5], &new[5..], &[9; 50]].concat()),
            ("shorter than a nonce", [&new[..5], &old[5..11]].concat()),
            ("nothing", Vec::new()),
        ];
        for (what, found) in refused {
            assert!(!tip.has_begun(&found), "{what}");
        }
    }

    #[test]
    fn a_rewriting_has_begun_where_the_nonces_are_alike_in_places() {
        let (new, old) = ([1, 1, 7, 1, 1, 7, 1, 1, 1, 1, 1, 7], [2, 2, 7, 2, 2, 7, 2, 2, 2, 2, 2, 7]);
        let tip = tip(&new, &old);
        for own in 0..=new.len() {
            assert!(tip.has_begun(&[&new[..own], &old[own..]].concat()), "{own} bytes of its own");
        }
        assert!(!tip.has_begun(&[&new[..2], &[8], &old[3..]].concat()));
    }

    /// A chunk that was not there before has no old nonce, and one of another length was not written by this format.
    #[test]
    fn nothing_has_begun_over_what_was_not_there() {
        let new = [1u8; 12];
        for old in [&[][..], &[2; 11], &[2; 16]] {
            assert!(!tip(&new, old).has_begun(&[&new[..], &[9; 50]].concat()), "{} bytes", old.len());
        }
    }
}
