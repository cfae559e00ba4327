//! Records of the log: what each batch did, in order. `docs/formats/volume.md` has the bytes.
//!
//! A record is whole or it is none: its checksum is seeded with what only this volume in this epoch has, so that neither a
//! torn record, nor one of an earlier use of the segment, nor a copy of one in a file's data passes for the next one.

use super::Reader;
use super::container::Superblock;
use crate::table::{Batch, Run};

/// Bytes before the payload.
pub const HEADER_LEN: usize = 32;
/// Bytes of the record of a part before what it has of the batch.
pub const PART_HEADER_LEN: usize = HEADER_LEN + 4;
/// Records begin at multiples of this.
pub const ALIGNMENT: usize = 8;
/// The version of the records.
const VERSION: u8 = 1;
/// The value length that says: removed.
const REMOVED: u32 = u32::MAX;

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A batch.
    Batch,
    /// The log goes on at the start of another segment.
    Next,
    /// A part of a batch; another one follows.
    Part,
    /// The last part of a batch.
    LastPart,
}

/// The seed of checksums in one epoch of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seed(u32);

impl Seed {
    /// That of `superblock`'s volume and epoch.
    pub fn of(superblock: &Superblock) -> Seed {
        let sum = crc32c::crc32c(&superblock.secret);
        let sum = crc32c::crc32c_append(sum, &superblock.uuid);
        Seed(crc32c::crc32c_append(sum, &superblock.epoch.to_le_bytes()))
    }
}

/// A record, its payload not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Of a batch and of its parts: its number. Of `Next`: the number of the record that comes next.
    pub seq: u64,
    /// Every batch up to this number was durable when the record was written.
    pub durable: u64,
    /// What it is.
    pub kind: Kind,
    /// What it says.
    pub payload: &'a [u8],
}

/// Bytes that a record with such a payload takes.
pub fn record_len(payload_len: usize) -> usize {
    (HEADER_LEN + payload_len).next_multiple_of(ALIGNMENT)
}

/// Turns `record`, which has room for the header and then the payload, into a record.
fn seal(mut record: Vec<u8>, seed: Seed, seq: u64, durable: u64, kind: Kind) -> Vec<u8> {
    let payload_len = (record.len() - HEADER_LEN) as u32;
    record.resize(record.len().next_multiple_of(ALIGNMENT), 0);
    record[0..4].copy_from_slice(&payload_len.to_le_bytes());
    record[8..16].copy_from_slice(&seq.to_le_bytes());
    record[16..24].copy_from_slice(&durable.to_le_bytes());
    record[24] = kind as u8 + 1;
    record[25] = VERSION;
    let sum = checksum(seed, &record);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
    record
}

/// Of all of a record but the checksum itself.
fn checksum(seed: Seed, record: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(seed.0, record.get(..4).unwrap_or_default());
    crc32c::crc32c_append(sum, record.get(8..).unwrap_or_default())
}

/// A batch on its way to become a record: encoded, but without a number.
pub struct Draft(Vec<u8>);

impl Draft {
    /// Encodes `batch`. Keys are shorter than 64 KiB, and there is a checksum for each block.
    pub fn new(batch: &Batch) -> Draft {
        let writes: usize = batch.writes.iter().map(|(k, v)| 6 + k.len() + v.as_ref().map_or(0, Vec::len)).sum();
        let allocated: usize = batch.allocated.iter().map(|(_, sums)| 12 + 4 * sums.len()).sum();
        let mut out = Vec::with_capacity(HEADER_LEN + 12 + writes + allocated + 12 * batch.freed.len() + ALIGNMENT);
        out.resize(HEADER_LEN, 0);
        out.extend((batch.writes.len() as u32).to_le_bytes());
        for (key, value) in &batch.writes {
            out.extend((key.len() as u16).to_le_bytes());
            out.extend(value.as_ref().map_or(REMOVED, |v| v.len() as u32).to_le_bytes());
            out.extend(key);
            out.extend(value.as_deref().unwrap_or_default());
        }
        out.extend((batch.allocated.len() as u32).to_le_bytes());
        for (run, sums) in &batch.allocated {
            put_run(&mut out, *run);
            for sum in sums {
                out.extend(sum.to_le_bytes());
            }
        }
        out.extend((batch.freed.len() as u32).to_le_bytes());
        for run in &batch.freed {
            put_run(&mut out, *run);
        }
        Draft(out)
    }

    /// Bytes that the record will take.
    pub fn record_len(&self) -> usize {
        self.0.len().next_multiple_of(ALIGNMENT)
    }

    /// The record.
    pub fn seal(self, seed: Seed, seq: u64, durable: u64) -> Vec<u8> {
        seal(self.0, seed, seq, durable, Kind::Batch)
    }

    /// What the record would say, to be cut in parts.
    pub fn payload(&self) -> &[u8] {
        self.0.get(HEADER_LEN..).unwrap_or_default()
    }
}

/// The record of a part of a batch: `index` counts them from 0, `bytes` are those of the batch's payload.
pub fn part(seed: Seed, seq: u64, durable: u64, index: u32, bytes: &[u8], is_last: bool) -> Vec<u8> {
    let mut record = Vec::with_capacity(PART_HEADER_LEN + bytes.len() + ALIGNMENT);
    record.resize(HEADER_LEN, 0);
    record.extend(index.to_le_bytes());
    record.extend(bytes);
    seal(record, seed, seq, durable, if is_last { Kind::LastPart } else { Kind::Part })
}

/// The number of a part, and its bytes of the batch's payload; `None` if the payload of the record is none of a part.
pub fn decode_part(payload: &[u8]) -> Option<(u32, &[u8])> {
    let mut rest = Reader(payload);
    Some((rest.u32()?, rest.0))
}

fn put_run(out: &mut Vec<u8>, run: Run) {
    out.extend(run.start.to_le_bytes());
    out.extend(run.count.to_le_bytes());
}

/// The record that says that the log goes on in `segment`, with record `seq`.
pub fn next(seed: Seed, seq: u64, durable: u64, segment: u32) -> Vec<u8> {
    let mut record = vec![0; HEADER_LEN];
    record.extend(segment.to_le_bytes());
    seal(record, seed, seq, durable, Kind::Next)
}

/// The record at the start of `bytes`, and how many of them it takes; `None` if there is none.
pub fn decode(seed: Seed, bytes: &[u8]) -> Option<(Record<'_>, usize)> {
    let mut header = Reader(bytes);
    let (payload_len, sum) = (header.u32()? as usize, header.u32()?);
    let (seq, durable) = (header.u64()?, header.u64()?);
    let kind = match header.u8()? {
        1 => Kind::Batch,
        2 => Kind::Next,
        3 => Kind::Part,
        4 => Kind::LastPart,
        _ => return None,
    };
    if header.u8()? != VERSION || payload_len > bytes.len() {
        return None;
    }
    let len = record_len(payload_len);
    let record = bytes.get(..len)?;
    let payload = record.get(HEADER_LEN..HEADER_LEN + payload_len)?;
    (checksum(seed, record) == sum).then_some((Record { seq, durable, kind, payload }, len))
}

/// As [`decode`], for who looks for a record anywhere after number `seq`.
pub fn decode_after(seed: Seed, bytes: &[u8], seq: u64) -> Option<Record<'_>> {
    let number = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    // Most places are told by that.
    if number <= seq || number - seq > u64::from(u32::MAX) {
        return None;
    }
    decode(seed, bytes).map(|(record, _)| record)
}

/// What the payload of a `Batch` says; `None` if it is not one. Whatever it may use, it has used.
pub fn decode_batch(payload: &[u8]) -> Option<Batch> {
    let mut rest = Reader(payload);
    let mut batch = Batch::default();
    for _ in 0..rest.u32()? {
        let (key_len, value_len) = (rest.u16()?, rest.u32()?);
        let key = rest.take(usize::from(key_len))?.to_vec();
        let value = match value_len {
            REMOVED => None,
            len => Some(rest.take(len as usize)?.to_vec()),
        };
        batch.writes.push((key, value));
    }
    for _ in 0..rest.u32()? {
        let run = take_run(&mut rest)?;
        let mut sums = Reader(rest.take((run.count as usize).checked_mul(4)?)?);
        batch.allocated.push((run, std::iter::from_fn(|| sums.u32()).collect()));
    }
    for _ in 0..rest.u32()? {
        batch.freed.push(take_run(&mut rest)?);
    }
    rest.0.is_empty().then_some(batch)
}

fn take_run(rest: &mut Reader<'_>) -> Option<Run> {
    let run = Run { start: rest.u64()?, count: rest.u32()? };
    (run.count > 0 && run.start.checked_add(u64::from(run.count)).is_some()).then_some(run)
}

/// The segment that the payload of a `Next` names.
pub fn decode_next(payload: &[u8]) -> Option<u32> {
    let mut rest = Reader(payload);
    let segment = rest.u32()?;
    rest.0.is_empty().then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_testkit::{Rng, seeds};

    fn bytes(rng: &mut Rng, len_max: u64) -> Vec<u8> {
        let mut bytes = vec![0; rng.below(len_max + 1) as usize];
        rng.fill(&mut bytes);
        bytes
    }

    fn some(rng: &mut Rng) -> Batch {
        let run = |rng: &mut Rng| Run { start: rng.below(1 << 40), count: 1 + rng.below(20) as u32 };
        let mut batch = Batch::default();
        for _ in 0..rng.below(6) {
            let value = if rng.percent(30) { None } else { Some(bytes(rng, 300)) };
            batch.writes.push((bytes(rng, 40), value));
        }
        for _ in 0..rng.below(4) {
            let run = run(rng);
            batch.allocated.push((run, (0..run.count).map(|_| rng.next_u64() as u32).collect()));
        }
        for _ in 0..rng.below(4) {
            batch.freed.push(run(rng));
        }
        batch
    }

    fn same(a: &Batch, b: &Batch) -> bool {
        a.writes == b.writes && a.allocated == b.allocated && a.freed == b.freed
    }

    #[test]
    fn round_trips_and_every_flipped_bit_ends_the_log() {
        for seed in seeds(20) {
            let mut rng = Rng::new(seed);
            let batch = some(&mut rng);
            let draft = Draft::new(&batch);
            let len = draft.record_len();
            let mut record = draft.seal(Seed(5), 7, 6);
            assert_eq!(record.len(), len);
            record.extend(next(Seed(5), 8, 7, 3));
            let (first, taken) = decode(Seed(5), &record).unwrap();
            assert_eq!((first.seq, first.durable, first.kind, taken), (7, 6, Kind::Batch, len));
            assert!(same(&decode_batch(first.payload).unwrap(), &batch), "ADIT_TEST_SEED={seed}");
            let (second, _) = decode(Seed(5), &record[len..]).unwrap();
            assert_eq!((second.seq, second.kind, decode_next(second.payload)), (8, Kind::Next, Some(3)));
            assert_eq!(decode(Seed(6), &record), None);
            for bit in 0..len * 8 {
                record[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(Seed(5), &record), None, "bit {bit}, ADIT_TEST_SEED={seed}");
                record[bit / 8] ^= 1 << (bit % 8);
            }
            for cut in 0..len {
                assert_eq!(decode(Seed(5), &record[..cut]), None);
            }
        }
    }

    #[test]
    fn parts_of_a_batch_are_told_apart_and_joined() {
        let batch = some(&mut Rng::new(3));
        let draft = Draft::new(&batch);
        let (first, last) = draft.payload().split_at(draft.payload().len() / 2);
        let records = [part(Seed(5), 7, 6, 0, first, false), part(Seed(5), 7, 6, 1, last, true)];
        let mut joined = Vec::new();
        for (index, (record, kind)) in records.iter().zip([Kind::Part, Kind::LastPart]).enumerate() {
            let (found, len) = decode(Seed(5), record).unwrap();
            assert_eq!((found.seq, found.kind, len), (7, kind, record.len()));
            let (number, bytes) = decode_part(found.payload).unwrap();
            assert_eq!(number as usize, index);
            joined.extend(bytes);
        }
        assert!(same(&decode_batch(&joined).unwrap(), &batch));
        assert_eq!(decode_part(b"abc"), None);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for seed in seeds(500) {
            let mut rng = Rng::new(seed);
            let mut record = Draft::new(&some(&mut rng)).seal(Seed(0), 1, 0);
            let len = record.len() as u64;
            for _ in 0..1 + rng.below(5) {
                record[rng.below(len) as usize] = rng.next_u64() as u8;
            }
            let _ = decode(Seed(0), &record);
            let _ = decode_batch(&record[HEADER_LEN..]);
            let noise = bytes(&mut rng, 200);
            let _ = (decode(Seed(0), &noise), decode_batch(&noise), decode_next(&noise));
        }
    }

    /// The worked example of docs/formats/volume.md.
    #[test]
    fn the_worked_example() {
        let batch = Batch {
            writes: vec![(b"k".to_vec(), Some(b"vw".to_vec())), (b"x".to_vec(), None)],
            allocated: vec![(Run { start: 0x1234, count: 1 }, vec![0xaabb_ccdd])],
            freed: vec![Run { start: 0x99, count: 2 }],
            ..Batch::default()
        };
        let record = Draft::new(&batch).seal(Seed(0), 9, 8);
        assert_eq!(record[..4], [56, 0, 0, 0]);
        assert_eq!(record[8..32], *b"\x09\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x01\x01\0\0\0\0\0\0");
        assert_eq!(record[32..52], *b"\x02\0\0\0\x01\0\x02\0\0\0kvw\x01\0\xff\xff\xff\xffx");
        assert_eq!(record[52..72], *b"\x01\0\0\0\x34\x12\0\0\0\0\0\0\x01\0\0\0\xdd\xcc\xbb\xaa");
        assert_eq!(record[72..88], *b"\x01\0\0\0\x99\0\0\0\0\0\0\0\x02\0\0\0");
        assert_eq!(record.len(), 88);
        let part = part(Seed(0), 9, 8, 1, &record[42..44], true);
        assert_eq!(part[..4], [6, 0, 0, 0]);
        assert_eq!(part[8..40], *b"\x09\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x04\x01\0\0\0\0\0\0\x01\0\0\0kv\0\0");
        assert_eq!(part.len(), 40);
    }
}
