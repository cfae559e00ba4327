//! The vault as a whole: making one, unlocking it, telling about it, changing its password.

use std::path::Path;

use adit_core::media::{HostDir, NewFile, SyncTarget};
use adit_core::types::RenameFlags;
use adit_core::{ErrorKind, FsError, Result};
use aws_lc_rs::digest;

use crate::format::config::{CONFIG_FILE_NAME, DEFAULT_SHORTENING_THRESHOLD};
use crate::format::content::object;
use crate::format::masterkey::MASTERKEY_FILE_NAME;
use crate::format::names::{DATA_DIR, DIRID_FILE};
use crate::format::{
    CipherCombo, ContentCipher, DirId, FormatError, Masterkey, MasterkeyFile, NameCipher, ScryptParams,
    UnverifiedConfig, VaultConfig,
};
use crate::journal::recover::read_small;

/// How to make a vault.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// The cipher combination.
    pub cipher_combo: CipherCombo,
    /// Longest ciphertext name (with `.c9r`) that is not stored under its hash.
    pub shortening_threshold: u32,
    /// Cost of trying a password.
    pub scrypt: ScryptParams,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions {
            cipher_combo: CipherCombo::SivGcm,
            shortening_threshold: DEFAULT_SHORTENING_THRESHOLD,
            scrypt: ScryptParams::default(),
        }
    }
}

/// An unlocked vault: what is needed to open it.
pub struct Unlocked {
    /// The keys.
    pub masterkey: Masterkey,
    /// The verified configuration.
    pub config: VaultConfig,
}

fn format_error(e: FormatError, op: &'static str, file: &str) -> FsError {
    let kind = match &e {
        FormatError::WrongPassword => ErrorKind::WrongPassword,
        e if e.is_corruption() => ErrorKind::Corrupt,
        FormatError::Random { .. } | FormatError::Crypto { .. } => ErrorKind::Io,
        _ => ErrorKind::NotSupported,
    };
    FsError::new(kind).on(op, file).because(e)
}

/// Makes a vault in the folder `root`, which must not hold one. Other files there are left alone.
///
/// # Errors
/// `Exists` if a vault is there already, or the remains of one; what the host says.
pub fn create(root: &dyn HostDir, password: &str, options: &CreateOptions) -> Result<()> {
    for name in [CONFIG_FILE_NAME, MASTERKEY_FILE_NAME, DATA_DIR] {
        match root.stat(Path::new(name)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(FsError::from(e).on("create", name)),
            Ok(_) => return Err(FsError::new(ErrorKind::Exists).on("create", name)),
        }
    }
    let broken = |e| format_error(e, "create", "the vault");
    let masterkey = Masterkey::generate().map_err(broken)?;
    let config = VaultConfig::new(options.cipher_combo, options.shortening_threshold);
    let key_file = MasterkeyFile::lock(&masterkey, password, options.scrypt).map_err(broken)?;
    let content = ContentCipher::new(&masterkey, options.cipher_combo).map_err(broken)?;
    let names = NameCipher::new(&masterkey);
    let hash = names.dir_hash(&DirId::root());
    let publish = |name: &str, content: &[u8], perm| {
        let new = NewFile { content, perm, owner: None, durable: true };
        root.publish(Path::new(name), &new).map(drop).map_err(|e| FsError::from(e).on("create", name))
    };
    // The configuration comes last: without it a folder is no vault, and a failed attempt can be seen and removed.
    for dir in [DATA_DIR.to_owned(), format!("{DATA_DIR}/{}", hash.prefix()), hash.path()] {
        root.make_dir(Path::new(&dir), 0o755, None).map_err(|e| FsError::from(e).on("create", dir))?;
    }
    let id = object::encode_dir_id(&content, &DirId::root()).map_err(broken)?;
    publish(&format!("{}/{DIRID_FILE}", hash.path()), &id, 0o600)?;
    publish(MASTERKEY_FILE_NAME, key_file.to_json().as_bytes(), 0o600)?;
    publish(CONFIG_FILE_NAME, config.encode(&masterkey).as_bytes(), 0o644)?;
    root.sync(SyncTarget::All).map_err(|e| FsError::from(e).on("create", "the vault"))
}

fn required(root: &dyn HostDir, name: &str, max: usize) -> Result<Vec<u8>> {
    match read_small(root, name, max)? {
        Some(bytes) => Ok(bytes),
        // Without its key file a vault is damaged, not absent.
        None => Err(FsError::new(ErrorKind::Corrupt).on("open", name).because("the file is missing")),
    }
}

/// What the vault says of itself, before any password: not verified.
///
/// # Errors
/// `NotFound` if there is no `vault.cryptomator`, nor a key file; `Corrupt`; `NotSupported` for formats before 8. What
/// the configuration alleges is not judged: see [`check_openable`].
pub fn info(root: &dyn HostDir) -> Result<UnverifiedConfig> {
    match read_small(root, CONFIG_FILE_NAME, crate::format::config::MAX_FILE_BYTES)? {
        Some(bytes) => VaultConfig::peek(&bytes).map_err(|e| format_error(e, "read", CONFIG_FILE_NAME)),
        None => Err(explain_missing_config(root)),
    }
}

/// A folder with a key file but no configuration is a vault of format 7 or older.
fn explain_missing_config(root: &dyn HostDir) -> FsError {
    match read_small(root, MASTERKEY_FILE_NAME, crate::format::masterkey::MAX_FILE_BYTES) {
        Ok(Some(bytes)) => match MasterkeyFile::parse(&bytes).ok().and_then(|f| f.legacy_format()) {
            Some(version) => FsError::new(ErrorKind::NotSupported)
                .on("open", CONFIG_FILE_NAME)
                .because(format!("the vault has format {version}; upgrade it to format 8 with Cryptomator first")),
            None => FsError::new(ErrorKind::Corrupt).on("open", CONFIG_FILE_NAME).because("the file is missing"),
        },
        _ => FsError::new(ErrorKind::NotFound).on("open", CONFIG_FILE_NAME).because("this folder is not a vault"),
    }
}

/// Whether the vault could be opened with the right password, as far as that can be told without it.
///
/// # Errors
/// As [`info`]; `NotSupported` for other formats, unknown ciphers and Hub vaults; `Corrupt` for a key file that is missing
/// or cannot be read.
pub fn check_openable(root: &dyn HostDir) -> Result<()> {
    let config = info(root)?;
    config.check_alleged().map_err(|e| format_error(e, "open", CONFIG_FILE_NAME))?;
    let key_name = config.key_id.masterkey_file_name().map_err(|e| format_error(e, "open", CONFIG_FILE_NAME))?;
    let bytes = required(root, key_name, crate::format::masterkey::MAX_FILE_BYTES)?;
    MasterkeyFile::parse(&bytes).map(drop).map_err(|e| format_error(e, "open", key_name))
}

/// Unlocks the vault: the key from the password, then the configuration, whose signature is checked with it.
///
/// # Errors
/// `WrongPassword`; as [`info`].
pub fn unlock(root: &dyn HostDir, password: &str) -> Result<Unlocked> {
    let unverified = info(root)?;
    let key_name =
        unverified.key_id.masterkey_file_name().map_err(|e| format_error(e, "open", CONFIG_FILE_NAME))?.to_owned();
    let bytes = required(root, &key_name, crate::format::masterkey::MAX_FILE_BYTES)?;
    let failed = |e| format_error(e, "unlock", &key_name);
    let masterkey = MasterkeyFile::parse(&bytes).map_err(failed)?.unlock(password).map_err(failed)?;
    let config = unverified.verify(&masterkey).map_err(|e| format_error(e, "verify", CONFIG_FILE_NAME))?;
    Ok(Unlocked { masterkey, config })
}

/// Changes the password. The old key file is kept beside the new one; returns its name.
///
/// # Errors
/// As [`unlock`]; on any error the old key file is still in force.
pub fn change_password(root: &dyn HostDir, old: &str, new: &str, scrypt: ScryptParams) -> Result<String> {
    let unverified = info(root)?;
    let key_name =
        unverified.key_id.masterkey_file_name().map_err(|e| format_error(e, "open", CONFIG_FILE_NAME))?.to_owned();
    let bytes = required(root, &key_name, crate::format::masterkey::MAX_FILE_BYTES)?;
    let failed = |e| format_error(e, "change the password of", &key_name);
    let file = MasterkeyFile::parse(&bytes).map_err(failed)?;
    let masterkey = file.unlock(old).map_err(failed)?;
    unverified.verify(&masterkey).map_err(|e| format_error(e, "verify", CONFIG_FILE_NAME))?;
    let changed = file.relock(&masterkey, new, scrypt).map_err(failed)?;
    let hash = digest::digest(&digest::SHA256, &bytes);
    let tag: String = hash.as_ref().iter().take(4).map(|b| format!("{b:02X}")).collect();
    let backup = format!("{key_name}.{tag}.bkup");
    let write = |name: &str, content: &[u8]| {
        let new = NewFile { content, perm: 0o600, owner: None, durable: true };
        match root.publish(Path::new(name), &new) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop).map_err(|e| FsError::from(e).on("write", name)),
        }
    };
    write(&backup, &bytes)?;
    let fresh = format!("{key_name}.{}.tmp", uuid::Uuid::new_v4().simple());
    write(&fresh, changed.to_json().as_bytes())?;
    root.rename(Path::new(&fresh), Path::new(&key_name), RenameFlags::empty())
        .and_then(|()| root.sync(SyncTarget::Dir(Path::new(""))))
        .map_err(|e| FsError::from(e).on("write", &key_name))?;
    Ok(backup)
}
