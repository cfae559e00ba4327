use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use adit_dir::DirStore;
use adit_testkit::{MappedByte, Rng, seeds};

use super::*;
use crate::format::Dialect;
use crate::hash_cache::{HashCache, Scope};

const V2025: Format = Format::V2025(Dialect::G);

/// What a snapshot of `dir` gave: the manifest, what was told as left out, what failed, and the files whose hash was known.
#[derive(Default)]
struct Told {
    left_out: Vec<String>,
    failed: Vec<String>,
    known: Vec<String>,
    bytes: u64,
}

fn take(dir: &Path, format: Format, filter: &Filter, known: Option<&Scope<'_>>) -> (Manifest, Told) {
    let store = DirStore::open(dir, true).expect("a folder");
    let tree = Tree::new(&store);
    let mut told = Told::default();
    let known = known.map(|scope| scope as &dyn Known);
    let options = Options { format, filter, threads: 3, known, names: None };
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let taken = snapshot(&tree, b"/", &options, &mut |event| {
        match event {
            Event::File { path, known: true, .. } => told.known.push(text(path.as_wtf8())),
            Event::File { .. } => {}
            Event::Bytes(count) => told.bytes += count,
            Event::LeftOut { path, .. } => told.left_out.push(text(path)),
            Event::Failed { error, .. } => told.failed.push(error.to_string()),
        }
        ControlFlow::Continue(())
    })
    .expect("a snapshot");
    assert_eq!(taken.failed as usize, told.failed.len());
    assert_eq!(tree.known_inodes(), 0);
    told.known.sort();
    (taken.manifest, told)
}

fn paths(manifest: &Manifest) -> Vec<String> {
    manifest.entries().map(|(path, _)| String::from_utf8_lossy(path.as_wtf8()).into_owned()).collect()
}

fn file<'m>(manifest: &'m Manifest, path: &str) -> &'m File<'static> {
    let path = EntryPath::from_host(path.as_bytes()).expect("a path");
    match manifest.get(&path) {
        Some(Body::File(file)) => file,
        other => panic!("{path}: {other:?}"),
    }
}

fn long_ago(path: &Path) {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
    fs::File::options().write(true).open(path).expect("a file").set_modified(at).expect("a time");
}

#[test]
fn files_folders_and_links_are_in_it_as_they_are() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).expect("folders");
    fs::create_dir(at("empty")).expect("a folder");
    fs::write(at("a/b/x"), b"content").expect("a file");
    fs::write(at("none"), b"").expect("a file");
    fs::set_permissions(at("a/b/x"), PermissionsExt::from_mode(0o744)).expect("a mode");
    long_ago(&at("a/b/x"));
    symlink("b/x", at("a/in")).expect("a link");
    symlink("nowhere", at("dangling")).expect("a link");
    symlink("../../etc", at("a/out")).expect("a link");
    symlink("/etc", at("absolute")).expect("a link");
    let socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
    let (manifest, told) = take(dir.path(), V2025, &Filter::default(), None);
    assert_eq!(paths(&manifest), ["a", "a/b", "a/b/x", "a/in", "dangling", "empty", "none"]);
    assert_eq!(told.left_out, ["a/out", "absolute", "socket"]);
    assert_eq!((told.failed.len(), told.bytes), (0, 7));
    let x = file(&manifest, "a/b/x");
    assert_eq!((x.size_bytes, x.mtime_micros, x.runnable), (7, 1_700_000_000_123_456, true));
    assert_eq!(x.content, Content::Whole(ContentHash::of(b"content")));
    assert!(!file(&manifest, "none").runnable);
    let mut text = Vec::new();
    manifest.encode(V2025, &mut text).expect("it can be written");
    assert_eq!(Manifest::read(&text[..]).expect("and read").0, manifest);
    drop(socket);
}

/// A file that takes minutes is told of meanwhile, and left when that is wanted.
#[test]
fn a_large_file_is_told_of_and_left_in_the_middle() {
    const LEN: u64 = 64 << 30;
    let dir = tempfile::tempdir().expect("a folder");
    fs::File::create(dir.path().join("large")).and_then(|file| file.set_len(LEN)).expect("a file with a hole");
    let store = DirStore::open(dir.path(), true).expect("a folder");
    let options = Options { format: V2025, filter: &Filter::default(), threads: 1, known: None, names: None };
    let mut told = 0;
    let taken = snapshot(&Tree::new(&store), b"/", &options, &mut |event| match event {
        Event::Bytes(count) => {
            told += count;
            if told > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        _ => ControlFlow::Continue(()),
    });
    assert_eq!(taken.map(|_| ()).expect_err("it is ended").kind(), ErrorKind::Interrupted);
    assert!((1..LEN).contains(&told), "{told}");
}

#[test]
fn what_is_wanted_is_measured_without_reading_it() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(dir.path().join("a/b")).expect("folders");
    for (name, len) in [("a/b/x", 7), ("a/y", 100), ("z.tmp", 5000)] {
        fs::write(dir.path().join(name), vec![0; len]).expect("a file");
    }
    symlink("z.tmp", dir.path().join("link")).expect("a link");
    let store = DirStore::open(dir.path(), true).expect("a folder");
    let measure = |roots: &[&[u8]], filter: &Filter, is_over: bool| {
        let roots: Vec<Vec<u8>> = roots.iter().map(|root| root.to_vec()).collect();
        bytes_of(&Tree::new(&store), &roots, filter, &is_over.into())
    };
    let (all, some) = (Filter::default(), Filter::new(&["a"], &["a/b"]).expect("patterns"));
    assert_eq!(measure(&[b"/"], &all, false).expect("a size"), 5107);
    assert_eq!(measure(&[b"/"], &some, false).expect("a size"), 100);
    // Of a commit: files and folders, and what is not there any more.
    assert_eq!(measure(&[b"a/b", b"z.tmp", b"gone"], &all, false).expect("a size"), 5007);
    assert_eq!(measure(&[b"/"], &all, true).expect_err("it is over").kind(), ErrorKind::Interrupted);
}

#[test]
fn in_the_version_of_2023_links_are_followed_as_long_as_they_stay_inside() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).expect("folders");
    fs::write(at("a/b/x"), b"content").expect("a file");
    symlink("a/b/x", at("to-file")).expect("a link");
    symlink("a", at("to-folder")).expect("a link");
    symlink("..", at("a/b/up")).expect("a link");
    symlink("/etc/hostname", at("out")).expect("a link");
    symlink("nowhere", at("dangling")).expect("a link");
    let (manifest, told) = take(dir.path(), Format::V2023, &Filter::default(), None);
    assert_eq!(paths(&manifest), ["a/b/x", "to-file", "to-folder/b/x"]);
    assert_eq!(told.left_out, ["a/b/up", "dangling", "out", "to-folder/b/up"]);
    assert_eq!(told.failed.len(), 0);
    for path in paths(&manifest) {
        assert_eq!(file(&manifest, &path).content, Content::Whole(ContentHash::of(b"content")), "{path}");
    }
    // Of those that nobody asked for nothing is told.
    let some = Filter::new(&["a/b/x", "dangling"], &[]).expect("patterns");
    let (manifest, told) = take(dir.path(), Format::V2023, &some, None);
    assert_eq!((paths(&manifest), told.left_out), (vec!["a/b/x".to_owned()], vec!["dangling".to_owned()]));
}

#[test]
fn only_what_the_filter_wants_is_in_it() {
    let dir = tempfile::tempdir().expect("a folder");
    for path in ["src/a.rs", "src/b.o", "src/deep/c.rs", "doc/d.md", "top"] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("folders");
        fs::write(path, b"").expect("a file");
    }
    let of = |include: &[&str], exclude: &[&str]| {
        let filter = Filter::new(include, exclude).expect("patterns");
        paths(&take(dir.path(), Format::V2023, &filter, None).0)
    };
    assert_eq!(of(&[], &["**/*.o", "doc"]), ["src/a.rs", "src/deep/c.rs", "top"]);
    assert_eq!(of(&["**/*.rs"], &[]), ["src/a.rs", "src/deep/c.rs"]);
    assert_eq!(of(&["src"], &["src/deep"]), ["src/a.rs", "src/b.o"]);
    assert_eq!(of(&["nothing"], &[]), [""; 0]);
}

/// In the root of the machine other filesystems are mounted, and a walk does not go into them.
#[test]
fn what_is_not_wanted_is_not_looked_at() {
    let of = |include: &[&str], exclude: &[&str]| {
        let filter = Filter::new(include, exclude).expect("patterns");
        let (manifest, told) = take(Path::new("/"), V2025, &filter, None);
        (paths(&manifest), told.failed)
    };
    assert_eq!(of(&["proc"], &[]).1.len(), 1, "a mount is told if it is wanted");
    assert_eq!(of(&["etc/passwd"], &[]), (vec!["etc/passwd".to_owned()], Vec::new()));
    assert_eq!(of(&["etc/passwd", "proc"], &["proc"]), (vec!["etc/passwd".to_owned()], Vec::new()));
    // Itself is in the manifest, with nothing in it.
    assert_eq!(of(&["proc"], &["proc/**"]), (vec!["proc".to_owned()], Vec::new()));
}

#[test]
fn names_that_are_no_text_come_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"caf\xe9");
    fs::write(dir.path().join(name), b"x").expect("a file");
    let (manifest, _) = take(dir.path(), Format::V2023, &Filter::default(), None);
    let (path, _) = manifest.entries().next().expect("it is there");
    assert_eq!(&*path.to_host().expect("it has bytes"), b"caf\xe9");
}

/// Files are changed at random between snapshots, with their times set back at times: with a cache the manifest is always what it is
/// without one.
#[test]
fn what_is_known_is_what_is_there() {
    for seed in seeds(3) {
        let mut rng = Rng::new(seed);
        let (dir, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let hashes = HashCache::open(&cache.path().join("hashes")).expect("a cache").expect("nobody else has it");
        let mut known = 0;
        for round in 0..6 {
            for _ in 0..rng.below(6) + u64::from(round == 0) * 6 {
                let path = dir.path().join(format!("f{}", rng.below(8)));
                match rng.below(4) {
                    0 => drop(fs::remove_file(&path)),
                    // In place: the same inode, and often the same length.
                    _ => fs::write(&path, vec![rng.below(256) as u8; 1 + rng.below(2) as usize]).expect("a file"),
                }
                if path.exists() && rng.below(2) == 0 {
                    long_ago(&path);
                }
            }
            let scope = hashes.scope(b"here");
            // As if all had been left alone for as long as it takes.
            let (cached, told) = take_later(dir.path(), &scope);
            drop(scope);
            let (plain, _) = take(dir.path(), Format::V2023, &Filter::default(), None);
            assert_eq!(cached, plain, "ADIT_TEST_SEED={seed}");
            known += told.known.len();
        }
        assert!(known > 0 || !times_tell(dir.path()), "ADIT_TEST_SEED={seed}: nothing was ever known");
    }
}

/// Whether anything is believed of files of `dir`: not where they lie in memory.
fn times_tell(dir: &Path) -> bool {
    let file = tempfile::tempfile_in(dir).expect("a file");
    adit_core::host::times_tell(&file).expect("the host says")
}

/// A write through a mapping gives a file new times only if its page was sent to the medium since the write before.
#[test]
fn what_is_written_through_a_mapping_is_not_missed() {
    let (dir, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let hashes = HashCache::open(&cache.path().join("hashes")).expect("a cache").expect("nobody else has it");
    fs::write(dir.path().join("x"), b"0").expect("a file");
    let mapped = MappedByte::of(&dir.path().join("x"));
    for byte in *b"123" {
        // In another tick of the clock than before: that two changes of one tick are told apart is another matter.
        let start = Timestamp::of_tick();
        while Timestamp::of_tick() == start {
            std::thread::yield_now();
        }
        mapped.write(byte);
        let scope = hashes.scope(b"here");
        let (manifest, told) = take_later(dir.path(), &scope);
        assert_eq!(file(&manifest, "x").content, Content::Whole(ContentHash::of(&[byte])));
        assert_eq!(told.known, [""; 0]);
    }
    let known = if times_tell(dir.path()) { vec!["x".to_owned()] } else { Vec::new() };
    assert_eq!(take_later(dir.path(), &hashes.scope(b"here")).1.known, known);
}

/// Takes a snapshot with a scope that counts the time of its files from a minute later.
fn take_later(dir: &Path, scope: &Scope<'_>) -> (Manifest, Told) {
    scope.pretend_later(Duration::from_secs(60));
    take(dir, Format::V2023, &Filter::default(), Some(scope))
}

#[test]
fn what_was_touched_a_moment_ago_is_not_believed() {
    let (dir, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let hashes = HashCache::open(&cache.path().join("hashes")).expect("a cache").expect("nobody else has it");
    fs::write(dir.path().join("x"), b"1").expect("a file");
    // It stays touched a moment ago, however slow the machine is.
    let soon = SystemTime::now() + Duration::from_secs(3600);
    let touch = |at| fs::File::options().write(true).open(dir.path().join("x")).and_then(|x| x.set_modified(at));
    touch(soon).expect("a time");
    let filter = Filter::default();
    for _ in 0..2 {
        let scope = hashes.scope(b"here");
        let (_, told) = take(dir.path(), Format::V2023, &filter, Some(&scope));
        assert_eq!(told.known, [""; 0]);
    }
    long_ago(&dir.path().join("x"));
    let old = hashes.scope(b"here");
    take_later(dir.path(), &old);
    drop(old);
    let (_, told) = take(dir.path(), Format::V2023, &filter, Some(&hashes.scope(b"here")));
    if times_tell(dir.path()) {
        assert_eq!((told.known, told.bytes), (vec!["x".to_owned()], 0));
    }
    let (_, told) = take(dir.path(), Format::V2023, &filter, Some(&hashes.scope(b"elsewhere")));
    assert_eq!(told.bytes, 1);
}

#[test]
fn a_cache_that_is_taken_or_damaged_costs_time_only() {
    let cache = tempfile::tempdir().expect("a folder");
    let file = cache.path().join("hashes");
    let first = HashCache::open(&file).expect("a cache").expect("nobody else has it");
    assert!(HashCache::open(&file).expect("no error").is_none());
    drop(first);
    fs::write(&file, vec![0x5a; 70_000]).expect("damage");
    assert!(HashCache::open(&file).expect("made anew").is_some());
}

#[test]
fn large_files_have_a_hash_for_each_chunk() {
    let dir = tempfile::tempdir().expect("a folder");
    let large = fs::File::create(dir.path().join("large")).expect("a file");
    large.set_len(CHUNK_LEN_BYTES + 5).expect("a length");
    std::os::unix::fs::FileExt::write_all_at(&large, b"tail.", CHUNK_LEN_BYTES).expect("a tail");
    let (manifest, _) = take(dir.path(), V2025, &Filter::default(), None);
    let hashes = file(&manifest, "large").content.hashes();
    assert_eq!(hashes, [ContentHash::of(&vec![0; CHUNK_LEN_BYTES as usize]), ContentHash::of(b"tail.")]);
    let (manifest, _) = take(dir.path(), Format::V2023, &Filter::default(), None);
    assert_eq!(file(&manifest, "large").content.hashes().len(), 1);
}

#[test]
fn what_changes_while_it_is_read_is_read_again_and_what_changes_on_and_on_is_a_failure() {
    for (changes, expected) in [(READ_AGAIN, &["log", "still"][..]), (READ_AGAIN + 1, &["still"])] {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("still"), b"s").expect("a file");
        fs::write(dir.path().join("log"), b"line\n").expect("a file");
        let store = DirStore::open(dir.path(), true).expect("a folder");
        let tree = Tree::new(&store);
        let options =
            Options { format: Format::V2023, filter: &Filter::default(), threads: 2, known: None, names: None };
        let (mut left, mut failed) = (changes, Vec::new());
        let taken = snapshot(&tree, b"/", &options, &mut |event| {
            match event {
                // The log was read, and not looked at again.
                Event::Bytes(2..) if left > 0 => {
                    left -= 1;
                    let mut log = fs::File::options().append(true).open(dir.path().join("log")).expect("a file");
                    std::io::Write::write_all(&mut log, b"line\n").expect("a line");
                }
                Event::Failed { error, .. } => failed.push(error.to_string()),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .expect("a snapshot");
        assert_eq!(paths(&taken.manifest), expected);
        assert_eq!(taken.failed, u64::from(left == 0 && changes > READ_AGAIN));
        assert!(failed.iter().all(|e| e.contains("/log") && e.contains("changes while it is read")), "{failed:?}");
        if taken.failed == 0 {
            let lines = "line\n".repeat(1 + changes as usize);
            assert_eq!(file(&taken.manifest, "log").content, Content::Whole(ContentHash::of(lines.as_bytes())));
        }
    }
}

#[test]
fn hashes_of_every_length_are_right() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut expected = BTreeMap::new();
    for len in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20] {
        let bytes: Vec<u8> = (0..len as u32).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
        fs::write(dir.path().join(len.to_string()), &bytes).expect("a file");
        expected.insert(len.to_string(), ContentHash::of(&bytes));
    }
    let (manifest, _) = take(dir.path(), Format::V2023, &Filter::default(), None);
    for (name, hash) in expected {
        assert_eq!(file(&manifest, &name).content, Content::Whole(hash), "{name}");
    }
}
