//! SIGINT, SIGTERM and SIGHUP as bytes in a pipe, so that an ordinary thread answers them.
//!
//! A handler may do next to nothing; this one writes the signal's number to a pipe. A signal that comes while the mount
//! is still being set up waits in the pipe.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::pipe::PipeFlags;

/// Write end of the pipe; -1 until [`Signals::install`].
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// What ends a mount: a key press, a service manager, a closed terminal.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signals that ask this process to end, once installed, for the rest of its life.
#[derive(Debug)]
pub struct Signals {
    pipe: File,
}

impl Signals {
    /// Catches SIGINT, SIGTERM and SIGHUP from here on. Call it once, after the process has gone to the background.
    ///
    /// # Errors
    /// `AlreadyExists` on a second call; else what the system says.
    pub fn install() -> io::Result<Signals> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // A full pipe must not block the handler; what is lost then is the 65,536th signal.
        rustix::io::ioctl_fionbio(&write, true)?;
        let write = write.into_raw_fd();
        if PIPE.compare_exchange(-1, write, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            // SAFETY: `write` was just taken out of its owner and is used nowhere else.
            drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(write) });
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        for signal in ENDING {
            catch(signal)?;
        }
        Ok(Signals { pipe: File::from(read) })
    }

    /// Waits for the next signal and returns its number.
    pub fn wait(&mut self) -> io::Result<i32> {
        let mut number = [0u8];
        self.pipe.read_exact(&mut number)?;
        Ok(i32::from(number[0]))
    }
}

/// Gives the signals their default meaning again: the next one ends the process. For a last flush that hangs.
pub(crate) fn let_them_kill() {
    for signal in ENDING {
        // SAFETY: SIG_DFL is a valid disposition for these signals.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn catch(signal: i32) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeroed is a valid `sigaction` (null handler, no flags); the pointer is to that live value.
    let action = unsafe {
        libc::sigemptyset(&raw mut (*action.as_mut_ptr()).sa_mask);
        let mut action = action.assume_init();
        action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        action
    };
    // SAFETY: `on_signal` has the type that a handler without SA_SIGINFO needs and is async-signal-safe.
    match unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Async-signal-safe: an atomic load and a write(2); the interrupted code finds its errno unchanged.
extern "C" fn on_signal(signal: libc::c_int) {
    let pipe = PIPE.load(Ordering::SeqCst);
    // SAFETY: the descriptor is never closed once it is in PIPE; this thread's errno is saved and restored.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let number = signal as u8;
        libc::write(pipe, (&raw const number).cast(), 1);
        *errno = before;
    }
}

/// The name, for messages.
pub(crate) fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGTERM => "SIGTERM",
        libc::SIGHUP => "SIGHUP",
        _ => "signal",
    }
}
