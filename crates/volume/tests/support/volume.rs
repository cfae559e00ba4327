//! A volume in a file of its own, by path.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;
use std::sync::Arc;

use adit_core::types::{Access, Caller};
use adit_volume::volume::{CreateOptions, Durability, OpenOptions};
use adit_volume::{Fs, FsOptions, Volume};

/// A folder with a volume in it.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub path: PathBuf,
}

pub fn options() -> OpenOptions {
    OpenOptions::new(Access::Write)
}

impl Place {
    /// With a new volume of 256 MiB.
    pub fn new() -> (Place, Arc<Volume>) {
        Place::with(256 << 20)
    }

    /// With a new volume of so many bytes.
    pub fn with(capacity_bytes: u64) -> (Place, Arc<Volume>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        let new = CreateOptions {
            capacity_bytes: Some(capacity_bytes),
            durability: Durability::Fsync,
            owner: Caller { uid: 0, gid: 0 },
            perm: 0o755,
        };
        let volume = Volume::create(&path, &new, &options()).unwrap();
        (Place { dir, path }, Arc::new(volume))
    }

    /// Opened again.
    pub fn open(&self) -> Arc<Volume> {
        Arc::new(Volume::open(&self.path, &options()).unwrap())
    }
}

/// The live tree of a new volume.
pub fn fresh() -> (Place, Arc<Volume>, Fs) {
    let (place, volume) = Place::new();
    let fs = Fs::live(&volume, FsOptions::default()).unwrap();
    (place, volume, fs)
}

/// Nothing is wrong with it.
pub fn check(volume: &Volume) {
    let report = volume.tree().verify().unwrap();
    assert_eq!(report.problems, [""; 0]);
}
