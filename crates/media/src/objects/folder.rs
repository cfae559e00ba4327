//! A folder of this machine as an object store: a file for each object, at the path that its key is.
//!
//! [`FolderObjects`] reaches every file through a [`HostDirectory`], so no key leads out of the folder and no symbolic link
//! is followed. An object is an unnamed file until all of it is durable; then it gets its name, and the directory is synced.
//! User metadata are extended attributes `user.adit.meta.NAME`.
//!
//! What is there need not be ours: names that are no keys, and whatever is no regular file, are passed over. Where the host
//! has no unnamed files, a kill can leave a temporary `.adit-<8 hex digits>.tmp`; no object has such a name.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use adit_core::host;
use adit_core::host::free_name::{is_temporary_name, temporary_name};
use adit_core::media::{
    Content, Fetched, HostDir, ListedObject, ObjectInfo, ObjectPage, ObjectSink, Objects, PutOptions, Stored,
    SyncTarget, Tag, check_object_key, check_object_prefix, check_user_metadata,
};
use adit_core::types::{Kind, RenameFlags};
use adit_core::{ErrorKind, FsError, Result};
use rustix::fs::{FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::HostDirectory;
use crate::host::write_all_at;
use crate::objects::wanted::Wanted;

/// What the names of extended attributes begin with that are user metadata.
const METADATA_PREFIX: &str = "user.adit.meta.";
/// Bytes that are copied from a source at a time.
const COPY_LEN_BYTES: usize = 1 << 20;
/// Bytes that are handed on at a time.
const PIECE_LEN_BYTES: u64 = 256 << 10;

/// A folder of this machine as an object store. A page of a listing reads whole directories, so ask for large ones.
///
/// Locking: none of its own; the host decides who comes first.
pub struct FolderObjects {
    host: HostDirectory,
    path: PathBuf,
}

impl FolderObjects {
    /// The object store in the folder `path`, which exists.
    pub fn open(path: &Path) -> Result<FolderObjects> {
        let host = HostDirectory::open(path).map_err(|e| {
            let missing = e.kind() == io::ErrorKind::NotFound;
            let e = FsError::from(e).on("open object store", path.display());
            if missing {
                e.because("there is no such folder; correct the path, or make it to store something there")
            } else {
                e
            }
        })?;
        Ok(FolderObjects { host, path: path.to_owned() })
    }

    /// Whether the host has attributes. `rclone mount` has none, and tells that as it would tell of a broken disk, whatever is asked about.
    fn has_attributes(&self) -> bool {
        rustix::fs::flistxattr(self.host.as_fd(), &mut [0; 0][..]) != Err(Errno::IO)
    }

    fn failed(&self, op: &'static str, key: &str, e: impl Into<FsError>) -> FsError {
        e.into().on(op, self.path.join(key).display())
    }

    fn open_object(&self, op: &'static str, key: &str) -> Result<(OwnedFd, Stat)> {
        check_object_key(key)?;
        if is_hidden(key) {
            return Err(self.failed(op, key, ErrorKind::NotFound));
        }
        let opened = self.host.open_regular(Path::new(key), OFlags::RDONLY);
        let fd = opened.map_err(|e| self.failed(op, key, absent_if_elsewhere(e)))?;
        let st = rustix::fs::fstat(&fd).map_err(|e| self.failed(op, key, io::Error::from(e)))?;
        Ok((fd, st))
    }

    /// Gives a new file its content and metadata, and makes both durable.
    fn fill(fd: &OwnedFd, content: Content<'_>, metadata: &[(&str, &str)]) -> io::Result<()> {
        match content {
            Content::Bytes(bytes) => write_all_at(fd, 0, bytes)?,
            Content::Source(source) => {
                let len = source.content_len();
                let mut buf = vec![0; COPY_LEN_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX))];
                let mut offset = 0;
                while offset < len {
                    let count = buf.len().min(usize::try_from(len - offset).unwrap_or(usize::MAX));
                    source.read_exact_at(offset, &mut buf[..count])?;
                    write_all_at(fd, offset, &buf[..count])?;
                    offset += count as u64;
                }
            }
        }
        for (name, value) in metadata {
            let name = format!("{METADATA_PREFIX}{name}");
            match rustix::fs::fsetxattr(fd, name.as_str(), value.as_bytes(), XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP) => {
                    let why = "user metadata needs extended attributes, which the filesystem of this folder has not; \
                               use a folder on another";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, why));
                }
                other => other?,
            }
        }
        Ok(retry_on_intr(|| rustix::fs::fsync(fd))?)
    }

    /// Places the object; none if there was one, and it was to be absent.
    fn place(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> io::Result<Option<Tag>> {
        let path = Path::new(key);
        let fill = |fd: &OwnedFd| FolderObjects::fill(fd, content, options.metadata);
        let fd = if options.if_absent {
            match self.host.place(path, &fill) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    return match self.host.stat(path)?.kind {
                        Kind::File => Ok(None),
                        Kind::Directory => Err(io::ErrorKind::IsADirectory.into()),
                        _ => Err(e),
                    };
                }
                placed => placed?,
            }
        } else {
            let temporary = path.with_file_name(temporary_name());
            let fd = self.host.place(&temporary, &fill)?;
            if let Err(e) = self.host.rename(&temporary, path, RenameFlags::empty()) {
                // The first error is the one to report.
                let _ = self.host.remove(&temporary, Kind::File);
                return Err(e);
            }
            fd
        };
        self.host.sync(SyncTarget::Dir(above(path)))?;
        Ok(Some(tag_of(&rustix::fs::fstat(&fd)?)))
    }

    /// Makes the directories that an object of this key lies in, durably.
    fn make_dirs(&self, key: &str) -> io::Result<()> {
        for (at, _) in key.match_indices('/') {
            let dir = Path::new(&key[..at]);
            match self.host.make_plain_dir(dir) {
                Ok(()) => {}
                // Whoever made it may not have synced it yet.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
            self.host.sync(SyncTarget::Dir(above(dir)))?;
        }
        Ok(())
    }

    /// Adds what is in the directory `dir` (empty, or with a `/` at its end) and below it.
    fn walk(&self, dir: &str, wanted: &Wanted<'_>, found: &mut Vec<ListedObject>) -> Result<()> {
        let path = Path::new(dir.strip_suffix('/').unwrap_or(dir));
        let mut entries: Vec<(String, Option<Kind>)> = Vec::new();
        let listed = self.host.list(path, &mut |entry| {
            if let Ok(name) = std::str::from_utf8(entry.name) {
                entries.push((format!("{dir}{name}"), entry.kind));
            }
        });
        match listed {
            Err(e) if is_elsewhere(&e) => return Ok(()),
            listed => listed.map_err(|e| self.failed("list objects", dir, e))?,
        }
        for (name, kind) in &mut entries {
            if kind.is_none() {
                *kind = self.host.stat(Path::new(name.as_str())).ok().map(|attr| attr.kind);
            }
            if *kind == Some(Kind::Directory) {
                // In the order of whole keys, `a/b` comes after `a-b`.
                name.push('/');
            }
        }
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (name, kind) in entries {
            if found.len() > wanted.max {
                break;
            }
            match kind {
                Some(Kind::Directory) if wanted.may_be_below(&name) => self.walk(&name, wanted, found)?,
                Some(Kind::File) if wanted.is(&name) && check_object_key(&name).is_ok() && !is_hidden(&name) => {
                    // What may not be read is there nevertheless.
                    let opened = self.host.open_at(Path::new(&name), OFlags::PATH, Mode::empty());
                    match opened.and_then(rustix::fs::fstat).map_err(io::Error::from) {
                        Ok(st) if FileType::from_raw_mode(st.st_mode) == FileType::RegularFile => {
                            found.push(ListedObject { key: name, len: st.st_size as u64, tag: Some(tag_of(&st)) });
                        }
                        // It went meanwhile, or something else came.
                        Ok(_) => {}
                        Err(e) if is_elsewhere(&e) => {}
                        Err(e) => return Err(self.failed("list objects", &name, absent_if_elsewhere(e))),
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Whether a key is one of our temporaries.
fn is_hidden(key: &str) -> bool {
    is_temporary_name(key.rsplit('/').next().unwrap_or(key).as_bytes())
}

/// Whether an error says that there is nothing at a path, or a directory, or that a part of it is a file.
fn is_elsewhere(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory)
}

fn absent_if_elsewhere(e: io::Error) -> FsError {
    match e {
        e if is_elsewhere(&e) => ErrorKind::NotFound.into(),
        e if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            FsError::new(ErrorKind::Loop).because("a symbolic link is in the way, and none is followed here")
        }
        e => e.into(),
    }
}

/// A new content is a new file, so its number differs from that of the one before; a file that another program changes in
/// place gets another time.
fn tag_of(st: &Stat) -> Tag {
    Tag::new(format!("\"{:x}-{:x}-{:x}.{:x}\"", st.st_ino, st.st_size, st.st_mtime, st.st_mtime_nsec))
}

/// What of an object's attributes is user metadata.
fn metadata_of(fd: &OwnedFd) -> io::Result<Vec<(String, String)>> {
    // The largest that the kernel gives, so that one call does.
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::flistxattr(fd, &mut names[..]).map_err(|e| host::attribute_error(fd, e)) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        len => len?,
    };
    let mut metadata = Vec::new();
    for name in names.get(..len).unwrap_or_default().split(|b| *b == 0) {
        let Some(short) = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(METADATA_PREFIX)) else {
            continue;
        };
        let mut value = vec![0; adit_core::media::USER_METADATA_LEN_MAX_BYTES];
        let len = match rustix::fs::fgetxattr(fd, name, &mut value[..]) {
            // Larger than any of ours, or gone meanwhile: not ours.
            Err(Errno::RANGE | Errno::NODATA) => continue,
            len => len?,
        };
        value.truncate(len);
        let Ok(value) = String::from_utf8(value) else { continue };
        metadata.push((short.to_owned(), value));
    }
    metadata.sort();
    Ok(metadata)
}

impl FolderObjects {
    /// An object that is open to be read, and what is known of it; `Stale` if it has another tag than `tag`.
    fn open_tagged(&self, key: &str, tag: Option<&Tag>) -> Result<(OwnedFd, ObjectInfo)> {
        let (fd, st) = self.open_object("read object", key)?;
        let found = tag_of(&st);
        if tag.is_some_and(|tag| *tag != found) {
            return Err(self.failed("read object", key, ErrorKind::Stale));
        }
        Ok((fd, ObjectInfo { len: st.st_size as u64, tag: Some(found), ..ObjectInfo::default() }))
    }

    /// Fills `buf` from `offset`; how much of it, less only where the object ends.
    fn read_full(&self, fd: &OwnedFd, key: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut count = 0;
        while count < buf.len() {
            let Some(at) = offset.checked_add(count as u64).filter(|at| i64::try_from(*at).is_ok()) else { break };
            match rustix::io::pread(fd, &mut buf[count..], at) {
                Ok(0) => break,
                Ok(n) => count += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.failed("read object", key, io::Error::from(e))),
            }
        }
        Ok(count)
    }
}

impl Objects for FolderObjects {
    fn read_at(&self, key: &str, offset: u64, buf: &mut [u8], tag: Option<&Tag>) -> Result<Fetched> {
        let (fd, object) = self.open_tagged(key, tag)?;
        let count = self.read_full(&fd, key, offset, buf)?;
        Ok(Fetched { count, object })
    }

    fn read_through(
        &self,
        key: &str,
        offset: u64,
        len: u64,
        tag: Option<&Tag>,
        sink: &mut ObjectSink<'_>,
    ) -> Result<Fetched> {
        let (fd, object) = self.open_tagged(key, tag)?;
        let (mut count, mut buf) = (0, vec![0; len.min(PIECE_LEN_BYTES) as usize]);
        while count < len {
            let piece = &mut buf[..(len - count).min(PIECE_LEN_BYTES) as usize];
            let Some(at) = offset.checked_add(count) else { break };
            let read = self.read_full(&fd, key, at, piece)?;
            if read > 0 {
                sink(&object, &piece[..read])?;
            }
            count += read as u64;
            if read < piece.len() {
                break;
            }
        }
        Ok(Fetched { count: count as usize, object })
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        let (fd, st) = self.open_object("look at object", key)?;
        let metadata = match metadata_of(&fd) {
            Err(e) if e.raw_os_error() == Some(libc::EIO) && !self.has_attributes() => Vec::new(),
            metadata => metadata.map_err(|e| self.failed("look at object", key, e))?,
        };
        let modified =
            u64::try_from(st.st_mtime).ok().map(|secs| UNIX_EPOCH + Duration::new(secs, st.st_mtime_nsec as u32));
        Ok(ObjectInfo { len: st.st_size as u64, tag: Some(tag_of(&st)), metadata, modified })
    }

    fn put(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored> {
        check_object_key(key)?;
        check_user_metadata(options.metadata)?;
        if is_hidden(key) {
            let e = FsError::new(ErrorKind::InvalidInput).because("names like this one are kept for temporaries");
            return Err(self.failed("store object", key, e));
        }
        // What is there already need not be read to be left alone.
        if options.if_absent
            && let Ok((_, st)) = self.open_object("store object", key)
        {
            return Ok(Stored::AlreadyThere { len: st.st_size as u64 });
        }
        let placed = match self.place(key, content, options) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.make_dirs(key).and_then(|()| self.place(key, content, options))
            }
            placed => placed,
        };
        match placed {
            Ok(Some(tag)) => Ok(Stored::New(Some(tag))),
            Ok(None) => {
                let (_, st) = self.open_object("store object", key)?;
                Ok(Stored::AlreadyThere { len: st.st_size as u64 })
            }
            Err(e) => Err(self.failed("store object", key, e)),
        }
    }

    fn delete(&self, key: &str) -> Result<()> {
        check_object_key(key)?;
        match self.host.remove(Path::new(key), Kind::File) {
            Err(e) if !is_elsewhere(&e) => Err(self.failed("delete object", key, e)),
            _ => Ok(()),
        }
    }

    fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ObjectPage> {
        check_object_prefix(prefix)?;
        if max == 0 {
            return Ok(ObjectPage { objects: Vec::new(), more: true });
        }
        let dir = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]);
        let mut objects = Vec::new();
        self.walk(dir, &Wanted { prefix, after, max }, &mut objects)?;
        let more = objects.len() > max;
        objects.truncate(max);
        Ok(ObjectPage { objects, more })
    }

    fn if_absent_is_atomic(&self) -> Option<bool> {
        Some(true)
    }

    fn describe(&self) -> String {
        format!("folder {}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use adit_testkit::objects::check_objects;

    use super::*;

    fn folder() -> (tempfile::TempDir, FolderObjects) {
        let folder = tempfile::tempdir().unwrap();
        let objects = FolderObjects::open(folder.path()).unwrap();
        (folder, objects)
    }

    fn put(objects: &FolderObjects, key: &str) -> Result<Stored> {
        objects.put(key, Content::Bytes(b"new"), &PutOptions::default())
    }

    #[test]
    fn it_passes_the_suite() {
        let (_folder, objects) = folder();
        check_objects(&objects);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let Err(e) = FolderObjects::open(Path::new("/no/such/folder")) else { panic!("opened") };
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.to_string().contains("/no/such/folder") && e.to_string().contains("make it"), "{e}");
    }

    #[test]
    fn symbolic_links_lead_nowhere() {
        let (outside, _) = folder();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let (folder, objects) = folder();
        symlink(outside.path(), folder.path().join("dir")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
        for key in ["dir/secret", "file"] {
            let mut buf = [0; 6];
            assert_eq!(objects.read_at(key, 0, &mut buf, None).unwrap_err().kind(), ErrorKind::Loop, "{key}");
            assert_eq!(objects.head(key).unwrap_err().kind(), ErrorKind::Loop);
            assert_eq!(buf, [0; 6]);
        }
        assert!(put(&objects, "dir/new").is_err());
        // To the store there is nothing at that key, and so nothing to delete.
        objects.delete("dir/secret").unwrap();
        assert_eq!(objects.list("", None, 10).unwrap().objects, []);
        // A link where an object is to be is replaced; what it pointed to is not.
        put(&objects, "file").unwrap();
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_object_is_passed_over_and_left_alone() {
        let (folder, objects) = folder();
        std::fs::create_dir(folder.path().join("dir")).unwrap();
        std::fs::write(folder.path().join(".adit-0123abcd.tmp"), "left by a kill").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("fifo"), rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(objects.list("", None, 10).unwrap().objects, []);
        assert_eq!(objects.head("dir").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(objects.head(".adit-0123abcd.tmp").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(put(&objects, ".adit-0123abcd.tmp").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(put(&objects, "dir").unwrap_err().kind(), ErrorKind::IsDirectory);
        let absent = PutOptions { if_absent: true, ..Default::default() };
        let refused = objects.put("dir", Content::Bytes(b"x"), &absent);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::IsDirectory);
        objects.delete("dir").unwrap();
        assert!(folder.path().join("dir").is_dir());

        put(&objects, "object").unwrap();
        assert_eq!(put(&objects, "object/below").unwrap_err().kind(), ErrorKind::NotDirectory);
        assert_eq!(std::fs::read(folder.path().join("object")).unwrap(), b"new");
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 4, "no temporary is left");
    }

    #[test]
    fn a_file_that_was_changed_in_place_has_another_tag() {
        let (folder, objects) = folder();
        put(&objects, "object").unwrap();
        let before = objects.head("object").unwrap().tag;
        std::fs::write(folder.path().join("object"), "longer").unwrap();
        let e = objects.read_at("object", 0, &mut [0; 4], before.as_ref()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Stale);
    }

    #[test]
    fn files_have_the_permissions_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, objects) = folder();
        put(&objects, "a/b").unwrap();
        std::fs::write(folder.path().join("plain"), "").unwrap();
        std::fs::create_dir(folder.path().join("dir")).unwrap();
        let perm = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(perm("a/b"), perm("plain"));
        assert_eq!(perm("a"), perm("dir"));
    }
}
