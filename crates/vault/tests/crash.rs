//! Stop after every call, lose what the crash model says may be lost, open again: nothing is unreadable, nothing that
//! was promised is gone.
//!
//! A kill leaves exactly the completed operations, and of the one in flight each chunk and name before or after. A power
//! cut leaves of each chunk the last synced or a later version, and each durable object under a name that it had since.

#[path = "crash/failed_sync.rs"]
mod failed_sync;
#[path = "crash/script.rs"]
mod script;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use adit_core::Result;
use adit_core::media::HostDir;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr};
use adit_testkit::crash::{
    CrashPlan, CrashPoint, CrashWorld, Mode, Pattern, SyncCall, SyncKind, crash_everywhere, patterns,
};
use adit_testkit::{Rng, scaled, seeds};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, OpenOptions, RecoveryReport, Unlocked, VaultStore, check};
use script::{CHUNK, Object, Op, Script, parent};

/// Where the journal of a second mount lies.
const SECOND: &str = "state-2";
const CALLER: Caller = Caller { uid: 0, gid: 0 };

fn open(world: &CrashWorld, keys: &Unlocked) -> Result<(VaultStore, RecoveryReport)> {
    open_with(world, keys, false)
}

fn open_with(world: &CrashWorld, keys: &Unlocked, background: bool) -> Result<(VaultStore, RecoveryReport)> {
    open_slot(world, keys, "state", &[], background)
}

fn open_slot(
    world: &CrashWorld,
    keys: &Unlocked,
    slot: &str,
    abandoned: &[&str],
    background: bool,
) -> Result<(VaultStore, RecoveryReport)> {
    let dir = |name: &str| -> Arc<dyn HostDir> { Arc::new(world.dir(name)) };
    VaultStore::open(OpenOptions {
        root: dir("vault"),
        state: Some(dir(slot)),
        abandoned: abandoned.iter().map(|name| dir(name)).collect(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background,
    })
}

fn walk(store: &VaultStore, path: &str) -> Result<Attr> {
    let root = store.getattr(Ino::ROOT)?;
    path.split('/')
        .filter(|c| !c.is_empty())
        .try_fold(root, |dir, name| store.lookup(dir.ino, FileName::new(name.as_bytes())?))
}

fn base_name(path: &str) -> FileName<'_> {
    FileName::new(path.rsplit('/').next().unwrap().as_bytes()).unwrap()
}

fn run(store: &VaultStore, op: &Op, now: usize, script: &Script) -> Result<()> {
    let dir = |path: &str| walk(store, parent(path)).map(|a| a.ino);
    let new = NewNode { perm: 0o700, umask: 0, caller: CALLER };
    match op {
        Op::Create(path) => store.create(dir(path)?, base_name(path), &new).map(drop),
        Op::Mkdir(path) => store.mkdir(dir(path)?, base_name(path), &new).map(drop),
        Op::Symlink(path) => {
            store.symlink(dir(path)?, base_name(path), format!("target {now}").as_bytes(), CALLER).map(drop)
        }
        Op::Write { path, offset, len } => {
            let Object::File(id) = script.trees[now - 1][path] else { panic!("a file") };
            let file = store.open(walk(store, path)?.ino, Access::Write)?;
            file.write_at(&[(*offset as u64, &script::bytes(id, now, *len))])
        }
        Op::Truncate { path, len } => {
            let set = SetAttr { size: Some(*len as u64), ..SetAttr::default() };
            store.setattr(walk(store, path)?.ino, &set).map(drop)
        }
        Op::Sync(path) => store.open(walk(store, path)?.ino, Access::Read)?.sync(false),
        Op::SyncDir(path) => store.sync_dir(walk(store, path)?.ino),
        Op::SyncAll => store.sync_all(),
        Op::Rename { from, to } => {
            store.rename(dir(from)?, base_name(from), dir(to)?, base_name(to), RenameFlags::empty())
        }
        Op::Exchange(a, b) => store.rename(dir(a)?, base_name(a), dir(b)?, base_name(b), RenameFlags::EXCHANGE),
        Op::Unlink(path) => store.unlink(dir(path)?, base_name(path)),
        Op::Rmdir(path) => store.rmdir(dir(path)?, base_name(path)),
    }
}

#[derive(Debug)]
enum Seen {
    File(Vec<u8>),
    Directory,
    Symlink(String),
}

/// Reads everything; anything unreadable is an error.
fn read_tree(store: &VaultStore) -> Result<BTreeMap<String, Seen>> {
    let (mut tree, mut queue) = (BTreeMap::new(), vec![(String::new(), Ino::ROOT)]);
    while let Some((path, ino)) = queue.pop() {
        let mut names = Vec::new();
        store.read_dir(ino, 0, &mut |e| {
            names.push(e.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        })?;
        for name in names {
            let text = String::from_utf8(name.clone()).unwrap();
            let path = if path.is_empty() { text } else { format!("{path}/{text}") };
            let attr = store.lookup(ino, FileName::new(&name)?).map_err(|e| e.on("look up", &path))?;
            let seen = match attr.kind {
                Kind::Directory => {
                    queue.push((path.clone(), attr.ino));
                    Seen::Directory
                }
                Kind::Symlink => Seen::Symlink(String::from_utf8(store.readlink(attr.ino)?).unwrap()),
                _ => {
                    let mut bytes = vec![0; attr.size as usize + 1];
                    let n = store.open(attr.ino, Access::Read)?.read_at(0, &mut bytes)?;
                    assert_eq!(n as u64, attr.size, "{path}: size and content differ");
                    bytes.truncate(n);
                    Seen::File(bytes)
                }
            };
            tree.insert(path, seen);
        }
    }
    Ok(tree)
}

fn chunk(content: &[u8], n: usize) -> &[u8] {
    let start = (n * CHUNK).min(content.len());
    &content[start..(start + CHUNK).min(content.len())]
}

/// Whether `content` is made of chunks of these versions, with a length between theirs.
fn made_of(content: &[u8], versions: &[&Vec<u8>]) -> bool {
    let longest = versions.iter().map(|v| v.len()).max().unwrap_or(0);
    let shortest = versions.iter().map(|v| v.len()).min().unwrap_or(0);
    (shortest..=longest).contains(&content.len())
        && (0..content.len().div_ceil(CHUNK)).all(|n| versions.iter().any(|v| chunk(v, n) == chunk(content, n)))
}

struct Oracle<'a> {
    script: &'a Script,
    base: usize,
    done: usize,
}

impl Oracle<'_> {
    /// The versions of a file that a crash may show: since it was last made durable.
    fn versions(&self, id: usize, exact: bool) -> Vec<&Vec<u8>> {
        let synced = self.script.files[id].synced.iter().copied().filter(|&at| at <= self.done).max().unwrap_or(0);
        self.versions_since(id, if exact { self.done } else { synced })
    }

    /// The version that the file had after `since` operations, and those that came later.
    fn versions_since(&self, id: usize, since: usize) -> Vec<&Vec<u8>> {
        let file = &self.script.files[id];
        let first = file.versions.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
        file.versions[first..].iter().filter(|(at, _)| *at <= self.done + 1).map(|(_, v)| v).collect()
    }

    fn after_kill(&self, tree: &BTreeMap<String, Seen>) -> Result<(), String> {
        let before = &self.script.trees[self.done];
        let after = self.script.trees.get(self.done + 1).unwrap_or(before);
        let fits = |expected: &script::Tree| {
            expected.keys().eq(tree.keys())
                && expected.iter().all(|(path, object)| match (object, &tree[path]) {
                    (Object::Directory, Seen::Directory) => true,
                    (Object::Symlink(a), Seen::Symlink(b)) => a == b,
                    (Object::File(id), Seen::File(content)) => made_of(content, &self.versions(*id, true)),
                    _ => false,
                })
        };
        if fits(before) || fits(after) {
            Ok(())
        } else {
            Err("the tree is not that of before or after the call".into())
        }
    }

    fn after_power_cut(&self, tree: &BTreeMap<String, Seen>) -> Result<(), String> {
        let last = (self.done + 1).min(self.script.trees.len() - 1);
        // Whatever is there is something that was there.
        for (path, seen) in tree {
            let plausible = self.script.trees[self.base..=last].iter().any(|t| match (t.get(path), seen) {
                (Some(Object::Directory), Seen::Directory) => true,
                (Some(Object::Symlink(a)), Seen::Symlink(b)) => a == b,
                (Some(Object::File(id)), Seen::File(content)) => made_of(content, &self.versions(*id, false)),
                _ => self.below_moved(path),
            });
            if !plausible {
                return Err(format!("{path:?} is nothing that was there since"));
            }
        }
        // Whatever was durable is still there, under a name that it had since.
        for id in 0..self.script.files.len() {
            let Some(synced) = self.script.files[id].synced.iter().copied().filter(|&at| at <= self.done).max() else {
                continue;
            };
            let alive = |t: &script::Tree| t.values().any(|o| *o == Object::File(id));
            if !self.script.trees[synced..=last].iter().all(alive) {
                continue;
            }
            let paths = self.script.paths(id, synced, last);
            let versions = self.versions(id, false);
            let found = paths.iter().any(|p| matches!(tree.get(*p), Some(Seen::File(c)) if made_of(c, &versions)));
            // A directory above it may have moved to a place where, with others, it makes a path of its own.
            let anywhere = || tree.values().any(|s| matches!(s, Seen::File(c) if made_of(c, &versions)));
            if !found && !anywhere() {
                return Err(format!("durable file {id} is gone from {paths:?}"));
            }
        }
        self.synced_entries_are_there(tree, last)?;
        self.nothing_is_replaced_by_less(tree, last)
    }

    /// What was in a directory when it was synced, and was not moved or removed since, is there, and of its kind.
    fn synced_entries_are_there(&self, tree: &BTreeMap<String, Seen>, last: usize) -> Result<(), String> {
        for (at, dir) in self.script.synced_dirs.iter().filter(|(at, _)| *at <= self.done) {
            let entries = self.script.trees[*at].iter().filter(|(path, _)| parent(path) == dir);
            for (path, object) in entries {
                if !self.script.trees[*at..=last].iter().all(|t| t.get(path) == Some(object)) {
                    continue;
                }
                let there = match (object, tree.get(path)) {
                    (Object::Directory, Some(Seen::Directory)) | (Object::File(_), Some(Seen::File(_))) => true,
                    (Object::Symlink(wanted), Some(Seen::Symlink(found))) => wanted == found,
                    _ => false,
                };
                if !there {
                    let found = tree.get(path);
                    return Err(format!("{path:?} ({object:?}) of synced directory {dir:?} is gone, or {found:?}"));
                }
            }
        }
        Ok(())
    }

    /// Where a file took the name of a durable one, the one is there or the other, with what it held then or later.
    fn nothing_is_replaced_by_less(&self, tree: &BTreeMap<String, Seen>, last: usize) -> Result<(), String> {
        for &(now, old, new) in self.script.replaced.iter().filter(|(now, ..)| (self.base + 1..=last).contains(now)) {
            let was_durable = self.script.files[old].synced.iter().any(|&at| at < now && at <= self.done);
            let alive = |t: &script::Tree| t.values().any(|o| *o == Object::File(new));
            if !was_durable || !self.script.trees[now..=last].iter().all(alive) {
                continue;
            }
            let (before, after) = (self.versions(old, false), self.versions_since(new, now.min(self.done)));
            let kept = |s: &Seen| matches!(s, Seen::File(c) if made_of(c, &before) || made_of(c, &after));
            if !tree.values().any(kept) {
                return Err(format!("file {new} replaced durable file {old} in step {now}, and neither is whole"));
            }
        }
        Ok(())
    }

    /// Moves of directories persist one by one, so a path can be a mixture that was never seen.
    fn below_moved(&self, path: &str) -> bool {
        let moves_dirs = |(n, op): (usize, &Op)| match op {
            Op::Rename { from, .. } => self.script.trees[n][from] == Object::Directory,
            Op::Exchange(a, b) => {
                self.script.trees[n][a] == Object::Directory || self.script.trees[n][b] == Object::Directory
            }
            _ => false,
        };
        path.contains('/') && self.script.ops.iter().enumerate().take(self.done + 1).skip(self.base).any(moves_dirs)
    }
}

struct Setup {
    world: CrashWorld,
    keys: Unlocked,
    script: Script,
    base: usize,
    hold: Option<(usize, usize)>,
    two_mounts: bool,
}

/// A world with a new vault in it.
fn new_vault(mode: Mode, combo: CipherCombo) -> (CrashWorld, Unlocked) {
    let world = CrashWorld::new(mode);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    let options = CreateOptions { cipher_combo: combo, shortening_threshold: 220, scrypt };
    adit_vault::create(&world.dir("vault"), "password", &options).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    (world, keys)
}

fn setup(mode: Mode, trial: Trial) -> Setup {
    let Trial { script, base, combo, hold, two_mounts, .. } = trial;
    let (world, keys) = new_vault(mode, combo);
    let (store, _) = open(&world, &keys).unwrap();
    for (n, op) in script.ops[..base].iter().enumerate() {
        run(&store, op, n + 1, &script).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
    drop(store);
    world.settle();
    Setup { world, keys, script, base, hold, two_mounts }
}

/// Which of two mounts makes the operation of this index.
fn is_turn_of_second(n: usize) -> bool {
    !n.is_multiple_of(3)
}

/// Runs the script's second part; returns how many operations completed in all.
fn work(setup: &Setup, world: &CrashWorld) -> usize {
    let Ok((store, _)) = open(world, &setup.keys) else { return setup.base };
    let second = setup.two_mounts.then(|| open_slot(world, &setup.keys, SECOND, &[], false).map(|(store, _)| store));
    let Ok(second) = second.transpose() else { return setup.base };
    std::thread::scope(|scope| {
        let (from, to) = setup.hold.unwrap_or((usize::MAX, usize::MAX));
        let mut checkpoint = None;
        for (n, op) in setup.script.ops.iter().enumerate().skip(setup.base) {
            if n == from {
                checkpoint = Some(start_checkpoint(scope, world, &store));
            }
            if (n == to || matches!(op, Op::SyncAll))
                && let Some(running) = checkpoint.take()
            {
                finish_checkpoint(running, world);
            }
            let turn = second.as_ref().filter(|_| is_turn_of_second(n)).unwrap_or(&store);
            match run(turn, op, n + 1, &setup.script) {
                Ok(()) => {}
                Err(_) if world.is_dead() => {
                    world.release();
                    return n;
                }
                Err(e) => panic!("{op:?}: {e}"),
            }
        }
        if let Some(running) = checkpoint {
            finish_checkpoint(running, world);
        }
        setup.script.ops.len()
    })
}

type Checkpoint<'scope> = ScopedJoinHandle<'scope, Result<()>>;

/// Starts a checkpoint on a thread of its own, and comes back when that waits for the disk, or is over.
fn start_checkpoint<'scope>(
    scope: &'scope Scope<'scope, '_>,
    world: &CrashWorld,
    store: &'scope VaultStore,
) -> Checkpoint<'scope> {
    let (held, waiting) = channel();
    let over = held.clone();
    world.hold_syncs(move |call| is_checkpoint(call) && held.send(()).is_ok());
    let running = scope.spawn(move || {
        let result = store.sync_all();
        let _ = over.send(());
        result
    });
    waiting.recv().unwrap();
    running
}

fn finish_checkpoint(running: Checkpoint<'_>, world: &CrashWorld) {
    world.release();
    match running.join().unwrap() {
        Err(e) if !world.is_dead() => panic!("checkpoint: {e}"),
        _ => {}
    }
}

fn is_checkpoint(call: &SyncCall) -> bool {
    call.kind == SyncKind::All && &*call.root == "vault"
}

/// Opens what a crash left, with the journals of all mounts, in the one order or the other.
fn reopen(setup: &Setup, point: CrashPoint, left: &CrashWorld) -> Result<(VaultStore, RecoveryReport)> {
    let (slot, abandoned) = match (setup.two_mounts, point.calls % 2) {
        (false, _) => ("state", vec![]),
        (true, 0) => ("state", vec![SECOND]),
        (true, _) => (SECOND, vec!["state"]),
    };
    open_slot(left, &setup.keys, slot, &abandoned, false)
}

fn judge(setup: &Setup, mode: Mode, done: usize, point: CrashPoint, left: &CrashWorld) -> Result<(), String> {
    let (store, report) = reopen(setup, point, left).map_err(|e| format!("open: {e}"))?;
    let mut tree = read_tree(&store).map_err(|e| format!("unreadable: {e}"))?;
    if setup.two_mounts {
        // One of them may have written over the other and forgotten it, all being durable: as good as someone else.
        tree.retain(|path, _| !path.starts_with("lost+found"));
    } else if !report.conflicts.is_empty() {
        return Err(format!("conflicts with nobody: {report:?}"));
    }
    if mode == Mode::Kill && !report.moved_aside.is_empty() {
        return Err(format!("a kill leaves objects whole: {report:?}"));
    }
    let oracle = Oracle { script: &setup.script, base: setup.base, done };
    let verdict = match mode {
        Mode::Kill => oracle.after_kill(&tree).and_then(|()| nothing_is_left_over(left, &setup.keys)),
        _ => oracle.after_power_cut(&tree),
    };
    verdict.map_err(|e| format!("{e}; {point:?}; {report:?}"))
}

/// After recovery from a kill, `check` finds no object half-made or half-removed.
fn nothing_is_left_over(left: &CrashWorld, keys: &Unlocked) -> Result<(), String> {
    let report = check::check(&left.dir("vault"), keys, check::Options::default(), &mut |_| ())
        .map_err(|e| format!("check: {e}"))?;
    if report.is_clean() { Ok(()) } else { Err(format!("left over: {:?}", report.problems)) }
}

/// A script with all that its run depends on, but for keys, ids and nonces.
#[derive(Clone)]
struct Trial {
    script: Script,
    /// Operations of the script that are durable before the test begins.
    base: usize,
    combo: CipherCombo,
    seed: u64,
    /// A checkpoint waits for the disk from before this operation until before that one.
    hold: Option<(usize, usize)>,
    /// Whether two mounts take turns, which die together.
    two_mounts: bool,
}

impl Trial {
    fn random(seed: u64, combo: CipherCombo) -> Trial {
        Trial::random_of(seed, combo, 12)
    }

    fn random_of(seed: u64, combo: CipherCombo, len: usize) -> Trial {
        let base = 25;
        Trial {
            script: Script::random(&mut Rng::new(seed), base, len),
            base,
            combo,
            seed,
            hold: None,
            two_mounts: false,
        }
    }

    /// With directories that are synced here and there.
    fn with_synced_directories(seed: u64, combo: CipherCombo) -> Trial {
        let base = 25;
        let script = Script::random_with(&mut Rng::new(seed), base, 16, 25);
        Trial { script, base, combo, seed, hold: None, two_mounts: false }
    }

    /// Two mounts that change the same files, in turns.
    fn of_two_mounts(seed: u64, combo: CipherCombo) -> Trial {
        let script = Script::random_contents(&mut Rng::new(seed), 14);
        Trial { script, base: 4, combo, seed, hold: None, two_mounts: true }
    }

    /// With a checkpoint beside some of the operations.
    fn beside_a_checkpoint(self) -> Trial {
        let mut rng = Rng::new(!self.seed);
        let last = self.script.ops.len();
        let from = self.base + 1 + rng.below((last - self.base) as u64 - 1) as usize;
        let to = from + 1 + rng.below((last - from) as u64 + 3) as usize;
        Trial { hold: Some((from, to)), ..self }
    }

    fn fixed(base: usize, ops: &[Op]) -> Trial {
        let combo = CipherCombo::SivGcm;
        Trial { script: Script::fixed(base, ops.to_vec()), base, combo, seed: 1, hold: None, two_mounts: false }
    }
}

/// Tries one script; `omit` names the sync calls to leave out in the working phase.
fn try_script(mode: Mode, trial: Trial, plan: &CrashPlan, omit: Option<&'static str>) -> Result<(), String> {
    let Trial { combo, seed, hold, .. } = trial;
    let setup = setup(mode, trial);
    let mut rng = Rng::new(seed);
    let mut again = Rng::new(seed + 1);
    let mut failure = None;
    let start = |world: &CrashWorld| {
        if let Some(name) = omit {
            world.omit_syncs(move |call| name_of(call) == name);
        }
        work(&setup, world)
    };
    crash_everywhere(&setup.world, plan, &mut rng, start, |&done, point, left| {
        if failure.is_some() {
            return;
        }
        let fresh = left.fork();
        let first = judge(&setup, mode, done, point, &fresh).map_err(|e| format!("{e}; {point:?}"));
        let verdict = first.and_then(|()| {
            // A second crash, in the middle of recovery.
            if !again.percent(10) {
                return Ok(());
            }
            let twice = left.fork();
            twice.stop_after(again.below(fresh.calls().max(1)));
            drop(reopen(&setup, point, &twice));
            judge(&setup, mode, done, point, &twice.crash(adit_testkit::crash::Pattern::Random, &mut again))
                .map_err(|e| format!("{e}; after a second crash; {point:?}"))
        });
        if let Err(e) = verdict {
            let op = setup.script.ops.get(done);
            let traced = setup.world.fork();
            traced.start_trace();
            traced.stop_after(point.calls);
            start(&traced);
            let calls: Vec<String> = traced.trace().into_iter().map(|c| c.chars().take(400).collect()).collect();
            let calls = calls.join("\n");
            failure = Some(format!(
                "seed {seed}, {combo}, {mode:?}, checkpoint {hold:?}: {e}\nin flight: {op:?}\ncalls:\n{calls}"
            ));
        }
    });
    failure.map_or(Ok(()), Err)
}

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
