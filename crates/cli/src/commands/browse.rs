//! `ls`, `tree`, `cat`: reading a source without a mount.

use std::cell::RefCell;

use adit_core::path::{Last, Node, Step, Tree, Visit, show};
use adit_core::types::{Access, Kind};
use adit_core::{ErrorKind, FsError};

use super::bytes;
use crate::args::low::{CatArgs, GlobalArgs, LsArgs, TreeArgs};
use crate::failure::{Failure, Failures, Result};
use crate::open::{self, Opened, Purpose};
use crate::output::{EntryJson, JsonList, Output, counted, mode_text, printable, time_text};

/// How much of a file is read at once.
const READ_LEN_BYTES: usize = 1 << 20;

/// What is shown of each entry: the node, its depth below the start, and whether it is the last of its folder.
type Shown<'a> = dyn FnMut(&Node<'_>, usize, bool) -> Result<()> + 'a;

/// Shows `start` and what is below it, down to `depth_max`.
fn each<'t>(
    tree: &'t Tree<'t>,
    opened: &Opened,
    start: Node<'t>,
    depth_max: usize,
    failures: &RefCell<Failures>,
    shown: &mut Shown<'_>,
) -> Result<()> {
    let mut stopped = None;
    let walked = tree.walk(start, &mut |visit| match visit {
        Visit::Entry { node, depth, last, .. } => match shown(node, depth, last) {
            Ok(()) if depth < depth_max => Ok(Step::Into),
            Ok(()) => Ok(Step::Past),
            Err(failure) => {
                stopped = Some(failure);
                Err(ErrorKind::Interrupted.into())
            }
        },
        Visit::Leave { .. } => Ok(Step::Past),
        Visit::Failed { error, path } => {
            failures.borrow_mut().add(&opened.failure(show(path), &error));
            Ok(Step::Past)
        }
    });
    match stopped {
        Some(failure) => Err(failure),
        None => walked.map_err(|e| opened.failure("walk", &e)),
    }
}

/// The target, if `node` is a symbolic link; a link that cannot be read is a failure, and shown without.
fn target_of(tree: &Tree<'_>, opened: &Opened, node: &Node<'_>, failures: &RefCell<Failures>) -> Option<Vec<u8>> {
    if node.kind() != Kind::Symlink {
        return None;
    }
    tree.read_link(node).inspect_err(|e| failures.borrow_mut().add(&opened.failure(show(node.path()), e))).ok()
}

/// What a listing of `path` begins with: a folder, also where a link leads to it; any other link is shown itself.
fn named<'t>(tree: &'t Tree<'_>, path: &[u8]) -> Result<Node<'t>, FsError> {
    match tree.resolve(path, Last::Follow) {
        Ok(node) if node.kind() == Kind::Directory => Ok(node),
        _ => tree.resolve(path, Last::Keep),
    }
}

/// `adit ls`
pub fn ls(args: &LsArgs, global: &GlobalArgs) -> Result<()> {
    let (dir, opened) = open::source(&args.source, global, Purpose::Read)?;
    let tree = Tree::new(&*opened.store);
    let path = args.path.as_deref().map_or(&b"/"[..], bytes);
    let start = named(&tree, path).map_err(|e| opened.failure(dir.display(), &e))?;
    let is_dir = start.kind() == Kind::Directory;
    let cut = if start.path().is_empty() { 0 } else { start.path().len() + 1 };
    let depth_max = if args.recursive { usize::MAX } else { 1 };
    let failures = RefCell::new(Failures::default());
    let mut out = Output::new();
    let mut list = if args.json { Some(JsonList::begin(&mut out)?) } else { None };
    each(&tree, &opened, start, depth_max, &failures, &mut |node, depth, _| {
        if is_dir && depth == 0 {
            return Ok(());
        }
        let target = if args.json || args.long { target_of(&tree, &opened, node, &failures) } else { None };
        if let Some(list) = &mut list {
            return list.add(&mut out, &EntryJson::new(node, target.as_deref()));
        }
        let name = printable(node.path().get(cut..).filter(|_| is_dir).unwrap_or(node.name()));
        if !args.long {
            return out.line(name);
        }
        let attr = node.attr();
        let (mode, time) = (mode_text(attr.kind, attr.perm), time_text(attr.mtime));
        match target {
            Some(target) => out.line(format_args!("{mode} {:>12} {time} {name} -> {}", attr.size, printable(&target))),
            None => out.line(format_args!("{mode} {:>12} {time} {name}", attr.size)),
        }
    })?;
    if let Some(list) = list {
        list.end(&mut out)?;
    }
    out.finish()?;
    failures.into_inner().result()
}

/// `adit tree`
pub fn tree(args: &TreeArgs, global: &GlobalArgs) -> Result<()> {
    let (dir, opened) = open::source(&args.source, global, Purpose::Read)?;
    let tree = Tree::new(&*opened.store);
    let path = args.path.as_deref().map_or(&b"/"[..], bytes);
    let start = named(&tree, path).map_err(|e| opened.failure(dir.display(), &e))?;
    let failures = RefCell::new(Failures::default());
    let mut out = Output::new();
    let mut list = if args.json { Some(JsonList::begin(&mut out)?) } else { None };
    let (mut folders, mut files, mut links) = (0u64, 0u64, 0u64);
    // For each level above the entry, whether something still comes after it there.
    let mut more: Vec<bool> = Vec::new();
    each(&tree, &opened, start, args.depth.unwrap_or(usize::MAX), &failures, &mut |node, depth, last| {
        let target = target_of(&tree, &opened, node, &failures);
        if let Some(list) = &mut list {
            return if depth == 0 { Ok(()) } else { list.add(&mut out, &EntryJson::new(node, target.as_deref())) };
        }
        if depth == 0 {
            return out.line(printable(show(node.path()).as_bytes()));
        }
        *match node.kind() {
            Kind::Directory => &mut folders,
            Kind::Symlink => &mut links,
            _ => &mut files,
        } += 1;
        more.truncate(depth - 1);
        let mut line: String = more.iter().map(|&more| if more { "│   " } else { "    " }).collect();
        more.push(!last);
        line.push_str(if last { "└── " } else { "├── " });
        line.push_str(&printable(node.name()));
        if let Some(target) = target {
            line.push_str(" -> ");
            line.push_str(&printable(&target));
        }
        out.line(line)
    })?;
    match list {
        Some(list) => list.end(&mut out)?,
        None => out.line(format_args!(
            "\n{}, {}, {}",
            counted(folders, "folder"),
            counted(files, "file"),
            counted(links, "link")
        ))?,
    }
    out.finish()?;
    failures.into_inner().result()
}

/// `adit cat`
pub fn cat(args: &CatArgs, global: &GlobalArgs) -> Result<()> {
    let (_, opened) = open::source(&args.source, global, Purpose::Read)?;
    let tree = Tree::new(&*opened.store);
    let mut out = Output::new();
    let mut failures = Failures::default();
    let mut buffer = vec![0; READ_LEN_BYTES];
    for path in &args.paths {
        let subject = printable(bytes(path));
        if let Err(e) = cat_one(&tree, bytes(path), &mut buffer, &mut out) {
            // What was read before the error is real, and stays in order with the messages.
            out.flush()?;
            failures.add(&e.into_failure(&opened, &subject));
        }
    }
    out.finish()?;
    failures.result()
}

/// Prints the file at `path` on standard output.
pub fn print_file(tree: &Tree<'_>, opened: &Opened, path: &[u8]) -> Result<()> {
    let mut out = Output::new();
    let printed = cat_one(tree, path, &mut vec![0; READ_LEN_BYTES], &mut out);
    // What was read before an error is real.
    out.finish()?;
    printed.map_err(|e| e.into_failure(opened, &printable(path)))
}

/// Reading and writing fail differently: one file cannot be read, or nobody listens any more.
enum CatError {
    Read(FsError),
    Write(Failure),
}

impl CatError {
    fn into_failure(self, opened: &Opened, subject: &str) -> Failure {
        match self {
            CatError::Read(error) => opened.failure(subject, &error),
            CatError::Write(failure) => failure,
        }
    }
}

fn cat_one(tree: &Tree<'_>, path: &[u8], buffer: &mut [u8], out: &mut Output) -> Result<(), CatError> {
    let node = tree.resolve(path, Last::Follow).map_err(CatError::Read)?;
    if node.kind() != Kind::File {
        let kind = if node.kind() == Kind::Directory { ErrorKind::IsDirectory } else { ErrorKind::InvalidInput };
        return Err(CatError::Read(kind.into()));
    }
    let file = tree.store().open(node.ino(), Access::Read).map_err(CatError::Read)?;
    let mut offset = 0;
    loop {
        let len = file.read_at(offset, buffer).map_err(CatError::Read)?;
        let Some(piece) = buffer.get(..len).filter(|piece| !piece.is_empty()) else { return Ok(()) };
        out.bytes(piece).map_err(CatError::Write)?;
        offset += len as u64;
    }
}
