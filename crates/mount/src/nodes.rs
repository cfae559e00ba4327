//! Under which number the kernel knows an inode: the inode's own, unless it was *renewed*.
//!
//! With write-back the kernel owns size and times of a regular file for as long as it knows it, and a directory that it saw removed stays
//! dead: no notification changes that. So an inode that becomes something else underneath gets another node number. The kernel takes it
//! for one that it never saw, and asks for all of it. What comes with a former number is about nothing: it is answered `ESTALE`, and
//! the kernel looks the path up again and finds the new one.
//!
//! A number is decided on while the request is in progress that gives it out ([`crate::session::SessionHandle::apart`] waits for those): what
//! was looked up before an inode was renewed goes out with the former number, beside attributes of that time.
//!
//! The inode stays renewed until the kernel has forgotten it, under all its numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use adit_core::types::Ino;
use fuser::INodeNo;

use parking_lot::RwLock;

/// Numbers from here on are given to renewed inodes. No store has such.
const FIRST: u64 = 1 << 63;
/// The inode of a former number: no store has it.
const NOTHING: Ino = Ino(u64::MAX);

/// See the module's notes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// Whether any inode is renewed; else nothing is locked.
    any: AtomicBool,
    renewed: RwLock<Renewed>,
}

#[derive(Debug, Default)]
struct Renewed {
    given: u64,
    /// The numbers that each was given, the current one last.
    numbers: HashMap<Ino, Vec<u64>>,
    inodes: HashMap<u64, Ino>,
}

impl Renewed {
    fn current(&self, ino: Ino) -> Option<u64> {
        self.numbers.get(&ino)?.last().copied()
    }
}

impl Nodes {
    fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// The inode that the kernel means; of a former number one that no store has.
    pub(crate) fn inode(&self, node: INodeNo) -> INodeNo {
        if !self.any() {
            return node;
        }
        let renewed = self.renewed.read();
        let ino = match node.0 >= FIRST {
            true => renewed.inodes.get(&node.0).copied().filter(|&ino| renewed.current(ino) == Some(node.0)),
            false => Some(Ino(node.0)).filter(|&ino| renewed.current(ino).is_none()),
        };
        INodeNo(ino.unwrap_or(NOTHING).0)
    }

    /// Whether [`Nodes::inode`] said that a number is a former one.
    pub(crate) fn is_former(ino: Ino) -> bool {
        ino == NOTHING
    }

    /// The number of an inode in what the kernel is told.
    pub(crate) fn number(&self, ino: Ino) -> INodeNo {
        let current = if self.any() { self.renewed.read().current(ino) } else { None };
        INodeNo(current.unwrap_or(ino.0))
    }

    /// The inode that a number is, or was, of.
    pub(crate) fn former_inode(&self, node: INodeNo) -> Ino {
        let renewed = if self.any() { self.renewed.read().inodes.get(&node.0).copied() } else { None };
        renewed.unwrap_or(Ino(node.0))
    }

    /// Gives each of `inodes` another number; those that they had.
    pub(crate) fn renew(&self, inodes: impl IntoIterator<Item = Ino>) -> Vec<INodeNo> {
        let mut renewed = self.renewed.write();
        let mut former = Vec::new();
        for ino in inodes {
            former.push(INodeNo(renewed.current(ino).unwrap_or(ino.0)));
            let number = FIRST + renewed.given;
            renewed.given += 1;
            renewed.numbers.entry(ino).or_default().push(number);
            renewed.inodes.insert(number, ino);
        }
        self.any.store(!renewed.numbers.is_empty(), Ordering::SeqCst);
        former
    }

    /// The kernel forgot an inode under some number: if it `is_known` under none, it has its own again.
    pub(crate) fn forgotten(&self, ino: Ino, is_known: impl FnOnce() -> bool) {
        if !self.any() {
            return;
        }
        let mut renewed = self.renewed.write();
        // Under the lock: who looks it up in this moment counts it before a number is chosen.
        if !renewed.numbers.contains_key(&ino) || is_known() {
            return;
        }
        for number in renewed.numbers.remove(&ino).into_iter().flatten() {
            renewed.inodes.remove(&number);
        }
        self.any.store(!renewed.numbers.is_empty(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_inode_is_found_by_its_latest_number_alone() {
        let nodes = Nodes::default();
        let (ino, other) = (Ino(7), INodeNo(8));
        assert_eq!((nodes.number(ino), nodes.inode(INodeNo(7))), (INodeNo(7), INodeNo(7)));
        assert_eq!(nodes.renew([ino]), [INodeNo(7)]);
        let second = nodes.number(ino);
        assert_eq!(nodes.renew([ino]), [second]);
        let third = nodes.number(ino);
        assert_eq!(nodes.inode(third), INodeNo(7));
        for former in [INodeNo(7), second, INodeNo(FIRST + 99)] {
            assert!(Nodes::is_former(Ino(nodes.inode(former).0)));
        }
        assert_eq!((nodes.inode(other), nodes.number(Ino(8))), (other, other));
        for node in [INodeNo(7), second, third] {
            assert_eq!(nodes.former_inode(node), ino);
        }
        nodes.forgotten(ino, || true);
        assert_eq!(nodes.number(ino), third);
        nodes.forgotten(ino, || false);
        assert_eq!((nodes.number(ino), nodes.inode(INodeNo(7))), (INodeNo(7), INodeNo(7)));
        assert!(!nodes.any());
    }
}
