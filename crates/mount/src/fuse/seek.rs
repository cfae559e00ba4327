//! `SEEK_DATA` and `SEEK_HOLE`.
//!
//! With kernel write-back the kernel asks without having written its dirty pages, and what lies in them would pass for a
//! hole, or for the end of the file. So it is made to write them first, by an invalidation of the inode. That waits until
//! workers have served the writes: it runs on a thread of its own, which answers then, and no worker waits for it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;

use adit_core::ErrorKind;
use adit_core::types::Ino;
use fuser::{INodeNo, Notifier, ReplyLseek};

use super::requests::Requests;
use super::unopened::Handle;
use crate::request::Kind as Asked;

/// One request.
pub(super) struct Seek {
    pub(super) ino: INodeNo,
    pub(super) handle: Handle,
    pub(super) offset: i64,
    pub(super) whence: i32,
}

/// The thread that answers where the kernel must write first; it starts with the first such request, and ends with this.
#[derive(Default)]
pub(super) struct Seeks {
    waiting: OnceLock<Sender<(Seek, ReplyLseek)>>,
}

impl Seeks {
    /// Answers, at once or soon.
    pub(super) fn answer(&self, requests: &Arc<Requests>, kernel: &OnceLock<Notifier>, seek: Seek, reply: ReplyLseek) {
        let engine = &requests.engine;
        let ino = Ino(requests.nodes.inode(seek.ino).0);
        let unwritten = engine.options().kernel_writeback && engine.is_open_for_writing(ino);
        match kernel.get() {
            Some(kernel) if unwritten => {
                let waiting = self.waiting.get_or_init(|| start(requests.clone(), kernel.clone()));
                // Without the thread the reply is dropped, which answers EIO.
                let _ = waiting.send((seek, reply));
            }
            _ => seek.run(requests, reply),
        }
    }
}

fn start(requests: Arc<Requests>, kernel: Notifier) -> Sender<(Seek, ReplyLseek)> {
    let (waiting, received) = channel::<(Seek, ReplyLseek)>();
    let spawned = Builder::new().name("adit-seek".into()).spawn(move || {
        for (seek, reply) in received {
            // What it says is only that the inode is gone from the kernel's cache, and its pages with it.
            let _ = kernel.inval_inode(seek.ino, 0, 0);
            seek.run(&requests, reply);
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for SEEK_DATA and SEEK_HOLE: they fail");
    }
    waiting
}

impl Seek {
    fn run(&self, requests: &Requests, reply: ReplyLseek) {
        let found = requests.ask(Asked::Lseek, self.ino, |engine, _| {
            let data = match self.whence {
                libc::SEEK_DATA => true,
                libc::SEEK_HOLE => false,
                _ => return Err(ErrorKind::InvalidInput.into()),
            };
            let offset = u64::try_from(self.offset).map_err(|_| ErrorKind::NoData)?;
            let found = engine.seek(self.handle.fh, offset, data)?;
            i64::try_from(found).map_err(|_| ErrorKind::FileTooLarge.into())
        });
        match found {
            Ok(offset) => reply.offset(offset),
            Err(e) => reply.error(e),
        }
    }
}
