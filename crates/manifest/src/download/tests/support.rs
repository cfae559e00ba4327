//! A manifest with its objects in memory, and a folder for its files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use adit_core::media::{Content as Stored, HostEntry, HostFile, NewFile, Objects, PutOptions, SyncTarget};
use adit_core::types::{Access, Caller, RenameFlags, SetAttr, StatFs};
use adit_media::HostDirectory;
use adit_testkit::objects::{MemoryObjects, ObjectFaults};

use super::super::*;
use crate::cas::{DataKeys, ObjectSource};
use crate::format::{Content, Dialect, Entry, Header, PathStyle};

pub const MIB: usize = 1 << 20;
pub const MTIME: i64 = 1_700_000_000_123_456;

/// A manifest that is being made, the store of its objects, and a folder.
pub struct World {
    pub dir: tempfile::TempDir,
    pub manifest: Manifest,
    pub memory: MemoryObjects,
    pub faults: ObjectFaults,
    pub conflict: Conflict,
    pub filter: Filter,
    pub dry_run: bool,
}

/// What a download told.
#[derive(Default, Debug)]
pub struct Told {
    pub entries: Vec<(String, Outcome)>,
    pub failed: Vec<String>,
}

impl World {
    pub fn new() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            manifest: Manifest::new(Header::snapshot(Format::V2025(Dialect::G))),
            memory: MemoryObjects::new(),
            faults: ObjectFaults::new(),
            conflict: Conflict::Copy,
            filter: Filter::default(),
            dry_run: false,
        }
    }

    pub fn insert(&mut self, path: &[u8], body: Body<'static>) {
        let path = EntryPath::parse(path, PathStyle::Relative).unwrap().into_owned();
        self.manifest.insert(Entry { path, body }).unwrap();
    }

    /// Adds a file to the manifest, and its object to the store.
    pub fn add(&mut self, path: &str, content: &[u8]) {
        let hash = ContentHash::of(content);
        self.memory.put(&key(content), Stored::Bytes(content), &PutOptions::default()).unwrap();
        self.insert(path.as_bytes(), file(content.len() as u64, Content::Whole(hash), false));
    }

    pub fn link(&mut self, path: &str, target: &str) {
        let at = EntryPath::parse(path.as_bytes(), PathStyle::Relative).unwrap().into_owned();
        let target = LinkTarget::parse(target.as_bytes(), &at).unwrap().into_owned();
        self.insert(path.as_bytes(), Body::Symlink(target));
    }

    pub fn source(&self) -> ObjectSource {
        ObjectSource::new(Arc::new(self.faults.wrap(Arc::new(self.memory.clone()))), DataKeys::default())
    }

    pub fn options<'a>(&'a self, source: &'a dyn Fetch, host: &'a dyn HostDir) -> DownloadOptions<'a> {
        DownloadOptions {
            source,
            host: Some(host),
            conflict: self.conflict,
            filter: &self.filter,
            threads: 3,
            known: None,
            umask: 0o022,
            dry_run: self.dry_run,
        }
    }

    pub fn run_on(&self, host: &dyn HostDir) -> (Result<Downloaded>, Told) {
        let source = self.source();
        self.run_with(&self.options(&source, host))
    }

    pub fn run_with(&self, options: &DownloadOptions<'_>) -> (Result<Downloaded>, Told) {
        let mut told = Told::default();
        let downloaded = download(&self.manifest, options, &mut |event| {
            match event {
                DownloadEvent::Entry { host, outcome, .. } => {
                    told.entries.push((String::from_utf8_lossy(host).into_owned(), outcome.clone()));
                }
                DownloadEvent::Failed { error, .. } => told.failed.push(error.to_string()),
                DownloadEvent::Fetched(_) | DownloadEvent::Untimed { .. } => {}
            }
            ControlFlow::Continue(())
        });
        told.entries.sort_by(|a, b| a.0.cmp(&b.0));
        (downloaded, told)
    }

    pub fn run(&self) -> (Result<Downloaded>, Told) {
        self.run_on(&HostDirectory::open(self.dir.path()).unwrap())
    }

    /// Runs it, and expects nothing to fail.
    pub fn well(&self) -> Downloaded {
        let (downloaded, told) = self.run();
        assert_eq!(told.failed, [""; 0]);
        downloaded.unwrap()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Every path in the folder.
    pub fn paths(&self) -> Vec<String> {
        let (mut found, mut todo) = (Vec::new(), vec![self.dir.path().to_owned()]);
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                found.push(path.strip_prefix(self.dir.path()).unwrap().display().to_string());
                todo.extend(fs::symlink_metadata(&path).unwrap().is_dir().then_some(path));
            }
        }
        found.sort();
        found
    }
}

pub fn key(content: &[u8]) -> String {
    DataKeys::default().key(&ContentHash::of(content))
}

pub fn file(size_bytes: u64, content: Content<'static>, runnable: bool) -> Body<'static> {
    Body::File(File { size_bytes, mtime_micros: MTIME, runnable, content })
}

pub fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut content = vec![0; len];
    adit_testkit::Rng::new(seed).fill(&mut content);
    content
}

pub fn micros(path: &Path) -> i64 {
    let meta = fs::symlink_metadata(path).unwrap();
    meta.mtime() * 1_000_000 + meta.mtime_nsec() / 1000
}

/// A folder on a host that takes capitals and small letters for the same.
pub struct Folding(pub HostDirectory);

fn folded(path: &Path) -> PathBuf {
    on_host(&path.as_os_str().as_bytes().to_ascii_lowercase())
}

impl HostDir for Folding {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn HostFile>> {
        self.0.open(&folded(path), access)
    }

    fn publish(&self, path: &Path, new: &NewFile<'_>) -> io::Result<Box<dyn HostFile>> {
        self.0.publish(&folded(path), new)
    }

    fn stat(&self, path: &Path) -> io::Result<Attr> {
        self.0.stat(&folded(path))
    }

    fn set_attr(&self, path: &Path, set: &SetAttr) -> io::Result<()> {
        self.0.set_attr(&folded(path), set)
    }

    fn list(&self, path: &Path, sink: &mut dyn FnMut(HostEntry<'_>)) -> io::Result<()> {
        self.0.list(&folded(path), sink)
    }

    fn make_dir(&self, path: &Path, perm: u16, owner: Option<Caller>) -> io::Result<()> {
        self.0.make_dir(&folded(path), perm, owner)
    }

    fn make_link(&self, path: &Path, target: &[u8]) -> io::Result<()> {
        self.0.make_link(&folded(path), target)
    }

    fn read_link(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.read_link(&folded(path))
    }

    fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        self.0.remove(&folded(path), kind)
    }

    fn rename(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.0.rename(&folded(from), &folded(to), flags)
    }

    fn sync(&self, target: SyncTarget<'_>) -> io::Result<()> {
        self.0.sync(target)
    }

    fn statfs(&self) -> io::Result<StatFs> {
        self.0.statfs()
    }
}
