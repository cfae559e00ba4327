//! An engine over a store with faults, and short words for what tests do with it.

use std::sync::Arc;
use std::time::Duration;

use adit_core::ErrorKind;
use adit_core::engine::{Engine, EngineOptions, Fh, Lookup};
use adit_core::store::Store;
use adit_core::types::*;
use adit_testkit::model::Limits;

use super::{FaultyStore, name, new_node, options};

pub const LONG: Duration = Duration::from_secs(600);
pub const ROOT: Ino = Ino::ROOT;
pub const UNIT: usize = 4096;

pub fn engine_with(limits: Limits, options: EngineOptions) -> (FaultyStore, Arc<Engine>) {
    let store = FaultyStore::new(limits);
    (store.clone(), Engine::new(Arc::new(store), options))
}

/// A shared store with units of 4 KiB, cached for long.
pub fn engine() -> (FaultyStore, Arc<Engine>) {
    let limits = Limits { unit_len_bytes: UNIT as u32, shared: true, ..Limits::default() };
    engine_with(limits, options(LONG, 64 << 20))
}

pub fn create(e: &Engine, n: &str) -> (Ino, Fh) {
    let (entry, opened) = e.create(ROOT, name(n), &new_node(), Access::Write).unwrap();
    (entry.attr.ino, opened.fh)
}

pub fn read_all(e: &Engine, fh: Fh) -> Vec<u8> {
    let mut buf = vec![0; 1 << 20];
    let n = e.read(fh, 0, &mut buf).unwrap();
    buf.truncate(n);
    buf
}

pub fn stored(store: &FaultyStore, ino: Ino) -> Vec<u8> {
    let mut buf = vec![0; 1 << 20];
    let n = store.inner.open(ino, Access::Read).unwrap().read_at(0, &mut buf).unwrap();
    buf.truncate(n);
    buf
}

pub fn absent(e: &Engine, n: &str) -> bool {
    matches!(e.lookup_or_absent(ROOT, name(n)), Ok(Lookup::Absent { .. }))
}

pub fn kind<T>(r: adit_core::Result<T>) -> ErrorKind {
    r.err().expect("an error").kind()
}
