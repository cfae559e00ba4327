//! A folder of the host that comes back: whoever removes it, it is made again when something is next put into it.
//!
//! For what may be deleted at any time, a cache, beneath a process that lives long. What is open of the former folder stays readable.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::media::{HostDir, HostEntry, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Attr, Caller, Kind, RenameFlags, SetAttr, StatFs};
use parking_lot::RwLock;

use crate::HostDirectory;

/// A [`HostDirectory`] for this user alone, known by its path.
///
/// Locking: a moment for each call; none while the host is at work.
pub struct KeptFolder {
    path: PathBuf,
    current: RwLock<Arc<HostDirectory>>,
}

fn made(path: &Path) -> io::Result<Arc<HostDirectory>> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    HostDirectory::open(path).map(Arc::new)
}

impl KeptFolder {
    /// Opens the folder `path`, which is made with those above it if it is not there (mode 0700). A relative path is that of now.
    pub fn open(path: &Path) -> io::Result<KeptFolder> {
        let path = std::path::absolute(path)?;
        Ok(KeptFolder { current: RwLock::new(made(&path)?), path })
    }

    fn current(&self) -> Arc<HostDirectory> {
        self.current.read().clone()
    }

    /// Runs a call that makes something; once more in a new folder if this one was removed. One that was moved is the same still.
    fn making<T>(&self, call: impl Fn(&HostDirectory) -> io::Result<T>) -> io::Result<T> {
        let before = self.current();
        match call(&before) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && before.is_removed()? => {}
            result => return result,
        }
        let again = {
            let mut current = self.current.write();
            // Unless somebody was faster.
            if Arc::ptr_eq(&current, &before) {
                *current = made(&self.path)?;
            }
            current.clone()
        };
        call(&again)
    }
}

impl HostDir for KeptFolder {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        self.current().open(path, access)
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        self.making(|folder| folder.publish(path, new))
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        self.current().stat(path)
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.current().set_attr(path, set)
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        self.current().list(path, sink)
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        self.making(|folder| folder.make_dir(path, perm, owner))
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        self.current().remove(path, kind)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.current().rename(from, to, flags)
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        self.current().sync(target)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.current().statfs()
    }

    fn umask(&self) -> u16 {
        self.current().umask()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NEW: NewFile<'_> = NewFile { content: b"x", perm: 0o600, owner: None, durable: false };

    #[test]
    fn a_folder_that_was_removed_is_made_again_and_one_that_was_moved_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("above/folder");
        let folder = KeptFolder::open(&path).unwrap();
        folder.publish(Path::new("a"), &NEW).unwrap();
        // Only a folder in it is missing.
        assert_eq!(folder.publish(Path::new("no/a"), &NEW).err().unwrap().kind(), io::ErrorKind::NotFound);
        fs::rename(&path, dir.path().join("moved")).unwrap();
        folder.publish(Path::new("b"), &NEW).unwrap();
        assert!(dir.path().join("moved/b").exists() && !path.exists());
        fs::remove_dir_all(dir.path().join("moved")).unwrap();
        fs::remove_dir(dir.path().join("above")).unwrap();
        assert_eq!(folder.stat(Path::new("a")).unwrap_err().kind(), io::ErrorKind::NotFound);
        folder.make_dir(Path::new("d"), 0o700, None).unwrap();
        folder.publish(Path::new("d/c"), &NEW).unwrap();
        assert_eq!(fs::read(path.join("d/c")).unwrap(), b"x");
        // Something else is in its place.
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert!(folder.publish(Path::new("e"), &NEW).is_err());
    }
}
