//! Whatever lies in the folder: no wrong byte comes out, no read fails, and nothing outside is touched.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use adit_manifest::cache::{CacheOptions, CheckOptions, Problem, check_folder};
use adit_media::KeptFolder;
use adit_testkit::{Rng, seeds};

use crate::support::*;

/// A folder with a small object and one of 5 blocks, complete and verified, and one with holes.
fn filled(source: &Source, strict: bool) -> (tempfile::TempDir, [adit_manifest::cache::ObjectId; 3]) {
    let dir = folder();
    let ids = [source.add(900, 1), source.add(5000, 2), source.add(9000, 3)];
    let cache = open(host(&dir), CacheOptions { strict, ..options() });
    read_all(&cache, ids[0], 900, source);
    read_all(&cache, ids[1], 5000, source);
    if strict {
        read_all(&cache, ids[2], 9000, source);
    } else {
        read(&cache.object(ids[2]), 2000, 3000, source).unwrap();
    }
    (dir, ids)
}

fn flip(path: &Path, bit: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).unwrap();
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, bit / 8).unwrap();
}

fn check_all(dir: &tempfile::TempDir, ids: &[adit_manifest::cache::ObjectId], source: &Source, strict: bool) {
    for step in [9000, 800] {
        let cache = open(host(dir), CacheOptions { strict, ..options() });
        for id in ids {
            read_all(&cache, *id, step, source);
            cache.object(*id).verified_file();
            read_all(&cache, *id, step, source);
            if let Some(fd) = cache.object(*id).verified_file() {
                assert!(
                    fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd))).unwrap()
                        == source.content(*id)
                );
            }
        }
        assert_eq!(cache.stats().quarantined, 0);
    }
}

/// Does something to each of the files of a new folder in turn, and reads everything.
fn each_file(source: &Source, strict: bool, mut change: impl FnMut(&Path)) {
    let count = files(filled(source, strict).0.path()).len();
    assert!(count >= 7, "two files of each large object, one of the small one, and two more");
    for n in 0..count {
        let (dir, ids) = filled(source, strict);
        change(&files(dir.path())[n]);
        check_all(&dir, &ids, source, strict);
    }
}

#[test]
fn a_flipped_bit_anywhere_is_never_read() {
    let source = Source::new();
    for seed in seeds(12) {
        let mut rng = Rng::new(seed);
        each_file(&source, rng.percent(50), |path| {
            let len = fs::metadata(path).unwrap().len();
            if len > 0 {
                flip(path, rng.below(len * 8));
            }
        });
    }
}

#[test]
fn other_lengths_and_contents_are_never_read() {
    let source = Source::new();
    for seed in seeds(4) {
        let mut rng = Rng::new(seed);
        for strict in [false, true] {
            for kind in 0..5 {
                each_file(&source, strict, |path| {
                    let mut content = fs::read(path).unwrap();
                    match kind {
                        0 => content.truncate(rng.below(content.len() as u64 + 1) as usize),
                        1 => content.clear(),
                        2 => content.extend([7; 600]),
                        3 => rng.fill(&mut content),
                        _ => content.fill(0),
                    }
                    fs::write(path, content).unwrap();
                });
            }
        }
    }
}

/// The files of one object in the place of another's.
#[test]
fn files_in_another_place_are_never_read() {
    let source = Source::new();
    let count = files(&filled(&source, false).0.path().join("objects")).len();
    for from in 0..count {
        for to in 0..count {
            let (dir, ids) = filled(&source, false);
            let paths = files(&dir.path().join("objects"));
            fs::copy(&paths[from], dir.path().join("copy")).unwrap();
            fs::rename(dir.path().join("copy"), &paths[to]).unwrap();
            check_all(&dir, &ids, &source, false);
        }
    }
}

#[test]
fn links_and_folders_are_not_followed() {
    let source = Source::new();
    let outside = folder();
    let secret = outside.path().join("secret");
    fs::write(&secret, [9; 9000]).unwrap();
    for kind in ["link", "dangling", "folder", "pipe"] {
        each_file(&source, false, |path| {
            fs::remove_file(path).unwrap();
            match kind {
                "link" => symlink(&secret, path).unwrap(),
                "dangling" => symlink(outside.path().join("new"), path).unwrap(),
                "folder" => fs::create_dir_all(path.join("x")).unwrap(),
                _ => {
                    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
                    // SAFETY: takes a string that ends with NUL and lives until it returns.
                    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
                }
            }
        });
        assert_eq!(fs::read(&secret).unwrap(), [9; 9000]);
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }
}

/// A folder of the cache that is a link to elsewhere: nothing is kept there, and reads go well.
#[test]
fn a_linked_folder_is_not_entered() {
    let source = Source::new();
    let (dir, outside) = (folder(), folder());
    symlink(outside.path(), dir.path().join("objects")).unwrap();
    let id = source.add(5000, 1);
    check_all(&dir, &[id, source.add(100, 2)], &source, false);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// As `rm -r`, by somebody who says it again: the cache's own threads may put the outcome of a comparison into a folder that was just emptied.
fn remove_all(dir: &Path) {
    while let Err(e) = fs::remove_dir_all(dir) {
        assert_eq!(e.kind(), std::io::ErrorKind::DirectoryNotEmpty, "{e}");
    }
}

#[test]
fn the_folder_may_be_deleted_at_any_time() {
    let source = Source::new();
    let (dir, ids) = filled(&source, false);
    let cache = open(host(&dir), options());
    for round in 0..3 {
        for id in ids {
            read_all(&cache, id, 3000, &source);
        }
        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { remove_all(&path) } else { fs::remove_file(path).unwrap() }
        }
        // What is fetched after that is kept again.
        let new = source.add(5000, 100 + round);
        read_all(&cache, new, 3000, &source);
        assert_eq!(cache.object(new).state().present, 5000);
    }
}

/// Also the folder itself, with those above it.
#[test]
fn the_folder_is_made_again_when_it_was_removed() {
    let (dir, source) = (folder(), Source::new());
    let path = dir.path().join("above/cache");
    let cache = open(KeptFolder::open(&path).unwrap(), CacheOptions { workers: 1, ..options() });
    for round in 0..3 {
        for (n, len) in [5000, 600].into_iter().enumerate() {
            let id = source.add(len, 2 * round + n as u64);
            read_all(&cache, id, 3000, &source);
            assert_eq!(cache.object(id).state().present, len as u64);
            assert!(files(&path).iter().any(|file| file.to_string_lossy().contains(&id.to_string())), "{round}");
        }
        remove_all(&dir.path().join("above"));
    }
}

#[test]
fn nobody_else_may_read_it() {
    let source = Source::new();
    let (dir, _) = filled(&source, false);
    for path in files(dir.path()) {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600, "{}", path.display());
        let parent = path.parent().unwrap();
        if parent != dir.path() {
            assert_eq!(fs::metadata(parent).unwrap().permissions().mode() & 0o7777, 0o700, "{}", parent.display());
        }
    }
}

#[test]
fn what_is_not_ours_stays() {
    let source = Source::new();
    let (dir, ids) = filled(&source, false);
    for name in ["objects/readme", "objects/00/x.map", "other"] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "keep").unwrap();
    }
    let cache = open(host(&dir), CacheOptions { limit_bytes: 1, ..options() });
    for id in ids {
        read_all(&cache, id, 3000, &source);
    }
    assert_eq!(cache.stats().used_bytes, 0);
    for name in ["objects/readme", "objects/00/x.map", "other"] {
        assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"keep");
    }
}

#[test]
fn a_check_finds_each_damage_and_removes_it_if_told_to() {
    let source = Source::new();
    let (dir, ids) = filled(&source, false);
    let check = |remove| check_folder(&host(&dir), CheckOptions { remove }, &mut |_| {}).unwrap();
    let clean = check(false);
    assert_eq!((clean.objects, clean.complete, clean.damaged, clean.foreign), (3, 2, 0, 0));
    assert_eq!(clean.bytes, 900 + 5000 + 4 * 1024);

    fs::write(dir.path().join("objects/readme"), "").unwrap();
    let damaged_whole = files_with(dir.path(), "whole").remove(0);
    flip(&damaged_whole, 77);
    let of_second = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with(&ids[1].to_string());
    let data = files_with(dir.path(), "data").into_iter().find(|path| of_second(path)).unwrap();
    flip(&data, 8 * 1500);
    let map = files_with(dir.path(), "map").into_iter().find(|path| !of_second(path)).unwrap();
    flip(&map, 3);
    let before = files(dir.path());
    for remove in [false, true] {
        let mut last = None;
        let report = check_folder(&host(&dir), CheckOptions { remove }, &mut |progress| last = Some(progress)).unwrap();
        assert_eq!((report.objects, report.complete, report.damaged), (3, 0, 3));
        assert_eq!(last.unwrap().parts, 256);
        for finding in &report.findings {
            assert_eq!(finding.removed, remove);
            match &finding.problem {
                Problem::Content(Some(_)) => assert_eq!(finding.object, ids[0]),
                Problem::Blocks(blocks) => assert_eq!((finding.object, blocks.as_slice()), (ids[1], &[1][..])),
                Problem::Foreign => assert_eq!(finding.object, ids[2]),
                other => panic!("{other}"),
            }
        }
        assert_eq!(files(dir.path()) == before, !remove);
    }
    let clean = check(false);
    assert_eq!((clean.objects, clean.damaged), (0, 0));
    check_all(&dir, &ids, &source, false);
}
