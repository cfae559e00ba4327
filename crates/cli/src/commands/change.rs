//! `mkdir`, `mv`, `rm`: changing a source without a mount.

use adit_core::FsError;
use adit_core::path::{Tree, this_process};
use adit_core::store::{NewNode, Store};
use adit_core::types::{Kind, RenameFlags};

use super::{bytes, confirm};
use crate::args::low::{GlobalArgs, MkdirArgs, MvArgs, RmArgs};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::{self, Purpose};
use crate::output::printable;
use crate::progress::Progress;

/// `adit mkdir`
pub fn mkdir(args: &MkdirArgs, global: &GlobalArgs) -> Result<()> {
    let perm = 0o777 & !crate::process::umask() as u16;
    let new = NewNode { perm, caller: this_process() };
    let (dir, vault) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*vault.store);
    let fail = |e: FsError| Failure::fs(dir.display(), &e);
    for path in args.paths.iter().map(|path| bytes(path)) {
        let made = if args.parents { tree.mkdir_all(path, &new) } else { tree.mkdir(path, &new) };
        made.map(drop).map_err(fail)?;
    }
    vault.store.sync_all().map_err(fail)
}

/// `adit mv`
pub fn mv(args: &MvArgs, global: &GlobalArgs) -> Result<()> {
    let (dir, vault) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*vault.store);
    let fail = |e: FsError| Failure::fs(dir.display(), &e);
    let (from, to) = (bytes(&args.from), bytes(&args.to));
    let gentle = tree.rename(from, to, RenameFlags::NOREPLACE);
    match gentle {
        Ok(_) => {}
        Err(e) if e.kind() == adit_core::ErrorKind::Exists && !args.no_replace => {
            confirm(&format!("Replace what is at {}?", printable(to)), args.yes)?;
            tree.rename(from, to, RenameFlags::empty()).map_err(fail)?;
        }
        Err(e) => return Err(fail(e)),
    }
    vault.store.sync_all().map_err(fail)
}

/// `adit rm`
pub fn rm(args: &RmArgs, global: &GlobalArgs) -> Result<()> {
    let names: Vec<String> = args.paths.iter().map(|path| printable(bytes(path))).collect();
    let what = if args.recursive { "with everything in it" } else { "for good" };
    confirm(&format!("Remove {} {what}?", names.join(", ")), args.yes)?;
    let (_, vault) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*vault.store);
    let mut progress = Progress::new("rm", global.quiet);
    for (path, name) in args.paths.iter().zip(&names) {
        if let Err(failure) = rm_one(&tree, bytes(path), name, args.recursive, &mut progress) {
            progress.failed(&failure);
        }
    }
    let synced = vault.store.sync_all().map_err(|e| Failure::fs("rm", &e));
    progress.finish()?;
    synced
}

fn rm_one(tree: &Tree<'_>, path: &[u8], name: &str, recursive: bool, progress: &mut Progress) -> Result<()> {
    let fail = |e: FsError| Failure::fs("rm", &e);
    let (parent, entry) = tree.resolve_parent(path).map_err(fail)?;
    let kind = tree.child(&parent, &entry).map_err(fail)?.kind();
    if kind != Kind::Directory {
        return tree.remove_in(&parent, &entry, kind).map_err(fail);
    }
    if !recursive {
        return Err(Failure::new(Code::Failure, format!("rm: {name}: is a directory"))
            .hint("--recursive removes folders with everything in them"));
    }
    // Both callbacks need the display.
    let progress = std::cell::RefCell::new(progress);
    tree.remove_all(path, &mut |node| progress.borrow_mut().entry(&adit_core::path::show(node.path())), &mut |error| {
        progress.borrow_mut().failed(&fail(error))
    })
    .map(drop)
    .map_err(fail)
}
