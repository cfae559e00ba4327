//! The bytes of an encrypted index, as pure functions. `docs/formats/index.md` has the tables; its tests encode the worked example.

use std::fmt;

use adit_core::error::{ErrorKind, FsError, Result};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{constant_time, hmac};
use xxhash_rust::xxh3::xxh3_64;
use zeroize::Zeroizing;

/// What an encrypted index begins with.
pub const MAGIC: [u8; 8] = *b"ADITIDXE";
/// The version that this program writes.
pub const VERSION: u32 = 1;
/// Length of the header in bytes.
pub const HEADER_LEN_BYTES: usize = 80;
/// Cleartext of a block in bytes; the last one may be shorter.
pub const BLOCK_LEN_BYTES: usize = 64 << 10;
/// What authenticates a block, in bytes.
pub const TAG_LEN_BYTES: usize = 16;
/// A block in the file, in bytes; the last one may be shorter.
pub const SEALED_BLOCK_LEN_BYTES: usize = BLOCK_LEN_BYTES + TAG_LEN_BYTES;
/// Most bytes of cleartext.
pub const CLEAR_LEN_MAX_BYTES: u64 = 1 << 46;

const SALT_LEN_BYTES: usize = 24;
const KEY_CHECK_LEN_BYTES: usize = 16;
const FOR_BLOCKS: &[u8] = b"adit sealed index: blocks";
const FOR_CHECK: &[u8] = b"adit sealed index: key check";

/// The key of all indexes of one vault. Wiped when it is dropped; printed by nothing.
pub struct SealKey(Zeroizing<[u8; 32]>);

impl SealKey {
    /// From 32 bytes that nobody can guess, and that no other use has.
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> SealKey {
        SealKey(bytes)
    }

    /// What it gives for one purpose in one file.
    fn derive(&self, purpose: &[u8], salt: &[u8; SALT_LEN_BYTES]) -> Zeroizing<[u8; 32]> {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0[..]));
        context.update(purpose);
        context.update(salt);
        let mut out = Zeroizing::new([0; 32]);
        out.copy_from_slice(context.sign().as_ref());
        out
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

/// What is wrong with an encrypted index. The cure is the same for all: it is made again from its source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// It does not begin as an encrypted index does.
    NotSealed,
    /// It is of a format that this program does not know.
    LaterVersion(u32),
    /// It has features that a reader must know, and this one does not.
    UnknownFeatures(u32),
    /// The header does not match its checksum.
    HeaderChecksum,
    /// The header matches its checksum, and tells of more than a file can hold.
    Header,
    /// The file is not as long as it says.
    Length {
        /// As the header says, in bytes.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// A block is not what was written at this place of this file.
    Block(u64),
}

impl Damage {
    /// The kind of error that it is: damage, or something newer.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Damage::LaterVersion(_) | Damage::UnknownFeatures(_) => ErrorKind::NotSupported,
            _ => ErrorKind::Corrupt,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::NotSealed => f.write_str("it does not begin as an encrypted index does")?,
            Damage::LaterVersion(version) => write!(f, "it is of format {version}, which is newer")?,
            Damage::UnknownFeatures(bits) => write!(f, "it has features that are newer ({bits:#x})")?,
            Damage::HeaderChecksum => f.write_str("its header does not match its checksum")?,
            Damage::Header => f.write_str("its header cannot be right: it is too long")?,
            Damage::Length { expected, found } => write!(f, "it has {found} bytes and should have {expected}")?,
            Damage::Block(number) => write!(f, "block {number} is not what was written there")?,
        }
        match self.kind() {
            ErrorKind::NotSupported => f.write_str("; use a newer adit, or build the index again"),
            _ => f.write_str("; build the index again"),
        }
    }
}

impl std::error::Error for Damage {}

/// The header of an encrypted index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    salt: [u8; SALT_LEN_BYTES],
    key_check: [u8; KEY_CHECK_LEN_BYTES],
    pub(super) clear_len: u64,
}

impl Header {
    /// That of a new file, whose keys no other file has.
    ///
    /// # Errors
    /// `Io`, if the host has no random bytes; `OutOfRange` for more than [`CLEAR_LEN_MAX_BYTES`].
    pub fn new(key: &SealKey, clear_len: u64) -> Result<(Header, FileKey)> {
        let mut salt = [0; SALT_LEN_BYTES];
        getrandom::fill(&mut salt).map_err(|e| FsError::new(ErrorKind::Io).on("read", "random bytes").because(e))?;
        Header::with_salt(key, clear_len, salt)
    }

    /// As [`Header::new`], with a salt that is known. Whoever uses one twice gives away what both files have in common.
    ///
    /// # Errors
    /// `OutOfRange` for more than [`CLEAR_LEN_MAX_BYTES`].
    pub fn with_salt(key: &SealKey, clear_len: u64, salt: [u8; SALT_LEN_BYTES]) -> Result<(Header, FileKey)> {
        if clear_len > CLEAR_LEN_MAX_BYTES {
            return Err(ErrorKind::OutOfRange.into());
        }
        let mut key_check = [0; KEY_CHECK_LEN_BYTES];
        key_check.copy_from_slice(&key.derive(FOR_CHECK, &salt)[..KEY_CHECK_LEN_BYTES]);
        let header = Header { salt, key_check, clear_len };
        let file_key = FileKey::new(&key.derive(FOR_BLOCKS, &salt))?;
        Ok((header, file_key))
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN_BYTES] {
        let mut out = [0; HEADER_LEN_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.clear_len.to_le_bytes());
        out[24..48].copy_from_slice(&self.salt);
        out[48..64].copy_from_slice(&self.key_check);
        let sum = xxh3_64(&out[..HEADER_LEN_BYTES - 8]);
        out[HEADER_LEN_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// From the first bytes of a file. Nothing in it is authentic before a block was [opened](FileKey::open_block).
    ///
    /// # Errors
    /// The first [`Damage`] that was found.
    pub fn decode(bytes: &[u8]) -> Result<Header, Damage> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Damage::NotSealed);
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_LEN_BYTES>() else {
            let (expected, found) = (HEADER_LEN_BYTES as u64, bytes.len() as u64);
            return Err(Damage::Length { expected, found });
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        // Where the checksum is in another version, that says.
        if word(8) != VERSION {
            return Err(Damage::LaterVersion(word(8)));
        }
        if xxh3_64(&bytes[..HEADER_LEN_BYTES - 8]) != long(HEADER_LEN_BYTES - 8) {
            return Err(Damage::HeaderChecksum);
        }
        if word(12) != 0 {
            return Err(Damage::UnknownFeatures(word(12)));
        }
        let (mut salt, mut key_check) = ([0; SALT_LEN_BYTES], [0; KEY_CHECK_LEN_BYTES]);
        salt.copy_from_slice(&bytes[24..48]);
        key_check.copy_from_slice(&bytes[48..64]);
        match long(16) {
            clear_len if clear_len > CLEAR_LEN_MAX_BYTES => Err(Damage::Header),
            clear_len => Ok(Header { salt, key_check, clear_len }),
        }
    }

    /// The key of the blocks; `None` if the file was written with another one.
    ///
    /// # Errors
    /// `Io`, if the cipher cannot be had.
    pub fn key(&self, key: &SealKey) -> Result<Option<FileKey>> {
        let check = key.derive(FOR_CHECK, &self.salt);
        match constant_time::verify_slices_are_equal(&check[..KEY_CHECK_LEN_BYTES], &self.key_check) {
            Ok(()) => FileKey::new(&key.derive(FOR_BLOCKS, &self.salt)).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// How many blocks there are: one at least.
    pub fn blocks(&self) -> u64 {
        self.clear_len.div_ceil(BLOCK_LEN_BYTES as u64).max(1)
    }

    /// Length of the whole file in bytes.
    pub fn file_len(&self) -> u64 {
        HEADER_LEN_BYTES as u64 + self.clear_len + self.blocks() * TAG_LEN_BYTES as u64
    }

    /// Where the cleartext of a block begins, and its length in bytes.
    pub fn clear_range(&self, block: u64) -> (u64, usize) {
        let at = block * BLOCK_LEN_BYTES as u64;
        (at, (self.clear_len.saturating_sub(at)).min(BLOCK_LEN_BYTES as u64) as usize)
    }

    /// Where a block begins in the file.
    pub fn sealed_at(&self, block: u64) -> u64 {
        HEADER_LEN_BYTES as u64 + block * SEALED_BLOCK_LEN_BYTES as u64
    }

    /// What no other block of a file has: whether it is the last one, and its number.
    fn nonce(&self, block: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[3] = u8::from(block + 1 == self.blocks());
        nonce[4..].copy_from_slice(&block.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The key of one file.
pub struct FileKey(LessSafeKey);

impl FileKey {
    fn new(key: &[u8; 32]) -> Result<FileKey> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| no_cipher())?;
        Ok(FileKey(LessSafeKey::new(key)))
    }

    /// Encrypts a block in place, and appends what authenticates it. Each block of a file is encrypted once.
    ///
    /// # Errors
    /// `Io`, if the cipher fails.
    pub fn seal_block(&self, header: &Header, number: u64, block: &mut Vec<u8>) -> Result<()> {
        let header_bytes = header.encode();
        let sealed = self.0.seal_in_place_append_tag(header.nonce(number), Aad::from(&header_bytes), block);
        sealed.map_err(|_| no_cipher())
    }

    /// Decrypts a block in place, and takes off what authenticates it.
    ///
    /// # Errors
    /// [`Damage::Block`], if it is not what was written at this place of this file.
    pub fn open_block(&self, header: &Header, number: u64, block: &mut Vec<u8>) -> Result<(), Damage> {
        let header_bytes = header.encode();
        let opened = self.0.open_in_place(header.nonce(number), Aad::from(&header_bytes), block);
        let len = opened.map_err(|_| Damage::Block(number))?.len();
        block.truncate(len);
        Ok(())
    }
}

#[cold]
fn no_cipher() -> FsError {
    FsError::new(ErrorKind::Io).on("encrypt", "an index").because("AES-256 cannot be used here")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SealKey {
        SealKey::new(Zeroizing::new(std::array::from_fn(|at| at as u8)))
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// `docs/formats/index.md` has these bytes.
    #[test]
    fn the_worked_example() {
        let (header, file_key) = Header::with_salt(&key(), 3, [7; SALT_LEN_BYTES]).unwrap();
        let mut block = b"abc".to_vec();
        file_key.seal_block(&header, 0, &mut block).unwrap();
        let text = include_str!("../../../../docs/formats/index.md");
        let text: String = text.split_whitespace().collect::<Vec<_>>().join("");
        for part in [hex(&header.encode()), hex(&block)] {
            assert!(text.contains(&part), "{part}");
        }
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn a_block_is_right_at_its_place_only() {
        let len = 2 * BLOCK_LEN_BYTES as u64 + 5;
        let (header, file_key) = Header::with_salt(&key(), len, [1; SALT_LEN_BYTES]).unwrap();
        let sealed = |number: u64| {
            let mut block = vec![9; header.clear_range(number).1];
            file_key.seal_block(&header, number, &mut block).unwrap();
            block
        };
        assert_eq!((header.blocks(), sealed(2).len()), (3, 5 + TAG_LEN_BYTES));
        assert_eq!(file_key.open_block(&header, 0, &mut sealed(0)), Ok(()));
        assert_eq!(file_key.open_block(&header, 1, &mut sealed(0)), Err(Damage::Block(1)));
        // A file that ends here would be this one without its last block.
        let (shorter, _) = Header::with_salt(&key(), 2 * BLOCK_LEN_BYTES as u64, [1; SALT_LEN_BYTES]).unwrap();
        assert_eq!(file_key.open_block(&shorter, 1, &mut sealed(1)), Err(Damage::Block(1)));
        let (_, other) = Header::with_salt(&key(), len, [2; SALT_LEN_BYTES]).unwrap();
        assert_eq!(other.open_block(&header, 0, &mut sealed(0)), Err(Damage::Block(0)));
        assert_eq!(file_key.open_block(&header, 0, &mut vec![0; 3]), Err(Damage::Block(0)));
        let (empty, file_key) = Header::with_salt(&key(), 0, [1; SALT_LEN_BYTES]).unwrap();
        let mut block = Vec::new();
        file_key.seal_block(&empty, 0, &mut block).unwrap();
        assert_eq!((empty.blocks(), block.len(), empty.file_len()), (1, 16, 96));
    }

    #[test]
    fn what_is_no_header_is_named() {
        let (header, _) = Header::with_salt(&key(), 3, [7; SALT_LEN_BYTES]).unwrap();
        let bytes = header.encode();
        for len in 0..HEADER_LEN_BYTES {
            assert!(matches!(Header::decode(&bytes[..len]), Err(Damage::NotSealed | Damage::Length { .. })), "{len}");
        }
        for at in 0..HEADER_LEN_BYTES {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert!(Header::decode(&bytes).is_err(), "{at}");
        }
        let resummed = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            let sum = xxh3_64(&bytes[..72]).to_le_bytes();
            bytes[72..].copy_from_slice(&sum);
            Header::decode(&bytes)
        };
        assert_eq!(resummed(12, 1), Err(Damage::UnknownFeatures(1)));
        assert_eq!(resummed(8, 2), Err(Damage::LaterVersion(2)));
        assert_eq!(resummed(23, 1), Err(Damage::Header));
        let other = SealKey::new(Zeroizing::new([0; 32]));
        assert!(header.key(&other).unwrap().is_none() && header.key(&key()).unwrap().is_some());
        assert!(resummed(50, 0).unwrap().key(&key()).unwrap().is_none());
    }
}
