//! Random operations through the engine agree with the reference model, whatever it caches and buffers.

mod support;

use std::sync::Arc;
use std::time::Duration;

use adit_core::engine::{Engine, EngineOptions};
use adit_testkit::model::Limits;
use adit_testkit::ops::{Plan, fuzz_store};
use support::{EngineStore, FaultyStore, options};

/// Checks, when the engine goes, that it kept count: nothing known, nothing open, no forget too many.
struct Counted(FaultyStore, Arc<Engine>);

impl Drop for Counted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.1.shutdown().unwrap();
        let (store, engine) = (&self.0.inner, &self.1);
        assert_eq!((engine.known_inodes(), store.known_count(), store.open_count()), (1, 0, 0));
        assert_eq!((store.stray_forgets(), engine.stats().dirty_bytes), (0, 0));
    }
}

fn fuzz(seeds: usize, limits: Limits, ttl: Duration, memory_bytes: u64) {
    // However short a lookup is, it is worth another thread.
    let options = EngineOptions { ahead_from: Duration::ZERO, ..options(ttl, memory_bytes) };
    fuzz_store(&Plan { seeds, ops: 300, limits }, || {
        let store = FaultyStore::new(limits);
        let engine = Engine::new(Arc::new(store.clone()), options.clone());
        (Counted(store, engine.clone()), EngineStore(engine))
    });
}

#[test]
fn buffered_in_units_of_32_kib() {
    fuzz(60, Limits::default(), Duration::from_secs(60), 64 << 20);
}

#[test]
fn buffered_in_small_units_with_little_memory() {
    let limits = Limits { unit_len_bytes: 4096, shared: true, ..Limits::default() };
    fuzz(60, limits, Duration::from_secs(60), 256 << 10);
}

#[test]
fn buffered_without_cached_attributes() {
    let limits = Limits { unit_len_bytes: 4096, shared: true, ..Limits::default() };
    fuzz(40, limits, Duration::ZERO, 64 << 20);
}

#[test]
fn with_all_that_posix_has_and_stable_cookies() {
    let limits = Limits { unit_len_bytes: 4096, stable_cookies: true, whiteouts: true, ..Limits::default() };
    fuzz(60, limits, Duration::from_secs(60), 64 << 20);
    fuzz(20, Limits { buffer_writes: false, ..limits }, Duration::from_secs(60), 64 << 20);
}

#[test]
fn written_through() {
    let limits = Limits { buffer_writes: false, ..Limits::default() };
    fuzz(40, limits, Duration::from_secs(60), 64 << 20);
}

#[test]
fn with_slow_names_that_are_looked_up_ahead() {
    let limits = Limits { slow_names: true, shared: true, ..Limits::default() };
    fuzz(60, limits, Duration::from_secs(60), 64 << 20);
    fuzz(20, limits, Duration::from_secs(60), 256 << 10);
    fuzz(20, Limits { shared: false, ..limits }, Duration::from_secs(60), 64 << 20);
    fuzz(20, limits, Duration::ZERO, 64 << 20);
}
