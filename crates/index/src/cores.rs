//! How many threads may run at once: [`cores`], [`cores_up_to`].

use std::sync::OnceLock;
use std::thread;

/// How many threads may run at once, 1 if nobody knows. Asked for once: on Linux an answer is ten calls into the kernel, to read what a
/// control group allows, and a search of a small index has little else to do.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// As many, but no more than the work is worth, and at least 1. Nobody is asked where it is worth one.
pub(crate) fn cores_up_to(worth: usize) -> usize {
    if worth <= 1 { 1 } else { cores().min(worth) }
}
