//! The vault as a whole: making one, unlocking it, telling about it, changing its password.

use std::path::Path;

use adit_core::media::{HostDir, NewFile, SyncTarget};
use adit_core::types::{Attr, Caller, Kind, RenameFlags, SetAttr};
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
use crate::journal::owner_beside;
use crate::journal::recover::read_small;
use crate::perm;

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
/// What it makes is whose the folder is, where this process may choose. The configuration comes last, when all else is
/// durable: without it a folder is no vault. A failure before that takes back what was made; a crash may leave parts,
/// which [`info`] and the next attempt tell of.
///
/// # Errors
/// `Exists` if a vault is there already, or the remains of one; what the host says. If only the last sync fails, the
/// vault is there, and a power cut may take its configuration.
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
    let hash = NameCipher::new(&masterkey).dir_hash(&DirId::root());
    let id = object::encode_dir_id(&content, &DirId::root()).map_err(broken)?;
    let mut making = Making { root, owner: owner_beside(root, DATA_DIR), made: Vec::new() };
    let dirs = [DATA_DIR.to_owned(), format!("{DATA_DIR}/{}", hash.prefix()), hash.path()];
    let whole = dirs
        .iter()
        .try_for_each(|dir| making.folder(dir))
        .and_then(|()| making.file(&format!("{}/{DIRID_FILE}", hash.path()), &id, perm::file(root, 0)))
        .and_then(|()| making.file(MASTERKEY_FILE_NAME, key_file.to_json().as_bytes(), 0o600))
        .and_then(|()| dirs.iter().map(String::as_str).rev().chain([""]).try_for_each(|dir| sync_dir(root, dir)))
        .and_then(|()| making.file(CONFIG_FILE_NAME, config.encode(&masterkey).as_bytes(), perm::file(root, 0)));
    if let Err(e) = whole {
        making.take_back();
        return Err(e);
    }
    sync_dir(root, "")
}

fn sync_dir(root: &dyn HostDir, dir: &str) -> Result<()> {
    let shown = if dir.is_empty() { "the vault" } else { dir };
    root.sync(SyncTarget::Dir(Path::new(dir))).map_err(|e| FsError::from(e).on("sync", shown))
}

/// What [`create`] has made so far.
struct Making<'a> {
    root: &'a dyn HostDir,
    owner: Option<Caller>,
    made: Vec<(String, Kind)>,
}

impl Making<'_> {
    fn folder(&mut self, path: &str) -> Result<()> {
        let made = self.root.make_dir(Path::new(path), perm::folder(self.root, 0), self.owner);
        made.map_err(|e| FsError::from(e).on("create", path))?;
        self.made.push((path.to_owned(), Kind::Directory));
        Ok(())
    }

    fn file(&mut self, path: &str, content: &[u8], perm: u16) -> Result<()> {
        let new = NewFile { content, perm, owner: self.owner, durable: true };
        self.root.publish(Path::new(path), &new).map_err(|e| FsError::from(e).on("create", path))?;
        self.made.push((path.to_owned(), Kind::File));
        Ok(())
    }

    /// What cannot be removed stays; the error that led here is the one to report.
    fn take_back(self) {
        for (path, kind) in self.made.iter().rev() {
            let _ = self.root.remove(Path::new(path), *kind);
        }
    }
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
            None => FsError::new(ErrorKind::Corrupt)
                .on("open", CONFIG_FILE_NAME)
                .because("the file is missing; restore it from a backup (vault.cryptomator.*.bkup)"),
        },
        _ if root.stat(Path::new(DATA_DIR)).is_ok_and(|attr| attr.kind == Kind::Directory) => {
            FsError::new(ErrorKind::Corrupt)
                .on("open", CONFIG_FILE_NAME)
                .because(format!("the file is missing, and so is {MASTERKEY_FILE_NAME}; restore both from a backup"))
        }
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

/// Changes the password. The old key file is kept beside the new one, as a copy whose name is returned. Both have the
/// owner, group and permissions of the old one; where this process may not give them to its group, nobody but their owner
/// can read them.
///
/// # Errors
/// As [`unlock`], and what the host says: the old password still holds, and the copy of the key file may be there. Only if
/// the last sync fails, which the error says, it is the new one, and a power cut may bring the old one back.
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
    let like = root.stat(Path::new(&key_name)).map_err(|e| FsError::from(e).on("look up", &key_name))?;
    let hash = digest::digest(&digest::SHA256, &bytes);
    let tag: String = hash.as_ref().iter().take(4).map(|b| format!("{b:02X}")).collect();
    let backup = format!("{key_name}.{tag}.bkup");
    match write_like(root, &backup, &bytes, &like) {
        // An earlier attempt made it; its name tells most of what it holds.
        Err(e)
            if e.kind() == ErrorKind::Exists && read_small(root, &backup, bytes.len())?.is_some_and(|b| b == bytes) => {
        }
        other => other?,
    }
    let fresh = format!("{key_name}.{}.tmp", uuid::Uuid::new_v4().simple());
    // The new file's name is durable before it replaces the old one: nothing that a power cut leaves is without a key.
    let replaced = write_like(root, &fresh, changed.to_json().as_bytes(), &like)
        .and_then(|()| sync_dir(root, ""))
        .and_then(|()| {
            let renamed = root.rename(Path::new(&fresh), Path::new(&key_name), RenameFlags::empty());
            renamed.map_err(|e| FsError::from(e).on("write", &key_name))
        });
    if let Err(e) = replaced {
        let _ = root.remove(Path::new(&fresh), Kind::File);
        return Err(e);
    }
    root.sync(SyncTarget::Dir(Path::new(""))).map_err(|e| {
        let told = format!("{e}; the new password holds, but a power cut may bring the old one back");
        FsError::new(FsError::from(e).kind()).on("sync", &key_name).because(told)
    })?;
    Ok(backup)
}

/// Makes the file `name`, durable, with owner, group and permissions of `like`.
fn write_like(root: &dyn HostDir, name: &str, content: &[u8], like: &Attr) -> Result<()> {
    let failed = |e: std::io::Error| FsError::from(e).on("write", name);
    let owner = Some(Caller { uid: like.uid, gid: like.gid });
    // Until it has its group, nobody else reads it.
    let new = NewFile { content, perm: like.perm & 0o700, owner, durable: true };
    let file = root.publish(Path::new(name), &new).map_err(failed)?;
    let set = || {
        if file.stat()?.gid != like.gid {
            // Root gave it its group. Others may if they are in it.
            match file.set_attr(&SetAttr { gid: Some(like.gid), ..SetAttr::default() }) {
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    tracing::warn!("{name}: it cannot be given to group {}, which can read the old one", like.gid);
                    return Ok(());
                }
                other => other?,
            }
        }
        if like.perm & 0o777 != new.perm {
            file.set_attr(&SetAttr { perm: Some(like.perm & 0o777), ..SetAttr::default() })?;
            file.sync(false)?;
        }
        Ok(())
    };
    set().map_err(|e| {
        let _ = root.remove(Path::new(name), Kind::File);
        failed(e)
    })
}
