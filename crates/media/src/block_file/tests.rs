//! The seam on a real file.

use std::os::unix::fs::MetadataExt;

use super::*;

fn file() -> (tempfile::TempDir, HostBlockFile) {
    let dir = tempfile::tempdir().unwrap();
    let file = HostBlockFile::create(&dir.path().join("f")).unwrap();
    (dir, file)
}

#[test]
fn reads_what_was_written_and_is_short_at_the_end_only() {
    let (_dir, file) = file();
    file.write_at(10, b"hello").unwrap();
    let mut buf = [1; 20];
    assert_eq!(file.read_at(8, &mut buf).unwrap(), 7);
    assert_eq!(&buf[..7], b"\0\0hello");
    assert_eq!(file.read_at(100, &mut buf).unwrap(), 0);
    assert_eq!(file.len().unwrap(), 15);
    file.set_len(4096).unwrap();
    assert_eq!(file.read_at(4090, &mut buf).unwrap(), 6);
    file.sync().unwrap();
}

#[test]
fn punching_gives_zeros_and_keeps_the_length() {
    let (dir, file) = file();
    file.write_at(0, &[7; 64 << 10]).unwrap();
    file.sync().unwrap();
    match file.punch(0, 32 << 10) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => return,
        result => result.unwrap(),
    }
    let mut buf = [1; 2];
    assert_eq!(file.read_at((32 << 10) - 1, &mut buf).unwrap(), 2);
    assert_eq!((buf, file.len().unwrap()), ([0, 7], 64 << 10));
    assert!(dir.path().join("f").metadata().unwrap().blocks() * 512 <= 40 << 10);
}

#[test]
fn space_is_kept_and_nothing_else_changes() {
    let (dir, file) = file();
    file.write_at(0, b"hello").unwrap();
    match file.allocate(0, 1 << 20) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => return,
        result => result.unwrap(),
    }
    let mut buf = [1; 8];
    assert_eq!((file.read_at(0, &mut buf).unwrap(), &buf[..5], file.len().unwrap()), (5, &b"hello"[..], 5));
    assert!(dir.path().join("f").metadata().unwrap().blocks() * 512 >= 1 << 20);
}

#[test]
fn one_handle_at_a_time_has_the_lock() {
    let (dir, file) = file();
    let path = dir.path().join("f");
    let other = HostBlockFile::open(&path, Access::Write).unwrap();
    let reader = HostBlockFile::open(&path, Access::Read).unwrap();
    assert!(file.try_lock().unwrap());
    assert!(file.try_lock().unwrap(), "its own is no obstacle");
    assert!(!other.try_lock().unwrap() && !reader.try_lock().unwrap());
    drop(file);
    assert!(reader.try_lock().unwrap() && !other.try_lock().unwrap());
}

#[test]
fn only_regular_files_are_opened_and_only_new_ones_made() {
    let (dir, _file) = file();
    assert_eq!(HostBlockFile::open(dir.path(), Access::Read).err().unwrap().kind(), io::ErrorKind::InvalidInput);
    let taken = HostBlockFile::create(&dir.path().join("f")).err().unwrap();
    assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
}
