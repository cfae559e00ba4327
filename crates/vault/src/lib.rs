//! Cryptomator vaults, format 8, as an adit store.

pub mod format;
