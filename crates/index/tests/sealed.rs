//! Encrypted indexes: they give back what was put in, and nothing else; neither they nor the scratch files of a build say anything in clear.

mod support;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use adit_core::error::{ErrorKind, FsError};
use adit_index::sealed::format::{BLOCK_LEN_BYTES, HEADER_LEN_BYTES, SEALED_BLOCK_LEN_BYTES};
use adit_index::sealed::{self, Damage, SealKey};
use adit_index::{Builder, Index, NodeId, Progress, Segment, Stage};
use support::{Item, Place, compare, items, model};
use zeroize::Zeroizing;

fn key(first: u8) -> SealKey {
    let mut bytes = Zeroizing::new(std::array::from_fn(|at| at as u8));
    bytes[0] = first;
    SealKey::new(bytes)
}

fn on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Builds `items` as an encrypted index at `out`.
fn build(items: &[Item], scratch: &Path, out: &Path, key: &SealKey) {
    build_with_tables(items, scratch, out, key, false);
}

fn build_with_tables(items: &[Item], scratch: &Path, out: &Path, key: &SealKey, tables: bool) {
    let mut builder = Builder::new(scratch, 0);
    builder.seal_scratch().unwrap();
    builder.set_tables(tables);
    items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
    builder.finish_sealed(key, out, &mut on, &mut || Ok(())).unwrap();
}

/// The same by way of a segment in memory.
fn build_in_memory(items: &[Item], scratch: &Path, out: &Path, key: &SealKey, tables: bool) {
    let mut builder = Builder::new(scratch, 0);
    builder.set_tables(tables);
    items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
    let clear = sealed::memory_file().unwrap();
    builder.finish_into(&clear, out, &mut on).unwrap();
    sealed::seal(&clear, key, out, &mut on).unwrap();
}

fn clear_bytes(path: &Path, key: &SealKey) -> Vec<u8> {
    let mut clear = sealed::unseal(&File::open(path).unwrap(), path, key, &mut on).unwrap();
    let mut bytes = Vec::new();
    clear.seek(SeekFrom::Start(0)).unwrap();
    clear.read_to_end(&mut bytes).unwrap();
    bytes
}

fn open(bytes: &[u8], dir: &Path, key: &SealKey) -> Result<Segment, FsError> {
    let path = dir.join("harmed");
    fs::write(&path, bytes).unwrap();
    sealed::open(&path, key, &mut on)
}

fn damage(result: Result<Segment, FsError>) -> Option<Damage> {
    result.err()?.cause()?.downcast_ref().cloned()
}

#[test]
fn any_tree_comes_back_and_only_to_who_has_the_key() {
    let mut rng = adit_testkit::Rng::new(7);
    for (count, tables) in [(0, true), (1, false), (40, true), (3000, false), (3000, true)] {
        let (place, items) = (Place::new(), items(&mut rng, count));
        build_with_tables(&items, place.dir.path(), &place.out(), &key(1), tables);
        assert!(sealed::is_sealed(&place.out()).unwrap());
        // Written to a scratch file or to memory, the segment is the same, with zeros where nothing is.
        let (clear, other) = (clear_bytes(&place.out(), &key(1)), place.dir.path().join("other"));
        build_in_memory(&items, place.dir.path(), &other, &key(1), tables);
        assert!(clear == clear_bytes(&other, &key(1)));
        fs::remove_file(other).unwrap();
        sealed::open(&place.out(), &key(1), &mut on).unwrap().verify(&mut on).unwrap();
        compare(&sealed::open(&place.out(), &key(1), &mut on).unwrap(), &model(&items, 0o755, 0));
        assert_eq!(place.left(), [""; 0]);
        let refused = sealed::open(&place.out(), &key(2), &mut on).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WrongPassword);
        assert_eq!(Segment::open(&place.out()).unwrap_err().kind(), ErrorKind::Corrupt);
        place.build(&items);
        assert!(!sealed::is_sealed(&place.out()).unwrap());
        let plain = damage(sealed::open(&place.out(), &key(1), &mut on));
        assert_eq!(plain, Some(Damage::NotSealed));
    }
}

#[test]
fn one_without_its_tables_has_every_entry_and_is_checked_all_the_same() {
    let items: Vec<Item> = (0..20_000)
        .map(|n| Item {
            hash: Some([n as u8; 16]),
            stamp: Some([1 + (n % 255) as u8; 8]),
            ..Item::file(format!("a directory/{n:05}").as_bytes())
        })
        .collect();
    let place = Place::new();
    build_with_tables(&items, place.dir.path(), &place.out(), &key(1), true);
    let whole = sealed::open(&place.out(), &key(1), &mut on).unwrap();
    let tables: Vec<_> = whole.sections().filter(|(section, _)| section.is_table()).collect();
    assert!(tables.len() == 5 && tables.iter().any(|(_, len)| *len > 3 * BLOCK_LEN_BYTES as u64), "{tables:?}");
    let held = |segment: &Segment| {
        let mut zeros = 0;
        let mut bytes = Vec::new();
        segment.write_to(&mut bytes).unwrap();
        for block in bytes.chunks(BLOCK_LEN_BYTES) {
            zeros += usize::from(block.iter().all(|byte| *byte == 0));
        }
        zeros
    };
    let segment = sealed::open_without_tables(&place.out(), &key(1), &mut on).unwrap();
    assert_eq!(segment.sections().filter(|(section, _)| section.is_table()).count(), 0);
    assert!(held(&segment) >= 3 && held(&whole) == 0, "{} blocks are not there", held(&segment));
    let dir = segment.lookup(NodeId::ROOT, b"a directory").unwrap().unwrap();
    for item in &items {
        let node = segment.lookup(dir, &item.path[b"a directory/".len()..]).unwrap().unwrap();
        assert_eq!(segment.path(node).unwrap(), item.path);
        assert_eq!((segment.hash(node).unwrap(), segment.stamp(node).unwrap()), (item.hash, item.stamp));
    }
    // A table that was changed is found, though nobody wants it.
    let mut bytes = fs::read(place.out()).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(place.out(), &bytes).unwrap();
    let harmed = sealed::open_without_tables(&place.out(), &key(1), &mut on);
    assert!(matches!(damage(harmed), Some(Damage::Block(_))));
}

#[test]
fn nobody_can_change_what_was_decrypted() {
    let place = Place::new();
    build(&[Item::file(b"a")], place.dir.path(), &place.out(), &key(1));
    let file = File::open(place.out()).unwrap();
    let clear = sealed::unseal(&file, &place.out(), &key(1), &mut on).unwrap();
    assert!(clear.write_all_at(b"x", 0).is_err() && clear.set_len(0).is_err());
}

#[test]
fn every_change_is_found() {
    let place = Place::new();
    let dir = place.dir.path();
    build(&[Item::file(b"a/b"), Item::dir(b"c")], dir, &place.out(), &key(1));
    let bytes = fs::read(place.out()).unwrap();
    open(&bytes, dir, &key(1)).unwrap();
    for at in 0..bytes.len() {
        let mut harmed = bytes.clone();
        harmed[at] ^= 1 << (at % 8);
        let refused = open(&harmed, dir, &key(1)).unwrap_err();
        // The version is looked at before the checksum: a later one may have that elsewhere.
        let kind = if (8..12).contains(&at) { ErrorKind::NotSupported } else { ErrorKind::Corrupt };
        assert_eq!(refused.kind(), kind, "{at}: {refused}");
        if at >= HEADER_LEN_BYTES {
            assert_eq!(damage(open(&harmed, dir, &key(1))), Some(Damage::Block(0)), "{at}");
        }
    }
    for len in 0..bytes.len() {
        assert_eq!(open(&bytes[..len], dir, &key(1)).unwrap_err().kind(), ErrorKind::Corrupt, "{len}");
    }
    assert!(matches!(damage(open(&[&bytes[..], b"x"].concat(), dir, &key(1))), Some(Damage::Length { .. })));
}

/// Whoever knows the format can make the lengths fit.
#[test]
fn blocks_have_their_place_in_their_file() {
    let place = Place::new();
    let dir = place.dir.path();
    let many: Vec<Item> = (0..9000).map(|n| Item::file(format!("a file with a name {n:030}").as_bytes())).collect();
    build(&many, dir, &place.out(), &key(1));
    let bytes = fs::read(place.out()).unwrap();
    let block = |number: usize| {
        let at = HEADER_LEN_BYTES + number * SEALED_BLOCK_LEN_BYTES;
        at..at + SEALED_BLOCK_LEN_BYTES
    };
    assert!(bytes.len() > block(3).end);
    let mut swapped = bytes.clone();
    swapped.copy_within(block(1), block(0).start);
    assert_eq!(damage(open(&swapped, dir, &key(1))), Some(Damage::Block(0)));
    build(&many, dir, &dir.join("other"), &key(1));
    let mut mixed = fs::read(dir.join("other")).unwrap();
    mixed[block(1)].copy_from_slice(&bytes[block(1)]);
    assert_eq!(damage(open(&mixed, dir, &key(1))), Some(Damage::Block(1)));
    // Cut behind a block, with a header that says so.
    let mut cut = bytes[..block(1).end].to_vec();
    cut[16..24].copy_from_slice(&(2 * BLOCK_LEN_BYTES as u64).to_le_bytes());
    let sum = xxhash_rust::xxh3::xxh3_64(&cut[..HEADER_LEN_BYTES - 8]).to_le_bytes();
    cut[HEADER_LEN_BYTES - 8..HEADER_LEN_BYTES].copy_from_slice(&sum);
    assert_eq!(damage(open(&cut, dir, &key(1))), Some(Damage::Block(0)));
}

/// What the scratch files of this process in `dir` hold now.
fn scratch_files(dir: &Path) -> Vec<Vec<u8>> {
    let dir = dir.canonicalize().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let to = fs::read_link(entry.path()).unwrap_or_default();
        if to.starts_with(&dir) && to != dir {
            found.extend(fs::read(entry.path()));
        }
    }
    found
}

#[test]
fn nothing_on_the_disk_is_in_clear() {
    const SECRET: &[u8] = b"the name that nobody is to see";
    let has = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET);
    let mut extra = Item::file(b"x");
    extra.extra = SECRET.to_vec();
    for sealing in [true, false] {
        let place = Place::new();
        let mut builder = Builder::new(place.dir.path(), 0);
        if sealing {
            builder.seal_scratch().unwrap();
        }
        builder.add(&extra.entry()).unwrap();
        for n in 0..60_000 {
            let name = format!("{}/{n:05} {}", n % 7, String::from_utf8_lossy(SECRET));
            builder.add(&Item::file(name.as_bytes()).entry()).unwrap();
        }
        let mut seen = 0;
        let mut look = |_: Progress| {
            let files = scratch_files(place.dir.path());
            seen = seen.max(files.iter().map(Vec::len).sum());
            assert!(!sealing || !files.iter().any(|bytes| has(bytes)));
            ControlFlow::Continue(())
        };
        if sealing {
            builder.set_tables(true);
            builder.finish_sealed(&key(1), &place.out(), &mut look, &mut || Ok(())).unwrap();
        } else {
            let clear = sealed::memory_file().unwrap();
            builder.finish_into(&clear, &place.out(), &mut look).unwrap();
            sealed::seal(&clear, &key(1), &place.out(), &mut on).unwrap();
        }
        assert!(seen > 1 << 20, "it is small enough to need no scratch files: {seen}");
        assert!(!has(&fs::read(place.out()).unwrap()));
        let segment = sealed::open(&place.out(), &key(1), &mut on).unwrap();
        assert_eq!(segment.len(), 60_000 + 7 + 1 + 1);
        segment.verify(&mut on).unwrap();
    }
}

#[test]
fn work_that_is_ended_leaves_nothing() {
    let place = Place::new();
    build(&[Item::file(b"a")], place.dir.path(), &place.out(), &key(1));
    let before = fs::read(place.out()).unwrap();
    let file = File::open(place.out()).unwrap();
    let clear = sealed::unseal(&file, &place.out(), &key(1), &mut on).unwrap();
    let ended = sealed::seal(&clear, &key(1), &place.out(), &mut |_| ControlFlow::Break(()));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!((fs::read(place.out()).unwrap(), place.left()), (before, Vec::new()));
    assert!(sealed::open(&place.out(), &key(1), &mut |_| ControlFlow::Break(())).is_err());
}

#[test]
fn an_index_is_opened_with_its_key_and_not_without() {
    let dir = tempfile::tempdir().unwrap();
    let (sealed, clear) = (dir.path().join("sealed"), dir.path().join("clear"));
    let items: Vec<Item> = (0..500).map(|n| Item::file(format!("a secret/{n}").as_bytes())).collect();
    build(&items, dir.path(), &sealed, &key(1));
    for memory in [false, true] {
        let options = Index::options().large_pages(memory).verify(true);
        let index = options.clone().key(&key(1)).open(&sealed).unwrap();
        let node = index.resolve("a secret/77").unwrap().unwrap();
        assert_eq!(index.path(node).unwrap(), b"a secret/77");
        assert_eq!(index.resolve_async(["a secret/1", "x"].into_iter().collect()).wait().unwrap().len(), 2);
        for refused in [options.clone(), options.clone().key(&key(2))] {
            let e = refused.open(&sealed).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::WrongPassword);
            assert!(e.to_string().contains("sealed"), "{e}");
        }
    }
    // A key that is not needed does no harm.
    let mut builder = Builder::new(dir.path(), 0);
    items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
    builder.finish(&clear, &mut on).unwrap();
    assert!(Index::options().key(&key(1)).open(&clear).unwrap().resolve("a secret/3").unwrap().is_ok());
    // What takes long can be ended.
    let ended = Index::options().key(&key(1)).open_reporting(&sealed, &mut |_| ControlFlow::Break(()));
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
}

/// Who shows it cannot know how long a block is.
#[test]
fn progress_counts_the_bytes_that_are_encrypted() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("i");
    let items: Vec<Item> = (0..120_000).map(|n| Item::file(format!("a secret/{n:060}").as_bytes())).collect();
    let told = |stage: Stage, work: &mut dyn FnMut(&mut adit_index::Report<'_>)| {
        let mut all = Vec::new();
        work(&mut |progress| {
            all.extend((progress.stage == stage).then_some((progress.done, progress.total)));
            ControlFlow::Continue(())
        });
        all
    };
    let mut builder = Builder::new(dir.path(), 0);
    items.iter().for_each(|item| builder.add(&item.entry()).unwrap());
    let mut builder = Some(builder);
    let encrypted = told(Stage::Encrypt, &mut |report| {
        let builder = builder.take().unwrap();
        builder.finish_sealed(&key(1), &out, report, &mut || Ok(())).unwrap();
    });
    let clear_len = clear_bytes(&out, &key(1)).len() as u64;
    let decrypted = told(Stage::Decrypt, &mut |report| drop(sealed::open(&out, &key(1), report).unwrap()));
    for told in [encrypted, decrypted] {
        assert!(told.len() > 1 && told.is_sorted(), "{told:?}");
        assert!(told.iter().all(|(done, total)| done < total && *total == clear_len), "{told:?}");
    }
}

fn frozen() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/indexes/sealed")
}

/// `sound/tree`, encrypted with the key of the bytes 1, 1, 2, 3 … 31.
#[test]
fn a_frozen_one_opens() {
    let expected = fs::read(frozen().join("../sound/tree/segment")).unwrap();
    let path = frozen().join("tree");
    let clear = sealed::unseal(&File::open(&path).unwrap(), &path, &key(1), &mut on).unwrap();
    let mut found = vec![0; expected.len()];
    clear.read_exact_at(&mut found, 0).unwrap();
    assert_eq!((found, clear.metadata().unwrap().len()), (expected.clone(), expected.len() as u64));
    assert_eq!(sealed::open(&path, &key(0), &mut on).unwrap_err().kind(), ErrorKind::WrongPassword);
}

/// What `cargo xtask fixtures` runs.
#[test]
#[ignore = "it writes to fixtures/"]
fn make_those_that_are_missing() {
    let to = frozen().join("tree");
    if to.exists() {
        return;
    }
    fs::create_dir_all(frozen()).unwrap();
    let clear = File::open(frozen().join("../sound/tree/segment")).unwrap();
    sealed::seal(&clear, &key(1), &to, &mut on).unwrap();
}
