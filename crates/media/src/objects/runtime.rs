//! The one place where asynchronous work is waited for.
//!
//! [`Threads::wait`] runs a future on a small runtime that all object stores share, and blocks the calling thread on a plain
//! channel. So any number of threads wait side by side, threads of another runtime too, and none of them is needed to make
//! progress.
//!
//! The runtime begins with the first call of a store, and has threads: a process that goes to the background forks before
//! that. It ends with the last store that has made one.

use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use adit_core::{ErrorKind, FsError, Result};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;

use super::credentials::renewals_end;

/// Threads that move bytes; the callers' own threads do the rest.
const WORKERS: usize = 2;
/// Threads for what blocks: names are looked up in them, and files read.
const BLOCKING_MAX: usize = 4;
/// Longest wait for the threads to end: one of them may be looking up a name.
const END_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the renewal of a token before.
const RENEWAL_MAX: Duration = Duration::from_secs(5);

/// The runtime, while a store has it.
static SHARED: Mutex<Weak<Threads>> = Mutex::new(Weak::new());

/// A runtime with its threads. Whatever it runs is given up, and the threads end, when this is dropped.
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Those that all stores share.
    fn shared() -> Result<Arc<Threads>> {
        let mut shared = SHARED.lock();
        if let Some(threads) = shared.upgrade() {
            return Ok(threads);
        }
        let threads = Arc::new(Threads::start()?);
        *shared = Arc::downgrade(&threads);
        Ok(threads)
    }

    /// Threads of their own.
    pub fn start() -> Result<Threads> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING_MAX)
            .thread_name("adit-objects")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|e| FsError::from(e).on("start", "the threads of object stores"))?;
        Ok(Threads(Some(runtime)))
    }

    /// Runs `future`, and does not wait for it.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        // Only `drop` takes it away.
        if let Some(runtime) = &self.0 {
            runtime.spawn(future);
        }
    }

    /// Runs `future` and waits for what it gives. The future has to end by itself; this waits as long.
    pub fn wait<T: Send + 'static>(&self, future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.spawn(async move {
            // A caller that is gone needs no answer.
            let _ = sender.send(future.await);
        });
        // Without an answer the future has panicked.
        receiver.recv().unwrap_or_else(|_| Err(ended_without_result()))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        // A thread of another runtime may not wait: there it is that runtime's time.
        if Handle::try_current().is_ok() {
            runtime.shutdown_background();
        } else {
            runtime.block_on(async {
                // A token that the service has renewed is not lost with whoever asked for it.
                let _ = timeout(RENEWAL_MAX, renewals_end()).await;
            });
            runtime.shutdown_timeout(END_MAX);
        }
    }
}

/// What a caller is told whose request panicked.
pub fn ended_without_result() -> FsError {
    FsError::new(ErrorKind::Io).because("the request ended without a result")
}

/// A store's hold on the threads that it shares with the others, from its first call on.
#[derive(Default)]
pub struct Hold(OnceLock<Arc<Threads>>);

impl Hold {
    /// The threads; they start if no store has any yet.
    pub fn threads(&self) -> Result<&Threads> {
        if let Some(threads) = self.0.get() {
            return Ok(threads);
        }
        let threads = Threads::shared()?;
        // Whoever was faster has the same.
        Ok(self.0.get_or_init(|| threads))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn callers_wait_side_by_side() {
        // More callers than the runtime has threads: each future waits for all the others.
        let barrier = &Arc::new(tokio::sync::Barrier::new(16));
        let hold = &Hold::default();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(move || {
                    let barrier = barrier.clone();
                    hold.threads().unwrap().wait(async move { Ok(barrier.wait().await.is_leader()) }).unwrap();
                });
            }
        });
    }

    #[test]
    fn threads_of_other_runtimes_may_wait_too_and_let_go() {
        let other = Builder::new_current_thread().build().unwrap();
        let threads = Threads::start().unwrap();
        assert_eq!(other.block_on(async { threads.wait(async { Ok(7) }).unwrap() }), 7);
        other.block_on(async { drop(threads) });
    }

    #[test]
    fn a_panic_is_an_error() {
        let e = Threads::start().unwrap().wait::<()>(async { panic!("as the test wants it") }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
    }

    #[test]
    fn stores_share_the_threads() {
        let (one, other) = (Hold::default(), Hold::default());
        assert!(std::ptr::eq(one.threads().unwrap(), other.threads().unwrap()));
        let kept: *const Threads = one.threads().unwrap();
        drop(one);
        assert!(std::ptr::eq(kept, other.threads().unwrap()), "one that goes takes nothing from the others");
    }

    #[test]
    fn threads_end_with_their_last_store() {
        // Dropped when its thread ends.
        struct Ends(mpsc::Sender<&'static str>, &'static str);
        impl Drop for Ends {
            fn drop(&mut self) {
                let _ = self.0.send(self.1);
            }
        }
        thread_local! {
            static OF_THREAD: RefCell<Option<Ends>> = const { RefCell::new(None) };
        }
        let (sender, ended) = mpsc::channel();
        let threads = Threads::start().unwrap();
        let of_thread = Ends(sender.clone(), "a thread");
        let keep = async move {
            OF_THREAD.set(Some(of_thread));
            Ok(())
        };
        threads.wait(keep).unwrap();
        let of_future = Ends(sender, "a future");
        let (began, begins) = mpsc::channel();
        threads.spawn(async move {
            let _kept = of_future;
            began.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        begins.recv().unwrap();
        assert!(ended.try_recv().is_err());
        drop(threads);
        // All of it is over when the drop returns.
        let mut ended: Vec<_> = ended.try_iter().collect();
        ended.sort_unstable();
        assert_eq!(ended, ["a future", "a thread"]);
    }
}
