//! The redo journal: what makes changes to a vault survive a kill, and a power cut leave nothing unreadable.
//!
//! It lies in a state directory outside the vault. `docs/decisions/0003-vault-journal.md` tells why it is as it is;
//! in short:
//!
//! - **Epochs.** A segment file is one epoch. A checkpoint starts the next one, makes the whole vault durable
//!   (`syncfs`) and then removes the old segment. What a segment tells matters only until then.
//! - **Overwriting** a chunk that may be durable: its new ciphertext is in the journal, durably, before the vault is
//!   touched ([`Op::write_run`]). A torn chunk is written again by [`recover`].
//! - **Extending** needs no data in the journal, only the length below which the file was durable before (its
//!   *floor*): recovery cuts at the last chunk that authenticates, never below the floor.
//! - **New objects.** Their header nonces come from the epoch's seed, so recovery can tell a file that was made in
//!   this epoch; the content directories that hold such files are named durably, once per epoch, before the first one
//!   is made ([`Op::intent`]). So a create costs no sync. A directory that was made in this epoch itself is found
//!   through the one above it ([`Op::covered`]), so a new tree costs one.
//! - **Several host operations that must be one** (a rename between long and short names) are a plan that recovery
//!   completes ([`Op::run_plan`]).
//!
//! Locking: operations hold the gate shared for as long as they touch the vault ([`Journal::begin`]); the
//! switch of epochs holds it alone, for moments. The writer's mutex is held for one write of a frame.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod record;
pub(crate) mod recover;
pub(crate) mod temporary;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use adit_core::media::{HostDir, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Caller, Kind, RenameFlags, SetAttr, Timestamp};
use adit_core::{ErrorKind, FsError, Result};
use aws_lc_rs::hmac;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

pub(crate) use record::Step;
use record::{Frame, Record};
use temporary::Removal;

use crate::perm;

/// Version of the segment format.
const VERSION: u32 = 2;
/// A segment of this size asks for a checkpoint.
const SEGMENT_LEN_BYTES: u64 = 64 << 20;
/// A segment of this size makes its writer wait for the checkpoint.
const SEGMENT_LEN_MAX_BYTES: u64 = 192 << 20;
/// Header nonces reserved at first; doubled whenever they run out.
const RESERVED_NONCES: u64 = 4096;

/// What identifies a vault in its journals: derived from its keys, the same after a change of password.
pub(crate) type VaultId = [u8; 16];

/// Room in front of the ciphertext in a buffer for [`Op::write_run`].
pub(crate) const RUN_HEADROOM_BYTES: usize = record::RUN_HEADROOM_BYTES;

/// A file as the journal sees it.
pub(crate) struct FileId<'a> {
    /// The host's inode number of the ciphertext file.
    pub host_ino: u64,
    /// Its sealed header.
    pub header: &'a [u8],
    /// Length of the nonce that `header` begins with.
    pub nonce_len: usize,
    /// Its place in the vault; None once it has no name, when nothing of it needs to survive.
    pub path: &'a dyn Fn() -> Option<String>,
}

/// What is known of a file in this epoch.
struct Tracked {
    nonce: Vec<u8>,
    /// 0: no `Declare` record yet.
    number: u32,
    /// Made in this epoch and not yet synced: nothing of it is durable.
    fresh: bool,
    /// Synced since it was declared: the next change declares it anew.
    settled: bool,
}

impl Tracked {
    /// Whether this is `file`, and not one that had its inode number before.
    fn is(&self, file: &FileId<'_>) -> bool {
        self.nonce == file.header[..file.nonce_len]
    }
}

struct Segment {
    file: Arc<dyn HostFile>,
    name: PathBuf,
    /// Where the next frame goes.
    at: u64,
    frame: Frame,
}

/// What belongs to one epoch only.
struct Epoch {
    seed: hmac::Key,
    next_nonce: AtomicU64,
    reserved: Mutex<u64>,
    files: Mutex<HashMap<u64, Tracked>>,
    next_file: Mutex<u32>,
    intents: RwLock<hashbrown::HashSet<[u8; 32]>>,
}

/// The journal of one mounted vault.
pub(crate) struct Journal {
    vault: Arc<dyn HostDir>,
    state: Arc<dyn HostDir>,
    id: VaultId,
    gate: RwLock<Epoch>,
    writer: Mutex<Segment>,
    written: AtomicU64,
    synced: AtomicU64,
    sync_turn: Mutex<()>,
    checkpoint_turn: Mutex<()>,
    next_segment: AtomicU64,
    next_plan: AtomicU64,
    dirty: AtomicBool,
    /// From the switch of epochs until the old one is durable: its files are forgotten, but not safe yet.
    settling: AtomicBool,
    /// The files of the epoch that a checkpoint is ending, by inode number, for as long as its segment is there.
    ending: Mutex<HashMap<u64, Tracked>>,
    /// A sync failed: what is durable is unknown, so nothing more may rely on it and no segment goes away.
    broken: AtomicBool,
    syncs: AtomicU64,
    /// Segments of finished epochs that are still there, or may come back after a power cut.
    retired: Mutex<Vec<(PathBuf, Arc<dyn HostFile>)>>,
}

/// An operation that changes the vault. While it lives, the epoch does not end.
pub(crate) struct Op<'a> {
    journal: &'a Journal,
    epoch: RwLockReadGuard<'a, Epoch>,
}

fn segment_name(number: u64) -> PathBuf {
    PathBuf::from(format!("journal-{number:016x}"))
}

/// The number of a segment from its file name.
fn segment_number(name: &[u8]) -> Option<u64> {
    let hex = std::str::from_utf8(name).ok()?.strip_prefix("journal-")?;
    (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

/// Header nonce number `counter` of the epoch with this seed: as good as random, and recognisable with the seed.
fn session_nonce(seed: &hmac::Key, counter: u64, len: usize) -> Vec<u8> {
    hmac::sign(seed, &counter.to_le_bytes()).as_ref()[..len].to_vec()
}

impl Journal {
    /// Starts a journal in `state` with a new segment; leftovers are [`recover`]'s business, before.
    pub fn create(vault: Arc<dyn HostDir>, state: Arc<dyn HostDir>, id: VaultId) -> Result<Self> {
        let mut newest = 0;
        state
            .list(Path::new(""), &mut |e| newest = newest.max(segment_number(e.name).unwrap_or(0)))
            .map_err(|e| FsError::from(e).on("list", "the state directory"))?;
        let (segment, epoch) = new_segment(&*state, newest + 1, id, vault.incarnation())?;
        Ok(Journal {
            vault,
            state,
            id,
            gate: RwLock::new(epoch),
            written: AtomicU64::new(segment.at),
            synced: AtomicU64::new(segment.at),
            writer: Mutex::new(segment),
            sync_turn: Mutex::new(()),
            checkpoint_turn: Mutex::new(()),
            next_segment: AtomicU64::new(newest + 2),
            next_plan: AtomicU64::new(1),
            dirty: AtomicBool::new(false),
            settling: AtomicBool::new(false),
            ending: Mutex::default(),
            broken: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            retired: Mutex::default(),
        })
    }

    /// Begins an operation that changes the vault. Operations of one thread do not nest.
    pub fn begin(&self) -> Result<Op<'_>> {
        self.check_sound()?;
        Ok(Op { journal: self, epoch: self.gate.read() })
    }

    /// The folder that the journal lies in.
    pub fn state(&self) -> &dyn HostDir {
        &*self.state
    }

    /// Whether the segment has grown so much that whoever wants to write more is to make a checkpoint first.
    pub fn is_full(&self) -> bool {
        self.written.load(Ordering::Acquire) > SEGMENT_LEN_MAX_BYTES
    }

    /// # Errors
    /// If an earlier sync failed, or the vault holds what only the journal can mend.
    pub fn check_sound(&self) -> Result<()> {
        if !self.broken.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(FsError::new(ErrorKind::Io)
            .because("an earlier sync of the vault or its journal failed; unmount, check the disk and mount again"))
    }

    /// Makes the segment look full.
    #[cfg(test)]
    pub fn pretend_full(&self) {
        self.written.store(SEGMENT_LEN_MAX_BYTES + 1, Ordering::Release);
    }

    /// Whether the segment has grown so that a checkpoint is due.
    pub fn wants_checkpoint(&self) -> bool {
        self.written.load(Ordering::Relaxed) > SEGMENT_LEN_BYTES
    }

    /// Whether anything happened since the last checkpoint.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Ends the epoch if that is `due` still when nobody else is at it, and says whether it was: then everything that was
    /// done before is durable in the vault.
    ///
    /// The caller holds no [`Op`], and no lock that readers wait for: this can take seconds.
    pub fn checkpoint(&self, due: impl FnOnce(&Journal) -> bool) -> Result<bool> {
        let _turn = self.checkpoint_turn.lock();
        self.check_sound()?;
        if !due(self) {
            return self.clear_retired().map(|()| false);
        }
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let (segment, epoch) = new_segment(&*self.state, number, self.id, self.vault.incarnation())?;
        let old = {
            let mut gate = self.gate.write();
            let mut writer = self.writer.lock();
            self.dirty.store(false, Ordering::Release);
            self.settling.store(true, Ordering::Release);
            let ended = std::mem::replace(&mut *gate, epoch);
            *self.ending.lock() = ended.files.into_inner();
            self.written.store(segment.at, Ordering::Release);
            self.synced.store(segment.at, Ordering::Release);
            std::mem::replace(&mut *writer, segment)
        };
        if let Err(e) = self.vault.sync(SyncTarget::All) {
            return Err(self.fail(e, "sync", "the vault"));
        }
        self.settling.store(false, Ordering::Release);
        self.retired.lock().push((old.name, old.file));
        self.clear_retired()?;
        self.ending.lock().clear();
        Ok(true)
    }

    /// Removes the segments of finished epochs, durably: one that was there after later epochs would tell old stories. One
    /// that cannot be removed is emptied, and its removal tried again at the next checkpoint.
    fn clear_retired(&self) -> Result<()> {
        let mut retired = self.retired.lock();
        if retired.is_empty() {
            return Ok(());
        }
        let (mut kept, mut failure) = (Vec::new(), None);
        for (name, file) in retired.drain(..) {
            match self.state.remove(&name, Kind::File) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!("{}: a finished segment of the journal cannot be removed: {e}", name.display());
                    if file.set_len(0).and_then(|()| file.sync(false)).is_err() {
                        failure = Some(FsError::from(e).on("retire", name.display()));
                    }
                    kept.push((name, file));
                }
                _ => {}
            }
        }
        *retired = kept;
        match self.state.sync(SyncTarget::Dir(Path::new(""))) {
            Err(e) => Err(self.fail(e, "sync", "the directory of the vault's journal")),
            Ok(()) => failure.map_or(Ok(()), Err),
        }
    }

    /// Ends the journal in good order: nothing is left to recover. Only when no operation follows.
    pub fn close(&self) -> Result<()> {
        self.checkpoint(Journal::is_dirty)?; // if it fails, the segments stay for the next mount
        let name = self.writer.lock().name.clone();
        self.state.remove(&name, Kind::File).map_err(|e| FsError::from(e).on("retire", name.display()))
    }

    /// The vault holds a chunk that only the journal can mend: no segment goes away, and no change is taken any more.
    pub fn keep(&self, why: &str) {
        self.broken.store(true, Ordering::Relaxed);
        tracing::error!("{why}; the vault takes no more changes until it is mounted again");
    }

    fn fail(&self, e: std::io::Error, op: &'static str, subject: &str) -> FsError {
        self.broken.store(true, Ordering::Relaxed);
        tracing::error!("{op} {subject}: {e}; the vault takes no more changes until it is mounted again");
        FsError::from(e).on(op, subject)
    }

    fn append(&self, record: &Record) -> Result<u64> {
        self.dirty.store(true, Ordering::Relaxed);
        let mut writer = self.writer.lock();
        let Segment { file, at, frame, .. } = &mut *writer;
        frame.clear();
        frame.put(record);
        let bytes = frame.seal(*at);
        file.write_at(*at, bytes).map_err(|e| FsError::from(e).on("write", "the vault's journal"))?;
        *at += bytes.len() as u64;
        self.written.store(*at, Ordering::Release);
        Ok(*at)
    }

    /// Makes the segment durable up to `at`; callers that come together share one sync.
    fn sync_to(&self, at: u64) -> Result<()> {
        if self.synced.load(Ordering::Acquire) >= at {
            return Ok(());
        }
        let _turn = self.sync_turn.lock();
        if self.synced.load(Ordering::Acquire) >= at {
            return Ok(());
        }
        // The host tells each failure once: after the sync of whoever came first has failed, ours would succeed.
        self.check_sound()?;
        let (file, written) = {
            let writer = self.writer.lock();
            (writer.file.clone(), writer.at)
        };
        self.syncs.fetch_add(1, Ordering::Relaxed);
        file.sync(true).map_err(|e| self.fail(e, "sync", "the vault's journal"))?;
        self.synced.store(written, Ordering::Release);
        Ok(())
    }

    /// Syncs of the journal so far, for `adit stats`.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }
}

fn new_segment(
    state: &dyn HostDir,
    number: u64,
    id: VaultId,
    incarnation: Option<[u8; 16]>,
) -> Result<(Segment, Epoch)> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|e| FsError::new(ErrorKind::Io).because(e.to_string()))?;
    let mut frame = Frame::default();
    let mut bytes = Vec::new();
    let began_secs = Timestamp::now().secs;
    let begin = Record::Begin { version: VERSION, vault: id, seed, incarnation, began_secs };
    for record in [begin, Record::Reserve { up_to: RESERVED_NONCES }] {
        frame.clear();
        frame.put(&record);
        let at = bytes.len() as u64;
        bytes.extend_from_slice(frame.seal(at));
    }
    let name = segment_name(number);
    // Not synced: whatever is promised rests on a later record, and the sync of that one covers the file's beginning.
    // No header nonce is used before there is one: the intent of its directory.
    let new = NewFile { content: &bytes, perm: 0o600, owner: None, durable: false };
    let file = state
        .publish(&name, &new)
        .and_then(|file| {
            let synced = state.sync(SyncTarget::Dir(Path::new("")));
            synced.map(|()| file).inspect_err(|_| drop(state.remove(&name, Kind::File)))
        })
        .map_err(|e| FsError::from(e).on("create", "the vault's journal"))?;
    let segment = Segment { file: Arc::from(file), name, at: bytes.len() as u64, frame };
    let epoch = Epoch {
        seed: hmac::Key::new(hmac::HMAC_SHA256, &seed),
        next_nonce: AtomicU64::new(0),
        reserved: Mutex::new(RESERVED_NONCES),
        files: Mutex::default(),
        next_file: Mutex::new(1),
        intents: RwLock::default(),
    };
    Ok((segment, epoch))
}

impl Op<'_> {
    fn append_durable(&self, record: &Record) -> Result<()> {
        let at = self.journal.append(record)?;
        self.journal.sync_to(at)
    }

    /// Says, durably and once per epoch, that entries of this content directory may be half-made after a crash.
    pub fn intent(&self, dir: &crate::format::DirHash) -> Result<()> {
        let key: [u8; 32] = dir_key(dir);
        if self.epoch.intents.read().contains(&key) {
            return Ok(());
        }
        // Two threads may both write the record; neither goes on before one of them is durable.
        self.append_durable(&Record::Intent { dir: dir.path() })?;
        self.epoch.intents.write().insert(key);
        Ok(())
    }

    /// The content directory `made` was made in this epoch, with an id file under a nonce of it, below a directory that an
    /// intent names: recovery comes to it from there, and it needs none of its own.
    pub fn covered(&self, made: &crate::format::DirHash) {
        self.epoch.intents.write().insert(dir_key(made));
    }

    /// A header nonce of this epoch, never given out before.
    pub fn header_nonce(&self, len: usize) -> Result<Vec<u8>> {
        let counter = self.epoch.next_nonce.fetch_add(1, Ordering::Relaxed);
        let mut reserved = self.epoch.reserved.lock();
        while counter >= *reserved {
            let up_to = *reserved * 2;
            self.append_durable(&Record::Reserve { up_to })?;
            *reserved = up_to;
        }
        drop(reserved);
        Ok(session_nonce(&self.epoch.seed, counter, len))
    }

    /// A name for a folder that lies in a directory of [`Op::intent`] while it is made or taken apart. What a kill leaves
    /// under it, recovery removes.
    pub fn temporary_name(&self) -> String {
        temporary::name(&self.epoch.seed)
    }

    /// A file was made in this epoch, with a header of [`Op::header_nonce`].
    pub fn created(&self, file: &FileId<'_>) {
        self.journal.dirty.store(true, Ordering::Relaxed);
        let tracked = Tracked { nonce: file.header[..file.nonce_len].to_vec(), number: 0, fresh: true, settled: false };
        self.epoch.files.lock().insert(file.host_ino, tracked);
    }

    /// The file is about to grow beyond `durable_len`, or be overwritten: says so, durably unless nothing of it is.
    pub fn declare(&self, file: &FileId<'_>, durable_len: u64) -> Result<()> {
        self.number(file, durable_len, false).map(|_| ())
    }

    /// The file's number, and whether it is fresh. A fresh file gets one only if it is `needed`.
    fn number(&self, file: &FileId<'_>, durable_len: u64, needed: bool) -> Result<(u32, bool)> {
        let nonce = &file.header[..file.nonce_len];
        let mut files = self.epoch.files.lock();
        let known = files.get_mut(&file.host_ino).filter(|t| t.is(file) && !t.settled);
        let fresh = match &known {
            Some(t) if t.number != 0 || (t.fresh && !needed) => return Ok((t.number, t.fresh)),
            Some(_) => true,
            None => false,
        };
        let Some(path) = (file.path)() else { return Ok((0, true)) };
        let number = {
            let mut next = self.epoch.next_file.lock();
            *next += 1;
            *next - 1
        };
        let floor = if fresh { 0 } else { durable_len };
        let record = Record::Declare { file: number, floor, path, header: file.header.to_vec() };
        let at = self.journal.append(&record)?;
        files.insert(file.host_ino, Tracked { nonce: nonce.to_vec(), number, fresh, settled: false });
        drop(files);
        if !fresh {
            self.journal.sync_to(at)?;
        }
        Ok((number, fresh))
    }

    /// Records new ciphertext for chunks that exist. The first `used` bytes of `buf` are [`RUN_HEADROOM_BYTES`] of room,
    /// then the ciphertext of the consecutive chunks from `first`, each with its length and the nonce that it replaces.
    /// The vault may be overwritten when the token is secured.
    pub fn write_run(
        &self,
        file: &FileId<'_>,
        durable_len: u64,
        (buf, used): (&mut Vec<u8>, usize),
        first: u64,
        chunks: &[(u32, Vec<u8>)],
    ) -> Result<RunToken> {
        let (number, fresh) = self.number(file, durable_len, true)?;
        if number == 0 {
            return Ok(RunToken(None));
        }
        self.journal.dirty.store(true, Ordering::Relaxed);
        let end = record::put_run(buf, used, number, first, chunks);
        let at = {
            let mut writer = self.journal.writer.lock();
            let bytes = record::seal_run(&mut buf[..end], writer.at);
            writer.file.write_at(writer.at, bytes).map_err(|e| FsError::from(e).on("write", "the vault's journal"))?;
            writer.at += bytes.len() as u64;
            self.journal.written.store(writer.at, Ordering::Release);
            writer.at
        };
        // Nothing of a fresh file is durable: for a kill it is enough that the record is written.
        Ok(RunToken((!fresh).then_some(at)))
    }

    /// Waits until the records behind `tokens` are as safe as they must be before the vault is touched.
    pub fn secure(&self, token: RunToken) -> Result<()> {
        token.0.map_or(Ok(()), |at| self.journal.sync_to(at))
    }

    /// The file is about to be cut to `len`.
    pub fn cutting(&self, file: &FileId<'_>, durable_len: u64, len: u64) -> Result<()> {
        let (number, fresh) = self.number(file, durable_len, false)?;
        if number == 0 {
            return Ok(());
        }
        let at = self.journal.append(&Record::Floor { file: number, floor: len })?;
        if fresh { Ok(()) } else { self.journal.sync_to(at) }
    }

    /// The file, its header and `len` bytes of content, and its names, are durable in the vault.
    pub fn settled(&self, file: &FileId<'_>, len: u64) -> Result<()> {
        let number = match self.epoch.files.lock().get_mut(&file.host_ino) {
            Some(t) if t.is(file) => {
                (t.settled, t.fresh) = (true, false);
                t.number
            }
            _ => 0,
        };
        match number {
            0 => Ok(()),
            file => self.journal.append(&Record::Settled { file, len }).map(|_| ()),
        }
    }

    /// The file is about to get another place. `nonce` reads the one that its header begins with; None if it cannot be
    /// read.
    pub fn moving(&self, host_ino: u64, nonce: impl FnOnce() -> Option<Vec<u8>>, path: &str) -> Result<()> {
        self.tell_name(host_ino, nonce, |file| Record::Path { file, path: path.to_owned() })
    }

    /// The host knows files by other numbers now: from the first of each pair to the second.
    pub fn renumbered(&self, numbers: &[(u64, u64)]) {
        let mut files = self.epoch.files.lock();
        let moved: Vec<_> = numbers.iter().filter_map(|(from, to)| Some((*to, files.remove(from)?))).collect();
        files.extend(moved);
    }

    /// The file is about to lose its name; [`Op::unlinked`] takes what this returns. `nonce` as in [`Op::moving`].
    pub fn unlinking(&self, host_ino: u64, nonce: impl FnOnce() -> Option<Vec<u8>>) -> Result<Unlinking> {
        self.journal.dirty.store(true, Ordering::Relaxed);
        let known = self.epoch.files.lock().get(&host_ino).map(|t| t.nonce.clone());
        let nonce = std::cell::LazyCell::new(nonce);
        self.tell_name(host_ino, || nonce.clone(), |file| Record::Unlinked { file })?;
        // A checkpoint may still be ending the epoch before: what its segment tells of the file would have no place.
        let ended = self.journal.ending.lock().get(&host_ino).filter(|t| t.number != 0).map(|t| t.nonce.clone());
        if let Some(ended) = ended
            && nonce.as_ref().is_none_or(|nonce| *nonce == ended)
        {
            self.append_durable(&Record::Gone { nonce: ended })?;
        }
        Ok(Unlinking { host_ino, nonce: known })
    }

    /// The file has lost its name. Its inode number may be that of a new file by now, which stays known.
    pub fn unlinked(&self, file: Unlinking) {
        let mut files = self.epoch.files.lock();
        let is_it = files.get(&file.host_ino).is_some_and(|t| match &file.nonce {
            Some(nonce) => t.nonce == *nonce,
            // It was not known then: if it was declared since, it is not fresh.
            None => !t.fresh,
        });
        if is_it {
            files.remove(&file.host_ino);
        }
    }

    /// The newest recorded run of these chunks did not reach the vault, and is not to.
    pub fn cancel(&self, file: &FileId<'_>, first: u64, count: u64) -> Result<()> {
        let number = self.epoch.files.lock().get(&file.host_ino).filter(|t| t.is(file)).map_or(0, |t| t.number);
        match number {
            0 => Ok(()),
            file => self.journal.append(&Record::Cancel { file, first, count: count as u32 }).map(|_| ()),
        }
    }

    /// Records what becomes of a file's name, durably if something of the file is: recovery must find it, or know why not.
    fn tell_name(
        &self,
        host_ino: u64,
        nonce: impl FnOnce() -> Option<Vec<u8>>,
        record: impl FnOnce(u32) -> Record,
    ) -> Result<()> {
        let known = self.epoch.files.lock().get(&host_ino).map(|t| (t.number, t.fresh, t.nonce.clone()));
        let Some((number, fresh, tracked)) = known.filter(|&(number, ..)| number != 0) else { return Ok(()) };
        // Another client can have removed the file that we know, and the host given its number to another one.
        if nonce().is_some_and(|nonce| nonce != tracked) {
            return Ok(());
        }
        if fresh { self.journal.append(&record(number)).map(drop) } else { self.append_durable(&record(number)) }
    }

    /// Something is about to change that needs no record, but a sync at the next checkpoint.
    pub fn touch(&self) {
        self.journal.dirty.store(true, Ordering::Relaxed);
    }

    /// See [`Journal::keep`].
    pub fn keep(&self, why: &str) {
        self.journal.keep(why);
    }

    /// Whether content of this file may not be durable yet.
    pub fn is_unsettled(&self, host_ino: u64) -> bool {
        self.journal.settling.load(Ordering::Acquire)
            || self.epoch.files.lock().get(&host_ino).is_some_and(|t| !t.settled)
    }

    /// Makes all steps, as one: after a crash, [`recover`] makes those that are missing.
    ///
    /// If one of the first `essential` steps fails, those before it are taken back and the error is returned. After them
    /// the plan has succeeded: what its last steps could not remove stays behind under a temporary name.
    ///
    /// Returns the folders that are to be removed once more when the removed files in them are closed.
    pub fn run_plan(&self, steps: &[Step], essential: usize) -> Result<Vec<String>> {
        let id = self.journal.next_plan.fetch_add(1, Ordering::Relaxed);
        self.append_durable(&Record::Plan { id, steps: steps.to_vec() })?;
        let mut waiting = Vec::new();
        let Err((made, e)) = self.make_steps(id, steps, &mut waiting) else { return Ok(waiting) };
        if made >= essential {
            tracing::warn!("a rename left something behind: {e}");
            let done = steps.len() as u32;
            return match self.append_durable(&Record::Progress { id, done }) {
                Ok(()) => Ok(waiting),
                Err(e) => Err(self.give_up_plan(e)),
            };
        }
        // A step that failed may have been made in part or not be durable: it is taken back as well. Not a move that met
        // another client's: what lies at its ends is not ours.
        let met = matches!(steps[made], Step::Rename { .. }) && is_met(&e);
        let taken = if met { &steps[..made] } else { &steps[..=made] };
        let back: Option<Vec<Step>> = taken.iter().rev().map(Step::undo).collect();
        let Some(back) = back else { return Err(self.give_up_plan(e)) };
        match self.append_durable(&Record::Plan { id, steps: back.clone() }).and_then(|()| self.take_back(id, &back)) {
            Ok(()) => Err(e),
            Err(_) => Err(self.give_up_plan(e)),
        }
    }

    /// Makes the steps back. Where one meets what another client made, that stays, and ours under its temporary name, where
    /// `check` finds it; the others are made all the same.
    fn take_back(&self, id: u64, back: &[Step]) -> Result<()> {
        for (n, step) in back.iter().enumerate() {
            match make_step(&*self.journal.vault, step) {
                Err(e) if is_met(&e) => tracing::error!("a rename that failed left something behind: {e}"),
                other => drop(other?),
            }
            self.append_durable(&Record::Progress { id, done: n as u32 + 1 })?;
        }
        Ok(())
    }

    /// Makes steps one by one. On an error, how many were made before.
    fn make_steps(&self, id: u64, steps: &[Step], waiting: &mut Vec<String>) -> Result<(), (usize, FsError)> {
        for (n, step) in steps.iter().enumerate() {
            let removal = make_step(&*self.journal.vault, step).map_err(|e| (n, e))?;
            if let (Removal::Waits, Step::RemoveDir { path }) = (removal, step) {
                waiting.push(path.clone());
            }
            self.append_durable(&Record::Progress { id, done: n as u32 + 1 }).map_err(|e| (n, e))?;
        }
        Ok(())
    }

    /// What is half-made must not outlive the record that can complete it.
    fn give_up_plan(&self, e: FsError) -> FsError {
        self.keep("a rename could not be finished, and is completed at the next mount");
        e
    }
}

/// Whether a step of a plan met what another client did, and so did nothing.
fn is_met(e: &FsError) -> bool {
    matches!(e.kind(), ErrorKind::Exists | ErrorKind::NotFound | ErrorKind::NotEmpty)
}

/// A file that loses its name: its inode number, and the nonce of its header if it was known.
#[must_use]
pub(crate) struct Unlinking {
    host_ino: u64,
    nonce: Option<Vec<u8>>,
}

/// What must be durable before a run may reach the vault.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunToken(Option<u64>);

impl RunToken {
    /// Both.
    pub fn and(self, other: RunToken) -> RunToken {
        RunToken(self.0.max(other.0))
    }
}

fn dir_key(dir: &crate::format::DirHash) -> [u8; 32] {
    let mut key = [0; 32];
    key[..2].copy_from_slice(dir.prefix().as_bytes());
    key[2..].copy_from_slice(dir.rest().as_bytes());
    key
}

fn parent_of(path: &str) -> &Path {
    Path::new(path).parent().unwrap_or(Path::new(""))
}

/// Whose a new object at `path` must be, where nobody asks for it: its directory's owner. A mount by root would else keep
/// from its users what recovery, repair or a rename makes beside their objects. None if the directory is not there.
pub(crate) fn owner_beside(vault: &dyn HostDir, path: &str) -> Option<Caller> {
    vault.stat(parent_of(path)).ok().map(|a| Caller { uid: a.uid, gid: a.gid })
}

/// Makes the folder `d/XX` if it is not there, and lets those through it whom the directory lets in that is about to be made
/// there, with the permissions `entry`. It belongs to no entry: its owner is that of `d`, so that whoever may make directories in
/// the vault with one client may with another.
pub(crate) fn make_prefix(vault: &dyn HostDir, path: &str, entry: u16) -> std::io::Result<()> {
    match vault.stat(Path::new(path)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        other => return other.map(|found| perm::open_way(vault, path, found.perm, entry)),
    }
    match vault.make_dir(Path::new(path), perm::shared_folder(vault, path, entry), owner_beside(vault, path)) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Renames to a free name. A power cut can leave a moved file under both names; they are one inode then, which
/// `rename(2)` leaves as it is. What someone else made under the new name is left alone.
fn rename_whole(vault: &dyn HostDir, from: &str, to: &str) -> std::io::Result<()> {
    let (from, to) = (Path::new(from), Path::new(to));
    let source = match vault.stat(from) {
        // Made already, if it arrived.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return vault.stat(to).map(drop),
        other => other?,
    };
    match vault.rename(from, to, RenameFlags::NOREPLACE) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let same = source.kind == Kind::File && vault.stat(to)?.ino == source.ino;
            if same { vault.remove(from, Kind::File) } else { Err(e) }
        }
        other => other,
    }
}

/// Opens a file also where its mode forbids it to us as its owner: the kernel has checked the caller's rights against
/// the same mode, when it mattered.
pub(crate) fn open_as_owner(vault: &dyn HostDir, path: &Path, access: Access) -> std::io::Result<Box<dyn HostFile>> {
    match vault.open(path, access) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let _permitted = ModeLoan::to_owner(vault, path, 0o600).ok_or(e)?;
            vault.open(path, access)
        }
        other => other,
    }
}

/// Does `work` in the directory `dir` also where its mode forbids that to us as its owner. It is bookkeeping: whether the caller
/// may do what it is for, the kernel has checked, and of a directory that is removed or replaced the mode says nothing of that.
pub(crate) fn as_owner<T>(
    vault: &dyn HostDir,
    dir: &Path,
    mut work: impl FnMut() -> std::io::Result<T>,
) -> std::io::Result<T> {
    let refused = match work() {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => e,
        other => return other,
    };
    let _permitted = ModeLoan::to_owner(vault, dir, 0o700).ok_or(refused)?;
    work()
}

fn set_perm(vault: &dyn HostDir, path: &Path, perm: u16) -> std::io::Result<()> {
    vault.set_attr(path, &SetAttr { perm: Some(perm), ..SetAttr::default() })
}

/// Permissions that the owner of an object has meanwhile, whatever its mode is: with the drop of this that is as it was.
pub(crate) struct ModeLoan<'a> {
    vault: &'a dyn HostDir,
    path: PathBuf,
    perm: u16,
}

impl<'a> ModeLoan<'a> {
    /// None if the owner has all of these already, or it is somebody else's object.
    pub fn to_owner(vault: &'a dyn HostDir, path: &Path, bits: u16) -> Option<ModeLoan<'a>> {
        let perm = vault.stat(path).ok().map(|attr| attr.perm).filter(|perm| perm & bits != bits)?;
        set_perm(vault, path, perm | bits).ok()?;
        Some(ModeLoan { vault, path: path.to_owned(), perm })
    }
}

impl Drop for ModeLoan<'_> {
    fn drop(&mut self) {
        match set_perm(self.vault, &self.path, self.perm) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!("{}: its mode {:o} could not be set back: {e}", self.path.display(), self.perm);
            }
            _ => {}
        }
    }
}

/// Gives a file another content in one step; owner and mode stay.
fn rewrite(vault: &dyn HostDir, path: &str, bytes: &[u8]) -> std::io::Result<()> {
    if recover::read_small(vault, path, bytes.len()).is_ok_and(|found| found.as_deref() == Some(bytes)) {
        return Ok(());
    }
    // One that was cut off before the rename left the same content under the same name.
    let fresh = parent_of(path).join(temporary::name_of_content(bytes));
    let (perm, owner) = match vault.stat(Path::new(path)) {
        Ok(old) => (old.perm, Some(Caller { uid: old.uid, gid: old.gid })),
        Err(_) => (perm::file(vault, 0), owner_beside(vault, path)),
    };
    let new = NewFile { content: bytes, perm, owner, durable: true };
    match vault.publish(&fresh, &new) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        other => drop(other?),
    }
    vault.rename(&fresh, Path::new(path), RenameFlags::empty())
}

/// Makes one step and the directories that it changed durable. What is made already stays as it is. Says of a removal of a
/// folder how far that came.
fn make_step(vault: &dyn HostDir, step: &Step) -> Result<Removal> {
    let mut removal = Removal::Done;
    let missing_is_done = |r: std::io::Result<()>| match r {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let exists_is_done = |r: std::io::Result<()>| match r {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    let (subject, dirs, result) = match step {
        Step::Rename { from, to } => (from, vec![parent_of(to), parent_of(from)], rename_whole(vault, from, to)),
        Step::MakeDir { path } => (
            path,
            vec![parent_of(path)],
            exists_is_done(vault.make_dir(Path::new(path), perm::folder(vault, 0), owner_beside(vault, path))),
        ),
        Step::Write { path, bytes } => {
            let (perm, owner) = (perm::file(vault, 0), owner_beside(vault, path));
            let new = NewFile { content: bytes, perm, owner, durable: true };
            let done = vault.publish(Path::new(path), &new).map(drop);
            (path, vec![parent_of(path)], exists_is_done(done))
        }
        Step::Rewrite { path, bytes, .. } => (path, vec![parent_of(path)], rewrite(vault, path, bytes)),
        Step::RemoveFile { path } => {
            let remove = || vault.remove(Path::new(path), Kind::File);
            (path, vec![parent_of(path)], missing_is_done(as_owner(vault, parent_of(path), remove)))
        }
        Step::RemoveDir { path } => {
            (path, vec![parent_of(path)], temporary::remove_folder(vault, path).map(|came| removal = came))
        }
    };
    result.map_err(|e| FsError::from(e).on("rename", subject))?;
    for dir in dirs {
        match as_owner(vault, dir, || vault.sync(SyncTarget::Dir(dir))) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(FsError::from(e).on("sync", dir.display()));
            }
            _ => {}
        }
    }
    Ok(removal)
}
