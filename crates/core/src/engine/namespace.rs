//! Names: lookup, and everything that makes, removes or moves one.
//!
//! Invariant: an own change bumps the directory's mark before it touches the dentry cache, and an entry is only cached
//! if the mark did not move while the store was asked. So a cached entry never contradicts an own change.

use std::time::{Duration, Instant};

use super::clock::{Tick, remaining};
use super::dentries::Dentry;
use super::inodes::Fill;
use super::{Engine, Entry, Lookup};
use crate::error::{ErrorKind, Result};
use crate::store::{DirEntry, NewNode, Spelling};
use crate::types::{Attr, Caller, FileName, Ino, Kind, RenameFlags};

impl Engine {
    /// The entry `name` of `parent`, as a reference to it; `NotFound` if there is none.
    pub fn lookup(&self, parent: Ino, name: FileName<'_>) -> Result<Entry> {
        match self.lookup_or_absent(parent, name)? {
            Lookup::Found(entry) => Ok(entry),
            Lookup::Absent { .. } => Err(ErrorKind::NotFound.into()),
        }
    }

    /// As [`Engine::lookup`], with the time for which an absence may be cached.
    #[inline]
    pub fn lookup_or_absent(&self, parent: Ino, name: FileName<'_>) -> Result<Lookup> {
        let now = self.clock.now_for_hit();
        match self.dentries.get(parent, name) {
            Some(Dentry { child: None, expiry }) if expiry > now => {
                self.counters.negative.hit();
                Ok(Lookup::Absent { ttl: remaining(now, expiry, self.options.negative_ttl) })
            }
            dentry => self.lookup_present(parent, name, dentry.filter(|d| d.expiry > now), now),
        }
    }

    /// A lookup of what may be there: by the cached entry, or by the store.
    #[inline(never)]
    fn lookup_present(&self, parent: Ino, name: FileName<'_>, cached: Option<Dentry>, now: Tick) -> Result<Lookup> {
        if let Some(Dentry { child: Some(ino), expiry }) = cached
            && let Some(found) = self.lookup_cached(name, ino, expiry, now)
        {
            return Ok(found);
        }
        if self.await_ahead(parent, name)
            && let Some(Dentry { child: Some(ino), expiry }) = self.dentries.get(parent, name)
            && expiry > now
            && let Some(found) = self.lookup_cached(name, ino, expiry, now)
        {
            return Ok(found);
        }
        self.counters.dentry.miss();
        self.lookup_store(parent, name)
    }

    /// A reference by a cached entry; `None` if its inode is not known any more, or has no attributes to give.
    fn lookup_cached(&self, name: FileName<'_>, ino: Ino, expiry: Tick, now: Tick) -> Option<Lookup> {
        if !self.inodes.add_ref_if_known(ino) {
            return None;
        }
        match self.getattr(ino, None) {
            Ok((attr, attr_ttl)) => {
                self.counters.dentry.hit();
                self.asked_for(ino);
                let entry_ttl = remaining(now, expiry, self.name_ttl(name, true));
                Some(Lookup::Found(Entry { attr, generation: 0, attr_ttl, entry_ttl }))
            }
            Err(_) => {
                self.drop_ref(ino);
                None
            }
        }
    }

    /// How long the kernel may keep it that `name` leads somewhere, or nowhere. What another spelling can change it does not keep:
    /// it knows the name that it changes, and no other.
    fn name_ttl(&self, name: FileName<'_>, leads_somewhere: bool) -> Duration {
        match (self.store.spelling(name), leads_somewhere) {
            (Spelling::Only, true) => self.options.entry_ttl,
            (Spelling::Only, false) => self.options.negative_ttl,
            (Spelling::Stored | Spelling::Other, _) => Duration::ZERO,
        }
    }

    /// Until when the engine keeps it; `now` is not at all. It knows of each change of its own, by whatever spelling.
    fn name_expiry(&self, name: FileName<'_>, leads_somewhere: bool, now: Tick) -> Tick {
        match (self.store.spelling(name), leads_somewhere) {
            (Spelling::Only | Spelling::Stored, true) => self.expiry(now, self.options.entry_ttl),
            (Spelling::Only, false) => self.expiry(now, self.options.negative_ttl),
            (Spelling::Stored, false) | (Spelling::Other, _) => now,
        }
    }

    /// Drops what is cached of a name that was changed, under the spelling that its entry is stored in as well.
    fn drop_name(&self, parent: Ino, name: FileName<'_>) {
        self.dentries.remove(parent, name);
        if self.store.spelling(name) == Spelling::Other {
            self.dentries.forgotten(parent);
        }
    }

    /// Asks the store, and caches what it says.
    pub(super) fn lookup_store(&self, parent: Ino, name: FileName<'_>) -> Result<Lookup> {
        let knowing = self.knowing();
        let (since_dir, since) = (self.dentries.since(parent), self.inodes.since());
        let now = self.clock.now();
        let found = match &self.ahead {
            Some(ahead) => {
                let began = Instant::now();
                let found = self.store.lookup(parent, name);
                ahead.took(began.elapsed());
                found
            }
            None => self.store.lookup(parent, name),
        };
        match found {
            Ok(attr) => {
                self.inodes.add_ref(attr.ino)?;
                drop(knowing);
                self.make_room();
                self.report_seen(parent, name, Some(&attr));
                Ok(Lookup::Found(self.found(parent, name, attr, (since_dir, since), now)))
            }
            Err(e) if e.is_not_found() => {
                let ttl = self.name_ttl(name, false);
                let expiry = self.name_expiry(name, false, now);
                if expiry > now {
                    self.dentries.insert(parent, name, None, expiry, since_dir);
                }
                self.counters.negative.miss();
                self.report_seen(parent, name, None);
                Ok(Lookup::Absent { ttl })
            }
            Err(e) => Err(e),
        }
    }

    /// Caches what the store found, whose reference is counted; `since` are the marks of the directory and of all inodes.
    fn found(&self, parent: Ino, name: FileName<'_>, attr: Attr, since: (u32, u32), now: Tick) -> Entry {
        let entry_ttl = self.name_ttl(name, true);
        let expiry = self.name_expiry(name, true, now);
        if expiry > now {
            self.dentries.insert(parent, name, Some(attr.ino), expiry, since.0);
        }
        let (attr, attr_ttl) = self.settle(attr, since.1);
        Entry { attr, generation: 0, attr_ttl, entry_ttl }
    }

    /// As [`Engine::lookup_or_absent`] for each of `entries`, which the store has just listed in `parent`; answers in
    /// their order. What is not cached is asked for together.
    pub(super) fn lookup_entries(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Lookup>> {
        let now = self.clock.now();
        let cached = |entry: &DirEntry<'_>| match self.dentries.get(parent, entry.name) {
            Some(Dentry { child: Some(ino), expiry }) if expiry > now => {
                self.lookup_cached(entry.name, ino, expiry, now)
            }
            _ => None,
        };
        let mut found: Vec<Option<Result<Lookup>>> = entries.iter().map(|entry| cached(entry).map(Ok)).collect();
        let asked: Vec<DirEntry<'_>> =
            entries.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(entry, _)| *entry).collect();
        let mut answers = if asked.is_empty() { Vec::new() } else { self.ask_listed(parent, &asked) }.into_iter();
        // A store that answers too few has lost these.
        found.iter_mut().filter(|found| found.is_none()).for_each(|found| *found = answers.next());
        found.into_iter().map(|found| found.unwrap_or_else(|| Err(ErrorKind::Io.into()))).collect()
    }

    fn ask_listed(&self, parent: Ino, entries: &[DirEntry<'_>]) -> Vec<Result<Lookup>> {
        self.counters.dentry.misses(entries.len());
        let knowing = self.knowing();
        let since = (self.dentries.since(parent), self.inodes.since());
        let now = self.clock.now();
        let mut answers = self.store.lookup_listed(parent, entries);
        for answer in &mut answers {
            if let Ok(attr) = answer
                && let Err(e) = self.inodes.add_ref(attr.ino)
            {
                *answer = Err(e);
            }
        }
        drop(knowing);
        self.make_room();
        let settle = |(entry, answer): (&DirEntry<'_>, Result<Attr>)| match answer {
            Ok(attr) => Ok(Lookup::Found(self.found(parent, entry.name, attr, since, now))),
            Err(e) if e.is_not_found() => Ok(Lookup::Absent { ttl: Duration::ZERO }),
            Err(e) => Err(e),
        };
        entries.iter().zip(answers).map(settle).collect()
    }

    /// Asks the front end to forget inodes if there are too many.
    fn make_room(&self) {
        if self.inodes.weight() > self.inodes_max() {
            self.notices.crowded();
        }
    }

    /// Gives back one reference.
    pub(super) fn drop_ref(&self, ino: Ino) {
        if ino != Ino::ROOT && self.inodes.forget(ino, 1) {
            self.unreference(ino);
        }
    }

    /// Caches attributes that the store gave since `since`, and returns what to show for them.
    pub(super) fn settle(&self, attr: Attr, since: u32) -> (Attr, Duration) {
        if !self.open.get(attr.ino).is_some_and(|f| f.is_dirty()) {
            let expiry = self.expiry(self.clock.now(), self.options.attr_ttl);
            match self.inodes.fill(&attr, expiry, since) {
                Fill::Current { foreign } => {
                    if foreign {
                        self.content_changed_elsewhere(attr.ino);
                    }
                    return (attr, self.options.attr_ttl);
                }
                Fill::Unknown => return (attr, self.options.attr_ttl),
                Fill::Outrun => {}
            }
        }
        self.getattr_store(attr.ino).unwrap_or((attr, Duration::ZERO))
    }

    /// What every own change of a directory needs. Returns a mark for caching its outcome, if no other change ran.
    fn dir_changed(&self, dir: Ino, before: u32) -> Option<u32> {
        self.inodes.changed(dir);
        self.entries_changed(dir, before)
    }

    /// As [`Engine::dir_changed`], where the directory's attributes after the change may be known; `since` was taken
    /// before it.
    fn dir_changed_to(&self, dir: Ino, attr: Option<Attr>, before: u32, since: u32) -> Option<u32> {
        match attr.filter(|attr| attr.ino == dir) {
            Some(attr) => drop(self.inodes.own(&attr, self.expiry(self.clock.now(), self.options.attr_ttl), since)),
            None => self.inodes.changed(dir),
        }
        self.entries_changed(dir, before)
    }

    fn entries_changed(&self, dir: Ino, before: u32) -> Option<u32> {
        let now = self.dentries.changed(dir);
        self.listings.remove(dir);
        (now == before.wrapping_add(1)).then_some(now)
    }

    /// Keeps the outcome of an own change of one name.
    fn entry_changed(&self, parent: Ino, name: FileName<'_>, child: Option<Ino>, mark: Option<u32>) {
        let now = self.clock.now();
        let expiry = self.name_expiry(name, child.is_some(), now);
        match mark {
            Some(mark) if expiry > now => self.dentries.insert(parent, name, child, expiry, mark),
            _ => self.drop_name(parent, name),
        }
    }

    /// Runs `make`, which makes `name` in `parent`, and counts the reference.
    fn make<T>(&self, parent: Ino, name: FileName<'_>, make: impl FnOnce() -> Result<(Attr, T)>) -> Result<(Entry, T)> {
        self.make_in(parent, name, || make().map(|(attr, rest)| (attr, rest, None)))
    }

    /// As [`Engine::make`]; third of what `make` returns are the attributes of `parent` after it, if they are known.
    pub(super) fn make_in<T>(
        &self,
        parent: Ino,
        name: FileName<'_>,
        make: impl FnOnce() -> Result<(Attr, T, Option<Attr>)>,
    ) -> Result<(Entry, T)> {
        self.check_writable("create")?;
        let knowing = self.knowing();
        let (before, since) = (self.dentries.since(parent), self.inodes.since());
        let made = make();
        let dir_attr = made.as_ref().ok().and_then(|(.., dir_attr)| *dir_attr);
        let mark = self.dir_changed_to(parent, dir_attr, before, since);
        let (attr, rest, _) = match made {
            Ok(made) => made,
            Err(e) => {
                // It may exist after all, made by someone else or in part.
                self.drop_name(parent, name);
                self.report_entry(parent, name);
                return Err(e);
            }
        };
        self.entry_changed(parent, name, Some(attr.ino), mark);
        self.report_entry(parent, name);
        self.inodes.add_ref(attr.ino)?;
        drop(knowing);
        self.make_room();
        let (attr, attr_ttl) = self.own_attr(attr, since);
        Ok((Entry { attr, generation: 0, attr_ttl, entry_ttl: self.name_ttl(name, true) }, rest))
    }

    /// Creates a directory.
    pub fn mkdir(&self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Entry> {
        self.counters.op(|o| &o.creates);
        Ok(self.make(parent, name, || Ok((self.store.mkdir(parent, name, new)?, ())))?.0)
    }

    /// Creates a device node, FIFO or socket, or an empty regular file.
    pub fn mknod(&self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Entry> {
        self.counters.op(|o| &o.creates);
        let made = self.make(parent, name, || match kind {
            Kind::File => Ok((self.store.create(parent, name, new)?.0, ())),
            _ => Ok((self.store.mknod(parent, name, kind, rdev, new)?, ())),
        })?;
        Ok(made.0)
    }

    /// Creates a symbolic link to `target`.
    pub fn symlink(&self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Entry> {
        self.counters.op(|o| &o.creates);
        match target.len() {
            0 => return Err(ErrorKind::NotFound.into()),
            1..=4095 if !target.contains(&0) => {}
            1..=4095 => return Err(ErrorKind::InvalidInput.into()),
            _ => return Err(ErrorKind::NameTooLong.into()),
        }
        Ok(self.make(parent, name, || Ok((self.store.symlink(parent, name, target, caller)?, ())))?.0)
    }

    /// Gives `ino` a further name.
    pub fn link(&self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Entry> {
        self.counters.op(|o| &o.creates);
        Ok(self.make(parent, name, || Ok((self.store.link(ino, parent, name)?, ())))?.0)
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.counters.op(|o| &o.readlinks);
        self.store.readlink(ino)
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.remove(parent, name, || self.store.unlink(parent, name))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: FileName<'_>) -> Result<()> {
        let removed = self.remove(parent, name, || self.store.rmdir(parent, name));
        self.directory_moved();
        removed
    }

    fn remove(&self, parent: Ino, name: FileName<'_>, remove: impl FnOnce() -> Result<()>) -> Result<()> {
        self.counters.op(|o| &o.removes);
        self.check_writable("unlink")?;
        let target = self.target_of(parent, name);
        let before = self.dentries.since(parent);
        let removed = remove();
        let mark = self.dir_changed(parent, before);
        match &removed {
            Ok(()) => self.entry_changed(parent, name, None, mark),
            Err(_) => self.drop_name(parent, name),
        }
        if let Some(ino) = target {
            self.let_go(ino);
            self.inodes.changed(ino);
            self.listings.remove(ino);
        }
        self.report_entry(parent, name);
        removed
    }

    /// Renames, replaces or exchanges.
    pub fn rename(
        &self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.counters.op(|o| &o.renames);
        self.check_writable("rename")?;
        let together = [RenameFlags::NOREPLACE, RenameFlags::WHITEOUT].iter().any(|other| flags.contains(*other));
        if flags.contains(RenameFlags::EXCHANGE) && together
            || flags.contains(RenameFlags::WHITEOUT) && !self.caps.whiteouts
        {
            return Err(ErrorKind::InvalidInput.into());
        }
        let targets = [self.target_of(parent, name), self.target_of(new_parent, new_name)];
        let _renaming = self.renaming();
        let renamed = self.store.rename(parent, name, new_parent, new_name, flags);
        for (dir, name) in [(parent, name), (new_parent, new_name)] {
            self.dir_changed(dir, 0);
            self.drop_name(dir, name);
        }
        self.directory_moved();
        targets.into_iter().flatten().for_each(|ino| self.inodes.changed(ino));
        if let Some(replaced) = targets[1].filter(|_| renamed.is_ok() && !flags.contains(RenameFlags::EXCHANGE)) {
            self.let_go(replaced);
        }
        self.report_rename((parent, name), (new_parent, new_name));
        if renamed.is_ok() {
            self.expire_moved(new_parent, new_name);
            if flags.contains(RenameFlags::EXCHANGE) {
                self.expire_moved(parent, name);
            }
        }
        renamed
    }

    /// What a rename gave a name that another spelling can change: the kernel keeps it as long as it would have kept the old one. A
    /// directory has one entry there, which goes by each look-up to the spelling that was asked for.
    fn expire_moved(&self, parent: Ino, name: FileName<'_>) {
        if self.store.spelling(name) == Spelling::Only {
            return;
        }
        if let Ok(Lookup::Found(Entry { attr, .. })) = self.lookup_store(parent, name) {
            self.drop_ref(attr.ino);
            if attr.kind != Kind::Directory {
                self.notices.inval_entry(parent, name);
            }
        }
    }

    /// An entry came, went or changed without a call of this engine: what is cached of it, and of its directory, is void. What
    /// the front end caches is for the caller to see to.
    pub fn entry_changed_below(&self, parent: Ino, name: FileName<'_>) {
        self.dir_changed(parent, 0);
        self.drop_name(parent, name);
        self.directory_moved();
        self.report_entry(parent, name);
    }

    /// As [`Engine::entry_changed_below`], for attributes and content of an inode.
    pub fn inode_changed_below(&self, ino: Ino) {
        self.inode_changed(ino);
        if let Some(file) = self.open.get(ino) {
            file.set_id.changed();
            file.capability.changed();
        }
        self.units.drop_inode(ino);
        self.listings.remove(ino);
    }

    /// The store became something else as a whole, though what is open in it is what it was: all that is cached is void, and files are
    /// opened in it again. No call is under way meanwhile.
    pub fn all_changed_below(&self) {
        self.dentries.all_void();
        self.directory_moved();
        self.inodes.all().into_iter().for_each(|ino| self.inode_changed_below(ino));
        self.open_all_again();
    }

    /// The inode that `name` leads to, for the sake of its attributes (link count, change time).
    ///
    /// An expired entry is good enough. Without one, the store is asked only if someone could see the old attributes
    /// for long: through an open handle, or another name, or without expiry.
    fn target_of(&self, parent: Ino, name: FileName<'_>) -> Option<Ino> {
        match self.dentries.get(parent, name) {
            Some(dentry) if dentry.child.is_some() => dentry.child,
            _ if self.caps.shared && self.open.is_empty() => None,
            _ => match self.lookup_store(parent, name) {
                Ok(Lookup::Found(entry)) => {
                    self.drop_ref(entry.attr.ino);
                    Some(entry.attr.ino)
                }
                _ => None,
            },
        }
    }
}
