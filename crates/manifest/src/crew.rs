//! Threads that take jobs from whoever started them, and tell that one what became of each.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::thread::Scope;
use std::time::Duration;

use adit_core::error::{ErrorKind, FsError, Result};
use parking_lot::Mutex;

/// How often who waits hears that nothing happened.
const TICK: Duration = Duration::from_millis(200);

/// The threads. They end when this is dropped, each after the job that it is at.
pub(crate) struct Crew<J, D> {
    jobs: SyncSender<J>,
    done: Receiver<D>,
    /// Jobs that were handed over and not taken back.
    waiting: usize,
    /// What they do, for messages.
    verb: &'static str,
}

impl<J, D> Crew<J, D> {
    /// So many threads, at least one; each does its jobs with what `work` gives it. `ahead` jobs for each may wait.
    pub fn start<'scope, W>(
        scope: &'scope Scope<'scope, '_>,
        verb: &'static str,
        (threads, ahead): (usize, usize),
        work: impl Fn() -> W,
    ) -> Crew<J, D>
    where
        J: Send + 'scope,
        D: Send + 'scope,
        W: FnMut(J) -> D + Send + 'scope,
    {
        let threads = threads.max(1);
        let (jobs, taken) = sync_channel(ahead * threads);
        let (sent, done) = channel();
        let taken: Arc<Mutex<Receiver<J>>> = Arc::new(Mutex::new(taken));
        for _ in 0..threads {
            let (taken, sent, mut work) = (taken.clone(), sent.clone(), work());
            scope.spawn(move || {
                loop {
                    // One at a time waits here, with the lock; the others wait for it.
                    let Ok(job) = taken.lock().recv() else { return };
                    if sent.send(work(job)).is_err() {
                        return;
                    }
                }
            });
        }
        // Theirs are the only ones, so that it shows if they have ended.
        Crew { jobs, done, waiting: 0, verb }
    }

    /// Hands over a job, or gives it back where there are enough waiting.
    pub fn hand(&mut self, job: J) -> std::result::Result<(), J> {
        match self.jobs.try_send(job) {
            Ok(()) => {
                self.waiting += 1;
                Ok(())
            }
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => Err(job),
        }
    }

    /// Whether they are at something.
    pub fn is_at_work(&self) -> bool {
        self.waiting > 0
    }

    /// What became of a job, if one is done.
    pub fn poll(&mut self) -> Option<D> {
        let done = self.done.try_recv().ok()?;
        self.waiting -= 1;
        Some(done)
    }

    /// Waits until a job is done, or for a moment.
    ///
    /// # Errors
    /// `Io` if nobody is at work any more: they panicked.
    pub fn wait(&mut self) -> Result<Option<D>> {
        match self.done.recv_timeout(TICK) {
            Ok(done) => {
                self.waiting -= 1;
                Ok(Some(done))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(FsError::new(ErrorKind::Io).because(format!("the threads that {} have ended", self.verb)))
            }
        }
    }
}
