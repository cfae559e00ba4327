//! The thread that syncs, makes checkpoints, packs the key-value store, and prepares segments for the log.

use std::time::Instant;

use super::base::Shared;
use super::log::new_written_segment;

/// What the background thread is to do.
#[derive(Default)]
pub(super) struct Work {
    pub stop: bool,
    pub checkpoint: bool,
    /// The log will want another segment.
    pub prepare: bool,
    /// When the oldest batch was applied that this thread has not looked at since.
    pub unsynced_since: Option<Instant>,
}

impl Shared {
    /// Asks the background thread for something, unless someone did.
    pub(super) fn ask(&self, what: impl Fn(&mut Work) -> &mut bool) {
        if !std::mem::replace(what(&mut self.work.lock()), true) {
            self.wake.notify_all();
        }
    }

    pub(super) fn note_unsynced(&self) {
        let mut work = self.work.lock();
        if work.unsynced_since.is_none() {
            work.unsynced_since = Some(Instant::now());
            self.wake.notify_all();
        }
    }

    /// The background thread.
    pub(super) fn work(&self) {
        loop {
            let mut work = self.work.lock();
            let due = work.unsynced_since.map(|since| since + self.options.sync_interval);
            match due {
                _ if work.stop => return,
                _ if work.checkpoint || work.prepare => {}
                Some(due) if due <= Instant::now() => {}
                Some(due) => drop(self.wake.wait_until(&mut work, due)),
                None => self.wake.wait(&mut work),
            }
            let checkpoint = std::mem::take(&mut work.checkpoint);
            let prepare = std::mem::take(&mut work.prepare);
            let sync = work.unsynced_since.take_if(|since| since.elapsed() >= self.options.sync_interval).is_some();
            drop(work);
            if prepare {
                self.prepare_log();
            }
            // Errors are kept by the container, and told to whoever comes next.
            if checkpoint || (sync && self.has_removed_much()) {
                if self.checkpoint().is_ok() {
                    self.pack_slack();
                }
            } else if sync {
                let _ = self.container.sync_up_to(self.container.appended());
            }
        }
    }

    fn prepare_log(&self) {
        let wanted = self.writer.lock().wants_spare(&self.container);
        if wanted
            && !self.host_is_full()
            && self.container.check_writable().is_ok()
            && let Ok(segment) = new_written_segment(&self.container)
        {
            self.writer.lock().add_spare(&self.container, segment);
        }
    }
}
