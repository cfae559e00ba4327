//! Kinds of requests, and how often each was asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! requests {
    ($($kind:ident $name:literal),* $(,)?) => {
        /// A kind of request of the kernel.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Kind {
            $($kind,)*
        }

        impl Kind {
            const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// As the protocol calls it.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }
        }
    };
}

requests! {
    Lookup "lookup",
    Forget "forget",
    Getattr "getattr",
    Setattr "setattr",
    Readlink "readlink",
    Mknod "mknod",
    Mkdir "mkdir",
    Unlink "unlink",
    Rmdir "rmdir",
    Symlink "symlink",
    Rename "rename",
    Link "link",
    Open "open",
    Create "create",
    Read "read",
    Write "write",
    Flush "flush",
    Release "release",
    Fsync "fsync",
    Opendir "opendir",
    Readdir "readdir",
    Readdirplus "readdirplus",
    Releasedir "releasedir",
    Fsyncdir "fsyncdir",
    Statfs "statfs",
    Fallocate "fallocate",
    Lseek "lseek",
    CopyFileRange "copy_file_range",
    Getxattr "getxattr",
    Setxattr "setxattr",
    Listxattr "listxattr",
    Removexattr "removexattr",
}

impl Kind {
    /// Whether it ends the use of a handle, or of one of its copies.
    pub(crate) fn is_an_end(self) -> bool {
        matches!(self, Kind::Flush | Kind::Release | Kind::Releasedir)
    }
}

/// How often each kind was asked.
#[derive(Debug)]
pub(crate) struct Counts([AtomicU64; Kind::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Counts([const { AtomicU64::new(0) }; Kind::ALL.len()])
    }
}

impl Counts {
    pub(crate) fn count(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Relaxed);
    }

    /// Names and counts of the kinds that were asked at all.
    pub(crate) fn asked(&self) -> Vec<(&'static str, u64)> {
        let counts = Kind::ALL.iter().map(|&kind| (kind.name(), self.0[kind as usize].load(Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
