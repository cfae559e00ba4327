//! The directories that were used last, open as places: a path is walked once, and not for each of its entries.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use adit_core::types::Ino;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// Most directories that are held open.
const HELD_MAX: usize = 128;

/// What is held, and when it was used.
#[derive(Default)]
struct Held {
    clock: u64,
    dirs: HashMap<Ino, (Arc<OwnedFd>, u64)>,
}

/// The cache. What it holds of a directory stays right when others move that.
#[derive(Default)]
pub(crate) struct Directories {
    held: Mutex<Held>,
}

impl Directories {
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<OwnedFd>> {
        let mut held = self.held.lock();
        held.clock += 1;
        let now = held.clock;
        let (fd, used) = held.dirs.get_mut(&ino)?;
        *used = now;
        Some(fd.clone())
    }

    pub(crate) fn put(&self, ino: Ino, fd: Arc<OwnedFd>) {
        let mut held = self.held.lock();
        held.clock += 1;
        let now = held.clock;
        if held.dirs.len() >= HELD_MAX
            && !held.dirs.contains_key(&ino)
            && let Some(oldest) = held.dirs.iter().min_by_key(|(_, (_, used))| *used).map(|(ino, _)| *ino)
        {
            held.dirs.remove(&oldest);
        }
        held.dirs.insert(ino, (fd, now));
    }

    pub(crate) fn drop(&self, ino: Ino) {
        self.held.lock().dirs.remove(&ino);
    }
}
