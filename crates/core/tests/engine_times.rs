//! Times of files where the kernel keeps them: what it sends of writes, beside what users set.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use adit_core::ErrorKind;
use adit_core::engine::{Engine, EngineOptions, Fh};
use adit_core::store::Store;
use adit_core::types::*;
use adit_testkit::model::Limits;
use support::engines::{LONG, create, kind};
use support::{FaultyStore, options};

fn engine() -> (FaultyStore, Arc<Engine>) {
    let store = FaultyStore::new(Limits { buffer_writes: false, ..Limits::default() });
    store.faults.kernel_writeback.store(true, Relaxed);
    let options = EngineOptions { kernel_writeback: true, ..options(LONG, 64 << 20) };
    (store.clone(), Engine::new(Arc::new(store), options))
}

fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

/// What the kernel sends of a write.
fn noted(secs: i64) -> SetAttr {
    SetAttr { mtime: Some(SetTime::At(at(secs))), ctime: Some(at(secs)), ..SetAttr::default() }
}

/// A file with times that were kept back, since nothing was changed before them.
fn with_times_kept_back() -> (FaultyStore, Arc<Engine>, Ino, Fh) {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.setattr(ino, &noted(10), Some(fh)).unwrap();
    e.setattr(ino, &noted(1), None).unwrap();
    e.setattr(ino, &noted(20), Some(fh)).unwrap();
    assert_eq!(store.inner.getattr(ino).unwrap().mtime, at(1), "kept back");
    (store, e, ino, fh)
}

/// The times that everybody sees.
#[track_caller]
fn expect(store: &FaultyStore, e: &Engine, ino: Ino, mtime: i64, ctime: i64) {
    let known = e.getattr(ino, None).unwrap().0;
    let stored = store.inner.getattr(ino).unwrap();
    assert_eq!((known.mtime, known.ctime), (at(mtime), at(ctime)), "known");
    assert_eq!((stored.mtime, stored.ctime), (at(mtime), at(ctime)), "stored");
}

/// A rename sends the times of a write before what was written. The times of such a store (a vault's) move with each write.
#[test]
fn times_that_are_sent_before_their_write_are_those_that_stay() {
    for buffer_writes in [false, true] {
        let store = FaultyStore::new(Limits { buffer_writes, ..Limits::default() });
        let options = EngineOptions { kernel_writeback: true, ..options(LONG, 64 << 20) };
        let e = Engine::new(Arc::new(store.clone()), options);
        let (ino, fh) = create(&e, "f");
        let mtime = || store.inner.getattr(ino).unwrap().mtime;
        e.write(fh, 0, b"before").unwrap();
        e.setattr(ino, &noted(10), Some(fh)).unwrap();
        e.write(fh, 0, b"content").unwrap();
        e.write(fh, 9000, b"more").unwrap();
        e.flush(fh).unwrap();
        assert_eq!(mtime(), at(10), "buffered: {buffer_writes}");
        e.setattr(ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }, None).unwrap();
        e.write(fh, 1, b"again").unwrap();
        e.setattr(ino, &noted(20), Some(fh)).unwrap();
        e.release(fh).unwrap();
        assert_eq!(mtime(), at(20), "buffered: {buffer_writes}");
    }
}

#[test]
fn times_that_were_kept_back_are_set_at_the_last_close() {
    let (store, e, ino, fh) = with_times_kept_back();
    let other = e.open(ino, Access::Read, false).unwrap().fh;
    e.release(fh).unwrap();
    expect(&store, &e, ino, 1, 1);
    e.release(other).unwrap();
    expect(&store, &e, ino, 20, 20);
}

#[test]
fn what_a_user_sets_is_not_undone_by_what_was_kept_back() {
    let (store, e, ino, fh) = with_times_kept_back();
    e.setattr(ino, &noted(30), None).unwrap();
    e.release(fh).unwrap();
    expect(&store, &e, ino, 30, 30);
}

#[test]
fn a_truncation_by_path_has_newer_times_than_what_was_kept_back() {
    let (store, e, ino, fh) = with_times_kept_back();
    e.setattr(ino, &SetAttr { size: Some(3), ..noted(30) }, None).unwrap();
    expect(&store, &e, ino, 30, 30);
    e.release(fh).unwrap();
    expect(&store, &e, ino, 30, 30);
}

#[test]
fn permissions_leave_the_time_of_a_write_and_keep_their_own() {
    let (store, e, ino, fh) = with_times_kept_back();
    e.setattr(ino, &SetAttr { perm: Some(0o4755), ctime: Some(at(30)), ..SetAttr::default() }, None).unwrap();
    e.release(fh).unwrap();
    expect(&store, &e, ino, 20, 30);
    // A writer without privilege: set-id bits go before the change that times were sent of already.
    let fh = e.open(ino, Access::Write, false).unwrap().fh;
    e.setattr(ino, &noted(40), Some(fh)).unwrap();
    e.drop_set_id(fh, |_| true).unwrap();
    e.write_keeping_times(fh, 0, b"new").unwrap();
    let known = e.getattr(ino, None).unwrap().0;
    assert_eq!((known.mtime, known.perm), (at(40), 0o755));
    e.release(fh).unwrap();
}

/// The kernel notes the time before it asks for the change.
#[test]
fn a_hole_or_a_copy_that_fails_changes_no_time() {
    let (store, e, ino, fh) = with_times_kept_back();
    store.faults.allocates_fail.store(true, Relaxed);
    let failed = e.allocate_keeping_times(fh, 0, 10, AllocateMode::PunchHole);
    assert_eq!(kind(failed), ErrorKind::Io);
    e.release(fh).unwrap();
    expect(&store, &e, ino, 1, 1);

    let (store, e, ino, fh) = with_times_kept_back();
    let (_, from) = create(&e, "from");
    e.write_keeping_times(from, 0, b"content").unwrap();
    store.faults.reads_fail.store(true, Relaxed);
    assert_eq!(kind(e.copy_range_keeping_times(from, 0, fh, 0, 7)), ErrorKind::Io);
    e.release(fh).unwrap();
    expect(&store, &e, ino, 1, 1);
}

#[test]
fn times_that_the_store_refuses_are_set_with_the_next_change() {
    let (store, e, ino, fh) = with_times_kept_back();
    store.faults.setattrs_fail.store(true, Relaxed);
    e.write_keeping_times(fh, 0, b"a").unwrap();
    store.faults.setattrs_fail.store(false, Relaxed);
    e.write_keeping_times(fh, 1, b"b").unwrap();
    expect(&store, &e, ino, 20, 20);
    e.release(fh).unwrap();
    expect(&store, &e, ino, 20, 20);
}
