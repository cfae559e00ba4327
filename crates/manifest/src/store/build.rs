//! From a manifest to the index segment that is mounted.
//!
//! The manifest is streamed into the builder, so memory is that of the builder. What the codec cannot see, because it knows one
//! entry at a time, shows here: two entries of one path, by the host's bytes of it, and one below a file.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::types::Kind;
use adit_index::{Builder, Progress, Refusal};

use super::extra::{self, Extra};
use super::identity::Identity;
use crate::format::{
    Body, Content, ContentHash, Dialect, Entry, File, Format, FormatError, Header, Rule, Sink, Source, decode, v2023,
    v2025, wtf8,
};

/// Permission bits: a manifest knows only whether a file may be executed.
const FILE_PERM: u16 = 0o644;
const RUNNABLE_PERM: u16 = 0o755;
const DIRECTORY_PERM: u16 = 0o755;
const SYMLINK_PERM: u16 = 0o777;
/// This part of the memory is for the directories that the canonical form of a manifest refers to; what each of them takes beside its path.
const FORM_SHARE: u64 = 8;
const FORM_DIRECTORY_BYTES: u64 = 64;
/// So much of a manifest is read between two reports.
const STEP_BYTES: u64 = 1 << 20;

/// How far the building of a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Building {
    /// Another process builds the same segment, and is waited for.
    Elsewhere,
    /// The manifest is read.
    Read {
        /// Bytes so far. They are counted from the beginning up to three times: for what a manifest says of itself, which may stand
        /// behind its entries, for the entries, and once more for the files if they stand before the directories.
        done_bytes: u64,
        /// All of them, if that is known.
        total_bytes: Option<u64>,
    },
    /// The segment is made.
    Index(Progress),
}

/// Who is told now and then, from the thread that works. `Break` ends the work with `Interrupted`.
pub type BuildReport<'a> = dyn FnMut(Building) -> ControlFlow<()> + 'a;

/// Where a segment is built.
#[derive(Clone, Copy, Debug)]
pub struct BuildPlace<'a> {
    /// The segment's file; its folder exists. What is there is replaced, in one step.
    pub out: &'a Path,
    /// A folder for scratch files without names.
    pub scratch_dir: &'a Path,
    /// Memory of the builder in bytes; it takes 2 MiB at least.
    pub memory_limit_bytes: u64,
}

/// Makes the segment of a manifest.
///
/// # Errors
/// What [`decode`] refuses; [`Rule::DuplicatePath`] and [`Rule::FileAgainstDirectory`]; `NotSupported` for a diff, which is no tree;
/// `Interrupted` by `report`; those of the folders.
pub fn build_segment(
    source: &(impl Source + ?Sized),
    place: BuildPlace<'_>,
    report: &mut BuildReport<'_>,
) -> Result<Identity> {
    let of_form = place.memory_limit_bytes / FORM_SHARE;
    let mut filler = Filler {
        builder: Builder::new(place.scratch_dir, place.memory_limit_bytes - of_form),
        form: Form::Unknown,
        form_room_bytes: of_form,
        newest_mtime_ns: None,
        longest_bytes: 0,
        has_unopenable: false,
        extra: Vec::new(),
    };
    let told = Told { source, report: RefCell::new(report), is_ended: Cell::new(false) };
    let decoded = decode(&told, &mut filler);
    let summary = if told.is_ended.get() { Err(ErrorKind::Interrupted.into()) } else { decoded }?;
    let report = told.report.into_inner();
    if summary.header.is_diff() {
        return Err(no_tree());
    }
    let Filler { mut builder, form, newest_mtime_ns, longest_bytes, has_unopenable, .. } = filler;
    let identity = Identity {
        header: summary.header,
        hash: summary.hash,
        len_bytes: summary.len_bytes,
        totals: summary.totals,
        newest_mtime_ns: newest_mtime_ns.unwrap_or_default(),
        longest_bytes,
        has_unopenable,
        is_recoded: form.differs_from(summary.hash),
    };
    builder.set_identity(&identity.encode())?;
    builder.set_implied(DIRECTORY_PERM, 0);
    builder.finish(place.out, &mut |progress| report(Building::Index(progress))).map_err(by_rule)?;
    Ok(identity)
}

fn no_tree() -> FsError {
    FsError::new(ErrorKind::NotSupported).because(
        "the manifest is a diff, which says only what changed; merge it with the manifest that it is a diff of, and use the result",
    )
}

/// What the builder refuses, by the manifest's rule.
fn by_rule(e: FsError) -> FsError {
    let refusal = e.cause().and_then(|cause| cause.downcast_ref::<Refusal>());
    let refused = match refusal {
        Some(Refusal::Twice) => FormatError::new(Rule::DuplicatePath, "is there twice, by its bytes on a host"),
        Some(Refusal::BelowFile { file }) => {
            let file = String::from_utf8_lossy(file);
            let detail = format!("lies below {:?}, which is no directory", file);
            FormatError::new(Rule::FileAgainstDirectory, detail)
        }
        Some(Refusal::Full) => {
            FormatError::new(Rule::TooManyEntries, "is one too many, with the directories on the way")
        }
        _ => return e,
    };
    refused.at(e.subject().unwrap_or_default().as_bytes()).into()
}

/// A manifest of which is told how far it is read.
struct Told<'a, 'r, S: ?Sized> {
    source: &'a S,
    report: RefCell<&'a mut BuildReport<'r>>,
    /// Whoever is told has ended it.
    is_ended: Cell<bool>,
}

impl<S: Source + ?Sized> Source for Told<'_, '_, S> {
    fn open(&self) -> io::Result<Box<dyn Read + '_>> {
        let inner = self.source.open()?;
        Ok(Box::new(ToldReader { told: self, inner, done_bytes: 0, tell_at: STEP_BYTES }))
    }

    fn len_bytes(&self) -> Option<u64> {
        self.source.len_bytes()
    }
}

struct ToldReader<'a, 't, 'r, S: ?Sized> {
    told: &'a Told<'t, 'r, S>,
    inner: Box<dyn Read + 'a>,
    done_bytes: u64,
    tell_at: u64,
}

impl<S: Source + ?Sized> Read for ToldReader<'_, '_, '_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.done_bytes += len as u64;
        if self.done_bytes >= self.tell_at {
            self.tell_at = self.done_bytes + STEP_BYTES;
            let step = Building::Read { done_bytes: self.done_bytes, total_bytes: self.told.len_bytes() };
            if (self.told.report.borrow_mut())(step).is_break() {
                self.told.is_ended.set(true);
                // Not of the kind `Interrupted`: that would be tried again.
                return Err(io::Error::other("it was ended"));
            }
        }
        Ok(len)
    }
}

/// What the canonical form of the manifest is, as far as its entries came in that order.
enum Form {
    V2023(v2023::Writer<io::Sink>),
    V2025(v2025::Writer<io::Sink>),
    /// Another order, or what is not written in it.
    Another,
    /// It is not looked at.
    Unknown,
}

impl Form {
    fn of(header: &Header) -> Form {
        let begun = match header.format {
            Format::V2023 => v2023::Writer::new(io::sink()).map(Form::V2023),
            Format::V2025(Dialect::G) => v2025::Writer::new(io::sink(), header.style, header.kind).map(Form::V2025),
            // Who writes this one has other bytes for the same.
            Format::V2025(Dialect::L) => Ok(Form::Unknown),
        };
        begun.unwrap_or(Form::Another)
    }

    fn add(&mut self, entry: &Entry<'_>) {
        let added = match self {
            Form::V2023(writer) => writer.entry(entry),
            Form::V2025(writer) => writer.entry(entry),
            Form::Another | Form::Unknown => Ok(()),
        };
        if added.is_err() {
            *self = Form::Another;
        }
    }

    /// Whether it has another hash than what was read.
    fn differs_from(self, read: ContentHash) -> bool {
        let written = match self {
            Form::V2023(writer) => writer.finish(),
            Form::V2025(writer) => writer.finish(),
            Form::Another => return true,
            Form::Unknown => return false,
        };
        written.is_ok_and(|written| written.hash != read)
    }
}

/// Takes the entries.
struct Filler {
    builder: Builder,
    form: Form,
    /// What its writer may still take: it keeps the directories that are listed.
    form_room_bytes: u64,
    newest_mtime_ns: Option<i64>,
    longest_bytes: u64,
    has_unopenable: bool,
    extra: Vec<u8>,
}

impl Sink for Filler {
    fn begin(&mut self, header: &Header) {
        self.form = Form::of(header);
    }

    fn entry(&mut self, entry: Entry<'_>) -> Result<()> {
        if entry.body == Body::Directory {
            let held_bytes = entry.path.as_wtf8().len() as u64 + FORM_DIRECTORY_BYTES;
            match self.form_room_bytes.checked_sub(held_bytes) {
                Some(left) => self.form_room_bytes = left,
                None if matches!(self.form, Form::Another) => {}
                None => self.form = Form::Unknown,
            }
        }
        self.form.add(&entry);
        let Entry { path, body } = entry;
        let listing = path.to_listing();
        let text = (!path.comes_back()).then(|| path.as_wtf8());
        let mut node = adit_index::Entry {
            path: &listing,
            kind: Kind::File,
            perm: FILE_PERM,
            size: 0,
            mtime_ns: 0,
            hash: None,
            stamp: None,
            extra: &[],
        };
        let mut extra = Extra { text, ..Extra::default() };
        let hashes;
        match &body {
            Body::Directory => (node.kind, node.perm) = (Kind::Directory, DIRECTORY_PERM),
            Body::Symlink(target) => {
                (node.kind, node.perm) = (Kind::Symlink, SYMLINK_PERM);
                node.size = wtf8::listing_len(target.as_wtf8()) as u64;
                extra.content = extra::Content::Target(target.as_wtf8());
            }
            Body::File(file) => {
                if file.runnable {
                    node.perm = RUNNABLE_PERM;
                }
                node.size = file.size_bytes;
                (node.mtime_ns, extra.mtime_micros) = time_of(file);
                self.newest_mtime_ns = self.newest_mtime_ns.max(Some(node.mtime_ns));
                self.longest_bytes = self.longest_bytes.max(file.size_bytes);
                self.has_unopenable |= text.is_some_and(|text| !wtf8::has_host_bytes(text));
                match &file.content {
                    Content::Whole(hash) => node.hash = Some(hash.0),
                    Content::Chunks(chunks) => {
                        hashes = extra::raw(chunks);
                        extra.content = extra::Content::Chunks(&hashes);
                    }
                }
            }
            Body::Deleted(_) => return Err(no_tree()),
        }
        extra.encode(&mut self.extra);
        node.extra = &self.extra;
        self.builder.add(&node).map_err(by_rule)
    }
}

/// A file's time in nanoseconds, and in microseconds where nanoseconds do not reach so far (before 1677, after 2262).
fn time_of(file: &File<'_>) -> (i64, Option<i64>) {
    match file.mtime_micros.checked_mul(1000) {
        Some(nanos) => (nanos, None),
        None => (if file.mtime_micros < 0 { i64::MIN } else { i64::MAX }, Some(file.mtime_micros)),
    }
}
