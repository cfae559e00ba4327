//! Walking a source into an index: what is told meanwhile, what could not be read, and the file in the end.

use std::cell::Cell;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use adit_core::types::{Kind, Timestamp};
use adit_core::{ErrorKind, FsError};
use adit_index::publish::InPlace;
use adit_index::scan::{Before, Change, Event, Origin, ScanOptions};
use adit_index::{Builder, Built, Refusal, Segment, sealed};
use serde_json::{Value, json};

use super::from::From;
use crate::args::index::IndexMakeArgs;
use crate::args::low::GlobalArgs;
use crate::args::units::show_size;
use crate::exit_code::Code;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::open::index::{self as open_index, Head};
use crate::output::{Output, add_name, counted, counted_entries, printable};
use crate::progress::Progress;

/// Memory to sort in, unless it is said.
const MEMORY_BYTES: u64 = 256 << 20;
/// Most threads, unless it is said.
const THREADS_MAX: usize = 8;

/// Now, in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    i64::try_from(Timestamp::now().as_nanos()).unwrap_or(i64::MAX)
}

/// Where an index goes: a name that is no sign for standard output, with nothing there but an index, or an empty file.
///
/// # Errors
/// Usage; the host's.
pub fn expect_index_or_nothing(output: &Path) -> Result<()> {
    if output == Path::new("-") {
        let what = "-: an index is not written to standard output: it is a file, put into its place when it is whole";
        return Err(Failure::usage(what).hint("name a file with -o; one that is called so is ./-"));
    }
    match Head::of(output) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Failure::io(output.display(), &e)),
        Ok(Head::Index | Head::Sealed | Head::Empty) => Ok(()),
        Ok(Head::Other) => Err(Failure::usage(format!("{}: it is no index, and would be replaced", output.display()))
            .hint("name another file with -o, or remove it")),
    }
}

/// What was seen.
#[derive(Default)]
pub struct Counts {
    entries: u64,
    files: u64,
    symlinks: u64,
    size_bytes: u64,
    hashed_files: u64,
    read_bytes: u64,
    added: u64,
    changed: u64,
    same: u64,
    unsettled: u64,
    unreadable: u64,
    unread_contents: u64,
}

/// An index that was made before. That of a vault is memory, which goes when the source has been walked.
pub struct Earlier {
    /// What it says.
    pub segment: Arc<Segment>,
    /// When its making was begun, in nanoseconds since 1970.
    pub begun_ns: i64,
    /// Whether it is of the place that is walked.
    pub is_of_this_place: bool,
}

impl Earlier {
    fn before(&self) -> Before<'_> {
        let before = Before::new(&self.segment, self.begun_ns);
        if self.is_of_this_place { before } else { before.of_another_place() }
    }
}

/// An index in the making.
pub struct Making<'a> {
    /// Where it goes.
    pub output: &'a Path,
    /// What is to be indexed.
    pub from: &'a From,
    /// What it says of where it comes from; the count of what could not be read comes in the end.
    pub origin: Origin,
    /// The index that is brought up to date.
    pub earlier: Option<Earlier>,
    /// What was there when it was begun.
    pub in_place: InPlace,
    /// How it is made.
    pub args: &'a IndexMakeArgs,
}

impl Making<'_> {
    /// Makes it, and tells of it.
    ///
    /// # Errors
    /// The first thing that could not be read, unless the rest is wanted; then all of them were told. What the host says.
    pub fn make(mut self, global: &GlobalArgs) -> Result<()> {
        interrupt::watch();
        let began = std::time::Instant::now();
        let mut progress = Progress::new("index", global.quiet).advising(&self.from.advice);
        let known = self.from.entries().map(|entries| (entries, false));
        let before = || self.earlier.as_ref().map(|earlier| (u64::from(earlier.segment.len()), true));
        if let Some((entries, is_about)) = known.or_else(before) {
            progress = progress.of_entries(entries, is_about);
        }
        let mut builder = self.builder()?;
        let counts = match self.walk(&mut builder, &mut progress) {
            Ok(counts) => counts,
            Err(failure) => {
                let _ = progress.finish();
                return Err(failure);
            }
        };
        let entries_before = self.earlier.take().map(|earlier| earlier.before().entries());
        self.origin.unreadable = u32::try_from(counts.unreadable).unwrap_or(u32::MAX);
        self.origin.unread_contents = u32::try_from(counts.unread_contents).unwrap_or(u32::MAX);
        let other = Cell::new(false);
        let failed = |e: FsError| match other.get() {
            true => self.another_is_there(),
            false => open_index::failure(self.output, &e),
        };
        let mut may = || match self.may_replace() {
            Ok(true) => Ok(()),
            Ok(false) => {
                other.set(true);
                Err(ErrorKind::Stale.into())
            }
            Err(e) => Err(FsError::from(e).on("look at", self.output.display())),
        };
        builder.set_identity(&self.origin.encode()).map_err(failed)?;
        let mut report = |step| progress.step(step);
        let built = match &self.from.key {
            None => builder.finish_if(self.output, &mut report, &mut may),
            Some(key) => builder.finish_sealed(key, self.output, &mut report, &mut may),
        };
        let finished = progress.finish();
        let built = built.map_err(failed)?;
        self.tell(&counts, entries_before, &built, began.elapsed().as_secs_f64(), global)?;
        finished
    }

    /// Whether it may take the place of what is there: that is what was there when this was begun, or of a walk that was begun before this one. Two
    /// that are made at once end in any order, and the later look at the source is to stay.
    fn may_replace(&self) -> io::Result<bool> {
        let now = InPlace::at(self.output)?;
        if now == self.in_place || now.is_nothing() {
            return Ok(true);
        }
        let there = match &self.from.key {
            None => Segment::open(self.output),
            Some(key) => sealed::open(self.output, key, &mut open_index::on),
        };
        let origin = there.ok().and_then(|segment| Origin::decode(segment.identity()));
        Ok(origin.is_some_and(|origin| origin.begun_ns < self.origin.begun_ns))
    }

    fn another_is_there(&self) -> Failure {
        let path = self.output.display();
        let what = "something else was put there meanwhile, and is no index of an earlier look at the source";
        Failure::new(Code::Failure, format!("{path}: {what}: it stays, and this index was not written")).hint(format!(
            "`adit index info {path}` tells what it is; to bring it up to date: adit index update {path}"
        ))
    }

    fn builder(&self) -> Result<Builder> {
        let scratch = match self.output.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = Builder::new(scratch, self.args.memory.unwrap_or(MEMORY_BYTES));
        builder.set_tables(!self.origin.no_tables);
        if let Some((perm, mtime_ns)) = self.from.implied() {
            builder.set_implied(perm, mtime_ns);
        }
        if self.from.key.is_some() {
            builder.seal_scratch().map_err(|e| open_index::failure(self.output, &e))?;
        }
        Ok(builder)
    }

    /// Puts all entries into `builder`.
    fn walk(&self, builder: &mut Builder, progress: &mut Progress) -> Result<Counts> {
        let mut counts = Counts::default();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let options = ScanOptions {
            hash: self.origin.hashed,
            one_file_system: self.origin.one_file_system,
            threads: self.args.threads.map_or(processors.min(THREADS_MAX), usize::from),
            before: self.earlier.as_ref().map(Earlier::before),
        };
        let mut refused = None;
        let walked = self.from.walk(self.output, &options, &mut |event| {
            let mut is_content = false;
            let failed = match event {
                Event::Entry(entry, change) => match builder.add(&entry) {
                    Ok(()) => {
                        counts.add(&entry, change);
                        None
                    }
                    Err(e) if is_refusal(&e) => Some(e),
                    Err(e) => return Err(e),
                },
                Event::Bytes(count) => {
                    counts.read_bytes += count;
                    None
                }
                Event::Failed(e) => Some(e),
                Event::Unread(e) => {
                    counts.unread_contents += 1;
                    is_content = true;
                    Some(e)
                }
                Event::Unsettled(_) => {
                    counts.unsettled += 1;
                    None
                }
            };
            if let Some(e) = failed {
                counts.unreadable += u64::from(!is_content);
                if !self.args.keep_going {
                    refused = Some(e);
                    return Ok(ControlFlow::Break(()));
                }
                progress.failed_with(&e);
            }
            progress.reached(counts.entries, counts.read_bytes);
            Ok(if interrupt::came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        let about = |e: &FsError| self.from.advice.failure(self.from.place.display(), e);
        match (refused, walked) {
            (Some(e), _) => {
                let failure = about(&e);
                Err(match failure.code() {
                    Code::Corrupt => failure,
                    _ => failure.hint("nothing was written; --keep-going indexes the rest, and tells what is missing"),
                })
            }
            (None, Err(e)) if e.kind() == ErrorKind::Interrupted && interrupt::came() => {
                Err(Failure::said(Code::Failure))
            }
            (None, walked) => walked.map(|()| counts).map_err(|e| about(&e)),
        }
    }

    fn tell(
        &self,
        counts: &Counts,
        entries_before: Option<u64>,
        built: &Built,
        secs: f64,
        global: &GlobalArgs,
    ) -> Result<()> {
        let file_bytes = fs::metadata(self.output).map_or(built.file_len, |meta| meta.len());
        let mut told = json!({
            "kind": self.origin.kind.as_str(),
            // With the root, and folders that no entry names, as `info` counts them.
            "entries": built.nodes,
            "files": counts.files,
            "directories": built.directories,
            "symlinks": counts.symlinks,
            "size": counts.size_bytes,
            "hashed_files": counts.hashed_files,
            "read_bytes": counts.read_bytes,
            "unreadable": counts.unreadable,
            "unread_contents": counts.unread_contents,
            "unsettled": counts.unsettled,
            "file_bytes": file_bytes,
            "encrypted": self.from.key.is_some(),
            "secs": (secs * 1000.0).round() / 1000.0,
        });
        add_name(&mut told, "path", self.output.as_os_str().as_bytes());
        add_name(&mut told, "source", self.from.place.as_os_str().as_bytes());
        if let Some(before) = entries_before {
            told["updated"] = true.into();
            told["added"] = counts.added.into();
            told["changed"] = counts.changed.into();
            told["removed"] = before.saturating_sub(counts.same + counts.changed).into();
        }
        say(&told, self.args.json, global)
    }
}

impl Counts {
    fn add(&mut self, entry: &adit_index::Entry<'_>, change: Change) {
        self.entries += 1;
        match entry.kind {
            Kind::Symlink => self.symlinks += 1,
            Kind::File => {
                self.files += 1;
                self.size_bytes = self.size_bytes.saturating_add(entry.size);
            }
            _ => {}
        }
        self.hashed_files += u64::from(entry.hash.is_some());
        match change {
            Change::Added => self.added += 1,
            Change::Changed => self.changed += 1,
            Change::Same => self.same += 1,
        }
    }
}

/// Whether an entry alone cannot be in an index.
fn is_refusal(error: &FsError) -> bool {
    error.cause().is_some_and(|cause| cause.downcast_ref::<Refusal>().is_some())
}

/// Tells what was made: to programs on standard output, to people on standard error.
pub fn say(told: &Value, json: bool, global: &GlobalArgs) -> Result<()> {
    if json {
        let mut out = Output::new();
        out.json(told)?;
        return out.finish();
    }
    if global.quiet {
        return Ok(());
    }
    let number = |field: &str| told[field].as_u64().unwrap_or(0);
    let path = printable(told["path"].as_str().unwrap_or_default().as_bytes());
    let mut parts = vec![counted_entries(number("entries")), show_size(number("file_bytes"))];
    if told["updated"] == true {
        let (added, changed, removed) = (number("added"), number("changed"), number("removed"));
        parts.insert(1, format!("{added} added, {changed} changed, {removed} removed"));
    }
    eprintln!("adit: {path}: {}", parts.join(", "));
    if number("unsettled") > 0 {
        let (files, have) = match number("unsettled") {
            1 => ("1 file was".to_owned(), "has"),
            count => (format!("{count} files were"), "have"),
        };
        eprintln!("adit: {path}: {files} changed again and again while being read, and {have} no hash");
    }
    if number("unreadable") > 0 {
        let things = counted(number("unreadable"), "thing");
        eprintln!("adit: {path}: not whole: {things} could not be read, as told above");
    }
    if number("unread_contents") > 0 {
        let files = counted(number("unread_contents"), "file");
        eprintln!("adit: {path}: the content of {files} could not be read for its hash, as told above");
    }
    Ok(())
}
