//! Descriptors that are kept back, so that a mount can be asked and ended though its users have opened all the files that it may have.
//!
//! The process's own limit is lower than it might be by that many. A [`Reserve`] raises it for as long as it lives.

use adit_core::FsError;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most that are kept back, and the part of all that they may be.
const KEPT_BACK: u64 = 32;
const KEPT_BACK_SHARE: u64 = 8;

struct State {
    /// The limit, and what is kept back beyond it.
    limit: u64,
    kept_back: u64,
    /// How many may use that now.
    users: usize,
}

static STATE: Mutex<State> = Mutex::new(State { limit: 0, kept_back: 0, users: 0 });

/// Lets this process have `wanted` descriptors, or as many as it may, and no fewer than now; some of them are kept back. To be called once.
///
/// # Errors
/// Those of the host; the limit is what it was then.
pub fn limit(wanted: u64) -> Result<(), FsError> {
    let mut state = STATE.lock();
    let now = getrlimit(Resource::Nofile);
    let wanted = wanted.max(now.current.unwrap_or(u64::MAX));
    let most = now.maximum.map_or(wanted, |most| most.min(wanted));
    let kept_back = KEPT_BACK.min(most / KEPT_BACK_SHARE);
    set(most - kept_back)?;
    (state.limit, state.kept_back) = (most - kept_back, kept_back);
    Ok(())
}

fn set(current: u64) -> Result<(), FsError> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).map_err(std::io::Error::from)?)
}

/// While one lives, this process may use the descriptors that are kept back.
#[derive(Debug)]
pub(crate) struct Reserve(());

impl Reserve {
    pub(crate) fn open() -> Reserve {
        let mut state = STATE.lock();
        state.users += 1;
        if state.users == 1 && state.kept_back > 0 {
            // Without it everything goes on, as long as there are others.
            let _ = set(state.limit + state.kept_back);
        }
        Reserve(())
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        state.users -= 1;
        if state.users == 0 && state.kept_back > 0 {
            let _ = set(state.limit);
        }
    }
}
