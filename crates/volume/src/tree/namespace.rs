//! Names: making, linking, removing and renaming, each as one batch, with the rules of POSIX and the order of Linux's errors.

use adit_core::acl::{self, Access, Inherited};
use adit_core::store::NewNode;
use adit_core::types::{Attr, FileName, Ino, Kind, RenameFlags, SetAttr, SetTime, Timestamp, XattrName};
use adit_core::{ErrorKind, Result};

use super::change::{Change, Spot};
use super::{NAMES_MAX, ROOT_INO};
use crate::format::keys::Key;
use crate::format::records::{Entry, Inode, Orphan, Place};

/// Depth at which a directory is taken for one that holds itself.
const DEPTH_MAX: usize = 1 << 20;

/// An inode that lost its last name. Its content is still there, and noted as an orphan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone(pub u64);

/// What a new inode is.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, umask and owner.
    pub node: NewNode,
    /// Device number.
    pub rdev: u32,
    /// Target of a symbolic link, else empty.
    pub target: &'a [u8],
}

impl Inode {
    /// As `stat` shows it.
    pub fn attr(&self, ino: u64) -> Attr {
        let blocks = match self.kind {
            Kind::Directory => 0,
            _ if self.in_windows => self.blocks.saturating_mul(8),
            // Kept with the inode; not 0, for programs that take this for a hole.
            _ => self.size.div_ceil(512),
        };
        Attr {
            ino: Ino(ino),
            size: self.size,
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
        }
    }

    /// Applies `set`, `size` excepted.
    pub(crate) fn apply(&mut self, set: &SetAttr, now: Timestamp) {
        let time = |t: SetTime| match t {
            SetTime::At(t) => t,
            SetTime::Now => now,
        };
        self.perm = set.perm.map_or(self.perm, |p| p & 0o7777);
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        self.atime = set.atime.map_or(self.atime, time);
        self.mtime = set.mtime.map_or(self.mtime, time);
        self.ctime = set.ctime.unwrap_or(now);
    }
}

impl Change<'_, '_> {
    /// Sets attributes, `size` excepted; an access ACL follows the permission bits.
    pub fn set_attr(&mut self, ino: u64, set: &SetAttr) -> Result<()> {
        let now = self.now;
        self.edit(ino)?.apply(set, now);
        let Some(perm) = set.perm else { return Ok(()) };
        let name = XattrName::ACL_ACCESS.as_bytes();
        if self.inode(ino)?.has_xattrs
            && let Some(acl) = self.xattr(ino, name)?
        {
            self.put_xattr(ino, name, &acl::chmod(&acl, perm)?)?;
        }
        Ok(())
    }

    fn directory(&mut self, dir: u64) -> Result<&Inode> {
        let inode = self.inode(dir)?;
        if inode.kind == Kind::Directory { Ok(inode) } else { Err(ErrorKind::NotDirectory.into()) }
    }

    /// Where a new name can go; `Exists`, or `NotFound` in a directory that was removed.
    fn vacant(&mut self, dir: u64, name: FileName<'_>) -> Result<(u64, Option<u32>)> {
        let gone = self.directory(dir)?.nlink == 0;
        match self.spot(dir, name.as_bytes())? {
            Spot::Taken { .. } => Err(ErrorKind::Exists.into()),
            Spot::Free { .. } if gone => Err(ErrorKind::NotFound.into()),
            Spot::Free { cookie, owner } => Ok((cookie, owner)),
        }
    }

    fn taken(&mut self, dir: u64, name: FileName<'_>) -> Result<(u64, u32, u64, Kind)> {
        self.directory(dir)?;
        match self.spot(dir, name.as_bytes())? {
            Spot::Taken { cookie, owner, ino, kind } => Ok((cookie, owner, ino, kind)),
            Spot::Free { .. } => Err(ErrorKind::NotFound.into()),
        }
    }

    /// Notes in a directory that entries came or went.
    pub(super) fn touch_directory(&mut self, dir: u64, entries: i64, directories: i32) -> Result<()> {
        let now = self.now;
        let inode = self.edit(dir)?;
        inode.size = inode.size.saturating_add_signed(entries);
        inode.nlink = inode.nlink.saturating_add_signed(directories);
        if inode.nlink > NAMES_MAX {
            return Err(ErrorKind::TooManyLinks.into());
        }
        (inode.mtime, inode.ctime) = (now, now);
        Ok(())
    }

    /// A new inode in `dir`, and the ACLs that it gets there.
    fn new_inode(&mut self, dir: Option<u64>, new: &NewInode<'_>) -> Result<(Inode, Inherited)> {
        let plain = Access { perm: new.node.masked_perm(), acl: None };
        let (mut node, mut inherited) = (new.node, Inherited { access: plain, default: None });
        if let Some(dir) = dir {
            let parent = self.inode(dir)?;
            let has_xattrs = parent.has_xattrs;
            node = node.in_directory(&parent.attr(dir), new.kind);
            let default = if has_xattrs { self.xattr(dir, XattrName::ACL_DEFAULT.as_bytes())? } else { None };
            inherited = acl::inherit(default.as_deref(), new.kind, &node)?;
        }
        let inode = Inode {
            rdev: new.rdev,
            size: new.target.len() as u64,
            inline: new.target.to_vec(),
            ..Inode::new(new.kind, inherited.access.perm, node.caller, self.now)
        };
        Ok((inode, inherited))
    }

    /// Makes an inode under a name that is free.
    pub fn create(&mut self, dir: u64, name: FileName<'_>, new: &NewInode<'_>) -> Result<u64> {
        let (cookie, owner) = self.vacant(dir, name)?;
        let (mut inode, inherited) = self.new_inode(Some(dir), new)?;
        inode.place = Place { dir, cookie };
        let ino = self.add_inode(inode);
        if let Some(acl) = &inherited.access.acl {
            self.put_xattr(ino, XattrName::ACL_ACCESS.as_bytes(), acl)?;
        }
        if let Some(acl) = &inherited.default {
            self.put_xattr(ino, XattrName::ACL_DEFAULT.as_bytes(), acl)?;
        }
        self.put_entry(dir, cookie, owner, &Entry { ino, kind: new.kind, name: name.as_bytes() });
        self.touch_directory(dir, 1, i32::from(new.kind == Kind::Directory))?;
        Ok(ino)
    }

    /// Gives an inode a further name.
    pub fn link(&mut self, ino: u64, dir: u64, name: FileName<'_>) -> Result<()> {
        let (cookie, owner) = self.vacant(dir, name)?;
        let inode = self.inode(ino)?;
        let (kind, nlink) = (inode.kind, inode.nlink);
        if kind == Kind::Directory {
            return Err(ErrorKind::NotPermitted.into());
        }
        if nlink == 0 {
            return Err(ErrorKind::NotFound.into());
        }
        if nlink >= NAMES_MAX {
            return Err(ErrorKind::TooManyLinks.into());
        }
        self.put_entry(dir, cookie, owner, &Entry { ino, kind, name: name.as_bytes() });
        self.add_name(ino, Place { dir, cookie })?;
        let now = self.now;
        let inode = self.edit(ino)?;
        (inode.nlink, inode.ctime) = (nlink + 1, now);
        self.touch_directory(dir, 1, 0)
    }

    /// Takes a name from an inode whose entry is gone or goes to another one.
    fn unname(&mut self, ino: u64, place: Place) -> Result<Option<Gone>> {
        self.remove_name(ino, place)?;
        let now = self.now;
        let inode = self.edit(ino)?;
        let directory = inode.kind == Kind::Directory;
        inode.ctime = now;
        inode.nlink = if directory { 0 } else { inode.nlink.saturating_sub(1) };
        if inode.nlink > 0 {
            return Ok(None);
        }
        self.moves_directory |= directory;
        let key = Key::orphan(ino);
        let owner = self.find(&key)?.owner;
        self.put(&key, owner, Orphan { removed: true }.encode());
        Ok(Some(Gone(ino)))
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&mut self, dir: u64, name: FileName<'_>) -> Result<Option<Gone>> {
        let (cookie, owner, ino, kind) = self.taken(dir, name)?;
        if kind == Kind::Directory {
            return Err(ErrorKind::IsDirectory.into());
        }
        self.draft.uses_reserve = true;
        self.delete_entry(Place { dir, cookie }, owner, name.as_bytes())?;
        self.touch_directory(dir, -1, 0)?;
        self.unname(ino, Place { dir, cookie })
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, dir: u64, name: FileName<'_>) -> Result<Option<Gone>> {
        let (cookie, owner, ino, kind) = self.taken(dir, name)?;
        if kind != Kind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        if self.inode(ino)?.size > 0 {
            return Err(ErrorKind::NotEmpty.into());
        }
        self.draft.uses_reserve = true;
        self.delete_entry(Place { dir, cookie }, owner, name.as_bytes())?;
        self.touch_directory(dir, -1, -1)?;
        self.unname(ino, Place { dir, cookie })
    }

    /// The inode that has a name, and what it is.
    pub fn entry(&mut self, dir: u64, name: FileName<'_>) -> Result<(u64, Kind)> {
        self.taken(dir, name).map(|(_, _, ino, kind)| (ino, kind))
    }

    /// Whether directory `ino` is `below` or one of those above it.
    fn holds(&mut self, ino: u64, below: u64) -> Result<bool> {
        let mut at = below;
        for _ in 0..DEPTH_MAX {
            if at == ino {
                return Ok(true);
            }
            if at == ROOT_INO || at == 0 {
                return Ok(false);
            }
            at = self.directory(at)?.place.dir;
        }
        Err(super::view::corrupt_inode(below, crate::format::records::Malformed("a directory that holds itself")))
    }

    /// `renameat2(2)`. `whiteout` leaves one under the old name.
    pub fn rename(
        &mut self,
        (dir, name): (u64, FileName<'_>),
        (to_dir, to_name): (u64, FileName<'_>),
        flags: RenameFlags,
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<Option<Gone>> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if exchange && (flags.contains(RenameFlags::NOREPLACE) || whiteout.is_some()) {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.directory(to_dir)?;
        let (cookie, owner, ino, kind) = self.taken(dir, name)?;
        let from = Place { dir, cookie };
        let directory = kind == Kind::Directory;
        let spot = self.spot(to_dir, to_name.as_bytes())?;
        if let Spot::Taken { .. } = spot
            && flags.contains(RenameFlags::NOREPLACE)
        {
            return Err(ErrorKind::Exists.into());
        }
        if let Spot::Free { .. } = spot
            && (exchange || self.directory(to_dir)?.nlink == 0)
        {
            return Err(ErrorKind::NotFound.into());
        }
        if directory && self.holds(ino, to_dir)? {
            return Err(ErrorKind::InvalidInput.into());
        }
        let (to_cookie, to_owner) = match spot {
            Spot::Free { cookie, owner } => (cookie, owner),
            Spot::Taken { cookie: to_cookie, owner: to_owner, ino: target, kind: target_kind } => {
                let target_directory = target_kind == Kind::Directory;
                if target_directory && self.holds(target, dir)? {
                    return Err(if exchange { ErrorKind::InvalidInput } else { ErrorKind::NotEmpty }.into());
                }
                if target == ino {
                    return Ok(None); // Two names of one inode: POSIX asks for nothing to happen.
                }
                let to = Place { dir: to_dir, cookie: to_cookie };
                if exchange {
                    self.exchange((from, owner, ino, kind, name), (to, to_owner, target, target_kind, to_name))?;
                    return Ok(None);
                }
                match (directory, target_directory) {
                    (true, false) => return Err(ErrorKind::NotDirectory.into()),
                    (false, true) => return Err(ErrorKind::IsDirectory.into()),
                    (true, true) if self.inode(target)?.size > 0 => return Err(ErrorKind::NotEmpty.into()),
                    _ => {}
                }
                let gone = self.unname(target, to)?;
                self.touch_directory(to_dir, -1, -i32::from(target_directory))?;
                self.move_entry((from, owner, ino, kind, name), (to, Some(to_owner), to_name), whiteout)?;
                return Ok(gone);
            }
        };
        let to = Place { dir: to_dir, cookie: to_cookie };
        self.move_entry((from, owner, ino, kind, name), (to, to_owner, to_name), whiteout)?;
        Ok(None)
    }

    fn move_entry(
        &mut self,
        (from, owner, ino, kind, name): (Place, u32, u64, Kind, FileName<'_>),
        (to, to_owner, to_name): (Place, Option<u32>, FileName<'_>),
        whiteout: Option<&NewInode<'_>>,
    ) -> Result<()> {
        let directory = i32::from(kind == Kind::Directory);
        self.put_entry(to.dir, to.cookie, to_owner, &Entry { ino, kind, name: to_name.as_bytes() });
        self.move_name(ino, from, to)?;
        self.touch_directory(to.dir, 1, directory)?;
        match whiteout {
            None => {
                self.delete_entry(from, owner, name.as_bytes())?;
                self.touch_directory(from.dir, -1, -directory)
            }
            Some(new) => {
                let (mut inode, _) = self.new_inode(None, new)?;
                inode.place = from;
                let white = self.add_inode(inode);
                let entry = Entry { ino: white, kind: new.kind, name: name.as_bytes() };
                self.put_entry(from.dir, from.cookie, Some(owner), &entry);
                self.touch_directory(from.dir, 0, -directory)
            }
        }
    }

    /// Notes that a name of an inode is elsewhere now.
    fn move_name(&mut self, ino: u64, from: Place, to: Place) -> Result<()> {
        let now = self.now;
        let inode = self.edit(ino)?;
        inode.ctime = now;
        let directory = inode.kind == Kind::Directory;
        let first = inode.place == from;
        if first {
            inode.place = to;
        }
        self.moves_directory |= directory;
        if first {
            return Ok(());
        }
        self.remove_name(ino, from)?;
        self.add_name(ino, to)
    }

    #[allow(clippy::type_complexity)] // Two ends of one exchange, each taken apart at once.
    fn exchange(
        &mut self,
        (a, a_owner, a_ino, a_kind, a_name): (Place, u32, u64, Kind, FileName<'_>),
        (b, b_owner, b_ino, b_kind, b_name): (Place, u32, u64, Kind, FileName<'_>),
    ) -> Result<()> {
        self.put_entry(a.dir, a.cookie, Some(a_owner), &Entry { ino: b_ino, kind: b_kind, name: a_name.as_bytes() });
        self.put_entry(b.dir, b.cookie, Some(b_owner), &Entry { ino: a_ino, kind: a_kind, name: b_name.as_bytes() });
        self.move_name(a_ino, a, b)?;
        self.move_name(b_ino, b, a)?;
        let directories = i32::from(b_kind == Kind::Directory) - i32::from(a_kind == Kind::Directory);
        self.touch_directory(a.dir, 0, directories)?;
        self.touch_directory(b.dir, 0, -directories)
    }
}
