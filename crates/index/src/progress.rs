//! How far long work is, and whether it is to go on.

use std::ops::ControlFlow;

/// What is being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stage {
    /// Sorted parts are put together, until they are few.
    Merge,
    /// Entries are sorted, and made into a tree.
    Sort,
    /// Nodes are written into the segment.
    Write,
    /// Tables are made out of the nodes; counted in tables.
    Tables,
    /// The file's bytes are compared with their checksums; counted in bytes.
    Read,
    /// Nodes are compared with each other.
    Verify,
    /// The segment is encrypted; counted in bytes.
    Encrypt,
    /// An encrypted one is decrypted; counted in bytes.
    Decrypt,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// How much of it: entries, nodes or bytes, as the stage counts.
    pub done: u64,
    /// Of how many.
    pub total: u64,
}

/// Who is told now and then, from the thread that works. [`ControlFlow::Break`] ends the work with `Interrupted`.
pub type Report<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;
