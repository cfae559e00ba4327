use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::engine::clock::NEVER;
use crate::types::{Kind, Timestamp};

fn table() -> InodeTable {
    InodeTable::new(Arc::new(Budget::new(1 << 30)))
}

fn attr(ino: u64, size: u64) -> Attr {
    Attr {
        ino: Ino(ino),
        size,
        blocks: size.div_ceil(512),
        atime: Timestamp { secs: -5, nanos: 999_999_999 },
        mtime: Timestamp { secs: 1_700_000_000, nanos: size as u32 % 1_000_000_000 },
        ctime: Timestamp { secs: (1 << 33) + 7, nanos: 1 },
        kind: Kind::Symlink,
        perm: 0o7654,
        nlink: 3,
        uid: u32::MAX,
        gid: 7,
        rdev: 0,
    }
}

#[test]
fn a_hundred_thousand_inodes_come_and_go() {
    let t = table();
    for i in 2..100_002 {
        t.add_ref(Ino(i * 7)).unwrap();
        t.add_ref(Ino(i * 7)).unwrap();
    }
    assert_eq!(t.len(), 100_000);
    for i in 2..100_002 {
        let ino = Ino(i * 7);
        assert_eq!(t.count(ino), 2);
        assert!(!t.forget(ino, 1) && !t.reap(ino) && t.forget(ino, 1) && t.reap(ino), "{ino:?}");
        assert!(!t.known(ino) && !t.reap(ino));
    }
    assert_eq!(t.len(), 0);
}

#[test]
fn ten_thousand_inodes_take_a_hundred_bytes_each() {
    let t = table();
    for i in 0..10_000 {
        t.add_ref(Ino(i + 1000)).unwrap();
    }
    let each = t.budget.used_bytes(Part::Inodes) / 10_000;
    assert!(each <= 100, "{each} bytes per inode");
}

/// Files that are opened one after the other and forgotten take no more than so many at once, and are counted so.
#[test]
fn inodes_that_come_and_go_take_what_is_counted_and_no_more() {
    const KNOWN: u64 = 40_000;
    let t = table();
    let come = |i: u64| {
        t.add_ref(Ino(i)).unwrap();
        t.opened(&attr(i, 1));
    };
    (0..KNOWN).for_each(|i| come(i + 2));
    let counted = t.budget.used_bytes(Part::Inodes);
    assert!(counted <= t.weight() as u64 * 100, "{counted} bytes");
    for i in KNOWN..12 * KNOWN {
        come(i + 2);
        let gone = Ino(i - KNOWN + 2);
        assert!(t.forget(gone, 1) && t.reap(gone));
    }
    assert_eq!((t.len(), t.weight()), (KNOWN as usize, 2 * KNOWN as usize));
    let later = t.budget.used_bytes(Part::Inodes);
    assert!(later <= counted + counted / 4, "{counted} bytes, and then {later}");
    let allocated: usize = t.shards.iter().map(|shard| shard.writer.lock().rare.allocation_size()).sum();
    assert!(allocated as u64 <= KNOWN * 80, "{allocated} bytes of what is rare");
}

#[test]
fn attributes_come_back_whole_or_not_at_all() {
    let t = table();
    t.add_ref(Ino(9)).unwrap();
    assert_eq!(t.attr(Ino(9), 1), None);
    let plain = Attr { perm: 0o1654, ..attr(9, 77) };
    assert_eq!(t.fill(&plain, 10, t.since()), Fill::Current { foreign: false });
    assert_eq!(t.attr(Ino(9), 9), Some((plain, 10)));
    assert_eq!(t.attr(Ino(9), 10), None, "expired");
    t.fill(&attr(9, 77), 10, t.since());
    assert_eq!(t.attr(Ino(9), 9), None, "set-id bits are not kept where others change the store");
    t.fill(&attr(9, 77), NEVER, t.since());
    assert_eq!(t.attr(Ino(9), 9), Some((attr(9, 77), NEVER)));
    let device = Attr { size: 0, blocks: 0, kind: Kind::BlockDevice, rdev: 0x801, perm: 0o1654, ..attr(9, 0) };
    t.fill(&device, 10, t.since());
    assert_eq!(t.attr(Ino(9), 9), Some((device, 10)));
    let late = Attr { mtime: Timestamp { secs: 1 << 40, nanos: 0 }, ..attr(9, 78) };
    t.fill(&late, NEVER, t.since());
    assert_eq!(t.attr(Ino(9), 1), None, "a time that does not fit is not cached");
    assert_eq!(t.fill(&attr(10, 1), 10, t.since()), Fill::Unknown);
}

#[test]
fn attributes_older_than_an_own_change_are_not_kept() {
    let t = table();
    t.add_ref(Ino(9)).unwrap();
    t.add_ref(Ino(8)).unwrap();
    let since = t.since();
    t.changed(Ino(8));
    assert_eq!(t.fill(&attr(9, 1), NEVER, since), Fill::Current { foreign: false }, "another inode's change");
    t.changed(Ino(9));
    assert_eq!(t.attr(Ino(9), 1), None);
    assert_eq!(t.fill(&attr(9, 1), NEVER, since), Fill::Outrun);
    assert!(!t.own(&attr(9, 2), NEVER, since));
    assert!(t.own(&attr(9, 3), NEVER, t.since()));
    assert_eq!(t.attr(Ino(9), 1).unwrap().0.size, 3);
    assert_eq!(t.fill(&attr(9, 1), NEVER, since), Fill::Outrun, "an own change bumps as well");
    // A reference that arises after the mark does not hide what the store said.
    let since = t.since();
    t.changed(Ino(8));
    t.add_ref(Ino(11)).unwrap();
    assert_eq!(t.fill(&attr(11, 1), NEVER, since), Fill::Current { foreign: false });
}

#[test]
fn foreign_changes_are_told_from_own_ones() {
    let t = table();
    t.add_ref(Ino(9)).unwrap();
    assert!(!t.opened(&attr(9, 1)), "nothing is known of pages before the first opening");
    assert!(t.opened(&attr(9, 1)));
    assert_eq!(t.fill(&attr(9, 2), NEVER, t.since()), Fill::Current { foreign: true });
    assert_eq!(t.fill(&attr(9, 2), NEVER, t.since()), Fill::Current { foreign: false });
    t.changed(Ino(9));
    assert_eq!(t.fill(&attr(9, 3), NEVER, t.since()), Fill::Current { foreign: false }, "ours");
    assert!(!t.opened(&attr(9, 3)), "but the pages may be from before the foreign change");
    assert!(t.opened(&attr(9, 3)));
    assert!(!t.opened(&attr(9, 4)));
}

#[test]
fn random_references_agree_with_a_map() {
    let mut seed = 42_u64;
    let mut next = |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end
    };
    let (t, mut model) = (table(), HashMap::<u64, (u64, u64)>::new());
    for _ in 0..200_000 {
        let ino = 2 + next(600);
        let entry = model.get(&ino).copied();
        match next(5) {
            0 | 1 => {
                t.add_ref(Ino(ino)).unwrap();
                model.entry(ino).or_default().0 += 1;
            }
            2 => assert_eq!(t.pin(Ino(ino)).is_ok(), model.get_mut(&ino).map(|e| e.1 += 1).is_some()),
            3 => {
                let n = next(4);
                let zero = t.forget(Ino(ino), n.min(entry.map_or(0, |e| e.0)));
                if let Some(e) = model.get_mut(&ino) {
                    e.0 = e.0.saturating_sub(n);
                    assert_eq!(zero, *e == (0, 0));
                }
            }
            _ if entry.is_some_and(|e| e.1 > 0) => {
                model.get_mut(&ino).unwrap().1 -= 1;
                t.unpin(Ino(ino));
            }
            _ => {
                let gone = entry == Some((0, 0));
                assert_eq!(t.reap(Ino(ino)), gone);
                if gone {
                    model.remove(&ino);
                }
            }
        }
        assert_eq!(t.count(Ino(ino)), model.get(&ino).map_or(0, |e| e.0));
    }
    assert_eq!(t.len(), model.len());
    assert!(model.keys().all(|&ino| t.known(Ino(ino))));
}

/// Readers run against writers that move everything: what they see is a whole record of the right inode, or nothing.
#[test]
fn readers_never_see_a_torn_record() {
    let t = table();
    let stop = std::sync::atomic::AtomicBool::new(false);
    t.add_ref(Ino(1)).unwrap();
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let mut seen = 0_u64;
                while !stop.load(Relaxed) || seen == 0 {
                    for i in 1..200_u64 {
                        if let Some((a, _)) = t.attr(Ino(i), 1) {
                            assert_eq!((a.size / 1000, a), (i, attr(i, a.size)));
                            seen += 1;
                        }
                    }
                    assert!(t.known(Ino(1)));
                }
            });
        }
        let writers: Vec<_> = (0..2_u64)
            .map(|w| {
                let t = &t;
                s.spawn(move || {
                    for round in 0..300_u64 {
                        for i in (2 + w..200).step_by(2) {
                            t.add_ref(Ino(i)).unwrap();
                            t.fill(&attr(i, i * 1000 + round), NEVER, t.since());
                        }
                        for i in (2 + w..200).step_by(2) {
                            assert!(t.forget(Ino(i), 1) && t.reap(Ino(i)));
                        }
                    }
                    for i in (2 + w..200).step_by(2) {
                        t.add_ref(Ino(i)).unwrap();
                        t.fill(&attr(i, i * 1000), NEVER, t.since());
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Relaxed);
    });
    assert_eq!(t.len(), 199);
}

#[test]
fn a_sweep_goes_round_and_leaves_out_what_is_held() {
    let t = table();
    for i in 1..=1000 {
        t.add_ref(Ino(i)).unwrap();
    }
    for i in (1..=1000).step_by(10) {
        t.pin(Ino(i)).unwrap();
    }
    assert!(t.forget(Ino(2), 1) && t.reap(Ino(2)));
    let mut hand = Hand::default();
    let mut seen = std::collections::BTreeSet::new();
    let mut total = 0;
    while total < 899 {
        let part = t.sweep(&mut hand, 100.min(899 - total));
        total += part.len();
        seen.extend(part);
    }
    assert_eq!((total, seen.len()), (899, 899), "each once before any comes again");
    assert!(seen.iter().all(|ino| ino.0 % 10 != 1 && *ino != Ino(2)));
    assert!(t.sweep(&mut hand, 5000).len() >= 899, "and on from the start");
}
