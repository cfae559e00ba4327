//! What programs do with files on a mounted vault, and the faults of other programs that mount such vaults: each of
//! those that can be seen through a mount is a test here or in `mounted.rs`.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags};

use common::{PASSWORD, Start, pattern};
use mounts::{Mounts, SmallDisk, is_root, mount_line};

/// Bytes of cleartext in a chunk.
const CHUNK: usize = 32 << 10;
/// Of ciphertext, with AES-GCM: header, and what a chunk adds.
const HEADER: usize = 68;
const OVERHEAD: usize = 28;

fn mounted(options: &[&str]) -> Option<Mounts> {
    let m = Mounts::new()?;
    m.mount(options).expect(0);
    Some(m)
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}

fn errno(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

/// The only content file of the vault.
fn only_content(m: &Mounts) -> PathBuf {
    let files = m.bench.content_files();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}

#[test]
fn files_have_their_sizes_and_contents_after_ls_with_both_ciphers() {
    for cipher in ["siv-gcm", "siv-ctrmac"] {
        let Some(m) = Mounts::with(&["--cipher", cipher]) else { return };
        m.mount(&[]).expect(0);
        let lens = [0, 1, 4095, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 5 * CHUNK + 17];
        for len in lens {
            fs::write(m.at(&format!("len-{len}")), pattern(len)).unwrap();
        }
        m.remount(&[]);
        let listed = Command::new("ls").arg("-l").arg(m.mnt()).start_and_read().unwrap();
        assert!(listed.status.success());
        let listed = String::from_utf8(listed.stdout).unwrap();
        for len in lens {
            let line = listed.lines().find(|line| line.ends_with(&format!(" len-{len}"))).unwrap();
            assert_eq!(line.split_whitespace().nth(4), Some(len.to_string().as_str()), "{line}");
            assert_eq!(fs::read(m.at(&format!("len-{len}"))).unwrap(), pattern(len));
        }
        m.umount();
    }
}

#[test]
fn many_reads_of_one_handle_at_once() {
    let Some(m) = mounted(&[]) else { return };
    let content = pattern(8 * CHUNK + 9);
    fs::write(m.at("f"), &content).unwrap();
    m.remount(&[]);
    let file = File::open(m.at("f")).unwrap();
    std::thread::scope(|scope| {
        for first in 0..6 {
            let (file, content) = (&file, &content);
            scope.spawn(move || {
                for at in (first * 1000..content.len()).step_by(7919) {
                    let mut bytes = vec![0; 9000.min(content.len() - at)];
                    file.read_exact_at(&mut bytes, at as u64).unwrap();
                    assert_eq!(bytes, content[at..at + bytes.len()]);
                }
            });
        }
    });
    drop(file);
    m.umount();
}

#[test]
fn a_second_descriptor_sees_what_the_first_wrote() {
    let Some(m) = mounted(&[]) else { return };
    fs::write(m.at("f"), pattern(CHUNK)).unwrap();
    let reader = File::open(m.at("f")).unwrap();
    let mut bytes = [0; 3];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    let writer = OpenOptions::new().write(true).open(m.at("f")).unwrap();
    writer.write_all_at(b"new", 0).unwrap();
    writer.write_all_at(b"end", CHUNK as u64).unwrap();
    for (at, expected) in [(0, b"new"), (CHUNK, b"end")] {
        reader.read_exact_at(&mut bytes, at as u64).unwrap();
        assert_eq!(&bytes, expected);
    }
    assert_eq!(reader.metadata().unwrap().len(), CHUNK as u64 + 3);
    drop((reader, writer));
    m.umount();
}

#[test]
fn an_open_file_survives_unlink_replacement_and_moves() {
    let Some(m) = mounted(&[]) else { return };
    for long in [String::new(), "-long".repeat(40)] {
        fs::create_dir(m.at("parent")).unwrap();
        let paths = ["unlinked", "replaced", "moved", "parent/inside"].map(|name| m.at(&format!("{name}{long}")));
        // New and still open: nothing of them was flushed or closed yet.
        let open = |path: &PathBuf| {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).open(path).unwrap();
            file.write_all_at(b"before", 0).unwrap();
            file
        };
        let mut files: Vec<File> = paths.iter().map(open).collect();
        fs::remove_file(&paths[0]).unwrap();
        fs::write(m.at("other"), "other").unwrap();
        fs::rename(m.at("other"), &paths[1]).unwrap();
        fs::rename(&paths[2], m.at("elsewhere")).unwrap();
        fs::rename(m.at("parent"), m.at("renamed")).unwrap();
        for file in &mut files {
            file.write_all_at(b"after", 6 + CHUNK as u64).unwrap();
            file.sync_all().unwrap();
            let mut expected = b"before".to_vec();
            expected.resize(6 + CHUNK, 0);
            expected.extend_from_slice(b"after");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            assert!(bytes == expected);
            assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
        }
        drop(files);
        assert_eq!(fs::metadata(&paths[0]).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read_to_string(&paths[1]).unwrap(), "other");
        for path in [m.at("elsewhere"), m.at(&format!("renamed/inside{long}"))] {
            assert!(fs::read(&path).unwrap().ends_with(b"after"), "{}", path.display());
            fs::remove_file(path).unwrap();
        }
        fs::remove_dir(m.at("renamed")).unwrap();
        fs::remove_file(&paths[1]).unwrap();
    }
    m.umount();
    m.expect_sound();
}

#[test]
fn exchange_and_noreplace() {
    let Some(m) = mounted(&[]) else { return };
    let long = "long".repeat(50);
    for (a, b) in [("a", "b"), ("a", &long[..]), (&long[..], &long[4..]), ("sub/a", "b")] {
        fs::create_dir(m.at("sub")).unwrap();
        let (a, b) = (m.at(a), m.at(b));
        fs::write(&a, "from").unwrap();
        fs::write(&b, "to, and longer").unwrap();
        let error = rename(&a, &b, RenameFlags::NOREPLACE).unwrap_err();
        assert_eq!(errno(&error), Some(libc::EEXIST));
        rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
        let contents = |a: &Path, b: &Path| [a, b].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(contents(&a, &b), ["to, and longer", "from"]);
        m.remount(&[]);
        assert_eq!(contents(&a, &b), ["to, and longer", "from"]);
        let missing = m.at("missing");
        assert_eq!(errno(&rename(&a, &missing, RenameFlags::EXCHANGE).unwrap_err()), Some(libc::ENOENT));
        rename(&a, &missing, RenameFlags::NOREPLACE).unwrap();
        // A directory and a file change places.
        fs::create_dir(&a).unwrap();
        fs::write(a.join("inside"), "inside").unwrap();
        rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_to_string(&a).unwrap(), "from");
        assert_eq!(fs::read_to_string(b.join("inside")).unwrap(), "inside");
        fs::remove_dir_all(&b).unwrap();
        [a, missing].iter().for_each(|path| fs::remove_file(path).unwrap());
        fs::remove_dir(m.at("sub")).unwrap();
    }
    m.umount();
    m.expect_sound();
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let Some(m) = mounted(&[]) else { return };
    fs::write(m.at("f"), "f").unwrap();
    assert_eq!(errno(&fs::hard_link(m.at("f"), m.at("g")).unwrap_err()), Some(libc::EPERM));
    for kind in [FileType::Fifo, FileType::Socket] {
        let made = rustix::fs::mknodat(CWD, m.at("node"), kind, Mode::RUSR, 0);
        assert_eq!(made, Err(rustix::io::Errno::PERM), "{kind:?}");
    }
    let socket = std::os::unix::net::UnixListener::bind(m.at("socket")).unwrap_err();
    assert_eq!(errno(&socket), Some(libc::EPERM));
    let file = OpenOptions::new().write(true).open(m.at("f")).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&file, punch, 0, 1), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(fs::read_to_string(m.at("f")).unwrap(), "f");
    assert_eq!(fs::read_dir(m.mnt()).unwrap().count(), 1);
    drop(file);
    m.umount();
    m.expect_sound();
}

/// Programs that copy what is listed take an error for a reason to stop.
#[test]
fn a_store_without_attributes_lists_none() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::write(m.at("f"), "f").unwrap();
    for path in [m.mnt(), m.at("f")] {
        for _ in 0..2 {
            assert_eq!(rustix::fs::listxattr(&path, &mut [0; 64][..]), Ok(0), "{path:?}");
        }
    }
    m.umount();
}

#[test]
fn seeking_allocating_and_copying_ranges() {
    let Some(m) = mounted(&[]) else { return };
    let content = pattern(3 * CHUNK + 11);
    fs::write(m.at("f"), &content).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(m.at("f")).unwrap();
    let seek = |whence, at: u64| {
        // SAFETY: a plain system call on an open descriptor.
        let to = unsafe { libc::lseek(std::os::fd::AsRawFd::as_raw_fd(&file), at as i64, whence) };
        if to < 0 { Err(io::Error::last_os_error()) } else { Ok(to as u64) }
    };
    let end = content.len() as u64;
    assert_eq!(seek(libc::SEEK_DATA, 5).unwrap(), 5);
    assert_eq!(seek(libc::SEEK_HOLE, 5).unwrap(), end);
    for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
        assert_eq!(errno(&seek(whence, end).unwrap_err()), Some(libc::ENXIO));
    }
    rustix::fs::fallocate(&file, FallocateFlags::empty(), end, CHUNK as u64).unwrap();
    assert_eq!(file.metadata().unwrap().len(), end + CHUNK as u64);
    let copy = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(m.at("copy")).unwrap();
    let (mut from, mut to) = (100, 7);
    while from < end {
        let len = (end - from) as usize;
        assert_ne!(rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), len).unwrap(), 0);
    }
    drop(copy);
    let mut expected = vec![0; 7];
    expected.extend_from_slice(&content[100..]);
    assert!(fs::read(m.at("copy")).unwrap() == expected);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(&content) && bytes[content.len()..].iter().all(|&b| b == 0));
    let space = rustix::fs::statvfs(m.mnt()).unwrap();
    let host = rustix::fs::statvfs(m.bench.vault()).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, host.f_blocks * host.f_frsize);
    assert_eq!(space.f_namemax, 255);
    drop(file);
    m.umount();
}

#[test]
fn direct_and_odd_sizes() {
    let Some(m) = mounted(&[]) else { return };
    let mut expected: Vec<u8> = Vec::new();
    let mut open = OpenOptions::new();
    let file =
        open.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT).open(m.at("f")).unwrap();
    let mut at = 0;
    for len in [1, 511, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 1000] {
        let bytes = pattern(len);
        file.write_all_at(&bytes, at as u64).unwrap();
        expected.resize(at, 0);
        expected.extend_from_slice(&bytes);
        at += len / 2;
        let mut read = vec![0; expected.len()];
        let start = expected.len() - bytes.len();
        file.read_exact_at(&mut read[start..], start as u64).unwrap();
        assert!(read[start..] == bytes, "{len} bytes at {start}");
    }
    drop(file);
    assert!(fs::read(m.at("f")).unwrap() == expected);
    m.remount(&[]);
    assert!(fs::read(m.at("f")).unwrap() == expected);
    m.umount();
}

/// A listing that goes on while others create and remove: what stays is listed once, and each name at most once.
#[test]
fn listings_are_whole_while_the_directory_changes() {
    const STAYING: usize = 1500;
    let Some(m) = mounted(&["-o", "attr_timeout=0,entry_timeout=0"]) else { return };
    for n in 0..STAYING {
        File::create(m.at(&format!("staying-{n}"))).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                let path = m.at(&format!("passing-{}", n % 50));
                let _ = if n % 100 < 50 { File::create(path).map(drop) } else { fs::remove_file(path) };
            }
        });
        for _ in 0..6 {
            let mut names: BTreeMap<String, usize> = BTreeMap::new();
            for entry in fs::read_dir(m.mnt()).unwrap() {
                *names.entry(entry.unwrap().file_name().into_string().unwrap()).or_default() += 1;
            }
            let twice: Vec<_> = names.iter().filter(|(_, count)| **count != 1).collect();
            let staying = names.keys().filter(|name| name.starts_with("staying-")).count();
            if !twice.is_empty() || staying != STAYING {
                done.store(true, Ordering::Relaxed);
                panic!("listed more than once: {twice:?}; {staying} of {STAYING} staying");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    m.umount();
}

/// One byte more changes the last chunk and nothing else, whatever the length.
#[test]
fn appending_rewrites_the_last_chunk_only() {
    const CHUNKS: usize = 200;
    let Some(m) = mounted(&[]) else { return };
    fs::write(m.at("f"), pattern(CHUNKS * CHUNK + 5)).unwrap();
    m.remount(&[]);
    let stored = only_content(&m);
    let before = fs::read(&stored).unwrap();
    OpenOptions::new().append(true).open(m.at("f")).unwrap().write_all(b"!").unwrap();
    m.umount();
    let after = fs::read(&stored).unwrap();
    assert_eq!(after.len(), before.len() + 1);
    let kept = HEADER + CHUNKS * (CHUNK + OVERHEAD);
    assert!(before[..kept] == after[..kept], "chunks before the last one were written again");
}

/// A damaged chunk costs that chunk: writing elsewhere in the file, or to it in part, destroys nothing more.
#[test]
fn writing_to_a_damaged_file_keeps_the_rest() {
    let Some(m) = mounted(&[]) else { return };
    let content = pattern(4 * CHUNK);
    fs::write(m.at("f"), &content).unwrap();
    m.umount();
    let stored = only_content(&m);
    let mut bytes = fs::read(&stored).unwrap();
    bytes[HEADER + (CHUNK + OVERHEAD) + 100] ^= 1;
    fs::write(&stored, &bytes).unwrap();
    m.mount(&[]).expect(0);
    let file = OpenOptions::new().read(true).write(true).open(m.at("f")).unwrap();
    let mut part = vec![0; CHUNK];
    assert_eq!(errno(&file.read_exact_at(&mut part, CHUNK as u64).unwrap_err()), Some(libc::EIO));
    let in_damaged = file.write_all_at(b"x", CHUNK as u64 + 7).and_then(|()| file.sync_all());
    assert_eq!(errno(&in_damaged.unwrap_err()), Some(libc::EIO), "the rest of that chunk is not known");
    file.write_all_at(b"written", 3 * CHUNK as u64 + 1).unwrap();
    // What is still not stored is told again; the bytes beside it are stored all the same.
    assert_eq!(errno(&file.sync_all().unwrap_err()), Some(libc::EIO));
    drop(file);
    m.remount(&[]);
    let file = File::open(m.at("f")).unwrap();
    for chunk in [0, 2, 3] {
        file.read_exact_at(&mut part, (chunk * CHUNK) as u64).unwrap();
        let mut expected = content[chunk * CHUNK..(chunk + 1) * CHUNK].to_vec();
        if chunk == 3 {
            expected[1..8].copy_from_slice(b"written");
        }
        assert!(part == expected, "chunk {chunk} is not what it was");
    }
    drop(file);
    m.umount();
}

/// An entry that cannot be read is an error, and is there again when it can be read again: no error is remembered as
/// absence.
#[test]
fn a_lookup_error_is_not_absence() {
    let Some(m) = mounted(&["-o", "negative_timeout=60"]) else { return };
    fs::create_dir(m.at("dir")).unwrap();
    fs::write(m.at("dir/f"), "f").unwrap();
    fs::write(m.at("beside"), "beside").unwrap();
    m.umount();
    let found = Command::new("find").arg(m.bench.vault()).args(["-name", "dir.c9r"]).start_and_read().unwrap();
    let dir_file = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim_end());
    let id = fs::read(&dir_file).unwrap();
    fs::write(&dir_file, vec![b'x'; 5000]).unwrap();
    m.mount(&["-o", "negative_timeout=60"]).expect(0);
    for _ in 0..2 {
        assert_eq!(errno(&fs::metadata(m.at("dir")).unwrap_err()), Some(libc::EIO));
    }
    assert_eq!(fs::read_to_string(m.at("beside")).unwrap(), "beside");
    fs::write(&dir_file, id).unwrap();
    assert_eq!(fs::read_to_string(m.at("dir/f")).unwrap(), "f");
    m.umount();
}

#[test]
fn modes_are_kept_and_others_are_kept_out() {
    let Some(m) = mounted(&[]) else { return };
    let line = mount_line(&m.mnt()).unwrap();
    assert!(!line.contains("allow_other") && line.contains("default_permissions"), "{line}");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(m.at("f")).unwrap();
    let mode = |path: &str| fs::metadata(m.at(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("f"), 0o600);
    fs::set_permissions(m.at("f"), fs::Permissions::from_mode(0o751)).unwrap();
    m.remount(&[]);
    assert_eq!(mode("f"), 0o751);
    if is_root("another user's view") {
        let mut other = Command::new("setpriv");
        other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "ls"]).arg(m.mnt());
        assert!(!other.start_and_read().unwrap().status.success(), "another user can look into the mount");
    }
    m.umount();
}

/// A file that moves to another directory is the same file on the host: nothing is copied.
#[test]
fn a_move_between_directories_copies_nothing() {
    let Some(m) = mounted(&[]) else { return };
    ["a", "b"].iter().for_each(|dir| fs::create_dir(m.at(dir)).unwrap());
    fs::write(m.at("a/f"), pattern(3 * CHUNK)).unwrap();
    let stored = |m: &Mounts| {
        let path = only_content(m);
        (fs::metadata(&path).unwrap().ino(), fs::read(&path).unwrap())
    };
    let before = stored(&m);
    fs::rename(m.at("a/f"), m.at("b/g")).unwrap();
    assert!(before == stored(&m), "the content was written again");
    assert_eq!(fs::read(m.at("b/g")).unwrap(), pattern(3 * CHUNK));
    m.umount();
}

/// Nothing in the environment makes the password's key cheaper to guess.
#[test]
fn scrypt_is_as_strong_as_the_official_one() {
    let bench = common::Bench::bare();
    let mut command = bench.command();
    for weaker in ["SCRYPT_N", "ADIT_SCRYPT_COST", "ADIT_TEST_SCRYPT", "ADIT_FAST_KDF", "ADIT_TEST_SCALE"] {
        command.env(weaker, "2");
    }
    command.args(["vault", "init", bench.vault_str(), "--password-file", bench.password_str()]);
    common::run(command, b"").expect(0);
    let text = fs::read(bench.vault().join("masterkey.cryptomator")).unwrap();
    let masterkey: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((masterkey["scryptCostParam"].as_u64(), masterkey["scryptBlockSize"].as_u64()), (Some(32768), Some(8)));
}

/// An unmount that finds no space for the journal is refused, and works once there is some.
#[test]
fn an_unmount_without_space_for_the_journal_stays_mounted() {
    let Some(m) = Mounts::new() else { return };
    if !is_root("a small disk") {
        return;
    }
    let disk = SmallDisk::mount(m.bench.path("small"), "400k");
    m.mount(&["--state-dir", disk.0.to_str().unwrap()]).expect(0);
    let old = pattern(3 * CHUNK);
    fs::write(m.at("f"), &old).unwrap();
    File::open(m.at("f")).unwrap().sync_all().unwrap();
    let filler = disk.0.join("filler");
    let filled = File::create(&filler).and_then(|file| (&file).write_all(&pattern(1 << 20)));
    assert_eq!(errno(&filled.unwrap_err()), Some(libc::ENOSPC));
    let file = OpenOptions::new().write(true).open(m.at("f")).unwrap();
    let told = file.write_all_at(b"new", 5).and_then(|()| file.sync_all());
    assert_eq!(errno(&told.unwrap_err()), Some(libc::ENOSPC));
    drop(file);
    m.umount_with(&[]).expect(8).says("it stays mounted");
    assert!(fs::read(m.at("f")).unwrap() == old, "what was there is there");
    fs::remove_file(filler).unwrap();
    fs::write(m.at("g"), "there is space again").unwrap();
    m.umount();
    m.mount(&[]).expect(0);
    assert!(fs::read(m.at("f")).unwrap() == old);
    assert_eq!(fs::read_to_string(m.at("g")).unwrap(), "there is space again");
    m.umount();
    m.expect_sound();
}

/// The host's disk is full: the writer hears of it, what was there stays readable, and with space again all goes on.
#[test]
fn a_full_disk_is_told_and_loses_nothing() {
    let Some(m) = Mounts::new() else { return };
    if !is_root("a small disk") {
        return;
    }
    let disk = SmallDisk::mount(m.bench.path("disk"), "3m");
    let vault = disk.0.join("vault").to_str().unwrap().to_owned();
    m.bench.run_with(["vault", "init", &vault, "--password-stdin"], PASSWORD.as_bytes()).expect(0);
    let mnt = m.bench.str("mnt");
    let line = ["mount", &vault, &mnt, "--password-file", m.bench.password_str()];
    m.bench.run(line).expect(0);
    let old = pattern(10 * CHUNK);
    fs::write(m.at("old"), &old).unwrap();
    let file = File::create(m.at("big")).unwrap();
    let chunk = pattern(CHUNK);
    let filled = (0..200).try_for_each(|_| (&file).write_all(&chunk)).and_then(|()| file.sync_all());
    assert_eq!(errno(&filled.unwrap_err()), Some(libc::ENOSPC));
    drop(file);
    // Overwriting in place needs no space of the disk.
    let file = OpenOptions::new().write(true).open(m.at("old")).unwrap();
    file.write_all_at(b"in place", 5).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut expected = old;
    expected[5..13].copy_from_slice(b"in place");
    assert!(fs::read(m.at("old")).unwrap() == expected);
    let big = fs::read(m.at("big")).unwrap();
    assert!(
        big.chunks(CHUNK).all(|part| part == &chunk[..part.len()]),
        "what is there of the file is what was written"
    );
    fs::remove_file(m.at("big")).unwrap();
    fs::write(m.at("new"), &chunk).unwrap();
    m.umount();
    m.bench.run(["vault", "check", &vault, "--password-file", m.bench.password_str()]).expect(0);
    m.bench.run(line).expect(0);
    assert!(fs::read(m.at("old")).unwrap() == expected);
    assert!(fs::read(m.at("new")).unwrap() == chunk);
    m.umount();
}
