//! Paths name by name, with no table: [`walk`]. And who answers a batch: [`resolve_batch`].

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;

use super::{Miss, MissKind, Question, Resolver};
use crate::segment::{NodeId, Segment};

/// So many blocks of the file are compared with their checksums in the time that one path takes at most whose blocks nobody looked at before: some
/// seven names, of each a few blocks.
const BLOCKS_A_WALK: u64 = 32;

/// The node at a path by the names of it, one after the other; where it ends, if it does not lead there. Paths are those of
/// [`Resolver::resolve`], and so is the answer. Only those blocks are compared with their checksums that are on the way: for few paths in a segment of
/// which little was looked at.
///
/// # Errors
/// As [`Resolver::resolve`].
pub fn walk(segment: &Segment, start: NodeId, path: &[u8]) -> Result<std::result::Result<NodeId, Miss>> {
    let absolute = path.first() == Some(&b'/');
    let mut node = if absolute { NodeId::ROOT } else { start };
    if !absolute {
        check_start(segment, start)?;
    }
    let mut at = 0;
    for name in path.split(|byte| *byte == b'/') {
        let begins = at;
        at += name.len() + 1;
        // Before the slash of an absolute path there is nothing; the empty path is where it starts.
        if name.is_empty() && begins == 0 {
            continue;
        }
        let why = MissKind::of(segment.kind(node)?);
        let found = match (why, name) {
            (MissKind::NotFound, b"" | b".") => Some(node),
            (MissKind::NotFound, b"..") => Some(segment.parent(node)?),
            (MissKind::NotFound, name) => segment.lookup(node, name)?,
            _ => None,
        };
        match found {
            Some(found) => node = found,
            None => return Ok(Err(Miss { reached: node, at: begins, why })),
        }
    }
    Ok(Ok(node))
}

/// That a path may begin at a node.
pub(super) fn check_start(segment: &Segment, start: NodeId) -> Result<()> {
    if start.0 >= segment.len() {
        return Err(FsError::new(ErrorKind::InvalidInput).because(format!("the index has no node {}", start.0)));
    }
    match segment.kind(start)? {
        Kind::Directory => Ok(()),
        _ => Err(ErrorKind::NotDirectory.into()),
    }
}

/// As [`Resolver::resolve_batch`] of a new [`Resolver`]; few paths are walked, so that not all of the segment has to be compared with its checksums first.
///
/// # Errors
/// As [`Resolver::new`] and [`Resolver::resolve_batch`].
pub fn resolve_batch(segment: &Segment, questions: &[Question<'_>]) -> Result<Vec<std::result::Result<NodeId, Miss>>> {
    if are_few(segment, questions) {
        return questions.iter().map(|question| walk(segment, question.start, question.path)).collect();
    }
    Resolver::new(segment)?.resolve_batch(questions)
}

/// As [`resolve_batch`], without saying why a path leads nowhere.
///
/// # Errors
/// As there.
pub fn find_batch(segment: &Segment, questions: &[Question<'_>]) -> Result<Vec<Option<NodeId>>> {
    if are_few(segment, questions) {
        return questions.iter().map(|question| Ok(walk(segment, question.start, question.path)?.ok())).collect();
    }
    Resolver::new(segment)?.find_batch(questions)
}

fn are_few(segment: &Segment, questions: &[Question<'_>]) -> bool {
    questions.len() as u64 * BLOCKS_A_WALK <= segment.unchecked_blocks()
}
