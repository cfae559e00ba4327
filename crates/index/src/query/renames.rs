//! Which of the files that are gone are the same as some that came: [`joined`].

use std::collections::HashMap;

use adit_core::error::Result;
use adit_core::types::Kind;

use super::diff::{Change, What};
use crate::ContentHash;
use crate::segment::{Columns, NodeId};

/// What says that two files are the same: size and hash.
type Content = (u64, ContentHash);

/// A file that is gone, or one that came: its content, and the number of its change.
struct File {
    content: Content,
    change: u32,
    is_new: bool,
}

/// The changes with renames in place of what was added, and without what was removed by them. `changes` are in order, and so is what is
/// returned.
pub(super) fn joined(
    a: &Columns<'_>,
    b: &Columns<'_>,
    mut changes: Vec<Change>,
    what: &dyn Fn(u32, u32) -> Result<What>,
) -> Result<Vec<Change>> {
    let mut files: Vec<File> = Vec::new();
    for (at, change) in changes.iter().enumerate() {
        let (columns, node, is_new) = match change {
            Change::Removed(node) => (a, node.0, false),
            Change::Added(node) => (b, node.0, true),
            _ => continue,
        };
        if let Some(content) = content(columns, node) {
            // There are fewer nodes in both trees than 2^33, but a change for each would not fit in memory.
            let Ok(change) = u32::try_from(at) else { break };
            files.push(File { content, change, is_new });
        }
    }
    files.sort_unstable_by_key(|file| (file.content, file.is_new, file.change));
    // A change that is part of a rename now.
    let mut gone = Vec::new();
    for equal in files.chunk_by(|one, other| one.content == other.content) {
        let (old, new) = equal.split_at(equal.partition_point(|file| !file.is_new));
        for (old, new) in pairs(a, b, &changes, old, new) {
            let (Change::Removed(before), Change::Added(after)) = (changes[old as usize], changes[new as usize]) else {
                continue;
            };
            changes[new as usize] = Change::Renamed { before, after, what: what(before.0, after.0)? };
            gone.push(old);
        }
    }
    gone.sort_unstable();
    let mut gone = gone.into_iter().peekable();
    let mut at = 0;
    changes.retain(|_| {
        at += 1;
        gone.next_if_eq(&(at - 1)).is_none()
    });
    Ok(changes)
}

/// Of a file that has a hash and is not empty.
fn content(columns: &Columns<'_>, node: u32) -> Option<Content> {
    let size = columns.size(node).filter(|size| *size > 0)?;
    columns.mode(node).filter(|mode| mode.kind() == Kind::File)?;
    Some((size, columns.hash(node)?))
}

/// Which of the old files is which of the new ones, all of them equal: the one where both are one; else those of the same last name, and then
/// one after the other.
fn pairs(a: &Columns<'_>, b: &Columns<'_>, changes: &[Change], old: &[File], new: &[File]) -> Vec<(u32, u32)> {
    if let ([old], [new]) = (old, new) {
        return vec![(old.change, new.change)];
    }
    if old.is_empty() || new.is_empty() {
        return Vec::new();
    }
    let name = |file: &File| match changes[file.change as usize] {
        Change::Removed(NodeId(node)) => a.name(node),
        Change::Added(NodeId(node)) => b.name(node),
        _ => None,
    };
    // The first of a name is the last of its list.
    let mut by_name: HashMap<Option<&[u8]>, Vec<u32>> = HashMap::new();
    old.iter().rev().for_each(|file| by_name.entry(name(file)).or_default().push(file.change));
    let (mut pairs, mut left) = (Vec::new(), Vec::new());
    for file in new {
        match by_name.get_mut(&name(file)).and_then(Vec::pop) {
            Some(old) => pairs.push((old, file.change)),
            None => left.push(file.change),
        }
    }
    let mut rest: Vec<u32> = by_name.into_values().flatten().collect();
    rest.sort_unstable();
    pairs.extend(rest.into_iter().zip(left));
    pairs
}
