//! Opening a vault: from a source and a password to a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::media::HostDir;
use adit_media::HostDirectory;
use adit_vault::{OpenOptions, RecoveryReport, StateDir, Unlocked, VaultStore, vault_id};

use crate::args::low::{GlobalArgs, SourceArgs};
use crate::failure::{Failure, Result};
use crate::secrets::{self, Password, Role};
use crate::{source, state_dir};

/// A vault that is open, with the lock on its journal's folder.
pub struct OpenVault {
    /// The store.
    pub store: Arc<VaultStore>,
    /// Whether nothing can be changed: asked for, or because there is no place for a journal.
    pub read_only: bool,
    /// Held until the store is gone; fields drop in order.
    _journal: Option<StateDir>,
}

/// What to do with the vault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Read it, after recovering what a dead process left in its journal, where that is possible.
    Read,
    /// Change it.
    Write,
    /// Change it if there is a place for a journal, else only read it (a mount).
    WriteIfPossible,
}

/// Opens the vault of a mountless verb: asks for the password, and opens with [`vault`].
pub fn source(args: &SourceArgs, global: &GlobalArgs, purpose: Purpose) -> Result<(PathBuf, OpenVault)> {
    let dir = source::vault_dir(&args.source)?;
    if purpose == Purpose::Write {
        respect_mounts(&dir, false)?;
    }
    let password = secrets::read(&args.password.origin(), Role::Current, &dir.display().to_string())?;
    let state = state_dir::locate(global.state_dir.as_deref());
    let open = vault(&dir, password, state, purpose)?;
    Ok((dir, open))
}

/// Opens the vault in `dir`, after recovering what dead processes left in its journals below `state`.
///
/// # Errors
/// `WrongPassword`; `NotSupported` for Hub vaults and other formats; `Corrupt`; what the host says.
pub fn vault(dir: &Path, password: Password, state: Result<PathBuf>, purpose: Purpose) -> Result<OpenVault> {
    let keys = unlock(dir, &password)?;
    // Wiped before the long life of a mount begins.
    drop(password);
    unlocked(dir, &keys, state, purpose)
}

/// The keys of the vault in `dir`.
pub fn unlock(dir: &Path, password: &Password) -> Result<Unlocked> {
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    adit_vault::unlock(&root, password.as_str()).map_err(|e| Failure::fs(dir.display(), &e))
}

/// Opens a vault whose keys are known; see [`vault`].
pub fn unlocked(dir: &Path, keys: &Unlocked, state: Result<PathBuf>, purpose: Purpose) -> Result<OpenVault> {
    let subject = &dir.display().to_string();
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(subject, &e))?;
    let slot = slot(dir, keys, state, purpose)?;
    let folder = |path: &PathBuf| -> Result<Arc<dyn HostDir>> {
        let opened = HostDirectory::open(path).map_err(|e| Failure::io(path.display(), &e))?;
        Ok(Arc::new(opened))
    };
    let abandoned = slot.iter().flat_map(|slot| &slot.abandoned).map(folder).collect::<Result<Vec<_>>>()?;
    let options = OpenOptions {
        root: Arc::new(root),
        state: slot.as_ref().map(|slot| folder(&slot.path)).transpose()?,
        abandoned,
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: slot.is_some(),
    };
    let (store, report) = VaultStore::open(options).map_err(|e| Failure::fs(subject, &e))?;
    tell(&report, subject);
    Ok(OpenVault { store: Arc::new(store), read_only: slot.is_none(), _journal: slot })
}

/// The folder for the journal; none to open the vault read-only.
fn slot(dir: &Path, keys: &Unlocked, state: Result<PathBuf>, purpose: Purpose) -> Result<Option<StateDir>> {
    let acquire = |base: PathBuf| {
        StateDir::acquire(&base, &vault_id(&keys.masterkey), dir).map_err(|e| Failure::fs(base.display(), &e))
    };
    if purpose == Purpose::Read {
        // What cannot be recovered now can still be read as it is.
        let known = state.ok().filter(|base| base.join("vault").is_dir());
        return Ok(known.and_then(|base| acquire(base).ok()).filter(StateDir::has_journals));
    }
    match state.and_then(acquire) {
        Ok(slot) => Ok(Some(slot)),
        Err(failure) if purpose == Purpose::Write => {
            Err(failure.hint("changes need a place for their journal; name one with --state-dir DIR"))
        }
        Err(failure) => {
            let subject = dir.display();
            let text = format!("{subject}: read-only, for there is no place for a journal: {}", failure.text());
            tracing::warn!("{text}");
            eprintln!("adit: {text}");
            Ok(None)
        }
    }
}

/// Says what recovery found, in the log; what a person must know, on standard error too.
fn tell(report: &RecoveryReport, subject: &str) {
    if *report == RecoveryReport::default() {
        return;
    }
    tracing::info!(?report, "recovered what a dead process left");
    for path in &report.conflicts {
        let text =
            format!("{subject}: another client changed {path} since; what was not yet written is in /lost+found");
        tracing::warn!("{text}");
        eprintln!("adit: {text}");
    }
    if !report.moved_aside.is_empty() {
        let count = report.moved_aside.len();
        tracing::warn!(
            "{subject}: {count} objects that never became whole were moved to adit-lost+found in the vault's folder"
        );
    }
}

/// Fails if a mount of this user has promised that nobody else changes the vault in `dir`, or if that is to be promised
/// (`exclusive`) while there is a mount.
pub fn respect_mounts(dir: &Path, exclusive: bool) -> Result<()> {
    let Some(mountpoint) = mounted_on(dir) else { return Ok(()) };
    let registry = adit_mount::control::Registry::of_this_user();
    let status = registry.call(Path::new(&mountpoint), "status", &serde_json::Value::Null);
    let promised = status.is_ok_and(|s| s["exclusive"] == true);
    if exclusive || promised {
        let why = if promised { "exclusively" } else { "already" };
        return Err(Failure::new(
            crate::exit_code::Code::Busy,
            format!("{}: mounted {why} on {mountpoint}", dir.display()),
        )
        .hint(format!("work in {mountpoint}, or unmount it first: adit umount {mountpoint}")));
    }
    Ok(())
}

/// Where a process of this user has the vault in `dir` mounted.
pub fn mounted_on(dir: &Path) -> Option<String> {
    let mounts = adit_mount::control::Registry::of_this_user().list();
    mounts.into_iter().find(|mount| Path::new(&mount.source) == dir).map(|mount| mount.mountpoint)
}
