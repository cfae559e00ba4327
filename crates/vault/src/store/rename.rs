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
use super::change::{check_empty, is_cross_device, lies_below};
use super::entries::{Found, Sealed, Shape, check_new_name, text};
use super::file::open_content;
use super::nodes::{DirNode, Place};
use super::steps::{Relocation, Target, run};
use crate::format::names::{CONTENTS_FILE, SYMLINK_FILE, nfc};
use crate::journal::{FileId, Op};

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

    /// The name as a place for something.
    fn place(&self) -> Target<'_> {
        Target { dir: &self.dir, sealed: &self.sealed }
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
    // A host that keeps removed files that are open would keep this one.
    to.found.iter().for_each(|target| shared.kept.remove(target.attr.ino));
    to.found.iter().for_each(|target| shared.part_from(target));
    move_on_host(shared, &op, &from, &to, source)
        .inspect_err(|_| to.found.iter().for_each(|target| shared.removed.forget(target.attr.ino)))?;
    if let Some((unlinking, target)) = replaced {
        op.unlinked(unlinking);
        shared.nodes.unlinked(target.attr.ino, &to.dir.id, &target.name);
        if let Shape::Directory(id) = &target.shape {
            shared.unsynced.lock().forget(id);
        }
    }
    op.renumbered(mark_moved(shared, source, &to).as_slice());
    shared.nodes.moved(source.attr.ino, Place { parent: to.dir.clone(), name: to.clear.clone() });
    open_way(shared, source, &from, &to)?;
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
        match shared.root.rename(Path::new(&source.path), Path::new(&to.path()), flags) {
            Err(e) if is_cross_device(&e) && source.shape != Shape::PlainFile => {}
            done => return done.map_err(|e| FsError::from(e).on("rename", &source.path)),
        }
    }
    for side in [from, to] {
        settle_entries(shared, &side.dir, side.found.as_ref())?;
    }
    run(shared, op, |steps| {
        let trash = to.found.as_ref().map(|target| (steps.put_aside(target, &to.dir), target));
        steps.move_object(&Relocation::of(source), &to.place());
        steps.are_essential();
        if let Some((trash, target)) = trash {
            steps.remove(shared, &trash, target);
        }
    })
}

/// A plan counts on what it moves: the entries that are there become durable before it does.
pub(super) fn settle_entries(shared: &Shared, dir: &Arc<DirNode>, found: Option<&Found>) -> Result<()> {
    if let Some(found) = found.filter(|f| f.shape != Shape::PlainFile) {
        shared.sync_dir_at(&found.path)?;
    }
    shared.touched(dir);
    shared.sync_entries(dir)
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
///
/// Returns what [`new_number`] does.
fn mark_moved(shared: &Shared, moved: &Found, to: &Side) -> Option<(u64, u64)> {
    let path = match &moved.shape {
        Shape::PlainFile | Shape::LongFile => object_at(&moved.shape, to),
        Shape::Symlink => format!("{}/{SYMLINK_FILE}", to.path()),
        Shape::Directory(id) => shared.names.dir_hash(id).path(),
    };
    let path = Path::new(&path);
    let alone = moved.shape == Shape::PlainFile || (moved.shape == Shape::LongFile && !to.sealed.long);
    if !alone {
        let set = SetAttr { atime: Some(SetTime::At(moved.attr.atime)), ..SetAttr::default() };
        let _ = shared.root.set_attr(path, &set);
    }
    new_number(shared, moved, path)
}

/// Gives what carries the entry that moved the permissions that go with it: a folder that was made for its name, and what a link has from its
/// directory.
fn open_way(shared: &Shared, moved: &Found, from: &Side, to: &Side) -> Result<()> {
    let is_new = to.sealed.long && !from.sealed.long;
    let has_others = moved.shape == Shape::Symlink && from.dir.id != to.dir.id;
    if is_new || has_others { shared.open_way_to(moved.attr.ino, moved.attr.perm) } else { Ok(()) }
}

/// Some hosts (rclone, for one) number by the path: what has moved is the same still. Their numbers before and now, if they
/// differ.
fn new_number(shared: &Shared, moved: &Found, path: &Path) -> Option<(u64, u64)> {
    // What cannot be looked at now is known anew by the next who looks.
    let now = shared.root.stat(path).ok()?.ino.0;
    if now == moved.host_ino {
        return None;
    }
    shared.nodes.renumbered(now, moved.attr.ino);
    if let Some(file) = shared.live_file(moved.attr.ino) {
        file.renumbered(now);
    }
    Some((moved.host_ino, now))
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
        (true, Shape::Directory(id)) => check_empty(shared, id),
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
        Err(e)
            if matches!(e.kind(), std::io::ErrorKind::Unsupported | std::io::ErrorKind::InvalidInput)
                || is_cross_device(&e) =>
        {
            settle_entries(shared, &from.dir, Some(a))?;
            settle_entries(shared, &to.dir, Some(b))?;
            run(shared, op, |steps| {
                let aside = steps.put_aside(a, &from.dir);
                steps.move_object(&Relocation::of(b), &from.place());
                steps.move_object(&Relocation::of(a).at(&aside), &to.place());
                steps.are_essential();
            })?;
        }
        Err(e) => return Err(FsError::from(e).on("exchange", &a.path)),
    }
    let renumbered = [mark_moved(shared, a, to), mark_moved(shared, b, from)];
    op.renumbered(&renumbered.into_iter().flatten().collect::<Vec<_>>());
    shared.nodes.moved(a.attr.ino, Place { parent: to.dir.clone(), name: to.clear.clone() });
    shared.nodes.moved(b.attr.ino, Place { parent: from.dir.clone(), name: from.clear.clone() });
    open_way(shared, a, from, to)?;
    open_way(shared, b, to, from)?;
    shared.touched(&from.dir);
    shared.touched(&to.dir);
    // Exchanges that follow one another must reach the disk in that order, or one object could lose every name. They
    // are rare enough to wait.
    shared.sync_entries(&from.dir)?;
    shared.sync_entries(&to.dir)
}
