//! Opening an index: a file, which may be encrypted, or the mount of a source that keeps one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::FsError;
use adit_index::scan::Origin;
use adit_index::sealed::{self, SealKey};
use adit_index::{Progress as Step, Segment};
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_vault::{Unlocked, index_key};

use super::vault;
use crate::args::index::IndexSecretArgs;
use crate::commands::mount::answered;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::source;

/// What answers questions about many paths.
pub enum Indexed {
    /// A file that `adit index build` made.
    File(IndexFile),
    /// The process of a mount, which keeps an index of what it serves.
    Mount(Box<MountInfo>),
}

/// An index that is open.
pub struct IndexFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub segment: Arc<Segment>,
    /// Whether it is encrypted on the disk.
    pub is_sealed: bool,
    /// Length of the file in bytes.
    pub file_len: u64,
}

impl IndexFile {
    /// Where it comes from; `None` if something else than `adit index` made it.
    pub fn origin(&self) -> Option<Origin> {
        Origin::decode(self.segment.identity())
    }

    /// What an error of it is to the user.
    pub fn failure(&self, error: &FsError) -> Failure {
        failure(&self.path, error)
    }
}

/// What an error of the index in `path` is to the user. It says itself what is to be done.
pub fn failure(path: &Path, error: &FsError) -> Failure {
    let subject = path.display().to_string();
    let message = match error.subject() {
        Some(own) if own == subject => error.to_string(),
        _ => format!("{subject}: {error}"),
    };
    Failure::new(Code::of(error.kind()), message)
}

/// What `name` names: an index, or where a source is mounted.
///
/// # Errors
/// `NotAMount` for a folder on which nothing is mounted; as [`file`].
pub fn indexed(name: &Path, secret: &IndexSecretArgs) -> Result<Indexed> {
    if !name.is_dir() {
        return file(name, secret).map(Indexed::File);
    }
    match Registry::of_this_user().find(name) {
        Ok(mount) => Ok(Indexed::Mount(Box::new(mount))),
        Err(ControlError::NotAMount(_)) => {
            let what = format!("{}: a folder, and neither an index nor a mountpoint", name.display());
            let hint = format!("make an index of it: adit index build {} -o FILE", name.display());
            Err(Failure::new(Code::NotAMount, what).hint(hint))
        }
        Err(e) => Err(answered(&e)),
    }
}

/// The index in a file, and nothing that a mount keeps.
///
/// # Errors
/// `NotSupported` for a mountpoint; as [`indexed`].
pub fn only_file(name: &Path, secret: &IndexSecretArgs) -> Result<IndexFile> {
    match indexed(name, secret)? {
        Indexed::File(index) => Ok(index),
        Indexed::Mount(mount) => {
            let what = format!("{}: a mountpoint, and no index", mount.mountpoint);
            let hint = format!("make an index of it: adit index build {} -o FILE", mount.mountpoint);
            Err(Failure::new(Code::NotSupported, what).hint(hint))
        }
    }
}

/// The index in the file `path`.
///
/// # Errors
/// As [`Opener::open`].
pub fn file(path: &Path, secret: &IndexSecretArgs) -> Result<IndexFile> {
    Opener::new(secret).open(path)
}

/// Opens indexes, several of one vault with one password.
pub struct Opener<'a> {
    secret: &'a IndexSecretArgs,
    key: Option<SealKey>,
}

impl<'a> Opener<'a> {
    /// Asks for the password when it is needed.
    pub fn new(secret: &'a IndexSecretArgs) -> Opener<'a> {
        Opener { secret, key: None }
    }

    /// The index in the file `path`.
    ///
    /// # Errors
    /// Usage, if it is encrypted and no vault was named; `WrongPassword`; `Corrupt`; what the host says.
    pub fn open(&mut self, path: &Path) -> Result<IndexFile> {
        let meta = path.metadata().map_err(|e| Failure::io(path.display(), &e))?;
        let is_sealed = sealed::is_sealed(path).map_err(|e| Failure::io(path.display(), &e))?;
        let segment = match is_sealed {
            true => sealed::open(path, self.key(path)?, &mut on),
            false => Segment::open(path),
        };
        let segment = Arc::new(segment.map_err(|e| failure(path, &e))?);
        Ok(IndexFile { path: path.to_owned(), segment, is_sealed, file_len: meta.len() })
    }

    fn key(&mut self, path: &Path) -> Result<&SealKey> {
        let key = match (self.key.take(), &self.secret.vault) {
            (Some(key), _) => key,
            (None, Some(dir)) => {
                let dir = source::vault_dir(dir.as_os_str())?;
                let (password, keys) = vault::password(&dir, &self.secret.password.origin())?;
                drop(password);
                seal_key(&keys)
            }
            (None, None) => {
                let what = format!("{}: encrypted: it is the index of a vault", path.display());
                return Err(Failure::usage(what).hint("name the vault with --vault DIR; its password opens the index"));
            }
        };
        Ok(self.key.insert(key))
    }
}

/// The key of a vault's indexes.
pub fn seal_key(keys: &Unlocked) -> SealKey {
    SealKey::new(index_key(&keys.masterkey))
}

/// Work that goes on until a signal comes.
pub fn on(_: Step) -> std::ops::ControlFlow<()> {
    match crate::interrupt::came() {
        true => std::ops::ControlFlow::Break(()),
        false => std::ops::ControlFlow::Continue(()),
    }
}
