//! What a name leads to: first in the upper, then in the lower.

use std::sync::Arc;

use super::changes::is_gone;
use super::layer::Held;
use super::node::{Below, Node, State};
use super::record::{self, Extent, Fingerprint, Origin, Own, shown};
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
            if state.removed || state.opaque || !dir.is_from_lower() {
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
        let told =
            |tell: &dyn Fn(&[Vec<u8>]) -> FsError| self.path_below(&origin.way).map_or_else(|e| e, |path| tell(&path));
        let stale = |difference: &str| {
            told(&|path| {
                log_once(node, || format!("{}: not what it was in the layer below: {difference}", shown(path)));
                let why = "it is not what it was when it was changed above: put it back, or give another upper layer";
                FsError::new(ErrorKind::Stale).on("read the layer below", shown(path)).because(why)
            })
        };
        let (attr, held) = match self.found_below(node, &origin) {
            Ok(Some(found)) => found,
            Ok(None) => return Err(stale(GONE)),
            Err(e) if is_gone(&e) => return Err(stale(GONE)),
            Err(e) => return Err(e),
        };
        if !origin.print.matches(&attr) {
            return Err(stale(&origin.print.difference(&attr)));
        }
        Ok(node.set_below(Below { held, print: origin.print }))
    }

    /// What the lower has where `node` comes from.
    fn found_below(&self, node: &Node, origin: &Origin) -> Result<Option<(Attr, Held)>> {
        if let Some(place) = node.place()
            && let Some(parent) = place.dir.below()
            && self.leads_to(&origin.way, &place.dir, &place.name)?
        {
            // One step, where the whole path would be walked for each directory of a deep tree.
            return self.lower.find(parent.held.ino, name_of(&place.name)?);
        }
        let path = self.path_below(&origin.way)?;
        let told = |e: FsError| e.on("read the layer below", shown(&path));
        let (mut at, mut attr) = (self.lower.root(), None);
        for name in &path {
            let Some((found, held)) = self.lower.find(at.ino, name_of(name)?).map_err(told)? else { return Ok(None) };
            (attr, at) = (Some(found), held);
        }
        let attr = attr.map_or_else(|| self.lower.store.getattr(Ino::ROOT), Ok)?;
        Ok(Some((attr, at)))
    }

    /// Checks that the object of the lower is still the one that it was. What changed is logged once for each node.
    ///
    /// # Errors
    /// As [`Shared::below`].
    pub fn check_below(&self, node: &Node) -> Result<()> {
        let below = self.below(node)?;
        let difference = match self.lower.store.getattr(below.held.ino) {
            Ok(attr) if attr.nlink == 0 && !self.is_in_place(node)? => GONE.to_owned(),
            Ok(attr) if below.print.matches(&attr) => return Ok(()),
            Ok(attr) => below.print.difference(&attr),
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
        let (upper, steps) = node.nearest_copy().ok_or(ErrorKind::Stale)?;
        let mut path = self.path_below(&self.origin(upper)?.ok_or(ErrorKind::Stale)?.way)?;
        path.extend(steps.into_iter().map(|step| step.name));
        Ok(path)
    }

    /// What `name` leads to in `dir`. Hold the names.
    pub fn find(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<Option<Entry>> {
        if !dir.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        match self.above(dir, name)? {
            Above::Whiteout => return Ok(None),
            Above::Entry(attr, held) => {
                let node = self.node_of_upper(&attr, held)?;
                node.found_at(dir, name.as_bytes());
                let attr = self.shown(&node, attr);
                return Ok(Some(Entry { node, attr, in_upper: true }));
            }
            Above::Nothing => {}
        }
        let Some((attr, held)) = self.beneath(dir, name)? else { return Ok(None) };
        let node = self.node_of_lower(&attr, held)?;
        node.found_at(dir, name.as_bytes());
        let attr = match node.upper() {
            Some(upper) => self.shown(&node, self.upper.store.getattr(upper)?),
            None => self.shown(&node, attr),
        };
        Ok(Some(Entry { node, attr, in_upper: false }))
    }

    /// The number under which an inode of the upper is shown, and whether it is opaque.
    pub fn number_of_upper(&self, upper: Ino) -> Result<(Ino, bool)> {
        match self.origin(upper)? {
            Some(origin) => Ok((self.number_of_lower(origin.print.ino)?, origin.opaque)),
            None => Ok((numbers::of_upper(upper).ok_or_else(|| too_large(upper, "the upper layer"))?, false)),
        }
    }

    /// The node of an inode of the upper. Hold the names.
    pub fn node_of_upper(&self, attr: &Attr, held: Held) -> Result<Arc<Node>> {
        let upper = held.ino;
        let (ino, opaque) = self.number_of_upper(upper)?;
        if let Some(node) = self.table.get(ino)
            && node.upper().is_some()
        {
            return Ok(node);
        }
        let mut state = State { opaque, ..State::default() };
        if numbers::in_lower(ino).is_some() && attr.kind != Kind::Directory {
            (state.links, state.below_len) = self.own_counts(upper)?;
        }
        let linked = state.links.is_some();
        let node = self.table.get_or_make((ino, attr.kind, linked), Some(held), None, state);
        if node.state().below_len > 0 {
            // What is gone is told to who reads it.
            let blocks =
                self.below(&node).and_then(|below| self.lower.store.getattr(below.held.ino)).map(|attr| attr.blocks);
            node.state().blocks = blocks.ok();
        }
        Ok(node)
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
    fn node_of_lower(&self, attr: &Attr, held: Held) -> Result<Arc<Node>> {
        let ino = self.number_of_lower(attr.ino)?;
        let linked = attr.kind != Kind::Directory && attr.nlink > 1;
        if let Some(node) = self.table.get(ino) {
            return Ok(node);
        }
        let below = Below { held, print: Fingerprint::of(attr) };
        if linked && let Some((_, copy)) = self.indexed(ino)? {
            let (links, below_len) = self.own_counts(copy.ino)?;
            let state = State { links, below_len, blocks: Some(attr.blocks), ..State::default() };
            // What it stands for is compared with what its origin says when that is read.
            return Ok(self.table.get_or_make((ino, attr.kind, true), Some(copy), None, state));
        }
        Ok(self.table.get_or_make((ino, attr.kind, linked), None, Some(below), State::default()))
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
        } else if node.is_directory() && node.is_from_lower() && attr.nlink > 0 {
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
