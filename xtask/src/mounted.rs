//! A fresh vault, volume, overlay or writable manifest, mounted by the built `adit`, and unmounted whatever happens.
//!
//! Invariant: when a [`Mounted`] or a [`Janitor`] is gone, so are its mount and its folder. The janitor is a
//! child process that waits for the end of a pipe, so this holds even when xtask itself is killed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail};

use crate::{process, workplace};

/// How long a source may take to be created, mounted or unmounted.
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// Builds the program in the dev profile and returns its path.
///
/// The whole workspace is named so that features resolve as they do for the tests, and nothing is built twice.
pub fn build_debug() -> Result<PathBuf> {
    let mut build = workplace::cargo();
    build.args(["build", "--quiet", "--locked", "--workspace", "--bin", "adit"]);
    process::run(&mut build, Duration::from_secs(1800))?;
    Ok(workplace::target_dir()?.join("debug/adit"))
}

/// A folder of its own with a vault, a mountpoint and a password file, all named by fixed names.
pub struct Workbench {
    /// Holds the three; readable by every user, as pjdfstest switches users.
    pub dir: PathBuf,
    janitor: Janitor,
}

impl Workbench {
    /// Makes the folder under the system's temporary directory.
    pub fn new(purpose: &str) -> Result<Self> {
        let dir = env::temp_dir().join(format!("adit-{purpose}-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let janitor = Janitor::hire(&dir)?;
        fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        fs::create_dir(dir.join("mnt"))?;
        let bench = Self { dir, janitor };
        let mut secret = OpenOptions::new().write(true).create_new(true).mode(0o600).open(bench.password_file())?;
        writeln!(secret, "{}", random_password()?)?;
        Ok(bench)
    }

    /// Where the vault lies.
    pub fn vault(&self) -> PathBuf {
        self.dir.join("vault")
    }

    /// Where the file of the volume lies.
    pub fn volume(&self) -> PathBuf {
        self.dir.join("volume")
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// Makes a manifest of a folder with a file, whose content comes to a folder beside.
    fn manifest(&self, adit: &Path) -> Result<PathBuf> {
        let (work, manifest) = (self.dir.join("work"), self.dir.join("manifest"));
        fs::create_dir(&work)?;
        fs::create_dir(self.dir.join("store"))?;
        fs::write(work.join("file"), "content")?;
        let mut snapshot = Command::new(adit);
        snapshot.args(["manifest", "snapshot", "--format", "v2025"]).arg(work).arg("-o").arg(&manifest);
        snapshot.arg("--cas").arg(self.dir.join("store")).arg("--cache-dir").arg(self.dir.join("hashes"));
        process::run(snapshot.stdout(Stdio::null()), STEP_LIMIT)?;
        Ok(manifest)
    }

    /// The file that holds its password.
    pub fn password_file(&self) -> PathBuf {
        self.dir.join("password")
    }

    /// True while something is mounted on the mountpoint.
    pub fn is_mounted(&self) -> bool {
        // A dead mount answers ENOTCONN, and still is one.
        let device = |path: &Path| fs::symlink_metadata(path).map(|meta| meta.dev());
        match (device(&self.mountpoint()), device(&self.dir)) {
            (Ok(inside), Ok(outside)) => inside != outside,
            (Err(_), Ok(_)) => true,
            _ => false,
        }
    }
}

impl Drop for Workbench {
    fn drop(&mut self) {
        self.janitor.dismiss();
    }
}

/// 192 random bits in hexadecimal.
fn random_password() -> Result<String> {
    let mut bytes = [0_u8; 24];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A child process that unmounts and removes a workbench once its standard input ends, for whatever reason.
struct Janitor {
    child: Child,
    leash: Option<ChildStdin>,
}

impl Janitor {
    fn hire(dir: &Path) -> Result<Self> {
        // Its own process group and the traps keep it alive through an interrupt at the terminal. `stat` fails on a
        // dead mount, so the list of mounts is asked instead.
        let chores = r#"
            trap '' INT TERM HUP
            cat >/dev/null
            for at in "$1/mnt" "$1/snapshot"; do
                if grep -qF " $at " /proc/self/mounts; then
                    umount "$at" 2>/dev/null || fusermount3 -u "$at" 2>/dev/null \
                        || umount -l "$at" 2>/dev/null || fusermount3 -u -z "$at"
                fi
            done
            rm -rf --one-file-system "$1"
        "#;
        let mut child = Command::new("sh")
            .args(["-c", chores, "janitor"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start sh")?;
        let leash = child.stdin.take();
        Ok(Self { child, leash })
    }

    fn dismiss(&mut self) {
        drop(self.leash.take());
        if !matches!(process::wait(&mut self.child, STEP_LIMIT), Ok(Some(_))) {
            eprintln!("warning: the folder of a test mount could not be cleaned up");
        }
    }
}

/// What is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A vault with this cipher combination.
    Vault(&'static str),
    /// A volume.
    Volume,
    /// A volume whose data lies in a folder.
    VolumeWithFolder,
    /// A volume on top of an empty folder.
    Overlay,
    /// A volume on top of a manifest, whose content lies in a folder.
    Manifest,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Vault(_) => "vault",
            Kind::Volume | Kind::VolumeWithFolder | Kind::Overlay | Kind::Manifest => "volume",
        }
    }

    fn source(self, bench: &Workbench) -> PathBuf {
        match self {
            Kind::Vault(_) => bench.vault(),
            Kind::Volume | Kind::VolumeWithFolder | Kind::Overlay | Kind::Manifest => bench.volume(),
        }
    }

    /// Names the source in a command that opens it, and says where its password is.
    fn open(self, bench: &Workbench, command: &mut Command) {
        command.arg(self.source(bench));
        if matches!(self, Kind::Vault(_)) {
            command.arg("--password-file").arg(bench.password_file());
        }
    }
}

/// A source that is mounted by a foreground `adit mount`, whose messages go to a log file.
pub struct Mounted {
    kind: Kind,
    bench: Workbench,
    adit: PathBuf,
    daemon: Child,
    log: PathBuf,
}

impl Mounted {
    /// Creates a source of this kind and mounts it for every user, with these further options of `adit mount`.
    pub fn start(adit: &Path, purpose: &str, kind: Kind, options: &[&str]) -> Result<Self> {
        let bench = Workbench::new(purpose)?;
        let mut init = Command::new(adit);
        init.args([kind.word(), "init"]);
        if let Kind::Vault(cipher) = kind {
            init.args(["--cipher", cipher]);
        }
        if kind == Kind::VolumeWithFolder {
            init.arg("--data").arg(bench.dir.join("data"));
        }
        kind.open(&bench, &mut init);
        process::run(init.stdout(Stdio::null()), STEP_LIMIT)?;

        let log = bench.dir.join("mount.log");
        let sink = File::create(&log)?;
        let mut mount = Command::new(adit);
        mount.arg("mount");
        if kind == Kind::Overlay {
            let lower = bench.dir.join("lower");
            fs::create_dir(&lower)?;
            mount.arg(lower).arg("--upper");
        }
        if kind == Kind::Manifest {
            mount.arg(bench.manifest(adit)?).arg("--cas").arg(bench.dir.join("store"));
            mount.arg("--cache-dir").arg(bench.dir.join("cache")).arg("--upper");
        }
        kind.open(&bench, &mut mount);
        mount.arg(bench.mountpoint());
        mount.args(["--foreground", "--allow-other"]).args(options);
        mount.stdin(Stdio::null()).stdout(sink.try_clone()?).stderr(sink);
        eprintln!("$ {}", process::shown(&mount));
        let daemon = mount.spawn().context("cannot start adit mount")?;
        let mut mounted = Self { kind, bench, adit: adit.to_path_buf(), daemon, log };
        mounted.wait_until_usable()?;
        Ok(mounted)
    }

    fn wait_until_usable(&mut self) -> Result<()> {
        let deadline = Instant::now() + STEP_LIMIT;
        while !self.bench.is_mounted() {
            if let Some(status) = self.daemon.try_wait()? {
                bail!("adit mount ended with {status}:\n{}", self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("nothing is mounted after {} s:\n{}", STEP_LIMIT.as_secs(), self.log_tail());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> PathBuf {
        self.bench.mountpoint()
    }

    /// The folder around it, on the host's filesystem.
    pub fn scratch(&self) -> &Path {
        &self.bench.dir
    }

    /// Unmounts; fails unless the server ends well and `adit vault|volume check` finds a sound source.
    pub fn finish(mut self) -> Result<()> {
        let mut umount = Command::new(&self.adit);
        umount.arg("umount").arg(self.mountpoint());
        let unmounted = process::run(&mut umount, STEP_LIMIT);
        unmounted.with_context(|| format!("the mount's log:\n{}", self.log_tail()))?;
        match process::wait(&mut self.daemon, STEP_LIMIT)? {
            Some(status) if status.success() => {}
            Some(status) => bail!("adit mount ended with {status}:\n{}", self.log_tail()),
            None => bail!("adit mount still runs after the unmount:\n{}", self.log_tail()),
        }
        let mut check = Command::new(&self.adit);
        check.args([self.kind.word(), "check"]);
        self.kind.open(&self.bench, &mut check);
        process::run(&mut check, STEP_LIMIT)
            .with_context(|| format!("the {} is not sound after the suite", self.kind.word()))
    }

    /// The last lines that the server wrote.
    pub fn log_tail(&self) -> String {
        const LINES: usize = 40;
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            // Killing the server frees every caller that waits in the mount; the janitor removes the rest.
            process::kill_tree(&mut self.daemon);
        }
    }
}
