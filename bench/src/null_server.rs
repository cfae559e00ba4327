//! A FUSE server that does nothing: one directory whose files `f0`, `f1`, … are all the same 4 KiB.
//!
//! It asks for the capabilities that adit's mount of such a store asks for, gives the same times to live and open flags, and is
//! served by as many threads: the difference between the two is what adit itself costs. (`crates/mount/src/fuse` has the
//! originals, `crates/cli/src/commands/mount` the times.)

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyXattr, Request,
};

use crate::Subject;

/// Length of each file in bytes.
pub const FILE_LEN: usize = 4096;
const TRANSFER_LEN_MAX: u32 = 1 << 20;
const BACKGROUND_MAX: u16 = 64;
/// The first inode number of a file.
const FIRST_INO: u64 = 2;

struct Null {
    like: Subject,
    ttl: Duration,
    content: [u8; FILE_LEN],
}

/// What the kernel is told to cache, and for how long.
fn time_to_live(like: Subject) -> Duration {
    match like {
        // Somebody else may change it.
        Subject::Vault | Subject::Manifest | Subject::Index => Duration::from_secs(1),
        Subject::Volume => Duration::from_secs(3600),
    }
}

fn capabilities(like: Subject) -> InitFlags {
    let all = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS;
    match like {
        Subject::Vault | Subject::Manifest | Subject::Index => {
            all | InitFlags::FUSE_READDIRPLUS_AUTO | InitFlags::FUSE_AUTO_INVAL_DATA
        }
        Subject::Volume => {
            all | InitFlags::FUSE_EXPLICIT_INVAL_DATA
                | InitFlags::FUSE_CACHE_SYMLINKS
                | InitFlags::FUSE_WRITEBACK_CACHE
                | InitFlags::FUSE_HANDLE_KILLPRIV_V2
                | InitFlags::FUSE_POSIX_ACL
                | InitFlags::FUSE_DONT_MASK
        }
    }
}

fn attr(ino: INodeNo) -> FileAttr {
    let is_root = ino == INodeNo::ROOT;
    FileAttr {
        ino,
        size: if is_root { 0 } else { FILE_LEN as u64 },
        blocks: 8,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_root { FileType::Directory } else { FileType::RegularFile },
        perm: if is_root { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 32 << 10,
        flags: 0,
    }
}

impl Filesystem for Null {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = capabilities(self.like);
        let refused = || io::Error::from(io::ErrorKind::Unsupported);
        config.add_capabilities(wanted & config.capabilities()).map_err(|_| refused())?;
        config.set_max_write(TRANSFER_LEN_MAX).map_err(|_| refused())?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| refused())?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = name.to_str().and_then(|name| name.strip_prefix('f')?.parse::<u64>().ok());
        match number {
            Some(number) => reply.entry(&self.ttl, &attr(INodeNo(FIRST_INO + number)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&self.ttl, &attr(ino));
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        match self.like {
            // No store of that kind has any: the kernel asks once.
            Subject::Vault | Subject::Manifest | Subject::Index => reply.error(Errno::ENOSYS),
            Subject::Volume => reply.error(Errno::NO_XATTR),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(1), flags);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let start = usize::try_from(offset).unwrap_or(FILE_LEN).min(FILE_LEN);
        let end = start.saturating_add(size as usize).min(FILE_LEN);
        reply.data(&self.content[start..end]);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        match self.like {
            // Not asked for: see the flags of an open file.
            Subject::Vault | Subject::Manifest | Subject::Index => reply.error(Errno::ENOSYS),
            Subject::Volume => reply.ok(),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}

/// Serves at `mountpoint`, like a mount of such a store, until it is unmounted.
pub fn serve(mountpoint: &Path, like: Subject) -> Result<()> {
    let cores = available_parallelism().map_or(1, usize::from);
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName("null".into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    config.n_threads = Some((2 * cores).clamp(2, 8));
    config.clone_fd = true;
    let null = Null { like, ttl: time_to_live(like), content: [b'n'; FILE_LEN] };
    fuser::mount(null, mountpoint, &config).with_context(|| format!("cannot mount on {}", mountpoint.display()))
}
