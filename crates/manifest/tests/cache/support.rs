//! A source of objects that notes what is asked of it and does as it is told.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use adit_core::error::{ErrorKind, FsError, Result};
use adit_core::media::HostDir;
use adit_manifest::cache::{Cache, CacheOptions, CachedObject, Fetch, ObjectId};
use adit_manifest::format::ContentHash;
use adit_media::HostDirectory;
use adit_testkit::Rng;

/// The block length of most tests.
pub const BLOCK: u32 = 1024;

/// What happens to one fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// It goes well.
    Right,
    /// It fails before the first byte.
    Fail,
    /// It fails after half of the bytes.
    FailMidway,
    /// It ends well after half of the bytes.
    Short,
    /// It gives a byte too much.
    Long,
    /// One bit is wrong.
    Flip,
    /// It panics.
    Panic,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectId, Vec<u8>>,
    fetched: Vec<(ObjectId, Range<u64>)>,
    acts: VecDeque<Act>,
    /// What happens when there are no more acts.
    always: Option<Act>,
    /// Fetches that cover such a byte wait.
    held: Vec<u64>,
    waiting: usize,
}

/// A source.
#[derive(Clone, Default)]
pub struct Source {
    state: Arc<Mutex<State>>,
    changed: Arc<Condvar>,
    /// Bytes of a piece; 0 for all at once.
    pub piece: usize,
}

impl Source {
    pub fn new() -> Self {
        Source { piece: 700, ..Source::default() }
    }

    /// A new object of random bytes.
    pub fn add(&self, len: usize, seed: u64) -> ObjectId {
        let mut content = vec![0; len];
        Rng::new(seed).fill(&mut content);
        let id = ObjectId { hash: ContentHash::of(&content), len: len as u64 };
        self.state.lock().unwrap().objects.insert(id, content);
        id
    }

    /// A new object of random bytes that do not have its hash.
    pub fn add_as(&self, hash: ContentHash, len: usize, seed: u64) -> ObjectId {
        let mut content = vec![0; len];
        Rng::new(seed).fill(&mut content);
        let id = ObjectId { hash, len: len as u64 };
        self.state.lock().unwrap().objects.insert(id, content);
        id
    }

    pub fn content(&self, id: ObjectId) -> Vec<u8> {
        self.state.lock().unwrap().objects[&id].clone()
    }

    /// The next fetches do this.
    pub fn act(&self, acts: &[Act]) {
        self.state.lock().unwrap().acts.extend(acts);
    }

    /// What was not done yet is not done.
    pub fn forget_acts(&self) {
        self.state.lock().unwrap().acts.clear();
    }

    /// All fetches after those do this.
    pub fn always(&self, act: Act) {
        self.state.lock().unwrap().always = Some(act);
    }

    /// Fetches that cover this byte of any object wait until [`Source::release`].
    pub fn hold(&self, at: u64) {
        self.state.lock().unwrap().held.push(at);
    }

    pub fn release(&self) {
        self.state.lock().unwrap().held.clear();
        self.changed.notify_all();
    }

    /// Waits until so many fetches wait.
    pub fn wait_for_held(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting < count).unwrap());
    }

    /// The ranges that were fetched since the last call.
    pub fn fetched(&self) -> Vec<Range<u64>> {
        let fetched = std::mem::take(&mut self.state.lock().unwrap().fetched);
        fetched.into_iter().map(|(_, range)| range).collect()
    }

    /// The bytes of them.
    pub fn fetched_bytes(&self) -> u64 {
        self.fetched().into_iter().map(|range| range.end - range.start).sum()
    }
}

impl Fetch for Source {
    fn fetch(&self, id: &ObjectId, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut bytes, act) = {
            let mut state = self.state.lock().unwrap();
            state.fetched.push((*id, range.clone()));
            if state.held.iter().any(|at| range.contains(at)) {
                state.waiting += 1;
                self.changed.notify_all();
                state = self.changed.wait_while(state, |state| state.held.iter().any(|at| range.contains(at))).unwrap();
                state.waiting -= 1;
            }
            assert!(range.start < range.end && range.end <= id.len, "{range:?} of {id:?}");
            let act = state.acts.pop_front().or(state.always).unwrap_or(Act::Right);
            (state.objects[id][range.start as usize..range.end as usize].to_vec(), act)
        };
        let failure = || FsError::new(ErrorKind::Network).on("get", "the key").because("told to fail");
        match act {
            Act::Right => {}
            Act::Fail => return Err(failure()),
            Act::FailMidway | Act::Short => bytes.truncate(bytes.len() / 2),
            Act::Long => bytes.push(0),
            Act::Flip => *bytes.last_mut().unwrap() ^= 1,
            Act::Panic => panic!("told to panic"),
        }
        let piece = if self.piece == 0 { bytes.len().max(1) } else { self.piece };
        for piece in bytes.chunks(piece) {
            sink(piece)?;
        }
        if act == Act::FailMidway { Err(failure()) } else { Ok(()) }
    }
}

/// Options for a folder that does everything at once, in blocks of [`BLOCK`].
pub fn options() -> CacheOptions {
    CacheOptions { block_len: BLOCK, workers: 0, ..CacheOptions::default() }
}

pub fn open(host: impl HostDir + 'static, options: CacheOptions) -> Cache {
    Cache::open(Arc::new(host), options).unwrap()
}

/// A folder of this machine.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub fn host(dir: &tempfile::TempDir) -> HostDirectory {
    HostDirectory::open(dir.path()).unwrap()
}

/// Reads a range; the bytes, as many as there are.
pub fn read(object: &CachedObject, offset: u64, len: usize, source: &Source) -> Result<Vec<u8>> {
    let mut buf = vec![0xee; len];
    let read = object.read(offset, &mut buf, source)?;
    buf.truncate(read);
    Ok(buf)
}

/// Reads all of an object in requests of `step` bytes, and compares it.
pub fn read_all(cache: &Cache, id: ObjectId, step: usize, source: &Source) {
    let object = cache.object(id);
    let content = source.content(id);
    for (n, expected) in content.chunks(step).enumerate() {
        let found = read(&object, (n * step) as u64, step, source).unwrap_or_else(|e| panic!("at {}: {e}", n * step));
        assert!(found == expected, "wrong bytes at {}", n * step);
    }
}

/// Waits for what another thread brings about. Fails after a minute.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

/// The files below a folder, with their paths from there.
pub fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() { todo.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

/// The files below a folder that have this extension.
pub fn files_with(dir: &std::path::Path, extension: &str) -> Vec<std::path::PathBuf> {
    let mut files = files(dir);
    files.retain(|path| path.extension().is_some_and(|e| e == extension));
    files
}
