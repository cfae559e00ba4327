//! Moves, replacement and exchange.
//!
//! Between short names nothing of the object changes, so the host's own rename is the whole operation. Names that are
//! stored under their hash, and targets that are folders on the host, need several host operations: those are a plan
//! of the journal. Users of the mount see either state only, because `naming` is held alone; a crash shows a state on
//! the way at most until the vault is opened here again.

use std::path::Path;
use std::sync::Arc;

use adit_core::types::{FileName, Ino, Kind, RenameFlags, SetAttr, SetTime};
use adit_core::{ErrorKind, FsError, Result};

use super::Shared;
use super::change::{check_empty, lies_below, temporary};
use super::entries::{Found, Sealed, Shape, check_new_name, text};
use super::file::open_content;
use super::nodes::{DirNode, Place};
use crate::format::names::{CONTENTS_FILE, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE, nfc};
use crate::journal::{FileId, Op, Step};

/// One side of a rename: a directory, a name in it, and what is there.
struct Side {
    dir: Arc<DirNode>,
    clear: Box<str>,
    sealed: Sealed,
    found: Option<Found>,
}

impl Side {
    fn new(shared: &Shared, dir: Arc<DirNode>, name: FileName<'_>) -> Result<Self> {
        let found = match shared.find(&dir, name) {
            Ok(found) => Some(found),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e),
        };
        // What exists keeps its form; a new name is normalised.
        let clear: Box<str> = match &found {
            Some(f) => f.name.clone(),
            None => nfc(text(name)?).into(),
        };
        let sealed = shared.seal_name(&dir, &clear)?;
        Ok(Side { dir, clear, sealed, found })
    }

    fn path(&self) -> String {
        format!("{}/{}", self.dir.hash, self.sealed.stored)
    }
}

pub(super) fn rename(
    shared: &Arc<Shared>,
    (parent, name): (Ino, FileName<'_>),
    (new_parent, new_name): (Ino, FileName<'_>),
    flags: RenameFlags,
) -> Result<()> {
    if flags.bits() & !(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE).bits() != 0
        || flags.contains(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE)
    {
        return Err(ErrorKind::InvalidInput.into());
    }
    let (_naming, op) = shared.begin_naming_alone()?;
    let from = Side::new(shared, shared.directory(parent)?, name)?;
    let to = Side::new(shared, shared.directory(new_parent)?, new_name)?;
    let Some(source) = &from.found else { return Err(ErrorKind::NotFound.into()) };
    if flags.contains(RenameFlags::EXCHANGE) {
        return exchange(shared, &op, &from, &to);
    }
    if to.found.is_some() && flags.contains(RenameFlags::NOREPLACE) {
        return Err(ErrorKind::Exists.into());
    }
    if let Some(target) = &to.found
        && target.attr.ino == source.attr.ino
    {
        return Ok(());
    }
    check_move(shared, source, &to)?;
    match &to.found {
        None => check_new_name(new_name, &to.clear)?,
        // The source is in it.
        Some(target) if lies_below(shared, from.dir.ino, target.attr.ino) => return Err(ErrorKind::NotEmpty.into()),
        Some(target) => check_replace(shared, source, target)?,
    }
    op.intent(&to.dir.hash)?;
    op.intent(&from.dir.hash)?;
    // Else a power cut could keep the move and lose the directory that it went to.
    shared.sync_new_directories(&to.dir)?;
    shared.before_reuse(&to.dir, &to.sealed.stored)?;
    if to.found.is_some() && op.is_unsettled(source.host_ino) {
        // Else a power cut could show the new name with nothing in it, and the old content gone.
        settle(shared, &op, source)?;
    }
    op.moving(source.host_ino, || shared.header_nonce(source), &object_at(&source.shape, &to))?;
    let replaced = match &to.found {
        Some(target) => Some((op.unlinking(target.host_ino, || shared.header_nonce(target))?, target)),
        None => None,
    };
    move_on_host(shared, &op, &from, &to, source)?;
    if let Some((unlinking, target)) = replaced {
        op.unlinked(unlinking);
        shared.kept.remove(target.attr.ino);
        shared.nodes.unlinked(target.attr.ino, &to.dir.id, &target.name);
        if let Shape::Directory(id) = &target.shape {
            shared.unsynced.lock().forget(id);
            shared.removed.add(target.attr);
        }
    }
    mark_moved(shared, source, &to);
    shared.nodes.moved(source.attr.ino, Place { parent: to.dir.clone(), name: to.clear.clone() });
    if to.sealed.long && !from.sealed.long {
        shared.open_way_to(source.attr.ino, source.attr.perm)?;
    }
    shared.touched(&from.dir);
    shared.touched(&to.dir);
    if from.dir.id == to.dir.id {
        shared.vacated(&from.dir, &from.sealed.stored);
    } else {
        // The old name can be taken by something else at once: should that reach the disk and the new name not, the
        // object would have none.
        shared.sync_entries(&to.dir)?;
    }
    Ok(())
}

/// Moves the object, by one operation of the host or by a plan.
fn move_on_host(shared: &Shared, op: &Op<'_>, from: &Side, to: &Side, source: &Found) -> Result<()> {
    let simple = !from.sealed.long
        && !to.sealed.long
        && match &to.found {
            None => true,
            Some(target) => source.shape == Shape::PlainFile && target.shape == Shape::PlainFile,
        };
    if simple {
        let flags = if to.found.is_some() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let done = shared.root.rename(Path::new(&source.path), Path::new(&to.path()), flags);
        done.map_err(|e| FsError::from(e).on("rename", &source.path))
    } else {
        settle_entries(shared, &[from, to])?;
        let (steps, essential) = plan(shared, from, to, source);
        op.run_plan(&steps, essential)
    }
}

/// A plan counts on what it moves: the entries that are there become durable before it does.
fn settle_entries(shared: &Shared, sides: &[&Side]) -> Result<()> {
    for side in sides {
        if let Some(found) = side.found.as_ref().filter(|f| f.shape != Shape::PlainFile) {
            shared.sync_dir_at(&found.path)?;
        }
        shared.touched(&side.dir);
        shared.sync_entries(&side.dir)?;
    }
    Ok(())
}

/// The content of a file that is about to replace another one becomes durable first. The journal knows then that later
/// changes are to be recorded durably: should one tear a chunk, there would be neither this content nor the replaced one.
fn settle(shared: &Arc<Shared>, op: &Op<'_>, source: &Found) -> Result<()> {
    let failed = |e: std::io::Error| FsError::from(e).on("rename", &source.path);
    let Some(path) = source.content_path() else { return Ok(()) };
    if let Some(file) = shared.live_file(source.attr.ino) {
        return file.settle(op, None, true);
    }
    let host = shared.root.open(Path::new(&path), adit_core::types::Access::Read).map_err(failed)?;
    host.sync(true).map_err(|e| shared.sync_failed(e, &path))?;
    let attr = host.stat().map_err(failed)?;
    // With names locked, nobody can open it meanwhile. One that cannot be read is none that the journal knows.
    let Ok((header, _)) = open_content(shared, &path, &*host) else { return Ok(()) };
    let Ok(len) = shared.layout.cleartext_size(attr.size) else { return Ok(()) };
    let nonce_len = shared.layout.nonce_len as usize;
    let place = || Some(path.clone());
    op.settled(&FileId { host_ino: attr.ino.0, header: &header, nonce_len, path: &place }, len)
}

/// A move changes the ctime of what it moves; the host does not do that where only a folder around the object moved.
///
/// Setting the access time that it has already does. An error changes nothing: the move is done, and POSIX leaves it
/// open whether ctime changes.
fn mark_moved(shared: &Shared, moved: &Found, to: &Side) {
    let path = match &moved.shape {
        Shape::LongFile if to.sealed.long => object_at(&moved.shape, to),
        Shape::PlainFile | Shape::LongFile => return,
        Shape::Symlink => format!("{}/{SYMLINK_FILE}", to.path()),
        Shape::Directory(id) => shared.names.dir_hash(id).path(),
    };
    let set = SetAttr { atime: Some(SetTime::At(moved.attr.atime)), ..SetAttr::default() };
    let _ = shared.root.set_attr(Path::new(&path), &set);
}

/// Where the content of an object lies once it is at `side`.
fn object_at(shape: &Shape, side: &Side) -> String {
    match shape {
        Shape::PlainFile | Shape::LongFile if side.sealed.long => format!("{}/{CONTENTS_FILE}", side.path()),
        _ => side.path(),
    }
}

/// A directory does not move into itself.
fn check_move(shared: &Shared, source: &Found, to: &Side) -> Result<()> {
    match source.shape {
        Shape::Directory(_) if lies_below(shared, to.dir.ino, source.attr.ino) => Err(ErrorKind::InvalidInput.into()),
        _ => Ok(()),
    }
}

/// The rules of `rename(2)` for a target that exists.
fn check_replace(shared: &Shared, source: &Found, target: &Found) -> Result<()> {
    match (source.shape.kind() == Kind::Directory, &target.shape) {
        (true, Shape::Directory(id)) => check_empty(shared, &shared.names.dir_hash(id).path()),
        (true, _) => Err(ErrorKind::NotDirectory.into()),
        (false, Shape::Directory(_)) => Err(ErrorKind::IsDirectory.into()),
        (false, _) => Ok(()),
    }
}

fn exchange(shared: &Shared, op: &Op<'_>, from: &Side, to: &Side) -> Result<()> {
    let (Some(a), Some(b)) = (&from.found, &to.found) else { return Err(ErrorKind::NotFound.into()) };
    if a.attr.ino == b.attr.ino {
        return Ok(());
    }
    check_move(shared, a, to)?;
    check_move(shared, b, from)?;
    op.intent(&to.dir.hash)?;
    op.intent(&from.dir.hash)?;
    shared.sync_new_directories(&to.dir)?;
    shared.sync_new_directories(&from.dir)?;
    op.moving(a.host_ino, || shared.header_nonce(a), &object_at(&a.shape, to))?;
    op.moving(b.host_ino, || shared.header_nonce(b), &object_at(&b.shape, from))?;
    let whole = if a.long || b.long {
        Err(std::io::ErrorKind::Unsupported.into())
    } else {
        shared.root.rename(Path::new(&a.path), Path::new(&b.path), RenameFlags::EXCHANGE)
    };
    match whole {
        Ok(()) => {}
        Err(e) if matches!(e.kind(), std::io::ErrorKind::Unsupported | std::io::ErrorKind::InvalidInput) => {
            settle_entries(shared, &[from, to])?;
            let aside = temporary(&from.dir);
            let mut steps = vec![Step::Rename { from: a.path.clone(), to: aside.clone() }];
            let mut rest = Vec::new();
            let b = Moving { path: &b.path, shape: &b.shape, long: b.long, full: &to.sealed.full };
            move_steps(&b, from, &mut steps, &mut rest);
            let a = Moving { path: &aside, shape: &a.shape, long: a.long, full: &from.sealed.full };
            move_steps(&a, to, &mut steps, &mut rest);
            let essential = steps.len();
            steps.append(&mut rest);
            op.run_plan(&steps, essential)?;
        }
        Err(e) => return Err(FsError::from(e).on("exchange", &a.path)),
    }
    mark_moved(shared, a, to);
    mark_moved(shared, b, from);
    shared.nodes.moved(a.attr.ino, Place { parent: to.dir.clone(), name: to.clear.clone() });
    shared.nodes.moved(b.attr.ino, Place { parent: from.dir.clone(), name: from.clear.clone() });
    shared.touched(&from.dir);
    shared.touched(&to.dir);
    // Exchanges that follow one another must reach the disk in that order, or one object could lose every name. They
    // are rare enough to wait.
    shared.sync_entries(&from.dir)?;
    shared.sync_entries(&to.dir)
}

/// The steps of a rename that is more than one host operation, and how many of them make it: the others only remove.
fn plan(shared: &Shared, from: &Side, to: &Side, source: &Found) -> (Vec<Step>, usize) {
    let mut steps = Vec::new();
    let trash = to.found.as_ref().map(|target| {
        let trash = temporary(&to.dir);
        steps.push(Step::Rename { from: target.path.clone(), to: trash.clone() });
        (trash, target)
    });
    let mut rest = Vec::new();
    let object = Moving { path: &source.path, shape: &source.shape, long: from.sealed.long, full: &from.sealed.full };
    move_steps(&object, to, &mut steps, &mut rest);
    let essential = steps.len();
    steps.append(&mut rest);
    if let Some((trash, target)) = trash {
        remove_steps(shared, &trash, target, &mut steps);
    }
    (steps, essential)
}

/// An object on its way: where it lies, how, and the full ciphertext name that a folder with a hash for a name holds.
struct Moving<'a> {
    path: &'a str,
    shape: &'a Shape,
    long: bool,
    full: &'a str,
}

/// Moves an object to the free name of `to`. What is then left to remove goes to `rest`.
fn move_steps(object: &Moving<'_>, to: &Side, steps: &mut Vec<Step>, rest: &mut Vec<Step>) {
    let Moving { path, shape, long, full } = *object;
    let target = to.path();
    let name_file = |folder: &str| format!("{folder}/{NAME_FILE}");
    let rename = |from: &str, to: &str| Step::Rename { from: from.to_owned(), to: to.to_owned() };
    let name = || to.sealed.full.clone().into_bytes();
    match (shape, long, to.sealed.long) {
        (_, false, false) => steps.push(rename(path, &target)),
        (Shape::PlainFile, false, true) => {
            let folder = temporary(&to.dir);
            steps.push(Step::MakeDir { path: folder.clone() });
            steps.push(Step::Write { path: name_file(&folder), bytes: name() });
            steps.push(rename(path, &format!("{folder}/{CONTENTS_FILE}")));
            steps.push(rename(&folder, &target));
        }
        (_, false, true) => {
            steps.push(Step::Write { path: name_file(path), bytes: name() });
            steps.push(rename(path, &target));
        }
        (Shape::PlainFile | Shape::LongFile, true, false) => {
            let folder = temporary(&to.dir);
            steps.push(rename(&format!("{path}/{CONTENTS_FILE}"), &target));
            steps.push(rename(path, &folder));
            rest.push(Step::RemoveFile { path: name_file(&folder) });
            rest.push(Step::RemoveDir { path: folder });
        }
        (_, true, false) => {
            steps.push(rename(path, &target));
            rest.push(Step::RemoveFile { path: name_file(&target) });
        }
        (_, true, true) => {
            let old = full.as_bytes().to_vec();
            steps.push(Step::Rewrite { path: name_file(path), bytes: name(), old });
            steps.push(rename(path, &target));
        }
    }
}

/// Removes an object that was moved to `trash`.
fn remove_steps(shared: &Shared, trash: &str, target: &Found, steps: &mut Vec<Step>) {
    let file = |name: &str| Step::RemoveFile { path: format!("{trash}/{name}") };
    match &target.shape {
        Shape::PlainFile => {
            steps.push(Step::RemoveFile { path: trash.to_owned() });
            return;
        }
        Shape::LongFile => steps.push(file(CONTENTS_FILE)),
        Shape::Symlink => steps.push(file(SYMLINK_FILE)),
        Shape::Directory(id) => {
            let content = shared.names.dir_hash(id).path();
            steps.push(Step::RemoveFile { path: format!("{content}/{DIRID_FILE}") });
            steps.push(Step::RemoveDir { path: content });
            steps.push(file(DIR_FILE));
        }
    }
    if target.long {
        steps.push(file(NAME_FILE));
    }
    steps.push(Step::RemoveDir { path: trash.to_owned() });
}
