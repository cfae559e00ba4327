//! What is known of the inodes in use: a [`Node`] for each, which the [`Table`] finds by number, and by its inode in the upper.
//!
//! A node lives as long as the engine knows it, a file of it is open, something below it is in use, or an operation looks at
//! it. It never changes its number. It gets its upper inode once, when it is copied up, and keeps it. Neither two objects of the lower
//! nor two inodes of the upper share one, and no two have the same upper inode, whatever becomes of the lower meanwhile.

use std::sync::{Arc, OnceLock, Weak};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::content::Content;
use super::layer::Held;
use super::record::Fingerprint;
use crate::types::{Ino, Kind};

const SHARDS: usize = 16;

/// The object of the lower that a node shows, or stands for.
pub(super) struct Below {
    pub held: Held,
    pub print: Fingerprint,
}

/// Where a node was found last.
#[derive(Clone)]
pub(super) struct Place {
    pub dir: Arc<Node>,
    pub name: Box<[u8]>,
}

#[derive(Default)]
pub(super) struct State {
    pub place: Option<Place>,
    /// It has no name any more, and, of a directory, shows no entries of the lower.
    pub removed: bool,
    /// It shows no entries of the lower.
    pub opaque: bool,
    /// Names that are shown, where the upper's own count says something else.
    pub links: Option<u32>,
    /// Bytes of the content that may be the lower's; see [`super::record::Extent`]. Only for `stat`.
    pub below_len: u64,
    /// Units of 512 bytes that the whole file takes in the lower, if that is known. Likewise.
    pub blocks: Option<u64>,
    /// It was logged that the lower changed.
    pub told_stale: bool,
}

/// What of a node never changes.
#[derive(Clone, Copy)]
pub(super) struct Identity {
    /// The number under which it is shown.
    pub ino: Ino,
    pub kind: Kind,
    /// Whether the lower had several names for it.
    pub linked: bool,
    /// Whether it stands for an object of the lower, or is merged with one: also if that is not there any more.
    pub from_lower: bool,
}

/// See the module's notes.
pub(super) struct Node {
    pub ino: Ino,
    pub kind: Kind,
    /// As of [`Identity`].
    pub linked: bool,
    /// Likewise.
    pub from_lower: bool,
    upper: OnceLock<Held>,
    below: OnceLock<Below>,
    state: Mutex<State>,
    /// What is shared by all who have it open.
    pub content: Mutex<Weak<Content>>,
    table: Weak<Table>,
}

impl Node {
    pub fn upper(&self) -> Option<Ino> {
        self.upper.get().map(|held| held.ino)
    }

    /// Notes where its copy is; the first one counts.
    pub fn set_upper(&self, held: Held) {
        // A second one is of the same inode: nobody copies what has been copied.
        drop(self.upper.set(held));
    }

    /// What it stands for in the lower, if that was looked for.
    pub fn below(&self) -> Option<&Below> {
        self.below.get()
    }

    pub fn set_below(&self, below: Below) -> &Below {
        self.below.get_or_init(|| below)
    }

    /// Whether what was found is this node's: the inode `upper`, where it is one of the upper, that stands for `below`, if that is there.
    ///
    /// As long as neither has a copy, one number of the lower is one node: that what has it is another object by now, is an error of
    /// whatever is done with that. What has a copy is found under a name that only the lower has if it has several there.
    pub fn agrees(&self, upper: Option<Ino>, below: Option<&Fingerprint>) -> bool {
        let is_same = |own: &Fingerprint, found: &Fingerprint| match (upper, self.upper()) {
            (None, None) => own.kind == found.kind,
            (None, Some(_)) => self.linked && own.matches(found),
            (Some(_), None) => own.matches(found),
            (Some(upper), Some(own_upper)) => upper == own_upper && own.matches(found),
        };
        self.below().zip(below).is_none_or(|(own, found)| is_same(&own.print, found))
    }

    pub fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Where it was found last.
    pub fn place(&self) -> Option<Place> {
        self.state().place.clone()
    }

    /// Notes where it was found.
    pub fn found_at(&self, dir: &Arc<Node>, name: &[u8]) {
        let mut state = self.state();
        let same = |place: &Place| Arc::ptr_eq(&place.dir, dir) && *place.name == *name;
        if state.place.as_ref().is_some_and(same) {
            return;
        }
        let old = state.place.replace(Place { dir: dir.clone(), name: name.into() });
        drop(state);
        drop(old);
    }

    /// Notes that it has that name no more. What is only in the lower keeps it: by that it is found there.
    pub fn lost_name(&self, dir: &Arc<Node>, name: &[u8]) {
        let mut state = self.state();
        let same = |place: &Place| Arc::ptr_eq(&place.dir, dir) && *place.name == *name;
        let old =
            if self.upper().is_some() && state.place.as_ref().is_some_and(same) { state.place.take() } else { None };
        drop(state);
        drop(old);
    }

    /// The first that has a copy, on the way from here to the root, and the names that lead from there to here in the lower.
    /// `None` if that was lost with a name.
    ///
    /// What has no copy lies where it always lay, and so does what is above it, up to the first that has one. Nothing is locked:
    /// a rename beside this notes the copy before the new place, so a place that was read before no copy was found is the old one.
    pub fn nearest_copy(&self) -> Option<(Ino, Vec<Vec<u8>>)> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut place, mut upper) = (self.place(), self.upper());
        loop {
            if let Some(upper) = upper {
                names.reverse();
                return Some((upper, names));
            }
            let Place { dir, name } = place?;
            names.push(name.into());
            // In this order.
            place = dir.place();
            upper = dir.upper();
        }
    }

    /// Whether it is `below`, or one of the directories above it.
    pub fn holds(self: &Arc<Self>, below: &Arc<Node>) -> bool {
        let mut at = below.clone();
        loop {
            if Arc::ptr_eq(self, &at) {
                return true;
            }
            let Some(place) = at.place() else { return false };
            at = place.dir;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(table) = self.table.upgrade() {
            table.remove_dead(self.ino, self.upper());
        }
        // One after the other: a path may be longer than the stack is deep.
        let mut next = self.state.get_mut().place.take();
        while let Some(place) = next {
            next = Arc::into_inner(place.dir).and_then(|mut dir| dir.state.get_mut().place.take());
        }
    }
}

struct Slot {
    node: Weak<Node>,
    /// While the engine knows it.
    known: Option<Arc<Node>>,
}

/// Nodes by number, and those that have a copy by its inode in the upper too. Locks: of a copy, then of a number.
#[derive(Default)]
pub(super) struct Table {
    shards: [Mutex<HashMap<Ino, Slot>>; SHARDS],
    copies: [Mutex<HashMap<Ino, Weak<Node>>>; SHARDS],
}

impl Table {
    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<Ino, Slot>> {
        self.shards[ino.0 as usize % SHARDS].lock()
    }

    fn copies(&self, upper: Ino) -> MutexGuard<'_, HashMap<Ino, Weak<Node>>> {
        self.copies[upper.0 as usize % SHARDS].lock()
    }

    pub fn get(&self, ino: Ino) -> Option<Arc<Node>> {
        self.shard(ino).get(&ino)?.node.upgrade()
    }

    /// The node that has this inode of the upper.
    pub fn of_copy(&self, upper: Ino) -> Option<Arc<Node>> {
        self.copies(upper).get(&upper)?.upgrade()
    }

    /// The node that has the inode `upper`; else that of the number, to which what `upper` and `below` hold is added. Made if there is none,
    /// with `state`. `None` if that number is the one of something else.
    pub fn get_or_make(
        self: &Arc<Self>,
        Identity { ino, kind, linked, from_lower }: Identity,
        upper: Option<Held>,
        below: Option<Below>,
        state: State,
    ) -> Option<Arc<Node>> {
        let mut copies = upper.as_ref().map(|upper| self.copies(upper.ino));
        if let (Some(copies), Some(upper)) = (&copies, &upper)
            && let Some(node) = copies.get(&upper.ino).and_then(Weak::upgrade)
        {
            return Some(node);
        }
        let mut shard = self.shard(ino);
        let known = shard.get(&ino).and_then(|slot| slot.node.upgrade());
        let of = (upper.as_ref().map(|upper| upper.ino), below.as_ref().map(|below| &below.print));
        let node = match known {
            Some(node) if node.agrees(of.0, of.1) => node,
            Some(other) => {
                // It may be the last one, and look for its slot.
                drop((shard, copies));
                drop(other);
                return None;
            }
            None => {
                let node = Arc::new(Node {
                    ino,
                    kind,
                    linked,
                    from_lower,
                    upper: OnceLock::new(),
                    below: OnceLock::new(),
                    state: Mutex::new(state),
                    content: Mutex::default(),
                    table: Arc::downgrade(self),
                });
                shard.insert(ino, Slot { node: Arc::downgrade(&node), known: None });
                node
            }
        };
        if let Some(below) = below {
            node.set_below(below);
        }
        if let (Some(copies), Some(upper)) = (&mut copies, upper) {
            copies.insert(upper.ino, Arc::downgrade(&node));
            node.set_upper(upper);
        }
        drop(shard);
        Some(node)
    }

    /// Notes where the copy of a node is that was made just now.
    pub fn copied(&self, node: &Arc<Node>, upper: Held) {
        self.copies(upper.ino).insert(upper.ino, Arc::downgrade(node));
        node.set_upper(upper);
    }

    /// The engine knows it from now on.
    pub fn learn(&self, node: &Arc<Node>) {
        if node.ino == Ino::ROOT {
            return;
        }
        if let Some(slot) = self.shard(node.ino).get_mut(&node.ino) {
            slot.known.get_or_insert_with(|| node.clone());
        }
    }

    /// The engine does not know it any more.
    pub fn forget(&self, ino: Ino) {
        let known = self.shard(ino).get_mut(&ino).and_then(|slot| slot.known.take());
        // With the shard free: it may be the last one, and look for its slot.
        drop(known);
    }

    fn remove_dead(&self, ino: Ino, upper: Option<Ino>) {
        if let Some(upper) = upper {
            let mut copies = self.copies(upper);
            if copies.get(&upper).is_some_and(|node| node.strong_count() == 0) {
                copies.remove(&upper);
            }
        }
        let mut shard = self.shard(ino);
        if shard.get(&ino).is_some_and(|slot| slot.node.strong_count() == 0) {
            shard.remove(&ino);
        }
    }

    /// Nodes that the engine knows, and that were found last under a name of a directory. It looks at all.
    pub fn known_at(&self, dir: &Arc<Node>, name: &[u8]) -> Vec<Arc<Node>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            // With the shard free: the last use of a node looks for its slot.
            let known: Vec<Arc<Node>> = shard.lock().values().filter_map(|slot| slot.known.clone()).collect();
            found.extend(known.into_iter().filter(|node| {
                let state = node.state();
                let there = |place: &Place| Arc::ptr_eq(&place.dir, dir) && *place.name == *name;
                !state.removed && state.place.as_ref().is_some_and(there)
            }));
        }
        found
    }

    /// Nodes that there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::super::layer::Layer;
    use super::*;
    use crate::path::tests::mem::MemStore;
    use crate::types::Timestamp;

    /// Waits until a thread of this process sleeps: here, for a lock.
    fn await_sleep(thread: i32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let state = || std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        while !state().rsplit(')').next().unwrap().trim_start().starts_with('S') {
            assert!(Instant::now() < deadline, "it does not wait for the lock: {}", state());
            std::thread::yield_now();
        }
    }

    /// Whatever the lower becomes meanwhile.
    #[test]
    fn a_number_is_one_object_and_a_copy_is_one_node() {
        let (layer, table) = (Layer::new(Arc::new(MemStore::new())), Arc::new(Table::default()));
        let learning = layer.learning();
        let hold = |ino| layer.hold(&learning, Ino(ino));
        let below = |secs| {
            let time = Timestamp { secs, nanos: 0 };
            let print = Fingerprint { ino: Ino(5), kind: Kind::File, size: 1, mtime: time, ctime: time };
            Some(Below { held: hold(5), print })
        };
        let identity = |ino, linked| Identity { ino: Ino(ino), kind: Kind::File, linked, from_lower: true };
        let make = |ino, linked, upper: Option<u64>, below| {
            table.get_or_make(identity(ino, linked), upper.map(hold), below, State::default())
        };
        let copy = make(10, true, Some(7), below(1)).unwrap();
        assert!(Arc::ptr_eq(&make(10, true, None, below(1)).unwrap(), &copy), "another name");
        assert!(make(10, true, None, below(2)).is_none(), "the number came again");
        assert!(make(10, true, Some(8), below(1)).is_none(), "another copy");
        // Under whatever number it would be shown now.
        assert!(Arc::ptr_eq(&make(15, true, Some(7), None).unwrap(), &copy));
        assert!(table.of_copy(Ino(7)).is_some_and(|node| node.ino == Ino(10)));
        drop(copy);
        assert!(table.of_copy(Ino(7)).is_none() && table.len() == 0);
        let copy = make(10, false, Some(7), below(1)).unwrap();
        assert!(make(10, false, None, below(1)).is_none(), "it has one name, and that is above");
        drop(copy);
    }

    /// A rename comes between the two that [`Node::nearest_copy`] reads of a node.
    #[test]
    fn beside_a_rename_the_way_is_the_old_one_or_begins_at_the_copy() {
        let layer = Layer::new(Arc::new(MemStore::new()));
        let learning = layer.learning();
        let copy = |ino| Some(layer.hold(&learning, Ino(ino)));
        for of_file in [false, true] {
            let table = Arc::new(Table::default());
            let make = |ino, kind, upper| {
                let identity = Identity { ino: Ino(ino), kind, linked: false, from_lower: true };
                table.get_or_make(identity, upper, None, State::default()).unwrap()
            };
            let root = make(1, Kind::Directory, Some(layer.root()));
            let target = make(2, Kind::Directory, copy(20));
            let (dir, file) = (make(3, Kind::Directory, None), make(4, Kind::File, None));
            target.found_at(&root, b"target");
            dir.found_at(&root, b"dir");
            file.found_at(&dir, b"file");
            let looked_at = if of_file { &file } else { &dir };
            let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
            let below: &[&str] = if of_file { &["file"] } else { &[] };
            assert_eq!(looked_at.nearest_copy(), Some((Ino::ROOT, names(&[&["dir"], below].concat()))));

            // Held, so that who looks stops at the place.
            let mut state = dir.state();
            let way = std::thread::scope(|scope| {
                let (tell, told) = channel();
                let looks = scope.spawn(move || {
                    tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                    looked_at.nearest_copy()
                });
                await_sleep(told.recv().unwrap());
                dir.set_upper(copy(30).unwrap());
                let before = state.place.replace(Place { dir: target.clone(), name: (*b"moved").into() });
                drop(state);
                drop(before);
                looks.join().unwrap()
            });
            assert_eq!(way, Some((Ino(30), names(below))));
        }
    }
}
