//! Files that the kernel reads by itself, from a file of the host that it is given at the open (FUSE passthrough).
//!
//! An inode is open in one way at a time: the kernel (6.18) fails an open with `EIO` whose way is not that of the others, or whose file of
//! the host is not theirs. So [`Ways`] has each inode that is open with its way. Who opens it first decides, all others follow, and the last
//! one who closes it ends it. A handle counts from before its open is answered until its RELEASE, which the kernel sends when it has let
//! go of the handle's way: so no way ends here that the kernel still goes by.
//!
//! What is passed through bypasses the kernel's cache of the inode: it is for files that are read much, not for small ones.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use adit_core::engine::{Engine, Fh, Opened};
use adit_core::types::Ino;
use fuser::{BackingId, FopenFlags, OpenFlags, ReplyOpen};
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

/// Shorter files are read through the kernel's cache, in bytes: that costs a request or two the first time, and none later, while each
/// passed open costs what opening a file of the host and telling the kernel of it costs.
const LEN_MIN: u64 = 1 << 20;

/// The way in which an inode is open, and how many handles it has.
struct Way<F> {
    /// What the kernel reads; `None` if it asks us.
    file: Option<Arc<F>>,
    handles: u64,
}

/// The inodes that are open.
struct Ways<F>(Mutex<HashMap<Ino, Way<F>>>);

impl<F> Ways<F> {
    fn new() -> Self {
        Ways(Mutex::default())
    }

    /// One more handle of `ino`, and what the kernel is to read for it. If it is the first, `file` says so; called with nothing locked.
    fn open(&self, ino: Ino, file: impl FnOnce() -> Option<F>) -> Option<Arc<F>> {
        let join = |way: &mut Way<F>| {
            way.handles += 1;
            way.file.clone()
        };
        if let Some(way) = self.0.lock().get_mut(&ino) {
            return join(way);
        }
        // Dropped after the lock, if somebody else was faster.
        let file = file().map(Arc::new);
        match self.0.lock().entry(ino) {
            Entry::Occupied(mut way) => join(way.get_mut()),
            Entry::Vacant(free) => {
                free.insert(Way { file: file.clone(), handles: 1 });
                file
            }
        }
    }

    /// One handle less.
    fn release(&self, ino: Ino) {
        let mut ways = self.0.lock();
        let Entry::Occupied(mut way) = ways.entry(ino) else { return };
        way.get_mut().handles -= 1;
        if way.get().handles > 0 {
            return;
        }
        let last = way.remove();
        drop(ways);
        // Tells the kernel.
        drop(last);
    }
}

/// See the module's notes.
pub(super) struct Passthrough {
    is_on: bool,
    /// The kernel refused a file for a reason that will not go away.
    is_refused: AtomicBool,
    ways: Ways<BackingId>,
}

impl Passthrough {
    pub(super) fn new(is_wanted: bool) -> Self {
        Passthrough { is_on: is_wanted, is_refused: AtomicBool::new(false), ways: Ways::new() }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_on
    }

    /// Whether the kernel does it on this mount.
    pub(super) fn agreed(&mut self, is_agreed: bool) {
        self.is_on = is_agreed;
    }

    /// What the kernel is to read for the new handle `fh`. Each call that returns needs a [release](Self::release), whatever it returned.
    pub(super) fn open(
        &self,
        engine: &Engine,
        ino: Ino,
        fh: Fh,
        flags: OpenFlags,
        reply: &ReplyOpen,
    ) -> Option<Arc<BackingId>> {
        if !self.is_on {
            return None;
        }
        self.ways.open(ino, || {
            // Reads of any place and length work with O_DIRECT here. On the host they would not.
            if is_direct(flags) || self.is_refused.load(Relaxed) {
                return None;
            }
            let file = engine.host_file(fh, LEN_MIN)?;
            // The kernel opens it anew for each handle, with that one's flags: it must be possible with O_DIRECT.
            fcntl_setfl(&file, OFlags::DIRECT).ok()?;
            match reply.open_backing(&file) {
                Ok(file) => Some(file),
                Err(e) => {
                    self.refused(&e);
                    None
                }
            }
        })
    }

    fn refused(&self, e: &std::io::Error) {
        let lasts = !matches!(
            Errno::from_io_error(e),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC | Errno::INTR)
        );
        if lasts && !self.is_refused.swap(true, Relaxed) {
            tracing::info!(
                error = %e,
                "the kernel does not read cached files by itself (that takes CAP_SYS_ADMIN, and a cache directory on no overlay): it asks"
            );
        }
    }

    /// A handle of `ino` was closed.
    pub(super) fn release(&self, ino: Ino) {
        if self.is_on {
            self.ways.release(ino);
        }
    }
}

fn is_direct(flags: OpenFlags) -> bool {
    flags.0 & libc::O_DIRECT != 0
}

/// For a handle that is passed through. Reads with O_DIRECT come to us; only the inode's way has to be the same.
pub(super) fn fopen_flags(opened: &Opened, flags: OpenFlags) -> FopenFlags {
    let mut fopen = FopenFlags::empty();
    fopen.set(FopenFlags::FOPEN_NOFLUSH, opened.no_flush);
    fopen.set(FopenFlags::FOPEN_DIRECT_IO, is_direct(flags));
    fopen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_have_an_inode_open_go_the_way_of_the_first() {
        let (ways, a, b) = (Ways::new(), Ino(2), Ino(3));
        let never = || -> Option<u32> { panic!("somebody has it open") };
        assert_eq!(ways.open(a, || None), None);
        assert_eq!(ways.open(a, never), None);
        let first = ways.open(b, || Some(7)).expect("it is the first");
        assert!(Arc::ptr_eq(&first, &ways.open(b, never).expect("the same")));
        ways.release(a);
        assert_eq!(ways.open(a, never), None);
        (0..2).for_each(|_| ways.release(a));
        // The last one has closed it: the next one decides again.
        assert_eq!(ways.open(a, || Some(8)).as_deref(), Some(&8));
        let weak = Arc::downgrade(&first);
        drop(first);
        ways.release(b);
        assert!(weak.upgrade().is_some(), "one is open");
        ways.release(b);
        assert!(weak.upgrade().is_none());
        // Of what is not open.
        ways.release(b);
        assert!(!ways.0.lock().contains_key(&b));
    }

    #[test]
    fn of_two_who_are_first_at_once_one_decides() {
        let ways = Ways::new();
        let inner = std::cell::Cell::new(None);
        let outer = ways.open(Ino(2), || {
            inner.set(ways.open(Ino(2), || Some(1)));
            Some(2)
        });
        assert_eq!(outer.as_deref(), Some(&1));
        assert!(Arc::ptr_eq(&outer.unwrap(), &inner.take().unwrap()));
    }
}
