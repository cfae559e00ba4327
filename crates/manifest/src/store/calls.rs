//! The calls of the store.

use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::store::{Capabilities, DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{
    Access, Attr, Caller, FileName, Ino, Kind, NAME_LEN_MAX_BYTES, RenameFlags, SetAttr, StatFs, XattrName, XattrSet,
};
use adit_index::NodeId;

use super::extra::Content;
use super::file::ManifestFile;
use super::{Inner, ManifestStore, STATE_XATTR, ino_of};
use crate::format::wtf8;

/// Unit of sizes in `statfs`, in bytes.
const STATFS_BLOCK_BYTES: u32 = 4096;
/// Most entries that a listing may leave out. With more it fails.
const LEFT_OUT_MAX: usize = 4096;

fn read_only<T>() -> Result<T> {
    Err(ErrorKind::ReadOnly.into())
}

impl Inner {
    /// The entries of a directory without the first `start`. One that cannot be read is an error, and hides no other.
    fn each_entry(
        &self,
        dir: NodeId,
        start: u32,
        sink: &mut dyn FnMut(Result<DirEntry<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.index.each_child(dir, start, &mut |place, child| {
            sink(child.and_then(|child| {
                let name = FileName::new(child.name).map_err(|_| self.index.damaged(child.id, "its name"))?;
                Ok(DirEntry { cookie: place.into(), ino: ino_of(child.id), kind: child.kind, name })
            }))
        })
    }
}

impl Store for ManifestStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: true,
            stable_cookies: true,
            xattrs: true,
            remote: true,
            host_files: true,
            // An object of one block is compared before anything of it is read, and kept as a whole. A file that has no name on a host is
            // refused when it is opened.
            fixed_content: self.0.identity.longest_bytes <= u64::from(self.0.cache.block_len())
                && !self.0.identity.has_unopenable,
            // Whole pages come from the cache's files.
            ..Capabilities::plain("manifest")
        }
    }

    fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        let inner = &*self.0;
        let parent = inner.id(parent)?;
        let found = inner.index.lookup(parent, name.as_bytes())?.ok_or(ErrorKind::NotFound)?;
        Ok(inner.attr(&inner.index.node(found)?))
    }

    fn lookup_listed(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Attr>> {
        let inner = &*self.0;
        let attr = |ino: Ino| {
            let node = inner.index.node(inner.id(ino)?)?;
            // A number of this directory's listing belongs to its name for ever.
            if ino_of(node.parent) == parent { Ok(inner.attr(&node)) } else { Err(ErrorKind::NotFound.into()) }
        };
        entries.iter().map(|entry| attr(entry.ino)).collect()
    }

    fn forget(&self, _ino: Ino) {}

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inner = &*self.0;
        Ok(inner.attr(&inner.index.node(inner.id(ino)?)?))
    }

    fn setattr(&self, _ino: Ino, _set: &SetAttr) -> Result<Attr> {
        read_only()
    }

    fn read_dir(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()> {
        let inner = &*self.0;
        let start = u32::try_from(start).unwrap_or(u32::MAX);
        let (mut failed, mut failure) = (0, None);
        inner.each_entry(inner.id(dir)?, start, &mut |entry| match entry {
            Ok(entry) => sink(entry),
            Err(e) => {
                failed += 1;
                if failed <= LEFT_OUT_MAX {
                    return ControlFlow::Continue(());
                }
                failure = Some(e);
                ControlFlow::Break(())
            }
        })?;
        failure.map_or(Ok(()), Err)
    }

    /// Found anew, which only a damaged index costs anything.
    fn left_out(&self, dir: Ino) -> Vec<FsError> {
        let inner = &*self.0;
        let mut left_out = Vec::new();
        if let Ok(dir) = inner.id(dir)
            && inner.index.is_damaged()
        {
            let listed = inner.each_entry(dir, 0, &mut |entry| {
                left_out.extend(entry.err());
                if left_out.len() < LEFT_OUT_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            left_out.extend(listed.err());
        }
        left_out
    }

    fn create(&self, _parent: Ino, _name: FileName<'_>, _new: &NewNode) -> Result<(Attr, Arc<dyn StoreFile>)> {
        read_only()
    }

    fn mkdir(&self, _parent: Ino, _name: FileName<'_>, _new: &NewNode) -> Result<Attr> {
        read_only()
    }

    fn symlink(&self, _parent: Ino, _name: FileName<'_>, _target: &[u8], _caller: Caller) -> Result<Attr> {
        read_only()
    }

    fn mknod(&self, _parent: Ino, _name: FileName<'_>, _kind: Kind, _rdev: u32, _new: &NewNode) -> Result<Attr> {
        read_only()
    }

    fn link(&self, _ino: Ino, _parent: Ino, _name: FileName<'_>) -> Result<Attr> {
        read_only()
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inner = &*self.0;
        let id = inner.id(ino)?;
        if inner.index.kind(id)? != Kind::Symlink {
            return Err(ErrorKind::InvalidInput.into());
        }
        let Content::Target(target) = inner.index.extra(id)?.content else {
            return Err(inner.index.damaged(id, "its target"));
        };
        match wtf8::to_host(target) {
            Some(target) => Ok(target.into_owned()),
            None => {
                Err(FsError::new(ErrorKind::IllegalName).because("its target has a lone surrogate, which has no bytes"))
            }
        }
    }

    fn unlink(&self, _parent: Ino, _name: FileName<'_>) -> Result<()> {
        read_only()
    }

    fn rmdir(&self, _parent: Ino, _name: FileName<'_>) -> Result<()> {
        read_only()
    }

    fn rename(
        &self,
        _parent: Ino,
        _name: FileName<'_>,
        _new_parent: Ino,
        _new_name: FileName<'_>,
        _flags: RenameFlags,
    ) -> Result<()> {
        read_only()
    }

    fn open(&self, ino: Ino, access: Access) -> Result<Arc<dyn StoreFile>> {
        let id = self.0.file_id(ino)?;
        if access == Access::Write {
            return read_only();
        }
        Ok(Arc::new(ManifestFile::open(self.0.clone(), id)?))
    }

    fn xattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let id = self.0.id(ino)?;
        if name.as_bytes() != STATE_XATTR.as_bytes() || self.0.index.kind(id)? != Kind::File {
            return Err(ErrorKind::NoAttribute.into());
        }
        let file = ManifestFile::open(self.0.clone(), id)?;
        let state: &[u8] = match file.is_cached()? {
            true => b"cached",
            false if file.is_unread()? => b"error",
            false => b"remote",
        };
        Ok(state.to_vec())
    }

    fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.id(ino).map(|_| Vec::new())
    }

    fn set_xattr(&self, _ino: Ino, _name: XattrName<'_>, _value: &[u8], _set: XattrSet) -> Result<()> {
        read_only()
    }

    fn remove_xattr(&self, _ino: Ino, _name: XattrName<'_>) -> Result<()> {
        read_only()
    }

    fn sync_dir(&self, dir: Ino) -> Result<()> {
        match self.0.index.kind(self.0.id(dir)?)? {
            Kind::Directory => Ok(()),
            _ => Err(ErrorKind::NotDirectory.into()),
        }
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    /// As large as its files, and full.
    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_size: STATFS_BLOCK_BYTES,
            blocks: self.0.identity.totals.size_bytes.div_ceil(STATFS_BLOCK_BYTES.into()),
            files: self.0.index.count().into(),
            name_len_max: NAME_LEN_MAX_BYTES as u32,
            ..StatFs::default()
        })
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        let path = self.0.index.path(self.0.id(ino).ok()?).ok()?;
        Some(format!("/{}", String::from_utf8_lossy(&path)))
    }

    fn name_of(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        let inner = &*self.0;
        let id = inner.id(ino).ok().filter(|id| *id != NodeId::ROOT)?;
        let node = inner.index.node(id).ok().filter(|node| node.kind != Kind::Directory)?;
        Some((ino_of(node.parent), inner.index.name(id).ok()?.to_vec()))
    }

    fn wind_up(&self) {
        self.0.wind_up();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.cache.stats();
        let mut counters = vec![
            ("cache_hits", stats.hits),
            ("cache_hit_bytes", stats.hit_bytes),
            ("cache_misses", stats.misses),
            ("cache_waits", stats.waits),
            ("fetches", stats.fetches),
            ("fetched_bytes", stats.fetched_bytes),
            ("passed_bytes", stats.passed_bytes),
            ("cache_evictions", stats.evictions),
            ("cache_evicted_bytes", stats.evicted_bytes),
            ("objects_verified", stats.verified),
            ("objects_quarantined", stats.quarantined),
            ("cache_damaged", stats.damaged),
            ("cache_errors", stats.folder_errors),
            ("cache_used_bytes", stats.used_bytes),
        ];
        // What the disk has is no number.
        counters.push(("cache_keep_free_bytes", stats.kept_free_bytes));
        counters.extend((stats.limit_bytes < u64::MAX).then_some(("cache_limit_bytes", stats.limit_bytes)));
        counters
    }
}
