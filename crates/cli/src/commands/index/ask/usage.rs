//! `index du` and `index top`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use adit_index::NodeId;
use adit_index::query::{self, Paths, Usage};
use serde_json::{Value, json};

use super::lines::{Line, Lines};
use super::{directory, expect_whole, mounted, node_at, show};
use crate::args::index_ask::{IndexDuArgs, IndexTopArgs, PrintArgs};
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::asked::Asked;
use crate::exit_code::Code;
use crate::failure::{Failure, Failures, Result};
use crate::interrupt;
use crate::open::index::{IndexFile, only_file};
use crate::output::{JsonList, Output, add_name, printable};
use crate::question::Sum;

/// An entry, added up, and each thing in it.
pub(super) struct Added {
    pub total: Sum,
    pub children: Vec<Sum>,
}

impl Added {
    fn tell(&self, list: Option<&mut JsonList>, args: &IndexDuArgs, out: &mut Output) -> Result<()> {
        if args.print.json {
            let mut told = json_of(&self.total);
            if !args.summarize {
                told["children"] = self.children.iter().map(json_of).collect();
            }
            return match list {
                Some(list) => list.add(out, &told),
                None => out.json(&told),
            };
        }
        let children = if args.summarize { &[][..] } else { &self.children };
        children.iter().chain([&self.total]).try_for_each(|sum| print(sum, args.print, out))
    }
}

/// What an entry comes to, with a slash in front of its path.
pub(super) fn json_of(sum: &Sum) -> Value {
    let mut told = json!({
        "kind": sum.kind,
        "files": sum.files,
        "directories": sum.directories,
        "others": sum.others,
        "size": sum.bytes,
    });
    add_name(&mut told, "path", &[b"/", &sum.path[..]].concat());
    told
}

/// Likewise a line of it.
pub(super) fn print(sum: &Sum, print: PrintArgs, out: &mut Output) -> Result<()> {
    let path = [b"/", &sum.path[..]].concat();
    if print.print0 {
        out.bytes(format!("{} ", sum.bytes).as_bytes())?;
        return show::path(out, &path, true);
    }
    let folder = if sum.kind == "directory" && !sum.path.is_empty() { "/" } else { "" };
    out.line(format_args!("{:>10}  {}{folder}", show_size(sum.bytes), printable(&path)))
}

fn sum(index: &IndexFile, paths: &mut Paths<'_>, node: NodeId, usage: Usage) -> Result<Sum> {
    let failed = |e| index.failure(&e);
    let kind = index.segment.kind(node).map_err(failed)?.as_str().to_owned();
    let Usage { files, directories, others, bytes } = usage;
    Ok(Sum { path: paths.of(node).map_err(failed)?.to_vec(), kind, files, directories, others, bytes })
}

/// `adit index du`
pub fn du(args: &IndexDuArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(asked) = Asked::around(&args.of.index, global.quiet)? {
        interrupt::watch();
        let mut end = Value::Null;
        let failures = each(args, &mut |path| {
            let (added, last) = mounted::du(&asked, path, !args.summarize)?;
            end = last;
            Ok(added)
        })?;
        return ended(failures, mounted::expect_whole(&asked, &end));
    }
    let index = only_file(&args.of.index, &args.of.secret, global.quiet)?;
    interrupt::watch();
    let mut paths = Paths::new(&index.segment);
    let failures = each(args, &mut |path| {
        let node = node_at(&index, path)?;
        let used = query::du(&index.segment, node).map_err(|e| index.failure(&e))?;
        let children = if args.summarize { Vec::new() } else { used.children };
        let children = children.into_iter().map(|(node, usage)| sum(&index, &mut paths, node, usage));
        let children = children.collect::<Result<_>>()?;
        Ok(Added { total: sum(&index, &mut paths, node, used.total)?, children })
    })?;
    ended(failures, expect_whole(&index))
}

/// What could not be added up was told; that not all is known is told as well.
fn ended(mut failures: Failures, whole: Result<()>) -> Result<()> {
    if let Err(failure) = whole {
        failures.add(&failure);
    }
    failures.result()
}

/// Tells what `add_up` makes of each path that was asked for. Of many, one that it cannot add up is told and passed over: those are returned.
fn each(args: &IndexDuArgs, add_up: &mut dyn FnMut(&OsStr) -> Result<Added>) -> Result<Failures> {
    let mut out = Output::new();
    if let (None, [path]) = (&args.paths_from, &args.paths[..]) {
        add_up(path)?.tell(None, args, &mut out)?;
        out.finish()?;
        return Ok(Failures::default());
    }
    let mut list = if args.print.json { Some(JsonList::begin(&mut out)?) } else { None };
    let mut failures = Failures::default();
    let mut one = |added: Result<Added>, out: &mut Output| match added {
        Ok(added) => added.tell(list.as_mut(), args, out),
        Err(failure) if interrupt::came() => Err(failure),
        Err(failure) => {
            // What was added up before stays in order with it.
            out.flush()?;
            failures.add(&failure);
            Ok(())
        }
    };
    match &args.paths_from {
        None => args.paths.iter().try_for_each(|path| one(add_up(path), &mut out))?,
        Some(file) => {
            let mut lines = Lines::open(file, args.print.print0)?;
            loop {
                let mut path = Vec::new();
                let added = match lines.next(&mut path)? {
                    Line::End => break,
                    Line::Path if path.is_empty() => continue,
                    Line::Path => add_up(OsStr::from_bytes(&path)),
                    Line::TooLong(len_bytes) => {
                        Err(Failure::new(Code::Failure, format!("a path of {len_bytes} bytes: longer than any may be")))
                    }
                };
                one(added, &mut out)?;
                if interrupt::came() {
                    return Err(Failure::new(Code::Failure, "interrupted"));
                }
            }
        }
    }
    list.map_or(Ok(()), |list| list.end(&mut out))?;
    out.finish()?;
    Ok(failures)
}

/// `adit index top`
pub fn top(args: &IndexTopArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(asked) = Asked::around(&args.of.index, global.quiet)? {
        return mounted::top(&asked, args);
    }
    let index = only_file(&args.of.index, &args.of.secret, global.quiet)?;
    let below = directory(&index, &args.below)?;
    let found = query::top(&index.segment, below, args.count).map_err(|e| index.failure(&e))?;
    let mut paths = Paths::new(&index.segment);
    let mut out = Output::new();
    let directories = found.directories.into_iter().map(|(node, usage)| sum(&index, &mut paths, node, usage));
    let directories: Vec<Sum> = directories.collect::<Result<_>>()?;
    if args.print.json {
        let files = found.files.iter().map(|(node, _)| {
            let path = show::rooted(&index, &mut paths, *node)?;
            let entry = show::entry(&index, *node, &path).map_err(|e| index.failure(&e))?;
            serde_json::to_value(&entry).map_err(|e| Failure::output(&e.into()))
        });
        let files: Vec<Value> = files.collect::<Result<_>>()?;
        let directories: Vec<Value> = directories.iter().map(json_of).collect();
        out.json(&json!({ "files": files, "directories": directories }))?;
    } else {
        for (node, _) in &found.files {
            let usage = query::du(&index.segment, *node).map_err(|e| index.failure(&e))?.total;
            print(&sum(&index, &mut paths, *node, usage)?, args.print, &mut out)?;
        }
        directories.iter().try_for_each(|sum| print(sum, args.print, &mut out))?;
    }
    out.finish()?;
    expect_whole(&index)
}
