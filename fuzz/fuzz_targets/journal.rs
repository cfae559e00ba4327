//! `adit_vault::format::fuzzing::fuzz_journal`, which a stable test replays too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| adit_vault::format::fuzzing::fuzz_journal(data));
