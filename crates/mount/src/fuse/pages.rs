//! [`Pages`]: what the kernel holds of files, and what has to wait until it has written that.
//!
//! With kernel write-back, what was written may lie in pages that nobody here knows of. An invalidation of the inode makes the kernel
//! write them first. It waits until workers have served the writes: so it runs on a thread of its own, and no worker waits for it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;

use fuser::{INodeNo, Notifier};

type Job = Box<dyn FnOnce(&Notifier) + Send>;
/// Has the kernel begin to write what it holds of the mount; false if that cannot be now.
pub(crate) type Begin = Box<dyn Fn() -> bool + Send + Sync>;

/// The thread starts with the first job, and ends with this. One job runs after the other.
#[derive(Default)]
pub(super) struct Pages {
    /// The way to the kernel, once there is one.
    kernel: Arc<OnceLock<Notifier>>,
    begin: Arc<OnceLock<Begin>>,
    jobs: OnceLock<Sender<Job>>,
}

impl Pages {
    pub(super) fn kernel(&self) -> &Arc<OnceLock<Notifier>> {
        &self.kernel
    }

    /// The place for what has the kernel begin to write.
    pub(super) fn begin(&self) -> &Arc<OnceLock<Begin>> {
        &self.begin
    }

    /// Runs `then` once the kernel has begun to write its pages of `ino`. It keeps them: so that is for whatever is asked often.
    pub(super) fn after_beginning_to_write(&self, ino: INodeNo, then: impl FnOnce() + Send + 'static) {
        let begin = self.begin.clone();
        if self.kernel.get().is_none() {
            return then();
        }
        self.run(move |kernel| {
            if !begin.get().is_some_and(|begin| begin()) {
                let _ = kernel.inval_inode(ino, 0, 0);
            }
            then();
        });
    }

    /// Runs `then` once the store has all that was written of `ino`, or has refused it. Without a thread `then` is dropped.
    pub(super) fn after_writing(&self, ino: INodeNo, then: impl FnOnce() + Send + 'static) {
        if self.kernel.get().is_none() {
            return then();
        }
        self.run(move |kernel| {
            // An error says that the inode is gone from the kernel's cache, and its pages with it, or that some were refused.
            let _ = kernel.inval_inode(ino, 0, 0);
            then();
        });
    }

    /// Has the kernel forget the attributes of what it knows under these numbers, soon.
    pub(super) fn forget_attributes(&self, nodes: Vec<INodeNo>) {
        self.run(move |kernel| nodes.into_iter().for_each(|node| forget_attributes(kernel, node)));
    }

    fn run(&self, job: impl FnOnce(&Notifier) + Send + 'static) {
        let Some(kernel) = self.kernel.get() else { return };
        // The receiver is gone only where the thread could not start, which was told.
        let _ = self.jobs.get_or_init(|| start(kernel.clone())).send(Box::new(job));
    }
}

/// Has the kernel forget the attributes of what it knows under that number, and not its pages: so it waits for nobody, and a worker may do it.
pub(super) fn forget_attributes(kernel: &Notifier, node: INodeNo) {
    // It does not know the inode: then there is nothing to forget.
    let _ = kernel.inval_inode(node, -1, 0);
}

fn start(kernel: Notifier) -> Sender<Job> {
    let (jobs, received) = channel::<Job>();
    let spawned =
        Builder::new().name("adit-pages".into()).spawn(move || received.into_iter().for_each(|job| job(&kernel)));
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread that has the kernel write its pages: what needs it fails");
    }
    jobs
}
