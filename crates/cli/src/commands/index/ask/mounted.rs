//! The same questions to the index that a mount keeps of itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde::Deserialize;
use serde_json::{Value, json};

use super::lines::{Line, Lines};
use super::resolve::{EMPTY, Missed};
use super::usage::{self, Added};
use crate::args::index_ask::{IndexFindArgs, IndexResolveArgs, IndexTopArgs, KindArg, SortArg};
use crate::asked::Asked;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::{self, JsonList, Output, add_name, printable};
use crate::question::{Answer, End, Hit, Piece, Question, Reading, Search, SortBy, Sum, Wording};

/// Paths that are asked for at once: so many, or as soon as they have so many bytes. A request is a line, which has a limit that is more than
/// these and the longest path take.
const BATCH_LEN: usize = 256;
const BATCH_LEN_BYTES: usize = 64 << 10;

/// A regular expression that matches nothing.
const NOTHING: &[u8] = b"[a&&b]";

/// `adit index find MOUNTPOINT`
pub fn find(asked: &Asked, args: &IndexFindArgs, patterns: Option<&[Vec<u8>]>) -> Result<()> {
    interrupt::watch();
    let question = Question::Find(Box::new(search(asked, args, patterns)));
    let mut out = Output::new();
    let mut list = if args.print.json && !args.count { Some(JsonList::begin(&mut out)?) } else { None };
    let end = asked.ask(&question, &mut |piece| {
        let Piece::Hits(hits) = piece else { return Ok(()) };
        for hit in &hits {
            match &mut list {
                Some(list) => list.add(&mut out, &entry(hit))?,
                None => path(&mut out, &hit.path, args.print.print0)?,
            }
        }
        out.flush()
    })?;
    match list {
        Some(list) => list.end(&mut out)?,
        None if args.count && args.print.json => out.json(&json!({ "count": end["count"] }))?,
        None if args.count => out.line(&end["count"])?,
        None => {}
    }
    out.finish()?;
    expect_whole(asked, &end)
}

/// As of an index file: `end` is what came last of the answer.
pub(super) fn expect_whole(asked: &Asked, end: &Value) -> Result<()> {
    let End { unread, .. } = End::deserialize(end).unwrap_or_default();
    super::not_whole(asked.mountpoint(), unread, &super::walked_again(asked.mountpoint()))
}

/// What was typed, in words of the question.
fn search(asked: &Asked, args: &IndexFindArgs, patterns: Option<&[Vec<u8>]>) -> Search {
    let syntax = match (args.glob, args.regex) {
        (true, _) => Reading::Glob,
        (_, true) => Reading::Regex,
        _ => Reading::Substring,
    };
    let wording = |syntax, text: &[u8], others: &[Vec<u8>]| Wording {
        syntax,
        text: text.to_vec(),
        others: others.to_vec(),
        ignore_case: args.ignore_case,
        full_path: args.full_path,
    };
    let kinds = args.kinds.iter().flat_map(|kind| match kind {
        KindArg::File => &["file"][..],
        KindArg::Directory => &["directory"],
        KindArg::Symlink => &["symlink"],
        KindArg::Other => &["fifo", "socket", "block-device", "char-device"],
    });
    let sort_by = |sort| match sort {
        SortArg::Path => SortBy::Path,
        SortArg::Name => SortBy::Name,
        SortArg::Size => SortBy::Size,
        SortArg::Time => SortBy::Time,
    };
    let some_size = args.min_size.is_some() || args.max_size.is_some();
    Search {
        patterns: patterns
            .map(|texts| match texts {
                [text, others @ ..] => wording(syntax, text, others),
                [] => wording(Reading::Regex, NOTHING, &[]),
            })
            .into_iter()
            .collect(),
        excludes: args.exclude.iter().map(|text| wording(Reading::Glob, text.as_bytes(), &[])).collect(),
        kinds: kinds.map(|word| (*word).to_owned()).collect(),
        extensions: args.extensions.iter().map(|extension| extension.as_bytes().to_vec()).collect(),
        size: some_size.then(|| (args.min_size.unwrap_or(0), args.max_size.unwrap_or(u64::MAX))),
        mtime_ns: args.mtime_ns(),
        below: asked.path_of_mount(&args.below),
        depth: args.max_depth.map(|depth| (1, depth)),
        limit: args.limit,
        sort: args.sort.map(|sort| (sort_by(sort), args.reverse)),
        count_only: args.count,
    }
}

/// An entry as `ls --json` has it.
fn entry(hit: &Hit) -> Value {
    let mut told = json!({ "kind": hit.kind, "size": hit.size, "mode": hit.perm, "mtime_ns": hit.mtime_ns });
    if let Some(hash) = &hit.hash {
        told["hash"] = hash.as_str().into();
    }
    add_name(&mut told, "path", &rooted(&hit.path));
    told
}

pub(super) fn rooted(path: &[u8]) -> Vec<u8> {
    [b"/", path].concat()
}

fn path(out: &mut Output, path: &[u8], print0: bool) -> Result<()> {
    let path = rooted(path);
    match print0 {
        true => out.bytes(&path).and_then(|()| out.bytes(b"\0")),
        false => out.line(printable(&path)),
    }
}

/// `adit index resolve MOUNTPOINT`
pub fn resolve(asked: &Asked, args: &IndexResolveArgs) -> Result<()> {
    interrupt::watch();
    let mut out = Output::new();
    let list = if args.print.json { Some(JsonList::begin(&mut out)?) } else { None };
    let start = asked.path_of_mount(&args.start);
    let print0 = args.print.print0;
    let mut answers =
        Answers { asked, start, list, print0, missing: 0, end: Value::Null, waiting: Vec::new(), waiting_bytes: 0 };
    if args.paths.is_empty() {
        answers.all_of(Lines::of_stdin(args.print.print0), &mut out)?;
    } else {
        args.paths.iter().try_for_each(|path| answers.add(path.as_bytes().to_vec(), &mut out))?;
        answers.flush(&mut out)?;
    }
    let Answers { list, missing, end, .. } = answers;
    list.map_or(Ok(()), |list| list.end(&mut out))?;
    out.finish()?;
    if missing == 0 {
        return Ok(());
    }
    expect_whole(asked, &end)?;
    Err(Failure::said(Code::Failure))
}

struct Answers<'a> {
    asked: &'a Asked,
    start: Vec<u8>,
    list: Option<JsonList>,
    print0: bool,
    missing: u64,
    /// What came last of the last answer.
    end: Value,
    /// Paths that are still to be asked for, and how many bytes they have.
    waiting: Vec<Vec<u8>>,
    waiting_bytes: usize,
}

impl Answers<'_> {
    /// Answers each path that `lines` has.
    fn all_of(&mut self, mut lines: Lines, out: &mut Output) -> Result<()> {
        loop {
            let mut path = Vec::new();
            match lines.next(&mut path)? {
                Line::Path => self.add(path, out)?,
                Line::TooLong(len_bytes) => {
                    self.flush(out)?;
                    let start = self.rooted_start();
                    self.miss(&Missed::too_long(&path, len_bytes, &start), out)?;
                }
                Line::End => return self.flush(out),
            }
        }
    }

    /// Asks for a path, soon.
    fn add(&mut self, path: Vec<u8>, out: &mut Output) -> Result<()> {
        self.waiting_bytes += path.len();
        self.waiting.push(path);
        match self.waiting.len() >= BATCH_LEN || self.waiting_bytes >= BATCH_LEN_BYTES {
            true => self.flush(out),
            false => Ok(()),
        }
    }

    /// Asks for those that wait.
    fn flush(&mut self, out: &mut Output) -> Result<()> {
        self.waiting_bytes = 0;
        let paths = std::mem::take(&mut self.waiting);
        if paths.is_empty() { Ok(()) } else { self.batch(paths, out) }
    }

    fn batch(&mut self, paths: Vec<Vec<u8>>, out: &mut Output) -> Result<()> {
        let named: Vec<Vec<u8>> = paths.iter().filter(|path| !path.is_empty()).cloned().collect();
        let mut left = paths.iter();
        let asked = self.asked;
        if !named.is_empty() {
            let question = Question::Resolve { start: self.start.clone(), paths: named };
            self.end = asked.ask(&question, &mut |piece| {
                let Piece::Answers(answers) = piece else { return Ok(()) };
                answers.iter().try_for_each(|answer| {
                    for path in &mut left {
                        if !path.is_empty() {
                            return self.tell(path, answer, out);
                        }
                        self.tell_empty(out)?;
                    }
                    Ok(())
                })
            })?;
        }
        left.try_for_each(|_| self.tell_empty(out))
    }

    /// Where relative paths begin, with a slash in front.
    fn rooted_start(&self) -> Vec<u8> {
        let start: Vec<&[u8]> = self.start.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        rooted(&start.join(&b'/'))
    }

    /// An empty path is none: see the answers of an index file.
    fn tell_empty(&mut self, out: &mut Output) -> Result<()> {
        let start = self.rooted_start();
        self.miss(&Missed { asked: b"", why: EMPTY, reached: &start, rest: b"", len_bytes: None }, out)
    }

    fn tell(&mut self, asked: &[u8], answer: &Answer, out: &mut Output) -> Result<()> {
        let (why, reached, rest) = match answer {
            Answer::Found(hit) => {
                let Some(list) = &mut self.list else { return path(out, &hit.path, self.print0) };
                let mut told = entry(hit);
                told["found"] = true.into();
                add_name(&mut told, "asked", asked);
                return list.add(out, &told);
            }
            Answer::Missing { deepest, component, is_unread } => {
                (if *is_unread { "not-known" } else { "not-found" }, rooted(deepest), from_name(asked, *component))
            }
            Answer::NotDirectory { at, component, is_link } => {
                (if *is_link { "link" } else { "not-directory" }, rooted(at), from_name(asked, component + 1))
            }
        };
        self.miss(&Missed { asked, why, reached: &reached, rest, len_bytes: None }, out)
    }

    fn miss(&mut self, missed: &Missed<'_>, out: &mut Output) -> Result<()> {
        self.missing += 1;
        missed.tell(self.list.as_mut(), out)
    }
}

/// What is left of a path from the name with this number on, counted from 0.
fn from_name(path: &[u8], number: usize) -> &[u8] {
    let begins = |at: &usize| path[*at] != b'/' && (*at == 0 || path[*at - 1] == b'/');
    let at = (0..path.len()).filter(begins).nth(number).unwrap_or(path.len());
    &path[at..]
}

/// What is at `path`, added up, with what is in it where that is `wanted`; and what came last of the answer.
pub(super) fn du(asked: &Asked, path: &OsStr, wanted: bool) -> Result<(Added, Value)> {
    let mut children = Vec::new();
    let question = Question::Du { path: asked.path_of_mount(path) };
    let end = asked.ask(&question, &mut |piece| {
        if let Piece::Sums(sums) = piece
            && wanted
        {
            children.extend(sums);
        }
        Ok(())
    })?;
    let total = Sum::deserialize(&end).map_err(|e| Failure::new(Code::Failure, e))?;
    Ok((Added { total, children }, end))
}

/// `adit index top MOUNTPOINT`
pub fn top(asked: &Asked, args: &IndexTopArgs) -> Result<()> {
    interrupt::watch();
    let mut largest = Vec::new();
    let question = Question::Top { path: asked.path_of_mount(&args.below), count: args.count };
    let end = asked.ask(&question, &mut |piece| {
        if let Piece::Sums(sums) = piece {
            largest.push(sums);
        }
        Ok(())
    })?;
    let mut out = Output::new();
    let (files, directories) = match &largest[..] {
        [files, directories] => (&files[..], &directories[..]),
        _ => (&[][..], &[][..]),
    };
    if args.print.json {
        let told = |sums: &[Sum]| sums.iter().map(usage::json_of).collect::<Vec<_>>();
        out.json(&json!({ "files": told(files), "directories": told(directories) }))?;
    } else {
        files.iter().chain(directories).try_for_each(|sum| usage::print(sum, args.print, &mut out))?;
    }
    out.finish()?;
    expect_whole(asked, &end)
}

/// `adit index info MOUNTPOINT`, and what is said after `adit index update MOUNTPOINT`.
pub fn about(asked: &Asked, question: &Question, json: bool) -> Result<()> {
    interrupt::watch();
    let mut told = asked.ask(question, &mut |_| Ok(()))?;
    add_name(&mut told, "mountpoint", asked.mountpoint().as_os_str().as_bytes());
    let mut out = Output::new();
    match json {
        true => out.json(&told)?,
        false => output::human(&mut out, &told, 0)?,
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::from_name;

    #[test]
    fn the_rest_of_a_path_begins_at_a_name() {
        let names = |path: &'static str| (0..4).map(|n| from_name(path.as_bytes(), n)).collect::<Vec<_>>();
        assert_eq!(names("a/b/c"), [&b"a/b/c"[..], b"b/c", b"c", b""]);
        assert_eq!(names("//a//.//b/"), [&b"a//.//b/"[..], b".//b/", b"b/", b""]);
        assert_eq!(names(""), [b""; 4]);
    }
}
