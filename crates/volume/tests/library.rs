//! A volume as a library: paths, files, walks, transactions, the cache, and the size of the volume.

#[path = "support/volume.rs"]
mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::ErrorKind;
use adit_core::types::{Kind, RenameFlags};
use adit_testkit::{Rng, scaled, seeds};
use adit_volume::fs::{FsCacheStats, OpenFlags, WalkStep};
use adit_volume::{Fs, FsOptions, Volume};

use support::{check, fresh};

fn listed(fs: &Fs, path: &str) -> Vec<String> {
    let entries = fs.read_dir(path).unwrap().map(|entry| entry.unwrap().name.into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn walked(fs: &Fs, path: &str) -> Vec<(PathBuf, usize)> {
    let mut all = Vec::new();
    fs.walk(path, |visited| {
        all.push((visited.path.clone(), visited.depth));
        Ok(WalkStep::Into)
    })
    .unwrap();
    all
}

#[test]
fn errors_name_the_path_and_the_call() {
    let (_place, _, fs) = fresh();
    fs.mkdir("/dir", 0o755).unwrap();
    fs.write("/dir/f", b"1").unwrap();
    let error = fs.open("/dir/absent").map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/dir/absent") && error.to_string().contains("open"), "{error}");
    let kind = |result: adit_core::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(fs.read("/dir").map(drop)), ErrorKind::IsDirectory);
    assert_eq!(kind(fs.read("/dir/f/x").map(drop)), ErrorKind::NotDirectory);
    assert_eq!(kind(fs.read("/dir/f/").map(drop)), ErrorKind::NotDirectory);
    assert_eq!(kind(fs.read("").map(drop)), ErrorKind::NotFound);
    assert_eq!(kind(fs.mkdir("/dir", 0o755)), ErrorKind::Exists);
    assert_eq!(kind(fs.mkdir("/absent/dir", 0o755)), ErrorKind::NotFound);
    assert_eq!(kind(fs.remove("/dir")), ErrorKind::NotEmpty);
    assert_eq!(kind(fs.remove("/")), ErrorKind::InvalidInput);
    assert_eq!(kind(fs.remove_all("/")), ErrorKind::InvalidInput);
    assert_eq!(kind(fs.rename("/absent", "/x")), ErrorKind::NotFound);
    assert_eq!(kind(fs.write(format!("/{}", "x".repeat(256)), b"")), ErrorKind::NameTooLong);
    assert_eq!(kind(fs.write("/new/", b"")), ErrorKind::IsDirectory);
    assert_eq!(kind(fs.read_link("/dir/f").map(drop)), ErrorKind::InvalidInput);
    assert_eq!(kind(fs.open("/dir/f").unwrap().write_at(0, b"x")), ErrorKind::PermissionDenied);
    let new = OpenFlags { write: true, create_new: true, ..OpenFlags::default() };
    assert_eq!(kind(fs.open_with("/dir/f", &new).map(drop)), ErrorKind::Exists);
}

#[test]
fn contexts_are_their_own() {
    let (_place, _, fs) = fresh();
    fs.mkdir_all("/a/b/", 0o777).unwrap();
    assert_eq!(fs.stat("/a").unwrap().perm, 0o755);
    assert_eq!(fs.set_umask(0o077), 0o022);
    fs.mkdir("/private", 0o777).unwrap();
    assert_eq!(fs.stat("/private").unwrap().perm, 0o700);
    // A directory as the working one, also when it is renamed.
    fs.set_working_dir("/a/b").unwrap();
    fs.write("f", b"1").unwrap();
    fs.rename("/a", "/c").unwrap();
    assert_eq!(fs.working_dir().unwrap(), Path::new("/c/b"));
    assert_eq!((fs.read("f").unwrap(), fs.read("../b/./f").unwrap()), (b"1".to_vec(), b"1".to_vec()));
    assert_eq!(fs.set_working_dir("f").unwrap_err().kind(), ErrorKind::NotDirectory);
    // A directory as the root.
    fs.symlink("/b/f", "/c/inside").unwrap();
    fs.symlink("../private", "/c/up").unwrap();
    let sub = fs.sub("/c").unwrap();
    assert_eq!(sub.read("/b/f").unwrap(), b"1");
    assert_eq!(sub.read("/inside").unwrap(), b"1");
    assert_eq!(sub.read("/../../b/f").unwrap(), b"1");
    assert_eq!(sub.stat("/up").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sub.working_dir().unwrap(), Path::new("/"));
    sub.set_working_dir("b").unwrap();
    assert_eq!(sub.working_dir().unwrap(), Path::new("/b"));
    sub.transact(|t| t.write_file("/../g", b"2")).unwrap();
    assert_eq!(fs.read("/c/g").unwrap(), b"2");
    // Its end.
    fs.remove_all("/c").unwrap();
    assert_eq!(sub.read("f").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs.working_dir().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_directory_as_the_root_is_left_by_no_path() {
    let (_place, volume, fs) = fresh();
    fs.mkdir_all("/outside/deep", 0o755).unwrap();
    fs.mkdir_all("/jail/a/b", 0o755).unwrap();
    fs.write("/secret", b"1").unwrap();
    fs.write("/outside/secret", b"1").unwrap();
    fs.write("/jail/inside", b"2").unwrap();
    fs.symlink("../../secret", "/jail/a/link").unwrap();
    let jail = fs.sub("/jail").unwrap();
    jail.set_working_dir("/a/b").unwrap();
    assert_eq!(jail.read("../../inside").unwrap(), b"2");
    assert_eq!(jail.transact(|t| t.stat("../../inside")).unwrap().size, 1);
    // The working directory goes elsewhere, with what is above it.
    fs.rename("/jail/a", "/outside/a").unwrap();
    for path in ["..", "../..", "../../secret", "../../../secret", "../link", "../../../../jail/inside"] {
        assert_eq!(jail.stat(path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        assert_eq!(jail.read(path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        assert_eq!(jail.write(path, b"3").unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        assert_eq!(jail.transact(|t| t.stat(path)).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        assert!(!jail.exists(path).unwrap(), "{path}");
    }
    assert_eq!(jail.transact(|t| t.create("../new", 0o644)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(jail.working_dir().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(jail.read("/inside").unwrap(), b"2");
    // Back again, it is below the root.
    fs.rename("/outside/a", "/jail/a").unwrap();
    assert_eq!(jail.read("../../inside").unwrap(), b"2");
    // Where the root goes, it is the root.
    fs.rename("/jail", "/outside/jail").unwrap();
    assert_eq!(jail.read("../../../../inside").unwrap(), b"2");
    assert_eq!(jail.transact(|t| t.stat("../../../../inside")).unwrap().size, 1);
    // Nothing is above what was removed.
    jail.set_working_dir("/a/b").unwrap();
    fs.remove("/outside/jail/a/b").unwrap();
    assert_eq!(jail.stat("..").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(jail.transact(|t| t.stat("..")).unwrap_err().kind(), ErrorKind::NotFound);
    fs.remove_all("/outside/jail").unwrap();
    assert_eq!(jail.stat("..").unwrap_err().kind(), ErrorKind::NotFound);
    check(&volume);
}

#[test]
fn temporary_files_have_names_of_their_own() {
    let (_place, _, fs) = fresh();
    assert_eq!(fs.create_temp("t-").map(drop).unwrap_err().kind(), ErrorKind::NotFound);
    fs.mkdir("/scratch", 0o700).unwrap();
    fs.set_temp_dir("/scratch");
    let (path, file) = fs.create_temp("t-").unwrap();
    (&file).write_all(b"x").unwrap();
    let (other, _) = fs.create_temp("t-").unwrap();
    assert!(path != other && path.starts_with("/scratch"));
    assert_eq!(listed(&fs, "/scratch").len(), 2);
    assert_eq!(fs.stat(&path).unwrap().perm, 0o600);
}

#[test]
fn files_links_and_attributes() {
    let (_place, volume, fs) = fresh();
    fs.write("/f", b"content").unwrap();
    fs.link("/f", "/g").unwrap();
    assert_eq!((fs.stat("/f").unwrap().nlink, fs.stat("/g").unwrap().nlink), (2, 2));
    fs.chown("/g", 5, 6).unwrap();
    assert_eq!((fs.stat("/f").unwrap().uid, fs.stat("/f").unwrap().gid), (5, 6));
    fs.symlink("f", "/l").unwrap();
    fs.lchown("/l", 7, 8).unwrap();
    assert_eq!((fs.lstat("/l").unwrap().uid, fs.stat("/l").unwrap().uid), (7, 5));
    assert_eq!(fs.read_link("/l").unwrap(), Path::new("f"));
    fs.set_xattr("/l", "user.x", b"1").unwrap();
    assert_eq!((fs.xattr("/f", "user.x").unwrap(), fs.xattr_names("/f").unwrap().len()), (b"1".to_vec(), 1));
    fs.remove_xattr("/f", "user.x").unwrap();
    assert_eq!(fs.xattr("/f", "user.x").unwrap_err().kind(), ErrorKind::NoAttribute);
    fs.write_range("/f", 3, b"T").unwrap();
    assert_eq!((fs.read("/g").unwrap(), fs.read_range("/g", 2, 3).unwrap()), (b"conTent".to_vec(), b"nTe".to_vec()));
    // A link that leads nowhere is a way to make a file.
    fs.symlink("made", "/dangling").unwrap();
    fs.write("/dangling", b"new").unwrap();
    assert_eq!(fs.read("/made").unwrap(), b"new");
    fs.rename_with("/f", "/made", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs.read("/f").unwrap(), fs.read("/l").unwrap()), (b"new".to_vec(), b"new".to_vec()));
    let file = fs.create("/sparse").unwrap();
    file.write_at(0, &[1; 40_960]).unwrap();
    file.punch_hole(4096, 8192).unwrap();
    assert_eq!((file.next_hole(0).unwrap(), file.next_data(4096).unwrap()), (4096, Some(12_288)));
    check(&volume);
}

#[test]
fn walks_show_everything_in_order() {
    let (_place, volume, fs) = fresh();
    fs.mkdir_all("/t/b/deep", 0o755).unwrap();
    fs.mkdir("/t/a", 0o755).unwrap();
    for name in ["/t/z", "/t/b/f", "/t/b/deep/g"] {
        fs.write(name, b"").unwrap();
    }
    fs.symlink("b", "/t/c").unwrap();
    let expected = ["/t", "/t/a", "/t/b", "/t/b/deep", "/t/b/deep/g", "/t/b/f", "/t/c", "/t/z"];
    let found = walked(&fs, "/t");
    assert_eq!(found.iter().map(|(path, _)| path.as_path()).collect::<Vec<_>>(), expected.map(Path::new));
    assert_eq!(found[4].1, 3);
    let mut shown = 0;
    fs.walk("/t", |visited| {
        shown += 1;
        Ok(match visited.path.to_str() {
            Some("/t/b") => WalkStep::Past,
            Some("/t/c") => WalkStep::Stop,
            _ => WalkStep::Into,
        })
    })
    .unwrap();
    assert_eq!(shown, 4);
    fs.remove_all("/t").unwrap();
    fs.remove_all("/t").unwrap();
    assert_eq!(listed(&fs, "/"), [""; 0]);
    // Deeper than a stack would like.
    let mut path = PathBuf::from("/d");
    for _ in 0..3000 {
        fs.mkdir(&path, 0o755).unwrap();
        fs.set_working_dir(&path).unwrap();
        path = PathBuf::from("d");
    }
    assert_eq!(walked(&fs, "/d").len(), 3000);
    fs.remove_all("/d").unwrap();
    check(&volume);
}

#[test]
fn a_long_directory_is_listed_while_it_changes() {
    let (_place, _, fs) = fresh();
    fs.mkdir("/d", 0o755).unwrap();
    for i in 0..1000 {
        fs.write(format!("/d/{i}"), b"").unwrap();
    }
    let mut seen = Vec::new();
    for (i, entry) in fs.read_dir("/d").unwrap().enumerate() {
        seen.push(entry.unwrap().name);
        if i % 3 == 0 && i < 900 {
            fs.remove(Path::new("/d").join(&seen[i])).unwrap();
            fs.write(format!("/d/new{i}"), b"").unwrap();
        }
    }
    let old = seen.iter().filter(|name| !name.to_str().unwrap().starts_with("new")).count();
    assert_eq!(old, 1000);
}

#[test]
fn a_transaction_is_one_step() {
    let (_place, volume, fs) = fresh();
    fs.write("/config", b"old").unwrap();
    fs.transact(|t| {
        t.mkdir("/dir", 0o755)?;
        t.symlink("dir", "/link")?;
        t.write_file("/link/config", b"new")?;
        t.chmod("/dir/config", 0o600)?;
        assert_eq!(t.stat("/link/config")?.size, 3);
        t.rename("/dir/config", "/config")?;
        t.link("/config", "/dir/../same")?;
        t.write("/same", 3, b"er")?;
        assert_eq!(t.remove("/dir/absent").unwrap_err().kind(), ErrorKind::NotFound);
        t.remove("/dir")
    })
    .unwrap();
    assert_eq!(fs.read("/config").unwrap(), b"newer");
    assert_eq!(listed(&fs, "/"), ["config", "link", "same"]);
    let failed = fs.transact(|t| {
        t.remove("/config")?;
        t.truncate("/same", 0)?;
        t.create("/absent/f", 0o644)
    });
    let error = failed.unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("/absent/f"), "{error}");
    assert_eq!((fs.read("/config").unwrap(), fs.read("/same").unwrap()), (b"newer".to_vec(), b"newer".to_vec()));
    check(&volume);
}

/// What is asked through the cache is what is there, whatever happens.
#[test]
fn calls_of_a_transaction_take_the_paths_that_others_take() {
    let (_place, volume, fs) = fresh();
    fs.write("/f", b"1").unwrap();
    fs.mkdir("/dir", 0o755).unwrap();
    let new = OpenFlags { write: true, create_new: true, ..OpenFlags::default() };
    let kind = |result: adit_core::Result<()>| result.map_err(|e| e.kind());
    let alone = [
        kind(fs.open_with("/x/", &new).map(drop)),
        kind(fs.symlink("f", "/x/")),
        kind(fs.link("/f", "/x/")),
        kind(fs.rename("/f", "/x/")),
        kind(fs.open_with("/dir/", &new).map(drop)),
        kind(fs.symlink("f", "/dir/")),
        kind(fs.link("/f", "/dir/")),
        kind(fs.rename("/f", "/dir/")),
        kind(fs.rename("/absent", "/x")),
        kind(fs.rename("/", "/x")),
        kind(fs.rename("/dir/.", "/x")),
        kind(fs.remove("/")),
        kind(fs.remove("/dir/..")),
        kind(fs.remove("/f/")),
        kind(fs.remove("/absent")),
    ];
    assert!(alone.iter().all(Result::is_err), "{alone:?}");
    fs.transact(|t| {
        let together = [
            kind(t.create("/x/", 0o644)),
            kind(t.symlink("f", "/x/")),
            kind(t.link("/f", "/x/")),
            kind(t.rename("/f", "/x/")),
            kind(t.create("/dir/", 0o644)),
            kind(t.symlink("f", "/dir/")),
            kind(t.link("/f", "/dir/")),
            kind(t.rename("/f", "/dir/")),
            kind(t.rename("/absent", "/x")),
            kind(t.rename("/", "/x")),
            kind(t.rename("/dir/.", "/x")),
            kind(t.remove("/")),
            kind(t.remove("/dir/..")),
            kind(t.remove("/f/")),
            kind(t.remove("/absent")),
        ];
        assert_eq!(together, alone);
        // A directory may have the slash.
        t.mkdir("/new/", 0o755)?;
        t.rename("/new/", "/renamed/")
    })
    .unwrap();
    assert_eq!(listed(&fs, "/"), ["dir", "f", "renamed"]);
    check(&volume);
}

#[test]
fn the_cache_is_never_stale() {
    for seed in seeds(6) {
        let (_place, volume) = support::Place::new();
        // So small that things go all the time, in some of the runs.
        let cache_bytes = [2 << 10, 1 << 20][seed as usize % 2];
        let fs = Fs::live(&volume, FsOptions { cache_bytes, ..FsOptions::default() }).unwrap();
        let mut rng = Rng::new(seed);
        let path = |rng: &mut Rng| {
            let depth = 1 + rng.below(3);
            (0..depth).fold(String::new(), |path, _| format!("{path}/n{}", rng.below(4)))
        };
        for i in 0..400 * scaled(1).min(10) {
            let (a, b) = (path(&mut rng), path(&mut rng));
            let _ = match rng.below(12) {
                0..2 => fs.mkdir(&a, 0o755),
                2..4 => fs.write(&a, &vec![1; rng.below(9000) as usize]),
                4 => fs.remove(&a),
                5 => fs.rename(&a, &b),
                6 => fs.link(&a, &b),
                7 => fs.symlink(&a, &b),
                8 => fs.truncate(&a, rng.below(9000)),
                9 => fs.chmod(&a, 0o600 + rng.below(8) as u16),
                10 => fs.transact(|t| t.rename(&a, &b)),
                _ if i % 50 == 0 => fs.create_snapshot(&format!("s{i}")),
                _ if i % 50 == 25 => fs.restore(&fs.snapshots().last().unwrap().name.clone(), "/"),
                _ => fs.remove_all(&a),
            };
            for path in [&a, &b, &path(&mut rng), &"/".to_owned()] {
                let cached = fs.lstat(path).map_err(|e| e.kind());
                fs.flush_cache();
                assert_eq!(cached, fs.lstat(path).map_err(|e| e.kind()), "ADIT_TEST_SEED={seed} {i} {path}");
            }
            // Some of it stays for the next round.
            for _ in 0..8 {
                let _ = fs.stat(path(&mut rng));
            }
        }
        check(&volume);
    }
}

#[test]
fn who_changes_something_sees_it_whoever_else_looks() {
    let (_place, _, fs) = fresh();
    fs.write("/f", b"").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, done) = (&fs, &done);
        for _ in 0..2 {
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let _ = (fs.stat("/f"), fs.stat("/g"));
                }
            });
        }
        let changes = scope.spawn(move || {
            for i in 0..1500_u64 {
                fs.truncate("/f", i).unwrap();
                assert_eq!(fs.stat("/f").unwrap().size, i);
                fs.rename("/f", "/g").unwrap();
                assert!(!fs.exists("/f").unwrap());
                assert_eq!(fs.stat("/g").unwrap().size, i);
                fs.rename("/g", "/f").unwrap();
                assert!(fs.exists("/f").unwrap() && !fs.exists("/g").unwrap());
            }
        });
        let result = changes.join();
        done.store(true, Relaxed);
        result.unwrap();
    });
}

#[test]
fn the_cache_tells_what_it_does() {
    let (_place, _, fs) = fresh();
    fs.mkdir_all("/a/b/c", 0o755).unwrap();
    fs.write("/a/b/c/f", b"1").unwrap();
    fs.flush_cache();
    let before = fs.cache_stats();
    fs.stat("/a/b/c/f").unwrap();
    let first = fs.cache_stats();
    assert_eq!((first.inodes.misses - before.inodes.misses, first.entries.misses - before.entries.misses), (1, 4));
    for _ in 0..10 {
        fs.stat("/a/b/c/f").unwrap();
    }
    let then = fs.cache_stats();
    // One question for the directory, however deep it is, one for the name, one for the attributes.
    let hits = |stats: &FsCacheStats| [stats.paths.hits, stats.entries.hits, stats.inodes.hits];
    assert_eq!(std::array::from_fn(|i| hits(&then)[i] - hits(&first)[i]), [10, 10, 10]);
    assert_eq!(then.paths.entries, 1);
    assert_eq!((then.inodes.misses, then.entries.misses), (first.inodes.misses, first.entries.misses));
    assert!(then.hit_rate() > 0.5 && then.entries.entries >= 4 && then.inodes.bytes > 0);
    // A directory may be as long as it likes: an entry is found by its name.
    for i in 0..2000 {
        fs.write(format!("/a/{i}"), b"").unwrap();
    }
    fs.stat("/a/77").unwrap();
    let long = fs.cache_stats();
    fs.stat("/a/77").unwrap();
    assert_eq!(fs.cache_stats().entries.hits - long.entries.hits, 2);
    fs.set_cache_size(4096);
    assert!(fs.cache_stats().entries.bytes <= 4096 && fs.cache_stats().bytes_max == 4096);
}

#[test]
fn a_cached_path_does_not_outlive_its_directories() {
    let (_place, _, fs) = fresh();
    let has = |path: &str, content: &str| {
        // Twice: walked, and from the cache.
        let found = [(); 2].map(|()| fs.read(path).map(|bytes| String::from_utf8(bytes).unwrap()).unwrap_or_default());
        assert_eq!(found, [content, content], "{path}");
    };
    fs.mkdir_all("/a/b/c", 0o755).unwrap();
    fs.mkdir_all("/x/b/c", 0o755).unwrap();
    fs.write("/a/b/c/f", b"a").unwrap();
    fs.write("/x/b/c/f", b"x").unwrap();
    has("/a/b/c/f", "a");
    fs.create_snapshot("s").unwrap();
    fs.rename_with("/a/b", "/x/b", RenameFlags::EXCHANGE).unwrap();
    has("/a/b/c/f", "x");
    has("/x/b/c/f", "a");
    fs.rename("/a", "/z").unwrap();
    has("/a/b/c/f", "");
    has("/z/b/c/f", "x");
    fs.remove_all("/z/b/c").unwrap();
    has("/z/b/c/f", "");
    fs.mkdir("/z/b/c", 0o755).unwrap();
    fs.write("/z/b/c/f", b"new").unwrap();
    has("/z/b/c/f", "new");
    fs.mkdir_all("/z/e/empty", 0o755).unwrap();
    assert!(!fs.exists("/z/e/empty/f").unwrap());
    fs.rename("/z/b/c", "/z/e/empty").unwrap();
    has("/z/e/empty/f", "new");
    has("/z/b/c/f", "");
    fs.symlink("/z/e", "/l").unwrap();
    has("/l/empty/f", "new");
    fs.remove("/l").unwrap();
    fs.symlink("/x", "/l").unwrap();
    has("/l/b/c/f", "a");
    has("/l/empty/f", "");
    // Within one step as after it.
    fs.transact(|step| step.rename("/x/b", "/x/d")).unwrap();
    has("/x/b/c/f", "");
    has("/x/d/c/f", "a");
    fs.restore("s", "/x").unwrap();
    has("/x/b/c/f", "x");
    fs.restore("s", "/").unwrap();
    has("/a/b/c/f", "a");
    // The same path begins elsewhere.
    fs.set_working_dir("/a").unwrap();
    has("b/c/f", "a");
    fs.set_working_dir("/x").unwrap();
    has("b/c/f", "x");
    fs.write("/a/b/c/g", b"1").unwrap();
    has("/a/b/c/../c/g", "1");
}

#[test]
fn the_volume_grows_and_shrinks() {
    let (place, volume, fs) = fresh();
    let total = |fs: &Fs| u64::from(fs.statfs().unwrap().block_size) * fs.statfs().unwrap().blocks;
    fs.write("/f", &vec![1; 1 << 20]).unwrap();
    volume.set_capacity(512 << 20).unwrap();
    assert!(total(&fs) > 500 << 20);
    volume.set_capacity(64 << 20).unwrap();
    assert!(total(&fs) <= 64 << 20);
    let file = fs.create("/large").unwrap();
    let full = (0..64_u64).find_map(|at| file.write_at(at << 20, &vec![2; 1 << 20]).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert_eq!(volume.set_capacity(16 << 20).unwrap_err().kind(), ErrorKind::NoSpace);
    drop(file);
    fs.remove("/large").unwrap();
    assert_eq!(fs.read("/f").unwrap().len(), 1 << 20);
    drop(fs);
    volume.close().unwrap();
    drop(volume);
    let volume = place.open();
    assert_eq!(volume.info().capacity_bytes, 64 << 20);
    check(&volume);
}

#[test]
fn branches_are_opened_once_and_used_from_anywhere() {
    fn shared<T: Send + Sync>(_: &T) {}
    let (_place, volume, fs) = fresh();
    shared(&fs);
    shared(&fs.create("/f").unwrap());
    assert_eq!(Fs::live(&volume, FsOptions::default()).map(drop).unwrap_err().kind(), ErrorKind::Busy);
    fs.create_snapshot("s").unwrap();
    volume.create_clone("s", "branch").unwrap();
    let branch = Fs::branch(&volume, "branch", FsOptions::default()).unwrap();
    branch.write("/f", b"of the branch").unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"");
    branch.create_snapshot("t").unwrap();
    let old = Fs::snapshot(&volume, "t", FsOptions::default()).unwrap();
    assert_eq!(old.read("/f").unwrap(), b"of the branch");
    assert_eq!(old.create_snapshot("u").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(old.stat("/f").unwrap().kind, Kind::File);
    // Whoever holds one keeps the volume open.
    let weak: std::sync::Weak<Volume> = Arc::downgrade(&volume);
    drop((fs, branch, volume));
    assert!(weak.upgrade().is_some());
    drop(old);
    assert!(weak.upgrade().is_none());
}
