//! Segments that were damaged, cut, or made to do harm: an error that names what is wrong, never a wrong answer, an absence, a
//! panic, or a walk without end.

mod support;

use std::fs;
use std::ops::ControlFlow;

use adit_core::error::{ErrorKind, FsError};
use adit_core::types::Kind;
use adit_index::fuzzing::{ask, opened, resealed};
use adit_index::layout::{self, Header, Mode, Section, pack_children};
use adit_index::query::Query;
use adit_index::{Damage, NodeId, Resolver, Segment};
use adit_testkit::{Rng, seeds};
use support::{Item, Place};

fn damage(e: &FsError) -> &Damage {
    e.cause().and_then(|cause| cause.downcast_ref()).unwrap_or_else(|| panic!("{e}"))
}

fn verify(segment: &Segment) -> Result<(), FsError> {
    segment.verify(&mut |_| ControlFlow::Continue(()))
}

/// A segment with all sections: directories, a link, hashes, extra bytes, a long name.
fn sound() -> Vec<u8> {
    let mut items: Vec<Item> = (0..20).map(|n| Item::file(format!("dir/{n}").as_bytes())).collect();
    items[3].hash = Some([3; 16]);
    items[3].stamp = Some([4; 8]);
    items[4].extra = b"extra".to_vec();
    items.push(Item { kind: Kind::Symlink, extra: b"target".to_vec(), ..Item::file(b"link") });
    items.push(Item::dir(b"empty"));
    items.push(Item::dir(b"nested/deep"));
    items.push(Item::file(&[b"nested/".to_vec(), vec![b'l'; 300]].concat()));
    let place = Place::new();
    place.build(&items);
    fs::read(place.out()).unwrap()
}

/// Everything that a segment of 27 nodes can be asked, and its answers.
fn answers(segment: &Segment) -> Vec<Result<String, FsError>> {
    let mut all = Vec::new();
    for id in (0..27).map(NodeId) {
        all.push(segment.node(id).map(|node| format!("{node:?}")));
        all.push(segment.path(id).map(|path| path.escape_ascii().to_string()));
        all.push(segment.hash(id).map(|hash| format!("{hash:?}")));
        all.push(segment.stamp(id).map(|stamp| format!("{stamp:?}")));
        all.push(segment.extra(id).map(|extra| format!("{extra:?}")));
        for name in [&b"dir"[..], b"7", b"15", b"19", b"deep", b"link", b"none", &[b'l'; 300], b""] {
            all.push(segment.lookup(id, name).map(|found| format!("{found:?}")));
        }
        all.extend(listed(segment, id));
    }
    all
}

/// Pages that were right, and that cannot be had any more: that is said of everything from then on, and of no other segment.
#[test]
fn a_file_that_is_cut_while_it_is_open_is_lost() {
    let items: Vec<Item> = (0..9000).map(|n| Item::file(format!("dir{}/file{n}", n % 90).as_bytes())).collect();
    let (place, other) = (Place::new(), Place::new());
    let (segment, other) = (place.segment_with_tables(&items), other.segment_with_tables(&items));
    // All of both was looked at, and found to be right.
    verify(&segment).unwrap();
    let resolver = Resolver::new(&segment).unwrap();
    let everything = Query::new();
    let ask = |segment: &Segment, id| segment.node(id).and_then(|node| Ok((node, segment.path(id)?)));
    let right: Vec<_> = (0..segment.len()).map(|id| ask(&segment, NodeId(id)).unwrap()).collect();
    let named: Vec<_> = right.iter().map(|(_, path)| resolver.find(NodeId::ROOT, path).unwrap().unwrap()).collect();
    fs::File::options().write(true).open(place.out()).unwrap().set_len(8192).unwrap();
    let mut is_lost = false;
    for (number, (right, named)) in right.iter().zip(&named).enumerate() {
        let answer = ask(&segment, NodeId(number as u32));
        let found = resolver.find(NodeId::ROOT, &right.1);
        for (what, is_right) in [
            (answer.as_ref().map(drop), answer.as_ref().is_ok_and(|answer| answer == right)),
            (found.as_ref().map(drop), found.as_ref().is_ok_and(|found| *found == Some(*named))),
        ] {
            match what {
                Ok(()) => assert!(is_right && !is_lost, "{number}"),
                Err(e) => {
                    assert_eq!((damage(e), e.kind()), (&Damage::Lost, ErrorKind::Corrupt), "{number}");
                    is_lost = true;
                }
            }
        }
    }
    assert!(is_lost);
    assert_eq!(damage(&everything.count(&segment).unwrap_err()), &Damage::Lost);
    assert_eq!(damage(&segment.lookup(NodeId::ROOT, b"dir7").unwrap_err()), &Damage::Lost);
    assert!(verify(&segment).is_err());
    assert_eq!(everything.count(&other).unwrap(), u64::from(other.len()) - 1);
    drop(resolver);
    drop(segment);
    // Its memory is given back, and taken again by another.
    verify(&place.segment(&items)).unwrap();
}

/// The first 21 children. What comes after an error is not known either.
fn listed(segment: &Segment, dir: NodeId) -> Vec<Result<String, FsError>> {
    let mut listed = Vec::new();
    let mut failed: Option<FsError> = None;
    let mut children = match segment.children(dir, 0) {
        Ok(children) => Some(children),
        Err(e) => {
            failed = Some(e);
            None
        }
    };
    for _ in 0..21 {
        if failed.is_none() {
            match children.as_mut().and_then(Iterator::next).transpose() {
                Ok(child) => listed.push(Ok(format!("{child:?}"))),
                Err(e) => failed = Some(e),
            }
        }
        if let Some(e) = &failed {
            listed.push(Err(e.kind().into()));
        }
    }
    listed
}

#[test]
fn every_byte_that_changes_is_found() {
    let bytes = sound();
    let header = Header::decode(&bytes).unwrap();
    let front = header.sections[0].offset as usize;
    let right = answers(&opened(&bytes).unwrap());
    let (mut refused, mut found) = (0, 0);
    for at in 0..bytes.len() {
        // All bits of the header; of the rest one in each byte.
        for bit in (0..8).filter(|bit| at < front || at % 8 == *bit) {
            let mut harmed = bytes.clone();
            harmed[at] ^= 1 << bit;
            let segment = match opened(&harmed) {
                Ok(segment) => segment,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corrupt, "byte {at}: {e}");
                    damage(&e);
                    refused += 1;
                    continue;
                }
            };
            for (answer, right) in answers(&segment).iter().zip(&right) {
                match (answer, right) {
                    (Ok(answer), Ok(right)) => assert_eq!(answer, right, "byte {at}, bit {bit}"),
                    (Ok(answer), Err(_)) => panic!("byte {at}, bit {bit}: {answer}"),
                    (Err(e), Ok(_)) => assert_eq!(e.kind(), ErrorKind::Corrupt, "byte {at}, bit {bit}: {e}"),
                    (Err(e), Err(right)) => {
                        assert!(
                            e.kind() == right.kind() || e.kind() == ErrorKind::Corrupt,
                            "byte {at}, bit {bit}: {e}"
                        );
                    }
                }
            }
            let e = verify(&segment).expect_err("a full check finds it");
            assert_eq!(e.kind(), ErrorKind::Corrupt, "byte {at}: {e}");
            found += 1;
        }
    }
    // The header and the checksums at the opening, the blocks and what is between them later.
    let at_once = |at: usize| at < layout::header_len(header.sections.len(), 6) || at >= header.sums_offset as usize;
    let tried = |at: usize| if at < front { 8 } else { 1 };
    assert_eq!(refused, (0..bytes.len()).filter(|at| at_once(*at)).map(tried).sum::<usize>());
    assert_eq!(found, (0..bytes.len()).filter(|at| !at_once(*at)).map(tried).sum::<usize>());
}

#[test]
fn a_file_that_was_cut_or_grew_is_refused() {
    let bytes = sound();
    for len in 0..bytes.len() {
        let e = opened(&bytes[..len]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{len}: {e}");
    }
    let header = Header::decode(&bytes).unwrap();
    // Where each section begins and ends, it is the length that is wrong and said.
    for entry in &header.sections {
        for len in [entry.offset, entry.offset + 1, entry.offset + entry.len] {
            let e = opened(&bytes[..len as usize]).unwrap_err();
            assert_eq!(damage(&e), &Damage::Length { expected: bytes.len() as u64, found: len });
        }
    }
    let e = opened(&[&bytes[..], &[0]].concat()).unwrap_err();
    assert!(matches!(damage(&e), Damage::Length { .. }), "{e}");
}

/// Of several blocks in each section.
fn large(place: &Place) -> Segment {
    let items: Vec<Item> = (0..20_000).map(|n| Item::file(format!("a directory/{n:05}").as_bytes())).collect();
    place.segment(&items)
}

#[test]
fn a_bad_block_is_an_error_where_it_is_needed_and_nowhere_else() {
    let place = Place::new();
    let header = Header::decode(&{
        large(&place);
        fs::read(place.out()).unwrap()
    })
    .unwrap();
    let names = header.section(Section::Names).unwrap();
    let mut bytes = fs::read(place.out()).unwrap();
    bytes[names.offset as usize + 65_536] ^= 1;
    fs::write(place.out(), &bytes).unwrap();
    let segment = Segment::open(&place.out()).unwrap();
    let bad = Damage::Block { section: "the names", block: 1 };
    // Six bytes a name: the second block begins with that of node 10921.
    for (n, is_bad) in [(0, false), (10_000, false), (11_000, true), (19_999, true)] {
        let id = NodeId(2 + n);
        assert_eq!(segment.node(id).unwrap().id, id);
        match segment.path(id) {
            Ok(path) => assert!(path == format!("a directory/{n:05}").as_bytes() && !is_bad),
            Err(e) => assert!(damage(&e) == &bad && is_bad, "{e}"),
        }
    }
    // What is looked for beyond it is not absent.
    let e = segment.lookup(NodeId(1), b"19999").unwrap_err();
    assert_eq!(damage(&e), &bad);
    assert!(e.to_string().contains("block 1 of the names does not match its checksum; build the index again"), "{e}");
    let listed = segment.children(NodeId(1), 0).unwrap().filter(Result::is_err).count();
    assert_eq!(listed, 1);
    assert_eq!(damage(&verify(&segment).unwrap_err()), &bad);
}

/// Not what may happen to a segment; but it ends with errors as long as nothing was read that is gone.
#[test]
fn a_file_that_is_cut_while_it_is_open_is_an_error_and_no_signal() {
    let place = Place::new();
    let segment = large(&place);
    fs::File::options().write(true).open(place.out()).unwrap().set_len(4096).unwrap();
    for id in [NodeId(2), NodeId(19_999)] {
        assert!(segment.node(id).is_err() && segment.name(id).is_err());
    }
    assert!(segment.lookup(NodeId::ROOT, b"a directory").is_err());
}

/// A segment with right checksums in which something was written over.
struct Hostile(Vec<u8>);

impl Hostile {
    fn new() -> Hostile {
        Hostile(sound())
    }

    fn put(&mut self, section: Section, at: usize, bytes: &[u8]) {
        let start = Header::decode(&self.0).unwrap().section(section).unwrap().offset as usize + at;
        self.0[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Opens it after this was put there.
    fn with(section: Section, at: usize, bytes: &[u8]) -> Segment {
        let mut hostile = Hostile::new();
        hostile.put(section, at, bytes);
        opened(&resealed(&hostile.0).unwrap()).unwrap()
    }
}

#[test]
fn what_cannot_be_is_found_behind_right_checksums() {
    assert!(verify(&opened(&resealed(&sound()).unwrap()).unwrap()).is_ok());
    // The nodes: the root, 1 dir, 2 empty, 3 link, 4 nested; 5 to 24 the files of dir, of which 18 has a hash and 19 extra bytes; 25
    // deep, 26 the long name.
    let (dir, empty, nested) = (1, 2, 4);
    let modes = |node: usize| node * 2;
    let symlink = Mode::new(Kind::Symlink, 0, false).0.to_le_bytes();
    let directory = Mode::new(Kind::Directory, 0, false).0.to_le_bytes();
    let hashed = Mode::new(Kind::File, 0, true).0.to_le_bytes();
    let size = |first, count| pack_children(first, count).to_le_bytes();
    let long = 0xffff_ffff_u32.to_le_bytes();
    let bad: [(Section, usize, &[u8], &str); 27] = [
        (Section::Parents, 0, &[1, 0, 0, 0], "it is not behind its directory"),
        (Section::Parents, 4 * 9, &[9, 0, 0, 0], "it is not behind its directory"),
        (Section::Parents, 4 * 9, &long, "it is not behind its directory"),
        (Section::Parents, 4 * 9, &[4, 0, 0, 0], "it is among the children of another directory"),
        (Section::Parents, 4 * 5, &[4, 0, 0, 0], "its directory does not know it"),
        (Section::Modes, modes(0), &symlink, "the root is no directory"),
        (Section::Modes, modes(dir), &symlink, "its children are not where they should be"),
        (Section::Modes, modes(3), &directory, "its children are not"),
        (Section::Modes, modes(5), &hashed, ""),
        (Section::Modes, modes(18), &[0, 0], "it has no hash, and yet there is one"),
        (Section::Sizes, 0, &size(0, 27), "its children are not behind it"),
        (Section::Sizes, 8 * dir, &size(1, 2), "its children are not behind it"),
        (Section::Sizes, 8 * dir, &size(5, u32::MAX), "its children are not behind it"),
        (Section::Sizes, 8 * dir, &size(5, 22), "its children are not where they should be"),
        (Section::Sizes, 8 * empty, &size(5, 1), "its children are not where they should be"),
        (Section::Sizes, 8 * nested, &size(25, 1), "its children are not where they should be"),
        (Section::NameLengths, 1, &[4], "its name does not end where it should"),
        (Section::NameLengths, 1, &[2], "its name does not end where it should"),
        (Section::NameLengths, 1, &[255], "its long name does not end where it should"),
        (Section::NamePositions, 0, &long, "a number points out of the names"),
        (Section::NamePositions, 8, &[1], "its name is not where the one before ends"),
        (Section::Names, 1, b"/", "its name is not a name"),
        (Section::Names, 1, b"x", "its name is not behind the one before"),
        (Section::Names, 1, b"..\0", "its name is not a name"),
        (Section::ExtraEntries, 0, &long, "extra bytes go on"),
        (Section::ExtraEntries, 4, &long, "its extra bytes"),
        (Section::ExtraEntries, 8, &long, "its extra bytes are not where they should be"),
    ];
    for (section, at, bytes, words) in bad {
        let segment = Hostile::with(section, at, bytes);
        if words.is_empty() {
            // A hash of zeros is one too.
            verify(&segment).unwrap();
        } else {
            let e = verify(&segment).expect_err(words);
            assert!(e.to_string().contains(words), "{section:?} {at}: {e} is not: {words}");
        }
        ask(&segment);
    }
}

#[test]
fn names_that_lead_out_are_never_told() {
    // The name of the first file of `dir` begins where that of node 5 does: behind "", "dir", "empty", "link" and "nested".
    let at = 1 + 4 + 6 + 5 + 7;
    for name in [&b"/"[..], b"."] {
        let segment = Hostile::with(Section::Names, at, name);
        let id = NodeId(5);
        for e in [
            segment.name(id).unwrap_err(),
            segment.path(id).unwrap_err(),
            segment.children(NodeId(1), 0).unwrap().next().unwrap().unwrap_err(),
        ] {
            assert_eq!(damage(&e), &Damage::Node { node: 5, what: "its name is not a name" });
        }
    }
}

#[test]
fn what_is_newer_is_said_to_be() {
    let bytes = sound();
    let mut header = Header::decode(&bytes).unwrap();
    let with = |header: &Header| {
        let front = header.encode();
        opened(&[&front[..], &bytes[front.len()..]].concat())
    };
    assert!(with(&header).is_ok());
    // A section that this version does not know: it may be there, unless it must be known.
    let last = header.sections.iter().position(|entry| entry.kind == Section::Extra as u32).unwrap();
    header.sections[last].kind = 77;
    let e = with(&header).unwrap_err();
    assert_eq!((e.kind(), damage(&e)), (ErrorKind::NotSupported, &Damage::UnknownSection(77)));
    header.sections[last].flags = 0;
    header.sections[last - 1].kind = 78;
    header.sections[last - 1].flags = 0;
    let segment = with(&header).unwrap();
    assert_eq!(segment.extra(NodeId(9)).unwrap(), b"");
    verify(&segment).unwrap();

    for (at, found) in [(8, Damage::LaterVersion(0x0101)), (12, Damage::UnknownFeatures(0x0100))] {
        let mut later = bytes.clone();
        later[at + 1] = 1;
        let len = header.encode().len() - 8;
        let sum = xxhash_rust::xxh3::xxh3_64(&later[..len]).to_le_bytes();
        later[len..len + 8].copy_from_slice(&sum);
        let e = opened(&later).unwrap_err();
        assert_eq!((e.kind(), damage(&e)), (ErrorKind::NotSupported, &found));
    }
}

#[test]
fn random_harm_behind_right_checksums_does_none() {
    let bytes = sound();
    let header = Header::decode(&bytes).unwrap();
    for seed in seeds(3000) {
        println!("seed {seed}");
        let mut rng = Rng::new(seed);
        let mut harmed = bytes.clone();
        for _ in 0..1 + rng.below(6) {
            let section = rng.pick(&header.sections);
            // In the header too, now and then.
            let (start, len) = if rng.percent(10) { (20, 400) } else { (section.offset, section.len) };
            let at = (start + rng.below(len)) as usize;
            let value = match rng.below(4) {
                0 => rng.next_u64(),
                1 => rng.below(30),
                2 => u64::MAX - rng.below(3),
                _ => pack_children(rng.below(30) as u32, rng.below(30) as u32),
            };
            let width = (1 << rng.below(4)).min(harmed.len() - at);
            harmed[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        }
        adit_index::fuzzing::fuzz_segment(&harmed);
    }
}
