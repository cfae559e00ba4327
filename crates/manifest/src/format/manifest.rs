//! A whole manifest in memory: for the tools, which compare, merge and write it.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Bound;

use adit_core::error::{ErrorKind, FsError, Result};

use super::decode::{Sink, Summary, decode};
use super::entry::{Body, Content, Entry, Format, Header, PathStyle, Removed};
use super::path::EntryPath;
use super::rule::{FormatError, Rule};
use super::source::Source;
use super::{Written, v2023, v2025, wtf8};

/// A manifest, without duplicates and conflicts: what is added lies at its path alone, and below directories only.
///
/// Both maps are ordered by the bytes of the paths. Memory: some 100 bytes for each entry, and its path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    pub(super) header: Header,
    pub(super) entries: BTreeMap<EntryPath<'static>, Body<'static>>,
    pub(super) deletions: BTreeMap<EntryPath<'static>, Removed>,
}

/// What version 2023-03-03 cannot hold of a manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Directories that are listed. Those with files in them come back with these.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Files that are executable, and will not be.
    pub runnable: u64,
    /// Deletions.
    pub deletions: u64,
}

impl Manifest {
    /// One without entries.
    #[must_use]
    pub fn new(header: Header) -> Self {
        Manifest { header, entries: BTreeMap::new(), deletions: BTreeMap::new() }
    }

    /// Reads a manifest, and checks the whole of it.
    ///
    /// # Errors
    /// As of [`decode`], and [`Rule::DuplicatePath`], [`Rule::FileAgainstDirectory`].
    pub fn read(source: &(impl Source + ?Sized)) -> Result<(Self, Summary)> {
        struct Collect(Manifest);
        impl Sink for Collect {
            fn entry(&mut self, entry: Entry<'_>) -> Result<()> {
                Ok(self.0.insert(entry.into_owned())?)
            }
        }
        // The header is known before the first entry to `decode` only; until then any will do.
        let mut collect = Collect(Manifest::new(Header::snapshot(Format::V2023)));
        let summary = decode(source, &mut collect)?;
        collect.0.header = summary.header;
        Ok((collect.0, summary))
    }

    /// Adds an entry, or a deletion.
    ///
    /// # Errors
    /// [`Rule::DuplicatePath`], [`Rule::FileAgainstDirectory`]. A deletion and an entry may have the same path, if not the same
    /// sort: something else takes the place of what goes.
    pub fn insert(&mut self, entry: Entry<'static>) -> Result<(), FormatError> {
        let Entry { path, body } = entry;
        let refuse = |rule, detail: &str| Err(FormatError::new(rule, detail).at(path.as_wtf8()));
        let of_sort = match &body {
            Body::Deleted(removed) => {
                if self.deletions.contains_key(&path) || self.sort_at(&path) == Some(*removed) {
                    return refuse(Rule::DuplicatePath, "is there twice");
                }
                self.deletions.insert(path, *removed);
                return Ok(());
            }
            Body::Directory => Removed::Directory,
            Body::File(_) | Body::Symlink(_) => Removed::File,
        };
        if self.entries.contains_key(&path) || self.deletions.get(&path) == Some(&of_sort) {
            return refuse(Rule::DuplicatePath, "is there twice");
        }
        if let Some(file) = self.file_above(&path) {
            return refuse(Rule::FileAgainstDirectory, &format!("lies below {file}, which is no directory"));
        }
        if body != Body::Directory && self.below(&path).next().is_some() {
            return refuse(Rule::FileAgainstDirectory, "is no directory, and something lies below it");
        }
        self.entries.insert(path, body);
        Ok(())
    }

    /// What deletion would be of the sort of the entry at `path`.
    fn sort_at(&self, path: &EntryPath<'_>) -> Option<Removed> {
        match self.entries.get(path.as_wtf8())? {
            Body::Directory => Some(Removed::Directory),
            _ => Some(Removed::File),
        }
    }

    /// Something on the way to `path` that is no directory.
    pub(super) fn file_above(&self, path: &EntryPath<'_>) -> Option<EntryPath<'static>> {
        let is_file =
            |above: &EntryPath<'_>| self.entries.get(above.as_wtf8()).is_some_and(|body| *body != Body::Directory);
        path.ancestors().find(is_file).map(EntryPath::into_owned)
    }

    /// The entries below `path`.
    pub fn below(&self, path: &EntryPath<'_>) -> impl Iterator<Item = (&EntryPath<'static>, &Body<'static>)> {
        // `0` follows `/`.
        let (first, end) = ([path.as_wtf8(), b"/"].concat(), [path.as_wtf8(), b"0"].concat());
        self.entries.range::<[u8], _>((Bound::Included(&first[..]), Bound::Excluded(&end[..])))
    }

    /// What holds for all of it.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The same entries under another header.
    #[must_use]
    pub fn with_header(self, header: Header) -> Self {
        Manifest { header, ..self }
    }

    /// What lies at `path`, if it is listed.
    #[must_use]
    pub fn get(&self, path: &EntryPath<'_>) -> Option<&Body<'static>> {
        self.entries.get(path.as_wtf8())
    }

    /// What it has, ordered by the bytes of the paths.
    pub fn entries(&self) -> impl Iterator<Item = (&EntryPath<'static>, &Body<'static>)> {
        self.entries.iter()
    }

    /// What it removes, ordered by the bytes of the paths.
    pub fn deletions(&self) -> impl Iterator<Item = (&EntryPath<'static>, Removed)> {
        self.deletions.iter().map(|(path, removed)| (path, *removed))
    }

    /// Bytes of all files. (What no manifest can hold is told when it is written.)
    #[must_use]
    pub fn total_size_bytes(&self) -> u64 {
        self.entries.values().map(Body::size_bytes).fold(0, u64::saturating_add)
    }

    /// What version 2023-03-03 would lose of it.
    #[must_use]
    pub fn losses(&self) -> Losses {
        let mut losses = Losses { deletions: self.deletions.len() as u64, ..Losses::default() };
        for body in self.entries.values() {
            match body {
                Body::Directory => losses.directories += 1,
                Body::Symlink(_) => losses.symlinks += 1,
                Body::File(file) => losses.runnable += u64::from(file.runnable),
                Body::Deleted(_) => {}
            }
        }
        losses
    }

    /// The first file of which only hashes of chunks are known: version 2023-03-03 cannot hold it before it is read and hashed.
    #[must_use]
    pub fn first_chunked(&self) -> Option<&EntryPath<'static>> {
        let is_chunked =
            |body: &Body<'_>| matches!(body, Body::File(file) if matches!(file.content, Content::Chunks(_)));
        self.entries.iter().find(|(_, body)| is_chunked(body)).map(|(path, _)| path)
    }

    /// Writes it in a version: that of 2023 leaves out what [`losses`](Self::losses) tells, that of 2025 is in dialect G.
    ///
    /// # Errors
    /// `NotSupported` for a file in chunks, or for absolute paths, in version 2023-03-03; [`Rule::NoEntries`] if no file is left
    /// there; [`Rule::TotalSize`]; those of `out`.
    pub fn encode(&self, format: Format, out: impl Write) -> Result<Written> {
        match format {
            Format::V2023 => self.encode_2023(out),
            Format::V2025(_) => self.encode_2025(out),
        }
    }

    fn encode_2023(&self, out: impl Write) -> Result<Written> {
        if self.header.style == PathStyle::Absolute {
            return Err(FsError::new(ErrorKind::NotSupported)
                .because("version 2023-03-03 cannot hold absolute paths; write the format v2025"));
        }
        let mut writer = v2023::Writer::new(out)?;
        for (path, body) in self.in_file_order() {
            if let Body::File(_) = body {
                writer.entry(&Entry { path: path.clone(), body: body.clone() })?;
            }
        }
        writer.finish()
    }

    fn encode_2025(&self, out: impl Write) -> Result<Written> {
        let Header { style, kind, .. } = self.header;
        let mut writer = v2025::Writer::new(out, style, kind)?;
        let mut directories: BTreeMap<EntryPath<'_>, Body<'_>> = BTreeMap::new();
        for path in self.entries.keys().chain(self.deletions.keys()) {
            if v2025::needs_listed_parent(path, style) {
                // What was a directory, and is none any more, is one that goes.
                let listed = |above: &EntryPath<'_>| {
                    if self.sort_at(above) == Some(Removed::File) || self.file_above(above).is_some() {
                        Body::Deleted(Removed::Directory)
                    } else {
                        Body::Directory
                    }
                };
                directories.extend(path.ancestors().map(|above| (above.clone(), listed(&above))));
            }
        }
        for (path, body) in self.entries.iter().filter(|(_, body)| **body == Body::Directory) {
            directories.insert(path.clone(), body.clone());
        }
        for (path, removed) in self.deletions.iter().filter(|(_, removed)| **removed == Removed::Directory) {
            directories.insert(path.clone(), Body::Deleted(*removed));
        }
        for (path, body) in directories {
            writer.entry(&Entry { path, body })?;
        }
        for (path, body) in self.in_file_order() {
            writer.entry(&Entry { path: path.clone(), body: body.clone() })?;
        }
        writer.finish()
    }

    /// What stands in the list of files, deletions included, in its order.
    fn in_file_order(&self) -> Vec<(&EntryPath<'static>, Body<'_>)> {
        let files = self.entries.iter().filter(|(_, body)| **body != Body::Directory);
        let mut all: Vec<_> = files.map(|(path, body)| (path, body.clone())).collect();
        let deletions = self.deletions.iter().filter(|(_, removed)| **removed == Removed::File);
        all.extend(deletions.map(|(path, removed)| (path, Body::Deleted(*removed))));
        all.sort_by(|(a, _), (b, _)| wtf8::cmp_utf16(a.as_wtf8(), b.as_wtf8()));
        all
    }
}
