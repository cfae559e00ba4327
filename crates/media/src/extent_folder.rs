//! Objects with numbers, as files in a folder of any [`HostDir`].
//!
//! [`ExtentFolder`] has a file for each object, at most 1024 of them in a directory of their own, and one more for the label.
//! A sync covers the files that were written since the last one and the directories that new ones lie in; of a directory that
//! an earlier process left nothing is known, so the first sync of what lies there covers it too.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::media::{ExtentObjects, HostDir, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Kind};
use parking_lot::Mutex;

#[cfg(test)]
mod tests;

/// The file that holds the label.
const LABEL_NAME: &str = "label";
/// Longest label, in bytes.
const LABEL_LEN_MAX_BYTES: usize = 1024;
/// Objects whose numbers differ in these bits only share a directory.
const SHARD_BITS: u32 = 10;
/// Most files that are kept open to be read, and most that wait for a sync.
const OPEN_MAX: usize = 128;
/// From this length on a write starts to go to the disk at once.
const WRITEBACK_MIN_LEN: usize = 256 << 10;

type File = Arc<dyn HostFile>;

#[derive(Default)]
struct State {
    /// Open files, with the time of their last use.
    open: BTreeMap<u32, (File, u64)>,
    clock: u64,
    /// Written since the last sync.
    unsynced: BTreeMap<u32, File>,
    /// Directories of objects that were written, whose entries may not be durable.
    unsynced_shards: BTreeSet<u32>,
    /// Directories that were synced since an object was made in them.
    synced_shards: BTreeSet<u32>,
    /// Whether the folder itself was synced since a directory was made in it.
    top_is_synced: bool,
    /// How many are making a name at this moment: of a sync meanwhile nobody knows whether it covers that.
    making: u32,
}

/// A folder of objects. Locking: one lock, not held while anything is read, written or synced.
pub struct ExtentFolder {
    host: Arc<dyn HostDir>,
    folder: PathBuf,
    access: Access,
    label: File,
    file_perm: u16,
    dir_perm: u16,
    state: Mutex<State>,
    /// Syncs go one after the other, so that none returns while another is at work on what it is to cover.
    syncing: Mutex<()>,
    failed: AtomicBool,
}

fn shard_of(object: u32) -> u32 {
    object >> SHARD_BITS
}

fn shard_name(shard: u32) -> String {
    format!("{shard:06x}")
}

impl ExtentFolder {
    /// Makes the folder `name` in `host`, durably, with a label. Its files get the permissions `perm`, its directories those
    /// with the right to pass for whoever may read. `AlreadyExists` if the name is taken.
    pub fn create(host: Arc<dyn HostDir>, name: &str, perm: u16, label: &[u8]) -> io::Result<ExtentFolder> {
        let folder = PathBuf::from(name);
        host.make_dir(&folder, perm | (perm & 0o444) >> 2, None)?;
        let new = NewFile { content: label, perm, owner: None, durable: true };
        drop(host.publish(&folder.join(LABEL_NAME), &new)?);
        host.sync(SyncTarget::Dir(&folder))?;
        host.sync(SyncTarget::Dir(Path::new("")))?;
        ExtentFolder::open(host, name, Access::Write)
    }

    /// Opens the folder `name` in `host`. `NotFound` if there is none, or it has no label.
    pub fn open(host: Arc<dyn HostDir>, name: &str, access: Access) -> io::Result<ExtentFolder> {
        let folder = PathBuf::from(name);
        let label: File = Arc::from(host.open(&folder.join(LABEL_NAME), access)?);
        let (file_perm, dir_perm) = (label.stat()?.perm, host.stat(&folder)?.perm);
        let (state, syncing, failed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Ok(ExtentFolder { host, folder, access, label, file_perm, dir_perm, state, syncing, failed })
    }

    /// The names of an object's directory and file.
    #[must_use]
    pub fn names(object: u32) -> (String, String) {
        (shard_name(shard_of(object)), format!("{object:08x}"))
    }

    /// The object that a directory and a file in it with these names are; `None` for names that are not ours.
    #[must_use]
    pub fn object_of(dir: &[u8], file: &[u8]) -> Option<u32> {
        let shard = number(dir, 6)?;
        number(file, 8).filter(|object| shard_of(*object) == shard)
    }

    fn shard_path(&self, shard: u32) -> PathBuf {
        self.folder.join(shard_name(shard))
    }

    fn path(&self, object: u32) -> PathBuf {
        let (dir, file) = ExtentFolder::names(object);
        self.folder.join(dir).join(file)
    }

    /// The file of an object; `NotFound` if there is none.
    fn file(&self, object: u32) -> io::Result<File> {
        {
            let state = &mut *self.state.lock();
            state.clock += 1;
            if let Some((file, used)) = state.open.get_mut(&object) {
                *used = state.clock;
                return Ok(file.clone());
            }
        }
        let file: File = Arc::from(self.host.open(&self.path(object), self.access)?);
        Ok(self.keep(object, file))
    }

    /// Keeps a file open, in place of the one that was used least lately if there are many.
    fn keep(&self, object: u32, file: File) -> File {
        let state = &mut *self.state.lock();
        if state.open.len() >= OPEN_MAX
            && let Some(oldest) = state.open.iter().min_by_key(|(_, (_, used))| *used).map(|(object, _)| *object)
        {
            state.open.remove(&oldest);
        }
        state.clock += 1;
        state.open.insert(object, (file.clone(), state.clock));
        file
    }

    /// The file of an object, which is made if there is none.
    fn file_to_write(&self, object: u32) -> io::Result<File> {
        match self.file(object) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        {
            let mut state = self.state.lock();
            state.making += 1;
            state.synced_shards.remove(&shard_of(object));
        }
        let made = self.make(object);
        self.state.lock().making -= 1;
        match made {
            Ok(file) => Ok(self.keep(object, Arc::from(file))),
            // Somebody was faster.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.file(object),
            Err(e) => Err(e),
        }
    }

    fn make(&self, object: u32) -> io::Result<Box<dyn HostFile>> {
        let new = NewFile { content: &[], perm: self.file_perm, owner: None, durable: false };
        match self.host.publish(&self.path(object), &new) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        self.state.lock().top_is_synced = false;
        match self.host.make_dir(&self.shard_path(shard_of(object)), self.dir_perm, None) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        self.host.publish(&self.path(object), &new)
    }

    /// Syncs files; a failure is remembered, for the host tells it once.
    fn sync_files(&self, files: impl IntoIterator<Item = File>) -> io::Result<()> {
        for file in files {
            file.sync(true).inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    fn check_synced(&self) -> io::Result<()> {
        match self.failed.load(Ordering::Relaxed) {
            true => Err(io::Error::other("an earlier sync failed")),
            false => Ok(()),
        }
    }

    fn sync_dirs(&self, shards: &BTreeSet<u32>, top: bool) -> io::Result<()> {
        for shard in shards {
            self.host.sync(SyncTarget::Dir(&self.shard_path(*shard)))?;
        }
        if top { self.host.sync(SyncTarget::Dir(&self.folder)) } else { Ok(()) }
    }
}

/// The number that a name of so many digits is.
fn number(name: &[u8], digits: usize) -> Option<u32> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() == digits)?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.bytes().all(is_digit).then(|| u32::from_str_radix(text, 16).ok())?
}

impl ExtentObjects for ExtentFolder {
    fn read_at(&self, object: u32, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file(object)?.read_at(offset, buf)
    }

    fn write_at(&self, object: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_synced()?;
        let file = self.file_to_write(object)?;
        file.write_at(offset, bytes)?;
        if bytes.len() >= WRITEBACK_MIN_LEN {
            file.start_writeback(offset, bytes.len() as u64);
        }
        let waiting = {
            let mut state = self.state.lock();
            state.unsynced.insert(object, file);
            if !state.synced_shards.contains(&shard_of(object)) {
                state.unsynced_shards.insert(shard_of(object));
            }
            state.unsynced.len()
        };
        if waiting > OPEN_MAX {
            // Whoever syncs meanwhile waits for these.
            let _one_at_a_time = self.syncing.lock();
            let files = std::mem::take(&mut self.state.lock().unsynced);
            self.sync_files(files.into_values())?;
        }
        Ok(())
    }

    fn host_room_bytes(&self) -> u64 {
        self.host.statfs().map_or(u64::MAX, |host| host.room_bytes())
    }

    fn sync(&self) -> io::Result<()> {
        let _one_at_a_time = self.syncing.lock();
        self.check_synced()?;
        let (files, shards, top) = {
            let state = &mut *self.state.lock();
            let shards = std::mem::take(&mut state.unsynced_shards);
            let top = !shards.is_empty() && !state.top_is_synced;
            if state.making == 0 {
                // Whoever makes one from here on says so again.
                state.synced_shards.extend(&shards);
                state.top_is_synced |= top;
            }
            (std::mem::take(&mut state.unsynced), shards, top)
        };
        self.sync_files(files.into_values())?;
        self.sync_dirs(&shards, top).inspect_err(|_| self.failed.store(true, Ordering::Relaxed))
    }

    fn punch(&self, object: u32, offset: u64, len: u64) -> io::Result<()> {
        match self.file(object) {
            Ok(file) => file.punch(offset, len),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn remove(&self, object: u32) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.open.remove(&object);
            state.unsynced.remove(&object);
        }
        match self.host.remove(&self.path(object), Kind::File) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn list(&self) -> io::Result<Vec<u32>> {
        let mut shards = Vec::new();
        self.host.list(&self.folder, &mut |entry| shards.extend(number(entry.name, 6)))?;
        let mut objects = Vec::new();
        for dir in shards.into_iter().map(shard_name) {
            // What is not one of ours is left alone.
            let mut sink = |name: &[u8]| objects.extend(ExtentFolder::object_of(dir.as_bytes(), name));
            match self.host.list(&self.folder.join(&dir), &mut |entry| sink(entry.name)) {
                Err(e) if e.kind() != io::ErrorKind::NotADirectory => return Err(e),
                _ => {}
            }
        }
        Ok(objects)
    }

    fn label(&self) -> io::Result<Vec<u8>> {
        let mut label = vec![0; LABEL_LEN_MAX_BYTES];
        let len = self.label.read_at(0, &mut label)?;
        label.truncate(len);
        Ok(label)
    }

    fn write_label(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.label.write_at(offset, bytes)?;
        self.label.sync(true)
    }

    fn try_lock(&self, alone: bool) -> io::Result<bool> {
        self.label.try_lock(alone)
    }
}
