//! What is agreed with the kernel when a mount begins.

use std::io;
use std::path::Path;

use adit_core::store::Capabilities;
use fuser::{InitFlags, KernelConfig};

use super::{BACKGROUND_MAX, TRANSFER_LEN_MAX};

/// What the kernel and we agreed on, as far as requests are treated differently.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Agreed {
    /// The kernel enforces POSIX ACLs, and leaves the umask to the store.
    pub(super) acls: bool,
    /// The kernel leaves it to us to clear set-id bits; see [`super::set_id`].
    pub(super) set_id: bool,
    /// The kernel keeps the times of files that are written or allocated, and sets them in the store, which takes them.
    pub(super) times: bool,
    /// Labels of SELinux mean something on this machine.
    pub(super) labels: bool,
}

/// Agrees with the kernel on what `store` asks for, as far as the kernel offers it.
pub(super) fn agree(store: &Capabilities, kernel_writeback: bool, config: &mut KernelConfig) -> io::Result<Agreed> {
    let granted = wanted(store, kernel_writeback) & config.capabilities();
    // ACLs without the umask would give what is made in a directory with a default ACL too little.
    let granted = if granted.contains(ACLS) { granted } else { granted - ACLS };
    let unsupported = |_| io::Error::from(io::ErrorKind::Unsupported);
    config.add_capabilities(granted).map_err(unsupported)?;
    config.set_max_write(TRANSFER_LEN_MAX).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
    config.set_max_background(BACKGROUND_MAX).map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
    Ok(Agreed {
        acls: granted.contains(ACLS),
        set_id: granted.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2),
        times: granted.contains(InitFlags::FUSE_WRITEBACK_CACHE) && store.kernel_writeback,
        labels: Path::new(SELINUX).exists(),
    })
}

/// There when the kernel runs with SELinux.
const SELINUX: &str = "/sys/fs/selinux";

/// Only together.
const ACLS: InitFlags = InitFlags::FUSE_POSIX_ACL.union(InitFlags::FUSE_DONT_MASK);

/// Which capabilities to ask for: a list of the wanted, never all that the kernel offers (SETXATTR_EXT makes fuser 0.18
/// panic, OVER_IO_URING leaves it without queues).
///
/// ATOMIC_O_TRUNC would save a request, but it truncates before the kernel has looked whether the file is being executed
/// (ETXTBSY): pjdfstest's `open::etxtbsy` killed the program.
fn wanted(store: &Capabilities, kernel_writeback: bool) -> InitFlags {
    let mut wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS;
    if store.shared || !store.stable_cookies {
        // The kernel guesses who will look at attributes. Where listings and attributes stay, guessing wrong costs a lookup
        // for each entry, and guessing right saves its attributes once.
        wanted |= InitFlags::FUSE_READDIRPLUS_AUTO;
    }
    if store.shared && !kernel_writeback {
        // Someone else may change the store. The kernel then compares size and time at each revalidation, also for reads
        // of an open file, and drops its pages in the same step. Explicit invalidation would leave a moment in which a
        // grown file reads as zeros, and open files that are never looked at again.
        wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
    } else {
        wanted |= InitFlags::FUSE_EXPLICIT_INVAL_DATA | InitFlags::FUSE_CACHE_SYMLINKS;
    }
    if kernel_writeback {
        wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
    }
    if store.xattrs {
        // Else the kernel asks for security.capability before each write.
        wanted |= InitFlags::FUSE_HANDLE_KILLPRIV_V2;
    }
    if store.xattrs && store.acls {
        wanted |= ACLS;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_capabilities_are_never_asked_for() {
        for bits in 0..16 {
            let [shared, writeback, xattrs, acls] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let asked = wanted(&Capabilities { shared, xattrs, acls, ..Capabilities::plain("test") }, writeback);
            let never = InitFlags::FUSE_SETXATTR_EXT
                | InitFlags::FUSE_OVER_IO_URING
                | InitFlags::FUSE_ATOMIC_O_TRUNC
                | InitFlags::FUSE_HANDLE_KILLPRIV
                | InitFlags::FUSE_EXPORT_SUPPORT
                | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
            assert!((asked & never).is_empty());
            assert_eq!(asked.contains(InitFlags::FUSE_WRITEBACK_CACHE), writeback);
            let auto = asked.contains(InitFlags::FUSE_AUTO_INVAL_DATA);
            assert_ne!(auto, asked.contains(InitFlags::FUSE_EXPLICIT_INVAL_DATA));
            assert_eq!(asked.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2), xattrs);
            assert_eq!(asked.contains(ACLS), xattrs && acls);
            assert_eq!((asked & ACLS).is_empty(), !(xattrs && acls), "both or none");
        }
    }
}
