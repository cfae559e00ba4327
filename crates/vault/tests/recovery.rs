//! Crash here, edit there, come back: nobody's edit is lost.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::media::{HostDir, HostFile, NewFile};
use adit_core::store::{DirEntry, NewNode, Store};
use adit_core::types::{Access, Caller, FileName, Ino, Kind, RenameFlags};
use adit_testkit::Rng;
use adit_testkit::crash::{CrashWorld, Mode, Pattern, SyncKind};
use adit_testkit::faults::{CallClass, Fault, Faults};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, OpenOptions, RecoveryReport, Unlocked, VaultStore};

const NEW: NewNode = NewNode { perm: 0o600, umask: 0, caller: Caller { uid: 0, gid: 0 } };

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn open(world: &CrashWorld, keys: &Unlocked, state: &str) -> (VaultStore, RecoveryReport) {
    VaultStore::open(OpenOptions {
        root: Arc::new(world.dir("vault")),
        state: Some(Arc::new(world.dir(state))),
        abandoned: Vec::new(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: false,
    })
    .unwrap()
}

/// Opens with the journal in `slots[0]`, and recovers those of the others first.
fn open_slots(world: &CrashWorld, keys: &Unlocked, slots: [&str; 2]) -> (VaultStore, RecoveryReport) {
    try_open_slots(world, keys, slots).unwrap()
}

fn try_open_slots(
    world: &CrashWorld,
    keys: &Unlocked,
    slots: [&str; 2],
) -> adit_core::Result<(VaultStore, RecoveryReport)> {
    VaultStore::open(OpenOptions {
        root: Arc::new(world.dir("vault")),
        state: Some(Arc::new(world.dir(slots[0]))),
        abandoned: vec![Arc::new(world.dir(slots[1]))],
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: false,
    })
}

fn read(store: &VaultStore, dir: Ino, file: &str) -> Vec<u8> {
    let attr = store.lookup(dir, name(file)).unwrap();
    let mut bytes = vec![0; attr.size as usize];
    let n = store.open(attr.ino, Access::Read).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(n, bytes.len());
    bytes
}

/// A world in which `/f` holds three chunks of `a`, durably, and a mount on machine A dies in the middle of overwriting the
/// second one: its record is in the journal, half of it is in the vault.
fn torn(combo: CipherCombo) -> (CrashWorld, Unlocked) {
    let world = CrashWorld::new(Mode::Kill);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    let options = CreateOptions { cipher_combo: combo, scrypt, ..CreateOptions::default() };
    adit_vault::create(&world.dir("vault"), "password", &options).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    let (store, _) = open(&world, &keys, "state-a");
    let (_, file) = store.create(Ino::ROOT, name("f"), &NEW).unwrap();
    file.write_at(&[(0, &[b'a'; 3 * 32768])]).unwrap();
    drop((file, store));
    world.settle();

    let (store, _) = open(&world, &keys, "state-a");
    let ino = store.lookup(Ino::ROOT, name("f")).unwrap().ino;
    let file = store.open(ino, Access::Write).unwrap();
    // Declared, synced, recorded, synced: the fifth call is the one into the vault.
    world.stop_after(4);
    file.write_at(&[(32768, &[b'b'; 32768])]).unwrap_err();
    let left = world.crash(Pattern::Random, &mut Rng::new(7));
    std::mem::forget((file, store)); // that process is dead: it closes nothing
    (left, keys)
}

#[test]
fn a_torn_chunk_is_written_again() {
    for combo in [CipherCombo::SivGcm, CipherCombo::SivCtrmac] {
        let (world, keys) = torn(combo);
        let (store, report) = open(&world, &keys, "state-a");
        assert_eq!((report.segments, report.chunks_rewritten), (1, 1));
        let content = read(&store, Ino::ROOT, "f");
        assert!(content[32768..65536].iter().all(|&b| b == b'b') && content[..32768].iter().all(|&b| b == b'a'));
    }
}

/// A world in which `/f` holds three chunks of `a`, and two mounts of it on one machine.
fn two_mounts() -> (CrashWorld, Unlocked, [VaultStore; 2]) {
    let world = CrashWorld::new(Mode::Kill);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    adit_vault::create(&world.dir("vault"), "password", &CreateOptions { scrypt, ..CreateOptions::default() }).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    let (store, _) = open(&world, &keys, "state-a");
    let (_, file) = store.create(Ino::ROOT, name("f"), &NEW).unwrap();
    file.write_at(&[(0, &[b'a'; 3 * 32768])]).unwrap();
    drop((file, store));
    let stores = ["state-a", "state-b"].map(|state| open(&world, &keys, state).0);
    (world, keys, stores)
}

fn to_write(store: &VaultStore) -> Arc<dyn adit_core::store::StoreFile> {
    store.open(store.lookup(Ino::ROOT, name("f")).unwrap().ino, Access::Write).unwrap()
}

#[test]
fn what_one_mount_made_durable_says_nothing_of_anothers_torn_chunk() {
    let (world, keys, [a, b]) = two_mounts();
    let (in_a, in_b) = (to_write(&a), to_write(&b));
    in_a.write_at(&[(32768, &[b'b'; 32768])]).unwrap();
    in_a.sync(false).unwrap();
    // Declared, synced, recorded, synced: the fifth call is the one into the vault.
    world.stop_after(4);
    in_b.write_at(&[(32768, &[b'c'; 32768])]).unwrap_err();
    for slots in [["state-a", "state-b"], ["state-b", "state-a"]] {
        for seed in 0..4 {
            let left = world.crash(Pattern::Random, &mut Rng::new(seed));
            let (store, report) = open_slots(&left, &keys, slots);
            let content = read(&store, Ino::ROOT, "f");
            assert!(content[32768..65536].iter().all(|&byte| byte == b'c'), "{slots:?}: {report:?}");
            assert!(report.conflicts.is_empty(), "{slots:?}: {report:?}");
        }
    }
    std::mem::forget((in_a, in_b, a, b)); // dead
}

#[test]
fn the_later_version_of_two_mounts_stays() {
    for [first, second] in [["state-a", "state-b"], ["state-b", "state-a"]] {
        let (world, keys, stores) = two_mounts();
        let files = stores.each_ref().map(to_write);
        let by = |state: &str| &files[usize::from(state == "state-b")];
        by(first).write_at(&[(0, &[b'b'; 10])]).unwrap();
        by(second).write_at(&[(10, &[b'c'; 10])]).unwrap();
        by(first).write_at(&[(20, &[b'd'; 10])]).unwrap();
        by(second).write_at(&[(30, &[b'e'; 10])]).unwrap();
        std::mem::forget((files, stores)); // dead
        let (store, report) = open_slots(&world, &keys, ["state-a", "state-b"]);
        let content = read(&store, Ino::ROOT, "f");
        assert_eq!(&content[..45], b"bbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaa");
        assert_eq!((report.chunks_rewritten, report.conflicts.len()), (0, 0));
    }
}

#[test]
fn another_clients_edit_is_kept_and_ours_is_saved() {
    let (world, keys) = torn(CipherCombo::SivGcm);
    // Machine B rewrites the file's second chunk as a whole, which needs none of the torn one.
    let (store, report) = open(&world, &keys, "state-b");
    assert_eq!(report, RecoveryReport::default(), "the other machine knows nothing of A's journal");
    let ino = store.lookup(Ino::ROOT, name("f")).unwrap().ino;
    store.open(ino, Access::Write).unwrap().write_at(&[(32768, &[b'c'; 32768])]).unwrap();
    drop(store);

    let (store, report) = open(&world, &keys, "state-a");
    assert_eq!(report.conflicts.len(), 1);
    assert!(read(&store, Ino::ROOT, "f")[32768..65536].iter().all(|&b| b == b'c'), "B's edit stays");
    let saved = saved_pieces(&store);
    assert_eq!(saved, [vec![b'b'; 32768]], "A's edit is in lost+found");
    drop(store);
    let (_, report) = open(&world, &keys, "state-a");
    assert_eq!(report, RecoveryReport::default(), "and it is told once");
}

#[test]
fn a_file_that_another_client_removed_leaves_our_edit_in_lost_and_found() {
    let (world, keys) = torn(CipherCombo::SivGcm);
    let (store, _) = open(&world, &keys, "state-b");
    store.unlink(Ino::ROOT, name("f")).unwrap();
    drop(store);
    let (store, report) = open(&world, &keys, "state-a");
    assert_eq!(report.conflicts.len(), 1);
    assert!(store.lookup(Ino::ROOT, name("f")).unwrap_err().is_not_found(), "it stays removed");
    assert_eq!(saved_pieces(&store), [vec![b'b'; 32768]]);
}

#[test]
fn a_file_that_another_client_renamed_is_not_mistaken() {
    let (world, keys) = torn(CipherCombo::SivGcm);
    let (store, _) = open(&world, &keys, "state-b");
    store.rename(Ino::ROOT, name("f"), Ino::ROOT, name("g"), RenameFlags::empty()).unwrap();
    let (_, file) = store.create(Ino::ROOT, name("f"), &NEW).unwrap();
    file.write_at(&[(0, b"another file")]).unwrap();
    drop((file, store));
    let (store, _) = open(&world, &keys, "state-a");
    assert_eq!(read(&store, Ino::ROOT, "f"), b"another file");
    assert_eq!(saved_pieces(&store), [vec![b'b'; 32768]]);
}

fn saved_pieces(store: &VaultStore) -> Vec<Vec<u8>> {
    let lost = store.lookup(Ino::ROOT, name("lost+found")).unwrap();
    assert_eq!(lost.kind, Kind::Directory);
    let mut names = Vec::new();
    store
        .read_dir(lost.ino, 0, &mut |e| {
            names.push(e.name.display().into_owned());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    names.iter().map(|n| read(store, lost.ino, n)).collect()
}

/// The files in `/lost+found` by name.
fn saved_files(store: &VaultStore) -> BTreeMap<String, Vec<u8>> {
    let Ok(lost) = store.lookup(Ino::ROOT, name("lost+found")) else { return BTreeMap::new() };
    let mut names = Vec::new();
    let mut note = |e: DirEntry<'_>| {
        names.push(e.name.display().into_owned());
        ControlFlow::Continue(())
    };
    store.read_dir(lost.ino, 0, &mut note).unwrap();
    names.into_iter().map(|n| (n.clone(), read(store, lost.ino, &n))).collect()
}

/// A machine dies with three changed chunks of a file in its journal, in two runs, while another one rewrites the file:
/// what is saved is one file, and where its parts belong. Recovery that dies after any of its calls, in any way, and is
/// repeated, saves it once.
#[test]
fn what_is_saved_is_one_file_however_often_recovery_is_cut_off() {
    const CHUNK: usize = 32768;
    let world = CrashWorld::new(Mode::Kill);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    adit_vault::create(&world.dir("vault"), "password", &CreateOptions { scrypt, ..CreateOptions::default() }).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    let (store, _) = open(&world, &keys, "state-a");
    let (_, file) = store.create(Ino::ROOT, name("f"), &NEW).unwrap();
    file.write_at(&[(0, &[b'a'; 6 * CHUNK])]).unwrap();
    drop((file, store));
    let (store, _) = open(&world, &keys, "state-a");
    let file = store.open(store.lookup(Ino::ROOT, name("f")).unwrap().ino, Access::Write).unwrap();
    file.write_at(&[(CHUNK as u64, &[b'b'; 2 * CHUNK]), (5 * CHUNK as u64, &[b'c'; CHUNK])]).unwrap();
    std::mem::forget((file, store)); // dead
    let (store, _) = open(&world, &keys, "state-b");
    let file = store.open(store.lookup(Ino::ROOT, name("f")).unwrap().ino, Access::Write).unwrap();
    file.write_at(&[(0, &[b'd'; 6 * CHUNK])]).unwrap();
    drop((file, store));
    world.settle();

    let judge = |world: &CrashWorld, when: &str| {
        let (store, _) = open(world, &keys, "state-a");
        assert!(read(&store, Ino::ROOT, "f").iter().all(|&b| b == b'd'), "{when}");
        let saved: Vec<(String, Vec<u8>)> = saved_files(&store).into_iter().collect();
        let [(data_name, data), (map_name, map)] = &saved[..] else {
            panic!("{when}: {:?}", saved.iter().map(|(n, b)| (n, b.len())).collect::<Vec<_>>());
        };
        assert!(data_name.starts_with("recovered-") && data_name.contains("-at-32768."), "{data_name}");
        assert!(data[..2 * CHUNK].iter().all(|&b| b == b'b') && data[2 * CHUNK..].iter().all(|&b| b == b'c'), "{when}");
        assert_eq!((data.len(), map_name), (3 * CHUNK, &format!("{data_name}.offsets")), "{when}");
        assert_eq!(map, b"32768 32768\n65536 32768\n163840 32768\n", "{when}");
    };
    let whole = world.fork();
    judge(&whole, "at once");
    let mut rng = Rng::new(9);
    for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
        for stop in 0..whole.calls() {
            let first = world.fork();
            first.set_mode(mode);
            first.stop_after(stop);
            let options = OpenOptions {
                root: Arc::new(first.dir("vault")),
                state: Some(Arc::new(first.dir("state-a"))),
                abandoned: Vec::new(),
                masterkey: &keys.masterkey,
                config: &keys.config,
                background: false,
            };
            drop(VaultStore::open(options));
            for pattern in [Pattern::None, Pattern::All, Pattern::HeadersOnly, Pattern::Random] {
                let left = first.crash(pattern, &mut rng);
                // The segment is gone only if what it told is safe.
                judge(&left, &format!("{mode:?}, {pattern:?} after {stop} calls"));
            }
        }
    }
}

/// Recovers `world` with a crash after each of recovery's calls, then once more, which has met nobody.
fn recover_twice(world: &CrashWorld, keys: &Unlocked, slots: [&str; 2], judge: impl Fn(&VaultStore, &str)) {
    let whole = world.fork();
    drop(open_slots(&whole, keys, slots));
    let mut rng = Rng::new(3);
    for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
        for stop in 0..=whole.calls() {
            let first = world.fork();
            first.set_mode(mode);
            first.stop_after(stop);
            drop(try_open_slots(&first, keys, slots));
            for pattern in [Pattern::None, Pattern::All, Pattern::Random] {
                let left = first.crash(pattern, &mut rng);
                let when = format!("{mode:?}, {pattern:?} after {stop} calls, {slots:?}");
                let (store, report) = open_slots(&left, keys, slots);
                assert_eq!((&report.conflicts, saved_files(&store).len()), (&Vec::new(), 0), "{when}");
                judge(&store, &when);
                drop(store);
                assert!(slots.iter().all(|slot| segments(&left, slot).is_empty()), "{when}");
            }
        }
    }
}

/// A power cut while a checkpoint waits for the disk leaves two segments: one tells that a chunk was new, the other one that
/// it was overwritten. Recovery that dies while it removes them leaves one, which must not be taken alone.
#[test]
fn what_segments_tell_together_none_of_them_tells_alone() {
    let world = CrashWorld::new(Mode::Adversarial);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    adit_vault::create(&world.dir("vault"), "password", &CreateOptions { scrypt, ..CreateOptions::default() }).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    let (store, _) = open(&world, &keys, "state-a");
    drop(store.create(Ino::ROOT, name("f"), &NEW).unwrap());
    drop(store);
    world.settle();
    let (store, _) = open(&world, &keys, "state-a");
    let file = to_write(&store);
    file.write_at(&[(0, b"new")]).unwrap();
    let (held, waiting) = std::sync::mpsc::channel();
    world.hold_syncs(move |call| call.kind == SyncKind::All && held.send(()).is_ok());
    let left = std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| store.sync_all());
        waiting.recv().unwrap();
        file.write_at(&[(0, &[b'b'; 32768])]).unwrap();
        let left = world.crash(Pattern::None, &mut Rng::new(1));
        world.stop_after(0);
        world.release();
        checkpoint.join().unwrap().unwrap_err();
        left
    });
    assert_eq!(segments(&left, "state-a").len(), 2);
    recover_twice(&left, &keys, ["state-a", "state-b"], |store, when| {
        assert_eq!(read(store, Ino::ROOT, "f"), b"", "{when}: it was never synced");
    });
}

/// One mount wrote over what the other one had written: without its journal, it would seem to be another client.
#[test]
fn what_slots_tell_together_none_of_them_tells_alone() {
    let (world, keys, stores) = two_mounts();
    let files = stores.each_ref().map(to_write);
    for (file, byte) in files.iter().zip([b'b', b'c']) {
        file.write_at(&[(0, &[byte; 32768])]).unwrap();
    }
    std::mem::forget((files, stores)); // dead
    world.settle();
    for slots in [["state-a", "state-b"], ["state-b", "state-a"]] {
        recover_twice(&world, &keys, slots, |store, when| {
            assert_eq!(read(store, Ino::ROOT, "f")[..32768], [b'c'; 32768], "{when}");
        });
    }
}

/// Another client's objects that are not whole yet, in a directory in which ours died making entries: after a kill all of
/// them stay, for we leave none; after a power cut what nobody could tell from ours is moved, and told.
#[test]
fn what_another_client_has_not_finished_stays_where_it_is() {
    for (mode, moved) in [(Mode::Kill, 0), (Mode::Journalled, 3)] {
        let world = CrashWorld::new(mode);
        let scrypt = ScryptParams { cost: 2, block_size: 1 };
        let options = CreateOptions { scrypt, ..CreateOptions::default() };
        adit_vault::create(&world.dir("vault"), "password", &options).unwrap();
        let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
        let (store, _) = open(&world, &keys, "state-a");
        store.create(Ino::ROOT, name("f"), &NEW).unwrap();
        let vault = world.dir("vault");
        let only = |dir: &str| {
            let mut names = Vec::new();
            vault.list(Path::new(dir), &mut |e| names.push(String::from_utf8(e.name.to_vec()).unwrap())).unwrap();
            format!("{dir}/{}", names.pop().unwrap())
        };
        let root = only(&only("d"));
        let publish = |path: &str, content: &[u8]| {
            let new = NewFile { content, perm: 0o600, owner: None, durable: true };
            vault.publish(Path::new(path), &new).unwrap();
        };
        let (empty, blank) = (format!("{root}/empty.c9r"), format!("{root}/blank.c9r"));
        publish(&empty, b"");
        publish(&blank, &[0; 200]);
        let (nameless, strange) = (format!("{root}/nameless.c9s"), format!("{root}/strange.c9s"));
        for folder in [&nameless, &strange] {
            vault.make_dir(Path::new(folder), 0o700, None).unwrap();
        }
        publish(&format!("{strange}/name.c9s.part"), b"half a na");
        let left = world.crash(Pattern::All, &mut Rng::new(1));
        std::mem::forget(store); // dead
        let (store, report) = open(&left, &keys, "state-a");
        assert_eq!(report.moved_aside.len(), moved, "{mode:?}: {report:?}");
        assert!(store.lookup(Ino::ROOT, name("f")).is_ok());
        let there = |path: &str| left.dir("vault").stat(Path::new(path)).is_ok();
        for path in [&empty, &blank, &nameless, &strange] {
            let to = report.moved_aside.iter().find(|(from, _)| from == path).map(|(_, to)| to);
            assert_eq!(there(path), to.is_none(), "{mode:?}: {path}");
            assert!(to.is_none_or(|to| there(to)), "{mode:?}: {path} is where the report says");
        }
        assert!(there(&strange), "{mode:?}: a folder with something that we never make");
    }
}

/// The segments in a state directory.
fn segments(world: &CrashWorld, state: &str) -> Vec<String> {
    let mut names = Vec::new();
    world.dir(state).list(Path::new(""), &mut |e| names.push(String::from_utf8(e.name.to_vec()).unwrap())).unwrap();
    names
}

/// The only entry of the vault's root directory.
fn only_entry(world: &CrashWorld) -> String {
    let mut at = "d".to_owned();
    for _ in 0..3 {
        let mut names = Vec::new();
        let mut note = |e: adit_core::media::HostEntry<'_>| names.push(String::from_utf8(e.name.to_vec()).unwrap());
        world.dir("vault").list(Path::new(&at), &mut note).unwrap();
        names.retain(|name| name != "dirid.c9r");
        assert_eq!(names.len(), 1, "{at}");
        at = format!("{at}/{}", names[0]);
    }
    at
}

/// Recovery meets a file that cannot be read or written, a full disk while it saves, a medium that takes nothing, a
/// journal that cannot be read: it fails with what the host says, the journal stays, the vault can be read as it is, and
/// once the fault is gone all is recovered.
#[test]
fn what_cannot_be_recovered_now_is_read_as_it_is_and_recovered_later() {
    const FULL: Fault = Fault::NO_SPACE;
    const READ_ONLY: Fault = Fault::Errno(libc::EROFS);
    for (saves, on_state, at_file, fault, kind) in [
        (false, false, true, Fault::IO, ErrorKind::Io),
        (false, false, false, READ_ONLY, ErrorKind::ReadOnly),
        (false, true, false, READ_ONLY, ErrorKind::ReadOnly),
        (false, true, false, FULL, ErrorKind::NoSpace),
        (true, false, false, FULL, ErrorKind::NoSpace),
        (true, false, false, Fault::HALF, ErrorKind::NoSpace),
        (true, false, false, READ_ONLY, ErrorKind::ReadOnly),
    ] {
        let when = format!("{fault:?}, saves {saves}, on state {on_state}, at file {at_file}");
        let (world, keys) = torn(CipherCombo::SivGcm);
        if saves {
            let (store, _) = open(&world, &keys, "state-b");
            store.unlink(Ino::ROOT, name("f")).unwrap();
            drop(store);
        }
        let before = segments(&world, "state-a");
        let (faults, none) = (Faults::new(), Faults::new());
        let (on_vault, on_journal) = if on_state { (&none, &faults) } else { (&faults, &none) };
        let try_open = |state: bool| {
            VaultStore::open(OpenOptions {
                root: Arc::new(on_vault.wrap(world.dir("vault"))),
                state: state.then(|| Arc::new(on_journal.wrap(world.dir("state-a"))) as Arc<dyn HostDir>),
                abandoned: Vec::new(),
                masterkey: &keys.masterkey,
                config: &keys.config,
                background: false,
            })
        };
        let file = at_file.then(|| only_entry(&world));
        match &file {
            Some(path) => faults.arm_at(path, fault, &[CallClass::Read, CallClass::Write]),
            None => faults.arm(fault, &CallClass::CHANGING, 0, u64::MAX),
        }
        for _ in 0..2 {
            let e = try_open(true).map(drop).unwrap_err();
            assert_eq!(e.kind(), kind, "{when}: {e}");
            assert!(file.as_ref().is_none_or(|path| e.to_string().contains(path)), "{when}: {e} names the file");
        }
        let left = segments(&world, "state-a");
        assert!(before.iter().all(|name| left.contains(name)), "{when}: the journal stays");
        let (store, report) = try_open(false).unwrap();
        assert_eq!(report, RecoveryReport::default(), "{when}");
        if !saves && !at_file {
            let file = store.open(store.lookup(Ino::ROOT, name("f")).unwrap().ino, Access::Read).unwrap();
            let mut chunk = [0; 32768];
            for (offset, sound) in [(0, true), (32768, false), (65536, true)] {
                let got = file.read_at(offset, &mut chunk);
                assert_eq!(got.is_ok(), sound, "{when}: what is torn cannot be read, the rest can");
                assert!(!sound || chunk == [b'a'; 32768], "{when}");
            }
        }
        drop(store);
        faults.disarm();
        let (store, _) = open(&world, &keys, "state-a");
        if saves {
            assert_eq!(saved_pieces(&store), [vec![b'b'; 32768]], "{when}");
        } else {
            assert!(read(&store, Ino::ROOT, "f")[32768..65536].iter().all(|&b| b == b'b'), "{when}");
        }
        drop(store);
        assert_eq!(segments(&world, "state-a"), Vec::<String>::new(), "{when}");
    }
}

/// One file of two cannot be recovered: the other one is.
#[test]
fn an_object_that_fails_does_not_keep_the_others_waiting() {
    let world = CrashWorld::new(Mode::Kill);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    adit_vault::create(&world.dir("vault"), "password", &CreateOptions { scrypt, ..CreateOptions::default() }).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    let (store, _) = open(&world, &keys, "state-a");
    let names = ["a", "b", "c", "d"];
    for text in names {
        let (_, file) = store.create(Ino::ROOT, name(text), &NEW).unwrap();
        file.write_at(&[(0, &[b'a'; 32768])]).unwrap();
    }
    drop(store);
    let (store, _) = open(&world, &keys, "state-a");
    let mut paths = Vec::new();
    for text in names {
        let ino = store.lookup(Ino::ROOT, name(text)).unwrap().ino;
        paths.push(store.path_of(ino).unwrap());
        store.open(ino, Access::Write).unwrap().write_at(&[(0, &[b'b'; 32768])]).unwrap();
    }
    std::mem::forget(store); // dead
    for path in &paths {
        world.dir("vault").open(Path::new(path), Access::Write).unwrap().write_at(100, &[0; 5000]).unwrap();
    }
    for bad in &paths {
        let (left, faults) = (world.fork(), Faults::new());
        faults.arm_at(bad, Fault::IO, &[CallClass::Write]);
        let e = VaultStore::open(OpenOptions {
            root: Arc::new(faults.wrap(left.dir("vault"))),
            state: Some(Arc::new(left.dir("state-a"))),
            abandoned: Vec::new(),
            masterkey: &keys.masterkey,
            config: &keys.config,
            background: false,
        });
        assert_eq!(e.map(drop).unwrap_err().kind(), ErrorKind::Io);
        let store = VaultStore::open(OpenOptions {
            root: Arc::new(left.dir("vault")),
            state: None,
            abandoned: Vec::new(),
            masterkey: &keys.masterkey,
            config: &keys.config,
            background: false,
        });
        let store = store.unwrap().0;
        for (text, path) in names.iter().zip(&paths) {
            let attr = store.lookup(Ino::ROOT, name(text)).unwrap();
            let mut bytes = [0; 32768];
            let got = store.open(attr.ino, Access::Read).unwrap().read_at(0, &mut bytes);
            assert_eq!(got.is_ok(), path != bad);
            assert!(path == bad || bytes == [b'b'; 32768]);
        }
        let (store, report) = open(&left, &keys, "state-a");
        assert_eq!(report.chunks_rewritten, 1);
        assert!(names.iter().all(|text| read(&store, Ino::ROOT, text) == [b'b'; 32768]));
    }
}

#[test]
fn a_journal_of_another_vault_is_refused_by_name() {
    let (world, _) = torn(CipherCombo::SivGcm);
    let other = world.dir("other");
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    adit_vault::create(&other, "password", &CreateOptions { scrypt, ..CreateOptions::default() }).unwrap();
    let keys = adit_vault::unlock(&other, "password").unwrap();
    let options = OpenOptions {
        root: Arc::new(other),
        state: Some(Arc::new(world.dir("state-a"))),
        abandoned: Vec::new(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: false,
    };
    let e = VaultStore::open(options).map(drop).unwrap_err();
    assert!(e.to_string().contains("belongs to another vault"), "{e}");
}

#[test]
fn a_damaged_journal_is_read_as_far_as_it_is_sound() {
    let (world, keys) = torn(CipherCombo::SivGcm);
    let state = world.dir("state-a");
    let mut segments = Vec::new();
    state.list(Path::new(""), &mut |e| segments.push(String::from_utf8(e.name.to_vec()).unwrap())).unwrap();
    let file: Box<dyn HostFile> = state.open(Path::new(&segments[0]), Access::Write).unwrap();
    let size = file.stat().unwrap().size;
    for at in (0..size).step_by(97) {
        let fork = world.fork();
        let dir = fork.dir("state-a");
        let file = dir.open(Path::new(&segments[0]), Access::Write).unwrap();
        let mut byte = [0];
        file.read_at(at, &mut byte).unwrap();
        file.write_at(at, &[byte[0] ^ 0xff]).unwrap();
        // Whatever it is worth: no panic, and the vault opens or says why not.
        let options = OpenOptions {
            root: Arc::new(fork.dir("vault")),
            state: Some(Arc::new(dir)),
            abandoned: Vec::new(),
            masterkey: &keys.masterkey,
            config: &keys.config,
            background: false,
        };
        let _ = VaultStore::open(options).map(drop);
    }
    // Rubbish under a segment's name tells nothing and hides nothing.
    let fork = world.fork();
    let new = NewFile { content: b"rubbish", perm: 0o600, owner: None, durable: true };
    fork.dir("state-a").publish(Path::new("journal-0000000000000fff"), &new).unwrap();
    let (_, report) = open(&fork, &keys, "state-a");
    assert_eq!(report.chunks_rewritten, 1);
}

#[test]
fn a_file_that_another_client_emptied_stays_empty() {
    let (world, keys) = torn(CipherCombo::SivGcm);
    let (store, _) = open(&world, &keys, "state-b");
    let ino = store.lookup(Ino::ROOT, name("f")).unwrap().ino;
    store.open(ino, Access::Write).unwrap().set_len(32768).unwrap();
    drop(store);
    let (store, report) = open(&world, &keys, "state-a");
    assert_eq!(report.conflicts.len(), 1);
    assert_eq!(read(&store, Ino::ROOT, "f"), [b'a'; 32768]);
    assert_eq!(saved_pieces(&store), [vec![b'b'; 32768]]);
}

#[test]
fn a_file_named_lost_and_found_blocks_nothing() {
    let (world, keys) = torn(CipherCombo::SivGcm);
    let (store, _) = open(&world, &keys, "state-b");
    store.unlink(Ino::ROOT, name("f")).unwrap();
    store.create(Ino::ROOT, name("lost+found"), &NEW).unwrap();
    drop(store);
    let (store, report) = open(&world, &keys, "state-a");
    assert_eq!(report.conflicts.len(), 1);
    assert_eq!(store.lookup(Ino::ROOT, name("lost+found.1")).unwrap().kind, Kind::Directory);
}

/// A rename from a long to a short name dies after each of its calls; another client takes the new name; the first one
/// comes back. Both files are there.
#[test]
fn a_rename_that_was_cut_off_overwrites_nobody() {
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    let long = "long name ".repeat(20);
    for stop in 0..30 {
        let world = CrashWorld::new(Mode::Kill);
        adit_vault::create(&world.dir("vault"), "password", &CreateOptions { scrypt, ..CreateOptions::default() })
            .unwrap();
        let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
        let (store, _) = open(&world, &keys, "state-a");
        let (_, file) = store.create(Ino::ROOT, name(&long), &NEW).unwrap();
        file.write_at(&[(0, b"ours")]).unwrap();
        drop((file, store));
        world.settle();
        let (store, _) = open(&world, &keys, "state-a");
        world.stop_after(stop);
        let done = store.rename(Ino::ROOT, name(&long), Ino::ROOT, name("short"), RenameFlags::empty()).is_ok();
        let left = world.crash(Pattern::None, &mut Rng::new(stop));
        std::mem::forget(store);
        if done {
            break;
        }
        let (store, _) = open(&left, &keys, "state-b");
        let theirs = store.create(Ino::ROOT, name("short"), &NEW);
        if let Ok((_, file)) = &theirs {
            file.write_at(&[(0, b"theirs")]).unwrap();
        }
        let theirs = theirs.is_ok();
        drop(store);
        let (store, _) = open(&left, &keys, "state-a");
        if theirs {
            assert_eq!(read(&store, Ino::ROOT, "short"), b"theirs", "after {stop} calls");
            let ours = store.lookup(Ino::ROOT, name(&long)).is_ok();
            let aside = left_aside(&left);
            assert!(ours || aside, "ours is under its old name, or aside, after {stop} calls");
        } else {
            assert_eq!(read(&store, Ino::ROOT, "short"), b"ours", "after {stop} calls");
        }
    }
}

/// A rename that takes several steps meets what another client made meanwhile under the new name: it fails, what it moved is
/// back, and the mount goes on.
#[test]
fn a_rename_that_meets_anothers_new_name_fails_alone() {
    let world = CrashWorld::new(Mode::Kill);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    adit_vault::create(&world.dir("vault"), "password", &CreateOptions { scrypt, ..CreateOptions::default() }).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    let (store, _) = open(&world, &keys, "state-a");
    let (long, longer) = ("long name ".repeat(16), "longer name ".repeat(16));
    let place = |file: &str| store.path_of(store.lookup(Ino::ROOT, name(file)).unwrap().ino).unwrap();
    let folder_of = |path: String| path.strip_suffix("/contents.c9r").map_or(path.clone(), str::to_owned);
    for (from, replaces) in [(&long[..], false), ("short", false), ("short", true)] {
        for file in [from, &longer] {
            let (_, made) = store.create(Ino::ROOT, name(file), &NEW).unwrap();
            made.write_at(&[(0, file.as_bytes())]).unwrap();
        }
        let target = folder_of(place(&longer));
        if !replaces {
            store.unlink(Ino::ROOT, name(&longer)).unwrap();
        }
        // The name of a long entry becomes durable when the old target is out of the way, and before the last move.
        let (held, waiting) = std::sync::mpsc::channel();
        world.hold_syncs(move |call| call.kind == SyncKind::Publish && held.send(()).is_ok());
        let renamed = std::thread::scope(|scope| {
            let renaming =
                scope.spawn(|| store.rename(Ino::ROOT, name(from), Ino::ROOT, name(&longer), RenameFlags::empty()));
            waiting.recv().unwrap();
            world.dir("vault").make_dir(Path::new(&target), 0o700, None).unwrap();
            world.release();
            renaming.join().unwrap()
        });
        assert_eq!(renamed.unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(read(&store, Ino::ROOT, from), from.as_bytes());
        store.create(Ino::ROOT, name("later"), &NEW).unwrap_or_else(|e| panic!("the mount takes no more changes: {e}"));
        for file in [from, "later"] {
            store.unlink(Ino::ROOT, name(file)).unwrap();
        }
        assert_eq!(left_aside(&world), replaces, "what was replaced lies aside, for its place is taken");
        world.dir("vault").remove(Path::new(&target), Kind::Directory).unwrap();
    }
}

/// Whether some temporary folder of the vault still holds a content file.
fn left_aside(world: &CrashWorld) -> bool {
    let vault = world.dir("vault");
    let mut queue = vec![String::new()];
    while let Some(dir) = queue.pop() {
        let mut below = Vec::new();
        vault
            .list(Path::new(&dir), &mut |e| {
                let name = String::from_utf8_lossy(e.name).into_owned();
                below.push(if dir.is_empty() { name } else { format!("{dir}/{name}") });
            })
            .unwrap();
        for path in below {
            match vault.stat(Path::new(&path)).unwrap().kind {
                Kind::Directory => queue.push(path),
                _ if path.contains(".adit-") && path.ends_with("contents.c9r") => return true,
                _ => {}
            }
        }
    }
    false
}
