//! What the upper holds, told as changes of the lower.
//!
//! Walks the upper alone: it costs what was changed, whatever the lower holds. Only for the names of a changed file that has
//! several of them in the lower the lower is looked through ([`super::names_below`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::copy_up::Looks;
use super::find::Beside;
use super::layer::Held;
use super::names_below::{Failed, Linked, names_below};
use super::record::{Extent, Origin, Own, shown};
use super::{BLOCK, Overlay, Shared, name_of};
use crate::error::{ErrorKind, FsError, Result};
use crate::types::{Access, Attr, Ino, Kind};

/// How something differs from the lower.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Changed {
    /// It is new.
    Added,
    /// Other content, and maybe other attributes.
    Content,
    /// Other attributes. (Of a directory but for times. Its entries are told by themselves.)
    Attributes,
    /// It is gone.
    Removed,
    /// It had this path in the lower. (What lies in a directory moved with it, and is not told.)
    Renamed(Vec<u8>),
}

/// One path that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// From the root, with a leading slash: as it is in the lower of a name that is gone, else as it is now.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// How it differs.
    pub what: Changed,
}

/// One path of which nobody can tell how it differs.
#[derive(Debug)]
pub struct Unknown {
    /// As in a [`Change`].
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Why, with the path in the lower: `Stale` where the lower has not what it had there.
    pub error: FsError,
}

pub(super) type Names = Vec<Vec<u8>>;

/// A directory of the upper that is to be looked through.
struct Todo {
    upper: Held,
    path: Names,
    /// The lower directory that it shows; `None` also if that is not there any more.
    below: Option<Held>,
    /// The path of that one in the lower.
    lower_path: Option<Names>,
    /// It shows none of that one's entries.
    opaque: bool,
}

/// A name of what is elsewhere in the lower, and no directory.
struct Elsewhere {
    upper: Ino,
    path: Names,
    kind: Kind,
    origin: Names,
    what: Option<Changed>,
}

/// What the upper tells.
#[derive(Default)]
pub(super) struct Found {
    told: Vec<Change>,
    unknown: Vec<Unknown>,
    /// Names of the lower that are hidden, and what they are; `None` where what hides them is told as another content.
    hidden: BTreeMap<Names, Option<Kind>>,
    /// Where in the lower things lie that have another path now.
    moved: BTreeSet<Names>,
    /// Directories that moved: from where, to where.
    moved_directories: BTreeMap<Names, Names>,
    /// Names that are not where the lower has what they lead to.
    elsewhere: Vec<Elsewhere>,
    /// Inodes of the upper that have a name where the lower has it.
    in_place: BTreeSet<Ino>,
    /// What names lead to is not compared.
    names_only: bool,
}

impl Found {
    fn tell(&mut self, path: &Names, kind: Kind, what: Changed) {
        self.told.push(Change { path: joined(path), kind, what });
    }

    fn miss(&mut self, path: &Names, kind: Kind, error: FsError) {
        self.unknown.push(Unknown { path: joined(path), kind, error });
    }

    /// Where something shows that lies at `path` in the lower and was not moved itself; `None` if it is hidden, by itself or
    /// with a directory above it.
    pub fn shown(&self, path: &Names) -> Option<Names> {
        for len in (1..=path.len()).rev() {
            let (above, rest) = path.split_at(len);
            if let Some(to) = self.moved_directories.get(above) {
                return Some([to, rest].concat());
            }
            if self.hidden.contains_key(above) {
                return None;
            }
        }
        Some(path.clone())
    }

    /// Tells what is elsewhere. Of several names for one inode only one can be where it went; and none is if it is still in
    /// its place.
    fn tell_elsewhere(&mut self) {
        let mut elsewhere = std::mem::take(&mut self.elsewhere);
        elsewhere.sort_by(|a, b| a.path.cmp(&b.path));
        for Elsewhere { upper, path, kind, origin, what } in elsewhere {
            if !self.in_place.insert(upper) {
                self.tell(&path, kind, Changed::Added);
                continue;
            }
            self.tell(&path, kind, Changed::Renamed(joined(&origin)));
            self.moved.insert(origin);
            if let Some(what) = what {
                self.tell(&path, kind, what);
            }
        }
    }
}

pub(super) fn joined(names: &[Vec<u8>]) -> Vec<u8> {
    let mut path: Vec<u8> = names.iter().flat_map(|name| [&b"/"[..], name].concat()).collect();
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

pub(super) fn child(path: &Names, name: &[u8]) -> Names {
    path.iter().cloned().chain([name.to_vec()]).collect()
}

/// Whether the lower lost a directory while it was looked at.
pub(super) fn is_gone(e: &FsError) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory | ErrorKind::Stale)
}

/// The lower does not have any more what it had at `path`.
fn missing(path: &Names) -> FsError {
    let why = "the layer below does not have there what it had: put it back";
    FsError::new(ErrorKind::Stale).on("read the layer below", shown(path)).because(why)
}

impl Overlay {
    /// Tells `sink` how what is shown differs from the lower, sorted by path. What is changed meanwhile may be told or not.
    ///
    /// A file with several names is told under each. All of it is in memory first. What is returned could not be compared: unless it
    /// is empty, what was told is not all.
    ///
    /// # Errors
    /// What the layers say.
    pub fn changes(&self, sink: &mut dyn FnMut(Change)) -> Result<Vec<Unknown>> {
        let shared = self.shared();
        let told = shared.changes();
        shared.settle();
        let (told, unknown) = told?;
        told.into_iter().for_each(sink);
        Ok(unknown)
    }
}

impl Shared {
    fn changes(&self) -> Result<(Vec<Change>, Vec<Unknown>)> {
        let mut found = Found::default();
        self.look_through(&mut found)?;
        found.tell_elsewhere();
        self.look_at_index(&mut found)?;
        let Found { mut told, hidden, moved, mut unknown, .. } = found;
        let gone = hidden.into_iter().filter(|(path, _)| !moved.contains(path));
        let gone = gone.filter_map(|(path, kind)| kind.map(|kind| (path, kind)));
        told.extend(gone.map(|(path, kind)| Change { path: joined(&path), kind, what: Changed::Removed }));
        // In place: there may be as many as there are files.
        told.sort_unstable_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        unknown.sort_by(|a, b| a.path.cmp(&b.path));
        Ok((told, unknown))
    }

    /// Where names of the lower are shown now; see [`Found::shown`].
    pub(super) fn names_above(&self) -> Result<Found> {
        let mut found = Found { names_only: true, ..Found::default() };
        self.look_through(&mut found)?;
        Ok(found)
    }

    fn look_through(&self, found: &mut Found) -> Result<()> {
        let upper = self.root.upper().ok_or(ErrorKind::Stale)?;
        let root = self.lower.root();
        if !found.names_only
            && let Some(what) = self.compare(upper, &self.upper.store.getattr(upper)?, &root)?
        {
            found.tell(&Names::new(), Kind::Directory, what);
        }
        let upper = {
            let learning = self.upper.learning();
            self.upper.hold(&learning, upper)
        };
        let (path, lower_path) = (Names::new(), Some(Names::new()));
        let mut todo = vec![Todo { upper, path, below: Some(root), lower_path, opaque: false }];
        while let Some(dir) = todo.pop() {
            let names = self.names_in(dir.upper.ino)?;
            if dir.opaque {
                self.look_beneath(&dir, &names, found)?;
            }
            for name in names {
                todo.extend(self.look_at(&dir, &name, found)?);
            }
        }
        Ok(())
    }

    /// Notes the entries of the lower's directory that are hidden without a whiteout: those that are not among `names`.
    fn look_beneath(&self, dir: &Todo, names: &[Vec<u8>], found: &mut Found) -> Result<()> {
        let (Some(below), Some(path)) = (&dir.below, &dir.lower_path) else { return Ok(()) };
        let listed = self.lower.store.read_dir(below.ino, 0, &mut |entry| {
            let name = entry.name.as_bytes();
            if !names.iter().any(|known| known == name) {
                found.hidden.insert(child(path, name), Some(entry.kind));
            }
            ControlFlow::Continue(())
        });
        match listed {
            Err(e) if is_gone(&e) => {
                found.miss(&dir.path, Kind::Directory, missing(path));
                Ok(())
            }
            listed => listed,
        }
    }

    fn names_in(&self, upper: Ino) -> Result<Names> {
        let mut names = Names::new();
        self.upper.store.read_dir(upper, 0, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    /// What a directory of the lower has under a name; nothing if it is not there any more itself.
    fn find_below(&self, below: &Held, name: &[u8]) -> Result<Option<(Attr, Held)>> {
        match self.lower.find(below.ino, name_of(name)?) {
            Err(e) if is_gone(&e) => Ok(None),
            found => found,
        }
    }

    /// Looks at an entry of the upper; a directory is to be looked through, too.
    fn look_at(&self, dir: &Todo, name: &[u8], found: &mut Found) -> Result<Option<Todo>> {
        let Some((attr, held)) = self.upper.find(dir.upper.ino, name_of(name)?)? else { return Ok(None) };
        let beneath = match &dir.below {
            Some(below) => self.find_below(below, name)?,
            None => None,
        };
        let (path, lower_path) = (child(&dir.path, name), dir.lower_path.as_ref().map(|path| child(path, name)));
        let hides = beneath.as_ref().zip(lower_path.clone()).map(|((attr, _), path)| (path, Some(attr.kind)));
        if held.ino == self.layout.whiteout.ino {
            found.hidden.extend(hides);
            return Ok(None);
        }
        let kind = attr.kind;
        let origin = match self.origin(held.ino)? {
            Some(origin) => {
                let path = self.path_below(&origin.way)?;
                Some((origin, path))
            }
            None => None,
        };
        // What has several names below is told with the index; its names up here are new, unless one was given back.
        let linked = self.own_xattr(held.ino, Own::Links)?.is_some();
        let is_told = |(origin, path): &(Origin, Names)| {
            let is_name = beneath.as_ref().is_some_and(|(attr, _)| self.lower.is_same(&origin.print, attr));
            is_name || lower_path.as_ref() == Some(path)
        };
        if linked && origin.as_ref().is_some_and(is_told) {
            return Ok(None);
        }
        let Some((origin, origin_path)) = origin.filter(|_| !linked) else {
            match hides {
                Some((hidden, Some(Kind::File))) if kind == Kind::File && !linked => {
                    found.tell(&path, kind, Changed::Content);
                    found.hidden.insert(hidden, None);
                }
                hides => {
                    found.tell(&path, kind, Changed::Added);
                    found.hidden.extend(hides);
                }
            }
            let todo = Todo { upper: held, path, below: None, lower_path: None, opaque: false };
            return Ok((kind == Kind::Directory).then_some(todo));
        };
        let in_place = lower_path.as_ref() == Some(&origin_path);
        let Some(below) = self.origin_below((&origin, &origin_path), beneath.filter(|_| in_place))? else {
            return self.look_at_orphan(held, (path, kind), (origin_path, hides), found);
        };
        if !in_place {
            found.hidden.extend(hides);
        }
        let what = if found.names_only { None } else { self.compare(held.ino, &attr, &below)? };
        if kind != Kind::Directory && !in_place {
            found.elsewhere.push(Elsewhere { upper: held.ino, path, kind, origin: origin_path, what });
            return Ok(None);
        }
        if in_place {
            found.in_place.insert(held.ino);
        } else {
            found.tell(&path, kind, Changed::Renamed(joined(&origin_path)));
            found.moved.insert(origin_path.clone());
            found.moved_directories.insert(origin_path.clone(), path.clone());
        }
        if let Some(what) = what {
            found.tell(&path, kind, what);
        }
        let (opaque, below, lower_path) = (origin.opaque, Some(below), Some(origin_path));
        Ok((kind == Kind::Directory).then_some(Todo { upper: held, path, below, lower_path, opaque }))
    }

    /// Looks at what stands for something that the lower does not have any more. What is all in the upper is there all the same, and
    /// so is what was made in a directory.
    fn look_at_orphan(
        &self,
        upper: Held,
        (path, kind): (Names, Kind),
        (origin, hides): (Names, Option<(Names, Option<Kind>)>),
        found: &mut Found,
    ) -> Result<Option<Todo>> {
        let is_directory = kind == Kind::Directory;
        let is_file = matches!(hides, Some((_, Some(Kind::File)))) && kind == Kind::File;
        if is_directory || self.own_xattr(upper.ino, Own::Content)?.is_some() {
            found.miss(&path, kind, missing(&origin));
        } else {
            found.tell(&path, kind, if is_file { Changed::Content } else { Changed::Added });
        }
        // What is there instead is hidden, and told by that if it is of the same kind.
        found.hidden.extend(hides.map(|(path, hidden)| (path, hidden.filter(|hidden| *hidden != kind))));
        let todo = Todo { upper, path, below: None, lower_path: Some(origin), opaque: false };
        Ok(is_directory.then_some(todo))
    }

    /// The object of the lower that an origin with this path is about, which may have been found already; `None` if it is not there
    /// any more, or not what it was.
    fn origin_below(&self, (origin, path): (&Origin, &Names), found: Option<(Attr, Held)>) -> Result<Option<Held>> {
        let found = match found {
            Some(found) => Some(found),
            None => self.at_path_below(path)?,
        };
        Ok(found.filter(|(attr, _)| self.lower.is_same(&origin.print, attr)).map(|(_, held)| held))
    }

    /// What the lower has at a path.
    pub(super) fn at_path_below(&self, path: &[Vec<u8>]) -> Result<Option<(Attr, Held)>> {
        let root = self.lower.root();
        if path.is_empty() {
            return Ok(Some((self.lower.store.getattr(Ino::ROOT)?, root)));
        }
        self.find_in(&root, path)
    }

    /// What `names`, of which there is one at least, lead to from a directory of the lower.
    fn find_in(&self, dir: &Held, names: &[Vec<u8>]) -> Result<Option<(Attr, Held)>> {
        let mut found: Option<(Attr, Held)> = None;
        for (at, name) in names.iter().enumerate() {
            let dir = match &found {
                Some((_, dir)) => dir,
                None if at == 0 => dir,
                None => return Ok(None),
            };
            found = self.find_below(dir, name)?;
        }
        Ok(found)
    }

    /// What the lower has at an origin's path, which is not looked for from the root if it is in a directory that is known.
    pub(super) fn at_origin(&self, origin: &Origin, beside: Option<&Beside<'_>>) -> Result<Option<(Attr, Held)>> {
        if let Some(dir) = beside
            && let Some(names) = self.names_from(&dir.way, &origin.way)?.filter(|names| !names.is_empty())
        {
            // A step or so, where the whole path would be walked for each directory of a deep tree.
            return self.find_in(dir.held, &names);
        }
        self.at_path_below(&self.path_below(&origin.way)?)
    }

    /// The object of the lower that an origin is about.
    ///
    /// # Errors
    /// `Stale`, naming its path, if it is not there any more, or not what it was.
    pub(super) fn follow(&self, origin: &Origin) -> Result<Held> {
        let path = self.path_below(&origin.way)?;
        self.origin_below((origin, &path), None)?.ok_or_else(|| missing(&path))
    }

    /// Files that had several names below: their copies have none up here, unless they were given one. They changed under each name
    /// that is shown.
    fn look_at_index(&self, found: &mut Found) -> Result<()> {
        let index = self.layout.index.ino;
        let mut changed: BTreeMap<Ino, (Linked, Kind, Changed)> = BTreeMap::new();
        for name in self.names_in(index)? {
            let Some((attr, held)) = self.upper.find(index, name_of(&name)?)? else { continue };
            let Some(origin) = self.origin(held.ino)? else { continue };
            let near = self.path_below(&origin.way)?;
            let Some(below) = self.origin_below((&origin, &near), None)? else {
                let path = found.shown(&near).unwrap_or_else(|| near.clone());
                found.miss(&path, attr.kind, missing(&near));
                continue;
            };
            if let Some(what) = self.compare(held.ino, &attr, &below)? {
                let count = self.lower.store.getattr(below.ino)?.nlink;
                changed.insert(below.ino, (Linked { count, near }, attr.kind, what));
            }
        }
        let wanted = changed.iter().map(|(&ino, (linked, ..))| (ino, linked.clone())).collect();
        let (names, failed) = names_below(&self.lower, &wanted)?;
        for (ino, (_, kind, what)) in changed {
            let shown: Vec<Names> =
                names.get(&ino).into_iter().flatten().filter_map(|name| found.shown(name)).collect();
            shown.iter().for_each(|path| found.tell(path, kind, what.clone()));
        }
        for Failed { path, error } in failed {
            // What is hidden has no names to be told.
            if let Some(path) = found.shown(&path) {
                found.miss(&path, Kind::Directory, error);
            }
        }
        Ok(())
    }

    /// How an inode of the upper differs from what it stands for.
    pub(super) fn compare(&self, upper: Ino, attr: &Attr, below: &Held) -> Result<Option<Changed>> {
        let (new, old) = (Looks::of(&*self.upper.store, upper)?, Looks::of(&*self.lower.store, below.ino)?);
        if attr.kind == Kind::File && self.has_other_content(upper, attr, &old.attr)? {
            return Ok(Some(Changed::Content));
        }
        let of = |looks: &Looks| {
            let perm = if attr.kind == Kind::Symlink { 0 } else { looks.attr.perm };
            let mtime = (attr.kind != Kind::Directory).then_some(looks.attr.mtime);
            (perm, looks.attr.uid, looks.attr.gid, mtime, looks.sorted_xattrs())
        };
        Ok((of(&new) != of(&old)).then_some(Changed::Attributes))
    }

    fn has_other_content(&self, upper: Ino, attr: &Attr, old: &Attr) -> Result<bool> {
        let Some(value) = self.own_xattr(upper, Own::Content)? else { return Ok(attr.size > 0 || old.size > 0) };
        let extent = Extent::decode(&value, &format!("inode {} of the upper layer", upper.0))?;
        if extent.valid != old.size || attr.size != old.size || !extent.zeros.is_empty() {
            return Ok(true);
        }
        if extent.valid <= BLOCK {
            return Ok(false);
        }
        match self.upper.store.open(upper, Access::Read)?.seek_data(0) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NoData => Ok(false),
            Err(e) => Err(e),
        }
    }
}
