//! A restore of what is in use: the mount stays in its place, and what knows the former state is not believed any more.

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/volumes.rs"]
mod volumes;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use adit_testkit::Rng;
use common::{Ran, Start, eventually, facts};
use mounts::{Points, is_root};
use volumes::{Boxed, errno, mount_id, read, shell};

/// Known, but not open.
fn path_only(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).unwrap()
}

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn what_is_known_and_not_open_is_set_back_in_its_place() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let (mnt, file) = (b.at("mnt"), b.at("mnt/d/watched"));
    shell("mkdir d gone; echo one > d/watched; echo two > d/removed; echo in > gone/in", &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    let (id, ino) = (mount_id(&mnt), fs::metadata(&file).unwrap().ino());
    for (round, path) in ["/d/watched", "/d", ""].into_iter().cycle().take(6).enumerate() {
        shell("echo longer than before > d/watched; rm -f d/removed; cat d/watched", &mnt);
        let held = path_only(&file);
        let line: Vec<&str> = ["s", path, "-y"].into_iter().filter(|arg| !arg.is_empty()).collect();
        b.of("snapshot restore", "mnt", &line).expect(0);
        assert_eq!((mount_id(&mnt), read(&file)), (id.clone(), "one\n".to_owned()), "round {round}");
        let meta = fs::metadata(&file).unwrap();
        assert_eq!((meta.len(), meta.ino()), (4, ino));
        assert_eq!(errno(held.metadata()), Some(libc::ESTALE), "it is not what it was");
        // At the end that it has now.
        append(&file, "more\n");
        assert_eq!(read(&file), "one\nmore\n");
        assert_eq!(b.at("mnt/d/removed").exists(), path != "/d/watched");
    }
    // A removed folder that somebody stands in comes back as a new one.
    let stands = File::open(mnt.join("gone")).unwrap();
    shell("rm -r gone", &mnt);
    b.of("snapshot restore", "mnt", &["s", "-y"]).expect(0);
    assert_eq!(read(&mnt.join("gone/in")), "in\n");
    fs::write(mnt.join("gone/new"), "new").unwrap();
    drop(stands);
    b.umount("mnt");
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "nothing went beneath");
    b.expect_sound();
    b.mount("mnt", &[]).expect(0);
    assert_eq!((read(&file).as_str(), read(&mnt.join("gone/new")).as_str()), ("one\n", "new"));
    b.umount("mnt");
}

#[test]
fn what_has_something_mounted_inside_is_not_set_back() {
    if !is_root("it mounts in a namespace, or in a mount") {
        return;
    }
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    shell("mkdir early", &mnt);
    b.of("snapshot create", "mnt", &["before"]).expect(0);
    shell("mkdir -p inner/deep; echo under > inner/under", &mnt);
    b.of("snapshot create", "mnt", &["with"]).expect(0);
    for place in ["early", "inner/deep"] {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(mnt.join(place)).start_and_wait();
        assert!(mounted.unwrap().success());
        fs::write(mnt.join(place).join("file"), place).unwrap();
    }
    fs::write(mnt.join("inner/under"), "changed").unwrap();
    let still = |place: &str| assert_eq!(read(&mnt.join(place).join("file")), place);
    for path in [&["before", "-y"][..], &["before", "/inner", "-y"]] {
        let refused = b.of("snapshot restore", "mnt", path);
        refused.expect(7).says("/inner/deep would change, and something (tmpfs) is mounted there").says("unmount ");
        assert_eq!(read(&mnt.join("inner/under")), "changed");
    }
    still("inner/deep");
    // What stays what it is may have something in it.
    for path in [&["with", "/inner", "-y"][..], &["with", "-y"]] {
        b.of("snapshot restore", "mnt", path).expect(0);
        assert_eq!(read(&mnt.join("inner/under")), "under\n");
        ["early", "inner/deep"].into_iter().for_each(still);
        fs::write(mnt.join("inner/under"), "changed").unwrap();
    }
    for place in ["early", "inner/deep"] {
        assert!(Command::new("umount").arg(mnt.join(place)).start_and_wait().unwrap().success());
    }
    b.of("snapshot restore", "mnt", &["before", "-y"]).expect(0);
    assert!(!mnt.join("inner").exists());
    // Nor is a snapshot deleted that has something mounted inside.
    let shown = mnt.join(".snapshots/with/inner/deep");
    assert!(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&shown).start_and_wait().unwrap().success());
    fs::write(shown.join("file"), "shown").unwrap();
    b.of("snapshot delete", "mnt", &["with", "-y"]).expect(7).says("snapshot with cannot be deleted").says("unmount ");
    assert_eq!(read(&shown.join("file")), "shown");
    assert!(Command::new("umount").arg(&shown).start_and_wait().unwrap().success());
    b.of("snapshot delete", "mnt", &["with", "-y"]).expect(0);
    b.umount("mnt");
    b.expect_sound();
}

/// A process in a mount namespace of its own, which goes with it.
struct Apart(Child);

impl Apart {
    fn new() -> Apart {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let apart = Apart(command.start().unwrap());
        let own = fs::metadata("/proc/self/ns/mnt").unwrap().ino();
        let path = format!("/proc/{}/ns/mnt", apart.0.id());
        eventually("it has a namespace of its own", || fs::metadata(&path).is_ok_and(|meta| meta.ino() != own));
        apart
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The names for which a watch on `dir` has had an event so far, and whether the directory itself had one.
struct Watch(std::os::fd::OwnedFd);

impl Watch {
    fn on(paths: &[&Path]) -> Watch {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let all = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        for path in paths {
            add_watch(&watch, *path, all).unwrap();
        }
        Watch(watch)
    }

    /// Each event as its name and what it says.
    fn events(&self) -> Vec<(String, rustix::fs::inotify::ReadFlags)> {
        let mut buf = [std::mem::MaybeUninit::uninit(); 16 << 10];
        let mut reader = rustix::fs::inotify::Reader::new(&self.0, &mut buf);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            events.push((name, event.events()));
        }
        events
    }
}

/// Editors, dev servers, sync programs and watchman learn of changes in no other way.
fn watchers_have_events(mnt: &Path, restore: impl Fn()) {
    use rustix::fs::inotify::ReadFlags;
    shell(
        "mkdir d/sub; echo more >> d/changed; echo new > d/added; rm d/gone; rm -r d/lost; ln -sf other d/link; ls -l d",
        mnt,
    );
    let file = mnt.join("d/changed");
    let watch = Watch::on(&[&mnt.join("d")]);
    let on_file = Watch::on(&[&file]);
    // Who only works there is in nobody's way.
    let stands = File::open(mnt.join("d/sub")).unwrap();
    let before = ["d/same", "d"].map(|path| fs::metadata(mnt.join(path)).unwrap());
    restore();
    drop(stands);
    let events = watch.events();
    let has = |name: &str, flag: ReadFlags| events.iter().any(|(at, what)| at == name && what.contains(flag));
    for (name, flag) in [
        ("changed", ReadFlags::ATTRIB),
        ("changed", ReadFlags::CLOSE_WRITE),
        ("added", ReadFlags::DELETE),
        ("sub", ReadFlags::DELETE),
        ("gone", ReadFlags::CREATE),
        ("lost", ReadFlags::CREATE),
    ] {
        assert!(has(name, flag), "{name} {flag:?}: {events:?}");
    }
    assert!(!has("same", ReadFlags::all()), "{events:?}");
    assert!(!on_file.events().is_empty(), "who watches the file itself");
    // And nothing was done for that.
    assert_eq!(read(&file), "changed\n");
    assert_eq!((read(&mnt.join("d/gone")), read(&mnt.join("d/lost/in"))), ("gone\n".to_owned(), "in\n".to_owned()));
    assert!(!mnt.join("d/added").exists() && !mnt.join("d/sub").exists());
    assert_eq!(fs::metadata(mnt.join("d/same")).unwrap().ctime_nsec(), before[0].ctime_nsec());
    let times = ["d", "d/changed", "d/gone"].map(|path| {
        let meta = fs::metadata(mnt.join(path)).unwrap();
        (meta.mtime(), meta.mtime_nsec(), meta.nlink())
    });
    assert_eq!((times[1].2, times[2].2, before[0].nlink()), (1, 1, 1));
    append(&file, "again\n");
    assert_eq!(read(&file), "changed\nagain\n");
}

const WATCHED: &str =
    "mkdir -p d/lost; for f in changed gone same; do echo $f > d/$f; done; echo in > d/lost/in; ln -s same d/link";

#[test]
fn who_watches_a_folder_hears_of_a_restore_and_is_not_in_its_way() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let mnt = b.at("mnt");
    shell(WATCHED, &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    let before = facts(&mnt);
    for line in [&["s", "-y"][..], &["s", "/d", "-y"], &["s", "-y"]] {
        watchers_have_events(&mnt, || {
            assert!(!b.of("snapshot restore", "mnt", line).expect(0).stderr.contains("look again"));
        });
        b.of("snapshot restore", "mnt", &["s", "-y"]).expect(0);
        assert_eq!(facts(&mnt), before);
    }
    b.umount("mnt");
    b.expect_sound();
    b.mount("mnt", &[]).expect(0);
    assert_eq!(facts(&mnt), before);
    b.umount("mnt");
}

/// It has nothing in the upper any more that could say when it changed.
#[test]
fn what_an_overlay_shows_of_its_lower_again_is_in_the_next_incremental_backup() {
    let Some(o) = overlay() else { return };
    let (mnt, stamp) = (o.bench.path("mnt"), o.bench.path("stamp"));
    let ctime = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    };
    let mtime = |path: &str| fs::metadata(mnt.join(path)).unwrap().modified().unwrap();
    snapshot(&o, "s");
    let alike = ["d/a", "h", "."].map(|path| ctime(&mnt.join(path)));
    let mtimes = ["f", "d/e/deep", "g"].map(mtime);
    shell("echo evil >> f; echo evil > d/e/deep; rm g", &mnt);
    let wait = || std::thread::sleep(Duration::from_millis(12));
    wait();
    fs::write(&stamp, "the backup").unwrap();
    wait();
    restore(&o, &["s", "-y"]).expect(0);
    let check = || {
        for path in ["f", "d/e/deep", "g"] {
            assert!(ctime(&mnt.join(path)) > ctime(&stamp), "{path}");
        }
        assert_eq!(["f", "d/e/deep", "g"].map(mtime), mtimes);
        assert_eq!(["d/a", "h"].map(|path| ctime(&mnt.join(path))), alike[..2]);
        assert_eq!(
            ["f", "g"].map(|path| read(&mnt.join(path))),
            ["f", "g"].map(|name| format!("{name} of the lower\n"))
        );
    };
    check();
    let told = ["f", "d/e/deep", "g", "d/e", "d"].map(|path| ctime(&mnt.join(path)));
    o.bench.run(["umount", "mnt"]).expect(0);
    o.bench.run(["mount", "lower", "mnt", "--upper", "up"]).expect(0);
    check();
    assert_eq!(["f", "d/e/deep", "g", "d/e", "d"].map(|path| ctime(&mnt.join(path))), told);
    shell("rm h", &mnt);
    restore(&o, &["s", "-y", "--touch"]).expect(0);
    assert!(mtime("h") > fs::metadata(&stamp).unwrap().modified().unwrap());
    o.bench.run(["umount", "mnt"]).expect(0);
    o.bench.run(["volume", "check", "up"]).expect(0);
}

#[test]
fn who_watches_a_folder_of_an_overlay_hears_of_a_restore() {
    let Some(o) = overlay() else { return };
    let mnt = o.bench.path("mnt");
    shell(WATCHED, &mnt);
    snapshot(&o, "s");
    watchers_have_events(&mnt, || drop(restore(&o, &["s", "-y"]).expect(0)));
    o.bench.run(["umount", "mnt"]).expect(0);
    o.bench.run(["volume", "check", "up"]).expect(0);
}

/// A folder `lower` below, and a volume `up` for what is changed.
fn overlay() -> Option<Points> {
    let points = Points::new(&["mnt"])?;
    let lower = points.bench.path("lower");
    fs::create_dir_all(lower.join("d/e")).unwrap();
    for name in ["d/a", "d/e/deep", "f", "g", "h"] {
        fs::write(lower.join(name), format!("{name} of the lower\n")).unwrap();
    }
    points.bench.run(["mount", "lower", "mnt", "--upper", "up"]).expect(0);
    Some(points)
}

fn restore(points: &Points, args: &[&str]) -> Ran {
    points.bench.run(["snapshot", "restore", "mnt"].iter().chain(args))
}

fn snapshot(points: &Points, name: &str) {
    points.bench.run(["snapshot", "create", "mnt", name]).expect(0);
}

#[test]
fn an_overlay_is_set_back_in_its_place() {
    let Some(o) = overlay() else { return };
    let mnt = o.bench.path("mnt");
    let id = mount_id(&mnt);
    let untouched = facts(&mnt);
    snapshot(&o, "first");
    shell("echo more >> f; echo made > made; mkdir own; echo x > own/x; rm h; mv d/e moved; ln made own/linked", &mnt);
    let changed = facts(&mnt);
    snapshot(&o, "second");
    // Used, and the same in both states: to read, to write, to stand in.
    let mut reads = File::open(mnt.join("g")).unwrap();
    let mut writes = OpenOptions::new().read(true).write(true).open(mnt.join("d/a")).unwrap();
    let stands = File::open(mnt.join("d")).unwrap();
    for (name, want) in [("first", &untouched), ("second", &changed), ("first", &untouched), ("second", &changed)] {
        let held = path_only(&mnt.join("f"));
        restore(&o, &[name, "-y"]).expect(0);
        assert_eq!(&facts(&mnt), want, "{name}");
        assert_eq!(mount_id(&mnt), id);
        assert_eq!(errno(held.metadata()), Some(libc::ESTALE), "it is not what it was");
        let mut text = String::new();
        reads.rewind().unwrap();
        reads.read_to_string(&mut text).unwrap();
        assert_eq!(text, "g of the lower\n");
        let a = rustix::fs::openat(&stands, "a", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        a.expect("it stays");
        shell("echo again >> f; cat f; ls -lR . > /dev/null; ls h made moved own/x 2>/dev/null || true", &mnt);
    }
    // A file that is open and changes is in the way; so is one of the lower that would go.
    writes.write_all(b"D").unwrap();
    writes.sync_all().unwrap();
    assert_eq!(read(&mnt.join("d/a")), "D/a of the lower\n", "what is written by it is found by its path");
    restore(&o, &["first", "-y"]).expect(7).says("/d/a would change, and is open on");
    drop(writes);
    restore(&o, &["first", "-y"]).expect(0);
    let open = File::open(mnt.join("h")).unwrap();
    restore(&o, &["second", "-y"]).expect(7).says("/h would change, and is open on");
    drop(open);
    restore(&o, &["second", "-y"]).expect(0);
    assert_eq!(facts(&mnt), changed);
    drop((reads, stands));
    o.bench.run(["umount", "mnt"]).expect(0);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "nothing went beneath");
    o.bench.run(["volume", "check", "up"]).expect(0);
    o.bench.run(["mount", "lower", "mnt", "--upper", "up"]).expect(0);
    assert_eq!(facts(&mnt), changed);
    o.bench.run(["umount", "mnt"]).expect(0);
}

#[test]
fn what_another_namespace_has_as_well_is_set_back_for_both() {
    if !is_root("it mounts in a namespace, or in a mount") {
        return;
    }
    let Some(o) = overlay() else { return };
    let mnt = o.bench.path("mnt");
    snapshot(&o, "s");
    fs::write(mnt.join("g"), "changed").unwrap();
    let id = mount_id(&mnt);
    let apart = Apart::new();
    restore(&o, &["s", "-y"]).expect(0);
    assert_eq!((mount_id(&mnt), read(&mnt.join("g"))), (id, "g of the lower\n".to_owned()));
    let there = format!("/proc/{}/root{}/g", apart.0.id(), mnt.display());
    assert_eq!(read(Path::new(&there)), "g of the lower\n");
    drop(apart);
    o.bench.run(["umount", "mnt"]).expect(0);
}

/// Restores beside all that takes and waits for the kernel's locks: none waits for ever, and nothing of before shows after the last.
fn restores_beside_everything(mnt: &Path, restore: impl Fn(&[&str]) -> Ran) {
    let ends = AtomicBool::new(false);
    let before = facts(mnt);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let ends = &ends;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !ends.load(SeqCst) {
                    // So that files are closed now and then: those that are open are in the way.
                    std::thread::sleep(Duration::from_millis(5));
                    let place = mnt.join(["d", "d/e", "new", ""][rng.below(4) as usize]);
                    let (one, other) = (place.join(format!("f{}", rng.below(3))), place.join("other"));
                    let done = match seed {
                        0 => fs::write(&one, "some text"),
                        1 => fs::read_dir(&place).map(|dir| dir.for_each(|entry| drop(entry.map(|e| e.metadata())))),
                        2 => fs::read(&one).map(drop).or_else(|_| fs::rename(&one, &other)),
                        _ => match rng.below(4) {
                            0 => fs::create_dir(mnt.join("new")),
                            1 => fs::remove_dir_all(mnt.join("new")),
                            2 => fs::remove_file(&other),
                            _ => File::create_new(&one).map(drop),
                        },
                    };
                    let lost = [libc::EIO, libc::ENOTCONN, libc::ECONNABORTED];
                    let code = errno(done);
                    assert!(!code.is_some_and(|code| lost.contains(&code)), "{code:?} at {}", one.display());
                }
            });
        }
        for round in 0..25 {
            let ran = restore(&["s", "-y"]);
            assert!([Some(0), Some(7)].contains(&ran.code), "round {round}: {:?} {}", ran.code, ran.stderr);
        }
        ends.store(true, SeqCst);
    });
    restore(&["s", "-y"]).expect(0);
    assert_eq!(facts(mnt), before);
}

#[test]
fn restores_of_a_volume_go_on_beside_everything() {
    let Some(b) = Boxed::new() else { return };
    b.mount("mnt", &[]).expect(0);
    let (mnt, id) = (b.at("mnt"), mount_id(&b.at("mnt")));
    shell("mkdir -p d/e; echo one > d/f0; echo two > d/e/f1; echo three > f2", &mnt);
    b.of("snapshot create", "mnt", &["s"]).expect(0);
    restores_beside_everything(&mnt, |args| b.of("snapshot restore", "mnt", args));
    assert_eq!(mount_id(&mnt), id);
    b.umount("mnt");
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "nothing went beneath");
    b.expect_sound();
}

#[test]
fn restores_of_an_overlay_go_on_beside_everything() {
    let Some(o) = overlay() else { return };
    let (mnt, id) = (o.bench.path("mnt"), mount_id(&o.bench.path("mnt")));
    shell("echo one > d/f0; echo two > d/e/f1; echo three > f2", &mnt);
    snapshot(&o, "s");
    restores_beside_everything(&mnt, |args| restore(&o, args));
    assert_eq!(mount_id(&mnt), id);
    o.bench.run(["umount", "mnt"]).expect(0);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "nothing went beneath");
    o.bench.run(["volume", "check", "up"]).expect(0);
}
