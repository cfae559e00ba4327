//! A mounted side: a guard. However it ends, also in a panic, nothing stays mounted and no process stays. It watches the memory of the
//! serving process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::UnmountFlags;

use crate::watch::{Memory, Watch};

/// Of the file systems that FUSE serves (`statfs(2)`).
const FUSE_MAGIC: u64 = 0x6573_5546;
/// How long a mount may take to become usable.
const MOUNT_LIMIT: Duration = Duration::from_secs(30);
/// How long a server may take to write everything back and end.
const END_LIMIT: Duration = Duration::from_secs(120);

/// A mounted side. Dropping it ends the mount by force.
pub struct Mounted {
    root: PathBuf,
    served: Option<Served>,
}

struct Served {
    mountpoint: PathBuf,
    child: Child,
    ends_by_stdin: bool,
    watch: Watch,
}

impl Mounted {
    /// What no process serves.
    pub fn of_folder(root: PathBuf) -> Mounted {
        Mounted { root, served: None }
    }

    /// Starts the server, and returns when its mount is usable. One with a standard input says so, and ends when that does.
    pub fn start(command: &mut Command, mountpoint: &Path, ends_by_stdin: bool) -> Result<Mounted> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let served =
            Served { mountpoint: mountpoint.to_path_buf(), ends_by_stdin, watch: Watch::start(child.id()), child };
        let mut mounted = Mounted { root: mountpoint.to_path_buf(), served: Some(served) };
        mounted.served.as_mut().map_or(Ok(()), Served::wait_usable)?;
        Ok(mounted)
    }

    /// Where its files are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The memory that the server used until now; zeros for the plain folder.
    pub fn memory(&self) -> Memory {
        self.served.as_ref().map(|served| served.watch.look()).unwrap_or_default()
    }

    /// The processor time that the server used until now; nothing for the plain folder.
    pub fn cpu(&self) -> Duration {
        self.served.as_ref().map(|served| served.watch.cpu()).unwrap_or_default()
    }

    /// Unmounts and waits until the server has written everything back and ended. Returns the memory that it used.
    pub fn unmount(mut self) -> Result<Memory> {
        let memory = self.memory();
        let Some(mut served) = self.served.take() else {
            return Ok(memory);
        };
        let ended = served.end();
        if ended.is_err() {
            served.kill();
        }
        ended.map(|()| memory)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mut served) = self.served.take() {
            served.kill();
        }
    }
}

impl Served {
    fn wait_usable(&mut self) -> Result<()> {
        if let Some(output) = self.child.stdout.take() {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line)?;
            if line.trim() != "mounted" {
                bail!("it did not mount");
            }
        }
        let started = Instant::now();
        while !is_fuse(&self.mountpoint) {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status})");
            }
            if started.elapsed() > MOUNT_LIMIT {
                bail!("not mounted after {MOUNT_LIMIT:?}");
            }
            thread::sleep(Duration::from_micros(200));
        }
        fs::metadata(&self.mountpoint)?;
        Ok(())
    }

    /// The clean way.
    fn end(&mut self) -> Result<()> {
        let started = Instant::now();
        if self.ends_by_stdin {
            drop(self.child.stdin.take());
        } else {
            // A program of the desktop may look into a new mount for a moment.
            while let Err(error) = rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()) {
                if error != rustix::io::Errno::BUSY || started.elapsed() > Duration::from_secs(5) {
                    return Err(error).with_context(|| format!("cannot unmount {}", self.mountpoint.display()));
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("the server ended with {status}"),
                None if started.elapsed() > END_LIMIT => bail!("the server did not end"),
                None => thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// The other way.
    fn kill(&mut self) {
        // Each step may find that there is nothing left to do.
        let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
    }
}

fn is_fuse(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == FUSE_MAGIC)
}
