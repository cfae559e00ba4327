//! `adit_volume::format::fuzzing::fuzz_own`, which a stable test replays too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_volume::format::fuzzing::fuzz_own(data));
