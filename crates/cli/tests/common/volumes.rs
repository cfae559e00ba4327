//! A volume `box` with several folders to mount it on.

#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{Ran, Start};
use super::mounts::{Points, mount_line};

/// Folders to mount on.
pub const POINTS: [&str; 3] = ["mnt", "mnt2", "mnt3"];

/// See the module's notes.
pub struct Boxed(Points);

impl Deref for Boxed {
    type Target = Points;

    fn deref(&self) -> &Points {
        &self.0
    }
}

impl Boxed {
    /// `None` where mounts are impossible; under CI that is a failure.
    pub fn new() -> Option<Boxed> {
        Boxed::with("1G")
    }

    /// Of this capacity.
    pub fn with(capacity: &str) -> Option<Boxed> {
        let points = Points::new(&POINTS)?;
        points.bench.run(["volume", "init", &points.bench.str("box"), "--capacity", capacity]).expect(0);
        Some(Boxed(points))
    }

    pub fn mount(&self, point: &str, more: &[&str]) -> Ran {
        self.bench.run(["mount", &self.bench.str("box"), &self.bench.str(point)].iter().chain(more))
    }

    pub fn umount(&self, point: &str) {
        self.bench.run(["umount", point]).expect(0);
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.bench.path(path)
    }

    /// `of("snapshot create", "mnt", &["s"])` is `adit snapshot create MNT s`.
    pub fn of(&self, verbs: &str, x: &str, args: &[&str]) -> Ran {
        let mut line: Vec<String> = verbs.split(' ').map(str::to_owned).collect();
        line.push(self.bench.str(x));
        line.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.bench.run(line)
    }

    pub fn expect_sound(&self) {
        self.of("volume check", "box", &[]).expect(0);
    }
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What a line of the shell says, run in `dir`.
pub fn shell(line: &str, dir: &Path) -> String {
    let ran = Command::new("sh").args(["-ec", line]).current_dir(dir).start_and_read().unwrap();
    assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

pub fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// What tells one mount from the next in the same place.
pub fn mount_id(point: &Path) -> String {
    mount_line(point).expect("mounted").split(' ').next().unwrap().to_owned()
}
