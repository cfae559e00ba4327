//! Reading a manifest, whatever its version and the order of its keys.
//!
//! [`decode`] reads the text twice. The first time it looks for the header only, because a manifest of 2025 says what it is
//! behind its entries; of one of 2023 that is the first line. The second time it passes the entries on. If files come before
//! the directories that they refer to, directories and files have a reading each. What is kept between entries is the list
//! of directories of a manifest of 2025, nothing else.

mod document;
mod draft;

use std::cell::Cell;
use std::io::{self, BufReader};
use std::rc::Rc;

use adit_core::error::{ErrorKind, FsError, Result};
use serde::de::DeserializeSeed;
use serde_json::error::Category;

use super::directories::Directories;
use super::entry::{Dialect, Entry, Format, Header, Kind, PathStyle};
use super::fields::ReadHash;
use super::hash::{ALGORITHM, ContentHash};
use super::json::Guard;
use super::limits::{CHUNK_LEN_BYTES, Counts, ENTRIES_MAX, TOTAL_SIZE_MAX_BYTES};
use super::rule::{FormatError, Quoted, Rule};
use super::source::Source;
use document::Document;
use draft::Draft;

/// Bytes that are read at a time.
const READ_LEN_BYTES: usize = 128 << 10;

/// Takes what a manifest holds, while it is read.
pub trait Sink {
    /// What holds for all of it, before the first entry.
    fn begin(&mut self, header: &Header) {
        let _ = header;
    }

    /// The next entry: directories first, then files, links and deletions of files, in the manifest's order. What was taken
    /// counts once [`decode`] has returned without an error, and not before.
    ///
    /// # Errors
    /// Any; it ends the reading, and [`decode`] returns it.
    fn entry(&mut self, entry: Entry<'_>) -> Result<()>;

    /// Told every few thousand entries: bytes that were read so far, of [`Source::len_bytes`]. Where files come before directories,
    /// it begins again for the files.
    ///
    /// # Errors
    /// Any, to end the reading.
    fn progress(&mut self, read_bytes: u64) -> Result<()> {
        let _ = read_bytes;
        Ok(())
    }
}

impl<F: FnMut(Entry<'_>) -> Result<()>> Sink for F {
    fn entry(&mut self, entry: Entry<'_>) -> Result<()> {
        self(entry)
    }
}

/// How many entries of each sort a manifest has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Regular files.
    pub files: u64,
    /// Directories that are listed.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Deletions.
    pub deletions: u64,
    /// Sizes of all files, in bytes.
    pub size_bytes: u64,
}

/// What was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// What holds for all of it.
    pub header: Header,
    /// What it had.
    pub totals: Totals,
    /// xxh128 of the bytes that were read.
    pub hash: ContentHash,
    /// Their number.
    pub len_bytes: u64,
}

/// Reads a manifest, and passes every entry to `sink`.
///
/// Every [`Rule`] but the two that need the whole tree holds for what `sink` gets. Memory: a few buffers, and some 20 bytes for
/// each directory that a manifest of 2025 lists.
///
/// # Errors
/// A [`FormatError`] (see [`FormatError::of`]) within an error of kind `Corrupt`, or `NotSupported` for versions that are not
/// read; `Stale` if the source changed meanwhile; the source's and the sink's own.
pub fn decode(source: &(impl Source + ?Sized), sink: &mut dyn Sink) -> Result<Summary> {
    decode_within(source, sink, Counts::default())
}

fn decode_within(source: &(impl Source + ?Sized), sink: &mut dyn Sink, limits: Counts) -> Result<Summary> {
    let head = head(source)?;
    sink.begin(&head.header);
    let mut reading = Reading::new(Pass::main(&head));
    reading.directories = Directories::new(limits);
    reading.entries_max = limits.entries;
    reading.sink = Some(sink);
    reading.whole_only = head.whole_only;
    if matches!(head.header.format, Format::V2025(_)) && head.files_first {
        reading.pass = Pass::Directories(head.header);
        reading.run(source)?;
        reading.scalars = Scalars::default();
        reading.pass = Pass::Files(head.header);
    }
    let (hash, len_bytes) = reading.run(source)?;
    let scalars = &reading.scalars;
    if scalars.header()? != head.header {
        return Err(FsError::new(ErrorKind::Stale).because("the manifest changed while it was read"));
    }
    scalars.check(&head.header, &reading.totals, reading.seen)?;
    Ok(Summary { header: head.header, totals: reading.totals, hash, len_bytes })
}

/// What a manifest says of itself; its entries are not looked at.
///
/// # Errors
/// As of [`decode`].
pub fn header(source: &(impl Source + ?Sized)) -> Result<Header> {
    Ok(head(source)?.header)
}

struct Head {
    header: Header,
    files_first: bool,
    whole_only: bool,
}

fn head(source: &(impl Source + ?Sized)) -> Result<Head> {
    let mut reading = Reading::new(Pass::Head);
    reading.run(source)?;
    let header = reading.scalars.header()?;
    Ok(Head { header, files_first: reading.files_first, whole_only: reading.scalars.is_whole_only() })
}

/// What a reading of the text is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// The header.
    Head,
    /// `paths`.
    Paths(Header),
    /// `dirs` and, behind them, `files`.
    Both(Header),
    /// `dirs` alone.
    Directories(Header),
    /// `files` alone, after a reading of the directories.
    Files(Header),
}

impl Pass {
    fn main(head: &Head) -> Pass {
        match head.header.format {
            Format::V2023 => Pass::Paths(head.header),
            Format::V2025(_) => Pass::Both(head.header),
        }
    }
}

/// The keys that a manifest must have, as far as they were seen.
#[derive(Clone, Copy, Default)]
struct Seen {
    paths: bool,
    directories: bool,
    files: bool,
}

/// A reading of the text, with what has to outlast it.
struct Reading<'s> {
    pass: Pass,
    scalars: Scalars,
    seen: Seen,
    /// `files` came before `dirs`.
    files_first: bool,
    /// The manifest says that no file is cut.
    whole_only: bool,
    entries_max: u64,
    directories: Directories,
    draft: Draft,
    totals: Totals,
    sink: Option<&'s mut dyn Sink>,
    position: Rc<Cell<u64>>,
    /// Why the parser was stopped.
    failure: Option<FsError>,
    /// The header is known: nothing more is to be read.
    done: bool,
}

impl<'s> Reading<'s> {
    fn new(pass: Pass) -> Self {
        Reading {
            pass,
            scalars: Scalars::default(),
            seen: Seen::default(),
            files_first: false,
            whole_only: false,
            entries_max: ENTRIES_MAX,
            directories: Directories::default(),
            draft: Draft::default(),
            totals: Totals::default(),
            sink: None,
            position: Rc::default(),
            failure: None,
            done: false,
        }
    }

    /// Reads the text once, and gives its hash and length; of a header's, those of what was read.
    fn run(&mut self, source: &(impl Source + ?Sized)) -> Result<(ContentHash, u64)> {
        let mut guard = Guard::new(source.open()?);
        self.position = guard.position();
        let outcome = {
            let mut parser =
                serde_json::Deserializer::from_reader(BufReader::with_capacity(READ_LEN_BYTES, &mut guard));
            Document(self).deserialize(&mut parser).and_then(|()| parser.end())
        };
        match (self.failure.take(), outcome) {
            (Some(failure), _) => Err(failure),
            (None, Err(_)) if self.done => Ok((guard.hash(), self.position.get())),
            (None, Err(e)) => Err(of_parser(e)),
            (None, Ok(())) => Ok((guard.hash(), self.position.get())),
        }
    }

    /// Stops the parser because of `failure`.
    fn fail<E: serde::de::Error>(&mut self, failure: impl Into<FsError>) -> E {
        self.failure = Some(failure.into());
        E::custom("refused")
    }

    fn told<T, E: serde::de::Error>(&mut self, outcome: Result<T, impl Into<FsError>>) -> Result<T, E> {
        outcome.map_err(|failure| self.fail(failure))
    }
}

fn of_parser(e: serde_json::Error) -> FsError {
    let rule = match e.classify() {
        Category::Io => {
            let e = io::Error::from(e);
            return match e.get_ref().is_some_and(|inner| inner.is::<FormatError>()) {
                true => match e.into_inner().map(|inner| inner.downcast::<FormatError>()) {
                    Some(Ok(refused)) => FsError::from(*refused),
                    _ => FsError::new(ErrorKind::Io),
                },
                false => FsError::from(e),
            };
        }
        Category::Data => Rule::FieldType,
        Category::Syntax | Category::Eof => Rule::JsonSyntax,
    };
    FormatError::new(rule, e.to_string()).into()
}

/// The values beside the arrays.
#[derive(Default)]
struct Scalars {
    /// From `manifestVersion` or `specificationVersion`. Of a dialect L, the kind is that of a snapshot.
    version: Option<Header>,
    has_algorithm: bool,
    /// `parentManifestHash`, which means something only in 2025.
    parent: Option<ReadHash>,
    /// `totalSize`.
    total_size: Option<i128>,
    /// `fileChunkSizeBytes`, likewise; none inside for what is no integer.
    chunk_size: Option<Option<i128>>,
}

/// `fileChunkSizeBytes` of a manifest whose files are not cut.
const WHOLE_FILES: i128 = -1;
/// The one length of chunks.
const CHUNK_LEN: i128 = CHUNK_LEN_BYTES as i128;

impl Scalars {
    fn set_manifest_version(&mut self, text: &[u8]) -> Result<(), FormatError> {
        let format = match text {
            b"2023-03-03" => Format::V2023,
            b"2025-12-04-beta" => Format::V2025(Dialect::L),
            _ => return Err(unknown_version("manifestVersion", text)),
        };
        self.set_version(Header::snapshot(format))
    }

    fn set_specification_version(&mut self, text: &[u8]) -> Result<(), FormatError> {
        let unknown = || unknown_version("specificationVersion", text);
        let rest = text.strip_suffix(b"-beta-2025-12").ok_or_else(unknown)?;
        // The parent of a diff is not known yet; `header` puts it in.
        let diff = Kind::Diff { parent: ContentHash([0; 16]) };
        let (style, kind) = match rest {
            b"relative-manifest-snapshot" => (PathStyle::Relative, Kind::Snapshot),
            b"relative-manifest-diff" => (PathStyle::Relative, diff),
            b"absolute-manifest-snapshot" => (PathStyle::Absolute, Kind::Snapshot),
            b"absolute-manifest-diff" => (PathStyle::Absolute, diff),
            _ => return Err(unknown()),
        };
        self.set_version(Header { format: Format::V2025(Dialect::G), style, kind })
    }

    fn set_version(&mut self, header: Header) -> Result<(), FormatError> {
        if self.version.replace(header).is_some() {
            let detail = "both manifestVersion and specificationVersion";
            return Err(FormatError::new(Rule::UnknownVersion, detail));
        }
        Ok(())
    }

    fn set_algorithm(&mut self, text: &[u8]) -> Result<(), FormatError> {
        if text != ALGORITHM.as_bytes() {
            let detail = format!("hashAlg {}; read is \"{ALGORITHM}\"", Quoted(text));
            return Err(FormatError::new(Rule::UnknownHashAlgorithm, detail));
        }
        self.has_algorithm = true;
        Ok(())
    }

    /// Whether the header of a manifest of 2023 is known, which nothing behind it can change.
    fn is_2023(&self) -> bool {
        self.has_algorithm && self.version.is_some_and(|header| header.format == Format::V2023)
    }

    fn header(&self) -> Result<Header, FormatError> {
        let Some(mut header) = self.version else {
            let detail = format!("neither manifestVersion nor specificationVersion; read are {}", Format::READ);
            return Err(FormatError::new(Rule::UnknownVersion, detail));
        };
        if !self.has_algorithm {
            return Err(missing("hashAlg"));
        }
        let Format::V2025(dialect) = header.format else { return Ok(header) };
        let parent = self.parent.clone().transpose().map_err(|text| {
            FormatError::new(Rule::HashText, format!("parentManifestHash {text} is no xxh128 in lower case"))
        })?;
        header.kind = match (dialect, header.kind, parent) {
            (Dialect::L, _, Some(parent)) | (Dialect::G, Kind::Diff { .. }, Some(parent)) => Kind::Diff { parent },
            (Dialect::L, _, None) | (Dialect::G, Kind::Snapshot, None) => Kind::Snapshot,
            (Dialect::G, Kind::Diff { .. }, None) => {
                return Err(FormatError::new(Rule::ParentHash, "a diff without parentManifestHash"));
            }
            (Dialect::G, Kind::Snapshot, Some(_)) => {
                return Err(FormatError::new(Rule::ParentHash, "a snapshot with parentManifestHash"));
            }
        };
        if !matches!(self.chunk_size, None | Some(Some(WHOLE_FILES | CHUNK_LEN))) {
            let detail = format!("fileChunkSizeBytes is neither {CHUNK_LEN} nor {WHOLE_FILES}");
            return Err(FormatError::new(Rule::ChunkSize, detail));
        }
        Ok(header)
    }

    /// Whether the manifest says that no file is cut.
    fn is_whole_only(&self) -> bool {
        self.chunk_size == Some(Some(WHOLE_FILES))
    }

    /// What can be said only at the end.
    fn check(&self, header: &Header, totals: &Totals, seen: Seen) -> Result<(), FormatError> {
        let arrays = match header.format {
            Format::V2023 => [("paths", seen.paths), ("paths", true)],
            Format::V2025(_) => [("dirs", seen.directories), ("files", seen.files)],
        };
        if let Some((key, _)) = arrays.into_iter().find(|(_, seen)| !seen) {
            return Err(missing(key));
        }
        if header.format == Format::V2023 && totals.files == 0 {
            return Err(FormatError::new(Rule::NoEntries, "no path at all: this version has at least one"));
        }
        let total = self.total_size.ok_or_else(|| missing("totalSize"))?;
        if total != i128::from(totals.size_bytes) {
            let detail = format!("totalSize is {total}, the sizes of all files are {}", totals.size_bytes);
            return Err(FormatError::new(Rule::TotalSize, detail));
        }
        Ok(())
    }
}

fn missing(key: &str) -> FormatError {
    FormatError::new(Rule::FieldMissing, format!("no {key}"))
}

fn unknown_version(key: &str, text: &[u8]) -> FormatError {
    FormatError::new(Rule::UnknownVersion, format!("{key} {}; read are {}", Quoted(text), Format::READ))
}

impl Totals {
    /// Adds a file of `size_bytes`.
    fn add_size(&mut self, size_bytes: u64) -> Result<(), FormatError> {
        match self.size_bytes.checked_add(size_bytes).filter(|sum| *sum <= TOTAL_SIZE_MAX_BYTES) {
            Some(sum) => {
                self.size_bytes = sum;
                Ok(())
            }
            None => {
                let detail = format!("the sizes of the files are more than {TOTAL_SIZE_MAX_BYTES} bytes together");
                Err(FormatError::new(Rule::TotalSize, detail))
            }
        }
    }

    fn entries(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.deletions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule_within(text: &str, limits: Counts) -> Option<Rule> {
        let outcome = decode_within(text.as_bytes(), &mut |_: Entry<'_>| Ok(()), limits);
        outcome.err().map(|e| FormatError::of(&e).unwrap_or_else(|| panic!("{e}")).rule)
    }

    #[test]
    fn counts_are_limited() {
        let text = r#"{"dirs":[{"path":"a"},{"path":"$0/bc"}],"files":[],"hashAlg":"xxh128",
            "specificationVersion":"relative-manifest-snapshot-beta-2025-12","totalSize":0}"#;
        let limits = Counts::default();
        assert_eq!(rule_within(text, Counts { entries: 2, directories: 2, directory_names_bytes: 3 }), None);
        assert_eq!(rule_within(text, Counts { entries: 1, ..limits }), Some(Rule::TooManyEntries));
        assert_eq!(rule_within(text, Counts { directories: 1, ..limits }), Some(Rule::TooManyDirectories));
        assert_eq!(rule_within(text, Counts { directory_names_bytes: 2, ..limits }), Some(Rule::TooManyDirectories));
    }
}
