//! Paths of many nodes: [`Paths`].

use adit_core::error::Result;

use crate::layout::{DEPTH_MAX, PATH_LEN_MAX_BYTES};
use crate::segment::{NodeId, Segment};

/// Tells the paths of nodes one after the other. Keeps the path of the last one's directory: a node beside it, or below, costs its name alone.
#[derive(Debug)]
pub struct Paths<'a> {
    segment: &'a Segment,
    /// The directories down to the last one, without the root, and where the path of each ends.
    above: Vec<(u32, usize)>,
    bytes: Vec<u8>,
    /// Directories that are to be added, the last one first.
    missing: Vec<u32>,
}

impl<'a> Paths<'a> {
    /// Of the nodes of a segment.
    pub fn new(segment: &'a Segment) -> Paths<'a> {
        Paths { segment, above: Vec::new(), bytes: Vec::new(), missing: Vec::new() }
    }

    /// The path of a node below the root, without a slash in front; that of the root is empty.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such node; `Corrupt` where something is wrong.
    pub fn of(&mut self, node: NodeId) -> Result<&[u8]> {
        let parent = self.segment.parent(node)?;
        self.go_to(parent)?;
        if node != NodeId::ROOT {
            let name = self.segment.name(node)?;
            self.put(node, name)?;
        }
        Ok(&self.bytes)
    }

    /// As [`Paths::of`], of a node whose directory and name are known.
    pub(super) fn of_child(&mut self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<&[u8]> {
        self.go_to(dir)?;
        self.put(node, name)?;
        Ok(&self.bytes)
    }

    /// Makes the path of a directory the one at hand.
    fn go_to(&mut self, dir: NodeId) -> Result<()> {
        let mut at = dir;
        self.missing.clear();
        // Those above have lower numbers, so they are in order.
        let kept = loop {
            if at == NodeId::ROOT {
                break 0;
            }
            if let Ok(place) = self.above.binary_search_by_key(&at.0, |(node, _)| *node) {
                break place + 1;
            }
            if self.missing.len() == DEPTH_MAX {
                return Err(self.segment.damaged(dir.0, "its path is too long"));
            }
            self.missing.push(at.0);
            at = self.segment.parent(at)?;
        };
        self.above.truncate(kept);
        self.bytes.truncate(self.above.last().map_or(0, |(_, end)| *end));
        while let Some(node) = self.missing.pop() {
            let name = self.segment.name(NodeId(node))?;
            self.put(NodeId(node), name)?;
            self.above.push((node, self.bytes.len()));
        }
        Ok(())
    }

    fn put(&mut self, node: NodeId, name: &[u8]) -> Result<()> {
        if !self.bytes.is_empty() {
            self.bytes.push(b'/');
        }
        if self.bytes.len() + name.len() > PATH_LEN_MAX_BYTES {
            // What is kept of it would be taken for that of a directory.
            (self.above, self.bytes) = (Vec::new(), Vec::new());
            return Err(self.segment.damaged(node.0, "its path is too long"));
        }
        self.bytes.extend(name);
        Ok(())
    }
}
