//! Things that root alone may allow a mount: device nodes and set-id programs when mount(8) asks for it; and `remount`, by which its flags change.
//!
//! mount(8) never hands `dev` and `suid` to a helper: they are its defaults, so a word that says otherwise is all that it hands on. Helpers of
//! FUSE filesystems therefore take both as given for root unless told otherwise, and so does this one. `adit mount` itself has neither unless it
//! is asked: who types it need not think of that.

use std::path::Path;

use adit_mount::control::Registry;
use adit_mount::{MountError, MountOptions, mountpoint};
use rustix::fs::StatVfsMountFlags;

use super::mount_failure;
use crate::args::low::MountArgs;
use crate::args::mount_options::{MountRequest, split_options};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};

/// The word for a change of a mount's flags.
const REMOUNT: &str = "remount";

/// Takes back what root's mount(8) gives unasked where what is mounted lies on a filesystem that has not got it: a user's disk, for one.
pub fn respect_host(request: &mut MountRequest, source: &Path) {
    if !request.is_granted {
        return;
    }
    let upper = request.upper.as_deref().or(request.upper_dir.as_deref());
    for place in [Some(source), upper].into_iter().flatten() {
        // A place that is not on this machine, or not there yet, says nothing.
        let Ok(host) = rustix::fs::statvfs(place) else { continue };
        request.options.suid &= !host.f_flag.contains(StatVfsMountFlags::NOSUID);
        request.options.dev &= !host.f_flag.contains(StatVfsMountFlags::NODEV);
    }
}

/// True if the flags of a mount are to be changed, and nothing mounted.
pub fn is_remount(args: &MountArgs) -> bool {
    args.options.iter().flat_map(|list| split_options(list)).any(|option| option == REMOUNT)
}

/// `-o remount`: gives the mount the flags that are named; the others stay. Other options are those that it was made with, and stay as well.
///
/// # Errors
/// `NotAMount`; that it cannot be written, if it was opened to be read; what the kernel says, which lets root alone do it.
pub fn remount(args: &MountArgs) -> Result<()> {
    let path = &args.mountpoint;
    let place = mountpoint::resolve(path).map_err(|e| Failure::io(path.display(), &e).on("mountpoint"))?;
    let entry = mountpoint::find(&place).filter(|entry| entry.fs_type == mountpoint::FS_TYPE);
    let entry = entry.ok_or_else(|| mount_failure(&MountError::NotAMount(place.clone())))?;
    let now = rustix::fs::statvfs(&place).map_err(|e| Failure::io(place.display(), &e.into()))?.f_flag;
    let mut options = MountOptions {
        read_only: now.contains(StatVfsMountFlags::RDONLY),
        suid: !now.contains(StatVfsMountFlags::NOSUID),
        dev: !now.contains(StatVfsMountFlags::NODEV),
        exec: !now.contains(StatVfsMountFlags::NOEXEC),
        sync: now.contains(StatVfsMountFlags::SYNCHRONOUS),
        ..MountOptions::default()
    };
    for option in args.options.iter().flat_map(|list| split_options(list)) {
        // Other options were for the mount that is there.
        if let Some(option) = option.to_str() {
            options.apply(option);
        }
    }
    options.read_only |= args.read_only;
    let served = Registry::of_this_user().list().into_iter().find(|mount| mount.device == entry.device);
    if served.is_some_and(|mount| mount.read_only) && !options.read_only {
        let what = format!("{}: its source was opened to be read, and cannot be written", place.display());
        return Err(Failure::new(Code::Failure, what).hint("unmount it, and mount it anew with -o rw"));
    }
    if args.fake {
        return Ok(());
    }
    mountpoint::remount(&place, &options).map_err(|e| mount_failure(&e))
}
