//! What the upper holds, told as changes of the lower.
//!
//! Walks the upper alone: it costs what was changed, whatever the lower holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::copy_up::Looks;
use super::layer::Held;
use super::record::{Extent, Origin, Own};
use super::{BLOCK, Overlay, Shared, name_of};
use crate::error::{ErrorKind, Result};
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
    /// Of a file that had several names in the lower, this among them: other content, or other attributes. This name is gone,
    /// and those that are left are where they were.
    OtherNames,
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

type Names = Vec<Vec<u8>>;

/// A directory of the upper that is to be looked through.
struct Todo {
    upper: Held,
    path: Names,
    /// The lower directory that it shows, and its path there.
    below: Option<(Held, Names)>,
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

#[derive(Default)]
struct Found {
    told: Vec<Change>,
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
    /// Of files that had several names in the lower: the first one that is new.
    new_names: BTreeMap<Ino, Names>,
}

impl Found {
    fn tell(&mut self, path: &Names, kind: Kind, what: Changed) {
        self.told.push(Change { path: joined(path), kind, what });
    }

    /// Where something shows that lies at `path` in the lower and was not moved itself; `None` if it is hidden, by itself or
    /// with a directory above it.
    fn shown(&self, path: &Names) -> Option<Names> {
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

fn child(path: &Names, name: &[u8]) -> Names {
    path.iter().cloned().chain([name.to_vec()]).collect()
}

impl Overlay {
    /// Tells `sink` how what is shown differs from the lower, sorted by path. What is changed meanwhile may be told or not.
    ///
    /// Of a file that had several names in the lower a change is told under one of them. All of it is in memory first.
    ///
    /// # Errors
    /// `Stale` where the lower is not what it was; what the layers say.
    pub fn changes(&self, sink: &mut dyn FnMut(Change)) -> Result<()> {
        let shared = &self.0;
        let told = shared.changes();
        shared.settle();
        told?.into_iter().for_each(sink);
        Ok(())
    }
}

impl Shared {
    fn changes(&self) -> Result<Vec<Change>> {
        let mut found = Found::default();
        let upper = self.root.upper().ok_or(ErrorKind::Stale)?;
        if let Some(what) = self.compare(upper, &self.upper.store.getattr(upper)?, &self.lower.root())? {
            found.told.push(Change { path: joined(&[]), kind: Kind::Directory, what });
        }
        let (learning, below) = (self.upper.learning(), Some((self.lower.root(), Names::new())));
        let root = self.upper.hold(&learning, upper);
        let mut todo = vec![Todo { upper: root, path: Names::new(), below, opaque: false }];
        drop(learning);
        while let Some(dir) = todo.pop() {
            let names = self.names_in(dir.upper.ino)?;
            if let Some((below, path)) = dir.below.as_ref().filter(|_| dir.opaque) {
                self.look_beneath(below.ino, path, &names, &mut found)?;
            }
            for name in names {
                todo.extend(self.look_at(&dir, &name, &mut found)?);
            }
        }
        found.tell_elsewhere();
        self.look_at_index(&mut found)?;
        let Found { mut told, hidden, moved, .. } = found;
        let gone = hidden.into_iter().filter(|(path, _)| !moved.contains(path));
        let gone = gone.filter_map(|(path, kind)| kind.map(|kind| (path, kind)));
        told.extend(gone.map(|(path, kind)| Change { path: joined(&path), kind, what: Changed::Removed }));
        told.sort_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        Ok(told)
    }

    /// Notes the entries of a directory of the lower that are hidden without a whiteout: those that are not among `names`.
    fn look_beneath(&self, below: Ino, path: &Names, names: &[Vec<u8>], found: &mut Found) -> Result<()> {
        self.lower.store.read_dir(below, 0, &mut |entry| {
            let name = entry.name.as_bytes();
            if !names.iter().any(|known| known == name) {
                found.hidden.insert(child(path, name), Some(entry.kind));
            }
            ControlFlow::Continue(())
        })
    }

    fn names_in(&self, upper: Ino) -> Result<Names> {
        let mut names = Names::new();
        self.upper.store.read_dir(upper, 0, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        })?;
        Ok(names)
    }

    /// Looks at an entry of the upper; a directory is to be looked through, too.
    fn look_at(&self, dir: &Todo, name: &[u8], found: &mut Found) -> Result<Option<Todo>> {
        let Some((attr, held)) = self.upper.find(dir.upper.ino, name_of(name)?)? else { return Ok(None) };
        let beneath = match &dir.below {
            Some((below, _)) => self.lower.find(below.ino, name_of(name)?)?,
            None => None,
        };
        let (path, lower_path) = (child(&dir.path, name), dir.below.as_ref().map(|(_, path)| child(path, name)));
        let beneath_ino = beneath.as_ref().map(|(attr, _)| attr.ino);
        let hides = beneath.as_ref().zip(lower_path.clone()).map(|((attr, _), path)| (path, Some(attr.kind)));
        if held.ino == self.layout.whiteout.ino {
            found.hidden.extend(hides);
            return Ok(None);
        }
        let kind = attr.kind;
        let origin = self.origin(held.ino)?;
        // What has several names below is told with the index; its names up here are new, unless one was given back.
        let linked = self.own_xattr(held.ino, Own::Links)?.is_some();
        if linked && beneath_ino.is_some() && beneath_ino == origin.as_ref().map(|origin| origin.print.ino) {
            return Ok(None);
        }
        let Some(origin) = origin.filter(|_| !linked) else {
            if linked {
                found.new_names.entry(held.ino).or_insert_with(|| path.clone());
            }
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
            return Ok((kind == Kind::Directory).then_some(Todo { upper: held, path, below: None, opaque: false }));
        };
        let in_place = lower_path.as_ref() == Some(&origin.path);
        let below = match beneath {
            Some((_, below)) if in_place => below,
            _ => self.follow(&origin)?,
        };
        let what = self.compare(held.ino, &attr, &below)?;
        if !in_place {
            found.hidden.extend(hides);
        }
        if kind != Kind::Directory && !in_place {
            found.elsewhere.push(Elsewhere { upper: held.ino, path, kind, origin: origin.path, what });
            return Ok(None);
        }
        if in_place {
            found.in_place.insert(held.ino);
        } else {
            found.tell(&path, kind, Changed::Renamed(joined(&origin.path)));
            found.moved.insert(origin.path.clone());
            found.moved_directories.insert(origin.path.clone(), path.clone());
        }
        if let Some(what) = what {
            found.tell(&path, kind, what);
        }
        let (opaque, below) = (origin.opaque, Some((below, origin.path)));
        Ok((kind == Kind::Directory).then_some(Todo { upper: held, path, below, opaque }))
    }

    /// The object of the lower at an origin's path.
    pub(super) fn follow(&self, origin: &Origin) -> Result<Held> {
        let mut at = self.lower.root();
        for name in &origin.path {
            at = self.lower.find(at.ino, name_of(name)?)?.ok_or(ErrorKind::Stale)?.1;
        }
        Ok(at)
    }

    /// Files that had several names below: their copies have none up here, unless they were given one.
    fn look_at_index(&self, found: &mut Found) -> Result<()> {
        let index = self.layout.index.ino;
        for name in self.names_in(index)? {
            let Some((attr, held)) = self.upper.find(index, name_of(&name)?)? else { continue };
            let Some(origin) = self.origin(held.ino)? else { continue };
            let Some(what) = self.compare(held.ino, &attr, &self.follow(&origin)?)? else { continue };
            let (path, what) = match (found.shown(&origin.path), found.new_names.get(&held.ino)) {
                (Some(path), _) => (path, what),
                (None, Some(name)) => (name.clone(), what),
                // The names that are left are the lower's, and only a search of all of it would find them.
                (None, None) => (origin.path, Changed::OtherNames),
            };
            found.tell(&path, attr.kind, what);
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
