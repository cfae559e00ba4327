//! A volume whose files' content lies in a folder: what is in which place, what is given back, and what is damage.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use adit_core::ErrorKind;
use adit_core::store::{NewNode, Store};
use adit_core::types::{Access, FileName, Ino};
use adit_testkit::own_caller;
use adit_volume::check::{self, ProblemKind};
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use adit_volume::{Volume, VolumeStore};

const SEGMENT: u64 = 256 << 10;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A volume of 64 MiB in `at/v`, its data in `data`.
    fn new(data: &str) -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(place.path("at")).unwrap();
        place.create("at/v", data).unwrap().close().unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn create(&self, file: &str, data: &str) -> adit_core::Result<Volume> {
        let new = CreateOptions {
            capacity_bytes: Some(64 << 20),
            durability: Durability::Fsync,
            owner: own_caller(),
            perm: 0o755,
        };
        Volume::create_with_data(&self.path(file), Some(&self.path(data)), &new, &options(Access::Write))
    }

    fn open(&self) -> Volume {
        self.try_open("at/v").unwrap()
    }

    fn try_open(&self, file: &str) -> adit_core::Result<Volume> {
        Volume::open(&self.path(file), &options(Access::Write))
    }

    /// The kind of the error that opening ends with, and its words.
    fn refused(&self, file: &str) -> (ErrorKind, String) {
        let e = self.try_open(file).err().expect("it is refused");
        (e.kind(), e.to_string())
    }
}

fn options(access: Access) -> OpenOptions {
    OpenOptions { background: false, ..OpenOptions::new(access) }
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn new_node() -> NewNode {
    NewNode { perm: 0o644, umask: 0, caller: own_caller() }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ (at / 4096) as u8 ^ seed).collect()
}

fn write(store: &VolumeStore, at: &str, bytes: &[u8]) {
    let (_, file) = store.create(Ino::ROOT, name(at), &new_node()).unwrap();
    for (n, part) in bytes.chunks(1 << 20).enumerate() {
        file.write_at(&[((n << 20) as u64, part)]).unwrap();
    }
}

fn read(store: &VolumeStore, at: &str) -> adit_core::Result<Vec<u8>> {
    let attr = store.lookup(Ino::ROOT, name(at))?;
    let file = store.open(attr.ino, Access::Read)?;
    let mut bytes = vec![0; attr.size as usize];
    let len = file.read_at(0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// The files of objects in a volume's folder.
fn objects(volume: &Volume) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in fs::read_dir(volume.info().data_dir.unwrap()).unwrap().map(|entry| entry.unwrap().path()) {
        if dir.is_dir() {
            found.extend(fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

fn taken(paths: &[PathBuf]) -> u64 {
    paths.iter().map(|path| path.metadata().unwrap().blocks() * 512).sum()
}

fn problems(volume: &Volume) -> Vec<check::Problem> {
    let options = check::Options { contents: true, repair: false };
    check::check(volume, options, &mut |_| ()).unwrap().problems
}

#[test]
fn content_lies_in_the_folder_and_the_rest_in_the_file() {
    let place = Place::new("at/data");
    let volume = place.open();
    let content = pattern(5 << 20, 1);
    write(&volume.live().unwrap(), "f", &content);
    volume.create_snapshot("main", "s").unwrap();
    volume.close().unwrap();
    let in_folder = objects(&volume);
    assert!(taken(&in_folder) >= 5 << 20, "{in_folder:?}");
    assert!(in_folder.iter().all(|path| path.metadata().unwrap().len() <= SEGMENT));
    let file = fs::read(place.path("at/v")).unwrap();
    assert!(file.len() < 5 << 20, "{}", file.len());
    assert!(!file.windows(64).any(|part| part == &content[..64]));
    drop(volume);
    let volume = place.open();
    assert_eq!(read(&volume.live().unwrap(), "f").unwrap(), content);
    assert_eq!(read(&volume.snapshot("s").unwrap(), "f").unwrap(), content);
    assert_eq!(problems(&volume).len(), 0);
}

#[test]
fn a_snapshot_keeps_its_blocks_and_gc_gives_back_the_others() {
    let place = Place::new("at/data");
    let volume = place.open();
    let store = volume.live().unwrap();
    write(&store, "kept", &pattern(3 << 20, 1));
    volume.create_snapshot("main", "s").unwrap();
    write(&store, "gone", &pattern(6 << 20, 2));
    store.unlink(Ino::ROOT, name("kept")).unwrap();
    store.unlink(Ino::ROOT, name("gone")).unwrap();
    drop(store);
    volume.gc().unwrap();
    let left = taken(&objects(&volume));
    assert!((3 << 20..4 << 20).contains(&left), "{left}");
    assert_eq!(read(&volume.snapshot("s").unwrap(), "kept").unwrap(), pattern(3 << 20, 1));
    volume.delete_snapshot("s").unwrap();
    // What a crash left there, and what is not ours.
    let folder = volume.info().data_dir.unwrap();
    fs::write(folder.join("000000/000003f0"), b"stray").unwrap();
    fs::write(folder.join("000000/notes"), b"mine").unwrap();
    volume.gc().unwrap();
    assert_eq!(objects(&volume), [folder.join("000000/notes")]);
    assert_eq!(problems(&volume).len(), 0);
}

#[test]
fn both_can_be_moved_together_and_a_moved_folder_can_be_named() {
    let place = Place::new("at/data");
    write(&place.open().live().unwrap(), "f", b"small, but longer than nothing");
    fs::rename(place.path("at"), place.path("there")).unwrap();
    assert!(read(&place.try_open("there/v").unwrap().live().unwrap(), "f").is_ok());
    fs::rename(place.path("there/data"), place.path("elsewhere")).unwrap();
    let (kind, words) = place.refused("there/v");
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(words.contains("there/data") && words.contains("is not there"), "{words}");
    let named =
        |access| Volume::open_with_data(&place.path("there/v"), Some(&place.path("elsewhere")), &options(access));
    drop(named(Access::Read).unwrap());
    assert_eq!(place.refused("there/v").0, ErrorKind::NotFound, "who reads changes nothing");
    drop(named(Access::Write).unwrap());
    assert!(place.try_open("there/v").is_ok());
}

#[test]
fn a_folder_that_is_not_the_volumes_is_refused() {
    let place = Place::new("data");
    let folder = |file: &str| place.try_open(file).unwrap().info().data_dir.unwrap();
    place.create("other", "data").unwrap().close().unwrap();
    let (mine, other) = (folder("at/v"), folder("other"));
    assert_ne!(mine, other);
    let away = place.path("away");
    fs::rename(&mine, &away).unwrap();
    let (kind, words) = place.refused("at/v");
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(words.contains("no data of the volume"), "{words}");
    fs::create_dir(&mine).unwrap();
    assert_eq!(place.refused("at/v").0, ErrorKind::NotFound, "an empty one");
    fs::remove_dir(&mine).unwrap();
    fs::rename(&other, &mine).unwrap();
    let (kind, words) = place.refused("at/v");
    assert_eq!(kind, ErrorKind::InvalidInput);
    assert!(words.contains("another volume"), "{words}");
    fs::rename(&mine, &other).unwrap();
    fs::rename(&away, &mine).unwrap();
    let label = fs::OpenOptions::new().write(true).open(mine.join("label")).unwrap();
    label.write_all_at(b"?", 20).unwrap();
    drop(place.try_open("at/v").unwrap());
    label.write_all_at(&[b'?'; 600], 0).unwrap();
    assert_eq!(place.refused("at/v").0, ErrorKind::Corrupt);
    assert!(place.try_open("other").is_ok());
}

/// The file alone is no backup: its folder goes on with the other one.
#[test]
fn a_copy_of_the_file_alone_is_refused_once_the_folder_has_changed() {
    let place = Place::new("at/data");
    place.open().close().unwrap();
    fs::copy(place.path("at/v"), place.path("at/copy")).unwrap();
    let volume = place.open();
    assert_eq!(place.refused("at/copy").0, ErrorKind::Busy, "they share the folder");
    write(&volume.live().unwrap(), "f", &pattern(1 << 20, 1));
    volume.close().unwrap();
    drop(volume);
    let (kind, words) = place.refused("at/copy");
    assert_eq!(kind, ErrorKind::Stale);
    assert!(words.contains("has changed since"), "{words}");
    assert_eq!(read(&place.open().live().unwrap(), "f").unwrap(), pattern(1 << 20, 1));
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 8], offset).unwrap();
}

#[test]
fn damaged_and_missing_objects_are_found_and_named_and_never_zeros() {
    type Harm = fn(&Path);
    let harms: [Harm; 4] = [
        |object| flip(object, 100),
        |object| fs::remove_file(object).unwrap(),
        |object| fs::OpenOptions::new().write(true).open(object).unwrap().set_len(4096 + 100).unwrap(),
        |object| fs::write(object, vec![0; SEGMENT as usize]).unwrap(),
    ];
    for harm in harms {
        let place = Place::new("at/data");
        let volume = place.open();
        write(&volume.live().unwrap(), "a", &pattern(1 << 20, 1));
        write(&volume.live().unwrap(), "b", &pattern(1 << 20, 2));
        volume.close().unwrap();
        let first = objects(&volume).remove(0);
        drop(volume);
        harm(&first);
        let volume = place.open();
        let store = volume.live().unwrap();
        assert_eq!(read(&store, "a").unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(read(&store, "b").unwrap(), pattern(1 << 20, 2));
        drop(store);
        let found = problems(&volume);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].kind, found[0].path.as_deref()), (ProblemKind::DamagedContent, Some("/a")));
    }
}

#[test]
fn the_capacity_holds_for_both_together() {
    let place = Place::new("at/data");
    let volume = place.open();
    let store = volume.live().unwrap();
    let (_, file) = store.create(Ino::ROOT, name("f"), &new_node()).unwrap();
    let bytes = pattern(1 << 20, 3);
    let full = (0..100_u64).find_map(|n| file.write_at(&[(n << 20, &bytes)]).err()).expect("it is full");
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert!((40 << 20..64 << 20).contains(&taken(&objects(&volume))));
    file.set_len(0).unwrap();
    volume.sync().unwrap();
    file.write_at(&[(0, &bytes)]).unwrap();
    drop((file, store));
    volume.close().unwrap();
    drop(volume);
    assert_eq!(read(&place.open().live().unwrap(), "f").unwrap(), bytes);
}
