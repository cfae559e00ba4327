//! What the records of a segment are taken to tell.

use adit_testkit::crash::{CrashWorld, Mode, SyncKind};

use super::super::record::Record;
use super::super::{FileId, Journal, RUN_HEADROOM_BYTES};
use super::*;

const ID: VaultId = [7; 16];
const NONCE_LEN: usize = 12;
const INO: u64 = 5;

fn read(world: &CrashWorld) -> Story {
    let state: Arc<dyn HostDir> = Arc::new(world.dir("state"));
    let left = leftovers(&state, 0).unwrap();
    let (story, known) = Story::of(&left, ID, NONCE_LEN).unwrap();
    assert_eq!(known, left.len());
    story
}

/// A file is changed and closed; another client removes it, and the host gives its inode number to another file. What
/// happens to that one must not be told of the first: what the journal has of it would be lost.
#[test]
fn an_inode_number_that_is_used_again_is_another_file() {
    let world = CrashWorld::new(Mode::Kill);
    let journal = Journal::create(Arc::new(world.dir("vault")), Arc::new(world.dir("state")), ID).unwrap();
    let (ours, theirs) = ([1; 68], [2; 68]);
    let path = || Some("d/AB/ours.c9r".to_owned());
    let file = FileId { host_ino: INO, header: &ours, nonce_len: NONCE_LEN, path: &path };
    let other = FileId { header: &theirs, ..file };
    let nonce = |file: &FileId<'_>| Some(file.header[..NONCE_LEN].to_vec());

    let op = journal.begin().unwrap();
    op.declare(&file, 40_000).unwrap();
    let mut run = vec![0; RUN_HEADROOM_BYTES + 100];
    op.write_run(&file, 40_000, (&mut run, RUN_HEADROOM_BYTES + 100), 0, &[(100, vec![3; NONCE_LEN])]).unwrap();
    op.settled(&other, 1).unwrap();
    op.cancel(&other, 0, 1).unwrap();
    op.moving(INO, || nonce(&other), "d/AB/theirs.c9r").unwrap();
    let _ = op.unlinking(INO, || nonce(&other)).unwrap();
    let story = read(&world);
    let state = &story.files[&ours[..NONCE_LEN]];
    assert_eq!((state.chunks.len(), state.floor, state.unlinked), (1, 40_000, false));
    assert_eq!(state.paths, ["d/AB/ours.c9r"]);

    // What cannot be read counts as the file that is known.
    op.moving(INO, || None, "d/AB/moved.c9r").unwrap();
    op.settled(&file, 30_000).unwrap();
    let _ = op.unlinking(INO, || nonce(&file)).unwrap();
    let story = read(&world);
    let state = &story.files[&ours[..NONCE_LEN]];
    assert_eq!((state.chunks.len(), state.floor, state.unlinked), (0, 30_000, true));
    assert_eq!(state.paths, ["d/AB/ours.c9r", "d/AB/moved.c9r"]);
}

/// A file is changed, a checkpoint begins and does not end, and the file is removed: both segments are there, and what the
/// first one tells of the file is not to be looked for.
#[test]
fn a_file_that_goes_while_its_epoch_ends_is_not_missed() {
    let world = CrashWorld::new(Mode::Kill);
    let journal = Journal::create(Arc::new(world.dir("vault")), Arc::new(world.dir("state")), ID).unwrap();
    let header = [1; 68];
    let path = || Some("d/AB/file.c9r".to_owned());
    let file = FileId { host_ino: INO, header: &header, nonce_len: NONCE_LEN, path: &path };
    let op = journal.begin().unwrap();
    op.declare(&file, 40_000).unwrap();
    let mut run = vec![0; RUN_HEADROOM_BYTES + 100];
    op.write_run(&file, 40_000, (&mut run, RUN_HEADROOM_BYTES + 100), 0, &[(100, vec![3; NONCE_LEN])]).unwrap();
    drop(op);
    let (held, waiting) = std::sync::mpsc::channel();
    world.hold_syncs(move |call| call.kind == SyncKind::All && held.send(()).is_ok());
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| journal.checkpoint(Journal::is_dirty));
        waiting.recv().unwrap();
        let op = journal.begin().unwrap();
        let _ = op.unlinking(INO, || Some(vec![2; NONCE_LEN])).unwrap();
        let other = read(&world).files[&header[..NONCE_LEN]].unlinked;
        let _ = op.unlinking(INO, || Some(header[..NONCE_LEN].to_vec())).unwrap();
        drop(op);
        let story = read(&world);
        world.release();
        assert!(checkpoint.join().unwrap().unwrap());
        assert!(!other, "another file with that number");
        assert!(story.files[&header[..NONCE_LEN]].unlinked);
    });
}

#[test]
fn only_what_changed_since_the_loss_may_be_ours() {
    let epochs = |incarnations: &[(Option<[u8; 16]>, i64)]| {
        let mut story = Story::default();
        for (n, &(incarnation, began_secs)) in incarnations.iter().enumerate() {
            let begin = Record::Begin { version: 2, vault: ID, seed: [0; 32], incarnation, began_secs };
            assert!(story.take(&mut story::Segment::new((0, n), ID, NONCE_LEN), begin, &[], 0));
        }
        story
    };
    let now = Some([9; 16]);
    assert_eq!(epochs(&[(now, 50), (now, 60)]).lost_since(now), None, "a kill");
    assert_eq!(epochs(&[(Some([8; 16]), 70), (now, 60)]).lost_since(now), Some(70), "a power cut");
    assert_eq!(epochs(&[(None, 70), (None, 60)]).lost_since(None), Some(60), "unknown");
    assert_eq!(epochs(&[(None, i64::MIN)]).lost_since(now), Some(i64::MIN), "an old segment");
    let world = CrashWorld::new(Mode::Kill);
    let object = world.dir("vault").stat(Path::new("")).unwrap();
    let at = object.ctime.secs;
    assert!(!may_be_ours(None, &object));
    assert!(may_be_ours(Some(at + CLOCK_SLACK_SECS), &object) && may_be_ours(Some(i64::MIN), &object));
    assert!(!may_be_ours(Some(at + CLOCK_SLACK_SECS + 1), &object));
}
