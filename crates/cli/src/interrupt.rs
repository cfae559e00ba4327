//! Ending a copy on a signal: at the next step it stops, removes what is unfinished, and dies of the signal.

use std::sync::atomic::{AtomicI32, Ordering};

use adit_mount::Signals;

/// The signal that came; 0 for none.
static CAME: AtomicI32 = AtomicI32::new(0);

/// Hears SIGINT, SIGTERM and SIGHUP from here on; a second one ends the process at once.
///
/// If it cannot, signals keep their usual effect, which at worst leaves a temporary file.
pub fn watch() {
    let Ok(mut signals) = Signals::install() else { return };
    let spawned = std::thread::Builder::new().name("adit-signals".into()).spawn(move || {
        while let Ok(signal) = signals.wait() {
            if CAME.swap(signal, Ordering::SeqCst) != 0 {
                crate::process::die_of(signal);
            }
        }
    });
    if let Err(e) = spawned {
        tracing::debug!("signals are not heard: {e}");
    }
}

/// Whether a signal came.
pub fn came() -> bool {
    CAME.load(Ordering::SeqCst) != 0
}

/// Dies of the signal if one came.
pub fn obey() {
    match CAME.load(Ordering::SeqCst) {
        0 => {}
        signal => crate::process::die_of(signal),
    }
}
