//! One script with one crash: the work, the crash, the recovery, and the judgement.

use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};

use adit_core::Result;
use adit_core::store::Store;
use adit_testkit::Rng;
use adit_testkit::crash::{CrashPlan, CrashPoint, CrashWorld, Mode, SyncCall, SyncKind, crash_everywhere};
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, RecoveryReport, Unlocked, VaultStore, check};

use super::name_of;
use super::oracle::{Oracle, open, open_slot, read_tree, run};
use super::script::{Op, Script};

/// Where the journal of a second mount lies.
pub const SECOND: &str = "state-2";

pub struct Setup {
    pub world: CrashWorld,
    pub keys: Unlocked,
    pub script: Script,
    pub base: usize,
    pub hold: Option<(usize, usize)>,
    pub two_mounts: bool,
}

/// A world with a new vault in it.
pub fn new_vault(mode: Mode, combo: CipherCombo) -> (CrashWorld, Unlocked) {
    let world = CrashWorld::new(mode);
    let scrypt = ScryptParams { cost: 2, block_size: 1 };
    let options = CreateOptions { cipher_combo: combo, shortening_threshold: 220, scrypt };
    adit_vault::create(&world.dir("vault"), "password", &options).unwrap();
    let keys = adit_vault::unlock(&world.dir("vault"), "password").unwrap();
    (world, keys)
}

pub fn setup(mode: Mode, trial: Trial) -> Setup {
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
pub fn is_turn_of_second(n: usize) -> bool {
    !n.is_multiple_of(3)
}

/// Runs the script's second part; returns how many operations completed in all.
pub fn work(setup: &Setup, world: &CrashWorld) -> usize {
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

pub type Checkpoint<'scope> = ScopedJoinHandle<'scope, Result<()>>;

/// Starts a checkpoint on a thread of its own, and comes back when that waits for the disk, or is over.
pub fn start_checkpoint<'scope>(
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

pub fn finish_checkpoint(running: Checkpoint<'_>, world: &CrashWorld) {
    world.release();
    match running.join().unwrap() {
        Err(e) if !world.is_dead() => panic!("checkpoint: {e}"),
        _ => {}
    }
}

pub fn is_checkpoint(call: &SyncCall) -> bool {
    call.kind == SyncKind::All && &*call.root == "vault"
}

/// Opens what a crash left, with the journals of all mounts, in the one order or the other.
pub fn reopen(setup: &Setup, point: CrashPoint, left: &CrashWorld) -> Result<(VaultStore, RecoveryReport)> {
    let (slot, abandoned) = match (setup.two_mounts, point.calls % 2) {
        (false, _) => ("state", vec![]),
        (true, 0) => ("state", vec![SECOND]),
        (true, _) => (SECOND, vec!["state"]),
    };
    open_slot(left, &setup.keys, slot, &abandoned, false)
}

pub fn judge(setup: &Setup, mode: Mode, done: usize, point: CrashPoint, left: &CrashWorld) -> Result<(), String> {
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
pub fn nothing_is_left_over(left: &CrashWorld, keys: &Unlocked) -> Result<(), String> {
    let report = check::check(&left.dir("vault"), keys, check::Options::default(), &mut |_| ())
        .map_err(|e| format!("check: {e}"))?;
    if report.is_clean() { Ok(()) } else { Err(format!("left over: {:?}", report.problems)) }
}

/// A script with all that its run depends on, but for keys, ids and nonces.
#[derive(Clone)]
pub struct Trial {
    pub script: Script,
    /// Operations of the script that are durable before the test begins.
    pub base: usize,
    pub combo: CipherCombo,
    pub seed: u64,
    /// A checkpoint waits for the disk from before this operation until before that one.
    pub hold: Option<(usize, usize)>,
    /// Whether two mounts take turns, which die together.
    pub two_mounts: bool,
}

impl Trial {
    pub fn random(seed: u64, combo: CipherCombo) -> Trial {
        Trial::random_of(seed, combo, 12)
    }

    pub fn random_of(seed: u64, combo: CipherCombo, len: usize) -> Trial {
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
    pub fn with_synced_directories(seed: u64, combo: CipherCombo) -> Trial {
        let base = 25;
        let script = Script::random_with(&mut Rng::new(seed), base, 16, 25);
        Trial { script, base, combo, seed, hold: None, two_mounts: false }
    }

    /// Two mounts that change the same files, in turns.
    pub fn of_two_mounts(seed: u64, combo: CipherCombo) -> Trial {
        let script = Script::random_contents(&mut Rng::new(seed), 14);
        Trial { script, base: 4, combo, seed, hold: None, two_mounts: true }
    }

    /// With a checkpoint beside some of the operations.
    pub fn beside_a_checkpoint(self) -> Trial {
        let mut rng = Rng::new(!self.seed);
        let last = self.script.ops.len();
        let from = self.base + 1 + rng.below((last - self.base) as u64 - 1) as usize;
        let to = from + 1 + rng.below((last - from) as u64 + 3) as usize;
        Trial { hold: Some((from, to)), ..self }
    }

    pub fn fixed(base: usize, ops: &[Op]) -> Trial {
        let combo = CipherCombo::SivGcm;
        Trial { script: Script::fixed(base, ops.to_vec()), base, combo, seed: 1, hold: None, two_mounts: false }
    }
}

/// Tries one script; `omit` names the sync calls to leave out in the working phase.
pub fn try_script(mode: Mode, trial: Trial, plan: &CrashPlan, omit: Option<&'static str>) -> Result<(), String> {
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
