//! The kill loop on a volume: writers with ledgers, clones by git, and fsx, until `kill -9`; round after round in the same volume.
//!
//! After each kill the check finds nothing, what the writers were promised is there, each clone that git finished is whole, and
//! everything can be read. `ADIT_TEST_SEED` runs one round; `ADIT_TEST_SCALE` multiplies them. `ADIT_FSX` names the program fsx;
//! without it that part of the load is left out, which is a failure under CI.

mod common;
#[path = "common/ledger.rs"]
mod ledger;
#[path = "common/mounts.rs"]
mod mounts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use adit_testkit::{Rng, seeds};

use common::{Start, left_out};
use ledger::{Ledger, Writer, compare};
use mounts::Mounts;

const ROUNDS: usize = 4;
const WRITERS: u64 = 3;
/// The kill comes this long after the start at the latest.
const KILL_AFTER_MS_MAX: u64 = 2500;

fn git(dir: &Path, args: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.current_dir(dir).args(["-c", "user.name=t", "-c", "user.email=t@example.org"]).args(args);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    git.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    git
}

fn run(mut command: Command) {
    let status = command.start_and_wait().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// A repository of some hundred files on the host.
fn make_repository(dir: &Path) {
    let mut rng = Rng::new(7);
    for n in 0..300 {
        let folder = dir.join(format!("d{}", n % 17));
        fs::create_dir_all(&folder).unwrap();
        let len = if n % 50 == 0 { 200_000 } else { 20 + rng.below(6000) };
        let mut bytes = vec![0; len as usize];
        rng.fill(&mut bytes);
        fs::write(folder.join(format!("file-{n}")), bytes).unwrap();
    }
    run(git(dir, &["init", "-q"]));
    run(git(dir, &["add", "."]));
    run(git(dir, &["commit", "-qm", "all"]));
}

/// Clones one after the other until the mount dies. Returns those that git finished.
fn clone_until_dead(from: &Path, into: &Path, round: u64, dead: &AtomicBool) -> Vec<PathBuf> {
    let mut whole = Vec::new();
    for n in 0.. {
        let to = into.join(format!("{round}-{n}"));
        let status = git(from, &["clone", "-q", "--no-hardlinks", from.to_str().unwrap(), to.to_str().unwrap()])
            .start_and_wait();
        // One that was under way when the server died may think that it is through: no error of the mount was its business.
        if dead.load(Ordering::SeqCst) || !status.is_ok_and(|status| status.success()) {
            return whole;
        }
        whole.push(to);
    }
    whole
}

/// The program fsx, if there is one.
fn fsx_program() -> Option<PathBuf> {
    let program = std::env::var_os("ADIT_FSX").map(PathBuf::from);
    if program.is_none() {
        left_out("ADIT_FSX does not name the program fsx (`cargo xtask test --only mounted` does)");
    }
    program
}

/// fsx on a file of the mount, for longer than that lives.
fn start_fsx(program: &Path, m: &Mounts, seed: u64) -> Child {
    let mut fsx = Command::new(program);
    fsx.args(["-S", &(seed as u32).to_string(), "-N", "100000000", "-P"]).arg(m.bench.path("art")).arg(m.at("fsx"));
    let said = fs::File::create(m.bench.path("fsx.log")).unwrap();
    fsx.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
    fsx.start().unwrap_or_else(|e| panic!("{}: {e}", program.display()))
}

fn load_and_kill(m: &Mounts, fsx: Option<&Path>, ledgers: &mut [Ledger], (round, seed): (u64, u64)) -> Vec<PathBuf> {
    let (done, dead) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut rng = Rng::new(seed);
    let delay = Duration::from_millis(rng.below(KILL_AFTER_MS_MAX));
    let mut fsx = fsx.map(|program| start_fsx(program, m, seed));
    let (whole, ended) = std::thread::scope(|scope| {
        let (done, dead) = (&done, &dead);
        let mut writers = Vec::new();
        for (index, ledger) in ledgers.iter_mut().enumerate() {
            let writer = Writer { root: m.at(&format!("w{index}")), ledger, rng: Rng::new(rng.next_u64()) };
            writers.push(scope.spawn(move || writer.work(done)));
        }
        let clones = scope.spawn(move || clone_until_dead(&m.bench.path("repository"), &m.at("clones"), round, dead));
        // Not a wait for anything: the moment of the kill is what is random.
        std::thread::sleep(delay);
        let ended = fsx.as_mut().and_then(|fsx| fsx.try_wait().unwrap());
        // Before it is dead, so that a clone which comes back later is not counted.
        dead.store(true, Ordering::SeqCst);
        m.kill();
        for writer in writers {
            let error = writer.join().unwrap();
            let known = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::ENOENT, libc::ESTALE];
            assert!(error.raw_os_error().is_some_and(|e| known.contains(&e)), "before the kill: {error}");
        }
        (clones.join().unwrap(), ended)
    });
    // It goes on for longer than the mount: what ended before has found a fault.
    if let Some(ended) = ended {
        panic!("fsx, before the kill: {ended}\n{}", fs::read_to_string(m.bench.path("fsx.log")).unwrap());
    }
    if let Some(mut fsx) = fsx {
        // It ends by itself when its file fails, which it does now; one that waits for something is ended.
        let _ = fsx.kill();
        let status = fsx.wait().unwrap();
        assert!(!status.success(), "fsx went through before the kill");
    }
    eprintln!("seed {seed}: {} operations, {} clones, killed after {delay:?}", done.into_inner(), whole.len());
    whole
}

/// Everything can be read, to the length that it is said to have.
fn read_all(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("list {}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("stat {}: {e}", path.display()));
        if meta.is_dir() {
            read_all(&path);
        } else if meta.is_file() {
            let bytes = fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
            assert_eq!(bytes.len() as u64, meta.len(), "{}", path.display());
        }
    }
}

fn kill_loop(init: &[&str], options: &[&str]) {
    let Some(m) = Mounts::volume(init) else { return };
    if git(Path::new("/"), &["--version"]).start_and_wait().is_err() {
        left_out("git is not installed");
        return;
    }
    let fsx = fsx_program();
    fs::create_dir(m.bench.path("repository")).unwrap();
    fs::create_dir(m.bench.path("art")).unwrap();
    make_repository(&m.bench.path("repository"));
    m.mount(options).expect(0);
    let mut ledgers: Vec<Ledger> = (0..WRITERS).map(|_| Ledger::default()).collect();
    for index in 0..WRITERS {
        for dir in ["a", "b"] {
            fs::create_dir_all(m.at(&format!("w{index}/{dir}"))).unwrap();
        }
    }
    fs::create_dir(m.at("clones")).unwrap();
    for (round, seed) in (0..).zip(seeds(ROUNDS)) {
        eprintln!("ADIT_TEST_SEED={seed}");
        let whole = load_and_kill(&m, fsx.as_deref(), &mut ledgers, (round, seed));
        m.expect_sound();
        m.mount(options).expect(0);
        for (index, ledger) in ledgers.iter_mut().enumerate() {
            compare(&m.at(&format!("w{index}")), ledger);
        }
        read_all(&m.mnt());
        for clone in whole {
            run(git(&clone, &["fsck", "--strict"]));
            run(git(&clone, &["diff", "--exit-code", "HEAD"]));
        }
        fs::remove_dir_all(m.at("clones")).unwrap();
        fs::create_dir(m.at("clones")).unwrap();
    }
    let total: u64 = ledgers.iter().map(|ledger| ledger.operations).sum();
    assert!(total > 0, "nothing was ever done before a kill");
    m.umount();
    m.expect_sound();
}

#[test]
fn what_was_closed_outlives_a_kill() {
    kill_loop(&["--capacity", "2G"], &[]);
}

#[test]
fn what_was_closed_outlives_a_kill_with_a_data_folder() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    kill_loop(&["--capacity", "2G", "--data", data.to_str().unwrap()], &[]);
}
