//! Removing names.
//!
//! Where the lower has the name, a whiteout takes its place: a further name of the upper's one whiteout inode. A directory is
//! empty if nothing is shown in it; the whiteouts that are left in it go with it.
//!
//! On a full upper it works as well: the upper keeps space back for what takes something away.

use std::ops::ControlFlow;
use std::sync::Arc;

use hashbrown::HashSet;

use super::copy_up::Plan;
use super::find::Entry;
use super::node::Node;
use super::record::{Own, encode_links};
use super::{Shared, name_of};
use crate::error::{ErrorKind, Result};
use crate::transaction::Transaction;
use crate::types::{FileName, Ino, XattrSet};

/// Whiteouts that go in one transaction with something else.
const WHITEOUTS_AT_ONCE: usize = 64;

/// What happens to what loses a name.
pub(super) struct Loss {
    plan: Option<Plan>,
    copy: Option<Ino>,
    links: Option<u32>,
    /// The name of the copy in the index.
    index_name: Option<String>,
}

impl Shared {
    /// Prepares to take a name from what is not a directory. Hold the names alone.
    pub fn prepare_loss(&self, node: &Node) -> Result<Loss> {
        // One of several names of the lower: the others show from now on what their copy counts.
        let plan = if node.upper().is_none() && node.linked { Some(self.plan(node)?) } else { None };
        let counted = node.state().links;
        let links = plan.as_ref().map_or(counted, |plan| Some(plan.attr().nlink)).map(|links| links.saturating_sub(1));
        let index_name = match (&plan, node.upper().filter(|_| links.is_some())) {
            (Some(plan), _) => Some(plan.index_name().to_owned()),
            (None, Some(upper)) => self.name_in_index(upper)?,
            (None, None) => None,
        };
        Ok(Loss { plan, copy: None, links, index_name })
    }

    /// Counts one name less; the name itself is the caller's to remove.
    pub fn lose(&self, tx: &mut dyn Transaction, node: &Node, loss: &mut Loss) -> Result<()> {
        if let Some(plan) = &loss.plan {
            loss.copy = Some(self.copy_nameless(tx, node, plan)?);
        }
        let (Some(upper), Some(links)) = (loss.copy.or(node.upper()), loss.links) else { return Ok(()) };
        tx.set_xattr(upper, Own::Links.name(), &encode_links(links), XattrSet::Replace)?;
        match &loss.index_name {
            Some(name) if links == 0 => tx.unlink(self.layout.index.ino, name_of(name.as_bytes())?),
            _ => Ok(()),
        }
    }

    /// Notes that the transaction with [`Shared::lose`] was applied.
    pub fn lost(&self, node: &Arc<Node>, learning: &super::layer::Learning<'_>, loss: Loss) {
        if let (Some(plan), Some(copy)) = (&loss.plan, loss.copy) {
            self.copied(node, learning, copy, plan);
        }
        let mut state = node.state();
        match loss.links {
            Some(links) => state.links = Some(links),
            // The upper counts what it has itself.
            None => state.removed |= node.upper().is_none() || node.is_directory(),
        }
    }

    /// The entry `name` of `dir`. Hold the names.
    pub fn entry(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<Entry> {
        self.find(dir, name)?.ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub fn unlink(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<()> {
        let check = |entry: &Entry| match entry.node.is_directory() {
            true => Err(ErrorKind::IsDirectory.into()),
            false => Ok(()),
        };
        self.ensure_for_removal(dir, |this| this.entry(dir, name).and_then(|entry| check(&entry)))?;
        let _names = self.names.write();
        let entry = self.entry(dir, name)?;
        check(&entry)?;
        let mut loss = self.prepare_loss(&entry.node)?;
        let hides = self.hides(dir, name, &entry.node)?;
        let parent = dir.upper().ok_or(ErrorKind::Stale)?;
        let learning = self.upper.learning();
        self.transact_removal(&mut |tx| {
            self.lose(tx, &entry.node, &mut loss)?;
            if entry.in_upper {
                tx.unlink(parent, name)?;
            }
            if hides { self.white_out(tx, parent, name) } else { Ok(()) }
        })?;
        self.lost(&entry.node, &learning, loss);
        entry.node.lost_name(dir, name.as_bytes());
        Ok(())
    }

    /// Copies `dir` up, if `check`, with the names held, finds that the operation that needs it can go on. Hold nothing.
    pub fn ensure_if(&self, dir: &Arc<Node>, check: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        if self.is_needed(dir, check)? { self.ensure_directory(dir) } else { Ok(()) }
    }

    /// As [`Shared::ensure_if`], for an operation that takes something away.
    fn ensure_for_removal(&self, dir: &Arc<Node>, check: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        if self.is_needed(dir, check)? { self.ensure_directory_for_removal(dir) } else { Ok(()) }
    }

    /// Whether `dir` has no copy yet; then `check` must find that it is to have one.
    fn is_needed(&self, dir: &Node, check: impl FnOnce(&Self) -> Result<()>) -> Result<bool> {
        if dir.upper().is_some() {
            return Ok(false);
        }
        let _names = self.names.read();
        check(self).map(|()| true)
    }

    /// Whether `node` hides something of the lower under the name that it has in `dir`, or did: what is gone there may come back, and
    /// must not show again then.
    pub fn hides(&self, dir: &Node, name: FileName<'_>, node: &Node) -> Result<bool> {
        match self.beneath(dir, name) {
            Ok(Some(_)) => Ok(true),
            Ok(None) => self.stood_at(dir, name, node),
            Err(e) if e.kind() == ErrorKind::Stale => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Whether `node` stands for what the lower had under that name. Of several names it is not known which they were.
    fn stood_at(&self, dir: &Node, name: FileName<'_>, node: &Node) -> Result<bool> {
        let Some(upper) = node.upper().filter(|_| self.lower_changes && node.from_lower) else { return Ok(false) };
        if self.merged_with(dir)?.is_none() {
            return Ok(false);
        }
        if node.linked {
            return Ok(true);
        }
        let Some(origin) = self.origin(upper)? else { return Ok(false) };
        let parent = self.lower_path(dir)?;
        Ok(origin.path.split_last().is_some_and(|(last, above)| *last == name.as_bytes() && above == parent))
    }

    pub fn white_out(&self, tx: &mut dyn Transaction, parent: Ino, name: FileName<'_>) -> Result<()> {
        tx.link(self.layout.whiteout.ino, parent, name).map(drop)
    }

    pub fn rmdir(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<()> {
        let check = |this: &Self, entry: &Entry| match entry.node.is_directory() {
            true if entry.node.upper().is_none() => this.white_names(&entry.node).map(drop),
            true => Ok(()),
            false => Err(ErrorKind::NotDirectory.into()),
        };
        self.ensure_for_removal(dir, |this| this.entry(dir, name).and_then(|entry| check(this, &entry)))?;
        let _names = self.names.write();
        let entry = self.entry(dir, name)?;
        check(self, &entry)?;
        let whites = self.empty(&entry.node)?;
        let hides = self.hides(dir, name, &entry.node)?;
        let parent = dir.upper().ok_or(ErrorKind::Stale)?;
        let _learning = self.upper.learning();
        self.transact_removal(&mut |tx| {
            if entry.in_upper {
                self.drop_whites(tx, &entry.node, &whites)?;
                tx.rmdir(parent, name)?;
            }
            if hides { self.white_out(tx, parent, name) } else { Ok(()) }
        })?;
        entry.node.state().removed = true;
        entry.node.lost_name(dir, name.as_bytes());
        Ok(())
    }

    /// Removes whiteouts from a directory.
    pub fn drop_whites(&self, tx: &mut dyn Transaction, dir: &Node, whites: &[Vec<u8>]) -> Result<()> {
        let Some(upper) = dir.upper() else { return Ok(()) };
        whites.iter().try_for_each(|name| tx.unlink(upper, name_of(name)?))
    }

    /// Checks that nothing is shown in `dir`, and leaves so few whiteouts in it that they can go in one transaction with it:
    /// their names. Hold the names alone.
    ///
    /// If there are more, the directory is first noted to show nothing of the lower, and then they go, some at a time: at
    /// each moment it is empty, whatever happens.
    pub fn empty(&self, dir: &Node) -> Result<Vec<Vec<u8>>> {
        let mut whites = self.white_names(dir)?;
        if whites.len() <= WHITEOUTS_AT_ONCE {
            return Ok(whites);
        }
        let upper = dir.upper().ok_or(ErrorKind::Stale)?;
        if let Some(mut origin) = self.origin(upper)? {
            origin.opaque = true;
            let origin = origin.encode()?;
            self.transact_removal(&mut |tx| tx.set_xattr(upper, Own::Origin.name(), &origin, XattrSet::Replace))?;
            dir.state().opaque = true;
        }
        while whites.len() > WHITEOUTS_AT_ONCE {
            let some = whites.split_off(whites.len() - WHITEOUTS_AT_ONCE);
            self.transact_removal(&mut |tx| self.drop_whites(tx, dir, &some))?;
        }
        Ok(whites)
    }

    /// The whiteouts in a directory in which nothing is shown; else `NotEmpty`.
    fn white_names(&self, dir: &Node) -> Result<Vec<Vec<u8>>> {
        let mut whites = HashSet::new();
        let mut shown = false;
        if let Some(upper) = dir.upper() {
            self.upper.store.read_dir(upper, 0, &mut |entry| {
                shown = entry.ino != self.layout.whiteout.ino;
                whites.insert(entry.name.as_bytes().to_vec());
                if shown { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        if !shown {
            shown = match self.shows_below(dir, &whites) {
                // What is gone shows nothing, and what comes back is hidden with the name.
                Err(e) if e.kind() == ErrorKind::Stale => false,
                shows => shows?,
            };
        }
        if shown { Err(ErrorKind::NotEmpty.into()) } else { Ok(whites.into_iter().collect()) }
    }

    /// Whether the lower has something in a directory that is not among `whites`.
    fn shows_below(&self, dir: &Node, whites: &HashSet<Vec<u8>>) -> Result<bool> {
        let Some(below) = self.merged_with(dir)? else { return Ok(false) };
        let mut shown = false;
        let listed = self.lower.store.read_dir(below.held.ino, 0, &mut |entry| {
            shown = !whites.contains(entry.name.as_bytes());
            if shown { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        listed.map_err(|e| self.of_below(dir, e))?;
        // What cannot be read is there all the same.
        Ok(shown || !self.lower.store.left_out(below.held.ino).is_empty())
    }
}
