//! `SEEK_DATA` and `SEEK_HOLE`.
//!
//! With kernel write-back the kernel asks without having written its dirty pages, and what lies in them would pass for a
//! hole, or for the end of the file. So it is made to write them first ([`super::pages`]).

use adit_core::ErrorKind;
use adit_core::types::Ino;
use fuser::{INodeNo, ReplyLseek};

use super::Front;
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

impl Front {
    /// Answers, at once or soon.
    pub(super) fn seek(&self, seek: Seek, reply: ReplyLseek) {
        let engine = &self.requests.engine;
        let ino = Ino(self.requests.nodes.inode(seek.ino).0);
        let unwritten = engine.options().kernel_writeback && engine.is_open_for_writing(ino);
        match unwritten {
            true => {
                let requests = self.requests.clone();
                self.requests.pages.after_writing(seek.ino, move || seek.run(&requests, reply));
            }
            false => seek.run(&self.requests, reply),
        }
    }
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
