//! What a mount looks like to the system: source name, flags, who may look in; and the `-o` keys that say so.
//!
//! [`MountOptions::apply`] takes the keys that every mount has. Keys of a store (`password_file=`, `cas=`) are not known
//! here: it hands them back as [`Applied::Unknown`], and the caller decides.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

/// Most threads that serve one mount by default; more only add contention on the kernel's queue.
const THREADS_DEFAULT_MAX: usize = 8;
/// Most threads that can be asked for.
const THREADS_MAX: usize = 64;

/// How a store is attached to a mountpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountOptions {
    /// What `mount` and `/proc/mounts` show as the device: the source as the user wrote it.
    pub source: String,
    /// All bytes of the place of what is mounted, if there are some that are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place_raw: Option<Vec<u8>>,
    /// Kind of store, as `adit mounts` prints it.
    pub kind: String,
    /// Whether users other than the mounting one may enter (needs root, or `user_allow_other` in `/etc/fuse.conf`).
    pub allow_other: bool,
    /// Whether the kernel refuses changes.
    pub read_only: bool,
    /// Whether set-id bits are honoured on execution. Off by default; needs root.
    pub suid: bool,
    /// Whether device nodes work. Off by default; needs root.
    pub dev: bool,
    /// Whether programs may be executed.
    pub exec: bool,
    /// Whether each write is synchronous (`-o sync`).
    pub sync: bool,
    /// Whether changes of directories are synchronous (`-o dirsync`).
    pub dirsync: bool,
    /// Threads that serve requests.
    pub threads: NonZeroUsize,
    /// Whether the kernel may read files by itself, where the store has them as files of the host and nothing can be changed. On by
    /// default; without the privilege (`CAP_SYS_ADMIN`), and before Linux 6.9, it never does.
    #[serde(default = "on")]
    pub passthrough: bool,
    /// Whether it is to be known what is open, because a mount that nobody uses ends: the kernel then asks for each open also where it need not.
    #[serde(default)]
    pub counts_opens: bool,
    /// Whether an index of the tree is made at once, and not at the first question to it.
    #[serde(default)]
    pub index: bool,
}

fn on() -> bool {
    true
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "adit".into(),
            place_raw: None,
            kind: String::new(),
            allow_other: false,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            sync: false,
            dirsync: false,
            threads: default_threads(),
            passthrough: true,
            counts_opens: false,
            index: false,
        }
    }
}

/// What became of an `-o` key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// It was understood.
    Taken,
    /// It is for `mount(8)`, `systemd` or `fstab`, or it is always so here; it changes nothing.
    Ignored,
    /// It is one of other filesystems on FUSE, and changes nothing here: the reason is for the user.
    Noted(&'static str),
    /// It is known, and asks for what a mount of ours cannot be: the reason.
    Refused(&'static str),
    /// It is not an option of mounts in general.
    Unknown,
    /// It is known, but its value is not valid.
    BadValue,
}

impl MountOptions {
    /// Applies one `-o` key, with its value after `=` if it has one.
    pub fn apply(&mut self, option: &str) -> Applied {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        };
        match (key, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("suid", None) => self.suid = true,
            ("nosuid", None) => self.suid = false,
            ("dev", None) => self.dev = true,
            ("nodev", None) => self.dev = false,
            ("exec", None) => self.exec = true,
            ("noexec", None) => self.exec = false,
            ("sync", None) => self.sync = true,
            ("async", None) => self.sync = false,
            ("dirsync", None) => self.dirsync = true,
            ("allow_other", None) => self.allow_other = true,
            ("passthrough", Some("auto")) => self.passthrough = true,
            ("passthrough", Some("off")) => self.passthrough = false,
            ("index", None) => self.index = true,
            ("passthrough", Some(_)) => return Applied::BadValue,
            ("fsname", Some(name)) => self.source = name.into(),
            ("threads", Some(count)) => match count.parse() {
                Ok(n) if NonZeroUsize::get(n) <= THREADS_MAX => self.threads = n,
                _ => return Applied::BadValue,
            },
            _ => return for_others(key),
        }
        Applied::Taken
    }
}

/// Keys of mount(8) that change what is seen of a filesystem. With `mount -t fuse.adit` it does that by itself, after ours; here nobody would.
const OF_MOUNT: [(&str, &str); 5] = [
    ("X-mount.idmap", "owners are not mapped on a mount of adit: files have the numbers that are stored"),
    ("X-mount.subdir", "mount(8) does that, as `mount -t fuse.adit`; adit mounts all of a source"),
    (
        "X-mount.owner",
        "mount(8) does that, as `mount -t fuse.adit`; or change the owner of the root after it is mounted",
    ),
    (
        "X-mount.group",
        "mount(8) does that, as `mount -t fuse.adit`; or change the group of the root after it is mounted",
    ),
    ("X-mount.mode", "mount(8) does that, as `mount -t fuse.adit`; or change the mode of the root after it is mounted"),
];

/// Keys of libfuse that lines for other filesystems have.
const OF_LIBFUSE: [(&str, &str); 17] = [
    ("auto_unmount", "passed over; `adit umount`, or the next mount, clears what a killed mount leaves"),
    ("allow_root", "passed over; root is let in with allow_other, as all users are"),
    ("max_read", LENGTHS),
    ("max_write", LENGTHS),
    ("big_writes", LENGTHS),
    ("max_readahead", LENGTHS),
    ("max_background", LENGTHS),
    ("congestion_threshold", LENGTHS),
    ("async_read", LENGTHS),
    ("sync_read", LENGTHS),
    ("kernel_cache", CACHES),
    ("auto_cache", CACHES),
    ("noforget", CACHES),
    ("remember", CACHES),
    ("use_ino", "passed over; inode numbers are always those of the store"),
    ("hard_remove", "passed over; no file is hidden when it is removed"),
    ("intr", "passed over; what can be interrupted is"),
];
const LENGTHS: &str = "passed over; adit agrees with the kernel on the size and number of requests";
const CACHES: &str = "passed over; the kernel keeps what attr_timeout, entry_timeout and exclusive allow";

/// Keys that `fstab` lines carry for other programs, or that hold for every mount of ours.
fn for_others(key: &str) -> Applied {
    let reason = |of: &[(&str, &'static str)]| of.iter().find(|(name, _)| *name == key).map(|(_, reason)| *reason);
    match (reason(&OF_MOUNT), reason(&OF_LIBFUSE)) {
        (Some(reason), _) => Applied::Refused(reason),
        (None, Some(reason)) => Applied::Noted(reason),
        (None, None) if is_ignored(key) => Applied::Ignored,
        (None, None) => Applied::Unknown,
    }
}

fn is_ignored(key: &str) -> bool {
    const NAMES: [&str; 24] = [
        "_netdev",
        "nofail",
        "noauto",
        "auto",
        "user",
        "users",
        "nouser",
        "owner",
        "group",
        "defaults",
        "comment",
        "default_permissions",
        "subtype",
        "atime",
        "noatime",
        "relatime",
        "norelatime",
        "strictatime",
        "lazytime",
        "nolazytime",
        "diratime",
        "nodiratime",
        "mand",
        "nomand",
    ];
    NAMES.contains(&key) || key.starts_with("x-") || key.starts_with("X-") || key.is_empty()
}

/// Two threads a core, because one may wait in the store while another computes; at most eight.
pub fn default_threads() -> NonZeroUsize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new((2 * cores).clamp(2, THREADS_DEFAULT_MAX)).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_safe_flags_are_the_default() {
        let o = MountOptions::default();
        assert!(!o.allow_other && !o.suid && !o.dev && o.exec && !o.read_only);
        assert!((2..=8).contains(&o.threads.get()));
    }

    #[test]
    fn later_keys_win_and_foreign_keys_come_back() {
        let mut o = MountOptions::default();
        for key in
            ["ro", "rw", "ro", "noexec", "suid", "dev", "allow_other", "sync", "dirsync", "threads=3", "fsname=a=b"]
        {
            assert_eq!(o.apply(key), Applied::Taken, "{key}");
        }
        assert!(o.read_only && !o.exec && o.suid && o.dev && o.allow_other && o.sync && o.dirsync);
        assert_eq!((o.threads.get(), o.source.as_str()), (3, "a=b"));
        for key in
            ["_netdev", "nofail", "noauto", "user", "x-systemd.automount", "x-gvfs-name=v", "defaults", "", "noatime"]
        {
            assert_eq!(o.apply(key), Applied::Ignored, "{key}");
        }
        for key in ["password_file=/p", "ro=1", "fsname", "uid=5", "umask=022", "max_reads"] {
            assert_eq!(o.apply(key), Applied::Unknown, "{key}");
        }
        let before = o.clone();
        for key in ["auto_unmount", "allow_root", "max_read=131072", "big_writes", "kernel_cache"] {
            assert!(matches!(o.apply(key), Applied::Noted(_)), "{key}");
        }
        assert_eq!(o, before);
        for key in ["X-mount.idmap", "X-mount.idmap=b:0:1000:1", "X-mount.subdir=a"] {
            assert!(matches!(o.apply(key), Applied::Refused(_)), "{key}");
        }
        assert_eq!(o.apply("X-mount.mkdir"), Applied::Ignored);
        assert!(o.passthrough);
        assert_eq!((o.apply("passthrough=off"), o.passthrough), (Applied::Taken, false));
        assert_eq!((o.apply("passthrough=auto"), o.passthrough), (Applied::Taken, true));
        for key in ["passthrough=", "passthrough=on", "threads=0", "threads=65", "threads=x", "threads=-1"] {
            assert_eq!(o.apply(key), Applied::BadValue, "{key}");
        }
    }
}
