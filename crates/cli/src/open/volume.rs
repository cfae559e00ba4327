//! Opening a volume: its file, locked against every other process that changes it.

use std::path::Path;

use adit_core::types::Access;
use adit_core::{ErrorKind, FsError};
use adit_volume::Volume;
use adit_volume::volume::OpenOptions;
use rustix::io::Errno;

use super::{Purpose, remark};
use crate::failure::{Failure, Result};
use crate::live;

/// Opens the volume in `file` for a verb that ends.
///
/// # Errors
/// `Busy`, naming the mountpoint, if a process of this user has it mounted; else as [`opened`].
pub fn open(file: &Path, purpose: Purpose) -> Result<Volume> {
    open_with_data(file, None, purpose)
}

/// As [`open`], with the data folder of the volume where `data` says.
pub fn open_with_data(file: &Path, data: Option<&Path>, purpose: Purpose) -> Result<Volume> {
    if let Some(mount) = live::of_source(file).first() {
        return Err(live::in_the_way(file, mount, "mounted", &format!("work in {}, or", mount.mountpoint)));
    }
    let access = if purpose == Purpose::Read { Access::Read } else { Access::Write };
    let options = OpenOptions { background: false, ..OpenOptions::new(access) };
    Volume::open_with_data(file, data, &options).map_err(|e| failure(file, &e))
}

/// Opens the volume in `file`.
///
/// # Errors
/// `Busy` if another process has it; what [`Volume::open`] says.
pub fn opened(file: &Path, options: &OpenOptions) -> Result<Volume> {
    Volume::open(file, options).map_err(|e| failure(file, &e))
}

/// What an error of a volume is to the user.
pub fn failure(file: &Path, error: &FsError) -> Failure {
    let failure = Failure::fs(file.display(), error);
    match error.kind() {
        ErrorKind::Busy if live::overlay_on(file).is_some_and(|mount| mount.is_attached()) => {
            let at = live::overlay_on(file).map(|mount| mount.mountpoint).unwrap_or_default();
            failure.hint(format!("an overlay on {at} reads a snapshot of it: unmount that, or mount it before the overlay"))
        }
        ErrorKind::Busy => failure.hint(
            "it is open in another process: a mount of another user, or a command at work in it; try again when that ended",
        ),
        ErrorKind::Corrupt => failure.hint(format!(
            "`adit volume check {}` lists what is damaged; restore it from a backup if you can",
            file.display()
        )),
        ErrorKind::NotFound => failure.hint(format!(
            "if its data folder was moved, `adit volume check {} --data DIR --repair` tells the volume where it is now",
            file.display()
        )),
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
