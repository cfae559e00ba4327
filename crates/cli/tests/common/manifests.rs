//! A folder `work`, its manifest `job`, a folder `store` with the content of its files, and mounts of that.

#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;

use super::common::Ran;
use super::mounts::Points;

/// As above. Paths are below the bench.
pub struct Job(Points);

impl Deref for Job {
    type Target = Points;

    fn deref(&self) -> &Points {
        &self.0
    }
}

impl Job {
    /// With folders of these names to mount on, and empty. `None` where mounts are impossible; under CI that is a failure.
    pub fn new(mountpoints: &[&str]) -> Option<Job> {
        let job = Job(Points::new(mountpoints)?);
        for dir in ["work", "store"] {
            fs::create_dir(job.path(dir)).unwrap();
        }
        Some(job)
    }

    /// A file of the folder.
    pub fn write(&self, name: &str, content: &[u8]) {
        let path = self.path("work").join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Makes the manifest `name` of the folder, and brings its content to the store.
    pub fn snapshot(&self, name: &str, format: &str) {
        let more = ["--format", format, "--cas", "store", "--cache-dir", "hashes"];
        self.run(&[&["manifest", "snapshot", "work", "-o", name], &more[..]].concat()).expect(0);
    }

    /// Mounts `job` on `mnt`.
    pub fn mount(&self, more: &[&str]) -> Ran {
        self.run(&[&["mount", "job", "mnt", "--cas", "store", "--cache-dir", "cache"], more].concat())
    }

    pub fn umount(&self) {
        self.run(&["umount", "mnt"]).expect(0);
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        self.bench.run(args)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.bench.path(name)
    }

    /// A path below the mountpoint.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path("mnt").join(name)
    }

    /// The objects of the store.
    pub fn objects(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path("store/Data")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The object that is so long.
    pub fn object_of(&self, len: usize) -> PathBuf {
        let found = self.objects().into_iter().find(|path| path.metadata().unwrap().len() == len as u64);
        found.expect("an object of this length")
    }

    /// The store's counters.
    pub fn stats(&self) -> serde_json::Value {
        self.run(&["stats", "mnt", "--json"]).expect(0).json()["store"].clone()
    }

    /// What the mount tells of a file.
    pub fn state(&self, name: &str) -> String {
        let mut value = [0; 32];
        let len = rustix::fs::getxattr(self.at(name), c"user.adit.state", &mut value).unwrap();
        String::from_utf8(value[..len].to_vec()).unwrap()
    }
}
