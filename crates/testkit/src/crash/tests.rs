//! The crash model itself: what may be left, what may not, and that calls in between behave as a host's would.

use std::collections::BTreeSet;
use std::path::Path;

use adit_core::media::{BlockFile, HostDir, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Kind, RenameFlags, SetAttr};

use super::*;

fn publish(dir: &dyn HostDir, path: &str, content: &[u8], durable: bool) -> io::Result<Box<dyn HostFile>> {
    dir.publish(Path::new(path), &NewFile { content, perm: 0o644, owner: None, durable })
}

fn read(dir: &dyn HostDir, path: &str) -> Option<Vec<u8>> {
    let file = dir.open(Path::new(path), Access::Read).ok()?;
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    Some(bytes)
}

fn sync_dir(dir: &dyn HostDir, path: &str) {
    dir.sync(SyncTarget::Dir(Path::new(path))).unwrap();
}

fn rename(dir: &dyn HostDir, from: &str, to: &str, flags: RenameFlags) -> io::Result<()> {
    dir.rename(Path::new(from), Path::new(to), flags)
}

/// Every outcome that `see` reports over all patterns, many of them random.
fn outcomes<T: Ord>(world: &CrashWorld, mut see: impl FnMut(&CrashDir) -> T) -> BTreeSet<T> {
    let mut rng = Rng::new(1);
    let patterns = patterns(world, 400);
    patterns.into_iter().map(|pattern| see(&world.crash(pattern, &mut rng).dir("v"))).collect()
}

/// A world with a durable file `f` of `content`, and that file.
fn with_file(mode: Mode, content: &[u8]) -> (CrashWorld, CrashDir, Box<dyn HostFile>) {
    let world = CrashWorld::new(mode);
    let dir = world.dir("v");
    let file = publish(&dir, "f", content, true).unwrap();
    world.settle();
    (world, dir, file)
}

#[test]
fn sectors_and_length_persist_on_their_own_until_a_sync() {
    let (world, _dir, file) = with_file(Mode::Journalled, &[1; 1024]);
    file.write_at(0, &[2; 1024]).unwrap();
    file.write_at(512, &[3; 1024]).unwrap();
    let seen = outcomes(&world, |dir| {
        let bytes = read(dir, "f").unwrap();
        let sectors: Vec<u8> = bytes.chunks(512).map(|s| s[0]).collect();
        assert!(bytes.chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "no sector is torn");
        sectors
    });
    let expected = [1, 2]
        .into_iter()
        .flat_map(|a| [1, 2, 3].into_iter().flat_map(move |b| [vec![a, b], vec![a, b, 0], vec![a, b, 3]]));
    assert_eq!(seen, expected.collect());
    file.sync(true).unwrap();
    assert_eq!((world.pending(), outcomes(&world, |dir| read(dir, "f").unwrap().len())), (0, [1536].into()));
}

#[test]
fn fixed_patterns_leave_what_they_say() {
    let (world, _dir, file) = with_file(Mode::Journalled, &[0; 2048]);
    file.write_at(0, &[1; 1024]).unwrap();
    file.write_at(1024, &[2; 1024]).unwrap();
    let left = |pattern| {
        let bytes = read(&world.crash(pattern, &mut Rng::new(0)).dir("v"), "f").unwrap();
        bytes.chunks(512).map(|s| s[0]).collect::<Vec<u8>>()
    };
    assert_eq!(left(Pattern::None), [0, 0, 0, 0]);
    assert_eq!(left(Pattern::All), [1, 1, 2, 2]);
    assert_eq!(left(Pattern::AllButOne(0)), [0, 0, 2, 2]);
    assert_eq!(left(Pattern::AllButOne(1)), [1, 1, 0, 0]);
    assert_eq!(left(Pattern::OnlyLast), [0, 0, 2, 2]);
    assert_eq!(left(Pattern::HeadersOnly), [1, 0, 2, 0]);
}

#[test]
fn a_longer_file_never_shows_what_a_shorter_one_cut_off_after_a_sync() {
    let (world, _dir, file) = with_file(Mode::Adversarial, &[7; 6000]);
    file.set_len(100).unwrap();
    let seen = outcomes(&world, |dir| {
        let bytes = read(dir, "f").unwrap();
        assert!(bytes[..100].iter().all(|b| *b == 7));
        (bytes.len(), bytes.get(512).copied(), bytes.get(5000).copied())
    });
    let expected = [(100, None, None), (6000, Some(7), Some(7)), (6000, Some(0), Some(7))];
    assert_eq!(seen, expected.into(), "the rest of the page may be cleared first");
    file.sync(true).unwrap();
    file.set_len(6000).unwrap();
    outcomes(&world, |dir| assert!(read(dir, "f").unwrap()[100..].iter().all(|b| *b == 0)));
    let mut live = [1; 10];
    assert_eq!((file.read_at(5000, &mut live).unwrap(), live), (10, [0; 10]));
}

#[test]
fn a_failed_sync_leaves_doubt_that_the_next_one_does_not_end() {
    let (world, _dir, file) = with_file(Mode::Journalled, &[1; 512]);
    file.write_at(0, &[2; 512]).unwrap();
    world.fail_sync_after(0);
    assert!(file.sync(true).is_err());
    file.sync(true).unwrap();
    assert_eq!(outcomes(&world, |dir| read(dir, "f").unwrap()[0]), [1, 2].into());
    file.write_at(0, &[3; 10]).unwrap();
    file.sync(true).unwrap();
    assert_eq!(
        outcomes(&world, |dir| read(dir, "f").unwrap()[..11].to_vec()),
        [[vec![3; 10], vec![2]].concat()].into()
    );
}

#[test]
fn names_persist_as_a_prefix_or_each_on_its_own() {
    for (mode, count) in [(Mode::Journalled, 4), (Mode::Adversarial, 8)] {
        let world = CrashWorld::new(mode);
        let dir = world.dir("v");
        for name in ["a", "b", "c"] {
            publish(&dir, name, b"x", true).unwrap();
        }
        let see = |dir: &CrashDir| ["a", "b", "c"].map(|name| read(dir, name).is_some());
        let seen = outcomes(&world, see);
        assert_eq!(seen.len(), count, "{mode:?}");
        assert!(mode == Mode::Adversarial || !seen.contains(&[false, true, false]));
        dir.open(Path::new("a"), Access::Write).unwrap().sync(false).unwrap();
        assert_eq!(outcomes(&world, see).len(), count, "syncing a file does not make its name durable");
        sync_dir(&dir, "");
        assert_eq!(outcomes(&world, see), [[true; 3]].into());
    }
}

#[test]
fn a_publishing_that_is_not_durable_may_leave_a_name_without_content() {
    let world = CrashWorld::new(Mode::Adversarial);
    let dir = world.dir("v");
    publish(&dir, "soft", b"abc", false).unwrap();
    publish(&dir, "hard", b"abc", true).unwrap();
    let seen = outcomes(&world, |dir| read(dir, "soft"));
    assert_eq!(seen, [None, Some(vec![]), Some(vec![0; 3]), Some(b"abc".to_vec())].into());
    assert_eq!(outcomes(&world, |dir| read(dir, "hard")), [None, Some(b"abc".to_vec())].into());
}

#[test]
fn moves_leave_old_new_or_both_and_never_neither() {
    for (to, expected) in
        [("g", &[(true, false), (false, true)][..]), ("d/g", &[(true, false), (false, true), (true, true)])]
    {
        let (world, dir, _file) = with_file(Mode::Adversarial, b"1");
        dir.make_dir(Path::new("d"), 0o755, None).unwrap();
        world.settle();
        rename(&dir, "f", to, RenameFlags::empty()).unwrap();
        let see = |dir: &CrashDir| (read(dir, "f").is_some(), read(dir, to).is_some());
        assert_eq!(outcomes(&world, see), expected.iter().copied().collect(), "{to}");
        // The directory that lost the name is synced first: then the new name is there as well.
        sync_dir(&dir, "");
        assert_eq!(outcomes(&world, see), [(false, true)].into());
    }
}

#[test]
fn syncing_the_new_directory_alone_may_leave_both_names() {
    let (world, dir, _file) = with_file(Mode::Adversarial, b"1");
    dir.make_dir(Path::new("d"), 0o755, None).unwrap();
    world.settle();
    rename(&dir, "f", "d/g", RenameFlags::empty()).unwrap();
    sync_dir(&dir, "d");
    let see = |dir: &CrashDir| (read(dir, "f").is_some(), read(dir, "d/g").is_some());
    assert_eq!(outcomes(&world, see), [(false, true), (true, true)].into());
}

#[test]
fn replacing_and_exchanging_leave_old_or_new() {
    for (flags, after) in [(RenameFlags::empty(), (None, Some(1))), (RenameFlags::EXCHANGE, (Some(2), Some(1)))] {
        let (world, dir, _file) = with_file(Mode::Adversarial, &[1]);
        publish(&dir, "g", &[2], true).unwrap();
        world.settle();
        rename(&dir, "f", "g", flags).unwrap();
        let first = |dir: &CrashDir, name| read(dir, name).map(|bytes| bytes[0]);
        let seen = outcomes(&world, |dir| (first(dir, "f"), first(dir, "g")));
        assert_eq!(seen, [(Some(1), Some(2)), after].into());
    }
}

#[test]
fn directories_move_as_a_whole_and_in_order() {
    let world = CrashWorld::new(Mode::Adversarial);
    let dir = world.dir("v");
    for path in ["a", "a/b"] {
        dir.make_dir(Path::new(path), 0o755, None).unwrap();
    }
    publish(&dir, "a/b/f", b"1", true).unwrap();
    world.settle();
    rename(&dir, "a/b", "b", RenameFlags::empty()).unwrap();
    rename(&dir, "a", "b/a", RenameFlags::empty()).unwrap();
    // Out of order, the two would hang in each other.
    let seen = outcomes(&world, |dir| ["a/b/f", "b/f"].map(|path| read(dir, path).is_some()));
    assert_eq!(seen, [[true, false], [false, true]].into());
}

#[test]
fn a_kill_tears_the_write_in_flight_and_keeps_the_rest() {
    let (world, dir, file) = with_file(Mode::Kill, &[0; 4]);
    world.stop_after(2);
    file.write_at(0, &[1]).unwrap();
    publish(&dir, "g", b"new", false).unwrap();
    assert!(file.write_at(1, &[2; 3]).is_err());
    assert!(world.is_dead());
    assert!(dir.stat(Path::new("g")).is_err(), "the dead read nothing");
    assert!(rename(&dir, "g", "h", RenameFlags::empty()).is_err(), "and do nothing more");
    let seen = outcomes(&world, |dir| (read(dir, "f").unwrap(), read(dir, "g").unwrap()));
    let prefixes = [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 2, 0], [1, 2, 2, 2]];
    assert_eq!(seen, prefixes.into_iter().map(|p| (p.to_vec(), b"new".to_vec())).collect());
}

#[test]
fn each_thread_has_a_call_in_flight() {
    let (world, dir, file) = with_file(Mode::Kill, &[0; 2]);
    world.stop_after(0);
    assert!(publish(&dir, "g", b"", false).is_err());
    std::thread::scope(|s| {
        s.spawn(|| assert!(file.write_at(0, &[1, 1]).is_err()));
    });
    let seen = outcomes(&world, |dir| (read(dir, "f").unwrap(), read(dir, "g").is_some()));
    assert_eq!(seen.len(), 6, "{seen:?}");
}

#[test]
fn two_roots_share_a_timeline_and_not_a_journal() {
    let world = CrashWorld::new(Mode::Journalled);
    let (vault, state) = (world.dir("v"), world.dir("state"));
    publish(&state, "journal", b"1", true).unwrap();
    sync_dir(&state, "");
    publish(&vault, "f", b"1", true).unwrap();
    world.stop_after(0);
    assert!(publish(&state, "later", b"1", true).is_err());
    let mut rng = Rng::new(0);
    let mut seen = BTreeSet::new();
    for pattern in patterns(&world, 50) {
        let left = world.crash(pattern, &mut rng);
        assert!(read(&left.dir("state"), "journal").is_some());
        seen.insert((read(&left.dir("v"), "f").is_some(), read(&left.dir("state"), "later").is_some()));
    }
    assert_eq!(seen.len(), 4, "each root keeps a prefix of its own");
}

#[test]
fn sync_calls_can_be_left_out() {
    for omitted in [None, Some(SyncKind::FileData), Some(SyncKind::Dir), Some(SyncKind::Publish)] {
        let world = CrashWorld::new(Mode::Adversarial);
        let dir = world.dir("v");
        if let Some(kind) = omitted {
            world.omit_syncs(move |call| call.kind == kind && &*call.root == "v");
        }
        let file = publish(&dir, "f", b"abc", true).unwrap();
        file.write_at(0, b"x").unwrap();
        file.sync(true).unwrap();
        sync_dir(&dir, "");
        assert_eq!((world.calls(), world.syncs()), (4, 3));
        let seen = outcomes(&world, |dir| read(dir, "f"));
        let safe = seen == [Some(b"xbc".to_vec())].into();
        // The later sync covers for the publishing.
        assert_eq!(safe, matches!(omitted, None | Some(SyncKind::Publish)), "{omitted:?}");
    }
}

#[test]
fn unlinked_files_stay_open_and_are_gone_after_a_crash() {
    let (world, dir, file) = with_file(Mode::Kill, b"abc");
    dir.remove(Path::new("f"), Kind::File).unwrap();
    file.write_at(3, b"d").unwrap();
    let mut buf = [0; 4];
    assert_eq!((file.read_at(0, &mut buf).unwrap(), &buf, file.stat().unwrap().nlink), (4, b"abcd", 0));
    let left = world.crash(Pattern::All, &mut Rng::new(0));
    assert_eq!(left.dir("v").list(Path::new(""), &mut |_| panic!("nothing is left")).map_err(|e| e.kind()), Ok(()));
}

#[test]
fn attributes_persist_with_a_full_sync() {
    let (world, _dir, file) = with_file(Mode::Journalled, b"");
    file.set_attr(&SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
    let see = |dir: &CrashDir| dir.stat(Path::new("f")).unwrap().perm;
    let mut rng = Rng::new(0);
    assert_eq!(see(&world.crash(Pattern::None, &mut rng).dir("v")), 0o644);
    assert_eq!(see(&world.crash(Pattern::All, &mut rng).dir("v")), 0o600);
    file.sync(false).unwrap();
    assert_eq!(see(&world.crash(Pattern::None, &mut rng).dir("v")), 0o600);
}

/// A redo journal in small: the intent durable, then the change durable, then the intent away.
fn move_two(vault: &dyn HostDir, state: &dyn HostDir) -> io::Result<()> {
    publish(state, "intent", b"ab", true)?;
    state.sync(SyncTarget::Dir(Path::new("")))?;
    redo(vault, state)
}

fn redo(vault: &dyn HostDir, state: &dyn HostDir) -> io::Result<()> {
    if state.stat(Path::new("intent")).is_err() {
        return Ok(());
    }
    for (from, to) in [("a", "x/a"), ("b", "x/b")] {
        match rename(vault, from, to, RenameFlags::empty()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        // A crash may have left both names, and a rename between two names of one file does nothing.
        match vault.remove(Path::new(from), Kind::File) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    for path in ["", "x"] {
        vault.sync(SyncTarget::Dir(Path::new(path)))?;
    }
    state.remove(Path::new("intent"), Kind::File)
}

fn journal_outcomes(mode: Mode, omitted: Option<u64>) -> (u32, BTreeSet<u8>) {
    let base = CrashWorld::new(mode);
    let (vault, _state) = (base.dir("v"), base.dir("state"));
    vault.make_dir(Path::new("x"), 0o755, None).unwrap();
    for name in ["a", "b"] {
        publish(&vault, name, b"", true).unwrap();
    }
    base.settle();
    let plan = CrashPlan { points_max: 100, randoms: 10 };
    let (mut rng, mut inner) = (Rng::new(3), Rng::new(4));
    let (mut crashes, mut seen) = (0, BTreeSet::new());
    let mut look = |world: &CrashWorld| {
        crashes += 1;
        let v = world.dir("v");
        let moved = ["a", "b"].map(|name| (read(&v, name).is_some(), read(&v, &format!("x/{name}")).is_some()));
        seen.insert(match moved {
            [(true, false), (true, false)] => 0,
            [(false, true), (false, true)] => 1,
            _ => 2,
        });
    };
    let work = |world: &CrashWorld| {
        if let Some(nth) = omitted {
            world.omit_syncs(move |call| call.nth == nth);
        }
        move_two(&world.dir("v"), &world.dir("state")).is_ok()
    };
    crash_everywhere(&base, &plan, &mut rng, work, |_, _, left| {
        // Crash again during recovery.
        let recover = |world: &CrashWorld| redo(&world.dir("v"), &world.dir("state"));
        crash_everywhere(&left, &plan, &mut inner, recover, |_, _, left| {
            recover(&left).unwrap();
            look(&left);
        });
    });
    (crashes, seen)
}

#[test]
fn a_journal_is_atomic_exactly_if_it_syncs() {
    for mode in [Mode::Kill, Mode::Journalled, Mode::Adversarial] {
        let (crashes, seen) = journal_outcomes(mode, None);
        assert_eq!(seen, [0, 1].into(), "{mode:?}");
        assert!(crashes > 50, "{mode:?}: {crashes}");
    }
    // Test of the test: without the sync of the intent's directory, or of the vault's, a half shows.
    for nth in [1, 2] {
        assert_eq!(journal_outcomes(Mode::Adversarial, Some(nth)).1, [0, 1, 2].into(), "sync {nth} left out");
    }
}

/// Runs the same random calls on a folder of this machine and on the model.
#[test]
fn calls_behave_as_the_hosts() {
    for seed in crate::seeds(30) {
        let temporary = tempfile::tempdir().unwrap();
        let host = adit_media::HostDirectory::open(temporary.path()).unwrap();
        let world = CrashWorld::new(Mode::Adversarial);
        let model = world.dir("v");
        let (mut a, mut b) = (Rng::new(seed), Rng::new(seed));
        for step in 0..400 {
            let (host, model) = (random_call(&host, &mut a), random_call(&model, &mut b));
            assert_eq!(host, model, "ADIT_TEST_SEED={seed}, step {step}");
        }
    }
}

/// One random call; what it gave, as text.
fn random_call(dir: &dyn HostDir, rng: &mut Rng) -> String {
    let names = ["a", "b", "c", "a/a", "a/b", "b/a", "b/c", "a/b/a", "c/a/b"];
    let (path, other) = (Path::new(*rng.pick(&names)), Path::new(*rng.pick(&names)));
    let kind = *rng.pick(&[Kind::File, Kind::Directory]);
    let flags = *rng.pick(&[RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE]);
    let (offset, len) = (rng.below(3000), rng.below(2000) as usize);
    let bytes = vec![rng.next_u64() as u8 | 1; len];
    let choice = rng.below(9);
    let what = format!("{choice} {path:?} {other:?} {kind:?} {flags:?} {offset} {len}");
    let open = |access| dir.open(path, access);
    let result = match choice {
        0 => publish(dir, path.to_str().unwrap(), &bytes, rng.percent(50)).map(|_| String::new()),
        1 => dir.make_dir(path, 0o755, None).map(|()| String::new()),
        2 => dir.remove(path, kind).map(|()| String::new()),
        3 => dir.rename(path, other, flags).map(|()| String::new()),
        4 => open(Access::Write).and_then(|f| f.write_at(offset, &bytes)).map(|()| String::new()),
        5 => open(Access::Write).and_then(|f| f.set_len(offset)).map(|()| String::new()),
        6 => open(Access::Read).and_then(|f| {
            let mut buf = vec![0; len];
            let read = f.read_at(offset, &mut buf)?;
            Ok(format!("{:?}", &buf[..read]))
        }),
        7 => dir.stat(path).map(|a| {
            let directory = a.kind == Kind::Directory;
            format!("{:?} {:o} {} {}", a.kind, a.perm, a.nlink, if directory { 0 } else { a.size })
        }),
        _ => {
            let mut names = BTreeSet::new();
            dir.list(Path::new(""), &mut |e| {
                names.insert((e.name.to_vec(), e.kind.map(Kind::as_str)));
            })
            .map(|()| format!("{names:?}"))
        }
    };
    format!("{what}: {:?}", result.map_err(|e| e.raw_os_error()))
}

#[test]
fn a_block_file_punches_unsynced_and_is_locked_until_dropped() {
    let world = CrashWorld::new(Mode::Journalled);
    let dir = world.dir("v");
    let path = Path::new("f");
    let file = dir.block_file(path).unwrap();
    file.write_at(0, &[1; 1024]).unwrap();
    file.sync().unwrap();
    file.punch(0, 512).unwrap();
    file.punch(1000, 5000).unwrap();
    assert_eq!(file.len().unwrap(), 1024);
    let seen = outcomes(&world, |dir| {
        let bytes = read(dir, "f").unwrap();
        (bytes[0], bytes[999], bytes[1000])
    });
    assert_eq!(seen, [(0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1)].into());
    let other = dir.block_file(path).unwrap();
    assert!(file.try_lock().unwrap() && file.try_lock().unwrap() && !other.try_lock().unwrap());
    let mut rng = Rng::new(0);
    let left = world.crash(Pattern::All, &mut rng).dir("v").block_file(path).unwrap();
    assert!(left.try_lock().unwrap(), "a lock dies with its process");
    drop(file);
    assert!(other.try_lock().unwrap());
}
