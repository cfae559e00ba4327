//! What the engine promises of writes: what is buffered, what a failure costs, and who hears of it.

mod support;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::*;
use adit_testkit::Rng;
use adit_testkit::model::Limits;
use support::engines::{LONG, ROOT, UNIT, create, engine, engine_with, kind, read_all, stored};
use support::{name, options};

#[test]
fn buffered_writes_show_at_once_and_are_stored_at_flush() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let reader = e.open(ino, Access::Read, false).unwrap();
    assert!(reader.no_flush);
    let before = Timestamp::now();
    e.write(fh, 10, b"xyz").unwrap();
    assert_eq!(store.faults.writes.load(Relaxed), 0);
    let (attr, ttl) = e.getattr(ino, Some(fh)).unwrap();
    assert!(attr.size == 13 && attr.mtime >= before && ttl.is_zero());
    assert_eq!(read_all(&e, reader.fh), b"\0\0\0\0\0\0\0\0\0\0xyz");
    assert_eq!(e.stats().dirty_bytes, UNIT as u64);
    e.flush(fh).unwrap();
    assert_eq!((stored(&store, ino).len(), e.stats().dirty_bytes), (13, 0));
    assert_eq!(e.getattr(ino, None).unwrap().0, store.inner.getattr(ino).unwrap());
    assert_eq!(kind(e.write(reader.fh, 0, b"no")), ErrorKind::NotPermitted);
    assert_eq!(kind(e.write(fh, i64::MAX as u64, b"no")), ErrorKind::FileTooLarge);
}

#[test]
fn the_time_that_was_shown_is_the_one_that_stays() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let by_number = || e.getattr(ino, None).unwrap().0;
    let by_name = || e.lookup(ROOT, name("f")).unwrap().attr;
    for (round, show) in [&by_number as &dyn Fn() -> _, &by_name].into_iter().enumerate() {
        e.write(fh, 10 * round as u64, b"0123456789").unwrap();
        assert_eq!(e.stats().dirty_bytes, UNIT as u64, "it is buffered");
        let shown = show();
        assert_eq!(shown.size, 10 * (round as u64 + 1));
        assert_eq!(e.stats().dirty_bytes, 0, "what is shown is stored");
        e.flush(fh).unwrap();
        assert_eq!((by_number(), store.inner.getattr(ino).unwrap()), (shown, shown));
    }
    // What cannot be stored shows all the same, and is not tried again with every look.
    store.faults.writes_fail.store(true, Relaxed);
    e.write(fh, 20, b"more").unwrap();
    assert_eq!(by_number().size, 24);
    let tried = store.faults.writes.load(Relaxed);
    assert_eq!(by_name().size, 24);
    assert_eq!(store.faults.writes.load(Relaxed), tried);
    store.faults.writes_fail.store(false, Relaxed);
    e.flush(fh).unwrap_err();
    assert_eq!(stored(&store, ino).len(), 24);
}

#[test]
fn set_times_outlive_buffered_writes() {
    let (_store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, b"data").unwrap();
    let at = Timestamp { secs: 1000, nanos: 5 };
    let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    assert_eq!(e.setattr(ino, &set, Some(fh)).unwrap().0.mtime, at);
    e.release(fh).unwrap();
    let attr = e.getattr(ino, None).unwrap().0;
    assert_eq!((attr.mtime, attr.size), (at, 4));
}

#[test]
fn large_writes_go_through_and_small_ones_in_runs() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let big = vec![7; 10 * UNIT];
    e.write(fh, 100, &big).unwrap();
    assert_eq!(store.faults.writes.load(Relaxed), 1);
    assert_eq!(e.stats().dirty_bytes, 2 * UNIT as u64, "head and tail wait for their neighbours");
    let (ino2, fh2) = create(&e, "g");
    for i in 0..1024 {
        e.write(fh2, i * 1024, &[i as u8; 1024]).unwrap();
    }
    assert_eq!(store.faults.writes.load(Relaxed), 2, "1 MiB in one call");
    assert_eq!(stored(&store, ino2).len(), 1 << 20);
    e.fsync(fh, true).unwrap();
    assert_eq!(stored(&store, ino)[100..], big);
}

#[test]
fn small_writes_all_over_a_file_take_their_own_memory() {
    const LARGE: usize = 8 * UNIT;
    let limits = Limits { unit_len_bytes: LARGE as u32, shared: true, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 64 << 20));
    let (ino, fh) = create(&e, "f");
    let mut content = vec![7; 16 * LARGE];
    e.write(fh, 0, &content).unwrap();
    e.flush(fh).unwrap();
    let (reads, writes) = (store.faults.reads.load(Relaxed), store.faults.writes.load(Relaxed));
    for unit in 0..16 {
        for block in [6, 1] {
            let at = unit * LARGE + block * UNIT;
            e.write(fh, at as u64, &[block as u8; UNIT]).unwrap();
            content[at..at + UNIT].fill(block as u8);
        }
    }
    assert_eq!(e.stats().dirty_bytes, 32 * UNIT as u64);
    assert_eq!(store.faults.reads.load(Relaxed), reads, "what lies between them is not needed");
    assert_eq!(read_all(&e, fh), content);
    e.flush(fh).unwrap();
    assert_eq!(store.faults.writes.load(Relaxed), writes + 1, "all in one call");
    assert_eq!((stored(&store, ino), e.stats().dirty_bytes), (content, 0));
}

#[test]
fn what_makes_room_is_what_is_nearly_whole() {
    const LARGE: usize = 8 * UNIT;
    let limits = Limits { unit_len_bytes: LARGE as u32, shared: true, ..Limits::default() };
    // 48 blocks may be dirty.
    let (store, e) = engine_with(limits, options(LONG, 1 << 20));
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, &vec![0xff; 64 * LARGE]).unwrap();
    for unit in 0..16 {
        // A whole unit, though not in order, or a block of it.
        let blocks: &[usize] = if unit % 4 == 1 { &[0, 2, 4, 6, 1, 3, 5, 7] } else { &[3] };
        for block in blocks {
            e.write(fh, (unit * LARGE + block * UNIT) as u64, &[unit as u8; UNIT]).unwrap();
        }
    }
    assert_eq!(e.stats().dirty_bytes, 44 * UNIT as u64);
    for unit in 16..22 {
        e.write(fh, (unit * LARGE) as u64, &[unit as u8; UNIT]).unwrap();
    }
    let stored = stored(&store, ino);
    let is_stored = |unit: usize| stored[unit * LARGE + 3 * UNIT] == unit as u8;
    assert!((0..16).filter(|u| u % 4 == 1).filter(|&u| is_stored(u)).count() >= 2, "whole units went");
    assert!((0..16).filter(|u| u % 4 != 1).all(|u| !is_stored(u)), "and no others");
}

#[test]
fn a_failed_flush_keeps_the_data_and_every_handle_hears_of_it() {
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    e.write(first, 0, b"precious").unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    assert_eq!(kind(e.flush(first)), ErrorKind::NoSpace);
    assert_eq!(kind(e.fsync(first, false)), ErrorKind::NoSpace);
    assert_eq!(read_all(&e, second), b"precious");
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(kind(e.flush(second)), ErrorKind::NoSpace, "it had not heard of the failure yet");
    assert_eq!(stored(&store, ino), b"precious", "but the data was saved");
    e.flush(second).unwrap();
    e.flush(first).unwrap();
    let third = e.open(ino, Access::Write, false).unwrap().fh;
    e.flush(third).unwrap();
    store.faults.syncs_fail.store(true, Relaxed);
    assert_eq!(kind(e.fsync(third, true)), ErrorKind::Io);
    store.faults.syncs_fail.store(false, Relaxed);
    e.fsync(third, true).unwrap();
    assert_eq!(kind(e.fsync(first, true)), ErrorKind::Io);
}

#[test]
fn a_failure_that_lasts_is_heard_of_once() {
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    for bytes in [b"one", b"two"] {
        e.write(first, 0, bytes).unwrap();
        store.faults.writes_fail.store(true, Relaxed);
        assert_eq!(kind(e.fsync(first, false)), ErrorKind::NoSpace);
        // Others try again and again.
        for _ in 0..3 {
            assert_eq!(kind(e.flush(second)), ErrorKind::NoSpace);
        }
        store.faults.writes_fail.store(false, Relaxed);
        e.flush(second).unwrap();
        assert_eq!(stored(&store, ino), bytes);
        e.flush(first).unwrap();
    }
    // After a success it is another failure.
    e.write(first, 0, b"end").unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    assert_eq!(kind(e.flush(second)), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(kind(e.flush(first)), ErrorKind::NoSpace);
}

#[test]
fn everyone_sees_a_write_that_was_accepted_before_it_was_stored() {
    const LEN: usize = 8 * UNIT;
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    let mut early = 0;
    e.write_behind(fh, 0, &[1; LEN], &mut || early += 1).unwrap();
    assert_eq!(early, 0, "it continues nothing");
    let gate = store.faults.write_gate.lock().unwrap();
    std::thread::scope(|threads| {
        let (accepted, told) = channel();
        let engine = &e;
        threads
            .spawn(move || engine.write_behind(fh, LEN as u64, &[2; LEN], &mut || accepted.send(()).unwrap()).unwrap());
        told.recv().expect("accepted while the store is busy");
        assert_eq!(store.inner.getattr(ino).unwrap().size, LEN as u64);
        let size = threads.spawn(|| e.getattr(ino, None).unwrap().0.size);
        let looked_up = threads.spawn(|| e.lookup(ROOT, name("f")).unwrap().attr.size);
        let content = threads.spawn(|| read_all(&e, fh));
        let closed = threads.spawn(|| {
            e.flush(fh).unwrap();
            stored(&store, ino).len()
        });
        // Whoever does not wait for the write has answered by now.
        std::thread::sleep(Duration::from_millis(20));
        drop(gate);
        assert_eq!(size.join().unwrap(), 2 * LEN as u64);
        assert_eq!(looked_up.join().unwrap(), 2 * LEN as u64);
        assert_eq!(content.join().unwrap(), [[1; LEN], [2; LEN]].concat());
        assert_eq!(closed.join().unwrap(), 2 * LEN);
    });
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn an_accepted_write_that_fails_is_kept_and_told() {
    const LEN: usize = 8 * UNIT;
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    let mut early = 0;
    e.write_behind(first, 0, &[1; LEN], &mut || early += 1).unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    e.write_behind(first, LEN as u64, &[2; LEN], &mut || early += 1).unwrap();
    assert_eq!(early, 1);
    assert_eq!(e.stats().dirty_bytes, LEN as u64);
    assert_eq!(e.getattr(ino, None).unwrap().0.size, 2 * LEN as u64);
    let next = e.write_behind(first, 2 * LEN as u64, &[3; LEN], &mut || early += 1);
    assert_eq!((kind(next), early), (ErrorKind::NoSpace, 1), "the writer hears of the next failure at once");
    assert_eq!(kind(e.flush(first)), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(kind(e.release(second)), ErrorKind::NoSpace, "it had not heard of the failure yet");
    e.release(first).unwrap();
    assert_eq!(stored(&store, ino), [[1; LEN], [2; LEN]].concat());
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn a_run_of_small_writes_that_was_accepted_and_fails_is_kept_and_told() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    store.faults.writes_fail.store(true, Relaxed);
    let (mut early, mut at) = (0, 0);
    let mut write = |at: u64| e.write_behind(fh, at, &[7; UNIT], &mut || early += 1);
    let refused = loop {
        match write(at) {
            Ok(_) => at += UNIT as u64,
            Err(error) => break error.kind(),
        }
        assert!(at < 4 << 20);
    };
    assert_eq!((refused, early, at), (ErrorKind::NoSpace, 1, 1 << 20));
    assert_eq!(kind(e.flush(fh)), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    e.flush(fh).unwrap();
    assert!(stored(&store, ino).iter().all(|&b| b == 7));
    assert!(store.inner.getattr(ino).unwrap().size >= at);
}

#[test]
fn what_cannot_be_stored_goes_with_the_last_handle() {
    let (store, e) = engine();
    let (ino, first) = create(&e, "f");
    let second = e.open(ino, Access::Write, false).unwrap().fh;
    e.write(first, 0, b"lost").unwrap();
    store.faults.writes_fail.store(true, Relaxed);
    assert_eq!(kind(e.release(first)), ErrorKind::NoSpace);
    assert_eq!(e.stats().dirty_bytes, UNIT as u64, "another handle is open: there is another try");
    assert_eq!(kind(e.release(second)), ErrorKind::NoSpace);
    assert_eq!(e.stats().dirty_bytes, 0);
    store.faults.writes_fail.store(false, Relaxed);
    assert_eq!(e.getattr(ino, None).unwrap().0.size, 0);
    let again = e.open(ino, Access::Write, false).unwrap().fh;
    e.write(again, 0, b"new").unwrap();
    e.release(again).unwrap();
    assert_eq!(stored(&store, ino), b"new");
}

#[test]
fn dirty_data_is_bounded_and_a_full_store_refuses_the_writer() {
    let limits = Limits { unit_len_bytes: UNIT as u32, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 256 << 10));
    let files: Vec<_> = (0..4).map(|i| create(&e, &format!("f{i}"))).collect();
    for i in 0..400_u64 {
        // Every other unit, so that no run arises.
        e.write(files[i as usize % 4].1, i / 4 * 2 * UNIT as u64, &[1; 100]).unwrap();
        assert!(e.stats().dirty_bytes <= 128 << 10);
    }
    store.faults.writes_fail.store(true, Relaxed);
    let refused = (0..400_u64).map(|i| e.write(files[0].1, i * 2 * UNIT as u64, &[2; 100])).find(|r| r.is_err());
    assert_eq!(kind(refused.expect("the limit is met")), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    files.iter().for_each(|f| drop(e.release(f.1)));
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn many_files_with_a_block_each_stay_within_the_share() {
    const FILES: u64 = 300;
    let limits = Limits { unit_len_bytes: UNIT as u32, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 1 << 20));
    // Three sixteenths of the budget: 48 blocks.
    let share = (1 << 20) / 16 * 3;
    let fill = |thread: u64| {
        let files: Vec<_> = (0..FILES).map(|i| create(&e, &format!("{thread}-{i}"))).collect();
        for at in [10, 5000, 20] {
            for &(ino, fh) in &files {
                e.write(fh, at, &[ino.0 as u8; 7]).unwrap();
                let held = e.stats().dirty_bytes;
                assert!(held <= share, "{held} of {share} bytes");
            }
        }
        files
    };
    let files: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4).map(|thread| s.spawn(move || fill(thread))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    for (ino, fh) in files {
        e.release(fh).unwrap();
        let mut expected = vec![0; 5007];
        [10, 20, 5000].iter().for_each(|&at| expected[at..at + 7].fill(ino.0 as u8));
        assert_eq!(stored(&store, ino), expected);
    }
    assert_eq!(e.stats().dirty_bytes, 0);
}

#[test]
fn a_writer_that_finds_the_share_taken_hears_of_its_own_failure_only() {
    let limits = Limits { unit_len_bytes: UNIT as u32, ..Limits::default() };
    let (store, e) = engine_with(limits, options(LONG, 1 << 20));
    let (full, full_fh) = create(&e, "full");
    store.faults.writes_fail.store(true, Relaxed);
    (0..48).for_each(|i| assert_eq!(e.write(full_fh, i * 2 * UNIT as u64, b"x").unwrap(), 1));
    let (ino, fh) = create(&e, "next");
    assert_eq!(kind(e.write(fh, 0, b"refused")), ErrorKind::NoSpace);
    store.faults.writes_fail.store(false, Relaxed);
    e.write(fh, 0, b"taken").unwrap();
    e.release(fh).unwrap();
    // Whether its write-back was tried while it could not work, nobody knows; its data is kept all the same.
    drop(e.release(full_fh));
    assert_eq!((stored(&store, ino), stored(&store, full).len()), (b"taken".to_vec(), 94 * UNIT + 1));
}

#[test]
fn old_data_is_written_back_by_itself() {
    let (store, e) = engine();
    let (ino, fh) = create(&e, "f");
    e.write(fh, 0, b"old").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while stored(&store, ino) != b"old" {
        assert!(Instant::now() < deadline, "nothing was written back");
        std::thread::yield_now();
    }
}

/// Random calls on the content of one file through two handles, against a vector of bytes.
#[test]
fn content_agrees_with_a_byte_vector() {
    for seed in adit_testkit::seeds(30) {
        let mut rng = Rng::new(seed);
        let memory = if rng.percent(50) { 64 << 20 } else { 64 << 10 };
        let limits = Limits { unit_len_bytes: 512, shared: rng.percent(50), ..Limits::default() };
        let (store, e) = engine_with(limits, options(LONG, memory));
        let (ino, first) = create(&e, "f");
        let handles = [first, e.open(ino, Access::Write, false).unwrap().fh];
        let mut model: Vec<u8> = Vec::new();
        for step in 0..400 {
            let fh = *rng.pick(&handles);
            let offset = rng.below(12 * 512);
            let len = if rng.percent(70) { 1 + rng.below(700) } else { 1 + rng.below(8 * 512) };
            let end = (offset + len) as usize;
            match rng.below(12) {
                0..=4 => {
                    let mut data = vec![0; len as usize];
                    rng.fill(&mut data);
                    assert_eq!(e.write(fh, offset, &data).unwrap(), data.len());
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].copy_from_slice(&data);
                }
                5 => {
                    let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                    assert_eq!(e.setattr(ino, &set, None).unwrap().0.size, offset);
                    model.resize(offset as usize, 0);
                }
                6 => {
                    e.allocate(fh, offset, len, AllocateMode::PunchHole).unwrap();
                    let (a, b) = (model.len().min(offset as usize), model.len().min(end));
                    model[a..b].fill(0);
                }
                7 => {
                    e.allocate(fh, offset, len, AllocateMode::Extend).unwrap();
                    model.resize(model.len().max(end), 0);
                }
                8 => {
                    let from = rng.below(model.len() as u64 + 1);
                    let want = len.min(model.len() as u64 - from);
                    let to = rng.below(9000);
                    if from < to + len && to < from + len {
                        assert_eq!(kind(e.copy_range(handles[0], from, fh, to, len)), ErrorKind::InvalidInput);
                        continue;
                    }
                    assert_eq!(e.copy_range(handles[0], from, fh, to, want).unwrap(), want, "seed {seed}");
                    if want > 0 {
                        let bytes = model[from as usize..(from + want) as usize].to_vec();
                        model.resize(model.len().max((to + want) as usize), 0);
                        model[to as usize..(to + want) as usize].copy_from_slice(&bytes);
                    }
                }
                9 => e.flush(fh).unwrap(),
                _ => {}
            }
            let mut buf = vec![0xaa; len as usize];
            let n = e.read(*rng.pick(&handles), offset, &mut buf).unwrap();
            let (a, b) = (model.len().min(offset as usize), model.len().min(end));
            assert!(buf[..n] == model[a..b], "seed {seed}, step {step}: read of {len} at {offset}");
            assert_eq!(e.getattr(ino, None).unwrap().0.size, model.len() as u64, "seed {seed}, step {step}");
        }
        handles.iter().for_each(|&fh| e.release(fh).unwrap());
        assert!(stored(&store, ino) == model, "seed {seed}: what was stored differs");
        assert_eq!(e.stats().dirty_bytes, 0);
    }
}

/// Records that cross blocks and units, each one version number, repeated: through reads of every length, and whatever is
/// buffered, being flushed or in the cache of units.
#[test]
fn who_reads_after_a_write_returned_sees_it() {
    const RECORD_LEN: usize = 1000;
    const RECORDS: usize = 48;
    const VERSIONS: u64 = 60;
    for (memory_bytes, record_reads) in [(64 << 20, 1), (64 << 20, 9), (1 << 16, 1)] {
        let (_store, e) = engine_with(Limits::default(), options(LONG, memory_bytes));
        let (ino, fh) = create(&e, "shared");
        e.write(fh, 0, &[0; RECORDS * RECORD_LEN]).unwrap();
        let [begun, written]: [Vec<AtomicU64>; 2] = std::array::from_fn(|_| (0..RECORDS).map(|_| 0.into()).collect());
        let writing = AtomicU64::new(2);
        let write = |writer: usize| {
            let fh = e.open(ino, Access::Write, false).unwrap().fh;
            for version in 1..=VERSIONS {
                for record in (writer..RECORDS).step_by(2) {
                    begun[record].store(version, SeqCst);
                    e.write(fh, (record * RECORD_LEN) as u64, &version.to_le_bytes().repeat(RECORD_LEN / 8)).unwrap();
                    written[record].store(version, SeqCst);
                }
                // In turns, so that some is buffered and some is not.
                if version % 2 == writer as u64 {
                    e.flush(fh).unwrap();
                }
            }
            e.release(fh).unwrap();
            writing.fetch_sub(1, SeqCst);
        };
        let read = || {
            let fh = e.open(ino, Access::Read, false).unwrap().fh;
            let mut bytes = vec![0; record_reads * RECORD_LEN];
            while writing.load(SeqCst) > 0 {
                for first in (0..RECORDS - record_reads).step_by(record_reads) {
                    let least: Vec<u64> = written[first..first + record_reads].iter().map(|v| v.load(SeqCst)).collect();
                    assert_eq!(e.read(fh, (first * RECORD_LEN) as u64, &mut bytes).unwrap(), bytes.len());
                    for (at, record) in bytes.chunks_exact(RECORD_LEN).enumerate() {
                        let version = u64::from_le_bytes(record[..8].try_into().unwrap());
                        let allowed = least[at]..=begun[first + at].load(SeqCst);
                        assert!(
                            record.chunks_exact(8).all(|w| w == version.to_le_bytes()),
                            "record {} is torn",
                            first + at
                        );
                        assert!(allowed.contains(&version), "record {}: {version}, not {allowed:?}", first + at);
                    }
                }
            }
            e.release(fh).unwrap();
        };
        std::thread::scope(|scope| {
            let (write, read) = (&write, &read);
            (0..2).for_each(|writer| drop(scope.spawn(move || write(writer))));
            (0..4).for_each(|_| drop(scope.spawn(read)));
        });
        e.release(fh).unwrap();
    }
}
