//! `mkdir`, `mv`, `rm`: changing a source without a mount.

use adit_core::FsError;
use adit_core::path::{Tree, this_process};
use adit_core::store::NewNode;
use adit_core::types::{Kind, RenameFlags};

use super::{bytes, confirm};
use crate::args::low::{GlobalArgs, MkdirArgs, MvArgs, RmArgs};
use crate::exit_code::Code;
use crate::failure::{Failure, Failures, Result};
use crate::open::{self, Opened, Purpose};
use crate::output::printable;
use crate::progress::Progress;

/// `adit mkdir`
pub fn mkdir(args: &MkdirArgs, global: &GlobalArgs) -> Result<()> {
    let perm = 0o777 & !crate::process::umask() as u16;
    let new = NewNode { perm, umask: 0, caller: this_process() };
    let (dir, opened) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*opened.store);
    let fail = |e: FsError| opened.failure(dir.display(), &e);
    let mut failures = Failures::default();
    for path in args.paths.iter().map(|path| bytes(path)) {
        let made = if args.parents { tree.mkdir_all(path, &new) } else { tree.mkdir(path, &new) };
        if let Err(e) = made {
            failures.add(&fail(e));
        }
    }
    if let Err(e) = opened.sync_all() {
        failures.add(&fail(e));
    }
    failures.result()
}

/// `adit mv`
pub fn mv(args: &MvArgs, global: &GlobalArgs) -> Result<()> {
    let (dir, opened) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*opened.store);
    let fail = |e: FsError| opened.failure(dir.display(), &e);
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
    opened.sync_all().map_err(fail)
}

/// `adit rm`
pub fn rm(args: &RmArgs, global: &GlobalArgs) -> Result<()> {
    let (_, opened) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*opened.store);
    // What is there is known before anybody is asked.
    let (mut failures, mut targets) = (Failures::default(), Vec::new());
    for path in &args.paths {
        match target(&tree, &opened, bytes(path), args.recursive) {
            Ok(target) => targets.push(target),
            Err(failure) => failures.add(&failure),
        }
    }
    if targets.is_empty() {
        return failures.result();
    }
    confirm(&question(&targets), args.yes)?;
    let mut progress = Progress::new("rm", global.quiet).advising(&opened.advice);
    for target in &targets {
        if let Err(e) = remove(&tree, target, &mut progress) {
            progress.failed_with(&e);
        }
    }
    if let Err(e) = opened.sync_all() {
        progress.failed_with(&e);
    }
    progress.finish().err().iter().for_each(|failure| failures.add(failure));
    failures.result()
}

/// Something that is to be removed.
struct Target<'a> {
    path: &'a [u8],
    kind: Kind,
}

/// What is at `path`; a folder only if it may go with all that is in it.
fn target<'a>(tree: &Tree<'_>, opened: &Opened, path: &'a [u8], recursive: bool) -> Result<Target<'a>> {
    let fail = |e: FsError| opened.failure("rm", &e);
    let (parent, entry) = tree.resolve_parent(path).map_err(fail)?;
    let kind = tree.child(&parent, &entry).map_err(fail)?.kind();
    if kind == Kind::Directory && !recursive {
        return Err(Failure::new(Code::Failure, format!("rm: {}: is a directory", printable(path)))
            .hint("--recursive removes folders with everything in them"));
    }
    Ok(Target { path, kind })
}

fn question(targets: &[Target<'_>]) -> String {
    let names: Vec<String> = targets
        .iter()
        .map(|target| match target.kind {
            Kind::Directory => format!("the folder {} with everything in it", printable(target.path)),
            _ => printable(target.path),
        })
        .collect();
    format!("Remove {} for good?", names.join(", "))
}

fn remove(tree: &Tree<'_>, target: &Target<'_>, progress: &mut Progress) -> Result<(), FsError> {
    if target.kind != Kind::Directory {
        return tree.remove(target.path);
    }
    // Both callbacks need the display.
    let progress = std::cell::RefCell::new(progress);
    tree.remove_all(
        target.path,
        &mut |node| progress.borrow_mut().entry(&adit_core::path::show(node.path())),
        &mut |error| progress.borrow_mut().failed_with(&error),
    )
    .map(drop)
}
