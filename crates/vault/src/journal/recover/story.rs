//! What the records of all segments tell together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use adit_core::media::HostFile;
use adit_core::types::Access;
use adit_core::{ErrorKind, FsError, Result};
use aws_lc_rs::hmac;

use super::super::record::{self, Data, FRAME_LEN_BYTES, Record, Step};
use super::super::{VERSION, VaultId, session_nonce};
use super::Leftover;
use crate::format::content::CHUNK_CLEAR_BYTES;

/// Most header nonces that a damaged segment can make us compute.
const NONCES_MAX: u64 = 1 << 22;

pub struct ChunkState {
    /// Nonces of all versions that are ours.
    pub ours: Vec<Vec<u8>>,
    /// Where they lie, oldest first: index of the segment, and where in it. Never empty.
    pub versions: Vec<(usize, Data)>,
}

impl ChunkState {
    pub fn newest(&self) -> (usize, Data) {
        *self.versions.last().expect("a chunk without a version is removed")
    }
}

pub struct FileState {
    /// Oldest first.
    pub paths: Vec<String>,
    pub header: Vec<u8>,
    pub floor: u64,
    pub chunks: BTreeMap<u64, ChunkState>,
    pub unlinked: bool,
}

#[derive(Default)]
pub struct Story {
    pub files: HashMap<Vec<u8>, FileState>,
    pub intents: Vec<String>,
    pub plans: BTreeMap<(usize, u64), (Vec<Step>, u32)>,
    /// Header nonces that may be in use, and the segment that gave them out.
    pub session: HashMap<Vec<u8>, usize>,
    pub seeds: Vec<hmac::Key>,
    /// Incarnation of the vault in each epoch, and when that began.
    epochs: Vec<(Option<[u8; 16]>, i64)>,
    segments: Vec<Arc<dyn HostFile>>,
    /// Where each segment's last good frame ends.
    ends: Vec<u64>,
}

/// A segment that is being read.
pub struct Segment {
    index: usize,
    id: VaultId,
    nonce_len: usize,
    seed: Option<hmac::Key>,
    /// Header nonces of the files by their numbers.
    numbers: HashMap<u32, Vec<u8>>,
}

impl Segment {
    pub fn new(index: usize, id: VaultId, nonce_len: usize) -> Self {
        Segment { index, id, nonce_len, seed: None, numbers: HashMap::new() }
    }
}

impl Story {
    /// Reads one segment. False if it tells nothing: not even its first record became durable.
    pub fn read(&mut self, left: &Leftover, id: VaultId, nonce_len: usize) -> Result<bool> {
        let broken = |e: std::io::Error| FsError::from(e).on("read", left.name.display());
        let file: Arc<dyn HostFile> = Arc::from(left.state.open(&left.name, Access::Write).map_err(broken)?);
        let mut segment = Segment::new(self.segments.len(), id, nonce_len);
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
        let known = segment.seed.is_some();
        self.seeds.extend(segment.seed);
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
                self.epochs.push((incarnation, began_secs));
                segment.seed = Some(hmac::Key::new(hmac::HMAC_SHA256, &seed));
            }
            Record::Reserve { up_to } => {
                if let Some(seed) = &segment.seed {
                    let nonce = |n| (session_nonce(seed, n, segment.nonce_len), index);
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
                if let Some(state) = self.files.get_mut(&nonce) {
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
        let mut frame = record::Frame::default();
        frame.clear();
        frame.put(&Record::Progress { id, done });
        let (file, at) = (&self.segments[segment], self.ends[segment]);
        let bytes = frame.seal(at);
        file.write_at(at, bytes)
            .and_then(|()| file.sync(true))
            .map_err(|e| FsError::from(e).on("write", "the vault's journal"))?;
        self.ends[segment] += bytes.len() as u64;
        Ok(())
    }

    fn file_record(&mut self, record: Record, segment: &mut Segment, frame: &[u8], frame_at: u64) {
        let Segment { index: segment, numbers, nonce_len, .. } = segment;
        let (segment, nonce_len) = (*segment, *nonce_len);
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
        if let Record::Declare { floor, path, header, .. } = record {
            let state = self.files.entry(nonce.clone()).or_insert_with(|| FileState {
                paths: Vec::new(),
                header,
                // Made in an earlier epoch that is not retired: nothing of it is sure to be durable.
                floor: if self.session.get(nonce).is_some_and(|&made| made != segment) { 0 } else { floor },
                chunks: BTreeMap::new(),
                unlinked: false,
            });
            state.floor = state.floor.min(floor);
            state.unlinked = false;
            state.paths.push(path);
            return;
        }
        let Some(state) = self.files.get_mut(nonce) else { return };
        match record {
            Record::Path { path, .. } => state.paths.push(path),
            Record::Unlinked { .. } => state.unlinked = true,
            Record::Floor { floor, .. } => {
                state.floor = state.floor.min(floor);
                let kept = floor.div_ceil(u64::from(CHUNK_CLEAR_BYTES));
                state.chunks.retain(|&chunk, _| chunk < kept);
            }
            Record::Settled { len, .. } => {
                state.floor = len;
                state.chunks.clear();
            }
            Record::Cancel { first, count, .. } => {
                let cancelled = first..first.saturating_add(count.into());
                for (_, chunk) in state.chunks.range_mut(cancelled) {
                    chunk.versions.pop();
                }
                state.chunks.retain(|_, chunk| !chunk.versions.is_empty());
            }
            Record::Run { first, chunk_lens, old_nonces, data, .. } => {
                let mut offset = data.offset;
                for (n, (len, old)) in chunk_lens.into_iter().zip(old_nonces).enumerate() {
                    let in_frame = (offset - frame_at) as usize;
                    let Some(new) = frame.get(in_frame..in_frame + nonce_len) else { return };
                    let Some(number) = first.checked_add(n as u64) else { return };
                    let new_chunk = || ChunkState { ours: vec![old], versions: Vec::new() };
                    let chunk = state.chunks.entry(number).or_insert_with(new_chunk);
                    chunk.ours.push(new.to_vec());
                    chunk.versions.push((segment, Data { offset, len }));
                    offset += u64::from(len);
                }
            }
            _ => {}
        }
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
