//! Opening a vault: from a folder and a password to a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::media::HostDir;
use adit_core::process::ProcessNumber;
use adit_core::{ErrorKind, FsError};
use adit_media::HostDirectory;
use adit_vault::{FolderLock, OpenOptions, RecoveryReport, StateDir, Unlocked, VaultStore, vault_id};

use super::{Purpose, remark};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::live;
use crate::secrets::{self, Origin, Password, Role};

/// How often a person may type the password.
const PASSWORD_TRIES: u32 = 3;
/// Why nothing can be changed where a journal cannot be begun.
const NO_JOURNAL: &str = "there is no place for a journal";
/// What to do there.
const NO_PLACE: &str = "changes need a place for their journal; name one with --state-dir DIR";

/// A vault that is open, with the lock on its journal's folder.
pub struct OpenVault {
    /// The store.
    pub store: Arc<VaultStore>,
    /// Whether nothing can be changed: asked for, or because there is no place for a journal.
    pub read_only: bool,
    /// Why nothing can be changed that was to be.
    pub why_read_only: Option<String>,
    /// To be held until the store is gone; fields drop in order.
    pub claim: Claim,
}

/// This process's part in a vault: nobody repairs it meanwhile, and its journal's folder is ours. Ends with the value.
pub struct Claim {
    /// None if the vault is only read, and no dead process left a journal.
    slot: Option<StateDir>,
    _folder: FolderLock,
    /// None if the vault is only read.
    _changes: Option<FolderLock>,
}

impl Claim {
    /// Whether dead processes left journals that are still there.
    pub fn has_journals(&self) -> bool {
        self.slot.as_ref().is_some_and(StateDir::has_journals)
    }
}

/// The password of the vault in `dir`, and the keys that it unlocks. A person at a terminal may try three times; nothing
/// is asked if no password could open the vault.
///
/// # Errors
/// As [`open`].
pub fn password(dir: &Path, origin: &Origin) -> Result<(Password, Unlocked)> {
    check_openable(dir)?;
    let subject = dir.display().to_string();
    let mut tries = if *origin == Origin::Ask { PASSWORD_TRIES } else { 1 };
    loop {
        let password = secrets::read(origin, Role::Current, &subject)?;
        tries -= 1;
        match unlock(dir, &password) {
            Ok(keys) => return Ok((password, keys)),
            Err(failure) if failure.code() == Code::WrongPassword && tries > 0 => {
                eprintln!("adit: {subject}: wrong password; try again");
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Whether the vault in `dir` could be opened with the right password.
///
/// # Errors
/// `NotSupported` for Hub vaults and other formats; `Corrupt` if its configuration or key file is missing or damaged.
pub fn check_openable(dir: &Path) -> Result<()> {
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    adit_vault::check_openable(&root).map_err(|e| locked_out(dir, &e))
}

/// An error of the files that open the vault. Where they are damaged no check can help, only copies of them.
pub fn locked_out(dir: &Path, error: &FsError) -> Failure {
    let failure = Failure::fs(dir.display(), error);
    let Some(file) = error.subject().filter(|_| error.kind() == ErrorKind::Corrupt) else { return failure };
    failure.hint(match newest_backup(dir, file) {
        Some(backup) => format!(
            "restore it from its copy: cp '{0}/{backup}' '{0}/{file}'; a key file opens with the password that was in \
             force when the copy was made",
            dir.display()
        ),
        None => format!(
            "restore {file} from a backup or from another device, where it may also lie as {file}.<8 hex digits>.bkup: without \
             it nobody can open the vault"
        ),
    })
}

/// The newest copy `FILE.*.bkup` that is there.
fn newest_backup(dir: &Path, file: &str) -> Option<String> {
    let names = std::fs::read_dir(dir).ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let copy = name.strip_prefix(file)?.strip_prefix('.')?.ends_with(".bkup");
        copy.then_some((entry.metadata().ok()?.modified().ok()?, name))
    });
    names.max().map(|(_, name)| name)
}

/// Opens the vault in `dir`, after recovering what dead processes left in its journals below `state`. If it is to be
/// changed, nobody else changes it if that is `exclusive`.
///
/// # Errors
/// `WrongPassword`; `NotSupported` for Hub vaults and other formats; `Corrupt`; `Busy` if others change it or nobody else
/// may; what the host says.
pub fn open(
    dir: &Path,
    password: Password,
    state: Result<PathBuf>,
    purpose: Purpose,
    exclusive: bool,
) -> Result<OpenVault> {
    let keys = unlock(dir, &password)?;
    // Wiped before the long life of a mount begins.
    drop(password);
    unlocked(dir, &keys, state, purpose, exclusive)
}

/// The keys of the vault in `dir`.
pub fn unlock(dir: &Path, password: &Password) -> Result<Unlocked> {
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(dir.display(), &e))?;
    adit_vault::unlock(&root, password.as_str()).map_err(|e| match locked_out(dir, &e) {
        failure if failure.code() == Code::WrongPassword && password.as_str().is_empty() => {
            failure.hint("the password that was given is empty")
        }
        failure => failure,
    })
}

/// Opens a vault whose keys are known; see [`open`].
pub fn unlocked(
    dir: &Path,
    keys: &Unlocked,
    state: Result<PathBuf>,
    purpose: Purpose,
    exclusive: bool,
) -> Result<OpenVault> {
    let mut claim = claim(dir, keys, state, purpose, exclusive)?;
    let (store, why_read_only) = match claimed(dir, keys, &claim) {
        Err(failure) => unrecovered(dir, keys, &mut claim, purpose, failure).map(|(store, why)| (store, Some(why)))?,
        Ok(store) => (store, None),
    };
    Ok(OpenVault { store: Arc::new(store), read_only: claim.slot.is_none(), why_read_only, claim })
}

/// The vault read-only, and why, if that works where its host cannot do what changes need, or its journal could not be
/// recovered or begun because of `failure`, and `purpose` can do with it.
fn unrecovered(
    dir: &Path,
    keys: &Unlocked,
    claim: &mut Claim,
    purpose: Purpose,
    failure: Failure,
) -> Result<(VaultStore, String)> {
    // Given back: whoever can recover the journal may do it while this process reads.
    let Some(slot) = claim.slot.take() else { return Err(failure) };
    let Ok(store) = claimed(dir, keys, claim) else { return Err(failure) };
    let reading = matches!(purpose, Purpose::Read | Purpose::WriteIfPossible);
    let place = slot.path.parent().unwrap_or(&slot.path).display();
    let (text, why, hint) = if slot.has_journals() {
        let left = "what a dead process left cannot be recovered now";
        let text = format!(
            "read-only, as it is, for {left}: {}; its journal stays in {place} for the next writable opening",
            failure.text()
        );
        (text, format!("{left}: {}", failure.message()), ways_out(&slot))
    } else if failure.code() == Code::NotSupported {
        let hint = "it can be read: `adit mount --read-only`, `adit ls`, `adit cat`, `adit get`";
        (format!("read-only, for {}", failure.text()), failure.message().to_owned(), hint.to_owned())
    } else {
        let text = format!("read-only, for {NO_JOURNAL}: {}", failure.text());
        (text, format!("{NO_JOURNAL}: {}", failure.message()), NO_PLACE.to_owned())
    };
    if !reading {
        return Err(failure.hint(hint));
    }
    remark(&format!("{}: {text}", dir.display()));
    Ok((store, why))
}

/// What to do about a journal that cannot be recovered.
fn ways_out(slot: &StateDir) -> String {
    let place = slot.path.parent().unwrap_or(&slot.path).display();
    format!(
        "what a dead process left cannot be recovered now; nothing is lost, its journal stays in {place}. See to the cause \
         (a full or failing disk, missing rights) and try again; until then `adit mount --read-only`, `adit ls` and \
         `adit cat` read the vault as it is. To give up what is in the journal, move that folder away"
    )
}

/// Opens the store for a repair, which is alone with the vault; see [`claimed`].
pub fn claimed_alone(dir: &Path, keys: &Unlocked, claim: &Claim) -> Result<VaultStore> {
    claimed(dir, keys, claim).map_err(|failure| match &claim.slot {
        Some(slot) if slot.has_journals() => failure.hint(ways_out(slot)),
        _ => failure,
    })
}

/// Takes part in the vault in `dir`, without reading anything of it. Whoever takes part to change it keeps others from being
/// promised that nobody does, and the other way round (`exclusive`).
///
/// # Errors
/// `Busy` if it is being repaired, or is to be repaired while others have it open; if one process is to change it or does,
/// and nobody else may.
pub fn claim(dir: &Path, keys: &Unlocked, state: Result<PathBuf>, purpose: Purpose, exclusive: bool) -> Result<Claim> {
    let alone = purpose == Purpose::Alone;
    let to_change = |exclusive| match FolderLock::take_to_change(dir, exclusive) {
        Err(e) if e.kind() == ErrorKind::Busy => Err(being_changed(dir, exclusive)),
        other => other.map(Some).map_err(|e| Failure::fs(dir.display(), &e)),
    };
    // Before the slot is taken: what is in it is not to be recovered beside an exclusive mount.
    let changes = match purpose {
        Purpose::Write | Purpose::WriteIfPossible => to_change(exclusive)?,
        Purpose::Read | Purpose::Alone => None,
    };
    let folder = FolderLock::take(dir, alone);
    // Its neighbours say who they are.
    let mut slot = match &folder {
        Err(e) if e.kind() == ErrorKind::Busy && !alone => return Err(being_repaired(dir)),
        _ => slot(dir, keys, state, purpose)?,
    };
    // A reader that has a slot recovers what is in it.
    let changes = match changes {
        None if purpose == Purpose::Read && slot.is_some() => to_change(false).ok().flatten(),
        other => other,
    };
    if purpose == Purpose::Read && changes.is_none() {
        slot = None;
    }
    let others = slot.as_ref().map_or(&[][..], |slot| &slot.others);
    match folder {
        Err(e) if e.kind() == ErrorKind::Busy => Err(in_use(dir, others)),
        Ok(_) if alone && !others.is_empty() => Err(in_use(dir, others)),
        folder => Ok(Claim { slot, _folder: folder.map_err(|e| Failure::fs(dir.display(), &e))?, _changes: changes }),
    }
}

fn being_repaired(dir: &Path) -> Failure {
    Failure::new(Code::Busy, format!("{}: `adit vault check --repair` is at work on it", dir.display()))
        .hint("try again when it has ended")
}

/// Others change the vault, of which nobody may know (`exclusive`); or one does who is promised to be the only one.
fn being_changed(dir: &Path, exclusive: bool) -> Failure {
    // What is mounted says more.
    if let Err(failure) = live::respect_mounts(dir, exclusive) {
        return failure;
    }
    let who = if exclusive {
        "another process has it open to change it"
    } else {
        "another process has it mounted exclusively"
    };
    Failure::new(Code::Busy, format!("{}: {who}", dir.display()))
        .hint("end every mount of it (`adit mounts` lists yours) and every command that works in it, then try again")
}

/// The vault has users, some of which are known by their process.
fn in_use(dir: &Path, users: &[Option<ProcessNumber>]) -> Failure {
    let known: Vec<String> = users.iter().flatten().map(ProcessNumber::to_string).collect();
    let who = match known.len() {
        0 => "another process has it open".to_owned(),
        1 => format!("{} has it open", known.join("")),
        _ => format!("{} have it open", known.join(", ")),
    };
    Failure::new(Code::Busy, format!("{}: {who}", dir.display()))
        .hint("end every mount of it (`adit mounts` lists yours) and every command that works in it, then try again")
}

/// Whether another process of this machine has the vault in `dir` open, as far as the host can tell.
pub fn is_in_use(dir: &Path) -> bool {
    FolderLock::take(dir, true).is_err_and(|e| e.kind() == ErrorKind::Busy)
}

/// Opens the store in a vault that this process has claimed.
fn claimed(dir: &Path, keys: &Unlocked, claim: &Claim) -> Result<VaultStore> {
    let subject = &dir.display().to_string();
    let root = HostDirectory::open(dir).map_err(|e| Failure::io(subject, &e))?;
    let slot = claim.slot.as_ref();
    let folder = |path: &PathBuf| -> Result<Arc<dyn HostDir>> {
        let opened = HostDirectory::open(path).map_err(|e| Failure::io(path.display(), &e))?;
        Ok(Arc::new(opened))
    };
    let abandoned = slot.iter().flat_map(|slot| &slot.abandoned).map(folder).collect::<Result<Vec<_>>>()?;
    let options = OpenOptions {
        root: Arc::new(root),
        state: slot.map(|slot| folder(&slot.path)).transpose()?,
        abandoned,
        masterkey: &keys.masterkey,
        config: &keys.config,
        background: true,
    };
    let (store, report) = VaultStore::open(options).map_err(|e| Failure::fs(subject, &e))?;
    tell(&report, subject);
    Ok(store)
}

/// The folder for the journal; none to open the vault read-only.
fn slot(dir: &Path, keys: &Unlocked, state: Result<PathBuf>, purpose: Purpose) -> Result<Option<StateDir>> {
    let acquire = |base: PathBuf| {
        let slot = StateDir::acquire(&base, &vault_id(&keys.masterkey), dir);
        slot.inspect(|slot| say_strange(dir, &slot.strange)).map_err(|e| Failure::fs(base.display(), &e))
    };
    if purpose == Purpose::Read {
        // What cannot be recovered now can still be read as it is.
        let known = state.ok().filter(|base| base.join("vault").is_dir());
        return Ok(known.and_then(|base| acquire(base).ok()).filter(StateDir::has_journals));
    }
    match state.and_then(acquire) {
        Ok(slot) => Ok(Some(slot)),
        Err(failure) if purpose != Purpose::WriteIfPossible => Err(failure.hint(NO_PLACE)),
        Err(failure) => {
            let why = failure.text();
            remark(&format!("{}: read-only, for {NO_JOURNAL}: {why}; name one with --state-dir DIR", dir.display()));
            Ok(None)
        }
    }
}

/// Says which journals are left alone, for they are of another folder.
fn say_strange(dir: &Path, slots: &[PathBuf]) {
    for slot in slots {
        remark(&format!(
            "{0}: a process that died left changes to another folder, which was in this place before; they wait in {1}. Open \
             that folder, wherever it is now, and they are written back into it; if it is gone, remove {1}",
            dir.display(),
            slot.display()
        ));
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
        remark(&text);
    }
    if !report.moved_aside.is_empty() {
        let count = report.moved_aside.len();
        remark(&format!(
            "{subject}: {count} objects that never became whole were moved to adit-lost+found in the vault's folder; \
             the log names them"
        ));
    }
}
