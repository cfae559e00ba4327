//! Opening files: what `open` and `create` do beyond asking the engine.

use adit_core::engine::{Engine, Entry, Opened};
use adit_core::store::{FileCall, NewNode};
use adit_core::types::{Access, Caller, FileName, Ino, Kind, SetAttr};
use adit_core::{ErrorKind, FsError};
use fuser::{FopenFlags, INodeNo, OpenAccMode, OpenFlags};

use super::set_id::Changer;
use super::{Front, READ_BUFFER, pages};
use crate::request::Kind as Asked;

/// Files up to this length are given to the kernel whole when they are opened, in bytes.
const GIVEN_LEN_MAX: usize = 32 << 10;

impl Front {
    /// Puts the content of a small file into the kernel's cache before its open is answered, so that the first read needs
    /// no request. True when it is there.
    ///
    /// Notifications from a thread that serves requests are dangerous: this one waits for the pages' locks. They are free,
    /// because nobody else has the file open ([`Engine::give_whole`]), and a request for a page of it would need a handle.
    pub(super) fn give_whole(&self, ino: INodeNo, opened: &Opened, flags: OpenFlags) -> bool {
        if !opened.unread || flags.0 & libc::O_DIRECT != 0 || self.requests.engine.options().kernel_writeback {
            return false;
        }
        // Who opens a file need not want its content, and must not wait for it here.
        if self.requests.engine.may_wait(opened.fh, FileCall::Read { offset: 0, len: GIVEN_LEN_MAX as u64 }) {
            return false;
        }
        let Some(kernel) = self.requests.pages.kernel().get() else { return false };
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < GIVEN_LEN_MAX {
                buffer.resize(GIVEN_LEN_MAX, 0);
            }
            let into = &mut buffer[..GIVEN_LEN_MAX];
            let given = self.ask(Asked::Open, ino, |engine, _| {
                Ok(engine.give_whole(opened.fh, into, |content| kernel.store(ino, 0, content).is_ok()))
            });
            given.unwrap_or(false)
        })
    }

    /// A handle of `ino` was opened so. Where room is scarce, the kernel is to ask before it takes the first write.
    pub(super) fn note_writer(&self, ino: INodeNo, flags: OpenFlags) {
        let requests = &self.requests;
        if access_of(flags) == Access::Write
            && requests.shortage.opened(&requests.engine)
            && let Some(kernel) = requests.pages.kernel().get()
        {
            pages::forget_attributes(kernel, ino);
        }
    }

    /// Creates and opens. If the name came into being since the kernel looked, and the caller did not insist on making
    /// it (O_EXCL), the file that is there is opened, as `open(2)` promises.
    pub(super) fn create_or_open(
        &self,
        engine: &Engine,
        parent: Ino,
        name: FileName<'_>,
        new: &NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), FsError> {
        match engine.create(parent, name, new, access_of(flags)) {
            Err(e) if e.kind() == ErrorKind::Exists && flags.0 & libc::O_EXCL == 0 => {}
            other => return other,
        }
        let entry = engine.lookup(parent, name)?;
        let ino = entry.attr.ino;
        let opened = match entry.attr.kind {
            Kind::File => self.open_and_truncate(engine, ino, flags, new.caller),
            // ESTALE makes the kernel walk the path again and find the directory or link.
            _ => Err(ErrorKind::Stale.into()),
        };
        match opened {
            Ok(opened) => Ok((entry, opened)),
            Err(e) => {
                engine.forget(ino, 1);
                Err(e)
            }
        }
    }

    /// Opens what a create found, with the truncation that the kernel leaves out because it believes the file to be new.
    /// Truncation clears set-id bits unless the caller is root.
    fn open_and_truncate(
        &self,
        engine: &Engine,
        ino: Ino,
        flags: OpenFlags,
        caller: Caller,
    ) -> Result<Opened, FsError> {
        let truncate = flags.0 & libc::O_TRUNC != 0;
        if truncate && caller.uid != 0 {
            let (attr, _) = engine.getattr(ino, None)?;
            let kept = Changer::from(caller).perm_left(&attr);
            if kept != attr.perm {
                engine.setattr(ino, &SetAttr { perm: Some(kept), ..SetAttr::default() }, None)?;
            }
        }
        engine.open(ino, access_of(flags), truncate)
    }
}

pub(super) fn access_of(flags: OpenFlags) -> Access {
    match flags.acc_mode() {
        OpenAccMode::O_RDONLY => Access::Read,
        OpenAccMode::O_WRONLY | OpenAccMode::O_RDWR => Access::Write,
    }
}

/// Parallel direct writes are always fine: the engine orders writes to the same bytes itself.
pub(super) fn fopen_flags(opened: &Opened) -> FopenFlags {
    let mut flags = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_NOFLUSH, opened.no_flush);
    flags
}
