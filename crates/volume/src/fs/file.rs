//! Open files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::store::{Store, StoreFile};
use adit_core::types::{Access, AllocateMode, Attr, FileName, Ino};
use adit_core::{ErrorKind, FsError, Result};
use parking_lot::Mutex;

use super::{Fs, Last, Shared, named};

/// How a file is opened. By default to read, if it is there.
#[derive(Clone, Copy, Debug)]
pub struct OpenFlags {
    /// To read it.
    pub read: bool,
    /// To write it.
    pub write: bool,
    /// To write at its end, wherever that is then.
    pub append: bool,
    /// Empties it.
    pub truncate: bool,
    /// Makes it if it is absent.
    pub create: bool,
    /// Makes it, and fails if it is there.
    pub create_new: bool,
    /// Permission bits of what is made, without the umask.
    pub perm: u16,
}

impl Default for OpenFlags {
    fn default() -> Self {
        OpenFlags {
            read: true,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            perm: 0o666,
        }
    }
}

/// An open file. It stays usable when its name goes, until it is dropped.
///
/// Its methods take offsets and leave its position alone; the traits of [`std::io`] go by the position, for [`File`] and `&File`.
pub struct File {
    shared: Arc<Shared>,
    file: Arc<dyn StoreFile>,
    ino: Ino,
    flags: OpenFlags,
    position: Mutex<u64>,
}

impl Fs {
    /// Opens a file to read.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, &OpenFlags::default())
    }

    /// Opens a file to read and write, empty, and makes it if it is absent.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, &OpenFlags { write: true, create: true, truncate: true, ..OpenFlags::default() })
    }

    /// Opens a file. `NotFound`, `Exists`, `IsDirectory`; `InvalidInput` of what has no content; `ReadOnly` in a snapshot.
    pub fn open_with(&self, path: impl AsRef<Path>, flags: &OpenFlags) -> Result<File> {
        let path = path.as_ref();
        let open = || loop {
            match self.open_once(path, flags) {
                // Another one made it, or removed it, in between.
                Err(e) if e.kind() == ErrorKind::Exists && flags.create && !flags.create_new => {}
                Err(e) if e.kind() == ErrorKind::Stale => {}
                opened => return opened,
            }
        };
        open().map_err(named("open", path))
    }

    fn open_once(&self, path: &Path, flags: &OpenFlags) -> Result<File> {
        let flags = OpenFlags { write: flags.write || flags.append, ..*flags };
        let spot = self.spot(path, if flags.create_new { Last::Keep } else { Last::Follow })?;
        let store = &self.shared.store;
        let (ino, file) = match spot.found {
            Some(_) if flags.create_new => return Err(ErrorKind::Exists.into()),
            Some((ino, _)) => (Ino(ino), store.open(Ino(ino), if flags.write { Access::Write } else { Access::Read })?),
            None if spot.slash && (flags.create || flags.create_new) => return Err(ErrorKind::IsDirectory.into()),
            None if flags.create || flags.create_new => {
                let name = FileName::new(&spot.name)?;
                let (attr, file) = store.create(Ino(spot.dir), name, &self.new_node(flags.perm))?;
                self.unknow(attr.ino);
                (attr.ino, file)
            }
            None => return Err(ErrorKind::NotFound.into()),
        };
        if flags.truncate && spot.found.is_some() {
            if !flags.write {
                return Err(FsError::from(ErrorKind::InvalidInput).because("it is to be emptied, but not written"));
            }
            file.set_len(0)?;
        }
        Ok(File { shared: self.shared.clone(), file, ino, flags, position: Mutex::new(0) })
    }

    /// Makes a file in the folder for temporary files, whose name begins with `prefix`; its path, and the file.
    pub fn create_temp(&self, prefix: &str) -> Result<(PathBuf, File)> {
        let flags = OpenFlags { write: true, create_new: true, perm: 0o600, ..OpenFlags::default() };
        loop {
            let mut tail = [0; 8];
            getrandom::fill(&mut tail).map_err(|e| FsError::new(ErrorKind::Io).because(e.to_string()))?;
            let path = self.temp_dir().join(format!("{prefix}{:016x}", u64::from_le_bytes(tail)));
            match self.open_with(&path, &flags) {
                Err(e) if e.kind() == ErrorKind::Exists => {}
                made => return made.map(|file| (path, file)),
            }
        }
    }
}

impl File {
    /// Its inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Its attributes.
    pub fn metadata(&self) -> Result<Attr> {
        self.shared.store.getattr(self.ino)
    }

    /// Its length in bytes.
    pub fn len(&self) -> Result<u64> {
        self.file.len()
    }

    /// Whether it has no content.
    pub fn is_empty(&self) -> Result<bool> {
        self.file.is_empty()
    }

    fn check(&self, allowed: bool, op: &'static str) -> Result<()> {
        let why = "the file was not opened for it";
        if allowed { Ok(()) } else { Err(FsError::new(ErrorKind::PermissionDenied).on(op, "a file").because(why)) }
    }

    /// Reads at `offset`; short only at the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check(self.flags.read, "read")?;
        self.file.read_at(offset, buf)
    }

    /// At most `len` bytes from `offset` on; fewer only at the end of the file.
    pub fn read_range(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        // Not more than there is, whatever was asked for.
        let there = self.len()?.saturating_sub(offset);
        let mut buf = vec![0; usize::try_from(there).unwrap_or(usize::MAX).min(len)];
        let len = self.read_at(offset, &mut buf)?;
        buf.truncate(len);
        Ok(buf)
    }

    /// Writes all of `bytes` at `offset`, or at the end if it was opened to append.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.put(offset, bytes).map(drop)
    }

    /// Where the end of what was written is.
    fn put(&self, offset: u64, bytes: &[u8]) -> Result<u64> {
        self.check(self.flags.write, "write")?;
        if self.flags.append {
            return self.shared.store.append(self.ino, bytes);
        }
        self.file.write_at(&[(offset, bytes)])?;
        Ok(offset + bytes.len() as u64)
    }

    /// Sets the length. What is added reads as zeros, and takes no room.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.check(self.flags.write, "truncate")?;
        self.file.set_len(len)
    }

    /// Makes a hole of a range: it reads as zeros, and takes no room.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.check(self.flags.write, "punch")?;
        self.file.allocate(offset, len, AllocateMode::PunchHole)
    }

    /// The first offset from `offset` on that is in no hole.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        match self.file.seek_data(offset) {
            Err(e) if e.kind() == ErrorKind::NoData => Ok(None),
            found => found.map(Some),
        }
    }

    /// The first offset from `offset` on that is in a hole, of which the end of the file is one.
    pub fn next_hole(&self, offset: u64) -> Result<u64> {
        self.file.seek_hole(offset)
    }

    /// Makes content and attributes durable, and the names that lead here.
    pub fn sync(&self) -> Result<()> {
        self.file.sync(false)
    }
}

/// As the standard library has errors: its kind, with the error as the source.
fn io_error(e: FsError) -> io::Error {
    let kind = match e.kind() {
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        ErrorKind::PermissionDenied | ErrorKind::NotPermitted => io::ErrorKind::PermissionDenied,
        ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
        ErrorKind::NoSpace => io::ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded => io::ErrorKind::QuotaExceeded,
        ErrorKind::FileTooLarge => io::ErrorKind::FileTooLarge,
        ErrorKind::Corrupt => io::ErrorKind::InvalidData,
        ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
        ErrorKind::Stale => io::ErrorKind::StaleNetworkFileHandle,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, e)
}

impl io::Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let len = self.read_at(*position, buf).map_err(io_error)?;
        *position += len as u64;
        Ok(len)
    }
}

impl io::Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        *position = self.put(*position, bytes).map_err(io_error)?;
        Ok(bytes.len())
    }

    /// Nothing is held back: see the module's notes on durability.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for &File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            io::SeekFrom::Start(at) => Some(at),
            io::SeekFrom::Current(by) => position.checked_add_signed(by),
            io::SeekFrom::End(by) => self.len().map_err(io_error)?.checked_add_signed(by),
        };
        *position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(*position)
    }
}

impl io::Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl io::Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
