//! A root of a world as a [`HostDir`], and its open files, as a [`HostFile`] or a [`BlockFile`].

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use adit_core::ErrorKind;
use adit_core::media::{BlockFile, HostDir, HostEntry, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Attr, Caller, Kind, NAME_LEN_MAX_BYTES, RenameFlags, SetAttr, StatFs};

use super::disk::{Call, Disk, Reply, error};
use super::{CrashWorld, SyncCall, SyncKind};
use crate::tree::NodeId;

/// A root of a [`CrashWorld`]. Clones are the same root.
#[derive(Clone)]
pub struct CrashDir {
    world: CrashWorld,
    name: Arc<str>,
    root: NodeId,
}

fn invalid() -> io::Error {
    error(ErrorKind::InvalidInput)
}

/// A component of a path, as the seam has them.
fn component<'a>(part: Component<'a>) -> io::Result<&'a [u8]> {
    match part {
        Component::Normal(name) if name.len() > NAME_LEN_MAX_BYTES => Err(error(ErrorKind::NameTooLong)),
        Component::Normal(name) => Ok(name.as_bytes()),
        _ => Err(invalid()),
    }
}

impl CrashDir {
    pub(super) fn new(world: CrashWorld, name: Arc<str>, root: NodeId) -> Self {
        CrashDir { world, name, root }
    }

    fn find(&self, disk: &Disk, path: &Path) -> io::Result<NodeId> {
        let mut at = self.root;
        for part in path.components() {
            at = disk.tree.lookup(at, component(part)?).map_err(error)?;
        }
        Ok(at)
    }

    fn resolve(&self, path: &Path) -> io::Result<NodeId> {
        self.world.look(|disk| self.find(disk, path))
    }

    /// The directory that holds `path`, and the last component.
    fn parent(&self, path: &Path) -> io::Result<(NodeId, Vec<u8>)> {
        let name = component(path.components().next_back().ok_or_else(invalid)?)?.to_vec();
        let parent = self.world.look(|disk| {
            let id = self.find(disk, path.parent().unwrap_or(Path::new("")))?;
            disk.tree.entries(id).map_err(error)?;
            Ok(id)
        })?;
        Ok((parent, name))
    }

    fn sync_call(&self, kind: SyncKind, path: &Path) -> SyncCall {
        SyncCall { kind, root: self.name.clone(), path: path.to_owned(), nth: 0 }
    }

    fn file(&self, id: NodeId, path: &Path, access: Access) -> Box<dyn HostFile> {
        Box::new(CrashFile::new(self, id, path, access))
    }

    /// The file `path` of this root as one that a store lies in. It is made, durable and empty, if it is new.
    pub fn block_file(&self, path: &Path) -> io::Result<CrashBlockFile> {
        let id = match self.resolve(path) {
            Ok(id) => id,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                drop(self.publish(path, &NewFile { content: &[], perm: 0o644, owner: None, durable: true })?);
                self.sync(SyncTarget::Dir(path.parent().unwrap_or(Path::new(""))))?;
                self.resolve(path)?
            }
            Err(e) => return Err(e),
        };
        Ok(CrashBlockFile { file: CrashFile::new(self, id, path, Access::Write) })
    }
}

impl HostDir for CrashDir {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        let id = self.world.look(|disk| {
            let id = self.find(disk, path)?;
            disk.content(id)?;
            Ok(id)
        })?;
        Ok(self.file(id, path, access))
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        let (dir, name) = self.parent(path)?;
        let owner = new.owner.unwrap_or_else(crate::own_caller);
        let content = new.content.to_vec();
        let call = Call::Publish { dir, name, content, perm: new.perm, owner, durable: new.durable };
        let sync = new.durable.then(|| self.sync_call(SyncKind::Publish, path));
        match self.world.call(call, sync)? {
            Reply::Made(id) => Ok(self.file(id, path, Access::Write)),
            Reply::Done => Err(invalid()),
        }
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        self.world.look(|disk| disk.attr(self.find(disk, path)?))
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        let id = self.resolve(path)?;
        self.world.call(Call::SetAttr { id, set: *set }, None).map(drop)
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        // Copied out, so that the sink may call the world.
        let entries: Vec<(Vec<u8>, NodeId, Kind)> = self.world.look(|disk| {
            let entries = disk.tree.entries(self.find(disk, path)?).map_err(error)?;
            Ok(entries.iter().map(|(name, &id)| (name.clone(), id, disk.tree.nodes[&id].attr.kind)).collect())
        })?;
        for (name, id, kind) in &entries {
            sink(HostEntry { name, ino: *id, kind: Some(*kind) });
        }
        Ok(())
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let owner = owner.unwrap_or_else(crate::own_caller);
        self.world.call(Call::MakeDir { dir, name, perm, owner }, None).map(drop)
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.world.call(Call::Remove { dir, name, kind }, None).map(drop)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        let (dir, name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        self.world.call(Call::Rename { dir, name, new_dir, new_name, flags }, None).map(drop)
    }

    fn incarnation(&self) -> Option<[u8; 16]> {
        Some(u128::from(self.world.power_cuts()).to_le_bytes())
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        let (call, sync) = match target {
            SyncTarget::Dir(path) => (Call::SyncDir { id: self.resolve(path)? }, self.sync_call(SyncKind::Dir, path)),
            SyncTarget::All => (Call::SyncAll { root: self.root }, self.sync_call(SyncKind::All, Path::new(""))),
        };
        self.world.call(call, Some(sync)).map(drop)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.world.look(|disk| {
            Ok(StatFs {
                block_size: 4096,
                blocks: 1 << 30,
                blocks_free: 1 << 29,
                blocks_available: 1 << 29,
                files: 1 << 30,
                files_free: (1 << 30) - disk.tree.nodes.len() as u64,
                name_len_max: NAME_LEN_MAX_BYTES as u32,
            })
        })
    }
}

/// An open file of a [`CrashDir`].
struct CrashFile {
    dir: CrashDir,
    id: NodeId,
    path: PathBuf,
    access: Access,
    handle: u64,
}

impl CrashFile {
    fn new(dir: &CrashDir, id: NodeId, path: &Path, access: Access) -> CrashFile {
        CrashFile { dir: dir.clone(), id, path: path.to_owned(), access, handle: dir.world.new_handle() }
    }

    fn change(&self, call: Call) -> io::Result<()> {
        if self.access == Access::Read {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.dir.world.call(call, None).map(drop)
    }
}

impl HostFile for CrashFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.dir.world.look(|disk| Ok(disk.content(self.id)?.read_at(offset, buf)))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(Call::Write { id: self.id, offset, bytes: bytes.to_vec() })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Call::SetLen { id: self.id, len })
    }

    fn stat(&self) -> io::Result<Attr> {
        self.dir.world.look(|disk| disk.attr(self.id))
    }

    fn set_attr(&self, set: &SetAttr) -> io::Result<()> {
        let set = SetAttr { size: None, ..*set };
        self.dir.world.call(Call::SetAttr { id: self.id, set }, None).map(drop)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        let kind = if data_only { SyncKind::FileData } else { SyncKind::File };
        let sync = self.dir.sync_call(kind, &self.path);
        self.dir.world.call(Call::SyncFile { id: self.id, data_only }, Some(sync)).map(drop)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(Call::Punch { id: self.id, offset, len })
    }

    /// Always for this handle alone.
    fn try_lock(&self, _alone: bool) -> io::Result<bool> {
        Ok(self.dir.world.lock(self.id, self.handle))
    }
}

impl Drop for CrashFile {
    fn drop(&mut self) {
        self.dir.world.unlock(self.id, self.handle);
    }
}

/// A file of a [`CrashDir`] that a store lies in.
pub struct CrashBlockFile {
    file: CrashFile,
}

impl BlockFile for CrashBlockFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.dir.world.look(|disk| Ok(disk.content(self.file.id)?.live.len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync(true)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        HostFile::punch(&self.file, offset, len)
    }

    /// Changes nothing that can be seen, so a crash has nothing to take; and the disk of a world is never full.
    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<()> {
        self.file.dir.world.look(|_| Ok(()))
    }

    fn try_lock(&self) -> io::Result<bool> {
        HostFile::try_lock(&self.file, true)
    }
}
