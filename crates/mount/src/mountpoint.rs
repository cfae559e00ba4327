//! Attaching `/dev/fuse` to a folder and detaching it again: `mount(2)` with privilege, `fusermount3` without.
//!
//! fuser could do this, but it names the filesystem `fuse` and not `fuse.adit`, filters requests by user a second time
//! (which refuses kernel write-back on behalf of another user), and unmounts lazily behind the caller's back. So it is
//! handed an attached device, and everything about mountpoints is here: [`attach`], [`umount`], [`is_stale`], and
//! [`find`], which reads the kernel's own table.

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use adit_core::ErrorKind;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::caller;
use crate::options::MountOptions;

/// Where the kernel has a folder for each FUSE connection.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The filesystem type that `/proc/mounts` shows.
pub const FS_TYPE: &str = "fuse.adit";
const DEVICE: &str = "/dev/fuse";
/// How long a mount's process may take to tell the state of its filesystem before it counts as one that hangs.
const STATFS_TIMEOUT: Duration = Duration::from_secs(2);
/// Names of the helper, the best first; those without a folder are looked for on the `PATH`.
const HELPERS: [&str; 4] = ["fusermount3", "/usr/bin/fusermount3", "/bin/fusermount3", "fusermount"];

/// Why a folder could not be attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Nothing of ours is mounted there.
    #[error("{}: not a mount of adit", .0.display())]
    NotAMount(PathBuf),
    /// It was mounted by another user, and this one is not root.
    #[error("{}: mounted by another user (uid {user}); only that user and root can unmount it", .path.display())]
    AnotherUsers {
        /// The mountpoint.
        path: PathBuf,
        /// Who mounted it (uid).
        user: u32,
    },
    /// Files on it are open, or a process works in it.
    #[error("{}: busy: files are open or a process works in it (see fuser -m; --lazy detaches it now)", .0.display())]
    Busy(PathBuf),
    /// The process behind a mount is gone.
    #[error("{}: a dead mount: {}", .0.display(), how_to_clear(.0))]
    Stale(PathBuf),
    /// The mountpoint cannot be used.
    #[error("mountpoint {}: {source}", .path.display())]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("{DEVICE}: {0} (is the kernel module loaded? modprobe fuse)")]
    NoDevice(io::Error),
    /// Without privilege, `fusermount3` is needed, and it is not installed.
    #[error("fusermount3 is not installed; a mount without root needs it (apt install fuse3)")]
    NoHelper,
    /// The kernel or `fusermount3` refused.
    #[error("{}: {reason}", .path.display())]
    Refused {
        /// The mountpoint.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
    /// `fusermount3`, which mounts for those who are not root, could not.
    #[error("{}: cannot be mounted for you: {said}", .path.display())]
    Helper {
        /// The mountpoint.
        path: PathBuf,
        /// Its own words.
        said: String,
    },
    /// It was attached, but the first requests failed.
    #[error("{}: mounted but not usable: {source}", .path.display())]
    Unusable {
        /// The mountpoint.
        path: PathBuf,
        /// What the first request said.
        source: io::Error,
    },
}

impl MountError {
    /// The kind, for exit codes. `NotAMount` is `NotFound` here; it has an exit code of its own.
    pub fn kind(&self) -> ErrorKind {
        match self {
            MountError::NotAMount(_) => ErrorKind::NotFound,
            MountError::Busy(_) => ErrorKind::Busy,
            MountError::Stale(_) => ErrorKind::Stale,
            MountError::Mountpoint { source, .. } | MountError::Unusable { source, .. } => {
                adit_core::error::kind_of_io(source)
            }
            MountError::NoDevice(_) | MountError::NoHelper => ErrorKind::NotSupported,
            MountError::Refused { .. } | MountError::Helper { .. } | MountError::AnotherUsers { .. } => {
                ErrorKind::NotPermitted
            }
        }
    }

    /// What its user can do about it, where that can be told.
    pub fn advice(&self) -> Option<String> {
        let MountError::Helper { path, said } = self else { return None };
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        Some(match () {
            () if has(&["user_allow_other"]) => {
                "leave out allow_other, or have root add the line user_allow_other to /etc/fuse.conf".to_owned()
            }
            () if has(&["no write access", "not owned by", "sticky"]) => {
                let home = std::env::home_dir().filter(|home| home.is_dir());
                let own = home.map_or(String::new(), |home| format!(": mkdir -p {}/mnt", home.display()));
                format!("mount on a folder of your own{own}; {} is not yours to write in", path.display())
            }
            () if has(&["could not determine username"]) => format!(
                "fusermount3 mounts for users with a name alone: have root give uid {} an entry in /etc/passwd, or mount as a user that has one",
                rustix::process::getuid().as_raw()
            ),
            () if has(&["/dev/fuse", "modprobe"]) => {
                "without access to /dev/fuse nobody can mount; `adit doctor` says how root can give it".to_owned()
            }
            () if has(&["mount_max", "too many"]) => {
                "end a mount that is not needed (`adit mounts`), or have root raise mount_max in /etc/fuse.conf".to_owned()
            }
            () if has(&["Operation not permitted"]) => {
                "fusermount3 lacks its rights: root can give them back (chmod u+s /usr/bin/fusermount3); in a container mounts \
                 may be forbidden altogether"
                    .to_owned()
            }
            () => "`adit doctor` looks for what keeps mounts from working here".to_owned(),
        })
    }
}

/// What to do about a dead mount: the same words wherever one is met.
pub fn how_to_clear(mountpoint: &Path) -> String {
    format!("its process is gone; clear it with: adit umount {}", mountpoint.display())
}

/// Attaches a new FUSE connection to `mountpoint` (absolute, see [`resolve`]); the descriptor is the connection.
pub(crate) fn attach(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refused = |source| match rustix::io::Errno::from_io_error(&source) {
        Some(Errno::NOTCONN) => MountError::Stale(mountpoint.into()),
        _ => MountError::Mountpoint { path: mountpoint.into(), source },
    };
    if !std::fs::metadata(mountpoint).map_err(refused)?.is_dir() {
        return Err(refused(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    match attach_directly(mountpoint, options)? {
        Some(device) => Ok(device),
        None => attach_with_helper(mountpoint, options),
    }
}

/// With `mount(2)`; `None` where this process may not.
fn attach_directly(mountpoint: &Path, options: &MountOptions) -> Result<Option<OwnedFd>, MountError> {
    let device = match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(device) => device,
        // Without read permission on the device the set-user-id helper may still open it.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(e) => return Err(MountError::NoDevice(e)),
    };
    let refused = |reason: String| MountError::Refused { path: mountpoint.into(), reason };
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        if options.allow_other { ",allow_other" } else { "" },
    );
    let data = CString::new(data).map_err(|e| refused(e.to_string()))?;
    match rustix::mount::mount(options.source.as_str(), mountpoint, FS_TYPE, flags(options), data.as_c_str()) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(Errno::NODEV) => Err(MountError::NoDevice(Errno::NODEV.into())),
        Err(e) => Err(refused(format!("mount failed: {e}"))),
    }
}

/// Ends the connection of the mount of this program that is topmost at the resolved `mountpoint`: all that is asked of it fails from then on. Best
/// effort, without asking the mount.
pub(crate) fn abort(mountpoint: &Path) {
    let minor = find(mountpoint).and_then(|entry| Some(entry.device.split_once(':')?.1.to_owned()));
    let is_aborted = minor.is_some_and(|minor| std::fs::write(format!("{CONNECTIONS}/{minor}/abort"), "1").is_ok());
    if !is_aborted {
        // Where that filesystem is not mounted. Only root may.
        let _ = rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::FORCE);
    }
}

/// Gives the mount of this program that is topmost at the resolved `mountpoint` other flags. A flag of the filesystem (`ro`) holds for every
/// place where it is mounted.
///
/// # Errors
/// `Refused` with what the kernel says: only root may.
pub fn remount(mountpoint: &Path, options: &MountOptions) -> Result<(), MountError> {
    rustix::mount::mount_remount(mountpoint, flags(options), c"").map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => {
            MountError::Refused { path: mountpoint.into(), reason: "only root can change the flags of a mount".into() }
        }
        e => MountError::Refused { path: mountpoint.into(), reason: format!("remount failed: {e}") },
    })
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    // Reading changes no time here, whatever the options say: the mount table is to say so.
    flags | MountFlags::NOATIME
}

/// With `fusermount3`, which hands the connection back over a socket.
fn attach_with_helper(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refused = |said: String| MountError::Helper { path: mountpoint.into(), said };
    let (ours, theirs) = UnixStream::pair().map_err(|e| refused(e.to_string()))?;
    let child = spawn_helper(|helper| {
        // The socket travels as standard input: the one descriptor that a child has without tricks after fork.
        let theirs = theirs.try_clone()?;
        helper_command(helper)
            .arg("-o")
            .arg(helper_options(options))
            .arg("--")
            .arg(mountpoint)
            .env("_FUSE_COMMFD", "0")
            .env("LC_ALL", "C")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    })?;
    drop(theirs);
    let received = receive_device(&ours);
    let output = child.wait_with_output().map_err(|e| refused(e.to_string()))?;
    match received {
        Ok(Some(device)) => Ok(device),
        Ok(None) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(refused(match said.trim() {
                "" => format!("fusermount3 failed ({})", output.status),
                said => said.to_owned(),
            }))
        }
        Err(e) => Err(refused(format!("fusermount3: {e}"))),
    }
}

/// The `-o` argument of `fusermount3`. Commas and backslashes of the name are escaped as it expects.
fn helper_options(options: &MountOptions) -> OsString {
    let mut out = String::from("subtype=adit,default_permissions,noatime");
    let mut add = |on: bool, word: &str| {
        if on {
            out.push(',');
            out.push_str(word);
        }
    };
    add(options.read_only, "ro");
    add(options.suid, "suid");
    add(options.dev, "dev");
    add(!options.exec, "noexec");
    add(options.sync, "sync");
    add(options.dirsync, "dirsync");
    add(options.allow_other, "allow_other");
    out.push_str(",fsname=");
    out.push_str(&options.source.replace('\\', "\\\\").replace(',', "\\,"));
    out.into()
}

/// The system's `fusermount3`, and whatever may stand in for it, in the order in which they are tried. Those of them that are this
/// program under another name are left out: workers put such a link first on the `PATH`.
pub fn helpers() -> Vec<PathBuf> {
    let identity = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    let own = identity(Path::new("/proc/self/exe"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    let candidates = HELPERS.iter().flat_map(|name| match name.contains('/') {
        true => vec![PathBuf::from(name)],
        false => folders.iter().map(|folder| folder.join(name)).collect(),
    });
    candidates.filter(|helper| identity(helper).is_some_and(|identity| Some(identity) != own)).collect()
}

/// The helper, which names itself in what it says: by its name, wherever it lies.
fn helper_command(helper: &Path) -> Command {
    let mut command = Command::new(helper);
    command.arg0(helper.file_name().unwrap_or(helper.as_os_str()));
    command
}

/// Runs `spawn` with each name of the helper until one can be run.
fn spawn_helper(spawn: impl Fn(&Path) -> io::Result<Child>) -> Result<Child, MountError> {
    let mut refused = None;
    for helper in helpers() {
        match spawn(&helper) {
            Ok(child) => return Ok(child),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                refused.get_or_insert(MountError::Refused { path: helper, reason: e.to_string() });
            }
        }
    }
    Err(refused.unwrap_or(MountError::NoHelper))
}

/// Receives the one descriptor that `fusermount3` sends; `None` if it ended without.
fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut iov = [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut devices = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(devices.next())
}

/// Unmounts `path`. `lazy` takes it out of the tree now and lets open files live on; it also clears hung mounts.
///
/// Only mounts of this program are touched. Stale ones (see [`is_stale`]) are cleared as well.
pub fn umount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let mountpoint = resolve(path).map_err(|source| MountError::Mountpoint { path: path.into(), source })?;
    match find(&mountpoint) {
        Some(entry) if entry.fs_type == FS_TYPE => detach(&mountpoint, lazy),
        _ => Err(MountError::NotAMount(mountpoint)),
    }
}

/// Whoever looks at a mount (`df`, an indexer, `adit mounts`) holds it for a moment: a busy one is asked so often again, and
/// after so long each time.
const LOOKS_MAX: u32 = 20;
const LOOK: Duration = Duration::from_millis(25);

/// Detaches the mount of this program that is topmost at the resolved `mountpoint`.
pub(crate) fn detach(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    let mut how = UnmountFlags::NOFOLLOW;
    how.set(UnmountFlags::DETACH, lazy);
    match unless_busy(&mut || unmount_ours(mountpoint, how)) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.into())),
        Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(MountError::NotAMount(mountpoint.into())),
        Err(Errno::PERM | Errno::ACCESS) => detach_with_helper(mountpoint, lazy),
        Err(e) => Err(MountError::Refused { path: mountpoint.into(), reason: format!("umount failed: {e}") }),
    }
}

/// Tries `unmount` again, for half a second at most, as long as that is busy.
fn unless_busy(unmount: &mut dyn FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    for _ in 0..LOOKS_MAX {
        match unmount() {
            Err(Errno::BUSY) => std::thread::sleep(LOOK),
            done => return done,
        }
    }
    unmount()
}

/// `umount2(2)` in a folder that is held, so that the one that was looked at is the one that goes: for root the path may
/// lead through folders of a user, who could put another one in its place between the two.
fn unmount_ours(mountpoint: &Path, how: UnmountFlags) -> rustix::io::Result<()> {
    let (Some(parent), Some(name)) = (mountpoint.parent(), mountpoint.file_name()) else {
        return Err(Errno::INVAL);
    };
    let parent = match hold_folder(parent) {
        Err(Errno::NOSYS) => return rustix::mount::unmount(mountpoint, how), // Linux before 5.6
        other => other?,
    };
    let id = mount_id(&parent, name)?;
    if !ours().iter().any(|entry| entry.id == id) {
        return Err(Errno::INVAL);
    }
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    // The last flush of the kernel is part of it, for which a server must not wait itself.
    let unmounted = caller::ask(Some(parent.as_fd()), || rustix::mount::unmount(&*name, how));
    unmounted.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// Opens a folder by a path without symbolic links.
fn hold_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// The kernel's number of the mount that is topmost at `name` in `parent`. Asks nothing of the filesystem there.
fn mount_id(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<u64> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd())).map_err(|_| Errno::INVAL)?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:")).and_then(|id| id.trim().parse().ok());
    id.ok_or(Errno::INVAL)
}

fn detach_with_helper(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    let own = rustix::process::getuid().as_raw();
    if let Some(user) = find(mountpoint).and_then(|entry| entry.user).filter(|&user| user != own) {
        return Err(MountError::AnotherUsers { path: mountpoint.into(), user });
    }
    let refused = |reason: String| MountError::Refused { path: mountpoint.into(), reason };
    let child = spawn_helper(|helper| {
        helper_command(helper)
            .args(if lazy { &["-u", "-z"][..] } else { &["-u"][..] })
            .arg("--")
            .arg(mountpoint)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    })?;
    let output = child.wait_with_output().map_err(|e| refused(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        Err(MountError::Busy(mountpoint.into()))
    } else if find(mountpoint).is_none_or(|entry| entry.fs_type != FS_TYPE) {
        Err(MountError::NotAMount(mountpoint.into()))
    } else {
        Err(refused(if said.is_empty() { format!("fusermount3 failed ({})", output.status) } else { said }))
    }
}

/// Whether a mount is at `path` whose process is gone ("Transport endpoint is not connected").
///
/// It asks for the state of the filesystem, which the kernel never keeps; attributes it may have kept for as long as the
/// mount's process once allowed. The kernel answers for a mount of another user itself: that one never looks dead. One whose
/// process says nothing for two seconds has a process.
pub fn is_stale(path: &Path) -> bool {
    let path = path.to_owned();
    let (word, answer) = channel();
    // The call cannot be given up once the kernel waits for the mount's process; whoever waits for the thread can.
    let asked = Builder::new().name("adit-statfs".into()).spawn(move || {
        let stale = loop {
            match rustix::fs::statfs(&path) {
                Err(Errno::INTR) => continue,
                Err(Errno::NOTCONN | Errno::CONNABORTED) => break true,
                Ok(_) | Err(_) => break false,
            }
        };
        // Nobody waits any more if it took that long.
        let _ = word.send(stale);
    });
    asked.is_ok() && answer.recv_timeout(STATFS_TIMEOUT).unwrap_or(false)
}

/// The mount of this program at the resolved `mountpoint`, if its process is gone; see [`is_stale`].
pub fn find_dead(mountpoint: &Path) -> Option<MountEntry> {
    find(mountpoint).filter(|entry| entry.fs_type == FS_TYPE && is_stale(mountpoint))
}

/// The absolute path of a mountpoint, without asking the filesystem that is mounted there, which may be dead.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => path.canonicalize(),
    }
}

/// A line of the kernel's mount table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// The kernel's number of the mount.
    pub id: u64,
    /// That of the mount around it.
    pub parent: u64,
    /// The folder of the filesystem that is mounted, from its root: `/` is all of it.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Type with subtype, such as `fuse.adit`.
    pub fs_type: String,
    /// The source, as the mounting program named it.
    pub source: OsString,
    /// `major:minor` of the device, which names its folder under `/sys/class/bdi`.
    pub device: String,
    /// The user (uid) who mounted it, of a FUSE filesystem; the kernel answers that user's requests only, unless told.
    pub user: Option<u32>,
    /// Whether the filesystem, and not this mount of it alone, refuses changes.
    pub read_only: bool,
}

/// The topmost mount exactly at `mountpoint`, in this process's view.
pub fn find(mountpoint: &Path) -> Option<MountEntry> {
    look(mountpoint).ok().flatten()
}

/// As [`find`], where it matters whether the table of mounts could be read.
pub(crate) fn look(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    Ok(read_table()?.into_iter().rev().find(|entry| entry.mountpoint == mountpoint))
}

/// True if the filesystem of this program with this device is mounted at `place` in this process's view, if under another one.
pub fn is_attached(device: &str, place: &Path) -> bool {
    ours().iter().any(|entry| entry.device == device && entry.mountpoint == place)
}

/// Every mount of this program in this process's view, dead ones too.
pub fn ours() -> Vec<MountEntry> {
    let table = read_table().unwrap_or_default();
    table.into_iter().filter(|entry| entry.fs_type == FS_TYPE).collect()
}

fn read_table() -> io::Result<Vec<MountEntry>> {
    read_table_of(Path::new("/proc/self"))
}

/// The table of mounts that a process has, by its folder in `/proc`.
pub(crate) fn read_table_of(process: &Path) -> io::Result<Vec<MountEntry>> {
    let bytes = std::fs::read(process.join("mountinfo"))?;
    Ok(bytes.split(|&b| b == b'\n').filter_map(parse_line).collect())
}

/// A line of `mountinfo` (proc(5)): id, parent, major:minor, root, mountpoint, options, tags… `-` type, source, options.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let (root, mountpoint) = (unescape(fields.next()?), unescape(fields.next()?));
    let mut after_tags = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(after_tags.next()?).into_owned();
    let source = unescape(after_tags.next()?);
    let options: Vec<&[u8]> = after_tags.next().unwrap_or_default().split(|&b| b == b',').collect();
    let number = |option: &&[u8]| std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok();
    let user = options.iter().find_map(number);
    let read_only = options.contains(&&b"ro"[..]);
    let (root, mountpoint) = (root.into(), mountpoint.into());
    Some(MountEntry { id, parent, root, mountpoint, fs_type, source, device, user, read_only })
}

/// Undoes the octal escapes (`\040`) of blanks and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// Raises what the kernel reads ahead on this mount to 1 MiB; with kernel write-back also what it holds of what was written: see
/// [`written_bytes`].
///
/// The protocol caps read-ahead at what the kernel offers (128 KiB); only its backing-device folder takes more. Best
/// effort: it needs root, and costs only speed.
pub(crate) fn tune_backing_device(mountpoint: &Path, kernel_writeback: bool) {
    const READ_AHEAD_KIB: &str = "1024";
    let Some(entry) = find(mountpoint) else {
        return;
    };
    let folder = Path::new("/sys/class/bdi").join(&entry.device);
    let set = |knob: &str, value: &str| {
        if let Err(e) = std::fs::write(folder.join(knob), value) {
            tracing::debug!(knob, "backing device not tuned: {e}");
        }
    };
    set("read_ahead_kb", READ_AHEAD_KIB);
    if kernel_writeback {
        set("max_bytes", &written_bytes(adit_core::cgroup::memory_limit_bytes()).to_string());
        set("strict_limit", "1");
    }
}

/// How much the kernel may hold of what was written, in bytes: so little that a store that is full hears in time, and a part of the memory that this
/// process's control group may use, where there is such a limit.
///
/// Pages that were written are charged to the group of the writer, which may be that of this process, too, and only this process can clean them. Were
/// the group full of them, this process would find no memory to do that, and everybody in the group would wait for ever.
fn written_bytes(limit_bytes: Option<u64>) -> u64 {
    const MOST_BYTES: u64 = 192 << 20;
    /// There may be several mounts in the group, and their processes, programs and the files behind the stores need the rest.
    const SHARE: u64 = 8;
    limit_bytes.map_or(MOST_BYTES, |limit| (limit / SHARE).min(MOST_BYTES))
}

/// For messages and JSON: lossy, as paths are bytes.
pub(crate) fn display(path: &OsStr) -> String {
    String::from_utf8_lossy(path.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table_is_read() {
        let line = br"36 35 0:98 / /mnt/a\040b\134c rw,nosuid shared:1 master:2 - fuse.adit /home/v\040x rw,user_id=0";
        let entry = parse_line(line).expect("valid line");
        assert_eq!(entry.mountpoint, Path::new(r"/mnt/a b\c"));
        assert_eq!((entry.id, entry.fs_type.as_str(), entry.device.as_str()), (36, "fuse.adit", "0:98"));
        assert_eq!((entry.source.to_str(), entry.user), (Some("/home/v x"), Some(0)));
        assert_eq!((entry.parent, entry.root.as_path()), (35, Path::new("/")));
        // What the mount refuses, another one of the same filesystem may not.
        let of = |mount: &str, all: &str| format!("36 35 0:98 / /m {mount},nosuid - fuse.adit /v {all},user_id=0");
        let is_read_only = |mount, all| parse_line(of(mount, all).as_bytes()).expect("a line").read_only;
        assert_eq!((entry.read_only, is_read_only("ro", "rw"), is_read_only("ro", "ro")), (false, false, true));
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"36 35 0:98 / /mnt rw shared:1 -"), None);
    }

    #[test]
    fn what_the_kernel_holds_leaves_room_in_a_control_group() {
        let of = |mib: u64| written_bytes(Some(mib << 20)) >> 20;
        assert_eq!((written_bytes(None) >> 20, of(64), of(256), of(1 << 20)), (192, 8, 32, 192));
    }

    #[test]
    fn escapes_that_are_none_stay() {
        assert_eq!(unescape(br"a\04"), r"a\04");
        assert_eq!(unescape(br"\999\"), r"\999\");
    }

    #[test]
    fn the_root_is_found_and_is_not_ours() {
        assert!(find(Path::new("/")).is_some());
        assert!(matches!(umount(Path::new("/"), false), Err(MountError::NotAMount(_))));
        assert!(!is_stale(Path::new("/")));
        assert!(!is_stale(Path::new("/no/such/path")));
    }

    #[test]
    fn who_only_looks_at_a_mount_is_waited_for() {
        let tried = |busy: u32, then: rustix::io::Result<()>| {
            let mut tries = 0;
            let done = unless_busy(&mut || {
                tries += 1;
                if tries > busy { then } else { Err(Errno::BUSY) }
            });
            (done, tries)
        };
        assert_eq!(tried(0, Ok(())), (Ok(()), 1));
        assert_eq!(tried(3, Ok(())), (Ok(()), 4));
        assert_eq!(tried(2, Err(Errno::PERM)), (Err(Errno::PERM), 3), "only what passes is waited for");
        assert_eq!(tried(u32::MAX, Ok(())), (Err(Errno::BUSY), LOOKS_MAX + 1), "who stays is in the way");
    }

    #[test]
    fn a_folder_that_became_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("real/mnt")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        let held = hold_folder(&dir.join("real")).unwrap();
        assert_eq!(mount_id(&held, OsStr::new("mnt")), mount_id(&held, OsStr::new("..")));
        assert_eq!(hold_folder(&dir.join("link")).unwrap_err(), Errno::LOOP);
        for way in ["real/mnt", "link/mnt", "none/mnt"] {
            let refused = detach(&dir.join(way), false);
            assert!(matches!(refused, Err(MountError::NotAMount(_))), "{way}: {refused:?}");
        }
    }

    #[test]
    fn the_name_is_escaped_for_the_helper() {
        let options = MountOptions { source: r"/a,b\c".into(), read_only: true, ..MountOptions::default() };
        assert_eq!(helper_options(&options), r"subtype=adit,default_permissions,noatime,ro,fsname=/a\,b\\c");
    }

    #[test]
    fn a_path_resolves_without_its_last_part() {
        let gone = Path::new("/tmp/../tmp/adit-no-such-name");
        assert_eq!(
            resolve(gone).expect("parent exists"),
            Path::new("/tmp").canonicalize().unwrap().join("adit-no-such-name")
        );
    }
}
