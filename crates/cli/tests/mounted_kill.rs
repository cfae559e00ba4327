//! The kill loop: what `close()` returned for outlives `kill -9` of the server, under load, round after round.
//!
//! Writers change files through a real mount and keep a ledger of what they were promised. At a random moment the
//! server is killed, the vault is mounted again (which recovers its journal), and the tree must match the ledgers:
//! what was closed, renamed or removed before the kill is exactly so; what was under way is made of old and new bytes
//! and readable; and nothing else is there. `ADIT_TEST_SEED` runs one round; `ADIT_TEST_SCALE` multiplies them.

mod common;
#[path = "common/ledger.rs"]
mod ledger;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use adit_testkit::{Rng, seeds};

use ledger::{Ledger, Writer, compare};
use mounts::Mounts;

const ROUNDS: usize = 6;
const WRITERS: u64 = 4;
/// The kill comes this long after the start at the latest.
const KILL_AFTER_MS_MAX: u64 = 700;

/// Runs the writers until the server dies, and kills it.
fn load_and_kill(m: &Mounts, ledgers: &mut [Ledger], seed: u64) {
    let done = AtomicU64::new(0);
    let mut rng = Rng::new(seed);
    let delay = Duration::from_millis(rng.below(KILL_AFTER_MS_MAX));
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for (index, ledger) in ledgers.iter_mut().enumerate() {
            let writer = Writer { root: m.at(&format!("w{index}")), ledger, rng: Rng::new(rng.next_u64()) };
            let done = &done;
            writers.push(scope.spawn(move || writer.work(done)));
        }
        // Not a wait for anything: the moment of the kill is what is random.
        std::thread::sleep(delay);
        m.kill();
        for writer in writers {
            let error = writer.join().unwrap();
            let dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::ENOENT, libc::ESTALE];
            assert!(error.raw_os_error().is_some_and(|e| dead.contains(&e)), "before the kill: {error}");
        }
    });
    eprintln!("seed {seed}: {} operations, killed after {delay:?}", done.into_inner());
}

fn kill_loop(options: &[&str], init: &[&str]) {
    let Some(m) = Mounts::with(init) else { return };
    m.mount(options).expect(0);
    let mut ledgers: Vec<Ledger> = (0..WRITERS).map(|_| Ledger::default()).collect();
    for index in 0..WRITERS {
        for dir in ["a", "b"] {
            fs::create_dir_all(m.at(&format!("w{index}/{dir}"))).unwrap();
        }
    }
    for seed in seeds(ROUNDS) {
        eprintln!("ADIT_TEST_SEED={seed}");
        load_and_kill(&m, &mut ledgers, seed);
        m.mount(options).expect(0);
        for (index, ledger) in ledgers.iter_mut().enumerate() {
            compare(&m.at(&format!("w{index}")), ledger);
        }
        let names: Vec<_> = fs::read_dir(m.mnt()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len() as u64, WRITERS, "{names:?}");
    }
    let total: u64 = ledgers.iter().map(|ledger| ledger.operations).sum();
    assert!(total > 0, "nothing was ever done before a kill");
    m.umount();
    m.expect_sound();
}

#[test]
fn what_was_closed_outlives_a_kill() {
    kill_loop(&[], &[]);
}

#[test]
fn what_was_closed_outlives_a_kill_with_kernel_write_back() {
    kill_loop(&["-o", "exclusive"], &["--cipher", "siv-ctrmac"]);
}
