//! Files that the kernel opens by itself, without asking: an open is answered ENOSYS, once, and from then on it costs no request at all.
//!
//! The kernel then keeps its pages of a file for as long as it likes, so it is for content that never changes and is right when it is read
//! ([`Capabilities::fixed_content`](adit_core::store::Capabilities)), where nothing can be written. It excludes passthrough, which is
//! decided at an open; large files are not for it.
//!
//! Requests then have no handle. The engine's calls want one, so those that were used last are kept open here.

use std::sync::Arc;

use adit_core::engine::{Engine, Fh};
use adit_core::types::{Access, Ino};
use fuser::{Errno, FileHandle, INodeNo};
use quick_cache::sync::Cache;

use super::fh_of;
use super::requests::Requests;
use crate::request::Kind as Asked;

/// Files that are kept open. A file of which the kernel has all pages is asked for no more, so it is those that are being read.
const KEPT_MAX: usize = 128;

/// A handle for a request: the kernel's, or one that was kept.
pub(super) struct Handle {
    pub(super) fh: Fh,
    /// It stays open for as long as the request.
    _kept: Option<Arc<Kept>>,
}

/// A file that is open here; dropping it closes it.
struct Kept {
    engine: Arc<Engine>,
    fh: Fh,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Of a file to read: there is nothing that could be lost.
        let _ = self.engine.release(self.fh);
    }
}

/// What is kept open.
pub(super) struct Unopened(Cache<Ino, Arc<Kept>>);

impl Unopened {
    pub(super) fn new() -> Self {
        Unopened(Cache::new(KEPT_MAX))
    }

    /// The handle for a request about `ino` for which the kernel has none. Opens it if need be.
    fn of(&self, requests: &Requests, ino: INodeNo) -> Result<Handle, Errno> {
        let kept = self.0.get_or_insert_with(&Ino(ino.0), || {
            let fh = requests.run(Asked::Open, ino, |engine, ino| {
                engine.open(Ino(ino.0), Access::Read, false).map(|opened| opened.fh)
            })?;
            Ok::<_, Errno>(Arc::new(Kept { engine: requests.engine.clone(), fh }))
        })?;
        Ok(Handle { fh: kept.fh, _kept: Some(kept) })
    }

    /// The kernel forgets `ino`, so nobody reads it.
    pub(super) fn forget(&self, ino: Ino) {
        self.0.remove(&ino);
    }
}

/// The handle for a request that came with `fh`, which is 0 where files are not opened.
pub(super) fn handle(
    unopened: Option<&Unopened>,
    requests: &Requests,
    ino: INodeNo,
    fh: FileHandle,
) -> Result<Handle, Errno> {
    match unopened {
        Some(unopened) => unopened.of(requests, ino),
        None => Ok(Handle { fh: fh_of(fh), _kept: None }),
    }
}
