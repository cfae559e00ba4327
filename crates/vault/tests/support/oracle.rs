//! Client of the interoperability oracle: the official Cryptomator library, one JVM for a whole test.
//!
//! [`Oracle::start`] starts the program that `cargo xtask test` names in `ADIT_ORACLE_CMD`; [`second_opinion`] runs pycryptomator.
//! Without them a test is not run and says so; under `CI=true` that is a panic. A vault is opened and closed within each call,
//! so nothing of it is cached between two, and the caller may change it in between.

// Each test file that includes this module uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

/// One entry of a vault as the oracle, or the second opinion, sees it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Entry {
    /// From the vault's root, starting with '/'. NFC from the official library, as encrypted from pycryptomator.
    pub path: String,
    /// `dir`, `file`, `symlink`; `unknown` or `listing` (a directory that cannot be listed) with an error.
    pub kind: String,
    /// Cleartext length of a file.
    pub size: Option<u64>,
    /// Of a file's contents, in hex.
    pub sha256: Option<String>,
    /// Of a symlink. The official library normalises it.
    pub target: Option<String>,
    /// Milliseconds since 1970; absent from the fixtures, since git keeps no times.
    pub mtime_ms: Option<i64>,
    /// The name of the error that reading it gave.
    pub error: Option<String>,
}

impl Entry {
    /// The entry without its time, for comparisons with what was made at another moment.
    pub fn timeless(&self) -> Entry {
        Entry { mtime_ms: None, ..self.clone() }
    }
}

/// A result of the official health checks that is not GOOD.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Finding {
    /// Which check.
    pub check: String,
    /// `INFO`, `WARN` or `CRITICAL`.
    pub severity: String,
    /// The result's class, e.g. `OrphanContentDir`.
    pub result: String,
    /// The library's own sentence.
    pub text: String,
    /// What it concerns: ciphertext paths, directory ids.
    pub details: BTreeMap<String, String>,
}

/// What a new vault is to be like.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    /// `SIV_GCM` or `SIV_CTRMAC`.
    pub cipher: &'static str,
    /// Longest ciphertext name, `.c9r` included, that is not shortened.
    pub threshold: u32,
    /// scrypt's N; `None` for the library's own 2^15, which takes 0.1 s and 32 MiB.
    pub scrypt_cost: Option<u32>,
}

impl Default for Init {
    fn default() -> Self {
        Init { cipher: "SIV_GCM", threshold: 220, scrypt_cost: Some(1 << 10) }
    }
}

/// A refusal of the official library.
#[derive(Debug, Clone, Deserialize)]
pub struct Refused {
    /// The exception's class, without its package.
    pub error: String,
    /// Its message.
    pub message: String,
}

/// The running oracle. It ends when this is dropped.
pub struct Oracle {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Oracle {
    /// Starts the oracle; `None`, with a line on stderr, where there is none and this is not CI.
    pub fn start() -> Option<Oracle> {
        let program = program("ADIT_ORACLE_CMD")?;
        let mut child = Command::new(&program)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        Some(Oracle { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// Creates a vault in `dir`, which may be missing.
    pub fn init(&mut self, dir: &Path, password: &str, init: Init) {
        self.must(&json!({
            "cmd": "init", "dir": dir, "password": password, "cipher": init.cipher,
            "threshold": init.threshold, "scrypt_cost": init.scrypt_cost.unwrap_or(0),
        }));
    }

    /// Writes the standard tree; `profile` is one of `full`, `fixture`, `names`, `tiny`, `contents`.
    pub fn populate(&mut self, dir: &Path, password: &str, seed: u32, profile: &str) {
        self.must(&json!({
            "cmd": "populate", "dir": dir, "password": password, "seed": seed, "profile": profile,
        }));
    }

    /// The operations of [`Oracle::populate`], for [`Oracle::apply`] or for a program under test.
    pub fn script(&mut self, seed: u32, profile: &str) -> Vec<Value> {
        self.must(&json!({"cmd": "script", "seed": seed, "profile": profile}))
    }

    /// Edits a vault; see `VaultEdits.java` for the operations. Stops at the first that fails.
    pub fn apply(&mut self, dir: &Path, password: &str, ops: &[Value]) -> Result<(), Refused> {
        self.ask(&json!({"cmd": "apply", "dir": dir, "password": password, "ops": ops})).map(drop)
    }

    /// Lists and reads a whole vault, sorted by the bytes of the paths.
    pub fn dump(&mut self, dir: &Path, password: &str) -> Result<Vec<Entry>, Refused> {
        self.ask(&json!({"cmd": "dump", "dir": dir, "password": password})).map(parsed)
    }

    /// Runs the official health checks; a vault of ours gives an empty list.
    pub fn health(&mut self, dir: &Path, password: &str) -> Result<Vec<Finding>, Refused> {
        self.ask(&json!({"cmd": "health", "dir": dir, "password": password})).map(parsed)
    }

    fn must(&mut self, request: &Value) -> Vec<Value> {
        self.ask(request).unwrap_or_else(|refused| panic!("{request}: {refused:?}"))
    }

    fn ask(&mut self, request: &Value) -> Result<Vec<Value>, Refused> {
        let stdin = self.stdin.as_mut().expect("open until the drop");
        writeln!(stdin, "{request}").expect("the oracle reads its requests");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the oracle answers in UTF-8");
        let mut answer: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("the oracle answered {line:?} to {request}: {error}"));
        if answer["ok"] == true {
            match answer["items"].take() {
                Value::Array(items) => Ok(items),
                other => panic!("the oracle's items are {other}"),
            }
        } else {
            Err(serde_json::from_value(answer).expect("a refusal has error and message"))
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        // It ends at the end of its input.
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// What pycryptomator reads in a SIV_GCM vault; `None` as for [`Oracle::start`], and an error's text if it does not open.
pub fn second_opinion(dir: &Path, password: &str) -> Option<Result<Vec<Entry>, String>> {
    let program = program("ADIT_ORACLE_PY")?;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let password_file = scratch.path().join("password");
    std::fs::write(&password_file, password).expect("the password file");
    let output = Command::new(&program)
        .arg(dir)
        .arg(&password_file)
        .output()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
    if !output.status.success() {
        return Some(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = String::from_utf8(output.stdout).expect("the second opinion speaks UTF-8");
    Some(Ok(parse_lines(&text)))
}

/// Entries from lines of JSON, as in a fixture's `expected.jsonl`.
pub fn parse_lines(text: &str) -> Vec<Entry> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}"))).collect()
}

/// The oracle's reproducible bytes (`VaultEdits.content`): xorshift64* from `seed ^ 0x9e37_79b9_7f4a_7c15`, little-endian.
pub fn content(seed: u64, len_bytes: usize) -> Vec<u8> {
    const START: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = if seed == START { START } else { seed ^ START };
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let output = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        bytes.extend_from_slice(&output.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// The folder of the frozen fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Copies a directory; tests work on copies, since opening a vault may write to it.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the copy's directory");
    for entry in std::fs::read_dir(from).expect("the directory to copy") {
        let entry = entry.expect("an entry to copy");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

fn parsed<T: for<'de> Deserialize<'de>>(items: Vec<Value>) -> Vec<T> {
    items.into_iter().map(|item| serde_json::from_value(item).expect("an item of the oracle")).collect()
}

fn program(variable: &str) -> Option<PathBuf> {
    if let Some(program) = env::var_os(variable).filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(program));
    }
    let in_ci = env::var_os("CI").is_some_and(|value| value == "true" || value == "1");
    assert!(!in_ci, "{variable} is not set: run by `cargo xtask test`");
    // Straight to stderr: what a test prints is shown only if it fails.
    let _ = writeln!(std::io::stderr(), "NOT RUN: {variable} is not set; `cargo xtask test --only interop` sets it");
    None
}
