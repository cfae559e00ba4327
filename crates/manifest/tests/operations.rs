//! Differences and merges, against a naive model of a tree.

use std::collections::BTreeMap;

use adit_core::error::ErrorKind;
use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{
    Body, Content, ContentHash, Dialect, Entry, EntryPath, File, Format, Header, Kind, LinkTarget, Manifest, PathStyle,
    Removed,
};
use proptest::prelude::*;

const FORMAT: Format = Format::V2025(Dialect::G);
const PARENT: ContentHash = ContentHash([9; 16]);

fn path(text: &str) -> EntryPath<'static> {
    EntryPath::parse(text.as_bytes(), PathStyle::Relative).expect("a path").into_owned()
}

fn file(content: u8) -> Body<'static> {
    let content = Content::Whole(ContentHash([content; 16]));
    Body::File(File { size_bytes: 1, mtime_micros: 1000, runnable: false, content })
}

fn of(header: Header, entries: &[(&str, Body<'static>)]) -> Manifest {
    let mut manifest = Manifest::new(header);
    for (at, body) in entries {
        manifest.insert(Entry { path: path(at), body: body.clone() }).expect("it fits");
    }
    manifest
}

fn snapshot(entries: &[(&str, Body<'static>)]) -> Manifest {
    of(Header::snapshot(FORMAT), entries)
}

fn changes(entries: &[(&str, Body<'static>)]) -> Manifest {
    of(Header { kind: Kind::Diff { parent: PARENT }, ..Header::snapshot(FORMAT) }, entries)
}

/// The tree that a manifest shows: also the directories that are only implied.
fn tree(manifest: &Manifest) -> BTreeMap<Vec<u8>, Body<'static>> {
    let mut tree = BTreeMap::new();
    for (path, body) in manifest.entries() {
        tree.insert(path.as_wtf8().to_vec(), body.clone());
        tree.extend(path.ancestors().map(|above| (above.as_wtf8().to_vec(), Body::Directory)));
    }
    tree
}

const GONE_FILE: Body<'static> = Body::Deleted(Removed::File);
const GONE_DIRECTORY: Body<'static> = Body::Deleted(Removed::Directory);

#[test]
fn a_diff_has_what_is_new_other_and_gone() {
    let link = |to: &str| Body::Symlink(LinkTarget::parse(to.as_bytes(), &path("l")).expect("a target").into_owned());
    let before = snapshot(&[
        ("same", file(1)),
        ("other", file(2)),
        ("gone/f", file(3)),
        ("gone", Body::Directory),
        ("implied/f", file(4)),
        ("l", link("same")),
        ("swap/f", file(5)),
        ("paws", file(6)),
        ("half/f", file(7)),
        ("half/g", file(7)),
        ("half", Body::Directory),
    ]);
    let now = snapshot(&[
        ("same", file(1)),
        ("other", file(22)),
        ("new/f", file(8)),
        ("new", Body::Directory),
        ("l", link("other")),
        ("swap", file(5)),
        ("paws/f", file(6)),
        ("half/g", file(7)),
        ("half", Body::Directory),
    ]);
    let diff = now.diff(&before, PARENT).expect("two snapshots");
    let expected = changes(&[
        ("other", file(22)),
        ("new", Body::Directory),
        ("new/f", file(8)),
        ("l", link("other")),
        ("swap", file(5)),
        ("paws/f", file(6)),
        ("gone", GONE_DIRECTORY),
        ("gone/f", GONE_FILE),
        ("implied/f", GONE_FILE),
        ("swap", GONE_DIRECTORY),
        ("swap/f", GONE_FILE),
        ("paws", GONE_FILE),
        ("half/f", GONE_FILE),
    ]);
    assert_eq!(diff, expected);
    assert_eq!(diff.header().kind.parent(), Some(PARENT));
    assert_eq!(tree(&Manifest::merge([&before, &diff]).expect("they fit")), tree(&now));
}

#[test]
fn times_that_differ_by_a_microsecond_are_the_same() {
    let at = |mtime_micros, runnable| {
        let content = Content::Whole(ContentHash([1; 16]));
        snapshot(&[("f", Body::File(File { size_bytes: 1, mtime_micros, runnable, content }))])
    };
    let changed = |now: Manifest| now.diff(&at(1000, false), PARENT).expect("snapshots").entries().count();
    assert_eq!((changed(at(999, false)), changed(at(1001, false)), changed(at(1002, false))), (0, 0, 1));
    assert_eq!(changed(at(1000, true)), 1);
    assert_eq!(at(i64::MIN, false).diff(&at(i64::MAX, false), PARENT).expect("snapshots").entries().count(), 1);
}

/// Of one file the version of 2023 has a hash of the whole, that of 2025 hashes of chunks: length and time tell.
#[test]
fn hashes_of_different_parts_say_nothing_of_each_other() {
    let size_bytes = CHUNK_LEN_BYTES + 1;
    let of = |mtime_micros, content| {
        snapshot(&[("f", Body::File(File { size_bytes, mtime_micros, runnable: false, content }))])
    };
    let whole = |mtime| of(mtime, Content::Whole(ContentHash([1; 16])));
    let chunks =
        |mtime, hash| of(mtime, Content::chunks(vec![ContentHash([hash; 16]); 2].into(), size_bytes).expect("two"));
    let differs = |now: &Manifest, was: &Manifest| now.diff(was, PARENT).expect("snapshots").entries().count() == 1;
    assert!(!differs(&chunks(5, 2), &whole(5)) && !differs(&whole(5), &chunks(5, 2)));
    assert!(differs(&chunks(9, 2), &whole(5)) && differs(&whole(9), &chunks(5, 2)));
    assert!(differs(&chunks(5, 2), &chunks(5, 3)));
}

#[test]
fn versions_are_compared_in_what_both_can_hold() {
    let link = Body::Symlink(LinkTarget::parse(b"a", &path("l")).expect("a target").into_owned());
    let runnable = |content| {
        let content = Content::Whole(ContentHash([content; 16]));
        Body::File(File { size_bytes: 1, mtime_micros: 1000, runnable: true, content })
    };
    // Links were followed there: to a file, and to a folder.
    let old = of(
        Header::snapshot(Format::V2023),
        &[("a", file(1)), ("b", file(2)), ("d/x", file(3)), ("l", file(1)), ("m/x", file(3))],
    );
    let new = snapshot(&[
        ("a", runnable(1)),
        ("b", file(22)),
        ("d/x", file(3)),
        ("d", Body::Directory),
        ("empty", Body::Directory),
        ("l", link.clone()),
        ("m", link),
    ]);
    for (was, now) in [(&old, &new), (&new, &old)] {
        let (was, now) = Manifest::comparable(was, now);
        let diff = now.diff(&was, PARENT).expect("snapshots");
        let paths: Vec<_> = diff.entries().map(|(path, _)| path.clone()).collect();
        assert_eq!((paths, diff.deletions().count()), (vec![path("b")], 0));
    }
    assert_eq!(&*Manifest::comparable(&new, &new).0, &new);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let absolute = Manifest::new(Header { style: PathStyle::Absolute, ..Header::snapshot(FORMAT) });
    for (now, before) in [(&snapshot(&[]), &changes(&[])), (&changes(&[]), &snapshot(&[])), (&snapshot(&[]), &absolute)]
    {
        assert_eq!(now.diff(before, PARENT).expect_err("not these").kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(Manifest::merge([&snapshot(&[]), &absolute]).expect_err("not these").kind(), ErrorKind::InvalidInput);
    assert_eq!(Manifest::merge([]).expect_err("none").kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_last_wins() {
    let first = snapshot(&[("a", file(1)), ("b/c", file(1)), ("d", file(1)), ("kept", file(1))]);
    let second = snapshot(&[("a", file(2)), ("b", file(2)), ("d/e", file(2))]);
    let merged = Manifest::merge([&first, &second]).expect("they fit");
    assert_eq!(merged, snapshot(&[("a", file(2)), ("b", file(2)), ("d/e", file(2)), ("kept", file(1))]));
}

#[test]
fn deletions_come_before_what_is_added() {
    let base = snapshot(&[("d/x", file(1)), ("d/y", file(1)), ("e", file(1)), ("f", file(1))]);
    let diff = changes(&[("d", GONE_DIRECTORY), ("d/x", file(2)), ("e", GONE_FILE), ("never", GONE_FILE)]);
    let merged = Manifest::merge([&base, &diff]).expect("they fit");
    assert_eq!(merged, snapshot(&[("d/x", file(2)), ("f", file(1))]));
}

#[test]
fn diffs_alone_make_a_diff() {
    let first = changes(&[("a", file(1)), ("gone", GONE_FILE), ("d", GONE_DIRECTORY), ("d/x", file(1))]);
    let second = changes(&[("a", GONE_FILE), ("gone", file(2)), ("d/x", GONE_FILE), ("d/y", file(2))]);
    let merged = Manifest::merge([&first, &second]).expect("they fit");
    let expected =
        changes(&[("a", GONE_FILE), ("gone", file(2)), ("d", GONE_DIRECTORY), ("d/x", GONE_FILE), ("d/y", file(2))]);
    assert_eq!(merged, expected);
    let anew = changes(&[("d", Body::Directory), ("d/x", GONE_FILE)]);
    let error = Manifest::merge([&first, &anew]).expect_err("an empty directory, deleted and made");
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("\"d\""), "{error}");
}

#[test]
fn losses_are_counted() {
    let mut run = file(1);
    if let Body::File(file) = &mut run {
        file.runnable = true;
    }
    let link = Body::Symlink(LinkTarget::parse(b"x", &path("l")).expect("a target").into_owned());
    let diff = changes(&[("d", Body::Directory), ("x", run), ("l", link), ("y", GONE_FILE)]);
    let losses = diff.losses();
    assert_eq!((losses.directories, losses.symlinks, losses.runnable, losses.deletions), (1, 1, 1, 1));
    let mut written = Vec::new();
    diff.encode(Format::V2023, &mut written).expect("the file is left");
    let (again, _) = Manifest::read(&written[..]).expect("it was written");
    assert_eq!(again.entries().count(), 1);
    assert_eq!(again.losses(), Default::default());
}

#[test]
fn what_2023_cannot_hold_is_told() {
    let chunks = Content::chunks(vec![PARENT; 2].into(), 1 << 29).expect("two chunks");
    let body = Body::File(File { size_bytes: 1 << 29, mtime_micros: 0, runnable: false, content: chunks });
    let manifest = snapshot(&[("big", body)]);
    assert_eq!(manifest.first_chunked(), Some(&path("big")));
    let error = manifest.encode(Format::V2023, Vec::new()).expect_err("chunks");
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("\"big\""), "{error}");
    let mut absolute = Manifest::new(Header { style: PathStyle::Absolute, ..Header::snapshot(FORMAT) });
    absolute.insert(Entry { path: path("x"), body: file(1) }).expect("it fits");
    assert_eq!(absolute.encode(Format::V2023, Vec::new()).expect_err("absolute").kind(), ErrorKind::NotSupported);
}

/// A few paths, so that they meet: files, directories, one in the place of the other.
fn any_snapshot() -> impl Strategy<Value = Manifest> {
    let body = prop_oneof![3 => (0_u8..3).prop_map(file), 1 => Just(Body::Directory)];
    prop::collection::vec(("[ab](/[ab]){0,3}", body), 0..10).prop_map(|entries| {
        let mut manifest = Manifest::new(Header::snapshot(FORMAT));
        for (at, body) in entries {
            let _ = manifest.insert(Entry { path: path(&at), body });
        }
        manifest
    })
}

proptest! {
    #![proptest_config(adit_testkit::proptest_config(1024))]

    #[test]
    fn a_diff_leads_from_one_to_the_other(before in any_snapshot(), now in any_snapshot()) {
        let diff = now.diff(&before, PARENT).expect("two snapshots");
        let mut written = Vec::new();
        diff.encode(FORMAT, &mut written).expect("it can be written");
        let (read, _) = Manifest::read(&written[..]).expect("it can be read");
        prop_assert_eq!(&read, &diff);
        prop_assert_eq!(tree(&Manifest::merge([&before, &read]).expect("they fit")), tree(&now));
        prop_assert_eq!(now.diff(&now, PARENT).expect("itself").entries().count(), 0);
    }

    #[test]
    fn diffs_can_be_merged_before_they_are_applied(a in any_snapshot(), b in any_snapshot(), c in any_snapshot()) {
        let (first, second) = (b.diff(&a, PARENT).expect("snapshots"), c.diff(&b, PARENT).expect("snapshots"));
        match Manifest::merge([&first, &second]) {
            Ok(both) => {
                let mut written = Vec::new();
                both.encode(FORMAT, &mut written).expect("it can be written");
                let (read, _) = Manifest::read(&written[..]).expect("it can be read");
                prop_assert_eq!(&read, &both);
                let at_once = Manifest::merge([&a, &read]).expect("they fit");
                let one_by_one = Manifest::merge([&a, &first, &second]).expect("they fit");
                prop_assert_eq!(tree(&at_once), tree(&one_by_one));
            }
            Err(e) => prop_assert_eq!(e.kind(), ErrorKind::NotSupported),
        }
    }

    /// Of snapshots alone, as the official merge: path by path, and no path in the way of another.
    #[test]
    fn merged_snapshots_have_the_last_of_each_path(all in prop::collection::vec(any_snapshot(), 1..4)) {
        let merged = Manifest::merge(&all).expect("they fit");
        let mut again = Manifest::new(*merged.header());
        for (path, body) in merged.entries() {
            again.insert(Entry { path: path.clone(), body: body.clone() }).expect("no conflict");
            let last = all.iter().rev().find_map(|manifest| manifest.get(path)).expect("it comes from one");
            prop_assert_eq!(body, last);
        }
        let last = all.last().expect("one at least");
        prop_assert!(last.entries().all(|(path, body)| merged.get(path) == Some(body)));
    }
}
