//! The fields of one entry, in whatever order they come; what they are is said when the last of them is there.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::format::directories::Directories;
use crate::format::entry::{Body, Content, File, Header, Removed};
use crate::format::fields::{Chunks, Flag, Hash, Integer, Key, OrNull, ReadHash, Symlink, Text};
use crate::format::hash::ContentHash;
use crate::format::limits::FILE_SIZE_MAX_BYTES;
use crate::format::path::{EntryPath, LinkTarget};
use crate::format::rule::{FormatError, Rule};

/// Of which array an entry is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `paths`, of 2023.
    Path,
    /// `dirs`.
    Directory,
    /// `files`.
    File,
}

#[derive(Clone, Copy)]
enum Field {
    Path,
    Hash,
    Size,
    Mtime,
    Chunks,
    Symlink,
    Runnable,
    Deleted,
}

const PATH_KEYS: &[(&str, Field)] =
    &[("hash", Field::Hash), ("mtime", Field::Mtime), ("path", Field::Path), ("size", Field::Size)];

/// Both dialects, whichever the manifest says it is: no key means one thing in one and another in the other.
const DIRECTORY_KEYS: &[(&str, Field)] =
    &[("path", Field::Path), ("name", Field::Path), ("deleted", Field::Deleted), ("delete", Field::Deleted)];

const FILE_KEYS: &[(&str, Field)] = &[
    ("hash", Field::Hash),
    ("mtime", Field::Mtime),
    ("path", Field::Path),
    ("name", Field::Path),
    ("size", Field::Size),
    ("chunkhashes", Field::Chunks),
    ("symlink", Field::Symlink),
    ("runnable", Field::Runnable),
    ("deleted", Field::Deleted),
    ("delete", Field::Deleted),
];

impl Form {
    pub(super) fn array(self) -> &'static str {
        match self {
            Form::Path => "paths",
            Form::Directory => "dirs",
            Form::File => "files",
        }
    }

    fn keys(self) -> &'static [(&'static str, Field)] {
        match self {
            Form::Path => PATH_KEYS,
            Form::Directory => DIRECTORY_KEYS,
            Form::File => FILE_KEYS,
        }
    }
}

/// What was read of an entry. Its buffers are kept for the next one.
#[derive(Default)]
pub(super) struct Draft {
    path: Vec<u8>,
    has_path: bool,
    hash: Option<ReadHash>,
    /// The number, or none inside for one that is no integer.
    size: Option<Option<i128>>,
    mtime: Option<Option<i128>>,
    chunks: Vec<ContentHash>,
    chunks_outcome: Option<Result<(), String>>,
    target: Vec<u8>,
    has_target: bool,
    runnable: bool,
    deleted: bool,
}

impl Draft {
    /// Reads the next entry into this one; `repeated` tells a key that was there twice.
    pub(super) fn seed<'d>(&'d mut self, form: Form, repeated: &'d mut Option<FormatError>) -> Seed<'d> {
        self.has_path = false;
        self.hash = None;
        self.size = None;
        self.mtime = None;
        self.chunks_outcome = None;
        self.has_target = false;
        self.runnable = false;
        self.deleted = false;
        Seed { draft: self, form, repeated }
    }

    /// The path as it is written.
    pub(super) fn path(&self) -> Option<&[u8]> {
        self.has_path.then_some(&self.path)
    }

    /// What lies at `path`.
    pub(super) fn body<'e>(
        &'e self,
        form: Form,
        header: &Header,
        whole_only: bool,
        path: &EntryPath<'_>,
        directories: &Directories,
        target: &'e mut Vec<u8>,
    ) -> Result<Body<'e>, FormatError> {
        if self.deleted {
            return self.deletion(form, header);
        }
        match (form, &self.hash, &self.chunks_outcome, self.has_target) {
            (Form::Directory, ..) => Ok(Body::Directory),
            (_, Some(hash), None, false) => {
                let hash = of_text(hash.as_ref().map_err(String::as_str).copied())?;
                self.file(self.size()?, Content::Whole(hash))
            }
            (_, None, Some(outcome), false) => {
                of_text(outcome.as_ref().map_err(String::as_str).copied())?;
                if whole_only {
                    let detail = "has chunks, and fileChunkSizeBytes says that no file has";
                    return Err(FormatError::new(Rule::ChunkSize, detail));
                }
                let size_bytes = self.size()?;
                self.file(size_bytes, Content::chunks(Cow::Borrowed(self.chunks.as_slice()), size_bytes)?)
            }
            (_, None, None, true) => {
                directories.expand(&self.target, target)?;
                Ok(Body::Symlink(LinkTarget::check(target, path)?))
            }
            (Form::Path, None, ..) => Err(FormatError::new(Rule::FieldMissing, "has no hash")),
            _ => {
                let detail = "has not exactly one of hash, chunkhashes and symlink";
                Err(FormatError::new(Rule::Content, detail))
            }
        }
    }

    fn deletion(&self, form: Form, header: &Header) -> Result<Body<'static>, FormatError> {
        if !header.is_diff() {
            return Err(FormatError::new(Rule::DeletionInSnapshot, "is deleted, in a snapshot"));
        }
        let has_more = self.hash.is_some()
            || self.chunks_outcome.is_some()
            || self.has_target
            || self.size.is_some()
            || self.mtime.is_some()
            || self.runnable;
        if has_more {
            return Err(FormatError::new(Rule::Content, "is deleted, and has more than a path"));
        }
        Ok(Body::Deleted(if form == Form::Directory { Removed::Directory } else { Removed::File }))
    }

    fn file<'e>(&self, size_bytes: u64, content: Content<'e>) -> Result<Body<'e>, FormatError> {
        let mtime_micros = match self.mtime {
            None => return Err(FormatError::new(Rule::FieldMissing, "has no mtime")),
            Some(number) => number
                .and_then(|number| i64::try_from(number).ok())
                .ok_or_else(|| FormatError::new(Rule::Mtime, "has an mtime that is no integer of 64 bits"))?,
        };
        Ok(Body::File(File { size_bytes, mtime_micros, runnable: self.runnable, content }))
    }

    fn size(&self) -> Result<u64, FormatError> {
        let Some(number) = self.size else {
            return Err(FormatError::new(Rule::FieldMissing, "has no size"));
        };
        number
            .and_then(|number| u64::try_from(number).ok())
            .filter(|size_bytes| *size_bytes <= FILE_SIZE_MAX_BYTES)
            .ok_or_else(|| {
                let detail = format!("has a size that is no integer from 0 to {FILE_SIZE_MAX_BYTES}");
                FormatError::new(Rule::FileSize, detail)
            })
    }
}

fn of_text<T>(read: Result<T, &str>) -> Result<T, FormatError> {
    read.map_err(|text| FormatError::new(Rule::HashText, format!("has a hash {text} that is no xxh128 in lower case")))
}

/// Fills a [`Draft`].
pub(super) struct Seed<'d> {
    draft: &'d mut Draft,
    form: Form,
    repeated: &'d mut Option<FormatError>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an entry of {}: an object", self.form.array())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let Seed { draft, form, repeated } = self;
        let mut seen = 0_u16;
        while let Some(key) = object.next_key_seed(Key(form.keys()))? {
            let Some(field) = key else {
                object.next_value::<IgnoredAny>()?;
                continue;
            };
            let bit = 1 << field as u16;
            if seen & bit != 0 {
                let detail = format!("an entry of {} has a key twice", form.array());
                let refused = FormatError::new(Rule::DuplicateKey, detail);
                *repeated = Some(if draft.has_path { refused.at(&draft.path) } else { refused });
                return Err(A::Error::custom("refused"));
            }
            seen |= bit;
            draft.read(field, &mut object)?;
        }
        Ok(())
    }
}

impl Draft {
    /// Reads the value of a field. `null` is as good as no key.
    fn read<'de, A: MapAccess<'de>>(&mut self, field: Field, object: &mut A) -> Result<(), A::Error> {
        match field {
            Field::Path => {
                object.next_value_seed(Text(&mut self.path))?;
                self.has_path = true;
            }
            Field::Hash => self.hash = object.next_value_seed(OrNull(Hash))?,
            Field::Size => self.size = object.next_value_seed(OrNull(Integer))?,
            Field::Mtime => self.mtime = object.next_value_seed(OrNull(Integer))?,
            Field::Chunks => self.chunks_outcome = object.next_value_seed(OrNull(Chunks(&mut self.chunks)))?,
            Field::Symlink => {
                self.has_target = object.next_value_seed(OrNull(Symlink(&mut self.target)))?.is_some();
            }
            Field::Runnable => self.runnable = object.next_value_seed(OrNull(Flag))?.unwrap_or(false),
            Field::Deleted => self.deleted = object.next_value_seed(OrNull(Flag))?.unwrap_or(false),
        }
        Ok(())
    }
}
