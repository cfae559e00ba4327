//! Made-up trees of any size: the same paths in every run.
//!
//! Names are those of a project on a render farm: directories of about 24 files, up to seven levels deep, a word and a
//! number in every name. Paths have 60 to 100 bytes.

use std::path::Path;

use adit_core::types::Kind;
use adit_index::{Builder, Entry, Segment};
use anyhow::{Context, Result};

const WORDS: [&str; 16] = [
    "project",
    "assets",
    "textures",
    "render",
    "frames",
    "source",
    "include",
    "library",
    "module",
    "session",
    "archive",
    "camera",
    "lighting",
    "shader",
    "geometry",
    "composite",
];
const EXTENSIONS: [&str; 6] = ["exr", "png", "rs", "txt", "json", "tar.gz"];
/// So many files are in a directory on average.
const FILES_A_DIRECTORY: usize = 24;
const DEPTH_MAX: usize = 7;

/// A congruential generator: the same numbers everywhere.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) as usize * bound) >> 32
    }
}

/// Texts, one behind the other.
#[derive(Default)]
pub struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend(text);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[at]]
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// As lines.
    pub fn write_lines(&self, to: &Path) -> Result<()> {
        use std::io::Write;
        let file = std::fs::File::create(to).with_context(|| format!("cannot make {}", to.display()))?;
        let mut out = std::io::BufWriter::new(file);
        for text in self.iter() {
            out.write_all(text)?;
            out.write_all(b"\n")?;
        }
        Ok(out.flush()?)
    }
}

/// A tree.
pub struct Tree {
    /// Of its files: all different.
    pub paths: Texts,
}

impl Tree {
    /// Of so many files. Two of the same size are the same.
    pub fn new(files: usize) -> Tree {
        let mut numbers = Numbers::new(1);
        let mut dirs: Vec<(String, usize)> = Vec::new();
        for number in 0..files.div_ceil(FILES_A_DIRECTORY) {
            let word = WORDS[numbers.below(WORDS.len())];
            let above = match number {
                0..8 => None,
                _ => Some(&dirs[numbers.below(number)]).filter(|(_, depth)| *depth < DEPTH_MAX),
            };
            let (path, depth) = above.map_or((String::new(), 0), |(path, depth)| (format!("{path}/"), *depth));
            dirs.push((format!("{path}{word}_{number:05}"), depth + 1));
        }
        let mut paths = Texts::default();
        for number in 0..files {
            let (dir, _) = &dirs[numbers.below(dirs.len())];
            let (word, extension) = (WORDS[numbers.below(WORDS.len())], EXTENSIONS[numbers.below(EXTENSIONS.len())]);
            paths.push(format!("{dir}/{word}_{number:07}.{extension}").as_bytes());
        }
        Tree { paths }
    }

    /// What an index says of file number `at`; `changed` says another thing.
    pub fn entry(&self, at: usize, changed: bool) -> Entry<'_> {
        let number = at as u128 + if changed { 1 << 64 } else { 0 };
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes();
        Entry {
            path: self.paths.get(at),
            kind: Kind::File,
            perm: 0o644,
            size: 1000 + at as u64 % 100_000,
            mtime_ns: 1_700_000_000_000_000_000 + at as i64,
            hash: Some(hash),
            stamp: None,
            extra: &[],
        }
    }

    /// Writes an index of those of its files that `kept` says, each changed or not as `kept` says.
    pub fn index(&self, out: &Path, memory: u64, kept: impl Fn(usize) -> Option<bool>) -> Result<Segment> {
        let folder = out.parent().context("an index is in a folder")?;
        let mut builder = Builder::new(folder, memory);
        builder.set_tables(true);
        for at in 0..self.paths.len() {
            if let Some(changed) = kept(at) {
                builder.add(&self.entry(at, changed))?;
            }
        }
        builder.finish(out, &mut |_| std::ops::ControlFlow::Continue(()))?;
        Ok(Segment::open(out)?)
    }

    /// `count` of its paths, each other than the one before, in no order; or, with `missing`, as many that are not there and look the same.
    pub fn questions(&self, count: usize, missing: bool) -> Texts {
        let mut numbers = Numbers::new(7);
        let mut asked = Texts::default();
        let mut path = Vec::new();
        for _ in 0..count {
            path.clear();
            path.extend(self.paths.get(numbers.below(self.paths.len())));
            if missing && let Some(at) = path.iter().rposition(|byte| *byte == b'_') {
                // No name has a letter among its digits.
                path[at + 1 + numbers.below(7)] = b'a' + numbers.below(26) as u8;
            }
            asked.push(&path);
        }
        asked
    }
}
