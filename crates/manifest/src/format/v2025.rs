//! Writing manifests of 2025, in dialect G (`specificationVersion`).
//!
//! Paths are shortened as the dialect does: the directory that an entry lies in becomes `$N` if it is listed. Directories
//! that are not listed are not added, but where a path would be taken for a reference otherwise
//! ([`needs_listed_parent`]).

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;

use adit_core::error::{ErrorKind, FsError, Result};

use super::entry::{Body, Content, Entry, Kind, PathStyle, Removed};
use super::hash::ALGORITHM;
use super::json::push_string;
use super::path::{EntryPath, LinkTarget};
use super::v2023::{added, out_of_order};
use super::{Output, Written, wtf8};

/// Writes entries that come in order. In memory are the directories that are listed, with their paths.
pub struct Writer<W: Write> {
    out: Output<W>,
    style: PathStyle,
    kind: Kind,
    /// The directories as they are written without a reference, and their numbers.
    numbers: HashMap<Box<[u8]>, u32>,
    in_files: bool,
    last: Option<Vec<u8>>,
    total_size_bytes: u64,
}

/// Whether a path can be written only if the directory that it lies in is listed: it begins with `$`, so that readers would
/// look for a number there.
#[must_use]
pub fn needs_listed_parent(path: &EntryPath<'_>, style: PathStyle) -> bool {
    style == PathStyle::Relative && path.as_wtf8().starts_with(b"$") && path.parent().is_some()
}

impl<W: Write> Writer<W> {
    /// Begins a manifest.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, style: PathStyle, kind: Kind) -> Result<Self> {
        let mut out = Output::new(out);
        out.piece().extend_from_slice(br#"{"dirs":["#);
        let numbers = HashMap::new();
        Ok(Writer { out, style, kind, numbers, in_files: false, last: None, total_size_bytes: 0 })
    }

    /// Adds an entry: first the directories, also deleted ones, ascending by the bytes of their paths, then all others, ascending
    /// in the order of [`wtf8::cmp_utf16`].
    ///
    /// # Errors
    /// `InvalidInput` for one out of order, a deletion in a snapshot, or a path that [needs its parent
    /// listed](needs_listed_parent) and has it not; `NotSupported` for a target that begins with `$` and has no room for `./`;
    /// [`Rule::TotalSize`](super::Rule::TotalSize); those of `out`.
    pub fn entry(&mut self, entry: &Entry<'_>) -> Result<()> {
        if matches!(entry.body, Body::Deleted(_)) && self.kind == Kind::Snapshot {
            return Err(FsError::new(ErrorKind::InvalidInput)
                .on("write a manifest with", &entry.path)
                .because("a snapshot deletes nothing: write a diff"));
        }
        let is_directory = matches!(entry.body, Body::Directory | Body::Deleted(Removed::Directory));
        if !is_directory {
            self.begin_files();
        }
        let path = entry.path.as_wtf8();
        let ascends = match &self.last {
            None => true,
            Some(last) if is_directory => last.as_slice() < path,
            Some(last) => wtf8::cmp_utf16(last, path).is_lt(),
        };
        if !ascends || is_directory && self.in_files {
            return Err(out_of_order(&entry.path));
        }
        self.total_size_bytes = added(self.total_size_bytes, entry.body.size_bytes()).map_err(|e| e.at(path))?;
        let full = match self.style {
            PathStyle::Relative => Cow::Borrowed(path),
            PathStyle::Absolute => Cow::Owned([&b"/"[..], path].concat()),
        };
        let text = self.shortened(&full);
        if matches!(text, Cow::Borrowed(_)) && needs_listed_parent(&entry.path, self.style) {
            return Err(FsError::new(ErrorKind::InvalidInput)
                .on("write a manifest with", &entry.path)
                .because("a path that begins with \"$\" needs the directory that it lies in listed"));
        }
        if self.last.is_some() {
            self.out.piece().push(b',');
        }
        let target = match &entry.body {
            Body::Symlink(target) => Some(self.shortened_target(target, &entry.path)?),
            _ => None,
        };
        self.push(&text, &entry.body, target.as_deref());
        if is_directory {
            let number = u32::try_from(self.numbers.len()).map_err(|_| FsError::new(ErrorKind::Exhausted))?;
            self.numbers.insert(Box::from(&*full), number);
        }
        let last = self.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(entry.path.as_wtf8());
        self.out.settle()
    }

    /// Ends the manifest, and flushes `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> Result<Written> {
        self.begin_files();
        let (style, total) = (self.style, self.total_size_bytes);
        let style = match style {
            PathStyle::Relative => "relative",
            PathStyle::Absolute => "absolute",
        };
        let (kind, parent) = match self.kind {
            Kind::Snapshot => ("snapshot", String::new()),
            Kind::Diff { parent } => ("diff", format!(r#""parentManifestHash":"{parent}","#)),
        };
        let tail = format!(
            r#"],"hashAlg":"{ALGORITHM}",{parent}"specificationVersion":"{style}-manifest-{kind}-beta-2025-12","totalSize":{total}}}"#
        );
        self.out.piece().extend_from_slice(tail.as_bytes());
        self.out.finish(total)
    }

    fn begin_files(&mut self) {
        if !self.in_files {
            self.in_files = true;
            self.last = None;
            self.out.piece().extend_from_slice(br#"],"files":["#);
        }
    }

    /// A text with `$N` for the directory that it begins with, if that is listed.
    fn shortened<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        let Some(slash) = text.iter().rposition(|&byte| byte == b'/') else { return Cow::Borrowed(text) };
        match self.numbers.get(&text[..slash]) {
            Some(number) => Cow::Owned([format!("${number}").as_bytes(), &text[slash..]].concat()),
            None => Cow::Borrowed(text),
        }
    }

    /// A target, which is shortened as a path is. One that would be taken for a reference goes through `.`.
    fn shortened_target<'t>(&self, target: &'t LinkTarget<'_>, link: &EntryPath<'_>) -> Result<Cow<'t, [u8]>> {
        match self.shortened(target.as_wtf8()) {
            Cow::Borrowed(text) if text.starts_with(b"$") && text.contains(&b'/') => {
                let through = [&b"./"[..], text].concat();
                match LinkTarget::parse(&through, link) {
                    Ok(_) => Ok(Cow::Owned(through)),
                    Err(e) => Err(FsError::new(ErrorKind::NotSupported).on("write a manifest with", link).because(e)),
                }
            }
            text => Ok(text),
        }
    }

    /// Keys are in order: chunkhashes, deleted, hash, mtime, path, runnable, size, symlink.
    fn push(&mut self, path: &[u8], body: &Body<'_>, target: Option<&[u8]>) {
        let piece = self.out.piece();
        piece.push(b'{');
        match body {
            Body::File(file) => {
                let mtime = file.mtime_micros;
                match &file.content {
                    Content::Whole(hash) => {
                        piece.extend_from_slice(format!(r#""hash":"{hash}","mtime":{mtime},"#).as_bytes());
                    }
                    Content::Chunks(hashes) => {
                        for (at, hash) in hashes.iter().enumerate() {
                            let before = if at == 0 { "\"chunkhashes\":[" } else { "," };
                            piece.extend_from_slice(format!(r#"{before}"{hash}""#).as_bytes());
                        }
                        piece.extend_from_slice(format!(r#"],"mtime":{mtime},"#).as_bytes());
                    }
                }
            }
            Body::Deleted(_) => piece.extend_from_slice(br#""deleted":true,"#),
            Body::Directory | Body::Symlink(_) => {}
        }
        piece.extend_from_slice(br#""path":"#);
        push_string(piece, path);
        if let Body::File(file) = body {
            let runnable = if file.runnable { r#","runnable":true"# } else { "" };
            piece.extend_from_slice(format!(r#"{runnable},"size":{}"#, file.size_bytes).as_bytes());
        }
        if let Some(target) = target {
            piece.extend_from_slice(br#","symlink":{"target":"#);
            push_string(piece, target);
            piece.push(b'}');
        }
        piece.push(b'}');
    }
}
