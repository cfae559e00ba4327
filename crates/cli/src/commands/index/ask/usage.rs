//! `index du` and `index top`.

use adit_index::NodeId;
use adit_index::query::{self, Paths, Usage};
use serde_json::{Value, json};

use super::{directory, expect_whole, mounted, node_at, show};
use crate::args::index_ask::{IndexDuArgs, IndexTopArgs, PrintArgs};
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::asked::Asked;
use crate::failure::{Failure, Result};
use crate::open::index::{IndexFile, only_file};
use crate::output::{Output, add_name, printable};

/// A node with what is below it.
struct Line {
    path: Vec<u8>,
    kind: &'static str,
    usage: Usage,
}

fn line(index: &IndexFile, paths: &mut Paths<'_>, node: NodeId, usage: Usage) -> Result<Line> {
    let kind = index.segment.kind(node).map_err(|e| index.failure(&e))?.as_str();
    Ok(Line { path: show::rooted(index, paths, node)?, kind, usage })
}

impl Line {
    fn json(&self) -> Value {
        let Usage { files, directories, others, bytes, .. } = self.usage;
        let mut told = json!({
            "kind": self.kind,
            "files": files,
            "directories": directories,
            "others": others,
            "size": bytes,
        });
        add_name(&mut told, "path", &self.path);
        told
    }

    fn print(&self, print: PrintArgs, out: &mut Output) -> Result<()> {
        match print.print0 {
            true => {
                out.bytes(format!("{} ", self.usage.bytes).as_bytes())?;
                show::path(out, &self.path, true)
            }
            false => {
                let folder = if self.kind == "directory" && self.path != b"/" { "/" } else { "" };
                out.line(format_args!("{:>10}  {}{folder}", show_size(self.usage.bytes), printable(&self.path)))
            }
        }
    }
}

/// `adit index du`
pub fn du(args: &IndexDuArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(asked) = Asked::around(&args.of.index, global.quiet)? {
        return mounted::du(&asked, args);
    }
    let index = only_file(&args.of.index, &args.of.secret, global.quiet)?;
    let node = node_at(&index, &args.path)?;
    let used = query::du(&index.segment, node).map_err(|e| index.failure(&e))?;
    let mut paths = Paths::new(&index.segment);
    let total = line(&index, &mut paths, node, used.total)?;
    let children = used.children.into_iter().map(|(node, usage)| line(&index, &mut paths, node, usage));
    let children: Vec<Line> = children.collect::<Result<_>>()?;
    let mut out = Output::new();
    if args.print.json {
        let mut told = total.json();
        told["children"] = children.iter().map(Line::json).collect();
        out.json(&told)?;
    } else {
        children.iter().chain([&total]).try_for_each(|line| line.print(args.print, &mut out))?;
    }
    out.finish()?;
    expect_whole(&index)
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
    let directories = found.directories.into_iter().map(|(node, usage)| line(&index, &mut paths, node, usage));
    let directories: Vec<Line> = directories.collect::<Result<_>>()?;
    if args.print.json {
        let files = found.files.iter().map(|(node, _)| {
            let path = show::rooted(&index, &mut paths, *node)?;
            let entry = show::entry(&index, *node, &path).map_err(|e| index.failure(&e))?;
            serde_json::to_value(&entry).map_err(|e| Failure::output(&e.into()))
        });
        let files: Vec<Value> = files.collect::<Result<_>>()?;
        let directories: Vec<Value> = directories.iter().map(Line::json).collect();
        out.json(&json!({ "files": files, "directories": directories }))?;
    } else {
        for (node, _) in &found.files {
            let usage = query::du(&index.segment, *node).map_err(|e| index.failure(&e))?.total;
            line(&index, &mut paths, *node, usage)?.print(args.print, &mut out)?;
        }
        directories.iter().try_for_each(|line| line.print(args.print, &mut out))?;
    }
    out.finish()?;
    expect_whole(&index)
}
