//! The registry of live mounts, and the sockets by which other commands talk to a mount's process.
//!
//! Each mount has two files in a private runtime directory: `NAME.json` describes it ([`MountInfo`]) and is locked by the
//! process that serves it, so that a dead process's entry is known by its free lock and removed; `NAME.sock` answers
//! requests. A mount without them is reached through itself ([`door`]), at any place where it is mounted.
//!
//! A request is one line of JSON, `{"verb": "stats", "args": …}`, and so is the answer,
//! `{"ok": true, "result": …}` or `{"ok": false, "kind": "…", "message": "…"}`. An answer of any length comes in pieces before
//! that ([`Verbs::stream`]). Only the same user and root are answered.
//!
//! The verbs are the caller's ([`Verbs`]); `ping` is built in.

mod door;
mod stream;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_core::process::ProcessNumber;
use rustix::fs::Access;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::descriptors::Reserve;
use crate::mountpoint::{self, MountEntry, MountError};
use crate::process::{self, Process};
use crate::session::SessionHandle;

pub(crate) use door::Doorplate;
use door::{Door, DoorError};
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
/// The request for the description of a mount ([`MountInfo`]).
const IDENTITY: &str = "identity";
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
    /// The number of the process that serves it, in its own pid namespace: see [`MountInfo::process`].
    pid: u32,
    /// The number of that namespace.
    #[serde(default)]
    pid_namespace: Option<u64>,
    /// The kernel's number of the mount in its place: copies in other namespaces have others.
    #[serde(default)]
    mount_id: Option<u64>,
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
        let process = ProcessNumber::own();
        MountInfo {
            source: mountpoint::display(source.as_ref().as_os_str()),
            source_raw: raw(source.as_ref()),
            kind: kind.into(),
            mountpoint: mountpoint::display(mountpoint.as_os_str()),
            mountpoint_raw: raw(mountpoint),
            pid: process.pid(),
            pid_namespace: process.namespace(),
            read_only,
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            mount_id: own.as_ref().map(|entry| entry.id),
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

    /// The process that serves it, for people: who it is, only [`Registry::process_of`] knows.
    pub fn process(&self) -> ProcessNumber {
        ProcessNumber::new(self.pid, self.pid_namespace)
    }

    /// Its process says nothing.
    pub fn silent(&self) -> ControlError {
        ControlError::Silent { mountpoint: PathBuf::from(&self.mountpoint), process: Some(self.process()) }
    }

    /// The place where it was mounted, absolute.
    pub fn place(&self) -> PathBuf {
        path_of(&self.mountpoint, self.mountpoint_raw.as_deref())
    }

    /// Whether what is mounted at its place in this process's view, if anything of it, is the mount itself, and not a copy of another namespace or
    /// what a bind mount shows there.
    pub fn is_itself_in_place(&self) -> bool {
        let there = mountpoint::find(&self.place()).filter(|entry| entry.device == self.device);
        there.is_none_or(|entry| self.mount_id.is_none_or(|id| id == entry.id))
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
    /// A folder or file of a mount is mounted at the path, and the request is about all of it.
    #[error("{}: a part of the mount on {mountpoint} ({})", .path.display(), .part.display())]
    Part {
        /// The path.
        path: PathBuf,
        /// The part, from the root of the mount.
        part: PathBuf,
        /// Where all of it is mounted.
        mountpoint: String,
    },
    /// The process of the mount at the path is gone.
    #[error(transparent)]
    Dead(MountError),
    /// The mount's process lives, but says nothing: it is stopped, or hangs.
    #[error("{}: {} does not answer", .mountpoint.display(), .process.map_or("its process".to_owned(), |process| process.to_string()))]
    Silent {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// The process; `None` if the mount is announced nowhere.
        process: Option<ProcessNumber>,
    },
    /// The mount's process is in another network namespace, and the mount is announced in no folder that this process sees.
    #[error("{}: its process is in another network namespace, and can be neither ended nor waited for from here", .0.display())]
    OutOfSight(PathBuf),
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
    /// The first that can be had is written to; all are listed.
    directories: Vec<PathBuf>,
    /// Whether mounts that are announced in none of them are looked for.
    reaches_all: bool,
}

impl Registry {
    /// `$XDG_RUNTIME_DIR/adit` if that directory is this user's, else `/run/adit` for root and `/tmp/adit-UID` for others, and for a root that may
    /// not write in `/run`.
    ///
    /// All are listed, and that of logins (`/run/user/UID/adit`), because a mount made at boot, by cron or by sudo has no `XDG_RUNTIME_DIR` and a
    /// login has.
    pub fn of_this_user() -> Self {
        let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Registry { directories: places(given, Path::new("/run")), reaches_all: true }
    }

    /// A registry in one directory, which is created if need be. It knows what is announced there and nothing else.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Registry { directories: vec![directory.into()], reaches_all: false }
    }

    /// The directory in which this user's mounts are announced; made for this user alone if need be.
    ///
    /// # Errors
    /// Of the first: `UnsafeDirectory` if others can get at it; else `Io`.
    pub fn private_directory(&self) -> Result<PathBuf, ControlError> {
        let mut refused = None;
        for directory in &self.directories {
            match create_private(directory) {
                // Mounts are told by paths without links.
                Ok(()) => return directory.canonicalize().map_err(ControlError::io(directory.display())),
                Err(e) => _ = refused.get_or_insert(e),
            }
        }
        Err(refused.unwrap_or(ControlError::NotAMount(PathBuf::new())))
    }

    /// The directories that are looked into: those of them that are this user's alone.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(PathBuf::as_path).filter(|directory| check_private(directory).is_ok())
    }

    /// Announces a mount and answers requests for it until the [`Registered`] is dropped. A mount that no folder can be had for is reached through
    /// itself alone: see [`Registered::unannounced`].
    ///
    /// # Errors
    /// What sockets and threads say: nobody could reach it.
    pub fn register(&self, info: &MountInfo, verbs: impl Verbs) -> Result<Registered, ControlError> {
        let (door, listener) = Door::open().map_err(ControlError::io("a socket for requests"))?;
        let (entry, unannounced) = match self.announce(info) {
            Ok(announced) => (Some(announced), None),
            Err(e) => (None, Some(e)),
        };
        let (answering, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let server = Arc::new(Server {
            verbs: Box::new(verbs),
            info: info.clone(),
            clients: AtomicUsize::new(0),
            answering: answering.clone(),
            stopped: stopped.clone(),
        });
        let (entry, announced): (Option<Entry>, _) = entry.unzip();
        let doors = entry.iter().map(|entry| Door::Path(entry.socket.clone())).chain([door]).collect();
        let registered = Registered { entry, doors, unannounced, server: server.clone(), answering, stopped };
        for listener in announced.into_iter().chain([listener]) {
            let server = server.clone();
            Builder::new()
                .name("adit-control".into())
                .spawn(move || server.serve(&listener))
                .map_err(ControlError::io("control thread"))?;
        }
        Ok(registered)
    }

    /// Writes the entry of a mount, with a socket beside it.
    fn announce(&self, info: &MountInfo) -> Result<(Entry, UnixListener), ControlError> {
        let directory = self.private_directory()?;
        // No number of a process: another one has the same in another pid namespace.
        let stem = format!("{:016x}", RandomState::new().hash_one(info.started));
        let path = directory.join(format!("{stem}.json"));
        let socket = directory.join(format!("{stem}.sock"));
        let listener = UnixListener::bind(&socket).map_err(ControlError::io(socket.display()))?;
        let lock = write_locked(&path, info).inspect_err(|_| drop(std::fs::remove_file(&socket)))?;
        Ok((Entry { path, socket, _lock: lock }, listener))
    }

    /// The live mounts of this user, oldest first. Entries of dead processes are removed. Mounts that are announced nowhere are among them only where
    /// none can be announced.
    pub fn list(&self) -> Vec<MountInfo> {
        let can_announce = |directory: &Path| rustix::fs::access(directory, Access::WRITE_OK).is_ok();
        match self.reaches_all && !self.directories().any(can_announce) {
            true => self.list_all(),
            false => sorted(self.entries().into_iter().map(|(info, _)| info).collect()),
        }
    }

    /// As [`Registry::list`], with those that are announced nowhere: each mount that this process sees is asked for itself. One that says nothing is left
    /// out, which takes two seconds.
    pub fn list_all(&self) -> Vec<MountInfo> {
        let announced = self.entries().into_iter().map(|(info, _)| info);
        let mut mounts: Vec<MountInfo> = announced.collect();
        let mut known: HashSet<String> = mounts.iter().map(|mount| mount.device.clone()).collect();
        let mut others = if self.reaches_all { mountpoint::ours() } else { Vec::new() };
        // Of those that cover each other, the topmost is at the place.
        others.reverse();
        let mut places = HashSet::new();
        others.retain(|entry| places.insert(entry.mountpoint.clone()));
        others.retain(|entry| known.insert(entry.device.clone()));
        std::thread::scope(|scope| {
            let asked: Vec<_> = others.iter().map(|entry| scope.spawn(|| self.through(entry))).collect();
            let found = asked.into_iter().filter_map(|asked| Some(asked.join().ok()?.ok()?.0));
            mounts.extend(found);
        });
        sorted(mounts)
    }

    /// What is mounted there, as its process describes it, and the door to that.
    fn through(&self, entry: &MountEntry) -> Result<(MountInfo, Door), ControlError> {
        let place = || entry.mountpoint.clone();
        let door = Door::through(entry, PING_TIMEOUT).map_err(|closed| match closed {
            DoorError::Silent => ControlError::Silent { mountpoint: place(), process: None },
            DoorError::Refused => ControlError::NotAMount(place()),
        })?;
        let silent = || ControlError::Silent { mountpoint: place(), process: None };
        let told =
            ask_streaming(&silent, &door, IDENTITY, &Value::Null, (PING_TIMEOUT, &mut || Err(silent())), &mut |_| {
                Ok(())
            })?;
        let info = serde_json::from_value(told).map_err(|e| ControlError::io(&door)(e.into()))?;
        Ok((info, door))
    }

    /// The process that serves a mount, by the word of the kernel: whoever listens at its door.
    ///
    /// # Errors
    /// As [`Registry::ping`]; `OutOfSight` if only the mount itself leads to it; `Io` if it has just ended.
    pub fn process_of(&self, mount: &MountInfo) -> Result<Process, ControlError> {
        let door = self.door_of(mount)?;
        if matches!(door, Door::Mount(_)) {
            return Err(ControlError::OutOfSight(PathBuf::from(&mount.mountpoint)));
        }
        let stream = connect(&|| mount.silent(), &door, PING_TIMEOUT)?;
        let gone = || ControlError::io(&mount.mountpoint)(io::ErrorKind::NotConnected.into());
        Process::of_peer(&stream).ok_or_else(gone)
    }

    /// Asks the process behind `mountpoint` to carry out `verb`, and waits five seconds for its answer.
    ///
    /// # Errors
    /// As [`Registry::find`]; `Answered` with what the process says; `Silent` if it says nothing; else `Io`.
    pub fn call(&self, mountpoint: &Path, verb: &str, args: &Value) -> Result<Value, ControlError> {
        let (mount, door) = self.locate(mountpoint)?;
        ask(&mount, &door, verb, args, ANSWER_TIMEOUT, &mut || Err(mount.silent()))
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
        ask(mount, &self.door_of(mount)?, verb, args, ANSWER_TIMEOUT, waiting)
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
        ask_streaming(&|| mount.silent(), &self.door_of(mount)?, verb, args, (ANSWER_TIMEOUT, waiting), each)
    }

    /// Whether the process of `mount` is alive to requests; waits two seconds for that.
    ///
    /// # Errors
    /// `Silent` if it is not; else as [`Registry::call_entry`].
    pub fn ping(&self, mount: &MountInfo) -> Result<(), ControlError> {
        let door = self.door_of(mount)?;
        ask(mount, &door, "ping", &Value::Null, PING_TIMEOUT, &mut || Err(mount.silent())).map(drop)
    }

    fn door_of(&self, mount: &MountInfo) -> Result<Door, ControlError> {
        if let Some((_, door)) = self.entries().into_iter().find(|(info, _)| info == mount) {
            return Ok(door);
        }
        let not_a_mount = || ControlError::NotAMount(PathBuf::from(&mount.mountpoint));
        let mut seen = if self.reaches_all { mountpoint::ours() } else { Vec::new() }.into_iter();
        let entry = seen.find(|entry| entry.device == mount.device).ok_or_else(not_a_mount)?;
        Door::through(&entry, PING_TIMEOUT).map_err(|closed| match closed {
            DoorError::Silent => mount.silent(),
            DoorError::Refused => not_a_mount(),
        })
    }

    /// Asks the process of `mount`, which [`Registry::list`] gave, to carry out `verb`: also one that shares its
    /// mountpoint with others.
    ///
    /// # Errors
    /// As [`Registry::call`].
    pub fn call_entry(&self, mount: &MountInfo, verb: &str, args: &Value) -> Result<Value, ControlError> {
        ask(mount, &self.door_of(mount)?, verb, args, ANSWER_TIMEOUT, &mut || Err(mount.silent()))
    }

    /// The live mount of this user at `mountpoint`, or one that was detached from there. Any place where all of it is mounted names it.
    ///
    /// # Errors
    /// `NotAMount` if there is none; `Part` if a folder or file of it is mounted there; `Dead` if there is one without a process.
    pub fn find(&self, mountpoint: &Path) -> Result<MountInfo, ControlError> {
        let (info, _) = self.locate(mountpoint)?;
        let resolved = mountpoint::resolve(mountpoint).map_err(ControlError::io(mountpoint.display()))?;
        match mountpoint::find(&resolved).filter(|entry| entry.device == info.device && entry.root != Path::new("/")) {
            None => Ok(info),
            Some(entry) => Err(ControlError::Part { path: resolved, part: entry.root, mountpoint: info.mountpoint }),
        }
    }

    /// As [`Registry::find`], also at a place where a part of it is mounted.
    ///
    /// # Errors
    /// `NotAMount` or `Dead`, as there.
    pub fn find_around(&self, place: &Path) -> Result<MountInfo, ControlError> {
        self.locate(place).map(|(info, _)| info)
    }

    /// A mount is found by its device, at any of its places. Where mounts are stacked on one folder the topmost is meant; of those that were detached
    /// from there, the newest.
    fn locate(&self, mountpoint: &Path) -> Result<(MountInfo, Door), ControlError> {
        let resolved = mountpoint::resolve(mountpoint).map_err(ControlError::io(mountpoint.display()))?;
        let wanted = mountpoint::display(resolved.as_os_str());
        let topmost = mountpoint::find(&resolved).filter(|entry| entry.fs_type == mountpoint::FS_TYPE);
        let is_topmost = |info: &MountInfo| topmost.as_ref().is_some_and(|entry| entry.device == info.device);
        let entries = self.entries().into_iter();
        let here = entries.filter(|(info, _)| info.mountpoint == wanted || is_topmost(info));
        let found = here.max_by_key(|(info, _)| (is_topmost(info), info.started));
        if let Some(entry) =
            topmost.as_ref().filter(|_| self.reaches_all && !found.iter().any(|(info, _)| is_topmost(info)))
        {
            match self.through(entry) {
                // Its process is gone, or it is another user's.
                Err(ControlError::NotAMount(_)) => {}
                reached => return reached,
            }
        }
        match found {
            Some(found) if is_topmost(&found.0) || mountpoint::find_dead(&resolved).is_none() => Ok(found),
            None if mountpoint::find_dead(&resolved).is_none() => Err(ControlError::NotAMount(resolved)),
            _ => Err(ControlError::Dead(MountError::Stale(resolved))),
        }
    }

    /// Live entries with their sockets.
    fn entries(&self) -> Vec<(MountInfo, Door)> {
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
                    // Whoever tidies up a shared folder may have taken it: then it is reached through the mount itself.
                    Some(_) if !socket.exists() => {}
                    Some(info) => found.push((info, Door::Path(socket))),
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

/// The files that announce a mount; dropping it removes them.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    socket: PathBuf,
    /// Held for the life of the process; the kernel frees it if we die.
    _lock: File,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A mount that can be reached; dropping it removes its entry, and lets requests in progress be answered first
/// (for five seconds), so that whoever asked for the end learns how it went.
#[derive(Debug)]
pub struct Registered {
    entry: Option<Entry>,
    doors: Vec<Door>,
    unannounced: Option<ControlError>,
    server: Arc<Server>,
    answering: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl Registered {
    /// Why it is announced in no folder, if it is not.
    pub fn unannounced(&self) -> Option<&ControlError> {
        self.unannounced.as_ref()
    }

    /// Has the mount tell its door to whoever asks it.
    pub fn put_up(&self, session: &SessionHandle) {
        for door in &self.doors {
            // Weak: the mount's own answers must not keep what the verbs hold.
            let server = Arc::downgrade(&self.server);
            let admit = move |client| {
                if let Some(server) = server.upgrade() {
                    server.admit(client);
                }
            };
            session.doorplate().put_up(door, Box::new(admit));
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            let _ = std::fs::remove_file(&entry.path);
        }
        self.stopped.store(true, Ordering::SeqCst);
        // The threads that wait for clients see this one, and end. Without it, they stay until the process ends.
        for door in &self.doors {
            let _ = door.connect(PING_TIMEOUT);
        }
        drop(self.entry.take());
        let deadline = Instant::now() + LAST_ANSWERS;
        while self.answering.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn sorted(mut mounts: Vec<MountInfo>) -> Vec<MountInfo> {
    mounts.sort_by(|a, b| (a.started, &a.mountpoint).cmp(&(b.started, &b.mountpoint)));
    mounts
}

/// The directories in which this user's mounts are announced: the first is for new ones. `given` is the runtime directory of this process, `run` that of the machine.
fn places(given: Option<PathBuf>, run: &Path) -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    // Somebody who could put another folder in its place could answer for our mounts.
    let is_ours = |base: &PathBuf| std::fs::metadata(base).is_ok_and(|m| m.is_dir() && m.uid() == uid.as_raw());
    let of_login = run.join("user").join(uid.as_raw().to_string());
    let shared = PathBuf::from(format!("/tmp/adit-{}", uid.as_raw()));
    // Root of a user namespace, or of a system that is only read, may not write there.
    let fixed = if uid.is_root() { vec![run.join("adit"), shared] } else { vec![shared] };
    let given = given.filter(|base| base.is_absolute() && is_ours(base)).map(|base| base.join("adit"));
    let of_login = is_ours(&of_login).then(|| of_login.join("adit"));
    let mut places: Vec<PathBuf> = given.into_iter().chain(fixed).collect();
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
        Err(TryLockError::WouldBlock) => serde_json::from_reader(BufReader::new(file.take(ENTRY_LEN_MAX_BYTES))).ok(),
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
    info: MountInfo,
    clients: AtomicUsize,
    answering: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("info", &self.info).finish_non_exhaustive()
    }
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
            self.admit(client);
        }
    }

    /// Serves a client in a thread of its own, if it may ask.
    fn admit(self: &Arc<Self>, client: UnixStream) {
        if !is_allowed(&client) || self.clients.load(Ordering::SeqCst) >= CLIENTS_MAX {
            return;
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
            let mut answer = answer(&line, self, &mut parts).to_string();
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
    process::user_of_peer(peer).is_some_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
}

/// Why a request of so many bytes cannot be made.
fn too_long(len_bytes: impl std::fmt::Display) -> String {
    format!("the request has {len_bytes} bytes, and may have {REQUEST_LEN_MAX_BYTES}; ask for less at once")
}

fn answer(line: &str, server: &Server, parts: &mut Parts<'_>) -> Value {
    let failure = |kind: &str, message: String| json!({"ok": false, "kind": kind, "message": message});
    let request: Request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(_) if line.len() as u64 == REQUEST_LEN_MAX_BYTES => return failure("InvalidInput", too_long("more")),
        Err(e) => return failure("InvalidInput", format!("not a request: {e}")),
    };
    let verbs = &server.verbs;
    match request.verb.as_str() {
        "ping" => return json!({"ok": true, "result": Value::Null}),
        IDENTITY => return json!({"ok": true, "result": server.info}),
        _ => {}
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
    door: &Door,
    verb: &str,
    args: &Value,
    patience: Duration,
    waiting: &mut dyn FnMut() -> Result<(), ControlError>,
) -> Result<Value, ControlError> {
    ask_streaming(&|| mount.silent(), door, verb, args, (patience, waiting), &mut |_| Ok(()))
}

/// A connection to a process of this user or of root.
fn connect(silent: &dyn Fn() -> ControlError, door: &Door, patience: Duration) -> Result<UnixStream, ControlError> {
    let failed = |e| if is_timeout(&e) { silent() } else { ControlError::io(door)(e) };
    let stream = door.connect(patience).map_err(failed)?;
    match is_allowed(&stream) {
        true => Ok(stream),
        false => {
            Err(ControlError::UnsafeDirectory { path: door.to_string().into(), reason: "another user answers there" })
        }
    }
}

/// As [`ask`]; `each` gets the pieces that come before the end.
fn ask_streaming(
    silent: &dyn Fn() -> ControlError,
    door: &Door,
    verb: &str,
    args: &Value,
    (patience, waiting): (Duration, &mut dyn FnMut() -> Result<(), ControlError>),
    each: &mut dyn FnMut(Value) -> Result<(), ControlError>,
) -> Result<Value, ControlError> {
    let failed = || ControlError::io(door);
    let mut line = json!({"verb": verb, "args": args}).to_string();
    line.push('\n');
    if line.len() as u64 > REQUEST_LEN_MAX_BYTES {
        return Err(ControlError::answer(adit_core::ErrorKind::InvalidInput, too_long(line.len())));
    }
    let stream = connect(silent, door, patience)?;
    stream.set_read_timeout(Some(patience)).map_err(failed())?;
    (&stream).write_all(line.as_bytes()).map_err(|e| if is_timeout(&e) { silent() } else { failed()(e) })?;
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

#[cfg(test)]
mod tests;
