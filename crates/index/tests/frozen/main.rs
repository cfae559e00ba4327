//! Frozen segments of format 1: each opens, and shows what was in it when it was made; each of the broken ones ends with the error that
//! is written beside it. `fixtures/README.md` says what they are.

mod make;
#[path = "../support/mod.rs"]
mod support;

use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use adit_core::error::Result;
use adit_index::fuzzing::{opened, resealed};
use adit_index::layout::Section;
use adit_index::query::{Pattern, Query, Strategy};
use adit_index::{NodeId, Question, Resolver, Segment};
use support::paths::same_hash;

/// Those that an earlier version made, without the tables that came later.
const OF_BEFORE: [&str; 1] = ["tables"];

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
        if let Some(stamp) = segment.stamp(id)? {
            let _ = write!(out, " stamp {}", hex(&stamp));
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
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let dir = fixtures().join("sound").join(&name);
        let expected = fs::read_to_string(dir.join("expected.txt")).unwrap();
        let segment = Segment::open(&dir.join("segment")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(shown(&segment).unwrap(), expected, "{name}");
        segment.verify(&mut |_| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// The same entries make the same bytes, for ever: what is built twice is compared, and caches find it again.
#[test]
fn what_is_built_today_is_what_was_frozen_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut built = Vec::new();
    make::each_sound(&mut |sound| {
        let out = dir.path().join(sound.name);
        make::build(sound, dir.path(), &out);
        let frozen = fs::read(fixtures().join("sound").join(sound.name).join("segment")).unwrap();
        assert!(fs::read(&out).unwrap() == frozen, "{}: other bytes", sound.name);
        built.push(sound.name.to_owned());
    });
    built.extend(OF_BEFORE.map(str::to_owned));
    built.sort();
    assert_eq!(built, names("sound"));
}

#[test]
fn frozen_tables_find_every_path() {
    for name in ["tables", "signatures", "stamps"] {
        let segment = Segment::open(&fixtures().join("sound").join(name).join("segment")).unwrap();
        let has = |section: &Section| segment.sections().any(|(there, _)| there == *section);
        let lacks: Vec<Section> = Section::ALL.into_iter().filter(|section| !has(section)).collect();
        let lacking: &[Section] = match name {
            "tables" => &[Section::NameSignatures, Section::Stamps],
            "signatures" => &[Section::Stamps],
            _ => &[],
        };
        assert_eq!(lacks, lacking, "the newest has everything that a segment can have");
        finds_every_path(&segment);
        finds_every_name(&segment);
    }
}

/// Each name, and each without its first or last byte, is found as by a look at all names.
fn finds_every_name(segment: &Segment) {
    for id in (1..segment.len()).map(NodeId) {
        let name = segment.name(id).unwrap();
        for part in [name, &name[1..], &name[..name.len() - 1]].into_iter().filter(|part| !part.is_empty()) {
            let query = Query::new().pattern(Pattern::substring(part).unwrap());
            let found = query.collect(segment).unwrap();
            assert!(found.contains(&id), "{}", part.escape_ascii());
            assert_eq!(found, query.strategy(Strategy::Each).collect(segment).unwrap(), "{}", part.escape_ascii());
        }
    }
}

fn finds_every_path(segment: &Segment) {
    let by_tables = Resolver::new(segment).unwrap();
    assert!(by_tables.has_tables());
    for id in (0..segment.len()).map(NodeId) {
        let path = segment.path(id).unwrap();
        assert_eq!(by_tables.resolve(NodeId::ROOT, &path).unwrap(), Ok(id));
        assert_eq!(by_tables.walk(NodeId::ROOT, &path).unwrap(), Ok(id));
        let longer = [&path[..], b"!"].concat();
        assert_eq!(by_tables.find(NodeId::ROOT, &longer).unwrap(), None);
    }
    // Thirteen of one hash: twelve that are there, and one that is not.
    let questions: Vec<Vec<u8>> = (0..13).map(same_hash).collect();
    let questions: Vec<Question<'_>> = questions.iter().map(|path| Question::from(&path[..])).collect();
    let found = by_tables.find_batch(&questions).unwrap();
    assert!(found[..12].iter().all(Option::is_some) && found[12].is_none());
}

#[test]
fn a_broken_segment_is_found_to_be_what_it_is() {
    let names = names("broken");
    assert!(names.len() >= 30, "{names:?}");
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
