//! `index dupes` and `index diff`.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;

use adit_core::error::ErrorKind;
use adit_core::types::Kind;
use adit_index::query::{Change, Content, Diff, DiffSummary, Dupes, DupesSummary, Group, Paths};
use adit_index::scan::UNREADABLE;
use adit_index::{ContentHash, NodeId, Segment};
use serde_json::{Value, json};

use super::{directory, expect_contents, expect_whole, mounted_compare, rooted, show, until};
use crate::args::index_ask::{ContentArg, IndexDiffArgs, IndexDupesArgs};
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::asked::Asked;
use crate::devices::{self, Answerer};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::index::{IndexFile, Opener, only_file};
use crate::output::{JsonList, Output, add_name, counted, printable};

/// `adit index dupes`
pub fn dupes(args: &IndexDupesArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(asked) = Asked::around(&args.of.index, global.quiet)? {
        devices::of_mount(&args.by, global.quiet)?;
        return mounted_compare::dupes(&asked, args, global);
    }
    let index = only_file(&args.of.index, &args.of.secret, global.quiet)?;
    let question = Dupes::new().min_size(args.min_size).below(directory(&index, OsStr::new(&args.below))?);
    let by = Answerer::new(&index, &args.by)?;
    interrupt::watch();
    let summary = tell_dupes(&index, args, 0, &mut |sink| by.dupes(&index, &question, sink))?;
    by.finish(&index);
    let unread = index.origin().map_or(0, |origin| u64::from(origin.unread_contents));
    // Of those whose content could not be read, it is told below.
    if summary.unhashed > unread && !global.quiet {
        let (files, size) = (counted(summary.unhashed, "file"), show_size(summary.unhashed_bytes));
        let (have, were, them) = if summary.unhashed == 1 { ("has", "was", "it") } else { ("have", "were", "them") };
        eprintln!(
            "adit: {}: {files} ({size}) {have} no hash, and {were} not compared\n  adit index update {0} --hash reads {them}",
            index.path.display()
        );
    }
    expect_contents(&index)
}

/// Gives groups of equal files to whom it is told, and says in the end what was looked at.
type Run<'r> = dyn FnMut(&mut dyn FnMut(&Group) -> ControlFlow<()>) -> Result<DupesSummary> + 'r;

/// Prints the groups of `index` that `run` finds. So many files as `unique_size` says were left out because no other has their size.
pub(super) fn tell_dupes(
    index: &IndexFile,
    args: &IndexDupesArgs,
    unique_size: u64,
    run: &mut Run<'_>,
) -> Result<DupesSummary> {
    let mut out = Output::new();
    let mut paths = Paths::new(&index.segment);
    if args.print.json {
        out.bytes(b"{\"groups\": ")?;
    }
    let mut list = if args.print.json { Some(JsonList::begin(&mut out)?) } else { None };
    let (mut failure, mut left) = (None, args.limit.unwrap_or(u64::MAX));
    let found = run(&mut |group| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        let printed = match &mut list {
            Some(list) => Equal::of(index, &mut paths, group).and_then(|equal| list.add(&mut out, &equal.json())),
            None => Equal::of(index, &mut paths, group).and_then(|equal| equal.print(args.print.print0, &mut out)),
        };
        until(&mut failure, printed)
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    let summary = found?;
    if let Some(list) = list {
        list.end(&mut out)?;
        end_of_dupes(&summary, unique_size, &mut out)?;
    }
    out.finish()?;
    Ok(summary)
}

/// Files of equal content, as they are told.
struct Equal {
    /// Size of each, in bytes.
    size: u64,
    /// The hash of their content.
    hash: ContentHash,
    /// Where they are, with a slash in front.
    paths: Vec<Vec<u8>>,
}

impl Equal {
    fn of(index: &IndexFile, paths: &mut Paths<'_>, group: &Group) -> Result<Equal> {
        let of = group.nodes.iter().map(|node| show::rooted(index, paths, *node));
        Ok(Equal { size: group.size, hash: group.hash, paths: of.collect::<Result<_>>()? })
    }

    /// What all but one take, in bytes.
    fn wasted_bytes(&self) -> u64 {
        self.size.saturating_mul(self.paths.len() as u64 - 1)
    }

    /// Each path, and an empty one behind the last.
    fn print(&self, print0: bool, out: &mut Output) -> Result<()> {
        self.paths.iter().try_for_each(|path| show::path(out, path, print0))?;
        show::path(out, b"", print0)
    }

    fn json(&self) -> Value {
        let files = self.paths.iter().map(|path| {
            let mut told = json!({});
            add_name(&mut told, "path", path);
            told
        });
        json!({
            "size": self.size,
            "hash": format!("{:032x}", u128::from_be_bytes(self.hash)),
            "wasted_bytes": self.wasted_bytes(),
            "files": files.collect::<Vec<Value>>(),
        })
    }
}

/// The rest of the object whose first field are the groups.
fn end_of_dupes(summary: &DupesSummary, unique_size: u64, out: &mut Output) -> Result<()> {
    let DupesSummary { hashed, unhashed, unhashed_bytes, groups, duplicates, wasted_bytes } = *summary;
    let fields = [
        ("hashed", hashed),
        ("unhashed", unhashed),
        ("unhashed_bytes", unhashed_bytes),
        ("unique_size", unique_size),
        ("count", groups),
        ("duplicates", duplicates),
        ("wasted_bytes", wasted_bytes),
    ];
    for (name, value) in fields {
        out.bytes(format!(", \"{name}\": {value}\n").as_bytes())?;
    }
    out.line("}")
}

/// `adit index diff`
pub fn diff(args: &IndexDiffArgs, global: &GlobalArgs) -> Result<()> {
    let mut opener = Opener::new(&args.secret, global.quiet);
    let mut tree = |name: &Path| match Asked::of(name, global.quiet)? {
        Some(asked) => mounted_compare::whole(&asked),
        None => opener.open(name),
    };
    let (before, after) = (tree(&args.before)?, tree(&args.after)?);
    let content = match args.content {
        ContentArg::Best => Content::Best,
        ContentArg::Time => Content::SizeAndTime,
        ContentArg::Size => Content::Size,
    };
    let time_step_ns = before.time_step_ns().max(after.time_step_ns());
    let question = Diff::new().content(content).perm(args.perm).renames(!args.no_renames).time_step_ns(time_step_ns);
    let by = Answerer::new(&before, &args.by)?;
    interrupt::watch();
    let mut out = Output::new();
    let mut list = if args.print.json { Some(JsonList::begin(&mut out)?) } else { None };
    let mut trees =
        Trees { before: (&before, Paths::new(&before.segment)), after: (&after, Paths::new(&after.segment)) };
    let mut failure = None;
    let found = by.diff(&before, &after, &question, &mut |change| {
        let printed = trees.told(&change).and_then(|told| match &mut list {
            Some(list) => list.add(&mut out, &told.json()),
            None => told.print(args.print.print0, &mut out),
        });
        until(&mut failure, printed)
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    let DiffSummary { .. } = found?;
    list.map_or(Ok(()), |list| list.end(&mut out))?;
    out.finish()?;
    by.finish(&before);
    let expect = if content == Content::Best { expect_contents } else { expect_whole };
    [&before, &after].into_iter().try_for_each(expect)
}

/// Both trees, and where the last change in each was.
struct Trees<'a> {
    before: (&'a IndexFile, Paths<'a>),
    after: (&'a IndexFile, Paths<'a>),
}

/// A change, as it is told.
struct Told {
    change: &'static str,
    kind: Kind,
    path: Vec<u8>,
    from: Option<Vec<u8>>,
}

impl Trees<'_> {
    fn told(&mut self, change: &Change) -> Result<Told> {
        let at = |tree: &mut (&IndexFile, Paths<'_>), node: NodeId| {
            let (index, paths) = tree;
            let path = rooted(paths, node).and_then(|path| Ok((path, index.segment.kind(node)?)));
            path.map_err(|e| index.failure(&e))
        };
        // What the other index could not have seen may well be there.
        let word = |other: &IndexFile, path: &[u8], word| match knows(other, path) {
            Ok(true) => Ok(word),
            Ok(false) => Ok("unknown"),
            Err(e) => Err(other.failure(&e)),
        };
        let (change, (path, kind), from) = match *change {
            Change::Added(node) => {
                let there = at(&mut self.after, node)?;
                (word(self.before.0, &there.0, "added")?, there, None)
            }
            Change::Removed(node) => {
                let there = at(&mut self.before, node)?;
                (word(self.after.0, &there.0, "removed")?, there, None)
            }
            Change::Changed { before, after, what } => {
                let content = what.kind || what.hash || what.size || what.mtime;
                let is_known = what.kind
                    || what.size
                    || (leads_somewhere(self.before.0, before)? && leads_somewhere(self.after.0, after)?);
                let word = match (is_known, content) {
                    (false, _) => "unknown",
                    (true, true) => "changed",
                    (true, false) => "attributes",
                };
                (word, at(&mut self.after, after)?, None)
            }
            Change::Renamed { before, after, .. } => {
                ("renamed", at(&mut self.after, after)?, Some(at(&mut self.before, before)?.0))
            }
        };
        Ok(Told { change, kind, path, from })
    }
}

/// Whether a node is no link, or one of which it is known where it leads.
fn leads_somewhere(index: &IndexFile, node: NodeId) -> Result<bool> {
    let is_unread = |segment: &Segment| {
        Ok(segment.kind(node)? == Kind::Symlink && segment.extra(node)?.starts_with(mounted_compare::UNREAD_LINK))
    };
    is_unread(&index.segment).map(|unread: bool| !unread).map_err(|e| index.failure(&e))
}

/// Whether an index that has nothing at a path could have something: the last directory of the way that it has was read.
fn knows(index: &IndexFile, path: &[u8]) -> adit_core::Result<bool> {
    if index.unreadable() == 0 {
        return Ok(true);
    }
    let mut at = NodeId::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        match index.segment.lookup(at, name) {
            Ok(Some(node)) => at = node,
            Ok(None) => break,
            Err(e) if e.kind() == ErrorKind::NotDirectory => break,
            Err(e) => return Err(e),
        }
    }
    Ok(!index.segment.extra(at)?.starts_with(UNREADABLE))
}

impl Told {
    fn json(&self) -> Value {
        let mut told = json!({ "kind": self.kind.as_str(), "change": self.change, "from": null });
        add_name(&mut told, "path", &self.path);
        if let Some(from) = &self.from {
            add_name(&mut told, "from", from);
        }
        told
    }

    /// With zero bytes: the word, a space, where it was if that is another place, where it is.
    fn print(&self, print0: bool, out: &mut Output) -> Result<(), Failure> {
        if print0 {
            out.bytes(self.change.as_bytes())?;
            out.bytes(b" ")?;
            for path in self.from.iter().chain([&self.path]) {
                show::path(out, path, true)?;
            }
            return Ok(());
        }
        let folder = if self.kind == Kind::Directory { "/" } else { "" };
        let path = printable(&self.path);
        match &self.from {
            Some(from) => out.line(format_args!("renamed  {}{folder} -> {path}{folder}", printable(from))),
            None => out.line(format_args!("{:<8} {path}{folder}", self.change)),
        }
    }
}
