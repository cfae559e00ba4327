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
    /// The kernel reads files of the host by itself, if it is given one when a file is opened.
    pub(super) passthrough: bool,
    /// Opens are refused once and for all: see [`super::unopened`].
    pub(super) unopened: bool,
}

/// Filesystems that may lie on each other where files of the host are read by the kernel: one that lies on a host's own, and not on
/// another one that is made of two. So there is room for one (overlayfs) above the mount.
const STACK_DEPTH: u32 = 1;

/// What a mount wants besides what its store can do.
#[derive(Clone, Copy, Default)]
pub(super) struct Wishes {
    /// The kernel buffers writes.
    pub(super) kernel_writeback: bool,
    /// The kernel reads files of the host by itself.
    pub(super) passthrough: bool,
    /// Nothing can be written, so that files need not be opened where their content allows it.
    pub(super) unopened: bool,
}

/// Agrees with the kernel on what `store` asks for, as far as the kernel offers it.
pub(super) fn agree(store: &Capabilities, wishes: Wishes, config: &mut KernelConfig) -> io::Result<Agreed> {
    let offered = config.capabilities();
    let granted = wanted(store, wishes) & offered;
    // ACLs without the umask would give what is made in a directory with a default ACL too little.
    let granted = if granted.contains(ACLS) { granted } else { granted - ACLS };
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    config.add_capabilities(granted).map_err(|_| unsupported())?;
    if granted.contains(InitFlags::FUSE_PASSTHROUGH) {
        config.set_max_stack_depth(STACK_DEPTH).map_err(|_| unsupported())?;
    }
    config.set_max_write(TRANSFER_LEN_MAX).map_err(|_| unsupported())?;
    config.set_max_background(BACKGROUND_MAX).map_err(|_| unsupported())?;
    Ok(Agreed {
        acls: granted.contains(ACLS),
        set_id: granted.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2),
        times: granted.contains(InitFlags::FUSE_WRITEBACK_CACHE) && store.kernel_writeback,
        labels: Path::new(SELINUX).exists(),
        passthrough: granted.contains(InitFlags::FUSE_PASSTHROUGH),
        unopened: wishes.unopened && store.fixed_content && offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT),
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
fn wanted(store: &Capabilities, wishes: Wishes) -> InitFlags {
    let kernel_writeback = wishes.kernel_writeback;
    let mut wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        // Handles of files that outlive what the kernel knows would have to be found by number: whoever wants one hears at once that there
        // are none, and not later that each is stale.
        | InitFlags::FUSE_NO_EXPORT_SUPPORT;
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
    if wishes.passthrough && store.host_files && !(wishes.unopened && store.fixed_content) && !kernel_writeback {
        // The kernel has one of the two on a mount.
        wanted |= InitFlags::FUSE_PASSTHROUGH;
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
        for bits in 0..256 {
            let [shared, writeback, xattrs, acls, host_files, passthrough, fixed_content, unopened] =
                [1, 2, 4, 8, 16, 32, 64, 128].map(|bit| bits & bit != 0);
            let store = Capabilities { shared, xattrs, acls, host_files, fixed_content, ..Capabilities::plain("test") };
            let asked = wanted(&store, Wishes { kernel_writeback: writeback, passthrough, unopened });
            let never = InitFlags::FUSE_SETXATTR_EXT
                | InitFlags::FUSE_OVER_IO_URING
                | InitFlags::FUSE_ATOMIC_O_TRUNC
                | InitFlags::FUSE_HANDLE_KILLPRIV
                | InitFlags::FUSE_EXPORT_SUPPORT
                | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
            assert!((asked & never).is_empty());
            assert_eq!(asked.contains(InitFlags::FUSE_WRITEBACK_CACHE), writeback);
            let passed = asked.contains(InitFlags::FUSE_PASSTHROUGH);
            let opened = !(unopened && fixed_content);
            assert_eq!(passed, host_files && passthrough && opened && !writeback, "never two of them");
            let auto = asked.contains(InitFlags::FUSE_AUTO_INVAL_DATA);
            assert_ne!(auto, asked.contains(InitFlags::FUSE_EXPLICIT_INVAL_DATA));
            assert_eq!(asked.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2), xattrs);
            assert_eq!(asked.contains(ACLS), xattrs && acls);
            assert_eq!((asked & ACLS).is_empty(), !(xattrs && acls), "both or none");
        }
    }
}
