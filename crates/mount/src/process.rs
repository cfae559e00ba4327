//! The process of a mount, held by a descriptor that the kernel gave for the other end of its socket: never anybody who happens to have its number.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// Option of a socket: a descriptor of the process at the other end (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// A process that listens, or listened, on a socket.
#[derive(Debug)]
pub struct Process {
    descriptor: OwnedFd,
    /// Its number in this process's pid namespace; `None` where it has none.
    pid: Option<u32>,
}

impl Process {
    /// The process that listens at the other end of a connection; `None` if it has ended, or cannot be told.
    pub(crate) fn of_peer(stream: &UnixStream) -> Option<Process> {
        // 0 is a process of a namespace that this one does not see.
        let pid = u32::try_from(credentials(stream).ok()?.pid).ok().filter(|&pid| pid != 0);
        let mut descriptor: libc::c_int = -1;
        let descriptor = match option(stream, SO_PEERPIDFD, &mut descriptor) {
            // SAFETY: the kernel made it for this process, and nobody else has it.
            Ok(()) => unsafe { OwnedFd::from_raw_fd(descriptor) },
            Err(_) => {
                let number = Pid::from_raw(i32::try_from(pid?).ok()?)?;
                let descriptor = rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()?;
                // As long as its end of the connection is there, it lives, and the number was still its own.
                is_connected(stream).then_some(descriptor)?
            }
        };
        Some(Process { descriptor, pid })
    }

    /// Whether it ended before the time was up.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn has_ended_within(&self, time: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = [PollFd::new(&self.descriptor, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Ends it without warning.
    ///
    /// # Errors
    /// `InvalidInput` if its pid namespace is none that this process sees; else what the kernel says.
    pub fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.descriptor, Signal::KILL) {
            // It has just ended.
            Err(Errno::SRCH) => Ok(()),
            done => Ok(done?),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("a process of another pid namespace"),
        }
    }
}

/// The user at the other end of a connection, whatever pid namespace it is in.
pub(crate) fn user_of_peer(stream: &UnixStream) -> Option<u32> {
    credentials(stream).ok().map(|peer| peer.uid)
}

fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    option(stream, libc::SO_PEERCRED, &mut peer).map(|()| peer)
}

/// Reads an option of a socket.
fn option<T: Copy>(stream: &UnixStream, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes `len` bytes at most, which `value` has, and both options are plain numbers.
    let done = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, name, std::ptr::from_mut(value).cast(), &raw mut len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn is_connected(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
