//! Set-id bits and file capabilities, which a change of content takes from a file.
//!
//! For front ends whose kernel leaves that to the server. Of an open file it is asked once whether it has any, and again after that may
//! have changed, not with every write.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::super::{Engine, Fh};
use crate::error::{ErrorKind, Result};
use crate::types::{Attr, SetAttr, XattrName};

/// One of the two, of an open inode: it is known not to be there, or not known.
#[derive(Default)]
pub(in crate::engine) struct Privilege {
    /// Changes of it since the inode was opened.
    changes: AtomicU64,
    /// How many of these there had been when the inode was last seen without it, plus one; 0 if it never was.
    seen_without: AtomicU64,
}

impl Privilege {
    /// It may be there now, or gone.
    pub(in crate::engine) fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// How many changes there have been, unless it is known not to be there.
    fn doubt(&self) -> Option<u64> {
        let changes = self.changes.load(SeqCst);
        (self.seen_without.load(SeqCst) != changes + 1).then_some(changes)
    }

    fn is_not_there(&self, changes: u64) {
        self.seen_without.store(changes + 1, SeqCst);
    }
}

impl Engine {
    /// The content of an open file is about to be changed by someone without privilege: its set-id bits go first. `keeps_mark` says whether that is a
    /// member of its group, and is asked where that matters ([`Attr::perm_without_set_id`]).
    ///
    /// # Errors
    /// Those of the store; nothing has changed then.
    pub fn drop_set_id(&self, fh: Fh, keeps_mark: impl FnOnce(&Attr) -> bool) -> Result<()> {
        let handle = self.files.get(fh)?;
        let file = &handle.file;
        let Some(changes) = file.set_id.doubt() else { return Ok(()) };
        let (attr, _) = self.getattr(file.ino, Some(fh))?;
        let kept = if attr.has_set_id() { attr.perm_without_set_id(keeps_mark(&attr)) } else { attr.perm };
        if kept != attr.perm {
            self.setattr(file.ino, &SetAttr { perm: Some(kept), ..SetAttr::default() }, Some(fh))?;
        } else if !self.caps.shared && !attr.has_set_id() {
            file.set_id.is_not_there(changes);
        }
        Ok(())
    }

    /// The content of an open file is about to be changed, by whomever: its file capability goes first.
    ///
    /// # Errors
    /// Those of the store; nothing has changed then.
    pub fn drop_capability(&self, fh: Fh) -> Result<()> {
        let handle = self.files.get(fh)?;
        let file = &handle.file;
        let Some(changes) = file.capability.doubt().filter(|_| self.caps.xattrs) else { return Ok(()) };
        let is_absent = |kind| matches!(kind, ErrorKind::NoAttribute | ErrorKind::NotSupported);
        match self.store.xattr(file.ino, XattrName::CAPABILITY) {
            Ok(_) => match self.remove_xattr(file.ino, XattrName::CAPABILITY) {
                Err(e) if is_absent(e.kind()) => Ok(()),
                removed => removed,
            },
            Err(e) if is_absent(e.kind()) => {
                if !self.caps.shared {
                    file.capability.is_not_there(changes);
                }
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}
