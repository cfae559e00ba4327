//! The wish that calls end: of who waits for a store, and is told to stop.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use tokio::sync::watch;

use super::calls::Outcome;
use super::transport::Trouble;

/// Ends the calls of all stores that were opened with it, and those that are made later. Clones are the same one.
///
/// A call that waits for a server returns with [`Interrupted`](adit_core::ErrorKind::Interrupted) at once, but for an upload in parts: that tells
/// the store first to forget them, for five seconds at most.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Default for Cancel {
    fn default() -> Self {
        Cancel(Arc::new(watch::Sender::new(false)))
    }
}

impl Cancel {
    /// Ends them.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether that was done.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs `call`, unless it is ended before.
    pub(super) async fn or<T>(&self, call: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let mut cancelled = self.0.subscribe();
        // The sender is ours, so it does not go. That it was done before is seen first.
        match select(pin!(cancelled.wait_for(|is| *is)), pin!(call)).await {
            Either::Left(_) => Err(Trouble::Interrupted.into_error()),
            Either::Right((ended, _)) => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::runtime::Threads;
    use super::*;

    #[test]
    fn who_waits_is_told_to_stop_and_nobody_begins_after() {
        let (threads, cancel) = (Threads::start().unwrap(), Cancel::default());
        let call = |future| {
            let cancel = cancel.clone();
            threads.wait(async move { Ok(cancel.or::<()>(future).await.map_err(|e| Trouble::behind(&e).cloned())) })
        };
        type Call = std::pin::Pin<Box<dyn Future<Output = Outcome<()>> + Send>>;
        let (at_once, never) =
            (|| -> Call { Box::pin(async { Ok(()) }) }, || -> Call { Box::pin(std::future::pending()) });
        assert_eq!(call(at_once()).unwrap(), Ok(()));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| call(never()).unwrap());
            cancel.clone().cancel();
            assert_eq!(waits.join().unwrap(), Err(Some(Trouble::Interrupted)));
        });
        assert!(cancel.is_cancelled());
        assert_eq!(call(at_once()).unwrap(), Err(Some(Trouble::Interrupted)));
    }
}
