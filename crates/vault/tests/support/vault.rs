//! Vaults in scratch folders, opened through the store, and what can be seen in them.

// Each test file that includes this module uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::media::HostDir;
use adit_core::store::{NewNode, Store, StoreFile};
use adit_core::types::{Access, Attr, FileName, Ino, Kind};
use adit_core::{ErrorKind, FsError, Result};
use adit_media::HostDirectory;
use adit_vault::format::{CipherCombo, ScryptParams};
use adit_vault::{CreateOptions, OpenOptions, Unlocked, VaultStore};

/// The password of vaults that these tests make.
pub const PASSWORD: &str = "pässword of a test";
/// Bytes of cleartext in a chunk.
pub const CHUNK: usize = 32 << 10;
/// The threshold of the official library, and one at which nearly every name is long.
pub const THRESHOLDS: [u32; 2] = [220, 40];
/// Both cipher combinations.
pub const COMBOS: [CipherCombo; 2] = [CipherCombo::SivGcm, CipherCombo::SivCtrmac];

/// A vault in a folder, with its keys and a folder for its journal.
pub struct Vault {
    _temp: tempfile::TempDir,
    /// The vault's folder.
    pub path: PathBuf,
    /// The folder of its journal.
    pub state_path: PathBuf,
    keys: Unlocked,
}

impl Vault {
    /// Makes a vault.
    pub fn create(cipher_combo: CipherCombo, shortening_threshold: u32) -> Vault {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("vault");
        std::fs::create_dir(&path).unwrap();
        let scrypt = ScryptParams { cost: 1 << 10, block_size: 8 };
        let options = CreateOptions { cipher_combo, shortening_threshold, scrypt };
        adit_vault::create(&HostDirectory::open(&path).unwrap(), PASSWORD, &options).unwrap();
        Vault::at(temp, path, PASSWORD)
    }

    /// The vault that is in the folder `vault` of `temp`.
    pub fn adopt(temp: tempfile::TempDir, password: &str) -> Vault {
        let path = temp.path().join("vault");
        Vault::at(temp, path, password)
    }

    fn at(temp: tempfile::TempDir, path: PathBuf, password: &str) -> Vault {
        let state_path = temp.path().join("state");
        std::fs::create_dir(&state_path).unwrap();
        let keys = adit_vault::unlock(&HostDirectory::open(&path).unwrap(), password).unwrap();
        Vault { _temp: temp, path, state_path, keys }
    }

    /// The vault's folder as a medium.
    pub fn root(&self) -> Arc<dyn HostDir> {
        Arc::new(HostDirectory::open(&self.path).unwrap())
    }

    /// The journal's folder as a medium.
    pub fn state(&self) -> Arc<dyn HostDir> {
        Arc::new(HostDirectory::open(&self.state_path).unwrap())
    }

    /// What a check finds.
    pub fn check(&self) -> adit_vault::check::Report {
        let options = adit_vault::check::Options::default();
        adit_vault::check::check(&*self.root(), &self.keys, options, &mut |_| {}).unwrap()
    }

    /// Opens it to read and write.
    pub fn open(&self) -> VaultStore {
        self.open_on(self.root(), Some(self.state())).unwrap()
    }

    /// Opens it without a journal.
    pub fn open_read_only(&self) -> VaultStore {
        self.open_on(self.root(), None).unwrap()
    }

    /// Opens it on these media.
    pub fn open_on(&self, root: Arc<dyn HostDir>, state: Option<Arc<dyn HostDir>>) -> Result<VaultStore> {
        open_with(&self.keys, root, state)
    }
}

/// Opens a vault on these media; no thread makes checkpoints.
pub fn open_with(keys: &Unlocked, root: Arc<dyn HostDir>, state: Option<Arc<dyn HostDir>>) -> Result<VaultStore> {
    let (masterkey, config) = (&keys.masterkey, &keys.config);
    let options = OpenOptions { root, state, abandoned: Vec::new(), masterkey, config, background: false };
    VaultStore::open(options).map(|(store, _)| store)
}

/// A name.
pub fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

/// A new object of this process's user.
pub fn new(perm: u16) -> NewNode {
    NewNode { perm, umask: 0, caller: adit_testkit::own_caller() }
}

/// What is at the absolute path `path`.
pub fn find(store: &VaultStore, path: &str) -> Result<Attr> {
    let mut attr = store.getattr(Ino::ROOT)?;
    for part in path.split('/').filter(|p| !p.is_empty()) {
        attr = store.lookup(attr.ino, FileName::new(part.as_bytes())?)?;
    }
    Ok(attr)
}

/// The directory that holds `path`, and the last part of it.
pub fn parent_of<'p>(store: &VaultStore, path: &'p str) -> (Ino, FileName<'p>) {
    let (parent, last) = path.rsplit_once('/').unwrap();
    (find(store, parent).unwrap().ino, name(last))
}

/// Opens the file at `path`, which may be missing, for writing.
pub fn open_or_create(store: &VaultStore, path: &str) -> Arc<dyn StoreFile> {
    let (dir, last) = parent_of(store, path);
    match store.lookup(dir, last) {
        Ok(attr) => store.open(attr.ino, Access::Write).unwrap(),
        Err(e) if e.is_not_found() => store.create(dir, last, &new(0o644)).unwrap().1,
        Err(e) => panic!("{path}: {e}"),
    }
}

/// The whole content of a file, read in pieces of `step` bytes.
pub fn read_in_steps(store: &VaultStore, ino: Ino, step: usize) -> Result<Vec<u8>> {
    let file = store.open(ino, Access::Read)?;
    let len = file.len()? as usize;
    let mut bytes = vec![0; len + step];
    let mut done = 0;
    loop {
        let n = file.read_at(done as u64, &mut bytes[done..done + step])?;
        done += n;
        if n < step {
            break;
        }
    }
    assert_eq!(done, len, "the length is what can be read");
    bytes.truncate(done);
    Ok(bytes)
}

/// The whole content of a file.
pub fn read(store: &VaultStore, ino: Ino) -> Result<Vec<u8>> {
    read_in_steps(store, ino, 1 << 20)
}

/// The entries of a directory.
pub fn list(store: &VaultStore, dir: Ino) -> Result<Vec<(String, Kind, Ino)>> {
    let mut entries = Vec::new();
    store.read_dir(dir, 0, &mut |e| {
        let name = String::from_utf8(e.name.as_bytes().to_vec()).unwrap();
        entries.push((name, e.kind, e.ino));
        ControlFlow::Continue(())
    })?;
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

/// What is at one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A directory.
    Directory,
    /// A file, with the SHA-256 of its content in hex.
    File {
        /// Length in bytes.
        size: u64,
        /// Of the content.
        sha256: String,
    },
    /// A symbolic link, with its target.
    Symlink(String),
    /// Something that could not be read.
    Unreadable(ErrorKind),
}

/// All paths below the root, with what is there.
pub type Tree = BTreeMap<String, Seen>;

/// The SHA-256 of `bytes` in hex.
pub fn sha256(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes).as_ref())
}

/// Reads all of the vault. Whatever is listed must be found, and be what the listing says unless it is unreadable.
pub fn tree(store: &VaultStore) -> Tree {
    let mut tree = Tree::new();
    walk(store, Ino::ROOT, "", &mut tree, 0);
    tree
}

fn walk(store: &VaultStore, dir: Ino, at: &str, tree: &mut Tree, depth: usize) {
    assert!(depth < 60, "{at} is too deep: a loop?");
    for (entry, kind, ino) in list(store, dir).unwrap_or_else(|e| panic!("list {at}/: {e}")) {
        let path = format!("{at}/{entry}");
        let seen = look(store, dir, &entry, (kind, ino)).unwrap_or_else(|e| {
            assert_ne!(e.kind(), ErrorKind::NotFound, "{path} is listed");
            Seen::Unreadable(e.kind())
        });
        let below = match seen {
            Seen::Directory => Some(store.lookup(dir, name(&entry)).unwrap().ino),
            _ => None,
        };
        assert_eq!(tree.insert(path.clone(), seen), None, "{path} is listed twice");
        if let Some(below) = below {
            walk(store, below, &path, tree, depth + 1);
        }
    }
}

fn look(store: &VaultStore, dir: Ino, entry: &str, listed: (Kind, Ino)) -> Result<Seen> {
    let attr = store.lookup(dir, name(entry))?;
    assert_eq!(attr.kind, listed.0, "{entry}: lookup and listing agree");
    // A number that the host gave out again while we still know its old bearer becomes another one at the first lookup.
    let again = attr.ino.0 >= 1 << 50;
    assert!(attr.ino == listed.1 || again, "{entry}: lookup gives {:?}, the listing {:?}", attr.ino, listed.1);
    Ok(match attr.kind {
        Kind::Directory => list(store, attr.ino).map(|_| Seen::Directory)?,
        Kind::Symlink => {
            let target = store.readlink(attr.ino)?;
            assert_eq!(attr.size, target.len() as u64);
            Seen::Symlink(String::from_utf8(target).unwrap())
        }
        _ => {
            let bytes = read(store, attr.ino)?;
            assert_eq!(attr.size, bytes.len() as u64);
            Seen::File { size: attr.size, sha256: sha256(&bytes) }
        }
    })
}

/// The single file below `dir` whose name has this ending, `dirid.c9r` excepted.
pub fn only_file(dir: &Path, ending: &str) -> PathBuf {
    let mut found = Vec::new();
    files_below(dir, &mut found);
    found.retain(|p| p.to_str().unwrap().ends_with(ending) && !p.ends_with("dirid.c9r"));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Appends all files below `dir`.
pub fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files_below(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

/// What an error must be where bytes of the vault were changed.
pub fn assert_corrupt<T>(result: Result<T, FsError>, what: &str) {
    match result {
        Ok(_) => panic!("{what}: accepted"),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
            assert!(e.subject().is_some(), "{what}: names the path: {e}");
        }
    }
}
