//! Random folders on the host, and the manifests that ours makes of them.

// Each test file that includes this module uses a part of it.
#![allow(dead_code)]

use std::ffi::OsString;
use std::fs::{self, FileTimes};
use std::iter;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use adit_core::path::Tree;
use adit_dir::DirStore;
use adit_manifest::format::{Format, Manifest};
use adit_manifest::snapshot::{Event, Filter, Options, snapshot};
use adit_testkit::Rng;

use super::manifests::{micros, read, written};

/// Files of a random folder.
const FILES_COUNT: usize = 200;

/// A name as a host may have it: any bytes but the slash and NUL, now and then hidden.
fn host_name(rng: &mut Rng) -> OsString {
    let pieces: [&[u8]; 16] = [
        b"a",
        b"Z",
        b" ",
        b".",
        b"*[?",
        b"\"\\",
        b"\t\n\x7f\x01",
        "é".as_bytes(),
        "e\u{301}".as_bytes(),
        "日本".as_bytes(),
        "\u{fb00}".as_bytes(),
        "\u{1f600}".as_bytes(),
        // No UTF-8: bytes alone, a character that is cut, a surrogate.
        b"\xe9",
        b"\xff\x80",
        b"\xe6\x97",
        b"\xed\xa0\x80",
    ];
    let mut bytes: Vec<u8> = (0..1 + rng.below(6)).flat_map(|_| rng.pick(&pieces).to_vec()).collect();
    bytes.extend_from_slice(rng.next_u64().to_string().as_bytes());
    OsString::from_vec(bytes)
}

fn random_content(rng: &mut Rng) -> Vec<u8> {
    let mut content = vec![0; [0, 1, 17, 241, 5000, 70_000][rng.below(6) as usize]];
    rng.fill(&mut content);
    content
}

/// Sets the time of the last modification, in nanoseconds since 1970.
fn set_mtime(path: &Path, nanos: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos);
    fs::File::options().append(true).open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

fn random_mtime(rng: &mut Rng) -> u64 {
    rng.below(1_800_000_000) * 1_000_000_000 + rng.below(1_000_000_000)
}

/// Adds a file to a folder.
fn add_file(rng: &mut Rng, folder: &Path) -> PathBuf {
    let path = folder.join(host_name(rng));
    fs::write(&path, random_content(rng)).unwrap();
    set_mtime(&path, random_mtime(rng));
    if rng.percent(20) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    path
}

/// Makes a link at `path` to `to`, both below `root`, by the way from one to the other.
fn link(root: &Path, to: &Path, path: &Path) {
    let depth = path.strip_prefix(root).unwrap().components().count();
    let mut target: PathBuf = iter::repeat_n("..", depth - 1).collect();
    target.push(to.strip_prefix(root).unwrap());
    symlink(target, path).unwrap();
}

/// Fills a folder: its files, which are no links.
pub fn plant(rng: &mut Rng, root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.to_path_buf()];
    for _ in 0..FILES_COUNT / 10 {
        let parent = rng.pick(&folders[folders.len() / 2..]).clone();
        folders.push(parent.join(host_name(rng)));
        fs::create_dir_all(folders.last().unwrap()).unwrap();
    }
    let mut files = Vec::new();
    for _ in 0..FILES_COUNT {
        let folder = rng.pick(&folders);
        files.push(add_file(rng, folder));
    }
    for _ in 0..FILES_COUNT / 10 {
        let to = if rng.percent(10) { root.join("nowhere") } else { rng.pick(&files).clone() };
        link(root, &to, &rng.pick(&folders).join(host_name(rng)));
    }
    // In the root alone, and to what lies below it: no loops.
    for _ in 0..3 {
        let to: &PathBuf = rng.pick(&folders[1..]);
        link(root, to, &root.join(host_name(rng)));
    }
    files
}

/// Changes some of the files.
pub fn edit(rng: &mut Rng, files: &[PathBuf]) {
    for path in files {
        let mtime = micros(path);
        match rng.below(12) {
            0 => fs::write(path, random_content(rng)).unwrap(),
            1 => {
                // As long as before, and with another time.
                let len = fs::metadata(path).unwrap().len();
                fs::write(path, vec![b'x'; len as usize]).unwrap();
                set_mtime(path, random_mtime(rng));
            }
            2 => fs::remove_file(path).unwrap(),
            // What a download may change: the same to both. Theirs divides in floating point, which is exact for whole ones.
            3 => set_mtime(path, (mtime as u64 + 1) * 1000),
            4 => set_mtime(path, (mtime as u64 + 2) * 1000),
            5 => {
                add_file(rng, path.parent().unwrap());
            }
            6 => {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
                add_file(rng, path);
            }
            7 => fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap(),
            _ => {}
        }
    }
}

/// The manifest of a folder, of what the official command takes in: all but what is hidden. As it is read.
pub fn of_folder(root: &Path) -> Manifest {
    let store = DirStore::open(root, true).unwrap();
    let filter = Filter::new(&[], &["**/.*"]).unwrap();
    let options = Options { format: Format::V2023, filter: &filter, threads: 2, known: None, names: None };
    let taken = snapshot(&Tree::new(&store), b"/", &options, &mut |event| match event {
        Event::Failed { error, .. } => panic!("{error}"),
        _ => ControlFlow::Continue(()),
    });
    read(&written(&taken.unwrap().manifest))
}
