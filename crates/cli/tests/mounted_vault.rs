//! What a mounted vault promises to many users at once: lookup counts, readers beside writers, appends from several
//! processes, mappings, and changes by another client.

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, Caller, FileName, Ino, RenameFlags};
use adit_media::HostDirectory;
use adit_testkit::own_caller;
use adit_vault::format::{DirId, NameCipher};
use adit_vault::{OpenOptions as StoreOptions, VaultStore};

use common::{PASSWORD, Start, eventually, pattern};
use mounts::{Mounts, is_root};

/// Bytes of cleartext in a chunk.
const CHUNK: usize = 32 << 10;
/// Nothing is cached, so that another client's changes show at once.
const NO_CACHES: &[&str] = &["-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0"];

/// The vault as another client has it open, beside the mount.
fn other_client(m: &Mounts) -> VaultStore {
    let root = HostDirectory::open(&m.bench.vault()).unwrap();
    let keys = adit_vault::unlock(&root, PASSWORD).unwrap();
    let state = m.bench.path("other-state");
    fs::create_dir_all(&state).unwrap();
    let options = StoreOptions {
        root: Arc::new(root),
        state: Some(Arc::new(HostDirectory::open(&state).unwrap())),
        abandoned: Vec::new(),
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: false,
    };
    VaultStore::open(options).unwrap().0
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn new_node() -> NewNode {
    let Caller { uid, gid } = own_caller();
    NewNode { perm: 0o755, umask: 0, caller: Caller { uid, gid } }
}

fn inodes(m: &Mounts) -> u64 {
    m.stats()["inodes"].as_u64().unwrap()
}

/// Every inode that the kernel was told of is counted, and let go of exactly when the kernel does.
#[test]
fn the_inode_table_is_empty_after_a_walk_of_100_000_entries() {
    const DIRS: usize = 100;
    const FILES: usize = 1000;
    let Some(m) = Mounts::new() else { return };
    if !is_root("dropping the kernel's caches") {
        return;
    }
    fill(&m, DIRS, FILES);
    m.mount(&[]).expect(0);
    assert_eq!(walk(&m), (DIRS * FILES, 0));
    assert!(inodes(&m) >= 1000, "{} inodes are known after the walk", inodes(&m));
    eventually("the kernel forgets them all", || {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        inodes(&m) == 1
    });
    // And what is known now is the truth again.
    assert_eq!(fs::metadata(m.at("dir-0/file-0")).unwrap().len(), 0);

    // With less memory than they need, the kernel is asked to forget some; what is in use stays.
    m.remount(&["--memory", "24M"]);
    fs::write(m.at("dir-0/file-0"), "open").unwrap();
    let open = File::open(m.at("dir-0/file-0")).unwrap();
    assert_eq!(walk(&m), (DIRS * FILES, 4));
    eventually("the kernel forgets a part", || inodes(&m) <= 98_304);
    assert!(inodes(&m) > 1000, "only a part: {}", inodes(&m));
    let mut text = [0; 4];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"open");
    assert_eq!(fs::read(m.at("dir-0/file-0")).unwrap(), b"open");
    drop(open);
    m.umount();
}

/// Asks for the attributes of every entry two levels down: how many there are, and how many bytes they have.
fn walk(m: &Mounts) -> (usize, u64) {
    let dirs = fs::read_dir(m.mnt()).unwrap();
    let files = dirs.flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap());
    files.fold((0, 0), |(count, len), file| (count + 1, len + file.unwrap().metadata().unwrap().len()))
}

/// Makes `dirs` directories of `files` empty files each.
///
/// Of the files only one is made by the store: the others are copies of what it stored, under their names, for content
/// depends neither on name nor place, and the store's promises take their time.
fn fill(m: &Mounts, dirs: usize, files: usize) {
    let store = other_client(m);
    let root = HostDirectory::open(&m.bench.vault()).unwrap();
    let names = NameCipher::new(&adit_vault::unlock(&root, PASSWORD).unwrap().masterkey);
    let mut empty = None;
    for n in 0..dirs {
        let dir = store.mkdir(Ino::ROOT, name(&format!("dir-{n}")), &new_node()).unwrap().ino;
        let entry = names.encrypt_name(&format!("dir-{n}"), &DirId::root()).unwrap();
        let entry = m.bench.vault().join(names.dir_hash_path(&DirId::root())).join(entry);
        let id = DirId::parse(&fs::read(entry.join("dir.c9r")).unwrap()).unwrap();
        let folder = m.bench.vault().join(names.dir_hash_path(&id));
        for n in 0..files {
            let path = folder.join(names.encrypt_name(&format!("file-{n}"), &id).unwrap());
            match &empty {
                Some(empty) => fs::write(path, empty).unwrap(),
                None => {
                    drop(store.create(dir, name(&format!("file-{n}")), &new_node()).unwrap());
                    empty = Some(fs::read(path).unwrap());
                }
            }
        }
    }
}

/// Two writers and four readers of one file, in records that writers own in turn.
///
/// A record is one version number, repeated. Whoever starts to read after a write returned sees that version or a later
/// one, and nobody sees a number that was not written there before. Two readers ask the mount itself (O_DIRECT), and see
/// one version of an aligned record.
///
/// Through the pages of a kernel that drops them by itself (without `-o exclusive`), the version before may show for a
/// moment: the kernel can read a page again while a write of it is under way, and notes new times before it drops the pages
/// of the old ones (decision 5). It is there when such a reader looks again.
fn writers_and_readers(options: &[&str], record_len: usize) {
    const RECORDS: usize = 48;
    const VERSIONS: u64 = 40;
    /// Whoever waits longer waits for ever.
    const HANG: Duration = Duration::from_secs(60);
    let Some(m) = Mounts::new() else { return };
    m.mount(options).expect(0);
    let (exclusive, aligned) = (options.contains(&"exclusive"), record_len.is_multiple_of(4096));
    let path = m.at("shared");
    fs::write(&path, vec![0; RECORDS * record_len]).unwrap();
    let [begun, written]: [Vec<AtomicU64>; 2] = std::array::from_fn(|_| (0..RECORDS).map(|_| 0.into()).collect());
    let writing = AtomicU64::new(2);
    let write = |writer: usize| {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for version in 1..=VERSIONS {
            for record in (writer..RECORDS).step_by(2) {
                begun[record].store(version, Ordering::SeqCst);
                let bytes = version.to_le_bytes().repeat(record_len / 8);
                file.write_all_at(&bytes, (record * record_len) as u64).unwrap();
                written[record].store(version, Ordering::SeqCst);
            }
        }
        writing.fetch_sub(1, Ordering::SeqCst);
    };
    let read = |direct: bool, may_be_late: bool| {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
        let mut bytes = Aligned::new(record_len);
        while writing.load(Ordering::SeqCst) > 0 {
            for record in 0..RECORDS {
                let least = written[record].load(Ordering::SeqCst);
                let begin = Instant::now();
                let (versions, most) = loop {
                    file.read_exact_at(bytes.as_mut(), (record * record_len) as u64).unwrap();
                    let most = begun[record].load(Ordering::SeqCst);
                    let versions: BTreeSet<u64> = bytes
                        .as_mut()
                        .chunks_exact(8)
                        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                        .collect();
                    let is_late = versions.first() < Some(&least);
                    if !is_late || !may_be_late || begin.elapsed() > HANG {
                        break (versions, most);
                    }
                    assert!(versions.last() <= Some(&most), "record {record}: {versions:?} of {most}");
                };
                let allowed = least..=most;
                assert!(versions.iter().all(|v| allowed.contains(v)), "record {record}: {versions:?}, not {allowed:?}");
                assert!(!aligned || !direct || versions.len() == 1, "record {record} is torn: {versions:?}");
            }
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|writer| drop(scope.spawn(move || write(writer))));
        (0..4).for_each(|reader| drop(scope.spawn(move || read(!exclusive && reader < 2, !exclusive && reader >= 2))));
    });
    m.remount(options);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), RECORDS * record_len);
    assert!(bytes.chunks_exact(8).all(|word| word == VERSIONS.to_le_bytes()), "a write was lost");
    m.umount();
    m.expect_sound();
}

/// A buffer that O_DIRECT takes.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Aligned { bytes, start, len }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[test]
fn two_writers_and_four_readers() {
    writers_and_readers(&[], 4096);
}

#[test]
fn two_writers_and_four_readers_across_pages_and_chunks() {
    writers_and_readers(&[], 1000);
}

#[test]
fn two_writers_and_four_readers_with_kernel_write_back() {
    writers_and_readers(&["-o", "exclusive"], 1000);
}

#[test]
fn two_processes_append_whole_lines() {
    const LINES: usize = 400;
    let Some(m) = Mounts::new() else { return };
    for options in [&[][..], &["-o", "exclusive"]] {
        m.mount(options).expect(0);
        let script = format!("n=0; while [ $n -lt {LINES} ]; do n=$((n+1)); echo \"$0 line $n\"; done >> log");
        let children: Vec<_> = ["first", "second"]
            .iter()
            .map(|who| Command::new("sh").args(["-euc", &script, who]).current_dir(m.mnt()).start().unwrap())
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        m.remount(options);
        let log = fs::read_to_string(m.at("log")).unwrap();
        for who in ["first", "second"] {
            let own: Vec<&str> = log.lines().filter(|line| line.starts_with(who)).collect();
            let expected: Vec<String> = (1..=LINES).map(|n| format!("{who} line {n}")).collect();
            assert_eq!(own, expected);
        }
        assert_eq!(log.lines().count(), 2 * LINES);
        fs::remove_file(m.at("log")).unwrap();
        m.umount();
    }
}

/// A shared, writable mapping of a whole file.
struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn of(file: &File, len: usize) -> Mapping {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing else refers to it.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Mapping { at: at.unwrap(), len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it is mapped for as long as `self` lives, and the file is not made shorter meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }

    fn sync(&mut self) {
        // SAFETY: the range is mapped.
        unsafe { rustix::mm::msync(self.at, self.len, rustix::mm::MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        let _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

#[test]
fn a_shared_mapping_is_kept() {
    const LEN: usize = 3 * CHUNK + 100;
    let Some(m) = Mounts::new() else { return };
    for options in [&[][..], &["-o", "exclusive"]] {
        m.mount(options).expect(0);
        let mut expected = pattern(LEN);
        fs::write(m.at("f"), &expected).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(m.at("f")).unwrap();
        let mut mapping = Mapping::of(&file, LEN);
        assert!(mapping.bytes() == expected);
        for at in [0, 4095, CHUNK - 1, CHUNK, 2 * CHUNK + 77, LEN - 1] {
            mapping.bytes()[at] ^= 0xff;
            expected[at] ^= 0xff;
        }
        mapping.sync();
        assert!(fs::read(m.at("f")).unwrap() == expected, "through a descriptor");
        // What msync returned for is in the vault, whatever becomes of the mount.
        drop((mapping, file));
        m.kill();
        m.mount(options).expect(0);
        assert!(fs::read(m.at("f")).unwrap() == expected, "after a kill");
        // A mapping that was not synced is written when it goes.
        let file = OpenOptions::new().read(true).write(true).open(m.at("f")).unwrap();
        let mut mapping = Mapping::of(&file, LEN);
        mapping.bytes()[5] ^= 0xff;
        expected[5] ^= 0xff;
        drop((mapping, file));
        m.remount(options);
        assert!(fs::read(m.at("f")).unwrap() == expected, "after a remount");
        m.umount();
    }
}

/// Reads are whole: never bytes of two versions of a file that another client replaces.
#[test]
fn a_file_that_another_client_replaces_is_old_or_new() {
    const LEN: usize = 4 * CHUNK + 5;
    let Some(m) = Mounts::new() else { return };
    fs::write(m.bench.path("f"), vec![b'0'; LEN]).unwrap();
    m.bench.open("put", &["f", "/"]).expect(0);
    m.mount(&["-o", "attr_timeout=0.2,entry_timeout=0.2"]).expect(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let bytes = fs::read(m.at("f")).unwrap_or_else(|e| {
                    assert_eq!(e.raw_os_error(), Some(libc::ESTALE), "{e}");
                    Vec::new()
                });
                assert!(bytes.windows(2).all(|pair| pair[0] == pair[1]), "two versions in one read");
                assert!(bytes.is_empty() || bytes.len() >= LEN, "{} bytes", bytes.len());
            }
        });
        // The reader ends also where an assertion fails here.
        let _done = Finally(&done);
        for version in 1..=4_u8 {
            let content = vec![b'0' + version; LEN + usize::from(version) * 1000];
            fs::write(m.bench.path("f"), &content).unwrap();
            m.bench.open("put", &["f", "/"]).expect(0);
            eventually("the change shows", || fs::read(m.at("f")).is_ok_and(|bytes| bytes == content));
            assert_eq!(fs::metadata(m.at("f")).unwrap().len(), content.len() as u64);
        }
    });
    m.umount();
}

/// Sets a flag when it is dropped.
struct Finally<'a>(&'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Another client writes into a file that is open here, and that was read here.
#[test]
fn a_change_in_place_by_another_client_shows() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "attr_timeout=0.2,entry_timeout=0.2"]).expect(0);
    let mut expected = pattern(2 * CHUNK + 10);
    fs::write(m.at("f"), &expected).unwrap();
    let open = File::open(m.at("f")).unwrap();
    assert!(fs::read(m.at("f")).unwrap() == expected);
    let store = other_client(&m);
    let attr = store.lookup(Ino::ROOT, name("f")).unwrap();
    let file = store.open(attr.ino, Access::Write).unwrap();
    for at in [CHUNK + 3, 0, 2 * CHUNK + 10] {
        let bytes = [0xa5; 20];
        file.write_at(&[(at as u64, &bytes)]).unwrap();
        expected.resize(expected.len().max(at + bytes.len()), 0);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
        let mut through_handle = vec![0; expected.len()];
        eventually("the change shows by name and through the open file", || {
            // stat is what tells the kernel that its pages are old.
            let len = open.metadata().unwrap().len();
            len == expected.len() as u64
                && open.read_exact_at(&mut through_handle, 0).is_ok()
                && through_handle == expected
                && fs::read(m.at("f")).unwrap() == expected
        });
    }
    // Both write: nobody's bytes get lost.
    let here = OpenOptions::new().write(true).open(m.at("f")).unwrap();
    here.write_all_at(b"here", 100).unwrap();
    here.sync_all().unwrap();
    expected[100..104].copy_from_slice(b"here");
    let mut there = vec![0; expected.len()];
    assert_eq!(file.read_at(0, &mut there).unwrap(), expected.len());
    assert!(there == expected);
    drop((file, here, open));
    m.umount();
}

#[test]
fn what_another_client_removes_is_gone_and_nothing_hangs() {
    let Some(m) = Mounts::new() else { return };
    m.mount(NO_CACHES).expect(0);
    fs::create_dir(m.at("dir")).unwrap();
    for file in ["dir/f", "open"] {
        fs::write(m.at(file), pattern(CHUNK + 1)).unwrap();
    }
    let open = OpenOptions::new().read(true).write(true).open(m.at("open")).unwrap();
    let inside = File::open(m.at("dir")).unwrap();
    m.bench.open("rm", &["-r", "--yes", "/dir", "/open"]).expect(0);
    for path in ["dir", "dir/f", "open"] {
        assert_eq!(fs::metadata(m.at(path)).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        assert_eq!(fs::read(m.at(path)).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
    }
    // Open files go on, or say that they are stale; they do not hang, and are not empty.
    let mut bytes = vec![0; CHUNK + 1];
    match open.read_exact_at(&mut bytes, 0) {
        Ok(()) => assert!(bytes == pattern(CHUNK + 1)),
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ESTALE), "{e}"),
    }
    if let Err(e) = open.write_all_at(b"late", 0).and_then(|()| open.sync_all()) {
        assert_eq!(e.raw_os_error(), Some(libc::ESTALE), "{e}");
    }
    let late = fs::write(m.at("dir/late"), "late").unwrap_err();
    assert!([Some(libc::ENOENT), Some(libc::ESTALE)].contains(&late.raw_os_error()), "{late}");
    drop((open, inside));
    // The names are free again.
    fs::create_dir(m.at("dir")).unwrap();
    fs::write(m.at("open"), "new").unwrap();
    assert_eq!(fs::read_to_string(m.at("open")).unwrap(), "new");
    m.umount();
    m.expect_sound();
}

/// What another client makes, moves and exchanges shows here within the timeouts, also under names that were looked up before.
#[test]
fn names_that_another_client_makes_and_moves_show() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "attr_timeout=0.3,entry_timeout=0.3,negative_timeout=0.3"]).expect(0);
    for dir in ["d", "e"] {
        fs::create_dir(m.at(dir)).unwrap();
    }
    fs::write(m.at("d/old"), "old").unwrap();
    let store = other_client(&m);
    let at = |path: &str| store.lookup(Ino::ROOT, name(path)).unwrap().ino;
    let is = |path: &str, text: &str| fs::read_to_string(m.at(path)).is_ok_and(|found| found == text);
    let is_gone = |path: &str| fs::metadata(m.at(path)).is_err_and(|e| e.kind() == ErrorKind::NotFound);

    assert!(is_gone("d/new") && fs::read_dir(m.at("d")).unwrap().count() == 1, "both are cached now");
    let (_, file) = store.create(at("d"), name("new"), &new_node()).unwrap();
    file.write_at(&[(0, b"new")]).unwrap();
    drop(file);
    eventually("a name that was absent is there", || {
        is("d/new", "new") && fs::read_dir(m.at("d")).unwrap().count() == 2
    });

    store.rename(at("d"), name("old"), at("e"), name("moved"), RenameFlags::empty()).unwrap();
    eventually("a moved file has its new name alone", || is_gone("d/old") && is("e/moved", "old"));
    store.rename(at("d"), name("new"), at("e"), name("moved"), RenameFlags::EXCHANGE).unwrap();
    eventually("exchanged names show the other file", || is("d/new", "old") && is("e/moved", "new"));
    store.rename(Ino::ROOT, name("e"), at("d"), name("below"), RenameFlags::empty()).unwrap();
    eventually("a moved directory keeps what it holds", || is_gone("e") && is("d/below/moved", "new"));
    drop(store);
    m.umount();
    m.expect_sound();
}

/// Two mounts of one vault write one file: of each chunk there is what the one or the other wrote, never a mixture.
#[test]
fn two_mounts_of_one_vault() {
    const CHUNKS: usize = 8;
    let Some(m) = Mounts::new() else { return };
    let second = m.bench.path("second");
    fs::create_dir(&second).unwrap();
    let _off = OffAtEnd(second.clone());
    let timeouts = ["-o", "attr_timeout=0.2,entry_timeout=0.2,negative_timeout=0.2"];
    m.mount(&timeouts).expect(0);
    let (vault, mountpoint) = (m.bench.vault_str().to_owned(), second.to_str().unwrap().to_owned());
    let line = ["mount", &vault, &mountpoint, "--password-file", m.bench.password_str()];
    let told = m.bench.run(line.iter().chain(&timeouts)).expect(0).says("it is mounted on ");
    told.says("file locks and change notices do not reach from one mount to another");

    fs::write(m.at("f"), vec![b'0'; CHUNKS * CHUNK]).unwrap();
    eventually("the other mount sees it", || fs::read(second.join("f")).is_ok_and(|b| b.len() == CHUNKS * CHUNK));
    std::thread::scope(|scope| {
        for (path, byte) in [(m.at("f"), b'1'), (second.join("f"), b'2')] {
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                for round in 0..20 {
                    for chunk in 0..CHUNKS {
                        // Each has chunks of its own, and shares two.
                        if chunk % 4 == 0 || (chunk % 2 == 0) == (byte == b'1') {
                            file.write_all_at(&vec![byte; CHUNK], (chunk * CHUNK) as u64).unwrap();
                        }
                    }
                    if round % 5 == 0 {
                        file.sync_all().unwrap();
                    }
                }
            });
        }
    });
    let whole = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        assert_eq!(bytes.len(), CHUNKS * CHUNK);
        bytes.chunks(CHUNK).map(|c| c.iter().all(|b| *b == c[0]).then_some(c[0])).collect::<Vec<_>>()
    };
    let mut seen = Vec::new();
    eventually("both mounts show the same", || {
        seen = whole(&m.at("f"));
        seen == whole(&second.join("f"))
    });
    for (chunk, byte) in seen.into_iter().enumerate() {
        let byte = byte.unwrap_or_else(|| panic!("chunk {chunk} is mixed"));
        let allowed: &[u8] = if chunk % 4 == 0 {
            b"12"
        } else if chunk % 2 == 0 {
            b"1"
        } else {
            b"2"
        };
        assert!(allowed.contains(&byte), "chunk {chunk} is {:?}", char::from(byte));
    }
    m.bench.run(["umount", "second"]).expect(0);
    m.umount();
    m.expect_sound();
}

/// Each by the length that it knows, so lines are lost; but what is there can be read, also what was there before.
#[test]
fn two_mounts_that_append_to_one_file_leave_it_readable() {
    let Some(m) = Mounts::new() else { return };
    let second = m.bench.path("second");
    fs::create_dir(&second).unwrap();
    let _off = OffAtEnd(second.clone());
    m.mount(&[]).expect(0);
    let (vault, mountpoint) = (m.bench.vault_str().to_owned(), second.to_str().unwrap().to_owned());
    m.bench.run(["mount", &vault, &mountpoint, "--password-file", m.bench.password_str()]).expect(0);
    let before = "0123456\n".repeat(1000);
    for name in ["a", "b"] {
        fs::write(m.at(name), if name == "a" { &before } else { "" }).unwrap();
        eventually("the other mount sees it", || fs::read(second.join(name)).is_ok());
    }
    std::thread::scope(|scope| {
        for (dir, line) in [(m.mnt(), "x\n"), (second.clone(), "y\n")] {
            scope.spawn(move || {
                for n in 0..400 {
                    // A new handle each time, as a shell's `>>` does; each close stores what was written.
                    let mut file = OpenOptions::new().append(true).open(dir.join(["a", "b"][n % 2])).unwrap();
                    file.write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
    m.bench.run(["umount", "second"]).expect(0);
    m.remount(&[]);
    let kept = fs::read_to_string(m.at("a")).unwrap();
    assert!(kept.starts_with(&before) && kept.len() > before.len(), "{} bytes", kept.len());
    for content in [&kept[before.len()..], &fs::read_to_string(m.at("b")).unwrap()] {
        assert!(content.len() >= 400 && content.bytes().all(|b| b"xy\n".contains(&b)), "{content:?}");
    }
    m.umount();
    m.expect_sound();
}

#[test]
fn a_file_that_another_client_wrote_anew_can_be_opened_beside_an_old_handle() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "attr_timeout=0.1,entry_timeout=0.1"]).expect(0);
    fs::write(m.at("f"), "ours").unwrap();
    let host = m.bench.content_files().pop().unwrap();
    fs::write(m.at("g"), "theirs").unwrap();
    let other = m.bench.content_files().into_iter().find(|path| *path != host).unwrap();
    let old = OpenOptions::new().read(true).write(true).open(m.at("f")).unwrap();
    old.write_all_at(b"OURS", 0).unwrap();
    old.sync_all().unwrap();
    // In place, with a header of its own.
    fs::write(&host, fs::read(&other).unwrap()).unwrap();
    eventually("the change shows", || fs::metadata(m.at("f")).is_ok_and(|f| f.len() == 6));
    assert_eq!(fs::read_to_string(m.at("f")).unwrap(), "theirs");
    fs::write(m.at("f"), "written beside an old handle").unwrap();
    assert_eq!(fs::read_to_string(m.at("f")).unwrap(), "written beside an old handle");
    drop(old);
    m.remount(&[]);
    assert_eq!(fs::read_to_string(m.at("f")).unwrap(), "written beside an old handle");
    m.umount();
    m.expect_sound();
}

/// Takes a second mount away, also where the test fails.
struct OffAtEnd(std::path::PathBuf);

impl Drop for OffAtEnd {
    fn drop(&mut self) {
        mounts::force_off(&self.0);
    }
}

/// Kernel write-back stores the times of a file after its last name went; no later sync reports that as a failure.
#[test]
fn syncfs_after_an_unlink_reports_nothing() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "exclusive"]).expect(0);
    for content in ["", "content"] {
        fs::write(m.at("f"), content).unwrap();
        fs::remove_file(m.at("f")).unwrap();
        rustix::fs::syncfs(File::open(m.mnt()).unwrap()).unwrap();
    }
    m.umount();
}

/// A short name's directory, a long name's file, a symbolic link: what lies in a folder of the vault that moves.
#[test]
fn a_rename_changes_ctime() {
    let Some(m) = Mounts::new() else { return };
    m.mount(NO_CACHES).expect(0);
    let long = |c: &str| c.repeat(200);
    fs::create_dir(m.at("dir")).unwrap();
    std::os::unix::fs::symlink("target", m.at("link")).unwrap();
    fs::write(m.at(&long("f")), "f").unwrap();
    fs::write(m.at("file"), "f").unwrap();
    let ctime = |path: &Path| fs::symlink_metadata(path).map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap();
    for (from, to) in [("dir", "dir2"), ("link", "link2"), (&long("f"), &long("g")), ("file", "file2")] {
        let before = ctime(&m.at(from));
        let (mut from, mut to) = (m.at(from), m.at(to));
        let deadline = Instant::now() + Duration::from_secs(5);
        // The host's clock has ticks of some milliseconds.
        loop {
            fs::rename(&from, &to).unwrap();
            if ctime(&to) > before {
                break;
            }
            assert!(Instant::now() < deadline, "{}: its ctime stays", to.display());
            std::mem::swap(&mut from, &mut to);
        }
    }
    m.umount();
}

#[test]
fn what_is_looked_up_ahead_is_told_and_can_be_left_out() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    (0..40).for_each(|n| fs::write(m.at(&format!("f{n}")), b"x").unwrap());
    assert_eq!(fs::read_dir(m.at("")).unwrap().filter(|entry| entry.as_ref().unwrap().metadata().is_ok()).count(), 40);
    let stats = m.stats();
    let (ahead, paths) = (&stats["prefetch"], &stats["caches"]["paths"]);
    for field in ["prefetched", "used", "unused", "held", "lookup_us", "least_lookup_us", "least_rate_percent"] {
        assert!(ahead[field].is_u64(), "{field}: {stats}");
    }
    assert_eq!((ahead["on"].as_bool(), ahead["switched_off"].as_u64()), (Some(true), Some(0)), "{stats}");
    assert_eq!((paths["on"].as_bool(), paths["max_bytes"].as_u64()), (Some(true), Some(1 << 20)), "{stats}");
    assert!(m.bench.run(["stats", "mnt"]).expect(0).text().contains("prefetched"));
    m.umount();
    m.mount(&["-o", "prefetch=off"]).expect(0);
    assert!(m.stats()["prefetch"].is_null());
    m.umount();
    m.mount(&["-o", "prefetch=16"]).expect(0);
    assert!(m.stats()["prefetch"]["on"].is_boolean());
    m.umount();
    m.mount(&["-o", "prefetch=all"]).expect(2);
}

#[test]
fn what_another_client_changes_shows_in_the_index_once_it_was_seen() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "attr_timeout=0.3,entry_timeout=0.3,negative_timeout=0.3,index"]).expect(0);
    fs::create_dir_all(m.at("d/sub")).unwrap();
    fs::write(m.at("d/old"), "old").unwrap();
    let found = |text: &str| m.bench.run(["index", "find", "mnt", text, "--sort", "path"]).expect(0).text();
    assert_eq!(found("d"), "/d\n/d/old\n");
    let store = other_client(&m);
    let at = |path: &str| store.lookup(Ino::ROOT, name(path)).unwrap().ino;
    let came = store.mkdir(at("d"), name("came"), &new_node()).unwrap().ino;
    drop(store.create(came, name("below"), &new_node()).unwrap());
    store.rename(at("d"), name("old"), at("d"), name("moved"), RenameFlags::empty()).unwrap();
    let listed = || fs::read_dir(m.at("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>();
    eventually("the listing is new", || listed() == ["came", "moved", "sub"].map(Into::into).into());
    assert_eq!(
        (found("below"), found("moved"), found("old")),
        ("/d/came/below\n".into(), "/d/moved\n".into(), "".into())
    );
    assert_eq!(m.stats()["index"]["walks"], 1);
    drop(store);
    m.umount();
}

/// Editors remember the time of what they saved, and take another one for somebody else's change.
#[test]
fn the_times_that_were_shown_stay_when_the_file_is_closed() {
    let Some(m) = Mounts::new() else { return };
    m.mount(NO_CACHES).expect(0);
    let times = |meta: fs::Metadata| [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    for n in 0..20 {
        let path = m.at(&format!("f{n}"));
        let mut file = File::create(&path).unwrap();
        for _ in 0..2 {
            file.write_all(&pattern(5000)).unwrap();
            let (by_name, by_handle) = (fs::metadata(&path).unwrap(), file.metadata().unwrap());
            assert_eq!((by_name.len(), times(by_name)), (by_handle.len(), times(by_handle)));
        }
        let shown = times(fs::metadata(&path).unwrap());
        drop(file);
        assert_eq!(times(fs::metadata(&path).unwrap()), shown);
    }
    m.umount();
}

/// A rename sends the time of a write before what was written.
#[test]
fn an_exclusive_mount_keeps_the_time_of_a_file_that_is_renamed_while_it_is_open() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "exclusive"]).expect(0);
    let times = |path: &Path| fs::metadata(path).map(|meta| (meta.mtime(), meta.mtime_nsec())).unwrap();
    let renamed = (0..6).map(|n| {
        let (before, after) = (m.at(&format!("before{n}")), m.at(&format!("after{n}")));
        let mut file = File::create(&before).unwrap();
        file.write_all(&pattern(20_000)).unwrap();
        let written = times(&before);
        // The clock that files have goes on.
        let probe = m.at("probe");
        let moved = || fs::write(&probe, "").map(|()| times(&probe) > written).unwrap();
        while !moved() {
            std::thread::yield_now();
        }
        fs::rename(&before, &after).unwrap();
        if n % 2 == 0 {
            file.sync_all().unwrap();
        }
        drop(file);
        let shown = times(&after);
        assert_eq!(shown, written);
        (after, shown)
    });
    let renamed: Vec<_> = renamed.collect();
    m.remount(&["-o", "exclusive"]);
    renamed.into_iter().for_each(|(path, shown)| assert_eq!(times(&path), shown, "{}", path.display()));
    m.umount();
}

/// The kernel keeps no name that another spelling can change.
#[test]
fn a_change_by_one_spelling_shows_by_the_other() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    for exclusive in [false, true] {
        if exclusive {
            m.remount(&["-o", "exclusive"]);
        }
        let spelt = ["caf\u{e9}", "cafe\u{301}"].map(|name| m.at(name));
        for (one, other) in [(&spelt[0], &spelt[1]), (&spelt[1], &spelt[0])] {
            let is_gone = |path: &Path| fs::metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
            fs::write(one, "one").unwrap();
            assert_eq!(fs::read_to_string(other).unwrap(), "one");
            fs::remove_file(other).unwrap();
            assert!(is_gone(one) && is_gone(other));
            fs::create_dir(other).unwrap();
            assert!(fs::metadata(one).unwrap().is_dir() && fs::metadata(other).unwrap().is_dir());
            fs::rename(other, m.at("elsewhere")).unwrap();
            assert!(is_gone(one) && is_gone(other));
            fs::write(one, "one").unwrap();
            fs::write(m.at("new"), "new").unwrap();
            assert_eq!(fs::read_to_string(one).unwrap(), "one");
            fs::rename(m.at("new"), other).unwrap();
            assert_eq!(fs::read_to_string(one).unwrap(), "new");
            fs::remove_file(one).unwrap();
            fs::remove_dir(m.at("elsewhere")).unwrap();
            // The kernel is told a moment later.
            eventually("a name that a rename gave is gone with the other one", || is_gone(other));
            fs::write(one, "one").unwrap();
            fs::rename(one, m.at("new")).unwrap();
            fs::rename(m.at("new"), other).unwrap();
            eventually("the kernel is told", || fs::metadata(one).is_ok_and(|meta| meta.len() == 3));
            fs::rename(one, m.at("moved")).unwrap();
            eventually("a name that a rename gave moved with the other one", || is_gone(other));
            fs::remove_file(m.at("moved")).unwrap();
        }
    }
    m.umount();
    m.expect_sound();
}

/// Neither out of a source with both names, nor through the mount, does one take the place of the other.
#[test]
fn copies_into_a_mounted_vault_keep_the_first_of_two_names_that_are_one() {
    let Some(m) = Mounts::new() else { return };
    let (composed, apart) = ("caf\u{e9}", "cafe\u{301}");
    for (path, content) in [(format!("t/{apart}"), "first"), (format!("t/{composed}"), "second")] {
        fs::create_dir_all(m.bench.path("t")).unwrap();
        fs::write(m.bench.path(&path), content).unwrap();
    }
    fs::write(m.bench.path("t/other"), "other").unwrap();
    m.bench.run(["volume", "init", "box"]).expect(0);
    m.bench.run(["put", "box", "t", "/"]).expect(0);
    m.mount(&[]).expect(0);
    for round in 0..2 {
        m.bench.run(["get", "box", "/t", "mnt"]).expect(1).says(&format!("the same there as {apart}"));
        assert_eq!(fs::read_to_string(m.at(&format!("t/{composed}"))).unwrap(), "first", "{round}");
        assert_eq!(fs::read_to_string(m.at("t/other")).unwrap(), "other");
    }
    for round in 0..2 {
        m.bench.open("put", &["t", "/put"]).expect(1).says(&format!("the same there as {apart}"));
        assert_eq!(fs::read_to_string(m.at(&format!("put/{composed}"))).unwrap(), "first", "{round}");
    }
    m.umount();
    m.expect_sound();
}

/// Backup programs read again what has another change time than they were told.
#[test]
fn the_times_that_an_exclusive_mount_shows_are_those_after_the_next_mount() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&["-o", "exclusive"]).expect(0);
    let names: Vec<String> = (0..20).map(|n| n.to_string()).chain(["l".repeat(200)]).collect();
    for name in &names {
        let mut file = File::create(m.at(name)).unwrap();
        file.write_all(&[b'a'; 5000]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        file.write_all(&pattern(70_000)).unwrap();
        if name.len() == 1 {
            file.sync_all().unwrap();
        }
    }
    fs::rename(m.at("3"), m.at("moved")).unwrap();
    fs::set_permissions(m.at("4"), fs::Permissions::from_mode(0o600)).unwrap();
    OpenOptions::new().write(true).open(m.at("5")).unwrap().set_len(1000).unwrap();
    let times = || -> Vec<_> {
        let found = fs::read_dir(m.mnt()).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            (entry.file_name(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), meta.len())
        });
        let mut found: Vec<_> = found.collect();
        found.sort();
        found
    };
    let before = times();
    for options in [&["-o", "exclusive"][..], &[]] {
        m.remount(options);
        assert_eq!(times(), before, "{options:?}");
    }
    m.umount();
    m.expect_sound();
}

/// To the kernel two mounts are two filesystems. What the second one is told is so, and its way out works.
#[test]
fn locks_end_at_the_mount_and_a_bind_mount_shares_them() {
    let Some(m) = Mounts::new() else { return };
    if !is_root("bind mounts") {
        return;
    }
    let [second, bound] = ["second", "bound"].map(|name| {
        fs::create_dir(m.bench.path(name)).unwrap();
        m.bench.path(name)
    });
    let (_off, _bound_off) = (OffAtEnd(second.clone()), OffAtEnd(bound.clone()));
    assert_eq!(m.mount(&[]).expect(0).stderr, "", "the first one is alone");
    let line = ["mount", m.bench.vault_str(), second.to_str().unwrap(), "--password-file", m.bench.password_str()];
    m.bench.run(line).expect(0).says("a bind mount of the first one shares both");
    let bind = Command::new("mount").arg("--bind").args([m.mnt(), bound.clone()]).start_and_wait().unwrap();
    assert!(bind.success());
    fs::write(m.at("f"), "f").unwrap();
    let first = File::open(m.at("f")).unwrap();
    first.lock().unwrap();
    let is_free = |at: &Path| File::open(at.join("f")).unwrap().try_lock().is_ok();
    eventually("the other mount sees it", || second.join("f").exists());
    assert_eq!((is_free(&second), is_free(&bound)), (true, false));
    drop(first);
    assert!(Command::new("umount").arg(&bound).start_and_wait().unwrap().success());
    m.bench.run(["umount", second.to_str().unwrap()]).expect(0);
    m.umount();
}

/// Two devices made a folder, and a link, of one name: the sync keeps what the other one wrote inside the entry's folder.
#[test]
fn a_second_version_inside_an_entry_is_warned_of() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    fs::create_dir(m.at("folder")).unwrap();
    std::os::unix::fs::symlink("one", m.at("link")).unwrap();
    let mut parts = 0;
    for prefix in fs::read_dir(m.bench.vault().join("d")).unwrap() {
        for content in fs::read_dir(prefix.unwrap().path()).unwrap() {
            for entry in fs::read_dir(content.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()) {
                for part in ["dir", "symlink"] {
                    let at = entry.join(format!("{part}.c9r"));
                    if at.exists() {
                        fs::copy(&at, entry.join(format!("{part}.sync-conflict-20261125-120000-ABCDEFG.c9r"))).unwrap();
                        parts += 1;
                    }
                }
            }
        }
    }
    assert_eq!(parts, 2);
    let warnings = || m.bench.run(["status", "mnt", "--json"]).expect(0).json()["warnings"].as_u64().unwrap();
    let before = warnings();
    m.remount(&[]);
    for _ in 0..3 {
        assert_eq!(fs::read_dir(m.mnt()).unwrap().count(), 2);
    }
    assert_eq!((before, warnings()), (0, 2), "each once");
    m.umount();
    m.expect_sound();
}

/// Programs open, follow and ask for what others replace by a rename at that moment. The kernel asks for the name, and then for what it was
/// told that the name leads to.
#[test]
fn what_others_replace_all_the_while_can_be_opened() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    let (file, link) = (m.at("file"), m.at("link"));
    let write = |at: &Path| fs::write(at, "content").unwrap();
    let point = |at: &Path| std::os::unix::fs::symlink("file", at).unwrap();
    write(&file);
    point(&link);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (file, link, ended) = (&file, &link, &ended);
            scope.spawn(move || {
                let new = file.with_file_name(format!("new-{n}"));
                while !ended.load(Ordering::SeqCst) {
                    write(&new);
                    fs::rename(&new, file).unwrap();
                    point(&new);
                    fs::rename(&new, link).unwrap();
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(3);
        let mut wrong = Vec::new();
        while Instant::now() < until {
            let used = [fs::read(&file).map(drop), fs::read_link(&link).map(drop), fs::metadata(&link).map(drop)];
            wrong.extend(used.into_iter().filter_map(Result::err));
        }
        ended.store(true, Ordering::SeqCst);
        assert!(wrong.is_empty(), "{} failed, the first one with {}", wrong.len(), wrong[0]);
    });
    m.umount();
    m.expect_sound();
}

/// As on ext4: it is empty, has no name, and keeps attributes of its own.
#[test]
fn an_open_directory_that_was_removed_or_replaced_is_empty_and_nameless() {
    let Some(m) = Mounts::new() else { return };
    m.mount(&[]).expect(0);
    for replaces in [false, true] {
        fs::create_dir(m.at("d")).unwrap();
        let open = File::open(m.at("d")).unwrap();
        let number = open.metadata().unwrap().ino();
        if replaces {
            fs::create_dir(m.at("new")).unwrap();
            fs::rename(m.at("new"), m.at("d")).unwrap();
        } else {
            fs::remove_dir(m.at("d")).unwrap();
        }
        let meta = open.metadata().unwrap();
        assert_eq!((meta.nlink(), meta.ino(), meta.is_dir()), (0, number, true), "{replaces}");
        let again = format!("/proc/self/fd/{}", open.as_raw_fd());
        assert_eq!(fs::read_dir(&again).unwrap().count(), 0);
        open.set_permissions(fs::Permissions::from_mode(0o710)).unwrap();
        assert_eq!(open.metadata().unwrap().mode() & 0o7777, 0o710);
        open.sync_all().unwrap();
        assert!(fs::write(format!("{again}/f"), "f").is_err());
        if replaces {
            assert_ne!(fs::metadata(m.at("d")).unwrap().ino(), number);
            fs::remove_dir(m.at("d")).unwrap();
        }
    }
    let script = "mkdir d && cd d && rmdir ../d && test -z \"$(ls -A)\" && test \"$(stat -c %h .)\" = 0
        ! mkdir x 2>/dev/null && cd .. && test -e . && test -z \"$(ls -A)\"";
    let mut shell = Command::new("sh");
    assert!(shell.args(["-euc", script]).current_dir(m.mnt()).start_and_wait().unwrap().success());
    m.umount();
    m.expect_sound();
}
