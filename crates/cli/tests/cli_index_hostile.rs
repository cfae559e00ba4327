//! Names that were made to do harm, from a folder into an index and out of it again as a user has them: `find`, `resolve`, `dupes`, `diff`.

mod common;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use common::{Bench, Ran};
use serde_json::Value;

/// What XXH3 gives one hash to: its own constant, any eight bytes, and an end.
fn same_hash(number: u32) -> Vec<u8> {
    let secret = [0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe];
    [&secret[..], format!("{number:08}").as_bytes(), b"the same of them"].concat()
}

/// Files below a folder, of one content each pair.
fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        &b"a\nb"[..],
        b"\n",
        b"a\r\n",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"ok\x80",
        b"-rf",
        b"--json",
        b"*?[",
        b"\\",
        b"...",
        b" ",
        b"\x1b[2J",
        b"\x7f",
        b"$(x)",
        b"%n",
    ]
    .map(<[u8]>::to_vec)
    .into();
    names.extend((0..40).map(same_hash));
    names.push(vec![b'n'; 255]);
    names.push(vec![0xff; 255]);
    names
}

/// A path of nearly 4 KiB, the longest that a host takes in one piece.
fn long(root: &Path) -> Vec<u8> {
    let left = 4095 - root.as_os_str().len() - 1;
    let mut path: Vec<u8> = (0..left).map(|at| if at % 200 == 199 { b'/' } else { b'l' }).collect();
    *path.last_mut().unwrap() = b'e';
    path
}

fn index(bench: &Bench, args: &[&str], stdin: &[u8]) -> Ran {
    bench.run_with(["index"].iter().chain(args), stdin)
}

fn set(bytes: &[u8]) -> BTreeSet<Vec<u8>> {
    bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The bytes of a field, whether they are text or not.
fn raw(object: &Value, field: &str) -> Vec<u8> {
    match &object[format!("{field}_raw")] {
        Value::Array(bytes) => bytes.iter().map(|byte| byte.as_u64().unwrap() as u8).collect(),
        _ => object[field].as_str().unwrap().as_bytes().to_vec(),
    }
}

#[test]
fn hostile_names_come_out_as_they_went_in() {
    let bench = Bench::bare();
    let work = bench.path("work");
    fs::create_dir(&work).unwrap();
    let mut paths = names();
    paths.push(long(&work));
    for (at, path) in paths.iter().enumerate() {
        let file = work.join(OsStr::from_bytes(path));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        // Each content twice.
        fs::write(file, format!("content {}", at / 2)).unwrap();
    }
    index(&bench, &["build", "work", "-o", "i", "--hash", "--quiet"], b"").expect(0);
    let rooted = |path: &[u8]| [b"/", path].concat();
    let all: BTreeSet<Vec<u8>> = paths.iter().map(|path| rooted(path)).collect();

    assert_eq!(set(&index(&bench, &["find", "i", "-t", "file", "-0"], b"").expect(0).stdout), all);
    let told = index(&bench, &["find", "i", "-t", "file", "--json"], b"").expect(0).json();
    assert_eq!(told.as_array().unwrap().iter().map(|hit| raw(hit, "path")).collect::<BTreeSet<_>>(), all);
    // For people there is one line for each, and nothing that a terminal obeys.
    let lines = index(&bench, &["find", "i", "-t", "file"], b"").expect(0).stdout;
    assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), all.len());
    assert!(!lines.contains(&0x1b) && !lines.contains(&0x7f));

    let asked: Vec<u8> = paths.iter().flat_map(|path| [path, &b"\0"[..]].concat()).collect();
    let answers = index(&bench, &["resolve", "i", "-0"], &asked).expect(0).stdout;
    let expected: Vec<u8> = paths.iter().flat_map(|path| [&rooted(path), &b"\0"[..]].concat()).collect();
    assert!(answers == expected, "each of them, in their order");
    let missing = (100..140).map(|n| OsString::from_vec(same_hash(n)));
    let line = ["index", "resolve", "i", "--json"].map(OsString::from).into_iter().chain(missing);
    let told = bench.run(line).expect(1).json();
    let told = told.as_array().unwrap();
    assert!(told.len() == 40 && told.iter().all(|one| one["found"] == false && one["why"] == "not-found"));
    assert_eq!(raw(&told[3], "missing"), same_hash(103));

    let groups = index(&bench, &["dupes", "i", "--json"], b"").expect(0).json();
    let groups: BTreeSet<BTreeSet<Vec<u8>>> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["files"].as_array().unwrap().iter().map(|file| raw(file, "path")).collect())
        .collect();
    let pairs = paths.chunks_exact(2).map(|pair| pair.iter().map(|path| rooted(path)).collect());
    assert_eq!(groups, pairs.collect());

    // One of each pair is gone, and the other one is elsewhere, or as it was.
    fs::create_dir(work.join("moved\n")).unwrap();
    let mut expected = BTreeSet::new();
    for (at, pair) in paths.chunks_exact(2).enumerate() {
        let [gone, kept] = pair else { panic!("they are pairs") };
        fs::remove_file(work.join(OsStr::from_bytes(gone))).unwrap();
        if at % 2 == 0 && !kept.contains(&b'/') {
            let to = [b"moved\n/", &kept[..]].concat();
            fs::rename(work.join(OsStr::from_bytes(kept)), work.join(OsStr::from_bytes(&to))).unwrap();
            expected.insert((rooted(&to), Some(())));
        } else {
            expected.insert((rooted(gone), None));
        }
    }
    index(&bench, &["build", "work", "-o", "j", "--hash", "--quiet"], b"").expect(0);
    let told = index(&bench, &["diff", "i", "j", "--json"], b"").expect(0).json();
    let files = told.as_array().unwrap().iter().filter(|one| one["kind"] == "file");
    let renamed: BTreeSet<Vec<u8>> =
        files.clone().filter(|one| one["change"] == "renamed").map(|one| raw(one, "path")).collect();
    let removed = files.filter(|one| one["change"] == "removed").count();
    assert_eq!(renamed, expected.iter().filter(|(_, moved)| moved.is_some()).map(|(path, _)| path.clone()).collect());
    // Of a pair that moved one was the rename's beginning; the other one, and one of each that stayed, is removed.
    assert_eq!(removed, paths.len() / 2);
}
