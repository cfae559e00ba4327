//! AES-256-SIV (RFC 5297) with key schedules and subkeys kept, usable by many threads at once.
//!
//! Own code over the `aes` crate, because the `aes-siv` crate needs `&mut self` and recomputes what is constant per
//! key. A vault's names use one associated string, the parent's directory id, so [`Siv::associated`] lets a caller
//! compute that part once per directory. Checked against the RFC's vectors and against the `aes-siv` crate.

use aes::Aes256Enc;
use aes::cipher::consts::U16;
use aes::cipher::{Array, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit};

use super::secret::Locked;

const BLOCK: usize = 16;
/// Length of the synthetic IV in front of each ciphertext.
pub(crate) const SIV_TAG_BYTES: usize = BLOCK;
/// Keystream blocks made at once: enough to fill the AES pipeline.
const PARALLEL: usize = 8;

/// What is constant per key. Lives in locked memory; the schedules wipe themselves as well.
struct Keys {
    mac: Aes256Enc,
    ctr: Aes256Enc,
    /// CMAC subkeys for a complete and an incomplete last block.
    k1: u128,
    k2: u128,
    /// S2V's start value, CMAC of the zero block.
    cmac_zero: u128,
}

impl Drop for Keys {
    fn drop(&mut self) {
        use zeroize::Zeroize;
        self.k1.zeroize();
        self.k2.zeroize();
        self.cmac_zero.zeroize();
    }
}

/// One AES-SIV key. Stateless in use: `&self` from any number of threads.
pub(super) struct Siv {
    keys: Locked<Keys>,
}

/// S2V's state after the associated data.
#[derive(Clone, Copy)]
pub(super) struct Associated(u128);

impl Siv {
    /// `mac` is the first, `ctr` the second half of the SIV key of 64 bytes.
    pub(super) fn new(mac: &[u8; 32], ctr: &[u8; 32]) -> Self {
        let mac = Aes256Enc::new(mac.into());
        let ctr = Aes256Enc::new(ctr.into());
        let l = encrypt(&mac, 0);
        let k1 = dbl(l);
        let mut keys = Keys { mac, ctr, k1, k2: dbl(k1), cmac_zero: 0 };
        keys.cmac_zero = keys.cmac(&[0; BLOCK]);
        Self { keys: Locked::new(keys) }
    }

    /// No associated data at all.
    pub(super) fn no_associated(&self) -> Associated {
        Associated(self.keys.cmac_zero)
    }

    /// One associated string, which may be empty (that is not the same as none).
    pub(super) fn associated(&self, data: &[u8]) -> Associated {
        self.and_associated(self.no_associated(), data)
    }

    /// One more associated string.
    pub(super) fn and_associated(&self, before: Associated, data: &[u8]) -> Associated {
        Associated(dbl(before.0) ^ self.keys.cmac(data))
    }

    /// Encrypts `clear` into `out`, which is [`SIV_TAG_BYTES`] longer.
    pub(super) fn encrypt(&self, associated: Associated, clear: &[u8], out: &mut [u8]) {
        debug_assert_eq!(out.len(), clear.len() + SIV_TAG_BYTES);
        let iv = self.keys.s2v(associated, clear);
        let (tag, body) = out.split_at_mut(SIV_TAG_BYTES);
        tag.copy_from_slice(&iv.to_be_bytes());
        body.copy_from_slice(clear);
        self.keys.ctr(iv, body);
    }

    /// Decrypts `sealed` into `out`, which is [`SIV_TAG_BYTES`] shorter; false (and `out` wiped) if not authentic.
    #[must_use]
    pub(super) fn decrypt(&self, associated: Associated, sealed: &[u8], out: &mut [u8]) -> bool {
        let Some((tag, body)) = sealed.split_first_chunk::<SIV_TAG_BYTES>() else {
            return false;
        };
        debug_assert_eq!(out.len(), body.len());
        let iv = u128::from_be_bytes(*tag);
        out.copy_from_slice(body);
        self.keys.ctr(iv, out);
        // Compared as one number: no early exit for an attacker to time.
        let authentic = self.keys.s2v(associated, out) ^ iv == 0;
        if !authentic {
            out.fill(0);
        }
        authentic
    }
}

impl Keys {
    /// RFC 4493.
    fn cmac(&self, data: &[u8]) -> u128 {
        self.cmac_end_xor(data, 0)
    }

    /// CMAC of `data` whose last 16 bytes are XORed with `end` (S2V's "xorend"; `end` is 0 for
    /// shorter data).
    fn cmac_end_xor(&self, data: &[u8], end: u128) -> u128 {
        // The last block, complete or not, but never empty unless the data is.
        let last_at = data.len().saturating_sub(1) / BLOCK * BLOCK;
        let (full, last) = data.split_at(last_at);
        let (end_here, end_before) = match 8 * (BLOCK - last.len()) {
            _ if end == 0 => (0, 0),
            0 => (end, 0),
            // The 16 bytes to XOR lie across the last two blocks.
            shift => (end << shift, end >> (128 - shift)),
        };
        let tail = match last.len() {
            BLOCK => load(last) ^ end_here ^ self.k1,
            len => load(last) ^ end_here ^ pad_bit(len) ^ self.k2,
        };
        let mut state = 0;
        self.mac.encrypt_with_backend(Chain { full, end_before, tail, state: &mut state });
        state
    }

    fn s2v(&self, associated: Associated, clear: &[u8]) -> u128 {
        if clear.len() >= BLOCK {
            self.cmac_end_xor(clear, associated.0)
        } else {
            let padded = load(clear) ^ pad_bit(clear.len());
            self.cmac(&(dbl(associated.0) ^ padded).to_be_bytes())
        }
    }

    fn ctr(&self, iv: u128, data: &mut [u8]) {
        // RFC 5297, 2.5: two bits are cleared, so that 32-bit counters cannot overflow.
        let mut counter = iv & !((1 << 63) | (1 << 31));
        for group in data.chunks_mut(PARALLEL * BLOCK) {
            let count = group.len().div_ceil(BLOCK);
            let mut stream = [Array::from([0u8; BLOCK]); PARALLEL];
            for block in &mut stream[..count] {
                *block = counter.to_be_bytes().into();
                counter = counter.wrapping_add(1);
            }
            self.ctr.encrypt_blocks(&mut stream[..count]);
            for (bytes, key) in group.chunks_mut(BLOCK).zip(&stream) {
                match <&mut [u8; BLOCK]>::try_from(&mut *bytes) {
                    Ok(block) => {
                        let word = u128::from_ne_bytes(*block) ^ u128::from_ne_bytes(key.0);
                        *block = word.to_ne_bytes();
                    }
                    Err(_) => bytes.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key),
                }
            }
        }
    }
}

/// CMAC's chain of blocks, run inside the AES backend: one dispatch on the CPU's features for all.
struct Chain<'a> {
    full: &'a [u8],
    /// XORed to the last block of `full`.
    end_before: u128,
    /// The last block, with padding and subkey.
    tail: u128,
    state: &'a mut u128,
}

impl BlockSizeUser for Chain<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Chain<'_> {
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mut state = 0u128;
        let mut step = |word: u128| {
            let mut block = Array::from((state ^ word).to_be_bytes());
            backend.encrypt_block((&mut block).into());
            state = u128::from_be_bytes(block.into());
        };
        let mut blocks = self.full.chunks_exact(BLOCK);
        let last = blocks.next_back();
        blocks.for_each(|block| step(load(block)));
        if let Some(last) = last {
            step(load(last) ^ self.end_before);
        }
        step(self.tail);
        *self.state = state;
    }
}

fn encrypt(key: &Aes256Enc, block: u128) -> u128 {
    let mut block = Array::from(block.to_be_bytes());
    key.encrypt_block(&mut block);
    u128::from_be_bytes(block.into())
}

/// Up to 16 bytes, from the left, the rest zero.
fn load(bytes: &[u8]) -> u128 {
    let mut block = [0; BLOCK];
    block[..bytes.len()].copy_from_slice(bytes);
    u128::from_be_bytes(block)
}

/// The 1 bit that pads a block of `len` bytes.
fn pad_bit(len: usize) -> u128 {
    debug_assert!(len < BLOCK);
    1 << (127 - 8 * len)
}

/// Doubling in GF(2^128), without a branch on the secret.
fn dbl(value: u128) -> u128 {
    (value << 1) ^ (0x87 & (value >> 127).wrapping_neg())
}

#[cfg(test)]
mod tests;
