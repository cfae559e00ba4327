//! The cipher of scratch files: AES-256 in counter mode, with a key that lives as long as a build. It hides, and does not authenticate:
//! what a process writes it reads back itself, from files that have no name.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_core::error::{ErrorKind, FsError, Result};
use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use zeroize::Zeroizing;

const CIPHER_BLOCK_LEN_BYTES: u64 = 16;

/// The key of one build.
pub(crate) struct StreamKey {
    bytes: Zeroizing<[u8; 32]>,
    files: AtomicU64,
}

impl StreamKey {
    /// A new one.
    pub fn random() -> Result<StreamKey> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut bytes[..])
            .map_err(|e| FsError::new(ErrorKind::Io).on("read", "random bytes").because(e))?;
        Ok(StreamKey { bytes, files: AtomicU64::new(0) })
    }

    /// The stream of the next file, which no other file has.
    pub fn stream(&self) -> Stream {
        let key = UnboundCipherKey::new(&AES_256, &self.bytes[..]).and_then(EncryptingKey::ctr);
        Stream { key: key.ok(), file: self.files.fetch_add(1, Relaxed) }
    }
}

/// The key stream of one file. Each byte of it serves once to write.
pub(crate) struct Stream {
    /// `None` where the cipher cannot be had: then nothing is written.
    key: Option<EncryptingKey>,
    file: u64,
}

impl Stream {
    /// Encrypts or decrypts what lies at `offset` of the file.
    pub fn apply(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let failed = || io::Error::other("AES-256 cannot be used here");
        let key = self.key.as_ref().ok_or_else(failed)?;
        let skipped = (offset % CIPHER_BLOCK_LEN_BYTES) as usize;
        // The block in whose midst it begins.
        let (first, rest) = match skipped {
            0 => bytes.split_at_mut(0),
            _ => bytes.split_at_mut(bytes.len().min(CIPHER_BLOCK_LEN_BYTES as usize - skipped)),
        };
        let block = offset / CIPHER_BLOCK_LEN_BYTES;
        let whole = |bytes: &mut [u8], block: u64| {
            let iv = u128::from(self.file) << 64 | u128::from(block);
            let context = EncryptionContext::Iv128(FixedLength::from(iv.to_be_bytes()));
            key.less_safe_encrypt(bytes, context).map(drop).map_err(|_| failed())
        };
        if !first.is_empty() {
            let mut padded = [0; CIPHER_BLOCK_LEN_BYTES as usize];
            padded[skipped..skipped + first.len()].copy_from_slice(first);
            whole(&mut padded, block)?;
            first.copy_from_slice(&padded[skipped..skipped + first.len()]);
        }
        match rest.is_empty() {
            true => Ok(()),
            false => whole(rest, block + u64::from(skipped > 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_at_any_place_is_of_one_stream() {
        let key = StreamKey::random().unwrap();
        let (stream, other) = (key.stream(), key.stream());
        let mut whole = vec![0; 100];
        stream.apply(&mut whole, 0).unwrap();
        for at in 0..100 {
            for len in 0..100 - at {
                let mut piece = vec![0; len];
                stream.apply(&mut piece, at as u64).unwrap();
                assert_eq!(piece, whole[at..at + len], "{at} {len}");
            }
        }
        let mut elsewhere = vec![0; 100];
        other.apply(&mut elsewhere, 0).unwrap();
        assert!(elsewhere != whole && whole != vec![0; 100]);
    }
}
