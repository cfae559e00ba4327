//! What differs from the base: entries that came, went, moved, or have other attributes.
//!
//! An entry of the base is a node below [`Base::len`], one that came later has a number from there on. That a directory moved is said of itself
//! alone: what is below is found by its parent, wherever that is. A directory that is gone takes what is below with it, without
//! that anything is said of it; so whoever has a node asks whether it still hangs together with the root.
//!
//! Invariant: a name that [`Changes::put`] has for a directory is not that of a base child in its place.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;
use hashbrown::{HashMap, HashSet};

use super::base::{Base, Facts};
use crate::layout::{DEPTH_MAX, NODES_MAX};
use crate::query::levels;
use crate::segment::NodeId;

/// An entry of a live index, as long as its [`View`](super::View) lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LiveId(pub(super) u32);

impl LiveId {
    /// The root of every tree.
    pub const ROOT: LiveId = LiveId(0);
}

/// Gets the entries of a directory with their names; [`ControlFlow::Break`] ends that.
pub type EachChild<'e> = dyn FnMut(LiveId, &[u8]) -> Result<ControlFlow<()>> + 'e;

/// The directory that holds an entry, and the entry's name in it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub parent: LiveId,
    pub name: Arc<[u8]>,
}

#[derive(Clone, Debug)]
struct Added {
    /// `None` while it is at no name.
    place: Option<Place>,
    facts: Facts,
}

/// Nodes of one key: nearly always one.
#[derive(Clone, Debug)]
enum Same {
    One(LiveId),
    More(Vec<LiveId>),
}

impl Same {
    fn each(&self) -> &[LiveId] {
        match self {
            Same::One(id) => std::slice::from_ref(id),
            Same::More(ids) => ids,
        }
    }
}

/// See the module's notes.
#[derive(Clone, Default, Debug)]
pub(super) struct Changes {
    /// Nodes of the base that are not where it says, and where they are; `None`: at no name.
    displaced: HashMap<u32, Option<Place>>,
    /// How many of these are directories.
    displaced_dirs: usize,
    /// Nodes of the base with other attributes.
    attrs: HashMap<u32, Facts>,
    added: Vec<Option<Added>>,
    free: Vec<u32>,
    /// Names that were put into directories.
    put: HashMap<LiveId, BTreeMap<Arc<[u8]>, LiveId>>,
    /// Added nodes by key.
    keyed: HashMap<u64, Same>,
    /// What the names take, in bytes.
    names_len: usize,
}

/// What one of the maps' items takes, about, in bytes; measured by `tests/live_memory.rs`.
const DISPLACED_LEN: usize = 56;
const ATTRS_LEN: usize = 64;
const ADDED_LEN: usize = 260;

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.displaced.is_empty() && self.attrs.is_empty() && self.added.len() == self.free.len()
    }

    /// How many entries are different, about.
    pub fn len(&self) -> usize {
        self.displaced.len() + self.attrs.len() + self.added.len() - self.free.len()
    }

    /// Memory that this takes, about, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let items = self.displaced.len() * DISPLACED_LEN + self.attrs.len() * ATTRS_LEN + self.added.len() * ADDED_LEN;
        (items + self.names_len) as u64
    }

    /// How many entries there are, with the root. Takes a look at each difference, and at the levels of directories that are not in their place.
    pub fn entries(&self, base: &Base) -> Result<u64> {
        let mut count = u64::from(base.len());
        // A node that is not in its place takes along what is below, but for what is not in its place itself.
        let (mut come, mut gone) = (0, 0);
        for &node in self.displaced.keys() {
            let is_here = self.is_attached(base, LiveId(node))?;
            let was_below = self.is_attached(base, LiveId(self.displaced_above(base, node)?))?;
            if is_here != was_below {
                *(if is_here { &mut come } else { &mut gone }) += with_all_below(base, node)?;
            }
        }
        count = (count + come).saturating_sub(gone);
        for (at, added) in self.added.iter().enumerate() {
            let id = LiveId(base.len() + at as u32);
            if added.as_ref().is_some_and(|added| added.place.is_some()) && self.is_attached(base, id)? {
                count += 1;
            }
        }
        Ok(count)
    }

    /// The nearest directory of the base above a node that is not in its place either; the root if there is none.
    fn displaced_above(&self, base: &Base, node: u32) -> Result<u32> {
        let mut at = node;
        loop {
            at = base.segment().parent(NodeId(at))?.0;
            if at == NodeId::ROOT.0 || self.displaced.contains_key(&at) {
                return Ok(at);
            }
        }
    }

    /// Whether a node of the base is where the base says, as far as it is concerned.
    pub fn is_in_place(&self, node: u32) -> bool {
        !self.displaced.contains_key(&node)
    }

    /// Whether no directory of the base moved or went.
    pub fn directories_stay(&self) -> bool {
        self.displaced_dirs == 0
    }

    /// Whether a node of the base has other attributes than it says.
    pub fn has_other_attrs(&self, node: u32) -> bool {
        self.attrs.contains_key(&node)
    }

    /// Nodes that are at a name that was put somewhere: those added, and those of the base that moved.
    pub fn at_new_names(&self) -> impl Iterator<Item = LiveId> + '_ {
        self.put.values().flat_map(|names| names.values().copied())
    }

    /// Nodes of the base with other attributes.
    pub fn with_other_attrs(&self) -> impl Iterator<Item = LiveId> + '_ {
        self.attrs.keys().copied().map(LiveId)
    }

    fn added(&self, base: &Base, id: LiveId) -> Option<&Added> {
        self.added.get((id.0.checked_sub(base.len())?) as usize)?.as_ref()
    }

    fn added_mut(&mut self, base: &Base, id: LiveId) -> Option<&mut Added> {
        self.added.get_mut((id.0.checked_sub(base.len())?) as usize)?.as_mut()
    }

    /// The directory that a node is in; `None` for the root, and for what is at no name.
    pub fn parent(&self, base: &Base, id: LiveId) -> Result<Option<LiveId>> {
        if id == LiveId::ROOT {
            return Ok(None);
        }
        if id.0 >= base.len() {
            return Ok(self.added(base, id).and_then(|added| Some(added.place.as_ref()?.parent)));
        }
        match self.displaced.get(&id.0) {
            Some(place) => Ok(place.as_ref().map(|place| place.parent)),
            None => Ok(Some(LiveId(base.segment().parent(NodeId(id.0))?.0))),
        }
    }

    /// The name of a node in its directory; empty of the root and of what is at no name.
    pub fn name<'a>(&'a self, base: &'a Base, id: LiveId) -> Result<&'a [u8]> {
        if id.0 >= base.len() {
            let place = self.added(base, id).and_then(|added| added.place.as_ref());
            return Ok(place.map_or(&[][..], |place| &place.name));
        }
        match self.displaced.get(&id.0) {
            Some(place) => Ok(place.as_ref().map_or(&[][..], |place| &place.name)),
            None => base.segment().name(NodeId(id.0)),
        }
    }

    pub fn facts(&self, base: &Base, id: LiveId) -> Result<Facts> {
        if id.0 >= base.len() {
            return self.added(base, id).map(|added| added.facts).ok_or_else(|| no_such_entry(id));
        }
        match self.attrs.get(&id.0) {
            Some(facts) => Ok(*facts),
            None => base.facts(id.0),
        }
    }

    pub fn kind(&self, base: &Base, id: LiveId) -> Result<Kind> {
        match id.0 < base.len() {
            // A node keeps its kind: another one is another node.
            true => base.segment().kind(NodeId(id.0)),
            false => self.facts(base, id).map(|facts| facts.kind),
        }
    }

    /// Whether the way up from a node ends at the root, or at one of `tops`, and does not pass `barrier`.
    pub fn hangs_on(&self, base: &Base, id: LiveId, barrier: Option<LiveId>, tops: &HashSet<LiveId>) -> Result<bool> {
        let mut at = id;
        for _ in 0..=2 * DEPTH_MAX {
            if Some(at) == barrier {
                return Ok(false);
            }
            match self.parent(base, at)? {
                None => return Ok(at == LiveId::ROOT || tops.contains(&at)),
                Some(parent) => at = parent,
            }
        }
        Ok(false)
    }

    /// Whether the way up from a node ends at the root.
    pub fn is_attached(&self, base: &Base, id: LiveId) -> Result<bool> {
        self.hangs_on(base, id, None, &HashSet::new())
    }

    /// The entry `name` of a directory.
    pub fn lookup(&self, base: &Base, dir: LiveId, name: &[u8]) -> Result<Option<LiveId>> {
        if let Some(id) = self.put.get(&dir).and_then(|names| names.get(name)) {
            return Ok(Some(*id));
        }
        if dir.0 >= base.len() {
            return Ok(None);
        }
        let found = base.segment().lookup(NodeId(dir.0), name)?;
        Ok(found.filter(|node| self.is_in_place(node.0)).map(|node| LiveId(node.0)))
    }

    /// Hands the entries of a directory to `each`, in the order of their names' bytes.
    pub fn each_child(&self, base: &Base, dir: LiveId, each: &mut EachChild<'_>) -> Result<()> {
        let mut put = self.put.get(&dir).into_iter().flatten().map(|(name, id)| (&**name, *id)).peekable();
        if dir.0 < base.len() {
            for child in base.segment().children(NodeId(dir.0), 0)? {
                let child = child?;
                if !self.is_in_place(child.id.0) {
                    continue;
                }
                while let Some((name, id)) = put.next_if(|(name, _)| *name < child.name) {
                    if each(id, name)?.is_break() {
                        return Ok(());
                    }
                }
                if each(LiveId(child.id.0), child.name)?.is_break() {
                    return Ok(());
                }
            }
        }
        for (name, id) in put {
            if each(id, name)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The nodes of this key that are at a name which hangs together with the root.
    pub fn of_key(&self, base: &Base, key: u64, found: &mut Vec<LiveId>) -> Result<()> {
        found.clear();
        for &id in self.keyed.get(&key).map_or(&[][..], Same::each) {
            if self.is_attached(base, id)? {
                found.push(id);
            }
        }
        base.of_key(key, &mut |node| {
            let id = LiveId(node);
            // The store may have given the number to something else meanwhile, which is an added node then.
            if self.is_attached(base, id)? {
                found.push(id);
            }
            Ok(false)
        })
    }

    /// The directory of this key that hangs together with the root, or with one of `tops`.
    pub fn dir_of_key(&self, base: &Base, key: u64, tops: &HashSet<LiveId>) -> Result<Option<LiveId>> {
        let is_it = |id| -> Result<bool> {
            Ok(self.kind(base, id)? == Kind::Directory && self.hangs_on(base, id, None, tops)?)
        };
        for &id in self.keyed.get(&key).map_or(&[][..], Same::each) {
            if is_it(id)? {
                return Ok(Some(id));
            }
        }
        let mut found = None;
        base.of_key(key, &mut |node| {
            let is_found = is_it(LiveId(node))?;
            found = is_found.then_some(LiveId(node));
            Ok(is_found)
        })?;
        Ok(found)
    }

    /// Takes a node from its name. It is at none then, with all that is below.
    pub fn detach(&mut self, base: &Base, id: LiveId) -> Result<()> {
        let Some(parent) = self.parent(base, id)? else { return Ok(()) };
        if id.0 >= base.len() {
            let place = self.added_mut(base, id).and_then(|added| added.place.take());
            self.unput(parent, place.as_ref());
            return Ok(());
        }
        let is_dir = self.kind(base, id)? == Kind::Directory;
        match self.displaced.insert(id.0, None) {
            Some(place) => self.unput(parent, place.as_ref()),
            None => self.displaced_dirs += usize::from(is_dir),
        }
        Ok(())
    }

    fn unput(&mut self, parent: LiveId, place: Option<&Place>) {
        let Some(place) = place else { return };
        if let Some(names) = self.put.get_mut(&parent) {
            if names.remove(&place.name).is_some() {
                self.names_len -= place.name.len();
            }
            if names.is_empty() {
                self.put.remove(&parent);
            }
        }
    }

    /// Puts a node that is at no name at this one, which nothing is at.
    pub fn attach(&mut self, base: &Base, id: LiveId, parent: LiveId, name: &[u8]) -> Result<()> {
        if id.0 < base.len() {
            let at_home = base.segment().parent(NodeId(id.0))?.0 == parent.0
                && base.segment().name(NodeId(id.0))? == name
                && id != LiveId::ROOT;
            if at_home {
                self.displaced.remove(&id.0);
                self.displaced_dirs -= usize::from(self.kind(base, id)? == Kind::Directory);
                return Ok(());
            }
        }
        let place = Place { parent, name: name.into() };
        self.names_len += name.len();
        self.put.entry(parent).or_default().insert(place.name.clone(), id);
        match id.0 < base.len() {
            true => drop(self.displaced.insert(id.0, Some(place))),
            false => {
                if let Some(added) = self.added_mut(base, id) {
                    added.place = Some(place);
                }
            }
        }
        Ok(())
    }

    /// A new node, at no name yet.
    pub fn add(&mut self, base: &Base, facts: Facts) -> Result<LiveId> {
        let added = Some(Added { place: None, facts });
        let at = match self.free.pop() {
            Some(at) => {
                self.added[at as usize] = added;
                at
            }
            None => {
                let at = u32::try_from(self.added.len()).ok().filter(|at| *at < NODES_MAX - base.len());
                let at = at.ok_or_else(|| FsError::new(ErrorKind::OutOfRange).because("the index is full"))?;
                self.added.push(added);
                at
            }
        };
        let id = LiveId(base.len() + at);
        match self.keyed.get_mut(&facts.key) {
            None => drop(self.keyed.insert(facts.key, Same::One(id))),
            Some(Same::More(ids)) => ids.push(id),
            Some(same) => *same = Same::More(vec![same.each()[0], id]),
        }
        Ok(id)
    }

    /// Other attributes of a node, which is of the same kind.
    pub fn set_facts(&mut self, base: &Base, id: LiveId, facts: Facts) -> Result<()> {
        if let Some(added) = self.added_mut(base, id) {
            added.facts = facts;
        } else if base.facts(id.0)? == facts {
            self.attrs.remove(&id.0);
        } else {
            self.attrs.insert(id.0, facts);
        }
        Ok(())
    }

    /// A node is at no name, and nobody will put it at one again: what is kept of it and of what was put below it goes.
    pub fn drop_detached(&mut self, base: &Base, id: LiveId) -> Result<()> {
        let mut gone = vec![id];
        while let Some(id) = gone.pop() {
            for (name, child) in self.put.remove(&id).into_iter().flatten() {
                self.names_len -= name.len();
                if child.0 < base.len() {
                    self.displaced.insert(child.0, None);
                }
                gone.push(child);
            }
            if id.0 < base.len() {
                self.forget_below(base, id)?;
            } else if let Some(at) = id.0.checked_sub(base.len())
                && let Some(added) = self.added.get_mut(at as usize).and_then(Option::take)
            {
                self.free.push(at);
                self.unkey(added.facts.key, id);
            }
        }
        Ok(())
    }

    fn unkey(&mut self, key: u64, id: LiveId) {
        match self.keyed.get_mut(&key) {
            Some(Same::More(ids)) => {
                ids.retain(|other| *other != id);
                if let [one] = ids[..] {
                    self.keyed.insert(key, Same::One(one));
                }
            }
            Some(Same::One(one)) if *one == id => drop(self.keyed.remove(&key)),
            _ => {}
        }
    }

    /// That the children of a directory that is gone are gone needs no saying: as files go first when a tree is removed, this
    /// is what keeps a removed tree from being remembered entry by entry.
    fn forget_below(&mut self, base: &Base, id: LiveId) -> Result<()> {
        self.attrs.remove(&id.0);
        if self.kind(base, id)? != Kind::Directory {
            return Ok(());
        }
        for node in base.segment().child_range(NodeId(id.0))? {
            match self.displaced.get(&node) {
                // It moved away before, and is none of what is gone.
                Some(Some(_)) => continue,
                Some(None) => {
                    self.displaced.remove(&node);
                    self.displaced_dirs -= usize::from(base.segment().kind(NodeId(node))? == Kind::Directory);
                }
                None => {}
            }
            self.attrs.remove(&node);
        }
        Ok(())
    }
}

/// How many nodes of the base are a node and what is below it there.
fn with_all_below(base: &Base, node: u32) -> Result<u64> {
    let segment = base.segment();
    if segment.kind(NodeId(node))? != Kind::Directory {
        return Ok(1);
    }
    let levels = levels::below(segment, NodeId(node), &(1..u32::MAX))?;
    Ok(1 + levels.iter().map(|level| level.len() as u64).sum::<u64>())
}

#[cold]
fn no_such_entry(id: LiveId) -> FsError {
    FsError::new(ErrorKind::InvalidInput).because(format!("the index has no entry {}", id.0))
}
