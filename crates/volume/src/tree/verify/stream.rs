//! Keys one after the other: all that the table holds, what one snapshot or branch sees of it, and the names of inodes.
//!
//! What has no place in order is brought into it by passes: [`Names`] goes through all entries as often as it takes to hand
//! them out by the inode that they lead to, with no more of them in memory than it may hold.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use adit_core::Result;
use adit_core::types::Kind;

use crate::format::keys::{self, Id, Key, Parts};
use crate::format::records::{self, Entry, Place};
use crate::table::Table;
use crate::tree::is_ino;
use crate::tree::view::View;

/// Records that are read at once, and how many bytes of them, about.
const RECORDS_AT_ONCE: usize = 512;
const BYTES_AT_ONCE: usize = 64 << 10;

/// Invisible versions that are stepped over before the next one is sought that could be seen.
const STEPS_MAX: usize = 8;

/// Whether a value hides older ones. What only begins as if it did is damaged.
pub(super) fn is_tombstone(value: &[u8]) -> bool {
    value == records::TOMBSTONE
}

/// Records of the table in order, read in stretches.
pub(super) struct Raw<'t> {
    table: &'t dyn Table,
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    ready: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl<'t> Raw<'t> {
    /// All keys that begin with `space`.
    pub fn new(table: &'t dyn Table, space: u8) -> Self {
        Raw::between(table, vec![space], vec![space + 1])
    }

    /// The keys from `start` to before `end`.
    pub fn between(table: &'t dyn Table, start: Vec<u8>, end: Vec<u8>) -> Self {
        Raw { table, next: Some(start), end, ready: VecDeque::new() }
    }

    /// The next one.
    pub fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if self.ready.is_empty()
            && let Some(from) = self.next.take()
        {
            let (ready, next, mut bytes) = (&mut self.ready, &mut self.next, 0);
            self.table.scan(&from, &self.end, &mut |key, value| {
                if ready.len() >= RECORDS_AT_ONCE || bytes >= BYTES_AT_ONCE {
                    *next = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                bytes += key.len() + value.len();
                ready.push_back((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })?;
        }
        Ok(self.ready.pop_front())
    }
}

/// All versions of one key, the greatest id first.
pub(super) struct Group {
    pub key: Key,
    pub versions: Vec<(Id, Vec<u8>)>,
}

/// The keys of a space, each with all its versions. Keys that are none go to `bad`.
pub(super) fn groups(
    table: &dyn Table,
    space: u8,
    bad: &mut dyn FnMut(&[u8]),
    each: &mut dyn FnMut(&Group) -> Result<()>,
) -> Result<()> {
    let (mut raw, mut group) = (Raw::new(table, space), None::<Group>);
    while let Some((bytes, value)) = raw.next()? {
        let parsed = keys::split(&bytes).and_then(|(logical, id)| Some((Key::from_logical(logical)?, id)));
        let Some((key, id)) = parsed else {
            bad(&bytes);
            continue;
        };
        match &mut group {
            Some(group) if group.key == key => group.versions.push((id, value)),
            _ => {
                if let Some(group) = group.replace(Group { key, versions: vec![(id, value)] }) {
                    each(&group)?;
                }
            }
        }
    }
    group.map_or(Ok(()), |group| each(&group))
}

/// A key and its value, as one snapshot or branch sees them.
pub(super) struct Record {
    pub key: Key,
    pub value: Vec<u8>,
}

impl Record {
    /// The inode, or the directory, that it belongs to.
    fn ino(&self) -> u64 {
        match self.key.parts() {
            Some(
                Parts::Inode(ino)
                | Parts::Xattr(ino, _)
                | Parts::Entry(ino, _)
                | Parts::Name(ino, ..)
                | Parts::Window(ino, _)
                | Parts::Orphan(ino),
            ) => ino,
            None => 0,
        }
    }
}

/// What a view sees of one space, in order. Keys that are none are left out: they are told once for all views.
pub(super) struct Stream<'v, 't> {
    view: &'v View<'t>,
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    ready: VecDeque<Record>,
}

impl<'v, 't> Stream<'v, 't> {
    pub fn new(view: &'v View<'t>, space: u8) -> Self {
        Stream { view, next: Some(vec![space]), end: vec![space + 1], ready: VecDeque::new() }
    }

    /// The next one.
    pub fn next(&mut self) -> Result<Option<Record>> {
        self.fill()?;
        Ok(self.ready.pop_front())
    }

    /// The next one, if it belongs to `ino`.
    pub fn next_of(&mut self, ino: u64) -> Result<Option<Record>> {
        if self.ino()? == Some(ino) { self.next() } else { Ok(None) }
    }

    /// What the next one belongs to.
    pub fn ino(&mut self) -> Result<Option<u64>> {
        self.fill()?;
        Ok(self.ready.front().map(Record::ino))
    }

    fn fill(&mut self) -> Result<()> {
        while self.ready.is_empty()
            && let Some(from) = self.next.take()
        {
            self.read(&from)?;
        }
        Ok(())
    }

    /// Reads a stretch, or up to where the next one that could be seen is to be sought.
    fn read(&mut self, from: &[u8]) -> Result<()> {
        let view = self.view;
        let (ready, next) = (&mut self.ready, &mut self.next);
        let (mut current, mut decided, mut steps, mut bytes_read): (Vec<u8>, _, _, _) = (Vec::new(), false, 0, 0);
        view.tree.table.scan(from, &self.end, &mut |bytes, value| {
            let Some((logical, owner)) = keys::split(bytes) else { return ControlFlow::Continue(()) };
            if logical != current {
                if ready.len() >= RECORDS_AT_ONCE || bytes_read >= BYTES_AT_ONCE {
                    *next = Some(bytes.to_vec());
                    return ControlFlow::Break(());
                }
                current.clear();
                current.extend_from_slice(logical);
                (decided, steps) = (false, 0);
            }
            if !decided && view.topology.sees(view.id, owner) {
                (decided, steps) = (true, 0);
                if !is_tombstone(value) {
                    bytes_read += bytes.len() + value.len();
                    ready.extend(Key::from_logical(logical).map(|key| Record { key, value: value.to_vec() }));
                }
                return ControlFlow::Continue(());
            }
            steps += 1;
            if steps < STEPS_MAX {
                return ControlFlow::Continue(());
            }
            let seen = view.topology.at_or_above(view.id, owner.saturating_sub(1)).filter(|_| !decided);
            *next = Some([logical, &(!seen.unwrap_or(0)).to_be_bytes()].concat());
            ControlFlow::Break(())
        })
    }
}

/// A name of an inode: the entry that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Name {
    pub ino: u64,
    pub place: Place,
    /// What the entry says that it is.
    pub kind: Kind,
}

impl Name {
    fn order(&self) -> (u64, Place) {
        (self.ino, self.place)
    }
}

/// All entries that can be read by the inode that they lead to, then by place.
pub(super) struct Names<'v, 't> {
    view: &'v View<'t>,
    /// How many may be in memory.
    limit: usize,
    ready: Vec<Name>,
    at: usize,
    /// Up to here all were handed out, or are in `ready`.
    done: Option<(u64, Place)>,
    more: bool,
    /// How often all entries were read.
    pub passes: u64,
}

/// The least number of names that are held.
const NAMES_MIN: usize = 16;

impl<'v, 't> Names<'v, 't> {
    /// With at most so many bytes of memory, and a few names at least.
    pub fn new(view: &'v View<'t>, memory_bytes: usize) -> Self {
        let limit = (memory_bytes / size_of::<Name>()).max(NAMES_MIN);
        Names { view, limit, ready: Vec::new(), at: 0, done: None, more: true, passes: 0 }
    }

    /// The inode that the next one leads to.
    pub fn ino(&mut self) -> Result<Option<u64>> {
        if self.at == self.ready.len() && self.more {
            self.pass()?;
        }
        Ok(self.ready.get(self.at).map(|name| name.ino))
    }

    /// The next one, if it leads to `ino`.
    pub fn next_of(&mut self, ino: u64) -> Result<Option<Name>> {
        if self.ino()? != Some(ino) {
            return Ok(None);
        }
        self.at += 1;
        Ok(self.ready.get(self.at - 1).copied())
    }

    /// Takes up the next ones, as many as there is room for; each pass at least half of that.
    fn pass(&mut self) -> Result<()> {
        (self.at, self.passes) = (0, self.passes + 1);
        self.ready.clear();
        let mut upper = None;
        let mut entries = Stream::new(self.view, keys::space::ENTRY);
        while let Some(record) = entries.next()? {
            let (Some(Parts::Entry(dir, cookie)), Ok(entry)) = (record.key.parts(), Entry::decode(&record.value))
            else {
                continue; // Told with the damaged records.
            };
            if !is_ino(dir) || !is_ino(entry.ino) {
                continue; // So are these.
            }
            let name = Name { ino: entry.ino, place: Place { dir, cookie }, kind: entry.kind };
            if self.done.is_some_and(|done| name.order() <= done) {
                continue;
            }
            if self.ready.len() == self.limit {
                let middle = self.limit / 2;
                self.ready.select_nth_unstable_by_key(middle, Name::order);
                upper = self.ready.get(middle).map(Name::order);
                self.ready.truncate(middle + 1);
            }
            if upper.is_none_or(|upper| name.order() <= upper) {
                self.push(name);
            }
        }
        self.ready.sort_unstable_by_key(Name::order);
        (self.done, self.more) = (upper, upper.is_some());
        Ok(())
    }

    /// Grows by doubling, but not beyond the limit.
    fn push(&mut self, name: Name) {
        if self.ready.len() == self.ready.capacity() {
            let more = self.ready.len().max(NAMES_MIN).min(self.limit - self.ready.len());
            self.ready.reserve_exact(more);
        }
        self.ready.push(name);
    }
}
