//! Opening an index: a file, which may be encrypted, or the mount of a source that keeps one.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::FsError;
use adit_index::layout::{self, HEADER_LEN_MAX_BYTES};
use adit_index::scan::{Origin, SourceKind};
use adit_index::sealed::{self, SealKey, format};
use adit_index::{Progress as Step, Segment};
use adit_mount::control::{ControlError, MountInfo, Registry};
use adit_vault::{Unlocked, index_key};

use super::vault;
use crate::args::index::IndexSecretArgs;
use crate::asked::Asked;
use crate::commands::mount::answered;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::source::{self, Source};

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
    /// Of one that was made of the index of a mount: how much that could not read.
    pub unread: u64,
    /// Likewise: whether the mount keeps times in microseconds.
    pub is_in_micros: bool,
}

impl IndexFile {
    /// Where it comes from; `None` if something else than `adit index` made it.
    pub fn origin(&self) -> Option<Origin> {
        Origin::decode(self.segment.identity())
    }

    /// How exact its times are, in nanoseconds: manifests have microseconds.
    pub fn time_step_ns(&self) -> u32 {
        let is_manifest = self.origin().is_some_and(|origin| origin.kind == SourceKind::Manifest);
        if self.is_in_micros || is_manifest { 1000 } else { 1 }
    }

    /// How much could not be read when it was made.
    pub fn unreadable(&self) -> u64 {
        self.origin().map_or(self.unread, |origin| origin.unreadable.into())
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

/// What a file is, by how it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Head {
    /// An index, whole or damaged.
    Index,
    /// One that is encrypted.
    Sealed,
    /// It has no bytes at all.
    Empty,
    /// Something else, or no file.
    Other,
}

impl Head {
    /// Looks at the file `path`. Of what is no file, a pipe for one, nothing is read.
    ///
    /// # Errors
    /// The host's.
    pub fn of(path: &Path) -> io::Result<Head> {
        let file = File::options().read(true).custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(Head::Other);
        }
        let mut front = Vec::new();
        file.take(HEADER_LEN_MAX_BYTES as u64).read_to_end(&mut front)?;
        Ok(Head::of_bytes(&front))
    }

    fn of_bytes(front: &[u8]) -> Head {
        if front.is_empty() {
            return Head::Empty;
        }
        let Some((begin, rest)) = front.split_at_checked(layout::MAGIC.len()) else { return Head::Other };
        for (magic, head) in [(layout::MAGIC, Head::Index), (format::MAGIC, Head::Sealed)] {
            // Also one whose first bytes alone are wrong, which the rest of its header proves.
            if begin == magic || is_header(head, &[&magic, rest].concat()) {
                return head;
            }
        }
        Head::Other
    }
}

fn is_header(head: Head, front: &[u8]) -> bool {
    match head {
        Head::Sealed => format::Header::decode(front).is_ok(),
        _ => layout::Header::decode(front).is_ok(),
    }
}

/// A failure for what is there and is no index.
fn no_index(path: &Path) -> Failure {
    let shown = path.display();
    let what = match Source::recognise(path.as_os_str()) {
        _ if path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0) => "it is empty".to_owned(),
        _ if !path.is_file() => "it is no file".to_owned(),
        Ok(source) => format!("it is a {}", source.kind()),
        Err(_) => "it does not begin as an index does".to_owned(),
    };
    let failure = Failure::new(Code::NotSupported, format!("{shown}: not an index: {what}"));
    match what.starts_with("it is a ") {
        true => failure.hint(format!("make an index of it: adit index build {shown} -o FILE")),
        false => failure.hint("`adit index build SOURCE -o FILE` makes one"),
    }
}

/// What `name` names: an index, or where a source is mounted.
///
/// # Errors
/// `NotAMount` for a folder on which nothing is mounted; as [`file`].
pub fn indexed(name: &Path, secret: &IndexSecretArgs, quiet: bool) -> Result<Indexed> {
    if !name.is_dir() {
        return file(name, secret, quiet).map(Indexed::File);
    }
    match Registry::of_this_user().find(name) {
        Ok(mount) => Ok(Indexed::Mount(Box::new(mount))),
        Err(ControlError::NotAMount(_)) => Err(only_a_folder(name)),
        Err(e) => Err(answered(&e)),
    }
}

fn only_a_folder(name: &Path) -> Failure {
    let what = format!("{}: a folder, and neither an index nor a mountpoint", name.display());
    let hint = match Asked::around(name, true) {
        Ok(Some(asked)) => format!("it lies in a mount: name that, {}", asked.mountpoint().display()),
        _ => format!("make an index of it: adit index build {} -o FILE", name.display()),
    };
    Failure::new(Code::NotAMount, what).hint(hint)
}

/// The index in a file, and nothing that a mount keeps.
///
/// # Errors
/// `NotSupported` for a mountpoint; as [`indexed`].
pub fn only_file(name: &Path, secret: &IndexSecretArgs, quiet: bool) -> Result<IndexFile> {
    match indexed(name, secret, quiet)? {
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
pub fn file(path: &Path, secret: &IndexSecretArgs, quiet: bool) -> Result<IndexFile> {
    Opener::new(secret, quiet).open(path)
}

/// Opens indexes, several of one vault with one password.
pub struct Opener<'a> {
    secret: &'a IndexSecretArgs,
    key: Option<SealKey>,
    without_tables: bool,
    /// Whether nothing is told of how far it is.
    quiet: bool,
}

impl<'a> Opener<'a> {
    /// Asks for the password when it is needed.
    pub fn new(secret: &'a IndexSecretArgs, quiet: bool) -> Opener<'a> {
        Opener { secret, key: None, without_tables: false, quiet }
    }

    /// Leaves out what only questions need, where it would be in memory.
    #[must_use]
    pub fn without_tables(self) -> Opener<'a> {
        Opener { without_tables: true, ..self }
    }

    /// The index in the file `path`.
    ///
    /// # Errors
    /// `NotSupported` for what is no index, `NotAMount` for a folder; usage, if it is encrypted and no vault was named; `WrongPassword`;
    /// `Corrupt`; what the host says.
    pub fn open(&mut self, path: &Path) -> Result<IndexFile> {
        let meta = path.metadata().map_err(|e| Failure::io(path.display(), &e))?;
        if meta.is_dir() {
            return Err(only_a_folder(path));
        }
        let head = Head::of(path).map_err(|e| Failure::io(path.display(), &e))?;
        if matches!(head, Head::Empty | Head::Other) {
            return Err(no_index(path));
        }
        let is_sealed = head == Head::Sealed;
        let segment = if is_sealed {
            let (without_tables, quiet) = (self.without_tables, self.quiet);
            // Asked for before anything is shown.
            let key = self.key(path)?;
            let mut progress = Progress::new("open index", quiet);
            let mut report = |step| progress.step(step);
            let opened = match without_tables {
                true => sealed::open_without_tables(path, key, &mut report),
                false => sealed::open(path, key, &mut report),
            };
            progress.finish()?;
            opened
        } else {
            Segment::open(path)
        };
        let segment = Arc::new(segment.map_err(|e| failure(path, &e))?);
        Ok(IndexFile {
            path: path.to_owned(),
            segment,
            is_sealed,
            file_len: meta.len(),
            unread: 0,
            is_in_micros: false,
        })
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

#[cfg(test)]
mod tests {
    use adit_index::layout::Header;

    use super::*;

    #[test]
    fn damage_at_its_very_beginning_does_not_make_an_index_something_else() {
        let header = Header { nodes: 1, ..Header::default() }.encode();
        for len in 8..header.len() {
            assert_eq!(Head::of_bytes(&header[..len]), Head::Index, "{len}");
        }
        // So little may be anybody's, and must not be replaced.
        assert_eq!(Head::of_bytes(&header[..7]), Head::Other);
        let key = SealKey::new([3; 32].into());
        let sealed = format::Header::with_salt(&key, 9, [1; 24]).unwrap().0.encode();
        assert_eq!(Head::of_bytes(&sealed), Head::Sealed);
        for at in 0..8 {
            let mut harmed = sealed;
            harmed[at] = !harmed[at];
            assert_eq!(Head::of_bytes(&harmed), Head::Sealed, "{at}");
        }
        assert_eq!(Head::of_bytes(b""), Head::Empty);
        for other in [&b"A"[..], b"text", b"ADITVOL1", b"{\"a\": 1}", &[0; 4096]] {
            assert_eq!(Head::of_bytes(other), Head::Other);
        }
    }
}
