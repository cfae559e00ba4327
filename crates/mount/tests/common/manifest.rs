//! A manifest of files with known content, whose objects are in memory.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use adit_core::media::{Content as Stored, Objects, PutOptions};
use adit_index::Segment;
use adit_manifest::cache::{Cache, CacheOptions};
use adit_manifest::cas::{DataKeys, ObjectSource};
use adit_manifest::format::{
    Body, Content, ContentHash, Dialect, Entry, EntryPath, File, Format, Header, Manifest, PathStyle,
};
use adit_manifest::store::{BuildPlace, ManifestStore, StoreOptions, build_segment};
use adit_media::HostDirectory;
use adit_testkit::objects::{MemoryObjects, ObjectFaults};

/// A store of files `0`, `1` and so on with these contents, whose objects come as `faults` says, and are kept in `dir/cache`. Nothing is
/// fetched ahead.
pub fn store(dir: &Path, contents: &[Vec<u8>], faults: &ObjectFaults, cache: CacheOptions) -> ManifestStore {
    store_of(dir, contents, &MemoryObjects::new(), faults, cache)
}

/// The same with the objects in `memory`.
pub fn store_of(
    dir: &Path,
    contents: &[Vec<u8>],
    memory: &MemoryObjects,
    faults: &ObjectFaults,
    cache: CacheOptions,
) -> ManifestStore {
    let format = Format::V2025(Dialect::G);
    let mut manifest = Manifest::new(Header::snapshot(format));
    for (n, content) in contents.iter().enumerate() {
        let hash = ContentHash::of(content);
        memory.put(&key_of(content), Stored::Bytes(content), &PutOptions::default()).unwrap();
        let file =
            File { size_bytes: content.len() as u64, mtime_micros: 1, runnable: false, content: Content::Whole(hash) };
        let path = EntryPath::parse(n.to_string().as_bytes(), PathStyle::Relative).unwrap().into_owned();
        manifest.insert(Entry { path, body: Body::File(file) }).unwrap();
    }
    let mut text = Vec::new();
    manifest.encode(format, &mut text).unwrap();
    let out = dir.join("segment");
    let place = BuildPlace { out: &out, scratch_dir: dir, memory_limit_bytes: 0 };
    build_segment(&text[..], place, &mut |_| ControlFlow::Continue(())).unwrap();
    let folder = dir.join("cache");
    fs::create_dir_all(&folder).unwrap();
    let host = HostDirectory::open(&folder).unwrap();
    let cache = Cache::open(Arc::new(host), cache).unwrap();
    let source = ObjectSource::new(Arc::new(faults.wrap(Arc::new(memory.clone()))), DataKeys::default());
    let options = StoreOptions { read_ahead_bytes: 0, ..StoreOptions::owned_by(0, 0) };
    ManifestStore::new(Segment::open(&out).unwrap(), Arc::new(cache), Arc::new(source), options).unwrap()
}

/// The key of the object with this content.
pub fn key_of(content: &[u8]) -> String {
    DataKeys::default().key(&ContentHash::of(content))
}
