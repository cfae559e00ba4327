//! A FUSE server that does nothing: one directory whose files `f0`, `f1`, … are all the same 4 KiB.
//!
//! It asks for the capabilities that adit's mount asks for, gives the same times to live and open flags, and is served by as
//! many threads: the difference between the two is what adit itself costs. (`crates/mount/src/fuse` has the originals.)

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

/// Length of each file in bytes.
pub const FILE_LEN: usize = 4096;
const TTL: Duration = Duration::from_secs(1);
const TRANSFER_LEN_MAX: u32 = 1 << 20;
const BACKGROUND_MAX: u16 = 64;
/// The first inode number of a file.
const FIRST_INO: u64 = 2;

struct Null {
    content: [u8; FILE_LEN],
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
        let wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_AUTO_INVAL_DATA;
        let refused = || io::Error::from(io::ErrorKind::Unsupported);
        config.add_capabilities(wanted & config.capabilities()).map_err(|_| refused())?;
        config.set_max_write(TRANSFER_LEN_MAX).map_err(|_| refused())?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| refused())?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = name.to_str().and_then(|name| name.strip_prefix('f')?.parse::<u64>().ok());
        match number {
            Some(number) => reply.entry(&TTL, &attr(INodeNo(FIRST_INO + number)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attr(ino));
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

/// Serves at `mountpoint` until it is unmounted.
pub fn serve(mountpoint: &Path) -> Result<()> {
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
    let null = Null { content: [b'n'; FILE_LEN] };
    fuser::mount(null, mountpoint, &config).with_context(|| format!("cannot mount on {}", mountpoint.display()))
}
