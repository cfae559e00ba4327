//! Opening a volume: its file, locked against every other process that changes it.

use std::path::Path;
use std::sync::Arc;

use adit_core::media::BlockFile;
use adit_core::overlay::LowerIdentity;
use adit_core::types::{Access, Ino};
use adit_core::{ErrorKind, FsError};
use adit_media::HostBlockFile;
use adit_mount::control::MountInfo;
use adit_volume::Volume;
use adit_volume::volume::OpenOptions;
use rustix::io::Errno;

use super::{Purpose, remark, turn};
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::live;

/// Opens the volume in `file` for a verb that ends, when its turn comes; `data` says where its data folder is now, if that was
/// moved.
///
/// # Errors
/// As [`open_with_data`].
pub fn in_turn(file: &Path, data: Option<&Path>, purpose: Purpose) -> Result<Volume> {
    turn::take(file, |_| open_with_data(file, data, purpose))
}

/// Opens the volume in `file` for a verb that ends, at once; `data` says where its data folder is now, if that was moved.
///
/// # Errors
/// `Busy`, naming the mountpoint, if a process of this user has it mounted; else as [`opened`].
pub fn open_with_data(file: &Path, data: Option<&Path>, purpose: Purpose) -> Result<Volume> {
    if let Some(mount) = live::of_source(file).first() {
        return Err(live::in_the_way(file, mount, "mounted", &format!("work in {}, or", mount.mountpoint)));
    }
    let access = if purpose == Purpose::Read { Access::Read } else { Access::Write };
    opened(file, data, &OpenOptions { background: false, ..OpenOptions::new(access) })
}

/// Opens the volume in `file`, with its data folder where `data` says.
///
/// # Errors
/// `Busy` if another process has it, which passes unless that is a mount; what [`Volume::open_with_data`] says.
pub fn opened(file: &Path, data: Option<&Path>, options: &OpenOptions) -> Result<Volume> {
    opened_through(file, data, options, &|file| Arc::new(file))
}

/// The same, with all that is done to its file going through what `wrap` makes of it.
///
/// # Errors
/// As [`opened`].
pub fn opened_through(
    file: &Path,
    data: Option<&Path>,
    options: &OpenOptions,
    wrap: &dyn Fn(HostBlockFile) -> Arc<dyn BlockFile>,
) -> Result<Volume> {
    Volume::open_through(file, data, options, wrap).map_err(|e| {
        let failure = failure(file, &e);
        match (e.kind(), data) {
            // The file is there: it was looked at before.
            (ErrorKind::NotFound, None) => failure.hint(
                "if its data folder was moved, say where it is now: --data DIR (a command that changes the volume has it \
                 remember that)",
            ),
            (ErrorKind::NotFound, Some(_)) => {
                failure.hint("--data names the folder that `adit volume init --data` was given, which holds a folder for each volume")
            }
            // A command at work in it, or a mount that begins or ends.
            (ErrorKind::Busy, _) if overlay_on(file).is_none() => failure.passing(),
            _ => failure,
        }
    })
}

/// Where an overlay is mounted that reads a snapshot of the volume in `file`.
fn overlay_on(file: &Path) -> Option<String> {
    live::overlay_on(file).filter(MountInfo::is_attached).map(|mount| mount.mountpoint)
}

/// What a branch is the upper layer of, if it is one.
///
/// # Errors
/// What the volume says; `NotSupported` for an overlay of another version.
pub fn upper_of(volume: &Volume, branch: &str) -> Result<Option<LowerIdentity>, FsError> {
    upper_at(volume, &adit_volume::Source::Branch(branch.to_owned()))
}

/// What a snapshot or branch is the upper layer of, if it is one.
///
/// # Errors
/// As [`upper_of`].
pub fn upper_in(volume: &Volume, name: &str) -> Result<Option<LowerIdentity>, FsError> {
    match volume.tree().find_snapshot(name) {
        Err(e) if e.is_not_found() => upper_of(volume, name),
        id => upper_at(volume, &adit_volume::Source::Snapshot(id?)),
    }
}

fn upper_at(volume: &Volume, source: &adit_volume::Source) -> Result<Option<LowerIdentity>, FsError> {
    let view = volume.tree().view(source)?;
    match view.xattr(Ino::ROOT.0, LowerIdentity::attribute().as_bytes()) {
        Ok(value) => LowerIdentity::from_attribute(&value).map(Some),
        Err(e) if e.kind() == ErrorKind::NoAttribute => Ok(None),
        Err(e) => Err(e),
    }
}

/// Refuses to change a branch by itself that is the upper layer of an overlay.
///
/// # Errors
/// `NotSupported`, naming the overlay's command; as [`upper_of`].
pub fn refuse_upper(file: &Path, volume: &Volume, branch: &str) -> Result<()> {
    match upper_of(volume, branch).map_err(|e| failure(file, &e))? {
        Some(lower) => Err(is_upper(file, &lower.text, None)),
        None => Ok(()),
    }
}

/// Refuses to show a snapshot of an overlay's upper layer by itself to who did not ask for that: its names are the overlay's own.
///
/// # Errors
/// `NotSupported`, naming the overlay's command; as [`upper_of`].
pub fn refuse_snapshot_of_upper(file: &Path, volume: &Volume, name: &str) -> Result<()> {
    let Some(lower) = upper_in(volume, name).map_err(|e| failure(file, &e))? else { return Ok(()) };
    let (at, lower) = (file.display(), lower.text);
    let command = overlay_command(file, &lower);
    let what =
        format!("{at}: snapshot {name} holds changes of an overlay on {lower}, in the way that the overlay keeps them");
    Err(Failure::new(Code::NotSupported, what).hint(format!(
        "to see what it was, mount the overlay ({command}) and set it back: adit snapshot restore MOUNTPOINT {name}; what differs is told \
         by adit snapshot diff; to look into the volume itself, mount it with --read-only"
    )))
}

/// The volume in `file` is changed through its overlay only. `lower` is what lies below, `mountpoint` where the overlay is
/// mounted, if it is.
pub fn is_upper(file: &Path, lower: &str, mountpoint: Option<&str>) -> Failure {
    let (at, command) = (file.display(), overlay_command(file, lower));
    Failure::new(
        Code::NotSupported,
        format!(
            "{at}: it holds the changes of an overlay on {lower}, and would no longer fit if it were changed by itself"
        ),
    )
    .hint(match mountpoint {
        Some(mountpoint) => format!("work in {mountpoint}, where the overlay is mounted"),
        None => format!("mount the overlay: {command}; to look into the volume itself, mount it with --read-only"),
    })
}

/// The command that mounts the overlay on `lower` with the upper in `file`.
pub fn overlay_command(file: &Path, lower: &str) -> String {
    let at = file.display();
    match Path::new(lower).is_absolute() {
        true => format!("adit mount {lower} MOUNTPOINT --upper {at}"),
        false => format!("adit mount VOLUME MOUNTPOINT --snapshot NAME --upper {at}"),
    }
}

/// What an error of a volume is to the user.
pub fn failure(file: &Path, error: &FsError) -> Failure {
    let failure = Advice::about_volume(file).failure(file.display(), error);
    match error.kind() {
        ErrorKind::Busy => match overlay_on(file) {
            Some(at) => failure
                .hint(format!("an overlay on {at} reads a snapshot of it: unmount that, or mount it before the overlay")),
            None => failure.hint(
                "it is open in another process: a mount of another user, or a command at work in it; try again when that ended",
            ),
        },
        _ => failure,
    }
}

/// How a mount opens the file: to change it where that is possible; says why not.
pub fn access_for_mount(file: &Path, read_only: bool) -> Access {
    use rustix::fs::{Access as Right, AtFlags, CWD};
    if read_only {
        return Access::Read;
    }
    let why = match rustix::fs::accessat(CWD, file, Right::WRITE_OK, AtFlags::EACCESS) {
        Err(Errno::ROFS) => "it lies on a read-only filesystem",
        Err(Errno::ACCESS | Errno::PERM) => "you have no permission to write to it",
        _ => return Access::Write,
    };
    remark(&format!("{}: opened read-only: {why}", file.display()));
    Access::Read
}
