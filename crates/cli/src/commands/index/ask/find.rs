//! `index find`.

use std::os::unix::ffi::OsStrExt;

use adit_core::ErrorKind;
use adit_core::types::Kind;
use adit_index::query::{Order, Paths, PatternBuilder, Query, Syntax};
use serde_json::json;

use super::lines::Lines;
use super::{directory, expect_whole, mounted, show, until};
use crate::args::index_ask::{IndexFindArgs, KindArg, SortArg};
use crate::args::low::GlobalArgs;
use crate::asked::Asked;
use crate::devices::{self, Answerer};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::index::{IndexFile, only_file};
use crate::output::{JsonList, Output};

/// `adit index find`
pub fn find(args: &IndexFindArgs, global: &GlobalArgs) -> Result<()> {
    let patterns = patterns(args)?;
    let query = query(args, patterns.as_deref())?;
    if let Some(asked) = Asked::around(&args.of.index, global.quiet)? {
        devices::of_mount(&args.by, global.quiet)?;
        return mounted::find(&asked, args, patterns.as_deref());
    }
    let index = only_file(&args.of.index, &args.of.secret, global.quiet)?;
    let query = query.below(directory(&index, &args.below)?);
    let by = Answerer::new(&index, &args.by)?;
    interrupt::watch();
    let mut out = Output::new();
    if args.count {
        let count = by.count(&index, &query)?;
        match args.print.json {
            true => out.json(&json!({ "count": count }))?,
            false => out.line(count)?,
        }
    } else {
        print(&index, &by, &query, args, &mut out)?;
    }
    out.finish()?;
    by.finish(&index);
    expect_whole(&index)
}

/// What is looked for: none for everything, else what any of them matches. Empty lines are none.
fn patterns(args: &IndexFindArgs) -> Result<Option<Vec<Vec<u8>>>> {
    let Some(file) = &args.patterns_from else {
        return Ok(args.pattern.as_ref().map(|text| vec![text.as_bytes().to_vec()]));
    };
    let mut texts = Lines::open(file, args.print.print0)?.all()?;
    texts.retain(|text| !text.is_empty());
    Ok(Some(texts))
}

/// What was typed as a question, but for the folder.
fn query(args: &IndexFindArgs, patterns: Option<&[Vec<u8>]>) -> Result<Query> {
    let syntax = match (args.glob, args.regex) {
        (true, _) => Syntax::Glob,
        (_, true) => Syntax::Regex,
        _ => Syntax::Substring,
    };
    let pattern = |syntax, texts: &[&[u8]]| {
        let mut builder = PatternBuilder::new(syntax);
        builder.ignore_case(args.ignore_case).full_path(args.full_path);
        builder.build_any(texts).map_err(|e| match e.kind() {
            ErrorKind::InvalidInput => Failure::usage(e),
            _ => Failure::fs("find", &e),
        })
    };
    let mut query = Query::new();
    if let Some(texts) = patterns {
        let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        query = query.pattern(pattern(syntax, &texts)?);
    }
    for text in &args.exclude {
        query = query.exclude(pattern(Syntax::Glob, &[text.as_bytes()])?);
    }
    if !args.kinds.is_empty() {
        let kinds: Vec<Kind> = args.kinds.iter().flat_map(|kind| kinds(*kind)).copied().collect();
        query = query.kinds(&kinds);
    }
    for extension in &args.extensions {
        query = query.extension(extension.as_bytes());
    }
    if args.min_size.is_some() || args.max_size.is_some() {
        query = query.size(args.min_size.unwrap_or(0)..=args.max_size.unwrap_or(u64::MAX));
    }
    if let Some((first, last)) = args.mtime_ns() {
        query = query.mtime_ns(first..=last);
    }
    if let Some(depth) = args.max_depth {
        query = query.depth(1..=depth);
    }
    if let Some(limit) = args.limit {
        query = query.limit(limit);
    }
    Ok(match args.sort {
        Some(sort) => query.sort(order(sort), args.reverse),
        None => query,
    })
}

fn order(sort: SortArg) -> Order {
    match sort {
        SortArg::Path => Order::Path,
        SortArg::Name => Order::Name,
        SortArg::Size => Order::Size,
        SortArg::Time => Order::Time,
    }
}

fn kinds(kind: KindArg) -> &'static [Kind] {
    match kind {
        KindArg::File => &[Kind::File],
        KindArg::Directory => &[Kind::Directory],
        KindArg::Symlink => &[Kind::Symlink],
        KindArg::Other => &[Kind::Fifo, Kind::Socket, Kind::BlockDevice, Kind::CharDevice],
    }
}

fn print(index: &IndexFile, by: &Answerer, query: &Query, args: &IndexFindArgs, out: &mut Output) -> Result<()> {
    let mut paths = Paths::new(&index.segment);
    let mut list = if args.print.json { Some(JsonList::begin(out)?) } else { None };
    let mut failure = None;
    let found = by.search(index, query, &mut |hit| {
        let printed = show::rooted(index, &mut paths, hit.node).and_then(|path| match &mut list {
            Some(list) => {
                let entry = show::entry(index, hit.node, &path).map_err(|e| index.failure(&e))?;
                list.add(out, &entry)
            }
            None => show::path(out, &path, args.print.print0),
        });
        until(&mut failure, printed)
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    found?;
    list.map_or(Ok(()), |list| list.end(out))
}
