//! Questions to the index of a mount, as they and their answers travel over the mount's control socket.
//!
//! Paths are bytes, relative to the root of the mount, without a slash in front. Hits come in pieces of many; what is new in a later
//! version has a default here.

use adit_core::types::Kind;
use serde::{Deserialize, Serialize};

/// The request.
pub const INDEX_VERB: &str = "index";

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// What matches: pieces are lists of [`Hit`]; in the end [`Count`].
    Find(Box<Search>),
    /// What paths lead to: pieces are lists of [`Answer`], one for each path in their order.
    Resolve {
        /// The directory that relative paths begin in.
        #[serde(with = "text_or_bytes")]
        start: Vec<u8>,
        /// The paths.
        #[serde(with = "texts_or_bytes")]
        paths: Vec<Vec<u8>>,
    },
    /// How much is below a directory: pieces are lists of [`Sum`], of what is in it; in the end its own.
    Du {
        /// The directory.
        #[serde(with = "text_or_bytes")]
        path: Vec<u8>,
    },
    /// The largest files and directories: two pieces, each a list of [`Sum`]; in the end [`Count`] of both.
    Top {
        /// Below this directory.
        #[serde(with = "text_or_bytes")]
        path: Vec<u8>,
        /// So many of each.
        count: usize,
    },
    /// What the index is: in the end [`About`].
    Info,
    /// The whole tree is walked again; in the end [`About`].
    Update,
}

/// A pattern, as it was typed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wording {
    /// How it is to be read.
    pub syntax: Reading,
    /// Its bytes.
    #[serde(with = "text_or_bytes")]
    pub text: Vec<u8>,
    /// Others: what any of them matches is matched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Vec<u8>>,
    /// Whether large letters are small ones.
    pub ignore_case: bool,
    /// Whether it is compared with whole paths also if it has no slash.
    pub full_path: bool,
}

/// See [`Wording::syntax`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// Bytes that occur somewhere.
    Substring,
    /// A glob that matches the whole.
    Glob,
    /// A regular expression.
    Regex,
}

/// By what hits are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SortBy {
    /// Path, name by name.
    Path,
    /// Last name.
    Name,
    /// Size.
    Size,
    /// Time of the last change of content.
    Time,
}

/// What [`Question::Find`] looks for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Search {
    /// All have to match.
    pub patterns: Vec<Wording>,
    /// None may match, nor a directory above.
    pub excludes: Vec<Wording>,
    /// Words of [`Kind::as_str`]; none: any.
    pub kinds: Vec<String>,
    /// Any of these; none: any.
    #[serde(with = "texts_or_bytes")]
    pub extensions: Vec<Vec<u8>>,
    /// Least and most bytes.
    pub size: Option<(u64, u64)>,
    /// From and to, in nanoseconds since 1970.
    pub mtime_ns: Option<(i64, i64)>,
    /// The directory that it begins in.
    #[serde(with = "text_or_bytes")]
    pub below: Vec<u8>,
    /// Least and most names below that.
    pub depth: Option<(u32, u32)>,
    /// Most hits.
    pub limit: Option<u64>,
    /// By what, and whether the other way round.
    pub sort: Option<(SortBy, bool)>,
    /// Only how many.
    pub count_only: bool,
}

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hit {
    /// Its path.
    #[serde(with = "text_or_bytes")]
    pub path: Vec<u8>,
    /// A word of [`Kind::as_str`].
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub perm: u16,
    /// When its content changed last, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The hash of its content as 32 hexadecimal digits, where the store knows that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Of a directory: whether not all of it could be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unread: bool,
}

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// This.
    Found(Hit),
    /// `deepest` has no entry of the name number `component`, counted from 0.
    Missing {
        /// The last directory on the way.
        #[serde(with = "text_or_bytes")]
        deepest: Vec<u8>,
        /// Which name.
        component: usize,
        /// Whether it may be there all the same: not all of `deepest` could be read.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_unread: bool,
    },
    /// `at`, which the name number `component` leads to, is no directory, and the path goes on.
    NotDirectory {
        /// What is there.
        #[serde(with = "text_or_bytes")]
        at: Vec<u8>,
        /// Which name leads to it.
        component: usize,
        /// Whether it is a symbolic link, which is not followed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_link: bool,
    },
}

/// How much an entry comes to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sum {
    /// Its path.
    #[serde(with = "text_or_bytes")]
    pub path: Vec<u8>,
    /// A word of [`Kind::as_str`].
    pub kind: String,
    /// Regular files in it, itself among them.
    #[serde(default)]
    pub files: u64,
    /// Likewise directories.
    #[serde(default)]
    pub directories: u64,
    /// Likewise links, devices, pipes and sockets.
    #[serde(default)]
    pub others: u64,
    /// Bytes of them all.
    pub bytes: u64,
}

/// How many there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Hits.
    pub count: u64,
}

/// What comes last of every answer but [`About`], beside its own fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// How much could not be read at the last walk or since, and may be missing in the answer.
    pub unread: u64,
    /// Whether the root is among it, which is no [`Hit`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_root_unread: bool,
}

/// What there is to say of the index of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Whether the next question is answered without a walk of the tree.
    pub ready: bool,
    /// Entries that there are, the root among them, as in an index file.
    pub entries: u64,
    /// Those of its base.
    pub base_entries: u64,
    /// Length of the base in bytes, and whether it lies in memory.
    pub base_bytes: u64,
    /// See there.
    pub in_memory: bool,
    /// Entries that differ from the base, about.
    pub changed: u64,
    /// Memory of it all in bytes.
    pub memory_bytes: u64,
    /// Batches of changes so far.
    pub generation: u64,
    /// Whether the base is what the store answers from: nothing was walked for it.
    pub mapped: bool,
    /// Walks of the whole tree so far.
    pub walks: u64,
    /// Bases made anew from an older one so far.
    pub folds: u64,
    /// What could not be read at the last walk and since: how much, and the first of it.
    pub unread: u64,
    /// See there.
    pub first_unread: Option<String>,
}

/// How far an answer is, as a piece of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// What is done, in words.
    pub doing: String,
    /// How much of it is done.
    pub done: u64,
    /// Of how much; 0 if nobody knows.
    pub total: u64,
}

/// A piece of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piece {
    /// Nothing yet.
    Waiting(Waiting),
    /// Of [`Question::Find`].
    Hits(Vec<Hit>),
    /// Of [`Question::Resolve`].
    Answers(Vec<Answer>),
    /// Of [`Question::Du`] and [`Question::Top`].
    Sums(Vec<Sum>),
}

/// The kind that a word of [`Kind::as_str`] means.
pub fn kind_of(word: &str) -> Option<Kind> {
    use Kind::*;
    [File, Directory, Symlink, BlockDevice, CharDevice, Fifo, Socket].into_iter().find(|kind| kind.as_str() == word)
}

/// Bytes as text where they are that, else as hexadecimal digits: never much more than twice as long. Numbers are read as well.
mod text_or_bytes {
    use serde::de::Error;
    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Bytes(Vec<u8>),
        Hex { hex: String },
    }

    /// Whether JSON has few enough characters that take six.
    fn is_short(text: &str) -> bool {
        let controls = text.bytes().filter(|byte| byte.is_ascii_control() && !b"\n\r\t".contains(byte)).count();
        controls <= text.len() / 8
    }

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        if let Some(text) = std::str::from_utf8(bytes).ok().filter(|text| is_short(text)) {
            return to.serialize_str(text);
        }
        let mut map = to.serialize_map(Some(1))?;
        map.serialize_entry("hex", &hex(bytes))?;
        map.end()
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<u8>, D::Error> {
        Ok(match Either::deserialize(from)? {
            Either::Text(text) => text.into_bytes(),
            Either::Bytes(bytes) => bytes,
            Either::Hex { hex } => bytes(&hex).ok_or_else(|| D::Error::custom("not hexadecimal digits, two a byte"))?,
        })
    }

    fn hex(bytes: &[u8]) -> String {
        let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or_default();
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }

    fn bytes(hex: &str) -> Option<Vec<u8>> {
        let digits = hex.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<u32>>>()?;
        let (pairs, rest) = digits.as_chunks::<2>();
        rest.is_empty().then(|| pairs.iter().map(|[high, low]| (high << 4 | low) as u8).collect())
    }
}

/// A list of such.
mod texts_or_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct Lent<'a>(#[serde(with = "super::text_or_bytes")] &'a [u8]);

    #[derive(Deserialize)]
    struct Owned(#[serde(deserialize_with = "super::text_or_bytes::deserialize")] Vec<u8>);

    pub fn serialize<S: Serializer>(all: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(|bytes| Lent(bytes)))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
        Ok(Vec::<Owned>::deserialize(from)?.into_iter().map(|owned| owned.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_travel() {
        for path in [&b"a/b"[..], b"", b"\xff\n/x", "ä\u{1f600}".as_bytes(), &[1; 1000], &[b'"'; 1000], &[0xff; 1000]]
        {
            let hit = Hit {
                path: path.to_vec(),
                kind: "file".into(),
                size: u64::MAX,
                perm: 0o644,
                mtime_ns: i64::MIN,
                hash: None,
                is_unread: false,
            };
            let text = serde_json::to_string(&Piece::Hits(vec![hit.clone()])).unwrap();
            assert_eq!(serde_json::from_str::<Piece>(&text).unwrap(), Piece::Hits(vec![hit]));
            let question = Question::Resolve { start: path.to_vec(), paths: vec![path.to_vec(); 3] };
            let text = serde_json::to_string(&question).unwrap();
            assert!(text.len() <= 4 * 2 * path.len() + 100, "{text}");
            let Question::Resolve { start, paths } = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
            assert_eq!((&start[..], &paths[..]), (path, &vec![path.to_vec(); 3][..]));
        }
        let numbers = r#"{"resolve": {"start": [], "paths": [[97, 255], "b"]}}"#;
        let Question::Resolve { paths, .. } = serde_json::from_str(numbers).unwrap() else { panic!() };
        assert_eq!(paths, [&b"a\xff"[..], b"b"]);
        assert!(serde_json::from_str::<Question>(r#"{"du": {"path": {"hex": "6"}}}"#).is_err());
        let question = Question::Find(Box::new(Search { size: Some((0, u64::MAX)), ..Search::default() }));
        let text = serde_json::to_string(&question).unwrap();
        assert!(
            matches!(serde_json::from_str(&text).unwrap(), Question::Find(search) if search.size == Some((0, u64::MAX)))
        );
        assert!(
            matches!(serde_json::from_str(r#"{"find": {}}"#).unwrap(), Question::Find(_)),
            "what is not said has a default"
        );
    }

    #[test]
    fn kinds_are_known_by_their_words() {
        assert_eq!(kind_of(Kind::Fifo.as_str()), Some(Kind::Fifo));
        assert_eq!(kind_of("nonsense"), None);
    }
}
