//! The seam of an object store: whole objects by key, read in ranges.
//!
//! [`Objects`] is the trait; [`Content`] is what an object is made of, [`Tag`] what tells one content of an object from the
//! next. Keys are relative to the place that the implementation was made for (a bucket with a prefix, a folder).
//!
//! All of it is synchronous. No call waits for ever: an implementation that goes over a network has a deadline for each, and
//! tries again within it by itself, so a caller that sees [`Network`](ErrorKind::Network) or
//! [`TimedOut`](ErrorKind::TimedOut) knows that it is not for now.

use std::fmt;
use std::io;
use std::time::SystemTime;

use crate::error::{ErrorKind, FsError, Result};

/// Longest key with its prefix, in bytes: what S3 takes.
pub const OBJECT_KEY_LEN_MAX_BYTES: usize = 1024;

/// Most bytes of all user metadata of an object, names and values together: what S3 takes.
pub const USER_METADATA_LEN_MAX_BYTES: usize = 2048;

/// What tells one content of an object from another: an entity tag as the store gave it, quotes and all. Only good to be
/// compared with another of the same object; it is no hash of anything.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Tag(Box<str>);

impl Tag {
    /// A tag as the store spells it.
    pub fn new(tag: impl Into<Box<str>>) -> Self {
        Tag(tag.into())
    }

    /// As the store spells it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is known of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObjectInfo {
    /// Length of the whole object in bytes.
    pub len: u64,
    /// Its tag; a store without any gives none.
    pub tag: Option<Tag>,
    /// User metadata, by lower-case name in byte order. Only [`Objects::head`] tells it.
    pub metadata: Vec<(String, String)>,
    /// The time of its last change by the clock of the store, to a second in many. Only [`Objects::head`] tells it, if the store does.
    pub modified: Option<SystemTime>,
}

/// What [`Objects::read_at`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// Bytes that were read into the buffer.
    pub count: usize,
    /// The object that they are of.
    pub object: ObjectInfo,
}

/// Takes what [`Objects::read_through`] hands on: the object, and bytes of it.
pub type ObjectSink<'a> = dyn FnMut(&ObjectInfo, &[u8]) -> Result<()> + 'a;

/// A content that is read at offsets, from several threads, and the same range perhaps twice: a file, as a rule. Nobody may
/// change it meanwhile; what is stored then is any mixture.
pub trait ContentSource: Send + Sync {
    /// Length in bytes.
    fn content_len(&self) -> u64;

    /// Fills `buf` from `offset`; `UnexpectedEof` if the content ends before.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// What an object is made of.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Something that is read while it is stored, in pieces.
    Source(&'a dyn ContentSource),
}

impl Content<'_> {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Source(source) => source.content_len(),
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`; `UnexpectedEof` if the content ends before.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self {
            Content::Source(source) => source.read_exact_at(offset, buf),
            Content::Bytes(bytes) => {
                let from = usize::try_from(offset).ok();
                let range = from.and_then(|from| Some(from..from.checked_add(buf.len())?));
                buf.copy_from_slice(range.and_then(|range| bytes.get(range)).ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes)", self.len())
    }
}

/// An open file of the host as the content of an object. Its length is that of the moment when this was made.
#[derive(Debug)]
pub struct FileContent {
    file: std::fs::File,
    len: u64,
}

impl FileContent {
    /// The content of `file`, from its first byte on.
    pub fn new(file: std::fs::File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(FileContent { file, len })
    }
}

impl ContentSource for FileContent {
    fn content_len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buf, offset)
    }
}

/// How [`Objects::put`] stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutOptions<'a> {
    /// Only if there is no object of that key. Where the store can decide it, nobody else's object is ever replaced; where
    /// it cannot ([`Objects::if_absent_is_atomic`]), one that somebody stores between the look and the write is. Where it neither can nor
    /// lets anyone look, nothing is stored ([`Withheld`]), but for the first object, by which that is found out.
    pub if_absent: bool,
    /// User metadata: names of `a-z 0-9 - _ .`, values of printable ASCII without white space at either end.
    pub metadata: &'a [(&'a str, &'a str)],
}

/// What [`Objects::put`] did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stored {
    /// The object is there, whole and durable, with this tag if the store told it.
    New(Option<Tag>),
    /// There was one of that key, and it was left as it is; whoever stored it answers for its being durable. Only with
    /// [`PutOptions::if_absent`].
    AlreadyThere {
        /// Its length in bytes, as the store tells it: a store that refuses says nothing of what it has, so it was looked at.
        len: u64,
    },
}

/// An object in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedObject {
    /// Its key.
    pub key: String,
    /// Length in bytes.
    pub len: u64,
    /// Its tag, if the store tells it in listings.
    pub tag: Option<Tag>,
}

/// The cause of a [`PermissionDenied`](ErrorKind::PermissionDenied) that is about one object: it is missing, or may not be had. A store need not
/// say which to who may not list it; S3 does not. Or it is there, and the store says why it does not hand it out: it is archived, or its key is
/// disabled. So it tells nothing of other objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Withheld {
    answer: Box<str>,
    /// What can be done about an object that is there.
    advice: Option<&'static str>,
}

impl Withheld {
    /// With what the store answered, which does not tell whether the object is there.
    pub fn new(answer: impl Into<Box<str>>) -> Self {
        Withheld { answer: answer.into(), advice: None }
    }

    /// With what the store answered of an object that is there, and what can be done about it.
    pub fn present(answer: impl Into<Box<str>>, advice: &'static str) -> Self {
        Withheld { answer: answer.into(), advice: Some(advice) }
    }

    /// Whether an error comes from that.
    pub fn is_behind(e: &FsError) -> bool {
        e.cause().is_some_and(|cause| {
            cause.is::<Withheld>() || cause.downcast_ref::<FsError>().is_some_and(Withheld::is_behind)
        })
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Withheld { answer, advice } = self;
        if let Some(advice) = advice {
            return write!(f, "{answer}: {advice}");
        }
        write!(
            f,
            "{answer}: it is missing, or not allowed (to credentials that may not list the bucket the store does not say which); \
             check which credentials are used, and what they may do; a bucket whose requester pays wants --request-payer"
        )
    }
}

impl std::error::Error for Withheld {}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObjectPage {
    /// Objects in the byte order of their keys.
    pub objects: Vec<ListedObject>,
    /// Whether there may be more, after the last of these.
    pub more: bool,
}

/// An object store, or a part of one.
///
/// All methods may be called from any thread at any time, and run beside each other. A key is what [`check_object_key`]
/// lets pass. Errors name the object with its store, and say what to do:
///
/// | kind | what it means |
/// |---|---|
/// | `NotFound` | no object of that key, or no such bucket or folder (the message tells which) |
/// | `PermissionDenied` | the store refuses these credentials, or there are none; with [`Withheld`] as its cause, this is about one object |
/// | `Stale` | the object is not the one that the tag is of |
/// | `Network` | the store cannot be reached, fails, or wants fewer requests, and did so until the tries were used up |
/// | `TimedOut` | the deadline of the call passed |
/// | `Corrupt` | an answer contradicts itself or the request: too short, another range, another length than before |
/// | `InvalidInput`, `NotSupported` | a key or metadata that the store cannot have |
/// | `NoSpace`, `ReadOnly`, `Io`, … | of a folder: what the host says |
pub trait Objects: Send + Sync {
    /// Fills `buf` from `offset`; less only where the object ends, and nothing at or after its end. With `tag`, `Stale` unless
    /// the object still has it: whoever reads an object in several ranges gives that of the first to the others.
    ///
    /// On an error the buffer may hold anything.
    fn read_at(&self, key: &str, offset: u64, buf: &mut [u8], tag: Option<&Tag>) -> Result<Fetched>;

    /// As [`Objects::read_at`] of `len` bytes, handed to `sink` in order as they come, in pieces of any size: nobody holds all of them. What
    /// was handed on before an error is of the object that was told with it. An error of `sink` ends it, and is returned.
    fn read_through(
        &self,
        key: &str,
        offset: u64,
        len: u64,
        tag: Option<&Tag>,
        sink: &mut ObjectSink<'_>,
    ) -> Result<Fetched> {
        let len = usize::try_from(len).map_err(|_| ErrorKind::InvalidInput)?;
        let mut buf = vec![0; len];
        let fetched = self.read_at(key, offset, &mut buf, tag)?;
        sink(&fetched.object, &buf[..fetched.count])?;
        Ok(fetched)
    }

    /// Length, tag and user metadata.
    fn head(&self, key: &str) -> Result<ObjectInfo>;

    /// Stores an object, at once in the eyes of others: it is there as a whole or not at all. An object that is there already
    /// is replaced, unless the options say otherwise. Large ones go in several parts at a time.
    fn put(&self, key: &str, content: Content<'_>, options: &PutOptions<'_>) -> Result<Stored>;

    /// Removes an object; well if there is none.
    fn delete(&self, key: &str) -> Result<()>;

    /// Objects whose keys begin with `prefix` and come after `after`, at most `max` of them (and at least one, if there is
    /// any and `max` is not zero). The prefix need not end at a `/`.
    fn list(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ObjectPage>;

    /// Whether the store decides [`PutOptions::if_absent`] at one moment; `None` if nobody knows yet, because nothing was
    /// stored in that way, or nothing small.
    fn if_absent_is_atomic(&self) -> Option<bool>;

    /// Has the store forget what uploads that were killed have left there, as far as that was noted and nobody is at it. A store in which nothing
    /// can be left does nothing.
    fn give_up_left(&self) -> Result<()> {
        Ok(())
    }

    /// The store in a message: where it is, and never a secret.
    fn describe(&self) -> String;
}

/// Refuses a key that some store cannot have: empty, longer than 1024 bytes, with a control character, with white space at
/// either end, or with an empty, `.` or `..` component. So a key is a relative path of plain components.
pub fn check_object_key(key: &str) -> Result<()> {
    let wrong = if key.is_empty() {
        "it is empty"
    } else if key.len() > OBJECT_KEY_LEN_MAX_BYTES {
        "it is longer than 1024 bytes"
    } else if key.chars().any(char::is_control) {
        "it has a control character"
    } else if key.trim() != key {
        "it begins or ends with white space"
    } else if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
        "it has an empty, `.` or `..` component"
    } else {
        return Ok(());
    };
    Err(FsError::new(ErrorKind::InvalidInput)
        .on("address object", key.escape_debug())
        .because(format!("as a key, {wrong}")))
}

/// Refuses a prefix that no key can begin with.
pub fn check_object_prefix(prefix: &str) -> Result<()> {
    if prefix.is_empty() || check_object_key(prefix).is_ok() {
        return Ok(());
    }
    // As the beginning of a key, whose last component may still go on.
    check_object_key(&format!("{prefix}x"))
}

/// Refuses user metadata that some store cannot have, or would hand back changed.
pub fn check_user_metadata(metadata: &[(&str, &str)]) -> Result<()> {
    let refuse = |name: &str, why: &str| {
        Err(FsError::new(ErrorKind::InvalidInput)
            .on("set object metadata", name.escape_debug())
            .because(why.to_owned()))
    };
    let mut total = 0;
    for (at, (name, value)) in metadata.iter().enumerate() {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty() || !name.bytes().all(plain) {
            return refuse(name, "a name is made of a-z, 0-9, `-`, `_` and `.`");
        }
        if !value.bytes().all(|b| (b' '..=b'~').contains(&b)) || value.trim() != *value {
            return refuse(name, "a value is printable ASCII, without white space at either end");
        }
        if metadata[..at].iter().any(|(other, _)| other == name) {
            return refuse(name, "the name is there twice");
        }
        total += name.len() + value.len();
    }
    if total > USER_METADATA_LEN_MAX_BYTES {
        return refuse("all", "names and values have more than 2048 bytes together");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_relative_paths_of_plain_components() {
        for key in ["a", "Data/0123.xxh128", "a/..b/c.", "naïve/日本", "a b/c", &"k".repeat(1024)] {
            check_object_key(key).unwrap();
            check_object_prefix(key).unwrap();
        }
        for key in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\nb", " a", "a ", &"k".repeat(1025)]
        {
            let e = check_object_key(key).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{key:?}");
        }
        for prefix in ["", "a/", "a/b", "a/.", "a/.."] {
            check_object_prefix(prefix).unwrap();
        }
        for prefix in ["/", "a//", "../", "a/../b", "./a"] {
            assert!(check_object_prefix(prefix).is_err(), "{prefix:?}");
        }
    }

    #[test]
    fn metadata_is_what_every_store_hands_back_unchanged() {
        check_user_metadata(&[("asset-root", "/a b"), ("asset-root-json", "\"\\u00e9\"")]).unwrap();
        for (name, value) in [("", "x"), ("Asset", "x"), ("a b", "x"), ("a", "é"), ("a", " x"), ("a", "x\n")] {
            assert!(check_user_metadata(&[(name, value)]).is_err(), "{name:?} {value:?}");
        }
        assert!(check_user_metadata(&[("a", "1"), ("a", "2")]).is_err());
        assert!(check_user_metadata(&[("a", &"x".repeat(2047))]).is_ok());
        assert!(check_user_metadata(&[("a", &"x".repeat(2048))]).is_err());
    }

    #[test]
    fn bytes_are_read_at_offsets() {
        let content = Content::Bytes(b"hello");
        let mut buf = [0; 3];
        content.read_exact_at(2, &mut buf).unwrap();
        assert_eq!(&buf, b"llo");
        for offset in [3, 6, u64::MAX] {
            assert_eq!(content.read_exact_at(offset, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
