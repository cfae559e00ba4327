//! What the kernel shows of a file and the store does not have: a write of kernel write-back failed.
//!
//! The kernel keeps such pages as if they were stored, and takes no length from us for a regular file that it knows. So it
//! is told to drop the pages, and to forget the file when nobody has it open any more; what it looks up then is what is stored.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use hashbrown::HashSet;
use parking_lot::Mutex;

use super::Engine;
use crate::types::Ino;

/// The files whose length the kernel may have wrong, until it has forgotten them.
#[derive(Default)]
pub(super) struct Lost {
    inodes: Mutex<HashSet<Ino>>,
    len: AtomicUsize,
}

impl Lost {
    fn add(&self, ino: Ino) {
        let mut inodes = self.inodes.lock();
        inodes.insert(ino);
        self.len.store(inodes.len(), SeqCst);
    }

    fn has(&self, ino: Ino) -> bool {
        self.len.load(SeqCst) > 0 && self.inodes.lock().contains(&ino)
    }

    /// The kernel does not know it any more.
    pub(super) fn forgotten(&self, ino: Ino) {
        if self.len.load(SeqCst) > 0 {
            let mut inodes = self.inodes.lock();
            inodes.remove(&ino);
            self.len.store(inodes.len(), SeqCst);
        }
    }
}

impl Engine {
    /// Bytes that the kernel has of an open file were not stored: `len` of them at `offset`, all if there is no range.
    pub(super) fn kernel_lost(&self, ino: Ino, range: Option<(u64, usize)>) {
        // Whoever opens it from now on reads what is stored; who has it open, once the kernel has listened.
        self.inodes.pages_void(ino);
        match range {
            Some((offset, len)) => self.notices.inval_range(ino, offset, len),
            None => self.notices.inval_inode(ino),
        }
        if self.options.kernel_writeback {
            self.lost.add(ino);
        }
    }

    /// The last handle of `ino` is closed.
    pub(super) fn forget_if_lost(&self, ino: Ino) {
        if self.lost.has(ino) {
            self.notices.forget(ino);
        }
    }
}
