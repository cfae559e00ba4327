//! A store that keeps all of POSIX, mounted: what the vault's mount cannot show. Needs `/dev/fuse`; see
//! `common::fuse_usable`.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use adit_core::engine::EngineOptions;
use adit_mount::{MountOptions, Until};
use adit_testkit::model::{Limits, MemoryStore};
use adit_testkit::ops::{Plan, fuzz_path};
use common::{Mounted, fuse_usable, is_root, refuse_under_ci};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const LABEL: &str = "security.selinux";
/// Another user and group than those who mount.
const OTHER: u32 = 65534;

/// As a volume: whole pages are taken as they come, and nobody else changes anything.
fn limits() -> Limits {
    Limits {
        unit_len_bytes: 4096,
        buffer_writes: false,
        stable_cookies: true,
        whiteouts: is_root(),
        ..Limits::default()
    }
}

fn mounted(kernel_writeback: bool) -> Mounted<MemoryStore> {
    let ttl = Duration::from_secs(3600);
    let options = EngineOptions {
        attr_ttl: ttl,
        entry_ttl: ttl,
        negative_ttl: ttl,
        kernel_writeback,
        ..EngineOptions::default()
    };
    let mount = MountOptions { allow_other: is_root(), suid: is_root(), dev: is_root(), ..MountOptions::default() };
    Mounted::attached(MemoryStore::new(limits()), options, Until::default(), &mount)
}

/// Whether the test can run; it needs a second user where `root` is set.
fn usable(test: &str, root: bool) -> bool {
    if root && !is_root() {
        refuse_under_ci(test, "only root can be another user, too");
        return false;
    }
    fuse_usable(test)
}

/// Runs a shell script in `dir` as another user; whether it succeeded.
fn other_user(dir: &Path, script: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-ec", script]).current_dir(dir).uid(OTHER).gid(OTHER);
    shell.stderr(std::process::Stdio::null()).status().expect("runs sh").success()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stat").mode() & 0o7777
}

/// Its permission bits as the kernel knows them, which asks for nothing that it has: what it would execute the file with.
fn known_mode(path: &Path) -> u32 {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), rustix::fs::StatxFlags::MODE).expect("statx");
    u32::from(stat.stx_mode) & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

/// The bytes of an ACL: tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entries = entries
        .iter()
        .flat_map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    [2, 0, 0, 0].into_iter().chain(entries).collect()
}

#[test]
fn random_operations_agree_with_the_model() {
    if !usable("model", false) {
        return;
    }
    for kernel_writeback in [false, true] {
        let mounted = mounted(kernel_writeback);
        fuzz_path(&Plan { seeds: 6, ops: 250, limits: limits() }, mounted.root());
        mounted.end();
    }
}

#[test]
fn names_of_one_inode_share_all_of_it() {
    if !usable("links", false) {
        return;
    }
    let mounted = mounted(false);
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, b"one").expect("writes");
    fs::hard_link(&a, &b).expect("links");
    let (first, second) = (fs::metadata(&a).expect("stat"), fs::metadata(&b).expect("stat"));
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    assert_eq!(second.nlink(), 2);
    set_mode(&b, 0o600);
    OpenOptions::new().append(true).open(&a).expect("opens").write_all(b" two").expect("appends");
    assert_eq!((mode(&a), fs::read(&b).expect("reads")), (0o600, b"one two".to_vec()));
    let open = File::open(&a).expect("opens");
    fs::remove_file(&a).expect("unlinks");
    assert_eq!(fs::metadata(&b).expect("stat").nlink(), 1);
    fs::remove_file(&b).expect("unlinks");
    assert_eq!(open.metadata().expect("stat").nlink(), 0);
    let mut buf = [0; 7];
    open.read_exact_at(&mut buf, 0).expect("reads what has no name");
    assert_eq!(&buf, b"one two");
    let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    let linked = rustix::fs::linkat(CWD, by_descriptor.as_str(), CWD, &b, AtFlags::SYMLINK_FOLLOW);
    assert_eq!(linked, Err(Errno::NOENT), "what lost its last name gets none again");
    drop(open);
    mounted.end();
}

#[test]
fn what_the_kernel_knows_is_not_asked_again() {
    if !usable("warm requests", false) {
        return;
    }
    for kernel_writeback in [false, true] {
        let mounted = mounted(kernel_writeback);
        let dir = mounted.path("d");
        fs::create_dir(&dir).expect("makes");
        for n in 0..500 {
            fs::write(dir.join(format!("f{n}")), b"text").expect("writes");
        }
        // As `ls -l` does: names, attributes, the label, and whether there is an ACL.
        let list = || {
            let entries = fs::read_dir(&dir).expect("lists");
            let names = entries.map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"));
            let listed: BTreeSet<String> = names.collect();
            for name in &listed {
                let path = dir.join(name);
                fs::symlink_metadata(&path).expect("stat");
                assert_eq!(xattr(&path, ACCESS), Err(Errno::NODATA));
            }
            listed
        };
        assert_eq!(list().len(), 500);
        // Times that reading has made uncertain are asked for once.
        list();
        let asked = || {
            let mut asked = mounted.handle.requests_by_kind();
            // Nobody waits for these: some may come late.
            asked.retain(|(kind, _)| !["release", "forget"].contains(kind));
            asked
        };
        let before = asked();
        assert_eq!(list().len(), 500);
        assert_eq!(asked(), before);
        // A close asks, so that it fails if nobody is there any more.
        fs::read(dir.join("f0")).expect("reads");
        let asked = asked();
        let count = |name: &str| asked.iter().find(|(asked, _)| *asked == name).map_or(0, |(_, count)| *count);
        assert_eq!((count("flush") > 0, count("opendir")), (true, 0), "{asked:?}");
        // What the mount itself changes shows at once.
        fs::remove_file(dir.join("f7")).expect("unlinks");
        fs::rename(dir.join("f8"), dir.join("g8")).expect("renames");
        fs::write(dir.join("new"), b"").expect("writes");
        let listed = list();
        assert_eq!(listed.len(), 500);
        assert!(["g8", "new"].iter().all(|name| listed.contains(*name)) && !listed.contains("f8"));
        mounted.end();
    }
}

#[test]
fn a_label_is_kept_and_its_absence_is_said_once_for_all() {
    if !usable("labels", true) {
        return;
    }
    let mounted = mounted(false);
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, b"").expect("writes");
    fs::write(&b, b"").expect("writes");
    set_xattr(&a, LABEL, b"system_u:object_r:tmp_t:s0").expect("sets");
    assert_eq!(xattr(&a, LABEL).expect("reads"), b"system_u:object_r:tmp_t:s0");
    // EOPNOTSUPP keeps `ls -l` from asking each file.
    let has_selinux = Path::new("/sys/fs/selinux").exists();
    let absent = if has_selinux { Errno::NODATA } else { Errno::OPNOTSUPP };
    assert_eq!(xattr(&b, LABEL), Err(absent));
    assert_eq!(xattr(&b, "security.other"), Err(Errno::NODATA));
    mounted.end();
}

#[test]
fn nodes_of_every_kind_are_made_and_renamed() {
    if !usable("nodes", true) {
        return;
    }
    let mounted = mounted(false);
    let perm = Mode::from_raw_mode(0o640);
    let device = rustix::fs::makedev(1, 3);
    for (name, kind, dev) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, device),
        ("block", FileType::BlockDevice, rustix::fs::makedev(259, 1025)),
        ("file", FileType::RegularFile, 0),
    ] {
        let path = mounted.path(name);
        rustix::fs::mknodat(CWD, &path, kind, perm, dev).expect(name);
        let stat = rustix::fs::lstat(&path).expect("stat");
        assert_eq!((FileType::from_raw_mode(stat.st_mode), stat.st_rdev, stat.st_nlink), (kind, dev, 1), "{name}");
        assert_eq!(rustix::fs::mknodat(CWD, &path, kind, perm, dev), Err(Errno::EXIST), "{name}");
    }
    // The kernel opens them by itself.
    File::create(mounted.path("null")).expect("opens the device").write_all(b"gone").expect("writes");
    let listener = std::os::unix::net::UnixListener::bind(mounted.path("bound")).expect("binds");
    std::os::unix::net::UnixStream::connect(mounted.path("bound")).expect("connects");
    drop(listener);
    fs::rename(mounted.path("fifo"), mounted.path("pipe")).expect("renames");
    assert!(fs::symlink_metadata(mounted.path("pipe")).expect("stat").file_type().is_fifo());
    mounted.end();
}

#[test]
fn a_rename_leaves_a_whiteout() {
    if !usable("whiteout", true) {
        return;
    }
    let mounted = mounted(false);
    fs::write(mounted.path("a"), b"content").expect("writes");
    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, mounted.path(from), CWD, mounted.path(to), flags);
    rename("a", "b", RenameFlags::WHITEOUT).expect("renames");
    assert_eq!(fs::read(mounted.path("b")).expect("reads"), b"content");
    let whiteout = fs::symlink_metadata(mounted.path("a")).expect("stat");
    assert!(whiteout.file_type().is_char_device());
    assert_eq!((whiteout.rdev(), whiteout.uid()), (0, 0));
    assert_eq!(rename("b", "a", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("b", "a", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(Errno::INVAL));
    rename("b", "a", RenameFlags::EXCHANGE).expect("exchanges");
    assert_eq!(fs::read(mounted.path("a")).expect("reads"), b"content");
    mounted.end();
}

#[test]
fn extended_attributes_are_kept() {
    if !usable("extended attributes", false) {
        return;
    }
    let mounted = mounted(false);
    let file = mounted.path("f");
    fs::write(&file, b"x").expect("writes");
    let ctime = fs::metadata(&file).map(|m| (m.ctime(), m.ctime_nsec())).expect("stat");
    assert_eq!(xattr(&file, "user.a"), Err(Errno::NODATA));
    assert_eq!(rustix::fs::lsetxattr(&file, "user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
    rustix::fs::lsetxattr(&file, "user.a", b"1", XattrFlags::CREATE).expect("makes");
    assert_eq!(rustix::fs::lsetxattr(&file, "user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    set_xattr(&file, "user.empty", b"").expect("sets");
    let large = vec![7; 60_000];
    set_xattr(&file, "user.large", &large).expect("sets");
    assert_eq!(xattr(&file, "user.large"), Ok(large));
    assert_eq!((xattr(&file, "user.a"), xattr(&file, "user.empty")), (Ok(b"1".to_vec()), Ok(Vec::new())));
    assert_eq!(rustix::fs::lgetxattr(&file, "user.large", &mut [0; 9][..]), Err(Errno::RANGE));
    assert!(fs::metadata(&file).map(|m| (m.ctime(), m.ctime_nsec())).expect("stat") > ctime, "ctime moved");
    let mut list = vec![0; 1000];
    let len = rustix::fs::llistxattr(&file, &mut list[..]).expect("lists");
    let names: BTreeSet<&[u8]> = list[..len].split_inclusive(|&b| b == 0).collect();
    assert_eq!(names, BTreeSet::from([&b"user.a\0"[..], b"user.empty\0", b"user.large\0"]));
    rustix::fs::lremovexattr(&file, "user.a").expect("removes");
    assert_eq!(rustix::fs::lremovexattr(&file, "user.a"), Err(Errno::NODATA));
    assert_eq!(set_xattr(&file, "system.unknown", b""), Err(Errno::OPNOTSUPP));
    // They follow the inode, not the name.
    fs::hard_link(&file, mounted.path("g")).expect("links");
    fs::rename(&file, mounted.path("h")).expect("renames");
    assert_eq!(xattr(&mounted.path("g"), "user.empty"), Ok(Vec::new()));
    mounted.end();
}

#[test]
fn the_trusted_namespace_is_roots() {
    if !usable("trusted attributes", true) {
        return;
    }
    let mounted = mounted(false);
    let file = mounted.path("f");
    fs::write(&file, b"x").expect("writes");
    set_mode(&file, 0o666);
    set_xattr(&file, "trusted.secret", b"1").expect("sets");
    set_xattr(&file, "user.open", b"1").expect("sets");
    let mut list = [0; 100];
    assert_eq!(rustix::fs::llistxattr(&file, &mut list[..]), Ok(b"trusted.secret\0user.open\0".len()));
    let listed = "python3 -c 'import os; assert os.listxattr(\"f\") == [\"user.open\"]'";
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    assert!(!has_python || other_user(mounted.root(), listed));
    mounted.end();
}

#[test]
fn acls_are_enforced_and_agree_with_the_mode() {
    if !usable("ACLs", true) {
        return;
    }
    let mounted = mounted(true);
    let file = mounted.path("f");
    fs::write(&file, b"for some").expect("writes");
    set_mode(&file, 0o600);
    assert!(!other_user(mounted.root(), "cat f"), "the mode keeps others out");
    let list = |other: u16, mask: u16| {
        acl(&[(1, 6, u32::MAX), (2, other, OTHER), (4, 0, u32::MAX), (16, mask, u32::MAX), (32, 0, u32::MAX)])
    };
    set_xattr(&file, ACCESS, &list(4, 6)).expect("sets an ACL");
    assert_eq!(mode(&file), 0o660, "the mask shows as the group's bits");
    assert!(other_user(mounted.root(), "cat f"), "the ACL lets this one in");
    assert!(!other_user(mounted.root(), "echo >> f"), "and lets it only read");
    set_mode(&file, 0o600);
    assert_eq!(xattr(&file, ACCESS), Ok(list(4, 0)), "chmod sets the mask");
    assert!(!other_user(mounted.root(), "cat f"), "which keeps it out again");
    let plain = acl(&[(1, 6, u32::MAX), (4, 4, u32::MAX), (32, 4, u32::MAX)]);
    set_xattr(&file, ACCESS, &plain).expect("sets an ACL");
    assert_eq!((mode(&file), xattr(&file, ACCESS)), (0o644, Err(Errno::NODATA)), "the mode says all of it");
    assert!(set_xattr(&file, ACCESS, b"no list").is_err());

    let dir = mounted.path("d");
    fs::create_dir(&dir).expect("makes");
    let passed_on = acl(&[(1, 7, u32::MAX), (2, 7, OTHER), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]);
    set_xattr(&dir, DEFAULT, &passed_on).expect("sets a default ACL");
    // With a umask of its own, which a default ACL takes the place of.
    let script = "umask 077; echo > d/f; mkdir d/sub; echo > plain; mknod d/pipe p";
    assert!(Command::new("sh").args(["-ec", script]).current_dir(mounted.root()).status().expect("runs").success());
    assert_eq!((mode(&dir.join("f")), mode(&mounted.path("plain"))), (0o660, 0o600));
    assert_eq!((mode(&dir.join("sub")), mode(&dir.join("pipe"))), (0o770, 0o660));
    assert_eq!(xattr(&dir.join("sub"), DEFAULT), Ok(passed_on));
    set_mode(&dir, 0o755);
    assert!(other_user(mounted.root(), "echo >> d/f; touch d/sub/new"));
    assert_eq!(set_xattr(&file, DEFAULT, &plain), Err(Errno::ACCESS), "only directories pass on");
    mounted.end();
}

/// As on every filesystem of the kernel: libacl sets an empty ACL on whatever it restores.
#[test]
fn an_acl_that_is_not_there_is_removed_without_an_error() {
    if !usable("ACLs", true) {
        return;
    }
    let mounted = mounted(false);
    let (file, dir) = (mounted.path("f"), mounted.path("d"));
    fs::write(&file, b"f").expect("writes");
    fs::create_dir(&dir).expect("makes");
    let empty = acl(&[]);
    for (path, name) in [(&file, ACCESS), (&dir, ACCESS), (&dir, DEFAULT)] {
        assert_eq!(rustix::fs::lremovexattr(path, name), Ok(()), "{name} of {path:?}");
        assert_eq!(set_xattr(path, name, &empty), Ok(()), "an empty {name} of {path:?}");
    }
    let list = acl(&[(1, 7, u32::MAX), (2, 7, OTHER), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]);
    set_xattr(&dir, DEFAULT, &list).expect("sets");
    assert_eq!(rustix::fs::lremovexattr(&dir, DEFAULT), Ok(()));
    assert_eq!(xattr(&dir, DEFAULT), Err(Errno::NODATA));
    assert_eq!(rustix::fs::lremovexattr(&dir, "user.absent"), Err(Errno::NODATA), "others are told of");
    mounted.end();
}

#[test]
fn set_id_bits_go_when_others_change_a_file() {
    if !usable("set-id bits", true) {
        return;
    }
    for kernel_writeback in [false, true] {
        let mounted = mounted(kernel_writeback);
        let file = mounted.path("f");
        fs::write(&file, [b'x'; 9000]).expect("writes");
        let dropped_by = |script: &str| {
            set_mode(&file, 0o6777);
            assert_eq!(known_mode(&file), 0o6777);
            assert!(other_user(mounted.root(), script), "{script}");
            assert_eq!(known_mode(&file), 0o777, "{script}, write-back {kernel_writeback}");
            assert_eq!(mode(&file), 0o777, "{script}, write-back {kernel_writeback}");
        };
        dropped_by("echo >> f");
        dropped_by("truncate -s 5000 f");
        dropped_by("fallocate -l 10000 f");
        dropped_by("fallocate -p -o 0 -l 4096 f");
        dropped_by("dd if=/dev/zero of=f bs=4k count=1 conv=notrunc oflag=direct");
        dropped_by(": > f");
        set_mode(&file, 0o6777);
        OpenOptions::new().append(true).open(&file).expect("opens").write_all(b"y").expect("writes");
        assert_eq!(mode(&file), 0o6777, "root keeps them");
        std::os::unix::fs::chown(&file, Some(OTHER), None).expect("changes the owner");
        assert_eq!(mode(&file), 0o777, "a change of the owner never does");
        // A set-group-id bit without execution by the group is a mark for locks. It stays with what a member of the group changes, as on a local
        // filesystem since Linux 6.2.
        for (group, expected) in [(OTHER, 0o2767), (0, 0o767)] {
            for script in ["echo >> f", "truncate -s 5000 f", "fallocate -l 10000 f", ": > f"] {
                std::os::unix::fs::chown(&file, Some(OTHER), Some(group)).expect("changes the owner");
                set_mode(&file, 0o2767);
                assert!(other_user(mounted.root(), script), "{script}");
                assert_eq!(known_mode(&file), expected, "{script}, group {group}, write-back {kernel_writeback}");
                assert_eq!(mode(&file), expected, "{script}, group {group}, write-back {kernel_writeback}");
            }
        }
        // Nobody executes what he wrote as somebody else.
        fs::copy("/usr/bin/id", &file).expect("copies");
        set_mode(&file, 0o6777);
        std::os::unix::fs::chown(&file, Some(0), Some(0)).expect("changes the owner");
        set_mode(&file, 0o6777);
        assert!(other_user(mounted.root(), "test $(./f -u) = 0"));
        let own = format!("dd if=/usr/bin/id of=f bs=1M conv=notrunc; test $(./f -u) = {OTHER}");
        assert!(other_user(mounted.root(), &own), "write-back {kernel_writeback}");
        // A file capability goes with what anybody writes.
        let rights = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for how in ["conv=notrunc", "conv=notrunc oflag=direct"] {
            set_xattr(&file, "security.capability", &rights).expect("sets a capability");
            let written = format!("dd if=/dev/zero of=f bs=4k count=1 {how}");
            assert!(other_user(mounted.root(), &written), "{how}");
            assert_eq!(xattr(&file, "security.capability"), Err(Errno::NODATA), "{how}");
        }
        let dir = mounted.path("d");
        fs::create_dir(&dir).expect("makes");
        set_mode(&dir, 0o6777);
        std::os::unix::fs::chown(&dir, None, Some(OTHER)).expect("changes the group");
        assert_eq!(mode(&dir), 0o6777, "those of a directory stay");
        fs::create_dir(dir.join("sub")).expect("makes");
        fs::write(dir.join("file"), b"").expect("makes");
        let sub = fs::metadata(dir.join("sub")).expect("stat");
        assert_eq!((sub.gid(), sub.mode() & 0o2000), (OTHER, 0o2000), "the group and the bit are passed on");
        assert_eq!(fs::metadata(dir.join("file")).expect("stat").gid(), OTHER);
        mounted.end();
    }
}

/// What `HANDLE_KILLPRIV_V2` is for: without it each write would be preceded by a question for `security.capability`.
#[test]
fn writes_do_not_ask_for_extended_attributes() {
    if !usable("questions of a write", false) {
        return;
    }
    for kernel_writeback in [false, true] {
        let mounted = mounted(kernel_writeback);
        let file = File::create(mounted.path("f")).expect("makes");
        file.write_all_at(b"x", 0).expect("writes");
        let asked = mounted.engine.stats().ops.xattrs;
        (0..100).for_each(|at| file.write_all_at(b"x", at).expect("writes"));
        assert_eq!(mounted.engine.stats().ops.xattrs, asked, "write-back {kernel_writeback}");
        drop(file);
        mounted.end();
    }
}

#[test]
fn a_sticky_directory_protects_its_entries() {
    if !usable("sticky directory", true) {
        return;
    }
    let mounted = mounted(false);
    let dir = mounted.path("d");
    fs::create_dir(&dir).expect("makes");
    set_mode(&dir, 0o1777);
    fs::write(dir.join("roots"), b"").expect("writes");
    assert!(other_user(&dir, "echo > own; mv own other; rm other"));
    assert!(!other_user(&dir, "rm -f roots") && !other_user(&dir, "mv roots away"));
    mounted.end();
}

#[test]
fn data_and_holes_are_found_before_the_kernel_has_written_them() {
    if !usable("data and holes", false) {
        return;
    }
    for kernel_writeback in [false, true] {
        let mounted = mounted(kernel_writeback);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(mounted.path("f")).expect("makes");
        let seek = |from| rustix::fs::seek(&file, from);
        file.write_all_at(b"data", 1 << 20).expect("writes");
        assert_eq!(seek(SeekFrom::Data(0)), Ok(1 << 20));
        assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
        assert_eq!(seek(SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4));
        file.write_all_at(b"more", 64 << 10).expect("writes");
        assert_eq!(seek(SeekFrom::Data(0)), Ok(64 << 10), "write-back {kernel_writeback}");
        assert_eq!(seek(SeekFrom::Data(2 << 20)), Err(Errno::NXIO));

        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, mode, 64 << 10, 4096).expect("punches");
        assert_eq!(seek(SeekFrom::Data(0)), Ok(1 << 20));
        rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 1 << 20, 2 << 20).expect("zeroes");
        assert_eq!(file.metadata().expect("stat").len(), 3 << 20);
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 3 << 20, 4096).expect("keeps the size");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 3 << 20, 4096).expect("extends");
        assert_eq!(file.metadata().expect("stat").len(), (3 << 20) + 4096);
        let mut buf = [1; 4];
        file.read_exact_at(&mut buf, 1 << 20).expect("reads");
        assert_eq!(buf, [0; 4]);
        let collapsed = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(collapsed, Err(Errno::OPNOTSUPP));
        drop(file);
        mounted.end();
    }
}

#[test]
fn many_who_seek_and_write_do_not_wait_for_each_other_for_ever() {
    if !usable("seeking from many threads", false) {
        return;
    }
    let mounted = mounted(true);
    // More than there are threads to serve them, each with unwritten pages.
    std::thread::scope(|scope| {
        for i in 0..24u64 {
            let path = mounted.path(&format!("f{i}"));
            scope.spawn(move || {
                let file = File::create(path).expect("makes");
                for round in 0..20 {
                    let at = (round * 16 + i % 16) << 12;
                    file.write_all_at(&[7; 4096], at).expect("writes");
                    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(at)), Ok(at));
                }
            });
        }
    });
    mounted.end();
}

#[test]
fn appending_writers_never_overwrite_each_other() {
    if !usable("O_APPEND", false) {
        return;
    }
    for kernel_writeback in [false, true] {
        let mounted = mounted(kernel_writeback);
        let path = mounted.path("log");
        std::thread::scope(|scope| {
            for i in 0..4u8 {
                let path = &path;
                scope.spawn(move || {
                    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("opens");
                    (0..100).for_each(|_| file.write_all(&[b'a' + i; 37]).expect("appends"));
                });
            }
        });
        let content = fs::read(&path).expect("reads");
        assert_eq!(content.len(), 4 * 100 * 37);
        assert!(content.chunks(37).all(|line| line.iter().all(|&b| b == line[0])));
        mounted.end();
    }
}

#[test]
fn a_listing_goes_on_where_it_was_while_the_directory_changes() {
    if !usable("stable cookies", false) {
        return;
    }
    const FILES: usize = 3000;
    let mounted = mounted(false);
    let dir = mounted.path("d");
    fs::create_dir(&dir).expect("makes");
    (0..FILES).for_each(|i| drop(File::create(dir.join(format!("f{i}"))).expect("makes")));
    let mut seen = BTreeSet::new();
    for (at, entry) in fs::read_dir(&dir).expect("lists").enumerate() {
        let name = entry.expect("entry").file_name().into_string().expect("text");
        assert!(seen.insert(name.clone()), "{name} comes twice");
        if at % 10 == 0 {
            drop(File::create(dir.join(format!("new{at}"))).expect("makes"));
            fs::remove_file(dir.join(format!("new{}", at.saturating_sub(10)))).ok();
        }
    }
    (0..FILES).for_each(|i| assert!(seen.contains(&format!("f{i}")), "f{i} was there all the time"));
    mounted.end();
}

/// Why there is no handle by which the file could be opened again, if there is none.
fn handle_of(path: &Path) -> Option<i32> {
    const LEN: u32 = 128;
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    // The length of a handle, its type, and itself.
    let mut handle = [0_u32; 2 + LEN as usize / 4];
    handle[0] = LEN;
    let mut mount_id = 0_i32;
    // SAFETY: a system call with a string that ends, a handle with room for as many bytes as it says, and a number, which all outlive it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount_id,
            0,
        )
    };
    (done != 0).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}

#[test]
fn what_the_transport_lacks_is_said() {
    if !usable("what is missing", false) {
        return;
    }
    let mounted = mounted(false);
    for _ in 0..2 {
        let made = rustix::fs::open(mounted.root(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
        assert_eq!(made.err(), Some(Errno::OPNOTSUPP), "programs then make a file with a name");
    }
    let exclusive = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(mounted.root());
    assert!(exclusive.is_err());
    assert_eq!(
        handle_of(mounted.root()),
        Some(libc::EOPNOTSUPP),
        "who would open by handles hears that there are none"
    );
    let table = fs::read_to_string("/proc/self/mounts").expect("reads");
    let options = table.lines().find(|line| line.contains(&*mounted.root().to_string_lossy())).expect("is mounted");
    assert!(options.contains(",noatime,"), "reading changes no time, as the mount table says: {options}");
    mounted.end();
}
