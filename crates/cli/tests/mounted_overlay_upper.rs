//! The volume on top of an overlay: what differs in it is told in the overlay's paths, and it is changed through the overlay only.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_core::overlay::LowerIdentity;
use adit_core::store::Store;
use adit_core::types::{Access, Ino, XattrSet};
use adit_volume::Volume;
use adit_volume::volume::OpenOptions;
use common::{Ran, pattern};
use mounts::Mounts;
use serde_json::Value;

/// Held by a test to its end. A volume is opened in this process, too, and a program that another test starts has our descriptors,
/// and with them the lock of such a volume, until it runs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

thread_local!(static TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) });

/// With a folder `lower` to be made writable. The volume of the bench is not used.
fn world() -> Option<Mounts> {
    TURN.with_borrow_mut(|turn| {
        turn.get_or_insert_with(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner));
    });
    let m = Mounts::volume(&[])?;
    fs::create_dir_all(m.bench.path("lower/d/e")).unwrap();
    for path in ["d/a", "d/e/deep", "f", "g"] {
        fs::write(m.bench.path("lower").join(path), pattern(9000)).unwrap();
    }
    fs::hard_link(m.bench.path("lower/g"), m.bench.path("lower/d/linked")).unwrap();
    Some(m)
}

fn overlay(m: &Mounts) {
    m.bench.run(["mount", "lower", "mnt", "--upper", "up"]).expect(0);
}

/// A line for each that `ran` told.
fn lines(ran: Ran) -> Vec<String> {
    let found = ran.expect(0).json();
    let line = |change: &Value| {
        let text = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", text("change"), text("path"), text("from")).trim_end().to_owned()
    };
    found.as_array().unwrap().iter().map(line).collect()
}

fn change(m: &Mounts, path: &str, at: u64) {
    fs::OpenOptions::new().write(true).open(m.at(path)).unwrap().write_all_at(b"changed", at).unwrap();
}

#[test]
fn a_snapshot_is_compared_in_the_paths_that_are_shown() {
    let Some(m) = world() else { return };
    m.bench.run(["volume", "init", "up"]).expect(0);
    m.bench.run(["snapshot", "create", "up", "empty"]).expect(0);
    overlay(&m);
    let diff = |names: &[&str]| lines(m.bench.run([&["snapshot", "diff", "mnt"], names, &["--json"]].concat()));
    assert_eq!(diff(&["empty"]), [""; 0]);
    change(&m, "f", 0);
    fs::write(m.at("new"), "new").unwrap();
    m.bench.run(["snapshot", "create", "mnt", "s"]).expect(0);
    assert_eq!(diff(&["s"]), [""; 0]);
    assert_eq!(diff(&["empty"]), ["changed /f", "added /new"]);
    change(&m, "f", 5000);
    change(&m, "g", 0);
    fs::rename(m.at("new"), m.at("newer")).unwrap();
    fs::rename(m.at("d/e"), m.at("moved")).unwrap();
    change(&m, "moved/deep", 0);
    fs::remove_file(m.at("d/a")).unwrap();
    let expected = [
        "removed /d/a",
        "changed /d/linked",
        "changed /f",
        "changed /g",
        "renamed /moved /d/e",
        "changed /moved/deep",
        "renamed /newer /new",
    ];
    assert_eq!(diff(&["s"]), expected);
    assert!(m.bench.run(["snapshot", "diff", "mnt", "s"]).expect(0).text().contains("removed  /d/a"));
    // The upper's file names the same, as long as it is mounted there.
    assert_eq!(lines(m.bench.run(["snapshot", "diff", "up", "s", "--json"])), expected);
    m.bench.run(["snapshot", "create", "mnt", "t"]).expect(0);
    change(&m, "f", 100);
    assert_eq!(diff(&["s", "t"]), expected);
    assert_eq!(diff(&["t"]), ["changed /f"]);
    m.bench.run(["snapshot", "diff", "mnt", "s", "empty"]).expect(10).says("before there was an overlay");
    m.bench.run(["snapshot", "diff", "mnt", "none"]).expect(1);
    // Nothing holds the snapshots afterwards, and what was open stays usable.
    m.bench.run(["snapshot", "delete", "mnt", "s", "-y"]).expect(0);
    assert_eq!(fs::read(m.at("newer")).unwrap(), b"new");
    m.umount();
    m.bench.run(["volume", "check", "up"]).expect(0);
}

/// What lies below is a snapshot of a volume: open by itself, and read through the process that has it mounted.
#[test]
fn a_snapshot_below_is_compared_with_too() {
    let Some(m) = world() else { return };
    m.bench.run(["put", "box", "lower", "/"]).expect(0);
    m.bench.run(["snapshot", "create", "box", "s"]).expect(0);
    let diff = |name: &str| lines(m.bench.run(["snapshot", "diff", "mnt", name, "--json"]));
    m.mount(&["--snapshot", "s", "--upper", "up"]).expect(0);
    m.bench.run(["snapshot", "create", "mnt", "one"]).expect(0);
    change(&m, "lower/f", 0);
    assert_eq!(diff("one"), ["changed /lower/f"]);
    m.umount();
    fs::create_dir(m.bench.path("mnt2")).unwrap();
    m.bench.run(["mount", "box", "mnt2"]).expect(0);
    m.mount(&["--snapshot", "s", "--upper", "up"]).expect(0);
    fs::remove_file(m.at("lower/d/a")).unwrap();
    assert_eq!(diff("one"), ["removed /lower/d/a", "changed /lower/f"]);
    m.umount();
    m.bench.run(["umount", "mnt2"]).expect(0);
}

#[test]
fn an_upper_is_changed_through_its_overlay_only() {
    let Some(m) = world() else { return };
    overlay(&m);
    change(&m, "f", 0);
    m.bench.run(["snapshot", "create", "mnt", "s"]).expect(0);
    change(&m, "g", 0);
    m.bench.run(["mkdir", "up", "/x"]).expect(10).says("changes of an overlay").says("where the overlay is mounted");
    fs::create_dir(m.bench.path("mnt2")).unwrap();
    m.bench.run(["mount", "up", "mnt2"]).expect(10).says("where the overlay is mounted");
    m.umount();
    let lower = m.bench.str("lower");
    for line in [
        &["mount", "up", "mnt"][..],
        &["put", "up", "lower/f", "/x"],
        &["mkdir", "up", "/tree/x"],
        &["mv", "up", "/tree/f", "/tree/x"],
        &["rm", "up", "-y", "/tree/f"],
    ] {
        let hint = format!("adit mount {lower} MOUNTPOINT --upper");
        m.bench.run(line).expect(10).says("changes of an overlay").says(&hint);
    }
    // Paths of it are not those that are shown, mounted or not.
    m.bench.run(["snapshot", "restore", "up", "s", "/tree/f", "-y"]).expect(10).says("leave out the path");
    // To read, and what is about all of it.
    m.bench.run(["ls", "up", "/tree"]).expect(0);
    m.bench.run(["mount", "up", "mnt", "--read-only"]).expect(0);
    assert_eq!(&fs::read(m.at("tree/f")).unwrap()[..7], b"changed");
    m.bench.run(["ls", "up"]).expect(0);
    // Unmounting would not help.
    m.bench.run(["mkdir", "up", "/x"]).expect(10).says("changes of an overlay");
    m.bench.run(["mount", "up", "mnt2"]).expect(10).says("changes of an overlay");
    m.umount();
    assert_eq!(m.bench.run(["volume", "info", "up", "--json"]).expect(0).json()["upper_of"], lower.as_str());
    m.bench.run(["volume", "gc", "up"]).expect(0);
    m.bench.run(["snapshot", "create", "up", "t"]).expect(0);
    // While only a snapshot of it is mounted, verbs reach the rest of it through that process.
    let snapshot = ["mount", "up", "mnt", "--snapshot", "s"];
    m.bench.run(snapshot).expect(10).says("changes of an overlay").says("--read-only");
    m.bench.run([&snapshot[..], &["--read-only"]].concat()).expect(0);
    m.bench.run(["ls", "up", "/tree"]).expect(0);
    m.bench.run(["mkdir", "up", "/x"]).expect(10).says("changes of an overlay");
    m.bench.run(["snapshot", "restore", "up", "s", "/tree/f", "-y"]).expect(10).says("leave out the path");
    // Also where the process could set it back in its place.
    m.bench.run(["mount", "up", "mnt2", "--read-only"]).expect(0);
    m.bench.run(["snapshot", "restore", "up", "s", "/tree/f", "-y"]).expect(10).says("leave out the path");
    m.bench.run(["umount", "mnt2"]).expect(0);
    m.umount();
    m.bench.run(["snapshot", "restore", "up", "s", "-y"]).expect(0);
    overlay(&m);
    assert_eq!(lines(m.bench.run(["diff", "mnt", "--json"])), ["changed /f"]);
    m.umount();
    // One that is none is changed as always.
    m.bench.run(["put", "box", "lower/f", "/x"]).expect(0);
    assert_eq!(m.bench.run(["volume", "info", "box", "--json"]).expect(0).json()["upper_of"], Value::Null);
}

/// A branch of the upper is mounted beside the overlay, to look into it.
#[test]
fn a_branch_that_is_mounted_is_compared_as_well() {
    let Some(m) = world() else { return };
    overlay(&m);
    change(&m, "f", 0);
    m.bench.run(["snapshot", "create", "mnt", "s"]).expect(0);
    m.bench.run(["clone", "create", "up", "s", "b"]).expect(0);
    change(&m, "g", 0);
    fs::create_dir(m.bench.path("mnt2")).unwrap();
    m.bench.run(["mount", "up", "mnt2", "--branch", "b", "--read-only"]).expect(0);
    let file = fs::File::open(m.bench.path("mnt2/tree/f")).unwrap();
    for (names, told) in
        [(&["b"][..], &["changed /d/linked", "changed /g"][..]), (&["s", "b"], &[]), (&["b", "s"], &[])]
    {
        let line = [&["snapshot", "diff", "mnt"], names, &["--json"]].concat();
        assert_eq!(lines(m.bench.run(line)), told, "{names:?}");
    }
    // It stays usable as it was.
    let mut buf = [0; 7];
    file.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"changed");
    assert_eq!(fs::read_dir(m.bench.path("mnt2/tree")).unwrap().count(), 1);
    drop(file);
    m.bench.run(["umount", "mnt2"]).expect(0);
    m.umount();
}

/// Of an upper by itself paths are none that a user knows.
#[test]
fn an_upper_that_is_not_mounted_is_compared_through_its_overlay() {
    let Some(m) = world() else { return };
    m.bench.run(["volume", "init", "up"]).expect(0);
    m.bench.run(["snapshot", "create", "up", "empty"]).expect(0);
    m.bench.run(["snapshot", "create", "up", "empty2"]).expect(0);
    overlay(&m);
    change(&m, "f", 0);
    m.bench.run(["snapshot", "create", "mnt", "s"]).expect(0);
    m.umount();
    let lower = m.bench.str("lower");
    let refused = |names: &[&str]| {
        let ran = m.bench.run([&["snapshot", "diff", "up"], names].concat()).expect(10);
        ran.says(&format!("adit mount {lower} MOUNTPOINT --upper"))
            .says(&format!("adit snapshot diff MOUNTPOINT {}", names[0]));
    };
    refused(&["s"]);
    refused(&["empty"]);
    refused(&["empty", "s"]);
    assert_eq!(lines(m.bench.run(["snapshot", "diff", "up", "empty", "empty2", "--json"])), [""; 0]);
    // Also while it is mounted by itself.
    m.bench.run(["mount", "up", "mnt", "--read-only"]).expect(0);
    refused(&["s"]);
    m.umount();
    // What is advised works.
    overlay(&m);
    assert_eq!(lines(m.bench.run(["snapshot", "diff", "mnt", "empty", "--json"])), ["changed /f"]);
    m.umount();
}

/// Whose mark another version has written, or damage: nobody knows what a change would break.
#[test]
fn an_upper_with_a_mark_that_is_not_understood_is_not_changed() {
    let Some(m) = world() else { return };
    overlay(&m);
    m.bench.run(["snapshot", "create", "mnt", "s"]).expect(0);
    m.umount();
    for (mark, code, kind, says) in
        [(&[200][..], 10, "NotSupported", "its version is 200"), (&[], 4, "Corrupt", "adit volume check")]
    {
        let volume = Volume::open(&m.bench.path("up"), &OpenOptions::new(Access::Write)).unwrap();
        let store = volume.live().unwrap();
        store.set_xattr(Ino::ROOT, LowerIdentity::attribute(), mark, XattrSet::Replace).unwrap();
        drop(store);
        volume.close().unwrap();
        drop(volume);
        let refused = || {
            m.bench.run(["mkdir", "up", "/x"]).expect(code).says(says);
            m.bench.run(["snapshot", "restore", "up", "s", "/tree/f", "-y"]).expect(code).says(says);
            m.bench.run(["ls", "up", "/tree"]).expect(0);
            let info = m.bench.run(["volume", "info", "up", "--json"]).expect(0).json();
            assert_eq!((&info["upper_of"], &info["upper_error"]["kind"]), (&Value::Null, &kind.into()), "{info}");
        };
        refused();
        m.bench.run(["mount", "up", "mnt", "--snapshot", "s"]).expect(code).says(says);
        m.bench.run(["mount", "up", "mnt", "--snapshot", "s", "--read-only"]).expect(0);
        refused();
        m.umount();
    }
}
