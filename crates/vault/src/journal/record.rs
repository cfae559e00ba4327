//! The records of a journal segment and their framing. Bits: `docs/formats/vault-journal.md`.
//!
//! A segment is a header frame followed by frames. A frame is `len: u32 ‖ check: u64 ‖ payload`, little-endian, where
//! `check` is XXH3-64 of the payload seeded with the frame's own offset: a frame that was copied, torn or left over
//! from another place does not check. Reading stops at the first frame that does not.
//!
//! Nothing in a segment is cleartext: paths are ciphertext paths, contents are ciphertext chunks, headers are sealed.

use crate::format::content::CHUNK_CLEAR_BYTES;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes in front of a payload.
pub(super) const FRAME_LEN_BYTES: usize = 12;
/// Longest payload that is believed: a run of chunks is at most a few MiB.
const PAYLOAD_LEN_MAX_BYTES: usize = 16 << 20;
/// Chunks of the longest file that a host can have: offsets are signed numbers of 64 bits.
pub(super) const CHUNKS_MAX: u64 = i64::MAX as u64 / CHUNK_CLEAR_BYTES as u64;

/// One step of a plan: host operations that are repeated after a crash. Each can be run again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Rename `from` to `to`, replacing a file that is there.
    Rename { from: String, to: String },
    /// Create the folder.
    MakeDir { path: String },
    /// Create the file with this content.
    Write { path: String, bytes: Vec<u8> },
    /// Remove the file.
    RemoveFile { path: String },
    /// Remove the empty folder.
    RemoveDir { path: String },
    /// Give the file another content, in one step; `old` is what it held, for the way back.
    Rewrite { path: String, bytes: Vec<u8>, old: Vec<u8> },
}

impl Step {
    /// The step that takes this one back. None for the removal of a file, which is not.
    pub fn undo(&self) -> Option<Step> {
        Some(match self.clone() {
            Step::Rename { from, to } => Step::Rename { from: to, to: from },
            Step::MakeDir { path } => Step::RemoveDir { path },
            Step::Write { path, .. } => Step::RemoveFile { path },
            Step::Rewrite { path, bytes, old } => Step::Rewrite { path, bytes: old, old: bytes },
            Step::RemoveDir { path } => Step::MakeDir { path },
            Step::RemoveFile { .. } => return None,
        })
    }
}

/// What a segment tells. `file` numbers count from 1 within one segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Record {
    /// First record: format version, the vault's id, the seed of the header nonces of this epoch, and (since version 2)
    /// the vault's [`HostDir::incarnation`](adit_core::media::HostDir::incarnation) and when the epoch began.
    Begin { version: u32, vault: [u8; 16], seed: [u8; 32], incarnation: Option<[u8; 16]>, began_secs: i64 },
    /// Entries of this content directory may be half-made.
    Intent { dir: String },
    /// Header nonces up to this counter may be in use.
    Reserve { up_to: u64 },
    /// A file that is about to change: its place, header, and the cleartext length below which it is durable.
    Declare { file: u32, floor: u64, path: String, header: Vec<u8> },
    /// The file's new place.
    Path { file: u32, path: String },
    /// The file loses its name on purpose.
    Unlinked { file: u32 },
    /// The length below which it is durable sank: it is being cut.
    Floor { file: u32, floor: u64 },
    /// All that was recorded before is durable in the vault, `len` bytes of cleartext.
    Settled { file: u32, len: u64 },
    /// New ciphertext of the chunks `first..`, and for each the nonce of the chunk that it replaces.
    Run { file: u32, first: u64, chunk_lens: Vec<u32>, old_nonces: Vec<Vec<u8>>, data: Data },
    /// The newest run of these chunks was not made: its operation failed.
    Cancel { file: u32, first: u64, count: u32 },
    /// Steps to be made as a whole. One with the number of an earlier one takes its place.
    Plan { id: u64, steps: Vec<Step> },
    /// The file with this header nonce, of the epoch before, loses its name on purpose.
    Gone { nonce: Vec<u8> },
    /// The first `done` steps of the plan are made.
    Progress { id: u64, done: u32 },
    /// Recovery is through with these segments, this one among them: what they tell is durable in the vault.
    Recovered { segments: Vec<SegmentId> },
}

/// What tells a segment from any other, of whatever slot: the first half of HMAC-SHA256(its seed, `recovered`).
pub(super) type SegmentId = [u8; 16];

/// Where the ciphertext of a [`Record::Run`] lies in its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Data {
    pub offset: u64,
    pub len: u32,
}

const BEGIN: u8 = 1;
const INTENT: u8 = 2;
const RESERVE: u8 = 3;
const DECLARE: u8 = 4;
const PATH: u8 = 5;
const UNLINKED: u8 = 6;
const FLOOR: u8 = 7;
const SETTLED: u8 = 8;
const RUN: u8 = 9;
const PLAN: u8 = 10;
const PROGRESS: u8 = 11;
const CANCEL: u8 = 12;
const GONE: u8 = 13;
const RECOVERED: u8 = 14;

/// A frame under construction: room for the frame's head, then the payload.
#[derive(Default)]
pub(super) struct Frame(Vec<u8>);

impl Frame {
    /// Starts over with an empty payload.
    pub fn clear(&mut self) {
        self.0.clear();
        self.0.resize(FRAME_LEN_BYTES, 0);
    }

    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn bytes(&mut self, v: &[u8]) {
        self.u32(v.len() as u32); // no field comes near 4 GiB
        self.0.extend_from_slice(v);
    }

    /// Appends `record`'s payload. A run is framed by [`seal_run`].
    pub fn put(&mut self, record: &Record) {
        match record {
            Record::Begin { version, vault, seed, incarnation, began_secs } => {
                self.u8(BEGIN);
                self.u32(*version);
                self.0.extend_from_slice(vault);
                self.0.extend_from_slice(seed);
                if *version > 1 {
                    self.bytes(incarnation.as_ref().map_or(&[], |i| &i[..]));
                    self.u64(began_secs.cast_unsigned());
                }
            }
            Record::Intent { dir } => {
                self.u8(INTENT);
                self.bytes(dir.as_bytes());
            }
            Record::Reserve { up_to } => {
                self.u8(RESERVE);
                self.u64(*up_to);
            }
            Record::Declare { file, floor, path, header } => {
                self.u8(DECLARE);
                self.u32(*file);
                self.u64(*floor);
                self.bytes(path.as_bytes());
                self.bytes(header);
            }
            Record::Path { file, path } => {
                self.u8(PATH);
                self.u32(*file);
                self.bytes(path.as_bytes());
            }
            Record::Unlinked { file } => {
                self.u8(UNLINKED);
                self.u32(*file);
            }
            Record::Gone { nonce } => {
                self.u8(GONE);
                self.bytes(nonce);
            }
            Record::Floor { file, floor } => {
                self.u8(FLOOR);
                self.u32(*file);
                self.u64(*floor);
            }
            Record::Settled { file, len } => {
                self.u8(SETTLED);
                self.u32(*file);
                self.u64(*len);
            }
            Record::Cancel { file, first, count } => {
                self.u8(CANCEL);
                self.u32(*file);
                self.u64(*first);
                self.u32(*count);
            }
            Record::Run { .. } => unreachable!("runs are framed by seal_run"),
            Record::Plan { id, steps } => {
                self.u8(PLAN);
                self.u64(*id);
                self.u32(steps.len() as u32);
                steps.iter().for_each(|s| self.step(s));
            }
            Record::Progress { id, done } => {
                self.u8(PROGRESS);
                self.u64(*id);
                self.u32(*done);
            }
            Record::Recovered { segments } => {
                self.u8(RECOVERED);
                self.bytes(segments.as_flattened());
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Rename { from, to } => {
                self.u8(1);
                self.bytes(from.as_bytes());
                self.bytes(to.as_bytes());
            }
            Step::MakeDir { path } => {
                self.u8(2);
                self.bytes(path.as_bytes());
            }
            Step::Write { path, bytes } => {
                self.u8(3);
                self.bytes(path.as_bytes());
                self.bytes(bytes);
            }
            Step::RemoveFile { path } => {
                self.u8(4);
                self.bytes(path.as_bytes());
            }
            Step::RemoveDir { path } => {
                self.u8(5);
                self.bytes(path.as_bytes());
            }
            Step::Rewrite { path, bytes, old } => {
                self.u8(6);
                self.bytes(path.as_bytes());
                self.bytes(bytes);
                self.bytes(old);
            }
        }
    }

    /// Fills in the head for a frame that will lie at `offset`, and hands out the whole frame.
    pub fn seal(&mut self, offset: u64) -> &[u8] {
        seal(&mut self.0, offset)
    }
}

fn seal(frame: &mut [u8], offset: u64) -> &[u8] {
    let (head, payload) = frame.split_at_mut(FRAME_LEN_BYTES);
    head[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&xxh3_64_with_seed(payload, offset).to_le_bytes());
    frame
}

/// Room to leave in front of a run's ciphertext in a buffer given to [`put_run`].
pub(super) const RUN_HEADROOM_BYTES: usize = FRAME_LEN_BYTES + 1;

/// Turns the first `used` bytes of `buf` (headroom ‖ ciphertext of consecutive chunks) into the frame of a run, without
/// moving the ciphertext: the rest of the payload follows it, and ends with the length of that rest. Returns the
/// frame's length; `buf` grows if need be.
pub(super) fn put_run(buf: &mut Vec<u8>, used: usize, file: u32, first: u64, chunks: &[(u32, Vec<u8>)]) -> usize {
    buf[FRAME_LEN_BYTES] = RUN;
    let mut rest = Vec::with_capacity(20 + chunks.len() * 21);
    rest.extend_from_slice(&file.to_le_bytes());
    rest.extend_from_slice(&first.to_le_bytes());
    rest.extend_from_slice(&(chunks.len() as u32).to_le_bytes());
    for (len, old) in chunks {
        rest.extend_from_slice(&len.to_le_bytes());
        rest.push(old.len() as u8); // 0, 12 or 16
        rest.extend_from_slice(old);
    }
    let tail = (rest.len() + 4) as u32;
    rest.extend_from_slice(&tail.to_le_bytes());
    let end = used + rest.len();
    if buf.len() < end {
        buf.resize(end, 0);
    }
    buf[used..end].copy_from_slice(&rest);
    end
}

/// Fills in the head of a frame made by [`put_run`].
pub(super) fn seal_run(frame: &mut [u8], offset: u64) -> &[u8] {
    seal(frame, offset)
}

/// Checks the frame that `bytes` begins with, lying at `offset`: its payload, or None if there is none.
pub(super) fn frame_payload(bytes: &[u8], offset: u64) -> Option<&[u8]> {
    let head = bytes.get(..FRAME_LEN_BYTES)?;
    let len = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let check = u64::from_le_bytes(head[4..].try_into().ok()?);
    if len == 0 || len > PAYLOAD_LEN_MAX_BYTES {
        return None;
    }
    let payload = bytes.get(FRAME_LEN_BYTES..FRAME_LEN_BYTES + len)?;
    (xxh3_64_with_seed(payload, offset) == check).then_some(payload)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()? as usize;
        self.take(n)
    }

    /// A path inside the vault: plain components only, so that a damaged or forged segment reaches nothing else.
    fn path(&mut self) -> Option<String> {
        let text = std::str::from_utf8(self.bytes()?).ok()?;
        let plain =
            !text.is_empty() && !text.contains('\0') && text.split('/').all(|c| !c.is_empty() && c != "." && c != "..");
        plain.then(|| text.to_owned())
    }

    fn step(&mut self) -> Option<Step> {
        Some(match self.u8()? {
            1 => Step::Rename { from: self.path()?, to: self.path()? },
            2 => Step::MakeDir { path: self.path()? },
            3 => Step::Write { path: self.path()?, bytes: self.bytes()?.to_vec() },
            4 => Step::RemoveFile { path: self.path()? },
            5 => Step::RemoveDir { path: self.path()? },
            6 => Step::Rewrite { path: self.path()?, bytes: self.bytes()?.to_vec(), old: self.bytes()?.to_vec() },
            _ => return None,
        })
    }
}

/// Decodes a payload that lies at `offset` in its segment. None: not a record of this version.
pub(super) fn decode(payload: &[u8], offset: u64) -> Option<Record> {
    let mut r = Reader(payload);
    Some(match r.u8()? {
        BEGIN => {
            let (version, vault, seed) = (r.u32()?, r.take(16)?.try_into().ok()?, r.take(32)?.try_into().ok()?);
            let (mut incarnation, mut began_secs) = (None, i64::MIN);
            if version > 1 {
                incarnation = Some(r.bytes()?).filter(|i| !i.is_empty()).map(<[u8; 16]>::try_from).transpose().ok()?;
                began_secs = r.u64()?.cast_signed();
            }
            Record::Begin { version, vault, seed, incarnation, began_secs }
        }
        INTENT => Record::Intent { dir: r.path()? },
        RESERVE => Record::Reserve { up_to: r.u64()? },
        DECLARE => Record::Declare { file: r.u32()?, floor: r.u64()?, path: r.path()?, header: r.bytes()?.to_vec() },
        PATH => Record::Path { file: r.u32()?, path: r.path()? },
        UNLINKED => Record::Unlinked { file: r.u32()? },
        GONE => Record::Gone { nonce: r.bytes()?.to_vec() },
        FLOOR => Record::Floor { file: r.u32()?, floor: r.u64()? },
        SETTLED => Record::Settled { file: r.u32()?, len: r.u64()? },
        RUN => return decode_run(payload, offset),
        PLAN => {
            let id = r.u64()?;
            let count = r.u32()?;
            let steps = (0..count).map(|_| r.step()).collect::<Option<Vec<_>>>()?;
            Record::Plan { id, steps }
        }
        CANCEL => Record::Cancel { file: r.u32()?, first: r.u64()?, count: r.u32()? },
        PROGRESS => Record::Progress { id: r.u64()?, done: r.u32()? },
        RECOVERED => {
            let (segments, []) = r.bytes()?.as_chunks() else { return None };
            Record::Recovered { segments: segments.to_vec() }
        }
        _ => return None,
    })
}

fn decode_run(payload: &[u8], offset: u64) -> Option<Record> {
    let tail_len = u32::from_le_bytes(payload.last_chunk::<4>().copied()?) as usize;
    let data_len = payload.len().checked_sub(1 + tail_len)?;
    let mut r = Reader(payload.get(1 + data_len..)?);
    let (file, first, count) = (r.u32()?, r.u64()?, r.u32()?);
    if first.checked_add(u64::from(count))? > CHUNKS_MAX {
        return None; // no file is so long: its offsets would overflow
    }
    let (mut chunk_lens, mut old_nonces, mut total) = (Vec::new(), Vec::new(), 0usize);
    for _ in 0..count {
        let len = r.u32()?;
        total = total.checked_add(len as usize)?;
        let n = usize::from(r.u8()?);
        chunk_lens.push(len);
        old_nonces.push(r.take(n)?.to_vec());
    }
    let data = Data { offset: offset + 1, len: u32::try_from(data_len).ok()? };
    (total == data_len).then_some(Record::Run { file, first, chunk_lens, old_nonces, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_beyond_the_longest_file_is_no_record() {
        let chunks = [(3, vec![1; 12]), (2, Vec::new())];
        let decoded = |first| {
            let mut buf = vec![5; RUN_HEADROOM_BYTES + 5];
            let end = put_run(&mut buf, RUN_HEADROOM_BYTES + 5, 1, first, &chunks);
            decode(&buf[FRAME_LEN_BYTES..end], 0)
        };
        assert!(matches!(decoded(CHUNKS_MAX - 2), Some(Record::Run { first, .. }) if first == CHUNKS_MAX - 2));
        for first in [CHUNKS_MAX - 1, CHUNKS_MAX, u64::MAX / u64::from(CHUNK_CLEAR_BYTES), u64::MAX - 1, u64::MAX] {
            assert_eq!(decoded(first), None, "{first}");
        }
    }

    fn round_trip(record: &Record) {
        let mut frame = Frame::default();
        frame.clear();
        frame.put(record);
        let bytes = frame.seal(77).to_vec();
        assert!(frame_payload(&bytes, 78).is_none(), "a frame belongs to its offset");
        let payload = frame_payload(&bytes, 77).unwrap();
        assert_eq!(decode(payload, 77).as_ref(), Some(record));
        for cut in 0..bytes.len() {
            assert!(frame_payload(&bytes[..cut], 77).is_none());
        }
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 0x40;
            assert!(frame_payload(&torn, 77).is_none());
        }
    }

    #[test]
    fn records_round_trip_and_damage_is_seen() {
        let path = || "d/AB/CDEFGH/x.c9r".to_owned();
        for record in [
            Record::Begin { version: 1, vault: [7; 16], seed: [9; 32], incarnation: None, began_secs: i64::MIN },
            Record::Begin { version: 2, vault: [7; 16], seed: [9; 32], incarnation: None, began_secs: -5 },
            Record::Begin {
                version: 2,
                vault: [7; 16],
                seed: [9; 32],
                incarnation: Some([3; 16]),
                began_secs: 1 << 40,
            },
            Record::Intent { dir: path() },
            Record::Reserve { up_to: 4096 },
            Record::Declare { file: 1, floor: 99, path: path(), header: vec![1; 68] },
            Record::Path { file: 1, path: path() },
            Record::Gone { nonce: vec![4; 16] },
            Record::Unlinked { file: 3 },
            Record::Floor { file: 3, floor: 1 },
            Record::Settled { file: 3, len: 1 << 40 },
            Record::Progress { id: 5, done: 2 },
            Record::Recovered { segments: vec![[1; 16], [2; 16]] },
            Record::Cancel { file: 3, first: 9, count: 2 },
            Record::Plan {
                id: 5,
                steps: vec![
                    Step::Rename { from: path(), to: path() },
                    Step::MakeDir { path: path() },
                    Step::Write { path: path(), bytes: vec![1, 2] },
                    Step::RemoveFile { path: path() },
                    Step::RemoveDir { path: path() },
                    Step::Rewrite { path: path(), bytes: vec![3], old: vec![4, 5] },
                ],
            },
        ] {
            round_trip(&record);
        }
    }

    #[test]
    fn a_run_keeps_its_ciphertext_in_place() {
        let mut buf = vec![0; RUN_HEADROOM_BYTES];
        buf.extend_from_slice(&[1, 1, 1, 2, 2]);
        let used = buf.len();
        let end = put_run(&mut buf, used, 4, 10, &[(3, vec![5; 12]), (2, Vec::new())]);
        let bytes = seal_run(&mut buf[..end], 1000).to_vec();
        let payload = frame_payload(&bytes, 1000).unwrap();
        let payload_at = 1000 + FRAME_LEN_BYTES as u64;
        let expected = Record::Run {
            file: 4,
            first: 10,
            chunk_lens: vec![3, 2],
            old_nonces: vec![vec![5; 12], vec![]],
            data: Data { offset: payload_at + 1, len: 5 },
        };
        assert_eq!(decode(payload, payload_at), Some(expected));
        assert_eq!(&bytes[RUN_HEADROOM_BYTES..RUN_HEADROOM_BYTES + 5], [1, 1, 1, 2, 2]);
    }

    #[test]
    fn paths_that_leave_the_vault_are_not_records() {
        for bad in ["", "/etc/passwd", "../x", "d/../../x", "d//x", "d/\0"] {
            let mut frame = Frame::default();
            frame.clear();
            frame.put(&Record::Intent { dir: bad.to_owned() });
            let bytes = frame.seal(0).to_vec();
            assert_eq!(decode(frame_payload(&bytes, 0).unwrap(), 0), None, "{bad:?}");
        }
    }
}
