//! One operation on a branch as one batch: reads see what it has written already, and each write keeps what others see.
//!
//! **Where a write goes.** If the nearest version of the key lies in the branch's chain, nobody else sees it: it is written
//! over. Else a version of the live id is added, and the key noted as touched. A key that goes leaves a tombstone only if
//! something outside of the chain would be seen otherwise.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use adit_core::types::{Kind, Timestamp};
use adit_core::{ErrorKind, Result};

use super::draft::{Draft, blocks_of};
use super::topology::Chain;
use super::view::{Found, View, cookie_in, corrupt_inode, corrupt_key};
use super::{INOS_AT_ONCE, Numbers, meta};
use crate::format::keys::{self, Id, Key};
use crate::format::records::{self, Block, Entry, Inode, Place, Window};
use crate::fs::cache::InodeCache;
use crate::table::Run;

/// An inode that an operation looks at.
#[derive(Clone)]
struct Held {
    owner: Option<Id>,
    inode: Inode,
    changed: bool,
}

/// The nearest version of a key: the logical key, who wrote it, and its value if it has one.
type Seen = (Vec<u8>, Id, Option<Vec<u8>>);

/// Where a name is in its directory, or where it can go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
    Taken { cookie: u64, owner: Id, ino: u64, kind: Kind },
    Free { cookie: u64, owner: Option<Id> },
}

/// See the module's notes.
pub(crate) struct Change<'c, 't> {
    pub view: &'c View<'t>,
    chain: Arc<Chain>,
    /// The id that is written, if nobody else sees what it writes: what a restore that failed left below it does.
    exclusive: Option<Id>,
    pub draft: Draft<'t>,
    numbers: &'c mut Numbers,
    limit: u64,
    inodes: BTreeMap<u64, Held>,
    /// While a part is going on that may be taken back: the inodes that it changed, as they were before it.
    before: Option<BTreeMap<u64, Option<Held>>>,
    /// Entries that came, went, or lead elsewhere, for who keeps such.
    names: Vec<(u64, Box<[u8]>)>,
    /// A directory moves or goes.
    pub moves_directory: bool,
    /// The time of the operation.
    pub now: Timestamp,
}

impl<'c, 't> Change<'c, 't> {
    /// An empty one on a branch; `ReadOnly` on a snapshot.
    pub fn new(view: &'c View<'t>, numbers: &'c mut Numbers) -> Result<Self> {
        let chain = view.chain.clone().ok_or(ErrorKind::ReadOnly)?;
        let limit = numbers.limit;
        let draft = Draft::new(view.tree);
        let exclusive = Some(view.id).filter(|&id| view.topology.node(id).is_ok_and(|node| node.children.is_empty()));
        let inodes = BTreeMap::new();
        Ok(Change {
            view,
            chain,
            exclusive,
            draft,
            numbers,
            limit,
            inodes,
            before: None,
            names: Vec::new(),
            moves_directory: false,
            now: Timestamp::of_tick(),
        })
    }

    /// Runs a part of the operation. If it fails, nothing of it is left.
    pub fn attempt<R>(&mut self, part: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let limit = self.limit;
        self.before = Some(BTreeMap::new());
        self.draft.begin();
        let result = part(self);
        self.draft.end(result.is_ok());
        let before = self.before.take().filter(|_| result.is_err());
        if result.is_err() {
            // Numbers that were given out are not given out again.
            self.limit = limit;
        }
        for (ino, held) in before.into_iter().flatten() {
            match held {
                Some(held) => self.inodes.insert(ino, held),
                None => self.inodes.remove(&ino),
            };
        }
        result
    }

    /// Keeps an inode as it is, in case that the part is taken back.
    fn keep(&mut self, ino: u64) {
        if let Some(before) = &mut self.before
            && let Slot::Vacant(slot) = before.entry(ino)
        {
            slot.insert(self.inodes.get(&ino).cloned());
        }
    }

    /// About how long it is in the log, in bytes.
    pub fn len_bytes(&self) -> usize {
        /// Of an inode's record, without what is inline.
        const INODE_LEN_BYTES: usize = 160;
        self.draft.len_bytes() + self.inodes.len() * INODE_LEN_BYTES
    }

    /// The nearest version of a key.
    pub fn find(&self, key: &Key) -> Result<Found> {
        if self.draft.is_untouched(&key.at(self.view.id), &key.end()) {
            return self.view.find(key);
        }
        let versions = self.draft.versions(key)?;
        let Some((owner, value)) = versions.into_iter().find(|(id, _)| self.view.topology.sees(self.view.id, *id))
        else {
            return Ok(Found::default());
        };
        let value = Some(value).filter(|v| !records::is_tombstone(v));
        Ok(Found { owner: Some(owner), value: value.map(Into::into) })
    }

    /// Writes a key whose nearest version `owner` wrote.
    pub fn put(&mut self, key: &Key, owner: Option<Id>, value: Vec<u8>) {
        match owner {
            Some(owner) if self.chain.contains(owner) => self.draft.set(key.at(owner), Some(value)),
            _ => {
                self.draft.set(key.at(self.view.id), Some(value));
                if !self.chain.topmost {
                    self.draft.set(keys::touched(self.view.id, key.as_bytes()), Some(records::TOUCHED.to_vec()));
                }
            }
        }
    }

    /// Removes a key whose nearest version `owner` wrote.
    pub fn delete(&mut self, key: &Key, owner: Option<Id>) -> Result<()> {
        let Some(owner) = owner else { return Ok(()) };
        let own = self.chain.contains(owner);
        if own && self.chain.topmost && self.chain.settled {
            return self.drop_own(key, owner);
        }
        let mut versions = self.draft.versions(key)?;
        versions.retain(|(id, _)| self.view.topology.sees(self.view.id, *id));
        let beyond = versions.iter().find(|(id, _)| !self.chain.contains(*id));
        let hides = beyond.is_some_and(|(_, value)| !records::is_tombstone(value));
        versions.retain(|(id, _)| self.chain.contains(*id));
        self.draft.drop_versions(key, &versions)?;
        if hides {
            // At the same place again, if it was ours.
            let owner = Some(owner).filter(|_| own);
            self.put(key, owner, records::TOMBSTONE.to_vec());
            if let Some(owner) = owner
                && owner != super::topology::FIRST_ID
                && !self.chain.topmost
            {
                self.draft.set(keys::touched(owner, key.as_bytes()), Some(records::TOUCHED.to_vec()));
            }
        }
        Ok(())
    }

    /// Drops the only version of a key.
    fn drop_own(&mut self, key: &Key, owner: Id) -> Result<()> {
        if matches!(key.parts(), Some(keys::Parts::Window(..))) {
            let found = self.find(key)?;
            self.draft.set(key.at(owner), None);
            if let Some(value) = found.value {
                self.draft.free(key, &blocks_of(key, &value), self.exclusive)?;
            }
            return Ok(());
        }
        self.draft.set(key.at(owner), None);
        Ok(())
    }

    /// Puts `new` in the place of the window `old`, whose version `owner` wrote, and frees what nobody else has.
    pub fn put_window(&mut self, key: &Key, owner: Option<Id>, old: &Window, new: &Window) -> Result<()> {
        if new.count() == 0 {
            return self.delete(key, owner);
        }
        self.put(key, owner, new.encode());
        if owner.is_some_and(|owner| self.chain.contains(owner)) {
            // No block ever moves within its window.
            let gone: Vec<Block> = old.iter().filter(|(at, b)| new.get(*at) != Some(*b)).map(|(_, b)| b).collect();
            self.draft.free(key, &gone, self.exclusive)?;
        }
        Ok(())
    }

    /// The record of an inode.
    pub fn inode(&mut self, ino: u64) -> Result<&Inode> {
        self.held(ino).map(|held| &held.inode)
    }

    /// The record of an inode that is only looked at.
    pub fn peek(&self, ino: u64) -> Result<Inode> {
        match self.inodes.get(&ino) {
            Some(held) => Ok(held.inode.clone()),
            None => self.load(ino).map(|held| held.inode),
        }
    }

    fn load(&self, ino: u64) -> Result<Held> {
        let found = self.find(&Key::inode(ino))?;
        let value = found.value.ok_or(ErrorKind::Stale)?;
        let inode = Inode::decode(&value).map_err(|why| corrupt_inode(ino, why))?;
        Ok(Held { owner: found.owner, inode, changed: false })
    }

    /// The record of an inode, to change it.
    pub fn edit(&mut self, ino: u64) -> Result<&mut Inode> {
        self.held(ino)?;
        self.keep(ino);
        let held = self.held(ino)?;
        held.changed = true;
        Ok(&mut held.inode)
    }

    fn held(&mut self, ino: u64) -> Result<&mut Held> {
        if !self.inodes.contains_key(&ino) {
            let held = self.load(ino)?;
            self.inodes.insert(ino, held);
        }
        match self.inodes.entry(ino) {
            Slot::Occupied(held) => Ok(held.into_mut()),
            Slot::Vacant(_) => Err(ErrorKind::Stale.into()),
        }
    }

    /// Adds an inode under a number that was never used.
    pub fn add_inode(&mut self, inode: Inode) -> u64 {
        let ino = self.numbers.next;
        self.numbers.next += 1;
        if self.numbers.next > self.limit {
            self.limit = self.numbers.next + INOS_AT_ONCE;
            self.draft.set(keys::meta(meta::NEXT_INO), Some(records::encode_meta(self.limit)));
        }
        self.set_inode(ino, None, inode);
        ino
    }

    /// Adds or replaces the record of an inode whose nearest version `owner` wrote.
    pub fn set_inode(&mut self, ino: u64, owner: Option<Id>, inode: Inode) {
        self.keep(ino);
        self.inodes.insert(ino, Held { owner, inode, changed: true });
    }

    /// Removes the record of an inode.
    pub fn delete_inode(&mut self, ino: u64) -> Result<()> {
        let owner = self.held(ino)?.owner;
        self.keep(ino);
        self.inodes.remove(&ino);
        self.delete(&Key::inode(ino), owner)
    }

    /// Where `name` is in `dir`, or can go.
    pub fn spot(&self, dir: u64, name: &[u8]) -> Result<Spot> {
        let first = self.view.tree.hash.cookie(name);
        let mut free = None;
        let mut at = first;
        let (start, end) = (Key::entry(dir, first), Key::entry(dir, first + keys::cookie::SLOTS));
        for (key, owner, value) in self.seen(start.as_bytes(), end.as_bytes())? {
            let cookie = cookie_in(&key)?;
            if free.is_none() && cookie > at {
                free = Some(Spot::Free { cookie: at, owner: None });
            }
            at = cookie + 1;
            let Some(value) = value else {
                free.get_or_insert(Spot::Free { cookie, owner: Some(owner) });
                continue;
            };
            let entry = Entry::decode(&value).map_err(|why| corrupt_inode(dir, why))?;
            if entry.name == name {
                return Ok(Spot::Taken { cookie, owner, ino: entry.ino, kind: entry.kind });
            }
        }
        match free {
            Some(free) => Ok(free),
            None if at < first + keys::cookie::SLOTS => Ok(Spot::Free { cookie: at, owner: None }),
            // 256 names with one hash of 55 bits, under a secret: not by chance.
            None => Err(ErrorKind::NoSpace.into()),
        }
    }

    /// The nearest versions of all keys of a short range, tombstones as `None`.
    pub fn seen(&self, start: &[u8], end: &[u8]) -> Result<Vec<Seen>> {
        let mut seen: Vec<Seen> = Vec::new();
        for (bytes, value) in self.draft.range(start, end)? {
            let (logical, owner) = keys::split(&bytes).ok_or_else(|| corrupt_key(&bytes, "it is no key"))?;
            let first = seen.last().is_none_or(|(key, ..)| key != logical);
            if first && self.view.topology.sees(self.view.id, owner) {
                seen.push((logical.to_vec(), owner, Some(value).filter(|v| !records::is_tombstone(v))));
            }
        }
        Ok(seen)
    }

    fn cache(&self) -> Option<&InodeCache> {
        self.view.cache.and_then(OnceLock::get)
    }

    /// Notes that an entry comes, goes, or leads elsewhere.
    pub fn note_name(&mut self, dir: u64, name: &[u8]) {
        if self.cache().is_some() {
            self.names.push((dir, name.into()));
        }
    }

    /// Removes an entry.
    pub fn delete_entry(&mut self, place: Place, owner: Id, name: &[u8]) -> Result<()> {
        self.note_name(place.dir, name);
        self.delete(&Key::entry(place.dir, place.cookie), Some(owner))
    }

    /// Makes an entry.
    pub fn put_entry(&mut self, dir: u64, cookie: u64, owner: Option<Id>, entry: &Entry<'_>) {
        self.note_name(dir, entry.name);
        self.put(&Key::entry(dir, cookie), owner, entry.encode());
    }

    /// Notes a further name of an inode.
    pub fn add_name(&mut self, ino: u64, place: Place) -> Result<()> {
        let inode = self.edit(ino)?;
        if inode.place == Place::default() {
            inode.place = place;
            return Ok(());
        }
        let key = Key::name(ino, place.dir, place.cookie);
        let owner = self.find(&key)?.owner;
        self.put(&key, owner, records::NAME.to_vec());
        Ok(())
    }

    /// Forgets a name of an inode, and takes another one for its first if it has any.
    pub fn remove_name(&mut self, ino: u64, place: Place) -> Result<()> {
        if self.inode(ino)?.place != place {
            let key = Key::name(ino, place.dir, place.cookie);
            let owner = self.find(&key)?.owner;
            return self.delete(&key, owner);
        }
        let next = if self.inode(ino)?.kind == Kind::Directory { None } else { self.further_name(ino, place)? };
        self.edit(ino)?.place = next.map_or(Place::default(), |(place, _)| place);
        match next {
            Some((place, owner)) => self.delete(&Key::name(ino, place.dir, place.cookie), Some(owner)),
            None => Ok(()),
        }
    }

    /// A name of an inode beside its first one: the next behind that, for those before it may all be gone.
    fn further_name(&self, ino: u64, first: Place) -> Result<Option<(Place, Id)>> {
        let (start, end) = keys::range_of(keys::space::NAME, ino);
        let behind = Key::name(ino, first.dir, first.cookie).end();
        match self.name_between(&behind, &end)? {
            None => self.name_between(&start, &behind),
            found => Ok(found),
        }
    }

    fn name_between(&self, start: &[u8], end: &[u8]) -> Result<Option<(Place, Id)>> {
        let mut found = None;
        self.view.scan(start, end, &mut |key, _| {
            found = self.further_name_at(key)?;
            Ok(if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let mut written = self.draft.written(start, end).filter_map(|bytes| Some(keys::split(bytes)?.0));
        while found.is_none()
            && let Some(key) = written.next()
        {
            found = self.further_name_at(key)?;
        }
        Ok(found)
    }

    fn further_name_at(&self, logical: &[u8]) -> Result<Option<(Place, Id)>> {
        let Some(key) = Key::from_logical(logical) else { return Ok(None) };
        let Found { owner, value } = self.find(&key)?;
        match (key.parts(), owner, value) {
            (Some(keys::Parts::Name(_, dir, cookie)), Some(owner), Some(_)) => Ok(Some((Place { dir, cookie }, owner))),
            _ => Ok(None),
        }
    }

    /// Makes written blocks part of the volume.
    pub fn allocate(&mut self, run: Run, sums: Vec<u32>) {
        self.draft.allocated.push((run, sums));
    }

    /// Applies it all.
    pub fn commit(mut self) -> Result<()> {
        let cache = self.view.cache.and_then(OnceLock::get);
        let mut changed = Vec::new();
        for (ino, held) in std::mem::take(&mut self.inodes) {
            if held.changed {
                self.put(&Key::inode(ino), held.owner, held.inode.encode());
                changed.extend(cache.map(|_| ino));
            }
        }
        let applied = self.draft.apply();
        if let Some(cache) = cache {
            // Also after an error: nobody knows then.
            changed.into_iter().for_each(|ino| cache.forget_attr(ino));
            self.names.iter().for_each(|(dir, name)| cache.forget_entry(*dir, name));
            if self.moves_directory {
                cache.paths().directory_moved();
            }
        }
        applied?;
        self.numbers.limit = self.limit;
        Ok(())
    }
}
