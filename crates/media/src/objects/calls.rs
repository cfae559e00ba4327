//! Calls of a store over a network: each runs on the threads that all stores share, within its time, and until it is told to end.

use std::sync::Arc;
use std::time::Duration;

use adit_core::Result;
use adit_core::media::{ObjectInfo, ObjectSink};
use opendal_core::Error;
use tokio::time::{Instant, timeout_at};

use super::cancel::Cancel;
use super::options::ObjectsOptions;
use super::pieces::{self, Arrived, Pieces};
use super::runtime::{Hold, ended_without_result};
use super::transport::{Trouble, time_for, until};

/// What a call gets beyond its deadline to say itself what it was waiting for.
const GRACE: Duration = Duration::from_millis(200);

/// How a call ended that was made.
pub type Outcome<T> = std::result::Result<T, Error>;

/// What the calls of one store have in common.
pub struct Calls {
    threads: Hold,
    cancel: Cancel,
    deadline: Duration,
}

impl Calls {
    /// Calls with the limits of `options`, which `cancel` ends.
    pub fn new(options: &ObjectsOptions, cancel: Cancel) -> Calls {
        Calls { threads: Hold::default(), cancel, deadline: options.deadline }
    }

    /// What ends them.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Runs a call that moves `bytes`, within the time for it, and until it is told to end.
    pub fn run<T, F>(&self, bytes: u64, call: impl FnOnce(Instant) -> F) -> Result<Outcome<T>>
    where
        T: Send + 'static,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let cancel = self.cancel.clone();
        self.run_to_end(bytes, |deadline| {
            let call = call(deadline);
            async move { cancel.or(call).await }
        })
    }

    /// The same of a call that looks itself whether it is to end.
    pub fn run_to_end<T, F>(&self, bytes: u64, call: impl FnOnce(Instant) -> F) -> Result<Outcome<T>>
    where
        T: Send + 'static,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let deadline = self.deadline_for(bytes);
        let call = call(deadline);
        self.threads.threads()?.wait(async move { Ok(in_time(deadline, call).await) })
    }

    /// Runs a call that moves `bytes` and hands them over in pieces. It is this thread that hands them on to `sink`.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn hand_on<F>(
        &self,
        bytes: u64,
        sink: &mut ObjectSink<'_>,
        call: impl FnOnce(Instant, Arc<Pieces>) -> F,
    ) -> Result<Outcome<ObjectInfo>>
    where
        F: Future<Output = Outcome<ObjectInfo>> + Send + 'static,
    {
        self.begin(bytes, call)?.hand_on(sink)?.ok_or_else(ended_without_result)
    }

    /// Begins the same, for who takes the pieces by itself.
    pub fn begin<F>(&self, bytes: u64, call: impl FnOnce(Instant, Arc<Pieces>) -> F) -> Result<Arrived>
    where
        F: Future<Output = Outcome<ObjectInfo>> + Send + 'static,
    {
        let deadline = self.deadline_for(bytes);
        let ((pieces, arrived), cancel) = (pieces::channel(), self.cancel.clone());
        let pieces = Arc::new(pieces);
        let call = call(deadline, pieces.clone());
        self.threads.threads()?.spawn(async move {
            pieces.end(in_time(deadline, cancel.or(call)).await);
        });
        Ok(arrived)
    }

    /// Runs a future that ends by itself, and does not wait for it.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        self.threads.threads()?.spawn(future);
        Ok(())
    }

    /// When a call ends that moves `bytes`.
    pub fn deadline_for(&self, bytes: u64) -> Instant {
        Instant::now() + self.deadline + time_for(bytes)
    }
}

/// A call whose requests end at the deadline, and it soon after.
async fn in_time<T>(deadline: Instant, call: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let ended = timeout_at(deadline + GRACE, until(deadline, call)).await;
    ended.unwrap_or_else(|_| Err(Trouble::TimedOut("it took too long").into_error()))
}
