//! All arithmetic between cleartext and ciphertext offsets and sizes. Nowhere else.
//!
//! A file is a header followed by chunks; each chunk of up to [`CHUNK_CLEAR_BYTES`] of cleartext is `overhead` bytes
//! longer in ciphertext. Only the last chunk may be short, and none is empty. All offsets fit in an `i64`, as the
//! host's do: anything beyond is [`FormatError::TooLarge`], never a wrapped number.

use crate::format::config::CipherCombo;
use crate::format::error::{FormatError, Result};

/// Cleartext bytes in a full chunk.
pub const CHUNK_CLEAR_BYTES: u32 = 32 * 1024;

/// Largest file offset of the host.
const MAX_OFFSET: u64 = i64::MAX as u64;

/// The lengths that a cipher combination gives to headers and chunks, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// A header: 68 or 88.
    pub header_len: u32,
    /// Nonce of a header and of a chunk: 12 or 16.
    pub nonce_len: u32,
    /// Tag or MAC of a header and of a chunk: 16 or 32.
    pub tag_len: u32,
}

/// The part of one chunk that a byte range covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSpan {
    /// Number of the chunk.
    pub chunk: u64,
    /// First cleartext byte within the chunk.
    pub start: usize,
    /// Cleartext bytes from there, at least one.
    pub len: usize,
}

impl Layout {
    /// SIV_GCM.
    pub const GCM: Self = Self { header_len: 68, nonce_len: 12, tag_len: 16 };
    /// SIV_CTRMAC.
    pub const CTRMAC: Self = Self { header_len: 88, nonce_len: 16, tag_len: 32 };

    /// The layout of a cipher combination.
    #[must_use]
    pub const fn of(combo: CipherCombo) -> Self {
        match combo {
            CipherCombo::SivGcm => Self::GCM,
            CipherCombo::SivCtrmac => Self::CTRMAC,
        }
    }

    /// Cleartext bytes of a full chunk.
    #[must_use]
    pub const fn chunk_clear(&self) -> u32 {
        CHUNK_CLEAR_BYTES
    }

    /// Ciphertext bytes that a chunk has beyond its cleartext: 28 or 48.
    #[must_use]
    pub const fn overhead(&self) -> u32 {
        self.nonce_len + self.tag_len
    }

    /// Ciphertext bytes of a full chunk: 32796 or 32816.
    #[must_use]
    pub const fn chunk_cipher(&self) -> u32 {
        CHUNK_CLEAR_BYTES + self.overhead()
    }

    /// Largest cleartext size whose ciphertext size is a file offset.
    #[must_use]
    pub const fn max_cleartext_size(&self) -> u64 {
        let body = MAX_OFFSET - self.header_len as u64;
        let full = body / self.chunk_cipher() as u64;
        let tail = (body % self.chunk_cipher() as u64).saturating_sub(self.overhead() as u64);
        full * CHUNK_CLEAR_BYTES as u64 + tail
    }

    /// Cleartext size of a file of `ciphertext_size` bytes.
    ///
    /// # Errors
    /// [`FormatError::ShorterThanHeader`]; [`FormatError::Tail`] if 1 to `overhead` bytes follow the last full chunk;
    /// [`FormatError::TooLarge`].
    pub fn cleartext_size(&self, ciphertext_size: u64) -> Result<u64> {
        limit(ciphertext_size, MAX_OFFSET)?;
        let body = ciphertext_size
            .checked_sub(self.header_len.into())
            .ok_or(FormatError::ShorterThanHeader { found: ciphertext_size, header_len: self.header_len })?;
        let full = body / u64::from(self.chunk_cipher());
        let tail = (body % u64::from(self.chunk_cipher())) as u32; // below chunk_cipher, a u32
        let tail_clear = match tail.checked_sub(self.overhead()) {
            None if tail == 0 => 0,
            None | Some(0) => {
                return Err(FormatError::Tail { found: ciphertext_size, tail, overhead: self.overhead() });
            }
            Some(clear) => clear,
        };
        Ok(full * u64::from(CHUNK_CLEAR_BYTES) + u64::from(tail_clear))
    }

    /// Size of the file that holds `cleartext_size` bytes.
    ///
    /// # Errors
    /// [`FormatError::TooLarge`].
    pub fn ciphertext_size(&self, cleartext_size: u64) -> Result<u64> {
        limit(cleartext_size, self.max_cleartext_size())?;
        let chunks = self.chunk_count(cleartext_size);
        Ok(u64::from(self.header_len) + cleartext_size + chunks * u64::from(self.overhead()))
    }

    /// Number of chunks of a file of `cleartext_size` bytes.
    #[must_use]
    pub const fn chunk_count(&self, cleartext_size: u64) -> u64 {
        cleartext_size.div_ceil(CHUNK_CLEAR_BYTES as u64)
    }

    /// The chunk that holds the cleartext byte at `offset`.
    #[must_use]
    pub const fn chunk_of(&self, offset: u64) -> u64 {
        offset / CHUNK_CLEAR_BYTES as u64
    }

    /// Where in its chunk the cleartext byte at `offset` lies.
    #[must_use]
    pub const fn offset_in_chunk(&self, offset: u64) -> usize {
        (offset % CHUNK_CLEAR_BYTES as u64) as usize
    }

    /// Cleartext offset of the first byte of `chunk`.
    ///
    /// # Errors
    /// [`FormatError::TooLarge`].
    pub fn clear_offset(&self, chunk: u64) -> Result<u64> {
        limit(chunk, MAX_OFFSET / u64::from(CHUNK_CLEAR_BYTES))?;
        Ok(chunk * u64::from(CHUNK_CLEAR_BYTES))
    }

    /// Ciphertext offset of the first byte (the nonce) of `chunk`.
    ///
    /// # Errors
    /// [`FormatError::TooLarge`].
    pub fn chunk_offset(&self, chunk: u64) -> Result<u64> {
        limit(chunk, (MAX_OFFSET - u64::from(self.header_len)) / u64::from(self.chunk_cipher()))?;
        Ok(u64::from(self.header_len) + chunk * u64::from(self.chunk_cipher()))
    }

    /// Cleartext bytes of `chunk` in a file of `cleartext_size` bytes; 0 beyond its end.
    #[must_use]
    pub const fn chunk_clear_len(&self, chunk: u64, cleartext_size: u64) -> usize {
        let start = chunk.saturating_mul(CHUNK_CLEAR_BYTES as u64);
        let rest = cleartext_size.saturating_sub(start);
        if rest < CHUNK_CLEAR_BYTES as u64 { rest as usize } else { CHUNK_CLEAR_BYTES as usize }
    }

    /// Ciphertext bytes of `chunk` in a file of `cleartext_size` cleartext bytes; 0 beyond its end.
    #[must_use]
    pub const fn chunk_cipher_len(&self, chunk: u64, cleartext_size: u64) -> usize {
        match self.chunk_clear_len(chunk, cleartext_size) {
            0 => 0,
            clear => clear + self.overhead() as usize,
        }
    }

    /// The chunks that `len` bytes from `offset` touch, and how much of each. Empty if `len` is 0.
    ///
    /// # Errors
    /// [`FormatError::TooLarge`] if the range ends beyond [`Layout::max_cleartext_size`].
    pub fn chunk_spans(&self, offset: u64, len: u64) -> Result<impl Iterator<Item = ChunkSpan> + use<>> {
        let end = offset.saturating_add(len);
        limit(end, self.max_cleartext_size())?;
        Ok(Spans { at: offset, end })
    }

    /// The chunks that `len` bytes from `offset` touch, as a range of chunk numbers.
    ///
    /// # Errors
    /// As [`Layout::chunk_spans`].
    pub fn chunk_range(&self, offset: u64, len: u64) -> Result<std::ops::Range<u64>> {
        let end = offset.saturating_add(len);
        limit(end, self.max_cleartext_size())?;
        let first = self.chunk_of(offset);
        Ok(first..if len == 0 { first } else { self.chunk_count(end) })
    }
}

struct Spans {
    at: u64,
    end: u64,
}

impl Iterator for Spans {
    type Item = ChunkSpan;

    fn next(&mut self) -> Option<ChunkSpan> {
        if self.at >= self.end {
            return None;
        }
        let chunk = self.at / u64::from(CHUNK_CLEAR_BYTES);
        let start = self.at % u64::from(CHUNK_CLEAR_BYTES);
        let len = (self.end - self.at).min(u64::from(CHUNK_CLEAR_BYTES) - start);
        self.at += len;
        // Both are at most CHUNK_CLEAR_BYTES.
        Some(ChunkSpan { chunk, start: start as usize, len: len as usize })
    }
}

fn limit(found: u64, limit: u64) -> Result<()> {
    if found > limit { Err(FormatError::TooLarge { found, limit }) } else { Ok(()) }
}
