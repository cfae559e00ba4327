//! What can be asked of a volume, whoever has it open: this process, or the one that has it mounted, through its socket.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use adit_core::overlay::{Change, Changed, LowerIdentity, Unknown};
use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError};
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_volume::Volume;
use adit_volume::table::BLOCK_LEN_BYTES;
use adit_volume::tree::{Difference, Differing, MAIN, Mtimes, Restored, SnapshotInfo};
use adit_volume::volume::Durability;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::volume::DataArgs;
use crate::commands::mount::answered;
use crate::commands::mount::volume::VOLUME_VERB;
use crate::exit_code::Code;
use crate::failure::{Failure, Result, volume_is_damaged};
use crate::open::{self, Purpose, turn};
use crate::source::Source;
use crate::{live, output};

/// Part of the answer to [`Asked::Info`] if it cannot be told whether the volume is an overlay's upper layer: why (`kind`,
/// `message`).
const UPPER_ERROR: &str = "upper_error";
/// Part of that answer if the volume is one: of what, as hexadecimal digits of the identity that the upper has noted.
pub const UPPER_ID: &str = "upper_of_id";
/// Likewise if the path of its data folder is not text: the bytes of it.
pub const DATA_DIR_RAW: &str = "data_dir_raw";
/// What the change of a path is called that could not be compared.
pub const UNKNOWN: &str = "unknown";

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Asked {
    /// Make a snapshot of a branch.
    Snapshot { branch: String, name: String },
    /// Delete a snapshot.
    DeleteSnapshot { name: String },
    /// List snapshots and branches.
    List,
    /// Set a branch, or what is at a path (names) in it, back to a snapshot. With `touch`, what changes is modified now.
    Restore {
        branch: String,
        name: String,
        path: Vec<Vec<u8>>,
        #[serde(default)]
        touch: bool,
    },
    /// What differs.
    Diff { old: String, new: String },
    /// Make a branch from a snapshot.
    Clone { snapshot: String, name: String },
    /// Delete a branch.
    DeleteClone { name: String },
    /// Describe the volume.
    Info,
    /// Give space back.
    Gc,
    /// Change how long the file may become, in bytes.
    Resize { bytes: u64 },
}

impl Asked {
    /// Whether it changes nothing.
    pub fn only_reads(&self) -> bool {
        matches!(self, Asked::List | Asked::Diff { .. } | Asked::Info)
    }

    /// What an error of [`perform`], of the volume in `file`, is to the user.
    pub fn failure(&self, file: &Path, error: &FsError) -> Failure {
        let failure = open::volume::failure(file, error);
        match self {
            // What is full is not the volume.
            Asked::Resize { .. } if failure.code() == Code::NoSpace => failure.hint(
                "that is what files, snapshots, and its own log and metadata take, which an empty volume has, too: delete \
                 something, also of its snapshots, then `adit volume gc`",
            ),
            _ => failure,
        }
    }

    /// The branch that it is about.
    pub fn branch(&self) -> Option<&str> {
        match self {
            Asked::Snapshot { branch, .. } | Asked::Restore { branch, .. } => Some(branch),
            Asked::DeleteClone { name } => Some(name),
            _ => None,
        }
    }
}

/// Does what was asked. `flush` has the kernel hand over what it holds of the mount of a branch.
pub fn perform(
    volume: &Volume,
    asked: &Asked,
    flush: &mut dyn FnMut(&str) -> Result<(), FsError>,
) -> Result<Value, FsError> {
    match asked {
        Asked::Snapshot { branch, name } => {
            let began = Instant::now();
            flush(branch)?;
            let flushed = began.elapsed();
            volume.create_snapshot(branch, name)?;
            let made = began.elapsed() - flushed;
            return Ok(json!({
                "name": name,
                "branch": branch,
                "flush_secs": flushed.as_secs_f64(),
                "store_secs": made.as_secs_f64(),
            }));
        }
        Asked::DeleteSnapshot { name } => volume.delete_snapshot(name)?,
        Asked::List => return Ok(volume.snapshots().iter().map(info_json).collect()),
        Asked::Restore { branch, name, path, touch } => {
            refuse_part_of_upper(volume, branch, path)?;
            let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
            return Ok(restored_json(&volume.restore(branch, name, &path, mtimes(*touch))?));
        }
        Asked::Diff { old, new } => {
            for state in [old, new] {
                refuse_state_of_upper(volume, state, old)?;
                flush(state)?;
            }
            return Ok(volume.diff(old, new)?.iter().map(difference_json).collect());
        }
        Asked::Clone { snapshot, name } => volume.create_clone(snapshot, name)?,
        Asked::DeleteClone { name } => volume.delete_clone(name)?,
        Asked::Resize { bytes } => volume.set_capacity(*bytes)?,
        Asked::Info => return Ok(describe(volume)),
        Asked::Gc => {
            let report = volume.gc()?;
            let block = BLOCK_LEN_BYTES as u64;
            return Ok(json!({
                "free_bytes_before": report.free_before * block,
                "free_bytes": report.free_after * block,
            }));
        }
    }
    Ok(Value::Null)
}

/// Refuses to set back what is at `path` in an overlay's upper layer: what the overlay has noted would no longer fit.
///
/// # Errors
/// `NotSupported`; as [`open::volume::upper_of`].
pub fn refuse_part_of_upper<P>(volume: &Volume, branch: &str, path: &[P]) -> Result<(), FsError> {
    if path.is_empty() || open::volume::upper_of(volume, branch)?.is_none() {
        return Ok(());
    }
    let why = "only all that an overlay's upper layer holds can be set back: leave out the path";
    Err(FsError::new(ErrorKind::NotSupported).because(why))
}

/// Refuses to compare a snapshot or branch that is an overlay's upper layer by itself: its paths are none that a user knows.
///
/// # Errors
/// `NotSupported`; as [`open::volume::upper_of`].
fn refuse_state_of_upper(volume: &Volume, state: &str, old: &str) -> Result<(), FsError> {
    let Some(lower) = open::volume::upper_in(volume, state)? else { return Ok(()) };
    let command = open::volume::overlay_command(Path::new(volume.name()), &lower.text);
    let why = format!(
        "it holds the changes of an overlay on {}, and what differs is told in the paths that the overlay shows, while it is mounted: \
         {command}; then adit snapshot diff MOUNTPOINT {old}",
        lower.text
    );
    Err(FsError::new(ErrorKind::NotSupported).because(why))
}

/// When what a restore changes is modified.
pub fn mtimes(touch: bool) -> Mtimes {
    if touch { Mtimes::Now } else { Mtimes::Snapshot }
}

/// What came of a restore beside what it was asked for.
pub fn restored_json(restored: &Restored) -> Value {
    let path = |path: &Vec<u8>| {
        let mut object = json!({});
        output::add_name(&mut object, "path", path);
        object
    };
    json!({
        "separated": restored.separated.iter().map(path).collect::<Vec<_>>(),
        "separated_omitted": restored.separated_omitted,
    })
}

fn info_json(info: &SnapshotInfo) -> Value {
    json!({
        "name": info.name,
        "id": info.id,
        "branch": info.is_branch,
        "created": output::iso_text(u64::try_from(info.created.secs).unwrap_or(0)),
        // With the rest of the second: what tells a snapshot from an earlier one with the same id.
        "created_nanos": info.created.nanos,
        "origin": info.origin,
    })
}

fn difference_json(difference: &Difference) -> Value {
    let (change, from) = match &difference.what {
        Differing::Added => ("added", None),
        Differing::Changed => ("changed", None),
        Differing::Removed => ("removed", None),
        Differing::Renamed(from) => ("renamed", Some(from.as_slice())),
    };
    changed_path_json(&difference.path, difference.kind, change, from)
}

fn changed_path_json(path: &[u8], kind: Kind, change: &str, from: Option<&[u8]>) -> Value {
    let mut told = json!({"path": null, "kind": kind.as_str(), "change": change, "from": null});
    output::add_name(&mut told, "path", path);
    if let Some(from) = from {
        output::add_name(&mut told, "from", from);
    }
    told
}

/// How the upper of an overlay differs, for [`adit_core::overlay::Overlay::differences`].
pub fn change_of_upper(difference: &Difference) -> Change {
    let what = match &difference.what {
        Differing::Added => Changed::Added,
        Differing::Changed => Changed::Content,
        Differing::Removed => Changed::Removed,
        Differing::Renamed(from) => Changed::Renamed(from.clone()),
    };
    Change { path: difference.path.clone(), kind: difference.kind, what }
}

/// How something on an overlay differs between two moments, in the words of volumes.
pub fn shown_change_json(change: &Change) -> Value {
    let what = match &change.what {
        Changed::Attributes => Changed::Content,
        what => what.clone(),
    };
    change_json(&Change { what, ..change.clone() })
}

/// How something on an overlay differs from what lies below.
pub fn change_json(change: &Change) -> Value {
    let (word, from) = match &change.what {
        Changed::Added => ("added", None),
        Changed::Content => ("changed", None),
        Changed::Attributes => ("attributes", None),
        Changed::Removed => ("removed", None),
        Changed::Renamed(from) => ("renamed", Some(from.as_slice())),
    };
    changed_path_json(&change.path, change.kind, word, from)
}

/// Of what on an overlay nobody can tell how it differs, and why.
pub fn unknown_json(unknown: &Unknown) -> Value {
    let mut object = json!({
        "path": null,
        "kind": unknown.kind.as_str(),
        "change": UNKNOWN,
        "from": null,
        "error": unknown.error.to_string(),
    });
    output::add_name(&mut object, "path", &unknown.path);
    object
}

fn describe(volume: &Volume) -> Value {
    let info = volume.info();
    let block = BLOCK_LEN_BYTES as u64;
    let upper_of = open::volume::upper_of(volume, MAIN);
    let mut told = json!({
        "path": volume.name(),
        "kind": "volume",
        "format": info.format,
        "uuid": hex(&info.uuid),
        "capacity_bytes": info.capacity_bytes,
        "free_bytes": info.space.free * block,
        "reserved_bytes": info.space.reserved * block,
        "segment_len_bytes": info.segment_len_bytes,
        "durability": durability_word(info.durability),
        "data": if info.data_dir.is_some() { "folder" } else { "inline" },
        "data_dir": info.data_dir.as_ref().map(|dir| dir.display().to_string()),
        "snapshots": info.snapshots,
        "branches": info.branches,
        "replayed": info.replayed,
        "collected": info.collected,
        "upper_of": upper_of.as_ref().ok().and_then(|lower| Some(lower.as_ref()?.text.as_str())),
    });
    match upper_of {
        Ok(Some(lower)) => told[UPPER_ID] = hex(&lower.id).into(),
        Ok(None) => {}
        Err(e) => told[UPPER_ERROR] = json!({"kind": format!("{:?}", e.kind()), "message": e.to_string()}),
    }
    if let Some(dir) = info.data_dir.filter(|dir| dir.to_str().is_none()) {
        told[DATA_DIR_RAW] = dir.as_os_str().as_bytes().into();
    }
    told
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A durability, as options name it.
pub fn durability_word(durability: Durability) -> &'static str {
    match durability {
        Durability::Sync => "sync",
        Durability::Fsync => "fsync",
    }
}

/// Whether the volume that `info`, the answer to [`Asked::Info`], is about has changes of `lower`.
///
/// # Errors
/// Why that cannot be told: damage, or another version of overlays.
pub fn is_upper_of(info: &Value, lower: &LowerIdentity) -> Result<bool> {
    match upper_error(info) {
        Some(failure) => Err(failure.on(info["path"].as_str().unwrap_or_default())),
        None => Ok(info[UPPER_ID] == hex(&lower.id)),
    }
}

/// Why it cannot be told whether the volume that `info` is about is an upper, if so.
fn upper_error(info: &Value) -> Option<Failure> {
    let error = &info[UPPER_ERROR];
    Some(Failure::new(Code::of_word(error["kind"].as_str()?), error["message"].as_str()?))
}

/// The data folder of the volume that `info`, the answer to [`Asked::Info`], is about, if it has one.
pub fn data_dir(info: &Value) -> Option<PathBuf> {
    let Some(bytes) = info[DATA_DIR_RAW].as_array() else { return info["data_dir"].as_str().map(PathBuf::from) };
    let bytes: Option<Vec<u8>> = bytes.iter().map(|byte| byte.as_u64()?.try_into().ok()).collect();
    Some(OsString::from_vec(bytes?).into())
}

/// What was named is a source without snapshots.
fn without(x: &OsStr) -> Failure {
    let kind = Source::recognise(x).map_or("source", |source| source.kind());
    Failure::new(Code::NotSupported, format!("{}: a {kind}, and not a volume", x.display()))
}

/// Why the volume in `file`, which a process has mounted, cannot be reached with its data folder where `data` says: that process
/// uses another one.
///
/// # Errors
/// As [`Named::ask`].
pub fn other_data(file: &Path, data: Option<&Path>) -> Result<Option<Failure>> {
    let Some(data) = data else { return Ok(None) };
    Named { data: Some(data.to_owned()), ..Named::of(file.as_os_str())? }.other_data()
}

/// Refuses to change the volume in `file`, which a process has open, if it is the upper layer of an overlay, or if that cannot
/// be told.
///
/// # Errors
/// `NotSupported`; `Corrupt`.
pub fn refuse_upper(file: &Path) -> Result<()> {
    let info = Named::of(file.as_os_str())?.ask(&Asked::Info)?;
    if let Some(failure) = upper_error(&info) {
        let failure = failure.on(file.display());
        return Err(match failure.code() {
            Code::Corrupt => failure.hint(volume_is_damaged(file)),
            _ => failure,
        });
    }
    let Some(lower) = info["upper_of"].as_str() else { return Ok(()) };
    let overlay = live::of_source(file).into_iter().find(|mount| mount.upper.is_some() && mount.is_attached());
    Err(open::volume::is_upper(file, lower, overlay.as_ref().map(|mount| mount.mountpoint.as_str())))
}

/// A volume, as it was named: its file, or a mount of it.
pub struct Named {
    /// For messages.
    pub subject: String,
    file: PathBuf,
    /// Where its data folder is said to be.
    data: Option<PathBuf>,
    /// A mount of it by a process of this user.
    mount: Option<MountInfo>,
    /// The branch or the snapshot that is mounted where it was named.
    branch: Option<String>,
    snapshot: Option<String>,
}

impl Named {
    /// Finds the volume that `x` names, whose data folder is now where `data` says.
    ///
    /// # Errors
    /// `NotAMount` for a folder that is none; `Busy` if it is mounted with another data folder; as [`Source::recognise`] and
    /// [`Named::ask`].
    pub fn find(x: &OsStr, data: &DataArgs) -> Result<Named> {
        let data = data.data.as_ref().map(std::path::absolute).transpose().map_err(|e| Failure::io("--data", &e))?;
        let named = Named { data, ..Named::of(x)? };
        match named.other_data()? {
            Some(failure) => Err(failure),
            None => Ok(named),
        }
    }

    fn of(x: &OsStr) -> Result<Named> {
        let path = Path::new(x);
        live::expect_answers(path)?;
        if path.is_dir()
            || adit_mount::mountpoint::resolve(path).is_ok_and(|at| adit_mount::mountpoint::find(&at).is_some())
        {
            let mount = match Registry::of_this_user().find(path) {
                Err(ControlError::NotAMount(_)) if matches!(Source::recognise(x), Ok(Source::Vault(_))) => {
                    return Err(without(x));
                }
                found => found.map_err(|e| answered(&e))?,
            };
            let file = mount.file_path();
            if mount.upper.is_some() {
                // What an overlay changes is in the main branch of its upper.
                let subject = path.display().to_string();
                let branch = Some(MAIN.to_owned());
                return Ok(Named { subject, file, data: None, mount: Some(mount), branch, snapshot: None });
            }
            if mount.kind != "volume" {
                let what = format!("{}: a mount of a {}, which has no snapshots", path.display(), mount.kind);
                return Err(Failure::new(Code::NotSupported, what));
            }
            let (branch, snapshot) = (mount.branch.clone(), mount.snapshot.clone());
            let subject = path.display().to_string();
            return Ok(Named { subject, file, data: None, mount: Some(mount), branch, snapshot });
        }
        let file = match Source::recognise(x)? {
            Source::Volume(file) => file,
            _ => return Err(without(x)),
        };
        let mount = live::of_source(&file).into_iter().next();
        Ok(Named { subject: file.display().to_string(), file, data: None, mount, branch: None, snapshot: None })
    }

    /// Why its data folder cannot be the one that it was said to be, if the process which has the volume open uses another one.
    fn other_data(&self) -> Result<Option<Failure>> {
        let (Some(data), Some(_)) = (&self.data, &self.mount) else { return Ok(None) };
        let part = data_dir(&self.ask(&Asked::Info)?);
        let used = part.as_deref().and_then(Path::parent);
        let real = |path: &Path| path.canonicalize().ok();
        if used.is_some_and(|used| real(used).is_some() && real(used) == real(data)) {
            return Ok(None);
        }
        let used =
            used.map_or("it has no data folder".to_owned(), |used| format!("its data folder is {}", used.display()));
        let what = format!("{}: mounted, and {used}, not {}", self.subject, data.display());
        Ok(Some(Failure::new(Code::Busy, what).hint("leave out --data, or unmount it first")))
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A mount of it by a process of this user.
    pub fn mount(&self) -> Option<&MountInfo> {
        self.mount.as_ref()
    }

    /// Whether it is mounted as the upper layer of an overlay. Paths in it are then not those that are shown.
    pub fn is_overlay(&self) -> bool {
        self.mount.as_ref().is_some_and(|mount| mount.upper.is_some())
    }

    /// The branch that is meant: `given`, else what is mounted where it was named, else the main one.
    pub fn branch(&self, given: Option<&str>) -> Result<String> {
        match (given, &self.branch, &self.snapshot) {
            (Some(given), ..) => Ok(given.to_owned()),
            (None, Some(branch), _) => Ok(branch.clone()),
            (None, None, Some(snapshot)) => {
                Err(Failure::usage(format!("{}: snapshot {snapshot} is mounted there, and no branch", self.subject))
                    .hint("name the branch: --branch NAME"))
            }
            (None, None, None) => Ok(MAIN.to_owned()),
        }
    }

    /// Has it done: by the process that has the volume mounted, or here, when its turn comes.
    pub fn ask(&self, asked: &Asked) -> Result<Value> {
        // Whoever named a mount means that one.
        if let Some(mount) = self.mount.as_ref().filter(|_| self.branch.is_some() || self.snapshot.is_some()) {
            return ask_process(mount, asked);
        }
        turn::take(&self.file, |seen| match seen.process.as_ref().or(seen.mounts.first()) {
            // A restore may take a mount away and bring it back before it gives up: that is no reason to do so again.
            Some(mount) if matches!(asked, Asked::Restore { .. }) => {
                ask_process(mount, asked).map_err(Failure::lasting)
            }
            Some(mount) => ask_process(mount, asked),
            None => self.perform_here(asked),
        })
    }

    fn perform_here(&self, asked: &Asked) -> Result<Value> {
        let purpose = if asked.only_reads() { Purpose::Read } else { Purpose::Write };
        let volume = open::volume::open_with_data(&self.file, self.data.as_deref(), purpose)?;
        let fail = |e: FsError| open::volume::failure(&self.file, &e);
        let done = perform(&volume, asked, &mut |_| Ok(())).map_err(|e| asked.failure(&self.file, &e))?;
        volume.close().map_err(fail)?;
        Ok(done)
    }
}

/// Has the process of `mount` do it.
fn ask_process(mount: &MountInfo, asked: &Asked) -> Result<Value> {
    let args = serde_json::to_value(asked).map_err(|e| Failure::new(Code::Failure, e))?;
    let registry = Registry::of_this_user();
    let mut waiting = || registry.ping(mount);
    registry.call_patiently(mount, VOLUME_VERB, &args, &mut waiting).map_err(|e| match e {
        // It ended before it was asked.
        ControlError::NotAMount(_) => answered(&e).passing(),
        e => answered(&e),
    })
}
