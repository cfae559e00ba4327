//! [`Requests`]: where every request of the kernel goes through.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use adit_core::engine::Engine;
use adit_core::types::{Attr, Ino};
use adit_core::{ErrorKind, FsError};
use fuser::{Errno, INodeNo};

use super::pages::Pages;
use super::set_id;
use super::shortage::Shortage;
use crate::activity::Activity;
use crate::announcements::Announcements;
use crate::errno::errno_of;
use crate::nodes::Nodes;
use crate::request::Kind as Asked;

/// The engine, and what is kept of each request to it: it is counted, a panic (which would end fuser's worker, and after
/// the last of them the mount) is caught, what an errno hides is logged, and the error becomes one.
pub(super) struct Requests {
    pub(super) engine: Arc<Engine>,
    pub(super) activity: Arc<Activity>,
    pub(super) nodes: Arc<Nodes>,
    pub(super) announcements: Arc<Announcements>,
    pub(super) pages: Pages,
    pub(super) shortage: Shortage,
}

impl Requests {
    pub(super) fn new(engine: Arc<Engine>, activity: Arc<Activity>) -> Self {
        let shortage = Shortage::new(engine.options().kernel_writeback);
        Requests {
            engine,
            activity,
            nodes: Arc::default(),
            announcements: Arc::default(),
            pages: Pages::default(),
            shortage,
        }
    }

    /// How long the kernel may keep attributes that hold for `ttl`.
    pub(super) fn kept(&self, attr: &Attr, ttl: Duration) -> Duration {
        self.shortage.kept(&self.engine, attr, set_id::kept(attr, ttl))
    }

    /// Runs one request, about the inode that the kernel means by `node`. Which that is is found out while the request is in progress: one
    /// that was held off may be about something else, or nothing, by then.
    pub(super) fn ask<T>(
        &self,
        asked: Asked,
        node: INodeNo,
        call: impl FnOnce(&Engine, INodeNo) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        self.activity.count(asked);
        self.run(asked, node, call)
    }

    /// Likewise, for what the kernel did not ask for by itself: it is not counted.
    pub(super) fn run<T>(
        &self,
        asked: Asked,
        node: INodeNo,
        call: impl FnOnce(&Engine, INodeNo) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        let op = asked.name();
        let Some(_request) = self.activity.begin() else {
            return Err(Errno::ENOTCONN);
        };
        let ino = Ino(self.nodes.inode(node).0);
        // The end of a handle is one all the same, and times that are for nobody any more are a case of their own.
        let is_over = Nodes::is_former(ino) && !asked.is_an_end() && asked != Asked::Setattr;
        let answer = || if is_over { Err(ErrorKind::Stale.into()) } else { call(&self.engine, INodeNo(ino.0)) };
        match catch_unwind(AssertUnwindSafe(answer)) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                self.activity.damage.note(ino, &error);
                self.activity.errors.note(op, &error, || self.engine.store().path_of(ino));
                Err(Errno::from_i32(errno_of(error.kind())))
            }
            Err(panic) => {
                tracing::error!(op, ino = ino.0, "panic: {}", panic_text(&*panic));
                Err(Errno::EIO)
            }
        }
    }

    /// The second inode that a request in progress is about.
    pub(super) fn second(&self, node: INodeNo) -> Result<Ino, FsError> {
        let ino = Ino(self.nodes.inode(node).0);
        if Nodes::is_former(ino) { Err(ErrorKind::Stale.into()) } else { Ok(ino) }
    }

    /// Runs what is no request of a user, or comes after its answer: it is not counted, and nobody hears how it ends.
    pub(super) fn quietly(&self, asked: Asked, ino: Ino, call: impl FnOnce(&Engine)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(&self.engine))) {
            tracing::error!(op = asked.name(), ino = ino.0, "panic: {}", panic_text(&*panic));
        }
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
