//! Questions to an index: `find`, `resolve`, `dupes`, `diff`, `du`, `top`.

mod compare;
mod deep;
mod find;
mod lines;
pub mod mounted;
mod mounted_compare;
mod resolve;
mod show;
mod usage;

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use adit_core::types::Kind;
use adit_index::NodeId;
use adit_index::query::Paths;
use adit_index::resolve::walk;

use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::open::index::IndexFile;
use crate::output::{counted, printable};

pub use compare::{diff, dupes};
pub use find::find;
pub use resolve::resolve;
pub use usage::{du, top};

/// The directory at `path`.
///
/// # Errors
/// `Failure` if it is not there, or is none.
fn directory(index: &IndexFile, path: &OsStr) -> Result<NodeId> {
    let node = node_at(index, path)?;
    match index.segment.kind(node).map_err(|e| index.failure(&e))? {
        Kind::Directory => Ok(node),
        _ => Err(Failure::new(Code::Failure, format!("{}: {}: not a folder", index.path.display(), shown(path)))),
    }
}

/// What is at `path`.
fn node_at(index: &IndexFile, path: &OsStr) -> Result<NodeId> {
    let failed = |e| index.failure(&e);
    walk(&index.segment, NodeId::ROOT, path.as_bytes()).map_err(failed)?.map_err(|miss| {
        let why = resolve::why(index, &miss).unwrap_or("not-known").replace('-', " ");
        Failure::new(Code::Failure, format!("{}: {}: {why}", index.path.display(), shown(path)))
    })
}

fn shown(path: &OsStr) -> String {
    printable(path.as_bytes())
}

/// Goes on for as long as there was no failure and no signal; keeps the failure.
fn until(kept: &mut Option<Failure>, done: Result<()>) -> ControlFlow<()> {
    if let Err(failure) = done {
        *kept = Some(failure);
    }
    if kept.is_some() || crate::interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// The path of a node with a slash in front.
fn rooted(paths: &mut Paths<'_>, node: NodeId) -> adit_core::Result<Vec<u8>> {
    Ok([b"/", paths.of(node)?].concat())
}

/// Fails, when all that is known was told, if the index does not know everything: what is missing in the answer need not be absent.
///
/// # Errors
/// `Failure`, with how much could not be read.
fn expect_whole(index: &IndexFile) -> Result<()> {
    let again = match index.origin() {
        Some(_) => looked_at_again(index),
        None => walked_again(&index.path),
    };
    not_whole(&index.path, index.unreadable(), &again)
}

/// As [`expect_whole`], for a question that needs contents as well: where one could not be read, it was not compared.
///
/// # Errors
/// `Failure`, with how much could not be read.
fn expect_contents(index: &IndexFile) -> Result<()> {
    expect_whole(index)?;
    let files = match index.origin().map_or(0, |origin| origin.unread_contents) {
        0 => return Ok(()),
        count => counted(count.into(), "file"),
    };
    let what = "could not be read for its hash when it was made, and was not compared";
    Err(Failure::new(Code::Failure, format!("{}: not whole: the content of {files} {what}", index.path.display()))
        .hint(looked_at_again(index)))
}

/// What to do about things that could not be read: they may be no more readable than before.
fn looked_at_again(index: &IndexFile) -> String {
    format!("`adit index update {} --keep-going` looks at them again", index.path.display())
}

/// What to do about things that could not be read in a mount.
fn walked_again(mountpoint: &Path) -> String {
    format!("`adit index update {}` walks the tree again", mountpoint.display())
}

fn not_whole(path: &Path, unreadable: u64, again: &str) -> Result<()> {
    if unreadable == 0 {
        return Ok(());
    }
    let things = counted(unreadable, "thing");
    let what = "could not be read when it was made, and may be missing in the answer";
    Err(Failure::new(Code::Failure, format!("{}: not whole: {things} {what}", path.display())).hint(again))
}
