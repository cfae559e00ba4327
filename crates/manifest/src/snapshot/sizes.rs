//! How many bytes the files of a tree have, which costs no more than looking at all of it.

use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::error::{ErrorKind, Result};
use adit_core::path::{Last, Step, Tree, Visit};
use adit_core::types::Kind;

use super::Filter;

/// Bytes of the files that `filter` wants at `roots` of `tree` and below; its patterns are of paths below each root. Links are not followed, and
/// what cannot be looked at has none. The tree is to be one of its own: who reads another one meanwhile is not disturbed.
///
/// # Errors
/// `Interrupted` once `is_over`.
pub fn bytes_of(tree: &Tree<'_>, roots: &[Vec<u8>], filter: &Filter, is_over: &AtomicBool) -> Result<u64> {
    let mut bytes = 0u64;
    for root in roots {
        let Ok(start) = tree.resolve(root, Last::Keep) else { continue };
        if start.kind() == Kind::File {
            bytes = bytes.saturating_add(start.attr().size);
        }
        if start.kind() != Kind::Directory {
            continue;
        }
        let cut = start.path().len();
        let below = |path: &'_ [u8]| -> Vec<u8> {
            let path = path.get(cut..).unwrap_or_default();
            path.strip_prefix(b"/").unwrap_or(path).to_vec()
        };
        let mut is_wanted = |path: &[u8], _| Ok(filter.reaches(&below(path)));
        tree.walk_where(start, Some(&mut is_wanted), &mut |visit| {
            if is_over.load(Ordering::Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            let Visit::Entry { node, .. } = visit else { return Ok(Step::Past) };
            let path = below(node.path());
            match node.kind() {
                Kind::Directory => Ok(Step::Into),
                Kind::File => {
                    if filter.includes(&path) {
                        bytes = bytes.saturating_add(node.attr().size);
                    }
                    Ok(Step::Past)
                }
                _ => Ok(Step::Past),
            }
        })?;
    }
    Ok(bytes)
}
