//! Opening a source: from what was named, and a password where one is needed, to a store.

pub mod index;
pub mod manifest;
pub mod mounted;
pub mod turn;
pub mod vault;
pub mod volume;
mod watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::FsError;
use adit_core::store::Store;
use adit_core::types::Ino;
use adit_dir::DirStore;
use adit_index::Segment;
use adit_mount::control::Registry;
use adit_mount::mountpoint;
use adit_volume::tree::MAIN;
use adit_volume::{SnapshotsDir, Volume};

use self::mounted::Reached;
use self::watched::Watched;
use crate::args::low::{GlobalArgs, SourceArgs};
use crate::args::manifest::CasArgs;
use crate::exit_code::Code;
use crate::failure::{Advice, Failure, Result};
use crate::secrets::Origin;
use crate::source::{Source, is_url};
use crate::{live, state_dir};

/// What to do with a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Read it, after recovering what a dead process left of it, where that is possible.
    Read,
    /// Change it.
    Write,
    /// Change it if that is possible, else only read it (a mount).
    WriteIfPossible,
    /// Repair it: change it while no other process has it open.
    Alone,
}

/// A source that is open, for as long as the value lives.
pub struct Opened {
    /// Its store.
    pub store: Arc<dyn Store>,
    /// Whether nothing can be changed: asked for, or because that is impossible.
    pub read_only: bool,
    /// What to advise about damage in it.
    pub advice: Advice,
    /// What keeps it ours. It goes after the store: fields drop in order.
    held: Held,
}

/// What keeps a source ours.
enum Held {
    Vault {
        _claim: vault::Claim,
    },
    Volume {
        _volume: Volume,
    },
    Mounted {
        _private: Option<mounted::Private>,
    },
    /// Of a manifest, its index.
    Manifest(Arc<Segment>),
    Nothing,
}

impl Opened {
    /// Makes everything durable.
    pub fn sync_all(&self) -> Result<(), FsError> {
        self.store.sync_all()?;
        match self.held {
            // The kernel hands over what it holds, and tells the process of the mount no more than that.
            Held::Mounted { .. } => self.store.sync_dir(Ino::ROOT),
            _ => Ok(()),
        }
    }

    /// A folder of this machine. If it lies on a mount of this user, that says of errors whether they are damage.
    fn of_dir(path: &Path, read_only: bool) -> Result<Opened> {
        let advice = Advice::about_disks(&[path]);
        let dir = dir(path, read_only)?;
        let device = device_of(&dir);
        let is_ours = mountpoint::ours().iter().any(|entry| entry.device == device);
        let mount = is_ours.then(|| Registry::of_this_user().list().into_iter().find(|mount| mount.device == device));
        let store: Arc<dyn Store> = match mount.flatten() {
            Some(mount) => Arc::new(Watched::new(dir, &mount)),
            None => dir,
        };
        Ok(Opened { store, read_only, advice, held: Held::Nothing })
    }

    /// The index of the manifest that it is, if it is one: which of its names are not those of a host.
    pub fn segment(&self) -> Option<&Segment> {
        match &self.held {
            Held::Manifest(segment) => Some(segment),
            _ => None,
        }
    }

    /// What an error that was met in it is to the user.
    pub fn failure(&self, subject: impl std::fmt::Display, error: &FsError) -> Failure {
        self.advice.failure(subject, error)
    }
}

/// Opens the source of a mountless verb; asks for its password where it has one. The path is its place, absolute.
///
/// # Errors
/// Those of the kind of source; `Busy` if others have it in a way that does not allow for `purpose`.
pub fn source(args: &SourceArgs, global: &GlobalArgs, purpose: Purpose) -> Result<(PathBuf, Opened)> {
    let source = Source::recognise(&args.source)?;
    let data = args.data.data.as_deref();
    no_data(&source, data)?;
    no_cas(&source, &args.cas)?;
    let opened = match &source {
        Source::Vault(dir) => {
            if purpose == Purpose::Write {
                live::respect_mounts(dir, false)?;
            }
            let (password, keys) = vault::password(dir, &args.password.origin())?;
            drop(password);
            let state = state_dir::locate(global.state_dir.as_deref());
            // The journal lies there.
            let disks: Vec<&Path> = std::iter::once(dir.as_path()).chain(state.as_deref().ok()).collect();
            let advice = Advice::about_disks(&disks);
            let opened: Opened = vault::unlocked(dir, &keys, state, purpose, false)?.into();
            Opened { advice, ..opened }
        }
        Source::Volume(file) => {
            no_password(&source, &args.password.origin())?;
            let advice = Advice::about_volume(file);
            match mounted::reach(file, data, purpose)? {
                Reached::Closed(volume) => {
                    if purpose == Purpose::Write {
                        volume::refuse_upper(file, &volume, MAIN)?;
                    }
                    let store = volume.live().map_err(|e| advice.failure(file.display(), &e))?;
                    let read_only = volume.is_read_only();
                    // As on a mount, with the volume's snapshots in it.
                    let store = SnapshotsDir::new(store);
                    Opened { store: Arc::new(store), read_only, advice, held: Held::Volume { _volume: volume } }
                }
                Reached::Mounted(store, private) => {
                    let read_only = store.capabilities().read_only;
                    Opened { store, read_only, advice, held: Held::Mounted { _private: private } }
                }
            }
        }
        Source::Manifest(file) => {
            no_password(&source, &args.password.origin())?;
            if purpose != Purpose::Read {
                let what = format!("{}: a manifest does not change", file.display());
                return Err(Failure::new(Code::NotSupported, what)
                    .hint("change the folder that it was made of, and make another one: adit manifest snapshot"));
            }
            // A verb ends with the last byte: what only then shows to be wrong would have been handed out.
            let cas = CasArgs { strict: true, ..manifest::settled(&args.cas, file)? };
            let store = manifest::store(file, &cas, global.quiet)?;
            let held = Held::Manifest(store.segment().clone());
            Opened { store: Arc::new(store), read_only: true, advice: Advice::about_manifests(), held }
        }
        Source::Dir(dir) => {
            no_password(&source, &args.password.origin())?;
            Opened::of_dir(dir, purpose == Purpose::Read)?
        }
    };
    Ok((source.into_path(), opened))
}

/// A folder of this machine as a store.
pub fn dir(path: &Path, read_only: bool) -> Result<Arc<DirStore>> {
    DirStore::open(path, read_only).map(Arc::new).map_err(|e| Failure::fs(path.display(), &e))
}

/// The device that a folder lies on, as the kernel's table of mounts has it.
fn device_of(dir: &DirStore) -> String {
    let dev = dir.identity().dev;
    format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// Refuses a password that would not be used.
pub fn no_password(source: &Source, origin: &Origin) -> Result<()> {
    match origin {
        Origin::Ask => Ok(()),
        _ if is_url(source.path()) => {
            let what = format!(
                "{}: only a manifest can be mounted or read from a URL, and that has no password",
                source.path().display()
            );
            Err(Failure::usage(what).hint(
                "to open a vault there, have its folder on this machine first, by another program's mount or copy; for a manifest, leave out the password",
            ))
        }
        _ => Err(Failure::usage(format!("{}: a {} has no password", source.path().display(), source.kind()))
            .hint("leave out the options that say where it is")),
    }
}

/// Refuses a data folder for what is no volume.
pub fn no_data(source: &Source, data: Option<&Path>) -> Result<()> {
    match (source, data) {
        (Source::Volume(_), _) | (_, None) => Ok(()),
        _ => Err(Failure::usage(format!("{}: a {} has no data folder", source.path().display(), source.kind()))
            .hint("leave out --data")),
    }
}

/// Refuses a store of content for what has its own.
pub fn no_cas(source: &Source, cas: &CasArgs) -> Result<()> {
    match (source, &cas.cas) {
        (Source::Manifest(_), _) | (_, None) => Ok(()),
        _ => Err(Failure::usage(format!("{}: a {} has its content itself", source.path().display(), source.kind()))
            .hint("leave out --cas")),
    }
}

impl From<vault::OpenVault> for Opened {
    fn from(open: vault::OpenVault) -> Opened {
        let held = Held::Vault { _claim: open.claim };
        Opened { store: open.store, read_only: open.read_only, advice: Advice::default(), held }
    }
}

/// Whether nobody wants remarks.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Makes remarks from here on, or none (`--quiet`).
pub fn be_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Says something to the person who waits, unless that one wants no remarks, and to the log of a mount, which that person will not
/// see.
pub fn remark(text: &str) {
    tracing::info!("{text}");
    if !QUIET.load(Ordering::Relaxed) {
        eprintln!("adit: {text}");
    }
}
