//! Why a manifest is refused, by name.

use std::fmt;

use adit_core::error::{ErrorKind, FsError};

use super::wtf8;

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident => $name:literal,)*) => {
        /// A rule that a manifest broke. The names are stable: scripts and support may rely on them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$doc])* $rule,)*
        }

        impl Rule {
            /// Every rule, in the order of their declaration.
            pub const ALL: [Rule; [$(Rule::$rule),*].len()] = [$(Rule::$rule),*];

            /// The rule's name, as it stands in messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Rule::$rule => $name,)*
                }
            }
        }
    };
}

rules! {
    /// The text is no JSON, or ends early, or goes on behind the end.
    JsonSyntax => "json-syntax",
    /// The text is not UTF-8, or has a control character inside a string.
    JsonText => "json-text",
    /// Nested more than [`JSON_DEPTH_MAX`](super::limits::JSON_DEPTH_MAX) deep.
    JsonDepth => "json-depth",
    /// A string is longer than [`JSON_STRING_LEN_MAX_BYTES`](super::limits::JSON_STRING_LEN_MAX_BYTES).
    JsonString => "json-string",
    /// An object has one of the format's keys twice: readers would differ in which one counts.
    DuplicateKey => "duplicate-key",
    /// A key is missing.
    FieldMissing => "field-missing",
    /// A value is of another type than the format says.
    FieldType => "field-type",
    /// The version is none that is read.
    UnknownVersion => "unknown-version",
    /// The hash algorithm is none that is known.
    UnknownHashAlgorithm => "unknown-hash-algorithm",
    /// There is no entry, in a version that wants one.
    NoEntries => "no-entries",
    /// More than [`ENTRIES_MAX`](super::limits::ENTRIES_MAX) entries.
    TooManyEntries => "too-many-entries",
    /// More directories than [`DIRECTORIES_MAX`](super::limits::DIRECTORIES_MAX), or too long ones.
    TooManyDirectories => "too-many-directories",
    /// A size is negative, no integer, or above [`FILE_SIZE_MAX_BYTES`](super::limits::FILE_SIZE_MAX_BYTES).
    FileSize => "file-size",
    /// The sizes do not add up to `totalSize`, or to more than [`TOTAL_SIZE_MAX_BYTES`](super::limits::TOTAL_SIZE_MAX_BYTES).
    TotalSize => "total-size",
    /// A time is no integer of 64 bits.
    Mtime => "mtime",
    /// A hash is not 32 lower-case hexadecimal digits.
    HashText => "hash-text",
    /// The number of chunks is not that of the size, or above [`CHUNKS_PER_FILE_MAX`](super::limits::CHUNKS_PER_FILE_MAX).
    ChunkCount => "chunk-count",
    /// The manifest's chunks are not of 256 MiB.
    ChunkSize => "chunk-size",
    /// An entry has not exactly one of a hash, chunk hashes and a link's target, or is a deletion and has more than a path.
    Content => "content",
    /// A snapshot deletes something.
    DeletionInSnapshot => "deletion-in-snapshot",
    /// A diff does not name its parent, or a snapshot names one.
    ParentHash => "parent-hash",
    /// `$N/…` refers to no directory that is listed before.
    DirectoryReference => "directory-reference",
    /// A path is empty.
    PathEmpty => "path-empty",
    /// A path is absolute, in a manifest of relative ones.
    PathAbsolute => "path-absolute",
    /// A path is relative, in a manifest of absolute ones.
    PathRelative => "path-relative",
    /// A path has a NUL character.
    PathNul => "path-nul",
    /// A path has an empty component (`a//b`, `a/`).
    PathEmptyComponent => "path-empty-component",
    /// A component of a path is `.`.
    PathDot => "path-dot",
    /// A component of a path is `..`.
    PathParent => "path-parent",
    /// A component of a path is longer than [`NAME_LEN_MAX_BYTES`](super::limits::NAME_LEN_MAX_BYTES).
    PathComponentLength => "path-component-length",
    /// A path is longer than [`PATH_LEN_MAX_BYTES`](super::limits::PATH_LEN_MAX_BYTES).
    PathLength => "path-length",
    /// A path has more than [`PATH_DEPTH_MAX`](super::limits::PATH_DEPTH_MAX) components.
    PathDepth => "path-depth",
    /// A symbolic link's target is empty, too long, or has a NUL character.
    SymlinkTarget => "symlink-target",
    /// A symbolic link's target is absolute.
    SymlinkAbsolute => "symlink-absolute",
    /// A symbolic link leads out of the root, or goes up again after it went down, where other links could make it do so.
    SymlinkEscape => "symlink-escape",
    /// A path is there twice.
    DuplicatePath => "duplicate-path",
    /// A path leads through something that is no directory.
    FileAgainstDirectory => "file-against-directory",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A manifest that is refused: by which rule, because of what.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("refused by rule {rule}: {detail}")]
pub struct FormatError {
    /// The rule.
    pub rule: Rule,
    /// What broke it, with the path where one is known.
    pub detail: String,
}

impl FormatError {
    pub(crate) fn new(rule: Rule, detail: impl Into<String>) -> Self {
        FormatError { rule, detail: detail.into() }
    }

    /// Puts the path before the detail.
    pub(crate) fn at(mut self, wtf8: &[u8]) -> Self {
        self.detail = format!("{}: {}", Quoted(wtf8), self.detail);
        self
    }

    /// The refusal behind an error of this crate, if there is one.
    #[must_use]
    pub fn of(error: &FsError) -> Option<&FormatError> {
        error.cause()?.downcast_ref()
    }
}

impl From<FormatError> for FsError {
    fn from(e: FormatError) -> Self {
        let kind = match e.rule {
            Rule::UnknownVersion | Rule::UnknownHashAlgorithm | Rule::ChunkSize => ErrorKind::NotSupported,
            _ => ErrorKind::Corrupt,
        };
        FsError::new(kind).because(e)
    }
}

/// Text of a manifest in a message: in quotes, escaped as in JSON, and cut where it is long.
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

/// Characters of a text that a message shows.
const QUOTED_MAX_CHARS: usize = 200;

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        let mut points = wtf8::code_points(self.0);
        for point in points.by_ref().take(QUOTED_MAX_CHARS) {
            match char::from_u32(point) {
                Some(c @ ('"' | '\\')) => write!(f, "\\{c}")?,
                Some(c) if !c.is_control() => write!(f, "{c}")?,
                _ => write!(f, "\\u{point:04x}")?,
            }
        }
        f.write_str(if points.next().is_some() { "…\"" } else { "\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_unique() {
        let mut names: Vec<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert!(names.iter().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Rule::ALL.len());
    }

    #[test]
    fn the_message_has_rule_and_path() {
        let refused = FormatError::new(Rule::PathParent, "has a component \"..\"").at(b"a/\n/\xed\xa0\x80");
        let error = FsError::from(refused.clone());
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(FormatError::of(&error), Some(&refused));
        assert_eq!(
            error.to_string(),
            r#"corrupt data: refused by rule path-parent: "a/\u000a/\ud800": has a component "..""#
        );
    }

    #[test]
    fn long_text_is_cut() {
        let shown = Quoted(&[b'x'; 4096]).to_string();
        assert_eq!(shown.chars().count(), QUOTED_MAX_CHARS + 3);
    }
}
