//! The directory for what a repair found without a name: `/lost+found`.

use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError, Result};

use crate::format::records::{Entry, Inode, Place};
use crate::tree::ROOT_INO;
use crate::tree::change::{Change, Spot};

/// Its name; where something else has that, a number is put behind it.
const LOST_AND_FOUND: &str = "lost+found";

/// A name, or one with a number behind it.
fn variant(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}.{number}") }
}

impl Change<'_, '_> {
    /// Gives an inode its one name in lost+found. Its path.
    pub(super) fn put_lost(&mut self, ino: u64, kind: Kind) -> Result<String> {
        let (dir, dir_name) = self.lost_and_found()?;
        let mut number = 0;
        loop {
            let name = variant(&format!("#{ino}"), number);
            number += 1;
            let Spot::Free { cookie, owner } = self.spot(dir, name.as_bytes())? else { continue };
            self.put_entry(dir, cookie, owner, &Entry { ino, kind, name: name.as_bytes() });
            let now = self.now;
            let inode = self.edit(ino)?;
            (inode.place, inode.ctime) = (Place { dir, cookie }, now);
            self.touch_directory(dir, 1, i32::from(kind == Kind::Directory))?;
            return Ok(format!("/{dir_name}/{name}"));
        }
    }

    /// The directory and its name. It is made if it is not there.
    fn lost_and_found(&mut self) -> Result<(u64, String)> {
        if self.peek(ROOT_INO)?.kind != Kind::Directory {
            let why = "the root is no directory";
            return Err(FsError::new(ErrorKind::Corrupt).on("repair", LOST_AND_FOUND).because(why));
        }
        let mut number = 0;
        loop {
            let name = variant(LOST_AND_FOUND, number);
            number += 1;
            match self.spot(ROOT_INO, name.as_bytes())? {
                Spot::Taken { ino, kind: Kind::Directory, .. }
                    if self.peek(ino).is_ok_and(|inode| inode.kind == Kind::Directory && inode.nlink > 0) =>
                {
                    return Ok((ino, name));
                }
                Spot::Taken { .. } => {}
                Spot::Free { cookie, owner } => {
                    let fresh = self.blank()?;
                    let place = Place { dir: ROOT_INO, cookie };
                    let kind = Kind::Directory;
                    // Without ACLs that the root would give it: what is lost is nobody's to see.
                    let ino = self.add_inode(Inode { kind, perm: 0o700, nlink: 2, place, ..fresh });
                    self.put_entry(ROOT_INO, cookie, owner, &Entry { ino, kind, name: name.as_bytes() });
                    self.touch_directory(ROOT_INO, 1, 1)?;
                    return Ok((ino, name));
                }
            }
        }
    }
}
