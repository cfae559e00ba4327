//! Several operations of a store as one.
//!
//! What a single call of [`Store`] cannot say in one step (a new name over a whiteout, a new length and what it means for
//! the layer below) is said in a transaction: after a crash all of it is there, or nothing.

use crate::error::Result;
use crate::store::{NewNode, Store};
use crate::types::{Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};

/// A [`Store`] that can join operations.
pub trait Transactional: Store {
    /// Runs `work`, and applies what it changed through its argument as one operation: whole, or, if `work` or the applying
    /// fails, not at all. When this returns, a kill of the process loses nothing of it.
    ///
    /// `work` runs once. Nothing else changes the store meanwhile, so it had better be short; it must not call the store
    /// itself, which may wait for it for ever.
    ///
    /// # Errors
    /// Those of `work`; `NoSpace`; `InvalidInput` for more than the store can apply at once: the volume has room for some
    /// hundred changed names or attributes.
    fn transact(&self, work: &mut dyn FnMut(&mut dyn Transaction) -> Result<()>) -> Result<()>;

    /// How much a transaction may change, in bytes of names, attributes and their values.
    fn transaction_len_max_bytes(&self) -> u64;
}

/// What can be done in a transaction: methods mean what those of the same name in [`Store`] do, and see what the transaction
/// has changed already.
///
/// An inode becomes *known* by `lookup` and what makes one, as in a store, if the transaction is applied. After a failed call
/// nothing of that call is changed, and the transaction may go on.
pub trait Transaction {
    /// Says that all of this serves to take something away from users, though it may add a little (a whiteout in the place of
    /// what a layer below has): a store that keeps space back for removals gives it some of that.
    fn takes_away(&mut self) {}
    /// See [`Store::lookup`].
    fn lookup(&mut self, parent: Ino, name: FileName<'_>) -> Result<Attr>;
    /// See [`Store::getattr`].
    fn getattr(&mut self, ino: Ino) -> Result<Attr>;
    /// See [`Store::setattr`]. What a cut frees may go after the transaction; nobody sees it in between.
    fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr>;
    /// A new regular file, empty.
    fn create(&mut self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr>;
    /// See [`Store::mkdir`].
    fn mkdir(&mut self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr>;
    /// See [`Store::symlink`].
    fn symlink(&mut self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr>;
    /// See [`Store::mknod`].
    fn mknod(&mut self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr>;
    /// See [`Store::link`].
    fn link(&mut self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr>;
    /// See [`Store::unlink`].
    fn unlink(&mut self, parent: Ino, name: FileName<'_>) -> Result<()>;
    /// See [`Store::rmdir`].
    fn rmdir(&mut self, parent: Ino, name: FileName<'_>) -> Result<()>;
    /// See [`Store::rename`].
    fn rename(
        &mut self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()>;
    /// See [`Store::xattr`].
    fn xattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>>;
    /// See [`Store::set_xattr`].
    fn set_xattr(&mut self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()>;
    /// See [`Store::remove_xattr`].
    fn remove_xattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<()>;
    /// Writes `bytes` at `offset` of a regular file, which grows as needed. At most 1 MiB.
    fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()>;
}
