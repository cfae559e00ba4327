//! Setting one path of a branch back to what it was in a snapshot, as one step.
//!
//! It is built on an id of its own, a child of the branch's, operation by operation, while nobody else uses the tree. The last
//! batch makes this id the branch. So whatever lies below the path, others see it as it was or as it is, and so they do after
//! a crash: what was being built is dropped when the volume is opened.
//!
//! It costs what differs, and the entries of the directories on the way there: a name that leads to the same inode, which nobody touched since the
//! snapshot, stays, and so does a directory with nothing below it that was touched ([`Difference`]). Of the rest, all names go first and come back
//! then, for only so is it known which inodes have a name elsewhere.
//!
//! An inode that has no name in the branch but below the path gets back its number and its content. One that has a name
//! elsewhere is left alone: if it is still what it was, it gets a further name here, else this name gets a copy.
//!
//! **Times.** What differed has the time of change of the restore, so that incremental backups see it; what did not keeps its own
//! ([`Stamps`]).

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use adit_core::types::{FileName, Kind, Timestamp};
use adit_core::{ErrorKind, FsError, Result};

use super::content::{Node, Times};
use super::namespace::Gone;
use super::stamps::{Mtimes, Stamps};
use super::topology::Topology;
use super::view::{View, corrupt_inode};
use super::{Change, ROOT_INO, Tree};
use crate::format::keys::{self, Id, Key, Parts};
use crate::format::records::{Entry, Inode, Malformed, Place, Snapshot, State};

/// Bytes of content that are copied at once.
const COPY_AT_ONCE_BYTES: usize = 1 << 20;

/// Most paths that [`Restored`] names.
const SEPARATED_MAX: usize = 100;

/// What came of the restore of a path.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Inodes that lost their last name by it.
    pub gone: Vec<Gone>,
    /// Paths of files that share nothing any more with names outside of what was restored, though they did in the snapshot or
    /// before: what is there under those names is not what it was in the snapshot, and is left alone. The first ones only.
    pub separated: Vec<Vec<u8>>,
    /// So many more.
    pub separated_omitted: u64,
}

impl Tree {
    /// Sets `path` (names from the root) of `branch` back to what it is in `snapshot`; where it is not there, it is removed.
    /// Tells what came of it.
    ///
    /// # Errors
    /// `NotFound` if the branch has no directory to put it in, or neither has it; `InvalidInput` for the root, which is
    /// [`Tree::restore`]'s.
    pub fn restore_path(&self, branch: &str, snapshot: &str, path: &[&[u8]], mtimes: Mtimes) -> Result<Restored> {
        let Some((name, parents)) = path.split_last() else { return Err(ErrorKind::InvalidInput.into()) };
        let name = FileName::new(name)?;
        let _alone = self.collecting.lock();
        let mut topology = self.topology.write();
        let of_state = |name: &str, state: State| match topology.named(name) {
            Some((id, record)) if record.state == state => Ok((id, record.clone())),
            _ => Err(FsError::new(ErrorKind::NotFound).on("restore", name)),
        };
        let (from, _) = of_state(snapshot, State::Frozen)?;
        let (live, record) = of_state(branch, State::Live)?;
        self.drop_staging_below(&mut topology, live)?;
        let next = topology.last_id().checked_add(1).ok_or(ErrorKind::Exhausted)?;
        let staging = Snapshot { state: State::Staging, parent: live, created: Timestamp::now(), ..record.clone() };
        self.write_snapshots(&[(next, Some(&staging))])?;
        topology.insert(next, staging.clone());
        let built = self.build(&topology, [from, live, next], parents, name, mtimes);
        let switched = built.and_then(|restored| {
            let old = Snapshot { state: State::Merging, ..record.clone() };
            let new = Snapshot { state: State::Live, created: record.created, ..staging };
            self.write_snapshots(&[(live, Some(&old)), (next, Some(&new))])?;
            topology.replace(live, old);
            topology.replace(next, new);
            Ok(restored)
        });
        if switched.is_err() {
            // Before anybody writes: the live branch may take blocks for its own that this one refers to as well.
            // If that fails as well, it is done later: see [`Tree::collect`].
            if let Err(e) = self.drop_staging_in(&mut topology, next) {
                tracing::warn!("what the restore of a path made is dropped later: {e}");
            }
        }
        switched
    }

    fn build(
        &self,
        topology: &Topology,
        ids: [Id; 3],
        parents: &[&[u8]],
        name: FileName<'_>,
        mtimes: Mtimes,
    ) -> Result<Restored> {
        let [old, was, new] = self.views_alone(topology, ids);
        let Some(dir) = new.walk(parents)? else {
            // The first one that is missing is named, since it is not what was asked for.
            let is_missing = |len: &usize| matches!(new.walk(parents.split_at(*len).0), Ok(None));
            let len = (1..parents.len()).find(is_missing).unwrap_or(parents.len());
            return Err(missing(parents.split_at(len).0));
        };
        let source = match old.walk(parents) {
            Ok(Some(dir)) => old.entry(dir, name.as_bytes())?,
            // What was no directory then had nothing in it.
            Ok(None) => None,
            Err(e) if e.kind() == ErrorKind::NotDirectory => None,
            Err(e) => return Err(e),
        };
        if source.is_none() && new.entry(dir, name.as_bytes())?.is_none() {
            let path: Vec<&[u8]> = parents.iter().copied().chain([name.as_bytes()]).collect();
            return Err(missing(&path));
        }
        let difference = Difference::between([&old, &was])?;
        let stamps = Stamps::between(was, &old, mtimes)?;
        let (inodes, gone, separated) = (HashMap::new(), Vec::new(), Vec::new());
        let mut restore = Restore { old, new, difference, stamps, inodes, gone, separated };
        let source = source.map(|(_, ino, kind)| Target { name: name.as_bytes().to_vec(), ino, kind });
        restore.set_back(dir, name, source)?;
        let Restore { new, gone, separated, .. } = restore;
        let lost = |gone: &Gone| new.inode(gone.0).is_ok_and(|inode| inode.nlink == 0);
        let gone = gone.into_iter().filter(lost).collect();
        let separated_omitted = separated.len().saturating_sub(SEPARATED_MAX) as u64;
        let named = separated.into_iter().take(SEPARATED_MAX).map(|ino| new.path_bytes_of(ino));
        Ok(Restored { gone, separated: named.filter_map(Result::transpose).collect::<Result<_>>()?, separated_omitted })
    }
}

/// `NotFound`, naming the path.
fn missing(path: &[&[u8]]) -> FsError {
    let shown: String = path.iter().map(|name| format!("/{}", String::from_utf8_lossy(name))).collect();
    FsError::new(ErrorKind::NotFound).on("restore", shown)
}

impl View<'_> {
    /// The directory to which these names lead.
    pub(super) fn walk(&self, names: &[&[u8]]) -> Result<Option<u64>> {
        let mut at = ROOT_INO;
        for name in names {
            match self.entry(at, name)? {
                Some((_, ino, Kind::Directory)) => at = ino,
                Some(_) => return Err(ErrorKind::NotDirectory.into()),
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// All entries of a directory.
    pub(super) fn entries(&self, dir: u64) -> Result<Vec<(Vec<u8>, u64, Kind)>> {
        let (start, end) = keys::range_of(keys::space::ENTRY, dir);
        let mut entries = Vec::new();
        self.scan(&start, &end, &mut |_, value| {
            let entry = Entry::decode(value).map_err(|why| corrupt_inode(dir, why))?;
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(entries)
    }

    /// Logical keys and values of an inode's windows or extended attributes.
    fn parts_of(&self, space: u8, ino: u64) -> Result<HashMap<Key, Vec<u8>>> {
        let (start, end) = keys::range_of(space, ino);
        let mut parts = HashMap::new();
        self.scan(&start, &end, &mut |key, value| {
            if let Some(key) = Key::from_logical(key) {
                parts.insert(key, value.to_vec());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(parts)
    }
}

/// Where a name of the snapshot leads.
struct Target {
    name: Vec<u8>,
    ino: u64,
    kind: Kind,
}

/// What is not the same in two states of a tree.
struct Difference {
    /// Inodes whose record, content, attributes or entries differ.
    inodes: HashSet<u64>,
    /// The directories above them, in each state.
    above: [HashSet<u64>; 2],
}

impl Difference {
    fn between(views: [&View<'_>; 2]) -> Result<Difference> {
        let mut inodes = HashSet::new();
        let way = views[0].topology.way(views.map(|view| view.id));
        for key in views[0].tree.touched_by(&way)? {
            if let Some(Parts::Entry(ino, _) | Parts::Inode(ino) | Parts::Window(ino, _) | Parts::Xattr(ino, _)) =
                key.parts()
                && !inodes.contains(&ino)
                && views[0].find(&key)?.value != views[1].find(&key)?.value
            {
                inodes.insert(ino);
            }
        }
        let above = [Difference::above(views[0], &inodes)?, Difference::above(views[1], &inodes)?];
        Ok(Difference { inodes, above })
    }

    fn above(view: &View<'_>, inodes: &HashSet<u64>) -> Result<HashSet<u64>> {
        let (mut above, mut todo) = (HashSet::new(), Vec::new());
        for &ino in inodes {
            todo.push(ino);
            while let Some(ino) = todo.pop() {
                let places = match view.places(ino) {
                    Err(e) if e.kind() == ErrorKind::Stale => continue,
                    places => places?,
                };
                todo.extend(places.into_iter().map(|place| place.dir).filter(|dir| above.insert(*dir)));
            }
        }
        Ok(above)
    }

    /// Whether an inode is in both states what it is, and so is all that is below it, if it is in the same place.
    fn leaves(&self, ino: u64) -> bool {
        !self.inodes.contains(&ino) && self.above.iter().all(|above| !above.contains(&ino))
    }
}

struct Restore<'t> {
    /// The snapshot.
    old: View<'t>,
    difference: Difference,
    /// The branch as it becomes.
    new: View<'t>,
    /// Which times what is put back gets.
    stamps: Stamps<'t>,
    /// Inodes of the snapshot that were put back, and as which.
    inodes: HashMap<u64, u64>,
    gone: Vec<Gone>,
    /// Copies of files that have names elsewhere; see [`Restored::separated`].
    separated: Vec<u64>,
}

/// A directory with two names, which only damage makes. It might hold itself.
const SEEN_TWICE: Malformed = Malformed("a directory that is in two places");

/// What is to be done to put a tree back.
enum Step {
    Put { ino: u64, kind: Kind, dir: u64, name: Vec<u8> },
    Times { to: u64, mtime: Timestamp, ctime: Timestamp },
}

impl<'t> Restore<'t> {
    fn change<R>(&self, work: impl FnOnce(&mut Change<'_, 't>) -> Result<R>) -> Result<R> {
        self.new.tree.change(&self.new, work)
    }

    /// Has the name lead where it led in the snapshot, `None` for nowhere, with all that is below.
    fn set_back(&mut self, dir: u64, name: FileName<'_>, source: Option<Target>) -> Result<()> {
        let (mut places, mut directories) = (Vec::new(), Vec::new());
        let there = self.new.entry(dir, name.as_bytes())?;
        let there = there.map(|(_, ino, kind)| (name.as_bytes().to_vec(), ino, kind));
        let mut todo = vec![(dir, Vec::from_iter(there), Vec::from_iter(source))];
        let mut entered = HashSet::new();
        while let Some((dir, there, sources)) = todo.pop() {
            let mut sources: HashMap<Vec<u8>, Target> =
                sources.into_iter().map(|source| (source.name.clone(), source)).collect();
            for (name, ino, kind) in there {
                let is_same = sources.get(&name).is_some_and(|source| (source.ino, source.kind) == (ino, kind));
                if is_same && self.difference.leaves(ino) {
                    sources.remove(&name);
                } else if is_same && kind == Kind::Directory {
                    sources.remove(&name);
                    if !entered.insert(ino) {
                        return Err(corrupt_inode(ino, SEEN_TWICE));
                    }
                    directories.push(ino);
                    let target = |(name, ino, kind)| Target { name, ino, kind };
                    let below = self.old.entries(ino)?.into_iter().map(target).collect();
                    todo.push((ino, self.new.entries(ino)?, below));
                } else {
                    self.remove(dir, FileName::new(&name)?)?;
                }
            }
            places.extend(sources.into_values().map(|source| (dir, source)));
        }
        for (dir, Target { name, ino, kind }) in places {
            self.put_back(ino, kind, (dir, FileName::new(&name)?))?;
        }
        directories.into_iter().try_for_each(|ino| self.set_back_directory(ino))
    }

    /// Gives a directory back what it was, but for its entries, which are back.
    fn set_back_directory(&mut self, ino: u64) -> Result<()> {
        let mut record = self.old.inode(ino)?;
        self.stamps.apply(ino, &mut record);
        self.set_parts(keys::space::XATTR, ino, self.old.parts_of(keys::space::XATTR, ino)?)?;
        self.change(|change| {
            let inode = change.edit(ino)?;
            *inode = Inode { size: inode.size, nlink: inode.nlink, place: inode.place, ..record };
            Ok(())
        })
    }

    /// Removes a name with all that is below it.
    fn remove(&mut self, dir: u64, name: FileName<'_>) -> Result<()> {
        // What is still to go, the next one last, and whether what is in it is gone.
        let mut todo = vec![(dir, name.as_bytes().to_vec(), false)];
        let mut entered = HashSet::new();
        while let Some((dir, name, is_empty)) = todo.pop() {
            let entry = FileName::new(&name)?;
            let (_, ino, kind) = self.new.entry(dir, &name)?.ok_or(ErrorKind::NotFound)?;
            let gone = match kind {
                Kind::Directory if !is_empty => {
                    if !entered.insert(ino) {
                        return Err(corrupt_inode(ino, SEEN_TWICE));
                    }
                    todo.push((dir, name, true));
                    todo.extend(self.new.entries(ino)?.into_iter().map(|(name, ..)| (ino, name, false)));
                    continue;
                }
                Kind::Directory => self.change(|change| change.rmdir(dir, entry))?,
                _ => self.change(|change| change.unlink(dir, entry))?,
            };
            self.gone.extend(gone);
        }
        Ok(())
    }

    /// Puts an inode of the snapshot under a name that is free, with all that is below it.
    fn put_back(&mut self, ino: u64, kind: Kind, (dir, name): (u64, FileName<'_>)) -> Result<()> {
        // What is still to be done, the next one last.
        let mut todo = vec![Step::Put { ino, kind, dir, name: name.as_bytes().to_vec() }];
        while let Some(step) = todo.pop() {
            match step {
                Step::Put { ino, kind, dir, name } => {
                    let Some(made) = self.put_one(ino, kind, (dir, FileName::new(&name)?))? else { continue };
                    todo.push(made);
                    let Some(Step::Times { to, .. }) = todo.last() else { continue };
                    let dir = *to;
                    let below = self.old.entries(ino)?.into_iter();
                    todo.extend(below.map(|(name, ino, kind)| Step::Put { ino, kind, dir, name }));
                }
                // The making of what is in it changed these.
                Step::Times { to, mtime, ctime } => self.set_times(to, mtime, ctime)?,
            }
        }
        Ok(())
    }

    fn set_times(&self, ino: u64, mtime: Timestamp, ctime: Timestamp) -> Result<()> {
        self.change(|change| {
            let inode = change.edit(ino)?;
            (inode.mtime, inode.ctime) = (mtime, ctime);
            Ok(())
        })
    }

    /// Puts one inode back, without what is in it; of a directory, what is to be done once that is there.
    fn put_one(&mut self, ino: u64, kind: Kind, (dir, name): (u64, FileName<'_>)) -> Result<Option<Step>> {
        let directory = kind == Kind::Directory;
        match self.inodes.get(&ino) {
            Some(_) if directory => return Err(corrupt_inode(ino, SEEN_TWICE)),
            Some(&known) => return self.link((ino, known), &self.old.inode(ino)?, (dir, name)).map(|()| None),
            None => {}
        }
        let mut record = self.old.inode(ino)?;
        let (lives, has_record) = match self.new.inode(ino) {
            Ok(inode) => (inode.nlink > 0, true),
            Err(e) if e.kind() == ErrorKind::Stale => (false, false),
            Err(e) => return Err(e),
        };
        let to = if !lives {
            self.stamps.apply(ino, &mut record);
            self.revive(ino, &record, has_record, (dir, name))?;
            ino
        } else if !directory && self.is_same(ino, &record)? {
            self.link((ino, ino), &record, (dir, name))?;
            ino
        } else {
            // One that only moved away had no name here that was one of several.
            let had_several = record.nlink > 1 || self.stamps.was.inode(ino).is_ok_and(|was| was.nlink > 1);
            self.stamps.changed(&mut record);
            let copy = self.copy(ino, &record, (dir, name))?;
            if !directory && had_several {
                self.separated.push(copy);
            }
            copy
        };
        self.inodes.insert(ino, to);
        Ok(directory.then_some(Step::Times { to, mtime: record.mtime, ctime: record.ctime }))
    }

    /// Gives an inode of the snapshot, which is `to` in the branch and has a name there, a further one.
    ///
    /// Once a file that nobody changed since the snapshot has all its names again, nothing about it is new, and its time of
    /// change is what it was: who knows it need not be told.
    fn link(&self, (ino, to): (u64, u64), record: &Inode, (dir, name): (u64, FileName<'_>)) -> Result<()> {
        let unchanged = self.stamps.unchanged(ino, record).filter(|_| ino == to);
        self.change(|change| {
            change.link(to, dir, name)?;
            let inode = change.edit(to)?;
            if let Some(ctime) = unchanged
                && inode.nlink == record.nlink
            {
                inode.ctime = ctime;
            }
            Ok(())
        })
    }

    /// Whether an inode is in the branch what it was, but for its names.
    fn is_same(&self, ino: u64, record: &Inode) -> Result<bool> {
        let now = self.new.inode(ino)?;
        let names_aside =
            Inode { nlink: now.nlink, ctime: now.ctime, atime: now.atime, place: now.place, ..record.clone() };
        let parts = |view: &View<'_>| -> Result<_> {
            Ok((view.parts_of(keys::space::WINDOW, ino)?, view.parts_of(keys::space::XATTR, ino)?))
        };
        Ok(now == names_aside && parts(&self.old)? == parts(&self.new)?)
    }

    /// Gives an inode that has no name in the branch its number, its content and a name.
    fn revive(&self, ino: u64, record: &Inode, has_record: bool, to: (u64, FileName<'_>)) -> Result<()> {
        let mut dropped = 0;
        for space in [keys::space::WINDOW, keys::space::XATTR] {
            let mut wanted = self.old.parts_of(space, ino)?;
            if space == keys::space::WINDOW && record.is_cut {
                let first = super::content::first_behind(record.size);
                let is_behind = |key: &Key| matches!(key.parts(), Some(Parts::Window(_, index)) if index >= first);
                for (key, value) in wanted.extract_if(|key, _| is_behind(key)) {
                    dropped += super::draft::decode_window(&key, &value)?.count();
                }
            }
            self.set_parts(space, ino, wanted)?;
        }
        self.change(|change| {
            let key = Key::orphan(ino);
            let found = change.find(&key)?;
            if found.value.is_some() {
                change.delete(&key, found.owner)?;
            }
            let fresh = Inode {
                nlink: if record.kind == Kind::Directory { 2 } else { 0 },
                blocks: record.blocks.saturating_sub(dropped),
                is_cut: false,
                ..record.clone()
            };
            change.adopt(ino, has_record, fresh, to)
        })
    }

    /// Has an inode's windows or extended attributes be these.
    fn set_parts(&self, space: u8, ino: u64, mut wanted: HashMap<Key, Vec<u8>>) -> Result<()> {
        let have = self.new.parts_of(space, ino)?;
        let differs = |key: &Key| wanted.get(key) != have.get(key);
        let mut keys: Vec<Key> = wanted.keys().chain(have.keys()).filter(|key| differs(key)).cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            self.change(|change| {
                while !change.draft.is_full()
                    && let Some(key) = keys.next()
                {
                    change.put_part(&key, wanted.remove(&key))?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes an inode like one of the snapshot, with a number of its own. (A directory without its entries.)
    fn copy(&self, ino: u64, record: &Inode, to: (u64, FileName<'_>)) -> Result<u64> {
        let xattrs = self.old.parts_of(keys::space::XATTR, ino)?;
        let copy = self.change(|change| {
            let fresh = Inode {
                nlink: if record.kind == Kind::Directory { 2 } else { 0 },
                in_windows: false,
                is_cut: false,
                size: if record.in_windows { 0 } else { record.size },
                blocks: 0,
                ..record.clone()
            };
            change.adopt_new(fresh, to)
        })?;
        let mut xattrs = xattrs.into_iter().peekable();
        while xattrs.peek().is_some() {
            self.change(|change| {
                while !change.draft.is_full()
                    && let Some((key, value)) = xattrs.next()
                {
                    if let Some(Parts::Xattr(_, name)) = key.parts() {
                        change.put(&Key::xattr(copy, name), None, value);
                    }
                }
                Ok(())
            })?;
        }
        if record.kind == Kind::File && record.in_windows {
            let node = Node::default();
            let mut buf = vec![0; COPY_AT_ONCE_BYTES];
            let mut at = 0;
            while let Some(data) = self.data_from(ino, at)? {
                let len = self.old.read(ino, data, &mut buf)?;
                node.write(&self.new, copy, &[(data, &buf[..len])], Times::Now)?;
                at = data + len as u64;
            }
            node.set_len(&self.new, copy, record.size, &Default::default())?;
            self.set_times(copy, record.mtime, record.ctime)?;
        }
        Ok(copy)
    }

    fn data_from(&self, ino: u64, at: u64) -> Result<Option<u64>> {
        match self.old.seek_data(ino, at) {
            Ok(at) => Ok(Some(at)),
            Err(e) if e.kind() == ErrorKind::NoData => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Change<'_, '_> {
    /// Sets a window or an extended attribute as it is, or removes it.
    fn put_part(&mut self, key: &Key, value: Option<Vec<u8>>) -> Result<()> {
        let owner = self.find(key)?.owner;
        match value {
            Some(value) => {
                self.put(key, owner, value);
                Ok(())
            }
            None => self.delete(key, owner),
        }
    }

    /// Gives an inode that has no name a record and a name.
    fn adopt(&mut self, ino: u64, has_record: bool, record: Inode, (dir, name): (u64, FileName<'_>)) -> Result<()> {
        let (kind, ctime) = (record.kind, record.ctime);
        if has_record {
            *self.edit(ino)? = record;
        } else {
            let owner = self.find(&Key::inode(ino))?.owner;
            self.set_inode(ino, owner, record);
        }
        self.name_it(ino, kind, (dir, name))?;
        self.edit(ino)?.ctime = ctime;
        Ok(())
    }

    /// Adds an inode with a name.
    fn adopt_new(&mut self, record: Inode, to: (u64, FileName<'_>)) -> Result<u64> {
        let kind = record.kind;
        let ino = self.add_inode(record);
        self.name_it(ino, kind, to)?;
        Ok(ino)
    }

    fn name_it(&mut self, ino: u64, kind: Kind, (dir, name): (u64, FileName<'_>)) -> Result<()> {
        let super::change::Spot::Free { cookie, owner } = self.spot(dir, name.as_bytes())? else {
            return Err(ErrorKind::Exists.into());
        };
        self.put_entry(dir, cookie, owner, &Entry { ino, kind, name: name.as_bytes() });
        let inode = self.edit(ino)?;
        inode.place = Place { dir, cookie };
        if kind == Kind::Directory {
            inode.size = 0;
        } else {
            inode.nlink = 1;
        }
        self.touch_directory(dir, 1, i32::from(kind == Kind::Directory))
    }
}
