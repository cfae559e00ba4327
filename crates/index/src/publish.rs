//! Files that appear whole: written without a name, made durable, and put in the place of what had their name before.
//!
//! Where the host has files without a name, a kill leaves nothing while one is written. Only between a temporary name and the
//! rename, and on other hosts all along, there is `.adit-index-*.tmp` in the folder. It is locked for as long as its process
//! lives, so whoever publishes the next file there can tell what a kill has left, and removes it.
//!
//! What is new is for its owner alone. What takes the place of another file has that one's permissions and owner, as if that had been
//! written.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use adit_core::error::{FsError, Result};
use adit_core::host;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, linkat, openat, renameat, unlinkat};
use rustix::io::{Errno, retry_on_intr};

/// Names of a tree are nobody else's business.
const PERM: Mode = Mode::from_raw_mode(0o600);
/// What temporary names begin and end with; between them are 16 hexadecimal digits.
const TEMPORARY: (&[u8], &[u8]) = (b".adit-index-", b".tmp");

/// So long the lock of a folder is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Whether a file may take the place of what is there. An error is that of whoever publishes it.
pub type MayReplace<'a> = dyn FnMut() -> Result<()> + 'a;

/// A new file in `folder` that never has a name, or none any more.
pub(crate) fn unnamed(folder: &Path) -> io::Result<File> {
    let dir = File::from(host::open_folder(folder)?);
    if let Some(file) = unnamed_in(&dir)? {
        return Ok(file);
    }
    let (file, name) = named_in(&dir)?;
    unlinkat(&dir, &name, AtFlags::empty())?;
    Ok(file)
}

/// Whether a file of this name is one that is being written, or was when its process was killed.
pub fn is_temporary(name: &[u8]) -> bool {
    let (before, after) = TEMPORARY;
    let digits = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    digits.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// `None` where the host has no files without a name.
fn unnamed_in(dir: &File) -> io::Result<Option<File>> {
    match retry_on_intr(|| openat(dir, c".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, PERM)) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(e) if lacks_feature(e) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// A new file with a temporary name, locked.
fn named_in(dir: &File) -> io::Result<(File, OsString)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let name = temporary_name();
        let file: File = match retry_on_intr(|| openat(dir, &name, flags, PERM)) {
            Ok(fd) => fd.into(),
            Err(Errno::EXIST) => continue,
            Err(e) => return Err(e.into()),
        };
        lock(&file)?;
        // Before it was locked, somebody may have taken it for one that a kill has left.
        if file.metadata()?.nlink() > 0 {
            return Ok((file, name));
        }
    }
}

/// Locks a file of this process until it is closed. Where the host has no locks, nobody else gets one either.
fn lock(file: &File) -> io::Result<()> {
    match retry_on_intr(|| flock(file, FlockOperation::LockExclusive)) {
        Err(e) if !lacks_feature(e) && e != Errno::NOLCK => Err(e.into()),
        _ => Ok(()),
    }
}

/// Locks an open folder, unless somebody else has it locked for too long. Nobody who publishes has it for longer than a look at what is there, and
/// without the lock it would be published all the same, where the host has none.
fn lock_for_a_while(folder: &File) {
    let until = Instant::now() + LOCK_WAIT;
    while let Err(Errno::WOULDBLOCK) = retry_on_intr(|| flock(folder, FlockOperation::NonBlockingLockExclusive)) {
        if Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
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
    format!(".adit-index-{mixed:016x}.tmp").into()
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
        let dir = File::from(host::open_folder(path.parent().unwrap_or(Path::new(".")))?);
        let (file, temporary) = match unnamed_in(&dir)? {
            Some(file) => (file, None),
            None => named_in(&dir).map(|(file, name)| (file, Some(name)))?,
        };
        Ok(NewFile { file, dir, name, temporary })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes it durable under its name, in place of what has that name. What kills have left beside it goes.
    pub fn publish(mut self) -> io::Result<()> {
        self.settle()?;
        self.put()
    }

    /// As [`NewFile::publish`], if `may` says so at the last moment: what is published in this folder so waits for that.
    ///
    /// # Errors
    /// What `may` says; what `failed` makes of the host's.
    pub fn publish_if(mut self, may: &mut MayReplace<'_>, failed: &dyn Fn(io::Error) -> FsError) -> Result<()> {
        self.settle().map_err(failed)?;
        // Until the folder is closed, which is with this file.
        lock_for_a_while(&self.dir);
        may()?;
        self.put().map_err(failed)
    }

    /// Makes it durable under a temporary name.
    fn settle(&mut self) -> io::Result<()> {
        self.become_as_before();
        self.file.sync_all()?;
        if self.temporary.is_none() {
            self.link()?;
        }
        Ok(())
    }

    fn put(mut self) -> io::Result<()> {
        if let Some(temporary) = &self.temporary {
            renameat(&self.dir, temporary, &self.dir, &self.name)?;
            self.temporary = None;
        }
        host::sync_entries(&self.dir)?;
        self.sweep();
        Ok(())
    }

    /// Takes over permissions and owner of the file that it is put in the place of, if there is one. Where the host does not let that be
    /// done, it stays for fewer people.
    fn become_as_before(&self) {
        let Ok(before) = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) else { return };
        let Ok(own) = self.file.metadata() else { return };
        if rustix::fs::FileType::from_raw_mode(before.st_mode) != rustix::fs::FileType::RegularFile {
            return;
        }
        let group = Some(before.st_gid).filter(|group| *group != own.gid());
        let user = Some(before.st_uid).filter(|user| *user != own.uid());
        // Who may not give a file away may still be in its group.
        let is_of_group = fchown(&self.file, user, group).is_ok() || fchown(&self.file, None, group).is_ok();
        let kept = if is_of_group { 0o777 } else { 0o707 };
        let _ = self.file.set_permissions(std::fs::Permissions::from_mode(before.st_mode & kept));
    }

    /// Gives a file without a name a temporary one: only a rename puts it in place of another.
    fn link(&mut self) -> io::Result<()> {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        lock(&self.file)?;
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
        self.become_as_before();
        file.sync_all()
    }

    /// Removes what kills have left in the folder: temporary names whose files nobody has locked. What cannot be removed stays for the next one.
    fn sweep(&self) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !is_temporary(name.to_bytes()) {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let Ok(file) = openat(&self.dir, name, flags, Mode::empty()) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = unlinkat(&self.dir, name, AtFlags::empty());
            }
        }
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

/// What has a name, to be known again: another file that is put there is another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InPlace(Option<(u64, u64, i64, i64)>);

impl InPlace {
    /// What is at `path` now.
    ///
    /// # Errors
    /// The host's, but that nothing is there.
    pub fn at(path: &Path) -> io::Result<InPlace> {
        match path.symlink_metadata() {
            Ok(meta) => Ok(InPlace(Some((meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec())))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(InPlace(None)),
            Err(e) => Err(e),
        }
    }

    /// Whether there is nothing.
    pub fn is_nothing(self) -> bool {
        self.0.is_none()
    }
}

/// Whether `path` names something in the folder that has these numbers: device and inode.
pub fn is_in(path: &Path, folder: (u64, u64)) -> bool {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parent.metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == folder)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_as_open_as_the_one_whose_place_it_takes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mode = || path.metadata().unwrap().mode() & 0o7777;
        NewFile::create(&path).unwrap().publish().unwrap();
        assert_eq!(mode(), 0o600, "new");
        for kept in [0o644, 0o640, 0o600, 0o444, 0o777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(kept)).unwrap();
            NewFile::create(&path).unwrap().publish().unwrap();
            assert_eq!(mode(), kept, "as before");
            // The way of hosts that give a file no name in another way.
            let mut file = NewFile::create(&path).unwrap();
            file.copy().unwrap();
            file.publish().unwrap();
            assert_eq!(mode(), kept, "copied");
        }
        // What makes a program another user's is not for an index.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        NewFile::create(&path).unwrap().publish().unwrap();
        assert_eq!(mode(), 0o755);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), Some(12_346)).unwrap();
            NewFile::create(&path).unwrap().publish().unwrap();
            let meta = path.metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid()), (12_345, 12_346));
        }
    }

    #[test]
    fn what_a_kill_has_left_goes_and_what_is_being_written_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at(".adit-index-0123456789abcdef.tmp"), "left").unwrap();
        fs::write(at(".adit-index-0123456789abcdef.tmp.txt"), "no such name").unwrap();
        fs::write(at(".adit-index-0123.tmp"), "nor this").unwrap();
        let folder = File::open(dir.path()).unwrap();
        let (held, name) = named_in(&folder).unwrap();
        NewFile::create(&at("out")).unwrap().publish().unwrap();
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let mut expected: Vec<OsString> =
            vec![".adit-index-0123.tmp".into(), ".adit-index-0123456789abcdef.tmp.txt".into(), "out".into(), name];
        expected.sort();
        assert_eq!(names, expected);
        drop(held);
        NewFile::create(&at("out")).unwrap().publish().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
