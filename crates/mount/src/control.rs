//! The registry of live mounts, and the socket by which other commands talk to a mount's process.
//!
//! Each mount has two files in a private runtime directory: `NAME.json` describes it ([`MountInfo`]) and is locked by the
//! process that serves it, so that a dead process's entry is known by its free lock and removed; `NAME.sock` answers
//! requests. A request is one line of JSON, `{"verb": "stats", "args": …}`, and so is the answer,
//! `{"ok": true, "result": …}` or `{"ok": false, "kind": "…", "message": "…"}`. An answer of any length comes in pieces before
//! that ([`Verbs::stream`]). Only the same user and root are answered.
//!
//! The verbs are the caller's ([`Verbs`]); `ping` is built in.

mod stream;

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::descriptors::Reserve;
use crate::mountpoint::{self, MountError};

pub use stream::{Parts, Watch};

/// Longest request, in bytes: with what a command line usually may have, however its bytes are written in JSON.
pub const REQUEST_LEN_MAX_BYTES: u64 = 8 << 20;
/// Longest entry of the registry, in bytes.
const ENTRY_LEN_MAX_BYTES: u64 = 1 << 20;
/// Longest answer, in bytes: a list of everything that differs between two snapshots may be long.
const ANSWER_LEN_MAX: u64 = 1 << 30;
/// How long a client may be silent, and how long an answer may take to be written.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a caller waits for an answer, and for a process to take its request: far more than a healthy one needs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a process may take to show that it is alive: a thread of its own does that.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long requests in progress may take when a mount ends.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Clients served at once.
const CLIENTS_MAX: usize = 16;

/// A live mount, as `adit mounts` prints it. Fields are only ever added.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountInfo {
    /// What is mounted: where it lies; bytes that are not UTF-8 are replaced.
    pub source: String,
    /// All bytes of that, if there are some that are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_raw: Option<Vec<u8>>,
    /// Kind of store: `vault`, `volume`, `manifest`, `dir`.
    pub kind: String,
    /// Where, absolute; bytes that are not UTF-8 are replaced.
    pub mountpoint: String,
    /// All bytes of that, if there are some that are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint_raw: Option<Vec<u8>>,
    /// The process that serves it.
    pub pid: u32,
    /// Whether it refuses changes.
    pub read_only: bool,
    /// When it was mounted, in seconds since 1970.
    pub started: u64,
    /// `major:minor` of its device, which tells it from others at the same mountpoint; empty if not known.
    #[serde(default)]
    pub device: String,
    /// The snapshot that it shows, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The branch that it shows, of a store that has branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The volume that takes the changes, of an overlay; bytes that are not UTF-8 are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<String>,
    /// All bytes of that, if there are some that are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper_raw: Option<Vec<u8>>,
    /// The device and inode number of the file that its process has open, of a volume or the upper of an overlay: whatever names
    /// that file has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_id: Option<(u64, u64)>,
    /// Whether it is there for the time of one command, and not to be listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

impl MountInfo {
    /// Describes a mount by this process that starts now; it is in its place already.
    pub fn new(source: impl AsRef<Path>, kind: &str, mountpoint: &Path, read_only: bool) -> Self {
        let own = mountpoint::find(mountpoint).filter(|entry| entry.fs_type == mountpoint::FS_TYPE);
        MountInfo {
            source: mountpoint::display(source.as_ref().as_os_str()),
            source_raw: raw(source.as_ref()),
            kind: kind.into(),
            mountpoint: mountpoint::display(mountpoint.as_os_str()),
            mountpoint_raw: raw(mountpoint),
            pid: std::process::id(),
            read_only,
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            device: own.map(|entry| entry.device).unwrap_or_default(),
            snapshot: None,
            branch: None,
            upper: None,
            upper_raw: None,
            file_id: None,
            hidden: false,
        }
    }

    /// With the volume that takes the changes.
    #[must_use]
    pub fn over(self, upper: &Path) -> Self {
        MountInfo { upper: Some(mountpoint::display(upper.as_os_str())), upper_raw: raw(upper), ..self }
    }

    /// What is mounted.
    pub fn source_path(&self) -> PathBuf {
        path_of(&self.source, self.source_raw.as_deref())
    }

    /// What its process works in: the volume that takes the changes, of an overlay, else what is mounted.
    pub fn file_path(&self) -> PathBuf {
        match &self.upper {
            Some(upper) => path_of(upper, self.upper_raw.as_deref()),
            None => self.source_path(),
        }
    }

    /// Its process says nothing.
    fn silent(&self) -> ControlError {
        ControlError::Silent { mountpoint: PathBuf::from(&self.mountpoint), pid: self.pid }
    }

    /// The place where it was mounted, absolute.
    pub fn place(&self) -> PathBuf {
        path_of(&self.mountpoint, self.mountpoint_raw.as_deref())
    }

    /// Whether this process sees it in its place. If not, it was detached, or is mounted elsewhere: see [`crate::sightings`].
    pub fn is_attached(&self) -> bool {
        mountpoint::is_attached(&self.device, &self.place())
    }
}

/// The bytes of a path that text does not have all of.
fn raw(path: &Path) -> Option<Vec<u8>> {
    path.to_str().is_none().then(|| path.as_os_str().as_bytes().to_vec())
}

fn path_of(text: &str, raw: Option<&[u8]>) -> PathBuf {
    raw.map_or_else(|| text.into(), |raw| OsStr::from_bytes(raw).into())
}

/// Why a request got no result.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No live mount of this user is at the path.
    #[error("{}: not a mount of adit", .0.display())]
    NotAMount(PathBuf),
    /// The process of the mount at the path is gone.
    #[error(transparent)]
    Dead(MountError),
    /// The mount's process lives, but says nothing: it is stopped, or hangs.
    #[error("{}: process {pid} does not answer", .mountpoint.display())]
    Silent {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// The process.
        pid: u32,
    },
    /// The mount's process refused or failed; `kind` is a word of [`adit_core::ErrorKind`] where it has one.
    #[error("{message}")]
    Answered {
        /// The kind, as a word.
        kind: String,
        /// The message.
        message: String,
    },
    /// The runtime directory belongs to someone else or is open to others.
    #[error("{}: {reason}", .path.display())]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The socket or a file failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl ControlError {
    /// An answer with a kind and a message, for [`Verbs`].
    pub fn answer(kind: impl std::fmt::Debug, message: impl ToString) -> Self {
        ControlError::Answered { kind: format!("{kind:?}"), message: message.to_string() }
    }

    fn io(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |source| ControlError::Io { what, source }
    }
}

/// What a mount's process does on request. Called from several threads.
pub trait Verbs: Send + Sync + 'static {
    /// Carries out `verb`; `None` if it is not one.
    fn call(&self, verb: &str, args: &Value) -> Option<Result<Value, ControlError>>;

    /// As [`Verbs::call`], with pieces of the answer before its end. Asked first.
    fn stream(&self, verb: &str, args: &Value, parts: &mut Parts<'_>) -> Option<Result<Value, ControlError>> {
        let _ = (verb, args, parts);
        None
    }
}

impl<F> Verbs for F
where
    F: Fn(&str, &Value) -> Option<Result<Value, ControlError>> + Send + Sync + 'static,
{
    fn call(&self, verb: &str, args: &Value) -> Option<Result<Value, ControlError>> {
        self(verb, args)
    }
}

/// The place of this user's mounts. See [`Registry::of_this_user`].
#[derive(Clone, Debug)]
pub struct Registry {
    /// The first is written to; all are listed.
    directories: Vec<PathBuf>,
}

impl Registry {
    /// `$XDG_RUNTIME_DIR/adit` if that directory is this user's, else `/run/adit` for root and `/tmp/adit-UID` for others.
    ///
    /// Both are listed, and that of logins (`/run/user/UID/adit`), because a mount made at boot, by cron or by sudo has no `XDG_RUNTIME_DIR` and a
    /// login has.
    pub fn of_this_user() -> Self {
        Registry { directories: places(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Path::new("/run")) }
    }

    /// A registry in one directory, which is created if need be.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Registry { directories: vec![directory.into()] }
    }

    /// The directory in which this user's mounts are announced; made for this user alone if need be.
    ///
    /// # Errors
    /// `UnsafeDirectory` if others can get at it; else `Io`.
    pub fn private_directory(&self) -> Result<PathBuf, ControlError> {
        let directory = self.directories.first().ok_or_else(|| ControlError::NotAMount(PathBuf::new()))?;
        create_private(directory)?;
        // Mounts are told by paths without links.
        directory.canonicalize().map_err(ControlError::io(directory.display()))
    }

    /// The directories that are looked into: those of them that are this user's alone.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(PathBuf::as_path).filter(|directory| check_private(directory).is_ok())
    }

    /// Announces a mount and answers requests for it until the [`Registered`] is dropped.
    ///
    /// # Errors
    /// `UnsafeDirectory`, or what the files and threads say.
    pub fn register(&self, info: &MountInfo, verbs: impl Verbs) -> Result<Registered, ControlError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Some(directory) = self.directories.first() else {
            return Err(ControlError::NotAMount(PathBuf::new()));
        };
        create_private(directory)?;
        let stem = format!("{}-{}", info.pid, COUNT.fetch_add(1, Ordering::Relaxed));
        let entry = directory.join(format!("{stem}.json"));
        let socket = directory.join(format!("{stem}.sock"));
        // Leftovers of an earlier process with the same number.
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(ControlError::io(socket.display()))?;
        let lock = write_locked(&entry, info).inspect_err(|_| drop(std::fs::remove_file(&socket)))?;
        let (answering, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let registered =
            Registered { entry, socket, answering: answering.clone(), stopped: stopped.clone(), _lock: lock };
        let server = Arc::new(Server { verbs: Box::new(verbs), clients: AtomicUsize::new(0), answering, stopped });
        Builder::new()
            .name("adit-control".into())
            .spawn(move || server.serve(&listener))
            .map_err(ControlError::io("control thread"))?;
        Ok(registered)
    }

    /// The live mounts of this user, oldest first. Entries of dead processes are removed.
    pub fn list(&self) -> Vec<MountInfo> {
        let mut mounts: Vec<MountInfo> = self.entries().into_iter().map(|(info, _)| info).collect();
        mounts.sort_by(|a, b| (a.started, &a.mountpoint).cmp(&(b.started, &b.mountpoint)));
        mounts
    }

    /// Asks the process behind `mountpoint` to carry out `verb`, and waits five seconds for its answer.
    ///
    /// # Errors
    /// As [`Registry::find`]; `Answered` with what the process says; `Silent` if it says nothing; else `Io`.
    pub fn call(&self, mountpoint: &Path, verb: &str, args: &Value) -> Result<Value, ControlError> {
        let (mount, socket) = self.locate(mountpoint)?;
        ask(&mount, &socket, verb, args, ANSWER_TIMEOUT, &mut || Err(mount.silent()))
    }

    /// As [`Registry::call_entry`], for a verb that may take long: whenever there was no answer for five seconds,
    /// `waiting` is called, which may end that with an error.
    ///
    /// # Errors
    /// As [`Registry::call`], and those of `waiting`.
    pub fn call_patiently(
        &self,
        mount: &MountInfo,
        verb: &str,
        args: &Value,
        waiting: &mut dyn FnMut() -> Result<(), ControlError>,
    ) -> Result<Value, ControlError> {
        ask(mount, &self.socket_of(mount)?, verb, args, ANSWER_TIMEOUT, waiting)
    }

    /// As [`Registry::call_patiently`], for a verb whose answer comes in pieces: `each` gets one after the other, and may end it with an
    /// error, which the process of the mount notices.
    ///
    /// # Errors
    /// As [`Registry::call_patiently`], and those of `each`.
    pub fn call_streaming(
        &self,
        mount: &MountInfo,
        verb: &str,
        args: &Value,
        each: &mut dyn FnMut(Value) -> Result<(), ControlError>,
        waiting: &mut dyn FnMut() -> Result<(), ControlError>,
    ) -> Result<Value, ControlError> {
        ask_streaming(mount, &self.socket_of(mount)?, verb, args, (ANSWER_TIMEOUT, waiting), each)
    }

    /// Whether the process of `mount` is alive to requests; waits two seconds for that.
    ///
    /// # Errors
    /// `Silent` if it is not; else as [`Registry::call_entry`].
    pub fn ping(&self, mount: &MountInfo) -> Result<(), ControlError> {
        let socket = self.socket_of(mount)?;
        ask(mount, &socket, "ping", &Value::Null, PING_TIMEOUT, &mut || Err(mount.silent())).map(drop)
    }

    fn socket_of(&self, mount: &MountInfo) -> Result<PathBuf, ControlError> {
        let found = self.entries().into_iter().find(|(info, _)| info == mount);
        found.map(|(_, socket)| socket).ok_or_else(|| ControlError::NotAMount(PathBuf::from(&mount.mountpoint)))
    }

    /// Asks the process of `mount`, which [`Registry::list`] gave, to carry out `verb`: also one that shares its
    /// mountpoint with others.
    ///
    /// # Errors
    /// As [`Registry::call`].
    pub fn call_entry(&self, mount: &MountInfo, verb: &str, args: &Value) -> Result<Value, ControlError> {
        ask(mount, &self.socket_of(mount)?, verb, args, ANSWER_TIMEOUT, &mut || Err(mount.silent()))
    }

    /// The live mount of this user at `mountpoint`, or one that was detached from there.
    ///
    /// # Errors
    /// `NotAMount` if there is none; `Dead` if there is one without a process.
    pub fn find(&self, mountpoint: &Path) -> Result<MountInfo, ControlError> {
        self.locate(mountpoint).map(|(info, _)| info)
    }

    /// Where mounts are stacked on one folder the topmost is meant; of those that were detached, the newest.
    fn locate(&self, mountpoint: &Path) -> Result<(MountInfo, PathBuf), ControlError> {
        let resolved = mountpoint::resolve(mountpoint).map_err(ControlError::io(mountpoint.display()))?;
        let wanted = mountpoint::display(resolved.as_os_str());
        let topmost = mountpoint::find(&resolved).filter(|entry| entry.fs_type == mountpoint::FS_TYPE);
        let is_topmost = |info: &MountInfo| topmost.as_ref().is_some_and(|entry| entry.device == info.device);
        let here = self.entries().into_iter().filter(|(info, _)| info.mountpoint == wanted);
        let found = here.max_by_key(|(info, _)| (is_topmost(info), info.started));
        match found {
            Some(found) if is_topmost(&found.0) || mountpoint::find_dead(&resolved).is_none() => Ok(found),
            None if mountpoint::find_dead(&resolved).is_none() => Err(ControlError::NotAMount(resolved)),
            _ => Err(ControlError::Dead(MountError::Stale(resolved))),
        }
    }

    /// Live entries with their sockets.
    fn entries(&self) -> Vec<(MountInfo, PathBuf)> {
        let mut found = Vec::new();
        for directory in &self.directories {
            if check_private(directory).is_err() {
                continue;
            }
            let Ok(listing) = std::fs::read_dir(directory) else {
                continue;
            };
            let names = listing.filter_map(|entry| Some(entry.ok()?.path()));
            for path in names.filter(|path| path.extension().is_some_and(|e| e == "json")) {
                let socket = path.with_extension("sock");
                match read_live(&path) {
                    Some(info) => found.push((info, socket)),
                    None => {
                        let _ = std::fs::remove_file(&path);
                        let _ = std::fs::remove_file(&socket);
                    }
                }
            }
        }
        found
    }
}

/// A mount's entry in the registry; dropping it removes the entry, and lets requests in progress be answered first
/// (for five seconds), so that whoever asked for the end learns how it went.
#[derive(Debug)]
pub struct Registered {
    entry: PathBuf,
    socket: PathBuf,
    answering: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
    /// Held for the life of the process; the kernel frees it if we die.
    _lock: File,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.entry);
        self.stopped.store(true, Ordering::SeqCst);
        // The thread that waits for clients sees this one, and ends. Without it, it stays until the process ends.
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
        let deadline = Instant::now() + LAST_ANSWERS;
        while self.answering.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The directories in which this user's mounts are announced: the first is for new ones. `given` is the runtime directory of this process, `run` that of the machine.
fn places(given: Option<PathBuf>, run: &Path) -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    // Somebody who could put another folder in its place could answer for our mounts.
    let is_ours = |base: &PathBuf| std::fs::metadata(base).is_ok_and(|m| m.is_dir() && m.uid() == uid.as_raw());
    let of_login = run.join("user").join(uid.as_raw().to_string());
    let fixed = match uid.is_root() {
        true => run.join("adit"),
        false => PathBuf::from(format!("/tmp/adit-{}", uid.as_raw())),
    };
    let given = given.filter(|base| base.is_absolute() && is_ours(base)).map(|base| base.join("adit"));
    let of_login = is_ours(&of_login).then(|| of_login.join("adit"));
    let mut places: Vec<PathBuf> = given.into_iter().chain([fixed]).collect();
    places.extend(of_login.filter(|place| !places.contains(place)));
    places
}

/// Creates `directory` for this user alone, and checks that it is so.
fn create_private(directory: &Path) -> Result<(), ControlError> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => {
            return Err(ControlError::Io { what: directory.display().to_string(), source: e });
        }
    }
    check_private(directory)
}

/// In a shared `/tmp` anyone can create our directory first; then it is not ours.
fn check_private(directory: &Path) -> Result<(), ControlError> {
    let found = directory.symlink_metadata().map_err(ControlError::io(directory.display()))?;
    let unsafe_because = |reason| Err(ControlError::UnsafeDirectory { path: directory.into(), reason });
    if !found.is_dir() {
        return unsafe_because("not a directory");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return unsafe_because("belongs to another user");
    }
    if found.mode() & 0o077 != 0 {
        return unsafe_because("is open to other users (chmod 700 it)");
    }
    Ok(())
}

/// Writes the entry under another name, locks it, and renames it: nobody sees it unlocked or half-written.
fn write_locked(entry: &Path, info: &MountInfo) -> Result<File, ControlError> {
    let failed = || ControlError::io(entry.display());
    let temporary = entry.with_extension("new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary).map_err(failed())?;
    let written = file
        .lock()
        .and_then(|()| serde_json::to_writer(&mut file, info).map_err(io::Error::from))
        .and_then(|()| std::fs::rename(&temporary, entry));
    match written {
        Ok(()) => Ok(file),
        Err(e) => {
            let _ = std::fs::remove_file(&temporary);
            Err(failed()(e))
        }
    }
}

/// The entry, if the process that wrote it lives.
fn read_live(path: &Path) -> Option<MountInfo> {
    let file = File::open(path).ok()?;
    match file.try_lock_shared() {
        Ok(()) => None,
        Err(TryLockError::WouldBlock) => serde_json::from_reader(file.take(ENTRY_LEN_MAX_BYTES)).ok(),
        Err(TryLockError::Error(_)) => None,
    }
}

#[derive(Serialize, Deserialize)]
struct Request {
    verb: String,
    #[serde(default)]
    args: Value,
}

struct Server {
    verbs: Box<dyn Verbs>,
    clients: AtomicUsize,
    answering: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

/// Counts up while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    /// Answers clients until [`Registered`] is dropped, which removes the listener's file.
    fn serve(self: Arc<Self>, listener: &UnixListener) {
        for client in listener.incoming() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            // Users of the mount may have opened all that there are: then it is with those that are kept back.
            let client = client.or_else(|_| {
                let _reserve = Reserve::open();
                listener.accept().map(|(client, _)| client)
            });
            let Ok(client) = client else {
                // Still out of descriptors: do not spin.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            if !is_allowed(&client) || self.clients.load(Ordering::SeqCst) >= CLIENTS_MAX {
                continue;
            }
            let server = self.clone();
            // Without a thread the client is hung up on, and may try again.
            let _ = Builder::new().name("adit-client".into()).spawn(move || {
                let _served = Counted::new(&server.clients);
                if let Err(e) = server.converse(&client) {
                    tracing::debug!("control client: {e}");
                }
            });
        }
    }

    fn converse(&self, client: &UnixStream) -> io::Result<()> {
        client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut lines = BufReader::new(client);
        loop {
            let mut line = String::new();
            if (&mut lines).take(REQUEST_LEN_MAX_BYTES).read_line(&mut line)? == 0 {
                return Ok(());
            }
            let _answering = Counted::new(&self.answering);
            let _reserve = Reserve::open();
            let mut parts = Parts::new(client, &self.stopped)?;
            let mut answer = answer(&line, &*self.verbs, &mut parts).to_string();
            answer.push('\n');
            if parts.is_lost() {
                return Ok(());
            }
            client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
            let mut out = client;
            out.write_all(answer.as_bytes())?;
            if !line.ends_with('\n') {
                // Cut off or too long; what follows would be nonsense.
                return Ok(());
            }
        }
    }
}

/// Whether the process at the other end is this user's or root's.
fn is_allowed(peer: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(peer)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Why a request of so many bytes cannot be made.
fn too_long(len_bytes: impl std::fmt::Display) -> String {
    format!("the request has {len_bytes} bytes, and may have {REQUEST_LEN_MAX_BYTES}; ask for less at once")
}

fn answer(line: &str, verbs: &dyn Verbs, parts: &mut Parts<'_>) -> Value {
    let failure = |kind: &str, message: String| json!({"ok": false, "kind": kind, "message": message});
    let request: Request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(_) if line.len() as u64 == REQUEST_LEN_MAX_BYTES => return failure("InvalidInput", too_long("more")),
        Err(e) => return failure("InvalidInput", format!("not a request: {e}")),
    };
    if request.verb == "ping" {
        return json!({"ok": true, "result": {"pid": std::process::id()}});
    }
    let call = std::panic::AssertUnwindSafe(|| {
        let streamed = verbs.stream(&request.verb, &request.args, parts);
        streamed.or_else(|| verbs.call(&request.verb, &request.args))
    });
    match std::panic::catch_unwind(call) {
        Ok(Some(Ok(result))) => json!({"ok": true, "result": result}),
        Ok(Some(Err(ControlError::Answered { kind, message }))) => failure(&kind, message),
        Ok(Some(Err(other))) => failure("Io", other.to_string()),
        Ok(None) => failure("NotSupported", format!("no such verb: {}", request.verb)),
        Err(_) => failure("Io", format!("{} panicked", request.verb)),
    }
}

/// Sends a request and waits for the answer; calls `waiting` whenever none came for `patience`.
fn ask(
    mount: &MountInfo,
    socket: &Path,
    verb: &str,
    args: &Value,
    patience: Duration,
    waiting: &mut dyn FnMut() -> Result<(), ControlError>,
) -> Result<Value, ControlError> {
    ask_streaming(mount, socket, verb, args, (patience, waiting), &mut |_| Ok(()))
}

/// As [`ask`]; `each` gets the pieces that come before the end.
fn ask_streaming(
    mount: &MountInfo,
    socket: &Path,
    verb: &str,
    args: &Value,
    (patience, waiting): (Duration, &mut dyn FnMut() -> Result<(), ControlError>),
    each: &mut dyn FnMut(Value) -> Result<(), ControlError>,
) -> Result<Value, ControlError> {
    let failed = || ControlError::io(socket.display());
    let mut line = json!({"verb": verb, "args": args}).to_string();
    line.push('\n');
    if line.len() as u64 > REQUEST_LEN_MAX_BYTES {
        return Err(ControlError::answer(adit_core::ErrorKind::InvalidInput, too_long(line.len())));
    }
    let stream = connect(socket, patience).map_err(|e| if is_timeout(&e) { mount.silent() } else { failed()(e) })?;
    if !is_allowed(&stream) {
        return Err(ControlError::UnsafeDirectory { path: socket.into(), reason: "another user answers there" });
    }
    stream.set_read_timeout(Some(patience)).map_err(failed())?;
    (&stream).write_all(line.as_bytes()).map_err(|e| if is_timeout(&e) { mount.silent() } else { failed()(e) })?;
    let mut lines = BufReader::new(&stream);
    loop {
        let line = next_line(&mut lines, &failed, waiting)?;
        let mut answer: Value = serde_json::from_slice(&line).map_err(|e| failed()(e.into()))?;
        if let Some(part) = answer.get_mut("part") {
            each(part.take())?;
            continue;
        }
        if answer["ok"] == true {
            return Ok(answer["result"].take());
        }
        let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
        return Err(ControlError::Answered { kind: text("kind"), message: text("message") });
    }
}

/// The next line of an answer.
fn next_line<F: FnOnce(io::Error) -> ControlError>(
    lines: &mut BufReader<&UnixStream>,
    failed: &dyn Fn() -> F,
    waiting: &mut dyn FnMut() -> Result<(), ControlError>,
) -> Result<Vec<u8>, ControlError> {
    let mut lines = lines.take(ANSWER_LEN_MAX);
    // What came before a timeout stays in it.
    let mut line = Vec::new();
    loop {
        match lines.read_until(b'\n', &mut line) {
            Ok(_) => return Ok(line),
            Err(e) if is_timeout(&e) => waiting()?,
            Err(e) => return Err(failed()(e)),
        }
    }
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection to the socket, made and written to within `patience` each: a process that hangs takes no more of them when
/// its queue is full.
fn connect(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let stream = UnixStream::from(stream);
    stream.set_write_timeout(Some(patience))?;
    let address = SocketAddrUnix::new(socket)?;
    loop {
        match rustix::net::connect(&stream, &address) {
            Err(Errno::INTR) => {}
            connected => break connected?,
        }
    }
    Ok(stream)
}

#[cfg(test)]
mod tests;
