//! `volume check` and its repair, as a user has them: what is told, what it ends with, and who is kept out.

mod common;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_core::path::this_process;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, FileName, Ino, Kind};
use adit_media::HostBlockFile;
use adit_volume::format::keys::{Key, NameHash};
use adit_volume::format::records::{Entry, Inode};
use adit_volume::volume::OpenOptions;
use adit_volume::{Base, Batch, Options, Table, Volume};
use serde_json::Value;

use common::{Bench, pattern};

/// Held by a test to its end. Volumes are opened in this process, too, and a program that another test starts has our descriptors, and with
/// them the lock of such a volume, until it runs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

thread_local!(static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) });

fn take_turn() {
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// A volume with a folder and two files, in a snapshot as well if asked for.
fn boxed(snapshot: bool) -> (Bench, String) {
    take_turn();
    let bench = Bench::bare();
    let file = bench.str("box");
    bench.run(["volume", "init", &file, "--capacity", "256M"]).expect(0);
    std::fs::write(bench.path("f"), pattern(100_000)).unwrap();
    std::fs::write(bench.path("g"), b"gamma").unwrap();
    bench.run(["mkdir", &file, "/d"]).expect(0);
    bench.run(["put", &file, &bench.str("f"), &bench.str("g"), "/d"]).expect(0);
    if snapshot {
        bench.run(["snapshot", "create", &file, "s"]).expect(0);
    }
    (bench, file)
}

/// Writes faults below all that keeps the rules of the tree: `/d/f` loses its entry, `/d` gets one that leads nowhere, and counts
/// wrongly.
fn plant(file: &str) {
    let media = HostBlockFile::open(file.as_ref(), Access::Write).unwrap();
    let options = Options { background: false, ..Options::default() };
    let base = Base::open(Arc::new(media), file, options).unwrap();
    let hash = NameHash::new(base.info().secret);
    let key = |dir: u64, name: &[u8]| Key::entry(dir, hash.cookie(name)).at(1);
    let entry = |dir, name| base.get(&key(dir, name)).unwrap().unwrap();
    let dir = Entry::decode(&entry(1, b"d")).unwrap().ino;
    let mut inode = Inode::decode(&base.get(&Key::inode(dir).at(1)).unwrap().unwrap()).unwrap();
    inode.nlink = 9;
    let ghost = Entry { ino: 4000, kind: Kind::File, name: b"ghost" };
    let writes = vec![
        (key(dir, b"f"), None),
        (key(dir, b"ghost"), Some(ghost.encode())),
        (Key::inode(dir).at(1), Some(inode.encode())),
    ];
    base.apply(Batch { writes, ..Batch::default() }).unwrap();
    base.close().unwrap();
}

fn kinds(problems: &Value) -> Vec<(String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let all = problems.as_array().unwrap().iter();
    all.map(|problem| (text(&problem["kind"]).unwrap(), text(&problem["path"]))).collect()
}

#[test]
fn faults_are_named_and_mended() {
    let (bench, file) = boxed(false);
    plant(&file);
    let found = bench.run(["volume", "check", &file, "--json"]).expect(5).json();
    let told = kinds(&found["problems"]);
    for (kind, path) in [("link-count", Some("/d")), ("dangling-entry", Some("/d/ghost")), ("unreachable", None)] {
        assert!(told.contains(&(kind.to_owned(), path.map(str::to_owned))), "{told:?}");
    }
    assert!(
        found["problems"].as_array().unwrap().iter().all(|p| p["repairable"] == true && p["in"] == "main"),
        "{found}"
    );
    assert!(bench.run(["volume", "check", &file]).expect(5).text().contains("--repair can mend it"));
    // Nothing is changed unasked.
    bench.run(["volume", "check", &file, "--repair"]).expect(2);
    assert_eq!(bench.run(["volume", "check", &file, "--json"]).expect(5).json(), found);

    let mended = bench.run(["volume", "check", &file, "--repair", "-y", "--json"]).expect(0).json();
    assert_eq!(kinds(&mended["problems"]), []);
    let done = kinds(&mended["repaired"]);
    assert!(told.iter().all(|problem| done.contains(problem)), "{told:?} {done:?}");
    let lost = mended["repaired"].as_array().unwrap().iter().find(|p| p["kind"] == "unreachable").unwrap();
    let path = lost["detail"].as_str().unwrap().rsplit_once("moved to ").unwrap().1.to_owned();
    assert!(path.starts_with("/lost+found/#"), "{lost}");
    bench.run(["get", &file, &path, &bench.str("back")]).expect(0);
    assert_eq!(std::fs::read(bench.path("back")).unwrap(), pattern(100_000));
    assert_eq!(bench.run(["cat", &file, "/d/g"]).expect(0).text(), "gamma");
    bench.run(["cat", &file, "/d/ghost"]).expect(1);
    bench.run(["volume", "check", &file]).expect(0);
    let again = bench.run(["volume", "check", &file, "--repair", "-y", "--json"]).expect(0).json();
    assert_eq!(kinds(&again["repaired"]), []);
}

#[test]
fn faults_of_a_snapshot_stay_and_the_advice_helps() {
    let (bench, file) = boxed(true);
    plant(&file);
    let mended = bench.run(["volume", "check", &file, "--repair", "-y", "--json"]).expect(5).json();
    let left = mended["problems"].as_array().unwrap();
    assert!(!left.is_empty() && left.iter().all(|p| p["in"] == "s" && p["repairable"] == false), "{mended}");
    let told = bench.run(["volume", "check", &file]).expect(5).text();
    assert!(told.contains("/d in s\n") && told.contains("make a branch of it"), "{told}");
    bench.run(["clone", "create", &file, "s", "rescue"]).expect(0);
    bench.run(["snapshot", "delete", &file, "s", "-y"]).expect(0);
    let told = bench.run(["volume", "check", &file, "--repair", "-y"]).expect(0).text();
    assert!(told.contains("repaired: link-count: /d in rescue\n") && told.ends_with("no problems\n"), "{told}");
    bench.run(["volume", "check", &file]).expect(0);
}

#[test]
fn a_damaged_superblock_is_told_and_written_again() {
    for (offset, mended_by) in [(0, "check"), (64 << 10, "check"), (0, "put")] {
        let (bench, file) = boxed(false);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[offset..offset + 4096].fill(0);
        std::fs::write(&file, &bytes).unwrap();
        // By its name alone, and without a change.
        assert_eq!(bench.run(["cat", &file, "/d/g"]).expect(0).text(), "gamma");
        let found = bench.run(["volume", "check", &file, "--json"]).expect(5).json();
        assert_eq!(kinds(&found["problems"]), [("damaged-superblock".to_owned(), None)]);
        assert_eq!(found["problems"][0]["repairable"], true);
        assert!(std::fs::read(&file).unwrap() == bytes);
        if mended_by == "put" {
            bench.run(["put", &file, &bench.str("g"), "/h"]).expect(0);
        } else {
            let told = bench.run(["volume", "check", &file, "--repair", "-y"]).expect(0).text();
            assert!(
                told.contains("repaired: damaged-superblock") && told.contains(&format!("at byte {offset} ")),
                "{told}"
            );
        }
        bench.run(["volume", "check", &file]).expect(0);
        let again = bench.run(["volume", "check", &file, "--repair", "-y", "--json"]).expect(0).json();
        assert_eq!(kinds(&again["repaired"]), []);
    }
}

/// Has as many files in `/many` count too many links.
fn plant_many(file: &str, count: usize) {
    let volume =
        Volume::open(file.as_ref(), &OpenOptions { background: false, ..OpenOptions::new(Access::Write) }).unwrap();
    let store = volume.live().unwrap();
    let new = NewNode { perm: 0o755, umask: 0, caller: this_process() };
    let dir = store.mkdir(Ino::ROOT, FileName::new(b"many").unwrap(), &new).unwrap().ino;
    let called = |n: usize| format!("file {n}").into_bytes();
    let create = |n| store.create(dir, FileName::new(&called(n)).unwrap(), &new).unwrap().0.ino;
    let inos: Vec<Ino> = (0..count).map(create).collect();
    drop(store);
    volume.close().unwrap();
    drop(volume);
    let media = HostBlockFile::open(file.as_ref(), Access::Write).unwrap();
    let base = Base::open(Arc::new(media), file, Options { background: false, ..Options::default() }).unwrap();
    for some in inos.chunks(100) {
        let damage = |ino: &Ino| {
            let key = Key::inode(ino.0).at(1);
            let inode = Inode::decode(&base.get(&key).unwrap().unwrap()).unwrap();
            (key, Some(Inode { nlink: 5, ..inode }.encode()))
        };
        base.apply(Batch { writes: some.iter().map(damage).collect(), ..Batch::default() }).unwrap();
    }
    base.close().unwrap();
}

#[test]
fn a_repair_without_space_names_what_it_did_and_what_is_left() {
    const FAULTS: usize = 900;
    const SEGMENT_LEN: u64 = 128 << 10;
    take_turn();
    let bench = Bench::bare();
    let file = bench.str("box");
    bench.run(["volume", "init", &file, "--capacity", "32M"]).expect(0);
    plant_many(&file, FAULTS);
    let whole = std::fs::read(&file).unwrap();
    // Where nothing may be written behind this, a repair cannot go on once the log gets there.
    let limited = |len: u64, more: &[&str]| {
        std::fs::write(&file, &whole).unwrap();
        let mut command = bench.command_of("sh");
        let script = "trap '' XFSZ; ulimit -f $0; exec \"$@\"";
        let (blocks, adit) = (len.div_ceil(512).to_string(), env!("CARGO_BIN_EXE_adit"));
        command.args(["-c", script, &blocks, adit, "volume", "check", &file, "--repair", "-y"]).args(more);
        common::run(command, b"")
    };
    let mut len = 2 * SEGMENT_LEN;
    let (ran, done) = loop {
        let ran = limited(len, &["--json"]);
        // At first the volume cannot even be opened.
        let document: Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
        let done = document["repaired"].as_array().map_or(0, Vec::len);
        assert!(done < FAULTS, "the repair was done without an error");
        if done > 0 {
            break (ran, done);
        }
        len += SEGMENT_LEN;
    };
    let document = ran.expect(5).json();
    let (repaired, left) = (kinds(&document["repaired"]), kinds(&document["problems"]));
    assert_eq!(repaired.len(), done);
    let why = format!("not mended: write {file}: file too large");
    let details = document["problems"].as_array().unwrap().iter().map(|problem| problem["detail"].as_str().unwrap());
    assert!(details.clone().any(|detail| detail.contains(&why)), "{}", details.collect::<Vec<_>>().join("\n"));
    let found = kinds(&bench.run(["volume", "check", &file, "--json"]).expect(5).json()["problems"]);
    let (found, left) = (BTreeSet::from_iter(found), BTreeSet::from_iter(left));
    assert_eq!(found.symmetric_difference(&left).collect::<Vec<_>>(), [] as [&(String, Option<String>); 0]);
    let told = limited(len, &[]).expect(5).text();
    assert!(told.contains("repaired: link-count: /many/file "), "{told}");
    assert!(told.contains(&why), "{told}");
    bench.run(["volume", "check", &file, "--repair", "-y"]).expect(0);
}

#[test]
fn a_check_of_what_cannot_be_read_does_not_advise_itself() {
    let (bench, file) = boxed(false);
    let mut bytes = std::fs::read(&file).unwrap();
    for offset in [100, (64 << 10) + 100] {
        bytes[offset] ^= 1;
    }
    std::fs::write(&file, &bytes).unwrap();
    bench.run(["ls", &file]).expect(4).says(&format!("`adit volume check {file}`"));
    let ran = bench.run(["volume", "check", &file]).expect(4).says("from a backup");
    assert!(!ran.stderr.contains("volume check"), "{}", ran.stderr);
}

#[test]
fn a_repair_is_alone_with_the_volume() {
    let (bench, file) = boxed(false);
    for access in [Access::Write, Access::Read] {
        let options = OpenOptions { background: false, ..OpenOptions::new(access) };
        let held = Volume::open(file.as_ref(), &options).unwrap();
        bench.run(["volume", "check", &file, "--repair", "-y"]).expect(7).says("another process");
        held.close().unwrap();
    }
    bench.run(["volume", "check", &file, "--repair", "-y"]).expect(0);
}
