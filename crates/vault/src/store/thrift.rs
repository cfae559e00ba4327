//! The vault's folder, as the store and its journal see it: a call that finds no descriptor left is made again when those of files
//! that nobody uses have been given back.

use std::io;
use std::path::Path;
use std::sync::Arc;

use adit_core::media::{HeldFile, HostDir, HostEntry, HostFile, NewFile, Published, SyncTarget};
use adit_core::types::{Access, Attr, Caller, Kind, RenameFlags, SetAttr, StatFs};
use rustix::io::Errno;

use super::kept::Kept;

/// A [`HostDir`] that gives up the files that are [kept](Kept) for want of descriptors.
pub(super) struct Thrift {
    pub host: Arc<dyn HostDir>,
    pub kept: Arc<Kept>,
}

impl Thrift {
    fn call<T>(&self, mut call: impl FnMut(&dyn HostDir) -> io::Result<T>) -> io::Result<T> {
        match call(&*self.host) {
            Err(e) if is_out_of_descriptors(&e) && self.kept.clear() > 0 => call(&*self.host),
            other => other,
        }
    }
}

fn is_out_of_descriptors(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE))
}

impl HostDir for Thrift {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        self.call(|host| host.open(path, access))
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        self.call(|host| host.publish(path, new))
    }

    fn publish_known(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Published> {
        self.call(|host| host.publish_known(path, new))
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        self.call(|host| host.stat(path))
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.call(|host| host.set_attr(path, set))
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        self.call(|host| host.list(path, sink))
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        self.call(|host| host.make_dir(path, perm, owner))
    }

    fn make_link(&self, path: &Path, target: &[u8]) -> io::Result<()> {
        self.call(|host| host.make_link(path, target))
    }

    fn read_link(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.call(|host| host.read_link(path))
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        self.call(|host| host.remove(path, kind))
    }

    fn hold(&self, path: &Path) -> Option<Box<dyn HeldFile>> {
        self.host.hold(path)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.call(|host| host.rename(from, to, flags))
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        self.call(|host| host.sync(target))
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.call(|host| host.statfs())
    }

    fn umask(&self) -> u16 {
        self.host.umask()
    }

    fn incarnation(&self) -> Option<[u8; 16]> {
        self.host.incarnation()
    }
}
