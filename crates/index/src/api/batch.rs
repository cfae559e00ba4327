//! Many paths that belong together: [`Batch`].

use crate::resolve::Question;
use crate::segment::NodeId;

/// Paths that are asked for together. Owns their bytes, so it can be handed to another thread.
///
/// ```
/// use adit_index::Batch;
///
/// let mut batch: Batch = ["src/lib.rs", "docs"].into_iter().collect();
/// batch.push(b"a name that is no text: \xff");
/// assert_eq!(batch.len(), 3);
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Of each path where it begins, and where its bytes end.
    items: Vec<(NodeId, usize)>,
}

impl Batch {
    /// An empty one.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty one with room for so many paths of so many bytes together.
    pub fn with_capacity(paths: usize, len_bytes: usize) -> Batch {
        Batch { bytes: Vec::with_capacity(len_bytes), items: Vec::with_capacity(paths) }
    }

    /// Adds a path that begins at the root.
    pub fn push(&mut self, path: impl AsRef<[u8]>) {
        self.push_from(NodeId::ROOT, path);
    }

    /// Adds a path that begins in the directory `start`, unless there is a slash in front.
    pub fn push_from(&mut self, start: NodeId, path: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(path.as_ref());
        self.items.push((start, self.bytes.len()));
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Removes all of them, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    /// The paths, in their order.
    pub fn questions(&self) -> Vec<Question<'_>> {
        self.part(0, self.items.len())
    }

    /// So many of them from number `first` on, or as many as there are.
    pub(super) fn part(&self, first: usize, count: usize) -> Vec<Question<'_>> {
        let mut at = first.checked_sub(1).map_or(0, |before| self.items[before].1);
        let items = self.items[first..].iter().take(count);
        items
            .map(|(start, end)| Question { start: *start, path: &self.bytes[std::mem::replace(&mut at, *end)..*end] })
            .collect()
    }
}

impl<P: AsRef<[u8]>> Extend<P> for Batch {
    fn extend<I: IntoIterator<Item = P>>(&mut self, paths: I) {
        paths.into_iter().for_each(|path| self.push(path));
    }
}

impl<P: AsRef<[u8]>> FromIterator<P> for Batch {
    fn from_iter<I: IntoIterator<Item = P>>(paths: I) -> Batch {
        let mut batch = Batch::new();
        batch.extend(paths);
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_paths_that_were_put_in() {
        let mut batch: Batch = ["a", "", "long/er"].into_iter().collect();
        batch.push_from(NodeId(7), b"\xff/\n");
        let shown = |asked: Vec<Question<'_>>| asked.iter().map(|q| (q.start.0, q.path.to_vec())).collect::<Vec<_>>();
        let all = shown(batch.questions());
        assert_eq!(all, [(0, b"a".to_vec()), (0, b"".to_vec()), (0, b"long/er".to_vec()), (7, b"\xff/\n".to_vec())]);
        for len in 1..6 {
            let parts = (0..batch.len()).step_by(len).flat_map(|first| shown(batch.part(first, len)));
            assert_eq!(parts.collect::<Vec<_>>(), all);
        }
        batch.clear();
        assert!(batch.is_empty() && batch.questions().is_empty());
    }
}
