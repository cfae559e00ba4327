//! A sync fails, the store goes on as it can, and then the power is cut: what was durable is there, and nothing is
//! unreadable. What the failed sync was to write is on the medium or not, and the next sync does not write it.

use adit_testkit::crash::{CrashPoint, CrashWorld, Mode, Pattern};
use adit_testkit::{Rng, seeds};
use adit_vault::VaultStore;

use super::oracle::{open, run};
use super::script::{Op, Script};
use super::trial::{Setup, Trial, judge, setup};
use super::{cipher_of, fixed_scripts};

const PATTERNS: [Pattern; 5] = [Pattern::None, Pattern::All, Pattern::OnlyLast, Pattern::Random, Pattern::Random];

/// Takes back what `script` promises of the sync that is operation number `now`: it failed.
fn take_back(script: &mut Script, now: usize) {
    for file in &mut script.files {
        file.synced.retain(|&at| at != now);
    }
    script.synced_dirs.retain(|(at, _)| *at != now);
}

/// Runs the script's second part, in which some sync call fails. A caller hears of a failed sync and goes on; of
/// anything else that fails, and ends. Returns how many operations it was through with.
fn go_on(setup: &mut Setup, store: &VaultStore) -> usize {
    let ops = setup.script.ops.clone();
    for (n, op) in ops.iter().enumerate().skip(setup.base) {
        match run(store, op, n + 1, &setup.script) {
            Ok(()) => {}
            Err(_) if matches!(op, Op::Sync(_) | Op::SyncDir(_) | Op::SyncAll) => take_back(&mut setup.script, n + 1),
            Err(_) => return n,
        }
    }
    ops.len()
}

/// Fails the sync call `nth` of a script, and cuts the power before and after the store is closed. False if the script has
/// fewer.
fn try_failure(setup: &mut Setup, mode: Mode, nth: u64, rng: &mut Rng) -> Result<bool, String> {
    let world = setup.world.fork();
    world.start_trace();
    world.fail_sync_after(nth);
    let store = open(&world, &setup.keys);
    let done = store.as_ref().map_or(setup.base, |(store, _)| go_on(setup, store));
    let mut cut = |when: &str, setup: &Setup, world: &CrashWorld| -> Result<(), String> {
        for pattern in PATTERNS {
            let point = CrashPoint { calls: world.calls(), pattern, finished: false };
            judge(setup, mode, done, point, &world.crash(pattern, rng)).map_err(|e| {
                let next = setup.script.ops.get(done);
                format!("{e}; {when}; {done} done, then {next:?}; calls:\n{}", world.trace().join("\n"))
            })?;
        }
        Ok(())
    };
    cut("before the store is closed", setup, &world)?;
    drop(store);
    cut("after the store is closed", setup, &world)?;
    Ok(world.syncs() > nth)
}

/// Fails each sync call of a script in turn.
fn try_failures(trial: Trial, mode: Mode) -> Result<(), String> {
    let combo = trial.combo;
    let mut rng = Rng::new(trial.seed);
    let mut setup = setup(mode, trial);
    let script = setup.script.clone();
    for nth in 0.. {
        setup.script = script.clone();
        let failed = try_failure(&mut setup, mode, nth, &mut rng);
        if !failed.map_err(|e| format!("{combo}, {mode:?}, sync {nth} fails: {e}"))? {
            break;
        }
    }
    Ok(())
}

fn mode_of(n: u64) -> Mode {
    if (n / 2).is_multiple_of(2) { Mode::Adversarial } else { Mode::Journalled }
}

#[test]
fn a_power_cut_after_a_failed_sync_leaves_nothing_unreadable() {
    for (n, (name, trial)) in (0..).zip(fixed_scripts()) {
        let trial = Trial { combo: cipher_of(n), hold: None, ..trial };
        try_failures(trial, mode_of(n)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn a_power_cut_after_a_failed_sync_in_a_random_script_leaves_nothing_unreadable() {
    for seed in seeds(4) {
        let trial = Trial::random(seed, cipher_of(seed));
        try_failures(trial, mode_of(seed)).unwrap_or_else(|e| panic!("{e}\nADIT_TEST_SEED={seed} repeats it"));
    }
}
