//! What becomes of finished segments, and of those who wait for a sync that fails.

use adit_testkit::crash::{CrashWorld, Mode, SyncKind};
use adit_testkit::faults::{CallClass, Fault, Faults};

use super::*;

/// A journal whose state directory has the faults of `faults`.
fn journal(world: &CrashWorld, faults: &Faults) -> Journal {
    Journal::create(Arc::new(world.dir("vault")), Arc::new(faults.wrap(world.dir("state"))), [7; 16]).unwrap()
}

/// Names and lengths of the segments.
fn segments(world: &CrashWorld) -> Vec<(String, u64)> {
    let (state, mut names) = (world.dir("state"), Vec::new());
    state.list(Path::new(""), &mut |e| names.push(String::from_utf8(e.name.to_vec()).unwrap())).unwrap();
    names.sort();
    let len = |name: &String| state.stat(Path::new(name)).unwrap().size;
    names.iter().map(|name| (name.clone(), len(name))).collect()
}

#[test]
fn a_segment_that_cannot_be_removed_tells_nothing_and_goes_later() {
    let (world, faults) = (CrashWorld::new(Mode::Kill), Faults::new());
    let journal = journal(&world, &faults);
    journal.begin().unwrap().touch();
    faults.arm(Fault::IO, &[CallClass::Remove], 0, 1);
    assert!(journal.checkpoint(Journal::is_dirty).unwrap());
    assert_eq!(faults.fired().len(), 1);
    let left = segments(&world);
    assert_eq!((left.len(), left[0].1), (2, 0), "the old one is empty: {left:?}");
    // Nothing is dirty, and it is removed all the same.
    assert!(!journal.checkpoint(Journal::is_dirty).unwrap());
    assert_eq!(segments(&world), left[1..]);
    journal.close().unwrap();
    assert_eq!(segments(&world), []);
}

#[test]
fn a_segment_that_can_be_neither_removed_nor_emptied_is_told_and_goes_later() {
    let (world, faults) = (CrashWorld::new(Mode::Kill), Faults::new());
    let journal = journal(&world, &faults);
    journal.begin().unwrap().touch();
    faults.arm(Fault::IO, &[CallClass::Remove, CallClass::SetLen], 0, 2);
    journal.checkpoint(Journal::is_dirty).unwrap_err();
    assert_eq!(segments(&world).len(), 2);
    assert!(journal.begin().is_ok(), "what was checkpointed is durable: the mount goes on");
    journal.close().unwrap();
    assert_eq!(segments(&world), [], "closing tries again");
}

#[test]
fn a_segment_that_could_not_be_started_leaves_nothing() {
    let (world, faults) = (CrashWorld::new(Mode::Kill), Faults::new());
    let journal = journal(&world, &faults);
    let before = segments(&world);
    journal.begin().unwrap().touch();
    faults.arm(Fault::NO_SPACE, &[CallClass::Sync], 0, 1);
    journal.checkpoint(Journal::is_dirty).unwrap_err();
    assert_eq!(segments(&world), before);
    assert!(journal.checkpoint(Journal::is_dirty).unwrap());
    assert_eq!(segments(&world).len(), 1);
}

#[test]
fn a_checkpoint_that_is_not_due_any_more_is_not_made() {
    let world = CrashWorld::new(Mode::Kill);
    let journal = journal(&world, &Faults::new());
    journal.pretend_full();
    journal.begin().unwrap().touch();
    assert!(journal.checkpoint(Journal::is_full).unwrap());
    let calls = world.calls();
    assert!(!journal.checkpoint(Journal::is_full).unwrap());
    assert_eq!(world.calls(), calls);
}

/// The host tells the failure of a sync once. Whoever waited for that sync must not take the next one's success for its own.
#[test]
fn who_waits_for_a_sync_that_fails_fails_too() {
    let world = CrashWorld::new(Mode::Kill);
    let journal = journal(&world, &Faults::new());
    let declare = |host_ino: u64| {
        let path = || Some(format!("d/AB/{host_ino}.c9r"));
        let header = [host_ino as u8; 68];
        let op = journal.begin()?;
        op.declare(&FileId { host_ino, header: &header, nonce_len: 12, path: &path }, 40_000)
    };
    let (held, waiting) = std::sync::mpsc::channel();
    world.hold_syncs(move |call| call.kind == SyncKind::FileData && held.send(()).is_ok());
    world.fail_sync_after(0);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| declare(1));
        waiting.recv().unwrap();
        let before = journal.written.load(Ordering::Acquire);
        let second = scope.spawn(|| declare(2));
        // Its record is written, so that it is past the check of whoever begins.
        while journal.written.load(Ordering::Acquire) == before {
            std::thread::yield_now();
        }
        world.release();
        assert!(first.join().unwrap().is_err());
        assert!(second.join().unwrap().is_err());
    });
}
