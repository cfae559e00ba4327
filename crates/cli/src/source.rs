//! What a SOURCE is: recognised by a prefix or by what lies there. A kind that cannot be opened is named so that the
//! refusal is clear.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use adit_mount::control::{MountInfo, Registry};
use adit_volume::format::container::{self, Superblock};

use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::live;

/// The file that makes a folder a vault (format 7 and later).
const VAULT_FILE: &str = "vault.cryptomator";
/// The key file; alone, it belongs to a vault of format 6 or older.
const KEY_FILE: &str = "masterkey.cryptomator";
/// The folder with all content.
const DATA_DIR: &str = "d";
/// How much of a file is read, at its beginning and at its end, to tell what it is.
const HEAD_LEN_BYTES: u64 = 4096;

/// Kinds of source, by their prefix.
const PREFIXES: [(&str, Kind); 4] =
    [("vault:", Kind::Vault), ("manifest:", Kind::Manifest), ("volume:", Kind::Volume), ("dir:", Kind::Dir)];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Vault,
    Manifest,
    Volume,
    Dir,
}

/// What is opened, with its absolute path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The folder of a Cryptomator vault.
    Vault(PathBuf),
    /// The file of a volume.
    Volume(PathBuf),
    /// The file of a manifest of job attachments, or its URL.
    Manifest(PathBuf),
    /// Any other folder of this machine.
    Dir(PathBuf),
}

impl Source {
    /// What `source` names.
    ///
    /// # Errors
    /// `NotSupported` for kinds that cannot be opened yet; `Failure` if nothing is there, or it lies in a mount whose process says
    /// nothing.
    pub fn recognise(source: &OsStr) -> Result<Source> {
        live::expect_answers(Path::new(without_prefix(source)))?;
        let (kind, path) = match forced(source) {
            Some((kind, rest)) => (kind, Path::new(rest)),
            None => {
                let path = Path::new(source);
                (recognise(path)?, path)
            }
        };
        match kind {
            Kind::Vault => check_vault(path).map(Source::Vault),
            Kind::Manifest => check_manifest(path).map(Source::Manifest),
            Kind::Volume => check_volume(path).map(Source::Volume),
            Kind::Dir => check_dir(path).map(Source::Dir),
        }
    }

    /// Its kind, as `adit mounts` prints it.
    pub fn kind(&self) -> &'static str {
        match self {
            Source::Vault(_) => "vault",
            Source::Volume(_) => "volume",
            Source::Manifest(_) => "manifest",
            Source::Dir(_) => "dir",
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        match self {
            Source::Vault(path) | Source::Volume(path) | Source::Manifest(path) | Source::Dir(path) => path,
        }
    }

    /// Where it lies.
    pub fn into_path(self) -> PathBuf {
        match self {
            Source::Vault(path) | Source::Volume(path) | Source::Manifest(path) | Source::Dir(path) => path,
        }
    }
}

/// The manifest that `source` names, if it is one; in what is about manifests, a file that is nothing else is a broken one.
///
/// # Errors
/// As [`Source::recognise`].
pub fn manifest_if_one(source: &OsStr) -> Result<Option<PathBuf>> {
    match Source::recognise(source) {
        Ok(Source::Manifest(file)) => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(failure) if failure.code() == Code::NotSupported && Path::new(source).is_file() => {
            check_manifest(Path::new(source)).map(Some)
        }
        Err(failure) => Err(failure),
    }
}

/// The folder of the vault that `source` names.
///
/// # Errors
/// As [`Source::recognise`]; `NotSupported` if it is something else.
pub fn vault_dir(source: &OsStr) -> Result<PathBuf> {
    match Source::recognise(source)? {
        Source::Vault(dir) => Ok(dir),
        other => Err(not_a("vault", &other)),
    }
}

/// The file of the volume that `source` names.
///
/// # Errors
/// As [`Source::recognise`]; `NotSupported` if it is something else.
pub fn volume_file(source: &OsStr) -> Result<PathBuf> {
    match Source::recognise(source)? {
        Source::Volume(file) => Ok(file),
        other => Err(not_a("volume", &other)),
    }
}

/// Whether it is a URL, and not a path.
pub fn is_url(path: &Path) -> bool {
    path.as_os_str().as_bytes().windows(3).any(|w| w == b"://")
}

/// Refuses a URL with a user or password in it, before anything else shows it.
///
/// # Errors
/// Usage.
pub fn expect_no_secret(url: &OsStr) -> Result<()> {
    let text = url.to_string_lossy();
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(()) };
    let authority = rest.split('/').next().unwrap_or_default();
    // One with a `/` in a password is cut there; no host has a name like what is left.
    let is_cut = rest.contains('@') && !may_be_host(authority);
    if !authority.contains('@') && !is_cut {
        return Ok(());
    }
    let shown = rest.rsplit('@').next().unwrap_or_default();
    Err(Failure::usage(format!("{scheme}://…@{shown}: a user and a password do not belong into a URL, which others see")).hint(
        "for WebDAV: --webdav-user NAME and --webdav-password-file FILE, or ADIT_WEBDAV_USER and ADIT_WEBDAV_PASSWORD, or ADIT_WEBDAV_TOKEN",
    ))
}

/// Whether a colon, if there is one, is that of a port or of an address in brackets.
fn may_be_host(authority: &str) -> bool {
    let is_port = |(_, port): (&str, &str)| port.parse::<u16>().is_ok() || port.ends_with(']');
    authority.rsplit_once(':').is_none_or(is_port)
}

fn not_a(wanted: &str, found: &Source) -> Failure {
    if let Source::Dir(dir) = found {
        if let Ok(mount) = Registry::of_this_user().find(dir) {
            return not_there(wanted, dir, &mount);
        }
        let what = match wanted {
            "vault" => format!("{}: not a vault: it has no file {VAULT_FILE}", dir.display()),
            _ => format!("{}: a folder, and not a {wanted}", dir.display()),
        };
        return Failure::new(Code::NotSupported, what).hint(format!("`adit {wanted} init` makes one"));
    }
    let what = format!("{}: a {}, and not a {wanted}", found.path().display(), found.kind());
    Failure::new(Code::NotSupported, what)
        .hint(format!("`adit {} --help` lists what can be done with it", found.kind()))
}

/// A `wanted` cannot be opened where `mount` is: it lies elsewhere, if it is one at all.
fn not_there(wanted: &str, at: &Path, mount: &MountInfo) -> Failure {
    let (at, kind) = (at.display(), if mount.upper.is_some() { "volume" } else { &mount.kind });
    let (source, how) = match &mount.upper {
        Some(upper) => (upper, "an overlay is mounted there, whose changes are in the volume"),
        None => (&mount.source, "a mountpoint of"),
    };
    if kind != wanted {
        return Failure::new(Code::NotSupported, format!("{at}: a mountpoint of a {}, and not a {wanted}", mount.kind));
    }
    match kind {
        // Only with the file alone, and that is the process's.
        "volume" => Failure::new(Code::Busy, format!("{at}: {how} {source}"))
            .hint(format!("unmount it first, and name that: adit umount {at}; adit volume check {source}")),
        _ => Failure::new(Code::NotSupported, format!("{at}: {how} {source}")).hint(format!("name that: {source}")),
    }
}

/// The file of a volume, absolute. What opens it says more about one that is damaged.
fn check_volume(path: &Path) -> Result<PathBuf> {
    let file = path.canonicalize().map_err(|e| Failure::io(path.display(), &e))?;
    let meta = file.metadata().map_err(|e| Failure::io(path.display(), &e))?;
    if !meta.is_file() {
        return Err(Failure::new(Code::NotSupported, format!("{}: not a volume: it is not a file", path.display()))
            .hint("`adit volume init` makes one"));
    }
    Ok(file)
}

/// The file of a manifest, absolute; or its URL.
fn check_manifest(path: &Path) -> Result<PathBuf> {
    if is_url(path) {
        expect_no_secret(path.as_os_str())?;
        return Ok(path.to_owned());
    }
    let file = path.canonicalize().map_err(|e| Failure::io(path.display(), &e))?;
    match file.is_file() {
        true => Ok(file),
        false => Err(Failure::new(Code::NotSupported, format!("{}: not a manifest: it is not a file", path.display()))),
    }
}

/// A folder, absolute.
fn check_dir(path: &Path) -> Result<PathBuf> {
    let dir = path.canonicalize().map_err(|e| Failure::io(path.display(), &e))?;
    if !dir.is_dir() {
        return Err(Failure::new(Code::NotSupported, format!("{}: not a folder", path.display())));
    }
    Ok(dir)
}

/// `source` without the prefix that forces its kind.
pub fn without_prefix(source: &OsStr) -> &OsStr {
    forced(source).map_or(source, |(_, rest)| rest)
}

/// The kind that a prefix forces, and what comes after it.
fn forced(source: &OsStr) -> Option<(Kind, &OsStr)> {
    PREFIXES.iter().find_map(|(prefix, kind)| {
        let rest = source.as_bytes().strip_prefix(prefix.as_bytes())?;
        Some((*kind, OsStr::from_bytes(rest)))
    })
}

fn recognise(path: &Path) -> Result<Kind> {
    if is_url(path) {
        // A URL names a manifest or the root of a content store.
        return Ok(Kind::Manifest);
    }
    let meta = std::fs::metadata(path).map_err(|e| Failure::io(path.display(), &e))?;
    if meta.is_dir() {
        let vault = is_vault(path).map_err(|e| Failure::io(path.display(), &e))?;
        return Ok(if vault { Kind::Vault } else { Kind::Dir });
    }
    if matches!(path.file_name().and_then(OsStr::to_str), Some(VAULT_FILE | KEY_FILE)) {
        return Ok(Kind::Vault);
    }
    if !meta.is_file() {
        let what = format!("{}: not a source that adit knows: it is no file and no folder", path.display());
        return Err(Failure::new(Code::NotSupported, what));
    }
    let failed = |e| Failure::io(path.display(), &e);
    let head = head(path).map_err(failed)?;
    if head.starts_with(&container::MAGIC) || has_second_superblock(path).map_err(failed)? {
        return Ok(Kind::Volume);
    }
    if names_a_manifest(&head) || (begins_an_object(&head) && names_a_manifest(&tail(path).map_err(failed)?)) {
        return Ok(Kind::Manifest);
    }
    // One that was cut off, or lost all of it: what reads it says what is wrong.
    if begins_a_manifest(&head) || (head.is_empty() && has_name_of_manifest(path)) {
        return Ok(Kind::Manifest);
    }
    let why = if head.is_empty() { "it is empty" } else { "not a source that adit knows" };
    Err(Failure::new(Code::NotSupported, format!("{}: {why}", path.display())).hint(
        "a vault is a folder with a file vault.cryptomator; a volume is made by `adit volume init`, a manifest by \
               `adit manifest snapshot`; the prefix volume: or manifest: makes adit look at it as one",
    ))
}

/// Whether JSON that is an object begins so.
fn begins_an_object(head: &[u8]) -> bool {
    head.trim_ascii_start().starts_with(b"{")
}

/// Whether a manifest of job attachments names itself in the text: that of 2023 does so at its beginning, that of 2025 at its end.
fn names_a_manifest(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.contains("\"manifestVersion\"") || text.contains("\"specificationVersion\"")
}

/// Whether a text begins as those manifests do that name themselves later on.
fn begins_a_manifest(head: &[u8]) -> bool {
    const FIRST_KEYS: [&[u8]; 4] = [b"\"hashAlg\"", b"\"dirs\"", b"\"files\"", b"\"paths\""];
    let Some(rest) = head.trim_ascii_start().strip_prefix(b"{") else { return false };
    let rest = rest.trim_ascii_start();
    // Cut off within the first key, too.
    FIRST_KEYS.iter().any(|key| rest.starts_with(key) || (rest.len() > 1 && key.starts_with(rest)))
}

/// Whether a file has a name that manifests have.
fn has_name_of_manifest(path: &Path) -> bool {
    const ENDS: [&[u8]; 4] = [b".manifest", b".json", b"_input", b"_output"];
    path.file_name().is_some_and(|name| ENDS.iter().any(|end| name.as_bytes().ends_with(end)))
}

/// Whether the folder is a vault: by one of its two files or, where both are lost, by the folders that hold everything.
fn is_vault(dir: &Path) -> io::Result<bool> {
    for name in [VAULT_FILE, KEY_FILE] {
        match dir.join(name).symlink_metadata() {
            Ok(_) => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    let is_prefix =
        |name: &OsStr| name.len() == 2 && name.as_bytes().iter().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'));
    let mut entries = std::fs::read_dir(dir.join(DATA_DIR)).into_iter().flatten().flatten();
    Ok(entries.any(|entry| is_prefix(&entry.file_name())))
}

/// Whether the file is a volume whose first superblock is lost.
fn has_second_superblock(path: &Path) -> io::Result<bool> {
    let mut bytes = Vec::new();
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(container::SLOT_OFFSETS[1]))?;
    file.take(container::SLOT_LEN_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(Superblock::decode(&bytes).is_ok())
}

fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut tail = Vec::new();
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(HEAD_LEN_BYTES)))?;
    file.take(HEAD_LEN_BYTES).read_to_end(&mut tail)?;
    Ok(tail)
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_LEN_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

/// The folder of a vault, absolute; its files may be named instead of it.
fn check_vault(path: &Path) -> Result<PathBuf> {
    let named_by_file =
        matches!(path.file_name().and_then(OsStr::to_str), Some(VAULT_FILE | KEY_FILE)) && !path.is_dir();
    let dir = match path.parent() {
        Some(parent) if named_by_file && parent != Path::new("") => parent,
        _ if named_by_file => Path::new("."),
        _ => path,
    };
    // Absolute, because a daemon changes its folder.
    let dir = dir.canonicalize().map_err(|e| Failure::io(path.display(), &e))?;
    // Without its configuration it is an older vault or a damaged one; the vault's own code tells which.
    if is_vault(&dir).map_err(|e| Failure::io(path.display(), &e))? {
        return Ok(dir);
    }
    Err(Failure::new(Code::Failure, format!("{}: not a vault: it has no file {VAULT_FILE}", dir.display()))
        .hint("`adit vault init` makes one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> Code {
        vault_dir(OsStr::new(source)).unwrap_err().code()
    }

    #[test]
    fn a_vault_is_found_by_folder_file_and_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().canonicalize().unwrap();
        std::fs::write(dir.join(VAULT_FILE), "x").unwrap();
        std::fs::write(dir.join(KEY_FILE), "x").unwrap();
        let text = dir.to_str().unwrap();
        for source in
            [text.to_owned(), format!("vault:{text}"), format!("{text}/{VAULT_FILE}"), format!("{text}/{KEY_FILE}")]
        {
            assert_eq!(vault_dir(OsStr::new(&source)).unwrap(), dir, "{source}");
        }
    }

    #[test]
    fn other_kinds_are_named_and_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap();
        assert_eq!(code(dir), Code::NotSupported);
        assert_eq!(code(&format!("vault:{dir}")), Code::Failure);
        assert_eq!(code(&format!("dir:{dir}")), Code::NotSupported);
        let found = |source: String| Source::recognise(OsStr::new(&source));
        let real = folder.path().canonicalize().unwrap();
        assert_eq!(found(dir.to_owned()).unwrap(), Source::Dir(real.clone()));
        assert_eq!(found(format!("dir:{dir}")).unwrap(), Source::Dir(real));
        let lost = format!("{dir}/lost");
        std::fs::create_dir_all(format!("{lost}/d/AB")).unwrap();
        assert!(vault_dir(OsStr::new(&lost)).is_ok(), "a vault that has lost both files is still one");
        assert_eq!(code("s3://bucket/DeadlineCloud"), Code::NotSupported);
        assert_eq!(code(&format!("{dir}/none")), Code::Failure);
        assert_eq!(found(format!("dir:{lost}")).unwrap().kind(), "dir", "what the prefix says goes");
        let manifest = format!("{dir}/m");
        std::fs::write(&manifest, r#"{"hashAlg":"xxh128","manifestVersion":"2023-03-03","paths":[]}"#).unwrap();
        assert!(vault_dir(OsStr::new(&manifest)).unwrap_err().text().contains("a manifest, and not a vault"));
        let late = format!(r#"{{"dirs":[],"files":[{}],"specificationVersion":"relative-"}}"#, " ".repeat(9000));
        std::fs::write(&manifest, late).unwrap();
        assert_eq!(found(manifest.clone()).unwrap(), Source::Manifest(folder.path().canonicalize().unwrap().join("m")));
        let url = "s3://bucket/DeadlineCloud/Manifests/m";
        assert_eq!(found(url.to_owned()).unwrap(), Source::Manifest(url.into()));
        for cut in [r#"{"hashAl"#, r#"{"hashAlg":"xxh"#, "{ \"dirs\": [", r#"{"paths"#] {
            std::fs::write(&manifest, cut).unwrap();
            assert_eq!(found(manifest.clone()).unwrap().kind(), "manifest", "{cut}");
        }
        std::fs::write(format!("{dir}/m.json"), "").unwrap();
        assert_eq!(found(format!("{dir}/m.json")).unwrap().kind(), "manifest");
        for other in ["something", "", "{", "{\"name\":\"x\"}", "[\"dirs\"]"] {
            std::fs::write(&manifest, other).unwrap();
            assert_eq!(code(&manifest), Code::NotSupported, "{other}");
            assert!(manifest_if_one(OsStr::new(&manifest)).unwrap().is_some());
        }
        assert!(manifest_if_one(OsStr::new(dir)).unwrap().is_none());
        assert_eq!(found(format!("dir:{manifest}")).unwrap_err().code(), Code::NotSupported);
    }

    #[test]
    fn no_message_shows_a_secret() {
        for url in ["dav://u:secret@h/x", "davs://secret@h", "s3://a:secret@b/c", "dav://u:sec/secret@h/x"] {
            let failure = expect_no_secret(OsStr::new(url)).unwrap_err();
            assert_eq!(failure.code(), Code::Usage, "{url}");
            assert!(!failure.text().contains("sec") && failure.text().contains("--webdav-user"), "{}", failure.text());
            assert!(!Source::recognise(OsStr::new(url)).unwrap_err().text().contains("sec"), "{url}");
        }
        for url in ["dav://h:8080/a@b/x", "davs://[::1]:80/a@b", "davs://[::1]/a@b", "s3://bucket/a@b", "/a@b", "a:b@c"]
        {
            assert!(expect_no_secret(OsStr::new(url)).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_volume_is_found_by_its_first_bytes_and_by_its_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().canonicalize().unwrap().join("v");
        let text = file.to_str().unwrap();
        std::fs::write(&file, b"ADITVOL1 and more").unwrap();
        assert_eq!(Source::recognise(OsStr::new(text)).unwrap(), Source::Volume(file.clone()));
        assert_eq!(vault_dir(OsStr::new(text)).unwrap_err().code(), Code::NotSupported);
        let only_second = [vec![0; container::SLOT_OFFSETS[1] as usize], container::MAGIC.to_vec()].concat();
        std::fs::write(&file, only_second).unwrap();
        assert_eq!(code(text), Code::NotSupported, "the second one counts if it is whole");
        std::fs::write(&file, b"lost").unwrap();
        assert_eq!(code(text), Code::NotSupported);
        assert_eq!(volume_file(OsStr::new(&format!("volume:{text}"))).unwrap(), file);
        assert_eq!(code(&format!("volume:{}", folder.path().display())), Code::NotSupported);
    }
}
