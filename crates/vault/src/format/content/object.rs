//! Small encrypted objects: a header and at most one chunk. `dirid.c9r` and `symlink.c9r` are such.

use super::{CHUNK_CLEAR_BYTES, ContentCipher, FileCipher, HeaderBytes};
use crate::format::error::{FormatError, Result};
use crate::format::names::DirId;

/// Longest symlink target in bytes, as in the official library.
pub const MAX_SYMLINK_BYTES: usize = 32767;

/// Encrypts `clear` (at most one chunk) as header ‖ chunk. An empty one becomes header ‖ empty chunk.
///
/// # Errors
/// [`FormatError::Length`], [`FormatError::Random`], [`FormatError::Crypto`].
pub fn encode(cipher: &ContentCipher, clear: &[u8]) -> Result<Vec<u8>> {
    let (file, header) = cipher.create_file()?;
    let mut out = with_room(&header, &file, clear.len());
    file.encrypt_chunk(0, clear, &mut out[header.len()..])?;
    Ok(out)
}

/// [`encode`] under known keys and nonce: worked examples.
#[cfg(test)]
pub(crate) fn encode_from(file: &FileCipher, header: &HeaderBytes, nonce: &[u8], clear: &[u8]) -> Result<Vec<u8>> {
    let mut out = with_room(header, file, clear.len());
    file.encrypt_chunk_from(nonce, 0, clear, &mut out[header.len()..])?;
    Ok(out)
}

/// Decrypts an object of at most one chunk. A header alone is an empty object.
///
/// # Errors
/// [`FormatError::ShorterThanHeader`], [`FormatError::HeaderAuth`], [`FormatError::ChunkAuth`];
/// [`FormatError::Malformed`] for more than one chunk.
pub fn decode(cipher: &ContentCipher, bytes: &[u8]) -> Result<Vec<u8>> {
    let layout = cipher.layout();
    let Some((header, chunk)) = bytes.split_at_checked(layout.header_len as usize) else {
        return Err(FormatError::ShorterThanHeader { found: bytes.len() as u64, header_len: layout.header_len });
    };
    let file = cipher.open_file(header)?;
    if chunk.is_empty() {
        return Ok(Vec::new());
    }
    if chunk.len() > layout.chunk_cipher() as usize {
        return Err(FormatError::malformed("small object", "longer than one chunk"));
    }
    let mut clear = vec![0; chunk.len().saturating_sub(layout.overhead() as usize)];
    file.decrypt_chunk(0, chunk, &mut clear)?;
    Ok(clear)
}

/// Longest ciphertext that [`decode`] takes: a caller need not read more than one byte beyond.
#[must_use]
pub fn max_encoded_bytes(cipher: &ContentCipher) -> usize {
    (cipher.layout().header_len + cipher.layout().chunk_cipher()) as usize
}

/// A `dirid.c9r`.
///
/// # Errors
/// As [`encode`].
pub fn encode_dir_id(cipher: &ContentCipher, dir: &DirId) -> Result<Vec<u8>> {
    encode(cipher, dir.as_str().as_bytes())
}

/// Reads a `dirid.c9r`; empty content is the root.
///
/// # Errors
/// As [`decode`]; [`FormatError::DirId`].
pub fn decode_dir_id(cipher: &ContentCipher, bytes: &[u8]) -> Result<DirId> {
    DirId::parse_backup(&decode(cipher, bytes)?)
}

/// A `symlink.c9r`. The target is written as given.
///
/// # Errors
/// [`FormatError::Length`] for an empty target or one over [`MAX_SYMLINK_BYTES`]; as [`encode`].
pub fn encode_symlink(cipher: &ContentCipher, target: &str) -> Result<Vec<u8>> {
    if target.is_empty() || target.len() > MAX_SYMLINK_BYTES {
        let found = target.len() as u64;
        return Err(FormatError::Length { what: "symlink target", expected: "1 to 32767", found });
    }
    encode(cipher, target.as_bytes())
}

/// Reads a `symlink.c9r`.
///
/// # Errors
/// As [`decode`]; [`FormatError::Malformed`] if the target is empty, too long, holds a zero byte or is not UTF-8.
pub fn decode_symlink(cipher: &ContentCipher, bytes: &[u8]) -> Result<String> {
    const WHAT: &str = "symlink target";
    let target = String::from_utf8(decode(cipher, bytes)?).map_err(|_| FormatError::malformed(WHAT, "not UTF-8"))?;
    if target.is_empty() || target.len() > MAX_SYMLINK_BYTES || target.contains('\0') {
        return Err(FormatError::malformed(WHAT, "empty, too long, or with a zero byte"));
    }
    Ok(target)
}

const _: () = assert!(MAX_SYMLINK_BYTES <= CHUNK_CLEAR_BYTES as usize);

fn with_room(header: &HeaderBytes, file: &FileCipher, clear_len: usize) -> Vec<u8> {
    let mut out = vec![0; header.len() + clear_len + file.layout().overhead() as usize];
    out[..header.len()].copy_from_slice(header);
    out
}
