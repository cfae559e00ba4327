//! From manifests to segments, and which manifests are refused on the way.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use adit_core::error::ErrorKind;
use adit_index::Segment;
use adit_manifest::cache::{Cache, CacheOptions};
use adit_manifest::commit::canonical_hash;
use adit_manifest::format::{
    ContentHash, Dialect, Format, FormatError, Kind, Manifest, PathStyle, Rule, Source, decode,
};
use adit_manifest::store::{BuildPlace, Building, ManifestStore, StoreOptions, build_segment};
use adit_media::HostDirectory;

use crate::support::*;

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/manifests").join(folder);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty());
    files
}

/// What is in a folder.
fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn sound_manifests_make_segments_that_say_what_they_are_of() {
    let mut built = 0;
    for file in fixtures("sound") {
        let text = fs::read(&file).unwrap();
        let (manifest, summary) = Manifest::read(&text[..]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("segment");
        if summary.header.is_diff() {
            let e = build(&text, &out).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotSupported);
            assert!(e.to_string().contains("merge it"), "{e}");
            assert_eq!(names(dir.path()), [""; 0]);
            continue;
        }
        // Names that are told apart in the manifest, and not on a host.
        let host_names: std::collections::BTreeSet<Vec<u8>> =
            manifest.entries().map(|(path, _)| path.to_listing().into_owned()).collect();
        if host_names.len() < manifest.entries().count() {
            assert_eq!(FormatError::of(&build(&text, &out).unwrap_err()).unwrap().rule, Rule::DuplicatePath);
            continue;
        }
        let identity = build(&text, &out).unwrap();
        assert_eq!(identity.hash, ContentHash::of(&text));
        assert_eq!((identity.header, identity.totals), (summary.header, summary.totals), "{}", file.display());
        let host = HostDirectory::open(dir.path()).unwrap();
        let cache = std::sync::Arc::new(Cache::open(std::sync::Arc::new(host), CacheOptions::default()).unwrap());
        let source = std::sync::Arc::new(Computed);
        let store =
            ManifestStore::new(Segment::open(&out).unwrap(), cache, source, StoreOptions::owned_by(0, 0)).unwrap();
        assert_eq!(*store.identity(), identity);
        assert!(store.segment().len() as usize > manifest.entries().count());
        built += 1;
    }
    assert!(built > 5, "{built}");
}

#[test]
fn broken_manifests_are_refused_by_name_and_leave_nothing() {
    for file in fixtures("broken") {
        let rule = file.file_stem().unwrap().to_str().unwrap().split('@').next().unwrap().to_owned();
        let dir = tempfile::tempdir().unwrap();
        let e = build(&fs::read(&file).unwrap(), &dir.path().join("segment")).expect_err(&rule);
        match FormatError::of(&e) {
            Some(refused) => assert_eq!(refused.rule.name(), rule, "{e}"),
            // Of a diff, which is refused as such.
            None => assert!(e.to_string().contains("is a diff"), "{}: {e}", file.display()),
        }
        assert_eq!(names(dir.path()), [""; 0]);
    }
}

/// What the codec does not see, because it knows one entry at a time.
#[test]
fn conflicts_between_entries_are_refused_with_both_paths() {
    let hash = ContentHash::of(b"");
    let files = |paths: &[&str]| {
        let entry = |path: &&str| format!(r#"{{"hash":"{hash}","mtime":1,"path":"{path}","size":0}}"#);
        let entries: Vec<String> = paths.iter().map(entry).collect();
        let entries = entries.join(",");
        format!(r#"{{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[{entries}],"totalSize":0}}"#)
    };
    let dir = tempfile::tempdir().unwrap();
    let refused = |paths: &[&str]| {
        let e = build(files(paths).as_bytes(), &dir.path().join("segment")).unwrap_err();
        (FormatError::of(&e).unwrap_or_else(|| panic!("{e}")).rule, e.to_string())
    };
    let (rule, message) = refused(&["a/b", "x", "a/b"]);
    assert_eq!(rule, Rule::DuplicatePath);
    assert!(message.contains("\"a/b\""), "{message}");
    let (rule, message) = refused(&["a/b/c", "a/b"]);
    assert_eq!(rule, Rule::FileAgainstDirectory);
    assert!(message.contains("\"a/b/c\"") && message.contains("\"a/b\""), "{message}");
    // Two texts that are one name on a host.
    assert_eq!(refused(&["caf\\u00e9", "caf\\udcc3\\udca9"]).0, Rule::DuplicatePath);
    // And what only begins alike is no conflict.
    build(files(&["a/b", "a/b.c", "a/b-/x", "a/bc/d"]).as_bytes(), &dir.path().join("segment")).unwrap();
}

#[test]
fn absolute_manifests_are_trees_below_the_root() {
    let text = r#"{"dirs":[],"files":[{"hash":"99aa06d3014798d86001c324468d497f","mtime":1,"path":"/a/b","size":0}],"hashAlg":"xxh128","specificationVersion":"absolute-manifest-snapshot-beta-2025-12","totalSize":0}"#;
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("segment");
    // Of an absolute path, the directories on the way have to be listed, or not: the codec decides that.
    decode(text.as_bytes(), &mut |_: adit_manifest::format::Entry<'_>| Ok(())).unwrap();
    let identity = build(text.as_bytes(), &out).unwrap();
    assert_eq!((identity.header.style, identity.header.kind), (PathStyle::Absolute, Kind::Snapshot));
    let segment = Segment::open(&out).unwrap();
    assert_eq!(segment.path(adit_index::NodeId(2)).unwrap(), b"a/b");
}

/// By the canonical form a diff names what it is a diff of.
#[test]
fn who_mounts_other_bytes_of_a_manifest_knows_its_canonical_hash() {
    let mut sound = 0;
    for file in fixtures("sound") {
        let text = fs::read(&file).unwrap();
        let (manifest, summary) = Manifest::read(&text[..]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("segment");
        let (scratch_dir, memory_limit_bytes) = (dir.path(), 64 << 20);
        let place = BuildPlace { out: &out, scratch_dir, memory_limit_bytes };
        let Ok(identity) = build_segment(&text[..], place, &mut |_| ControlFlow::Continue(())) else { continue };
        let written = manifest.encode(summary.header.format, std::io::sink()).unwrap().hash;
        let is_l = summary.header.format == Format::V2025(Dialect::L);
        assert_eq!(identity.is_recoded, !is_l && written != summary.hash, "{}", file.display());
        let hash = canonical_hash(&Segment::open(&out).unwrap()).unwrap();
        assert_eq!(hash, if is_l { summary.hash } else { written }, "{}", file.display());
        sound += 1;
    }
    assert!(sound > 5, "{sound}");
    let files = |paths: &[&str], end: &str| {
        let of = |path: &&str| {
            format!(r#"{{"hash":"99aa06d3014798d86001c324468d497f","mtime":1,"path":"{path}","size":0}}"#)
        };
        let entries: Vec<String> = paths.iter().map(of).collect();
        let version =
            r#""hashAlg":"xxh128","specificationVersion":"relative-manifest-snapshot-beta-2025-12","totalSize":0"#;
        format!(r#"{{"dirs":[{{"path":"d"}}],"files":[{}],{version}}}{end}"#, entries.join(","))
    };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("segment");
    let known = |text: &str, memory_limit_bytes: u64| {
        let place = BuildPlace { out: &out, scratch_dir: dir.path(), memory_limit_bytes };
        let identity = build_segment(text.as_bytes(), place, &mut |_| ControlFlow::Continue(())).unwrap();
        (identity.is_recoded, canonical_hash(&Segment::open(&out).unwrap()).unwrap())
    };
    let canonical = files(&["a", "b"], "");
    let right = ContentHash::of(canonical.as_bytes());
    assert_eq!(known(&canonical, 1 << 20), (false, right));
    for other in [files(&["b", "a"], ""), files(&["a", "b"], "\n"), canonical.replace(',', ", ")] {
        assert_eq!(known(&other, 1 << 20), (true, right), "{other}");
    }
    // Without room for the directories it is taken for what it is.
    let spaced = canonical.replace(',', ", ");
    assert_eq!(known(&spaced, 0), (false, ContentHash::of(spaced.as_bytes())));
}

#[test]
fn a_build_is_told_of_and_can_be_ended() {
    let mut world = World::new();
    for n in 0..20_000 {
        world.insert(
            format!("d{}/f{n}", n % 50).as_bytes(),
            file(0, adit_manifest::format::Content::Whole(ContentHash::of(b""))),
        );
    }
    let text = world.text();
    let out = world.dir.path().join("segment");
    let place = BuildPlace { out: &out, scratch_dir: world.dir.path(), memory_limit_bytes: 2 << 20 };
    let mut steps = Vec::new();
    build_segment(&text[..], place, &mut |step| {
        steps.push(step);
        ControlFlow::Continue(())
    })
    .unwrap();
    let is_read = |step: &Building| matches!(step, Building::Read { total_bytes: Some(total), done_bytes } if done_bytes <= total);
    assert!(steps.iter().any(is_read) && steps.iter().any(|step| matches!(step, Building::Index(_))));
    fs::remove_file(&out).unwrap();
    for stop_at in 0..steps.len() {
        let mut count = 0;
        let e = build_segment(&text[..], place, &mut |_| {
            count += 1;
            if count > stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted);
        assert!(!out.exists());
    }
}

/// Also while the manifest is read for the first time, for what it says of itself behind its entries.
#[test]
fn a_build_is_told_of_from_the_first_megabyte_on() {
    struct Counted<'a>(&'a [u8], std::cell::Cell<usize>);
    impl Source for Counted<'_> {
        fn open(&self) -> std::io::Result<Box<dyn std::io::Read + '_>> {
            Ok(Box::new(CountedReader(self, self.0)))
        }
        fn len_bytes(&self) -> Option<u64> {
            None
        }
    }
    struct CountedReader<'a>(&'a Counted<'a>, &'a [u8]);
    impl std::io::Read for CountedReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let len = self.1.read(buffer)?;
            self.0.1.set(self.0.1.get() + len);
            Ok(len)
        }
    }
    let mut world = World::new();
    for n in 0..30_000 {
        let content = adit_manifest::format::Content::Whole(ContentHash::of(b""));
        world.insert(format!("f{n:0100}").as_bytes(), file(0, content));
    }
    let text = world.text();
    let out = world.dir.path().join("segment");
    let place = BuildPlace { out: &out, scratch_dir: world.dir.path(), memory_limit_bytes: 2 << 20 };
    let counted = Counted(&text, Default::default());
    let e = build_segment(&counted, place, &mut |_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Interrupted);
    assert!(text.len() > 4 << 20 && counted.1.get() < 2 << 20, "{} of {}", counted.1.get(), text.len());
}

#[test]
fn a_segment_of_something_else_is_not_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("segment");
    let builder = adit_index::Builder::new(dir.path(), 0);
    builder.finish(&out, &mut |_| ControlFlow::Continue(())).unwrap();
    let cache = Cache::open(std::sync::Arc::new(HostDirectory::open(dir.path()).unwrap()), CacheOptions::default());
    let source = std::sync::Arc::new(Computed);
    let opened = ManifestStore::new(
        Segment::open(&out).unwrap(),
        std::sync::Arc::new(cache.unwrap()),
        source,
        StoreOptions::owned_by(0, 0),
    );
    assert_eq!(kind(opened), ErrorKind::NotSupported);
}
