//! A medium that passes everything on, but for what a test does to its files.

use std::io;
use std::path::Path;

use adit_core::media::{HostDir, HostEntry, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Attr, Caller, Kind, RenameFlags, SetAttr, StatFs};

/// A [`HostDir`] whose files come out of `wrap`, and whose size out of `space`. See [`Through::files`].
pub struct Through<W> {
    inner: Box<dyn HostDir>,
    wrap: W,
    space: fn(StatFs) -> StatFs,
}

impl<W: Fn(Box<dyn HostFile>) -> Box<dyn HostFile> + Send + Sync> Through<W> {
    /// Every file of `inner`, opened or new, goes through `wrap`.
    pub fn files(inner: impl HostDir + 'static, wrap: W) -> Self {
        Through { inner: Box::new(inner), wrap, space: |space| space }
    }

    /// The size and use of the medium go through `space`.
    pub fn with_space(self, space: fn(StatFs) -> StatFs) -> Self {
        Through { space, ..self }
    }
}

impl<W: Fn(Box<dyn HostFile>) -> Box<dyn HostFile> + Send + Sync> HostDir for Through<W> {
    fn umask(&self) -> u16 {
        self.inner.umask()
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        self.inner.open(path, access).map(&self.wrap)
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        self.inner.publish(path, new).map(&self.wrap)
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        self.inner.stat(path)
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.inner.set_attr(path, set)
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        self.inner.list(path, sink)
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        self.inner.make_dir(path, perm, owner)
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        self.inner.remove(path, kind)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.inner.rename(from, to, flags)
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        self.inner.sync(target)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.inner.statfs().map(self.space)
    }
}
