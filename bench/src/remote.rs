//! What the manifest's groups share: trees on the disk, their content in a server of S3, and that server twenty milliseconds away.
//!
//! One server serves a whole run: bringing content to it takes longer than many a row. Each mount starts with an empty cache of its own.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use adit_servers::{ACCESS_KEY, Kind, REGION, S3Server, SECRET_KEY};
use adit_testkit::objects::{DistantServer, Traffic};
use anyhow::{Context, Result, bail};
use aws_lc_rs::{digest, hmac};

use crate::RunArgs;
use crate::mounted::Stream;
use crate::rivals;

/// How far away the server is that is not near.
pub const ROUND_TRIP: Duration = Duration::from_millis(20);
/// The folder above `Data/`.
pub const CAS: &str = "s3://attachments/Queue";
/// The bucket that has the same files under their own names, for those who know nothing of manifests.
pub const PLAIN: &str = "plain";
/// The length of the large file.
pub const LARGE_MIB: u64 = 300;
/// One-byte files of a folder.
const FILES_A_DIR: u64 = 100;

/// What is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// `large`, of 300 MiB in one object, and `small`, of 4 KiB.
    Large,
    /// 10,000 files of one byte.
    Tiny,
    /// 100,000 empty files.
    Wide,
}

impl Tree {
    fn name(self) -> &'static str {
        match self {
            Tree::Large => "large",
            Tree::Tiny => "tiny",
            Tree::Wide => "wide",
        }
    }

    /// Small files that it has at full scale.
    pub fn files(self) -> u64 {
        match self {
            Tree::Large => 0,
            Tree::Tiny => 10_000,
            Tree::Wide => 100_000,
        }
    }
}

/// Where the server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distance {
    /// On the loopback.
    Near,
    /// [`ROUND_TRIP`] away, behind a proxy that counts.
    Far,
}

/// What a turn wants mounted, and how.
#[derive(Debug)]
pub struct Wanted {
    /// The tree.
    pub tree: Cell<Tree>,
    /// Its server.
    pub distance: Cell<Distance>,
    /// Whether to write to it.
    pub writable: Cell<bool>,
    /// Which of the turn's caches is used; a new number is an empty one.
    pub cache: Cell<u32>,
    /// The length of its blocks, if not the default.
    pub block: Cell<Option<&'static str>>,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            tree: Cell::new(Tree::Large),
            distance: Cell::new(Distance::Near),
            writable: Cell::new(false),
            cache: Cell::new(0),
            block: Cell::new(None),
        }
    }
}

/// The server, and what was brought to it.
pub struct Remote {
    server: S3Server,
    far: DistantServer,
    dir: PathBuf,
    adit: PathBuf,
}

static REMOTE: OnceLock<Remote> = OnceLock::new();

/// The server of this run, once a group has prepared its tree.
pub fn remote() -> Result<&'static Remote> {
    REMOTE.get().context("no group has started the server")
}

/// Starts the server if none runs, and brings the tree to it if that is not there.
pub fn prepare(args: &RunArgs, dir: &Path, tree: Tree) -> Result<()> {
    if REMOTE.get().is_none() {
        let remote = Remote::start(args, &dir.join("remote"))?;
        if REMOTE.set(remote).is_err() {
            bail!("groups are prepared one after the other");
        }
    }
    let remote = remote()?;
    if !remote.manifest(tree).exists() {
        remote.bring(args, tree)?;
    }
    Ok(())
}

impl Remote {
    fn start(args: &RunArgs, dir: &Path) -> Result<Remote> {
        let server = S3Server::named(Kind::Versitygw, dir)
            .with_context(|| format!("{} is not set: run by `cargo xtask bench`", Kind::Versitygw.variable()))?;
        for bucket in ["attachments", PLAIN] {
            server.create_bucket(bucket)?;
        }
        let far = DistantServer::start(server.address(), ROUND_TRIP)?;
        let adit = match &args.adit {
            Some(program) => program.canonicalize()?,
            None => rivals::adit()?,
        };
        Ok(Remote { server, far, dir: dir.to_path_buf(), adit })
    }

    /// The tree on the disk.
    pub fn tree(&self, tree: Tree) -> PathBuf {
        self.dir.join("trees").join(tree.name())
    }

    /// Its manifest.
    pub fn manifest(&self, tree: Tree) -> PathBuf {
        self.dir.join(format!("{}.manifest", tree.name()))
    }

    /// The address of the server, as a URL.
    pub fn endpoint(&self, distance: Distance) -> String {
        match distance {
            Distance::Near => self.server.endpoint(),
            Distance::Far => self.far.endpoint(),
        }
    }

    /// What went to and came from the far server.
    pub fn traffic(&self) -> Traffic {
        self.far.traffic()
    }

    /// Who reaches the server knows this.
    pub fn credentials(&self, command: &mut Command) {
        command.envs(self.server.variables()).env_remove("AWS_ENDPOINT_URL");
    }

    /// A URL of the large file's object that needs no further signature: curl signs ranges in a way that servers refuse.
    pub fn large_object(&self, distance: Distance) -> Result<String> {
        let manifest: serde_json::Value = serde_json::from_slice(&fs::read(self.manifest(Tree::Large))?)?;
        let paths = manifest["paths"].as_array().context("a manifest has paths")?;
        let large = paths.iter().find(|entry| entry["path"] == "large").context("it has the large file")?;
        let hash = large["hash"].as_str().context("it has a hash")?;
        let host = match distance {
            Distance::Near => self.server.address(),
            Distance::Far => self.far.address(),
        };
        presigned(&host.to_string(), &format!("/attachments/Queue/Data/{hash}.xxh128"))
    }

    fn bring(&self, args: &RunArgs, tree: Tree) -> Result<()> {
        let root = self.tree(tree);
        fs::create_dir_all(&root)?;
        match tree {
            Tree::Large => {
                fs::write(root.join("large"), Stream::new(21).bytes(usize::try_from(LARGE_MIB << 20)?))?;
                fs::write(root.join("small"), Stream::new(22).bytes(4096))?;
            }
            Tree::Tiny | Tree::Wide => {
                for (number, path) in (0..).zip(paths(&root, args.scaled(tree.files()))) {
                    if number % FILES_A_DIR == 0
                        && let Some(dir) = path.parent()
                    {
                        fs::create_dir_all(dir)?;
                    }
                    let content = [number.to_le_bytes()[0]];
                    fs::write(path, if tree == Tree::Tiny { &content[..] } else { &[] })?;
                }
            }
        }
        let mut snapshot = Command::new(&self.adit);
        self.credentials(&mut snapshot);
        snapshot.args(["--quiet", "manifest", "snapshot"]).arg(&root).arg("-o").arg(self.manifest(tree));
        snapshot.args(["--cas", CAS, "--endpoint-url", &self.endpoint(Distance::Near), "--cache-dir"]);
        run(snapshot.arg(self.dir.join("hashes")))?;
        // A listing needs no content, and nobody but adit is asked for it.
        if tree != Tree::Wide
            && let Ok(rclone) = rivals::rclone()
        {
            let mut copy = Command::new(rclone);
            self.rclone(&mut copy, Distance::Near);
            run(copy.args(["copy", "--transfers", "16"]).arg(&root).arg(format!(":s3:{PLAIN}/{}", tree.name())))?;
        }
        Ok(())
    }

    /// What rclone is told of the server.
    pub fn rclone(&self, command: &mut Command, distance: Distance) {
        // It understands no bundle of certificates, which it needs none of here.
        command.env("RCLONE_CONFIG", "/dev/null").env_remove("AWS_CA_BUNDLE");
        command.args(["--s3-provider", "Other", "--s3-endpoint", &self.endpoint(distance), "--s3-region", REGION]);
        command.args(["--s3-access-key-id", ACCESS_KEY, "--s3-secret-access-key", SECRET_KEY]);
        command.env("NO_PROXY", "127.0.0.1");
    }

    /// adit, about to mount what is wanted.
    pub fn adit_command(&self, program: &Path, work: &Path, wanted: &Wanted) -> Command {
        let mut command = Command::new(program);
        self.credentials(&mut command);
        command.args(["mount", "--foreground", "--state-dir"]).arg(work.join("state"));
        command.args(["--cas", CAS, "--endpoint-url", &self.endpoint(wanted.distance.get()), "--cache-dir"]);
        command.arg(work.join(format!("cache-{}", wanted.cache.get())));
        if wanted.writable.get() {
            command.arg("--writable");
        }
        if let Some(block) = wanted.block.get() {
            // The longest are more than a mount of the usual memory takes.
            command.args(["--cache-block", block, "--memory", "1G"]);
        }
        command.arg(self.manifest(wanted.tree.get()));
        command
    }

    /// rclone, about to mount the same files.
    pub fn rclone_command(&self, program: &Path, work: &Path, wanted: &Wanted) -> Command {
        let mut command = Command::new(program);
        self.rclone(&mut command, wanted.distance.get());
        // With its cache of whole files on the disk, as adit has one.
        command.args(["mount", "--read-only", "--vfs-cache-mode", "full", "--cache-dir"]);
        command.arg(work.join(format!("cache-{}", wanted.cache.get())));
        command.arg(format!(":s3:{PLAIN}/{}", wanted.tree.get().name()));
        command
    }

    /// s3fs, about to mount the same files at `mountpoint`.
    pub fn s3fs_command(&self, program: &Path, work: &Path, mountpoint: &Path, wanted: &Wanted) -> Command {
        let mut command = Command::new(program);
        command.env("AWSACCESSKEYID", ACCESS_KEY).env("AWSSECRETACCESSKEY", SECRET_KEY).env("NO_PROXY", "127.0.0.1");
        command.arg(format!("{PLAIN}:/{}", wanted.tree.get().name())).arg(mountpoint).arg("-f");
        let cache = work.join(format!("cache-{}", wanted.cache.get()));
        let url = self.endpoint(wanted.distance.get());
        let option = format!("url={url},endpoint={REGION},use_path_request_style,ro,use_cache={}", cache.display());
        command.args(["-o", &option]);
        command
    }
}

/// The URL of an object, valid for an hour: AWS's signature, version 4, in the query.
/// (AWS, *Authenticating Requests: Using Query Parameters*.)
fn presigned(host: &str, path: &str) -> Result<String> {
    let now = Command::new("date").args(["-u", "+%Y%m%dT%H%M%SZ"]).output().context("date")?;
    let now = String::from_utf8(now.stdout)?.trim().to_owned();
    let day = now.get(..8).context("date said no date")?;
    let scope = format!("{day}/{REGION}/s3/aws4_request");
    let query = format!(
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={ACCESS_KEY}%2F{}&X-Amz-Date={now}&X-Amz-Expires=3600&X-Amz-SignedHeaders=host",
        scope.replace('/', "%2F")
    );
    let request = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
    let hash = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
    let sign =
        |key: &[u8], what: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), what.as_bytes()).as_ref().to_vec();
    let mut key = format!("AWS4{SECRET_KEY}").into_bytes();
    for part in [day, REGION, "s3", "aws4_request"] {
        key = sign(&key, part);
    }
    let signature = hex(&sign(&key, &format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{hash}")));
    Ok(format!("http://{host}{path}?{query}&X-Amz-Signature={signature}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// curl, as the benchmark uses it.
pub fn curl() -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--noproxy", "*"]);
    command
}

/// The small files of a tree, folder by folder.
pub fn paths(root: &Path, count: u64) -> impl Iterator<Item = PathBuf> {
    let root = root.to_path_buf();
    (0..count).map(move |number| root.join(format!("directory {}/file {number}", number / FILES_A_DIR)))
}

/// Runs to the end; what it says is part of the error.
pub fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
