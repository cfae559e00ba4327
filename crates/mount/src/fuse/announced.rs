//! Answers to the thread that announces changes: see [`crate::announcements`].

use std::ffi::OsStr;
use std::time::Duration;

use adit_core::ErrorKind;
use adit_core::engine::Lookup;
use adit_core::types::{Ino, Kind, SetAttr};
use fuser::{Errno, Generation, INodeNo, ReplyEmpty, ReplyEntry, Request};

use super::{Front, answer_empty, convert, name_of};
use crate::announcements::Step;
use crate::nodes::Nodes;
use crate::request::Kind as Asked;

impl Front {
    /// What is announced by this request, if it is one that announces.
    pub(super) fn step(&self, req: &Request) -> Option<Step> {
        self.requests.announcements.of(req.pid())
    }

    /// Answers a lookup before a removal or a making. `None` where the usual answer is right.
    pub(super) fn lookup_announced(&self, req: &Request, reply: ReplyEntry) -> Option<ReplyEntry> {
        match self.step(req) {
            Some(Step::Removal) => {
                let gone = convert::no_inode(Kind::File, Ino(self.requests.announcements.gone()));
                let gone = fuser::FileAttr { nlink: 1, uid: req.uid(), gid: req.gid(), ..gone };
                reply.entry_with_ttls(&Duration::ZERO, &Duration::ZERO, &gone, Generation(0));
                None
            }
            Some(Step::Making) => {
                reply.error(Errno::ENOENT);
                None
            }
            Some(Step::Change) | None => Some(reply),
        }
    }

    /// Answers the removal of a name that is gone already.
    pub(super) fn removal_announced(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.requests.run(Asked::Unlink, parent, |engine, parent| {
            match engine.lookup_or_absent(Ino(parent.0), name_of(name)?)? {
                Lookup::Absent { .. } => Ok(()),
                Lookup::Found(entry) => {
                    engine.forget(entry.attr.ino, 1);
                    Err(ErrorKind::NotFound.into())
                }
            }
        });
        answer_empty(result, reply);
    }

    /// Answers the making of what is there already.
    pub(super) fn making_announced(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let result = self.requests.run(Asked::Lookup, parent, |engine, parent| {
            match engine.lookup_or_absent(Ino(parent.0), name_of(name)?)? {
                Lookup::Absent { .. } => Err(ErrorKind::NotFound.into()),
                Lookup::Found(entry) => Ok(self.given(&entry)),
            }
        });
        self.answer_entry(result, reply);
    }

    /// What is to be done when attributes are set: nothing if that announces a change, but for the time of change, which the kernel may
    /// have for its own from now on.
    pub(super) fn set_announced(&self, req: &Request, set: SetAttr) -> SetAttr {
        match self.step(req) {
            Some(Step::Change) => SetAttr { ctime: set.ctime, ..SetAttr::default() },
            _ => set,
        }
    }

    /// The inode whose attributes answer: of what the kernel knows by a former number, those that it has now.
    pub(super) fn inode_announced(&self, req: &Request, node: INodeNo) -> Option<Ino> {
        let is_former = Nodes::is_former(Ino(self.requests.nodes.inode(node).0));
        (is_former && self.step(req) == Some(Step::Change)).then(|| self.requests.nodes.former_inode(node))
    }
}
