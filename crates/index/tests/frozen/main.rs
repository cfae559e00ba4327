//! Frozen segments of format 1: each opens, and shows what was in it when it was made; each of the broken ones ends with the error that
//! is written beside it. `fixtures/README.md` says what they are.

mod make;

use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use adit_core::error::Result;
use adit_index::fuzzing::{opened, resealed};
use adit_index::{NodeId, Segment};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/indexes")
}

fn names(kind: &str) -> Vec<String> {
    let dir = fixtures().join(kind);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All that a segment says, a line for each node.
fn shown(segment: &Segment) -> Result<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut out = format!("identity {}\n", segment.identity().escape_ascii());
    for id in (0..segment.len()).map(NodeId) {
        let node = segment.node(id)?;
        let implied = if node.implied { " implied" } else { "" };
        let _ = write!(out, "{} {}{implied} {:o} {}", id.0, node.kind.as_str(), node.perm, node.size);
        let _ = write!(out, " {} /{}", node.mtime_ns, segment.path(id)?.escape_ascii());
        if let Some(hash) = segment.hash(id)? {
            let _ = write!(out, " hash {}", hex(&hash));
        }
        if !segment.extra(id)?.is_empty() {
            let _ = write!(out, " extra {}", segment.extra(id)?.escape_ascii());
        }
        if node.kind == adit_core::types::Kind::Directory {
            let children: Vec<String> = segment
                .children(id, 0)?
                .map(|child| child.map(|child| child.id.0.to_string()))
                .collect::<Result<_>>()?;
            let _ = write!(out, " children {}", children.join(" "));
        }
        assert_eq!(segment.lookup(node.parent, segment.name(id)?)?, (id != NodeId::ROOT).then_some(id));
        out.push('\n');
    }
    Ok(out)
}

/// How it ends to open and check these bytes.
fn outcome(bytes: &[u8]) -> String {
    let words = |what: &str, e: adit_core::error::FsError| {
        let (kind, words) = (e.kind(), e.cause().map(ToString::to_string).unwrap_or_default());
        format!("{what} {kind:?} {words}")
    };
    match opened(bytes) {
        Err(e) => words("refused", e),
        Ok(segment) => match segment.verify(&mut |_| ControlFlow::Continue(())) {
            Err(e) => words("found", e),
            Ok(()) => "sound as before".to_owned(),
        },
    }
}

/// Does to a segment what a line says.
fn harm(bytes: &mut Vec<u8>, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    match words[0] {
        "xor" => bytes[number(1)] ^= words[2].parse::<u8>().unwrap(),
        "write" => {
            let hex = words[2].as_bytes().as_chunks::<2>().0;
            let new = hex.iter().map(|hex| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap());
            let at = number(1);
            bytes.splice(at..at + hex.len(), new);
        }
        "cut" => bytes.truncate(number(1)),
        // What was done was done by whoever wrote the checksums too.
        "seal" => *bytes = resealed(bytes).unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_sound_segment_shows_what_was_in_it() {
    let names = names("sound");
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        let dir = fixtures().join("sound").join(&name);
        let expected = fs::read_to_string(dir.join("expected.txt")).unwrap();
        let segment = Segment::open(&dir.join("segment")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(shown(&segment).unwrap(), expected, "{name}");
        segment.verify(&mut |_| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn a_broken_segment_is_found_to_be_what_it_is() {
    let names = names("broken");
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        let text = fs::read_to_string(fixtures().join("broken").join(&name)).unwrap();
        let mut bytes = Vec::new();
        let mut expected = String::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.split_once(' ') {
                Some(("of", sound)) => bytes = fs::read(fixtures().join("sound").join(sound).join("segment")).unwrap(),
                Some(("refused" | "found" | "sound", _)) => expected = line.to_owned(),
                _ => harm(&mut bytes, line),
            }
        }
        assert_eq!(outcome(&bytes), expected, "{name}");
    }
}

/// What `cargo xtask fixtures` runs: those that are missing are made, the others stay.
#[test]
#[ignore = "it writes to fixtures/"]
fn make_those_that_are_missing() {
    make::all(&fixtures());
}
