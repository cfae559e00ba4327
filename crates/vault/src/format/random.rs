//! Random bytes from the operating system: keys one by one, nonces in batches.
//!
//! A nonce per 32 KiB chunk by system call would cost up to a tenth of the encryption, so each thread draws about a
//! kibibyte at a time. Nonces must not repeat under one key, so a batch is never shared between a process and its
//! forked child: a `pthread_atfork` handler moves the generation on, and a batch of an older generation is thrown
//! away. (A copy of the whole machine, as from a snapshot, can repeat a batch, as with any generator in user space.)

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{FormatError, Result};

const BATCH_BYTES: usize = 1008; // whole numbers of 12-byte and of 16-byte nonces

/// Bumped in the child of every fork.
static GENERATION: AtomicU64 = AtomicU64::new(1);
static FORK_HANDLER: OnceLock<bool> = OnceLock::new();

struct Batch {
    bytes: [u8; BATCH_BYTES],
    used: usize,
    /// 0: never filled.
    generation: u64,
}

thread_local! {
    static BATCH: RefCell<Batch> =
        const { RefCell::new(Batch { bytes: [0; BATCH_BYTES], used: BATCH_BYTES, generation: 0 }) };
}

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Whether forks are noticed; if the handler cannot be registered, every nonce is drawn on its own.
fn forks_are_noticed() -> bool {
    // SAFETY: the handler only adds to an atomic, which is allowed in the child of a multi-threaded process.
    *FORK_HANDLER.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) } == 0)
}

/// Fills `out` with random bytes for a key or salt, straight from the operating system.
pub(super) fn fill_secret(out: &mut [u8]) -> Result<()> {
    getrandom::fill(out).map_err(|e| FormatError::Random { reason: e.to_string() })
}

/// A fresh random nonce. Not for keys: the bytes stay in the batch.
pub(super) fn nonce<const N: usize>() -> Result<[u8; N]> {
    let mut out = [0; N];
    if N > BATCH_BYTES || !forks_are_noticed() {
        fill_secret(&mut out)?;
        return Ok(out);
    }
    BATCH.with_borrow_mut(|batch| {
        let generation = GENERATION.load(Ordering::Relaxed);
        if batch.generation != generation || BATCH_BYTES - batch.used < N {
            batch.used = BATCH_BYTES; // holds nothing, should the call fail half-way
            fill_secret(&mut batch.bytes)?;
            batch.generation = generation;
            batch.used = 0;
        }
        out.copy_from_slice(&batch.bytes[batch.used..batch.used + N]);
        batch.used += N;
        Ok(out)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn nonces_do_not_repeat_within_and_across_batches() {
        let mut seen = HashSet::new();
        for _ in 0..10_000 {
            assert!(seen.insert(nonce::<12>().unwrap().to_vec()));
            assert!(seen.insert(nonce::<16>().unwrap().to_vec()));
        }
    }

    #[test]
    fn a_forked_child_draws_other_nonces() {
        let _ = nonce::<16>().unwrap(); // the batch is filled before the fork
        let mut pipe = [0; 2];
        // SAFETY: plain pipe/fork/read/write/_exit; the child calls only async-signal-safe functions (an atomic
        // load, the getrandom system call, write, _exit).
        let (child_nonce, parent_nonce) = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                let ok = match nonce::<16>() {
                    Ok(n) => libc::write(pipe[1], n.as_ptr().cast(), 16) == 16,
                    Err(_) => false,
                };
                libc::_exit(i32::from(!ok));
            }
            let parent_nonce = nonce::<16>().unwrap();
            let mut child_nonce = [0u8; 16];
            assert_eq!(libc::read(pipe[0], child_nonce.as_mut_ptr().cast(), 16), 16);
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert_eq!(status, 0);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
            (child_nonce, parent_nonce)
        };
        assert_ne!(child_nonce, parent_nonce);
    }
}
