//! `adit_core::overlay::fuzzing::fuzz_record`, which a stable test replays too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_core::overlay::fuzzing::fuzz_record(data));
