//! The sides of a comparison: adit, its rivals, the plain folder, and a server that does nothing.
//!
//! A [`Side`] makes an empty [`Place`] and mounts it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::IFlags;

use crate::Subject;
use crate::remote::{Wanted, remote};
use crate::report::{ADIT, HOST, JUICEFS_SQLITE, NULL, RCLONE};
use crate::rivals::{self, Official};
pub use crate::served::Mounted;
pub use crate::watch::Memory;

/// All sides, in the order in which they take turns.
pub fn names(subject: Subject) -> &'static [&'static str] {
    match subject {
        Subject::Vault => &[HOST, "gocryptfs-2.3", "gocryptfs-2.6.1", "official", ADIT, NULL],
        Subject::Volume => &[HOST, JUICEFS_SQLITE, JUICEFS_BADGER, ADIT, NULL],
        // Its groups know their sides.
        Subject::Index => &[],
        Subject::Manifest => &[HOST, "curl", "curl-parallel", RCLONE, "s3fs", ADIT, RELAYED],
    }
}

/// JuiceFS with its metadata in Badger.
const JUICEFS_BADGER: &str = "juicefs-badger";

/// adit without passthrough: the server reads the cache, and hands over what it read.
pub const RELAYED: &str = "adit-relayed";

/// No secret: the vaults are made for one run.
const PASSWORD: &str = "benchmark";

#[derive(Clone, Debug)]
enum Kind {
    Host,
    Gocryptfs(PathBuf),
    /// The official stack; its vaults are made by the adit beside it.
    Official(Official, PathBuf),
    Adit(PathBuf),
    /// A volume of it.
    AditVolume(PathBuf),
    JuiceFs(PathBuf, MetaStore),
    /// A server that does nothing, like a mount of such a store.
    Null(Subject),
    /// The tree whose manifest the others mount.
    Tree,
    /// A manifest of it.
    AditManifest(PathBuf, Passthrough),
    /// Who copies an object and mounts nothing.
    Curl,
    Rclone(PathBuf),
    S3fs(PathBuf),
}

/// Whether the kernel reads files of the cache itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passthrough {
    Auto,
    Off,
}

/// Where JuiceFS keeps its metadata.
#[derive(Clone, Copy, Debug)]
enum MetaStore {
    Sqlite,
    Badger,
}

/// One side of the comparison.
#[derive(Clone, Debug)]
pub struct Side {
    /// As it stands in the tables.
    pub name: &'static str,
    kind: Kind,
}

/// What one side works on: an empty vault, or an empty folder.
#[derive(Debug)]
pub struct Place {
    /// Holds all the rest; on the disk that is measured.
    pub work: PathBuf,
    backing: PathBuf,
    mountpoint: PathBuf,
    password_file: PathBuf,
    /// Of a manifest: which, and how.
    pub wanted: Wanted,
}

impl Place {
    /// The password in the file.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// The file of the volume, as the host sees it.
    fn volume(&self) -> PathBuf {
        self.backing.join("volume")
    }

    /// The address of JuiceFS's metadata.
    fn juicefs_meta(&self, store: MetaStore) -> String {
        let scheme = match store {
            MetaStore::Sqlite => "sqlite3",
            MetaStore::Badger => "badger",
        };
        format!("{scheme}://{}", self.backing.join("meta").display())
    }

    /// The folder of the vault, as the host sees it.
    pub fn backing(&self) -> &Path {
        &self.backing
    }
}

/// Prepares the sides asked for. A rival that cannot be had is reported to `missing`; a wrong name is an error.
pub fn prepare(
    subject: Subject,
    asked: &[String],
    adit: Option<&Path>,
    missing: &mut dyn FnMut(String),
) -> Result<Vec<Side>> {
    let names = names(subject);
    if let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no side {unknown}; --list names them");
    }
    let adit = || match adit {
        Some(program) => program.canonicalize().with_context(|| format!("cannot use {}", program.display())),
        None => rivals::adit(),
    };
    let mut sides = Vec::new();
    for &name in names {
        if !asked.is_empty() && asked.iter().all(|other| other != name) {
            continue;
        }
        let kind = match name {
            HOST if subject == Subject::Manifest => Ok(Kind::Tree),
            HOST => Ok(Kind::Host),
            NULL => Ok(Kind::Null(subject)),
            ADIT if subject == Subject::Volume => adit().map(Kind::AditVolume),
            ADIT if subject == Subject::Manifest => {
                adit().map(|program| Kind::AditManifest(program, Passthrough::Auto))
            }
            RELAYED => adit().map(|program| Kind::AditManifest(program, Passthrough::Off)),
            RCLONE => rivals::rclone().map(Kind::Rclone),
            "s3fs" => rivals::s3fs().map(Kind::S3fs),
            "curl" | "curl-parallel" => rivals::curl().map(|_| Kind::Curl),
            ADIT => adit().map(Kind::Adit),
            JUICEFS_SQLITE => rivals::juicefs().map(|program| Kind::JuiceFs(program, MetaStore::Sqlite)),
            JUICEFS_BADGER => rivals::juicefs().map(|program| Kind::JuiceFs(program, MetaStore::Badger)),
            "official" => rivals::official().and_then(|official| Ok(Kind::Official(official, adit()?))),
            "gocryptfs-2.3" => rivals::gocryptfs_of_apt().map(Kind::Gocryptfs),
            _ => rivals::gocryptfs_of_go().map(Kind::Gocryptfs),
        };
        match kind {
            Ok(kind) => sides.push(Side { name, kind }),
            Err(error) => missing(format!("{name}: {error:#}")),
        }
    }
    Ok(sides)
}

impl Side {
    /// Whether a process serves it.
    pub fn is_served(&self) -> bool {
        !matches!(self.kind, Kind::Host | Kind::Tree | Kind::Curl)
    }

    /// Whether what it shows lies in S3.
    pub fn is_remote(&self) -> bool {
        matches!(self.kind, Kind::AditManifest(..) | Kind::Curl | Kind::Rclone(_) | Kind::S3fs(_))
    }

    /// Whether it is adit as it would be without passthrough.
    pub fn is_relayed(&self) -> bool {
        matches!(self.kind, Kind::AditManifest(_, Passthrough::Off))
    }

    /// Whether it copies objects and mounts nothing.
    pub fn is_curl(&self) -> bool {
        matches!(self.kind, Kind::Curl)
    }

    /// Whether it is somebody else's mount.
    pub fn is_rival(&self) -> bool {
        matches!(self.kind, Kind::Rclone(_) | Kind::S3fs(_))
    }

    /// The command that brings back what was written to a mounted manifest.
    pub fn commit_command(&self, place: &Place) -> Result<Option<Command>> {
        let Kind::AditManifest(program, _) = &self.kind else { return Ok(None) };
        let mut command = Command::new(program);
        remote()?.credentials(&mut command);
        command.args(["--quiet", "--state-dir"]).arg(place.work.join("state"));
        command.args(["manifest", "commit"]).arg(&place.mountpoint).arg("-o").arg(place.work.join("committed"));
        Ok(Some(command))
    }

    /// Whether it keeps what is written to it.
    pub fn keeps(&self) -> bool {
        !matches!(self.kind, Kind::Null(_) | Kind::Curl)
    }

    /// Whether the vault's key comes from its own file by scrypt with known parameters.
    pub fn is_cryptomator(&self) -> bool {
        matches!(self.kind, Kind::Official(..) | Kind::Adit(_))
    }

    /// What it is, for the head of the report.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Host | Kind::Tree => "the plain folder".into(),
            Kind::Gocryptfs(program) => rivals::gocryptfs_version(program).unwrap_or_else(|e| format!("{e:#}")),
            Kind::Official(official, _) => format!(
                "org.cryptomator:cryptofs 2.9.0, fuse-nio-adapter 5.1.0, jfuse 0.7.3, its default flags, {}",
                official.java.display()
            ),
            Kind::Adit(_) | Kind::AditVolume(_) | Kind::AditManifest(_, Passthrough::Auto) => "default options".into(),
            Kind::AditManifest(_, Passthrough::Off) => "-o passthrough=off".into(),
            Kind::Curl => "the object itself, to /dev/null".into(),
            Kind::Rclone(program) => {
                format!("{}, --vfs-cache-mode full, files under their own names", rivals::version(program))
            }
            Kind::S3fs(program) => format!("{}, use_cache, files under their own names", rivals::version(program)),
            Kind::JuiceFs(..) => {
                "JuiceFS 1.3.1 from its Go module, data in a folder, no trash, its default flags otherwise".into()
            }
            Kind::Null(_) => "a fuser server with adit's flags and timeouts, constant files of 4 KiB".into(),
        }
    }

    /// An empty vault below `dir`.
    pub fn fresh(&self, dir: &Path) -> Result<Place> {
        // ext4 chooses the block group of such a folder by its name: a new one for each turn (see `spread`).
        static TURNS: AtomicU64 = AtomicU64::new(0);
        let work = dir.join(format!("{}-{}", self.name, TURNS.fetch_add(1, Relaxed)));
        let place = Place {
            backing: work.join("backing"),
            mountpoint: work.join("mountpoint"),
            password_file: work.join("password"),
            wanted: Wanted::default(),
            work,
        };
        fs::create_dir_all(&place.backing)?;
        fs::create_dir_all(&place.mountpoint)?;
        fs::write(&place.password_file, PASSWORD)?;
        match &self.kind {
            Kind::Host | Kind::Null(_) | Kind::Tree | Kind::Curl => {}
            Kind::AditManifest(..) | Kind::Rclone(_) | Kind::S3fs(_) => {}
            // With a trash, which is the default, an unlink would be a rename.
            Kind::JuiceFs(program, store) => self.init(
                Command::new(program)
                    .args(["format", "--storage", "file", "--trash-days", "0", "--bucket"])
                    .arg(format!("{}/", place.backing.join("data").display()))
                    .args([&place.juicefs_meta(*store), "bench"]),
            )?,
            Kind::Gocryptfs(program) => self.init(
                Command::new(program).args(["-init", "-q", "-passfile"]).arg(&place.password_file).arg(&place.backing),
            )?,
            Kind::Adit(program) | Kind::Official(_, program) => self.init(
                Command::new(program)
                    .args(["--quiet", "vault", "init", "--password-file"])
                    .arg(&place.password_file)
                    .arg(&place.backing),
            )?,
            Kind::AditVolume(program) => {
                self.init(Command::new(program).args(["--quiet", "volume", "init"]).arg(place.volume()))?;
            }
        }
        Ok(place)
    }

    fn init(&self, command: &mut Command) -> Result<()> {
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            bail!("{}: init failed: {}", self.name, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// The command that serves the place until it is unmounted, in the foreground.
    fn server(&self, place: &Place) -> Result<Option<Command>> {
        let mut command = match &self.kind {
            Kind::Host | Kind::Tree | Kind::Curl => return Ok(None),
            Kind::Null(like) => {
                let mut command = Command::new(std::env::current_exe()?);
                let like = match like {
                    Subject::Vault => "vault",
                    Subject::Volume => "volume",
                    Subject::Manifest | Subject::Index => {
                        bail!("nothing is mounted here that a null server could stand for")
                    }
                };
                command.arg("null-server").arg(&place.mountpoint).arg(like);
                command
            }
            Kind::Gocryptfs(program) => {
                let mut command = Command::new(program);
                command.args(["-fg", "-q", "-passfile"]).arg(&place.password_file);
                command.arg(&place.backing).arg(&place.mountpoint);
                command
            }
            Kind::Adit(program) => {
                let mut command = Command::new(program);
                command.args(["mount", "--foreground", "--state-dir"]).arg(place.work.join("state"));
                command.arg("--password-file").arg(&place.password_file);
                command.arg(&place.backing).arg(&place.mountpoint);
                command
            }
            Kind::AditVolume(program) => {
                let mut command = Command::new(program);
                command.args(["mount", "--foreground", "--state-dir"]).arg(place.work.join("state"));
                command.arg(place.volume()).arg(&place.mountpoint);
                command
            }
            Kind::AditManifest(program, passthrough) => {
                let mut command = remote()?.adit_command(program, &place.work, &place.wanted);
                if *passthrough == Passthrough::Off {
                    command.args(["-o", "passthrough=off"]);
                }
                command.arg(&place.mountpoint);
                command
            }
            Kind::Rclone(program) => {
                let mut command = remote()?.rclone_command(program, &place.work, &place.wanted);
                command.arg(&place.mountpoint);
                command
            }
            Kind::S3fs(program) => remote()?.s3fs_command(program, &place.work, &place.mountpoint, &place.wanted),
            Kind::JuiceFs(program, store) => {
                let mut command = Command::new(program);
                command.args(["mount", "--no-usage-report", "--cache-dir"]).arg(place.work.join("cache"));
                command.arg(place.juicefs_meta(*store)).arg(&place.mountpoint);
                // The serving process itself, without the one that would only watch it and start it again.
                command.env("JFS_SUPERVISOR", "1");
                command
            }
            Kind::Official(official, _) => {
                let mut command = Command::new(&official.java);
                command.arg("--enable-native-access=ALL-UNNAMED").arg("-cp").arg(&official.class_path);
                command.arg("MountVault").arg(&place.backing).arg(&place.mountpoint);
                command.arg(&place.password_file).stdin(Stdio::piped()).stdout(Stdio::piped());
                command
            }
        };
        let log = File::options().create(true).append(true).open(place.work.join("log"))?;
        command.stderr(log.try_clone()?);
        if !matches!(self.kind, Kind::Official(..)) {
            command.stdin(Stdio::null()).stdout(log);
        }
        Ok(Some(command))
    }

    /// Mounts the place; returns when it is usable.
    pub fn mount(&self, place: &Place) -> Result<Mounted> {
        let Some(mut command) = self.server(place)? else {
            let root = match &self.kind {
                Kind::Tree if !place.wanted.writable.get() => remote()?.tree(place.wanted.tree.get()),
                _ => place.backing.clone(),
            };
            return Ok(Mounted::of_folder(root));
        };
        let ends_by_stdin = matches!(self.kind, Kind::Official(..));
        Mounted::start(&mut command, &place.mountpoint, ends_by_stdin).map_err(|error| {
            let log = fs::read_to_string(place.work.join("log")).unwrap_or_default();
            anyhow!("{}: {error:#}\n{}", self.name, log.trim())
        })
    }

    /// Writes everything to the disk, drops all caches, and mounts: the servers' own caches are empty too.
    pub fn mount_cold(&self, place: &Place) -> Result<Mounted> {
        sync_fs(&place.work)?;
        drop_caches()?;
        self.mount(place)
    }
}

/// Asks ext4 to put the folders made in `dir` into block groups far apart. It passes over inodes that were removed during
/// the last minutes, one by one: a turn that creates files where an earlier one removed them measures that, several
/// times over, and whoever comes first in a round pays least. Other filesystems do not know the flag.
pub fn spread(dir: &Path) -> Result<()> {
    let dir = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    let Ok(flags) = rustix::fs::ioctl_getflags(&dir) else { return Ok(()) };
    let _ = rustix::fs::ioctl_setflags(&dir, flags | IFlags::TOPDIR);
    Ok(())
}

/// `syncfs(2)` of the file system that holds `path`.
pub fn sync_fs(path: &Path) -> Result<()> {
    let dir = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    rustix::fs::syncfs(&dir).with_context(|| format!("cannot sync {}", path.display()))
}

/// Memory that is touched after the caches were dropped: more than any row reads cold.
const TOUCHED_BYTES: usize = 2 << 30;

/// Drops the page cache, dentries and inodes of the whole machine.
///
/// The kernel of a virtual machine may tell its host what memory is free ("free page reporting"), and the host then takes it back: who uses it next
/// waits for it, which has cost a read of 300 MiB up to half a second. So free memory is touched here, before a clock runs.
pub fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the kernel's caches (root only)")?;
    let mut memory = Vec::<u8>::new();
    memory.try_reserve_exact(TOUCHED_BYTES).context("no memory to touch")?;
    memory.resize(TOUCHED_BYTES, 1);
    std::hint::black_box(&memory);
    Ok(())
}

/// Drops what the page cache has of a file, or of all files below a folder, which is synced already. Other than [`drop_caches`] it frees no more than is read again
/// at once, so the host of a virtual machine has no time to take that memory back.
pub fn evict(path: &Path) -> Result<()> {
    let kind = match fs::symlink_metadata(path) {
        // Rivals clear up meanwhile.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        looked => looked.with_context(|| format!("cannot look at {}", path.display()))?.file_type(),
    };
    if kind.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))? {
            evict(&entry?.path())?;
        }
    } else if kind.is_file() {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .with_context(|| format!("cannot evict {}", path.display()))?;
    }
    Ok(())
}

/// The command with which a person mounts and unmounts, for the figure of a whole unlock.
pub fn mount_command(side: &Side, place: &Place) -> Option<[Command; 2]> {
    let command = |program: &Path, arguments: &[&OsStr]| {
        let mut command = Command::new(program);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let (password, backing, point) =
        (place.password_file.as_os_str(), place.backing.as_os_str(), place.mountpoint.as_os_str());
    let state = place.work.join("state");
    match &side.kind {
        Kind::Gocryptfs(program) => {
            let mount = ["-q".as_ref(), "-passfile".as_ref(), password, backing, point];
            Some([command(program, &mount), command("umount".as_ref(), &[point])])
        }
        Kind::Adit(program) => {
            let state = ["--state-dir".as_ref(), state.as_os_str()];
            let mount = ["mount".as_ref(), "--password-file".as_ref(), password, backing, point];
            let mount = [&state[..], &mount[..]].concat();
            let end = [&state[..], &["umount".as_ref(), point][..]].concat();
            Some([command(program, &mount), command(program, &end)])
        }
        _ => None,
    }
}
