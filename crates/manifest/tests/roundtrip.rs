//! Random manifests: what is written is read as the same, whatever the layout, and in the order of the format.

use std::collections::BTreeMap;

use adit_manifest::format::limits::CHUNK_LEN_BYTES;
use adit_manifest::format::{
    Body, Content, ContentHash, Dialect, Entry, EntryPath, File, Format, Header, Kind, LinkTarget, Manifest, PathStyle,
    Removed, wtf8,
};
use proptest::prelude::*;

/// Names that meet all that is special: escapes, order, references, lone surrogates.
fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[a-c$0-2.-]".prop_map(String::into_bytes),
        1 => any::<char>().prop_filter("no separator", |c| !matches!(c, '/' | '\0')).prop_map(|c| c.to_string().into_bytes()),
        1 => prop::sample::select(vec!["😀", "\u{fb00}", "\u{e000}", "\"", "\\", "\n", "\u{7f}"]).prop_map(|s| s.as_bytes().to_vec()),
        1 => (0xd800_u16..0xe000).prop_map(|unit| vec![0xed, 0x80 | (unit >> 6 & 0x3f) as u8, 0x80 | (unit & 0x3f) as u8]),
    ];
    prop::collection::vec(piece, 1..4)
        .prop_map(|pieces| pieces.concat())
        .prop_filter("a name of WTF-8", |name| wtf8::is_wtf8(name) && name != b"." && name != b"..")
}

fn any_path() -> impl Strategy<Value = EntryPath<'static>> {
    prop::collection::vec(any_name(), 1..4).prop_map(|names| {
        let path = names.join(&b'/');
        EntryPath::parse(&path, PathStyle::Relative).expect("made of names").into_owned()
    })
}

fn any_hash() -> impl Strategy<Value = ContentHash> {
    any::<[u8; 16]>().prop_map(ContentHash)
}

fn any_file() -> impl Strategy<Value = Body<'static>> {
    let whole = (0_u64..1 << 40, any_hash()).prop_map(|(size_bytes, hash)| (size_bytes, Content::Whole(hash)));
    let chunks = (prop::collection::vec(any_hash(), 2..5), 0..CHUNK_LEN_BYTES).prop_map(|(hashes, less)| {
        let size_bytes = hashes.len() as u64 * CHUNK_LEN_BYTES - less;
        (size_bytes, Content::chunks(hashes.into(), size_bytes).expect("as many as the size wants"))
    });
    let content = prop_oneof![4 => whole, 1 => chunks];
    (content, any::<i64>(), any::<bool>()).prop_map(|((size_bytes, content), mtime_micros, runnable)| {
        Body::File(File { size_bytes, mtime_micros, runnable, content })
    })
}

fn any_target() -> impl Strategy<Value = (usize, Vec<Vec<u8>>)> {
    (0_usize..3, prop::collection::vec(any_name(), 1..3))
}

#[derive(Clone, Debug)]
enum Draft {
    Body(Body<'static>),
    /// A link: how far up, and the names down.
    Link(usize, Vec<Vec<u8>>),
}

fn any_draft() -> impl Strategy<Value = Draft> {
    prop_oneof![
        6 => any_file().prop_map(Draft::Body),
        2 => Just(Draft::Body(Body::Directory)),
        1 => Just(Draft::Body(Body::Deleted(Removed::File))),
        1 => Just(Draft::Body(Body::Deleted(Removed::Directory))),
        2 => any_target().prop_map(|(up, down)| Draft::Link(up, down)),
    ]
}

/// Those of the drafts that fit together.
fn manifest(header: Header, drafts: Vec<(EntryPath<'static>, Draft)>) -> Manifest {
    let mut manifest = Manifest::new(header);
    for (path, draft) in drafts {
        let body = match draft {
            Draft::Body(Body::Deleted(_)) if !header.is_diff() => continue,
            Draft::Body(body) => body,
            Draft::Link(up, down) => {
                let up = up.min(path.components().count() - 1);
                let target = [vec![b"..".to_vec(); up], down].concat().join(&b'/');
                Body::Symlink(LinkTarget::parse(&target, &path).expect("below the root").into_owned())
            }
        };
        let _ = manifest.insert(Entry { path, body });
    }
    manifest
}

fn any_manifest() -> impl Strategy<Value = Manifest> {
    let kind = prop_oneof![Just(Kind::Snapshot), any_hash().prop_map(|parent| Kind::Diff { parent })];
    let style = prop_oneof![Just(PathStyle::Relative), Just(PathStyle::Absolute)];
    let drafts = prop::collection::vec((any_path(), any_draft()), 0..24);
    (kind, style, drafts)
        .prop_map(|(kind, style, drafts)| manifest(Header { format: Format::V2025(Dialect::G), style, kind }, drafts))
}

fn encoded(manifest: &Manifest, format: Format) -> Vec<u8> {
    let mut written = Vec::new();
    manifest.encode(format, &mut written).expect("it can be written");
    written
}

fn decoded(bytes: &[u8]) -> Manifest {
    Manifest::read(bytes).unwrap_or_else(|e| panic!("{e}\n{}", String::from_utf8_lossy(bytes))).0
}

/// Bodies by path, without the directories that had to be listed, and without the way that targets with `$` take.
fn shown(manifest: &Manifest, like: &Manifest) -> BTreeMap<Vec<u8>, String> {
    let entries = manifest.entries().filter(|(path, body)| **body != Body::Directory || like.get(path).is_some());
    let mut shown: BTreeMap<_, _> = entries
        .map(|(path, body)| {
            let told = match body {
                Body::Symlink(target) if target.as_wtf8().starts_with(b"./$") => {
                    let target = LinkTarget::parse(&target.as_wtf8()[2..], path).expect("a target").into_owned();
                    format!("{:?}", Body::Symlink(target))
                }
                body => format!("{body:?}"),
            };
            (path.as_wtf8().to_vec(), told)
        })
        .collect();
    for (path, removed) in manifest.deletions() {
        if like.deletions().any(|gone| gone == (path, removed)) {
            shown.insert([path.as_wtf8(), b"\0"].concat(), format!("{removed:?}"));
        }
    }
    shown
}

proptest! {
    #![proptest_config(adit_testkit::proptest_config(256))]

    #[test]
    fn of_2025_comes_back(manifest in any_manifest()) {
        let written = encoded(&manifest, Format::V2025(Dialect::G));
        let again = decoded(&written);
        prop_assert_eq!(again.header(), manifest.header());
        prop_assert_eq!(shown(&again, &manifest), shown(&manifest, &manifest));
        prop_assert_eq!(encoded(&again, Format::V2025(Dialect::G)), written);
    }

    #[test]
    fn of_2023_comes_back(files in prop::collection::vec((any_path(), any::<i64>(), 0_u64..1 << 40, any_hash()), 1..24)) {
        let drafts = files.into_iter().map(|(path, mtime_micros, size_bytes, hash)| {
            let content = Content::Whole(hash);
            (path, Draft::Body(Body::File(File { size_bytes, mtime_micros, runnable: false, content })))
        });
        let manifest = manifest(Header::snapshot(Format::V2023), drafts.collect());
        let written = encoded(&manifest, Format::V2023);
        prop_assert!(written.iter().all(|byte| matches!(byte, b' '..=b'~')));
        prop_assert_eq!(&decoded(&written), &manifest);
        let mut last: Option<Vec<u8>> = None;
        adit_manifest::format::decode(&written[..], &mut |entry: Entry<'_>| {
            let units: Vec<u8> = utf16_be(entry.path.as_wtf8());
            assert!(last.replace(units.clone()).is_none_or(|last| last < units), "the order of UTF-16BE");
            Ok(())
        }).expect("it was written");
    }

    /// The same text with its keys in another order, and white space.
    #[test]
    fn layouts_are_all_the_same(manifest in any_manifest(), keys in Just(KEYS.to_vec()).prop_shuffle(), white in "[ \t\r\n]{0,3}") {
        let written = encoded(&manifest, Format::V2025(Dialect::G));
        let laid_out = in_layout(&written, &keys, &white);
        prop_assert_eq!(decoded(&laid_out), decoded(&written));
    }

    /// Cut anywhere, it is refused; and it never panics with any byte changed.
    #[test]
    fn damage_is_survived(manifest in any_manifest(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut written = encoded(&manifest, Format::V2025(Dialect::G));
        let at = at.index(written.len());
        prop_assert!(Manifest::read(&written[..at]).is_err());
        written[at] = byte;
        let _ = Manifest::read(&written[..]);
    }
}

const KEYS: [&str; 6] = ["dirs", "files", "hashAlg", "parentManifestHash", "specificationVersion", "totalSize"];

/// Takes a canonical text apart at its own keys, which are in order and written nowhere else without an escape.
fn in_layout(canonical: &[u8], keys: &[&str], white: &str) -> Vec<u8> {
    let text = str::from_utf8(canonical).expect("ASCII");
    let mut begins: Vec<(usize, &str)> = Vec::new();
    for key in KEYS {
        // From the end: a name could hold the same characters, but quotes in names are escaped.
        if let Some(at) = text.rfind(&format!("\"{key}\":")) {
            begins.push((at, key));
        }
    }
    let end = text.len() - 1;
    let values: BTreeMap<&str, &str> = begins
        .iter()
        .enumerate()
        .map(|(n, &(at, key))| {
            let stop = begins.get(n + 1).map_or(end, |(next, _)| next - 1);
            (key, &text[at..stop])
        })
        .collect();
    let parts: Vec<_> = keys.iter().filter_map(|key| values.get(key).copied()).collect();
    format!("{white}{{{white}{}{white}}}{white}", parts.join(&format!("{white},{white}"))).into_bytes()
}

fn utf16_be(wtf8: &[u8]) -> Vec<u8> {
    let units = wtf8::code_points(wtf8).flat_map(|point| match point.checked_sub(0x1_0000) {
        None => vec![point as u16],
        Some(above) => vec![0xd800 + (above >> 10) as u16, 0xdc00 + (above & 0x3ff) as u16],
    });
    units.flat_map(u16::to_be_bytes).collect()
}
