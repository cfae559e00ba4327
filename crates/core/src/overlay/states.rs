//! What has become of changed files elsewhere: whether a commit brought them to a store, or is at it.
//!
//! What was committed is noted in a file of the upper ([`names::COMMITTED`]), by inode number with length and times: who changes the
//! file makes that void. It is only for who asks; nothing relies on it. What a commit is at is in memory, for each commit by itself:
//! several may be at work. Both are about an overlay whose lower is remote; of another one nothing is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content;
use super::layer::Held;
use super::node::Node;
use super::{OWN, Overlay, Shared, name_of, names};
use crate::error::{ErrorKind, FsError, Result};
use crate::store::StoreFile;
use crate::types::{Access, Attr, Ino, Kind, RenameFlags, Timestamp, XattrName};

/// The attribute that tells it of a file. It is not listed, so that copies do not take it along, and cannot be set.
pub const STATE_XATTR: &str = "user.adit.state";

/// Files that are told apart at most; of more of them nothing is noted.
const FILES_MAX: usize = 1 << 18;
/// What the file begins with; the last byte is the version.
const MAGIC: [u8; 8] = *b"aditcmt\x03";
/// Number and length, and two times of 12 bytes.
const RECORD_LEN: usize = 40;
/// How much is written at once.
const PIECE_LEN: usize = 1 << 20;

/// A version of a file, as far as its attributes tell one from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileVersion {
    /// Its number, as it is shown.
    pub ino: Ino,
    /// Length in bytes.
    pub size: u64,
    /// When its content changed last.
    pub mtime: Timestamp,
    /// When anything of it changed last.
    pub ctime: Timestamp,
}

impl FileVersion {
    /// The version that has these attributes.
    pub fn of(attr: &Attr) -> FileVersion {
        FileVersion { ino: attr.ino, size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.ino.0.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        for time in [self.mtime, self.ctime] {
            out.extend(time.secs.to_le_bytes());
            out.extend(time.nanos.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8; RECORD_LEN]) -> FileVersion {
        let u64_at =
            |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b));
        let u32_at =
            |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
        let time = |at: usize| Timestamp { secs: u64_at(at).cast_signed(), nanos: u32_at(at + 8) };
        FileVersion { ino: Ino(u64_at(0)), size: u64_at(8), mtime: time(16), ctime: time(28) }
    }
}

/// What a commit does with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtWork {
    /// It is being brought to the store.
    Uploading,
    /// That failed.
    Failed,
}

/// How a commit ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkEnd {
    /// All that it was [uploading](AtWork::Uploading) is in the store: it is noted, in the place of all that was before.
    Committed,
    /// It could not go on, or nobody goes on with it.
    Ended,
}

/// A commit at work.
struct AtCommit {
    files: BTreeMap<Ino, FileVersion>,
    /// How many commits were noted when it began.
    noted_before: u64,
}

/// What the commits at work do, and did.
#[derive(Default)]
pub(super) struct Work {
    /// By the number of each.
    at_work: BTreeMap<u64, AtCommit>,
    /// What one that ended could not bring.
    failed: BTreeMap<Ino, FileVersion>,
    /// Commits that were noted in the upper since it was opened.
    noted: u64,
}

impl Work {
    fn begin(&mut self, owner: u64) -> &mut AtCommit {
        let noted_before = self.noted;
        self.at_work.entry(owner).or_insert_with(|| AtCommit { files: BTreeMap::new(), noted_before })
    }

    /// What becomes of this version of a file.
    fn state(&self, now: &FileVersion) -> Option<AtWork> {
        if self.at_work.values().any(|commit| commit.files.get(&now.ino) == Some(now)) {
            return Some(AtWork::Uploading);
        }
        (self.failed.get(&now.ino) == Some(now)).then_some(AtWork::Failed)
    }
}

/// Inserts a version, unless there are too many already.
fn note(files: &mut BTreeMap<Ino, FileVersion>, file: &FileVersion) {
    if files.len() < FILES_MAX || files.contains_key(&file.ino) {
        files.insert(file.ino, *file);
    }
}

impl Overlay {
    /// The commit `owner` has its state of the tree: what others note from here on may be newer than that.
    pub fn begin_work(&self, owner: u64) {
        self.shared().work.lock().begin(owner);
    }

    /// Notes what becomes of some files by the commit `owner`: what it is at until it [ends](Overlay::end_work), and what it
    /// failed to bring until another one takes that up.
    pub fn note_work(&self, owner: u64, files: &[FileVersion], what: AtWork) {
        let shared = self.shared();
        let mut work = shared.work.lock();
        for file in files {
            match what {
                AtWork::Uploading => {
                    work.failed.remove(&file.ino);
                    note(&mut work.begin(owner).files, file);
                }
                AtWork::Failed => note(&mut work.failed, file),
            }
        }
    }

    /// The commit `owner` is over. What it [failed](AtWork::Failed) to bring stays noted as such.
    ///
    /// # Errors
    /// The upper's, where something is to be noted in it. The commit is done all the same.
    pub fn end_work(&self, owner: u64, end: WorkEnd) -> Result<()> {
        let shared = self.shared();
        let commit = shared.work.lock().at_work.remove(&owner);
        let Some(AtCommit { mut files, noted_before }) = commit.filter(|_| end == WorkEnd::Committed) else {
            return Ok(());
        };
        // One at a time reads what is noted and writes it anew.
        let _noting = shared.noting.lock();
        let is_first = {
            let mut work = shared.work.lock();
            work.noted += 1;
            work.failed.retain(|ino, file| files.get(ino) != Some(file));
            work.noted == noted_before + 1
        };
        // It tells all that was changed when it began, and so all that is noted from before; but one that came in between may know more.
        if !is_first {
            shared.add_committed(&mut files)?;
        }
        let noted = shared.note_committed(&files);
        shared.settle();
        noted
    }
}

/// The file with what was noted, held, and how many records it has.
type Noted = (Held, Arc<dyn StoreFile>, u64);

impl Shared {
    /// Whether files are told apart by what became of them elsewhere.
    pub(super) fn tells_states(&self) -> bool {
        self.lower.store.capabilities().remote
    }

    /// The state of a file that was changed, as the attribute tells it.
    pub(super) fn state_of(&self, node: &Arc<Node>, name: XattrName<'_>) -> Result<Option<&'static [u8]>> {
        let Some(upper) = node.upper().filter(|_| name.as_bytes() == STATE_XATTR.as_bytes()) else { return Ok(None) };
        if node.kind != Kind::File || !self.tells_states() {
            return Ok(None);
        }
        let now = FileVersion::of(&Attr { ino: node.ino, ..self.upper.store.getattr(upper)? });
        let at_work = self.work.lock().state(&now);
        let of_file = self.content(node);
        if self.is_doubtful(&content::Work { node, content: &of_file })? {
            return Ok(Some(b"error"));
        }
        Ok(Some(match at_work {
            Some(AtWork::Uploading) => b"uploading",
            Some(AtWork::Failed) => b"error",
            None if self.committed(node.ino)? == Some(now) => b"uploaded",
            None => b"modified",
        }))
    }

    /// Refuses to set what is told.
    pub(super) fn refuse_state(&self, op: &'static str, name: XattrName<'_>) -> Result<()> {
        if name.as_bytes() != STATE_XATTR.as_bytes() || !self.tells_states() {
            return Ok(());
        }
        Err(FsError::new(ErrorKind::NotPermitted)
            .on(op, name.display())
            .because("it tells the state of a file, and cannot be set"))
    }

    /// What was noted of commits, if it can be read, and how many records that has.
    fn noted(&self) -> Result<Option<Noted>> {
        let Some((attr, held)) = self.upper.find(Ino::ROOT, name_of(names::COMMITTED)?)? else { return Ok(None) };
        if attr.kind != Kind::File {
            return Ok(None);
        }
        let file = self.upper.store.open(held.ino, Access::Read)?;
        let mut magic = [0; MAGIC.len()];
        // It is only for who asks: what another version of adit wrote says nothing.
        if file.read_at(0, &mut magic)? < magic.len() || magic != MAGIC {
            return Ok(None);
        }
        Ok(Some((held, file, attr.size.saturating_sub(MAGIC.len() as u64) / RECORD_LEN as u64)))
    }

    /// Adds what is noted to `files`: of two versions of a file the one that was changed later.
    fn add_committed(&self, files: &mut BTreeMap<Ino, FileVersion>) -> Result<()> {
        let Some((_held, file, count)) = self.noted()? else { return Ok(()) };
        for number in 0..count {
            let Some(found) = record(&*file, number)? else { break };
            if files.get(&found.ino).is_none_or(|known| known.ctime < found.ctime) {
                note(files, &found);
            }
        }
        Ok(())
    }

    /// The version of a file that was committed last.
    fn committed(&self, ino: Ino) -> Result<Option<FileVersion>> {
        let Some((_held, file, count)) = self.noted()? else { return Ok(None) };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(found) = record(&*file, middle)? else { return Ok(None) };
            match found.ino.cmp(&ino) {
                std::cmp::Ordering::Equal => return Ok(Some(found)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    fn note_committed(&self, files: &BTreeMap<Ino, FileVersion>) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        files.values().for_each(|file| file.encode(&mut bytes));
        let (name, new) = (name_of(names::COMMITTED)?, name_of(names::COMMITTED_NEW)?);
        let held = {
            let learning = self.upper.learning();
            let mut made = None;
            self.transact(&mut |tx| {
                match tx.unlink(Ino::ROOT, new) {
                    // A kill left it.
                    Ok(()) => {}
                    Err(e) if e.is_not_found() => {}
                    Err(e) => return Err(e),
                }
                made = Some(tx.create(Ino::ROOT, new, &OWN)?.ino);
                Ok(())
            })?;
            self.upper.hold(&learning, made.ok_or(ErrorKind::Stale)?)
        };
        let file = self.upper.store.open(held.ino, Access::Write)?;
        let mut at = 0;
        for piece in bytes.chunks(PIECE_LEN) {
            file.write_at(&[(at, piece)])?;
            at += piece.len() as u64;
        }
        drop(file);
        self.transact(&mut |tx| tx.rename(Ino::ROOT, new, Ino::ROOT, name, RenameFlags::default()))
    }
}

fn record(file: &dyn StoreFile, number: u64) -> Result<Option<FileVersion>> {
    let mut bytes = [0; RECORD_LEN];
    let read = file.read_at(MAGIC.len() as u64 + number * RECORD_LEN as u64, &mut bytes)?;
    Ok((read == RECORD_LEN).then(|| FileVersion::decode(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_reads_as_it_was_written() {
        let version = FileVersion {
            ino: Ino(10),
            size: 6,
            mtime: Timestamp { secs: -7, nanos: 8 },
            ctime: Timestamp { secs: 9, nanos: 10 },
        };
        let mut bytes = Vec::new();
        version.encode(&mut bytes);
        assert_eq!(FileVersion::decode(bytes.first_chunk().unwrap()), version);
        assert_eq!(bytes.len(), RECORD_LEN);
    }
}
