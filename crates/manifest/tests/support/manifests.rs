//! Manifests, and folders on the host, for the tests with the official packages.

// Each test file that includes this module uses a part of it.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use adit_manifest::format::{Body, Content, ContentHash, Entry, EntryPath, File, Format, Manifest, PathStyle};

/// A folder in the build's, which has extended attributes where /tmp may have none.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Reads a manifest that is sound.
pub fn read(text: &str) -> Manifest {
    Manifest::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {}", shortened(text))).0
}

/// A manifest's canonical text in version 2023-03-03.
pub fn written(manifest: &Manifest) -> String {
    let mut bytes = Vec::new();
    manifest.encode(Format::V2023, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Compares two manifests, and shows only where they part: they are megabytes.
pub fn assert_same(ours: &str, theirs: &str, what: &str) {
    if ours != theirs {
        let at = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
        panic!("{what}: at byte {at} ours has {}, theirs {}", around(ours, at), around(theirs, at));
    }
}

fn around(text: &str, at: usize) -> &str {
    // A manifest is ASCII.
    text.get(at.saturating_sub(100)..(at + 100).min(text.len())).unwrap_or("more than ASCII")
}

fn shortened(text: &str) -> &str {
    text.get(..400).unwrap_or(text)
}

/// A file with a hash of the whole.
pub fn file(hash: ContentHash, size_bytes: u64, mtime_micros: i64) -> Body<'static> {
    Body::File(File { size_bytes, mtime_micros, runnable: false, content: Content::Whole(hash) })
}

/// Adds an entry at a path in WTF-8.
pub fn with(manifest: &mut Manifest, path: &[u8], body: Body<'static>) {
    let path = EntryPath::parse(path, PathStyle::Relative).unwrap().into_owned();
    manifest.insert(Entry { path, body }).unwrap();
}

/// When a file was modified, in microseconds since 1970: rounded down, before it as well.
pub fn micros(path: &Path) -> i64 {
    let metadata = fs::metadata(path).unwrap();
    metadata.mtime() * 1_000_000 + metadata.mtime_nsec() / 1000
}

/// Makes files with names that are hard on a host; their names as the host has them, and their contents.
pub fn make_tree(root: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let names: [&[u8]; 9] = [
        b"plain.txt",
        "日本語/ファイル.exr".as_bytes(),
        "العربية/ملف".as_bytes(),
        "emoji \u{1f600}/\u{fb00}".as_bytes(),
        "e\u{301} and é".as_bytes(),
        b"deep/er/and/deeper still/x",
        b"quote\" back\\slash\ttab",
        b"empty",
        // No UTF-8: U+DCE9 in the manifest.
        b"caf\xe9",
    ];
    let mut made = BTreeMap::new();
    for (number, bytes) in names.into_iter().enumerate() {
        let path = root.join(OsStr::from_bytes(bytes));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let content = if bytes == b"empty" { Vec::new() } else { vec![number as u8; 100_000 + number] };
        fs::write(&path, &content).unwrap();
        made.insert(bytes.to_vec(), content);
    }
    made
}

/// Compares a manifest with what `make_tree` made.
pub fn assert_of_tree(manifest: &Manifest, made: &BTreeMap<Vec<u8>, Vec<u8>>, root: &Path) {
    let mut seen = BTreeSet::new();
    for (path, body) in manifest.entries() {
        let host = path.to_host().unwrap().into_owned();
        let content = made.get(&host).unwrap_or_else(|| panic!("there is no {path}"));
        let on_host = micros(&root.join(OsStr::from_bytes(&host)));
        assert_eq!(*body, file(ContentHash::of(content), content.len() as u64, on_host), "{path}");
        seen.insert(host);
    }
    assert_eq!(seen, made.keys().cloned().collect());
}
