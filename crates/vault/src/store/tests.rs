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

type Change = (&'static str, fn(&VaultStore) -> Result<()>);

/// Each kind of change that must make a checkpoint first, because the journal is full: while the disk is at it, names can
/// be looked up.
#[test]
fn names_do_not_wait_for_a_checkpoint_that_a_change_must_make() {
    const NEW: NewNode = NewNode { perm: 0o700, caller: CALLER };
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
        journal.touch();
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
