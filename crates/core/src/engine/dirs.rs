//! Open directories: listings by handle, with and without attributes.
//!
//! A store without stable cookies gets a snapshot per handle, shared through the cache: whatever changes meanwhile, no
//! entry comes twice, and none that stayed is missing. One with stable cookies promises the same itself: each request
//! goes on at its cookie, and no listing is held in memory, however long it is. `.` and `..` are not listed: a front end that shows them adds them.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;

use super::clock::remaining;
use super::handles::{DirHandle, Listed};
use super::listing::{Listing, ListingBuilder};
use super::{Engine, Entry, Fh, Lookup, SinkFlow};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::DirEntry;
use crate::types::Ino;

/// Entries of a store with stable cookies that are looked up together. The kernel's buffer takes about 190 of them, or 25
/// of an older kernel, and what it has no room for was looked up in vain.
const PLUS_BATCH: usize = 32;

impl Engine {
    /// Opens a directory.
    pub fn opendir(&self, dir: Ino) -> Result<Fh> {
        self.counters.op(|o| &o.opendirs);
        self.inodes.pin(dir)?;
        Ok(self.dirs.insert(DirHandle { dir, listing: Mutex::new(None) }))
    }

    /// Closes a directory.
    pub fn releasedir(&self, fh: Fh) -> Result<()> {
        let handle = self.dirs.remove(fh).ok_or(ErrorKind::Stale)?;
        if self.inodes.unpin(handle.dir) {
            self.unreference(handle.dir);
        }
        Ok(())
    }

    /// Makes the entries of a directory durable.
    pub fn fsyncdir(&self, fh: Fh) -> Result<()> {
        self.sync_dir(self.dirs.get(fh)?.dir)
    }

    /// As [`Engine::fsyncdir`], by the inode of a known directory.
    pub fn sync_dir(&self, dir: Ino) -> Result<()> {
        self.counters.op(|o| &o.syncs);
        if self.is_read_only() { Ok(()) } else { self.store.sync_dir(dir) }
    }

    /// Whether a directory is listed without being opened, by [`Engine::list`] and [`Engine::list_plus`], and whoever listed
    /// it may keep the listing until it changes the directory itself: cookies are stable, and nobody else changes the store.
    pub fn lists_by_inode(&self) -> bool {
        self.caps.stable_cookies && !self.caps.shared
    }

    /// The entries of `dir`, from the cache or the store, as a snapshot that all share.
    pub fn listing(&self, dir: Ino) -> Result<Arc<Listing>> {
        let now = self.clock.now();
        let since = self.dentries.since(dir);
        if let Some(listing) = self.listings.get(dir, now, since) {
            self.counters.listing.hit();
            return Ok(listing);
        }
        self.counters.listing.miss();
        let mut builder = ListingBuilder::default();
        let mut fits = true;
        self.store.read_dir(dir, 0, &mut |entry| {
            fits = builder.push(&entry);
            if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if !fits {
            return Err(ErrorKind::Exhausted.into());
        }
        let expiry = self.expiry(now, self.options.entry_ttl);
        let incomplete = !self.store.left_out(dir).is_empty();
        let listing = Arc::new(builder.finish(since, expiry, incomplete));
        self.report_listed(dir, &listing);
        if expiry > now && self.dentries.since(dir) == since {
            self.listings.insert(dir, listing.clone());
        }
        Ok(listing)
    }

    /// Hands the entries after the cookie `start` (0: from the first, with a fresh view) to `sink` until it is full.
    ///
    /// `Corrupt` after the last entry if the store had to leave some out.
    pub fn read_dir(&self, fh: Fh, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> SinkFlow) -> Result<()> {
        let handle = self.dirs.get(fh)?;
        if self.caps.stable_cookies {
            return self.list(handle.dir, start, sink);
        }
        self.counters.op(|o| &o.readdirs);
        let Listed { listing, .. } = self.listing_of(&handle, start)?;
        for entry in listing.entries_from(usize::try_from(start).unwrap_or(usize::MAX)) {
            if sink(entry) == SinkFlow::Full {
                return Ok(());
            }
        }
        self.end_of(handle.dir, listing.incomplete)
    }

    /// As [`Engine::read_dir`], by the inode of a known directory of a store with stable cookies.
    pub fn list(&self, dir: Ino, start: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> SinkFlow) -> Result<()> {
        self.counters.op(|o| &o.readdirs);
        let mut full = false;
        self.store.read_dir(dir, start, &mut |e| {
            full = sink(e) == SinkFlow::Full;
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if full { Ok(()) } else { self.end_of(dir, !self.store.left_out(dir).is_empty()) }
    }

    /// What comes after the last entry. A directory of which something is missing must not pass for all of it.
    fn end_of(&self, dir: Ino, incomplete: bool) -> Result<()> {
        if !incomplete {
            return Ok(());
        }
        let dir = self.store.path_of(dir).unwrap_or_default();
        Err(FsError::new(ErrorKind::Corrupt)
            .on("list", dir)
            .because("entries are left out, their names cannot be used"))
    }

    /// As [`Engine::read_dir`], each entry with its attributes and as a reference, if the sink took it.
    ///
    /// An entry whose attributes cannot be read comes without. An entry that vanished is left out.
    pub fn read_dir_plus(
        &self,
        fh: Fh,
        start: u64,
        sink: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> SinkFlow,
    ) -> Result<()> {
        let handle = self.dirs.get(fh)?;
        let dir = handle.dir;
        if self.caps.stable_cookies {
            return self.list_plus(dir, start, sink);
        }
        self.counters.op(|o| &o.readdirs);
        let Listed { listing, ahead } = self.listing_of(&handle, start)?;
        let from = usize::try_from(start).unwrap_or(usize::MAX);
        for (at, entry) in listing.entries_from(from).enumerate() {
            if let Some(job) = &ahead {
                self.look_up_listed(job, from + at);
            }
            if self.emit(dir, &entry, &listing, sink) == SinkFlow::Full {
                return Ok(());
            }
        }
        self.end_of(dir, listing.incomplete)
    }

    /// As [`Engine::read_dir_plus`], by the inode of a known directory of a store with stable cookies.
    ///
    /// The store's callback may run under a lock of the store: entries are collected first, and looked up after, together.
    pub fn list_plus(
        &self,
        dir: Ino,
        mut start: u64,
        sink: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> SinkFlow,
    ) -> Result<()> {
        self.counters.op(|o| &o.readdirs);
        loop {
            let (mut batch, mut cookies) = (ListingBuilder::default(), Vec::new());
            // What comes before an error is handed out before it.
            let listed = self.store.read_dir(dir, start, &mut |e| {
                if !batch.push(&e) {
                    return ControlFlow::Break(());
                }
                cookies.push(e.cookie);
                if batch.len() < PLUS_BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let Some(&last) = cookies.last() else {
                listed?;
                return self.end_of(dir, !self.store.left_out(dir).is_empty());
            };
            let batch = batch.finish(0, 0, false);
            let entries: Vec<DirEntry<'_>> =
                batch.entries_from(0).zip(&cookies).map(|(entry, &cookie)| DirEntry { cookie, ..entry }).collect();
            let mut flow = SinkFlow::More;
            for (entry, found) in entries.iter().zip(self.lookup_entries(dir, &entries)) {
                match (flow, found) {
                    (SinkFlow::More, found) => flow = self.emit_found(dir, entry, found, sink),
                    (SinkFlow::Full, Ok(Lookup::Found(beyond))) => self.drop_ref(beyond.attr.ino),
                    (SinkFlow::Full, _) => {}
                }
            }
            if flow == SinkFlow::Full {
                return Ok(());
            }
            listed?;
            start = last;
        }
    }

    /// The handle's snapshot; a fresh one at the start.
    fn listing_of(&self, handle: &DirHandle, start: u64) -> Result<Listed> {
        if start != 0
            && let Some(listed) = &*handle.listing.lock()
        {
            return Ok(listed.clone());
        }
        let listing = self.listing(handle.dir)?;
        let ahead = self.list_ahead(handle.dir, &listing);
        let listed = Listed { listing, ahead };
        *handle.listing.lock() = Some(listed.clone());
        Ok(listed)
    }

    /// Looks one entry up and hands it to the sink; the reference stays only if it was taken.
    fn emit(
        &self,
        dir: Ino,
        entry: &DirEntry<'_>,
        listing: &Listing,
        sink: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> SinkFlow,
    ) -> SinkFlow {
        let found = match self.lookup_listed(dir, entry, listing) {
            Some(found) => Ok(Lookup::Found(found)),
            None => self.lookup_or_absent(dir, entry.name),
        };
        self.emit_found(dir, entry, found, sink)
    }

    /// Hands an entry with what a lookup of it found to the sink; the reference stays only if it was taken.
    fn emit_found(
        &self,
        dir: Ino,
        entry: &DirEntry<'_>,
        found: Result<Lookup>,
        sink: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> SinkFlow,
    ) -> SinkFlow {
        match found {
            Ok(Lookup::Found(found)) => {
                let listed = DirEntry { ino: found.attr.ino, kind: found.attr.kind, ..*entry };
                let flow = sink(listed, Some(&found));
                if flow == SinkFlow::Full {
                    self.drop_ref(found.attr.ino);
                }
                flow
            }
            Ok(Lookup::Absent { .. }) => SinkFlow::More,
            Err(e) => {
                // Not its name: logs outlive the mount, and the store's own paths tell no secrets.
                let dir = self.store.path_of(dir).unwrap_or_default();
                tracing::warn!(dir, error = %e, "attributes of a listed entry cannot be read");
                sink(*entry, None)
            }
        }
    }

    /// A reference from the listing itself: it is fresh, the directory had no own change since, and the inode is known
    /// with fresh attributes.
    fn lookup_listed(&self, dir: Ino, entry: &DirEntry<'_>, listing: &Listing) -> Option<Entry> {
        let now = self.clock.now();
        if listing.expiry <= now || self.dentries.since(dir) != listing.since {
            return None;
        }
        let (attr, expiry) = self.inodes.attr(entry.ino, now)?;
        if attr.kind != entry.kind || !self.inodes.add_ref_if_known(entry.ino) {
            return None;
        }
        self.counters.attr.hit();
        self.asked_for(entry.ino);
        let attr_ttl = remaining(now, expiry, self.options.attr_ttl);
        let entry_ttl = remaining(now, listing.expiry, self.options.entry_ttl);
        Some(Entry { attr, generation: 0, attr_ttl, entry_ttl })
    }
}
