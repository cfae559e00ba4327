//! The search for plaintext in a vault's folder.
//!
//! Wanted are all names and, of each file, a sample from its middle. They are looked for in the names and in every
//! byte of every file. Names below [`NAME_LEN_MIN`] bytes are left out: in megabytes of random text they turn up by
//! chance. Left out as well is what the vault format itself writes in the clear, since the repository holds vaults among
//! its fixtures. The caller runs the same search over the tree in the clear, which shows that it would find them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};

use super::tree;

/// Shorter names are not searched for: 8 bytes turn up by chance once in 2^64 places of ciphertext, or 2^48 of base64.
const NAME_LEN_MIN: usize = KEY_LEN;
/// The length of a sample of content.
const SAMPLE_LEN: usize = 24;
/// Patterns are found by their first bytes.
const KEY_LEN: usize = 8;
/// The first three bytes of every pattern are marked in a bit map of this many bits.
const FIRST_BITS: usize = 1 << 24;

/// Names that the format writes in the clear into every vault.
const FORMAT_NAMES: [&str; 5] = [
    "dirid.c9r",
    "contents.c9r",
    "symlink.c9r",
    "name.c9s",
    "dir.c9r",
];

/// What is searched for.
pub struct Wanted {
    names: HashSet<Vec<u8>>,
    samples: HashSet<Vec<u8>>,
    by_key: HashMap<[u8; KEY_LEN], Vec<Vec<u8>>>,
    first: Vec<u64>,
}

/// What a search found.
#[derive(Default)]
pub struct Found {
    /// How many different names.
    pub names: usize,
    /// How many different samples.
    pub samples: usize,
    /// How many files were searched.
    pub files: usize,
    /// The first find, in words.
    pub first: Option<String>,
}

impl Wanted {
    /// Collects the names and samples of a tree in the clear.
    pub fn from_tree(root: &Path) -> Result<Self> {
        let (mut names, mut samples) = (HashSet::new(), HashSet::new());
        for (path, meta) in tree::list(root)? {
            let Some(name) = path.file_name() else {
                continue;
            };
            let lossy = name.to_string_lossy();
            if FORMAT_NAMES.contains(&lossy.as_ref()) || lossy.contains(".cryptomator") {
                continue;
            }
            if name.len() >= NAME_LEN_MIN {
                names.insert(name.as_bytes().to_vec());
            }
            if meta.is_file() {
                let content = fs::read(root.join(&path))?;
                samples.extend(sample(&content));
            }
        }
        let mut wanted = Self {
            names,
            samples,
            by_key: HashMap::new(),
            first: vec![0; FIRST_BITS / 64],
        };
        for pattern in wanted.names.iter().chain(&wanted.samples) {
            if let Some(key) = pattern.first_chunk::<KEY_LEN>() {
                wanted.by_key.entry(*key).or_default().push(pattern.clone());
                let bit = first_bit(pattern);
                wanted.first[bit / 64] |= 1 << (bit % 64);
            }
        }
        Ok(wanted)
    }

    /// How many names are searched for.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// How many samples are searched for.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// Searches all names and contents under `root`.
    pub fn search(&self, root: &Path) -> Result<Found> {
        let mut hits: HashSet<&[u8]> = HashSet::new();
        let mut found = Found::default();
        for (path, meta) in tree::list(root)? {
            let mut here: Vec<&[u8]> = Vec::new();
            if let Some(name) = path.file_name() {
                self.scan(name.as_bytes(), &mut here);
            }
            if meta.is_file() {
                let full = root.join(&path);
                let content =
                    fs::read(&full).with_context(|| format!("cannot read {}", full.display()))?;
                self.scan(&content, &mut here);
                found.files += 1;
            }
            if let (None, Some(pattern)) = (&found.first, here.first()) {
                found.first = Some(format!(
                    "{:?} in {}",
                    String::from_utf8_lossy(pattern),
                    path.display()
                ));
            }
            hits.extend(here);
        }
        found.names = hits.iter().filter(|hit| self.names.contains(**hit)).count();
        found.samples = hits
            .iter()
            .filter(|hit| self.samples.contains(**hit))
            .count();
        Ok(found)
    }

    fn scan<'a>(&'a self, text: &[u8], hits: &mut Vec<&'a [u8]>) {
        for (at, window) in text.windows(KEY_LEN).enumerate() {
            let bit = first_bit(window);
            if self.first[bit / 64] & (1 << (bit % 64)) == 0 {
                continue;
            }
            let Some(key) = window.first_chunk::<KEY_LEN>() else {
                continue;
            };
            for pattern in self.by_key.get(key).into_iter().flatten() {
                if text[at..].starts_with(pattern) {
                    hits.push(pattern);
                }
            }
        }
    }
}

/// The first three bytes as a number below [`FIRST_BITS`]; `bytes` holds at least [`KEY_LEN`].
fn first_bit(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2])
}

/// A piece from the middle of a file, unless it is too short or too uniform to prove anything.
fn sample(content: &[u8]) -> Option<Vec<u8>> {
    let start = content.len().checked_sub(SAMPLE_LEN)? / 2;
    let piece = &content[start..start + SAMPLE_LEN];
    let different: HashSet<&u8> = piece.iter().collect();
    (different.len() >= 6).then(|| piece.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_names_and_content_where_they_are_and_nowhere_else() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (clear, other) = (dir.path().join("clear"), dir.path().join("other"));
        fs::create_dir_all(clear.join("a-long-folder-name")).expect("writable");
        fs::create_dir(&other).expect("writable");
        let text = "The quick brown fox jumps over the lazy dog.";
        fs::write(clear.join("a-long-folder-name/x"), text).expect("writable");
        fs::write(other.join("unrelated"), [0x55; 4096]).expect("writable");

        let wanted = Wanted::from_tree(&clear).expect("readable");
        assert_eq!((wanted.names(), wanted.samples()), (1, 1));
        let found = wanted.search(&clear).expect("readable");
        assert_eq!((found.names, found.samples, found.files), (1, 1, 1));
        let found = wanted.search(&other).expect("readable");
        assert_eq!((found.names, found.samples, found.files), (0, 0, 1));
        assert!(found.first.is_none());

        // A leak in the middle of a file and one in a name.
        fs::write(other.join("leak"), format!("xx{text}yy")).expect("writable");
        fs::write(other.join("x-a-long-folder-name-y"), "").expect("writable");
        let found = wanted.search(&other).expect("readable");
        assert_eq!((found.names, found.samples), (1, 1));
    }
}
