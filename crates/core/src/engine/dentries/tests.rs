use std::collections::HashMap;

use super::*;

fn cache(bytes: u64) -> Dentries {
    Dentries::new(Arc::new(Budget::new(bytes)))
}

fn name(bytes: &[u8]) -> FileName<'_> {
    FileName::new(bytes).unwrap()
}

const DIR: Ino = Ino(5);

#[test]
fn names_of_every_length_are_told_apart_by_their_bytes() {
    let d = cache(1 << 30);
    for len in 1..=255_usize {
        let bytes = vec![b'n'; len];
        d.insert(DIR, name(&bytes), Some(Ino(1000 + len as u64)), 9, d.since(DIR));
    }
    for len in 1..=255_usize {
        let mut bytes = vec![b'n'; len];
        let found = d.get(DIR, name(&bytes)).unwrap();
        assert_eq!(found, Dentry { child: Some(Ino(1000 + len as u64)), expiry: 9 });
        assert_eq!(d.get(Ino(6), name(&bytes)), None);
        bytes[len - 1] = b'm';
        assert_eq!(d.get(DIR, name(&bytes)), None);
    }
    assert_eq!(d.len(), 255);
    d.remove(DIR, name(b"nn"));
    assert_eq!(d.get(DIR, name(b"nn")), None);
    assert_eq!(d.len(), 254);
}

#[test]
fn a_change_of_the_directory_outruns_the_store() {
    let d = cache(1 << 30);
    let since = d.since(DIR);
    let now = d.changed(DIR);
    d.insert(DIR, name(b"a"), None, 9, since);
    assert_eq!(d.get(DIR, name(b"a")), None);
    d.insert(DIR, name(b"a"), None, 9, now);
    assert_eq!(d.get(DIR, name(b"a")), Some(Dentry { child: None, expiry: 9 }));
}

#[test]
fn entries_of_and_in_a_forgotten_inode_are_void() {
    let d = cache(1 << 30);
    d.insert(DIR, name(b"a"), Some(Ino(70)), 9, d.since(DIR));
    d.insert(Ino(70), name(b"b"), None, 9, d.since(Ino(70)));
    d.forgotten(Ino(70));
    assert_eq!(d.get(DIR, name(b"a")), None);
    assert_eq!(d.get(Ino(70), name(b"b")), None);
}

#[test]
fn ten_thousand_absent_names_stay_cached() {
    let d = cache(256 << 20);
    let names: Vec<String> = (0..10_000).map(|i| format!("missing-{i}")).collect();
    for n in &names {
        d.insert(DIR, name(n.as_bytes()), None, 9, d.since(DIR));
    }
    let kept = names.iter().filter(|n| d.get(DIR, name(n.as_bytes())).is_some()).count();
    // Before the table grows, a set may overflow.
    assert!(kept > 9_900, "{kept}");
}

#[test]
fn memory_stays_within_the_share_and_what_is_found_is_right() {
    let budget = Arc::new(Budget::new(8 << 20));
    let d = Dentries::new(budget.clone());
    let mut model = HashMap::new();
    for i in 0..50_000_u64 {
        let n = format!("{i}-{}", "x".repeat((i % 60) as usize));
        let child = (i % 3 == 0).then_some(Ino(i + 10));
        d.insert(Ino(i % 7), name(n.as_bytes()), child, 9, d.since(Ino(i % 7)));
        model.insert((i % 7, n), child);
    }
    assert!(
        budget.used_bytes(Part::Dentries) <= (8 << 20) / 32 + (80 << 10),
        "the first sets may exceed a small share"
    );
    let mut found = 0;
    for ((dir, n), child) in &model {
        if let Some(dentry) = d.get(Ino(*dir), name(n.as_bytes())) {
            assert_eq!(dentry.child, *child);
            found += 1;
        }
    }
    assert!(found > 100, "{found}");
}

#[test]
fn readers_never_see_a_torn_entry() {
    let d = cache(256 << 20);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    for i in 0..500_u64 {
                        if let Some(e) = d.get(DIR, name(format!("file-{i}").as_bytes())) {
                            assert!(e.child.is_none_or(|c| c.0 % 500 == i), "{i}: {e:?}");
                        }
                    }
                }
            });
        }
        for round in 1..200_u64 {
            for i in 0..500_u64 {
                let n = format!("file-{i}");
                let child = (round % 3 != 0).then_some(Ino(round * 500 + i));
                d.insert(DIR, name(n.as_bytes()), child, 9, d.since(DIR));
                if round % 5 == 0 {
                    d.remove(DIR, name(n.as_bytes()));
                }
            }
            // Growth in the middle of it.
            if round == 50 {
                (0..3000).for_each(|i| d.insert(DIR, name(format!("other-{i}").as_bytes()), None, 9, d.since(DIR)));
            }
        }
        stop.store(true, Relaxed);
    });
}
