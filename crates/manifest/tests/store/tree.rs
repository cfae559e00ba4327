//! What a store shows is what the manifest holds.

use std::collections::BTreeMap;

use adit_core::error::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind, Timestamp};
use adit_manifest::format::{Body, Content, ContentHash, File, Format, Header, Manifest, wtf8};
use adit_manifest::store::ManifestStore;
use adit_testkit::{Rng, seeds};

use crate::support::*;

fn empty(mtime_micros: i64, runnable: bool) -> Body<'static> {
    let content = Content::Whole(ContentHash::of(b""));
    Body::File(File { size_bytes: 0, mtime_micros, runnable, content })
}

/// All paths of a store by a walk through its listings, each looked at in every way there is.
fn walk(store: &ManifestStore) -> BTreeMap<Vec<u8>, Ino> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, dir)) = todo.pop() {
        let entries = list(store, dir, 0);
        for (n, (cookie, ino, kind, name)) in entries.iter().enumerate() {
            assert_eq!(list(store, dir, *cookie), entries[n + 1..], "a listing goes on where it was");
            let attr = store.lookup(dir, self::name(name)).unwrap();
            assert_eq!((attr.ino, attr.kind), (*ino, *kind));
            assert_eq!(store.getattr(*ino).unwrap(), attr);
            let below = [&path[..], if path.is_empty() { b"" } else { b"/" }, name].concat();
            assert_eq!(store.path_of(*ino).unwrap(), format!("/{}", String::from_utf8_lossy(&below)));
            match kind {
                Kind::Directory => todo.push((below.clone(), *ino)),
                _ => assert_eq!(store.name_of(*ino), Some((dir, name.clone()))),
            }
            assert!(found.insert(below, *ino).is_none());
        }
        let mut listed = Vec::new();
        store
            .read_dir(dir, 0, &mut |entry| {
                listed.push((entry.cookie, entry.ino, entry.kind, entry.name.as_bytes().to_vec()));
                if listed.len() < 3 { std::ops::ControlFlow::Continue(()) } else { std::ops::ControlFlow::Break(()) }
            })
            .unwrap();
        assert_eq!(listed, entries[..entries.len().min(3)], "it ends when it is told to");
        let asked: Vec<_> = entries
            .iter()
            .map(|(cookie, ino, kind, name)| adit_core::store::DirEntry {
                cookie: *cookie,
                ino: *ino,
                kind: *kind,
                name: self::name(name),
            })
            .collect();
        for (entry, attr) in entries.iter().zip(store.lookup_listed(dir, &asked)) {
            assert_eq!(attr.unwrap(), store.getattr(entry.1).unwrap());
        }
    }
    found
}

/// A store against the manifest that it is of.
fn compare(store: &ManifestStore, manifest: &Manifest) {
    let found = walk(store);
    let mut expected: BTreeMap<Vec<u8>, Option<&Body<'_>>> = BTreeMap::new();
    for (path, body) in manifest.entries() {
        expected.insert(path.to_listing().into_owned(), Some(body));
        for above in path.ancestors() {
            expected.entry(above.to_listing().into_owned()).or_insert(None);
        }
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (path, ino) in found {
        let attr = store.getattr(ino).unwrap();
        assert_eq!((attr.uid, attr.gid, attr.nlink, attr.rdev), (12, 34, 1, 0));
        match expected[&path] {
            None | Some(Body::Directory) => {
                assert_eq!((attr.kind, attr.perm, attr.size), (Kind::Directory, 0o755, 0));
                assert_eq!(kind(store.open(ino, Access::Read)), ErrorKind::IsDirectory);
                assert_eq!(kind(store.readlink(ino)), ErrorKind::InvalidInput);
            }
            Some(Body::File(file)) => {
                let perm = if file.runnable { 0o755 } else { 0o644 };
                assert_eq!((attr.kind, attr.perm, attr.size), (Kind::File, perm, file.size_bytes));
                assert_eq!(attr.blocks, file.size_bytes.div_ceil(512));
                let nanos = file.mtime_micros.saturating_mul(1000);
                assert_eq!(attr.mtime.as_nanos(), i128::from(nanos));
            }
            Some(Body::Symlink(target)) => {
                let text = target.as_wtf8();
                assert_eq!((attr.kind, attr.perm), (Kind::Symlink, 0o777));
                assert_eq!(attr.size, wtf8::listing_len(text) as u64);
                match wtf8::to_host(text) {
                    Some(target) => assert_eq!(store.readlink(ino).unwrap(), *target),
                    None => assert_eq!(kind(store.readlink(ino)), ErrorKind::IllegalName),
                }
                assert_eq!(kind(store.open(ino, Access::Read)), ErrorKind::InvalidInput);
            }
            Some(Body::Deleted(_)) => panic!("a snapshot deletes nothing"),
        }
    }
}

#[test]
fn everything_that_a_manifest_holds_is_there() {
    let mut world = World::new();
    world.insert(b"empty", Body::Directory);
    world.insert(b"a/b/c/d/e", empty(0, false));
    world.insert(b"a/run", empty(-1, true));
    world.insert(b"a/old", empty(-62_135_596_800_000_000, false));
    world.link("a/link", b"../empty");
    world.link("self", b".");
    world.insert("naïve/日本".as_bytes(), empty(1, false));
    // As `os.fsdecode` gives it: the bytes ff and 80 of a host.
    world.insert(b"raw\xed\xb3\xbf\xed\xb2\x80/x", empty(2, false));
    world.insert(&[b'n'; 255], empty(3, false));
    let store = world.mount();
    compare(&store, &world.manifest);
    assert!(find(&store, b"raw\xff\x80/x").is_ok());
    let root = store.getattr(Ino::ROOT).unwrap();
    assert_eq!((root.ino, root.kind, root.perm), (Ino::ROOT, Kind::Directory, 0o755));
    assert_eq!(root.mtime, Timestamp { secs: 0, nanos: 3000 }, "directories have the newest time of all files");
    assert_eq!(
        store.getattr(find(&store, b"a/run").unwrap().ino).unwrap().mtime,
        Timestamp { secs: -1, nanos: 999_999_000 }
    );
    assert_eq!(store.path_of(Ino::ROOT).as_deref(), Some("/"));
    assert_eq!(store.name_of(Ino::ROOT), None);
}

#[test]
fn what_is_not_there_is_not_found() {
    let mut world = World::new();
    world.insert(b"d/f", empty(0, false));
    let store = world.mount();
    for path in [&b"x"[..], b"d/x", b"d/ff", b"D", b"d/f\xff"] {
        assert_eq!(kind(find(&store, path)), ErrorKind::NotFound);
    }
    assert_eq!(kind(find(&store, b"d/f/x")), ErrorKind::NotDirectory);
    let file = find(&store, b"d/f").unwrap().ino;
    assert_eq!(kind(store.read_dir(file, 0, &mut |_| std::ops::ControlFlow::Continue(()))), ErrorKind::NotDirectory);
    for ino in [0, 4, 5, 1 << 32, u64::MAX] {
        assert_eq!(kind(store.getattr(Ino(ino))), ErrorKind::Stale, "{ino}");
        assert_eq!(kind(store.open(Ino(ino), Access::Read)), ErrorKind::Stale);
        assert_eq!(store.path_of(Ino(ino)), None);
    }
    // A number of another directory's is not this one's.
    let entry = adit_core::store::DirEntry { cookie: 1, ino: file, kind: Kind::File, name: name(b"f") };
    assert_eq!(kind(store.lookup_listed(Ino::ROOT, &[entry]).remove(0)), ErrorKind::NotFound);
    assert_eq!(list(&store, Ino::ROOT, u64::MAX), []);
}

/// The same manifest has the same numbers, wherever and whenever it is mounted: an overlay notes them for good.
#[test]
fn numbers_are_those_of_the_manifest() {
    let mut world = World::new();
    for n in [5, 3, 9, 1] {
        world.insert(format!("d{n}/f").as_bytes(), empty(n, false));
    }
    let first = walk(&world.mount());
    assert_eq!(walk(&world.mount()), first);
}

#[test]
fn random_manifests_are_shown_as_they_are() {
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let format = if rng.percent(30) { Format::V2023 } else { V2025 };
        let mut world = World::new();
        world.manifest = Manifest::new(Header::snapshot(format));
        let names: [&[u8]; 9] =
            [b"a", b"a-", b"b", b"a.b", b"$0", b"\xf0\x9f\x98\x80", b"\xef\xac\x81", b"\xed\xb3\xbf", b"\xed\xa0\x80"];
        for _ in 0..rng.below(200) + 1 {
            let depth = rng.below(4) + 1;
            let path: Vec<&[u8]> = (0..depth).map(|_| *rng.pick(&names)).collect();
            let path = path.join(&b'/');
            let at =
                adit_manifest::format::EntryPath::parse(&path, adit_manifest::format::PathStyle::Relative).unwrap();
            let mtime_micros = rng.next_u64().cast_signed() >> rng.below(40);
            let body = match rng.below(10) {
                0 if format == V2025 => Body::Directory,
                1 if format == V2025 => {
                    let target = *rng.pick(&names);
                    Body::Symlink(adit_manifest::format::LinkTarget::parse(target, &at).unwrap().into_owned())
                }
                _ => empty(mtime_micros, format == V2025 && rng.percent(20)),
            };
            // Whatever does not fit is left out.
            let _ = world.manifest.insert(adit_manifest::format::Entry { path: at.into_owned(), body });
        }
        if world.manifest.entries().next().is_some() {
            compare(&world.mount(), &world.manifest);
        }
    }
}

/// A name that no host could have is listed, and cannot be opened, nor what lies below it.
#[test]
fn names_without_bytes_are_listed_and_not_opened() {
    let mut world = World::new();
    world.insert(b"lone\xed\xa0\x80", empty(0, false));
    world.insert(b"dir\xed\xb0\x80/x", empty(0, false));
    // Escaped bytes that are UTF-8 together: another text, the same name.
    world.insert(b"caf\xed\xb3\x83\xed\xb2\xa9", empty(0, false));
    let store = world.mount();
    // Whoever serves it must ask before it opens something.
    assert!(!store.capabilities().fixed_content);
    let listed: Vec<_> = list(&store, Ino::ROOT, 0).into_iter().map(|(_, _, _, name)| name).collect();
    assert_eq!(listed, [&b"caf\xc3\xa9"[..], b"dir\xed\xb0\x80", b"lone\xed\xa0\x80"]);
    for path in [&b"lone\xed\xa0\x80"[..], b"dir\xed\xb0\x80/x"] {
        let attr = find(&store, path).unwrap();
        assert_eq!(kind(store.open(attr.ino, Access::Read)), ErrorKind::IllegalName);
    }
    let cafe = find(&store, "café".as_bytes()).unwrap();
    assert!(store.open(cafe.ino, Access::Read).is_ok());
}

/// Times that nanoseconds cannot hold show as the earliest or latest that they can.
#[test]
fn absurd_times_are_cut() {
    let mut world = World::new();
    world.insert(b"past", empty(i64::MIN, false));
    world.insert(b"future", empty(i64::MAX, false));
    let store = world.mount();
    assert_eq!(find(&store, b"past").unwrap().mtime.as_nanos(), i128::from(i64::MIN));
    assert_eq!(find(&store, b"future").unwrap().mtime.as_nanos(), i128::from(i64::MAX));
}
