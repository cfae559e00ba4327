//! Trees of files: which to take, copying, listing, comparing.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workplace;

/// The tour copies crates from cargo's registry until it has this many files …
const ENOUGH_FILES: u64 = 3_000;
/// … or this many bytes.
const ENOUGH_BYTES: u64 = 64 << 20;

/// A folder to copy: where it lies, the name it gets, and which of its files (all of them if `None`).
pub struct Source {
    from: PathBuf,
    name: String,
    only: Option<Vec<PathBuf>>,
}

/// What was copied or compared.
#[derive(Default)]
pub struct Sum {
    /// Regular files and symlinks.
    pub files: u64,
    /// Folders.
    pub dirs: u64,
    /// Bytes of content.
    pub bytes: u64,
}

impl Sum {
    /// The content's size in MiB.
    pub fn mebibytes(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20)
    }

    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.dirs += other.dirs;
        self.bytes += other.bytes;
    }
}

/// This repository's own files and, where cargo keeps some, the sources of enough crates to make a tree of a few
/// thousand files.
pub fn sources() -> Result<Vec<Source>> {
    let root = workplace::root().to_path_buf();
    let own = own_files(&root)?;
    let mut sum = Sum { files: own.len() as u64, ..Sum::default() };
    let mut sources = vec![Source { from: root, name: "adit".to_owned(), only: Some(own) }];
    for from in registry_crates() {
        if sum.files >= ENOUGH_FILES || sum.bytes >= ENOUGH_BYTES {
            break;
        }
        sum.add(&total(&from)?);
        let name = from.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        sources.push(Source { from, name, only: None });
    }
    Ok(sources)
}

/// Folders of this repository that hold vaults and pieces of vaults. Some of their names and bytes are the same in every
/// vault, in the clear, so a search for them would prove nothing.
const VAULT_PIECES: [&str; 2] = ["fixtures", "fuzz/corpus"];

/// The files that git tracks; without git, everything but build output.
fn own_files(root: &Path) -> Result<Vec<PathBuf>> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let files: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            let text = String::from_utf8_lossy(&output.stdout);
            text.split('\0').map(PathBuf::from).collect()
        }
        _ => list(root)?.into_keys().collect(),
    };
    let left_out = |file: &PathBuf| {
        let built = ["target", ".git"];
        VAULT_PIECES.iter().chain(&built).any(|dir| file.starts_with(dir))
    };
    Ok(files.into_iter().filter(|file| !left_out(file) && root.join(file).is_file()).collect())
}

/// The unpacked crates in cargo's registry, in the order of their names.
fn registry_crates() -> Vec<PathBuf> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let folders_in = |dir: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    };
    let Some(home) = home else { return Vec::new() };
    let mut crates: Vec<PathBuf> = folders_in(home.join("registry/src")).into_iter().flat_map(folders_in).collect();
    crates.sort();
    crates
}

fn total(dir: &Path) -> Result<Sum> {
    let mut sum = Sum::default();
    for meta in list(dir)?.values() {
        if meta.is_dir() {
            sum.dirs += 1;
        } else {
            sum.files += 1;
            sum.bytes += meta.len();
        }
    }
    Ok(sum)
}

/// Copies every source into a folder of its name under `to`.
pub fn copy_all(sources: &[Source], to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for source in sources {
        let target = to.join(&source.name);
        match &source.only {
            None => {
                copy(&source.from, &target)?;
            }
            Some(files) => {
                for file in files {
                    let place = target.join(file);
                    fs::create_dir_all(place.parent().unwrap_or(&target))?;
                    copy_one(&source.from.join(file), &place)?;
                }
            }
        }
    }
    Ok(())
}

/// Copies the folder `from` to the new folder `to`, with modes and symlinks.
pub fn copy(from: &Path, to: &Path) -> Result<Sum> {
    let mut sum = Sum { dirs: 1, ..Sum::default() };
    fs::create_dir(to).with_context(|| format!("cannot create {}", to.display()))?;
    for (path, meta) in list(from)? {
        let target = to.join(&path);
        if meta.is_dir() {
            fs::create_dir(&target).with_context(|| format!("cannot create {}", target.display()))?;
            sum.dirs += 1;
        } else {
            sum.bytes += copy_one(&from.join(&path), &target)?;
            sum.files += 1;
        }
    }
    Ok(sum)
}

fn copy_one(from: &Path, to: &Path) -> Result<u64> {
    let copied = if from.is_symlink() {
        fs::read_link(from).and_then(|target| symlink(target, to)).map(|()| 0)
    } else {
        fs::copy(from, to)
    };
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Everything under `root` with its attributes, by path relative to it; a folder comes before what it holds.
pub fn list(root: &Path) -> Result<BTreeMap<PathBuf, fs::Metadata>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        let here = root.join(&dir);
        let entries = fs::read_dir(&here).with_context(|| format!("cannot list {}", here.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", here.display()))?;
            let path = dir.join(entry.file_name());
            let meta = entry.metadata().with_context(|| format!("cannot stat {}", entry.path().display()))?;
            if meta.is_dir() {
                todo.push(path.clone());
            }
            found.insert(path, meta);
        }
    }
    Ok(found)
}

/// What of the modes is to be the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// All of them.
    All,
    /// What a manifest keeps: the kind, and whether the owner may run a file.
    Runnable,
}

impl Modes {
    fn of(self, meta: &fs::Metadata) -> u32 {
        const KIND: u32 = 0o170_000;
        match self {
            Modes::All => meta.mode(),
            Modes::Runnable if meta.is_file() => meta.mode() & (KIND | 0o100),
            Modes::Runnable => meta.mode() & KIND,
        }
    }
}

/// Fails unless both trees hold the same names, kinds, modes, link targets and bytes.
pub fn compare(
    left: &Path,
    left_list: &BTreeMap<PathBuf, fs::Metadata>,
    right: &Path,
    right_list: &BTreeMap<PathBuf, fs::Metadata>,
    modes: Modes,
) -> Result<Sum> {
    for path in right_list.keys() {
        ensure!(left_list.contains_key(path), "{} should not exist", right.join(path).display());
    }
    let mut sum = Sum { dirs: 1, ..Sum::default() };
    for (path, meta) in left_list {
        let shown = right.join(path);
        let shown = shown.display();
        let other = right_list.get(path).with_context(|| format!("{shown} is missing"))?;
        let (mode, expected) = (modes.of(other), modes.of(meta));
        ensure!(mode == expected, "{shown} has mode {mode:o} instead of {expected:o}");
        if meta.is_dir() {
            sum.dirs += 1;
            continue;
        }
        sum.files += 1;
        sum.bytes += meta.len();
        ensure!(meta.len() == other.len(), "{shown} has {} bytes instead of {}", other.len(), meta.len());
        let same = if meta.is_symlink() {
            fs::read_link(left.join(path))? == fs::read_link(right.join(path))?
        } else {
            same_content(&left.join(path), &right.join(path))?
        };
        ensure!(same, "{shown} differs");
    }
    Ok(sum)
}

fn same_content(left: &Path, right: &Path) -> Result<bool> {
    let (mut left_file, mut right_file) = (File::open(left)?, File::open(right)?);
    let (mut left_block, mut right_block) = (vec![0; 128 << 10], vec![0; 128 << 10]);
    loop {
        let left_len = fill(&mut left_file, &mut left_block)?;
        let right_len =
            fill(&mut right_file, &mut right_block).with_context(|| format!("cannot read {}", right.display()))?;
        if left_block[..left_len] != right_block[..right_len] {
            return Ok(false);
        }
        if left_len == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the block is full or the file ends.
fn fill(file: &mut File, block: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < block.len() {
        match file.read(&mut block[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
