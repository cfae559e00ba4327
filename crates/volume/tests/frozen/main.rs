//! Frozen volumes of format 1: each opens, and shows what was in it when it was made; each of the broken ones ends with the error
//! or the finding that is written beside it. `fixtures/README.md` says what they are.

mod make;
mod pack;
mod shown;

use std::fs;
use std::path::{Path, PathBuf};

use adit_core::types::Access;
use adit_volume::Volume;
use adit_volume::check;
use adit_volume::volume::OpenOptions;

use shown::shown;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/volumes")
}

fn names(kind: &str) -> Vec<String> {
    let dir = fixtures().join(kind);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn options(access: Access) -> OpenOptions {
    OpenOptions { background: false, ..OpenOptions::new(access) }
}

fn findings(volume: &Volume) -> Vec<String> {
    let options = check::Options { contents: true, repair: false };
    let report = check::check(volume, options, &mut |_| ()).unwrap();
    let line = |problem: &check::Problem| {
        let path = problem.path.as_deref().unwrap_or("-");
        format!("{} {path}", problem.kind.as_str())
    };
    report.problems.iter().map(line).collect()
}

#[test]
fn a_sound_volume_shows_what_was_in_it() {
    let names = names("sound");
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let dir = tempfile::tempdir().unwrap();
        pack::unpack(&fixtures().join("sound").join(&name), dir.path());
        let expected = fs::read_to_string(fixtures().join("sound").join(&name).join("expected.txt")).unwrap();
        let file = dir.path().join("volume");
        // As it is, then after it was opened to be changed, and once more.
        for access in [Access::Read, Access::Write, Access::Read] {
            let volume = Volume::open(&file, &options(access)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(shown(&volume), expected, "{name}, to {access:?}");
            assert_eq!(findings(&volume), [""; 0], "{name}, to {access:?}");
            if access == Access::Write {
                volume.gc().unwrap();
                volume.close().unwrap();
            }
        }
    }
}

#[test]
fn a_broken_volume_is_found_to_be_what_it_is() {
    let names = names("broken");
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        let text = fs::read_to_string(fixtures().join("broken").join(&name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut expected = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.split_once(' ') {
                Some(("of", sound)) => pack::unpack(&fixtures().join("sound").join(sound), dir.path()),
                Some(("refused" | "finding" | "sound", _)) => expected.push(line.to_owned()),
                _ => pack::harm(dir.path(), line),
            }
        }
        assert_eq!(make::outcome(&dir.path().join("volume")), expected, "{name}");
    }
}

/// What `cargo xtask fixtures` runs: those that are missing are made, the others stay.
#[test]
#[ignore = "it writes to fixtures/"]
fn make_those_that_are_missing() {
    make::all(&fixtures());
}
