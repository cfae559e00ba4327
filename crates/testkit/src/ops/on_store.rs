//! Runs operations on a [`Store`], keeping references as the engine would.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::store::{DirEntry, NewNode, Store, StoreFile};
use adit_core::types::{Access, Attr, FileName, Ino, Kind, SetAttr, SetTime, XattrName};
use adit_core::{ErrorKind, FsError};

use super::{
    Found, Op, Outcome, Place, Seen, Shown, Snapshot, Subject, Target, Xattrs, pattern, takes_xattrs, user_names,
};
use crate::tree::errno_of;

/// References that are held for a while after their operation, so that the store meets old and forgotten inodes.
const HELD_MAX: usize = 24;

type Run<T> = Result<T, FsError>;

/// A store as a [`Subject`].
pub struct StoreSubject<'a> {
    store: &'a dyn Store,
    slots: BTreeMap<u8, (Ino, Arc<dyn StoreFile>)>,
    references: BTreeMap<Ino, usize>,
    held: VecDeque<Ino>,
}

impl Drop for StoreSubject<'_> {
    fn drop(&mut self) {
        for (ino, file) in std::mem::take(&mut self.slots).into_values() {
            drop(file);
            self.release(ino);
        }
        while let Some(ino) = self.held.pop_front() {
            self.release(ino);
        }
    }
}

impl<'a> StoreSubject<'a> {
    /// `store`, with no reference taken yet.
    pub fn new(store: &'a dyn Store) -> Self {
        StoreSubject { store, slots: BTreeMap::new(), references: BTreeMap::new(), held: VecDeque::new() }
    }

    /// Counts the reference that `attr` is, and holds it for a while.
    fn learn(&mut self, attr: Attr) -> Attr {
        self.take(attr.ino);
        self.held.push_back(attr.ino);
        if self.held.len() > HELD_MAX
            && let Some(oldest) = self.held.pop_front()
        {
            self.release(oldest);
        }
        attr
    }

    fn take(&mut self, ino: Ino) {
        *self.references.entry(ino).or_insert(0) += 1;
    }

    fn release(&mut self, ino: Ino) {
        let count = self.references.get_mut(&ino).expect("was taken");
        *count -= 1;
        if *count == 0 {
            self.references.remove(&ino);
            if ino != Ino::ROOT {
                self.store.forget(ino);
            }
        }
    }

    fn step(&mut self, dir: Ino, name: &[u8]) -> Run<Attr> {
        let attr = self.store.lookup(dir, FileName::new(name)?)?;
        Ok(self.learn(attr))
    }

    fn resolve(&mut self, place: &Place) -> Run<Attr> {
        match place.split_last() {
            None => self.store.getattr(Ino::ROOT),
            Some((name, parents)) => {
                let parent = self.directory(parents)?;
                self.step(parent, name)
            }
        }
    }

    /// The directory at `parents`, with the kernel's errors.
    fn directory(&mut self, parents: &[Vec<u8>]) -> Run<Ino> {
        let mut at = Ino::ROOT;
        for name in parents {
            let attr = self.step(at, name)?;
            at = match attr.kind {
                Kind::Directory => attr.ino,
                // All links dangle, and a path goes through them.
                Kind::Symlink => return Err(ErrorKind::NotFound.into()),
                _ => return Err(ErrorKind::NotDirectory.into()),
            };
        }
        Ok(at)
    }

    fn parent<'p>(&mut self, place: &'p Shown) -> Run<(Ino, FileName<'p>)> {
        let (name, parents) = place.0.split_last().ok_or(ErrorKind::Busy)?;
        Ok((self.directory(parents)?, FileName::new(name)?))
    }

    /// The inode of the regular file at `place`; `None` for a node that only the kernel can open.
    fn file(&mut self, place: &Place) -> Run<Option<Ino>> {
        let attr = self.resolve(place)?;
        match attr.kind {
            Kind::File => Ok(Some(attr.ino)),
            Kind::Directory => Err(ErrorKind::IsDirectory.into()),
            Kind::Symlink => Err(ErrorKind::Loop.into()),
            Kind::BlockDevice | Kind::CharDevice | Kind::Fifo | Kind::Socket => Ok(None),
        }
    }

    fn with_file(
        &mut self,
        target: &Target,
        access: Access,
        act: impl FnOnce(&dyn Store, Ino, &dyn StoreFile) -> Run<Outcome>,
    ) -> Run<Outcome> {
        match target {
            Target::At(place) => {
                let Some(ino) = self.file(place)? else { return Ok(Outcome::Skipped) };
                let file = self.store.open(ino, access)?;
                act(self.store, ino, &*file)
            }
            Target::Slot(slot) => match self.slots.get(slot) {
                Some((ino, file)) => act(self.store, *ino, &**file),
                None => Ok(Outcome::Skipped),
            },
        }
    }

    fn set_slot(&mut self, slot: u8, file: Option<(Ino, Arc<dyn StoreFile>)>) {
        if let Some((ino, _)) = &file {
            self.take(*ino);
        }
        let old = match file {
            Some(file) => self.slots.insert(slot, file),
            None => self.slots.remove(&slot),
        };
        if let Some((ino, file)) = old {
            drop(file);
            self.release(ino);
        }
    }

    fn on_names(&mut self, op: &Op) -> Run<Outcome> {
        let caller = crate::own_caller();
        match op {
            Op::Create(place, perm) => {
                let (parent, name) = self.parent(place)?;
                let (attr, _file) = self.store.create(parent, name, &NewNode { perm: *perm, umask: 0, caller })?;
                self.learn(attr);
            }
            Op::Mkdir(place, perm) => {
                let (parent, name) = self.parent(place)?;
                let attr = self.store.mkdir(parent, name, &NewNode { perm: *perm, umask: 0, caller })?;
                self.learn(attr);
            }
            Op::Mknod(place, kind, perm) => {
                let (parent, name) = self.parent(place)?;
                let attr = self.store.mknod(parent, name, *kind, 0, &NewNode { perm: *perm, umask: 0, caller })?;
                self.learn(attr);
            }
            Op::Symlink(place, target) => {
                let (parent, name) = self.parent(place)?;
                let attr = self.store.symlink(parent, name, target, caller)?;
                self.learn(attr);
            }
            Op::Link(from, to) => {
                let ino = self.resolve(&from.0)?.ino;
                let (parent, name) = self.parent(to)?;
                let attr = self.store.link(ino, parent, name)?;
                self.learn(attr);
            }
            Op::Unlink(place) => {
                let (parent, name) = self.parent(place)?;
                self.store.unlink(parent, name)?;
            }
            Op::Rmdir(place) => {
                let (parent, name) = self.parent(place)?;
                self.store.rmdir(parent, name)?;
            }
            Op::Rename(from, to, flags) => {
                let (parent, name) = self.parent(from)?;
                let (new_parent, new_name) = self.parent(to)?;
                let before = self.step(parent, name.as_bytes()).map(|a| a.ino);
                self.store.rename(parent, name, new_parent, new_name, *flags)?;
                let after = self.step(new_parent, new_name.as_bytes())?;
                assert_eq!(before.ok(), Some(after.ino), "an inode keeps its number over a rename");
            }
            _ => unreachable!("not an operation on names"),
        }
        Ok(Outcome::Done)
    }

    fn on_content(&mut self, op: &Op) -> Run<Outcome> {
        match op {
            Op::Write(target, pieces, seed) => self.with_file(target, Access::Write, |_, _, file| {
                let bytes: Vec<_> = pieces.iter().map(|&(at, len)| (at, pattern(*seed, at, len))).collect();
                let slices: Vec<_> = bytes.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
                file.write_at(&slices)?;
                Ok(Outcome::Done)
            }),
            Op::Read(target, offset, len) => self.with_file(target, Access::Read, |_, _, file| {
                let mut buf = vec![0xaa; *len];
                let len = file.read_at(*offset, &mut buf)?;
                buf.truncate(len);
                Ok(Outcome::Bytes(buf))
            }),
            Op::ReadSparse(target) => {
                self.with_file(target, Access::Read, |_, _, file| Ok(Outcome::Bytes(read_sparse(file)?)))
            }
            Op::Truncate(target, len, by_inode) => self.with_file(target, Access::Write, |store, ino, file| {
                if *by_inode {
                    let attr = store.setattr(ino, &SetAttr { size: Some(*len), ..SetAttr::default() })?;
                    assert_eq!(attr.size, *len, "setattr returns the new attributes");
                } else {
                    file.set_len(*len)?;
                }
                assert_eq!(file.len()?, *len);
                Ok(Outcome::Done)
            }),
            Op::Allocate(target, offset, len, mode) => self.with_file(target, Access::Write, |_, _, file| {
                file.allocate(*offset, *len, *mode)?;
                Ok(Outcome::Done)
            }),
            Op::Sync(target, data_only) => self.with_file(target, Access::Write, |_, _, file| {
                file.sync(*data_only)?;
                Ok(Outcome::Done)
            }),
            Op::Open(slot, place) => {
                self.set_slot(*slot, None);
                let Some(ino) = self.file(&place.0)? else { return Ok(Outcome::Skipped) };
                let file = self.store.open(ino, Access::Write)?;
                self.set_slot(*slot, Some((ino, file)));
                Ok(Outcome::Done)
            }
            Op::Close(slot) => {
                self.set_slot(*slot, None);
                Ok(Outcome::Done)
            }
            _ => unreachable!("not an operation on content"),
        }
    }

    fn on_attributes(&mut self, op: &Op) -> Run<Outcome> {
        match op {
            Op::List(place) => {
                let attr = self.resolve(&place.0)?;
                let list = self.list(attr.ino)?;
                Ok(Outcome::Names(list))
            }
            Op::Stat(place) => Ok(Outcome::Seen(seen(&self.resolve(&place.0)?))),
            Op::ReadLink(place) => {
                let ino = self.resolve(&place.0)?.ino;
                Ok(Outcome::Bytes(self.store.readlink(ino)?))
            }
            Op::Chmod(place, perm) => {
                let attr = self.resolve(&place.0)?;
                if attr.kind == Kind::Symlink {
                    return Ok(Outcome::Skipped);
                }
                let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
                Ok(Outcome::Seen(seen(&self.store.setattr(attr.ino, &set)?)))
            }
            Op::SetTimes(place, atime, mtime) => {
                let attr = self.resolve(&place.0)?;
                if attr.kind == Kind::Symlink {
                    return Ok(Outcome::Skipped);
                }
                let at = |t| Some(SetTime::At(t));
                let set = SetAttr { atime: at(*atime), mtime: at(*mtime), ..SetAttr::default() };
                self.store.setattr(attr.ino, &set)?;
                let attr = self.store.getattr(attr.ino)?;
                Ok(Outcome::Times(attr.atime, attr.mtime))
            }
            Op::SyncDir(place) => {
                let attr = self.resolve(&place.0)?;
                if attr.kind != Kind::Directory {
                    return Err(ErrorKind::NotDirectory.into());
                }
                self.store.sync_dir(attr.ino)?;
                Ok(Outcome::Done)
            }
            Op::SyncAll => {
                self.store.sync_all()?;
                Ok(Outcome::Done)
            }
            _ => unreachable!("not an operation on attributes"),
        }
    }

    fn on_xattrs(&mut self, place: &Place, op: &Op) -> Run<Outcome> {
        let attr = self.resolve(place)?;
        if !takes_xattrs(attr.kind) {
            return Ok(Outcome::Skipped);
        }
        let ino = attr.ino;
        match op {
            Op::SetXattr(_, name, (len, seed), set) => {
                self.store.set_xattr(ino, XattrName::new(name)?, &pattern(*seed, 0, *len), *set)?;
                Ok(Outcome::Done)
            }
            Op::GetXattr(_, name) => Ok(Outcome::Bytes(self.store.xattr(ino, XattrName::new(name)?)?)),
            Op::RemoveXattr(_, name) => {
                self.store.remove_xattr(ino, XattrName::new(name)?)?;
                Ok(Outcome::Done)
            }
            Op::ListXattrs(_) => {
                let names = user_names(&self.store.xattr_names(ino)?);
                Ok(Outcome::Names(names.into_iter().map(|name| (name, attr.kind)).collect()))
            }
            _ => unreachable!("not an operation on extended attributes"),
        }
    }

    /// Extended attributes for a snapshot; none where the store has none.
    fn xattrs(&self, attr: &Attr) -> Run<Xattrs> {
        if !takes_xattrs(attr.kind) || !self.store.capabilities().xattrs {
            return Ok(Xattrs::new());
        }
        let names = user_names(&self.store.xattr_names(attr.ino)?);
        names.into_iter().map(|name| Ok((name.clone(), self.store.xattr(attr.ino, XattrName::new(&name)?)?))).collect()
    }

    /// Sorted entries; read in parts where cookies allow it.
    fn list(&mut self, dir: Ino) -> Run<Vec<(Vec<u8>, Kind)>> {
        let part = if self.store.capabilities().stable_cookies { 3 } else { usize::MAX };
        let mut entries = Vec::new();
        let mut start = 0;
        loop {
            let mut taken = 0;
            self.store.read_dir(dir, start, &mut |e: DirEntry<'_>| {
                entries.push((e.name.as_bytes().to_vec(), e.kind));
                start = e.cookie;
                taken += 1;
                if taken < part { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            if taken < part {
                break;
            }
        }
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(entries)
    }

    fn walk(&mut self, dir: Ino, at: &mut Place, found: &mut Snapshot) -> Result<(), String> {
        let fail = |at: &Place, what: &str, e: FsError| format!("{what} {:?}: {e}", Shown(at.clone()));
        for (name, kind) in self.list(dir).map_err(|e| fail(at, "list", e))? {
            at.push(name.clone());
            let attr = self.step(dir, &name).map_err(|e| fail(at, "look up", e))?;
            if attr.kind != kind {
                return Err(format!("{:?} is listed as {kind:?} and is {:?}", Shown(at.clone()), attr.kind));
            }
            // The walk below may push this one out of what is held.
            self.take(attr.ino);
            let content = match kind {
                Kind::File => self.whole(attr).map_err(|e| fail(at, "read", e)),
                Kind::Symlink => self.store.readlink(attr.ino).map_err(|e| fail(at, "read link", e)),
                _ => Ok(Vec::new()),
            };
            let xattrs = self.xattrs(&attr).map_err(|e| fail(at, "extended attributes of", e))?;
            found.0.insert(Shown(at.clone()), Found { seen: seen(&attr), content: content?, xattrs });
            if kind == Kind::Directory {
                self.walk(attr.ino, at, found)?;
            }
            self.release(attr.ino);
            at.pop();
        }
        Ok(())
    }

    fn whole(&mut self, attr: Attr) -> Run<Vec<u8>> {
        let file = self.store.open(attr.ino, Access::Read)?;
        // One more than there should be, so that a file that is longer than it says shows.
        let mut content = vec![0; attr.size as usize + 1];
        let len = file.read_at(0, &mut content)?;
        content.truncate(len);
        Ok(content)
    }
}

/// What lies in the ranges that are said to be data, and zeros between them.
fn read_sparse(file: &dyn StoreFile) -> Run<Vec<u8>> {
    let mut content = vec![0; file.len()? as usize];
    let mut at = 0;
    loop {
        let data = match file.seek_data(at) {
            Ok(data) => data,
            Err(e) if e.kind() == ErrorKind::NoData => return Ok(content),
            Err(e) => return Err(e),
        };
        let hole = file.seek_hole(data)?;
        assert!(at <= data && data < hole && hole <= content.len() as u64, "data at {data}..{hole}, asked at {at}");
        let range = data as usize..hole as usize;
        assert_eq!(file.read_at(data, &mut content[range.clone()])?, range.len(), "data can be read");
        at = hole;
    }
}

fn seen(attr: &Attr) -> Seen {
    let directory = attr.kind == Kind::Directory;
    Seen {
        kind: attr.kind,
        perm: if attr.kind == Kind::Symlink { 0 } else { attr.perm },
        size: if directory { 0 } else { attr.size },
        nlink: if directory { 0 } else { attr.nlink },
        owner: (attr.uid, attr.gid),
    }
}

impl Subject for StoreSubject<'_> {
    fn run(&mut self, op: &Op) -> Outcome {
        let outcome = match op {
            Op::Create(..) | Op::Mkdir(..) | Op::Mknod(..) | Op::Symlink(..) | Op::Link(..) => self.on_names(op),
            Op::Unlink(..) | Op::Rmdir(..) | Op::Rename(..) => self.on_names(op),
            Op::Write(..) | Op::Read(..) | Op::Truncate(..) | Op::Allocate(..) => self.on_content(op),
            Op::Sync(..) | Op::Open(..) | Op::Close(..) | Op::ReadSparse(_) => self.on_content(op),
            Op::SetXattr(Shown(at), ..) | Op::GetXattr(Shown(at), _) => self.on_xattrs(at, op),
            Op::RemoveXattr(Shown(at), _) | Op::ListXattrs(Shown(at)) => self.on_xattrs(at, op),
            _ => self.on_attributes(op),
        };
        outcome.unwrap_or_else(|e| Outcome::Failed(errno_of(e.kind())))
    }

    fn snapshot(&mut self) -> Result<Snapshot, String> {
        let mut found = Snapshot::default();
        self.walk(Ino::ROOT, &mut Vec::new(), &mut found)?;
        Ok(found)
    }
}
