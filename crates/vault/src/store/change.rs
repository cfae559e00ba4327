//! Making and removing entries.
//!
//! An object is made whole under a temporary name and then renamed into place, and renamed away before it is taken
//! apart: no other client and no crash shows a half of it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use adit_core::media::{HostDir, HostEntry, NewFile, Published};
use adit_core::store::NewNode;
use adit_core::types::{Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr};
use adit_core::{ErrorKind, FsError, Result};

use super::entries::{Found, Sealed, Shape, new_name, text};
use super::file::{Handle, HeaderOrBytes, VaultFile, version};
use super::nodes::{DirNode, What};
use super::{Shared, leftovers, steps};
use crate::format::DirId;
use crate::format::content::object::MAX_SYMLINK_BYTES;
use crate::format::names::{CONTENTS_FILE, DATA_DIR, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE, nfc};
use crate::journal::temporary::{Removal, Whose, is_hidden_by_host, name_to_move, remove_folder, whose};
use crate::journal::{FileId, Op, as_owner, make_prefix};
use crate::perm;

/// Directories above one another. What is known of places that other clients change may contradict itself, even make a
/// ring: every walk towards the root ends here.
pub(super) const DEPTH_MAX: usize = 1 << 16;
/// Set-group-id: entries of such a directory belong to its group.
const SET_GID: u16 = 0o2000;
/// Folders of other programs above one another that are removed with a directory.
const FOREIGN_DEPTH_MAX: usize = 64;

/// A name in `dir` for what is made or taken apart there; `op` has told its intent. Recovery removes what it finds there.
fn passage(op: &Op<'_>, dir: &DirNode) -> String {
    format!("{}/{}", dir.hash, op.temporary_name())
}

/// A temporary name in `dir` for what a plan moves, which recovery leaves alone.
pub(super) fn temporary(dir: &DirNode) -> String {
    format!("{}/{}", dir.hash, name_to_move())
}

/// Owner and mode of a new object, after its parent's set-group-id bit.
fn inherit(shared: &Shared, dir: &DirNode, kind: Kind, new: &NewNode) -> Result<NewNode> {
    let path = dir.hash.path();
    let parent = shared.root.stat(Path::new(&path)).map_err(|e| cannot_make_in(e, &path))?;
    // A link has no mode: what may be done with it says that of its directory.
    let new = if kind == Kind::Symlink { &NewNode { perm: parent.perm & 0o777, ..*new } } else { new };
    if parent.perm & SET_GID == 0 {
        return Ok(*new);
    }
    let perm = if kind == Kind::Directory { new.perm | SET_GID } else { new.perm };
    Ok(NewNode { perm, umask: 0, caller: Caller { gid: parent.gid, ..new.caller } })
}

/// Why nothing can be made in the content folder `dir`.
fn cannot_make_in(e: std::io::Error, dir: &str) -> FsError {
    match e.kind() {
        std::io::ErrorKind::NotFound => {
            FsError::new(ErrorKind::Corrupt).on("create in", dir).because("the directory's content folder is not there")
        }
        _ => FsError::from(e).on("create in", dir),
    }
}

/// `Exists` unless `name` is free in `dir`, in either normal form.
fn check_free(shared: &Shared, dir: &Arc<DirNode>, name: FileName<'_>) -> Result<()> {
    match shared.find(dir, name) {
        Ok(_) => Err(ErrorKind::Exists.into()),
        Err(e) if e.is_not_found() => Ok(()),
        Err(e) => Err(e),
    }
}

pub(super) fn create(
    shared: &Arc<Shared>,
    parent: Ino,
    name: FileName<'_>,
    new: &NewNode,
) -> Result<(Attr, Arc<VaultFile>, Option<Attr>)> {
    let (_naming, op) = shared.begin_naming()?;
    let dir = shared.directory(parent)?;
    let clear = new_name(name)?;
    // The first time, also for a second version that is shown under this name.
    if *clear != *text(name)? || !dir.is_surveyed() || shared.versions.sealed(&dir.id, &clear).is_some() {
        check_free(shared, &dir, name)?;
    }
    let sealed = shared.seal_name(&dir, &clear)?;
    shared.before_reuse(&dir, &sealed.stored)?;
    op.intent(&dir.hash)?;
    let nonce = op.header_nonce(shared.layout.nonce_len as usize)?;
    let failed = |e: FsError| e.on("create", format!("{}/{}", dir.hash, sealed.stored));
    let (cipher, header) =
        shared.content.create_file_from(&nonce).map_err(|e| failed(FsError::new(ErrorKind::Io).because(e)))?;
    let whole = NewFile { content: &header, perm: new.perm, owner: Some(new.caller), durable: false };
    let path = format!("{}/{}", dir.hash, sealed.stored);
    let made = if sealed.long {
        let new = inherit(shared, &dir, Kind::File, new)?;
        let whole = NewFile { owner: Some(new.caller), ..whole };
        let folder = passage(&op, &dir);
        make_folder(shared, &folder, &sealed, &new).map_err(failed)?;
        let inner = format!("{folder}/{CONTENTS_FILE}");
        let made = shared.root.publish_known(Path::new(&inner), &whole).map_err(FsError::from);
        // Its directory is the folder here, and not yet that of the entry.
        let made = made.map(|made| Published { dir: None, ..made });
        made.and_then(|made| place_folder(shared, &folder, &path).map(|()| made)).map_err(|e| {
            discard_folder(shared, &folder);
            failed(e)
        })?
    } else {
        // The host hands a set-group-ID directory's group on by itself.
        shared.root.publish_known(Path::new(&path), &whole).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => cannot_make_in(e, &dir.hash.path()),
            _ => failed(e.into()),
        })?
    };
    shared.touched(&dir);
    let host: Arc<dyn adit_core::media::HostFile> = Arc::from(made.file);
    let shape = if sealed.long { Shape::LongFile } else { Shape::PlainFile };
    let attr = Attr { kind: Kind::File, size: 0, nlink: 1, ..made.attr };
    let (attr, host_ino) = shared.know_new(&dir, &clear, &shape, attr);
    shared.unsynced.lock().made(attr.ino);
    let header_nonce = header[..nonce.len()].to_vec();
    op.created(&FileId { host_ino, header: &header_nonce, nonce_len: nonce.len(), path: &|| None });
    let io = Handle { file: host, writable: true, seen: Some(version(&made.attr)) };
    let dir_attr = made.dir.map(|attr| Attr { ino: parent, ..attr });
    let file = VaultFile::new(shared.clone(), attr.ino, host_ino, HeaderOrBytes::Made(header), cipher, io);
    Ok((attr, shared.nodes.share_file(attr.ino, Arc::new(file)), dir_attr))
}

/// Makes the folder of a directory, link or long name, with `name.c9s` if it needs one.
///
/// Everything of an entry is its owner's, not only what carries its content: a mount by root serves others as well, and
/// their own clients must be able to open what they made.
fn make_folder(shared: &Shared, folder: &str, sealed: &Sealed, entry: &NewNode) -> Result<()> {
    shared.root.make_dir(Path::new(folder), perm::folder(&*shared.root, entry.perm), Some(entry.caller))?;
    if sealed.long {
        // Durable: without it the name is lost, and it is no longer than a few sectors.
        small_file(shared, &format!("{folder}/{NAME_FILE}"), sealed.full.as_bytes(), true, entry)?;
    }
    Ok(())
}

/// Makes a small file of an entry.
fn small_file(shared: &Shared, path: &str, content: &[u8], durable: bool, entry: &NewNode) -> Result<()> {
    let new = NewFile { content, perm: perm::file(&*shared.root, entry.perm), owner: Some(entry.caller), durable };
    shared.root.publish(Path::new(path), &new)?;
    Ok(())
}

/// Gives a finished folder its name, if that is free.
fn place_folder(shared: &Shared, folder: &str, path: &str) -> Result<()> {
    Ok(shared.root.rename(Path::new(folder), Path::new(path), RenameFlags::NOREPLACE)?)
}

/// Removes a folder that no entry names. What cannot be removed stays for now: see [`leftovers`].
pub(super) fn discard_folder(shared: &Shared, folder: &str) {
    if !leftovers::remove(&*shared.root, folder) {
        tracing::debug!("{folder}: could not be removed, and is tried again");
        shared.leftovers.note(folder.to_owned());
    }
}

/// Encrypts a small object under a header of this epoch.
fn seal_small(shared: &Shared, op: &Op<'_>, clear: &[u8]) -> Result<Vec<u8>> {
    let broken = |e: crate::format::FormatError| FsError::new(ErrorKind::Io).because(e);
    let nonce = op.header_nonce(shared.layout.nonce_len as usize)?;
    let (cipher, header) = shared.content.create_file_from(&nonce).map_err(broken)?;
    let mut bytes = header.to_vec();
    let at = bytes.len();
    bytes.resize(at + clear.len() + shared.layout.overhead() as usize, 0);
    cipher.encrypt_chunk(0, clear, &mut bytes[at..]).map_err(broken)?;
    Ok(bytes)
}

pub(super) fn mkdir(shared: &Arc<Shared>, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
    let (_naming, op) = shared.begin_naming()?;
    let dir = shared.directory(parent)?;
    let clear = new_name(name)?;
    check_free(shared, &dir, name)?;
    let sealed = shared.seal_name(&dir, &clear)?;
    let new = inherit(shared, &dir, Kind::Directory, new)?;
    shared.before_reuse(&dir, &sealed.stored)?;
    op.intent(&dir.hash)?;
    let id = DirId::generate();
    let content = shared.names.dir_hash(&id);
    let path = format!("{}/{}", dir.hash, sealed.stored);
    let folder = passage(&op, &dir);
    let undo = |e: FsError| {
        discard_folder(shared, &folder);
        discard_content(shared, &content.path());
        e.on("mkdir", &path)
    };
    // First what tells of the content directory, so that recovery finds one that was not finished.
    let id_file = format!("{folder}/{DIR_FILE}");
    make_folder(shared, &folder, &sealed, &new)
        .and_then(|()| small_file(shared, &id_file, id.as_str().as_bytes(), false, &new))
        .and_then(|()| make_content(shared, &op, &id, &new))
        .and_then(|()| place_folder(shared, &folder, &path))
        .map_err(undo)?;
    op.covered(&content);
    shared.touched(&dir);
    shared.unsynced.lock().touch(&id, true);
    let attr = shared.root.stat(Path::new(&content.path())).map_err(|e| FsError::from(e).on("mkdir", &path))?;
    let attr = shared.know_new(&dir, &clear, &Shape::Directory(id), attr).0;
    shared.nodes.directory(attr.ino).iter().for_each(|(made, _)| made.set_surveyed());
    shared.unsynced.lock().made(attr.ino);
    Ok(attr)
}

/// Makes the content directory of a new id.
fn make_content(shared: &Shared, op: &Op<'_>, id: &DirId, new: &NewNode) -> Result<()> {
    let content = shared.names.dir_hash(id);
    make_prefix(&*shared.root, &format!("{DATA_DIR}/{}", content.prefix()), new.perm)?;
    let path = content.path();
    // Until its id file is in it, its owner can always write.
    shared.root.make_dir(Path::new(&path), new.perm | 0o700, Some(new.caller))?;
    let bytes = seal_small(shared, op, id.as_str().as_bytes())?;
    small_file(shared, &format!("{path}/{DIRID_FILE}"), &bytes, false, new)?;
    if new.perm & 0o700 != 0o700 {
        shared.root.set_attr(Path::new(&path), &SetAttr { perm: Some(new.perm), ..SetAttr::default() })?;
    }
    Ok(())
}

fn discard_content(shared: &Shared, content: &str) {
    let _ = shared.root.remove(Path::new(&format!("{content}/{DIRID_FILE}")), Kind::File);
    let _ = shared.root.remove(Path::new(content), Kind::Directory);
}

pub(super) fn symlink(
    shared: &Arc<Shared>,
    parent: Ino,
    name: FileName<'_>,
    target: &[u8],
    caller: Caller,
) -> Result<Attr> {
    let target = std::str::from_utf8(target)
        .map_err(|e| FsError::new(ErrorKind::IllegalName).on("symlink", name.display()).because(e))?;
    if target.is_empty() || target.len() > MAX_SYMLINK_BYTES {
        return Err(FsError::new(ErrorKind::NameTooLong).on("symlink", name.display()));
    }
    let (_naming, op) = shared.begin_naming()?;
    let dir = shared.directory(parent)?;
    let clear = new_name(name)?;
    check_free(shared, &dir, name)?;
    let sealed = shared.seal_name(&dir, &clear)?;
    let new = inherit(shared, &dir, Kind::Symlink, &NewNode { perm: 0, umask: 0, caller })?;
    shared.before_reuse(&dir, &sealed.stored)?;
    op.intent(&dir.hash)?;
    let bytes = seal_small(shared, &op, target.as_bytes())?;
    let path = format!("{}/{}", dir.hash, sealed.stored);
    let folder = passage(&op, &dir);
    // Durable: a link is small, rare, and nothing of it could be told without its content.
    make_folder(shared, &folder, &sealed, &new)
        .and_then(|()| small_file(shared, &format!("{folder}/{SYMLINK_FILE}"), &bytes, true, &new))
        .and_then(|()| place_folder(shared, &folder, &path))
        .map_err(|e| {
            discard_folder(shared, &folder);
            e.on("symlink", &path)
        })?;
    shared.touched(&dir);
    let entry = shared.root.stat(Path::new(&path)).map_err(|e| FsError::from(e).on("symlink", &path))?;
    let (shape, attr) = shared.examine(&path, sealed.long, entry)?;
    let attr = shared.know_new(&dir, &clear, &shape, attr).0;
    // Its content is durable, but the name of that in the folder is not.
    shared.unsynced.lock().made(attr.ino);
    Ok(attr)
}

/// Removes a file or link.
pub(super) fn unlink(shared: &Arc<Shared>, parent: Ino, name: FileName<'_>) -> Result<()> {
    let (_naming, op) = shared.begin_naming()?;
    let dir = shared.directory(parent)?;
    let found = find_any(shared, &dir, name)?;
    if let Shape::Directory(_) = found.shape {
        return Err(ErrorKind::IsDirectory.into());
    }
    let unlinking = op.unlinking(found.host_ino, || shared.header_nonce(&found))?;
    shared.kept.remove(found.attr.ino);
    shared.part_from(&found);
    remove_entry(shared, &op, &dir, &found).inspect_err(|_| shared.removed.forget(found.attr.ino))?;
    // From here on the host may have given its number to a file that another thread makes.
    op.unlinked(unlinking);
    shared.nodes.unlinked(found.attr.ino, &dir.id, &found.name);
    shared.touched(&dir);
    Ok(())
}

/// Takes the file or link `found` away from `dir` on the host.
fn remove_entry(shared: &Shared, op: &Op<'_>, dir: &Arc<DirNode>, found: &Found) -> Result<()> {
    let failed = |e: std::io::Error| FsError::from(e).on("unlink", &found.path);
    if found.shape == Shape::PlainFile {
        return shared.root.remove(Path::new(&found.path), Kind::File).map_err(failed);
    }
    // A power cut can take it apart before it is moved away.
    op.intent(&dir.hash)?;
    let folder = passage(op, dir);
    match shared.root.rename(Path::new(&found.path), Path::new(&folder), RenameFlags::NOREPLACE) {
        Err(e) if is_cross_device(&e) => steps::remove(shared, op, dir, found),
        other => {
            other.map_err(failed)?;
            discard_folder(shared, &folder);
            Ok(())
        }
    }
}

/// Whether the host does not move a folder to that place, or none that lies where it is.
pub(super) fn is_cross_device(e: &std::io::Error) -> bool {
    e.kind() == std::io::ErrorKind::CrossesDevices
}

/// Finds an entry that is to be removed. A file whose size is not a vault file's is found as well: it can be removed.
fn find_any(shared: &Shared, dir: &Arc<DirNode>, name: FileName<'_>) -> Result<Found> {
    match shared.find(dir, name) {
        Err(e) if e.kind() == ErrorKind::Corrupt => shared.find_damaged_file(dir, name).unwrap_or(Err(e)),
        other => other,
    }
}

impl Shared {
    fn find_damaged_file(&self, dir: &Arc<DirNode>, name: FileName<'_>) -> Option<Result<Found>> {
        let clear = nfc(text(name).ok()?);
        let sealed = self.seal_name(dir, &clear).ok()?;
        let path = format!("{}/{}", dir.hash, sealed.stored);
        let entry = self.root.stat(Path::new(&path)).ok()?;
        if sealed.long || entry.kind != Kind::File {
            return None;
        }
        let (attr, host_ino) = self.know(dir, &clear, &Shape::PlainFile, entry);
        let (name, full) = (clear.as_ref().into(), sealed.full);
        Some(Ok(Found { attr, shape: Shape::PlainFile, path, name, full, long: false, host_ino }))
    }
}

pub(super) fn rmdir(shared: &Arc<Shared>, parent: Ino, name: FileName<'_>) -> Result<()> {
    let (_naming, op) = shared.begin_naming_alone()?;
    let dir = shared.directory(parent)?;
    let found = shared.find(&dir, name)?;
    let Shape::Directory(id) = &found.shape else { return Err(ErrorKind::NotDirectory.into()) };
    remove_directory(shared, &op, &dir, &found, id)?;
    shared.part_from(&found);
    shared.nodes.unlinked(found.attr.ino, &dir.id, &found.name);
    Ok(())
}

/// Removes the empty directory `found`, whose id is `id`, from `dir`. The caller holds `naming` alone.
fn remove_directory(shared: &Shared, op: &Op<'_>, dir: &Arc<DirNode>, found: &Found, id: &DirId) -> Result<()> {
    let content = shared.names.dir_hash(id).path();
    check_empty(shared, id)?;
    op.intent(&dir.hash)?;
    let (path, folder) = (found.path.as_str(), passage(op, dir));
    match shared.root.rename(Path::new(path), Path::new(&folder), RenameFlags::NOREPLACE) {
        Err(e) if is_cross_device(&e) => {
            steps::remove(shared, op, dir, found)?;
            shared.touched(dir);
            shared.unsynced.lock().forget(id);
            return Ok(());
        }
        other => other.map_err(|e| FsError::from(e).on("rmdir", path))?,
    }
    if let Err(e) = remove_content(shared, op, &content, id) {
        place_folder(shared, &folder, path).map_err(|e| e.on("rmdir", path))?;
        return Err(e.on("rmdir", path));
    }
    discard_folder(shared, &folder);
    shared.touched(dir);
    shared.unsynced.lock().forget(id);
    Ok(())
}

/// `NotEmpty` unless the content directory of `id` holds nothing but its id file. What other programs left there (`.DS_Store`, `@eaDir`,
/// temporaries of a sync) is removed, as Cryptomator's own clients do it; what may be somebody's version of an entry stays.
pub(super) fn check_empty(shared: &Shared, id: &DirId) -> Result<()> {
    let content = shared.names.dir_hash(id).path();
    let (mut others, mut temporaries) = (Vec::new(), Vec::new());
    let mut look = |e: HostEntry<'_>| {
        let name = String::from_utf8_lossy(e.name);
        if name == DIRID_FILE || is_hidden_by_host(&name) {
        } else if let Some(whose) = whose(&name) {
            temporaries.push((format!("{content}/{name}"), whose));
        } else {
            others.push(OsStr::from_bytes(e.name).to_owned());
        }
    };
    let at = Path::new(&content);
    let count = as_owner(&*shared.root, at, || shared.root.list(at, &mut look));
    match count {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|e| FsError::from(e).on("list", &content))?,
    }
    // A name that is not UTF-8 is no entry's.
    let stays = |name: &OsString| name.to_str().is_some_and(|name| !shared.goes_with_its_directory(id, name));
    if let Some(name) = others.iter().find(|name| stays(name)) {
        let path = at.join(name);
        if !(name.as_bytes().ends_with(b".c9r") || name.as_bytes().ends_with(b".c9s")) {
            let why = "it may be somebody's version of an entry: look at it, and remove it or move it away";
            tracing::warn!("{} keeps its directory from being removed: {why}", path.display());
            return Err(FsError::new(ErrorKind::NotEmpty).on("remove", path.display()).because(why));
        }
        return Err(FsError::new(ErrorKind::NotEmpty).on("remove", path.display()));
    }
    temporaries.iter().try_for_each(|(path, whose)| clear_temporary(shared, at, path, *whose))?;
    others.iter().try_for_each(|name| {
        let path = at.join(name);
        tracing::info!("{}: no entry of the vault, is removed with its directory", path.display());
        remove_tree(&*shared.root, &path, FOREIGN_DEPTH_MAX).map_err(|e| FsError::from(e).on("remove", path.display()))
    })
}

/// Removes a file, or a folder with all that is in it, at most `depth` folders deep.
fn remove_tree(root: &dyn HostDir, path: &Path, depth: usize) -> std::io::Result<()> {
    let gone = |removed: std::io::Result<()>| match removed {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let above = path.parent().unwrap_or(Path::new(""));
    let kind = match root.stat(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?.kind,
    };
    if kind == Kind::Directory {
        let Some(depth) = depth.checked_sub(1) else { return Err(std::io::ErrorKind::DirectoryNotEmpty.into()) };
        let mut names = Vec::new();
        gone(as_owner(root, path, || {
            names.clear();
            root.list(path, &mut |e| names.push(OsStr::from_bytes(e.name).to_owned()))
        }))?;
        names.iter().try_for_each(|name| remove_tree(root, &path.join(name), depth))?;
    }
    gone(as_owner(root, above, || root.remove(path, kind)))
}

/// Removes what lies under a temporary name in a directory that is to be removed, if it is nobody's: what this store
/// discarded, an empty folder or file, a file that the medium never published. Anything else can be a user's, which a plan
/// moves at this moment or had to give up: `NotEmpty`. What a kill left of ours, recovery has removed.
fn clear_temporary(shared: &Shared, dir: &Path, path: &str, whose: Whose) -> Result<()> {
    if shared.leftovers.contains(path) {
        return match leftovers::remove(&*shared.root, path) {
            true => Ok(()),
            false => Err(FsError::new(ErrorKind::NotEmpty).on("remove", path).because("a removed file in it is open")),
        };
    }
    let at = Path::new(path);
    let remove = || match shared.root.stat(at)? {
        // Fails unless it is empty.
        found if found.kind == Kind::Directory => shared.root.remove(at, Kind::Directory),
        found if found.kind == Kind::File && (found.size == 0 || whose == Whose::Medium) => {
            shared.root.remove(at, Kind::File)
        }
        _ => Err(std::io::ErrorKind::DirectoryNotEmpty.into()),
    };
    let removed = as_owner(&*shared.root, dir, remove);
    match removed {
        Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
            let why = "something lies there under a temporary name; where no other mount is moving it, \
                       `adit vault check --repair` puts it where it can be looked through";
            tracing::warn!("{path} keeps its directory from being removed: {why}");
            Err(FsError::new(ErrorKind::NotEmpty).on("remove", path).because(why))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|e| FsError::from(e).on("remove", path)),
    }
}

/// Removes an empty content directory, or leaves it whole.
fn remove_content(shared: &Shared, op: &Op<'_>, content: &str, id: &DirId) -> Result<()> {
    let at = Path::new(content);
    let id_path = format!("{content}/{DIRID_FILE}");
    match as_owner(&*shared.root, at, || shared.root.remove(Path::new(&id_path), Kind::File)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        other => other?,
    }
    match remove_folder(&*shared.root, content) {
        Ok(Removal::Done) => Ok(()),
        // Nothing leads to it any more.
        Ok(Removal::Waits) => {
            shared.leftovers.note(content.to_owned());
            Ok(())
        }
        Err(e) => {
            // Another client made an entry meanwhile: the directory is whole again. Recovery would do the same.
            let bytes = seal_small(shared, op, id.as_str().as_bytes())?;
            let found = shared.root.stat(at)?;
            let owner = Some(Caller { uid: found.uid, gid: found.gid });
            let new = NewFile { content: &bytes, perm: perm::file(&*shared.root, found.perm), owner, durable: false };
            as_owner(&*shared.root, at, || shared.root.publish(Path::new(&id_path), &new))?;
            Err(e.into())
        }
    }
}

/// Whether `ino` is `above` or lies below it, as far as we know.
pub(super) fn lies_below(shared: &Shared, mut ino: Ino, above: Ino) -> bool {
    for _ in 0..DEPTH_MAX {
        if ino == above {
            return true;
        }
        match shared.nodes.get(ino) {
            Some(known) if matches!(known.what, What::Directory(_)) => match known.place {
                Some(place) => ino = place.parent.ino,
                None => return false,
            },
            _ => return false,
        }
    }
    true
}
