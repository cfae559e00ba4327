//! Listings: first the names that the lower lacks, in the upper's order; then those of the lower, in its order, of which each is
//! shown as the upper has it, or not at all.
//!
//! In which part a name comes depends on the lower alone, which does not change. So whatever is made, removed or renamed
//! meanwhile, no name comes twice and none that stayed is missing.
//!
//! A lower without stable cookies is listed whole, in an order of our own; the last few such lists are kept, for listings
//! that go on.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::find::Above;
use super::node::{Below, Node};
use super::{Shared, name_of};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::DirEntry;
use crate::types::{FileName, Ino, Kind};

/// Entries that are read of a directory before they are handed out.
const LIST_AT_ONCE: usize = 128;

/// Lists of lower directories that are kept.
const LISTS_KEPT: usize = 16;

/// The sink wants no more.
const FULL: ControlFlow<()> = ControlFlow::Break(());

/// An entry that was read: its cookie, number and kind in its layer, and its name.
type Read = (u64, Ino, Kind, Vec<u8>);

/// Where a listing goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    /// After this one of the upper's.
    Upper(u64),
    /// After this one of the lower's.
    Lower(u64),
}

/// A cookie of a layer has 63 bits, and so has ours, which has to tell the layer besides. Those below 2^61 are kept as
/// they are. Those of the volume above that are a hash of 55 bits and, in the lowest 8, a number that is 0 unless hashes
/// agree: of that, 6 bits are kept.
mod packed {
    pub const LOWER: u64 = 1 << 62;
    pub const HASH: u64 = 1 << 61;
    pub const SLOT: u64 = 1 << 6;

    /// `None` for one that has no room.
    pub fn pack(cookie: u64) -> Option<u64> {
        if cookie < HASH {
            return Some(cookie);
        }
        (cookie >> 63 == 0 && cookie & 0xff < SLOT).then_some(HASH | cookie >> 8 << 6 | cookie & 0xff)
    }

    pub fn unpack(packed: u64) -> u64 {
        if packed & HASH == 0 {
            return packed;
        }
        let packed = packed & (HASH - 1);
        packed >> 6 << 8 | packed & (SLOT - 1)
    }
}

impl Mark {
    fn encode(self) -> Result<u64> {
        let (cookie, layer) = match self {
            Mark::Upper(cookie) => (cookie, 0),
            Mark::Lower(cookie) => (cookie, packed::LOWER),
        };
        packed::pack(cookie).map(|packed| packed | layer).ok_or_else(|| {
            let why = format!("its layer numbers an entry {cookie:#x}, for which an overlay has no room");
            FsError::new(ErrorKind::NotSupported).on("list", "a directory").because(why)
        })
    }

    fn decode(cookie: u64) -> Mark {
        let packed = cookie & !packed::LOWER;
        if cookie & packed::LOWER == 0 {
            Mark::Upper(packed::unpack(packed))
        } else {
            Mark::Lower(packed::unpack(packed))
        }
    }
}

/// Whole lists of directories of a lower without stable cookies.
#[derive(Default)]
pub(super) struct LowerListings(VecDeque<(Ino, Arc<Vec<Read>>)>);

impl LowerListings {
    fn get(&self, dir: Ino) -> Option<Arc<Vec<Read>>> {
        self.0.iter().find(|(ino, _)| *ino == dir).map(|(_, list)| list.clone())
    }

    fn remove(&mut self, dir: Ino) {
        self.0.retain(|(ino, _)| *ino != dir);
    }

    fn put(&mut self, dir: Ino, list: Arc<Vec<Read>>) {
        self.remove(dir);
        self.0.truncate(LISTS_KEPT - 1);
        self.0.push_front((dir, list));
    }
}

/// Gives the entries of a whole list cookies that depend on their names alone, and orders them so.
fn order(list: &mut Vec<Read>) {
    for (cookie, _, _, name) in list.iter_mut() {
        let mut hasher = DefaultHasher::new();
        hasher.write(name);
        *cookie = hasher.finish() >> 4;
    }
    list.sort_unstable_by(|a, b| (a.0, &a.3).cmp(&(b.0, &b.3)));
    let mut last = 0;
    for (cookie, ..) in list {
        *cookie = (*cookie).max(last + 1);
        last = *cookie;
    }
}

impl Shared {
    pub fn read_dir(
        &self,
        dir: &Node,
        start: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut mark = Mark::decode(start);
        if let Mark::Upper(cookie) = &mut mark
            && dir.upper().is_some()
            && self.list_upper(dir, *cookie, sink)? == FULL
        {
            return Ok(());
        }
        let Some(below) = self.merged_with(dir)? else { return Ok(()) };
        let from = match mark {
            Mark::Upper(_) => 0,
            Mark::Lower(cookie) => cookie,
        };
        self.list_lower(dir, below, from, sink).map(drop).map_err(|e| self.of_below(dir, e))?;
        // A directory that is gone reads as an empty one on some hosts.
        self.check_shared(dir)
    }

    /// Names that the lower lacks.
    fn list_upper(
        &self,
        dir: &Node,
        mut from: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let Some(upper) = dir.upper() else { return Ok(ControlFlow::Continue(())) };
        loop {
            let mut read: Vec<Read> = Vec::with_capacity(LIST_AT_ONCE);
            self.upper.store.read_dir(upper, from, &mut |entry| take(&mut read, &entry))?;
            for (cookie, ino, _, name) in &read {
                from = *cookie;
                if *ino == self.layout.whiteout.ino || self.is_beneath(dir, name_of(name)?)? {
                    continue;
                }
                let Some(shown) = self.shown_in_upper(dir, name)? else { continue };
                if emit(Mark::Upper(*cookie), shown, name, sink)? == FULL {
                    return Ok(FULL);
                }
            }
            if read.len() < LIST_AT_ONCE {
                return Ok(ControlFlow::Continue(()));
            }
        }
    }

    /// Whether a name comes with those of the lower. Where these are gone, none does: all that there are come first.
    fn is_beneath(&self, dir: &Node, name: FileName<'_>) -> Result<bool> {
        match self.beneath(dir, name) {
            Err(e) if e.kind() == ErrorKind::Stale => Ok(false),
            found => Ok(found?.is_some()),
        }
    }

    /// The number and the kind of an entry of the upper; `None` if there is none any more.
    fn shown_in_upper(&self, dir: &Node, name: &[u8]) -> Result<Option<(Ino, Kind)>> {
        match self.above(dir, name_of(name)?)? {
            Above::Entry(attr, held) => Ok(Some((self.number_of_upper(held.ino, None)?, attr.kind))),
            Above::Whiteout | Above::Nothing => Ok(None),
        }
    }

    /// Names of the lower, as they are shown.
    fn list_lower(
        &self,
        dir: &Node,
        below: &Below,
        mut from: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let stable = self.lower.store.capabilities().stable_cookies;
        let whole = if stable { None } else { Some(self.whole_list(below, from)?) };
        let (start, beside) = (from, self.beside(dir));
        loop {
            let mut read: Vec<Read> = Vec::with_capacity(LIST_AT_ONCE);
            match &whole {
                None => self.lower.store.read_dir(below.held.ino, from, &mut |entry| take(&mut read, &entry))?,
                Some(list) => {
                    let at = list.partition_point(|(cookie, ..)| *cookie <= from);
                    read.extend(list[at..].iter().take(LIST_AT_ONCE).cloned());
                    if at == list.len() && from == start {
                        // Who asks behind the last one has all of it.
                        self.listings.lock().remove(below.held.ino);
                    }
                }
            }
            for (cookie, ino, kind, name) in &read {
                from = *cookie;
                let shown = match self.above(dir, name_of(name)?)? {
                    Above::Whiteout => continue,
                    Above::Nothing => (self.number_of_lower(*ino)?, *kind),
                    Above::Entry(attr, held) => (self.number_of_upper(held.ino, beside.as_ref())?, attr.kind),
                };
                if emit(Mark::Lower(*cookie), shown, name, sink)? == FULL {
                    return Ok(FULL);
                }
            }
            if read.len() < LIST_AT_ONCE {
                return Ok(ControlFlow::Continue(()));
            }
        }
    }

    /// All entries of a directory of the lower; as of when its listing began, if that is known.
    fn whole_list(&self, below: &Below, from: u64) -> Result<Arc<Vec<Read>>> {
        let dir = below.held.ino;
        if from > 0
            && let Some(list) = self.listings.lock().get(dir)
        {
            return Ok(list);
        }
        let mut list: Vec<Read> = Vec::new();
        self.lower.store.read_dir(dir, 0, &mut |entry| {
            list.push((entry.cookie, entry.ino, entry.kind, entry.name.as_bytes().to_vec()));
            ControlFlow::Continue(())
        })?;
        order(&mut list);
        let list = Arc::new(list);
        self.listings.lock().put(dir, list.clone());
        Ok(list)
    }

    pub fn left_out(&self, dir: &Node) -> Vec<FsError> {
        let above = dir.upper().map_or_else(Vec::new, |upper| self.upper.store.left_out(upper));
        let below = match self.merged_with(dir) {
            Ok(Some(below)) => self.lower.store.left_out(below.held.ino),
            // Its listing has failed with that.
            Ok(None) | Err(_) => Vec::new(),
        };
        above.into_iter().chain(below).collect()
    }
}

fn take(read: &mut Vec<Read>, entry: &DirEntry<'_>) -> ControlFlow<()> {
    read.push((entry.cookie, entry.ino, entry.kind, entry.name.as_bytes().to_vec()));
    if read.len() < LIST_AT_ONCE { ControlFlow::Continue(()) } else { FULL }
}

fn emit(
    mark: Mark,
    (ino, kind): (Ino, Kind),
    name: &[u8],
    sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    Ok(sink(DirEntry { cookie: mark.encode()?, ino, kind, name: name_of(name)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_its_layer_and_its_cookie() {
        let hash = |h: u64, slot: u64| h << 8 | slot;
        let cookies = [
            0,
            1,
            (1 << 61) - 1,
            hash((1 << 55) - 3, 0),
            hash((1 << 55) - 3, 63),
            hash(1 << 53, 0),
            hash(1 << 54 | 5, 7),
        ];
        let mut seen = Vec::new();
        for cookie in cookies {
            for mark in [Mark::Upper(cookie), Mark::Lower(cookie)] {
                let encoded = mark.encode().unwrap();
                assert!(encoded < 1 << 63, "{encoded:#x} is no offset");
                assert_eq!(Mark::decode(encoded), mark);
                seen.push(encoded);
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 2 * cookies.len());
        assert_eq!(Mark::Upper(hash(1 << 54, 64)).encode().unwrap_err().kind(), ErrorKind::NotSupported);
        assert_eq!(Mark::Lower(1 << 63).encode().unwrap_err().kind(), ErrorKind::NotSupported);
    }

    #[test]
    fn the_order_of_a_whole_list_depends_on_its_names_alone() {
        let list = |names: &[&str]| {
            let mut list: Vec<Read> =
                names.iter().map(|name| (0, Ino(2), Kind::File, name.as_bytes().to_vec())).collect();
            order(&mut list);
            list
        };
        let (one, other) = (list(&["a", "b", "c", "d"]), list(&["d", "b", "a"]));
        assert!(one.is_sorted_by(|a, b| a.0 < b.0));
        let without_c: Vec<Read> = one.into_iter().filter(|entry| entry.3 != b"c").collect();
        assert_eq!(without_c, other);
    }
}
