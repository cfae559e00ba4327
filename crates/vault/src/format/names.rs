//! Directory ids, the content directories they lead to, and entry names.
//!
//! [`DirId`] identifies a directory; [`NameCipher`] turns it into a [`DirHash`] (where its entries lie) and encrypts
//! the names of its entries. Names are normalised to NFC before encryption, always. A cipher is shared by reference
//! between any number of threads. Source: `cryptolib` 2.2 `FileNameCryptorImpl`, `cryptofs` 2.9 `LongFileNameProvider`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use data_encoding::{BASE32, BASE64URL};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::error::{FormatError, Result};
use super::masterkey::Masterkey;
use super::siv::{Associated, SIV_TAG_BYTES, Siv};

/// Ends every encrypted name.
pub const C9R: &str = ".c9r";
/// Ends the folder of a shortened name.
pub const C9S: &str = ".c9s";
/// The vault's folder of content directories.
pub const DATA_DIR: &str = "d";
/// In a directory's entry: its id, in clear.
pub const DIR_FILE: &str = "dir.c9r";
/// In a content directory: the directory's own id, encrypted.
pub const DIRID_FILE: &str = "dirid.c9r";
/// In a symlink's entry: its target, encrypted.
pub const SYMLINK_FILE: &str = "symlink.c9r";
/// In a shortened file's entry: its content.
pub const CONTENTS_FILE: &str = "contents.c9r";
/// In a shortened entry: the full encrypted name, in clear.
pub const NAME_FILE: &str = "name.c9s";

/// Longest directory id that is tolerated; those of the official library have 36 characters.
pub const MAX_DIR_ID_BYTES: usize = 128;
/// Longest cleartext name, after normalisation, that is encrypted or decrypted here. Hosts end at 255 or below.
pub const MAX_NAME_BYTES: usize = 2048;

const MAX_SEALED_BYTES: usize = MAX_NAME_BYTES + SIV_TAG_BYTES;
/// Sealed names up to this length need no heap.
const INLINE_BYTES: usize = 288;

/// The id of a directory: empty for the root, else printable ASCII, a UUID where we or the official library made it.
///
/// Cloning is cheap (shared text).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirId(Arc<str>);

impl DirId {
    /// The root's id: empty.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from(""))
    }

    /// A new random id.
    #[must_use]
    pub fn generate() -> Self {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        Self(Arc::from(&*uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text)))
    }

    /// Reads the content of a `dir.c9r`, which is never empty: an empty one would make the directory a second root.
    ///
    /// # Errors
    /// [`FormatError::DirId`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Err(FormatError::DirId { len: 0, reason: "empty" });
        }
        Self::parse_backup(bytes)
    }

    /// Reads the decrypted content of a `dirid.c9r`, which is empty in the root.
    ///
    /// # Errors
    /// [`FormatError::DirId`].
    pub fn parse_backup(bytes: &[u8]) -> Result<Self> {
        let len = bytes.len();
        if len > MAX_DIR_ID_BYTES {
            return Err(FormatError::DirId { len, reason: "longer than 128 bytes" });
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.iter().all(|b| (0x20..0x7f).contains(b)) => Ok(Self(Arc::from(text))),
            _ => Err(FormatError::DirId { len, reason: "not printable ASCII" }),
        }
    }

    /// The text of the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for DirId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a directory's entries lie: 32 base32 characters, displayed as the path `d/XX/YYYY…` in the vault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirHash([u8; 32]);

impl DirHash {
    /// From the two folder names below `d`: 2 and 30 base32 characters. None if they are anything else.
    #[must_use]
    pub fn from_parts(prefix: &str, rest: &str) -> Option<Self> {
        let mut text = [0; 32];
        if prefix.len() != 2 || rest.len() != 30 {
            return None;
        }
        text[..2].copy_from_slice(prefix.as_bytes());
        text[2..].copy_from_slice(rest.as_bytes());
        text.iter().all(|c| matches!(c, b'A'..=b'Z' | b'2'..=b'7')).then_some(Self(text))
    }

    /// The folder below `d`: 2 characters.
    #[must_use]
    pub fn prefix(&self) -> &str {
        ascii(&self.0[..2])
    }

    /// The content directory below that: 30 characters.
    #[must_use]
    pub fn rest(&self) -> &str {
        ascii(&self.0[2..])
    }

    /// `d/XX/YYYY…`, relative to the vault's root.
    #[must_use]
    pub fn path(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for DirHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{DATA_DIR}/{}/{}", self.prefix(), self.rest())
    }
}

impl fmt::Debug for DirHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirHash({self})")
    }
}

fn ascii(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("a hash is base32 characters")
}

/// The vault's cipher for names and directory ids. Clones share the (locked) keys.
#[derive(Clone)]
pub struct NameCipher {
    siv: Arc<Siv>,
}

/// A directory's part of the name encryption, computed once for a listing: 16 bytes. Use it only with the cipher that
/// made it.
#[derive(Clone, Copy)]
pub struct DirContext(Associated);

impl fmt::Debug for NameCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameCipher(..)")
    }
}

impl fmt::Debug for DirContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirContext(..)")
    }
}

impl NameCipher {
    /// Expands the keys.
    #[must_use]
    pub fn new(masterkey: &Masterkey) -> Self {
        Self { siv: Arc::new(Siv::new(masterkey.mac(), masterkey.enc())) }
    }

    /// What is constant for all names of one directory.
    #[must_use]
    pub fn dir_context(&self, dir: &DirId) -> DirContext {
        DirContext(self.siv.associated(dir.as_str().as_bytes()))
    }

    /// Where the entries of `dir` lie.
    #[must_use]
    pub fn dir_hash(&self, dir: &DirId) -> DirHash {
        let id = dir.as_str().as_bytes();
        let mut sealed = [0; MAX_DIR_ID_BYTES + SIV_TAG_BYTES];
        let sealed = &mut sealed[..id.len() + SIV_TAG_BYTES];
        self.siv.encrypt(self.siv.no_associated(), id, sealed);
        let sha1 = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, sealed);
        let mut text = [0; 32];
        BASE32.encode_mut(sha1.as_ref(), &mut text);
        DirHash(text)
    }

    /// [`NameCipher::dir_hash`] as a path relative to the vault's root, `d/XX/YYYY…`.
    #[must_use]
    pub fn dir_hash_path(&self, dir: &DirId) -> String {
        self.dir_hash(dir).path()
    }

    /// Encrypts a name (normalised to NFC here) for an entry of `dir`; the result ends in `.c9r`.
    ///
    /// # Errors
    /// [`FormatError::NameInvalid`] for names that no file can have or that are longer than [`MAX_NAME_BYTES`].
    pub fn encrypt_name(&self, name: &str, dir: &DirId) -> Result<String> {
        self.encrypt_name_in(name, self.dir_context(dir))
    }

    /// [`NameCipher::encrypt_name`] with the directory's part computed before.
    ///
    /// # Errors
    /// As there.
    pub fn encrypt_name_in(&self, name: &str, dir: DirContext) -> Result<String> {
        let mut out = String::new();
        self.encrypt_name_to(name, dir, &mut out)?;
        Ok(out)
    }

    /// [`NameCipher::encrypt_name_in`], appended to `out`.
    ///
    /// # Errors
    /// As there; `out` is then unchanged.
    pub fn encrypt_name_to(&self, name: &str, dir: DirContext, out: &mut String) -> Result<()> {
        self.encrypt_exactly(&nfc(name), dir, out)
    }

    /// [`NameCipher::encrypt_name_in`] without normalising: finds entries that some other program made so. Never for
    /// new entries.
    ///
    /// # Errors
    /// As there.
    pub fn encrypt_name_as_found(&self, name: &str, dir: DirContext) -> Result<String> {
        let mut out = String::new();
        self.encrypt_exactly(name, dir, &mut out)?;
        Ok(out)
    }

    fn encrypt_exactly(&self, name: &str, dir: DirContext, out: &mut String) -> Result<()> {
        check_clear_name(name)?;
        let sealed_len = name.len() + SIV_TAG_BYTES;
        let mut inline = [0; INLINE_BYTES];
        let mut heap = Vec::new();
        let sealed = scratch(&mut inline, &mut heap, sealed_len);
        self.siv.encrypt(dir.0, name.as_bytes(), sealed);
        out.reserve(BASE64URL.encode_len(sealed_len) + C9R.len());
        BASE64URL.encode_append(sealed, out);
        out.push_str(C9R);
        Ok(())
    }

    /// Decrypts an entry name of `dir` that ends in `.c9r`. The result may be in any normal form.
    ///
    /// # Errors
    /// [`FormatError::NameEncoding`] if it does not look like an encrypted name (a foreign file, a conflict copy);
    /// [`FormatError::NameAuth`] if it is not authentic in this directory; [`FormatError::NameInvalid`] if the
    /// authentic cleartext is no name that a file can have.
    pub fn decrypt_name(&self, c9r: &str, dir: &DirId) -> Result<String> {
        self.decrypt_name_in(c9r, self.dir_context(dir))
    }

    /// [`NameCipher::decrypt_name`] with the directory's part computed before.
    ///
    /// # Errors
    /// As there.
    pub fn decrypt_name_in(&self, c9r: &str, dir: DirContext) -> Result<String> {
        let bad = |reason| FormatError::NameEncoding { reason };
        let text = c9r.strip_suffix(C9R).ok_or(bad("does not end in .c9r"))?.as_bytes();
        let decoded_len = BASE64URL.decode_len(text.len()).map_err(|_| bad("not padded base64url"))?;
        if decoded_len > MAX_SEALED_BYTES + 2 {
            return Err(bad("too long"));
        }
        let mut inline = [0; INLINE_BYTES];
        let mut heap = Vec::new();
        let sealed = scratch(&mut inline, &mut heap, decoded_len);
        let sealed_len = BASE64URL.decode_mut(text, sealed).map_err(|_| bad("not padded base64url"))?;
        // An empty cleartext is not a name, so the tag alone is too short.
        let clear_len = sealed_len.checked_sub(SIV_TAG_BYTES).filter(|&n| n > 0).ok_or(bad("too short"))?;
        let mut clear = vec![0; clear_len];
        if !self.siv.decrypt(dir.0, &sealed[..sealed_len], &mut clear) {
            return Err(FormatError::NameAuth);
        }
        let name = String::from_utf8(clear).map_err(|_| FormatError::NameInvalid { reason: "not UTF-8" })?;
        check_clear_name(&name)?;
        Ok(name)
    }
}

/// The folder name of a long encrypted name (given with its `.c9r`): base64url(SHA-1) and `.c9s`.
#[must_use]
pub fn shorten(long_c9r: &str) -> String {
    let sha1 = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, long_c9r.as_bytes());
    let mut out = BASE64URL.encode(sha1.as_ref());
    out.push_str(C9S);
    out
}

/// Whether a name (with its `.c9r`) is to be shortened in a vault with this threshold.
#[must_use]
pub fn is_long(c9r: &str, shortening_threshold: u32) -> bool {
    c9r.len() as u64 > u64::from(shortening_threshold)
}

/// `text` in Unicode normal form C; free for text that already is, as nearly all is.
#[must_use]
pub fn nfc(text: &str) -> Cow<'_, str> {
    // Below U+0300, where combining marks begin, everything is in this form: so is text without the
    // lead bytes of anything above.
    const LEAD_BYTE_OF_U0300: u8 = 0xcc;
    if text.bytes().all(|byte| byte < LEAD_BYTE_OF_U0300) || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    let normalised: String = text.nfc().collect();
    if normalised == text { Cow::Borrowed(text) } else { Cow::Owned(normalised) }
}

fn check_clear_name(name: &str) -> Result<()> {
    let invalid = |reason| Err(FormatError::NameInvalid { reason });
    match name {
        "" => invalid("empty"),
        "." | ".." => invalid("a relative directory"),
        _ if name.len() > MAX_NAME_BYTES => invalid("longer than 2048 bytes"),
        _ if name.bytes().any(|b| b == b'/' || b == 0) => invalid("holds a slash or a zero byte"),
        _ => Ok(()),
    }
}

/// `len` bytes, on the stack where they fit.
fn scratch<'a>(inline: &'a mut [u8; INLINE_BYTES], heap: &'a mut Vec<u8>, len: usize) -> &'a mut [u8] {
    if len <= INLINE_BYTES {
        &mut inline[..len]
    } else {
        heap.resize(len, 0);
        heap
    }
}

#[cfg(test)]
mod tests;
