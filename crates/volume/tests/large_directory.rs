//! A directory with very many entries: it is listed whole and looked through while others add and remove. How long that took,
//! and how much memory, is printed (`--nocapture`). A million entries in the long run, 20,000 otherwise.

#[path = "support/volume.rs"]
mod support;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use adit_core::store::{NewNode, Store};
use adit_core::types::{FileName, Ino, Kind};
use adit_testkit::{own_caller, scaled};
use adit_volume::VolumeStore;

use support::{Place, check};

/// Entries of the long run, which has ten times the scale.
const MANY: usize = 1_000_000;
const SOME: usize = 20_000;
/// Entries that a reader takes at once.
const AT_ONCE: usize = 500;

fn make(store: &VolumeStore, dir: Ino, called: &str) -> Ino {
    let new = NewNode { perm: 0o644, umask: 0, caller: own_caller() };
    let ino = store.mknod(dir, FileName::new(called.as_bytes()).unwrap(), Kind::File, 0, &new).unwrap().ino;
    store.forget(ino);
    ino
}

/// What a listing tells of one entry.
struct Listed {
    name: String,
    ino: Ino,
    cookie: u64,
}

/// The entries behind a cookie, at most so many.
fn part(store: &VolumeStore, dir: Ino, behind: u64, max: usize) -> Vec<Listed> {
    let mut part = Vec::with_capacity(max);
    let listed = store.read_dir(dir, behind, &mut |entry| {
        part.push(Listed { name: entry.name.display().into_owned(), ino: entry.ino, cookie: entry.cookie });
        if part.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    listed.unwrap();
    part
}

/// The entries that stay, in the order of the listing: each comes once, and so does every other.
fn those_that_stay(store: &VolumeStore, dir: Ino, count: usize) -> Vec<Listed> {
    let (mut stay, mut others, mut behind) = (Vec::with_capacity(count), HashSet::new(), 0);
    loop {
        let part = part(store, dir, behind, AT_ONCE);
        let Some(last) = part.last() else { break };
        behind = last.cookie;
        for listed in part {
            if listed.name.starts_with("stays-") {
                stay.push(listed);
            } else {
                assert!(others.insert(listed.name.clone()), "{} comes twice", listed.name);
            }
        }
    }
    let mut seen = vec![false; count];
    for Listed { name, .. } in &stay {
        let number: usize = name["stays-".len()..].parse().unwrap();
        assert!(!std::mem::replace(&mut seen[number], true), "{name} comes twice");
    }
    assert_eq!(stay.len(), count, "what stays is left out");
    stay
}

/// The most memory that this process had, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn very_many_entries_are_listed_and_looked_up_while_others_come_and_go() {
    let count = if scaled(1) >= 10 { MANY } else { SOME };
    let (place, volume) = Place::with(8 << 30);
    let store = volume.live().unwrap();
    let new = NewNode { perm: 0o755, umask: 0, caller: own_caller() };
    let dir = store.mkdir(Ino::ROOT, FileName::new(b"dir").unwrap(), &new).unwrap().ino;
    let mut took: Vec<(&str, Duration)> = Vec::new();
    let mut begun = Instant::now();
    let mut lap = |what| {
        took.push((what, begun.elapsed()));
        begun = Instant::now();
    };
    for n in 0..count {
        make(&store, dir, &format!("stays-{n}"));
        if n.is_multiple_of(20) {
            make(&store, dir, &format!("goes-{n}"));
        }
    }
    lap("made");
    let done = AtomicBool::new(false);
    let stay = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut rounds = 0;
            for n in (0..count).step_by(20) {
                if done.load(Relaxed) {
                    break;
                }
                make(&store, dir, &format!("comes-{n}"));
                store.unlink(dir, FileName::new(format!("goes-{n}").as_bytes()).unwrap()).unwrap();
                rounds += 1;
            }
            rounds
        });
        let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let stay = those_that_stay(&store, dir, count);
            lap("listed beside changes");
            let again = those_that_stay(&store, dir, count);
            assert!(stay.iter().map(|e| (e.ino, e.cookie)).eq(again.iter().map(|e| (e.ino, e.cookie))));
            lap("and again");
            stay
        }));
        done.store(true, Relaxed);
        assert!(changes.join().unwrap() > 0);
        listed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    // A cookie of a while ago leads to what comes behind it still.
    for at in (0..count - 1).step_by(count / 100) {
        let behind = part(&store, dir, stay[at].cookie, AT_ONCE);
        let next = behind.iter().find(|listed| listed.name.starts_with("stays-")).expect("it is among the next");
        assert_eq!((&next.name, next.cookie), (&stay[at + 1].name, stay[at + 1].cookie));
    }
    lap("sought by cookies");
    drop(store);
    volume.close().unwrap();
    drop(volume);
    let volume = place.open();
    let store = volume.live().unwrap();
    lap("opened anew");
    for Listed { name, ino, .. } in &stay {
        let attr = store.lookup(dir, FileName::new(name.as_bytes()).unwrap()).unwrap();
        assert_eq!((attr.ino, attr.kind), (*ino, Kind::File), "{name}");
        store.forget(attr.ino);
    }
    lap("looked up");
    println!("{count} entries: {took:.2?}; {} KiB at the most, with the test's own", peak_kib());
    drop(store);
    check(&volume);
}
