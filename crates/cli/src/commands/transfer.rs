//! `get` and `put`: copying between a source and this machine, without a mount.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use adit_core::path::transfer::{CopyOptions, HostPlace, Outward, copy_in, copy_out, open_dir};
use adit_core::path::{Last, Node, Tree};
use adit_core::store::Store;
use adit_core::types::Kind;
use adit_core::{ErrorKind, FsError};

use super::bytes;
use crate::args::low::{GetArgs, GlobalArgs, PutArgs};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::{self, Purpose};
use crate::progress::Progress;

/// `adit get`
pub fn get(args: &GetArgs, global: &GlobalArgs) -> Result<()> {
    let (dir, vault) = open::source(&args.source, global, Purpose::Read)?;
    let tree = Tree::new(&*vault.store);
    let start = tree.resolve(bytes(&args.path), Last::Keep).map_err(|e| Failure::fs(dir.display(), &e))?;
    let to = destination(&args.dest, &start).map_err(|e| Failure::fs("get", &e))?;
    let options = CopyOptions { replace: !args.no_replace, ..CopyOptions::default() };
    interrupt::watch();
    let mut progress = Progress::new("get", global.quiet);
    let done = copy_out(&tree, start, to, &options, &mut |event| progress.event(event));
    let finished = progress.finish();
    done.map_err(|e| Failure::fs("get", &e))?;
    finished
}

/// Into `dest` if it is a folder, else as it. The root has no name: what it holds goes into `dest`.
fn destination(dest: &Path, start: &Node<'_>) -> Result<Outward, FsError> {
    if dest.is_dir() {
        return Ok(match start.name() {
            b"" => Outward::Into(open_dir(dest)?),
            name => Outward::As(HostPlace::of(&dest.join(OsStr::from_bytes(name)))?),
        });
    }
    if start.kind() != Kind::Directory && dest.as_os_str().as_bytes().ends_with(b"/") {
        return Err(FsError::new(ErrorKind::NotFound).on("open", dest.display()));
    }
    Ok(Outward::As(HostPlace::of(dest)?))
}

/// `adit put`
pub fn put(args: &PutArgs, global: &GlobalArgs) -> Result<()> {
    let (dir, vault) = open::source(&args.source, global, Purpose::Write)?;
    let tree = Tree::new(&*vault.store);
    let fail = |e: FsError| Failure::fs(dir.display(), &e);
    let own = std::fs::metadata(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
    let options = CopyOptions { replace: !args.no_replace, leave_out: Some((own.dev(), own.ino())) };
    let path = bytes(&args.path);
    let into = match tree.resolve(path, Last::Follow) {
        Ok(node) if node.kind() == Kind::Directory => Some(node),
        Err(e) if !e.is_not_found() => return Err(fail(e)),
        _ if args.host.len() > 1 || path.ends_with(b"/") => {
            let error = FsError::new(ErrorKind::NotDirectory).on("put", args.path.display());
            return Err(fail(error).hint("to copy several things into a new folder, make it first: adit mkdir"));
        }
        _ => None,
    };
    interrupt::watch();
    let mut progress = Progress::new("put", global.quiet);
    let mut result = Ok(());
    for host in &args.host {
        let target = match &into {
            Some(folder) => Target::Into(folder),
            None => Target::As(path),
        };
        match put_one(&tree, host, target, &options, &mut progress) {
            Ok(()) => {}
            Err(e) if is_final(&e) => {
                result = Err(Failure::fs("put", &e));
                break;
            }
            Err(e) => progress.failed(&Failure::fs("put", &e)),
        }
    }
    let synced = vault.store.sync_all().map_err(|e| Failure::fs("put", &e));
    let finished = progress.finish();
    result?;
    synced?;
    finished
}

/// Where one thing goes.
#[derive(Clone, Copy)]
enum Target<'a> {
    Into(&'a Node<'a>),
    As(&'a [u8]),
}

fn put_one(
    tree: &Tree<'_>,
    host: &Path,
    target: Target<'_>,
    options: &CopyOptions,
    progress: &mut Progress,
) -> Result<(), FsError> {
    let from = host_place(host)?;
    let mut tell = |event: adit_core::path::transfer::Event<'_>| progress.event(event);
    match target {
        Target::Into(folder) => {
            // The folder again, as a node of this tree; by its path, which holds no links.
            let folder = tree.resolve(folder.path(), Last::Keep)?;
            copy_in(tree, &from, &folder, from.name().as_bytes(), options, &mut tell).map(drop)
        }
        Target::As(path) => {
            let (parent, name) = tree.resolve_parent(path)?;
            copy_in(tree, &from, &parent, &name, options, &mut tell).map(drop)
        }
    }
}

/// The place on this machine; `.`, `..` and a trailing slash mean the folder itself.
fn host_place(host: &Path) -> Result<HostPlace, FsError> {
    let names_itself = matches!(host.components().next_back(), Some(std::path::Component::Normal(_)));
    if names_itself && !host.as_os_str().as_bytes().ends_with(b"/") {
        return HostPlace::of(host);
    }
    let real = host.canonicalize().map_err(|e| FsError::from(e).on("open", host.display()))?;
    HostPlace::of(&real)
}

/// Whether every further copy would fail in the same way.
fn is_final(error: &FsError) -> bool {
    use ErrorKind::*;
    matches!(error.kind(), NoSpace | QuotaExceeded | ReadOnly | Network | Interrupted | Exhausted)
}
