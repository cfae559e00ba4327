//! Buffers for ciphertext on its way to the vault, used again: a fresh one of a mebibyte costs its page faults.

use parking_lot::Mutex;

/// Buffers that are kept.
const KEPT: usize = 8;
/// Larger ones than this are not kept.
const KEPT_LEN_MAX_BYTES: usize = 2 << 20;

#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// A buffer of at least `len` bytes, with anything in it.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let mut buf = self.0.lock().pop().unwrap_or_default();
        if buf.len() < len {
            buf.resize(len, 0);
        }
        buf
    }

    /// Gives a buffer back.
    pub fn give(&self, buf: Vec<u8>) {
        let mut kept = self.0.lock();
        if kept.len() < KEPT && buf.len() <= KEPT_LEN_MAX_BYTES {
            kept.push(buf);
        }
    }
}
