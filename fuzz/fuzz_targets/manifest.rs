//! `adit_manifest::format::fuzzing::fuzz_manifest`, which a stable test replays too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_manifest::format::fuzzing::fuzz_manifest(data));
