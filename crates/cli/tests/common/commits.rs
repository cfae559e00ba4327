//! A folder, its manifest, and a writable mount of that on which commits are made.

#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::common::{Ran, pattern};
use super::manifests::Job;

/// Longer than a block of the cache.
pub const LARGE_LEN: usize = (5 << 20) + 3;

/// A job with a bit of everything in it.
pub struct World(Job);

impl Deref for World {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.0
    }
}

impl World {
    /// `None` where mounts are impossible; under CI that is a failure.
    pub fn new(format: &str) -> Option<World> {
        let world = World(Job::new(&["mnt"])?);
        let at = |name: &str| world.path("work").join(name);
        for dir in ["dir/deep", "gone/deep", "other", "empty", "swap"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let names = ["a", "b", "c", "dir/x", "dir/deep/y", "gone/x", "gone/deep/y", "other/file", "swap/in", "tool"];
        for name in names {
            fs::write(at(name), name).unwrap();
        }
        fs::write(at("large"), pattern(LARGE_LEN)).unwrap();
        fs::set_permissions(at("tool"), PermissionsExt::from_mode(0o755)).unwrap();
        if format == "v2025" {
            symlink("dir/x", at("link")).unwrap();
        }
        world.snapshot("job", format);
        Some(world)
    }

    /// To be written to.
    pub fn mount(&self) {
        self.0.mount(&["--writable"]).expect(0);
    }

    pub fn commit(&self, more: &[&str]) -> Ran {
        self.run(&[&["manifest", "commit", "mnt"], more].concat())
    }

    pub fn told(&self, more: &[&str]) -> Value {
        self.commit(&[more, &["--json"]].concat()).expect(0).json()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Every file below a folder of the bench, with its length.
    pub fn files(&self, folder: &str) -> BTreeMap<PathBuf, u64> {
        fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, u64>) {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else {
                    found.insert(path.clone(), path.metadata().unwrap().len());
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.bench.path(folder), &mut found);
        found
    }

    /// The keys of the manifests in the store.
    pub fn manifests(&self) -> Vec<String> {
        let root = self.bench.path("store");
        let keys = self.files("store").into_keys();
        let keys = keys.map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
        keys.filter(|key| key.starts_with("Manifests/")).collect()
    }

    /// Names of the upper's snapshots.
    pub fn snapshots(&self) -> Value {
        self.run(&["snapshot", "list", "mnt", "--json"]).expect(0).json()
    }

    /// A bit of everything that can be done to a tree.
    pub fn change(&self) {
        let at = |name: &str| self.at(name);
        // As an editor saves, in place, cut and made longer again.
        fs::write(at("a.tmp"), "edited").unwrap();
        fs::rename(at("a.tmp"), at("a")).unwrap();
        let large = File::options().write(true).open(at("large")).unwrap();
        large.write_all_at(b"here", 4 << 20).unwrap();
        large.set_len(LARGE_LEN as u64 - 5000).unwrap();
        large.set_len(LARGE_LEN as u64 - 1000).unwrap();
        drop(large);
        fs::set_permissions(at("b"), PermissionsExt::from_mode(0o755)).unwrap();
        File::options().write(true).open(at("c")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        // Folders that move, go, come anew, and change places with files.
        fs::rename(at("dir"), at("moved")).unwrap();
        fs::write(at("moved/new"), "new").unwrap();
        fs::remove_file(at("moved/deep/y")).unwrap();
        fs::remove_dir_all(at("gone")).unwrap();
        fs::create_dir(at("gone")).unwrap();
        fs::write(at("gone/x"), "gone/x").unwrap();
        fs::remove_dir_all(at("swap")).unwrap();
        fs::write(at("swap"), "a file now").unwrap();
        fs::remove_file(at("tool")).unwrap();
        fs::create_dir(at("tool")).unwrap();
        fs::write(at("tool/é \u{1f600}"), "below").unwrap();
        fs::hard_link(at("other/file"), at("second name")).unwrap();
        fs::create_dir(at("fresh")).unwrap();
        fs::write(at("fresh/same as c"), "c").unwrap();
    }

    /// The state of a file, as `status` tells it.
    pub fn status(&self, name: &str) -> String {
        let told = self.run(&["status", "mnt", name, "--json"]).expect(0).json();
        told[0]["state"].as_str().unwrap().to_owned()
    }
}
