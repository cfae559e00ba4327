//! A vault and a home of its own for each test, and the program to run on them.

#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use serde_json::Value;

pub const PASSWORD: &str = "correct horse battery";
/// No command takes longer, unless it hangs; times the scale.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    #[track_caller]
    pub fn expect(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.text(), self.stderr);
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// What it said beside the line that tells of a whole copy.
    pub fn remarks(&self) -> String {
        let is_sum = |line: &&str| {
            ["adit: put: ", "adit: get: "].iter().any(|verb| {
                line.strip_prefix(verb).is_some_and(|rest| rest.contains(" entries, ") || rest.starts_with("1 entry, "))
            })
        };
        self.stderr.lines().filter(|line| !is_sum(line)).collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    pub fn says(self, what: &str) -> Ran {
        assert!(self.stderr.contains(what), "{what:?} is not in: {}", self.stderr);
        self
    }
}

/// A process that is killed on drop.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder with a place for a vault, state, runtime files and a password file.
pub struct Bench {
    pub dir: tempfile::TempDir,
}

impl Bench {
    /// Without a vault.
    pub fn bare() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        std::fs::DirBuilder::new().mode(0o700).create(dir.path().join("run")).unwrap();
        std::fs::write(dir.path().join("password"), format!("{PASSWORD}\n")).unwrap();
        Bench { dir }
    }

    /// With an empty vault.
    pub fn new() -> Bench {
        let bench = Bench::bare();
        bench.run(["vault", "init", bench.vault_str(), "--password-file", bench.password_str()]).expect(0);
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn str(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn vault(&self) -> PathBuf {
        self.path("vault")
    }

    pub fn vault_str(&self) -> &'static str {
        Box::leak(self.str("vault").into_boxed_str())
    }

    pub fn password_str(&self) -> &'static str {
        Box::leak(self.str("password").into_boxed_str())
    }

    /// The program with an environment of its own.
    pub fn command(&self) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_adit"))
    }

    /// Another program in the same environment.
    pub fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("HOME", self.dir.path())
            .env_remove("ADIT_LOG")
            .env_remove("ADIT_DEVICE")
            .env_remove("XDG_CACHE_HOME")
            .current_dir(self.dir.path());
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.run_with(args, b"")
    }

    /// Runs with `stdin`.
    pub fn run_with<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, stdin: &[u8]) -> Ran {
        let mut command = self.command();
        command.args(args);
        run(command, stdin)
    }

    /// A mountless verb on the vault, with its password: `open(&["ls"], &["/"])` is `adit ls VAULT / --password-file …`.
    pub fn open(&self, verb: &str, args: &[&str]) -> Ran {
        let mut line = vec![verb, self.vault_str()];
        line.extend_from_slice(args);
        line.extend_from_slice(&["--password-file", self.password_str()]);
        self.run(line)
    }

    /// Writes files with these contents, and the folders above them, and puts the topmost of those into the vault's root.
    pub fn put_tree(&self, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = self.path(name);
            std::fs::create_dir_all(path.parent().expect("below the bench")).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let mut tops: Vec<&str> = files.iter().filter_map(|(name, _)| name.split('/').next()).collect();
        tops.dedup();
        self.open("put", &[&tops[..], &["/"]].concat()).expect(0);
    }

    /// `adit vault check` with these further options.
    pub fn check(&self, more: &[&str]) -> Ran {
        let mut line = vec!["vault", "check", self.vault_str(), "--password-file", self.password_str()];
        line.extend_from_slice(more);
        self.run(line)
    }

    /// The mounts below this bench's folder: `adit mounts --json` lists all of this user's.
    pub fn mounts(&self) -> Vec<Value> {
        let all = self.run(["mounts", "--json"]).expect(0).json();
        let own = self.dir.path().canonicalize().unwrap();
        let is_own = |mount: &&Value| Path::new(mount["mountpoint"].as_str().unwrap()).starts_with(&own);
        all.as_array().expect("a list").iter().filter(is_own).cloned().collect()
    }

    /// Waits until nobody else sees a mount that was detached: a test that starts a namespace of its own has copies of all mounts for a moment.
    #[track_caller]
    pub fn await_detached(&self) {
        eventually("it is mounted nowhere", || self.mounts().iter().any(|mount| mount["state"] == "detached"));
    }

    /// Every ciphertext file of the vault that holds content.
    pub fn content_files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut todo = vec![self.vault().join("d")];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() {
                    todo.push(path);
                } else if name.ends_with(".c9r") && name != "dirid.c9r" && name != "dir.c9r" {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

/// Held by who starts a program, until that runs. See [`Start`].
static STARTING: RwLock<()> = RwLock::new(());

/// Starting programs in tests with mounts.
///
/// A program that starts has a copy of every descriptor of this process, also of those that other tests have open, until it
/// runs. A file on a mount that is closed meanwhile is open there still, and the mount cannot be unmounted. So whoever starts
/// something after closing a file waits first until all that others start runs.
pub trait Start {
    /// As [`Command::spawn`].
    fn start(&mut self) -> io::Result<Child>;
    /// As [`Command::status`].
    fn start_and_wait(&mut self) -> io::Result<ExitStatus>;
    /// As [`Command::output`].
    fn start_and_read(&mut self) -> io::Result<Output>;
}

impl Start for Command {
    fn start(&mut self) -> io::Result<Child> {
        drop(STARTING.write());
        let _starting = STARTING.read();
        // It runs when this returns.
        self.spawn()
    }

    fn start_and_wait(&mut self) -> io::Result<ExitStatus> {
        self.start()?.wait()
    }

    fn start_and_read(&mut self) -> io::Result<Output> {
        self.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).start()?.wait_with_output()
    }
}

/// Runs `command`, and kills it if it hangs.
pub fn run(mut command: Command, stdin: &[u8]) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .start()
        .expect("the program starts");
    // A program that wants no input may be gone already.
    let _ = child.stdin.take().expect("piped").write_all(stdin);
    let mut stdout = child.stdout.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let err = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let deadline = Instant::now() + COMMAND_TIMEOUT * adit_testkit::scaled(1) as u32;
    let status = loop {
        if let Some(status) = child.try_wait().expect("our child") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it hangs: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ran {
        code: status.code(),
        stdout: out.join().unwrap().unwrap(),
        stderr: String::from_utf8_lossy(&err.join().unwrap().unwrap()).into_owned(),
    }
}

/// Waits until `what` is so; panics after 20 seconds.
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < deadline, "it did not happen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Everything of a tree that copies keep: names, kinds, modes, times, targets, contents.
pub fn facts(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut facts = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            0
        } else if meta.is_symlink() {
            hash(std::fs::read_link(&path).unwrap().as_os_str().as_encoded_bytes())
        } else {
            hash(&std::fs::read(&path).unwrap())
        };
        let name = path.strip_prefix(root).unwrap().display().to_string();
        facts.push(format!("{name} {:o} {}.{} {content:x}", meta.mode(), meta.mtime(), meta.mtime_nsec()));
    }
    facts.sort();
    facts
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Bytes that do not repeat at chunk borders.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

/// A tree with what copies must keep.
pub fn make_tree(root: &Path) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let deep = root.join("deep/er/est");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    const CHUNK: usize = 32 * 1024;
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, (1 << 20) + 17] {
        std::fs::write(root.join(format!("len-{len}")), pattern(len)).unwrap();
    }
    std::fs::write(deep.join("grüße, 世界.txt"), "unicode").unwrap();
    std::fs::write(deep.join("n".repeat(250)), "long").unwrap();
    symlink("../len-1", root.join("deep/link")).unwrap();
    symlink("/absolute/and/dangling", root.join("dangling")).unwrap();
    std::fs::set_permissions(root.join("len-1"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::set_permissions(root.join("empty"), PermissionsExt::from_mode(0o750)).unwrap();
    for (name, secs) in [("len-1", 981_173_106), ("deep", 1_000_000_000), ("len-0", 1_600_000_000)] {
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::new(secs, 123_456_789);
        let file = std::fs::File::open(root.join(name)).unwrap();
        file.set_modified(time).unwrap();
    }
}

/// Says which part of a test is left out, and why. Under CI nothing is: there it is a failure.
#[track_caller]
pub fn left_out(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
    eprintln!("left out: {why}");
}

/// Whether this process is root; says which part of a test it leaves out if not, which is a failure under CI.
pub fn is_root(what: &str) -> bool {
    // SAFETY: a plain system call.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        left_out(&format!("{what} needs root"));
    }
    root
}
