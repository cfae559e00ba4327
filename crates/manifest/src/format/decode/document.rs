//! The manifest's object, and its arrays.

use std::fmt;

use adit_core::error::FsError;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::draft::{Draft, Form};
use super::{Pass, Reading, Totals};
use crate::format::directories::Directories;
use crate::format::entry::{Body, Entry, Header, PathStyle};
use crate::format::fields::{Hash, Integer, Key, OrNull, Text};
use crate::format::path::EntryPath;
use crate::format::rule::{FormatError, Rule};

/// Entries between two tellings of progress.
const PROGRESS_ENTRIES: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Top {
    ManifestVersion,
    SpecificationVersion,
    HashAlgorithm,
    TotalSize,
    ParentHash,
    ChunkSize,
    Paths,
    Directories,
    Files,
}

const KEYS: &[(&str, Top)] = &[
    ("manifestVersion", Top::ManifestVersion),
    ("specificationVersion", Top::SpecificationVersion),
    ("hashAlg", Top::HashAlgorithm),
    ("totalSize", Top::TotalSize),
    ("parentManifestHash", Top::ParentHash),
    ("fileChunkSizeBytes", Top::ChunkSize),
    ("paths", Top::Paths),
    ("dirs", Top::Directories),
    ("files", Top::Files),
];

/// The whole text.
pub(super) struct Document<'r, 's>(pub(super) &'r mut Reading<'s>);

impl<'de> DeserializeSeed<'de> for Document<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a manifest: an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let reading = self.0;
        let mut seen = 0_u16;
        while let Some(key) = object.next_key_seed(Key(KEYS))? {
            let Some(key) = key else {
                object.next_value::<IgnoredAny>()?;
                continue;
            };
            let bit = 1 << key as u16;
            if seen & bit != 0 {
                let name = KEYS.iter().find(|(_, other)| *other == key).map_or("", |(name, _)| name);
                return Err(reading.fail(FormatError::new(Rule::DuplicateKey, format!("{name} is there twice"))));
            }
            seen |= bit;
            value(reading, key, &mut object)?;
            if reading.pass == Pass::Head && reading.scalars.is_2023() {
                reading.done = true;
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}

/// Reads the value of a key of the manifest.
fn value<'de, A: MapAccess<'de>>(reading: &mut Reading<'_>, key: Top, object: &mut A) -> Result<(), A::Error> {
    let mut text = Vec::new();
    match key {
        Top::ManifestVersion => {
            object.next_value_seed(Text(&mut text))?;
            let outcome = reading.scalars.set_manifest_version(&text);
            reading.told(outcome)
        }
        Top::SpecificationVersion => {
            object.next_value_seed(Text(&mut text))?;
            let outcome = reading.scalars.set_specification_version(&text);
            reading.told(outcome)
        }
        Top::HashAlgorithm => {
            object.next_value_seed(Text(&mut text))?;
            let outcome = reading.scalars.set_algorithm(&text);
            reading.told(outcome)
        }
        Top::TotalSize => {
            reading.scalars.total_size = match object.next_value_seed(Integer)? {
                Some(number) => Some(number),
                None => {
                    let refused = FormatError::new(Rule::TotalSize, "totalSize is no integer of 64 bits");
                    return Err(reading.fail(refused));
                }
            };
            Ok(())
        }
        Top::ParentHash => {
            reading.scalars.parent = object.next_value_seed(OrNull(Hash))?;
            Ok(())
        }
        Top::ChunkSize => {
            reading.scalars.chunk_size = object.next_value_seed(OrNull(Integer))?;
            Ok(())
        }
        Top::Paths | Top::Directories | Top::Files => array(reading, key, object),
    }
}

/// Reads an array, or passes over it.
fn array<'de, A: MapAccess<'de>>(reading: &mut Reading<'_>, key: Top, object: &mut A) -> Result<(), A::Error> {
    if key == Top::Files && !reading.seen.directories {
        reading.files_first = true;
    }
    match key {
        Top::Paths => reading.seen.paths = true,
        Top::Directories => reading.seen.directories = true,
        _ => reading.seen.files = true,
    }
    let wanted = match (reading.pass, key) {
        (Pass::Paths(header), Top::Paths) => Some((header, Form::Path)),
        (Pass::Both(header) | Pass::Directories(header), Top::Directories) => Some((header, Form::Directory)),
        (Pass::Both(header) | Pass::Files(header), Top::Files) => Some((header, Form::File)),
        _ => None,
    };
    match wanted {
        Some((header, form)) => object.next_value_seed(Array { reading, header, form }),
        None => object.next_value::<IgnoredAny>().map(|_| ()),
    }
}

struct Array<'r, 's> {
    reading: &'r mut Reading<'s>,
    header: Header,
    form: Form,
}

impl<'de> DeserializeSeed<'de> for Array<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Array<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        let Array { reading, header, form } = self;
        let mut expanded = Vec::new();
        let mut target = Vec::new();
        loop {
            let mut repeated = None;
            let entry = reading.draft.seed(form, &mut repeated);
            match array.next_element_seed(entry) {
                Ok(Some(())) => {}
                Ok(None) => return Ok(()),
                Err(e) => {
                    return Err(match repeated {
                        Some(refused) => reading.fail(refused),
                        None => e,
                    });
                }
            }
            let Reading { draft, directories, totals, sink, position, whole_only, entries_max, .. } = &mut *reading;
            if totals.entries() >= *entries_max {
                let refused = FormatError::new(Rule::TooManyEntries, format!("more than {entries_max} entries"));
                return Err(reading.fail(refused));
            }
            let passed = build(draft, form, &header, *whole_only, directories, totals, &mut expanded, &mut target)
                .map_err(FsError::from)
                .and_then(|entry| {
                    let Some(sink) = sink else { return Ok(()) };
                    sink.entry(entry)?;
                    if totals.entries().is_multiple_of(PROGRESS_ENTRIES) {
                        sink.progress(position.get())
                    } else {
                        Ok(())
                    }
                });
            reading.told::<_, A::Error>(passed)?;
        }
    }
}

/// Makes an entry of what was read.
#[expect(clippy::too_many_arguments, reason = "the parts of a reading, which the entry borrows from")]
fn build<'e>(
    draft: &'e Draft,
    form: Form,
    header: &Header,
    whole_only: bool,
    directories: &mut Directories,
    totals: &mut Totals,
    expanded: &'e mut Vec<u8>,
    target: &'e mut Vec<u8>,
) -> Result<Entry<'e>, FormatError> {
    let Some(text) = draft.path() else {
        let detail = format!("entry {} of {} has no path", totals.entries() + 1, form.array());
        return Err(FormatError::new(Rule::FieldMissing, detail));
    };
    let path = match form {
        Form::Path => EntryPath::parse(text, PathStyle::Relative)?,
        Form::Directory | Form::File => {
            directories.expand(text, expanded)?;
            EntryPath::parse(expanded, header.style)?
        }
    };
    if form == Form::Directory {
        directories.push(text)?;
    }
    let body = draft.body(form, header, whole_only, &path, directories, target).map_err(|e| e.at(path.as_wtf8()))?;
    match &body {
        Body::Directory => totals.directories += 1,
        Body::Symlink(_) => totals.symlinks += 1,
        Body::Deleted(_) => totals.deletions += 1,
        Body::File(file) => {
            totals.files += 1;
            totals.add_size(file.size_bytes).map_err(|e| e.at(path.as_wtf8()))?;
        }
    }
    Ok(Entry { path, body })
}
