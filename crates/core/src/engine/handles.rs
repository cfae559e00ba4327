//! Handles by number, and the one [`OpenInode`] that all handles of a file share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use super::Fh;
use super::ahead::Job;
use super::file::OpenInode;
use super::listing::Listing;
use crate::error::{ErrorKind, Result};
use crate::types::{Access, Ino};

const SHARDS: usize = 16;

/// An open file descriptor, as the front end sees it.
pub(crate) struct FileHandle {
    pub(crate) file: Arc<OpenInode>,
    pub(crate) access: Access,
    /// The latest failure of this file that was reported through this handle.
    pub(crate) errors_seen: AtomicU64,
}

/// What an open directory goes through: a listing, and its entries being looked up ahead.
#[derive(Clone)]
pub(crate) struct Listed {
    pub(crate) listing: Arc<Listing>,
    pub(crate) ahead: Option<Arc<Job>>,
}

/// An open directory with the listing that it goes through.
pub(crate) struct DirHandle {
    pub(crate) dir: Ino,
    pub(crate) listing: Mutex<Option<Listed>>,
}

type Shard<T> = RwLock<HashMap<u64, Arc<T>>>;

/// Handles of one kind. Numbers are never reused.
pub(crate) struct Handles<T> {
    shards: Box<[Shard<T>]>,
    next: AtomicU64,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Self {
        Handles { shards: (0..SHARDS).map(|_| RwLock::default()).collect(), next: AtomicU64::new(1) }
    }

    pub(crate) fn insert(&self, handle: T) -> Fh {
        let n = self.next.fetch_add(1, Relaxed);
        self.shards[n as usize % SHARDS].write().insert(n, Arc::new(handle));
        Fh(n)
    }

    /// The handle; `Stale` for a number that is not open.
    pub(crate) fn get(&self, fh: Fh) -> Result<Arc<T>> {
        self.shards[fh.0 as usize % SHARDS].read().get(&fh.0).cloned().ok_or_else(|| ErrorKind::Stale.into())
    }

    pub(crate) fn remove(&self, fh: Fh) -> Option<Arc<T>> {
        self.shards[fh.0 as usize % SHARDS].write().remove(&fh.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }
}

struct User {
    file: Arc<OpenInode>,
    users: u64,
}

/// Open inodes by number, each with the count of those who use it.
pub(crate) struct OpenInodes {
    shards: Box<[Mutex<HashMap<Ino, User>>]>,
    len: AtomicUsize,
}

impl OpenInodes {
    pub(crate) fn new() -> Self {
        OpenInodes { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), len: AtomicUsize::new(0) }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, User>> {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// Whether nothing is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    /// The open inode, without becoming a user of it.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        if self.is_empty() {
            return None;
        }
        self.shard(ino).lock().get(&ino).map(|u| u.file.clone())
    }

    /// Whether `ino` has exactly one user.
    pub(crate) fn has_one_user(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|u| u.users == 1)
    }

    /// One more user; `make` runs when there was none.
    pub(crate) fn acquire(&self, ino: Ino, make: impl FnOnce() -> Result<OpenInode>) -> Result<Arc<OpenInode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(user) = shard.get_mut(&ino) {
            user.users += 1;
            return Ok(user.file.clone());
        }
        let file = Arc::new(make()?);
        shard.insert(ino, User { file: file.clone(), users: 1 });
        self.len.fetch_add(1, Relaxed);
        Ok(file)
    }

    /// One more user of an inode that has one already.
    pub(crate) fn acquire_open(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        let mut shard = self.shard(ino).lock();
        let user = shard.get_mut(&ino)?;
        user.users += 1;
        Some(user.file.clone())
    }

    /// One user less; true if it was the last, and the inode is not open any more.
    pub(crate) fn release(&self, ino: Ino) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(user) = shard.get_mut(&ino) else {
            return false;
        };
        user.users -= 1;
        if user.users > 0 {
            return false;
        }
        shard.remove(&ino);
        self.len.fetch_sub(1, Relaxed);
        true
    }

    /// The numbers of the open inodes that hold buffered writes.
    pub(crate) fn dirty(&self) -> Vec<Ino> {
        self.those(OpenInode::is_dirty)
    }

    /// The numbers of the open inodes that `so` is true of.
    pub(crate) fn those(&self, so: impl Fn(&OpenInode) -> bool) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().iter().filter(|(_, u)| so(&u.file)).map(|(&ino, _)| ino));
        }
        found
    }
}
