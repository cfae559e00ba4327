//! `adit_index::fuzzing::fuzz_sealed`, which a stable test replays too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_index::fuzzing::fuzz_sealed(data));
