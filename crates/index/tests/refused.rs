//! What a builder refuses, and that nothing is left of a build that ends before its end.

mod support;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;

use adit_core::error::{ErrorKind, FsError};
use adit_core::types::Kind;
use adit_index::layout::{DEPTH_MAX, PATH_LEN_MAX_BYTES};
use adit_index::{Entry, Refusal, Segment};
use support::{Item, Place};

fn refusal(e: &FsError) -> &Refusal {
    e.cause().and_then(|cause| cause.downcast_ref()).unwrap_or_else(|| panic!("{e}"))
}

/// What finishing says of entries that all were taken.
fn refused(items: &[Item]) -> FsError {
    let place = Place::new();
    let mut builder = place.builder();
    items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
    let e = builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(!place.out().exists());
    assert_eq!(place.left(), [""; 0]);
    e
}

#[test]
fn a_path_is_there_once() {
    let kinds = [Item::file(b"a/b"), Item::dir(b"a/b")];
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let e = refused(&[kinds[first].clone(), Item::file(b"a/a"), kinds[second].clone(), Item::file(b"a/c")]);
        assert_eq!((e.kind(), refusal(&e), e.subject()), (ErrorKind::Exists, &Refusal::Twice, Some("a/b")));
    }
    assert_eq!(refused(&[Item::dir(b""), Item::dir(b"")]).subject(), Some("/"));
}

#[test]
fn what_is_below_a_file_is_refused_in_any_order() {
    for items in [[Item::file(b"a/b"), Item::file(b"a/b/c/d")], [Item::dir(b"a/b/c/d"), Item::file(b"a/b")]] {
        let e = refused(&items);
        assert_eq!((e.kind(), e.subject()), (ErrorKind::NotDirectory, Some("a/b/c/d")));
        assert_eq!(refusal(&e), &Refusal::BelowFile { file: b"a/b".to_vec() });
    }
    // Names that only begin alike have nothing to do with each other.
    let place = Place::new();
    place.build(&[
        Item::file(b"a/b"),
        Item::file(b"a/b!"),
        Item::file(b"a/b.c/d"),
        Item::file(b"a/bb"),
        Item::file(b"a!"),
    ]);
}

#[test]
fn a_directory_that_is_named_after_what_is_in_it_is_that_directory() {
    let place = Place::new();
    let segment = place.segment(&[Item::file(b"a/b/c"), Item::dir(b"a/b"), Item::dir(b"e")]);
    let (a, e) = (adit_index::NodeId(1), adit_index::NodeId(2));
    let b = segment.lookup(a, b"b").unwrap().unwrap();
    assert!(segment.node(a).unwrap().implied && !segment.node(b).unwrap().implied);
    assert_eq!((segment.node(b).unwrap().perm, segment.node(e).unwrap().perm), (0o750, 0o750));
    assert_eq!(segment.children(e, 0).unwrap().count(), 0);
}

#[test]
fn a_path_that_is_none_is_refused_and_nothing_else() {
    let place = Place::new();
    let mut builder = place.builder();
    let deep = vec!["d"; DEPTH_MAX + 1].join("/");
    let long = "x".repeat(PATH_LEN_MAX_BYTES + 1);
    let bad: [(&[u8], ErrorKind); 12] = [
        (b"/", ErrorKind::InvalidInput),
        (b"/a", ErrorKind::InvalidInput),
        (b"a/", ErrorKind::InvalidInput),
        (b"a//b", ErrorKind::InvalidInput),
        (b".", ErrorKind::InvalidInput),
        (b"a/./b", ErrorKind::InvalidInput),
        (b"..", ErrorKind::InvalidInput),
        (b"a/../b", ErrorKind::InvalidInput),
        (b"a\0b", ErrorKind::InvalidInput),
        (b"", ErrorKind::NotDirectory),
        (deep.as_bytes(), ErrorKind::NameTooLong),
        (long.as_bytes(), ErrorKind::NameTooLong),
    ];
    for (path, kind) in bad {
        let e = builder.add(&Item::file(path).entry()).unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
        refusal(&e);
    }
    assert!(builder.is_empty());
    builder.add(&Item::file(b"good").entry()).unwrap();
    assert!(builder.set_identity(&[0; 1025]).is_err());
    let built = builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((built.nodes, built.directories), (2, 1));
}

#[test]
fn extra_bytes_have_a_limit() {
    let place = Place::new();
    let mut builder = place.builder();
    let extra = vec![7; adit_index::layout::EXTRA_LEN_MAX_BYTES + 1];
    let item = Item::file(b"a");
    let e = builder.add(&Entry { extra: &extra, ..item.entry() }).unwrap_err();
    assert_eq!(refusal(&e), &Refusal::ExtraTooLong);
    builder.add(&Entry { extra: &extra[1..], ..item.entry() }).unwrap();
    builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).unwrap();
    let segment = Segment::open(&place.out()).unwrap();
    assert!(segment.extra(adit_index::NodeId(1)).unwrap() == &extra[1..]);
}

#[test]
fn a_build_that_is_ended_leaves_what_was_there() {
    let place = Place::new();
    place.build(&[Item::file(b"old")]);
    let old = fs::read(place.out()).unwrap();
    for last in 0.. {
        let mut builder = place.builder();
        (0..40_000).for_each(|n| builder.add(&Item::file(format!("new {n}").as_bytes()).entry()).unwrap());
        let mut told = 0;
        let result = builder.finish(&place.out(), &mut |_| {
            told += 1;
            if told > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(place.left(), [""; 0]);
        match result {
            Err(e) => assert_eq!(e.kind(), ErrorKind::Interrupted),
            Ok(_) => {
                assert!(last >= 6, "{last}");
                break;
            }
        }
        assert!(fs::read(place.out()).unwrap() == old);
    }
    assert!(fs::read(place.out()).unwrap() != old);
    assert_eq!(fs::metadata(place.out()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_folder_that_is_not_there_is_an_error_that_names_it() {
    let place = Place::new();
    let none = place.dir.path().join("none");
    let mut builder = adit_index::Builder::new(&none, 0);
    let item = Item::file(b"a");
    let e = builder.add(&Entry { extra: b"x", ..item.entry() }).unwrap_err();
    assert_eq!((e.kind(), e.subject()), (ErrorKind::NotFound, none.to_str()));
    // What was lost is not forgotten.
    assert_eq!(builder.add(&item.entry()).unwrap_err().kind(), ErrorKind::Io);
    assert!(builder.finish(&place.out(), &mut |_| ControlFlow::Continue(())).is_err());

    let builder = place.builder();
    let e = builder.finish(&none.join("segment"), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    let e = Segment::open(&none).unwrap_err();
    assert_eq!((e.kind(), e.subject()), (ErrorKind::NotFound, none.to_str()));
    assert_eq!(Segment::open(place.dir.path()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn every_kind_is_kept() {
    let kinds =
        [Kind::File, Kind::Directory, Kind::Symlink, Kind::BlockDevice, Kind::CharDevice, Kind::Fifo, Kind::Socket];
    let place = Place::new();
    let items: Vec<Item> =
        kinds.iter().map(|kind| Item { kind: *kind, ..Item::file(kind.as_str().as_bytes()) }).collect();
    support::compare(&place.segment(&items), &support::model(&items, 0o755, 0));
}
