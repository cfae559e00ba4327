//! Events for watchers (inotify, fanotify) of what was changed underneath.
//!
//! The kernel tells watchers of what it is asked to do, and a filesystem cannot have it tell more. So it is asked for what was done
//! already: to remove a name that is gone, to make one that came, to set the mode of what is something else now. Requests of the thread that
//! asks are answered with what is there, and change nothing. They are known by the number of that thread, which the kernel puts into each
//! request as the process of the mount sees it: no other thread has it.
//!
//! A name is announced while nothing else is asked by that thread, so whatever it asks then is about this name. What others did to it
//! meanwhile had its own event, and is left alone: see [`Step`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_core::types::{FileName, Kind};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

/// Node numbers from here on are of names that are gone. No inode has such.
const GONE_FIRST: u64 = 3 << 62;

/// What is announced of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It is gone. A lookup finds something that may be removed; the removal is refused if somebody has made it again.
    Removal,
    /// It came. A lookup finds nothing; what is made is what is there.
    Making,
    /// It leads to something else. Attributes that are set are those that are there.
    Change,
}

const STEPS: [Step; 3] = [Step::Removal, Step::Making, Step::Change];

/// The announcements of a mount.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    /// The thread that asks, and above its 32 bits the step and one; 0 while none does.
    asking: AtomicU64,
    gone: AtomicU64,
    turn: Mutex<()>,
}

/// Ends a step.
struct StepEnd<'a>(&'a Announcements);

impl Drop for StepEnd<'_> {
    fn drop(&mut self) {
        self.0.asking.store(0, Ordering::SeqCst);
    }
}

impl Announcements {
    /// The step that a request of this thread is a part of.
    pub(crate) fn of(&self, thread: u32) -> Option<Step> {
        let asking = self.asking.load(Ordering::SeqCst);
        let step = usize::try_from(asking >> 32).ok()?.checked_sub(1)?;
        STEPS.get(step).copied().filter(|_| asking as u32 == thread)
    }

    /// A node number for a name that is gone.
    pub(crate) fn gone(&self) -> u64 {
        GONE_FIRST + self.gone.fetch_add(1, Ordering::Relaxed)
    }

    fn step<T>(&self, step: Step, ask: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let _asking = StepEnd(self);
        self.asking.store((step as u64 + 1) << 32 | thread & u64::from(u32::MAX), Ordering::SeqCst);
        ask()
    }
}

/// A name for which watchers are to have an event.
#[derive(Clone, Copy, Debug)]
pub struct Announced<'a> {
    /// The name.
    pub name: FileName<'a>,
    /// What became of it.
    pub became: Became,
}

/// What became of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Became {
    /// It is gone.
    Nothing,
    /// It leads to this, and led nowhere, or elsewhere.
    Another(Kind),
    /// It leads to what it led to, which is not what it was.
    Different,
}

/// A directory of a mount, to announce changes of its names.
pub(crate) struct Directory {
    dir: OwnedFd,
    /// Of the mount: major and minor.
    device: (u32, u32),
}

/// An inode as the kernel knows it, without a request for that: its device, and its type and mode.
fn known(file: &OwnedFd) -> Result<((u32, u32), u32), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, c"", flags, StatxFlags::TYPE | StatxFlags::MODE)?;
    Ok(((found.stx_dev_major, found.stx_dev_minor), found.stx_mode.into()))
}

/// Another filesystem is in the place of what is announced.
fn covered() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "another filesystem is mounted there")
}

impl Directory {
    /// The directory to which `names` lead from the root of the mount at `mountpoint`, whose device is `device` (`major:minor`).
    pub(crate) fn open(mountpoint: &Path, device: &str, names: &[Vec<u8>]) -> io::Result<Directory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut dir = rustix::fs::open(mountpoint, flags, Mode::empty())?;
        for name in names {
            dir = rustix::fs::openat(&dir, name.as_slice(), flags, Mode::empty())?;
        }
        let (found, _) = known(&dir)?;
        if format!("{}:{}", found.0, found.1) != device {
            return Err(covered());
        }
        Ok(Directory { dir, device: found })
    }

    /// Announces what became of a name.
    pub(crate) fn announce(&self, announcements: &Announcements, of: Announced<'_>) -> io::Result<()> {
        let _turn = announcements.turn.lock();
        let name = of.name.as_bytes();
        let done = match of.became {
            Became::Nothing => self.removal(announcements, name),
            Became::Another(kind) => self.making(announcements, name, kind),
            Became::Different => return self.change(announcements, name),
        };
        match done {
            // Somebody has made it again, or removed it: that had its own event.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::EXIST) => Ok(()),
            done => Ok(done?),
        }
    }

    fn removal(&self, announcements: &Announcements, name: &[u8]) -> Result<(), Errno> {
        let remove = |flags| announcements.step(Step::Removal, || rustix::fs::unlinkat(&self.dir, name, flags));
        match remove(AtFlags::empty()) {
            Err(Errno::ISDIR) => remove(AtFlags::REMOVEDIR),
            removed => removed,
        }
    }

    fn making(&self, announcements: &Announcements, name: &[u8], kind: Kind) -> Result<(), Errno> {
        let (dir, mode) = (&self.dir, Mode::RUSR);
        announcements.step(Step::Making, || match kind {
            Kind::Directory => rustix::fs::mkdirat(dir, name, mode),
            Kind::Symlink => rustix::fs::symlinkat(c"x", dir, name),
            kind => rustix::fs::mknodat(dir, name, file_type(kind), mode, 0),
        })
    }

    fn change(&self, announcements: &Announcements, name: &[u8]) -> io::Result<()> {
        let (file, mode) = match self.file(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        if FileType::from_raw_mode(mode) == FileType::Symlink {
            return Ok(());
        }
        let path = path_of(file.as_fd());
        Ok(announcements.step(Step::Change, || rustix::fs::chmod(&*path, Mode::from_raw_mode(mode)))?)
    }

    /// Has watchers see a file closed that was open for writing.
    pub(crate) fn announce_content(&self, name: FileName<'_>) -> io::Result<()> {
        let (file, mode) = self.file(name.as_bytes())?;
        if FileType::from_raw_mode(mode) == FileType::RegularFile {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            drop(rustix::fs::open(&*path_of(file.as_fd()), flags, Mode::empty())?);
        }
        Ok(())
    }

    /// What a name leads to, and its type and mode, if it is of this mount.
    fn file(&self, name: &[u8]) -> io::Result<(OwnedFd, u32)> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name, flags, Mode::empty())?;
        let (device, mode) = known(&file)?;
        if device == self.device { Ok((file, mode)) } else { Err(covered()) }
    }
}

/// A way to exactly this inode, whatever has its name by now.
fn path_of(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_known_by_its_thread_alone_and_ends() {
        let announcements = Announcements::default();
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for step in STEPS {
            announcements
                .step(step, || {
                    assert_eq!((announcements.of(own), announcements.of(own + 1)), (Some(step), None));
                    Ok(())
                })
                .unwrap();
            assert_eq!((announcements.of(own), announcements.of(0)), (None, None));
        }
        assert_ne!(announcements.gone(), announcements.gone());
    }
}
