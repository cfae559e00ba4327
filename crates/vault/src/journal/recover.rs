//! Recovery: what a dead mount left half-made is completed or cut away, from the segments that it left.
//!
//! In this order: plans are completed; overwritten chunks that are torn are written again; files that were growing are
//! cut at the last chunk that authenticates, never below their floor; content directories named by an intent are
//! searched for objects of that epoch that never became whole. Every step can be repeated: a crash in the middle of
//! recovery is recovered from by the next one. A chunk that someone else wrote since is left alone, and ours is handed
//! to the caller as a [`Rescue`]. What never became whole is moved to [`ASIDE_DIR`]; nothing is deleted but folders under
//! names of passage ([`super::temporary`]), of creations that nobody was promised and removals that were asked for.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_core::media::{HostDir, HostFile, NewFile, SyncTarget};
use adit_core::types::{Access, Kind, RenameFlags};
use adit_core::{ErrorKind, FsError, Result};
use aws_lc_rs::hmac;
use zeroize::Zeroizing;

use super::record::{self, Data, FRAME_LEN_BYTES, Record, Step};
use super::temporary;
use super::{VERSION, VaultId, make_step, open_as_owner, segment_name, segment_number, session_nonce};
use crate::format::content::{CHUNK_CLEAR_BYTES, object};
use crate::format::names::{C9R, C9S, CONTENTS_FILE, DIR_FILE, DIRID_FILE, NAME_FILE, SYMLINK_FILE, shorten};
use crate::format::{ContentCipher, DirId, FileCipher, NameCipher};

/// Where objects go that never became whole: a folder beside `d`, which other clients leave alone.
pub(crate) const ASIDE_DIR: &str = "adit-lost+found";

/// Most header nonces that a damaged segment can make us compute.
const NONCES_MAX: u64 = 1 << 22;

/// What recovery did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Segments that were found, of mounts that ended without an unmount.
    pub segments: usize,
    /// Chunks that were written again.
    pub chunks_rewritten: u64,
    /// Files that were cut to their last whole chunk.
    pub files_cut: u64,
    /// Renames that were completed.
    pub plans_completed: u64,
    /// Directories whose content folder or id file was made again.
    pub directories_completed: u64,
    /// Folders of objects that were being made or removed, removed.
    pub folders_removed: u64,
    /// Ciphertext paths of objects that never became whole, moved aside.
    pub moved_aside: Vec<String>,
    /// Ciphertext paths of files that someone else changed or removed since; our unwritten chunks were saved.
    pub conflicts: Vec<String>,
}

/// A piece of ours that has no place in the vault any more.
pub(crate) struct Rescue {
    /// Ciphertext path of the file that it belonged to.
    pub path: String,
    /// Cleartext offset of the piece in the file, in bytes.
    pub offset: u64,
    /// The piece.
    pub clear: Zeroizing<Vec<u8>>,
}

/// A segment that some mount left behind.
pub(crate) struct Leftover {
    state: Arc<dyn HostDir>,
    name: PathBuf,
    number: u64,
}

/// Whether a file of a state directory is a segment of a journal.
pub(crate) fn is_journal(name: &[u8]) -> bool {
    segment_number(name).is_some()
}

/// Segments in `state`, oldest first.
pub(crate) fn leftovers(state: &Arc<dyn HostDir>) -> Result<Vec<Leftover>> {
    let mut numbers = Vec::new();
    state
        .list(Path::new(""), &mut |e| numbers.extend(segment_number(e.name)))
        .map_err(|e| FsError::from(e).on("list", "the state directory"))?;
    numbers.sort_unstable();
    let leftover = |number| Leftover { state: state.clone(), name: segment_name(number), number };
    Ok(numbers.into_iter().map(leftover).collect())
}

struct ChunkState {
    /// Nonces of all versions that are ours.
    ours: Vec<Vec<u8>>,
    /// Where they lie, oldest first: index of the segment, and where in it. Never empty.
    versions: Vec<(usize, Data)>,
}

impl ChunkState {
    fn newest(&self) -> (usize, Data) {
        *self.versions.last().expect("a chunk without a version is removed")
    }
}

struct FileState {
    /// Oldest first.
    paths: Vec<String>,
    header: Vec<u8>,
    floor: u64,
    chunks: BTreeMap<u64, ChunkState>,
    unlinked: bool,
}

#[derive(Default)]
struct Story {
    files: HashMap<Vec<u8>, FileState>,
    intents: Vec<String>,
    plans: BTreeMap<(usize, u64), (Vec<Step>, u32)>,
    /// Header nonces that may be in use, and the segment that gave them out.
    session: HashMap<Vec<u8>, usize>,
    seeds: Vec<hmac::Key>,
    segments: Vec<Arc<dyn HostFile>>,
    /// Where each segment's last good frame ends.
    ends: Vec<u64>,
}

/// Recovers from `leftovers` and removes them when all is durable in the vault.
pub(crate) fn recover(
    vault: &dyn HostDir,
    content: &ContentCipher,
    names: &NameCipher,
    id: VaultId,
    leftovers: &[Leftover],
    rescue: &mut dyn FnMut(Rescue) -> Result<()>,
) -> Result<RecoveryReport> {
    let mut report = RecoveryReport::default();
    if leftovers.is_empty() {
        return Ok(report);
    }
    let mut story = Story::default();
    let nonce_len = content.layout().nonce_len as usize;
    for left in leftovers {
        if story.read(left, id, nonce_len)? {
            report.segments += 1;
        }
    }
    let (handled, buf, clear) = (HashSet::new(), Vec::new(), Zeroizing::new(Vec::new()));
    let mut work = Work { vault, content, names, report, rescue, handled, buf, clear };
    work.plans(&mut story)?;
    for state in story.files.values() {
        work.file(&story, state)?;
    }
    work.intents(&story)?;
    for (nonce, state) in &story.files {
        work.give_up(&story, nonce, state)?;
    }
    let report = work.report;
    vault.sync(SyncTarget::All).map_err(|e| FsError::from(e).on("sync", "the vault"))?;
    for left in leftovers {
        tracing::info!("recovered from journal segment {}", left.number);
        left.state
            .remove(&left.name, Kind::File)
            .and_then(|()| left.state.sync(SyncTarget::Dir(Path::new(""))))
            .map_err(|e| FsError::from(e).on("retire", left.name.display()))?;
    }
    Ok(report)
}

impl Story {
    /// Reads one segment. False if it tells nothing: not even its first record became durable.
    fn read(&mut self, left: &Leftover, id: VaultId, nonce_len: usize) -> Result<bool> {
        let broken = |e: std::io::Error| FsError::from(e).on("read", left.name.display());
        let file: Arc<dyn HostFile> = Arc::from(left.state.open(&left.name, Access::Write).map_err(broken)?);
        let index = self.segments.len();
        self.segments.push(file.clone());
        let (mut at, mut buf, mut numbers) = (0u64, Vec::new(), HashMap::new());
        let mut seed = None;
        loop {
            buf.resize(FRAME_LEN_BYTES, 0);
            if file.read_at(at, &mut buf).map_err(broken)? < FRAME_LEN_BYTES {
                break;
            }
            let len = u32::from_le_bytes([buf[0], buf[1], buf[2], buf[3]]) as usize;
            buf.resize(FRAME_LEN_BYTES + len.min(32 << 20), 0);
            let got = file.read_at(at, &mut buf).map_err(broken)?;
            let Some(payload) = record::frame_payload(&buf[..got], at) else { break };
            let payload_at = at + FRAME_LEN_BYTES as u64;
            let Some(record) = record::decode(payload, payload_at) else { break };
            match record {
                Record::Begin { version, vault, seed: bytes } => {
                    if version != VERSION || vault != id {
                        return Err(FsError::new(ErrorKind::Corrupt).on("read", left.name.display()).because(
                            "this journal belongs to another vault or a newer version of adit; move it away if it is not needed",
                        ));
                    }
                    seed = Some(hmac::Key::new(hmac::HMAC_SHA256, &bytes));
                }
                Record::Reserve { up_to } => {
                    if let Some(seed) = &seed {
                        let nonce = |n| (session_nonce(seed, n, nonce_len), index);
                        self.session.extend((0..up_to.min(NONCES_MAX)).map(nonce));
                    }
                }
                Record::Plan { id, steps } => {
                    self.plans.insert((index, id), (steps, 0));
                }
                Record::Progress { id, done } => {
                    if let Some(plan) = self.plans.get_mut(&(index, id)) {
                        plan.1 = done;
                    }
                }
                Record::Intent { dir } => self.intents.push(dir),
                other => self.file_record(other, index, &mut numbers, nonce_len, &buf, at),
            }
            at += (FRAME_LEN_BYTES + len) as u64;
        }
        self.ends.push(at);
        let known = seed.is_some();
        self.seeds.extend(seed);
        Ok(known)
    }

    /// Notes in the segment, durably, that steps of a plan are made: should recovery be cut off, the next one goes on
    /// from there. A step can be told from its effect only as long as no later one is made.
    fn progress(&mut self, (segment, id): (usize, u64), done: u32) -> Result<()> {
        let mut frame = record::Frame::default();
        frame.clear();
        frame.put(&Record::Progress { id, done });
        let (file, at) = (&self.segments[segment], self.ends[segment]);
        let bytes = frame.seal(at);
        file.write_at(at, bytes)
            .and_then(|()| file.sync(true))
            .map_err(|e| FsError::from(e).on("write", "the vault's journal"))?;
        self.ends[segment] += bytes.len() as u64;
        Ok(())
    }

    fn file_record(
        &mut self,
        record: Record,
        segment: usize,
        numbers: &mut HashMap<u32, Vec<u8>>,
        nonce_len: usize,
        frame: &[u8],
        frame_at: u64,
    ) {
        let number = match &record {
            Record::Declare { file, header, .. } => {
                let Some(nonce) = header.get(..nonce_len) else { return };
                numbers.insert(*file, nonce.to_vec());
                *file
            }
            Record::Path { file, .. }
            | Record::Unlinked { file }
            | Record::Floor { file, .. }
            | Record::Settled { file, .. }
            | Record::Cancel { file, .. }
            | Record::Run { file, .. } => *file,
            _ => return,
        };
        let Some(nonce) = numbers.get(&number) else { return };
        if let Record::Declare { floor, path, header, .. } = record {
            let state = self.files.entry(nonce.clone()).or_insert_with(|| FileState {
                paths: Vec::new(),
                header,
                // Made in an earlier epoch that is not retired: nothing of it is sure to be durable.
                floor: if self.session.get(nonce).is_some_and(|&made| made != segment) { 0 } else { floor },
                chunks: BTreeMap::new(),
                unlinked: false,
            });
            state.floor = state.floor.min(floor);
            state.unlinked = false;
            state.paths.push(path);
            return;
        }
        let Some(state) = self.files.get_mut(nonce) else { return };
        match record {
            Record::Path { path, .. } => state.paths.push(path),
            Record::Unlinked { .. } => state.unlinked = true,
            Record::Floor { floor, .. } => {
                state.floor = state.floor.min(floor);
                let kept = floor.div_ceil(u64::from(CHUNK_CLEAR_BYTES));
                state.chunks.retain(|&chunk, _| chunk < kept);
            }
            Record::Settled { len, .. } => {
                state.floor = len;
                state.chunks.clear();
            }
            Record::Cancel { first, count, .. } => {
                let cancelled = first..first.saturating_add(count.into());
                for (_, chunk) in state.chunks.range_mut(cancelled) {
                    chunk.versions.pop();
                }
                state.chunks.retain(|_, chunk| !chunk.versions.is_empty());
            }
            Record::Run { first, chunk_lens, old_nonces, data, .. } => {
                let mut offset = data.offset;
                for (n, (len, old)) in chunk_lens.into_iter().zip(old_nonces).enumerate() {
                    let in_frame = (offset - frame_at) as usize;
                    let Some(new) = frame.get(in_frame..in_frame + nonce_len) else { return };
                    let new_chunk = || ChunkState { ours: vec![old], versions: Vec::new() };
                    let chunk = state.chunks.entry(first + n as u64).or_insert_with(new_chunk);
                    chunk.ours.push(new.to_vec());
                    chunk.versions.push((segment, Data { offset, len }));
                    offset += u64::from(len);
                }
            }
            _ => {}
        }
    }

    fn data(&self, (segment, data): (usize, Data)) -> Result<Vec<u8>> {
        let mut bytes = vec![0; data.len as usize];
        let got = self.segments[segment].read_at(data.offset, &mut bytes)?;
        if got < bytes.len() {
            return Err(FsError::new(ErrorKind::Corrupt).on("read", "the vault's journal"));
        }
        Ok(bytes)
    }
}

struct Work<'a> {
    vault: &'a dyn HostDir,
    content: &'a ContentCipher,
    names: &'a NameCipher,
    report: RecoveryReport,
    rescue: &'a mut dyn FnMut(Rescue) -> Result<()>,
    /// Header nonces of the files that were found and dealt with.
    handled: HashSet<Vec<u8>>,
    buf: Vec<u8>,
    clear: Zeroizing<Vec<u8>>,
}

/// None for what is not there.
pub(super) fn absent<T>(r: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Work<'_> {
    /// Completes the plans that were cut off. One that meets what someone else did since is given up: what it moved lies
    /// under temporary names then, where `check` finds it.
    fn plans(&mut self, story: &mut Story) -> Result<()> {
        for (key, (steps, done)) in std::mem::take(&mut story.plans) {
            let mut made = done as usize;
            while let Some(step) = steps.get(made) {
                if let Err(e) = self.allowed(step).and_then(|()| make_step(self.vault, step)) {
                    if !matches!(
                        e.kind(),
                        ErrorKind::Exists
                            | ErrorKind::NotFound
                            | ErrorKind::NotEmpty
                            | ErrorKind::NotDirectory
                            | ErrorKind::IsDirectory
                    ) {
                        return Err(e);
                    }
                    tracing::error!("a rename that was cut off cannot be completed: {e}");
                    self.report.conflicts.push(e.subject().unwrap_or("a rename").to_owned());
                    story.progress(key, steps.len() as u32)?;
                    break;
                }
                made += 1;
                story.progress(key, made as u32)?;
            }
            self.report.plans_completed += u64::from(made == steps.len() && made > done as usize);
        }
        Ok(())
    }

    /// A directory that was to be replaced, because it was empty, may not be empty any more.
    fn allowed(&self, step: &Step) -> Result<()> {
        let Step::RemoveFile { path } = step else { return Ok(()) };
        let Some(dir) = path.strip_suffix(DIRID_FILE) else { return Ok(()) };
        let mut others = 0;
        let listed = self.vault.list(Path::new(dir.trim_end_matches('/')), &mut |e| {
            others += usize::from(e.name != DIRID_FILE.as_bytes());
        });
        absent(listed)?;
        if others > 0 { Err(FsError::new(ErrorKind::NotEmpty).on("remove", path)) } else { Ok(()) }
    }

    /// The file at one of its places, newest first, if its header is still the one that we know.
    fn find(&mut self, state: &FileState, fresh: bool) -> Result<Option<(String, Box<dyn HostFile>)>> {
        for path in state.paths.iter().rev() {
            let opened = match open_as_owner(self.vault, Path::new(path), Access::Write) {
                Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => continue,
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    tracing::warn!("{path}: {e}");
                    continue;
                }
                other => absent(other).map_err(|e| FsError::from(e).on("open", path))?,
            };
            let Some(file) = opened else { continue };
            let mut header = vec![0; state.header.len()];
            let got = file.read_at(0, &mut header).map_err(|e| FsError::from(e).on("read", path))?;
            if header == state.header {
                return Ok(Some((path.clone(), file)));
            }
            if fresh && (got < header.len() || header.iter().all(|&b| b == 0)) {
                file.write_at(0, &state.header).map_err(|e| FsError::from(e).on("write", path))?;
                return Ok(Some((path.clone(), file)));
            }
        }
        Ok(None)
    }

    fn file(&mut self, story: &Story, state: &FileState) -> Result<()> {
        let nonce = &state.header[..self.content.layout().nonce_len as usize];
        let fresh = story.session.contains_key(nonce);
        let Ok(cipher) = self.content.open_file(&state.header) else { return Ok(()) };
        match self.find(state, fresh)? {
            Some((path, file)) => self.mend(story, state, &cipher, &path, &*file),
            None => Ok(()), // not where the journal says: its last move may not be durable, see `intents`
        }
    }

    /// Saves what the journal has of a file that is nowhere.
    fn give_up(&mut self, story: &Story, nonce: &[u8], state: &FileState) -> Result<()> {
        // A file of this epoch may never have come into being; if it did, all but a call in flight is in it.
        if self.handled.contains(nonce) || state.unlinked || story.session.contains_key(nonce) {
            return Ok(());
        }
        let Ok(cipher) = self.content.open_file(&state.header) else { return Ok(()) };
        for (&chunk, at) in &state.chunks {
            self.save(story, state, &cipher, chunk, at)?;
        }
        Ok(())
    }

    /// Mends a file that was found.
    fn mend(
        &mut self,
        story: &Story,
        state: &FileState,
        cipher: &FileCipher,
        path: &str,
        file: &dyn HostFile,
    ) -> Result<()> {
        self.handled.insert(cipher.header_nonce().to_vec());
        for (&chunk, at) in &state.chunks {
            self.chunk(story, state, cipher, (path, file), chunk, at)?;
        }
        self.cut(path, file, cipher, state.floor)
    }

    fn save(
        &mut self,
        story: &Story,
        state: &FileState,
        cipher: &FileCipher,
        chunk: u64,
        at: &ChunkState,
    ) -> Result<()> {
        let sealed = story.data(at.newest())?;
        let mut clear = Zeroizing::new(vec![0; sealed.len()]);
        let Ok(len) = cipher.decrypt_chunk(chunk, &sealed, &mut clear) else { return Ok(()) };
        clear.truncate(len);
        let path = state.paths.last().cloned().unwrap_or_default();
        if !self.report.conflicts.contains(&path) {
            self.report.conflicts.push(path.clone());
        }
        (self.rescue)(Rescue { path, offset: chunk * u64::from(CHUNK_CLEAR_BYTES), clear })
    }

    /// Writes our newest version of one chunk again, unless it is there or someone else's is.
    fn chunk(
        &mut self,
        story: &Story,
        state: &FileState,
        cipher: &FileCipher,
        (path, file): (&str, &dyn HostFile),
        chunk: u64,
        at: &ChunkState,
    ) -> Result<()> {
        let layout = cipher.layout();
        let fresh = story.session.contains_key(cipher.header_nonce());
        let failed = |e: std::io::Error| FsError::from(e).on("recover", path);
        let Ok(offset) = layout.chunk_offset(chunk) else { return Ok(()) };
        let new = story.data(at.newest())?;
        let full = layout.chunk_cipher() as usize;
        self.buf.resize(full, 0);
        let got = file.read_at(offset, &mut self.buf).map_err(failed)?;
        let found = &self.buf[..got];
        if !found.starts_with(&new) {
            self.clear.resize(full, 0);
            let authentic = cipher.decrypt_chunk(chunk, found, &mut self.clear).is_ok();
            let ours = found.get(..layout.nonce_len as usize).is_some_and(|n| at.ours.iter().any(|o| o == n));
            let beyond = file.stat().map_err(failed)?.size <= offset;
            let durable = chunk * u64::from(CHUNK_CLEAR_BYTES) < state.floor;
            if authentic && !ours && (fresh || !durable) {
                // Not every version of such a chunk is recorded: of a file of this epoch this may be a later one, and
                // above the floor one from before the file was cut. What was promised, it keeps.
                return Ok(());
            }
            if (authentic && !ours) || (beyond && durable) {
                return self.save(story, state, cipher, chunk, at);
            }
            if beyond {
                return Ok(()); // it grew on ground that was not durable, and that is gone
            }
            file.write_at(offset, &new).map_err(failed)?;
            self.report.chunks_rewritten += 1;
        }
        // A short chunk was the last one; anything behind it is what a cut had not removed yet.
        let end = offset + new.len() as u64;
        if new.len() < full && file.stat().map_err(failed)?.size > end {
            file.set_len(end).map_err(failed)?;
            self.report.files_cut += 1;
        }
        Ok(())
    }

    /// Cuts the file at the first chunk that does not authenticate, at or above `floor` only.
    fn cut(&mut self, path: &str, file: &dyn HostFile, cipher: &FileCipher, floor: u64) -> Result<()> {
        let layout = cipher.layout();
        let failed = |e: std::io::Error| FsError::from(e).on("recover", path);
        let size = file.stat().map_err(failed)?.size;
        let full = layout.chunk_cipher() as usize;
        let mut chunk = layout.chunk_of(floor);
        loop {
            let Ok(offset) = layout.chunk_offset(chunk) else { return Ok(()) };
            if offset >= size {
                return Ok(());
            }
            self.buf.resize(full, 0);
            self.clear.resize(full, 0);
            let got = file.read_at(offset, &mut self.buf).map_err(failed)?;
            let empty = got == layout.overhead() as usize;
            if empty || cipher.decrypt_chunk(chunk, &self.buf[..got], &mut self.clear).is_err() {
                if chunk * u64::from(CHUNK_CLEAR_BYTES) < floor {
                    tracing::error!("{path}: chunk {chunk} does not authenticate");
                    chunk += 1;
                    continue;
                }
                self.report.files_cut += 1;
                return file.set_len(offset).map_err(failed);
            }
            chunk += 1;
        }
    }

    fn intents(&mut self, story: &Story) -> Result<()> {
        let mut queue: Vec<String> = story.intents.clone();
        let mut seen = HashSet::new();
        while let Some(dir) = queue.pop() {
            if !seen.insert(dir.clone()) {
                continue;
            }
            let mut entries = Vec::new();
            let listed = self.vault.list(Path::new(&dir), &mut |e| {
                if let Ok(name) = std::str::from_utf8(e.name) {
                    entries.push((name.to_owned(), e.kind));
                }
            });
            if absent(listed).map_err(|e| FsError::from(e).on("list", &dir))?.is_none() {
                continue;
            }
            for (name, kind) in entries {
                let path = format!("{dir}/{name}");
                let of_passage = story.seeds.iter().any(|seed| temporary::is_of(seed, &name));
                if name == DIRID_FILE || !(of_passage || name.ends_with(C9R) || name.ends_with(C9S)) {
                    continue;
                }
                let kind = match kind {
                    Some(kind) => Some(kind),
                    None => absent(self.vault.stat(Path::new(&path)))?.map(|a| a.kind),
                };
                if of_passage {
                    if kind == Some(Kind::Directory) {
                        self.clear_away(&path);
                    }
                    continue;
                }
                let looked = match kind {
                    Some(Kind::File) => self.new_file(story, &path, &path).map(|()| None),
                    Some(Kind::Directory) => self.folder(story, &path),
                    _ => Ok(None),
                };
                match looked {
                    Ok(below) => queue.extend(below),
                    // Someone else's, then: what is ours we can read and change.
                    Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::NotPermitted) => {
                        tracing::warn!("left as it is: {e}");
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Removes a folder under a name of passage of a dead mount. What cannot be removed stays, for `check`.
    fn clear_away(&mut self, path: &str) {
        match temporary::sweep(self.vault, self.names, path) {
            Ok(true) => self.report.folders_removed += 1,
            Ok(false) => tracing::warn!("{path}: an interrupted operation left it, and it is not empty; it stays"),
            Err(e) => tracing::warn!("{path}: an interrupted operation left it, and it stays: {e}"),
        }
    }

    /// Looks at a file in an unsettled directory; `object` is what to move aside if the file was never whole.
    fn new_file(&mut self, story: &Story, path: &str, object: &str) -> Result<()> {
        let failed = |e: std::io::Error| FsError::from(e).on("recover", path);
        let Some(file) = absent(open_as_owner(self.vault, Path::new(path), Access::Read)).map_err(failed)? else {
            return Ok(());
        };
        let layout = self.content.layout();
        let mut header = vec![0; layout.header_len as usize];
        let got = file.read_at(0, &mut header).map_err(failed)?;
        if got < header.len() || header.iter().all(|&b| b == 0) {
            drop(file);
            return self.aside(object);
        }
        let nonce = &header[..layout.nonce_len as usize];
        let known = story.files.get(nonce).filter(|state| state.header == header);
        if (known.is_none() && !story.session.contains_key(nonce)) || self.handled.contains(nonce) {
            return Ok(());
        }
        let Ok(cipher) = self.content.open_file(&header) else { return self.aside(object) };
        let file = open_as_owner(self.vault, Path::new(path), Access::Write).map_err(failed)?;
        match known {
            // It was not where the journal said: its last move was not in there yet.
            Some(state) => self.mend(story, state, &cipher, path, &*file),
            None => self.cut(path, &*file, &cipher, 0),
        }
    }

    /// Looks at a folder in an unsettled directory. Returns the content directory to search next, if it is new too.
    fn folder(&mut self, story: &Story, path: &str) -> Result<Option<String>> {
        let has = |name: &str| absent(self.vault.stat(Path::new(&format!("{path}/{name}")))).map(|a| a.is_some());
        if path.ends_with(C9S) && !self.is_named(path)? {
            // Its name was durable before the folder got here, so it was being taken apart.
            self.aside(path)?;
            return Ok(None);
        }
        if has(CONTENTS_FILE)? {
            self.new_file(story, &format!("{path}/{CONTENTS_FILE}"), path)?;
            return Ok(None);
        }
        if has(SYMLINK_FILE)? {
            return Ok(None);
        }
        let id = read_small(self.vault, &format!("{path}/{DIR_FILE}"), 256)?;
        let blank = id.as_ref().is_none_or(|id| id.iter().all(|&b| b == 0));
        if blank {
            self.aside(path)?;
            return Ok(None);
        }
        let Ok(id) = DirId::parse(&id.unwrap_or_default()) else { return Ok(None) };
        self.content_dir(story, &id)
    }

    fn is_named(&self, path: &str) -> Result<bool> {
        let name = read_small(self.vault, &format!("{path}/{NAME_FILE}"), 16 << 10)?;
        let name = name.and_then(|bytes| String::from_utf8(bytes).ok());
        Ok(name.is_some_and(|full| path.ends_with(&format!("/{}", shorten(&full)))))
    }

    /// Makes the content directory of `id` whole. Returns its path if its entries may be new as well.
    fn content_dir(&mut self, story: &Story, id: &DirId) -> Result<Option<String>> {
        let hash = self.names.dir_hash(id);
        let dir = hash.path();
        let id_path = format!("{dir}/{DIRID_FILE}");
        let failed = |e: std::io::Error| FsError::from(e).on("recover", &dir);
        let known = read_small(self.vault, &id_path, object::max_encoded_bytes(self.content))?;
        if let Some(bytes) = known {
            if let Ok(found) = object::decode_dir_id(self.content, &bytes) {
                let ours = bytes
                    .get(..self.content.layout().nonce_len as usize)
                    .is_some_and(|n| story.session.contains_key(n));
                return Ok((ours && found == *id).then_some(dir));
            }
            if bytes.iter().any(|&b| b != 0) {
                return Ok(None); // damaged, but not by us
            }
            self.vault.remove(Path::new(&id_path), Kind::File).map_err(failed)?;
        }
        let exists_is_fine = |r: std::io::Result<()>| match r {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        };
        exists_is_fine(self.vault.make_dir(Path::new(&format!("d/{}", hash.prefix())), 0o755, None)).map_err(failed)?;
        exists_is_fine(self.vault.make_dir(Path::new(&dir), 0o755, None)).map_err(failed)?;
        let bytes = object::encode_dir_id(self.content, id)
            .map_err(|e| FsError::new(ErrorKind::Io).on("recover", &dir).because(e))?;
        let new = NewFile { content: &bytes, perm: 0o600, owner: None, durable: true };
        self.vault.publish(Path::new(&id_path), &new).map_err(failed)?;
        self.report.directories_completed += 1;
        Ok(Some(dir))
    }

    fn aside(&mut self, path: &str) -> Result<()> {
        let failed = |e: std::io::Error| FsError::from(e).on("move aside", path);
        match self.vault.make_dir(Path::new(ASIDE_DIR), 0o700, None) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        for n in 0u32.. {
            let to = format!("{ASIDE_DIR}/{name}.{n}");
            match self.vault.rename(Path::new(path), Path::new(&to), RenameFlags::NOREPLACE) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                other => {
                    other.map_err(failed)?;
                    break;
                }
            }
        }
        self.report.moved_aside.push(path.to_owned());
        Ok(())
    }
}

/// The content of a small file, or None if it is not there; at most `max` bytes.
pub(crate) fn read_small(vault: &dyn HostDir, path: &str, max: usize) -> Result<Option<Vec<u8>>> {
    let failed = |e: std::io::Error| FsError::from(e).on("read", path);
    let Some(file) = absent(vault.open(Path::new(path), Access::Read)).map_err(failed)? else { return Ok(None) };
    let mut bytes = vec![0; max + 1];
    let got = file.read_at(0, &mut bytes).map_err(failed)?;
    bytes.truncate(got.min(max + 1));
    Ok(Some(bytes))
}
