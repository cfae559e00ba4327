//! A branch that is mounted is set back to a snapshot, all of it or a path, in its place.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/volumes.rs"]
mod volumes;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use adit_testkit::{Rng, seeds};
use common::{Start, facts, make_tree, pattern};
use volumes::{Boxed, errno, mount_id, read, shell};

#[test]
fn a_mounted_branch_is_set_back() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    fs::create_dir(b.at("mnt/d")).unwrap();
    fs::write(b.at("mnt/d/f"), "old, and longer").unwrap();
    fs::write(b.at("mnt/g"), "old").unwrap();
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    let pid = b.pid();
    let inos = || ["mnt/d/f", "mnt/g"].map(|path| fs::metadata(b.at(path)).unwrap().ino());
    let before = inos();
    fs::write(b.at("mnt/d/f"), "new").unwrap();
    fs::write(b.at("mnt/g"), "new").unwrap();
    fs::write(b.at("mnt/d/h"), "added").unwrap();
    let open = File::open(b.at("mnt/g")).unwrap();
    let own = format!("process {} (", std::process::id());
    let refused =
        b.of("snapshot restore", "mnt", &["s", "-y"]).expect(7).says("/g would change, and is open on").says(&own);
    assert!(!refused.stderr.contains("--lazy"), "{}", refused.stderr);
    assert_eq!(read(&b.at("mnt/g")), "new");
    drop(open);
    b.of("snapshot restore", "mnt", &["s", "/d", "-y"]).expect(0);
    assert_eq!((read(&b.at("mnt/d/f")).as_str(), read(&b.at("mnt/g")).as_str()), ("old, and longer", "new"));
    assert!(!b.at("mnt/d/h").exists());
    b.of("snapshot restore", "box", &["s", "-y"]).expect(0);
    assert_eq!((read(&b.at("mnt/g")), inos()), ("old".to_owned(), before));
    assert_eq!(b.pid(), pid);
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn a_mounted_branch_is_set_back_in_its_place() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    make_tree(&mnt.join("tree"));
    shell(
        "mkdir d d/sub gone; echo same > d/same; echo log > log; echo short > d/cut; echo long > d/grown; echo r > d/removed
         echo l > link1; ln link1 d/link2; ln -s same d/symlink; echo a > d/from; echo p > d/perm; echo m > gone/in",
        &mnt,
    );
    let before = facts(&mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    shell(
        "ls -lR . >/dev/null; printf s > d/cut; seq 20000 >> d/grown; rm d/removed; ls d/removed 2>/dev/null || true; rm -r gone
         echo more >> link1; ln -sf other d/symlink; mv d/from to; chmod 600 d/perm; mkdir new; echo n > new/n; ls -lR . >/dev/null
         ls gone 2>/dev/null || true; cat d/* link1 to >/dev/null 2>&1 || true; mv d/sub moved; rm -r tree/deep",
        &mnt,
    );
    // In use, and the same before and after: to read, to write, to stand in.
    let same = File::open(mnt.join("d/same")).unwrap();
    let log = OpenOptions::new().append(true).open(mnt.join("log")).unwrap();
    let folder = File::open(mnt.join("d")).unwrap();
    let mut stands = std::process::Command::new("sh");
    let mut stands = stands.args(["-c", "read line; ls | wc -l; cat grown"]).current_dir(mnt.join("d"));
    stands = stands.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut stands = stands.start().unwrap();
    let id = mount_id(&mnt);

    // What is open and would change keeps it from being set back.
    let open = File::open(mnt.join("d/grown")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "-y"]).expect(7).says("/d/grown would change");
    assert_eq!(read(&mnt.join("new/n")), "n\n");
    drop(open);
    b.of("snapshot restore", "mnt", &["s", "-y"]).expect(0);
    assert_eq!(mount_id(&mnt), id);
    assert_eq!(facts(&mnt), before);
    assert_eq!((read(&mnt.join("d/grown")).as_str(), fs::metadata(mnt.join("d/grown")).unwrap().len()), ("long\n", 5));
    assert_eq!(fs::metadata(mnt.join("link1")).unwrap().nlink(), 2);
    assert!(!mnt.join("new").exists() && !mnt.join("to").exists() && !mnt.join("moved").exists());
    assert_eq!(shell("ls -A d | wc -l", &mnt).trim(), "9");

    let mut text = [0; 5];
    same.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"same\n");
    (&log).write_all(b"more\n").unwrap();
    assert_eq!(read(&mnt.join("log")), "log\nmore\n");
    let removed = rustix::fs::openat(&folder, "removed", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    removed.expect("it is there again");
    stands.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let said = stands.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "9\nlong\n");
    drop((same, log, folder));
    b.umount("mnt");
    b.expect_sound();
    b.mount("mnt", &[]).expect(0);
    fs::write(mnt.join("log"), "log\n").unwrap();
    let times = |facts: Vec<String>| facts.into_iter().filter(|fact| !fact.starts_with("log ")).collect::<Vec<_>>();
    assert_eq!(times(facts(&mnt)), times(before));
    b.umount("mnt");
}

/// What the kernel may remember of a tree besides [`facts`]: counts of links, lengths, and when attributes changed. (The last
/// not of regular files, whose times the kernel keeps by a clock of its own; see [`but_times`].)
fn attributes(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let changed = (!meta.is_file()).then_some((meta.ctime(), meta.ctime_nsec()));
        let sizes = format!("{} links, {} bytes, {} blocks", meta.nlink(), meta.len(), meta.blocks());
        found.push(format!("{name}: {sizes}, {changed:?}"));
    }
    found.sort();
    found
}

/// Those of [`facts`] that are of what lies at or below `path`, and of the others; without the folder that it lies in, whose
/// time moves with it.
fn parted(facts: Vec<String>, path: &str) -> (Vec<String>, Vec<String>) {
    let of = |fact: &str, path: &str| fact.strip_prefix(path).is_some_and(|rest| rest.starts_with(' '));
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let others = facts.into_iter().filter(|fact| !of(fact, parent));
    others.partition(|fact| of(fact, path) || fact.starts_with(&format!("{path}/")))
}

/// Whether all of `path` are folders, and no links to some.
fn is_folder(root: &Path, path: &str) -> bool {
    let mut at = root.to_path_buf();
    path.split('/').all(|name| {
        at.push(name);
        fs::symlink_metadata(&at).is_ok_and(|meta| meta.is_dir())
    })
}

/// Whether something lies at `path`, not below a link.
fn is_there(root: &Path, path: &str) -> bool {
    let parent_is_folder = path.rsplit_once('/').is_none_or(|(parent, _)| is_folder(root, parent));
    parent_is_folder && fs::symlink_metadata(root.join(path)).is_ok()
}

/// Whether there is a folder to put `path` in, and something to be put there or removed.
fn can_be_set_back(mnt: &Path, snapshot: &Path, path: &str) -> bool {
    let has_a_place = path.rsplit_once('/').is_none_or(|(parent, _)| is_folder(mnt, parent));
    has_a_place && (is_there(mnt, path) || is_there(snapshot, path))
}

/// [`facts`] without the times of regular files: what the kernel remembers of these, by a clock of its own, can be some
/// milliseconds from what is stored.
fn but_times(facts: Vec<String>) -> Vec<String> {
    let without = |fact: String| match fact.split(' ').collect::<Vec<_>>()[..] {
        [name, mode, _, content] if mode.starts_with("100") => format!("{name} {mode} {content}"),
        _ => fact,
    };
    facts.into_iter().map(without).collect()
}

/// What is stored of the mounted branch now, and whether the kernel shows the same.
fn stored(b: &Boxed, called: &str, context: &str) -> Vec<String> {
    let mnt = b.at("mnt");
    b.of("snapshot create", "mnt", &[called]).expect(0);
    let now = mnt.join(".snapshots").join(called);
    assert_eq!(but_times(facts(&mnt)), but_times(facts(&now)), "{context}");
    assert_eq!(attributes(&mnt), attributes(&now), "{context}");
    facts(&now)
}

/// Sets a path of the mounted branch back, and looks whether that and nothing else is as it was. Whether it could be.
fn set_a_path_back(b: &Boxed, name: &str, path: &str, (now, context): (&str, &str)) -> bool {
    let mnt = b.at("mnt");
    let snapshot = mnt.join(".snapshots").join(name);
    let possible = can_be_set_back(&mnt, &snapshot, path);
    let before = stored(b, &format!("{now}-before"), context);
    let held = if is_there(&snapshot, path) { parted(facts(&snapshot), path).0 } else { Vec::new() };
    let ran = b.of("snapshot restore", "mnt", &[name, &format!("/{path}"), "-y"]);
    ran.expect(if possible { 0 } else { 1 });
    let after = stored(b, now, context);
    if possible {
        let (there, others) = parted(after, path);
        assert_eq!(there, held, "{context}");
        assert_eq!(others, parted(before, path).1, "{context}");
    } else {
        assert_eq!(after, before, "{context}");
    }
    possible
}

#[test]
fn a_mounted_branch_is_set_back_again_and_again() {
    const PATHS: [&str; 7] = ["a", "b", "a/c", "b/c", "a/d", "b/d/e", "b/d"];
    let Some(b) = Boxed::new() else { return };
    for seed in seeds(1) {
        b.mount("mnt", &[]).expect(0);
        let mnt = b.at("mnt");
        let id = mount_id(&mnt);
        let mut rng = Rng::new(seed);
        let (mut made, mut paths, mut impossible) = (0, 0, 0);
        for step in 0..600 {
            // Whether each works is not the point.
            let (one, other) = (mnt.join(rng.pick(&PATHS)), mnt.join(rng.pick(&PATHS)));
            let _ = match rng.below(12) {
                0 => fs::create_dir(&one),
                1 | 2 => fs::write(&one, pattern(rng.below(9000) as usize)),
                3 => fs::remove_file(&one),
                4 => fs::remove_dir_all(&one),
                5 => fs::rename(&one, &other),
                6 => fs::hard_link(&one, &other),
                7 => std::os::unix::fs::symlink("c", &one),
                8 => OpenOptions::new().append(true).open(&one).and_then(|mut file| file.write_all(b"more")),
                9 => OpenOptions::new().write(true).open(&one).and_then(|file| file.set_len(rng.below(5000))),
                10 => fs::set_permissions(&one, fs::Permissions::from_mode(0o700 + rng.below(8) as u32)),
                _ => fs::metadata(&one).map(drop),
            };
            if step % 10 == 4 {
                b.of("snapshot create", "mnt", &[&format!("{seed}-{made}")]).expect(0);
                made += 1;
            }
            if step % 10 == 9 {
                // The kernel knows all of it.
                attributes(&mnt);
                let name = format!("{seed}-{}", rng.below(made));
                let snapshot = mnt.join(".snapshots").join(&name);
                let can: Vec<&str> = PATHS.into_iter().filter(|path| can_be_set_back(&mnt, &snapshot, path)).collect();
                let path = if can.is_empty() || rng.percent(15) { *rng.pick(&PATHS) } else { *rng.pick(&can) };
                let context = format!("ADIT_TEST_SEED={seed}, step {step}, {name}, {path}");
                let now = format!("{seed}-now-{step}");
                if rng.percent(30) {
                    b.of("snapshot restore", "mnt", &[&name, "-y"]).expect(0);
                    let held = facts(&snapshot);
                    assert_eq!(stored(&b, &now, &context), held, "{context}");
                } else if set_a_path_back(&b, &name, path, (&now, &context)) {
                    paths += 1;
                } else {
                    impossible += 1;
                }
                assert_eq!(mount_id(&mnt), id, "{context}");
            }
        }
        eprintln!("ADIT_TEST_SEED={seed}: {paths} paths were set back, {impossible} could not be");
        assert!(paths > 10, "ADIT_TEST_SEED={seed}: {paths} paths were set back");
        b.umount("mnt");
        b.expect_sound();
    }
}

#[test]
fn what_a_folder_brought_into_a_path_is_set_back_with_it() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    shell("mkdir E dir; echo x > E/f", &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    shell("mv E dir/E; ls -lR . >/dev/null", &mnt);
    let mut open = OpenOptions::new().append(true).open(mnt.join("dir/E/f")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "/dir", "-y"]).expect(7).says("/dir/E/f would change");
    open.write_all(b"more\n").unwrap();
    drop(open);
    assert_eq!(read(&mnt.join("dir/E/f")), "x\nmore\n");
    let stands = File::open(mnt.join("dir/E")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "/dir", "-y"]).expect(0);
    assert_eq!(errno(fs::metadata(mnt.join("dir/E"))), Some(libc::ENOENT));
    let gone = rustix::fs::openat(&stands, "f", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    assert_eq!(gone.err(), Some(rustix::io::Errno::NOENT), "also for who stands in it");
    assert_eq!(shell("ls -A dir | wc -l", &mnt).trim(), "0");
    drop(stands);
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn what_left_a_path_with_a_folder_shows_its_further_names() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    shell("mkdir -p dir/E; echo x > dir/E/f; echo y > dir/E/g", &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    shell("mv dir/E E; ls -lR . >/dev/null", &mnt);
    let at = |path: &str| fs::metadata(mnt.join(path)).unwrap();
    let changed = |path: &str| (at(path).ctime(), at(path).ctime_nsec());
    let before = changed("E/g");
    // It stays what it was, and so it may stay open.
    let mut open = OpenOptions::new().append(true).open(mnt.join("E/f")).unwrap();
    b.of("snapshot restore", "mnt", &["s", "/dir", "-y"]).expect(0);
    assert_eq!((at("E/f").nlink(), open.metadata().unwrap().nlink(), at("dir/E/f").nlink()), (2, 2, 2));
    assert_eq!((at("E/g").nlink(), at("dir").nlink(), at("E").nlink()), (2, 3, 2));
    assert!(changed("E/g") > before);
    open.write_all(b"more\n").unwrap();
    drop(open);
    assert_eq!((read(&mnt.join("E/f")).as_str(), read(&mnt.join("dir/E/f")).as_str()), ("x\nmore\n", "x\nmore\n"));
    b.umount("mnt");
    b.expect_sound();
}

#[test]
fn a_file_with_a_name_outside_of_a_path_keeps_its_times() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    shell("mkdir -p dir/sub; echo x > dir/sub/f; ln dir/sub/f out; echo y > dir/g; ln dir/g dir/sub/g", &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    // What the volume says, not what the kernel remembers.
    let changed =
        || ["out", "dir/g"].map(|path| fs::metadata(mnt.join(path)).map(|m| (m.ctime(), m.ctime_nsec())).unwrap());
    b.umount("mnt");
    b.mount("mnt", &[]).expect(0);
    let before = changed();
    fs::write(mnt.join("dir/new"), "new").unwrap();
    b.of("snapshot restore", "mnt", &["s", "/dir", "-y"]).expect(0);
    assert!(!mnt.join("dir/new").exists());
    assert_eq!(changed(), before);
    b.umount("mnt");
    b.mount("mnt", &[]).expect(0);
    assert_eq!(changed(), before);
    assert_eq!(fs::metadata(mnt.join("out")).unwrap().nlink(), 2);
    b.umount("mnt");
    b.expect_sound();
}

/// Two names of one file are two files after one of them was set back alone: nothing changes under the other. That is told.
#[test]
fn a_name_that_is_set_back_alone_is_told_to_be_no_longer_the_others() {
    let Some(b) = Boxed::new() else { return };
    let told = |path: &str| format!("{path} is a file of its own now");
    for mounted in [true, false] {
        b.mount("mnt", &[]).expect(0);
        let (one, other) = (b.at("mnt/one"), b.at("mnt/other"));
        fs::write(&one, "old").unwrap();
        let _ = fs::remove_file(&other);
        fs::hard_link(&one, &other).unwrap();
        let name = if mounted { "s" } else { "t" };
        b.of("snapshot create", "mnt", &[name]).expect(0);
        // A name that only went is a name of the same file again.
        fs::remove_file(&one).unwrap();
        let back = b.of("snapshot restore", "mnt", &[name, "/one", "-y"]).expect(0);
        assert_eq!((back.stderr.as_str(), fs::metadata(&one).unwrap().nlink()), ("", 2));
        OpenOptions::new().write(true).truncate(true).open(&other).unwrap().write_all(b"new").unwrap();
        if !mounted {
            b.umount("mnt");
        }
        let source = if mounted { "mnt" } else { "box" };
        b.of("snapshot restore", source, &[name, "/one", "-y"]).expect(0).says(&told("/one"));
        let read_in = |path: &str| b.bench.run(["cat", "box", path]).expect(0).text();
        assert_eq!((read_in("/one").as_str(), read_in("/other").as_str()), ("old", "new"));
        // By now it differs from what was linked, and is told again, for programs as well.
        let done = b.of("snapshot restore", source, &[name, "/other", "-y", "--json"]).expect(0).json();
        assert_eq!((&done["branch"], &done["separated_omitted"]), (&"main".into(), &0.into()), "{done}");
        assert_eq!(read_in("/other"), "old");
        b.of("snapshot restore", source, &[name, "-y", "-q"]).expect(0);
        if mounted {
            b.umount("mnt");
        }
        b.expect_sound();
    }
}

fn mtime_and_ctime(path: &Path) -> [(i64, i64); 2] {
    let meta = fs::symlink_metadata(path).unwrap();
    [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())]
}

/// As `tar -g`, `find -cnewer`, restic and borg ask what changed since.
#[test]
fn what_a_restore_changed_is_in_the_next_incremental_backup() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let (mnt, host) = (b.at("mnt"), b.at("stamp"));
    shell(
        "mkdir d; for f in same changed removed mode attr; do echo good > d/$f; done; ln -s same d/link; ln d/same linked; echo moved > d/moved",
        &mnt,
    );
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    let differing = ["d", "d/changed", "d/removed", "d/mode", "d/attr", "d/link", "d/moved"];
    let alike = ["d/same", "linked"];
    let of_snapshot: Vec<_> = differing.iter().map(|path| mtime_and_ctime(&mnt.join(path))[0]).collect();
    // Whole and a path, mounted and closed, with times of modification now or then.
    for (round, line) in [&["s", "-y"][..], &["s", "/d", "-y"], &["s", "-y", "--touch"], &["s", "/d", "-y", "--touch"]]
        .into_iter()
        .flat_map(|line| [(true, line), (false, line)])
        .enumerate()
    {
        let (mounted, args) = line;
        std::thread::sleep(std::time::Duration::from_millis(12));
        shell(
            "echo evil > d/changed; rm d/removed; chmod 640 d/mode; ln -sf other d/link; mv d/moved d/elsewhere",
            &mnt,
        );
        rustix::fs::setxattr(mnt.join("d/attr"), "user.x", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        let before: Vec<_> = alike.iter().map(|path| mtime_and_ctime(&mnt.join(path))).collect();
        std::thread::sleep(std::time::Duration::from_millis(12));
        fs::write(&host, "the backup").unwrap();
        let backup = mtime_and_ctime(&host)[1];
        std::thread::sleep(std::time::Duration::from_millis(12));
        if !mounted {
            b.umount("mnt");
        }
        b.of("snapshot restore", if mounted { "mnt" } else { "box" }, args).expect(0);
        if !mounted {
            b.mount("mnt", &[]).expect(0);
        }
        for (path, then) in differing.iter().zip(&of_snapshot) {
            let [mtime, ctime] = mtime_and_ctime(&mnt.join(path));
            assert!(ctime > backup, "round {round}: {path}: {ctime:?}, the backup was at {backup:?}");
            match args.contains(&"--touch") {
                true => assert!(mtime > backup, "round {round}: {path}: {mtime:?}"),
                false => assert_eq!(mtime, *then, "round {round}: {path}"),
            }
        }
        let after: Vec<_> = alike.iter().map(|path| mtime_and_ctime(&mnt.join(path))).collect();
        assert_eq!(after, before, "round {round}: what did not differ");
        assert_eq!(read(&mnt.join("d/changed")), "good\n");
        // What is the same already stays what it is.
        let all = |mnt: &Path| differing.iter().map(|path| mtime_and_ctime(&mnt.join(path))).collect::<Vec<_>>();
        let restored = all(&mnt);
        if !args.contains(&"--touch") {
            b.of("snapshot restore", "mnt", &["s", "-y"]).expect(0);
            assert_eq!(all(&mnt), restored, "round {round}: set back twice");
        }
        b.umount("mnt");
        b.mount("mnt", &[]).expect(0);
        assert_eq!(all(&mnt), restored, "round {round}: mounted again");
        b.of("snapshot diff", "mnt", &["s"]).expect(0);
    }
    b.umount("mnt");
    b.expect_sound();
}
