//! Stop after every call, lose what the crash model says may be lost, open again: nothing is unreadable, nothing that
//! was promised is gone.
//!
//! A kill leaves exactly the completed operations, and of the one in flight each chunk and name before or after. A power
//! cut leaves of each chunk the last synced or a later version, and each durable object under a name that it had since.

#[path = "crash/failed_sync.rs"]
mod failed_sync;
#[path = "crash/oracle.rs"]
mod oracle;
#[path = "crash/script.rs"]
mod script;
#[path = "crash/trial.rs"]
mod trial;

use std::sync::mpsc::channel;
use std::time::Duration;

use adit_core::store::{NewNode, Store};
use adit_core::types::{Ino, RenameFlags};
use adit_testkit::crash::{CrashPlan, Mode, Pattern, SyncCall, SyncKind, patterns};
use adit_testkit::{Rng, scaled, seeds};
use adit_vault::RecoveryReport;
use adit_vault::format::CipherCombo;
use oracle::{CALLER, Oracle, Seen, base_name, open, open_with, read_tree};
use script::{CHUNK, Op};
use trial::{Trial, is_checkpoint, is_turn_of_second, new_vault, setup, try_script, work};

const CIPHERS: [CipherCombo; 2] = [CipherCombo::SivGcm, CipherCombo::SivCtrmac];

/// The cipher for this number, of a seed or of a script: either one comes up in every two. A seed alone repeats its test.
fn cipher_of(n: u64) -> CipherCombo {
    CIPHERS[n as usize % CIPHERS.len()]
}

fn crash_test(mode: Mode, count: usize, plan: &CrashPlan) {
    crash_trials(mode, count, plan, Trial::random);
}

/// The trial of each of `count` seeds.
fn crash_trials(mode: Mode, count: usize, plan: &CrashPlan, trial: impl Fn(u64, CipherCombo) -> Trial) {
    for seed in seeds(count) {
        if let Err(e) = try_script(mode, trial(seed, cipher_of(seed)), plan, None) {
            panic!("{e}\nADIT_TEST_SEED={seed} repeats it");
        }
    }
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    crash_test(Mode::Kill, 8, &CrashPlan { points_max: 300, randoms: 1 });
}

#[test]
fn a_power_cut_under_a_journalling_host_leaves_nothing_unreadable() {
    crash_test(Mode::Journalled, 6, &CrashPlan { points_max: 60, randoms: 3 });
}

#[test]
fn a_power_cut_under_the_worst_host_leaves_nothing_unreadable() {
    crash_test(Mode::Adversarial, 8, &CrashPlan { points_max: 60, randoms: 3 });
}

/// The entries of a directory that was synced are there after a power cut: files, directories and links.
#[test]
fn a_synced_directory_keeps_its_entries() {
    let (long, dir) = ("long name ".repeat(16), || Op::Mkdir("new".into()));
    let all = |at: &str| {
        let under = |name: &str| format!("{at}{name}");
        [Op::Create(under("f")), Op::Create(under(&long)), Op::Symlink(under("link")), Op::Mkdir(under("dir"))]
    };
    let sync = |path: &str| Op::SyncDir(path.to_owned());
    let rename = |from: &str, to: &str| Op::Rename { from: from.to_owned(), to: to.to_owned() };
    let base = || vec![Op::Create("a".into())];
    let fixed = [
        [base(), all("").to_vec(), vec![sync("")]].concat(),
        [base(), vec![Op::Symlink("link".into()), sync("")]].concat(),
        [base(), vec![dir()], all("new/").to_vec(), vec![sync("new")]].concat(),
        [base(), vec![dir(), rename("a", "new/a"), sync("new")]].concat(),
        [base(), vec![dir(), Op::Create("new/f".into()), rename("new", &long), sync("")]].concat(),
        [base(), vec![dir(), Op::Create("b".into()), rename("b", "a"), sync("")]].concat(),
    ];
    let plan = CrashPlan { points_max: 40, randoms: 1 };
    for (m, mode) in [Mode::Journalled, Mode::Adversarial].into_iter().enumerate() {
        for (n, ops) in fixed.iter().enumerate() {
            let trial = Trial { combo: cipher_of((m + n) as u64), ..Trial::fixed(1, ops) };
            try_script(mode, trial, &plan, None).unwrap_or_else(|e| panic!("{e}"));
        }
        crash_trials(mode, 2, &plan, Trial::with_synced_directories);
    }
}

fn crash_test_beside_a_checkpoint(mode: Mode, count: usize, plan: &CrashPlan) {
    crash_trials(mode, count, plan, |seed, combo| Trial::random(seed, combo).beside_a_checkpoint());
}

#[test]
fn beside_a_checkpoint_a_kill_loses_nothing() {
    crash_test_beside_a_checkpoint(Mode::Kill, 3, &CrashPlan { points_max: 300, randoms: 1 });
}

#[test]
fn beside_a_checkpoint_a_power_cut_leaves_nothing_unreadable() {
    crash_test_beside_a_checkpoint(Mode::Journalled, 3, &CrashPlan { points_max: 60, randoms: 3 });
    crash_test_beside_a_checkpoint(Mode::Adversarial, 3, &CrashPlan { points_max: 60, randoms: 3 });
}

/// Two mounts of a vault die at once: each slot tells of its own mount, and not of the order between them.
#[test]
fn two_mounts_that_die_together_lose_nothing() {
    let plan = CrashPlan { points_max: 50, randoms: 2 };
    for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
        for seed in seeds(2) {
            if let Err(e) = try_script(mode, Trial::of_two_mounts(seed, cipher_of(seed)), &plan, None) {
                panic!("{e}\nADIT_TEST_SEED={seed} repeats it");
            }
        }
    }
}

/// A mount cuts a file, and it grows again by a chunk that no journal has; the other mount changes that chunk, and both
/// die within the first bytes of it. What is there is then neither the one version nor the other, and seems to be of
/// nobody.
#[test]
fn a_chunk_whose_rewriting_had_just_begun_is_not_cut_away() {
    let path = || "a".to_owned();
    let write = |offset, len| Op::Write { path: path(), offset, len };
    let base = [Op::Create(path()), write(0, 2 * CHUNK), Op::Create("b".into()), Op::Sync(path())];
    // The first two are the second mount's, the last one is the first mount's. A small chunk: most of it is nonce.
    let then = [Op::Truncate { path: path(), len: CHUNK }, write(CHUNK, 8), write(CHUNK + 2, 4)];
    let ops = [&base[..], &then].concat();
    let turns: Vec<_> = (base.len()..ops.len()).map(is_turn_of_second).collect();
    assert_eq!(turns, [true, true, false]);
    let plan = CrashPlan { points_max: 300, randoms: 16 };
    for combo in CIPHERS {
        let trial = Trial { combo, two_mounts: true, ..Trial::fixed(base.len(), &ops) };
        try_script(Mode::Kill, trial, &plan, None).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// The checkpoint that the store makes by itself waits for a slow disk; what is fsynced meanwhile is safe, although
/// that checkpoint never ends.
#[test]
fn an_fsync_beside_the_background_checkpoint_is_as_good_as_alone() {
    let (world, keys) = new_vault(Mode::Adversarial, CipherCombo::SivGcm);
    let (store, _) = open_with(&world, &keys, true).unwrap();
    let (held, waiting) = channel();
    world.hold_syncs(move |call| is_checkpoint(call) && held.send(()).is_ok());
    let new = NewNode { perm: 0o700, umask: 0, caller: CALLER };
    let dir = store.mkdir(Ino::ROOT, base_name("dir"), &new).unwrap().ino;
    let (_, old) = store.create(dir, base_name("old"), &new).unwrap();
    old.write_at(&[(0, &[1; 3 * CHUNK])]).unwrap();
    waiting.recv_timeout(Duration::from_secs(60)).expect("a checkpoint by itself");
    // One file of the epoch that the checkpoint ends, and one of the next, both changed and moved since.
    old.write_at(&[(CHUNK as u64, &[2; CHUNK])]).unwrap();
    let (_, young) = store.create(dir, base_name("young"), &new).unwrap();
    young.write_at(&[(0, &[3; CHUNK + 7])]).unwrap();
    store.rename(dir, base_name("old"), Ino::ROOT, base_name("moved"), RenameFlags::empty()).unwrap();
    old.set_len(2 * CHUNK as u64 + 5).unwrap();
    for file in [&old, &young] {
        file.sync(false).unwrap();
    }
    let mut moved = vec![1; 2 * CHUNK + 5];
    moved[CHUNK..2 * CHUNK].fill(2);
    let mut rng = Rng::new(5);
    for pattern in patterns(&world, 30) {
        let left = world.crash(pattern, &mut rng);
        let (store, report) = open(&left, &keys).unwrap();
        assert!(report.conflicts.is_empty(), "{pattern:?}: {report:?}");
        let tree = read_tree(&store).unwrap_or_else(|e| panic!("{pattern:?}: {e}"));
        let holds = |path: &str, bytes: &[u8]| matches!(tree.get(path), Some(Seen::File(found)) if found == bytes);
        assert!(holds("moved", &moved) && holds("dir/young", &[3; CHUNK + 7]), "{pattern:?}: {report:?}");
    }
    world.stop_after(0);
    world.release();
}

/// What `umount` waits for: once the store is closed, no power cut changes anything, and there is nothing to recover.
/// (A segment can come back empty: its removal comes last and is not waited for.)
#[test]
fn a_store_that_was_closed_is_durable() {
    for seed in seeds(12) {
        for mode in [Mode::Journalled, Mode::Adversarial] {
            let setup = setup(mode, Trial::random_of(seed, cipher_of(seed), 30));
            let world = setup.world.fork();
            assert_eq!(work(&setup, &world), setup.script.ops.len());
            let mut rng = Rng::new(seed);
            for pattern in [Pattern::None, Pattern::OnlyLast, Pattern::Random, Pattern::Random] {
                let left = world.crash(pattern, &mut rng);
                let (store, report) = open(&left, &setup.keys).unwrap();
                let idle = RecoveryReport { segments: report.segments, ..RecoveryReport::default() };
                assert_eq!(report, idle, "ADIT_TEST_SEED={seed}, {mode:?}");
                let tree = read_tree(&store).unwrap_or_else(|e| panic!("ADIT_TEST_SEED={seed}, {mode:?}: {e}"));
                let oracle = Oracle { script: &setup.script, base: setup.base, done: setup.script.ops.len() };
                oracle.after_kill(&tree).unwrap_or_else(|e| panic!("ADIT_TEST_SEED={seed}, {mode:?}: {e}"));
            }
        }
    }
}

/// Scripts made for what random ones seldom meet.
fn fixed_scripts() -> Vec<(&'static str, Trial)> {
    let (long, longer) = ("long name ".repeat(16), "longer name ".repeat(16));
    let create = |path: &str| Op::Create(path.to_owned());
    let write = |path: &str, len: usize| Op::Write { path: path.to_owned(), offset: 0, len };
    let rename = |from: &str, to: &str| Op::Rename { from: from.to_owned(), to: to.to_owned() };
    let sync = |path: &str| Op::Sync(path.to_owned());
    let file = |path: &str| [create(path), write(path, 40_000)];
    let in_new = [Op::Mkdir("new".into()), create("new/f"), write("new/f", 10), sync("new/f")];
    let deep = [Op::Mkdir("new/deep".into()), create("new/deep/f"), write("new/deep/f", 10), sync("new/deep/f")];
    let base_of_two = |rest: &[Op]| [&file("a")[..], rest].concat();
    vec![
        ("a file replaces another", Trial::fixed(2, &base_of_two(&[&file("b")[..], &[rename("b", "a")]].concat()))),
        ("a file that replaced another is changed", {
            let change = |path: &str, offset| Op::Write { path: path.to_owned(), offset, len: 10 };
            let then = [rename("b", "a"), change("a", 100), change("a", 39_000)];
            Trial::fixed(2, &base_of_two(&[&file("b")[..], &then].concat()))
        }),
        ("an old file replaces another", {
            let both = [file("a"), file("b")].concat();
            Trial::fixed(4, &[&both[..], &[write("b", 50_000), rename("b", "a")]].concat())
        }),
        ("a long name for a long one", {
            let both = [&file(&long)[..], &[rename(&long, &longer), create("later")]].concat();
            Trial::fixed(2, &both)
        }),
        ("a long name for a short one", Trial::fixed(2, &base_of_two(&[rename("a", &long), create("later")]))),
        ("a short name for a long one", {
            let both = [&file(&long)[..], &[rename(&long, "a"), create("later")]].concat();
            Trial::fixed(2, &both)
        }),
        ("a long name beside one that is synced", {
            let both = [create(&long), write(&long, 10), sync("a"), sync(&long), create("later")];
            Trial::fixed(2, &base_of_two(&both))
        }),
        ("a new long name beside one that is synced", {
            let moved =
                [rename("a", &long), write("b", 20), sync("b"), write(&long, 50_000), sync(&long), create("later")];
            Trial::fixed(4, &[&file("a")[..], &file("b"), &moved].concat())
        }),
        ("a name is used again", Trial::fixed(2, &base_of_two(&[rename("a", "b"), create("a")]))),
        ("a name is used again by a move", {
            let both = [file("a"), file("b")].concat();
            Trial::fixed(4, &[&both[..], &[rename("a", "c"), rename("b", "a"), create("b")]].concat())
        }),
        ("a file goes while the epoch ends in which it was changed", {
            let changed = [write("a", 20_000), Op::Unlink("a".into()), create("b")];
            Trial { hold: Some((3, 5)), ..Trial::fixed(2, &base_of_two(&changed)) }
        }),
        ("a new file takes the place of one without a header", {
            let swap = Op::Exchange(long.clone(), "c".into());
            let both = [create("c"), create(&long), sync(&long), write(&long, 7000), write(&long, 35_000), swap];
            Trial::fixed(2, &base_of_two(&both))
        }),
        ("a new directory", Trial::fixed(2, &base_of_two(&in_new))),
        ("new directories", Trial::fixed(2, &base_of_two(&[in_new, deep].concat()))),
        ("a new directory that moves", {
            let moved = [Op::Mkdir("new".into()), Op::Mkdir("to".into()), create("new/f"), rename("new", "to/new")];
            Trial::fixed(2, &base_of_two(&[&moved[..], &[write("to/new/f", 10), sync("to/new/f")]].concat()))
        }),
    ]
}

#[test]
fn fixed_scripts_leave_nothing_unreadable() {
    for (n, (name, trial)) in fixed_scripts().into_iter().enumerate() {
        for (m, mode) in [Mode::Kill, Mode::Journalled, Mode::Adversarial].into_iter().enumerate() {
            let trial = Trial { combo: cipher_of((m + n) as u64), ..trial.clone() };
            let plan = CrashPlan { points_max: 40, randoms: 1 };
            try_script(mode, trial, &plan, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

/// The sync calls of the store, each under a name: what is synced, and where.
const SYNCS: [&str; 13] = [
    "the journal",
    "the journal's directory",
    "a checkpoint",
    "the name of a long entry",
    "the new name of a long entry",
    "a link",
    "the id of a new directory",
    "a file",
    "a file that replaces another",
    "the folder of an entry",
    "a temporary folder",
    "the entries of a directory",
    "the folders of content directories",
];

fn name_of(call: &SyncCall) -> &'static str {
    let file = call.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let temporary = file.starts_with(".adit-") && file.ends_with(".tmp");
    let name = match (&*call.root, call.kind, &*file) {
        ("state", SyncKind::FileData, _) => "the journal",
        ("state", SyncKind::Dir, _) => "the journal's directory",
        ("vault", SyncKind::All, _) => "a checkpoint",
        ("vault", SyncKind::Publish, "name.c9s") => "the name of a long entry",
        ("vault", SyncKind::Publish, _) if temporary => "the new name of a long entry",
        ("vault", SyncKind::Publish, "symlink.c9r") => "a link",
        ("vault", SyncKind::File, "dir.c9r") => "the id of a new directory",
        ("vault", SyncKind::File, file) if file.ends_with(".c9r") => "a file",
        ("vault", SyncKind::FileData, file) if file.ends_with(".c9r") => "a file that replaces another",
        ("vault", SyncKind::Dir, file) if file.ends_with(".c9r") || file.ends_with(".c9s") => "the folder of an entry",
        ("vault", SyncKind::Dir, _) if temporary => "a temporary folder",
        ("vault", SyncKind::Dir, file) if file.len() == 30 => "the entries of a directory",
        ("vault", SyncKind::Dir, file) if file.len() <= 2 => "the folders of content directories",
        _ => panic!("a sync that nobody has shown to be needed: {call:?}"),
    };
    assert!(SYNCS.contains(&name));
    name
}

/// The test of the test: without any one of the syncs, some script must fail.
#[test]
fn each_sync_is_needed() {
    let plan = CrashPlan { points_max: 30, randoms: 1 };
    let only = std::env::var("ADIT_TEST_SYNC").ok();
    let mut missed = Vec::new();
    for name in SYNCS {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        // Scripts that are known to notice most of them come first; the others take over should these change.
        let fixed = fixed_scripts().into_iter().map(|(script, trial)| (script.to_owned(), trial));
        let random = [20, 1].into_iter().chain(0..scaled(40) as u64);
        let random = random.map(|seed| (format!("seed {seed}"), Trial::random(seed, CipherCombo::SivGcm)));
        let caught = fixed
            .chain(random)
            .find(|(_, trial)| try_script(Mode::Adversarial, trial.clone(), &plan, Some(name)).is_err())
            .map(|(script, _)| script);
        println!("{name}: {caught:?}");
        missed.extend(caught.is_none().then_some(name));
    }
    assert!(missed.is_empty(), "left out, and nobody notices: {missed:?}");
}
