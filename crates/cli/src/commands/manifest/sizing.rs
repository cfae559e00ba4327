//! How much is to be read, found out beside the reading, so that who waits long hears how long.
//!
//! A tree is read as it is walked, so nobody knows its size before the end. Work that takes longer than [`AFTER`] has it walked once more by a
//! thread, over a store of its own: two that walk one store at a time would tell it to forget each other's inodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_core::path::Tree;
use adit_core::store::Store;
use adit_manifest::snapshot::{Filter, bytes_of};

use crate::progress::Progress;

/// What is over before need not be measured.
const AFTER: Duration = Duration::from_secs(3);

/// Measures what is to be read, if that takes long. The measuring ends with this.
pub(super) struct Sizing<'a> {
    open: &'a dyn Fn() -> Option<Arc<dyn Store>>,
    what: (Vec<Vec<u8>>, Filter),
    begins: Option<Instant>,
    found: Arc<Found>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Found {
    bytes: OnceLock<u64>,
    is_over: AtomicBool,
}

impl<'a> Sizing<'a> {
    /// Of the files that `filter` wants at `roots` and below, of the store that `open` gives, if it gives one.
    pub fn of(open: &'a dyn Fn() -> Option<Arc<dyn Store>>, roots: Vec<Vec<u8>>, filter: Filter) -> Sizing<'a> {
        let begins = Some(Instant::now() + AFTER);
        Sizing { open, what: (roots, filter), begins, found: Arc::default(), thread: None }
    }

    /// Tells `progress` how much it is once that is known, and begins to find out when it is time.
    pub fn look(&mut self, progress: &mut Progress) {
        if let Some(bytes) = self.found.bytes.get() {
            progress.learn_total(*bytes);
        }
        if progress.is_shown() && self.begins.is_some_and(|begins| Instant::now() >= begins) {
            self.begins = None;
            self.begin();
        }
    }

    fn begin(&mut self) {
        let Some(store) = (self.open)() else { return };
        let ((roots, filter), found) = (std::mem::take(&mut self.what), self.found.clone());
        let measure = move || {
            if let Ok(bytes) = bytes_of(&Tree::new(&*store), &roots, &filter, &found.is_over) {
                let _ = found.bytes.set(bytes);
            }
        };
        // Without it nobody hears how long it takes.
        self.thread = std::thread::Builder::new().name("adit-sizes".into()).spawn(measure).ok();
    }
}

impl Drop for Sizing<'_> {
    fn drop(&mut self) {
        self.found.is_over.store(true, Ordering::Relaxed);
        // It has the store open.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_measured_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/b.txt"), [0; 300]).unwrap();
        std::fs::write(dir.path().join("c.tmp"), [0; 4000]).unwrap();
        let open = || Some(crate::open::dir(dir.path(), true).ok()? as Arc<dyn Store>);
        let filter = Filter::new::<&str>(&[], &["*.tmp"]).unwrap();
        let mut sizing = Sizing::of(&open, vec![b"/".to_vec()], filter);
        let mut progress = Progress::shown_in_test();
        sizing.look(&mut progress);
        assert!(sizing.thread.is_none() && progress.total().is_none(), "it is not time yet");
        sizing.begins = Some(Instant::now());
        sizing.look(&mut progress);
        sizing.thread.take().unwrap().join().unwrap();
        sizing.look(&mut progress);
        assert_eq!(progress.total(), Some(300));
    }
}
