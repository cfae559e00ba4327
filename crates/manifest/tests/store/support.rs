//! A manifest with its objects in memory, and a store over it.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::{Arc, Mutex};

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::{Content as Stored, Objects, PutOptions};
use adit_core::store::{Store, StoreFile};
use adit_core::types::{Access, Attr, FileName, Ino, Kind};
use adit_index::Segment;
use adit_manifest::cache::{Cache, CacheOptions, Fetch, ObjectId, Watch};
use adit_manifest::cas::{DataKeys, ObjectSource};
use adit_manifest::format::{
    Body, Content, ContentHash, Dialect, Entry, EntryPath, File, Format, Header, LinkTarget, Manifest, PathStyle,
};
use adit_manifest::store::{BuildPlace, Identity, ManifestStore, StoreOptions, build_segment};
use adit_media::HostDirectory;
use adit_testkit::Rng;
use adit_testkit::objects::{MemoryObjects, ObjectFaults};
use tempfile::TempDir;

/// The block length of the caches here.
pub const BLOCK: u64 = 4096;
pub const V2025: Format = Format::V2025(Dialect::G);

/// A folder for a cache and segments, objects in memory with faults, and the manifest that is being made.
pub struct World {
    pub dir: TempDir,
    pub memory: MemoryObjects,
    pub faults: ObjectFaults,
    pub manifest: Manifest,
    pub cache: CacheOptions,
    pub options: StoreOptions,
}

impl World {
    pub fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("cache")).unwrap();
        World {
            dir,
            memory: MemoryObjects::new(),
            faults: ObjectFaults::new(),
            manifest: Manifest::new(Header::snapshot(V2025)),
            cache: CacheOptions { block_len: BLOCK as u32, workers: 0, ..CacheOptions::default() },
            options: StoreOptions { read_ahead_bytes: 0, ..StoreOptions::owned_by(12, 34) },
        }
    }

    /// Adds a file of random bytes to the manifest, and its object to the store.
    pub fn add(&mut self, path: &str, len: usize) -> Vec<u8> {
        let mut content = vec![0; len];
        Rng::new(len as u64 ^ path.len() as u64).fill(&mut content);
        let hash = ContentHash::of(&content);
        self.memory.put(&DataKeys::default().key(&hash), Stored::Bytes(&content), &PutOptions::default()).unwrap();
        self.insert(path.as_bytes(), file(len as u64, Content::Whole(hash)));
        content
    }

    pub fn insert(&mut self, path: &[u8], body: Body<'static>) {
        let path = EntryPath::parse(path, PathStyle::Relative).unwrap().into_owned();
        self.manifest.insert(Entry { path, body }).unwrap();
    }

    pub fn link(&mut self, path: &str, target: &[u8]) {
        let at = EntryPath::parse(path.as_bytes(), PathStyle::Relative).unwrap().into_owned();
        let target = LinkTarget::parse(target, &at).unwrap().into_owned();
        self.insert(path.as_bytes(), Body::Symlink(target));
    }

    pub fn source(&self) -> Arc<dyn Fetch> {
        Arc::new(ObjectSource::new(Arc::new(self.faults.wrap(Arc::new(self.memory.clone()))), DataKeys::default()))
    }

    /// The store of the manifest as it is now.
    pub fn mount(&self) -> ManifestStore {
        self.mount_with(self.source(), None)
    }

    pub fn mount_with(&self, source: Arc<dyn Fetch>, watch: Option<Arc<dyn Watch>>) -> ManifestStore {
        self.mount_on(source, self.cache(watch))
    }

    /// The store, and its cache for others to share.
    pub fn mount_sharing(&self) -> (ManifestStore, Arc<Cache>) {
        let cache = self.cache(None);
        (self.mount_on(self.source(), cache.clone()), cache)
    }

    fn cache(&self, watch: Option<Arc<dyn Watch>>) -> Arc<Cache> {
        let host = HostDirectory::open(&self.dir.path().join("cache")).unwrap();
        Arc::new(Cache::open(Arc::new(host), CacheOptions { watch, ..self.cache.clone() }).unwrap())
    }

    fn mount_on(&self, source: Arc<dyn Fetch>, cache: Arc<Cache>) -> ManifestStore {
        let out = self.dir.path().join("segment");
        build(&self.text(), &out).unwrap();
        ManifestStore::new(Segment::open(&out).unwrap(), cache, source, self.options).unwrap()
    }

    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.manifest.encode(self.manifest.header().format, &mut text).unwrap();
        text
    }
}

/// A file with nothing special.
pub fn file(size_bytes: u64, content: Content<'static>) -> Body<'static> {
    Body::File(File { size_bytes, mtime_micros: 1_700_000_000_123_456, runnable: false, content })
}

/// Builds the segment of a manifest's text.
pub fn build(text: &[u8], out: &Path) -> Result<Identity> {
    let scratch_dir = out.parent().unwrap();
    let place = BuildPlace { out, scratch_dir, memory_limit_bytes: 0 };
    build_segment(text, place, &mut |_| ControlFlow::Continue(()))
}

pub fn name(name: &[u8]) -> FileName<'_> {
    FileName::new(name).unwrap()
}

/// What lies at a path of the store.
pub fn find(store: &ManifestStore, path: &[u8]) -> Result<Attr> {
    let mut attr = store.getattr(Ino::ROOT)?;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        attr = store.lookup(attr.ino, name(part))?;
    }
    Ok(attr)
}

pub fn open(store: &ManifestStore, path: &str) -> Arc<dyn StoreFile> {
    store.open(find(store, path.as_bytes()).unwrap().ino, Access::Read).unwrap()
}

/// Reads a range; the bytes, as many as there are.
pub fn read(file: &dyn StoreFile, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut buf = vec![0xee; len];
    let read = file.read_at(offset, &mut buf)?;
    buf.truncate(read);
    Ok(buf)
}

/// Entries of a directory, as its listing gives them from a cookie on.
pub fn list(store: &ManifestStore, dir: Ino, start: u64) -> Vec<(u64, Ino, Kind, Vec<u8>)> {
    let mut entries = Vec::new();
    store
        .read_dir(dir, start, &mut |entry| {
            entries.push((entry.cookie, entry.ino, entry.kind, entry.name.as_bytes().to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    entries
}

pub fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("it fails").kind()
}

/// Whether this is a thread that fetches ahead of the readers.
pub fn is_ahead() -> bool {
    std::thread::current().name() == Some("adit-ahead")
}

/// A source that notes what is fetched, and whether that is ahead of the readers: by a thread of the store.
pub struct Noted {
    inner: Arc<dyn Fetch>,
    fetches: Mutex<Vec<(ObjectId, Range<u64>, bool)>>,
}

impl Noted {
    pub fn new(inner: Arc<dyn Fetch>) -> Arc<Noted> {
        Arc::new(Noted { inner, fetches: Mutex::default() })
    }

    /// What was fetched of the object with this content so far, in the order of its bytes; ahead of the readers, or by them.
    pub fn fetched(&self, content: &[u8], ahead: bool) -> Vec<Range<u64>> {
        let hash = ContentHash::of(content);
        let fetches = self.fetches.lock().unwrap();
        let of_it = fetches.iter().filter(|(id, _, is_ahead)| id.hash == hash && *is_ahead == ahead);
        let mut ranges: Vec<_> = of_it.map(|(_, range, _)| range.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }
}

impl Fetch for Noted {
    fn fetch(&self, id: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.fetches.lock().unwrap().push((*id, range.clone(), is_ahead()));
        self.inner.fetch(id, range, sink)
    }
}

/// Waits for what another thread brings about. Fails after a minute.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

/// A source of bytes that are computed, for objects of any length.
pub struct Computed;

impl Computed {
    pub fn byte(hash: &ContentHash, at: u64) -> u8 {
        (at / 7 + at / 4096).wrapping_mul(31) as u8 ^ hash.0[0]
    }
}

impl Fetch for Computed {
    fn fetch(
        &self,
        id: &ObjectId,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<(), FsError> {
        assert!(range.end <= id.len);
        let bytes: Vec<u8> = range.map(|at| Computed::byte(&id.hash, at)).collect();
        bytes.chunks(64 << 10).try_for_each(sink)
    }
}
