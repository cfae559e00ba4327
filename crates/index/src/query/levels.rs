//! What is below a directory, level by level: one range of nodes each.

use std::ops::Range;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;

use super::view::Facts;
use crate::layout::DEPTH_MAX;
use crate::segment::{NodeId, Segment};

/// So many nodes are looked at for a directory at once.
const STRETCH: u32 = 1 << 14;

/// The nodes below `dir` that are `depths.start` to `depths.end - 1` names below it: of each level one range, none empty.
pub(crate) fn below(segment: &Segment, dir: NodeId, depths: &Range<u32>) -> Result<Vec<Range<u32>>> {
    check_directory(segment, dir)?;
    let mut levels = Vec::new();
    let mut level = dir.0..dir.0 + 1;
    let mut depth = 0;
    while depth < depths.end.saturating_sub(1) {
        let Some(next) = children(segment, &level)? else { break };
        depth += 1;
        if depth as usize > DEPTH_MAX {
            return Err(segment.damaged(next.start, "it is too deep in the tree"));
        }
        if depths.contains(&depth) {
            levels.push(next.clone());
        }
        level = next;
    }
    Ok(levels)
}

/// `NotDirectory`, with its path, if it is none.
pub(super) fn check_directory(segment: &Segment, dir: NodeId) -> Result<()> {
    if segment.kind(dir)? == Kind::Directory {
        return Ok(());
    }
    let path = segment.path(dir)?;
    Err(FsError::new(ErrorKind::NotDirectory).on("search below", String::from_utf8_lossy(&path)))
}

/// All children of the directories in a range of nodes of one level. They are a range, because directories have their children in the
/// order in which they come themselves: from the first child of the first to the last one of the last.
pub(super) fn children(segment: &Segment, level: &Range<u32>) -> Result<Option<Range<u32>>> {
    let (mut first, mut last) = (None, None);
    let mut at = level.start;
    while first.is_none() && at < level.end {
        let end = level.end.min(at.saturating_add(STRETCH));
        let facts = Facts::sizes(segment, &(at..end))?;
        first = (at..end).find(|node| facts.is_dir(*node)).map(|dir| facts.children(segment, dir)).transpose()?;
        at = end;
    }
    let mut at = level.end;
    while last.is_none() && at > level.start {
        let start = level.start.max(at.saturating_sub(STRETCH));
        let facts = Facts::sizes(segment, &(start..at))?;
        last =
            (start..at).rev().find(|node| facts.is_dir(*node)).map(|dir| facts.children(segment, dir)).transpose()?;
        at = start;
    }
    let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
    if first.start < level.end || last.end < first.start {
        // An empty directory says where its children would be, and that is behind its level.
        return Err(segment.damaged(level.start, "its children are not behind its level"));
    }
    Ok(Some(first.start..last.end).filter(|range| !range.is_empty()))
}
