//! What a name leads to: first in the upper, then in the lower.

use std::sync::Arc;

use super::changes::is_gone;
use super::layer::Held;
use super::node::{Below, Identity, Node, State};
use super::record::{self, Extent, Fingerprint, Origin, Own, Way, shown};
use super::{Shared, name_of, numbers, too_large};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::Spelling;
use crate::types::{Attr, FileName, Ino, Kind};

/// What the upper says of a name.
pub(super) enum Above {
    Nothing,
    Whiteout,
    Entry(Attr, Held),
}

/// A directory of the lower, and where it lies. (Its way may have more names than one that is noted.)
pub(super) struct Beside<'n> {
    pub held: &'n Held,
    pub way: Way,
}

/// What a name leads to.
pub(super) struct Entry {
    pub node: Arc<Node>,
    /// As it is shown.
    pub attr: Attr,
    /// Whether the name is the upper's. (Its inode may be there without.)
    pub in_upper: bool,
}

/// How something of the lower differs that is gone.
const GONE: &str = "it is not there any more";

/// Logs that what `node` stands for in the lower changed, unless that was done.
fn log_once(node: &Node, what: impl FnOnce() -> String) {
    if !std::mem::replace(&mut node.state().told_stale, true) {
        tracing::warn!("{}", what());
    }
}

impl Shared {
    /// What the upper has under a name. Hold the names, and go on holding them while what is found matters.
    pub fn above(&self, dir: &Node, name: FileName<'_>) -> Result<Above> {
        let Some(upper) = dir.upper() else { return Ok(Above::Nothing) };
        Ok(match self.upper.find(upper, name)? {
            None => Above::Nothing,
            Some((_, held)) if held.ino == self.layout.whiteout.ino => Above::Whiteout,
            Some((attr, held)) => Above::Entry(attr, held),
        })
    }

    /// What the lower has under a name, whether it is hidden or not.
    pub fn beneath(&self, dir: &Node, name: FileName<'_>) -> Result<Option<(Attr, Held)>> {
        let Some(below) = self.merged_with(dir)? else { return Ok(None) };
        // Of a name that the lower also knows by another spelling, only the stored one counts.
        if self.lower.store.spelling(name) == Spelling::Other {
            return Ok(None);
        }
        let found = self.lower.find(below.held.ino, name).map_err(|e| self.of_below(dir, e))?;
        if found.is_none() && self.lower_changes {
            self.check_there(dir)?;
        }
        Ok(found)
    }

    /// The directory of the lower whose entries `dir` shows.
    pub fn merged_with<'n>(&self, dir: &'n Node) -> Result<Option<&'n Below>> {
        {
            let state = dir.state();
            if state.removed || state.opaque || !dir.from_lower {
                return Ok(None);
            }
        }
        self.below(dir).map(Some)
    }

    /// The object of the lower that `node` stands for.
    ///
    /// # Errors
    /// `Stale`, naming its path, if it is not there any more, or not what it was; what that is, is logged once for each node.
    pub fn below<'n>(&self, node: &'n Node) -> Result<&'n Below> {
        if let Some(below) = node.below() {
            return Ok(below);
        }
        let upper = node.upper().ok_or(ErrorKind::Stale)?;
        let origin = self.origin(upper)?.ok_or(ErrorKind::Stale)?;
        let stale = |difference: &str| match self.path_below(&origin.way) {
            Ok(path) => {
                log_once(node, || format!("{}: not what it was in the layer below: {difference}", shown(&path)));
                let why = "it is not what it was when it was changed above: put it back, or give another upper layer";
                FsError::new(ErrorKind::Stale).on("read the layer below", shown(&path)).because(why)
            }
            Err(e) => e,
        };
        let place = node.place();
        let beside = place.as_ref().and_then(|place| self.beside(&place.dir));
        let found = self.at_origin(&origin, beside.as_ref()).map_err(|e| match self.path_below(&origin.way) {
            Ok(path) => e.on("read the layer below", shown(&path)),
            Err(e) => e,
        })?;
        let (attr, held) = found.ok_or_else(|| stale(GONE))?;
        if !self.lower.is_same(&origin.print, &attr) {
            return Err(stale(&self.lower.difference(&origin.print, &attr)));
        }
        Ok(node.set_below(Below { held, print: Fingerprint::of(&attr) }))
    }

    /// Checks that the object of the lower is still the one that it was. What changed is logged once for each node.
    ///
    /// # Errors
    /// As [`Shared::below`].
    pub fn check_below(&self, node: &Node) -> Result<()> {
        let below = self.below(node)?;
        let difference = match self.lower.store.getattr(below.held.ino) {
            Ok(attr) if attr.nlink == 0 && !self.is_in_place(node)? => GONE.to_owned(),
            Ok(attr) if self.lower.is_same(&below.print, &attr) => return Ok(()),
            Ok(attr) => self.lower.difference(&below.print, &attr),
            Err(e) if is_gone(&e) => GONE.to_owned(),
            Err(e) => return Err(e),
        };
        let path = self.lower_path(node).map_or_else(|_| format!("inode {}", below.held.ino.0), |path| shown(&path));
        log_once(node, || format!("{path}: changed while it was in use as the layer below: {difference}"));
        let why = format!("it changed while it was in use as the layer below: {difference}");
        Err(FsError::new(ErrorKind::Stale).on("read the layer below", path).because(why))
    }

    /// Whether the lower still has, where it was, what `node` stands for; which was found there.
    fn is_in_place(&self, node: &Node) -> Result<bool> {
        let below = self.below(node)?;
        let mut at = self.lower.root();
        for name in &self.lower_path(node)? {
            match self.lower.find(at.ino, name_of(name)?) {
                Ok(Some((_, held))) => at = held,
                Ok(None) => return Ok(false),
                Err(e) if is_gone(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(at.ino == below.held.ino)
    }

    /// Checks that a directory is there of which the lower says that nothing is in it. It costs a look at the lower.
    fn check_there(&self, dir: &Node) -> Result<()> {
        if dir.ino == Ino::ROOT { Ok(()) } else { self.check_below(dir) }
    }

    /// An error of the lower about the object that `node` stands for: that this is gone is told as the change that it is.
    pub fn of_below(&self, node: &Node, e: FsError) -> FsError {
        if is_gone(&e) { self.check_below(node).err().unwrap_or(e) } else { e }
    }

    /// Checks the same before something is done that would go by without the lower, if others can change that.
    pub fn check_shared(&self, node: &Node) -> Result<()> {
        if self.lower_changes { self.check_below(node) } else { Ok(()) }
    }

    /// Where the object that `node` stands for lies in the lower.
    pub fn lower_path(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        self.path_below(&self.way_of(node)?)
    }

    /// What `name` leads to in `dir`. Hold the names.
    pub fn find(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<Option<Entry>> {
        if !dir.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        match self.above(dir, name)? {
            Above::Whiteout => return Ok(None),
            Above::Entry(attr, held) => {
                let node = self.node_of_upper(&attr, held, dir)?;
                node.found_at(dir, name.as_bytes());
                let attr = self.shown(&node, attr);
                return Ok(Some(Entry { node, attr, in_upper: true }));
            }
            Above::Nothing => {}
        }
        let Some((attr, held)) = self.beneath(dir, name)? else { return Ok(None) };
        let node = self.node_of_lower(&attr, held, (dir, name))?;
        node.found_at(dir, name.as_bytes());
        let attr = match node.upper() {
            Some(upper) => self.shown(&node, self.upper.store.getattr(upper)?),
            None => self.shown(&node, attr),
        };
        Ok(Some(Entry { node, attr, in_upper: false }))
    }

    /// Where `dir` is in the lower, if that was looked for: what stands for one of its entries is found from there.
    pub fn beside<'n>(&self, dir: &'n Node) -> Option<Beside<'n>> {
        let below = dir.below()?;
        self.way_of(dir).ok().map(|way| Beside { held: &below.held, way })
    }

    /// The object of the lower for which an inode of the upper stands, with its attributes, if what was found at its path is that, as it was.
    ///
    /// What cannot be looked at counts as what is not there: a copy is shown all the same, and whoever needs something of the lower looks
    /// again, and gets the error.
    pub fn standing(&self, origin: &Origin, found: Result<Option<(Attr, Held)>>) -> Option<(Attr, Held)> {
        found.ok().flatten().filter(|(attr, _)| self.lower.is_same(&origin.print, attr))
    }

    /// The number of its own of an inode of the upper.
    fn own_number(&self, upper: Ino) -> Result<Ino> {
        numbers::of_upper(upper).ok_or_else(|| too_large(upper, "the upper layer"))
    }

    /// The number under which an inode of the upper is shown: that of the object of the lower for which it stands, where the lower has that
    /// now, as it was. Else that number may be another object's, and it is shown under one of its own.
    pub fn number_of_upper(&self, upper: Ino, beside: Option<&Beside<'_>>) -> Result<Ino> {
        if let Some(node) = self.table.of_copy(upper) {
            return Ok(node.ino);
        }
        match self.origin(upper)? {
            Some(origin) => self.number_of_copy(upper, &origin, || self.at_origin(&origin, beside)),
            None => self.own_number(upper),
        }
    }

    /// As [`Shared::number_of_upper`], of one with this origin, for which `find` finds what the lower has at its path.
    pub fn number_of_copy(
        &self,
        upper: Ino,
        origin: &Origin,
        find: impl FnOnce() -> Result<Option<(Attr, Held)>>,
    ) -> Result<Ino> {
        if let Some(node) = self.table.of_copy(upper) {
            return Ok(node.ino);
        }
        match self.standing(origin, find()) {
            Some((attr, _)) => self.number_of_lower(attr.ino),
            None => self.own_number(upper),
        }
    }

    /// The node of an inode of the upper, which was found in `dir`. Hold the names.
    fn node_of_upper(&self, attr: &Attr, held: Held, dir: &Node) -> Result<Arc<Node>> {
        self.node_of_copy(attr, held, |origin| self.standing(origin, self.at_origin(origin, self.beside(dir).as_ref())))
    }

    /// The node of an inode of the upper; `standing` finds for what it stands, as [`Shared::standing`] does.
    fn node_of_copy(
        &self,
        attr: &Attr,
        held: Held,
        standing: impl FnOnce(&Origin) -> Option<(Attr, Held)>,
    ) -> Result<Arc<Node>> {
        let upper = held.ino;
        if let Some(node) = self.table.of_copy(upper) {
            return Ok(node);
        }
        let (origin, mut state) = (self.origin(upper)?, State::default());
        if origin.is_some() && attr.kind != Kind::Directory {
            (state.links, state.below_len) = self.own_counts(upper)?;
        }
        let (ino, linked) = (self.own_number(upper)?, state.links.is_some());
        let mut identity = Identity { ino, kind: attr.kind, linked, from_lower: origin.is_some() };
        let mut below = None;
        if let Some(origin) = origin {
            state.opaque = origin.opaque;
            if let Some((attr, held)) = standing(&origin) {
                let (ino, print) = (self.number_of_lower(attr.ino)?, Fingerprint::of(&attr));
                if self.table.get(ino).is_none_or(|node| node.agrees(Some(upper), Some(&print))) {
                    identity.ino = ino;
                    state.blocks = (state.below_len > 0).then_some(attr.blocks);
                    below = Some(Below { held, print });
                }
            }
        }
        self.table.get_or_make(identity, Some(held), below, state).ok_or_else(|| ErrorKind::Stale.into())
    }

    /// The count of names that are shown of an inode of the upper, and how many bytes of its content may be the lower's.
    fn own_counts(&self, upper: Ino) -> Result<(Option<u32>, u64)> {
        let subject = format!("inode {} of the upper layer", upper.0);
        let links =
            self.own_xattr(upper, Own::Links)?.map(|value| record::decode_links(&value, &subject)).transpose()?;
        let extent = self.own_xattr(upper, Own::Content)?.map(|value| Extent::decode(&value, &subject)).transpose()?;
        Ok((links, extent.map_or(0, |extent| extent.len())))
    }

    /// The node of an object of the lower that was found under its name there. Hold the names.
    fn node_of_lower(&self, attr: &Attr, held: Held, at: (&Arc<Node>, FileName<'_>)) -> Result<Arc<Node>> {
        let ino = self.number_of_lower(attr.ino)?;
        let linked = attr.kind != Kind::Directory && attr.nlink > 1;
        let print = Fingerprint::of(attr);
        if linked && let Some((copy_attr, copy)) = self.indexed(&print, at)? {
            let is_same = |origin: &Origin| self.lower.is_same(&origin.print, attr);
            return self.node_of_copy(&copy_attr, copy, |origin| is_same(origin).then_some((*attr, held)));
        }
        let identity = Identity { ino, kind: attr.kind, linked, from_lower: true };
        let node = self.table.get_or_make(identity, None, Some(Below { held, print }), State::default());
        node.ok_or_else(|| {
            let above = self.path_of(at.0).unwrap_or_default();
            let why = "its inode number was another file's, which is in use: the layer below changed under the mount; mount anew";
            FsError::new(ErrorKind::Stale)
                .on("look up", format!("{}/{}", above.trim_end_matches('/'), at.1.display()))
                .because(why)
        })
    }

    /// The copy of an object of the lower that has several names, and was found under one that the upper does not have.
    fn indexed(&self, print: &Fingerprint, (dir, name): (&Arc<Node>, FileName<'_>)) -> Result<Option<(Attr, Held)>> {
        for key in [record::index_name_by_number(print.ino), record::index_name(print)] {
            let Some((attr, copy)) = self.upper.find(self.layout.index.ino, name_of(key.as_bytes())?)? else {
                continue;
            };
            let Some(origin) = self.origin(copy.ino)? else { continue };
            // Copies were made without a name of their own before: such a one is found at its path all the same.
            if origin.print.matches(print) || attr.nlink == 1 && self.leads_to(&origin.way, dir, name.as_bytes())? {
                return Ok(Some((attr, copy)));
            }
        }
        Ok(None)
    }

    /// The name in the index of a copy that has one.
    pub fn name_in_index(&self, upper: Ino) -> Result<Option<String>> {
        let Some(Origin { print, .. }) = self.origin(upper)? else { return Ok(None) };
        for key in [record::index_name(&print), record::index_name_by_number(print.ino)] {
            let found = self.upper.find(self.layout.index.ino, name_of(key.as_bytes())?)?;
            if found.is_some_and(|(_, held)| held.ino == upper) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// The attributes of a node as they are shown. `attr` is of its upper inode if it has one, else of the lower's.
    pub fn shown(&self, node: &Node, mut attr: Attr) -> Attr {
        let state = node.state();
        attr.ino = node.ino;
        if let Some(links) = state.links {
            attr.nlink = links;
        }
        if node.upper().is_none() && state.removed {
            attr.nlink = 0;
        } else if node.is_directory() && node.from_lower && attr.nlink > 0 {
            // Nobody counts the directories of both layers; 1 is what filesystems say that do not count.
            attr.nlink = 1;
        }
        if node.upper().is_some() && state.below_len > 0 {
            // What is still the lower's takes what it takes there. Of what was copied both may count.
            let most = attr.blocks.max(attr.size.div_ceil(512).next_multiple_of(8));
            let below = state.below_len.div_ceil(512).next_multiple_of(8);
            attr.blocks = (attr.blocks + state.blocks.unwrap_or(below).min(below)).min(most);
        }
        attr
    }
}
