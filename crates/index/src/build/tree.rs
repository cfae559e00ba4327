//! From sorted entries to nodes: implied directories are made, and what cannot be in one tree is refused.

use std::io;

use adit_core::error::{FsError, Result};
use adit_core::types::Kind;

use super::levels::Levels;
use super::record::Facts;
use super::run::shared_len;
use crate::error::Refusal;
use crate::layout::{DEPTH_MAX, NODES_MAX, PATH_LEN_MAX_BYTES};

/// What all nodes together come to.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Totals {
    pub nodes: u32,
    pub directories: u32,
    pub implied: u32,
    /// Bytes of all names, with the zero byte after each.
    pub names_len: u64,
    pub hashes: u32,
    pub stamps: u32,
    pub extras: u32,
    pub extra_len: u64,
}

/// The way from the root to the entry that came last.
pub(crate) struct Tree {
    levels: Levels,
    totals: Totals,
    /// What is said of a directory that no entry names.
    implied: Facts,
    /// The key of the last entry, and where each name in it ends.
    key: Vec<u8>,
    ends: Vec<usize>,
    last_is_dir: bool,
}

impl Tree {
    pub fn new(levels: Levels, implied: Facts) -> Tree {
        Tree { levels, totals: Totals::default(), implied, key: Vec::new(), ends: Vec::new(), last_is_dir: true }
    }

    /// Takes the next entry: its key is not before the one before.
    pub fn push(&mut self, key: &[u8], facts: &Facts) -> Result<(), PushError> {
        if self.totals.nodes == 0 {
            if key.is_empty() {
                return self.node(0, b"", facts, key);
            }
            let implied = self.implied;
            self.node(0, b"", &implied, key)?;
        }
        let mut depth = self.shared_names(key);
        let shared = depth.checked_sub(1).map_or(0, |last| self.ends[last]);
        if shared == key.len() {
            return Err(Refusal::Twice.of(&path_of(key)).into());
        }
        if depth == self.ends.len() && !self.last_is_dir {
            let file = path_of(&key[..shared]);
            return Err(Refusal::BelowFile { file }.of(&path_of(key)).into());
        }
        self.ends.truncate(depth);
        self.key.truncate(shared);
        // After what is shared comes a separator, but at the root.
        for name in key[shared + usize::from(shared > 0)..].split(|byte| *byte == 0) {
            depth += 1;
            self.key.extend((depth > 1).then_some(0));
            self.key.extend(name);
            self.ends.push(self.key.len());
            let facts = if self.key.len() == key.len() { *facts } else { self.implied };
            self.node(depth, name, &facts, key)?;
        }
        Ok(())
    }

    /// How many names `key` and the last one have in common.
    fn shared_names(&self, key: &[u8]) -> usize {
        let len = shared_len(&self.key, key);
        // The last name of what is shared may go on in one of them.
        let names = self.ends.partition_point(|end| *end < len);
        let whole = self.ends.get(names) == Some(&len) && key.get(len).is_none_or(|byte| *byte == 0);
        names + usize::from(whole)
    }

    fn node(&mut self, depth: usize, name: &[u8], facts: &Facts, key: &[u8]) -> Result<(), PushError> {
        let totals = &mut self.totals;
        if totals.nodes == NODES_MAX {
            return Err(Refusal::Full.of(&path_of(key)).into());
        }
        totals.nodes += 1;
        totals.names_len += name.len() as u64 + 1;
        totals.hashes += u32::from(facts.mode.has_hash());
        totals.stamps += u32::from(facts.has_stamp());
        totals.implied += u32::from(facts.mode.is_implied());
        if let Some(extra) = facts.extra {
            totals.extras += 1;
            totals.extra_len += u64::from(extra.len);
        }
        self.last_is_dir = facts.mode.kind() == Kind::Directory;
        totals.directories += u32::from(self.last_is_dir);
        Ok(self.levels.push(depth, name, facts)?)
    }

    /// No more entries come. A tree without any is a root.
    pub fn end(mut self) -> Result<(Levels, Totals), PushError> {
        if self.totals.nodes == 0 {
            let implied = self.implied;
            self.node(0, b"", &implied, b"")?;
        }
        self.levels.end();
        Ok((self.levels, self.totals))
    }
}

/// Why an entry could not be taken in.
pub(crate) enum PushError {
    /// It is refused, with its path.
    Refused(FsError),
    /// A scratch file failed.
    Io(io::Error),
}

impl From<FsError> for PushError {
    fn from(e: FsError) -> Self {
        PushError::Refused(e)
    }
}

impl From<io::Error> for PushError {
    fn from(e: io::Error) -> Self {
        PushError::Io(e)
    }
}

/// The path of which this is the key.
fn path_of(key: &[u8]) -> Vec<u8> {
    key.iter().map(|byte| if *byte == 0 { b'/' } else { *byte }).collect()
}

/// Puts the key of `path` into `key`.
///
/// # Errors
/// Why it is none of an entry below the root, which has the empty path.
pub(crate) fn key_of(path: &[u8], key: &mut Vec<u8>) -> Result<(), Refusal> {
    key.clear();
    if path.len() > PATH_LEN_MAX_BYTES {
        return Err(Refusal::TooLong);
    }
    if path.is_empty() {
        return Ok(());
    }
    let mut depth = 0;
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" => {
                return Err(Refusal::Path(
                    "an empty name is in the path; it has to be relative, with one slash between names",
                ));
            }
            b"." | b".." => return Err(Refusal::Path("the path has . or .. in it")),
            _ if name.contains(&0) => return Err(Refusal::Path("the path has a NUL byte in it")),
            _ => {}
        }
        depth += 1;
        key.extend((depth > 1).then_some(0));
        key.extend(name);
    }
    if depth > DEPTH_MAX { Err(Refusal::TooDeep) } else { Ok(()) }
}
