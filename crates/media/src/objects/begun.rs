//! Uploads in parts that were begun, noted in a folder, so that the process after one that was killed goes on with them.
//!
//! The library that sends them tells no ids and takes none. So the [transport](super::transport) asks here: it answers the beginning of an
//! upload itself where a note of one is left, and a part that is noted with these bytes, and notes what was sent ([`Begun`]).
//!
//! A note is a file, locked by the process whose upload it is: one that is not locked is left. It holds lines: what it is, the store, the
//! key, the id, and then the number, the length, the hash and the tag of each part. A line that was not written whole is none. The hash tells the
//! part's bytes: what is sent under a key is the same each time, but nobody knows before all of it was read. Nothing in it is secret.
//! `docs/formats/manifest-cache.md` has an example.

mod pass;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use opendal_core::Buffer;
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

/// The first line of a note.
const MAGIC: &str = "adit upload 1";
/// What the name of a note ends with.
const SUFFIX: &str = ".upload";
/// Longest note that is read, in bytes: 10,000 parts, each with a long tag.
const NOTE_LEN_MAX: u64 = 4 << 20;

tokio::task_local! {
    /// What is stored in parts, and whether that is to be forgotten.
    static STORING: (String, bool);
}

/// Runs a step of the upload of `key`, which may begin it, or go on with one that was begun.
pub async fn storing<T>(key: String, step: impl Future<Output = T>) -> T {
    STORING.scope((key, false), step).await
}

/// Runs a step of what gives up an upload of `key` that was left: it begins none, and sends no part.
pub async fn giving_up<T>(key: String, step: impl Future<Output = T>) -> T {
    STORING.scope((key, true), step).await
}

/// The key of the step that runs, and whether its upload is given up.
pub fn key_at_work() -> Option<(String, bool)> {
    STORING.try_with(Clone::clone).ok()
}

/// The bytes of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartContent {
    len: usize,
    hash: u128,
}

impl PartContent {
    pub fn of(body: &Buffer) -> PartContent {
        let mut hasher = Xxh3::new();
        body.clone().for_each(|bytes| hasher.update(&bytes));
        PartContent { len: body.len(), hash: hasher.digest128() }
    }
}

/// An upload, noted in a file that is locked as long as this is there.
struct Note {
    path: PathBuf,
    file: File,
    parts: BTreeMap<u32, (PartContent, String)>,
    is_given_up: bool,
}

/// What a note says.
struct Noted {
    store: String,
    key: String,
    id: String,
    parts: BTreeMap<u32, (PartContent, String)>,
}

/// The notes of one store.
pub struct Begun {
    folder: PathBuf,
    /// Which one: the notes of all lie together.
    store: String,
    /// Those of this process, by the ids of their uploads.
    at_work: Mutex<HashMap<String, Note>>,
}

impl Begun {
    /// Those in `folder`, which need not be there, of the store that is called so.
    pub fn new(folder: &Path, store: String) -> Begun {
        Begun { folder: folder.to_owned(), store, at_work: Mutex::default() }
    }

    /// Takes an upload of `key` that was left, and tells its id.
    pub fn resume(&self, key: &str, is_given_up: bool) -> Option<String> {
        self.left().into_iter().find_map(|(path, read)| {
            if read.key != key {
                return None;
            }
            let file = locked(&path)?;
            // What was noted last.
            let Noted { id, parts, .. } = read_note(&file)?;
            self.at_work.lock().insert(id.clone(), Note { path, file, parts, is_given_up });
            Some(id)
        })
    }

    /// Notes an upload that was begun. If that cannot be, it is as any other.
    pub fn begin(&self, key: &str, id: &str) {
        // As they are in requests and answers.
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_graphic()) || id.contains(['&', '<']) {
            return;
        }
        let begun = || -> io::Result<Note> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            let (path, mut file) = new_file(&self.folder)?;
            file.try_lock().map_err(io::Error::from)?;
            file.write_all(format!("{MAGIC}\n{}\n{key}\n{id}\n", self.store).as_bytes())?;
            Ok(Note { path, file, parts: BTreeMap::new(), is_given_up: false })
        };
        if let Ok(note) = begun() {
            self.at_work.lock().insert(id.to_owned(), note);
        }
    }

    /// Whether an upload is given up: then nothing more is sent of it.
    pub fn is_given_up(&self, id: &str) -> bool {
        self.at_work.lock().get(id).is_some_and(|note| note.is_given_up)
    }

    /// The tag of a part that was sent before, if it was these bytes.
    pub fn tag(&self, id: &str, number: u32, content: PartContent) -> Option<String> {
        let at_work = self.at_work.lock();
        let (sent, tag) = at_work.get(id)?.parts.get(&number)?;
        (*sent == content).then(|| tag.clone())
    }

    /// Notes a part that the store has.
    pub fn sent(&self, id: &str, number: u32, content: PartContent, tag: &str) {
        if tag.is_empty() || tag.contains(char::is_control) {
            return;
        }
        let mut at_work = self.at_work.lock();
        let Some(note) = at_work.get_mut(id) else { return };
        // What is not noted is sent again.
        let _ = note.file.write_all(format!("{number} {} {:032x} {tag}\n", content.len, content.hash).as_bytes());
    }

    /// The store has no such upload any more.
    pub fn ended(&self, id: &str) {
        if let Some(note) = self.at_work.lock().remove(id) {
            let _ = fs::remove_file(&note.path);
        }
    }

    /// This process has nothing more to do with an upload; whoever comes next may.
    pub fn let_go(&self, id: &str) {
        self.at_work.lock().remove(id);
    }

    /// The keys of all uploads that were left.
    pub fn left_keys(&self) -> Vec<String> {
        let free = |(path, read): (PathBuf, Noted)| locked(&path).map(|_| read.key);
        let mut keys: Vec<String> = self.left().into_iter().filter_map(free).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The notes of this store, whoever has them.
    fn left(&self) -> Vec<(PathBuf, Noted)> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let notes = paths.filter(|path| path.to_str().is_some_and(|path| path.ends_with(SUFFIX)));
        let read = |path: PathBuf| {
            let read = read_note(&open(&path)?)?;
            (read.store == self.store).then_some((path, read))
        };
        notes.filter_map(read).collect()
    }
}

/// A new file for a note.
fn new_file(folder: &Path) -> io::Result<(PathBuf, File)> {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The keys of this hasher are random for each one.
    let name = format!("{:016x}{SUFFIX}", RandomState::new().build_hasher().finish());
    let path = folder.join(name);
    let file = File::options().read(true).append(true).create_new(true).mode(0o600).open(&path)?;
    Ok((path, file))
}

fn open(path: &Path) -> Option<File> {
    File::options().read(true).append(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()
}

/// The note at `path`, if nobody has it; locked.
fn locked(path: &Path) -> Option<File> {
    let file = open(path)?;
    file.try_lock().ok()?;
    // Whoever had it until now may have taken it away.
    (file.metadata().ok()?.nlink() > 0).then_some(file)
}

/// What a note says; none if it is no note.
fn read_note(mut file: &File) -> Option<Noted> {
    let mut text = String::new();
    io::Seek::rewind(&mut file).ok()?;
    file.take(NOTE_LEN_MAX).read_to_string(&mut text).ok()?;
    let mut lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n'));
    if lines.next()? != MAGIC {
        return None;
    }
    let mut line = || lines.next().map(str::to_owned);
    let (store, key, id) = (line()?, line()?, line()?);
    Some(Noted { store, key, id, parts: lines.filter_map(part_of).collect() })
}

fn part_of(line: &str) -> Option<(u32, (PartContent, String))> {
    let mut words = line.splitn(4, ' ');
    let number = words.next()?.parse().ok()?;
    let len = words.next()?.parse().ok()?;
    let hash = words.next().filter(|hash| hash.len() == 32)?;
    let content = PartContent { len, hash: u128::from_str_radix(hash, 16).ok()? };
    Some((number, (content, words.next()?.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &'static [u8]) -> PartContent {
        PartContent::of(&Buffer::from(text))
    }

    fn begun(folder: &Path) -> Begun {
        Begun::new(&folder.join("uploads"), "s3://bucket/root".to_owned())
    }

    #[test]
    fn what_was_left_is_taken_once_with_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let first = begun(folder.path());
        first.begin("Data/a", "id-1");
        first.sent("id-1", 1, content(b"one"), "\"tag one\"");
        first.sent("id-1", 2, content(b"two"), "\"tag two\"");
        // Nobody takes what somebody is at.
        assert!(begun(folder.path()).left_keys().is_empty());
        assert_eq!(begun(folder.path()).resume("Data/a", false), None);
        drop(first);
        let other_store = Begun::new(&folder.path().join("uploads"), "s3://other".to_owned());
        assert!(other_store.left_keys().is_empty());
        let next = begun(folder.path());
        assert_eq!(next.left_keys(), ["Data/a"]);
        assert_eq!(next.resume("Data/b", false), None);
        assert_eq!(next.resume("Data/a", false).as_deref(), Some("id-1"));
        assert_eq!(begun(folder.path()).resume("Data/a", false), None);
        assert_eq!(next.tag("id-1", 1, content(b"one")).as_deref(), Some("\"tag one\""));
        assert_eq!(next.tag("id-1", 2, content(b"tow")), None, "other bytes");
        assert_eq!(next.tag("id-1", 3, content(b"two")), None);
        // What is sent anew is what counts.
        next.sent("id-1", 2, content(b"tow"), "\"new\"");
        next.let_go("id-1");
        assert_eq!(next.resume("Data/a", true).as_deref(), Some("id-1"));
        assert_eq!(next.tag("id-1", 2, content(b"tow")).as_deref(), Some("\"new\""));
        assert!(next.is_given_up("id-1"));
        next.ended("id-1");
        assert_eq!((next.resume("Data/a", false), next.left_keys()), (None, vec![]));
        assert_eq!(fs::read_dir(folder.path().join("uploads")).unwrap().count(), 0);
    }

    /// The example of `docs/formats/manifest-cache.md`.
    #[test]
    fn a_note_is_what_its_format_says() {
        let folder = tempfile::tempdir().unwrap();
        let begun = Begun::new(folder.path(), "s3://bucket/Queue in us-west-2".to_owned());
        begun.begin("Data/99aa06d3014798d86001c324468d497f.xxh128", "VXBsb2FkIElE");
        begun.sent("VXBsb2FkIElE", 1, content(b"part one"), "\"etag 1\"");
        let note = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let expected = "adit upload 1\ns3://bucket/Queue in us-west-2\nData/99aa06d3014798d86001c324468d497f.xxh128\nVXBsb2FkIElE\n\
                        1 8 f80bcf5c9787d0605432fa7cd86b5b63 \"etag 1\"\n";
        assert_eq!(fs::read_to_string(note).unwrap(), expected);
    }

    #[test]
    fn what_is_no_note_or_not_whole_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let uploads = folder.path().join("uploads");
        fs::create_dir(&uploads).unwrap();
        let note = |name: &str, text: &[u8]| fs::write(uploads.join(name), text).unwrap();
        note("a.upload", b"adit upload 2\ns3://bucket/root\nkey\nid\n");
        note("b.upload", b"\xff\xfe");
        note("c.upload", b"adit upload 1\ns3://bucket/root\nkey\nid-without-end");
        note("d.other", b"adit upload 1\ns3://bucket/root\nkey\nid\n");
        std::os::unix::fs::symlink("d.other", uploads.join("e.upload")).unwrap();
        let begun = begun(folder.path());
        assert!(begun.left_keys().is_empty());
        let part = content(b"x");
        let line = |hash: u128| format!("1 1 {hash:032x} \"tag\"");
        let whole = format!("adit upload 1\ns3://bucket/root\nkey\nid\nnonsense\n{}\n2 1 ff", line(part.hash));
        note("f.upload", whole.as_bytes());
        assert_eq!(begun.resume("key", false).as_deref(), Some("id"));
        assert_eq!(begun.tag("id", 1, part).as_deref(), Some("\"tag\""));
        assert_eq!(begun.tag("id", 2, part), None);
        // An id that is not plain is not noted.
        begun.begin("other", "id&amp;");
        assert_eq!(begun.at_work.lock().len(), 1);
    }
}
