//! Mounts for one command: they end with it, and nobody lists them.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_mount::control::MountInfo;
use adit_mount::{MountOptions, SessionHandle};

use super::{Wish, ask};
use crate::args::mount_options::{MEMORY_MIN_BYTES, Part, Timeouts};
use crate::failure::Result;
use crate::open;

/// Has the process of `mount` mount a part of the volume in `file` on `dir`, for as long as `lock` is held.
///
/// # Errors
/// What the process answers.
pub fn mount(mount: &MountInfo, file: &Path, part: Part, dir: &Path, lock: &Path) -> Result<()> {
    let options =
        MountOptions { source: file.display().to_string(), kind: "volume".to_owned(), ..MountOptions::default() };
    let wish = Wish {
        mountpoint: dir.as_os_str().as_bytes().to_vec(),
        part,
        options,
        timeouts: Timeouts::default(),
        memory_bytes: MEMORY_MIN_BYTES,
        idle: None,
        overlay: false,
        lock: Some(lock.as_os_str().as_bytes().to_vec()),
    };
    ask(mount, &wish)
}

/// Ends a mount when whoever holds `lock` has ended, however that was.
pub(super) fn end_with(lock: PathBuf, session: SessionHandle) -> std::io::Result<()> {
    let file = File::open(&lock)?;
    let waiting = std::thread::Builder::new().name("adit-verb".into());
    waiting
        .spawn(move || {
            if let Err(e) = file.lock() {
                tracing::warn!("{}: {e}", lock.display());
            }
            // Often it is gone by then: a verb that ends as it should unmounts by itself.
            if let Err(e) = session.unmount(true) {
                tracing::debug!("{e}");
            }
            open::mounted::clear(&lock);
        })
        .map(drop)
}
