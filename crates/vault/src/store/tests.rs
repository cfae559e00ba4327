//! Who waits for whom.

use std::sync::mpsc::channel;

use adit_core::store::NewNode;
use adit_testkit::crash::{CrashWorld, Mode, SyncKind};

use super::*;
use crate::format::ScryptParams;
use crate::vault::{CreateOptions, create, unlock};

/// What is not there after this long waits for something.
const LIMIT: Duration = Duration::from_secs(60);
const CALLER: Caller = Caller { uid: 0, gid: 0 };

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn open(world: &CrashWorld) -> VaultStore {
    let root = world.dir("vault");
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    create(&root, "password", &CreateOptions { scrypt, ..CreateOptions::default() }).unwrap();
    let keys = unlock(&root, "password").unwrap();
    let options = OpenOptions {
        root: Arc::new(root),
        state: Some(Arc::new(world.dir("state"))),
        abandoned: Vec::new(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: false,
    };
    VaultStore::open(options).unwrap().0
}

const NEW: NewNode = NewNode { perm: 0o700, umask: 0, caller: CALLER };

/// Makes the file `name` with three chunks.
fn three_chunks(store: &VaultStore, text: &str) -> Arc<dyn StoreFile> {
    let (_, file) = store.create(Ino::ROOT, name(text), &NEW).unwrap();
    file.write_at(&[(0, &[1; 3 * CHUNK_CLEAR_BYTES as usize])]).unwrap();
    file
}

/// While the medium makes a file durable, which can take seconds, nobody else waits: not even once a checkpoint is due.
#[test]
fn nobody_waits_for_an_fsync_of_someone_else() {
    let world = CrashWorld::new(Mode::Kill);
    let store = open(&world);
    let file = three_chunks(&store, "f");
    let (held, at_the_disk) = channel();
    world.hold_syncs(move |call| call.kind == SyncKind::File && held.send(()).is_ok());
    let (done, result) = channel();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| file.sync(false));
        at_the_disk.recv_timeout(LIMIT).unwrap();
        scope.spawn(|| {
            let others = || {
                store.sync_all()?;
                store.create(Ino::ROOT, name("new"), &NEW)?;
                file.write_at(&[(5, b"beside it")])?;
                store.rename(Ino::ROOT, name("new"), Ino::ROOT, name("moved"), RenameFlags::empty())?;
                store.lookup(Ino::ROOT, name("moved")).map(drop)
            };
            done.send(others())
        });
        let others = result.recv_timeout(LIMIT);
        world.release();
        others.expect("all wait for the medium").unwrap();
        syncing.join().unwrap().unwrap();
    });
}

/// A file is overwritten while the medium makes it durable, and again afterwards: what was there at the `fsync` is never
/// torn, nor is the file cut.
#[test]
fn what_an_fsync_promised_is_kept_though_the_file_changes_beside_it() {
    let world = CrashWorld::new(Mode::Adversarial);
    let store = open(&world);
    let keys = unlock(&world.dir("vault"), "password").unwrap();
    store.sync_all().unwrap();
    world.settle();
    let file = three_chunks(&store, "f");
    let (held, at_the_disk) = channel();
    world.hold_syncs(move |call| call.kind == SyncKind::File && held.send(()).is_ok());
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| file.sync(false));
        at_the_disk.recv_timeout(LIMIT).unwrap();
        file.write_at(&[(5, &[2; 100])]).unwrap();
        world.release();
        syncing.join().unwrap().unwrap();
    });
    file.write_at(&[(500, &[3; 100])]).unwrap();
    let mut rng = adit_testkit::Rng::new(3);
    for pattern in adit_testkit::crash::patterns(&world, 30) {
        let left = world.crash(pattern, &mut rng);
        let options = OpenOptions {
            root: Arc::new(left.dir("vault")),
            state: Some(Arc::new(left.dir("state"))),
            abandoned: Vec::new(),
            masterkey: &keys.masterkey,
            config: &keys.config,
            background: false,
        };
        let (store, _) = VaultStore::open(options).unwrap();
        let found = store.lookup(Ino::ROOT, name("f")).unwrap();
        let mut bytes = vec![0; 3 * CHUNK_CLEAR_BYTES as usize];
        let got = store.open(found.ino, Access::Read).unwrap().read_at(0, &mut bytes).unwrap();
        assert_eq!(got, bytes.len(), "{pattern:?}");
        assert!(bytes[1000..].iter().all(|&byte| byte == 1), "{pattern:?}");
    }
    world.stop_after(0);
}

/// Two ask for the same file, and the host tells its failure to the first: the second has no success to report.
#[test]
fn an_fsync_that_waited_for_one_that_failed_fails_too() {
    let world = CrashWorld::new(Mode::Kill);
    let store = open(&world);
    let file = three_chunks(&store, "f");
    let (held, at_the_disk) = channel();
    world.hold_syncs(move |call| call.kind == SyncKind::File && held.send(()).is_ok());
    // The entries of the new file's directory need no sync.
    store.sync_all().unwrap();
    world.fail_sync_after(0);
    let (begun, begins) = channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| file.sync(false));
        at_the_disk.recv_timeout(LIMIT).unwrap();
        let second = scope.spawn(|| {
            begun.send(()).unwrap();
            file.sync(false)
        });
        begins.recv_timeout(LIMIT).unwrap();
        world.release();
        assert!(first.join().unwrap().is_err());
        assert!(second.join().unwrap().is_err());
    });
}

type Change = (&'static str, fn(&VaultStore) -> Result<()>);

/// Each kind of change that must make a checkpoint first, because the journal is full: while the disk is at it, names can
/// be looked up.
#[test]
fn names_do_not_wait_for_a_checkpoint_that_a_change_must_make() {
    let changes: [Change; 7] = [
        ("create", |s| s.create(Ino::ROOT, name("new"), &NEW).map(drop)),
        ("mkdir", |s| s.mkdir(Ino::ROOT, name("dir"), &NEW).map(drop)),
        ("symlink", |s| s.symlink(Ino::ROOT, name("link"), b"target", CALLER).map(drop)),
        ("rename", |s| s.rename(Ino::ROOT, name("new"), Ino::ROOT, name("other"), RenameFlags::empty())),
        ("unlink", |s| s.unlink(Ino::ROOT, name("other"))),
        ("rmdir", |s| s.rmdir(Ino::ROOT, name("dir"))),
        ("fsync of a directory", |s| s.sync_dir(Ino::ROOT)),
    ];
    let world = CrashWorld::new(Mode::Kill);
    let store = open(&world);
    store.create(Ino::ROOT, name("there"), &NEW).unwrap();
    for (what, change) in changes {
        let journal = store.shared.journal.as_ref().unwrap();
        journal.pretend_full();
        journal.begin().unwrap().touch();
        let (held, at_the_disk) = channel();
        world.hold_syncs(move |call| call.kind == SyncKind::All && held.send(()).is_ok());
        let (done, result) = channel();
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| change(&store));
            at_the_disk.recv_timeout(LIMIT).unwrap_or_else(|e| panic!("{what} makes no checkpoint: {e}"));
            scope.spawn(|| done.send(store.lookup(Ino::ROOT, name("there")).map(drop)));
            let looked_up = result.recv_timeout(LIMIT);
            world.release();
            looked_up.unwrap_or_else(|_| panic!("a lookup waits for the checkpoint of {what}")).unwrap();
            changing.join().unwrap().unwrap_or_else(|e| panic!("{what}: {e}"));
        });
    }
}
