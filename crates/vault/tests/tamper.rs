//! Hostile bytes: whatever is changed, swapped, cut or put into a vault is `Corrupt`. Never other data, a short file,
//! an empty directory or an absence; and never more than the file that it was done to.
//!
//! What the format cannot detect is here too, as tests of that name: a cut exactly between two chunks, and contents
//! exchanged between files as wholes.

#[path = "support/vault.rs"]
mod vault;

use std::fs;
use std::path::{Path, PathBuf};

use adit_core::ErrorKind;
use adit_core::store::Store;
use adit_core::types::{Access, Ino, Kind};
use adit_testkit::Rng;
use adit_vault::VaultStore;
use adit_vault::format::CipherCombo;

use vault::{CHUNK, COMBOS, Seen, Vault, assert_corrupt, find, list, name, new, read, read_in_steps, tree};

/// Header, chunk overhead and nonce, in bytes.
fn sizes(combo: CipherCombo) -> (usize, usize, usize) {
    match combo {
        CipherCombo::SivGcm => (68, 28, 12),
        CipherCombo::SivCtrmac => (88, 48, 16),
    }
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Damage that nobody is in the middle of making: a file written just now is read again for a while.
const LONG_AGO: std::time::SystemTime = std::time::SystemTime::UNIX_EPOCH;

fn write_long_ago(path: impl AsRef<std::path::Path>, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
    let file = fs::File::create(path)?;
    std::io::Write::write_all(&mut &file, bytes.as_ref())?;
    file.set_modified(LONG_AGO)
}

fn put(store: &VaultStore, path: &str, content: &[u8]) {
    vault::open_or_create(store, path).write_at(&[(0, content)]).unwrap();
}

/// A vault whose root holds one file of `len` bytes, and where that lies.
fn one_file(combo: CipherCombo, len: usize) -> (Vault, PathBuf, Vec<u8>) {
    let vault = Vault::create(combo, 220);
    let content = bytes_of(len as u64, len);
    put(&vault.open(), "/file", &content);
    let path = vault::only_file(&vault.path.join("d"), ".c9r");
    (vault, path, content)
}

/// The file must be refused when it is looked up, opened or read in whatever steps, and stay listed.
fn assert_file_corrupt(store: &VaultStore, what: &str) {
    let listed = list(store, Ino::ROOT).unwrap();
    assert_eq!(listed.iter().map(|(n, k, _)| (&**n, *k)).collect::<Vec<_>>(), [("file", Kind::File)], "{what}");
    let attr = match store.lookup(Ino::ROOT, name("file")) {
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
            return;
        }
        Ok(attr) => attr,
    };
    assert_corrupt(read(store, attr.ino), what);
    store.forget(attr.ino);
}

#[test]
fn every_changed_byte_of_a_small_file_is_refused() {
    for combo in COMBOS {
        let (vault, path, _) = one_file(combo, 100);
        let sound = fs::read(&path).unwrap();
        let store = vault.open_read_only();
        for at in 0..sound.len() {
            let mut bad = sound.clone();
            bad[at] ^= 1 << (at % 8);
            write_long_ago(&path, &bad).unwrap();
            assert_file_corrupt(&store, &format!("{combo:?}: byte {at}"));
        }
        write_long_ago(&path, &sound).unwrap();
        assert_eq!(read(&store, find(&store, "/file").unwrap().ino).unwrap(), bytes_of(100, 100));
    }
}

#[test]
fn a_changed_byte_anywhere_in_a_chunk_spoils_that_chunk_alone() {
    for combo in COMBOS {
        let (header, overhead, nonce) = sizes(combo);
        let (vault, path, content) = one_file(combo, 3 * CHUNK + 500);
        let sound = fs::read(&path).unwrap();
        let store = vault.open_read_only();
        let ino = find(&store, "/file").unwrap().ino;
        for chunk in 0..4 {
            let start = header + chunk * (CHUNK + overhead);
            let end = sound.len().min(start + CHUNK + overhead);
            for at in [start, start + nonce - 1, start + nonce, (start + end) / 2, end - 1] {
                let mut bad = sound.clone();
                bad[at] ^= 0x80;
                write_long_ago(&path, &bad).unwrap();
                let file = store.open(ino, Access::Read).unwrap();
                for other in 0..4 {
                    let from = other * CHUNK;
                    let wanted = &content[from..content.len().min(from + CHUNK)];
                    let mut buf = vec![0; wanted.len()];
                    let got = file.read_at(from as u64, &mut buf);
                    if other == chunk {
                        assert_corrupt(got, &format!("{combo:?}: byte {at}"));
                        assert_corrupt(file.read_at(from as u64 + 7, &mut buf[..9]), "a part of it");
                    } else {
                        assert_eq!(got.unwrap(), wanted.len());
                        assert!(buf == wanted, "{combo:?}: chunk {other} with byte {at} changed");
                    }
                }
                assert_corrupt(read(&store, ino), "all of it");
            }
        }
    }
}

/// Nothing of a file is written where something of it cannot be read: the rest would be lost.
#[test]
fn a_damaged_chunk_is_not_overwritten_in_part() {
    for combo in COMBOS {
        let (header, ..) = sizes(combo);
        let (vault, path, content) = one_file(combo, 2 * CHUNK);
        let mut bad = fs::read(&path).unwrap();
        bad[header + 100] ^= 1;
        write_long_ago(&path, &bad).unwrap();
        let store = vault.open();
        let ino = find(&store, "/file").unwrap().ino;
        let file = store.open(ino, Access::Write).unwrap();
        assert_corrupt(file.write_at(&[(5, b"x")]), "a part of a bad chunk");
        assert_corrupt(file.set_len(100), "a cut within a bad chunk");
        assert!(fs::read(&path).unwrap() == bad, "nothing was written");
        file.write_at(&[(CHUNK as u64 + 5, b"x")]).unwrap();
        file.write_at(&[(0, &content[..CHUNK])]).unwrap();
        let mut wanted = content.clone();
        wanted[CHUNK + 5] = b'x';
        assert!(read(&store, ino).unwrap() == wanted, "a chunk that is written as a whole is sound again");
    }
}

#[test]
fn chunks_swapped_within_a_file_or_between_files_are_refused() {
    for combo in COMBOS {
        let (header, overhead, _) = sizes(combo);
        let full = CHUNK + overhead;
        let (vault, path, _) = one_file(combo, 3 * CHUNK);
        let sound = fs::read(&path).unwrap();
        let store = vault.open_read_only();
        let chunk = |bytes: &[u8], n: usize| bytes[header + n * full..header + (n + 1) * full].to_vec();
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            let mut bad = sound.clone();
            bad[header + a * full..][..full].copy_from_slice(&chunk(&sound, b));
            bad[header + b * full..][..full].copy_from_slice(&chunk(&sound, a));
            write_long_ago(&path, &bad).unwrap();
            assert_file_corrupt(&store, &format!("{combo:?}: {a} and {b} exchanged"));
            bad[header + a * full..][..full].copy_from_slice(&chunk(&sound, a));
            write_long_ago(&path, &bad).unwrap();
            assert_file_corrupt(&store, &format!("{combo:?}: {a} twice"));
        }
        // A chunk taken out of the middle moves those behind it.
        let mut bad = sound.clone();
        bad.drain(header + full..header + 2 * full);
        write_long_ago(&path, &bad).unwrap();
        assert_file_corrupt(&store, "a chunk taken out");
        // The same place in another file of the same vault.
        write_long_ago(&path, &sound).unwrap();
        put(&vault.open(), "/other", &bytes_of(9, 3 * CHUNK));
        let mut files = Vec::new();
        vault::files_below(&vault.path.join("d"), &mut files);
        let other = files.into_iter().find(|p| *p != path && !p.ends_with("dirid.c9r")).unwrap();
        let foreign = fs::read(&other).unwrap();
        fs::remove_file(&other).unwrap();
        for n in 0..3 {
            let mut bad = sound.clone();
            bad[header + n * full..][..full].copy_from_slice(&chunk(&foreign, n));
            write_long_ago(&path, &bad).unwrap();
            assert_file_corrupt(&store, &format!("{combo:?}: foreign chunk {n}"));
        }
        let mut bad = sound.clone();
        bad[..header].copy_from_slice(&foreign[..header]);
        write_long_ago(&path, &bad).unwrap();
        assert_file_corrupt(&store, "a foreign header");
    }
}

/// Every length but those at which a whole number of chunks is left. In the middle of chunks every 61st, since a file is
/// read for each; `--long` takes all.
#[test]
fn a_cut_anywhere_but_between_chunks_is_refused() {
    let step = if adit_testkit::scaled(1) > 1 { 1 } else { 61 };
    for combo in COMBOS {
        let (header, overhead, _) = sizes(combo);
        let full = CHUNK + overhead;
        let (vault, path, content) = one_file(combo, 2 * CHUNK + 200);
        let sound = fs::read(&path).unwrap();
        let store = vault.open_read_only();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for len in (0..sound.len()).rev() {
            let behind = len.saturating_sub(header) % full;
            if !(len < header || behind <= 2 * overhead || full - behind < 3 || len.is_multiple_of(step)) {
                continue;
            }
            file.set_len(len as u64).unwrap();
            file.set_modified(LONG_AGO).unwrap();
            if len >= header && behind == 0 {
                // The format has no count of chunks: a file that ends with a whole chunk may be whole.
                let left = (len - header) / full * CHUNK;
                assert!(read(&store, find(&store, "/file").unwrap().ino).unwrap() == content[..left]);
                continue;
            }
            assert_file_corrupt(&store, &format!("{combo:?}: {len} of {} bytes", sound.len()));
        }
    }
}

/// The last chunk of a file, cut while it is open: what is behind must not read as zeros or as the end.
#[test]
fn a_file_cut_while_it_is_open_is_refused() {
    for combo in COMBOS {
        let (header, overhead, _) = sizes(combo);
        let (vault, path, content) = one_file(combo, 2 * CHUNK + 200);
        let sound = fs::read(&path).unwrap();
        let store = vault.open_read_only();
        let open = store.open(find(&store, "/file").unwrap().ino, Access::Read).unwrap();
        let cut = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for len in
            [1, header - 1, header + 1, header + overhead, header + overhead + 1, header + CHUNK, sound.len() - 1]
        {
            cut.set_len(len as u64).unwrap();
            cut.set_modified(LONG_AGO).unwrap();
            let mut buf = vec![0; 3 * CHUNK];
            if len >= header {
                assert_corrupt(open.read_at(0, &mut buf), &format!("{combo:?}: {len}"));
            } else {
                // Nothing but a header was ever needed again: it must at least not be taken for an empty file.
                assert_corrupt(open.len(), &format!("{combo:?}: {len}"));
                assert_corrupt(open.read_at(0, &mut buf), &format!("{combo:?}: {len}"));
            }
            write_long_ago(&path, &sound).unwrap();
        }
        let mut buf = vec![0; content.len()];
        assert_eq!(open.read_at(0, &mut buf).unwrap(), content.len());
        assert!(buf == content);
    }
}

#[test]
fn garbage_behind_the_end_is_refused() {
    for combo in COMBOS {
        let (_, overhead, _) = sizes(combo);
        for len in [0, 1, 5000, CHUNK, CHUNK + 1] {
            let (vault, path, _) = one_file(combo, len);
            let sound = fs::read(&path).unwrap();
            let store = vault.open_read_only();
            for extra in [1, overhead, overhead + 1, 100, CHUNK, CHUNK + overhead, 2 * CHUNK] {
                for zeros in [true, false] {
                    let mut bad = sound.clone();
                    bad.extend(if zeros { vec![0; extra] } else { bytes_of(3, extra) });
                    write_long_ago(&path, &bad).unwrap();
                    assert_file_corrupt(&store, &format!("{combo:?}: {len} and {extra} more"));
                }
            }
        }
    }
}

/// Content depends neither on name nor on parent: that is what lets a file be renamed. So two files that change places
/// as wholes are two sound files.
#[test]
fn whole_contents_that_change_places_cannot_be_told() {
    for combo in COMBOS {
        let vault = Vault::create(combo, 220);
        let store = vault.open();
        store.mkdir(Ino::ROOT, name("dir"), &new(0o755)).unwrap();
        put(&store, "/a", b"content of a");
        put(&store, "/dir/b", b"content of b, longer");
        drop(store);
        let mut files = Vec::new();
        vault::files_below(&vault.path.join("d"), &mut files);
        files.retain(|p| !p.ends_with("dirid.c9r") && !p.ends_with("dir.c9r"));
        let [a, b] = &files[..] else { panic!("{files:?}") };
        let hold = a.with_extension("hold");
        fs::rename(a, &hold).unwrap();
        fs::rename(b, a).unwrap();
        fs::rename(&hold, b).unwrap();
        let store = vault.open_read_only();
        assert_eq!(read(&store, find(&store, "/a").unwrap().ino).unwrap(), b"content of b, longer");
        assert_eq!(read(&store, find(&store, "/dir/b").unwrap().ino).unwrap(), b"content of a");
    }
}

/// A vault with one of everything.
fn standard(combo: CipherCombo, threshold: u32) -> Vault {
    let vault = Vault::create(combo, threshold);
    let store = vault.open();
    let long = "long ".repeat(40);
    for dir in ["dir", &long] {
        let dir = store.mkdir(Ino::ROOT, name(dir), &new(0o755)).unwrap();
        for entry in ["inside", &long] {
            let (_, file) = store.create(dir.ino, name(entry), &new(0o644)).unwrap();
            file.write_at(&[(0, &bytes_of(1, 300))]).unwrap();
        }
        store.symlink(dir.ino, name("link"), b"inside", new(0).caller).unwrap();
    }
    put(&store, "/file", &bytes_of(2, 40_000));
    drop(store);
    vault
}

fn copy(vault: &Vault) -> (tempfile::TempDir, PathBuf) {
    fn copy_tree(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy_tree(&entry.path(), &to);
            } else {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let temp = tempfile::tempdir().unwrap();
    copy_tree(&vault.path, &temp.path().join("vault"));
    let path = temp.path().join("vault");
    (temp, path)
}

/// Every file of a vault, one at a time: a byte changed, cut short, emptied, made a folder, gone. What is not touched
/// reads as before, what is touched is `Corrupt` or, where it held a name, missing from its directory: never different.
#[test]
fn one_bad_file_hides_nothing_else() {
    for (combo, threshold) in [(CipherCombo::SivGcm, 220), (CipherCombo::SivCtrmac, 60)] {
        let sound = standard(combo, threshold);
        let wanted = tree(&sound.open_read_only());
        assert_eq!(wanted.len(), 9);
        let mut files = Vec::new();
        vault::files_below(&sound.path.join("d"), &mut files);
        for file in files {
            let relative = file.strip_prefix(&sound.path).unwrap();
            for damage in ["flip", "cut", "empty", "folder"] {
                let (temp, path) = copy(&sound);
                let file = path.join(relative);
                let mut bytes = fs::read(&file).unwrap();
                match damage {
                    "flip" => {
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 0x10;
                    }
                    "cut" => bytes.truncate(bytes.len() - 1),
                    _ => bytes.clear(),
                }
                if damage == "folder" {
                    fs::remove_file(&file).unwrap();
                    fs::create_dir(&file).unwrap();
                } else {
                    write_long_ago(&file, &bytes).unwrap();
                }
                let damaged = Vault::adopt(temp, vault::PASSWORD);
                check_damage(&damaged, &wanted, &format!("{combo:?}: {damage} {}", relative.display()));
            }
        }
    }
}

fn check_damage(damaged: &Vault, wanted: &vault::Tree, what: &str) {
    let got = tree(&damaged.open_read_only());
    let mut bad = Vec::new();
    for (path, seen) in wanted {
        match got.get(path) {
            Some(now) if now == seen => {}
            Some(Seen::Unreadable(ErrorKind::Corrupt)) | None => bad.push(path.clone()),
            Some(other) => panic!("{what}: {path} is {other:?}"),
        }
    }
    assert!(got.keys().all(|path| wanted.contains_key(path)), "{what}: nothing new");
    // One entry is concerned, with what lies below it; `dirid.c9r` is a copy of what the entry says, and not needed.
    let top = bad.first().cloned().unwrap_or_default();
    assert!(bad.iter().all(|p| *p == top || p.starts_with(&format!("{top}/"))), "{what}: {bad:?}");
    assert_eq!(bad.is_empty(), what.ends_with("dirid.c9r"), "{what}: {bad:?}");
    // Only what has lost its name is not there to be refused. (What lies below a bad directory cannot be listed.)
    let may_be_missing = bad.is_empty() || what.ends_with("name.c9s");
    assert!(may_be_missing || got.contains_key(&top), "{what}: {top} is missing, not corrupt");
}

#[test]
fn a_directory_whose_content_is_gone_is_corrupt_not_empty() {
    for combo in COMBOS {
        let vault = Vault::create(combo, 220);
        let store = vault.open();
        let dir = store.mkdir(Ino::ROOT, name("dir"), &new(0o755)).unwrap();
        put(&store, "/dir/file", b"x");
        put(&store, "/beside", b"y");
        drop(store);
        let content = vault::only_file(&vault.path.join("d"), "dir.c9r");
        assert!(content.exists());
        let store = vault.open();
        assert_eq!(find(&store, "/dir").unwrap().ino, dir.ino);
        // The content directory that is not the root's.
        let mut folders = Vec::new();
        for a in fs::read_dir(vault.path.join("d")).unwrap() {
            folders.extend(fs::read_dir(a.unwrap().path()).unwrap().map(|b| b.unwrap().path()));
        }
        folders.retain(|f| !content.starts_with(f));
        let [folder] = &folders[..] else { panic!("{folders:?}") };
        let away = vault.path.join("away");
        fs::rename(folder, &away).unwrap();
        // While it is known, and anew.
        assert_corrupt(list(&store, dir.ino), "list");
        assert_corrupt(store.lookup(dir.ino, name("file")), "look up in it");
        assert_corrupt(store.lookup(dir.ino, name("nothing")), "look up what never was in it");
        assert_corrupt(store.lookup(Ino::ROOT, name("dir")), "look up");
        assert_corrupt(store.create(dir.ino, name("new"), &new(0o600)).map(drop), "create in it");
        assert_corrupt(store.mkdir(dir.ino, name("new"), &new(0o700)), "mkdir in it");
        assert_corrupt(store.rmdir(Ino::ROOT, name("dir")), "rmdir");
        let flags = adit_core::types::RenameFlags::empty();
        assert_corrupt(store.rename(Ino::ROOT, name("beside"), dir.ino, name("b"), flags), "move into it");
        let listed = list(&store, Ino::ROOT).unwrap();
        assert_eq!(listed.iter().map(|e| &*e.0).collect::<Vec<_>>(), ["beside", "dir"]);
        assert_eq!(read(&store, find(&store, "/beside").unwrap().ino).unwrap(), b"y");
        fs::rename(&away, folder).unwrap();
        assert_eq!(read(&store, find(&store, "/dir/file").unwrap().ino).unwrap(), b"x");
    }
}

/// Names are bound to their directory, and a name that cannot be read is neither shown nor in anybody's way.
#[test]
fn foreign_and_changed_names_are_not_entries() {
    let vault = Vault::create(CipherCombo::SivGcm, 220);
    let store = vault.open();
    store.mkdir(Ino::ROOT, name("dir"), &new(0o755)).unwrap();
    put(&store, "/dir/inside", b"x");
    put(&store, "/file", b"y");
    drop(store);
    let before = tree(&vault.open_read_only());
    let mut files = Vec::new();
    vault::files_below(&vault.path.join("d"), &mut files);
    files.retain(|p| !p.ends_with("dirid.c9r") && !p.ends_with("dir.c9r"));
    let [a, b] = &files[..] else { panic!("{files:?}") };
    let text = |p: &Path| p.file_name().unwrap().to_str().unwrap().to_owned();
    // Each in the other's directory, in capitals, and with what base64 does not have.
    fs::copy(a, b.with_file_name(text(a))).unwrap();
    fs::copy(b, a.with_file_name(text(b))).unwrap();
    fs::copy(a, a.with_file_name(text(a).to_uppercase().replace(".C9R", ".c9r"))).unwrap();
    for odd in
        ["=.c9r", ".c9r", "%%%%.c9r", "AAAA.c9r", ".c9s", "ä.c9r", "no ending", "AAAAAAAAAAAAAAAAAAAAAAAAAAAA.c9s"]
    {
        fs::copy(a, a.with_file_name(odd)).unwrap();
    }
    assert_eq!(tree(&vault.open_read_only()), before);
}

/// Offsets and lengths at the edges of their types end in an error or nothing, not in a panic.
#[test]
fn reads_far_behind_the_end_are_empty() {
    for combo in COMBOS {
        let (vault, ..) = one_file(combo, 10);
        let store = vault.open();
        let ino = find(&store, "/file").unwrap().ino;
        let file = store.open(ino, Access::Write).unwrap();
        let mut buf = [0; 16];
        for offset in [10, 11, CHUNK as u64, 1 << 40, (1 << 62) + 5, i64::MAX as u64 - 16] {
            assert_eq!(file.read_at(offset, &mut buf).unwrap_or(0), 0, "{offset}");
        }
        for offset in [1 << 62, i64::MAX as u64 - 1, u64::MAX - 3] {
            let kind = file.write_at(&[(offset, b"abcdef")]).unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::FileTooLarge | ErrorKind::NoSpace), "{offset}: {kind:?}");
            let kind = file.set_len(offset).unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::FileTooLarge | ErrorKind::NoSpace), "{offset}: {kind:?}");
        }
        assert_eq!(read_in_steps(&store, ino, 3).unwrap(), bytes_of(10, 10));
    }
}
