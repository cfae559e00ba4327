//! What can be wrong with the bytes of a vault, as facts.
//!
//! [`FormatError`] names the thing, what was expected and what was found. It knows no path: the store adds the
//! cleartext and ciphertext path when it turns one of these into an `FsError`. No variant holds key material,
//! cleartext names or content.

use thiserror::Error;

/// The vault format that this crate reads and writes.
pub const VAULT_FORMAT: u32 = 8;

/// Result of the format layer.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;

/// A fact about bytes that are not what vault format 8 says they are.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The password does not unwrap the master key.
    #[error("wrong password")]
    WrongPassword,

    /// A structure could not be parsed at all.
    #[error("{what} is malformed: {reason}")]
    Malformed {
        /// Which structure.
        what: &'static str,
        /// What the parser said; never quotes secrets.
        reason: String,
    },

    /// Key derivation parameters outside of what we are willing to compute.
    #[error(
        "scrypt parameters N={cost}, r={block_size} are refused: N must be a power of two above 1, r at least 1, \
         and 128·N·r at most {limit_bytes} bytes"
    )]
    ScryptParams {
        /// The cost parameter N found.
        cost: u64,
        /// The block size r found.
        block_size: u64,
        /// Upper limit of 128·N·r.
        limit_bytes: u64,
    },

    /// The version in the masterkey file is not the one that was authenticated.
    #[error("masterkey file: version {version} does not match its versionMac (the file was altered)")]
    VersionMac {
        /// The version that the file alleges.
        version: u32,
    },

    /// A vault of a format other than 8.
    #[error("vault format {found} is not supported (expected {expected})")]
    UnsupportedFormat {
        /// Format that the vault claims.
        found: u32,
        /// The one format that is supported.
        expected: u32,
    },

    /// The key of this vault lives in a Cryptomator Hub and not in a masterkey file.
    #[error("this is a Cryptomator Hub vault (key id {key_id}); its key cannot be derived from a password")]
    HubVault {
        /// The `kid` found.
        key_id: String,
    },

    /// The key id of the vault configuration is not a plain file name in the vault's root, or of an unknown scheme.
    #[error("vault config: key id {key_id:?} is refused: {reason}")]
    KeyId {
        /// The `kid` found.
        key_id: String,
        /// Why.
        reason: &'static str,
    },

    /// The vault configuration is signed with an algorithm other than HS256, HS384, HS512.
    #[error("vault config: signature algorithm {found:?} is not supported (expected HS256, HS384 or HS512)")]
    SignatureAlgorithm {
        /// The `alg` found.
        found: String,
    },

    /// The signature of the vault configuration was not made with this master key.
    #[error("vault config: the signature does not verify with this master key (altered, or from another vault)")]
    Signature,

    /// A claim of the (authentic) vault configuration is missing or out of range.
    #[error("vault config: claim {claim} is missing or out of range: {found}")]
    Claim {
        /// Name of the claim.
        claim: &'static str,
        /// Its JSON text, shortened, or `absent`.
        found: String,
    },

    /// The vault configuration names an unknown cipher combination.
    #[error("vault config: cipher combination {found:?} is not supported (expected SIV_GCM or SIV_CTRMAC)")]
    CipherCombo {
        /// The `cipherCombo` found.
        found: String,
    },

    /// Something has a length that it cannot have.
    #[error("{what}: length {found} is invalid (expected {expected})")]
    Length {
        /// What was measured.
        what: &'static str,
        /// In words or digits.
        expected: &'static str,
        /// Bytes found.
        found: u64,
    },

    /// A ciphertext file is shorter than its header.
    #[error("ciphertext of {found} bytes is shorter than the header of {header_len} bytes")]
    ShorterThanHeader {
        /// Size of the file in bytes.
        found: u64,
        /// Length of a header in bytes.
        header_len: u32,
    },

    /// A ciphertext file ends in a chunk too short to hold even one byte.
    #[error("ciphertext of {found} bytes ends in {tail} stray bytes (a chunk has more than {overhead})")]
    Tail {
        /// Size of the file in bytes.
        found: u64,
        /// Bytes after the last full chunk.
        tail: u32,
        /// Nonce and tag of a chunk in bytes.
        overhead: u32,
    },

    /// An offset or size beyond what a file can have.
    #[error("offset or size {found} is beyond the largest file of {limit} bytes")]
    TooLarge {
        /// Offset or size asked for, in bytes.
        found: u64,
        /// Largest value in bytes.
        limit: u64,
    },

    /// The header of a file does not authenticate.
    #[error("file header does not authenticate")]
    HeaderAuth,

    /// A chunk does not authenticate under the header of its file and its place in it.
    #[error("chunk {chunk} does not authenticate")]
    ChunkAuth {
        /// Number of the chunk, from 0.
        chunk: u64,
    },

    /// A ciphertext name is not what an encrypted name looks like.
    #[error("not an encrypted name: {reason}")]
    NameEncoding {
        /// Why.
        reason: &'static str,
    },

    /// A ciphertext name does not authenticate in this directory.
    #[error("name does not authenticate in this directory")]
    NameAuth,

    /// A cleartext name that no file can have.
    #[error("invalid cleartext name: {reason}")]
    NameInvalid {
        /// Why.
        reason: &'static str,
    },

    /// A directory id that is empty, too long, or not printable ASCII.
    #[error("invalid directory id of {len} bytes: {reason}")]
    DirId {
        /// Its length in bytes.
        len: usize,
        /// Why.
        reason: &'static str,
    },

    /// The operating system gave no random bytes.
    #[error("no random bytes from the operating system: {reason}")]
    Random {
        /// What it said.
        reason: String,
    },

    /// The cryptographic library refused an operation that cannot fail with valid arguments.
    #[error("cryptographic library failed in {operation}")]
    Crypto {
        /// What was attempted.
        operation: &'static str,
    },
}

impl FormatError {
    /// A [`FormatError::Malformed`] of `what`.
    pub(crate) fn malformed(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Malformed { what, reason: reason.into() }
    }

    /// Whether this says that stored bytes are damaged or foreign, rather than that the caller erred.
    ///
    /// A store maps these to EIO and logs the path.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(
            self,
            Self::Malformed { .. }
                | Self::VersionMac { .. }
                | Self::Signature
                | Self::Claim { .. }
                | Self::ShorterThanHeader { .. }
                | Self::Tail { .. }
                | Self::HeaderAuth
                | Self::ChunkAuth { .. }
                | Self::NameEncoding { .. }
                | Self::NameAuth
                | Self::DirId { .. }
        )
    }
}
