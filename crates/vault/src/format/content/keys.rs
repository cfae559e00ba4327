//! The two ways to seal and open a piece of content, over aws-lc-rs.
//!
//! Both take input and output as separate buffers and write the output once.

use std::sync::Arc;

use aws_lc_rs::aead::{self, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;

use crate::format::error::{FormatError, Result};
use crate::format::secret::Locked;

const SEAL_FAILED: FormatError = FormatError::Crypto { operation: "seal" };

/// The key of a vault's headers, or of one file's chunks.
pub(super) enum Key {
    Gcm(Gcm),
    CtrMac(CtrMac),
}

/// AES-256-GCM.
pub(super) struct Gcm(LessSafeKey);

impl Gcm {
    pub(super) fn new(key: &[u8; 32]) -> Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| FormatError::Crypto { operation: "GCM key" })?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// `out` is as long as `clear`, `tag` 16 bytes, `nonce` 12 bytes and never used before with this key.
    pub(super) fn seal(&self, nonce: &[u8], ad: &[u8], clear: &[u8], out: &mut [u8], tag: &mut [u8]) -> Result<()> {
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SEAL_FAILED)?;
        debug_assert_eq!(tag.len(), aead::MAX_TAG_LEN);
        self.0.seal_out_of_place_scatter(nonce, Aad::from(ad), clear, out, &[], tag).map_err(|_| SEAL_FAILED)
    }

    /// `out` is as long as `sealed`; an error means "not authentic".
    pub(super) fn open(&self, nonce: &[u8], ad: &[u8], sealed: &[u8], tag: &[u8], out: &mut [u8]) -> Result<(), ()> {
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| ())?;
        let opened = self.0.open_separate_gather(nonce, Aad::from(ad), sealed, tag, out);
        opened.map_err(|_| out.fill(0))
    }
}

/// AES-256-CTR, then HMAC-SHA256 over associated data ‖ nonce ‖ ciphertext. The MAC key is the vault's.
pub(super) struct CtrMac {
    ctr: Locked<EncryptingKey>,
    /// Shared by all files: it has more than a kilobyte.
    mac: Arc<Locked<hmac::Key>>,
}

impl CtrMac {
    pub(super) fn new(enc: &[u8; 32], mac: &[u8; 32]) -> Result<Self> {
        Ok(Self { ctr: ctr_key(enc)?, mac: Arc::new(Locked::new(hmac::Key::new(hmac::HMAC_SHA256, mac))) })
    }

    /// The same MAC key with a file's content key.
    pub(super) fn with_content_key(&self, content_key: &[u8; 32]) -> Result<Self> {
        Ok(Self { ctr: ctr_key(content_key)?, mac: self.mac.clone() })
    }

    /// `out` is as long as `clear`, `tag` 32 bytes, `nonce` 16 bytes and never used before with this key.
    pub(super) fn seal(&self, ad: &[u8], nonce: &[u8], clear: &[u8], out: &mut [u8], tag: &mut [u8]) -> Result<()> {
        out.copy_from_slice(clear);
        self.apply_keystream(nonce, out).map_err(|()| SEAL_FAILED)?;
        tag.copy_from_slice(self.mac(ad, nonce, out).as_ref());
        Ok(())
    }

    /// `out` is as long as `sealed`; an error means "not authentic", and then nothing was decrypted.
    pub(super) fn open(&self, ad: &[u8], nonce: &[u8], sealed: &[u8], tag: &[u8], out: &mut [u8]) -> Result<(), ()> {
        let expected = self.mac(ad, nonce, sealed);
        aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_ref(), tag).map_err(|_| ())?;
        out.copy_from_slice(sealed);
        self.apply_keystream(nonce, out)
    }

    fn mac(&self, ad: &[u8], nonce: &[u8], sealed: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.mac);
        context.update(ad);
        context.update(nonce);
        context.update(sealed);
        context.sign()
    }

    /// Counter mode is its own inverse, so one key schedule serves both directions.
    fn apply_keystream(&self, nonce: &[u8], in_out: &mut [u8]) -> Result<(), ()> {
        let iv: [u8; 16] = nonce.try_into().map_err(|_| ())?;
        let context = EncryptionContext::Iv128(FixedLength::from(iv));
        self.ctr.less_safe_encrypt(in_out, context).map(|_| ()).map_err(|_| ())
    }
}

fn ctr_key(key: &[u8; 32]) -> Result<Locked<EncryptingKey>> {
    UnboundCipherKey::new(&AES_256, key)
        .and_then(EncryptingKey::ctr)
        .map(Locked::new)
        .map_err(|_| FormatError::Crypto { operation: "CTR key" })
}
