//! Writing manifests of version 2023-03-03, byte for byte as the official package does (`AssetManifest.encode`).

use std::io::Write;

use adit_core::error::{ErrorKind, FsError, Result};

use super::entry::{Body, Content, Entry};
use super::hash::{ALGORITHM, ContentHash};
use super::json::push_string;
use super::limits::TOTAL_SIZE_MAX_BYTES;
use super::path::EntryPath;
use super::rule::{FormatError, Rule};
use super::{Output, Written, wtf8};

/// Writes files that come in order, without a whole manifest in memory.
pub struct Writer<W: Write> {
    out: Output<W>,
    last: Option<Vec<u8>>,
    total_size_bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a manifest.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> Result<Self> {
        let mut out = Output::new(out);
        let head = format!(r#"{{"hashAlg":"{ALGORITHM}","manifestVersion":"2023-03-03","paths":["#);
        out.piece().extend_from_slice(head.as_bytes());
        Ok(Writer { out, last: None, total_size_bytes: 0 })
    }

    /// Adds a file. Paths ascend in the order of [`wtf8::cmp_utf16`].
    ///
    /// # Errors
    /// `InvalidInput` for one that is not above the last; [`Rule::TotalSize`]; those of `out`.
    pub fn file(&mut self, path: &EntryPath<'_>, hash: &ContentHash, size_bytes: u64, mtime_micros: i64) -> Result<()> {
        if self.last.as_deref().is_some_and(|last| !wtf8::cmp_utf16(last, path.as_wtf8()).is_lt()) {
            return Err(out_of_order(path));
        }
        self.total_size_bytes = added(self.total_size_bytes, size_bytes).map_err(|e| e.at(path.as_wtf8()))?;
        let piece = self.out.piece();
        piece.extend_from_slice(if self.last.is_some() { b",{" } else { b"{" });
        piece.extend_from_slice(format!(r#""hash":"{hash}","mtime":{mtime_micros},"path":"#).as_bytes());
        push_string(piece, path.as_wtf8());
        piece.extend_from_slice(format!(r#","size":{size_bytes}}}"#).as_bytes());
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(path.as_wtf8());
        self.out.settle()
    }

    /// Adds an entry, if it is a file that this version can hold: one with a single hash. Its exec bit is lost.
    ///
    /// # Errors
    /// `NotSupported` for any other entry; as of [`file`](Self::file).
    pub fn entry(&mut self, entry: &Entry<'_>) -> Result<()> {
        match &entry.body {
            Body::File(file) => match &file.content {
                Content::Whole(hash) => self.file(&entry.path, hash, file.size_bytes, file.mtime_micros),
                Content::Chunks(_) => Err(cannot_hold(
                    &entry.path,
                    "files in chunks: their hash as a whole is not known; write the format v2025, or read and hash the file",
                )),
            },
            Body::Directory => Err(cannot_hold(&entry.path, "directories")),
            Body::Symlink(_) => Err(cannot_hold(&entry.path, "symbolic links")),
            Body::Deleted(_) => Err(cannot_hold(&entry.path, "deletions")),
        }
    }

    /// Ends the manifest, and flushes `out`.
    ///
    /// # Errors
    /// [`Rule::NoEntries`] if there is none: the official reader wants at least one. Those of `out`.
    pub fn finish(mut self) -> Result<Written> {
        if self.last.is_none() {
            let detail = "a manifest of version 2023-03-03 has at least one file";
            return Err(FormatError::new(Rule::NoEntries, detail).into());
        }
        let tail = format!(r#"],"totalSize":{}}}"#, self.total_size_bytes);
        self.out.piece().extend_from_slice(tail.as_bytes());
        self.out.finish(self.total_size_bytes)
    }
}

fn cannot_hold(path: &EntryPath<'_>, what: &str) -> FsError {
    let said = format!("version 2023-03-03 cannot hold {what}");
    FsError::new(ErrorKind::NotSupported).on("write a manifest with", path).because(said)
}

/// An entry that a writer got out of order.
pub(super) fn out_of_order(path: &EntryPath<'_>) -> FsError {
    FsError::new(ErrorKind::InvalidInput)
        .on("write a manifest with", path)
        .because("entries come in the order of the format, and each once")
}

/// The sum of all sizes, with one more.
pub(super) fn added(total_size_bytes: u64, size_bytes: u64) -> Result<u64, FormatError> {
    total_size_bytes.checked_add(size_bytes).filter(|sum| *sum <= TOTAL_SIZE_MAX_BYTES).ok_or_else(|| {
        let detail = format!("the sizes of the files are more than {TOTAL_SIZE_MAX_BYTES} bytes together");
        FormatError::new(Rule::TotalSize, detail)
    })
}
