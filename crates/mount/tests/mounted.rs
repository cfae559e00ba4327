//! The front end on a real mount, above a store in memory. Needs `/dev/fuse`; see `common::fuse_usable`.

mod common;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use adit_core::engine::EngineOptions;
use adit_mount::control::{MountInfo, Registry};
use adit_mount::{Ended, MountError, MountOptions, Session, Until, mountpoint};
use common::{MemStore, Mounted, await_that, fuse_usable, is_root, refuse_under_ci};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RawDir, RenameFlags};
use rustix::io::Errno;

fn minutes() -> EngineOptions {
    let ttl = Duration::from_secs(600);
    EngineOptions { attr_ttl: ttl, entry_ttl: ttl, negative_ttl: ttl, ..EngineOptions::default() }
}

/// Names of a directory, `.` and `..` included, as getdents gives them.
fn raw_names(dir: &Path) -> Vec<OsString> {
    let dir = File::open(dir).expect("opens");
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        names.push(std::ffi::OsStr::from_bytes(entry.expect("entry").file_name().to_bytes()).to_owned());
    }
    names
}

#[test]
fn it_is_mounted_under_its_own_name_and_unmounted_cleanly() {
    if !fuse_usable("mount") {
        return;
    }
    let mounted = Mounted::new(MemStore::new());
    let entry = mountpoint::find(mounted.root()).expect("in the mount table");
    assert_eq!((entry.fs_type.as_str(), entry.source.as_bytes()), ("fuse.adit", &b"memory, test"[..]));
    let stat = rustix::fs::statvfs(mounted.root()).expect("statvfs");
    assert_eq!((stat.f_bsize, stat.f_blocks, stat.f_namemax), (4096, 1 << 20, 255));
    let store = mounted.store.clone();
    assert_eq!(mounted.end(), Ended::Unmounted);
    assert_eq!(store.syncs(), 1, "the engine was shut down exactly once");
}

/// rclone answers every call about extended attributes with `EIO`. No disk does.
#[test]
fn an_error_of_attributes_is_their_lack_where_a_program_serves_the_filesystem() {
    if !fuse_usable("attributes") {
        return;
    }
    let mounted = Mounted::new(MemStore::new());
    let served = File::open(mounted.root()).expect("opens");
    let host = tempfile::tempfile().expect("made");
    let of = |file: &File, e| adit_core::host::attribute_error(file, e);
    assert_eq!((of(&served, Errno::IO), of(&host, Errno::IO)), (Errno::OPNOTSUPP, Errno::IO));
    assert_eq!(of(&served, Errno::PERM), Errno::PERM);
}

#[test]
fn a_listing_has_each_name_once_and_the_dots() {
    if !fuse_usable("listing") {
        return;
    }
    let store = MemStore::new();
    store.fill(1, 3000);
    let mounted = Mounted::new(store);
    let dir = mounted.path("d0000");
    for pass in 0..2 {
        let names = raw_names(&dir);
        assert_eq!(names.len(), 3002, "pass {pass}");
        assert_eq!(&names[..2], [".", ".."]);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3002, "pass {pass}");
        // Attributes of what was listed come with it or after it, and agree.
        for entry in fs::read_dir(&dir).expect("lists") {
            let entry = entry.expect("entry");
            let meta = entry.metadata().expect("stat");
            assert!(meta.is_file() && entry.file_type().expect("type").is_file());
            assert_eq!(meta.blksize(), 32 << 10);
        }
    }
    fs::remove_file(dir.join("f00007")).expect("unlink");
    assert!(!raw_names(&dir).contains(&"f00007".into()));
    mounted.end();
}

#[test]
fn one_unreadable_entry_does_not_hide_its_directory() {
    if !fuse_usable("listing with corruption") {
        return;
    }
    let store = MemStore::new();
    for name in ["a", "corrupt", "b"] {
        store.plant(name, b"x");
    }
    let mounted = Mounted::new(store);
    // Twice: the kernel asks for plain and for plus listings in turn.
    for _ in 0..2 {
        let names: BTreeSet<OsString> =
            fs::read_dir(mounted.root()).expect("lists").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(names, ["a", "b", "corrupt"].map(OsString::from).into());
        let error = fs::symlink_metadata(mounted.path("corrupt")).expect_err("corrupt");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "corruption is not absence");
    }
    assert_eq!(fs::read(mounted.path("a")).expect("reads"), b"x");
    mounted.end();
}

/// The issue's test: walk 100,000 entries, drop the kernel's caches, find the inode table empty again.
#[test]
fn lookups_are_counted_exactly() {
    const DIRS: usize = 100;
    const FILES: usize = 999;
    if !fuse_usable("nlookup") {
        return;
    }
    if !is_root() {
        return refuse_under_ci("nlookup", "dropping the kernel's caches needs root");
    }
    let store = MemStore::new();
    store.fill(DIRS, FILES);
    let mounted = Mounted::with(store, minutes(), Until::default());
    let mut seen = 0;
    for dir in fs::read_dir(mounted.root()).expect("lists") {
        let dir = dir.expect("entry").path();
        seen += 1;
        for (at, file) in fs::read_dir(&dir).expect("lists").enumerate() {
            let file = file.expect("entry");
            fs::symlink_metadata(file.path()).expect("stat");
            seen += 1;
            // Looked up again by another path, opened, and missed: each counts, or must not, in its own way.
            if at % 100 == 0 {
                drop(File::open(dir.join(".").join(file.file_name())).expect("opens"));
                fs::symlink_metadata(dir.join("absent")).expect_err("absent");
            }
        }
    }
    assert_eq!(seen, DIRS * (FILES + 1));
    assert_eq!(mounted.engine.known_inodes(), seen + 1, "all and the root are known");
    assert_eq!(mounted.store.known(), seen);
    await_that("the inode table empties", || {
        fs::write("/proc/sys/vm/drop_caches", "2").expect("root may drop caches");
        mounted.engine.known_inodes() == 1
    });
    await_that("the store is told", || mounted.store.known() == 0);
    // All of it can be found again.
    fs::symlink_metadata(mounted.path("d0042/f00042")).expect("still there");
    mounted.end();
}

#[test]
fn files_are_made_changed_renamed_and_removed() {
    if !fuse_usable("operations") {
        return;
    }
    let mounted = Mounted::new(MemStore::new());
    let path = |name: &str| mounted.path(name);
    fs::create_dir(path("d")).expect("mkdir");
    let content: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(path("d/f"), &content).expect("write");
    assert!(fs::read(path("d/f")).expect("read") == content);
    let file = OpenOptions::new().read(true).write(true).open(path("d/f")).expect("open");
    file.write_all_at(b"here", 100_001).expect("pwrite");
    file.sync_all().expect("fsync");
    let mut four = [0u8; 4];
    file.read_exact_at(&mut four, 100_001).expect("pread");
    assert_eq!(&four, b"here");
    file.set_len(5).expect("truncate");
    assert_eq!((file.metadata().expect("fstat").len(), fs::metadata(path("d/f")).expect("stat").len()), (5, 5));

    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 9).expect("fallocate");
    assert_eq!(file.metadata().expect("fstat").len(), 9);
    let refused = rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4);
    assert_eq!(refused, Err(Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(3)), Ok(3));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(3)), Ok(9));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(10)), Err(Errno::NXIO));

    std::os::unix::fs::symlink("d/f", path("link")).expect("symlink");
    assert_eq!(fs::read_link(path("link")).expect("readlink"), Path::new("d/f"));
    assert_eq!(fs::read(path("link")).expect("through the link").len(), 9);

    fs::write(path("other"), b"other").expect("write");
    let rename = |from: &str, to: &str, how| rustix::fs::renameat_with(CWD, path(from), CWD, path(to), how);
    assert_eq!(rename("other", "d/f", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("other", "d/f", RenameFlags::EXCHANGE), Ok(()));
    assert_eq!(fs::read(path("d/f")).expect("exchanged"), b"other");
    assert_eq!(fs::metadata(path("other")).expect("exchanged").len(), 9);
    assert_eq!(rename("other", "d/f", RenameFlags::WHITEOUT), Err(Errno::INVAL));
    fs::rename(path("d/f"), path("other")).expect("replaces");
    assert_eq!(fs::read(path("other")).expect("replaced"), b"other");
    assert_eq!(fs::metadata(path("d/f")).expect_err("moved").kind(), ErrorKind::NotFound);

    // The first descriptor still has its file, which has no name any more.
    file.write_all_at(b"!", 0).expect("write to an unlinked file");
    assert_eq!(fs::remove_dir(path("d")).map_err(|e| e.kind()), Ok(()));
    drop(file);
    mounted.end();
}

#[test]
fn create_exclusive_truncate_and_append_mean_what_open_says() {
    if !fuse_usable("open flags") {
        return;
    }
    let mounted = Mounted::new(MemStore::new().shared());
    let path = mounted.path("f");
    fs::write(&path, b"0123456789").expect("write");
    let exists = OpenOptions::new().write(true).create_new(true).open(&path);
    assert_eq!(exists.map(drop).map_err(|e| e.kind()), Err(ErrorKind::AlreadyExists));
    let mut append = OpenOptions::new().append(true).open(&path).expect("append");
    append.write_all(b"ab").expect("write");
    assert_eq!(fs::read(&path).expect("read"), b"0123456789ab");
    drop(OpenOptions::new().write(true).truncate(true).open(&path).expect("truncate"));
    assert_eq!(fs::metadata(&path).expect("stat").len(), 0);
    append.write_all(b"cd").expect("append at the new end");
    assert_eq!(fs::read(&path).expect("read"), b"cd");

    // A name that the kernel remembers as absent, made meanwhile by someone else.
    let late = mounted.path("late");
    assert!(!late.exists());
    mounted.store.plant("late", b"theirs");
    let mut opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&late).expect("opens");
    let mut found = String::new();
    opened.read_to_string(&mut found).expect("reads");
    assert_eq!(found, "theirs");
    opened.seek(SeekFrom::Start(0)).expect("seek");
    drop(opened);
    // Likewise with O_TRUNC, which the kernel leaves to whoever answers its create.
    assert!(!mounted.path("later").exists());
    mounted.store.plant("later", b"theirs");
    drop(File::create(mounted.path("later")).expect("opens"));
    assert_eq!(mounted.store.content("later"), b"");
    drop(append);
    mounted.end();
}

#[test]
fn what_a_store_cannot_hold_gets_a_clean_errno() {
    if !fuse_usable("errors") {
        return;
    }
    let mounted = Mounted::new(MemStore::new());
    fs::write(mounted.path("f"), b"x").expect("write");
    let errno = |result: std::io::Result<()>| result.expect_err("refused").raw_os_error();
    assert_eq!(errno(fs::hard_link(mounted.path("f"), mounted.path("g"))), Some(libc::EPERM));
    let fifo = rustix::fs::mknodat(CWD, mounted.path("p"), rustix::fs::FileType::Fifo, 0o600.into(), 0);
    assert_eq!(fifo, Err(Errno::PERM));
    rustix::fs::mknodat(CWD, mounted.path("r"), rustix::fs::FileType::RegularFile, 0o640.into(), 0).expect("mknod");
    assert_eq!(fs::metadata(mounted.path("r")).expect("stat").mode() & 0o777, 0o640);
    let xattr = rustix::fs::setxattr(mounted.path("f"), "user.a", b"v", rustix::fs::XattrFlags::empty());
    assert_eq!(xattr, Err(Errno::OPNOTSUPP));
    let long = "n".repeat(256);
    assert_eq!(errno(fs::write(mounted.path(&long), b"")), Some(libc::ENAMETOOLONG));
    fs::write(mounted.path(&long[1..]), b"").expect("255 bytes");
    let file = File::open(mounted.path("f")).expect("open");
    assert_eq!(rustix::fs::ioctl_getflags(&file).map(drop), Err(Errno::NOTTY));
    drop(file);
    mounted.end();
}

#[test]
fn set_id_bits_go_when_another_user_writes() {
    if !fuse_usable("set-id bits") {
        return;
    }
    // Root lets nobody in; others need no other user.
    let open_to_all = MountOptions { allow_other: is_root(), ..MountOptions::default() };
    let mounted = Mounted::attached(MemStore::new(), EngineOptions::default(), Until::default(), &open_to_all);
    if is_root() {
        // The mountpoint is in a folder of root's own; the mount itself is open.
        fs::set_permissions(mounted.root(), fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let path = mounted.path("f");
    let set = || {
        fs::write(&path, b"x").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("chmod");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o6755);
    };
    let mode = || fs::metadata(&path).expect("stat").mode() & 0o7777;
    // chown clears them for everyone, root included.
    set();
    let me = (rustix::process::geteuid(), rustix::process::getegid());
    rustix::fs::chownat(CWD, &path, Some(me.0), Some(me.1), AtFlags::empty()).expect("chown");
    assert_eq!(mode(), 0o755);
    // A write and a truncation clear them, unless by root: so by nobody, where this is root.
    for (how, script) in [("write", "printf y >> \"$0\""), ("truncate", ": > \"$0\"")] {
        set();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(script).arg(&path).current_dir("/");
        if is_root() {
            shell.uid(65534).gid(65534);
        }
        assert!(shell.status().expect("runs").success(), "{how}");
        assert_eq!(mode(), 0o777, "{how}");
    }
    mounted.end();
}

/// Found by pjdfstest: with atomic O_TRUNC the file was cut before the kernel looked whether it runs.
#[test]
fn a_running_program_is_not_written_to() {
    if !fuse_usable("text busy") {
        return;
    }
    let mounted = Mounted::new(MemStore::new());
    let program = mounted.path("sleep");
    fs::copy("/bin/sleep", &program).expect("copies");
    let len = fs::metadata(&program).expect("stat").len();
    let mut running = Command::new(&program).arg("100").spawn().expect("runs");
    for flags in [libc::O_RDONLY | libc::O_TRUNC, libc::O_WRONLY, libc::O_WRONLY | libc::O_TRUNC, libc::O_RDWR] {
        let opened = rustix::fs::open(&program, OFlags::from_bits_retain(flags as u32), Mode::empty());
        assert_eq!(opened.map(drop), Err(Errno::TXTBSY));
        assert_eq!(fs::metadata(&program).expect("stat").len(), len);
    }
    running.kill().expect("kill");
    running.wait().expect("wait");
    mounted.end();
}

#[test]
fn a_panicking_store_gives_eio_and_the_mount_lives_on() {
    if !fuse_usable("panics") {
        return;
    }
    let store = MemStore::new();
    store.plant("bad", b"PANIC at the first read");
    store.plant("worse", b"CORRUPT");
    let mounted = Mounted::new(store);
    // More often than there are workers: each would be lost to a panic that got through.
    for n in 0..40 {
        let error = fs::metadata(mounted.path(&format!("panic{n}"))).expect_err("panics");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        let error = fs::read(mounted.path("bad")).expect_err("panics");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(fs::read(mounted.path("worse")).expect_err("corrupt").raw_os_error(), Some(libc::EIO));
    fs::write(mounted.path("good"), b"alive").expect("write");
    assert_eq!(fs::read(mounted.path("good")).expect("read"), b"alive");
    assert_eq!(mounted.end(), Ended::Unmounted);
}

#[test]
fn a_busy_mount_stays_and_a_lazy_end_loses_nothing() {
    if !fuse_usable("busy") {
        return;
    }
    let mut mounted = Mounted::new(MemStore::new());
    let mut file = File::create(mounted.path("f")).expect("create");
    file.write_all(b"first ").expect("write");
    assert!(matches!(mounted.handle.unmount(false), Err(MountError::Busy(_))));
    mounted.handle.unmount(true).expect("lazy");
    assert!(mountpoint::find(mounted.root()).is_none());
    assert!(matches!(adit_mount::umount(mounted.root(), false), Err(MountError::NotAMount(_))));
    file.write_all(b"second").expect("write after the detach");
    drop(file);
    assert_eq!(mounted.ended(), Ended::Unmounted);
    assert_eq!(mounted.store.content("f"), b"first second");
}

#[test]
fn an_idle_mount_goes_but_not_while_it_is_used() {
    if !fuse_usable("idle") {
        return;
    }
    let until = || Until { idle: Some(Duration::from_millis(300)), ..Until::default() };
    let mut mounted = Mounted::with(MemStore::new(), minutes(), until());
    let file = File::create(mounted.path("f")).expect("create");
    // Several idle times with an open handle and no request: others with the same limit, made later, come and go.
    for _ in 0..3 {
        let mut unused = Mounted::with(MemStore::new(), minutes(), until());
        assert_eq!(unused.ended(), Ended::Unmounted);
    }
    assert!(mountpoint::find(mounted.root()).is_some());
    drop(file);
    assert_eq!(mounted.ended(), Ended::Unmounted);
    assert!(mountpoint::find(mounted.root()).is_none());
}

#[test]
fn a_mount_is_controlled_through_its_socket() {
    if !fuse_usable("control") {
        return;
    }
    let mut mounted = Mounted::new(MemStore::new());
    let run = tempfile::tempdir().expect("folder");
    let registry = Registry::at(run.path().join("adit"));
    let info = MountInfo::new("memory", "memory", mounted.root(), false);
    let (handle, engine) = (mounted.handle.clone(), mounted.engine.clone());
    let registered = registry
        .register(&info, move |verb: &str, _: &serde_json::Value| match verb {
            "stats" => Some(Ok(serde_json::json!({"inodes": engine.known_inodes()}))),
            "umount" => Some(
                handle
                    .unmount(false)
                    .map(|()| serde_json::Value::Null)
                    .map_err(|e| adit_mount::control::ControlError::answer(e.kind(), e)),
            ),
            _ => None,
        })
        .expect("registers");
    assert_eq!(registry.list(), [info]);
    let call = |verb: &str| registry.call(mounted.handle.mountpoint(), verb, &serde_json::Value::Null);
    assert_eq!(call("stats").expect("stats")["inodes"], 1);
    let file = File::create(mounted.path("f")).expect("create");
    assert!(call("umount").expect_err("busy").to_string().contains("busy"));
    drop(file);
    // RELEASE follows close in its own time.
    await_that("umount", || call("umount").is_ok());
    assert_eq!(mounted.ended(), Ended::Unmounted);
    drop(registered);
    assert!(registry.list().is_empty());
}

/// Whoever asks for the end learns what the last flush said.
#[test]
fn a_failed_last_flush_is_reported() {
    if !fuse_usable("last flush") {
        return;
    }
    let mut mounted = Mounted::new(MemStore::new());
    mounted.store.fail_syncs();
    assert!(mounted.handle.outcome(Duration::ZERO).is_none(), "it goes on");
    await_that("unmount", || mounted.handle.unmount(false).is_ok());
    let told = mounted.handle.outcome(Duration::from_secs(60)).expect("ended").expect_err("failed");
    assert_eq!(told.kind(), adit_core::ErrorKind::NoSpace);
    assert_eq!(mounted.outcome().expect_err("failed").kind(), adit_core::ErrorKind::NoSpace);
}

/// Someone else changes a file that is open and cached here: it shows within the attribute timeout, whole.
#[test]
fn foreign_changes_reach_an_open_file() {
    if !fuse_usable("foreign changes") {
        return;
    }
    let ttl = Duration::from_millis(20);
    let options = EngineOptions { attr_ttl: ttl, entry_ttl: ttl, negative_ttl: ttl, ..EngineOptions::default() };
    let store = MemStore::new().shared();
    store.plant("f", &[b'a'; 5000]);
    let mounted = Mounted::with(store, options, Until::default());
    let open = File::open(mounted.path("f")).expect("open");
    let read = || {
        let mut content = vec![0; 20_000];
        let len = open.read_at(&mut content, 0).expect("read");
        content.truncate(len);
        content
    };
    assert_eq!(read(), [b'a'; 5000]);
    for (byte, len) in [(b'b', 5000), (b'c', 9000), (b'd', 100), (b'e', 12_000)] {
        mounted.store.replace("f", &vec![byte; len]);
        await_that("the new content", || {
            let seen = read();
            assert!(seen.iter().all(|&b| b != 0), "zeros where the file has none");
            seen == vec![byte; len]
        });
        // Content may show before the attributes have timed out.
        let stat = || fs::metadata(mounted.path("f")).expect("stat").len();
        await_that("the new length", || stat() == len as u64);
    }
    drop(open);
    mounted.end();
}

#[test]
fn a_small_file_is_in_the_kernel_before_it_is_read() {
    if !fuse_usable("content given at open") {
        return;
    }
    let store = MemStore::new().shared();
    let content: Vec<u8> = (0..32_768_u32).map(|i| (i % 251) as u8).collect();
    store.plant("small", &content[..5000]);
    store.plant("border", &content);
    store.plant("empty", b"");
    store.plant("large", &[content.clone(), content.clone()].concat());
    let mounted = Mounted::with(store, EngineOptions::default(), Until::default());
    let reads = || mounted.engine.stats().ops.reads;
    for (name, len) in [("small", 5000), ("border", 32_768), ("empty", 0)] {
        assert_eq!(fs::read(mounted.path(name)).expect("read"), content[..len], "{name}");
        assert_eq!(reads(), 0, "{name}");
    }
    // Neither one that was not read whole nor what a writer opens is given.
    let both = OpenOptions::new().read(true).write(true).open(mounted.path("large")).expect("open");
    let mut last = [0; 8];
    both.read_exact_at(&mut last, 65_528).expect("read");
    assert_eq!((last, reads() > 0), (content[32_760..].try_into().expect("8 bytes"), true));
    drop(both);
    mounted.end();
}

/// Through the pages of a kernel that drops them by itself, what was there before a write may show for a moment after it returned, also to who
/// wrote (decision 5): it is there when that one looks again, and at once for who asks the mount itself (O_DIRECT).
#[test]
fn who_opens_a_file_beside_its_first_reader_sees_what_was_written() {
    const LEN: usize = 5000;
    const CUT_LEN: usize = 50;
    if !fuse_usable("content given at open, beside writers") {
        return;
    }
    let store = MemStore::new().shared();
    for n in 0..200 {
        store.plant(&format!("f{n}"), &[b'a'; LEN]);
    }
    let mounted = Mounted::with(store, EngineOptions::default(), Until::default());
    for n in 0..200 {
        let path = mounted.path(&format!("f{n}"));
        let is_cut = n % 2 == 0;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    // It asks for the length and reads in several calls, and the kernel copies page by page: each may find the
                    // file cut, or not yet, whatever the one before has found. So on every file system.
                    let seen = fs::read(&path).expect("read").len();
                    let may_be = if is_cut { CUT_LEN..=LEN } else { LEN..=LEN };
                    assert!(may_be.contains(&seen), "{seen} bytes");
                });
            }
            scope.spawn(|| {
                let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
                file.write_all_at(&[b'b'; 100], 0).expect("write");
                let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
                let mut page = [0; 2 << 12];
                let aligned = page.as_ptr().align_offset(1 << 12);
                let page = &mut page[aligned..aligned + (1 << 12)];
                direct.read_exact_at(page, 0).expect("read");
                assert!(page[..100] == [b'b'; 100] && page[100..].iter().all(|b| *b == b'a'), "what the mount has");
                let mut seen = [0; 100];
                await_that("it sees what it wrote itself", || {
                    file.read_exact_at(&mut seen, 0).expect("read");
                    assert!(seen == [b'a'; 100] || seen == [b'b'; 100], "nobody wrote {seen:?}");
                    seen == [b'b'; 100]
                });
                if is_cut {
                    file.set_len(CUT_LEN as u64).expect("cut");
                    assert_eq!(file.metadata().expect("stat").len(), CUT_LEN as u64);
                }
            });
        });
        let len = if is_cut { CUT_LEN } else { LEN };
        let now = fs::read(&path).expect("read");
        assert_eq!((now.len(), now.iter().filter(|&&b| b == b'b').count()), (len, len.min(100)));
    }
    mounted.end();
}

#[test]
fn kernel_write_back_reaches_the_store() {
    if !fuse_usable("write-back") {
        return;
    }
    let options = EngineOptions { kernel_writeback: true, ..minutes() };
    let mut mounted = Mounted::with(MemStore::new(), options, Until::default());
    let path = mounted.path("f");
    let content: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&path, &content).expect("write");
    let file = OpenOptions::new().write(true).open(&path).expect("open for writing only");
    // The page around it must be read through a handle that was opened for writing.
    file.write_all_at(b"middle", 401_000).expect("pwrite");
    file.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH)).expect("utimens");
    assert_eq!(fs::metadata(&path).expect("stat").mtime(), 0);
    file.set_len(500_000).expect("truncate");
    file.write_all_at(b"dirty at the end", 600_000).expect("pwrite");
    let mut expected = content[..500_000].to_vec();
    expected[401_000..401_006].copy_from_slice(b"middle");
    expected.resize(600_000, 0);
    expected.extend_from_slice(b"dirty at the end");
    assert!(fs::read(&path).expect("read") == expected);
    // A signal's way out, with dirty pages in the kernel and the file open.
    mounted.handle.end();
    await_that("detach", || mountpoint::find(mounted.root()).is_none());
    drop(file);
    assert_eq!(mounted.ended(), Ended::Unmounted);
    assert!(mounted.store.content("f") == expected);
}

#[test]
fn a_bad_mountpoint_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = || adit_core::engine::Engine::new(std::sync::Arc::new(MemStore::new()), EngineOptions::default());
    let absent = folder.path().join("absent");
    let error = Session::mount(engine(), &absent, &MountOptions::default()).expect_err("absent");
    assert!(error.to_string().contains("absent"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("write");
    let error = Session::mount(engine(), &file, &MountOptions::default()).expect_err("not a folder");
    assert_eq!(error.kind(), adit_core::ErrorKind::NotDirectory);
}

#[test]
fn a_read_only_mount_refuses_changes() {
    if !fuse_usable("read-only") {
        return;
    }
    let store = MemStore::new();
    store.plant("f", b"content");
    let mounted = Mounted::with(store, EngineOptions { read_only: true, ..minutes() }, Until::default());
    assert_eq!(fs::read(mounted.path("f")).expect("read"), b"content");
    let error = fs::write(mounted.path("g"), b"").expect_err("read-only");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let flagged = OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(mounted.path("f"));
    assert_eq!(flagged.expect_err("read-only").raw_os_error(), Some(libc::EROFS));
    mounted.end();
}
