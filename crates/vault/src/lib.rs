//! Cryptomator vaults, format 8, as an adit store.
//!
//! - [`format`]: pure codecs, no I/O;
//! - [`check`]: finding damage, and repairing it;
//! - [`vault`]: making, unlocking and describing a vault;
//! - [`memory`]: where keys and passwords are;
//! - [`state`]: where its journal lies;
//! - [`store`]: an open vault as an [`adit_core::store::Store`];
//! - `journal`: the redo journal, and recovery from it;
//! - `perm`: modes of what nobody asked for.

pub mod check;
pub mod format;
mod journal;
pub mod memory;
mod perm;
pub mod state;
pub mod store;
pub mod vault;
mod version;

pub use journal::recover::RecoveryReport;
pub use state::{FolderLock, StateDir};
pub use store::{OpenOptions, VaultStore, index_key, vault_id};
pub use vault::{CreateOptions, Unlocked, change_password, check_openable, create, info, unlock};
