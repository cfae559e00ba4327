//! A directory with very many entries through a mount of a volume: it is listed whole and looked through while others add and
//! remove. How long that took, and how much memory, is printed (`--nocapture`). A million entries in the long run, 20,000
//! otherwise.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::collections::HashSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use adit_testkit::scaled;
use mounts::{Mounts, status};
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom};

/// Entries of the long run, which has ten times the scale.
const MANY: usize = 1_000_000;
const SOME: usize = 20_000;
/// What a mount may take unless told otherwise.
const BUDGET: u64 = 256 << 20;

/// What a listing tells of one entry.
struct Listed {
    name: String,
    ino: u64,
    cookie: u64,
}

fn open_dir(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn make(dir: &OwnedFd, name: &str) {
    let made = rustix::fs::mknodat(dir, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0);
    made.unwrap_or_else(|e| panic!("{name}: {e}"));
}

/// Lists what comes behind a cookie, as long as `more` says so.
fn list(dir: &OwnedFd, behind: u64, mut more: impl FnMut(Listed) -> bool) {
    rustix::fs::seek(dir, SeekFrom::Start(behind)).unwrap();
    let mut buf = [MaybeUninit::uninit(); 32 << 10];
    let mut listing = RawDir::new(dir.as_fd(), &mut buf);
    while let Some(entry) = listing.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        if !more(Listed { name, ino: entry.ino(), cookie: entry.next_entry_cookie() }) {
            return;
        }
    }
}

/// The entries that stay, in the order of the listing: each comes once, and so does every other.
fn those_that_stay(dir: &OwnedFd, count: usize) -> Vec<Listed> {
    let (mut stay, mut others) = (Vec::with_capacity(count), HashSet::new());
    let mut seen = vec![false; count];
    list(dir, 0, |listed| {
        match listed.name.strip_prefix("stays-") {
            Some(number) => {
                let number: usize = number.parse().unwrap();
                assert!(!std::mem::replace(&mut seen[number], true), "{} comes twice", listed.name);
                stay.push(listed);
            }
            None => assert!(others.insert(listed.name.clone()), "{} comes twice", listed.name),
        }
        true
    });
    assert_eq!(stay.len(), count, "what stays is left out");
    stay
}

#[test]
fn very_many_entries_are_listed_and_looked_up_while_others_come_and_go() {
    let count = if scaled(1) >= 10 { MANY } else { SOME };
    let Some(m) = Mounts::volume(&["--capacity", "8G"]) else { return };
    m.mount(&[]).expect(0);
    let path = m.at("dir");
    fs::create_dir(&path).unwrap();
    let dir = open_dir(&path);
    let mut took: Vec<(&str, Duration)> = Vec::new();
    let mut begun = Instant::now();
    let mut lap = |what| {
        took.push((what, begun.elapsed()));
        begun = Instant::now();
    };
    for n in 0..count {
        make(&dir, &format!("stays-{n}"));
        if n.is_multiple_of(20) {
            make(&dir, &format!("goes-{n}"));
        }
    }
    lap("made");
    let done = AtomicBool::new(false);
    let stay = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let dir = open_dir(&path);
            let mut rounds = 0;
            for n in (0..count).step_by(20) {
                if done.load(Relaxed) {
                    break;
                }
                make(&dir, &format!("comes-{n}"));
                rustix::fs::unlinkat(&dir, format!("goes-{n}"), rustix::fs::AtFlags::empty()).unwrap();
                rounds += 1;
            }
            rounds
        });
        let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let stay = those_that_stay(&dir, count);
            lap("listed beside changes");
            let again = those_that_stay(&dir, count);
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
        let mut next = None;
        list(&dir, stay[at].cookie, |listed| {
            if listed.name.starts_with("stays-") {
                next = Some((listed.name, listed.cookie));
            }
            next.is_none()
        });
        assert_eq!(next.as_ref(), Some(&(stay[at + 1].name.clone(), stay[at + 1].cookie)));
    }
    lap("sought by cookies");
    let used = |what: &str| {
        let (peak, program) = (status(m.pid(), "VmHWM"), status(m.pid(), "RssFile"));
        assert!(peak - program <= BUDGET, "{what}: {peak} - {program} bytes");
        (peak - program) >> 20
    };
    let making = used("making and listing");
    drop(dir);
    m.remount(&[]);
    lap("mounted anew");
    for Listed { name, ino, .. } in &stay {
        let meta = fs::symlink_metadata(path.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((meta.ino(), meta.is_file()), (*ino, true), "{name}");
    }
    lap("looked up");
    let looking = used("looking up");
    println!(
        "{count} entries: {took:.2?}; at the most {making} MiB to make and list them, {looking} MiB to look them up"
    );
    m.umount();
    m.expect_sound();
}
