//! `index resolve`.

use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;

use adit_index::NodeId;
use adit_index::query::Paths;
use adit_index::resolve::{Miss, MissKind, Question};
use adit_index::scan::UNREADABLE;
use serde_json::{Value, json};

use super::{directory, mounted, rooted, show};
use crate::args::index_ask::IndexResolveArgs;
use crate::args::low::GlobalArgs;
use crate::asked::Asked;
use crate::devices::{self, Answerer};
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::index::{IndexFile, only_file};
use crate::output::{JsonList, Output, add_name, printable};

/// So many bytes of paths are answered together.
const BATCH_LEN_BYTES: usize = 4 << 20;
/// So many times as many, as a power of two, where a device may answer.
const DEVICE_BATCH_SHIFT: u32 = 3;
/// Longest path that is read, in bytes: none in an index is longer.
const PATH_LEN_MAX_BYTES: u64 = 1 << 20;

/// Why nothing is looked up for an empty path, in a word.
pub const EMPTY: &str = "empty";

/// `adit index resolve`
pub fn resolve(args: &IndexResolveArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(asked) = Asked::around(&args.of.index, true)? {
        devices::of_mount(&args.by, global.quiet)?;
        return mounted::resolve(&asked, args);
    }
    let index = only_file(&args.of.index, &args.of.secret)?;
    let by = Answerer::new(&index, &args.by)?;
    interrupt::watch();
    let start = directory(&index, &args.start)?;
    let mut out = Output::new();
    let mut answers = Answers {
        index: &index,
        by: &by,
        start,
        list: if args.print.json { Some(JsonList::begin(&mut out)?) } else { None },
        print0: args.print.print0,
        paths: Paths::new(&index.segment),
        missing: 0,
    };
    if args.paths.is_empty() {
        answers.all_of(&mut BufReader::with_capacity(1 << 20, interrupt::Input), &mut out)?;
    } else {
        let paths: Vec<&[u8]> = args.paths.iter().map(|path| path.as_bytes()).collect();
        answers.batch(&paths, &mut out)?;
    }
    let Answers { list, missing, .. } = answers;
    list.map_or(Ok(()), |list| list.end(&mut out))?;
    out.finish()?;
    by.finish(&index);
    if missing == 0 { Ok(()) } else { Err(Failure::said(Code::Failure)) }
}

struct Answers<'a> {
    index: &'a IndexFile,
    by: &'a Answerer,
    start: NodeId,
    list: Option<JsonList>,
    print0: bool,
    paths: Paths<'a>,
    missing: u64,
}

impl Answers<'_> {
    /// Answers each path that `input` has.
    fn all_of(&mut self, input: &mut dyn BufRead, out: &mut Output) -> Result<()> {
        let end = if self.print0 { 0 } else { b'\n' };
        let failed = |e: &io::Error| Failure::io("standard input", e);
        let batch_len = BATCH_LEN_BYTES << if self.by.likes_large_batches() { DEVICE_BATCH_SHIFT } else { 0 };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        loop {
            let before = bytes.len();
            let mut limited = io::Read::take(&mut *input, PATH_LEN_MAX_BYTES);
            let len = limited.read_until(end, &mut bytes).map_err(|e| failed(&e))?;
            if len as u64 == PATH_LEN_MAX_BYTES && bytes.last() != Some(&end) {
                let what = format!("standard input: a path of more than {PATH_LEN_MAX_BYTES} bytes");
                return Err(Failure::usage(what).hint("paths are ended by newlines, with -0 by zero bytes"));
            }
            if bytes.len() > before && bytes.last() == Some(&end) {
                bytes.pop();
            }
            if len > 0 {
                ends.push(bytes.len());
            }
            if len == 0 || bytes.len() >= batch_len || ends.len() >= batch_len / 16 {
                let starts = [0].iter().chain(&ends);
                let paths: Vec<&[u8]> = starts.zip(&ends).map(|(start, end)| &bytes[*start..*end]).collect();
                self.batch(&paths, out)?;
                drop(paths);
                bytes.clear();
                ends.clear();
            }
            if len == 0 {
                return Ok(());
            }
        }
    }

    fn batch(&mut self, asked: &[&[u8]], out: &mut Output) -> Result<()> {
        let named = asked.iter().filter(|path| !path.is_empty());
        let questions: Vec<Question<'_>> = named.map(|path| Question { start: self.start, path }).collect();
        let mut resolved = self.by.resolve(self.index, &questions)?.into_iter();
        for asked in asked {
            // An empty path is none, as for the system: an empty line is no question about the root.
            match if asked.is_empty() { None } else { resolved.next() } {
                Some(Ok(node)) => self.found(asked, node, out)?,
                Some(Err(miss)) => {
                    let why = why(self.index, &miss).map_err(|e| self.index.failure(&e))?;
                    self.miss(asked, why, miss.reached, asked.get(miss.at..).unwrap_or_default(), out)?;
                }
                None => self.miss(asked, EMPTY, self.start, b"", out)?,
            }
        }
        Ok(())
    }

    fn found(&mut self, asked: &[u8], node: NodeId, out: &mut Output) -> Result<()> {
        let failed = |e| self.index.failure(&e);
        let path = rooted(&mut self.paths, node).map_err(failed)?;
        let Some(list) = &mut self.list else { return show::path(out, &path, self.print0) };
        let entry = show::entry(self.index, node, &path).map_err(failed)?;
        let mut told = serde_json::to_value(&entry).map_err(|e| Failure::output(&e.into()))?;
        told["found"] = true.into();
        add_name(&mut told, "asked", asked);
        list.add(out, &told)
    }

    /// Says how far a path leads, and why no further.
    fn miss(&mut self, asked: &[u8], why: &str, reached: NodeId, rest: &[u8], out: &mut Output) -> Result<()> {
        self.missing += 1;
        let reached = rooted(&mut self.paths, reached).map_err(|e| self.index.failure(&e))?;
        let Some(list) = &mut self.list else {
            // What was found before stays in order with it.
            out.flush()?;
            eprintln!("adit: {}", missed(asked, why, &reached, rest));
            return Ok(());
        };
        let mut told: Value = json!({ "found": false, "why": why });
        add_name(&mut told, "asked", asked);
        add_name(&mut told, "reached", &reached);
        add_name(&mut told, "missing", rest);
        list.add(out, &told)
    }
}

/// Why the path `asked` leads no further than to `reached`, in a sentence; `rest` is what is left of it.
pub fn missed(asked: &[u8], why: &str, reached: &[u8], rest: &[u8]) -> String {
    let (asked, rest, reached) = (printable(asked), printable(rest), printable(reached));
    match why {
        EMPTY => "an empty path: it names nothing; the root is /".to_owned(),
        "not-directory" => format!("{asked}: {reached} is not a folder"),
        "link" => format!("{asked}: {reached} is a link, and where it leads is not looked up"),
        "not-known" => format!("{asked}: not known: {reached} could not be read when the index was made"),
        _ => format!("{asked}: not found: {reached} has no {}", rest.split('/').next().unwrap_or_default()),
    }
}

/// Why a path leads no further, in a word.
pub fn why(index: &IndexFile, miss: &Miss) -> adit_core::Result<&'static str> {
    Ok(match miss.why {
        MissKind::NotDirectory => "not-directory",
        MissKind::Link => "link",
        // What is in it was not all seen.
        _ if index.segment.extra(miss.reached)?.starts_with(UNREADABLE) => "not-known",
        _ => "not-found",
    })
}
