//! [`Requests`]: where every request of the kernel goes through.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use adit_core::FsError;
use adit_core::engine::Engine;
use adit_core::types::{Attr, Ino};
use fuser::{Errno, INodeNo};

use super::pages::Pages;
use super::set_id;
use super::shortage::Shortage;
use crate::activity::Activity;
use crate::errno::{ErrorLog, errno_of};
use crate::request::Kind as Asked;

/// The engine, and what is kept of each request to it: it is counted, a panic (which would end fuser's worker, and after
/// the last of them the mount) is caught, what an errno hides is logged, and the error becomes one.
pub(super) struct Requests {
    pub(super) engine: Arc<Engine>,
    pub(super) activity: Arc<Activity>,
    pub(super) pages: Pages,
    pub(super) shortage: Shortage,
    errors: ErrorLog,
}

impl Requests {
    pub(super) fn new(engine: Arc<Engine>, activity: Arc<Activity>) -> Self {
        let shortage = Shortage::new(engine.options().kernel_writeback);
        Requests { engine, activity, pages: Pages::default(), shortage, errors: ErrorLog::default() }
    }

    /// How long the kernel may keep attributes that hold for `ttl`.
    pub(super) fn kept(&self, attr: &Attr, ttl: Duration) -> Duration {
        self.shortage.kept(&self.engine, attr, set_id::kept(attr, ttl))
    }

    /// Runs one request.
    pub(super) fn ask<T>(
        &self,
        asked: Asked,
        ino: INodeNo,
        call: impl FnOnce(&Engine) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        self.activity.count(asked);
        self.run(asked, Ino(ino.0), call)
    }

    /// Likewise, for what the kernel did not ask for by itself: it is not counted.
    pub(super) fn run<T>(
        &self,
        asked: Asked,
        ino: Ino,
        call: impl FnOnce(&Engine) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        let op = asked.name();
        let Some(_request) = self.activity.begin() else {
            return Err(Errno::ENOTCONN);
        };
        match catch_unwind(AssertUnwindSafe(|| call(&self.engine))) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                self.activity.damage.note(ino, &error);
                self.errors.note(op, &error, || self.engine.store().path_of(ino));
                Err(Errno::from_i32(errno_of(error.kind())))
            }
            Err(panic) => {
                tracing::error!(op, ino = ino.0, "panic: {}", panic_text(&*panic));
                Err(Errno::EIO)
            }
        }
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
