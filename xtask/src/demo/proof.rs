//! The search for plaintext in a vault's folder.
//!
//! Wanted are all names and, of each file, a sample from its middle. They are looked for in the names and in every
//! byte of every file. Names below [`NAME_LEN_MIN`] bytes are left out: in megabytes of random text they turn up by
//! chance. The caller runs the same search over the tree in the clear, which shows that it would find them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aho_corasick::AhoCorasick;
use anyhow::{Context, Result};

use super::tree;

/// Shorter names are not searched for: 8 bytes turn up by chance once in 2^64 places of ciphertext, or 2^48 of base64.
const NAME_LEN_MIN: usize = 8;
/// The length of a sample of content.
const SAMPLE_LEN: usize = 24;
/// What every vault holds in the clear; a name that is part of one of these proves nothing.
const FORMAT_NAMES: [&str; 4] = ["masterkey.cryptomator", "vault.cryptomator", "contents.c9r", "symlink.c9r"];

/// What is searched for.
pub struct Wanted {
    /// The names, then the samples; no pattern twice.
    patterns: Vec<Vec<u8>>,
    names: usize,
    automaton: AhoCorasick,
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
            let in_every_vault =
                FORMAT_NAMES.iter().any(|fixed| name.to_str().is_some_and(|name| fixed.contains(name)));
            if name.len() >= NAME_LEN_MIN && !in_every_vault {
                names.insert(name.as_bytes().to_vec());
            }
            if meta.is_file() {
                let content = fs::read(root.join(&path))?;
                samples.extend(sample(&content));
            }
        }
        samples.retain(|sample| !names.contains(sample));
        let count = names.len();
        let patterns: Vec<Vec<u8>> = names.into_iter().chain(samples).collect();
        let automaton = AhoCorasick::new(&patterns).context("cannot build the search")?;
        Ok(Self { patterns, names: count, automaton })
    }

    /// How many names are searched for.
    pub fn names(&self) -> usize {
        self.names
    }

    /// How many samples are searched for.
    pub fn samples(&self) -> usize {
        self.patterns.len() - self.names
    }

    /// Searches all names and contents under `root`.
    pub fn search(&self, root: &Path) -> Result<Found> {
        let mut hits: HashSet<usize> = HashSet::new();
        let mut found = Found::default();
        for (path, meta) in tree::list(root)? {
            let mut here: Vec<usize> = Vec::new();
            if let Some(name) = path.file_name() {
                self.scan(name.as_bytes(), &mut here);
            }
            if meta.is_file() {
                let full = root.join(&path);
                let content = fs::read(&full).with_context(|| format!("cannot read {}", full.display()))?;
                self.scan(&content, &mut here);
                found.files += 1;
            }
            if let (None, Some(&hit)) = (&found.first, here.first()) {
                let pattern = String::from_utf8_lossy(&self.patterns[hit]);
                found.first = Some(format!("{pattern:?} in {}", path.display()));
            }
            hits.extend(here);
        }
        found.names = hits.iter().filter(|hit| **hit < self.names).count();
        found.samples = hits.len() - found.names;
        Ok(found)
    }

    fn scan(&self, text: &[u8], hits: &mut Vec<usize>) {
        // Overlapping, since one name may be part of another.
        let matches = self.automaton.find_overlapping_iter(text);
        hits.extend(matches.map(|found| found.pattern().as_usize()));
    }
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
