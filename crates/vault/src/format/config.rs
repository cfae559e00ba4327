//! `vault.cryptomator`: the vault's parameters as a signed token (JWT, RFC 7519).
//!
//! [`UnverifiedConfig`] is what can be read without the key: enough to find the masterkey file, and to tell a Hub
//! vault or another format by name. [`UnverifiedConfig::verify`] checks the signature first and only then reads the
//! claims that a [`VaultConfig`] holds. Source: `org.cryptomator.cryptofs.VaultConfig` 2.9.

use aws_lc_rs::hmac;
use data_encoding::BASE64URL_NOPAD;
use serde::Serialize;
use serde_json::{Map, Value};

use super::error::{FormatError, Result, VAULT_FORMAT};
use super::masterkey::{MASTERKEY_FILE_NAME, Masterkey};

/// The file's name in the vault's root.
pub const CONFIG_FILE_NAME: &str = "vault.cryptomator";

/// Ciphertext names longer than this are shortened, unless the vault says otherwise. In characters, with `.c9r`.
pub const DEFAULT_SHORTENING_THRESHOLD: u32 = 220;

/// A vault config has about 350 bytes; anything much larger is not one.
pub const MAX_FILE_BYTES: usize = 64 * 1024;

const MAX_ID_BYTES: usize = 128;
const MAX_KEY_FILE_NAME_BYTES: usize = 255;
const MASTERKEY_SCHEME: &str = "masterkeyfile:";
const HUB_SCHEMES: [&str; 2] = ["hub+http:", "hub+https:"];
const WHAT: &str = "vault config";

/// How headers and chunks are encrypted. Names are AES-SIV in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CipherCombo {
    /// AES-256-GCM: what the official library makes since format 8.
    SivGcm,
    /// AES-256-CTR and HMAC-SHA256: vaults converted from older formats.
    SivCtrmac,
}

impl CipherCombo {
    /// The text of the claim.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SivGcm => "SIV_GCM",
            Self::SivCtrmac => "SIV_CTRMAC",
        }
    }

    fn from_claim(text: &str) -> Option<Self> {
        [Self::SivGcm, Self::SivCtrmac].into_iter().find(|combo| combo.as_str() == text)
    }
}

impl std::fmt::Display for CipherCombo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the vault's key is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyId {
    /// A masterkey file with this plain name in the vault's root.
    MasterkeyFile(String),
    /// A Cryptomator Hub at this URL.
    Hub(String),
}

impl KeyId {
    /// `masterkeyfile:masterkey.cryptomator`.
    #[must_use]
    pub fn default_masterkey_file() -> Self {
        Self::MasterkeyFile(MASTERKEY_FILE_NAME.to_owned())
    }

    /// Reads a `kid`. A masterkey file's name may be percent-encoded, but must not lead out of the vault's root.
    ///
    /// # Errors
    /// [`FormatError::KeyId`].
    pub fn parse(kid: &str) -> Result<Self> {
        let refused = |reason| FormatError::KeyId { key_id: shortened(kid), reason };
        if HUB_SCHEMES.iter().any(|scheme| kid.starts_with(scheme)) {
            return Ok(Self::Hub(kid.to_owned()));
        }
        let encoded = kid.strip_prefix(MASTERKEY_SCHEME).ok_or_else(|| refused("unknown scheme"))?;
        let name = percent_decoded(encoded).ok_or_else(|| refused("bad percent-encoding"))?;
        if name.is_empty() || name == "." || name == ".." || name.len() > MAX_KEY_FILE_NAME_BYTES {
            return Err(refused("not a file name"));
        }
        if name.chars().any(|c| matches!(c, '/' | '\\') || c.is_control()) {
            return Err(refused("a path or a control character, where a plain file name is expected"));
        }
        Ok(Self::MasterkeyFile(name))
    }

    /// Name of the masterkey file in the vault's root.
    ///
    /// # Errors
    /// [`FormatError::HubVault`].
    pub fn masterkey_file_name(&self) -> Result<&str> {
        match self {
            Self::MasterkeyFile(name) => Ok(name),
            Self::Hub(url) => Err(FormatError::HubVault { key_id: shortened(url) }),
        }
    }

    fn to_kid(&self) -> String {
        match self {
            Self::MasterkeyFile(name) => format!("{MASTERKEY_SCHEME}{}", percent_encoded(name)),
            Self::Hub(url) => url.clone(),
        }
    }
}

/// What a vault config says before its signature was checked: nothing here may be acted on, only shown, except that
/// the key id leads to the key that the signature is then checked with.
#[derive(Debug, Clone)]
pub struct UnverifiedConfig {
    /// Where the key is.
    pub key_id: KeyId,
    /// Alleged vault format.
    pub alleged_format: Option<u32>,
    /// Alleged cipher combination, as text.
    pub alleged_cipher_combo: Option<String>,
    /// Alleged shortening threshold.
    pub alleged_shortening_threshold: Option<u32>,
    algorithm: hmac::Algorithm,
    /// `header.payload`, the bytes that are signed.
    signed: String,
    signature: Vec<u8>,
    claims: Map<String, Value>,
}

/// The vault's parameters, verified (or to be written).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultConfig {
    /// `jti`: names the vault; a UUID, at most 128 printable ASCII characters.
    pub id: String,
    /// [`VAULT_FORMAT`].
    pub format: u32,
    /// How content is encrypted.
    pub cipher_combo: CipherCombo,
    /// Ciphertext names longer than this (in characters, with `.c9r`) are shortened.
    pub shortening_threshold: u32,
    /// Where the key is.
    pub key_id: KeyId,
}

impl UnverifiedConfig {
    /// Parses the token. Surrounding ASCII white space is ignored.
    ///
    /// # Errors
    /// [`FormatError::Malformed`], [`FormatError::Length`], [`FormatError::SignatureAlgorithm`],
    /// [`FormatError::KeyId`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(FormatError::Length { what: WHAT, expected: "at most 65536", found: bytes.len() as u64 });
        }
        let malformed = |reason: &str| FormatError::malformed(WHAT, reason);
        let token = std::str::from_utf8(bytes.trim_ascii()).map_err(|_| malformed("not text"))?;
        let (signed, signature) = token.rsplit_once('.').ok_or_else(|| malformed("not a token of three parts"))?;
        let (header, payload) = signed.split_once('.').ok_or_else(|| malformed("not a token of three parts"))?;
        if payload.contains('.') {
            return Err(malformed("not a token of three parts"));
        }
        let header = json_part(header, "header")?;
        let claims = json_part(payload, "payload")?;
        let signature =
            BASE64URL_NOPAD.decode(signature.as_bytes()).map_err(|_| malformed("signature is not base64url"))?;
        if header.contains_key("crit") {
            return Err(malformed("header has a critical extension"));
        }
        let kid = header.get("kid").and_then(Value::as_str).ok_or_else(|| malformed("header has no kid"))?;
        let alleged_number = |claim| claims.get(claim).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        Ok(Self {
            key_id: KeyId::parse(kid)?,
            alleged_format: alleged_number("format"),
            alleged_cipher_combo: claims.get("cipherCombo").and_then(Value::as_str).map(str::to_owned),
            alleged_shortening_threshold: alleged_number("shorteningThreshold"),
            algorithm: algorithm(header.get("alg"))?,
            signed: signed.to_owned(),
            signature,
            claims,
        })
    }

    /// Whether a vault that is what this alleges could be opened here: if not, no password can help. That it could is
    /// known only after [`UnverifiedConfig::verify`].
    ///
    /// # Errors
    /// [`FormatError::HubVault`], [`FormatError::UnsupportedFormat`], [`FormatError::CipherCombo`].
    pub fn check_alleged(&self) -> Result<()> {
        self.key_id.masterkey_file_name()?;
        if let Some(found) = self.alleged_format.filter(|&format| format != VAULT_FORMAT) {
            return Err(FormatError::UnsupportedFormat { found, expected: VAULT_FORMAT });
        }
        match self.alleged_cipher_combo.as_deref().filter(|combo| CipherCombo::from_claim(combo).is_none()) {
            Some(combo) => Err(FormatError::CipherCombo { found: shortened(combo) }),
            None => Ok(()),
        }
    }

    /// Checks the signature with the master key; then, and only then, reads the claims.
    ///
    /// # Errors
    /// [`FormatError::Signature`] before anything else; [`FormatError::UnsupportedFormat`],
    /// [`FormatError::CipherCombo`], [`FormatError::Claim`].
    pub fn verify(&self, masterkey: &Masterkey) -> Result<VaultConfig> {
        let key = hmac::Key::new(self.algorithm, masterkey.raw());
        hmac::verify(&key, self.signed.as_bytes(), &self.signature).map_err(|_| FormatError::Signature)?;

        let format = self.number("format")?;
        if format != VAULT_FORMAT {
            return Err(FormatError::UnsupportedFormat { found: format, expected: VAULT_FORMAT });
        }
        let combo = self.claims.get("cipherCombo").and_then(Value::as_str).ok_or_else(|| self.bad("cipherCombo"))?;
        let cipher_combo =
            CipherCombo::from_claim(combo).ok_or_else(|| FormatError::CipherCombo { found: shortened(combo) })?;
        let id = self.claims.get("jti").and_then(Value::as_str).ok_or_else(|| self.bad("jti"))?;
        if id.is_empty() || id.len() > MAX_ID_BYTES || !id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(self.bad("jti"));
        }
        Ok(VaultConfig {
            id: id.to_owned(),
            format,
            cipher_combo,
            shortening_threshold: self.number("shorteningThreshold")?,
            key_id: self.key_id.clone(),
        })
    }

    /// A claim that is a number from 0 to 2³¹ − 1, as the official library reads it.
    fn number(&self, claim: &'static str) -> Result<u32> {
        self.claims
            .get(claim)
            .and_then(Value::as_u64)
            .and_then(|n| i32::try_from(n).ok())
            .map(i32::cast_unsigned)
            .ok_or_else(|| self.bad(claim))
    }

    fn bad(&self, claim: &'static str) -> FormatError {
        let found = self.claims.get(claim).map_or_else(|| "absent".to_owned(), |v| shortened(&v.to_string()));
        FormatError::Claim { claim, found }
    }
}

impl VaultConfig {
    /// A config for a new vault: fresh id, default key id.
    #[must_use]
    pub fn new(cipher_combo: CipherCombo, shortening_threshold: u32) -> Self {
        Self {
            id: uuid::Uuid::new_v4().to_string(),
            format: VAULT_FORMAT,
            cipher_combo,
            shortening_threshold,
            key_id: KeyId::default_masterkey_file(),
        }
    }

    /// Reads what can be read without the key.
    ///
    /// # Errors
    /// As [`UnverifiedConfig::parse`].
    pub fn peek(bytes: &[u8]) -> Result<UnverifiedConfig> {
        UnverifiedConfig::parse(bytes)
    }

    /// Parses and verifies.
    ///
    /// # Errors
    /// As [`UnverifiedConfig::parse`] and [`UnverifiedConfig::verify`].
    pub fn decode(bytes: &[u8], masterkey: &Masterkey) -> Result<Self> {
        UnverifiedConfig::parse(bytes)?.verify(masterkey)
    }

    /// The token, signed with HS256.
    #[must_use]
    pub fn encode(&self, masterkey: &Masterkey) -> String {
        let kid = self.key_id.to_kid();
        let header = TokenHeader { kid: &kid, typ: "JWT", alg: "HS256" };
        let claims = Claims {
            jti: &self.id,
            format: self.format,
            cipher_combo: self.cipher_combo.as_str(),
            shortening_threshold: self.shortening_threshold,
        };
        sign(&header, &claims, hmac::HMAC_SHA256, masterkey)
    }
}

#[derive(Serialize)]
struct TokenHeader<'a> {
    kid: &'a str,
    typ: &'a str,
    alg: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Claims<'a> {
    jti: &'a str,
    format: u32,
    cipher_combo: &'a str,
    shortening_threshold: u32,
}

fn sign(header: &impl Serialize, claims: &impl Serialize, algorithm: hmac::Algorithm, masterkey: &Masterkey) -> String {
    let part = |json: serde_json::Result<Vec<u8>>| {
        BASE64URL_NOPAD.encode(&json.expect("strings and numbers always serialise"))
    };
    let mut token = format!("{}.{}", part(serde_json::to_vec(header)), part(serde_json::to_vec(claims)));
    let signature = hmac::sign(&hmac::Key::new(algorithm, masterkey.raw()), token.as_bytes());
    token.push('.');
    BASE64URL_NOPAD.encode_append(signature.as_ref(), &mut token);
    token
}

fn json_part(part: &str, which: &str) -> Result<Map<String, Value>> {
    let bytes = BASE64URL_NOPAD
        .decode(part.as_bytes())
        .map_err(|_| FormatError::malformed(WHAT, format!("{which} is not base64url")))?;
    serde_json::from_slice(&bytes).map_err(|_| FormatError::malformed(WHAT, format!("{which} is not a JSON object")))
}

fn algorithm(alg: Option<&Value>) -> Result<hmac::Algorithm> {
    match alg.and_then(Value::as_str) {
        Some("HS256") => Ok(hmac::HMAC_SHA256),
        Some("HS384") => Ok(hmac::HMAC_SHA384),
        Some("HS512") => Ok(hmac::HMAC_SHA512),
        Some(other) => Err(FormatError::SignatureAlgorithm { found: shortened(other) }),
        None => Err(FormatError::malformed(WHAT, "header has no alg")),
    }
}

/// Foreign text for an error message: at most 80 characters.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (hex, tail) = rest.split_at_checked(2)?;
            bytes.extend(data_encoding::HEXLOWER_PERMISSIVE.decode(hex).ok()?);
            rest = tail;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn percent_encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            data_encoding::HEXUPPER.encode_append(&[byte], &mut out);
        }
    }
    out
}

#[cfg(test)]
mod tests;
