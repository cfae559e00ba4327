//! `index resolve`.

use std::os::unix::ffi::OsStrExt;

use adit_index::NodeId;
use adit_index::query::Paths;
use adit_index::resolve::{Miss, MissKind, Question};
use adit_index::scan::UNREADABLE;
use serde_json::{Value, json};

use super::lines::{Line, Lines, PATH_LEN_MAX_BYTES};
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
/// So much of a path is shown in a message, in bytes: as much of its beginning, and of its end.
const SHOWN_BEGIN_BYTES: usize = 120;
const SHOWN_END_BYTES: usize = 70;

/// Why nothing is looked up for an empty path, in a word.
pub const EMPTY: &str = "empty";
/// Likewise for one that is longer than any may be.
pub const TOO_LONG: &str = "too-long";

/// `adit index resolve`
pub fn resolve(args: &IndexResolveArgs, global: &GlobalArgs) -> Result<()> {
    if let Some(asked) = Asked::around(&args.of.index, true)? {
        devices::of_mount(&args.by, global.quiet)?;
        return mounted::resolve(&asked, args);
    }
    let index = only_file(&args.of.index, &args.of.secret, global.quiet)?;
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
        answers.all_of(Lines::of_stdin(args.print.print0), &mut out)?;
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
    /// Answers each path that `lines` has.
    fn all_of(&mut self, mut lines: Lines, out: &mut Output) -> Result<()> {
        let batch_len = BATCH_LEN_BYTES << if self.by.likes_large_batches() { DEVICE_BATCH_SHIFT } else { 0 };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        loop {
            let before = bytes.len();
            let line = lines.next(&mut bytes)?;
            if line == Line::Path {
                ends.push(bytes.len());
            }
            if line != Line::Path || bytes.len() >= batch_len || ends.len() >= batch_len / 16 {
                let starts = [0].iter().chain(&ends);
                let paths: Vec<&[u8]> = starts.zip(&ends).map(|(start, end)| &bytes[*start..*end]).collect();
                self.batch(&paths, out)?;
                drop(paths);
                if let Line::TooLong(len_bytes) = line {
                    self.too_long(&bytes[before..], len_bytes, out)?;
                }
                bytes.clear();
                ends.clear();
            }
            if line == Line::End {
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
                    let reached = self.rooted(miss.reached)?;
                    let rest = asked.get(miss.at..).unwrap_or_default();
                    self.miss(&Missed { asked, why, reached: &reached, rest, len_bytes: None }, out)?;
                }
                None => {
                    let reached = self.rooted(self.start)?;
                    self.miss(&Missed { asked, why: EMPTY, reached: &reached, rest: b"", len_bytes: None }, out)?;
                }
            }
        }
        Ok(())
    }

    fn rooted(&mut self, node: NodeId) -> Result<Vec<u8>> {
        rooted(&mut self.paths, node).map_err(|e| self.index.failure(&e))
    }

    /// Of a path of so many bytes, `front` is the beginning.
    fn too_long(&mut self, front: &[u8], len_bytes: u64, out: &mut Output) -> Result<()> {
        let reached = self.rooted(self.start)?;
        self.miss(&Missed::too_long(front, len_bytes, &reached), out)
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

    fn miss(&mut self, missed: &Missed<'_>, out: &mut Output) -> Result<()> {
        self.missing += 1;
        missed.tell(self.list.as_mut(), out)
    }
}

/// A path that leads nowhere.
pub struct Missed<'a> {
    /// The path.
    pub asked: &'a [u8],
    /// Why it does, in a word.
    pub why: &'a str,
    /// How far it leads.
    pub reached: &'a [u8],
    /// What is left of it.
    pub rest: &'a [u8],
    /// The length of one of which only the beginning was kept.
    pub len_bytes: Option<u64>,
}

impl<'a> Missed<'a> {
    /// One of so many bytes, of which this is the beginning.
    pub fn too_long(front: &'a [u8], len_bytes: u64, reached: &'a [u8]) -> Missed<'a> {
        Missed { asked: front, why: TOO_LONG, reached, rest: front, len_bytes: Some(len_bytes) }
    }

    /// Says how far the path leads, and why no further: in the list if there is one, else on standard error.
    ///
    /// # Errors
    /// Those of the output.
    pub fn tell(&self, list: Option<&mut JsonList>, out: &mut Output) -> Result<()> {
        let Some(list) = list else {
            // What was found before stays in order with it.
            out.flush()?;
            eprintln!("adit: {}", self.sentence());
            return Ok(());
        };
        let mut told: Value = json!({ "found": false, "why": self.why });
        add_name(&mut told, "asked", self.asked);
        add_name(&mut told, "reached", self.reached);
        add_name(&mut told, "missing", self.rest);
        if let Some(len_bytes) = self.len_bytes {
            told["asked_bytes"] = len_bytes.into();
        }
        list.add(out, &told)
    }

    fn sentence(&self) -> String {
        let (asked, reached) = (shortened(self.asked), shortened(self.reached));
        match self.why {
            EMPTY => "an empty path: it names nothing; the root is /".to_owned(),
            TOO_LONG => format!("{asked}: too long: paths of more than {PATH_LEN_MAX_BYTES} bytes are not looked up"),
            "not-directory" => format!("{asked}: {reached} is not a folder"),
            "link" => format!("{asked}: {reached} is a link, and where it leads is not looked up"),
            "not-known" => format!("{asked}: not known: {reached} could not be read when the index was made"),
            _ => {
                let name = self.rest.split(|byte| *byte == b'/').next().unwrap_or_default();
                format!("{asked}: not found: {reached} has no {}", shortened(name))
            }
        }
    }
}

/// A path as people read it: of a long one the beginning and the end.
fn shortened(path: &[u8]) -> String {
    let text = printable(path);
    if text.len() <= SHOWN_BEGIN_BYTES + SHOWN_END_BYTES {
        return text;
    }
    let begin = text.floor_char_boundary(SHOWN_BEGIN_BYTES);
    let end = text.ceil_char_boundary(text.len() - SHOWN_END_BYTES);
    format!("{}...{}", &text[..begin], &text[end..])
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
