//! Files of a build: those without a name, which go with the process however it ends, and the one that gets a name when it is
//! complete.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::{Errno, retry_on_intr};

/// Names of a tree are nobody else's business.
const PERM: Mode = Mode::from_raw_mode(0o600);

/// A new file in `folder` without a name.
pub(crate) fn unnamed(folder: &Path) -> io::Result<File> {
    let dir = open_dir(folder)?;
    if let Some(file) = unnamed_in(&dir)? {
        return Ok(file);
    }
    let (file, name) = named_in(&dir)?;
    unlinkat(&dir, &name, AtFlags::empty())?;
    Ok(file)
}

fn open_dir(folder: &Path) -> io::Result<File> {
    // The empty path is what the parent of a plain name is.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(retry_on_intr(|| openat(CWD, folder, flags, Mode::empty()))?.into())
}

/// `None` where the host has no files without a name.
fn unnamed_in(dir: &File) -> io::Result<Option<File>> {
    match retry_on_intr(|| openat(dir, c".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, PERM)) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(e) if lacks_feature(e) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn named_in(dir: &File) -> io::Result<(File, OsString)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let name = temporary_name();
        match retry_on_intr(|| openat(dir, &name, flags, PERM)) {
            Ok(fd) => return Ok((fd.into(), name)),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// `EISDIR` is how a kernel without `O_TMPFILE` reads it; `EPERM` and `EXDEV` are how some filesystems refuse to link such a file.
fn lacks_feature(e: Errno) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::INVAL | Errno::ISDIR | Errno::NOSYS | Errno::PERM | Errno::XDEV)
}

/// Seldom taken; `EXCL` decides.
fn temporary_name() -> OsString {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let (count, id) = (COUNTER.fetch_add(1, Relaxed), std::process::id());
    let time = adit_core::types::Timestamp::now().as_nanos();
    let mixed = xxhash_rust::xxh3::xxh3_64(format!("{count} {id} {time}").as_bytes());
    format!(".adit-{mixed:016x}.tmp").into()
}

/// A file that is being written, and appears under its name when it is complete. Without that it leaves nothing.
pub(crate) struct NewFile {
    file: File,
    dir: File,
    name: OsString,
    /// What it is called meanwhile, where the host wants a name.
    temporary: Option<OsString>,
}

impl NewFile {
    /// A file that is to be at `path`.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let dir = open_dir(path.parent().unwrap_or(Path::new(".")))?;
        let (file, temporary) = match unnamed_in(&dir)? {
            Some(file) => (file, None),
            None => named_in(&dir).map(|(file, name)| (file, Some(name)))?,
        };
        Ok(NewFile { file, dir, name, temporary })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes it durable under its name, in place of what has that name.
    pub fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if self.temporary.is_none() {
            self.link()?;
        }
        if let Some(temporary) = &self.temporary {
            renameat(&self.dir, temporary, &self.dir, &self.name)?;
            self.temporary = None;
        }
        self.dir.sync_all()
    }

    /// Gives a file without a name a temporary one: only a rename puts it in place of another.
    fn link(&mut self) -> io::Result<()> {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        loop {
            let name = temporary_name();
            let linked = match linkat(CWD, &*link, &self.dir, &name, AtFlags::SYMLINK_FOLLOW) {
                // No /proc. Another way, for which a capability is needed.
                Err(Errno::NOENT) => linkat(&self.file, c"", &self.dir, &name, AtFlags::EMPTY_PATH),
                other => other,
            };
            match linked {
                Ok(()) => self.temporary = Some(name),
                Err(Errno::EXIST) => continue,
                Err(e) if e == Errno::NOENT || lacks_feature(e) => self.copy()?,
                Err(e) => return Err(e.into()),
            }
            return Ok(());
        }
    }

    /// Where no way leads to a name: all of it once more.
    fn copy(&mut self) -> io::Result<()> {
        let (mut file, name) = named_in(&self.dir)?;
        let mut from = std::mem::replace(&mut self.file, file.try_clone()?);
        self.temporary = Some(name);
        io::Seek::rewind(&mut from)?;
        io::copy(&mut from, &mut file)?;
        file.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // What failed before is what is reported.
            let _ = unlinkat(&self.dir, temporary, AtFlags::empty());
        }
    }
}
