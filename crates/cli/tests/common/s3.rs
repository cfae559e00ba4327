//! A bucket on the server of the test kit, and the program with what it needs to reach that.

#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]

use std::path::PathBuf;
use std::process::Command;

use adit_testkit::objects::FaultyS3;

use super::common::{Ran, run};
use super::mounts::Points;

/// The root of the content in the bucket, as `--cas` takes it.
pub const STORE: &str = "s3://bucket/Queue";

/// Mountpoints, a server, and a folder `work` to make manifests of.
pub struct Bucket {
    pub server: FaultyS3,
    pub points: Points,
}

impl Bucket {
    /// `None` where mounts are impossible; under CI that is a failure.
    pub fn new(mountpoints: &[&str]) -> Option<Bucket> {
        let points = Points::new(mountpoints)?;
        std::fs::create_dir(points.bench.path("work")).unwrap();
        Some(Bucket { server: FaultyS3::start().unwrap(), points })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.points.bench.path(name)
    }

    /// The program, or another one, with the variables that a worker has.
    pub fn command_of(&self, program: &str) -> Command {
        let mut command = self.points.bench.command_of(program);
        command.envs(self.variables());
        command
    }

    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.server.endpoint()),
            ("AWS_ACCESS_KEY_ID", "access".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
            ("AWS_REGION", "us-west-2".to_owned()),
            ("AWS_CONFIG_FILE", self.points.bench.str("aws-config")),
            ("AWS_SHARED_CREDENTIALS_FILE", self.points.bench.str("aws-credentials")),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
            ("NO_PROXY", "127.0.0.1".to_owned()),
        ]
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.command_of(env!("CARGO_BIN_EXE_adit"));
        command.args(args);
        run(command, b"")
    }

    /// A file of the folder that manifests are made of.
    pub fn write(&self, name: &str, content: &[u8]) {
        let path = self.path("work").join(name);
        std::fs::create_dir_all(path.parent().expect("below the folder")).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Makes the manifest `name` of the folder, and brings its content to the store.
    pub fn snapshot(&self, name: &str, format: &str) {
        let more = ["--format", format, "--cas", STORE, "--cache-dir", "hashes"];
        self.run(&[&["manifest", "snapshot", "work", "-o", name], &more[..]].concat()).expect(0);
    }
}
