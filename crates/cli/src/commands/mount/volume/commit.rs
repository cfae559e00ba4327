//! What `manifest commit` asks the process of an overlay on a manifest for: a state of it that stands still, shown on a mount of its
//! own, and where that may differ from the manifest.
//!
//! The state is a snapshot of the upper. It lives as long as its mount, which ends with the command, however that ends ([`verb`]).
//! What a killed process leaves of it, the next one removes, and so does the next commit.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adit_core::ErrorKind;
use adit_core::overlay::{AtWork, Change, Changed, FileVersion, Overlay, WorkEnd};
use adit_core::types::{Ino, Kind, Timestamp};
use adit_mount::MountOptions;
use adit_mount::control::{MountInfo, Registry};
use adit_volume::tree::MAIN;
use adit_volume::{Volume, VolumeStore};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Live, Process, RELEASE_PATIENCE, Shown, Wish, branch_of, overlay};
use crate::args::manifest::{CasArgs, StoreArgs, TransferArgs};
use crate::args::mount_options::{MEMORY_MIN_BYTES, Part, Timeouts};
use crate::commands::mount::answered;
use crate::commands::mount::overlay::Lower;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::volume_work;

/// The request.
pub const VERB: &str = "commit";
/// The names of the snapshots begin so.
const PREFIX: &str = "adit-commit-";
/// Between two tries to remove a snapshot that is still in use.
const PAUSE: Duration = Duration::from_millis(10);

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
enum Asked {
    /// Which manifest it is, and where its content is.
    About,
    /// Copy the index of the manifest into this file. Bytes, as paths are.
    Index { to: Vec<u8> },
    /// Show the state of now on this folder, for as long as somebody holds this lock. Bytes, as paths are.
    Begin { mountpoint: Vec<u8>, lock: Vec<u8> },
    /// Of a mount that was made so: write into its lock where it may differ from the manifest.
    Touched,
    /// Likewise: these versions of files are being brought to the store.
    Uploading { files: Vec<Version> },
    /// Likewise: these could not be.
    Failed { files: Vec<Version> },
    /// Likewise: the end; whether all of them are there, with the manifest.
    End { done: bool },
}

/// Number, length, and seconds and nanoseconds of mtime and ctime.
type Version = (u64, u64, (i64, u32), (i64, u32));

/// Versions of one request, which has a limit of 1 MiB.
const VERSIONS_MAX: usize = 4096;

/// An overlay on a manifest, as its process tells of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// The place of the manifest: bytes of a path, or a URL.
    manifest: Vec<u8>,
    /// xxh128 of its bytes.
    pub hash: String,
    /// The upper.
    upper: Vec<u8>,
    /// The id of that volume, in hexadecimal digits.
    pub upper_id: String,
    cas: Option<Vec<u8>>,
    cache_dir: Option<Vec<u8>>,
    endpoint_url: Option<String>,
    region: Option<String>,
    profile: Option<String>,
    path_style: bool,
    no_sign_request: bool,
    webdav_user: Option<String>,
    webdav_password_file: Option<Vec<u8>>,
    connect_timeout: Option<Duration>,
    request_timeout: Option<Duration>,
    #[serde(default)]
    store_timeout: Option<Duration>,
    #[serde(default)]
    request_payer: bool,
    #[serde(default)]
    transfer: TransferArgs,
}

impl About {
    fn of(lower: &Lower, upper: &Path, volume: &Volume) -> Option<About> {
        let (store, cas) = lower.manifest()?;
        let StoreArgs {
            endpoint_url,
            region,
            profile,
            path_style,
            no_sign_request,
            webdav_user,
            webdav_password_file,
            connect_timeout,
            request_timeout,
            store_timeout,
            request_payer,
            transfer,
        } = cas.store.clone();
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        Some(About {
            manifest: bytes(Path::new(&lower.source)),
            hash: store.identity().hash.to_string(),
            upper: bytes(upper),
            upper_id: volume_work::hex(&volume.info().uuid),
            cas: cas.cas.as_ref().map(|cas| cas.as_bytes().to_vec()),
            cache_dir: cas.cache_dir.as_deref().map(bytes),
            endpoint_url,
            region,
            profile,
            path_style,
            no_sign_request,
            webdav_user,
            webdav_password_file: webdav_password_file.as_deref().map(bytes),
            connect_timeout,
            request_timeout,
            store_timeout,
            request_payer,
            transfer,
        })
    }

    /// The place of the manifest.
    pub fn manifest(&self) -> PathBuf {
        OsString::from_vec(self.manifest.clone()).into()
    }

    /// The upper.
    pub fn upper(&self) -> PathBuf {
        OsString::from_vec(self.upper.clone()).into()
    }

    /// Where its content is, and how that is reached.
    pub fn cas(&self) -> CasArgs {
        let About { endpoint_url, region, profile, path_style, no_sign_request, webdav_user, .. } = self.clone();
        let store = StoreArgs {
            endpoint_url,
            region,
            profile,
            path_style,
            no_sign_request,
            webdav_user,
            webdav_password_file: self.webdav_password_file.clone().map(|file| OsString::from_vec(file).into()),
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
            store_timeout: self.store_timeout,
            request_payer: self.request_payer,
            transfer: self.transfer,
        };
        CasArgs {
            cas: self.cas.clone().map(OsString::from_vec),
            cache_dir: self.cache_dir.clone().map(|dir| OsString::from_vec(dir).into()),
            store,
            ..CasArgs::default()
        }
    }
}

/// Asks the process of `mount`, which is an overlay, which manifest it lies on.
///
/// # Errors
/// `NotSupported` if it is none; what the process says.
pub fn about(mount: &MountInfo) -> Result<About> {
    let told = ask(mount, &Asked::About)?;
    About::deserialize(told).map_err(|e| Failure::new(Code::Failure, format!("{}: {e}", mount.mountpoint)))
}

/// Has the process of `mount` copy the index of the manifest that is mounted into the file `to`, which is there.
///
/// # Errors
/// What the process says.
pub fn index(mount: &MountInfo, to: &Path) -> Result<()> {
    ask(mount, &Asked::Index { to: to.as_os_str().as_bytes().to_vec() }).map(drop)
}

/// Has the process of `mount` show a state of it that stands still on `dir`, for as long as `lock` is held.
///
/// # Errors
/// What the process says.
pub fn begin(mount: &MountInfo, dir: &Path, lock: &Path) -> Result<()> {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    ask(mount, &Asked::Begin { mountpoint: bytes(dir), lock: bytes(lock) }).map(drop)
}

/// Has the process write into the lock of `mount`, which [`begin`] made, where that may differ from the manifest: a line of JSON for each
/// change of `adit diff`, and with each file that was copied up what is new in it (`fresh`: `ino`, `len`, `ranges`). There may be as many as
/// there are files, so neither side has all of them as one value. It returns how many there are.
///
/// # Errors
/// What the process says.
pub fn touched(mount: &MountInfo) -> Result<u64> {
    let told = ask(mount, &Asked::Touched)?;
    told.as_u64().ok_or_else(|| Failure::new(Code::Failure, format!("{}: no count in {told}", mount.mountpoint)))
}

/// Tells the process of `mount`, which [`begin`] made, which files are being brought to the store.
///
/// # Errors
/// What the process says.
pub fn uploading(mount: &MountInfo, files: &[FileVersion]) -> Result<()> {
    tell(mount, files, |files| Asked::Uploading { files })
}

/// Tells it which of them could not be brought.
///
/// # Errors
/// What the process says.
pub fn failed(mount: &MountInfo, files: &[FileVersion]) -> Result<()> {
    tell(mount, files, |files| Asked::Failed { files })
}

/// Tells something about these versions of files.
fn tell(mount: &MountInfo, files: &[FileVersion], about: impl Fn(Vec<Version>) -> Asked) -> Result<()> {
    let time = |time: Timestamp| (time.secs, time.nanos);
    let version = |file: &FileVersion| (file.ino.0, file.size, time(file.mtime), time(file.ctime));
    files.chunks(VERSIONS_MAX).try_for_each(|files| ask(mount, &about(files.iter().map(version).collect())).map(drop))
}

/// The versions that such a request is about.
fn versions_of(files: &[Version]) -> Vec<FileVersion> {
    let time = |(secs, nanos)| Timestamp { secs, nanos };
    let version = |&(ino, size, mtime, ctime): &Version| FileVersion {
        ino: Ino(ino),
        size,
        mtime: time(mtime),
        ctime: time(ctime),
    };
    files.iter().map(version).collect()
}

/// Tells it the end: whether all of them are there, with the manifest.
///
/// # Errors
/// What the process says. A commit that is done is done all the same.
pub fn end(mount: &MountInfo, done: bool) -> Result<()> {
    ask(mount, &Asked::End { done }).map(drop)
}

fn ask(mount: &MountInfo, asked: &Asked) -> Result<Value> {
    let args = serde_json::to_value(asked).map_err(|e| Failure::new(Code::Failure, e))?;
    let registry = Registry::of_this_user();
    let mut waiting = || registry.ping(mount);
    registry.call_patiently(mount, VERB, &args, &mut waiting).map_err(|e| answered(&e))
}

impl Process {
    /// A request for a commit, to the session `id`.
    pub(super) fn commit(self: &Arc<Process>, id: u64, args: &Value) -> Result<Value> {
        let asked = Asked::deserialize(args).map_err(|e| Failure::usage(format!("not a request: {e}")))?;
        let about = self.lower.as_ref().and_then(|lower| About::of(lower, &self.file, &self.volume));
        let about = about.ok_or_else(|| {
            let what = format!("{}: no overlay on a manifest", self.file.display());
            Failure::new(Code::NotSupported, what).hint("only what lies on a manifest can be committed to a store")
        })?;
        match asked {
            Asked::About => serde_json::to_value(about).map_err(|e| Failure::new(Code::Failure, e)),
            Asked::Index { to } => self.copy_index(&PathBuf::from(OsString::from_vec(to))).map(|()| Value::Null),
            Asked::Begin { mountpoint, lock } => self.freeze(mountpoint, lock).map(|()| Value::Null),
            Asked::Touched => self.touched(id),
            Asked::Uploading { files } => Ok(self.note_work(id, &files, AtWork::Uploading)),
            Asked::Failed { files } => Ok(self.note_work(id, &files, AtWork::Failed)),
            Asked::End { done } => {
                let end = if done { WorkEnd::Committed } else { WorkEnd::Ended };
                let ended = self.main_overlay().map_or(Ok(()), |overlay| overlay.end_work(id, end));
                // Whoever is told that it is done may find it so after a kill.
                let ended = if done { ended.and_then(|()| self.flush(MAIN)) } else { ended };
                ended.map(|()| Value::Null).map_err(|e| self.failed(&e))
            }
        }
    }

    fn note_work(&self, id: u64, files: &[Version], what: AtWork) -> Value {
        if let Some(overlay) = self.main_overlay() {
            overlay.note_work(id, &versions_of(files), what);
        }
        Value::Null
    }

    /// Copies the index of the manifest below into the file `to`.
    fn copy_index(&self, to: &Path) -> Result<()> {
        let Some((store, _)) = self.lower.as_ref().and_then(Lower::manifest) else { return Ok(()) };
        // Only what somebody made for this is written to.
        let mut file = File::options().write(true).open(to).map_err(|e| Failure::io(to.display(), &e))?;
        store.segment().write_to(&mut file).map_err(|e| Failure::io(to.display(), &e))
    }

    /// The overlay that users see.
    fn main_overlay(&self) -> Option<Overlay> {
        let sessions = self.sessions.lock();
        let mut live = sessions.live.values().filter(|live| branch_of(&live.wish.part) == Some(MAIN));
        live.find_map(|live| live.overlay.clone())
    }

    /// Shows a snapshot of now.
    fn freeze(self: &Arc<Process>, mountpoint: Vec<u8>, lock: Vec<u8>) -> Result<()> {
        let fail = |e| self.failed(&e);
        let _freezing = self.freezing.lock();
        self.sweep_commits();
        self.flush(MAIN).map_err(fail)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{PREFIX}{}.{:09}", now.as_secs(), now.subsec_nanos());
        self.volume.create_snapshot(MAIN, &name).map_err(fail)?;
        let source = self.lower.as_ref().map(|lower| lower.source.clone()).unwrap_or_default();
        let options = MountOptions { source, kind: "overlay".to_owned(), read_only: true, ..MountOptions::default() };
        let wish = Wish {
            mountpoint,
            part: Part::Snapshot(name),
            options,
            timeouts: Timeouts::default(),
            memory_bytes: MEMORY_MIN_BYTES,
            idle: None,
            overlay: true,
            lock: Some(lock),
        };
        self.mount(&wish).inspect_err(|_| self.end_commit(0, &wish))
    }

    /// What a state of the upper shows over the manifest. What is read of that goes to the store again under a new hash: it has to be right.
    pub(super) fn shown_frozen(&self, upper: VolumeStore, lower: &Lower) -> Result<Shown> {
        let fail = |e| self.failed(&e);
        let identity = overlay::identity_for(&upper, lower).map_err(fail)?;
        let overlay = Overlay::open_verified(lower.another()?, Arc::new(upper), &identity).map_err(fail)?;
        Ok(Shown { store: Arc::new(overlay.clone()), branch: None, snapshots: None, overlay: Some(overlay) })
    }

    fn touched(&self, id: u64) -> Result<Value> {
        let fail = |e| self.failed(&e);
        let of = |live: &Live| Some((live.overlay.clone()?, live.wish.lock.clone()?));
        let (overlay, lock) = self
            .sessions
            .lock()
            .live
            .get(&id)
            .and_then(of)
            .ok_or_else(|| Failure::new(Code::NotSupported, "not an overlay that was shown for a commit"))?;
        if let Some(shown) = self.main_overlay() {
            shown.begin_work(id);
        }
        let lock = PathBuf::from(OsString::from_vec(lock));
        let unwritten = |e: std::io::Error| Failure::io(lock.display(), &e);
        let mut out = BufWriter::new(File::options().write(true).truncate(true).open(&lock).map_err(unwritten)?);
        let mut write = |change: &Change| -> Result<()> {
            let mut object = volume_work::change_json(change);
            if change.kind == Kind::File
                && change.what != Changed::Removed
                && let Some(fresh) = overlay.fresh(&change.path).map_err(fail)?
            {
                let ranges: Vec<[u64; 2]> = fresh.ranges.iter().map(|range| [range.start, range.end]).collect();
                object["fresh"] = json!({"ino": fresh.ino.0, "len": fresh.len, "ranges": ranges});
            }
            serde_json::to_writer(&mut out, &object).map_err(|e| unwritten(e.into()))?;
            out.write_all(b"\n").map_err(unwritten)
        };
        let (mut count, mut written) = (0_u64, Ok(()));
        // As they come: the overlay has all of them in memory already.
        let told = overlay.changes(&mut |change| {
            if written.is_ok() {
                written = write(&change);
                count += 1;
            }
        });
        if let Some(one) = told.map_err(fail)?.into_iter().next() {
            return Err(fail(one.error));
        }
        written?;
        out.flush().map_err(unwritten)?;
        Ok(count.into())
    }

    /// A session has ended: if it was of a commit, its snapshot goes.
    pub(super) fn end_commit(&self, id: u64, wish: &Wish) {
        let Some(name) = frozen_by(wish) else { return };
        if let Some(overlay) = self.main_overlay() {
            // Nothing is noted in the upper then.
            let _ = overlay.end_work(id, WorkEnd::Ended);
        }
        let deadline = Instant::now() + RELEASE_PATIENCE;
        loop {
            match self.volume.delete_snapshot(name) {
                Ok(()) => return,
                // A request to it is still under way.
                Err(e) if e.kind() == ErrorKind::Busy && Instant::now() < deadline => sleep(PAUSE),
                Err(e) => {
                    tracing::warn!("snapshot {name} of a commit stays until the next one: {e}");
                    return;
                }
            }
        }
    }

    /// Removes the snapshots that ended commits have left.
    pub(super) fn sweep_commits(&self) {
        let is_overlay_on_manifest = self.lower.as_ref().is_some_and(|lower| lower.manifest().is_some());
        if !is_overlay_on_manifest || self.volume.is_read_only() {
            return;
        }
        let snapshots = self.volume.snapshots();
        for left in snapshots.iter().filter(|info| !info.is_branch && is_of_commit(&info.name)) {
            // One that is in use belongs to a commit at work.
            match self.volume.delete_snapshot(&left.name) {
                Ok(()) => tracing::info!("snapshot {} of a commit that was ended is removed", left.name),
                Err(e) => tracing::debug!("snapshot {} of a commit stays: {e}", left.name),
            }
        }
    }
}

/// Whether a snapshot's name is one that commits give: seconds and nanoseconds.
fn is_of_commit(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = name.strip_prefix(PREFIX).and_then(|time| time.split_once('.'));
    time.is_some_and(|(secs, nanos)| is_number(secs) && is_number(nanos) && nanos.len() == 9)
}

/// The snapshot that a mount was made for alone.
fn frozen_by(wish: &Wish) -> Option<&str> {
    match &wish.part {
        Part::Snapshot(name) if wish.overlay && wish.lock.is_some() && is_of_commit(name) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_snapshot_of_a_commit_goes_with_its_mount() {
        let wish = |part, overlay, lock: Option<&[u8]>| Wish {
            mountpoint: Vec::new(),
            part,
            options: MountOptions::default(),
            timeouts: Timeouts::default(),
            memory_bytes: 0,
            idle: None,
            overlay,
            lock: lock.map(<[u8]>::to_vec),
        };
        let own = || Part::Snapshot(format!("{PREFIX}1.000000002"));
        assert_eq!(frozen_by(&wish(own(), true, Some(b"/l"))), Some("adit-commit-1.000000002"));
        // A user's own of that name, mounted, and another one for a verb.
        assert_eq!(frozen_by(&wish(own(), false, Some(b"/l"))), None);
        assert_eq!(frozen_by(&wish(own(), true, None)), None);
        assert_eq!(frozen_by(&wish(Part::Snapshot("monday".to_owned()), true, Some(b"/l"))), None);
        assert_eq!(frozen_by(&wish(Part::Live, true, Some(b"/l"))), None);
    }
}
