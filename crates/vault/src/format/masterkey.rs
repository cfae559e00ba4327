//! `masterkey.cryptomator`: from a password to the vault's two master keys, and back.
//!
//! [`MasterkeyFile`] is the JSON file; [`Masterkey`] the keys, in locked memory. Unlocking costs one scrypt; all the
//! rest is microseconds. Source: `org.cryptomator.cryptolib` 2.2, `MasterkeyFileAccess`; checked against vaults that
//! it made (`fixtures/vault`).

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrap};
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;

use super::error::{FormatError, Result};
use super::random;
use super::secret::Locked;
use crate::memory::LockedBytes;

/// The name that the file has in every vault of format 8.
pub const MASTERKEY_FILE_NAME: &str = "masterkey.cryptomator";

/// The `version` that a masterkey file of a format 8 vault carries: the format proper is in the vault config.
pub const MASTERKEY_VERSION: u32 = 999;

/// A masterkey file has about 400 bytes; anything much larger is not one.
pub const MAX_FILE_BYTES: usize = 64 * 1024;

/// Upper limit of scrypt's memory, 128·N·r: the default takes 32 MiB, so this leaves five doublings.
pub const MAX_SCRYPT_BYTES: u64 = 1 << 30;

const KEY_BYTES: usize = 32;
const WRAPPED_KEY_BYTES: usize = KEY_BYTES + 8;
const SALT_BYTES: usize = 8;
const MAX_SALT_BYTES: usize = 256;
const WHAT: &str = "masterkey file";

/// The vault's two master keys of 32 bytes each. Locked in memory, wiped on drop, printed by nothing.
pub struct Masterkey {
    /// Encryption key, then MAC key.
    raw: Locked<[u8; 2 * KEY_BYTES]>,
}

impl Masterkey {
    /// New random keys.
    ///
    /// # Errors
    /// [`FormatError::Random`].
    pub fn generate() -> Result<Self> {
        Ok(Self { raw: Locked::try_fill(|raw| random::fill_secret(raw))? })
    }

    /// Keys from known bytes: tests, worked examples, recovery keys.
    #[must_use]
    pub fn from_keys(enc: &[u8; KEY_BYTES], mac: &[u8; KEY_BYTES]) -> Self {
        let filled = Locked::try_fill(|raw| {
            raw[..KEY_BYTES].copy_from_slice(enc);
            raw[KEY_BYTES..].copy_from_slice(mac);
            Ok::<(), std::convert::Infallible>(())
        });
        match filled {
            Ok(raw) => Self { raw },
        }
    }

    /// The key for content, and for the second half of AES-SIV.
    #[must_use]
    pub fn enc(&self) -> &[u8; KEY_BYTES] {
        self.raw.first_chunk().expect("64 bytes have a first half")
    }

    /// The key for MACs, and for the first half of AES-SIV.
    #[must_use]
    pub fn mac(&self) -> &[u8; KEY_BYTES] {
        self.raw.last_chunk().expect("64 bytes have a last half")
    }

    /// Encryption key ‖ MAC key: signs the vault config.
    #[must_use]
    pub fn raw(&self) -> &[u8; 2 * KEY_BYTES] {
        &self.raw
    }
}

impl fmt::Debug for Masterkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Masterkey(..)")
    }
}

/// Cost of the key derivation: scrypt with p = 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScryptParams {
    /// N, a power of two above 1.
    pub cost: u32,
    /// r. Memory is 128·N·r bytes.
    pub block_size: u32,
}

impl Default for ScryptParams {
    /// What the official library writes: 32 MiB.
    fn default() -> Self {
        Self { cost: 1 << 15, block_size: 8 }
    }
}

impl ScryptParams {
    fn checked(self) -> Result<scrypt::Params> {
        let refused = || FormatError::ScryptParams {
            cost: self.cost.into(),
            block_size: self.block_size.into(),
            limit_bytes: MAX_SCRYPT_BYTES,
        };
        // Two u32 and 128 fit in 71 bits, so the product is formed in u128.
        let memory = 128 * u128::from(self.cost) * u128::from(self.block_size);
        if self.cost < 2 || !self.cost.is_power_of_two() || self.block_size == 0 || memory > MAX_SCRYPT_BYTES.into() {
            return Err(refused());
        }
        let log_n = u8::try_from(self.cost.trailing_zeros()).map_err(|_| refused())?;
        scrypt::Params::new(log_n, self.block_size, 1).map_err(|_| refused())
    }
}

/// The content of `masterkey.cryptomator`, as parsed; nothing in it is authentic before [`MasterkeyFile::unlock`].
///
/// Fields that we do not know are kept and written again by [`MasterkeyFile::relock`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MasterkeyFile {
    /// [`MASTERKEY_VERSION`] in vaults of format 8; the vault format itself in older ones.
    pub version: u32,
    #[serde(with = "base64")]
    scrypt_salt: Vec<u8>,
    scrypt_cost_param: u32,
    scrypt_block_size: u32,
    #[serde(with = "base64")]
    primary_master_key: Vec<u8>,
    #[serde(with = "base64")]
    hmac_master_key: Vec<u8>,
    #[serde(with = "base64")]
    version_mac: Vec<u8>,
    #[serde(flatten)]
    unknown: serde_json::Map<String, serde_json::Value>,
}

impl MasterkeyFile {
    /// Parses the file and checks every length and limit, without any key derivation.
    ///
    /// # Errors
    /// [`FormatError::Malformed`], [`FormatError::Length`], [`FormatError::ScryptParams`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(length(WHAT, "at most 65536", bytes.len()));
        }
        let file: Self = serde_json::from_slice(bytes).map_err(|e| FormatError::malformed(WHAT, json_reason(&e)))?;
        if file.scrypt_salt.len() > MAX_SALT_BYTES {
            return Err(length("masterkey file: scryptSalt", "at most 256", file.scrypt_salt.len()));
        }
        if file.primary_master_key.len() != WRAPPED_KEY_BYTES {
            return Err(length("masterkey file: primaryMasterKey", "40", file.primary_master_key.len()));
        }
        if file.hmac_master_key.len() != WRAPPED_KEY_BYTES {
            return Err(length("masterkey file: hmacMasterKey", "40", file.hmac_master_key.len()));
        }
        file.scrypt_params().checked()?;
        Ok(file)
    }

    /// The JSON text, in the official order of fields.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers always serialise")
    }

    /// The file's key derivation parameters.
    #[must_use]
    pub fn scrypt_params(&self) -> ScryptParams {
        ScryptParams { cost: self.scrypt_cost_param, block_size: self.scrypt_block_size }
    }

    /// The alleged vault format if this file belongs to a vault older than format 8 (which has no vault config).
    #[must_use]
    pub fn legacy_format(&self) -> Option<u32> {
        (self.version != MASTERKEY_VERSION).then_some(self.version)
    }

    /// Derives the key from `password` (normalised to NFC here) and unwraps the master keys.
    ///
    /// Costs one scrypt: some 32 MiB and tenths of a second with the default parameters.
    ///
    /// # Errors
    /// [`FormatError::WrongPassword`]; [`FormatError::VersionMac`] if the version was altered;
    /// [`FormatError::Malformed`] if only one of the keys unwraps; [`FormatError::ScryptParams`].
    pub fn unlock(&self, password: &str) -> Result<Masterkey> {
        let kek = derive_kek(password, &self.scrypt_salt, self.scrypt_params())?;
        let raw = Locked::try_fill(|raw| {
            let (enc, mac) = raw.split_at_mut(KEY_BYTES);
            unwrap(&kek, &self.primary_master_key, enc).map_err(|()| FormatError::WrongPassword)?;
            unwrap(&kek, &self.hmac_master_key, mac)
                .map_err(|()| FormatError::malformed(WHAT, "primaryMasterKey unwraps but hmacMasterKey does not"))
        })?;
        let masterkey = Masterkey { raw };
        let mac_key = hmac::Key::new(hmac::HMAC_SHA256, masterkey.mac());
        hmac::verify(&mac_key, &self.version.to_be_bytes(), &self.version_mac)
            .map_err(|_| FormatError::VersionMac { version: self.version })?;
        Ok(masterkey)
    }

    /// Wraps `masterkey` with a key derived from `password` (normalised to NFC here) and a new salt.
    ///
    /// # Errors
    /// [`FormatError::ScryptParams`], [`FormatError::Random`].
    pub fn lock(masterkey: &Masterkey, password: &str, params: ScryptParams) -> Result<Self> {
        let mut salt = [0; SALT_BYTES];
        random::fill_secret(&mut salt)?;
        Self::lock_with_salt(masterkey, password, params, &salt)
    }

    /// The same keys under a new password: keeps this file's version and the fields that we do not know.
    ///
    /// # Errors
    /// As [`MasterkeyFile::lock`].
    pub fn relock(&self, masterkey: &Masterkey, password: &str, params: ScryptParams) -> Result<Self> {
        let mut file = Self::lock(masterkey, password, params)?;
        if file.version != self.version {
            file.version = self.version;
            file.version_mac = version_mac(masterkey, self.version);
        }
        file.unknown = self.unknown.clone();
        Ok(file)
    }

    /// [`MasterkeyFile::lock`] with a given salt: worked examples.
    pub(crate) fn lock_with_salt(
        masterkey: &Masterkey,
        password: &str,
        params: ScryptParams,
        salt: &[u8],
    ) -> Result<Self> {
        let kek = derive_kek(password, salt, params)?;
        Ok(Self {
            version: MASTERKEY_VERSION,
            scrypt_salt: salt.to_vec(),
            scrypt_cost_param: params.cost,
            scrypt_block_size: params.block_size,
            primary_master_key: wrap(&kek, masterkey.enc())?,
            hmac_master_key: wrap(&kek, masterkey.mac())?,
            version_mac: version_mac(masterkey, MASTERKEY_VERSION),
            unknown: serde_json::Map::new(),
        })
    }
}

fn derive_kek(password: &str, salt: &[u8], params: ScryptParams) -> Result<Locked<[u8; KEY_BYTES]>> {
    const FAILED: FormatError = FormatError::Crypto { operation: "scrypt" };
    let params = params.checked()?;
    // Normalising may lengthen up to threefold.
    let mut normalised = LockedBytes::zeroed(3 * password.len());
    let mut len = 0;
    for c in password.nfc() {
        let room = normalised.get_mut(len..len + c.len_utf8()).ok_or(FAILED)?;
        len += c.encode_utf8(room).len();
    }
    Locked::try_fill(|kek| scrypt::scrypt(&normalised[..len], salt, &params, kek).map_err(|_| FAILED))
}

fn wrap(kek: &[u8; KEY_BYTES], key: &[u8]) -> Result<Vec<u8>> {
    const FAILED: FormatError = FormatError::Crypto { operation: "AES key wrap" };
    let mut out = vec![0; key.len() + 8];
    AesKek::new(&AES_256, kek).and_then(|k| k.wrap(key, &mut out).map(|_| ())).map_err(|_| FAILED)?;
    Ok(out)
}

fn unwrap(kek: &[u8; KEY_BYTES], wrapped: &[u8], out: &mut [u8]) -> Result<(), ()> {
    AesKek::new(&AES_256, kek).and_then(|k| k.unwrap(wrapped, out).map(|_| ())).map_err(|_| ())
}

fn version_mac(masterkey: &Masterkey, version: u32) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, masterkey.mac());
    hmac::sign(&key, &version.to_be_bytes()).as_ref().to_vec()
}

fn length(what: &'static str, expected: &'static str, found: usize) -> FormatError {
    FormatError::Length { what, expected, found: found as u64 }
}

/// Where and what kind, without the excerpt of the input that some of serde's messages carry.
fn json_reason(error: &serde_json::Error) -> String {
    use serde_json::error::Category;
    let kind = match error.classify() {
        Category::Eof => "JSON ends early",
        Category::Syntax => "not JSON",
        Category::Io => "unreadable",
        Category::Data => "a field is missing, duplicate or of the wrong type",
    };
    format!("{kind} (line {}, column {})", error.line(), error.column())
}

mod base64 {
    use super::BASE64;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&BASE64.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(d)?;
        BASE64.decode(text.as_bytes()).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
