//! Client of the manifests' oracle: the official job-attachment packages, one process for a whole test.
//!
//! [`Official::start`] runs `oracle/official.py` with the interpreter that `cargo xtask test` names in `ADIT_DEADLINE_PYTHON`. Without
//! it a test is not run and says so; under `CI=true` that is a panic.

// Each test file that includes this module uses a part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use adit_servers::S3Server;
use serde::Deserialize;
use serde_json::{Value, json};

/// The oracle, seen from each crate whose tests ask it.
const ORACLE: &str = "../manifest/tests/oracle/official.py";

/// A refusal of the official packages.
#[derive(Debug, Clone, Deserialize)]
pub struct Refused {
    /// The exception's class.
    pub error: String,
    /// Its message.
    pub message: String,
}

/// What the program `deadline` did.
#[derive(Debug, Clone, Deserialize)]
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// What it printed.
    pub output: String,
}

/// An object in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Object {
    /// Its length in bytes.
    pub size: u64,
    /// Its own metadata, with lower-case names.
    pub metadata: BTreeMap<String, String>,
}

/// What changed, by paths in WTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Paths that were not there.
    pub new: BTreeSet<Vec<u8>>,
    /// Paths with something else than before.
    pub modified: BTreeSet<Vec<u8>>,
    /// Paths that are gone.
    pub deleted: BTreeSet<Vec<u8>>,
    /// Paths with what was there; a folder's are not told.
    pub unchanged: BTreeSet<Vec<u8>>,
}

impl Changes {
    /// What is there now, and was not or was something else.
    pub fn written(&self) -> BTreeSet<Vec<u8>> {
        &self.new | &self.modified
    }
}

/// A farm, a queue and a bucket: where job attachments lie.
#[derive(Debug, Clone, Copy)]
pub struct Queue<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// The root prefix in it.
    pub root: &'a str,
    /// The farm's id.
    pub farm: &'a str,
    /// The queue's id.
    pub queue: &'a str,
}

/// What a worker does.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    /// The job's id.
    pub job: &'a str,
    /// The step's id.
    pub step: &'a str,
    /// The task's id.
    pub task: &'a str,
    /// The session action's id.
    pub action: &'a str,
}

/// The official packages, running. They end when this is dropped.
pub struct Official {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Official {
    /// Starts them, with `home` for their caches and their configuration; `server` is the only one that they can reach.
    ///
    /// `None`, with a line on standard error, where they are not there and this is not CI.
    pub fn start(home: &Path, server: Option<&S3Server>) -> Option<Official> {
        Self::start_with(home, server, &[])
    }

    /// The same, with more variables.
    pub fn start_with(home: &Path, server: Option<&S3Server>, more: &[(&str, &Path)]) -> Option<Official> {
        let python = python()?;
        let mut command = Command::new(&python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(ORACLE)).arg("serve");
        // Nothing of the developer's: no profile, no credentials, no endpoint.
        command.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path)));
        command.env("HOME", home).env("LC_ALL", "C.UTF-8").env("DEADLINE_CLOUD_TELEMETRY_OPT_OUT", "true");
        command.env("AWS_REGION", adit_servers::REGION).env("AWS_DEFAULT_REGION", adit_servers::REGION);
        command.envs(server.map(S3Server::variables).unwrap_or_default()).envs(more.iter().copied());
        let mut child = command
            .current_dir(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", python.display()));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        Some(Official { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// Decodes a manifest and encodes it again.
    pub fn recode(&mut self, text: &str) -> Result<String, Refused> {
        self.ask(json!({"cmd": "recode", "text": text}))
    }

    /// A manifest of random entries, the same for the same seed; fewer where names were folders of others.
    pub fn random_manifest(&mut self, seed: u64, count: usize) -> String {
        self.must(json!({"cmd": "random_manifest", "seed": seed, "count": count}))
    }

    /// Merges manifests, the last wins.
    pub fn merge(&mut self, texts: &[String]) -> String {
        self.must(json!({"cmd": "merge", "texts": texts}))
    }

    /// What changed from one manifest to another.
    pub fn compare(&mut self, before: &str, now: &str) -> Changes {
        self.changes(json!({"cmd": "compare", "before": before, "now": now}))
    }

    /// What changed in a folder since a manifest was made of it.
    pub fn folder_diff(&mut self, manifest: &Path, root: &Path) -> Changes {
        self.changes(json!({"cmd": "folder_diff", "manifest": manifest, "root": root}))
    }

    /// The hash of every file below a folder, by its relative path.
    pub fn hashes(&mut self, root: &Path) -> BTreeMap<String, String> {
        self.must(json!({"cmd": "hashes", "root": root}))
    }

    /// The hash of a root's path, as it is in the names of manifests.
    pub fn root_hash(&mut self, root: &str) -> String {
        self.must(json!({"cmd": "root_hash", "root": root}))
    }

    /// Runs `deadline ARGUMENTS...`.
    pub fn deadline(&mut self, arguments: &[&str]) -> Ran {
        self.must(json!({"cmd": "deadline", "arguments": arguments}))
    }

    /// Uploads a folder as a job's inputs; the attachments of the job's JSON.
    pub fn submit_inputs(&mut self, queue: Queue<'_>, folder: &Path) -> Value {
        self.must(of_queue(queue, json!({"cmd": "submit_inputs", "folder": folder})))
    }

    /// Writes `Data/` and `Manifests/` of a folder below `to`, without S3; the attachments of the job's JSON.
    pub fn snapshot(&mut self, queue: Queue<'_>, folder: &Path, to: &Path) -> Value {
        let (farm, queue) = (queue.farm, queue.queue);
        self.must(json!({"cmd": "snapshot", "farm": farm, "queue": queue, "folder": folder, "to": to}))
    }

    /// Uploads the files of `folder` as a worker does with what `task` left below `asset_root`/out.
    pub fn worker_outputs(
        &mut self,
        queue: Queue<'_>,
        task: Task<'_>,
        asset_root: &str,
        folder: &Path,
        session: &Path,
    ) {
        let Task { job, step, task, action } = task;
        self.must(of_queue(
            queue,
            json!({
                "cmd": "worker_outputs", "job": job, "step": step, "task": task, "action": action,
                "asset_root": asset_root, "folder": folder, "session": session,
            }),
        ))
    }

    /// The output manifests that a download of a job's output finds, by asset root; of a step or a task where they are told.
    pub fn outputs(
        &mut self,
        queue: Queue<'_>,
        job: &str,
        step: Option<&str>,
        task: Option<&str>,
    ) -> BTreeMap<String, Vec<String>> {
        self.must(of_queue(queue, json!({"cmd": "outputs", "job": job, "step": step, "task": task})))
    }

    /// Downloads a job's output, each asset root to its folder in `to`; the relative paths of all files, lone surrogates replaced.
    pub fn download_outputs(
        &mut self,
        queue: Queue<'_>,
        job: &str,
        to: &[(&str, &Path)],
    ) -> Result<Vec<String>, Refused> {
        let to: BTreeMap<&str, &Path> = to.iter().copied().collect();
        let paths: Vec<String> = self.ask(of_queue(queue, json!({"cmd": "download_outputs", "job": job, "to": to})))?;
        Ok(paths.iter().map(|path| String::from_utf8_lossy(&from_hex(path)).into_owned()).collect())
    }

    /// Makes a bucket.
    pub fn make_bucket(&mut self, bucket: &str) {
        self.must(json!({"cmd": "make_bucket", "bucket": bucket}))
    }

    /// Every object below a prefix.
    pub fn objects(&mut self, bucket: &str, prefix: &str) -> BTreeMap<String, Object> {
        self.must(json!({"cmd": "objects", "bucket": bucket, "prefix": prefix}))
    }

    /// Writes an object of text.
    pub fn put_object(&mut self, bucket: &str, key: &str, text: &str, metadata: &[(&str, &str)]) {
        let metadata: BTreeMap<&str, &str> = metadata.iter().copied().collect();
        self.must(json!({"cmd": "put_object", "bucket": bucket, "key": key, "text": text, "metadata": metadata}))
    }

    /// Reads an object of text.
    pub fn get_object(&mut self, bucket: &str, key: &str) -> String {
        self.must(json!({"cmd": "get_object", "bucket": bucket, "key": key}))
    }

    /// The command line with which a worker mounts a manifest.
    pub fn vfs_command(
        &mut self,
        bucket: &str,
        manifest: &Path,
        mount: &Path,
        cas_prefix: &str,
        cache: &Path,
    ) -> String {
        self.must(json!({
            "cmd": "vfs_command", "bucket": bucket, "region": adit_servers::REGION, "manifest": manifest, "mount": mount,
            "user": "root", "cas_prefix": cas_prefix, "cache": cache,
        }))
    }

    /// Mounts a manifest as a worker does, with the folder that the variable `DEADLINE_VFS_PATH` names.
    pub fn vfs_mount(
        &mut self,
        queue: Queue<'_>,
        manifest: &Path,
        mount: &Path,
        session: &Path,
    ) -> Result<(), Refused> {
        let (bucket, root) = (queue.bucket, queue.root);
        self.ask(json!({
            "cmd": "vfs_mount", "bucket": bucket, "root": root, "manifest": manifest, "mount": mount, "session": session,
            "user": "root", "group": "root",
        }))
    }

    /// Ends what was mounted in a session, as a worker does.
    pub fn vfs_unmount(&mut self, session: &Path) -> Result<(), Refused> {
        self.ask(json!({"cmd": "vfs_unmount", "session": session, "user": "root"}))
    }

    /// Mounts a job's inputs, and the outputs of the steps that it depends on, as a worker does in the folder `session`. The mounts
    /// have `variables` and nothing else of this environment. The folder of each asset root.
    pub fn session_inputs(
        &mut self,
        queue: Queue<'_>,
        job: (&str, &Value),
        session: &Path,
        variables: &BTreeMap<&str, String>,
        steps: &[&str],
    ) -> Result<BTreeMap<String, PathBuf>, Refused> {
        self.ask(of_queue(
            queue,
            json!({
                "cmd": "session_inputs", "job": job.0, "attachments": job.1, "session": session, "user": "root", "group": "root",
                "variables": variables, "steps": steps,
            }),
        ))
    }

    /// Uploads what `task` left below the mounts of a session.
    pub fn session_outputs(&mut self, queue: Queue<'_>, task: Task<'_>, attachments: &Value, session: &Path) {
        let Task { job, step, task, action } = task;
        self.must(of_queue(
            queue,
            json!({
                "cmd": "session_outputs", "job": job, "step": step, "task": task, "action": action,
                "attachments": attachments, "session": session,
            }),
        ))
    }

    /// Ends what is mounted in a session.
    pub fn session_end(&mut self, session: &Path) -> Result<(), Refused> {
        self.ask(json!({"cmd": "session_end", "session": session, "user": "root"}))
    }

    fn changes(&mut self, request: Value) -> Changes {
        let mut told: BTreeMap<String, BTreeSet<String>> = self.must(request);
        let mut of = |status| told.remove(status).unwrap_or_default().iter().map(|path| from_hex(path)).collect();
        let changes =
            Changes { new: of("NEW"), modified: of("MODIFIED"), deleted: of("DELETED"), unchanged: of("UNCHANGED") };
        assert!(told.is_empty(), "more that can be said of a file: {told:?}");
        changes
    }

    fn must<T: for<'de> Deserialize<'de>>(&mut self, request: Value) -> T {
        let shown = request.to_string();
        self.ask(request).unwrap_or_else(|refused| panic!("{shown}: {refused:?}"))
    }

    fn ask<T: for<'de> Deserialize<'de>>(&mut self, request: Value) -> Result<T, Refused> {
        let stdin = self.stdin.as_mut().expect("open until the drop");
        writeln!(stdin, "{request}").expect("the official packages read their requests");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("they answer in ASCII");
        let mut answer: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("answered {line:?} to {request}: {error}"));
        if answer["ok"] == true {
            Ok(serde_json::from_value(answer["value"].take()).expect("a value of the kind that was asked for"))
        } else {
            Err(serde_json::from_value(answer).expect("a refusal has error and message"))
        }
    }
}

impl Drop for Official {
    fn drop(&mut self) {
        // They end at the end of their input.
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

fn of_queue(queue: Queue<'_>, mut request: Value) -> Value {
    request["bucket"] = queue.bucket.into();
    request["root"] = queue.root.into();
    request["farm"] = queue.farm.into();
    request["queue"] = queue.queue.into();
    request
}

fn from_hex(text: &str) -> Vec<u8> {
    assert_eq!(text.len() % 2, 0, "{text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

fn python() -> Option<PathBuf> {
    const VARIABLE: &str = "ADIT_DEADLINE_PYTHON";
    if let Some(program) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(program));
    }
    let in_ci = env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
    assert!(!in_ci, "{VARIABLE} is not set: run by `cargo xtask test`");
    // Straight to stderr: what a test prints is shown only if it fails.
    let _ = writeln!(std::io::stderr(), "NOT RUN: {VARIABLE} is not set; `cargo xtask test --only interop` sets it");
    None
}
