//! Random steps, done one by one or as a transaction.
#![allow(dead_code, reason = "each test uses a part")]

use adit_core::store::{NewNode, Store};
use adit_core::transaction::Transaction;
use adit_core::types::{Access, Attr, Caller, FileName, Ino, Kind, RenameFlags, SetAttr, XattrName, XattrSet};
use adit_core::{ErrorKind, Result};
use adit_testkit::{Rng, own_caller};
use adit_volume::VolumeStore;

/// Every call by itself.
pub struct Singly<'s>(pub &'s VolumeStore);

impl Transaction for Singly<'_> {
    fn lookup(&mut self, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.0.lookup(parent, name)
    }
    fn getattr(&mut self, ino: Ino) -> Result<Attr> {
        self.0.getattr(ino)
    }
    fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.0.setattr(ino, set)
    }
    fn create(&mut self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.0.create(parent, name, new).map(|(attr, _)| attr)
    }
    fn mkdir(&mut self, parent: Ino, name: FileName<'_>, new: &NewNode) -> Result<Attr> {
        self.0.mkdir(parent, name, new)
    }
    fn symlink(&mut self, parent: Ino, name: FileName<'_>, target: &[u8], caller: Caller) -> Result<Attr> {
        self.0.symlink(parent, name, target, caller)
    }
    fn mknod(&mut self, parent: Ino, name: FileName<'_>, kind: Kind, rdev: u32, new: &NewNode) -> Result<Attr> {
        self.0.mknod(parent, name, kind, rdev, new)
    }
    fn link(&mut self, ino: Ino, parent: Ino, name: FileName<'_>) -> Result<Attr> {
        self.0.link(ino, parent, name)
    }
    fn unlink(&mut self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.0.unlink(parent, name)
    }
    fn rmdir(&mut self, parent: Ino, name: FileName<'_>) -> Result<()> {
        self.0.rmdir(parent, name)
    }
    fn rename(
        &mut self,
        parent: Ino,
        name: FileName<'_>,
        new_parent: Ino,
        new_name: FileName<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.0.rename(parent, name, new_parent, new_name, flags)
    }
    fn xattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.0.xattr(ino, name)
    }
    fn set_xattr(&mut self, ino: Ino, name: XattrName<'_>, value: &[u8], set: XattrSet) -> Result<()> {
        self.0.set_xattr(ino, name, value, set)
    }
    fn remove_xattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        self.0.remove_xattr(ino, name)
    }
    fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.0.getattr(ino)?.kind != Kind::File {
            // What opening says of a directory, and of what has no content.
            return self.0.open(ino, Access::Write).map(drop);
        }
        self.0.open(ino, Access::Write)?.write_at(&[(offset, bytes)])
    }
}

fn new(perm: u16) -> NewNode {
    NewNode { perm, umask: 0, caller: own_caller() }
}

/// One random call, and what it leads to: the kind of its error, or a few numbers.
pub fn step(to: &mut dyn Transaction, rng: &mut Rng) -> String {
    match try_step(to, rng) {
        Ok(said) => said,
        Err(e) => format!("{:?}", e.kind()),
    }
}

fn try_step(to: &mut dyn Transaction, rng: &mut Rng) -> Result<String> {
    let names: [String; 2] = std::array::from_fn(|_| format!("n{}", rng.below(4)));
    let [at, other] = names.each_ref().map(|at| FileName::new(at.as_bytes()).unwrap());
    let mut dirs = [Ino::ROOT; 2];
    for dir in &mut dirs {
        if rng.percent(40) {
            let below = format!("n{}", rng.below(4));
            *dir = to.lookup(Ino::ROOT, FileName::new(below.as_bytes())?).map_or(*dir, |attr| attr.ino);
        }
    }
    let [dir, other_dir] = dirs;
    let user = XattrName::new(b"user.x").unwrap();
    let done = |()| "done".to_owned();
    let told = |attr: Attr| format!("{:?} {} {} {:o}", attr.kind, attr.size, attr.nlink, attr.perm);
    match rng.below(100) {
        0..14 => to.create(dir, at, &new(0o640)).map(told),
        14..22 => to.mkdir(dir, at, &new(0o750)).map(told),
        22..25 => to.symlink(dir, at, b"somewhere", own_caller()).map(told),
        25..28 => to.mknod(dir, at, Kind::Fifo, 0, &new(0o600)).map(told),
        28..34 => {
            let ino = to.lookup(dir, at)?.ino;
            to.link(ino, other_dir, other).map(told)
        }
        34..42 => to.unlink(dir, at).map(done),
        42..46 => to.rmdir(dir, at).map(done),
        46..56 => {
            let flags = [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            to.rename(dir, at, other_dir, other, flags[rng.below(4) as usize]).map(done)
        }
        56..60 => {
            let ino = to.lookup(dir, at)?.ino;
            to.setattr(ino, &SetAttr { perm: Some(0o700), ..SetAttr::default() }).map(told)
        }
        60..70 => {
            let sizes = [0, 1, 100, 4096, 5000, 8192, 70_000, 1 << 20, (1 << 20) + 1];
            let size = Some(sizes[rng.below(sizes.len() as u64) as usize]);
            let ino = to.lookup(dir, at)?.ino;
            to.setattr(ino, &SetAttr { size, ..SetAttr::default() }).map(told)
        }
        70..90 => {
            let ino = to.lookup(dir, at)?.ino;
            let offsets = [0, 0, 1, 1500, 4095, 4096, 10_000, (1 << 20) - 10, 1 << 20];
            let offset = offsets[rng.below(offsets.len() as u64) as usize];
            let lens = [0, 1, 600, 4096, 9000];
            let bytes = vec![1 + rng.below(250) as u8; lens[rng.below(lens.len() as u64) as usize]];
            to.write(ino, offset, &bytes)?;
            to.getattr(ino).map(told)
        }
        90..94 => {
            let ino = to.lookup(dir, at)?.ino;
            let value = [rng.below(9) as u8; 20];
            to.set_xattr(ino, user, &value, [XattrSet::Either, XattrSet::Create][rng.below(2) as usize]).map(done)
        }
        94..96 => {
            let ino = to.lookup(dir, at)?.ino;
            to.remove_xattr(ino, user).map(done)
        }
        _ => {
            let ino = to.lookup(dir, at)?.ino;
            match to.xattr(ino, user) {
                Err(e) if e.kind() == ErrorKind::NoAttribute => Ok("none".to_owned()),
                value => value.map(|value| format!("{value:?}")),
            }
        }
    }
}
