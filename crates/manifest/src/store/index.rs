//! The segment of a store, and what becomes of one that turns out to be damaged.
//!
//! A block of a segment is compared with its checksum when it is first needed, so damage may show long after the opening. Then
//! the segment's file is removed, once: what is mapped is answered from as far as it is right, and the next mount builds another one.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;
use adit_index::{Child, Node, NodeId, Segment};

use super::extra::Extra;

/// A segment. Its errors pass through here.
pub(super) struct Index {
    segment: Arc<Segment>,
    is_damaged: AtomicBool,
}

impl Index {
    pub fn new(segment: Segment) -> Index {
        Index { segment: Arc::new(segment), is_damaged: AtomicBool::new(false) }
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Whether some of it could not be read.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    /// See [`Segment::len`].
    pub fn count(&self) -> u32 {
        self.segment.len()
    }

    pub fn node(&self, id: NodeId) -> Result<Node> {
        self.noted(self.segment.node(id))
    }

    pub fn kind(&self, id: NodeId) -> Result<Kind> {
        self.noted(self.segment.kind(id))
    }

    pub fn hash(&self, id: NodeId) -> Result<Option<[u8; 16]>> {
        self.noted(self.segment.hash(id))
    }

    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Option<NodeId>> {
        self.noted(self.segment.lookup(parent, name))
    }

    pub fn name(&self, id: NodeId) -> Result<&[u8]> {
        self.noted(self.segment.name(id))
    }

    pub fn path(&self, id: NodeId) -> Result<Vec<u8>> {
        self.noted(self.segment.path(id))
    }

    pub fn extra(&self, id: NodeId) -> Result<Extra<'_>> {
        let extra = self.noted(self.segment.extra(id))?;
        Extra::decode(extra).ok_or_else(|| self.damaged(id, "what it has beside its columns"))
    }

    /// The children of a directory without the first `from`, each with its place among all of them, counted from one. One that cannot be
    /// read is an error, and hides no other.
    pub fn each_child(
        &self,
        dir: NodeId,
        from: u32,
        sink: &mut dyn FnMut(u32, Result<Child<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        let children = self.noted(self.segment.child_range(dir))?;
        let (mut place, count) = (from, children.end - children.start);
        while place < count {
            match self.noted(self.segment.children(dir, place)) {
                // Ends after an error, or with the last one.
                Ok(children) => {
                    for child in children {
                        place += 1;
                        if sink(place, self.noted(child)).is_break() {
                            return Ok(());
                        }
                    }
                }
                Err(e) => {
                    place += 1;
                    if sink(place, Err(e)).is_break() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// The error of a node that cannot be as the segment says, though all checksums are right.
    pub fn damaged(&self, id: NodeId, what: &str) -> FsError {
        let e = FsError::new(ErrorKind::Corrupt).on("read index", self.segment.file_path().display()).because(format!(
            "node {}: {what} cannot be; mount the manifest again, which builds the index again",
            id.0
        ));
        self.give_up(&e);
        e
    }

    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result
            && matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io)
        {
            self.give_up(e);
        }
        result
    }

    #[cold]
    fn give_up(&self, e: &FsError) {
        if self.is_damaged.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!(error = %e, "the index of the manifest is damaged; it is removed, and built again at the next mount");
        // Whether it is there or not. A good one that somebody else has built meanwhile is built once more.
        let _ = fs::remove_file(self.segment.file_path());
    }
}
