//! Renaming, over both layers.
//!
//! What has no entry in the upper gets one first, under its old name and in the same transaction: a copy, or a further name
//! of a copy in the index. From there on it is a rename in the upper; where the lower has the old name, a whiteout follows. A
//! directory of the lower moves with its origin, by which it goes on showing what it holds: nothing below it is touched.

use std::sync::Arc;

use super::copy_up::Plan;
use super::find::{Above, Entry};
use super::node::Node;
use super::{Purpose, Shared};
use crate::error::{ErrorKind, Result};
use crate::store::NewNode;
use crate::transaction::Transaction;
use crate::types::{Caller, FileName, Ino, Kind, RenameFlags};

/// A directory and a name in it.
type At<'a> = (&'a Arc<Node>, FileName<'a>);

/// What a rename leaves behind on request, as on any other filesystem.
const WHITE_NODE: NewNode = NewNode { perm: 0, umask: 0, caller: Caller { uid: 0, gid: 0 } };

/// An entry that is to be in the upper.
struct Surfacing {
    plan: Option<Plan>,
    copy: Option<Ino>,
}

impl Shared {
    fn prepare_surfacing(&self, entry: &Entry) -> Result<Surfacing> {
        let plan = if entry.node.upper().is_none() { Some(self.plan(&entry.node, Purpose::Change)?) } else { None };
        Ok(Surfacing { plan, copy: None })
    }

    /// Gives `entry`, found at `at`, an entry in the upper.
    fn surface(&self, tx: &mut dyn Transaction, at: At<'_>, entry: &Entry, how: &mut Surfacing) -> Result<()> {
        if entry.in_upper {
            return Ok(());
        }
        match (&how.plan, entry.node.upper()) {
            (Some(plan), _) => how.copy = Some(self.copy(tx, &entry.node, plan)?),
            (None, Some(upper)) => drop(tx.link(upper, at.0.upper().ok_or(ErrorKind::Stale)?, at.1)?),
            (None, None) => return Err(ErrorKind::Stale.into()),
        }
        Ok(())
    }

    fn surfaced(&self, entry: &Entry, learning: &super::layer::Learning<'_>, how: Surfacing) {
        if let (Some(plan), Some(copy)) = (&how.plan, how.copy) {
            self.copied(&entry.node, learning, copy, plan);
        }
    }

    /// What is wrong with a rename, in the order in which Linux says it. `None` for the target: there is none. Hold the names.
    fn check_rename(&self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<(Entry, Option<Entry>)> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if !to.0.is_directory() {
            return Err(ErrorKind::NotDirectory.into());
        }
        let source = self.entry(from.0, from.1)?;
        let target = self.find(to.0, to.1)?;
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(ErrorKind::Exists.into());
        }
        if target.is_none() && (exchange || to.0.state().removed) {
            return Err(ErrorKind::NotFound.into());
        }
        if source.node.is_directory() && source.node.holds(to.0) {
            return Err(ErrorKind::InvalidInput.into());
        }
        if let Some(target) = &target {
            if target.node.is_directory() && target.node.holds(from.0) {
                return Err(if exchange { ErrorKind::InvalidInput } else { ErrorKind::NotEmpty }.into());
            }
            match (source.node.is_directory(), target.node.is_directory()) {
                _ if exchange || Arc::ptr_eq(&source.node, &target.node) => {}
                (true, false) => return Err(ErrorKind::NotDirectory.into()),
                (false, true) => return Err(ErrorKind::IsDirectory.into()),
                _ => {}
            }
        }
        Ok((source, target))
    }

    pub fn rename(&self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let check = |this: &Self| this.check_rename(from, to, flags).map(drop);
        self.ensure_if(from.0, check)?;
        self.ensure_if(to.0, check)?;
        let _names = self.names.write();
        let (source, target) = self.check_rename(from, to, flags)?;
        match target {
            Some(target) if Arc::ptr_eq(&source.node, &target.node) => Ok(()),
            Some(target) if exchange => self.exchange(from, to, &source, &target),
            target => self.move_over(from, to, &source, target.as_ref(), flags),
        }
    }

    fn exchange(&self, from: At<'_>, to: At<'_>, source: &Entry, target: &Entry) -> Result<()> {
        let mut ours = self.prepare_surfacing(source)?;
        let mut theirs = self.prepare_surfacing(target)?;
        let (parent, new_parent) = (from.0.upper().ok_or(ErrorKind::Stale)?, to.0.upper().ok_or(ErrorKind::Stale)?);
        let learning = self.upper.learning();
        self.transact(&mut |tx| {
            self.surface(tx, from, source, &mut ours)?;
            self.surface(tx, to, target, &mut theirs)?;
            tx.rename(parent, from.1, new_parent, to.1, RenameFlags::EXCHANGE)
        })?;
        self.surfaced(source, &learning, ours);
        self.surfaced(target, &learning, theirs);
        source.node.found_at(to.0, to.1.as_bytes());
        target.node.found_at(from.0, from.1.as_bytes());
        Ok(())
    }

    fn move_over(
        &self,
        from: At<'_>,
        to: At<'_>,
        source: &Entry,
        target: Option<&Entry>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (mut loss, mut whites) = (None, Vec::new());
        match target {
            Some(target) if target.node.is_directory() => whites = self.empty(&target.node)?,
            Some(target) => loss = Some(self.prepare_loss(&target.node)?),
            None => {}
        }
        let white_target = target.is_none() && matches!(self.above(to.0, to.1)?, Above::Whiteout);
        let hides = self.hides(from.0, from.1, &source.node)?;
        let mut how = self.prepare_surfacing(source)?;
        let (parent, new_parent) = (from.0.upper().ok_or(ErrorKind::Stale)?, to.0.upper().ok_or(ErrorKind::Stale)?);
        let learning = self.upper.learning();
        self.transact(&mut |tx| {
            self.surface(tx, from, source, &mut how)?;
            if let (Some(target), Some(loss)) = (target, &mut loss) {
                self.lose(tx, &target.node, loss)?;
            } else if let Some(target) = target.filter(|target| target.in_upper) {
                self.drop_whites(tx, &target.node, &whites)?;
            }
            if white_target {
                tx.unlink(new_parent, to.1)?;
            }
            tx.rename(parent, from.1, new_parent, to.1, RenameFlags::empty())?;
            if flags.contains(RenameFlags::WHITEOUT) {
                return tx.mknod(parent, from.1, Kind::CharDevice, 0, &WHITE_NODE).map(drop);
            }
            if hides { self.white_out(tx, parent, from.1) } else { Ok(()) }
        })?;
        self.surfaced(source, &learning, how);
        match (target, loss) {
            (Some(target), Some(loss)) => self.lost(&target.node, &learning, loss),
            (Some(target), None) => target.node.state().removed = true,
            (None, _) => {}
        }
        if let Some(target) = target {
            target.node.lost_name(to.0, to.1.as_bytes());
        }
        source.node.found_at(to.0, to.1.as_bytes());
        Ok(())
    }
}
