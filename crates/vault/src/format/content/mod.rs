//! File content: headers and chunks.
//!
//! [`ContentCipher`] holds the vault's keys and makes or opens [`Header`]s; a [`FileCipher`] is one file's prepared
//! key, built once per open file, shared by any number of threads; [`Layout`] knows every offset. Chunks are
//! encrypted from the caller's buffer straight into the caller's buffer: nothing is allocated or copied between.
//! [`object`] encrypts the small objects that are one header and one chunk. Source: `cryptolib` 2.2, `v1` and `v2`.
//!
//! Invariant: every encryption draws a fresh random nonce. The variants that take one are for tests and worked
//! examples and are not public.

mod keys;
pub mod layout;
pub mod object;

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use self::keys::{CtrMac, Gcm, Key};
pub use self::layout::{CHUNK_CLEAR_BYTES, ChunkSpan, Layout};
use super::config::CipherCombo;
use super::error::{FormatError, Result};
use super::masterkey::Masterkey;
use super::random;

/// Longest nonce of any combination.
const MAX_NONCE_BYTES: usize = 16;
const CONTENT_KEY_BYTES: usize = 32;
/// In front of the content key: eight bytes that the official library reserves and ignores.
const RESERVED: [u8; 8] = [0xff; 8];
const HEADER_CLEAR_BYTES: usize = RESERVED.len() + CONTENT_KEY_BYTES;

/// Longest header of any combination, in bytes.
pub const MAX_HEADER_BYTES: usize = 88;

/// An encrypted header: 68 or 88 bytes, dereferences to them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeaderBytes {
    bytes: [u8; MAX_HEADER_BYTES],
    len: u8,
}

impl std::ops::Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for HeaderBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderBytes({})", data_encoding::HEXLOWER.encode(self))
    }
}

/// A nonce of the length that the combination has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ShortNonce {
    bytes: [u8; MAX_NONCE_BYTES],
    len: u8,
}

impl ShortNonce {
    fn new(bytes: &[u8]) -> Self {
        let mut own = [0; MAX_NONCE_BYTES];
        own[..bytes.len()].copy_from_slice(bytes);
        Self { bytes: own, len: bytes.len() as u8 } // at most 16, or the line above had panicked
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A decrypted header: the file's nonce and its content key, wiped on drop.
pub struct Header {
    nonce: ShortNonce,
    content_key: Zeroizing<[u8; CONTENT_KEY_BYTES]>,
}

impl Header {
    /// The nonce: with it, a chunk belongs to this file. 12 or 16 bytes, in clear at the start of the file.
    #[must_use]
    pub fn nonce(&self) -> &[u8] {
        self.nonce.as_slice()
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Header(nonce {})", data_encoding::HEXLOWER.encode(self.nonce()))
    }
}

/// The vault's keys for headers (and, with CTRMAC, for the MAC of chunks). Clones share them.
#[derive(Clone)]
pub struct ContentCipher {
    combo: CipherCombo,
    keys: Arc<Key>,
}

/// One file's prepared key. `&self` from any number of threads.
pub struct FileCipher {
    nonce: ShortNonce,
    key: Key,
}

impl fmt::Debug for ContentCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentCipher({})", self.combo)
    }
}

impl fmt::Debug for FileCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileCipher(nonce {})", data_encoding::HEXLOWER.encode(self.header_nonce()))
    }
}

impl ContentCipher {
    /// Expands the keys.
    ///
    /// # Errors
    /// [`FormatError::Crypto`].
    pub fn new(masterkey: &Masterkey, combo: CipherCombo) -> Result<Self> {
        let keys = match combo {
            CipherCombo::SivGcm => Key::Gcm(Gcm::new(masterkey.enc())?),
            CipherCombo::SivCtrmac => Key::CtrMac(CtrMac::new(masterkey.enc(), masterkey.mac())?),
        };
        Ok(Self { combo, keys: Arc::new(keys) })
    }

    /// The cipher combination.
    #[must_use]
    pub fn combo(&self) -> CipherCombo {
        self.combo
    }

    /// The lengths that go with it.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::of(self.combo)
    }

    /// A header for a new file: fresh nonce, fresh content key.
    ///
    /// # Errors
    /// [`FormatError::Random`], [`FormatError::Crypto`].
    pub fn create_header(&self) -> Result<(Header, HeaderBytes)> {
        let mut content_key = Zeroizing::new([0; CONTENT_KEY_BYTES]);
        random::fill_secret(content_key.as_mut_slice())?;
        match self.combo {
            CipherCombo::SivGcm => self.create_header_from(&random::nonce::<12>()?, content_key),
            CipherCombo::SivCtrmac => self.create_header_from(&random::nonce::<16>()?, content_key),
        }
    }

    /// [`ContentCipher::create_header`] with known bytes: worked examples.
    pub(crate) fn create_header_from(
        &self,
        nonce: &[u8],
        content_key: Zeroizing<[u8; CONTENT_KEY_BYTES]>,
    ) -> Result<(Header, HeaderBytes)> {
        let layout = self.layout();
        let (nonce_len, header_len) = (layout.nonce_len as usize, layout.header_len as usize);
        check_len("header nonce", "12 or 16", nonce.len() == nonce_len, nonce.len())?;
        let mut clear = Zeroizing::new([0; HEADER_CLEAR_BYTES]);
        clear[..RESERVED.len()].copy_from_slice(&RESERVED);
        clear[RESERVED.len()..].copy_from_slice(content_key.as_slice());
        let mut bytes = [0; MAX_HEADER_BYTES];
        let (nonce_out, sealed) = bytes[..header_len].split_at_mut(nonce_len);
        nonce_out.copy_from_slice(nonce);
        let (body, tag) = sealed.split_at_mut(HEADER_CLEAR_BYTES);
        match &*self.keys {
            Key::Gcm(key) => key.seal(nonce, &[], clear.as_slice(), body, tag)?,
            Key::CtrMac(key) => key.seal(&[], nonce, clear.as_slice(), body, tag)?,
        }
        let header = Header { nonce: ShortNonce::new(nonce), content_key };
        Ok((header, HeaderBytes { bytes, len: header_len as u8 }))
    }

    /// Decrypts a header: exactly the first 68 or 88 bytes of a file.
    ///
    /// # Errors
    /// [`FormatError::Length`]; [`FormatError::HeaderAuth`].
    pub fn decrypt_header(&self, bytes: &[u8]) -> Result<Header> {
        let layout = self.layout();
        check_len("file header", "68 or 88", bytes.len() == layout.header_len as usize, bytes.len())?;
        let (nonce, sealed) = bytes.split_at(layout.nonce_len as usize);
        let (body, tag) = sealed.split_at(HEADER_CLEAR_BYTES);
        let mut clear = Zeroizing::new([0; HEADER_CLEAR_BYTES]);
        let authentic = match &*self.keys {
            Key::Gcm(key) => key.open(nonce, &[], body, tag, clear.as_mut_slice()),
            Key::CtrMac(key) => key.open(&[], nonce, body, tag, clear.as_mut_slice()),
        };
        authentic.map_err(|()| FormatError::HeaderAuth)?;
        let mut content_key = Zeroizing::new([0; CONTENT_KEY_BYTES]);
        content_key.copy_from_slice(&clear[RESERVED.len()..]);
        Ok(Header { nonce: ShortNonce::new(nonce), content_key })
    }

    /// Prepares the key of one file.
    ///
    /// # Errors
    /// [`FormatError::Crypto`].
    pub fn file_cipher(&self, header: &Header) -> Result<FileCipher> {
        let key = match &*self.keys {
            Key::Gcm(_) => Key::Gcm(Gcm::new(&header.content_key)?),
            Key::CtrMac(vault) => Key::CtrMac(vault.with_content_key(&header.content_key)?),
        };
        Ok(FileCipher { nonce: header.nonce, key })
    }

    /// [`ContentCipher::create_header`] and [`ContentCipher::file_cipher`] in one.
    ///
    /// # Errors
    /// As these.
    pub fn create_file(&self) -> Result<(FileCipher, HeaderBytes)> {
        let (header, bytes) = self.create_header()?;
        Ok((self.file_cipher(&header)?, bytes))
    }

    /// [`ContentCipher::create_file`] with a header nonce that the caller knows to be unique: the journal's.
    pub(crate) fn create_file_from(&self, nonce: &[u8]) -> Result<(FileCipher, HeaderBytes)> {
        let mut content_key = Zeroizing::new([0; CONTENT_KEY_BYTES]);
        random::fill_secret(content_key.as_mut_slice())?;
        let (header, bytes) = self.create_header_from(nonce, content_key)?;
        Ok((self.file_cipher(&header)?, bytes))
    }

    /// [`ContentCipher::decrypt_header`] and [`ContentCipher::file_cipher`] in one.
    ///
    /// # Errors
    /// As these.
    pub fn open_file(&self, header: &[u8]) -> Result<FileCipher> {
        self.file_cipher(&self.decrypt_header(header)?)
    }
}

impl FileCipher {
    /// The cipher combination.
    #[must_use]
    pub fn combo(&self) -> CipherCombo {
        match self.key {
            Key::Gcm(_) => CipherCombo::SivGcm,
            Key::CtrMac(_) => CipherCombo::SivCtrmac,
        }
    }

    /// The lengths that go with it.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::of(self.combo())
    }

    /// The nonce of the file's header.
    #[must_use]
    pub fn header_nonce(&self) -> &[u8] {
        self.nonce.as_slice()
    }

    /// Encrypts one chunk under a fresh nonce: writes nonce ‖ ciphertext ‖ tag to the start of `out` and returns their
    /// length, `clear.len() + overhead`.
    ///
    /// An empty chunk is encrypted too, but only the root's `dirid.c9r` may hold one: never write it to a file.
    ///
    /// # Errors
    /// [`FormatError::Length`] if `clear` is longer than a chunk or `out` too short; [`FormatError::Random`];
    /// [`FormatError::Crypto`].
    pub fn encrypt_chunk(&self, chunk: u64, clear: &[u8], out: &mut [u8]) -> Result<usize> {
        match self.key {
            Key::Gcm(_) => self.encrypt_chunk_from(&random::nonce::<12>()?, chunk, clear, out),
            Key::CtrMac(_) => self.encrypt_chunk_from(&random::nonce::<16>()?, chunk, clear, out),
        }
    }

    /// [`FileCipher::encrypt_chunk`] with a known nonce: worked examples. A nonce must never be used twice.
    pub(crate) fn encrypt_chunk_from(&self, nonce: &[u8], chunk: u64, clear: &[u8], out: &mut [u8]) -> Result<usize> {
        let layout = self.layout();
        check_len("cleartext chunk", "at most 32768", clear.len() <= CHUNK_CLEAR_BYTES as usize, clear.len())?;
        check_len("nonce", "12 or 16", nonce.len() == layout.nonce_len as usize, nonce.len())?;
        let sealed_len = clear.len() + layout.overhead() as usize;
        check_len("output for a chunk", "cleartext + overhead", out.len() >= sealed_len, out.len())?;
        let (nonce_out, sealed) = out[..sealed_len].split_at_mut(nonce.len());
        nonce_out.copy_from_slice(nonce);
        let (body, tag) = sealed.split_at_mut(clear.len());
        let (ad, ad_len) = self.associated(chunk);
        match &self.key {
            Key::Gcm(key) => key.seal(nonce, &ad[..ad_len], clear, body, tag)?,
            Key::CtrMac(key) => key.seal(&ad[..ad_len], nonce, clear, body, tag)?,
        }
        Ok(sealed_len)
    }

    /// Decrypts one chunk (nonce ‖ ciphertext ‖ tag) to the start of `out` and returns the cleartext's length.
    ///
    /// On failure `out` holds nothing of use: zeros or what was there before.
    ///
    /// # Errors
    /// [`FormatError::ChunkAuth`], also for a chunk that is too short or too long to be one; [`FormatError::Length`]
    /// if `out` is too short.
    pub fn decrypt_chunk(&self, chunk: u64, sealed: &[u8], out: &mut [u8]) -> Result<usize> {
        let layout = self.layout();
        let clear_len = sealed.len().checked_sub(layout.overhead() as usize);
        let clear_len =
            clear_len.filter(|&n| n <= CHUNK_CLEAR_BYTES as usize).ok_or(FormatError::ChunkAuth { chunk })?;
        check_len("output for a chunk", "at least the cleartext", out.len() >= clear_len, out.len())?;
        let (nonce, sealed) = sealed.split_at(layout.nonce_len as usize);
        let (body, tag) = sealed.split_at(clear_len);
        let (ad, ad_len) = self.associated(chunk);
        let out = &mut out[..clear_len];
        let authentic = match &self.key {
            Key::Gcm(key) => key.open(nonce, &ad[..ad_len], body, tag, out),
            Key::CtrMac(key) => key.open(&ad[..ad_len], nonce, body, tag, out),
        };
        authentic.map_err(|()| FormatError::ChunkAuth { chunk })?;
        Ok(clear_len)
    }

    /// What binds a chunk to its file and place. GCM: BE64 chunk number ‖ header nonce. CTRMAC: the other way round.
    fn associated(&self, chunk: u64) -> ([u8; 8 + MAX_NONCE_BYTES], usize) {
        let number = chunk.to_be_bytes();
        let nonce = self.nonce.as_slice();
        let (first, second) = match self.key {
            Key::Gcm(_) => (number.as_slice(), nonce),
            Key::CtrMac(_) => (nonce, number.as_slice()),
        };
        let mut ad = [0; 8 + MAX_NONCE_BYTES];
        let len = first.len() + second.len();
        ad[..first.len()].copy_from_slice(first);
        ad[first.len()..len].copy_from_slice(second);
        (ad, len)
    }
}

fn check_len(what: &'static str, expected: &'static str, ok: bool, found: usize) -> Result<()> {
    if ok { Ok(()) } else { Err(FormatError::Length { what, expected, found: found as u64 }) }
}

#[cfg(test)]
mod tests;
