//! Segments are built once, and again when they have to.

use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use adit_core::error::{ErrorKind, Result};
use adit_core::store::Store;
use adit_index::Segment;
use adit_manifest::format::{Content, ContentHash};
use adit_manifest::store::{Building, ManifestStore, Segments, SegmentsOptions};

use crate::support::*;

/// A manifest's file, whose times are good at once.
struct Place {
    dir: tempfile::TempDir,
    options: SegmentsOptions,
}

impl Place {
    fn new() -> Place {
        let options = SegmentsOptions { settled_after: Duration::ZERO, ..SegmentsOptions::default() };
        Place { dir: tempfile::tempdir().unwrap(), options }
    }

    fn manifest(&self, name: &str, entry: &str) -> File {
        let mut world = World::new();
        world.insert(entry.as_bytes(), file(0, Content::Whole(ContentHash::of(b""))));
        let path = self.dir.path().join(name);
        fs::write(&path, world.text()).unwrap();
        File::open(path).unwrap()
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("segments")
    }

    /// The segment of a file, and whether it was built now.
    fn get(&self, manifest: &File) -> Result<(Segment, bool)> {
        let mut is_built = false;
        let segment = Segments::open(&self.folder(), self.options)?.of_file(manifest, &mut |step| {
            is_built |= matches!(step, Building::Index(_));
            ControlFlow::Continue(())
        })?;
        Ok((segment, is_built))
    }

    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|e| e == extension));
        files
    }
}

fn first_name(segment: &Segment) -> Vec<u8> {
    segment.name(adit_index::NodeId(1)).unwrap().to_vec()
}

#[test]
fn a_manifest_is_read_once() {
    let place = Place::new();
    let manifest = place.manifest("m", "a");
    let (segment, is_built) = place.get(&manifest).unwrap();
    assert!(is_built);
    assert_eq!(first_name(&segment), b"a");
    let (segment, is_built) = place.get(&manifest).unwrap();
    assert!(!is_built);
    assert_eq!(first_name(&segment), b"a");
    assert_eq!(fs::metadata(place.folder()).unwrap().mode() & 0o777, 0o700);
    // Other content, in the same file or in another one of that name, is another manifest.
    let manifest = place.manifest("m", "b");
    let (segment, is_built) = place.get(&manifest).unwrap();
    assert!(is_built);
    assert_eq!(first_name(&segment), b"b");
}

#[test]
fn a_segment_that_cannot_be_read_is_built_again() {
    let place = Place::new();
    let manifest = place.manifest("m", "a");
    place.get(&manifest).unwrap();
    let path = place.files("segment").remove(0);
    let good = fs::read(&path).unwrap();
    let damage: [&dyn Fn(&Path); 4] = [
        &|path| File::options().write(true).open(path).unwrap().write_all_at(b"x", 9).unwrap(),
        &|path| File::options().write(true).open(path).unwrap().set_len(10).unwrap(),
        &|path| fs::write(path, b"").unwrap(),
        &|path| {
            // Of something else.
            let builder = adit_index::Builder::new(path.parent().unwrap(), 0);
            builder.finish(path, &mut |_| ControlFlow::Continue(())).unwrap();
        },
    ];
    for damage in damage {
        damage(&path);
        let (segment, is_built) = place.get(&manifest).unwrap();
        assert!(is_built);
        assert_eq!(first_name(&segment), b"a");
        assert!(fs::read(&path).unwrap() == good);
    }
}

/// Damage in a block that is looked at only when something in it is asked for: the mount that finds it tells, and the next one is well.
#[test]
fn a_segment_that_is_damaged_inside_is_built_again() {
    let place = Place::new();
    let mut world = World::new();
    for n in 0..300 {
        world.insert(format!("d/{n:03}-{}", "x".repeat(200)).as_bytes(), file(0, Content::Whole(ContentHash::of(b""))));
    }
    world.insert(b"e/f", file(0, Content::Whole(ContentHash::of(b""))));
    let path = place.dir.path().join("m");
    fs::write(&path, world.text()).unwrap();
    let manifest = File::open(&path).unwrap();
    place.get(&manifest).unwrap();
    let segment_path = place.files("segment").remove(0);
    let good = fs::read(&segment_path).unwrap();
    // A byte of each block in turn, behind the header and before the checksums of the blocks.
    let (mut told, mut built) = (0, 0);
    for at in (4096..good.len()).step_by(4096) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        // Under another inode number: what is mapped is left alone.
        fs::remove_file(&segment_path).unwrap();
        fs::write(&segment_path, &bad).unwrap();
        let (segment, is_built) = place.get(&manifest).unwrap();
        built += u32::from(is_built);
        let (_, cache) = world.mount_sharing();
        let store = ManifestStore::new(segment, cache, world.source(), world.options).unwrap();
        let mut failures = Vec::new();
        for path in ["d", "e", "e/f"] {
            failures.extend(find(&store, path.as_bytes()).err());
        }
        if let Ok(dir) = find(&store, b"d") {
            failures.extend(store.read_dir(dir.ino, 0, &mut |_| ControlFlow::Continue(())).err());
            failures.extend(store.left_out(dir.ino));
        }
        assert!(failures.iter().all(|e| e.kind() == ErrorKind::Corrupt), "{failures:?}");
        assert_eq!(segment_path.exists(), failures.is_empty(), "it is gone when it is known to be damaged");
        let (segment, is_built) = place.get(&manifest).unwrap();
        assert_eq!(is_built, !failures.is_empty());
        told += u32::from(is_built);
        if is_built {
            assert!(fs::read(&segment_path).unwrap() == good);
            drop(segment);
        }
        fs::write(&segment_path, &good).unwrap();
    }
    assert!(told >= 5, "{told} blocks told of, {built} found at the opening");
}

/// One block of names that cannot be read takes its own entries with it, and no others.
#[test]
fn entries_that_cannot_be_read_are_left_out_and_told() {
    let mut world = World::new();
    let mut names = Vec::new();
    for n in 0..2000 {
        names.push(format!("{n:04}-{}", "x".repeat(180)).into_bytes());
        let path = [b"d/", &names[n][..]].concat();
        world.insert(&path, file(0, Content::Whole(ContentHash::of(b""))));
    }
    drop(world.mount());
    let out = world.dir.path().join("segment");
    let mut bytes = fs::read(&out).unwrap();
    let at = bytes.windows(5).position(|bytes| bytes == b"1000-").unwrap();
    bytes[at] ^= 1;
    fs::write(&out, bytes).unwrap();
    let (_, cache) = World::new().mount_sharing();
    let store = ManifestStore::new(Segment::open(&out).unwrap(), cache, world.source(), world.options).unwrap();
    let dir = find(&store, b"d").unwrap().ino;
    assert!(store.left_out(dir).is_empty(), "nobody has looked");
    let listed = list(&store, dir, 0);
    let left_out = store.left_out(dir);
    assert!((200..600).contains(&left_out.len()), "{}", left_out.len());
    assert!(left_out.iter().all(|e| e.kind() == ErrorKind::Corrupt));
    assert_eq!(listed.len() + left_out.len(), names.len());
    for (cookie, ino, _, name) in &listed {
        assert_eq!(*name, names[*cookie as usize - 1]);
        assert_eq!(store.getattr(*ino).unwrap().ino, *ino);
    }
    // It goes on after them from any cookie, and what is beside it is whole.
    assert_eq!(list(&store, dir, 1000), listed.into_iter().filter(|(cookie, ..)| *cookie > 1000).collect::<Vec<_>>());
    assert!(store.left_out(adit_core::types::Ino::ROOT).is_empty());
    assert!(!out.exists());
}

/// A file that was changed a moment ago could be changed again without a trace: its segment is good for this once.
#[test]
fn a_file_that_is_not_settled_has_its_segment_for_once() {
    let mut place = Place::new();
    place.options.settled_after = Duration::from_secs(3600);
    let manifest = place.manifest("m", "a");
    for _ in 0..2 {
        let (segment, is_built) = place.get(&manifest).unwrap();
        assert!(is_built);
        assert_eq!(first_name(&segment), b"a");
        assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 0, "it goes with its mapping");
    }
}

#[test]
fn a_manifest_that_changes_while_it_is_read_is_stale() {
    for settled_after in [Duration::ZERO, Duration::from_secs(3600)] {
        let mut place = Place::new();
        place.options.settled_after = settled_after;
        let manifest = place.manifest("m", "a");
        let path = place.dir.path().join("m");
        let result = Segments::open(&place.folder(), place.options).unwrap().of_file(&manifest, &mut |step| {
            if matches!(step, Building::Index(_)) {
                File::options().append(true).open(&path).unwrap().write_all(b" ").unwrap();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(kind(result), ErrorKind::Stale);
        assert_eq!(place.files("segment").len(), 0);
        assert!(place.get(&manifest).unwrap().1);
    }
}

#[test]
fn those_that_were_used_least_lately_go() {
    let mut place = Place::new();
    place.options.kept_max = 3;
    let manifests: Vec<_> = (0..5).map(|n| place.manifest(&format!("m{n}"), &format!("f{n}"))).collect();
    let mut segments = Vec::new();
    for manifest in &manifests {
        segments.push(place.get(manifest).unwrap().0);
        // The first one is in use all the time.
        assert!(!place.get(&manifests[0]).unwrap().1);
        for path in place.files("segment") {
            let file = File::open(&path).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap();
            let is_first = Segment::open(&path).is_ok_and(|segment| first_name(&segment) == b"f0");
            file.set_modified(modified - Duration::from_secs(if is_first { 1 } else { 10 })).unwrap();
        }
        assert!(place.files("segment").len() <= 3 && place.files("lock").len() <= 3);
    }
    for (n, segment) in segments.iter().enumerate() {
        assert_eq!(first_name(segment), format!("f{n}").as_bytes(), "who has it mapped keeps it");
    }
    let built: Vec<bool> = [0, 4, 3, 1].iter().map(|n| place.get(&manifests[*n]).unwrap().1).collect();
    assert_eq!(built, [false, false, false, true]);
}

/// Ten at once: one builds it, and the others have it.
#[test]
fn a_segment_is_built_by_one_at_a_time() {
    let place = Place::new();
    let manifest = place.manifest("m", "a");
    let built = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let (segment, is_built) = place.get(&manifest).unwrap();
                assert_eq!(first_name(&segment), b"a");
                built.fetch_add(u32::from(is_built), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(built.into_inner(), 1);
}

/// A process that builds a segment and is stopped, or hangs, holds up nobody for long, and nobody who wants no more.
#[test]
fn a_builder_that_hangs_is_not_waited_for_for_ever() {
    let mut place = Place::new();
    let manifest = place.manifest("m", "a");
    let segments = Segments::open(&place.folder(), place.options).unwrap();
    let hold = |then: &mut dyn FnMut()| {
        let mut is_first = true;
        let segment = segments.of_file(&manifest, &mut |step| {
            if matches!(step, Building::Index(_)) && std::mem::take(&mut is_first) {
                then();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(first_name(&segment.unwrap()), b"a");
    };
    hold(&mut || {
        let mut count = 0;
        let ended = segments.of_file(&manifest, &mut |step| {
            assert_eq!(step, Building::Elsewhere);
            count += 1;
            if count < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!((kind(ended), count), (ErrorKind::Interrupted, 3));
        place.options.patience = Duration::from_millis(100);
        let (segment, is_built) = place.get(&manifest).unwrap();
        assert!(is_built);
        assert_eq!(first_name(&segment), b"a");
        assert_eq!(place.files("segment").len(), 0, "it is good for this once");
    });
    assert!(!place.get(&manifest).unwrap().1);
    assert_eq!(place.files("lock").len(), 0);
}

/// What is built for once, or refused, sweeps the folder as well.
#[test]
fn whatever_is_built_leaves_no_more_than_it_should() {
    let mut place = Place::new();
    let manifests: Vec<_> = (0..4).map(|n| place.manifest(&format!("m{n}"), "a")).collect();
    for manifest in &manifests {
        place.get(manifest).unwrap();
    }
    // Of a process that was killed while it built.
    fs::write(place.folder().join("0123.lock"), b"").unwrap();
    assert_eq!(place.files("segment").len(), 4);
    place.options.kept_max = 2;
    place.options.settled_after = Duration::from_secs(3600);
    place.get(&manifests[0]).unwrap();
    assert_eq!((place.files("segment").len(), fs::read_dir(place.folder()).unwrap().count()), (2, 2));
}

/// With room for one segment alone, processes that build others take away what is built, and nobody misses it.
#[test]
fn a_segment_that_is_swept_away_at_once_is_mapped_all_the_same() {
    let mut place = Place::new();
    place.options.kept_max = 1;
    let manifests: Vec<_> = (0..4).map(|n| place.manifest(&format!("m{n}"), &format!("f{n}"))).collect();
    std::thread::scope(|scope| {
        for (n, manifest) in manifests.iter().enumerate() {
            let place = &place;
            scope.spawn(move || {
                for _ in 0..50 {
                    let (segment, _) = place.get(manifest).unwrap();
                    assert_eq!(first_name(&segment), format!("f{n}").as_bytes());
                }
            });
        }
    });
    assert_eq!(place.files("lock").len(), 0);
}

#[test]
fn a_refused_manifest_leaves_nothing() {
    let place = Place::new();
    let path = place.dir.path().join("m");
    fs::write(&path, "{}").unwrap();
    assert!(place.get(&File::open(&path).unwrap()).is_err());
    assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 0);
}
