//! The body of the fuzz target of the journal's records; see [`crate::format::fuzzing`].

use super::record::{self, FRAME_LEN_BYTES, Frame, RUN_HEADROOM_BYTES, Record};
use super::recover::story::{Segment, Story};

/// Header nonces that a record can make the target compute.
const NONCES_MAX: u64 = 1 << 10;

/// Any bytes: as a frame, as a record, and as a sequence of records (each a length of two bytes, little-endian, and a
/// payload), which recovery takes in.
pub(crate) fn fuzz(data: &[u8]) {
    let _ = record::frame_payload(data, 0);
    if let Some(found) = record::decode(data, 0) {
        written_again(&found, data);
    }
    let (mut story, mut segment) = (Story::default(), Segment::new((0, 0), [7; 16], 12));
    let (mut rest, mut at) = (data, 0u64);
    while let Some((&len, after)) = rest.split_first_chunk() {
        let Some((payload, next)) = after.split_at_checked(usize::from(u16::from_le_bytes(len))) else { break };
        let mut frame = vec![0; FRAME_LEN_BYTES];
        frame.extend_from_slice(payload);
        let found = record::decode(payload, at + FRAME_LEN_BYTES as u64);
        let found = found.filter(|f| !matches!(f, Record::Reserve { up_to } if *up_to > NONCES_MAX));
        if found.is_some_and(|found| !story.take(&mut segment, found, &frame, at)) {
            return; // another vault's
        }
        at += frame.len() as u64;
        rest = next;
    }
    story.told();
    for state in story.files.values() {
        assert!(!state.paths.is_empty() && state.header.len() >= 12);
        for (&number, chunk) in &state.chunks {
            assert!(number < record::CHUNKS_MAX, "its end is an offset");
            assert!(chunk.newest().at.1.offset < at);
        }
    }
}

/// What was decoded is written as it was read; behind it, a payload may hold anything.
fn written_again(found: &Record, payload: &[u8]) {
    if let Record::Run { file, first, chunk_lens, old_nonces, data } = found {
        let used = RUN_HEADROOM_BYTES + data.len as usize;
        let mut buf = vec![0; RUN_HEADROOM_BYTES];
        buf.extend_from_slice(&payload[1..=data.len as usize]);
        let chunks: Vec<(u32, Vec<u8>)> = chunk_lens.iter().copied().zip(old_nonces.iter().cloned()).collect();
        let end = record::put_run(&mut buf, used, *file, *first, &chunks);
        let again = record::decode(&buf[FRAME_LEN_BYTES..end], 0);
        assert_eq!(again.as_ref(), Some(found));
        return;
    }
    let mut frame = Frame::default();
    frame.clear();
    frame.put(found);
    let bytes = frame.seal(7);
    let written = record::frame_payload(bytes, 7).expect("a sealed frame checks");
    assert!(payload.starts_with(written));
}
