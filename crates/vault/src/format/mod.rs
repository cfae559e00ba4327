//! Cryptomator vault format 8: pure codecs, no I/O.
//!
//! - [`masterkey`]: `masterkey.cryptomator`, from a password to the two master keys;
//! - [`config`]: `vault.cryptomator`, a signed token with the vault's parameters;
//! - [`names`]: directory ids, their content directories, and entry names;
//! - [`content`]: file headers, chunks, the offset arithmetic, and the small encrypted objects `dirid.c9r` and
//!   `symlink.c9r`;
//! - [`error`]: what can be wrong with any of them.
//!
//! Everything takes and returns bytes. Nothing here panics on any input; each parser has a fuzz target. The bits are
//! written down in `docs/formats/vault.md`, whose worked examples a test encodes. The only calls into the operating
//! system are those that ask for random bytes and that keep keys out of swap and core dumps.

pub mod config;
pub mod content;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod masterkey;
pub mod names;
mod random;
mod secret;
pub(crate) mod siv;

pub use config::{CipherCombo, KeyId, UnverifiedConfig, VaultConfig};
pub use content::{ContentCipher, FileCipher, Header, HeaderBytes, Layout};
pub use error::{FormatError, Result, VAULT_FORMAT};
pub use masterkey::{Masterkey, MasterkeyFile, ScryptParams};
pub use names::{DirHash, DirId, NameCipher};

#[cfg(test)]
mod worked_examples;
