//! Removing names.
//!
//! Where the lower has the name, a whiteout takes its place: a further name of the upper's one whiteout inode. A directory is
//! empty if nothing is shown in it; the whiteouts that are left in it go with it.
//!
//! What the lower lost by other hands can be removed as well, by the name under which it is known: a whiteout takes its place. A *shell*,
//! a directory of the upper that stands for one that is gone and holds nothing, keeps no other from being removed: no listing
//! of it ends well, so that whoever removes a tree leaves it behind.
//!
//! On a full upper it works as well: the upper keeps space back for what takes something away.

use std::ops::ControlFlow;
use std::sync::Arc;

use hashbrown::HashSet;

use super::copy_up::Plan;
use super::find::{Above, Entry};
use super::node::Node;
use super::record::{Own, encode_links};
use super::{Purpose, Shared, name_of};
use crate::error::{ErrorKind, Result};
use crate::transaction::Transaction;
use crate::types::{FileName, Ino, Kind, XattrSet};

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

/// What is removed from under a name.
struct Victim {
    node: Arc<Node>,
    /// Whether the name is the upper's.
    in_upper: bool,
    /// The lower does not have it any more.
    lost: bool,
}

/// A directory of the upper that stands for one that is gone.
struct Shell {
    name: Vec<u8>,
    node: Arc<Node>,
}

/// All that is in a directory that can be removed.
struct Remains {
    whites: Vec<Vec<u8>>,
    /// What they hold is not known yet.
    shells: Vec<Shell>,
}

impl Shared {
    /// Prepares to take a name from what is not a directory. Hold the names alone.
    pub fn prepare_loss(&self, node: &Node) -> Result<Loss> {
        // One of several names of the lower: the others show from now on what their copy counts.
        let plan = match node.upper().is_none() && node.linked {
            true => match self.plan(node, Purpose::Removal) {
                // What is gone or changed there counts nothing.
                Err(e) if e.kind() == ErrorKind::Stale => None,
                plan => Some(plan?),
            },
            false => None,
        };
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

    /// What is to be removed from under `name` in `dir`, if `fits` finds nothing against it. Where the lower does not have it any more, or
    /// has something else instead, this is what is still known under that name. Hold the names.
    fn victim(&self, dir: &Arc<Node>, name: FileName<'_>, fits: impl Fn(&Arc<Node>) -> Result<()>) -> Result<Victim> {
        let found = self.entry(dir, name).and_then(|entry| fits(&entry.node).map(|()| entry));
        let error = match found {
            Ok(Entry { node, in_upper, .. }) => return Ok(Victim { node, in_upper, lost: false }),
            Err(e) if !self.lower_changes => return Err(e),
            Err(e) => e,
        };
        let stale = match error.kind() {
            ErrorKind::Stale => true,
            ErrorKind::NotFound | ErrorKind::NotDirectory | ErrorKind::IsDirectory | ErrorKind::NotEmpty => false,
            _ => return Err(error),
        };
        // A directory that is gone itself, and has no copy, hides nothing under its names.
        if !(stale && dir.upper().is_none()) && matches!(self.above(dir, name)?, Above::Nothing) {
            for node in self.table.known_at(dir, name.as_bytes()) {
                if node.upper().is_none() && self.is_lost(&node)? && fits(&node).is_ok() {
                    return Ok(Victim { node, in_upper: false, lost: true });
                }
            }
        }
        Err(if stale && self.is_lost(dir)? { ErrorKind::NotFound.into() } else { error })
    }

    /// Whether the lower does not have any more what `node` stands for, or not as it was.
    fn is_lost(&self, node: &Node) -> Result<bool> {
        match self.check_below(node) {
            Ok(()) => Ok(false),
            Err(e) if e.kind() == ErrorKind::Stale => Ok(true),
            Err(e) => Err(e),
        }
    }

    pub fn unlink(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<()> {
        let fits = |node: &Arc<Node>| match node.is_directory() {
            true => Err(ErrorKind::IsDirectory.into()),
            false => Ok(()),
        };
        self.ensure_for_removal(dir, |this| this.victim(dir, name, fits).map(drop))?;
        let _names = self.names.write();
        let victim = self.victim(dir, name, fits)?;
        let mut loss = self.prepare_loss(&victim.node)?;
        let hides = victim.lost || self.hides(dir, name, &victim.node)?;
        let parent = dir.upper().ok_or(ErrorKind::Stale)?;
        let learning = self.upper.learning();
        self.transact_removal(&mut |tx| {
            self.lose(tx, &victim.node, &mut loss)?;
            if victim.in_upper {
                tx.unlink(parent, name)?;
            }
            if hides { self.white_out(tx, parent, name) } else { Ok(()) }
        })?;
        self.lost(&victim.node, &learning, loss);
        victim.node.lost_name(dir, name.as_bytes());
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
        self.leads_to(&origin.way, dir, name.as_bytes())
    }

    pub fn white_out(&self, tx: &mut dyn Transaction, parent: Ino, name: FileName<'_>) -> Result<()> {
        tx.link(self.layout.whiteout.ino, parent, name).map(drop)
    }

    pub fn rmdir(&self, dir: &Arc<Node>, name: FileName<'_>) -> Result<()> {
        let fits = |node: &Arc<Node>| match node.is_directory() {
            true if node.upper().is_none() => self.remains(node).map(drop),
            true => Ok(()),
            false => Err(ErrorKind::NotDirectory.into()),
        };
        self.ensure_for_removal(dir, |this| this.victim(dir, name, fits).map(drop))?;
        let _names = self.names.write();
        let victim = self.victim(dir, name, fits)?;
        self.remove_directory(dir, name, &victim)
    }

    /// Removes a directory that fits. Hold the names alone.
    fn remove_directory(&self, dir: &Arc<Node>, name: FileName<'_>, victim: &Victim) -> Result<()> {
        let whites = self.empty(&victim.node)?;
        let hides = victim.lost || self.hides(dir, name, &victim.node)?;
        let parent = dir.upper().ok_or(ErrorKind::Stale)?;
        let _learning = self.upper.learning();
        self.transact_removal(&mut |tx| {
            if victim.in_upper {
                self.drop_whites(tx, &victim.node, &whites)?;
                tx.rmdir(parent, name)?;
            }
            if hides { self.white_out(tx, parent, name) } else { Ok(()) }
        })?;
        victim.node.state().removed = true;
        victim.node.lost_name(dir, name.as_bytes());
        Ok(())
    }

    /// Removes whiteouts from a directory.
    pub fn drop_whites(&self, tx: &mut dyn Transaction, dir: &Node, whites: &[Vec<u8>]) -> Result<()> {
        let Some(upper) = dir.upper() else { return Ok(()) };
        whites.iter().try_for_each(|name| tx.unlink(upper, name_of(name)?))
    }

    /// Checks that nothing is left in `dir`, and leaves so few whiteouts in it that they can go in one transaction with it:
    /// their names. Hold the names alone.
    ///
    /// Shells go first, each after those in it. If there are more whiteouts, the directory is first noted to show nothing of the lower, and
    /// then they go, some at a time: at each moment it is empty, whatever happens.
    pub fn empty(&self, dir: &Arc<Node>) -> Result<Vec<Vec<u8>>> {
        let mut remains = self.remains(dir)?;
        if !remains.shells.is_empty() {
            self.remove_shells(dir, remains.shells)?;
            remains = self.remains(dir)?;
        }
        let mut whites = remains.whites;
        if whites.len() <= WHITEOUTS_AT_ONCE {
            return Ok(whites);
        }
        let upper = dir.upper().ok_or(ErrorKind::Stale)?;
        if let Some(mut origin) = self.origin(upper)? {
            origin.opaque = true;
            let origin = origin.encode();
            self.transact_removal(&mut |tx| tx.set_xattr(upper, Own::Origin.name(), &origin, XattrSet::Replace))?;
            dir.state().opaque = true;
        }
        while whites.len() > WHITEOUTS_AT_ONCE {
            let some = whites.split_off(whites.len() - WHITEOUTS_AT_ONCE);
            self.transact_removal(&mut |tx| self.drop_whites(tx, dir, &some))?;
        }
        Ok(whites)
    }

    /// Removes shells that are in `dir`; none, if one of them holds anything else than whiteouts and shells.
    fn remove_shells(&self, dir: &Arc<Node>, shells: Vec<Shell>) -> Result<()> {
        let (mut all, mut next) = (vec![(dir.clone(), shells)], 0);
        while let Some((_, shells)) = all.get(next) {
            let inner: Result<Vec<_>> =
                shells.iter().map(|shell| Ok((shell.node.clone(), self.remains(&shell.node)?.shells))).collect();
            all.extend(inner?.into_iter().filter(|(_, shells)| !shells.is_empty()));
            next += 1;
        }
        for (parent, shells) in all.into_iter().rev() {
            for Shell { name, node } in shells {
                self.remove_directory(&parent, name_of(&name)?, &Victim { node, in_upper: true, lost: false })?;
            }
        }
        Ok(())
    }

    /// The whiteouts and shells in a directory in which nothing else is; else `NotEmpty`.
    fn remains(&self, dir: &Arc<Node>) -> Result<Remains> {
        let mut whites = HashSet::new();
        let mut shells = Vec::new();
        let mut from = 0;
        while let Some(upper) = dir.upper() {
            let mut other = None;
            self.upper.store.read_dir(upper, from, &mut |entry| {
                from = entry.cookie;
                let name = entry.name.as_bytes().to_vec();
                if entry.ino == self.layout.whiteout.ino {
                    whites.insert(name);
                    return ControlFlow::Continue(());
                }
                other = Some((name, entry.kind));
                ControlFlow::Break(())
            })?;
            let Some((name, kind)) = other else { break };
            let node = if kind == Kind::Directory { self.shell(dir, &name)? } else { None };
            shells.push(Shell { name, node: node.ok_or(ErrorKind::NotEmpty)? });
        }
        let hidden = |name: &[u8]| whites.contains(name) || shells.iter().any(|shell| shell.name == name);
        let shown = match self.shows_below(dir, hidden) {
            // What is gone shows nothing, and what comes back is hidden with the name.
            Err(e) if e.kind() == ErrorKind::Stale => false,
            shows => shows?,
        };
        if shown {
            Err(ErrorKind::NotEmpty.into())
        } else {
            Ok(Remains { whites: whites.into_iter().collect(), shells })
        }
    }

    /// The directory of the upper under a name, if what it stands for is gone.
    fn shell(&self, dir: &Arc<Node>, name: &[u8]) -> Result<Option<Arc<Node>>> {
        let node = self.entry(dir, name_of(name)?)?.node;
        let shows_below = node.from_lower && !node.state().opaque;
        Ok(if shows_below && self.is_lost(&node)? { Some(node) } else { None })
    }

    /// Whether the lower has something in a directory that is not `hidden`.
    fn shows_below(&self, dir: &Node, hidden: impl Fn(&[u8]) -> bool) -> Result<bool> {
        let Some(below) = self.merged_with(dir)? else { return Ok(false) };
        let mut shown = false;
        let listed = self.lower.store.read_dir(below.held.ino, 0, &mut |entry| {
            shown = !hidden(entry.name.as_bytes());
            if shown { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        listed.map_err(|e| self.of_below(dir, e))?;
        // What cannot be read is there all the same.
        Ok(shown || !self.lower.store.left_out(below.held.ino).is_empty())
    }
}
