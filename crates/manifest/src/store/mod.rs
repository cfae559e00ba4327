//! A manifest as a [`Store`](adit_core::store::Store): read-only, its content fetched when it is read, and verified.
//!
//! [`build_segment`] makes the index segment of a manifest, [`Segments`] keeps it; [`ManifestStore`] answers from the segment, and reads objects through
//! the [cache](crate::cache). What a segment holds beside its columns: `docs/formats/manifest-index.md`.
//!
//! Nothing in it changes, so an inode number is the node's for as long as the manifest is the same, and nothing has to be
//! remembered of what is known. It has no locks of its own but those of what is fetched ahead.

mod ahead;
mod build;
mod calls;
mod entries;
mod extra;
mod file;
mod identity;
mod index;
mod names;
mod segments;
mod streams;
mod unread;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::{Attr, Ino, Kind, Timestamp};
use adit_index::{Node, NodeId, Segment};

use crate::cache::{Cache, Fetch, ObjectId};
use crate::format::wtf8;
use ahead::Ahead;
use extra::{Content, Extra};
use file::ManifestFile;
use index::Index;
use unread::Unread;

pub use build::{BuildPlace, BuildReport, Building, build_segment};
pub use entries::{Lower, each_entry, entries_at, file_at, files};
pub use identity::Identity;
pub use names::ListedNames;
pub use segments::{Segments, SegmentsOptions};

/// The attribute that tells whether a file's content is on this machine: `cached`, `remote`, or `error` if it could not be read last.
pub use adit_core::overlay::STATE_XATTR;

/// How a manifest is shown and read.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Who owns everything.
    pub uid: u32,
    /// Likewise the group.
    pub gid: u32,
    /// How far ahead of a sequential reader is fetched at most, in bytes; 0 for nothing. Default 64 MiB.
    pub read_ahead_bytes: u64,
    /// Threads that fetch ahead, each a block at a time. Default 16.
    pub read_ahead_threads: usize,
}

impl StoreOptions {
    /// The defaults, for files of this owner.
    pub fn owned_by(uid: u32, gid: u32) -> Self {
        StoreOptions { uid, gid, read_ahead_bytes: 64 << 20, read_ahead_threads: 16 }
    }
}

/// A manifest. Cheap to clone.
#[derive(Clone)]
pub struct ManifestStore(Arc<Inner>);

struct Inner {
    index: Index,
    identity: Identity,
    cache: Arc<Cache>,
    source: Arc<Source>,
    ahead: Ahead,
    unread: Unread,
    options: StoreOptions,
}

/// Where objects come from, until the mount ends.
struct Source {
    fetch: Arc<dyn Fetch>,
    is_over: AtomicBool,
}

impl Fetch for Source {
    fn fetch(&self, id: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let check = || {
            let is_over = self.is_over.load(Ordering::Relaxed);
            if is_over { Err(FsError::new(ErrorKind::Interrupted).on("read object", id)) } else { Ok(()) }
        };
        check()?;
        self.fetch.fetch(id, range, &mut |bytes| {
            check()?;
            sink(bytes)
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wind_up();
    }
}

impl ManifestStore {
    /// The manifest that `segment` was made of by [`build_segment`], with the content that `fetch` gets. When something in the
    /// segment turns out to be damaged, its file is removed, so that the next mount builds another one.
    ///
    /// # Errors
    /// `NotSupported` if the segment is of something else, or of another version: it is to be built again.
    pub fn new(segment: Segment, cache: Arc<Cache>, fetch: Arc<dyn Fetch>, options: StoreOptions) -> Result<Self> {
        let identity = Identity::of(&segment)?;
        let source = Arc::new(Source { fetch, is_over: AtomicBool::new(false) });
        let ahead = Ahead::new(source.clone(), options.read_ahead_threads);
        let (index, unread) = (Index::new(segment), Unread::default());
        Ok(ManifestStore(Arc::new(Inner { index, identity, cache, source, ahead, unread, options })))
    }

    /// The manifest.
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Its tree.
    pub fn segment(&self) -> &Arc<Segment> {
        self.0.index.segment()
    }

    /// Makes room on the disk of the cache for `bytes` of somebody else; see [`Cache::make_room_for`].
    pub fn make_room_for(&self, bytes: u64) -> bool {
        self.0.cache.make_room_for(bytes)
    }

    /// Bytes of the cache, all of which can be removed while nobody reads them.
    pub fn evictable_bytes(&self) -> u64 {
        self.0.cache.stats().used_bytes
    }

    /// Whether something of the content of its first `nodes_max` entries is in the cache. What is damaged has none.
    pub fn has_cached(&self, nodes_max: u32) -> bool {
        let is_file = |id: &NodeId| self.0.index.kind(*id).is_ok_and(|kind| kind == Kind::File);
        let mut files = (0..self.segment().len().min(nodes_max)).map(NodeId).filter(is_file);
        files.any(|id| ManifestFile::open(self.0.clone(), id).and_then(|file| file.has_cached()).unwrap_or(false))
    }

    /// The content of a regular file as an open file of the host, for FUSE passthrough: if it is one object, and this process knows
    /// that each byte of it is right; see [`CachedObject::verified_file`](crate::cache::CachedObject::verified_file).
    ///
    /// # Errors
    /// As of opening the file.
    pub fn verified_file(&self, ino: Ino) -> Result<Option<OwnedFd>> {
        Ok(ManifestFile::open(self.0.clone(), self.0.file_id(ino)?)?.verified_file())
    }

    /// The files with an object of this content: whoever caches bytes of it drops them when it is
    /// [put aside](crate::cache::Watch::quarantined). Looks at every node.
    ///
    /// # Errors
    /// `Corrupt` if the segment is damaged.
    pub fn files_of(&self, object: &ObjectId) -> Result<Vec<Ino>> {
        let inner = &*self.0;
        let mut found = Vec::new();
        for id in (0..inner.index.count()).map(NodeId) {
            if inner.index.kind(id)? != Kind::File {
                continue;
            }
            let has_it = match inner.index.hash(id)? {
                Some(hash) => hash == object.hash.0,
                None => matches!(inner.index.extra(id)?.content, Content::Chunks(all) if all.contains(&object.hash.0)),
            };
            if has_it {
                found.push(ino_of(id));
            }
        }
        Ok(found)
    }
}

/// The inode number of a node.
fn ino_of(id: NodeId) -> Ino {
    Ino(u64::from(id.0) + Ino::ROOT.0)
}

impl Inner {
    fn wind_up(&self) {
        self.source.is_over.store(true, Ordering::Relaxed);
        self.ahead.close();
    }

    /// The node with this inode number; `Stale` if there is none.
    fn id(&self, ino: Ino) -> Result<NodeId> {
        let number = ino.0.checked_sub(Ino::ROOT.0).and_then(|number| u32::try_from(number).ok());
        number.filter(|number| *number < self.index.count()).map(NodeId).ok_or_else(|| ErrorKind::Stale.into())
    }

    /// The regular file with this inode number; `IsDirectory`, or `InvalidInput` for a link.
    fn file_id(&self, ino: Ino) -> Result<NodeId> {
        let id = self.id(ino)?;
        match self.index.kind(id)? {
            Kind::File => Ok(id),
            Kind::Directory => Err(ErrorKind::IsDirectory.into()),
            _ => Err(ErrorKind::InvalidInput.into()),
        }
    }

    /// Refuses to open what no host could have, because a name on its way has a lone surrogate that stands for no byte.
    fn check_has_host_bytes(&self, extra: &Extra<'_>) -> Result<()> {
        match extra.text {
            Some(text) if !wtf8::has_host_bytes(text) => Err(FsError::new(ErrorKind::IllegalName)
                .because("its name has a lone surrogate, which has no bytes; rename it where the manifest is made")),
            _ => Ok(()),
        }
    }

    fn attr(&self, node: &Node) -> Attr {
        let nanos = if node.kind == Kind::Directory { self.identity.newest_mtime_ns } else { node.mtime_ns };
        let time = Timestamp { secs: nanos.div_euclid(1_000_000_000), nanos: nanos.rem_euclid(1_000_000_000) as u32 };
        Attr {
            ino: ino_of(node.id),
            size: node.size,
            blocks: if node.kind == Kind::File { node.size.div_ceil(512) } else { 0 },
            atime: time,
            mtime: time,
            ctime: time,
            kind: node.kind,
            perm: node.perm,
            // Of a directory: not counted, which is what 1 says.
            nlink: 1,
            uid: self.options.uid,
            gid: self.options.gid,
            rdev: 0,
        }
    }
}
