//! What has become of changed files elsewhere: whether a commit brought them to a store, or is at it.
//!
//! What was committed is noted in a file of the upper ([`names::COMMITTED`]), by inode number with length and times: who changes the
//! file makes that void. It is only for who asks; nothing relies on it. What a commit is at is in memory. Both are about an
//! overlay whose lower is remote; of another one nothing is told.

use std::collections::BTreeMap;

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
const MAGIC: [u8; 8] = *b"aditcmt\x01";
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
    /// It could not go on.
    Failed,
    /// Nobody goes on with it.
    GivenUp,
}

/// What the commits at work do, by file.
#[derive(Default)]
pub(super) struct Work(BTreeMap<Ino, (FileVersion, AtWork, u64)>);

impl Overlay {
    /// Notes what the commit `owner` does with some files, until it [ends](Overlay::end_work).
    pub fn note_work(&self, owner: u64, files: &[FileVersion], what: AtWork) {
        let mut work = self.0.work.lock();
        for file in files {
            if work.0.len() < FILES_MAX || work.0.contains_key(&file.ino) {
                work.0.insert(file.ino, (*file, what, owner));
            }
        }
    }

    /// The commit `owner` is over. What it [failed](AtWork::Failed) to bring stays noted as such until another commit takes it up.
    ///
    /// # Errors
    /// The upper's, where something is to be noted in it. The commit is done all the same.
    pub fn end_work(&self, owner: u64, end: WorkEnd) -> Result<()> {
        let mut ended = Vec::new();
        self.0.work.lock().0.retain(|_, (file, what, of)| {
            if *of != owner || *what != AtWork::Uploading {
                return true;
            }
            ended.push(*file);
            *what = AtWork::Failed;
            end == WorkEnd::Failed
        });
        if end != WorkEnd::Committed {
            return Ok(());
        }
        let noted = self.0.note_committed(&ended);
        self.0.settle();
        noted
    }
}

impl Shared {
    /// Whether files are told apart by what became of them elsewhere.
    fn tells_states(&self) -> bool {
        self.lower.store.capabilities().remote
    }

    /// The state of a file that was changed, as the attribute tells it.
    pub(super) fn state_of(&self, node: &Node, name: XattrName<'_>) -> Result<Option<&'static [u8]>> {
        let Some(upper) = node.upper().filter(|_| name.as_bytes() == STATE_XATTR.as_bytes()) else { return Ok(None) };
        if node.kind != Kind::File || !self.tells_states() {
            return Ok(None);
        }
        let now = FileVersion::of(&Attr { ino: node.ino, ..self.upper.store.getattr(upper)? });
        let at_work = self.work.lock().0.get(&node.ino).filter(|(file, ..)| *file == now).map(|(_, what, _)| *what);
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

    /// The version of a file that was committed last.
    fn committed(&self, ino: Ino) -> Result<Option<FileVersion>> {
        let Some((attr, held)) = self.upper.find(Ino::ROOT, name_of(names::COMMITTED)?)? else { return Ok(None) };
        if attr.kind != Kind::File {
            return Ok(None);
        }
        let file = self.upper.store.open(held.ino, Access::Read)?;
        let count = attr.size.saturating_sub(MAGIC.len() as u64) / RECORD_LEN as u64;
        let mut magic = [0; MAGIC.len()];
        // It is only for who asks: what another version of adit wrote says nothing.
        if file.read_at(0, &mut magic)? < magic.len() || magic != MAGIC {
            return Ok(None);
        }
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

    fn note_committed(&self, files: &[FileVersion]) -> Result<()> {
        let mut bytes = MAGIC.to_vec();
        let sorted: BTreeMap<Ino, &FileVersion> = files.iter().map(|file| (file.ino, file)).collect();
        sorted.values().for_each(|file| file.encode(&mut bytes));
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
            ino: Ino(1 << 62 | 5),
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
