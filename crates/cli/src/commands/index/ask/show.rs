//! What is said of a node.

use adit_core::types::Kind;
use adit_index::{NodeId, Segment};

use crate::failure::Result;
use crate::open::index::IndexFile;
use crate::output::{EntryJson, Output, printable};
use adit_index::query::Paths;

/// A node as `ls --json` has entries, with the hash of its content.
pub fn entry(index: &IndexFile, node: NodeId, path: &[u8]) -> adit_core::Result<EntryJson> {
    let segment: &Segment = &index.segment;
    let facts = segment.node(node)?;
    // Of indexes that something else has made, the extra bytes are its own.
    let target = match facts.kind == Kind::Symlink && index.origin().is_some() {
        true => Some(segment.extra(node)?),
        false => None,
    };
    let hash = segment.hash(node)?.map(|hash| format!("{:032x}", u128::from_be_bytes(hash)));
    Ok(EntryJson::of_node(path, &facts, target, hash))
}

/// A path: for people, or as it is and ended by a zero byte.
pub fn path(out: &mut Output, path: &[u8], print0: bool) -> Result<()> {
    match print0 {
        true => out.bytes(path).and_then(|()| out.bytes(b"\0")),
        false => out.line(printable(path)),
    }
}

/// The path of a node with a slash in front; see [`super::rooted`].
pub fn rooted(index: &IndexFile, paths: &mut Paths<'_>, node: NodeId) -> Result<Vec<u8>> {
    super::rooted(paths, node).map_err(|e| index.failure(&e))
}
