//! How one state of an overlay differs from another: that of a snapshot of its upper, and what is shown now.
//!
//! The upper tells which paths may differ. What is there is asked of both states, so that copies which show nothing, whiteouts,
//! and directories of the lower under another name are told as what they are to whoever works there. It costs what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::changes::{Change, Changed, Names, child, joined};
use super::copy_up::Looks;
use super::layer::Held;
use super::names_below::{Linked, names_below};
use super::node::Node;
use super::record::{Own, shown};
use super::{Overlay, Shared, name_of, names};
use crate::error::{ErrorKind, Result};
use crate::types::{Access, Attr, Ino, Kind};

/// Bytes of two copies that are compared at once.
const PIECE: usize = 256 << 10;

/// What a path leads to in one of the states.
pub(super) struct Seen {
    pub attr: Attr,
    pub node: Arc<Node>,
}

/// The paths that may differ.
#[derive(Default)]
struct Places {
    /// As they are in the old state, and in the new one.
    old: BTreeSet<Names>,
    new: BTreeSet<Names>,
    /// Inodes of the upper that changed, in more than the count of their names.
    touched: BTreeSet<Ino>,
    /// Files that changed and have several names in the lower, by their number there: the upper does not know these names.
    linked: BTreeMap<Ino, Linked>,
}

/// What is at the places, compared.
#[derive(Default)]
struct Found {
    gone: Vec<(Names, Seen)>,
    came: Vec<(Names, Seen)>,
    /// The path in the new state.
    both: Vec<(Names, Seen, Seen)>,
    /// Something else has its name, which is no directory either.
    replaced: Vec<(Names, Kind)>,
}

/// Directories of one state that lie elsewhere in the other one, or nowhere, by their paths.
type Moves = BTreeMap<Names, Option<Names>>;

/// Two states, and what is known of directories.
struct Pair<'a> {
    old: &'a Shared,
    new: &'a Shared,
    /// From the old one to the new one, and back.
    forth: Moves,
    back: Moves,
}

impl Overlay {
    /// How what is shown differs from what `old` shows: an overlay on a snapshot of the upper, over another store of the same
    /// lower. `upper` is how the upper itself differs from that snapshot; paths of it that may lead nowhere do no harm.
    /// Sorted by path. What is in a directory that was renamed moved with it, and is not told.
    ///
    /// # Errors
    /// `Stale` where the lower is not what it was; what the layers say.
    pub fn differences(&self, old: &Overlay, upper: &[Change]) -> Result<Vec<Change>> {
        let (old, new) = (old.shared(), self.shared());
        let mut pair = Pair { old: &old, new: &new, forth: Moves::new(), back: Moves::new() };
        let told = pair.run(upper);
        old.settle();
        new.settle();
        told
    }
}

/// The path that is shown of a path in the upper.
fn in_tree(path: &[u8]) -> Option<Names> {
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    (names.next() == Some(names::TREE)).then(|| names.map(<[u8]>::to_vec).collect())
}

/// The name of a path in the upper's index.
fn in_index(path: &[u8]) -> Option<&[u8]> {
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    (names.next() == Some(names::INDEX)).then(|| names.next()).flatten()
}

/// Where `path` lies in the other state, as far as the directories above it tell; `None` if one of them is only here.
fn elsewhere(moves: &Moves, path: &Names) -> Option<Names> {
    for len in (1..path.len()).rev() {
        let (above, rest) = path.split_at(len);
        if let Some(to) = moves.get(above) {
            return to.as_ref().map(|to| [to, rest].concat());
        }
    }
    Some(path.clone())
}

/// The directories among what was seen, by number.
fn directories(seen: &[(Names, Seen)]) -> BTreeMap<Ino, Names> {
    let directories = seen.iter().filter(|(_, seen)| seen.node.is_directory());
    directories.map(|(path, seen)| (seen.attr.ino, path.clone())).collect()
}

/// What of an inode is compared where the upper does not say that it changed.
fn attributes(attr: &Attr) -> impl PartialEq + use<> {
    let content = (attr.kind != Kind::Directory).then_some((attr.size, attr.mtime));
    (attr.perm, attr.uid, attr.gid, attr.rdev, content)
}

impl Shared {
    pub(super) fn at(&self, path: &Names) -> Result<Option<Seen>> {
        let _names = self.names.read();
        let mut at = Seen { attr: self.getattr(&self.root)?, node: self.root.clone() };
        for name in path {
            if !at.node.is_directory() {
                return Ok(None);
            }
            let Some(entry) = self.find(&at.node, name_of(name)?)? else { return Ok(None) };
            at = Seen { attr: entry.attr, node: entry.node };
        }
        Ok(Some(at))
    }

    /// Adds the paths of all that is in the directory at `path`, but not what is in directories of `others`.
    fn add_all_in(&self, path: &Names, others: &BTreeMap<Ino, Names>, paths: &mut BTreeSet<Names>) -> Result<()> {
        let mut todo = vec![path.clone()];
        while let Some(path) = todo.pop() {
            let Some(dir) = self.at(&path)? else { continue };
            self.read_dir(&dir.node, 0, &mut |entry| {
                let path = child(&path, entry.name.as_bytes());
                if entry.kind == Kind::Directory && !others.contains_key(&entry.ino) {
                    todo.push(path.clone());
                }
                paths.insert(path);
                ControlFlow::Continue(())
            })?;
        }
        Ok(())
    }
}

impl Pair<'_> {
    fn run(&mut self, upper: &[Change]) -> Result<Vec<Change>> {
        let mut places = self.places(upper)?;
        self.add_linked(&mut places)?;
        let mut found = self.settle(&places)?;
        if self.add_whole(&found, &mut places)? {
            found = self.settle(&places)?;
        }
        let mut told = self.tell(found, &places)?;
        told.sort_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        told.dedup();
        Ok(told)
    }

    /// Looks at the places until it is known which directories moved. What is below one of them has to be looked for again: there,
    /// or as it was called before. Each round knows those of one level more.
    fn settle(&mut self, places: &Places) -> Result<Found> {
        let levels = places.old.iter().chain(&places.new).map(Vec::len).max().unwrap_or(0);
        let mut found = self.look(places)?;
        for _ in 0..levels {
            if !self.note_moves(&found) {
                break;
            }
            found = self.look(places)?;
        }
        Ok(found)
    }

    fn places(&self, upper: &[Change]) -> Result<Places> {
        let mut places = Places::default();
        let renamed: BTreeSet<&[u8]> =
            upper.iter().filter(|c| matches!(c.what, Changed::Renamed(_))).map(|c| &*c.path).collect();
        for change in upper {
            if change.what == Changed::Removed {
                places.old.extend(in_tree(&change.path));
                if let Some(name) = in_index(&change.path) {
                    self.indexed(name, &mut places)?;
                }
                continue;
            }
            if let Changed::Renamed(from) = &change.what {
                places.old.extend(in_tree(from));
            }
            if let Some(path) = in_tree(&change.path) {
                if !matches!(change.what, Changed::Added | Changed::Renamed(_)) {
                    places.touched.extend(self.touched_at(&path, renamed.contains(&*change.path))?);
                }
                places.old.extend(self.copied_from(&path)?);
                places.new.insert(path);
            } else if let Some(name) = in_index(&change.path) {
                self.indexed(name, &mut places)?;
            }
        }
        Ok(places)
    }

    /// Where the old state has what is at `path` now, if it shows it where the lower has it: the upper need not say that it is
    /// not there any more, if the directory went too.
    fn copied_from(&self, path: &Names) -> Result<Option<Names>> {
        let Some(now) = self.new.at(path)? else { return Ok(None) };
        let Some(upper) = now.node.upper() else { return Ok(None) };
        let Some(origin) = self.new.origin(upper)? else { return Ok(None) };
        let origin = self.new.path_below(&origin.way)?;
        let before = self.old.at(&origin)?;
        Ok(before.filter(|before| before.attr.ino == now.attr.ino).map(|_| origin))
    }

    /// The inode of the upper at `path`, of which the upper tells that something changed there, if that is the inode: it was there
    /// before, or where it was `renamed` from. Of a copy in the index the entry there tells.
    fn touched_at(&self, path: &Names, renamed: bool) -> Result<Option<Ino>> {
        let Some(upper) = self.new.at(path)?.and_then(|now| now.node.upper()) else { return Ok(None) };
        if self.new.own_xattr(upper, Own::Links)?.is_some() {
            return Ok(None);
        }
        let Some((name, above)) = path.split_last().filter(|_| !renamed) else { return Ok(Some(upper)) };
        let Some(above) = self.new.at(&above.to_vec())?.and_then(|above| above.node.upper()) else { return Ok(None) };
        let before = self.old.upper.find(above, name_of(name)?)?;
        Ok(before.filter(|(_, held)| held.ino == upper).map(|_| upper))
    }

    /// A copy of a file that has several names in the lower: if it changed, these are to be looked for.
    fn indexed(&self, name: &[u8], places: &mut Places) -> Result<()> {
        let find = |of: &Shared| -> Result<_> { of.upper.find(of.layout.index.ino, name_of(name)?) };
        let (old, new) = (find(self.old)?, find(self.new)?);
        let (of, copy) = match (&old, &new) {
            (_, Some((_, copy))) => (self.new, copy),
            (Some((_, copy)), None) => (self.old, copy),
            (None, None) => return Ok(()),
        };
        let Some(origin) = of.origin(copy.ino)? else { return Ok(()) };
        let touched = match (&old, &new) {
            (Some((_, old)), Some((_, new))) => {
                let links = |of: &Shared, copy: &Held| of.own_xattr(copy.ino, Own::Links);
                // That a name came or went is told by itself, and the upper need not mean more than the count of them.
                let touched = links(self.old, old)? == links(self.new, new)? || self.copies_differ(old, new)?;
                places.touched.extend(touched.then_some(new.ino));
                touched
            }
            (_, Some((attr, copy))) => self.new.compare(copy.ino, attr, &self.new.follow(&origin)?)?.is_some(),
            (Some((attr, copy)), None) => self.old.compare(copy.ino, attr, &self.old.follow(&origin)?)?.is_some(),
            (None, None) => false,
        };
        if touched {
            let below = of.follow(&origin)?;
            let count = of.lower.store.getattr(below.ino)?.nlink;
            places.linked.insert(below.ino, Linked { count, near: of.path_below(&origin.way)? });
        }
        Ok(())
    }

    /// Adds the names of the lower under which the new state shows files that changed.
    fn add_linked(&self, places: &mut Places) -> Result<()> {
        if places.linked.is_empty() {
            return Ok(());
        }
        let (names, failed) = names_below(&self.new.lower, &places.linked)?;
        if let Some(failed) = failed.into_iter().next() {
            return Err(failed.error.on("look for names below", shown(&failed.path)));
        }
        let above = self.new.names_above()?;
        for (ino, names) in names {
            let ino = self.new.number_of_lower(ino)?;
            for path in names.iter().filter_map(|name| above.shown(name)) {
                if self.new.at(&path)?.is_some_and(|seen| seen.attr.ino == ino) {
                    places.new.insert(path);
                }
            }
        }
        Ok(())
    }

    /// Adds what is in directories that went or came: what the lower has there, the upper says nothing of. Whether there was
    /// something.
    fn add_whole(&self, found: &Found, places: &mut Places) -> Result<bool> {
        let known = |places: &Places| places.old.len() + places.new.len();
        let before = known(places);
        let (gone, came) = (directories(&found.gone), directories(&found.came));
        for (_, path) in gone.iter().filter(|(ino, _)| !came.contains_key(*ino)) {
            self.old.add_all_in(path, &came, &mut places.old)?;
        }
        for (_, path) in came.iter().filter(|(ino, _)| !gone.contains_key(*ino)) {
            self.new.add_all_in(path, &gone, &mut places.new)?;
        }
        for (path, old, new) in found.both.iter().filter(|(_, old, _)| old.node.is_directory()) {
            // One of them shows nothing of the lower, without a whiteout that tells.
            if old.node.state().opaque != new.node.state().opaque {
                self.new.add_all_in(path, &gone, &mut places.new)?;
                if let Some(path) = elsewhere(&self.back, path) {
                    self.old.add_all_in(&path, &came, &mut places.old)?;
                }
            }
        }
        Ok(known(places) > before)
    }

    /// Whether two copies differ in attributes, or in the content that is theirs. It reads that if nothing else tells.
    fn copies_differ(&self, old: &Held, new: &Held) -> Result<bool> {
        let looks = (Looks::of(&*self.old.upper.store, old.ino)?, Looks::of(&*self.new.upper.store, new.ino)?);
        if attributes(&looks.0.attr) != attributes(&looks.1.attr) || looks.0.sorted_xattrs() != looks.1.sorted_xattrs()
        {
            return Ok(true);
        }
        if looks.1.attr.kind != Kind::File {
            return Ok(false);
        }
        let extent = |of: &Shared, copy: &Held| of.own_xattr(copy.ino, Own::Content);
        Ok(extent(self.old, old)? != extent(self.new, new)? || self.data_differs(old.ino, new.ino)?)
    }

    /// Whether two files of the upper have other data, or data in other places.
    fn data_differs(&self, old: Ino, new: Ino) -> Result<bool> {
        let old = self.old.upper.store.open(old, Access::Read)?;
        let new = self.new.upper.store.open(new, Access::Read)?;
        let data = |found: Result<u64>| match found {
            Err(e) if e.kind() == ErrorKind::NoData => Ok(None),
            found => found.map(Some),
        };
        let (mut at, mut bytes) = (0, [vec![0; PIECE], vec![0; PIECE]]);
        loop {
            let (start, other) = (data(old.seek_data(at))?, data(new.seek_data(at))?);
            if start != other {
                return Ok(true);
            }
            let Some(start) = start else { return Ok(false) };
            let lens = [old.read_at(start, &mut bytes[0])?, new.read_at(start, &mut bytes[1])?];
            if bytes[0][..lens[0]] != bytes[1][..lens[1]] {
                return Ok(true);
            }
            if lens[0] == 0 {
                return Ok(false);
            }
            at = start + lens[0] as u64;
        }
    }

    fn look(&self, places: &Places) -> Result<Found> {
        let old = places.old.iter().map(|path| (Some(path.clone()), elsewhere(&self.forth, path)));
        let new = places.new.iter().map(|path| (elsewhere(&self.back, path), Some(path.clone())));
        let pairs: BTreeSet<(Option<Names>, Option<Names>)> = old.chain(new).collect();
        let seen = |of: &Shared, path: Option<Names>| -> Result<Option<(Names, Seen)>> {
            let Some(path) = path else { return Ok(None) };
            Ok(of.at(&path)?.map(|seen| (path, seen)))
        };
        let mut found = Found::default();
        for (old_path, new_path) in pairs {
            match (seen(self.old, old_path)?, seen(self.new, new_path)?) {
                (Some((_, old)), Some((path, new))) if old.attr.ino == new.attr.ino => {
                    found.both.push((path, old, new))
                }
                (Some((_, old)), Some((path, new))) if old.node.kind == new.node.kind && !new.node.is_directory() => {
                    found.replaced.push((path, new.node.kind));
                }
                (old, new) => {
                    found.gone.extend(old);
                    found.came.extend(new);
                }
            }
        }
        Ok(found)
    }

    /// Notes directories that lie elsewhere, or nowhere; whether that is news.
    fn note_moves(&mut self, found: &Found) -> bool {
        let (gone, came) = (directories(&found.gone), directories(&found.came));
        let moves = |from: &BTreeMap<Ino, Names>, to: &BTreeMap<Ino, Names>| -> Moves {
            from.iter().map(|(ino, path)| (path.clone(), to.get(ino).cloned())).collect()
        };
        let (forth, back) = (moves(&gone, &came), moves(&came, &gone));
        let is_news = (&forth, &back) != (&self.forth, &self.back);
        (self.forth, self.back) = (forth, back);
        is_news
    }

    fn tell(&self, found: Found, places: &Places) -> Result<Vec<Change>> {
        let mut told = Vec::new();
        let mut tell = |path: &Names, kind, what| told.push(Change { path: joined(path), kind, what });
        for (path, kind) in found.replaced {
            tell(&path, kind, Changed::Content);
        }
        for (path, old, new) in found.both {
            if let Some(what) = self.compare(&old, &new, &places.touched)? {
                tell(&path, new.node.kind, what);
            }
        }
        let mut gone: BTreeMap<Ino, Vec<(Names, Seen)>> = BTreeMap::new();
        for (path, seen) in found.gone {
            gone.entry(seen.attr.ino).or_default().push((path, seen));
        }
        for (path, new) in found.came {
            let kind = new.node.kind;
            let Some((from, old)) = gone.get_mut(&new.attr.ino).and_then(Vec::pop) else {
                tell(&path, kind, Changed::Added);
                continue;
            };
            tell(&path, kind, Changed::Renamed(joined(&from)));
            if let Some(what) = self.compare(&old, &new, &places.touched)? {
                tell(&path, kind, what);
            }
        }
        for (path, seen) in gone.into_values().flatten() {
            tell(&path, seen.node.kind, Changed::Removed);
        }
        Ok(told)
    }

    /// How an inode that is in both states differs; `touched`: those of which the upper says that they do, if it has them in both.
    fn compare(&self, old: &Seen, new: &Seen, touched: &BTreeSet<Ino>) -> Result<Option<Changed>> {
        let copied = |of: &Shared, seen: &Seen, upper: Ino| {
            of.compare(upper, &of.upper.store.getattr(upper)?, &of.below(&seen.node)?.held)
        };
        match (old.node.upper(), new.node.upper()) {
            (None, None) => Ok(None),
            (None, Some(upper)) => copied(self.new, new, upper),
            (Some(upper), None) => copied(self.old, old, upper),
            (Some(_), Some(upper)) => {
                let differs = touched.contains(&upper) || attributes(&old.attr) != attributes(&new.attr);
                Ok(differs.then_some(Changed::Content))
            }
        }
    }
}
