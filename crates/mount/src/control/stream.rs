//! Answers that come in many pieces: a line of JSON for each, `{"part": …}`, before the line that ends every answer.
//!
//! A client that is slow is waited for as long as it is there, with nothing held but its own answer; one that is gone is noticed at the
//! next piece, or at the next look ([`Parts::is_wanted`]), and the work for it ends.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

/// How often a slow client is looked at, and whether the mount has ended.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Where the pieces of an answer go.
pub struct Parts<'a> {
    client: &'a UnixStream,
    stopped: &'a AtomicBool,
    is_lost: bool,
}

/// Tells whether somebody still wants an answer.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    client: &'a UnixStream,
    stopped: &'a AtomicBool,
}

impl Watch<'_> {
    /// As [`Parts::is_wanted`].
    pub fn is_wanted(&self) -> bool {
        if self.stopped.load(Ordering::SeqCst) {
            return false;
        }
        let mut fds = [PollFd::new(self.client, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !(poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(gone))
    }
}

impl<'a> Parts<'a> {
    pub(super) fn new(client: &'a UnixStream, stopped: &'a AtomicBool) -> io::Result<Parts<'a>> {
        client.set_write_timeout(Some(LOOK_EVERY))?;
        Ok(Parts { client, stopped, is_lost: false })
    }

    /// Sends a piece. `Break` if nobody wants more.
    pub fn send(&mut self, part: &Value) -> ControlFlow<()> {
        let mut line = json!({ "part": part }).to_string();
        line.push('\n');
        self.write(line.as_bytes())
    }

    /// Whether the client is still there, and the mount has not ended. Costs a system call.
    pub fn is_wanted(&mut self) -> bool {
        self.is_lost |= !self.watch().is_wanted();
        !self.is_lost
    }

    /// Looks after the client from another thread.
    pub fn watch(&self) -> Watch<'a> {
        Watch { client: self.client, stopped: self.stopped }
    }

    /// Whether nothing can be sent any more; perhaps in the middle of a piece.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn write(&mut self, mut bytes: &[u8]) -> ControlFlow<()> {
        while !bytes.is_empty() && !self.is_lost {
            let mut client = self.client;
            match client.write(bytes) {
                Ok(0) => self.is_lost = true,
                Ok(len) => bytes = &bytes[len..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if super::is_timeout(&e) => _ = self.is_wanted(),
                Err(e) => {
                    if Errno::from_io_error(&e) != Some(Errno::PIPE) {
                        tracing::debug!("control client: {e}");
                    }
                    self.is_lost = true;
                }
            }
        }
        if self.is_lost { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
