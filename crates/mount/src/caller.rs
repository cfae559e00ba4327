//! Calls into a mount of our own, made by another process.
//!
//! A process that waits for an answer of a mount which it serves cannot be ended: killed while a thread of it waits, that thread waits
//! on (the kernel does not give up a request that was taken), so the process keeps the connection open, and the connection is what would end
//! the wait. Another process has no part in the connection: when the server is gone its call fails with `ENOTCONN`.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Makes a system call into one of our mounts in a process of its own, which stands in `folder` if there is one, and returns its outcome.
///
/// `call` runs in a copy of this process that has one thread and no descriptors: it may make system calls, and nothing else. It must not
/// allocate, lock, log or panic, for another thread may have been in the middle of that.
///
/// # Errors
/// What `call` returns, or why there is no process for it (`EAGAIN`, `ENOMEM`). `EIO` if that process was killed.
pub(crate) fn ask(folder: Option<BorrowedFd<'_>>, call: impl FnOnce() -> Result<(), Errno>) -> io::Result<()> {
    let flags: libc::c_ulong = 0;
    // SAFETY: no memory is shared and no stack is given, so this is fork(2) without its handlers. No signal tells of the child's end: it
    // is no matter of the program that this is a library of.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let entered = folder.map_or(Ok(()), rustix::process::fchdir);
            close_all();
            let outcome = entered.and_then(|()| call());
            let code = outcome.map_or_else(Errno::raw_os_error, |()| 0);
            // SAFETY: ends this copy, without the handlers of the process that it is a copy of. An error number fits into a status.
            unsafe { libc::_exit(code) }
        }
        child => wait(child as libc::pid_t),
    }
}

/// The connection must not be held by whoever asks.
fn close_all() {
    // SAFETY: the copy of a process that does this uses no descriptor from here on.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) } != 0 {
        // Linux before 5.9.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
        for descriptor in 0..limit.min(1 << 20) as libc::c_int {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
    }
}

fn wait(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: `status` is ours. `__WALL`: a child whose end is told by no signal is waited for only so.
    while unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } == -1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, code) => Err(io::Error::from_raw_os_error(code)),
        (false, _) => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_outcome_of_a_call_comes_back() {
        ask(None, || rustix::fs::stat(c"/").map(drop)).unwrap();
        let missing = ask(None, || rustix::fs::stat(c"/a name that is not there").map(drop));
        assert_eq!(missing.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_call_may_stand_in_a_folder() {
        let folder = std::fs::File::open("/proc/self").unwrap();
        ask(Some(folder.as_fd()), || rustix::fs::stat(c"status").map(drop)).unwrap();
    }

    #[test]
    fn no_descriptor_goes_along() {
        let open = std::fs::File::open("/").unwrap();
        let lost = ask(None, || rustix::fs::fstat(&open).map(drop));
        assert_eq!(lost.unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn a_call_whose_process_is_killed_is_an_error() {
        let killed = ask(None, || {
            // SAFETY: a signal for the copy alone.
            unsafe { libc::raise(libc::SIGKILL) };
            Ok(())
        });
        assert_eq!(killed.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
