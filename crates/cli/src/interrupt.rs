//! Ending a copy on a signal: at the next step it stops, removes what is unfinished, and dies of the signal.

use std::io::{self, Read};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{LazyLock, OnceLock};

use adit_media::objects::Cancel;
use adit_mount::Signals;
use rustix::event::{PollFd, PollFlags, Timespec};

/// The signal that came; 0 for none.
static CAME: AtomicI32 = AtomicI32::new(0);

/// What ends the calls of object stores once a signal came.
static CALLS: LazyLock<Cancel> = LazyLock::new(Cancel::default);

/// What the command says when it ends of a signal.
static LEFT: OnceLock<&str> = OnceLock::new();

/// What is to end with a signal, if signals are heard.
pub fn calls() -> &'static Cancel {
    &CALLS
}

/// Hears SIGINT, SIGTERM and SIGHUP from here on; a second one ends the process at once.
///
/// If it cannot, signals keep their usual effect, which at worst leaves a temporary file.
pub fn watch() {
    let Ok(mut signals) = Signals::install() else { return };
    let spawned = std::thread::Builder::new().name("adit-signals".into()).spawn(move || {
        while let Ok(signal) = signals.wait() {
            if CAME.swap(signal, Ordering::SeqCst) != 0 {
                crate::process::die_of(signal);
            }
            // Nobody waits for a network that stands still.
            CALLS.cancel();
        }
    });
    if let Err(e) = spawned {
        tracing::debug!("signals are not heard: {e}");
    }
}

/// The same; who is told to end says what that leaves, in a line on standard error.
pub fn watch_telling(left: &'static str) {
    LEFT.get_or_init(|| left);
    watch();
}

/// Whether a signal came.
pub fn came() -> bool {
    CAME.load(Ordering::SeqCst) != 0
}

/// Standard input that is given up once a signal came, so that what is half-written can be taken back.
pub struct Input;

/// How long a signal may go unnoticed while standard input gives nothing.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if came() {
                return Err(io::Error::other("interrupted"));
            }
            // Not through the standard library's buffer: what that holds, poll does not see.
            let stdin = io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&LOOK_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return Ok(rustix::io::read(&stdin, &mut *buffer)?),
            }
        }
    }
}

/// Dies of the signal if one came.
pub fn obey() {
    match CAME.load(Ordering::SeqCst) {
        0 => {}
        signal => {
            if let Some(left) = LEFT.get() {
                eprintln!("adit: interrupted: {left}");
            }
            crate::process::die_of(signal)
        }
    }
}
